"""Linear and Identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import length
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Rng, draw_by_fan_in, empty_parameter

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class Identity(ArrayModule):
    """Returns its input; arguments of the constructor are ignored.

    >>> from gradmgr import nn, tensor
    >>> nn.Identity()(tensor([1.0, 2.0]))
    Tensor([1., 2.])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return x


class Linear(Module):
    """Affine map of the last axis: x @ weight.T + bias.

    Args:
        in_features: length of the last axis of x.
        out_features: length of the last axis of the result.
        bias: whether to add a bias.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: a Generator to draw from, uniformly from +-1 / sqrt(in_features).

    Parameters: weight (out_features, in_features), bias (out_features,).

    Raises:
        ValueError: a size is negative; the last axis of an input has another length than `in_features`.
        TypeError: a size is not an integer, or `dtype` not a floating one; an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Linear(3, 2, rng=np.random.default_rng(0))
    >>> layer(np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: Rng = None,
    ) -> None:
        super().__init__()
        self.in_features = length(in_features, "in_features", "Linear")
        self.out_features = length(out_features, "out_features", "Linear")
        self.weight = empty_parameter((self.out_features, self.in_features), dtype, device)
        self.register_parameter("bias", empty_parameter((self.out_features,), dtype, device) if bias else None)
        self.reset_parameters(rng=rng)

    def reset_parameters(self, *, rng: Rng = None) -> None:
        """Draw new values for the parameters."""
        draw_by_fan_in(self.weight, self.bias, rng)

    def forward(self, x: Any) -> Tensor:
        """Map an input (..., in_features) to (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)  # type: ignore[no-any-return]  # x is Any

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
