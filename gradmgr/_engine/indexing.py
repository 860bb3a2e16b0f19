"""Reading through an index, and its adjoint, so that loops over an array's pieces stay linear."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries, memory
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.captured import capturing
from gradmgr._arrays.listening import listener
from gradmgr._arrays.table_rows import MANY_EQUAL, TableRows, are_few, counted_from_0, sum_first
from gradmgr._engine.context import current
from gradmgr._engine.op import OPS, Function, linear, scope_of, zeros
from gradmgr._engine.ownership import Grads, Ownership, accumulate, start_gradient
from gradmgr._engine.row_sparse import RowSparse, row_sparse
from gradmgr._engine.templates import compiled_at_first_call, op_body
from gradmgr._engine.tensor import Tensor, is_number
from gradmgr._engine.views import ViewOf, linked

Index = Any
_BASIC = (int, slice, type(None), type(Ellipsis), np.integer)

# A piece kept by a tape pins the buffer it is a view of, and the next write to that buffer would
# have to copy all of it. A piece this many times smaller than its buffer is copied instead.
_SMALL = 4


def normalized(index: Index) -> Index:
    """Return an index with Tensors as their arrays and lists as new arrays."""
    if isinstance(index, tuple):
        return tuple([normalized(part) for part in index])
    if isinstance(index, Tensor):
        return index._array
    if isinstance(index, list):
        return libraries.as_array([part._array if isinstance(part, Tensor) else part for part in index], _empty(index))
    if libraries.is_array(index):
        libraries.check_plain(index)
        return index.copy()  # the user may write to it before the derivative is taken
    return index


def _empty(index: list[Any]) -> Any:
    return None if index else np.intp


def is_simple(index: Index) -> bool:
    """Tell quickly whether an index holds only Python integers, slices, None and Ellipsis; others may be basic too."""
    return index.__class__ in _SIMPLE or (index.__class__ is tuple and _SIMPLE.issuperset(map(type, index)))


_SIMPLE = frozenset((int, slice, type(None), type(Ellipsis)))


def is_basic(index: Index) -> bool:
    """Tell whether an index gives a view: integers, slices, None and Ellipsis only."""
    for part in index if isinstance(index, tuple) else (index,):
        if not isinstance(part, _BASIC) or isinstance(part, bool):
            return False
    return True


def may_repeat(index: Index) -> bool:
    """Tell whether an index may name one element twice: it holds an integer array."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(libraries.is_array(part) and part.ndim > 0 and part.dtype.kind in "iu" for part in parts)


def _get(a: Any, index: Index) -> Any:
    if a.__class__ is np.ndarray:
        if index.__class__ is np.ndarray and index.dtype.kind == "i" and a.size and a.ndim and a.flags.c_contiguous:
            return a.take(index, 0)  # in a third of the time of a[index]
        if libraries.is_captured(index):  # whose values NumPy would ask for
            a = libraries.able_to_hold(a, index)
    try:
        piece = a[index]
    except (errors.BatchedValueError, IndexError):  # inside vmap, a batched index
        if not batched.any_batched(index):
            raise
        return libraries.getitem(a, index)
    base = piece.base
    if base is None:
        return piece
    pinned = base.nbytes if base.__class__ is np.ndarray else memory.buffer_bytes(piece)
    return piece.copy() if piece.nbytes * _SMALL <= pinned and current() is not None else piece


def add_at(buffer: Any, index: Index, g: Any) -> None:
    """Add a gradient into `buffer[index]` in place, an element named twice receiving both.

    What one element receives is added in float32 where these are halves, and with more digits where it is much.
    """
    if not may_repeat(index):
        buffer[index] += g
    elif g.size > MANY_EQUAL or buffer.itemsize == 2:
        (libraries.in_one(_add_much, buffer, index, g) or _add_much)(buffer, index, g)
    else:
        _add_in_order(buffer, index, g)


def add_in_order(buffer: Any, index: Index, g: Any) -> None:
    """Add values into `buffer[index]` in place as numpy.add.at does, in their dtype."""
    if may_repeat(index):
        _add_in_order(buffer, index, g)
    else:
        buffer[index] += g


@libraries.writes_first
def _add_much(buffer: Any, index: Index, g: Any) -> None:
    table, rows, values = _rows_to_add(buffer, index, g)
    summed = None if rows is None else sum_first(rows, values)
    if summed is not None:
        places, total = summed
        table[places] += total
    elif libraries.is_half(buffer.dtype):
        wide = buffer.astype(libraries.F4)
        _add_in_order(wide, index, g.astype(libraries.F4))
        buffer[...] = wide.astype(buffer.dtype)
    else:
        _add_in_order(buffer, index, g)


def _rows_to_add(buffer: Any, index: Index, g: Any) -> tuple[Any, Any, Any]:
    """Return a view of a buffer, the rows of it that are added to, None if not known, and g as what they receive."""
    if not buffer.__class__ is g.__class__ is np.ndarray:
        return buffer, None, g
    rows = _indices_of_rows(index)
    if rows is not None:
        places = counted_from_0(rows.reshape(-1), len(buffer))
        return buffer, places, g.reshape((len(places), *buffer.shape[1:]))
    places = _places(buffer, index, g)
    return (buffer, None, g) if places is None else (buffer.reshape(-1), places.reshape(-1), g.reshape(-1))


