"""Padding, resizing and sampling of lines, planes and volumes: `pad`, `interpolate`, `grid_sample`, `affine_grid`.

All of them are made of ops: of numbers gathered at constant positions, times weights, so that derivatives of every
order are those of the ops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import floor
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.nn._functions.arguments import check_floating, check_inexact, check_word, integer, number, one_array
from gradmgr.ops import pad as numpy_pad
from gradmgr.ops.arithmetic import absolute
from gradmgr.ops.convert import as_tensor, cast_to, lift_together, narrow_to, wide_dtype, widen_half
from gradmgr.ops.extrema import clip
from gradmgr.ops.join import stack
from gradmgr.ops.pick import take_along_axis
from gradmgr.ops.positions import align_with_axis, gather
from gradmgr.ops.products import matmul
from gradmgr.ops.reduce import mean
from gradmgr.ops.shape import expand_dims, reshape, swapaxes

_PADDINGS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
_AXES = {1: "linear", 2: "bilinear", 3: "trilinear"}
_CUBIC = -0.75  # the parameter of Keys' kernel: Cubic convolution interpolation for digital image processing (1981)

# Positions along an axis and their weights, for each number of the result: one pair for each number that it is made of.
Taps = list[tuple[Any, Any]]


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
        ShapeError: there are too many widths, an odd number of them, or more is to be mirrored, repeated or cut off
            than there is.
        ValueError: the mode is none of these, or has no value.

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
    cuts = tuple([slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape, widths, strict=True)])
    if any(low < 0 or high < 0 for low, high in widths):
        x = x[cuts]
    options = {} if value is None else {"constant_values": value}
    return numpy_pad.pad(x, [(max(0, low), max(0, high)) for low, high in widths], mode=_PADDINGS[mode], **options)


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
            down.
        mode: "nearest", whose positions are torch's, rounded down; "nearest-exact"; "linear" for lines, "bilinear" and
            "bicubic" for planes, "trilinear" for volumes; or "area", for means of windows that cover the input.
        align_corners: for the modes in between, whether the first and last numbers of input and result coincide,
            instead of the outer edges.
        recompute_scale_factor: whether positions are computed from the new lengths, instead of from scale_factor.
        antialias: must be False.

    Returns:
        The resized array, of the same dtype.

    Raises:
        ShapeError: axes or lengths do not fit.
        ValueError: the mode does not fit, or antialias is set; not one of size and scale_factor is given.

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
    for axis, (new, factor) in enumerate(zip(lengths, factors, strict=True), 2):
        old = z.shape[axis]
        if mode == "area":
            z = mean_of_windows(z, axis, new)
        elif new != old or factor not in (None, 1):
            step = old / new if factor is None else 1 / factor
            z = _weighted(z, axis, _taps(old, new, step, mode, bool(align_corners)))
    return narrow_to(z, x.dtype)


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
            "interpolate: antialias=True is not there; filter the input first, or use mode='area' for whole factors"
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
        return [(np.minimum((shifted * np.float32(step)).astype(np.intp), old - 1), None)]
    step = step if not align_corners else (old - 1) / (new - 1) if new > 1 else 0.0
    source = place * step if align_corners else (place + 0.5) * step - 0.5
    if mode != "bicubic":
        source = np.maximum(source, 0)
        below = np.minimum(source.astype(np.intp), old - 1)
        weight = np.minimum(source - below, 1.0)
        return [(below, 1 - weight), (np.minimum(below + 1, old - 1), weight)]
    below = np.floor(source).astype(np.intp)
    weights = _cubic_weights(source - below)
    return [(np.clip(below + k - 1, 0, old - 1), weight) for k, weight in enumerate(weights)]


def _cubic_weights(t: Any) -> list[Any]:
    """Return the weights of the four neighbours of a position that is t behind the second."""

    def near(d: Any) -> Any:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _weighted(x: Any, axis: int, taps: Taps) -> Any:
    """Return the sum of an axis' numbers at positions times weights."""
    device = libraries.device_of(raw(x))
    total = None
    for places, weights in taps:
        part = gather(x, libraries.to_device(places, device), axis)
        if weights is not None:
            kind = x.real.dtype if x.dtype.kind == "c" else x.dtype
            part = part * libraries.to_device(align_with_axis(weights.astype(kind), axis, x.ndim), device)
        total = part if total is None else total + part
    return total


