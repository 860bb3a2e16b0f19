"""Layers that normalise: BatchNorm, LayerNorm, GroupNorm, RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays.captured import is_captured
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor, raw, tensor
from gradmgr.nn import functional, init
from gradmgr.nn._functions.arguments import integer, length
from gradmgr.nn._functions.normalization import normalise_batch
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import constant, lengths


class BatchNorm(Module):
    """Normalise each channel by its mean and variance over the batch; afterwards scale and shift.

    In training it uses the statistics of the batch and updates running statistics, which it uses in evaluation. With
    `track_running_stats=False` it always uses those of the batch. Ioffe and Szegedy, 2015.

    Args:
        num_features: C, the number of channels.
        eps: added to the variance.
        momentum: the fraction of the running statistics that a batch replaces; None for the mean over all batches.
        affine: whether to scale and shift.
        track_running_stats: whether to keep running statistics.
        device: "cpu" or "cuda:0".
        dtype: the dtype of parameters and statistics; float32 by default.
        bias: whether to shift, where `affine`.

    Parameters: weight (C,) of ones, bias (C,) of zeros. Buffers: running_mean (C,), running_var (C,),
    num_batches_tracked ().

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.BatchNorm(3)
    >>> layer(np.ones((8, 3, 4, 4), np.float32)).shape, layer.num_batches_tracked.item()
    ((8, 3, 4, 4), 1)
    """

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    _ndims: tuple[int, ...] | None = None  # the permitted numbers of axes; None for 2 or more
    _shapes = "(N, C, ...)"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = length(num_features, "num_features", type(self).__name__)
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        shape = (self.num_features,)
        self.register_parameter("weight", constant(shape, 1, dtype, device) if affine else None)
        self.register_parameter("bias", constant(shape, 0, dtype, device) if affine and bias else None)
        kind = np.dtype(np.float32 if dtype is None else dtype)
        tracked = track_running_stats
        self.register_buffer("running_mean", tensor(np.zeros(shape, kind), device=device) if tracked else None)
        self.register_buffer("running_var", tensor(np.ones(shape, kind), device=device) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, np.int64, device) if tracked else None)

    def reset_running_stats(self) -> None:
        """Reset the running statistics to mean 0, variance 1 and 0 batches."""
        for buffer, value in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
            if buffer is not None:
                init.constant_(buffer, value)

    def reset_parameters(self) -> None:
        """Reset the running statistics, the weight and the bias to their initial values."""
        self.reset_running_stats()
        for param, value in ((self.weight, 1), (self.bias, 0)):
            if param is not None:
                init.constant_(param, value)

    def forward(self, x: Any) -> Tensor:
        """Normalise an input (N, C, ...); the result has the same shape."""
        self._check(x)
        by_batch = self.training or self.running_mean is None
        counted: Any = self.num_batches_tracked if self.training else None
        momentum = self.momentum
        if momentum is None:
            momentum = 0.0 if counted is None else 1 / (_number_in(counted) + 1)
        return self._normalise(  # type: ignore[no-any-return]  # x is Any
            x, self.running_mean, self.running_var, self.weight, self.bias, by_batch, momentum, self.eps, counted
        )

    def _normalise(self, x: Any, *settings: Any) -> Any:
        """Do as `functional.batch_norm`, and count the batch."""
        return normalise_batch(None, x, *settings)

    def _check(self, x: Any) -> None:
        ndim = np.ndim(x) if not hasattr(x, "ndim") else x.ndim
        if ndim < 2 or (self._ndims is not None and ndim not in self._ndims):
            raise errors.ShapeError(f"{type(self).__name__} takes {self._shapes}; found shape {np.shape(x)}")

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


def _number_in(t: Tensor) -> Any:
    """Return the number in a tensor; where a function is captured, as an array, since the next call finds another."""
    a = raw(t)
    return a if is_captured(a) else t.item()


class BatchNorm1d(BatchNorm):
    """BatchNorm of (N, C) or (N, C, L); other shapes are refused.

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.BatchNorm1d(2)(tensor([[1.0, 10.0], [3.0, 10.0]])).round(3)
    Tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    _ndims = (2, 3)
    _shapes = "(N, C) or (N, C, L)"


