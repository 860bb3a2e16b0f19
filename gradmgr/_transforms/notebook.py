"""`%load_ext gradmgr` in IPython and Jupyter: tracebacks that show the user's lines alone."""

from __future__ import annotations

from types import TracebackType
from typing import Any

# Libraries through which an error comes that is raised inside gradmgr; their frames show nothing that a user wrote.
_BELOW = frozenset(("gradmgr", "numpy", "scipy", "cupy", "contextlib", "functools", "concurrent", "threading"))


def load_ipython_extension(shell: Any) -> None:
    """Show tracebacks without the frames inside gradmgr; called by `%load_ext gradmgr`.

    `%unload_ext gradmgr` shows whole ones again.
    """
    shell.set_custom_exc((Exception,), _show)


def unload_ipython_extension(shell: Any) -> None:
    """Show whole tracebacks again."""
    shell.set_custom_exc((), None)


def _show(shell: Any, kind: type[Exception], error: Exception, trace: Any, tb_offset: int | None = None) -> None:
    shorten(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)


def shorten(error: BaseException) -> None:
    """Take the frames inside gradmgr out of the traceback of an error, and of those that it came from."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without_library(one.__traceback__)
            pending += (one.__cause__, one.__context__)


def _without_library(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of gradmgr, and of libraries that it called; whole if nothing else is in it."""
    kept: list[TracebackType] = []
    is_inside, part = False, trace
    while part is not None:
        package = part.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        is_inside = package == "gradmgr" or (is_inside and package in _BELOW)
        if not is_inside:
            kept.append(part)
        part = part.tb_next
    made: TracebackType | None = None
    for part in reversed(kept):
        made = TracebackType(made, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return made or trace
