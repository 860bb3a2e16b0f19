"""Histograms: constants, except for the weights, into which gradients flow."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import cast, is_complex
from gradmgr._engine.indexing import getitem, scatter
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.constant import constant
from gradmgr.ops.convert import cast_to, holds_tensor, is_plain, library_of, lift
from gradmgr.ops.reduce import sum as sum_of
from gradmgr.ops.reduction_arguments import count_along
from gradmgr.ops.shape import ravel, reshape

_untyped: Any = np  # the stubs of NumPy 2.5 take no density of which only the type is known


def _bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    if libraries.namespace(a) is np:
        return np.histogram_bin_edges(a, bins, range, weights)
    return np.histogram(a, bins, range)[1]  # CuPy has no histogram_bin_edges


_bin_edges.__name__ = "histogram_bin_edges"
histogram_bin_edges = constant(_bin_edges)
digitize = constant(np.digitize, 2)


def _values_of(a: Any) -> Any:
    """Strip the Tensors in nested lists and tuples to their arrays."""
    if isinstance(a, (list, tuple)):
        return type(a)([_values_of(part) for part in a])
    libraries.check_plain(a)
    return raw(a)


def _edges_of(bins: Any, points: Any) -> Any:
    """Return edges in a list as an array on the device of the points; a number of bins as it is."""
    if not isinstance(bins, (list, tuple)):
        return raw(bins)
    return library_of(*points).asarray(_values_of(bins)) if isinstance(points, list) else _edges_of(bins, [points])


def _edges_by_axis(bins: Any, points: Any) -> Any:
    return [_edges_of(part, points) for part in bins] if isinstance(bins, (list, tuple)) else raw(bins)


def _flat_values(a: Any) -> Any:
    return (a if libraries.is_array(a) else np.asarray(a)).ravel()


def _weighted_counts(weights: Any, samples: list[Any], edges: Any) -> Any:
    """Add up the weights in each bin. A bin holds its left edge, the last one its right edge too."""
    xp, shape = libraries.namespace(samples[0]), tuple([len(edge) - 1 for edge in edges])
    inside, place = xp.ones(samples[0].shape, dtype=bool), xp.zeros(samples[0].shape, dtype=np.intp)
    for values, edge, count in zip(samples, edges, shape, strict=True):
        k = np.searchsorted(edge, values, side="right") - 1 - (values == edge[-1])
        inside = inside & (k >= 0) & (k < count)
        place = place * count + k
    wide = cast(ravel(weights), np.dtype(np.complex128 if is_complex(weights) else np.float64))
    bins = count_along(shape, tuple(range(len(shape))))
    # What is outside goes into a bin more: inside vmap, a mask would choose another number of weights in each example.
    sums = scatter(wide, (bins + 1,), np.where(inside, place, bins))
    return reshape(getitem(sums, slice(0, bins)), shape)


def _divide_by_volume(counts: Any, edges: Any) -> Any:
    z = counts
    for k, edge in enumerate(edges):
        z = z / np.diff(edge).astype(np.float64).reshape([-1 if j == k else 1 for j in range(counts.ndim)])
    return z / sum_of(counts)


def _as_histogram(counts: Any, samples: list[Any], edges: Any, density: Any, weights: Any, dtype: Any) -> Any:
    """Wrap NumPy's counts; compute them again, recorded, where weights can carry a gradient."""
    if not (isinstance(weights, Tensor) and libraries.is_differentiable(weights.dtype)):
        return wrap(counts)
    summed = cast_to(_weighted_counts(weights, samples, edges), dtype)
    return cast_to(_divide_by_volume(summed, edges), counts.dtype) if density else summed


def histogram(a: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None) -> Any:
    """Count as `numpy.histogram`: a constant, except for the weights, into which gradients flow."""
    if is_plain(a, bins, range, weights):
        return _untyped.histogram(a, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    values = _values_of(a)
    counts, edges = _untyped.histogram(
        values, _edges_of(bins, values), _values_of(range), density=density, weights=_values_of(weights)
    )
    dtype = getattr(weights, "dtype", None)
    return _as_histogram(counts, [_flat_values(values)], [edges], density, weights, dtype), wrap(edges)


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> Any:
    """Count as `numpy.histogram2d`: a constant, except for the weights, into which gradients flow."""
    if is_plain(x, y, bins, range, weights):
        return np.histogram2d(x, y, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    points = [_values_of(x), _values_of(y)]
    both = isinstance(bins, (list, tuple)) and len(bins) == 2
    edges_of = _edges_by_axis(bins, points) if both else _edges_of(bins, points)
    settings: Any = {"bins": edges_of, "range": _values_of(range), "density": density, "weights": _values_of(weights)}
    counts, *edges = np.histogram2d(*points, **settings)
    samples = [_flat_values(part) for part in points]
    counts = _as_histogram(counts, samples, edges, density, weights, np.float64)
    return (counts, *[wrap(edge) for edge in edges])


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> Any:
    """Count as `numpy.histogramdd`: a constant, except for the weights, into which gradients flow."""
    if is_plain(sample, bins, range, weights):
        return np.histogramdd(sample, bins, range, density=density, weights=weights)
    weights = lift(weights) if holds_tensor(weights) else weights
    points = _values_of(sample)
    counts, edges = np.histogramdd(
        points, _edges_by_axis(bins, points), _values_of(range), density=density, weights=_values_of(weights)
    )
    if not libraries.is_array(points):
        samples = [_flat_values(part) for part in points]  # a sequence holds one array an axis
    else:
        samples = [points] if points.ndim == 1 else list(points.T)
    counts = _as_histogram(counts, samples, edges, density, weights, np.float64)
    return counts, [wrap(edge) for edge in edges]
