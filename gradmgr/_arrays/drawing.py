"""Random numbers for functions that draw them: from a Generator that the caller passes, on the device of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.batched import call_elementwise, innermost


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

    `draw` gets NumPy arrays, and is captured as one call, which draws again in each replay. Inside `vmap` it gets the
    parameters of all examples, so that each example has numbers of its own.
    """
    call = libraries.foreign(_drawn_on_host, *[innermost(p) for p in parameters])
    return call_elementwise(partial(call, draw, rng), *parameters)


def _drawn_on_host(draw: Callable[..., Any], rng: np.random.Generator, *parameters: Any) -> Any:
    made = draw(rng, *[libraries.to_device(p, "cpu") for p in parameters])
    device = libraries.device_of(parameters[0])
    return made if device == "cpu" else libraries.to_device(made, device)
