"""Moving tensors of a module to devices and dtypes, and loading states into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine import write_lock
from gradmgr._engine.mutation import calls_to_write
from gradmgr._engine.tensor import Tensor, bare

# ---------------------------------------------------------------- devices and dtypes


def read_target(args: tuple[Any, ...], device: Any, dtype: Any) -> tuple[str | None, np.dtype[Any] | None]:
    """Return the device and the dtype among the arguments; a string that starts like a device's name is a device."""
    for value in args:
        if isinstance(value, str) and (value == "cpu" or value.startswith("cuda")):
            if device is not None:
                raise TypeError(f"to(): two devices, {device!r} and {value!r}")
            device = value
        elif dtype is not None:
            raise TypeError(f"to(): two dtypes, {dtype!r} and {value!r}")
        else:
            dtype = value
    if device is None and dtype is None:
        raise TypeError("to() takes a device such as 'cuda:0', a dtype such as numpy.float64, or both; found none")
    if device is not None:
        libraries.device_index(device)
    if dtype is None:
        return device, None
    try:
        dtype = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(
            f"to(): {dtype!r} is neither a device, 'cpu' or 'cuda:0', nor a dtype, such as 'float64'"
        ) from error
    if not libraries.is_differentiable(dtype):
        raise errors.DtypeError(f"to(dtype={dtype}): parameters need a dtype that can carry gradients, such as float32")
    return device, dtype


def convert(t: Tensor, device: str | None, dtype: np.dtype[Any] | None) -> Any:
    array = t._array
    if (
        dtype is not None
        and libraries.is_differentiable(array.dtype)
        and (dtype.kind == "c" or array.dtype.kind != "c")
    ):
        array = array.astype(dtype, copy=False)
    return array if device is None else libraries.to_device(array, device)


# ---------------------------------------------------------------- loading states


def fitting_values(own: Mapping[str, Tensor], state: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a state that fit, as arrays, and messages about those that do not."""
    fitting: dict[str, Any] = {}
    misfits = []
    first: dict[int, str] = {}  # the first name of each tensor, as one may have several
    for name, t in own.items():
        if name not in state:
            continue
        try:
            value = _array_of(state[name])
        except (*errors.REJECTIONS, RuntimeError) as error:  # as torch's tensors do that cannot become arrays
            misfits.append(f"{name}: not an array: {error}")
            continue
        same = first.setdefault(id(t), name)
        wrong = _misfit(t, value) or (same in fitting and same != name and _differs(fitting[same], value, same))
        if wrong:
            misfits.append(f"{name}: {wrong}")
        else:
            fitting[name] = value
    return fitting, misfits


def _array_of(value: Any) -> Any:
    value = bare(value)
    if not (libraries.is_array(value) or hasattr(value, "__array__") or isinstance(value, (bool, int, float, complex))):
        raise TypeError(type(value).__name__)
    return libraries.as_array(value)


def _misfit(t: Tensor, value: Any) -> str | None:
    if value.shape != t.shape:
        return f"shape {value.shape} in the state, {t.shape} here"
    if _kind(value.dtype) != _kind(t.dtype):
        return f"dtype {value.dtype} in the state, {t.dtype} here"
    if (
        value.dtype.kind in "iu"
        and not np.can_cast(value.dtype, t.dtype)
        and bool((value.astype(t.dtype) != value).any())
    ):
        return f"{value.dtype} values in the state that {t.dtype} cannot hold"
    return None


def _kind(dtype: np.dtype[Any]) -> str:
    if libraries.is_differentiable(dtype):
        return "complex" if dtype.kind == "c" else "real"
    return "whole" if dtype.kind in "iu" else dtype.kind


def _differs(one: Any, other: Any, name: str) -> str | None:
    xp = libraries.namespace_of(one, other)
    if one is other or bool(xp.array_equal(xp.asarray(one), xp.asarray(other))):
        return None
    return f"is one tensor with {name} here, and the state has different values for them"


def write_all(targets: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write arrays into tensors without recording, into all of them at once."""
    calls: list[Call] = []
    for name, t in targets.items():
        made = libraries.namespace(t._array).empty_like(t._array)  # with the order of axes in memory that it has
        made[...] = libraries.to_device(values[name], t.device)
        calls += calls_to_write(t, made)
    with write_lock.lock:  # `state_dict` in another thread sees all of them written, or none
        run_atomically(calls)
