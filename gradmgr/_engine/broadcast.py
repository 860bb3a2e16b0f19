"""Broadcasting: sum_to and broadcast_to, each the other's adjoint; casts; `unbroadcast` and `broadcast_like`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor
from gradmgr._engine.views import always_view_of, as_argument


def _sum_to(a: Any, to: tuple[int, ...]) -> Any:
    lead, shape = a.ndim - len(to), a.shape
    if lead == 1 and shape[1:] == to and len(to) == 1 and libraries.is_matrix(a):  # a bias, mostly
        return libraries.sum_of_rows(a)
    axes = tuple(range(lead)) if lead != 1 else (0,)
    if shape[lead:] != to:
        axes += tuple([k for k in range(lead, a.ndim) if to[k - lead] == 1 and shape[k] != 1])
    summed = libraries.sum_over(a, axes, False, True) if axes else a
    return summed if summed.shape == to else summed.reshape(to)


def _broadcast_to(a: Any, to: tuple[int, ...]) -> Any:
    if a.shape == to:
        return a
    if a.size == 1:
        if isinstance(a, (np.ndarray, np.generic)):
            return _repeat_one(a, to)
        if libraries.is_captured(a) and libraries.root(a) is np and math.prod(to) <= _FEW:
            full = libraries.namespace(a).empty(to, a.dtype)
            full[...] = a
            return full
    return libraries.namespace(a).broadcast_to(a, to)


# Up to so many elements, real memory is cheaper than a view of strides 0, which NumPy's loops take slowly.
_FEW = 4096


def _repeat_one(a: Any, to: tuple[int, ...]) -> Any:
    """What numpy.broadcast_to gives for one element, but its 2 us: every loss begins its way back here."""
    if math.prod(to) <= _FEW:
        full = np.empty(to, a.dtype)
        full[...] = a
        return full
    view = np.ndarray(to, a.dtype, np.asarray(a), 0, (0,) * len(to))
    view.flags.writeable = False
    return view


def _real_as(a: Any, to: np.dtype[Any]) -> Any:
    """Cast as the adjoint of a cast does: a complex gradient of a real value is its real part."""
    if a.dtype == to:
        return a
    return (a.real if a.dtype.kind == "c" and to.kind != "c" else a).astype(to)


sum_to: Function = linear("sum_to", _sum_to, lambda g, shape: broadcast_to(g, shape))
broadcast_to: Function = linear(
    "broadcast_to", _broadcast_to, lambda g, shape: sum_to(g, shape), view_of=always_view_of
)
cast: Function = linear("astype", _real_as, lambda g, dtype: cast(g, dtype), view_of=as_argument)


def unbroadcast(g: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Make a gradient, computed in the shape of an op's result, that of the op's input."""
    if g.shape != shape:
        g = sum_to(g, shape) if isinstance(g, Tensor) else _sum_to(g, shape)
    return g if g.dtype == dtype else cast(g, dtype)


# Numbers that one dot product sums at most: in longer ones of float32 digits are lost.
_LONGEST = 4096


def sum_of_products(g: Any, y: Any, shape: tuple[int, ...]) -> Any:
    """Return g * y, which is to be summed to a shape; summed along the last axis where that takes no array of products.

    The numbers of dot products are those that numpy.vecdot gives, in a third of the time.
    """
    if len(shape) != g.ndim or shape[-1] != 1 or not 1 < g.shape[-1] <= _LONGEST or isinstance(g, Tensor):
        return g * y
    if isinstance(y, Tensor) or not (_is_floats(g) and _is_floats(y)) or g.dtype != y.dtype or g.shape != y.shape:
        return g * y
    return np.vecdot(g, y)[..., None]


def _is_floats(a: Any) -> bool:
    return libraries.is_numpy(a) and a.dtype.char in "fd"


def broadcast_like(t: Any, out: Any) -> Any:
    """Make a tangent, computed in the shape of an op's input, that of the op's result."""
    if t.shape != out.shape:
        t = broadcast_to(t, out.shape)
    return t if t.dtype == out.dtype else cast(t, out.dtype)


def is_complex(value: Any) -> bool:
    """Tell whether an array, Tensor or number is complex."""
    value = value._array if isinstance(value, Tensor) else value
    return value.dtype.kind == "c" if hasattr(value, "dtype") else isinstance(value, complex)
