"""`custom_op`: one's own operation in one declaration, as the op table has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import Batched
from gradmgr._engine.custom import declared, input_metadata, input_node_ids
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.op import INPUTS, METADATA, NAMES, PULLS, RETRACKS, Rule, argument_positions, parameters
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr._transforms.function import called, is_listened_to, is_numeric

F = TypeVar("F", bound=Callable[..., Any])
Entry = tuple[Any, ...]


def custom_op(
    function: Callable[..., Any] | None = None,
    *,
    vjp: Mapping[str, Rule] | None = None,
    jvp: Mapping[str, Rule] | None = None,
    derivative: Mapping[str, Rule] | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Declare an operation in one place, as gradmgr declares its own: decorates the function that computes it.

    The function takes plain arrays (read-only) and gives one array. Its first parameters, those that the rules
    are for, are the differentiable inputs, Tensors or arrays; the others are parameters, of any kind.
    What is made takes the same arguments by position or name, with the same defaults; it gives a Tensor
    where an input is one, else an array.

    A rule is a function of the gradient `g` (or tangent `t`) and of what it *names*: inputs, parameters, `out`,
    the result, or `shape`, that of its input. Only what the rules of the tracked inputs name is kept. It must be
    written with functions that gradmgr records (operators, NumPy's functions), on nothing but what it
    names: then it is differentiable itself, to any order. It may branch on parameters and shapes. Plain
    arrays come where nobody records the rule, Tensors where somebody does. The gradient may still have the shape of
    the result where the function broadcasts its inputs; it is summed to that of the input.

    For several results, for in-place writes, and to save what is none of these, use `Function`.

    Args:
        function: what is decorated.
        vjp: by input, rule(g, ...): the gradient of the input, given that of the result.
        jvp: by input, rule(t, ...): the tangent of the result, given that of the input; where there are
            several, they are added. Without, forward mode raises.
        derivative: by input, rule(t, ...), which serves as both: for functions that work element by element, or
            whose derivative is its own transpose; for complex numbers, holomorphic ones.
        name: what the operation is called in errors; by default the name of the function.

    Returns:
        The operation; without `function`, a decorator that makes it.

    Raises:
        TypeError: a rule names something unknown; the inputs do not come first; an input has two rules or none.

    >>> import numpy, gradmgr
    >>> from gradmgr.function import custom_op
    >>> @custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
    ... def growth(x, rate=1.0):
    ...     return numpy.exp(rate * x)
    >>> x = gradmgr.tensor([0.0, 1.0])
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     gm.backward(growth(x, rate=2.0).sum())
    >>> x.grad
    Tensor([ 2.       , 14.7781122])

    What a rule needs and cannot name is what makes it wrong a second time; it is told so at once:

    >>> @custom_op(vjp={"x": lambda g, slope: g * slope})
    ... def softplus(x):
    ...     slope = 1 / (1 + numpy.exp(-x))
    ...     return numpy.log1p(numpy.exp(x))
    Traceback (most recent call last):
        ...
    TypeError: a rule of op 'softplus' asks for 'slope'; it may ask for x, out, shape
    """
    if function is None:
        return lambda function: custom_op(function, vjp=vjp, jvp=jvp, derivative=derivative, name=name)
    if not callable(function):
        raise TypeError(f"custom_op decorates a function; found {type(function).__name__}")
    return _CustomOp(function, name or function.__name__, vjp or {}, jvp or {}, derivative or {}).public_function()


