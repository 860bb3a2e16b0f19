"""Sparse matrices of SciPy and CuPy as operands: where their nonzeros stand, and products with these."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.indexing import scatter
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import raw
from gradmgr.ops.convert import is_half, lift
from gradmgr.ops.shape import reshape, transpose

Array = Any

_FORMATS = ("csr", "csc", "coo", "bsr")


def sparse_library(value: object) -> Any:
    """Return the module whose sparse matrix a value is, SciPy's or CuPy's, among those already imported; else None."""
    for name in ("scipy.sparse", "cupyx.scipy.sparse"):
        module = sys.modules.get(name)
        if module is not None and module.issparse(value):
            return module
    return None


class Pattern:
    """Where the nonzeros of a matrix stand, in the order of its array of values; two are equal where these are shared.

    Attributes:
        library: scipy.sparse, or cupyx.scipy.sparse.
        shape: of the matrix.
        given: the matrix, with its own values.
    """

    def __init__(self, library: Any, given: Any) -> None:
        self.library = library
        self.given = given
        self.shape = tuple(given.shape)

    def _index_arrays(self) -> tuple[Any, ...]:
        return (
            (self.given.row, self.given.col) if self.given.format == "coo" else (self.given.indices, self.given.indptr)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern) or (self.given.format, self.shape) != (other.given.format, other.shape):
            return False
        return all(a is b for a, b in zip(self._index_arrays(), other._index_arrays(), strict=True))

    def __hash__(self) -> int:
        return hash((self.given.format, self.shape))

    @cached_property
    def places(self) -> tuple[Array, Array]:
        """The row and the column of each nonzero, as integers that index without a cast: take is 8 times as fast."""
        rows, columns = self._places()
        return rows.astype(np.intp, copy=False), columns.astype(np.intp, copy=False)

    def _places(self) -> tuple[Array, Array]:
        a = self.given
        if a.format == "coo":
            return a.row, a.col
        xp = libraries.namespace(a.indices)
        if xp is np:
            major = np.repeat(np.arange(len(a.indptr) - 1), np.diff(a.indptr))
        else:  # CuPy repeats by numbers of the host, for which the program would wait
            major = xp.searchsorted(a.indptr, xp.arange(len(a.indices)), side="right") - 1
        if a.format == "csr":
            return major, a.indices
        if a.format == "csc":
            return a.indices, major
        height, width = a.blocksize
        shape = (len(a.indices), height, width)
        rows = major[:, None, None] * height + xp.arange(height)[:, None]
        columns = a.indices[:, None, None] * width + xp.arange(width)
        return xp.broadcast_to(rows, shape).reshape(-1), xp.broadcast_to(columns, shape).reshape(-1)

    @cached_property
    def transposed(self) -> Pattern:
        """The same nonzeros, in the same order, in the transpose."""
        rows, columns = self.places
        if self.given.format == "bsr":
            values = self.given.data.reshape(-1)
            return Pattern(self.library, self.library.coo_matrix((values, (columns, rows)), self.shape[::-1]))
        return Pattern(self.library, self.given.T)

    def matrix(self, values: Array) -> Any:
        """Return the matrix with these values, (number of nonzeros,), which is not to be written to."""
        a = self.given
        if values is a.data or (values.base is a.data and values.size == a.data.size):
            return a
        if a.format == "coo":
            return self.library.coo_matrix((values, (a.row, a.col)), self.shape)
        if a.format == "bsr":
            return self.library.coo_matrix((values, self.places), self.shape)
        return type(a)((values, a.indices, a.indptr), shape=self.shape)


def call_on_columns(function: Callable[..., Array], values: Array, x: Array, *params: Any) -> Array:
    """Call function(values, x, *params), which takes plain arrays and works on each column of x by itself.

    Inside vmap the examples of x become columns, unless the values differ between examples, too.
    """
    level = batched.highest_level((values, x))
    if level is None:
        return libraries.foreign(function, values, x)(values, x, *params)
    if batched.is_batched_at(values, level):
        return batched.loop_over_examples(level, partial(call_on_columns, function), (values, x, *params), {})
    columns = np.moveaxis(x._array, 0, -1)
    made = call_on_columns(function, values, columns.reshape((columns.shape[0], -1)), *params)
    return batched.Batched(level, np.moveaxis(made.reshape((made.shape[0], *columns.shape[1:])), -1, 0))


# ---------------------------------------------------------------- products


def _widen(a: Array) -> Array:
    return a.astype(np.float32) if is_half(a.dtype) else a


def _multiply(values: Array, x: Array, pattern: Pattern, adjoint: bool) -> Array:
    """Multiply plain arrays; SciPy has no half precision."""
    dtype = np.result_type(values.dtype, x.dtype)
    m = pattern.matrix(_widen(values))
    m = (m.T.conj() if values.dtype.kind == "c" else m.T) if adjoint else m
    return (m @ _widen(x)).astype(dtype, copy=False)


def _multiply_kernel(values: Array, x: Array, pattern: Pattern, adjoint: bool) -> Array:
    return call_on_columns(_multiply, values, x, pattern, adjoint)


def _sample_kernel(u: Array, v: Array, pattern: Pattern) -> Array:
    """Compute u v^T at the nonzeros alone, column by column, so that memory for one of each is enough."""
    dtype = np.result_type(u.dtype, v.dtype)
    if is_half(dtype):
        return _sample_kernel(_widen(u), _widen(v), pattern).astype(dtype)
    rows, columns = pattern.places
    if u.ndim == 1:
        return _product_of_picked(u, v, rows, columns)
    total = libraries.namespace_of(u, v).zeros(rows.shape, dtype)
    for k in range(u.shape[1]):
        total = total + _product_of_picked(u[:, k], v[:, k], rows, columns)
    return total


def _product_of_picked(u: Array, v: Array, rows: Array, columns: Array) -> Array:
    if u.__class__ is v.__class__ is np.ndarray and u.dtype is v.dtype:
        product = u.take(rows)
        return np.multiply(product, v.take(columns), product)  # new memory of this size takes longer than the product
    return libraries.getitem(u, rows) * libraries.getitem(v, columns)


def _values_vjp(g: Any, x: Any, pattern: Pattern, adjoint: bool) -> Any:
    return sample(x, conj_of(g), pattern) if adjoint else sample(g, conj_of(x), pattern)


# A x, or A^H x where `adjoint`, for a matrix A with these values; x is a vector or has columns.
multiply: Function = custom(
    "sparse.matmul",
    _multiply_kernel,
    vjp={
        "values": _values_vjp,
        "x": lambda g, values, pattern, adjoint: multiply(values, g, pattern, not adjoint),
    },
    jvp={
        "values": lambda t, x, pattern, adjoint: multiply(t, x, pattern, adjoint),
        "x": lambda t, values, pattern, adjoint: multiply(values, t, pattern, adjoint),
    },
)
# The sum of u[row] v[column] over the columns of u and v, for each nonzero: what its cotangent is made of.
sample: Function = custom(
    "sparse.sampled_product",
    _sample_kernel,
    vjp={
        "u": lambda g, v, pattern: multiply(g, conj_of(v), pattern, False),
        "v": lambda g, u, pattern: conj_of(multiply(g, u, pattern, True)),
    },
    jvp={
        "u": lambda t, v, pattern: sample(t, v, pattern),
        "v": lambda t, u, pattern: sample(u, t, pattern),
    },
)


def _checked_factor(asked: str, pattern: Pattern, x: Any, axis: int) -> Any:
    """Return x as a Tensor or array of which an axis can be multiplied with the other one of a sparse matrix."""
    if isinstance(x, SparseArray) or sparse_library(x) is not None:
        raise TypeError(
            f"{asked}: the product of two sparse arrays is not differentiable here; one of them must be dense"
        )
    x = lift(x)
    if x.ndim not in (1, 2) or x.shape[axis] != pattern.shape[1 + axis]:
        raise errors.ShapeError(
            f"{asked}: a sparse array of shape {pattern.shape} does not fit x of shape {x.shape}; x must be a vector "
            "or have two axes"
        )
    check_library(asked, pattern, x)
    return x


def check_library(asked: str, pattern: Pattern, x: Any) -> None:
    """Raise unless an array lives where the sparse matrix does."""
    is_on_host = pattern.library.__name__.startswith("scipy.")
    if is_on_host != (libraries.root(raw(x)) is np):
        raise libraries.mixed(asked)


# ---------------------------------------------------------------- operands


class SparseArray:
    """A sparse matrix whose nonzeros are a Tensor, as `with_data` makes it.

    `A @ x`, `x @ A` and `A.dot(x)`, for x of one or two axes, are differentiable by x and by the nonzeros.

    Attributes:
        data: the nonzeros, a Tensor or array of one axis.

    Raises:
        ValueError: in a product, the other operand has another length.

    >>> import numpy, scipy.sparse
    >>> from gradmgr import sparse, tensor
    >>> A = sparse.with_data(scipy.sparse.csr_array(numpy.array([[0.0, 2.0], [1.0, 0.0]])), tensor([2.0, 1.0]))
    >>> A @ tensor([10.0, 20.0])
    Tensor([40., 10.])
    """

    __array_ufunc__ = None  # arrays leave `array @ A` to it
    __slots__ = ("data", "pattern")

    def __init__(self, data: Any, pattern: Pattern) -> None:
        self.data = data
        self.pattern = pattern

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""
        return self.pattern.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the nonzeros."""
        return self.data.dtype  # type: ignore[no-any-return]  # of a Tensor or array

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def nnz(self) -> int:
        """The number of elements that are stored."""
        return int(self.data.size)

    @property
    def T(self) -> SparseArray:  # noqa: N802  # SciPy's name
        """The transpose, with the same nonzeros in the same order."""
        return SparseArray(self.data, self.pattern.transposed)

    def toarray(self) -> Any:
        """Return the whole matrix, a Tensor where the nonzeros are one."""
        rows, columns = self.pattern.places
        return scatter(self.data, self.shape, (rows, columns))

    def __matmul__(self, x: Any) -> Any:
        return multiply(self.data, _checked_factor("A @ x", self.pattern, x, 0), self.pattern, False)

    def __rmatmul__(self, x: Any) -> Any:
        x = transpose(_checked_factor("x @ A", self.pattern, x, -1))
        return transpose(conj_of(multiply(self.data, conj_of(x), self.pattern, True)))  # x A is (A^T x^T)^T

    def dot(self, x: Any) -> Any:
        """Return A @ x."""
        return self @ x

    def __repr__(self) -> str:
        return f"SparseArray({self.nnz} nonzeros of dtype {self.dtype}, shape={self.shape})"


