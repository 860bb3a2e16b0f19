"""Random numbers for functions that draw them: from a Generator that the caller passes, on the device of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.batched import call_elementwise, count_levels
from gradmgr._arrays.listening import computed, told


def generator(rng: Any, asked: str) -> np.random.Generator:
    """Return the Generator to draw from: the caller's, or for None a new one, seeded by NumPy's global generator.

    As the seed comes from the global generator, `gradmgr.checkpoint` can reproduce the numbers and `gradmgr.vmap` sees
    that they are drawn.

    Raises:
        TypeError: rng is a seed, or a generator of another kind.
    """
    if rng is None:
        return np.random.default_rng(np.random.randint(0, 2**32, 4, dtype=np.uint32))  # noqa: NPY002  # see above
    if isinstance(rng, np.random.Generator):
        return rng
    example = rng if isinstance(rng, int) and not isinstance(rng, bool) else "seed"
    raise TypeError(
        f"{asked} draws from a numpy.random.Generator; found rng of type {type(rng).__name__}; make one with "
        f"numpy.random.default_rng({example}), once, and pass it wherever random numbers are drawn"
    )


def drawn(draw: Callable[..., Any], rng: np.random.Generator, *parameters: Any) -> Any:
    """Return draw(rng, *parameters), random numbers for the elements of arrays of one shape, on the device of these.

    `draw` gets NumPy arrays; a replay of a compiled function draws again. Inside `vmap` it is called
    for each example, from the same state of the generator: each has the numbers that it would have alone.
    """
    draws = partial(computed, _drawn_on_host, draw, rng, count_levels(parameters))
    return told(call_elementwise(draws, *parameters))


def noise(kind: str, rng: np.random.Generator, shape: tuple[int, ...], like: Any, dtype: Any = None) -> Any:
    """Return what a method of the generator draws without parameters, of a shape, in the dtype and device of an array.

    Inside `vmap` the numbers are the same for all examples. `dtype` is for numbers that must not be rounded, as those
    below 1 that are compared with a probability.
    """
    made = computed(_noise_on_host, kind, rng, shape, like.dtype if dtype is None else dtype)
    device = libraries.device_of(like)
    return told(made if device == "cpu" else libraries.to_device(made, device))


def _noise_on_host(kind: str, rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return getattr(rng, kind)(size=shape).astype(dtype, copy=False)


def _drawn_on_host(draw: Callable[..., Any], rng: np.random.Generator, levels: int, *parameters: Any) -> Any:
    """Return draw(rng, *parameters) of arrays whose first axes, one for each level, are those of the examples."""
    on_host = [libraries.to_device(p, "cpu") for p in parameters]
    made = _drawn_for_each(draw, rng, levels, *on_host) if levels else draw(rng, *on_host)
    device = libraries.device_of(parameters[0])
    return made if device == "cpu" else libraries.to_device(made, device)


def _drawn_for_each(draw: Callable[..., Any], rng: np.random.Generator, levels: int, *parameters: Any) -> Any:
    parameters = np.broadcast_arrays(*parameters)
    shape, state = parameters[0].shape[:levels], rng.bit_generator.state
    made = []
    for index in np.ndindex(shape):
        rng.bit_generator.state = state
        made.append(draw(rng, *[p[index] for p in parameters]))
    if not made:
        return np.empty(parameters[0].shape, parameters[0].dtype)
    return np.reshape(np.stack(made), shape + made[0].shape)
