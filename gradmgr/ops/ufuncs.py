"""The methods of ufuncs, such as `add.reduce`; products of stacks of matrices and vectors.

A method uses the reduction that computes the same if there is one; else it calls the function
on slices along the axis. What NumPy would refuse is found by asking NumPy: the same
call on an array of ones, of length 1 where the Tensor's is longer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.conversion import tracking
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.indexing import add_at, add_in_order, getitem, normalized, scatter
from gradmgr._engine.mutation import put, store, writable_copy
from gradmgr._engine.op import Function, linear, zeros
from gradmgr._engine.tensor import Tensor, bare, describe, raw, wrap
from gradmgr._engine.views import as_new_array, as_number
from gradmgr.ops.arithmetic import negative
from gradmgr.ops.convert import NOT_GIVEN, cast_to, holds_tensor, lift
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.logsumexp import logsumexp
from gradmgr.ops.products import matmul
from gradmgr.ops.products import vecdot as dot_products
from gradmgr.ops.reduce import max as max_of
from gradmgr.ops.reduce import min as min_of
from gradmgr.ops.reduce import sum as sum_of
from gradmgr.ops.reduction_arguments import mask_of, masked
from gradmgr.ops.running import cumprod, cumsum, prod
from gradmgr.ops.shape import expand_dims, moveaxis, ravel, reshape
from gradmgr.ops.where import choose


def give_methods(function: Any, ufunc: np.ufunc) -> None:
    """Give a function that takes the place of a ufunc the ufunc's attributes and methods."""
    function.nin, function.nout, function.identity = ufunc.nin, ufunc.nout, ufunc.identity
    for method in (reduce, accumulate, reduceat, outer, at):
        setattr(function, method.__name__, functools.partial(method, ufunc, function))


# ---------------------------------------------------------------- what NumPy would say


def _call_on_ones(ufunc: Any, method: str, x: Any, *args: Any, **keywords: Any) -> Any:
    """Call NumPy's method on ones of the same dtype, at most 1 along each axis; its errors name the method."""
    small = np.ones([min(n, 1) for n in x.shape], x.dtype)
    try:
        with np.errstate(all="ignore"):
            return getattr(ufunc, method)(small, *args, **keywords)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        if ufunc.__name__ in str(error):
            raise
        kinds = (np.exceptions.AxisError, ValueError, TypeError, IndexError, RuntimeError)
        kind = next(k for k in kinds if isinstance(error, k))
        raise kind(f"{ufunc.__name__}.{method}: {error}") from None


def _is_constant(ufunc: np.ufunc, x: Any, dtype: Any) -> bool:
    """Tell whether what a ufunc makes of x, cast to a dtype, carries no gradient."""
    dtypes = [x.dtype] if dtype is None else [x.dtype, np.dtype(dtype)]
    return not (all(map(libraries.is_differentiable, dtypes)) and any(kind[-1] in "fd" for kind in ufunc.types))


def _call_untracked(ufunc: Any, method: str, x: Any) -> Any:
    """Call the method of the ufunc of the library of x, for values without gradients."""
    if libraries.namespace(x) is np or libraries.is_numpy(x):
        return getattr(ufunc, method)
    cupy_method = getattr(getattr(libraries.namespace(x), ufunc.__name__, None), method, None)
    if cupy_method is None:
        raise _unsupported(ufunc, method, x)

    def call(*args: Any) -> Any:
        try:
            return cupy_method(*args)
        except (NotImplementedError, TypeError) as error:  # not of this ufunc, not of this dtype
            raise _unsupported(ufunc, method, x) from error

    return call


def _unsupported(ufunc: Any, method: str, x: Any) -> errors.UnsupportedFunctionError:
    return errors.UnsupportedFunctionError(
        f"{ufunc.__name__}.{method}, with what it was given, of {x.dtype} is not in CuPy; "
        "move to the CPU with .to('cpu') for it"
    )


def _write_out(z: Any, out: Any, name: str) -> Any:
    """Write a result into out=, which for these methods must have its very shape."""
    if out is None:
        return z
    (target,) = out if isinstance(out, tuple) else (out,)
    if target is None:
        return z
    if not isinstance(target, Tensor) and not libraries.is_array(target):
        raise TypeError(f"{name}(out=...) writes into a Tensor or an array; found {type(target).__name__}")
    if np.shape(raw(target)) != z.shape:
        raise errors.ShapeError(f"{name}(out=...) has a result of shape {z.shape}; found {np.shape(raw(target))}")
    return store(target, z, f"{name}(out=...)")


