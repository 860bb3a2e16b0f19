"""Table look-up: `embedding`, with a gradient of the whole table or of rows, and `one_hot`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries, native_kernels
from gradmgr._arrays.captured import inner_of
from gradmgr._arrays.listening import listener
from gradmgr._arrays.table_rows import TableRows, sum_equal_rows, sum_first
from gradmgr._engine.custom import Declared, declared
from gradmgr._engine.entry import Entry, Vjp
from gradmgr._engine.indexing import add_at, normalized
from gradmgr._engine.op import Function, linear
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.row_sparse import row_sparse
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_inexact, integer
from gradmgr.ops.convert import lift, widen_half

# The most rows that a kernel of gradmgr-native adds, one after the other: more of them, of few indices, would be off by
# more than NumPy's sums by pairs are.
_MOST_IN_ORDER = 1 << 14
# The least number of columns for which rows are sorted and summed by runs; with fewer, elements are added one by one,
# unless one row receives so many that digits would be lost.
_WIDE_TABLE = 32


@libraries.captured_as_one()
def _sum_of_rows(g: Any, places: Any, rows: int) -> Any:
    """Return a table whose row k is the sum of the rows of g with index k; the result is reproducible."""
    table = libraries.namespace(g).zeros((rows, g.shape[-1]), g.dtype)
    if not g.size:
        return table
    g = g.reshape((-1, g.shape[-1]))
    if g.__class__ is not np.ndarray or places.__class__ is not np.ndarray:
        table = libraries.able_to_hold(table, g, places)
        add_at(table, places.reshape(-1), g)
        return table
    places, columns = places.ravel(), g.shape[1]
    if _add_natively(table, places, g):
        return table
    summed = sum_first(places, g) if columns < _WIDE_TABLE else sum_equal_rows(_narrowed(places, rows), g)
    if summed is None:  # numpy.add.at is fast in one dimension only
        np.add.at(table.reshape(-1), (places[:, None] * columns + np.arange(columns)).ravel(), g.ravel())
    else:
        distinct, total = summed
        table[distinct] = total
    return table


def _narrowed(places: Any, rows: int) -> Any:
    """Return indices as integers of 16 bits where they fit, which are sorted by radix sort."""
    return places.astype(np.int16) if rows <= 1 << 15 else places


def _add_natively(table: Any, places: Any, g: Any) -> bool:
    """Add rows to those of a table by a kernel of gradmgr-native; return False if there is none for them."""
    kernel = native_kernels.find("add_rows", g) if len(g) <= _MOST_IN_ORDER else None
    if kernel is None:
        return False
    given = native_kernels.contiguous(g), native_kernels.contiguous(places.astype(np.int64, copy=False))
    kernel(*given, table, *g.shape, len(table))
    return True


def _collect_kernel(g: Any, places: Any, rows: int, padding: int | None, by_count: bool) -> Any:
    """Return the gradient of the table from that of the rows read: the adjoint of `_read_kernel`."""
    dtype = g.dtype
    table = _sum_of_rows(widen_half(g), places, rows)
    if by_count:
        table = table / _counts(places, rows).astype(table.dtype)[:, None]
    if padding is not None:
        table[padding] = 0
    return table if table.dtype == dtype else table.astype(dtype)


def _counts(places: Any, rows: int) -> Any:
    """Return how often each row is read, but at least 1."""
    if libraries.root(places) is np or batched.is_batched(places):
        counts = np.bincount(places.reshape(-1), minlength=rows)
    else:  # CuPy's bincount would wait for the GPU
        counts = libraries.namespace(places).zeros(rows, np.int64)
        add_at(counts, places.reshape(-1), np.ones_like(places.reshape(-1), dtype=np.int64))
    return np.maximum(counts, 1)


def _read_kernel(table: Any, places: Any, padding: int | None, by_count: bool) -> Any:
    """Read rows of a table's tangent: 0 for `padding`; with by_count divided by how often each row is read."""
    read = libraries.getitem(table, places)
    if by_count:
        read = read / _counts(places, table.shape[0]).astype(table.dtype)[places][..., None]
    return read if padding is None else np.where((places == padding)[..., None], table.dtype.type(0), read)


