"""State that a compiled function reads without a name for it: noticed by a guard, or refused with its line."""

from __future__ import annotations

import builtins
import collections
import configparser
import contextlib
import contextvars
import ctypes
import enum
import functools
import logging
import mmap
import numbers
import operator
import queue
import re
import sqlite3
import string
import sys
import threading
import types
import typing
import weakref
from collections import ChainMap, UserString
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_compiled_state import refusal, same, tensors

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, nn, optim, tensor

FILE = Path(__file__).name


class Plain:
    """An object of the user's."""

    def __init__(self, value: float = 2.0) -> None:
        self.value = value

    def scaled(self, x: Any) -> Any:
        return x * self.value


class OfNumber(float):
    """A number of the user's, with an attribute."""

    scale = 2.0


class Kind(enum.IntEnum):
    """Numbers with a method."""

    ONE = 1

    def scale(self) -> float:
        return SCALES[0]


SCALES = [2.0]


class Meta(type):
    """A class of classes with state."""

    scale = 2.0

    @property
    def twice(cls) -> float:
        return cls.scale * 2

    def __getitem__(cls, index: int) -> float:
        return SCALES[index]


class OfMeta(metaclass=Meta):
    """A class whose class computes."""


class Stored:
    """A descriptor that keeps values itself."""

    def __init__(self) -> None:
        self.kept: Any = weakref.WeakKeyDictionary()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.kept.get(owner, 2.0)

    def __set__(self, owner: Any, value: float) -> None:
        self.kept[owner] = value


class WithStored:
    """An object whose attribute another object keeps."""

    value = Stored()


class Methods:
    """Methods that are made of others."""

    def __init__(self) -> None:
        self.value = 2.0

    def times(self, factor: float, x: Any) -> Any:
        return x * factor * self.value

    half = functools.partialmethod(times, 0.5)

    @functools.singledispatchmethod
    def of_kind(self, kind: Any) -> float:
        return 1.0

    @of_kind.register
    def _(self, kind: float) -> float:
        return self.value


