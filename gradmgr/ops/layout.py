"""Tensors with memory laid out as required: asanyarray, ascontiguousarray, require and others."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import asked
from gradmgr._engine.mutation import copied
from gradmgr._engine.tensor import Tensor, bare
from gradmgr.ops.create import asarray, device_for, in_memory_order, read_copy
from gradmgr.ops.naming import named
from gradmgr.ops.shape import reshape


def _at_least_one_axis(t: Tensor) -> Any:
    return t if t.ndim else reshape(t, (1,))


def ascontiguousarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return a Tensor in C order, of at least one axis, as `numpy.ascontiguousarray`; gradients flow through."""
    return _at_least_one_axis(in_memory_order(asarray(a, dtype, device_for(None, like)), "C"))


def asfortranarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    """Return a Tensor in Fortran order, of at least one axis, as `numpy.asfortranarray`; gradients flow through."""
    return _at_least_one_axis(in_memory_order(asarray(a, dtype, device_for(None, like)), "F"))


def _as_tensor(name: str) -> Callable[..., Tensor]:
    def function(
        a: Any,
        dtype: Any = None,
        order: str | None = None,
        *,
        device: str | None = None,
        copy: bool | None = None,
        like: Any = None,
    ) -> Tensor:
        copy = read_copy(copy)
        if name == "asanyarray":
            libraries.check_plain(a)
        t = asarray(a, dtype, device_for(device, like), copy=copy)
        made = in_memory_order(t, order)
        if copy is False and made is not t:
            raise ValueError(f"{name} with copy=False would need a copy for order {order!r}")
        return made

    return named(function, name, f"Return a Tensor as `gradmgr.asarray` does, by the arguments of `numpy.{name}`.")


asanyarray = _as_tensor("asanyarray")
numpy_asarray = _as_tensor("asarray")


def _are_finite(a: Any) -> bool:
    return bool(libraries.namespace(a).isfinite(a).all())


def asarray_chkfinite(a: Any, dtype: Any = None, order: str | None = None) -> Tensor:
    """Return a Tensor of finite values; gradients flow through.

    Raises:
        ValueError: there is an infinity or a NaN.
    """
    t = numpy_asarray(a, dtype, order)
    if t.dtype.kind not in "biu" and not asked(_are_finite, bare(t)):
        raise ValueError("asarray_chkfinite: array must not contain infs or NaNs")
    return t


# What NumPy calls each requirement.
_REQUIREMENTS = MappingProxyType(
    {
        **dict.fromkeys(("C", "C_CONTIGUOUS", "CONTIGUOUS"), "C"),
        **dict.fromkeys(("F", "F_CONTIGUOUS", "FORTRAN"), "F"),
        **dict.fromkeys(("A", "ALIGNED"), "A"),
        **dict.fromkeys(("W", "WRITEABLE"), "W"),
        **dict.fromkeys(("O", "OWNDATA"), "O"),
        **dict.fromkeys(("E", "ENSUREARRAY"), "E"),
    }
)


def require(a: Any, dtype: Any = None, requirements: Any = None, *, like: Any = None) -> Tensor:
    """Return a Tensor whose memory is as required, as `numpy.require`; gradients flow through.

    A Tensor can always be written to and is always aligned; "O" makes a copy where the memory
    belongs to another array.
    """
    libraries.check_plain(a)
    asked = {_REQUIREMENTS[word.upper()] for word in requirements or ()}
    if {"C", "F"} <= asked:
        raise ValueError('require: Cannot specify both "C" and "F" order')
    t = asarray(a, dtype, device_for(None, like))
    made = in_memory_order(t, "F" if "F" in asked else "C" if "C" in asked else None)
    aligned = getattr(made._array.flags, "aligned", True)
    return copied(made) if not aligned or ("O" in asked and not made._array.flags.owndata) else made
