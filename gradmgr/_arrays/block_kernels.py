"""Kernels of elements that write their result, block by block, with scratch arrays that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.blocks import BLOCK, blocks, run
from gradmgr._arrays.memory_order import in_c_order


def can_run_in_blocks(x: Any, *others: Any) -> bool:
    """Tell whether all are NumPy arrays of one shape, all in float32 or all in float64."""
    if x.__class__ is not np.ndarray:
        return False
    dtype, shape = x.dtype, x.shape
    if dtype is not libraries.F4 and dtype is not libraries.F8:
        return False
    for a in others:  # noqa: SIM110  # all(...) of a generator takes twice as long
        if a.__class__ is not np.ndarray or a.dtype is not dtype or a.shape != shape:
            return False
    return True


def run_in_blocks(piece: Callable[..., Any], made: Any, arrays: tuple[Any, ...], scratch: int = 0) -> Any:
    """Call piece(out, *arrays, *scratch arrays) on `made`, or on blocks of it, with this number of scratch arrays.

    A thread uses its scratch memory again for the next block: new memory is cleared by the operating system page by
    page, which takes longer than the computation.
    """
    if not made.ndim:  # slices of it would be numbers
        run_in_blocks(piece, made.reshape(1), tuple([a.reshape(1) for a in arrays]), scratch)
        return made
    whole, arrays = in_c_order(made, arrays)
    # without scratch it is one pass over memory, in which two threads took longer
    if made.nbytes <= BLOCK or not scratch:
        piece(whole, *arrays, *(libraries.empty((scratch, *whole.shape), whole) if scratch else ()))
        return made
    out, flat = whole.reshape(-1), [a.reshape(-1) for a in arrays]
    parts = blocks(out.size, out.nbytes)
    free: list[Any] = []

    def work(part: slice) -> None:
        here = out[part]
        try:
            workspace = free.pop()
        except IndexError:
            workspace = np.empty((scratch, parts[0].stop), made.dtype)
        piece(here, *[a[part] for a in flat], *workspace[:, : here.size])
        free.append(workspace)

    run(work, parts)
    return made
