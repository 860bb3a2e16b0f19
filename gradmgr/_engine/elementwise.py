"""`elementwise` and `multilinear`: the two declarations behind the hot templates.

The fast road is one Python frame. What a frame must know (which operands are kept for which
tracked inputs) is known when the op is declared, so each op gets functions of its own, made from
the text below by filling in names, as attrs and dataclasses make `__init__`. Measured on CPython
3.11 with 8 float32 elements: a closure that tests flags instead costs 40-60 ns more of about 620.

What is filled in, for `multiply`, whose rules ask for the other operand:

    both tracked:   ("multiply.xy", m, i, j, x, y)
    only x tracked: ("multiply.x", m, i, y, x_shape, x_dtype)

The functions made are: one for the function (keywords, plain arrays), one pull per code and, where Python
has one, the operator (`x` is a Tensor, unknown types give NotImplemented) and the reflected operator.
The function's `where` and `dtype` could be keyword-only as NumPy's are; CPython 3.11 calls such
functions 40 ns slower.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from functools import partial
from sys import getrefcount
from typing import Any, Protocol

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import broadcast_like, is_complex, unbroadcast
from gradmgr._engine.mutation import with_keywords
from gradmgr._engine.op import (
    INPUTS,
    METADATA,
    PULLS,
    RETRACKS,
    Grads,
    Op,
    Owned,
    Retrack,
    Rule,
    accumulate,
    argument_positions,
    one_input,
    register,
)
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.templates import build_function, compile_template, show, template_scope

# ---------------------------------------------------------------- the hot templates

_OPERATOR_1 = """\
def made(x, /):
    a = x._array
    rec = current()
    if rec.__class__ is Stack:
        return rec.call(op, (x,))
    try:
        c = {result}
    except REJECTIONS as error:
        explain(error, op.name, a)
        raise
"""

_FUNCTION_1 = """\
def made(x, /, out=None, where=True, dtype=None):
    if out is not None or where is not True or dtype is not None:
        return with_keywords(function, kernel, (x,), out, where, dtype)
    if not isinstance(x, Tensor):
        return kernel(x)
    a = x._array
    rec = current()
    if rec.__class__ is Stack:
        return rec.call(op, (x,))
    try:
        c = kernel(a)
    except REJECTIONS as error:
        explain(error, op.name, a)
        raise
"""

_RECORD_1 = """\
    z = new(Tensor)
    z._array = c
    if rec is not None:
        i = x._node_id if x._rec is rec else rec.leaf_ids.get(x)
        if i is not None:
            z._rec = rec
            z._node_id = m = object()
            entries = rec.entries
            entries.append({x})
            if len(entries) > rec.limit:
                rec.sweep()
            return z
    z._rec = None
    return z
"""

_OPERATOR_2 = """\
def made(x, y, /):
    a = x._array
    tx = ty = True
    if y.__class__ is Tensor or y.__class__ is Parameter:
        b = y._array
    elif y.__class__ is ndarray or y.__class__ in PLAIN:
        b = y
        ty = False
    elif isinstance(y, Tensor):
        b = y._array
    else:
        ty = False
        y = b = operand(y)
        if b is NotImplemented:
            return b
"""

_REFLECTED_2 = """\
def made(y, x, /):
    b = y._array
    tx = False
    ty = True
    if x.__class__ in PLAIN:
        a = x
    else:
        x = a = operand(x)
        if a is NotImplemented:
            return a
"""

_FUNCTION_2 = """\
def made(x, y, /, out=None, where=True, dtype=None):
    if out is not None or where is not True or dtype is not None:
        return with_keywords(function, kernel, (x, y), out, where, dtype)
    tx = isinstance(x, Tensor)
    ty = isinstance(y, Tensor)
    if tx:
        a = x._array
        if ty:
            b = y._array
        else:
            y = b = y if y.__class__ in PLAIN else need_operand(y, function.__name__)
    elif ty:
        b = y._array
        x = a = x if x.__class__ in PLAIN else need_operand(x, function.__name__)
    else:
        return kernel(x, y)
