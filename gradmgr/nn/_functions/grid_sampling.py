"""Sampling of planes and volumes at positions: `grid_sample`, and `affine_grid`, which makes positions.

A number of the result is a sum over taps: of the number at each tap times a product of weights, one for each axis, that
depend on the position. Its derivative by a position is the same sum with the derivative of a weight in that product. So
two ops, sampling and its adjoint in the images, whose weights may be derivatives of any order, are all that derivatives
of every order need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, native_kernels
from gradmgr._engine.custom import custom
from gradmgr._engine.indexing import scatter
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.nn._functions.arguments import check_floating, check_word, integer, one_array
from gradmgr.ops import reduce
from gradmgr.ops.arithmetic import plain_zeros
from gradmgr.ops.convert import cast_to, lift_together, narrow_to, wide_dtype, widen_half
from gradmgr.ops.join import stack
from gradmgr.ops.positions import align_with_axis
from gradmgr.ops.products import matmul
from gradmgr.ops.shape import expand_dims, reshape, swapaxes

# The parameter of Keys' kernel: Cubic convolution interpolation for digital image processing (1981).
_CUBIC = -0.75
# That kernel at distances below 1, and from 1 to 2, as coefficients of polynomials.
_NEAR = (_CUBIC + 2, -(_CUBIC + 3), 0.0, 1.0)
_FAR = (_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC)

_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}  # along an axis
_OUTSIDE = ("zeros", "border", "reflection")


def cubic_weights(t: Any, order: int = 0) -> list[Any]:
    """Return the weights of the four neighbours of a position that is t behind the second, or a derivative of them."""
    back = -1 if order % 2 else 1  # where the distance falls with t
    return [
        _polynomial(_FAR, t + 1, order),
        _polynomial(_NEAR, t, order),
        _polynomial(_NEAR, 1 - t, order) * back,
        _polynomial(_FAR, 2 - t, order) * back,
    ]


def _polynomial(coefficients: Sequence[float], x: Any, order: int) -> Any:
    if order:  # which takes 10 us for nothing where it is 0
        coefficients = np.polyder(np.array(coefficients), order).tolist() or [0.0]
    first, *others = coefficients
    value = x * 0 + first
    for coefficient in others:
        value = value * x + coefficient
    return value


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
    maps = widen_half(theta)
    base = np.ones((*lengths[2:], axes + 1), maps.dtype)
    for k, n in enumerate(lengths[2:]):
        line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        line = line if align_corners else line * (n - 1) / n
        base[..., axes - 1 - k] = align_with_axis(line, k, axes)
    base = libraries.to_device(base.reshape(-1, axes + 1), libraries.device_of(raw(theta)))
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
        mode: "bilinear", also for volumes; "nearest", whose derivative by the grid is 0; or "bicubic", for planes.
        padding_mode: what is outside: "zeros"; "border", the nearest number of the border; or "reflection".
        align_corners: whether -1 and 1 are the centres of the first and last numbers instead of their outer edges.

    Returns:
        (batch, channels, h, w) or (batch, channels, d, h, w), in the common dtype.

    Raises:
        ShapeError: the shapes do not fit.
        ValueError: a mode is unknown.

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
    dtype = x.dtype if x.dtype is grid.dtype else np.result_type(x.dtype, grid.dtype)
    wide = wide_dtype(dtype)
    x, grid = cast_to(x, wide), cast_to(grid, wide)
    sampling = _Sampling(_TAPS[mode], padding_mode, bool(align_corners), (0,) * axes)
    return narrow_to(_sample(x, grid, sampling), dtype)


# ---------------------------------------------------------------- positions and weights


class _Sampling(NamedTuple):
    """How to sample.

    Attributes:
        taps: how many numbers along an axis are read: the nearest, two or four.
        padding_mode: what is outside.
        corners: whether -1 and 1 are the centres of the first and last numbers.
        orders: for each axis, the order of the derivative that is taken of the weights.
    """

    taps: int
    padding_mode: str
    corners: bool
    orders: tuple[int, ...]

    def derived(self, axis: int) -> _Sampling:
        """Return the sampling whose weights are the derivatives of these along an axis."""
        return self._replace(orders=tuple([order + (k == axis) for k, order in enumerate(self.orders)]))

    def taps_of_axis(self, grid: Any, n: int, axis: int, *, with_slopes: bool = False) -> list[tuple[Any, list[Any]]]:
        """Return, tap by tap along an axis of n numbers, the numbers of elements and their weights or None.

        Both are (batch, positions). With slopes, after each weight comes its derivative.
        """
        coordinate = _flat(grid[..., len(self.orders) - 1 - axis], 1)
        order, taps = self.orders[axis], []
        for position, weights in self._taps(coordinate, n, [order, order + 1] if with_slopes else [order]):
            limited = np.clip(position, 0, n - 1)
            if self.padding_mode == "zeros":
                present = (position == limited).astype(grid.dtype)
                weights = [present if weight is None else weight * present for weight in weights]
            taps.append((limited, weights))
        return taps

    def all_taps(self, grid: Any, lengths: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
        """Yield the numbers of elements in a flat image and their weights, both (batch, positions), tap by tap."""
        by_axis = [self.taps_of_axis(grid, n, axis) for axis, n in enumerate(lengths)]
        for taps in itertools.product(*by_axis):
            weight = _product([weight for _, (weight,) in taps])
            yield _flat_index(lengths, [position for position, _ in taps]), weight

    def _taps(self, coordinate: Any, n: int, orders: Sequence[int]) -> list[tuple[Any, list[Any]]]:
        """Return, tap by tap, the positions along an axis of n numbers, and a weight for each order of derivative.

        Args:
            coordinate: from -1 to 1.
            n: the length of the axis.
            orders: of the derivatives.
        """
        scale = (n - 1) / 2 if self.corners else n / 2
        place = (coordinate + 1) * scale if self.corners else ((coordinate + 1) * n - 1) * 0.5
        if self.taps == 4:
            below = np.floor(place)
            positions = [_whole(np.rint(self._inside(below + k, n)), n) for k in range(-1, 3)]
            weights = [
                [w * scale**order if order else w for w in cubic_weights(place - below, order)] for order in orders
            ]
            return [(position, [of[tap] for of in weights]) for tap, position in enumerate(positions)]
        within = self._inside(place, n)
        if self.taps == 1:
            return [(_whole(np.rint(within), n), [None] * len(orders))]
        floor = np.floor(within)
        below, t = _whole(floor, n), within - floor
        rising = [t if order == 0 else self._slope(place, n) * scale if order == 1 else t * 0 for order in orders]
        falling = [1 - t if order == 0 else -weight for order, weight in zip(orders, rising, strict=True)]
        return [(below, falling), (below + 1, rising)]

    def _bounds(self, n: int) -> tuple[float, float]:
        """Return the lowest number that is mirrored at, and the span to the highest."""
        return (0.0, n - 1.0) if self.corners else (-0.5, float(n))

    def _inside(self, place: Any, n: int) -> Any:
        """Return the position within an axis of n numbers that a position is moved to."""
        if self.padding_mode == "zeros":
            return place
        if self.padding_mode == "reflection":
            place = _reflected(place, *self._bounds(n))[0]
        return np.clip(place, 0, n - 1)

    def _slope(self, place: Any, n: int) -> Any:
        """Return the derivative of the position within: 0 at both ends, where the number beyond is that at the end."""
        if self.padding_mode == "zeros":
            return np.ones_like(place)
        sign = np.ones_like(place)
        if self.padding_mode == "reflection":
            place, sign = _reflected(place, *self._bounds(n))
        return np.where((place > 0) & (place < n - 1), sign, np.zeros_like(sign))


def _flat(a: Any, lead: int) -> Any:
    """Return an array with all axes but the first ones as one, also where there is no number."""
    return a.reshape((*a.shape[:lead], math.prod(a.shape[lead:])))


def _flat_index(lengths: tuple[int, ...], positions: Sequence[Any]) -> Any:
    index = positions[0]
    for n, position in zip(lengths[1:], positions[1:], strict=True):
        index = index * n  # and not in one line: a large array takes longer to get than to write
        index += position
    return index


def _product(weights: Sequence[Any]) -> Any:
    """Return the product of those that are not None."""
    given = [weight for weight in weights if weight is not None]
    return math.prod(given[1:], start=given[0]) if given else None


def _whole(values: Any, n: int) -> Any:
    """Return rounded values as integers; those that are far outside or not finite as ones outside."""
    near = np.clip(values, -4, n + 4)
    return np.where(near == near, near, -4.0).astype(np.intp)


def _reflected(place: Any, low: float, span: float) -> tuple[Any, Any]:
    """Reflect positions at both ends until they are between them; return them and the derivative."""
    if span == 0:
        return place * 0, np.zeros_like(place)
    way = place - low
    distance = abs(way)
    times = np.floor(distance / span)
    odd = times % 2
    start = np.where(odd == 0, low - times * span, low + span + times * span).astype(place.dtype)
    direction = (1 - 2 * odd).astype(place.dtype)
    return distance * direction + start, np.sign(way) * direction


# ---------------------------------------------------------------- the ops


def _find_kernel(name: str, grid: Any, lengths: tuple[int, ...], sampling: _Sampling, *arrays: Any) -> Any:
    """Return a kernel of gradmgr-native, which counts in 32 bits, and in float32; None if there is none."""
    fits = max(lengths) < 1 << 24 and math.prod(lengths) < 1 << 31 and not any(sampling.orders)
    return native_kernels.find(name, grid, *arrays) if fits else None


def _run(kernel: Any, arrays: Any, made: Any, channels: int, lengths: tuple[int, ...], sampling: _Sampling) -> Any:
    """Run a kernel on arrays, of which the last is the grid, and return what it has made."""
    axes, corners = len(lengths), float(sampling.corners)
    shape = len(arrays[-1]), channels, *(1,) * (3 - axes), *lengths, math.prod(arrays[-1].shape[1:-1])
    numbers = float(axes), float(sampling.taps), float(_OUTSIDE.index(sampling.padding_mode)), corners
    kernel(*map(native_kernels.contiguous, arrays), made, *shape, *numbers)
    return made


@libraries.keeps_nothing
def _sample_kernel(x: Any, grid: Any, sampling: _Sampling) -> Any:
    """Return the numbers at the positions."""
    lengths, made = x.shape[2:], (*x.shape[:2], *grid.shape[1:-1])
    if (kernel := _find_kernel("grid_sample", grid, lengths, sampling, x)) is not None:
        return _run(kernel, (x, grid), native_kernels.empty(made, x, grid), x.shape[1], lengths, sampling)
    flat, total = _flat(x, 2), None
    for index, weight in sampling.all_taps(grid, lengths):
        part = _read(flat, index)
        part = part if weight is None else part * weight[:, None]
        total = part if total is None else total + part
    return total.reshape(made)  # type: ignore[union-attr]  # there is a tap


@libraries.keeps_nothing
def _spread_kernel(value: Any, grid: Any, lengths: tuple[int, ...], sampling: _Sampling) -> Any:
    """Add each number, times the weights, to those of an image that it is sampled from."""
    made = (*value.shape[:2], *lengths)
    if (kernel := _find_kernel("grid_spread", grid, lengths, sampling, value)) is not None:
        given = value, grid
        return _run(kernel, given, native_kernels.empty(made, *given), value.shape[1], lengths, sampling)
    flat, total = (*value.shape[:2], math.prod(lengths)), None
    value = _flat(value, 2)
    for index, weight in sampling.all_taps(grid, lengths):
        part = scatter(value if weight is None else value * weight[:, None], flat, _of_each_image(index, flat))
        total = part if total is None else total + part
    return total.reshape(made)  # type: ignore[union-attr]  # there is a tap


def _read(flat: Any, index: Any) -> Any:
    """Return elements of flat images, in each channel; of NumPy's arrays in half the time that an index takes."""
    if not flat.__class__ is np.ndarray is index.__class__:
        return libraries.getitem(flat, _of_each_image(index, flat.shape))
    images, channels, size = flat.shape
    first = np.arange(0, flat.size, size).reshape((images, channels, 1))
    return flat.reshape(-1).take(index[:, None] + first)


