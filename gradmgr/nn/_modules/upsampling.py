"""Upsample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr.nn import functional
from gradmgr.nn._modules.module import Module

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class Upsample(ArrayModule):
    """Resize lines, planes or volumes by `functional.interpolate`.

    Args:
        size: the new lengths, an integer for all axes or one for each.
        scale_factor: instead of size, the factor of the lengths, a number or one for each axis.
        mode: "nearest", "linear", "bilinear", "bicubic" or "trilinear".
        align_corners: whether the first and last numbers of input and result coincide.
        recompute_scale_factor: whether positions are computed from the new lengths.

    Raises:
        ValueError: in a call, neither `size` nor `scale_factor` is set, or `mode` is not one for this input.
        TypeError: an input is not of floating-point numbers.

    >>> import numpy
    >>> from gradmgr import nn
    >>> nn.Upsample(scale_factor=2, mode="bilinear")(numpy.zeros((1, 3, 4, 5))).shape
    (1, 3, 8, 10)
    """

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Any) -> Any:
        """Map an input (N, C, ...) to the same with other lengths."""
        return functional.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        given = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{given}, mode={self.mode!r}"
