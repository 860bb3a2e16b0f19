"""The positions of the windows of a plane, and how to read them, for convolution and pooling.

The kernels work on blocks that fit in a processor's cache. The planes of a block are copied into a buffer, padded with
zeros (or -inf for a maximum) and split by the stride. Then the elements that one tap reads in all windows are one
contiguous run, which begins at the tap's offset. Runs also cover the gaps between rows; what is computed there is not
part of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import innermost
from gradmgr.nn._functions.arguments import pair, single, triple
from gradmgr.ops.convert import is_half
from gradmgr.ops.shape import reshape


class _Windows(NamedTuple):
    """The windows of a plane; each field but `groups` is a pair, for rows and columns."""

    size: tuple[int, ...]  # of the plane
    kernel: tuple[int, ...]
    out: tuple[int, ...]  # how many windows there are
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # before the plane; after it, as far as the windows reach
    dilation: tuple[int, ...]
    groups: int = 1


class Geometry(_Windows):
    """The windows of a plane, and their layout in a buffer, which an op's kernel and its derivatives share."""

    @cached_property
    def layout(self) -> Layout:
        """The layout of planes in a buffer for these windows."""
        return Layout(self)


class _Line:
    """One axis of a plane, split by the stride into phases: in each phase neighbouring windows are one slot apart."""

    __slots__ = ("covered", "margin", "phases", "slots", "taps")

    def __init__(self, size: int, kernel: int, out: int, stride: int, padding: int, dilation: int) -> None:
        # For each tap: its slot relative to the window's first, and its phase.
        self.taps = [divmod(tap * dilation, stride) for tap in range(kernel)]
        self.slots = out + self.taps[-1][0]
        # For each phase: the slots that hold elements of the axis, and these elements.
        self.phases: dict[int, tuple[slice, slice]] = {}
        # Slots that are empty at both ends of all phases; elements that have a slot.
        self.margin, self.covered = self.slots, 0
        for _, phase in self.taps:
            if phase in self.phases:
                continue
            origin = phase - padding
            first = max(0, -(origin // stride))
            last = max(first, min(self.slots, (size - 1 - origin) // stride + 1))
            begin = first * stride + origin
            self.phases[phase] = slice(first, last), slice(begin, begin + (last - first) * stride, stride)
            if last > first:
                self.margin = min(self.margin, first, self.slots - last)
                self.covered += last - first


# Elements of the largest buffer. On the CPU, with 4 bytes each, they fit in the cache of one core. A GPU has no such
# cache, and one call must occupy the whole device.
_BLOCK = 2**19
_BLOCK_OF_GPU = 2**26
_FEWEST = 512  # columns of a block: with fewer a matrix product spends its time reading the weight


class Layout:
    """The layout of planes in a buffer in which every tap of the windows reads one contiguous run."""

    def __init__(self, geometry: Geometry) -> None:
        rows, columns = map(_Line, *geometry[:6])
        self.out = geometry.out
        # The zeros at the end of a row serve as those at the beginning of the next.
        self.row = max(self.out[1], columns.slots - columns.margin)
        self.height = rows.slots - (-columns.taps[-1][0] // self.row)
        self.taps = [((a, b), down * self.row + right) for down, a in rows.taps for right, b in columns.taps]
        # For each phase: where elements of the plane lie in the buffer, and which elements.
        self.phases = {
            (a, b): ((top, left), (of_rows, of_columns))
            for a, (top, of_rows) in rows.phases.items()
            for b, (left, of_columns) in columns.phases.items()
        }
        self.covers = (rows.covered, columns.covered) == geometry.size

    def blocks(self, count: int, rows: int, *arrays: Any) -> tuple[tuple[int, int], list[tuple[slice, slice]]]:
        """Return the images and lines of a result in a block, and the blocks, for `rows` runs that are held at once."""
        height = self.out[0]
        is_numpy = isinstance(arrays[0], np.ndarray) or libraries.root(arrays[0]) is np
        limit = _BLOCK if is_numpy else _BLOCK_OF_GPU
        places = max(limit // max(1, rows * _count_examples(*arrays)), _FEWEST)
        images = _even_part_size(count, places // (height * self.row))
        lines = height if images > 1 else _even_part_size(height, places // self.row)
        return (images, lines), [
            (slice(n, min(n + images, count)), slice(line, min(line + lines, height)))
            for n in range(0, count, images)
            for line in range(0, height, lines)
        ]

    def planes(self, channels: int, images: int, dtype: Any, fill: float, *arrays: Any) -> dict[Any, Any]:
        """Make the buffer: an array for each phase, batched if one of these arrays is."""
        shape = (channels, images, self.height, self.row)
        if fill == 0:
            return {phase: new_array("zeros", shape, dtype, *arrays) for phase in self.phases}
        return {phase: new_array("full", shape, dtype, *arrays, fill=fill) for phase in self.phases}

    def put(self, planes: dict[Any, Any], x: Any) -> None:
        """Copy images, as (image, channel, row, column), into the buffer."""
        turned = x.transpose(1, 0, 2, 3)
        for phase, (there, here) in self.phases.items():
            planes[phase][(slice(None), slice(0, x.shape[0]), *there)] = turned[(..., *here)]

    def get(self, planes: dict[Any, Any], x: Any) -> None:
        """Copy images out of the buffer."""
        for phase, (there, here) in self.phases.items():
            part = planes[phase][(slice(None), slice(0, x.shape[0]), *there)]
            x[(..., *here)] = part.transpose(1, 0, 2, 3)

    def runs(self, planes: dict[Any, Any], images: int, lines: slice) -> Iterator[Any]:
        """Return an iterator over the elements that each tap reads, as (channel, image, position)."""
        flat = {phase: p.reshape((*p.shape[:2], self.height * self.row)) for phase, p in planes.items()}
        begin, end = lines.start * self.row, lines.stop * self.row
        # All at once: a generator would be a call for each tap.
        return iter([flat[phase][:, :images, offset + begin : offset + end] for phase, offset in self.taps])

    def of_result(self, runs: Any, images: int, lines: slice) -> Any:
        """View runs of all channels, (channels, positions of the block), as the images of a result."""
        shape = (runs.shape[0], images, lines.stop - lines.start, self.row)
        return runs.reshape(shape)[..., : self.out[1]].transpose(1, 0, 2, 3)


def _even_part_size(count: int, most: int) -> int:
    """Return the size of parts, at most `most`, that divide `count` into nearly equal parts."""
    times = -(-count // max(1, most))
    return -(-count // max(1, times)) or 1


def _count_examples(*arrays: Any) -> int:
    """Return the number of examples of a vmap in the arrays, 1 outside of vmap."""
    count = 1
    for a in arrays:
        if a.size:
            count = max(count, a.nbytes // (a.size * a.itemsize))
    return count


def new_array(kind: str, shape: tuple[int, ...], dtype: Any, *arrays: Any, fill: float | None = None) -> Any:
    """Make an array in the library of the first of these arrays, batched or captured if one of them is."""
    like = arrays[0]
    for a in arrays:
        if a.__class__ is not np.ndarray and libraries.is_captured(inner := innermost(a)):
            like = inner  # whose library captures the call: new memory must not become a constant
    if like.__class__ is np.ndarray:
        xp: Any = np
    else:
        xp = libraries.namespace(like) if libraries.is_captured(like) else libraries.root(like)
    make = getattr(xp, kind)
    made = make(shape, dtype) if fill is None else make(shape, fill, dtype)
    return libraries.able_to_hold(made, *arrays)


def accumulation_dtype(dtype: Any) -> Any:
    """Return the dtype to compute in: float32 for half precision, else the dtype itself."""
    return libraries.F4 if dtype.itemsize <= 2 and is_half(dtype) else dtype


# ---------------------------------------------------------------- arguments of lines and planes


def sizes(value: Any, least: int, axes: int, name: str, asked: str) -> tuple[int, ...]:
    """Return one integer for each axis of a line, plane or volume; raise if one is less than `least`."""
    if value.__class__ is int:  # the common case, without a call
        read: tuple[int, ...] = (value,) * axes
    else:
        read = (single, pair, triple)[axes - 1](value, name, asked)
    if min(read) < least:
        raise errors.ShapeError(f"{asked}: {name} must be at least {least}; found {value!r}")
    return read


def as_planes(t: Any, axes: int) -> Any:
    """Add an axis of one row if planes are lines, and a batch axis if there is none."""
    given = t.shape
    shape = given if axes == 2 else (*given[:-1], 1, given[-1])
    shape = shape if len(shape) == 4 else (1, *shape)
    return t if shape == given else reshape(t, shape)


def restore_shape(z: Any, axes: int, batched: bool) -> Any:
    """Remove the axes that `as_planes` added."""
    made = z.shape
    shape = made if batched else made[1:]
    shape = shape if axes == 2 else (*shape[:-2], shape[-1])
    return z if shape == made else reshape(z, shape)


def geometry_of(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    out: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
) -> Geometry:
    """Return the Geometry of planes, or of lines as planes of one row."""
    if len(size) == 2:
        return Geometry(size, kernel, out, stride, padding, dilation, groups)
    line = (1, *size), (1, *kernel), (1, *out), (1, *stride), (0, *padding), (1, *dilation)  # a plane of one row
    return Geometry(*line, groups)
