"""A budget for what a recording keeps: when it is exceeded, the oldest values move out, to come back in backward.

Every entry of a tape with a budget is packed: cells stand for the arrays it keeps, and several cells share one
buffer, the memory that their arrays are views of. What moves is a buffer, as it lies in memory; each array
is made of it again with its own strides, so that whatever is computed from it has the same bits. A
buffer that somebody else holds stays: moving it would free nothing.

On disk all buffers of a recording share one file that has no name. It is gone when the last that refers to it
is, however the program ends.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._engine.history.saved_values import Packed, is_written, memory_order, packed
from gradmgr._engine.observers import Entry, Observer
from gradmgr._engine.recorder import current, recorders
from gradmgr._engine.tensor import raw

# Buffers smaller than this stay: what they cost to move is more than they take.
_SMALL = 4096

_FORM = r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP])?(i?)B\s*"
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parsed(budget: Any) -> int:
    """Return a number of bytes, given as such or as text.

    Raises:
        TypeError: neither.
        ValueError: it is negative, or the text says no number of bytes.
    """
    if isinstance(budget, str):
        found = re.fullmatch(_FORM, budget)
        if found is None or (found[3] and not found[2]):
            raise ValueError(
                f"budget={budget!r} is no number of bytes; write it as '2GiB' (of 1024), '500MB' (of 1000), '1.5 GiB', "
                "'4096 B', or as the number 4096"
            )
        unit = (1024 if found[3] else 1000) ** (_POWERS[found[2]] if found[2] else 0)
        return int(float(found[1]) * unit)
    if isinstance(budget, bool) or not hasattr(budget, "__index__"):
        raise TypeError(f"budget is a number of bytes or text such as '2GiB'; found {type(budget).__name__}")
    count = int(budget)
    if count < 0:
        raise ValueError(f"budget={count} is no number of bytes; it must be 0 or more")
    return count


def spelled(count: int) -> str:
    """Return a number of bytes as text."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


class Budget:
    """What a manager was given as budget= and spill=."""

    __slots__ = ("limit", "place", "warned")

    def __init__(self, budget: Any, place: Any) -> None:
        if place not in ("host", "disk"):
            raise ValueError(f"spill is 'host', for arrays on a GPU, or 'disk'; found {place!r}")
        self.limit = parsed(budget)
        self.place = place
        self.warned = False

    def __repr__(self) -> str:
        return f"budget {spelled(self.limit)}, the rest on {'the ' * (self.place == 'host')}{self.place}"

    def start(self) -> Spill:
        """Return what keeps one recording within the budget."""
        return Spill(self)

    def warn_stuck(self) -> None:
        """Say, once, that arrays of the CPU have nowhere to go."""
        if not self.warned:
            self.warned = True
            errors.warn(
                f"the recording keeps more than its budget of {spelled(self.limit)} in arrays on the CPU, and "
                "spill='host' moves arrays from a GPU only; pass spill='disk'",
                RuntimeWarning,
            )


# ---------------------------------------------------------------- buffers, and the arrays that are views of them


