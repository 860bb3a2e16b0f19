"""What is known of a captured call by its function: whether it reads values, makes a view, keeps what it is given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.captured_calls import Call, Slot, slots_in
from gradmgr._replay.steps import NotLoweredError

# Those that give a view of their first argument and read no values, or do nothing at all.
_VIEWERS = frozenset(
    (
        *("getitem", "T", "mT", "real", "reshape", "ravel", "transpose", "swapaxes", "moveaxis", "squeeze"),
        *("expand_dims", "broadcast_to", "view", "diagonal", "flip", "fliplr", "flipud", "asarray", "imag", "rot90"),
        *("permute_dims", "matrix_transpose", "rollaxis", "atleast_1d", "atleast_2d", "atleast_3d", "astype"),
    )
)
_FACTS = frozenset(("shape", "ndim", "size", "result_type", "may_share_memory", "isscalar", "can_cast"))


def rule_name_of(function: Any) -> str:
    """Return by which name the rules know a function: a method's, an attribute's, NumPy's; "" for others."""
    for kind in ("method", "attribute"):
        known = getattr(function, kind, None)
        if known is not None:
            return str(known)
    name: str = getattr(function, "__name__", "")
    if function is operator.getitem or getattr(np, name, None) is function:
        return name
    return ""


def keeps_nothing(function: Any) -> bool:
    """Tell whether a function keeps no array that it is given: NumPy's, operators, methods, and kernels of ours."""
    module = getattr(function, "__module__", None) or ""
    return (
        bool(rule_name_of(function))
        or getattr(function, "keeps_nothing", False)
        or isinstance(function, np.ufunc)
        or isinstance(getattr(function, "__self__", None), np.ufunc)
        or module.partition(".")[0] in ("numpy", "_operator")
    )


def writes_to_out(call: Call) -> bool:
    """Tell whether the function of a call takes where its result, the only one, is to go, and was not given it."""
    if not (call.results.__class__ is Slot and call.expected is None and not call.keywords):
        return False
    return getattr(call.function, "writes_to_out", False) and call.results.number not in call.given


def makes_nothing(call: Call) -> bool:
    """Tell whether a call only reads facts of arrays, such as their shapes."""
    if call.made or call.expected is not None:
        return False
    return not any(leaves_in(call.results)) and rule_name_of(call.function) in _FACTS


def is_view(call: Call, layouts: Sequence[Any]) -> bool:
    """Tell whether the result of a call is its first argument, or a view of it in the same place each time."""
    result, source = call.results, call.args[0] if call.args else None
    if result.__class__ is not Slot or source.__class__ is not Slot or call.expected is not None:
        return False
    made, of = layouts[result.number], layouts[source.number]
    if made is not None and made.owner == result.number != source.number:
        return False
    if rule_name_of(call.function) not in _VIEWERS or (len(call.given) > 1 and any(slots_in(call.args[1:]))):
        return False
    if result == source:
        return True
    return made is not None and of is not None and made.owner is not None and made.owner == of.owner


def bound(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    """Return arguments by name; keywords that are NumPy's sign of "not given" are left out."""
    if len(call.args) > len(names):
        raise NotLoweredError
    facts = dict(zip(names, call.args, strict=False)) | call.keywords
    return {name: value for name, value in facts.items() if value is not np._NoValue}


def only(call: Call, count: int) -> tuple[Any, ...]:
    """Return the arguments, where there are so many and no keywords."""
    if len(call.args) != count or call.keywords:
        raise NotLoweredError
    return call.args
