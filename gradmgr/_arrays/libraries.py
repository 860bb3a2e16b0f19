"""Array libraries: what is an array, which library and device it belongs to, and which operands an op takes.

CuPy is looked up among the modules already imported and never imported by gradmgr
unless the user asks for a GPU: importing it costs a second and needs a driver.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import (
    batched_ufuncs,  # noqa: F401  # it binds the operators of Batched when imported
    batching_rules,  # noqa: F401  # it enters rules when imported
    batching_rules_of_series,  # noqa: F401  # it enters rules, too
)
from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.atomic import float_errors_raise as float_errors_raise
from gradmgr._arrays.batched import Batched, batched_to_hold, inner_axes, innermost
from gradmgr._arrays.batched import common_value as common_to_examples
from gradmgr._arrays.batched_indexing import getitem_of
from gradmgr._arrays.batched_library import Library
from gradmgr._arrays.captured import CapturedArray, capture_in, capturing, inner_of, value_of
from gradmgr._arrays.captured import is_captured as is_captured
from gradmgr._arrays.captured import is_numpy as is_numpy
from gradmgr._arrays.capturing_library import CapturingLibrary
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._arrays.gpu import loaded_cupy as loaded_cupy
from gradmgr._arrays.listening import computed
from gradmgr._arrays.memory_order import with_channels_last
from gradmgr._arrays.sums import FEW, LONG, NUMBERS, add_reduce, sum_by_groups, sum_of_numpy, sum_rows

Function = TypeVar("Function", bound=Callable[..., Any])
Array = Any  # numpy.ndarray, a NumPy scalar (a 0-d result), or cupy.ndarray

F4 = np.dtype(np.float32)
F8 = np.dtype(np.float64)

# Operands that an op takes together with a Tensor as they are; looked up by exact class on the fast path.
PLAIN = frozenset(
    (
        *(float, int, bool, complex, np.ndarray),
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    )
)


_any = np.logical_or.reduce  # ndarray.any calls it from Python

# What is neither batched nor captured, and holds nothing that is.
_HOLD_NO_ARRAYS = frozenset((*PLAIN, type(None), type(Ellipsis)))


def import_cupy(asked: str) -> Any:
    """Return the CuPy module, importing it; `asked` says what for in the error."""
    try:
        import cupy
    except ImportError as error:
        raise errors.DeviceError(
            f"{asked} needs CuPy, which is not installed; {errors.how_to_install('cuda12', 'cuda13')}, whichever fits "
            "the machine's CUDA driver"
        ) from error
    if not cupy.cuda.is_available():
        raise errors.DeviceError(f"{asked} was asked for, but CuPy finds no GPU here; stay on device='cpu'")
    return cupy


def is_array(value: object) -> bool:
    """Tell whether `value` is an array (or NumPy scalar) that gradmgr computes on."""
    if isinstance(value, (np.ndarray, np.generic, Batched, CapturedArray)):
        return True
    cupy = loaded_cupy()
    return cupy is not None and isinstance(value, cupy.ndarray)


def namespace(array: Array) -> Any:
    """Return the module whose functions make arrays like this one."""
    if isinstance(array, (np.ndarray, np.generic)):
        return np
    if isinstance(array, Batched):
        return Library(array.level)
    if isinstance(array, CapturedArray):
        return CapturingLibrary(array.capture, namespace(array.inner))
    return loaded_cupy() if is_array(array) else np


def namespace_of(*arrays: Array) -> Any:
    """Return the module for arrays used together: CuPy before NumPy, those of vmap and of captures before both."""
    found = [namespace(a) for a in arrays if not isinstance(a, (np.ndarray, np.generic))]
    for kind in (Library, CapturingLibrary):  # that of vmap takes captured arrays, and not the other way round
        for n in found:
            if isinstance(n, kind):
                return n
    return next((n for n in found if n is not np), np)


def root(array: Array) -> Any:
    """Return NumPy or CuPy: whose memory it is, under all levels of vmap, or captured."""
    return np if isinstance(array, (np.ndarray, np.generic)) else namespace(inner_of(innermost(array)))


def is_scalar(array: Array) -> bool:
    """Tell whether it is a NumPy scalar, by itself or captured."""
    return array.__class__ is not np.ndarray and isinstance(inner_of(array), np.generic)


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """Return an uninitialised array in the library and dtype of another."""
    return (np if like.__class__ is np.ndarray else namespace(like)).empty(shape, like.dtype)


def empty_like(like: Array) -> Array:
    """Return an uninitialised array like another, with the channels last in memory if it has them so, or in C order."""
    xp = np if like.__class__ is np.ndarray else namespace(like)
    return xp.empty(like.shape, like.dtype) if with_channels_last(like) is None else xp.empty_like(like)


def are_captured(*arrays: Array) -> bool:
    """Tell whether all are captured and NumPy's, or None, so that what is made of any of them can be written to."""
    for a in arrays:
        if a is not None and (a.__class__ is not CapturedArray or a.inner.__class__ is not np.ndarray):
            return False
    return True


