"""autograd.wrap_util: derivatives by one argument, or several, of functions of many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gradmgr import errors

__all__ = ["unary_to_nary"]


def unary_to_nary(unary_operator: Callable[..., Any]) -> Callable[..., Any]:
    """Make op(fun, argnum=0, ...)(*args, **kwargs) of op(fun, x, ...), which is for functions of one argument.

    With a tuple of numbers for `argnum`, x is the tuple of these arguments.

    Raises:
        TypeError: the operator is not a function; in op(fun, argnum), `fun` is none, or `argnum` is no int, nor ints.
        IndexError: in a call of the result there is no argument `argnum`.

    >>> from gradmgr.compat.autograd.wrap_util import unary_to_nary
    >>> twice = unary_to_nary(lambda fun, x: fun(fun(x)))
    >>> twice(lambda a, b: a + 10 * b, argnum=1)(1, 2)
    211
    """
    errors.check_function(unary_operator, "unary_to_nary")

    @functools.wraps(unary_operator, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def nary_operator(
        fun: Callable[..., Any], argnum: int | Sequence[int] = 0, *op_args: Any, **op_kwargs: Any
    ) -> Callable[..., Any]:
        name = getattr(unary_operator, "__name__", "the operator")
        errors.check_function(fun, name)
        if isinstance(argnum, bool) or not isinstance(argnum, (int, tuple, list)):
            raise TypeError(f"{name}: argnum is an int or a tuple of ints; found {argnum!r}")

        @functools.wraps(fun, updated=())
        def nary_f(*args: Any, **kwargs: Any) -> Any:
            x = _chosen(args, argnum, nary_f.__name__)
            return unary_operator(_of_chosen(fun, argnum, args, kwargs), x, *op_args, **op_kwargs)

        of = getattr(fun, "__name__", "fun")
        nary_f.__name__ = f"{name}_of_{of}_wrt_argnum_{argnum}"
        nary_f.__doc__ = (
            f"    {name} of function {of} with respect to argument {argnum}, as a function of its arguments.\n"
        )
        return nary_f

    del nary_operator.__wrapped__  # its signature, (fun, x), is not that of what is returned
    return nary_operator


def _chosen(args: tuple[Any, ...], argnum: int | Sequence[int], asked: str) -> Any:
    """Return the argument of a number, or the tuple of those of several."""
    try:
        return args[argnum] if isinstance(argnum, int) else tuple([args[k] for k in argnum])
    except IndexError:
        raise IndexError(
            f"{asked}: there is no argument {argnum}, as {len(args)} were given by position; what is differentiated "
            "by is passed by position"
        ) from None


def _of_chosen(
    fun: Callable[..., Any], argnum: int | Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Any], Any]:
    """Return a function of the arguments that `_chosen` gives, with the others as they are."""

    def unary_f(x: Any) -> Any:
        given = list(args)
        if isinstance(argnum, int):
            given[argnum] = x
        else:
            for k, part in zip(argnum, x, strict=True):
                given[k] = part
        return fun(*given, **kwargs)

    unary_f.__name__ = getattr(fun, "__name__", "fun")
    return unary_f
