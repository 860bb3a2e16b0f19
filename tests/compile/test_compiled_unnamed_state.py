"""What a compiled function depends on without naming it: code of libraries, identities, texts, registries, options."""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import copy
import dataclasses
import itertools
import operator
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_compiled_state import refusal, same, tensors

import gradmgr
from gradmgr import GradManager, Tensor, compile, errors, nn, optim, tensor

FILE = Path(__file__).name
Pair = tuple[Callable[[Any], Any], Callable[[], Any]]


def check_replayed(step: Callable[[Any], Any], change: Callable[[], Any]) -> str:
    """Check that a compiled step gives what it gives by itself, also after changes, and is replayed; return how."""
    compiled = compile(step)
    for k, x in enumerate(tensors(count=8)):
        same(compiled(x), step(x))
        if k >= 3:
            change()
    assert "calls:" in compiled.explain()
    return compiled.explain()


# ---------------------------------------------------------------- functions of installed libraries

LIBRARY = """
import functools
from . import options
SCALE = 2.0
FACTORS = [2.0]
_results = {}

class Scaler:
    def __init__(self): self.kept = SCALE
    def times(self, x): return x * SCALE
    @property
    def first(self): return FACTORS[0]

SCALER = Scaler()

def set_scale(value):
    global SCALE
    SCALE = value

def scale(): return SCALE
def through_others(): return scale() + FACTORS[0]
def through_an_object(x): return SCALER.times(x)
def of_another_module(): return options.rate
def of_options(name): return getattr(options, name)

def decorated(function):
    @functools.wraps(function)
    def call(*args): return function(*args) * SCALE
    return call

def make():
    kept = [2.0]
    def read(): return kept[0]
    def write(value): kept[0] = value
    return read, write
read, write = make()

def kept(n):
    if n not in _results:
        _results[n] = n * 2.0
    return _results[n]

def now():
    import time
    return 0 * time.time() + 2

def count():
    SCALER.kept += 1
    return 2.0
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Install a library, as pip does, for the tests of this file."""
    folder = tmp_path_factory.mktemp("environment") / "site-packages"
    package = folder / "a_library_of_a_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    (package / "options.py").write_text("rate = 2.0\n")
    sys.path.insert(0, str(folder))
    try:
        import a_library_of_a_test  # type: ignore[import-not-found]  # written above

        yield a_library_of_a_test
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith("a_library_of_a_test")]:
            del sys.modules[name]


def _more(library: Any) -> None:
    library.set_scale(library.SCALE + 1)
    library.FACTORS[0] += 1
    library.options.rate += 1
    library.write(library.read() + 1)


OF_LIBRARY: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "a number": lambda lib: lambda x: x * lib.SCALE,
    "a global of a function": lambda lib: lambda x: x * lib.scale(),
    "functions of functions": lambda lib: lambda x: x * lib.through_others(),
    "a method of an object": lambda lib: lambda x: lib.through_an_object(x),
    "a class": lambda lib: lambda x: x * lib.Scaler().kept,
    "a property": lambda lib: lambda x: x * lib.SCALER.first,
    "another module": lambda lib: lambda x: x * lib.of_another_module(),
    "an attribute by a text": lambda lib: lambda x: x * lib.of_options("rate"),
    "a decorator": lambda lib: lib.decorated(lambda x: x * 1.0),
    "a closure": lambda lib: lambda x: x * lib.read(),
}


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_state_behind_a_function_of_a_library_is_no_constant(library: Any, name: str) -> None:
    check_replayed(OF_LIBRARY[name](library), lambda: _more(library))


def test_a_library_that_keeps_its_results_is_replayed(library: Any) -> None:
    assert "1 variant" in check_replayed(lambda x: x * library.kept(3), lambda: None)


