"""`custom`, `variadic` and `several`: ops that write out both of their rules.

What `custom` and `several` need for each call (which inputs are Tensors, what the rules of the tracked ones
ask for) is known when they are declared, so that their functions are made of text, like those of
`_elementwise`. With a loop over the inputs instead, an op of three inputs took 2.4 us more, forth and back.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_like, unbroadcast
from gradmgr._engine.op import (
    INPUTS,
    METADATA,
    PULLS,
    RETRACKS,
    Grads,
    Op,
    Owned,
    Pull,
    Retrack,
    Rule,
    accumulate,
    argument_positions,
    parameters,
    register,
    with_name,
)
from gradmgr._engine.recorder import Stack, compute, current
from gradmgr._engine.templates import build_function, compile_template, show, template_scope
from gradmgr._engine.tensor import Tensor, wrap


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
        node_ids = [
            None if not isinstance(t, Tensor) else t._node_id if t._rec is rec else rec.node_id_of(t) for t in inputs
        ]
        if any(node_id is not None for node_id in node_ids):
            rec.record_op(op, tuple(node_ids), tuple(arrays), made, params, z)
    return z


class Declared:
    """What an op is made of before it is entered in the table: the record, the rules, a reader of entries."""

    __slots__ = ("link", "op", "rules")

    def __init__(self, rules: _Rules, link: Callable[..., tuple[Any, ...]]) -> None:
        self.op = rules.op
        self.rules = rules
        self.link = link

    def enter(self) -> Callable[..., Any]:
        """Enter the op in the table under its name; returns its function."""
        name = self.op.name
        register(self.op)
        PULLS[name] = self.rules.pull
        INPUTS[name] = input_node_ids
        METADATA[name] = input_metadata
        RETRACKS[name] = self.link
        return self.rules.call()


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
        The parts; what `enter` gives is f(inputs..., params...), which takes Tensors and plain arrays.
    """
    op = Op(name, kernel)
    rules = _Rules(op, ("out",), vjp, jvp, shared)

    def link(e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
        return rules.retracked(e, to, (e[1],))

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for part in rules.tangents(tangents, (*values, *params, out)):
            part = broadcast_like(part, out)
            total = part if total is None else total + part
        return total

    op.entry, op.push = rules.entry, push
    return Declared(rules, link)


class _Rules:
    """The rules of an op that has them by input: what they name, and so what an entry keeps.

    An entry is (code, mark, marks of the inputs, facts, values): the values are inputs, parameters and results,
    each where a rule asks for it; the facts are shape and dtype of each tracked input that is not kept itself.
    """

    def __init__(
        self,
        op: Op,
        results: tuple[str, ...],
        vjp: Mapping[str, Rule],
        jvp: Mapping[str, Rule],
        shared: Rule | None,
    ) -> None:
        name = op.name
        inputs, arguments = tuple(vjp), parameters(op.kernel)
        if arguments[: len(inputs)] != inputs or tuple(jvp) != inputs:
            raise TypeError(f"op {name!r}: vjp and jvp must name the kernel's first arguments, in order")
        values = (*arguments, *results)
        self.op = op
        self.count = len(inputs)
        self.results = len(results)
        self.first_result = len(arguments)
        self.at_shape = len(values)
        on_offer = (*values, "shape")
        self.asked = [
            argument_positions(vjp[v], on_offer if shared is None else (*on_offer, "shared"), name) for v in inputs
        ]
        self.pushes = [(jvp[v], argument_positions(jvp[v], on_offer, name)) for v in inputs]
        self.of_shared = () if shared is None else argument_positions(shared, values, name)
        self.make: Callable[..., tuple[Any, ...]] | None = None
        self.give: Pull | None = None
        self.scope = template_scope(
            op,
            __name__,
            is_differentiable=libraries.is_differentiable,
            rule_of_all=shared,
            **{f"rule{k}": vjp[v] for k, v in enumerate(inputs)},
        )

    # ------------------------------------------------------------ what the texts are filled with

    def _names(self) -> list[str]:
        """Return what the texts call the values: inputs, parameters, results."""
        params = [f"p{k}" for k in range(self.count, self.first_result)]
        return [*_numbered("a", self.count), *params, *_numbered("c", self.results)]

    def _needing(self, k: int) -> list[int]:
        """Return the inputs of which the rules ask for value k."""
        by_shared = k in self.of_shared
        return [v for v, asked in enumerate(self.asked) if k in asked or (by_shared and self.at_shape + 1 in asked)]

    def _is_kept(self, k: int) -> bool:
        """Tell whether an entry keeps input k whenever that is tracked."""
        return k in self._needing(k)

    def _entry(self) -> str:
        """Write the display that makes an entry."""
        kept = []
        for k, value in enumerate(self._names()):
            needing = self._needing(k)
            if needing and len(needing) < self.count:
                value = f"{value} if {_any_tracked(needing)} else None"
            kept.append(value if needing else "None")
        node_ids = _numbered("i", self.count)
        facts = [
            "None" if self._is_kept(k) else f"None if i{k} is None else (a{k}.shape, a{k}.dtype)"
            for k in range(self.count)
        ]
        return f'("@", m, {_tuple(node_ids)}, {_tuple(facts)}, {_tuple(kept)})'

    def call_source(self) -> str:
        """Write the op's function: on plain arrays the kernel."""
        count = self.count
        given, params = _numbered("v", count), self._names()[count : self.first_result]
        arguments = ", ".join([*given, *params])
        arrays = ", ".join([*_numbered("a", count), *params])
        source = f"def made({arguments}, /):\n"
        source += "".join([f"    t{k} = isinstance(v{k}, Tensor)\n" for k in range(count)])
        source += f"    if not ({' or '.join(_numbered('t', count))}):\n        return kernel({arguments})\n"
        source += _LOOK.format(given=_tuple(given), params=_tuple(params))
        source += "".join([f"    a{k} = v{k}._array if t{k} else v{k}\n" for k in range(count)])
        source += _COMPUTE.format(arrays=arrays, inputs=", ".join(_numbered("a", count)))
        made = _numbered("c", self.results)
        if self.results > 1:
            source += f"    {', '.join(made)} = c\n"
        else:
            source += "    c0 = c\n"
        for k in range(self.results):
            source += f"    z{k} = new(Tensor)\n    z{k}._array = c{k}\n    z{k}._rec = None\n"
        source += "    if rec is not None:\n"
        for k in range(count):
            source += (
                f"        i{k} = (v{k}._node_id if v{k}._rec is rec else rec.leaf_ids.get(v{k})) if t{k} else None\n"
            )
        source += _NOTE.format(tracked=_any_tracked(range(count)), entry=self._entry())
        if self.results == 1:
            return source + "            z0._rec = rec\n            z0._node_id = m\n" + _SWEEP + "    return z0\n"
        source += "".join([_RESULT.format(k=k) for k in range(self.results)]) + _SWEEP
        return source + f"    return {', '.join(_numbered('z', self.results))}\n"

    def entry_source(self) -> str:
        """Write what makes an entry of marks, values and parameters, for the slow road."""
        count = self.count
        params, made = self._names()[count : self.first_result], _numbered("c", self.results)
        source = "def entry(m, marks, values, out, params):\n"
        source += f"    {_target(_numbered('i', count))} = marks\n    {_target(_numbered('a', count))} = values\n"
        source += f"    {_target(params)} = params\n" if params else ""
        source += f"    {_target(made) if self.results > 1 else 'c0'} = out\n"
        return source + f"    return {self._entry()}\n"

    def pull_source(self) -> str:
        """Write what gives the gradient of the result, or a tuple of those of the results, to the inputs."""
        count, values = self.count, self._names()
        node_ids, facts = _target(_numbered("i", count)), _target(_numbered("f", count))
        source = f"def pull(e, g, grads, owned):\n    _, _, ({node_ids}), ({facts}), ({_target(values)}) = e\n"
        if self.results > 1:
            source += f"    g = {_tuple([f'g.get({k})' for k in range(self.results)])}\n"
        sharing = [k for k, asked in enumerate(self.asked) if self.at_shape + 1 in asked]
        if sharing:
            arguments = ", ".join(["g", *(values[k] for k in self.of_shared)])
            source += f"    shared = rule_of_all({arguments}) if {_any_tracked(sharing)} else None\n"
        for k in range(count):
            shape, dtype = (f"a{k}.shape", f"a{k}.dtype") if self._is_kept(k) else (f"f{k}[0]", f"f{k}[1]")
            known = [*values, shape, "shared"]
            rule = f"rule{k}({', '.join(['g', *(known[n] for n in self.asked[k])])})"
            source += _GIVE.format(k=k, rule=rule, shape=shape, dtype=dtype)
        return source

    # ------------------------------------------------------------ the functions

    def call(self) -> Callable[..., Any]:
        """Return the op's function, which is compiled when it is first called."""
        name = self.op.name

        def first(*arguments: Any) -> Any:
            source = self.call_source()
            show(source, name, name)
            call.__code__ = build_function(source, name, name, self.scope).__code__
            return call(*arguments)

        code = compile_template(_STUB).__code__.replace(co_name=name, co_qualname=name)
        call = types.FunctionType(code, self.scope, name)
        self.scope["first"] = first
        return call

    def general_call(self) -> Callable[..., Any]:
        """Return a function that lets `op.entry` make the entries; for whoever changes these."""
        op, count = self.op, self.count

        def call(*arguments: Any) -> Any:
            given = arguments[:count]
            if any(isinstance(t, Tensor) for t in given):
                return apply(op, given, arguments[count:])
            return op.kernel(*arguments)

        return call

    def entry(self, *noted: Any) -> tuple[Any, ...]:
        """Make an entry; the first time this compiles what makes them, and stands in the op's place from then on."""
        make = self.make
        if make is None:
            self.make = make = self._made(self.entry_source(), "entry")
            if self.op.entry == self.entry:
                self.op.entry = make
        made: tuple[Any, ...] = make(*noted)
        return made

    def pull(self, e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        """Pull an entry; the first time this compiles what pulls them, and stands in the table from then on."""
        give = self.give
        if give is None:
            self.give = give = self._made(self.pull_source(), "pull")
            if PULLS.get(self.op.name) == self.pull:
                PULLS[self.op.name] = give
        give(e, g, grads, owned)

    def _made(self, source: str, kind: str) -> Callable[..., Any]:
        name, file = self.op.name, f"{kind} of {self.op.name}"
        show(source, file, name)
        return build_function(source, f"{kind}_{name}", file, self.scope)

    def retracked(self, e: tuple[Any, ...], to: Retrack, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the entry with what it keeps of inputs and results passed through a link."""
        code, m, node_ids, facts, env = e
        inputs = [to(v, node_id) for v, node_id in zip(env, node_ids, strict=False)]
        made = [to(v, node_id) for v, node_id in zip(env[self.first_result :], results, strict=True)]
        return (code, m, node_ids, facts, (*inputs, *env[self.count : self.first_result], *made))

    def tangents(self, tangents: Any, env: tuple[Any, ...]) -> Iterator[Any]:
        """Yield what each input that has a tangent gives to the result."""
        for t, value, (rule, want) in zip(tangents, env, self.pushes, strict=False):
            if t is not None:
                known = (*env, value.shape)
                yield rule(t, *[known[k] for k in want])


def _numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{k}" for k in range(count)]


def _target(names: Sequence[str]) -> str:
    return "".join([f"{name}, " for name in names])


def _tuple(parts: Sequence[str]) -> str:
    return f"({_target(parts)})" if parts else "()"


def _any_tracked(inputs: Iterable[int]) -> str:
    return " or ".join([f"i{k} is not None" for k in inputs])


# ---------------------------------------------------------------- the texts

_STUB = "def made(*arguments):\n    return first(*arguments)\n"

_LOOK = """\
    rec = current()
    if rec.__class__ is Stack:
        return rec.call(op, {given}, {params})
"""

_COMPUTE = """\
    try:
        c = kernel({arrays})
    except REJECTIONS as error:
        explain(error, op.name, {inputs})
        raise
"""

_NOTE = """\
        if {tracked}:
            m = object()
            entries = rec.entries
            entries.append({entry})
"""

# A result of integers carries no gradient. The common dtypes are told by identity, as asking costs a call.
_RESULT = """\
            t = c{k}.dtype
            if t is F4 or t is F8 or is_differentiable(t):
                z{k}._rec = rec
                z{k}._node_id = own = object()
                entries.append(("result", own, m, {k}))
"""

_SWEEP = """\
            if len(entries) > rec.limit:
                rec.sweep()
"""

_GIVE = """\
    if i{k} is not None:
        d = {rule}
        if d is not None:
            if d.dtype is not {dtype} or d.shape != {shape}:
                d = unbroadcast(d, {shape}, {dtype})
            if i{k} not in grads:
                grads[i{k}] = d
            elif i{k} in owned:
                h = grads[i{k}]
                h += d
                grads[i{k}] = h
            else:
                grads[i{k}] = grads[i{k}] + d
                owned.add(i{k})
"""


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

    def entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        tracked = [k for k, node_id in enumerate(node_ids) if node_id is not None]
        kept = tuple([v if keeps == "others" and tracked != [k] else None for k, v in enumerate(values)])
        return (name, m, node_ids, tuple([(v.shape, v.dtype) for v in values]), kept, params[:-1])

    def pull(e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        _, _, node_ids, facts, kept, params = e
        shapes = tuple([shape for shape, _ in facts])
        for k, node_id in enumerate(node_ids):
            if node_id is not None:
                accumulate(grads, owned, node_id, unbroadcast(vjp(g, k, kept, shapes, *params), *facts[k]))

    def link(e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
        _, m, node_ids, facts, kept, params = e
        return (
            name,
            m,
            node_ids,
            facts,
            tuple([to(v, node_id) for v, node_id in zip(kept, node_ids, strict=True)]),
            params,
        )

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        return jvp(tangents, values, *params[:-1])

    op.entry, op.push = entry, push
    register(op)
    PULLS[name] = pull
    INPUTS[name] = input_node_ids
    METADATA[name] = input_metadata
    RETRACKS[name] = link
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
    op, count = Op(name, kernel), len(outputs)
    rules = _Rules(op, tuple(outputs), pulls, pushes, shared)
    results = tuple([Result(k) for k in range(count)])

    def link(e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
        return rules.retracked(e, to, results)

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        total = None
        for parts in rules.tangents(tangents, (*values, *params, *out)):
            total = parts if total is None else [one + other for one, other in zip(total, parts, strict=True)]
        return total

    op.entry, op.push = rules.entry, push
    return Declared(rules, link).enter()


class Result:
    """Stands for the mark of result k of the op of several whose entry is linked."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k


def input_node_ids(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read the input marks of an entry that keeps them as one tuple, None where one is not tracked."""
    return tuple(entry[2])


def input_metadata(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    """Read mark, shape and dtype of the tracked inputs of such an entry: its facts are next, or the input is kept."""
    found = []
    for k, (node_id, fact) in enumerate(zip(entry[2], entry[3], strict=True)):
        if node_id is not None:
            shape, dtype = fact or (entry[4][k].shape, entry[4][k].dtype)
            found.append((node_id, shape, dtype))
    return tuple(found)