class _Buffer:
    """Memory that a recording keeps, here or away, and the arrays that are made of it."""

    __slots__ = ("__weakref__", "_away", "_forms", "_lock", "arrays", "key", "nbytes", "owner", "stores")

    def __init__(self, owner: Any) -> None:
        self.owner = owner  # the array that owns the memory; None when it is away
        self.key = id(owner)
        self.nbytes = int(owner.nbytes)
        self.arrays: dict[int, Any] = {}  # by id
        self.stores: dict[Spill, bool] = {}  # whose budget it concerns, and whether it counts now
        self._forms: dict[int, tuple[Any, ...]] = {}
        self._away: _OnDisk | _InHost | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        for store, counts in self.stores.items():
            store.gone.append((self.key, self.nbytes if counts else 0, 0 if self._away is None else self.nbytes))

    def held_elsewhere(self) -> bool:
        """Tell whether somebody else would keep the memory alive."""
        return any(found > ours for found, ours in zip(_references(self), _OURS, strict=True))

    def array(self, key: int) -> Any:
        """Return an array of those entered; a new one each time when the buffer is away."""
        with self._lock:
            away = self._away
            if away is None:
                return self.arrays[key]
            form = self._forms[key]
        return _formed(away.back(), *form)

    def move(self, place: str, spool: Any) -> None:
        """Move to the host or to disk; raises SpillError with nothing changed."""
        with self._lock:
            owner = self.owner
            flat = owner.transpose(memory_order(owner)).reshape(-1)
            away = _InHost(flat) if place == "host" else _OnDisk(flat, spool())
            start = _address(owner)
            self._forms = {k: (a.shape, a.strides, a.dtype, _address(a) - start) for k, a in self.arrays.items()}
            self._away = away
            self.arrays = {}
            self.owner = None


def _references(buffer: _Buffer) -> tuple[int, int]:
    """Count who refers to the memory, and to the array that most refer to."""
    owner, count = buffer.owner, sys.getrefcount
    views = [count(a) for a in buffer.arrays.values() if a is not owner]
    # Each array entered is the owner or refers to it.
    return count(owner) - len(buffer.arrays), max(views, default=0)


def _count_ours() -> tuple[int, int]:
    buffer = _Buffer(np.empty(2))
    view = buffer.owner[:1]
    buffer.arrays = {0: buffer.owner, 1: view}
    del view
    return _references(buffer)


# What these counts are where nobody else refers to it, measured the way they are used.
_OURS = _count_ours()


def _owner_of(array: Any) -> Any:
    """Return the array that owns the memory of this one, if it is ours to move; else None."""
    if array.__class__ is not np.ndarray:
        cupy = libraries.loaded_cupy()
        if cupy is None or not isinstance(array, cupy.ndarray):
            return None
    owner = array if array.base is None else array.base
    if owner.__class__ is not array.__class__ or owner.nbytes < _SMALL or not memory.owns_memory(owner):
        return None
    if not owner.transpose(memory_order(owner)).flags.c_contiguous:  # its strides were set by hand
        return None
    fits = owner.nbytes % array.dtype.itemsize == 0 == (_address(array) - _address(owner)) % array.dtype.itemsize
    return owner if fits else None


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0] if array.__class__ is np.ndarray else array.data.ptr)


