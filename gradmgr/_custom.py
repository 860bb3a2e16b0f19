"""`custom`, `variadic` and `several`: ops that write out both of their rules.

Not hot: one general road serves them, at about twice the cost of an elementwise op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gradmgr._broadcast import fit, spread
from gradmgr._op import (
    FACTS,
    INPUTS,
    LINKS,
    PULLS,
    Grads,
    Link,
    Op,
    Owned,
    Pull,
    Rule,
    accumulate,
    enroll,
    one_fact,
    one_input,
    parameters,
    reads,
    renamed,
)
from gradmgr._recorder import Stack, current
from gradmgr._tensor import Tensor


def apply(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    """Compute an op of which at least one input is a Tensor, and let what is current take it down.

    Returns a Tensor, or a tuple of them from an op of several results.
    """
    rec = current()
    if rec is not None and rec.__class__ is not Stack:
        rec = Stack(((rec,),), ((rec,),))
    elif rec is None:
        rec = _NOBODY
    return rec.call(op, inputs, params)


_NOBODY = Stack((), ())


class Declared:
    """What an op is made of before it is entered in the table: the record, the function, two readers of entries."""

    __slots__ = ("call", "link", "op", "pull")

    def __init__(self, op: Op, call: Callable[..., Any], pull: Pull, link: Callable[..., tuple[Any, ...]]) -> None:
        self.op = op
        self.call = call
        self.pull = pull
        self.link = link


def custom(
    name: str, kernel: Callable[..., Any], *, vjp: Mapping[str, Rule], jvp: Mapping[str, Rule]
) -> Callable[..., Any]:
    """Declare an op, as `declared` does, and enter it in the table under its name."""
    made = declared(name, kernel, vjp=vjp, jvp=jvp)
    enroll(made.op)
    PULLS[name] = made.pull
    INPUTS[name] = third
    FACTS[name] = input_facts
    LINKS[name] = made.link
    return made.call


def declared(name: str, kernel: Callable[..., Any], *, vjp: Mapping[str, Rule], jvp: Mapping[str, Rule]) -> Declared:
    """Declare an op by its kernel and, for each differentiable input, both rules.

    Args:
        name: the op's name in the table.
        kernel: kernel(inputs..., params...); the inputs come first and are the keys of `vjp`, in order.
        vjp: by input, rule(g, ...) naming inputs, `out`, parameters, and `shape` (of that input). Its result
            may still have the broadcast shape of the op's result.
        jvp: by input, rule(t, ...) naming the same; the op's tangent is their sum.

    Returns:
        The parts; `call` is f(inputs..., params...), positional, which takes Tensors and plain arrays.
    """
    op = Op(name, kernel)
    inputs = tuple(vjp)
    arguments = parameters(kernel)
    if arguments[: len(inputs)] != inputs or tuple(jvp) != inputs:
        raise TypeError(f"op {name!r}: vjp and jvp must name the kernel's first arguments, in order")
    count, on_offer = len(inputs), (*arguments, "out", "shape")
    pull_wants = [reads(vjp[v], on_offer, name) for v in inputs]
    push_wants = [reads(jvp[v], on_offer, name) for v in inputs]
    pull_rules, push_rules = tuple(vjp.values()), tuple(jvp.values())
    at_out = len(arguments)

    def call(*arguments: Any) -> Any:
        given, params = arguments[:count], arguments[count:]
        if any(isinstance(t, Tensor) for t in given):
            return apply(op, given, params)
        return kernel(*arguments)

    def entry(m: Any, marks: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        wanted = {k for want, mark in zip(pull_wants, marks, strict=True) if mark is not None for k in want}
        kept = tuple([v if k in wanted else None for k, v in enumerate((*values, *params, out))])
        facts = tuple([None if mark is None else (v.shape, v.dtype) for v, mark in zip(values, marks, strict=True)])
        return (name, m, marks, facts, kept)

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        _, _, marks, facts, env = e
        for rule, want, mark, fact in zip(pull_rules, pull_wants, marks, facts, strict=True):
            if mark is not None:
                d = rule(g, *[fact[0] if k > at_out else env[k] for k in want])
                accumulate(grads, owned, mark, fit(d, *fact))

    def link(e: tuple[Any, ...], to: Link) -> tuple[Any, ...]:
        _, m, marks, facts, env = e
        inputs = [to(v, mark) for v, mark in zip(env, marks, strict=False)]
        return (name, m, marks, facts, (*inputs, *env[count:at_out], to(env[at_out], m)))

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        env = (*values, *params, out)
        total = None
        for t, v, rule, want in zip(tangents, values, push_rules, push_wants, strict=True):
            if t is not None:
                part = spread(rule(t, *[v.shape if k > at_out else env[k] for k in want]), out)
                total = part if total is None else total + part
        return total

    op.entry, op.push = entry, push
    return Declared(op, renamed(call, name), pull, link)


def variadic(
    name: str, kernel: Callable[..., Any], *, vjp: Rule, jvp: Rule, keeps: Literal["nothing", "others"]
) -> Callable[..., Any]:
    """Declare an op of any number of inputs.

    Args:
        name: the op's name in the table.
        kernel: kernel(arrays, *params).
        vjp: vjp(g, k, values, shapes, *params), the cotangent of input k.
        jvp: jvp(tangents, values, *params), a tangent being None where there is none.
        keeps: whether `vjp` reads the values of the other inputs; else `values` is a tuple of None.

    Returns:
        f(sequence, *params), which takes Tensors and plain arrays.
    """

    def on_all(*arguments: Any) -> Any:
        count = arguments[-1]
        return kernel(list(arguments[:count]), *arguments[count:-1])

    op = Op(name, on_all)

    def call(sequence: Sequence[Any], *params: Any) -> Any:
        if any(isinstance(t, Tensor) for t in sequence):
            return apply(op, tuple(sequence), (*params, len(sequence)))
        return kernel(list(sequence), *params)

    def entry(m: Any, marks: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        tracked = [k for k, mark in enumerate(marks) if mark is not None]
        kept = tuple([v if keeps == "others" and tracked != [k] else None for k, v in enumerate(values)])
        return (name, m, marks, tuple([(v.shape, v.dtype) for v in values]), kept, params[:-1])

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        _, _, marks, facts, kept, params = e
        shapes = tuple([shape for shape, _ in facts])
        for k, mark in enumerate(marks):
            if mark is not None:
                accumulate(grads, owned, mark, fit(vjp(g, k, kept, shapes, *params), *facts[k]))

    def link(e: tuple[Any, ...], to: Link) -> tuple[Any, ...]:
        _, m, marks, facts, kept, params = e
        return (name, m, marks, facts, tuple([to(v, mark) for v, mark in zip(kept, marks, strict=True)]), params)

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        return jvp(tangents, values, *params[:-1])

    op.entry, op.push = entry, push
    enroll(op)
    PULLS[name] = pull
    INPUTS[name] = third
    FACTS[name] = input_facts
    LINKS[name] = link
    return renamed(call, name)


def several(
    name: str, kernel: Callable[..., Any], outputs: Sequence[str], *, vjp: Rule, jvp: Rule
) -> Callable[..., Any]:
    """Declare an op of one differentiable input and several results.

    Args:
        name: the op's name in the table.
        kernel: kernel(x, *params), a tuple of arrays, one for each of `outputs`.
        outputs: what the rules call the results.
        vjp: rule(g, ...), where g holds a cotangent for each result, None where there is none. It may name the
            input (as the kernel does), the outputs, parameters, and `shape` (of the input).
        jvp: rule(t, ...) naming the same, which gives a tangent for each result (anything for one of integers).

    Returns:
        f(x, *params), which takes a Tensor or a plain array and gives a tuple of such.
    """
    op = Op(name, kernel)
    arguments = parameters(kernel)
    on_offer = (*arguments, *outputs, "shape")
    pull_want, push_want = reads(vjp, on_offer, name), reads(jvp, on_offer, name)

    def call(x: Any, *params: Any) -> Any:
        return apply(op, (x,), params) if isinstance(x, Tensor) else kernel(x, *params)

    def entry(m: Any, marks: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        (x,) = values
        known = (x, *params, *out, x.shape)
        return (name, m, marks[0], x.shape, x.dtype, tuple([known[k] for k in pull_want]))

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        _, _, mark, shape, dtype, known = e
        cotangents = tuple([g.get(k) for k in range(len(outputs))])
        accumulate(grads, owned, mark, fit(vjp(cotangents, *known), shape, dtype))

    first_output = len(arguments)

    def link(e: tuple[Any, ...], to: Link) -> tuple[Any, ...]:
        *head, mark, shape, dtype, known = e
        marks = [mark if k == 0 else _of_result(k - first_output, len(outputs)) for k in pull_want]
        return (*head, mark, shape, dtype, tuple([to(v, m) for v, m in zip(known, marks, strict=True)]))

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        known = (*values, *params, *out, values[0].shape)
        return jvp(tangents[0], *[known[k] for k in push_want])

    op.entry, op.push = entry, push
    enroll(op)
    PULLS[name] = pull
    INPUTS[name] = one_input
    FACTS[name] = one_fact
    LINKS[name] = link
    return renamed(call, name)


class Result:
    """Stands for the mark of result k of the op of several whose entry is linked."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k


def _of_result(k: int, count: int) -> Result | None:
    return Result(k) if 0 <= k < count else None


def third(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read the input marks of an entry that keeps them as one tuple, None where one is not tracked."""
    return tuple(entry[2])


def input_facts(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read mark, shape and dtype of the tracked inputs of such an entry, its facts being next."""
    return tuple([(mark, *fact) for mark, fact in zip(entry[2], entry[3], strict=True) if mark is not None])
