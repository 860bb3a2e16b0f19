"""Softmax and its logarithm: one op each behind `gradmgr.special`, which is SciPy's, and `nn.functional`, torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays import libraries, native_kernels
from gradmgr._arrays.blocks import BLOCK
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.ops.arithmetic import exp
from gradmgr.ops.convert import cast_to, lift, wide_dtype, widen_half
from gradmgr.ops.reduce import sum
from gradmgr.ops.reduction_arguments import axes_of
from gradmgr.ops.where import choose

Axes = tuple[int, ...]


# ---------------------------------------------------------------- rows
# With one number for each row NumPy's loops take 0.17 ns for each float32 where two whole arrays take 0.06, for what is
# the same along a row is first copied into a buffer. Of long rows nothing is copied where the buffer is smaller than a
# row: 0.09 ns. The largest of each row takes 0.1 to 1.6 ns, the sum by `vecdot` 0.06 to 0.2, by `add.reduce` 0.14 to
# 0.5.

_FEW = 1024  # numbers for which all this takes longer than it saves
LONG = 512
_SO_LONG = 4096  # numbers, beyond which the sums of BLAS, which are those of a few dozen, would not be as exact


def as_rows(x: Any, axes: Axes) -> Any:
    """Return a large array of NumPy's, in float32 or float64, as (rows, columns) if the last axis is asked, or None."""
    if x.__class__ is not np.ndarray or x.size < _FEW or axes != (x.ndim - 1,) or not x.flags.c_contiguous:
        return None
    if x.dtype is not libraries.F4 and x.dtype is not libraries.F8:
        return None
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _in_one_if_large(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Return what `libraries.in_one` does where `as_rows` might take what is captured, else None."""
    if x.__class__ is np.ndarray or x.size < _FEW:
        return None
    return libraries.in_one(function, x, *others)


def is_small(x: Any) -> bool:
    """Tell whether `as_rows` does not take an array because of its size, captured or not."""
    return bool(x.size < _FEW)


def by_rows(
    work: Callable[[slice], None], x: Any, shortest: int | None = None, *, few: bool = False, quiet: bool = True
) -> None:
    """Call work(part) for blocks of the rows of x, (rows, columns), one after another.

    On one thread: these are passes over memory, and two threads that take turns at the interpreter took longer.

    Args:
        work: what is done with some of the rows.
        x: contiguous.
        shortest: the length of the shortest rows that are combined with one number for each row, if not those of x.
        few: whether the blocks are small ones, as there is scratch memory of their size: of large arrays that come and
            go, the C library gives the memory back to the system.
        quiet: whether floating-point errors are none.
    """
    rows, columns = x.shape
    with np.errstate(all="ignore") if quiet else np.errstate():
        if (columns if shortest is None else shortest) >= LONG:
            np.setbufsize(16)  # until the end of the block, as errstate puts back both
        each = fewest_rows(x) if few else rows_of_block(x)
        for start in range(0, rows, each) if rows else (0,):
            work(slice(start, min(start + each, rows)))


def rows_of_block(x: Any) -> int:
    """Return how many rows of x are a block; no result of a row depends on it.

    Half of the time of 20 calls on 128 KiB is that of their beginning; larger blocks are faster even where they do not
    fit into the cache.
    """
    return 2 * fewest_rows(x)


def fewest_rows(x: Any) -> int:
    """Return how many rows of x are a small block."""
    return max(1, BLOCK * len(x) // int(x.nbytes))


def rows_for_blocks(row: Any, x: Any) -> Any:
    """Return what is combined with each row of x as the rows of a block, where there are several.

    With one row NumPy's loops take 0.13 ns for each float32, with an array of the same shape 0.06.
    """
    each = rows_of_block(x)
    return row if row is None or len(x) <= each else np.tile(row, (each, 1))


def row_sums(x: Any) -> Any:
    """Return the sum of each row."""
    return row_dots(x, np.ones(x.shape[1], x.dtype))


def row_dots(x: Any, y: Any) -> Any:
    """Return the sum of products of each row; y may be one row. Those of a row do not depend on the others."""
    columns = x.shape[1]
    if columns <= _SO_LONG:
        return np.vecdot(x, y)
    whole = columns - columns % _SO_LONG
    parts = [a[..., :whole].reshape(*a.shape[:-1], -1, _SO_LONG) for a in (x, y)]
    found = np.add.reduce(np.vecdot(*parts), axis=1)
    found += np.vecdot(x[:, whole:], y[..., whole:])
    return found


def are_moderate(totals: Any) -> bool:
    """Tell whether sums of exponentials say that nothing has over- or underflown that would have a part in them.

    Then no largest number need be found and taken away first: of a row whose sum is not below 1e-3, what underflows is
    less than the smallest number times 1e3.
    """
    inverse = np.reciprocal(totals)
    return bool(inverse.dot(inverse) < 1e6 and totals.dot(totals) < 1e36)


# ---------------------------------------------------------------- the ops


def _subtract_maximum(x: Any, top: Any) -> Any:
    """Return x - top in a new buffer, of float32 for halves."""
    if x.__class__ is np.ndarray and x.ndim and (x.dtype is libraries.F4 or x.dtype is libraries.F8):
        return x - top
    wide = wide_dtype(x.dtype)
    if wide is not x.dtype:
        x, top = x.astype(wide), top.astype(wide)
    return np.subtract(x, top, out=libraries.namespace(x).empty(x.shape, wide))


def _maximum(x: Any, axes: Axes) -> Any:
    """Return numpy.max, of NumPy's arrays without its Python wrappers."""
    if x.__class__ is np.ndarray:
        return np.maximum.reduce(x, axis=axes, keepdims=True)
    return np.max(x, axis=axes, keepdims=True)


def _in_dtype_of(made: Any, x: Any) -> Any:
    """Return a result in the dtype of x, one number as NumPy gives it."""
    made = made if made.dtype is x.dtype else made.astype(x.dtype, copy=False)
    return made if made.ndim else made[()]


def _sum_kept(a: Any, axes: Axes) -> Any:
    return sum(a, axes, keepdims=True) if isinstance(a, Tensor) else libraries.sum_over(a, axes, True)


@libraries.keeps_nothing
def _softmax_kernel(x: Any, axes: Axes) -> Any:
    if axes == (x.ndim - 1,) and (found := native_kernels.along_rows("softmax", x, number=1.0)) is not None:
        return found
    rows = as_rows(x, axes)
    if rows is not None:
        return _softmax_of_rows(x, rows)
    if (one := _in_one_if_large(_softmax_kernel, x)) is not None:
        return one(x, axes)
    with np.errstate(under="ignore", invalid="ignore"):
        share = _subtract_maximum(x, _maximum(x, axes))
        np.exp(share, out=share)
        share /= libraries.sum_over(share, axes, True)
    return _in_dtype_of(share, x)


def _empty_like_rows(whole: Any, rows: Any) -> tuple[Any, Any]:
    """Return new memory as one array, which is no view of another, and as rows."""
    made = np.empty(whole.shape, whole.dtype)
    return made, made if whole.ndim == 2 else made.reshape(rows.shape)


def _softmax_of_rows(whole: Any, x: Any) -> Any:
    made, outs = _empty_like_rows(whole, x)

    def work(part: slice) -> None:
        out = outs[part]
        np.exp(x[part], out=out)
        total = row_sums(out)
        if not are_moderate(total):
            np.subtract(x[part], np.maximum.reduce(x[part], axis=1, keepdims=True), out=out)
            np.exp(out, out=out)
            total = row_sums(out)
        out /= total[:, None]

    by_rows(work, x)
    return made


# How near to 1 a probability is taken for 1 less the others, of which it would have lost digits.
NEARLY = 1e-6


def is_certain(share: Any) -> Any:
    """Return a mask of the probabilities that are nearly 1."""
    return raw(share).real > 1 - NEARLY


def _may_be_certain(share: Any) -> bool:
    """Return False if no probability is."""
    if share.__class__ is not np.ndarray or share.dtype.kind == "c":
        return True
    return share.size > 0 and not share.item(share.argmax()) <= 1 - NEARLY


def shift_to_certain(g: Any, share: Any, axes: Axes) -> Any:
    """Return g less what it is where a probability is nearly 1.

    As probabilities add up to 1, no derivative changes by that; but that element's is then a sum of small numbers, and
    not a difference that is rounded to 0.
    """
    one = is_certain(share)
    if not (libraries.is_captured(one) or libraries.may_hold(one)):  # no guard: see at_the_end
        return g
    return g - _sum_kept(choose(one, g, 0.0), axes)


def rest_of_sum(d: Any, one: Any, axes: Axes) -> Any:
    """Return derivatives d, whose sum is 0, at `one` of each row as what is left to that sum."""
    if not (libraries.is_captured(one) or libraries.may_hold(one)):
        return d
    return choose(one, -_sum_kept(choose(one, 0.0, d), axes), d)


@libraries.keeps_nothing
def softmax_map(g: Any, out: Any, axes: Axes) -> Any:
    """Return out (g - sum(g out)), the derivative of the softmax: it is symmetric, so that it serves both ways."""
    if axes == (out.ndim - 1,) and (found := native_kernels.along_rows("softmax_vjp", g, out, number=1.0)) is not None:
        return found
    rows = as_rows(out, axes)
    if rows is not None and g.__class__ is np.ndarray and g.dtype is out.dtype and g.shape == out.shape:
        return _map_of_rows(g, rows)
    if (one := _in_one_if_large(softmax_map, out, g)) is not None:
        return one(g, out, axes)
    g = shift_to_certain(g, out, axes) if _may_be_certain(out) else g
    part = g * out
    part -= out * _sum_kept(part, axes)
    return part


def _map_of_rows(whole: Any, out: Any) -> Any:
    made, slopes = _empty_like_rows(whole, out)
    g = whole if whole.ndim == 2 else whole.reshape(out.shape)

    def work(part: slice) -> None:
        here, share, slope = g[part], out[part], slopes[part]
        here = shift_to_certain(here, share, (1,)) if _may_be_certain(share) else here
        np.subtract(here, row_dots(here, share)[:, None], out=slope)
        slope *= share

    by_rows(work, out)
    return made


softmax_along = custom(
    "softmax",
    _softmax_kernel,
    vjp={"x": lambda g, out, axes: softmax_map(g, conj_of(widen_half(out)), axes)},
    jvp={"x": lambda t, out, axes: softmax_map(t, widen_half(out), axes)},
)


def log_in_two(totals: Any) -> tuple[Any, Any]:
    """Return logarithms, rounded, and what rounding took.

    A difference from them near 0, such as the logarithm of a probability near 1, would be off by their roundings. In
    two parts it is as exact as where the largest number of each row is taken away first.
    """
    near = np.log(totals)
    rest = np.exp(-near)
    rest *= totals
    rest -= 1
    return near, rest


def _log_softmax_of_rows(whole: Any, x: Any) -> Any:
    """Return None if the largest number of each row is to be taken away first."""
    made, outs = _empty_like_rows(whole, x)
    bad: list[slice] = []

    def work(part: slice) -> None:
        out = outs[part]
        np.exp(x[part], out=out)
        total = row_sums(out)
        if bad or not are_moderate(total):
            bad.append(part)
            return
        near, rest = log_in_two(total)
        np.subtract(x[part], near[:, None], out=out)
        out -= rest[:, None]

    by_rows(work, x)
    return None if bad else made


@libraries.keeps_nothing
def _log_softmax_kernel(x: Any, axes: Axes, like_scipy: bool) -> Any:
    if axes == (x.ndim - 1,):
        found = native_kernels.along_rows("log_softmax", x, number=float(like_scipy))
        if found is not None:
            return found
    rows = as_rows(x, axes)
    if rows is not None:
        made = _log_softmax_of_rows(x, rows)
        if made is not None:
            return made
    if (one := _in_one_if_large(_log_softmax_kernel, x)) is not None:
        return one(x, axes, like_scipy)
    top = _maximum(x, axes)
    if like_scipy:
        top = np.where(np.isfinite(top), top, np.zeros_like(top))
    with np.errstate(all="ignore"):
        made = _subtract_maximum(x, top)
        made -= np.log(libraries.sum_over(np.exp(made), axes, True))
    return _in_dtype_of(made, x)


@libraries.keeps_nothing
def _log_softmax_vjp(g: Any, out: Any, axes: Axes) -> Any:
    if axes == (out.ndim - 1,):
        found = native_kernels.along_rows("log_softmax_vjp", g, out, number=0.0)
        if found is not None:
            return found
    rows = as_rows(out, axes)
    if rows is not None and g.__class__ is np.ndarray and g.dtype is out.dtype and g.shape == out.shape:
        return _log_map_of_rows(g, rows)
    if (one := _in_one_if_large(_log_softmax_vjp, out, g)) is not None:
        return one(g, out, axes)
    g, share = widen_half(g), conj_of(exp(widen_half(out)))
    total = _sum_kept(g, axes)
    d = g - share * total
    return _with_rest(d, g, share, total, axes) if _may_be_certain(share) else d


def _with_rest(d: Any, g: Any, share: Any, total: Any, axes: Axes) -> Any:
    """Return d = g - share total, and where a share is nearly 1, g - total + (sum of the others) total."""
    one = is_certain(share)
    if not (libraries.is_captured(one) or libraries.may_hold(one)):
        return d
    return choose(one, g - total + _sum_kept(choose(one, 0.0, share), axes) * total, d)


def _log_map_of_rows(whole: Any, out: Any) -> Any:
    made, slopes = _empty_like_rows(whole, out)
    g = whole if whole.ndim == 2 else whole.reshape(out.shape)

    def work(part: slice) -> None:
        here, to = g[part], slopes[part]
        np.exp(out[part], out=to)
        share, total = to.copy() if _may_be_certain(to) else None, row_sums(here)[:, None]
        to *= np.negative(total)
        to += here
        if share is not None:
            to[...] = _with_rest(to, here, share, total, (1,))

    by_rows(work, out)
    return made


def _log_softmax_jvp(t: Any, out: Any, axes: Axes) -> Any:
    share = exp(widen_half(out))
    t = shift_to_certain(widen_half(t), share, axes)
    return t - _sum_kept(t * share, axes)


# With `like_scipy`, all other results of a row with an inf are -inf; without, the whole row is NaN, as in torch.
log_softmax_along = custom("log_softmax", _log_softmax_kernel, vjp={"x": _log_softmax_vjp}, jvp={"x": _log_softmax_jvp})


def _lift_floating(x: Any) -> Any:
    """Lift; integers to the dtype of their exponentials."""
    x = lift(x)
    return cast_to(x, np.result_type(x.dtype, np.float16)) if x.dtype.kind in "biu" else x


def softmax(x: Any, axis: Any = None) -> Any:
    """Return exp(x) / sum(exp(x)) along axes, all of them by default; NaN for a row of -inf, as SciPy.

    float16 and bfloat16 are computed in float32 inside.
    """
    x = _lift_floating(x)
    return softmax_along(x, axes_of(axis, x.ndim, "softmax", of_number=True))


def log_softmax(x: Any, axis: Any = None) -> Any:
    """Return log(softmax(x)) without under- or overflow; -inf where x is.

    float16 and bfloat16 are computed in float32 inside.
    """
    x = _lift_floating(x)
    return log_softmax_along(x, axes_of(axis, x.ndim, "log_softmax", of_number=True), True)
