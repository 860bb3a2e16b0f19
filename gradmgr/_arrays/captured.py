"""CapturedArray: an array that writes down each NumPy call made with it, so that the calls can be made again.

It is one more array library, as `Batched` is: NumPy's functions dispatch to it by protocol, so kernels, rules, backward
passes and optimisers run on it unchanged, and an op knows nothing of it. Each call is carried out at once on the array
inside, so what is captured computes what it always does; and it is appended to a `Capture`, with what it was given.

No value may leave an array unseen and come back as a number. The truth of an array becomes a guard, which must find the
same value in a replay; so do numbers on which the calls of a kernel depend (`value_of`). Everything else that takes
values out of an array (`float`, `item`, `numpy.asarray`, a function that is not NumPy's) is an obstacle: it is carried
out, but a capture with obstacles cannot be replayed.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.captured_calls import PLAIN, ROOT, Slot, name_of
from gradmgr._arrays.captured_functions import ASKING, METHODS, reads_attribute

Array = Any

# Where a program asks for a number.
_CONVERSIONS = (f"{ROOT}/_engine/conversion.py", f"{ROOT}/_engine/tensor.py")

_VALUES_TAKEN = (
    "a function that is not NumPy's, or numpy.asarray(), takes the values of an array; return it instead, compute with "
    "the Tensor, or write gradmgr.numpy.asarray(),"
)

# The capture of the function that is being captured in this context; None elsewhere.
_capturing: ContextVar[Any] = ContextVar("gradmgr_capturing", default=None)
capturing = _capturing.get
set_capturing = _capturing.set


class GeneratorStandIn:
    """The base of what takes the place of a Generator whose draws are captured; `real` is that Generator."""

    real: Any


def real_generator(value: Any) -> Any:
    return value.real if isinstance(value, GeneratorStandIn) else value


class CapturedArray:
    """An array whose calls are captured."""

    __slots__ = ("__weakref__", "capture", "inner", "slot")

    __array_priority__ = 1000.0  # CuPy's operators ask for it
    __hash__ = None  # type: ignore[assignment]  # as arrays

    # Of those that are set below, as all other attributes and methods of arrays.
    dtype: Any
    astype: Any
    copy: Any

    def __init__(self, capture: Any, inner: Array, slot: Slot) -> None:
        self.capture = capture
        self.inner = inner
        self.slot = slot

    def __repr__(self) -> str:
        if self.capture.open:
            self.capture.add_obstacle("the text of an array")
        return repr(self.inner)

    def __str__(self) -> str:
        return format(self, "")

    def __len__(self) -> int:
        is_text = isinstance(self.inner, np.generic)
        return int(self.capture.guard(len, self)) if is_text else len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self.inner)))

    # ------------------------------------------------------------ values that leave

    def __bool__(self) -> bool:
        return bool(self.capture.guard(operator.truth, self))

    def __format__(self, spec: str) -> str:
        if self.capture.open:
            self.capture.add_obstacle("the text of an array")
        return format(self.inner, spec)

    def __reduce__(self) -> Any:
        self.capture.add_obstacle("a copy or a pickle of an array")
        return self.inner.__reduce__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.capture.add_obstacle(_VALUES_TAKEN)
        return np.array(self.inner, dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self._number("float() of an array"))

    def __int__(self) -> int:
        return int(self._number("int() of an array"))

    def __complex__(self) -> complex:
        return complex(self._number("complex() of an array"))

    def __index__(self) -> int:
        if not hasattr(self.inner, "__index__"):  # CuPy's may have none
            raise TypeError(f"{type(self.inner).__name__!r} object cannot be interpreted as an integer")
        if self.inner.ndim or self.inner.dtype.kind not in "iu":  # as NumPy's
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return operator.index(
            self._number("an array as an index of a list or of an array that is not captured, or as a length,")
        )

    def __getattr__(self, name: str) -> Any:  # called for names that Python did not find
        if not hasattr(type(self.inner), name):
            raise AttributeError(f"an array has no attribute {name!r}")
        self.capture.add_obstacle(_VALUES_TAKEN if name.startswith("__array") else f"{name} of an array")
        return getattr(self.inner, name)

    def item(self, *args: Any) -> Any:
        """Return one value as a Python number."""
        if args:
            self.capture.add_obstacle("item() of an array")
            return self.inner.item(*args)
        return self._number("item() of an array")

    def _number(self, what: str) -> Any:
        """Return the one value.

        It is a guard where a kernel reads it, which decides what to do by it, and where it is that of arrays that the
        function reads by name, which seldom change; else an obstacle.
        """
        if self.slot.number in self.capture.named:
            self.capture.guard(_text_of_item, self)
            return self.inner.item()
        caller = sys._getframe(2).f_code.co_filename
        if caller.startswith(ROOT) and not caller.startswith(_CONVERSIONS):
            return self.capture.guard(_item, self)
        self.capture.add_obstacle(what)
        return self.inner.item()

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        self.capture.add_obstacle("tolist() of an array")
        return self.inner.tolist()

    # ------------------------------------------------------------ protocols

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if not (_are_supported(inputs) and (not keywords or _are_supported(keywords.get("out", ())))):
            return NotImplemented
        if method == "__call__":
            return self.capture.call(ufunc, inputs, keywords) if keywords else self.capture.call_operator(ufunc, inputs)
        if method == "at" and gpu.is_on_gpu(self.inner):  # whose index may be a tuple, which CuPy's protocol refuses
            ufunc = getattr(gpu.loaded_cupy(), ufunc.__name__)
        return self.capture.call(getattr(ufunc, method), inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        if not all(issubclass(t, (CapturedArray, np.ndarray)) or _is_cupys(t) for t in types):
            return NotImplemented
        if function in ASKING:
            return function(*map_leaves(as_given, args), **map_leaves(as_given, keywords))
        return self.capture.call(function, args, keywords)

    def __getitem__(self, index: Any) -> Any:
        return self.capture.call(operator.getitem, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        self.capture.call(operator.setitem, (self, index, value), {})


def _are_supported(values: Iterable[Any]) -> bool:
    """Tell whether operands are numbers or arrays; a Tensor, say, takes over a call by its own protocol."""
    for value in values:
        kind = value.__class__
        if kind is CapturedArray or kind in PLAIN or isinstance(value, (np.ndarray, np.generic)):
            continue
        if hasattr(value, "__array_ufunc__") and not gpu.is_on_gpu(value):
            return False
    return True


def _is_cupys(kind: type) -> bool:
    cupy = gpu.loaded_cupy()
    return cupy is not None and issubclass(kind, cupy.ndarray)


def _captured(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """Return the method of CapturedArray that captures a function's call."""

    def method(self: CapturedArray, *args: Any, **keywords: Any) -> Any:
        if not _are_supported(args):
            return NotImplemented
        return self.capture.call(function, (*args, self) if reflected else (self, *args), keywords)

    method.__name__ = name_of(function)
    return method


