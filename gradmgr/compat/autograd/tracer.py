"""autograd.tracer: what a traced value is, and its value. A traced value is a `gradmgr.Tensor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gradmgr._engine.tensor import Tensor
from gradmgr.compat.autograd._primitive import notrace_primitive, primitive, register_notrace

__all__ = ["Box", "Node", "getval", "isbox", "new_box", "notrace_primitive", "primitive", "register_notrace", "trace"]


class _ClassOfBoxes(type):
    """The class of `Box`, which makes every Tensor an instance of it, as autograd's traced values are."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Tensor)


class Box(metaclass=_ClassOfBoxes):
    """What traced values are instances of. No class can be derived from it, nor further types be registered.

    Raises:
        NotImplementedError: a class is derived from it, or `Box.register` is called.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.tracer import Box
    >>> grad(lambda x: x * isinstance(x, Box))(3.0), isinstance(3.0, Box)
    (np.float64(1.0), False)
    """

    def __init_subclass__(cls) -> NoReturn:
        raise NotImplementedError(
            f"class {cls.__name__}(Box): a traced value is always a gradmgr.Tensor, and there are no boxes for other "
            "types; write the type as a dataclass of arrays, which gradmgr differentiates by, and its operations as "
            "functions of these arrays"
        )

    @classmethod
    def register(cls, value_type: Any) -> NoReturn:
        """Raise: values of further types are not traced."""
        raise NotImplementedError(
            f"Box.register({value_type!r}): gradmgr traces arrays and numbers in nested lists, tuples, dicts and "
            "dataclasses, and no other types; make the type a dataclass"
        )


def isbox(x: Any) -> bool:
    """Tell whether a value is traced.

    >>> from gradmgr.compat.autograd.tracer import isbox
    >>> isbox(1.0)
    False
    """
    return isinstance(x, Tensor)


def getval(x: Any) -> Any:
    """Return the array or number that a traced value holds; anything else as it is.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.tracer import getval
    >>> grad(lambda x: x * getval(x))(3.0)
    np.float64(3.0)
    """
    return x._array[()] if isinstance(x, Tensor) else x


class Node:
    """The base of autograd's node classes, which cannot be derived from here.

    Raises:
        NotImplementedError: a class is derived from it.

    >>> from gradmgr.compat.autograd.tracer import Node
    >>> class MyNode(Node):  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
        ...
    NotImplementedError: class MyNode(Node): gradmgr's history is no graph of autograd's nodes; ...
    """

    def __init_subclass__(cls) -> NoReturn:
        raise NotImplementedError(
            f"class {cls.__name__}(Node): gradmgr's history is no graph of autograd's nodes; gradmgr.graph shows it, "
            "and gradmgr.profiler and saved-tensor hooks see each operation"
        )


def trace(start_node: Any, fun: Callable[..., Any], x: Any) -> NoReturn:
    """Raise: a function is not run with node classes of the program's own.

    >>> from gradmgr.compat.autograd.tracer import trace
    >>> trace(None, abs, 1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    NotImplementedError: trace(start_node, fun, x): gradmgr records no nodes of a class of yours; ...
    """
    raise NotImplementedError(
        "trace(start_node, fun, x): gradmgr records no nodes of a class of yours; use make_vjp or make_jvp, "
        "gradmgr.graph for a picture of the history, gradmgr.compile to run a function's NumPy calls again"
    )


def new_box(value: Any, trace: Any, node: Any) -> NoReturn:
    """Raise: traced values are made by differentiating only.

    >>> from gradmgr.compat.autograd.tracer import new_box
    >>> new_box(1.0, 0, None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    NotImplementedError: new_box(value, trace, node): a traced value is a gradmgr.Tensor, ...
    """
    raise NotImplementedError(
        "new_box(value, trace, node): a traced value is a gradmgr.Tensor, which grad, make_vjp and their kin make; "
        "write the operation with primitive(f) and defvjp"
    )
