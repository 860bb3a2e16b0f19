"""oneDNN, through its C interface and ctypes, where the library is installed.

It is looked for when it is first asked for, not when gradmgr is imported. What is computed by it is elsewhere: float32
convolutions in gradmgr.nn, and matrix products of compiled functions.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradmgr import errors

# ---------------------------------------------------------------- constants of dnnl_types.h, version 3

_CPU, _STRICT, _USERS = 1, 0, 1
_INVALID, _UNIMPLEMENTED = 2, 3
# The threading runtimes with which the library can be used: none, or OpenMP. TBB has no C interface to set the number
# of threads, SYCL needs a CPU driver and takes no pointers, and a thread pool would have to be written in C++.
_SEQUENTIAL, _OPENMP = 1, 2


class Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class UnsupportedError(Exception):
    """The library has no primitive for what was asked for."""


# ---------------------------------------------------------------- the library

_P, _I = ctypes.c_void_p, ctypes.c_int
_OUT = ctypes.POINTER(ctypes.c_void_p)
_SIZES = ctypes.POINTER(ctypes.c_int64)
_SIGNATURES = MappingProxyType(
    {
        "dnnl_engine_create": (_OUT, _I, ctypes.c_size_t),
        "dnnl_stream_create": (_OUT, _P, ctypes.c_uint),
        "dnnl_primitive_attr_create": (_OUT,),
        "dnnl_primitive_attr_set_scratchpad_mode": (_P, _I),
        "dnnl_primitive_attr_set_fpmath_mode": (_P, _I),
        "dnnl_memory_desc_create_with_tag": (_OUT, _I, _SIZES, _I, _I),
        "dnnl_convolution_forward_primitive_desc_create": (_OUT, _P, _I, _I, *[_P] * 4, *[_SIZES] * 4, _P),
        "dnnl_convolution_backward_data_primitive_desc_create": (_OUT, _P, _I, *[_P] * 3, *[_SIZES] * 4, _P, _P),
        "dnnl_convolution_backward_weights_primitive_desc_create": (_OUT, _P, _I, *[_P] * 4, *[_SIZES] * 4, _P, _P),
        "dnnl_reorder_primitive_desc_create": (_OUT, *[_P] * 5),
        "dnnl_primitive_create": (_OUT, _P),
        "dnnl_primitive_execute": (_P, _P, _I, _P),
        "dnnl_memory_create": (_OUT, _P, _P, _P),
        "dnnl_memory_set_data_handle": (_P, _P),
    }
)
_MADE_BY = MappingProxyType(  # the kind of object that a function makes, by which its destructor is named
    {
        "dnnl_stream_create": "stream",
        "dnnl_primitive_create": "primitive",
        "dnnl_memory_create": "memory",
        "dnnl_memory_desc_create_with_tag": "memory_desc",
        "dnnl_reorder_primitive_desc_create": "primitive_desc",
        **{
            f"dnnl_convolution_{which}_primitive_desc_create": "primitive_desc"
            for which in ("forward", "backward_data", "backward_weights")
        },
    }
)


class Handle:
    """An object made by the library; destroyed when the handle is freed."""

    __slots__ = ("__weakref__", "_as_parameter_")

    def __init__(self, value: ctypes.c_void_p, destroy: Any) -> None:
        self._as_parameter_ = value
        weakref.finalize(self, destroy, value).atexit = False  # at exit the process frees everything


class Library:
    """oneDNN: its functions, one engine for the CPU, and the primitives made so far."""

    def __init__(self, path: str) -> None:
        """Load the library.

        Raises:
            OSError: it cannot be loaded or used; the message says why.
        """
        self.path = path
        self._lib = ctypes.CDLL(path)
        # Functions too short to release the interpreter's lock for.
        self._brief = ctypes.PyDLL(path, handle=self._lib._handle)
        try:
            self._check()
            self._declare()
        except AttributeError as error:
            raise OSError(f"it has not the functions of oneDNN 3: {error}") from error
        self.engine = self._new("dnnl_engine_create", _CPU, 0)
        self.attributes = self._new("dnnl_primitive_attr_create")
        self.call("dnnl_primitive_attr_set_scratchpad_mode", self.attributes, _USERS)  # one for each thread
        self.call("dnnl_primitive_attr_set_fpmath_mode", self.attributes, _STRICT)  # whatever the environment says
        # A plan takes about 100 kB, and up to 5 ms to make.
        self.plan = lru_cache(256)(self._plan)

    def _check(self) -> None:
        """Raise unless the version and the threading runtime are supported."""
        get_version = self._lib.dnnl_version
        get_version.restype = ctypes.POINTER(Version)
        found = get_version().contents
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        if found.major != 3:
            raise OSError(f"it is oneDNN {self.version}; 3 is needed")
        if found.cpu_runtime not in (_SEQUENTIAL, _OPENMP):
            raise OSError(
                f"it is oneDNN {self.version} built on runtime {found.cpu_runtime} (4 is TBB, 8 a pool of threads, 512 "
                "SYCL); needed is one built on OpenMP"
            )
        self.has_openmp = found.cpu_runtime == _OPENMP

    def _declare(self) -> None:
        for name, arguments in _SIGNATURES.items():
            getattr(self._lib, name).argtypes = arguments
        self.execute = self._lib.dnnl_primitive_execute
        self.set_address = self._brief.dnnl_memory_set_data_handle
        self.set_address.argtypes = _P, _P
        self._query = self._brief.dnnl_primitive_desc_query_md
        self._query.argtypes, self._query.restype = (_P, _I, _I), ctypes.c_void_p
        self.nbytes = self._brief.dnnl_memory_desc_get_size
        self.nbytes.argtypes, self.nbytes.restype = (_P,), ctypes.c_size_t
        self.are_equal = self._brief.dnnl_memory_desc_equal
        self.are_equal.argtypes = _P, _P
        self._destroyers = {kind: getattr(self._brief, f"dnnl_{kind}_destroy") for kind in {*_MADE_BY.values()}}
        for destroy in self._destroyers.values():
            destroy.argtypes = (_P,)
        if self.has_openmp:  # those of the OpenMP runtime that the library is linked to
            self._get_threads, self._set_threads = self._brief.omp_get_max_threads, self._brief.omp_set_num_threads

    def address(self, name: str) -> int:
        """Return the address of one of its functions, or of the OpenMP runtime's that it is linked to."""
        return ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value or 0

    def instructions(self) -> int:
        """Return the set of the processor's instructions that it uses, in the bits of dnnl_cpu_isa_t."""
        return int(self._brief.dnnl_get_effective_cpu_isa())

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library, and raise the error for its status, if any."""
        status = getattr(self._lib, name)(*arguments)
        if status in (_INVALID, _UNIMPLEMENTED):
            raise UnsupportedError(name)
        self.check(status, name)

    def check(self, status: int, name: str) -> None:
        """Raise the error for the status of a function, if any."""
        if status == 1:
            raise MemoryError(f"oneDNN's {name} is out of memory")
        if status:
            raise RuntimeError(f"oneDNN's {name} failed with status {status}")

    def _new(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def make(self, name: str, *arguments: Any) -> Handle:
        """Call a function that makes an object, and return its handle."""
        return Handle(self._new(name, *arguments), self._destroyers[_MADE_BY[name]])

    def layout_of(self, primitive_desc: Handle, what: int) -> int:
        """Return the memory descriptor of a primitive's argument; it lives as long as the primitive descriptor."""
        found: int | None = self._query(primitive_desc, what, 0)
        if found is None:
            raise UnsupportedError("dnnl_primitive_desc_query_md")
        return found

    def _plan(self, make: Callable[..., Any], *description: Any) -> Any:
        """Return what `make` makes of the library and a description, or None if the library does not support it."""
        try:
            with OneThread(self):
                return make(self, *description)
        except UnsupportedError:
            return None


