"""Norms of vectors and matrices, condition numbers, and the rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple
from numpy.linalg import LinAlgError

from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import call_quietly
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import as_type
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import reduce
from gradmgr.ops.arithmetic import absolute, power, real
from gradmgr.ops.convert import cast_to, is_plain, lift, untracked_value
from gradmgr.ops.decompose import svdvals
from gradmgr.ops.matrices import check_matrix, check_square, eye_like, lift_matrices, wrap_like
from gradmgr.ops.reduction_arguments import axes_of_floats, kept_shape
from gradmgr.ops.shape import moveaxis, reshape
from gradmgr.ops.solve import invert
from gradmgr.ops.where import choose


def _euclidean_norm_kernel(x: Any, axes: tuple[int, ...]) -> Any:
    """Compute the Euclidean norm; the axes are kept with length 1."""
    return (_euclidean_norm_of if x.__class__ is np.ndarray else _euclidean_norm_as_one)(x, axes)


def _euclidean_norm_of(x: Any, axes: tuple[int, ...]) -> Any:
    if x.dtype.itemsize == 2:
        return _euclidean_norm_kernel(x.astype(np.float32), axes).astype(x.dtype)
    if x.__class__ is np.ndarray:
        total = call_quietly(reduce.sum_of_squares, x, axes, True)
        if reduce.is_in_range(total):
            return np.sqrt(total)
    return reduce.scaled_root(np.sqrt, reduce.sum_of_squares, x, axes, True)


_euclidean_norm_as_one = libraries.captured_as_one()(_euclidean_norm_of)


def _unit_vector(x: Any, out: Any) -> Any:
    """Return x / |x|; 0 at 0, in the derivative, too."""
    zero = raw(out) == 0
    return choose(zero, 0.0, x / choose(zero, 1.0, out)) if libraries.may_hold(zero) else x / out


_euclidean_norm = custom(
    "norm",
    _euclidean_norm_kernel,
    vjp={"x": lambda g, x, out: g * _unit_vector(x, out)},
    jvp={"x": lambda t, x, out, axes: reduce.add_up(real(conj_of(_unit_vector(x, out)) * t), axes, True)},
)


@libraries.captured_as_one()
def _power_norm_kernel(x: Any, p: float, axes: tuple[int, ...]) -> Any:
    """Compute the p-norm of numbers that are not negative; the axes are kept with length 1."""
    if x.dtype.itemsize == 2:
        return _power_norm_kernel(x.astype(np.float32), p, axes).astype(x.dtype)
    root = x.dtype.type(1 / p)
    if x.__class__ is np.ndarray:
        total = call_quietly(_sum_of_powers, x, axes, p)
        if reduce.is_in_range(total):
            return total**root
    return reduce.scaled_root(lambda total: total**root, _sum_of_powers, x, axes, p)


def _sum_of_powers(x: Any, axes: tuple[int, ...], p: float) -> Any:
    return libraries.sum_over(x**p, axes, True)


def _power_norm_slope(x: Any, out: Any, p: float) -> Any:
    """Return (x / |x|)^(p - 1); 0 where the norm or, for p < 1, where x is 0, which is between its two slopes there.

    A further derivative has x and |x| in powers of their own: where x is 0, and that of its power infinite, the other
    elements then get nothing of it.
    """
    at_0 = (raw(x) == 0) | (raw(out) == 0) if p < 1 else raw(out) == 0
    some = libraries.may_hold(at_0)
    if some:
        x, out = choose(at_0, 1.0, x), choose(raw(out) == 0, 1.0, out)
    slope = power(x / raw(out), p - 1)
    if isinstance(out, Tensor):
        slope = slope * power(out / raw(out), 1 - p)
    return choose(at_0, 0.0, slope) if some else slope


_power_norm = custom(
    "norm of order p",
    _power_norm_kernel,
    vjp={"x": lambda g, x, out, p: g * _power_norm_slope(x, out, p)},
    jvp={"x": lambda t, x, out, p, axes: reduce.add_up(t * _power_norm_slope(x, out, p), axes, True)},
)


def _remove_axes(z: Any, axes: tuple[int, ...], keepdims: Any) -> Any:
    """Take away the axes of length 1 that a norm kept, unless they are wanted."""
    if keepdims:
        return z
    if len(axes) == z.ndim:
        return z[(0,) * z.ndim]  # in a third of the time of a reshape
    return reshape(z, tuple([n for k, n in enumerate(z.shape) if k not in axes]))


def _vector_norm(x: Any, order: Any, axes: tuple[int, ...], keepdims: Any, name: str) -> Any:
    if order is None or order == 2:
        return _remove_axes(_euclidean_norm(x, axes), axes, keepdims)
    if isinstance(order, str):
        raise ValueError(f"{name}: Invalid norm order '{order}' for vectors")
    if order == np.inf:
        return _maximum(absolute(x), axes, keepdims)
    if order == -np.inf:
        _check_not_empty(x, axes, name)
        return reduce.min(absolute(x), axes, keepdims=keepdims)
    if order == 0:
        # Where x is not 0 the constant 1; elsewhere |x|, whose derivative is 0 there.
        return reduce.sum(choose(raw(x) != 0, _real_one(x), absolute(x)), axes, keepdims=keepdims)
    if order == 1:
        return reduce.sum(absolute(x), axes, keepdims=keepdims)
    return _remove_axes(_power_norm(absolute(x), order, axes), axes, keepdims)


def _check_not_empty(x: Any, axes: tuple[int, ...], name: str) -> None:
    if any(x.shape[k] == 0 for k in axes):
        raise ValueError(f"{name}: zero-size array has no minimum")


def _real_one(x: Any) -> Any:
    return raw(x).real.dtype.type(1)


def _maximum(x: Any, axes: Any, keepdims: Any = False) -> Any:
    """Return the maximum, 0 for no elements, as NumPy's norms do."""
    empty = raw(x).size == 0
    return reduce.max(x, axes, keepdims=keepdims, initial=0) if empty else reduce.max(x, axes, keepdims=keepdims)


