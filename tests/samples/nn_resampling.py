"""Samples of pad, interpolate, grid_sample and affine_grid, against NumPy's functions and loops over positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from samples._table import ANALYTIC, Arg, Array, add, given, wide


def _add(
    name: str, case: str, call: Callable[..., Any], reference: Callable[..., Any], *args: Arg, **facts: Any
) -> None:
    add(f"nn.{name}", case, lambda xp, *given: call(*given), *args, reference=reference, dispatches=False, **facts)


# ---------------------------------------------------------------- pad

for _mode, _widths, _by_axis, _name in (
    ("constant", (1, 2), ((0, 0), (1, 2)), "constant"),
    ("reflect", (1, 2, 2, 0), ((2, 0), (1, 2)), "reflect"),
    ("replicate", (1, 0, 0, 3), ((0, 3), (1, 0)), "edge"),
    ("circular", (3, 1), ((0, 0), (3, 1)), "wrap"),
):
    _add(
        "pad",
        _mode,
        lambda x, widths=_widths, mode=_mode: F.pad(x, widths, mode),
        lambda x, widths=_by_axis, name=_name: np.pad(x, widths, name),
        Arg((3, 4)),
        **ANALYTIC,
    )
_add(
    "pad",
    "cut off at one end, with a value",
    lambda x: F.pad(x, (-1, 2), value=1.5),
    lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2)), constant_values=1.5),
    Arg((3, 4)),
    **ANALYTIC,
)

# ---------------------------------------------------------------- interpolate


def linearly(x: Array, count: int, align_corners: bool) -> Array:
    """The last axis, by numpy.interp."""
    n, dtype = x.shape[-1], x.dtype
    places = np.linspace(0, n - 1, count) if align_corners else (np.arange(count) + 0.5) * n / count - 0.5
    weights = np.array([np.interp(places, np.arange(n), row) for row in np.eye(n)])
    return (wide(x) @ weights.astype(wide(x.real).dtype)).astype(dtype)


def on_planes(x: Array, along: Callable[[Array, int], Array], counts: tuple[int, ...]) -> Array:
    """A function of the last axis, along each of the last axes."""
    for axis, count in enumerate(counts, -len(counts)):
        x = np.moveaxis(along(np.moveaxis(x, axis, -1), count), -1, axis)
    return x


def cubically(x: Array, count: int) -> Array:
    """The last axis, by the convolution with Keys' kernel, where the edges are repeated."""

    def kernel(d: float) -> float:
        d = abs(d)
        near = 1.25 * d**3 - 2.25 * d**2 + 1
        return near if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0

    n, weights = x.shape[-1], np.zeros((x.shape[-1], count))
    for k in range(count):
        place = (k + 0.5) * n / count - 0.5
        for j in range(-3, n + 3):
            weights[min(max(j, 0), n - 1), k] += kernel(place - j)
    return (wide(x) @ weights.astype(wide(x.real).dtype)).astype(x.dtype)


_PLANES = Arg((2, 1, 3, 4))
_add(
    "interpolate",
    "nearest",
    lambda x: F.interpolate(x, scale_factor=(2, 3)),
    lambda x: x.repeat(2, 2).repeat(3, 3),
    _PLANES,
    **ANALYTIC,
)
_add("interpolate", "nearest, fewer", lambda x: F.interpolate(x, 2), lambda x: x[:, :, [0, 1]][..., [0, 2]], _PLANES)
_add(
    "interpolate",
    "nearest-exact",
    lambda x: F.interpolate(x, 2, mode="nearest-exact"),
    lambda x: x[..., [0, 2]],
    Arg((1, 2, 3)),
)
for _corners in (False, True):
    _add(
        "interpolate",
        f"linear, align_corners={_corners}",
        lambda x, c=_corners: F.interpolate(x, 7, mode="linear", align_corners=c),
        lambda x, c=_corners: linearly(x, 7, c),
        Arg((2, 1, 3)),
        **ANALYTIC,
    )
_add(
    "interpolate",
    "bilinear",
    lambda x: F.interpolate(x, (5, 2), mode="bilinear"),
    lambda x: on_planes(x, lambda v, n: linearly(v, n, False), (5, 2)),
    _PLANES,
)
_add(
    "interpolate",
    "trilinear",
    lambda x: F.interpolate(x, (1, 3, 4), mode="trilinear", align_corners=True),
    lambda x: on_planes(x, lambda v, n: linearly(v, n, True), (1, 3, 4)),
    Arg((1, 2, 1, 2, 3)),
)
_add(
    "interpolate",
    "bicubic",
    lambda x: F.interpolate(x, (5, 3), mode="bicubic"),
    lambda x: on_planes(x, cubically, (5, 3)),
    _PLANES,
)
_add(
    "interpolate",
    "area",
    lambda x: F.interpolate(x, (2, 2), mode="area"),
    lambda x: np.stack(
        [wide(x)[:, :, a : a + 2].reshape(2, 1, 2, 2, 2).mean((2, 4)) for a in (0, 1)], 2
    ).astype(x.dtype),
    _PLANES,
)  # fmt: skip