class OneThread:
    """Makes the library compute on this thread alone inside a with block, and restores OpenMP's setting afterwards."""

    __slots__ = ("before", "library")

    def __init__(self, library: Library) -> None:
        self.library = library

    def __enter__(self) -> None:
        if self.library.has_openmp:
            self.before = self.library._get_threads()
            self.library._set_threads(1)

    def __exit__(self, *_: object) -> None:
        if self.library.has_openmp:
            self.library._set_threads(self.before)


class Found:
    """The library that this process uses; it is looked for once."""

    def __init__(self) -> None:
        self.looked = False
        self.library: Library | None = None
        self.reason = ""

    def get(self) -> Library | None:
        if not self.looked:
            self.library, self.reason = find(library_paths())
            self.looked = True
        return self.library


def find(places: list[str]) -> tuple[Library | None, str]:
    """Return the first library that can be used, or None and why there is none."""
    reasons = []
    for place in places:
        try:
            return Library(place), ""
        except (OSError, RuntimeError, UnsupportedError) as error:
            reasons.append(f"{place}: {error}")
    return None, "; ".join(reasons) or f"no oneDNN is installed; {errors.how_to_install('onednn')}"


_FILES = frozenset(("libdnnl.so.3", "libdnnl.3.dylib", "dnnl.dll"))


def library_paths() -> list[str]:
    """Return the paths of library files in packages of this environment, or in its folders, as conda installs them."""
    places = []
    for name in ("onednn-cpu-gomp", "onednn"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        places += [file.locate() for file in files if file.name in _FILES]
    places += [Path(sys.prefix, *folder, name) for folder in (("lib",), ("Library", "bin")) for name in sorted(_FILES)]
    return list(dict.fromkeys(str(Path(place).resolve()) for place in places if Path(place).is_file()))


found = Found()