# ---------------------------------------------------------------- affine_grid


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Any:
    """Return the positions that affine maps give, for `grid_sample`.

    Args:
        theta: the maps of planes (batch, 2, 3), or of volumes (batch, 3, 4).
        size: the shape of the result of `grid_sample`: (batch, channels, height, width), or with a depth.
        align_corners: whether -1 and 1 are the centres of the first and last numbers instead of their outer edges.

    Returns:
        (batch, height, width, 2) or (batch, depth, height, width, 3), in theta's dtype.

    Raises:
        ShapeError: the shapes do not fit.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.affine_grid(np.eye(2, 3)[None], (1, 1, 1, 2), align_corners=True).tolist()
    [[[[-1.0, 0.0], [1.0, 0.0]]]]
    """
    theta = one_array(theta)
    check_floating("affine_grid", theta=theta)
    lengths = tuple([integer(n, "size", "affine_grid") for n in size])
    axes = len(lengths) - 2
    if axes not in (2, 3) or theta.shape != (lengths[0], axes, axes + 1) or min(lengths) < 1:
        raise errors.ShapeError(
            "affine_grid takes theta (batch, 2, 3) and a size (batch, channels, height, width), or (batch, 3, 4) and "
            f"with a depth; found {theta.shape} and {lengths}"
        )
    lines = []
    for n in lengths[2:]:
        line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        lines.append(line if align_corners else line * (n - 1) / n)
    places = np.meshgrid(*lines, indexing="ij")
    base = np.stack([*places[::-1], np.ones_like(places[0])], axis=-1).reshape(-1, axes + 1)
    maps = widen_half(theta)
    base = libraries.to_device(base.astype(maps.real.dtype), libraries.device_of(raw(theta)))
    grid = matmul(base, swapaxes(maps, 1, 2))
    return narrow_to(reshape(grid, (lengths[0], *lengths[2:], axes)), theta.dtype)


# ---------------------------------------------------------------- grid_sample


def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """Return the numbers of planes or volumes at given positions, as torch.nn.functional.grid_sample.

    Args:
        input: (batch, channels, height, width), or (batch, channels, depth, height, width).
        grid: the positions (batch, h, w, 2), x before y, or (batch, d, h, w, 3); -1 and 1 are the ends of an axis.
        mode: "bilinear", also for volumes; "nearest"; or "bicubic", for planes.
        padding_mode: what is outside: "zeros"; "border", the nearest number of the border; or "reflection".
        align_corners: whether -1 and 1 are the centres of the first and last numbers instead of their outer edges.

    Returns:
        (batch, channels, h, w) or (batch, channels, d, h, w), in the common dtype.

    Raises:
        ShapeError: the shapes do not fit.
        ValueError: a mode is none of these.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.grid_sample(np.array([[[[1.0, 3.0]]]]), np.array([[[[0.0, 0.0]]]]), align_corners=True).item()
    2.0
    """
    x, grid = lift_together(one_array(input), one_array(grid))
    check_floating("grid_sample", input=x, grid=grid)
    axes = x.ndim - 2
    check_word(
        mode, ("bilinear", "nearest", "bicubic") if axes == 2 else ("bilinear", "nearest"), "mode", "grid_sample"
    )
    check_word(padding_mode, ("zeros", "border", "reflection"), "padding_mode", "grid_sample")
    if axes not in (2, 3) or grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != axes:
        raise errors.ShapeError(
            "grid_sample takes (batch, channels, height, width) and a grid (batch, h, w, 2), or (batch, channels, "
            f"depth, height, width) and (batch, d, h, w, 3); found {x.shape} and {grid.shape}"
        )
    if 0 in x.shape[2:]:
        raise errors.ShapeError(f"grid_sample: there is nothing to sample; found an input {x.shape}")
    dtype = np.result_type(x.dtype, grid.dtype)
    x, grid = (cast_to(t, wide_dtype(dtype)) for t in (x, grid))
    sampler = _Sampler(x, padding_mode, bool(align_corners))
    places = [sampler.position(grid[..., axes - 1 - k], k) for k in range(axes)]  # of the axes in order
    z = sampler.read(places, {"bilinear": _two_taps, "nearest": _one_tap, "bicubic": _four_taps}[mode])
    z = narrow_to(reshape(z, (*x.shape[:2], *grid.shape[1:-1])), dtype)
    return as_tensor(z) if isinstance(grid, Tensor) else z  # of the nearest, z does not depend on the grid


