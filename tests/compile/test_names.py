"""What compile compares of the names that a function reads: the contract, sentence by sentence, on small programs."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import datetime as dt
import enum
import functools
import gc
import importlib
import io
import math
import os
import random
import sys
import textwrap
import threading
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import compiled_functions  # noqa: F401  # which enters its programs
import compiled_training  # noqa: F401  # likewise
import numpy as np
import pytest
from compiled_programs import PROGRAMS
from numpy.random import default_rng, rand

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, functional, nn, optim, tensor
from gradmgr._compile.names import Names

READ_WHAT_CHANGES = ("numpys_own_generator",)  # programs of the suite
RATE = 0.5
OTHER = 1.0
X = tensor([1.0, 2.0])


class Program(NamedTuple):
    """A function with its arguments, what changes a name that it reads, and what changes none."""

    function: Any
    change: Callable[[], Any]
    keep: Callable[[], Any] = lambda: None
    leaves: tuple[Any, ...] = (X,)
    name: str = ""  # that `changed` must name
    undo: Callable[[], Any] = lambda: None


def put(owner: Any, **values: Any) -> Callable[[], Any]:
    """Return a function that sets attributes, or keys of a dict of globals."""

    def change() -> None:
        for name, value in values.items():
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)

    return change


def module_of(text: str, **names: Any) -> Any:
    """Make a module of the program's."""
    module = types.ModuleType("settings_of_a_program")
    vars(module).update(names)
    exec(textwrap.dedent(text), vars(module))  # noqa: S102  # text of these tests
    return module


@dataclasses.dataclass
class Config:
    """Settings, as programs keep them."""

    rate: float = 0.5
    name: str = "tanh"
    epoch: int = 0

    def scaled(self, x: Any) -> Any:
        return x * self.rate


class Kind(enum.Enum):
    """Kinds of losses."""

    MEAN = 1
    SUM = 2


class Pair(NamedTuple):
    """Two numbers."""

    first: float
    second: float


class Layer:
    """A layer without gradmgr's Module."""

    factor = 2.0

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale
        self.gain = self.offset = self.width = self.depth = 1.0
        self.unread = 0

    def __call__(self, x: Any) -> Any:
        return x * self.gain

    def __getitem__(self, k: int) -> Any:
        return self.offset + k

    def __enter__(self) -> Layer:
        self.entered = OTHER_MODULE.scale
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    @property
    def twice(self) -> float:
        return self.width * 2

    @functools.cached_property
    def kept(self) -> float:
        return self.depth * 2

    @staticmethod
    def fixed(x: Any) -> Any:
        return x * OTHER_MODULE.scale

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.factor

    def apply(self, x: Any) -> Any:
        return self.inner(x) + 1

    def inner(self, x: Any) -> Any:
        return x * self.scale


class Wider(Layer):
    """A layer that inherits."""

    def apply(self, x: Any) -> Any:
        return super().apply(x)

    def shifted(self, x: Any) -> Any:
        return x + OTHER_MODULE.scale


class Slots:
    """An object without a dict."""

    __slots__ = ("scale", "unread")

    def __init__(self) -> None:
        self.scale = 2.0
        self.unread = 1

    def apply(self, x: Any) -> Any:
        return x * self.scale


class Block(nn.Module):
    """A module of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.unread = 0
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.scale if self.training else x


class Net(nn.Module):
    """Modules in modules, in each way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.row = nn.Sequential(nn.Linear(2, 2), Block())
        self.unread = 0

    def forward(self, x: Any) -> Any:
        x = self.row(self.block(x))
        for block in self.blocks:
            x = block(x)
        return x


class Trainer:
    """A training loop as people write it."""

    def __init__(self) -> None:
        self.model = Net()
        self.gm = GradManager().attach(dict(self.model.named_parameters()))
        self.optimizer = optim.SGD(list(self.model.parameters()), lr=0.1)
        self.config = Config()
        self.scale = 2.0
        self.epoch = 0
        self.log: list[float] = []
        self.cache: Any = None

    def train(self) -> float:
        return time.perf_counter()

    def step(self, x: Any) -> Any:
        self.model.train()
        with self.gm:
            loss = gnp.sum(self.model(x) ** 2) * self.scale * self.config.rate
            self.gm.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


OTHER_MODULE = module_of(
    """
    def apply(x): return x * scale
    """,
    scale=2.0,
)


def helper(x: Any) -> Any:
    return x * OTHER_MODULE.scale


def with_config(x: Any, config: Any) -> Any:
    return x * config.rate


def with_limit(x: Any, *, limit: Any = [1.0]) -> Any:  # noqa: B006  # it is what is tested
    return x * limit[0]


def made_and_named(x: Any) -> Any:
    wider = Wider()
    return wider.shifted(x)


def factorial(n: int) -> Any:
    return n * factorial(n - 1) if n else OTHER_MODULE.scale


