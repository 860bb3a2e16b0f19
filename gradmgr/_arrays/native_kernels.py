"""Kernels in C for whole functions, where the optional package gradmgr-native is installed: gelu, norms, softmax, Adam.

A kernel takes arrays, lengths and numbers, and writes into the last arrays. It is a loop of the machine's form, so a
captured call of it is one step of a native replay, with the bits of the eager call. Which functions use one, and what
they compute without, stands with each op: it asks `find`, which returns None if there is no package, or where
arrays are not NumPy's contiguous ones of float32 or float64.

The library is loaded when a kernel is first asked for. It is another check than that of the machine: kernels are no
loops of NumPy's, so the version is all that must fit.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays import blocks, libraries, native
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.memory_order import empty_with_channels_last, in_c_order, with_channels_last

Array = Any

VERSION = 5  # of the kernels: what they are given
LANES = 16  # numbers that a loop of theirs computes at a time

# What each kernel is given: the numbers of arrays, of those at the end that it writes into, and of lengths.
_SIGNATURES = {
    "gelu": (2, 1, 1),
    "gelu_slope": (2, 1, 1),
    "gelu_vjp": (3, 1, 1),
    "gelu_tanh": (2, 1, 1),
    "gelu_tanh_vjp": (3, 1, 1),
    "softmax": (2, 1, 2),
    "softmax_vjp": (3, 1, 2),
    "log_softmax": (2, 1, 2),
    "log_softmax_vjp": (3, 1, 2),
    "logsumexp": (2, 1, 3),
    "logsumexp_vjp": (4, 1, 3),
    "cross_entropy": (5, 3, 2),
    "cross_entropy_vjp": (6, 1, 2),
    "attention": (4, 3, 3),
    "attention_vjp": (5, 2, 3),
    "add_rows": (3, 1, 3),
    "norm_rows": (6, 3, 2),
    "norm_rows_vjp": (8, 3, 2),
    "norm_groups": (6, 3, 4),
    "norm_groups_vjp": (7, 2, 4),
    "norm_channels": (7, 4, 3),
    "norm_channels_vjp": (8, 3, 3),
    "norm_columns": (7, 4, 2),
    "norm_columns_vjp": (8, 3, 2),
    "max_pool2d": (4, 3, 7),
    "max_pool2d_vjp": (3, 1, 7),
    "avg_pool2d": (4, 2, 7),
    "avg_pool2d_vjp": (4, 2, 7),
    "max_pool2d_columns": (3, 2, 8),
    "max_pool2d_columns_vjp": (3, 1, 8),
    "avg_pool2d_columns": (3, 1, 8),
    "avg_pool2d_columns_vjp": (3, 1, 8),
    "grid_sample": (3, 1, 6),
    "grid_slopes": (4, 1, 6),
    "grid_spread": (3, 1, 6),
    "resize": (7, 2, 7),
    "resize_vjp": (7, 2, 7),
    "solve": (4, 2, 3),
    "adam": (4, 3, 1),
    "sgd": (2, 1, 1),
    "sgd_momentum": (3, 2, 1),
    "send": (2, 1, 1),
}


class Kernel:
    """A kernel for one dtype, as a function of arrays, lengths and numbers.

    Attributes:
        arrays, writes, lengths: how many arrays it takes, into how many at the end it writes, and how many lengths.
        is_elementwise: whether it goes over arrays of one shape and may write over one that it reads.
        address: of the loop.
        call: the function for NumPy's arrays alone, written in C.
    """

    __slots__ = ("__name__", "address", "arrays", "call", "is_elementwise", "lengths", "writes")

    keeps_nothing = True  # no array that it is given, which a replay asks

    def __init__(self, name: str, address: int, call: Callable[..., int | None]) -> None:
        self.__name__ = name
        self.arrays, self.writes, self.lengths = _SIGNATURES[name]
        self.is_elementwise = name.startswith("gelu")
        self.address = address
        self.call = call

    def __call__(self, *args: Any) -> None:
        """Run the kernel on NumPy's arrays, or on captured ones as one captured call."""
        for a in args:
            if a.__class__ is CapturedArray:
                a.capture.call(self, args, {})
                return
        stopped = self.call(*args)
        if stopped is not None:
            self._call_aligned(args, stopped)

    def _call_aligned(self, args: tuple[Any, ...], stopped: int) -> None:
        """Run the kernel again on copies, where the data of an array were not aligned in memory."""
        if stopped != -2:
            raise IndexError(f"{self.__name__}: a number of an element is out of bounds")
        arrays = [np.array(a) for a in args[: self.arrays]]
        if self.call(*arrays, *args[self.arrays :]) is not None:
            raise IndexError(f"{self.__name__}: a number of an element is out of bounds")
        first = self.arrays - self.writes
        for a, made in zip(args[first : self.arrays], arrays[first:], strict=True):
            a[...] = made


