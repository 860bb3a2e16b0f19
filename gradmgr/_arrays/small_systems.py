"""Systems of linear equations with small matrices, many at once: by a kernel in C, where gradmgr-native is installed.

NumPy calls LAPACK for each matrix of a stack, which for a small one costs more than its arithmetic. Stacks occur in
programs as they are, and under `vmap`, whose batch axis is one more axis of the stack.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries, native_kernels
from gradmgr._arrays.batched import Batched, Level, at_level, insert_axes
from gradmgr._arrays.batching_rules import register, register_stacked_matrices

_MOST_ROWS = 16  # of a system that the kernel `solve` takes, and columns of its right side


def solve(a: Any, b: Any) -> Any:
    """Solve as numpy.linalg.solve, arrays or what it makes arrays of; small systems of a stack by the kernel."""
    if _is_stack(a) and libraries.is_array(b) and b.ndim > 1 and b.shape[-2] == a.shape[-1]:
        fits = b.ndim == 2 or b.shape[:-2] == a.shape[:-2] or _do_broadcast(a, b)
        found = _solve_natively(a, b) if fits else None
        if found is not None:
            return found
    return np.linalg.solve(a, b)


def inverses(a: Any) -> Any:
    """Invert as numpy.linalg.inv, arrays or what it makes arrays of; small matrices of a stack by the kernel."""
    found = _solve_natively(a, None) if _is_stack(a) else None
    return np.linalg.inv(a) if found is None else found


def _is_stack(a: Any) -> bool:
    """Tell whether it is an array, of stacks of square matrices."""
    return libraries.is_array(a) and a.ndim > 2 and bool(a.shape[-1] == a.shape[-2])


def _do_broadcast(a: Any, b: Any) -> bool:
    """Tell whether the stacks of two arrays broadcast; NumPy has the error where they do not."""
    lengths = zip(a.shape[-3::-1], b.shape[-3::-1], strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in lengths)


def _find_kernel(a: Any, b: Any) -> Any:
    """Return the kernel for small systems; None if there is none, or so few that LAPACK is faster.

    It computes 16 at a time, in double, as NumPy does: 1,000 of 4 rows in 40 us, where LAPACK takes 200; 4 of 16 rows
    in 14, where LAPACK takes 12.
    """
    n = a.shape[-1]
    fits = a.ndim > 2 and n <= _MOST_ROWS and a.size >= max(4, n // 2) * n * n
    return native_kernels.find("solve", a, b) if fits and (b is None or b.shape[-1] <= _MOST_ROWS) else None


@libraries.captured_as_one(unless=lambda a, b: _find_kernel(a, b) is None)
def _solve_natively(a: Any, b: Any) -> Any:
    """Solve systems by elimination with pivots, or invert where b is None; None if there is no kernel.

    It is also None if a pivot is so small that a matrix may be singular: then LAPACK decides, and raises.
    """
    kernel = _find_kernel(a, b)
    if kernel is None:
        return None
    n, batch = a.shape[-1], a.shape[:-2]
    if b is not None and b.shape[:-2] != batch:
        batch = np.broadcast_shapes(batch, b.shape[:-2])
        a, b = (np.broadcast_to(m, batch + m.shape[-2:]) for m in (a, b))
    columns = n if b is None else b.shape[-1]
    is_transposed = not a.flags.c_contiguous and a.swapaxes(-1, -2).flags.c_contiguous
    a = a.swapaxes(-1, -2) if is_transposed else native_kernels.contiguous(a)
    b = a if b is None else native_kernels.contiguous(b)
    x, doubt = np.empty((*batch, n, columns), a.dtype), np.empty(1, a.dtype)
    kernel(a, b, x, doubt, math.prod(batch), n, columns, float(is_transposed), float(b is a))
    return None if doubt[0] else x


# ---------------------------------------------------------------- under vmap

register_stacked_matrices(np.linalg.inv, inverses)


@register(np.linalg.solve)
def _solve(level: Level, a: Any, b: Any) -> Any:
    p, q = at_level(a, level)._array, at_level(b, level)._array
    vector = q.ndim == 2
    if p.shape[0] == 1 and p.ndim == 3 and q.ndim <= 3:  # one matrix: the vectors of all examples are its columns
        columns = np.moveaxis(q, 1, 0)
        solved = np.linalg.solve(p[0, ...], columns.reshape(q.shape[1], math.prod(columns.shape[1:])))
        return Batched(level, np.moveaxis(solved.reshape(columns.shape), 0, 1))
    q = q[..., None] if vector else q
    ndim = max(p.ndim, q.ndim) - 1
    p, q = insert_axes(p, ndim), insert_axes(q, ndim)
    if level.root is not np:  # CuPy's solve does not broadcast stacks
        stack = np.broadcast_shapes(p.shape[:-2], q.shape[:-2])
        p, q = (np.broadcast_to(m, stack + m.shape[-2:]) for m in (p, q))
    made = solve(p, q)
    return Batched(level, made[..., 0] if vector else made)