def are_captured_from(first: Array, *others: Array) -> bool:
    """Tell whether the first is captured, and all are NumPy's or None: what is made of the first can be written to."""
    if first.__class__ is not CapturedArray:
        return False
    return all(a is None or is_numpy(a) for a in (first, *others))


def are_captured_alike(first: Array, *others: Array) -> bool:
    """Tell the same of arrays that are all NumPy's, or all of one GPU library, or None."""
    if first.__class__ is not CapturedArray:
        return False
    library = root(first)
    return all(a is None or (not isinstance(a, Batched) and root(a) is library) for a in others)


def captured_as_one(
    *, unless: Callable[..., bool] | None = None, decides: bool = False, on_gpu: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare that a kernel's call with captured arrays of NumPy's is captured as one call, and not what it calls.

    For kernels whose way for NumPy's arrays is more than some of NumPy's functions: one that computes in blocks, asks
    for values, or calls C. Captured as one call it computes what it does without a capture, and its branches need no
    guards. What it is given must be arrays, numbers and such, and the same in each capture. The shapes of its results
    must not depend on values, and it must not keep what it is given.

    Args:
        unless: tells of its arguments, one of which is captured, whether NumPy's functions that the kernel calls are
            captured instead. An array that it writes to must then be made of a captured one.
        decides: whether the kernel then asks for values, which become guards; see Capture.may_decide.
        on_gpu: whether arrays may also be CuPy's, as the kernel computes in place with those, too.
    """

    def declare(kernel: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(kernel)
        def call(*args: Any) -> Any:
            for a in args:
                if a.__class__ is CapturedArray:
                    if (decides and not a.capture.may_decide) or unless is None or not unless(*args):
                        one = in_one(kernel, *leaves_in(args), on_gpu=on_gpu)
                        if one is not None:
                            return one(*args)
                    break
            return kernel(*args)

        keeps_nothing(kernel)
        return call

    return declare


def writes_first(kernel: Function) -> Function:
    """Declare that a kernel that is captured as one call writes into its first argument."""
    kernel.arrays = kernel.writes = 1  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    return kernel


def keeps_nothing(kernel: Function) -> Function:
    """Declare that a kernel that is captured as one call keeps no array, so that these may lie in a replay's memory."""
    kernel.keeps_nothing = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    return kernel


def writes_to_out(kernel: Function) -> Function:
    """Declare that a kernel takes after its arguments the array that its result is to go into.

    It is C-contiguous, and in memory of its own.
    """
    kernel.writes_to_out = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    return kernel


def computes_over(rule: Any, into: Callable[..., Any]) -> None:
    """Declare what computes the result of a rule, captured as one call, over its first argument where that may be."""
    rule.__wrapped__.into = into


def in_one(function: Any, *arrays: Array, on_gpu: bool = False) -> Any:
    """Return `function` as one captured call; None unless arrays are captured and all are NumPy's, or no arrays.

    It is for what decides by more than its arguments' libraries; see `captured_as_one`.
    """
    capture = None
    for a in arrays:
        inner = a.inner if a.__class__ is CapturedArray else a
        capture = a.capture if a.__class__ is CapturedArray else capture
        if isinstance(inner, (np.ndarray, np.generic)) or not hasattr(inner, "__array_ufunc__"):
            continue
        if not (on_gpu and is_on_gpu(inner)):  # a Tensor, CuPy's, vmap's
            return None
    return None if capture is None else partial(_call_in_one, capture, function)


def _call_in_one(capture: Any, function: Any, *args: Any, **keywords: Any) -> Any:
    return capture.call(function, args, keywords)


# Subclasses of ndarray that say where its numbers lie, or what its fields are called. All others mean more: a
# mask, a unit, another product.
_ALSO_PLAIN = (np.memmap, np.recarray)


def has_own_meaning(value: object) -> bool:
    """Return True if a value is of a subclass of ndarray that means more than its numbers, as a masked array does."""
    kind = value.__class__
    return kind is not np.ndarray and issubclass(kind, np.ndarray) and not issubclass(kind, _ALSO_PLAIN)


def _class_error(value: object, name: str) -> errors.ArrayClassError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return errors.ArrayClassError(
        f"{name + ': ' if name else ''}a {kind} is more than its numbers, which are all that a Tensor holds; pass "
        "these, as numpy.asarray(x), of a masked array x.filled(value), of a quantity x.value or x.magnitude"
    )


def check_plain(value: Any, name: str = "") -> None:
    """Raise ArrayClassError if a value has a meaning of its own, or if one in nested lists and tuples has."""
    if isinstance(value, (list, tuple)):
        if not PLAIN.issuperset(map(type, value)):  # the common case, without a loop in Python
            for part in value:
                check_plain(part, name)
    elif has_own_meaning(value):
        raise _class_error(value, name)


def as_array(value: Any, dtype: Any = None) -> Array:
    """Return numpy.asarray(value), arrays of other libraries as they are.

    Raises:
        ArrayClassError: as `check_plain`, or the value has its own functions in place of NumPy's, as pint's have.
    """
    check_plain(value)
    if not isinstance(value, (list, tuple, np.ndarray)):
        if is_array(value):
            return value
        if hasattr(type(value), "__array_function__"):
            raise _class_error(value, "")
    return np.asarray(value, dtype=dtype)


def operand(value: object) -> Any:
    """Return `value` as an array or scalar that an op takes together with a Tensor, else NotImplemented."""
    if value.__class__ in PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return NotImplemented if has_own_meaning(value) else np.asarray(value)
    if is_array(value):
        return value
    if isinstance(value, (list, tuple)):
        return as_array(value)
    if isinstance(value, (int, float, complex)):
        return value
    return NotImplemented


def try_the_other(*operands: object) -> Any:
    """Return NotImplemented, so that Python tries the operator of the other operand.

    Raises:
        TypeError: that is a torch.Tensor, which takes no Tensor either; Python would say 'Tensor' and 'Tensor'.
        ArrayClassError: that is the first one, a matrix say, and has declined already.
    """
    check_plain(operands[0])
    if any((type(x).__module__, type(x).__name__) == ("torch", "Tensor") for x in operands):
        raise TypeError(
            "a gradmgr.Tensor and a torch.Tensor have no operations in common: convert one, as gradmgr.tensor(x) "
            "does; gradmgr.interop differentiates through functions of torch"
        )
    return NotImplemented


def need_operand(value: object, name: str) -> Any:
    """Return `value` as `operand` does; raise where an operator would let Python try the other operand."""
    found = operand(value)
    if found is NotImplemented:
        if has_own_meaning(value) or getattr(value, "__array_ufunc__", None) is not None:
            raise _class_error(value, name)
        raise TypeError(
            f"{name} takes Tensors, arrays and numbers; found {type(value).__module__}.{type(value).__qualname__}; "
            "convert it with gradmgr.tensor(...) or numpy.asarray(...)"
        )
    return found


# How NumPy and CuPy say that CuPy lacks a function, or that it has it for other arguments; and what is to be said.
_LACKING = (
    (r"no implementation found for 'numpy\.([\w.]+)'", "CuPy has no {0}"),
    (r"all returned NotImplemented from __array_ufunc__\(<ufunc '(\w+)'>, '__call__'", "CuPy has no {0}"),
    (r"all returned NotImplemented from __array_ufunc__\(<ufunc '(\w+)'>, '(\w+)'", "CuPy has no {0}.{1}"),
    (r"Wrong type \((.*)\) of arguments for (?:cupyx_scipy_special|cupy)_(\w+)", "CuPy's {1} does not take {0}"),
    (r"(\w+)\(\) got an unexpected keyword argument '(\w+)'", "CuPy's {0} has no keyword {1}"),
    ("Implicit conversion to a NumPy array", "CuPy has no such function, and NumPy's takes host memory"),
)


def _what_cupy_lacks(said: str) -> str | None:
    found = ((re.search(pattern, said), says) for pattern, says in _LACKING)
    return next((says.format(*match.groups()) for match, says in found if match), None)


def check_mixed(name: str, *arrays: Array) -> None:
    """Say more of a kernel's TypeError, while it is handled: NumPy and CuPy arrays met, or CuPy lacks the function."""
    libraries = {namespace(a).__name__ for a in _arrays_in(arrays)}
    if libraries <= {"numpy"}:
        return
    said = str(sys.exception())
    lacking = _what_cupy_lacks(said)
    if lacking is not None and len(libraries) == 1:
        raise errors.UnsupportedFunctionError(
            f"{name} does not run on a GPU so: {lacking}; move to the CPU with .to('cpu') for it"
        )
    if len(libraries) > 1 or said.endswith("Unsupported type <class 'numpy.ndarray'>"):
        raise mixed(name)


def explain(error: Exception, name: str, *arrays: Array) -> None:
    """Say more of what a kernel raised, while it is handled: which function it was, and whether libraries met."""
    if isinstance(error, TypeError):
        check_mixed(name, *arrays)
    errors.put_name(error, name)


def _arrays_in(values: Any) -> list[Array]:
    return [part for part in leaves_in(values) if is_array(part) and not isinstance(part, np.generic)]


def mixed(name: str) -> errors.MixedArraysError:
    """Make the error for arrays of both libraries in one call."""
    return errors.MixedArraysError(
        f"{name} was given arrays of both NumPy and CuPy; move one side first, "
        "with t.to('cuda:0'), t.to('cpu') or cupy.asarray(...)"
    )


def getitem(a: Array, index: Any) -> Array:
    """Return a[index], where either may be batched or captured."""
    capture = None if isinstance(a, CapturedArray) else capture_in(index)
    return getitem_of(a, index) if capture is None else capture.call(operator.getitem, (a, index), {})


def add_atomically(buffer: Array, index: Any, g: Array) -> None:
    """Add into `buffer[index]` on a GPU, an element named twice receiving both.

    A GPU cannot add complex numbers in one step.
    """
    add = namespace(buffer).add
    if buffer.dtype.kind == "c":
        add.at(buffer.real, index, g.real)
        add.at(buffer.imag, index, g.imag)
    else:
        add.at(buffer, index, g)


def foreign(function: Any, *arrays: Array) -> Any:
    """Return a function that does not dispatch by protocol, such as SciPy's, to be called with arrays like these."""
    for a in arrays:
        if a.__class__ is not np.ndarray and (capture := capture_in(a)) is not None:
            return partial(capture.call_foreign, function)
    return function


def beside(a: Array, index: Any) -> Array:
    """Return `a`, which is read at an index; a NumPy array captured as a constant where a part of the index is."""
    if a.__class__ is np.ndarray:
        for part in index if index.__class__ is tuple else (index,):
            if part.__class__ is CapturedArray:
                return part.capture.call(np.asarray, (a,), {})
    return a


def common_value(value: Any, what: str) -> Any:
    """Return a value that a shape depends on: the same for all examples of a vmap, and in all replays of a capture."""
    return value_of(common_to_examples(value, what))


def able_to_hold(a: Array, *others: Any) -> Array:
    """Return `a`, or a copy to which values of the others can be written: batched or captured, as one of them is."""
    for value in others:
        if value.__class__ not in _HOLD_NO_ARRAYS and not _is_batched_alike(a, value):
            return _captured_to_hold(batched_to_hold(a, *others), *others)
    return a  # the common case, without a search in them


def _is_batched_alike(a: Array, value: Any) -> bool:
    """Tell whether both are batched at one level, NumPy arrays that hold every example."""
    if not (a.__class__ is value.__class__ is Batched and a.level is value.level):
        return False
    return a._array.__class__ is value._array.__class__ is np.ndarray and len(a._array) == a.level.size


def _captured_to_hold(a: Array, *others: Any) -> Array:
    """Return `a`, or a captured copy where one of the others is captured, in or outside of vmap."""
    if isinstance(innermost(a), CapturedArray):
        return a
    capture = capture_in(*map(innermost, leaves_in(others)))
    return a if capture is None else _captured_copy(a, capture)


def _captured_copy(a: Array, capture: Any) -> Array:
    if isinstance(a, Batched):
        return Batched(a.level, _captured_copy(a._array, capture))
    return capture.call(namespace(a).array, (a,), {})


def is_differentiable(dtype: np.dtype[Any]) -> bool:
    """Tell whether a tensor of this dtype can carry a gradient."""
    return dtype.char in "efdFD" or (dtype.kind == "V" and dtype.name == "bfloat16")  # a name is composed, in 1 us


def is_half(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is floating and of two bytes: what is summed in float32."""
    return dtype.char == "e" or (dtype.kind == "V" and dtype.name == "bfloat16")


def device_of(array: Array) -> str:
    """Return "cpu" or "cuda:N"."""
    if isinstance(array, (np.ndarray, np.generic)):
        return "cpu"
    if isinstance(array, Batched):
        return device_of(array._array)
    if isinstance(array, CapturedArray):
        return device_of(array.inner)
    return f"cuda:{array.device.id}"


def device_index(device: str) -> int | None:
    """Return the GPU's number, for "cuda" of the one that is current, None for the CPU; ValueError for other names."""
    kind, _, number = str(device).partition(":")
    if str(device) == "cpu":
        return None
    if str(device) == "cuda":
        cupy = loaded_cupy()
        return int(cupy.cuda.Device().id) if cupy is not None and cupy.cuda.is_available() else 0
    if kind == "cuda" and number.isdecimal():
        return int(number)
    raise ValueError(f"device {device!r} is not known; use 'cpu' or 'cuda:0'")


def _lives_on(array: Array, device: str) -> bool:
    index = device_index(device)
    return device_of(array) == ("cpu" if index is None else f"cuda:{index}")


def place_indices(places: Array, like: Array, name: str) -> Array:
    """Return integer indices on the device of `like`: as in indexing, NumPy's are moved to a GPU, none from it."""
    if root(places) is root(like):
        return places
    if root(places) is not np:
        raise mixed(name)
    return to_device(places, device_of(like))


def to_device(array: Array, device: str) -> Array:
    """Return the array on `device`; the same object where it is there already."""
    index = device_index(device)
    if isinstance(array, Batched):
        moved = to_device(array._array, device)
        return array if moved is array._array else Batched(array.level, moved)
    if isinstance(array, CapturedArray):
        return array if _lives_on(array, device) else array.capture.call(to_device, (array, device), {})
    if index is None:
        return array if root(array) is np else computed(_copied_to, array, None)
    return computed(_copied_to, array, index)


def _copied_to(array: Array, index: int | None) -> Array:
    """Return the array on the GPU of this number, or in the memory of the host."""
    if index is None:
        return array.get()
    cupy = import_cupy(f"device cuda:{index}")
    with cupy.cuda.Device(index):
        return cupy.asarray(array)


def make_array(data: Any, dtype: Any = None, device: str | None = None, *, copy: bool | None = None) -> Array:
    """Return `data` as an array by NumPy's rules: copy=True never shares, None shares where it can."""
    cupy = loaded_cupy()
    if isinstance(data, (Batched, CapturedArray)) or (cupy is not None and isinstance(data, cupy.ndarray)):
        cast = data if dtype is None else data.astype(dtype, copy=False)
        if copy is False and cast is not data:
            raise ValueError(f"asarray with copy=False cannot change the dtype from {data.dtype} to {np.dtype(dtype)}")
        array = cast.copy() if copy and cast is data else cast
    else:
        if data.__class__ is not np.ndarray and not isinstance(data, np.matrix):  # it holds nothing but numbers
            check_plain(data)
        capture = capturing()
        if capture is not None and isinstance(data, np.ndarray):
            return capture.call(np.array, (data,), {"dtype": dtype, "copy": copy})
        array = np.array(data, dtype=dtype, copy=copy)
        if array.dtype.kind not in "biufc" and not is_differentiable(array.dtype):
            raise errors.DtypeError(
                f"a Tensor holds numbers; {type(data).__name__} gives an array of dtype {array.dtype}; "
                "pass an array, nested lists of numbers, or dtype="
            )
    if device is None or _lives_on(array, device):
        return array
    if copy is False:
        raise ValueError(f"asarray with copy=False cannot move from {device_of(array)} to {device}")
    return to_device(array, device)


def may_hold(mask: Array) -> bool:
    """Tell whether any is true; of a GPU's, for which the program would have to wait, say that some may be."""
    if mask.__class__ is np.ndarray:
        return bool(_any(mask, axis=None))
    return root(mask) is not np or bool(mask.any())


def sum_over(array: Array, axes: tuple[int, ...], keepdims: bool = False, gradient: bool = False) -> Array:
    """Sum over axes; by the ufunc where that is NumPy's own, without its Python wrappers.

    Values are summed as by NumPy, bfloat16, which it lacks, in float32; what adds up to a gradient is summed with more
    digits: halves in float32, and long sums by groups.
    """
    if array.itemsize == 2 and (gradient or array.dtype.kind == "V") and is_half(array.dtype):
        return sum_over(array.astype(F4), axes, keepdims, gradient).astype(array.dtype)
    if gradient and array.size > LONG and _is_long(array, axes):
        return _sum_long(array, axes, keepdims)
    if array.__class__ is np.ndarray:
        # Sums over the first axis, or all, are not short; tested first, as that takes the least time.
        if axes and axes[0] and array.size >= NUMBERS and array.shape[-1] <= FEW:  # a single axis is longer, too
            return sum_of_numpy(array, axes, keepdims)
        return add_reduce(array, axis=axes, keepdims=keepdims)
    return array.sum(axis=axes, keepdims=keepdims)


def add_up(array: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum what adds up to a gradient, see `sum_over`."""
    return sum_over(array, axes, keepdims, True)


def _is_long(array: Array, axes: tuple[int, ...]) -> bool:
    """Tell whether an array has long sums that NumPy would not add by pairs, as it does along the last axes."""
    if isinstance(array, Batched):
        return _is_long(array._array, inner_axes(axes, array.ndim))
    if axes and axes[0] == array.ndim - len(axes) and axes[-1] == array.ndim - 1 and array.flags.c_contiguous:
        return False
    count = 1
    for k in axes:
        count *= array.shape[k]
    return count > LONG


@captured_as_one()
def _sum_long(array: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    if isinstance(array, Batched):
        return Batched(array.level, _sum_long(array._array, inner_axes(axes, array.ndim), keepdims))
    if array.__class__ is np.ndarray:
        return sum_by_groups(array, axes, keepdims)
    return array.sum(axis=axes, keepdims=keepdims)


def adds_in_float32(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that a kernel adds up parts of its first argument, a gradient: it is given halves in float32."""

    @wraps(kernel)
    def call(a: Array, *args: Any) -> Array:
        return kernel(a.astype(F4), *args).astype(a.dtype) if is_half(a.dtype) else kernel(a, *args)

    return call


def add_up_running(array: Array, axis: int) -> Array:
    """Return the running sums of gradients along an axis: of halves in float32, of many float32 in float64."""
    dtype = array.dtype
    wide = F4 if is_half(dtype) else F8 if dtype == F4 and array.shape[axis] > LONG else dtype
    return np.cumsum(array, axis) if wide == dtype else np.cumsum(array.astype(wide), axis).astype(dtype)


def are_matrices(a: Array, b: Array) -> bool:
    """Tell whether both are NumPy's matrices of the same common dtype, and not captured.

    Of these `a.dot(b)` is `a @ b`, without the 0.45 us `@` takes to choose a loop. It does not check for overflow
    either, so use it for derivatives, and where PyTorch does not warn either. Elsewhere call `product`.
    """
    t = a.dtype
    return a.__class__ is b.__class__ is np.ndarray and a.ndim == b.ndim == 2 and t is b.dtype and (t is F4 or t is F8)


def product(a: Array, b: Array) -> Array:
    """Return a @ b, by `dot` where one is captured and plain arrays would be `are_matrices`: some bits differ."""
    if (a.__class__ is CapturedArray or b.__class__ is CapturedArray) and is_matrix(a) and is_matrix(b):
        return np.dot(a, b) if a.dtype == b.dtype else a @ b
    return a @ b


def is_matrix(a: Array) -> bool:
    """Tell whether it is NumPy's matrix of a common dtype, by itself or captured."""
    return (a.__class__ is np.ndarray or is_numpy(a)) and a.ndim == 2 and (a.dtype is F4 or a.dtype is F8)


def sum_of_rows(a: Array) -> Array:
    """Add up the rows of a NumPy matrix of a common dtype, as a product with ones: BLAS takes half the time or less."""
    if a.shape[0] > LONG:
        if a.__class__ is np.ndarray and a.flags.c_contiguous:
            return sum_rows(a)
        return _sum_long(a, (0,), False)
    ones = np.empty(a.shape[0], a.dtype)
    ones.fill(1)
    return ones.dot(a) if a.__class__ is np.ndarray else np.dot(ones, a)
