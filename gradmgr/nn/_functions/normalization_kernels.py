"""Normalisation by kernels of gradmgr-native, and its gradients, for the ops in `normalization` that keep their input.

The normalised values are computed again in the backward pass: to write them beside the result, into fresh memory, takes
as long as all the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import native_kernels
from gradmgr._arrays.memory_order import with_channels_last
from gradmgr.nn._functions.normalization_blocks import SIZE, Layout

Array = Any


def find(name: str, layout: Layout, *arrays: Array) -> Any:
    """Return the kernel `name` for arrays, which may be None; None if there is none, or it is not faster."""
    is_long = name.startswith(("norm_rows", "norm_columns")) or layout.by_weight[2] >= SIZE
    return native_kernels.find(name, *arrays) if is_long else None


def name_for(name: str, x: Array, layout: Layout) -> str:
    """Return the name of the kernel for an array in its order in memory.

    Channels that are last, as those of (N, C) are, are columns of a matrix.
    """
    are_last = layout.by_statistic[2] == 1 or with_channels_last(x) is not None
    return "norm_columns" if name == "norm_channels" and are_last else name


class _Images:
    """How a kernel reads and writes images: in C order, or where they are rows of channels, with the channels last."""

    def __init__(self, name: str, x: Array) -> None:
        self.like = x if name == "norm_columns" and with_channels_last(x) is not None else None

    def given(self, a: Array) -> Array:
        """Return a view or copy of an array of the shape of x."""
        return native_kernels.contiguous(a if self.like is None else a.transpose(0, *range(2, a.ndim), 1))

    def empty(self, x: Array, *others: Array) -> Array:
        """Return a new array of that shape, captured where one of these arrays is."""
        if self.like is None:
            return native_kernels.empty(x.shape, x, *others)
        return native_kernels.empty_like(self.like, x, *others)


def normalise(
    name: str, x: Array, weight: Array, bias: Array, layout: Layout, eps: float, centred: bool
) -> tuple[Array, ...] | None:
    """Return the result, mean and 1/std, and of channels the variance; None if there is no kernel."""
    name = name_for(name, x, layout)
    kernel = find(name, layout, x, weight, bias)
    if kernel is None:
        return None
    images, affine = _Images(name, x), [x if z is None else native_kernels.contiguous(z) for z in (weight, bias)]
    y = images.empty(x, weight, bias)
    statistics = [native_kernels.empty(layout.by_statistic[1:2], x, weight, bias) for _ in range(kernel.writes - 1)]
    numbers = eps, float(weight is not None), float(bias is not None), float(centred)
    kernel(images.given(x), *affine, images.given(y), *statistics, *_lengths(name, layout), *numbers)
    return y, *statistics


def slopes(
    name: str, g: Array, weight: Array, x: Array, mean: Array, rstd: Array, layout: Layout, centred: bool
) -> tuple[Array, Array, Array] | None:
    """Return the cotangents of x, weight and bias, for that of the result; None if there is no kernel."""
    name, weighs = name_for(name, x, layout), weight is not None
    kernel = find(f"{name}_vjp", layout, g, weight, x, mean, rstd)
    if kernel is None:
        return None
    shapes = {
        "norm_rows": [(2, *layout.by_weight[2:])] * 2,  # of which the second is scratch
        "norm_groups": [(2, *layout.by_weight[:2])],
        "norm_channels": [layout.by_weight[1:2]] * 2,
        "norm_columns": [layout.by_weight[1:2]] * 2,
    }[name]
    images = _Images(name, x)
    dx = images.empty(x, g, weight)
    sums = [native_kernels.empty(shape, g, weight, x) for shape in shapes]
    weight = g if weight is None else native_kernels.contiguous(weight)
    given = images.given(g), weight, images.given(x), *map(native_kernels.contiguous, (mean, rstd)), images.given(dx)
    kernel(*given, *sums, *_lengths(name, layout), float(weighs), float(centred))
    if name in ("norm_channels", "norm_columns"):
        return dx, *sums
    both = sums[0] if name == "norm_rows" else np.add.reduce(sums[0], axis=1)
    return dx, both[0], both[1]


def _lengths(name: str, layout: Layout) -> tuple[int, ...]:
    """Return the lengths that a kernel is given."""
    images, channels, values = layout.by_statistic
    if name == "norm_channels":
        return layout.by_statistic
    if name == "norm_columns":
        return images * values, channels
    if name == "norm_rows":
        return channels, values
    _, channels, size = layout.by_weight
    return layout.by_statistic[1], values // size, size, channels
