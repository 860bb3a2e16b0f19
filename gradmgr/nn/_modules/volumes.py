"""Convolution and pooling of volumes, and pooling over a given number of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import triple
from gradmgr.nn._modules.convolution import PlainConvolution, TransposedConvolution
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class Conv3d(PlainConvolution):
    """Convolution, as cross-correlation, of (N, C_in, D, H, W) or (C_in, D, H, W); arguments as of Conv2d.

    Parameters: weight (C_out, C_in / groups, *kernel_size), bias (C_out,).

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Conv3d(1, 4, 3, padding=1, rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 1, 4, 8, 8), np.float32)).shape
    (2, 4, 4, 8, 8)
    """

    _as_tuple = staticmethod(triple)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, D, H, W) to (N, C_out, D', H', W')."""
        x, padding = self._pad_input(x, self.padding)
        return functional.conv3d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]  # x is Any


class ConvTranspose3d(TransposedConvolution):
    """The transpose of Conv3d; arguments and parameters are those of ConvTranspose2d, of three axes.

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.ConvTranspose3d(4, 1, 2, stride=2, rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 4, 3, 4, 5), np.float32)).shape
    (2, 1, 6, 8, 10)
    """

    _as_tuple = staticmethod(triple)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, D, H, W) to (N, C_out, D', H', W')."""
        return functional.conv_transpose3d(  # type: ignore[no-any-return]  # x is Any
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class MaxPool3d(MaxPool):
    """The largest of each window over the last three axes of (N, C, D, H, W); arguments as of MaxPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.MaxPool3d(2)(np.arange(8.0).reshape(1, 1, 2, 2, 2))
    Tensor([[[[[7.]]]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, D, H, W) to (N, C, D', H', W')."""
        return functional.max_pool3d(x, **self._windows())


class AvgPool3d(AvgPool2d):
    """The mean of each window over the last three axes of (N, C, D, H, W); arguments as of AvgPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AvgPool3d(2)(np.arange(8.0).reshape(1, 1, 2, 2, 2))
    Tensor([[[[[3.5]]]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, D, H, W) to (N, C, D', H', W')."""
        return functional.avg_pool3d(x, **self._windows(), divisor_override=self.divisor_override)


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """The means of `output_size` windows over the last axis of (N, C, L) or (C, L).

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.AdaptiveAvgPool1d(2)(tensor([[1.0, 3.0, 2.0, 0.0]]))
    Tensor([[2., 1.]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, L) to (N, C, output_size)."""
        return functional.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """The means of a given number of windows over the last three axes of (N, C, D, H, W) or (C, D, H, W).

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AdaptiveAvgPool3d(1)(np.arange(8.0).reshape(1, 2, 2, 2))
    Tensor([[[[3.5]]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, D, H, W) to (N, C, *output_size)."""
        return functional.adaptive_avg_pool3d(x, self.output_size)


class _AdaptiveMaxPool(Module):
    """The base class of the adaptive maxima, which differ in the function they call."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest numbers of `output_size` windows over the last axis; arguments as of AdaptiveMaxPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.AdaptiveMaxPool1d(2)(tensor([[1.0, 3.0, 2.0, 0.0]]))
    Tensor([[3., 2.]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, L) to (N, C, output_size)."""
        return functional.adaptive_max_pool1d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest numbers of a given number of windows over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        output_size: rows and columns of windows; one number is both, None in a pair keeps the input's number.
        return_indices: whether to return the position of each result in H x W, too.

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AdaptiveMaxPool2d((1, 2))(np.arange(16.0).reshape(1, 4, 4))
    Tensor([[[13., 15.]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, H, W) to (N, C, *output_size)."""
        return functional.adaptive_max_pool2d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest numbers of windows over the last three axes; arguments as of AdaptiveMaxPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AdaptiveMaxPool3d(1)(np.arange(8.0).reshape(1, 2, 2, 2))
    Tensor([[[[7.]]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, D, H, W) to (N, C, *output_size)."""
        return functional.adaptive_max_pool3d(x, self.output_size, self.return_indices)
