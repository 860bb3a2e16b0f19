"""A call of a function with its containers taken apart: as a function of arrays, which returns arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradmgr import errors
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor, describe


class FlatCall:
    """A function and its arguments, as a function of the arrays among them.

    Attributes:
        name: the function's, for errors.
        arrays: the arrays among the arguments.
    """

    def __init__(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], is_array: Callable[[Any], bool]
    ) -> None:
        self.name = getattr(func, "__name__", type(func).__name__)
        self._func = func
        self._given = [list(args), kwargs]
        self._leaves = leaves_of(self._given)
        self._positions = [k for k, leaf in enumerate(self._leaves) if is_array(leaf)]
        self.arrays = [self._leaves[k] for k in self._positions]
        self._made: list[Any] = []  # what the last call returned, with holes for arrays
        self._form: Any = None  # their containers

    def __call__(self, arrays: Iterable[Any], is_result: Callable[[Any], bool], kind: str) -> tuple[Any, ...]:
        """Call the function with other arrays, of any library; return the arrays, of this kind, among its results."""
        leaves = list(self._leaves)
        for k, array in zip(self._positions, arrays, strict=True):
            leaves[k] = array
        args, kwargs = rebuilt(self._given, iter(leaves))
        made = self._func(*args, **kwargs)
        found = leaves_of(made)
        if not any(map(is_result, found)):
            raise errors.FunctionError(
                f"{self.name}: it must return {kind}, or containers of them; found {_full_name(type(made))}"
            )
        self._made = [_HOLE if is_result(leaf) else leaf for leaf in found]
        self._form = rebuilt(made, iter(self._made))
        return tuple([leaf for leaf in found if is_result(leaf)])

    def as_returned(self, arrays: Iterable[Any]) -> Any:
        """Return the results of the last call in their containers, with these arrays."""
        given = iter(arrays)
        return rebuilt(self._form, iter([next(given) if leaf is _HOLE else leaf for leaf in self._made]))


def _full_name(kind: type) -> str:
    """Return the name of a class with its package, as several libraries have a Tensor."""
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


_HOLE = object()  # where an array stands


def check_untracked(result: Tensor, name: str) -> None:
    """Raise where a manager outside tracks what is about to go to another library, as its gradient would be lost."""
    if is_tracked(result):
        raise errors.TrackedConversionError(
            f"{name}: {describe(result)}, which it returns, depends on what a manager outside tracks, and the other "
            "library would silently cut that gradient; pass what it depends on as an argument, or its detach()"
        )