def test_a_library_that_reads_the_clock_or_counts_is_refused_at_the_line_of_the_program(library: Any) -> None:
    step: Any = lambda x: x * library.now()  # whose line is its first
    with refusal(rf"calls now\(\) of a_library_of_a_test: it reads time, .*{FILE}:{step.__code__.co_firstlineno}$"):
        same(compile(step)(tensor([1.0])), tensor([2.0]))
    compiled = compile(lambda x: x * library.count())
    with refusal("the function changes SCALER.kept"):
        for x in tensors(count=3):
            same(compiled(x), x * 2)


# ---------------------------------------------------------------- by the environment

Held = SimpleNamespace


def _with_other_list(read: Callable[[Any, Any], bool]) -> Pair:
    held = Held(a=[1.0], b=[1.0])

    def change() -> None:
        held.b = [1.0] if held.b is held.a else held.a

    return (lambda x: x * 2 if read(held.a, held.b) else x * 3), change


def _shadowed(builtin: str, text: str, function: Any) -> Pair:
    variables: dict[str, Any] = {"values": [1, 2]}
    exec(f"def step(x): return x * {text}", variables)  # noqa: S102  # a module of a program

    def change() -> None:
        if variables.pop(builtin, None) is None:
            variables[builtin] = function

    return variables["step"], change


def _other_bases() -> Pair:
    one, two = (type(f"Base{k}", (), {"scale": float(k)}) for k in (2, 3))
    middle = type("Middle", (), {})
    kind: Any = type("Kind", (middle, one), {})

    def change() -> None:
        kind.__bases__ = (middle, two if kind.__bases__[1] is one else one)

    return (lambda x: x * kind.scale), change


def _method_that_hides_another() -> Pair:
    class Base:
        def scale(self) -> float:
            return 2.0

    class Kind(Base):
        pass

    held, values = Kind(), itertools.count(3)

    def change() -> None:
        n = next(values)
        Kind.scale = lambda self: float(n)  # type: ignore[method-assign]  # what is tested

    return (lambda x: x * held.scale()), change


def _other_property() -> Pair:
    class Kind:
        @property
        def scale(self) -> float:
            return 2.0

    held, values = Kind(), itertools.count(3)

    def change() -> None:
        n = next(values)
        Kind.scale = property(lambda self: float(n))  # type: ignore[method-assign,assignment]  # what is tested

    return (lambda x: x * held.scale), change


def _registered(base: Any) -> Pair:
    class Kind:
        pass

    held = Kind()
    return (lambda x: x * 2 if isinstance(held, base) else x * 3), lambda: base.register(Kind)


class Abstract(abc.ABC):  # noqa: B024  # without methods, on purpose
    """A class with which others register."""


def _subclasses() -> Pair:
    class Kind:
        pass

    kept: list[Any] = []
    return (lambda x: x * (1 + len(Kind.__subclasses__()))), lambda: kept.append(type("Sub", (Kind,), {}))


def _print_options(write: Callable[[Any], str]) -> Pair:
    values, options = np.array([1.23456789]), itertools.cycle([3, 8])
    return (lambda x: x * len(write(values))), lambda: np.set_printoptions(precision=next(options))


class OfText:
    """An object whose text changes."""

    text = "a"

    def __repr__(self) -> str:
        return self.text


@dataclasses.dataclass
class Settings:
    """Settings of a program."""

    rate: float = 2.0
    other: float = 1.0

    def __post_init__(self) -> None:
        self.made = FACTORS[0]


FACTORS = [2.0]


class Vector:
    """An object whose methods make others of its class."""

    def __init__(self, value: float) -> None:
        self.value = value * FACTORS[0]

    def __add__(self, other: float) -> Vector:
        return type(self)(self.value + other)

    def __sub__(self, other: float) -> Vector:
        return self.__class__(self.value - other)


class Copied:
    """An object that makes its copies itself."""

    def __deepcopy__(self, memo: Any) -> float:
        return FACTORS[0]