def _add_in_order(buffer: Any, index: Index, g: Any) -> None:
    if g.size >= _MANY and (places := _places(buffer, index, g)) is not None:
        np.add.at(buffer.reshape(-1), places.reshape(-1), g.reshape(-1))
    elif buffer.__class__ is np.ndarray or libraries.root(buffer) is np:
        np.add.at(buffer, index, g)
    else:
        libraries.add_atomically(buffer, index, g)


# From so many numbers on, numpy.add.at gets a flat position for each: for one axis of integers it has a loop that takes
# a fifth of the time for rows of 64, and adds in the same order.
_MANY = 256


def _is_of_integers(part: Any) -> bool:
    return part.__class__ is np.ndarray and part.dtype.kind in "iu"


def _places(buffer: Any, index: Index, g: Any) -> Any:
    """Return where in the flat buffer each number of g goes; None if that is not worth it."""
    if not (buffer.__class__ is g.__class__ is np.ndarray and buffer.flags.c_contiguous):
        return None
    if _is_of_integers(index):
        if buffer.ndim == 1:
            return None
        width = buffer.size // len(buffer)
        return counted_from_0(index, len(buffer))[..., None] * width + np.arange(width)
    if index.__class__ is tuple and len(index) == buffer.ndim and all(_is_of_integers(part) for part in index):
        return np.ravel_multi_index(np.broadcast_arrays(*index), buffer.shape, mode="wrap")
    if buffer.size > 4 * g.size:
        return None
    places = np.arange(buffer.size).reshape(buffer.shape)[index]
    return places if places.shape == g.shape else None


def _scatter(g: Any, shape: tuple[int, ...], index: Index) -> Any:
    buffer = zeros(g, shape, g.dtype)
    if is_simple(index):
        buffer[index] = g
        return buffer
    buffer = libraries.able_to_hold(buffer, index)
    if may_repeat(index):
        add_at(buffer, index, g)
    else:
        buffer[index] = g
    return buffer


def _are_captured(g: Any, h: Any) -> bool:
    return (libraries.is_captured(g) or libraries.is_captured(h)) and libraries.is_numpy(g) and libraries.is_numpy(h)


def _indices_of_rows(index: Index) -> Any:
    """Return the integer array of an index that is one of rows alone, as x[rows] and x[rows, :]; else None."""
    if index.__class__ is tuple and index:
        index, *others = index
        if not all(part is Ellipsis or (part.__class__ is slice and part == slice(None)) for part in others):
            return None
    return index if _is_of_integers(index) and index.ndim else None


def _rows_read(g: Any, shape: tuple[int, ...], index: Index) -> TableRows | None:
    """Return the gradient of a leaf of which few rows are read as these rows; None if it is to be the whole one.

    On a GPU a whole table takes less time than to find which rows are distinct, which waits for the GPU.
    """
    indices = _indices_of_rows(index) if g.__class__ is np.ndarray else None
    if indices is None or not are_few(indices.size, shape, g.dtype.itemsize):
        return None
    if listener() is not None or capturing() is not None:  # a replay has arrays alone
        return None
    rows = counted_from_0(indices.reshape(-1), shape[0])
    values = np.array(g, order="C").reshape((len(rows), *shape[1:]))  # others may hold g, and write to it
    return TableRows(shape, g.dtype, ((rows, values),), on_request=False)


# The shapes of tables of 64 rows and more come after this: fewer are not looked at, which takes .1 us instead of .7.
_MANY_ROWS = (64,)


def _takes_rows(h: Any, g: Any, grads: Grads, owned: Ownership, e: tuple[Any, ...]) -> bool:
    """Take the gradient of few rows of a leaf as such, if there is none or one of rows, `h`; else return False."""
    _, _, node_id, shape, _, index = e
    if h is not None and h.__class__ is not RowSparse:
        return False
    read = _rows_read(g, shape, index) if node_id.__class__ is int else None
    if read is not None and h is not None:
        read = h.content.plus(read)
        read = read if read.on_request or read.are_few() else None
    if read is not None:
        grads[node_id] = row_sparse(read)
        return True
    if h is None or g.__class__ is not np.ndarray:
        return False
    h = grads[node_id] = h.content.dense()
    owned.own_buffer(node_id)
    add_at(h, index, g)
    return True


