"""Linear algebra on Tensors: the names and keywords of `numpy.linalg`, differentiable, batched and complex.

`expm` and `solve_triangular` are those of `scipy.linalg`. Shapes, dtypes and the types of errors are NumPy's, such as
`LinAlgError` for a singular matrix.

>>> import gradmgr
>>> import gradmgr.numpy as np
>>> A = gradmgr.tensor([[2.0, 1.0], [1.0, 3.0]])
>>> b = gradmgr.tensor([3.0, 5.0])
>>> with gradmgr.GradManager().attach(b) as gm:
...     gm.backward(np.sum(np.linalg.solve(A, b)))
>>> b.grad
Tensor([0.4, 0.2])
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy  # noqa: ICN001  # np would be a public name of this namespace
from numpy.linalg import LinAlgError

from gradmgr.numpy import _dispatch
from gradmgr.ops.decompose import eig, eigh, eigvals, eigvalsh, qr, svd, svdvals
from gradmgr.ops.determinant import det, slogdet
from gradmgr.ops.linalg import cross, diagonal, expm, matmul, matrix_power, multi_dot, outer, tensordot, trace
from gradmgr.ops.norms import cond, matrix_norm, matrix_rank, norm, vector_norm
from gradmgr.ops.products import vecdot
from gradmgr.ops.shape import matrix_transpose
from gradmgr.ops.solve import inv, lstsq, pinv, solve, tensorinv, tensorsolve
from gradmgr.ops.triangular import cholesky, solve_triangular

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


def __getattr__(name: str) -> Any:
    raise _dispatch.missing_name_error(name, "linalg.", _numpy.linalg)


def __dir__() -> list[str]:
    return sorted(__all__)