def scaled(function: Any) -> Any:
    """Decorate a function, as programs do."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args) * OTHER_MODULE.scale

    return call


@scaled
def decorated(x: Any) -> Any:
    return x * RATE


@functools.lru_cache
def cached(n: int) -> Any:
    return n * OTHER_MODULE.scale


def loss_of(x: Any) -> Any:
    return gnp.sum(x * OTHER_MODULE.scale)


LOSS_AND_GRAD = functional.value_and_grad(loss_of)
PARTIAL = functools.partial(with_config, config=Config())
COMPILED = gradmgr.compile(helper)


def with_factor(factor: Any, layer: Any, x: Any) -> Any:
    return x * factor * layer.scale


class Decorated:
    """An object whose method is decorated."""

    scale = 2.0

    @scaled
    def step(self, x: Any) -> Any:
        return x * self.scale

    @functools.lru_cache  # noqa: B019  # it is what is tested
    def kept(self, n: int) -> Any:
        return n * self.scale

    @gradmgr.compile
    def compiled(self, x: Any) -> Any:
        return x * self.scale


@dataclasses.dataclass
class Loop:
    """A training loop that is a dataclass."""

    layer: Layer
    config: Config
    rate: float
    w: Any

    def step(self, x: Any) -> Any:
        return self.layer(x) * self.config.rate * self.rate * self.w * self.config.name


other_changes: Callable[[], Any] = put(OTHER_MODULE, scale=3.0)
of_this: dict[str, Any] = globals()


def of_decorated(make: Callable[[Decorated], Any]) -> Program:
    held = Decorated()
    return Program(make(held), put(held, scale=3.0), put(held, unread=3), name="self.scale")


def of_partial() -> Program:
    layer = SimpleNamespace(scale=2.0)
    function = functools.partial(with_factor, 0.5, layer)
    return Program(lambda x: function(x), put(layer, scale=3.0), put(layer, unread=3), name="layer.scale")


def of_namespace(make: Callable[[Any], Any]) -> Program:
    held = SimpleNamespace(rate=0.5, epoch=0)
    return Program(make(held), put(held, rate=3.0), put(held, epoch=2), name="rate")


def of_replaced() -> Program:
    held = SimpleNamespace(inner=Layer())
    return Program(
        lambda x: x * held.inner.scale, put(held, inner=Layer()), put(held, other=Layer()), name="held.inner"
    )


def of_loop_variable() -> Program:
    parts = [SimpleNamespace(rate=0.5, epoch=0) for _ in range(3)]

    def step(x: Any) -> Any:
        for part in parts:
            x = x * part.rate
        return x

    return Program(step, put(parts[2], rate=3.0), put(parts[2], epoch=1), name="parts[2].rate")


def of_argument_in_a_list() -> Program:
    trainer = Trainer()

    def step(batch: Any, loop: Any) -> Any:
        return batch[0] * loop.scale

    return Program(step, put(trainer, scale=3.0), put(trainer, epoch=3), (X, X, trainer), "scale")


def passed_on(x: Any, config: Any) -> Any:
    return with_config(x, config)


def of_dataclass(**change: Any) -> Program:
    loop = Loop(Layer(), Config(name=np.ones(2)), 0.5, np.ones(2))  # type: ignore[arg-type]  # a text elsewhere

    def keep() -> None:
        loop.config.epoch += 1
        loop.w = loop.config.name = np.zeros(2)  # type: ignore[assignment]  # arrays among the arguments are inputs

    return Program(Loop.step, put(loop if "rate" in change else loop.layer, **change), keep, (loop, X))


def of_printing() -> Program:
    before = np.get_printoptions()
    return Program(
        lambda x: repr(x), lambda: np.set_printoptions(precision=3), undo=lambda: np.set_printoptions(**before)
    )


def of_installed_program() -> Program:
    """A program that is installed, as libraries are."""
    module = types.ModuleType("program.steps")
    text = "def helper(x): return x * scale\ndef step(x): return helper(x)"
    exec(compile(text, "/usr/lib/site-packages/program/steps.py", "exec"), vars(module))  # noqa: S102  # text of this test
    return Program(module.step, put(module, scale=3.0), put(module, more=3.0), name="scale")


def of_layer(make: Callable[[Any], Any], layer: Any = None, **change: Any) -> Program:
    """A program that reads a layer, which is a variable of a function around it."""
    held = Layer() if layer is None else layer
    return Program(make(held), put(held, **(change or {"scale": 3.0})), put(held, unread=7))


def of_argument() -> Program:
    trainer = Trainer()
    return Program(Trainer.step, put(trainer, scale=3.0), put(trainer, epoch=5), (trainer, X), "self.scale")


def of_method() -> Program:
    trainer = Trainer()
    return Program(trainer.step, put(trainer.config, rate=3.0), put(trainer.config, epoch=5), (X,), "self.config.rate")


def of_net(owner: Callable[[Net], Any], **change: Any) -> Program:
    trainer = Trainer()
    return Program(Trainer.step, put(owner(trainer.model), **change), put(trainer.model, unread=3), (trainer, X))


def of_config(make: Callable[[Config], Any], *, keep: bool = True) -> Program:
    config = Config()
    return Program(make(config), put(config, rate=2.0), put(config, **({"epoch": 2} if keep else {})))


def assigned() -> Program:
    value = 2.0

    def change() -> None:
        nonlocal value
        value = 3.0

    def keep() -> None:
        nonlocal value
        value = float("2")  # another object

    return Program(lambda x: x * value, change, keep, name="value")


def looped() -> Program:
    layers = [Layer(), Layer()]

    def step(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return Program(step, put(layers[1], gain=3.0), put(layers[1], unread=1))


def of_local() -> Program:
    config = Config()

    def step(x: Any) -> Any:
        mine = config
        return x * mine.rate

    return Program(step, put(config, rate=3.0), put(config, epoch=3), name="config.rate")


def nested() -> Program:
    layer = Layer()

    def step(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return sum([y * layer.scale for _ in range(2)])

        return inner(x)

    return Program(step, put(layer, scale=3.0), put(layer, unread=3), name="layer.scale")


def imported() -> Program:
    sys.modules["settings_of_a_program"] = OTHER_MODULE

    def step(x: Any) -> Any:
        from settings_of_a_program import scale  # type: ignore[import-not-found]  # made above

        return x * scale

    return Program(step, other_changes)


def bound() -> Program:
    layer = Layer()
    held = SimpleNamespace(call=layer.apply)
    return Program(lambda x: held.call(x), put(layer, scale=3.0), put(layer, unread=3))


def of_missing() -> Program:
    layer = Layer()
    return Program(lambda x: x if not hasattr(layer, "late") else layer.late, put(layer, late=3.0))  # type: ignore[attr-defined]


def recoded() -> Program:
    def called(x: Any) -> Any:
        return x

    def change() -> None:
        called.__code__ = (lambda x: x + 1).__code__

    return Program(lambda x: called(x), change)


def of_class(name: str, new: Any) -> Program:
    kind = type("Kind", (Layer,), {"__module__": __name__, "apply": lambda self, x: x * self.factor})
    layer = kind()
    return Program(lambda x: layer.apply(x), put(kind, **{name: new}), put(kind, unread=1))


def of_class_method(make: Callable[[Any], Any]) -> Program:
    kind = type("Kind", (Layer,), {"__module__": __name__})
    held = make(kind)
    return Program(lambda x: held.of_class(x), put(kind, factor=3.0), put(kind, unread=1))


def scoped(make: Any) -> Program:
    """A program whose settings a block changes."""
    stack = contextlib.ExitStack()
    return Program(lambda x: x, lambda: stack.enter_context(make()), undo=stack.close)


def shadowed() -> Program:
    module = module_of("def step(x): return sum([x, x])")
    return Program(module.step, put(module, sum=max), put(module, other=1), name="sum")


def rebound() -> Program:
    module = module_of("def step(x): return square(x)", square=gnp.square)
    return Program(module.step, put(module, square=gnp.sqrt))


def of_library_module() -> Program:
    module = module_of("def step(x): return np.square(x)", np=gnp)
    return Program(module.step, put(module, np=np), put(module, other=np), name="np")


def third_party(tmp_path: Path = Path("/tmp")) -> Program:  # noqa: S108  # nothing is written there
    library = types.ModuleType("library")
    text = "def apply(x): return x * scale * scale"
    exec(compile(text, "/usr/lib/site-packages/library.py", "exec"), vars(library))  # noqa: S102  # text of this test
    library.scale, library.rate = 2.0, 1.0  # type: ignore[attr-defined]  # they are made here
    return Program(lambda x: library.apply(x) * library.rate, put(library, rate=3.0), put(library, scale=3.0))


READ: dict[str, Callable[[], Program]] = {
    "a global": lambda: Program(lambda x: x * RATE, put(of_this, RATE=0.25), put(of_this, OTHER=3.0), name="RATE"),
    "a variable of a function around it": assigned,
    "an attribute of an argument": of_argument,
    "an attribute of what a method is bound to": of_method,
    "an attribute of an object": lambda: of_layer(lambda h: lambda x: x * h.scale),
    "an attribute in a slot": lambda: of_layer(lambda h: lambda x: h.apply(x), Slots()),
    "an attribute of a class": lambda: of_class("factor", 3.0),
    "a method that is replaced": lambda: of_class("apply", lambda self, x: x),
    "an attribute that hides that of the class": lambda: of_layer(lambda h: lambda x: x * h.factor, factor=3.0),
    "an attribute that there was not": of_missing,
    "a number of a module": lambda: Program(lambda x: x * OTHER_MODULE.scale, other_changes, put(OTHER_MODULE, more=1)),
    "a function of a module": lambda: Program(lambda x: OTHER_MODULE.apply(x), other_changes),
    "a module that is imported in the function": imported,
    "what a function reads that is called": lambda: Program(lambda x: helper(x), other_changes),
    "what it calls itself": lambda: Program(lambda x: x * factorial(2), other_changes),
    "the function itself": lambda: Program(lambda x: OTHER_MODULE.apply(x), put(OTHER_MODULE, apply=lambda x: x)),
    "the code of a function": recoded,
    "a default": lambda: Program(lambda x, held=(h := [1.0]): x * held[0], lambda: h.append(2.0)),
    "a keyword default": lambda: Program(lambda x: with_limit(x), lambda: with_limit.__kwdefaults__["limit"].append(1)),
    "a method": lambda: of_layer(lambda h: lambda x: h.apply(x)),
    "an inherited method": lambda: of_layer(lambda h: lambda x: h.apply(x), Wider()),
    "an object that is called": lambda: of_layer(lambda h: lambda x: h(x), gain=3.0),
    "an item of an object": lambda: of_layer(lambda h: lambda x: x * h[0], offset=3.0),
    "a property": lambda: of_layer(lambda h: lambda x: x * h.twice, width=3.0),
    "a cached property": lambda: of_layer(lambda h: lambda x: x * h.kept, depth=3.0),
    "an object of which an attribute is read": of_replaced,
    "a static method": lambda: Program(lambda x: Layer.fixed(x), other_changes),
    "a static method of an object": lambda: Program((lambda h: lambda x: h.fixed(x))(Layer()), other_changes),
    "a class method": lambda: of_class_method(lambda kind: kind),
    "a class method of an object": lambda: of_class_method(lambda kind: kind()),
    "a bound method that is kept": bound,
    "objects in a list": looped,
    "another name for an object": of_local,
    "a function in the function": nested,
    "a parameter of a function that is called": lambda: of_config(lambda c: lambda x: with_config(x, c), keep=False),
    "an attribute of what a function is given": lambda: of_namespace(lambda h: lambda x: with_config(x, h)),
    "an attribute of what a function passes on": lambda: of_namespace(lambda h: lambda x: passed_on(x, h)),
    "an attribute of the variable of a loop": of_loop_variable,
    "an attribute of an argument after a list": of_argument_in_a_list,
    "a method of an object that the function makes": lambda: Program(lambda x: Wider(1.0).shifted(x), other_changes),
    "a method of an object that has another name": lambda: Program(made_and_named, other_changes),
    "a field of a dataclass": lambda: of_config(lambda c: lambda x: x * c.rate),
    "a method of a dataclass": lambda: of_config(lambda c: lambda x: c.scaled(x)),
    "a partial": lambda: Program(lambda x: PARTIAL(x), put(PARTIAL.keywords["config"], rate=3.0)),
    "a partial that is the function": lambda: Program(PARTIAL, put(PARTIAL.keywords["config"], rate=3.0)),
    "a decorated function": lambda: Program(lambda x: decorated(x), put(of_this, RATE=0.25)),
    "what its decorator reads": lambda: Program(decorated, other_changes),
    "a function with a cache": lambda: Program(lambda x: x * cached(2), other_changes),
    "a function that gradmgr calls": lambda: Program(lambda x: LOSS_AND_GRAD(x), other_changes),
    "a function that is given to gradmgr": lambda: Program(lambda x: functional.grad(loss_of)(x), other_changes),
    "a compiled function": lambda: Program(lambda x: COMPILED(x), other_changes),
    "a compiled function that is the function": lambda: Program(COMPILED, other_changes),
    "a mode of a module": lambda: of_net(lambda net: net.block, training=False),
    "an attribute of a module in a ModuleList": lambda: of_net(lambda net: net.blocks[1], scale=3.0),
    "an attribute of a module in a Sequential": lambda: of_net(lambda net: net.row[1], scale=3.0),
    "a module that is the function": lambda: (lambda b: Program(b, put(b, scale=3.0), put(b, unread=1)))(Block()),
    "a built-in function that a global hides": shadowed,
    "a function of gradmgr that is replaced": rebound,
    "a module of a library that is replaced": of_library_module,
    "a third-party module's number, not what its functions read": third_party,
    "a method that is decorated": lambda: of_decorated(lambda h: lambda x: h.step(x)),
    "a method with a cache": lambda: of_decorated(lambda h: lambda x: x * h.kept(2)),
    "a method that is compiled": lambda: of_decorated(lambda h: lambda x: h.compiled(x)),
    "a method that is compiled, as the function": lambda: of_decorated(lambda h: h.compiled),
    "what a partial holds": of_partial,
    "a field of a dataclass that is an argument": lambda: of_dataclass(rate=3.0),
    "an attribute of what a dataclass holds that is an argument": lambda: of_dataclass(gain=3.0),
    "how NumPy prints": of_printing,
    "a function of the package that the function is of": of_installed_program,
    "how NumPy treats errors": lambda: scoped(lambda: np.errstate(over="raise")),
    "no_grad": lambda: scoped(gradmgr.no_grad),
    "inference_mode": lambda: scoped(gradmgr.inference_mode),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put back what the programs change of this module and of another."""
    before, other = dict(of_this), dict(vars(OTHER_MODULE))
    yield
    of_this.update(before)
    vars(OTHER_MODULE).update(other)
    with_limit.__kwdefaults__["limit"] = [1.0]
    PARTIAL.keywords["config"].rate = 0.5


