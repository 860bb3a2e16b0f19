"""What calls are given: values in nested lists, tuples, dicts and slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

NESTS = (tuple, list, dict, slice)


def leaves_in(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists, dicts and slices; anything else is a leaf by itself."""
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    elif isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        yield value
        return
    for part in value:
        if isinstance(part, NESTS):  # asked here, as a generator for each leaf takes four times as long
            yield from leaves_in(part)
        else:
            yield part


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the same nest with each leaf changed."""
    if isinstance(value, (tuple, list)):
        parts = [map_leaves(change, part) if isinstance(part, NESTS) else change(part) for part in value]
        if value.__class__ is tuple:
            return tuple(parts)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: map_leaves(change, part) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*[map_leaves(change, part) for part in (value.start, value.stop, value.step)])
    return change(value)
