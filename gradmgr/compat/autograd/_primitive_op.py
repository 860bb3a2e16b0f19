"""The op of which calls of primitives are recorded whose arguments are no containers and whose result is one array.

Its inputs are all arguments, its parameters the primitive and the keywords. Its entries are (code, node id, ids of the
arguments, the arguments as plain values, result, primitive, keywords). That is a quarter of the time of a
`gradmgr.Function`, which records all other calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine.broadcast import sum_to
from gradmgr._engine.context import Context, is_tracked
from gradmgr._engine.entry import Entry, Kind, Retrack, declare_kind, ids_in_tuple
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Op
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr.compat.autograd._recording import conjugate


class SparseObject:
    """A gradient that is mostly zeros, as a vjp may return it: what adds it to an array.

    Attributes:
        vs: the vector space of the gradient.
        mut_add: a function of an array, or a container of arrays, which adds the gradient to it and returns it.

    >>> import numpy
    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.extend import SparseObject, defvjp, primitive, vspace
    >>> first = primitive(lambda x: x[0])
    >>> def add_to_first(g):
    ...     def mut_add(total):
    ...         total[0] += g
    ...         return total
    ...     return mut_add
    >>> defvjp(first, lambda ans, x: lambda g: SparseObject(vspace(x), add_to_first(g)))
    >>> grad(first)(numpy.array([1.0, 2.0, 3.0]))
    array([1., 0., 0.])
    """

    __slots__ = ("mut_add", "vs")

    def __init__(self, vs: Any, mut_add: Callable[[Any], Any]) -> None:
        self.vs = vs
        self.mut_add = mut_add


class HasRules(Protocol):
    """A primitive, as far as its derivatives go."""

    fun: Callable[..., Any]
    vjp_maker: Callable[..., Any] | None
    jvp_maker: Callable[..., Any] | None


# ---------------------------------------------------------------- values


def dense(gradient: Any) -> Any:
    """Return what a `SparseObject` represents; anything else as it is."""
    return gradient.mut_add(gradient.vs.zeros()) if isinstance(gradient, SparseObject) else gradient


def simplest(t: Any) -> Any:
    """Return a Tensor that nothing tracks as a plain value, so that rules may be written with any library."""
    return plain_value(t) if isinstance(t, Tensor) and not is_tracked(t) else t


def plain_value(t: Tensor) -> Any:
    """Return the array of a Tensor, a NumPy scalar where that has no axes."""
    return computed(operator.getitem, bare(t), ())


def all_simplest(values: Sequence[Any]) -> list[Any]:
    """Do as `simplest` with each; a listener sees nothing of what a rule computes with plain values beside Tensors."""
    if listener() is not None and any(isinstance(t, Tensor) and is_tracked(t) for t in values):
        return list(values)
    return list(map(simplest, values))


def fitted(g: Any, like: Any) -> Any:
    """Return a derivative in the shape of what it belongs to, and real where that is real, as an array."""
    g = g if isinstance(g, Tensor) or libraries.is_array(g) else np.asarray(g)
    shape = np.shape(like._array if isinstance(like, Tensor) else like)
    if g.dtype.kind == "c" and np.dtype(getattr(like, "dtype", type(like))).kind != "c":
        g = gnp.real(g)
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if extra >= 0 and all(n in (1, m) for n, m in zip(shape, g.shape[extra:], strict=True)):
        return sum_to(g, shape)
    return gnp.reshape(g, shape) if g.size == np.prod(shape, dtype=int) else gnp.broadcast_to(g, shape)


# ---------------------------------------------------------------- rules


def name_of(primitive: HasRules) -> str:
    """Return what a primitive is called in errors."""
    return str(getattr(primitive.fun, "__name__", "a primitive"))


def vjp_maker_of(primitive: HasRules) -> Callable[..., Any]:
    """Return what makes vjps of a primitive; raise where nothing is declared."""
    if primitive.vjp_maker is None:
        raise errors.MissingRuleError(f"{name_of(primitive)} has no vjp; declare one with defvjp(f, ...)")
    return primitive.vjp_maker


def jvp_maker_of(primitive: HasRules) -> Callable[..., Any]:
    """Return what computes tangents of a primitive; raise where nothing is declared."""
    if primitive.jvp_maker is None:
        raise errors.MissingRuleError(f"{name_of(primitive)} has no jvp; declare one with defjvp(f, ...)")
    return primitive.jvp_maker


# ---------------------------------------------------------------- recording


def record(
    primitive: HasRules, state: Any, args: tuple[Any, ...], values: list[Any], made: Any, kwargs: Mapping[str, Any]
) -> Tensor:
    """Record a call, whose result was computed, where the recorders of what is current track an argument.

    Args:
        primitive: what was called.
        state: what is current: nothing, one tape, or a Context without interceptors.
        args: the positional arguments, none of them a container.
        values: the same as plain values.
        made: the result, an array of NumPy's or a number.
        kwargs: the keywords.

    Returns:
        The result.
    """
    libraries.check_plain(made)
    out = made if made.__class__ is np.ndarray else np.asarray(made)
    if state is None or not libraries.is_differentiable(out.dtype):
        return wrap(out)
    if state.__class__ is Context:
        return state.record(_OP, args, values, out, (primitive, kwargs))  # type: ignore[no-any-return]  # one Tensor
    z = wrap(out)
    node_ids = state.node_ids_of(args) if state.open else None
    if node_ids is not None:
        state.record_op(_OP, node_ids, tuple(values), out, (primitive, kwargs), z)
    return z


def _entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> Entry:
    return ("primitive", m, node_ids, values, out, *params)


def _metadata(e: Entry) -> tuple[Any, ...]:
    return tuple([(i, a.shape, a.dtype) for i, a in zip(e[2], e[3], strict=True) if i is not None])


def _retracked(e: Entry, to: Retrack) -> Entry:
    code, m, node_ids, values, out, *params = e
    return (code, m, node_ids, tuple([to(v, i) for v, i in zip(values, node_ids, strict=True)]), to(out, m), *params)


def _vjp(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    _, _, node_ids, args, ans, primitive, kwargs = e
    if owned.plain:
        g = g if g.ndim else g[()]
        ans = ans if ans.ndim else ans[()]
    else:
        g, ans, args = simplest(g), simplest(ans), tuple([simplest(t) for t in args])
    argnums = tuple([k for k, node_id in enumerate(node_ids) if node_id is not None])
    made = vjp_maker_of(primitive)(argnums, ans, args, kwargs)(conjugate(g))
    for k, d in zip(argnums, made, strict=True):
        if d is None:
            continue
        d, x = conjugate(dense(d)), args[k]
        if d.__class__ is not np.ndarray or d.shape != x.shape or d.dtype != x.dtype:
            d = fitted(d, x)
            d = d if d.dtype == x.dtype else as_type(d, x.dtype)
        accumulate(grads, owned, node_ids[k], d._array if owned.plain and isinstance(d, Tensor) else d)


def _jvp(tangents: Any, values: Any, out: Any, params: Any) -> Any:
    primitive, kwargs = params
    argnums = tuple([k for k, t in enumerate(tangents) if t is not None])
    args, ans = tuple([simplest(t) for t in values]), simplest(out if isinstance(out, Tensor) else out[()])
    gs = [simplest(tangents[k] if isinstance(tangents[k], Tensor) else tangents[k][()]) for k in argnums]
    t = fitted(jvp_maker_of(primitive)(argnums, gs, ans, args, kwargs), ans)
    return t if t.dtype == ans.dtype else as_type(t, ans.dtype)


# It is not in the op table: its kernel is the program's own.
_OP = Op("primitive", lambda *values: values[-2].fun(*values[:-2], **values[-1]))
_OP.entry, _OP.jvp = _entry, _jvp
declare_kind(
    "primitive", Kind("primitive", ids_in_tuple, _metadata, _retracked, lambda e: name_of(e[5]), "steps"), _vjp
)
