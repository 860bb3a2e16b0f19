"""How NumPy's functions run on `Batched` arrays: one rule for each kind of function.

A rule is called with the level and the function's own arguments, at least one of which is batched at
that level. It returns the result, or NotImplemented for arguments that it cannot handle; then,
and for functions without a rule, the function is called once for each example.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.batched import (
    RULES,
    Batched,
    Level,
    align,
    as_array,
    at_level,
    batched_to_hold,
    highest_level,
    inner_axes,
    inner_axis,
    insert_axes,
    is_batched,
    is_batched_at,
    prepare_target,
    refuse_to_write,
    repeat_examples,
)
from gradmgr._arrays.batched_library import Library

_NUMBERS = (int, float, complex, np.generic)  # CuPy combines its arrays with these
Function = Callable[..., Any]
_f: Any
_untyped: Any = np  # NumPy's stubs do not know that arrays may be Batched


def register(*functions: Any) -> Callable[[Function], Function]:
    """Enter the decorated rule for these functions of NumPy."""

    def enter(rule: Function) -> Function:
        for function in functions:
            RULES[function] = rule
        return rule

    return enter


def is_outermost_level(a: Any, level: Level) -> bool:
    """Tell whether an array is batched at this level, the highest of a call."""
    return isinstance(a, Batched) and a.level is level


def _drop_no_value(keywords: dict[str, Any]) -> dict[str, Any]:
    """Drop the keywords that hold NumPy's placeholder for a value that was not given."""
    return {k: v for k, v in keywords.items() if v is not np._NoValue}


# ---------------------------------------------------------------- reductions


def _register_reduction(function: Any, *, empty_axes: bool = True) -> None:
    """Register the rule of a reduction: over all axes of one example, where none is named."""

    def rule(level: Level, a: Any, axis: Any = None, *args: Any, **keywords: Any) -> Any:
        if a.__class__ is Batched and a.level is level and not args and not keywords and (empty_axes or a.ndim):
            return Batched(level, function(a._array, inner_axes(axis, a.ndim)))
        keywords = _drop_no_value(keywords)
        where = keywords.get("where", True)
        rest = (args, {k: v for k, v in keywords.items() if k != "where"})
        if highest_level(rest) is not None or any(isinstance(v, np.ndarray) for v in args):
            return NotImplemented
        b = at_level(a, level)
        if b.ndim == 0 and not empty_axes:
            return NotImplemented
        p = b._array
        if is_batched(where):
            p = repeat_examples(p, level.size)
            keywords["where"] = insert_axes(where._array, b.ndim) if is_outermost_level(where, level) else where
        return Batched(level, function(p, inner_axes(axis, b.ndim), *args, **keywords))

    RULES[function] = rule


for _f in (np.sum, np.prod, np.max, np.min, np.amax, np.amin, np.mean, np.var, np.std, np.all, np.any):
    _register_reduction(_f)
for _f in (np.nansum, np.nanprod, np.nanmax, np.nanmin, np.nanmean, np.nanvar, np.nanstd, np.ptp, np.count_nonzero):
    _register_reduction(_f, empty_axes=False)
for _f in (np.median, np.nanmedian):
    _register_reduction(_f, empty_axes=False)


def _register_along_axis(function: Any, default: Any, *, keepdims: bool = False) -> None:
    """Register the rule of a function along one axis, over all elements in one row where axis is None."""

    def rule(level: Level, a: Any, *args: Any, **keywords: Any) -> Any:
        if args and "axis" in keywords:
            return NotImplemented
        axis = args[0] if args else keywords.pop("axis", default)
        keywords = _drop_no_value(keywords)
        if highest_level((args[1:], keywords)) is not None:
            return NotImplemented
        b = at_level(a, level)
        kept = keywords.pop("keepdims", False) if keepdims else False
        if axis is None or b.ndim == 0:
            shape = b.shape
            made = function(b.reshape(-1)._array, 1, *args[1:], **keywords)
            if keepdims:
                return Batched(level, made.reshape((made.shape[0],) + (1,) * len(shape)) if kept else made)
            return Batched(level, made if axis is None else made.reshape(made.shape[:1] + shape))
        if keepdims and kept:
            keywords["keepdims"] = True
        return Batched(level, function(b._array, inner_axis(axis, b.ndim), *args[1:], **keywords))

    RULES[function] = rule