class _CustomOp:
    """One operation declared by `custom_op`; each entry of it on a tape carries it."""

    __slots__ = ("arguments", "call", "count", "defaults", "function", "made", "name")

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        vjp: Mapping[str, Rule],
        jvp: Mapping[str, Rule],
        derivative: Mapping[str, Rule],
    ) -> None:
        code = getattr(function, "__code__", None)
        if code is not None and (code.co_kwonlyargcount or code.co_flags & _TAKES_ANY):
            raise TypeError(
                f"custom op {name!r}: its function must take each parameter by position, no *args or **kwargs"
            )
        self.function = function
        self.name = name
        self.arguments = arguments = parameters(function)
        first = len(arguments) - len(getattr(function, "__defaults__", None) or ())
        self.defaults = dict(zip(arguments[first:], getattr(function, "__defaults__", None) or (), strict=True))
        inputs = self._inputs(vjp, jvp, derivative)
        self.count = len(inputs)
        on_offer = (*arguments, "out", "shape")
        pulls, pushes = {}, {}
        for v in inputs:
            both = derivative.get(v)
            pulls[v] = _ReverseRule(name, v, both or vjp[v], on_offer, holomorphic=both is not None)
            pushes[v] = _ForwardRule(name, v, both or jvp.get(v), on_offer)
        self.made = declared(name, _Kernel(name, function, arguments), vjp=pulls, jvp=pushes)
        self.call = self.made.rules.general_call()
        entry = self.made.op.entry
        self.made.op.entry = lambda *noted: (_CUSTOM, *entry(*noted)[1:], self)

    def _inputs(
        self, vjp: Mapping[str, Rule], jvp: Mapping[str, Rule], derivative: Mapping[str, Rule]
    ) -> tuple[str, ...]:
        name, arguments = self.name, self.arguments
        for v in (*vjp, *jvp, *derivative):
            if v not in arguments:
                raise TypeError(
                    f"custom op {name!r}: a rule is for {v!r}; the function's parameters are {', '.join(arguments)}"
                )
        for v in derivative:
            if v in vjp or v in jvp:
                raise TypeError(
                    f"custom op {name!r}: input {v!r} has a derivative, which serves both ways, and another rule"
                )
        for v in jvp:
            if v not in vjp:
                raise TypeError(f"custom op {name!r}: input {v!r} has a jvp and no vjp; give both, or a derivative")
        inputs = tuple([v for v in arguments if v in vjp or v in derivative])
        if not inputs or arguments[: len(inputs)] != inputs:
            raise TypeError(
                f"custom op {name!r}: rules are for {', '.join(inputs) or 'nothing'}; the inputs that have rules must "
                f"come first among the parameters, which are {', '.join(arguments)}"
            )
        return inputs

    def public_function(self) -> Callable[..., Any]:
        """Return the function that users call."""

        @functools.wraps(self.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self(args, kwargs)

        call.__name__ = call.__qualname__ = self.name
        return call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args if len(args) == len(self.arguments) and not kwargs else self._bound(args, kwargs)
        inputs = [t if isinstance(t, Tensor) else libraries.need_operand(t, self.name) for t in given[: self.count]]
        params = given[self.count :]
        for v, value in zip(self.arguments[self.count :], params, strict=True):
            if isinstance(value, Tensor) and is_listened_to(value):
                raise errors.MissingRuleError(
                    f"{self.name}: {v!r} is given {describe(value)}, which is tracked, but has no rule for it; "
                    "declare one, or pass its detach()"
                )
        return self.call(*inputs, *[raw(value) for value in params])

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        found, left = list(args), dict(kwargs)
        for v in self.arguments[len(args) :]:
            if v in left:
                found.append(left.pop(v))
            elif v in self.defaults:
                found.append(self.defaults[v])
            else:
                raise TypeError(f"{self.name}() misses its argument {v!r}")
        if left or len(found) > len(self.arguments):
            wrong = f"unexpected or repeated {next(iter(left))!r}" if left else f"{len(found)} arguments"
            raise TypeError(f"{self.name}() takes {', '.join(self.arguments)}; found {wrong}")
        return tuple(found)


class _Named:
    """A callable whose parameters are made to have these names, for what reads rules by name."""

    __slots__ = ("__signature__", "name")

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        import inspect  # late, as it takes 10 ms to import

        self.name = name
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each in names])


