"""autograd.util: tuples with some elements replaced, and a check of gradients that autograd has deprecated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gradmgr import errors
from gradmgr.compat.autograd.test_util import check_grads

__all__ = ["func", "quick_grad_check", "subval", "subvals"]


def subvals(x: Iterable[Any], ivs: Iterable[tuple[int, Any]]) -> tuple[Any, ...]:
    """Return a tuple of the elements of `x`, but for those in `ivs`, pairs of a position and a value.

    Raises:
        IndexError: a position is out of range.

    >>> from gradmgr.compat.autograd.util import subvals
    >>> subvals((1, 2, 3), [(0, "a"), (2, "c")])
    ('a', 2, 'c')
    """
    values = list(x)
    for position, value in ivs:
        if not -len(values) <= position < len(values):
            raise IndexError(f"subvals: there is no element {position} of {len(values)}")
        values[position] = value
    return tuple(values)


def subval(x: Iterable[Any], i: int, v: Any) -> tuple[Any, ...]:
    """Return a tuple of the elements of `x`, but for number `i`, which is `v`.

    Raises:
        IndexError: the position is out of range.

    >>> from gradmgr.compat.autograd.util import subval
    >>> subval(("a", "b", "c"), 1, "x")
    ('a', 'x', 'c')
    """
    return subvals(x, [(i, v)])


def func(f: Any) -> Any:
    """Return what it is given: a function, also one taken from a class.

    >>> from gradmgr.compat.autograd.util import func
    >>> func(abs) is abs
    True
    """
    return f


def quick_grad_check(
    fun: Callable[..., Any],
    arg0: Any,
    extra_args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **ignored: Any,
) -> None:
    """Compare the gradient by the first argument with difference quotients; `test_util.check_grads` does more.

    Args:
        fun: the function.
        arg0: its first argument.
        extra_args: its others.
        kwargs: its keywords.
        ignored: the tolerances and settings of autograd's function, which have no effect there either.

    Raises:
        gradmgr.errors.GradcheckError: they differ; it is an AssertionError, too.

    >>> import warnings
    >>> import numpy
    >>> from gradmgr.compat.autograd.util import quick_grad_check
    >>> with warnings.catch_warnings(record=True):
    ...     warnings.simplefilter("always")
    ...     quick_grad_check(lambda x, y: numpy.sum(x * y), numpy.array([1.0, 2.0]), (3.0,))
    """
    errors.warn("quick_grad_check is deprecated; write autograd.test_util.check_grads", DeprecationWarning)
    check_grads(lambda x: fun(x, *extra_args, **(kwargs or {})), modes=["rev"], order=1)(arg0)
