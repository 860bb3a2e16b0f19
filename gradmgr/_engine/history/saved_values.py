"""Packed entries, whose saved values are kept in another form, and the hooks that pack them.

A packed entry has a placeholder (`PackedValue`) in place of each saved array, and an entry code that ends in
".packed". Its vjp unpacks the entry first, and so does everything else that reads saved values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed, listener
from gradmgr._arrays.memory_order import memory_order
from gradmgr._engine.cleanup import Scope, complete
from gradmgr._engine.context import current, paused, recorders, set_current
from gradmgr._engine.entry import KINDS, VJPS, declare_kind, flat, op_name
from gradmgr._engine.history.modes import decorate
from gradmgr._engine.hooks import name_of
from gradmgr._engine.observers import (
    Entry,
    Observer,
    SavedValuePlaceholder,
    add_observer,
    observers,
    remove_observer,
    set_observers,
)
from gradmgr._engine.ownership import Grads, Ownership
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, bare, wrap

__all__ = ["disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]

F = TypeVar("F", bound=Callable[..., Any])

_SUFFIX = ".packed"

# Classes of most values in entries that are neither arrays nor placeholders: node ids, numbers, texts.
_KEPT_AS_THEY_ARE = frozenset((object, int, bool, float, str, type(None), type(np.dtype(np.float64))))

# ---------------------------------------------------------------- packed entries


class PackedValue(SavedValuePlaceholder):
    """The placeholder of a saved value that is kept in another form.

    A saved value may be a Tensor that outer recorders track. Its node ids are kept here, in `handle`, a Tensor
    without its array.
    """

    __slots__ = ("dtype", "handle", "shape")

    def __init__(self, value: Any) -> None:
        self.shape: tuple[int, ...] = value.shape
        self.dtype: np.dtype[Any] = value.dtype
        self.handle: Tensor | None = with_node_ids(None, value) if isinstance(value, Tensor) else None

    def array(self, op: str) -> Any:
        """Return the array that was packed; `op` is its op's name, for errors."""
        raise NotImplementedError

    def value(self, op: str) -> Any:
        """Return the saved value, an array or a Tensor."""
        array = self.array(op)
        return array if self.handle is None else with_node_ids(array, self.handle)


def with_node_ids(array: Any, handle: Tensor) -> Tensor:
    """Return a new Tensor of an array that has the same node ids as `handle`."""
    made = wrap(array)
    if handle._rec is not None:
        made._rec, made._node_id = handle._rec, handle._node_id
        more = getattr(handle, "_overflow_ids", None)
        if more:
            made._overflow_ids = more
    return made


def pack_entry(e: Entry, pack: Callable[[Any], Any]) -> Entry:
    """Return an entry with each saved array or Tensor replaced by what `pack` returns for it.

    Args:
        e: the entry.
        pack: returns a `PackedValue`, or its argument to leave that as it is.
    """
    fields = e[2:]

    def replace(value: Any) -> Any:
        is_packable = value.__class__ is np.ndarray or isinstance(value, Tensor) or libraries.is_array(value)
        return pack(value) if is_packable else value

    made = _map_nested(fields, replace)
    return e if made is fields else (_packed_code(e[0]), e[1], *made)


def is_of_write(e: Entry) -> bool:
    """Tell whether an entry is of a write in place: memory is written when observers see it, so nothing may raise."""
    return bool(e[0] == "setitem")


def unpack_entry(e: Entry) -> Entry:
    """Return the entry that was packed."""
    op = op_name(e)
    made = _map_nested(e[2:], lambda value: value.value(op) if isinstance(value, PackedValue) else value)
    return (e[0].removesuffix(_SUFFIX), e[1], *made)


