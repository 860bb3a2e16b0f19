"""Losses of differences and of probabilities, without overflow or loss of small values.

Half precision (float16, bfloat16) is computed and reduced in float32; results have the input's dtype.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import innermost
from gradmgr._arrays.block_kernels import can_run_in_blocks, run_in_blocks
from gradmgr._arrays.blocks import BLOCK
from gradmgr._engine.custom import custom
from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import raw
from gradmgr.nn._functions.arguments import check_floating, check_reduction, check_word, reduced
from gradmgr.ops import arithmetic, extrema, special
from gradmgr.ops.convert import (
    cast_to,
    is_floating,
    is_half,
    lift,
    lift_together,
    narrow_to,
    no_array,
    untracked_value,
    wide_dtype,
)
from gradmgr.ops.reduce import mean, sum
from gradmgr.ops.where import choose

# ---------------------------------------------------------------- arguments and reductions


def check_library(asked: str, input: Any, *others: Any) -> None:
    """Raise if arrays are of different libraries, before any value is read."""
    library = libraries.root(raw(input))
    if any(other is not None and libraries.root(raw(other)) is not library for other in others):
        raise libraries.mixed(asked)


def _cast_alike(asked: str, input: Any, target: Any) -> tuple[Any, Any]:
    """Return input and target, which must have one shape, in one floating dtype, float32 for half precision.

    Raises:
        ShapeError: the shapes differ.
        DtypeError: one of them is not of real numbers, or the input not floating.
    """
    x, y = raw(input), raw(target)
    if (
        x.__class__ is y.__class__ is np.ndarray
        and x.dtype is y.dtype
        and x.dtype in SINGLE_OR_DOUBLE
        and x.shape == y.shape
    ):
        return input, target
    if input is None or target is None:
        raise no_array(None)
    input, target = lift_together(input, target)
    check_floating(asked, input=input)
    if input.shape != target.shape:
        raise errors.ShapeError(
            f"{asked} takes an input and a target of one shape; found input of shape {input.shape} and target of shape "
            f"{target.shape}; reshape one of them, as broadcasting would average over pairs that do not belong together"
        )
    if target.dtype.kind in "biu":
        target = as_type(target, wide_dtype(input.dtype))
    check_floating(asked, target=target)
    dtype = wide_dtype(np.result_type(input.dtype, target.dtype))
    return cast_to(input, dtype), cast_to(target, dtype)


def _reduce(loss: Any, reduction: str, asked: str, *given: Any) -> Any:
    """Reduce a loss, and cast it back if all that was given is half precision."""
    return _cast_back(reduced(loss, reduction, asked), *given)


# The common dtypes, for which there are shortcuts.
SINGLE_OR_DOUBLE = (libraries.F4, libraries.F8)


def _cast_back(loss: Any, *given: Any) -> Any:
    first = raw(given[0])
    if first.__class__ is np.ndarray and first.dtype in SINGLE_OR_DOUBLE:
        return loss
    dtypes = {a.dtype for a in map(lift, given) if is_floating(a.dtype)}
    return narrow_to(loss, np.result_type(*dtypes)) if all(map(is_half, dtypes)) else loss


def _constant_factor(value: Any, like: Any, name: str, asked: str) -> Any:
    """Return a weight, which must not be tracked, as a plain array in the dtype of `like`; raise if it does not fit."""
    if value is None:
        return None
    weight = untracked_value(lift_together(like, value)[1], asked, name)
    check_library(asked, like, weight)
    weight = weight if weight.dtype == like.dtype else weight.astype(like.dtype)
    try:
        fits = np.broadcast_shapes(weight.shape, like.shape) == like.shape
    except ValueError:
        fits = False
    if not fits:
        raise errors.ShapeError(
            f"{asked}: {name} of shape {weight.shape} does not broadcast to {like.shape}, the input"
        )
    return weight


# ---------------------------------------------------------------- losses of differences

# Numbers that one dot product sums: the sums of these runs are added in float64, so that little precision is lost.
_RUN = 4096


def _mean_square_kernel(x: Any) -> Any:
    """Return the mean of squares by dot products, without an array of the squares."""
    if not (x.__class__ is np.ndarray or libraries.is_numpy(x)) or x.dtype not in SINGLE_OR_DOUBLE or not x.size:
        return (x * x).mean()
    if x.size <= _RUN:
        flat = x.ravel("K")
        return flat.dot(flat) / flat.size
    flat = x.ravel("K")
    whole = flat.size - flat.size % _RUN
    runs = flat[:whole].reshape((-1, _RUN))
    total = np.add.reduce(np.vecdot(runs, runs).astype(np.float64))
    if whole < flat.size:
        rest = flat[whole:]
        total = total + rest.dot(rest)
    return (total / flat.size).astype(x.dtype)


_mean_square = custom(
    "nn.mean_square",
    _mean_square_kernel,
    vjp={"x": lambda g, x: x * (g * (2 / x.size))},
    jvp={"x": lambda t, x: mean(t * x) * 2},
)


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Return (input - target)**2, its mean by default.

    Args:
        input: real floating-point numbers.
        target: an array of the same shape; integers are cast to the input's dtype.
        reduction: "none", "mean" or "sum"; the mean over nothing is NaN.

    Raises:
        ShapeError: the shapes differ. (torch warns and broadcasts, which is nearly always a mistake.)
        DtypeError: one of them is complex, or the input not floating.
        ValueError: the reduction is unknown.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import mse_loss
    >>> float(mse_loss(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    2.0
    """
    check_reduction(reduction, "mse_loss")
    x, y = _cast_alike("mse_loss", input, target)
    d = x - y
    if reduction == "mean" and d.size:
        return _cast_back(_mean_square(d), input, target)
    return _reduce(arithmetic.square(d), reduction, "mse_loss", input, target)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Return |input - target|, its mean by default; the derivative at 0 is 0. Arguments: see `mse_loss`.

    Raises:
        ValueError: `reduction` is unknown, or input and target differ in shape.
        TypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import l1_loss
    >>> float(l1_loss(np.array([1.0, 5.0]), np.array([2.0, 2.0])))
    2.0
    """
    check_reduction(reduction, "l1_loss")
    x, y = _cast_alike("l1_loss", input, target)
    return _reduce(arithmetic.absolute(x - y), reduction, "l1_loss", input, target)


def _huber_kernel(x: Any, delta: float) -> Any:
    size = np.abs(x)
    near = np.minimum(size, delta)
    size -= near * 0.5
    near *= size
    return near


_huber = custom(
    "nn.huber_loss",
    _huber_kernel,
    vjp={"x": lambda g, x, delta: g * _clip_to(x, delta)},
    jvp={"x": lambda t, x, delta: t * _clip_to(x, delta)},
)


def _clip_to(x: Any, delta: float) -> Any:
    return extrema.clip(x, -delta, delta)


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Return d**2 / 2 where |d| <= delta, else delta * (|d| - delta / 2), with d = input - target.

    Arguments and errors are those of `mse_loss`; a delta that is not positive is a ValueError.

    Raises:
        ValueError: `reduction` is unknown, `delta` is not positive, or input and target differ in shape.
        TypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import huber_loss
    >>> huber_loss(np.array([1.0, 4.0]), np.array([0.0, 0.0]), reduction="none", delta=2.0).tolist()
    [0.5, 6.0]
    """
    check_reduction(reduction, "huber_loss")
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be positive; found {delta!r}")
    x, y = _cast_alike("huber_loss", input, target)
    return _reduce(_huber(x - y, float(delta)), reduction, "huber_loss", input, target)


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Return d**2 / (2 * beta) where |d| < beta, else |d| - beta / 2, with d = input - target.

    That is `huber_loss` over beta, and for beta = 0 `l1_loss`. Arguments and errors are those of `mse_loss`; a
    negative beta is a ValueError.

    Raises:
        ValueError: `reduction` is unknown, `beta` is negative, or input and target differ in shape.
        TypeError: an argument is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import smooth_l1_loss
    >>> smooth_l1_loss(np.array([1.0, 4.0]), np.array([0.0, 0.0]), reduction="none", beta=2.0).tolist()
    [0.25, 3.0]
    """
    check_reduction(reduction, "smooth_l1_loss")
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative; found {beta!r}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    x, y = _cast_alike("smooth_l1_loss", input, target)
    return _reduce(_huber(x - y, float(beta)) / float(beta), reduction, "smooth_l1_loss", input, target)


# ---------------------------------------------------------------- losses of probabilities


def _can_run_in_blocks(x: Any, *others: Any) -> bool:
    """Tell whether all are NumPy's arrays, also captured, of one shape, all in float32 or all in float64."""
    if x.__class__ is np.ndarray:
        return can_run_in_blocks(x, *others)
    return (
        libraries.is_numpy(x)
        and x.dtype in SINGLE_OR_DOUBLE
        and all(a.dtype == x.dtype and a.shape == x.shape and libraries.is_numpy(a) for a in others)
    )


