"""Which tensors NumPy would have another one share memory with, so that no write to it is lost in silence.

In NumPy `inner = u[1:-1]; inner += 1` writes to `u`. A Tensor is a value, and `u` would stay as it is: an error as long
as `u` is in use. So the result of each function that makes a view in NumPy knows, by weak references, the tensor that
it was made of, and those that this one is a view of: `u[0][1:][2] = 1` is found where what stands between is gone. It
is NumPy that says what is a view: an array whose `base` is the other array's, or that is the other array.

`Tensor._view_of` is one of
    None: what an operation returned, an array, or if it has no axes a number, which no augmented assignment changes;
    (): an array that was made as such, a variable;
    (reference, more, index): a view of a tensor, the result of tensor[index] unless that is None, and a view of what
        `more` names likewise.
"""

from __future__ import annotations

import gc
import opcode
from types import FrameType
from typing import Any
from weakref import ref

import numpy as np

from gradmgr import errors
from gradmgr._arrays.batched import innermost
from gradmgr._arrays.captured import inner_of
from gradmgr._engine.tensor import Tensor, describe, is_number

ViewOf = tuple[Any, ...] | None


# ---------------------------------------------------------------- what results are views of


def linked(x: Tensor, index: Any = None) -> tuple[Any, ...]:
    """Return what a view of a tensor is a view of: without the tensors that are gone, or `x = x[1:]` would add up."""
    more = x._view_of
    while more and more[0]() is None:
        more = more[1]
    return ref(x), more, index


def always_view_of(x: Tensor, a: Any, c: Any, *params: Any) -> ViewOf:
    """Return what the result is a view of where NumPy makes a view of each array."""
    return None if is_number(x) else linked(x)


def view_of(x: Tensor, a: Any, c: Any, *params: Any) -> ViewOf:
    """Return what the result of a function that makes a view where it can is a view of; `()` where it made an array.

    One without axes is taken for a number, unless the argument was an array without axes.

    Args:
        x: the argument.
        a: its array.
        c: the array of the result.
        *params: of the op.
    """
    if not c.ndim if a.ndim else x._view_of is None:
        return None
    if a.__class__ is not np.ndarray:
        a, c = inner_of(innermost(a)), inner_of(innermost(c))
    base = c.base
    return linked(x) if c is a or (base is not None and (base is a or base is a.base)) else ()


def new_array(x: Any, a: Any, c: Any, *params: Any) -> ViewOf:
    """Return what the result is a view of where NumPy makes a new array of all that it is given."""
    return ()


def as_argument(x: Tensor, a: Any, c: Any, *params: Any) -> ViewOf:
    """Return what the result is a view of where NumPy makes a number of a number and a new array of an array."""
    return None if is_number(x) else ()


def as_new_array(z: Any) -> Any:
    """Return a new tensor that stands for a new array of NumPy's: neither for a view nor for a number."""
    if isinstance(z, Tensor):
        z._view_of = ()
    return z


def as_number(z: Any) -> Any:
    """Return what a function returned where NumPy makes a number of what has no axes."""
    if isinstance(z, Tensor) and not z._array.ndim:
        z._view_of = None
    return z


# ---------------------------------------------------------------- writes


def check_kept(x: Tensor, asked: str, instead: str = "assign the result, as in {item} = ...") -> None:
    """Raise if a write to a tensor would be lost, as what it is a view of is still in use.

    Args:
        x: the tensor that is to be written to.
        asked: what the user asked for, such as "x += y".
        instead: what to write instead, where {item} is x as an item of the other tensor.

    Raises:
        LostWriteError: it would.
    """
    if _whole_in_use(x) is None:
        return
    gc.collect(1)  # it may be in a cycle that nothing holds, as the variables of a recursive inner function are
    found = _whole_in_use(x)
    if found is not None:
        whole, item = found
        raise errors.LostWriteError(
            f"{asked} would write to {describe(x)} that is a view of u, {describe(whole)}. Tensors share no memory, so "
            f"u, which is still in use, would not change as it does in NumPy: {instead.format(item=item)}; or write to "
            "a copy, made with .copy()"
        )


def _whole_in_use(x: Tensor) -> tuple[Tensor, str] | None:
    """Return a tensor in use that this one is a view of, and the text of this one as an item of it; None if none is."""
    view, is_direct = x._view_of, True
    while view:
        whole = view[0]()
        if whole is not None and x.size:
            return whole, f"u[{_text_of(view[2])}]" if is_direct and view[2] is not None else "u[index]"
        view, is_direct = view[1], False
    return None


def _text_of(index: Any) -> str:
    """Return an index as it is written."""
    if isinstance(index, tuple) and index:
        return ", ".join(map(_text_of, index)) + ("," if len(index) == 1 else "")
    if isinstance(index, slice):
        parts = ["" if part is None else str(part) for part in (index.start, index.stop, index.step)]
        return ":".join(parts if parts[2] else parts[:2])
    return "..." if index is Ellipsis else str(index)


_CACHE = 0
_OPERATION = opcode.opmap["BINARY_OP"]
_SWAP = opcode.opmap["SWAP"]
_ASSIGNMENTS = (opcode.opmap["STORE_SUBSCR"], opcode.opmap.get("STORE_SLICE", -1))
_CALLS = (opcode.opmap["CALL"], opcode.opmap.get("PRECALL", -1))
_LOADS = (opcode.opmap["LOAD_FAST"], opcode.opmap.get("LOAD_FAST_BORROW", -1))
_DOUBLE_LOADS = (opcode.opmap.get("LOAD_FAST_LOAD_FAST", -1), opcode.opmap.get("LOAD_FAST_BORROW_LOAD_FAST_BORROW", -1))


def is_assigned_to_item(view: tuple[Any, ...], frame: FrameType) -> bool:
    """Return True if what a frame writes to, an item x[index] that nothing else holds, is then assigned to x[index].

    So it is in `u[1:-1] += 1`, and in `u[i] = operator.iadd(u[i], 1)`, which a library has that takes the operator as
    an argument. With a name or an attribute in place of the item, other instructions follow.

    Args:
        view: what is written to is a view of.
        frame: which executes an operator, or calls a function that does.
    """
    code, place = frame.f_code.co_code, frame.f_lasti
    if code[place] == _OPERATION:
        place += 2
        while code[place] in (_CACHE, _SWAP):
            place += 2
        return code[place] in _ASSIGNMENTS
    if code[place] not in _CALLS:
        return False
    while code[place] in (_CACHE, *_CALLS):
        place += 2
    names: list[str] = []
    while code[place] in _LOADS or code[place] in _DOUBLE_LOADS:
        given = code[place + 1]
        numbers = (given,) if code[place] in _LOADS else (given >> 4, given & 15)
        names += [frame.f_code.co_varnames[k] for k in numbers]
        place += 2
    if code[place] not in _ASSIGNMENTS or len(names) != 2:
        return False
    whole, index = [frame.f_locals[name] for name in names]
    return whole is view[0]() and index is view[2]
