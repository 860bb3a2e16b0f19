"""Sparse matrices of SciPy and CuPy beside Tensors, solvers by scipy.sparse.linalg's names, and gradients of rows.

A sparse matrix multiplies a Tensor by `A @ x`, `x @ A` and `A.dot(x)`, with derivatives by x; `with_data` gives a
matrix whose nonzeros are a Tensor, with derivatives by them, too.

>>> import numpy, scipy.sparse
>>> from gradmgr import GradManager, sparse, tensor
>>> A = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(4, 4)).tocsr()
>>> conductivity, heat = tensor(numpy.ones(A.nnz)), tensor([0.0, 1.0, 0.0, 0.0])
>>> with GradManager().attach([conductivity, heat]) as gm:
...     u = sparse.spsolve(sparse.with_data(A, conductivity * A.data), heat)
...     gm.backward((A @ u).sum() + u.sum())
>>> u.numpy().round(2).tolist()
[0.6, 1.2, 0.8, 0.4]
>>> conductivity.grad.shape, heat.grad.numpy().round(2).tolist()
((10,), [3.0, 4.0, 4.0, 3.0])
"""

from gradmgr._engine.row_sparse import RowSparse
from gradmgr.ops.sparse_arrays import SparseArray, with_data
from gradmgr.ops.sparse_solve import SuperLU, cg, factorized, gmres, splu, spsolve

__all__ = ["RowSparse", "SparseArray", "SuperLU", "cg", "factorized", "gmres", "splu", "spsolve", "with_data"]
