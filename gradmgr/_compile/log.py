"""Log: what gradmgr computed while a function ran, as steps that can be computed again of other arrays.

A step is a function that was called with arrays, and what it returned: the kernel of an op, the vjp of an entry, what
gradmgr computes between them. Values are told apart by the identity of their arrays, which the log keeps alive. An array
that no step returned and that is no input is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradmgr._arrays.batched import Batched
from gradmgr._engine.entry import VJPS, tracked_input_ids
from gradmgr._engine.listening import Listener
from gradmgr._engine.tensor import Tensor, wrap


class Step:
    """One call of a function of arrays."""

    __slots__ = ("args", "function", "keywords", "result")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], result: Any):
        self.function = function
        self.args = args
        self.keywords = keywords
        self.result = result


class Log(Listener):
    """The steps of one run."""

    __slots__ = ("_inside", "steps")

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._inside = False  # whether a step runs, whose own steps do not count

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        if not self._inside:
            arrays = tuple([t._array if isinstance(t, Tensor) else t for t in inputs])
            self.steps.append(Step(op.kernel, (*arrays, *params), {}, result))

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._inside:
            return function(*args, **keywords)
        self._inside = True
        try:
            result = function(*args, **keywords)
        finally:
            self._inside = False
        result = distinct(result)
        self.steps.append(Step(function, args, keywords, result))
        return result

    def compute_vjp(self, vjp: Callable[..., None], e: tuple[Any, ...], g: Any, grads: Any, owned: Any) -> None:
        ids = tuple(dict.fromkeys(tracked_input_ids(e)))
        if e[0] == "attach":
            ids = (*ids, e[1])
        before = {i: shallow(grads[i]) for i in ids if i in grads}
        held = [i for i in (*ids, e[1]) if i in owned]
        given = shallow(g)
        vjp(e, g, grads, owned)
        made = tuple([shallow(grads.get(i)) for i in ids])
        self.steps.append(Step(run_vjp, (e, given, before, ids, held, type(owned)), {}, made))

    def guard(self, read: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return read(*args)


def run_vjp(e: Any, g: Any, before: Any, ids: Any, held: Any, kind: Any) -> Any:
    """Compute a vjp of what it is given; return the gradients of the inputs."""
    owned = kind(held)
    grads = dict(before)
    VJPS[e[0]](e, shallow(g), grads, owned)
    return tuple([shallow(grads.get(i)) for i in ids])


def shallow(g: Any) -> Any:
    return dict(g) if g.__class__ is dict else g


def distinct(result: Any) -> Any:
    """Return a result in which no array is one that is there once for all, as `numpy.True_`."""
    if isinstance(result, np.bool_):
        return np.array(result)
    return tuple(map(distinct, result)) if result.__class__ is tuple else result


def rerun(steps: Iterable[Step], table: dict[int, Any]) -> None:
    """Compute steps again; `table` has new arrays by the identity of those that they take the place of."""

    def new(value: Any) -> Any:
        kind = value.__class__
        if kind is np.ndarray:
            return table.get(id(value), value)
        if kind is Batched:
            return Batched(value.level, new(value._array))
        if kind is tuple:
            return tuple(map(new, value))
        if kind is list:
            return list(map(new, value))
        if kind is dict:
            return {k: new(v) for k, v in value.items()}
        if kind is slice:
            return slice(new(value.start), new(value.stop), new(value.step))
        if isinstance(value, Tensor):
            return wrap(new(value._array))
        return table.get(id(value), value) if isinstance(value, np.generic) else value

    def pair(old: Any, made: Any) -> None:
        kind = old.__class__
        if kind is Batched:
            pair(old._array, made._array)
        elif kind is dict:
            for k in old:
                pair(old[k], made[k])
        elif kind in (tuple, list) or isinstance(old, tuple):
            for a, b in zip(old, made, strict=True):
                pair(a, b)
        elif isinstance(old, (np.ndarray, np.generic)):
            table[id(old)] = made
        elif isinstance(old, Tensor):
            pair(old._array, made._array)

    for step in steps:
        pair(step.result, step.function(*map(new, step.args), **new(step.keywords)))