# ---------------------------------------------------------------- affine_grid, grid_sample


def affine(theta: Array, lengths: tuple[int, ...], align_corners: bool) -> Array:
    """The maps applied to each position by itself."""
    z = np.zeros((len(theta), *lengths, len(lengths)), theta.dtype)
    for place in np.ndindex(*lengths):
        point = []
        for k, n in zip(place, lengths, strict=True):
            point.append((2 * k / max(n - 1, 1) - (n > 1)) if align_corners else (2 * k + 1) / n - 1)
        z[(slice(None), *place)] = wide(theta) @ np.array([*point[::-1], 1], wide(theta.real).dtype)
    return z


for _corners, _lengths in ((False, (2, 3)), (True, (1, 3)), (True, (2, 2, 3))):
    _add(
        "affine_grid",
        f"align_corners={_corners}, {len(_lengths)} axes",
        lambda t, c=_corners, n=_lengths: F.affine_grid(t, (2, 1, *n), c),
        lambda t, c=_corners, n=_lengths: affine(t, n, c),
        Arg((2, len(_lengths), len(_lengths) + 1)),
    )


def reflected(place: float, low: float, high: float) -> float:
    """A position, mirrored at both ends."""
    while not low <= place <= high and high > low:
        place = 2 * low - place if place < low else 2 * high - place
    return place if high > low else low


def sampled(x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool) -> Array:
    """Every number of the result by itself: from the corners of the cell around its position."""
    dtype, lengths = np.result_type(x, grid), x.shape[2:]
    x, grid = wide(x), wide(grid)
    z = np.zeros((*x.shape[:2], *grid.shape[1:-1]), np.result_type(x, grid))
    for b, *at in np.ndindex(*grid.shape[:-1]):
        places = []
        for n, v in zip(lengths, grid[(b, *at)][::-1], strict=True):
            place = (v + 1) / 2 * (n - 1) if align_corners else ((v + 1) * n - 1) / 2
            if padding_mode == "reflection":
                place = reflected(place, *((0, n - 1) if align_corners else (-0.5, n - 0.5)))
            places.append(place if padding_mode == "zeros" else min(max(place, 0), n - 1))
        if mode == "nearest":
            corners = [[(int(np.rint(p)), 1.0)] for p in places]
        else:
            corners = [[(int(np.floor(p)) + k, abs(1 - k - (p - np.floor(p)))) for k in (0, 1)] for p in places]
        for corner in itertools.product(*corners):
            index = tuple([k for k, _ in corner])
            if all(0 <= k < n for k, n in zip(index, lengths, strict=True)):
                z[(b, slice(None), *at)] += x[(b, slice(None), *index)] * np.prod([w for _, w in corner])
    return z.astype(dtype)


for _mode, _padding_mode, _corners in (
    ("bilinear", "zeros", False),
    ("bilinear", "border", True),
    ("bilinear", "reflection", False),
    ("bilinear", "reflection", True),
    ("nearest", "zeros", False),
):
    _add(
        "grid_sample",
        f"{_mode}, {_padding_mode}, align_corners={_corners}",
        lambda x, g, o=(_mode, _padding_mode, _corners): F.grid_sample(x, g, *o),
        lambda x, g, o=(_mode, _padding_mode, _corners): sampled(x, g, *o),
        Arg((2, 2, 3, 4)),
        Arg((2, 2, 2, 2), -1.4, 1.4),
    )
_add(
    "grid_sample",
    "volumes",
    lambda x, g: F.grid_sample(x, g, align_corners=True),
    lambda x, g: sampled(x, g, "bilinear", "zeros", True),
    Arg((1, 2, 2, 3, 2)),
    Arg((1, 1, 2, 2, 3), -1.2, 1.2),
)
_add(
    "grid_sample",
    "bicubic at even positions, as interpolate",
    lambda x, g: F.grid_sample(x, g, "bicubic", "border"),
    lambda x, g: on_planes(x, cubically, (5, 5)),
    Arg((1, 2, 3, 3)),
    given(np.stack(np.meshgrid(*2 * [np.arange(-4, 5, 2) / 5]), -1)[None]),
)
