"""Creation functions. They give Tensors, on the CPU unless `device` says otherwise."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.conversion import tracking
from gradmgr._engine.mutation import as_type, copied
from gradmgr._engine.tensor import Tensor, created, describe, is_number, raw, variable
from gradmgr.ops.arithmetic import absolute, exp, floor, log, power
from gradmgr.ops.constant import holds_numbers, with_metadata_of
from gradmgr.ops.convert import astype, from_nested, holds_tensor, laid_out, lift, read_order, to
from gradmgr.ops.join import stack
from gradmgr.ops.naming import named
from gradmgr.ops.shape import diag, expand_dims, moveaxis, ravel, reshape


def _wrap_on_device(array: Any, device: str | None) -> Tensor:
    return variable(array if device is None else libraries.to_device(array, device))


def _namespace_of(device: str | None) -> Any:
    if device is None or libraries.device_index(device) is None:
        return np
    return libraries.import_cupy(f"device {device!r}")


def device_for(device: str | None, like: Any) -> str | None:
    """Return the device that device= or, where that says nothing, like= names."""
    if device is not None or like is None:
        return device
    if not libraries.is_array(raw(like)):
        raise TypeError("The `like` argument must be an array or a Tensor, on whose device the result is made")
    return libraries.device_of(raw(like))


def zeros(shape: Any, dtype: Any = None, order: str = "C", *, device: str | None = None, like: Any = None) -> Tensor:
    """Return zeros; on the device of `like`."""
    return variable(_namespace_of(device_for(device, like)).zeros(shape, float if dtype is None else dtype, order))


def ones(shape: Any, dtype: Any = None, order: str = "C", *, device: str | None = None, like: Any = None) -> Tensor:
    """Return ones; on the device of `like`."""
    return variable(_namespace_of(device_for(device, like)).ones(shape, float if dtype is None else dtype, order))


def empty(shape: Any, dtype: Any = None, order: str = "C", *, device: str | None = None, like: Any = None) -> Tensor:
    """Return a tensor whose values are whatever was in memory; on the device of `like`."""
    return variable(_namespace_of(device_for(device, like)).empty(shape, float if dtype is None else dtype, order))


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "C",
    *,
    device: str | None = None,
    like: Any = None,
) -> Tensor:
    """Return a tensor filled with one value; gradients flow into a Tensor given as `fill_value`."""
    device = device_for(device, like)
    libraries.check_plain(fill_value)
    fill_value = lift(fill_value) if holds_tensor(fill_value) else fill_value
    if isinstance(fill_value, Tensor):
        z = empty(shape, fill_value.dtype if dtype is None else dtype, order, device=device or fill_value.device)
        z[...] = fill_value
        return z
    return variable(_namespace_of(device).full(shape, fill_value, dtype, order))


def _like_function(name: str) -> Any:
    def function(
        a: Any,
        dtype: Any = None,
        order: str = "K",
        subok: bool = True,
        shape: Any = None,
        *,
        device: str | None = None,
    ) -> Tensor:
        a = raw(lift(a))
        return _wrap_on_device(getattr(libraries.namespace(a), name)(a, dtype=dtype, order=order, shape=shape), device)

    what = name.removesuffix("_like")
    return named(function, name, f"Return {what} in the shape, dtype and device of another array.")


zeros_like = _like_function("zeros_like")
ones_like = _like_function("ones_like")
empty_like = _like_function("empty_like")


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Tensor:
    """Return a tensor filled with one value, in the shape, dtype and device of another array."""
    z: Tensor = empty_like(a, dtype, order, subok, shape, device=device)
    z[...] = lift(fill_value)
    return z


def untracked_number(t: Any, asked: str, instead: str) -> Any:
    """Return a Tensor's value as a number, anything else as it is; a tracked one would lose its history."""
    if not isinstance(t, Tensor):
        libraries.check_plain(t)
        return t
    if tracking(t):
        raise errors.TrackedConversionError(
            f"{asked} would take {describe(t)}, which a manager tracks, as a number and lose its history; "
            f"say t.item(), or {instead}"
        )
    if t.ndim:
        raise TypeError(f"{asked} takes {describe(t)} as a number; only a Tensor without axes is one")
    return t.item()


