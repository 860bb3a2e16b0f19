"""Entries whose kept values are packed, and the hooks that pack them.

Packing leaves an entry as it is but for the arrays it keeps: a `Parcel` stands for each, and the code
says so by its ending. Whoever reads the entry (to pull it, to link it) unpacks it first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.history.modes import decorated
from gradmgr._engine.hooks import name_of
from gradmgr._engine.observers import (
    Entry,
    Observer,
    SavedValuePlaceholder,
    _observers,
    add_observer,
    observers,
    remove_observer,
)
from gradmgr._engine.op import INPUTS, METADATA, PULLS, RETRACKS
from gradmgr._engine.recorder import activated, current, hidden, recorders
from gradmgr._engine.tape import Tape, flat, op_name
from gradmgr._engine.tensor import Tensor, raw, wrap

__all__ = ["disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks"]

F = TypeVar("F", bound=Callable[..., Any])

_ENDING = ".packed"

# ---------------------------------------------------------------- packed entries


class Packed(SavedValuePlaceholder):
    """A value of an entry in another form.

    A kept value may be a Tensor, which recorders below know by its marks; those stay here.
    """

    __slots__ = ("dtype", "shape", "shell")

    def __init__(self, value: Any) -> None:
        self.shape: tuple[int, ...] = value.shape
        self.dtype: np.dtype[Any] = value.dtype
        self.shell: Tensor | None = like(value, None) if isinstance(value, Tensor) else None

    def array(self, op: str) -> Any:
        """Return the array that was packed; `op` is for errors."""
        raise NotImplementedError

    def value(self, op: str) -> Any:
        """Return what stood in the entry."""
        array = self.array(op)
        return array if self.shell is None else like(self.shell, array)


def like(handle: Tensor, array: Any) -> Tensor:
    """Return a new Tensor around an array, known to whoever knows `handle`, by the same marks."""
    made = wrap(array)
    if handle._rec is not None:
        made._rec, made._node_id = handle._rec, handle._node_id
        more = getattr(handle, "_overflow_ids", None)
        if more:
            made._overflow_ids = more
    return made


def packed(e: Entry, pack: Callable[[Any], Any]) -> Entry:
    """Return an entry with each kept array, or Tensor, replaced by what `pack` gives for it.

    Args:
        e: the entry.
        pack: returns a `Packed`, or its argument to leave that as it is.
    """
    fields = e[2:]
    made = _replaced(
        fields, lambda value: pack(value) if isinstance(value, Tensor) or libraries.is_array(value) else value
    )
    return e if made is fields else (_code_of_packed(e[0]), e[1], *made)


def is_written(e: Entry) -> bool:
    """Tell whether an entry is heard when memory is written already: nothing may raise then."""
    return bool(e[0] == "setitem")


def unpacked(e: Entry) -> Entry:
    """Return the entry that was packed."""
    op = op_name(e)
    made = _replaced(e[2:], lambda value: value.value(op) if isinstance(value, Packed) else value)
    return (e[0].removesuffix(_ENDING), e[1], *made)


def _replaced(values: tuple[Any, ...], replace: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return nested tuples with what is in them replaced; the same tuple where nothing is."""
    made = [_replaced(v, replace) if v.__class__ is tuple else replace(v) for v in values]
    return values if all(new is old for new, old in zip(made, values, strict=True)) else tuple(made)


def _code_of_packed(code: str) -> str:
    """Return the code for packed entries; entered in the tables when it is first asked for."""
    if code.endswith(_ENDING):
        return code
    ours = code + _ENDING
    if ours not in PULLS:
        INPUTS[ours] = INPUTS[code]
        if code in METADATA:
            METADATA[ours] = lambda e: METADATA[code]((code, *e[1:]))  # a Packed tells shape and dtype
        if code in RETRACKS:
            RETRACKS[ours] = lambda e, to: RETRACKS[code](unpacked(e), to)
        PULLS[ours] = lambda e, g, grads, owned: PULLS[code](unpacked(e), g, grads, owned)
    return ours


# ---------------------------------------------------------------- hooks


class _alone:  # noqa: N801  # reads as a statement: `with _alone():`
    """Let nobody record or listen in a with block: a hook of the user's computes."""

    __slots__ = ("_state", "_token")

    def __enter__(self) -> None:
        self._state = activated(hidden(current()))
        self._token: Token[tuple[Observer, ...]] = _observers.set(())
        self._state.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._state.__exit__(*exc)
        _observers.reset(self._token)


class _Hooked(Packed):
    """A value in the form that a pack hook gave it."""

    __slots__ = ("device", "form", "is_scalar", "unpack")

    def __init__(self, value: Any, form: Any, unpack: Callable[[Any], Any]) -> None:
        super().__init__(value)
        array = raw(value)
        self.form = form
        self.unpack = unpack
        self.device = libraries.device_of(array)
        self.is_scalar = isinstance(array, np.generic)

    @property
    def kept(self) -> Any:
        """What of the form is known to be an array."""
        form = self.form if isinstance(self.form, tuple) else (self.form,)
        return tuple([part for part in flat(form) if libraries.is_array(part)])

    def array(self, op: str) -> Any:
        """Return what the unpack hook makes of the form."""
        what = f"unpack hook {name_of(self.unpack)}, for a value kept by op {op!r},"
        packed = "the one that was packed"
        try:
            with _alone():
                t = self.unpack(self.form)
        except Exception as error:  # whatever it is, it goes on, with the op's name
            error.add_note(f"(in the {what.removesuffix(',')})")
            raise
        if not isinstance(t, Tensor):
            raise errors.CallbackError(f"{what} gave {type(t).__name__}; it must give the Tensor that was packed")
        if t.shape != self.shape:
            raise errors.ShapeError(f"{what} gave a Tensor of shape {t.shape}; {packed} has {self.shape}")
        if t.dtype != self.dtype:
            raise errors.DtypeError(f"{what} gave a Tensor of dtype {t.dtype}; {packed} has {self.dtype}")
        if t.device != self.device:
            raise errors.MixedArraysError(f"{what} gave a Tensor on {t.device}; {packed} is on {self.device}")
        return t._array[()] if self.is_scalar else t._array