def _formed(flat: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int) -> Any:
    """Return the array of this form in a buffer."""
    if flat.__class__ is np.ndarray:
        return np.ndarray(shape, dtype, flat, offset, strides)
    part = (flat if flat.dtype == dtype else flat.view(dtype))[offset // dtype.itemsize :]
    count = math.prod(shape)
    if count <= part.size:
        rows = part[:count].reshape(shape)
        if rows.strides == strides:  # of such a view CuPy says whose memory it is
            return rows
    return libraries.namespace(flat).lib.stride_tricks.as_strided(part, shape, strides)


class _InHost:
    """The copy of a GPU's buffer."""

    __slots__ = ("_device", "_host")

    def __init__(self, flat: Any) -> None:
        self._device = libraries.device_of(flat)
        self._host = flat.get()

    def back(self) -> Any:
        return libraries.to_device(self._host, self._device)


class _OnDisk:
    """A place in a spool."""

    __slots__ = ("_device", "_dtype", "_place", "_spool")

    def __init__(self, flat: Any, spool: _Spool) -> None:
        self._spool = spool
        self._device = libraries.device_of(flat)
        self._dtype = flat.dtype
        self._place = spool.write(flat if self._device == "cpu" else flat.get())

    def __del__(self) -> None:
        place = getattr(self, "_place", None)  # writing may have failed
        if place is not None:
            self._spool.free(place)

    def back(self) -> Any:
        return libraries.to_device(self._spool.read(self._place, self._dtype), self._device)


class _Spool:
    """One file without a name. Places that are free again are used for buffers of the same size."""

    def __init__(self) -> None:
        import tempfile  # late, as few need it

        try:
            # No other process sees it, and it is gone with its last file descriptor: however this one ends.
            self._file: Any = tempfile.TemporaryFile(prefix="gradmgr-", buffering=0)  # noqa: SIM115  # closed in __del__
        except OSError as error:
            raise errors.SpillError(
                f"spill='disk' cannot make a temporary file: {error}; set TMPDIR to a directory that can be written to"
            ) from error
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._end = 0
        self._vacant: dict[int, list[int]] = {}
        self._freed: deque[tuple[int, int]] = deque()  # filled wherever a buffer dies, in any thread

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def free(self, place: tuple[int, int]) -> None:
        """Let a place be used again."""
        self._freed.append(place)

    def write(self, flat: Any) -> tuple[int, int]:
        """Write a flat array; return its place."""
        data: memoryview = flat.view(np.uint8).data
        with self._lock:
            self._check_process()
            while self._freed:
                start, size = self._freed.popleft()
                self._vacant.setdefault(size, []).append(start)
            vacant = self._vacant.get(len(data))
            start = vacant[-1] if vacant else self._end
            try:
                self._file.seek(start)
                done = 0
                while done < len(data):
                    done += self._file.write(data[done:])
            except OSError as error:
                self._file.truncate(self._end)
                raise errors.SpillError(
                    f"spill='disk' could not write {spelled(len(data))} beside {spelled(self._end)} in a temporary "
                    f"file: {error}; nothing is lost, and the operation was not recorded; give it a larger budget, or "
                    "set TMPDIR to a directory with more room"
                ) from error
            if vacant:
                vacant.pop()
            else:
                self._end += len(data)
        return start, len(data)

    def read(self, place: tuple[int, int], dtype: Any) -> Any:
        """Return what was written at a place."""
        start, size = place
        flat = np.empty(size // dtype.itemsize, dtype)
        data: memoryview = flat.view(np.uint8).data
        with self._lock:
            self._check_process()
            try:
                self._file.seek(start)
                done = 0
                while done < size:
                    count = self._file.readinto(data[done:])
                    if not count:
                        raise EOFError("the temporary file ends early")
                    done += count
            except (OSError, EOFError) as error:
                raise errors.SpillError(f"a value moved to disk could not be read back: {error}") from error
        return flat

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise errors.SpillError(
                "this recording moved values to disk in the process that this one was forked from, and its file may "
                "change there; record in the process that calls backward()"
            )


# ---------------------------------------------------------------- one recording


class _Cell(Packed):
    """Stands in an entry for an array of a buffer."""

    __slots__ = ("_buffer", "_key")

    def __init__(self, value: Any, buffer: _Buffer, key: int) -> None:
        super().__init__(value)
        self._buffer = buffer
        self._key = key

    @property
    def kept(self) -> Any:
        """The array, unless it is away."""
        return self._buffer.arrays.get(self._key, ())

    def array(self, op: str) -> Any:
        """Return the array."""
        return self._buffer.array(self._key)


class Spill(Observer):
    """Keeps one recording within its budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.here = 0  # bytes of the buffers that count: those that nobody else was seen to hold
        self.away = 0  # bytes that were moved
        # Buffers that died or moved, in whatever thread: the id of the owner, bytes that count no more, here and away.
        self.gone: deque[tuple[int, int, int]] = deque()
        self._buffers: dict[int, weakref.ref[_Buffer]] = {}  # by the owner's id; those that are away have left
        self._oldest: deque[weakref.ref[_Buffer]] = deque()
        self._held: deque[weakref.ref[_Buffer]] = deque()  # by others too, when they were last looked at
        self._stuck = 0
        self._lock = threading.RLock()
        self._spool: _Spool | None = None

    def __hash__(self) -> int:
        return id(self)

    def observe(self, tape: Any, e: Entry) -> Entry:
        with self._lock:
            made = packed(e, self._kept)
            self._bury()
            self._look_again()
            if not is_written(e):
                self._shrink()
        return made

    def tape_closed(self, tape: Any) -> None:
        """Forget the file: it goes with the last value in it."""
        self._spool = None

    def told(self) -> str:
        """Say how the budget stands."""
        self._bury()
        return f"{self.budget!r}: {spelled(self.here)} here that it may move, {spelled(self.away)} moved"

    def _kept(self, value: Any) -> Any:
        array = raw(value)
        owner = _owner_of(array)
        if owner is None:
            return value
        if self.budget.place == "host" and owner.__class__ is np.ndarray:
            self._stuck += int(array.nbytes)  # as often as it is kept: enough to warn by
            if self._stuck > self.budget.limit:
                self.budget.warn_stuck()
            return value
        buffer = self._buffer_of(owner)
        with buffer._lock:
            if buffer.owner is None:  # another recording moved it just now
                return value
            buffer.arrays.setdefault(id(array), array)
        return _Cell(value, buffer, id(array))

    def _buffer_of(self, owner: Any) -> _Buffer:
        buffer = self.find(owner)
        if buffer is None:
            buffer = next((b for other in self._others() if (b := other.find(owner)) is not None), None)
            if buffer is None:
                buffer = _Buffer(owner)
            buffer.stores[self] = True
            ref = weakref.ref(buffer)
            self._buffers[id(owner)] = ref
            self._oldest.append(ref)
            self.here += buffer.nbytes
        return buffer

    def find(self, owner: Any) -> _Buffer | None:
        """Return the buffer of this memory, if there is one here."""
        ref = self._buffers.get(id(owner))
        buffer = None if ref is None else ref()
        return buffer if buffer is not None and buffer.owner is owner else None

    def _others(self) -> list[Spill]:
        """Return what keeps other recordings of this context within theirs: one buffer serves all."""
        own = [getattr(rec, "observers", ()) for rec in recorders(current())]
        return [other for those in own for other in those if isinstance(other, Spill) and other is not self]

    def _bury(self) -> None:
        while self.gone:
            key, here, away = self.gone.popleft()
            self.here -= here
            self.away -= away
            ref = self._buffers.get(key)
            buffer = None if ref is None else ref()
            if ref is not None and (buffer is None or buffer.owner is None):
                del self._buffers[key]

    def _look_again(self) -> None:
        """Look at two buffers that others held: whether they still do."""
        for _ in range(min(2, len(self._held))):
            ref = self._held.popleft()
            buffer = ref()
            if buffer is None or buffer.owner is None:
                continue
            if buffer.held_elsewhere():
                self._held.append(ref)
            else:
                buffer.stores[self] = True
                self.here += buffer.nbytes
                self._oldest.appendleft(ref)

    def _shrink(self) -> None:
        while self.here > self.budget.limit and self._oldest:
            ref = self._oldest.popleft()
            buffer = ref()
            if buffer is None or buffer.owner is None:
                continue
            if buffer.held_elsewhere():
                buffer.stores[self] = False
                self.here -= buffer.nbytes
                self._held.append(ref)
                continue
            try:
                buffer.move(self.budget.place, self._open_spool)
            except BaseException:
                self._oldest.appendleft(ref)
                raise
            for store, counts in list(buffer.stores.items()):
                buffer.stores[store] = False
                store.gone.append((buffer.key, buffer.nbytes if counts else 0, -buffer.nbytes))
            self._bury()

    def _open_spool(self) -> _Spool:
        if self._spool is None:
            self._spool = _Spool()
        return self._spool


def spill_of(tape: Any) -> Spill | None:
    """Return what keeps a tape within its budget, if it has one."""
    return next((observer for observer in tape.observers if isinstance(observer, Spill)), None)
