"""What the functions of matrices share: checks of their arguments and small pieces of algebra.

X^H is the conjugate transpose; a rule for complex matrices follows from that for real ones by writing it for X^T.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from gradmgr._arrays import libraries
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import reduce
from gradmgr.ops.convert import cast_to, lift
from gradmgr.ops.shape import reshape

# ---------------------------------------------------------------- checks


def common_dtype(name: str, *arrays: Any) -> Any:
    """Return the dtype numpy.linalg computes in: integers count as float64, float16 is refused."""
    dtype = arrays[0].dtype
    for a in arrays:
        if a.dtype.kind not in "biu" and a.dtype.char not in "fdFD":
            raise TypeError(f"{name}: array type {a.dtype.name} is unsupported in linalg")
        if a.dtype.kind in "biu" or a.dtype != dtype:
            dtype = np.result_type(dtype, np.float64 if a.dtype.kind in "biu" else a.dtype)
    return dtype


def lift_matrices(name: str, *given: Any) -> tuple[list[Any], Any]:
    """Lift the arguments; return them and the one dtype that numpy.linalg would compute in."""
    arrays = [lift(a) for a in given]
    return arrays, common_dtype(name, *[raw(a) for a in arrays])


def check_matrix(name: str, a: Any) -> None:
    if a.ndim < 2:
        raise LinAlgError(f"{name}: {a.ndim}-dimensional array given. Array must be at least two-dimensional")


def check_square(name: str, a: Any) -> None:
    check_matrix(name, a)
    if a.shape[-1] != a.shape[-2]:
        raise LinAlgError(f"{name}: Last 2 dimensions of the array must be square; found shape {a.shape}")


def lift_square(name: str, a: Any) -> Any:
    (a,), dtype = lift_matrices(name, a)
    check_square(name, a)
    return cast_to(a, dtype)


def wrap_like(x: Any, parameter: Any) -> Any:
    """Return x, wrapped in a Tensor if the parameter is one."""
    return wrap(x) if isinstance(parameter, Tensor) and not isinstance(x, Tensor) else x


# ---------------------------------------------------------------- small pieces of algebra


def swap_last_axes(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def conj_t(x: Any) -> Any:
    return conj_of(x.swapaxes(-1, -2))


def _split(a: Any, lower: bool) -> tuple[Any, Any]:
    """Return one triangle without the diagonal, and the real part of the diagonal as a matrix."""
    return np.tril(a, -1) if lower else np.triu(a, 1), np.tril(np.triu(a)).real


def _from_triangle_kernel(a: Any, lower: bool) -> Any:
    triangle, diagonal = _split(a, lower)
    return triangle + conj_t(triangle) + diagonal


@libraries.captured_as_one()
def _to_triangle_kernel(g: Any, lower: bool) -> Any:
    if g.__class__ is not np.ndarray:
        triangle, diagonal = _split(g, lower)
        return triangle + conj_t(_split(g, not lower)[0]) + diagonal
    made, n = g + conj_t(g), g.shape[-1]
    np.copyto(made, 0, where=np.tri(n, n, -1, bool).T if lower else np.tri(n, n, -1, bool))  # in a third of tril's time
    np.einsum("...ii->...i", made)[...] = np.diagonal(g, 0, -2, -1).real
    return made


# The Hermitian matrix of which one triangle is given, as LAPACK reads it; and the adjoint, which collects in that
# triangle what both receive. What is in the other triangle does not count, be it NaN.
from_triangle: Function = linear("from_triangle", _from_triangle_kernel, lambda g, lower: to_triangle(g, lower))
to_triangle: Function = linear("to_triangle", _to_triangle_kernel, lambda g, lower: from_triangle(g, lower))


def append_matrix_axes(g: Any) -> Any:
    """Append two axes of length 1 to one number for each matrix of a stack, so that it multiplies the matrices."""
    return reshape(g, (*g.shape, 1, 1))


def inner_product(x: Any, y: Any) -> Any:
    """Return sum of conj(x) y for each matrix of a stack."""
    return reduce.add_up(conj_of(x) * y, (x.ndim - 2, x.ndim - 1), False)


def multiply_three(x: Any, y: Any, z: Any) -> Any:
    """Return x @ y @ z, multiplied in the cheaper order."""
    (rows, inner), (other, columns) = x.shape[-2:], z.shape[-2:]
    left, right = rows * other * (inner + columns), inner * columns * (other + rows)
    return (x @ y) @ z if left <= right else x @ (y @ z)


def eye_like(a: Any) -> Any:
    """Return the identity as a plain array, in the size and dtype of a stack of matrices."""
    return libraries.namespace(raw(a)).eye(a.shape[-1], dtype=a.dtype)