# ---------------------------------------------------------------- reduce


def reduce(
    ufunc: Any,
    function: Any,
    array: Any,
    /,
    axis: Any = 0,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = NOT_GIVEN,
    where: Any = True,
) -> Any:
    """Combine along an axis, the first by default, as `numpy.ufunc.reduce`."""
    if not any(holds_tensor(t) for t in (array, out, initial, where)):
        return ufunc.reduce(array, axis, dtype, out, keepdims, initial, where)
    x = lift(array)
    mask = where if where is True else mask_of(where, x, f"{ufunc.__name__}.reduce")
    like = _call_on_ones(
        ufunc,
        "reduce",
        x,
        axis=axis,
        dtype=dtype,
        keepdims=keepdims,
        initial=initial if initial is None or initial is NOT_GIVEN else np.ones((), lift(initial).dtype),
        where=True if mask is True else np.ones((1,) * mask.ndim, bool),
    )
    axes = () if x.ndim == 0 else tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    given = NOT_GIVEN if initial is None or initial is NOT_GIVEN else initial
    if _is_constant(ufunc, x, dtype):
        start = None if initial is None else raw(given)
        z = wrap(_reduce_constant(ufunc, raw(x), axes, dtype, keepdims, start, mask))
    else:
        x = cast_to(x if isinstance(x, Tensor) else wrap(x), dtype)
        start = None if given is NOT_GIVEN else cast_to(_lift_like(given, x), like.dtype)
        identity = None if initial is None else ufunc.identity
        z = _reduce_by_function(ufunc, function, x, axes, start, identity, mask, like.dtype)
        z = expand_dims(z, axes) if keepdims else z
        z = as_new_array(z) if z.ndim else as_number(z)  # not a view of x, where that has one element along an axis
    return _write_out(z, out, f"{ufunc.__name__}.reduce")


def _reduce_constant(ufunc: Any, a: Any, axes: Any, dtype: Any, keepdims: bool, start: Any, mask: Any) -> Any:
    if libraries.namespace(a) is np or libraries.is_numpy(a):
        return ufunc.reduce(a, axes, dtype, None, keepdims, start, mask)
    name = _BY_NAME.get(ufunc.__name__)
    if name is None or dtype is not None or start is not NOT_GIVEN or mask is not True:
        raise _unsupported(ufunc, "reduce", a)
    return getattr(np, name)(a, axis=axes, keepdims=keepdims)


# NumPy's functions that are reductions by a ufunc; CuPy has them.
_BY_NAME = MappingProxyType(
    {
        "add": "sum",
        "logical_and": "all",
        "logical_or": "any",
        "maximum": "max",
        "minimum": "min",
        "multiply": "prod",
    }
)


def _lift_like(value: Any, x: Any) -> Any:
    """Lift an argument; numbers and lists become arrays of the library of x."""
    libraries.check_plain(value)
    value = lift(value) if holds_tensor(value) else value
    if isinstance(value, Tensor) or (libraries.is_array(value) and not isinstance(value, np.generic)):
        return value
    return libraries.namespace(raw(x)).asarray(lift(value))


def _reduce_by_function(
    ufunc: Any, function: Any, x: Any, axes: Any, start: Any, identity: Any, mask: Any, dtype: Any
) -> Any:
    """Reduce what carries a gradient; without keepdims."""
    combined, neutral = _WHOLE.get(ufunc.__name__, (None, None))
    if combined is not None:
        if mask is not True:
            x, mask = masked(mask, x, libraries.namespace(raw(x)).asarray(neutral, x.dtype)), True
        if all(x.shape[k] for k in axes):
            z = combined(x, axes)
            return z if start is None else function(z, start)
    # NumPy begins with the identity where there is nothing or, as hypot.reduce([-3.0]) shows, only one to combine.
    if start is None and identity is not None and (mask is not True or all(x.shape[k] < 2 for k in axes)):
        start = libraries.namespace(raw(x)).asarray(identity, dtype)
    mask = None if mask is True else _flatten_axes_to_front(libraries.namespace(mask).broadcast_to(mask, x.shape), axes)
    return _reduce_in_sequence(ufunc, function, _flatten_axes_to_front(cast_to(x, dtype), axes), start, mask)


