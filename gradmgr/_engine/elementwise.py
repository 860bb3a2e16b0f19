"""`elementwise` and `multilinear`: ops of one or two inputs with generated functions.

The fast path is one Python frame. Each op gets its own functions, generated from the text below: its public
function (with a ufunc's keywords; on plain arrays the kernel), the method of Python's operator if there is one (the
first operand is a Tensor, unknown types give NotImplemented) and that of the reflected operator, and one vjp for each
set of tracked inputs. What an entry keeps depends on that set. For `multiply`, whose rules ask for the other operand:

    both tracked:   ("multiply.xy", node id, id of x, id of y, x, y)
    only x tracked: ("multiply.x", node id, id of x, y, shape of x, dtype of x)

The public function's `where` and `dtype` could be keyword-only as NumPy's are; CPython 3.11 calls such functions 40 ns
slower.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from sys import getrefcount
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.refcounts import GRADIENT_IN_VJP
from gradmgr._engine.broadcast import broadcast_like, is_complex, sum_of_products, unbroadcast
from gradmgr._engine.entry import Kind, Retrack, declare_kind, one_input, two_inputs
from gradmgr._engine.op import Op, Rule, argument_positions, note_view, register, scope_of
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.templates import add_gradient, compiled_at_first_call, op_body
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr._engine.views import ViewOf

# ---------------------------------------------------------------- how the functions read their operands

_READ_OPERATOR_1 = """\
def made(x, /):
    a0 = x._array
"""

_READ_1 = """\
def made(x, /, out=None, where=True, dtype=None):
    if out is not None or where is not True or dtype is not None:
        return with_keywords(function, kernel, (x,), out, where, dtype)
    if not isinstance(x, Tensor):
        return kernel(x)
    a0 = x._array
"""

_READ_OPERATOR_2 = """\
def made(x, y, /):
    a0 = x._array
    t0 = t1 = True
    if y.__class__ is Tensor or y.__class__ is Parameter:
        a1 = y._array
    elif y.__class__ is ndarray or y.__class__ in PLAIN:
        a1 = y
        t1 = False
    elif isinstance(y, Tensor):
        a1 = y._array
    else:
        t1 = False
        a1 = operand(y)
        if a1 is NotImplemented:
            return of_others(x, y)
        y = a1
"""

_READ_REFLECTED = """\
def made(y, x, /):
    a1 = y._array
    t0 = False
    t1 = True
    if x.__class__ in PLAIN:
        a0 = x
    else:
        a0 = operand(x)
        if a0 is NotImplemented:
            return function(x, y) if isinstance(x, Tensor) else of_others(x, y)
        x = a0
"""

_READ_2 = """\
def made(x, y, /, out=None, where=True, dtype=None):
    if out is not None or where is not True or dtype is not None:
        return with_keywords(function, kernel, (x, y), out, where, dtype)
    t0 = isinstance(x, Tensor)
    t1 = isinstance(y, Tensor)
    if t0:
        a0 = x._array
        if t1:
            a1 = y._array
        else:
            y = a1 = y if y.__class__ in PLAIN else need_operand(y, function.__name__)
    elif t1:
        a1 = y._array
        x = a0 = x if x.__class__ in PLAIN else need_operand(x, function.__name__)
    else:
        return kernel(x, y)
"""

# By kind of function: its parameters, how it reads its operands.
_UNARY = MappingProxyType(
    {"function": ("x, /, out=None, where=True, dtype=None", _READ_1), "operator": ("x, /", _READ_OPERATOR_1)}
)
_BINARY = MappingProxyType(
    {
        "function": ("x, y, /, out=None, where=True, dtype=None", _READ_2),
        "operator": ("x, y, /", _READ_OPERATOR_2),
        "reflected": ("y, x, /", _READ_REFLECTED),
    }
)

# ---------------------------------------------------------------- entries and vjps

_APPEND_1 = """\
            entries.append({x})
"""

_APPEND_2 = """\
            if i1 is None:
                entries.append({x})
            elif i0 is None:
                entries.append({y})
            else:
                entries.append({xy})
