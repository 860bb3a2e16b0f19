"""Captured calls as steps of the machine: which calls it can make itself, so that every bit is as NumPy's.

A rule takes a call apart into loops over views. It raises NotLoweredError where it does not know the call, or where
NumPy's result may depend on more than the values, such as on how its iterator cuts them into pieces. Loops of ufuncs
whose results are rounded as the standard of floating-point numbers says give the same bits however they are run; all
others are run only where NumPy runs one loop over all elements, as this does then.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, Slot, slots_in
from gradmgr._arrays.native import Machine, UfuncLoop
from gradmgr._arrays.native_kernels import Kernel
from gradmgr._arrays.steps import (
    NotLoweredError,
    Run,
    Step,
    Temporary,
    View,
    axes_of,
    broadcast,
    c_strides,
    elementwise,
    is_contiguous,
    is_in_same_memory,
    is_trivial,
    of_loop,
    over,
    overlaps,
    size_of,
    transposed,
)

# Whose results are rounded as IEEE 754 says, or not at all, for real numbers; of integers all are exact.
_EXACT = frozenset(
    (
        *(np.add, np.subtract, np.multiply, np.true_divide, np.negative, np.positive, np.absolute, np.fabs, np.sqrt),
        *(np.square, np.reciprocal, np.sign, np.copysign, np.equal, np.not_equal, np.less, np.less_equal, np.greater),
        *(np.greater_equal, np.logical_and, np.logical_or, np.logical_not, np.logical_xor, np.bitwise_and),
        *(np.bitwise_or, np.bitwise_xor, np.invert, np.isnan, np.isfinite, np.isinf, np.signbit, np.floor, np.ceil),
        *(np.rint, np.trunc, np.conjugate),
    )
)
_EXACT_OF_COMPLEX = frozenset(
    (np.add, np.subtract, np.negative, np.positive, np.conjugate, np.equal, np.not_equal, np.isnan, np.isfinite)
)
_VECDOT: Any = getattr(np, "vecdot", None)  # NumPy has it since 2.0
# Before NumPy 2.3, sums go over pieces of as many elements as np.getbufsize() says when they are not along one axis.
_IN_PIECES = 8192 if np.lib.NumpyVersion(np.__version__) < "2.3.0" else 0
# Integers by 0, and powers of negative ones, are errors of Python's.
_NOT_OF_INTEGERS = frozenset((np.floor_divide, np.remainder, np.fmod, np.divmod, np.power, np.left_shift, np.ldexp))

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
# The ufuncs that stand for a power of an array by these numbers of Python's.
_POWERS = MappingProxyType({2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal})

# Those that give a view of their first argument and read no values, or do nothing at all.
_VIEWERS = frozenset(
    (
        *("getitem", "T", "mT", "real", "reshape", "ravel", "transpose", "swapaxes", "moveaxis", "squeeze"),
        *("expand_dims", "broadcast_to", "view", "diagonal", "flip", "fliplr", "flipud", "asarray", "imag", "rot90"),
        *("permute_dims", "matrix_transpose", "rollaxis", "atleast_1d", "atleast_2d", "atleast_3d", "astype"),
    )
)
_COPIERS = frozenset(("copy", "flatten", "array"))  # which never give a view, if no argument asks for it
_FACTS = frozenset(("shape", "ndim", "size", "result_type", "may_share_memory", "isscalar", "can_cast"))
_CONSTANT_MAKERS = frozenset((np.eye, np.identity, np.linspace, np.tri, np.arange))
_MAKERS: MappingProxyType[Any, int] = MappingProxyType({np.zeros: 0, np.ones: 1, np.zeros_like: 0, np.ones_like: 1})
_EMPTY: frozenset[Any] = frozenset((np.empty, np.empty_like))


def name_of(function: Any) -> str:
    """Return by which name the rules know a function: a method's, an attribute's, NumPy's; "" for others."""
    for kind in ("method", "attribute"):
        known = getattr(function, kind, None)
        if known is not None:
            return str(known)
    name: str = getattr(function, "__name__", "")
    if function is operator.getitem or getattr(np, name, None) is function:
        return name
    return ""


def keeps_nothing(function: Any) -> bool:
    """Tell whether a function keeps no array that it is given: NumPy's, operators, methods, and kernels of ours."""
    module = getattr(function, "__module__", None) or ""
    return (
        bool(name_of(function))
        or getattr(function, "keeps_nothing", False)
        or isinstance(function, np.ufunc)
        or isinstance(getattr(function, "__self__", None), np.ufunc)
        or module.partition(".")[0] in ("numpy", "_operator")
    )


def makes_nothing(call: Call) -> bool:
    """Tell whether a call only reads facts of arrays, such as their shapes."""
    if call.made or call.expected is not None:
        return False
    return not any(leaves_in(call.results)) and name_of(call.function) in _FACTS


def is_view(call: Call, layouts: Sequence[Any]) -> bool:
    """Tell whether the result of a call is its first argument, or a view of it in the same place each time."""
    result, source = call.results, call.args[0] if call.args else None
    if result.__class__ is not Slot or source.__class__ is not Slot or call.expected is not None:
        return False
    made, of = layouts[result.number], layouts[source.number]
    if made is not None and made.owner == result.number != source.number:
        return False
    if name_of(call.function) not in _VIEWERS or (len(call.given) > 1 and any(slots_in(call.args[1:]))):
        return False
    if result == source:
        return True
    return made is not None and of is not None and made.owner is not None and made.owner == of.owner


class Lowering:
    """Lowers the calls of one capture.

    Attributes:
        bases: by slot, in whose memory its array lies, and where its lowest byte stands there.
    """

    def __init__(self, capture: Capture, machine: Machine) -> None:
        self.layouts = capture.layouts
        self.machine = machine
        self.bases: dict[int, tuple[int, int]] = {slot.number: (slot.number, 0) for slot in capture.inputs}
        self._views: dict[int, View] = {}  # by slot
        self._steps: dict[Any, Step] = {}  # of ufuncs
        self._dtypes: dict[int, tuple[np.dtype[Any], bool]] = {}  # by identity

    # ------------------------------------------------------------ arrays

    def is_view(self, call: Call) -> bool:
        """Tell whether the result is a view of an argument that needs no step; enter where it lies."""
        if not is_view(call, self.layouts):
            return False
        result, source = call.results, call.args[0]
        if result == source:
            return True
        made, of = self.layouts[result.number], self.layouts[source.number]
        base, low = self.bases[source.number]
        self.bases[result.number] = base, low + made.offset - of.offset
        return True

    def view(self, slot: Slot) -> View:
        """Return the view that stands for a slot."""
        if slot.__class__ is not Slot:  # a constant
            raise NotLoweredError
        known = self._views.get(slot.number)
        if known is not None:
            return known
        layout = self.layouts[slot.number]
        if layout is None or 0 in layout.shape or not self._knows(layout.dtype):
            raise NotLoweredError
        base, low = self.bases.get(slot.number, (slot.number, 0))
        if layout.strides and min(layout.strides) < 0:
            low -= sum([min(0, s) * (n - 1) for n, s in zip(layout.shape, layout.strides, strict=True)])
        made = self._views[slot.number] = View(base, low, layout.shape, layout.strides, layout.dtype, layout.is_scalar)
        return made

    def forget(self, slots: Iterable[int]) -> None:
        """Drop the views of what a call makes that is left to Python: it may lie in other memory."""
        for slot in slots:
            self._views.pop(slot, None)

    def _knows(self, dtype: np.dtype[Any]) -> bool:
        """Tell whether the machine knows a dtype; to ask the dtype itself takes longer, and there are few."""
        if id(dtype) not in self._dtypes:
            self._dtypes[id(dtype)] = dtype, _is_plain(dtype)
        return self._dtypes[id(dtype)][1]

    def made(self, call: Call) -> View:
        """Return the view of a result in memory of its own."""
        if not isinstance(call.results, Slot) or call.expected is not None:
            raise NotLoweredError
        number = call.results.number
        if number in self.bases:
            raise NotLoweredError
        return self.view(call.results)

    def operand(self, value: Any) -> Any:
        """Return the view of an argument, or the type of a Python number."""
        if isinstance(value, Slot):
            return self.view(value)
        if type(value) in (int, float, complex):
            return type(value)
        if type(value) is bool or isinstance(value, np.generic):
            return _constant(np.array(value), is_scalar=True)
        if type(value) is not np.ndarray or not value.flags.aligned or not value.size:
            raise NotLoweredError
        return _constant(value)

    # ------------------------------------------------------------ calls

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
        rule = _RULES.get(function) or _RULES_BY_NAME.get(name_of(function))
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

    def _constant_made(self, call: Call) -> list[Step]:
        if any(isinstance(part, Slot) for part in (*call.args, *call.keywords.values())):
            raise NotLoweredError
        return self._assigned(self.made(call), _constant(np.asarray(call.function(*call.args, **call.keywords))))

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

    # ------------------------------------------------------------ elementwise

    def _called_ufunc(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        if len(call.args) != ufunc.nin or ufunc.nout != 1 or call.keywords.keys() - {"out"}:
            raise NotLoweredError
        out = call.keywords.get("out")
        out = out[0] if isinstance(out, tuple) else out
        if ufunc is np.matmul:
            return self._matmul(call, out)
        if ufunc is _VECDOT and out is None:
            return self._vecdot(call)
        if ufunc.signature is not None:
            raise NotLoweredError
        return self._computed(ufunc, call.args, self.made(call) if out is None else self._target(out))

    def _target(self, value: Any) -> View:
        if not isinstance(value, Slot):
            raise NotLoweredError
        view = self.view(value)
        if view.is_scalar:
            raise NotLoweredError
        return view

    def _operator(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        if ufunc is np.matmul:
            return self._matmul(call, None)
        made = self.made(call)
        self._check_scalars(ufunc, call.args, made)
        return self._computed(ufunc, call.args, made)

    def _check_scalars(self, ufunc: np.ufunc, args: Sequence[Any], made: View) -> None:
        """Raise where NumPy computes with scalars, not by a ufunc, and may round otherwise."""
        exact = _EXACT if made.dtype.kind != "c" else _EXACT_OF_COMPLEX
        if made.is_scalar and (ufunc not in exact or ufunc is np.reciprocal) and len(args) == 2:
            raise NotLoweredError

    def _update(self, ufunc: np.ufunc, call: Call) -> list[Step]:
        target = self.view(call.args[0])
        if target.is_scalar:
            return self._operator(ufunc, call)
        return self._computed(ufunc, call.args, target)

    def _power(self, call: Call) -> list[Step]:
        base, exponent = call.args
        made = self.made(call)
        if type(exponent) not in (int, float) or made.is_scalar or made.dtype.kind != "f":
            raise NotLoweredError
        if exponent == 0:
            raise NotLoweredError
        if exponent in _POWERS:
            return self._computed(_POWERS[exponent], (base,), made)
        return self._computed(np.power, call.args, made)

    def _computed(self, ufunc: np.ufunc, args: Sequence[Any], out: View) -> list[Step]:
        """Return the steps of a ufunc's call whose result goes into a view.

        Loops repeat: a call of arrays that lie in other memory, but are alike, has the same step.
        """
        operands = [self.operand(value) for value in args]
        alike = self._alike(ufunc, operands, args, out)
        known = None if alike is None else self._steps.get(alike)
        if known is not None:
            found = [
                (operand.base, operand.offset) if operand.__class__ is View else place
                for operand, place in zip((*operands, out), known.operands, strict=True)
            ]
            return [Step(known.run, tuple(found))]
        steps = self._steps_of(ufunc, operands, args, out)
        if alike is not None and len(steps) == 1:
            self._steps[alike] = steps[0].but()
        return steps

    def _alike(self, ufunc: np.ufunc, operands: Sequence[Any], args: Sequence[Any], out: View) -> Any:
        """Return what is equal for calls that are the same but for where operands lie; None where this decides."""
        facts: list[Any] = [ufunc, out[2:]]
        for operand, value in zip(operands, args, strict=True):
            if operand.__class__ is not View:
                facts.append((operand, repr(value)))
            elif operand.base.__class__ is int and operand.base != out.base:
                facts.append(operand[2:])
            else:
                return None
        return tuple(facts) if out.base.__class__ is int else None

    def _steps_of(self, ufunc: np.ufunc, operands: Sequence[Any], args: Sequence[Any], out: View) -> list[Step]:
        loop = self.machine.loop(ufunc, (*[x if isinstance(x, type) else x.dtype for x in operands], None))
        if loop is None:
            raise NotLoweredError
        kinds = {dtype.kind for dtype in loop.dtypes}
        if ufunc in _NOT_OF_INTEGERS and kinds & set("iu"):
            raise NotLoweredError
        exact = ufunc in (_EXACT_OF_COMPLEX if "c" in kinds else _EXACT) or not kinds & set("fc")
        steps: list[Step] = []
        views = [
            self._cast(operand, value, dtype, steps, exact)
            for operand, value, dtype in zip(operands, args, loop.dtypes, strict=False)
        ]
        result = out if out.dtype == loop.dtypes[-1] else _temporary(out.shape, loop.dtypes[-1])
        if (result is not out and not exact) or any(overlaps(view, out) for view in views):
            raise NotLoweredError
        if not exact and (not is_trivial([*views, result]) or ("c" in kinds and not result.shape)):
            raise NotLoweredError
        steps.append(elementwise(loop.function, [*views, result], exact=exact, **of_loop(loop)))
        return steps if result is out else [*steps, self._copied(result, out)]

    def _cast(self, operand: Any, value: Any, dtype: np.dtype[Any], steps: list[Step], exact: bool) -> View:
        """Return an operand in the dtype of a loop, by a step where it needs one."""
        if isinstance(operand, type):
            return _constant(np.array(value, dtype), is_scalar=True)
        if operand.dtype == dtype:
            return operand  # type: ignore[no-any-return]  # a View
        if isinstance(value, (np.generic, bool)):
            return _constant(np.array(value).astype(dtype), is_scalar=True)
        if not exact:
            raise NotLoweredError
        made = _temporary(operand.shape, dtype)
        steps.append(self._copied(operand, made))
        return made

    # ------------------------------------------------------------ copies

    def copy_of(self, dtype: np.dtype[Any]) -> int:
        """Return the address of the loop that copies elements of a dtype."""
        return self.machine.address(f"copy{dtype.itemsize}")

    def _copied(self, source: View, target: View) -> Step:
        """Return the step that copies, and casts, into a view of the same shape or one that it expands to."""
        if overlaps(source, target):
            raise NotLoweredError
        one, other = source.dtype, target.dtype
        name = f"copy{one.itemsize}" if one == other else f"{_code(one)}_to_{_code(other)}"
        if not self.machine.has(name):
            raise NotLoweredError
        return elementwise(self.machine.address(name), [broadcast(source, target.shape), target], exact=True)

    def _assigned(self, target: View, source: View) -> list[Step]:
        """Return the steps of an assignment, whose value may have more dimensions of 1 in front."""
        more = len(source.shape) - len(target.shape)
        if more > 0 and source.shape[:more] == (1,) * more:
            source = source._replace(shape=source.shape[more:], strides=source.strides[more:])
        if is_in_same_memory(source, target) and source[1:5] == target[1:5]:  # as in a[1:] += b
            return []
        return [self._copied(source, target)]

    def _value(self, value: Any, dtype: np.dtype[Any]) -> View:
        """Return an operand as a view; a Python number becomes a constant of a dtype."""
        operand = self.operand(value)
        if not isinstance(operand, type):
            return operand  # type: ignore[no-any-return]  # a View
        return _constant(np.array(value).astype(dtype), is_scalar=True)

    def _setitem(self, call: Call) -> list[Step]:
        a, index, value = call.args
        if _is_one_of_each_row(index):
            return self._put(self._target(a), index, value, call)
        target = indexed(self._target(a), index)
        return self._assigned(target, self._value(value, target.dtype))

    def _filled(self, call: Call) -> list[Step]:
        target = self._target(call.args[0])
        return self._assigned(target, self._value(_only(call, 2)[1], target.dtype))

    def _copy_to(self, call: Call) -> list[Step]:
        facts = _bound(call, ("dst", "src"))
        if facts.keys() - {"dst", "src", "where"} or len(call.args) != 2:
            raise NotLoweredError
        view = self._target(facts["dst"])
        value = self._value(facts["src"], view.dtype)
        if "where" not in facts:
            return self._assigned(view, value)
        tests = self.operand(facts["where"])
        if isinstance(tests, type) or tests.dtype.kind != "b" or overlaps(tests, view) or overlaps(value, view):
            raise NotLoweredError
        steps: list[Step] = []
        value = self._cast(value, None, view.dtype, steps, True)
        address = self.machine.address(f"where{view.dtype.itemsize}")
        views = [broadcast(a, view.shape) for a in (tests, value)]
        return [*steps, elementwise(address, [*views, view, view], exact=True)]

    def _made_of_one_value(self, call: Call) -> list[Step]:
        made = self.made(call)
        return [self._copied(_constant(np.array(_MAKERS[call.function], made.dtype)), made)]

    def _made_empty(self, call: Call) -> list[Step]:
        self.made(call)
        return []

    def _full(self, call: Call) -> list[Step]:
        made = self.made(call)
        value = call.args[1] if len(call.args) > 1 else call.keywords.get("fill_value")
        return self._assigned(made, self._value(value, made.dtype))

    def _copy(self, call: Call) -> list[Step]:
        """A call that gives its first argument, in memory of its own, as it is or in another dtype or shape."""
        if not call.args:
            raise NotLoweredError
        made, source = self.made(call), self.operand(call.args[0])
        if isinstance(source, type):
            return [self._copied(_constant(np.array(call.args[0], made.dtype)), made)]
        if name_of(call.function) not in _COPIERS and not self._would_know(source):
            raise NotLoweredError
        if made.shape == source.shape:
            return [self._copied(source, made)]
        order = call.keywords.get("order", "C")
        if order != "C" or not is_contiguous(made) or size_of(made.shape) != size_of(source.shape):
            raise NotLoweredError
        strides = c_strides(source.shape, made.dtype.itemsize)
        return [self._copied(source, made._replace(shape=source.shape, strides=strides))]

    def _would_know(self, source: View) -> bool:
        """Tell whether the capture knows the memory of an array, so that a result elsewhere is no view of it."""
        if isinstance(source.base, np.ndarray):
            return source.is_scalar
        return source.is_scalar or self.layouts[source.base].owner == source.base

    def _flattened(self, call: Call) -> list[Step]:
        if len(call.args) > 1 or call.keywords:
            raise NotLoweredError
        return self._copy(call)

    def _element(self, call: Call) -> list[Step]:
        """An index that gives a NumPy scalar, an array of one, or rows by number."""
        made, source = self.made(call), self.view(call.args[0])
        if made.is_scalar or source.is_scalar:
            return [self._copied(indexed(source, call.args[1]), made)]
        if _is_one_of_each_row(call.args[1]):
            return self._picked(source, call.args[1], made, call)
        return self._taken(source, call.args[1], made, call)

    def _taken(self, source: View, index: Any, made: View, call: Call) -> list[Step]:
        """Return the step that copies rows of the first axis by their numbers."""
        numbers = self.operand(index)
        if isinstance(numbers, type) or numbers.dtype != np.int64 or len(numbers.shape) != 1 or not source.shape:
            raise NotLoweredError
        row = source._replace(shape=source.shape[1:], strides=source.strides[1:])
        if made.shape != (*numbers.shape, *row.shape) or not is_contiguous(row) or not is_contiguous(made):
            raise NotLoweredError
        views = (source, numbers, made)
        taken = Run(
            self.machine.address("take"),
            tuple([view.dtype.alignment for view in views]),
            numbers.shape,
            (source.strides[0], numbers.strides[0], made.strides[0]),
            context=source.shape[0],
            auxdata=size_of(row.shape) * made.dtype.itemsize,
            guard=call,
        )
        return [Step(taken, tuple([(view.base, view.offset) for view in views]))]

    def _picked(self, source: View, index: Any, made: View, call: Call) -> list[Step]:
        """Return the step that copies one element of each row of a matrix."""
        numbers = self._numbers(source, index)
        if made.shape != numbers.shape:
            raise NotLoweredError
        views = (source, numbers, made)
        picked = Run(
            self.machine.address("take"),
            tuple([view.dtype.alignment for view in views]),
            (1,),
            (source.strides[1], numbers.strides[0], made.strides[0]),
            ((len(index[0]), (source.strides[0], numbers.strides[0], made.strides[0])),),
            context=source.shape[1],
            auxdata=made.dtype.itemsize,
            guard=call,
        )
        return [Step(picked, tuple([(view.base, view.offset) for view in views]))]

    def _numbers(self, rows: View, index: Any) -> View:
        """Return the numbers of the columns in an index of one element of each row."""
        numbers = self.operand(index[1])
        if isinstance(numbers, type) or numbers.dtype != np.int64 or numbers.shape != index[0].shape:
            raise NotLoweredError
        if len(rows.shape) != 2 or rows.shape[0] != len(index[0]):
            raise NotLoweredError
        return numbers  # type: ignore[no-any-return]  # a View

    def _put(self, target: View, index: Any, value: Any, call: Call) -> list[Step]:
        """Return the steps that write one element of each row of a matrix: of all, chosen by the number of the column.

        The first of them looks whether the numbers are in bounds.
        """
        numbers, given = self._numbers(target, index), self._value(value, target.dtype)
        if given.dtype != target.dtype or overlaps(given, target) or overlaps(numbers, target):
            raise NotLoweredError
        (rows, columns), boolean = target.shape, np.dtype(bool)
        steps = self._picked(target, index, _temporary((rows,), target.dtype), call)
        masks = [_temporary(target.shape, boolean) for _ in range(2)]
        column = numbers._replace(shape=(rows, 1), strides=(numbers.strides[0], 0))
        equal = self.machine.loop(np.equal, (numbers.dtype, numbers.dtype, None))
        either = self.machine.loop(np.logical_or, (boolean, boolean, None))
        if equal is None or either is None:
            raise NotLoweredError
        for mask, first in zip(masks, (0, -columns), strict=True):
            places = _constant(np.arange(first, first + columns, dtype=np.int64))
            views = [broadcast(view, target.shape) for view in (column, places)]
            steps.append(elementwise(equal.function, [*views, mask], **of_loop(equal)))
        steps.append(elementwise(either.function, [*masks, masks[0]], **of_loop(either)))
        of_rows = broadcast(given, (rows,))
        of_rows = of_rows._replace(shape=(rows, 1), strides=(of_rows.strides[0], 0))
        address = self.machine.address(f"where{target.dtype.itemsize}")
        views = [broadcast(view, target.shape) for view in (masks[0], of_rows, target)]
        return [*steps, elementwise(address, [*views, target])]

    def _expanded_scalar(self, call: Call) -> list[Step]:
        """A scalar broadcast to a shape: one element in memory, of which all strides are 0."""
        if len(call.args) != 2:
            raise NotLoweredError
        made, source = self.made(call), self.operand(call.args[0])
        if isinstance(source, type) or not source.is_scalar or any(made.strides):
            raise NotLoweredError
        return [self._copied(source, made._replace(shape=(), strides=()))]

    def _concatenated(self, call: Call) -> list[Step]:
        parts, axis = self._parts(call)
        made = self.made(call)
        steps, at = [], 0
        for part in parts:
            if len(part.shape) != len(made.shape):
                raise NotLoweredError
            n = part.shape[axis]
            shape = (*made.shape[:axis], n, *made.shape[axis + 1 :])
            place = made._replace(shape=shape, offset=made.offset + at * made.strides[axis])
            steps.append(self._copied(part, place))
            at += n
        return steps

    def _stacked(self, call: Call) -> list[Step]:
        parts, axis = self._parts(call)
        made = self.made(call)
        if any((*part.shape[:axis], len(parts), *part.shape[axis:]) != made.shape for part in parts):
            raise NotLoweredError
        inner = made._replace(shape=_without(made.shape, axis), strides=_without(made.strides, axis))
        return [
            self._copied(part, inner._replace(offset=made.offset + k * made.strides[axis]))
            for k, part in enumerate(parts)
        ]

    def _parts(self, call: Call) -> tuple[list[View], int]:
        """Return what is joined, and along which axis."""
        facts = _bound(call, ("arrays", "axis"))
        given = facts.get("arrays")
        if not isinstance(given, (tuple, list)):
            raise NotLoweredError
        parts = [self.operand(part) for part in given]
        axis, ndim = facts.get("axis", 0), len(self.made(call).shape)
        if any(isinstance(part, type) for part in parts) or type(axis) is not int:
            raise NotLoweredError
        return parts, axis + ndim if axis < 0 else axis

    def _where(self, call: Call) -> list[Step]:
        condition, x, y = _only(call, 3)
        made = self.made(call)
        tests = self.operand(condition)
        if isinstance(tests, type) or tests.dtype.kind != "b":
            raise NotLoweredError
        steps: list[Step] = []
        chosen = []
        for value in (x, y):
            view = self._value(value, made.dtype)
            chosen.append(self._cast(view, value, made.dtype, steps, True))
        address = self.machine.address(f"where{made.dtype.itemsize}")
        views = [broadcast(view, made.shape) for view in (tests, *chosen)]
        return [*steps, elementwise(address, [*views, made], exact=True)]

    # ------------------------------------------------------------ sums and products

    def _reduced(self, ufunc: np.ufunc, call: Call, names: tuple[str, ...], axis: Any) -> list[Step]:
        facts = _bound(call, ("a", *names))
        if (
            facts.get("dtype") is not None
            or facts.keys() - {"a", "axis", "dtype", "out", "keepdims"}
            or "a" not in facts
        ):
            raise NotLoweredError
        out = facts.get("out")
        out = out[0] if isinstance(out, tuple) else out
        target = self.made(call) if out is None else self._target(out)
        return self._reduction(ufunc, self._value(facts["a"], target.dtype), facts.get("axis", axis), target)

    def _reduction(self, ufunc: np.ufunc, a: View, axis: Any, out: View) -> list[Step]:
        """Return the steps of a reduction, in the order in which NumPy's iterator goes over the elements."""
        loop = self.machine.loop(ufunc, (out.dtype, out.dtype, None), reduction=True)
        if loop is None or loop.dtypes != (out.dtype,) * 3 or a.is_scalar or not a.shape or out.dtype.char == "e":
            raise NotLoweredError
        steps: list[Step] = []
        if a.dtype != out.dtype:
            if out.dtype.kind not in "iu":
                raise NotLoweredError
            a = self._cast(a, None, out.dtype, steps, True)
        where = _reduced_axes(axis, len(a.shape))
        kept = self._expanded(out, a, where)
        if overlaps(a, kept) or any(stride < 0 for stride in (*a.strides, *kept.strides)):
            raise NotLoweredError
        least = _least_of(ufunc, out.dtype)
        # By rows, of which the first is like the others.
        if least is not None and _reducing(0, kept, a, {}).run.strides[0]:
            steps.append(self._copied(_constant(least), out))
        elif ufunc in (np.maximum, np.minimum):
            a, first = _without_first(a, where)
            steps.append(self._copied(first, kept._replace(shape=first.shape)))
            if not size_of(a.shape):
                return steps
            kept = kept._replace(shape=a.shape)
        else:
            steps.append(self._copied(_constant(np.array(ufunc.identity, out.dtype)), out))
        if size_of(a.shape) == size_of(out.shape):
            kept = kept._replace(shape=a.shape)
        made = _reducing(loop.function, kept, a, of_loop(loop))
        rows = sum([not strides[0] for _, strides in made.run.outer]) + (not made.run.strides[0])
        in_pieces = _IN_PIECES and size_of(a.shape) > _IN_PIECES
        if (rows > 1 or in_pieces) and out.dtype.kind in "fc":  # several rows are gathered before they are added up
            raise NotLoweredError
        return [*steps, made]

    def _expanded(self, out: View, a: View, where: set[int]) -> View:
        """Return the result as a view of the argument's shape, whose reduced axes have strides of 0."""
        strides = list(out.strides)
        if len(out.shape) == len(a.shape):
            strides = [0 if d in where else stride for d, stride in enumerate(strides)]
        else:
            for d in sorted(where):
                strides.insert(d, 0)
        if len(strides) != len(a.shape):
            raise NotLoweredError
        return out._replace(shape=a.shape, strides=tuple(strides))

    def _mean(self, call: Call) -> list[Step]:
        """The sum, divided in float64 by the number of elements."""
        facts = _bound(call, ("a", "axis", "dtype", "out", "keepdims"))
        made = self.made(call)
        if "a" not in facts or facts.keys() - {"a", "axis", "dtype", "out", "keepdims"}:
            raise NotLoweredError
        a = self._value(facts["a"], made.dtype)
        if facts.get("dtype") is not None or facts.get("out") is not None or made.dtype.char not in "fd":
            raise NotLoweredError
        steps = self._reduction(np.add, a, facts.get("axis"), made)
        wide = np.dtype(np.float64)
        count = _constant(np.array(size_of(a.shape) // size_of(made.shape), wide))
        loop = self.machine.loop(np.true_divide, (wide, wide, None))
        if loop is None:
            raise NotLoweredError
        total = self._cast(made, None, wide, steps, True)
        quotient = total if total is not made else made
        steps.append(elementwise(loop.function, [total, count, quotient], **of_loop(loop)))
        return steps if quotient is made else [*steps, self._copied(quotient, made)]

    def _dot(self, call: Call) -> list[Step]:
        """A product of matrices and vectors: what `matmul` gives for contiguous ones; `dot` copies other matrices."""
        facts = _bound(call, ("a", "b", "out"))
        if facts.keys() - {"a", "b", "out"} or len(facts) < 2:
            raise NotLoweredError
        out, steps, factors = facts.get("out"), [], []
        for name in ("a", "b"):
            view = self.operand(facts[name])
            if isinstance(view, type) or view.dtype.char not in "fd" or len(view.shape) not in (1, 2):
                raise NotLoweredError
            if not (is_contiguous(view) or is_contiguous(transposed(view))):
                if 1 in view.shape or len(view.shape) == 1:  # these may go to BLAS with their strides
                    raise NotLoweredError
                copied = _temporary(view.shape, view.dtype)
                steps.append(self._copied(view, copied))
                view = copied
            factors.append(view)
        a, b = factors
        return [*steps, *self._multiplied(a, b, call, out)]

    def _vecdot(self, call: Call) -> list[Step]:
        """Sums of products along the last axis, by NumPy's loop."""
        a, b = (self.operand(value) for value in call.args)
        made = self.made(call)
        if isinstance(a, type) or isinstance(b, type) or not (a.dtype == b.dtype == made.dtype):
            raise NotLoweredError
        loop = self.machine.loop(_VECDOT, (a.dtype, b.dtype, None))
        if loop is None or not a.shape or not b.shape or a.shape[-1] != b.shape[-1]:
            raise NotLoweredError
        heads = [broadcast(x._replace(shape=x.shape[:-1], strides=x.strides[:-1]), made.shape) for x in (a, b)]
        axes = axes_of([*heads, made])
        count, moves = axes[-1] if axes else (1, (0, 0, 0))
        views = (a, b, made)
        return [
            over(
                views,
                loop.function,
                (count, a.shape[-1]),
                (*moves, a.strides[-1], b.strides[-1]),
                axes[:-1],
                **of_loop(loop),
            )
        ]

    def _matmul(self, call: Call, out: Any) -> list[Step]:
        a, b = (self.operand(value) for value in call.args)
        if isinstance(a, type) or isinstance(b, type):
            raise NotLoweredError
        return self._multiplied(a, b, call, out)

    def _multiplied(self, a: View, b: View, call: Call, out: Any) -> list[Step]:
        made = self.made(call) if out is None else self._target(out)
        if not (a.dtype == b.dtype == made.dtype):
            raise NotLoweredError
        if out is not None and made.shape != _shape_of_product(a, b):
            raise NotLoweredError
        if is_in_same_memory(a, made) or is_in_same_memory(b, made):
            raise NotLoweredError
        loop = self.machine.loop(np.matmul, (a.dtype, b.dtype, None))
        if loop is None or not a.shape or not b.shape:
            raise NotLoweredError
        return [product_of(loop, a, b, made)]


def _is_one_of_each_row(index: Any) -> bool:
    """Tell whether an index is the numbers of all rows in their order, as an array, and numbers of columns."""
    if not isinstance(index, tuple) or len(index) != 2 or not isinstance(index[0], np.ndarray):
        return False
    return index[0].ndim == 1 and index[0].dtype.kind == "i" and np.array_equal(index[0], np.arange(len(index[0])))


def _shape_of_product(a: View, b: View) -> tuple[int, ...]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))


def product_of(loop: UfuncLoop, a: View, b: View, c: View) -> Step:
    """Return the step of a matrix product, stacks of them too."""
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    batch = c.shape[: len(c.shape) - rows - columns]
    a_batch = broadcast(a._replace(shape=a.shape[:-2], strides=a.strides[:-2]), batch)
    b_batch = broadcast(b._replace(shape=b.shape[:-2], strides=b.strides[:-2]), batch)
    c_batch = c._replace(shape=batch, strides=c.strides[: len(batch)])
    axes = axes_of([a_batch, b_batch, c_batch])
    n, k, m = a.shape[-2] if rows else 1, a.shape[-1], b.shape[-1] if columns else 1
    last = c.strides[-1] if columns else 0
    inner = (
        *(a.strides[-2] if rows else 0, a.strides[-1]),
        *(b.strides[-2] if columns else b.strides[-1], b.strides[-1] if columns else 0),
        *((c.strides[-2] if columns else c.strides[-1]) if rows else 0, last),
    )
    count, moves = axes[-1] if axes else (1, (0, 0, 0))
    views = (a, b, c)
    return over(
        views,
        loop.function,
        (count, n, k, m),
        (*moves, *inner),
        axes[:-1],
        **of_loop(loop),
    )


def _reducing(function: int, out: View, a: View, facts: dict[str, Any]) -> Step:
    """Return the step of a reduction: NumPy's iterator has the axes by the argument's strides."""
    axes = [(n, (o, s, o)) for n, o, s in zip(a.shape, out.strides, a.strides, strict=True) if n != 1]
    axes.sort(key=lambda axis: -axis[1][1])
    merged: list[tuple[int, tuple[int, int, int]]] = []
    for n, strides in axes:
        if merged and all(x == n * y for x, y in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * n, strides
        else:
            merged.append((n, strides))
    n, strides = merged[-1] if merged else (1, (0, 0, 0))
    views = (out, a, out)
    return over(
        views,
        function,
        (n,),
        strides,
        merged[:-1],
        **facts,
    )


def _least_of(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """Return the number below all others, for maxima, or above them, for minima; None for other functions."""
    if ufunc not in (np.maximum, np.minimum) or dtype.kind not in "fiu":
        return None
    if dtype.kind == "f":
        return np.array(-np.inf if ufunc is np.maximum else np.inf, dtype)
    limits = np.iinfo(dtype)
    return np.array(limits.min if ufunc is np.maximum else limits.max, dtype)


def _without_first(a: View, where: set[int]) -> tuple[View, View]:
    """Return what is left of an array without the first along its reduced axis, and that one."""
    axes = [d for d in where if a.shape[d] > 1]
    if len(axes) > 1:
        if not is_contiguous(a) or len(where) < len(a.shape):
            raise NotLoweredError
        a = a._replace(
            shape=(*(1,) * (len(a.shape) - 1), size_of(a.shape)), strides=(*a.strides[:-1], a.dtype.itemsize)
        )
        axes = [len(a.shape) - 1]
    first = a._replace(shape=tuple([1 if d in axes else n for d, n in enumerate(a.shape)]))
    shape = tuple([n - 1 if d in axes else n for d, n in enumerate(a.shape)])
    move = sum([a.strides[d] for d in axes])
    return a._replace(shape=shape if axes else (0,), offset=a.offset + move), first


def indexed(view: View, index: Any) -> View:
    """Return the view that an index of integers, slices, None and an ellipsis gives."""
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum([part is not None and part is not Ellipsis for part in parts])
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    shape, strides, offset, axis = [], [], view.offset, 0
    for part in parts:
        if part is None:
            shape.append(1)
            strides.append(0)
        elif part is Ellipsis:
            rest = len(view.shape) - used
            shape += view.shape[axis : axis + rest]
            strides += view.strides[axis : axis + rest]
            axis += rest
        elif type(part) is int:
            n = view.shape[axis]
            offset += (part + n if part < 0 else part) * view.strides[axis]
            axis += 1
        elif type(part) is slice and all(k is None or type(k) is int for k in (part.start, part.stop, part.step)):
            start, stop, step = part.indices(view.shape[axis])
            shape.append(len(range(start, stop, step)))
            strides.append(view.strides[axis] * step)
            offset += start * view.strides[axis]
            axis += 1
        else:
            raise NotLoweredError
    if not size_of(shape):
        raise NotLoweredError
    return view._replace(shape=tuple(shape), strides=tuple(strides), offset=offset)


# ---------------------------------------------------------------- arguments


def _bound(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    """Return arguments by name; keywords that are NumPy's sign of "not given" are left out."""
    if len(call.args) > len(names):
        raise NotLoweredError
    facts = dict(zip(names, call.args, strict=False)) | call.keywords
    return {name: value for name, value in facts.items() if value is not np._NoValue}


def _only(call: Call, count: int) -> tuple[Any, ...]:
    """Return the arguments, where there are so many and no keywords."""
    if len(call.args) != count or call.keywords:
        raise NotLoweredError
    return call.args


def _reduced_axes(axis: Any, ndim: int) -> set[int]:
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(d, (int, np.integer)) for d in axes):
        raise NotLoweredError
    return {int(d) % ndim for d in axes}


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" and dtype.isnative and dtype.itemsize <= 16 and dtype.char not in "gG"


def _constant(array: Any, *, is_scalar: bool = False) -> View:
    if not _is_plain(array.dtype):
        raise NotLoweredError
    low = sum([min(0, s) * (n - 1) for n, s in zip(array.shape, array.strides, strict=True)])
    return View(array, -low, array.shape, array.strides, array.dtype, is_scalar)


def _temporary(shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
    strides = c_strides(shape, dtype.itemsize)
    return View(Temporary(size_of(shape) * dtype.itemsize), 0, shape, strides, dtype)


def _code(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{dtype.itemsize}"


def _reduction_rule(ufunc: np.ufunc) -> Callable[[Lowering, Call], list[Step]]:
    names = ("axis", "out", "keepdims") if ufunc in (np.maximum, np.minimum) else ("axis", "dtype", "out", "keepdims")
    if ufunc in (np.logical_and, np.logical_or):
        names = ("axis", "out", "keepdims")
    return lambda lowering, call: lowering._reduced(ufunc, call, names, None)


_RULES: MappingProxyType[Any, Callable[[Lowering, Call], list[Step]]] = MappingProxyType(
    {
        operator.pow: Lowering._power,
        operator.getitem: Lowering._element,
        **dict.fromkeys(_MAKERS, Lowering._made_of_one_value),
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
