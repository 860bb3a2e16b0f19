"""autograd.scipy.linalg: SciPy's functions; those defined here and `expm` have derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradmgr.numpy as gnp
from gradmgr.compat.autograd._primitive import defjvp, defvjp
from gradmgr.compat.autograd.scipy._late import late_primitive, without_derivative
from gradmgr.numpy.linalg import expm, solve_triangular

__all__ = ["expm", "solve_banded", "solve_sylvester", "solve_triangular", "sqrtm"]

solve_sylvester = late_primitive("linalg", "solve_sylvester")
sqrtm = late_primitive("linalg", "sqrtm")
solve_banded = late_primitive("linalg", "solve_banded")


# ---------------------------------------------------------------- a x + x b = q, and x x = a


def _transposed_solution(a: Any, b: Any, g: Any) -> Any:
    return solve_sylvester(gnp.transpose(a), gnp.transpose(b), g)


defvjp(
    solve_sylvester,
    lambda x, a, b, q: lambda g: -_transposed_solution(a, b, g) @ gnp.transpose(x),
    lambda x, a, b, q: lambda g: -gnp.transpose(x) @ _transposed_solution(a, b, g),
    lambda x, a, b, q: lambda g: _transposed_solution(a, b, g),
)
defjvp(
    solve_sylvester,
    lambda g, x, a, b, q: solve_sylvester(a, b, -g @ x),
    lambda g, x, a, b, q: solve_sylvester(a, b, -x @ g),
    lambda g, x, a, b, q: solve_sylvester(a, b, g),
)
defvjp(sqrtm, lambda x, a: lambda g: _transposed_solution(x, x, g))
defjvp(sqrtm, lambda g, x, a: solve_sylvester(x, x, g))


# ---------------------------------------------------------------- banded matrices

# Row k of the bands holds the diagonal of offset upper - k, its element a[i, j] in column j.


def _moved(row: Any, by: int) -> Any:
    """Return a row moved to the right, or to the left where `by` is negative, with zeros for what comes in."""
    count = row.shape[0]
    if abs(by) >= count:
        return gnp.zeros_like(row)
    return gnp.pad(row[: count - by], (by, 0)) if by >= 0 else gnp.pad(row[-by:], (0, -by))


def _transposed_bands(counts: tuple[int, int], bands: Any) -> Any:
    lower, upper = counts
    return gnp.stack([_moved(bands[upper + lower - k], lower - k) for k in range(lower + upper + 1)])


def _solve_transposed(counts: tuple[int, int], bands: Any, g: Any) -> Any:
    return solve_banded((counts[1], counts[0]), _transposed_bands(counts, bands), g)


def _bands_vjp(x: Any, counts: tuple[int, int], bands: Any, b: Any) -> Callable[[Any], Any]:
    def vjp(g: Any) -> Any:
        u = _solve_transposed(counts, bands, g)
        columns = (gnp.reshape(u, (u.shape[0], -1)), gnp.reshape(x, (x.shape[0], -1)))
        rows = []
        for k in range(sum(counts) + 1):
            moved = [_moved(columns[0][:, c], counts[1] - k) for c in range(columns[0].shape[1])]
            rows.append(-sum(part * columns[1][:, c] for c, part in enumerate(moved)))
        return gnp.stack(rows)

    return vjp


defvjp(
    solve_banded,
    _bands_vjp,
    lambda x, counts, bands, b: lambda g: _solve_transposed(counts, bands, g),
    argnums=[1, 2],
)


def __getattr__(name: str) -> Any:
    return without_derivative("linalg", name)