def _add_examples(e: tuple[Any, ...], h: Any, g: Batched, grads: Grads, owned: Ownership) -> bool:
    """Add pieces of all examples of one vmap into an array of theirs, a plain index given; else return False."""
    _, _, node_id, shape, _, index = e
    pieces, level = g._array, g.level
    if pieces.__class__ is not np.ndarray or len(pieces) != level.size:
        return False
    here = (slice(None), *index) if index.__class__ is tuple else (slice(None), index)
    if h is None:
        buffer = np.zeros((level.size, *shape), pieces.dtype)
        buffer[here] = pieces
        grads[node_id] = Batched(level, buffer)
        owned.own_buffer(node_id)
        return True
    if node_id not in owned or h.__class__ is not Batched or h.level is not level:
        return False
    total = h._array
    if total.__class__ is not np.ndarray or len(total) != level.size or total.dtype != pieces.dtype:
        return False
    total[here] += pieces
    return True


def _vjp_of_getitem(e: tuple[Any, ...], g: Any, grads: Grads, owned: Ownership) -> None:
    """Add into the gradient's own buffer at the index: O(piece) for all but the first piece."""
    _, _, node_id, shape, _, index = e
    h = grads.get(node_id)
    if owned.plain and is_simple(index) and isinstance(g, (np.ndarray, np.generic)):
        # Plain arrays, a plain index, and nothing recorded: what the rest does, without asking.
        if h is None:
            grads[node_id] = h = np.zeros(shape, g.dtype)
            h[index] = g
            owned.own_buffer(node_id)
            return
        if shape and h.__class__ is np.ndarray:
            if node_id not in owned:  # the second contribution goes into a new buffer
                grads[node_id] = h = h.copy()
                owned.own_buffer(node_id)
            h[index] += g
            return
    if owned.batched and g.__class__ is Batched and is_simple(index) and _add_examples(e, h, g, grads, owned):
        return
    if owned.takes_rows and shape[:1] >= _MANY_ROWS and _takes_rows(h, g, grads, owned, e):
        return
    _add_piece(e, h, g, grads, owned)


def _add_piece(e: tuple[Any, ...], h: Any, g: Any, grads: Grads, owned: Ownership) -> None:
    """Add the gradient of a piece, whatever it is, to h, that of the whole."""
    _, _, node_id, shape, _, index = e
    if h is None:
        start_gradient(grads, owned, node_id, scatter(g, shape, index))
    elif owned.plain and node_id not in owned and shape and is_simple(index) and _are_captured(g, h):  # as above
        grads[node_id] = h = libraries.able_to_hold(h.copy(), g)
        owned.own_buffer(node_id)
        h[index] += g
    elif node_id in owned and shape and not isinstance(h, Tensor):
        if g.__class__ is Tensor:  # that nothing records, inside vmap
            g = g._array
        if g.__class__ is not np.ndarray:
            h = grads[node_id] = libraries.able_to_hold(h, index, g)
        add_at(h, index, g)
    elif node_id in owned and shape and is_basic(index):
        h[index] = h[index] + g
    else:
        accumulate(grads, owned, node_id, scatter(g, shape, index))


def _view_of_item(x: Tensor, a: Any, c: Any, index: Index) -> ViewOf:
    """Return what x[index] is a view of: also where `_get` made a copy of it."""
    if not is_basic(index):
        return None  # an array of its own, or a number
    if not c.ndim and not any(part is Ellipsis for part in (index if index.__class__ is tuple else (index,))):
        return None  # a number
    return () if is_number(x) else linked(x, index)


getitem: Function = linear(
    "getitem",
    _get,
    lambda g, shape, index: scatter(g, shape, index),
    vjp=_vjp_of_getitem,
    view_of=_view_of_item,
)
scatter: Function = linear("scatter", _scatter, lambda g, index: getitem(g, index))

# ---------------------------------------------------------------- x[index]

_READ_ITEM = """\
def made(x, index, /):
    a0 = x._array
    if a0.__class__ is not ndarray or not (
        index.__class__ in SIMPLE or (index.__class__ is tuple and SIMPLE.issuperset(map(type, index)))
    ):
        return other_item(x, index)
"""

# What `_get` does of a piece, and `_view_of_item`.
_KEEP_ITEM = f"""\
    v, b = x._view_of, c.base
    if b is None or (v is None and not a0.ndim):
        v = None if b is None else ()
    else:
        if b.__class__ is ndarray and c.nbytes * {_SMALL} <= b.nbytes and current() is not None:
            c = c.copy()
        v = linked(x, index) if v and v[0]() is None else (ref(x), v, index)
"""


def item_method(other_item: Function) -> Function:
    """Return the method for x[index]: `getitem` in one frame for arrays of NumPy's and a plain index.

    Slices are read more often than any other op is called, and NumPy takes 0.1 us for one.

    Args:
        other_item: what is called for other arrays and indices.
    """
    op = OPS["getitem"]
    scope = scope_of(
        op,
        __name__,
        SIMPLE=_SIMPLE,
        other_item=other_item,
    )

    def source() -> str:
        append = "            entries.append(('getitem', m, i0, a0.shape, a0.dtype, index))\n"
        return _READ_ITEM + op_body(
            "x", append, result="a0[index]", then=_KEEP_ITEM, params="index, ", is_tensor=True, view_of="v"
        )

    method = compiled_at_first_call("x, index, /", "call", source, "getitem", "item", scope)
    method.__doc__ = other_item.__doc__
    return method
