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


class AvgPool1d(ArrayModule):
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


class AvgPool2d(ArrayModule):
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


class AdaptiveAvgPool2d(ArrayModule):
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
