"""Steps: what a log is made of. Each adds itself to an assembly, as calls of NumPy's functions on captured arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gradmgr._arrays.captured_calls import Place
from gradmgr._engine.entry import VJPS

if TYPE_CHECKING:
    from gradmgr._compile.assembly import Assembly
    from gradmgr._compile.log import KnownTensor


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
