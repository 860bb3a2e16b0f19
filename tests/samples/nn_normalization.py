"""Normalisations, measured by formulas that NumPy writes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.nn import functional
from gradmgr.nn._functions import normalization
from samples._table import CUBE, Arg, Array, X, add, at, given

WEIGHTS = (Arg((4,)), Arg((4,)))
IMAGES = Arg((2, 4, 3, 2))


def call(
    name: str, case: str, *args: Arg, reference: Any, facts: dict[str, Any] | None = None, **keywords: Any
) -> None:
    """Enter nn.functional.name(*args, **keywords)."""
    add(
        f"nn.{name}",
        case,
        lambda xp, *given: getattr(functional, name)(*given, **keywords),
        *args,
        reference=reference,
        dispatches=False,
        **(facts or {}),
    )


def standard(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """x centred, divided by sqrt(var + eps)."""
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def by_formula(compute: Any) -> Any:
    """A reference that computes in one dtype, halves in singles; of x, weight and bias, of which may be None."""

    def reference(*arrays: Any) -> Array:
        dtype = np.result_type(*arrays)
        wide = np.float32 if dtype.itemsize == 2 else dtype
        x, weight, bias = (*[a.astype(wide) for a in arrays], None, None)[:3]
        return np.asarray(compute(x, 1 if weight is None else weight, 0 if bias is None else bias)).astype(dtype)

    return reference


# ---------------------------------------------------------------- layer_norm, rms_norm


def layer(axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    """What layer_norm computes over these axes."""
    return by_formula(lambda x, weight, bias: standard(x, axes, eps) * weight + bias)


def rms(axes: tuple[int, ...], eps: float) -> Any:
    """What rms_norm computes over these axes."""
    return by_formula(lambda x, weight, _: x / np.sqrt((x * x).mean(axes, keepdims=True) + eps) * weight)


def over(name: str, shape: Any) -> Any:
    """The function with normalized_shape given, for arguments that are all tensors."""
    return lambda x, weight=None, bias=None, **more: getattr(functional, name)(
        x, shape, weight, *(() if name == "rms_norm" else (bias,)), **more
    )


def last_axes(name: str, case: str, shape: Any, *args: Arg, reference: Any, third: bool = False, **more: Any) -> None:
    """Enter a function with normalized_shape."""
    function = over(name, shape)
    add(
        f"nn.{name}",
        case,
        lambda xp, *given: function(*given, **more),
        *args,
        reference=reference,
        dispatches=False,
        third=third,
    )


last_axes("layer_norm", "plain", 4, X, reference=layer((-1,)), third=True)
last_axes("layer_norm", "weight", (4,), X, Arg((4,)), reference=layer((-1,), 0.1), eps=0.1)
last_axes("layer_norm", "weight and bias", (3, 4), CUBE, Arg((3, 4)), Arg((3, 4)), reference=layer((-2, -1)))
last_axes("layer_norm", "frozen weight", 4, X, Arg((4,), constant=True), Arg((4,)), reference=layer((-1,)))
last_axes("layer_norm", "one row", 4, Arg((4,)), *WEIGHTS, reference=layer((-1,)))
last_axes("layer_norm", "no rows", 4, Arg((0, 4)), *WEIGHTS, reference=layer((-1,)))
last_axes("rms_norm", "plain", 4, X, reference=rms((-1,), 0.1), third=True, eps=0.1)
last_axes("rms_norm", "weight", [3, 4], CUBE, Arg((3, 4)), reference=rms((-2, -1), 1e-3), eps=1e-3)

# ---------------------------------------------------------------- group_norm, batch_norm


def grouped(groups: int) -> Any:
    """What group_norm computes."""

    def compute(x: Array, weight: Any, bias: Any) -> Array:
        parts = standard(x.reshape(x.shape[0], groups, -1), (2,), 1e-5).reshape(x.shape)
        weight, bias = (np.reshape(a, (-1,) + (1,) * (x.ndim - 2)) for a in (weight, bias))
        return parts * weight + bias

    return by_formula(compute)


def group_norm(case: str, groups: int, *args: Arg) -> None:
    """Enter group_norm with a number of groups."""
    add(
        "nn.group_norm",
        case,
        lambda xp, x, *more: functional.group_norm(x, groups, *more),
        *args,
        reference=grouped(groups),
        dispatches=False,
    )


group_norm("images", 2, IMAGES, *WEIGHTS)
group_norm("no further axes", 2, X)
group_norm("one group, weight alone", 1, Arg((2, 4, 3)), Arg((4,)))


def batch(x: Array, weight: Any, bias: Any) -> Array:
    """What batch_norm computes of a batch."""
    axes = (0, *range(2, x.ndim))
    weight, bias = (np.reshape(a, (-1,) + (1,) * (x.ndim - 2)) for a in (weight, bias))
    return standard(x, axes, 1e-5) * weight + bias


def batch_norm(case: str, *args: Arg, third: bool = False) -> None:
    """Enter batch_norm by the batch."""
    add(
        "nn.batch_norm",
        case,
        lambda xp, x, *more: functional.batch_norm(x, None, None, *more, training=True),
        *args,
        reference=by_formula(batch),
        dispatches=False,
        third=third,
    )


batch_norm("images", IMAGES, *WEIGHTS)
batch_norm("no further axes", X, *WEIGHTS)
batch_norm("plain", X, third=True)
batch_norm("frozen weight", Arg((3, 2, 4)), Arg((2,), constant=True), Arg((2,)))

# Which of two ops computes depends on whether there is a kernel in C.
_ROWS = normalization.Layout((1, 24, 4), (1, 24, 4), per_channel=False)
_GROUPS = normalization.Layout((1, 4, 36), (2, 4, 18), per_channel=True)
_BATCH = normalization.Layout((2, 4, 18), (2, 4, 18), per_channel=True)
for _name, _args, _reference, _settings in (
    ("layer_norm", (Arg((6, 4, 4)), *WEIGHTS), layer((-1,)), (_ROWS, 1e-5, True)),
    ("rms_norm", (Arg((6, 4, 4)), Arg((4,))), rms((-1,), 0.1), (_ROWS, 0.1, False)),
    ("group_norm", (Arg((2, 4, 18)), *WEIGHTS), grouped(2), (_GROUPS, 1e-5, True)),
    ("batch_norm", (Arg((2, 4, 18)), *WEIGHTS), by_formula(batch), (_BATCH, 1e-5)),
):
    for _kind in ("", "_of_input"):
        _op = getattr(normalization, f"_{_name}{_kind}")
        add(
            f"engine.nn.{_name}{_kind}",
            "as called",
            lambda xp, x, w, b=None, op=_op, more=_settings: op(x, w, b, *more)[0],
            *_args,
            reference=_reference,
            dispatches=False,
        )


class _WithAnother:
    """A batch beside another one of 5 values, of mean 0.5 and variance 2 in each channel, that no result is of."""

    def merge(self, mean: Any, var: Any, count: int) -> tuple[Any, Any, Any]:
        of_both = (mean * count + 2.5) / (count + 5)
        var = (count * (var + (mean - of_both) ** 2) + 5 * (2 + (0.5 - of_both) ** 2)) / (count + 5)
        return of_both, var, mean[:1] * 0 + (count + 5)

    def total(self, sums: Any) -> Any:
        return sums


def beside_another(x: Array, weight: Array, bias: Array) -> list[Array]:
    """The result, the normalised values, and 1/std, mean and variance of the values of both."""
    dtype = np.result_type(x, weight, bias)
    x, weight, bias = (z.astype(np.float32 if dtype.itemsize == 2 else dtype) for z in (x, weight, bias))
    off = np.sqrt(2.5)
    other = np.array([0.5 - off, 0.5 - off, 0.5, 0.5 + off, 0.5 + off], x.dtype)  # of variance 4 / 5 * off**2
    whole = np.concatenate([np.moveaxis(x, 1, 0).reshape(3, 8), np.tile(other, (3, 1))], axis=1)
    mean, var = whole.mean(1), whole.var(1)
    rstd = 1 / np.sqrt(var + x.dtype.type(1e-5))
    a = (x - mean[:, None]) * rstd[:, None]
    y = a * weight[:, None] + bias[:, None]
    return [y.astype(dtype), a.astype(dtype), rstd, mean, var]


_PAIR = normalization.Layout((2, 3, 4), (2, 3, 4), per_channel=True)
for _case, _count in (("the result", 1), ("all results", 5)):
    add(
        "nn.joint_batch_norm",
        _case,
        lambda xp, *arrays, n=_count: normalization.joint_batch_norm(*arrays, _PAIR, 1e-5, _WithAnother())[:n],
        *(Arg((2, 3, 4)), Arg((3,)), Arg((3,))),
        reference=lambda *arrays, n=_count: beside_another(*arrays)[:n],
        dispatches=False,
    )

_MEAN, _VAR = given([0.5, -1.0, 0.0, 2.0]), given([0.5, 1.0, 2.0, 0.1])


def by_running(x: Array, mean: Array, var: Array, *more: Array) -> Array:
    """What batch_norm computes of running statistics."""

    def compute(x: Array, weight: Any, bias: Any) -> Array:
        m, v, w, b = (np.reshape(a, (-1,) + (1,) * (x.ndim - 2)) for a in (mean, var, weight, bias))
        return (x - m.astype(x.dtype)) / np.sqrt(v.astype(x.dtype) + x.dtype.type(1e-5)) * w + b

    return by_formula(compute)(x, *more)


call("batch_norm", "running", IMAGES, _MEAN, _VAR, *WEIGHTS, reference=by_running)
call("batch_norm", "running, plain", X, _MEAN, _VAR, reference=by_running)
call("batch_norm", "running, weight alone", X, _MEAN, _VAR, Arg((4,)), reference=by_running)

# ---------------------------------------------------------------- normalize


def divided(p: float, axis: int, eps: float) -> Any:
    """What normalize computes."""

    def compute(x: Array, *_: Any) -> Array:
        return x / np.maximum((np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p), eps)

    return by_formula(compute)


call("normalize", "rows", X, reference=divided(2, 1, 1e-12), facts={"third": True})
call("normalize", "p = 3, first axis", CUBE, reference=divided(3, 0, 1e-12), p=3.0, dim=0)
call("normalize", "short ones", at([[3.0, 4.0], [0.1, 0.2]]), reference=divided(2, 1, 0.5), eps=0.5)
call("normalize", "complex", X, reference=divided(2, -1, 1e-12), facts={"field": "complex"}, dim=-1)