def check(names: Names, test: Callable[[Any], bool], leaves: Any) -> str | None:
    """Return what has changed; both ways to ask must agree."""
    changed = names.changed(leaves)
    assert test(leaves) == (changed is None), changed
    return changed


@pytest.mark.parametrize("name", READ)
def test_what_code_reads_by_name_is_compared(name: str) -> None:
    program = READ[name]()
    names = Names(program.function, program.leaves)
    assert names.never_constant is None
    test = names.test()
    assert check(names, test, program.leaves) is None
    assert names.changed_during() is None
    program.keep()
    assert check(names, test, program.leaves) is None
    program.change()
    try:
        changed = check(names, test, program.leaves)
    finally:
        program.undo()
    assert changed is not None
    assert program.name in changed


# ---------------------------------------------------------------- values

NAN = float("nan")
# By name: what a name stands for, what is the same, and what is another value.
VALUES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "an integer": (lambda: 3, lambda: int("3"), lambda: 4),
    "a large integer": (lambda: 10**30, lambda: int("1" + "0" * 30), lambda: 10**30 + 1),
    "an integer, then the equal float": (lambda: 3, lambda: 3, lambda: 3.0),
    "a truth, then the equal integer": (lambda: True, lambda: True, lambda: 1),
    "one, then true": (lambda: 1, lambda: 1, lambda: True),
    "a float": (lambda: 0.5, lambda: float("0.5"), lambda: 0.25),
    "a float, then NumPy's": (lambda: 0.5, lambda: 0.5, lambda: np.float64(0.5)),
    "a float of the other sign": (lambda: 0.0, lambda: float("0"), lambda: -0.0),
    "not a number": (lambda: NAN, lambda: float("nan"), lambda: 0.0),
    "an infinity": (lambda: math.inf, lambda: float("inf"), lambda: -math.inf),
    "a complex number": (lambda: 1j, lambda: complex("1j"), lambda: 2j),
    "a NumPy number": (lambda: np.float32(2), lambda: np.float32(2), lambda: np.float32(3)),
    "a NumPy number of another type": (lambda: np.float32(2), lambda: np.float32(2), lambda: np.float64(2)),
    "a NumPy number of the other sign": (lambda: np.float32(0), lambda: np.float32(0), lambda: np.float32(-0.0)),
    "text": (lambda: "tanh", lambda: str(b"tanh", "ascii"), lambda: "relu"),
    "bytes": (lambda: b"tanh", lambda: bytes(bytearray(b"tanh")), lambda: b"relu"),
    "text, then bytes": (lambda: "a", lambda: "a", lambda: b"a"),
    "nothing, then something": (lambda: None, lambda: None, lambda: 0),
    "something, then nothing": (lambda: X, lambda: X, lambda: None),
    "a member of an enum": (lambda: Kind.MEAN, lambda: Kind(1), lambda: Kind.SUM),
    "a dtype": (lambda: np.dtype("f4"), lambda: np.dtype("float32"), lambda: np.dtype("f8")),
    "a slice": (lambda: slice(1, 2), lambda: slice(1, 2), lambda: slice(1, 3)),
    "a range": (lambda: range(0), lambda: range(0), lambda: range(1, 1)),
    "a tuple": (lambda: (1, "a"), lambda: (1, "a"), lambda: (1, "b")),
    "a tuple, then a list": (lambda: (1,), lambda: (1,), lambda: [1]),
    "a list of numbers": (lambda: [1, 2.0], lambda: [1, 2.0], lambda: [1, 2]),
    "a longer list": (lambda: [1], lambda: [1], lambda: [1, 1]),
    "a deep list": (lambda: [[{"a": [0.0]}]], lambda: [[{"a": [0.0]}]], lambda: [[{"a": [-0.0]}]]),
    "a list of 5000 numbers": (lambda: [0.5] * 5000, lambda: [0.5] * 5000, lambda: [0.5] * 4999 + [0.25]),
    "a list of NaN": (lambda: [NAN], lambda: [float("nan")], lambda: [None]),
    "a dict": (lambda: {"rate": 1}, lambda: {"rate": 1}, lambda: {"rate": True}),
    "a dict of another key": (lambda: {1: 1}, lambda: {1: 1}, lambda: {1.0: 1}),
    "a set": (lambda: {1, 2}, lambda: {2, 1}, lambda: {1, 3}),
    "a set of texts": (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}, lambda: {"a", "b", "d"}),
    "a frozen set": (lambda: frozenset([1]), lambda: frozenset([1]), lambda: {1}),
    "a deque": (lambda: collections.deque([1]), lambda: collections.deque([1]), lambda: collections.deque([2])),
    "a named tuple": (lambda: Pair(1.0, 2.0), lambda: Pair(1.0, 2.0), lambda: (1.0, 2.0)),
    "a dataclass": (Config, Config, lambda: Config(epoch=3)),
    "a dataclass with an array": (lambda: Config(rate=np.ones(2)), lambda: Config(rate=np.ones(2)), Config),  # type: ignore[arg-type]  # a float elsewhere
    "a list of members": (lambda: [Kind.MEAN], lambda: [Kind.MEAN], lambda: [Kind.SUM]),
    "a small array": (lambda: np.ones(3), lambda: np.ones(3), lambda: np.full(3, 2.0)),
    "a small array of another sign": (lambda: np.zeros(3), lambda: np.zeros(3), lambda: -np.zeros(3)),
    "a small array of NaN": (lambda: np.full(3, NAN), lambda: np.full(3, NAN), lambda: np.zeros(3)),
    "a small array of another shape": (lambda: np.ones(4), lambda: np.ones(4), lambda: np.ones((2, 2))),
    "a small array of another dtype": (lambda: np.zeros(4, "i4"), lambda: np.zeros(4, "i4"), lambda: np.zeros(4, "f4")),
    "a bytearray": (lambda: bytearray(b"a"), lambda: bytearray(b"a"), lambda: bytearray(b"b")),
}  # fmt: skip
LARGE = np.ones(1000)
LAYER = Layer()
# What is compared by identity: an equal one is another.
BY_IDENTITY: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "a tensor": (lambda: X, lambda: X, lambda: tensor([1.0, 2.0])),
    "a list of tensors": (lambda: [X], lambda: [X], lambda: [tensor([1.0, 2.0])]),
    "a large array": (lambda: LARGE, lambda: LARGE, lambda: np.ones(1000)),
    "an object": (lambda: LAYER, lambda: LAYER, Layer),
    "a dict of objects": (lambda: {"a": LAYER}, lambda: {"a": LAYER}, lambda: {"a": Layer()}),
    "a function": (lambda: helper, lambda: helper, lambda: with_config),
    "a class": (lambda: Layer, lambda: Layer, lambda: Wider),
    "a module of functions": (lambda: OTHER_MODULE, lambda: OTHER_MODULE, lambda: module_of("")),
}


