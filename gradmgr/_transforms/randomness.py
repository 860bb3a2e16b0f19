"""Random numbers drawn again: which generators a function can draw from, and their states replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.captured import GeneratorStandIn
from gradmgr._arrays.listening import listener
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.tensor import Tensor

R = TypeVar("R")


class Source:
    """A generator of random numbers: how to read its state, and how to set it.

    Attributes:
        generator: the Generator itself, whose draws are seen where a function is captured; None for another kind.
    """

    __slots__ = ("_spawned", "generator", "key", "read", "write")

    def __init__(
        self,
        key: object,
        read: Callable[[], Any],
        write: Callable[[Any], None],
        generator: np.random.Generator | None = None,
    ) -> None:
        self.key = key
        self.read = read
        self.write = write
        self.generator = generator
        self._spawned = self._children()

    def _children(self) -> Any:
        return getattr(getattr(self.key, "seed_seq", None), "n_children_spawned", 0)

    def check_unspawned(self) -> None:
        """Raise if generators were spawned of it since: their number cannot be restored."""
        if self._children() != self._spawned:
            raise errors.CheckpointError(
                "a checkpointed function calls spawn() of a random generator, which would give other generators when "
                "it runs again; spawn outside, and pass them as arguments"
            )


def source_of(value: Any) -> Source | None:
    """Return the source for a generator; None for anything else."""
    generator = None
    if isinstance(value, np.random.Generator):
        generator = value.real if isinstance(value, GeneratorStandIn) else value
        value = generator.bit_generator
    if isinstance(value, np.random.BitGenerator):
        return Source(value, lambda: value.state, partial(setattr, value, "state"), generator)
    if isinstance(value, np.random.RandomState):
        return Source(value, lambda: value.get_state(legacy=False), value.set_state)
    python = sys.modules.get("random")
    if python is not None and isinstance(value, python.Random):
        return Source(value, value.getstate, value.setstate)
    return None


def global_sources() -> list[Source]:
    """Return NumPy's and Python's global generators."""
    found = [Source(np.random, partial(np.random.get_state, legacy=False), np.random.set_state)]
    python = sys.modules.get("random")
    if python is not None:
        found.append(Source(python, python.getstate, python.setstate))
    return found


# Classes whose objects hold no generator; compared by exact class.
_NO_GENERATORS = frozenset((Tensor, np.ndarray, str, bytes, int, float, complex, bool, type(None), type, ModuleType))
_LIBRARIES = frozenset(("gradmgr", "numpy", "scipy", "cupy", "builtins"))


def sources_in(*roots: Any) -> list[Source]:
    """Return the generators within containers, functions (what they close over and name), and attributes of objects."""
    found: list[Source] = []
    seen: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value.__class__ in _NO_GENERATORS or id(value) in seen:
            continue
        seen[id(value)] = value
        source = source_of(value)
        if source is None:
            pending += _parts(value)
        else:
            found.append(source)
    return found


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Tensor):  # of a subclass: reading its slots takes 30 us
        return ()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, partial):
        return (value.func, value.args, value.keywords)
    kind = type(value)
    if isinstance(value, type) or (_is_library(kind.__module__) and not kind.__module__.startswith("gradmgr.nn")):
        return ()
    return _parts_of_object(value)


def _is_library(name: str | None) -> bool:
    return (name or "").partition(".")[0] in _LIBRARIES


def _parts_of_function(function: FunctionType) -> list[Any]:
    if _is_library(function.__module__):
        return []
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return parts + [function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__]


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _parts_of_object(value: Any) -> list[Any]:
    parts = list(getattr(value, "__dict__", {}).values())
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        parts += [getattr(value, name, None) for name in ((names,) if isinstance(names, str) else names)]
        if not _is_library(kind.__module__):
            parts += kind.__dict__.values()  # methods, and generators of the class
    return parts


def given_sources(generators: Any) -> list[Source]:
    """Return the sources of the generators= argument of `checkpoint`."""
    many = generators if isinstance(generators, (list, tuple, set)) else [generators]
    found = []
    for value in many:
        source = source_of(value)
        if source is None:
            raise TypeError(
                "checkpoint: generators= takes numpy.random.Generator, RandomState or BitGenerator and random.Random "
                f"objects; found {type(value).__module__}.{type(value).__name__}"
            )
        found.append(source)
    return found


def _is_same_state(one: Any, other: Any) -> bool:
    """Compare two states of a generator."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same_state(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


