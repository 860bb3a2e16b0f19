"""`FunctionCtx`: what the methods of one `Function` share between forward, backward and jvp."""

from __future__ import annotations

from typing import Any

from gradmgr import errors
from gradmgr._engine.tensor import Tensor


class ContextState:
    """What gradmgr stores in a ctx; a separate object, so that users may give their own attributes any name."""

    # Those that a call seldom sets are attributes of the class until then, which makes a call quicker.
    saved: tuple[Any, ...] | None = None  # what backward or jvp finds in ctx.saved_tensors
    for_backward: tuple[Any, ...] = ()
    for_jvp: tuple[Any, ...] | None = None  # None: the same as for backward
    dirty: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize = True

    def __init__(self, name: str, phase: str, needs_input_grad: tuple[bool, ...]) -> None:
        self.name = name
        self.phase = phase  # "forward", "backward", "jvp", "over"
        self.needs_input_grad = needs_input_grad

    def close(self) -> None:
        """Drop the references to tensors; reading saved_tensors raises from now on."""
        self.phase = "over"
        self.saved = self.for_jvp = None
        self.for_backward = self.dirty = self.non_differentiable = ()


class FunctionCtx:
    """What the methods of a `Function` pass to each other: saved tensors, settings, and attributes of the user's.

    `forward` or `setup_context` fill it, `backward` and `jvp` read it. Any other attribute may be set on
    it. Tensors and arrays of a floating or complex dtype that are set as attributes, also inside lists,
    tuples and dicts, are tracked like saved tensors where derivatives are themselves recorded.

    >>> from gradmgr import Function, GradManager, tensor
    >>> class Scale(Function):
    ...     @staticmethod
    ...     def forward(ctx, x, factor):
    ...         ctx.factor = factor
    ...         return x * factor
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * ctx.factor, None
    >>> x = tensor(3.0)
    >>> with GradManager().attach(x) as gm:
    ...     gm.backward(Scale.apply(x, 2.0))
    >>> x.grad
    Tensor(2.)
    """

    __slots__ = ("__dict__", "__weakref__", "_gradmgr")

    _gradmgr: ContextState

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors, or None, for `backward`, which finds them in `ctx.saved_tensors`.

        Arguments and results of the Function may be differentiated through any number of times; of
        anything else that is saved, the second derivative raises where it would depend on it.

        Raises:
            TypeError: something is neither a Tensor nor None; set it as an attribute of ctx.
            RuntimeError: called elsewhere than in forward or setup_context.
        """
        state = self._gradmgr
        if state.phase != "forward":
            state = self._writable_state("save_for_backward")
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                advice = "set anything else as an attribute of ctx"
                _check_tensors(tensors, f"{state.name}: ctx.save_for_backward", advice)
        state.for_backward = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors, or None, for `jvp`, which finds them in `ctx.saved_tensors`.

        Where this is not called, `jvp` finds there what save_for_backward kept.

        Raises:
            TypeError, RuntimeError: as `save_for_backward`.
        """
        state = self._writable_state("save_for_forward")
        _check_tensors(tensors, f"{state.name}: ctx.save_for_forward", "set anything else as an attribute of ctx")
        state.for_jvp = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declare that `forward` wrote to these arguments in place; each must be returned by `forward`.

        The caller's Tensor then becomes the result, the same object, for every recorder. Memory is not
        written: `x *= 2` binds x to a new array, as everywhere in gradmgr.

        Raises:
            TypeError: something is not a Tensor.
            RuntimeError: called elsewhere than in forward or setup_context; when forward is done, that a
                tensor is no argument or was not returned.
        """
        state = self._writable_state("mark_dirty")
        advice = "mark the argument that was written to"
        _check_tensors(tensors, f"{state.name}: ctx.mark_dirty", advice, allow_none=False)
        state.dirty = tensors

    def mark_non_differentiable(self, *results: Any) -> None:
        """Declare that these results are constants for derivatives; results of integers are without being marked.

        `backward` receives zeros for them, None after `set_materialize_grads(False)`.

        Raises:
            RuntimeError: called elsewhere than in forward or setup_context; when forward is done, that
                something marked was not returned.
        """
        self._writable_state("mark_non_differentiable").non_differentiable = results

    def set_materialize_grads(self, value: bool) -> None:
        """Choose what `backward` and `jvp` receive where no gradient or tangent came: zeros, the default, or None.

        For an argument of integers, which has no tangent, `jvp` receives None in any case.

        Raises:
            RuntimeError: called elsewhere than in forward or setup_context.
        """
        self._writable_state("set_materialize_grads").materialize = bool(value)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved, as new Tensors of the same values.

        Raises:
            RuntimeError: they have been freed: read outside backward and jvp.
        """
        state = self._gradmgr
        if state.phase == "forward":
            return state.for_backward
        if state.saved is None:
            raise errors.FunctionError(
                f"{state.name}: ctx.saved_tensors was read after the saved tensors were freed; read it inside "
                "backward or jvp, and keep what is needed later elsewhere"
            )
        return state.saved

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each positional argument, whether its gradient is asked for."""
        return self._gradmgr.needs_input_grad

    def _writable_state(self, method: str) -> ContextState:
        state = self._gradmgr
        if state.phase != "forward":
            raise errors.FunctionError(
                f"{state.name}: ctx.{method} was called when forward was over; call it in forward or setup_context, "
                "where it takes effect"
            )
        return state


def _check_tensors(values: tuple[Any, ...], method: str, advice: str, *, allow_none: bool = True) -> None:
    for k, value in enumerate(values):
        if not (isinstance(value, Tensor) or (allow_none and value is None)):
            raise TypeError(f"{method} takes Tensors; number {k} is {type(value).__name__}; {advice}")
