"""What the allocator does with freed memory: an opt-in that keeps it."""

from __future__ import annotations

import ctypes
import os

from gradmgr import errors

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Keep the memory of freed arrays in this process, to be reused by later arrays.

    glibc's `malloc`, from which NumPy, PyTorch and others take memory, gives large freed blocks back to the system at
    once. The next array of that size gets fresh pages, each of which the system clears when it is first touched; for
    arrays of some 100 KiB to 100 MiB that often costs more than the arithmetic. This call changes two settings of
    `malloc` for the whole process, not for gradmgr alone, and so gradmgr never calls it itself. Call it once, before
    large arrays are made. The page on performance says what it saves.

    It costs memory: the process keeps its peak memory until it ends, and other processes cannot use it.
    Where another allocator was loaded before glibc's (jemalloc, tcmalloc), it changes nothing.

    Raises:
        AllocatorError: the C library is not glibc (macOS, Windows, musl): nothing has changed; or it refuses.

    >>> import gradmgr
    >>> gradmgr.keep_freed_memory()  # doctest: +SKIP
    """
    name = "CS_GNU_LIBC_VERSION"
    found = os.confstr(name) if name in getattr(os, "confstr_names", {}) else None
    if not found:
        raise errors.AllocatorError(
            "keep_freed_memory() changes settings of glibc's malloc, and this Python runs on another C library; "
            "without it nothing but speed is lost"
        )
    mallopt = ctypes.CDLL(None).mallopt
    # No block by mmap, whose free is always an unmap; then none of the heap is given back at its end.
    if not (mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1)):
        raise errors.AllocatorError(f"keep_freed_memory(): mallopt of {found} refused")