def _captured_operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """Return the method of CapturedArray that captures an operator of two operands."""

    def method(self: CapturedArray, other: Any) -> Any:
        if other.__class__ is not CapturedArray and not _are_supported((other,)):
            return NotImplemented
        return self.capture.call_operator(function, (other, self) if reflected else (self, other))

    method.__name__ = name_of(function)
    return method


for _attribute in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags", "device", "base"):
    setattr(CapturedArray, _attribute, property(operator.attrgetter(f"inner.{_attribute}")))

for _attribute in ("T", "mT", "real", "imag"):
    setattr(CapturedArray, _attribute, property(_captured(reads_attribute(_attribute))))

for _attribute, _function in METHODS.items():
    setattr(CapturedArray, _attribute, _captured(_function))

for _attribute in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor"):
    setattr(CapturedArray, f"__{_attribute}__", _captured_operator(getattr(operator, _attribute)))
    setattr(CapturedArray, f"__r{_attribute}__", _captured_operator(getattr(operator, _attribute), reflected=True))
    setattr(CapturedArray, f"__i{_attribute}__", _captured(getattr(operator, f"i{_attribute}")))

for _attribute in ("and", "or"):
    setattr(CapturedArray, f"__{_attribute}__", _captured(getattr(operator, f"{_attribute}_")))
    setattr(CapturedArray, f"__r{_attribute}__", _captured(getattr(operator, f"{_attribute}_"), reflected=True))
    setattr(CapturedArray, f"__i{_attribute}__", _captured(getattr(operator, f"i{_attribute}")))

for _attribute in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"):
    setattr(CapturedArray, f"__{_attribute}__", _captured(getattr(operator, _attribute)))


def is_numpy(array: Array) -> bool:
    """Tell whether it is NumPy's array, by itself or captured, for which NumPy's own functions are there.

    What asks it makes arrays in the library of this one, and calls no methods of plain arrays with captured ones. Where
    time counts, ask first whether the class is `numpy.ndarray`.
    """
    return array.__class__ is np.ndarray or (array.__class__ is CapturedArray and array.inner.__class__ is np.ndarray)


def is_captured(value: Any) -> bool:
    """Tell whether a value is a captured array."""
    return isinstance(value, CapturedArray)


def inner_of(a: Any) -> Any:
    """Return the array inside of a captured one; others as they are."""
    return a.inner if is_captured(a) else a


def as_given(value: Any) -> Any:
    """Return what a function is given for a value among the arguments of a call."""
    return value.inner if value.__class__ is CapturedArray else real_generator(value)


def capture_in(*values: Any) -> Any:
    """Return the capture of the first captured array among values, nested ones too; None where none is."""
    return next((part.capture for part in leaves_in(values) if isinstance(part, CapturedArray)), None)


def value_of(a: Any) -> Any:
    """Return the number in a captured array, of which a replay must find the same; others as they are."""
    return a.capture.guard(_item, a) if is_captured(a) else a


def values_of(a: Any) -> Any:
    """Return the numbers in a captured array as lists, of which a replay must find the same; others as they are."""
    if not is_captured(a):
        return a
    a.capture.guard(_text_of_items, a)
    return a.inner.tolist()


def _item(a: Any) -> Any:
    return a.item()


def _text_of_items(a: Any) -> str:
    return repr(a.tolist())


def _text_of_item(a: Any) -> str:
    """Return a number as text, so that -0.0 is not 0.0, and NaN is NaN."""
    return repr(a.item())


_item.__name__ = _text_of_item.__name__ = "the value of an array"
_text_of_items.__name__ = "the values of an array"
