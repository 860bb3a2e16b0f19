"""Observers of tapes, and where in the user's program an op was called.

Op functions append to `rec.entries`, whatever list that is. The entries of a tape with observers are a list of another
kind, whose `append` shows each entry to the observers first; every other tape pays nothing.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any

from gradmgr._engine.cleanup import Scope
from gradmgr._engine.interceptors import Interceptor

Entry = tuple[Any, ...]


class Observer:
    """Sees each entry before a tape stores it, and each backward pass that begins.

    An observer belongs to one tape (`Tape.observers`) or to a context (`observing`).
    """

    # The lowest is called first; among equals those of the context, the innermost first, then the tape's own.
    rank = 0

    def observe(self, tape: Any, e: Entry) -> Entry | None:
        """Return the entry to store in place of this one; None stores nothing."""
        return e

    def backward_started(self, tape: Any, grads: dict[Any, Any]) -> Interceptor | None:
        """See a backward pass over a tape before it begins, in a context that this observer belongs to.

        Args:
            tape: the tape.
            grads: the gradients by node id; now those with which the pass begins, later all there are.

        Returns:
            An interceptor that is to see the vjps of this pass, or None.
        """
        return None

    def attached_to(self, tape: Any) -> None:
        """Called when a tape begins to show its entries."""

    def tape_closed(self, tape: Any) -> None:
        """Called when the tape that it belongs to is closed."""


# The observers entered in this context, the innermost last.
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("gradmgr_observers", default=())
observers = _observers.get
set_observers = _observers.set


def _rank(observer: Observer) -> int:
    return observer.rank


class ObservedEntries(list[Any]):
    """The entries of a tape with observers.

    Another thread that records into the tape may still hold the list that was there before; what it appends there
    is moved here before anything that can depend on it.
    """

    __slots__ = ("_before", "_moving", "tape")

    def __init__(self, entries: list[Any], tape: Any) -> None:
        super().__init__()
        self.tape = tape
        self._before = entries
        self._moving = threading.Lock()

    def catch_up(self) -> None:
        """Move the entries of the list before this one here; that is empty only when all of them are here."""
        with self._moving:
            added = self._before[:]
            self.extend(added)
            del self._before[: len(added)]

    def append(self, e: Entry) -> None:
        if self._before:
            self.catch_up()
        stored: Entry | None = e
        tape = self.tape
        asked: Any = observers()
        if len(asked) > 1 or tape.observers:
            asked = sorted((*asked[::-1], *tape.observers), key=_rank)
        for observer in asked:
            stored = observer.observe(tape, stored)
            if stored is None:
                return
        list.append(self, stored)


class SavedValuePlaceholder:
    """Stands in an entry for a value that is kept in another form, or elsewhere."""

    __slots__ = ()

    @property
    def kept(self) -> Any:
        """What it keeps in memory: arrays and tuples of them."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of that."""
        kept = self.kept
        return sum(getattr(part, "nbytes", 0) for part in (kept if isinstance(kept, tuple) else (kept,)))


class observing(Scope):  # noqa: N801  # reads as a statement: `with observing(observer, tapes):`
    """Let an observer see what is recorded in this context, in a with block.

    Args:
        observer: the observer.
        tapes: those that record already and must begin to show their entries; later ones do so by themselves.
    """

    __slots__ = ("observer", "tapes")

    def __init__(self, observer: Observer, tapes: Any = ()) -> None:
        self.observer = observer
        self.tapes = tapes

    def _open(self, opened: Any) -> None:
        add_observer(self.observer, self.tapes)

    def _close(self, opened: Any) -> None:
        remove_observer(self.observer)


def add_observer(observer: Observer, tapes: Any) -> None:
    """Let an observer see what is recorded in this context from here on, in these tapes and in later ones."""
    _observers.set((*observers(), observer))
    show_entries(tapes)


def show_entries(tapes: Any) -> None:
    """Let tapes that record already show their entries to the observers there are."""
    for tape in tapes:
        tape.start_observing()


def remove_observer(observer: Observer) -> None:
    """Undo `add_observer`, if it is not undone. Not by token: blocks may be left in any order, and from generators."""
    now = observers()
    if observer in now:
        _observers.set(tuple([each for each in now if each is not observer]))


class SourceLocation:
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
        import linecache  # deferred, as what it imports takes 1 ms

        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        text = self.text()
        return f"{self.file}:{self.line} in {self.function}" + (f": {text}" if text else "")


def user_location(depth: int = 1) -> tuple[CodeType, int] | None:
    """Return where the innermost frame outside of gradmgr is now: what a SourceLocation is made of.

    Args:
        depth: how many frames are known to be gradmgr's, this one included.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("gradmgr."):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None
