"""Names: of functions made by other functions, and in what NumPy says is wrong with arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gradmgr import errors

F = TypeVar("F", bound=Callable[..., Any])


def named(function: F, name: str, doc: str) -> F:
    """Give a function made by another one its name and docstring; return it."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Put the name of a public function before what NumPy says is wrong with its arguments."""
    try:
        yield
    except errors.REJECTIONS as error:
        errors.put_name(error, name)
        raise
