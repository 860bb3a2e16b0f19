"""A memory budget for saved values: when it is exceeded, the oldest are moved out and read back in backward.

Every entry of a tape with a budget is packed: it has a placeholder (`_SpilledValue`) for each saved array. Several
placeholders share one buffer, the memory that their arrays are views of. A buffer is moved as it is laid out in memory,
and each array is made from it again with its own strides, so that whatever is computed from it has the same
bits. A buffer that something outside the recording refers to is not moved: that would free nothing.

On disk all buffers of a recording share one file without a name, which the system deletes when it is closed, however
the program ends.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries, memory
from gradmgr._arrays.memory_order import memory_order
from gradmgr._engine.context import current, recorders
from gradmgr._engine.history.saved_values import PackedValue, is_of_write, pack_entry
from gradmgr._engine.observers import Entry, Observer
from gradmgr._engine.tensor import bare

# Buffers of fewer bytes are not moved: moving costs more than they take.
_SMALL = 4096

_BYTES_PATTERN = r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP])?(i?)B\s*"
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_bytes(budget: Any) -> int:
    """Return a number of bytes that is given as a number or as text such as "2GiB".

    Raises:
        TypeError: `budget` is neither.
        ValueError: it is negative, or the text is not a number of bytes.
    """
    if isinstance(budget, str):
        found = re.fullmatch(_BYTES_PATTERN, budget)
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


def format_bytes(count: int) -> str:
    """Return a number of bytes as text."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


class Budget:
    """The budget= and spill= of a manager."""

    __slots__ = ("limit", "target", "warned")

    def __init__(self, budget: Any, target: Any) -> None:
        if target not in ("host", "disk"):
            raise ValueError(f"spill is 'host', for arrays on a GPU, or 'disk'; found {target!r}")
        self.limit = parse_bytes(budget)
        self.target = target
        self.warned = False

    def __repr__(self) -> str:
        return f"budget {format_bytes(self.limit)}, the rest on {'the ' * (self.target == 'host')}{self.target}"

    def start(self) -> Spill:
        """Return the observer that keeps one recording within the budget."""
        return Spill(self)

    def warn_immovable(self) -> None:
        """Warn, once, that spill="host" cannot move arrays that are on the CPU."""
        if not self.warned:
            self.warned = True
            errors.warn(
                f"the recording keeps more than its budget of {format_bytes(self.limit)} in arrays on the CPU, and "
                "spill='host' moves arrays from a GPU only; pass spill='disk'",
                RuntimeWarning,
            )


# ---------------------------------------------------------------- buffers and their views


class _Buffer:
    """Memory that recordings keep, in its place or moved out, and the saved arrays that are views of it."""

    __slots__ = ("__weakref__", "_layouts", "_lock", "_moved", "arrays", "key", "nbytes", "owner", "spills")

    def __init__(self, owner: Any) -> None:
        self.owner = owner  # the array that owns the memory; None when it is moved out
        self.key = id(owner)
        self.nbytes = int(owner.nbytes)
        self.arrays: dict[int, Any] = {}  # by id
        self.spills: dict[Spill, bool] = {}  # of each recording that keeps it, and whether it counts there now
        self._layouts: dict[int, tuple[Any, ...]] = {}  # how to make each array again, by its id
        self._moved: _DiskCopy | _HostCopy | None = None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        for spill, counts in getattr(self, "spills", {}).items():  # there is none where memory ran out in `__init__`
            spill.changes.append((self.key, self.nbytes if counts else 0, 0 if self._moved is None else self.nbytes))

    def is_shared(self) -> bool:
        """Tell whether something outside the recordings refers to the memory and would keep it alive."""
        return any(count > own for count, own in zip(_reference_counts(self), _UNSHARED_COUNTS, strict=True))

    def array(self, key: int) -> Any:
        """Return one of the arrays; a new one each time when the buffer is moved out."""
        with self._lock:
            moved = self._moved
            if moved is None:
                return self.arrays[key]
            layout = self._layouts[key]
        return _view_of(moved.read(), *layout)

    def move(self, target: str, spill_file: Any) -> None:
        """Move to "host" or "disk"; raises SpillError with nothing changed."""
        with self._lock:
            owner = self.owner
            flat = owner.transpose(memory_order(owner)).reshape(-1)
            moved = _HostCopy(flat) if target == "host" else _DiskCopy(flat, spill_file())
            start = _address(owner)
            self._layouts = {k: (a.shape, a.strides, a.dtype, _address(a) - start) for k, a in self.arrays.items()}
            self._moved = moved
            self.arrays = {}
            self.owner = None


