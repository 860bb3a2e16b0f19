"""Activation layers, softmax and log-softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_not_in_place, check_word
from gradmgr.nn._modules.module import Module

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class ReLU(ArrayModule):
    """max(x, 0). `inplace` exists for compatibility with torch and must be False, as in all activation layers.

    Raises:
        TypeError: the input is not of real numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.ReLU()(tensor([-1.0, 0.0, 2.0]))
    Tensor([0., 0., 2.])
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        check_not_in_place(inplace, "ReLU")

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.relu(x)


class LeakyReLU(ArrayModule):
    """x where it is positive, negative_slope * x elsewhere.

    Raises:
        TypeError: the input is not of real floating-point numbers, or `negative_slope` is not a number.

    >>> from gradmgr import nn, tensor
    >>> nn.LeakyReLU(negative_slope=0.25)(tensor([-2.0, 3.0]))
    Tensor([-0.5,  3. ])
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        check_not_in_place(inplace, "LeakyReLU")
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"negative_slope={self.negative_slope}"


class ELU(ArrayModule):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere. Clevert et al., 2015.

    Raises:
        TypeError: the input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.ELU(alpha=2.0)(tensor([-1000.0, 3.0]))
    Tensor([-2.,  3.])
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        check_not_in_place(inplace, "ELU")
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"alpha={self.alpha}"


class GELU(ArrayModule):
    """x times the standard normal distribution function of x; "tanh" approximates it. Hendrycks and Gimpel, 2016.

    Raises:
        ValueError: `approximate` is neither "none" nor "tanh".
        TypeError: the input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.GELU()(tensor([-1000.0, 0.0, 1000.0]))
    Tensor([   0.,    0., 1000.])
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        check_word(approximate, ("none", "tanh"), "approximate", "GELU")
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"approximate={self.approximate!r}"


class SiLU(ArrayModule):
    """x times the logistic function of x.

    Raises:
        TypeError: the input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.SiLU()(np.log([1.0, 3.0])) / np.log(3.0)
    array([0.  , 0.75])
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        check_not_in_place(inplace, "SiLU")

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.silu(x)


class Sigmoid(ArrayModule):
    """1 / (1 + exp(-x)), the logistic function.

    Raises:
        TypeError: the input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> nn.Sigmoid()(np.log(tensor([1.0, 3.0])))
    Tensor([0.5 , 0.75])
    """

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.sigmoid(x)


class Tanh(ArrayModule):
    """The hyperbolic tangent.

    Raises:
        TypeError: the input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.Tanh()(tensor([-1000.0, 0.0, 1000.0]))
    Tensor([-1.,  0.,  1.])
    """

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.tanh(x)


class Softplus(ArrayModule):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above a threshold.

    Raises:
        ValueError: in a call, `beta` is 0.
        TypeError: the input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.Softplus()(tensor([-1000.0, 1000.0]))
    Tensor([   0., 1000.])
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"beta={self.beta}, threshold={self.threshold}"


class _AlongAxis(ArrayModule):
    """The base class of layers that work along one axis."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """exp(x) divided by its sum along an axis.

    Raises:
        TypeError: the input is not of real floating-point numbers.
        numpy.exceptions.AxisError: the input has no axis `dim`.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> nn.Softmax(dim=1)(np.log(tensor([[1.0, 3.0], [1.0, 1.0]])))
    Tensor([[0.25, 0.75],
            [0.5 , 0.5 ]])
    """

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.softmax(x, self.dim)


class LogSoftmax(_AlongAxis):
    """The logarithm of softmax along an axis.

    Raises:
        TypeError: the input is not of real floating-point numbers.
        numpy.exceptions.AxisError: the input has no axis `dim`.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> np.exp(nn.LogSoftmax(dim=-1)(np.log(tensor([1.0, 3.0]))))
    Tensor([0.25, 0.75])
    """

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.log_softmax(x, self.dim)
