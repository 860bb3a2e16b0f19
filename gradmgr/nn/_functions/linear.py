"""Affine maps and table look-up: `linear`, `embedding`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.indexing import add_at, normalized
from gradmgr._engine.op import Function
from gradmgr._engine.op import linear as declare_linear
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.nn._functions.arguments import check_inexact, integer, one_array
from gradmgr.ops.convert import lift, widened
from gradmgr.ops.products import matmul
from gradmgr.ops.shape import reshape

Shape = tuple[int, ...]

# ---------------------------------------------------------------- linear


def _in_rows(x: Any) -> Any:
    """Return x with one leading axis: numpy.matmul takes the matrices of a stack one by one."""
    if x.ndim == 2:
        return x
    columns = x.shape[-1]
    if columns and x.__class__ is np.ndarray:
        return x.reshape(-1, columns)
    return reshape(x, (math.prod(x.shape[:-1]), columns))


def _linear_kernel(x: Any, weight: Any, bias: Any) -> Any:
    of_w, dtype, rows = weight.shape, x.dtype, x if x.ndim == 2 or not x.ndim else _in_rows(x)
    if libraries.are_matrices(rows, weight) and rows.shape[1] == of_w[1]:
        if bias is None:
            return _product(x, rows, weight)
        if bias.dtype is dtype and bias.shape == of_w[:1] and bias.__class__ is np.ndarray:
            y = _product(x, rows, weight)
            y += bias
            return y
    if len(of_w) != 2 or x.shape[-1:] != of_w[1:] or (bias is not None and bias.shape != of_w[:1]):
        raise _misfit(x.shape, of_w, None if bias is None else bias.shape)
    if dtype.kind not in "fc" or weight.dtype.kind not in "fc" or (bias is not None and bias.dtype.kind not in "fc"):
        check_inexact("nn.linear", input=x, weight=weight, bias=bias)  # bfloat16 is of another kind
    if weight.dtype != dtype or (bias is not None and bias.dtype != dtype):
        dtype = np.result_type(dtype, weight.dtype, *(() if bias is None else (bias.dtype,)))
    y = widened(rows) @ widened(weight).T
    if bias is not None:
        y = y + bias
    y = y if y.dtype == dtype else y.astype(dtype)
    return y if x.ndim == 2 else y.reshape((*x.shape[:-1], weight.shape[0]))


def _product(x: Any, rows: Any, weight: Any) -> Any:
    """Return rows @ weight.T, in an array of its own with the leading axes of x: a view could not be used again."""
    return rows.dot(weight.T) if rows is x else _shaped(x, rows, weight.T)


def _shaped(x: Any, rows: Any, matrix: Any) -> Any:
    columns = matrix.shape[1]
    made = np.empty((*x.shape[:-1], columns), x.dtype)
    rows.dot(matrix, made.reshape(rows.shape[0], columns))
    return made


def _misfit(x: Shape, weight: Shape, bias: Shape | None) -> errors.ShapeError:
    return errors.ShapeError(
        "nn.linear takes input (..., in_features), weight (out_features, in_features) and bias (out_features,); "
        f"found input {x}, weight {weight}, bias {bias}"
    )


def _x_vjp(g: Any, weight: Any) -> Any:
    if libraries.are_matrices(g, weight):
        return g.dot(weight)
    if g.ndim > 2 and g.__class__ is np.ndarray:
        rows = _in_rows(g)
        if libraries.are_matrices(rows, weight):
            return _shaped(g, rows, weight)
    return _linear(g, conj_of(weight).T, None)


def _weight_vjp(g: Any, x: Any) -> Any:
    if g.ndim != 2:
        g, x = _in_rows(g), _in_rows(x)
    return g.T.dot(x) if libraries.are_matrices(g, x) else widened(g).T @ widened(conj_of(x))


def _bias_vjp(g: Any) -> Any:
    """Sum over rows, as a product with ones: BLAS takes half the time of numpy.add.reduce."""
    rows = g if g.ndim == 2 else _in_rows(g)
    if libraries.are_matrices(rows, rows):
        return libraries.sum_of_rows(rows)
    rows = widened(rows)
    return matmul(libraries.namespace(raw(rows)).ones(rows.shape[0], rows.dtype), rows)


_linear: Function = custom(
    "nn.linear",
    _linear_kernel,
    vjp={"x": _x_vjp, "weight": _weight_vjp, "bias": _bias_vjp},
    jvp={
        "x": lambda t, weight: _linear(t, weight, None),
        "weight": lambda t, x: _linear(x, t, None),
        "bias": lambda t: t,
    },
)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return `input @ weight.T + bias`, as torch.nn.functional.linear.

    Args:
        input: (..., in_features).
        weight: (out_features, in_features); or (in_features,), and the result has no last axis.
        bias: (out_features,), or None.

    Returns:
        (..., out_features), in the dtype that NumPy gives to the three together. Sums of float16 and bfloat16
        are taken in float32.

    Raises:
        ShapeError: the shapes do not fit.
        DtypeError: an argument is of integers or booleans.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import linear
    >>> linear(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]), np.array([0.5, 0.0]))
    array([[11.5,  2. ]])
    """
    x, weight, bias = one_array(input), lift(weight), None if bias is None else lift(bias)
    if weight.ndim != 1:
        return _linear(x, weight, bias)
    if bias is not None and bias.ndim:
        raise _misfit(x.shape, weight.shape, bias.shape)
    bias = None if bias is None else reshape(bias, (1,))
    return _linear(x, reshape(weight, (1, weight.shape[0])), bias)[..., 0]


