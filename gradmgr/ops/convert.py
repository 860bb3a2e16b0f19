"""Changing what a tensor is: lifting arguments, casts, copies, devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.libraries import is_half as is_half
from gradmgr._engine.conversion import tracking
from gradmgr._engine.mutation import as_type, copied
from gradmgr._engine.op import Function, linear, zeros
from gradmgr._engine.tensor import Tensor, describe, raw, wrap

# NumPy's default for keywords such as `initial`, distinct from every value a user can pass.
NOT_GIVEN: Any = np._NoValue


def lift(a: Any) -> Any:
    """Return a Tensor or plain array for anything NumPy would take as one."""
    if a.__class__ is np.ndarray or isinstance(a, Tensor):
        return a
    if libraries.is_array(a):
        return libraries.as_array(a) if isinstance(a, np.ndarray) else a
    if holds_tensor(a):
        return from_nested(a)
    made = libraries.as_array(a)
    if made.dtype == object:
        raise no_array(a)
    return made


def no_array(a: Any) -> errors.DtypeError:
    """Make the error for an argument, such as None, that NumPy would make an array of objects of."""
    return errors.DtypeError(f"expected Tensors, arrays or numbers; found {_described(a)}")


def _described(a: Any) -> str:
    """Return what an object is of which NumPy makes an array of objects, and how one comes to pass it."""
    if a is None:
        return "None, which is what a function without a return statement gives"
    if hasattr(a, "named_parameters"):
        return f"the layer {type(a).__name__}: pass what it returns, as in layer(x), or its parameters, as layer.weight"
    return f"{type(a).__module__}.{type(a).__qualname__}, of which NumPy makes an array of objects"


def holds_tensor(a: Any) -> bool:
    """Tell whether nested lists and tuples hold a Tensor."""
    return isinstance(a, Tensor) or (isinstance(a, (list, tuple)) and any(holds_tensor(part) for part in a))


def is_plain(*values: Any) -> bool:
    """Tell whether no Tensor is among the values, nor in their lists."""
    return not any(holds_tensor(v) for v in values)


def as_tensor(a: Any) -> Tensor:
    """Lift to a Tensor, as functions with a Tensor among their arguments do with the others."""
    a = lift(a)
    return a if isinstance(a, Tensor) else wrap(a)


def lift_together(*values: Any) -> list[Any]:
    """Lift all but None; lists and numbers to the library of the first Tensor among the values."""
    lifted = [value if value is None or isinstance(value, Tensor) else lift(value) for value in values]
    xp: Any = np
    for t in lifted:
        if isinstance(t, Tensor):
            xp = libraries.namespace(t._array)
            break
    if xp is not np:
        for k, value in enumerate(values):
            given = libraries.is_array(value) and not isinstance(value, np.generic)
            if not (value is None or given or isinstance(lifted[k], Tensor)):
                lifted[k] = xp.asarray(lifted[k])
    return lifted


def cast_to(a: Any, dtype: Any) -> Any:
    """Cast to a dtype, recorded; return `a` itself where the dtype is None or that of `a`."""
    return a if dtype is None or a.dtype == np.dtype(dtype) else as_type(a, dtype)


def is_floating(dtype: Any) -> bool:
    """Tell whether a dtype is of real floating-point numbers, bfloat16 among them."""
    return bool(dtype.kind == "f" or dtype.name == "bfloat16")


def wide_dtype(dtype: Any) -> Any:
    """Return float32 for halves, each other dtype as it is."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def widen_half(x: Any) -> Any:
    """Return halves in float32, all else as it is."""
    return as_type(x, np.float32) if is_half(x.dtype) else x


def narrow_to(x: Any, dtype: Any) -> Any:
    """Return what was computed of halves in float32 in their dtype, where it may overflow, quietly."""
    if not is_half(dtype):
        return x
    with np.errstate(over="ignore"):
        return as_type(x, dtype)


def constant_of(value: Any, dtype: Any) -> Any:
    """Return a number as a NumPy scalar of this dtype."""
    return np.asarray(value).astype(dtype)[()]


