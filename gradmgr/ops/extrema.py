"""Maximum and minimum of two arrays, clip, and numbers in place of NaN and infinities."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import elementwise
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr.ops.arithmetic import imag, plain_zeros, real
from gradmgr.ops.where import choose

# ---------------------------------------------------------------- choice


def _where_greater(g: Any, x: Any, y: Any) -> Any:
    """Return g where x > y, half of it at a tie. A choice, not a product: g may be infinite where it is dropped."""
    a, b = raw(x), raw(y)
    won, tied = choose(a > b, g, 0.0), a == b
    return choose(tied, g / 2, won) if libraries.may_hold(tied) else won


def _where_chosen_first(g: Any, x: Any, y: Any, ahead: Any, behind: Any) -> Any:
    """Return such a gradient for fmax and fmin, where a number goes before a NaN, and x before y if both are NaN."""
    a, b = raw(x), raw(y)
    first, second, won = a != a, b != b, _where_greater(g, ahead, behind)  # a != a: is NaN
    return choose(second, g, choose(first, 0.0, won)) if libraries.may_hold(first | second) else won


def _where_chosen_second(g: Any, x: Any, y: Any, ahead: Any, behind: Any) -> Any:
    a, b = raw(x), raw(y)
    first, second, won = a != a, b != b, _where_greater(g, ahead, behind)
    return choose(second, 0.0, choose(first, g, won)) if libraries.may_hold(first | second) else won


maximum = elementwise("maximum", np.maximum, _where_greater, lambda g, x, y: _where_greater(g, y, x))
minimum = elementwise("minimum", np.minimum, lambda g, x, y: _where_greater(g, y, x), _where_greater)
fmax = elementwise(
    "fmax",
    np.fmax,
    lambda g, x, y: _where_chosen_first(g, x, y, x, y),
    lambda g, x, y: _where_chosen_second(g, x, y, y, x),
)
fmin = elementwise(
    "fmin",
    np.fmin,
    lambda g, x, y: _where_chosen_first(g, x, y, y, x),
    lambda g, x, y: _where_chosen_second(g, x, y, x, y),
)


def _clip(x: Any, low: Any, high: Any) -> Any:
    return np.clip(x, low, high)


def _where_inside(g: Any, x: Any, low: Any, high: Any) -> Any:
    a = raw(x)
    return choose((a >= raw(low)) & (a <= raw(high)), g, 0.0)


def _where_below(g: Any, x: Any, low: Any, high: Any) -> Any:
    return choose((raw(x) < raw(low)) & (raw(low) <= raw(high)), g, 0.0)


def _where_above(g: Any, x: Any, low: Any, high: Any) -> Any:
    return choose((raw(x) > raw(high)) | (raw(low) > raw(high)), g, 0.0)


clip_between = custom(
    "clip",
    _clip,
    vjp={"x": _where_inside, "low": _where_below, "high": _where_above},
    jvp={"x": _where_inside, "low": _where_below, "high": _where_above},
)


_NOT_GIVEN: Any = np._NoValue


def clip(
    a: Any,
    min: Any = _NOT_GIVEN,
    max: Any = _NOT_GIVEN,
    out: Any = None,
    *,
    a_min: Any = _NOT_GIVEN,
    a_max: Any = _NOT_GIVEN,
    **kwargs: Any,
) -> Any:
    """Clip as `numpy.clip`: the derivative is 1 at a bound, and outside it goes to the bound.

    One bound alone will do, as the Array API standard has it.
    """
    if min is _NOT_GIVEN and max is _NOT_GIVEN:
        min, max = a_min, a_max
    elif a_min is not _NOT_GIVEN or a_max is not _NOT_GIVEN:
        raise ValueError("clip: passing `min` or `max` when `a_min` and `a_max` are provided is forbidden")
    low = None if min is _NOT_GIVEN else min
    high = None if max is _NOT_GIVEN else max
    if not (isinstance(a, Tensor) or any(isinstance(t, Tensor) for t in (low, high, out, *kwargs.values()))):
        return np.clip(a, low, high, out=out, **kwargs)
    unknown = kwargs.keys() - {"where", "dtype"}
    if unknown:
        raise TypeError(f"clip() of Tensors does not take the keyword argument {sorted(unknown)[0]!r}")
    a, low, high = (
        t if t is None or isinstance(t, Tensor) else libraries.need_operand(t, "clip") for t in (a, low, high)
    )
    if kwargs:
        bounds = {name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}

        def clip(x: Any, *values: Any) -> Any:
            return _clipped(x, **dict(zip(bounds, values, strict=True)))

        return with_keywords(clip, None, (a, *bounds.values()), out, kwargs.get("where", True), kwargs.get("dtype"))
    z = _clipped(a, low, high)
    return z if out is None else store(out, z, "clip(out=...)", may_broadcast=True)


def _clipped(a: Any, min: Any = None, max: Any = None) -> Any:
    if any(isinstance(t, Tensor) and libraries.is_differentiable(t.dtype) for t in (a, min, max)):
        return clip_between(a, -np.inf if min is None else min, np.inf if max is None else max)
    return wrap(np.clip(raw(a), raw(min), raw(max)))


# ---------------------------------------------------------------- numbers in place of NaN and infinities


def _where_finite(t: Any, x: Any) -> Any:
    """Return t where x is finite, 0 elsewhere; real and imaginary parts each by itself."""
    a = raw(x)
    if not is_complex(x):
        return choose(np.isfinite(a), t, plain_zeros(t))
    if np.isfinite(a).all():
        return t
    one, two = real(t), imag(t)
    return choose(np.isfinite(a.real), one, 0.0) + choose(np.isfinite(a.imag), two, 0.0) * 1j


_nan_to_num = custom(
    "nan_to_num",
    lambda x, nan, posinf, neginf: np.nan_to_num(x, True, nan, posinf, neginf),
    vjp={"x": _where_finite},
    jvp={"x": _where_finite},
)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Replace NaN and infinities as `numpy.nan_to_num`; what is replaced has derivative 0.

    Gradients flow into Tensors given for the numbers that replace, where `x` is real.
    """
    numbers = nan, posinf, neginf
    if not any(isinstance(t, Tensor) for t in (x, *numbers)):
        return np.nan_to_num(x, copy, nan, posinf, neginf)
    original, x = x, x if isinstance(x, Tensor) else wrap(libraries.need_operand(x, "nan_to_num"))
    if is_complex(x) and any(isinstance(t, Tensor) for t in numbers):
        raise TypeError("nan_to_num of complex values takes numbers and arrays, not Tensors, for what it replaces")
    z = _nan_to_num(x, *(0.0 if isinstance(t, Tensor) else t for t in numbers))
    tests: Any = (np.isnan, np.isposinf, np.isneginf)
    for test, number in zip(tests, numbers, strict=True):
        if isinstance(number, Tensor):
            z = choose(test(raw(x)), as_type(number, z.dtype), z)
    return z if copy else store(original, z, "nan_to_num(copy=False)")
