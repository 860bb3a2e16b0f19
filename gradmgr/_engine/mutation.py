"""Writing in place: recorded as a function, then the tensor is bound to the result.

The buffer itself is written only where nothing else can see it (`memory.is_private`), so neither a
recorded value nor a slice, a `detach()` or a `numpy()` view of the tensor ever changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from sys import getrefcount
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import Call
from gradmgr._arrays.listening import asked, computed, listener
from gradmgr._arrays.refcounts import OPERAND_OF_STATEMENT
from gradmgr._engine import write_lock
from gradmgr._engine.broadcast import broadcast_to, cast, unbroadcast
from gradmgr._engine.context import Context, current, is_tracked, rebind, recorders
from gradmgr._engine.conversion import tracking
from gradmgr._engine.entry import Entry, Kind, Metadata, declare_kind, two_inputs
from gradmgr._engine.indexing import Index, getitem, may_repeat, normalized
from gradmgr._engine.op import Function, Op, linear, register, zeros
from gradmgr._engine.ownership import Grads, Ownership, accumulate, start_gradient
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, cut, describe, raw, wrap
from gradmgr._engine.views import check_kept, is_assigned_to_item, new_array

# Below this many bytes a new array costs no more than asking whether NumPy would raise half-way.
_SMALL_BUFFER = 4096


# ---------------------------------------------------------------- x[i] = v


def writable_copy(a: Any) -> Any:
    """Return a copy of an array that can be written to, as a NumPy scalar cannot."""
    return libraries.namespace(a).array(a) if libraries.is_scalar(a) else a.copy(order="K")


def _put(a: Any, v: Any, index: Index, in_place: bool, wiped: bool) -> Any:
    if libraries.root(a) is not np and np.shape(v):
        if isinstance(v, np.ndarray):  # CuPy would copy it silently, or raise a ValueError, by the kind of index
            raise libraries.mixed("x[index] = v")
        if may_repeat(index):
            _check_places_differ(a, index)
    buffer = libraries.able_to_hold(a if in_place else writable_copy(a), index, v)
    try:
        buffer[index] = v
    except errors.REJECTIONS as error:
        libraries.explain(error, "setitem", a, v)
        raise
    return buffer


def _check_places_differ(a: Any, index: Index) -> None:
    """Raise where one element would be written twice on a GPU, where the order of writes is undefined."""
    if not _is_last(a, a.shape, index).all():
        raise ValueError(
            "x[index] = v names an element twice; on a GPU the order of writes is undefined; "
            "make the index unique or move to the CPU"
        )


def _is_last(like: Any, shape: tuple[int, ...], index: Index) -> Any:
    """Tell for each element of x[index] whether it is the last, or only, one to name its place in x."""
    xp, size = libraries.namespace(like), int(np.prod(shape))
    if xp is np and index.__class__ is np.ndarray:  # O(rows named), for loops
        rows = index.ravel()[::-1] % shape[0]
        last = np.zeros(index.size, dtype=bool)
        last[index.size - 1 - np.unique(rows, return_index=True)[1]] = True
        return last.reshape(index.shape + (1,) * (len(shape) - 1))
    places = libraries.getitem(xp.arange(size).reshape(shape), index)
    order = xp.arange(places.size).reshape(places.shape)
    winner = libraries.able_to_hold(xp.zeros(size, dtype=order.dtype), places)
    winner[places.ravel()] = order.ravel()
    return winner[places] == order


_op = register(Op("setitem", _put))


def _entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
    x, v = values
    index, _, wiped = params
    of_x, of_v = node_ids
    of_x = None if wiped else of_x
    return ("setitem", m, of_x, of_v, x.shape, x.dtype, np.shape(raw(v)), getattr(v, "dtype", None), index)


def _vjp(e: tuple[Any, ...], g: Any, grads: Grads, owned: Ownership) -> None:
    _, m, i, j, shape, _, v_shape, v_dtype, index = e
    if j is not None:
        accumulate(grads, owned, j, _as_written(_last_writes(getitem(g, index), shape, index), v_shape, v_dtype))
    if i is None:
        return
    if not (m in owned and shape):
        g = copied(g)
    elif not isinstance(g, Tensor) and j is not None and raw(grads[j]).base is not None:
        grads[j] = grads[j].copy()  # what v receives must not be a view of what is zeroed now
    try:
        g[index] = 0
    except errors.BatchedValueError:  # inside vmap, a batched index and a gradient that is not batched
        g = libraries.able_to_hold(g, index)
        g[index] = 0
    if i in grads:
        accumulate(grads, owned, i, g)
    else:
        start_gradient(grads, owned, i, g)


def _last_writes(g: Any, shape: tuple[int, ...], index: Index) -> Any:
    """Zero the gradient of values that a later one in the same write replaced: x[[0, 0]] = [2, 3]."""
    if not may_repeat(index):
        return g
    last = _is_last(raw(g), shape, index)
    return g if last.all() else put(g, libraries.namespace(raw(g)).broadcast_to(~last, g.shape), 0)


def _as_written(g: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Un-broadcast to the shape of the value, which may have further leading axes of length 1."""
    extra = len(shape) - g.ndim
    if extra > 0:
        return unbroadcast(g, shape[extra:], dtype).reshape(shape)
    return unbroadcast(g, shape, dtype)


