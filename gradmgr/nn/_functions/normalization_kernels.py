"""Normalisation by kernels of gradmgr-native, and its gradients, for the ops in `normalization` that keep their input.

The normalised values are computed again in the backward pass: to write them beside the result, into fresh memory, takes
as long as all the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import native_kernels
from gradmgr.nn._functions.normalization_blocks import SIZE, Layout

Array = Any


def find(name: str, layout: Layout, *arrays: Array) -> Any:
    """Return the kernel `name` for arrays, which may be None; None where there is none, or it is not faster."""
    is_long = name.startswith("norm_rows") or layout.by_weight[2] >= SIZE
    return native_kernels.find(name, *arrays) if is_long else None


def normalise(
    name: str, x: Array, weight: Array, bias: Array, layout: Layout, eps: float, centred: bool
) -> tuple[Array, ...] | None:
    """Return the result, mean and 1/std, and of channels the variance; None where there is no kernel."""
    kernel = find(name, layout, x, weight, bias)
    if kernel is None:
        return None
    statistics = [layout.by_statistic[1:2]] * (kernel.writes - 1)
    made = tuple([native_kernels.empty(shape, x, weight, bias) for shape in (x.shape, *statistics)])
    given = [native_kernels.contiguous(x if z is None else z) for z in (x, weight, bias)]
    numbers = eps, float(weight is not None), float(bias is not None), float(centred)
    kernel(*given, *made, *_lengths(name, layout), *numbers)
    return made


def slopes(
    name: str, g: Array, weight: Array, x: Array, mean: Array, rstd: Array, layout: Layout, centred: bool
) -> tuple[Array, Array, Array] | None:
    """Return the cotangents of x, weight and bias, for that of the result; None where there is no kernel."""
    kernel = find(f"{name}_vjp", layout, g, weight, x, mean, rstd)
    if kernel is None:
        return None
    shapes = {
        "norm_rows": [(2, *layout.by_weight[2:])] * 2,  # of which the second is scratch
        "norm_groups": [(2, *layout.by_weight[:2])],
        "norm_channels": [layout.by_weight[1:2]] * 2,
    }[name]
    dx, *sums = [native_kernels.empty(shape, g, weight, x) for shape in (g.shape, *shapes)]
    given = [native_kernels.contiguous(g if z is None else z) for z in (g, weight, x, mean, rstd)]
    kernel(*given, dx, *sums, *_lengths(name, layout), float(weight is not None), float(centred))
    if name == "norm_channels":
        return dx, *sums
    both = sums[0] if name == "norm_rows" else np.add.reduce(sums[0], axis=1)
    return dx, both[0], both[1]


def _lengths(name: str, layout: Layout) -> tuple[int, ...]:
    """Return the lengths that a kernel is given."""
    if name == "norm_channels":
        return layout.by_statistic
    _, rows, columns = layout.by_statistic
    if name == "norm_rows":
        return rows, columns
    _, channels, size = layout.by_weight
    return rows, columns // size, size, channels
