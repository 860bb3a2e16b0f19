"""Captured calls as steps of the machine: which calls it can make itself, so that every bit is as NumPy's.

A rule takes a call apart into loops over views. It raises NotLoweredError where it does not know the call, or where
NumPy's result may depend on more than the values, such as on how its iterator cuts them into pieces. The rules stand by
kind in `lowered_ufuncs`, `lowered_copies`, `lowered_sums` and `lowered_products`; here is which call has which.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays.captured_calls import Call, slots_in
from gradmgr._arrays.native_kernels import Kernel
from gradmgr._replay.call_facts import rule_name_of
from gradmgr._replay.lowered_copies import MAKERS, CopyRules
from gradmgr._replay.lowered_products import VECDOT, ProductRules
from gradmgr._replay.lowered_sums import SumRules
from gradmgr._replay.steps import NotLoweredError, Step, View, elementwise, over, size_of

_OPERATORS = MappingProxyType(
    {
        getattr(operator, name): ufunc
        for name, ufunc in (
            *(("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("truediv", np.true_divide)),
            *(("floordiv", np.floor_divide), ("mod", np.remainder), ("matmul", np.matmul), ("and_", np.bitwise_and)),
            *(("or_", np.bitwise_or), ("xor", np.bitwise_xor), ("lt", np.less), ("le", np.less_equal)),
            *(("gt", np.greater), ("ge", np.greater_equal), ("eq", np.equal), ("ne", np.not_equal)),
            *(("neg", np.negative), ("pos", np.positive), ("abs", np.absolute), ("invert", np.invert)),
        )
    }
)
_UPDATES = MappingProxyType(
    {
        getattr(operator, name): ufunc
        for name, ufunc in (
            *(("iadd", np.add), ("isub", np.subtract), ("imul", np.multiply), ("itruediv", np.true_divide)),
            *(("ifloordiv", np.floor_divide), ("imod", np.remainder), ("iand", np.bitwise_and)),
            *(("ior", np.bitwise_or), ("ixor", np.bitwise_xor)),
        )
    }
)
_CONSTANT_MAKERS = frozenset((np.eye, np.identity, np.linspace, np.tri, np.arange))
_EMPTY: frozenset[Any] = frozenset((np.empty, np.empty_like))


class Lowering(CopyRules, SumRules, ProductRules):
    """Lowers the calls of one capture."""

    def lower(self, call: Call) -> list[Step]:
        """Return the steps of a call."""
        function = call.function
        if function is operator.truth:
            return self._guard(call)
        if isinstance(function, np.ufunc):
            return self._called_ufunc(function, call)
        if function in _OPERATORS:
            return self._operator(_OPERATORS[function], call)
        if function in _UPDATES:
            return self._update(_UPDATES[function], call)
        if function is operator.setitem:
            return self._setitem(call)
        if function in _CONSTANT_MAKERS:
            return self._constant_made(call)
        if function.__class__ is Kernel:
            return self._kernel(function, call)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, np.ufunc) and function.__name__ == "reduce":
            return self._reduced(owner, call, ("axis", "dtype", "out", "keepdims"), 0)
        rule = _RULES.get(function) or _RULES_BY_NAME.get(rule_name_of(function))
        if rule is None:
            raise NotLoweredError
        return rule(self, call)

    def _guard(self, call: Call) -> list[Step]:
        view = self.view(call.args[0])
        if size_of(view.shape) != 1 or view.dtype.kind != "b":
            raise NotLoweredError
        address = self.machine.address("guard")
        scalar = view._replace(shape=(), strides=())
        made = elementwise(address, [scalar], context=int(call.expected), writes=0, guard=call)
        made.run.flat = False
        return [made]

    def _kernel(self, kernel: Kernel, call: Call) -> list[Step]:
        """Return the step that runs a kernel of ours; the numbers that it is given are its context."""
        reads = kernel.arrays - kernel.writes
        views = [self.operand(value) for value in call.args[:reads]]
        views += [self._target(value) for value in call.args[reads : kernel.arrays]]
        others = call.args[kernel.arrays :]
        if any(view.__class__ is not View for view in views) or any(slots_in(others)):
            raise NotLoweredError
        numbers = np.array([*others[kernel.lengths :], 0.0], np.float64)
        step = over(views, kernel.address, others[: kernel.lengths], (), ())
        step.run.writes, step.run.context, step.run.keeps = kernel.writes, numbers.ctypes.data, numbers
        step.run.in_place = kernel.is_elementwise
        return [step]

    def _called_ufunc(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        if len(call.args) != ufunc.nin or ufunc.nout != 1 or call.keywords.keys() - {"out"}:
            raise NotLoweredError
        out = call.keywords.get("out")
        out = out[0] if isinstance(out, tuple) else out
        if ufunc is np.matmul:
            return self._matmul(call, out)
        if ufunc is VECDOT and out is None:
            return self._vecdot(call)
        if ufunc.signature is not None:
            raise NotLoweredError
        return self._computed(ufunc, call.args, self.made(call) if out is None else self._target(out))

    def _operator(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        if ufunc is np.matmul:
            return self._matmul(call, None)
        made = self.made(call)
        self._check_scalars(ufunc, call.args, made)
        return self._computed(ufunc, call.args, made)

    def _update(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        target = self.view(call.args[0])
        if target.is_scalar:
            return self._operator(ufunc, call)
        return self._computed(ufunc, call.args, target)


def _reduction_rule(ufunc: np.ufunc) -> Callable[[Lowering, Call], list[Step]]:
    names = ("axis", "out", "keepdims") if ufunc in (np.maximum, np.minimum) else ("axis", "dtype", "out", "keepdims")
    if ufunc in (np.logical_and, np.logical_or):
        names = ("axis", "out", "keepdims")
    return lambda lowering, call: lowering._reduced(ufunc, call, names, None)


_RULES: MappingProxyType[Any, Callable[[Lowering, Call], list[Step]]] = MappingProxyType(
    {
        operator.pow: Lowering._power,
        operator.getitem: Lowering._element,
        **dict.fromkeys(MAKERS, Lowering._made_of_one_value),
        **dict.fromkeys(_EMPTY, Lowering._made_empty),
        np.full: Lowering._full,
        np.full_like: Lowering._full,
    }
)
_RULES_BY_NAME: MappingProxyType[str, Callable[[Lowering, Call], list[Step]]] = MappingProxyType(
    {
        **dict.fromkeys(("copy", "astype", "reshape", "array", "ascontiguousarray", "asarray"), Lowering._copy),
        **dict.fromkeys(("ravel", "flatten"), Lowering._flattened),
        **{name: _reduction_rule(np.add) for name in ("sum",)},
        **{name: _reduction_rule(np.maximum) for name in ("max", "amax")},
        **{name: _reduction_rule(np.minimum) for name in ("min", "amin")},
        **{name: _reduction_rule(np.multiply) for name in ("prod",)},
        "any": _reduction_rule(np.logical_or),
        "all": _reduction_rule(np.logical_and),
        "mean": Lowering._mean,
        "fill": Lowering._filled,
        "copyto": Lowering._copy_to,
        "concatenate": Lowering._concatenated,
        "stack": Lowering._stacked,
        "where": Lowering._where,
        "dot": Lowering._dot,
        "broadcast_to": Lowering._expanded_scalar,
    }
)
