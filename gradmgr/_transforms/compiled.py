"""Compiled: a function that is captured, and then replayed as one straight line of NumPy calls.

A call with arguments that are new (`signature`) runs as always and is captured. So does the second one, and the two
captures are compared: what differs depends on more than the arguments, and then the function is never replayed for
them. From the third call on it is replayed. A replay is given up where a guard finds another value than the captures
did, before it has changed anything; the call then runs as always, and is captured for a further variant.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from gradmgr import errors
from gradmgr._arrays.captured import CaptureError, GuardError, Slot, capturing, difference, is_branch
from gradmgr._arrays.replay import compile_replay
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import current
from gradmgr._engine.observers import observers
from gradmgr._engine.tensor import Tensor
from gradmgr._engine.tensor_capture import TensorCapture, run_captured
from gradmgr._transforms.environment import Environment
from gradmgr._transforms.signature import Signature, difference_of_keys, signature_of

# The variants that are kept: more of them change with each call, as a rule.
_MOST = 8


class _Captured:
    """One call that was captured.

    Attributes:
        capture: the calls.
        environment: what the function read besides its arguments.
        tree: the result, as the caller gets it.
        slots: for each leaf of the result, where a replay has it; or the leaf itself.
        tensors: weak references to the Tensors among the arguments, by number.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.capture = TensorCapture()
        args, _ = signature.filled(signature.leaves)
        self.environment = Environment(function, args)
        self.tensors = {k: weakref.ref(t) for k, t in enumerate(signature.leaves) if isinstance(t, Tensor)}
        self.tree: Any = None
        self.slots: list[Any] = []
        run_captured(self.capture, self._call, function, signature)

    def _call(self, function: Callable[..., Any], signature: Signature) -> None:
        leaves = list(signature.leaves)
        for k, leaf in enumerate(leaves):
            if signature.is_array(k):
                first = signature.first_like(k)
                leaves[k] = leaves[first] if first < k else self.capture.add_argument(k, leaf)
        args, keywords = signature.filled(leaves)
        state = current()
        tree = function(*args, **keywords)
        if signature.is_changed(args, keywords, leaves):
            self.capture.obstacles.append("the function changes a list or a dict that it is given")
        if current() is not state:
            self.capture.obstacles.append("a recording that begins in the function goes on after it")
        pairs = [self.capture.result_of(leaf) for leaf in leaves_of(tree)]
        self.tree = rebuilt(tree, iter([value for value, _ in pairs]))
        self.slots = [slot for _, slot in pairs]
        self.capture.finish()

    def obstacle(self) -> str | None:
        """Return why the calls cannot be made again; None where they can."""
        if self.environment.obstacle is not None:
            return self.environment.obstacle
        try:
            self.capture.check_obstacles()
        except CaptureError as error:
            return str(error)
        return None

    def difference(self, other: _Captured) -> str | None:
        """Return how another capture of the same function differs; None where it does not."""
        found = difference(self.capture, other.capture)
        if found is None and not _are_alike(self.capture.sources, other.capture.sources):
            return "which Tensors it reads"
        if found is None and not all(map(_is_same, self.slots, other.slots)):
            return "what it returns"
        return found


def _are_alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a == b if isinstance(a, int) else not isinstance(b, int) and a() is b() for a, b in zip(one, other, strict=True)
    )


def _is_same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other) or one != one  # NaN


