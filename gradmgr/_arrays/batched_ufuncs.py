"""Calls of ufuncs on batched arrays: one mechanism for all of them, and the operators of `Batched` that call them."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays import batched
from gradmgr._arrays.batched import (
    Batched,
    Level,
    align,
    as_array,
    at_level,
    batch_to_hold,
    batched_to_hold,
    highest_level,
    inner_axes,
    inner_axis,
    insert_axes,
    is_batched,
    is_batched_at,
    is_cupy_array,
    ndim_of,
    refuse_to_write,
    repeat_examples,
    write_results,
)
from gradmgr._arrays.batched_indexing import locate
from gradmgr._arrays.captured import CapturedArray, is_numpy
from gradmgr._arrays.operators import BITWISE, COMPARISONS


def _array_ufunc(self: Batched, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    if not keywords and method == "__call__":
        made = _fast_path_of(ufunc)(ufunc, self.level, inputs)
        if made is not None:
            return made
    outs = keywords.get("out", ())
    where = keywords.get("where", True)
    given = (*inputs, *outs, where)
    if not all(map(_is_supported, given)):
        return NotImplemented
    level = highest_level((*given, keywords.get("initial")))
    if level is None:
        return NotImplemented
    return _METHODS[method](level, ufunc, inputs, keywords)


Batched.__array_ufunc__ = _array_ufunc

_PLAIN = (bool, int, float, complex, np.ndarray, np.generic, type(None))


def _is_supported(value: Any) -> bool:
    if isinstance(value, (Batched, CapturedArray, *_PLAIN)) or not hasattr(value, "__array_ufunc__"):
        return True
    if isinstance(value, CapturedArray):
        return not is_batched(value.inner)
    return is_cupy_array(type(value))


# ---------------------------------------------------------------- fast paths


def _fast_path_of(ufunc: Any) -> Callable[[Any, Level, tuple[Any, ...]], Batched | None]:
    """Return a function that calls a ufunc in the most frequent cases, without keywords, and returns None in others."""
    if ufunc is np.matmul:
        return _multiply_by_one_matrix
    return _call_aligned if ufunc.signature is None and ufunc.nout == 1 else _no_fast_path


def _no_fast_path(ufunc: Any, level: Level, inputs: tuple[Any, ...]) -> None:
    """Return None: there is no fast path."""


def _call_aligned(ufunc: Any, level: Level, inputs: tuple[Any, ...]) -> Batched | None:
    """Call a ufunc with arrays of one level and numbers, in half of the time; return None in all other cases."""
    lowest, highest, plain = _MOST_AXES, 0, 0
    arrays = []
    for x in inputs:
        kind = x.__class__
        if kind is Batched and x.level is level:
            a = x._array
            if a.ndim > highest:
                highest = a.ndim
            if a.ndim < lowest:
                lowest = a.ndim
        elif kind is np.ndarray:
            a = x
            if x.ndim > plain:
                plain = x.ndim
        elif kind is float or kind is int:
            a = x
        else:
            return None
        arrays.append(a)
    if lowest < highest or plain >= lowest:  # axes are inserted, so that those of one example are aligned
        ndim = highest - 1 if highest > plain else plain
        arrays = [insert_axes(a, ndim) if x.__class__ is Batched else a for x, a in zip(inputs, arrays, strict=True)]
    try:
        return Batched(level, ufunc(*arrays))
    except ValueError:
        return None  # the general path raises with the shapes of one example


_MOST_AXES = 64  # that NumPy's arrays have


def _multiply_by_one_matrix(matmul: Any, level: Level, inputs: tuple[Any, ...]) -> Batched | None:
    """Multiply a vector of each example with one matrix, or a column with a row; return None in all other cases."""
    a, b = inputs
    if a.__class__ is b.__class__ is Batched and a.level is b.level:
        made = _column_times_row(a._array, b._array)
        return None if made is None else Batched(level, made)
    if a.__class__ is Batched and is_numpy(b):
        rows, matrix, inner = a._array, b, 0  # the vectors of all examples are the rows of a matrix
    elif b.__class__ is Batched and is_numpy(a):
        rows, matrix, inner = b._array, a, 1
    else:
        return None
    if not is_numpy(rows) or not rows.ndim == matrix.ndim == 2 or rows.shape[1] != matrix.shape[inner]:
        return None
    matrix = matrix.T if inner else matrix
    if rows is level.identity and rows.dtype == matrix.dtype:
        return Batched(level, matrix.copy("K"))
    return Batched(level, matmul(rows, matrix))


def _column_times_row(p: Any, q: Any) -> Any:
    """Return p @ q for a column and a row of each example, None for other shapes."""
    if not p.ndim == q.ndim == 3 or not p.shape[2] == q.shape[1] == 1 or p.dtype.kind not in "fc":
        return None
    large = p.shape[1] * q.size > _EINSUM_FASTER_ABOVE and len(p) == len(q)
    if large and is_numpy(p) and is_numpy(q) and p.dtype == q.dtype and p.dtype.kind == "f":
        return np.einsum("kij,kjl->kil", p, q)  # 3/4 of multiply's time
    return np.multiply(p, q)


_EINSUM_FASTER_ABOVE = 10_000  # elements, above which einsum is the quicker


# ---------------------------------------------------------------- calls


def _call(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if ufunc.signature is not None:
        return _call_generalized(level, ufunc, inputs, keywords)
    outs = keywords.pop("out", (None,) * ufunc.nout)
    if "where" in keywords and keywords["where"] is True:
        del keywords["where"]
    where = keywords.get("where")
    ndim = max(map(ndim_of, (*inputs, *([] if where is None else [where]), *[o for o in outs if o is not None])))
    arrays = [align(x, level, ndim) for x in inputs]
    if where is not None:
        keywords["where"] = align(where, level, ndim)
    if all(o is None for o in outs):
        try:
            made = ufunc(*arrays, **keywords)
        except ValueError:
            np.broadcast_shapes(*[np.shape(x) for x in inputs])  # raises with the shapes of one example
            raise
        return tuple([Batched(level, part) for part in made]) if ufunc.nout > 1 else Batched(level, made)
    written = tuple([_array_to_write(level, o, inputs, arrays, ndim, ufunc) for o in outs])
    if written[0] is _NEW_ARRAY:
        return Batched(level, ufunc(*arrays, **keywords))
    made = ufunc(*arrays, out=written, **keywords)
    for o, part in zip(outs, made if ufunc.nout > 1 else (made,), strict=True):
        if o is not None:
            o._array = part
    return outs if ufunc.nout > 1 else outs[0]


_NEW_ARRAY: Any = object()


def _array_to_write(level: Level, out: Any, inputs: Any, arrays: Any, ndim: int, ufunc: Any) -> Any:
    """Return the inner array to write to for out=; _NEW_ARRAY where `h += d` makes a new h."""
    if out is None:
        return None
    if isinstance(out, Batched) and out.level is level:
        batch_to_hold(out, inputs, ufunc.__name__)
        if out.ndim != ndim:
            raise ValueError(f"non-broadcastable output operand with shape {out.shape}")
        return out._array
    if len(inputs) == 2 and out is inputs[0]:  # Python binds h to what this returns
        return _NEW_ARRAY
    return refuse_to_write(ufunc.__name__)


_CORE = {"vecdot": (1, 1), "matvec": (2, 1), "vecmat": (1, 2)}


def _call_generalized(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call matmul or a similar ufunc; those of linear algebra are called by functions that have rules."""
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return write_results(out, ufunc(*inputs, **keywords), ufunc.__name__)
    if ufunc.__name__ == "matmul" and "axes" not in keywords and "axis" not in keywords:
        return Batched(level, _matmul(level, *inputs, **keywords))
    core = _CORE.get(ufunc.__name__)
    if core is None or {"axes", "axis", "keepdims"} & set(keywords):
        return batched.loop_over_examples(level, ufunc, inputs, keywords)
    outer = max(ndim_of(x) - c for x, c in zip(inputs, core, strict=True))
    arrays = [align(x, level, outer + c) for x, c in zip(inputs, core, strict=True)]
    return Batched(level, ufunc(*arrays, **keywords))


