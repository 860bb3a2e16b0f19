"""Nested containers: lists, tuples, named tuples, dicts and dataclasses, their leaves, others of that structure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradmgr._engine.tensor import Tensor

# Classes of leaves, which need no further test.
_COMMON = frozenset((Tensor, np.ndarray, np.float64, np.float32, int, float, complex, bool, str, type(None)))


def leaves_of(tree: Any) -> list[Any]:
    """Return what a nested container holds, in order; anything else is a leaf by itself."""
    parts = parts_of(tree)
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves_of(part)]


def rebuilt(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return a container of the same form and types that holds these leaves instead."""
    parts = parts_of(tree)
    return next(leaves) if parts is None else _filled(tree, [rebuilt(part, leaves) for part in parts])


def _fields(tree: Any) -> list[str] | None:
    """Return the names of the fields of a dataclass instance; there is none before dataclasses is imported."""
    known = sys.modules.get("dataclasses")
    if known is None or isinstance(tree, type) or not known.is_dataclass(tree):
        return None
    return [field.name for field in known.fields(tree) if hasattr(tree, field.name)]


def parts_of(tree: Any) -> list[Any] | None:
    """Return what a container holds, in order; None of anything else, a leaf."""
    if tree.__class__ in _COMMON:
        return None
    if isinstance(tree, (list, tuple)):
        return list(tree)
    if isinstance(tree, dict):
        return list(tree.values())
    names = _fields(tree)
    return None if names is None else [getattr(tree, name) for name in names]


def _filled(tree: Any, parts: list[Any]) -> Any:
    if tree.__class__ in (list, tuple):
        return tree.__class__(parts)
    if isinstance(tree, tuple):
        return tree._make(parts) if hasattr(tree, "_make") else tree.__class__(parts)
    if tree.__class__ is dict:
        return dict(zip(tree, parts, strict=True))
    import copy  # deferred, as few programs need it

    made = copy.copy(tree)  # an OrderedDict, a frozen dataclass: whatever else it holds stays
    if isinstance(tree, list):
        made[:] = parts
    elif isinstance(tree, dict):
        for key, part in zip(tree, parts, strict=True):
            made[key] = part
    else:
        for name, part in zip(_fields(tree) or (), parts, strict=True):
            object.__setattr__(made, name, part)
    return made
