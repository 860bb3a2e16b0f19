"""Clip gradients by norm or value.

Small gradients are copied into one row, changed there, and become views of it: a few array calls for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, isfinite, isnan, sqrt
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import blocks, libraries
from gradmgr._arrays.atomic import Call, call_quietly, run_quietly
from gradmgr._arrays.listening import listener
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine import write_lock
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.context import current, recorders
from gradmgr._engine.mutation import calls_to_forget
from gradmgr._engine.row_sparse import memory_of, stored_rows
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr._engine.wrong_calls import explained
from gradmgr.ops.convert import is_half, wide_dtype
from gradmgr.optim._chunks import flattened, is_packable, real_of

Array = Any

# Numbers whose squares are summed in their own dtype; these sums are added in float64. BLAS sums so few numbers on one
# thread (OpenBLAS uses more from 10,001 on), so the result is the same for any number of threads.
_SPAN = 1 << 13
# Bytes of a long row that a thread takes at a time.
_PART = 1 << 20


# Returns the calls that change the numbers of an array in place.
Change = Callable[[Array], list[Call]]


class Row:
    """Gradients of one dtype and device: several small ones, or one large."""

    __slots__ = ("grads", "is_packed", "xp")

    def __init__(self, grads: list[Tensor], is_packed: bool) -> None:
        self.grads = grads
        self.is_packed = is_packed
        self.xp = libraries.namespace(grads[0]._array)

    def is_long(self) -> bool:
        """Tell whether several threads gain by sharing it."""
        return self.xp is np and not self.is_packed and bool(self.grads[0]._array.nbytes >= 2 * _PART)

    def values(self) -> Array:
        """Return all their real numbers in a row, at least float32; of small or half-precision ones a copy."""
        dtype = self.grads[0].dtype
        wide = wide_dtype(dtype)
        arrays = [g._array for g in self.grads]
        if self.is_packed:
            row = self.xp.empty_like(arrays[0], dtype=wide, shape=(sum([a.size for a in arrays]),))
            self.xp.concatenate(arrays, axis=None, out=row)
        else:
            row = self.xp.ascontiguousarray(arrays[0]).astype(wide, copy=False)
        return flattened(row)

    def calls(self, change: Change, row: Array, lanes: list[list[Call]]) -> list[Call]:
        """Return the calls that change the numbers, in new memory or in place; the caller holds the lock.

        Args:
            change: returns the calls that change a row of numbers in place.
            row: what `values` returned where that is a copy, which is changed now; else None.
            lanes: to which calls are added that come before the others; each lane may run on its own thread.
        """
        if self.is_packed or is_half(self.grads[0].dtype):
            row = self.values() if row is None else row
            run_quietly(change(row))
            return self._calls_to_bind(row)
        (g,) = self.grads
        in_place = g._array.flags.c_contiguous and write_lock.may_write(g)
        a = g._array if in_place else g._array.copy(order="C")
        numbers = flattened(a)
        calls: list[Call] = []
        parts = blocks.blocks(numbers.size, numbers.nbytes, _PART) if self.xp is np else [slice(None)]
        for k, part in enumerate(parts):
            (calls if not lanes else lanes[k % len(lanes)]).extend(change(numbers[part]))
        calls.append((setattr, g, "__class__", g._unguarded) if in_place else (setattr, g, "_array", a))
        return calls + calls_to_forget(g, recorders(current()))

    def _calls_to_bind(self, row: Array) -> list[Call]:
        """Return the calls that make the gradients views of a row."""
        dtype = self.grads[0].dtype
        row = row.view(dtype) if dtype.kind == "c" else row.astype(dtype, copy=False)
        recording = recorders(current())
        calls: list[Call] = []
        low = 0
        for g in self.grads:
            shape = g._array.shape
            high = low + g._array.size
            calls.append((setattr, g, "_array", row[low:high] if len(shape) == 1 else row[low:high].reshape(shape)))
            low = high
            calls += calls_to_forget(g, recording) if recording else [(setattr, g, "_rec", None)]
        return calls


class TableRow(Row):
    """The rows of one gradient that is a RowSparse: the other numbers are 0, and stay so."""

    __slots__ = ("_content",)

    def __init__(self, g: Tensor, content: TableRows) -> None:
        self.grads = [g]
        self.is_packed = True  # computed apart, and then bound
        self._content = content.coalesced()
        self.xp = libraries.namespace(self._content.parts[0][1])

    def values(self) -> Array:
        ((_, values),) = self._content.parts
        return flattened(self.xp.array(values, dtype=wide_dtype(values.dtype), order="C"))

    def _calls_to_bind(self, row: Array) -> list[Call]:
        (g,), ((_, values),) = self.grads, self._content.parts
        row = row.view(g.dtype) if g.dtype.kind == "c" else row.astype(g.dtype, copy=False)
        content = self._content.with_values([row.reshape(values.shape)])
        new = content.dense() if stored_rows(g) is None else content  # another thread has made it whole
        return [(setattr, g, "_array", new), *calls_to_forget(g, recorders(current()))]


def copies_of(work: list[tuple[Row, Array]]) -> list[tuple[Row, Array]]:
    """Return the same rows and values, but None for views of a gradient: references to its memory are counted."""
    found = [(row, values if row.is_packed else None) for row, values in work]
    work.clear()
    return found


def change_all(work: Sequence[tuple[Row, Array]], change: Callable[[Any], Change], last: Sequence[Call] = ()) -> None:
    """Change the numbers of all rows together: all or none, whatever strikes meanwhile.

    Args:
        work: rows, each with what its `values` returned, or None; where that is a view of the gradient, None.
        change: returns, for the library of a row, what returns the calls that change an array in place.
        last: further calls to make with them, at the end.
    """
    threads = blocks.get_num_threads()
    is_shared = threads > 1 and any(row.is_long() for row, _ in work)
    lanes: list[list[Call]] = [[] for _ in range(threads)] if is_shared else []
    calls: list[Call] = []
    with write_lock.lock:
        for row, values in work:
            calls += row.calls(change(row.xp), values, lanes)
        blocks.run_lanes(lanes, [*calls, *last])


def _run_in_parts(work: Callable[[slice], None], count: int, nbytes: int) -> None:
    """Call work(part) once for a whole row, or for the parts of a long one on several threads."""
    if nbytes < 2 * _PART or blocks.get_num_threads() == 1:
        work(slice(None))
    else:
        blocks.run(work, blocks.blocks(count, nbytes, _PART))


def rows_of(grads: list[Tensor]) -> list[Row]:
    """Return a row of the small gradients of each dtype and device, and a row of each large one."""
    small: dict[Any, list[Tensor]] = {}
    rows: list[Row] = []
    for g in grads:
        content = stored_rows(g)
        if content is not None:
            rows.append(TableRow(g, content))
            continue
        a = g._array
        if a.nbytes <= 1 << 13 or is_packable(g):  # the first test is quick and usually decides
            where = None if isinstance(a, (np.ndarray, np.generic)) else g.device
            small.setdefault((a.dtype, where), []).append(g)
        else:
            rows.append(Row([g], is_packed=False))
    return [Row(together, is_packed=True) for together in small.values()] + rows


def gradients_of(parameters: Any, asked: str) -> list[Tensor]:
    """Return the gradients of those parameters that have one."""
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    if isinstance(listed, Mapping):
        listed = listed.values()
    if not isinstance(listed, Iterable) or libraries.is_array(listed):
        raise TypeError(f"{asked} takes a Tensor or an iterable of Tensors; found {type(parameters).__name__}")
    found = []
    for k, p in enumerate(listed):
        if not isinstance(p, Tensor):
            how = "; pass model.parameters()" if hasattr(p, "parameters") else ""
            raise TypeError(f"{asked} takes Tensors; element {k} is {type(p).__name__}{how}")
        g = p.grad
        if g is not None:
            found.append(g)
    return found


# ---------------------------------------------------------------- norms


def _square(row: Array, xp: Any) -> Any:
    """Return the sum of the squares of real numbers."""
    if xp is not np or row.size <= _SPAN:
        return xp.dot(row, row)
    whole = row.size // _SPAN * _SPAN
    spans, sums = row[:whole].reshape(-1, _SPAN), np.empty(whole // _SPAN, row.dtype)

    def work(part: slice) -> None:
        np.vecdot(spans[part], spans[part], out=sums[part])

    _run_in_parts(work, len(spans), spans.nbytes)
    total = sum(sums.tolist())  # of Python's floats
    return total if whole == row.size else total + float(np.dot(row[whole:], row[whole:]))


def _norm(row: Array, order: float, is_complex: bool, xp: Any, square: Any) -> float:
    """Return the norm of a row, in which complex numbers are two reals each; `square` is the sum of its squares."""
    if row.size == 0:
        return 0.0
    if order == 2:
        found = sqrt(float(square))
        if 1e-15 < found < inf or isnan(found):
            return found
        largest = float(xp.abs(row).max())  # the squares may have left the dtype's range
        if not 0 < largest < inf:
            return largest
        row = row / largest
        return largest * sqrt(float(_square(row, xp)))
    sizes = xp.abs(row.view(np.dtype(f"c{2 * row.itemsize}")) if is_complex else row)
    largest = float(sizes.max())
    if order == inf or not 0 < largest < inf:
        return largest
    if order == 1:
        return float(sizes.sum(dtype=np.float64))
    powers = float(((sizes / largest) ** order).sum(dtype=np.float64))
    return float(largest * powers ** (1 / order))


def _total(norms: list[float], order: float) -> float:
    """Return the norm of all numbers from the norms of the rows."""
    if any(isnan(norm) for norm in norms):
        return float("nan")
    largest = max(norms, default=0.0)
    if order == inf or len(norms) < 2 or not 0 < largest < inf:
        return largest
    return float(largest * sum([(norm / largest) ** order for norm in norms]) ** (1 / order))


def _measure(grads: list[Tensor], norm_type: Any, error_if_nonfinite: bool, asked: str) -> tuple[float, list[Any]]:
    """Return the norm of all gradients, and the rows with their values."""
    order = float(norm_type)
    if not order > 0:
        raise ValueError(f"{asked}: norm_type must be above 0, or inf; found {norm_type!r}")
    work, norms = call_quietly(_norms_of, grads, order)
    total = _total(norms, order)
    if error_if_nonfinite and not isfinite(total):
        raise errors.NonFiniteError(_describe_nonfinite(grads, total, order, asked))
    return total, work


def _norms_of(grads: list[Tensor], order: float) -> tuple[list[tuple[Row, Any]], list[Any]]:
    """Return the rows of the gradients with their values, and the norm of each row."""
    work = [(row, row.values()) for row in rows_of(grads)]
    # All squares are started before the first is read, as reading waits for the GPU.
    squares = [_square(values, row.xp) if order == 2 else None for row, values in work]
    norms = [
        _norm(values, order, row.grads[0].dtype.kind == "c", row.xp, square)
        for (row, values), square in zip(work, squares, strict=True)
    ]
    return work, norms


def _describe_nonfinite(grads: list[Tensor], total: float, order: float, asked: str) -> str:
    bad = []
    for k, g in enumerate(grads):
        content = stored_rows(g)
        a = g._array if content is None else content.joined()[1]
        wrong = a.size - int(libraries.namespace(a).isfinite(a).sum())
        if wrong:
            bad.append(f"gradient {k}, {describe(g)}, has {wrong} of {g.size} numbers infinite or NaN")
    more = [f"and {len(bad) - 5} gradients more"] if len(bad) > 5 else []
    which = "\n  ".join(bad[:5] + more) or "each number is finite; the norm left the range of its dtype"
    return (
        f"{asked}: the norm of order {order:g} of all gradients is {total}; nothing was changed. Look for a loss "
        f"that is not finite (gradmgr.detect_anomaly() finds where), or pass error_if_nonfinite=False:\n  {which}"
    )


def _as_tensor(total: float, grads: list[Tensor]) -> Tensor:
    if not grads:
        return wrap(np.asarray(0.0, np.float32))
    dtypes = {g.dtype for g in grads}
    kinds = [real_of(wide_dtype(dtype)) for dtype in dtypes]
    a = memory_of(grads[0])
    return wrap(call_quietly(libraries.namespace(a).asarray, total, np.result_type(*kinds)))


def get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """Return the norm of all tensors taken as one vector.

    Args:
        tensors: Tensors, such as gradients.
        norm_type: the order of the norm, above 0; `inf` for the largest absolute value.
        error_if_nonfinite: raise if the norm is infinite or NaN.

    Returns:
        A Tensor of shape () on the first tensor's device, in the dtype of the tensors, float32 for half precision.

    Raises:
        NonFiniteError: the norm is not finite and error_if_nonfinite is set; the message names the tensors.

    >>> import gradmgr
    >>> gradmgr.optim.get_total_norm([gradmgr.tensor([3.0]), gradmgr.tensor([[4.0]])]).item()
    5.0
    """
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    total: Tensor = call_whole(_total_norm, listed, norm_type, error_if_nonfinite, changes=())
    return total


def _total_norm(listed: list[Any], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    for k, t in enumerate(listed):
        if not isinstance(t, Tensor) or not libraries.is_differentiable(t.dtype):
            raise TypeError(f"get_total_norm takes floating Tensors; element {k} is {t!r:.60}")
    total, _ = _measure(listed, norm_type, error_if_nonfinite, "get_total_norm")
    return _as_tensor(total, listed)


# ---------------------------------------------------------------- clipping


def _call_on_gradients(function: Callable[..., Any], parameters: Any, *args: Any) -> Any:
    """Call a function that changes the gradients of parameters, which an iterator may give."""
    if listener() is None:
        return function(parameters, *args)
    listed = parameters if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in ([listed] if isinstance(listed, Tensor) else listed) if isinstance(p, Tensor)]
    return call_whole(function, listed, *args, changes=[g for g in grads if g is not None])


@explained
def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale the gradients of all parameters so that their norm, taken together, is at most `max_norm`.

    They are multiplied by `max_norm / (norm + 1e-6)` if that is below 1. Each `.grad` remains the same Tensor. Open
    recordings treat it as a constant from then on.

    Args:
        parameters: a Tensor or several; those without a gradient are left out.
        max_norm: the largest norm that is not scaled down.
        norm_type: see `get_total_norm`.
        error_if_nonfinite: raise if the norm is infinite or NaN, and change nothing; otherwise the gradients become NaN
            or 0, as the formula gives.

    Returns:
        The norm before clipping, as `get_total_norm` returns it.

    Raises:
        NonFiniteError: the norm is not finite and error_if_nonfinite is set; the message names the gradients.
        TypeError, ValueError: not Tensors; a norm_type not above 0.

    >>> import gradmgr
    >>> w = gradmgr.tensor([0.0, 0.0])
    >>> w.grad = gradmgr.tensor([30.0, 40.0])
    >>> gradmgr.optim.clip_grad_norm_([w], max_norm=5).item()
    50.0
    >>> w.grad.numpy().round(4).tolist()
    [3.0, 4.0]
    """
    total: Tensor = _call_on_gradients(_clip_norm, parameters, float(max_norm), norm_type, error_if_nonfinite)
    return total