"""

_RECORD_2 = """\
    rec = current()
    if rec.__class__ is Stack:
        return rec.call(op, (x, y))
    try:
        c = {result}
    except REJECTIONS as error:
        explain(error, op.name, a, b)
        raise
    z = new(Tensor)
    z._array = c
    if rec is not None:
        i = (x._node_id if x._rec is rec else rec.leaf_ids.get(x)) if tx else None
        j = (y._node_id if y._rec is rec else rec.leaf_ids.get(y)) if ty else None
        if i is not None or j is not None:
            z._rec = rec
            z._node_id = m = object()
            entries = rec.entries
            if j is None:
                entries.append({x})
            elif i is None:
                entries.append({y})
            else:
                entries.append({xy})
            if len(entries) > rec.limit:
                rec.sweep()
            return z
    z._rec = None
    return z
"""

_ENTRY_1 = """\
def entry(m, marks, values, c, params):
    (i,) = marks
    (a,) = values
    return {x}
"""

_ENTRY_2 = """\
def entry(m, marks, values, c, params):
    i, j = marks
    a, b = values
    if j is None:
        return {x}
    if i is None:
        return {y}
    return {xy}
"""

# The common dtypes are compared by identity: one attribute load instead of a search for "c".
_PULL = """\
def pull(e, g, grads, owned):
    {unpack} = e
    t = g.dtype
    if t is not F8 and t is not F4 and t.kind == "c":
        return pull_complex(e, g, grads, owned)
"""

_PULL_VERBATIM = """\
def pull(e, g, grads, owned):
    {unpack} = e
"""

_PULL_INPUT = """\
    d = {d}
{give}"""

# The last input's gradient may take the place of the result's, if that is large, nobody else has it and nobody records
# it: memory that is newly asked for costs more than the arithmetic.
_PULL_IN_PLACE = """\
    if g.size > 8192 and g.__class__ is ndarray and owned.__class__ is set and is_ours(g, {shape}, {dtype}):
        d = {in_place}
    else:
        d = {d}
{give}"""

_PULL_GIVE = """\
    if d.dtype is not {dtype} or d.shape != {shape}:
        d = unbroadcast(d, {shape}, {dtype})
    if {node_id} not in grads:
        grads[{node_id}] = d
    elif {node_id} in owned:
        h = grads[{node_id}]
        h += d
        grads[{node_id}] = h
    else:
        grads[{node_id}] = grads[{node_id}] + d
        owned.add({node_id})
"""

# What stands for a function, with its parameters, until its first call compiles the template and gives it that code;
# it stays the function that others hold. Compiling all at once made importing take 31 ms beside NumPy's 52; so it
# takes 21. A function whose `__code__` was replaced is not slower to call.
_STUBS = {
    "operator x": "def made(x, /):\n    return first('operator')(x)\n",
    "operator xy": "def made(x, y, /):\n    return first('operator')(x, y)\n",
    "reflected xy": "def made(y, x, /):\n    return first('reflected')(y, x)\n",
    "function x": "def made(x, /, out=None, where=True, dtype=None):\n"
    "    return first('function')(x, out, where, dtype)\n",
    "function xy": "def made(x, y, /, out=None, where=True, dtype=None):\n"
    "    return first('function')(x, y, out, where, dtype)\n",
}

# What the text of a rule may name beside what it asks for.
_IN_RULES = types.MappingProxyType(
    {
        "ndarray": np.ndarray,
        "divide": np.divide,
        "multiply": np.multiply,
        "negative": np.negative,
        "subtract": np.subtract,
    }
)
_OPERAND = r"\w+|\((?:[^()]|\([^()]*\))*\)"  # a name, or what stands in brackets, with brackets in it perhaps
_LOCAL = {"x": "a", "y": "b", "out": "c"}  # what the templates call each name a rule may ask for
_MARK = {"x": "i", "y": "j"}


def _fields(tracked: str, wanted: set[str]) -> list[str]:
    """Name what an entry keeps: what the rules ask for, and the shape and dtype of what they do not."""
    kept: list[str] = [v for v in ("x", "y", "out") if v in wanted]
    for v in tracked:
        if v not in wanted:
            kept += [f"{v}_shape", f"{v}_dtype"]
    return kept


def _expression(code: str, tracked: str, fields: list[str]) -> str:
    """Write the tuple display that makes an entry from the templates' locals."""
    parts = [repr(code), "m", *(_MARK[v] for v in tracked)]
    for field in fields:
        v, _, fact = field.partition("_")
        parts.append(f"{_LOCAL[v]}.{fact}" if fact else _LOCAL[v])
    return f"({', '.join(parts)})"