def _matrix_norm(x: Any, order: Any, axes: tuple[int, int], keepdims: Any, name: str) -> Any:
    row, column = axes
    if order is None or order in ("fro", "f"):
        return _remove_axes(_euclidean_norm(x, axes), axes, keepdims)
    if order in (2, -2, "nuc"):
        if order == -2:
            _check_not_empty(x, axes, name)
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        z = reduce.sum(s, -1) if order == "nuc" else _maximum(s, -1) if order == 2 else reduce.min(s, -1)
    elif order in (1, -1, np.inf, -np.inf):
        over, along = (row, column) if abs(order) == 1 else (column, row)
        if order < 0:
            _check_not_empty(x, (along,), name)
        sums = reduce.sum(absolute(x), over)
        along -= along > over
        z = _maximum(sums, along) if order > 0 else reduce.min(sums, along)
    else:
        raise ValueError(f"{name}: Invalid norm order {order!r} for matrices.")
    return reshape(z, kept_shape(x.shape, axes)) if keepdims else z


def _lift_floating(x: Any) -> Any:
    x = lift(x)
    return x if x.dtype.kind in "fc" else as_type(x, np.float64)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return vector or matrix norms as `numpy.linalg.norm`, of every order.

    The derivative at 0 is 0; maxima and minima share it evenly at ties; that of the nuclear norm of a matrix of
    lower rank is a subgradient.
    """
    if ord is None:
        axes = axes_of_floats(x, axis)
        if axes is not None:
            return _remove_axes(_euclidean_norm(x, axes), axes, keepdims)
    if is_plain(x, ord):
        return np.linalg.norm(x, ord, axis, keepdims)
    return _norm(wrap_like(_lift_floating(x), ord), _order(ord, "norm", "ord"), axis, keepdims, "norm")


def _order(order: Any, name: str, parameter: str) -> Any:
    """Return the order of a norm as a Python number or string."""
    order = untracked_value(order, name, parameter)
    return order.item() if libraries.is_array(order) and not order.ndim else order


def _norm(x: Any, order: Any, axis: Any, keepdims: Any, name: str) -> Any:
    if axis is None:
        axes = tuple(range(x.ndim))
        if order is None or (order in ("f", "fro") and x.ndim == 2) or (order == 2 and x.ndim == 1):
            return _remove_axes(_euclidean_norm(x, axes), axes, keepdims)
    elif isinstance(axis, tuple):
        axes = tuple([normalize_axis_index(k, x.ndim) for k in axis])
    else:
        try:
            axes = (normalize_axis_index(int(axis), x.ndim),)
        except TypeError:
            raise TypeError(f"{name}: 'axis' must be None, an integer or a tuple of integers; found {axis!r}") from None
    if len(axes) == 1:
        return _vector_norm(x, order, axes, keepdims, name)
    if len(axes) != 2:
        raise ValueError(f"{name}: Improper number of dimensions to norm.")
    if axes[0] == axes[1]:
        raise ValueError(f"{name}: Duplicate axes given.")
    return _matrix_norm(x, order, axes, keepdims, name)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return norms of the matrices in the last two axes as `numpy.linalg.matrix_norm`."""
    if is_plain(x, ord):
        return np.linalg.matrix_norm(x, keepdims=keepdims, ord=ord)
    return _norm(
        wrap_like(_lift_floating(x), ord), _order(ord, "matrix_norm", "ord"), (-2, -1), keepdims, "matrix_norm"
    )


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return norms over any number of axes as `numpy.linalg.vector_norm`."""
    if is_plain(x, ord):
        return np.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    x, ord = wrap_like(_lift_floating(x), ord), _order(ord, "vector_norm", "ord")
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    return _vector_norm(x, ord, axes, keepdims, "vector_norm")


def cond(x: Any, p: Any = None) -> Any:
    """Return condition numbers as `numpy.linalg.cond`; inf for a singular matrix, without a derivative there."""
    if is_plain(x, p):
        return np.linalg.cond(x, p)
    (x,), dtype = lift_matrices("cond", x)
    x, p = wrap_like(x, p), _order(p, "cond", "p")
    (check_matrix if p is None or p in (2, -2) else check_square)("cond", x)
    if 0 in x.shape[-2:]:
        raise LinAlgError("cond: cond is not defined on empty arrays")
    x = cast_to(x, dtype)
    with np.errstate(all="ignore"):
        r = _cond_by_values(x, p) if p is None or p in (2, -2) else _cond_by_inverse(x, p)
    odd = np.isnan(raw(r)) & ~np.isnan(raw(x)).any(axis=(-2, -1))
    return choose(odd, raw(r).dtype.type(np.inf), r) if odd.any() else r


def _cond_by_values(x: Any, p: Any) -> Any:
    s = svdvals(x)
    return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]


def _cond_by_inverse(x: Any, p: Any) -> Any:
    singular = _is_singular(raw(x))
    safe = choose(singular[..., None, None], eye_like(x), x) if singular.any() else x
    r = _norm(x, p, (-2, -1), False, "cond") * _norm(invert(safe), p, (-2, -1), False, "cond")
    return choose(singular, raw(r).dtype.type(np.nan), r) if singular.any() else r


def _is_singular(a: Any) -> Any:
    """Tell for each plain matrix whether LAPACK's LU meets an exact 0, as numpy.linalg.inv does."""
    sign, _ = np.linalg.slogdet(a)
    return np.asarray(sign == 0) if libraries.namespace(a) is np else sign == 0


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:  # noqa: N803  # NumPy's
    """Count the singular values above a tolerance as `numpy.linalg.matrix_rank`; the result carries no gradient."""
    if is_plain(A, tol, rtol):
        return np.linalg.matrix_rank(A, tol, hermitian, rtol=rtol)
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank: `tol` and `rtol` can't be both set.")
    a = raw(lift(A))
    xp = libraries.namespace(a)
    if a.ndim < 2:
        return wrap(xp.asarray((a != 0).any().astype(np.intp)))
    (a,), dtype = lift_matrices("matrix_rank", a)
    a = cast_to(a, dtype)
    s = abs(np.linalg.eigvalsh(a)) if hermitian else np.linalg.svd(a, compute_uv=False)
    if tol is None:
        rtol = max(a.shape[-2:]) * np.finfo(s.dtype).eps if rtol is None else xp.asarray(raw(rtol))[..., None]
        tol = (s.max(axis=-1, keepdims=True) if s.size else 0.0) * rtol
    else:
        tol = xp.asarray(raw(tol))[..., None]
    return wrap(xp.asarray(xp.count_nonzero(s > tol, axis=-1)))
