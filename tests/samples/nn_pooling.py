"""Samples of pooling, against loops over windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.libraries import device_of, to_device
from gradmgr._engine.tensor import raw
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import pooling
from samples._table import Arg, Array, add, at


def windows(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[list[int]]:
    """The positions in each window of an axis; negative or beyond it in the padding."""
    over = n + 2 * padding - dilation * (kernel - 1) - 1
    count = (math.ceil if ceil_mode else math.floor)(over / stride) + 1
    begins = [k * stride - padding for k in range(count)]
    if ceil_mode and begins[-1] >= n:
        del begins[-1]
    return [[begin + k * dilation for k in range(kernel)] for begin in begins]


def pooled(
    x: Array,
    of_window: Callable[[Array, int], Any],
    kernel: Any,
    stride: Any = None,
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    ceil_mode: bool = False,
) -> Array:
    """What a function gives of each window: of what is in it, and how many numbers and zeros of padding are."""
    stride = kernel if stride is None else stride
    facts = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    rows, columns = (windows(*fact, ceil_mode) for fact in facts)
    z = np.zeros((*x.shape[:2], len(rows), len(columns)), x.dtype)
    for i, down in enumerate(rows):
        for j, right in enumerate(columns):
            inside = [[k for k in along if 0 <= k < n] for along, n in zip((down, right), x.shape[2:], strict=True)]
            reached = [
                sum(-p <= k < n + p for k in along)
                for along, n, p in zip((down, right), x.shape[2:], padding, strict=True)
            ]
            part = x[:, :, inside[0]][..., inside[1]].reshape((*x.shape[:2], len(inside[0]) * len(inside[1])))
            z[:, :, i, j] = of_window(part, reached[0] * reached[1])
    return z


def largest(part: Array, count: int) -> Array:
    """The largest of a window."""
    return part.max(-1)


def mean(part: Array, count: int) -> Array:
    """The mean of a window, its zeros counted."""
    return part.sum(-1, dtype=np.result_type(part, np.float32)) / count


def _add(name: str, case: str, call: Callable[..., Any], reference: Callable[..., Any], x: Arg) -> None:
    add(f"nn.{name}", case, lambda xp, x: call(x), x, reference=reference, dispatches=False)


_X = Arg((2, 2, 4, 5))
for _name, _of in (("max_pool2d", largest), ("avg_pool2d", mean)):
    _function = getattr(F, _name)
    _add(_name, "apart", lambda x, f=_function: f(x, 2), lambda x, of=_of: pooled(x, of, (2, 2)), _X)
    _add(
        _name,
        "overlapping, padding",
        lambda x, f=_function: f(x, (3, 2), (1, 2), 1),
        lambda x, of=_of: pooled(x, of, (3, 2), (1, 2), (1, 1)),
        Arg((1, 2, 4, 3)),
    )
    _add(
        _name,
        "up to the end, without a batch",
        lambda x, f=_function: f(x, 2, (3, 2), ceil_mode=True),
        lambda x, of=_of: pooled(x[None], of, (2, 2), (3, 2), ceil_mode=True)[0],
        Arg((2, 4, 5)),
    )
    _add(
        _name, "empty batch", lambda x, f=_function: f(x, 2), lambda x, of=_of: pooled(x, of, (2, 2)), Arg((0, 2, 4, 4))
    )
_add(
    "max_pool2d",
    "dilation",
    lambda x: F.max_pool2d(x, 2, 1, (1, 0), (2, 3)),
    lambda x: pooled(x, largest, (2, 2), (1, 1), (1, 0), (2, 3)),
    Arg((1, 2, 3, 4)),
)
_add(
    "max_pool2d",
    "with indices",
    lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    lambda x: pooled(x, largest, (2, 2)),
    at([[[[0.1, 0.4, -0.3, -0.2], [0.9, 0.2, -0.5, -0.4]]]]),
)
_add(
    "avg_pool2d",
    "numbers only, at the edges",
    lambda x: F.avg_pool2d(x, 2, 2, 1, count_include_pad=False),
    lambda x: pooled(x, lambda part, count: mean(part, part.shape[-1]), (2, 2), (2, 2), (1, 1)),
    Arg((1, 2, 3, 4)),
)
_add(
    "avg_pool2d",
    "another divisor",
    lambda x: F.avg_pool2d(x, (1, 3), divisor_override=2),
    lambda x: pooled(x, lambda part, count: mean(part, 2), (1, 3)),
    Arg((1, 2, 2, 6)),
)
_add("avg_pool2d", "whole planes", lambda x: F.avg_pool2d(x, (4, 5)), lambda x: pooled(x, mean, (4, 5)), _X)
for _name, _of in (("max_pool1d", largest), ("avg_pool1d", mean)):
    _function = getattr(F, _name)
    _add(
        _name,
        "overlapping, padding",
        lambda x, f=_function: f(x, 3, 2, 1),
        lambda x, of=_of: pooled(x[:, :, None], of, (1, 3), (1, 2), (0, 1))[:, :, 0],
        Arg((2, 2, 6)),
    )


def evenly(x: Array, rows: int, columns: int) -> Array:
    """Means of windows that overlap where the numbers do not divide."""
    of = [
        [(k * n // m, -(-(k + 1) * n // m)) for k in range(m)]
        for n, m in zip(x.shape[-2:], (rows, columns), strict=True)
    ]
    return np.stack([np.stack([x[..., a:b, c:d].mean((-2, -1)) for c, d in of[1]], -1) for a, b in of[0]], -2)


_add("adaptive_avg_pool2d", "apart", lambda x: F.adaptive_avg_pool2d(x, (2, None)), lambda x: evenly(x, 2, 5), _X)
_add(
    "adaptive_avg_pool2d",
    "overlapping",
    lambda x: F.adaptive_avg_pool2d(x, 3),
    lambda x: evenly(x, 3, 3),
    Arg((2, 4, 5)),
)

# ---------------------------------------------------------------- what only second derivatives call

_TAPS = np.array([[[[0, 3], [2, 1]]]], np.uint8)
_HALVES = pooling._windows("max_pool2d", 2, np.zeros((1, 1, 4, 4)), 2, None, 0, 1, False)


def _placed(taps: Array, x: Any) -> Array:
    """The same where x lives."""
    return to_device(taps, device_of(raw(x)))


def _named_taps(x: Array) -> Array:
    by_window = x.reshape(1, 1, 2, 2, 2, 2).swapaxes(3, 4).reshape(1, 1, 2, 2, 4)
    return np.take_along_axis(by_window, _TAPS[..., None].astype(int), -1)[..., 0]


add(
    "engine.max_pool2d_pick",
    "named taps",
    lambda xp, x: pooling._pick(x, _placed(_TAPS, x), _HALVES),
    Arg((1, 1, 4, 4)),
    reference=_named_taps,
    dispatches=False,
)
