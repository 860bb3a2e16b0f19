"""Rearranging: shapes, axes, order, repetition. All linear, all by NumPy's rules."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr._arrays import libraries, memory
from gradmgr._engine.broadcast import broadcast_to as _broadcast_to
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.op import Function, linear, zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.views import always_view_of, as_new_array, linked, view_of
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.naming import named
from gradmgr.ops.where import choose

Axis = int | Sequence[int] | None

_reshape: Function = linear(
    "reshape",
    lambda a, to, order: a.reshape(to, order=order),
    lambda g, shape, order: _reshape(g, shape, order),
    expression="a0.reshape(params[0], order=params[1])",
    view_of=view_of,
)


def _inverse_permutation(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation that undoes one; numpy.argsort takes ten times as long."""
    order = [0] * len(axes)
    for place, axis in enumerate(axes):
        order[axis] = place
    return tuple(order)


_transpose: Function = linear(
    "transpose",
    lambda a, axes: a.transpose(axes),
    lambda g, axes: _transpose(g, _inverse_permutation(axes)),
    expression="a0.transpose(*params)",
    view_of=view_of,
)
_flip: Function = linear("flip", lambda a, axes: np.flip(a, axes), lambda g, axes: _flip(g, axes), view_of=view_of)
_roll: Function = linear(
    "roll", lambda a, shift, axes: np.roll(a, shift, axes), lambda g, shift, axes: _roll(g, [-s for s in shift], axes)
)


def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """Reshape as `numpy.reshape`; the result may share the buffer, a later write to either copies."""
    is_read = shape.__class__ is tuple and _INTEGERS.issuperset(map(type, shape))
    to = shape if is_read or shape is None else lengths_of(shape, "reshape")
    a = a if a.__class__ is Tensor else lift(a)
    if order == "C" and copy is None and to is not None:
        return _reshape(a, to, "C") if to else without_axes(a)
    if order not in ("C", "F"):
        order = _read_order(a, order, "reshape")
        if order == "K":
            raise ValueError("reshape: order 'K' is not permitted for reshaping")
    if copy is False and not memory.shares_memory(raw(a).reshape(to or a.shape, order=order), raw(a)) and a.size:
        raise ValueError("reshape with copy=False cannot avoid a copy for these strides")
    z = _reshape(a, a.shape if to is None else to, order)
    return z.copy() if copy and memory.shares_memory(raw(z), raw(a)) else z


def without_axes(a: Any) -> Any:
    """Return an array of one element without axes: a view, unless it is a number, as NumPy makes one."""
    z = _reshape(a, (), "C")
    if isinstance(a, Tensor) and a.ndim:
        z._view_of = linked(a)
    return z


_INTEGERS = frozenset((int,))


def lengths_of(shape: Any, name: str) -> tuple[int, ...]:
    """Read a shape: an integer, or several."""
    if shape.__class__ is tuple and _INTEGERS.issuperset(map(type, shape)):
        return shape
    try:
        return tuple([operator.index(n) for n in ((shape,) if np.ndim(raw(shape)) == 0 else shape)])
    except TypeError as error:
        raise TypeError(f"{name}: a shape is an integer or a sequence of them; found {shape!r}: {error}") from None


