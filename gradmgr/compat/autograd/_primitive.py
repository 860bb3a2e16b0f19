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
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import is_tracked
from gradmgr._engine.tensor import Tensor
from gradmgr.compat.autograd._recording import conjugate
from gradmgr.function import Function

VjpMaker = Callable[..., Any]
JvpMaker = Callable[..., Any]


def primitive(f_raw: Callable[..., Any]) -> Primitive:
    """Make an operation of a function of plain arrays, whose derivatives `defvjp` and `defjvp` declare.

    Positional arguments may be arrays, numbers and containers of them; `f_raw` is given their plain values. Keywords
    are passed as they are.

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
    """Make a function that is given the plain values of its arguments, and whose result is a constant."""

    @functools.wraps(f_raw)
    def call(*args: Any, **kwargs: Any) -> Any:
        return f_raw(*[_untraced(arg) for arg in args], **kwargs)

    return call


def _untraced(tree: Any) -> Any:
    """Return a container with plain values for its Tensors."""
    return rebuilt(tree, iter([leaf._array[()] if isinstance(leaf, Tensor) else leaf for leaf in leaves_of(tree)]))


class Primitive:
    """A function that is recorded as one operation; see `primitive`.

    Attributes:
        fun: the function of plain arrays.
    """

    fun: Callable[..., Any]
    vjp_maker: VjpMaker | None = None
    jvp_maker: JvpMaker | None = None

    def __init__(self, fun: Callable[..., Any]) -> None:
        if not callable(fun):
            raise TypeError(f"primitive takes a function; found {type(fun).__name__}")
        functools.update_wrapper(self, fun, updated=())
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = leaves_of(list(args))
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            return self.fun(*args, **kwargs)
        call = _Call(self, args, kwargs)
        results = _PrimitiveFunction.apply(call, *leaves)
        return rebuilt(call.form, iter(results))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<primitive {getattr(self.fun, '__name__', self.fun)}>"


class _Call:
    """One call of a primitive: its arguments, whose leaves are passed beside it, and the form of its result."""

    __slots__ = ("args", "form", "kwargs", "name", "primitive")

    def __init__(self, primitive: Primitive, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.primitive = primitive
        self.name = getattr(primitive.fun, "__name__", "a primitive")
        self.args = list(args)  # never a named tuple
        self.kwargs = kwargs
        self.form: Any = None  # a container like the result

    def filled(self, leaves: Sequence[Any]) -> list[Any]:
        return list(rebuilt(self.args, iter(leaves)))


class _PrimitiveFunction(Function):
    """What records a call of any primitive: apply(call, *leaves of its arguments)."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *leaves: Any) -> Any:
        plain = [leaf._array[()] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        made = call.form = call.primitive.fun(*call.filled(plain), **call.kwargs)
        results = [
            np.asarray(y) if isinstance(y, (bool, int, float, complex, np.generic)) else y for y in leaves_of(made)
        ]
        ctx.call = call
        ctx.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        ctx.constants = [None if isinstance(y, np.ndarray) else y for y in results]
        saved = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        tensors = [gnp.asarray(y) if isinstance(y, np.ndarray) else y for y in results]
        ctx.is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        ctx.is_result = [isinstance(y, np.ndarray) for y in results]
        ctx.save_for_backward(*saved, *[y for y in tensors if isinstance(y, Tensor)])
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gs: Any) -> Any:
        call, ans, args = _saved(ctx)
        if call.primitive.vjp_maker is None:
            raise errors.MissingRuleError(f"{call.name} has no vjp; declare one with defvjp(f, ...)")
        spans = _spans(call.args)
        needed = [any(ctx.needs_input_grad[1 + k] for k in span) for span in spans]
        argnums = tuple([k for k, is_needed in enumerate(needed) if is_needed])
        vjp = call.primitive.vjp_maker(argnums, ans, tuple(args), call.kwargs)
        g = rebuilt(call.form, iter([conjugate(_simplest(g)) for g in gs]))
        found: list[Any] = [None] * len(ctx.leaves)
        for k, gradient in zip(argnums, vjp(g), strict=True):
            if gradient is None:
                continue
            parts = leaves_of(gradient)
            for position, part in zip(spans[k], parts, strict=True):
                if ctx.needs_input_grad[1 + position]:
                    found[position] = fitted(conjugate(part), leaves_of(args)[position])
        return (None, *found)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        call, ans, args = _saved(ctx)
        if call.primitive.jvp_maker is None:
            raise errors.MissingRuleError(f"{call.name} has no jvp; declare one with defjvp(f, ...)")
        spans = _spans(call.args)
        argnums = tuple([k for k, span in enumerate(spans) if any(tangents[position] is not None for position in span)])
        leaves = leaves_of(args)
        filled = [_simplest(_zeros(x) if t is None else t) for t, x in zip(tangents, leaves, strict=True)]
        gs = [rebuilt(args[k], iter([filled[position] for position in spans[k]])) for k in argnums]
        made = leaves_of(call.primitive.jvp_maker(argnums, gs, ans, tuple(args), call.kwargs))
        return tuple([fitted(t, y) for t, y in zip(made, leaves_of(ans), strict=True)])