class Layers(nn.Module):
    """A module that runs over its layers, and asks for the mode of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.dropout = nn.ModuleList([nn.Tanh()]), nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x * len(self.layers) if self.dropout.training else x


class _Viewed(np.ndarray):
    """A small array with an attribute."""

    tag = 2.0


def _grow(held: Any, name: str = "value") -> None:
    setattr(held, name, getattr(held, name) + 1)


def _add(held: Any, key: Any) -> None:
    held[key] += 1


def _of(make: Callable[[], Any], step: Callable[[Any, Any], Any], change: Callable[[Any], Any]) -> Any:
    held = make()
    return lambda x: step(held, x), lambda: change(held)


def _code() -> Any:
    def scaled(x: Any) -> Any:
        return x * 2

    codes = [(lambda x: x * 3).__code__, (lambda x: x * 5).__code__]

    def change() -> None:  # as a notebook does that loads changed modules again
        scaled.__code__ = codes[0]
        codes.reverse()

    return (lambda x: scaled(x)), change


def _hidden_by_object() -> Any:
    held, counts = Plain(), iter(range(3, 99))

    def change() -> None:
        n = next(counts)
        held.scaled = lambda x: x * n  # type: ignore[method-assign]  # what is tested

    return (lambda x: held.scaled(x)), change


def _attribute_that_comes() -> Any:
    held: Any = SimpleNamespace(inner=Plain())
    return (lambda x: x * getattr(held.inner, "more", 2.0)), lambda: setattr(
        held.inner, "more", getattr(held.inner, "more", 2.0) + 1
    )


def _other_class() -> Any:
    class Other(Plain):
        def scaled(self, x: Any) -> Any:
            return x * self.value * 7

    held = Plain()
    return (lambda x: held.scaled(x)), lambda: setattr(held, "__class__", Other)


def _context() -> Any:
    variable: Any = contextvars.ContextVar("variable")
    variable.set([2.0])
    return (lambda x: x * variable.get()[0]), lambda: _add(variable.get(), 0)


def _of_partial() -> Any:
    factors, options = [2.0], {"b": 1.0}
    part = functools.partial(lambda a, x, b: x * a[0] * b["b"], factors, b=options)

    def change() -> None:
        factors[0] += 1
        options["b"] += 1

    return (lambda x: part(x)), change


def _of_level() -> Any:
    parent, logger = logging.getLogger("gradmgr_test"), logging.getLogger("gradmgr_test.child")
    parent.setLevel(logging.WARNING)
    return (lambda x: x * 2 if logger.isEnabledFor(logging.INFO) else x * 3), lambda: parent.setLevel(logging.DEBUG)


def _of_shape() -> Any:
    data = np.arange(6.0)
    return (lambda x: x * data.ndim), lambda: data.resize((2, 3), refcheck=False)


def _of_module_function() -> Any:
    module: Any = types.ModuleType("a_module_of_a_test")
    values = [2.0]
    module.__getattr__ = lambda name: values[0]
    return (lambda x: x * module.anything), lambda: _add(values, 0)


CHANGES: dict[str, Callable[[], Any]] = {
    "code of a function": _code,
    "a function that hides a method": _hidden_by_object,
    "an attribute that comes": _attribute_that_comes,
    "another class of an object": _other_class,
    "what a context variable holds": _context,
    "what a partial holds": _of_partial,
    "the level of a logger": _of_level,
    "the shape of a small array": _of_shape,
    "a function for a module's names": _of_module_function,
    "a class of classes": lambda: (lambda x: x * OfMeta.twice, lambda: _grow(Meta, "scale")),
    "an operator of a class of classes": lambda: (lambda x: x * OfMeta[0], lambda: _add(SCALES, 0)),
    "a method of a number": lambda: (lambda x: x * Kind.ONE.scale(), lambda: _add(SCALES, 0)),
    "an attribute of a number": lambda: _of(
        lambda: OfNumber(1.0), lambda h, x: x * h.scale, lambda h: _grow(h, "scale")
    ),
    "an attribute of a small array": lambda: _of(
        lambda: np.ones(3).view(_Viewed), lambda h, x: x * h.tag, lambda h: _grow(h, "tag")
    ),
    "a descriptor with a weak dict": lambda: _of(WithStored, lambda h, x: x * h.value, _grow),
    "a method of a method": lambda: _of(Methods, lambda h, x: h.half(x), _grow),
    "a method by the class of an argument": lambda: _of(Methods, lambda h, x: x * h.of_kind(1.0), _grow),
    "a weak reference": lambda: _of(
        lambda: [p := Plain(), weakref.ref(p)], lambda h, x: x * h[1]().value, lambda h: _grow(h[0])
    ),
    "views of a dict": lambda: _of(
        lambda: [d := {1.0: 2.0}, d.values(), d.items()],
        lambda h, x: x * sum(h[1]) * sum(v for _, v in h[2]),
        lambda h: _add(h[0], 1.0),
    ),
    "a chain of dicts": lambda: _of(lambda: ChainMap({"a": 2.0}, {}), lambda h, x: x * h["a"], lambda h: _add(h, "a")),
    "a method of a dict": lambda: _of(
        lambda: [d := {"a": 2.0}, d.get], lambda h, x: x * h[1]("a"), lambda h: _add(h[0], "a")
    ),
    "a text of the user's": lambda: _of(lambda: UserString("a"), lambda h, x: x * len(h), lambda h: _longer(h)),
    "a template": lambda: _of(
        lambda: string.Template("a"), lambda h, x: x * len(h.substitute()), lambda h: _longer(h, "template")
    ),
    "an attribute by a getter": lambda: _of(
        lambda: [Plain(), operator.attrgetter("value")], lambda h, x: x * h[1](h[0]), lambda h: _grow(h[0])
    ),
    "a vectorized function": lambda: _of(
        lambda: [f := [2.0], np.vectorize(lambda v: v * f[0])],
        lambda h, x: x * float(h[1](1.0)),
        lambda h: _add(h[0], 0),
    ),
    "a polynomial": lambda: _of(lambda: np.poly1d([1.0, 2.0]), lambda h, x: x * h(2.0), lambda h: _add(h.coeffs, 0)),
    "layers of a module": lambda: _of(Layers, lambda h, x: h(x), lambda h: h.layers.append(nn.Tanh())),
    "the mode of a layer": lambda: _of(Layers, lambda h, x: h(x), lambda h: h.dropout.train(not h.dropout.training)),
}


def _longer(held: Any, name: str = "data") -> None:
    setattr(held, name, getattr(held, name) + "a")


@pytest.mark.parametrize("name", CHANGES)
def test_state_without_a_name_is_no_constant(name: str) -> None:
    step, change = CHANGES[name]()
    compiled = compile(step)
    for k, x in enumerate(tensors(count=7)):
        same(compiled(x), step(x))
        if k >= 3:
            change()
    assert "variant for x" in compiled.explain()


def test_an_attribute_that_the_first_call_makes_costs_one_more_capture() -> None:
    held = Plain()

    def step(x: Any) -> Any:
        if not hasattr(held, "made"):
            held.made = 3.0  # type: ignore[attr-defined]  # what is tested
        return x * held.made  # type: ignore[attr-defined]  # as above

    compiled = compile(step)
    for x in tensors(count=5):
        same(compiled(x), x * 3.0)
    assert "1 variant" in compiled.explain()


# ---------------------------------------------------------------- what is refused


DATABASE = sqlite3.connect(":memory:")
PARSER = configparser.ConfigParser()
PARSER.read_dict({"a": {"b": "2"}})
QUEUE: Any = queue.Queue()
EVENT, LOCK = threading.Event(), threading.Lock()
DOUBLE = ctypes.c_double(2.0)
MAPPED = mmap.mmap(-1, 4)
OF_PYTHON = np.frompyfunc(lambda v: v * 2.0, 1, 1)
PATH = Path(__file__)
LEGACY = np.random.RandomState(0)

HIDDEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an object of a library in C": (lambda x: x * DOUBLE.value, "reads DOUBLE, .*module ctypes"),
    "a memory map": (lambda x: x * (2 + MAPPED[0]), "reads MAPPED, .*module mmap"),
    "a database": (lambda x: x * DATABASE.execute("select 2").fetchone()[0], "reads DATABASE, .*module sqlite3"),
    "a parser of settings": (lambda x: x * PARSER.getint("a", "b"), "reads PARSER, .*module configparser"),
    "a queue": (lambda x: x * (2 + QUEUE.qsize()), "reads QUEUE, .*module queue"),
    "an event": (lambda x: x * 2 if EVENT.is_set() else x * 3, "reads EVENT, .*module threading"),
    "a lock's state": (lambda x: x * 2 if LOCK.locked() else x * 3, "reads LOCK, a lock, which changes unseen"),
    "a memoryview": (lambda x: x * VIEW[0], "reads VIEW, a memoryview, written in C"),
    "a ufunc of Python's": (lambda x: x * float(OF_PYTHON(1.0)), "reads OF_PYTHON, .*Python code that cannot be seen"),
    "the file system": (lambda x: x * 2 if PATH.exists() else x * 3, "reads PATH, .*files are looked up"),
    "a path": (lambda x: x * len(str(Path("a"))), "reads Path, of the module pathlib"),
    "a setting of NumPy's": (lambda x: x * len(np.geterr()), r"reads np\.geterr"),
    "the interpreter": (lambda x: x * sys.getrecursionlimit(), r"reads sys\.getrecursionlimit"),
    "threads": (lambda x: x * (2 if threading.active_count() else 3), "reads threading, of the module threading"),
    "a logger that is looked up": (
        lambda x: x * 2 if logging.getLogger("gradmgr_test").isEnabledFor(10) else x * 3,
        "asks for the level of a Logger",
    ),
    "NumPy's former generator": (lambda x: x * LEGACY.rand(), r"reads LEGACY, of the module numpy\.random"),
}
VIEW = memoryview(bytearray(b"\2"))


@pytest.mark.parametrize("name", HIDDEN)
def test_state_that_cannot_be_compared_is_refused_with_its_line(name: str) -> None:
    step, reason = HIDDEN[name]
    line = step.__code__.co_firstlineno
    compiled = compile(step)
    with refusal(rf"{reason}.*{FILE}:{line}\b"):
        compiled(tensor([1.0]))
    assert "0 variants" in compiled.explain()


def test_a_file_that_numpy_reads_is_read_each_time(tmp_path: Path) -> None:
    name = str(tmp_path / "scale.npy")
    compiled = compile(lambda x: x * float(np.load(name)))
    np.save(name, 2.0)
    with refusal(r"reads np\.load, which depends on what lies outside"):
        compiled(tensor([1.0]))
    np.save(name, 3.0)
    assert compiled(tensor([1.0])).tolist() == [3.0]


def test_what_never_changes_is_no_reason_to_refuse() -> None:
    pattern, when, lock = re.compile("a"), PATH, threading.Lock()
    logger = logging.getLogger("gradmgr_test")
    settings = {"path": PATH, "pattern": pattern, "counts": collections.Counter("ab"), "none": contextlib.nullcontext()}

    def step(x: Any) -> Any:
        with lock, settings["none"]:  # type: ignore[attr-defined]  # mypy knows no parts of the dict
            logger.debug("a step")
            scale = sys.float_info.max > 1 and pattern.match("ab") is not None and when.suffix == ".py"
            return x * (2.0 if scale else 3.0)

    compiled = compile(step)
    for x in tensors(count=4):
        same(compiled(x), x * 2.0)
    assert "1 variant" in compiled.explain()


# ---------------------------------------------------------------- what a stand-in for an array would answer otherwise

DATA: Any = np.arange(1000.0)
NUMBERS, ARRAY = (int, float), np.ndarray
HAS, IS_OF, CLASS_OF = hasattr, isinstance, type


def _caught(x: Any, data: Any) -> Any:
    try:
        return x * {3.0: 2.0}.get(data[3], 5.0)  # no stand-in has a hash
    except TypeError:
        return x * 7


def _caught_all(x: Any, data: Any) -> Any:
    try:
        return x * {3.0: 2.0}.get(data[3], 5.0)
    except:  # noqa: E722  # as users do
        return x * 7


def _suppressed(x: Any, data: Any) -> Any:
    with contextlib.suppress(TypeError):
        return x * {3.0: 2.0}.get(data[3], 5.0)
    return x * 7


def _returned_from_finally(x: Any, data: Any) -> Any:
    result = x * 7
    try:
        result = x * {3.0: 2.0}.get(data[3], 5.0)
    finally:
        if data.ndim < 2:
            return result  # noqa: B012  # as above


class Suppressing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        return kind is not KeyboardInterrupt


def _suppressed_by_own_class(x: Any, data: Any) -> Any:
    with Suppressing():
        return x * {3.0: 2.0}.get(data[3], 5.0)
    return x * 7


def _raised_again_and_caught(x: Any, data: Any) -> Any:
    try:
        try:
            return x * {3.0: 2.0}.get(data[3], 5.0)
        except TypeError as error:
            raise ValueError("no hash") from error
    except Exception:
        return x * 7


def _matched_by_class(x: Any, data: Any) -> Any:
    match data:
        case np.ndarray():
            return x * 2
        case _:
            return x * 3


@functools.singledispatch
def _by_class(data: Any) -> float:
    return 2.0


@_by_class.register
def _(data: np.ndarray) -> float:
    return 3.0


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "one class and another": lambda x, data: x * 2 if type(data) is type(np.zeros(2)) else x * 3,
    "the name of its class": lambda x, data: x * len(type(data).__name__),
    "its class": lambda x, data: x * len(data.__class__.__name__),
    "its class by another name": lambda x, data: x * 2 if CLASS_OF(data) is ARRAY else x * 3,
    "isinstance by another name": lambda x, data: x * 2 if IS_OF(data, ARRAY) else x * 3,
    "isinstance of its module": lambda x, data: x * 2 if builtins.isinstance(data, np.ndarray) else x * 3,
    "a class in a pattern": _matched_by_class,
    "a function by the class": lambda x, data: x * _by_class(data),
    "its attributes": lambda x, data: x * len(dir(data)),
    "its priority": lambda x, data: x * (2 + data.__array_priority__),
    "its size in memory": lambda x, data: x * sys.getsizeof(data),
    "an error that is caught": _caught,
    "any error that is caught": _caught_all,
    "an error that is suppressed": _suppressed,
    "an error that a return drops": _returned_from_finally,
    "an error that a class suppresses": _suppressed_by_own_class,
    "an error that is raised again and caught": _raised_again_and_caught,
    "the interface": lambda x, data: x * len(data.__array_interface__),
    "hasattr by another name": lambda x, data: x * 2 if HAS(data, "inner") else x * 3,
    "hasattr of its module": lambda x, data: x * 2 if builtins.hasattr(data[3], "__len__") else x * 3,
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("given", [False, True], ids=["by name", "given"])
def test_a_question_that_a_stand_in_answers_otherwise_is_refused(name: str, given: bool) -> None:
    question = QUESTIONS[name]
    step: Callable[[Any], Any] = (lambda data: question(2.0, data)) if given else (lambda x: question(x, DATA))
    compiled = compile(step)
    with refusal("is not replayed"):
        same(compiled(DATA if given else tensor([1.0])), step(DATA if given else tensor([1.0])))


class OfPositive(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return bool(value[0] > 1.0)


class Positive(metaclass=OfPositive):
    pass


@typing.runtime_checkable
class Sized(typing.Protocol):
    def __len__(self) -> int: ...


def _lifted(x: Any, data: Any) -> Any:
    return x * tensor(data).sum() if isinstance(data, np.ndarray) else x * 3


def _logged(x: Any, data: Any) -> Any:
    try:
        return x * data[3]
    except Exception:
        logging.getLogger("nobody").exception("failed")
        raise


def _tidied(x: Any, data: Any) -> Any:
    try:
        result = x * data[3]
    finally:
        for _ in range(2):
            np.sum([])
    return result


ANSWERED: dict[str, Callable[[Any, Any], Any]] = {
    "its class": _lifted,
    "one class of many": lambda x, data: x * data[3] if isinstance(data, (int, ARRAY)) else x * 3,
    "one class or another": lambda x, data: x * data[3] if isinstance(data, int | np.ndarray) else x * 3,
    "classes of an element": lambda x, data: x * data[3] if isinstance(data[3], NUMBERS) else x * 3,
    "a class of numbers": lambda x, data: x * data[3] if isinstance(data.max(), numbers.Number) else x * 3,
    "another class": lambda x, data: x * 3 if isinstance(data, (list, Tensor)) else x * data[3],
    "a protocol": lambda x, data: x * data[3] if isinstance(data, Sized) and not isinstance(data[3], Sized) else x * 3,
    "in an inner function": lambda x, data: sum([x * part[3] for part in (data, 1) if isinstance(part, ARRAY)]),
    "of a number": lambda x, data: x * data[3] * (2 if isinstance(len(data), float) else 3),
    "whether it has a length": lambda x, data: x * data[3] if hasattr(data, "__len__") else x * 3,
    "whether an element has a length": lambda x, data: x * 3 if hasattr(data[3], "__len__") else x * data[3],
    "an attribute of the stand-in": lambda x, data: x * 3 if hasattr(data, "inner") else x * data[3],
    "whether it has an interface": lambda x, data: x * data[3] if hasattr(data, "__array_interface__") else x * 3,
    "whether it has a struct": lambda x, data: x * data[3] if hasattr(data[3], "__array_struct__") else x * 3,
    "by a class that computes": lambda x, data: x * 2 if isinstance(data, Positive) else x * 3,
    "after an error that is raised again": _logged,
    "with what is done in any case": _tidied,
}


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("given", [False, True], ids=["by name", "given"])
def test_isinstance_of_a_stand_in_is_that_of_the_array(name: str, given: bool) -> None:
    question = ANSWERED[name]
    step: Callable[[Any], Any] = (lambda data: question(2.0, data)) if given else (lambda x: question(x, DATA))
    compiled, before = compile(step), DATA.copy()
    try:
        for k, x in enumerate(tensors(count=6)):
            same(compiled(DATA if given else x), step(DATA if given else x))
            DATA[:4] = k
    finally:
        DATA[...] = before
    assert "calls:" in compiled.explain()
    assert "isinstance" not in globals()


def test_attributes_that_code_may_name_at_run_time_are_not_those_of_an_optimiser_itself() -> None:
    t = _trained()
    compiled, step = compile(t), _trained()
    for x in tensors(count=5):
        same(compiled(x), step(x))
    assert "1 variant" in compiled.explain()


def _trained() -> Callable[[Any], Any]:
    w = tensor([1.0, 2.0, 3.0])
    gm, optimizer = GradManager().attach(w), optim.Adam([w], lr=0.1)

    def step(x: Any, settings: Any = Plain) -> Any:
        with gm:
            loss = gnp.sum(w * gnp.sum(x)) * getattr(settings, "factor", 0.5)
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def test_classes_of_other_things_may_be_asked_for() -> None:
    class Scaled(Plain):
        def __eq__(self, other: object) -> bool:
            return type(other) is type(self)

        __hash__ = None  # type: ignore[assignment]  # as objects with __eq__

        def scaled(self, x: Any) -> Any:
            return type(x)([part * self.value * len(type(self).__name__) for part in x])

    held = Scaled()
    compiled = compile(step := lambda parts: held.scaled(parts)[0] * DATA.sum())
    for x in tensors(count=4):
        same(compiled([x]), step([x]))
        DATA[0] += 1.0
    assert "1 variant" in compiled.explain()


# ---------------------------------------------------------------- functions that keep their results


@pytest.mark.parametrize("clears", [False, True])
def test_what_a_cached_function_gives_is_asked_for_again(clears: bool) -> None:
    OF_CACHED[0] = 2.0
    cached = functools.lru_cache(lambda n: OF_CACHED[0] * n)
    compiled = compile(step := lambda x: x * cached(3))
    for k, x in enumerate(tensors(count=8)):
        same(compiled(x), step(x))
        if k == 3:
            OF_CACHED[0] = 5.0
            if clears:
                cached.cache_clear()
    assert "variant for x" in compiled.explain()


def test_a_cached_array_that_is_written_is_no_constant() -> None:
    cached = functools.cache(lambda n: np.ones(n))
    compiled = compile(step := lambda x: x * cached(3).sum() + cached(3))
    for k, x in enumerate(tensors(count=8)):
        same(compiled(x), step(x))
        if k == 3:
            cached(3)[...] = 5.0
    assert "2 variants" in compiled.explain()


OF_CACHED = [2.0]


class OfMethod:
    """An object with a method that has a cache."""

    @functools.cache  # noqa: B019  # as users do
    def scale(self, n: int) -> float:
        return float(n)


OF_METHOD = OfMethod()
KEEPING: dict[str, Any] = {
    "a list": lambda n: [2.0],
    "an object": lambda n: Plain(),
    "a large array": lambda n: np.ones(1000),
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_cached_result_that_may_change_unseen_is_refused(name: str) -> None:
    cached = functools.cache(KEEPING[name])
    compiled = compile(lambda x: x * (2.0 if cached(1) is not None else 3.0))
    with refusal(r"calls <lambda>\(\), which functools.lru_cache keeps the results of"):
        compiled(tensor([1.0]))


def test_a_cached_method_is_refused() -> None:
    compiled = compile(lambda x: x * OF_METHOD.scale(2))
    with refusal(r"calls scale\(\), which functools.lru_cache keeps the results of"):
        same(compiled(tensor([1.0])), tensor([2.0]))
    assert isinstance(vars(OfMethod)["scale"], functools._lru_cache_wrapper)