def _flatten_axes_to_front(x: Any, axes: Any) -> Any:
    """Return x with the axes as one, in front."""
    x = moveaxis(x, axes, range(len(axes)))
    count = int(np.prod(x.shape[: len(axes)], dtype=np.intp))
    return reshape(x, (count, *x.shape[len(axes) :]))


def _reduce_in_sequence(ufunc: Any, function: Any, x: Any, start: Any, mask: Any) -> Any:
    """Reduce along axis 0; in pairs where the order does not matter."""
    n, rest = x.shape[0], x.shape[1:]
    if mask is None and start is None and ufunc.__name__ in ("hypot", "logaddexp2"):
        while x.shape[0] > 1:
            half = x.shape[0] // 2
            pairs = function(x[:half], x[half : 2 * half])
            x = concatenate([pairs, x[2 * half :]]) if x.shape[0] % 2 else pairs
        return x[0]
    if start is None:
        z, first = x[0], 1
    else:
        # A sum of nothing is 0 and has the history of x.
        z, first = sum_of(x[:0], 0) + broadcast_to(start, rest), 0
    for k in range(first, n):
        z = function(z, x[k]) if mask is None else function(z, x[k], where=mask[k], out=z)
    return z


def _logsumexp(x: Any, axes: Any) -> Any:
    return logsumexp(x, axes)


def _fmax(x: Any, axes: Any) -> Any:
    return _extreme_of_numbers(x, axes, max_of, -np.inf)


def _fmin(x: Any, axes: Any) -> Any:
    return _extreme_of_numbers(x, axes, min_of, np.inf)


def _extreme_of_numbers(x: Any, axes: Any, extreme: Any, neutral: float) -> Any:
    """Return an extreme that ignores NaN; NaN where there is nothing else."""
    a = raw(x)
    nans = np.isnan(a)
    z = extreme(choose(nans, libraries.namespace(a).asarray(neutral, a.dtype), x), axes)
    return choose(nans.all(axis=axes), libraries.namespace(a).asarray(np.nan, a.dtype), z)


# By ufunc: the function that reduces over axes at once, and the value to use where the mask is not set.
_WHOLE = MappingProxyType(
    {
        "add": (sum_of, 0),
        "multiply": (prod, 1),
        "maximum": (max_of, -np.inf),
        "minimum": (min_of, np.inf),
        "fmax": (_fmax, -np.inf),
        "fmin": (_fmin, np.inf),
        "logaddexp": (_logsumexp, -np.inf),
    }
)

# ---------------------------------------------------------------- accumulate