def _saved(ctx: Any) -> tuple[_Call, Any, list[Any]]:
    """Return a call, its result and its arguments, as plain values where nothing records them."""
    saved = iter(map(_simplest, ctx.saved_tensors))
    leaves = [next(saved) if is_tensor else leaf for leaf, is_tensor in zip(ctx.leaves, ctx.is_tensor, strict=True)]
    results = [next(saved) if is_result else y for y, is_result in zip(ctx.constants, ctx.is_result, strict=True)]
    call = ctx.call
    return call, rebuilt(call.form, iter(results)), call.filled(leaves)


def _simplest(t: Any) -> Any:
    """Return a Tensor that nothing tracks as a plain value, so that rules may be written with any library."""
    return t._array[()] if isinstance(t, Tensor) and not is_tracked(t) else t


def _spans(args: Sequence[Any]) -> list[range]:
    """Return which leaves belong to each argument."""
    ends = list(itertools.accumulate(len(leaves_of(arg)) for arg in args))
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _zeros(x: Any) -> Any:
    return (
        np.zeros_like(x._array if isinstance(x, Tensor) else x)
        if isinstance(x, (Tensor, np.ndarray, np.generic))
        else x
    )


def fitted(g: Any, like: Any) -> Any:
    """Return a derivative in the shape of what it belongs to, and real where that is real, as an array."""
    g = g if isinstance(g, (Tensor, np.ndarray)) else np.asarray(g)
    shape = np.shape(like._array if isinstance(like, Tensor) else like)
    if g.dtype.kind == "c" and np.dtype(getattr(like, "dtype", type(like))).kind != "c":
        g = gnp.real(g)
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if extra >= 0 and all(n in (1, m) for n, m in zip(shape, g.shape[extra:], strict=True)):
        axes = tuple([k for k, m in enumerate(g.shape) if k < extra or (shape[k - extra] == 1 and m != 1)])
        return gnp.reshape(gnp.sum(g, axis=axes), shape)
    return gnp.reshape(g, shape) if g.size == np.prod(shape, dtype=int) else gnp.broadcast_to(g, shape)


# ---------------------------------------------------------------- declaring derivatives


def _checked(fun: Any, asked: str) -> Primitive:
    if isinstance(fun, functools.partial):
        fun = fun.func
    if not isinstance(fun, Primitive):
        raise TypeError(
            f"{asked} declares the derivative of a function that `primitive` made; found {fun!r}: gradmgr's own rules "
            "hold for NumPy's functions; wrap another function with primitive(...)"
        )
    return fun


def _by_argnum(makers: Sequence[Any], argnums: Iterable[int] | None, asked: str) -> dict[int, Any]:
    table = dict(zip(itertools.count() if argnums is None else argnums, makers, strict=False))
    for argnum, maker in table.items():
        if maker is not None and not callable(maker) and not (asked == "defjvp" and maker == "same"):
            raise TypeError(f"{asked}: the rule of argument {argnum} must be a function or None; found {maker!r}")
    return table


def _rule(table: Mapping[int, Any], argnum: int, name: str, kind: str) -> Any:
    if argnum not in table:
        raise errors.MissingRuleError(f"{kind} of {name} wrt argument {argnum} is not defined; declare it")
    return table[argnum]