def _pull_source(
    tracked: str, fields: list[str], results: dict[str, str], in_place: dict[str, str], holomorphic: bool
) -> str:
    unpack = ", ".join(["_", "_", *(_MARK[v] for v in tracked), *fields])
    source = (_PULL if holomorphic else _PULL_VERBATIM).format(unpack=unpack)
    for v in tracked:
        shape, dtype = (f"{v}.shape", f"{v}.dtype") if v in fields else (f"{v}_shape", f"{v}_dtype")
        give = _PULL_GIVE.format(shape=shape, dtype=dtype, node_id=_MARK[v])
        *steps, value = results[v].split("; ")
        source += "".join([f"    {step}\n" for step in steps])
        reuse = in_place.get(v) or _in_place(value) if v == tracked[-1] else None
        text = _PULL_INPUT if reuse is None else _PULL_IN_PLACE
        source += text.format(d=value, in_place=reuse, shape=shape, dtype=dtype, give=give)
    return source


def _in_place(algebra: str) -> str | None:
    """Return the call that writes what a rule computes into g, of rules that are one operation on it."""
    if algebra == "-g":
        return "negative(g, g)"
    found = re.fullmatch(rf"g ([*/]) ({_OPERAND})", algebra)
    return found and f"{'multiply' if found[1] == '*' else 'divide'}(g, {found[2]}, g)"


