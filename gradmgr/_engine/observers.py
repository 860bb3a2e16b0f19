"""Tapes that hear what is noted: the listeners of a context, and where in the user's program an op was called.

The hot templates append to `rec.entries`, whatever list that is. A tape that somebody listens to has a
list of this kind, whose `append` asks the listeners first; every other tape pays nothing.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any

Entry = tuple[Any, ...]


class Observer:
    """Hears each entry before a tape notes it, and, where it asks, each that is pulled.

    Listeners belong to a tape (`Tape.listeners`) or to a context (`listening`).
    """

    # Whether `pulled` is to be called; that takes the slow road through backward.
    follows_backward = False

    # Who is asked first: the lowest; among equals those of the context, the innermost first, then the tape's own.
    rank = 0

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        """Return the entry to note in place of this one; None notes nothing."""
        return e

    def pulled(self, tape: Any, e: Entry, g: Any, parts: dict[Any, Any]) -> None:
        """Called with the gradient of an entry's result, and what it gave by mark of its inputs."""

    def backward_started(self, tape: Any) -> None:
        """Called before gradients are pulled back over a tape in a context it listens to."""

    def attached_to(self, tape: Any) -> None:
        """Called when a tape begins to listen."""

    def tape_closed(self, tape: Any) -> None:
        """Called when a tape of its own is closed."""


# The listeners entered in this context, the innermost last.
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("gradmgr_listeners", default=())
observers = _observers.get


def _rank(observer: Observer) -> int:
    return observer.rank


class ObservedEntries(list[Any]):
    """The entries of a tape that somebody listens to.

    Another thread that records into the tape may still hold the list that was there before; what it
    appends there is moved here before anything that can depend on it.
    """

    __slots__ = ("_before", "_moving", "tape")

    def __init__(self, entries: list[Any], tape: Any) -> None:
        super().__init__()
        self.tape = tape
        self._before = entries
        self._moving = threading.Lock()

    def catch_up(self) -> None:
        """Move here what stands in the list that was there before; it is empty only when all of it stands here."""
        with self._moving:
            late = self._before[:]
            self.extend(late)
            del self._before[: len(late)]

    def append(self, e: Entry) -> None:
        if self._before:
            self.catch_up()
        heard: Entry | None = e
        tape = self.tape
        asked: Any = (*observers()[::-1], *tape.observers)
        if len(asked) > 1:
            asked = sorted(asked, key=_rank)
        for observer in asked:
            heard = observer.observe(tape, heard)
            if heard is None:
                return
        super().append(heard)


class SavedValuePlaceholder:
    """Stands in an entry for a value that is kept in another form, or elsewhere; for packed entries."""

    __slots__ = ()

    @property
    def kept(self) -> Any:
        """What it keeps in memory of its own: arrays and tuples of them."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of that."""
        kept = self.kept
        return sum(getattr(part, "nbytes", 0) for part in (kept if isinstance(kept, tuple) else (kept,)))


class observing:  # noqa: N801  # reads as a statement: `with listening(listener, tapes):`
    """Let a listener hear what is noted in this context, in a with block.

    Args:
        listener: the listener.
        tapes: those that record already and must begin to listen; later ones find out by themselves.
    """

    __slots__ = ("observer", "tapes")

    def __init__(self, observer: Observer, tapes: Any = ()) -> None:
        self.observer = observer
        self.tapes = tapes

    def __enter__(self) -> None:
        add_observer(self.observer, self.tapes)

    def __exit__(self, *exc: object) -> None:
        remove_observer(self.observer)


def add_observer(observer: Observer, tapes: Any) -> None:
    """Let a listener hear what is noted in this context from here on, in these tapes and those to come."""
    _observers.set((*observers(), observer))
    for tape in tapes:
        tape.start_observing()


def remove_observer(observer: Observer) -> None:
    """Let it hear no more. By identity, not by token: blocks may be left in any order, and from generators."""
    now = observers()
    last = max((k for k, each in enumerate(now) if each is observer), default=None)
    if last is not None:
        _observers.set(now[:last] + now[last + 1 :])


class Place:
    """Where in the user's program an op was called: a code object and an instruction, formatted only when asked."""

    __slots__ = ("_code", "_instruction")

    def __init__(self, code: CodeType, instruction: int) -> None:
        self._code = code
        self._instruction = instruction

    @property
    def file(self) -> str:
        """Name of the source file."""
        return self._code.co_filename

    @property
    def line(self) -> int:
        """Number of the line."""
        positions = list(self._code.co_positions())
        found = positions[self._instruction // 2][0] if self._instruction >= 0 else None
        return found or self._code.co_firstlineno

    @property
    def function(self) -> str:
        """Name of the function."""
        return self._code.co_qualname

    def text(self) -> str:
        """Return the line of source, "" where it cannot be had."""
        import linecache  # late, as what it imports takes 1 ms

        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        text = self.text()
        return f"{self.file}:{self.line} in {self.function}" + (f": {text}" if text else "")


def user_location(depth: int = 1) -> tuple[CodeType, int] | None:
    """Return where the innermost frame that is not gradmgr's own is now: what a Place is made of.

    Args:
        depth: how many frames are known to be gradmgr's own, with this one.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("gradmgr."):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None
