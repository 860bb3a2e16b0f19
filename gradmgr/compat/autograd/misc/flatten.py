"""autograd.misc.flatten: nested containers as vectors, and back, differentiably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._engine.tensor import raw

__all__ = ["flatten", "flatten_func"]


def flatten(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the numbers in nested lists, tuples and dicts as one vector, and the function that puts them back.

    Dicts are read in the order of their keys, which must be sortable.

    Raises:
        TypeError: the keys of a dict cannot be sorted, or a leaf is no array or number.
        ValueError: in unflatten(vector), there are fewer numbers than in `value`.

    >>> import numpy
    >>> from gradmgr.compat.autograd.misc import flatten
    >>> vector, unflatten = flatten({"w": numpy.array([[1.0, 2.0]]), "b": 3.0})
    >>> vector
    array([3., 1., 2.])
    >>> unflatten(2 * vector)["w"]
    array([[2., 4.]])
    """
    leaves: list[Any] = []
    _collect(value, leaves)
    vector = gnp.concatenate([gnp.ravel(leaf) for leaf in leaves]) if leaves else np.array([])

    def unflatten(vector: Any) -> Any:
        return _filled(value, vector, 0)[0]

    return vector, unflatten


def _collect(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        for part in value:
            _collect(part, leaves)
    else:
        leaves.append(value)


def _filled(value: Any, vector: Any, start: int) -> tuple[Any, int]:
    """Return a container like `value` of the numbers in a vector from `start` on, and where they end."""
    if isinstance(value, dict):
        parts: dict[Any, Any] = {}
        for key in sorted(value):
            parts[key], start = _filled(value[key], vector, start)
        return {key: parts[key] for key in value}, start
    if isinstance(value, (list, tuple)):
        made = []
        for part in value:
            filled, start = _filled(part, vector, start)
            made.append(filled)
        return (value._make(made) if hasattr(value, "_make") else type(value)(made)), start
    a = np.asarray(raw(value))
    return (vector[start] if a.ndim == 0 else gnp.reshape(vector[start : start + a.size], a.shape)), start + a.size


def flatten_func(func: Callable[..., Any], example: Any) -> tuple[Callable[..., Any], Callable[[Any], Any], Any]:
    """Return a function of containers as one of vectors, the function that makes containers, and the first vector.

    Raises:
        TypeError: `func` is not a function.

    >>> from gradmgr.compat.autograd.misc.flatten import flatten_func
    >>> of_vector, unflatten, first = flatten_func(lambda p: {"w": p["w"] * 2.0, "b": p["b"]}, {"w": 3.0, "b": 1.0})
    >>> first, of_vector(first)
    (array([1., 3.]), array([1., 6.]))
    """
    vector, unflatten = flatten(example)
    errors.check_function(func, "flatten_func")
    return (lambda x, *args: flatten(func(unflatten(x), *args))[0]), unflatten, vector
