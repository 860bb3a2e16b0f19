"""CapturedCall: one call of a function, logged, and the calls that its program makes."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays.capture import generators_in
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._arrays.gpu import is_plain
from gradmgr._arrays.listening import set_listener
from gradmgr._compile.assembly import Assembly
from gradmgr._compile.generators import ListenedGenerator
from gradmgr._compile.log import Log
from gradmgr._compile.names import Names
from gradmgr._compile.signature import Signature, give_back, passed_containers
from gradmgr._engine.cleanup import without_collections, without_full_collections
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import Intercepting, current
from gradmgr._engine.history.modes import is_grad_enabled, is_inference_mode_enabled
from gradmgr._engine.tensor import Tensor

_RAISES = True


class CapturedCall:
    """One call that was captured.

    Attributes:
        result: what the caller gets.
        capture: the calls.
        names: what the function reads by name.
        slots: for each leaf of the result, where a replay has it; or the leaf itself.
        generators: from which the calls draw.
        tensors: weak references to the Tensors among the arguments, by number.
        obstacle: why the calls cannot be made again; None if they can.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        *,
        fuses: bool = False,
        may_decide: bool = True,
        repeated: Sequence[Any] = (),
        assembles: bool = True,
    ) -> None:
        self.log = Log()
        self.names = Names(function, signature.leaves)
        self.log.hold(self.names.tensors())
        self.pinned: dict[int, weakref.ref[Any]] = {}
        self.tensors = {k: weakref.ref(t) for k, t in enumerate(signature.leaves) if isinstance(t, Tensor)}
        self.slots: list[Any] = []
        self._drawing: list[Any] = []  # Generators among the arguments
        self.generators = list(repeated)
        self.capture: Assembly | None = None
        self._signature = signature
        self._may_decide = may_decide
        self.obstacle: str | None = None
        self.changes_names = False
        self._fuses = fuses
        args, keywords = self._arguments(signature)
        containers = [
            each
            for given, passed in zip(
                (*signature.tree[0], *signature.tree[1].values()), (*args, *keywords.values()), strict=True
            )
            for each in passed_containers(given, passed)
        ]
        state, lasting = current(), _lasting_settings()
        tree = self._run(function, args, keywords)
        self.log.check_conditions()
        if current() is not state:
            self.log.obstacles.append("a recording that begins in it goes on after it; end it in the function")
        if _lasting_settings() != lasting:
            self.log.obstacles.append(
                "it changes what numpy.seterr or set_grad_enabled sets, for what comes after it, too; do that outside"
            )
        if give_back(containers, {id(t): signature.leaves[k] for k, t in self.log.arrays.items()}):
            self.log.obstacles.append("the function changes a list or a dict that it is given; return what is new")
        found = leaves_of(tree)
        self.log.settle(found)
        shown = [self.log.as_result(leaf) for leaf in found]
        self.log.obstacles += [
            why for leaf in shown if (why := _unknown_to_replays(leaf, signature.leaves)) is not None
        ]
        self.result = rebuilt(tree, iter(shown)) if any(a is not b for a, b in zip(found, shown, strict=True)) else tree
        self._leaves = found, shown
        if assembles:
            self.assemble()
        self.obstacle = self._find_obstacle()

    def _arguments(self, signature: Signature) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with arrays as Tensors, and note them."""
        leaves = list(signature.leaves)
        for k, leaf in enumerate(leaves):
            if not signature.is_input(k) or signature.first_like(k) < k:
                continue
            if isinstance(leaf, Tensor):
                self.log.add_argument(k, leaf)
            else:
                self.log.add_array_argument(k, leaf)
        given: list[Any] = []
        for k, leaf in enumerate(leaves):
            if leaf.__class__ is np.random.Generator:
                given.append(ListenedGenerator(leaf))
                self._drawing.append(leaf)
            else:
                given.append(self.log.arrays.get(signature.first_like(k), leaf) if signature.is_input(k) else leaf)
        return signature.filled(given)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        with Intercepting(self.log):
            set_listener(self.log)
            try:
                made = without_full_collections(function, *args, **keywords)
                self.log.flush()
            finally:
                set_listener(None)
                self.log.close()
        return made

    def assemble(self) -> None:
        """Make the calls of a program, if they can be made again."""
        if not self.log.obstacles:
            try:
                without_collections(self._assemble, self._signature, *self._leaves)
            except Exception as error:  # the function itself has run, and is not to be called again
                if _RAISES:
                    raise
                self.log.obstacles.append(f"{type(error).__name__}: {error}; please report this")

    def _assemble(self, signature: Signature, found: list[Any], shown: list[Any]) -> None:
        self.capture = capture = Assembly(self.log, fuses=self._fuses, may_decide=self._may_decide)
        for k, leaf in enumerate(signature.leaves):
            if k in self.log.arrays:
                capture.add_array_argument(k, leaf)
            elif isinstance(leaf, Tensor) and signature.first_like(k) == k:
                capture.slot_of(self.log.tensors[id(leaf)])
        capture.assemble()
        self.slots = [capture.result_of(value, as_shown) for value, as_shown in zip(found, shown, strict=True)]
        capture.finish(self.slots)
        self.generators = generators_in(capture.calls)
        self.pinned = {k: t for k, t in self.tensors.items() if id(t()) in self.log.held}

    def _find_obstacle(self) -> str | None:
        """Return why the calls cannot be made again; None if they can."""
        if self.log.obstacles:
            self.changes_names = self.log.changes_state
            why = f"the calls cannot be made again: {self.log.obstacles[0]}"
            return why if ";" in why else f"{why}; return it instead, or compute with the Tensor"
        if self.names.never_constant is not None:
            return self.names.never_constant
        found = self.names.changed_during(self.generators)
        if found is not None:
            self.changes_names = True
            return found
        if self.capture is None:
            return None
        try:
            self.capture.check_obstacles()
        except CaptureError as error:
            return str(error) if ";" in str(error) else f"{error}; return it instead, or compute with the Tensor"
        return None


def _lasting_settings() -> Any:
    """Return what a function may set for what comes after it: how floating-point errors are treated, and modes."""
    return np.geterr(), is_grad_enabled(), is_inference_mode_enabled()


# What a replay returns again as it is: it has no parts that change.
_LASTING = (int, float, complex, str, bytes, type(None), range, slice, type, np.dtype, np.generic, enum.Enum)


def _unknown_to_replays(leaf: Any, arguments: Sequence[Any]) -> str | None:
    """Return why a result cannot be returned by a replay; None if it can."""
    if isinstance(leaf, (Tensor, *_LASTING)) or is_plain(leaf) or callable(leaf) or leaf is NotImplemented:
        return None
    if any(leaf is argument for argument in arguments):
        return None
    return (
        f"it returns an object of class {type(leaf).__name__}, and a replay would return that of the captured call; "
        "return Tensors, arrays, numbers, or lists, tuples, dicts and dataclasses of them"
    )
