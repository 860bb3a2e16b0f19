"""What calling a module gives, for type checkers only."""

from typing import Any, ParamSpec, Protocol, TypeVar, overload

from gradmgr._engine.tensor import Tensor
from gradmgr.nn._modules.module import Module

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

class HasForward(Protocol[P, R]):
    """A module of which a call takes the parameters of its `forward` and gives the result of it."""

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

class ArrayModule(Module):
    """A module without parameters: a Tensor of a Tensor, a plain array of a plain array."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Any) -> Any: ...

class LossModule(Module):
    """A loss: a Tensor where one of its arguments is one, a plain array of plain arrays."""

    @overload
    def __call__(self, x: Tensor, target: Any) -> Tensor: ...
    @overload
    def __call__(self, x: Any, target: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Any, target: Any) -> Any: ...
