"""The hooks of modules: those that take keyword arguments, and those that see the gradients of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.tensor import Tensor
from gradmgr.function import Function

Gradients = tuple[Any, ...]


class WithKeywords:
    """A hook around `forward` that is called with the keyword arguments, too."""

    __slots__ = ("hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args)

    def before(self, module: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Call the hook before `forward`, and return the arguments to call that with."""
        given = call_whole(self.hook, module, args, keywords)
        if given is None:
            return args, keywords
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
            raise TypeError(
                "a hook of register_forward_pre_hook(with_kwargs=True) returns None or a pair (args, kwargs); "
                f"found {type(given).__name__}"
            )
        return (given[0] if isinstance(given[0], tuple) else (given[0],)), given[1]

    def after(self, module: Any, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> Any:
        """Call the hook after `forward`."""
        return call_whole(self.hook, module, args, keywords, result)


class BackwardHook:
    """A hook that sees the gradients of a module's arguments and results."""

    __slots__ = ("hook",)

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *args: Any) -> Any:
        return self.hook(*args)


class InputGradients:
    """The gradients that the backward hooks of one call receive, noted between a module and its arguments and results.

    Both pass through an operation whose derivative is the identity. That of the results notes their gradients; that of
    the arguments, which comes last, calls the hooks. A derivative of the derivative may reach the arguments alone, from
    what the rules inside the module kept of them: that is no backward of the call, and calls no hook.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        self._count = len(args)
        self._places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        self._of_results: Gradients | None = None  # in this backward
        self._module: Any = None
        self._hooks: Sequence[BackwardHook] = ()
        self.args = args
        if self._places:
            passed = _Pass.apply(self._take_arguments, *[args[k] for k in self._places])
            self.args = _with_parts(args, self._places, passed)

    def watch(self, module: Any, hooks: Sequence[BackwardHook], result: Any) -> Any:
        """Return the result of the call, after which the hooks wait for its gradients."""
        self._module, self._hooks = module, hooks
        parts = result if isinstance(result, tuple) else (result,)
        places = [k for k, part in enumerate(parts) if isinstance(part, Tensor) and part.requires_grad]
        if not places:
            return result

        def take_results(gradients: Gradients) -> Gradients:
            self._of_results = _with_parts((None,) * len(parts), places, gradients)
            if not self._places:
                self._call_hooks((None,) * self._count)
            return gradients

        passed = _Pass.apply(take_results, *[parts[k] for k in places])
        parts = _with_parts(parts, places, passed)
        return parts if isinstance(result, tuple) else parts[0]

    def _take_arguments(self, gradients: Gradients) -> Gradients:
        of_all = self._call_hooks(_with_parts((None,) * self._count, self._places, gradients))
        return tuple([of_all[k] for k in self._places])

    def _call_hooks(self, of_arguments: Gradients) -> Gradients:
        of_results, self._of_results = self._of_results, None
        for hook in self._hooks if of_results is not None else ():
            given = call_whole(hook.hook, self._module, of_arguments, of_results)
            if given is not None:
                given = given if isinstance(given, tuple) else (given,)
                if len(given) != len(of_arguments):
                    raise TypeError(
                        "a hook of register_full_backward_hook returns None or a gradient for each argument by "
                        f"position; found {len(given)} for {len(of_arguments)}"
                    )
                of_arguments = given
        return of_arguments


def _with_parts(whole: tuple[Any, ...], places: list[int], parts: Any) -> tuple[Any, ...]:
    """Return a tuple with other elements at some places."""
    made = list(whole)
    for k, part in zip(places, parts if isinstance(parts, tuple) else (parts,), strict=True):
        made[k] = part
    return tuple(made)


class _Pass(Function):
    """Returns the tensors as they are, and lets a function see and replace their gradients."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[Gradients], Gradients], *tensors: Tensor) -> Any:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, *ctx.seen(gradients))

    @staticmethod
    def jvp(ctx: Any, seen: Any, *tangents: Any) -> Any:
        return tangents if len(tangents) > 1 else tangents[0]
