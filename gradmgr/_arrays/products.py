"""Matrix products in float32 by oneDNN's sgemm, or by a loop of the machine's: for which products each is faster.

The choice depends on shapes, on the processor and on the number of BLAS's threads, which are the same in each run, and
so are results: all compute on the calling thread alone, and their bits do not depend on where arrays lie.

oneDNN's time over that of NumPy's OpenBLAS 0.3.31, one thread, measured on AMD's EPYC 9004 (Zen 4), which can do 115
GFLOP/s:

    n x k x m                            a @ b       a @ b.T     a.T @ b
    128 x 32 x 32, 64 x 64 x 64          1.1-1.2     .87-.96     1.1-1.2
    128 x 128 x 32, 100 x 100 x 100      1.05-1.2    .86-1.03    1.04-1.2
    64 x 128 x 128, 128 x 128 x 128      .83-.89     .71-.81     .85-.86
    64 x 256 x 256, 256 x 64 x 256       .86-.92     .77-.92     .88-.91
    128 x 1024 x 1024, 1024 x 128 x 512  .85-.93     .83-.96     .83-.98
    8 x 512 x 512, 1024 x 16 x 1024      .5          .24-.55     .5
    256 x 64 x 8                         1.9         1.3         2.2
    64 x 1024 x 64, 16 x 4096 x 16       .85-.91     1.5-2.1     .78-.89

OpenBLAS has kernels without packing for up to 100^3 multiplications. With those a @ b and a.T @ b reach what the
processor can do, a @ b.T two thirds of it. Above, it packs, and reaches 85 to 90 %; oneDNN reaches 95 to 100 %. The
kernels are those of OpenBLAS's SkylakeX on Intel's processors too, so the shapes are the same; on a Cascade Lake steps
of MLPs of 64 x 256 x 256 and 128 x 1024 x 1024 took .7 and .8 of the time, and those of small products as long as
before. Other processors, and those without AVX-512, have not been measured, and NumPy computes there.

The machine's loop has been measured on AMD's processor alone. For a @ b and a.T @ b it takes as long as the better one
of the two. For a @ b.T, as the first pass of linear layers and scores of attention are, its time over OpenBLAS's is

    2-64 x 4-24 x 8-256                  .35-.9
    16 x 48 x 48, 16 x 128 x 32          .86, 1.07
    32 x 32 x 32, 48 x 48 x 48           .65
    128 x 32 x 32, 128 x 128 x 32        .73-.77      (oneDNN: .86-.90)
    64 x 256 x 256                       .74          (oneDNN: .78)

For few rows and large b, a @ b.T also takes oneDNN longer than b @ a.T with the two small matrices transposed, before
and after: by 18 % for 128 x 1024 x 1024, by 26 % for 64 rows, by half for 32 and 16.
"""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np

from gradmgr._arrays import onednn_library
from gradmgr._arrays.native import Machine, MachineError, UfuncLoop

_MEASURED = frozenset(("GenuineIntel", "AuthenticAMD"))
_MEASURED_OWN = "AuthenticAMD"  # with loops of the machine's
_OWN = "multiply", "transpose"
_AVX512 = 0x27  # dnnl_cpu_isa_avx512_core
# Multiplications up to which OpenBLAS does not pack, and up to which it computes on one thread.
_SMALL, _ALONE = 100**3, 1 << 18
_SMALLEST = 1 << 17  # below, what a call takes before it computes, 0.2 us, decides
_NARROW = 32  # columns of b.T
# A sum that is read and written once more costs as much as 40 multiplications for each element; what is smaller than
# this many elements costs nothing but the call.
_DEEPEST, _FEWEST = 32, 1 << 11
# Terms of each product up to which a sum of many is one product: of 50 LSTM cells with a batch of 8 it takes 7 % less
# time than with sums that are added to, with 16 and 32 as long, and with 64 more, as the factors have left the cache.
_SHALLOW = 16
# a @ b.T by the machine. OpenBLAS has a kernel for it from 32 terms on, which is as fast where the product is narrow.
# In products of more terms rows of `a` fall on the same lines of the cache, and large ones need blocks of both factors.
_FEW_TERMS, _NARROWEST, _LEAST_WIDE, _MOST_TERMS, _LARGEST = 32, 16, 4, 512, 1 << 24
# Multiples of the number of rows from which b @ a.T is faster, and columns and terms from which transposing pays.
_MANY_TIMES, _WIDE, _LANES = 4, 512, 16


class _Called(ctypes.Structure):
    """The machine's `library`."""

    _fields_ = (("multiply", ctypes.c_void_p), ("threads", ctypes.c_void_p), ("set_threads", ctypes.c_void_p))


