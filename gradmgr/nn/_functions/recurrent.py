"""Cells of recurrent networks.

One op computes a whole step and is one tape entry. Its rules share the cotangents of the gates; everything else is
products with them. The activations of each gate are contiguous, as the rules read gate after gate.

A short step is a few products of 4 us and some twenty calls of 0.4 us each. So there are separate functions for NumPy
arrays, `..._into`, which write into given arrays and make as few calls as possible. `recurrent_sequences` uses them,
too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.libraries import empty
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function, zeros
from gradmgr._engine.tensor import Tensor
from gradmgr.nn._functions.arguments import check_floating
from gradmgr.nn._functions.attention import are_plain, batched_like
from gradmgr.ops.convert import cast_to, lift, wide_dtype
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.reduce import add_up

_HALF = np.float32(0.5)

# ---------------------------------------------------------------- gates


def _affine_columns(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return weight x^T + bias, a column for each example.

    For few examples this takes BLAS as little as half the time of x weight^T, and `dot` takes 0.5 us less than
    `matmul`.
    """
    if x.__class__ is weight.__class__ is np.ndarray:
        made = weight.dot(x.T)
    else:
        made = (np.dot if libraries.is_numpy(x) and libraries.is_numpy(weight) else np.matmul)(weight, x.T)
    return made if bias is None else _add(made, bias[:, None])


