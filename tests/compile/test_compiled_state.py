"""What a compiled function reads besides its arguments: state that changes between calls, and objects of the user's."""

from __future__ import annotations

import argparse
import array
import contextlib
import contextvars
import dataclasses
import enum
import functools
import itertools
import math
import sys
import threading
import types
import warnings
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_programs import facts, first_difference, wave

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import Function, GradManager, Tensor, compile, errors, nn, tensor


def same(found: Any, expected: Any) -> None:
    assert first_difference([dict(facts(found))], [dict(facts(expected))]) == ""


@contextlib.contextmanager
def refusal(match: str) -> Iterator[None]:
    """Expect that a function is not replayed, for this reason."""
    with pytest.warns(errors.CompileWarning, match=match):
        yield


def tensors(n: int = 3, count: int = 9) -> list[Tensor]:
    return [tensor(wave(n, at=k)) for k in range(count)]


# ---------------------------------------------------------------- names that stand for something else


class Scaled:
    """A class whose methods read a global of its module."""

    rate = 2.0

    def __init__(self, value: Any) -> None:
        self.value = value

    def scaled(self) -> Any:
        return self.value * FACTORS[0]

    def __add__(self, other: Any) -> Any:
        return self.value + other * FACTORS[0]

    def __getitem__(self, index: int) -> float:
        return FACTORS[index]


FACTORS = [2.0]
OF_CLASS: Any = Scaled(3.0)


class Options(dict):  # type: ignore[type-arg]  # a test's
    """A dict of the user's, with an attribute."""

    scale = 1.0


Pair = namedtuple("Pair", "name values")  # the older form


def _of_module() -> Iterator[Any]:
    module: Any = types.ModuleType("settings_of_a_test")
    module.scale, module.twice = 2.0, None
    exec("def scaled(x): return x * scale", vars(module))  # noqa: S102  # a module that a test makes
    yield from (module, lambda: setattr(module, "scale", module.scale + 1))


def _values(make: Callable[[], Any], read: Callable[[Any], float], change: Callable[[Any], Any]) -> Any:
    """Make a step that reads a value, and what changes it."""
    held = make()
    return lambda x: x * read(held), lambda: change(held)


def _through_a_module(read: Callable[[Any, Any], Any]) -> Any:
    module, change = _of_module()
    return lambda x: read(module, x), change


def _next_factor() -> None:
    FACTORS[0] += 1.0


def _next_rate() -> None:
    Scaled.rate += 1.0


def _function_with_attribute() -> Any:
    def step(x: Any) -> Any:
        return x * step.scale  # type: ignore[attr-defined]  # set below

    step.scale = 2.0  # type: ignore[attr-defined]  # mypy knows no attributes of functions
    return step, lambda: setattr(step, "scale", step.scale + 1)  # type: ignore[attr-defined]  # as above


def _add_one(held: Any, key: Any) -> None:
    held[key] += 1


STATE: dict[str, Callable[[], Any]] = {
    "a number of a module": lambda: _through_a_module(lambda m, x: x * m.scale),
    "a function of a module": lambda: _through_a_module(lambda m, x: m.scaled(x)),
    "an attribute of a class": lambda: (lambda x: x * Scaled.rate, _next_rate),
    "a method of a class": lambda: (lambda x: Scaled(x).scaled(), _next_factor),
    "an operator of a class": lambda: (lambda x: Scaled(x) + x, _next_factor),
    "an operator of an object": lambda: (lambda x: OF_CLASS + x, _next_factor),
    "an item of an object": lambda: (lambda x: x * OF_CLASS[0], _next_factor),
    "an attribute of a function": _function_with_attribute,
    "a deque": lambda: _values(lambda: deque([2.0]), lambda h: h[0], lambda h: _add_one(h, 0)),
    "an OrderedDict": lambda: _values(lambda: OrderedDict(a=2.0), lambda h: h["a"], lambda h: _add_one(h, "a")),
    "a defaultdict": lambda: _values(lambda: defaultdict(float, a=2.0), lambda h: h["a"], lambda h: _add_one(h, "a")),
    "a UserDict": lambda: _values(lambda: UserDict(a=2.0), lambda h: h["a"], lambda h: _add_one(h, "a")),
    "a dict of the user's": lambda: _values(lambda: Options(a=2.0), lambda h: h["a"], lambda h: _add_one(h, "a")),
    "its attribute": lambda: _values(Options, lambda h: h.scale, lambda h: setattr(h, "scale", h.scale + 1)),
    "a view of a dict": lambda: _values(
        lambda: [d := {"a": 2.0}, types.MappingProxyType(d)], lambda h: h[1]["a"], lambda h: _add_one(h[0], "a")
    ),
    "a list in a named tuple": lambda: _values(
        lambda: Pair("a", [2.0]), lambda h: h.values[0], lambda h: _add_one(h.values, 0)
    ),
    "a bytearray": lambda: _values(lambda: bytearray(b"\2"), lambda h: h[0], lambda h: _add_one(h, 0)),
    "an array of Python's": lambda: _values(lambda: array.array("d", [2.0]), lambda h: h[0], lambda h: _add_one(h, 0)),
    "a Namespace": lambda: _values(
        lambda: argparse.Namespace(a=2.0), lambda h: h.a, lambda h: setattr(h, "a", h.a + 1)
    ),
    "a deep container": lambda: _values(
        lambda: {"a": [{"b": [[2.0]]}]}, lambda h: h["a"][0]["b"][0][0], lambda h: _add_one(h["a"][0]["b"][0], 0)
    ),
    "a long list": lambda: _values(lambda: [2.0] * 5000, lambda h: h[4000], lambda h: _add_one(h, 4000)),
}


