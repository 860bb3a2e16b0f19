"""The history of a recording: its nodes, hooks on several tensors, pictures, and how values are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import current, recorders
from gradmgr._engine.history.node import GradientEdge, Node, check_tracked, get_gradient_edge, hook_places
from gradmgr._engine.history.saved_values import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from gradmgr._engine.hooks import RemovableHandle
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, raw
from gradmgr._transforms.picture import to_dot, to_mermaid, to_svg
from gradmgr.manager import get_backwarding_grad_manager

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
    "to_dot",
    "to_mermaid",
    "to_svg",
]


# ---------------------------------------------------------------- hooks on several tensors


class _MultiTensorHook:
    """One hook on several tensors: gathers their gradients, apart for each tape in backward."""

    def __init__(self, function: Callable[[Any], Any], count: int, *, first_only: bool) -> None:
        self.function = function
        self.count = count
        self.first_only = first_only

    def part(self, k: int) -> Callable[[Tensor], None]:
        """Return the hook for tensor number `k`."""

        def multi_grad_hook(g: Tensor) -> None:
            manager = get_backwarding_grad_manager()
            if manager is None or manager._tape is None:
                raise errors.RecordingError("a hook of register_multi_grad_hook was called outside of a backward()")
            notes = manager._tape.ensure_annotations()
            first = self not in notes.gathered
            found = notes.gathered.setdefault(self, [None] * self.count)
            if self.first_only:
                if first:
                    self.function(g)
                return
            found[k] = g
            if first:
                notes.endings.append(lambda: self.function(found))

        return multi_grad_hook


def register_multi_grad_hook(
    tensors: Iterable[Tensor], fn: Callable[[Any], Any], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each backward that reaches any of these tensors, with their gradients.

    Each gradient is what the hooks of its tensor registered before this one made of it. As with
    `Tensor.register_hook`, the hook stays on attached tensors for good, on results for their recording.
    Where managers nest, the backward of each counts by itself; so do those of several threads.

    Args:
        tensors: attached, or results that a manager here recorded.
        fn: with "all" takes a list with a gradient for each of `tensors`, None for those that this backward does
            not reach, and is called when the backward pass is done, before `.grad` is written. With "any" it takes the
            first gradient that there is. What it returns is ignored.
        mode: "all" or "any".

    Returns:
        A handle with `remove()`.

    Raises:
        TypeError: `fn` cannot be called; an element is not a Tensor.
        ValueError: an unknown mode; there are no tensors.
        RuntimeError: no manager has attached a tensor, and none that records here tracks it. No hook is then set.

    >>> import gradmgr
    >>> x, y = gradmgr.tensor(2.0), gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach([x, y])
    >>> handle = gradmgr.graph.register_multi_grad_hook([x, y], print)
    >>> with gm:
    ...     gm.backward(x * y)
    [Tensor(3.), Tensor(2.)]
    >>> handle.remove()
    """
    errors.check_function(fn, "register_multi_grad_hook")
    if mode not in ("all", "any"):
        raise ValueError(f'register_multi_grad_hook: mode is "all" or "any"; found {mode!r}')
    many = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not many:
        raise ValueError("register_multi_grad_hook: there are no tensors; pass at least one")
    for k, t in enumerate(many):
        check_tracked(t, f"register_multi_grad_hook, tensor number {k}")
    together = _MultiTensorHook(fn, len(many), first_only=mode == "any")
    return RemovableHandle([place for k, t in enumerate(many) for place in hook_places(t, together.part(k))])


# ---------------------------------------------------------------- memory


def increment_version(tensor: Any) -> None:
    """Say that the memory of these tensors or arrays was written to from outside gradmgr.

    gradmgr never writes to memory it shares with others (`asarray`, `from_dlpack`, plain arrays
    used as operands), so only code that does write needs to call this. A `backward()` that needs a value
    recorded from that memory before, by a manager recording in this context, then raises.

    Args:
        tensor: one Tensor or array, or an iterable of them.

    Raises:
        TypeError: something else is among them; then nothing is noted.

    >>> import numpy, gradmgr
    >>> buffer = numpy.ones(2)
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     y = (x * buffer).sum()
    ...     buffer[:] = 5
    ...     gradmgr.graph.increment_version(buffer)
    ...     gm.backward(y)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    gradmgr.errors.StaleValueError: the derivative of op 'multiply' needs a value in memory that ...
    """
    many = list(tensor) if isinstance(tensor, Iterable) and not _is_memory(tensor) else [tensor]
    for t in many:
        if not _is_memory(t):
            raise TypeError(
                f"increment_version takes Tensors and arrays, or an iterable of them; found {type(t).__name__}"
            )
    tapes = [rec for rec in recorders(current()) if isinstance(rec, Tape)]
    for t in many:
        array = raw(t) if isinstance(t, Tensor) else t
        for tape in tapes:
            tape.invalidate(array)


def _is_memory(value: object) -> bool:
    return isinstance(value, Tensor) or libraries.is_array(value)


class _Mutation:
    """What `allow_mutation_on_saved_tensors` gives: nothing needs to be kept, so there is nothing to clear."""

    __slots__ = ()

    def clear(self) -> None:
        """Do nothing: there are no copies to drop."""


class allow_mutation_on_saved_tensors:  # noqa: N801  # torch's spelling
    """Do nothing, in a with block: writing in place to what a derivative needs is always allowed in gradmgr.

    A recorded value never changes, since tensors are values (`x *= 2` binds x to new memory where the old is kept).

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm, gradmgr.graph.allow_mutation_on_saved_tensors():
    ...     y = x * 1
    ...     z = (y * y).sum()
    ...     y *= 0
    ...     gm.backward(z)
    >>> x.grad
    Tensor([2., 4.])
    """

    __slots__ = ()

    def __enter__(self) -> _Mutation:
        return _Mutation()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass
