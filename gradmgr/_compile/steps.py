"""Steps: what a log is made of. Each adds itself to an assembly, as calls of NumPy's functions on captured arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.captured_calls import Place
from gradmgr._arrays.libraries import is_differentiable
from gradmgr._engine.context import Context, current, interceptors_of, recorders, run_in
from gradmgr._engine.entry import VJPS
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor, wrap

# An `Assembly`, and a `KnownTensor` of `log`: their modules import this one.
Assembly = Any
KnownTensor = Any


class Step:
    """One step of a log."""

    __slots__ = ("place",)

    place: Place  # where the program stood

    def add_to(self, assembly: Assembly) -> None:
        """Add the calls that a replay makes for it."""
        raise NotImplementedError


class Compute(Step):
    """A function that was called with arrays, and what it returned."""

    __slots__ = ("args", "function", "keywords", "result")

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], result: Any
    ) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords
        self.result = result

    def add_to(self, assembly: Assembly) -> None:
        assembly.compute(self.function, self.args, self.keywords, self.result)


class Guard(Step):
    """What was asked of values, which a replay must find the same."""

    __slots__ = ("args", "found", "read")

    def __init__(self, read: Callable[..., Any], args: tuple[Any, ...], found: Any) -> None:
        self.read = read
        self.args = args
        self.found = found

    def add_to(self, assembly: Assembly) -> None:
        assembly.guard_all(self.read, self.args, self.found)


class Read(Step):
    """The array that an outer tensor has."""

    __slots__ = ("array", "is_late", "known")

    def __init__(self, known: KnownTensor, array: Any, *, is_late: bool) -> None:
        self.known = known
        self.array = array
        self.is_late = is_late

    def add_to(self, assembly: Assembly) -> None:
        assembly.read(self.known, self.array, is_late=self.is_late)


class ReadGrad(Step):
    """The gradient that an outer tensor has, or that it has none."""

    __slots__ = ("grad", "is_late", "known")

    def __init__(self, known: KnownTensor, grad: KnownTensor | None, *, is_late: bool) -> None:
        self.known = known
        self.grad = grad
        self.is_late = is_late

    def add_to(self, assembly: Assembly) -> None:
        assembly.read_grad(self.known, self.grad, is_late=self.is_late)


class Write(Step):
    """What outer tensors are given: tensors, the name of a slot, and an array or a gradient."""

    __slots__ = ("due",)

    def __init__(self, due: Sequence[tuple[KnownTensor, str, Any]]) -> None:
        self.due = due

    def add_to(self, assembly: Assembly) -> None:
        assembly.write(self.due)


class WriteArray(Step):
    """What an array among the arguments is given at the end."""

    __slots__ = ("array", "target")

    def __init__(self, target: Any, array: Any) -> None:
        self.target = target
        self.array = array

    def add_to(self, assembly: Assembly) -> None:
        assembly.write_array(self.target, self.array)


class Whole(Step):
    """A call whose Python code runs in each replay."""

    __slots__ = ("args", "function", "given", "keywords", "result", "tensors")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
        tensors: Sequence[KnownTensor],
        given: dict[int, KnownTensor],
    ) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords
        self.result = result
        self.tensors = tensors
        self.given = given

    def add_to(self, assembly: Assembly) -> None:
        assembly.add_whole(self)


class Update(Step):
    """A call that changes the state of an object of the program by arrays of gradients: see `UpdateMethod`."""

    __slots__ = ("dtypes", "grads", "method", "name")

    def __init__(
        self,
        method: Any,
        name: str,
        grads: tuple[Any, ...],
        dtypes: Sequence[Any],
    ) -> None:
        self.method = method
        self.name = name
        self.grads = grads
        self.dtypes = dtypes

    def add_to(self, assembly: Assembly) -> None:
        assembly.add_update(self)


class State(Step):
    """A state that is no array, such as that of a Generator."""

    __slots__ = ("owner", "read", "slot")

    def __init__(self, read: Callable[[Any], Any], owner: Any) -> None:
        self.read = read
        self.owner = owner
        self.slot: Any = None

    def add_to(self, assembly: Assembly) -> None:
        self.slot = assembly.add_object()
        assembly.append(self.read, (self.owner,), self.slot)


class Restore(Step):
    """That such a state is written again."""

    __slots__ = ("owner", "state", "write")

    def __init__(self, write: Callable[[Any, Any], None], owner: Any, state: State) -> None:
        self.write = write
        self.owner = owner
        self.state = state

    def add_to(self, assembly: Assembly) -> None:
        assembly.append(self.write, (self.owner, self.state.slot), None)


class _OpsWithin(Interceptor):
    """Sees what the ops of a rule take and return.

    Attributes:
        seen: of each op the arrays of its inputs, its parameters and its result.
    """

    __slots__ = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        self.seen.append((tuple([t._array if isinstance(t, Tensor) else t for t in inputs]), params, result))


class _Tracking(Recorder):
    """Tracks what is computed of some tensors, and records nothing: code may ask what is tracked."""

    __slots__ = ()

    def record_op(
        self, op: Any, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        for part in z if z.__class__ is tuple else (z,):
            if is_differentiable(part.dtype):
                self.track(part, object())


class Scene(NamedTuple):
    """In what a rule runs where recorders record what it does.

    Attributes:
        recorders: how many recorders there are.
        tracked: for each Tensor among the rule's arguments the numbers of the recorders that track it.
        mappings: the interceptors that affect results, those of vmaps, with the numbers of the recorders outside.
    """

    recorders: int
    tracked: tuple[tuple[int, ...], ...]
    mappings: tuple[tuple[Any, tuple[int, ...]], ...]


def _tracks(t: Tensor, rec: Recorder) -> bool:
    return rec.open and rec.node_id_of(t) is not None


def scene_of(args: Any) -> Scene:
    """Return in what a rule of these arguments runs now."""
    known = recorders(current())

    def which(is_meant: Callable[[Recorder], bool]) -> tuple[int, ...]:
        return tuple([k for k, rec in enumerate(known) if is_meant(rec)])

    tensors = [t for t in leaves_in(args) if isinstance(t, Tensor)]
    tracked = tuple([which(partial(_tracks, t)) for t in tensors])
    mappings: list[Any] = [each for each in interceptors_of(current()) if each.affects_results]
    return Scene(len(known), tracked, tuple([(each, which(each.outer.__contains__)) for each in mappings]))


def run_rule(rule: Callable[..., Any], args: tuple[Any, ...], scene: Scene) -> Any:
    """Return what a rule of an op returns, and what the ops that it calls with Tensors take and return."""
    ops, known = _OpsWithin(), [_Tracking() for _ in range(scene.recorders)]
    context = Context.of(current())
    for rec in known:
        rec.open = True
        context = context.pushed(rec)
    tensors = [t for t in leaves_in(args) if isinstance(t, Tensor)]
    for t, numbers in zip(tensors, scene.tracked, strict=True):
        for k in numbers:
            known[k].track(t, object())
    mappings = []
    for mapping, outer in scene.mappings:
        again = mapping.reopened()
        again.outer = [known[k] for k in outer]
        mappings.append(again)
    added = (ops, *mappings)
    try:
        made = run_in(context.with_interceptors((*context.open_interceptors(), *added)), rule, *args)
    finally:
        for each in (*known, *added):
            each.open = False
    return made, tuple(ops.seen)


class Held(NamedTuple):
    """Stands for a Tensor among the arguments of a call that is written down."""

    array: Any


def held(value: Any) -> Any:
    """Return a value with `Held` in place of the Tensors in nested tuples."""
    if isinstance(value, Tensor):
        return Held(value._array)
    return tuple(map(held, value)) if value.__class__ is tuple else value


def released(value: Any) -> Any:
    """Undo `held`."""
    if value.__class__ is Held:
        return wrap(value.array)
    return tuple(map(released, value)) if value.__class__ is tuple else value


def run_held_rule(rule: Callable[..., Any], args: tuple[Any, ...], scene: Scene) -> Any:
    """Do as `run_rule`, given and returning `Held` in place of Tensors."""
    return held(run_rule(rule, released(args), scene))


def run_vjp(e: Any, g: Any, before: Any, ids: Any, held: Any, kind: Any) -> tuple[Any, ...]:
    """Compute the vjp of an entry.

    Args:
        e: the entry.
        g: the gradient of its result, as `flat_gradient` returns it.
        before: the gradients that its inputs have already, likewise, in the order of `ids`.
        ids: the node ids of its inputs.
        held: the node ids of gradients that may be added into.
        kind: the class of the ownership of the pass.

    Returns:
        The gradients of the inputs, likewise.
    """
    grads = {i: whole_gradient(h) for i, h in zip(ids, before, strict=True) if h is not None}
    VJPS[e[0]](e, whole_gradient(g), grads, kind(held))
    return tuple([flat_gradient(grads.get(i)) for i in ids])


def run_foreign_vjp(*args: Any) -> tuple[Any, ...]:
    """Do as `run_vjp` where the vjp runs code of the program's, in each replay."""
    return run_vjp(*args)


run_foreign_vjp.runs_each_time = run_foreign_vjp.is_foreign = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions


def flat_gradient(g: Any) -> Any:
    """Return a gradient as it is; those of several results, a dict by number, as pairs in a tuple."""
    return tuple(g.items()) if g.__class__ is dict else g


def whole_gradient(g: Any) -> Any:
    """Undo `flat_gradient`."""
    return dict(g) if g.__class__ is tuple else g
