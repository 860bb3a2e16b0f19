"""The machine of native replays: C in the optional package gradmgr-native, and the loops of NumPy that it runs.

NumPy tells the address of the loop of a ufunc for given dtypes, the same that it runs itself, by two methods that it
calls unstable. So they are used only where the structure that they give has the name of the version known here, and
after a test: some programs of each kind must compute, bit for bit, what NumPy does. Where anything is missing or
differs, there is no machine, and `Found.reason` says why.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradmgr import errors

Array = Any
LayoutFacts = tuple[type, tuple[int, ...], np.dtype[Any], tuple[int, ...]]  # class, shape, dtype, strides

VERSION = 3  # of the machine: the layout of its words
_CALL_INFO = b"numpy_1.24_ufunc_call_info"  # the structure that NumPy fills in, which is named by its version
_METH_FASTCALL = 0x80


class MachineError(RuntimeError):
    """There is no machine, or it does not do what NumPy does."""


@dataclass(frozen=True)
class UfuncLoop:
    """NumPy's loop of a ufunc for some dtypes.

    Attributes:
        dtypes: of the operands, into which inputs are cast, and the result.
        function: the address of the loop; what follows it are addresses too.
        capsule: what keeps them alive.
    """

    dtypes: tuple[np.dtype[Any], ...]
    function: int
    context: int
    auxdata: int
    capsule: Any


class _CallInfo(ctypes.Structure):
    """What NumPy documents of its capsule."""

    _fields_ = (
        ("loop", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("auxdata", ctypes.c_void_p),
        ("requires_pyapi", ctypes.c_uint8),
        ("no_floatingpoint_errors", ctypes.c_uint8),
    )


class _MethodDef(ctypes.Structure):
    """Python's PyMethodDef, of the stable ABI."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _ArrayFacts(ctypes.Structure):
    """What an array holds from its class on, as the machine reads it."""

    _fields_ = (
        ("kind", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("axes", ctypes.c_int),
        ("extents", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
    )


class Machine:
    """The loaded machine."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._set_up()
        run = self.address("run")
        self._method = _MethodDef(b"run", run, _METH_FASTCALL, None)  # must outlive the functions made of it
        api = ctypes.pythonapi
        test = self.address("test_layouts") if self.has("test_layouts") else 0
        self._layout_method = _MethodDef(b"test_layouts", test, _METH_FASTCALL, None)  # likewise
        self._make_function = _prototype("PyCFunction_NewEx", [ctypes.c_void_p, ctypes.py_object, ctypes.py_object])
        self._capsule_pointer = api.PyCapsule_GetPointer
        self._capsule_pointer = _prototype("PyCapsule_GetPointer", [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p)
        self._loops: dict[tuple[Any, ...], UfuncLoop | None] = {}

    def _set_up(self) -> None:
        """Tell the machine where Python's functions are, and where in an array the address of its data stands."""
        offset = object.__basicsize__
        probe = np.empty((3, 2))
        facts = _ArrayFacts.from_address(id(probe) + offset - ctypes.sizeof(ctypes.c_void_p))
        found = facts.kind, facts.data, facts.axes, facts.base, facts.dtype
        if found != (id(np.ndarray), probe.ctypes.data, 2, None, id(probe.dtype)):
            raise MachineError("the address of an array's data, or its dtype, does not stand where it is expected")
        names = ("Py_IncRef", "PyLong_FromLong", "PyEval_SaveThread", "PyEval_RestoreThread")
        addresses = [_address(getattr(ctypes.pythonapi, name)) for name in names]
        setup = self._library.gradmgr_setup
        setup.argtypes, setup.restype = [ctypes.c_int64, *[ctypes.c_void_p] * 5], ctypes.c_int64
        version = setup(offset, id(None), *addresses)
        if version != VERSION:
            raise MachineError(f"gradmgr-native has version {version} of the machine, and gradmgr needs {VERSION}")

    def address(self, name: str) -> int:
        """Return the address of one of the machine's own functions."""
        return _address(getattr(self._library, f"gradmgr_{name}"))

    def has(self, name: str) -> bool:
        """Tell whether the machine has a loop of this name."""
        return hasattr(self._library, f"gradmgr_{name}")

    @functools.cached_property
    def blas_threads(self) -> Callable[[], int]:
        """A function that tells with how many threads NumPy's BLAS computes, as OpenBLAS does; else as many as cores.

        It is found once: ctypes leaves cycles behind for each library that it opens.
        """
        for path in Path(np.__file__).parent.parent.glob("numpy.libs/*openblas*"):
            try:
                found: Any = ctypes.CDLL(str(path))
            except OSError:
                continue
            for name in ("scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads"):
                if hasattr(found, name):
                    return getattr(found, name)  # type: ignore[no-any-return]  # a function of ints
        return lambda: os.cpu_count() or 1

    def function(self, words: Array) -> Callable[..., int | None]:
        """Return a function of arrays that runs a segment: None, or the number of words before where it stopped."""
        return self._make_function(ctypes.addressof(self._method), words, None)  # type: ignore[no-any-return]  # a function

    def layout_test(self, layouts: Sequence[LayoutFacts]) -> Callable[..., int | None]:
        """Return a function of arrays: None where they have these layouts, else the number of one that may not.

        A dtype counts as another where it is another object; those in `layouts` must be kept.

        Raises:
            MachineError: the machine is of an earlier release, and has no such test; `has("test_layouts")` tells.
        """
        if not self._layout_method.function:
            raise MachineError("the installed gradmgr-native has no test of layouts; install it again")
        words = [[id(kind), id(dtype), len(shape), *shape, *strides] for kind, shape, dtype, strides in layouts]
        made = np.array(list(itertools.chain(*words)), np.int64)
        return self._make_function(ctypes.addressof(self._layout_method), made, None)  # type: ignore[no-any-return]  # a function

    def loop(self, ufunc: np.ufunc, dtypes: tuple[Any, ...], *, reduction: bool = False) -> UfuncLoop | None:
        """Return the loop of a ufunc for dtypes, and types of Python numbers; None if it needs Python or is none."""
        key = (ufunc, dtypes, reduction)
        if key not in self._loops:
            self._loops[key] = self._resolve(ufunc, dtypes, reduction)
        return self._loops[key]

    def _resolve(self, ufunc: Any, dtypes: tuple[Any, ...], reduction: bool) -> UfuncLoop | None:
        try:
            resolved, capsule = ufunc._resolve_dtypes_and_context(dtypes, reduction=reduction)
        except (TypeError, ValueError, OverflowError):
            return None
        if any(dtype.kind not in "biufc" for dtype in resolved):
            return None
        ufunc._get_strided_loop(capsule)
        info = _CallInfo.from_address(self._capsule_pointer(capsule, _CALL_INFO))
        if info.requires_pyapi or not info.loop:
            return None
        return UfuncLoop(resolved, info.loop, info.context or 0, info.auxdata or 0, capsule)


def _prototype(name: str, arguments: list[Any], result: Any = ctypes.py_object) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Found:
    """Finds the machine once.

    Attributes:
        reason: why there is none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searched = False
        self._machine: Machine | None = None
        self.reason = "not searched yet"

    def get(self, test: Callable[[Machine], None]) -> Machine | None:
        """Return the machine if it is installed and passes a test, which raises MachineError where it does not."""
        with self._lock:
            if not self._searched:
                self._searched = True
                try:
                    machine = load()
                    test(machine)
                    self._machine, self.reason = machine, ""
                except MachineError as error:
                    self.reason = str(error)
            return self._machine


def load() -> Machine:
    """Load the machine.

    Raises:
        MachineError: it is not installed, or this NumPy or Python is not one that it knows.
    """
    try:
        package: Any = importlib.import_module("gradmgr_native")
        return Machine(str(package.library()))
    except ImportError:
        raise MachineError(f"gradmgr-native is not installed; {errors.how_to_install('native')}") from None
    except (OSError, AttributeError, ValueError) as error:
        raise MachineError(f"gradmgr-native does not work here: {error}") from error


found = Found()