def _reference_counts(buffer: _Buffer) -> tuple[int, int]:
    """Return the reference counts of the memory's owner, less its views here, and of the most referenced view."""
    owner, count = buffer.owner, sys.getrefcount
    views = [count(a) for a in buffer.arrays.values() if a is not owner]
    # Each of the arrays is the owner or refers to it.
    return count(owner) - len(buffer.arrays), max(views, default=0)


def _unshared_counts() -> tuple[int, int]:
    buffer = _Buffer(np.empty(2))
    view = buffer.owner[:1]
    buffer.arrays = {0: buffer.owner, 1: view}
    del view
    return _reference_counts(buffer)


# These counts where nothing else refers to the buffer, measured as they are used.
_UNSHARED_COUNTS = _unshared_counts()


def _owner_of(array: Any) -> Any:
    """Return the array that owns the memory of this one if that can be moved, else None."""
    if array.__class__ is not np.ndarray:
        cupy = libraries.loaded_cupy()
        if cupy is None or not isinstance(array, cupy.ndarray):
            return None
    owner = array if array.base is None else array.base
    if owner.__class__ is not array.__class__ or owner.nbytes < _SMALL or not memory.owns_memory(owner):
        return None
    if not owner.transpose(memory_order(owner)).flags.c_contiguous:  # with strides set by hand
        return None
    fits = owner.nbytes % array.dtype.itemsize == 0 == (_address(array) - _address(owner)) % array.dtype.itemsize
    return owner if fits else None


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0] if array.__class__ is np.ndarray else array.data.ptr)


