"""Steps of the machine: where arrays lie, and how a loop goes over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.captured_calls import Call
from gradmgr._arrays.native import UfuncLoop

MOST_OPERANDS = 8  # as in the machine
MOST_DIMS = 32


class NotLoweredError(Exception):
    """A call is left to Python."""


class Temporary:
    """Memory for the length of one call."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class View(NamedTuple):
    """An array that a step reads or writes.

    Attributes:
        base: in whose memory it lies: the number of a slot, a constant array, or a Temporary.
        offset: where its first element stands, in bytes from the lowest byte of that memory.
        is_scalar: whether it is a NumPy scalar.
    """

    base: Any
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    is_scalar: bool = False


FAILED = "a loop of NumPy's has failed"


@dataclass(slots=True)
class Run:
    """How a loop runs, wherever its operands lie. Steps that are alike share one: only a new one may be changed.

    Attributes:
        function: the address of the loop; context and auxdata are what it is given besides the operands.
        alignments: of the operands' elements, in bytes.
        dims: that the loop is given.
        strides: likewise.
        outer: dimensions around it, from the outermost: the extent, and the strides of the operands.
        writes: the number of operands at the end that are written.
        guard: the call that has another result now if the loop stops.
        flat: whether it goes over elements along one axis, of which any may be computed alone.
        keeps: what must live as long as the step.
        failure: what it means if the loop stops and there is no such call.
        exact: whether elements are the same bit by bit, wherever the loop begins and ends.
        in_place: whether it is a kernel that goes over contiguous arrays element by element, and may write over one.
    """

    function: int
    alignments: tuple[int, ...]
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    outer: tuple[tuple[int, tuple[int, ...]], ...] = ()
    context: int = 0
    auxdata: int = 0
    writes: int = 1
    guard: Call | None = None
    flat: bool = False
    keeps: Any = None
    failure: str = FAILED
    exact: bool = False
    in_place: bool = False


@dataclass(slots=True)
class Step:
    """One run of a loop.

    Attributes:
        run: how it runs.
        operands: in whose memory each lies and where, as in View.
    """

    run: Run
    operands: tuple[tuple[Any, int], ...]

    def but(self, operands: tuple[tuple[Any, int], ...] | None = None, **changes: Any) -> Step:
        """Return another step, of other operands, or whose run has other attributes."""
        run = replace(self.run, **changes) if changes else self.run
        return Step(run, self.operands if operands is None else operands)


def size_of(shape: Sequence[int]) -> int:
    """Return the number of elements."""
    size = 1
    for n in shape:
        size *= n
    return size


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array."""
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= n
    return tuple(reversed(strides))


def is_contiguous(view: View) -> bool:
    """Tell whether an array is contiguous in C order."""
    expected = view.dtype.itemsize
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def transposed(view: View) -> View:
    """Return the view with its axes reversed."""
    return view._replace(shape=view.shape[::-1], strides=view.strides[::-1])


def broadcast(view: View, shape: tuple[int, ...]) -> View:
    """Return the view expanded to a shape."""
    if view.shape == shape:
        return view
    more = len(shape) - len(view.shape)
    if more < 0:
        raise NotLoweredError
    strides = [0] * more
    for n, stride, wanted in zip(view.shape, view.strides, shape[more:], strict=True):
        if n not in (1, wanted):
            raise NotLoweredError
        strides.append(stride if n == wanted else 0)
    return view._replace(shape=shape, strides=tuple(strides))


def bounds_of(view: View) -> tuple[int, int]:
    """Return where the lowest byte stands, and the one after the highest."""
    low = high = view.offset
    for n, stride in zip(view.shape, view.strides, strict=True):
        low, high = (low + (n - 1) * stride, high) if stride < 0 else (low, high + (n - 1) * stride)
    return low, high + view.dtype.itemsize


def is_in_same_memory(one: View, other: View) -> bool:
    """Tell whether two views have the same base."""
    return one.base is other.base or (
        isinstance(one.base, int) and isinstance(other.base, int) and one.base == other.base
    )


def overlaps(one: View, other: View) -> bool:
    """Tell whether two views may share memory without being the same, element by element."""
    if not is_in_same_memory(one, other):
        return False
    if one[1:5] == other[1:5]:
        return False
    (low, high), (other_low, other_high) = bounds_of(one), bounds_of(other)
    return low < other_high and other_low < high


def axes_of(views: Sequence[View]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the dimensions of views of one shape, merged where possible, the last one's strides the smallest first."""
    shape = views[0].shape
    axes = [(n, tuple([view.strides[d] for view in views])) for d, n in enumerate(shape) if n != 1]
    if len(axes) < 2:
        return axes
    axes.sort(key=lambda axis: -abs(axis[1][-1]))
    merged: list[tuple[int, tuple[int, ...]]] = []
    for n, strides in axes:
        if merged and all(a == n * b for a, b in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * n, strides
        else:
            merged.append((n, strides))
    if len(merged) > 1 and merged[-1][0] < 8:  # a short inner loop costs its call, again and again
        longest = max(range(len(merged)), key=lambda k: merged[k][0])
        if merged[longest][0] >= 4 * merged[-1][0]:
            merged.append(merged.pop(longest))
    return merged


def is_trivial(views: Sequence[View]) -> bool:
    """Tell whether NumPy runs one loop over all elements: only then are results of any loop the same, bit for bit."""
    shape, order = views[-1].shape, ""
    for view in views:
        if not view.shape:
            continue
        if view.shape != shape:
            return False
        if len(shape) == 1:
            continue
        by_rows, by_columns = is_contiguous(view), is_contiguous(transposed(view))
        if not by_rows and not by_columns:
            return False
        if by_rows != by_columns:
            found = "C" if by_rows else "F"
            if order not in ("", found):
                return False
            order = found
    return True


def over(
    views: Sequence[View],
    function: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    outer: Sequence[tuple[int, tuple[int, ...]]],
    **facts: Any,
) -> Step:
    """Return the step of a loop over views, with the dimensions and strides that it is given, and those around it."""
    operands = tuple([(view.base, view.offset) for view in views])
    alignments = tuple([view.dtype.alignment for view in views])
    return Step(Run(function, alignments, dims, strides, tuple(outer), **facts), operands)


def elementwise(function: int, views: Sequence[View], **facts: Any) -> Step:
    """Return the step of a loop over views, of which the last is the result and has the shape of all."""
    shape = views[-1].shape
    axes = axes_of([view if view.shape == shape else broadcast(view, shape) for view in views])
    if len(views) > MOST_OPERANDS or len(axes) > MOST_DIMS:
        raise NotLoweredError
    if axes:
        n, strides = axes[-1]
    else:
        n, strides = 1, tuple([view.dtype.itemsize if view.shape else 0 for view in views])
    return over(
        views,
        function,
        (n,),
        strides,
        axes[:-1],
        flat=len(axes) == 1,
        **facts,
    )


def of_loop(loop: UfuncLoop) -> dict[str, Any]:
    """Return what a step is given of NumPy's loop, besides its address."""
    return {"context": loop.context, "auxdata": loop.auxdata, "keeps": loop.capsule}