def _is_ours(g: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether a gradient is held by nobody but who walks and the pull that asks, and fits an input."""
    if getrefcount(g) > _UNHELD or g.base is not None or g.shape != shape or g.dtype != dtype:
        return False
    return g.flags.owndata and g.flags.writeable


def _count_unheld() -> int:
    """Return the reference count of such an array, measured the way it is used: see `_tape._pull_all`."""

    def asks(g: Any) -> int:
        return getrefcount(g)

    def pull(e: Any, g: Any, grads: Any, owned: Any) -> int:
        return asks(g)

    grads = {"": np.empty(1)}
    g = grads.pop("")
    return pull("", g, grads, ())


_UNHELD = _count_unheld()


def _source_of_rule(text: str) -> str:
    words = re.findall(r"\w+", text)
    asked = [name for name in ("x", "y", "out") if name in words]
    *steps, value = text.split("; ")
    body = "".join([f"    {step}\n" for step in steps])
    return f"def rule({', '.join(['g', *asked])}):\n{body}    return {value}\n"


def _rule_of_text(text: str, op: Op) -> Rule:
    """Make a rule's function out of its algebra: "g * y" is lambda g, y: g * y."""
    return build_function(_source_of_rule(text), "rule", _file_of_rule(text, op), {"op": op, **_IN_RULES})


def _file_of_rule(text: str, op: Op) -> str:
    return f"rule of {op.name}: {text}"


# ---------------------------------------------------------------- the declarations


class OpFunction(Protocol):
    """The function of an elementwise or multilinear op; with it come the op and the methods of Python's operator."""

    op: Op
    operator: Any
    reflected: Any

    def __call__(self, *args: Any, **keywords: Any) -> Any: ...


def with_methods(function: types.FunctionType, op: Op, operator: Any = None, reflected: Any = None) -> OpFunction:
    """Attach to the function of an op the op and the methods of Python's operator."""
    made: Any = function
    made.op, made.operator, made.reflected = op, operator, reflected
    return made  # type: ignore[no-any-return]  # a FunctionType has no attributes for mypy


class _Declaration:
    """Makes the functions of one op out of the templates."""

    def __init__(
        self,
        name: str,
        kernel: Callable[..., Any],
        algebra: tuple[Rule | str, ...],
        operate: str | None,
        jvp: tuple[Rule, ...] | None,
        into: Rule | None = None,
    ) -> None:
        self.op = op = Op(name, kernel)
        rules = [_rule_of_text(rule, op) if isinstance(rule, str) else rule for rule in algebra]
        self.texts = [rule for rule in algebra if isinstance(rule, str)]
        self.inputs = "xy"[: len(rules)]
        self.on_offer = (*self.inputs, "out")
        self.rules = dict(zip(self.inputs, rules, strict=True))
        self.wants = {v: tuple(self.on_offer[k] for k in self._asked(rule)) for v, rule in self.rules.items()}
        # What a pull computes for each input: the algebra itself where it is text, else a call.
        self.results = {
            v: text if isinstance(text, str) else f"rule_{v}({', '.join(['g', *self.wants[v]])})"
            for v, text in zip(self.inputs, algebra, strict=True)
        }
        # What it computes into g, if it may, where the algebra does not say so by itself.
        self.in_place = {} if into is None else {"x": self.results["x"].replace("rule_x", "into")}
        self.holomorphic = jvp is None
        self.operate = operate
        self.push_rules = [(rule, self._asked(rule)) for rule in (jvp or rules)]
        self.layouts: dict[str, tuple[str, list[str]]] = {}  # by code: the tracked inputs, the fields kept
        self.late: dict[str, tuple[types.FunctionType, str, str, str]] = {}  # by kind: what `first` compiles
        self.scope = template_scope(
            op,
            __name__,
            PLAIN=libraries.PLAIN,
            Parameter=Parameter,
            first=self.first,
            into=into,
            is_ours=_is_ours,
            need_operand=libraries.need_operand,
            operand=libraries.operand,
            pull_complex=self.pull_complex,
            with_keywords=with_keywords,
            **_IN_RULES,
            **{f"rule_{v}": rule for v, rule in self.rules.items()},
        )

    def _asked(self, rule: Rule) -> tuple[int, ...]:
        return argument_positions(rule, self.on_offer, self.op.name)

    def make(self) -> OpFunction:
        """Enter the pulls in the table and return the functions."""
        name, op, binary = self.op.name, register(self.op), len(self.inputs) == 2
        for tracked in ("x", "y", "xy") if binary else ("x",):
            self._pull(tracked)
        entry = partial(self._with_entries, _ENTRY_2 if binary else _ENTRY_1)
        op.entry = self._when_used(entry, "entry", f"entry of {name}", partial(setattr, op, "entry"))
        op.push = self.push
        kept = {want for wanted in self.wants.values() for want in wanted}
        op.keeps_inputs, op.keeps_out = not kept.isdisjoint(self.inputs), "out" in kept
        call = f"kernel({', '.join('ab'[: len(self.inputs)])})"
        self.scope["function"] = function = self._stub("function", _FUNCTION_2 if binary else _FUNCTION_1, call)
        if self.operate is None:
            return with_methods(function, op)
        operator = self._stub("operator", _OPERATOR_2 if binary else _OPERATOR_1, self.operate)
        # The ufunc, not the operator: Python would add a complex number and a NumPy scalar to a Python number.
        reflected = self._stub("reflected", _REFLECTED_2, call) if binary else None
        return with_methods(function, op, operator, reflected)

    def _stub(self, kind: str, head: str, result: str) -> types.FunctionType:
        name, shared = self.op.name, compile_template(_STUBS[f"{kind} {self.inputs}"])
        code = shared.__code__.replace(co_name=name, co_qualname=name)
        function = types.FunctionType(code, self.scope, name, shared.__defaults__)
        file = name if kind == "function" else f"{kind} {name}"
        self.late[kind] = function, head + (_RECORD_2 if len(self.inputs) == 2 else _RECORD_1), file, result
        return function

    def first(self, kind: str) -> Callable[..., Any]:
        """Give a function its code."""
        function, template, file, result = self.late[kind]
        source = self._with_entries(template, result=result)
        for text in self.texts:  # no rule runs before a function of its op has
            show(_source_of_rule(text), _file_of_rule(text, self.op), self.op.name)
        show(source, file, self.op.name)
        function.__code__ = build_function(source, self.op.name, file, self.scope).__code__
        return function

    def _with_entries(self, template: str, **more: str) -> str:
        """Fill in the expressions that make the entries."""
        entries = {tracked: _expression(f"@.{tracked}", tracked, fields) for tracked, fields in self.layouts.values()}
        return template.format(**entries, **more)

    def _pull(self, tracked: str) -> None:
        """Enter the pull for these tracked inputs in the table."""
        code = f"{self.op.name}.{tracked}"
        fields = _fields(tracked, {want for v in tracked for want in self.wants[v]})
        self.layouts[code] = tracked, fields
        source = partial(_pull_source, tracked, fields, self.results, self.in_place, self.holomorphic)
        name = f"pull_{self.op.name}"
        PULLS[code] = self._when_used(source, name, f"derivative of {code}", partial(PULLS.__setitem__, code))
        INPUTS[code] = _two_inputs if tracked == "xy" else one_input
        METADATA[code] = self.facts
        RETRACKS[code] = self.link

    def facts(self, e: tuple[Any, ...]) -> tuple[Any, ...]:
        """Read mark, shape and dtype of each tracked input."""
        tracked, kept = self._unpacked(e)
        return tuple([(node_id, *_fact(v, kept)) for v, node_id in zip(tracked, e[2:], strict=False)])

    def link(self, e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
        """Pass what the entry keeps through a Link."""
        tracked, kept = self._unpacked(e)
        node_ids = dict(zip(tracked, e[2:], strict=False)) | {"out": e[1]}
        return (*e[: 2 + len(tracked)], *[to(value, node_ids.get(field)) for field, value in kept.items()])

    def _unpacked(self, e: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
        tracked, fields = self.layouts[e[0]]
        return tracked, dict(zip(fields, e[2 + len(tracked) :], strict=True))

    def _when_used(
        self, source: Callable[[], str], name: str, file: str, put: Callable[[Any], None]
    ) -> Callable[..., Any]:
        """Make a function that at its first call is compiled and put in its own place; saves import time."""

        def first(*args: Any) -> Any:
            text = source()
            show(text, file, self.op.name)
            function = build_function(text, name, file, self.scope)
            put(function)
            return function(*args)

        return first

    def pull_complex(self, e: tuple[Any, ...], g: Any, grads: Grads, owned: Owned) -> None:
        """Pull by the conjugated map, as reverse mode asks of a holomorphic function."""
        tracked, kept = self._unpacked(e)
        g = conj_of(g)
        for v, node_id in zip(tracked, e[2:], strict=False):
            d = conj_of(self.rules[v](g, *[kept[name] for name in self.wants[v]]))
            accumulate(grads, owned, node_id, unbroadcast(d, *_fact(v, kept)))

    def push(self, tangents: Any, values: Any, out: Any, params: Any) -> Any:
        """Sum what each tangent gives."""
        env = (*values, out)
        total = None
        for t, (rule, asked) in zip(tangents, self.push_rules, strict=True):
            if t is not None:
                part = broadcast_like(rule(t, *[env[k] for k in asked]), out)
                total = part if total is None else total + part
        return total


def _fact(v: str, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return shape and dtype of an input, kept itself or by these."""
    own = kept.get(v)
    return (kept[f"{v}_shape"], kept[f"{v}_dtype"]) if own is None else (own.shape, own.dtype)


def _two_inputs(entry: tuple[Any, ...]) -> tuple[Any, ...]:
    return entry[2:4]


def elementwise(
    name: str,
    kernel: Callable[..., Any],
    *rules: Rule | str,
    operate: str | None = None,
    jvp: tuple[Rule, ...] | None = None,
    into: Rule | None = None,
) -> OpFunction:
    """Declare an op of one or two inputs that works element by element, with broadcasting.

    Args:
        name: NumPy's name.
        kernel: the NumPy ufunc.
        rules: for each input, rule(g, ...) naming any of `x`, `y`, `out`: the derivative's map, which
            serves as the forward rule and, conjugated around, as the reverse rule. A rule may be given as
            text, "g * y", which the pull then computes without a call: 45 ns of about 620. Before its value there may
            be steps, "s = out * out; s *= g; ...", which write to what they made: large temporaries take longer to
            get than to fill.
        operate: the expression of Python's operator where there is one: "a * b" is 30 ns faster than the ufunc.
        jvp: forward rules, for an op that is not holomorphic; `rules` are then the reverse rules verbatim.
        into: of an op of one input, the rule once more, for plain arrays of one shape: it may write its result into
            g. Rules of text that are one operation on g are done so by themselves.
    """
    return _Declaration(name, kernel, rules, operate, jvp, into).make()


def multilinear(
    name: str,
    kernel: Callable[..., Any],
    *rules: Rule | str,
    operate: str | None = None,
) -> OpFunction:
    """Declare an op linear in each of its two inputs: the forward rule replaces one input at a time.

    A rule's result may still have the broadcast batch axes; the engine sums them away.
    """
    made = _Declaration(name, kernel, rules, operate, None).make()

    def push(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        tx, ty = tangents
        x, y = values
        parts = [made(tx, y)] if tx is not None else []
        parts += [made(x, ty)] if ty is not None else []
        return broadcast_like(parts[0] if len(parts) == 1 else parts[0] + parts[1], out)

    made.op.push = push
    return made


conj = elementwise(
    "conjugate",
    np.conjugate,
    lambda g: conj_of(g),
    jvp=(lambda t: conj_of(t),),
)


def conj_of(z: Any) -> Any:
    """Return the complex conjugate; a real value as it is."""
    return conj(z) if is_complex(z) else z
