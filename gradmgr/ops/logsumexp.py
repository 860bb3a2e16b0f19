"""logsumexp, with weights and signs."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import logsumexp_kernels
from gradmgr.ops.arithmetic import exp, imag, real
from gradmgr.ops.convert import cast_to, lift
from gradmgr.ops.reduce import add_up
from gradmgr.ops.reduction_arguments import Axes, are_floats, axes_of, axes_of_floats, broadcast_back, kept_shape
from gradmgr.ops.shape import broadcast_to as broadcast_any
from gradmgr.ops.where import choose


def _softmax(x: Any, out: Any, axes: Axes) -> Any:
    """Return exp(x - logsumexp); 0 throughout where everything is -inf (a fully masked row); those that are inf share.

    The result is divided by its own sum, which removes the rounding error of the logsumexp.
    """
    total = broadcast_back(out, x.shape, axes)
    infinite = np.isinf(raw(total))
    if libraries.may_hold(infinite):
        x = choose(infinite, choose(raw(x).real == np.inf, 0.0, -np.inf), x)
        total = choose(infinite, 0.0, total)
    share = exp(x - total)
    whole = add_up(share, axes, True)
    return share / choose(raw(whole) == 0, 1.0, whole)


def _finite_max(x: Any, axes: Axes) -> Any:
    """Return the maximum (of real parts) along axes, which are kept, or 0.

    It is 0 where the maximum is infinite, or where there is no element.
    """
    z = x.real if is_complex(x) else x
    if not z.size:
        return libraries.namespace(z).zeros(kept_shape(z.shape, axes), z.dtype)
    top = np.max(z, axis=axes, keepdims=True)
    return np.where(np.isfinite(top), top, np.zeros_like(top))


def _logsumexp_kernel(x: Any, axes: Axes, keepdims: bool) -> Any:
    found = logsumexp_kernels.native_value(x, axes, keepdims)
    return _by_numpy(x, axes, keepdims) if found is None else found


@libraries.captured_as_one(unless=lambda x, *_: not logsumexp_kernels.is_large(x), decides=True)
def _by_numpy(x: Any, axes: Axes, keepdims: bool) -> Any:
    if (x.__class__ is np.ndarray or libraries.is_numpy(x)) and x.dtype.char in "fd" and x.size and axes:
        return logsumexp_kernels.value(x, axes, keepdims)
    top = _finite_max(x, axes)
    with np.errstate(divide="ignore", over="ignore"):  # log(0) = -inf is the right answer, and so is inf
        total = np.log(libraries.add_up(np.exp(x - top), axes, True)) + top
    return total if keepdims else np.squeeze(total, axis=axes)[()]


def _logsumexp_vjp(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    if are_floats(g, x) and axes:
        kept = kept_shape(x.shape, axes)
        found = logsumexp_kernels.native_slope(g.reshape(kept), x, out.reshape(kept), axes)
        if found is not None and not libraries.may_hold(out == np.inf):
            return found
    return _vjp_by_numpy(g, x, out, axes)


@libraries.captured_as_one(
    unless=lambda g, x, *_: libraries.are_captured(x) and not logsumexp_kernels.is_large(x), decides=True
)
def _vjp_by_numpy(g: Any, x: Any, out: Any, axes: Axes) -> Any:
    if are_floats(g, x) and axes:
        kept = kept_shape(x.shape, axes)
        total = out.reshape(kept)
        if np.isfinite(total).all():
            return logsumexp_kernels.slope(g.reshape(kept), x, total, axes)
    return broadcast_back(g, x.shape, axes) * conj_of(_softmax(x, out, axes))


_logsumexp = custom(
    "logsumexp",
    _logsumexp_kernel,
    vjp={"x": _logsumexp_vjp},
    jvp={"x": lambda t, x, out, axes, keepdims: add_up(t * _softmax(x, out, axes), axes, keepdims)},
)


def _log_of_weighted(x: Any, b: Any, axes: Axes, signed: bool) -> tuple[Any, Any]:
    """Return log(sum(b exp(x))) and the sign of the sum, kept: of |sum| if `signed`, else NaN if that is negative.

    An element of weight 0 adds nothing, even if it is infinite.
    """
    nothing = b == 0
    x = np.where(nothing, -np.inf, x)
    top = _finite_max(x, axes)
    total = libraries.add_up(np.where(nothing, 0, b) * np.exp(x - top), axes, True)
    with np.errstate(divide="ignore", invalid="ignore"):  # of 0, and of what is negative
        return np.log(abs(total) if signed else total) + top, np.sign(total)


def _weighted_share(x: Any, out: Any, axes: Axes, sign_of_sum: Any) -> Any:
    """Return exp(x) / sum(b exp(x)); 0 where x is -inf."""
    total = broadcast_back(out, x.shape, axes)
    gone = raw(x) == -np.inf
    share = exp(choose(gone, -np.inf, x) - choose(gone, 0.0, total))
    return share if is_complex(raw(out)) else share * sign_of_sum


def _weighted_slope(x: Any, b: Any, out: Any, axes: Axes, sign_of_sum: Any) -> Any:
    """Return the derivative in x: the weight times the share, and 0 where that would be 0 times inf."""
    share = _weighted_share(x, out, axes, sign_of_sum)
    return choose((raw(b) == 0) & ~np.isfinite(raw(share)), 0.0, share) * b


def _weighted_kernel(x: Any, b: Any, value: Any, sign_of_sum: Any, axes: Axes, keepdims: bool) -> Any:
    """Return the value that was computed before; the rules need the sign."""
    return value if keepdims else np.squeeze(value, axis=axes)[()]


_weighted = custom(
    "weighted_logsumexp",
    _weighted_kernel,
    vjp={
        "x": lambda g, x, b, out, axes, sign_of_sum: (
            broadcast_back(g, x.shape, axes) * conj_of(_weighted_slope(x, b, out, axes, sign_of_sum))
        ),
        "b": lambda g, x, out, axes, sign_of_sum: (
            broadcast_back(g, x.shape, axes) * conj_of(_weighted_share(x, out, axes, sign_of_sum))
        ),
    },
    jvp={
        "x": lambda t, x, b, out, axes, sign_of_sum, keepdims: add_up(
            t * _weighted_slope(x, b, out, axes, sign_of_sum), axes, keepdims
        ),
        "b": lambda t, x, out, axes, sign_of_sum, keepdims: add_up(
            t * _weighted_share(x, out, axes, sign_of_sum), axes, keepdims
        ),
    },
)


def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    """Return log(sum(b exp(a))) along axes without overflow, with return_sign=True that of |sum| and the sign.

    The derivative is softmax(a); where every a is -inf the result is -inf and the derivative 0,
    as a fully masked row needs. Integers are taken as float64.

    >>> import gradmgr
    >>> gradmgr.special.logsumexp(gradmgr.tensor([1000.0, -1000.0])).item()
    1000.0
    """
    if b is None and not return_sign:
        axes = axes_of_floats(a, axis)
        if axes is not None:
            return _logsumexp(a, axes, keepdims)
    a = lift(a)
    a = a if a.dtype.kind in "fcV" else as_type(a, np.float64)
    if b is None and not return_sign:
        return _logsumexp(a, axes_of(axis, a.ndim, "logsumexp", of_number=True), keepdims)
    a, b = _promote_together(a, 1.0 if b is None else b)
    axes = axes_of(axis, a.ndim, "logsumexp", of_number=True)
    signed = return_sign and not is_complex(raw(a))
    value, sign_of_sum = _log_of_weighted(raw(a), raw(b), axes, signed)
    z = _weighted(a, b, value, sign_of_sum, axes, keepdims)
    if not return_sign:
        return z
    if not signed:
        return real(z), _phase(z)
    found = sign_of_sum if keepdims else np.squeeze(sign_of_sum, axis=axes)[()]
    return z, wrap(found) if isinstance(z, Tensor) else found


def _phase(z: Any) -> Any:
    """Return the phase of exp(z), 0 where exp(z) is 0."""
    return choose(raw(z).real == -np.inf, 0.0, exp(imag(z) * 1j))


def _promote_together(a: Any, b: Any) -> tuple[Any, Any]:
    """Broadcast a and its weights, and cast both to the dtype in which they meet."""
    b = b if isinstance(b, (int, float, complex)) else lift(b)
    dtype = np.result_type(a.dtype, getattr(b, "dtype", b))
    b = libraries.namespace(raw(a)).asarray(b, dtype) if not hasattr(b, "dtype") else b
    shape = np.broadcast_shapes(a.shape, b.shape)
    return broadcast_any(cast_to(a, dtype), shape), broadcast_any(cast_to(b, dtype), shape)
