"""`custom_op`: a user-defined operation in one declaration, as the op table declares gradmgr's own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import Batched
from gradmgr._engine.custom import Declared, declared
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.entry import Kind, declare_kind, ids_in_tuple, metadata_in_tuple
from gradmgr._engine.op import Rule, argument_positions, parameters
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr._transforms.function_node import describe_value, is_actively_tracked, is_numeric

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
    """Declare an operation and its derivatives: a decorator of the function that computes it.

    The function takes plain arrays (read-only) and returns one array. Its first parameters, those that have
    rules, are the differentiable inputs, Tensors or arrays; the others are parameters, of any kind.
    The operation takes the same arguments by position or name, with the same defaults; it returns a Tensor
    if an input is a Tensor, else an array.

    A rule is a function of the gradient `g` (or tangent `t`) and of what its parameters name: inputs, parameters
    of the function, `out` (the result), or `shape` (that of its input). Only what the rules of the tracked inputs
    name is kept. A rule must be written with functions that gradmgr records (operators, NumPy's functions), and
    use no values but those it names: then it is differentiable itself, to any order. It may branch on parameters
    and shapes. It is given Tensors if a recorder records it, else plain arrays. Where the function broadcasts
    its inputs, a rule may return a gradient of the result's shape; it is summed to the shape of the input.

    For several results, for in-place writes, and to save any other value, use `Function`.

    Args:
        function: the function to decorate.
        vjp: by input, rule(g, ...): the gradient of the input, given that of the result.
        jvp: by input, rule(t, ...): the tangent of the result, given that of the input; those of several inputs
            are added. Without it, forward mode raises.
        derivative: by input, rule(t, ...), which serves as both: for functions that work element by element, or
            whose derivative is its own transpose; for complex numbers, holomorphic ones.
        name: the operation's name in errors; by default the name of the function.

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

    A rule that needs a value it cannot name would have a wrong derivative itself, so it is rejected at once:

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
    """One operation declared by `custom_op`; each of its entries on a tape refers to it."""

    __slots__ = ("__weakref__", "arguments", "call", "count", "declared", "defaults", "function", "name", "rules")

    declared: Declared

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        vjp: Mapping[str, Rule],
        jvp: Mapping[str, Rule],
        derivative: Mapping[str, Rule],
    ) -> None:
        code = getattr(function, "__code__", None)
        if code is not None and (code.co_kwonlyargcount or code.co_flags & _VARIADIC):
            raise TypeError(
                f"custom op {name!r}: its function must take each parameter by position, no *args or **kwargs"
            )
        self.function = function
        self.rules = (*vjp.values(), *jvp.values(), *derivative.values())
        self.name = name
        self.arguments = arguments = parameters(function)
        first = len(arguments) - len(getattr(function, "__defaults__", None) or ())
        self.defaults = dict(zip(arguments[first:], getattr(function, "__defaults__", None) or (), strict=True))
        inputs = self._checked_inputs(vjp, jvp, derivative)
        self.count = len(inputs)
        available = (*arguments, "out", "shape")
        vjps, jvps = {}, {}
        for v in inputs:
            both = derivative.get(v)
            vjps[v] = _VjpRule(name, v, both or vjp[v], available, holomorphic=both is not None)
            jvps[v] = _JvpRule(name, v, both or jvp.get(v), available)
        self.declared = declared(name, _Kernel(name, function, arguments), vjp=vjps, jvp=jvps)
        self.call = self.declared.general_call()
        entry, this = self.declared.op.entry, weakref.ref(self)  # alive while it is called
        self.declared.op.runs = "foreign"
        self.declared.op.entry = lambda *recorded: (_CUSTOM, *entry(*recorded)[1:], this())

    def __del__(self) -> None:
        # The generated functions and the dict of their globals refer to each other. Nothing calls them any more, as
        # what is recorded refers to this object.
        if hasattr(self, "declared"):
            self.declared.rules.scope.clear()

    def _checked_inputs(
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
        call.captured_functions = self.rules  # type: ignore[attr-defined]  # its own code runs in each replay
        return call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args if len(args) == len(self.arguments) and not kwargs else self._bind(args, kwargs)
        inputs = [t if isinstance(t, Tensor) else libraries.need_operand(t, self.name) for t in given[: self.count]]
        params = given[self.count :]
        for v, value in zip(self.arguments[self.count :], params, strict=True):
            if isinstance(value, Tensor) and is_actively_tracked(value):
                raise errors.MissingRuleError(
                    f"{self.name}: {v!r} is given {describe(value)}, which is tracked, but has no rule for it; "
                    "declare one, or pass its detach()"
                )
        return self.call(*inputs, *[raw(value) for value in params])

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        bound, left = list(args), dict(kwargs)
        for v in self.arguments[len(args) :]:
            if v in left:
                bound.append(left.pop(v))
            elif v in self.defaults:
                bound.append(self.defaults[v])
            else:
                raise TypeError(f"{self.name}() misses its argument {v!r}")
        if left or len(bound) > len(self.arguments):
            wrong = f"unexpected or repeated {next(iter(left))!r}" if left else f"{len(bound)} arguments"
            raise TypeError(f"{self.name}() takes {', '.join(self.arguments)}; found {wrong}")
        return tuple(bound)


class _WithSignature:
    """A callable with given parameter names, as `declared` reads the parameter names of kernels and rules."""

    __slots__ = ("__signature__", "name")

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        import inspect  # deferred, as it takes 10 ms to import

        self.name = name
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in names])