"""

_ENTRY_1 = """\
def entry(m, node_ids, values, c, params):
    (i0,) = node_ids
    (a0,) = values
    return {x}
"""

_ENTRY_2 = """\
def entry(m, node_ids, values, c, params):
    i0, i1 = node_ids
    a0, a1 = values
    if i1 is None:
        return {x}
    if i0 is None:
        return {y}
    return {xy}
"""

# The common dtypes are compared by identity: one attribute load instead of a search for "c".
_IF_COMPLEX = """\
    t = g.dtype
    if t is not F8 and t is not F4 and t.kind == "c":
        return complex_vjp(e, g, grads, owned)
"""

# The gradient of the last tracked input may take the place of the result's, if that is large, nothing else holds it
# and it is not recorded: memory that is newly asked for costs more than the arithmetic.
_INTO_GRADIENT = """\
    {head} g.__class__ is ndarray and owned.plain and may_overwrite(g, {shape}, {dtype}):
        d = {into}
"""

# Of a large gradient that is to be summed, a rule may have a way that makes no array of its size.
_REDUCED = """\
    {head} g.shape != {shape}:
        d = {reduced}
"""

# What rules given as text may name besides what they ask for.
_IN_RULES = MappingProxyType(
    {
        "divide": np.divide,
        "multiply": np.multiply,
        "negative": np.negative,
        "subtract": np.subtract,
        "sum_of_products": sum_of_products,
        "unbroadcast": unbroadcast,
    }
)
_LOCAL = MappingProxyType({"x": "a0", "y": "a1", "out": "c"})  # what op functions call each name a rule may ask for
_NODE_ID = MappingProxyType({"x": "i0", "y": "i1"})
# What the general path calls for an operator. The ufunc gives other bits where a complex number is a NumPy scalar, and
# in squares of complex arrays.
_OPERATORS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        "+x": operator.pos,
        "-x": operator.neg,
        "abs(x)": operator.abs,
        "x % y": operator.mod,
        "x * y": operator.mul,
        "x ** y": operator.pow,
        "x + y": operator.add,
        "x - y": operator.sub,
        "x / y": operator.truediv,
        "x // y": operator.floordiv,
        "x @ y": operator.matmul,
    }
)


def _may_overwrite(g: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether only the backward pass and the vjp that asks hold a gradient, and it fits an input."""
    if getrefcount(g) > GRADIENT_IN_VJP or g.base is not None or g.shape != shape or g.dtype != dtype:
        return False
    return g.flags.owndata and g.flags.writeable


# ---------------------------------------------------------------- the declarations

Into = Rule | str | None | tuple[Rule | str | None, ...]


class OpFunction(Protocol):
    """The function of an elementwise or multilinear op; with it come the op and the methods of Python's operator."""

    op: Op
    operator: Any
    reflected: Any

    def __call__(self, *args: Any, **keywords: Any) -> Any: ...


