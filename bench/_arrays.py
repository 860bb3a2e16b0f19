"""Counts the bytes of NumPy arrays, exactly: a memory handler for NumPy, of Python functions, by ctypes.

NumPy takes the memory of arrays from a handler, which a C program may replace (NEP 49). tracemalloc sees that memory
too, but keeps one peak for it and for all of Python's objects.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_SET_HANDLER = 304  # the place of PyDataMem_SetHandler in the table of NumPy's C API

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, as numpy/ndarraytypes.h declares it."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


class Counter:
    """Bytes of the arrays that were made under it and are alive, and the most there were since `restart`."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._sizes: dict[int, int] = {}
        libc = self._libc = ctypes.PyDLL(None)
        for name in ("malloc", "calloc", "realloc"):
            getattr(libc, name).restype = ctypes.c_void_p
        # The struct keeps pointers to these only, and arrays keep a pointer to the struct.
        self._functions = _MALLOC(self._malloc), _CALLOC(self._calloc), _REALLOC(self._realloc), _FREE(self._free)
        self.handler = _Handler(b"counting", 1, None, *self._functions)

    def restart(self) -> None:
        self.most = self.now

    def _made(self, place: int | None, size: int) -> int | None:
        if place:
            self._sizes[place] = size
            self.now += size
            self.most = max(self.most, self.now)
        return place

    def _malloc(self, _: Any, size: int) -> int | None:
        return self._made(self._libc.malloc(ctypes.c_size_t(size)), size)

    def _calloc(self, _: Any, count: int, size: int) -> int | None:
        return self._made(self._libc.calloc(ctypes.c_size_t(count), ctypes.c_size_t(size)), count * size)

    def _realloc(self, _: Any, place: int | None, size: int) -> int | None:
        self.now -= self._sizes.pop(place or 0, 0)
        return self._made(self._libc.realloc(ctypes.c_void_p(place), ctypes.c_size_t(size)), size)

    def _free(self, _: Any, place: int | None, size: int) -> None:
        self.now -= self._sizes.pop(place or 0, 0)
        self._libc.free(ctypes.c_void_p(place))


_FOREVER: list[Counter] = []  # an array may outlive the counter, and is freed by its handler


@atexit.register
def _leave_to_the_system() -> None:
    """Let handlers free nothing any more: arrays that live to the end go when Python's functions cannot be called."""
    does_nothing = ctypes.cast(ctypes.CDLL(None).getpid, _FREE)  # what it is given it does not look at
    for counter in _FOREVER:
        counter.handler.free = does_nothing


@contextmanager
def counting() -> Iterator[Counter]:
    """Count the arrays that are made in this context. Many small ones take long: two calls of Python each."""
    counter = Counter()
    _FOREVER.append(counter)
    python = ctypes.pythonapi
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", python)
    )
    read = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", python))
    table = ctypes.cast(read(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    put = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    before = put(new(ctypes.addressof(counter.handler), b"mem_handler", None))
    try:
        yield counter
    finally:
        put(before)
