"""Old ways to declare derivatives, which autograd has deprecated: methods of primitives, and tables of their rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradmgr import errors
from gradmgr.compat.autograd._primitive import Primitive, VjpMaker, defvjp
from gradmgr.compat.autograd._vspace import vspace


def primitive(f_raw: Callable[..., Any]) -> OldPrimitive:
    """Make an operation as `autograd.extend.primitive` does, with the methods of old programs, which warn.

    Raises:
        TypeError: `f_raw` is not a function.

    >>> import warnings
    >>> from gradmgr.compat.autograd import grad, primitive
    >>> double = primitive(lambda x: 2.0 * x)
    >>> with warnings.catch_warnings(record=True):
    ...     warnings.simplefilter("always")
    ...     double.defgrad(lambda ans, x: lambda g: 2.0 * g)
    >>> grad(double)(5.0)
    np.float64(2.0)
    """
    return OldPrimitive(f_raw)


class OldPrimitive(Primitive):
    """A primitive with the methods that `autograd.extend.defvjp` has replaced."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        super().__init__(fun)
        self._rules: dict[int, VjpMaker | None] = {}  # by argument

    def _declare(self, method: str, rules: dict[int, VjpMaker | None]) -> None:
        errors.warn(
            f"the method {method} of a primitive is deprecated; write autograd.extend.defvjp(f, rule, ...)",
            DeprecationWarning,
        )
        self._rules = {**self._rules, **rules}
        defvjp(self, *self._rules.values(), argnums=self._rules)

    def defgrad(self, gradfun: VjpMaker, argnum: int = 0) -> None:
        """Declare the vjp by one argument: gradfun(ans, *args)(g)."""
        self._declare("defgrad", {argnum: gradfun})

    def defvjp(self, vjpfun: Callable[..., Any], argnum: int = 0) -> None:
        """Declare the vjp by one argument: vjpfun(g, ans, vs, gvs, *args), with the spaces of the argument and of g."""

        def maker(ans: Any, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            return lambda g: vjpfun(g, ans, vspace(args[argnum]), vspace(g), *args, **kwargs)

        self._declare("defvjp", {argnum: maker})

    def defvjp_is_zero(self, argnums: Iterable[int] = (0,)) -> None:
        """Declare that the derivatives by these arguments are zeros."""
        self._declare("defvjp_is_zero", dict.fromkeys(argnums))


class RulesOfPrimitives:
    """A view of the rules of all primitives in one mode, as a table by primitive."""

    __slots__ = ("_attribute",)

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def get(self, fun: Any, default: Any = None) -> Any:
        """Return the rule of a primitive, and `default` for what has none, such as NumPy's functions."""
        rule = getattr(fun, self._attribute, None) if isinstance(fun, Primitive) else None
        return default if rule is None else rule

    def __contains__(self, fun: Any) -> bool:
        return self.get(fun) is not None

    def __getitem__(self, fun: Any) -> Any:
        if fun not in self:
            raise KeyError(fun)
        return self.get(fun)

    def __setitem__(self, fun: Any, rule: Any) -> None:
        if not isinstance(fun, Primitive):
            raise TypeError(f"a rule is declared for a function that `primitive` made; found {fun!r}")
        setattr(fun, self._attribute, rule)

    def __delitem__(self, fun: Any) -> None:
        self.pop(fun)

    def pop(self, fun: Any, *default: Any) -> Any:
        """Take the rule of a primitive away and return it; `default` where there is none."""
        if fun not in self:
            if default:
                return default[0]
            raise KeyError(fun)
        rule = self.get(fun)
        setattr(fun, self._attribute, None)
        return rule


primitive_vjps = RulesOfPrimitives("vjp_maker")
primitive_jvps = RulesOfPrimitives("jvp_maker")