def untracked_value(value: Any, function: str, name: str) -> Any:
    """Return a parameter in which there is no derivative, as a plain array or whatever else it is.

    Raises:
        UnsupportedFunctionError: a manager tracks it.
    """
    if isinstance(value, Tensor) and tracking(value):
        raise errors.UnsupportedFunctionError(
            f"{function} has no derivative in {name}, and {describe(value)} is tracked by a manager; "
            f"pass {name}.detach() if none is wanted"
        )
    return raw(value)


def from_nested(a: Any) -> Any:
    """Build one Tensor from nested lists that hold Tensors; gradients flow into each."""
    from_parts = [lift(part) for part in a]
    if not from_parts:
        return np.asarray(a)
    dtype = np.result_type(*(part.dtype for part in from_parts))
    if any(part.shape != from_parts[0].shape for part in from_parts):
        raise ValueError(f"nested lists must be of one shape; found {[part.shape for part in from_parts]}")
    first = next((part for part in from_parts if isinstance(part, Tensor)), from_parts[0])
    z = wrap(zeros(first, (len(from_parts), *first.shape), dtype))
    for k, part in enumerate(from_parts):
        z[k] = part if isinstance(part, Tensor) else libraries.namespace(z._array).asarray(part)
    return z


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Any:
    """Cast as `numpy.astype`, on another device if one is named; a cast to integers or booleans gives a constant."""
    given = x = lift(x)
    if x.dtype != np.dtype(dtype):
        x = as_type(x, dtype)
    if device is not None:
        x = to(x, device) if isinstance(x, Tensor) else libraries.to_device(x, device)
    return copied(x) if copy and x is given else x


def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """Copy into its own memory as `numpy.copy`; gradients flow through."""
    if subok and not holds_tensor(a):
        return np.copy(a, order, subok)  # type: ignore[call-overload]  # a string NumPy checks
    a = lift(a)
    if a.ndim == 0:
        read_order(order)
        return copied(a)
    return laid_out(a, read_order(order)) if isinstance(a, Tensor) else a.copy(order=order)


def read_order(order: Any) -> str:
    """Read order= of a copy."""
    if not isinstance(order, str | None):
        raise TypeError(f"order must be str, not {type(order).__name__}")
    read = "K" if order is None else order.upper()
    if read not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    return read


laid_out: Function = linear("copy_in_order", lambda a, order: a.copy(order=order), lambda g: g)


_to: Function = linear(
    "to", lambda a, device, origin: libraries.to_device(a, device), lambda g, device, origin: _to(g, origin, device)
)


def to(x: Tensor, device: str, /) -> Tensor:
    """Return the tensor on "cpu", "cuda:0", or "cuda", the current GPU; itself if it is there. Gradients move back.

    Raises:
        DeviceError: there is no such GPU, or CuPy is not installed.
        ValueError: the name is not that of a device.
    """
    if not isinstance(device, str):
        raise ValueError(
            f"to: device {device!r} is not known; use 'cpu' or 'cuda:0', and t.astype(dtype) for another dtype"
        )
    index = libraries.device_index(device)
    target = "cpu" if index is None else f"cuda:{index}"
    return x if target == x.device else _to(x, target, x.device)


def to_device(x: Tensor, device: str, /, stream: Any = None) -> Tensor:
    """Return the tensor on a device by the Array API's name for it; a GPU copies on `stream`, one of CuPy's.

    Raises:
        DeviceError, ValueError: as `to`; a stream was given where no GPU takes part.
    """
    if stream is None:
        return to(x, device)
    if x.device == "cpu" and libraries.device_index(device) is None:
        raise ValueError(f"to_device from the CPU to the CPU takes no stream; found {stream!r}")
    cupy = libraries.import_cupy("to_device on a stream")
    with cupy.cuda.ExternalStream(stream) if isinstance(stream, int) else stream:
        return to(x, device)


def lift_like(value: Any, *others: Any) -> Any:
    """Lift an argument; numbers and lists become arrays of the library of the other arguments."""
    lifted = lift(value)
    if isinstance(lifted, Tensor) or libraries.is_array(value):
        return lifted
    return library_of(*others).asarray(lifted)


def library_of(*values: Any) -> Any:
    """Return the module whose arrays are among these Tensors, arrays and numbers: CuPy's if there is one."""
    return libraries.namespace_of(*map(raw, values))