def _clip_norm(parameters: Any, limit: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
    grads = gradients_of(parameters, "clip_grad_norm_")
    total, work = _measure(grads, norm_type, error_if_nonfinite, "clip_grad_norm_")
    factor = limit / (total + 1e-6)
    if not factor >= 1:
        change_all(copies_of(work), lambda xp: lambda a: [(xp.multiply, a, factor, a)])
    return _as_tensor(total, grads)


@explained
def clip_grad_value_(parameters: Any, clip_value: float | tuple[float, float]) -> None:
    """Clip each number of the gradients of all parameters to [-clip_value, clip_value], or to a pair of bounds.

    Real and imaginary parts of complex gradients are clipped apart. Each `.grad` remains the same Tensor. Open
    recordings treat it as a constant from then on.

    Args:
        parameters: a Tensor or several.
        clip_value: the largest absolute value, or the pair of the least and the largest value.

    Raises:
        TypeError: not Tensors, or a bound is not a number.
        ValueError: clip_value is a sequence of another length, or its bounds are in the wrong order.

    >>> import gradmgr
    >>> w = gradmgr.tensor([0.0, 0.0])
    >>> w.grad = gradmgr.tensor([0.5, -40.0])
    >>> gradmgr.optim.clip_grad_value_([w], 1.0)
    >>> w.grad.tolist()
    [0.5, -1.0]
    >>> gradmgr.optim.clip_grad_value_([w], (-0.5, 0.25))
    >>> w.grad.tolist()
    [0.25, -0.5]
    """
    _call_on_gradients(_clip_values, parameters, *_clip_bounds(clip_value))


def _clip_bounds(value: Any) -> tuple[float, float]:
    """Return the bounds that a `clip_value` means."""
    if not isinstance(value, (tuple, list)):
        return -float(value), float(value)
    if len(value) != 2:
        raise ValueError(f"clip_grad_value_: clip_value must be a number or a pair of bounds; found {value!r}")
    low, high = map(float, value)
    if not low <= high:
        raise ValueError(f"clip_grad_value_: the lower bound must not be above the upper one; found {value!r}")
    return low, high


def _clip_values(parameters: Any, low: float, high: float) -> None:
    grads = gradients_of(parameters, "clip_grad_value_")
    if low > 0 or high < 0:
        _make_whole(grads)
    rows = [(row, None) for row in rows_of(grads)]

    def change(xp: Any) -> Change:
        return lambda a: [(partial(xp.maximum, out=a), a, low), (partial(xp.minimum, out=a), a, high)]

    change_all(rows, change)


def _make_whole(grads: list[Tensor]) -> None:
    """Let gradients of rows hold the whole table, as the numbers of other rows are not to stay 0."""
    with write_lock.lock:
        for g in grads:
            _make_one_whole(g)


def _make_one_whole(g: Tensor) -> None:
    rows = stored_rows(g)
    if rows is not None:
        g._array = rows.dense()