def _of_each_image(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the index of elements of flat images, in each channel."""
    xp = libraries.namespace(index)
    images, channels = (xp.arange(n) for n in shape[:2])
    return images[:, None, None], channels[:, None], index[:, None]


def _grid_vjp(g: Any, x: Any, grid: Any, sampling: _Sampling) -> Any:
    """Return the cotangent of the positions: for each axis the sum over channels; zeros of those of the nearest."""
    if sampling.taps == 1:
        return plain_zeros(grid)
    lengths = x.shape[2:]
    if (kernel := _find_kernel("grid_slopes", grid, lengths, sampling, g, x)) is not None:
        made = native_kernels.empty(grid.shape, g, x, grid)
        return _run(kernel, (g, x, grid), made, x.shape[1], lengths, sampling)
    if not any(isinstance(t, Tensor) for t in (g, x, grid)):
        return _slopes_by_numpy(g, x, grid, sampling)
    axes = reversed(range(len(lengths)))
    return stack([reduce.sum(g * _sample(x, grid, sampling.derived(axis)), 1) for axis in axes], -1)


def _slopes_by_numpy(g: Any, x: Any, grid: Any, sampling: _Sampling) -> Any:
    """Return what `_grid_vjp` does; each tap is found and read once for all axes."""
    lengths, axes = x.shape[2:], range(x.ndim - 2)
    by_axis = [sampling.taps_of_axis(grid, n, axis, with_slopes=True) for axis, n in enumerate(lengths)]
    flat, g = _flat(x, 2), _flat(g, 2)
    totals: list[Any] = [0] * len(axes)
    for taps in itertools.product(*by_axis):
        index = _flat_index(lengths, [position for position, _ in taps])
        part = np.einsum("ncp,ncp->np", g, _read(flat, index))
        for axis in axes:
            factors = [slope if k == axis else weight for k, (_, (weight, slope)) in enumerate(taps)]
            totals[axis] = totals[axis] + part * _product(factors)
    return np.stack([totals[axis].reshape(grid.shape[:-1]) for axis in reversed(axes)], axis=-1)


def _by_axis(t: Any) -> list[Any]:
    """Return the tangents of positions, axis by axis, each for all channels."""
    return [expand_dims(t[..., k], 1) for k in reversed(range(t.shape[-1]))]


def _sample_jvp_of_grid(t: Any, x: Any, grid: Any, out: Any, sampling: _Sampling) -> Any:
    if sampling.taps == 1:
        return plain_zeros(out)
    parts = [part * _sample(x, grid, sampling.derived(axis)) for axis, part in enumerate(_by_axis(t))]
    return sum(parts[1:], parts[0])


def _spread_jvp_of_grid(t: Any, value: Any, grid: Any, out: Any, lengths: tuple[int, ...], sampling: _Sampling) -> Any:
    if sampling.taps == 1:
        return plain_zeros(out)
    parts = [_spread(value * part, grid, lengths, sampling.derived(axis)) for axis, part in enumerate(_by_axis(t))]
    return sum(parts[1:], parts[0])


_sample: Function = custom(
    "nn.grid_sample",
    _sample_kernel,
    vjp={
        "x": lambda g, grid, shape, sampling: _spread(g, grid, shape[2:], sampling),
        "grid": _grid_vjp,
    },
    jvp={"x": lambda t, grid, sampling: _sample(t, grid, sampling), "grid": _sample_jvp_of_grid},
)
_spread: Function = custom(
    "nn.grid_spread",
    _spread_kernel,
    vjp={
        "value": lambda g, grid, sampling: _sample(g, grid, sampling),
        "grid": lambda g, value, grid, sampling: _grid_vjp(value, g, grid, sampling),
    },
    jvp={
        "value": lambda t, grid, lengths, sampling: _spread(t, grid, lengths, sampling),
        "grid": _spread_jvp_of_grid,
    },
)
