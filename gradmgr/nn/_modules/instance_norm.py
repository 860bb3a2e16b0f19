"""InstanceNorm1d, InstanceNorm2d, InstanceNorm3d."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import one_array
from gradmgr.nn._modules.normalization import BatchNorm
from gradmgr.ops.shape import expand_dims


class _InstanceNorm(BatchNorm):
    """The base class of the instance norms, which differ in how many axes follow the channels."""

    _axes: int

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Any) -> Tensor:
        """Normalise an input (N, C, ...), or without the batch; the result has the same shape."""
        x = one_array(x)
        has_batch = x.ndim == self._axes + 2
        if not (has_batch or x.ndim == self._axes + 1) or x.shape[-self._axes - 1] != self.num_features:
            raise errors.ShapeError(
                f"{type(self).__name__} takes (N, {self.num_features}, ...) with {self._axes} further axes, or without "
                f"the batch; found shape {np.shape(x)}"
            )
        by_input = self.training or self.running_mean is None
        y = functional.instance_norm(
            x if has_batch else expand_dims(x, 0),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_input,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return y if has_batch else y[0]  # type: ignore[no-any-return]  # x is Any


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each example of (N, C, L) or (C, L); arguments as of InstanceNorm2d.

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.InstanceNorm1d(2)(tensor([[1.0, 3.0], [10.0, 10.0]])).round(3)
    Tensor([[-1.,  1.],
            [ 0.,  0.]])
    """

    _axes = 1


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each example of (N, C, H, W) or (C, H, W) by its mean and variance.

    Ulyanov, Vedaldi, Lempitsky: Instance Normalization (2017).

    Args:
        num_features: C, the number of channels.
        eps: added to the variance.
        momentum: the fraction of the running statistics that a batch replaces.
        affine: whether to scale and shift.
        track_running_stats: whether to keep running statistics, and use them in evaluation.
        device: "cpu" or "cuda:0".
        dtype: the dtype of parameters and statistics; float32 by default.

    Parameters, with `affine`: weight (C,) of ones, bias (C,) of zeros. Buffers, with `track_running_stats`:
    running_mean (C,), running_var (C,), and num_batches_tracked (), which stays 0, as in torch.

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.InstanceNorm2d(3)(np.ones((8, 3, 4, 4), np.float32)).shape
    (8, 3, 4, 4)
    """

    _axes = 2


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of each example of (N, C, D, H, W) or (C, D, H, W); arguments as of InstanceNorm2d.

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.InstanceNorm3d(3)(np.ones((8, 3, 4, 4, 4), np.float32)).shape
    (8, 3, 4, 4, 4)
    """

    _axes = 3