@pytest.mark.parametrize("name", STATE)
def test_state_that_changes_between_calls_is_no_constant(name: str) -> None:
    step, change = STATE[name]()
    compiled = compile(step)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k >= 3:
            change()
    assert "variant for x" in compiled.explain()


def test_a_module_that_is_imported_in_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module, change = _of_module()
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def step(x: Any) -> Any:
        import settings_of_a_test  # type: ignore[import-not-found]  # made above

        return x * settings_of_a_test.scale

    compiled = compile(step)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k >= 3:
            change()
    assert "variant for x" in compiled.explain()


DEEP: Any = [[[[[[[[2.0]]]]]]]]
LONG = [2.0] * 20000
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "too deep": (lambda x: x * DEEP[0][0][0][0][0][0][0][0], "reads DEEP, which holds more than can be compared"),
    "too long": (lambda x: x * LONG[7], "reads LONG, which holds more than can be compared"),
    "a file": (lambda x: x * len(Path(__file__).read_text()), r"calls read_text\(\), which reads a file"),
    "text as code": (lambda x: x * eval("2.0"), r"calls eval\(\), which reads"),  # noqa: S307  # as users do
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_with_its_line(name: str) -> None:
    step, reason = REFUSED[name]
    line = step.__code__.co_firstlineno
    compiled = compile(step)
    with refusal(rf"{reason}.*{Path(__file__).name}:{line}\b"):
        for x in tensors():
            same(compiled(x), step(x))


# ---------------------------------------------------------------- arrays of the user's


class _Quantity:
    """An array with a unit, which serves NumPy's functions by those of what it holds."""

    def __init__(self, value: Any, unit: str = "m") -> None:
        self.value, self.unit = value, unit

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> _Quantity:
        return _Quantity(getattr(ufunc, method)(*map(value_of, inputs), **keywords), self.unit)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        return function(*map(value_of, args), **keywords)

    def __mul__(self: Any, other: Any) -> Any:
        return np.multiply(self, other)


def value_of(a: Any) -> Any:
    return a.value if isinstance(a, _Quantity) else a


Quantity: Any = _Quantity  # NumPy's types know no such arguments
LENGTH: Any = Quantity(tensor([1.0, 2.0, 3.0]))
MANY: Any = Quantity(np.ones(1000))  # more than is compared in each call


def _grow() -> None:
    MANY.value += 1.0


def _lengthen() -> None:
    LENGTH.value = LENGTH.value + 1.0


OBJECTS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "made in the function": (lambda x: np.sum(np.multiply(Quantity(x), 2.0)), _grow),
    "of Tensors": (lambda x: (LENGTH * x).value, _lengthen),
    "its unit": (lambda x: x * len(LENGTH.unit), lambda: setattr(LENGTH, "unit", LENGTH.unit + "m")),
    "a function": (lambda x: x * np.sum(MANY), _grow),
    "a ufunc": (lambda x: x * np.sum(np.exp(MANY)), _grow),
    "an operator": (lambda x: x * np.mean(MANY * 2.0), _grow),
    "an attribute": (lambda x: x * MANY.value[:3], _grow),
    "a text": (lambda x: x * len(MANY.unit), lambda: setattr(MANY, "unit", MANY.unit + "m")),
    "a branch": (lambda x: x * 2 if np.sum(MANY) % 2000 else x * 3, _grow),
    "with a Tensor": (lambda x: np.sum(np.multiply(MANY, x[:1]).value.numpy()), _grow),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_functions_of_an_array_of_the_users(name: str) -> None:
    step, change = OBJECTS[name]
    compiled = compile(step)
    with warnings.catch_warnings():
        if name == "with a Tensor":  # which gives a Tensor: a replay would not know whose
            warnings.simplefilter("ignore", errors.CompileWarning)
        for k, x in enumerate(tensors()):
            same(compiled(x), step(x))
            if k >= 3:
                change()
    assert ("variant for x" in compiled.explain()) is (name != "with a Tensor")


