"""oneDNN's convolutions, by its C interface and ctypes, where the library is installed.

It is looked for at the first convolution that is large enough, and never imported with gradmgr. What it does not do,
or does slower, is for NumPy: every function here returns None then. It computes in float32, strictly.

Images are cut into blocks, by shape alone, each computed by one thread: results are the same for any number of
threads, they follow gradmgr.set_num_threads, OpenMP never starts a team (after which a process may not fork), and
what is reordered for the library, whose channels stand beside each other, stays in the processor's cache.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.blocks import run as run_blocks
from gradmgr.nn._functions.windows import Geometry

# ---------------------------------------------------------------- constants of dnnl_types.h, version 3

_CPU, _IN_ORDER, _F32, _STRICT, _USERS = 1, 1, 3, 0, 1
_FORWARD, _DIRECT = 64, 1
_ANY, _A, _ABCD, _ABCDE = 1, 2, 5, 6  # format tags: the library's choice, and C order
_SCRATCHPAD_MD, _SCRATCHPAD = 136, 80
_BIAS = 41
_FROM, _TO = 1, 17
# For each primitive what is asked for the layouts of images, weights, results, and how it calls them as arguments.
_QUERIES = MappingProxyType({"forward": (129, 131, 133), "data": (130, 131, 134), "weights": (129, 132, 134)})
_ARGUMENTS = MappingProxyType({"forward": (1, 33, 17), "data": (129, 33, 145), "weights": (1, 161, 145)})
_MADE = MappingProxyType({"forward": 2, "data": 0, "weights": 1})  # which of the three it makes
_INVALID, _UNIMPLEMENTED = 2, 3
# What the library may be built on: one thread, or OpenMP. TBB's number of threads has no C interface, SYCL asks for
# a driver of the CPU and takes no pointers, and a pool of threads would have to be C++.
_SEQUENTIAL, _OPENMP = 1, 2

_Dims = ctypes.c_int64 * 12


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("name", ctypes.c_int), ("memory", ctypes.c_void_p))


class _UnsupportedError(Exception):
    """The library has no primitive for this."""


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
        "dnnl_primitive_execute": (_P, _P, _I, ctypes.POINTER(_Argument)),
        "dnnl_memory_create": (_OUT, _P, _P, _P),
        "dnnl_memory_set_data_handle": (_P, _P),
    }
)
_MADE_BY = MappingProxyType(  # what is destroyed by the function of its name
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


class _Handle:
    """What the library made; destroyed when nobody holds it."""

    __slots__ = ("__weakref__", "_as_parameter_")

    def __init__(self, value: ctypes.c_void_p, destroy: Any) -> None:
        self._as_parameter_ = value
        weakref.finalize(self, destroy, value).atexit = False  # the process's end frees all


class Library:
    """oneDNN: its functions, one engine for the CPU, and the primitives made so far."""

    def __init__(self, path: str) -> None:
        """Load the library.

        Raises:
            OSError: it cannot be loaded, or is none that can be used; which says why.
        """
        self.path = path
        self._lib = ctypes.CDLL(path)
        # Calls too short to let other threads run for: these keep the interpreter's lock.
        self._brief = ctypes.PyDLL(path, handle=self._lib._handle)
        try:
            self._check()
            self._declare()
        except AttributeError as error:
            raise OSError(f"it has not the functions of oneDNN 3: {error}") from error
        self.engine = self._new("dnnl_engine_create", _CPU, 0)
        self.attributes = self._new("dnnl_primitive_attr_create")
        self.call("dnnl_primitive_attr_set_scratchpad_mode", self.attributes, _USERS)  # so that threads share nothing
        self.call("dnnl_primitive_attr_set_fpmath_mode", self.attributes, _STRICT)  # whatever its variables say
        # An entry takes some 100 kB, and up to 5 ms to make.
        self.plan = lru_cache(256)(self._plan)

    def _check(self) -> None:
        """Raise unless it is of the version and kind this module knows."""
        asked = self._lib.dnnl_version
        asked.restype = ctypes.POINTER(_Version)
        found = asked().contents
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        if found.major != 3:
            raise OSError(f"it is oneDNN {self.version}; 3 is needed")
        if found.cpu_runtime not in (_SEQUENTIAL, _OPENMP):
            raise OSError(
                f"it is oneDNN {self.version} built on runtime {found.cpu_runtime} (4 is TBB, 8 a pool of threads, 512 "
                "SYCL); needed is one built on OpenMP"
            )
        self._openmp = found.cpu_runtime == _OPENMP

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
        if self._openmp:  # of the runtime the library itself is linked to
            self._get_threads, self._set_threads = self._brief.omp_get_max_threads, self._brief.omp_set_num_threads

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that makes or sets something, and raise what its status says."""
        status = getattr(self._lib, name)(*arguments)
        if status in (_INVALID, _UNIMPLEMENTED):
            raise _UnsupportedError(name)
        self.check(status, name)

    def check(self, status: int, name: str) -> None:
        """Raise what the status of a function says."""
        if status == 1:
            raise MemoryError(f"oneDNN's {name} is out of memory")
        if status:
            raise RuntimeError(f"oneDNN's {name} failed with status {status}")

    def _new(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def make(self, name: str, *arguments: Any) -> _Handle:
        """Call a function that makes something."""
        return _Handle(self._new(name, *arguments), self._destroyers[_MADE_BY[name]])

    def layout_of(self, primitive_desc: _Handle, what: int) -> int:
        """Return the memory descriptor in which a primitive has an argument; it lives as long as the primitive's."""
        found: int | None = self._query(primitive_desc, what, 0)
        if found is None:
            raise _UnsupportedError("dnnl_primitive_desc_query_md")
        return found

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Let the library compute on this thread only, and leave OpenMP to others as it was."""
        if not self._openmp:
            yield
            return
        before = self._get_threads()
        self._set_threads(1)
        try:
            yield
        finally:
            self._set_threads(before)

    def _plan(self, *facts: Any) -> _Plan | None:
        """Return how to compute a convolution, None where the library does not."""
        try:
            with self.one_thread():
                return _Plan(self, *facts)
        except _UnsupportedError:
            return None


class _Found:
    """The library that this process computes convolutions with, looked for once."""

    def __init__(self) -> None:
        self.looked = False
        self.library: Library | None = None
        self.reason = ""

    def get(self) -> Library | None:
        if not self.looked:
            self.library, self.reason = find(_places())
            self.looked = True
        return self.library


def find(places: list[str]) -> tuple[Library | None, str]:
    """Return the first library that can be used, or None and why there is none."""
    reasons = []
    for place in places:
        try:
            return Library(place), ""
        except (OSError, RuntimeError, _UnsupportedError) as error:
            reasons.append(f"{place}: {error}")
    return None, "; ".join(reasons) or "no oneDNN is installed; pip install gradmgr[onednn]"


_FILES = frozenset(("libdnnl.so.3", "libdnnl.3.dylib", "dnnl.dll"))


def _places() -> list[str]:
    """Return where the library may be: in a package of this environment, or in the environment itself, as conda's."""
    places = []
    for name in ("onednn-cpu-gomp", "onednn"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        places += [file.locate() for file in files if file.name in _FILES]
    places += [Path(sys.prefix, *folder, name) for folder in (("lib",), ("Library", "bin")) for name in sorted(_FILES)]
    return list(dict.fromkeys(str(Path(place).resolve()) for place in places if Path(place).is_file()))


_found = _Found()


def convolution_library() -> str:
    """Say with what convolutions of float32 are computed on the CPU: with oneDNN, or with NumPy and why.

    oneDNN is used where it is installed (`pip install gradmgr[onednn]`, or conda's onednn-cpu-omp) and the
    convolution is not a small one. The results are the same up to rounding, and for any number of threads.

    >>> from gradmgr import nn
    >>> nn.convolution_library().partition(" ")[0] in ("oneDNN", "NumPy")
    True
    """
    library = _found.get()
    return f"NumPy ({_found.reason})" if library is None else f"oneDNN {library.version} ({library.path})"


# ---------------------------------------------------------------- primitives


class _Plan:
    """A convolution of so many images of these shapes, or one of its adjoints, as the library computes it.

    Images, weights and results are its operands 0, 1, 2, in this order.
    """

    def __init__(
        self, library: Library, kind: str, geometry: Geometry, shapes: Any, has_bias: bool, like: _Plan | None
    ) -> None:
        self.library, self.kind, self.has_bias, self.made = library, kind, has_bias, _MADE[kind]
        plain = [self._describe(shape, _ABCDE if len(shape) == 5 else _ABCD) for shape in shapes]
        wanted: list[Any] = [self._describe(shape, _ANY) for shape in shapes]
        if like is not None:  # the rest of a batch, whose weights are laid out as those of the whole blocks
            wanted[1] = like.layouts[1]
        bias = self._describe(shapes[2][1:2], _A) if has_bias else None
        self.of = of = self._primitive_desc(geometry, wanted, bias)
        self.primitive = library.make("dnnl_primitive_create", of)
        self.layouts: list[Any] = [library.layout_of(of, what) for what in _QUERIES[kind]]
        self.bytes = [library.nbytes(layout) for layout in self.layouts]
        self.scratchpad = library.layout_of(of, _SCRATCHPAD_MD)
        self.bytes_of_scratchpad = library.nbytes(self.scratchpad)
        # Descriptors must outlive this function, as what is found in them does not outlive them.
        self.bias, self.plain = bias, plain
        # How to bring an operand into the layout in which the primitive has it, or out of it.
        self.reorders = [self._reorder(k) for k in range(3)]
        self.seats: list[_Seat] = []  # not in use

    def _describe(self, shape: tuple[int, ...], tag: int) -> _Handle:
        return self.library.make("dnnl_memory_desc_create_with_tag", len(shape), _Dims(*shape), _F32, tag)

    def _primitive_desc(self, geometry: Geometry, wanted: list[Any], bias: _Handle | None) -> _Handle:
        library, facts = self.library, zip(*geometry[:6], strict=True)
        behind = [max(0, (m - 1) * s + (k - 1) * d + 1 - n - p) for n, k, m, s, p, d in facts]
        gaps = [d - 1 for d in geometry.dilation]
        places = [_Dims(*pair) for pair in (geometry.stride, gaps, geometry.padding, behind)]
        ahead = library.make(
            "dnnl_convolution_forward_primitive_desc_create",
            *(library.engine, _FORWARD, _DIRECT, wanted[0], wanted[1], bias, wanted[2], *places, library.attributes),
        )
        if self.kind == "forward":
            return ahead
        return library.make(
            f"dnnl_convolution_backward_{self.kind}_primitive_desc_create",
            *(library.engine, _DIRECT, wanted[0], wanted[1], *([None] if self.kind == "weights" else []), wanted[2]),
            *(*places, ahead, library.attributes),
        )

    def _reorder(self, operand: int) -> _Handle | None:
        library, pair = self.library, [self.plain[operand], self.layouts[operand]]
        if library.are_equal(*pair):
            return None
        here, there = pair if operand != self.made else reversed(pair)
        of = library.make("dnnl_reorder_primitive_desc_create", here, library.engine, there, library.engine, None)
        return library.make("dnnl_primitive_create", of)

    def take(self) -> _Seat:
        """Return a seat that nobody else uses; to be given back by `seats.append`."""
        try:
            return self.seats.pop()
        except IndexError:
            return _Seat(self)


class _Seat:
    """What one thread needs to execute a plan: a stream, and memory objects, which it points to where arrays are."""

    def __init__(self, plan: _Plan) -> None:
        library = self.library = plan.library
        # The plan holds seats; were it held by them, their memory would wait for the garbage collector.
        self.primitive, self.reorders, self.bytes, self.made = plan.primitive, plan.reorders, plan.bytes, plan.made
        self.stream = library.make("dnnl_stream_create", library.engine, _IN_ORDER)
        self.inside = [self._memory(layout) for layout in plan.layouts]
        self.outside = [
            None if reorder is None else self._memory(layout)
            for layout, reorder in zip(plan.plain, plan.reorders, strict=True)
        ]
        self.scratchpad = self._memory(plan.scratchpad)
        self.bias = self._memory(plan.bias) if plan.has_bias else None
        pairs = [*zip(_ARGUMENTS[plan.kind], self.inside, strict=True), (_SCRATCHPAD, self.scratchpad)]
        if self.bias is not None:
            pairs.append((_BIAS, self.bias))
        self.arguments = self._pack(pairs)
        self.of_reorders = [self._of_reorder(k) for k in range(3)]

    def _of_reorder(self, operand: int) -> Any:
        here, there = self.inside[operand], self.outside[operand]
        if there is None:
            return None
        pair = (here, there) if operand == self.made else (there, here)
        return self._pack([(_FROM, pair[0]), (_TO, pair[1])])

    def _memory(self, layout: Any) -> _Handle:
        return self.library.make("dnnl_memory_create", layout, self.library.engine, None)

    def _pack(self, pairs: list[tuple[int, _Handle]]) -> Any:
        return (_Argument * len(pairs))(*[_Argument(name, memory._as_parameter_.value) for name, memory in pairs])

    def _execute(self, primitive: Any, arguments: Any) -> None:
        status = self.library.execute(primitive, self.stream, len(arguments), arguments)
        if status:
            self.library.check(status, "dnnl_primitive_execute")

    def reorder(self, operand: int, plain: int, inside: int) -> None:
        """Copy an operand at one address in C order to or from another in the primitive's layout."""
        self.library.set_address(self.outside[operand], plain)
        self.library.set_address(self.inside[operand], inside)
        self._execute(self.reorders[operand], self.of_reorders[operand])

    def run(self, addresses: list[int], room: int, is_laid_out: bool) -> None:
        """Execute the primitive on arrays in C order, but for the weights where they are laid out already."""
        set_address = self.library.set_address
        inside, at = list(addresses), room
        for k, reorder in enumerate(self.reorders):
            if reorder is not None and not (k == 1 and is_laid_out):
                inside[k] = at
                at += _aligned(self.bytes[k])
                if k != self.made:
                    self.reorder(k, addresses[k], inside[k])
            set_address(self.inside[k], inside[k])
        set_address(self.scratchpad, at)
        self._execute(self.primitive, self.arguments)
        if inside[self.made] != addresses[self.made]:
            self.reorder(self.made, addresses[self.made], inside[self.made])


# ---------------------------------------------------------------- blocks of images

_LINE = 64  # bytes, to which rooms are aligned
_BLOCK = 1 << 21  # bytes of images and results of a block: more than the cache has, as each call costs 5 us
_WORTH_FOUR = 1 << 24  # multiplications, 0.15 ms on one thread, from which on threads are given work
_PARTIAL = 1 << 24  # bytes of weights' gradients, of a few blocks each


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def _room(nbytes: int) -> Any:
    """Make memory for a block."""
    room = np.empty(nbytes + _LINE, np.uint8)
    return room[-_address(room) % _LINE :]


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _Job:
    """One convolution: the three operands, of which it makes one, in C order."""

    def __init__(
        self, library: Library, kind: str, geometry: Geometry, x: Any, w: Any, z: Any, b: Any, multiplications: int
    ) -> None:
        self.library, self.kind, self.geometry, self.bias = library, kind, geometry, b
        self.operands = x, w, z
        self.addresses = [_address(x), _address(w), _address(z)]
        self.count: int = x.shape[0]
        self.steps = x.nbytes // self.count, z.nbytes // self.count  # bytes of an image
        self.images = self._images(multiplications)

    def _images(self, multiplications: int) -> int:
        """Return how many images are a block, by the shapes alone."""
        count = self.count
        most: int = max(1, _BLOCK // sum(self.steps))
        if multiplications >= _WORTH_FOUR:
            most = min(most, -(-count // 4))
        if self.kind == "weights":  # the sum of each block's is kept
            number = min(8, max(1, _PARTIAL // self.operands[1].nbytes))
            most = max(most, -(-count // number))
        times = -(-count // most)
        return -(-count // times)

    def plan(self, images: int, like: _Plan | None = None) -> _Plan | None:
        """Return how to compute so many images."""
        x, w, z = (array.shape for array in self.operands)
        groups = self.geometry.groups
        if groups > 1:
            w = (groups, w[0] // groups, *w[1:])
        shapes = ((images, *x[1:]), w, (images, *z[1:]))
        found: _Plan | None = self.library.plan(self.kind, self.geometry, shapes, self.bias is not None, like)
        return found

    def run(self) -> bool:
        """Compute; returns whether the library can."""
        rest = self.count % self.images
        plan = self.plan(self.images)
        tail = self.plan(rest, plan) if rest else plan
        if plan is None or tail is None:
            return False
        weights, kept, step = self.addresses[1], None, 0
        seat = plan.take()
        if self.kind == "weights":
            number = -(-self.count // self.images)
            if number > 1:
                kept = np.empty((number, plan.bytes[1] // 4), np.float32)
                weights, step = _address(kept), plan.bytes[1]
        elif plan.reorders[1] is not None:
            kept = _room(plan.bytes[1])
            weights = _address(kept)
            with self.library.one_thread():
                seat.reorder(1, self.addresses[1], weights)
        plan.seats.append(seat)

        def work(some: slice) -> None:
            n = some.start // self.images
            this = plan if some.stop <= self.count else tail
            here = [self.addresses[0] + some.start * self.steps[0], weights + n * step]
            here.append(self.addresses[2] + some.start * self.steps[1])
            self._one(this, here, kept is not None)

        run_blocks(work, [slice(n, n + self.images) for n in range(0, self.count, self.images)])
        if self.kind == "weights" and kept is not None:
            self._put(plan, kept)
        return True

    def _one(self, plan: _Plan, addresses: list[int], is_laid_out: bool) -> None:
        """Compute one block on this thread."""
        needed = sum([_aligned(plan.bytes[k]) for k in range(3) if plan.reorders[k] is not None])
        room = _room(needed + plan.bytes_of_scratchpad)
        seat = plan.take()
        if seat.bias is not None:
            self.library.set_address(seat.bias, _address(self.bias))
        with self.library.one_thread():
            seat.run(addresses, _address(room), is_laid_out)
        plan.seats.append(seat)

    def _put(self, plan: _Plan, partial: Any) -> None:
        """Add up what the blocks gave for the weights, in their order."""
        total = np.add.reduce(partial, 0)
        if plan.reorders[1] is None:
            self.operands[1].reshape(-1)[...] = total
            return
        seat = plan.take()
        with self.library.one_thread():
            seat.reorder(1, self.addresses[1], _address(total))
        plan.seats.append(seat)


# ---------------------------------------------------------------- the three ops' kernels

# Multiplications below which the 20 us of a call, and the 20 ms of the first, do not pay; and those of kernels of one
# number, for which NumPy has one matrix product.
_SMALL, _SMALL_POINTWISE = 1 << 16, 1 << 22
# Channels of images in a group, below which NumPy is quicker in what has their shape; and those of each of several
# groups, on both sides: the library computes 16 at once. But it has kernels for groups of one.
_FEW, _FEW_OF_GROUP = 4, 8


def _plain(array: Any) -> Any:
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()


def _is_for_numpy(kind: str, work: int, w: tuple[int, ...], groups: int) -> bool:
    """Tell whether NumPy computes this in less time."""
    inputs, outputs = w[1], w[0] // groups
    if work < (_SMALL_POINTWISE if w[2:] == (1, 1) else _SMALL):
        return True
    if groups == 1:
        return kind == "data" and inputs < _FEW
    return min(inputs, outputs) < _FEW_OF_GROUP and not inputs == outputs == 1


def _asked(kind: str, geometry: Geometry, count: int, w: tuple[int, ...], *arrays: Any) -> tuple[Library | None, int]:
    """Return the library where it may compute this, and how many multiplications it takes."""
    work = count * geometry.out[0] * geometry.out[1] * w[0] * w[1] * w[2] * w[3]
    if work == 0 or _is_for_numpy(kind, work, w, geometry.groups):
        return None, work
    if not all(a.__class__ is np.ndarray and a.dtype == libraries.F4 for a in arrays):
        return None, work
    # The library does not tell NumPy of an overflow.
    return (None if libraries.float_errors_raise() else _found.get()), work


def forward(x: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Cross-correlate as nn.conv2d does; None where it is for NumPy."""
    library, work = _asked("forward", geometry, x.shape[0], w.shape, *((x, w) if b is None else (x, w, b)))
    if library is None:
        return None
    z = np.empty((x.shape[0], w.shape[0], *geometry.out), np.float32)
    b = None if b is None else _plain(b)
    return z if _Job(library, "forward", geometry, _plain(x), _plain(w), z, b, work).run() else None


def data(g: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Apply the adjoint in the images and add b, as nn.conv_transpose2d does; None where it is for NumPy."""
    library, work = _asked("data", geometry, g.shape[0], w.shape, *((g, w) if b is None else (g, w, b)))
    if library is None:
        return None
    x = np.empty((g.shape[0], w.shape[1] * geometry.groups, *geometry.size), np.float32)
    if not _Job(library, "data", geometry, x, _plain(w), _plain(g), None, work).run():
        return None
    return x if b is None else np.add(x, b.reshape((-1, 1, 1)), out=x)


def weights(x: Any, g: Any, geometry: Geometry) -> Any:
    """Apply the adjoint in the weights, as nn.conv2d_weight does; None where it is for NumPy."""
    shape = (g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
    library, work = _asked("weights", geometry, g.shape[0], shape, x, g)
    if library is None:
        return None
    w = np.empty(shape, np.float32)
    return w if _Job(library, "weights", geometry, _plain(x), w, _plain(g), None, work).run() else None