def _jvp(tangents: Any, values: Any, out: Any, params: Any) -> Any:
    tx, tv = tangents
    x, _ = values
    tx = zeros(raw(x), x.shape, x.dtype) if tx is None else tx
    return put(tx, params[0], 0 if tv is None else tv)


def _metadata(e: Entry) -> Metadata:
    of_x, of_v = (e[2], *e[4:6]), (e[3], *e[6:8])
    return tuple([known for known in (of_x, of_v) if known[0] is not None])


_op.entry, _op.jvp = _entry, _jvp
declare_kind("setitem", Kind("setitem", two_inputs, _metadata), _vjp)


def _recorded_put(x: Tensor, index: Index, v: Any, own: Any = None) -> Tensor:
    """Return x with v at index; written into `own` where that is given: the array of x, which is private."""
    rec, in_place = current(), own is not None
    a = own if in_place else bare(x)
    if rec is None or not libraries.is_differentiable(a.dtype):
        return wrap(computed(_put, a, bare(v), index, in_place, wiped=False))
    wiped = is_tracked(x) and asked(_is_wiped, a, index)
    if rec.__class__ is Context:
        z: Tensor = rec.call(_op, (x, v), (index, in_place, wiped))
        return z
    z = wrap(_put(a, raw(v), index, in_place, wiped))
    node_ids = rec.node_id_of(x), rec.node_id_of(v) if isinstance(v, Tensor) else None
    if node_ids != (None, None):
        rec.record_op(_op, node_ids, (x, v), None, (index, in_place, wiped), z)
    return z


def _is_wiped(a: Any, index: Index) -> bool:
    """Tell whether a write leaves nothing of an array in which there were NaNs or infinities.

    Then not even a gradient of 0 may flow back from it, since 0 times NaN is NaN.
    """
    if libraries.is_array(index):
        whole = index.dtype == bool and index.shape == a.shape and bool(index.all())
    else:
        whole = index is Ellipsis or (index.__class__ is slice and index == slice(None))
    return whole and not bool(libraries.namespace(a).isfinite(a).all())


def put(x: Any, index: Index, v: Any) -> Any:
    """Return a copy of x with v at index: `x[index] = v` as a function."""
    if isinstance(x, Tensor) or isinstance(v, Tensor):
        return _recorded_put(x if isinstance(x, Tensor) else wrap(x), index, v)
    return _put(x, v, index, in_place=False, wiped=False)


def setitem(x: Tensor, index: Index, v: Any) -> None:
    """Write `x[index] = v` with every kind of index NumPy takes; recorded where a manager tracks x or v.

    Raises:
        IndexError, ValueError: as NumPy; x is then unchanged.
        LostWriteError: x is a view, and what it is a view of would not change.
    """
    if x._view_of:
        check_kept(x, "x[index] = v", "index u at once, as in u[0, 1] = v in place of u[0][1] = v")
    index = normalized(index)
    if not isinstance(v, Tensor):
        v = libraries.need_operand(v, "x[...] = v")
    if getattr(v, "dtype", x.dtype) != x.dtype and np.shape(v):
        if isinstance(v, Tensor) and current() is not None:
            _check_value_fits(asked(_shape_at, bare(x), index), v.shape)  # before the cast is recorded
        v = as_type(v, x.dtype)  # first, since a cast that overflows may raise
    with write_lock.lock:
        own = write_lock.hold(x)
        try:
            z = _recorded_put(x, index, v, own)
        finally:
            if own is not None:
                write_lock.release(x)
        rebind(x, z)