# ---------------------------------------------------------------- embedding

# From so many columns on, rows are sorted and summed by runs; below, elements are added one by one.
_WIDE_TABLE = 32
# From so many rows on, runs are summed side by side.
_MANY_ROWS = 512


def _sum_of_rows(g: Any, places: Any, rows: int) -> Any:
    """Return a table of which row k is the sum of the rows of g whose place is k; the same at every call."""
    table = libraries.namespace(g).zeros((rows, g.shape[-1]), g.dtype)
    g = g.reshape((-1, g.shape[-1]))
    if not g.size:
        return table
    if g.__class__ is not np.ndarray or places.__class__ is not np.ndarray:
        table = batched.spacious(table, g, places)
        add_at(table, places.reshape(-1), g)
        return table
    places, columns = places.ravel(), g.shape[1]
    if columns < _WIDE_TABLE:  # numpy.add.at is fast in one dimension only
        np.add.at(table.reshape(-1), (places[:, None] * columns + np.arange(columns)).ravel(), g.ravel())
        return table
    order = np.argsort(places.astype(np.int16) if rows <= 1 << 15 else places, kind="stable")  # by radix, if of 16 bits
    places, g = places.take(order), g.take(order, 0)
    starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    if len(places) < _MANY_ROWS:
        table[places.take(starts)] = np.add.reduceat(g, starts, axis=0)
        return table
    counts = np.diff(starts, append=len(places))
    by_count = np.argsort(-counts, kind="stable")
    starts = starts.take(by_count)
    table[places.take(starts)] = _sum_of_runs(g, starts, counts.take(by_count))
    return table


def _sum_of_runs(g: Any, starts: Any, counts: Any) -> Any:
    """Return the sum of each run of rows, the longest run first.

    The first rows of all runs are added, then the second ones of those that have two, and so on: whole rows at a
    time, where numpy.add.reduceat takes each column of each run by itself. A few long runs are left for that.
    """
    having = (len(counts) - np.cumsum(np.bincount(counts))).tolist()  # at k, how many runs have more than k rows
    rounds = max(1, int(np.argmin(np.add(having, range(len(having))))))
    total = g.take(starts, 0)
    for k in range(1, rounds):
        total[: having[k]] += g.take(starts[: having[k]] + k, 0)
    for k in range(having[rounds]):
        total[k] += np.add.reduceat(g[starts[k] + rounds : starts[k] + counts[k]], (0,), axis=0)[0]
    return total


def _collect_kernel(g: Any, places: Any, rows: int, padding: int | None, by_count: bool) -> Any:
    """Return the gradient of a table of which rows were read: the adjoint of `_read_kernel`."""
    dtype = g.dtype
    table = _sum_of_rows(widened(g), places, rows)
    if by_count:
        table = table / _counts(places, rows).astype(table.dtype)[:, None]
    if padding is not None:
        table[padding] = 0
    return table if table.dtype == dtype else table.astype(dtype)


def _counts(places: Any, rows: int) -> Any:
    """Return how often each row is read, 1 where that is never."""
    if libraries.root(places) is np or batched.is_batched(places):
        counts = np.bincount(places.reshape(-1), minlength=rows)
    else:  # CuPy's would make wait for the GPU
        counts = libraries.namespace(places).zeros(rows, np.int64)
        add_at(counts, places.reshape(-1), np.ones_like(places.reshape(-1), dtype=np.int64))
    return np.maximum(counts, 1)


def _read_kernel(table: Any, places: Any, padding: int | None, by_count: bool) -> Any:
    """Read rows of the tangent of a table, as the gradient takes them: zeros for `padding`, shares of what is read."""
    read = batched.read(table, places)
    if by_count:
        read = read / _counts(places, table.shape[0]).astype(table.dtype)[places][..., None]
    return read if padding is None else np.where((places == padding)[..., None], table.dtype.type(0), read)


def _embedding_kernel(table: Any, places: Any, padding: int | None, by_count: bool) -> Any:
    if table.__class__ is places.__class__ is np.ndarray:
        return table.take(places, 0)  # in a third of the time of table[places]
    return batched.read(table, places)


