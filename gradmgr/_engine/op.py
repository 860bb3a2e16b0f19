"""The op record, the op table, how rules are read, and `linear`.

An op is declared once: its kernel, its reverse rule (vjp), its forward rule (jvp). A rule is one line of algebra
whose parameters name what it needs; only what the rules of the tracked inputs name is kept. Rules are polymorphic: on
plain arrays they run as plain NumPy or CuPy calls, under an outer recorder the same rules run on Tensors and are
recorded, and that is the whole of higher order.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Literal
from weakref import ref

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import Context, current
from gradmgr._engine.entry import Kind, Vjp, declare_kind, metadata_of_one, one_input
from gradmgr._engine.templates import NOTE_VIEW, add_gradient, compiled_at_first_call, op_body
from gradmgr._engine.tensor import Tensor
from gradmgr._engine.views import ViewOf, linked, new_array, view_of

Function = Callable[..., Any]
Rule = Function


class Op:
    """One declaration of the op table.

    Attributes:
        name: its name in the table.
        kernel: kernel(arrays..., params...) computes it.
        entry: entry(node id, ids of the inputs, values, out, params) returns the entry for a tape.
        jvp: jvp(tangents, values, out, params) returns the tangent of the result.
        keeps_inputs, keeps_out: whether entries may keep values of inputs, and of the result. Where not, nested
            tapes need not track what they are given.
        view_of: view_of(first input, its array, array of the result, params...) returns what the result is a view of,
            see `views`; None if it never is one.
        runs: what `jvp` runs, see `Kind`.
    """

    __slots__ = ("entry", "jvp", "keeps_inputs", "keeps_out", "kernel", "name", "runs", "view_of")

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name = name
        self.kernel = kernel
        self.keeps_inputs = self.keeps_out = True
        self.runs: Literal["", "steps", "foreign"] = ""
        self.view_of: Callable[..., ViewOf] | None = None
        self.entry: Callable[..., tuple[Any, ...]]
        self.jvp: Callable[..., Any]


# The op table, by name. How the entries of ops are read is in `entry.KINDS`, by code.
OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Enter an op in the table; each name is there once."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is declared twice")
    OPS[op.name] = op
    return op


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's positional parameters; inspect.signature takes ten times as long."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    code = getattr(function, "__code__", None)
    if code is None:
        import inspect

        return tuple(inspect.signature(function).parameters)
    names: tuple[str, ...] = code.co_varnames
    return names[: code.co_argcount]


def argument_positions(rule: Rule, names: Sequence[str], op: str) -> tuple[int, ...]:
    """Return the positions in `names` of what a rule asks for after its gradient.

    Raises:
        TypeError: the rule asks for a name that is not among `names`.
    """
    asked = parameters(rule)[1:]
    for name in asked:
        if name not in names:
            raise TypeError(f"a rule of op {op!r} asks for {name!r}; it may ask for {', '.join(names)}")
    return tuple([names.index(name) for name in asked])


def scope_of(op: Op, module: str, **more: Any) -> dict[str, Any]:
    """Return what the generated functions of an op may name; `module` becomes their `__module__`."""
    return {
        "__builtins__": builtins,
        "__name__": module,
        "Context": Context,
        "F4": libraries.F4,
        "F8": libraries.F8,
        "REJECTIONS": errors.REJECTIONS,
        "Tensor": Tensor,
        "current": current,
        "explain": libraries.explain,
        "is_differentiable": libraries.is_differentiable,
        "kernel": op.kernel,
        "linked": linked,
        "ndarray": np.ndarray,
        "new": object.__new__,
        "op": op,
        "ref": ref,
        "view_of": op.view_of,
        **more,
    }


def with_name(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give a function the op's name, in tracebacks and profiles too."""
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function


def note_view(op: Op) -> dict[str, Any]:
    """Return the arguments for `op_body` by which the functions of an op set `_view_of` of the result."""
    if op.view_of is view_of:
        return {"then": NOTE_VIEW, "view_of": "v"}
    known = {None: "None", new_array: "()"}
    return {"view_of": known.get(op.view_of, "view_of(x, a0, c, *params)")}


def linear(
    name: str,
    kernel: Callable[..., Any],
    adjoint: Rule,
    *,
    vjp: Vjp | None = None,
    expression: str = "",
    view_of: Callable[..., ViewOf] | None = None,
    along: Rule | None = None,
) -> Callable[..., Any]:
    """Declare an op linear in its one input: the forward rule is the op itself.

    Its entries are (name, node id, id of the input, its shape, its dtype, parameters...).

    Args:
        name: the op's name in the table.
        kernel: kernel(array, *params).
        adjoint: adjoint(g, ...) naming any of `shape` and `dtype` (of the input) and the kernel's parameters.
        vjp: computes the vjp of an entry, where there is a faster way than to add up what the adjoint returns.
        expression: what the kernel returns, of the array `a0` and the tuple `params`: saves the call, 60 ns.
        view_of: what the result is a view of, see `Op`.
        along: along(t, *params) is the forward rule, where tangents are summed with more digits than values.

    Returns:
        f(x, *params), which takes Tensors and plain arrays.
    """
    op = Op(name, kernel)
    op.view_of = view_of
    asked = argument_positions(adjoint, ("shape", "dtype", *parameters(kernel)[1:]), name)
    scope = scope_of(op, __name__, adjoint=adjoint)
    made = f"({name!r}, m, i0, a0.shape, a0.dtype, *params)"

    def source() -> str:
        read = "    if not isinstance(x, Tensor):\n        return kernel(x, *params)\n    a0 = x._array\n"
        append = f"            entries.append({made})\n"
        return f"def made(x, /, *params):\n{read}" + op_body(
            "x", append, result=expression, params="*params, ", is_tensor=True, **note_view(op)
        )

    def vjp_source() -> str:
        arguments = ", ".join(["g", *(f"e[{k + 3}]" for k in asked)])
        return f"def vjp(e, g, grads, owned):\n    i0, d = e[2], adjoint({arguments})\n" + add_gradient("i0")

    def entry(m: Any, node_ids: Any, values: Any, out: Any, params: Any) -> tuple[Any, ...]:
        return (name, m, node_ids[0], values[0].shape, values[0].dtype, *params)

    call = compiled_at_first_call("x, /, *params", "call", source, name, name, scope)
    if vjp is None:
        head, file = "e, g, grads, owned", f"derivative of {name}"
        vjp = compiled_at_first_call(head, "vjp", vjp_source, f"vjp_{name}", file, scope)

    forward = along or call

    def jvp(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        return forward(tangents[0], *params)

    op.entry, op.jvp = entry, jvp
    op.keeps_inputs = op.keeps_out = False
    register(op)
    declare_kind(name, Kind(name, one_input, metadata_of_one), vjp)
    return call


def zeros(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a plain array of zeros in the library of `like`, an array or a Tensor."""
    a = like._array if isinstance(like, Tensor) else like
    return libraries.namespace(a).zeros(shape, dtype)
