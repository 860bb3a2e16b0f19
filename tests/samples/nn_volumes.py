"""Samples of convolution, pooling and normalisation of volumes, against loops over taps and windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from samples._table import ANALYTIC, Arg, Array, add, wide


def _add(name: str, case: str, call: Any, reference: Any, *args: Arg, **facts: Any) -> None:
    add(f"nn.{name}", case, lambda xp, *given: call(*given), *args, reference=reference, dispatches=False, **facts)


def conv(x: Array, w: Array, b: Array | None, stride: Any, padding: Any, dilation: Any) -> Array:
    """Cross-correlate volumes, one tap after the other."""
    dtype = x.dtype
    x, w = wide(x), wide(w)
    x = np.pad(x, ((0, 0), (0, 0), *[(p, p) for p in padding]))
    counts = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    z = np.zeros((x.shape[0], w.shape[0], *counts), np.result_type(x, w))
    for tap in np.ndindex(*w.shape[2:]):
        facts = zip(tap, counts, stride, dilation, strict=True)
        part = x[(..., *[slice(k * d, k * d + s * (n - 1) + 1, s) for k, n, s, d in facts])]
        z += np.einsum("ncdhw,oc->nodhw", part, w[(..., *tap)])
    return (z if b is None else z + wide(b)[:, None, None, None]).astype(dtype)


def conv_transpose(x: Array, w: Array, stride: Any, padding: Any, more: Any) -> Array:
    """Put a kernel into the result for each number, one tap after the other, and cut the edges off."""
    dtype = x.dtype
    x, w = wide(x), wide(w)
    full = [(n - 1) * s + k + m for n, s, k, m in zip(x.shape[2:], stride, w.shape[2:], more, strict=True)]
    z = np.zeros((x.shape[0], w.shape[1], *full), np.result_type(x, w))
    for tap in np.ndindex(*w.shape[2:]):
        places = [slice(k, k + s * (n - 1) + 1, s) for k, s, n in zip(tap, stride, x.shape[2:], strict=True)]
        z[(..., *places)] += np.einsum("ncdhw,co->nodhw", x, w[(..., *tap)])
    return z[(..., *[slice(p, n - p) for p, n in zip(padding, full, strict=True)])].astype(dtype)


_add(
    "conv3d",
    "strides, padding, dilation",
    lambda x, w, b: F.conv3d(x, w, b, (2, 1, 1), (1, 0, 1), (1, 2, 1)),
    lambda x, w, b: conv(x, w, b, (2, 1, 1), (1, 0, 1), (1, 2, 1)),
    Arg((2, 2, 3, 3, 3)),
    Arg((3, 2, 2, 2, 1)),
    Arg((3,)),
    **ANALYTIC,
)
_add(
    "conv3d",
    "groups, without a batch",
    lambda x, w: F.conv3d(x, w, groups=2, padding="same"),
    lambda x, w: np.concatenate(
        [conv(x[None, k : k + 1], w[k : k + 1], None, (1, 1, 1), (1, 0, 1), (1, 1, 1))[0] for k in (0, 1)]
    ),
    Arg((2, 2, 2, 3)),
    Arg((2, 1, 3, 1, 3)),
)
_add(
    "conv_transpose3d",
    "strides, padding",
    lambda x, w: F.conv_transpose3d(x, w, None, (2, 1, 2), (1, 0, 1), (1, 0, 0)),
    lambda x, w: conv_transpose(x, w, (2, 1, 2), (1, 0, 1), (1, 0, 0)),
    Arg((1, 2, 2, 2, 2)),
    Arg((2, 2, 3, 2, 2)),
    **ANALYTIC,
)


def _with_bias(x: Array, w: Array, b: Array) -> Array:
    z = wide(conv_transpose(x[None], w, (1, 1, 1), (0, 0, 0), (0, 0, 0)))[0]
    return (z + wide(b)[:, None, None, None]).astype(x.dtype)


_add(
    "conv_transpose3d",
    "bias, without a batch",
    F.conv_transpose3d,
    _with_bias,
    Arg((1, 2, 1, 2)),
    Arg((1, 2, 2, 1, 2)),
    Arg((2,)),
)


def pooled(x: Array, windows: list[list[tuple[int, int]]], of: Callable[..., Any]) -> Array:
    """A function of each window, which is given by its begin and end on each of the last axes."""
    lead = x.shape[: x.ndim - len(windows)]
    z = np.zeros((*lead, *map(len, windows)), x.dtype)
    for at in itertools.product(*[range(len(along)) for along in windows]):
        part = x[(..., *[slice(*along[k]) for k, along in zip(at, windows, strict=True)])]
        z[(..., *at)] = of(wide(part.reshape((*lead, -1))), -1)
    return z


def evenly(n: int, count: int) -> list[tuple[int, int]]:
    """The windows of an axis that are as many as asked for."""
    return [(k * n // count, -(-(k + 1) * n // count)) for k in range(count)]


def sliding(n: int, kernel: int, stride: int) -> list[tuple[int, int]]:
    """The windows of an axis without padding."""
    return [(k, k + kernel) for k in range(0, n - kernel + 1, stride)]


_VOLUMES = Arg((1, 2, 3, 4, 3))
for _name, _of in (("max_pool3d", np.max), ("avg_pool3d", np.mean)):
    _function = getattr(F, _name)
    _add(
        _name,
        "overlapping",
        lambda x, f=_function: f(x, 2, (1, 2, 1)),
        lambda x, of=_of: pooled(x, [sliding(n, 2, s) for n, s in zip(x.shape[2:], (1, 2, 1), strict=True)], of),
        _VOLUMES,
    )
_add(
    "avg_pool3d",
    "padding, another divisor, without a batch",
    lambda x: F.avg_pool3d(x, 2, padding=1, divisor_override=3),
    lambda x: pooled(
        np.pad(x, ((0, 0), (1, 1), (1, 1), (1, 1))),
        [sliding(n + 2, 2, 2) for n in x.shape[1:]],
        lambda a, k: a.sum(k) / 3,
    ),
    Arg((2, 2, 3, 2)),
)


def means(x: Array, counts: tuple[int, ...]) -> Array:
    """Means of windows, axis by axis."""
    z = wide(x)
    for axis, count in enumerate(counts, 2):
        z = np.stack([z.take(range(*window), axis).mean(axis) for window in evenly(z.shape[axis], count)], axis)
    return z.astype(x.dtype)


for _kind, _axes in (("avg", 1), ("avg", 3), ("max", 1), ("max", 2), ("max", 3)):
    _name, _counts = f"adaptive_{_kind}_pool{_axes}d", (2, 3, 1)[:_axes]
    _function = getattr(F, _name)
    _add(
        _name,
        "overlapping",
        lambda x, f=_function, c=_counts: f(x, c),
        (lambda x, c=_counts: means(x, c))
        if _kind == "avg"
        else (lambda x, c=_counts: pooled(x, list(map(evenly, x.shape[2:], c)), np.max)),
        Arg((1, 2, 3, 5, 2)[: 2 + _axes]),
    )


def normalised(x: Array, w: Array, b: Array) -> Array:
    """Each channel of each example by itself."""
    axes = tuple(range(2, x.ndim))
    v, shape = wide(x), (-1, *[1] * len(axes))
    z = (v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + 1e-5)
    return (z * wide(w).reshape(shape) + wide(b).reshape(shape)).astype(x.dtype)


_add(
    "instance_norm",
    "weight and bias",
    lambda x, w, b: F.instance_norm(x, None, None, w, b),
    normalised,
    Arg((2, 2, 3, 2)),
    Arg((2,)),
    Arg((2,)),
)