def _is_captured_block(x: Any) -> bool:
    """Tell whether x is captured, of an array that is one block."""
    return libraries.are_captured(x) and x.nbytes <= BLOCK


@libraries.captured_as_one(unless=lambda x, *_: _is_captured_block(x))
def _bce_logits_kernel(x: Any, y: Any, pos_weight: Any) -> Any:
    """Compute p y log(1 + exp(-x)) + (1 - y) log(1 + exp(x)), both terms without loss of small values."""
    with np.errstate(all="ignore"):
        if pos_weight is None and _can_run_in_blocks(x, y):
            return run_in_blocks(_bce_logits_piece, libraries.empty_like(x), (x, y), 2)
        rest = np.log1p(np.exp(-np.abs(x)))
        right = (rest + np.maximum(-x, 0)) * y
        if pos_weight is not None:
            right = right * pos_weight
        return right + (rest + np.maximum(x, 0)) * (1 - y)


def _bce_logits_piece(out: Any, x: Any, y: Any, low: Any, work: Any) -> None:
    """Compute log(1 + exp(-|x|)) + max(x, 0) (1 - y) - min(x, 0) y."""
    low.fill(0)
    np.maximum(x, low, out=out)
    np.minimum(x, low, out=low)
    low *= y
    np.subtract(1, y, out=work)
    out *= work
    out -= low
    np.abs(x, out=work)
    np.negative(work, out=work)
    np.exp(work, out=work)
    np.log1p(work, out=work)
    out += work