def _view_of(flat: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int) -> Any:
    """Return the view of a flat buffer that has this layout."""
    if flat.__class__ is np.ndarray:
        return np.ndarray(shape, dtype, flat, offset, strides)
    part = (flat if flat.dtype == dtype else flat.view(dtype))[offset // dtype.itemsize :]
    count = math.prod(shape)
    if count <= part.size:
        rows = part[:count].reshape(shape)
        if rows.strides == strides:  # CuPy knows the owner of such a view, not of as_strided's
            return rows
    return libraries.namespace(flat).lib.stride_tricks.as_strided(part, shape, strides)


class _HostCopy:
    """A copy on the host of a GPU's buffer."""

    __slots__ = ("_device", "_host")

    def __init__(self, flat: Any) -> None:
        self._device = libraries.device_of(flat)
        self._host = flat.get()

    def read(self) -> Any:
        return libraries.to_device(self._host, self._device)


class _DiskCopy:
    """A copy of a buffer in a spill file."""

    __slots__ = ("_device", "_dtype", "_file", "_span")

    def __init__(self, flat: Any, file: _SpillFile) -> None:
        self._file = file
        self._device = libraries.device_of(flat)
        self._dtype = flat.dtype
        self._span = file.write(flat if self._device == "cpu" else flat.get())

    def __del__(self) -> None:
        span = getattr(self, "_span", None)  # absent where writing failed
        if span is not None:
            self._file.free(span)

    def read(self) -> Any:
        return libraries.to_device(self._file.read(self._span, self._dtype), self._device)


def _nameless_file(folder: str) -> Any:
    """Return a new file without a name; None if the system or the folder has no such files.

    As `tempfile.TemporaryFile` does, but by functions of C alone: an exception that struck between its opening of the
    file and its making of the object would leave it open.
    """
    made: list[io.FileIO] = []
    if hasattr(os, "O_TMPFILE"):
        flags = os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
        with suppress(OSError):
            made.extend(map(partial(io.FileIO, mode="r+"), map(os.open, [folder], [flags], [0o600])))
    return made[0] if made else None


class _SpillFile:
    """A file without a name. Spans (start, size) of it that were freed are used again for buffers of the same size."""

    def __init__(self) -> None:
        import tempfile  # deferred, as few programs need it

        try:
            # No other process sees it, and the system deletes it with its last file descriptor.
            self._file: Any = _nameless_file(tempfile.gettempdir())
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="gradmgr-", buffering=0)  # noqa: SIM115  # closed in __del__
        except OSError as error:
            raise errors.SpillError(
                f"spill='disk' cannot make a temporary file: {error}; set TMPDIR to a directory that can be written to"
            ) from error
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._end = 0
        self._vacant: dict[int, list[int]] = {}
        self._freed: deque[tuple[int, int]] = deque()  # appended to where a buffer is freed, in any thread

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def free(self, span: tuple[int, int]) -> None:
        """Make a span available for later writes."""
        self._freed.append(span)

    def write(self, flat: Any) -> tuple[int, int]:
        """Write a flat array; return its span."""
        data: memoryview = flat.view(np.uint8).data
        with self._lock:
            self._check_process()
            self._take_back()
            vacant = self._vacant.get(len(data))
            start = vacant[-1] if vacant else self._end
            try:
                self._file.seek(start)
                self._write_all(data)
            except OSError as error:
                self._file.truncate(self._end)
                raise errors.SpillError(
                    f"spill='disk' could not write {format_bytes(len(data))} in addition to {format_bytes(self._end)} "
                    f"in a temporary file: {error}; nothing is lost, and the operation was not recorded; give it a "
                    "larger budget, or set TMPDIR to a directory with more room"
                ) from error
            if vacant:
                vacant.pop()
            else:
                self._end += len(data)
        return start, len(data)

    def read(self, span: tuple[int, int], dtype: Any) -> Any:
        """Return the flat array that was written to a span."""
        start, size = span
        flat = np.empty(size // dtype.itemsize, dtype)
        data: memoryview = flat.view(np.uint8).data
        with self._lock:
            self._check_process()
            try:
                self._file.seek(start)
                self._read_all(data)
            except (OSError, EOFError) as error:
                raise errors.SpillError(f"a value moved to disk could not be read back: {error}") from error
        return flat

    # Loops of their own, out of with and try: on CPython 3.12 and later a signal at their end would pass those by.

    def _take_back(self) -> None:
        while self._freed:
            start, size = self._freed.popleft()
            self._vacant.setdefault(size, []).append(start)

    def _write_all(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += self._file.write(data[done:])

    def _read_all(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = self._file.readinto(data[done:])
            if not count:
                raise EOFError("the temporary file ends early")
            done += count

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise errors.SpillError(
                "this recording moved values to disk in the process that this one was forked from, and its file may "
                "change there; record in the process that calls backward()"
            )


# ---------------------------------------------------------------- one recording


class _SpilledValue(PackedValue):
    """The placeholder in an entry of an array that is a view of a buffer."""

    __slots__ = ("_buffer", "_key")

    def __init__(self, value: Any, buffer: _Buffer, key: int) -> None:
        super().__init__(value)
        self._buffer = buffer
        self._key = key

    @property
    def kept(self) -> Any:
        """The array, unless its buffer is moved out."""
        return self._buffer.arrays.get(self._key, ())

    def array(self, op: str) -> Any:
        """Return the array."""
        return self._buffer.array(self._key)


class Spill(Observer):
    """Keeps one recording within its budget."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.resident_bytes = 0  # of the buffers that count: those that nothing else was seen to refer to
        self.moved_bytes = 0
        # Of buffers that any thread freed or moved: the owner's id, bytes to subtract from resident and from moved.
        self.changes: deque[tuple[int, int, int]] = deque()
        self._buffers: dict[int, weakref.ref[_Buffer]] = {}  # those in their place, by the owner's id
        self._movable: deque[weakref.ref[_Buffer]] = deque()  # the oldest first
        self._shared: deque[weakref.ref[_Buffer]] = deque()  # those that were shared when last checked
        self._immovable_bytes = 0
        self._lock = threading.RLock()
        self._file: _SpillFile | None = None

    def __hash__(self) -> int:
        return id(self)

    def observe(self, tape: Any, e: Entry) -> Entry:
        with self._lock:
            packed = pack_entry(e, self._pack)
            self._apply_changes()
            self._recheck_shared()
            if not is_of_write(e):
                self._move_oldest()
        return packed

    def tape_closed(self, tape: Any) -> None:
        """Drop the reference to the file, which is closed with the last value in it."""
        self._file = None

    def status(self) -> str:
        """Describe the budget and how much of it is used."""
        self._apply_changes()
        return (
            f"{self.budget!r}: {format_bytes(self.resident_bytes)} here that it may move, "
            f"{format_bytes(self.moved_bytes)} moved"
        )

    def _pack(self, value: Any) -> Any:
        array = bare(value)
        owner = _owner_of(array)
        if owner is None:
            return value
        if self.budget.target == "host" and owner.__class__ is np.ndarray:
            self._immovable_bytes += int(array.nbytes)  # counted each time it is saved: exact enough for a warning
            if self._immovable_bytes > self.budget.limit:
                self.budget.warn_immovable()
            return value
        buffer = self._buffer_of(owner)
        with buffer._lock:
            if buffer.owner is None:  # another recording has moved it
                return value
            buffer.arrays.setdefault(id(array), array)
        return _SpilledValue(value, buffer, id(array))

    def _buffer_of(self, owner: Any) -> _Buffer:
        buffer = self.find(owner)
        if buffer is None:
            buffer = next((b for other in self._others() if (b := other.find(owner)) is not None), None)
            if buffer is None:
                buffer = _Buffer(owner)
            buffer.spills[self] = True
            ref = weakref.ref(buffer)
            self._buffers[id(owner)] = ref
            self._movable.append(ref)
            self.resident_bytes += buffer.nbytes
        return buffer

    def find(self, owner: Any) -> _Buffer | None:
        """Return the buffer of this memory, if this recording has one."""
        ref = self._buffers.get(id(owner))
        buffer = None if ref is None else ref()
        return buffer if buffer is not None and buffer.owner is owner else None

    def _others(self) -> list[Spill]:
        """Return the `Spill` of each other recording of this context: they share buffers."""
        observers = [observer for rec in recorders(current()) for observer in getattr(rec, "observers", ())]
        return [other for other in observers if isinstance(other, Spill) and other is not self]

    def _apply_changes(self) -> None:
        while self.changes:
            key, resident, moved = self.changes.popleft()
            self.resident_bytes -= resident
            self.moved_bytes -= moved
            ref = self._buffers.get(key)
            buffer = None if ref is None else ref()
            if ref is not None and (buffer is None or buffer.owner is None):
                del self._buffers[key]

    def _recheck_shared(self) -> None:
        """Check two of the shared buffers again: they may be movable now."""
        for _ in range(min(2, len(self._shared))):
            ref = self._shared.popleft()
            buffer = ref()
            if buffer is None or buffer.owner is None:
                continue
            if buffer.is_shared():
                self._shared.append(ref)
            else:
                buffer.spills[self] = True
                self.resident_bytes += buffer.nbytes
                self._movable.appendleft(ref)

    def _move_oldest(self) -> None:
        """Move the oldest buffers out until the budget holds."""
        while self.resident_bytes > self.budget.limit and self._movable:
            ref = self._movable.popleft()
            buffer = ref()
            if buffer is None or buffer.owner is None:
                continue
            if buffer.is_shared():
                buffer.spills[self] = False
                self.resident_bytes -= buffer.nbytes
                self._shared.append(ref)
                continue
            try:
                buffer.move(self.budget.target, self._open_file)
            except BaseException:
                self._movable.appendleft(ref)
                raise
            for spill, counts in list(buffer.spills.items()):
                buffer.spills[spill] = False
                spill.changes.append((buffer.key, buffer.nbytes if counts else 0, -buffer.nbytes))
            self._apply_changes()

    def _open_file(self) -> _SpillFile:
        if self._file is None:
            self._file = _SpillFile()
        return self._file


def spill_of(tape: Any) -> Spill | None:
    """Return the `Spill` of a tape, None if it has no budget."""
    return next((observer for observer in tape.observers if isinstance(observer, Spill)), None)
