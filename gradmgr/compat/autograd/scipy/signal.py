"""autograd.scipy.signal: `convolve`, with autograd's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp

__all__ = ["convolve"]

Axes = Sequence[Sequence[int]]


def convolve(A: Any, B: Any, axes: Axes | None = None, dot_axes: Axes = ((), ()), mode: str = "full") -> Any:  # noqa: N803  # autograd's names
    """Return the convolution of two arrays along some axes, summed over others.

    Args:
        A: the array.
        B: what it is convolved with.
        axes: the axes of A, and those of B, to convolve along; None for all.
        dot_axes: the axes of A, and those of B, to multiply and sum over.
        mode: "full"; "same", of the sizes of A; or "valid", where one array lies within the other.

    Returns:
        An array with the other axes of A, those of B, and the convolved ones, in this order.

    >>> import numpy as np
    >>> from gradmgr.compat.autograd.scipy.signal import convolve
    >>> convolve(np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0]))
    array([ 1., 12., 23., 30.])

    Raises:
        ValueError: an unknown mode; "valid" where neither array lies within the other.
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolve: mode is 'full', 'same' or 'valid'; found {mode!r}")
    along_a, along_b = [list(range(np.ndim(A)))] * 2 if axes is None else [list(part) for part in axes]
    sizes = [(A.shape[i], B.shape[j]) for i, j in zip(along_a, along_b, strict=True)]
    if mode == "valid" and any(n < k for n, k in sizes):
        if any(n > k for n, k in sizes):
            raise ValueError(f"convolve: with mode='valid' one array must lie within the other; found sizes {sizes}")
        made = convolve(B, A, (along_b, along_a), dot_axes[::-1], mode)
        others = (np.ndim(B) - len(along_b) - len(dot_axes[1]), np.ndim(A) - len(along_a) - len(dot_axes[0]))
        return gnp.moveaxis(made, range(others[0]), range(others[1], sum(others)))
    padding = [(0, 0)] * np.ndim(A)
    for i, (_, k) in zip(along_a, sizes, strict=True):
        after = {"full": k - 1, "same": (k - 1) // 2, "valid": 0}[mode]
        padding[i] = (k - 1 - after if mode == "same" else after, after)
    windows = np.lib.stride_tricks.sliding_window_view(gnp.pad(A, padding), [k for _, k in sizes], axis=tuple(along_a))
    return _products(windows, B, (along_a, along_b), dot_axes)


def _products(windows: Any, b: Any, axes: Axes, dot_axes: Axes) -> Any:
    """Multiply the windows, whose last axes lie within them, with what is convolved with, reversed."""
    count = np.ndim(windows) - len(axes[0])  # the axes of A
    reversed_b = b[tuple([slice(None, None, -1) if j in axes[1] else slice(None) for j in range(np.ndim(b))])]
    of_windows = list(range(np.ndim(windows)))
    of_b = [len(of_windows) + j for j in range(np.ndim(b))]
    for k, j in enumerate(axes[1]):
        of_b[j] = count + k
    for i, j in zip(*dot_axes, strict=True):
        of_b[j] = of_windows[i]
    left_a = [i for i in range(count) if i not in axes[0] and i not in dot_axes[0]]
    left_b = [of_b[j] for j in range(np.ndim(b)) if j not in axes[1] and j not in dot_axes[1]]
    return gnp.einsum(windows, of_windows, reversed_b, of_b, [*left_a, *left_b, *axes[0]])
