"""Layers without parameters: activations, pooling, dropout, and losses as modules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_reduction, check_word, generator, integer, one_array
from gradmgr.nn._modules.module import Module
from gradmgr.ops.shape import reshape

Rng = np.random.Generator | None
Size = int | tuple[int, ...]


class Identity(Module):
    """Gives its argument back, whatever it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return x


class Flatten(Module):
    """Makes one axis of several, by default of all but the first.

    Args:
        start_dim: the first of them.
        end_dim: the last of them.

    >>> import numpy
    >>> from gradmgr import nn
    >>> nn.Flatten()(numpy.zeros((2, 3, 4))).shape
    (2, 12)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = integer(start_dim, "start_dim", "Flatten")
        self.end_dim = integer(end_dim, "end_dim", "Flatten")

    def forward(self, x: Any) -> Any:
        """(..., a, ..., b, ...) to (..., a * ... * b, ...)."""
        x = one_array(x)
        shape, ndim = x.shape, x.ndim
        first, last = (dim + ndim if dim < 0 else dim for dim in (self.start_dim, self.end_dim))
        if not (0 <= first <= last < ndim):
            raise errors.ShapeError(
                f"Flatten of axes {self.start_dim} to {self.end_dim} needs them in this order; found shape {shape}"
            )
        return reshape(x, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def extra_repr(self) -> str:
        """Show settings."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Dropout(Module):
    """In training, set elements to 0 with probability p and divide the others by 1 - p. Srivastava et al., 2014.

    Args:
        p: the probability, from 0 to 1.
        inplace: there for torch's sake; must be False.
        rng: a Generator to draw from, kept as `rng`; by default one with fresh entropy. `gradmgr.checkpoint` finds
            it there and draws the same mask again.

    Raises:
        ValueError: p is not from 0 to 1.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Dropout(0.5, rng=np.random.default_rng(0))
    >>> sorted(set(layer(np.ones(100)).tolist())), layer.eval()(np.ones(2))
    ([0.0, 2.0], array([1., 1.]))
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, rng: Rng = None) -> None:
        super().__init__()
        _check_inplace(inplace, "Dropout")
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: p must be from 0 to 1; found {p}")
        self.p = p
        self.rng = generator(rng, "Dropout")

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.dropout(x, self.p, self.training, rng=self.rng)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"p={self.p}"


# ---------------------------------------------------------------- pooling


class _MaxPool(Module):
    """What MaxPool1d and MaxPool2d have in common: all but the function."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def _windows(self) -> dict[str, Any]:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        """Show settings."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest of each window over the last axis of (N, C, L) or (C, L); arguments as of MaxPool2d."""

    def forward(self, x: Any) -> Any:
        """(N, C, L) to (N, C, L')."""
        return functional.max_pool1d(x, **self._windows())