def test_an_array_of_the_users_runs_each_time_at_its_place() -> None:
    seen: list[str] = []

    class Logging(_Quantity):
        def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
            seen.append(function.__name__)
            return super().__array_function__(function, types, args, keywords)

    many: Any = Logging(np.arange(1000.0))
    step = compile(lambda x: x * np.max(many) + np.min(many))
    for x in tensors():
        same(step(x), x * 999.0)
    assert seen == ["max", "min"] * 9
    assert "calls Python each time" in step.explain()


def test_an_array_of_the_users_as_an_argument_and_a_result() -> None:
    step = compile(lambda q, x: (np.multiply(q, 2.0), x * np.sum(q)))
    for x in tensors():
        doubled, scaled = step(MANY, x)
        assert type(doubled) is Quantity
        same(doubled.value, MANY.value * 2.0)
        same(scaled, x * np.sum(MANY))
        _grow()
    assert "variant for q: _Quantity object" in step.explain()


def test_derivatives_through_an_array_of_tensors() -> None:
    w = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        w.grad = None
        with gm:
            gm.backward(gnp.sum(np.multiply(Quantity(w), x).value ** 2))
        return w.grad

    compiled = compile(step)
    for x in tensors():
        same(compiled(x), step(x))
    assert "variant for x" in compiled.explain()


def test_a_recorded_tensor_keeps_its_derivative() -> None:
    w = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(np.multiply(MANY, gnp.sum(w * x)).value))
        return w.grad

    compiled = compile(step)
    with refusal(r"Tensor that is recorded.*test_compiled_state"):
        for x in tensors():
            same(compiled(x), step(x))


def test_a_write_to_an_array_of_the_users_is_refused() -> None:
    class Filled(_Quantity):
        def __setitem__(self, index: Any, value: Any) -> None:
            self.value[index] = value

    filled: Any = Filled(np.zeros(1000))

    def step(x: Any) -> Any:
        filled[0] = 2.0
        return x * np.sum(filled)

    compiled = compile(step)
    with refusal(r"__setitem__ of a Filled writes"):
        for x in tensors():
            same(compiled(x), x * 2.0)


def test_an_array_of_the_users_after_a_change_of_a_tensor_is_refused() -> None:
    total = tensor([0.0])

    def step(x: Any) -> Any:
        total[...] = total + 1.0
        return total * np.sum(MANY)

    compiled = compile(step)
    with refusal(r"is called after a Tensor, or other state, has changed"):
        for k, x in enumerate(tensors()):
            same(compiled(x), tensor([k + 1.0]) * np.sum(MANY))


def test_an_array_of_the_users_in_a_container_is_refused() -> None:
    held = [MANY]
    step = compile(lambda x: x * np.sum(held[0]))
    with refusal("a _Quantity, whose own functions compute with what may change"):
        for x in tensors():
            same(step(x), x * np.sum(MANY))
            _grow()


def test_an_array_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(np.arange(5.0))
    step = compile(lambda x: x * series.mean() + np.log(series + 1.0).to_numpy()[:3])
    for x in tensors():
        same(step(x), x * series.mean() + np.log(series + 1.0).to_numpy()[:3])
        series[0] += 1.0
    assert "variant for x" in step.explain()


def test_names_stand_for_the_objects_themselves_after_a_call() -> None:
    def step(x: Any) -> Any:
        return x * np.sum(MANY)

    before = MANY
    compiled = compile(step)
    for x in tensors(count=2):
        compiled(x)
    assert MANY is before
    assert type(MANY) is Quantity


# ---------------------------------------------------------------- large arrays that are read by name

SIZE = 1000  # of doubles: more than is compared in each call
DATA: Any = np.arange(float(SIZE))
LENGTHS: Any = np.full(SIZE, 2)
ORDER: Any = np.arange(SIZE)[::-1]


class Held:
    """An object of the user's with a large array."""

    of_class: Any = np.arange(float(SIZE))

    def __init__(self) -> None:
        self.data = np.arange(float(SIZE))


class Doubling(dict):  # type: ignore[type-arg]  # a test's
    """A dict that gives something else than it holds."""

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self, key) * 2


class Slotted:
    """An object with a large array, and without a dict."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = np.arange(float(SIZE))


class Scaling(nn.Module):
    """A module of the user's with large arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.data = np.arange(float(SIZE))
        self.several = [np.arange(float(SIZE))]

    def forward(self, x: Any) -> Any:
        return x * self.data.sum() + self.several[0].sum()


