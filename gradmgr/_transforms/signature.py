"""Signature: what of the arguments of a call decides whether a program that was captured fits it."""

from __future__ import annotations

import inspect
import operator
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of, parts_of, rebuilt
from gradmgr._engine.tensor import Tensor, raw

_BY_VALUE = (bool, int, str, bytes, type(None), np.integer, np.bool_)
_BY_TEXT = (float, complex)  # so that -0.0 is not 0.0, and NaN is NaN


class _Identity:
    """Stands for an object that is the same; held weakly where it can be."""

    __slots__ = ("_hash", "_reference")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._reference: Any = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Identity) or self._hash != other._hash:
            return False
        value = self._reference()
        return value is not None and value is other._reference()

    def __repr__(self) -> str:
        return f"{type(self._reference()).__name__} object"


class Signature:
    """The arguments of one call.

    Attributes:
        key: structure, shapes, dtypes, strides, numbers, which arguments are the same object; equal for two calls that
            a program may serve alike.
        leaves: the arguments without the containers they are in.
    """

    __slots__ = ("_tree", "key", "leaves")

    def __init__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._tree = args, keywords
        self.leaves: list[Any] = []
        leaves = self.leaves
        named = tuple(keywords) if keywords else ()
        values = (*args, *keywords.values()) if keywords else args
        key = (len(args), named, *[_key_of(value, leaves) for value in values])
        ids = list(map(id, leaves))
        self.key: Any = key if len(set(ids)) == len(ids) else (key, *[ids.index(each) for each in ids])

    def is_input(self, k: int) -> bool:
        """Tell whether a leaf is what a replay takes: a Tensor or an array."""
        return isinstance(self.leaves[k], Tensor) or _is_array(self.leaves[k])

    def has_arrays(self) -> bool:
        """Tell whether a leaf is an array."""
        return any(map(_is_array, self.leaves))

    def is_on_gpu(self) -> bool:
        """Tell whether a Tensor or an array is CuPy's."""
        arrays = [raw(leaf) for k, leaf in enumerate(self.leaves) if self.is_input(k)]
        return any(libraries.root(a) is not np for a in arrays)

    def first_like(self, k: int) -> int:
        """Return the number of the first leaf that is the same object."""
        return next(n for n, leaf in enumerate(self.leaves) if leaf is self.leaves[k])

    def filled(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with other leaves; the containers themselves where none is."""
        if all(map(operator.is_, leaves, self.leaves)):
            return self._tree
        args, keywords = rebuilt(self._tree, iter(leaves))
        return args, keywords

    @staticmethod
    def is_changed(args: tuple[Any, ...], keywords: dict[str, Any], leaves: list[Any]) -> bool:
        """Tell whether the containers among arguments hold other leaves than these."""
        found = leaves_of((args, keywords))
        return len(found) != len(leaves) or not all(map(operator.is_, found, leaves))


def signature_of(args: tuple[Any, ...], keywords: dict[str, Any]) -> Signature:
    """Return the signature of a call."""
    return Signature(args, keywords)


def _is_array(value: Any) -> bool:
    return libraries.is_array(value) and not isinstance(value, (np.integer, np.bool_))


def _key_of(value: Any, leaves: list[Any]) -> Any:
    kind = value.__class__
    if kind is Tensor or kind is np.ndarray:  # the common cases, without further questions
        leaves.append(value)
        array = value._array if kind is Tensor else value
        return (
            (kind, array.shape, array.dtype, array.strides) if array.__class__ is np.ndarray else _key_of_array(value)
        )
    if kind is float:
        leaves.append(value)
        return kind, repr(value)
    parts = parts_of(value)
    if parts is not None:
        names = tuple(value) if isinstance(value, dict) else ()
        return (value.__class__, names, *[_key_of(part, leaves) for part in parts])
    leaves.append(value)
    if isinstance(value, Tensor) or _is_array(value):
        return _key_of_array(value)
    if isinstance(value, _BY_VALUE):
        return value.__class__, value
    return (value.__class__, repr(value)) if isinstance(value, _BY_TEXT) else _Identity(value)


def _key_of_array(value: Any) -> tuple[Any, ...]:
    """Return the key of a Tensor or an array."""
    array = raw(value)
    key = value.__class__, array.shape, array.dtype, array.strides
    return key if array.__class__ is np.ndarray else (*key, array.__class__, libraries.device_of(array))


def difference_of_keys(one: Any, other: Any, function: Any) -> str:
    """Return in words what differs first between two keys of calls of a function."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    for k, (first, second) in enumerate(zip(_arguments(one), _arguments(other), strict=False)):
        if first != second:
            name = repr(names[k]) if k < len(names) else f"argument {k}"
            return f"{name}: {next(_differences(first, second))}"
    return next(_differences(one, other), "an argument")


def _arguments(key: Any) -> list[Any]:
    """Return the keys of the arguments, positional ones first."""
    return list((key[0] if isinstance(key[0], tuple) else key)[2:])  # a tuple where arguments are the same object


def _differences(one: Any, other: Any) -> Iterator[str]:
    if one == other:
        return
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for first, second in zip(one, other, strict=True):
            yield from _differences(first, second)
    yield f"{one!r:.80}, then {other!r:.80}"
