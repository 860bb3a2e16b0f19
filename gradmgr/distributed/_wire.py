"""What is transferred for an array: whether it can be, in which dtype, and in what chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr.ops.convert import is_half

OPS = ("sum", "mean", "min", "max", "prod")

# One call of MPI transfers at most so many bytes: counts are 32-bit integers in many of them.
MAX_BYTES = 1 << 30


def described(array: Any, operation: str, more: str = "") -> tuple[str, str, tuple[int, ...], Any, str]:
    """Return what must be the same on every rank of an operation on an array."""
    return (operation, libraries.namespace(array).__name__, array.shape, array.dtype, more)


def check_plain(array: Any, operation: str, *, written: bool) -> None:
    """Raise for an array that cannot be transferred as it is laid out in memory."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{operation} carries contiguous arrays; found strides {array.strides} and shape {array.shape}"
        )
    if written and not memory.is_writeable(array):
        raise ValueError(f"{operation} writes to its array; found one that is read-only")
    if array.dtype.kind not in "biufc" and not libraries.is_differentiable(array.dtype):
        raise errors.DtypeError(f"{operation} carries numbers; found dtype {array.dtype}")


def check_op(op: str, dtype: Any, operation: str = "all_reduce") -> None:
    """Raise for a reduction that is not known, or has no meaning for this dtype."""
    if op not in OPS:
        raise ValueError(f"{operation} knows the ops {', '.join(map(repr, OPS))}; found {op!r}")
    if op == "mean" and not libraries.is_differentiable(dtype) and dtype.kind not in "fc":
        raise errors.DtypeError(f"{operation}: a mean of {dtype} would be rounded; convert to a floating dtype first")
    if op in ("min", "max") and dtype.kind == "c":
        raise errors.DtypeError(f"{operation}: complex numbers have no order, so no {op}; reduce a real part of them")
    if op == "sum" and dtype.kind == "b":
        raise errors.DtypeError(f"{operation}: a sum of bool is a count; convert to an integer dtype, or use op='max'")


def to_wire(array: Any, source: Any) -> tuple[Any, Any]:
    """Return what is reduced for an array, and from what: both flat, in a dtype that MPI adds up well."""
    if is_half(array.dtype):
        wire = source.astype(np.float32).reshape(-1)
        return wire, wire
    flat = array.reshape(-1)
    if array.dtype.kind == "b":
        flat = flat.view(np.uint8)
    return flat, flat if source is array else source.reshape(-1).view(flat.dtype)


def from_wire(array: Any, wire: Any, op: str, size: int) -> None:
    """Finish a reduction: the mean, and back to the array's own dtype."""
    if op == "mean":
        if size & (size - 1) or wire.dtype.kind == "c":
            wire /= size
        else:  # by a power of two: the same bits, in half the time
            wire *= 1 / size
    if wire.dtype != array.dtype and array.dtype.kind != "b":
        array[...] = wire.reshape(array.shape)


def as_bytes(array: Any) -> Any:
    """Return the memory of a contiguous array as bytes: so dtypes that MPI does not know can be transferred."""
    return array.reshape(-1).view(np.uint8)


def chunks(flat: Any) -> list[Any]:
    """Return a flat array in chunks of the size that one call takes; the same object where it is one."""
    if flat.nbytes <= MAX_BYTES:
        return [flat] if flat.size else []
    step = MAX_BYTES // flat.itemsize
    return [flat[k : k + step] for k in range(0, flat.size, step)]