class Outer(nn.Module):
    """A module that calls another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """An object whose attributes cannot be set."""

    data: Any


HELD, SLOTTED, FROZEN = Held(), Slotted(), Frozen(np.arange(float(SIZE)))
SCALING = Scaling()
WITHIN, SEQUENCE = Outer(SCALING), nn.Sequential(SCALING, nn.Tanh())
NAMES: Any = np.array([f"a{k:03}" for k in range(SIZE)])
IN_LIST, IN_DICT = [np.arange(float(SIZE))], {"a": [np.arange(float(SIZE))]}
IN_TUPLES = [("a", np.arange(float(SIZE)))]
IN_DOUBLING: Any = Doubling(a=np.arange(float(SIZE)))
IN_DEQUE = deque([np.arange(float(SIZE))])
IN_PAIR = Pair("a", np.arange(float(SIZE)))


def _of_default(x: Any, data: Any = np.arange(float(SIZE))) -> Any:  # noqa: B008  # as users do
    return x * data.sum()


def _of_kwdefault(x: Any, *, data: Any = np.arange(float(SIZE))) -> Any:  # noqa: B008  # as users do
    return x * data.sum()


def _of_function(x: Any) -> Any:
    return x * _of_function.data.sum()  # type: ignore[attr-defined]  # set below


_of_function.data = np.arange(float(SIZE))  # type: ignore[attr-defined]  # mypy knows no attributes of functions


def _of_closure() -> Any:
    data = np.arange(float(SIZE))
    return lambda x: x * data.sum(), data


_CLOSURE, _CLOSED = _of_closure()
_DEFAULT, _KWDEFAULT = _of_default.__defaults__[0], _of_kwdefault.__kwdefaults__["data"]  # type: ignore[index]  # both have one

# A step, and the array that it reads.
NAMED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "as it is": (lambda x: x * DATA[:3], DATA),
    "a method": (lambda x: x * DATA.sum(), DATA),
    "a function": (lambda x: x * np.sum(DATA), DATA),
    "a ufunc": (lambda x: x * np.exp(DATA / SIZE)[:3], DATA),
    "an operator": (lambda x: x + (DATA * 2.0 - 1.0)[5], DATA),
    "an operator, reflected": (lambda x: x + (1.0 - DATA)[5:8], DATA),
    "an element": (lambda x: x * DATA[7], DATA),
    "a slice": (lambda x: x * DATA[10:13], DATA),
    "a choice of elements": (lambda x: x * DATA[[1, 5, 7]], DATA),
    "a choice by an array": (lambda x: x * DATA[ORDER[5:8]], DATA),
    "a choice by an array that changes": (lambda x: x * DATA[LENGTHS[5:8]], LENGTHS),
    "a choice by a Tensor": (lambda x: x * gnp.take(DATA, gnp.argsort(x)), DATA),
    "a mask": (lambda x: x * DATA[DATA > 990.0].mean(), DATA),
    "a function of gradmgr": (lambda x: x * gnp.sum(gnp.sqrt(DATA)), DATA),
    "a number": (lambda x: x * float(DATA.sum()), DATA),
    "an integer": (lambda x: x[: int(LENGTHS.max())], LENGTHS),
    "an index": (lambda x: x[: LENGTHS.max()], LENGTHS),
    "an item": (lambda x: x * DATA.max().item(), DATA),
    "a length": (lambda x: x * len(range(int(LENGTHS[3]))), LENGTHS),
    "a branch": (lambda x: x * 2 if DATA.max() % 2 else x * 3, DATA),
    "a branch on a number": (lambda x: x * 2 if float(DATA.max()) % 2 else x * 3, DATA),
    "its shape": (lambda x: x * len(DATA) / DATA.shape[0] * DATA.size + DATA[3], DATA),
    "as an iterable": (lambda x: x * sum([row.sum() for row in DATA.reshape(2, -1)]), DATA),
    "a closure": (_CLOSURE, _CLOSED),
    "a default": (_of_default, _DEFAULT),
    "a default of a keyword": (_of_kwdefault, _KWDEFAULT),
    "an attribute of a function": (_of_function, _of_function.data),  # type: ignore[attr-defined]  # as above
    "an attribute": (lambda x: x * HELD.data.sum(), HELD.data),
    "an attribute of a class": (lambda x: x * Held.of_class.sum(), Held.of_class),
    "a class's attribute of an object": (lambda x: x * HELD.of_class.sum(), Held.of_class),
    "a slot": (lambda x: x * SLOTTED.data.sum(), SLOTTED.data),
    "a frozen object": (lambda x: x * FROZEN.data.sum(), FROZEN.data),
    "an attribute of a module": (lambda x: SCALING(x), SCALING.data),
    "a list of a module": (lambda x: SCALING(x), SCALING.several[0]),
    "a module in a module": (lambda x: WITHIN(x), SCALING.data),
    "a module in a sequence": (lambda x: SEQUENCE(x), SCALING.data),
    "in a list": (lambda x: x * IN_LIST[0].sum(), IN_LIST[0]),
    "in a dict": (lambda x: x * IN_DICT["a"][0].sum(), IN_DICT["a"][0]),
    "in tuples": (lambda x: x * IN_TUPLES[0][1].sum(), IN_TUPLES[0][1]),
    "in a named tuple": (lambda x: x * IN_PAIR.values.sum(), IN_PAIR.values),
    "in a dict of the user's": (lambda x: x * IN_DOUBLING["a"].sum(), IN_DOUBLING.get("a")),
    "in a deque": (lambda x: x * IN_DEQUE[0].sum(), IN_DEQUE[0]),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_large_array_that_is_read_by_name_and_written_between_calls(name: str) -> None:
    step, data = NAMED[name]
    before = data.copy()
    compiled = compile(step)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k >= 2:
            data += 1
    assert "variant for x" in compiled.explain()
    assert type(IN_DOUBLING.get("a")) is np.ndarray
    data[...] = before


def test_names_stand_for_the_arrays_themselves_after_a_call() -> None:
    held, in_list, in_dict = [HELD.data, Held.of_class, SLOTTED.data], [*IN_LIST], [*IN_DICT["a"]]
    pair = IN_TUPLES[0]

    def step(x: Any) -> Any:
        total = HELD.data.sum() + HELD.of_class.sum() + SLOTTED.data.sum() + IN_LIST[0].sum() + IN_DICT["a"][0].sum()
        return x * (total + IN_TUPLES[0][1].sum())

    compiled = compile(step)
    for x in tensors(count=3):
        compiled(x)
        found = [HELD.data, Held.of_class, SLOTTED.data, *IN_LIST, *IN_DICT["a"], IN_TUPLES[0]]
        assert list(map(id, found)) == list(map(id, [*held, *in_list, *in_dict, pair]))


def test_names_stand_for_the_arrays_themselves_after_an_error() -> None:
    data = DATA

    def step(x: Any) -> Any:
        raise KeyError(DATA.shape)

    with pytest.raises(KeyError, match="1000"):
        compile(step)(tensor([1.0]))
    assert data is DATA
    assert type(DATA) is np.ndarray


def test_a_large_array_that_is_replaced() -> None:
    held = [np.arange(float(SIZE))]
    compiled = compile(step := lambda x: x * held[0].sum())
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k % 4 == 3:
            held[0] = held[0] * 2.0
    assert compiled.explain().count("variant for x") == 2


def test_a_large_array_that_gets_another_shape() -> None:
    data: Any = np.arange(float(SIZE))
    compiled = compile(step := lambda x: x * data.shape[0] + data[3].sum())
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k == 4:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy, of what is tested
                data.shape = (10, 100)
    assert compiled.explain().count("variant for x") == 2


def test_a_large_array_that_the_function_assigns() -> None:
    mean = np.zeros(SIZE)

    def step(x: Any) -> Any:
        nonlocal mean
        mean = mean * 0.9 + 0.1
        return x * mean.sum()

    compiled = compile(step)
    expected = np.zeros(SIZE)
    with refusal("the function changes mean"):
        for x in tensors():
            expected = expected * 0.9 + 0.1
            same(compiled(x), x * expected.sum())
            assert type(mean) is np.ndarray
    np.testing.assert_array_equal(mean, expected)


def test_a_large_array_of_which_a_part_is_returned() -> None:
    data = np.arange(float(SIZE))
    compiled = compile(lambda x: (data, data[3:6], x * 2.0))
    for x in tensors():
        whole, part, _ = compiled(x)
        assert whole is data
        assert np.shares_memory(part, data)
        data += 1.0
    assert "variant for x" in compiled.explain()


def test_a_large_array_read_by_a_function_that_runs_each_time() -> None:
    data = np.arange(float(SIZE))

    class Scale(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * float(data.sum())

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * float(data.sum())

    compiled = compile(step := lambda x: gnp.sin(Scale.apply(x)) + data.max())
    for x in tensors():
        same(compiled(x), step(x))
        data += 1.0
    assert "variant for x" in compiled.explain()


def test_another_thread_reads_a_large_array_while_a_function_is_captured() -> None:
    found: list[Any] = []

    def step(x: Any) -> Any:
        thread = threading.Thread(target=lambda: found.append((DATA[3:5], float(DATA.sum()))))
        thread.start()
        thread.join()
        return x * DATA[0]

    compiled = compile(step)
    for x in tensors():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.CompileWarning)  # a list changes
            compiled(x)
    assert all(type(part) is np.ndarray and total == DATA.sum() for part, total in found)


OBJECTS_IN_ARRAY = np.array([[1.0], "a"], dtype=object)
IN_VALUES: Any = types.MappingProxyType({"a": np.arange(float(SIZE))})
BOUND = np.arange(float(SIZE)).sum
IN_PARTIAL = functools.partial(np.sum, np.arange(float(SIZE)))


def _matched(x: Any) -> Any:
    match DATA[3]:
        case float():
            return x * DATA[3]
    return x


NOT_SEEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "objects": (lambda x: x * OBJECTS_IN_ARRAY[0][0], "OBJECTS_IN_ARRAY"),
    "in a view of a dict": (lambda x: x * IN_VALUES["a"].sum(), "IN_VALUES"),
    "a method of it": (lambda x: x * BOUND(), "BOUND"),
    "in a partial": (lambda x: x * IN_PARTIAL(), "IN_PARTIAL"),
    "with a class asked for": (lambda x: x * DATA[3] if type(DATA[3]) is float else x, "DATA"),
    "matched by its class": (_matched, "DATA"),
    "asked for its class": (lambda x: x * DATA.sum() if type(DATA) is np.ndarray else x, "DATA"),
}


@pytest.mark.parametrize("name", NOT_SEEN)
def test_a_large_array_whose_use_cannot_be_seen_is_refused(name: str) -> None:
    step, what = NOT_SEEN[name]
    line = step.__code__.co_firstlineno + (step is _matched)
    compiled = compile(step)
    with refusal(rf"it reads {what}, .*an array .*; .*make it a Tensor.*{Path(__file__).name}:{line}\b"):
        for x in tensors():
            same(compiled(x), step(x))


LEAVING: dict[str, Callable[[Any], Any]] = {
    "a list": lambda x: x * DATA.tolist()[3],
    "a text": lambda x: x * len(str(DATA)),
    "asarray": lambda x: x * np.asarray(DATA)[3],
    "an index made of NumPy's": lambda x: x * DATA[np.arange(3)],
    "a buffer": lambda x: x * memoryview(DATA)[3],
    "its memory": lambda x: x * DATA.ctypes.data,
    "another library": lambda x: x * math.fsum(DATA),
    "a writing method": lambda x: x * DATA.itemset if hasattr(DATA, "itemset") else x * DATA.flat[3],
}


@pytest.mark.parametrize("name", LEAVING)
def test_values_that_leave_a_large_array_unseen_are_no_constants(name: str) -> None:
    step = LEAVING[name]
    before = DATA.copy()
    compiled = compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CompileWarning)  # where it is refused
        for x in tensors():
            same(compiled(x), step(x))
            DATA[...] += 1.0
    DATA[...] = before


def test_a_large_array_that_is_an_argument_too() -> None:
    data, other = np.arange(float(SIZE)), np.ones(SIZE)
    compiled = compile(step := lambda x: x[:3] * data.sum())
    for _ in range(4):
        same(compiled(data), step(data))
        data += 1.0
    assert "1 variant" in compiled.explain()
    for x in (other, data, other, other, data, other):  # the array by name stays, the argument changes
        same(compiled(x), step(x))
        data += 1.0
        other += 0.5


def test_an_attribute_of_its_object_is_given_to_a_method() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.x, self.w = np.arange(float(SIZE)), tensor(0.5)
            self.compiled = compile(self.step)

        def step(self, x: Any) -> Any:
            return (x * self.w).sum()

    trainer = Trainer()
    for k in range(6):
        if k == 4:
            trainer.x = np.ones(SIZE)
        same(trainer.compiled(trainer.x), trainer.step(trainer.x))
        trainer.x += 1.0
    assert "calls:" in trainer.compiled.explain()


def test_an_error_of_a_stand_in_is_not_the_users() -> None:
    """What takes no other class than NumPy's: the call is made without a capture."""
    compiled = compile(step := lambda x: x * np.ndarray.__len__(DATA))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CompileWarning)
        for x in tensors(count=3):
            same(compiled(x), step(x))