class _Kernels:
    """The kernels by name and dtype, found when first asked for.

    Attributes:
        reason: why there are none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, np.dtype[Any]], Kernel] | None = None
        self._method: Any = None
        self.reason = "not searched yet"

    def get(self, name: str, dtype: np.dtype[Any]) -> Kernel | None:
        """Return a kernel for a dtype, None if there is none."""
        found = self._found
        return (self._load() if found is None else found).get((name, dtype))

    def _load(self) -> dict[tuple[str, np.dtype[Any]], Kernel]:
        with self._lock:
            if self._found is None:
                try:
                    self._found, self.reason = self._of(native.load()), ""
                except native.MachineError as error:
                    self._found, self.reason = {}, str(error)
                except AttributeError as error:
                    self._found, self.reason = {}, f"gradmgr-native has no kernels: {error}"
            return self._found

    def _of(self, machine: native.Machine) -> dict[tuple[str, np.dtype[Any]], Kernel]:
        """Return the kernels of a library.

        Raises:
            AttributeError: it is an older one.
        """
        setup = machine._library.gradmgr_setup_kernels
        setup.argtypes, setup.restype = [ctypes.c_int64, *[ctypes.c_void_p] * 7], ctypes.c_int64
        addresses = [native._address(getattr(ctypes.pythonapi, name)) for name in _OF_PYTHON]
        version = setup(object.__basicsize__, id(None), *addresses)
        if version != VERSION:
            raise native.MachineError(f"gradmgr-native has version {version} of the kernels; gradmgr needs {VERSION}")
        # It must outlive the functions made of it.
        self._method = native._MethodDef(b"kernel", machine.address("call"), native._METH_FASTCALL, None)
        found = {}
        for name, (arrays, _, lengths) in _SIGNATURES.items():
            for dtype in (libraries.F4, libraries.F8):
                address = machine.address(f"{name}_f{dtype.itemsize}")
                words = np.array([address, arrays, lengths, dtype.itemsize - 1], np.int64)
                call = machine._make_function(ctypes.addressof(self._method), words, None)
                found[name, dtype] = Kernel(name, address, call)
        return found


_OF_PYTHON = (
    *("Py_IncRef", "PyLong_FromLong", "PyLong_AsLongLong", "PyFloat_AsDouble"),
    *("PyEval_SaveThread", "PyEval_RestoreThread"),
)

kernels = _Kernels()


def find(name: str, *arrays: Array) -> Kernel | None:
    """Return a kernel for arrays, None among them left out; None if it does not take them, or there is none.

    It takes NumPy's, captured or not, that are not empty, and all in float32 or all in float64. They are to be given as
    `contiguous` returns them.
    """
    dtype = arrays[0].dtype
    for a in arrays:
        if a is None:
            continue
        if a.__class__ is not np.ndarray and not (a.__class__ is CapturedArray and a.inner.__class__ is np.ndarray):
            return None
        if a.dtype is not dtype or not a.size:
            return None
    return kernels.get(name, dtype) if dtype is libraries.F4 or dtype is libraries.F8 else None


def contiguous(a: Array) -> Array:
    """Return an array, or a copy, in which each element follows the last one."""
    return a if a.flags.c_contiguous else a.copy()


def empty(shape: tuple[int, ...], *like: Array) -> Array:
    """Return a new array in the dtype of the first array, captured where one of them is."""
    one = first_captured(*like)
    xp = np if one.__class__ is not CapturedArray else libraries.namespace(one)
    return xp.empty(shape, like[0].dtype)


def empty_like(x: Array, *others: Array) -> Array:
    """Return a new array like the first, with the channels last if it has them so; captured where one of them is."""
    if with_channels_last(x) is None:
        return empty(x.shape, x, *others)
    one = first_captured(x, *others)
    if one.__class__ is not CapturedArray:
        return np.empty_like(x)
    made = libraries.namespace(one).empty((x.shape[0], *x.shape[2:], x.shape[1]), x.dtype)
    return made.transpose(0, -1, *range(1, x.ndim - 1))


def empty_images(shape: tuple[int, ...], dtype: Any, *like: Array) -> Array:
    """Return a new array (batch, channels, rows, columns) with the channels last, captured where one of these is."""
    one = first_captured(*like)
    if one.__class__ is not CapturedArray:
        return empty_with_channels_last(shape, np.dtype(dtype))
    return libraries.namespace(one).empty((shape[0], *shape[2:], shape[1]), dtype).transpose(0, 3, 1, 2)


def first_captured(*arrays: Array) -> Array:
    """Return the first captured array, or the first one if none is."""
    for a in arrays:
        if a.__class__ is CapturedArray:
            return a
    return arrays[0]


def elementwise(name: str, x: Array, *others: Array) -> Array | None:
    """Return what a kernel computes element by element, of arrays of one shape; None if `find` returns it.

    Large arrays are shared between the threads of `set_num_threads`.
    """
    kernel = find(name, x, *others)
    if kernel is None:
        return None
    for a in others:  # all(...) of a generator takes twice as long
        if a.shape != x.shape:
            return None
    made = empty_like(x, *others)
    whole, given = in_c_order(made, (x, *others))
    run_elementwise(kernel, *map(contiguous, given), whole)
    return made


def along_rows(name: str, x: Array, *others: Array, number: float) -> Array | None:
    """Return what a kernel computes row by row along the last axis, of arrays of one shape; None as `elementwise`."""
    kernel = find(name, x, *others)
    if kernel is None:
        return None
    for a in others:
        if a.shape != x.shape:
            return None
    made, columns = empty(x.shape, x, *others), x.shape[-1]
    kernel(contiguous(x), *map(contiguous, others), made, made.size // columns, columns, number)
    return made


def run_elementwise(kernel: Kernel, *arrays: Array) -> None:
    """Run a kernel, of which the last array may be one of the others."""
    made = arrays[-1]
    if made.nbytes <= blocks.BLOCK or blocks.get_num_threads() == 1 or made.__class__ is not np.ndarray:
        kernel(*arrays, made.size)
        return
    flat = [a.reshape(-1) for a in arrays]
    parts = blocks.blocks(made.size, made.nbytes)
    blocks.run(lambda part: kernel(*[a[part] for a in flat], flat[-1][part].size), parts)
