"""What a listener is told: a function's steps, computed again of other values, give what the function gives of them.

Each program runs four times: as it is on two sets of values, with a listener on the first, and then only the steps
that the listener was told of, on the second. That listening changes no bit is tested along with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from helpers import each_case, tracks
from samples import SAMPLES, Sample, flat, seeds

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, backward, functional
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.listening import set_listener
from gradmgr._compile.log import Log
from gradmgr._compile.steps import Compute, Guard, Whole
from gradmgr._engine.context import Intercepting
from gradmgr._engine.tensor import wrap
from gradmgr.errors import DtypeError


class AnotherProgramError(Exception):
    """The steps are not those that the function would take: it decides something else."""


class ObstacleError(Exception):
    """The listener says that it is not told of all."""


def listening(log: Log, function: Callable[..., Any], *args: Any) -> Any:
    with Intercepting(log):
        set_listener(log)
        try:
            return function(*args)
        finally:
            set_listener(None)


class Again:
    """Steps computed again, with other arrays in the place of some; `table` has these by the identity of the first."""

    def __init__(self, log: Log, table: dict[int, Any]) -> None:
        self.table = table
        for step in log.steps:
            if isinstance(step, Guard):
                if step.read(*self.new(step.args)) != step.found:
                    raise AnotherProgramError
            elif isinstance(step, (Compute, Whole)):
                self.enter(step.result, step.function(*self.new(step.args), **self.new(step.keywords)))

    def new(self, value: Any) -> Any:
        """Return a value with the arrays of the present run."""
        if isinstance(value, (np.ndarray, np.generic)):
            return self.table.get(id(value), value)
        if value.__class__ is Batched:
            return Batched(value.level, self.new(value._array))
        if isinstance(value, Tensor):
            return wrap(self.new(value._array))
        if isinstance(value, tuple):
            parts = [self.new(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value.__class__ is list:
            return [self.new(part) for part in value]
        if value.__class__ is dict:
            return {name: self.new(part) for name, part in value.items()}
        if value.__class__ is slice:
            return slice(self.new(value.start), self.new(value.stop), self.new(value.step))
        return value

    def enter(self, old: Any, made: Any) -> None:
        """Let what a step returns stand for what it returned to the function."""
        if isinstance(old, np.bool_):  # there are only two
            if bool(made) != bool(old):
                raise AnotherProgramError
        elif isinstance(old, (np.ndarray, np.generic)):
            if (np.shape(made), made.dtype) != (old.shape, old.dtype):
                raise AnotherProgramError
            self.table[id(old)] = made
        elif isinstance(old, (Batched, Tensor)):
            self.enter(old._array, made._array)
        elif isinstance(old, dict):
            self.enter(tuple(old.values()), tuple(made.values()))
        elif isinstance(old, (tuple, list)):
            if len(old) != len(made):
                raise AnotherProgramError
            for part, new in zip(old, made, strict=True):
                self.enter(part, new)
        elif isinstance(old, (bool, int, float, complex, str)) and repr(old) != repr(made):
            raise AnotherProgramError


def arrays(values: Any) -> list[Any]:
    """The arrays of results."""
    found = [value._array if isinstance(value, Tensor) else value for value in flat(values)]
    return [a for a in found if a is None or (a is not NotImplemented and not isinstance(a, Tensor))]


def same_bits(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return (one.shape, one.dtype) == (other.shape, other.dtype) and one.tobytes() == other.tobytes()


def check_bits(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    assert len(found) == len(expected)
    different = [k for k, (a, b) in enumerate(zip(found, expected, strict=True)) if not same_bits(a, b)]
    assert not different, f"{what}: results {different} of {len(found)}: {[(found[k], expected[k]) for k in different]}"


def check_steps(
    run: Callable[..., Any], first: Sequence[Tensor], second: Sequence[np.ndarray], *expected: Sequence[np.ndarray]
) -> None:
    """Check `run` of tensors with the values of the first, and of the second, of which it returns `expected`."""
    log = Log()
    for number, t in enumerate(first):
        log.add_argument(number, t)
    table = {id(t._array): other for t, other in zip(first, second, strict=True)}
    kept = [t._array for t in first]  # so that no other array has these identities
    found = arrays(listening(log, run, *first))
    if log.obstacles:
        raise ObstacleError(log.obstacles)
    check_bits(found, expected[0], "listening changes it")
    again = Again(log, table)
    check_bits([a if a is None else again.table.get(id(a), a) for a in found], expected[1], "the steps lack something")
    assert kept


# ---------------------------------------------------------------- the table of samples

Program = Callable[[Callable[..., list[Tensor]], Sequence[Tensor], Any], Any]


def by_backward(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    with GradManager().attach(list(xs)) as gm:
        outs = [y for y in call(*xs) if tracks(gm, y)]
        dys += seeds(outs) if not dys else []
        gm.backward(outs, [asarray(d) for d in dys])
    return [*outs, *[t.grad for t in xs]]


def _twice(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any], *, nested: bool) -> list[Any]:
    with GradManager().attach(list(xs)) as outer:
        inner = GradManager().attach(list(xs)) if nested else outer
        with inner if nested else nullcontext():
            outs = [y for y in call(*xs) if tracks(inner, y)]
            dys += seeds(outs) if not dys else []
            backward(outs, [asarray(d) for d in dys], create_graph=not nested)
        gs = [t.grad for t in xs]
        tracked = [g for g in gs if g is not None and tracks(outer, g)]
        for t in xs:
            t.grad = None
        if tracked:
            outer.backward(tracked, [asarray(d) for d in seeds(tracked)])
    return [*outs, *gs, *[t.grad for t in xs]]


def by_nested_managers(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return _twice(call, xs, dys, nested=True)


def by_create_graph(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return _twice(call, xs, dys, nested=False)


def by_jvp(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    outs, tangents = functional.jvp(lambda *given: tuple(call(*given)), tuple(xs), tuple(map(asarray, seeds(xs))))
    return [*flat(outs), *flat(tangents)]


def other_values(sample: Sample, where: Sequence[int], dtype: Any) -> Iterator[list[np.ndarray]]:
    """Other arguments of a sample, the more different ones first: they may be refused, or lead elsewhere."""
    random = np.random.default_rng(zlib.crc32(str(sample).encode()) + 1)
    made, drawn, near = sample.make(dtype), sample.make(dtype), sample.make(dtype)
    for k in where:
        given = sample.args[k].values is not None or sample.args[k].constant
        drawn[k] = np.roll(made[k].ravel(), 1).reshape(made[k].shape) if given else sample.args[k].make(random, dtype)
        if made[k].dtype.kind in "fc":
            near[k] = np.asarray(made[k] * (1 + 1e-3))
    yield drawn
    yield near


# A Generator is made in the call: the steps draw on.
DRAWS = ("nn.dropout-0.3", "nn.scaled_dot_product_attention-dropout")
# Gradients of rows.
ROWS = "nn.embedding_bag-max, offsets, padding"


def by_value(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return call(*xs)


def check_sample(
    sample: Sample, program: Callable[..., list[Any]], *, constants: bool = False, dtype: Any = np.float64
) -> None:
    """Check a program of a sample; with `constants` its constant arguments are Tensors, too."""
    where, made = sample.where, sample.make(dtype)
    if constants:
        where = [k for k, a in enumerate(made) if isinstance(a, np.ndarray)]
    dys: list[Any] = []

    def run(*xs: Tensor) -> list[Any]:
        given = dict(zip(where, xs, strict=True))
        return program(lambda *xs: flat(sample.call(gnp, *_filled(made, where, xs))), list(given.values()), dys)

    def at(values: list[np.ndarray]) -> list[np.ndarray]:
        return [values[k] for k in where]

    try:
        first = arrays(run(*map(asarray, at(sample.make(dtype)))))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        if program is by_value:
            return  # it takes no such arguments
        raise
    for other in other_values(sample, where, dtype):
        if str(sample).startswith(DRAWS):
            return
        try:
            second = arrays(run(*map(asarray, at([a.copy() for a in other]))))
            check_steps(run, [asarray(a) for a in at(sample.make(dtype))], at(other), first, second)
        except (AnotherProgramError, ValueError, ArithmeticError, DtypeError) as error:
            last: Exception = error
        else:
            return
    raise last


def _filled(values: list[Any], where: Sequence[int], xs: Sequence[Tensor]) -> list[Any]:
    given = dict(zip(where, xs, strict=True))
    return [given.get(k, value) for k, value in enumerate(values)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # domains, overflows
@each_case([(s, program) for s in SAMPLES for program in (by_backward, by_nested_managers, by_create_graph, by_jvp)])
def test_steps_of_samples(sample: Sample, program: Callable[..., list[Any]]) -> None:
    check_sample(sample, program)