class BatchNorm2d(BatchNorm):
    """BatchNorm of (N, C, H, W); other shapes are refused.

    Raises:
        ValueError: `num_features` is negative; an input has another number of axes or of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.BatchNorm2d(3)
    >>> layer(np.ones((8, 3, 4, 4), np.float32)).shape, layer.running_mean
    ((8, 3, 4, 4), Tensor([0.1, 0.1, 0.1], dtype=float32))
    """

    _ndims = (4,)
    _shapes = "(N, C, H, W)"


class LayerNorm(Module):
    """Normalise over trailing axes by their mean and variance; afterwards scale and shift. Ba et al., 2016.

    Args:
        normalized_shape: lengths of the trailing axes.
        eps: added to the variance.
        elementwise_affine: whether to scale and shift.
        bias: whether to shift, where `elementwise_affine`.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.

    Parameters: weight, of ones, and bias, of zeros, of shape normalized_shape.

    Raises:
        ValueError: a length is negative; the last axes of an input have other lengths.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.LayerNorm(2, eps=0.0)(np.array([[1, 3], [10, 30]], np.float32)).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = lengths(normalized_shape, "normalized_shape", "LayerNorm")
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", constant(shape, 1, dtype, device) if elementwise_affine else None)
        self.register_parameter("bias", constant(shape, 0, dtype, device) if elementwise_affine and bias else None)

    def forward(self, x: Any) -> Tensor:
        """Normalise an input (..., *normalized_shape); the result has the same shape."""
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]  # x is Any

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalise groups of channels by their mean and variance; afterwards scale and shift. Wu and He, 2018.

    Args:
        num_groups: the number of groups into which channels are divided.
        num_channels: C, the number of channels.
        eps: added to the variance.
        affine: whether to scale and shift.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        bias: whether to shift, where `affine`.

    Parameters: weight (C,) of ones, bias (C,) of zeros.

    Raises:
        ValueError: `num_groups` does not divide `num_channels`; an input has another number of channels.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.GroupNorm(num_groups=2, num_channels=4)(tensor([[1.0, 3.0, 10.0, 30.0]])).round(3)
    Tensor([[-1.,  1., -1.,  1.]])
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_groups = integer(num_groups, "num_groups", "GroupNorm")
        self.num_channels = length(num_channels, "num_channels", "GroupNorm")
        if self.num_groups < 1 or self.num_channels % self.num_groups:
            raise ValueError(f"GroupNorm: num_groups must divide num_channels {num_channels}; found {num_groups}")
        self.eps = eps
        self.affine = affine
        shape = (self.num_channels,)
        self.register_parameter("weight", constant(shape, 1, dtype, device) if affine else None)
        self.register_parameter("bias", constant(shape, 0, dtype, device) if affine and bias else None)

    def forward(self, x: Any) -> Tensor:
        """Normalise an input (N, C, ...); the result has the same shape."""
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]  # x is Any

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class RMSNorm(Module):
    """Divide by the root of the mean square over trailing axes; afterwards scale. Zhang and Sennrich, 2019.

    Args:
        normalized_shape: lengths of the trailing axes.
        eps: added to the mean square; None for the spacing of the dtype's numbers at 1.
        elementwise_affine: whether to scale.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.

    Parameters: weight, of ones, of shape normalized_shape.

    Raises:
        ValueError: a length is negative; the last axes of an input have other lengths.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.RMSNorm(2, eps=0.0)(np.array([[1, 7], [2, 14]], np.float32)).numpy().round(3)
    array([[0.2, 1.4],
           [0.2, 1.4]], dtype=float32)
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = lengths(normalized_shape, "normalized_shape", "RMSNorm")
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", constant(shape, 1, dtype, device) if elementwise_affine else None)

    def forward(self, x: Any) -> Tensor:
        """Normalise an input (..., *normalized_shape); the result has the same shape."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)  # type: ignore[no-any-return]  # x is Any

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
