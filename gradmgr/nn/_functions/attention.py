"""Attention: softmax of scaled scores, times values, in one op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import innermost, is_batched
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function, zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_floating
from gradmgr.nn._functions.attention_blocks import Operands, attend_in_blocks, gradients, is_one_block
from gradmgr.nn._functions.dropout import dropout
from gradmgr.ops.arithmetic import exp, sum_of
from gradmgr.ops.convert import cast_to, is_floating, lift, wide_dtype, widen_half
from gradmgr.ops.reduce import add_up
from gradmgr.ops.shape import expand_dims, repeat, reshape
from gradmgr.ops.softmax import softmax_map
from gradmgr.ops.where import choose

Shape = tuple[int, ...]


def are_plain(*values: Any) -> bool:
    """Tell whether no value is a Tensor, or batched or captured, so that a kernel may compute in place."""
    for v in values:  # a generator takes twice the time, which counts in the steps of recurrent cells
        if v.__class__ is np.ndarray or v is None:
            continue
        if isinstance(v, Tensor) or is_batched(v) or libraries.is_captured(v):
            return False
    return True


def batched_like(result: Any, *others: Any) -> Any:
    """Return the result, batched or captured if any of the others is."""
    return result if are_plain(result, *others) else libraries.able_to_hold(result, *others)


def are_numpy_arrays(*values: Any) -> bool:
    """Tell whether all values are NumPy arrays, by themselves or captured, or None."""
    for v in values:  # noqa: SIM110  # a generator takes twice the time
        if v.__class__ is not np.ndarray and v is not None and not libraries.is_numpy(v):
            return False
    return True


# ---------------------------------------------------------------- the op


@libraries.captured_as_one(
    unless=lambda query, key, value, *_: libraries.are_captured(query, key, value) and is_one_block(query, key),
    decides=True,
)
def _kernel(
    query: Any, key: Any, value: Any, bias: Any, masked: Any, drop: Any, scale: float, causal: bool
) -> tuple[Any, Any]:
    """Return the attended values, and the logarithm of each row's sum of exponentials: inf where all is masked."""
    if query.size and key.size and value.size and are_numpy_arrays(query, key, value, bias, masked, drop):
        return attend_in_blocks(Operands(query, key, value, bias, masked, drop, scale, causal))
    weights, sums = _softmax(_scores(query, key, bias, masked, scale, causal))
    output = np.matmul(weights if drop is None else weights * drop, value)
    given = query, key, value, bias, masked, drop
    return batched_like(output, *given), batched_like(sums, *given)


def _scores(query: Any, key: Any, bias: Any, masked: Any, scale: float, causal: bool) -> Any:
    """Return the scores, -inf where they are masked."""
    if causal:
        masked = _causal_mask(query, query.shape[-2], key.shape[-2])
    scores = (query * scale) @ key.swapaxes(-1, -2)
    if are_plain(scores, bias, masked):
        if bias is not None:
            scores += bias
        if masked is not None:
            np.copyto(scores, -np.inf, where=masked)
        return scores
    scores = scores if bias is None else scores + bias
    return scores if masked is None else choose(masked, -np.inf, scores)


def _causal_mask(like: Any, rows: int, columns: int) -> Any:
    """Return a mask that is True above the diagonal, in the library of `like`."""
    return ~libraries.root(raw(like)).tri(rows, columns, dtype=bool)


def _softmax(scores: Any) -> tuple[Any, Any]:
    """Return the softmax over keys, in the memory of the scores, 0 in rows of -inf; and the logarithm of the sums."""
    if scores.shape[-1] == 0:
        return scores, libraries.namespace(scores).full((*scores.shape[:-1], 1), np.inf, scores.dtype)
    top = np.max(scores, axis=-1, keepdims=True)
    top = np.where(top == -np.inf, np.zeros_like(top), top)
    scores -= top
    np.exp(scores, out=scores)
    total = libraries.sum_over(scores, (-1,), True)
    nothing = total == 0
    filled = total + nothing
    scores /= filled
    return scores, np.where(nothing, np.full_like(total, np.inf), np.log(filled) + top)


def weights_of(query: Any, key: Any, bias: Any, masked: Any, scale: float, causal: bool, sums: Any) -> Any:
    """Return the softmax over keys, given the logarithms of the sums that the op returned."""
    return exp(_scores(query, key, bias, masked, scale, causal) - sums)


