"""Interceptors: objects that see every operation of a context and may replace its inputs."""

from __future__ import annotations

from typing import Any


class Interceptor:
    """Sees every operation of its context, whether it is recorded or not; vmap and the profiler are interceptors.

    An interceptor is part of the current `Context` until it is closed. Contexts with interceptors take the general
    path.
    """

    __slots__ = ("open",)

    # Whether `before_vjp` and `after_vjp` are to be called; backward then takes its general path.
    follows_backward = True

    # Whether it changes what is computed: a function that is computed again, as by `checkpoint`, then needs it again.
    affects_results = False

    # Whether arrays inside may be batched, as in vmap: gradients are then added up accordingly.
    batches = False

    # The name of a function inside which no random numbers may be drawn; "" where they may.
    refuses_draws = ""

    def __init__(self) -> None:
        self.open = True

    def reopened(self) -> Interceptor:
        """Return an open interceptor that does the same; called where `affects_results`."""
        raise NotImplementedError

    def before_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs to compute `op` of: these, or replacements."""
        return inputs

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        """See the array, or tuple of arrays, that `op` computed; not called where it raised."""

    def before_vjp(self, e: tuple[Any, ...]) -> None:
        """See an entry of a tape before its vjp is computed."""

    def after_vjp(self, e: tuple[Any, ...], g: Any, grads: dict[Any, Any]) -> None:
        """See the same entry afterwards, with the gradient of its result and all gradients there are.

        Where hooks of the op are to see what the vjp gives, that is not added to the others yet: `grads` has it alone.
        """