def in_global(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """A function that reads a global, and what assigns that."""
    module = module_of("def step(x): return x, value", value=value)
    return module.step, lambda new: setattr(module, "value", new)


def in_variable(value: Any) -> tuple[Any, Callable[[Any], None]]:
    def assign(new: Any) -> None:
        nonlocal value
        value = new

    return (lambda x: (x, value)), assign


def in_attribute(value: Any) -> tuple[Any, Callable[[Any], None]]:
    owner = SimpleNamespace(value=value)
    return (lambda x: (x, owner.value)), lambda new: setattr(owner, "value", new)


def in_module(value: Any) -> tuple[Any, Callable[[Any], None]]:
    owner = Block()
    owner.value = value
    return (lambda x: (x, owner.value)), lambda new: setattr(owner, "value", new)


@pytest.mark.parametrize("name", [*VALUES, *BY_IDENTITY])
@pytest.mark.parametrize("place", [in_global, in_variable, in_attribute, in_module])
def test_the_same_value_is_the_same_and_another_is_noticed(place: Callable[..., Any], name: str) -> None:
    make, again, other = {**VALUES, **BY_IDENTITY}[name]
    value = make()
    step, assign = place(value)
    names = Names(step, (X,))
    test = names.test()
    assert check(names, test, (X,)) is None
    assign(again())
    assert check(names, test, (X,)) is None
    assign(other())
    changed = check(names, test, (X,))
    assert changed is not None
    assert "value, read at " in changed
    assign(value)
    assert check(names, test, (X,)) is None


CHANGED_IN_PLACE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a list": ([1.0], lambda held: held.append(2.0)),
    "a list of tensors": ([X], lambda held: held.append(X)),
    "a dict": ({"a": 1}, lambda held: held.update(a=2)),
    "a small array": (np.ones(3), lambda held: held.__setitem__(0, 2.0)),
    "an array in a list": ([np.ones(3)], lambda held: held[0].__setitem__(0, 2.0)),
    "a field of a dataclass": (Config(), put_rate := (lambda held: setattr(held, "rate", 2.0))),
    "a dataclass in a dict": ({"a": Config()}, lambda held: put_rate(held["a"])),
    "a set": ({1}, lambda held: held.add(2)),
}


