"""SciPy's functions, looked up when they are called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from gradmgr import errors
from gradmgr.compat.autograd._primitive import Primitive, holds_traced


def late(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls SciPy's of this name; `module` may lead to an object, as `stats.norm`."""

    def function(*args: Any, **kwargs: Any) -> Any:
        package, _, attribute = module.partition(".")
        holder = import_module(f"scipy.{package}")
        return getattr(getattr(holder, attribute) if attribute else holder, name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return what `scipy.{module}.{name}` does."
    return function


def late_primitive(module: str, name: str) -> Primitive:
    """Return SciPy's function as a primitive."""
    return Primitive(late(module, name))


def without_derivative(module: str, name: str) -> Any:
    """Return what SciPy's module has under a name that has no derivative here: functions as primitives without one."""
    if name.startswith("__"):
        raise errors.lacking(name, f"gradmgr.compat.autograd.scipy.{module}")
    found = getattr(import_module(f"scipy.{module}"), name)
    return Primitive(found) if callable(found) and not isinstance(found, type) else found


def plain_or(module: str, name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return SciPy's function for plain values, and for traced ones a formula."""
    plain = late(module, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return (formula if holds_traced([args, kwargs]) else plain)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return `scipy.{module}.{name}`, differentiable."
    return function
