"""Convolutions by oneDNN, through its C interface and ctypes, where the library is installed.

The library is looked for at the first convolution that is large enough, not when gradmgr is imported. For cases that it
does not support or computes more slowly than NumPy, the functions here return None. It computes strictly in float32.

Images are cut into blocks, which depend on shapes alone, and each block is computed by one thread. So results are the
same for any number of threads, gradmgr.set_num_threads applies, OpenMP never starts its own threads (after which a
process must not fork), and arrays that are reordered into the library's layouts stay in the processor's cache.

Where gradmgr-native is installed, images are returned with the channels last in memory (`memory_order`), so that from
one convolution to the next nothing is reordered: a training step of a residual network takes 7 % less time than with
results in C order. Batch norm and pooling by NumPy alone would take up to twice their time then, so that without
those kernels results are in C order. Images are taken in both orders. Weights are in C order, as parameters are.
"""

from __future__ import annotations

import ctypes
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import libraries, native_kernels, onednn_library
from gradmgr._arrays.blocks import run as run_blocks
from gradmgr._arrays.memory_order import empty_with_channels_last, with_channels_last
from gradmgr._arrays.onednn_library import Handle, Library, OneThread
from gradmgr.nn._functions.windows import Geometry

# ---------------------------------------------------------------- constants of dnnl_types.h, version 3

_IN_ORDER, _F32 = 1, 3
_FORWARD, _DIRECT = 64, 1
_ANY, _A, _ABCD, _ABCDE = 1, 2, 5, 6  # format tags: the library's choice, and C order
_ACDB = 22  # channels last
_SCRATCHPAD_MD, _SCRATCHPAD = 136, 80
_BIAS = 41
_FROM, _TO = 1, 17
# For each primitive: the queries for the layouts of images, weights and results, and the names of these arguments.
_QUERIES = MappingProxyType({"forward": (129, 131, 133), "data": (130, 131, 134), "weights": (129, 132, 134)})
_ARGUMENTS = MappingProxyType({"forward": (1, 33, 17), "data": (129, 33, 145), "weights": (1, 161, 145)})
_MADE = MappingProxyType({"forward": 2, "data": 0, "weights": 1})  # the index of its result among the three
_Dims = ctypes.c_int64 * 12


class _Argument(ctypes.Structure):
    _fields_ = (("name", ctypes.c_int), ("memory", ctypes.c_void_p))


def convolution_library() -> str:
    """Return the name of the library that computes float32 convolutions on the CPU: oneDNN, or NumPy and the reason.

    oneDNN is used if it is installed (the extra `onednn`, or conda's onednn-cpu-omp) and the convolution is
    not small. Its results differ by rounding only, and are the same for any number of threads.

    >>> from gradmgr import nn
    >>> nn.convolution_library().partition(" ")[0] in ("oneDNN", "NumPy")
    True
    """
    library = onednn_library.found.get()
    return f"NumPy ({onednn_library.found.reason})" if library is None else f"oneDNN {library.version} ({library.path})"


# ---------------------------------------------------------------- primitives