class _Sampler:
    """Reads the numbers of planes or volumes at positions."""

    def __init__(self, x: Any, padding_mode: str, align_corners: bool) -> None:
        self._lengths = x.shape[2:]
        self._flat = reshape(x, (*x.shape[:2], -1))
        self._mode = padding_mode
        self._corners = align_corners

    def position(self, coordinate: Any, axis: int) -> Any:
        """Return where a coordinate from -1 to 1 lies, in numbers of an axis, (batch, positions)."""
        n = self._lengths[axis]
        place = (coordinate + 1) * ((n - 1) / 2) if self._corners else ((coordinate + 1) * n - 1) * 0.5
        return reshape(place, (place.shape[0], -1))

    def inside(self, place: Any, axis: int) -> Any:
        """Return the position within the axis that a position outside stands for."""
        n = self._lengths[axis]
        if self._mode == "zeros":
            return place
        if self._mode == "reflection":
            low, high = (0.0, n - 1.0) if self._corners else (-0.5, n - 0.5)
            place = _reflected(place, low, high)
        return clip(place, 0, n - 1)

    def read(self, places: list[Any], taps_of: Callable[[_Sampler, Any, int], Taps]) -> Any:
        """Return the sum over all combinations of the taps of the axes, (batch, channels, positions)."""
        total = None
        for taps in itertools.product(*[taps_of(self, place, axis) for axis, place in enumerate(places)]):
            index: Any = 0
            weight = None
            for n, (position, factor) in zip(self._lengths, taps, strict=True):
                limited = np.clip(position, 0, n - 1)
                index = index * n + limited
                if self._mode == "zeros":
                    present = (position == limited).astype(self._flat.real.dtype)
                    factor = present if factor is None else factor * present
                if factor is not None:
                    weight = factor if weight is None else weight * factor
            part = take_along_axis(self._flat, index[:, None], 2)
            part = part if weight is None else part * expand_dims(weight, 1)
            total = part if total is None else total + part
        return total


def _whole(values: Any, n: int) -> Any:
    """Return rounded values as integers; those that are far outside or not finite as ones outside."""
    near = np.clip(values, -4, n + 4)
    return np.where(near == near, near, -4.0).astype(np.intp)


def _reflected(place: Any, low: float, high: float) -> Any:
    """Reflect positions at both ends until they are between them."""
    span = high - low
    if span == 0:
        return place * 0
    distance = absolute(place - low)
    value = raw(distance)
    times = np.floor(value / span)
    odd = times % 2
    start = np.where(odd == 0, low - times * span, low + span + times * span).astype(value.dtype)
    return distance * (1 - 2 * odd).astype(value.dtype) + start


def _one_tap(sampler: _Sampler, place: Any, axis: int) -> Taps:
    return [(_whole(np.rint(raw(sampler.inside(place, axis))), sampler._lengths[axis]), None)]


def _two_taps(sampler: _Sampler, place: Any, axis: int) -> Taps:
    place = sampler.inside(place, axis)
    floor = np.floor(raw(place))
    below, weight = _whole(floor, sampler._lengths[axis]), place - floor
    return [(below, 1 - weight), (below + 1, weight)]


def _four_taps(sampler: _Sampler, place: Any, axis: int) -> Taps:
    floor = np.floor(raw(place))
    taps = []
    for k, weight in enumerate(_cubic_weights(place - floor), -1):
        position = np.rint(raw(sampler.inside(floor + k, axis)))
        taps.append((_whole(position, sampler._lengths[axis]), weight))
    return taps