class _Declaration:
    """Generates the functions of one op."""

    def __init__(
        self,
        name: str,
        kernel: Callable[..., Any],
        rules: tuple[Rule | str, ...],
        operate: str | None,
        jvp: tuple[Rule, ...] | None,
        into: Into,
        reduced: tuple[str | None, ...] = (),
        of_others: Callable[[Any, Any], Any] | None = None,
        view_of: Callable[..., ViewOf] | None = None,
        names: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.op = op = Op(name, kernel)
        op.view_of = view_of
        self.inputs = "xy"[: len(rules)]
        self.scope = scope_of(
            op,
            __name__,
            PLAIN=libraries.PLAIN,
            Parameter=Parameter,
            complex_vjp=self.complex_vjp,
            may_overwrite=_may_overwrite,
            need_operand=libraries.need_operand,
            of_others=of_others or libraries.try_the_other,
            operand=libraries.operand,
            with_keywords=with_keywords,
            **_IN_RULES,
            **names,
        )
        self.rules: dict[str, Rule] = {}
        self.wants: dict[str, tuple[str, ...]] = {}  # by input, what its rule asks for
        self.values: dict[str, str] = {}  # by input, what its vjp computes: the rule itself where it is text, or a call
        for v, rule in zip(self.inputs, rules, strict=True):
            self.rules[v], self.wants[v], self.values[v] = self._read_rule(rule, f"rule_{v}")
        intos = into if isinstance(into, tuple) else (into,)
        self.into = {
            v: self._read_rule(rule, f"into_{v}")[2] for v, rule in zip(self.inputs, intos, strict=False) if rule
        }
        self.reduced = {v: text for v, text in zip(self.inputs, reduced, strict=False) if text}
        self.holomorphic = jvp is None
        self.operate = operate
        self.jvp_rules = [(rule, self._asked(rule)) for rule in (jvp or self.rules.values())]
        self.layouts: dict[str, tuple[str, list[str]]] = {}  # by code: the tracked inputs, the fields kept

    @property
    def on_offer(self) -> tuple[str, ...]:
        return (*self.inputs, "out")

    def _asked(self, rule: Rule) -> tuple[int, ...]:
        return argument_positions(rule, self.on_offer, self.op.name)

    def _read_rule(self, rule: Rule | str, key: str) -> tuple[Rule, tuple[str, ...], str]:
        """Return a rule as a function, the names it asks for, and the expression of its value; enter it in the scope.

        "g * y" is lambda g, y: g * y.
        """
        text = rule if isinstance(rule, str) else None
        if isinstance(rule, str):
            words = re.findall(r"\w+", rule)
            head = ", ".join(["g", *(name for name in self.on_offer if name in words)])
            source = f"def rule({head}):\n    return {rule}\n"
            file = f"rule of {self.op.name}: {rule}"
            rule = compiled_at_first_call(head, key, lambda: source, "rule", file, self.scope)
        self.scope[key] = rule
        wants = tuple([self.on_offer[k] for k in self._asked(rule)])
        return rule, wants, text or f"{key}({', '.join(['g', *wants])})"

    def make(self) -> OpFunction:
        """Enter the op and its entries in the tables and return its function."""
        op, binary = register(self.op), len(self.inputs) == 2
        for tracked in ("x", "y", "xy") if binary else ("x",):
            self._declare_kind(tracked)
        entry = partial(self._with_entries, _ENTRY_2 if binary else _ENTRY_1)
        op.entry = self._generated("m, node_ids, values, c, params", "entry", entry, "entry", f"entry of {op.name}")
        op.jvp = self.jvp
        kept = {want for wanted in self.wants.values() for want in wanted}
        op.keeps_inputs, op.keeps_out = not kept.isdisjoint(self.inputs), "out" in kept
        function: Any = self._function("function")
        function.op = op
        function.operator = None if self.operate is None else self._function("operator")
        # The ufunc, not the operator: Python would add a complex number and a NumPy scalar to a Python number.
        reflected = binary and self.operate is not None
        function.reflected = self._function("reflected") if reflected else None
        self.scope["function"] = function
        return function  # type: ignore[no-any-return]  # a FunctionType has no attributes for mypy

    def _function(self, kind: str) -> Callable[..., Any]:
        head, read = (_UNARY if len(self.inputs) == 1 else _BINARY)[kind]

        def source() -> str:
            append, called, result = self._with_entries(_APPEND_1 if len(self.inputs) == 1 else _APPEND_2), "op", ""
            if kind == "operator" and self.operate is not None:
                called = "operator_op"
                self.scope[called] = made = copy(self.op)
                made.kernel = _OPERATORS[self.operate]
                result = re.sub(r"\b[xy]\b", lambda found: _LOCAL[found[0]], self.operate)
            is_tensor = len(self.inputs) == 1
            return read + op_body(
                self.inputs, append, op=called, result=result, is_tensor=is_tensor, **note_view(self.op)
            )

        name = self.op.name
        return self._generated(head, kind, source, name, name if kind == "function" else f"{kind} {name}")

    def _generated(self, head: str, key: str, write: Callable[[], str], name: str, file: str) -> Callable[..., Any]:
        return compiled_at_first_call(head, key, write, name, file, self.scope)

    # ------------------------------------------------------------ entries

    def _declare_kind(self, tracked: str) -> None:
        """Enter the entries for these tracked inputs in the tables."""
        name = self.op.name
        code = f"{name}.{tracked}"
        wanted = {want for v in tracked for want in self.wants[v]}
        fields = [v for v in self.on_offer if v in wanted]
        for v in tracked:
            if v not in wanted:
                fields += [f"{v}_shape", f"{v}_dtype"]
        self.layouts[code] = tracked, fields
        write = partial(self._vjp_source, tracked, fields)
        head = "e, g, grads, owned"
        vjp = self._generated(head, f"vjp_{tracked}", write, f"vjp_{name}", f"derivative of {code}")
        read = two_inputs if tracked == "xy" else one_input
        declare_kind(code, Kind(name, read, self.metadata, self.retrack), vjp)

    def _with_entries(self, template: str) -> str:
        """Fill in the expressions that make the entries from the locals of an op function."""
        made = {}
        for code, (tracked, fields) in self.layouts.items():
            parts = [repr(code), "m", *(_NODE_ID[v] for v in tracked)]
            for field in fields:
                v, _, attribute = field.partition("_")
                parts.append(f"{_LOCAL[v]}.{attribute}" if attribute else _LOCAL[v])
            made[tracked] = f"({', '.join(parts)})"
        return template.format(**made)

    def _vjp_source(self, tracked: str, fields: list[str]) -> str:
        unpacked = ", ".join(["_", "_", *(_NODE_ID[v] for v in tracked), *fields])
        source = f"def vjp(e, g, grads, owned):\n    {unpacked} = e\n" + (_IF_COMPLEX if self.holomorphic else "")
        source += "    large = g.size > 8192\n" if self.reduced else ""
        for v in tracked:
            shape, dtype = (f"{v}.shape", f"{v}.dtype") if v in fields else (f"{v}_shape", f"{v}_dtype")
            source += self._value_source(v, shape, dtype, is_last=v == tracked[-1])
            source += add_gradient(_NODE_ID[v], shape, dtype, may_be_broadcast=len(self.inputs) == 2)
        return source

    def _value_source(self, v: str, shape: str, dtype: str, *, is_last: bool) -> str:
        """Write how the gradient of an input is computed, before it is summed to its shape."""
        head, source = "if large and" if self.reduced else "if g.size > 8192 and", ""
        if v in self.reduced:
            reduced = self.reduced[v].format(shape=shape, dtype=dtype)
            source += _REDUCED.format(head=head, shape=shape, reduced=reduced)
        if v in self.into and is_last:
            head = f"el{head}" if source else head
            source += _INTO_GRADIENT.format(head=head, shape=shape, dtype=dtype, into=self.into[v])
        return f"{source}    else:\n        d = {self.values[v]}\n" if source else f"    d = {self.values[v]}\n"

    def _unpacked(self, e: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
        tracked, fields = self.layouts[e[0]]
        return tracked, dict(zip(fields, e[2 + len(tracked) :], strict=True))

    def metadata(self, e: tuple[Any, ...]) -> tuple[Any, ...]:
        """Read (node id, shape, dtype) of each tracked input."""
        tracked, kept = self._unpacked(e)
        return tuple([(node_id, *_shape_and_dtype(v, kept)) for v, node_id in zip(tracked, e[2:], strict=False)])

    def retrack(self, e: tuple[Any, ...], to: Retrack) -> tuple[Any, ...]:
        """Return the entry with its kept values passed through a Retrack."""
        tracked, kept = self._unpacked(e)
        node_ids = dict(zip(tracked, e[2:], strict=False)) | {"out": e[1]}
        return (*e[: 2 + len(tracked)], *[to(value, node_ids.get(field)) for field, value in kept.items()])

    # ------------------------------------------------------------ rules

    def complex_vjp(self, e: tuple[Any, ...], g: Any, grads: Grads, owned: Ownership) -> None:
        """Apply the conjugated map, as reverse mode asks of a holomorphic function."""
        tracked, kept = self._unpacked(e)
        g = conj_of(g)
        for v, node_id in zip(tracked, e[2:], strict=False):
            d = conj_of(self.rules[v](g, *[kept[name] for name in self.wants[v]]))
            accumulate(grads, owned, node_id, unbroadcast(d, *_shape_and_dtype(v, kept)))

    def jvp(self, tangents: Any, values: Any, out: Any, params: Any) -> Any:
        """Sum what each tangent gives."""
        known = (*values, out)
        total = None
        for t, (rule, asked) in zip(tangents, self.jvp_rules, strict=True):
            if t is not None:
                part = broadcast_like(rule(t, *[known[k] for k in asked]), out)
                total = part if total is None else total + part
        return total


def _shape_and_dtype(v: str, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return shape and dtype of an input, which is kept itself or by these."""
    own = kept.get(v)
    return (kept[f"{v}_shape"], kept[f"{v}_dtype"]) if own is None else (own.shape, own.dtype)


def elementwise(
    name: str,
    kernel: Callable[..., Any],
    *rules: Rule | str,
    operate: str | None = None,
    jvp: tuple[Rule, ...] | None = None,
    into: Into = None,
    reduced: tuple[str | None, ...] = (),
    view_of: Callable[..., ViewOf] | None = None,
    names: Mapping[str, Any] = MappingProxyType({}),
) -> OpFunction:
    """Declare an op of one or two inputs that works element by element, with broadcasting.

    Args:
        name: NumPy's name.
        kernel: the NumPy ufunc.
        rules: for each input, rule(g, ...) naming any of `x`, `y`, `out`: the derivative's map, which
            serves as the forward rule and, conjugated around, as the reverse rule. A rule that is one expression may
            be given as text, "g * y", which the vjp then computes without a call: 45 ns of about 620.
        operate: the expression of Python's operator if there is one: "x * y" is 30 ns faster than the ufunc.
        jvp: forward rules, for an op that is not holomorphic; `rules` are then the reverse rules verbatim.
        into: the rule, or a tuple of one by input, once more, for plain arrays of one shape: it writes its result into
            g. It may be text too, as "multiply(g, y, g)"; None if there is none.
        reduced: the rule by input once more, as text, for large gradients that are to be summed to `{shape}` and cast
            to `{dtype}`: it may do a part of that. None if there is none.
        view_of: what the result is a view of, see `Op`.
        names: what rules given as text name besides what they ask for and NumPy's functions of arithmetic.
    """
    return _Declaration(name, kernel, rules, operate, jvp, into, reduced, view_of=view_of, names=names).make()


def multilinear(
    name: str,
    kernel: Callable[..., Any],
    *rules: Rule | str,
    operate: str | None = None,
    of_others: Callable[[Any, Any], Any] | None = None,
) -> OpFunction:
    """Declare an op linear in each of its two inputs: the forward rule replaces one input at a time.

    A rule's result may still have the broadcast batch axes; the engine sums them away. The operator returns what
    `of_others(x, y)` does where one operand is of an unknown type; by default NotImplemented.
    """
    made = _Declaration(name, kernel, rules, operate, None, None, (), of_others).make()

    def jvp(tangents: Any, values: Any, out: Any, params: Any) -> Any:
        tx, ty = tangents
        x, y = values
        parts = [made(tx, y)] if tx is not None else []
        parts += [made(x, ty)] if ty is not None else []
        return broadcast_like(parts[0] if len(parts) == 1 else parts[0] + parts[1], out)

    made.op.jvp = jvp
    return made


conj = elementwise("conjugate", np.conjugate, lambda g: conj_of(g), jvp=(lambda t: conj_of(t),))


def conj_of(z: Any) -> Any:
    """Return the complex conjugate; a real value as it is."""
    return conj(z) if is_complex(z) else z
