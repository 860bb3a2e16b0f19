"""Padding and resizing of lines, planes and volumes: `pad` and `interpolate`.

Resizing is a linear map along each axis, of numbers at constant positions, times weights; it is declared with its
adjoint, so derivatives of all orders are right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import floor
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, native_kernels
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import raw
from gradmgr.nn._functions.arguments import check_inexact, check_word, integer, number, one_array
from gradmgr.nn._functions.grid_sampling import cubic_weights
from gradmgr.ops import pad as numpy_pad
from gradmgr.ops.convert import narrow_to, widen_half
from gradmgr.ops.join import stack
from gradmgr.ops.positions import align_with_axis, gather, gather_back
from gradmgr.ops.reduce import mean
from gradmgr.ops.shape import reshape

_PADDINGS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_AXES = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Taps(NamedTuple):
    """The numbers of an axis that each number of the result is made of.

    Attributes:
        places: their positions, (taps, length of the result).
        weights: of the same shape; None for ones.
    """

    places: Any
    weights: Any

    def on(self, x: Any, axis: int) -> Iterator[tuple[Any, Any]]:
        """Yield positions and weights, which broadcast along the axis of x, tap by tap, where x lies."""
        device, kind = libraries.device_of(raw(x)), x.real.dtype if x.dtype.kind == "c" else x.dtype
        for k, places in enumerate(self.places):
            weights = None if self.weights is None else align_with_axis(self.weights[k].astype(kind), axis, x.ndim)
            yield (
                libraries.to_device(places, device),
                None if weights is None else libraries.to_device(weights, device),
            )

    def like(self, x: Any) -> tuple[Any, Any]:
        """Return positions and weights in the widths of the numbers of x, as kernels take them."""
        places = self.places.astype(np.int32 if x.itemsize == 4 else np.int64, copy=False)
        if self.weights is None:
            return places, np.ones(places.shape, x.dtype)
        return places, self.weights.astype(x.dtype, copy=False)


# ---------------------------------------------------------------- pad


def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Pad the last axes, as torch.nn.functional.pad: the widths begin with those of the last axis.

    Args:
        input: floating-point or complex numbers of any shape.
        pad: the widths before and after the last axis, then those of the one before it, and so on; a negative width
            cuts numbers off.
        mode: "constant"; "reflect", without the edge; "replicate", which repeats the edge; or "circular".
        value: the constant; 0 by default.

    Returns:
        The padded array, of the same dtype.

    Raises:
        ShapeError: there are too many widths or an odd number of them, or a width exceeds what an axis has to be
            mirrored, repeated or cut off.
        ValueError: the mode is unknown, or `value` is given with a mode other than "constant".

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.pad(np.array([[1.0, 2.0, 3.0]]), (2, 1), mode="reflect").tolist()
    [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0]]
    """
    x = one_array(input)
    check_inexact("pad", input=x)
    check_word(mode, tuple(_PADDINGS), "mode", "pad")
    if value is not None and mode != "constant":
        raise ValueError(f"pad: mode {mode!r} takes no value; found {value!r}")
    widths = _widths_by_axis(x.shape, pad, mode)
    if any(low < 0 or high < 0 for low, high in widths):
        x = x[tuple([slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape, widths, strict=True)])]
        widths = [(max(0, low), max(0, high)) for low, high in widths]
    options = {} if value is None else {"constant_values": value}
    return numpy_pad.pad(x, widths, mode=_PADDINGS[mode], **options)


