"""RowSparse: the gradient of a table of which few rows were read.

It is a Tensor in which the slot of the array holds a `TableRows` instead: indices of rows, and their values. Its class
makes an array of it wherever `_array` is read, so that all that takes a Tensor takes it; what is to be fast asks for
the rows. Where an array is written to `_array`, as all writes in place do, it becomes an ordinary Tensor. One that the
user did not ask for, as that of `table[indices]`, becomes one where `_array` is read, too: it is the whole gradient in
all but time and memory.

In a backward pass it is what the vjp of a look-up gives for a leaf, where gradients are plain arrays: the operators
below add it to what is there. It reaches no other vjp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine import write_lock
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor, bare, wrap

_slot: Any = Tensor.__dict__["_array"]  # before `compile` may replace it
_new = object.__new__


class RowSparse(Tensor):
    """A table of which only some rows are stored, and all others are 0: the gradient of `embedding(..., sparse=True)`.

    It has the shape and dtype of the table, and every function takes it as the Tensor that it represents, which takes
    memory and time for the whole table. What keeps to its rows: sums of such gradients, products with numbers,
    `coalesce`, all-reduce, clipping, `GradScaler`, and the optimisers SGD, Adagrad and SparseAdam. A write in place
    turns it into an ordinary Tensor. So does any reading of the one that `table[indices]` gives for a large table.

    Args:
        rows: (n,) indices of rows, integers from 0 on; one may stand there several times, which means the sum.
        values: (n, *shape[1:]) numbers, of a dtype that can have gradients. Neither array is copied.
        shape: the shape of the table.

    Raises:
        DtypeError: the indices are not integers, or the values cannot have gradients.
        ShapeError: indices, values and shape do not fit together.
        LabelError: an index is not a row of the table.

    >>> import numpy as np
    >>> from gradmgr import sparse
    >>> g = sparse.RowSparse(np.array([3, 0, 3]), np.array([[1.0, 2.0], [0.5, 0.5], [1.0, 1.0]]), (4, 2))
    >>> g.coalesce().rows.tolist(), g.coalesce().values.tolist()
    ([0, 3], [[0.5, 0.5], [2.0, 3.0]])
    >>> g.to_dense().tolist()
    [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [2.0, 3.0]]
    """

    __slots__ = ()

    is_sparse = True

    def __init__(self, rows: Any, values: Any, shape: tuple[int, ...]) -> None:
        rows, values, shape = _as_array(rows), _as_array(values), tuple(shape)
        _check_rows(rows, values, shape)
        _slot.__set__(self, TableRows(shape, values.dtype, ((rows.astype(np.int64, copy=False), values),)))
        self._rec = None
        self._view_of = ()

    # ------------------------------------------------------------ what it holds

    @property
    def content(self) -> TableRows:
        """The rows, as the modules of gradmgr take them; see `stored_rows`."""
        return _slot.__get__(self)  # type: ignore[no-any-return]  # a slot of any kind of array

    @property
    def rows(self) -> Tensor:
        """The indices of the rows that are stored, int64; distinct and ascending where `is_coalesced()`."""
        return wrap(self.content.joined()[0])

    @property
    def values(self) -> Tensor:
        """The rows that are stored, (number of rows, *shape[1:])."""
        return wrap(self.content.joined()[1])

    def is_coalesced(self) -> bool:
        """Tell whether each row is stored once, and in ascending order."""
        return self.content.is_coalesced

    def coalesce(self) -> RowSparse:
        """Return the same with each row stored once, and in ascending order."""
        return row_sparse(self.content.coalesced())

    def to_dense(self) -> Tensor:
        """Return the whole table as an ordinary Tensor, in new memory."""
        return wrap(self.content.dense())

    def _read(self) -> Any:
        """Return the whole table; where rows were not asked for, hold it from now on."""
        found = stored_rows(self)
        if found is not None and found.on_request:
            return found.dense()
        with write_lock.lock:  # all threads are to have the same array
            found = stored_rows(self)
            if found is not None:
                _slot.__set__(self, found.dense())
            self.__class__ = Tensor  # type: ignore[assignment]  # it has the same slots
        return self._array

    def _write(self, array: Any) -> None:
        _slot.__set__(self, array)
        if not isinstance(array, TableRows):
            self.__class__ = Tensor  # type: ignore[assignment]  # as above

    _array = property(_read, _write)

    @property  # type: ignore[misc]  # Tensor's setter only raises
    def shape(self) -> tuple[int, ...]:
        return self.content.shape

    @property  # type: ignore[misc]  # Tensor's setter only raises
    def dtype(self) -> np.dtype[Any]:
        return self.content.dtype  # type: ignore[no-any-return]  # of any kind of array

    @property
    def ndim(self) -> int:
        return len(self.content.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.content.shape))

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole table, which are not stored."""
        return self.size * self.itemsize

    @property  # type: ignore[misc]  # Tensor's setter only raises
    def device(self) -> str:
        return libraries.device_of(memory_of(self))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"RowSparse(rows={self.rows!r}, values={self.values!r}, shape={self.shape})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        made = RowSparse if self.content.on_request else _restored
        return made, (self.rows, self.values, self.shape)

    def __copy__(self) -> RowSparse:
        return self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> RowSparse:
        made = memo[id(self)] = row_sparse(self.content.owned())
        return made

    def detach(self) -> RowSparse:
        """Return the same rows as a new RowSparse."""
        return row_sparse(self.content)

    # ------------------------------------------------------------ arithmetic

    def __add__(self, other: Any) -> Any:
        found = self._sum(other)
        return super().__add__(other) if found is None else _as_tensor(found)

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Any:
        found = self._sum(other)
        return super().__iadd__(other) if found is None else self._become(found)

    def __mul__(self, factor: Any) -> Any:
        return row_sparse(self.content.times(factor)) if self._may_scale(factor) else super().__mul__(factor)

    __rmul__ = __mul__

    def __imul__(self, factor: Any) -> Any:
        return self._become(self.content.times(factor)) if self._may_scale(factor) else super().__imul__(factor)

    def __truediv__(self, divisor: Any) -> Any:
        return row_sparse(self.content.over(divisor)) if self._may_scale(divisor) else super().__truediv__(divisor)

    def __itruediv__(self, divisor: Any) -> Any:
        return self._become(self.content.over(divisor)) if self._may_scale(divisor) else super().__itruediv__(divisor)

    def __neg__(self) -> Any:
        return row_sparse(self.content.times(-1)) if self._may_scale(-1) else super().__neg__()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Add to a plain array, as `array + g` and `array += g` ask for; leave the rest to the whole Tensor."""
        if ufunc is np.add and method == "__call__" and inputs[-1] is self and self._takes(inputs[0]):
            if not keywords:
                return wrap(self.content.add_to(inputs[0].copy()))
            if list(keywords) == ["out"] and keywords["out"][0] is inputs[0]:
                return self.content.add_to(inputs[0])
        return super().__array_ufunc__(ufunc, method, *inputs, **keywords)

    def _sum(self, other: Any) -> Any:
        """Return the sum with other rows of the table, or with a plain array of its shape; None for anything else."""
        if is_tracked(self):
            return None
        if isinstance(other, RowSparse):
            is_alike = (other.shape, other.dtype) == (self.shape, self.dtype) and not is_tracked(other)
            return self.content.plus(other.content) if is_alike else None
        return self.content.add_to(other.copy()) if self._takes(other) else None

    def _become(self, found: Any) -> Tensor:
        """Hold other rows, or a whole table, from now on."""
        self._array = found
        return self

    def _may_scale(self, factor: Any) -> bool:
        """Tell whether a product with this is one with each of the rows, and no recorder is to see it."""
        if not isinstance(factor, (int, float, np.floating, np.integer)) or is_tracked(self):
            return False
        if not self.content.on_request and np.result_type(self.dtype, factor) != self.dtype:
            return False
        limits = np.finfo(self.dtype)  # 0 times what is inf in this dtype is NaN
        return float(limits.smallest_subnormal) <= abs(float(factor)) <= float(limits.max)

    def _takes(self, table: Any) -> bool:
        """Tell whether these rows can be added to a plain array."""
        is_plain = libraries.is_array(table) and not batched.is_batched(table) and not libraries.is_captured(table)
        return is_plain and (table.shape, table.dtype) == (self.shape, self.dtype)


def row_sparse(content: TableRows) -> RowSparse:
    """Return the RowSparse of some rows."""
    made = _new(RowSparse)
    _slot.__set__(made, content)
    made._rec = None
    made._view_of = ()
    return made


def stored_rows(t: Any) -> TableRows | None:
    """Return what a RowSparse holds, and None of anything else: in one step, as another thread may make it whole."""
    held = _slot.__get__(t) if isinstance(t, RowSparse) else None
    return held if isinstance(held, TableRows) else None


def zeros_like(g: Tensor) -> Tensor:
    """Return a gradient of zeros, with no rows where this one is of rows."""
    content = stored_rows(g)
    if content is not None:
        return row_sparse(content.none())
    return wrap(libraries.namespace(g._array).zeros_like(g._array))


def memory_of(t: Any) -> Any:
    """Return an array in the memory that a Tensor or array uses, for asking whose it is: of a RowSparse its values."""
    content = stored_rows(t)
    return bare(t) if content is None else content.parts[0][1]


def _restored(rows: Tensor, values: Tensor, shape: tuple[int, ...]) -> RowSparse:
    """Return a copy of a gradient of rows that were not asked for."""
    a = values._array
    return row_sparse(TableRows(shape, a.dtype, ((rows._array, a),), on_request=False))


def _as_tensor(found: Any) -> Tensor:
    return row_sparse(found) if isinstance(found, TableRows) else wrap(found)


def _as_array(value: Any) -> Any:
    a = bare(value)
    return a if libraries.is_array(a) else np.asarray(a)


def _check_rows(rows: Any, values: Any, shape: tuple[int, ...]) -> None:
    if rows.dtype.kind not in "iu":
        raise errors.DtypeError(f"RowSparse takes rows of an integer dtype; found {rows.dtype}")
    if not libraries.is_differentiable(values.dtype):
        raise errors.DtypeError(f"RowSparse takes values of a dtype that can have gradients; found {values.dtype}")
    if batched.is_batched(rows) or batched.is_batched(values):
        raise errors.BatchedValueError("RowSparse holds arrays that are the same for all examples of a vmap")
    if not shape or rows.ndim != 1 or values.shape != (len(rows), *shape[1:]):
        raise errors.ShapeError(
            "RowSparse takes rows (n,), values (n, *shape[1:]) and the shape of the table; found rows of shape "
            f"{rows.shape}, values of shape {values.shape} and shape={shape}"
        )
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < shape[0]:
        bad = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise errors.LabelError(f"RowSparse: {bad} is not a row of a table of {shape[0]}")