@libraries.captured_as_one(
    unless=lambda g, query, key, value, *_: libraries.are_captured(query, key, value) and is_one_block(query, key),
    decides=True,
)
def _shared_cotangents(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    masked: Any,
    drop: Any,
    scale: float,
    causal: bool,
    output: Any,
    sums: Any,
) -> tuple[Any, Any, Any]:
    """Return the cotangents of query, key and value; or None, the weights and the cotangent of the scores."""
    of_output, of_sums = g
    arguments = query, key, value, bias, masked, drop
    if of_output is not None and output.size and key.size and are_numpy_arrays(of_output, of_sums, *arguments):
        return gradients(of_output, of_sums, Operands(*arguments, scale, causal), output, sums), None, None
    weights = weights_of(query, key, bias, masked, scale, causal, sums)
    return None, weights, _score_gradient(g, value, drop, weights)


def _score_gradient(g: Any, value: Any, drop: Any, weights: Any) -> Any:
    of_output, of_sums = g
    d = None
    if of_output is not None:
        d = of_output @ value.swapaxes(-1, -2)
        d = softmax_map(d if drop is None else d * drop, weights, (-1,))
    return sum_of(d, None if of_sums is None else of_sums * weights)


def _value_gradient(g: Any, drop: Any, shared: Any) -> Any:
    done, weights, _ = shared
    if done is not None:
        return done[2]
    return None if g[0] is None else (weights if drop is None else weights * drop).swapaxes(-1, -2) @ g[0]


def _bias_gradient(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    masked: Any,
    drop: Any,
    scale: float,
    causal: bool,
    sums: Any,
    shared: Any,
) -> Any:
    done, _, of_scores = shared
    if done is None:
        return of_scores
    return _score_gradient(g, value, drop, weights_of(query, key, bias, masked, scale, causal, sums))


def _scores_jvp(t: Any, value: Any, drop: Any, weights: Any) -> tuple[Any, Any]:
    """Return the tangents of the results for a tangent of the scores."""
    part = t * weights
    of_sums = add_up(part, (part.ndim - 1,), True)
    slope = part - weights * of_sums
    return (slope if drop is None else slope * drop) @ value, of_sums


def _value_jvp(t: Any, drop: Any, weights: Any, sums: Any) -> tuple[Any, Any]:
    return (weights if drop is None else weights * drop) @ t, zeros(sums, sums.shape, sums.dtype)


_attend: Function = several(
    "nn.scaled_dot_product_attention",
    _kernel,
    ("output", "sums"),
    vjp={
        "query": lambda g, key, scale, shared: shared[0][0] if shared[0] else (shared[2] @ key) * scale,
        "key": lambda g, query, scale, shared: (
            shared[0][1] if shared[0] else (shared[2].swapaxes(-1, -2) @ query) * scale
        ),
        "value": _value_gradient,
        "bias": _bias_gradient,
    },
    jvp={
        "query": lambda t, query, key, value, bias, masked, drop, scale, causal, sums: _scores_jvp(
            (t * scale) @ key.swapaxes(-1, -2),
            *(value, drop, weights_of(query, key, bias, masked, scale, causal, sums)),
        ),
        "key": lambda t, query, key, value, bias, masked, drop, scale, causal, sums: _scores_jvp(
            (query * scale) @ t.swapaxes(-1, -2),
            *(value, drop, weights_of(query, key, bias, masked, scale, causal, sums)),
        ),
        "value": lambda t, query, key, bias, masked, drop, scale, causal, sums: _value_jvp(
            t, drop, weights_of(query, key, bias, masked, scale, causal, sums), sums
        ),
        "bias": lambda t, query, key, value, bias, masked, drop, scale, causal, sums: _scores_jvp(
            t, value, drop, weights_of(query, key, bias, masked, scale, causal, sums)
        ),
    },
    shared=_shared_cotangents,
)

# ---------------------------------------------------------------- arguments and their checks

_SELF = "scaled_dot_product_attention"


def attend(
    query: Any, key: Any, value: Any, mask: Any, drop: Any, scale: float | None, causal: bool, with_weights: bool
) -> tuple[Any, Any]:
    """Return the attended values, and the weights or None, for arguments of one floating dtype that fit each other.

    Half precision is computed in float32, as sums over many features and keys would overflow and lose digits.
    """
    dtype = query.dtype
    query, key, value = widen_half(query), widen_half(key), widen_half(value)
    bias, masked = _bias_and_masked(mask, query.dtype)
    width = query.shape[-1]
    factor = float(scale) if scale is not None else 1 / math.sqrt(width) if width else 1.0
    output, sums = _attend(query, key, value, bias, masked, drop, factor, causal)
    if not with_weights:
        return cast_to(output, dtype), None
    return cast_to(output, dtype), cast_to(weights_of(query, key, bias, masked, factor, causal, sums), dtype)