def _bce_logits_slope_piece(out: Any, g: Any, x: Any, y: Any, work: Any) -> None:
    """Compute g ((1 - y) s(x) - y s(-x)); s(-x) is not computed as 1 - s(x), which would lose small values."""
    np.negative(x, out=work)
    np.exp(work, out=work)
    work += 1
    np.subtract(1, y, out=out)
    out /= work
    np.exp(x, out=work)
    work += 1
    np.divide(y, work, out=work)
    out -= work
    out *= g


@libraries.captured_as_one(unless=lambda g, x, *_: _is_captured_block(x))
def _bce_logits_x(g: Any, x: Any, y: Any, pos_weight: Any) -> Any:
    if pos_weight is None and _can_run_in_blocks(x, g, y):
        with np.errstate(all="ignore"):
            return run_in_blocks(_bce_logits_slope_piece, libraries.empty_like(x), (g, x, y), 1)
    right = y * special.expit(-x)
    if pos_weight is not None:
        right = right * pos_weight
    return g * ((1 - y) * special.expit(x) - right)


def _bce_logits_y(g: Any, x: Any, pos_weight: Any) -> Any:
    return -g * x if pos_weight is None else g * (special.log_expit(-x) - special.log_expit(x) * pos_weight)


_bce_logits = custom(
    "nn.binary_cross_entropy_with_logits",
    _bce_logits_kernel,
    vjp={"x": _bce_logits_x, "y": _bce_logits_y},
    jvp={
        "x": lambda t, x, y, pos_weight: _bce_logits_x(t, x, y, pos_weight),
        "y": lambda t, x, pos_weight: _bce_logits_y(t, x, pos_weight),
    },
)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """Return -(p * y * log(s(x)) + (1 - y) * log(1 - s(x))), s the sigmoid, without under- or overflow.

    Args:
        input: the logits x.
        target: the probabilities y, of the same shape.
        weight: a factor of each loss; it must broadcast to the input's shape.
        reduction: "none", "mean" or "sum"; the mean is over the number of losses, whatever `weight` is.
        pos_weight: the factor p; it must broadcast to the input's shape.

    Raises:
        ShapeError, DtypeError, ValueError: as for `mse_loss`; ShapeError also if a weight does not broadcast.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import binary_cross_entropy_with_logits
    >>> binary_cross_entropy_with_logits(np.array([0.0, -1000.0]), np.array([1.0, 0.0]), reduction="none").round(4)
    array([0.6931, 0.    ])
    """
    asked = "binary_cross_entropy_with_logits"
    check_reduction(reduction, asked)
    x, y = _cast_alike(asked, input, target)
    factor, positive = (
        _constant_factor(value, x, name, asked) for value, name in ((weight, "weight"), (pos_weight, "pos_weight"))
    )
    loss = _bce_logits(x, y, positive)
    return _reduce(loss if factor is None else loss * factor, reduction, asked, input, target)


