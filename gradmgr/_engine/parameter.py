"""Parameter: a Tensor that modules register."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor


class Parameter(Tensor):
    """A Tensor that a Module registers under the name of the attribute it is assigned to.

    It holds a copy of `data`, also where that is a Tensor or a Parameter: to share one parameter between
    modules, assign the same object to both. It stays a Parameter through `+=`, `p[...] = v`, `copy.deepcopy` and
    pickle; what is computed from it is a Tensor. It receives gradients where a manager has it attached, as any Tensor.

    Args:
        data: an array, a Tensor, nested lists or a number.
        dtype: NumPy dtype; by default that of `data`.
        device: "cpu" or "cuda:0"; by default where `data` lives.
        requires_grad: exists for programs written for torch; must be True.

    Raises:
        TypeError: `requires_grad` is False.
        DtypeError: the dtype can carry no gradient, as integers cannot; `Module.register_buffer` keeps such tensors.

    >>> from gradmgr import nn
    >>> nn.Parameter([1.0, 2.0])
    Parameter([1., 2.])
    """

    __slots__ = ()

    def __init__(self, data: Any, dtype: Any = None, device: str | None = None, *, requires_grad: bool = True) -> None:
        super().__init__(data, dtype, device)
        if not requires_grad:
            raise TypeError(
                "Parameter: requires_grad=False is not supported; a frozen parameter is one that no manager has "
                "attached: leave it out, and attach the others only"
            )
        if not libraries.is_differentiable(self.dtype):
            raise errors.DtypeError(
                f"a Parameter of shape {self.shape} and dtype {self.dtype} could receive no gradient; pass "
                "dtype='float32', or keep what is not learned with register_buffer"
            )

    def __repr__(self) -> str:
        return "Parameter" + super().__repr__().removeprefix("Tensor").replace("\n", "\n   ")

    def __reduce__(self) -> tuple[Any, ...]:
        _, values_and_device = super().__reduce__()
        return _restored, values_and_device

    def _like(self, array: Any) -> Parameter:
        return parameter_around(array)


def parameter_around(array: Any) -> Parameter:
    """Return a Parameter around this very array."""
    made = object.__new__(Parameter)
    made._array = array
    made._rec = None
    made._view_of = ()
    return made


def _restored(values: np.ndarray[Any, Any], device: str) -> Parameter:
    return parameter_around(libraries.to_device(values, device))