class _Plan:
    """The library's primitives for a convolution, or one of its adjoints, of given shapes and number of images.

    Images, weights and results are its operands 0, 1 and 2; they are given in the layouts of these tags.
    """

    def __init__(
        self,
        library: Library,
        kind: str,
        geometry: Geometry,
        shapes: Any,
        tags: tuple[int, int, int],
        has_bias: bool,
        like: _Plan | None,
    ) -> None:
        self.library, self.kind, self.has_bias, self.made = library, kind, has_bias, _MADE[kind]
        plain = [self._describe(shape, tag) for shape, tag in zip(shapes, tags, strict=True)]
        images = _ACDB if _ACDB in tags else _ANY
        wanted: list[Any] = [
            self._describe(shape, tag) for shape, tag in zip(shapes, (images, _ANY, images), strict=True)
        ]
        if like is not None:  # for the last images of a batch: use the weights in the layout of the full blocks
            wanted[1] = like.layouts[1]
        bias = self._describe(shapes[2][1:2], _A) if has_bias else None
        self.of = of = self._primitive_desc(geometry, wanted, bias)
        self.primitive = library.make("dnnl_primitive_create", of)
        self.layouts: list[Any] = [library.layout_of(of, what) for what in _QUERIES[kind]]
        self.bytes = [library.nbytes(layout) for layout in self.layouts]
        self.scratchpad = library.layout_of(of, _SCRATCHPAD_MD)
        self.bytes_of_scratchpad = library.nbytes(self.scratchpad)
        # Kept, as the layouts found in a descriptor do not outlive it.
        self.bias, self.plain = bias, plain
        # The primitives that convert operands into the layouts of the primitive, or the result out of it.
        self.reorders = [self._reorder(k) for k in range(3)]
        # A block needs memory for the operands that are reordered, and the scratchpad.
        self.aligned_bytes = [_align(nbytes) for nbytes in self.bytes]
        reordered = [n for n, reorder in zip(self.aligned_bytes, self.reorders, strict=True) if reorder is not None]
        self.bytes_of_workspace = sum(reordered) + self.bytes_of_scratchpad
        self.executors: list[_Executor] = []  # those not in use

    def _describe(self, shape: tuple[int, ...], tag: int) -> Handle:
        return self.library.make("dnnl_memory_desc_create_with_tag", len(shape), _Dims(*shape), _F32, tag)

    def _primitive_desc(self, geometry: Geometry, wanted: list[Any], bias: Handle | None) -> Handle:
        library, axes = self.library, zip(*geometry[:6], strict=True)
        after = [max(0, (m - 1) * s + (k - 1) * d + 1 - n - p) for n, k, m, s, p, d in axes]
        gaps = [d - 1 for d in geometry.dilation]
        places = [_Dims(*pair) for pair in (geometry.stride, gaps, geometry.padding, after)]
        forward_desc = library.make(
            "dnnl_convolution_forward_primitive_desc_create",
            *(library.engine, _FORWARD, _DIRECT, wanted[0], wanted[1], bias, wanted[2], *places, library.attributes),
        )
        if self.kind == "forward":
            return forward_desc
        return library.make(
            f"dnnl_convolution_backward_{self.kind}_primitive_desc_create",
            *(library.engine, _DIRECT, wanted[0], wanted[1], *([None] if self.kind == "weights" else []), wanted[2]),
            *(*places, forward_desc, library.attributes),
        )

    def _reorder(self, operand: int) -> Handle | None:
        library, pair = self.library, [self.plain[operand], self.layouts[operand]]
        if library.are_equal(*pair):
            return None
        here, there = pair if operand != self.made else reversed(pair)
        of = library.make("dnnl_reorder_primitive_desc_create", here, library.engine, there, library.engine, None)
        return library.make("dnnl_primitive_create", of)

    def take(self) -> _Executor:
        """Return an executor for the caller alone; return it by `executors.append`."""
        try:
            return self.executors.pop()
        except IndexError:
            return _Executor(self)


