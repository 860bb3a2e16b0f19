"""Generated functions: source text that is filled in with names and compiled when the function is first called.

The functions of ops are generated, as attrs and dataclasses generate `__init__`, because what a call must know (how
many inputs there are, what an entry keeps) is known when the op is declared. Measured on CPython 3.11 with 8 float32
elements: a closure that tests flags instead takes 40 to 60 ns more of about 620.

The pieces below are shared by all op functions. In them `a0`, `a1`, ... are the arrays of the inputs, `i0`, `i1`,
... their node ids (None if not tracked), `t0`, `t1`, ... whether they are Tensors, `c` the array or arrays
computed, `m` the node id of the result, `rec` the current recorder or context. The inputs as given are called as
`help` shows them: `x` and `y`; `v0`, `v1`, ... where their number varies.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# ---------------------------------------------------------------- pieces of op functions

_ENTER = """\
    rec = current()
    if rec.__class__ is Context:
        if not rec.is_idle:
            return rec.call({op}, {inputs}{params})
        rec = None
"""

_COMPUTE = """\
    try:
        c = {result}
    except REJECTIONS as error:
        explain(error, op.name, {arrays})
        raise
"""

_RECORD = """\
    z = new(Tensor)
    z._array = c
    z._view_of = {view_of}
    if rec is not None:
{lookups}        if {tracked}:
            z._rec = rec
            z._node_id = m = object()
            entries = rec.entries
{append}            if len(entries) > rec.limit:
                rec.sweep()
            return z
    z._rec = None
    return z
"""

# A result of integers carries no gradient. The common dtypes are compared by identity, which costs no call.
_RECORD_SEVERAL = """\
    {results} = c
{tensors}    if rec is not None:
{lookups}        if {tracked}:
            m = object()
            entries = rec.entries
{append}{track}            if len(entries) > rec.limit:
                rec.sweep()
    return {made}
"""

_NEW_RESULT = """\
    z{k} = new(Tensor)
    z{k}._array = c{k}
    z{k}._rec = None
    z{k}._view_of = {view_of}
"""

_TRACK_RESULT = """\
            t = c{k}.dtype
            if t is F4 or t is F8 or is_differentiable(t):
                z{k}._rec = rec
                z{k}._node_id = own = object()
                entries.append(("result", own, m, {k}))
"""

# What the result of an op that makes views is a view of: `views.view_of`, written out for arrays of NumPy's.
NOTE_VIEW = """\
    v, b = x._view_of, c.base
    is_array = c.ndim if a0.ndim else v is not None
    if is_array and b is not None and (b is a0 or b is a0.base) and a0.__class__ is ndarray:
        v = linked(x) if v and v[0]() is None else (ref(x), v, None)
    else:
        v = view_of(x, a0, c)
