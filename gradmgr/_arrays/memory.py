"""Whose memory an array lies in, and whether it may be written in place.

A buffer is written in place only when nothing else can see it. Reference counts say so exactly: every view, saved
value, `numpy()` view, memoryview or foreign library holds a reference to the array object that owns the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from gradmgr._arrays.batched import Batched, innermost
from gradmgr._arrays.captured import CapturedArray, inner_of
from gradmgr._arrays.libraries import Array, is_array, namespace
from gradmgr._arrays.refcounts import ARRAY_ARGUMENT, ARRAY_GIVEN, BASE_GIVEN, BASE_OF_ARGUMENT


def is_writeable(array: Array) -> bool:
    """Tell whether the array may be written to; CuPy arrays have no such flag."""
    return bool(getattr(array.flags, "writeable", True))


def owns_memory(array: Array) -> bool:
    """Tell whether an array without a base has its own memory, not taken over by DLPack or mmap."""
    if array.__class__ is np.ndarray:
        return bool(array.flags.owndata)
    memory = getattr(getattr(array, "data", None), "mem", None)  # CuPy's
    return is_array(array) and bool(array.flags.owndata) and type(memory).__name__ != "UnownedMemory"


def is_private(holder: Any) -> bool:
    """Tell whether `holder._array` may be written in place: gradmgr allocated it, and nothing else can see it."""
    array = holder._array
    return is_sole(array)


def is_sole(array: Array) -> bool:
    """Tell the same of an array that the caller has from its holder, in one local variable, and from nowhere else."""
    base = array.base
    if getrefcount(array) > ARRAY_GIVEN or (base is not None and getrefcount(base) > BASE_GIVEN):
        return False
    if base is None and array.__class__ is np.ndarray:  # the common case, without calls
        flags = array.flags
        return flags.owndata and flags.writeable
    if array.__class__ is Batched:
        return is_private(array)
    if array.__class__ is CapturedArray:
        return False  # what else sees it in a replay is not known here
    return _may_be_written(array, base)


def _may_be_written(array: Array, base: Any) -> bool:
    """Tell whether the memory of an array that nothing else sees, and of its base, may be written."""
    if base is None:
        return is_writeable(array) and owns_memory(array)
    repeats = any(n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True))
    return is_array(base) and base.base is None and not repeats and is_writeable(array) and owns_memory(base)


def over_first(kernel: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that computes what a kernel does, over its first argument if only the caller's variable has it.

    The kernel's attribute `into` is the function that computes it so.
    """
    into: Callable[..., Array] = kernel.into  # type: ignore[attr-defined]  # see `libraries.computes_over`

    def compute(array: Array, other: Array) -> Array:
        base = array.base
        if getrefcount(array) > ARRAY_ARGUMENT or (base is not None and getrefcount(base) > BASE_OF_ARGUMENT):
            return kernel(array, other)
        return (into if _may_be_written(array, base) else kernel)(array, other)

    compute.__name__ = kernel.__name__
    return compute


def buffer_bytes(array: Array) -> int:
    """Return the size of the whole buffer that keeping this array keeps alive."""
    base: Array = getattr(array, "base", None)
    return int((base if is_array(base) else array).nbytes)


def shares_memory(one: Array, other: Array) -> bool:
    """Tell whether two arrays' memory bounds overlap (may say yes for interleaved views)."""
    one, other = inner_of(innermost(one)), inner_of(innermost(other))
    if namespace(one) is not namespace(other) or isinstance(one, np.generic) or isinstance(other, np.generic):
        return False
    return bool(namespace(one).may_share_memory(one, other))
