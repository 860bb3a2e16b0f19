"""Convolutions and their transposes."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_word, integer, length, pair, single
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Rng, Size, draw_by_fan_in, empty_parameter
from gradmgr.ops.pad import pad

# numpy.pad's names for torch's.
_PADDING_MODES = MappingProxyType({"reflect": "reflect", "replicate": "edge", "circular": "wrap"})


class _Convolution(Module):
    """The base class of convolutions over any number of axes."""

    weight: Parameter
    bias: Parameter | None
    _as_tuple: Callable[[Any, str, str], tuple[int, ...]]  # reads a size: one number, or a number for each axis

    def __init__(
        self,
        channels: tuple[int, int],
        window: tuple[Size, Size, Size],
        groups: int,
        bias: bool,
        padding_mode: str,
        target: tuple[Any, str | None],
        *,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        asked = type(self).__name__
        self.in_channels = length(channels[0], "in_channels", asked)
        self.out_channels = length(channels[1], "out_channels", asked)
        self.groups = integer(groups, "groups", asked)
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(
                f"{asked}: groups must divide in_channels {self.in_channels} and out_channels {self.out_channels}; "
                f"found {groups}"
            )
        known = ("zeros",) if transposed else ("zeros", *_PADDING_MODES)
        check_word(padding_mode, known, "padding_mode", asked)
        self.padding_mode = padding_mode
        kernel_size, stride, dilation = window
        self.kernel_size = self._as_tuple(kernel_size, "kernel_size", asked)
        self.stride = self._as_tuple(stride, "stride", asked)
        self.dilation = self._as_tuple(dilation, "dilation", asked)
        first, second = self.out_channels, self.in_channels
        if transposed:
            first, second = second, first
        dtype, device = target
        self.weight = empty_parameter((first, second // self.groups, *self.kernel_size), dtype, device)
        self.register_parameter("bias", empty_parameter((self.out_channels,), dtype, device) if bias else None)

    def reset_parameters(self, *, rng: Rng = None) -> None:
        """Draw new values for the parameters."""
        draw_by_fan_in(self.weight, self.bias, rng)

    def _read_padding(self, padding: Any) -> Any:
        if not isinstance(padding, str):
            return self._as_tuple(padding, "padding", type(self).__name__)
        check_word(padding, ("same", "valid"), "padding", type(self).__name__)
        if padding == "same" and any(step != 1 for step in self.stride):
            raise ValueError(f"{type(self).__name__}: padding='same' needs stride 1; found {self.stride}")
        return padding

    def _pad_input(self, x: Any, padding: Any) -> tuple[Any, Any]:
        """Return x with any padding other than zeros, and the padding that the convolution is still to add."""
        if self.padding_mode == "zeros" or padding == "valid":
            return x, padding
        if padding == "same":
            whole = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            widths = [(n // 2, n - n // 2) for n in whole]
        else:
            widths = [(n, n) for n in padding]
        free = [(0, 0)] * (x.ndim - len(widths))
        return pad(x, [*free, *widths], mode=_PADDING_MODES[self.padding_mode]), (0,) * len(widths)

    def _shown_settings(self, padding: Any, output_padding: tuple[int, ...] | None = None) -> str:
        ones, zeros = (1,) * len(self.kernel_size), (0,) * len(self.kernel_size)
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        parts += [f"padding={padding!r}"] if padding != zeros else []
        parts += [f"dilation={self.dilation}"] if self.dilation != ones else []
        parts += [f"output_padding={output_padding}"] if output_padding not in (None, zeros) else []
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        parts += [f"padding_mode={self.padding_mode}"] if self.padding_mode != "zeros" else []
        return ", ".join(parts)


class PlainConvolution(_Convolution):
    """The base class of Conv1d, Conv2d and Conv3d, which differ in how many axes a window has."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: Rng = None,
    ) -> None:
        window = (kernel_size, stride, dilation)
        super().__init__((in_channels, out_channels), window, groups, bias, padding_mode, (dtype, device))
        self.padding = self._read_padding(padding)
        self.reset_parameters(rng=rng)

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        return self._shown_settings(self.padding)