"""

# What a vjp does with d, the contribution to one input: brings it to the input's shape and dtype, and adds it up.
_UNBROADCAST = """\
{indent}if d.dtype is not {dtype}{or_shape}:
{indent}    d = unbroadcast(d, {shape}, {dtype})
"""

_ADD_GRADIENT = """\
{indent}if {node_id} not in grads:
{indent}    grads[{node_id}] = d
{indent}elif {node_id} in owned:
{indent}    h = grads[{node_id}]
{indent}    h += d
{indent}    grads[{node_id}] = h
{indent}else:
{indent}    grads[{node_id}] = grads[{node_id}] + d
{indent}    owned.own_sum({node_id})
"""


def numbered(letter: str, count: int) -> list[str]:
    """Return names such as a0, a1, ..."""
    return [f"{letter}{k}" for k in range(count)]


def targets(names: Iterable[str]) -> str:
    """Write names to unpack into, each with a comma."""
    return "".join([f"{name}, " for name in names])


def tuple_of(parts: Sequence[str]) -> str:
    """Write a tuple display."""
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def any_tracked(inputs: Iterable[int]) -> str:
    """Write the test whether one of these inputs is tracked."""
    return " or ".join([f"i{k} is not None" for k in inputs])


def lookup(k: int, v: str, *, is_tensor: bool = False) -> str:
    """Write the look-up of the node id of input k, called v; `is_tensor` says that it is known to be a Tensor."""
    found = f"{v}._node_id if {v}._rec is rec else rec.leaf_ids.get({v})"
    return f"i{k} = {found}" if is_tensor else f"i{k} = ({found}) if t{k} else None"


def op_body(
    inputs: Sequence[str],
    append: str,
    *,
    op: str = "op",
    result: str = "",
    params: str = "",
    results: int = 1,
    is_tensor: bool = False,
    then: str = "",
    view_of: str = "None",
) -> str:
    """Write the body of an op function, from the point on where its inputs are read.

    Args:
        inputs: what the function calls its inputs; `help` shows these names.
        append: the lines that append an entry to `entries`, indented by 12.
        op: what the scope calls the op that the general path is to compute.
        result: the expression that computes c; by default the kernel's call.
        params: the names of the op's further arguments, each with a comma.
        results: number of results.
        is_tensor: whether all inputs are known to be Tensors.
        then: lines that follow when c is computed, indented by 4.
        view_of: the expression of `_view_of` of each result.
    """
    arrays = ", ".join(numbered("a", len(inputs)))
    enter = _ENTER.format(op=op, inputs=tuple_of(inputs), params=f", ({params})" if params else "")
    compute = _COMPUTE.format(result=result or f"kernel({arrays}, {params})", arrays=arrays)
    lookups = "".join([f"        {lookup(k, v, is_tensor=is_tensor)}\n" for k, v in enumerate(inputs)])
    tracked = any_tracked(range(len(inputs)))
    if results == 1:
        fill = {"lookups": lookups, "tracked": tracked, "append": append, "view_of": view_of}
        return enter + compute + then + _RECORD.format(**fill)
    numbers = range(results)
    tensors = "".join([_NEW_RESULT.format(k=k, view_of=view_of) for k in numbers])
    return (
        enter
        + compute
        + _RECORD_SEVERAL.format(
            results=", ".join(numbered("c", results)),
            tensors=tensors,
            lookups=lookups,
            tracked=tracked,
            append=append,
            track="".join([_TRACK_RESULT.format(k=k) for k in numbers]),
            made=", ".join(numbered("z", results)),
        )
    )


def add_gradient(
    node_id: str, shape: str = "", dtype: str = "", indent: int = 4, *, may_be_broadcast: bool = True
) -> str:
    """Write the lines that add `d` to the gradient of an input, unbroadcast where shape and dtype are given.

    Where it cannot be broadcast, as of an op of one input, the shapes are not compared: 45 ns of about 1,000.
    """
    or_shape = f" or d.shape != {shape}" if may_be_broadcast else ""
    fill = {"node_id": node_id, "shape": shape, "dtype": dtype, "indent": " " * indent, "or_shape": or_shape}
    return (_UNBROADCAST.format(**fill) if shape else "") + _ADD_GRADIENT.format(**fill)


# ---------------------------------------------------------------- ops under nested tapes

# What `Context.call` does for any op and any recorders, for ops of few inputs under nested tapes: most of what second
# order meets. With the methods of Recorder and the loops written out, two tapes and 8 float32 elements take 2.0 us
# instead of 3.0, where a lone tape takes 0.67.
_NESTED = """\
def call(self, op, {inputs}):
{read}{compute}    if c.__class__ is tuple:
        return self.record(op, {given}, [{arrays}], c, ())
    z = new(Tensor)
    z._array = c
    z._rec = None
    z._view_of = None
    outer = []
    for rec in self.tapes:
        if not rec.open:
            continue
{lookups}        if rec.has_overflow_ids:
{overflow}        if not ({tracked}):
            continue
        m, entries = object(), rec.entries
        if outer:
            values = {handles} if op.keeps_inputs else {values}
            out = handle(c, {count}, outer) if op.keeps_out else c
            entries.append(op.entry(m, {node_ids}, values, out, ()))
            if len(outer) == 1:
                z._overflow_ids = {{rec: m}}
                rec.has_overflow_ids = True
            else:
                rec.track(z, m)
        else:
            entries.append(op.entry(m, {node_ids}, {values}, c, ()))
            z._node_id = m
            z._rec = rec
        if len(entries) > rec.limit:
            rec.sweep()
        outer.append((rec, {ids_of_all}))
    return z