def _grow(held: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(held, name, getattr(held, name) * 10)


def _grow_factors() -> None:
    FACTORS[0] += 1


def _grown(held: Any, name: str, read: Callable[[Any], float]) -> Pair:
    return (lambda x: x * read(held)), _grow(held, name)


def _by_factors(held: Any, read: Callable[[Any], float]) -> Pair:
    return (lambda x: x * read(held)), _grow_factors


def _of_settings(read: Callable[[Any], float]) -> Pair:
    return _grown(Settings(), "rate", read)


def _matched(settings: Any) -> float:
    match settings:
        case Settings(rate=found):
            return float(found)
    return 0.0


def _matched_by_place(settings: Any) -> float:
    match settings:
        case Settings(found):
            return float(found)
    return 0.0


def _of_function(name: str) -> Pair:
    def function() -> None:
        """A"""

    return (lambda x: x * len(getattr(function, "__wrapped__", function).__name__ + (function.__doc__ or ""))), (
        lambda: setattr(function, name, getattr(function, name) + "a")
    )


def _name_of_class() -> Pair:
    kind: Any = type("Kind", (), {})
    held = kind()
    return (lambda x: x * len(type(held).__name__)), lambda: setattr(kind, "__name__", kind.__name__ + "a")


def _writeable() -> Pair:
    values: Any = np.ones(2)
    return (lambda x: x * 2 if values.flags.writeable else x * 3), lambda: values.setflags(
        write=not values.flags.writeable
    )


def _signed(zero: Any) -> Pair:
    held = Held(zero=zero)
    return (lambda x: np.copysign(x, held.zero)), lambda: setattr(held, "zero", -held.zero)


def _of_module(read: Callable[[Any], float]) -> Pair:
    module: Any = types.ModuleType("settings_of_a_program")
    module.rate = 2.0
    return (lambda x: x * read(module)), _grow(module, "rate")


PARTS = ["ra", "te"]


class Calling:
    """An object with a method."""

    def rate(self) -> float:
        return FACTORS[0]


def _threads() -> Pair:
    numbers = itertools.cycle([2, 1])
    return (lambda x: x * gradmgr.get_num_threads()), lambda: gradmgr.set_num_threads(next(numbers))


def _attached() -> Pair:
    manager, kept = GradManager(), [tensor([1.0])]

    def change() -> None:
        kept.append(tensor([1.0]))
        manager.attach(kept[-1])

    return (lambda x: x * (1 + len(manager.attached_tensors()))), change


def _of_network(read: Callable[[Any], int], change: Callable[[Any], Any]) -> Pair:
    network = nn.Sequential(nn.Linear(3, 3, rng=np.random.default_rng(0)))
    return (lambda x: x * read(network)), lambda: change(network)


def _adds_layer(network: Any) -> None:
    network.append(nn.Linear(3, 3, rng=np.random.default_rng(0)))


def _warned() -> Pair:
    actions = itertools.cycle(["error", "ignore"])

    def step(x: Any) -> Any:
        try:
            warnings.warn("a warning", DeprecationWarning, stacklevel=1)
        except DeprecationWarning:
            return x * 3
        return x * 2

    warnings.simplefilter("ignore", DeprecationWarning)
    return step, lambda: warnings.simplefilter(next(actions), DeprecationWarning)  # type: ignore[arg-type]  # a cycle


CHANGES: dict[str, Callable[[], Pair]] = {
    "identity": lambda: _with_other_list(lambda a, b: a is b),
    "no identity": lambda: _with_other_list(lambda a, b: a is not b),
    "identity by a function": lambda: _with_other_list(operator.is_),
    "id()": lambda: _with_other_list(lambda a, b: id(a) == id(b)),
    "a global that hides len()": lambda: _shadowed("len", "len(values)", lambda values: 7),
    "a global that hides isinstance()": lambda: _shadowed(
        "isinstance", "(2 if isinstance(values, list) else 3)", lambda value, kind: False
    ),
    "other bases": _other_bases,
    "a method that hides another": _method_that_hides_another,
    "another property": _other_property,
    "a virtual subclass": lambda: _registered(Abstract),
    "a virtual subclass of Python's": lambda: _registered(collections.abc.Sequence),
    "subclasses": _subclasses,
    "an f-string of an array": lambda: _print_options(lambda values: f"{values}"),
    "the text of an array": lambda: _print_options(str),
    "a text with % of an array": lambda: _print_options(lambda values: "%s" % values),  # noqa: UP031  # as users do
    "an f-string of an object": lambda: _grown(OfText(), "text", lambda held: len(f"{held}")),
    "an f-string of a namespace": lambda: _grown(Held(a=1), "a", lambda held: len(f"{held}")),
    "equal namespaces": lambda: _grown(Held(a=1), "a", lambda held: 2 if held == Held(a=10) else 3),
    "the text of settings": lambda: _of_settings(lambda settings: len(f"{settings!r}")),
    "settings as a dict": lambda: _of_settings(lambda settings: dataclasses.asdict(settings)["rate"]),
    "settings by their fields": lambda: _of_settings(
        lambda settings: sum(getattr(settings, field.name) for field in dataclasses.fields(settings))
    ),
    "other settings": lambda: _of_settings(lambda settings: dataclasses.replace(settings, other=3.0).rate),
    "a pattern": lambda: _of_settings(_matched),
    "a pattern by places": lambda: _of_settings(_matched_by_place),
    "a text with a name in it": lambda: _of_settings(lambda settings: len("{.rate}".format(settings))),  # noqa: UP032  # as users do
    "what a copy of settings computes": lambda: _by_factors(Settings(), lambda held: dataclasses.replace(held).made),
    "an object of the same class by type()": lambda: _by_factors(Vector(1.0), lambda held: (held + 1.0).value),
    "an object of the same class": lambda: _by_factors(Vector(1.0), lambda held: (held - 1.0).value),
    "a copy": lambda: _by_factors(Copied(), copy.deepcopy),
    "the name of a function": lambda: _of_function("__name__"),
    "the docstring of a function": lambda: _of_function("__doc__"),
    "the name of a class": _name_of_class,
    "whether an array may be written": _writeable,
    "the sign of 0": lambda: _signed(0.0),
    "the sign of a NumPy 0": lambda: _signed(np.float32(0.0)),
    "an attribute of a module by its name": lambda: _of_module(lambda module: getattr(module, "rate")),  # noqa: B009  # as users do
    "an attribute of a module by a name that is made": lambda: _of_module(
        lambda module: getattr(module, "".join(PARTS))
    ),
    "an attribute of a module in its dict": lambda: _of_module(lambda module: vars(module)["".join(PARTS)]),
    "a method by a name that is made": lambda: _by_factors(Calling(), lambda held: getattr(held, "".join(PARTS))()),
    "a method by a caller": lambda: _by_factors(Calling(), operator.methodcaller("rate")),
    "the number of threads": _threads,
    "what is attached": _attached,
    "parameters of a module": lambda: _of_network(lambda network: len(list(network.parameters())), _adds_layer),
    "the text of a module": lambda: _of_network(lambda network: len(repr(network)), _adds_layer),
    "filters of warnings": _warned,
}


@pytest.fixture
def settings_restored() -> Iterator[None]:
    """Restore options of the process."""
    options = np.get_printoptions()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        np.set_printoptions(**options)
        gradmgr.set_num_threads(1)
        FACTORS[0] = 2.0


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("settings_restored")
def test_what_is_not_named_is_no_constant(name: str) -> None:
    check_replayed(*CHANGES[name]())


def test_print_options_that_are_set_in_each_call_cost_no_variant() -> None:
    values = np.array([1.23456789])
    compiled = compile(step := lambda x: x * len(f"{values}"))
    for x in tensors(count=12):
        with np.printoptions(precision=3):
            same(compiled(x), step(x))
    assert "1 variant" in compiled.explain()


# ---------------------------------------------------------------- arguments

KNOWN, LISTED = tensor([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("known", [KNOWN, LISTED], ids=["Tensor", "array"])
def test_an_argument_may_be_compared_with_what_has_a_name(known: Any) -> None:
    compiled = compile(step := lambda x: x * 2 if x is known else x * 3)
    made = tensor if isinstance(known, Tensor) else np.array
    for k in range(12):
        x = known if k % 3 else made([1.0, 2.0, 3.0])
        same(compiled(x), step(x))
    assert "2 variants" in compiled.explain()


@pytest.mark.parametrize("make", [lambda: {1.0}, lambda: deque([1.0]), lambda: bytearray(b"\1")])
def test_a_container_that_is_an_argument_is_compared_by_what_it_holds(make: Callable[[], Any]) -> None:
    held = make()
    compiled = compile(step := lambda values, x: x * sum(values))
    for k, x in enumerate(tensors(count=8)):
        same(compiled(held, x), step(held, x))
        if k >= 3:
            (held.add if isinstance(held, set) else held.append)(k)
    assert "calls:" in compiled.explain()


def test_methods_of_a_dataclass_that_is_an_argument_are_searched() -> None:
    @dataclasses.dataclass
    class Scaled:
        value: Any

        def scaled(self) -> Any:
            return self.value * FACTORS[0]

    compiled = compile(lambda held: held.scaled())
    for k, x in enumerate(tensors(count=8)):
        same(compiled(Scaled(x)), x * FACTORS[0])
        if k >= 3:
            _grow_factors()
    FACTORS[0] = 2.0
    assert "calls:" in compiled.explain()


LIST: Any = [1.0]
OF_ARGUMENTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], str]] = {
    "the identity of a list": (
        lambda a, x: x * 2 if a is LIST else x * 3,
        lambda x: (LIST, x),
        "compares the identity",
    ),
    "id() of a list": (lambda a, x: x * 2 if id(a) == id(LIST) else x * 3, lambda x: (LIST, x), r"id\(\) of an arg"),
    "id() of a Tensor": (lambda x: x * 2 if id(x) == id(KNOWN) else x * 3, lambda x: (x,), r"id\(\) of an argument"),
    "what is no field": (lambda a, x: x * a.made, lambda x: (Settings(), x), "reads made of an argument, a Settings"),
}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_what_differs_from_argument_to_argument_is_refused(name: str) -> None:
    step, given, reason = OF_ARGUMENTS[name]
    compiled = compile(step)
    with refusal(rf"{reason}.*{FILE}:{step.__code__.co_firstlineno}\b"):
        for x in tensors(count=3):
            same(compiled(*given(x)), step(*given(x)))