class Conv1d(PlainConvolution):
    """Convolution, as cross-correlation, of (N, C_in, L) or (C_in, L) with windows over the last axis.

    Args:
        in_channels: C_in.
        out_channels: C_out.
        kernel_size: length of the window.
        stride: step of the window.
        padding: how much to add at both ends; "valid" for none, "same" to keep L.
        dilation: distance between the elements of the window.
        groups: the number of groups into which channels are divided; groups do not mix.
        bias: whether to add a bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: a Generator to draw from, uniformly from +-1 / sqrt(C_in / groups * kernel_size).

    Parameters: weight (C_out, C_in / groups, kernel_size), bias (C_out,).

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Conv1d(3, 8, 5, padding="same", rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 3, 100), np.float32)).shape
    (2, 8, 100)
    """

    _as_tuple = staticmethod(single)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, L) to (N, C_out, L')."""
        x, padding = self._pad_input(x, self.padding)
        return functional.conv1d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]  # x is Any


class Conv2d(PlainConvolution):
    """Convolution, as cross-correlation, of (N, C_in, H, W) or (C_in, H, W) with windows over the last two axes.

    Args:
        in_channels: C_in.
        out_channels: C_out.
        kernel_size: height and width of the window; as for all sizes here, one number stands for both.
        stride: steps of the window.
        padding: how much to add on each side; "valid" for none, "same" to keep H and W.
        dilation: distances between the elements of the window.
        groups: the number of groups into which channels are divided; groups do not mix.
        bias: whether to add a bias.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: a Generator to draw from, uniformly from +-1 / sqrt(C_in / groups * height * width).

    Parameters: weight (C_out, C_in / groups, *kernel_size), bias (C_out,).

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Conv2d(1, 4, 3, padding=1, rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 1, 8, 8), np.float32)).shape
    (2, 4, 8, 8)
    """

    _as_tuple = staticmethod(pair)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, H, W) to (N, C_out, H', W')."""
        x, padding = self._pad_input(x, self.padding)
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]  # x is Any


class TransposedConvolution(_Convolution):
    """The base class of the transposed convolutions, which differ in how many axes a window has."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: Rng = None,
    ) -> None:
        window, target = (kernel_size, stride, dilation), (dtype, device)
        super().__init__((in_channels, out_channels), window, groups, bias, padding_mode, target, transposed=True)
        self.padding = self._as_tuple(padding, "padding", type(self).__name__)
        self.output_padding = self._as_tuple(output_padding, "output_padding", type(self).__name__)
        self.reset_parameters(rng=rng)

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        return self._shown_settings(self.padding, self.output_padding)


class ConvTranspose1d(TransposedConvolution):
    """The transpose of Conv1d; arguments and parameters are those of ConvTranspose2d, of one axis.

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.ConvTranspose1d(8, 3, 2, stride=2, rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 8, 50), np.float32)).shape
    (2, 3, 100)
    """

    _as_tuple = staticmethod(single)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, L) to (N, C_out, L')."""
        return functional.conv_transpose1d(  # type: ignore[no-any-return]  # x is Any
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class ConvTranspose2d(TransposedConvolution):
    """The transpose of Conv2d as a linear map: from the shape of its result to that of its input.

    Args:
        in_channels: C_in.
        out_channels: C_out.
        kernel_size: height and width of the window.
        stride: steps of the window, by which the result is larger.
        padding: how much the convolution would pad, by which the result is smaller on each side.
        output_padding: additional rows and columns at the end of the result, fewer than stride or dilation.
        groups: the number of groups into which channels are divided; groups do not mix.
        bias: whether to add a bias.
        dilation: distances between the elements of the window.
        padding_mode: "zeros".
        device: "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: a Generator to draw from, uniformly from +-1 / sqrt(C_out / groups * height * width).

    Parameters: weight (C_in, C_out / groups, *kernel_size), bias (C_out,).

    Raises:
        ValueError: `groups` does not divide the channels; an input has another number of axes or of channels.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.ConvTranspose2d(8, 3, 2, stride=2, rng=np.random.default_rng(0))
    >>> layer(np.zeros((2, 8, 14, 14), np.float32)).shape
    (2, 3, 28, 28)
    """

    _as_tuple = staticmethod(pair)

    def forward(self, x: Any) -> Tensor:
        """Map an input (N, C_in, H, W) to (N, C_out, H', W')."""
        return functional.conv_transpose2d(  # type: ignore[no-any-return]  # x is Any
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )
