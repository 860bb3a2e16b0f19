"""Functions of other libraries inside a gradmgr program, and the other way round, differentiable throughout.

`torch_function` and `jax_function` make a function of torch's tensors or JAX's arrays of one that is written with
gradmgr; `from_torch` and `from_jax` make a function of gradmgr's Tensors of one that is written with torch or JAX.
The other library differentiates its part, gradmgr its own, to any order.
"""

from __future__ import annotations

from typing import NoReturn

from gradmgr import errors
from gradmgr.interop._jax import from_jax, jax_function
from gradmgr.interop._torch import from_torch, torch_function

__all__ = ["from_jax", "from_torch", "jax_function", "torch_function"]


def __getattr__(name: str) -> NoReturn:
    raise errors.lacking(name, "gradmgr.interop")
