"""`primitive` and `defvjp`: functions with derivatives of the program's own, as one `gradmgr.Function`.

autograd makes a vjp when the function is called; here it is made in backward, from the arguments and the result that
were saved, so that it can be differentiated again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine.capture_notes import foreign
from gradmgr._engine.containers import leaves_of, parts_of, rebuilt
from gradmgr._engine.context import Context, current, recorders
from gradmgr._engine.forward import Forward
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr.compat.autograd._primitive_op import (
    all_simplest,
    dense,
    fitted,
    jvp_maker_of,
    plain_value,
    record,
    vjp_maker_of,
)
from gradmgr.compat.autograd._recording import conjugate, zeros_like
from gradmgr.function import Function

VjpMaker = Callable[..., Any]
JvpMaker = Callable[..., Any]


_NUMBERS = (bool, int, float, complex, np.generic)
_ARRAYS = (Tensor, np.ndarray, np.generic)
_ARRAY = object()  # represents an array among the constants of a result


class VJPNode:
    """Reverse mode, in `register_notrace`. It is a name only: gradmgr's history has no nodes of autograd's.

    >>> import numpy
    >>> from gradmgr.compat.autograd import elementwise_grad
    >>> from gradmgr.compat.autograd.extend import VJPNode, primitive, register_notrace
    >>> sign = primitive(numpy.sign)
    >>> register_notrace(VJPNode, sign)
    >>> elementwise_grad(lambda x: x * sign(x))(numpy.array([-2.0, 3.0]))
    array([-1.,  1.])
    """


class JVPNode:
    """Forward mode, in `register_notrace`. It is a name only, as `VJPNode`.

    >>> import numpy
    >>> from gradmgr.compat.autograd import make_jvp
    >>> from gradmgr.compat.autograd.extend import JVPNode, primitive, register_notrace
    >>> sign = primitive(numpy.sign)
    >>> register_notrace(JVPNode, sign)
    >>> make_jvp(lambda x: x * sign(x))(-2.0)(1.0)
    (np.float64(2.0), np.float64(-1.0))
    """


def primitive(f_raw: Callable[..., Any]) -> Primitive:
    """Make an operation of a function of plain arrays, whose derivatives `defvjp` and `defjvp` declare.

    Positional arguments may be arrays, numbers and containers of them; `f_raw` is given their plain values. Keywords
    are passed as they are.

    Raises:
        TypeError: `f_raw` is not a function.

    >>> import numpy
    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import defvjp, primitive
    >>> @primitive
    ... def cube(x):
    ...     return x**3
    >>> defvjp(cube, lambda ans, x: lambda g: g * 3 * x**2)
    >>> grad(cube)(2.0), grad(grad(cube))(2.0)
    (np.float64(12.0), np.float64(12.0))
    """
    return Primitive(f_raw)


def notrace_primitive(f_raw: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that is given the plain values of its arguments, and whose result is a constant.

    Raises:
        TypeError: `f_raw` is not a function.

    >>> import numpy
    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import notrace_primitive
    >>> size = notrace_primitive(numpy.size)
    >>> grad(lambda x: x.sum() * size(x))(numpy.array([1.0, 2.0]))
    array([2., 2.])
    """
    errors.check_function(f_raw, "notrace_primitive")

    @functools.wraps(f_raw)
    def call(*args: Any, **kwargs: Any) -> Any:
        return f_raw(*[untraced(arg) for arg in args], **kwargs)

    return call


def untraced(tree: Any) -> Any:
    """Return a container with plain values for its Tensors."""
    return rebuilt(tree, iter([leaf._array[()] if isinstance(leaf, Tensor) else leaf for leaf in leaves_of(tree)]))


def holds_traced(tree: Any) -> bool:
    """Tell whether nested containers hold a Tensor."""
    return any(isinstance(leaf, Tensor) for leaf in leaves_of(tree))


class Primitive:
    """A function that is recorded as one operation; see `primitive`.

    Attributes:
        fun: the function of plain arrays.
        untraced: the modes, `VJPNode` and `JVPNode`, in which its result is a plain constant.
    """

    fun: Callable[..., Any]
    untraced: frozenset[type] = frozenset()
    vjp_maker: VjpMaker | None = None
    jvp_maker: JvpMaker | None = None

    def __init__(self, fun: Callable[..., Any]) -> None:
        errors.check_function(fun, "primitive")
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = current()
        if self.untraced or (state.__class__ is Context and state.interceptors):
            return self._call_any(args, kwargs)
        values, is_traced = [], False
        for arg in args:
            if isinstance(arg, Tensor):
                array = arg._array
                values.append(array if array.ndim else array[()])
                is_traced = True
            elif parts_of(arg) is None:
                values.append(arg)
            else:
                return self._call_any(args, kwargs)
        made = self.fun(*values, **kwargs)
        if not is_traced:
            return dense(made)
        if isinstance(made, (np.ndarray, *_NUMBERS)):
            return record(self, state, args, values, made, kwargs)
        return self._call_any(args, kwargs, made)

    def _call_any(self, args: tuple[Any, ...], kwargs: dict[str, Any], *made: Any) -> Any:
        """Do as `__call__`, whatever the arguments and the result are.

        Args:
            args: the positional arguments.
            kwargs: the others.
            made: what the function returned, where it was called already.
        """
        if not holds_traced(list(args)):
            return dense(self.fun(*args, **kwargs))
        if self.untraced and self.untraced.issuperset(_modes()):
            return dense(self.fun(*untraced(list(args)), **kwargs))
        call = _Call(self, args, kwargs, made)
        tensors, call.tensors = call.tensors, []  # to which an entry must not refer
        results = _PrimitiveFunction.apply(call, *tensors)
        return rebuilt(call.form, iter(results)) if call.is_nested else results

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<primitive {getattr(self.fun, '__name__', self.fun)}>"


def _modes() -> set[type]:
    """Return the modes of what records at present."""
    return {JVPNode if isinstance(recorder, Forward) else VJPNode for recorder in recorders(current())}


class _Call:
    """One call of a primitive: its arguments but for the Tensors in them, which are passed beside it, and its result.

    Where the call is captured, to be replayed with other values, plain arrays are made Tensors.

    Attributes:
        tensors: the Tensors among the leaves of the arguments, until they are passed on.
        places: of each of them, which argument holds it, and which leaf of that one it is.
        form: a container like the result, if it `is_nested`; otherwise that is one array or number.
        constants: of a nested result, its leaves, `_ARRAY` for the arrays.
    """

    __slots__ = (
        *("_args", "_leaves", "_made", "_positions", "constants", "form", "is_nested"),
        *("kwargs", "places", "primitive", "tensors"),
    )

    def __init__(
        self, primitive: Primitive, args: tuple[Any, ...], kwargs: Mapping[str, Any], made: tuple[Any, ...]
    ) -> None:
        self.primitive = primitive
        self.kwargs = kwargs
        self._made = made
        self.is_nested = False
        self.form: Any = None
        self.constants: list[Any] = []
        is_flat = all(parts_of(arg) is None for arg in args)
        leaves = list(args) if is_flat else leaves_of(list(args))
        passed: Any = Tensor if listener() is None else _ARRAYS
        self._positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, passed)]
        self.tensors = [
            leaf if isinstance(leaf := leaves[k], Tensor) else wrap(computed(np.array, leaf)) for k in self._positions
        ]
        for k in self._positions:
            leaves[k] = None
        self._leaves = leaves
        if is_flat:
            self._args = None
            self.places = [(k, 0) for k in self._positions]
        else:
            self._args = rebuilt(list(args), iter(leaves))  # never a named tuple
            places = [(k, j) for k, arg in enumerate(args) for j in range(len(leaves_of(arg)))]
            self.places = [places[k] for k in self._positions]

    def compute(self, arrays: Iterable[Any]) -> Any:
        """Return what the function gives, or gave already, with these values for the Tensors."""
        if self._made:
            (made,), self._made = self._made, ()
            return made
        return foreign(_called, self.primitive.fun, self.filled(arrays), self.kwargs)

    def filled(self, tensors: Iterable[Any]) -> list[Any]:
        """Return the arguments with these values for the Tensors."""
        leaves = self._leaves.copy()
        for k, t in zip(self._positions, tensors, strict=True):
            leaves[k] = t
        return leaves if self._args is None else list(rebuilt(self._args, iter(leaves)))

    def results(self, arrays: Sequence[Any]) -> Any:
        """Return what the function gave, with these values for its arrays."""
        if not self.is_nested:
            return arrays[0]
        given = iter(arrays)
        return rebuilt(self.form, iter([next(given) if y is _ARRAY else y for y in self.constants]))


class _PrimitiveFunction(Function):
    """What records a call of any primitive: apply(call, *Tensors of its arguments)."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        made = dense(call.compute(list(map(plain_value, tensors))))
        ctx.call = call
        if _is_array(made):
            result = _as_tensor(made)
            ctx.save_for_backward(*tensors, result)
            return result
        leaves = leaves_of(made)
        call.constants = [_ARRAY if _is_array(y) else y for y in leaves]
        call.is_nested, call.form = True, rebuilt(made, iter(call.constants))
        results = [_as_tensor(y) if _is_array(y) else y for y in leaves]
        ctx.save_for_backward(*tensors, *[y for y in results if isinstance(y, Tensor)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        call, tensors, ans, cotangents = _saved(ctx, [None if g is None else conjugate(g) for g in gs])
        maker = vjp_maker_of(call.primitive)
        needed = ctx.needs_input_grad[1:]
        argnums = tuple(dict.fromkeys([k for (k, _), is_needed in zip(call.places, needed, strict=True) if is_needed]))
        given = rebuilt(call.form, iter(cotangents)) if call.is_nested else cotangents[0]
        made = _by_rule(_gradients, maker, argnums, given, ans, tuple(call.filled(tensors)), call.kwargs)
        parts = {
            k: None if gradient is None else leaves_of(gradient) for k, gradient in zip(argnums, made, strict=True)
        }
        found: list[Any] = [None]
        for (k, position), t, is_needed in zip(call.places, tensors, needed, strict=True):
            part = parts[k] if is_needed else None
            found.append(None if part is None else fitted(conjugate(part[position]), t))
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        call, tensors, ans, given = _saved(ctx, tangents)
        maker = jvp_maker_of(call.primitive)
        by_place = {place: t for place, t in zip(call.places, given, strict=True) if t is not None}
        argnums = tuple(dict.fromkeys([k for k, _ in by_place]))
        args = call.filled(tensors)
        gs = []
        for k in argnums:
            leaves = enumerate(leaves_of(args[k]))
            gs.append(rebuilt(args[k], iter([by_place.get((k, j), zeros_like(leaf)) for j, leaf in leaves])))
        made = leaves_of(_by_rule(_called_maker, maker, argnums, gs, ans, tuple(args), call.kwargs))
        return tuple([fitted(t, y) for t, y in zip(made, leaves_of(ans), strict=True)])


def _is_array(value: Any) -> bool:
    """Tell whether it is an array or a number."""
    return isinstance(value, _NUMBERS) or libraries.is_array(value)


def _as_tensor(value: Any) -> Tensor:
    """Return a Tensor of an array, also one inside vmap, or of a number."""
    return wrap(np.asarray(value) if isinstance(value, _NUMBERS) else libraries.as_array(value))


def _saved(ctx: Any, derivatives: Sequence[Any]) -> tuple[_Call, list[Any], Any, list[Any]]:
    """Return a call, the Tensors of its arguments, its result, and derivatives, as plain values if nothing records."""
    call, saved = ctx.call, ctx.saved_tensors
    values = all_simplest([*saved, *derivatives])
    count = len(call.places)
    return call, values[:count], call.results(values[count : len(saved)]), values[len(saved) :]


def _called(fun: Callable[..., Any], args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    return dense(fun(*args, **kwargs))


def _by_rule(call: Callable[..., Any], *args: Any) -> Any:
    """Call a rule; one that is given plain values is foreign to a listener."""
    return call(*args) if holds_traced(list(args)) else foreign(call, *args)


def _gradients(maker: VjpMaker, argnums: tuple[int, ...], g: Any, *values: Any) -> list[Any]:
    return [None if d is None else dense(d) for d in maker(argnums, *values)(g)]


def _called_maker(maker: JvpMaker, *args: Any) -> Any:
    return maker(*args)


# ---------------------------------------------------------------- declaring derivatives


def _checked(fun: Any, asked: str) -> Primitive:
    """Return the primitive to declare a rule for; for any other function warn, and return one that is never called."""
    if isinstance(fun, functools.partial):
        fun = fun.func
    if isinstance(fun, Primitive):
        return fun
    errors.check_function(fun, asked)
    name = getattr(fun, "__name__", "fun")
    errors.warn(
        f"{asked}: the rule declared for {name} is not used, as `primitive` did not make it: a function of gradmgr's "
        f"keeps its derivative, and any other is differentiated through; declare the rule for primitive({name}), and "
        "call that",
        UserWarning,
    )
    return Primitive(fun)


def _by_argnum(makers: Sequence[Any], argnums: Iterable[int] | None, asked: str) -> dict[int, Any]:
    table = dict(zip(itertools.count() if argnums is None else argnums, makers, strict=False))
    for argnum, maker in table.items():
        if maker is not None and not callable(maker) and not (asked == "defjvp" and maker == "same"):
            raise TypeError(f"{asked}: the rule of argument {argnum} must be a function or None; found {maker!r}")
    return table


def _rule(table: Mapping[int, Any], argnum: int, known: Primitive, kind: str) -> Any:
    if argnum not in table:
        raise errors.MissingRuleError(f"{kind} of {known!r} wrt argument {argnum} is not defined; declare it")
    return table[argnum]


def register_notrace(trace_type: type, primitive_fun: Any) -> None:
    """Declare that the result of a primitive is a plain constant in reverse mode, `VJPNode`, or forward, `JVPNode`.

    >>> import numpy
    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import VJPNode, primitive, register_notrace
    >>> floor = primitive(numpy.floor)
    >>> register_notrace(VJPNode, floor)
    >>> grad(lambda x: x * floor(x))(2.5)
    np.float64(2.0)

    Raises:
        TypeError: `trace_type` is another class, or `primitive_fun` is not a function.
    """
    if trace_type not in (VJPNode, JVPNode):
        raise TypeError(f"register_notrace: the first argument is VJPNode or JVPNode; found {trace_type!r}")
    known = _checked(primitive_fun, "register_notrace")
    known.untraced |= {trace_type}


def defvjp_argnums(fun: Any, vjpmaker: VjpMaker) -> None:
    """Declare the vjp by all arguments at once: vjpmaker(argnums, ans, args, kwargs)(g) gives one for each argnum.

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import defvjp_argnums, primitive
    >>> product = primitive(lambda x, y: x * y)
    >>> defvjp_argnums(product, lambda argnums, ans, args, kwargs: lambda g: [g * args[1 - k] for k in argnums])
    >>> grad(product, 1)(2.0, 3.0)
    np.float64(2.0)
    """
    _checked(fun, "defvjp_argnums").vjp_maker = vjpmaker


def defvjp_argnum(fun: Any, vjpmaker: VjpMaker) -> None:
    """Declare the vjp by any argument: vjpmaker(argnum, ans, args, kwargs)(g).

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import defvjp_argnum, primitive
    >>> product = primitive(lambda x, y: x * y)
    >>> defvjp_argnum(product, lambda argnum, ans, args, kwargs: lambda g: g * args[1 - argnum])
    >>> grad(product, 1)(2.0, 3.0)
    np.float64(2.0)
    """

    def vjps(argnums: Sequence[int], *call: Any) -> Callable[[Any], list[Any]]:
        made = [vjpmaker(argnum, *call) for argnum in argnums]
        return lambda g: [vjp(g) for vjp in made]

    _checked(fun, "defvjp_argnum").vjp_maker = vjps


def defvjp(fun: Any, *vjpmakers: VjpMaker | None, argnums: Iterable[int] | None = None) -> None:
    """Declare the vjp by each argument in turn, or by those in `argnums`: vjpmaker(ans, *args, **kwargs)(g).

    None in place of a vjpmaker means zeros. An argument without one raises where it is differentiated by.

    Raises:
        TypeError: `fun` or a vjpmaker is not a function.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import defvjp, primitive
    >>> product = primitive(lambda x, y: x * y)
    >>> defvjp(product, lambda ans, x, y: lambda g: g * y, lambda ans, x, y: lambda g: g * x)
    >>> grad(product, 0)(2.0, 3.0), grad(product, 1)(2.0, 3.0)
    (np.float64(3.0), np.float64(2.0))
    """
    known = _checked(fun, "defvjp")
    table = _by_argnum(vjpmakers, argnums, "defvjp")

    def vjps(argnums: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Callable[[Any], list[Any]]:
        if len(argnums) == 1 and (maker := table.get(argnums[0])) is not None:  # most calls: 0.5 us less
            only = maker(ans, *args, **kwargs)
            return lambda g: [only(g)]
        makers = [_rule(table, argnum, known, "the vjp") for argnum in argnums]
        made = [None if maker is None else maker(ans, *args, **kwargs) for maker in makers]
        return lambda g: [None if vjp is None else vjp(g) for vjp in made]

    known.vjp_maker = vjps


def defjvp_argnums(fun: Any, jvpmaker: JvpMaker) -> None:
    """Declare the tangent of the result: jvpmaker(argnums, gs, ans, args, kwargs), of all tangents `gs` at once.

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd import make_jvp
    >>> from gradmgr.compat.autograd.extend import defjvp_argnums, primitive
    >>> product = primitive(lambda x, y: x * y)
    >>> def tangent(argnums, gs, ans, args, kwargs):
    ...     return sum(g * args[1 - argnum] for argnum, g in zip(argnums, gs))
    >>> defjvp_argnums(product, tangent)
    >>> make_jvp(product, (0, 1))(2.0, 3.0)((1.0, 1.0))
    (np.float64(6.0), np.float64(5.0))
    """
    _checked(fun, "defjvp_argnums").jvp_maker = jvpmaker


def defjvp_argnum(fun: Any, jvpmaker: JvpMaker) -> None:
    """Declare the tangent of the result along any argument, jvpmaker(argnum, g, ans, args, kwargs).

    Raises:
        TypeError: `fun` is not a function.

    >>> from gradmgr.compat.autograd import make_jvp
    >>> from gradmgr.compat.autograd.extend import defjvp_argnum, primitive
    >>> product = primitive(lambda x, y: x * y)
    >>> defjvp_argnum(product, lambda argnum, g, ans, args, kwargs: g * args[1 - argnum])
    >>> make_jvp(product, 1)(2.0, 3.0)(1.0)
    (np.float64(6.0), np.float64(2.0))
    """

    def jvps(argnums: Sequence[int], gs: Sequence[Any], *call: Any) -> Any:
        return _sum([jvpmaker(argnum, g, *call) for argnum, g in zip(argnums, gs, strict=True)])

    _checked(fun, "defjvp_argnum").jvp_maker = jvps


def defjvp(fun: Any, *jvpfuns: Any, argnums: Iterable[int] | None = None) -> None:
    """Declare the tangent along each argument in turn, or along those in `argnums`: jvpfun(g, ans, *args, **kwargs).

    "same" says that `fun` is linear in the argument; None means zeros.

    Raises:
        TypeError: as `defvjp`.

    >>> import numpy
    >>> from gradmgr.compat.autograd import make_jvp
    >>> from gradmgr.compat.autograd.extend import defjvp, primitive
    >>> cube = primitive(lambda x: x**3)
    >>> defjvp(cube, lambda g, ans, x: 3.0 * x**2 * g)
    >>> make_jvp(cube)(2.0)(1.0)
    (np.float64(8.0), np.float64(12.0))
    """
    known = _checked(fun, "defjvp")
    table = _by_argnum(jvpfuns, argnums, "defjvp")

    def along(argnum: int, g: Any, ans: Any, args: Any, kwargs: Any) -> Any:
        rule = _rule(table, argnum, known, "the jvp")
        if rule is None:
            return rebuilt(ans, iter([zeros_like(y) for y in leaves_of(ans)]))
        if rule == "same":
            return known(*args[:argnum], g, *args[argnum + 1 :], **kwargs)
        return rule(g, ans, *args, **kwargs)

    defjvp_argnum(known, along)


def def_linear(fun: Any) -> None:
    """Declare that a primitive is linear in each of its arguments, for forward mode.

    Raises:
        TypeError: `fun` is not a function.

    >>> import numpy
    >>> from gradmgr.compat.autograd import make_jvp
    >>> from gradmgr.compat.autograd.extend import def_linear, primitive
    >>> double = primitive(lambda x: 2.0 * x)
    >>> def_linear(double)
    >>> make_jvp(double)(3.0)(10.0)
    (np.float64(6.0), np.float64(20.0))
    """
    known = _checked(fun, "def_linear")
    defjvp_argnum(known, lambda argnum, g, ans, args, kwargs: known(*args[:argnum], g, *args[argnum + 1 :], **kwargs))


def _sum(trees: Sequence[Any]) -> Any:
    """Return the sum of containers of the same form, part by part."""
    if len(trees) == 1:
        return trees[0]
    sums = [functools.reduce(gnp.add, parts) for parts in zip(*map(leaves_of, trees), strict=True)]
    return rebuilt(trees[0], iter(sums))