_collect: Function = declare_linear(
    "nn.embedding_gradient",
    _collect_kernel,
    lambda g, places, padding, by_count: _read(g, places, padding, by_count),
)
_read: Function = declare_linear(
    "nn.embedding_tangent",
    _read_kernel,
    lambda g, shape, places, padding, by_count: _collect(g, places, shape[0], padding, by_count),
)
_embedding: Function = custom(
    "nn.embedding",
    _embedding_kernel,
    vjp={
        "table": lambda g, shape, places, padding, by_count: _collect(g, places, shape[0], padding, by_count),
    },
    jvp={"table": lambda t, places, padding, by_count: _read(t, places, padding, by_count)},
)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Return the rows of a table that the indices name, as torch.nn.functional.embedding.

    On the CPU the gradient is the same at every run; a GPU adds in an order of its own.

    Args:
        input: integers of any shape, each a row of the table; NumPy's are moved to a table on a GPU.
        weight: the table, (rows, columns).
        padding_idx: a row that is taken for a constant: it gets no gradient; negative ones count from the end.
        max_norm: not here: a function of gradmgr does not write to its argument. Scale the rows after the step
            of the optimiser, which is the only one to change them.
        norm_type: of max_norm.
        scale_grad_by_freq: divide the gradient of each row by how often it is named.
        sparse: not here: gradients are arrays.

    Returns:
        (*input.shape, columns), in the dtype of the table.

    Raises:
        LabelError: an index is negative, or there is no such row.
        DtypeError: the indices are not integers, or the table holds none that carry gradients.
        ShapeError: the table has not two axes.
        UnsupportedFunctionError: max_norm or sparse is given.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import embedding
    >>> embedding(np.array([2, 0]), np.array([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]])).tolist()
    [[2.0, 2.5], [0.0, 0.5]]
    """
    if max_norm is not None:
        raise errors.UnsupportedFunctionError(
            "embedding: max_norm would write to the table that it reads, which no function of gradmgr does; after each "
            "step of the optimiser, divide the rows by max(1, norm / max_norm)"
        )
    if sparse:
        raise errors.UnsupportedFunctionError(
            "embedding: sparse=True asks for a sparse gradient, and gradients here are arrays; pass sparse=False"
        )
    table = lift(weight)
    if table.ndim != 2:
        raise errors.ShapeError(f"embedding takes weight (rows, columns); found shape {table.shape}")
    check_inexact("embedding", weight=table)
    rows, padding = table.shape[0], None
    if padding_idx is not None:
        padding = integer(padding_idx, "padding_idx", "embedding")
        if not -rows <= padding < rows:
            raise errors.LabelError(f"embedding: padding_idx {padding} is no row of a table of {rows}")
        padding %= rows
    places = libraries.beside(_places(input, rows, "embedding", f"a table of {rows} rows"), raw(table), "embedding")
    if isinstance(input, Tensor) and not isinstance(table, Tensor):
        table = wrap(table)
    return _embedding(table, places, padding, bool(scale_grad_by_freq))


def _places(given: Any, count: int | None, asked: str, of: str) -> Any:
    """Return indices as an array that nobody writes to, after a look at all of them."""
    places = raw(lift(given))
    if places.dtype.kind not in "iu":
        raise errors.DtypeError(
            f"{asked} takes indices of an integer dtype; found {places.dtype}; convert them with .astype(numpy.int64)"
        )
    seen = batched.innermost(places)
    if seen.size and _is_any_outside(seen, count):
        bad = _outside(seen, count)
        first = int(bad.reshape(-1).argmax())
        at = tuple(int(k) for k in np.unravel_index(first, seen.shape))
        within = "not negative" if count is None else f"at least 0 and less than {count}"
        raise errors.LabelError(
            f"{asked}: index {int(seen.reshape(-1)[first])} at position {at} is no index of {of}; it must be {within}"
        )
    if places.dtype.kind == "u":
        places = places.astype(np.int64)
    return places if isinstance(given, Tensor) else normalized(places)


def _is_any_outside(places: Any, count: int | None) -> bool:
    """Tell whether an index is none of so many; of a GPU's by one look, as it makes wait for each."""
    if places.__class__ is np.ndarray:
        return int(places.min()) < 0 or (count is not None and int(places.max()) >= count)
    return bool(_outside(places, count).any())


def _outside(places: Any, count: int | None) -> Any:
    return places < 0 if count is None else (places < 0) | (places >= count)


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Return rows with 1 at the index and 0 elsewhere, as torch.nn.functional.one_hot.

    Args:
        tensor: integers of any shape.
        num_classes: the length of the rows; -1 for the largest index and one more.

    Returns:
        (*tensor.shape, num_classes), int64.

    Raises:
        LabelError: an index is negative or not less than num_classes.
        DtypeError: the indices are not integers.
        ValueError: num_classes is neither positive nor -1, or is -1 where there is no index.
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
    places = _places(tensor, *limits)
    if classes == -1:
        if not places.size:
            raise ValueError("one_hot finds num_classes from the indices, and there are none; pass num_classes")
        classes = int(places.max()) + 1
    hot = (places[..., None] == libraries.namespace(places).arange(classes)).astype(np.int64)
    return wrap(hot) if isinstance(tensor, Tensor) else hot