def _widths_by_axis(shape: tuple[int, ...], widths: Any, mode: str) -> list[tuple[int, int]]:
    """Return the widths before and after each axis."""
    if not isinstance(widths, (tuple, list)) or len(widths) % 2 or len(widths) > 2 * len(shape):
        raise errors.ShapeError(
            f"pad: the widths must be a sequence of a pair for each of the last axes, at most {len(shape)} of an input "
            f"{shape}; found {widths!r}"
        )
    read = [integer(width, "pad", "pad") for width in widths]
    pairs = list(zip(read[::2], read[1::2], strict=True))
    by_axis = [(0, 0)] * (len(shape) - len(pairs)) + pairs[::-1]
    for n, pair in zip(shape, by_axis, strict=True):
        if pair == (0, 0):
            continue
        most = {"constant": max(pair), "replicate": max(pair) if n else 0, "reflect": n - 1, "circular": n}[mode]
        if max(pair) > max(most, 0) or sum([min(0, width) for width in pair]) < -n:
            raise errors.ShapeError(f"pad: mode {mode!r} can't pad an axis of {n} numbers by {pair}")
    return by_axis


# ---------------------------------------------------------------- interpolate


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Resize lines, planes or volumes, as torch.nn.functional.interpolate.

    Args:
        input: (batch, channels, length), (batch, channels, height, width) or (batch, channels, depth, height, width).
        size: the new lengths, an integer for all axes or one for each.
        scale_factor: instead of size, the factor of the lengths, a number or one for each axis; lengths are rounded
            down. As in torch, "linear", "bilinear", "trilinear", and "nearest" of planes copy an axis whose length
            stays the same, whatever its factor; and "nearest" repeats each number of an axis of planes whose length is
            doubled.
        mode: "nearest", whose positions are torch's, rounded down; "nearest-exact"; "linear" for lines, "bilinear" and
            "bicubic" for planes, "trilinear" for volumes; or "area", for means of windows that cover the input.
        align_corners: for "linear", "bilinear", "bicubic" and "trilinear", whether the first and last numbers of input
            and result coincide, instead of the outer edges.
        recompute_scale_factor: whether positions are computed from the new lengths, instead of from scale_factor.
        antialias: must be False.

    Returns:
        The resized array, of the same dtype.

    Raises:
        ShapeError: axes or lengths do not fit.
        ValueError: the mode does not fit, antialias is set, or not exactly one of size and scale_factor is given.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.interpolate(np.array([[[1.0, 2.0]]]), scale_factor=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    >>> F.interpolate(np.array([[[1.0, 2.0]]]), 3, mode="linear", align_corners=True).tolist()
    [[[1.0, 1.5, 2.0]]]
    """
    x = one_array(input)
    check_inexact("interpolate", input=x)
    _check_mode(x.shape, mode, align_corners, antialias)
    lengths, factors = _new_lengths(x.shape[2:], size, scale_factor)
    if recompute_scale_factor:
        if scale_factor is None:
            raise ValueError("interpolate: recompute_scale_factor needs a scale_factor; found a size")
        factors = [None] * len(lengths)
    z = widen_half(x)
    if mode == "area":
        for axis, new in enumerate(lengths, 2):
            z = mean_of_windows(z, axis, new)
        return narrow_to(z, x.dtype)
    # As torch, which takes the lengths, not the factor, where an axis stays as it is, and for the nearest where it is
    # doubled; in these modes alone.
    by_lengths = mode == "nearest" and x.ndim == 4
    copies = by_lengths or mode in _AXES.values()
    resized: list[Taps | None] = []
    found: dict[tuple[int, int, float], Taps] = {}  # axes of equal lengths have the same
    for old, new, factor in zip(x.shape[2:], lengths, factors, strict=True):
        step = old / new if factor is None or (by_lengths and new == 2 * old) else 1 / factor
        if new == old and (factor in (None, 1) or copies):
            resized.append(None)
            continue
        if (old, new, step) not in found:
            found[old, new, step] = _taps(old, new, step, mode, bool(align_corners))
        resized.append(found[old, new, step])
    return narrow_to(_resize(z, tuple(resized)), x.dtype)


def _check_mode(shape: tuple[int, ...], mode: Any, align_corners: Any, antialias: Any) -> None:
    axes = len(shape) - 2
    if axes not in _AXES:
        raise errors.ShapeError(f"interpolate takes (batch, channels, ...) with 1 to 3 further axes; found {shape}")
    if 0 in shape[2:]:
        raise errors.ShapeError(f"interpolate: there is nothing to interpolate; found an input {shape}")
    between = (_AXES[axes], *(["bicubic"] if axes == 2 else []))
    known = ("nearest", "nearest-exact", "area", *between)
    if mode not in known:
        named = " ".join(map(repr, known))
        raise ValueError(f"interpolate: mode must be one of {named} for an input {shape}; found {mode!r}")
    if align_corners is not None and mode not in between:
        raise ValueError(f"interpolate: align_corners is for modes {' '.join(map(repr, between))}; found mode {mode!r}")
    if antialias:
        raise ValueError(
            "interpolate: antialias=True is not supported; filter the input first, or use mode='area' for whole factors"
        )


def _new_lengths(old: tuple[int, ...], size: Any, factor: Any) -> tuple[list[int], list[float | None]]:
    """Return the new lengths, and the given factors or None for each axis."""
    if (size is None) == (factor is None):
        raise ValueError(
            f"interpolate: give one of size and scale_factor; found size={size!r}, scale_factor={factor!r}"
        )
    given, name = (factor, "scale_factor") if size is None else (size, "size")
    parts = list(given) if isinstance(given, (tuple, list)) else [given] * len(old)
    if len(parts) != len(old):
        raise errors.ShapeError(f"interpolate: {name} must be one for each of {len(old)} axes; found {given!r}")
    factors: list[float | None] = [None] * len(old)
    if size is None:
        read = [number(part, name, "interpolate") for part in parts]
        lengths, factors = [floor(n * part) for n, part in zip(old, read, strict=True)], [*read]
    else:
        lengths = [integer(part, name, "interpolate") for part in parts]
    if min(lengths) < 1:
        raise errors.ShapeError(
            f"interpolate: the new lengths must be at least 1; found {lengths}, of {name}={given!r}"
        )
    return lengths, factors


def mean_of_windows(x: Any, axis: int, count: int) -> Any:
    """Average an axis over windows that cover it evenly, with begins rounded down and ends rounded up."""
    n, free = x.shape[axis], (slice(None),) * axis
    if n % count == 0:
        return mean(reshape(x, (*x.shape[:axis], count, n // count, *x.shape[axis + 1 :])), axis=axis + 1)
    windows = [slice(k * n // count, -(-(k + 1) * n // count)) for k in range(count)]
    return stack([mean(x[(*free, window)], axis=axis) for window in windows], axis=axis)


def _taps(old: int, new: int, step: float, mode: str, align_corners: bool) -> Taps:
    """Return the positions and weights of an axis."""
    place = np.arange(new)
    if mode in ("nearest", "nearest-exact"):
        # in float32, as torch does for any dtype, so that the same positions are chosen
        shifted = place.astype(np.float32) + np.float32(0.5 if mode == "nearest-exact" else 0)
        return Taps(np.minimum((shifted * np.float32(step)).astype(np.intp), old - 1)[None], None)
    step = step if not align_corners else (old - 1) / (new - 1) if new > 1 else 0.0
    source = place * step if align_corners else (place + 0.5) * step - 0.5
    if mode != "bicubic":
        source = np.maximum(source, 0)
        places, weights = np.empty((2, new), np.intp), np.empty((2, new))  # two stacks of two take 5 us more
        below = np.minimum(source.astype(np.intp), old - 1, out=places[0])
        np.minimum(below + 1, old - 1, out=places[1])
        np.subtract(1, np.minimum(source - below, 1.0, out=weights[1]), out=weights[0])
        return Taps(places, weights)
    below = np.floor(source).astype(np.intp)
    places = np.minimum(np.maximum(below + np.arange(-1, 3)[:, None], 0), old - 1)  # clip takes three times as long
    return Taps(places, np.stack(cubic_weights(source - below)))


# ---------------------------------------------------------------- the linear map, and its adjoint


@libraries.keeps_nothing
def _resize_kernel(x: Any, taps: tuple[Taps | None, ...]) -> Any:
    """Return the sums of numbers at positions times weights, along each of the last axes."""
    if (kernel := _find_kernel("resize", x, taps)) is not None:
        for part in _pairs_of_axes(taps):
            x = _run(kernel, x, x.shape, part, forward=True)
        return x
    for axis, of_axis in enumerate(taps, 2):
        if of_axis is not None:
            x = _weighted(x, axis, of_axis)
    return x


def _weighted(x: Any, axis: int, taps: Taps) -> Any:
    total = None
    for places, weights in taps.on(x, axis):
        part = gather(x, places, axis)
        part = part if weights is None else part * weights
        total = part if total is None else total + part
    return total


@libraries.keeps_nothing
def _resize_adjoint_kernel(g: Any, lengths: tuple[int, ...], taps: tuple[Taps | None, ...]) -> Any:
    """Add each number, times the weights, to those that it is made of; `lengths` are those of the last axes."""
    if (kernel := _find_kernel("resize_vjp", g, taps)) is not None:
        for part in reversed(_pairs_of_axes(taps)):
            before = [n if t is None else m for n, m, t in zip(g.shape[2:], lengths, part, strict=True)]
            g = _run(kernel, g, (*g.shape[:2], *before), part, forward=False)
        return g
    for axis, (length, of_axis) in reversed(list(enumerate(zip(lengths, taps, strict=True), 2))):
        if of_axis is not None:
            g = _weighted_adjoint(g, axis, length, of_axis)
    return g


def _weighted_adjoint(g: Any, axis: int, length: int, taps: Taps) -> Any:
    total = None
    for places, weights in taps.on(g, axis):
        part = gather_back(g if weights is None else g * weights, places, length, axis)
        total = part if total is None else total + part
    return total


_resize: Function = linear("nn.resize", _resize_kernel, lambda g, shape, taps: _resize_adjoint(g, shape[2:], taps))
_resize_adjoint: Function = linear("nn.resize_adjoint", _resize_adjoint_kernel, lambda g, taps: _resize(g, taps))


def _find_kernel(name: str, x: Any, taps: tuple[Taps | None, ...]) -> Any:
    """Return a kernel of gradmgr-native; None if there is none, or nothing is to be done."""
    return native_kernels.find(name, x) if any(of_axis is not None for of_axis in taps) else None


def _pairs_of_axes(taps: tuple[Taps | None, ...]) -> list[tuple[Taps | None, ...]]:
    """Return the taps of an axis or two for each run of a kernel, which resizes planes; those of others are None."""
    if len(taps) < 3:
        return [taps]
    return [part for part in ((taps[0], None, None), (None, *taps[1:])) if any(of_axis is not None for of_axis in part)]


def _run(kernel: Any, given: Any, shape: tuple[int, ...], taps: tuple[Taps | None, ...], *, forward: bool) -> Any:
    """Run a kernel on an array in the shape of the input (forward) or of the result; `shape` is that of the input."""
    resized = tuple([n if t is None else t.places.shape[1] for n, t in zip(shape[2:], taps, strict=True)])
    down: Taps | None
    right: Taps | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    if len(taps) == 3 and taps[0] is not None:  # planes of the first axis, and all others
        down, right = taps[0], None
        before, after = ((lengths[0], math.prod(lengths[1:])) for lengths in (shape[2:], resized))
    else:
        down, right = (None, *taps)[-2:]
        before, after = ((1, *lengths)[-2:] for lengths in (shape[2:], resized))
    planes = given.size // math.prod(before if forward else after)
    made = native_kernels.empty((*shape[:2], *resized) if forward else shape, given)
    scratch = native_kernels.empty((before[1] if forward else before[0] * after[1],), given)
    operands = [a for t in (down, right) for a in (Taps(np.zeros((1, 1), int), None) if t is None else t).like(given)]
    counts = [0 if t is None else len(t.places) for t in (down, right)]
    kernel(native_kernels.contiguous(given), *operands, scratch, made, planes, *before, *after, *counts)
    return made