def _embedding_kernel(table: Any, places: Any, padding: int | None, by_count: bool) -> Any:
    if table.__class__ is places.__class__ is np.ndarray:
        return table.take(places, 0)  # in a third of the time of table[places]
    return libraries.getitem(table, places)


_collect: Function = linear(
    "nn.embedding_gradient",
    _collect_kernel,
    lambda g, places, padding, by_count: _read(g, places, padding, by_count),
)
_read: Function = linear(
    "nn.embedding_tangent",
    _read_kernel,
    lambda g, shape, places, padding, by_count: _collect(g, places, shape[0], padding, by_count),
)


def _declare_embedding(name: str) -> Declared:
    return declared(
        name,
        _embedding_kernel,
        vjp={
            "table": lambda g, shape, places, padding, by_count: _collect(g, places, shape[0], padding, by_count),
        },
        jvp={"table": lambda t, places, padding, by_count: _read(t, places, padding, by_count)},
    )


def _row_sparse_vjp(dense: Vjp) -> Vjp:
    """Return the vjp that gives a leaf the rows it received, and leaves to `dense` what is recorded, or inside vmap.

    The node id of a leaf is an integer, see `Tape`. Another table is the result of an op, whose vjp takes arrays.
    """

    def vjp(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
        _, _, (node_id,), ((shape, dtype),), values = e
        capture = listener()
        if capture is not None:
            capture.add_obstacle(
                "embedding(sparse=True) gives a gradient of rows, which are not captured; leave sparse=True out,"
            )
        g_array = inner_of(g)
        if node_id.__class__ is not int or not owned.plain or isinstance(g, Tensor) or batched.is_batched(g_array):
            dense(e, g, grads, owned)
            return
        _, places, padding, by_count, _ = values
        content = TableRows(shape, dtype, (_rows_of(g_array, inner_of(places), shape[0], padding, by_count),))
        accumulate(grads, owned, node_id, row_sparse(content))

    return vjp


def _rows_of(g: Any, places: Any, rows: int, padding: int | None, by_count: bool) -> tuple[Any, Any]:
    """Return the indices of the rows that were read, and the gradient of each."""
    g, places = g.reshape((places.size, g.shape[-1])), places.reshape(-1)
    if by_count:
        _, which, counts = libraries.namespace(places).unique(places, return_inverse=True, return_counts=True)
        g = g / counts[which].astype(g.dtype)[:, None]
    if padding is not None:
        kept = places != padding
        g, places = g[kept], places[kept]
    return places, g


_embedding: Function = _declare_embedding("nn.embedding").register()
_sparse_embedding: Function = _declare_embedding("nn.sparse_embedding").register(_row_sparse_vjp)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Return the rows of a table at the given indices, as torch.nn.functional.embedding.

    On the CPU the gradient is the same in every run; on a GPU the order of additions may vary.

    Args:
        input: indices of rows, integers of any shape; a NumPy array is moved to the GPU if the table is there.
        weight: the table, (rows, columns).
        padding_idx: a row that is a constant: it gets no gradient. A negative index counts from the end.
        max_norm: not supported, as functions of gradmgr do not write to their arguments. Scale the rows after each step
            of the optimiser, which alone changes them.
        norm_type: the order of max_norm.
        scale_grad_by_freq: divide the gradient of each row by how often it is read.
        sparse: give a table that is attached a `sparse.RowSparse` as its gradient, of the rows that were read, where no
            other manager records it: a step then takes time in proportion to these rows, not to the table.

    Returns:
        (*input.shape, columns), in the dtype of the table.

    Raises:
        LabelError: an index is negative or not a row of the table.
        DtypeError: the indices are not integers, or the table's dtype cannot have gradients.
        ShapeError: the table does not have two axes.
        UnsupportedFunctionError: max_norm is given.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import embedding
    >>> embedding(np.array([2, 0]), np.array([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])).tolist()
    [[2.0, 2.5], [0.0, 0.5]]
    """
    refuse_max_norm(max_norm, "embedding")
    table, places, padding = read_table(input, weight, padding_idx, "embedding")
    if isinstance(input, Tensor) and not isinstance(table, Tensor):
        table = wrap(table)
    return look_up(table, places, padding, bool(scale_grad_by_freq), sparse)


def look_up(table: Any, places: Any, padding: int | None, by_count: bool, sparse: bool) -> Any:
    """Return the rows of a table at checked indices."""
    return (_sparse_embedding if sparse else _embedding)(table, places, padding, by_count)


def sum_rows(x: Any, places: Any, count: int) -> Any:
    """Return `count` rows, of which row k is the sum of the rows of x with index k."""
    return _collect(x, places, count, None, False)


def refuse_max_norm(max_norm: Any, asked: str) -> None:
    """Raise unless max_norm is None."""
    if max_norm is not None:
        raise errors.UnsupportedFunctionError(
            f"{asked}: max_norm would write to the table that it reads, which no function of gradmgr does; after each "
            "step of the optimiser, divide the rows by max(1, norm / max_norm)"
        )


def read_table(input: Any, weight: Any, padding_idx: Any, asked: str) -> tuple[Any, Any, int | None]:
    """Return a checked table, the indices into it as an array in its memory, and the row that is a constant."""
    table = lift(weight)
    if table.ndim != 2:
        raise errors.ShapeError(f"{asked} takes weight (rows, columns); found shape {table.shape}")
    check_inexact(asked, weight=table)
    rows, padding = table.shape[0], None
    if padding_idx is not None:
        padding = integer(padding_idx, "padding_idx", asked)
        if not -rows <= padding < rows:
            raise errors.LabelError(f"{asked}: padding_idx {padding} is not a row of a table of {rows}")
        padding %= rows
    places = checked_places(input, rows, asked, f"a table of {rows} rows")
    return table, libraries.place_indices(places, raw(table), asked), padding


def checked_places(given: Any, count: int | None, asked: str, of: str) -> Any:
    """Return checked indices as an array that is not written to later."""
    places = raw(lift(given))
    if places.dtype.kind not in "iu":
        raise errors.DtypeError(
            f"{asked} takes indices of an integer dtype; found {places.dtype}; convert them with .astype(numpy.int64)"
        )
    seen = batched.innermost(places)
    if seen.size and _is_any_outside(seen, count):
        bad = _out_of_range_mask(seen, count)
        first = int(bad.reshape(-1).argmax())
        at = tuple([int(k) for k in np.unravel_index(first, seen.shape)])
        within = "not negative" if count is None else f"at least 0 and less than {count}"
        raise errors.LabelError(
            f"{asked}: index {int(seen.reshape(-1)[first])} at position {at} is not an index of {of}; it must be "
            f"{within}"
        )
    if places.dtype.kind == "u":
        places = places.astype(np.int64)
    return places if isinstance(given, Tensor) else normalized(places)


def _is_any_outside(places: Any, count: int | None) -> bool:
    """Tell whether an index is out of range; on a GPU in one read, as reading waits for it."""
    if places.__class__ is np.ndarray:
        return int(places.min()) < 0 or (count is not None and int(places.max()) >= count)
    return bool(_out_of_range_mask(places, count).any())


def _out_of_range_mask(places: Any, count: int | None) -> Any:
    return places < 0 if count is None else (places < 0) | (places >= count)


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Return rows with 1 at the index and 0 elsewhere, as torch.nn.functional.one_hot.

    Args:
        tensor: integers of any shape.
        num_classes: the length of the rows; -1 for the largest index plus 1.

    Returns:
        (*tensor.shape, num_classes), int64.

    Raises:
        LabelError: an index is negative or not less than num_classes.
        DtypeError: the indices are not integers.
        ValueError: num_classes is neither positive nor -1, or is -1 and there is no index.
        BatchedValueError: num_classes is -1 inside vmap.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import one_hot
    >>> one_hot(np.array([1, 0]), 3).tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    classes = integer(num_classes, "num_classes", "one_hot")
    if classes < 1 and classes != -1:
        raise ValueError(f"one_hot: num_classes must be positive, or -1 to find it; found {classes}")
    limits = (None, "one_hot", "classes") if classes == -1 else (classes, "one_hot", f"{classes} classes")
    places = checked_places(tensor, *limits)
    if classes == -1:
        if not places.size:
            raise ValueError("one_hot finds num_classes from the indices, and there are none; pass num_classes")
        classes = int(places.max()) + 1
    hot = (places[..., None] == libraries.namespace(places).arange(classes)).astype(np.int64)
    return wrap(hot) if isinstance(tensor, Tensor) else hot