@pytest.mark.parametrize("name", CHANGED_IN_PLACE)
def test_a_change_in_place_is_noticed(name: str) -> None:
    held, change = copy.deepcopy(CHANGED_IN_PLACE[name][0]), CHANGED_IN_PLACE[name][1]
    names = Names(lambda x: (x, held), (X,))
    test = names.test()
    assert check(names, test, (X,)) is None
    change(held)
    assert check(names, test, (X,)) is not None


def test_what_large_arrays_and_tensors_hold_is_no_matter_of_names() -> None:
    large, t = np.ones(1000), tensor([1.0])
    names = Names(lambda x: (x, large, t), (X,))
    test = names.test()
    large[0], t[0] = 2.0, 2.0
    assert check(names, test, (X,)) is None


# ---------------------------------------------------------------- messages


def line_of(function: Any, text: str) -> int:
    """Return the line of this file where the code of a function has a text."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines[first - 1 :], first) if text in line)


def test_a_change_is_told_with_the_name_the_line_and_both_values() -> None:
    trainer = Trainer()
    names = Names(Trainer.step, (trainer, X))
    trainer.scale = 3.0
    line = line_of(Trainer.step, "self.scale")
    assert names.changed((trainer, X)) == f"self.scale, read at {__file__}:{line} in step, from 2.0 to 3.0"
    trainer.scale, trainer.model = 2.0, Net()
    assert str(names.changed((trainer, X))).endswith("in step, from a Net to another Net")
    line = line_of(Trainer.step, "self.model.train")
    assert f"self.model, read at {__file__}:{line}" in str(names.changed((trainer, X)))


# ---------------------------------------------------------------- what the function itself changes

COUNT = 3


class Stateful:
    """An object that its step changes."""

    def __init__(self) -> None:
        self.n = 3
        self.log: list[Any] = []
        self.table = {"a": 1}
        self.cache: Any = None
        self.config = Config()
        self.buffer = np.zeros(3)
        self.rng = np.random.default_rng(0)
        self.inner = Layer()
        self.parts = [1.0]
        self.last: Any
        self._rate = 1.0

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, value: float) -> None:
        self._rate = value

    def counts(self, x: Any) -> Any:
        self.n += 1
        return x

    def logs(self, x: Any) -> Any:
        self.log.append(4.0)
        return x

    def logs_a_tensor(self, x: Any) -> Any:
        self.log.append(x)
        return x

    def sets_an_item(self, x: Any) -> Any:
        self.table["a"] = 2
        return x

    def keeps(self, x: Any) -> Any:
        self.last = x * 2
        return x

    def keeps_with_another(self, x: Any) -> Any:
        self.last, y = x, x
        return y

    def sets_a_field(self, x: Any) -> Any:
        self.config.epoch = 2
        return x

    def writes(self, x: Any) -> Any:
        self.buffer[0] = 1.0
        return x

    def writes_twice(self, x: Any) -> Any:
        self.buffer[0] += self.table["a"][1] + 1
        return x

    def draws(self, x: Any) -> Any:
        return x * self.rng.normal()

    def calls(self, x: Any) -> Any:
        return self.counts(x)

    def deletes(self, x: Any) -> Any:
        del self.cache
        return x

    def sets_of_another(self, x: Any) -> Any:
        self.inner.scale = 7.0
        return x

    def adds(self, x: Any) -> Any:
        self.parts += [2.0]
        return x

    def sets_by_a_property(self, x: Any) -> Any:
        self.rate = 2.0
        return x

    def reads_only(self, x: Any) -> Any:
        n, log, table = self.n, self.log, self.table
        return x * n * len(log) * table["a"] * self.rate * self.parts[0]

    def fills_a_cache(self, x: Any) -> Any:
        if self.cache is None:
            self.cache = np.arange(3.0)
        return x * self.cache[0]


def counts_a_global(x: Any) -> Any:
    global COUNT
    COUNT += 1
    return x


def assigns_a_global(x: Any) -> Any:
    global COUNT
    COUNT = 4
    return x


def counts_a_variable() -> Any:
    n = 3

    def step(x: Any) -> Any:
        nonlocal n
        n += 1
        return x

    return step


CHANGES = {
    "counts": "self.n, read at FILE in counts, which the function changes from 3 to 4",
    "calls": "self.n, read at FILE in counts, which the function changes from 3 to 4",
    "logs": "self.log, read at FILE in logs, which the function changes from [] to [4.0]",
    "logs_a_tensor": "self.log, read at FILE in logs_a_tensor, which the function changes from [] to a list of 1",
    "sets_an_item": "self.table, read at FILE in sets_an_item, which the function changes from {'a': 1} to {'a': 2}",
    "keeps": "self.last, read at FILE in keeps, which the function changes from nothing to a Tensor",
    "keeps_with_another": "self.last, read at FILE in keeps_with_another, which the function changes from nothing to ",
    "sets_a_field": "self.config.epoch, read at FILE in sets_a_field, which the function changes from 0 to 2",
    "writes": "self.buffer, read at FILE in writes, which the function changes from an array (3,) float64 to another ",
    "draws": "self.rng, read at FILE in draws, from which the function draws",
    "deletes": "self.cache, read at FILE in deletes, which the function changes from None to nothing",
    "sets_of_another": "self.inner.scale, read at FILE in sets_of_another, which the function changes from 2.0 to 7.0",
    "adds": "self.parts, read at FILE in adds, which the function changes from [1.0] to [1.0, 2.0]",
    "sets_by_a_property": "self._rate, read at FILE in rate, which the function changes from 1.0 to 2.0",
    "fills_a_cache": "self.cache, read at FILE in fills_a_cache, which the function changes from None to an array (3",
    "reads_only": None,
}  # fmt: skip


def without_line(text: str | None, function: Any) -> str | None:
    """Put FILE in place of the file and the line, which is to be one of the code or of a function it calls."""
    if text is None:
        return None
    before, _, after = text.partition(f"{__file__}:")
    assert int(after.partition(" ")[0]) > 1
    return f"{before}FILE {after.partition(' ')[2]}"


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_function_changes_of_what_it_reads_is_told(name: str) -> None:
    held = Stateful()
    method = getattr(Stateful, name)
    names = Names(method, (held, X))
    method(held, X)
    found, expected = without_line(names.changed_during(), method), CHANGES[name]
    assert found is expected or str(found).startswith(str(expected))
    bound = Stateful()  # likewise a method that is bound
    names = Names(getattr(bound, name), (X,))
    getattr(bound, name)(X)
    assert without_line(names.changed_during(), method) == found


def test_globals_and_variables_that_a_function_assigns() -> None:
    names = Names(assigns_a_global, (X,))
    assigns_a_global(X)
    assert "COUNT, read at" in str(names.changed_during())
    assert "from 3 to 4" in str(names.changed_during())
    names = Names(counts_a_global, (X,))
    counts_a_global(X)
    assert "from 4 to 5" in str(names.changed_during())
    step = counts_a_variable()
    names = Names(step, (X,))
    step(X)
    assert "n, read at" in str(names.changed_during())


def test_a_cache_that_the_first_call_fills_shows_in_that_call_alone() -> None:
    held = Stateful()
    for is_first in (True, False, False):
        names = Names(held.fills_a_cache, (X,))
        held.fills_a_cache(X)
        assert (names.changed_during() is not None) == is_first


def test_what_is_only_assigned_is_not_compared_before_the_next_call() -> None:
    held = Stateful()
    held.last = X
    names = Names(held.keeps, (X,))
    held.last = None
    assert check(names, names.test(), (X,)) is None


def test_draws_that_a_program_repeats_are_no_change() -> None:
    held = Stateful()
    names = Names(held.draws, (X,))
    held.draws(X)
    assert names.changed_during([held.rng]) is None
    assert names.changed_during() is not None


def test_arrays_whose_changes_a_program_repeats_are_compared_by_identity() -> None:
    held = Stateful()
    held.table["a"] = held.buffer  # type: ignore[assignment]  # an array in a container
    names = Names(held.writes_twice, (X,))
    held.writes_twice(X)
    assert "self.buffer, read at" in str(names.changed_during())
    assert names.changed_during([held.buffer]) is None
    test = names.test()
    held.buffer[0] = 7.0
    assert check(names, test, (X,)) is None
    held.buffer = held.buffer.copy()
    assert check(names, test, (X,)) is not None


# ---------------------------------------------------------------- what is never constant


def imports_the_clock(x: Any) -> Any:
    import time as clock

    return x * clock.time()


def imports_a_function_of_it(x: Any) -> Any:
    from os import getcwd

    return x, getcwd()


def imports_what_is_steady(x: Any) -> Any:
    import os.path
    import sys

    return x * sys.maxsize, os.path.join("a", "b")


def with_a_clock(x: Any, clock: Any = time.monotonic) -> Any:
    return x * clock()


NEVER: dict[str, tuple[Any, str | None]] = {
    "a module's function": (lambda x: x * time.perf_counter(), "time.perf_counter"),
    "a function by its own name": (lambda x: x * perf_counter(), "time.perf_counter"),
    "an import in the function": (imports_the_clock, "time.time"),
    "a function that is imported there": (imports_a_function_of_it, "os.getcwd"),
    "a default": (with_a_clock, "time.monotonic"),
    "random": (lambda x: x * random.random(), "random.random"),  # noqa: S311  # no cryptography
    "a module as such": (lambda x: helper(random), "random"),
    "an object that draws": ((lambda r: lambda x: x * r.random())(random.Random(0)), "random.Random"),  # noqa: S311  # as above
    "a Random with a seed": (lambda x: x * random.Random(3).random(), None),  # noqa: S311  # as above
    "the environment": (lambda x: (x, os.environ["HOME"]), "os.environ"),
    "a file's name": (lambda x: (x, os.path.exists("a")), "os.path.exists"),
    "a path that is joined": (lambda x: (x, os.path.join("a", "b"), os.sep), None),
    "arguments of the program": (lambda x: (x, sys.argv), "sys.argv"),
    "what is steady of sys": (lambda x: (x, sys.version_info, sys.maxsize, sys.byteorder, sys.platform), None),
    "the standard output": (lambda x: print(x, file=sys.stderr), None),  # noqa: T201  # it does not run
    "an import of what is steady": (imports_what_is_steady, None),
    "a file": (lambda x: (x, open("a")), "open"),  # noqa: SIM115  # it does not run
    "io's": (lambda x: (x, io.open("a")), "io.open"),  # noqa: SIM115, UP020  # it does not run
    "a buffer": (lambda x: (x, io.StringIO()), None),
    "input": (lambda x: (x, input()), "input"),
    "id and hash": (lambda x: (x, id(x), hash("a")), None),
    "uuid": (lambda x: (x, uuid.uuid4()), "uuid.uuid4"),
    "a uuid of a name": (lambda x: (x, uuid.uuid5(uuid.NAMESPACE_DNS, "a")), None),
    "now": (lambda x: (x, dt.datetime.now()), "datetime.datetime.now"),  # noqa: DTZ005  # it does not run
    "today": (lambda x: (x, date.today()), "datetime.date.today"),  # noqa: DTZ011  # it does not run
    "a duration": (lambda x: (x, dt.timedelta(1), dt.datetime(2020, 1, 1)), None),  # noqa: DTZ001  # no clock
    "NumPy's global draws": (lambda x: x * np.random.rand(2), "numpy.random.rand"),
    "NumPy's global draws by their own name": (lambda x: x * rand(2), "numpy.random.rand"),
    "NumPy's global seed": (lambda x: np.random.seed(0), "numpy.random.seed"),
    "a Generator without a seed": (lambda x: x * np.random.default_rng().normal(), "numpy.random.default_rng"),
    "a Generator with None as its seed": (lambda x: x * default_rng(None).normal(), "numpy.random.default_rng"),
    "a Generator with a seed": (lambda x: x * np.random.default_rng(3).normal(), None),
    "a Generator with a seed by its name": (lambda x: x * default_rng(seed=3).normal(), None),
    "a bit generator without a seed": (lambda x: np.random.Generator(np.random.PCG64()), "numpy.random.PCG64"),
    "a Generator that has a name": ((lambda r: lambda x: x * r.normal())(np.random.default_rng(0)), None),
    "math and NumPy": (lambda x: math.sin(1.0) * np.sum(x) * np.pi, None),
    "gradmgr's": (lambda x: gnp.sum(gnp.exp(x)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_what_is_never_constant_is_named(name: str) -> None:
    step, expected = NEVER[name]
    found = Names(step, (X,)).never_constant
    if expected is None:
        assert found is None
    else:
        assert str(found).startswith(f"{expected}, read at {__file__}:")
        assert str(found).endswith(f" in {step.__name__}")


class Timed:
    """An object whose methods read the time."""

    def __enter__(self) -> Timed:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __repr__(self) -> str:
        return str(time.time())

    def now(self) -> float:
        return time.time()

    def constant(self) -> float:
        return 1.0


TIMED = Timed()


def in_a_block(x: Any) -> Any:
    with TIMED:
        return x


def by_way_of_others(x: Any) -> Any:
    return timed_helper(x)


def timed_helper(x: Any) -> Any:
    return x * TIMED.now()


REACHED: dict[str, tuple[Any, bool]] = {
    "through a function and a method": (by_way_of_others, True),
    "in a block": (in_a_block, True),
    "in a method of another name": (lambda x: x * TIMED.constant(), False),
    "where it is described": (lambda x: f"{TIMED.constant()}", False),
}


@pytest.mark.parametrize("name", REACHED)
def test_only_functions_that_names_lead_to_are_refused(name: str) -> None:
    step, is_reached = REACHED[name]
    assert (Names(step, (X,)).never_constant is not None) == is_reached


def test_a_method_of_another_class_with_the_same_name_is_no_reason() -> None:
    trainer = Trainer()  # its step calls self.model.train(); its own train() reads the time
    assert Names(Trainer.step, (trainer, X)).never_constant is None
    assert "time.perf_counter" in str(Names(trainer.train, ()).never_constant)


# ---------------------------------------------------------------- arguments, lives, threads, cost


def test_nothing_but_the_function_is_kept_alive() -> None:
    trainer = Trainer()
    trainer.model.block.value = large = np.ones(1000)
    step = functools.partial(lambda t, x: x * t.scale * t.model(x) * t.model.block.value)
    names = Names(step, (trainer, X))
    test = names.test()
    assert check(names, test, (trainer, X)) is None
    lives = list(map(weakref.ref, (trainer, trainer.model, trainer.model.block, large, trainer.gm)))
    del trainer, large
    gc.collect()
    assert [life() for life in lives] == [None] * len(lives)
    assert check(names, test, (Trainer(), X)) is not None


def test_an_object_that_is_gone_is_a_change() -> None:
    held = SimpleNamespace(layer=Layer())
    names = Names(lambda x: held.layer(x), (X,))
    held.layer = None  # type: ignore[assignment]  # it is what is tested
    gc.collect()
    assert check(names, names.test(), (X,)) is not None


def test_the_same_names_of_another_argument_are_compared() -> None:
    one, other = Trainer(), Trainer()
    names = Names(Trainer.step, (one, X))
    test = names.test()
    assert check(names, test, (other, X)) is not None
    other.model, other.gm, other.optimizer = one.model, one.gm, one.optimizer
    assert check(names, test, (other, X)) is None


def test_no_code_of_the_programs_runs() -> None:
    class Loud:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]  # it is what is tested

        @property
        def value(self) -> Any:
            raise AssertionError

    loud = Loud()
    names = Names(lambda x: (x, loud.value, loud.other, loud == x, [loud]), (X,))
    assert check(names, names.test(), (X,)) is None
    assert names.changed_during() is None


def test_objects_that_raise_where_they_are_looked_at_are_compared_by_identity() -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:  # type: ignore[override]  # it is what is tested
            raise RuntimeError

    proxy, held = Proxy(), SimpleNamespace(scale=1.0)
    names = Names(lambda x: (proxy.value, x, held.scale), (X,))
    test = names.test()
    assert check(names, test, (X,)) is None
    held.scale = 2.0
    assert check(names, test, (X,)) is not None


def test_an_error_where_names_are_compared_is_a_change() -> None:
    class Late:
        scale = 1.0

    late = Late()
    names = Names(lambda x: x * late.scale, (X,))

    def fail(self: Any) -> float:
        raise RuntimeError

    Late.scale = property(fail)  # type: ignore[assignment]  # it is what is tested
    assert check(names, names.test(), (X,)) is not None


def test_the_programs_of_the_suite_can_all_be_compared() -> None:
    for name, make in PROGRAMS.items():
        program = make()
        args, keywords = program.calls[0]
        leaves = (*args, *keywords.values())
        names = Names(program.step, leaves)
        assert (names.never_constant is None) == (name not in READ_WHAT_CHANGES), (name, names.never_constant)
        assert check(names, names.test(), leaves) is None, name
        assert names.changed_during() is None, name


def test_threads_may_ask_at_once_and_have_modes_of_their_own() -> None:
    trainer = Trainer()
    names = Names(Trainer.step, (trainer, X))
    test = names.test()
    answers: list[bool] = []

    def ask() -> None:
        answers.extend([test((trainer, X)) for _ in range(100)])

    with gradmgr.no_grad(), np.errstate(all="raise"):
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [True] * 400
        assert not test((trainer, X))


def test_a_function_that_is_looked_at_again_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer()
    known: dict[int, Any] = {}
    Names(Trainer.step, (trainer, X), known)
    count = len(known)
    monkeypatch.setattr(importlib.import_module("gradmgr._compile.search"), "names_in", None)
    trainer.scale = 3.0
    names = Names(Trainer.step, (trainer, X), known)
    assert len(known) == count > 2
    assert check(names, names.test(), (trainer, X)) is None


def test_what_is_large_or_refers_to_itself_ends() -> None:
    layer = Layer()
    ring: list[Any] = []
    ring += [ring, layer]
    node = SimpleNamespace(scale=1.0)
    node.next = node

    def step(x: Any) -> Any:
        at = node
        for _ in range(3):
            at = at.next
        return x * at.scale, ring, step

    names = Names(step, (X,))
    test = names.test()
    assert check(names, test, (X,)) is None
    layer.gain = 2.0
    assert check(names, test, (X,)) is not None
    layer.gain, node.scale = 1.0, 2.0
    assert check(names, test, (X,)) is not None


def test_a_data_set_of_lists_is_compared_by_identity_and_in_no_time() -> None:
    rows: list[Any] = [[float(k)] * 1000 for k in range(1000)]
    held = SimpleNamespace(rows=rows, mixed=[[X] * 1000] * 1000)
    start = perf_counter()
    names = Names(lambda x: (x, held.rows, held.mixed), (X,))
    test = names.test()
    assert check(names, test, (X,)) is None
    assert perf_counter() - start < 1
    held.rows = list(rows)  # of the same lists
    assert check(names, test, (X,)) is None
    held.rows = [list(row) for row in rows]
    assert check(names, test, (X,)) is not None


def test_functions_that_are_no_python_functions() -> None:
    for function in (np.square, len, gnp.sum, functools.partial(max, 1), Layer(), print):
        names = Names(function, (X,))
        assert names.never_constant is None
        assert check(names, names.test(), (X,)) is None
        assert isinstance(X, Tensor)