class Replay:
    """The states from which a run drew its random numbers, to draw the same ones again."""

    __slots__ = ("_at", "_gpu", "_slots", "_states")

    def __init__(self, sources: list[Source], on_gpu: bool) -> None:
        by_key = {id(source.key): source for source in sources}
        self._states = [(source, source.read()) for source in by_key.values()]
        self._gpu = _CupyState() if on_gpu else None
        self._at = 0 if (capture := listener()) is None else len(capture.steps)
        self._slots: list[Any] = []  # where a replay of a captured function has the states

    def run_first(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function, and find which sources it draws from."""
        result = function(*args) if self._gpu is None else self._gpu.run(function, *args)
        for source, _ in self._states:
            source.check_unspawned()
        self._states = [(source, state) for source, state in self._states if not _is_same_state(state, source.read())]
        if self._gpu is not None and self._gpu.seed is None:
            self._gpu = None
        self._slots = _noted_states([source for source, _ in self._states], self._at, on_gpu=self._gpu is not None)
        return result

    def run_again(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function with the random states of the first run; restore the present states afterwards."""
        replayed: Callable[..., R] = Replayed(self._states, self._slots).run
        return replayed(function, *args) if self._gpu is None else self._gpu.run(replayed, function, *args)


class Replayed(Scope):
    """In which generators begin with given states; at its end they have those that they had before.

    Args:
        states: generators, and the states.
        slots: where a replay of a captured function has these states; empty elsewhere.
    """

    __slots__ = ("_before", "_slots", "_slots_before", "_states")

    def __init__(self, states: list[tuple[Source, Any]], slots: Sequence[Any] = ()) -> None:
        self._states = states
        self._before = [(source, source.read()) for source, _ in states]
        self._slots = slots
        capture = listener()
        at = 0 if capture is None else len(capture.steps)
        self._slots_before = _noted_states([source for source, _ in states], at) if slots else ()

    def _open(self, opened: Any) -> None:
        _write_states(self._states, self._slots)

    def _close(self, opened: Any) -> None:
        _write_states(self._before, self._slots_before)


def _noted_states(sources: Sequence[Source], at: int, *, on_gpu: bool = False) -> list[Any]:
    """Have a replay read states before the call of this number; return where it has them, and nothing elsewhere."""
    capture = listener()
    if capture is None:
        return []
    if on_gpu or any(source.generator is None for source in sources):
        capture.add_obstacle("a checkpointed function draws from what is no numpy.random.Generator; draw from one,")
        return []
    return [capture.note_state(_state_of, source.generator, at) for source in sources]


def _write_states(states: Sequence[tuple[Source, Any]], slots: Sequence[Any]) -> None:
    for source, state in states:
        source.write(state)
    capture = listener()
    if capture is not None:
        for (source, _), slot in zip(states, slots, strict=False):  # there may be none
            capture.restore_state(_set_state, source.generator, slot)


def _state_of(generator: np.random.Generator) -> Any:
    return generator.bit_generator.state


def _set_state(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


class _CupyState(Scope):
    """A random state for CuPy's global functions during a run, since CuPy's own cannot be read.

    It is seeded with a number that is drawn from CuPy's own state, once, when the first run first draws.
    """

    __slots__ = ("seed",)

    def __init__(self) -> None:
        self.seed: int | None = None

    def _begin(self) -> Any:
        random = libraries.import_cupy("checkpoint").random
        own = random.get_random_state()
        return random, own, self._make_lazy_state(random.RandomState, own)

    def _open(self, opened: Any) -> None:
        random, _, lazy_state = opened
        random.set_random_state(lazy_state)

    def _close(self, opened: Any) -> None:
        random, own, lazy_state = opened
        lazy_state.is_over = True
        random.set_random_state(own)

    def _make_lazy_state(self, kind: Any, own: Any) -> Any:
        holder = self

        class LazyRandomState(kind):  # type: ignore[misc]  # CuPy's class, known only at run time
            """A random state that is initialised when it is first used."""

            is_over = False

            def __init__(self) -> None:
                pass

            def __getattr__(self, name: str) -> Any:
                if self.is_over or name in self.__dict__ or "_is_initialised" in self.__dict__:
                    raise AttributeError(name)
                self._is_initialised = True
                if holder.seed is None:
                    holder.seed = int(own.randint(0, 2**31 - 1))
                kind.__init__(self, holder.seed)
                return getattr(self, name)

        return LazyRandomState()