for _f in (np.argmax, np.argmin, np.nanargmax, np.nanargmin):
    _register_along_axis(_f, None, keepdims=True)
for _f in (np.cumsum, np.cumprod, np.nancumsum, np.nancumprod):
    _register_along_axis(_f, None)
for _f in (np.sort, np.argsort):
    _register_along_axis(_f, -1)


def _register_kth(function: Any) -> None:
    def rule(level: Level, a: Any, kth: Any, axis: Any = -1, **keywords: Any) -> Any:
        if axis is None or is_batched(kth) or not is_batched_at(a, level):
            return NotImplemented
        return Batched(level, function(a._array, kth, inner_axis(axis, a.ndim), **keywords))

    RULES[function] = rule


_register_kth(np.partition)
_register_kth(np.argpartition)


@register(np.diff)
def _diff(
    level: Level, a: Any, n: int = 1, axis: int = -1, prepend: Any = np._NoValue, append: Any = np._NoValue
) -> Any:
    if prepend is not np._NoValue or append is not np._NoValue or not is_outermost_level(a, level):
        return NotImplemented
    return Batched(level, np.diff(a._array, n, inner_axis(axis, a.ndim)))


# ---------------------------------------------------------------- elementwise functions


def _register_elementwise(function: Any, count: int) -> None:
    """Register the rule of a function like a ufunc.

    The first `count` arguments broadcast, the rest is the same for all.
    """

    def rule(level: Level, *args: Any, **keywords: Any) -> Any:
        arrays = [x if is_batched(x) or isinstance(x, _NUMBERS) else as_array(x) for x in args[:count]]
        if highest_level((args[count:], keywords)) is not None or len(args) < count:
            return NotImplemented
        ndim = max([getattr(x, "ndim", 0) for x in arrays])
        inner_arrays = [insert_axes(x._array, ndim) if is_outermost_level(x, level) else x for x in arrays]
        return Batched(level, function(*inner_arrays, *args[count:], **keywords))

    RULES[function] = rule


for _f in (
    *(np.real, np.imag, np.angle, np.isreal, np.iscomplex, np.isposinf, np.isneginf, np.sinc, np.i0, np.round),
    *(np.around, np.fix, np.copy),
):
    _register_elementwise(_f, 1)
for _f in (np.isclose,):
    _register_elementwise(_f, 2)


@register(np.allclose)
def _allclose(level: Level, *args: Any, **keywords: Any) -> Any:
    return np.all(np.isclose(*args, **keywords))


@register(np.where)
def _where(level: Level, condition: Any, *choices: Any) -> Any:
    if len(choices) != 2:
        return NotImplemented
    given: list[Any] = [x if is_batched(x) or isinstance(x, _NUMBERS) else as_array(x) for x in choices]
    given = [condition if is_batched(condition) or isinstance(condition, _NUMBERS) else as_array(condition), *given]
    ndim = max([getattr(x, "ndim", 0) for x in given])
    return Batched(
        level, _untyped.where(*[insert_axes(x._array, ndim) if is_outermost_level(x, level) else x for x in given])
    )


@register(np.clip)
def _clip(level: Level, a: Any, a_min: Any = None, a_max: Any = None, **keywords: Any) -> Any:
    keywords = _drop_no_value(keywords)
    low, high = keywords.pop("min", a_min), keywords.pop("max", a_max)
    low, high = (None if bound is np._NoValue else bound for bound in (low, high))
    given: list[Any] = [
        x if x is None or is_batched(x) or isinstance(x, _NUMBERS) else as_array(x) for x in (a, low, high)
    ]
    ndim = max([getattr(x, "ndim", 0) for x in given])
    return Batched(
        level,
        np.clip(*[insert_axes(x._array, ndim) if is_outermost_level(x, level) else x for x in given], **keywords),
    )


