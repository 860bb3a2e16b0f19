"""The op record, the op table, rule-by-name reading, and `linear`.

An op is declared once: its kernel, its reverse rule, its forward rule. A rule is one line of
algebra whose parameters name what it needs; only what the rules of the tracked inputs name is
kept. Rules are polymorphic: on plain arrays they run as plain NumPy or CuPy calls, under an outer
recorder the same rules run on Tensors and are recorded, and that is the whole of higher order.

A tape entry is a flat tuple that begins with a code, a string, and the mark of the result. The
code says how to read the rest. It is a string and not the op itself because CPython's cyclic
collector stops looking at tuples that hold only strings, numbers and arrays: on a chain of 1e5
held ops that is 0.09 of 0.95 us per op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.batched import is_batched
from gradmgr._engine.recorder import Stack, current
from gradmgr._engine.tensor import Tensor, wrap

Function = Callable[..., Any]
Rule = Function
Grads = dict[Any, Any]
Owned = set[Any]
# Reads one entry of a tape: adds what the gradient of its result gives to the gradients of its inputs.
Pull = Callable[[tuple[Any, ...], Any, Grads, Owned], None]
# Makes of a kept value and the mark it has on a tape what that tape will know it by.
Retrack = Callable[[Any, Any], Any]


class Op:
    """One declaration of the op table."""

    __slots__ = ("entry", "keeps_inputs", "keeps_out", "kernel", "name", "push")

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name = name
        self.kernel = kernel
        # Whether entries may keep values of inputs, and of the result: where not, nested tapes make no handles.
        self.keeps_inputs = self.keeps_out = True
        # entry(mark, marks, values, out, params) -> the tuple for a tape.
        self.entry: Callable[..., tuple[Any, ...]]
        # push(tangents, values, out, params) -> the tangent of the result.
        self.push: Callable[..., Any]


# The op table. OPS is keyed by op name, the others by entry code.
OPS: dict[str, Op] = {}
PULLS: dict[str, Pull] = {}
# The marks of an entry's inputs, None where one is not tracked.
INPUTS: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {}
# (mark, shape, dtype) of each tracked input.
METADATA: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {}
# The entry with what it keeps passed through a Link, for derivatives that are recorded on the tape itself.
# A code that keeps nothing but constants has none.
RETRACKS: dict[str, Callable[[tuple[Any, ...], Retrack], tuple[Any, ...]]] = {}
# What to call an entry whose code is not the op's name: one of the user's own operations.
NAMES: dict[str, Callable[[tuple[Any, ...]], str]] = {}


def register(op: Op) -> Op:
    """Enter an op in the table; each name stands there once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is declared twice")
    OPS[op.name] = op
    return op


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional parameters; inspect.signature takes ten times as long."""
    code = getattr(function, "__code__", None)
    if code is None:
        import inspect

        return tuple(inspect.signature(function).parameters)
    names: tuple[str, ...] = code.co_varnames
    return names[: code.co_argcount]


def argument_positions(rule: Rule, names: Sequence[str], op: str) -> tuple[int, ...]:
    """Return the positions in `names` of what a rule asks for after its gradient.

    Raises:
        TypeError: the rule asks for something that is not on offer.
    """
    asked = parameters(rule)[1:]
    for name in asked:
        if name not in names:
            raise TypeError(f"a rule of op {op!r} asks for {name!r}; it may ask for {', '.join(names)}")
    return tuple(names.index(name) for name in asked)


def accumulate(grads: Grads, owned: Owned, node_id: Any, g: Any) -> None:
    """Add one contribution: the first by reference, the second into a new buffer, later ones into that."""
    h = grads.get(node_id)
    if h is None:
        grads[node_id] = g
    elif node_id in owned:
        h += g
        grads[node_id] = h
    else:
        grads[node_id] = h + g
        owned.add(node_id)


def op_of(code: str) -> str:
    """Return the name of the op of an entry code: what is left when suffixes, such as the tracked inputs, are gone."""
    name = code
    while name not in OPS:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return code
    return name


class ByExample(set[Any]):
    """Who owns gradient buffers under vmap, where nobody records gradients: see `_tape`."""


def claim(grads: Grads, owned: Owned, node_id: Any, buffer: Any) -> None:
    """Enter a buffer, made for this gradient alone, as its first contribution and ours to add into.

    Where gradients are recorded, `owned` takes no marks by itself (see `_tape`), and a plain array
    could not take what a recorded contribution adds: there the buffer becomes a Tensor. So it does under
    vmap where it is one for all examples, and could not take what differs.
    """
    by_example = isinstance(owned, ByExample) and is_batched(buffer)
    grads[node_id] = buffer if owned.__class__ is set or by_example or isinstance(buffer, Tensor) else wrap(buffer)
    set.add(owned, node_id)


def linear(name: str, kernel: Callable[..., Any], adjoint: Rule) -> Callable[..., Any]:
    """Declare an op linear in its one input: the forward rule is the op itself.

    Args:
        name: the op's name in the table.
        kernel: kernel(array, *params).
        adjoint: adjoint(g, ...) naming any of `shape` and `dtype` (of the input) and the kernel's parameters.

    Returns:
        f(x, *params), which takes Tensors and plain arrays.
    """
    op = Op(name, kernel)
    params_of_kernel = parameters(kernel)[1:]
    wanted = argument_positions(adjoint, ("shape", "dtype", *params_of_kernel), name)

    def call(x: Any, /, *params: Any) -> Any:
        if not isinstance(x, Tensor):
            return kernel(x, *params)
        rec = current()
        if rec.__class__ is Stack:
            return rec.call(op, (x,), params)
        a = x._array
        z = _new(Tensor)
        try:
            z._array = kernel(a, *params)
        except errors.REJECTIONS as error:
            libraries.explain(error, name, a)
            raise
        if rec is not None:
            node_id = x._node_id if x._rec is rec else rec.leaf_ids.get(x)
            if node_id is not None:
                z._rec = rec
                z._node_id = m = object()
                entries = rec.entries
                entries.append((name, m, node_id, a.shape, a.dtype, *params))
                if len(entries) > rec.limit:
                    rec.sweep()
                return z
        z._rec = None
        return z

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        known = e[3:]
        accumulate(grads, owned, e[2], adjoint(g, *[known[k] for k in wanted]))

    def entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        return (name, m, node_ids[0], values[0].shape, values[0].dtype, *params)

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        return call(tangents[0], *params)

    op.entry, op.push = entry, push
    op.keeps_inputs = op.keeps_out = False
    register(op)
    PULLS[name] = pull
    INPUTS[name] = one_input
    METADATA[name] = one_metadata
    return with_name(call, name)


def one_input(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read the input marks of an entry with one input."""
    return entry[2:3]


def one_metadata(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read mark, shape and dtype of an entry with one input."""
    return (entry[2:5],)


def with_name(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give a made function the op's name, in tracebacks and profiles too."""
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function


_new = object.__new__


def zeros(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a plain array of zeros in the library of `like`, an array or a Tensor."""
    a = like._array if isinstance(like, Tensor) else like
    return libraries.namespace(a).zeros(shape, dtype)
