"""Large matrix products in float32 of eager calls: by oneDNN, where it was measured to be faster than NumPy's BLAS.

For which products that is, and on which processors, `products` says. Here are those of 0.1 ms and more, of which
oneDNN takes .8 to .95 of the time that OpenBLAS does; to prepare a call of it takes 3 us. It computes on the calling
thread, so that NumPy's BLAS computes them where it has several threads.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from gradmgr._arrays import libraries, native
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.products import Products, find_products

Array = Any

_LARGE = 1 << 22  # multiplications
FEW = 1 << 12  # numbers of the first factor: of fewer, `multiply` is a call more for nothing
_NUMBERS, _ADDRESSES = ctypes.c_int64 * 9, ctypes.c_void_p * 3
_LOOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _ADDRESSES, _NUMBERS, _NUMBERS, ctypes.c_void_p)


class _Multiplier:
    """Computes products by oneDNN."""

    def __init__(self, machine: native.Machine, products: Products) -> None:
        self._products = products
        self._blas_threads = machine.blas_threads
        self._loop = _LOOP(products.function)

    def is_faster(self, a: Array, b: Array) -> bool:
        """Tell whether a product of two matrices takes less time than in NumPy."""
        (n, k), m = a.shape, b.shape[1]
        if not (_is_packed(a) and _is_packed(b)) or self._blas_threads() != 1:
            return False
        return self._products.are_faster_by_onednn(n, k, m, b_transposed=not b.flags.c_contiguous)

    def store(self, a: Array, b: Array, out: Array) -> bool:
        """Write a product to a C-contiguous matrix; return whether the library could."""
        data = _ADDRESSES(*[x.__array_interface__["data"][0] for x in (a, b, out)])
        strides = _NUMBERS(0, 0, 0, *a.strides, *b.strides, *out.strides)
        failed: int = self._loop(self._products.context, data, _NUMBERS(1, *a.shape, b.shape[1]), strides, None)
        return not failed


def _is_packed(a: Array) -> bool:
    flags = a.flags
    return bool((flags.c_contiguous or flags.f_contiguous) and flags.aligned)


class _Found:
    """Finds the multiplier once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searched = False
        self._multiplier: _Multiplier | None = None

    def get(self) -> _Multiplier | None:
        """Return the multiplier; None if gradmgr-native or oneDNN is missing, or the processor is not known."""
        return self._multiplier if self._searched else self._search()

    def _search(self) -> _Multiplier | None:
        with self._lock:
            if not self._searched:
                try:
                    machine = native.load()
                    products, _ = find_products(machine)
                    self._multiplier = None if products is None else _Multiplier(machine, products)
                except native.MachineError:
                    self._multiplier = None
                self._searched = True
            return self._multiplier


found = _Found()


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return a @ b, written to `out` if given: C-contiguous, in its own memory.

    All are NumPy's matrices of one common dtype, as `libraries.are_matrices` tells.
    """
    if a.dtype is libraries.F4 and a.size >= FEW and a.size * b.shape[1] >= _LARGE:
        multiplier = found.get()
        if multiplier is not None and multiplier.is_faster(a, b) and not libraries.float_errors_raise():
            out = np.empty((len(a), b.shape[1]), np.float32) if out is None else out
            if multiplier.store(a, b, out):
                return out
    return a.dot(b, out)


def product(a: Array, b: Array) -> Array:
    """Return a @ b as `libraries.product`; of captured matrices what `multiply` gives for them as plain ones.

    Where the capture is for replays in which oneDNN and the machine compute products, it is NumPy's.
    """
    for x in (a, b):
        if x.__class__ is CapturedArray and not x.capture.fuses and libraries.is_matrix(a) and libraries.is_matrix(b):
            is_large = a.dtype is b.dtype is libraries.F4 and a.size >= FEW and a.size * b.shape[1] >= _LARGE
            return x.capture.call(multiply, (a, b), {}) if is_large else libraries.product(a, b)
    return libraries.product(a, b)


libraries.keeps_nothing(multiply)
libraries.writes_to_out(multiply)