_TINY = math.exp(-100)  # as in torch, logarithms are bounded below by -100
_CLOSE = 1e-12  # the least p (1 - p) in the derivative


def _bce_kernel(x: Any, y: Any) -> Any:
    with np.errstate(divide="ignore"):
        return -(y * np.maximum(np.log(x), -100) + (1 - y) * np.maximum(np.log1p(-x), -100))


def _bce_x(g: Any, x: Any, y: Any) -> Any:
    return g * ((x - y) / extrema.maximum(x * (1 - x), _CLOSE))


def _bce_y(g: Any, x: Any) -> Any:
    return g * (_bounded_log(1 - x) - _bounded_log(x))


def _bounded_log(x: Any) -> Any:
    low = raw(x) < _TINY
    return choose(low, x.dtype.type(-100), arithmetic.log(choose(low, x.dtype.type(1), x)))


_bce = custom(
    "nn.binary_cross_entropy",
    _bce_kernel,
    vjp={"x": _bce_x, "y": _bce_y},
    jvp={"x": lambda t, x, y: _bce_x(t, x, y), "y": lambda t, x: _bce_y(t, x)},
)


def binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """Return -(y * log(p) + (1 - y) * log(1 - p)) of probabilities p.

    As in torch logarithms are at least -100, and the derivative stays finite. Prefer
    `binary_cross_entropy_with_logits`, which is exact. Its arguments are the same, but for `pos_weight`, and so are its
    errors.

    Raises:
        ValueError: an input is outside of [0, 1], or the reduction is unknown.
        ShapeError, DtypeError: as for `mse_loss`; ShapeError also if the weight does not broadcast.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import binary_cross_entropy
    >>> loss = binary_cross_entropy(np.array([0.5, 0.75]), np.array([1.0, 0.0]), reduction="none")
    >>> np.exp(-loss).round(6).tolist()  # the probability of what was observed
    [0.5, 0.25]
    """
    asked = "binary_cross_entropy"
    check_reduction(reduction, asked)
    x, y = _cast_alike(asked, input, target)
    values = innermost(raw(x))
    if bool(((values < 0) | (values > 1)).any()):
        raise ValueError(
            f"{asked} takes probabilities; found an input outside of [0, 1]; apply sigmoid, or better: call "
            "binary_cross_entropy_with_logits on the logits"
        )
    factor = _constant_factor(weight, x, "weight", asked)
    loss = _bce(x, y)
    return _reduce(loss if factor is None else loss * factor, reduction, asked, input, target)


def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """Return target * (log(target) - input), 0 where target is 0.

    Args:
        input: logarithms of probabilities.
        target: probabilities, or their logarithms, in the same shape.
        reduction: "none", "mean", "sum", or "batchmean", the sum over the length of the first axis.
        log_target: whether `target` holds logarithms.

    Raises:
        ShapeError, DtypeError, ValueError: as for `mse_loss`.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import kl_div
    >>> found = kl_div(np.log([0.5, 0.5]), np.array([1.0, 0.0]), reduction="sum")
    >>> round(float(found) / np.log(2), 6)
    np.float64(1.0)
    """
    check_word(reduction, ("none", "mean", "sum", "batchmean"), "reduction", "kl_div")
    x, y = _cast_alike("kl_div", input, target)
    loss = arithmetic.exp(y) * (y - x) if log_target else special.xlogy(y, y) - y * x
    if reduction == "batchmean":
        count = x.shape[0] if x.ndim else 1
        loss, reduction = sum(loss) / (count or np.nan), "none"
    return _reduce(loss, reduction, "kl_div", input, target)
