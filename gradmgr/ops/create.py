"""Creation functions. They give Tensors, on the CPU unless `device` says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._inplace import copied
from gradmgr._recorder import is_tracked
from gradmgr._tensor import Tensor, describe, raw, wrap
from gradmgr.ops.convert import astype, from_nested, holds_tensor, to


def _made(array: Any, device: str | None) -> Tensor:
    return wrap(array if device is None else _xp.to_device(array, device))


def _library(device: str | None) -> Any:
    if device is None or _xp.device_index(device) is None:
        return np
    return _xp.import_cupy(f"device {device!r}")


def zeros(shape: Any, dtype: Any = float, order: str = "C", *, device: str | None = None) -> Tensor:
    """Return zeros."""
    return wrap(_library(device).zeros(shape, dtype, order))


def ones(shape: Any, dtype: Any = float, order: str = "C", *, device: str | None = None) -> Tensor:
    """Return ones."""
    return wrap(_library(device).ones(shape, dtype, order))


def empty(shape: Any, dtype: Any = float, order: str = "C", *, device: str | None = None) -> Tensor:
    """Return a tensor whose values are whatever was in memory."""
    return wrap(_library(device).empty(shape, dtype, order))


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: str | None = None) -> Tensor:
    """Return a tensor filled with one value; gradients flow into a Tensor given as `fill_value`."""
    if isinstance(fill_value, Tensor):
        z = empty(shape, fill_value.dtype if dtype is None else dtype, order, device=device or fill_value.device)
        z[...] = fill_value
        return z
    return wrap(_library(device).full(shape, fill_value, dtype, order))


def _like(name: str) -> Any:
    def function(
        a: Any, dtype: Any = None, order: str = "K", *, shape: Any = None, device: str | None = None
    ) -> Tensor:
        a = raw(a) if _xp.is_array(raw(a)) else np.asarray(a)
        return _made(getattr(_xp.namespace(a), name)(a, dtype=dtype, order=order, shape=shape), device)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {name.removesuffix('_like')} in the shape, dtype and device of another array."
    return function


zeros_like = _like("zeros_like")
ones_like = _like("ones_like")
empty_like = _like("empty_like")


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", *, shape: Any = None, device: str | None = None
) -> Tensor:
    """Return a tensor filled with one value, in the shape, dtype and device of another array."""
    z: Tensor = empty_like(a, dtype, order, shape=shape, device=device)
    z[...] = fill_value
    return z


def _number(t: Any) -> Any:
    if not isinstance(t, Tensor):
        return t
    if is_tracked(t):
        raise errors.TrackedConversionError(
            f"arange would take {describe(t)}, which a manager tracks, as a number and lose its history; "
            "say t.item(), or use start + step * arange(n)"
        )
    return t.item()


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Return evenly spaced values within an interval, by a step."""
    start, stop, step = (_number(t) for t in (start, stop, step))
    first, last = (0, start) if stop is None else (start, stop)
    return wrap(_library(device).arange(first, last, step, dtype=dtype))


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: str | None = None,
) -> Any:
    """Return `num` evenly spaced values; gradients flow into Tensors given as the ends."""
    if not (isinstance(start, Tensor) or isinstance(stop, Tensor)):
        made = _library(device).linspace(start, stop, num, endpoint, retstep, dtype, axis)
        return (wrap(made[0]), wrap(np.asarray(made[1]))) if retstep else wrap(made)
    if axis != 0:
        raise ValueError("linspace between Tensors takes axis=0; move the axis afterwards")
    parts = num - 1 if endpoint else num
    step = (stop - start) / max(parts, 1)
    a = raw(step)
    along = _xp.namespace(a).arange(num, dtype=a.dtype).reshape((num,) + (1,) * a.ndim)
    values = start + along * step
    values = values if dtype is None else astype(values, dtype)
    values = values if device is None else to(values, device)
    return (values, step) if retstep else values


def eye(
    N: int,  # noqa: N803  # NumPy's names
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: Any = float,
    order: str = "C",
    *,
    device: str | None = None,
) -> Tensor:
    """Return ones on a diagonal, zeros elsewhere."""
    return wrap(_library(device).eye(N, M, k, dtype, order))


def identity(n: int, dtype: Any = None) -> Tensor:
    """Return the identity matrix."""
    return eye(n, dtype=float if dtype is None else dtype)


def array(
    object: Any, dtype: Any = None, *, copy: bool | None = True, ndmin: int = 0, device: str | None = None
) -> Tensor:
    """Return a Tensor of anything array-like, by default a copy; gradients flow through Tensors in it."""
    z = _converted(object, dtype, device, copy)
    return z.reshape((1,) * (ndmin - z.ndim) + tuple(z.shape)) if z.ndim < ndmin else z


def asarray(data: Any, dtype: Any = None, device: str | None = None, *, copy: bool | None = None) -> Tensor:
    """Return `data` as a Tensor, sharing its memory where NumPy's `asarray` would.

    Shared memory is never written by gradmgr: an in-place write to the tensor moves it to memory
    of its own. Who writes to the shared memory while a manager records says so with
    `gradmgr.graph.increment_version`. A Tensor that needs no conversion is returned as it is, and
    gradients flow through one that does, or that stands in nested lists.

    Raises:
        TypeError: `data` is not numeric.
        ValueError: with `copy=False`, where a copy would be needed.
        DeviceError: a GPU was asked for and there is none, or CuPy is not installed.

    >>> import numpy, gradmgr
    >>> a = numpy.zeros(2)
    >>> t = gradmgr.asarray(a)
    >>> t += 1
    >>> a.tolist(), t.tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """
    return _converted(data, dtype, device, copy)


def _converted(a: Any, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    if not holds_tensor(a):
        return wrap(_xp.make_array(a, dtype, device, copy=copy))
    t: Tensor = a if isinstance(a, Tensor) else from_nested(a)
    cast = t if dtype is None else astype(t, dtype, copy=False)
    moved = cast if device is None else to(cast, device)
    if copy is False and moved is not a:
        raise ValueError("asarray with copy=False would need a copy for this dtype or device")
    return copied(moved) if copy and moved is a else moved