class _Program:
    """A captured function as a straight line of calls.

    Attributes:
        environment: what the function reads besides its arguments.
        uses: when it was used last, as a number that grows.
    """

    def __init__(self, made: _Captured, pinned: dict[int, weakref.ref[Tensor]]) -> None:
        capture = made.capture
        self.environment = made.environment
        self.conditions = list(capture.conditions.values())
        self.pinned = pinned
        self.sources = capture.sources
        self.calls = len(capture.calls)
        outer = [source() for source in self.sources if not isinstance(source, int)]
        self._outer = {id(t) for t in outer if t is not None}
        self._has_effects = any(call.has_effect for call in capture.calls)
        self._returned = [k for k, slot in enumerate(made.slots) if isinstance(slot, Slot)]
        self._leaves = [None if isinstance(slot, Slot) else slot for slot in made.slots]
        self._tree = rebuilt(made.tree, iter(self._leaves))
        self.replay = compile_replay(capture, [made.slots[k] for k in self._returned])

    def misfit(self, leaves: list[Any]) -> str | None:
        """Return what it does not fit in a call of its signature; None where it fits."""
        for k, reference in self.pinned.items():
            if leaves[k] is not reference():
                return f"argument {k} is another Tensor"
        for k, leaf in enumerate(leaves):
            if id(leaf) in self._outer:
                return f"argument {k} is a Tensor that the function reads by itself"
        for condition in self.conditions:
            if not condition.holds():
                return condition.what
        return self.environment.changed()

    def inputs(self, leaves: list[Any]) -> list[Any] | None:
        """Return what a replay takes; None where a Tensor that it reads is gone."""
        found = []
        for source in self.sources:
            value = leaves[source] if isinstance(source, int) else source()
            if value is None:
                return None
            found.append(value)
        return found

    def run(self, inputs: list[Any], begun: list[bool]) -> Any:
        """Make the calls; `begun` is no more empty when something has changed."""
        values = self.replay(begun, *inputs) if self._has_effects else self.replay(*inputs)
        leaves = self._leaves.copy()
        for k, value in zip(self._returned, values, strict=True):
            leaves[k] = value
        return rebuilt(self._tree, iter(leaves))


class _Entry:
    """What is known of the calls of one signature."""

    def __init__(self) -> None:
        self.programs: list[_Program] = []
        self.waiting: list[_Captured] = []  # captured once
        self.refused: str | None = None  # why calls are not replayed


class Compiled:
    """A function that is captured and replayed; see `gradmgr.compile`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._entries: dict[Any, _Entry] = {}
        self._lock = threading.RLock()
        self._has_warned = False

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}>"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if current() is not None or capturing() is not None or observers():
            return self.function(*args, **keywords)
        signature = signature_of(args, keywords)
        entry = self._entries.get(signature.key)
        if entry is None:
            entry = self._entries.setdefault(signature.key, _Entry())
        if entry.refused is not None:
            return self.function(*args, **keywords)
        for program in entry.programs:
            if program.misfit(signature.leaves) is not None:
                continue
            inputs = program.inputs(signature.leaves)
            if inputs is None:
                entry.programs.remove(program)
                continue
            begun: list[bool] = []
            try:
                return program.run(inputs, begun)
            except GuardError:
                if begun:
                    raise
            except Exception:
                if begun:
                    raise
                return self.function(*args, **keywords)
        return self._captured(entry, signature)

    # ------------------------------------------------------------ capturing

    def _captured(self, entry: _Entry, signature: Signature) -> Any:
        made = _Captured(self.function, signature)
        obstacle = made.obstacle()
        if obstacle is not None:
            self._refuse(entry, obstacle)
            return made.tree
        for before in entry.waiting:
            found = made.difference(before)
            if found is None:
                entry.waiting.remove(before)
                pinned = {k: ref for k, ref in made.tensors.items() if ref() is before.tensors[k]()}
                entry.programs.insert(0, _Program(made, pinned))
                return made.tree
            if not is_branch(made.capture, before.capture) and before.environment.changed() is None:
                self._refuse(entry, f"from one call to the next changes {found}")
                return made.tree
        entry.waiting.append(made)
        return made.tree

    def _refuse(self, entry: _Entry, why: str) -> None:
        entry.refused = why
        entry.waiting.clear()
        name = getattr(self.function, "__qualname__", repr(self.function))
        errors.warn(f"{name} is not replayed, and runs as if it were not compiled: {why}", errors.CompileWarning)

    # ------------------------------------------------------------ for the user

    def explain(self) -> str:
        """Return, as text, what is replayed and what is not, and why."""
        return "\n".join([f"{len(entry.programs)} programs, {entry.refused}" for entry in self._entries.values()])

    def release(self) -> None:
        """Forget all programs; the next calls are captured again."""
        self._entries = {}


def compile(function: Callable[..., Any]) -> Compiled:  # noqa: A001  # torch's name
    return Compiled(function)