class _Executor:
    """The objects one thread needs to execute a plan: a stream, and memory objects that are pointed at arrays."""

    def __init__(self, plan: _Plan) -> None:
        library = self.library = plan.library
        # The plan refers to executors; a reference back would leave their memory to the garbage collector.
        self.primitive, self.reorders, self.made = plan.primitive, plan.reorders, plan.made
        self.aligned_bytes = plan.aligned_bytes
        self.stream = library.make("dnnl_stream_create", library.engine, _IN_ORDER)
        self.reordered = [self._memory(layout) for layout in plan.layouts]
        self.plain_memory = [
            None if reorder is None else self._memory(layout)
            for layout, reorder in zip(plan.plain, plan.reorders, strict=True)
        ]
        self.scratchpad = self._memory(plan.scratchpad)
        self.bias = self._memory(plan.bias) if plan.has_bias else None
        pairs = [*zip(_ARGUMENTS[plan.kind], self.reordered, strict=True), (_SCRATCHPAD, self.scratchpad)]
        if self.bias is not None:
            pairs.append((_BIAS, self.bias))
        self.arguments = self._pack(pairs)
        self.reorder_arguments = [self._arguments_of_reorder(k) for k in range(3)]
        nbytes = plan.bytes_of_workspace
        self.workspace = _Workspace(nbytes) if nbytes <= _KEPT else None  # to make it again takes 4 us

    def _arguments_of_reorder(self, operand: int) -> Any:
        here, there = self.reordered[operand], self.plain_memory[operand]
        if there is None:
            return None
        pair = (here, there) if operand == self.made else (there, here)
        return self._pack([(_FROM, pair[0]), (_TO, pair[1])])

    def _memory(self, layout: Any) -> Handle:
        return self.library.make("dnnl_memory_create", layout, self.library.engine, None)

    def _pack(self, pairs: list[tuple[int, Handle]]) -> Any:
        return (_Argument * len(pairs))(*[_Argument(name, memory._as_parameter_.value) for name, memory in pairs])

    def _execute(self, primitive: Any, arguments: Any) -> None:
        status = self.library.execute(primitive, self.stream, len(arguments), arguments)
        if status:
            self.library.check(status, "dnnl_primitive_execute")

    def reorder(self, operand: int, plain: int, reordered: int) -> None:
        """Copy an operand from an address as it was given to one in the primitive's layout, or the result back."""
        self.library.set_address(self.plain_memory[operand], plain)
        self.library.set_address(self.reordered[operand], reordered)
        self._execute(self.reorders[operand], self.reorder_arguments[operand])

    def run(self, addresses: list[int], workspace: int, is_laid_out: bool) -> None:
        """Execute the primitive on arrays as they were described; only the weights may be in its layout already."""
        set_address = self.library.set_address
        reordered, at = list(addresses), workspace
        for k, reorder in enumerate(self.reorders):
            if reorder is not None and not (k == 1 and is_laid_out):
                reordered[k] = at
                at += self.aligned_bytes[k]
                if k != self.made:
                    self.reorder(k, addresses[k], reordered[k])
            set_address(self.reordered[k], reordered[k])
        set_address(self.scratchpad, at)
        self._execute(self.primitive, self.arguments)
        if reordered[self.made] != addresses[self.made]:
            self.reorder(self.made, addresses[self.made], reordered[self.made])


# ---------------------------------------------------------------- blocks of images

_LINE = 64  # alignment of workspaces, in bytes
_BLOCK = 1 << 21  # bytes of images and results of a block: more than fits in the cache, as each call costs 5 us
_WORTH_THREADS = 1 << 24  # multiplications, 0.15 ms on one thread, from which on several threads compute
_KEPT = 1 << 16  # bytes of the largest workspace that an executor keeps
_PARTIAL = 1 << 24  # bytes of partial gradients of the weights, each of a few blocks


