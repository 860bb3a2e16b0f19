"""The listener: is told of everything that gradmgr computes in a context, so that it can be computed again.

There is one at most: that of a function which `compile` captures. It is told of ops and of vjps where they are
computed, and by `computed`, `asked` and the others here of what happens between them: code of gradmgr that works on
plain arrays, numbers that leave for Python, gradients that are read and written. It tells arrays apart by identity.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

Result = TypeVar("Result")

_listener: ContextVar[Any] = ContextVar("gradmgr_listener", default=None)
listener = _listener.get
set_listener = _listener.set


class Listener:
    """Sees the steps of a context: functions of arrays that it may call again with others."""

    __slots__ = ()

    def call(self, function: Callable[..., Result], args: tuple[Any, ...], keywords: dict[str, Any]) -> Result:
        """Return function(*args, **keywords): a step, and what it changes are arrays that it is given."""
        raise NotImplementedError

    def compute_tangents(self, rule: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        """Return rule(*args), the tangents of what an op has returned: one step.

        Where recorders record what the rule does with Tensors, what these ops take and return are results of the step,
        too: the recorders may keep them.
        """
        raise NotImplementedError

    def compute_vjp(self, vjp: Callable[..., None], e: tuple[Any, ...], g: Any, grads: Any, owned: Any) -> None:
        """Call vjp(e, g, grads, owned): one step, as `compute_tangents`."""
        raise NotImplementedError

    def guard(self, read: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        """Return read(*args), by which gradmgr or the program decides what to do."""
        raise NotImplementedError

    def guard_of(self, read: Callable[[Any], Result], t: Any) -> Result:
        """Return what is read of the array of a tensor, by which the program decides what to do."""
        raise NotImplementedError

    def told_array_of(self, t: Any) -> Any:
        """Return what stands for the array of a tensor in code that computes on arrays, of which this is told."""
        raise NotImplementedError

    def told(self, value: Any) -> Any:
        """Return the same for an array."""
        raise NotImplementedError

    def untold(self, value: Any) -> Any:
        """Return the arrays themselves in place of those that `told_array_of` returned, in containers too."""
        raise NotImplementedError

    def meet(self, t: Any) -> Any:
        """See that the array of a tensor is about to be read or replaced."""

    def meet_all(self, values: Any) -> None:
        """Do as `meet` with the tensors in nested containers."""

    def note_new(self, t: Any) -> None:
        """See that a tensor was made of plain values."""

    def leave(self, what: str, array: Any) -> None:
        """See that values of an array leave for Python."""

    def hold(self, tensors: Any) -> None:
        """See that an object of the program holds tensors, which a function may read by itself."""

    def meet_grad(self, t: Any) -> None:
        """See that the gradient of a tensor is about to be read or set."""


def computed(function: Callable[..., Result], *args: Any, **keywords: Any) -> Result:
    """Return function(*args, **keywords): a step between ops that works on plain arrays."""
    heard = _listener.get()
    return function(*args, **keywords) if heard is None else heard.call(function, args, keywords)


def asked(read: Callable[..., Result], *args: Any) -> Result:
    """Return read(*args): facts of arrays' values on which depends what is computed next."""
    heard = _listener.get()
    return read(*args) if heard is None else heard.guard(read, args)


def told(array: Any) -> Any:
    """Return what stands for an array in code that computes on it, of which a listener is told; else the array."""
    heard = _listener.get()
    return array if heard is None else heard.told(array)