def accumulate(ufunc: Any, function: Any, array: Any, /, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
    """Combine along an axis and keep what came out on the way, as `numpy.ufunc.accumulate`."""
    if not (holds_tensor(array) or holds_tensor(out)):
        return ufunc.accumulate(array, axis, dtype, out)
    x = lift(array)
    like = _call_on_ones(ufunc, "accumulate", x, axis=axis, dtype=dtype)
    place = 0 if axis is None else normalize_axis_index(axis, x.ndim)
    if _is_constant(ufunc, x, dtype):
        z = wrap(_call_untracked(ufunc, "accumulate", raw(x))(raw(x), place, dtype))
    else:
        x = cast_to(cast_to(x, dtype), like.dtype)
        running = _RUNNING.get(ufunc.__name__)
        z = _accumulate_by_function(function, x, place) if running is None else running(x, place)
    return _write_out(z, out, f"{ufunc.__name__}.accumulate")


_RUNNING = MappingProxyType({"add": cumsum, "multiply": cumprod})


def _accumulate_by_function(function: Any, x: Any, axis: int) -> Any:
    slices = moveaxis(x, axis, 0)
    if len(slices) < 2:
        return x.copy()
    parts = [slices[0]]
    for k in range(1, slices.shape[0]):
        parts.append(function(parts[-1], slices[k]))
    return stack(parts, axis)


# ---------------------------------------------------------------- reduceat


def _segment_members(indices: Any, length: int) -> tuple[Any, Any]:
    """Return what the segments hold: element numbers, and the segment of each."""
    ends = np.append(indices[1:], length)
    counts = np.where(ends > indices, ends - indices, 1)
    segment = np.repeat(np.arange(indices.size), counts)
    within = np.arange(segment.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return indices[segment] + within, segment


def _spread_segments(g: Any, shape: Any, indices: Any, axis: int) -> Any:
    lead = (slice(None),) * axis
    xp = libraries.namespace(raw(g))
    elements, segment = (xp.asarray(part) for part in _segment_members(indices, shape[axis]))
    return scatter(getitem(g, (*lead, segment)), shape, (*lead, elements))


def _add_segments(a: Any, indices: Any, axis: int) -> Any:
    xp = libraries.namespace(a)
    if xp is np or libraries.is_numpy(a):
        return np.add.reduceat(a, indices, axis)
    # CuPy's reduceat is a difference of running sums, which loses digits, and all of them next to an infinity.
    lead = (slice(None),) * axis
    elements, segment = (xp.asarray(part) for part in _segment_members(indices, a.shape[axis]))
    made = zeros(a, (*a.shape[:axis], indices.size, *a.shape[axis + 1 :]), a.dtype)
    add_at(made, (*lead, segment), a[(*lead, elements)])
    return made


_add_reduceat: Function = linear(
    "add_reduceat",
    _add_segments,
    lambda g, shape, indices, axis: _spread_segments(g, shape, indices, axis),
)


def reduceat(
    ufunc: Any, function: Any, array: Any, /, indices: Any, axis: Any = 0, dtype: Any = None, out: Any = None
) -> Any:
    """Combine along segments of an axis as `numpy.ufunc.reduceat`."""
    if not any(holds_tensor(t) for t in (array, indices, out)):
        return ufunc.reduceat(array, indices, axis, dtype, out)
    x, are_array = lift(array), isinstance(indices, Tensor) or libraries.is_array(indices)
    indices = raw(lift(indices))
    place = 0 if x.ndim == 0 or axis is None else axis
    bounds = np.asarray(libraries.to_device(indices, "cpu"))
    if are_array and not np.can_cast(bounds.dtype, np.intp, "same_kind"):
        raise TypeError(f"{ufunc.__name__}.reduceat takes integers for its indices; found {bounds.dtype}")
    bounds = bounds.astype(np.intp)
    if bounds.ndim != 1:
        raise ValueError(f"{ufunc.__name__}.reduceat takes indices of one axis; found shape {bounds.shape}")
    if isinstance(place, (int, np.integer)) and x.ndim:
        place = normalize_axis_index(int(place), x.ndim, f"{ufunc.__name__}.reduceat")
        outside = bounds[(bounds < 0) | (bounds >= x.shape[place])]
        if outside.size:
            raise IndexError(f"index {outside[0]} out-of-bounds in {ufunc.__name__}.reduceat [0, {x.shape[place]})")
    like = _call_on_ones(ufunc, "reduceat", x, [], axis=axis, dtype=dtype)
    if _is_constant(ufunc, x, dtype):
        z = wrap(_call_untracked(ufunc, "reduceat", raw(x))(raw(x), bounds, place, dtype))
    else:
        x = cast_to(cast_to(x if isinstance(x, Tensor) else wrap(x), dtype), like.dtype)
        z = _add_reduceat(x, bounds, place) if ufunc is np.add else _reduce_segments(ufunc, function, x, bounds, place)
    return _write_out(z, out, f"{ufunc.__name__}.reduceat")


def _reduce_segments(ufunc: Any, function: Any, x: Any, bounds: Any, axis: int) -> Any:
    slices = moveaxis(x, axis, 0)
    if not bounds.size:
        return moveaxis(slices[:0], 0, axis)
    parts = []
    for begin, end in zip(bounds.tolist(), [*bounds[1:].tolist(), slices.shape[0]], strict=True):
        piece = slices[begin] if end <= begin + 1 else slices[begin:end]
        parts.append(
            piece if end <= begin + 1 else _reduce_by_function(ufunc, function, piece, (0,), None, None, True, x.dtype)
        )
    return stack(parts, axis)


# ---------------------------------------------------------------- outer


def outer(ufunc: Any, function: Any, A: Any, B: Any, /, **kwargs: Any) -> Any:  # noqa: N803  # NumPy's names
    """Combine all pairs as `numpy.ufunc.outer`."""
    if not any(holds_tensor(t) for t in (A, B, *kwargs.values())) or ufunc.nin != 2 or ufunc.signature is not None:
        return ufunc.outer(raw(A), raw(B), **kwargs)  # or the error that it raises
    a, b = _lift_like(A, lift(B)), _lift_like(B, lift(A))
    return function(reshape(a, a.shape + (1,) * b.ndim), b, **kwargs)


# ---------------------------------------------------------------- at


def _add_at_kernel(x: Any, v: Any, index: Any) -> Any:
    made = libraries.able_to_hold(writable_copy(x), index, v)
    shape = made[index].shape if made.ndim == 1 and v.ndim else v.shape
    if shape != v.shape:  # numpy.add.at of NumPy 2.4 then adds no more numbers than v has
        v = libraries.namespace(v).broadcast_to(v, shape)
    if made.dtype.kind == "V":  # NumPy has no bfloat16
        add_at(made, index, libraries.namespace(made).broadcast_to(v, made[index].shape))
    else:
        add_in_order(made, index, v)
    return made


def _added_tangent(t: Any, v: Any, out: Any, index: Any) -> Any:
    """Return what a tangent of v adds: it has the shape of out[index] up to broadcasting."""
    return scatter(broadcast_to(cast_to(t, out.dtype), raw(out)[index].shape), out.shape, index)


_add_at = custom(
    "add_at",
    _add_at_kernel,
    vjp={"x": lambda g: g, "v": lambda g, index: getitem(g, index)},
    jvp={"x": lambda t: t, "v": _added_tangent},
)


def at(ufunc: Any, function: Any, a: Any, indices: Any, b: Any = None, /) -> None:
    """Apply in place at an index, again for each time it names an element, as `numpy.ufunc.at`.

    A Tensor is written as by `x[...] = v`: recorded, and then bound to the result.
    """
    operands = () if b is None else (b,)
    index = normalized(indices)
    if not isinstance(a, Tensor):
        for t in operands:
            if isinstance(t, Tensor) and tracking(t):
                raise errors.TrackedConversionError(
                    f"{ufunc.__name__}.at would write {describe(t)}, which a manager tracks, into a plain array and "
                    "lose its history; make the array a Tensor, or write t.numpy() explicitly"
                )
        computed(ufunc.at, a, index, *map(bare, operands))
        return
    values = [_lift_like(t, a) for t in operands]
    # Of a complex result NumPy takes the real part, with a warning; so does the cast below.
    complex_too = [v.dtype for v in values if v.dtype.kind == "c"]
    kind = np.result_type(a.dtype, *complex_too) if complex_too else a.dtype
    _call_on_ones(ufunc, "at", np.ones(1, kind), [0], *(np.ones(1, v.dtype) for v in values))
    if not libraries.is_differentiable(a.dtype):
        made = computed(_applied_at, ufunc, bare(a), index, *map(bare, values))
        store(a, wrap(made), f"{ufunc.__name__}.at")
        return
    if ufunc is np.add or ufunc is np.subtract:
        (v,) = values
        z = _add_at(a, v if ufunc is np.add else negative(v), index)
    else:
        z = _apply_in_rounds(function, a, index, values)
    store(a, z, f"{ufunc.__name__}.at")


def _applied_at(ufunc: Any, a: Any, index: Any, *values: Any) -> Any:
    made = writable_copy(a)
    _call_untracked(ufunc, "at", made)(made, index, *values)
    return made


def _apply_in_rounds(function: Callable[..., Any], x: Any, index: Any, values: list[Any]) -> Any:
    """Apply in rounds, in each of which every element is named once at most."""
    places = libraries.getitem(libraries.root(raw(x)).arange(x.size).reshape(x.shape), index)
    operands = [ravel(broadcast_to(v, places.shape)) for v in values]
    flat, places = reshape(x, (-1,)), places.ravel()
    for chosen in _group_repeats(places):
        here = places[chosen]
        made = function(getitem(flat, here), *(getitem(v, chosen) for v in operands))
        flat = put(flat, here, cast_to(made, x.dtype))
    return reshape(flat, x.shape)


def _group_repeats(places: Any) -> list[Any]:
    """Group positions in `places`: the first to name its element, the second, and so on."""
    if not places.size:
        return []
    xp = libraries.namespace(places)
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    rank = xp.arange(places.size) - xp.searchsorted(ordered, ordered)  # counted from the first of its element
    times = libraries.common_value(rank.max(), "how often an element is named")
    return [np.sort(order[rank == k]) for k in range(int(times) + 1)]


# ---------------------------------------------------------------- stacks of matrices and vectors


def matvec(x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, dtype: Any = None) -> Any:
    """Multiply matrices with vectors as `numpy.matvec`."""
    if _is_for_numpy("matvec", x1, x2, out):
        return np.matvec(x1, x2, **_given_keywords(out=out, axes=axes, dtype=dtype))
    x, v = _core_axes("matvec", x1, x2, axes, dtype, ((-2, -1), -1))
    return _product("matvec", matmul(x, expand_dims(v, -1)), -1, axes, out)


def vecmat(x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, dtype: Any = None) -> Any:
    """Multiply vectors, conjugated, with matrices as `numpy.vecmat`."""
    if _is_for_numpy("vecmat", x1, x2, out):
        return np.vecmat(x1, x2, **_given_keywords(out=out, axes=axes, dtype=dtype))
    v, x = _core_axes("vecmat", x1, x2, axes, dtype, (-1, (-2, -1)))
    return _product("vecmat", matmul(expand_dims(conj_of(v), -2), x), -2, axes, out)


def vecdot(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    axes: Any = None,
    axis: int | None = None,
    keepdims: bool = False,
    dtype: Any = None,
) -> Any:
    """Multiply vectors with vectors, the first conjugated, as `numpy.vecdot`."""
    if _is_for_numpy("vecdot", x1, x2, out):
        asked = _given_keywords(out=out, axes=axes, axis=axis, keepdims=keepdims or None, dtype=dtype)
        return np.vecdot(x1, x2, **asked)
    if axes is not None and (axis is not None or keepdims):
        raise TypeError("vecdot: cannot specify both 'axis' or 'keepdims', and 'axes'")
    single = -1 if axis is None else axis
    given: Any = (single, single) if axes is None else axes
    places = [(k,) if np.ndim(k) == 0 else tuple(k) for k in given]
    if len(places) not in (2, 3) or any(len(place) != 1 for place in places[:2]) or len([*places, ()][2]) != 0:
        raise ValueError("vecdot: axes must name one axis of each operand, and () for the result")
    x, y = _core_axes("vecdot", x1, x2, [place[0] for place in places[:2]], dtype, (-1, -1))
    z = dot_products(x, y)
    z = expand_dims(z, single) if keepdims else z
    return z if out is None else store(out, z, "vecdot(out=...)")


def _is_for_numpy(name: str, *operands: Any) -> bool:
    """Tell whether NumPy has a function, and no operand is a Tensor or a GPU's array: CuPy has no such functions."""
    return hasattr(np, name) and not any(holds_tensor(t) or libraries.root(t) is not np for t in operands)


def _given_keywords(**keywords: Any) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if value is not None}


def _core_axes(name: str, x1: Any, x2: Any, axes: Any, dtype: Any, where: Any) -> list[Any]:
    """Return the operands with the multiplied axes last, as gufuncs take them from axes=."""
    given = where if axes is None else tuple(axes)[:2]
    operands = []
    for a, source, goal in zip((x1, x2), given, where, strict=True):
        a = lift(a)
        if dtype is not None and not np.can_cast(a.dtype, dtype, "same_kind"):
            raise TypeError(f"{name}(dtype={np.dtype(dtype)}) cannot take {a.dtype} by a same-kind cast; cast it first")
        a = cast_to(a, dtype)
        wanted = len(goal) if isinstance(goal, tuple) else 1
        if a.ndim < wanted:
            raise ValueError(f"{name}: an operand has {a.ndim} axes, where it needs {wanted}")
        operands.append(moveaxis(a, source, goal))
    lengths = [a.shape[-2 if isinstance(goal, tuple) else -1 :] for a, goal in zip(operands, where, strict=True)]
    if lengths[0][-1] != lengths[1][0]:
        raise ValueError(f"{name}: mismatch in a core dimension: {lengths[0]} with {lengths[1]}")
    stacks = [a.shape[: a.ndim - len(length)] for a, length in zip(operands, lengths, strict=True)]
    try:
        np.broadcast_shapes(*stacks)
    except ValueError:
        raise ValueError(f"{name}: stacks of shapes {stacks[0]} and {stacks[1]} could not be broadcast") from None
    return operands


def _product(name: str, z: Any, single: int, axes: Any, out: Any) -> Any:
    z = reshape(z, z.shape[:-1] if single == -1 else (*z.shape[:-2], z.shape[-1]))
    if axes is not None and len(axes) == 3:
        z = moveaxis(z, -1, axes[2])
    return z if out is None else store(out, z, f"{name}(out=...)")