class _Kernel(_Named):
    """What computes a custom op: the user's function, on arrays that it cannot write to."""

    __slots__ = ("function",)

    def __init__(self, name: str, function: Callable[..., Any], arguments: tuple[str, ...]) -> None:
        super().__init__(name, arguments)
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        made = self.function(*[_read_only(value) for value in arguments])
        if is_numeric(made):
            return made
        if isinstance(made, (bool, int, float, complex)):
            return np.asarray(made)[()]
        raise errors.FunctionError(
            f"{self.name}: its function must return one array of numbers; found {type(made).__name__}; "
            "for several results, and for Tensors within, use Function"
        )


def _read_only(value: Any) -> Any:
    if isinstance(value, Batched):
        return Batched(value.level, _read_only(value._array))
    if value.__class__ is np.ndarray:
        value = value.view()
        value.flags.writeable = False
    return value


class _Rule(_Named):
    """A rule of the user's, and checks around it; it asks for one thing more, which comes last unless asked for."""

    __slots__ = ("at", "extra", "rule", "what")

    def __init__(self, name: str, what: str, rule: Rule, on_offer: tuple[str, ...], extra: str) -> None:
        asked = tuple([on_offer[k] for k in argument_positions(rule, on_offer, name)])
        self.extra = extra not in asked
        super().__init__(name, ("g", *asked, *([extra] if self.extra else [])))
        self.at = len(asked) if self.extra else asked.index(extra)
        self.rule = rule
        self.what = f"{name}: {what}"

    def found(self, g: Any, known: tuple[Any, ...]) -> Any:
        """Return what the rule gives, if it is an array."""
        d = self.rule(g, *(known[:-1] if self.extra else known))
        if not (isinstance(d, Tensor) or is_numeric(d)):
            raise errors.DtypeError(f"{self.what} gave {called(d)}; it must give an array")
        return d


class _ReverseRule(_Rule):
    __slots__ = ("holomorphic",)

    def __init__(self, name: str, v: str, rule: Rule, on_offer: tuple[str, ...], *, holomorphic: bool) -> None:
        super().__init__(name, f"the {'derivative' if holomorphic else 'vjp'} of {v!r}", rule, on_offer, "shape")
        self.holomorphic = holomorphic

    def __call__(self, g: Any, *known: Any) -> Any:
        shape = known[self.at]
        d = conj_of(self.found(conj_of(g), known)) if self.holomorphic else self.found(g, known)
        if d.shape != shape and (d.shape != g.shape or not _widens(shape, g.shape)):
            raise errors.ShapeError(f"{self.what} gave shape {d.shape}; it must give that of the input, {shape}")
        return d


class _ForwardRule(_Rule):
    __slots__ = ()

    def __init__(self, name: str, v: str, rule: Rule | None, on_offer: tuple[str, ...]) -> None:
        super().__init__(name, f"the tangent for {v!r}", rule or _no_tangent(name, v), on_offer, "out")

    def __call__(self, t: Any, *known: Any) -> Any:
        out = known[self.at]
        d = self.found(t, known)
        if d.shape != out.shape and (d.shape != t.shape or not _widens(t.shape, out.shape)):
            raise errors.ShapeError(f"{self.what} has shape {d.shape}; it must have that of the result, {out.shape}")
        return d


def _widens(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _no_tangent(name: str, v: str) -> Rule:
    def rule(t: Any) -> NoReturn:
        raise errors.MissingRuleError(
            f"{name} has no jvp for {v!r} and cannot be differentiated in forward mode; declare one with jvp= or "
            "derivative="
        )

    return rule


_TAKES_ANY = 0x04 | 0x08  # a code object's flags for *args and **kwargs

# Nor do these stand in OPS: a name may be declared again, as notebooks do, and each entry carries its own.
_CUSTOM = "custom_op"
PULLS[_CUSTOM] = lambda e, g, grads, owned: e[5].made.rules.pull(e[:5], g, grads, owned)
INPUTS[_CUSTOM] = input_node_ids
METADATA[_CUSTOM] = input_metadata
NAMES[_CUSTOM] = lambda e: e[5].name
RETRACKS[_CUSTOM] = lambda e, to: (_CUSTOM, *e[5].made.link(e[:5], to)[1:], e[5])