def _map_nested(values: tuple[Any, ...], replace: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return nested tuples with the values in them replaced; the same tuple where none is."""
    made, is_changed = [], False
    for value in values:
        kind = value.__class__
        if kind in _KEPT_AS_THEY_ARE:
            made.append(value)
            continue
        new = _map_nested(value, replace) if kind is tuple else replace(value)
        is_changed = is_changed or new is not value
        made.append(new)
    return tuple(made) if is_changed else values


def _packed_code(code: str) -> str:
    """Return the code of packed entries; it is entered in the tables when it is first asked for."""
    packed = code + _SUFFIX
    if packed not in VJPS:
        if code.endswith(_SUFFIX):
            return code
        kind = KINDS[code]
        retrack = kind.retrack
        packed_kind = kind._replace(
            metadata=lambda e: kind.metadata((code, *e[1:])),  # a PackedValue has shape and dtype
            retrack=None if retrack is None else lambda e, to: retrack(unpack_entry(e), to),
            runs="steps",
        )

        def vjp(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
            heard = listener()
            if heard is not None:
                heard.compute_vjp(VJPS[code], unpack_entry(e), g, grads, owned)
            else:
                VJPS[code](unpack_entry(e), g, grads, owned)

        declare_kind(packed, packed_kind, vjp)
    return packed


# ---------------------------------------------------------------- hooks


def _without_recording(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that calls hooks of the user's, with recorders and observers paused.

    As `Scope.run`, written out: that takes 0.4 us more, of the 6 of an op whose saved values are packed.
    """
    state, seen = current(), observers()
    try:
        try:
            set_observers(())
            set_current(paused(state))
            try:
                return function(*args)
            finally:
                set_current(state)
                set_observers(seen)
        except BaseException:
            complete(_resume_recording, state, seen)  # again: an exception may have struck in `finally`
            raise
    except BaseException:
        complete(_resume_recording, state, seen)
        raise


def _resume_recording(state: Any, seen: tuple[Observer, ...]) -> None:
    set_current(state)
    set_observers(seen)


class _HookPackedValue(PackedValue):
    """A saved value as a pack hook returned it."""

    __slots__ = ("device", "is_scalar", "packed", "unpack")

    def __init__(self, value: Any, packed: Any, unpack: Callable[[Any], Any]) -> None:
        PackedValue.__init__(self, value)  # as super() takes 0.1 us more
        self.packed = packed
        self.unpack = unpack
        self.device, self.is_scalar = "cpu", False
        if value.__class__ is not np.ndarray:
            array = bare(value)
            self.device, self.is_scalar = libraries.device_of(array), libraries.is_scalar(array)

    @property
    def kept(self) -> Any:
        """The arrays in what the hook returned, as far as they are in tuples."""
        packed = self.packed if isinstance(self.packed, tuple) else (self.packed,)
        return tuple([part for part in flat(packed) if libraries.is_array(part)])

    def array(self, op: str) -> Any:
        """Return the array of what the unpack hook returns."""
        try:
            t = _without_recording(self.unpack, self.packed)
        except Exception as error:  # re-raised, with the op's name added
            error.add_note(f"(in the {self._description(op)})")
            raise
        if t.__class__ is not Tensor or t.shape != self.shape or t.dtype != self.dtype or t.device != self.device:
            self._check(t, op)
        return computed(operator.getitem, bare(t), ()) if self.is_scalar else bare(t)

    def _description(self, op: str) -> str:
        return f"unpack hook {name_of(self.unpack)}, for a value kept by op {op!r}"

    def _check(self, t: Any, op: str) -> None:
        """Raise unless what the hook returned may take the place of what was packed."""
        what, expected = f"{self._description(op)},", "the one that was packed"
        if not isinstance(t, Tensor):
            raise errors.CallbackError(f"{what} gave {type(t).__name__}; it must give the Tensor that was packed")
        if t.shape != self.shape:
            raise errors.ShapeError(f"{what} gave a Tensor of shape {t.shape}; {expected} has {self.shape}")
        if t.dtype != self.dtype:
            raise errors.DtypeError(f"{what} gave a Tensor of dtype {t.dtype}; {expected} has {self.dtype}")
        if t.device != self.device:
            raise errors.MixedArraysError(f"{what} gave a Tensor on {t.device}; {expected} is on {self.device}")


class _BlockObserver(Observer):
    """An observer that a block has entered."""

    block: Any


class _PackingHooks(_BlockObserver):
    """Packs saved values with the user's hooks."""

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack = pack
        self.unpack = unpack

    def observe(self, tape: Any, e: Entry) -> Entry:
        return e if is_of_write(e) else _without_recording(pack_entry, e, partial(self._pack, e))

    def _pack(self, e: Entry, value: Any) -> _HookPackedValue:
        array = value if value.__class__ is np.ndarray else bare(value)
        given = wrap(array)
        try:
            made = self.pack(given)
        except Exception as error:  # re-raised, with the op's name added
            error.add_note(f"(in the pack hook {name_of(self.pack)} for a value kept by op {op_name(e)!r})")
            raise
        # If the hook returned its argument, it may hold it too and write to it in place: keep a new Tensor.
        return _HookPackedValue(value, wrap(array) if made is given else made, self.unpack)


class _HooksDisabled(_BlockObserver):
    """An observer that does nothing; `saved_tensors_hooks` raises if there is one."""

    def __init__(self, message: str) -> None:
        self.message = message


def is_of_saved_tensors_hooks(observer: Observer) -> bool:
    """Tell whether an observer was entered by `saved_tensors_hooks` or `disable_saved_tensors_hooks`."""
    return isinstance(observer, (_PackingHooks, _HooksDisabled))


class _ObserverBlock(Scope):
    """Enters an observer in a with block or a decorated function; each thread and task has its own blocks."""

    def __init__(self, make: Callable[[], _BlockObserver]) -> None:
        self._make = make

    def _begin(self) -> _BlockObserver:
        made = self._make()
        made.block = self
        return made

    def _latest(self) -> Observer | None:
        return next((each for each in reversed(observers()) if getattr(each, "block", None) is self), None)

    def _open(self, opened: _BlockObserver) -> Self:
        add_observer(opened, [rec for rec in recorders(current()) if isinstance(rec, Tape) and rec.open])
        return self

    def _close(self, opened: _BlockObserver) -> None:
        remove_observer(opened)

    def __call__(self, function: F) -> F:
        return decorate(type(self).__name__, lambda: self, function)


class saved_tensors_hooks(_ObserverBlock):  # noqa: N801  # torch's spelling
    """Choose how values are kept for derivatives, in a with block or a decorated function.

    For each array that an operation recorded in the block keeps, `pack_hook(tensor)` is called at
    once, and what it returns is kept instead; when the derivative needs the value, `unpack_hook` makes
    the Tensor of it again. Of nested blocks only the innermost one's hooks are called. Python numbers, shapes and
    the index of `x[index] = v` are kept as they are. What hooks compute is not recorded.

    Args:
        pack_hook: takes a Tensor, returns anything: a file's name, a smaller dtype, the Tensor itself.
        unpack_hook: takes that and returns a Tensor of the shape, dtype and device of the one packed. It is
            called in each backward, so more than once where the history is retained.

    Raises:
        TypeError: a hook cannot be called; in backward, `unpack_hook` returned no Tensor, or one of another dtype or
            device.
        ValueError: in backward, `unpack_hook` returned a Tensor of another shape.
        RuntimeError: on entering a block where `disable_saved_tensors_hooks` is in effect.

    An exception of `pack_hook` is raised by the operation, which is then not recorded.

    >>> import gradmgr, gradmgr.numpy as np
    >>> from gradmgr.graph import saved_tensors_hooks
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     with saved_tensors_hooks(lambda t: t.tolist(), gradmgr.tensor):
    ...         y = np.sum(x * x)
    ...     gm.backward(y)
    >>> x.grad
    Tensor([2., 4.])
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise TypeError(f"{type(self).__name__}: {name} must be a function; found {type(hook).__name__}")
        super().__init__(lambda: _PackingHooks(pack_hook, unpack_hook))

    def _begin(self) -> _BlockObserver:
        for observer in reversed(observers()):
            if isinstance(observer, _HooksDisabled):
                raise errors.HooksDisabledError(observer.message)
        return super()._begin()


class disable_saved_tensors_hooks(_ObserverBlock):  # noqa: N801  # torch's spelling
    """Forbid `saved_tensors_hooks`, in a with block or a decorated function.

    Args:
        error_message: the text of the error that entering a block of hooks raises.

    Raises:
        TypeError: `error_message` is no str.
        RuntimeError: on entering, with that text, inside a block of hooks.

    >>> from gradmgr.graph import disable_saved_tensors_hooks, save_on_cpu
    >>> with disable_saved_tensors_hooks("this part measures memory"), save_on_cpu():
    ...     pass  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    gradmgr.errors.HooksDisabledError: this part measures memory
    """

    def __init__(self, error_message: str) -> None:
        if not isinstance(error_message, str):
            raise TypeError(
                f"disable_saved_tensors_hooks takes the text of an error; found {type(error_message).__name__}"
            )
        super().__init__(lambda: _HooksDisabled(error_message))
        self._message = error_message

    def _begin(self) -> _BlockObserver:
        if any(isinstance(observer, _PackingHooks) for observer in observers()):
            raise errors.HooksDisabledError(self._message)
        return super()._begin()


# ---------------------------------------------------------------- to the host


class save_on_cpu(saved_tensors_hooks):  # noqa: N801  # torch's spelling
    """Keep values for derivatives in the host's memory instead of the GPU's, in a with block or a decorated function.

    Each is copied to the host when it is kept, and back to its GPU when a derivative needs it. Arrays that
    live on the host are kept as they are.

    Args:
        pin_memory: copy to page-locked memory, which is faster and cannot be swapped out.
        device_type: "cuda", the only kind of device there is.

    Raises:
        ValueError: another `device_type`.

    >>> import gradmgr
    >>> from gradmgr.graph import save_on_cpu
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     with save_on_cpu():
    ...         y = (x * x).sum()
    ...     gm.backward(y)
    >>> x.grad
    Tensor([2., 4.])
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        if device_type != "cuda":
            raise ValueError(f"save_on_cpu(device_type={device_type!r}): GPUs are 'cuda' here; there is nothing else")

        def pack(t: Tensor) -> Any:
            a = t._array
            is_batched = libraries.root(a) is not libraries.namespace(a)  # inside vmap
            return t if t.device == "cpu" or is_batched else _HostCopy(a, pin_memory)

        super().__init__(pack, lambda kept: kept.on_device() if isinstance(kept, _HostCopy) else kept)


class _HostCopy:
    """A copy on the host of a GPU's array, with the same order of axes in memory."""

    __slots__ = ("axes", "device", "host")

    def __init__(self, array: Any, pinned: bool) -> None:
        self.device = libraries.device_of(array)
        self.axes = memory_order(array)
        ordered = array.transpose(self.axes)
        self.host = _pinned_copy(ordered) if pinned else ordered.get()

    @property
    def nbytes(self) -> int:
        return int(self.host.nbytes)

    def on_device(self) -> Tensor:
        places = [0] * len(self.axes)
        for place, axis in enumerate(self.axes):
            places[axis] = place
        return wrap(libraries.to_device(self.host, self.device).transpose(places))


def _pinned_copy(array: Any) -> Any:
    import cupyx  # can be imported, as the array is CuPy's

    host = cupyx.empty_pinned(array.shape, array.dtype)
    array.get(out=host)
    return host
