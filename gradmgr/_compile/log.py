"""Log: what gradmgr computed while a function ran, as steps from which a program is made.

The function runs as it always does, on its own Tensors. The engine tells the log of each step: the kernel of an op, the
vjp of an entry, what gradmgr computes between them, what it asks of values, what it does to Tensors. Values are told
apart by the identity of their arrays, which the log keeps alive. An array that no step returned, and that is in no
Tensor from outside, is a constant.

A Tensor that was there before the function began is *outer*: a replay reads its array again, and writes to it where the
function did. These writes are the effects of the program. They come at its end, and before each call that is made as a
whole in every replay (`call_whole`): that of an optimiser or of a hook, whose Python code must run each time. After
such a call the tensors that it may have changed are read again.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu, libraries
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.atomic import float_errors_raise
from gradmgr._arrays.batched import Batched, innermost
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import ROOT, Place, line_at
from gradmgr._arrays.gpu import is_on_gpu
from gradmgr._arrays.listening import Listener, listener, set_listener
from gradmgr._compile.captured_state import Condition, Residuals
from gradmgr._compile.steps import (
    Compute,
    Guard,
    Read,
    ReadGrad,
    Restore,
    State,
    Step,
    Update,
    Whole,
    Write,
    WriteArray,
    flat_gradient,
    run_foreign_vjp,
    run_rule,
    run_vjp,
    scene_of,
)
from gradmgr._compile.told import Teller, untold
from gradmgr._engine.context import current, recorders, set_current
from gradmgr._engine.entry import kind_of, tracked_input_ids
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.tensor import Tensor, wrap

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class KnownTensor(weakref.ref[Tensor]):
    """What a log knows of a tensor.

    Attributes:
        key: the tensor's identity.
        source: the number of the argument that it is; None for others.
        array: its array as the program has it; None where a call made as a whole may have changed it.
        grad: likewise its gradient, where that was read or written.
        knows_grad: whether it was.
        is_outer: whether it was there before the function began.
        shown: the array with which a tensor that the function made was first given to others; None before.
        is_late: whether a call that is made as a whole may have changed it, so that reading it must come after.
    """

    __slots__ = ("array", "grad", "is_late", "is_outer", "key", "knows_grad", "shown", "source")

    def __init__(self, t: Tensor, *, is_outer: bool, source: int | None = None) -> None:
        super().__init__(t)  # type: ignore[call-arg]  # as weakref.ref takes it
        self.key = id(t)
        self.source = source
        self.array = t._array
        self.grad: Tensor | None = None
        self.knows_grad = self.is_late = False
        self.is_outer = is_outer
        self.shown: Any = None

    def show(self, t: Tensor) -> None:
        """Note that others get a tensor that the function made."""
        if not self.is_outer and self.shown is None:
            self.shown = self.array = t._array


class Log(Listener, Interceptor):
    """The steps of one run of a function.

    Attributes:
        steps: the steps, in order.
        conditions: by the identity of an object, what the function has seen of it that is no Tensor.
        obstacles: why the steps cannot be computed again, each with its line; empty where they can.
        cleanups: what to call with the error where a replay fails amid its effects.
        tensors: what is known of tensors, by identity.
        held: the identities of tensors that the function may read by itself, too, where they are arguments.
        arrays: by the number of an argument that is an array, the Tensor as which it arrives.
    """

    __slots__ = (
        "_candidates",
        "_dependent",
        "_expected",
        "_given",
        "_has_late",
        "_inside",
        "_later",
        "_leaves",
        "_ours",
        "_teller",
        "_within",
        "arrays",
        "before",
        "changed",
        "changes_state",
        "cleanups",
        "code_of_program",
        "conditions",
        "held",
        "obstacles",
        "steps",
        "tensors",
        "values",
    )

    affects_results = False

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._teller = Teller(self)
        self.values: dict[int, Any] = {}  # arrays of which a replay has others, by identity; kept alive
        self.tensors: dict[int, KnownTensor] = {}
        self.arrays: dict[int, Tensor] = {}
        self._dependent: set[int] | None = None
        self.before: dict[int, Any] = {}  # these arrays, as they were
        self._given: dict[int, Any] = {}
        self.conditions: dict[int, Condition] = {}
        self.obstacles: list[str] = []
        self.cleanups: list[Callable[[BaseException], None]] = []
        self.code_of_program: list[Any] = []
        self.changes_state = False
        self.changed: set[int] = set()  # arrays of earlier steps that later ones have added into, by identity
        self._candidates: dict[
            int, weakref.ref[Tensor]
        ] = {}  # tensors from outside that may be read, by their arrays' identity
        self._expected: set[int] = set()  # tensors from outside that are known, by identity
        self.held: set[int] = set()
        self._leaves: list[weakref.ref[Tensor]] = []  # of managers that have begun to record
        self._has_late = False  # whether a call that may change any tensor was made as a whole
        self._later: list[Step] = []  # steps that come after the one that runs
        self._within: list[Any] | None = None  # what ops take and return in a step that they are part of
        self._inside = False  # whether a step runs, whose own steps do not count
        self._ours: set[str] = set()  # files of gradmgr's

    # ------------------------------------------------------------ values

    def _hold(self, result: Any) -> None:
        """Note the arrays that a step returned."""
        kind = result.__class__
        if kind is np.ndarray or isinstance(result, np.generic):
            self.values[id(result)] = result
        elif kind is Batched:
            self._hold(result._array)
        elif kind is dict:
            for part in result.values():
                self._hold(part)
        elif isinstance(result, (tuple, list)):
            for part in result:
                self._hold(part)
        elif isinstance(result, Tensor):
            self._hold(result._array)
        elif is_on_gpu(result):
            self.values[id(result)] = result

    def _is_part(self) -> bool:
        """Return True if what is computed now is part of a step that runs."""
        return self._inside or self._within is not None

    def _add(self, step: Step, later: Sequence[Step] = ()) -> None:
        """Add a step, and those that come after it; after the step that runs, where it is no part of that."""
        step.place = self.place()
        steps = self.steps if self._within is None or isinstance(step, (Read, ReadGrad)) else self._later
        steps.append(step)
        steps += later
        if not self.obstacles and float_errors_raise():
            self.add_obstacle(
                "floating-point errors raise in it, as its numpy.errstate or seterr says, and a replay raises none; "
                "set that around the call, which then runs as written,"
            )

    def place(self) -> Place:
        """Return where the program stands: the innermost frame outside of gradmgr."""
        frame: Any = sys._getframe(2)
        code = frame.f_code
        ours = self._ours
        while (outer := frame.f_back) is not None:
            name = code.co_filename
            if name not in ours:
                if not name.startswith((ROOT, "<gradmgr ")):
                    break
                ours.add(name)
            frame, code = outer, outer.f_code
        return code, frame.f_lasti

    # ------------------------------------------------------------ tensors

    def add_argument(self, number: int, value: Any) -> None:
        """Note an argument: a Tensor, or the Tensor as which an array arrives."""
        self.tensors[id(value)] = KnownTensor(value, is_outer=True, source=number)
        self._candidates.setdefault(id(value._array), weakref.ref(value))

    def expect(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors from outside whose arrays may be read as such."""
        for t in tensors:
            self._expected.add(id(t))
            if self._candidate(t._array) is None:
                self._candidates[id(t._array)] = weakref.ref(t)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.held.update(map(id, tensors))
        self.expect(tensors)

    def _candidate(self, array: Any) -> Tensor | None:
        """Return the tensor from outside that has this array; None if none is known."""
        reference = self._candidates.get(id(array))
        t = None if reference is None else reference()
        return t if t is not None and t._array is array else None

    def _meet_array(self, array: Any) -> bool:
        """See that a step reads an array as such; return True if a replay has another in its place."""
        if id(array) in self.values:
            return True
        t = self._candidate(array)
        if t is not None:
            self.meet(t)
        return id(array) in self.values

    def add_array_argument(self, number: int, array: Any) -> None:
        """Note an array among the arguments, which arrives as a Tensor."""
        made = wrap(array)
        made._view_of = ()
        self.arrays[number] = made
        self._given[number] = array
        self.before[number] = array.copy(order="K")
        self.values[id(array)] = array

    def meet(self, t: Tensor) -> KnownTensor | None:
        """See that a step reads a tensor; return what is known of it if it comes from outside."""
        array = t._array
        if array is None or id(array) in self.values or array.__class__ is Batched:
            return self.tensors.get(id(t))
        candidate = self._candidate(array)
        if candidate is not None and id(t) not in self.tensors:
            t = candidate  # of which this one was made, as `detach` does
        known = self._known(t)
        known.array = array
        self.values[id(array)] = array
        self._add(Read(known, array, is_late=known.is_late))
        return known

    def meet_all(self, values: Any) -> None:
        for part in leaves_in(values):
            if isinstance(part, Tensor):
                self.meet(part)

    def _known(self, t: Tensor) -> KnownTensor:
        known = self.tensors.get(id(t))
        if known is None or known() is not t:
            is_outer = id(t._array) not in self.values and t._array.__class__ is not Batched
            known = self.tensors[id(t)] = KnownTensor(t, is_outer=is_outer)
            known.is_late = self._has_late
        return known

    def meet_grad(self, t: Tensor) -> None:
        known = self._known(t)
        if known.knows_grad:
            return
        grad = getattr(t, "_grad", None)
        known.knows_grad, known.grad = True, grad
        if known.is_outer:
            self._add(ReadGrad(known, None if grad is None else self._grad_known(grad), is_late=known.is_late))

    def _grad_known(self, grad: Tensor) -> KnownTensor:
        """Return what is known of a gradient, which a replay finds in its tensor."""
        known = self.tensors.get(id(grad))
        if known is None or known() is not grad:
            known = self.tensors[id(grad)] = KnownTensor(grad, is_outer=True)
            known.is_late = self._has_late
        return known

    def note_leaves(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors that get gradients."""
        tensors = list(tensors)
        self.expect(tensors)
        self._leaves += map(weakref.ref, tensors)

    def note_new(self, t: Tensor) -> None:
        """Note a tensor that the function makes of plain values: a constant."""
        array = t._array
        if array.__class__ is not Batched and not self._meet_array(array):
            self.values[id(array)] = array
            self._add(Compute(_constant, (array,), {}, array))

    # ------------------------------------------------------------ steps

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        if self._inside or listener() is not self:  # a callback's context has this interceptor, too
            return
        arrays = []
        for t in inputs:
            if isinstance(t, Tensor):
                self.meet(t)
                t = t._array
            arrays.append(t)
        if self._within is not None:
            self._within.append((tuple(arrays), params, result))
            return
        self._hold(result)
        self._add(Compute(op.kernel, (*arrays, *params), {}, result))

    def compute_tangents(self, rule: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._inside:
            return rule(*args)
        args = untold(args)
        for part in leaves_in(args):
            if part.__class__ is np.ndarray or is_on_gpu(part):
                self._meet_array(part)
            elif isinstance(part, Tensor):
                self.meet(part)
        given, scene = map_leaves(_as_it_is, args), scene_of(args)
        made, within, later = self._run_within(rule, *args)
        returned = map_leaves(_as_it_is, made)
        self._hold(returned)
        if recorders(current()):
            self._hold(within)
            self._add(Compute(run_rule, (rule, given, scene), {}, (returned, within)), later)
        else:
            self._add(Compute(rule, given, {}, returned), later)
        return made

    def _run_within(self, rule: Callable[..., Any], *args: Any) -> tuple[Any, tuple[Any, ...], Sequence[Step]]:
        """Return what a rule returns, what the ops within take and return, and steps that come after it."""
        before = self._within, self._later
        within: list[Any] = []
        later: list[Step] = []
        self._within, self._later = within, later
        try:
            made = rule(*args)
        finally:
            self._within, self._later = before
        return made, tuple(within), later

    def told_array_of(self, t: Tensor) -> Any:
        self.meet(t)
        return t._array if self._is_part() else self._teller.told(t._array)

    def told(self, value: Any) -> Any:
        return value if self._is_part() or isinstance(value, Tensor) else self._teller.told(value)

    def untold(self, value: Any) -> Any:
        return untold(value)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._is_part():
            return function(*args, **keywords)
        is_told = False
        given = args, keywords
        args, keywords = untold(given)
        for part in leaves_in(given):
            is_told = is_told or innermost(part).__class__ is CapturedArray
        for part in leaves_in((args, keywords)):
            if part.__class__ is np.ndarray or is_on_gpu(part):
                self._meet_array(part)
        self._inside = True
        try:
            result = function(*args, **keywords)
        finally:
            self._inside = False
        if any(result is part for part in args):
            self.changed.add(id(result))
        result = _distinct(result)
        self._hold(result)
        self._add(Compute(function, args, keywords, result))
        return self._teller.told(result) if is_told else result

    def compute_vjp(self, vjp: Callable[..., None], e: tuple[Any, ...], g: Any, grads: Any, owned: Any) -> None:
        runs = kind_of(e).runs
        is_recorded = not (owned.plain or owned.batched)
        if self._inside or runs == "steps" or (runs and is_recorded):
            vjp(e, g, grads, owned)
            return
        ids = tuple(dict.fromkeys(tracked_input_ids(e)))
        if e[0] == "attach":
            ids = (*ids, e[1])
        values = e, flat_gradient(g), tuple([flat_gradient(grads.get(i)) for i in ids])
        kept, given, before = map_leaves(_as_it_is, values)
        scene = scene_of(values) if is_recorded else None
        held = tuple([i for i in (*ids, e[1]) if i in owned])
        _, within, later = self._run_within(vjp, e, g, grads, owned)
        made = map_leaves(_as_it_is, tuple([flat_gradient(grads.get(i)) for i in ids]))
        self.changed.update([id(h) for h in before if h is not None and any(h is d for d in made)])
        self._hold(made)
        args = kept, given, before, ids, held, type(owned)
        if is_recorded:
            self._hold(within)
            self._add(Compute(run_rule, (run_vjp, args, scene), {}, (made, within)), later)
        else:
            self._add(Compute(run_foreign_vjp if runs else run_vjp, args, {}, made), later)

    def guard(self, read: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        args = untold(args)
        inside, self._inside = self._inside, True
        try:
            found = read(*args)
        finally:
            self._inside = inside
        if not self._is_part():
            self._add(Guard(read, args, found))
        return found

    def guard_of(self, read: Callable[[Any], Any], t: Any) -> Any:
        self.meet(t)
        return self.guard(read, (t._array,))

    def leave(self, what: str, array: Any) -> None:
        if not self._is_part():
            self.add_obstacle(what)

    def add_obstacle(self, what: str) -> None:
        """Note that the steps cannot be computed again, because of what stands at the program's present line."""
        self.obstacles.append(f"{what} at {line_at(self.place())}")

    def see(self, owner: Any, read: Callable[[Any], Any], what: str) -> None:
        """Note that the function depends on `read(owner)`; what is noted first of an object counts."""
        if id(owner) not in self.conditions:
            self.conditions[id(owner)] = Condition(owner, read, what)

    def note_code(self, functions: Iterable[Any]) -> None:
        """Note code of the program that runs in each replay."""
        self.code_of_program += functions

    def clean_up_by(self, method: Callable[[BaseException], None]) -> None:
        """Have a method called with the error where a replay fails amid its effects."""
        self.cleanups.append(method)

    # ------------------------------------------------------------ states that are no arrays

    def note_state(self, read: Callable[[Any], Any], owner: Any, at: int) -> State:
        """Have a replay read a state before the step of this number; return what represents it."""
        state = State(read, owner)
        state.place = self.place()
        self.steps.insert(at, state)
        return state

    def restore_state(self, write: Callable[[Any, Any], None], owner: Any, state: State) -> None:
        """Have a replay write such a state again."""
        self._add(Restore(write, owner, state))

    # ------------------------------------------------------------ effects

    def flush(self) -> None:
        """Add a step that writes to the outer tensors what the function has written to them until now."""
        due: list[tuple[KnownTensor, str, Any]] = []
        for known in list(self.tensors.values()):
            t = known()
            if t is None:
                continue
            array = t._array
            is_seen = (known.is_outer or known.shown is not None) and known.array is not None
            if is_seen and array is not known.array and array.__class__ is not Batched:
                known.array = array
                due.append((known, "_array", array))
            if known.knows_grad:
                grad = getattr(t, "_grad", None)
                if grad is not known.grad:
                    known.grad = grad
                    due.append((known, "_grad", grad))
                    if grad is not None:
                        self._known(grad).show(grad)
        if due:
            self._add(Write(due))
        for number, t in self.arrays.items():
            given = self._given[number]
            if t._array is not given:
                self._add(WriteArray(given, t._array))
                np.copyto(given, t._array)
                t._array = given

    def _silently(self, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        """Call a function of which the log is told nothing."""
        before = current()
        set_listener(None)
        try:
            set_current(before.with_interceptors(tuple([i for i in before.interceptors if i is not self])).simplest())
            return function(*args, **keywords)
        finally:
            set_current(before)
            set_listener(self)

    def call_whole(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        changes: Iterable[Tensor] | None = None,
        keywords: Mapping[str, Any] = _NOTHING,
        replayed: Callable[..., Any] | None = None,
    ) -> Any:
        """Make a call without the steps that it takes; a replay makes it again, at its place.

        Args:
            function: what to call, the same object each time that the captured function runs.
            args: its arguments; Tensors and arrays among them are those of the replay.
            changes: the tensors whose arrays it may change; None for all arrays and gradients there are.
            keywords: its keyword arguments.
            replayed: what a replay calls in its place, for results of the same kind.
        """
        given: dict[int, KnownTensor] = {}  # what is known of the tensors among the arguments, before the call
        for part in leaves_in((args, dict(keywords))):
            if isinstance(part, Tensor):
                self.meet(part)
                given[id(part)] = self._known(part)
                given[id(part)].show(part)
        if changes is None:
            for leaf in self._leaves:
                t = leaf()
                if t is not None:
                    self.meet(t)
                    self.meet_grad(t)
            self._leaves.clear()
        if isinstance(function, (FunctionType, MethodType)):
            self.note_code([function])
        self.flush()
        made = self._silently(function, *args, **keywords)
        made_tensors = []
        for part in leaves_in(made):
            if isinstance(part, Tensor):
                known = self.tensors[id(part)] = KnownTensor(part, is_outer=True)
                known.is_late, known.array = True, None
                made_tensors.append(known)
            elif not (part is None or isinstance(part, (np.ndarray, Residuals)) or is_on_gpu(part)):
                self.add_obstacle(
                    f"{function.__name__}() returns {type(part).__name__}, which a replay would not know,"
                )
        self._hold([part for part in leaves_in(made) if not isinstance(part, Tensor)])
        self._add(Whole(function if replayed is None else replayed, args, dict(keywords), made, made_tensors, given))
        self._make_late(changes)
        return made

    def call_update(
        self,
        function: Callable[[], None],
        changes: Sequence[Tensor],
        update: Any,
        grads: Sequence[Any],
        name: str,
    ) -> None:
        """Do as `call_whole` with a function of nothing; a replay calls a method with arrays of gradients instead.

        Args:
            function: what to call now.
            changes: the tensors whose arrays it changes.
            update: the method, see `UpdateMethod`.
            grads: the arrays of their gradients, None where there is none.
            name: what it is, for the user.
        """
        self.flush()
        self._silently(function)
        self._add(Update(update, name, tuple(grads), [p.dtype for p in changes]))
        self._make_late(changes)

    def arrays_of(self, tensors: Iterable[Tensor | None]) -> list[Any] | None:
        """Return the arrays of gradients, if a replay has all of them; else None."""
        found: list[Any] = []
        for t in tensors:
            if t is None:
                found.append(None)
                continue
            known = self.tensors.get(id(t))
            if known is not None and known.array is None and known.is_late:
                return None
            self.meet(t)
            if id(t._array) not in self.values:
                return None
            found.append(t._array)
        return found

    def can_see(self, tensors: Iterable[Tensor]) -> bool:
        """Return True if a replay has these tensors; those that it has from the start are guarded to be alike."""
        for t in tensors:
            known = self._known(t)
            if not known.is_outer:
                return False
            if not known.is_late:
                self.meet(t)
        return True

    def _make_late(self, changes: Iterable[Tensor] | None) -> None:
        """Have tensors read again that a call may have changed."""
        if changes is None:
            self._has_late = True
            changed = [known for known in self.tensors.values() if known.is_outer or known.shown is not None]
        else:
            changed = [self._known(t) for t in changes]
        for known in changed:
            if known.array is not None:
                self.values.pop(id(known.array), None)
            t = known()
            if t is not None and t._array is not None:
                self.values.pop(id(t._array), None)
            known.is_late = True
            known.array = None
            if changes is None:
                known.knows_grad = False

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """End what only a function that runs needs: told arrays, with which the log would be a cycle."""
        del self._teller

    def settle(self, results: Iterable[Any]) -> None:
        """Note which results are Tensors that the function made of plain values, and not Tensors from outside.

        Those from outside are what names, modules and managers have; nothing else is told of the former.
        """
        for t in results:
            known = self.tensors.get(id(t)) if isinstance(t, Tensor) else None
            is_met = known is not None and known() is t and known.is_outer
            if known is not None and is_met and known.source is None and not known.is_late:
                known.is_outer = id(t) in self._expected

    def as_result(self, value: Any) -> Any:
        """Return a result as the function returns it for arrays, which arrive as Tensors."""
        if not self.arrays or not isinstance(value, Tensor) or value._array.__class__ is Batched:
            return value
        if id(value._array) not in self.values:
            return value
        known = self.tensors.get(id(value))
        if known is not None and known() is value and known.is_outer:
            return value
        if id(value._array) in self._of_tensors():
            return value
        a = value._array
        return a[()] if a.ndim == 0 and a.dtype == bool else a  # as NumPy returns it: see `_distinct`

    def _of_tensors(self) -> set[int]:
        """Return the identities of the arrays that depend on Tensors, and not on arrays among the arguments alone."""
        if self._dependent is None:
            self._dependent = found = set()
            for step in self.steps:
                if isinstance(step, Read):
                    if step.known.source is not None or step.known() is not None:  # not one that the function made
                        found.add(id(step.array))
                elif isinstance(step, Whole):
                    found.update(map(id, _arrays_in(step.result)))
                elif isinstance(step, Compute):
                    is_made = step.function is libraries.make_array or step.function is _constant
                    if is_made or not found.isdisjoint(map(id, _arrays_in((step.args, step.keywords)))):
                        found.update(map(id, _arrays_in(step.result)))
        return self._dependent

    def check_conditions(self) -> None:
        """Note as an obstacle what the function has changed of what it has seen."""
        changed = [condition.what for condition in self.conditions.values() if not condition.holds()]
        self.changes_state = bool(changed) and not self.obstacles
        self.obstacles += [f"the function changes {what}; do that outside of it" for what in changed]


def _as_it_is(value: Any) -> Any:
    """Return a new Tensor of the array that a Tensor has now; anything else as it is."""
    return wrap(value._array) if isinstance(value, Tensor) else value


def values_of(step: Step) -> list[Any]:
    """Return the arrays that a step has returned or read, in order."""
    if isinstance(step, Read):
        return [step.array]
    return list(_arrays_in(step.result)) if isinstance(step, Compute) else []


def kind_of_step(step: Step) -> Any:
    """Return what is the same for a step of another run that does the same."""
    function = getattr(step, "function", None)
    return type(step), getattr(function, "__code__", function if function.__class__ is np.ufunc else type(function))


def _arrays_in(value: Any) -> Iterator[Any]:
    """Yield the arrays in nested containers, and those that Tensors and batched arrays have."""
    for part in leaves_in(value):
        while isinstance(part, (Tensor, Batched)):
            part = part._array
        if gpu.is_plain(part):
            yield part


def _constant(array: Any) -> Any:
    """Return a copy of an array that the function has made of plain values, as the array itself is the program's."""
    return array.copy()


def _distinct(result: Any) -> Any:
    """Return a result in which no array is one that is there once for all, as `numpy.True_`."""
    if isinstance(result, np.bool_):
        return np.array(result)
    return tuple(map(_distinct, result)) if result.__class__ is tuple else result
