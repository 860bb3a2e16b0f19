"""What reductions share: how they read axis=, where=, initial= and out=, and the shapes of their results."""

from __future__ import annotations

import builtins
import math
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.mutation import store
from gradmgr._engine.tensor import Tensor, bare, raw, wrap
from gradmgr.ops.convert import NOT_GIVEN, cast_to
from gradmgr.ops.shape import broadcast_to as broadcast_any
from gradmgr.ops.shape import reshape
from gradmgr.ops.where import choose

Axes = tuple[int, ...]
# The common dtypes, for which there are fast paths.
COMMON = (libraries.F4, libraries.F8)
# Up to so many elements a broadcast gradient has its own memory.
FEW = 4096

# ---------------------------------------------------------------- axes and shapes


def axes_of(axis: Any, ndim: int, name: str, of_number: bool = False) -> Axes:
    """Read axis=; with `of_number` 0 and -1 serve for an array of no axes too, as NumPy's ufuncs have it."""
    if axis is None:
        return tuple(range(ndim))
    if axis.__class__ is int and 0 <= axis < ndim:
        return (axis,)
    if isinstance(axis, list):
        raise TypeError(f"{name}: axis must be None, an integer or a tuple of integers; found the list {axis}")
    if of_number and ndim == 0 and not isinstance(axis, tuple) and axis in (0, -1):
        return ()
    try:
        return tuple(normalize_axis_tuple(axis, ndim, name))
    except TypeError as error:
        raise TypeError(f"{name}: axis must be None, an integer or a tuple of integers: {error}") from None


def axes_of_floats(a: Any, axis: Any) -> Axes | None:
    """Read axis= for a Tensor of float32 or float64; return None for anything else, which takes 0.7 us more to read."""
    if isinstance(a, Tensor) and ((t := a._array.dtype) is libraries.F8 or t is libraries.F4):
        ndim: int = a._array.ndim
        if axis is None:
            return tuple(range(ndim))
        if axis.__class__ is int and -ndim <= axis < ndim:
            return (axis % ndim,)
    return None


def kept_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """Return the shape of a reduction with keepdims."""
    return tuple([1 if k in axes else n for k, n in enumerate(shape)])


def reduced_shape(shape: tuple[int, ...], axes: Axes, keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a reduction."""
    return kept_shape(shape, axes) if keepdims else tuple([n for k, n in enumerate(shape) if k not in axes])


def count_along(shape: tuple[int, ...], axes: Axes) -> int:
    """Return how many elements are reduced to each result."""
    count = 1
    for k in axes:
        count *= shape[k]
    return count


def broadcast_back(g: Any, shape: tuple[int, ...], axes: Axes) -> Any:
    """Broadcast a reduced array to the shape before the reduction."""
    if (g.__class__ is np.ndarray or libraries.is_numpy(g)) and math.prod(shape) <= FEW:
        # A view of strides 0 takes 2 us to make, and NumPy's loops longer to read.
        if len(axes) == 1 < len(shape) and g.__class__ is np.ndarray:  # .4 to .8 of the time of a broadcast
            return g.reshape(kept_shape(shape, axes)).repeat(shape[axes[0]], axes[0])
        full = np.empty(shape, g.dtype) if g.__class__ is np.ndarray else libraries.namespace(g).empty(shape, g.dtype)
        full[...] = g if len(axes) == len(shape) else g.reshape(kept_shape(shape, axes))
        return full
    if g.ndim and len(axes) != len(shape):
        kept = kept_shape(shape, axes)
        g = g if g.shape == kept else reshape(g, kept)
    return broadcast_to(g, shape)


def are_floats(g: Any, x: Any) -> bool:
    """Tell whether a gradient and a value are NumPy's, also captured, of one common dtype, as the fast paths need."""
    if x.__class__ is np.ndarray:
        return isinstance(g, (np.ndarray, np.generic)) and g.dtype == x.dtype in COMMON
    is_known = isinstance(g, (np.ndarray, np.generic)) or libraries.is_captured(g)
    return is_known and libraries.is_numpy(x) and g.dtype == x.dtype in COMMON


# ---------------------------------------------------------------- keyword arguments

# NumPy's defaults, by keyword; that of those that are not here is None.
_DEFAULTS = MappingProxyType({"keepdims": False, "where": True, "ddof": 0})


def reduce_plain(name: str, a: Any, axis: Any, **keywords: Any) -> Any:
    """Call NumPy's function on plain arrays, with those keywords only that differ from the defaults.

    CuPy, which the call may be dispatched to, has fewer keywords.
    """
    given = {k: v for k, v in keywords.items() if v is not NOT_GIVEN and v is not _DEFAULTS.get(k)}
    return getattr(np, name)(a, axis=axis, **given)


def gives_constant(a: Any, dtype: Any) -> bool:
    """Tell whether the result for a Tensor carries no gradient by its dtype, and NumPy is there to compute it."""
    result = a.dtype if dtype is None else np.dtype(dtype)
    return not libraries.is_differentiable(result) and libraries.namespace(bare(a)) is np


def reduce_constant(name: str, a: Any, axis: Any, out: Any, **keywords: Any) -> Any:
    """Return what NumPy's function makes of the values alone, as a Tensor without a gradient."""
    try:
        z = computed(reduce_plain, name, bare(a), axis, **{key: bare(value) for key, value in keywords.items()})
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))
        raise kind(f"{name}: {error}") from None
    return store_result(wrap(z), out, name)