def _shape_at(a: Any, index: Index) -> tuple[int, ...]:
    return a[index].shape  # type: ignore[no-any-return]  # of any kind of array


def _check_value_fits(places: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise as NumPy would unless a value of this shape can be written; it may have axes of length 1 in front."""
    extra = len(shape) - len(places)
    if not _broadcasts(shape[extra:] if extra > 0 and set(shape[:extra]) == {1} else shape, places):
        raise ValueError(f"could not broadcast input array from shape {shape} into shape {places}")


copied: Function = linear("copy", writable_copy, lambda g: g, view_of=new_array)


def calls_to_forget(t: Tensor, recorders: Iterable[Recorder]) -> list[Call]:
    """Return the calls after which no recorder tracks a tensor, as after a write of a constant in place."""
    calls: list[Call] = []
    forgotten = []
    for rec in recorders:
        forgotten.append(rec)
        calls.append((rec.leaf_ids.pop, t, None))
        if rec.trace_log is not None and (node_id := rec.node_id_of(t)) is not None:
            rec.trace_log.record_write(t, node_id)
    overflow = getattr(t, "_overflow_ids", None)
    if overflow:
        calls.append((setattr, t, "_overflow_ids", {rec: i for rec, i in overflow.items() if rec not in forgotten}))
    return [*calls, (setattr, t, "_rec", None)]


def calls_to_write(t: Tensor, array: Any) -> list[Call]:
    """Return the calls that give a tensor another array, as a write of constants in place does."""
    heard = listener()
    if heard is not None:
        heard.meet(t)
        array = heard.untold(array)
    return [(setattr, t, "_array", array), *calls_to_forget(t, recorders(current()))]


def calls_to_rebind(t: Tensor, z: Tensor) -> list[Call]:
    """Return the calls that let a tensor be `z` from now on, a new one, in value and for every recorder: `rebind`."""
    return [*calls_to_write(t, z._array), *_calls_to_track_as(t, z)]


def calls_to_step(t: Tensor, options: Iterable[Tensor]) -> list[Call]:
    """Return the calls that tell recorders of an unrecorded step of a tensor, in place or in new memory.

    Those that are paused take the new values as constants. To the others they are no constants, but a function of the
    old ones that has no derivative: a backward pass that comes to it raises.

    Args:
        t: the tensor.
        options: on which the step depends, too.
    """
    state = current()
    z = wrap(t._array)
    for rec in Context.of(state).recording():
        if rec.open and isinstance(rec, Tape):
            rec.record_unrecorded_step((t, *options), z)
    return [*calls_to_forget(t, recorders(state)), *_calls_to_track_as(t, z)]


def _calls_to_track_as(t: Tensor, z: Tensor) -> list[Call]:
    """Return the calls by which a tensor has the node ids of another."""
    rec = z._rec
    if rec is None:
        return []
    known = {"_overflow_ids": getattr(z, "_overflow_ids", {}), "_node_id": z._node_id, "_rec": rec}
    return [(setattr, t, name, value) for name, value in known.items()]


# ---------------------------------------------------------------- out= and += and where=


def _fit_into(target: Tensor, z: Tensor, asked: str) -> Tensor:
    """Return z in the target's shape and dtype by NumPy's rule for out=: broadcast, same-kind cast."""
    check_fits(target, z.shape, z.dtype, asked)
    z = z if z.shape == target.shape else broadcast_to(z, target.shape)
    return z if z.dtype == target.dtype else as_type(z, target.dtype)


def check_fits(target: Any, shape: tuple[int, ...], dtype: np.dtype[Any], asked: str) -> None:
    """Raise where a result of this shape and dtype cannot be written into the target."""
    named = describe(target) if isinstance(target, Tensor) else f"an array of shape {target.shape}"
    if dtype != target.dtype and not np.can_cast(dtype, target.dtype, "same_kind"):
        raise errors.DtypeError(
            f"{asked} writes a result of dtype {dtype} into {named}; "
            f"that loses its kind; make the target {dtype}, or cast with .astype({str(target.dtype)!r})"
        )
    if shape != target.shape and not _broadcasts(shape, target.shape):
        raise errors.ShapeError(f"{asked} writes a result of shape {shape} into {named}; give it that shape")


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _cast(a: Any, dtype: Any) -> Any:
    return a.astype(dtype)


def as_type(x: Any, dtype: Any) -> Any:
    """Cast, recorded between the dtypes that carry gradients; a cast to integers or bools cuts."""
    dtype = np.dtype(dtype)
    if not isinstance(x, Tensor):
        return x.astype(dtype)
    if dtype.kind not in "biufc" and not libraries.is_differentiable(dtype):
        raise errors.DtypeError(f"a Tensor holds numbers; it cannot be cast to {dtype}; say t.numpy().astype(...)")
    if libraries.is_differentiable(dtype) and libraries.is_differentiable(x.dtype):
        if x.dtype.kind == "c" and dtype.kind != "c":
            errors.warn("Casting complex values to real discards the imaginary part", np.exceptions.ComplexWarning)
        return cast(x, dtype)
    heard = listener()
    if heard is not None:
        heard.meet(x)
    made = wrap(computed(_cast, x._array, dtype))
    cut(x, f"a cast to {dtype}", made)
    return made


def store(out: Any, z: Any, asked: str, *, may_broadcast: bool = False) -> Any:
    """Write a result into what the user passed as out=, and return that.

    Only ufuncs write one element to several places of a larger out=.

    Raises:
        ShapeError, DtypeError: the result does not fit; out is unchanged.
        TrackedConversionError: a tracked result into a plain array.
        LostWriteError: out is a view, and what it is a view of would not change.
    """
    if isinstance(out, tuple):
        (out,) = out
    if isinstance(out, Tensor):
        check_kept(out, asked)
    if not (isinstance(out, Tensor) or libraries.is_array(out)):
        raise TypeError(f"{asked} writes into a Tensor or an array; found {type(out).__name__}")
    libraries.check_plain(out)
    if not may_broadcast and z.shape != out.shape:
        raise errors.ShapeError(f"{asked} has a result of shape {z.shape}; found one of shape {out.shape} to write to")
    if isinstance(out, Tensor):
        return write_whole(out, _fit_into(out, z if isinstance(z, Tensor) else wrap(z), asked))
    if isinstance(z, Tensor):
        if tracking(z):
            raise errors.TrackedConversionError(
                f"{asked} would write {describe(z)}, which a manager tracks, into a plain array and lose its "
                "history; pass a Tensor as out=, or write z.numpy() explicitly"
            )
        z = z._array
    check_fits(out, np.shape(z), z.dtype, asked)
    computed(np.copyto, out, z, casting="same_kind")
    return out


def updater(
    operate: Callable[[Tensor, Any], Any],
    ufunc: Callable[..., Any] | None,
    symbol: str,
    *,
    is_operator: bool = False,
) -> Callable[..., Any]:
    """Make the method of an in-place operator from that of the plain one.

    Args:
        operate: the operator, recorded; x op y.
        ufunc: writes with out=, for buffers that are worth reusing; None if that is not safe.
        symbol: for errors, such as "+=".
        is_operator: whether it is an augmented assignment, where a number, see `tensor.is_number`, stays as it is and
            the result is another one.
    """

    def update(x: Tensor, y: Any, /) -> Any:
        view = x._view_of
        if is_operator and view is None and x._array.ndim == 0:
            return operate(x, y)
        if view:
            references = getrefcount(x)
            if not is_operator:
                check_kept(x, symbol)
            elif references > OPERAND_OF_STATEMENT or not is_assigned_to_item(view, sys._getframe(1)):
                check_kept(x, f"x {symbol} y", f"write {{item}} {symbol} y in place of x {symbol} y")
        is_recorded = current() is not None
        if not is_recorded and ufunc is not None and (isinstance(y, Tensor) or y.__class__ in libraries.PLAIN):
            b = raw(y)
            write = _replaced if x._array.nbytes <= _SMALL_BUFFER else _written
            if write(x, b, ufunc):
                return x
        if is_recorded and ufunc is not None and not _clearly_fits(x, y):
            other = raw(y) if isinstance(y, Tensor) else libraries.operand(y)
            if other is NotImplemented:
                return other
            asked = f"x {symbol} y"
            check_fits(x, x.shape, loop_dtypes(ufunc, (x, other), None, symbol)[-1], asked)
            check_fits(x, np.broadcast_shapes(x.shape, np.shape(other)), x.dtype, asked)
        z = operate(x, y)
        if z is NotImplemented:
            libraries.check_plain(y)  # else Python would go on with x op y, which is no write to x
            return z
        c = z._array
        if c.shape != x._array.shape or c.dtype != x._array.dtype:
            z = _fit_into(x, z, f"x {symbol} y")
        return write_whole(x, z)

    return update


def write_whole(x: Tensor, z: Tensor) -> Tensor:
    """Let `x` be `z` from now on, as `rebind`, with the axes in the order in memory that they have.

    In NumPy they stay so. On that depends which of its functions make a view.
    """
    before, made = x._array, z._array
    rebind(x, z)
    if made.ndim > 1 and before.__class__ is made.__class__ is np.ndarray and made.strides != before.strides:
        x._array = computed(_laid_out_like, before, made)
    return x


def _laid_out_like(before: Any, made: Any) -> Any:
    kept = np.empty_like(before)
    if kept.strides == made.strides:
        return made
    kept[...] = made
    return kept


def _clearly_fits(x: Tensor, y: Any) -> bool:
    """Tell whether x op y has, for any operator, the shape and dtype of x."""
    if not libraries.is_differentiable(x._array.dtype):
        return False
    b = raw(y)
    if isinstance(b, (np.ndarray, np.generic)):
        return b.dtype == x._array.dtype and b.shape in ((), x._array.shape)
    return b.__class__ in (int, float, bool)


def _replaced(x: Tensor, b: Any, ufunc: Callable[..., Any]) -> bool:
    """Give x the new array x op b if it fits; saves an optimiser's small step the Tensor between."""
    a = x._array
    try:
        c = ufunc(a, b)
    except errors.REJECTIONS:
        return False  # the operator says it better
    if c.shape != a.shape or c.dtype != a.dtype or (c.ndim > 1 and c.strides != a.strides):
        return False
    x._array = c
    x._rec = None
    return True


def _written(x: Tensor, b: Any, ufunc: Callable[..., Any]) -> bool:
    """Write x op b into the buffer of x if nothing else can see it; tell whether that was done."""
    if (
        getattr(b, "shape", ()) not in ((), x._array.shape)  # of arrays and numbers
        or libraries.float_errors_raise()
        or not libraries.is_differentiable(x._array.dtype)
    ):
        return False  # integers raise half-way: a negative exponent
    return written_in_place(x, ufunc, b)


def written_in_place(x: Tensor, ufunc: Callable[..., Any], *others: Any) -> bool:
    """Write ufunc(x, *others) into the buffer of x, a constant then; False where something else can see the buffer."""
    with write_lock.lock:
        own = write_lock.hold(x)
        if own is None:
            return False
        try:
            ufunc(own, *others, out=own)
        finally:
            write_lock.release(x)
    x._rec = None
    return True


def loop_dtypes(ufunc: Any, args: tuple[Any, ...], dtype: Any, name: str) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes that a ufunc computes in for these arguments, and gives."""
    kinds = [t.dtype if hasattr(t, "dtype") else np.dtype(bool) if t is True or t is False else type(t) for t in args]
    unset = (None,) * ufunc.nout
    if dtype is None:
        usual: tuple[np.dtype[Any], ...] = ufunc.resolve_dtypes((*kinds, *unset))
        return usual
    asked = np.dtype(dtype)
    try:
        found: tuple[np.dtype[Any], ...] = ufunc.resolve_dtypes(
            (*kinds, *unset), signature=(*[None] * ufunc.nin, *[asked] * ufunc.nout)
        )
    except TypeError as error:
        raise errors.DtypeError(
            f"{name}(dtype={asked}) cannot take these arguments by a same-kind cast; cast them first: {error}"
        ) from None
    return found
