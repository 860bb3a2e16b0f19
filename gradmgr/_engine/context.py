"""What is current: nothing, a lone tape, or a Context of several recorders and interceptors.

One ContextVar holds it, so threads and asyncio tasks each have their own. A lone `Tape` stands there as itself, and
the generated functions of ops deal with it inline: the fast path. Everything else (nested managers, groups, forward
mode, no_grad, interceptors) is a `Context`, the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, Union

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._arrays.listening import listener
from gradmgr._engine.cleanup import Scope, complete
from gradmgr._engine.collector import interrupts_here
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.recorder import Recorder, overflow_id, snapshot
from gradmgr._engine.templates import compiled_at_first_call, nested_call, numbered
from gradmgr._engine.tensor import Tensor, wrap

Group = tuple[Recorder, ...]
Groups = tuple[Group, ...]
Current = Union["Context", Recorder, None]
# Recorders that have recorded an op, each with the node ids of its inputs (and result).
Recorded = list[tuple[Recorder, tuple[Any, ...]]]

_current: ContextVar[Any] = ContextVar("gradmgr_current", default=None)
current = _current.get
# For code that is too hot for `run_in`. What was current is set again by value: a token of the ContextVar would be
# lost where an exception is raised before it is stored, and refused where clean-up runs in another context.
set_current = _current.set

Result = TypeVar("Result")

_new = object.__new__


def note_views(op: Any, x: Any, a: Any, z: Any, params: tuple[Any, ...]) -> None:
    """Set what the results of an op are views of."""
    for part in z if z.__class__ is tuple else (z,):
        part._view_of = op.view_of(x, a, part._array, *params)


def compute(op: Any, arrays: list[Any], params: tuple[Any, ...]) -> Any:
    """Return what the kernel of an op computes of arrays; an error names the op."""
    try:
        return op.kernel(*arrays, *params)
    except errors.REJECTIONS as error:
        libraries.explain(error, op.name, *arrays)
        raise


class Context:
    """Recorders and interceptors that are current together: immutable, replaced when one enters or leaves.

    Members of one group do not record each other's backward. A recorder can be paused, as no_grad pauses tapes: it
    records nothing, but a write in place must still make the tensor unknown to it.

    Attributes:
        groups: the recorders that record, outermost group first.
        with_paused: these and the paused ones, likewise.
        interceptors: in the order they entered.
        is_idle: whether ops are neither recorded nor intercepted, as within no_grad; they do not come to `call` then.
        tapes: `groups` where they are nested tapes and nothing else is there, which `call` treats faster; else ().
    """

    __slots__ = ("groups", "interceptors", "is_idle", "tapes", "with_paused")

    def __init__(self, groups: Groups, with_paused: Groups, interceptors: tuple[Interceptor, ...] = ()) -> None:
        self.groups = groups
        self.with_paused = with_paused
        self.interceptors = interceptors
        self.is_idle = not groups and not interceptors
        self.tapes: tuple[Any, ...] = _tapes_alone(groups) if groups and not interceptors else ()

    @staticmethod
    def of(state: Current) -> Context:
        """Return what is current, in any of its forms, as a Context."""
        if state.__class__ is Context:
            return state
        groups: Groups = () if state is None else ((state,),)  # type: ignore[assignment]  # a lone tape
        return Context(groups, groups)

    def simplest(self) -> Current:
        """Return the form in which this is current: None, a lone tape, or itself."""
        groups = self.groups
        if groups == self.with_paused and not self.interceptors:
            if not groups:
                return None
            lone = groups[0][0]
            # The fast path does not look at overflow ids.
            if len(groups) == len(groups[0]) == 1 and lone.is_tape and not lone.has_overflow_ids:
                return lone
        return self

    # ------------------------------------------------------------ what is in it

    def recorders(self) -> list[Recorder]:
        """Return every recorder, paused ones too, outermost first."""
        return [rec for group in self.with_paused for rec in group]

    def recording(self) -> list[Recorder]:
        """Return the recorders that record, outermost first."""
        return [rec for group in self.groups for rec in group]

    def open_interceptors(self) -> tuple[Interceptor, ...]:
        """Return the interceptors that are open, the one that entered last at the end."""
        return tuple([each for each in self.interceptors if each.open]) if self.interceptors else ()

    # ------------------------------------------------------------ others made of it

    def pushed(self, *group: Recorder) -> Context:
        """Return this context with a group of recorders inside it."""
        here = self.without()
        groups = (*here.groups, group)
        with_paused = groups if here.groups is here.with_paused else (*here.with_paused, group)
        return Context(groups, with_paused, here.interceptors)

    def without(self, *gone: Recorder) -> Context:
        """Return this context without these recorders and without any that is closed."""
        groups = _open_of(self.groups, gone)
        with_paused = groups if self.groups is self.with_paused else _open_of(self.with_paused, gone)
        interceptors = self.open_interceptors()
        if groups is self.groups and with_paused is self.with_paused and interceptors == self.interceptors:
            return self
        return Context(groups, with_paused, interceptors)

    def paused(self) -> Context:
        """Return this context with every recorder paused."""
        return Context((), self.with_paused, self.open_interceptors())

    def resumed(self) -> Context:
        """Return this context with no recorder paused."""
        groups = _open_of(self.with_paused)
        return Context(groups, groups, self.open_interceptors())

    def recorded_by(self, wanted: Iterable[Recorder]) -> Context:
        """Return this context with only the wanted recorders recording, and the others paused."""
        wanted = list(wanted)
        groups = tuple([kept for group in self.with_paused if (kept := tuple([r for r in group if r in wanted]))])
        changed = Context(groups, self.with_paused, self.open_interceptors())
        return changed.resumed() if groups == self.with_paused else changed

    def narrowed(self, keeps: Callable[[Recorder], bool]) -> Context:
        """Return this context with only the recorders, paused ones too, for which `keeps` is true."""

        def kept(groups: Groups) -> Groups:
            return tuple([some for group in groups if (some := tuple([rec for rec in group if keeps(rec)]))])

        return Context(kept(self.groups), kept(self.with_paused), self.interceptors)

    def intercepted(self, interceptors: Iterable[Interceptor]) -> Context:
        """Return this context with these interceptors added; for a closed one an open one that does the same."""
        own = self.open_interceptors()
        more = [each if each.open else each.reopened() for each in interceptors if each not in own]
        return Context(self.groups, self.with_paused, (*own, *more)) if more else self

    def with_interceptors(self, interceptors: tuple[Interceptor, ...]) -> Context:
        """Return this context with these interceptors in place of its own."""
        return Context(self.groups, self.with_paused, interceptors)

    def for_callbacks(self, now: Current) -> Context:
        """Return the context for callbacks of a backward pass.

        The recorders of this context record; the others that are current now are paused, so that a write in place
        makes its tensor unknown to them too.
        """
        here = Context.of(now)
        return Context(_open_of(self.groups), here.with_paused, here.open_interceptors())

    # ------------------------------------------------------------ operations

    def call(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...] = ()) -> Any:
        """Compute `op` once and let every recorder that tracks an input record it, outermost first.

        Returns a Tensor, or a tuple of them from an op of several results.
        """
        if self.tapes and not params and op.view_of is None:
            if len(inputs) == 2:
                return _call_of_2(self, op, *inputs)
            if len(inputs) == 1:
                return _call_of_1(self, op, *inputs)
        heard = listener()
        if heard is not None:
            inputs, params = heard.untold((inputs, params))
        for interceptor in self.interceptors:
            if interceptor.open:
                inputs = interceptor.before_op(op, inputs, params)
        arrays = [t._array if isinstance(t, Tensor) else t for t in inputs]
        made = compute(op, arrays, params)
        for interceptor in self.interceptors:
            if interceptor.open:
                interceptor.after_op(op, inputs, params, made)
        return self.record(op, inputs, arrays, made, params)

    def record(self, op: Any, inputs: tuple[Any, ...], arrays: list[Any], made: Any, params: tuple[Any, ...]) -> Any:
        """Make Tensors of the results of an op, and let the recorders that track an input record it."""
        z = tuple([wrap(part) for part in made]) if made.__class__ is tuple else wrap(made)
        if op.view_of is not None:
            note_views(op, inputs[0], arrays[0], z, params)
        outer: Recorded = []
        for group in self.groups:
            recorded: Recorded = []
            for rec in group:
                node_ids = rec.node_ids_of(inputs) if rec.open else None
                if node_ids is None:
                    continue
                values, out = arrays, made
                if outer and (op.keeps_inputs or not rec.is_tape):
                    values = [_handle(a, k, outer) for k, a in enumerate(arrays)]
                if outer and (op.keeps_out or not rec.is_tape):
                    out = snapshot(z, [each for each, _ in outer])
                rec.record_op(op, node_ids, tuple(values), out, params, z)
                recorded.append((rec, node_ids))
            outer += recorded
        return z


def _tapes_alone(groups: Groups) -> tuple[Any, ...]:
    """Return the tapes of the groups where each is one tape; else ()."""
    for group in groups:
        if len(group) != 1 or not group[0].is_tape:
            return ()
    return tuple([tape for (tape,) in groups])


def _open_of(groups: Groups, gone: Container[Recorder] = ()) -> Groups:
    """Return the groups without what is closed or gone; the same tuple where nothing is."""
    for group in groups:
        for rec in group:
            if not rec.open or rec in gone:
                return _filtered(groups, gone)
    return groups


def _filtered(groups: Groups, gone: Container[Recorder]) -> Groups:
    kept = [tuple([rec for rec in group if rec.open and rec not in gone]) for group in groups]
    return tuple([group for group in kept if group])


def _handle(array: Any, k: int, outer: Recorded) -> Any:
    """Return what to keep of value k, whose array this is: as `snapshot`, of node ids that were looked up already."""
    handle = None
    for rec, node_ids in outer:
        node_id = node_ids[k]
        if node_id is None:
            continue
        if handle is None:
            handle = _new(Tensor)
            handle._array = array
            handle._view_of = None
            if rec.is_tape:  # Recorder.track, written out
                handle._node_id = node_id
                handle._rec = rec
                continue
            handle._rec = None
        rec.track(handle, node_id)
    return array if handle is None else handle


def _nested_call(count: int) -> Callable[..., Any]:
    """Return the generated method that computes an op of so many inputs under nested tapes."""
    scope = {
        "REJECTIONS": errors.REJECTIONS,
        "Tensor": Tensor,
        "__name__": __name__,
        "explain": libraries.explain,
        "handle": _handle,
        "new": _new,
        "overflow_id": overflow_id,
    }
    head = ", ".join(["self", "op", *numbered("v", count)])
    return compiled_at_first_call(
        head, f"nested_{count}", partial(nested_call, count), "call", f"nested {count}", scope
    )


_call_of_1, _call_of_2 = _nested_call(1), _nested_call(2)


# ---------------------------------------------------------------- changing what is current


def activate(context: Context) -> None:
    """Make a context current from here on."""
    _current.set(context.simplest())


def activate_again(state: Current) -> None:
    """Make current what `current` gave before, in its simplest form."""
    _current.set(state)


def paused(state: Current) -> Current:
    """Return what is current, in its simplest form, with every recorder paused."""
    if state is None:
        return None
    if state.__class__ is Context:
        return state.paused().simplest()
    return Context((), ((state,),))  # type: ignore[arg-type]  # a lone tape


def run_in(context: Current, function: Callable[..., Result], *args: Any) -> Result:
    """Call a function where a context, in any of its forms, is current."""
    before = current()
    try:
        _current.set(context.simplest() if context.__class__ is Context else context)
        try:
            return function(*args)
        finally:
            _current.set(before)
    except BaseException:
        complete(_current.set, before)  # again: an exception may have struck in `finally`
        raise


class Intercepting(Scope):
    """In which an interceptor sees the operations of the context."""

    __slots__ = ("_interceptor",)

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def _open(self, opened: Any) -> None:
        add_interceptor(self._interceptor)

    def _close(self, opened: Any) -> None:
        remove_interceptor(self._interceptor)


def enter_recorders(*group: Recorder) -> None:
    """Open these recorders and make them, as one group, current inside what is current now; or close them."""
    before = current()
    try:
        for rec in group:
            rec.open = True
        _enter(before, group)
    except BaseException:
        complete(_undo_entering, before, group)
        raise


def _undo_entering(before: Current, group: Group) -> None:
    _current.set(before)
    for rec in group:
        rec.close()


def _enter(state: Current, group: Group) -> None:
    if state is None and len(group) == 1 and group[0].is_tape:  # the common case, without the tuples
        _current.set(group[0])
        return
    context = Context.of(state).without()  # what was released in another thread or task is closed
    outer = context.simplest()
    for rec in group:
        rec.outer = outer
    activate(context.pushed(*group))


def leave_recorders(*gone: Recorder) -> None:
    """Take these recorders, and any that is closed, out of what is current, in any order."""
    state = current()
    if state is None:
        return
    if len(gone) == 1 and state is gone[0]:
        _current.set(None)
        return
    activate(Context.of(state).without(*gone))


def close_recorders_of(owner: Any) -> None:
    """Close the tapes of a manager that is gone, where an exception struck at the very beginning of its `__del__`.

    Args:
        owner: the weak reference to it, dead by now, that its tapes hold.
    """
    for rec in recorders(current()):
        if getattr(rec, "owner", None) is owner:  # forward mode has none
            complete(rec.close)
            if not interrupts_here():
                complete(leave_recorders, rec)


def enter_new_recorders(before: Context, after: Context) -> None:
    """Enter what was entered between two contexts of another place: the recordings that a callback left open."""
    known = before.recorders()
    for group in after.with_paused:
        new = [rec for rec in group if rec.open and rec not in known]
        if new:
            _enter(current(), tuple(new))


def add_interceptor(interceptor: Interceptor) -> None:
    """Let an interceptor see the operations from here on in this context, and in those made of it."""
    context = Context.of(current())
    activate(context.with_interceptors((*context.open_interceptors(), interceptor)))


def remove_interceptor(interceptor: Interceptor) -> None:
    """Close an interceptor, and take every closed one out of what is current."""
    interceptor.open = False
    state = current()
    if state.__class__ is Context:
        activate(state.with_interceptors(state.open_interceptors()))


# ---------------------------------------------------------------- questions about now


def recorders(state: Any) -> list[Recorder]:
    """Return every recorder in what is or was current, paused ones too, outermost first."""
    if state.__class__ is Context:
        found: list[Recorder] = state.recorders()
        return found
    return [] if state is None else [state]


def interceptors_of(state: Current) -> tuple[Interceptor, ...]:
    """Return the open interceptors in what is or was current, the one that entered last at the end."""
    return state.open_interceptors() if state.__class__ is Context else ()


def check_may_draw(asked: str, hint: str = "") -> None:
    """Raise if a function that draws random numbers is called inside a vmap with randomness="error".

    Raises:
        RandomnessError: it is; what is drawn would be the same for all examples. The error ends with the hint.
    """
    for each in interceptors_of(current()):
        if each.refuses_draws:
            raise errors.RandomnessError(
                f"vmap({each.refuses_draws}): {asked} draws random numbers; say randomness='same' for one draw for all "
                f"examples, or 'different' for one for each{hint}"
            )


def is_tracked(t: Tensor) -> bool:
    """Tell whether a recorder of this context, paused ones too, tracks `t`."""
    return any(rec.open and rec.node_id_of(t) is not None for rec in recorders(current()))


def is_recording(rec: Recorder) -> bool:
    """Tell whether a recorder records what is computed in this context now."""
    return rec in Context.of(current()).recording()


def rebind(x: Tensor, z: Tensor) -> Tensor:
    """Let `x` be `z` from now on, in value and for every recorder: what an in-place write means."""
    state = current()
    if state is None:
        x._array = z._array
        x._rec = None
        return x
    heard = listener()
    if heard is not None:
        heard.meet(x)
    for rec in recorders(state):
        if rec.trace_log is not None and (node_id := rec.node_id_of(x)) is not None:
            rec.trace_log.record_write(x, node_id)
    if z._array.__class__ is batched.Batched and not batched.is_batched_at(x._array, z._array.level):
        z._array.level.note_write(x, snapshot(x, recorders(state)))  # vmap looks at its end whether x is still there
    try:
        try:
            _rebind(x, z, state)
        except BaseException:
            complete(_rebind, x, z, state)  # the value and its node ids change together
            raise
    except BaseException:
        complete(_rebind, x, z, state)
        raise
    return x


def _rebind(x: Tensor, z: Tensor, state: Current) -> None:
    x._array = z._array
    for rec in recorders(state):
        rec.untrack(x)
    x._rec = rec = z._rec
    if rec is not None:
        x._node_id = z._node_id
        x._overflow_ids = getattr(z, "_overflow_ids", {})