def _read_order(a: Any, order: Any, name: str) -> str:
    """Read order=: "C", "F" or "K"; "A" is "F" where the memory is in that order and not in C's."""
    if not isinstance(order, str | None):
        raise TypeError(f"{name}: order must be str, not {type(order).__name__}")
    wanted = "C" if order is None else order.upper()
    if wanted not in ("A", "C", "F", "K"):
        raise ValueError(f"{name}: order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if wanted != "A":
        return wanted
    flags = raw(a).flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def ravel(a: Any, order: str = "C") -> Any:
    """Flatten as `numpy.ravel`; order="K" follows the order in memory."""
    if order == "C":
        return reshape(a, (-1,))
    a = lift(a)
    wanted = _read_order(a, order, "ravel")
    if wanted == "K":
        steps = [abs(step) for step in raw(a).strides]
        a = _transpose(a, tuple(sorted(range(a.ndim), key=lambda k: -steps[k])))
    return reshape(a, (-1,), "F" if wanted == "F" else "C")


def transpose(a: Any, axes: Axis = None) -> Any:
    """Permute axes as `numpy.transpose`; reversed without `axes`."""
    a = a if a.__class__ is Tensor else lift(a)
    if axes is None:
        return _transpose(a, tuple(range(a.ndim - 1, -1, -1)))
    if axes.__class__ is tuple and _INTEGERS.issuperset(map(type, axes)) and sorted(axes) == list(range(a.ndim)):
        return _transpose(a, axes)  # to ask NumPy takes three times as long
    order = normalize_axis_tuple(axes, a.ndim, "transpose: axes")
    if len(order) != a.ndim:
        raise ValueError(f"transpose: axes don't match array: {a.ndim} axes, found axes={axes}")
    return _transpose(a, order)


def matrix_transpose(x: Any, /) -> Any:
    """Swap the last two axes."""
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Swap two axes as `numpy.swapaxes`."""
    a = lift(a)
    one, two = normalize_axis_index(axis1, a.ndim), normalize_axis_index(axis2, a.ndim)
    order = list(range(a.ndim))
    order[one], order[two] = order[two], order[one]
    return _transpose(a, tuple(order))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Move axes as `numpy.moveaxis`."""
    a = lift(a)
    origin = normalize_axis_tuple(source, a.ndim, "source")
    goal = normalize_axis_tuple(destination, a.ndim, "destination")
    if len(origin) != len(goal):
        raise ValueError("`source` and `destination` arguments must have the same number of elements")
    order = [k for k in range(a.ndim) if k not in origin]
    for to, come in sorted(zip(goal, origin, strict=True)):
        order.insert(to, come)
    return _transpose(a, tuple(order))


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Roll an axis back as `numpy.rollaxis`."""
    a = lift(a)
    axis = normalize_axis_index(axis, a.ndim)
    begin = start + a.ndim if start < 0 else start
    if not 0 <= begin <= a.ndim:
        raise ValueError(f"'start' arg requires {-a.ndim} <= start <= {a.ndim}, but {start} was passed in")
    return moveaxis(a, axis, begin - 1 if axis < begin else begin)


def squeeze(a: Any, axis: Axis = None) -> Any:
    """Remove axes of length 1 as `numpy.squeeze`."""
    a = lift(a)
    of_number = a.ndim == 0 and isinstance(axis, (int, np.integer)) and axis in (0, -1)  # which NumPy lets pass
    if axis is None or of_number:
        gone: Sequence[int] = [k for k, n in enumerate(a.shape) if n == 1]
    else:
        one: Any = axis if isinstance(axis, tuple) else operator.index(axis)  # type: ignore[arg-type]  # a list raises
        gone = normalize_axis_tuple(one, a.ndim)
    if any(a.shape[k] != 1 for k in gone):
        raise ValueError(f"cannot squeeze axis {axis} of shape {a.shape}: its length is not 1")
    to = tuple([n for k, n in enumerate(a.shape) if k not in gone])
    return _reshape(a, to, "C") if to else without_axes(a)


def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of length 1 as `numpy.expand_dims`."""
    a = lift(a)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    count = a.ndim + len(axes)
    new = normalize_axis_tuple(axes, count)
    lengths = iter(a.shape)
    return _reshape(a, tuple([1 if k in new else next(lengths) for k in range(count)]), "C")


def _at_least_function(count: int, place: Any) -> Any:
    def function(*arys: Any) -> Any:
        done = tuple([place(a) for a in _lift_all(arys)])
        return done[0] if len(done) == 1 else done

    name = f"atleast_{count}d"
    return named(function, name, f"View with at least {count} axes, placed as `numpy.{name}` does.")


def _with_two_axes(a: Any) -> Any:
    return a if a.ndim >= 2 else reshape(a, (1, -1) if a.ndim else (1, 1))


def _with_three_axes(a: Any) -> Any:
    return (
        a if a.ndim >= 3 else reshape(_with_two_axes(a), (*_with_two_axes(a).shape, 1) if a.ndim == 2 else (1, -1, 1))
    )


atleast_1d = _at_least_function(1, lambda a: a if a.ndim else reshape(a, (1,)))
atleast_2d = _at_least_function(2, _with_two_axes)
atleast_3d = _at_least_function(3, _with_three_axes)


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """Broadcast as `numpy.broadcast_to`; writing to the result copies."""
    if subok and not holds_tensor(array):
        return np.broadcast_to(array, shape, subok)
    return _broadcast_to(lift(array), lengths_of(shape, "broadcast_to"))


def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    """Broadcast all to one shape as `numpy.broadcast_arrays`."""
    if subok and not holds_tensor(args):
        return np.broadcast_arrays(*args, subok=True)
    arrays = _lift_all(args)
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return tuple([_broadcast_to(a, shape) for a in arrays])


def _lift_all(args: Sequence[Any]) -> list[Any]:
    """Lift all arguments; Tensors, if one of them is."""
    arrays = [lift(a) for a in args]
    if any(isinstance(a, Tensor) for a in arrays):
        arrays = [a if isinstance(a, Tensor) else wrap(a) for a in arrays]
    return arrays


def flip(m: Any, axis: Axis = None) -> Any:
    """Reverse along axes as `numpy.flip`."""
    m = lift(m)
    return _flip(m, tuple(range(m.ndim)) if axis is None else normalize_axis_tuple(axis, m.ndim))


def fliplr(m: Any) -> Any:
    """Reverse axis 1."""
    return flip(m, 1)


def flipud(m: Any) -> Any:
    """Reverse axis 0."""
    return flip(m, 0)


def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Rotate in a plane as `numpy.rot90`."""
    m = lift(m)
    one, two = normalize_axis_tuple(axes, m.ndim, "axes")
    turns = k % 4
    if turns == 0:
        return m
    if turns == 2:
        return flip(m, (one, two))
    return swapaxes(flip(m, two), one, two) if turns == 1 else flip(swapaxes(m, one, two), two)


def roll(a: Any, shift: Any, axis: Axis = None) -> Any:
    """Roll elements as `numpy.roll`; over the flat array without `axis`."""
    a = lift(a)
    if axis is None:
        flat = _roll(ravel(a), [int(np.sum(shift))], (0,))
        return reshape(flat, a.shape)
    axes: Any = (axis,) if np.ndim(axis) == 0 else axis
    shifts, axes_all = np.broadcast_arrays(np.asarray(shift), np.asarray(axes))
    if shifts.ndim > 1:
        raise ValueError("roll: 'shift' and 'axis' should be scalars or 1D sequences")
    axes = tuple([normalize_axis_index(operator.index(k), a.ndim) for k in axes_all.ravel()])
    return _roll(a, [int(s) for s in shifts.ravel()], axes)


@libraries.adds_in_float32
def _sum_of_groups(a: Any, count: int, axis: int) -> Any:
    """Return the sum of each `count` neighbours along an axis."""
    shape = a.shape
    if count > _FEW:
        groups = a.reshape((*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :]))
        return libraries.add_up(groups, (axis + 1,))
    head = (slice(None),) * axis
    total = a[(*head, slice(0, None, count))].copy()
    for k in range(1, count):
        total += a[(*head, slice(k, None, count))]
    return total


# Up to so many neighbours, sums of slices take a half to a tenth of the time of one along a short axis.
_FEW = 16

_repeat_evenly: Function = linear(
    "repeat",
    lambda a, count, axis: np.repeat(a, count, axis),
    lambda g, shape, count, axis: _sum_evenly(g, count, axis) if count else zeros(g, shape, g.dtype),
)
_sum_evenly: Function = linear(
    "sum_of_neighbours",
    _sum_of_groups,
    lambda g, count, axis: _repeat_evenly(g, count, axis),
)


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    """Repeat elements as `numpy.repeat`; `repeats` is a number or an integer array."""
    a = lift(a)
    if axis is None or (a.ndim == 0 and isinstance(axis, (int, np.integer)) and axis in (0, -1)):
        a, axis = ravel(a), 0
    axis = normalize_axis_index(axis, a.ndim)
    xp = libraries.namespace(raw(a))
    counts = raw(repeats)
    counts = counts.get() if libraries.is_array(counts) and libraries.device_of(counts) != "cpu" else counts
    counts = np.asarray(counts) if libraries.is_array(counts) else np.asarray(counts, dtype=np.intp)  # 1.5 in a list: 1
    if counts.ndim == 0 and counts.dtype.kind in "iu" and counts >= 0:
        return _repeat_evenly(a, int(counts), axis)
    places = np.repeat(np.arange(a.shape[axis]), counts)
    return getitem(a, (*[slice(None)] * axis, xp.asarray(places)))


def tile(A: Any, reps: Any) -> Any:  # noqa: N803  # NumPy's name
    """Tile as `numpy.tile`."""
    a = lift(A)
    times = lengths_of(reps, "tile")
    times = (1,) * (a.ndim - len(times)) + times
    a = reshape(a, (1,) * (len(times) - a.ndim) + tuple(a.shape))
    paired = reshape(a, tuple([m for n in a.shape for m in (1, n)]))
    repeated = _broadcast_to(paired, tuple([m for r, n in zip(times, a.shape, strict=True) for m in (r, n)]))
    return as_new_array(reshape(repeated, tuple([r * n for r, n in zip(times, a.shape, strict=True)])))


def _windows_of(a: Any, window: tuple[int, ...], axes: tuple[int, ...] | None) -> Any:
    xp = libraries.namespace(a)
    view = xp.lib.stride_tricks.sliding_window_view(a, window, axes)
    return (
        view if xp is np or libraries.is_numpy(a) else view.copy()
    )  # CuPy's view does not say whose memory it is, and can be written to


@libraries.adds_in_float32
def _add_windows(g: Any, shape: tuple[int, ...], window: tuple[int, ...], axes: tuple[int, ...] | None) -> Any:
    """Add each element of each window to where it was taken from; a loop over the places in a window."""
    axes = tuple(range(len(shape))) if axes is None else axes
    counts = g.shape[: len(shape)]
    made = zeros(g, shape, g.dtype)
    for place in np.ndindex(*window):
        starts = [0] * len(shape)
        for axis, k in zip(axes, place, strict=True):  # an axis may be named twice
            starts[axis] += k
        made[tuple([slice(k, k + n) for k, n in zip(starts, counts, strict=True)])] += g[(..., *place)]
    return made


_windows: Function = linear(
    "sliding_window_view",
    lambda a, window, axes: _windows_of(a, window, axes),
    lambda g, shape, window, axes: _gather_windows(g, shape, window, axes),
    view_of=always_view_of,
)
_gather_windows: Function = linear(
    "add_windows",
    _add_windows,
    lambda g, window, axes: _windows(g, window, axes),
)


def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """Take all windows as `numpy.lib.stride_tricks.sliding_window_view`; a Tensor is a value: none is `writeable`."""
    if not isinstance(x, Tensor):
        return np.lib.stride_tricks.sliding_window_view(x, window_shape, axis, subok=subok, writeable=writeable)
    if writeable:
        raise ValueError("sliding_window_view of a Tensor is not writeable: no write reaches what it was taken from")
    window = tuple([int(n) for n in window_shape]) if np.iterable(window_shape) else (int(window_shape),)
    axes = None if axis is None else normalize_axis_tuple(axis, x.ndim, allow_duplicate=True)
    return _windows(x, window, axes)


def _diagonal_index(a: Any, offset: int) -> Any:
    rows, columns = a.shape[-2:]
    xp = libraries.namespace(raw(a))
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    along = xp.arange(length)
    return (..., along - min(offset, 0), along + max(offset, 0))


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Take diagonals as `numpy.diagonal`, as a copy."""
    a = moveaxis(lift(a), (axis1, axis2), (-2, -1))
    return getitem(a, _diagonal_index(a, offset))


def diag(v: Any, k: int = 0) -> Any:
    """Take a diagonal, or make a matrix with one, as `numpy.diag`."""
    v = lift(v)
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise ValueError(f"diag takes one or two axes; found shape {v.shape}")
    n = v.shape[0] + abs(k)
    along = libraries.namespace(raw(v)).arange(v.shape[0])
    return scatter(v, (n, n), (along - min(k, 0), along + max(k, 0)))


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """Sum a diagonal as `numpy.trace`."""
    if not holds_tensor(a) and not isinstance(out, Tensor):
        return np.trace(a, offset, axis1, axis2, dtype, out)
    return diagonal(a, offset, axis1, axis2).sum(-1, dtype=dtype, out=out)


def _triangle(keep: Any) -> Any:
    def function(m: Any, k: int = 0) -> Any:
        m = lift(m)
        xp = libraries.namespace(raw(m))
        mask = xp.asarray(keep(np.ones(m.shape[-2:], dtype=bool), k))
        return choose(mask, m, xp.zeros((), m.dtype))  # not a product: what is dropped may be infinite

    return named(function, keep.__name__, f"Zero a triangle as `numpy.{keep.__name__}`.")


tril = _triangle(np.tril)
triu = _triangle(np.triu)


def shape(a: Any) -> tuple[int, ...]:
    """Return the lengths of the axes."""
    return a.shape if isinstance(a, Tensor) else np.shape(a)


def ndim(a: Any) -> int:
    """Return the number of axes."""
    return a.ndim if isinstance(a, Tensor) else np.ndim(a)


def size(a: Any, axis: Any = None) -> int:
    """Return the number of elements, in all or along axes."""
    if not isinstance(a, Tensor):
        return int(np.size(a, axis))
    axes = range(a.ndim) if axis is None else normalize_axis_tuple(axis, a.ndim)
    return int(np.prod([a.shape[k] for k in axes], dtype=np.intp))
