"""Index arrays and grids: meshgrid, ix_, r_, c_, and NumPy's own that compute on shapes and slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.mutation import as_type, copied
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.convert import holds_tensor, library_of, lift, lift_like
from gradmgr.ops.create import arange, linspace
from gradmgr.ops.join import concatenate
from gradmgr.ops.shape import ravel, reshape, transpose

# NumPy's own, which compute on shapes and slices.
broadcast_shapes = np.broadcast_shapes
index_exp, mgrid, ogrid, s_ = np.index_exp, np.mgrid, np.ogrid, np.s_


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: Any = "xy") -> tuple[Any, ...]:
    """Make grids of coordinates out of vectors, as `numpy.meshgrid`."""
    if not any(holds_tensor(x) for x in xi):
        return np.meshgrid(*xi, copy=copy, sparse=sparse, indexing=indexing)
    if indexing not in ("xy", "ij"):
        raise ValueError("meshgrid: Valid values for `indexing` are 'xy' and 'ij'.")
    vectors = [ravel(lift_like(x, *xi)) for x in xi]
    count = len(vectors)
    axes = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    grids = [reshape(x, [-1 if j == k else 1 for j in range(count)]) for k, x in zip(axes, vectors, strict=True)]
    grids = [g if isinstance(g, Tensor) else wrap(g) for g in grids]
    if not sparse:
        shape = np.broadcast_shapes(*(g.shape for g in grids))
        grids = [broadcast_to(g, shape) for g in grids]
    return tuple([copied(g) for g in grids] if copy else grids)


def ix_(*args: Any) -> tuple[Any, ...]:
    """Make an open mesh out of vectors of positions, or masks, as `numpy.ix_`."""
    if not any(holds_tensor(x) for x in args):
        return np.ix_(*args)
    made = []
    for k, arg in enumerate(args):
        x = lift_like(arg, *args)
        if x.ndim != 1:
            raise ValueError("ix_: Cross index must be 1 dimensional")
        if x.dtype.kind == "b":
            x = raw(x).nonzero()[0]
        elif not x.size and not libraries.is_array(raw(arg)):
            x = x.astype(np.intp)
        x = x if isinstance(x, Tensor) else wrap(x)
        made.append(reshape(x, [-1 if j == k else 1 for j in range(len(args))]))
    return tuple(made)


# ---------------------------------------------------------------- r_ and c_


class _Joiner:
    """The class of `r_` and `c_`, which join what is in their brackets, as NumPy's, differentiably."""

    __slots__ = ("_axis", "_ndmin", "_new_axes", "_numpy_joiner")

    def __init__(self, numpy_joiner: Any, axis: int, ndmin: int, new_axes: int) -> None:
        self._numpy_joiner = numpy_joiner
        self._axis = axis
        self._ndmin = ndmin
        self._new_axes = new_axes

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not any(_holds_tensor(part) for part in parts):
            return self._numpy_joiner[key]
        axis, ndmin, new_axes = self._axis, self._ndmin, self._new_axes
        if isinstance(parts[0], str):
            axis, ndmin, new_axes = self._directive(parts[0])
            parts = parts[1:]
        if any(isinstance(part, str) for part in parts):
            raise ValueError("special directives must be the first entry.")
        xp = library_of(*parts)
        items = [_range_values(part, xp) if isinstance(part, slice) else part for part in parts]
        kinds: list[Any] = [item if np.isscalar(item) else lift(item).dtype for item in items]
        dtype = np.result_type(*kinds)
        arrays = [_add_axes(lift_like(item, *parts), ndmin, new_axes) for item in items]
        return concatenate([a if a.dtype == dtype else as_type(a, dtype) for a in arrays], axis)

    def _directive(self, text: str) -> tuple[int, int, int]:
        """Read 'axis', 'axis,ndmin' or 'axis,ndmin,where the new axes go'."""
        if text in ("r", "c"):
            raise ValueError(f"directive {text!r} makes a numpy.matrix, which a Tensor is not; use stack or reshape")
        try:
            numbers = [int(word) for word in text.split(",")[:3]]
        except ValueError as error:
            raise ValueError(f"unknown special directive {text!r}") from error
        axis, ndmin, new_axes, *_ = (*numbers, *(self._axis, self._ndmin, self._new_axes)[len(numbers) :])
        return axis, ndmin, new_axes


def _holds_tensor(part: Any) -> bool:
    ends = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return any(holds_tensor(end) for end in ends)


def _range_values(part: slice, xp: Any) -> Any:
    """Return the values of start:stop:step; an imaginary step is their number, with both ends included."""
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    count = int(abs(step)) if isinstance(step, complex) else None
    if _holds_tensor(part):
        return arange(start, part.stop, step) if count is None else linspace(start, part.stop, count)
    return xp.asarray(np.arange(start, part.stop, step) if count is None else np.linspace(start, part.stop, count))


def _add_axes(a: Any, ndmin: int, new_axes: int) -> Any:
    """Give an array at least `ndmin` axes; its own come at `new_axes` among the new ones, last with -1."""
    lacking = ndmin - a.ndim
    if lacking <= 0:
        return a
    start = new_axes if new_axes >= 0 else new_axes + lacking + 1
    a = reshape(a, (1,) * lacking + tuple(a.shape))
    order = list(range(ndmin))
    return transpose(a, order[:start] + order[lacking:] + order[start:lacking])


r_ = _Joiner(np.r_, 0, 1, -1)
c_ = _Joiner(np.c_, -1, 2, 0)
