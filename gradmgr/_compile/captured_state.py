"""What a log notes of objects that a function meets: their state, and what calls made as a whole leave."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from gradmgr._arrays.captured_calls import Slot


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
        read: returns its state.
        what: the state, for the user.
    """

    __slots__ = ("_expected", "_identities", "_look", "_owner", "_read", "what")

    def __init__(self, owner: Any, read: Callable[..., Any], what: str) -> None:
        self._owner = weakref.ref(owner)
        self._look = getattr(read, "look", None)  # a cheaper test: what is the same for it is so for `read`
        self._read = read
        self._expected = read(owner)
        self._identities = None if self._look is None else self._look(owner)
        self.what = what

    def holds(self) -> bool:
        """Tell whether the state is what it was; of an object that is gone nothing is left to see."""
        owner = self._owner()
        if owner is None or (self._look is not None and self._look(owner) == self._identities):
            return True
        return bool(self._read(owner) == self._expected)