def test_an_error_of_a_stand_in_after_a_change_tells_of_it() -> None:
    total = tensor([0.0])

    def step(x: Any) -> Any:
        total[...] = total + x
        return total * np.frombuffer(DATA)[0]

    with pytest.raises(TypeError, match="bytes-like") as found:
        compile(step)(tensor([1.0]))
    assert "while compile captures a function" in found.value.__notes__[0]
    assert type(DATA) is np.ndarray


def test_a_large_array_is_not_kept_alive() -> None:
    held = Held()
    compiled = compile(step := lambda x: x * held.data.sum())
    for x in tensors():
        same(compiled(x), step(x))
    reference = weakref.ref(held.data)
    held.data = np.zeros(SIZE)
    assert reference() is None
    same(compiled(x), step(x))


TEXTS: dict[str, Callable[[Any], Any]] = {
    "its length": lambda x: x * len(NAMES[3]),
    "a letter": lambda x: x * 2 if NAMES[3][0] == "a" else x * 3,
    "a sum": lambda x: x * len(NAMES[3] + "b"),
    "equality": lambda x: x * 2 if NAMES[3] == "a003" else x * 3,
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_in_a_large_array(name: str) -> None:
    step = TEXTS[name]
    before = NAMES[3]
    compiled = compile(step)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k >= 2:
            NAMES[3] = ("b" if k % 2 else "a") * (1 + k % 3)
    assert "variant for x" in compiled.explain()
    NAMES[3] = before


def test_a_function_that_asks_whether_it_is_given_an_ndarray_takes_the_way_of_eager_calls() -> None:
    def step(x: Any) -> Any:
        return x * 2 if type(x) is np.ndarray else x * 3

    made = compile(step)
    with pytest.warns(errors.CompileWarning, match="may ask whether an argument is an ndarray"):
        assert made(np.ones(2)).tolist() == [2, 2]
    for _ in range(3):
        assert made(np.ones(2)).tolist() == [2, 2]
        assert made(tensor([1.0, 1.0])).tolist() == [3, 3]
    assert "variant for x: Tensor" in made.explain()


def changing_member(member: Any, name: str, values: Any) -> Callable[[], None]:
    """Return a function that gives a member of an Enum another value each time."""
    left = itertools.cycle(values)
    return lambda: setattr(member, name, next(left))


def enums() -> dict[str, tuple[Callable[[Any], Any], Callable[[], None]]]:
    """Return steps that ask an Enum, and what changes it."""

    class Mode(enum.Enum):
        A = 2.0
        B = 3.0
        C = [4.0]  # noqa: RUF012  # what is tested

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return found[0]

    found, other = [Mode.A], Mode["B"]

    def swap() -> None:
        found[0] = Mode.B if found[0] is Mode.A else Mode.A

    def shorten() -> None:
        Mode._member_names_[:] = ["A"] if len(Mode) == 3 else ["A", "B", "C"]

    return {
        "its value": (lambda x: x * other.value, changing_member(Mode.B, "_value_", [3.0, 5.0])),
        "its name": (lambda x: x * len(Mode.A.name), changing_member(Mode.A, "_name_", ["A", "AB"])),
        "a member that a list holds": (lambda x: x * found[0].value, swap),
        "what its value holds": (
            lambda x: x * Mode.C.value[0],
            lambda: Mode.C.value.__setitem__(0, Mode.C.value[0] + 1),
        ),
        "a value that is missing": (lambda x: x * Mode(7.0).value, swap),
        "how many there are": (lambda x: x * len(Mode), shorten),
    }


@pytest.mark.parametrize("name", enums())
def test_what_an_enum_holds_is_followed(name: str) -> None:
    step, change = enums()[name]
    compiled = compile(step)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        if k >= 3:
            change()
    assert "variant for x" in compiled.explain()


class Settings(dict[str, Any]):
    """A dict whose items are attributes, too, and which raises its own error for what is in neither."""

    __getattr__ = dict.__getitem__


def test_a_dict_whose_items_are_attributes_is_compared() -> None:
    settings: Any = Settings(inner=Settings(rate=2.0))
    compiled = compile(step := lambda x: x * settings.inner.rate)
    for k, x in enumerate(tensors()):
        same(compiled(x), step(x))
        settings.inner["rate"] = 3.0 if k == 4 else settings.inner.rate
    assert compiled.explain().count("variant for x") == 2


def test_what_the_end_of_an_object_changes_is_noticed() -> None:
    ended = [0.0]

    class Ending:
        def __del__(self) -> None:
            ended[0] += 1.0

    def step(x: Any) -> Any:
        Ending()
        return x * 2

    compiled = compile(step)
    with refusal("changes ended"):
        for k, x in enumerate(tensors(count=4)):
            same(compiled(x), x * 2)
            assert ended == [k + 1.0]


# ---------------------------------------------------------------- what changes again and again


class Trainer:
    """An object of the user's, with a number that each epoch changes."""

    epoch, model = 0.0, nn.Linear(3, 1)

    def __init__(self) -> None:
        self.lengths = np.arange(2000)


NOW = 0.0


def changing_again_and_again() -> dict[str, tuple[Callable[[Any], Any], Callable[[int], None], str]]:
    """Functions, what changes in them what they read, and what a warning says of it."""
    trainer, outer = Trainer(), 0.0

    def of_outer(x: Any) -> Any:
        return x * outer

    def set_outer(k: int) -> None:
        nonlocal outer
        outer = float(k)

    def set_global(k: int) -> None:
        global NOW
        NOW = float(k)

    return {
        "an attribute": (lambda x: x * trainer.epoch, lambda k: setattr(trainer, "epoch", k * 1.0), "trainer.epoch"),
        "a variable": (of_outer, set_outer, "outer"),
        "a global": (lambda x: x * NOW, set_global, "NOW"),
        "an object": (
            lambda x: trainer.model(x),
            lambda k: setattr(trainer, "model", nn.Linear(3, 1, rng=np.random.default_rng(k))),
            "trainer.model",
        ),
        "a number taken out of an array": (
            lambda x: x * int(trainer.lengths.max()),
            lambda k: trainer.lengths.fill(k),
            "the value of an array",
        ),
    }


@pytest.mark.parametrize("name", changing_again_and_again())
@pytest.mark.parametrize("calls", [1, 3])
def test_a_step_goes_on_whatever_a_name_stands_for_and_warns_of_it(name: str, calls: int) -> None:
    """Calls of each value: with one, all are captured; with three, some are replayed. None moves the weights twice."""
    function, change, what = changing_again_and_again()[name]
    found, expected = tensor([1.0, 2.0, 3.0]), tensor([1.0, 2.0, 3.0])

    def step(w: Any) -> Any:
        gm = GradManager().attach(w)
        with gm:
            gm.backward(loss := gnp.sum(function(w) ** 2))
        w -= 1e-6 * w.grad
        w.grad = None
        return loss

    compiled = compile(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(30):
            change(k)
            for _ in range(calls):
                same(compiled(found), step(expected))
                same(found, expected)
    warned = [str(each.message) for each in caught if each.category is errors.CompileWarning]
    assert warned
    assert len(warned) == len(set(warned)) <= 2
    line = f"{Path(__file__).name}:{function.__code__.co_firstlineno + (function.__name__ == 'of_outer')}"
    assert all(what in text and line in text for text in warned), warned
    assert "no further variants" in compiled.explain()


def test_a_name_that_changes_after_many_replays_is_captured_again() -> None:
    trainer = Trainer()
    compiled = compile(step := lambda x: x * trainer.epoch)
    x = tensor(wave(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CompileWarning)
        for k in range(25):
            trainer.epoch = k * 1.0
            for _ in range(110):
                found = compiled(x)
            same(found, step(x))
    assert "no further variants" not in compiled.explain()


# ---------------------------------------------------------------- settings of what runs at the moment


@pytest.mark.parametrize("asked", [gradmgr.is_grad_enabled, gradmgr.is_inference_mode_enabled])
def test_modes_that_a_function_asks_for_are_compared(asked: Callable[[], bool]) -> None:
    modes = (contextlib.nullcontext, gradmgr.no_grad, gradmgr.inference_mode, gradmgr.enable_grad)
    compiled = compile(step := lambda x: x * 2 if asked() else x * 3)
    for k, x in enumerate(tensors(count=16)):
        with modes[(k // 3 + k) % 4]():
            same(compiled(x), step(x))
    assert "not replayed" not in compiled.explain()


def _dividing_as(way: str, setting: str, value: Any) -> Callable[[Any], Any]:
    def with_block(x: Any) -> Any:
        with np.errstate(**{setting: value}):
            return 1.0 / x

    def with_seterr(x: Any) -> Any:
        before = np.seterr(**{setting: value})
        try:
            return 1.0 / x
        finally:
            np.seterr(**before)

    @np.errstate(**{setting: value})
    def decorated(x: Any) -> Any:
        return 1.0 / x

    def in_backward(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            y = gnp.sum(gnp.sqrt(x))  # whose derivative divides by zero
            with np.errstate(**{setting: value}):
                gm.backward(y)
        found, x.grad = x.grad, None
        return found

    return {"with": with_block, "seterr": with_seterr, "decorator": decorated, "backward": in_backward}[way]


@pytest.mark.parametrize("way", ["with", "seterr", "decorator", "backward"])
@pytest.mark.parametrize(("setting", "value"), [("all", "raise"), ("divide", "raise"), ("divide", "call")])
def test_a_function_that_lets_floating_point_errors_raise_raises_in_each_call(
    way: str, setting: str, value: str
) -> None:
    compiled = compile(_dividing_as(way, setting, value))

    def refuse(*args: Any) -> None:
        raise FloatingPointError(args)

    before = np.geterrcall()
    np.seterrcall(refuse)
    try:
        with refusal(f"floating-point errors raise in it.*set that around the call.* at .*{Path(__file__).name}:"):
            for x in tensors():
                compiled(x + 9)
        for x in tensors():
            with pytest.raises(FloatingPointError):
                compiled(x * 0)
    finally:
        np.seterrcall(before)


@pytest.mark.parametrize("value", ["ignore", "warn"])
def test_a_function_that_lets_no_floating_point_error_raise_is_replayed(value: str) -> None:
    compiled = compile(_dividing_as("with", "divide", value))
    for k, x in enumerate(tensors()):
        given = x * 0 if k > 3 else x
        with np.errstate(divide="ignore"):
            expected = 1.0 / given
        same(compiled(given), expected)
    assert "variant for x" in compiled.explain()


@pytest.mark.parametrize(
    ("change", "read", "undo"),
    [
        (lambda: gradmgr.set_grad_enabled(False), gradmgr.is_grad_enabled, lambda: gradmgr.set_grad_enabled(True)),
        (lambda: np.seterr(all="ignore"), lambda: np.geterr()["over"], lambda: np.seterr(all="warn")),
    ],
)
def test_a_setting_that_a_function_leaves_behind_is_left_behind_by_each_call(
    change: Callable[[], Any], read: Callable[[], Any], undo: Callable[[], Any]
) -> None:
    def step(x: Any) -> Any:
        change()
        return x * 2

    def check() -> None:
        compiled = compile(step)
        with refusal("changes what .* sets, for what comes after it, too; do that outside"):
            for x in tensors():
                undo()
                before = read()
                compiled(x)
                assert read() != before
                undo()

    contextvars.copy_context().run(check)  # where the settings end
