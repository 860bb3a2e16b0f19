"""autograd.test_util: derivatives compared with difference quotients along random directions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from gradmgr import errors
from gradmgr.compat.autograd._vspace import vspace
from gradmgr.compat.autograd.core import make_jvp, make_vjp
from gradmgr.compat.autograd.wrap_util import unary_to_nary

__all__ = ["check_equivalent", "check_grads", "check_jvp", "check_vjp", "combo_check", "scalar_close"]

_TOLERANCE = 1e-6  # absolute or relative, as autograd's
_STEP = 1e-6


def scalar_close(a: Any, b: Any) -> bool:
    """Tell whether two numbers differ by at most 1e-6, absolutely or relatively.

    >>> from gradmgr.compat.autograd.test_util import scalar_close
    >>> scalar_close(1.0, 1.0 + 1e-7), scalar_close(1.0, 1.001)
    (True, False)
    """
    return bool(abs(a - b) < _TOLERANCE or abs(a - b) < _TOLERANCE * abs(a + b))


def _quotient(f: Callable[..., Any], x: Any, v: Any) -> Any:
    """Return the central difference quotient of a function along a direction."""
    space = vspace(x)
    above, below = [f(space.add(x, space.scalar_mul(v, sign * _STEP / 2))) for sign in (1, -1)]
    values = vspace(above)
    return values.scalar_mul(values.add(above, values.scalar_mul(below, -1.0)), 1 / _STEP)


def check_equivalent(x: Any, y: Any) -> None:
    """Raise unless two values have the same form, shapes and dtypes and agree along a random direction.

    Raises:
        gradmgr.errors.GradcheckError: they differ; it is an AssertionError, too.

    >>> import numpy
    >>> from gradmgr.compat.autograd.test_util import check_equivalent
    >>> check_equivalent(numpy.ones(2), numpy.ones(2))
    >>> check_equivalent(numpy.ones(2), numpy.zeros(2))
    Traceback (most recent call last):
        ...
    gradmgr.errors.GradcheckError: the values differ: [1. 1.] and [0. 0.]
    """
    if vspace(x) != vspace(y):
        raise errors.GradcheckError(f"the values are of different spaces: {vspace(x)} and {vspace(y)}")
    v = vspace(x).randn()
    if not scalar_close(vspace(x).inner_prod(x, v), vspace(x).inner_prod(y, v)):
        raise errors.GradcheckError(f"the values differ: {x} and {y}")


def check_vjp(f: Callable[..., Any], x: Any) -> None:
    """Compare the vjp of a function at a point with the difference quotient; raise where they differ.

    Raises:
        gradmgr.errors.GradcheckError: they differ; it is an AssertionError, too.
        TypeError: the argument holds nothing to differentiate by.

    >>> import numpy
    >>> from gradmgr.compat.autograd.test_util import check_vjp
    >>> check_vjp(numpy.sin, numpy.array([1.0, 2.0]))
    """
    vjp, y = make_vjp(f, x)
    at, values = vspace(x), vspace(y)
    v, u = at.randn(), values.randn()
    gradient = at.covector(vjp(values.covector(u)))
    if vspace(gradient) != at:
        raise errors.GradcheckError(
            f"the derivative (VJP) check of {_name(f)} failed: the gradient is of another space, {vspace(gradient)}"
        )
    exact, numeric = at.inner_prod(v, gradient), values.inner_prod(u, _quotient(f, x, v))
    if not scalar_close(numeric, exact):
        raise errors.GradcheckError(
            f"the derivative (VJP) check of {_name(f)} failed at {x}: it is {exact}, by difference quotients {numeric}"
        )


def check_jvp(f: Callable[..., Any], x: Any) -> None:
    """Compare the jvp of a function at a point with the difference quotient; raise where they differ.

    Raises:
        gradmgr.errors.GradcheckError: they differ; it is an AssertionError, too.
        TypeError: the argument holds nothing to differentiate by.

    >>> import numpy
    >>> from gradmgr.compat.autograd.test_util import check_jvp
    >>> check_jvp(numpy.sin, numpy.array([1.0, 2.0]))
    """
    v = vspace(x).randn()
    try:
        check_equivalent(make_jvp(f, x)(v)[1], _quotient(f, x, v))
    except errors.GradcheckError as error:
        raise errors.GradcheckError(f"the derivative (JVP) check of {_name(f)} failed at {x}: {error}") from None


def _name(f: Any) -> str:
    return str(getattr(f, "__name__", f))


@unary_to_nary
def check_grads(f: Callable[..., Any], x: Any, modes: Sequence[str] = ("fwd", "rev"), order: int = 2) -> None:
    """Return a function of f's arguments that compares its derivatives with difference quotients.

    Args:
        f: the function, with the number of the argument, or several, to differentiate by: check_grads(f, 1)(a, b).
        x: that argument, which the call of the result gives.
        modes: "fwd" for forward mode, "rev" for reverse mode; by name.
        order: up to which order; by name.

    >>> import gradmgr.compat.autograd.numpy as np
    >>> from gradmgr.compat.autograd.test_util import check_grads
    >>> check_grads(np.tanh, modes=["rev"])(0.5)

    Raises:
        gradmgr.errors.GradcheckError: they differ; it is an AssertionError, too.
        ValueError: an unknown mode.
    """
    if not set(modes) <= {"fwd", "rev"}:
        raise ValueError(f"check_grads: modes holds 'fwd' and 'rev'; found {modes!r}")
    if "fwd" in modes:
        check_jvp(f, x)
        if order > 1:
            _check_derivative("jvp", f, lambda x, v: make_jvp(f, x)(v)[1], x, vspace(x).randn(), modes, order)
    if "rev" in modes:
        check_vjp(f, x)
        if order > 1:
            v = vspace(f(x)).randn()
            _check_derivative("vjp", f, lambda x, v: make_vjp(f, x)[0](v), x, v, modes, order)


def _check_derivative(
    kind: str, f: Any, derivative: Callable[..., Any], x: Any, v: Any, modes: Sequence[str], order: int
) -> None:
    """Check the derivative of f along v, by its argument and v, in one order less."""
    derivative.__name__ = f"{kind}_{_name(f)}"
    check_grads(derivative, (0, 1), modes, order=order - 1)(x, v)


def combo_check(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., None]:
    """Return a function of lists of values, which checks `fun` with each combination of them.

    Args:
        fun: the function.
        args: of `check_grads`, after the function.
        kwargs: of `check_grads`.

    Raises:
        gradmgr.errors.GradcheckError: with a combination they differ.
        TypeError: `fun` is not a function.

    >>> import numpy
    >>> from gradmgr.compat.autograd.test_util import combo_check
    >>> combo_check(numpy.multiply, [0, 1])([1.0, 2.0], [3.0])  # of 1 and 3, and of 2 and 3
    """
    check = check_grads(fun, *args, **kwargs)

    def of_lists(*lists: Any, **named: Any) -> None:
        rows = [[(key, value) for value in values] for key, values in named.items()]
        for positional in itertools.product(*lists):
            for chosen in itertools.product(*rows):
                check(*positional, **dict(chosen))

    return of_lists