def arange(
    start_or_stop: Any = None,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
    like: Any = None,
) -> Tensor:
    """Return evenly spaced values within an interval, by a step; on the device of `like`."""
    if start_or_stop is None and stop is None:
        raise TypeError("arange() requires stop to be specified.")
    start = 0 if start_or_stop is None else start_or_stop
    device = device_for(device, like)
    start, stop, step = (untracked_number(t, "arange", "use start + step * arange(n)") for t in (start, stop, step))
    first, last = (0, start) if stop is None else (start, stop)
    return created(_namespace_of(device).arange(first, last, step, dtype=dtype))


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
    libraries.check_plain((start, stop))
    if not (holds_tensor(start) or holds_tensor(stop)):
        made = _namespace_of(device).linspace(start, stop, num, endpoint, retstep, dtype, axis)
        return (created(made[0]), created(np.asarray(made[1]))) if retstep else created(made)
    start, stop = (lift(t) if isinstance(t, (list, tuple)) else t for t in (start, stop))
    count = _read_count(num)
    parts = count - 1 if endpoint else count
    difference = stop - start
    a = raw(difference)
    a = a if a.dtype.kind in "fc" or libraries.is_differentiable(a.dtype) else a.astype(float)
    along = libraries.namespace(a).arange(count, dtype=a.dtype).reshape((count,) + (1,) * a.ndim)
    step = difference / parts if parts > 0 else full_like(a, np.nan)
    values = start + along * (step if parts > 0 else difference)
    if endpoint and count > 1:
        values[-1] = stop  # not off by a rounding
    values = values if axis == 0 else moveaxis(values, 0, axis)
    values = values if dtype is None else _as_samples(values, dtype)
    values = values if device is None else to(values, device)
    return (values, step) if retstep else values


def _read_count(num: Any) -> int:
    count = operator.index(num)
    if count < 0:
        raise ValueError(f"Number of samples, {count}, must be non-negative.")
    return count


def _as_samples(values: Any, dtype: Any) -> Any:
    """Cast samples; to integers downwards, as `numpy.linspace` does."""
    return astype(floor(values) if np.dtype(dtype).kind in "iu" else values, dtype, copy=False)


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Tensor:
    """Return powers of `base` at `num` evenly spaced exponents; gradients flow into all three given as Tensors."""
    libraries.check_plain((start, stop, base))
    if not any(map(holds_tensor, (start, stop, base))):
        return created(np.logspace(start, stop, num, endpoint, base, dtype, axis))
    start, stop, base = (lift(t) if isinstance(t, (list, tuple)) else t for t in (start, stop, base))
    if np.ndim(raw(base)):
        start, stop, base = _lift_all(start, stop, base)
        axes = max(t.ndim for t in (start, stop, base))
        start, stop, base = (_prepend_axes(t, axes) for t in (start, stop, base))
        base = expand_dims(base, axis)
    device = base.device if isinstance(base, Tensor) and not (holds_tensor(start) or holds_tensor(stop)) else None
    z: Tensor = power(base, linspace(start, stop, num, endpoint, axis=axis, device=device))
    return z if dtype is None else astype(z, dtype, copy=False)


def _lift_all(*given: Any) -> list[Any]:
    """Lift arguments, numbers to the device of the Tensors among them."""
    library = libraries.namespace(next(raw(t) for t in given if isinstance(t, Tensor)))
    return [library.asarray(t) if isinstance(t, (int, float, complex, np.generic)) else lift(t) for t in given]


def _prepend_axes(t: Any, axes: int) -> Any:
    """Put axes of length 1 before those it has."""
    return reshape(t, (1,) * (axes - t.ndim) + tuple(t.shape))


def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Tensor:
    """Return a geometric progression from start to stop; gradients flow into Tensors given as the ends.

    start^(1-t) stop^t, along the shorter spiral between complex ends; both ends are met exactly.
    """
    libraries.check_plain((start, stop))
    if not any(map(holds_tensor, (start, stop))):
        return created(np.geomspace(start, stop, num, endpoint, dtype, axis))
    start, stop = _lift_all(*[lift(t) if isinstance(t, (list, tuple)) else t for t in (start, stop)])
    if (raw(start) == 0).any() or (raw(stop) == 0).any():
        raise ValueError("Geometric sequence cannot include zero")
    loop = np.result_type(start.dtype, stop.dtype, 1.0, np.dtype(dtype))  # at least float64 without dtype, as NumPy's
    first, last = (astype(t, loop) for t in (start, stop))
    if loop.kind == "c":
        low, ratio = log(first), log(last / first)
    else:  # both may be negative, and the ratio itself out of range
        low = log(absolute(first))
        ratio = log(last * np.sign(raw(first))) - low
    values = exp(low + linspace(0.0, ratio, num, endpoint))
    if loop.kind != "c":
        values = values * np.sign(raw(first))
    if len(values):
        values[0] = first
    if len(values) > 1 and endpoint:
        values[-1] = last
    values = values if axis == 0 else moveaxis(values, 0, axis)
    z: Tensor = values if dtype is None else astype(values, dtype, copy=False)
    return z