"""


def nested_call(count: int) -> str:
    """Write the method of Context that computes an op of so many inputs, and no parameters, under nested tapes."""
    numbers, arrays = range(count), numbered("a", count)
    read = "".join(
        [f"    t{k} = isinstance(v{k}, Tensor)\n    a{k} = v{k}._array if t{k} else v{k}\n" for k in numbers]
    )
    overflow = [
        f"            if i{k} is None and t{k}:\n                i{k} = overflow_id(v{k}, rec)\n" for k in numbers
    ]
    return _NESTED.format(
        inputs=", ".join(numbered("v", count)),
        read=read,
        compute=_COMPUTE.format(result=f"op.kernel({', '.join(arrays)})", arrays=", ".join(arrays)),
        given=tuple_of(numbered("v", count)),
        arrays=", ".join(arrays),
        lookups="".join([f"        {lookup(k, f'v{k}')}\n" for k in numbers]),
        overflow="".join(overflow),
        tracked=any_tracked(numbers),
        handles=tuple_of([f"handle(a{k}, {k}, outer)" for k in numbers]),
        values=tuple_of(arrays),
        count=count,
        node_ids=tuple_of(numbered("i", count)),
        ids_of_all=tuple_of([*numbered("i", count), "m"]),
    )


# ---------------------------------------------------------------- compiling

# The functions called until the first call compiles an op's own, by parameters and key: ops share them, which halves
# the import time.
_STAND_INS: dict[tuple[str, str], types.FunctionType] = {}


def compile_function(source: str, name: str, file: str, scope: dict[str, Any]) -> types.FunctionType:
    """Compile the one function of a source text, under another name; tracebacks show its source.

    Args:
        source: the text; the names in it are looked up in `scope`.
        name: `__name__` of the function.
        file: what tracebacks call its file: `<gradmgr file>`.
        scope: its globals.
    """
    import linecache  # deferred, as what it imports takes 1 ms

    filename = f"<gradmgr {file}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    made = _function_in(compile(source, filename, "exec"))
    return types.FunctionType(made.__code__.replace(co_name=name, co_qualname=name), scope, name, made.__defaults__)


def _function_in(code: types.CodeType) -> types.FunctionType:
    found: dict[str, Any] = {}
    exec(code, found)  # noqa: S102  # gradmgr's own text, filled in with its own names
    function = next(value for value in found.values() if isinstance(value, types.FunctionType))
    found.clear()  # its globals, which hold it: only its code and its defaults are of use
    return function


def compiled_at_first_call(
    head: str, key: str, write: Callable[[], str], name: str, file: str, scope: dict[str, Any]
) -> types.FunctionType:
    """Return a function that is written and compiled when it is first called.

    Until then a stand-in with the same parameters has its place, which afterwards gets the code: so it stays the
    object that others hold, and a function whose `__code__` was replaced is not slower to call. Compiling all at
    once made importing gradmgr take 31 ms beside NumPy's 52; so it takes 21.

    Args:
        head: the parameters, as in a def statement.
        key: names the function among those of `scope`.
        write: returns the source.
        name: `__name__` of the function.
        file: what tracebacks call its file.
        scope: its globals, shared by the functions of one op.
    """
    stand_in = _STAND_INS.get((head, key))
    if stand_in is None:
        parts = [part.strip() for part in head.split(",")]
        arguments = ", ".join([part.partition("=")[0] for part in parts if part != "/"])
        text = f"def stand_in({head}):\n    return first_{key}()({arguments})\n"
        stand_in = _STAND_INS[head, key] = _function_in(compile(text, "<gradmgr stand-in>", "exec"))
    function = types.FunctionType(stand_in.__code__, scope, name, stand_in.__defaults__)
    function.__qualname__ = name

    def first() -> types.FunctionType:
        function.__code__ = compile_function(write(), name, file, scope).__code__
        return function

    scope[f"first_{key}"] = first
    return function
