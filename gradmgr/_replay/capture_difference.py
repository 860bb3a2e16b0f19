"""In which call two captures of the same function differ, and whether arrays are equal in every bit."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Slot, name_of

Array = Any


def difference(one: Capture, other: Capture) -> str | None:
    """Return in which call two captures of the same function differ; None where they do not.

    What differs depends on more than the inputs: a number or an array made outside of captured calls, or a branch.
    """
    for (first_array, call), (second_array, _) in zip(one.given, other.given, strict=False):
        if first_array is not second_array and not _is_same_view(first_array, second_array):
            return (
                f"the array that {name_of(call.function)} is given at {call.line}, which the function makes anew: "
                "pass it as an argument, or make it by functions of gradmgr.numpy"
            )
    for first, second in zip(one.calls, other.calls, strict=False):
        is_same = first.function is second.function or _is_same_function(first.function, second.function)
        if not is_same or first.made != second.made or not _are_equal_args((first.results,), (second.results,)):
            return f"{name_of(first.function)} at {first.line}, then {name_of(second.function)} at {second.line}"
        if first.expected != second.expected:
            return f"what {name_of(first.function)} gives at {first.line}"
        if first.given != second.given or not (
            _are_equal_args(first.args, second.args)
            and (not (first.keywords or second.keywords) or _are_equal(first.keywords, second.keywords))
        ):
            return f"what {name_of(first.function)} is given at {first.line}"
    shorter, longer = sorted((one.calls, other.calls), key=len)
    if len(shorter) == len(longer):
        return None
    more = longer[len(shorter)]
    return f"one more call: {name_of(more.function)} at {more.line}"


def is_branch(one: Capture, other: Capture) -> bool:
    """Tell whether two captures of the same function differ first by what a guard found."""
    for first, second in zip(one.calls, other.calls, strict=False):
        is_same = _is_same_function(first.function, second.function)
        if not is_same or first.expected != second.expected:
            return is_same
        if not _are_equal((first.args, first.keywords, first.results), (second.args, second.keywords, second.results)):
            return False
    return False


def _is_same_function(one: Any, other: Any) -> bool:
    """Tell whether two functions are one, or made again by the same code and do the same, as a lambda for a hook."""
    if one == other:
        return True
    if not (one.__class__ is other.__class__ is FunctionType):
        return False
    is_alike = one.__code__ is other.__code__ and one.__globals__ is other.__globals__
    return (
        is_alike
        and not (one.__dict__ or other.__dict__)
        and all(map(operator.is_, one.__closure__ or (), other.__closure__ or ()))  # as many, of one code
        and _are_same_values(one.__defaults__ or (), other.__defaults__ or ())
        and _are_same_values(one.__kwdefaults__ or {}, other.__kwdefaults__ or {})
    )


def _are_same_values(one: Any, other: Any) -> bool:
    """Tell whether what two tuples, or dicts, hold are the same objects, or equal numbers and texts."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and _are_same_values([*one.values()], [other[key] for key in one])
    pairs = list(zip(one, other, strict=False))
    is_known = all(a is b or (a.__class__ in (bool, int, float, str) and _are_equal(a, b)) for a, b in pairs)
    return is_known and len(one) == len(other)


def _is_same_view(one: Array, other: Array) -> bool:
    """Tell whether two arrays, both kept, are the same elements of one array: no other was made in between."""
    if gpu.is_on_gpu(one) or gpu.is_on_gpu(other):
        is_view = one.__class__ is other.__class__ and one.base is not None and one.base is other.base
        facts = [(a.shape, a.dtype, a.strides, a.data.ptr) for a in (one, other)] if is_view else []
        return is_view and facts[0] == facts[1]
    return (
        _outermost(one) is _outermost(other)
        and one.__array_interface__ == other.__array_interface__
        and (one.dtype, one.strides) == (other.dtype, other.strides)
    )


def _outermost(array: Array) -> Array:
    """Return the array that has the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _are_equal_args(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Tell whether arguments, or results, are equal, given that they have the same slots in the same order."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a is b or a.__class__ is b.__class__ is Slot:  # most of them; numbers of slots are compared all at once
            continue
        if not _are_equal(a, b):
            return False
    return True


def _are_equal(one: Any, other: Any) -> bool:
    """Tell whether arguments are equal, arrays by their values."""
    if one is other:
        return True
    if one.__class__ is Slot:
        return other.__class__ is Slot and one.number == other.number
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, slice):
        return _are_equal((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, (np.ndarray, np.generic)):
        return is_same_array(np.asarray(one), np.asarray(other))
    if isinstance(one, (float, complex)):  # by which 0.0 and -0.0 differ, and NaN is itself
        return repr(one) == repr(other)
    if gpu.is_on_gpu(one):  # another array each time: compared where they are
        return (one.dtype, one.shape) == (other.dtype, other.shape) and gpu.have_same_bits(one, other)
    return bool(one == other) or (one != one and other != other)


def is_same_array(one: Array, other: Array) -> bool:
    """Tell whether two arrays of NumPy's have the same bits, but for those of NaN.

    A NaN's sign, and what it carries, depend on how a processor's instructions order their operands: NumPy's scalars
    and its loops over arrays give others.
    """
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:
        return bool(np.array_equal(one, other))
    first, second = np.ascontiguousarray(one), np.ascontiguousarray(other)
    if first.tobytes() == second.tobytes():
        return True
    if one.dtype.kind == "c":
        first, second = first.view(first.real.dtype), second.view(second.real.dtype)
    if first.dtype.kind != "f":
        return False
    kept = ~np.isnan(first)
    return bool(np.array_equal(kept, ~np.isnan(second)) and first[kept].tobytes() == second[kept].tobytes())