def store_result(z: Any, out: Any, name: str) -> Any:
    """Return the result, written to `out` where that is given."""
    return z if out is None else store(out, z, f"{name}(out=...)")


def read_keepdims(keepdims: Any) -> bool:
    """Read keepdims= of functions where NumPy's default for it is no boolean."""
    return keepdims is not NOT_GIVEN and bool(keepdims)


def read_where(where: Any, a: Any, name: str) -> Any:
    """Read where=: None if every element takes part, else a plain mask."""
    return None if where is True or where is NOT_GIVEN else mask_of(where, a, name)


def read_initial(initial: Any, dtype: Any, name: str) -> Any:
    """Read initial=: NOT_GIVEN, or the value in the dtype of the result."""
    return initial if initial is NOT_GIVEN else _convert_initial(initial, dtype, name)


def read_ddof(ddof: Any, correction: Any, name: str) -> Any:
    """Return ddof, or correction=, its other name, where that is given.

    Raises:
        ValueError: both are given.
    """
    libraries.check_plain((ddof, correction))
    if correction is NOT_GIVEN:
        return ddof
    if isinstance(ddof, Tensor) or ddof != 0:
        raise ValueError(f"{name}: ddof and correction can't be provided simultaneously.")
    return correction


def check_not_empty(a: Any, axes: Axes, name: str) -> None:
    """Raise where there are results, but no element for any of them."""
    if not count_along(a.shape, axes) and 0 not in reduced_shape(a.shape, axes, False):
        raise ValueError(f"{name}: zero-size array to reduction operation which has no identity")


def _convert_initial(value: Any, dtype: Any, name: str) -> Any:
    """Return the initial value in the dtype of the result, as NumPy takes it."""
    libraries.check_plain(value)
    value = value if isinstance(value, Tensor) or libraries.is_array(value) else np.asarray(value)
    if value.shape != ():
        raise ValueError(f"{name}: initial must be a number; found an array of shape {value.shape}")
    if value.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"{name}: initial must be real, as the result; found {value.dtype}")
    value = cast_to(value, dtype)
    return value[()] if value.__class__ is np.ndarray else value  # a number can be combined with CuPy's arrays


def mask_of(where: Any, a: Any, name: str) -> Any:
    """Read where=, a plain array: booleans that broadcast to the shape of a, as NumPy asks."""
    where = raw(where)
    libraries.check_plain(where)
    mask = where if libraries.is_array(where) else libraries.namespace(raw(a)).asarray(where, dtype=bool)
    if mask.dtype != bool:
        raise TypeError(f"{name}: where must hold booleans; found {mask.dtype}")
    try:
        if np.broadcast_shapes(mask.shape, a.shape) == a.shape:
            return mask
    except ValueError:
        pass
    raise ValueError(f"{name}: where must broadcast to the shape {a.shape}; found {mask.shape}")


def masked(mask: Any, a: Any, neutral: Any) -> Any:
    """Return a with a neutral value where the mask is not set, broadcast to the mask."""
    shape = np.broadcast_shapes(np.shape(raw(mask)), a.shape)
    return choose(mask, broadcast_any(a, shape), neutral)


def running_axis(axis: Any, ndim: int, name: str) -> int:
    """Read axis= of a running sum; without one the array is flattened."""
    if isinstance(axis, tuple):
        raise TypeError(f"{name}: axis must be None or an integer; found {axis}")
    return 0 if axis is None else axes_of(axis, builtins.max(ndim, 1), name)[0]