def _bias_and_masked(mask: Any, dtype: Any) -> tuple[Any, Any]:
    if mask is None:
        return None, None
    if mask.dtype == bool:
        return None, ~raw(mask)
    return cast_to(mask, dtype), None


def drop_factors(shape: Shape, probability: float, rng: Any, like: Any, *others: Any) -> Any:
    """Return the factors of dropout for the weights, on the device of `like`, or None for probability 0."""
    if probability == 0:
        return None
    ones = libraries.root(raw(like)).ones(shape, wide_dtype(like.dtype))
    ones = libraries.able_to_hold(ones, *[innermost(raw(a)) for a in (like, *others)])
    return raw(dropout(wrap(ones), probability, rng=rng))


def check_mask_dtype(mask: Any, asked: str, name: str = "attn_mask") -> None:
    """Raise unless a mask is boolean or floating."""
    if mask.dtype != bool and not is_floating(mask.dtype):
        raise errors.DtypeError(
            f"{asked}: {name} must be boolean, or of floating-point numbers, which are added to the scores; found "
            f"dtype {mask.dtype}; a mask of zeros and ones becomes boolean by .astype(bool)"
        )


def _check_mask(mask: Any, shape: Shape) -> None:
    """Raise unless a mask is boolean or floating and broadcasts to the scores."""
    check_mask_dtype(mask, _SELF)
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise errors.ShapeError(
            f"{_SELF}: attn_mask of shape {mask.shape} does not broadcast to the scores, which have shape {shape}: "
            "(..., length of query, length of key)"
        )


def _can_skip_checks(query: Any, key: Any, value: Any) -> bool:
    """Tell whether all hold NumPy arrays of one common dtype that fit without broadcasting; quicker than all checks."""
    q, k, v = raw(query), raw(key), raw(value)
    if q.__class__ is not np.ndarray or k.__class__ is not np.ndarray or v.__class__ is not np.ndarray:
        return False
    dtype, rows, keys, values = q.dtype, q.shape, k.shape, v.shape
    if (dtype is not libraries.F4 and dtype is not libraries.F8) or k.dtype is not dtype or v.dtype is not dtype:
        return False
    fits = len(rows) >= 2 and rows[:-2] == keys[:-2] == values[:-2]
    return fits and rows[-1] == keys[-1] and keys[-2] == values[-2]


def _check_shapes(query: Any, key: Any, value: Any, grouped: bool) -> None:
    if not grouped and query.ndim > 1 and query.shape == key.shape == value.shape:
        return  # the most common case; the checks below take 5 us
    found = f"found query {query.shape}, key {key.shape}, value {value.shape}"
    fewest = 3 if grouped else 2
    if min(query.ndim, key.ndim, value.ndim) < fewest:
        takes = "(..., heads, length, features) with enable_gqa=True" if grouped else "(..., length, features)"
        raise errors.ShapeError(f"{_SELF} takes arrays of shape {takes}; {found}")
    if query.shape[-1] != key.shape[-1]:
        raise errors.ShapeError(f"{_SELF}: query and key must have the same number of features; {found}")
    if key.shape[-2] != value.shape[-2]:
        raise errors.ShapeError(f"{_SELF}: key and value must have the same length; {found}")
    heads, of_key, of_value = (t.shape[-3] if grouped else 1 for t in (query, key, value))
    if of_key == 0 or of_value == 0 or heads % of_key or heads % of_value:
        raise errors.ShapeError(f"{_SELF}: the numbers of heads of key and value must divide that of query; {found}")
    try:
        np.broadcast_shapes(*[t.shape[:-fewest] for t in (query, key, value)])
    except ValueError:
        says = "" if grouped or query.ndim < 3 else "; for fewer heads of key and value pass enable_gqa=True"
        raise errors.ShapeError(f"{_SELF}: the leading axes do not broadcast; {found}{says}") from None


