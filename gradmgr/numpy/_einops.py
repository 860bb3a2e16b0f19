"""einops on Tensors.

einops looks for a backend among the subclasses of a class of its own, so one can exist only once
einops is imported, and gradmgr imports no optional library by itself. Hence one call by the user.
"""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr._engine.tensor import Tensor


class _Backend:
    """What einops asks of a library beyond the methods of its arrays."""

    framework_name = "gradmgr"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return gnp.array(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return gnp.arange(start, stop)

    def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
        return gnp.stack(tensors)

    def tile(self, x: Tensor, repeats: tuple[int, ...]) -> Any:
        return gnp.tile(x, repeats)

    def concat(self, tensors: list[Any], axis: int) -> Any:
        return gnp.concatenate(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.name in ("float16", "float32", "float64", "bfloat16")

    def add_axis(self, x: Tensor, new_position: int) -> Any:
        return gnp.expand_dims(x, new_position)

    def einsum(self, pattern: str, *x: Any) -> Any:
        return gnp.einsum(pattern, *x)


def register_einops() -> None:
    """Let `einops.rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack` take Tensors, differentiably.

    Calling it once is enough; further calls do nothing. The functions of `einops.array_api` take Tensors without it.

    Raises:
        ImportError: einops is not installed.

    >>> import einops, gradmgr
    >>> gradmgr.register_einops()
    >>> einops.rearrange(gradmgr.tensor([[1, 2], [3, 4]]), "i j -> j i").tolist()
    [[1, 3], [2, 4]]
    """
    try:
        from einops._backends import AbstractBackend, get_backend
    except ImportError as error:
        raise ImportError("register_einops needs einops, which is not installed: pip install einops") from error
    asked = gnp.zeros(1)
    try:
        get_backend(asked)
    except RuntimeError:  # einops does not know the type yet; it looks again, and keeps what it finds
        backend = type("GradmgrBackend", (_Backend, AbstractBackend), {})
        get_backend(asked)
        del backend