class MaxPool2d(_MaxPool):
    """The largest of each window over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        kernel_size: height and width of the window; one number is both, here and below.
        stride: steps of the window; by default its size.
        padding: how much of -inf to add on each side.
        dilation: distances between the elements of the window.
        return_indices: whether to give, too, where in H x W each was found.
        ceil_mode: whether windows may reach over the end.
    """

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) to (N, C, H', W')."""
        return functional.max_pool2d(x, **self._windows())


class AvgPool1d(Module):
    """The mean of each window over the last axis of (N, C, L) or (C, L); arguments as of AvgPool2d."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, x: Any) -> Any:
        """(N, C, L) to (N, C, L')."""
        return functional.avg_pool1d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )

    def extra_repr(self) -> str:
        """Show settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        kernel_size: height and width of the window; one number is both, here and below.
        stride: steps of the window; by default its size.
        padding: how many zeros to add on each side.
        ceil_mode: whether windows may reach over the end.
        count_include_pad: whether those zeros count.
        divisor_override: what to divide by instead of the number of elements.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) to (N, C, H', W')."""
        return functional.avg_pool2d(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        """Show settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """The means of so many windows as are asked for, over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        output_size: rows and columns of windows; one number is both, None in a pair keeps the argument's.
    """

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """(N, C, H, W) to (N, C, *output_size)."""
        return functional.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"output_size={self.output_size}"


# ---------------------------------------------------------------- activations


def _check_inplace(inplace: bool, module: str) -> None:
    """Torch's programs say it often, and some rely on what it does to the argument, so it is not ignored."""
    if inplace:
        raise ValueError(
            f"{module}: inplace=True is not there, as no layer writes to what it is given; leave it out, and use what "
            "the layer returns"
        )


class ReLU(Module):
    """max(x, 0). `inplace` is there for torch's sake, and must be False, here and below."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _check_inplace(inplace, "ReLU")

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.relu(x)


class LeakyReLU(Module):
    """x where it is positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        _check_inplace(inplace, "LeakyReLU")
        self.negative_slope = negative_slope

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere. Clevert et al., 2015."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        _check_inplace(inplace, "ELU")
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"alpha={self.alpha}"


class GELU(Module):
    """x times the standard normal distribution's function of x; "tanh" approximates it. Hendrycks and Gimpel, 2016."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        check_word(approximate, ("none", "tanh"), "approximate", "GELU")
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x times the logistic function of x."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _check_inplace(inplace, "SiLU")

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), the logistic function."""

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.tanh(x)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above a threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Show settings."""
        return f"beta={self.beta}, threshold={self.threshold}"


class _AlongAxis(Module):
    """What layers have in common that work along one axis."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """Show settings."""
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """exp(x) divided by its sum along an axis."""

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.softmax(x, self.dim)


class LogSoftmax(_AlongAxis):
    """The logarithm of softmax along an axis."""

    def forward(self, x: Any) -> Any:
        """Any shape to the same."""
        return functional.log_softmax(x, self.dim)


# ---------------------------------------------------------------- losses


class _Loss(Module):
    """What losses have in common: how they reduce what they find for single elements."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        check_reduction(reduction, type(self).__name__)
        self.reduction = reduction


def _label(ignore_index: Any, asked: str) -> int:
    try:
        return integer(ignore_index, "ignore_index", asked)
    except TypeError as error:
        raise TypeError(f"{error}; a loss is made first and then called, as in {asked}()(input, target)") from None


class MSELoss(_Loss):
    """The squares of differences; their mean, "sum", or "none": each."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """Two of one shape to a number."""
        return functional.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """The absolute values of differences; their mean, "sum", or "none": each."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """Two of one shape to a number."""
        return functional.l1_loss(x, target, reduction=self.reduction)


class HuberLoss(_Loss):
    """Half the squares of differences up to delta, beyond it delta * (|difference| - delta / 2). Huber, 1964."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Any:
        """Two of one shape to a number."""
        return functional.huber_loss(x, target, reduction=self.reduction, delta=self.delta)


class SmoothL1Loss(_Loss):
    """Half the squares of differences over beta up to beta, beyond it |difference| - beta / 2."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Any:
        """Two of one shape to a number."""
        return functional.smooth_l1_loss(x, target, reduction=self.reduction, beta=self.beta)


class KLDivLoss(Module):
    """target * (log(target) - x), where x holds logarithms, and target too with log_target.

    Args:
        reduction: "mean" over all elements, "batchmean" over the first axis alone, "sum", or "none": each.
        log_target: whether targets are logarithms, too.
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        check_word(reduction, ("none", "mean", "sum", "batchmean"), "reduction", "KLDivLoss")
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, x: Any, target: Any) -> Any:
        """Two of one shape to a number."""
        return functional.kl_div(x, target, reduction=self.reduction, log_target=self.log_target)


class NLLLoss(_Loss):
    """Minus the log-probability of each label.

    Args:
        weight: (C,), of each class; a buffer.
        ignore_index: a label that does not count.
        reduction: "mean", weighted, "sum", or "none": each.
    """

    weight: Tensor | None

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.ignore_index = _label(ignore_index, type(self).__name__)
        self.register_buffer("weight", weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Log-probabilities (N, C, ...) and labels (N, ...) to a number."""
        return functional.nll_loss(x, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_Loss):
    """Minus the log-probability of each label, from scores before softmax.

    Args:
        weight: (C,), of each class; a buffer.
        ignore_index: a label that does not count.
        reduction: "mean", weighted, "sum", or "none": each.
        label_smoothing: how much of each label's probability is spread over all classes.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> print(f"{nn.CrossEntropyLoss()(np.log(np.array([[0.25, 0.75]])), np.array([1])):.4f}")
    0.2877
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.ignore_index = _label(ignore_index, type(self).__name__)
        self.register_buffer("weight", weight)
        self.label_smoothing = label_smoothing

    def forward(self, x: Any, target: Any) -> Any:
        """Scores (N, C, ...) and labels (N, ...), or probabilities (N, C, ...), to a number."""
        return functional.cross_entropy(
            x,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class BCELoss(_Loss):
    """Minus the log-probability of yes and no, from probabilities; BCEWithLogitsLoss loses less.

    Args:
        weight: of each element, broadcast; a buffer.
        reduction: the mean, "sum", or "none": each.
    """

    weight: Tensor | None

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Two arrays of probabilities of one shape to a number."""
        return functional.binary_cross_entropy(x, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Minus the log-probability of yes and no, from scores before the logistic function.

    Args:
        weight: of each element, broadcast; a buffer.
        reduction: the mean, "sum", or "none": each.
        pos_weight: of yes, broadcast; a buffer.
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Scores and probabilities of one shape to a number."""
        return functional.binary_cross_entropy_with_logits(
            x, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
