"""`custom`, `several` and `variadic`: ops that write out both of their rules.

What `custom` and `several` need for each call (which inputs are Tensors, what the rules of the tracked ones ask for)
is known when they are declared, so their functions are generated, like those of `elementwise`. With a loop over
the inputs instead, an op of three inputs took 2.4 us more, forward and backward together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from gradmgr._engine.broadcast import broadcast_like, unbroadcast
from gradmgr._engine.context import Context, compute, current, note_views
from gradmgr._engine.entry import Entry, Kind, Retrack, Vjp, declare_kind, ids_in_tuple, metadata_in_tuple
from gradmgr._engine.op import (
    Op,
    Rule,
    argument_positions,
    note_view,
    parameters,
    register,
    scope_of,
    with_name,
)
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.templates import (
    add_gradient,
    any_tracked,
    compiled_at_first_call,
    numbered,
    op_body,
    targets,
    tuple_of,
)
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._engine.views import ViewOf


def apply(op: Op, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> Any:
    """Compute an op of which at least one input is a Tensor, and let what is current record it.

    Returns a Tensor, or a tuple of them from an op of several results.
    """
    rec = current()
    if rec.__class__ is Context:
        return rec.call(op, inputs, params)
    arrays = [t._array if isinstance(t, Tensor) else t for t in inputs]
    made = compute(op, arrays, params)
    z = tuple([wrap(part) for part in made]) if made.__class__ is tuple else wrap(made)
    if op.view_of is not None:
        note_views(op, inputs[0], arrays[0], z, params)
    if rec is not None and rec.open:  # a lone tape: as Context.call does it, without making a Context
        ids = [
            None if not isinstance(t, Tensor) else t._node_id if t._rec is rec else rec.node_id_of(t) for t in inputs
        ]
        if any(node_id is not None for node_id in ids):
            rec.record_op(op, tuple(ids), tuple(arrays), made, params, z)
    return z


class Declared:
    """What an op is made of before it is entered in the tables: the record, the rules, a reader of entries."""

    __slots__ = ("op", "retrack", "rules")

    def __init__(self, op: Op, rules: _Rules, retrack: Callable[[Entry, Retrack], Entry]) -> None:
        self.op = op
        self.rules = rules
        self.retrack = retrack

    def register(self, faster: Callable[[Vjp], Vjp] = lambda vjp: vjp) -> Callable[..., Any]:
        """Enter the op in the tables under its name; returns its function.

        `faster` makes, of what adds up the results of the rules, a vjp that knows a faster way if there is one.
        """
        name = register(self.op).name
        declare_kind(name, Kind(name, ids_in_tuple, metadata_in_tuple, self.retrack), faster(self.rules.vjp))
        return self.rules.call

    def general_call(self) -> Callable[..., Any]:
        """Return a function that lets `op.entry` make the entries, for ops that replace it."""
        op, count = self.op, self.rules.count

        def call(*arguments: Any) -> Any:
            given = arguments[:count]
            if any(isinstance(t, Tensor) for t in given):
                return apply(op, given, arguments[count:])
            return op.kernel(*arguments)

        return call


def custom(
    name: str,
    kernel: Callable[..., Any],
    *,
    vjp: Mapping[str, Rule],
    jvp: Mapping[str, Rule],
    shared: Rule | None = None,
    view_of: Callable[..., ViewOf] | None = None,
) -> Callable[..., Any]:
    """Declare an op, as `declared` does, and enter it in the tables under its name."""
    return declared(name, kernel, vjp=vjp, jvp=jvp, shared=shared, view_of=view_of).register()


def declared(
    name: str,
    kernel: Callable[..., Any],
    *,
    vjp: Mapping[str, Rule],
    jvp: Mapping[str, Rule],
    shared: Rule | None = None,
    view_of: Callable[..., ViewOf] | None = None,
) -> Declared:
    """Declare an op by its kernel and, for each differentiable input, both rules.

    Args:
        name: the op's name in the table.
        kernel: kernel(inputs..., params...); the inputs come first and are the keys of `vjp`, in order.
        vjp: by input, rule(g, ...) naming inputs, `out`, parameters, `shape` (of that input), and `shared`. Its
            result may still have the broadcast shape of the op's result. It may give None if nothing flows.
        jvp: by input, rule(t, ...) naming the same but `shared`; the op's tangent is their sum.
        shared: rule(g, ...) naming inputs, `out` and parameters: what several of the `vjp` need, computed once.
        view_of: what the result is a view of, see `Op`.

    Returns:
        The parts; what `register` gives is f(inputs..., params...), which takes Tensors and plain arrays.
    """
    op = Op(name, kernel)
    op.view_of = view_of
    rules = _Rules(op, ("out",), vjp, jvp, shared)

    def retrack(e: Entry, to: Retrack) -> Entry:
        return rules.retracked(e, to, (e[1],))

    def sum_of_tangents(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for part in rules.tangents(tangents, (*values, *params, out)):
            part = broadcast_like(part, out)
            total = part if total is None else total + part
        return total

    op.entry, op.jvp = rules.entry, sum_of_tangents
    return Declared(op, rules, retrack)


class _Rules:
    """The rules of an op that has them by input, what they name, and so what an entry keeps.

    An entry is (code, node id, ids of the inputs, metadata, values): the values are inputs, parameters and results,
    each where a rule asks for it; the metadata are shape and dtype of each tracked input that is not kept itself.

    Attributes:
        call: the op's function: on plain arrays the kernel.
        entry: makes an entry of node ids, values and parameters, for the general path.
        vjp: the vjp of an entry; of an op of several results it gets their gradients in a dict.
        scope: the globals of these functions, and these functions by name.
    """

    def __init__(
        self, op: Op, results: tuple[str, ...], vjp: Mapping[str, Rule], jvp: Mapping[str, Rule], shared: Rule | None
    ) -> None:
        name = op.name
        inputs, arguments = tuple(vjp), parameters(op.kernel)
        if arguments[: len(inputs)] != inputs or tuple(jvp) != inputs:
            raise TypeError(f"op {name!r}: vjp and jvp must name the kernel's first arguments, in order")
        values = (*arguments, *results)
        self.name = name
        self.count = len(inputs)
        self.results = len(results)
        self.first_result = len(arguments)
        self.at_shape = len(values)
        on_offer = (*values, "shape")
        offered = on_offer if shared is None else (*on_offer, "shared")
        self.asked = [argument_positions(vjp[v], offered, name) for v in inputs]
        self.jvps = [(jvp[v], argument_positions(jvp[v], on_offer, name)) for v in inputs]
        self.of_shared = () if shared is None else argument_positions(shared, values, name)
        rules = {f"rule{k}": vjp[v] for k, v in enumerate(inputs)}
        self.scope = scope = scope_of(op, __name__, shared_rule=shared, unbroadcast=unbroadcast, **rules)
        self.call = compiled_at_first_call("*arguments", "call", self._call_source, name, name, scope)
        self.entry = compiled_at_first_call(
            "m, node_ids, values, out, params", "entry", self._entry_source, f"entry_{name}", f"entry of {name}", scope
        )
        self.vjp = compiled_at_first_call(
            "e, g, grads, owned", "vjp", self._vjp_source, f"vjp_{name}", f"derivative of {name}", scope
        )

    # ------------------------------------------------------------ sources

    def _names(self) -> list[str]:
        """Return what the sources call the values: inputs, parameters, results."""
        made = ["c"] if self.results == 1 else numbered("c", self.results)
        return [*numbered("a", self.count), *self._params(), *made]

    def _params(self) -> list[str]:
        return [f"p{k}" for k in range(self.count, self.first_result)]

    def _needing(self, k: int) -> list[int]:
        """Return the inputs of which the rules ask for value k."""
        by_shared = k in self.of_shared
        return [v for v, asked in enumerate(self.asked) if k in asked or (by_shared and self.at_shape + 1 in asked)]

    def _is_kept(self, k: int) -> bool:
        """Tell whether an entry keeps input k whenever that is tracked."""
        return k in self._needing(k)

    def _entry_display(self) -> str:
        """Write the display that makes an entry."""
        kept = []
        for k, value in enumerate(self._names()):
            needing = self._needing(k)
            if needing and len(needing) < self.count:
                value = f"{value} if {any_tracked(needing)} else None"
            kept.append(value if needing else "None")
        metadata = [
            "None" if self._is_kept(k) else f"None if i{k} is None else (a{k}.shape, a{k}.dtype)"
            for k in range(self.count)
        ]
        node_ids = tuple_of(numbered("i", self.count))
        return f"({self.name!r}, m, {node_ids}, {tuple_of(metadata)}, {tuple_of(kept)})"

    def _call_source(self) -> str:
        given, params = numbered("v", self.count), self._params()
        arguments = ", ".join([*given, *params])
        source = f"def made({arguments}, /):\n"
        source += "".join([f"    t{k} = isinstance(v{k}, Tensor)\n" for k in range(self.count)])
        source += f"    if not ({' or '.join(numbered('t', self.count))}):\n        return kernel({arguments})\n"
        source += "".join([f"    a{k} = v{k}._array if t{k} else v{k}\n" for k in range(self.count)])
        append = f"            entries.append({self._entry_display()})\n"
        noted = note_view(self.scope["op"])
        return source + op_body(given, append, params=targets(params), results=self.results, **noted)

    def _entry_source(self) -> str:
        params, made = self._params(), numbered("c", self.results)
        source = "def entry(m, node_ids, values, out, params):\n"
        source += f"    {targets(numbered('i', self.count))} = node_ids\n"
        source += f"    {targets(numbered('a', self.count))} = values\n"
        source += f"    {targets(params)} = params\n" if params else ""
        source += f"    {targets(made) if self.results > 1 else 'c'} = out\n"
        return source + f"    return {self._entry_display()}\n"

    def _vjp_source(self) -> str:
        count, values = self.count, self._names()
        node_ids, metadata = targets(numbered("i", count)), targets(numbered("f", count))
        source = "def vjp(e, g, grads, owned):\n"
        source += f"    _, _, ({node_ids}), ({metadata}), ({targets(values)}) = e\n"
        if self.results > 1:
            source += f"    g = {tuple_of([f'g.get({k})' for k in range(self.results)])}\n"
        sharing = [k for k, asked in enumerate(self.asked) if self.at_shape + 1 in asked]
        if sharing:
            arguments = ", ".join(["g", *(values[k] for k in self.of_shared)])
            source += f"    shared = shared_rule({arguments}) if {any_tracked(sharing)} else None\n"
        for k in range(count):
            shape, dtype = (f"a{k}.shape", f"a{k}.dtype") if self._is_kept(k) else (f"f{k}[0]", f"f{k}[1]")
            known = [*values, shape, "shared"]
            source += f"    if i{k} is not None:\n"
            source += f"        d = rule{k}({', '.join(['g', *(known[n] for n in self.asked[k])])})\n"
            source += "        if d is not None:\n" + add_gradient(f"i{k}", shape, dtype, indent=12)
        return source

    # ------------------------------------------------------------ the general path

    def retracked(self, e: Entry, to: Retrack, results: tuple[Any, ...]) -> Entry:
        """Return the entry with what it keeps of inputs and results passed through a Retrack."""
        code, m, node_ids, metadata, values = e
        inputs = [to(v, node_id) for v, node_id in zip(values, node_ids, strict=False)]
        made = [to(v, node_id) for v, node_id in zip(values[self.first_result :], results, strict=True)]
        return (code, m, node_ids, metadata, (*inputs, *values[self.count : self.first_result], *made))

    def tangents(self, tangents: Any, values: tuple[Any, ...]) -> Iterator[Any]:
        """Yield what each input that has a tangent gives to the result."""
        for t, value, (rule, asked) in zip(tangents, values, self.jvps, strict=False):
            if t is not None:
                known = (*values, value.shape)
                yield rule(t, *[known[k] for k in asked])


def variadic(
    name: str,
    kernel: Callable[..., Any],
    *,
    vjp: Rule,
    jvp: Rule,
    keeps: Literal["nothing", "others"],
    view_of: Callable[..., ViewOf] | None = None,
) -> Callable[..., Any]:
    """Declare an op of any number of inputs.

    Its entries are (name, node id, ids of the inputs, (shape, dtype) of each, values or None, parameters).

    Args:
        name: the op's name in the table.
        kernel: kernel(arrays, *params).
        vjp: vjp(g, k, values, shapes, *params), the cotangent of input k.
        jvp: jvp(tangents, values, *params), a tangent being None if there is none.
        keeps: whether `vjp` reads the values of the other inputs; else `values` is a tuple of None.
        view_of: what the result is a view of, see `Op`.

    Returns:
        f(sequence, *params), which takes Tensors and plain arrays.
    """

    def on_all(*arguments: Any) -> Any:
        count = arguments[-1]
        return kernel(list(arguments[:count]), *arguments[count:-1])

    op = Op(name, on_all)
    op.view_of = view_of

    def call(sequence: Sequence[Any], *params: Any) -> Any:
        if any(isinstance(t, Tensor) for t in sequence):
            return apply(op, tuple(sequence), (*params, len(sequence)))
        return kernel(list(sequence), *params)

    def entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> Entry:
        tracked = [k for k, node_id in enumerate(node_ids) if node_id is not None]
        kept = tuple([v if keeps == "others" and tracked != [k] else None for k, v in enumerate(values)])
        return (name, m, node_ids, tuple([(v.shape, v.dtype) for v in values]), kept, params[:-1])

    def vjp_of_entry(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
        _, _, node_ids, metadata, kept, params = e
        shapes = tuple([shape for shape, _ in metadata])
        for k, node_id in enumerate(node_ids):
            if node_id is not None:
                accumulate(grads, owned, node_id, unbroadcast(vjp(g, k, kept, shapes, *params), *metadata[k]))

    def retrack(e: Entry, to: Retrack) -> Entry:
        _, m, node_ids, metadata, kept, params = e
        tracked = tuple([to(v, node_id) for v, node_id in zip(kept, node_ids, strict=True)])
        return (name, m, node_ids, metadata, tracked, params)

    op.entry = entry
    op.jvp = lambda tangents, values, out, params: jvp(tangents, values, *params[:-1])
    register(op)
    declare_kind(name, Kind(name, ids_in_tuple, metadata_in_tuple, retrack), vjp_of_entry)
    return with_name(call, name)


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
        vjp: by input, rule(g, ...), where g holds a cotangent for each result, None if there is none. It may
            name the inputs, the outputs, parameters, `shape` (of that input) and `shared`. It may give None if
            nothing flows. A rule alone is that of the first argument, the only input.
        jvp: by input, rule(t, ...) naming the same but `shared`, which gives a tangent for each result (anything for
            one of integers).
        shared: rule(g, ...) naming inputs, outputs and parameters: what several of the `vjp` need, computed once.

    Returns:
        f(inputs..., params...), which takes Tensors and plain arrays and gives a tuple of such.
    """
    only = parameters(kernel)[0]
    vjps, jvps = (rule if isinstance(rule, Mapping) else {only: rule} for rule in (vjp, jvp))
    op = Op(name, kernel)
    rules = _Rules(op, tuple(outputs), vjps, jvps, shared)
    results = tuple([Result(k) for k in range(len(outputs))])

    def retrack(e: Entry, to: Retrack) -> Entry:
        return rules.retracked(e, to, results)

    def sum_of_tangents(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for parts in rules.tangents(tangents, (*values, *params, *out)):
            total = parts if total is None else [one + other for one, other in zip(total, parts, strict=True)]
        return total

    op.entry, op.jvp = rules.entry, sum_of_tangents
    return Declared(op, rules, retrack).register()


class Result:
    """Stands for the node id of result k of the op of several whose entry is retracked."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k