def eye(
    N: int,  # noqa: N803  # NumPy's names
    M: int | None = None,  # noqa: N803  # NumPy's name
    k: int = 0,
    dtype: Any = float,
    order: str = "C",
    *,
    device: str | None = None,
    like: Any = None,
) -> Tensor:
    """Return ones on a diagonal, zeros elsewhere; on the device of `like`."""
    return created(_namespace_of(device_for(device, like)).eye(N, M, k, dtype, order))


def identity(n: int, dtype: Any = None, *, like: Any = None) -> Tensor:
    """Return the identity matrix; on the device of `like`."""
    return eye(n, dtype=float if dtype is None else dtype, like=like)


def array(
    object: Any,
    dtype: Any = None,
    *,
    copy: bool | None = True,
    order: str | None = "K",
    subok: bool = False,
    ndmin: int = 0,
    ndmax: int = 0,
    like: Any = None,
    device: str | None = None,
) -> Tensor:
    """Return a Tensor of anything array-like, by default a copy; gradients flow through Tensors in it."""
    copy = read_copy(copy)
    z = _convert(object, dtype, device_for(device, like), copy)
    if 0 < ndmax < z.ndim:
        raise errors.UnsupportedFunctionError(f"array(ndmax={ndmax}) would make an array of objects of {describe(z)}")
    made = in_memory_order(z, order)
    if copy is False and made is not z:
        raise ValueError(f"array with copy=False would need a copy for order {order!r}")
    return reshape(made, (1,) * (ndmin - z.ndim) + tuple(z.shape)) if z.ndim < ndmin else made


def read_copy(copy: Any) -> bool | None:
    """Read copy=."""
    if isinstance(copy, str):
        raise ValueError("strings are not allowed for 'copy' keyword. Use True/False/None instead.")
    return None if copy is None else bool(copy)


def in_memory_order(t: Tensor, order: str | None) -> Tensor:
    """Return the tensor with its memory in C or Fortran order; itself if it is so."""
    order = read_order(order)
    if order in ("A", "K") or t.ndim < 1 or t._array.flags[f"{order}_CONTIGUOUS"]:
        return t
    made: Tensor = laid_out(t, order)
    return made


