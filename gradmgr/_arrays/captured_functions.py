"""What is known of the functions whose calls are captured: which write into arrays, which give steady shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import BuiltinMethodType, MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.captured_calls import Call, Slot, name_of


def _calls_method(name: str) -> Callable[..., Any]:
    """Return a function that calls a method: of an array, or of the NumPy scalar that a replay may meet instead."""

    def call(a: Any, *args: Any, **keywords: Any) -> Any:
        return getattr(a, name)(*args, **keywords)

    call.__name__ = name
    call.method = name  # type: ignore[attr-defined]  # by which `replay` writes it as one
    return call


# Methods of arrays as functions, by name.
METHODS = MappingProxyType(
    {
        name: _calls_method(name)
        for name in (
            *("sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin", "argsort", "argpartition", "clip"),
            *("cumsum", "cumprod", "diagonal", "dot", "nonzero", "repeat", "round", "searchsorted", "squeeze", "conj"),
            *("swapaxes", "take", "trace", "choose", "compress", "astype", "copy", "view", "reshape", "ravel"),
            *("flatten", "transpose", "fill", "conjugate", "any", "all", "sort", "partition", "put"),
        )
    }
)


def reads_attribute(name: str) -> Callable[[Any], Any]:
    """Return a function that reads an attribute of an array."""
    read = operator.attrgetter(name)

    def call(a: Any) -> Any:
        return read(a)

    call.__name__ = name
    call.attribute = name  # type: ignore[attr-defined]  # as above
    return call


# Functions of operators such as +=, which write into their first argument where they can.
UPDATES = frozenset(
    getattr(operator, f"i{name}")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor", "and", "or"),
    )
)

# Functions of whose results the shapes follow from those of the arguments, as of ufuncs.
STEADY = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor", "and_", "or_"),
        *("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"),
    )
)

# Functions that ask for what is the same in every replay, so that no replay need call them.
ASKING = frozenset(
    (
        *(np.shape, np.ndim, np.size, np.result_type, np.common_type, np.can_cast, np.iscomplexobj, np.isrealobj),
        *(np.may_share_memory, np.shares_memory),
    )
)

# Functions that write into their first argument.
_WRITERS = frozenset(
    (
        *(operator.setitem, np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis),
        *(METHODS[name] for name in ("fill", "sort", "partition", "put")),
    )
)

# The names of functions that give as many elements as values say.
_OF_SOME = frozenset(
    (
        *("nonzero", "flatnonzero", "argwhere", "extract", "compress", "bincount", "repeat", "trim_zeros"),
        *("unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
        *("intersect1d", "union1d", "setdiff1d", "setxor1d", "histogram_bin_edges"),
    )
)


def has_steady_shapes(function: Any) -> bool:
    """Tell whether the shapes of a function's results follow from those of its arguments, whatever their values."""
    kind = function.__class__
    return kind is np.ufunc or (kind is BuiltinMethodType and function in STEADY)


def written_by(call: Call) -> list[Slot]:
    """Return the slots of the arrays that a call writes into."""
    if not call.keywords and has_steady_shapes(call.function):  # mostly, so asked first
        return []
    found = call.args[:1] if call.function in UPDATES else targets(call.function, call.args, call.keywords)
    return [part for part in found if isinstance(part, Slot)]


def targets(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arrays that a call writes into."""
    found = args[:1] if function in _WRITERS or _is_at(function) else ()
    written = getattr(function, "writes", 0)  # of a kernel of ours
    if written:
        found = args[function.arrays - written : function.arrays]
    out = keywords.get("out") if keywords else None
    return found if out is None else (*found, *(out if isinstance(out, tuple) else (out,)))


def adds_in_any_order(call: Call) -> bool:
    """Tell whether a GPU adds several numbers to one in an order that changes, so that last bits do."""
    return _is_at(call.function) or name_of(call.function) in ("bincount", "histogram", "scatter_add")


def _is_at(function: Any) -> bool:
    """Tell whether it is the method `at` of a ufunc, NumPy's or CuPy's."""
    if function.__class__ is BuiltinMethodType and isinstance(function.__self__, np.ufunc):
        return bool(function.__name__ == "at")
    cupy = gpu.loaded_cupy()
    is_method = cupy is not None and isinstance(getattr(function, "__self__", None), cupy.ufunc)
    return is_method and name_of(function) == "at"


def facts_depend_on_values(function: Any, args: Any) -> bool:
    """Tell whether other values may give results of other shapes: unique ones, those where a mask is true, counts."""
    return name_of(function) in _OF_SOME or (function is operator.getitem and _holds_mask(args[1]))


def _holds_mask(index: Any) -> bool:
    """Tell whether an index chooses as many elements as its values say: by a mask, or by the bounds of a slice."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(gpu.is_plain(part) and part.dtype.kind == "b" for part in parts) or any(
        gpu.is_plain(bound) for part in parts if isinstance(part, slice) for bound in leaves_in(part)
    )