def _matmul(level: Level, a: Any, b: Any, **keywords: Any) -> Any:
    na, nb = ndim_of(a), ndim_of(b)
    if 0 in (na, nb):
        raise ValueError("matmul: Input operand does not have enough dimensions")
    _check_inner(np.shape(a), np.shape(b))
    a, b = _without_single_example(a, level), _without_single_example(b, level)
    a_is_batched, b_is_batched = (
        isinstance(a, Batched) and a.level is level,
        isinstance(b, Batched) and b.level is level,
    )
    p, q = (a._array if a_is_batched else a), (b._array if b_is_batched else b)
    if not (a_is_batched or b_is_batched):
        return np.matmul(p, q, **keywords)[None]
    if a_is_batched and not b_is_batched and nb <= 2:
        return _multiply_rows(p, q, keywords)
    if b_is_batched and not a_is_batched and nb == 1 and na <= 2:
        return np.matmul(q, p if na == 1 else np.swapaxes(p, 0, 1), **keywords)
    if b_is_batched and not a_is_batched and nb == na == 2:  # (p q)^T = q^T p^T, whose rows are those of all examples
        return np.swapaxes(_multiply_rows(np.swapaxes(q, 1, 2), np.swapaxes(p, 0, 1), keywords), 1, 2)
    if na == 1:
        p = p[:, None, :] if a_is_batched else p[None, :]
    if nb == 1:
        q = q[..., None]
    outer = max(na, nb, 2)
    made = np.matmul(
        insert_axes(p, outer) if a_is_batched else p, insert_axes(q, outer) if b_is_batched else q, **keywords
    )
    made = made[..., 0] if nb == 1 else made
    return made if na > 1 else made[..., 0] if nb == 1 else made[..., 0, :]


