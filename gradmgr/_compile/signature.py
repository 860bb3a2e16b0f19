"""Signature: what of the arguments of a call decides whether a program that was captured fits it."""

from __future__ import annotations

import inspect
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.containers import parts_of, rebuilt
from gradmgr._engine.tensor import Tensor, raw

_BY_VALUE = (bool, int, str, bytes, type(None), np.integer, np.bool_)
_BY_TEXT = (float, complex)  # so that -0.0 is not 0.0, and NaN is NaN

# Arguments from which on their key is made in each call.
_MOST_TESTED = 100


class _Identity:
    """Represents an object that is the same; held weakly where it can be."""

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

    __slots__ = ("key", "leaves", "tree")

    def __init__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.tree = args, keywords
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

    def first_like(self, k: int) -> int:
        """Return the number of the first leaf that is the same object."""
        return next(n for n, leaf in enumerate(self.leaves) if leaf is self.leaves[k])

    def filled(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments with other leaves; the containers themselves where none is."""
        if all(map(operator.is_, leaves, self.leaves)):
            return self.tree
        args, keywords = rebuilt(self.tree, iter(leaves))
        return args, keywords


# A container as it was given, that in its place in which arrays are Tensors, and what the latter held then.
Passed = tuple[Any, Any, list[tuple[Any, Any]]]


def passed_containers(given: Any, passed: Any) -> list[Passed]:
    """Return the containers among arguments, before the function runs."""
    parts = parts_of(given)
    if parts is None:
        return []
    found = [(given, passed, _contents(passed))]
    for part, its in zip(parts, parts_of(passed) or (), strict=True):
        found += passed_containers(part, its)
    return found


def give_back(containers: list[Passed], originals: dict[int, Any]) -> bool:
    """Let containers hold what a function has left in those in their place; return True if it has changed any.

    Args:
        containers: what `passed_containers` returned.
        originals: the arrays, by the identity of the Tensors in their place.
    """
    is_changed = False
    originals = originals | {id(passed): given for given, passed, _ in containers}
    for given, passed, before in containers:
        now = _contents(passed)
        if len(now) == len(before) and all(k == n and v is w for (k, v), (n, w) in zip(now, before, strict=True)):
            continue
        is_changed = True
        if given is passed:
            continue
        pairs = [(name, originals.get(id(value), value)) for name, value in now]
        if isinstance(given, list):
            given[:] = [value for _, value in pairs]
        elif isinstance(given, dict):
            given.clear()
            given.update(pairs)
        else:
            for name, value in pairs:
                setattr(given, name, value)
    return is_changed


def _contents(container: Any) -> list[tuple[Any, Any]]:
    """Return what a container holds, by the number, the key or the name."""
    if isinstance(container, (list, tuple)):
        return list(enumerate(container))
    if isinstance(container, dict):
        return list(container.items())
    return list(vars(container).items()) if hasattr(container, "__dict__") else []


def _is_array(value: Any) -> bool:
    is_array = libraries.is_array(value) and not isinstance(value, (np.integer, np.bool_))
    return is_array and (value.dtype.kind in "biufc" or libraries.is_differentiable(value.dtype))


def _key_of(value: Any, leaves: list[Any]) -> Any:
    kind = value.__class__
    # The common cases, without further questions.
    if kind is Tensor or (kind is np.ndarray and value.dtype.kind in "biufc"):
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
        libraries.check_plain(value)
        return _key_of_array(value)
    if isinstance(value, _BY_VALUE):
        return value.__class__, value
    if value.__class__ is range:  # which are equal where they are empty
        return range, repr(value)
    return (value.__class__, repr(value)) if isinstance(value, _BY_TEXT) else _Identity(value)


def _key_of_array(value: Any) -> tuple[Any, ...]:
    """Return the key of a Tensor or an array."""
    array = raw(value)
    key = value.__class__, array.shape, array.dtype, array.strides
    return key if array.__class__ is np.ndarray else (*key, array.__class__, libraries.device_of(array))


def test_of(key: Any) -> Callable[[tuple[Any, ...]], bool]:
    """Return a function that tells quickly whether positional arguments have a key.

    It is for Tensors and arrays of which no two are the same object, and takes half the time of making their key. Of
    others it says no.
    """
    count, named, *parts = key
    is_known = count.__class__ is int and not named and len(parts) == count <= _MOST_TESTED
    kinds = (Tensor, np.ndarray)
    if not is_known or not all(part.__class__ is tuple and part[0] in kinds and len(part) == 4 for part in parts):
        return lambda args: False
    scope: dict[str, Any] = {"Tensor": Tensor, "ndarray": np.ndarray}
    # Of two or three it takes half the time to compare each with each.
    alike = [f"args[{j}] is args[{k}]" for k in range(count) for j in range(k)]
    differ = [f"len(set(map(id, args))) != {count}"] if count > 3 else alike
    lines = ["def test(args):", f"    if {' or '.join([f'len(args) != {count}', *differ])}: return False"]
    lines += [f"    {''.join([f'a{k}, ' for k in range(count)])}= args"] if count else []
    for k, (kind, *facts) in enumerate(parts):
        scope |= {f"shape{k}": facts[0], f"dtype{k}": facts[1], f"strides{k}": facts[2]}
        array = f"(x := a{k}._array)" if kind is Tensor else f"(x := a{k})"
        of_kind = f"a{k}.__class__ is Tensor and " if kind is Tensor else ""
        lines += [
            f"    if not ({of_kind}{array}.__class__ is ndarray and x.shape == shape{k} and x.dtype is dtype{k}"
            f" and x.strides == strides{k}): return False"
        ]
    exec(compile("\n".join([*lines, "    return True"]), "<gradmgr signature>", "exec"), scope)  # noqa: S102  # ours
    return scope.pop("test")  # type: ignore[no-any-return]  # the function that the text defines


def described(key: Any, function: Any) -> str:
    """Return in words for which arguments of a function a key stands, such as "x: Tensor (8, 16) float32, n: 3"."""
    named = zip(_names_of(key, function), _arguments(key), strict=True)
    text = ", ".join([f"{name}: {_described(part)}" for name, part in named]) or "no arguments"
    return f"{text}, some of them the same object" if isinstance(key[0], tuple) else text


def _described(key: Any) -> str:
    """Return in words for what one argument, or a part of one, a key stands."""
    if isinstance(key, _Identity):
        return repr(key)
    kind: Any = key[0]
    facts = key[1:]
    if len(facts) >= 3 and isinstance(facts[1], np.dtype):
        shape, dtype, strides, *library = facts
        name = "array" if kind.__name__ == "ndarray" else kind.__name__
        text = " ".join([name, str(shape), str(dtype), *[str(part) for part in library[1:] if part != "cpu"]])
        is_usual = math.prod(shape) == 0 or strides == _strides_of(shape, dtype.itemsize)
        return text if is_usual else f"{text} with strides {strides}"
    if kind in (list, tuple, dict) or len(facts) != 1:
        names, *parts = facts
        texts = [_described(part) for part in parts]
        if names:
            texts = [f"{name!r}: {text}" for name, text in zip(names, texts, strict=True)]
        left, right = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}")}.get(kind, (f"{kind.__name__}(", ")"))
        return f"{left}{', '.join(texts)}{',' if kind is tuple and len(texts) == 1 else ''}{right}"
    return str(facts[0]) if kind in _BY_TEXT else repr(facts[0])


def _strides_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array that is contiguous in C order."""
    return tuple([itemsize * math.prod(shape[k + 1 :]) for k in range(len(shape))])


def _names_of(key: Any, function: Any) -> list[str]:
    """Return what the arguments are called for whose keys a key stands, positional ones first."""
    count, named = (key[0] if isinstance(key[0], tuple) else key)[:2]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    usual = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in parameters if each.kind in usual][:count]
    return [*names, *[f"argument {k}" for k in range(len(names), count)], *named]


def difference_of_keys(one: Any, other: Any, function: Any) -> str:
    """Return in words what differs first between two keys of calls of a function."""
    for name, first, second in zip(_names_of(one, function), _arguments(one), _arguments(other), strict=False):
        if first != second:
            called = name if name.startswith("argument ") else repr(name)
            return f"{called}: {next(_differences(first, second))}"
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
