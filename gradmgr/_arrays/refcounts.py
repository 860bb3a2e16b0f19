"""Reference counts of values that nothing else holds, measured when this module is imported.

gradmgr writes into an array, or drops a recorded operation, only where no other reference to the array or node id
exists. What `sys.getrefcount` returns then depends on the Python version and on how the asking code holds the value:
in a local variable, an argument, a container. So each constant is measured by code that holds the value exactly as
the code that compares with it does. Where one of the two changes, change the other.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Protocol

import numpy as np


class _Holder:
    """An object that holds an array in a slot, as a Tensor and a batched array do."""

    __slots__ = ("_array",)

    def __init__(self, array: Any) -> None:
        self._array = array


# ---------------------------------------------------------------- arrays of tensors, see `memory.is_sole`


def _count_in_local(holder: Any) -> int:
    array = holder._array
    return getrefcount(array)


# An array that its holder and a local variable hold, see `gradients.own_gradient`.
ARRAY_IN_LOCAL = _count_in_local(_Holder(np.empty(2)))


def _count_given_by(holder: Any) -> tuple[int, int]:
    array = holder._array
    return _count_given(array)


def _count_given(array: Any) -> tuple[int, int]:
    base = array.base
    return getrefcount(array), getrefcount(base)


# The same in a function that the array is given to, and a base that only such an array holds.
ARRAY_GIVEN, _ = _count_given_by(_Holder(np.empty(2)))
_, BASE_GIVEN = _count_given_by(_Holder(np.empty(2)[:1]))


def _count_of_argument() -> tuple[int, int]:
    array, view = np.empty(2), np.empty(2)[:1]
    return _count_argument(array)[0], _count_argument(view)[1]


def _count_argument(array: Any) -> tuple[int, int]:
    base = array.base
    return getrefcount(array), getrefcount(base)


# An array that only a local variable holds, in a function that it is given to, see `memory.over_first`.
ARRAY_ARGUMENT, BASE_OF_ARGUMENT = _count_of_argument()


# ---------------------------------------------------------------- operands, see `mutation.updater`


class _Whole:
    """What has items to which an augmented assignment can be made."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: Any) -> _Item:
        return _Item()

    def __setitem__(self, index: Any, count: int) -> None:
        self.count = count


class _Item:
    def __iadd__(self, other: Any, /) -> Any:
        return getrefcount(self)


def _count_operand() -> int:
    whole = _Whole()
    whole[0] += 1
    return whole.count


# The target of an augmented assignment that only the statement holds, in the method that is called for it.
OPERAND_OF_STATEMENT = _count_operand()


# ---------------------------------------------------------------- node ids, see `tape.sweep`

# A node id that only its entry holds, asked for as entries[k][1].
NODE_ID_IN_ENTRY = next(getrefcount(entry[1]) for entry in [("", object())])


def count_keys(places: dict[Any, int]) -> list[tuple[int, int, Any]]:
    """Return (reference count, value, key) for each item of a dict."""
    return [(getrefcount(key), place, key) for key, place in places.items()]


# A node id that is only the key of such a dict, see `checkpoint`.
NODE_ID_AS_KEY = count_keys({object(): 0})[0][0]


# ---------------------------------------------------------------- gradients


def _count_in_vjp() -> int:
    def ask(g: Any) -> int:
        return getrefcount(g)

    def vjp(e: Any, g: Any, grads: Any, owned: Any) -> int:
        return ask(g)

    grads = {"": np.empty(1)}
    g = grads.pop("")
    return vjp("", g, grads, ())


# A gradient that only the backward pass and the vjp it calls hold, in a function that the vjp asks.
GRADIENT_IN_VJP = _count_in_vjp()


# ---------------------------------------------------------------- views of a flat buffer, see `optim`


def _count_view() -> int:
    views = [np.empty(1)]
    holder = _Holder(views[0])
    count = max(map(getrefcount, views))
    del holder
    return count


# A view that only a list of views and one parameter hold.
VIEW_IN_CHUNK = _count_view()


# ---------------------------------------------------------------- buffers of saved values, see `spill`


class Buffer(Protocol):
    """The array that owns some memory, and the saved arrays that lie in it, by any key."""

    owner: Any
    arrays: dict[Any, Any]


class _Buffer:
    def __init__(self, owner: Any, arrays: dict[Any, Any]) -> None:
        self.owner = owner
        self.arrays = arrays


def count_buffer(buffer: Buffer) -> tuple[int, int]:
    """Return how many refer to the owner without being one of the arrays, and the highest count of a view."""
    owner = buffer.owner
    views = [getrefcount(a) for a in buffer.arrays.values() if a is not owner]
    # Each of the arrays is the owner or refers to it.
    return getrefcount(owner) - len(buffer.arrays), max(views, default=0)


def _count_buffer_alone() -> tuple[int, int]:
    owner = np.empty(2)
    buffer = _Buffer(owner, {0: owner, 1: owner[:1]})
    del owner
    return count_buffer(buffer)


BUFFER_ALONE = _count_buffer_alone()