def columns_by_gate(columns: Any, count: int) -> Any:
    """Return (count * hidden, batch) as (count, batch, hidden)."""
    return columns.reshape((count, columns.shape[0] // count, columns.shape[1])).swapaxes(1, 2)


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    """Return x weight^T + bias as a new array, or x itself if there is no weight."""
    if weight is None:
        return x
    return _add(np.matmul(x, weight.T), bias)


def _add(made: Any, more: Any) -> Any:
    """Return the sum, in place if possible; the first array must not be referred to elsewhere."""
    if more is None:
        return made
    if made.__class__ is more.__class__ and not is_batched(made):
        made += more
        return made
    return made + more


def split_gates(rows: Any, count: int) -> Any:
    """Return (batch, count * hidden) as (count, batch, hidden); a bias as (count, 1, hidden)."""
    if rows.ndim == 1:
        return rows.reshape((count, 1, rows.shape[0] // count))
    return rows.reshape((rows.shape[0], count, rows.shape[1] // count)).swapaxes(0, 1)


def _join_gates(parts: Any) -> Any:
    """Return (count, batch, hidden) as (batch, count * hidden)."""
    count, batch, hidden = parts.shape
    return parts.swapaxes(0, 1).reshape((batch, count * hidden))


def _allocate_gates(parts: Any, more: Any) -> Any:
    """Return the sum by gate as a new array, with memory for one more gate at its end."""
    total = parts if more is None else parts + more
    return np.concatenate([total, total[:1]])


def _expit_in_place(a: Any) -> None:
    """Replace x by the logistic function of x, as (1 + tanh(x / 2)) / 2, which does not overflow as exp(-x) does."""
    half = _half(a)
    a *= half
    np.tanh(a, a)
    a *= half
    a += half


def _half(like: Any) -> Any:
    """Return 1/2; for NumPy's float32 as an array, by which it multiplies in half the time."""
    return np.asarray(_HALF) if like.__class__ is np.ndarray and like.dtype is libraries.F4 else 0.5


def total_over_batch(rows: Any) -> Any:
    return add_up(rows, (0,), False)


def _or_zeros(g: Any, like: Any) -> Any:
    return zeros(like, like.shape, like.dtype) if g is None else g


# ---------------------------------------------------------------- LSTM
# `gates` holds i, f, g and o after their activations, and tanh of the new c.


@libraries.captured_as_one(unless=lambda x, h, c, w_ih, w_hh, *b: libraries.are_captured_from(w_hh, x, h, c, w_ih, *b))
def lstm_kernel(x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any, Any]:
    """Compute a step; without w_ih, x is the input's part of the gates already."""
    more = b_ih if b_hh is None else b_hh if b_ih is None else b_ih + b_hh
    if are_plain(x, h, c, w_ih, w_hh, more) or libraries.are_captured_alike(w_hh, x, h, c, w_ih, more):
        columns = _affine_columns(h, w_hh)
        if w_ih is not None:
            columns += _affine_columns(x, w_ih)
        more = None if more is None else split_gates(more, 4)
        if w_ih is None:
            more = split_gates(x, 4) if more is None else split_gates(x, 4) + more
        new_h, new_c, gates = empty(c.shape, columns), empty(c.shape, columns), empty((5, *c.shape), columns)
        lstm_into(new_h, new_c, gates, columns_by_gate(columns, 4), more, c)
        return new_h, new_c, gates
    rows = np.matmul(h, w_hh.T)
    if w_ih is None:
        more = x if more is None else x + more
    else:
        rows = _add(rows, np.matmul(x, w_ih.T))
    gates = batched_like(_allocate_gates(split_gates(rows, 4), None if more is None else split_gates(more, 4)), c)
    of_g = np.tanh(gates[2])
    _expit_in_place(gates[:4])
    gates[2] = of_g
    new_c = _add(gates[1] * c, gates[0] * of_g)
    gates[4] = squashed = np.tanh(new_c)
    return gates[3] * squashed, new_c, gates


def lstm_into(new_h: Any, new_c: Any, gates: Any, parts: Any, more: Any, c: Any) -> None:
    """Compute a step from two summands of the four gates, by gate."""
    four, of_g, half = gates[:4], gates[2], _half(gates)
    if more is None:
        four[...] = parts
    else:
        np.add(parts, more, four)
    of_g += of_g  # doubled, so that one call of tanh serves all gates: the others are (1 + tanh(x / 2)) / 2
    four *= half
    made = np.tanh(four)
    np.multiply(made, half, four)
    four += half
    of_g[...] = made[2]
    np.multiply(gates[1], c, new_c)
    new_c += np.multiply(gates[0], of_g, new_h)
    squashed = np.tanh(new_c, gates[4])
    np.multiply(gates[3], squashed, new_h)


@libraries.captured_as_one(unless=lambda g, c, gates: g[2] is None and libraries.are_captured_from(gates, *g, c))
def lstm_vjp(g: Any, c: Any, gates: Any) -> tuple[Any, Any]:
    """Return the cotangents of the gates before their activations, by row, and of the new c from all its uses."""
    if g[2] is None and (are_plain(*g, c, gates) or libraries.are_captured_alike(gates, *g, c)):
        _, batch, hidden = gates.shape
        rows = empty((batch, 4 * hidden), gates)
        return rows, lstm_vjp_into(rows, g[0], g[1], c, gates)
    i, _, of_g, o, squashed = (gates[k] for k in range(5))
    of_h, of_gates = _or_zeros(g[0], o), _or_zeros(g[2], gates)
    of_c = (of_h * o + of_gates[4]) * (1 - squashed * squashed) + _or_zeros(g[1], o)
    parts = stack([of_c * of_g, of_c * c, of_c * i, of_h * squashed]) + of_gates[:4]
    return _join_gates(parts * _lstm_slopes(gates)), of_c


def lstm_vjp_into(rows: Any, of_h: Any, of_new_c: Any, c: Any, gates: Any) -> Any:
    """Compute the same for plain arrays, in few passes, into given arrays."""
    squashed, multiply = gates[4], np.multiply
    four = gates[:4]
    parts = empty(four.shape, gates)
    of_o = parts[3]
    if of_h is None:
        of_c = of_new_c
        of_o[...] = 0
    else:
        of_c = of_h * gates[3]
        multiply(squashed, squashed, of_o)
        of_o *= of_c
        of_c -= of_o
        if of_new_c is not None:
            of_c += of_new_c
        multiply(of_h, squashed, of_o)
    multiply(of_c, gates[2], parts[0])
    multiply(of_c, c, parts[1])
    multiply(of_c, gates[0], parts[2])
    slopes = four * four
    of_g = 1 - slopes[2]
    np.subtract(four, slopes, slopes)
    slopes[2] = of_g
    multiply(parts, slopes, split_gates(rows, 4))
    return of_c


def _lstm_shared(g: Any, c: Any, gates: Any) -> tuple[Any, Any, Any]:
    """Return the cotangents of `lstm_vjp`, and that of both biases."""
    rows, of_c = lstm_vjp(g, c, gates)
    return rows, of_c, total_over_batch(rows)


def _lstm_slopes(gates: Any) -> Any:
    i, f, g, o = (gates[k] for k in range(4))
    return stack([i - i * i, f - f * f, 1 - g * g, o - o * o])


def lstm_jvp(t: Any, c: Any, gates: Any) -> tuple[Any, Any, Any]:
    """Return the tangents of the results for a tangent of the gates before their activations."""
    parts = split_gates(t, 4) * _lstm_slopes(gates)
    return _lstm_jvp_of_parts(parts[1] * c + parts[0] * gates[2] + gates[0] * parts[2], parts, gates)


def lstm_jvp_of_c(t: Any, gates: Any) -> tuple[Any, Any, Any]:
    return _lstm_jvp_of_parts(gates[1] * t, zeros(gates, (4, *gates.shape[1:]), gates.dtype), gates)


def _lstm_jvp_of_parts(of_c: Any, parts: Any, gates: Any) -> tuple[Any, Any, Any]:
    squashed = gates[4]
    of_squashed = of_c * (1 - squashed * squashed)
    of_gates = concatenate([parts, of_squashed[None]], axis=0)
    return parts[3] * squashed + gates[3] * of_squashed, of_c, of_gates


_lstm: Function = several(
    "nn.lstm_cell",
    lstm_kernel,
    ("new_h", "new_c", "gates"),
    vjp={
        "x": lambda g, w_ih, shared: shared[0] if w_ih is None else shared[0] @ w_ih,
        "h": lambda g, w_hh, shared: shared[0] @ w_hh,
        "c": lambda g, gates, shared: shared[1] * gates[1],
        "w_ih": lambda g, x, shared: shared[0].T @ x,
        "w_hh": lambda g, h, shared: shared[0].T @ h,
        "b_ih": lambda g, shared: shared[2],
        "b_hh": lambda g, shared: shared[2],
    },
    jvp={
        "x": lambda t, c, w_ih, gates: lstm_jvp(t if w_ih is None else t @ w_ih.T, c, gates),
        "h": lambda t, c, w_hh, gates: lstm_jvp(t @ w_hh.T, c, gates),
        "c": lstm_jvp_of_c,
        "w_ih": lambda t, x, c, gates: lstm_jvp(x @ t.T, c, gates),
        "w_hh": lambda t, h, c, gates: lstm_jvp(h @ t.T, c, gates),
        "b_ih": lambda t, c, gates: lstm_jvp(t, c, gates),
        "b_hh": lambda t, c, gates: lstm_jvp(t, c, gates),
    },
    shared=_lstm_shared,
)


def lstm_step(x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any]:
    """Compute one step for checked arguments of one dtype and a batch; without w_ih, x is its part of the gates."""
    new_h, new_c, _ = _lstm(x, h, c, w_ih, w_hh, b_ih, b_hh)
    return new_h, new_c


# ---------------------------------------------------------------- GRU
# `gates` holds r, z and n after their activations, and the factor of r.


@libraries.captured_as_one(unless=lambda x, h, w_ih, w_hh, *b: libraries.are_captured_from(w_hh, x, h, w_ih, *b))
def gru_kernel(x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> tuple[Any, Any]:
    """Compute a step; without w_ih, x is the input's part of the gates already."""
    given = x, h, w_ih, b_ih, b_hh
    if are_plain(w_hh, *given) or libraries.are_captured_alike(w_hh, *given):
        of_x = split_gates(x, 3) if w_ih is None else columns_by_gate(_affine_columns(x, w_ih, b_ih), 3)
        of_h = columns_by_gate(_affine_columns(h, w_hh, b_hh), 3)
        new_h, gates = empty(h.shape, of_h), empty((4, *h.shape), of_h)
        gru_into(new_h, gates, of_x, of_h, h)
        return new_h, gates
    of_x, of_h = _affine(x, w_ih, b_ih), _affine(h, w_hh, b_hh)
    of_x, of_h = split_gates(of_x, 3), split_gates(of_h, 3)
    gates = _allocate_gates(of_x, of_h)
    _expit_in_place(gates[:2])
    gates[3] = of_h[2]
    gates[2] = np.tanh(_add(gates[0] * gates[3], of_x[2]))
    return _add(gates[1] * (h - gates[2]), gates[2]), gates


def gru_into(new_h: Any, gates: Any, of_x: Any, of_h: Any, h: Any) -> None:
    """Compute a step from the input's and h's parts of the gates, by gate."""
    two, new, inner = gates[:2], gates[2], gates[3]
    np.add(of_x[:2], of_h[:2], two)
    _expit_in_place(two)
    inner[...] = of_h[2]
    np.multiply(gates[0], inner, new)
    new += of_x[2]
    np.tanh(new, new)
    np.subtract(h, new, new_h)
    new_h *= gates[1]
    new_h += new


@libraries.captured_as_one(unless=lambda g, h, gates: g[1] is None and libraries.are_captured_from(gates, *g, h))
def gru_vjp(g: Any, h: Any, gates: Any) -> tuple[Any, Any]:
    """Return the cotangents of the input's and of h's parts of the gates, by row."""
    if g[1] is None and (are_plain(*g, h, gates) or libraries.are_captured_alike(gates, *g, h)):
        _, batch, hidden = gates.shape
        of_input, of_h = empty((batch, 3 * hidden), gates), empty((batch, 3 * hidden), gates)
        gru_vjp_into(of_input, of_h, g[0], h, gates)
        return of_input, of_h
    r, z, n, inner = (gates[k] for k in range(4))
    of_new, of_gates = _or_zeros(g[0], n), _or_zeros(g[1], gates)
    of_n = (of_new * (1 - z) + of_gates[2]) * (1 - n * n)
    of_z = (of_new * (h - n) + of_gates[1]) * (z - z * z)
    of_r = (of_n * inner + of_gates[0]) * (r - r * r)
    of_input = concatenate([of_r, of_z, of_n], axis=1)
    return of_input, concatenate([of_r, of_z, of_n * r + of_gates[3]], axis=1)


def gru_vjp_into(of_input: Any, of_h: Any, of_new: Any, h: Any, gates: Any) -> None:
    """Compute the same for plain arrays, in few passes, into given arrays."""
    two, new, multiply = gates[:2], gates[2], np.multiply
    of_input, of_h = split_gates(of_input, 3), split_gates(of_h, 3)
    of_n = of_new - of_new * gates[1]
    slope = new * new
    slope *= of_n
    of_n -= slope
    of_input[2] = of_n
    multiply(of_n, gates[0], of_h[2])
    slopes = two * two
    np.subtract(two, slopes, slopes)
    of_n *= gates[3]
    slopes[0] *= of_n
    np.subtract(h, new, slope)
    slope *= of_new
    slopes[1] *= slope
    of_input[:2] = slopes
    of_h[:2] = slopes


def _gru_jvp_of_parts(of_x: Any, of_h: Any, t_h: Any, h: Any, gates: Any) -> tuple[Any, Any]:
    """Return the tangents of the results for those of both parts of the gates and of h; None means 0."""
    r, z, n, inner = (gates[k] for k in range(4))
    first = of_x if of_h is None else of_h
    of_r, of_z = first[0] * (r - r * r), first[1] * (z - z * z)
    of_inner = zeros(inner, inner.shape, inner.dtype)
    of_inner = of_inner if of_h is None else of_inner + of_h[2]
    of_n = (of_r * inner + r * of_inner + (0 if of_x is None else of_x[2])) * (1 - n * n)
    tangent = of_n * (1 - z) + of_z * (h - n)
    return tangent if t_h is None else tangent + z * t_h, stack([of_r, of_z, of_n, of_inner])


def gru_jvp_of_x(t: Any, h: Any, gates: Any) -> tuple[Any, Any]:
    return _gru_jvp_of_parts(split_gates(t, 3), None, None, h, gates)


def gru_jvp_of_h(t: Any, h: Any, gates: Any, t_h: Any = None) -> tuple[Any, Any]:
    return _gru_jvp_of_parts(None, split_gates(t, 3), t_h, h, gates)


def gru_h_gradient(g: Any, w_hh: Any, gates: Any, shared: Any) -> Any:
    d = shared[1] @ w_hh
    return d if g[0] is None else d + g[0] * gates[1]


_gru: Function = several(
    "nn.gru_cell",
    gru_kernel,
    ("new_h", "gates"),
    vjp={
        "x": lambda g, w_ih, shared: shared[0] if w_ih is None else shared[0] @ w_ih,
        "h": gru_h_gradient,
        "w_ih": lambda g, x, shared: shared[0].T @ x,
        "w_hh": lambda g, h, shared: shared[1].T @ h,
        "b_ih": lambda g, shared: total_over_batch(shared[0]),
        "b_hh": lambda g, shared: total_over_batch(shared[1]),
    },
    jvp={
        "x": lambda t, h, w_ih, gates: gru_jvp_of_x(t if w_ih is None else t @ w_ih.T, h, gates),
        "h": lambda t, h, w_hh, gates: gru_jvp_of_h(t @ w_hh.T, h, gates, t),
        "w_ih": lambda t, x, h, gates: gru_jvp_of_x(x @ t.T, h, gates),
        "w_hh": lambda t, h, gates: gru_jvp_of_h(h @ t.T, h, gates),
        "b_ih": lambda t, h, gates: gru_jvp_of_x(t, h, gates),
        "b_hh": lambda t, h, gates: gru_jvp_of_h(t, h, gates),
    },
    shared=gru_vjp,
)


def gru_step(x: Any, h: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """Compute one step for checked arguments of one dtype and a batch; without w_ih, x is its part of the gates."""
    new_h, _ = _gru(x, h, w_ih, w_hh, b_ih, b_hh)
    return new_h


# ---------------------------------------------------------------- public functions


def _check_shapes(asked: str, gates: int, states: dict[str, Any], weights: dict[str, Any], input: Any) -> None:
    """Raise unless all shapes fit each other and all dtypes are floating."""
    check_floating(asked, input=input, **states, **weights)
    h = states["h"]
    if input.ndim not in (1, 2):
        raise errors.ShapeError(
            f"{asked}: input must have shape (batch, features) or (features,); found {input.shape}; for a sequence "
            f"call it step by step"
        )
    hidden = h.shape[-1] if h.ndim else 0
    for name, state in states.items():
        if state.shape != (*input.shape[:-1], hidden):
            raise errors.ShapeError(
                f"{asked}: {name} must have shape {(*input.shape[:-1], hidden)}, as input has shape {input.shape} and "
                f"the hidden size is {hidden}; found {state.shape}"
            )
    expected: dict[str, tuple[int, ...]] = {"w_ih": (gates * hidden, input.shape[-1]), "w_hh": (gates * hidden, hidden)}
    expected |= {"b_ih": (gates * hidden,), "b_hh": (gates * hidden,)}
    for name, weight in weights.items():
        if weight is not None and weight.shape != expected[name]:
            raise errors.ShapeError(
                f"{asked}: {name} must have shape {expected[name]}, for {gates} gates, hidden size {hidden} and "
                f"{input.shape[-1]} features; found {weight.shape}"
            )


def _can_skip_checks(
    gates: int, input: Any, states: tuple[Any, ...], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any
) -> bool:
    """Tell whether the arguments hold NumPy arrays of one dtype that fit; takes a microsecond, as steps are short."""
    x = input._array if isinstance(input, Tensor) else input
    w = w_ih._array if isinstance(w_ih, Tensor) else w_ih
    if not (x.__class__ is w.__class__ is np.ndarray and x.ndim == w.ndim == 2):
        return False
    dtype, (batch, features), rows = x.dtype, x.shape, w.shape[0]
    state: tuple[int, ...] = (batch, rows // gates)
    if not (
        dtype is w.dtype
        and (dtype is libraries.F4 or dtype is libraries.F8)
        and w.shape == (gates * state[1], features)
    ):
        return False
    for v in states:
        if not _is_like(v, dtype, state):
            return False
    bias: tuple[int, ...] = (rows,)
    return (
        _is_like(w_hh, dtype, (rows, state[1]))
        and (b_ih is None or _is_like(b_ih, dtype, bias))
        and (b_hh is None or _is_like(b_hh, dtype, bias))
    )


def _is_like(value: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    a = value._array if isinstance(value, Tensor) else value
    return a.__class__ is np.ndarray and a.dtype is dtype and a.shape == shape


def cast_to_common_dtype(values: list[Any]) -> tuple[list[Any], Any]:
    """Return the values in the dtype to compute in, float32 for half precision, and the dtype of results."""
    dtype = np.result_type(*[v.dtype for v in values if v is not None])
    inner = wide_dtype(dtype)
    return [None if v is None else cast_to(v, inner) for v in values], dtype


def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, Any]:
    """Compute one step of an LSTM, as torch.lstm_cell: returns (h', c').

    i, f, g, o = input w_ih^T + b_ih + h w_hh^T + b_hh in four parts;
    c' = expit(f) c + expit(i) tanh(g); h' = expit(o) tanh(c').

    Args:
        input: shape (batch, features) or (features,).
        hx: the tuple (h, c), each of shape (batch, hidden) or (hidden,).
        w_ih: shape (4 * hidden, features), the gates in the order i, f, g, o.
        w_hh: shape (4 * hidden, hidden).
        b_ih: shape (4 * hidden,).
        b_hh: shape (4 * hidden,).

    Returns:
        h' and c', in the common dtype of all arguments. Half precision is computed in float32.

    Raises:
        DtypeError: an argument is not of real floating-point numbers.
        ShapeError: an argument does not fit; the message names it.
        TypeError: hx is not a pair.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> h = c = np.zeros((1, 1))
    >>> h, c = F.lstm_cell(np.ones((1, 2)), (h, c), np.ones((4, 2)), np.ones((4, 1)))
    >>> print(np.round(h, 4), np.round(c, 4))
    [[0.6083]] [[0.8491]]
    """
    if not (isinstance(hx, (tuple, list)) and len(hx) == 2):
        raise TypeError(f"lstm_cell: hx must be the pair (h, c); found {type(hx).__name__}")
    h, c = hx
    if _can_skip_checks(4, input, (h, c), w_ih, w_hh, b_ih, b_hh):
        return lstm_step(input, h, c, w_ih, w_hh, b_ih, b_hh)
    input, h, c, w_ih, w_hh, b_ih, b_hh = _lift_all(input, h, c, w_ih, w_hh, b_ih, b_hh)
    weights = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    _check_shapes("lstm_cell", 4, {"h": h, "c": c}, weights, input)
    values, dtype = cast_to_common_dtype([input, h, c, w_ih, w_hh, b_ih, b_hh])
    if input.ndim == 1:
        values[:3] = [v[None] for v in values[:3]]
    results = lstm_step(*values)
    new_h, new_c = results if input.ndim == 2 else (z[0] for z in results)
    return cast_to(new_h, dtype), cast_to(new_c, dtype)


def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of a GRU, as torch.gru_cell: returns h'.

    With the parts r, z, n of x = input w_ih^T + b_ih and of y = h w_hh^T + b_hh:
    r = expit(x_r + y_r); z = expit(x_z + y_z); n = tanh(x_n + r y_n); h' = (1 - z) n + z h.

    Args:
        input: shape (batch, features) or (features,).
        hx: h, of shape (batch, hidden) or (hidden,).
        w_ih: shape (3 * hidden, features), the gates in the order r, z, n.
        w_hh: shape (3 * hidden, hidden).
        b_ih: shape (3 * hidden,).
        b_hh: shape (3 * hidden,).

    Returns:
        h', in the common dtype of all arguments. Half precision is computed in float32.

    Raises:
        DtypeError: an argument is not of real floating-point numbers.
        ShapeError: an argument does not fit; the message names it.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> h = F.gru_cell(np.ones((1, 2)), np.zeros((1, 1)), np.ones((3, 2)), np.ones((3, 1)))
    >>> print(np.round(h, 4))
    [[0.1149]]
    """
    if _can_skip_checks(3, input, (hx,), w_ih, w_hh, b_ih, b_hh):
        return gru_step(input, hx, w_ih, w_hh, b_ih, b_hh)
    input, h, w_ih, w_hh, b_ih, b_hh = _lift_all(input, hx, w_ih, w_hh, b_ih, b_hh)
    weights = {"w_ih": w_ih, "w_hh": w_hh, "b_ih": b_ih, "b_hh": b_hh}
    _check_shapes("gru_cell", 3, {"h": h}, weights, input)
    values, dtype = cast_to_common_dtype([input, h, w_ih, w_hh, b_ih, b_hh])
    if input.ndim == 1:
        values[:2] = [v[None] for v in values[:2]]
    new_h = gru_step(*values)
    return cast_to(new_h if input.ndim == 2 else new_h[0], dtype)


def _lift_all(*values: Any) -> list[Any]:
    return [None if v is None else lift(v) for v in values]
