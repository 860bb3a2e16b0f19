"""The keywords of ufuncs, out=, where= and dtype=: done by the ops for casts, masks and writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.indexing import getitem
from gradmgr._engine.mutation import as_type, check_fits, loop_dtypes, put, store
from gradmgr._engine.op import zeros
from gradmgr._engine.tensor import Tensor, raw, wrap


def with_keywords(function: Any, ufunc: Any, args: tuple[Any, ...], out: Any, where: Any, dtype: Any) -> Any:
    """Do what a ufunc's keywords out=, where= and dtype= ask, from the ops for casts and masks."""
    try:
        out = _the_one(out)
        if any(isinstance(t, Tensor) for t in (*args, out, where)):
            return _by_keywords(function, ufunc, args, out, where, dtype)
        asked_for = {"out": (out, None), "where": (where, True), "dtype": (dtype, None)}
        return ufunc(*args, **{key: value for key, (value, default) in asked_for.items() if value is not default})
    except errors.REJECTIONS as error:
        errors.put_name(error, function.__name__)
        raise


def _the_one(out: Any) -> Any:
    """Read out=, which may stand in a tuple of one."""
    if isinstance(out, tuple):
        if len(out) != 1:
            raise ValueError("The 'out' tuple must have exactly one entry per ufunc output")
        (out,) = out
    if out is not None and not isinstance(out, Tensor) and not libraries.is_array(out):
        raise TypeError(f"return arrays must be of ArrayType: Tensors or arrays; found {type(out).__name__}")
    return out


def _by_keywords(function: Any, ufunc: Any, args: tuple[Any, ...], out: Any, where: Any, dtype: Any) -> Any:
    asked = f"{function.__name__}(out=...)"
    args = tuple([t if isinstance(t, Tensor) else libraries.need_operand(t, function.__name__) for t in args])
    mask = where if where is True else _mask_of(where)
    ufunc = ufunc if isinstance(ufunc, np.ufunc) else getattr(np, function.__name__, None)
    if isinstance(ufunc, np.ufunc) and ufunc.signature is None:  # everything is checked before anything is recorded
        loop = None if dtype is None and out is None else loop_dtypes(ufunc, args, dtype, function.__name__)
        if out is not None and loop is not None:
            check_fits(out, out.shape, loop[-1], asked)
        shape = np.broadcast_shapes(*(np.shape(raw(t)) for t in (*args, mask)))
        if out is not None:
            check_fits(out, shape, out.dtype, asked)
        if dtype is not None and loop is not None:
            args = tuple([_cast_arg(t, kind, function.__name__) for t, kind in zip(args, loop, strict=False)])
    elif dtype is not None:
        args = tuple([_cast_arg(t, np.dtype(dtype), function.__name__) for t in args])
    if mask is not True and isinstance(ufunc, np.ufunc) and ufunc.signature is not None:  # matmul: whole axes
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument 'where'")
    if mask is not True:
        return _masked(function, args, out, mask, asked)
    z = function(*args)
    return z if out is None else store(out, z, asked, may_broadcast=True)


def _mask_of(where: Any) -> Any:
    """Read where= as NumPy does: an array must hold booleans, of a list the truth of each element counts."""
    mask = raw(where)
    if not libraries.is_array(mask):
        return libraries.as_array(mask, bool)
    libraries.check_plain(mask)
    if mask.dtype != bool:
        raise TypeError(f"where= must hold booleans; found {mask.dtype}")
    return mask


def _cast_arg(t: Any, dtype: np.dtype[Any], name: str) -> Any:
    t = (
        t if isinstance(t, Tensor) or libraries.is_array(t) else np.asarray(t)[()]
    )  # a number may be used with CuPy arrays
    if not np.can_cast(t.dtype, dtype, "same_kind"):
        raise errors.DtypeError(f"{name}(dtype={dtype}) cannot take {t.dtype} by a same-kind cast; cast it first")
    return t if t.dtype == dtype else as_type(t, dtype)


def _masked(function: Any, args: tuple[Any, ...], out: Any, mask: Any, asked: str) -> Any:
    """Compute only where the mask is set, so that values elsewhere have no part in any derivative.

    Elsewhere the result is that of out=, and 0 without one.
    """
    shape = np.broadcast_shapes(mask.shape, *(np.shape(raw(t)) for t in (*args, out) if t is not None))
    mask = libraries.namespace(mask).broadcast_to(mask, shape)
    picked = [getitem(broadcast_to(t, shape), mask) if isinstance(t, Tensor) else _picked(t, shape, mask) for t in args]
    part = function(*picked)
    if out is None:
        return put(wrap(zeros(part, shape, part.dtype)), mask, part)
    check_fits(out, shape, part.dtype, asked)
    part = part if part.dtype == out.dtype else as_type(part, out.dtype)
    return store(out, put(out if isinstance(out, Tensor) else wrap(out), mask, part), asked)


def _picked(value: Any, shape: tuple[int, ...], mask: Any) -> Any:
    if np.shape(value) == ():
        return value
    array = value if libraries.is_array(value) else np.asarray(value)
    return libraries.namespace(array).broadcast_to(array, shape)[mask]
