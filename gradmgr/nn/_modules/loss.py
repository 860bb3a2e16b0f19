"""Losses as modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_reduction, check_word, integer
from gradmgr.nn._modules.module import Module

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import LossModule
else:
    LossModule = Module


class _Loss(LossModule):
    """The base class of losses: it holds how the losses of elements are reduced."""

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
    """The squares of differences: their mean by default, their sum with "sum", each of them with "none".

    Raises:
        ValueError: `reduction` is unknown; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.MSELoss()(tensor([1.0, 5.0]), tensor([2.0, 2.0]))
    Tensor(5.)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of an input and a target of the same shape."""
        return functional.mse_loss(x, target, reduction=self.reduction)


class L1Loss(_Loss):
    """The absolute values of differences: their mean by default, their sum with "sum", each of them with "none".

    Raises:
        ValueError: `reduction` is unknown; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.L1Loss(reduction="sum")(tensor([1.0, 5.0]), tensor([2.0, 2.0]))
    Tensor(4.)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of an input and a target of the same shape."""
        return functional.l1_loss(x, target, reduction=self.reduction)


class HuberLoss(_Loss):
    """Half the squares of differences up to delta, beyond it delta * (|difference| - delta / 2). Huber, 1964.

    Raises:
        ValueError: `reduction` is unknown; `delta` is not positive; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.HuberLoss(reduction="none", delta=2.0)(tensor([1.0, 4.0]), tensor([0.0, 0.0]))
    Tensor([0.5, 6. ])
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of an input and a target of the same shape."""
        return functional.huber_loss(x, target, reduction=self.reduction, delta=self.delta)


class SmoothL1Loss(_Loss):
    """Half the squares of differences over beta up to beta, beyond it |difference| - beta / 2.

    Raises:
        ValueError: `reduction` is unknown; `beta` is negative; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.SmoothL1Loss(reduction="none", beta=2.0)(tensor([1.0, 4.0]), tensor([0.0, 0.0]))
    Tensor([0.25, 3.  ])
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of an input and a target of the same shape."""
        return functional.smooth_l1_loss(x, target, reduction=self.reduction, beta=self.beta)


class KLDivLoss(LossModule):
    """target * (log(target) - x), where x holds logarithms, and target too with log_target.

    Args:
        reduction: "mean" over all elements, "batchmean", the sum over the length of the first axis, "sum" or "none".
        log_target: whether targets are logarithms.

    Raises:
        ValueError: `reduction` is unknown; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> nn.KLDivLoss(reduction="sum")(np.log(tensor([0.5, 0.5])), tensor([1.0, 0.0])) / np.log(2.0)
    Tensor(1.)
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        check_word(reduction, ("none", "mean", "sum", "batchmean"), "reduction", "KLDivLoss")
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of an input and a target of the same shape."""
        return functional.kl_div(x, target, reduction=self.reduction, log_target=self.log_target)


class NLLLoss(_Loss):
    """Minus the log-probability of each label.

    Args:
        weight: the weight of each class, (C,); a buffer.
        ignore_index: the label of rows that do not count.
        reduction: the weighted "mean", "sum" or "none".

    Raises:
        ValueError: `reduction` is unknown; the shape of the target does not fit that of the input.
        TypeError: an input is not of real floating-point numbers, or labels are not of integers.
        IndexError: a label is neither the number of a class nor `ignore_index`.

    >>> from gradmgr import nn, tensor
    >>> log_probabilities = tensor([[-1.0, -2.0], [-3.0, -4.0]])
    >>> nn.NLLLoss()(log_probabilities, tensor([0, 1]))  # the mean of 1 and 4
    Tensor(2.5)
    """

    weight: Tensor | None

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.ignore_index = _label(ignore_index, type(self).__name__)
        self.register_buffer("weight", weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of log-probabilities (N, C, ...) and labels (N, ...)."""
        return functional.nll_loss(x, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_Loss):
    """Minus the log-probability of each label, from scores before softmax.

    Args:
        weight: the weight of each class, (C,); a buffer.
        ignore_index: the label of rows that do not count.
        reduction: the weighted "mean", "sum" or "none".
        label_smoothing: the fraction of each label's probability that is distributed over all classes.

    Raises:
        ValueError: `reduction` is unknown; the shape of the target does not fit that of the input.
        TypeError: an input is not of real floating-point numbers, or labels are not of integers.
        IndexError: a label is neither the number of a class nor `ignore_index`.

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
        """Return the loss of scores (N, C, ...) and labels (N, ...) or probabilities (N, C, ...)."""
        return functional.cross_entropy(
            x,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class BCELoss(_Loss):
    """Minus the log-probability of binary labels, from probabilities; BCEWithLogitsLoss is more exact.

    Args:
        weight: the weight of each element, which is broadcast; a buffer.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: `reduction` is unknown; input and target differ in shape; an input is not from 0 to 1.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> np.exp(-nn.BCELoss(reduction="none")(tensor([0.5, 0.75]), tensor([1.0, 0.0])))
    Tensor([0.5 , 0.25])
    """

    weight: Tensor | None

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of two arrays of probabilities of the same shape."""
        return functional.binary_cross_entropy(x, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Minus the log-probability of binary labels, from scores before the logistic function.

    Args:
        weight: the weight of each element, which is broadcast; a buffer.
        reduction: "mean", "sum" or "none".
        pos_weight: the weight of positive labels, which is broadcast; a buffer.

    Raises:
        ValueError: `reduction` is unknown; input and target differ in shape.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn, tensor
    >>> np.exp(-nn.BCEWithLogitsLoss(reduction="none")(np.log(tensor([1.0, 3.0])), tensor([1.0, 0.0])))
    Tensor([0.5 , 0.25])
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Any:
        """Return the loss of scores and probabilities of the same shape."""
        return functional.binary_cross_entropy_with_logits(
            x, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
