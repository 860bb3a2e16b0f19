"""Functions of a matrix, products of several matrices, and numpy.linalg's forms of functions of numpy."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.linalg import LinAlgError

from gradmgr._arrays import batched, libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.mutation import store
from gradmgr._engine.tensor import raw, wrap
from gradmgr.ops import lapack, products, reduce, shape
from gradmgr.ops.convert import is_plain, lift
from gradmgr.ops.join import concatenate
from gradmgr.ops.matrices import check_square, conj_t, eye_like, lift_square
from gradmgr.ops.products import dot
from gradmgr.ops.shape import expand_dims, moveaxis
from gradmgr.ops.solve import inv

# ---------------------------------------------------------------- functions of a matrix


def _expm_kernel(a: Any) -> Any:
    if a.size == 0:
        return a.copy()
    if batched.is_batched(a):
        return batched.call_unary(_expm_kernel, a)
    expm_of = libraries.foreign(lapack.linalg_library("expm", a).expm, a)
    if libraries.namespace(a) is np or libraries.is_numpy(a) or a.ndim == 2:
        return expm_of(a)
    return libraries.namespace(a).stack([expm_of(m) for m in a.reshape(-1, *a.shape[-2:])]).reshape(a.shape)


def _expm_slope(a: Any, t: Any) -> Any:
    """Return the derivative of expm at A in the direction t: a block of expm([[A, t], [0, A]]).

    C. Van Loan, IEEE Trans. Autom. Control 23 (1978) 395. The direction is scaled, since a long one would cost the
    blocks of A their precision.
    """
    if raw(a).size == 0:
        return t
    xp, n = libraries.namespace(raw(a)), a.shape[-1]
    length = xp.maximum(abs(raw(t)).max(axis=(-2, -1), keepdims=True), 1)
    above = concatenate([a, t / length], -1)
    below = concatenate([xp.zeros(a.shape, a.dtype), a], -1)
    return _expm(concatenate([above, below], -2))[..., :n, n:] * length


_expm = custom(
    "expm",
    _expm_kernel,
    vjp={"a": lambda g, a: _expm_slope(conj_t(a), g)},
    jvp={"a": lambda t, a: _expm_slope(a, t)},
)


def expm(A: Any) -> Any:  # noqa: N803  # SciPy's name
    """Return the exponential of matrices as `scipy.linalg.expm`, which is needed for it.

    >>> import gradmgr
    >>> gradmgr.numpy.linalg.expm(gradmgr.tensor([[0.0, 1.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    library = lapack.linalg_library("expm", A)
    if is_plain(A):
        return library.expm(A)
    return _expm(lift_square("expm", A))


def matrix_power(a: Any, n: int) -> Any:
    """Raise to an integer power as `numpy.linalg.matrix_power`, 0 and negative ones included."""
    if is_plain(a):
        return np.linalg.matrix_power(a, n)
    a = lift(a)
    check_square("matrix_power", a)
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"matrix_power: exponent must be an integer; found {n!r}") from None
    if n == 0:
        return wrap(libraries.namespace(raw(a)).zeros(a.shape, a.dtype) + eye_like(a))
    if n < 0:
        a, n = inv(a), -n
    result = None
    while True:
        if n % 2:
            result = a if result is None else result @ a
        n //= 2
        if not n:
            return result
        a = a @ a


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Multiply a chain in the cheapest order as `numpy.linalg.multi_dot`."""
    if is_plain(list(arrays), out):
        return np.linalg.multi_dot(arrays, out=out)
    parts = [lift(a) for a in arrays]
    if len(parts) < 2:
        raise ValueError("multi_dot: Expecting at least two arrays.")
    z = dot(*parts) if len(parts) == 2 else _product_of_chain(parts)
    return z if out is None else store(out, z, "multi_dot(out=...)")


def _product_of_chain(parts: list[Any]) -> Any:
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    parts = [
        expand_dims(parts[0], 0) if row else parts[0],
        *parts[1:-1],
        expand_dims(parts[-1], 1) if column else parts[-1],
    ]
    for a in parts:
        if a.ndim != 2:
            raise LinAlgError(f"multi_dot: {a.ndim}-dimensional array given. Array must be two-dimensional")
    for a, b in itertools.pairwise(parts):
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"multi_dot: shapes {a.shape} and {b.shape} not aligned")
    splits = _cheapest_splits([parts[0].shape[0], *[a.shape[1] for a in parts]])
    z = _multiply_parts(parts, splits, 0, len(parts) - 1)
    return z[(0 if row else slice(None)), (0 if column else slice(None))] if row or column else z


def _multiply_parts(parts: list[Any], splits: dict[tuple[int, int], int], first: int, last: int) -> Any:
    """Multiply parts[first : last + 1]; a nested function would form a reference cycle that keeps all parts alive."""
    if first == last:
        return parts[first]
    k = splits[first, last]
    return dot(_multiply_parts(parts, splits, first, k), _multiply_parts(parts, splits, k + 1, last))


def _cheapest_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Return where to split each part of a chain of matrices; Cormen et al., Introduction to Algorithms, 15.2."""
    count = len(sizes) - 1
    cost = {(k, k): 0 for k in range(count)}
    splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            splits[i, j] = min(costs, key=costs.__getitem__)
            cost[i, j] = costs[splits[i, j]]
    return splits


# ---------------------------------------------------------------- numpy.linalg's own forms of functions of numpy


def matmul(x1: Any, x2: Any, /) -> Any:
    """Multiply matrices as `numpy.linalg.matmul`."""
    return products.matmul(x1, x2)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """Contract axes as `numpy.linalg.tensordot`."""
    return products.tensordot(x1, x2, axes)


def outer(x1: Any, x2: Any, /) -> Any:
    """Outer product of two vectors as `numpy.linalg.outer`."""
    if is_plain(x1, x2):
        return np.linalg.outer(x1, x2)
    x1, x2 = lift(x1), lift(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer: Input arrays must be one-dimensional, but they are {x1.ndim=} and {x2.ndim=}.")
    return products.outer(x1, x2)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Cross product of vectors of three elements as `numpy.linalg.cross`."""
    if is_plain(x1, x2):
        return np.linalg.cross(x1, x2, axis=axis)
    x1, x2 = lift(x1), lift(x2)
    for x in (x1, x2):
        normalize_axis_index(axis, x.ndim)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(
            "cross: Both input arrays must be (arrays of) 3-dimensional vectors, but they are "
            f"{x1.shape[axis]} and {x2.shape[axis]} dimensional instead."
        )
    x, y = moveaxis(x1, axis, -1), moveaxis(x2, axis, -1)
    following, before = [1, 2, 0], [2, 0, 1]
    z = x[..., following] * y[..., before] - x[..., before] * y[..., following]
    return moveaxis(z, -1, axis)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Take the diagonals of the matrices in the last two axes as `numpy.linalg.diagonal`."""
    return shape.diagonal(x, offset, -2, -1) if not is_plain(x) else np.linalg.diagonal(x, offset=offset)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Sum the diagonals of the matrices in the last two axes as `numpy.linalg.trace`."""
    if is_plain(x):
        return np.linalg.trace(x, offset=offset, dtype=dtype)
    return reduce.sum(shape.diagonal(x, offset, -2, -1), -1, dtype)
