"""`custom`, `variadic` and `several`: ops that write out both of their rules.

Not hot: one general road serves them, at about twice the cost of an elementwise op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    parameters,
    reads,
    renamed,
)
from gradmgr._recorder import Stack, compute, current
from gradmgr._tensor import Tensor, wrap


def apply(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    """Compute an op of which at least one input is a Tensor, and let what is current take it down.

    Returns a Tensor, or a tuple of them from an op of several results.
    """
    rec = current()
    if rec.__class__ is Stack:
        return rec.call(op, inputs, params)
    arrays = [t._array if isinstance(t, Tensor) else t for t in inputs]
    made = compute(op, arrays, params)
    z = tuple([wrap(part) for part in made]) if made.__class__ is tuple else wrap(made)
    if rec is not None and rec.open:  # a lone tape: as Stack.call does it, without making a Stack
        marks = [None if not isinstance(t, Tensor) else t._mark if t._rec is rec else rec.known(t) for t in inputs]
        if any(mark is not None for mark in marks):
            rec.note(op, tuple(marks), tuple(arrays), made, params, z)
    return z


class Declared:
    """What an op is made of before it is entered in the table: the record, the function, two readers of entries."""

    __slots__ = ("call", "link", "op", "pull")

    def __init__(self, op: Op, call: Callable[..., Any], pull: Pull, link: Callable[..., tuple[Any, ...]]) -> None:
        self.op = op
        self.call = call
        self.pull = pull
        self.link = link

    def enter(self) -> Callable[..., Any]:
        """Enter the op in the table under its name; returns its function."""
        name = self.op.name
        enroll(self.op)
        PULLS[name] = self.pull
        INPUTS[name] = third
        FACTS[name] = input_facts
        LINKS[name] = self.link
        return self.call


def custom(
    name: str,
    kernel: Callable[..., Any],
    *,
    vjp: Mapping[str, Rule],
    jvp: Mapping[str, Rule],
    shared: Rule | None = None,
) -> Callable[..., Any]:
    """Declare an op, as `declared` does, and enter it in the table under its name."""
    return declared(name, kernel, vjp=vjp, jvp=jvp, shared=shared).enter()


def declared(
    name: str,
    kernel: Callable[..., Any],
    *,
    vjp: Mapping[str, Rule],
    jvp: Mapping[str, Rule],
    shared: Rule | None = None,
) -> Declared:
    """Declare an op by its kernel and, for each differentiable input, both rules.

    Args:
        name: the op's name in the table.
        kernel: kernel(inputs..., params...); the inputs come first and are the keys of `vjp`, in order.
        vjp: by input, rule(g, ...) naming inputs, `out`, parameters, `shape` (of that input), and `shared`. Its
            result may still have the broadcast shape of the op's result.
        jvp: by input, rule(t, ...) naming the same but `shared`; the op's tangent is their sum.
        shared: rule(g, ...) naming inputs, `out` and parameters: what several of the `vjp` need, computed once.

    Returns:
        The parts; `call` is f(inputs..., params...), positional, which takes Tensors and plain arrays.
    """
    rules = _Rules(name, kernel, ("out",), vjp, jvp, shared)

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        rules.pull(e, g, grads, owned)

    def link(e: tuple[Any, ...], to: Link) -> tuple[Any, ...]:
        return rules.linked(e, to, (e[1],))

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for part in rules.tangents(tangents, (*values, *params, out)):
            part = spread(part, out)
            total = part if total is None else total + part
        return total

    op = Op(name, kernel)
    op.entry, op.push = rules.entry, push
    return Declared(op, renamed(rules.caller(op), name), pull, link)


class _Rules:
    """The rules of an op that has them by input: what they name, and so what an entry keeps."""

    def __init__(
        self,
        name: str,
        kernel: Callable[..., Any],
        results: tuple[str, ...],
        vjp: Mapping[str, Rule],
        jvp: Mapping[str, Rule],
        shared: Rule | None,
    ) -> None:
        inputs, arguments = tuple(vjp), parameters(kernel)
        if arguments[: len(inputs)] != inputs or tuple(jvp) != inputs:
            raise TypeError(f"op {name!r}: vjp and jvp must name the kernel's first arguments, in order")
        values = (*arguments, *results)
        self.name = name
        self.count = len(inputs)
        self.first_result = len(arguments)
        self.at_shape = len(values)
        on_offer = (*values, "shape")
        self.pulls = [
            (vjp[v], reads(vjp[v], on_offer if shared is None else (*on_offer, "shared"), name)) for v in inputs
        ]
        self.pushes = [(jvp[v], reads(jvp[v], on_offer, name)) for v in inputs]
        self.shared = None if shared is None else (shared, reads(shared, values, name))
        self.keeps: dict[tuple[bool, ...], tuple[int, ...]] = {}  # by which inputs are tracked: what entries keep

    def caller(self, op: Op) -> Callable[..., Any]:
        """Make the op's function: on plain arrays the kernel."""
        count, kernel = self.count, op.kernel

        def call(*arguments: Any) -> Any:
            given = arguments[:count]
            for t in given:  # any(...) of a generator takes twice as long
                if isinstance(t, Tensor):
                    return apply(op, given, arguments[count:])
            return kernel(*arguments)

        return call

    def entry(self, m: Any, marks: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        """Make the entry of a tape, with what the rules of the tracked inputs name."""
        tracked = tuple([mark is not None for mark in marks])
        known = (*values, *params, *out) if out.__class__ is tuple else (*values, *params, out)
        keep = self.keeps.get(tracked)
        kept: list[Any] = [None] * self.at_shape
        for k in self._keeping(tracked) if keep is None else keep:
            kept[k] = known[k]
        facts = tuple([None if mark is None else (v.shape, v.dtype) for v, mark in zip(values, marks, strict=True)])
        return (self.name, m, marks, facts, tuple(kept))

    def _keeping(self, tracked: tuple[bool, ...]) -> tuple[int, ...]:
        """Tell which values the rules of the tracked inputs name; found once, as it took a third of an entry's time."""
        wanted = {k for (_, want), is_tracked in zip(self.pulls, tracked, strict=True) if is_tracked for k in want}
        if self.shared is not None and self.at_shape + 1 in wanted:
            wanted.update(self.shared[1])
        self.keeps[tracked] = keep = tuple([k for k in range(self.at_shape) if k in wanted])
        return keep

    def pull(self, e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        """Give the gradient of the result, or a tuple of those of the results, to the inputs."""
        _, _, marks, facts, env = e
        at_shape, shared, pending = self.at_shape, None, self.shared
        for (rule, want), mark, fact in zip(self.pulls, marks, facts, strict=True):
            if mark is None:
                continue
            if pending is not None and at_shape + 1 in want:
                (rule_of_all, needs), pending = pending, None
                shared = rule_of_all(g, *[env[k] for k in needs])
            known = (*env, fact[0], shared)
            d = rule(g, *[known[k] for k in want])
            if d is not None:
                accumulate(grads, owned, mark, fit(d, *fact))

    def linked(self, e: tuple[Any, ...], to: Link, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the entry with what it keeps of inputs and results passed through a link."""
        _, m, marks, facts, env = e
        inputs = [to(v, mark) for v, mark in zip(env, marks, strict=False)]
        made = [to(v, mark) for v, mark in zip(env[self.first_result :], results, strict=True)]
        return (self.name, m, marks, facts, (*inputs, *env[self.count : self.first_result], *made))

    def tangents(self, tangents: Any, env: tuple[Any, ...]) -> Iterator[Any]:
        """Yield what each input that has a tangent gives to the result."""
        for t, value, (rule, want) in zip(tangents, env, self.pushes, strict=False):
            if t is not None:
                known = (*env, value.shape)
                yield rule(t, *[known[k] for k in want])


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
    name: str,
    kernel: Callable[..., Any],
    outputs: Sequence[str],
    *,
    vjp: Rule | Mapping[str, Rule],
    jvp: Rule | Mapping[str, Rule],
    shared: Rule | None = None,
) -> Callable[..., Any]:
    """Declare an op of several results.

    One of them may be there for the rules alone: what the kernel found on its way and the rules would
    have to find again. A caller drops it; it is a result like others, so derivatives of any order are right.

    Args:
        name: the op's name in the table.
        kernel: kernel(inputs..., params...), a tuple of arrays, one for each of `outputs`.
        outputs: what the rules call the results.
        vjp: by input, rule(g, ...), where g holds a cotangent for each result, None where there is none. It may
            name the inputs, the outputs, parameters, `shape` (of that input) and `shared`. It may give None where
            nothing flows. A rule alone is that of the first argument, the only input.
        jvp: by input, rule(t, ...) naming the same but `shared`, which gives a tangent for each result (anything for
            one of integers).
        shared: rule(g, ...) naming inputs, outputs and parameters: what several of the `vjp` need, computed once.

    Returns:
        f(inputs..., params...), which takes Tensors and plain arrays and gives a tuple of such.
    """
    only = parameters(kernel)[0]
    pulls, pushes = (rule if isinstance(rule, Mapping) else {only: rule} for rule in (vjp, jvp))
    rules, count = _Rules(name, kernel, tuple(outputs), pulls, pushes, shared), len(outputs)
    results = tuple([Result(k) for k in range(count)])

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        rules.pull(e, tuple([g.get(k) for k in range(count)]), grads, owned)

    def link(e: tuple[Any, ...], to: Link) -> tuple[Any, ...]:
        return rules.linked(e, to, results)

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for parts in rules.tangents(tangents, (*values, *params, *out)):
            total = parts if total is None else [one + other for one, other in zip(total, parts, strict=True)]
        return total

    op = Op(name, kernel)
    op.entry, op.push = rules.entry, push
    return Declared(op, renamed(rules.caller(op), name), pull, link).enter()


class Result:
    """Stands for the mark of result k of the op of several whose entry is linked."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k


def third(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read the input marks of an entry that keeps them as one tuple, None where one is not tracked."""
    return tuple(entry[2])


def input_facts(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read mark, shape and dtype of the tracked inputs of such an entry, its facts being next."""
    return tuple([(mark, *fact) for mark, fact in zip(entry[2], entry[3], strict=True) if mark is not None])