def asarray(
    data: Any,
    dtype: Any = None,
    device: str | None = None,
    *,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `data` as a Tensor, sharing its memory where NumPy's `asarray` would.

    Shared memory is never written by gradmgr: an in-place write to the tensor moves it to memory
    of its own. Whatever writes to the shared memory while a manager records must call
    `gradmgr.graph.increment_version`. A Tensor that needs no conversion is returned as it is, and
    gradients flow through one that does, or that is in nested lists. `requires_grad` exists for programs written for
    torch and must be False: `GradManager.attach` takes its place.

    Raises:
        TypeError: `data` is not numeric, or `requires_grad` is True.
        ValueError: with `copy=False`, where a copy would be needed.
        DeviceError: a GPU was asked for and there is none, or CuPy is not installed.

    >>> import numpy, gradmgr
    >>> a = numpy.zeros(2)
    >>> t = gradmgr.asarray(a)
    >>> t += 1
    >>> a.tolist(), t.tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """
    if requires_grad:
        raise TypeError(f"asarray: requires_grad=True is not supported; {errors.HOW_TO_REQUIRE_GRAD}")
    try:
        return _convert(data, dtype, device, copy)
    except errors.REJECTIONS as error:
        errors.put_name(error, "asarray")
        raise


def _convert(a: Any, dtype: Any, device: str | None, copy: bool | None) -> Tensor:
    if not holds_tensor(a):
        return variable(computed(libraries.make_array, a, dtype, device, copy=copy))
    t: Tensor = a if isinstance(a, Tensor) else from_nested(a)
    cast = t if dtype is None else astype(t, dtype, copy=False)
    moved = cast if device is None else to(cast, device)
    if copy is False and moved is not a:
        raise ValueError("asarray with copy=False would need a copy for this dtype or device")
    if moved is a and (copy or is_number(a)):  # of a number NumPy makes a new array
        moved = copied(a)
        moved._view_of = ()
    return moved


# ---------------------------------------------------------------- windows and grids of indices


def _as_tensors(made: Any) -> Any:
    if isinstance(made, (tuple, list)):
        return type(made)(map(_as_tensors, made))
    return created(made) if type(made) is np.ndarray and holds_numbers(made.dtype) else made


def _creation_function(function: Callable[..., Any], instead: str) -> Callable[..., Any]:
    """Let a creation function of NumPy's give Tensors, and take untracked ones as the numbers they hold."""
    name = function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = [untracked_number(t, name, instead) for t in args]
        try:
            return _as_tensors(function(*numbers, **{k: untracked_number(t, name, instead) for k, t in kwargs.items()}))
        except errors.REJECTIONS as error:
            errors.put_name(error, name)
            raise

    return with_metadata_of(function, call, f"Return what `numpy.{name}` does, as a Tensor or a tuple of them.")


_COUNT = "pass a count, which has no derivative"

bartlett = _creation_function(np.bartlett, _COUNT)
blackman = _creation_function(np.blackman, _COUNT)
hamming = _creation_function(np.hamming, _COUNT)
hanning = _creation_function(np.hanning, _COUNT)
kaiser = _creation_function(np.kaiser, "for a derivative in beta write the window as i0(beta * sqrt(...)) / i0(beta)")
tril_indices = _creation_function(np.tril_indices, _COUNT)
triu_indices = _creation_function(np.triu_indices, _COUNT)
diag_indices = _creation_function(np.diag_indices, _COUNT)
mask_indices = _creation_function(np.mask_indices, _COUNT)
indices = _creation_function(np.indices, _COUNT)

# ---------------------------------------------------------------- from files, text and buffers


def _reader(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a reading function of NumPy's give Tensors of numbers.

    Records, dates, text, masked arrays, archives (`.npz`) and arrays mapped to a file are left to NumPy.
    """
    name = function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("like"), Tensor):
            kwargs["like"] = None
        elif kwargs.get("like") is not None:
            return function(*args, **kwargs)
        try:
            return _as_tensors(function(*args, **kwargs))
        except errors.REJECTIONS as error:
            errors.put_name(error, name)
            raise

    return with_metadata_of(
        function, call, f"Return what `numpy.{name}` reads: Tensors of numbers; NumPy's own object of anything else."
    )


frombuffer = _reader(np.frombuffer)
fromfile = _reader(np.fromfile)
fromstring = _reader(np.fromstring)
fromregex = _reader(np.fromregex)
genfromtxt = _reader(np.genfromtxt)
loadtxt = _reader(np.loadtxt)
load = _reader(np.load)
_from_numbers = _reader(np.fromiter)


def fromiter(iter: Iterable[Any], dtype: Any, count: int = -1, *, like: Any = None) -> Any:
    """Collect what an iterable gives as `numpy.fromiter`; gradients flow into the Tensors among it."""
    items = _iterate(iter)
    head = list(itertools.islice(items, 1 if count else 0))
    if not any(map(holds_tensor, head)):
        return _from_numbers(itertools.chain(head, map(_untracked_number, items)), dtype, count, like=like)
    head += itertools.islice(items, count - 1 if count > 0 else None)
    if len(head) < count:
        raise ValueError(f"iterator too short: Expected {count} but iterator had only {len(head)} items.")
    return astype(stack([lift(t) for t in head]), dtype, copy=False)


def _iterate(items: Iterable[Any]) -> Iterator[Any]:
    yield from items


def _untracked_number(item: Any) -> Any:
    return untracked_number(item, "fromiter", "let the first item be a Tensor, too")


def diagflat(v: Any, k: int = 0) -> Any:
    """Make a matrix with the flattened input on a diagonal, as `numpy.diagflat`."""
    return diag(ravel(lift(v)), k) if holds_tensor(v) else np.diagflat(v, k)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803  # NumPy's name
    """Return the matrix of powers as `numpy.vander`."""
    if not holds_tensor(x):
        return np.vander(x, N, increasing)
    x = lift(x)
    if x.ndim != 1:
        raise ValueError("vander: x must be a one-dimensional array or sequence.")
    count = x.shape[0] if N is None else int(N)
    if count < 0:
        raise ValueError("vander: negative dimensions are not allowed")
    dtype = np.promote_types(x.dtype, int)
    x = x if x.dtype == dtype else as_type(x, dtype)
    powers = libraries.namespace(raw(x)).arange(count)
    return power(reshape(x, (-1, 1)), powers if increasing else powers[::-1])


def tri(
    N: int,  # noqa: N803  # NumPy's names
    M: int | None = None,  # noqa: N803  # NumPy's name
    k: int = 0,
    dtype: Any = float,
    *,
    like: Any = None,
) -> Tensor:
    """Return ones at and below a diagonal, zeros above it, as `numpy.tri`; on the device of `like`."""
    return asarray(np.tri(N, M, k, dtype), device=device_for(None, like))