class _Kernel(_WithSignature):
    """The kernel of a custom op: the user's function, given read-only arrays."""

    __slots__ = ("function",)

    runs_each_time = is_foreign = True  # in a replay, too

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
            "for several results, or to compute with Tensors, use Function"
        )


def _read_only(value: Any) -> Any:
    if isinstance(value, Batched):
        return Batched(value.level, _read_only(value._array))
    if value.__class__ is np.ndarray:
        value = value.view()
        value.flags.writeable = False
    return value


class _Rule(_WithSignature):
    """A rule of the user's, with checks; they need the value `checked_by`, passed last if the rule does not name it."""

    __slots__ = ("adds_value", "position", "rule", "what")

    def __init__(self, name: str, what: str, rule: Rule, available: tuple[str, ...], checked_by: str) -> None:
        named = tuple([available[k] for k in argument_positions(rule, available, name)])
        self.adds_value = checked_by not in named
        super().__init__(name, ("g", *named, *([checked_by] if self.adds_value else [])))
        self.position = len(named) if self.adds_value else named.index(checked_by)
        self.rule = rule
        self.what = f"{name}: {what}"

    def call_rule(self, g: Any, values: tuple[Any, ...]) -> Any:
        """Return the derivative that the rule returns; raise if it is not an array."""
        d = self.rule(g, *(values[:-1] if self.adds_value else values))
        if not (isinstance(d, Tensor) or is_numeric(d)):
            raise errors.DtypeError(f"{self.what} gave {describe_value(d)}; it must give an array")
        return d


class _VjpRule(_Rule):
    __slots__ = ("holomorphic",)

    def __init__(self, name: str, v: str, rule: Rule, available: tuple[str, ...], *, holomorphic: bool) -> None:
        super().__init__(name, f"the {'derivative' if holomorphic else 'vjp'} of {v!r}", rule, available, "shape")
        self.holomorphic = holomorphic

    def __call__(self, g: Any, *values: Any) -> Any:
        shape = values[self.position]
        d = conj_of(self.call_rule(conj_of(g), values)) if self.holomorphic else self.call_rule(g, values)
        if d.shape != shape and (d.shape != g.shape or not _broadcasts_to(shape, g.shape)):
            raise errors.ShapeError(f"{self.what} gave shape {d.shape}; it must give that of the input, {shape}")
        return d


class _JvpRule(_Rule):
    __slots__ = ()

    def __init__(self, name: str, v: str, rule: Rule | None, available: tuple[str, ...]) -> None:
        super().__init__(name, f"the tangent for {v!r}", rule or _missing_jvp(name, v), available, "out")

    def __call__(self, t: Any, *values: Any) -> Any:
        out = values[self.position]
        d = self.call_rule(t, values)
        if d.shape != out.shape and (d.shape != t.shape or not _broadcasts_to(t.shape, out.shape)):
            raise errors.ShapeError(f"{self.what} has shape {d.shape}; it must have that of the result, {out.shape}")
        return d


def _broadcasts_to(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _missing_jvp(name: str, v: str) -> Rule:
    def rule(t: Any) -> NoReturn:
        raise errors.MissingRuleError(
            f"{name} has no jvp for {v!r} and cannot be differentiated in forward mode; declare one with jvp= or "
            "derivative="
        )

    return rule


_VARIADIC = 0x04 | 0x08  # a code object's flags for *args and **kwargs

# Custom ops are not in OPS: a name may be declared again, as in notebooks, and each entry carries its own.
_CUSTOM = "custom_op"
declare_kind(
    _CUSTOM,
    Kind(
        _CUSTOM,
        ids_in_tuple,
        metadata_in_tuple,
        lambda e, to: (_CUSTOM, *e[5].declared.retrack(e[:5], to)[1:], e[5]),
        lambda e: e[5].name,
        "foreign",
    ),
    lambda e, g, grads, owned: e[5].declared.rules.vjp(e[:5], g, grads, owned),
)