def _check_inner(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[-1] != b[max(-2, -len(b))]:
        raise ValueError(f"matmul: shapes {a} and {b} do not fit: {a[-1]} columns, {b[max(-2, -len(b))]} rows")


def _without_single_example(a: Any, level: Level) -> Any:
    """Return an array that is the same for all examples without its batch axis: one large product instead of many."""
    if isinstance(a, Batched) and a.level is level and a._array.shape[0] == 1 != level.size:
        return a._array[0]
    return a


def _multiply_rows(p: Any, q: Any, keywords: dict[str, Any]) -> Any:
    """Multiply the rows of all examples by one matrix, in one product."""
    if p.ndim <= 2 or is_batched(p) or is_batched(q):
        return np.matmul(p, q, **keywords)
    made = np.matmul(p.reshape(-1, p.shape[-1]), q, **keywords) if p.size else np.matmul(p, q, **keywords)
    return made.reshape(p.shape[:-1] + q.shape[1:])


# ---------------------------------------------------------------- methods of ufuncs


def _reduce(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    (a,) = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return write_results(out, ufunc.reduce(a, **keywords), ufunc.__name__)
    keywords = {k: v for k, v in keywords.items() if v is not np._NoValue}
    if is_batched(keywords.get("initial")):
        return batched.loop_over_examples(level, ufunc.reduce, inputs, keywords)
    p = at_level(a, level)._array
    keywords["axis"] = inner_axes(keywords.get("axis", 0), p.ndim - 1)
    if is_batched(keywords.get("where")):
        p = repeat_examples(p, level.size)
        keywords["where"] = align(keywords["where"], level, p.ndim - 1)
    return Batched(level, ufunc.reduce(p, **keywords))


def _accumulate(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    (a,) = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return write_results(out, ufunc.accumulate(a, **keywords), ufunc.__name__)
    axis = inner_axis(keywords.pop("axis", 0), a.ndim)
    return Batched(level, ufunc.accumulate(a._array, axis=axis, **keywords))


def _reduceat(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    a, indices = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return write_results(out, ufunc.reduceat(a, indices, **keywords), ufunc.__name__)
    if is_batched_at(indices, level):
        return batched.loop_over_examples(level, ufunc.reduceat, inputs, keywords)
    axis = inner_axis(keywords.pop("axis", 0), a.ndim)
    return Batched(level, ufunc.reduceat(a._array, indices, axis=axis, **keywords))


def _outer(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in inputs)
    return ufunc(a.reshape(a.shape + (1,) * b.ndim), b, **keywords)


def _at(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    a, index, *more = inputs
    if not isinstance(a, Batched) or a.level is not level:
        refuse_to_write(f"{ufunc.__name__}.at")
    batch_to_hold(a, (index, *more), f"{ufunc.__name__}.at")
    p, place, layout = locate(a, index)
    own = ufunc if is_batched(p) else getattr(level.root, ufunc.__name__, ufunc)  # CuPy's is not reached by protocol
    own.at(p, place, *[layout(v) for v in more])


_METHODS = MappingProxyType(
    {
        "__call__": _call,
        "reduce": _reduce,
        "accumulate": _accumulate,
        "reduceat": _reduceat,
        "outer": _outer,
        "at": _at,
    }
)


# ---------------------------------------------------------------- operators


def _operator(ufunc: Any, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operate(x: Batched, y: Any) -> Any:
        made = quick(ufunc, x.level, (y, x) if reflected else (x, y))
        if made is not None:
            return made
        if not _is_supported(y):
            return NotImplemented
        return ufunc(y, x) if reflected else ufunc(x, y)

    quick = _fast_path_of(ufunc)
    return operate


def _update(ufunc: Any) -> Callable[[Any, Any], Any]:
    def update(x: Batched, y: Any) -> Any:
        if y.__class__ is Batched and y.level is x.level:
            p, q = x._array, y._array
            if p.__class__ is q.__class__ is np.ndarray and p.shape == q.shape and p.dtype == q.dtype:
                ufunc(p, q, out=p)
                return x
        if not _is_supported(y):
            return NotImplemented
        return ufunc(x, y, out=(x,)) if batched_to_hold(x, y) is x else ufunc(x, y)

    return update


def _unary(ufunc: Any) -> Callable[[Any], Any]:
    return lambda x: ufunc(x)


for _name, _ufunc in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "divmod": np.divmod,
    **BITWISE,
}.items():
    setattr(Batched, f"__{_name}__", _operator(_ufunc))
    setattr(Batched, f"__r{_name}__", _operator(_ufunc, reflected=True))
    if _name != "divmod":
        setattr(Batched, f"__i{_name}__", _update(_ufunc))
for _name, _ufunc in COMPARISONS.items():
    setattr(Batched, f"__{_name}__", _operator(_ufunc))
for _name, _ufunc in {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}.items():
    setattr(Batched, f"__{_name}__", _unary(_ufunc))