def _shape_of_scores(query: Any, key: Any, grouped: bool) -> Shape:
    if grouped:
        return (*np.broadcast_shapes(query.shape[:-3], key.shape[:-3]), *query.shape[-3:-1], key.shape[-2])
    return (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Any:
    """Return softmax(query key^T scale + mask) value, the softmax over keys, as torch's function of this name.

    Large scores do not overflow. NumPy arrays are computed in blocks, large ones by several threads (see
    `gradmgr.set_num_threads`). One number per query is kept for the backward pass, which computes the softmax again.
    With is_causal most of what lies above the diagonal is not computed.

    Args:
        query: shape (..., L, E).
        key: shape (..., S, E); leading axes broadcast as those of matmul.
        value: shape (..., S, V).
        attn_mask: broadcasts to (..., L, S). In a boolean mask True means that the query attends to the key (in
            `nn.MultiheadAttention` True means that it does not, as in torch). A floating mask is added to the scores,
            and gradients flow to it. A query whose keys are all masked, by False or -inf, has a result and gradients
            of zeros.
        dropout_p: the probability with which each weight is set to 0; the others are divided by 1 - dropout_p. As in
            torch it is always applied: pass 0.0 for evaluation.
        is_causal: query i attends to keys 0 to i, also if L and S differ. Not together with attn_mask.
        scale: the factor of the products; 1 / sqrt(E) by default.
        enable_gqa: grouped queries: query has shape (..., H, L, E), and the numbers of heads of key and value
            divide H; each of their heads serves a group of neighbouring heads of query.
        rng: the generator that dropout draws from; None for a new one.

    Returns:
        Shape (..., L, V), in the common dtype of query, key and value. Half precision is computed in float32.

    Raises:
        DtypeError: an argument is not of real floating-point numbers, or the mask is neither of these nor boolean.
        ShapeError: lengths, features, heads, leading axes or the mask do not fit.
        ValueError: dropout_p is not from 0 to 1, or both attn_mask and is_causal were given.
        TypeError: rng is not a numpy.random.Generator.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> q = k = np.zeros((2, 4))
    >>> v = np.array([[1.0], [3.0]])
    >>> F.scaled_dot_product_attention(q, k, v, is_causal=True)
    array([[1.],
           [2.]])
    """
    if attn_mask is None and dropout_p == 0 and not enable_gqa and _can_skip_checks(query, key, value):
        return attend(query, key, value, None, None, scale, bool(is_causal), False)[0]
    query, key, value = lift(query), lift(key), lift(value)
    check_floating(_SELF, query=query, key=key, value=value)
    if attn_mask is not None and is_causal:
        raise ValueError(
            f"{_SELF} takes attn_mask or is_causal=True, not both; put the causal part into the mask: "
            "attn_mask & numpy.tri(L, S, dtype=bool)"
        )
    _check_shapes(query, key, value, enable_gqa)
    if not query.dtype is key.dtype is value.dtype:
        dtype = np.result_type(query.dtype, key.dtype, value.dtype)
        query, key, value = (cast_to(t, dtype) for t in (query, key, value))
    if attn_mask is None and dropout_p == 0 and not enable_gqa:
        return attend(query, key, value, None, None, scale, bool(is_causal), False)[0]
    shape = _shape_of_scores(query, key, enable_gqa)
    mask = None if attn_mask is None else lift(attn_mask)
    if mask is not None:
        _check_mask(mask, shape)
    drop = drop_factors(shape, dropout_p, rng, query, key, value)
    if not enable_gqa:
        return attend(query, key, value, mask, drop, scale, bool(is_causal), False)[0]
    grouped = _add_group_axis(query, key, value)
    groups = grouped[0].shape[-4:-2]
    output, _ = attend(
        *grouped, _split_into_groups(mask, groups), _split_into_groups(drop, groups), scale, bool(is_causal), False
    )
    return reshape(output, (*output.shape[:-4], shape[-3], *output.shape[-2:]))


# ---------------------------------------------------------------- grouped queries


def _add_group_axis(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Add an axis for the group of query heads that each head of key and value serves."""
    heads, of_key, of_value = (t.shape[-3] for t in (query, key, value))
    common = max(of_key, of_value)
    if common % of_key or common % of_value:
        common = heads
    key, value = (t if t.shape[-3] == common else repeat(t, common // t.shape[-3], axis=-3) for t in (key, value))
    return _split_into_groups(query, (common, heads // common)), expand_dims(key, -3), expand_dims(value, -3)


def _split_into_groups(a: Any, groups: Shape) -> Any:
    """Split the heads of an array (..., heads, rows, columns) into groups; one without heads is returned as it is."""
    if a is None or a.ndim < 3:
        return a
    if a.shape[-3] == 1 and groups != (1, 1):
        return expand_dims(a, -3)
    return reshape(a, (*a.shape[:-3], *groups, *a.shape[-2:]))
