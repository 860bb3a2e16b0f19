"""CapturedCall: one call of a function, captured, and how it differs from another one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.capture import generators_in
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._compile.accumulation import without_stand_ins
from gradmgr._compile.captured_slots import run_captured
from gradmgr._compile.environment import Environment
from gradmgr._compile.gradient_writes import line_that_sets_gradients
from gradmgr._compile.signature import Signature
from gradmgr._compile.sources import PASSING_ERRORS, is_large_array
from gradmgr._compile.stand_ins import captured_object
from gradmgr._compile.tensor_capture import TensorCapture
from gradmgr._engine.cleanup import complete, without_collections
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import current
from gradmgr._engine.history.modes import is_grad_enabled, is_inference_mode_enabled
from gradmgr._engine.tensor import Tensor
from gradmgr._replay.capture_difference import difference, is_branch

_NO_ARRAY = (
    "while compile captures a function, its arrays, and large ones that it reads by name, are stand-ins, which other "
    "libraries may not take: call these outside of the function, or before it changes a Tensor"
)


class CapturedCall:
    """One call that was captured.

    Attributes:
        is_captured: whether it was, or never can be; not while another thread captures a function.
        failure: the error that ended an attempt to capture it, of which a later one knows nothing; None without one.
        result: what the caller gets.
        capture: the calls.
        environment: what the function read besides its arguments.
        slots: for each leaf of the result, where a replay has it; or the leaf itself.
        generators: from which the calls draw.
        tensors: weak references to the Tensors among the arguments, by number.
        named: likewise the arrays among them for which a name stands, too.
        known: likewise Tensors and arrays among them for which a name stands, where code asks whether it is the same.
        may_decide: whether kernels were allowed to add guards: see Capture, for `fuses`, too.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Signature, *, may_decide: bool = True, fuses: bool = False
    ) -> None:
        self.capture = TensorCapture(may_decide=may_decide, fuses=fuses)
        self.may_decide = may_decide
        self.result: Any = None
        self.slots: list[Any] = []
        self.generators: list[Any] = []
        self._not_captured = False
        self._late_gradient: str | None = None  # what a replay would find too late
        self.named: dict[int, weakref.ref[Any]] = {}
        self.tensors = {k: weakref.ref(t) for k, t in enumerate(signature.leaves) if isinstance(t, Tensor)}
        self.failure: str | None = None
        self.is_captured = self._search(function, signature)
        args, keywords = signature.filled(signature.leaves)
        if not self.is_captured:
            self.result = function(*args, **keywords)
            return
        if self.environment.obstacle is None:
            self.is_captured = run_captured(self.capture, self._call, function, signature)
        else:  # nothing is to be made of it
            self._not_captured = True
        if self._not_captured:
            self.environment.undo()
            self.is_captured = self.failure is None
            self.result = function(*args, **keywords)
        elif self.is_captured:
            self._do_unless_passing_error(self._settle)
            self.is_captured = self.failure is None
        else:
            self.result = function(*args, **keywords)

    def _search(self, function: Callable[..., Any], signature: Signature) -> bool:
        """Look at what the function reads by name; return whether that was possible, as it is mostly."""
        try:
            self.environment = Environment(function, signature.leaves, signature.containers())
            self.known = self.environment.known(signature.leaves)
        except PASSING_ERRORS as error:
            self.failure = type(error).__name__
        return self.failure is None

    def _call(self, function: Callable[..., Any], signature: Signature) -> None:
        leaves = list(signature.leaves)
        for k in range(len(leaves)):
            if signature.is_input(k):
                first = signature.first_like(k)
                leaves[k] = leaves[first] if first < k else self.capture.add_argument(k, leaves[k])
            elif (stand_in := captured_object(leaves[k])) is not None:
                leaves[k] = stand_in
        args, keywords = signature.filled(leaves)
        state, lasting = current(), _lasting_settings()
        pairs = zip(signature.leaves, leaves, strict=True)
        asked = self.environment.identities()
        arrays = [(a, made) for a, made in pairs if isinstance(made, CapturedArray)]
        given = {id(a): made for a, made in arrays if is_large_array(a) or id(a) in asked}
        self.environment.prepare(self.capture, given)
        try:
            self.environment.replace()
            self._note_named(signature)
            tree = self._result_of(function, args, keywords, has_arrays=signature.has_arrays())
        except BaseException:
            complete(self.environment.restore)
            raise
        if self._not_captured:
            return
        if signature.is_changed(args, keywords, leaves):
            self.capture.obstacles.append("the function changes a list or a dict that it is given; return what is new")
        if current() is not state:
            self.capture.obstacles.append("a recording that begins in it goes on after it; end it in the function")
        if _lasting_settings() != lasting:
            self.capture.obstacles.append(
                "it changes what numpy.seterr or set_grad_enabled sets, for what comes after it, too; do that outside"
            )
        self.result = without_stand_ins(tree)  # what the caller gets whatever happens to the capture
        self._do_unless_passing_error(self._finish, tree)

    def _do_unless_passing_error(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function that completes the capture: its errors are not the user's, whose function has run."""
        if self.failure is None:
            try:
                function(*args)
            except PASSING_ERRORS as error:
                self.failure = type(error).__name__

    def _finish(self, tree: Any) -> None:
        """Give the capture the results of the function, and what it accumulates."""
        self.environment.accumulate(self.capture)
        found = [self.capture.result_of(leaf) for leaf in leaves_of(tree)]
        self.result = rebuilt(tree, iter([value for value, _ in found]))
        self.slots = [slot for _, slot in found]
        without_collections(self.capture.finish, self.slots)
        self._find_late_gradient()

    def _settle(self) -> None:
        """Note what the function has changed unseen, after the capture has ended."""
        self.generators = generators_in(self.capture.calls)
        self.environment.settle(self.generators)
        for condition in self.capture.conditions.values():
            condition.refresh()

    def _find_late_gradient(self) -> None:
        """Note where code that runs in each replay sets gradients, on which depends what is done later."""
        guard = self.capture.late_gradient()
        line = None if guard is None else line_that_sets_gradients(self.capture.code_of_program)
        if guard is not None and line is not None:
            self._late_gradient = (
                f"a hook, a callback or a Function sets gradients, at {line}, on which depends what is done later, at "
                f"{guard.line}; a replay would find them changed only after that code has run: set them in the function"
            )

    def _note_named(self, signature: Signature) -> None:
        named = self.environment.named()
        self.named = {k: weakref.ref(a) for k, a in enumerate(signature.leaves) if id(a) in named}

    def _result_of(
        self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], *, has_arrays: bool
    ) -> Any:
        """Call the function, and put back what represents others; return None if it must be called again without."""
        try:
            return function(*args, **keywords)
        except Exception as error:
            if not (has_arrays or self.capture.named) or self.capture.has_changed():
                if CapturedArray.__name__ in str(error):
                    error.add_note(_NO_ARRAY)
                raise
            # A captured array is not one to all code; what the function raises by itself it raises again.
            if isinstance(error, PASSING_ERRORS):
                self.failure = type(error).__name__
            self.capture.obstacles.append(f"{type(error).__name__}: {error}")
            self.capture.open = False
            self._not_captured = True
            return None
        finally:
            self.capture.check_conditions()
            complete(self.environment.restore)

    def obstacle(self) -> str | None:
        """Return why the calls cannot be made again; None if they can."""
        found = self.environment.obstacle or self.environment.change
        if found is not None:
            return found
        if self._late_gradient is not None:
            return self._late_gradient
        try:
            self.capture.check_obstacles()
        except CaptureError as error:
            return str(error) if ";" in str(error) else f"{error}; return it instead, or compute with the Tensor"
        return None

    def changes_state(self) -> bool:
        """Tell whether the only obstacle seen is that it changes what it reads, as a first call may that makes it."""
        return self.environment.obstacle is None and (self.environment.change is not None or self.capture.changes_state)

    def difference(self, other: CapturedCall) -> str | None:
        """Return how another capture of the same function differs; None if it does not."""
        found = difference(self.capture, other.capture)
        if found is None and not _are_alike(self.capture.sources, other.capture.sources):
            return "which Tensors it reads"
        if found is None and self.known.keys() != other.known.keys():
            return "which arguments have names, too"
        if found is None and not (len(self.slots) == len(other.slots) and all(map(_is_same, self.slots, other.slots))):
            return "what it returns"
        return found

    def is_explained(self, other: CapturedCall) -> bool:
        """Tell whether it is known why another capture, an earlier one, differs."""
        return (
            is_branch(self.capture, other.capture)
            or self.known.keys() != other.known.keys()
            or other.environment.changed() is not None
            or not all(condition.holds() for condition in other.capture.conditions.values())
            or self._reads_argument_of(other)
            or other._reads_argument_of(self)
        )

    def _reads_argument_of(self, other: CapturedCall) -> bool:
        """Tell whether the function read by itself, in this call, a Tensor that it was given in the other."""
        given = {id(t()) for t in other.tensors.values()}
        return any(not isinstance(source, int) and id(source()) in given for source in self.capture.sources)

    def pinned(self, other: CapturedCall) -> dict[int, weakref.ref[Any]]:
        """Return the arguments that the function knows, or may know, by another name, too.

        They are arrays, and Tensors that are the same in both.
        """
        same = {k: t for k, t in self.tensors.items() if t() is not None and t() is other.tensors[k]()}
        return self.named | self.known | same


def _lasting_settings() -> Any:
    """Return what a function may set for what comes after it: how floating-point errors are treated, and modes."""
    return np.geterr(), is_grad_enabled(), is_inference_mode_enabled()


def _are_alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a == b if isinstance(a, int) else not isinstance(b, int) and a() is b() for a, b in zip(one, other, strict=True)
    )


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) or is_on_gpu(one) or type(one) is not type(other):
        return False
    return repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other)