@register(np.nan_to_num)
def _nan_to_num(level: Level, x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    if not copy or highest_level((nan, posinf, neginf)) is not None:
        return NotImplemented
    return Batched(level, np.nan_to_num(x._array, True, nan, posinf, neginf))


def _register_like(function: Any) -> None:
    def rule(
        level: Level, a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, **_: Any
    ) -> Any:
        return getattr(Library(level), function.__name__)(a, dtype, order, shape)

    RULES[function] = rule


for _f in (np.zeros_like, np.ones_like, np.empty_like):
    _register_like(_f)


@register(np.full_like)
def _full_like(level: Level, a: Any, fill_value: Any, *args: Any, **keywords: Any) -> Any:
    made = batched_to_hold(np.empty_like(a, *args, **keywords), fill_value)
    made[...] = fill_value
    return made


# ---------------------------------------------------------------- shapes and dtypes


@register(np.ndim)
def _ndim_rule(level: Level, a: Any) -> int:
    return int(a.ndim)


@register(np.shape)
def _shape_rule(level: Level, a: Any) -> Any:
    return a.shape


@register(np.size)
def _size_rule(level: Level, a: Any, axis: Any = None) -> Any:
    return NotImplemented if axis is not None else a.size


@register(np.iscomplexobj)
def _iscomplexobj(level: Level, x: Any) -> bool:
    return bool(x.dtype.kind == "c")


@register(np.isrealobj)
def _isrealobj(level: Level, x: Any) -> bool:
    return bool(x.dtype.kind != "c")


@register(np.result_type)
def _result_type(level: Level, *values: Any) -> Any:
    return np.result_type(*[x.dtype if is_batched(x) else x for x in values])


@register(np.can_cast)
def _can_cast(level: Level, from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if is_batched(from_) else from_, to, casting)


@register(np.common_type)
def _common_type(level: Level, *arrays: Any) -> Any:
    return np.common_type(*[np.empty(0, a.dtype) for a in arrays])


@register(np.min_scalar_type)
def _min_scalar_type(level: Level, a: Any) -> Any:
    return a.dtype


@register(np.may_share_memory, np.shares_memory)
def _share_memory(level: Level, a: Any, b: Any, max_work: Any = None) -> bool:
    return Library(level).may_share_memory(a, b)


# ---------------------------------------------------------------- shape


@register(np.reshape)
def _reshape(level: Level, a: Any, /, *args: Any, **keywords: Any) -> Any:
    keywords = _drop_no_value(keywords)
    shape = args[0] if args else keywords.get("shape", keywords.get("newshape"))
    order = args[1] if len(args) > 1 else keywords.get("order", "C")
    made = a.reshape(shape, order=order)
    return made.copy() if keywords.get("copy") else made


@register(np.ravel)
def _ravel(level: Level, a: Any, order: str = "C") -> Any:
    return a.reshape(-1, order=order)


@register(np.transpose, np.permute_dims)
def _transpose(level: Level, a: Any, axes: Any = None) -> Any:
    return a.transpose() if axes is None else a.transpose(tuple(axes))


@register(np.matrix_transpose, np.linalg.matrix_transpose)
def _matrix_transpose(level: Level, x: Any, /) -> Any:
    if x.ndim < 2:
        raise ValueError(f"matrix_transpose needs 2 axes; found an array of shape {x.shape}")
    return x.mT


@register(np.moveaxis)
def _moveaxis(level: Level, a: Any, source: Any, destination: Any) -> Any:
    return Batched(level, np.moveaxis(a._array, inner_axes(source, a.ndim), inner_axes(destination, a.ndim)))


@register(np.swapaxes)
def _swapaxes(level: Level, a: Any, axis1: Any, axis2: Any) -> Any:
    return Batched(level, np.swapaxes(a._array, inner_axis(axis1, a.ndim), inner_axis(axis2, a.ndim)))


@register(np.rollaxis)
def _rollaxis(level: Level, a: Any, axis: Any, start: int = 0) -> Any:
    start = start + a.ndim if start < 0 else start
    return Batched(level, np.rollaxis(a._array, inner_axis(axis, a.ndim), start + 1))


@register(np.squeeze)
def _squeeze(level: Level, a: Any, axis: Any = None) -> Any:
    axes = tuple([k + 1 for k, n in enumerate(a.shape) if n == 1]) if axis is None else inner_axes(axis, a.ndim)
    return Batched(level, np.squeeze(a._array, axes))


@register(np.expand_dims)
def _expand_dims(level: Level, a: Any, axis: Any) -> Any:
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return Batched(level, np.expand_dims(a._array, inner_axes(tuple(axes), a.ndim + len(axes))))


@register(np.broadcast_to)
def _broadcast_to(level: Level, array: Any, shape: Any, subok: bool = False) -> Any:
    lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if len(lengths) < array.ndim:
        raise ValueError(f"cannot broadcast shape {array.shape} to shape {lengths}")
    p = insert_axes(array._array, len(lengths))
    return Batched(level, np.broadcast_to(p, (p.shape[0], *lengths)))


@register(np.broadcast_arrays)
def _broadcast_arrays(level: Level, *arrays: Any, subok: bool = False) -> Any:
    given = [x if is_batched(x) else as_array(x) for x in arrays]
    shape = np.broadcast_shapes(*[x.shape for x in given])
    return tuple([np.broadcast_to(x, shape) for x in given])


@register(np.flip)
def _flip(level: Level, m: Any, axis: Any = None) -> Any:
    return Batched(level, np.flip(m._array, inner_axes(axis, m.ndim)))


@register(np.roll)
def _roll(level: Level, a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return _roll(level, a.reshape(-1), shift, 0).reshape(a.shape)
    return NotImplemented if is_batched(shift) else Batched(level, np.roll(a._array, shift, inner_axes(axis, a.ndim)))


@register(np.repeat)
def _repeat(level: Level, a: Any, repeats: Any, axis: Any = None) -> Any:
    if is_batched(repeats) or not is_outermost_level(a, level):
        return NotImplemented
    b = a.reshape(-1) if axis is None or a.ndim == 0 else a
    return Batched(level, np.repeat(b._array, repeats, inner_axis(0 if axis is None else axis, b.ndim)))


@register(np.tile)
def _tile(level: Level, A: Any, reps: Any) -> Any:  # noqa: N803  # NumPy's name
    counts = (reps,) if isinstance(reps, (int, np.integer)) else tuple(reps)
    ndim = max(A.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    return Batched(level, np.tile(insert_axes(A._array, ndim), (1, *counts)))


def _register_two_axes(function: Any) -> None:
    def rule(level: Level, a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, *args: Any, **keywords: Any) -> Any:
        if any(x is not None for x in args[1:]):
            return NotImplemented
        axes = inner_axis(axis1, a.ndim), inner_axis(axis2, a.ndim)
        return Batched(level, function(a._array, offset, *axes, *args[:1], **keywords))

    RULES[function] = rule


_register_two_axes(np.diagonal)
_register_two_axes(np.trace)


def _register_last_two_axes(function: Any) -> None:
    def rule(level: Level, m: Any, k: int = 0) -> Any:
        return NotImplemented if m.ndim < 2 or is_batched(k) else Batched(level, function(m._array, k))

    RULES[function] = rule


_register_last_two_axes(np.tril)
_register_last_two_axes(np.triu)


@register(np.linalg.diagonal)
def _linalg_diagonal(level: Level, x: Any, /, *, offset: int = 0) -> Any:
    return Batched(level, np.linalg.diagonal(x._array, offset=offset))


@register(np.linalg.trace)
def _linalg_trace(level: Level, x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return Batched(level, np.linalg.trace(x._array, offset=offset, dtype=dtype))


# ---------------------------------------------------------------- joins and pieces


def _arrays_of_all_examples(level: Level, arrays: Any) -> list[Any]:
    """Return the inner arrays, each with every example."""
    return [repeat_examples(at_level(x, level)._array, level.size) for x in arrays]


@register(np.concatenate)
def _concatenate(level: Level, arrays: Any, axis: Any = 0, *args: Any, **keywords: Any) -> Any:
    if any(x is not None for x in args):
        return NotImplemented
    parts = _arrays_of_all_examples(level, arrays)
    if axis is None:
        parts, axis = [p.reshape(p.shape[0], -1) for p in parts], 0
    return Batched(level, np.concatenate(parts, inner_axis(axis, parts[0].ndim - 1), **keywords))


@register(np.stack)
def _stack(level: Level, arrays: Any, axis: Any = 0, **keywords: Any) -> Any:
    parts = _arrays_of_all_examples(level, arrays)
    return Batched(level, np.stack(parts, inner_axis(axis, parts[0].ndim), **keywords))


@register(np.take)
def _take(level: Level, a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    if out is not None or mode != "raise":
        return NotImplemented
    a = a if is_batched(a) else as_array(a)
    if axis is None or a.ndim == 0:
        a, axis = a.reshape(-1), 0
    indices = indices if is_batched(indices) else as_array(indices)
    place = inner_axis(axis, a.ndim) - 1
    if not is_batched(indices):
        return Batched(level, np.take(a._array, indices, place + 1))
    return a[(slice(None),) * place + (indices,)] if is_batched(a) else _take_per_example(a, place, indices)


def _take_per_example(a: Any, place: int, indices: Any) -> Any:
    return at_level(a, indices.level)[(slice(None),) * place + (indices,)]


@register(np.take_along_axis)
def _take_along_axis(level: Level, arr: Any, indices: Any, axis: Any = -1) -> Any:
    a, i = _arrays_of_all_examples(level, (arr, indices))
    if axis is None:
        a, axis = a.reshape(a.shape[0], -1), 0
    k = inner_axis(axis, a.ndim - 1)
    lengths = np.broadcast_shapes(*[(*p.shape[1:k], 1, *p.shape[k + 1 :]) for p in (a, i)])
    a, i = (np.broadcast_to(p, (p.shape[0], *lengths[: k - 1], p.shape[k], *lengths[k:])) for p in (a, i))
    return Batched(level, np.take_along_axis(a, i, k))


@register(np.put_along_axis)
def _put_along_axis(level: Level, arr: Any, indices: Any, values: Any, axis: Any) -> Any:
    if axis is None or not is_outermost_level(arr, level):
        return NotImplemented
    i = indices if is_batched(indices) else as_array(indices)
    k = inner_axis(axis, arr.ndim) - 1
    grid = [np.arange(n).reshape((1,) * j + (n,) + (1,) * (arr.ndim - 1 - j)) for j, n in enumerate(i.shape)]
    arr[(*grid[:k], i, *grid[k + 1 :])] = values
    return None


@register(np.copyto)
def _copyto(level: Level, dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> Any:
    if not is_outermost_level(dst, level):
        refuse_to_write("copyto")
    if where is not True:
        prepare_target(dst, level, (src, where), "copyto")
        np.copyto(dst._array, align(src, level, dst.ndim), casting, align(where, level, dst.ndim))
        return None
    kind = src.dtype if hasattr(src, "dtype") else np.asarray(src).dtype
    if not np.can_cast(kind, dst.dtype, casting):
        raise TypeError(f"Cannot cast array data from {kind!r} to {dst.dtype!r} according to the rule {casting!r}")
    dst[...] = src
    return None


# ---------------------------------------------------------------- products


@register(np.dot)
def _dot(level: Level, a: Any, b: Any) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in (a, b))
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if b.ndim <= 2:
        return np.matmul(a, b)
    return np.tensordot(a, b, ((a.ndim - 1,), (b.ndim - 2,)))


@register(np.inner)
def _inner(level: Level, a: Any, b: Any) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in (a, b))
    return a * b if a.ndim == 0 or b.ndim == 0 else np.tensordot(a, b, ((a.ndim - 1,), (b.ndim - 1,)))


@register(np.vdot)
def _vdot(level: Level, a: Any, b: Any) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in (a, b))
    return np.matmul(np.conjugate(a.reshape(-1)), b.reshape(-1))


@register(np.outer)
def _outer(level: Level, a: Any, b: Any) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in (a, b))
    return a.reshape(-1, 1) * b.reshape(1, -1)


@register(np.linalg.outer)
def _linalg_outer(level: Level, x1: Any, x2: Any, /) -> Any:
    return _outer(level, x1, x2)


@register(np.tensordot, np.linalg.tensordot)
def _tensordot(level: Level, a: Any, b: Any, axes: Any = 2) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in (a, b))
    if isinstance(axes, (int, np.integer)):
        of_a, of_b = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        of_a, of_b = ([operator.index(k) for k in (x if np.iterable(x) else (x,))] for x in axes)
    of_a, of_b = [k % a.ndim for k in of_a], [k % b.ndim for k in of_b]
    if [a.shape[k] for k in of_a] != [b.shape[k] for k in of_b]:
        raise ValueError("shape-mismatch for sum")
    free_a, free_b = ([k for k in range(x.ndim) if k not in of] for x, of in ((a, of_a), (b, of_b)))
    shape = (*[a.shape[k] for k in free_a], *[b.shape[k] for k in free_b])
    summed = int(np.prod([a.shape[k] for k in of_a], dtype=np.intp))
    rows, columns = (int(np.prod([x.shape[k] for k in free], dtype=np.intp)) for x, free in ((a, free_a), (b, free_b)))
    left = a.transpose(tuple(free_a + of_a)).reshape(rows, summed)
    right = b.transpose(tuple(of_b + free_b)).reshape(summed, columns)
    return np.matmul(left, right).reshape(shape)


@register(np.linalg.matmul)
def _linalg_matmul(level: Level, x1: Any, x2: Any, /) -> Any:
    return np.matmul(x1, x2)


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register(np.einsum)
def _einsum(level: Level, *operands: Any, optimize: Any = False, **keywords: Any) -> Any:
    if not isinstance(operands[0], str) or highest_level(keywords.values()) is not None:
        return NotImplemented
    text, arrays = operands[0].replace(" ", ""), [x if is_batched(x) else as_array(x) for x in operands[1:]]
    inputs, arrow, output = text.partition("->")
    free = next((c for c in _LETTERS if c not in text), None)
    if free is None:
        return NotImplemented
    if not arrow:
        letters = sorted(c for c in set(inputs) - set(",.") if inputs.count(c) == 1)
        output = ("..." if "..." in inputs else "") + "".join(letters)
    terms, inner_arrays = inputs.split(","), []
    for k, x in enumerate(arrays):
        if not is_outermost_level(x, level):
            inner_arrays.append(x)
        elif x._array.shape[0] == 1 != level.size:
            inner_arrays.append(x._array[0, ...])
        else:
            inner_arrays.append(x._array)
            terms[k] = free + terms[k]
    if not any(term.startswith(free) for term in terms):
        return Batched(
            level, as_array(np.einsum(f"{inputs}->{output}", *inner_arrays, optimize=optimize, **keywords))[None]
        )
    made = np.einsum(f"{','.join(terms)}->{free}{output}", *inner_arrays, optimize=optimize, **keywords)
    return Batched(level, made)


# ---------------------------------------------------------------- linear algebra


def register_stacked_matrices(function: Any, compute: Any = None) -> None:
    """Register the rule of a function of stacks of matrices: the batch axis is one more axis of the stack.

    `compute` is what computes the same, sooner; None for the function.
    """
    compute = compute or function

    def rule(level: Level, a: Any, /, *args: Any, **keywords: Any) -> Any:
        if not is_outermost_level(a, level) or highest_level((args, keywords)) is not None:
            return NotImplemented
        if a.ndim < 2:
            raise np.linalg.LinAlgError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
        made = compute(a._array, *args, **keywords)
        if not isinstance(made, tuple):
            return Batched(level, made)
        parts = [Batched(level, part) for part in made]
        return type(made)(*parts) if hasattr(made, "_fields") else tuple(parts)

    RULES[function] = rule


for _f in (
    *(np.linalg.det, np.linalg.slogdet, np.linalg.cholesky, np.linalg.qr, np.linalg.eigh),
    *(np.linalg.eigvalsh, np.linalg.svd, np.linalg.svdvals, np.linalg.pinv, np.linalg.matrix_rank),
    *(np.linalg.matrix_power, np.linalg.cond, np.linalg.matrix_norm, np.linalg.eigvals, np.linalg.eig),
):
    register_stacked_matrices(_f)


@register(np.linalg.norm)
def _norm(level: Level, x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002  # NumPy's
    if not is_outermost_level(x, level) or is_batched(ord):
        return NotImplemented
    if axis is None and ord is None:
        made = np.linalg.norm(x.reshape(-1)._array, axis=1)
        return Batched(level, made.reshape(made.shape + (1,) * x.ndim) if keepdims else made)
    axes = inner_axes(axis, x.ndim)
    axes = axes[0] if isinstance(axes, tuple) and len(axes) == 1 else axes
    return Batched(level, np.linalg.norm(x._array, ord, axes, keepdims))


@register(np.linalg.vector_norm)
def _vector_norm(level: Level, x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002  # NumPy's
    if not is_outermost_level(x, level) or is_batched(ord) or x.ndim == 0:
        return NotImplemented
    made = np.linalg.vector_norm(x._array, axis=inner_axes(axis, x.ndim), keepdims=keepdims, ord=ord)
    return Batched(level, made)


@register(np.linalg.vecdot)
def _vecdot(level: Level, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return NotImplemented if axis != -1 else np.vecdot(x1, x2)


# ---------------------------------------------------------------- Fourier transforms


def _register_transform(function: Any, several: bool) -> None:
    def rule(level: Level, a: Any, n: Any = None, axis: Any = None, norm: Any = None, **keywords: Any) -> Any:
        axis = keywords.pop("axes", axis) if several else axis
        lengths = keywords.pop("s", n) if several else n
        if not several:
            inner: Any = inner_axis(-1 if axis is None else axis, a.ndim)
        elif axis is None and lengths is not None:
            inner = tuple(range(a.ndim + 1 - len(lengths), a.ndim + 1))
        elif axis is None and function in _OVER_TWO_AXES:
            inner = inner_axes((-2, -1), a.ndim)
        else:
            inner = inner_axes(axis, a.ndim)
        return Batched(level, function(a._array, lengths, inner, norm, **keywords))

    RULES[function] = rule


_OVER_TWO_AXES = (np.fft.fft2, np.fft.ifft2, np.fft.rfft2, np.fft.irfft2)
for _f in (np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft, np.fft.hfft, np.fft.ihfft):
    _register_transform(_f, several=False)
for _f in (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn, *_OVER_TWO_AXES):
    _register_transform(_f, several=True)


def _register_shift(function: Any) -> None:
    def rule(level: Level, x: Any, axes: Any = None) -> Any:
        return Batched(level, function(x._array, inner_axes(axes, x.ndim)))

    RULES[function] = rule


_register_shift(np.fft.fftshift)
_register_shift(np.fft.ifftshift)