class Products:
    """What computes products by oneDNN.

    Attributes:
        function: the address of the machine's loop that calls oneDNN; context is what it is given.
        own: the address of the loop by which the machine computes products itself; 0 where that was not measured.
        transpose: the address of the loop that transposes a matrix; 0 likewise.
        within: the address of the loop that compares what is found with what is expected.
    """

    def __init__(
        self, machine: Machine, library: onednn_library.Library, threads: int, *, has_own: bool = False
    ) -> None:
        names = ("dnnl_sgemm", *(("omp_get_max_threads", "omp_set_num_threads") if library.has_openmp else ()))
        self.called = _Called(*[library.address(name) for name in names])
        self.function, self.within = machine.address("product_f4"), machine.address("within_f4")
        self.own, self.transpose = (machine.address(f"{name}_f4") if has_own else 0 for name in _OWN)
        self.context = ctypes.addressof(self.called)
        self._threads = threads

    def are_faster(self, n: int, k: int, m: int, *, b_transposed: bool) -> bool:
        """Tell whether (n, k) @ (k, m) takes less time than in NumPy, where `b` may be contiguous by columns."""
        ways = self.are_faster_by_machine, self.are_faster_by_onednn
        return any(way(n, k, m, b_transposed=b_transposed) for way in ways)

    def are_faster_by_onednn(self, n: int, k: int, m: int, *, b_transposed: bool) -> bool:
        """Tell whether oneDNN takes less time than NumPy."""
        work = n * k * m
        if min(n, k, m) < 2 or (work > _ALONE and self._threads > 1):
            return False
        if not b_transposed:
            return work > _SMALL
        return m >= _NARROW and work >= _SMALLEST and (k <= 2 * m or self.are_faster_transposed(n, k, m))

    def are_faster_by_machine(self, n: int, k: int, m: int, *, b_transposed: bool) -> bool:
        """Tell whether the machine's own loop takes less time than NumPy and oneDNN."""
        work = n * k * m
        if not self.own or not b_transposed or min(n, k) < 2 or m < _LEAST_WIDE:
            return False
        if work > _LARGEST or (work > _ALONE and self._threads > 1):
            return False
        if k < _FEW_TERMS:
            return True
        narrow = min(n, m)
        return narrow >= _NARROWEST and k <= _MOST_TERMS and (k <= _LEAST_WIDE * narrow or work > _SMALL)

    def are_faster_transposed(self, n: int, k: int, m: int) -> bool:
        """Tell whether a @ b.T takes longer than b @ a.T, with the smaller matrices transposed before and after."""
        least = min(k, m)
        return bool(self.transpose) and n % _LANES == 0 and least >= _WIDE and _MANY_TIMES * n <= least

    def are_faster_as_sums(self, n: int, k: int, m: int, *, b_transposed: bool) -> bool:
        """Tell whether to add (n, k) @ (k, m) to a sum takes less time than a product in NumPy, and adding that."""
        if self.are_faster(n, k, m, b_transposed=b_transposed):
            return True
        shallow = 2 <= k <= _DEEPEST and n * m >= _FEWEST and min(n, m) >= _NARROW
        return shallow and (self._threads == 1 or n * k * m <= _ALONE)

    def are_faster_merged(self, n: int, k: int, m: int) -> bool:
        """Tell whether many products of this shape, which are added up, take less time as one.

        BLAS must not compute each on several threads.
        """
        return k <= _SHALLOW and (self._threads == 1 or n * k * m <= _ALONE)

    def are_faster_turned(self, n: int, k: int, m: int) -> bool:
        """Tell whether b @ a.T takes less time than a @ b.T in NumPy, for few columns of b.T: of small batches.

        For 256 x 64 x 8 it takes 3.4 us instead of 5.4 us, as oneDNN's kernels compute whole vectors of a row.
        """
        return m < _NARROW and self.are_faster_by_onednn(m, k, n, b_transposed=True)


def find_products(machine: Machine) -> tuple[Products | None, str]:
    """Return what computes products by oneDNN in this process, or None and why there is none."""
    if not (machine.has("product_f4") and machine.has("within_f4")):
        return None, "gradmgr-native is too old for products by oneDNN"
    if platform.machine() not in ("x86_64", "AMD64") or _vendor() not in _MEASURED:
        return None, "oneDNN's products have not been measured on this processor"
    try:
        for ufunc in (np.matmul, np.absolute, np.add, np.subtract, np.multiply):
            loop_of(machine, ufunc)
    except MachineError as error:
        return None, str(error)
    library = onednn_library.found.get()
    if library is None:
        return None, onednn_library.found.reason
    if library.instructions() & _AVX512 != _AVX512:
        return None, "oneDNN's products have not been measured without AVX-512"
    has_own = _vendor() == _MEASURED_OWN and all(machine.has(f"{name}_f4") for name in _OWN)
    return Products(machine, library, machine.blas_threads(), has_own=has_own), ""


def loop_of(machine: Machine, ufunc: np.ufunc) -> UfuncLoop:
    """Return NumPy's loop of a ufunc of float32."""
    loop = machine.loop(ufunc, (*[np.dtype(np.float32)] * ufunc.nin, None))
    if loop is None:
        raise MachineError(f"NumPy tells no loop of {ufunc.__name__} for float32")
    return loop


def _vendor() -> str:
    """Return who made the processor, by the name that it tells."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            lines = [next(file, "") for _ in range(4)]
    except OSError:  # not on Linux
        return platform.processor().rpartition(" ")[2]
    return next((line.split()[-1] for line in lines if line.startswith("vendor_id")), "")
