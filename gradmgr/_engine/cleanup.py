"""Clean-up that comes to its end though exceptions strike it: Ctrl-C, MemoryError, the handler of an alarm.

Where clean-up is in two `except` clauses, one around the other, the outer is for a second exception that is raised
when the inner one has begun and `complete` has not. They are in each function's own body, and not in one helper: an
exception may strike at the very beginning of that helper, when what is to be undone has been done already.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

Result = TypeVar("Result")


def complete(cleanup: Callable[..., Any], *args: Any, attempts: int = 3) -> None:
    """Call a clean-up again where an exception cut it short, until it has come to its end; then raise the first.

    Args:
        cleanup: may be called twice: what is done already is not done again, or changes nothing.
        args: what to call it with.
        attempts: after so many, it is the clean-up itself that fails.
    """
    try:
        cleanup(*args)
    except BaseException:
        if attempts > 1:
            complete(cleanup, *args, attempts=attempts - 1)
        raise


def without_collections(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function that makes many objects and no cycles, without collecting garbage again and again meanwhile."""
    was_enabled = gc.isenabled()
    try:
        try:
            gc.disable()
            return function(*args)
        finally:
            if was_enabled:
                complete(gc.enable)
    except BaseException:
        if was_enabled:
            gc.enable()
        raise


# Added to the number of collections of younger objects after which all objects are looked at: it is not reached then.
_FAR = 1 << 30


def without_full_collections(function: Callable[..., Result], *args: Any, **keywords: Any) -> Result:
    """Call a function that makes many objects that last; only young objects are looked at for garbage meanwhile.

    To look at all of them again and again, as their number grows, takes a quarter of the time of capturing a long loop.
    """
    young, middle, full = gc.get_threshold()
    try:
        try:
            if full < _FAR:
                gc.set_threshold(young, middle, full + _FAR)
            return function(*args, **keywords)
        finally:
            complete(allow_full_collections)
    except BaseException:
        allow_full_collections()
        raise


def allow_full_collections() -> None:
    """Undo what `without_full_collections` does, also in a child process that lacks the thread that it runs in."""
    young, middle, full = gc.get_threshold()
    if full >= _FAR:
        gc.set_threshold(young, middle, full - _FAR)


def _nested(calls: int) -> Callable[[], None]:
    """Return a function that makes so many calls, one inside the other: in 3/4 of the time of one that counts them."""

    def last() -> None:
        pass

    def around(inner: Callable[[], None]) -> Callable[[], None]:
        return lambda: inner()

    function: Callable[[], None] = last
    for _ in range(calls - 1):
        function = around(function)
    return function


# Raises RecursionError unless so many calls can be made, one inside the other, as it takes to close a scope: at the
# recursion limit what is opened could not be closed. It takes 0.24 us.
make_room = _nested(14)


class ExitMethod(property):
    """`__exit__` of a class with a method `_close_latest(found)`, which it calls whatever strikes at its beginning.

    Before the first instruction of a function CPython calls signal handlers, where none of its `try` has begun: after
    Ctrl-C at that moment a block would not be closed. What a with statement finds here, before it enters the block, is
    a C function that resumes a generator, which waits within its `try`.

    Args:
        undo: undoes what took effect when the object was made, where the block is not entered.
    """

    def __init__(self, undo: Callable[[Any], None] | None = None) -> None:
        def exit_or_undo(scope: Any) -> Callable[..., Any]:
            try:
                return _exit_of(scope)
            except BaseException:
                complete(undo, scope)  # type: ignore[arg-type]  # it is given
                raise

        super().__init__(_exit_of if undo is None else exit_or_undo)

    def __call__(self, scope: Any, *error: Any) -> None:
        """Do as a function of the class, which `contextlib.ExitStack` calls."""
        _exit_of(scope)(*error)

    if TYPE_CHECKING:

        def __get__(  # type: ignore[override]  # of an object, as only `contextlib.ExitStack` asks the class
            self, scope: Any, kind: type | None = None, /
        ) -> Callable[..., None]: ...


def _exit_of(scope: Any) -> Callable[..., Any]:
    waiting = _waiting(scope)
    next(waiting)
    return partial(_look_up, defaultdict(partial(next, waiting, "")))


# A C function that takes what `__exit__` is given, besides a dict, and returns an empty string, which suppresses no
# error: it looks into the dict, which calls another C function for what it lacks, and that resumes the generator.
_look_up = "{0[closed]}".format


def _waiting(scope: Any) -> Iterator[None]:
    """Wait, and then close."""
    found: list[Any] = []
    try:
        try:
            yield
            scope._close_latest(found)
        except GeneratorExit:  # the block was not entered
            return
        except BaseException:
            complete(scope._close_latest, found)
            raise
    except BaseException:
        complete(scope._close_latest, found)
        raise


class Scope:
    """What is opened and closed: in a with block, or around one call (`run`). Closed for certain, whatever is raised.

    An object may be opened several times, and in several threads. Each time `_begin` makes an object for it, before
    anything is opened, so that whatever is opened then can be closed; `_close` may be called twice.

    Where the with statement is gradmgr's own, `run` is to be preferred, which takes less time.
    """

    __slots__ = ()

    def _begin(self) -> Any:
        """Return the object of one time that this is opened; open nothing."""
        return self

    def _latest(self) -> Any:
        """Return the object of the time that a with block which ends here closes; None if there is none."""
        return self

    def _open(self, opened: Any) -> Any:
        """Open; return what the with block gets."""
        raise NotImplementedError

    def _close(self, opened: Any) -> None:
        """Close; what was closed already, and what was opened in part, too."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        make_room()
        opened = self._begin()
        try:
            try:
                return self._open(opened)
            except BaseException:
                complete(self._close, opened)
                raise
        except BaseException:
            complete(self._close, opened)
            raise

    def _close_latest(self, found: list[Any]) -> None:
        """Close what was opened last, and note it in `found`, which is empty at first: called again, close no other."""
        if not found:
            found.append(self._latest())
        if found[0] is not None:
            self._close(found[0])

    __exit__ = ExitMethod()

    def run(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
        """Call a function in this scope."""
        opened = self._begin()
        try:
            try:
                self._open(opened)
                try:
                    return function(*args, **kwargs)
                finally:
                    self._close(opened)
            except BaseException:
                complete(self._close, opened)  # again: an exception may have struck in `finally`
                raise
        except BaseException:
            complete(self._close, opened)
            del args, kwargs  # the error may be among them, and its traceback refers to this frame
            raise


def call_if_free(lock: RLock, action: Callable[[], None]) -> None:
    """Call a function with a lock held; not where the lock is held already, by this thread or another."""
    if owns(lock):
        return
    try:
        if lock.acquire(blocking=False):
            action()
    finally:
        if owns(lock):  # and not by a flag: an exception may strike between `acquire` and the setting of it
            lock.release()


def owns(lock: RLock) -> bool:
    """Tell whether this thread holds a lock."""
    # It has no public name, but `threading.Condition` asks for it of any lock.
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # typeshed leaves it out