def as_operand(a: Any, asked: str) -> SparseArray:
    """Return a sparse matrix of SciPy's or CuPy's as an operand; the values are then its own, a constant."""
    if isinstance(a, SparseArray):
        return a
    library = sparse_library(a)
    if library is None:
        raise TypeError(
            f"{asked} takes a sparse array of SciPy or CuPy, or what with_data makes of one; found "
            f"{type(a).__module__}.{type(a).__qualname__}; for dense matrices there is gradmgr.numpy.linalg"
        )
    if a.ndim != 2:
        raise errors.ShapeError(f"{asked} takes a sparse array of two axes; found shape {a.shape}")
    if a.format not in _FORMATS:
        a = a.tocsr()
    return SparseArray(a.data.reshape(-1), Pattern(library, a))


def with_data(A: Any, values: Any) -> SparseArray:  # noqa: N803  # SciPy's name
    """Return a sparse matrix with the nonzeros of A in the same places, but with other values, which may be a Tensor.

    Args:
        A: a sparse array or matrix of SciPy or CuPy in format CSR, CSC, COO or BSR; its values do not matter.
        values: in the shape and order of `A.data`, or in one row; of a dtype that can have gradients.

    Raises:
        TypeError: A is no sparse array, or in another format, or the values are integers.
        ShapeError: the values have another shape.

    >>> import scipy.sparse, gradmgr
    >>> A = scipy.sparse.csr_array([[1.0, 2.0], [0.0, 3.0]])
    >>> v = gradmgr.tensor([10.0, 20.0, 30.0])
    >>> with gradmgr.GradManager().attach(v) as gm:
    ...     gm.backward((gradmgr.sparse.with_data(A, v) @ [1.0, -1.0]).sum())
    >>> v.grad.tolist()
    [1.0, -1.0, -1.0]
    """
    if sparse_library(A) is not None and A.format not in _FORMATS:
        raise TypeError(f"with_data takes CSR, CSC, COO or BSR; found format {A.format!r}; convert it with A.tocsr()")
    found = as_operand(A, "with_data")
    values = lift(values)
    if values.shape not in (A.data.shape, (A.data.size,)):
        raise errors.ShapeError(
            f"with_data takes values in the shape of A.data, {A.data.shape}; found shape {values.shape}"
        )
    if not libraries.is_differentiable(values.dtype):
        raise errors.DtypeError(
            f"with_data takes values of a dtype that can have gradients; found {values.dtype}; convert them with "
            ".astype(numpy.float64)"
        )
    check_library("with_data", found.pattern, values)
    return SparseArray(reshape(values, (A.data.size,)), found.pattern)


def product_with_sparse(x: Any, y: Any) -> Any:
    """Return x @ y where one is a Tensor and the other a sparse matrix of a library; NotImplemented for others."""
    if sparse_library(y) is not None:
        return x @ as_operand(y, "x @ A")
    return as_operand(x, "A @ x") @ y if sparse_library(x) is not None else libraries.try_the_other(x, y)
