"""Max and average pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr.nn import functional
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Size

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class MaxPool(Module):
    """The base class of MaxPool1d, MaxPool2d and MaxPool3d, which differ in the function they call."""

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
        """Return the settings, for `repr`."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(MaxPool):
    """The largest of each window over the last axis of (N, C, L) or (C, L); arguments as of MaxPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.MaxPool1d(2)(tensor([[1.0, 3.0, 2.0, 0.0]]))
    Tensor([[3., 2.]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, L) to (N, C, L')."""
        return functional.max_pool1d(x, **self._windows())


class MaxPool2d(MaxPool):
    """The largest of each window over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        kernel_size: height and width of the window; as for all sizes here, one number stands for both.
        stride: steps of the window; by default its size.
        padding: how many positions of -inf to add on each side.
        dilation: distances between the elements of the window.
        return_indices: whether to return the position of each result in H x W, too.
        ceil_mode: whether windows may reach over the end.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.MaxPool2d(2)(np.arange(16.0).reshape(1, 4, 4))
    Tensor([[[ 5.,  7.],
             [13., 15.]]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, H, W) to (N, C, H', W')."""
        return functional.max_pool2d(x, **self._windows())


class _AvgPool(ArrayModule):
    """The base class of AvgPool1d and AvgPool2d."""

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

    def _windows(self) -> dict[str, Any]:
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window over the last axis of (N, C, L) or (C, L); arguments as of AvgPool2d.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> from gradmgr import nn, tensor
    >>> nn.AvgPool1d(2)(tensor([[1.0, 3.0, 2.0, 0.0]]))
    Tensor([[2., 1.]])
    """

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, L) to (N, C, L')."""
        return functional.avg_pool1d(x, **self._windows())


class AvgPool2d(_AvgPool):
    """The mean of each window over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        kernel_size: height and width of the window; as for all sizes here, one number stands for both.
        stride: steps of the window; by default its size.
        padding: how many zeros to add on each side.
        ceil_mode: whether windows may reach over the end.
        count_include_pad: whether those zeros count as elements.
        divisor_override: the divisor, instead of the number of elements.

    Raises:
        ValueError: in a call, the input has another number of axes, or the window does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AvgPool2d(2)(np.arange(16.0).reshape(1, 4, 4))
    Tensor([[[ 2.5,  4.5],
             [10.5, 12.5]]])
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
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, H, W) to (N, C, H', W')."""
        return functional.avg_pool2d(x, **self._windows(), divisor_override=self.divisor_override)


class AdaptiveAvgPool2d(ArrayModule):
    """The means of a given number of windows over the last two axes of (N, C, H, W) or (C, H, W).

    Args:
        output_size: rows and columns of windows; one number is both, None in a pair keeps the input's number.

    Raises:
        ValueError: in a call, the input has another number of axes, or a number of windows is not positive.
        TypeError: an input is not of real floating-point numbers.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.AdaptiveAvgPool2d((1, 2))(np.arange(16.0).reshape(1, 4, 4))
    Tensor([[[6.5, 8.5]]])
    """

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, H, W) to (N, C, *output_size)."""
        return functional.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"output_size={self.output_size}"