# ---------------------------------------------------------------- what is refused


def _recorded(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        np.log(np.float64(-1.0))
    return x * len(found)


def _pushed(x: Any) -> Any:
    with contextlib.ExitStack() as stack:
        stack.push(lambda *error: True)
        return x * {3.0: 2.0}.get(DATA[3], 5.0)
    return x * 7


class Unreadable(list[Any]):
    """A list that does not tell how long it is."""

    def __len__(self) -> int:
        raise RuntimeError("no length")


DATA: Any = np.arange(1000.0)
OPTIMIZER = optim.SGD([tensor([1.0])], lr=0.5)
UNREADABLE: Any = [Unreadable()]  # which no tool that collects tests looks at
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "warnings that are recorded": (_recorded, "records warnings"),
    "filters of warnings": (lambda x: x * len(warnings.filters), r"reads warnings\.filters"),
    "a function that may suppress": (_pushed, "class it may ask for"),
    "globals of a function": (lambda x: x * _pushed.__globals__["FACTORS"][0], "reads __globals__"),
    "the state of an optimiser": (
        lambda x: x * OPTIMIZER.state_dict()["param_groups"][0]["lr"],
        r"state_dict\(\) of SGD",
    ),
    "the text of an optimiser": (lambda x: x * len(repr(OPTIMIZER)), "the text of SGD"),
    "an object that cannot be looked at": (lambda x: x if UNREADABLE[0] is None else x * 3, "raises RuntimeError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_with_its_line(name: str) -> None:
    step, reason = REFUSED[name]
    compiled = compile(step)
    with refusal(rf"{reason}.*{FILE}:\d+"):
        for x in tensors(count=3):
            same(compiled(x), step(x))


# ---------------------------------------------------------------- what is made in the first call


def test_what_the_first_call_of_a_kind_makes_is_captured_once_more() -> None:
    masks: dict[int, Any] = {}

    def step(x: Any) -> Any:
        if len(x) not in masks:
            masks[len(x)] = np.tril(np.ones((len(x), len(x))))
        return x @ masks[len(x)]

    compiled = compile(step)
    for n in (3, 4, 3, 4):
        for x in tensors(n, count=4):
            same(compiled(x), step(x))
    assert "2 variants" in compiled.explain() or "3 variants" in compiled.explain()


class Trainer:
    """An object that counts its steps."""

    def __init__(self) -> None:
        self.steps = self.examples = 0
        self.w = tensor([1.0, 2.0, 3.0])
        self.manager, self.optimizer = GradManager().attach(self.w), optim.Adam([self.w], lr=0.1)

    def step(self, x: Any) -> Any:
        with self.manager:
            loss = np.sum(self.w * x)
            self.manager.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.examples += len(x)
        return loss

    def step_if_positive(self, x: Any) -> Any:
        if np.sum(x) > 0:
            self.steps += 2
        return x * 2

    def step_that_reads(self, x: Any) -> Any:
        self.steps += 1
        return x * self.steps

    def step_by_halves(self, x: Any) -> Any:
        self.steps += 0.5  # type: ignore[assignment]  # no integer any more
        return x * 2

    def step_with_a_hook(self, x: Any) -> Any:
        with self.manager:
            y = self.w * x
            y.register_hook(self.count)
            self.manager.backward(np.sum(y))
        self.steps += 1
        return x * 2

    def count(self, g: Any) -> Any:
        self.examples += 1
        return g


@pytest.mark.parametrize("method", ["step", "step_if_positive"])
def test_attributes_that_only_count_are_counted_by_a_replay(method: str) -> None:
    trainer, other = Trainer(), Trainer()
    compiled = compile(getattr(trainer, method))
    for k, x in enumerate(tensors(count=9)):
        same(compiled(x), getattr(other, method)(x))
        assert (trainer.steps, trainer.examples) == (other.steps, other.examples)
        if k == 6:
            trainer.steps = other.steps = 100
    assert "calls:" in compiled.explain()


@pytest.mark.parametrize("method", ["step_that_reads", "step_by_halves", "step_with_a_hook"])
def test_attributes_that_others_may_read_are_not_counted_by_a_replay(method: str) -> None:
    trainer, other = Trainer(), Trainer()
    compiled = compile(getattr(trainer, method))
    with refusal(r"changes an argument\.steps|changes steps|steps grows|changes an argument\.examples"):
        for x in tensors(count=5):
            same(compiled(x), getattr(other, method)(x))
            assert (trainer.steps, trainer.examples) == (other.steps, other.examples)


def test_signs_of_nan_are_no_reason_to_refuse() -> None:
    compiled = compile(step := lambda x: np.sum(x) + np.sum(x * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.CompileWarning)
        for x in [tensor([np.nan]), tensor([-np.nan]), tensor([np.inf]), tensor([1.0])]:
            same(compiled(x), step(x))
    assert "1 variant" in compiled.explain()
