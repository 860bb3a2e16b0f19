"""Told arrays: what gradmgr's own code gets for the array of a Tensor while a function is captured.

Between ops that code computes on plain arrays: positions, masks, checks of arguments. A told array is a captured one
whose calls are not written down by themselves: each is made at once, and the log is told of it as of any other step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmgr._arrays.arguments import map_leaves
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.captured import CapturedArray, real_generator
from gradmgr._arrays.gpu import is_plain
from gradmgr._arrays.listening import Listener


class Teller:
    """Stands for the capture of told arrays."""

    __slots__ = ("_heard",)

    open = True
    may_decide = fuses = False
    named: frozenset[int] = frozenset()

    def __init__(self, heard: Listener) -> None:
        self._heard = heard

    def told(self, value: Any) -> Any:
        """Return what code gets for a value: arrays told, also batched ones and those in tuples and lists."""
        if is_plain(value):
            return CapturedArray(self, value, _NO_SLOT)
        if value.__class__ is Batched:
            return Batched(value.level, self.told(value._array))
        if isinstance(value, tuple):
            parts = map(self.told, value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return list(map(self.told, value)) if value.__class__ is list else value

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call of which the log is told."""
        given = tuple([untold(part) for part in args])
        return self.told(self._heard.call(function, given, {name: untold(part) for name, part in keywords.items()}))

    def call_operator(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Do as `call`."""
        return self.call(function, args, {})

    def call_foreign(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Do as `call`."""
        return self.call(function, args, keywords)

    def guard(self, read: Callable[[Any], Any], array: CapturedArray) -> Any:
        """Return what is read of an array, which a replay must find the same."""
        return self._heard.guard(read, (array.inner,))

    def add_obstacle(self, what: str) -> None:
        """Note that the steps cannot be computed again."""
        self._heard.leave(what, None)


_NO_SLOT: Any = None


def untold(value: Any) -> Any:
    """Return a value with the arrays themselves in place of told ones."""
    kind = value.__class__
    if kind is CapturedArray:
        return value.inner
    if kind is Batched:
        inner = untold(value._array)
        return value if inner is value._array else Batched(value.level, inner)
    if isinstance(value, (tuple, list, dict, slice)):
        return map_leaves(untold, value)
    return real_generator(value)
