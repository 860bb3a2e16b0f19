"""Dropout, with random numbers from a Generator that the caller passes."""

from __future__ import annotations

import math
from typing import Any, Never

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.drawing import generator
from gradmgr._arrays.listening import computed
from gradmgr._arrays.memory_order import with_channels_last
from gradmgr._engine.context import check_may_draw
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import raw
from gradmgr._engine.wrong_calls import unexpected
from gradmgr.nn._functions.arguments import check_inexact, check_not_in_place, number, one_array

# The mask, one byte per element, is a constant: derivatives of all orders use the same one.
_dropout: Function = linear(
    "nn.dropout",
    lambda x, mask, scale: mask * x.dtype.type(scale) * x,
    lambda g, mask, scale: _dropout(g, mask, scale),
)


def dropout(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    rng: np.random.Generator | None = None,
    **_wrong: Never,
) -> Any:
    """Set elements to 0 with probability p and divide the others by 1 - p, as torch.nn.functional.dropout.

    Inside `vmap` it needs randomness="same", for one mask for all examples, or "different". `gradmgr.checkpoint` finds
    the generator in a function's arguments or closure, and draws the same mask again.

    Args:
        input: floating-point or complex numbers.
        p: the probability, from 0 to 1.
        training: if False, the input is returned as it is.
        inplace: exists for programs written for torch; must be False.
        rng: the generator to draw from; None for a new one, seeded from NumPy's global generator.

    Returns:
        The shape and dtype of `input`.

    Raises:
        ValueError: p is not from 0 to 1, or inplace is True.
        DtypeError: the input is of integers or booleans.
        TypeError: p is not a number; rng is a seed, or a generator of another kind.
        RandomnessError: it is called inside a vmap with randomness="error".

    >>> import numpy as np
    >>> from gradmgr.nn.functional import dropout
    >>> dropout(np.ones(8), 0.75, rng=np.random.default_rng(3)).tolist()
    [4.0, 4.0, 0.0, 4.0, 0.0, 0.0, 4.0, 0.0]
    """
    if _wrong:
        raise unexpected(dropout, _wrong)
    if inplace:
        check_not_in_place(inplace, "dropout")
    x = one_array(input)
    check_inexact("dropout", input=x)
    if not 0 <= number(p, "p", "dropout") <= 1:
        raise ValueError(f"dropout: p is a probability, from 0 to 1; found {p!r}")
    if rng is not None:
        generator(rng, "dropout")
    if not (training and p and x.size):
        return x
    check_may_draw("dropout", "; or call eval() of the model first")
    if p == 1:
        return _dropout(x, _on_device_of(x, np.zeros(x.shape, bool)), 0.0)
    # To multiply in two orders takes several times as long.
    has_channels_last = x.ndim == 4 and with_channels_last(raw(x)) is not None
    mask = computed(_random_mask, rng, x.shape, float(p), has_channels_last)
    return _dropout(x, _on_device_of(x, mask), 1 / (1 - p))


def _on_device_of(x: Any, mask: Any) -> Any:
    return libraries.to_device(mask, libraries.device_of(raw(x)))


def _random_mask(rng: np.random.Generator | None, shape: tuple[int, ...], p: float, has_channels_last: bool) -> Any:
    """Return booleans, each False with probability p."""
    mask = ~_random_booleans(generator(rng, "dropout"), shape, p)
    return mask.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2) if has_channels_last else mask


_random_mask.runs_each_time = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions


def _random_booleans(rng: np.random.Generator, shape: tuple[int, ...], p: float) -> Any:
    """Return booleans, each True with probability p.

    One random byte decides for 255 of 256 elements; for the others, 53 further bits do. This takes a fourth of the time
    of drawing a random number per element.
    """
    count = math.prod(shape)
    words = rng.integers(0, 2**64, -(-count // 8), dtype=np.uint64)
    drawn = words.astype("<u8", copy=False).view(np.uint8)[:count]
    whole, rest = divmod(p * 256, 1)
    chosen = drawn < int(whole)
    if rest:
        undecided = np.flatnonzero(drawn == int(whole))
        chosen[undecided] = rng.random(undecided.size) < rest
    return chosen.reshape(shape)
