"""autograd.misc.tracers: functions that are run again without their Python code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._compile.compiled import compile as _compile
from gradmgr.compat.autograd.tracer import getval, isbox

__all__ = ["const_graph", "const_graph_unary", "full_graph"]


def const_graph(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return a function of the arguments that follow `args`, as `gradmgr.compile` makes it.

    A call runs the NumPy calls of earlier ones again, without the Python code around them. What autograd takes on
    trust is checked: where the function depends on more than its arguments, or takes another way, it runs as written.

    Raises:
        TypeError: `fun` is not a function.

    >>> import numpy
    >>> from gradmgr.compat.autograd.misc.tracers import const_graph
    >>> scaled = const_graph(lambda a, x: a * numpy.tanh(x), 2.0)
    >>> [scaled(numpy.array([0.0, x])).round(3).tolist() for x in (1.0, 2.0, 3.0)]
    [[0.0, 1.523], [0.0, 1.928], [0.0, 1.99]]
    """
    errors.check_function(fun, "const_graph")
    compiled = _compile(functools.partial(fun, *args, **kwargs))

    @functools.wraps(fun, updated=())
    def replayed(*values: Any) -> Any:
        made = compiled(*[np.asarray(x) if isinstance(x, float) else x for x in values])  # numbers would be guards
        return made if isbox(made) and any(map(isbox, values)) else getval(made)

    return replayed


def const_graph_unary(fun: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function of one argument, as `const_graph` does.

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd.misc.tracers import const_graph_unary
    >>> const_graph_unary(lambda x: x**2)(3.0)
    np.float64(9.0)
    """
    return const_graph(fun)


def full_graph(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    """Raise: there is no graph of autograd's nodes.

    >>> from gradmgr.compat.autograd.misc.tracers import full_graph
    >>> full_graph(abs, 1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    NotImplementedError: full_graph: gradmgr's history has no nodes of autograd's; ...
    """
    raise NotImplementedError(
        "full_graph: gradmgr's history has no nodes of autograd's; gradmgr.graph.to_mermaid and to_dot draw the "
        "history of a value that a manager records"
    )
