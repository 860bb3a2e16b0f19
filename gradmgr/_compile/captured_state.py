"""What a capture knows of the Tensors and objects that a function meets: their state, and what stands for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import Slot
from gradmgr._engine.tensor import Tensor


class KnownTensor(weakref.ref[Tensor]):
    """The state of a tensor in a capture.

    Attributes:
        key: the tensor's identity.
        slot: where a replay has the tensor itself; None for one made since the capture began and not yet given out.
        array: its array, captured; None where it must be read, or is not one that is captured, as inside vmap.
        is_changed: whether the array must be written by a replay.
        knows_grad: whether its gradient was read or written.
        is_grad_changed: whether the gradient must be written by a replay.
        is_late: whether a call that is made as a whole may have changed it, so that reading it must come after.
        is_unseen: whether it comes from outside, and its array was not read or written yet.
        is_grad_unseen: likewise of its gradient.
    """

    __slots__ = (
        "array",
        "is_changed",
        "is_grad_changed",
        "is_grad_unseen",
        "is_late",
        "is_unseen",
        "key",
        "knows_grad",
        "slot",
    )

    def __init__(self, t: Tensor, forget: Callable[[Any], None]) -> None:
        super().__init__(t, forget)  # type: ignore[call-arg]  # as weakref.ref takes it
        self.key = id(t)
        self.slot: Slot | None = None
        self.array: CapturedArray | None = None
        self.is_changed = self.knows_grad = self.is_grad_changed = self.is_late = False
        self.is_unseen = self.is_grad_unseen = False


class ObjectStandIn:
    """The base of what replaces an object whose own functions are called in each replay: see `captured_object`.

    Attributes:
        real: that object.
        slot: where a replay has it, or what holds it.
    """

    __slots__ = ()

    real: Any
    slot: Any


class Residuals:
    """What a call that is made as a whole leaves for a later one; no other code reads it.

    Attributes:
        value: what it leaves.
        slot: where a replay has it; None until the call is captured.
    """

    __slots__ = ("slot", "value")

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.slot: Slot | None = None


class Condition:
    """What a function has seen of an object's state, which a replay must find the same.

    Args:
        owner: the object.
        read: returns its state; where there are `unread` names, it takes them as `without`.
        what: the state, for the user.
        unread: the names of attributes that the function does not read.
    """

    __slots__ = ("_expected", "_identities", "_look", "_owner", "_read", "what")

    def __init__(self, owner: Any, read: Callable[..., Any], what: str, unread: Collection[str] = ()) -> None:
        self._owner = weakref.ref(owner)
        self._look = getattr(read, "look", None)  # a cheaper test: what is the same for it is so for `read`
        if unread:
            read, self._look = partial(read, without=unread), self._look and partial(self._look, without=unread)
        self._read = read
        self._expected = read(owner)
        self._identities = None if self._look is None else self._look(owner)
        self.what = what

    def refresh(self) -> None:
        """Take the state as it is for what it was: after a capture, when no stand-ins are in it any more."""
        owner = self._owner()
        if owner is not None:
            self._expected = self._read(owner)
            self._identities = None if self._look is None else self._look(owner)

    def holds(self) -> bool:
        """Tell whether the state is what it was; of an object that is gone nothing is left to see."""
        owner = self._owner()
        if owner is None or (self._look is not None and self._look(owner) == self._identities):
            return True
        return bool(self._read(owner) == self._expected)