class _Hooks(Observer):
    """Packs what is kept with the user's hooks."""

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack = pack
        self.unpack = unpack

    def observe(self, tape: Any, e: Entry) -> Entry:
        if is_written(e):
            return e

        def pack(value: Any) -> _Hooked:
            given = wrap(raw(value))
            try:
                with _alone():
                    form = self.pack(given)
            except Exception as error:  # whatever it is, it goes on, with the op's name
                error.add_note(f"(in the pack hook {name_of(self.pack)} for a value kept by op {op_name(e)!r})")
                raise
            # The same Tensor may be written to in place by who holds it: a new one keeps the value.
            return _Hooked(value, wrap(given._array) if form is given else form, self.unpack)

        return packed(e, pack)


class _Disabled(Observer):
    """Stands among the listeners to forbid hooks."""

    def __init__(self, message: str) -> None:
        self.message = message


def is_about_saving(observer: Observer) -> bool:
    """Tell whether a listener is of the hooks here."""
    return isinstance(observer, (_Hooks, _Disabled))


class _Block:
    """What a listener hears in a with block, a decorated function, or both; each thread and task has its own blocks."""

    def __init__(self, observer: Observer) -> None:
        self._listener = observer

    def __enter__(self) -> Self:
        add_observer(self._listener, [rec for rec in recorders(current()) if isinstance(rec, Tape) and rec.open])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        remove_observer(self._listener)

    def __call__(self, function: F) -> F:
        return decorated(type(self).__name__, lambda: self, function)


class saved_tensors_hooks(_Block):  # noqa: N801  # torch's spelling
    """Choose how values are kept for derivatives, in a with block or a decorated function.

    For each array that an operation recorded in the block keeps, `pack_hook(tensor)` is called at
    once, and what it returns is kept instead; when the derivative needs the value, `unpack_hook` makes
    the Tensor of it again. Of blocks in blocks the innermost alone is asked. Python numbers, shapes and the index of
    `x[index] = v` are kept as they are. What hooks compute is recorded by nobody.

    Args:
        pack_hook: takes a Tensor, returns anything: a file's name, a smaller dtype, the Tensor itself.
        unpack_hook: takes that and returns a Tensor of the shape, dtype and device of the one packed. It is
            called in each backward, so more than once where the history is retained.

    Raises:
        TypeError: a hook cannot be called; in backward, `unpack_hook` gave no Tensor, or one of another dtype or
            device.
        ValueError: in backward, `unpack_hook` gave a Tensor of another shape.
        RuntimeError: on entering a block where `disable_saved_tensors_hooks` holds.

    What `pack_hook` raises passes through the operation, which is then not recorded.

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
        super().__init__(_Hooks(pack_hook, unpack_hook))

    def __enter__(self) -> Self:
        for observer in reversed(observers()):
            if isinstance(observer, _Disabled):
                raise errors.HooksDisabledError(observer.message)
        return super().__enter__()


class disable_saved_tensors_hooks(_Block):  # noqa: N801  # torch's spelling
    """Forbid `saved_tensors_hooks`, in a with block or a decorated function.

    Args:
        error_message: what the error says that is raised where a block of hooks is entered.

    Raises:
        TypeError: `error_message` is no text.
        RuntimeError: on entering, with that text, where hooks are at work already.

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
        super().__init__(_Disabled(error_message))
        self._message = error_message

    def __enter__(self) -> Self:
        if any(isinstance(observer, _Hooks) for observer in observers()):
            raise errors.HooksDisabledError(self._message)
        return super().__enter__()


# ---------------------------------------------------------------- to the host


class save_on_cpu(saved_tensors_hooks):  # noqa: N801  # torch's spelling
    """Keep values for derivatives in the host's memory instead of the GPU's, in a with block or a decorated function.

    Each is copied to the host when it is kept, and back to its GPU when a derivative needs it. What lives
    on the host is kept as it is.

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
            moves = t.device != "cpu" and libraries.root(a) is libraries.namespace(
                a
            )  # not what stands for many inside vmap
            return _OnHost(a, pin_memory) if moves else t

        super().__init__(pack, lambda form: form.moved_back() if isinstance(form, _OnHost) else form)


def memory_order(array: Any) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest in memory: transposed so, a dense array is C-contiguous."""
    strides = array.strides
    return tuple(sorted(range(array.ndim), key=lambda k: (-abs(strides[k]), k)))


class _OnHost:
    """The copy of a GPU's array, which keeps the order of its axes in memory."""

    __slots__ = ("axes", "device", "host")

    def __init__(self, array: Any, pinned: bool) -> None:
        self.device = libraries.device_of(array)
        self.axes = memory_order(array)
        ordered = array.transpose(self.axes)
        self.host = _pinned_copy(ordered) if pinned else ordered.get()

    @property
    def nbytes(self) -> int:
        return int(self.host.nbytes)

    def moved_back(self) -> Tensor:
        places = [0] * len(self.axes)
        for place, axis in enumerate(self.axes):
            places[axis] = place
        return wrap(libraries.to_device(self.host, self.device).transpose(places))


def _pinned_copy(array: Any) -> Any:
    import cupyx  # where there is an array of CuPy's there is CuPy

    host = cupyx.empty_pinned(array.shape, array.dtype)
    array.get(out=host)
    return host