def _align(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


class _Workspace:
    """Aligned memory, which it owns."""

    __slots__ = ("_memory", "address")

    def __init__(self, nbytes: int) -> None:
        self._memory = np.empty(nbytes + _LINE, np.uint8)
        self.address = _align(_address(self._memory))


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _Job:
    """One convolution: its three operands, one of which is its result; images with the channels last, or in C order."""

    def __init__(
        self, library: Library, kind: str, geometry: Geometry, x: Any, w: Any, z: Any, b: Any, multiplications: int
    ) -> None:
        self.library, self.kind, self.geometry, self.bias = library, kind, geometry, b
        self.operands = x, w, z
        self.tags = _tag_of(x), _ABCDE if geometry.groups > 1 else _ABCD, _tag_of(z)
        self.addresses = [_address(x), _address(w), _address(z)]
        self.count: int = x.shape[0]
        self.steps = x.nbytes // self.count, z.nbytes // self.count  # bytes of an image
        self.images = self._images_of_block(multiplications)

    def _images_of_block(self, multiplications: int) -> int:
        """Return the number of images of a block, which depends on the shapes alone."""
        count = self.count
        most: int = max(1, _BLOCK // sum(self.steps))
        if multiplications >= _WORTH_THREADS:
            most = min(most, -(-count // 4))
        if self.kind == "weights":  # each block keeps a partial gradient
            number = min(8, max(1, _PARTIAL // self.operands[1].nbytes))
            most = max(most, -(-count // number))
        times = -(-count // most)
        return -(-count // times)

    def plan(self, images: int, like: _Plan | None = None) -> _Plan | None:
        """Return the plan for this number of images."""
        x, w, z = self.operands[0].shape, self.operands[1].shape, self.operands[2].shape
        groups = self.geometry.groups
        if groups > 1:
            w = (groups, w[0] // groups, *w[1:])
        shapes = ((images, *x[1:]), w, (images, *z[1:]))
        description = self.kind, self.geometry, shapes, self.tags, self.bias is not None, like
        found: _Plan | None = self.library.plan(_Plan, *description)
        return found

    def run(self) -> bool:
        """Compute the result; return False if the library does not support it."""
        rest = self.count % self.images
        plan = self.plan(self.images)
        tail = self.plan(rest, plan) if rest else plan
        if plan is None or tail is None:
            return False
        weights, step = self.addresses[1], 0
        kept: Any = None  # memory of the weights in the library's layout, or of partial gradients
        executor = plan.take()
        if self.kind == "weights":
            number = -(-self.count // self.images)
            if number > 1:
                kept = np.empty((number, plan.bytes[1] // 4), np.float32)
                weights, step = _address(kept), plan.bytes[1]
        elif plan.reorders[1] is not None:
            kept = _Workspace(plan.bytes[1])
            weights = kept.address
            with OneThread(self.library):
                executor.reorder(1, self.addresses[1], weights)
        plan.executors.append(executor)

        def work(some: slice) -> None:
            n = some.start // self.images
            this = plan if some.stop <= self.count else tail
            here = [self.addresses[0] + some.start * self.steps[0], weights + n * step]
            here.append(self.addresses[2] + some.start * self.steps[1])
            self._run_block(this, here, kept is not None)

        run_blocks(work, [slice(n, n + self.images) for n in range(0, self.count, self.images)])
        if self.kind == "weights" and kept is not None:
            self._store_sum(plan, kept)
        return True

    def _run_block(self, plan: _Plan, addresses: list[int], is_laid_out: bool) -> None:
        """Compute one block on this thread."""
        executor = plan.take()
        workspace = executor.workspace or _Workspace(plan.bytes_of_workspace)
        if executor.bias is not None:
            self.library.set_address(executor.bias, _address(self.bias))
        with OneThread(self.library):
            executor.run(addresses, workspace.address, is_laid_out)
        plan.executors.append(executor)

    def _store_sum(self, plan: _Plan, partial: Any) -> None:
        """Write the sum of the blocks' gradients of the weights, added in the order of the blocks."""
        total = np.add.reduce(partial, 0)
        if plan.reorders[1] is None:
            self.operands[1].reshape(-1)[...] = total
            return
        executor = plan.take()
        with OneThread(self.library):
            executor.reorder(1, self.addresses[1], _address(total))
        plan.executors.append(executor)


# ---------------------------------------------------------------- the three ops' kernels

# Multiplications below which NumPy is faster: a call takes 20 us, and the first 20 ms. The second holds for 1 x 1
# kernels, which are one matrix product in NumPy.
_SMALL, _SMALL_POINTWISE = 1 << 16, 1 << 22
# Channels below which NumPy is faster: those of the images, for their adjoint; and those of images and results in each
# of several groups, as the library computes 16 at once. For groups of one channel it has its own kernels.
_FEW, _FEW_OF_GROUP = 4, 8


def _plain(array: Any) -> Any:
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()


def _images(array: Any) -> Any:
    """Return images as they are, or a copy, if they are neither in C order nor have the channels last."""
    if array.flags.aligned and with_channels_last(array) is not None:
        return array
    if array.flags.c_contiguous:
        return _plain(array)
    copy = array.copy(order="K")  # as of some of the channels
    return copy if copy.flags.c_contiguous or with_channels_last(copy) is not None else array.copy()


def _empty_images(shape: tuple[int, ...]) -> Any:
    """Return memory for a result."""
    return (empty_with_channels_last if _keeps_channels_last() else np.empty)(shape, libraries.F4)


def _keeps_channels_last() -> bool:
    """Tell whether there are kernels of batch norm and pooling for images with the channels last."""
    return native_kernels.kernels.get("norm_columns", libraries.F4) is not None


def _tag_of(images: Any) -> int:
    """Return the layout of images; with one channel, or of one pixel, they have both."""
    has_both = images.shape[1] == 1 or images.shape[2] == images.shape[3] == 1
    return _ABCD if images.flags.c_contiguous and not has_both else _ACDB


def _is_faster_in_numpy(kind: str, work: int, w: tuple[int, ...], groups: int) -> bool:
    """Tell whether NumPy takes less time for this convolution."""
    inputs, outputs = w[1], w[0] // groups
    if work < (_SMALL_POINTWISE if w[2:] == (1, 1) else _SMALL):
        return True
    if groups == 1:
        return kind == "data" and inputs < _FEW
    return min(inputs, outputs) < _FEW_OF_GROUP and not inputs == outputs == 1


def _usable_library(
    kind: str, geometry: Geometry, count: int, w: tuple[int, ...], *arrays: Any
) -> tuple[Library | None, int]:
    """Return the library, or None if NumPy is to compute this, and the number of multiplications."""
    work = count * geometry.out[0] * geometry.out[1] * w[0] * w[1] * w[2] * w[3]
    if work == 0 or _is_faster_in_numpy(kind, work, w, geometry.groups):
        return None, work
    for a in arrays:
        if a.__class__ is not np.ndarray or a.dtype != libraries.F4:
            return None, work
    # The library does not report overflows to NumPy, so it is not used where they raise.
    return (None if libraries.float_errors_raise() else onednn_library.found.get()), work


def forward(x: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Compute the cross-correlation of nn.conv2d; return None if NumPy is to do it."""
    library, work = _usable_library("forward", geometry, x.shape[0], w.shape, *((x, w) if b is None else (x, w, b)))
    if library is None:
        return None
    z = _empty_images((x.shape[0], w.shape[0], *geometry.out))
    b = None if b is None else _plain(b)
    return z if _Job(library, "forward", geometry, _images(x), _plain(w), z, b, work).run() else None


def data(g: Any, w: Any, b: Any, geometry: Geometry) -> Any:
    """Compute the adjoint in the images and add b, as nn.conv_transpose2d; return None if NumPy is to do it."""
    library, work = _usable_library("data", geometry, g.shape[0], w.shape, *((g, w) if b is None else (g, w, b)))
    if library is None:
        return None
    x = _empty_images((g.shape[0], w.shape[1] * geometry.groups, *geometry.size))
    if not _Job(library, "data", geometry, x, _plain(w), _images(g), None, work).run():
        return None
    return x if b is None else np.add(x, b.reshape((-1, 1, 1)), out=x)


def weights(x: Any, g: Any, geometry: Geometry) -> Any:
    """Compute the adjoint in the weights, as nn.conv2d_weight; return None if NumPy is to do it."""
    shape = (g.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)
    library, work = _usable_library("weights", geometry, g.shape[0], shape, x, g)
    if library is None:
        return None
    w = np.empty(shape, np.float32)
    return w if _Job(library, "weights", geometry, _images(x), w, _images(g), None, work).run() else None