def defvjp_argnums(fun: Any, vjpmaker: VjpMaker) -> None:
    """Declare the vjp by all arguments at once: vjpmaker(argnums, ans, args, kwargs)(g) gives one for each argnum."""
    _checked(fun, "defvjp_argnums").vjp_maker = vjpmaker


def defvjp_argnum(fun: Any, vjpmaker: VjpMaker) -> None:
    """Declare the vjp by any argument: vjpmaker(argnum, ans, args, kwargs)(g)."""

    def vjps(argnums: Sequence[int], *call: Any) -> Callable[[Any], list[Any]]:
        made = [vjpmaker(argnum, *call) for argnum in argnums]
        return lambda g: [vjp(g) for vjp in made]

    _checked(fun, "defvjp_argnum").vjp_maker = vjps


def defvjp(fun: Any, *vjpmakers: VjpMaker | None, argnums: Iterable[int] | None = None) -> None:
    """Declare the vjp by each argument in turn, or by those in `argnums`: vjpmaker(ans, *args, **kwargs)(g).

    None in place of a vjpmaker stands for zeros. An argument without one raises where it is differentiated by.

    Raises:
        TypeError: `fun` was not made by `primitive`; a vjpmaker is no function.
    """
    known = _checked(fun, "defvjp")
    table = _by_argnum(vjpmakers, argnums, "defvjp")

    def vjps(argnums: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Callable[[Any], list[Any]]:
        makers = [_rule(table, argnum, repr(known), "the vjp") for argnum in argnums]
        made = [None if maker is None else maker(ans, *args, **kwargs) for maker in makers]
        return lambda g: [None if vjp is None else vjp(g) for vjp in made]

    known.vjp_maker = vjps


def defjvp_argnums(fun: Any, jvpmaker: JvpMaker) -> None:
    """Declare the tangent of the result: jvpmaker(argnums, gs, ans, args, kwargs), of all tangents `gs` at once."""
    _checked(fun, "defjvp_argnums").jvp_maker = jvpmaker


def defjvp_argnum(fun: Any, jvpmaker: JvpMaker) -> None:
    """Declare the tangent of the result along any argument, jvpmaker(argnum, g, ans, args, kwargs)."""

    def jvps(argnums: Sequence[int], gs: Sequence[Any], *call: Any) -> Any:
        return _sum([jvpmaker(argnum, g, *call) for argnum, g in zip(argnums, gs, strict=True)])

    _checked(fun, "defjvp_argnum").jvp_maker = jvps


def defjvp(fun: Any, *jvpfuns: Any, argnums: Iterable[int] | None = None) -> None:
    """Declare the tangent along each argument in turn, or along those in `argnums`: jvpfun(g, ans, *args, **kwargs).

    "same" says that `fun` is linear in the argument; None stands for zeros.

    Raises:
        TypeError: as `defvjp`.
    """
    known = _checked(fun, "defjvp")
    table = _by_argnum(jvpfuns, argnums, "defjvp")

    def along(argnum: int, g: Any, ans: Any, args: Any, kwargs: Any) -> Any:
        rule = _rule(table, argnum, repr(known), "the jvp")
        if rule is None:
            return rebuilt(ans, iter([_zeros(y) for y in leaves_of(ans)]))
        if rule == "same":
            return known(*args[:argnum], g, *args[argnum + 1 :], **kwargs)
        return rule(g, ans, *args, **kwargs)

    defjvp_argnum(known, along)


def def_linear(fun: Any) -> None:
    """Declare that a primitive is linear in each of its arguments, for forward mode."""
    known = _checked(fun, "def_linear")
    defjvp_argnum(known, lambda argnum, g, ans, args, kwargs: known(*args[:argnum], g, *args[argnum + 1 :], **kwargs))


def _sum(trees: Sequence[Any]) -> Any:
    """Return the sum of containers of the same form, part by part."""
    if len(trees) == 1:
        return trees[0]
    sums = [functools.reduce(gnp.add, parts) for parts in zip(*map(leaves_of, trees), strict=True)]
    return rebuilt(trees[0], iter(sums))
