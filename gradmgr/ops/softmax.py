"""Softmax and its logarithm: one op each behind `gradmgr.special`, which is SciPy's, and `nn.functional`, torch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import _xp
from gradmgr._custom import custom
from gradmgr._elementwise import conj_of
from gradmgr._tensor import Tensor
from gradmgr.ops.arithmetic import exp
from gradmgr.ops.convert import cast_to, lift, wide_dtype, widened
from gradmgr.ops.reduce import axes_of, sum

Axes = tuple[int, ...]


def _shifted(x: Any, top: Any) -> Any:
    """Return x - top in a new buffer, of float32 for halves."""
    wide = wide_dtype(x.dtype)
    if wide is not x.dtype:
        x, top = x.astype(wide), top.astype(wide)
    return np.subtract(x, top, out=_xp.namespace(x).empty(x.shape, wide))


def _as_given(made: Any, x: Any) -> Any:
    """Return a result in the dtype of x, one number as NumPy gives it."""
    made = made.astype(x.dtype, copy=False)
    return made if made.ndim else made[()]


def _along(a: Any, axes: Axes) -> Any:
    return sum(a, axes, keepdims=True) if isinstance(a, Tensor) else _xp.sum_over(a, axes, True)


def _softmax_kernel(x: Any, axes: Axes) -> Any:
    with np.errstate(under="ignore", invalid="ignore"):
        share = _shifted(x, np.max(x, axis=axes, keepdims=True))
        np.exp(share, out=share)
        share /= _xp.sum_over(share, axes, True)
    return _as_given(share, x)


def softmax_map(g: Any, out: Any, axes: Axes) -> Any:
    """Return out (g - sum(g out)), the derivative of the softmax: it is symmetric, so that it serves both ways."""
    part = g * out
    part -= out * _along(part, axes)
    return part


softmax_along = custom(
    "softmax",
    _softmax_kernel,
    vjp={"x": lambda g, out, axes: softmax_map(g, conj_of(widened(out)), axes)},
    jvp={"x": lambda t, out, axes: softmax_map(t, widened(out), axes)},
)


def _log_softmax_kernel(x: Any, axes: Axes, beside_inf: bool) -> Any:
    top = np.max(x, axis=axes, keepdims=True)
    if beside_inf:
        top = np.where(np.isfinite(top), top, np.zeros_like(top))
    with np.errstate(all="ignore"):
        made = _shifted(x, top)
        made -= np.log(_xp.sum_over(np.exp(made), axes, True))
    return _as_given(made, x)


def _log_softmax_vjp(g: Any, out: Any, axes: Axes) -> Any:
    total = _along(widened(g), axes)
    part = conj_of(exp.door(widened(out)))
    part *= -total
    part += g
    return part


def _log_softmax_jvp(t: Any, out: Any, axes: Axes) -> Any:
    t = widened(t)
    return t - _along(t * exp.door(widened(out)), axes)


# With `beside_inf`, what stands beside an inf is -inf, as SciPy's; without, the whole row is NaN, as torch's.
log_softmax_along = custom("log_softmax", _log_softmax_kernel, vjp={"x": _log_softmax_vjp}, jvp={"x": _log_softmax_jvp})


def _floating(x: Any) -> Any:
    """Lift; integers to the dtype of their exponentials."""
    x = lift(x)
    return cast_to(x, np.result_type(x.dtype, np.float16)) if x.dtype.kind in "biu" else x


def softmax(x: Any, axis: Any = None) -> Any:
    """Return exp(x) / sum(exp(x)) along axes, all of them by default; NaN for a row of -inf, as SciPy.

    float16 and bfloat16 are computed in float32 inside.
    """
    x = _floating(x)
    return softmax_along(x, axes_of(axis, x.ndim, "softmax", of_number=True))


def log_softmax(x: Any, axis: Any = None) -> Any:
    """Return log(softmax(x)) without under- or overflow; -inf where x is.

    float16 and bfloat16 are computed in float32 inside.
    """
    x = _floating(x)
    return log_softmax_along(x, axes_of(axis, x.ndim, "log_softmax", of_number=True), True)
