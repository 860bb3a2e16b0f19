"""Ufuncs of captured calls as steps of the machine, and the casts and copies that these need.

Loops of ufuncs whose results are rounded as the standard of floating-point numbers says give the same bits however they
are run; all others are run only where NumPy runs one loop over all elements, as this does then.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call
from gradmgr._arrays.native import Machine
from gradmgr._replay.slot_views import SlotViews, constant, temporary
from gradmgr._replay.steps import (
    NotLoweredError,
    Step,
    View,
    broadcast,
    elementwise,
    is_in_same_memory,
    is_trivial,
    of_loop,
    overlaps,
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
# Integers by 0, and powers of negative ones, are errors of Python's.
_NOT_OF_INTEGERS = frozenset((np.floor_divide, np.remainder, np.fmod, np.divmod, np.power, np.left_shift, np.ldexp))
# The ufuncs that stand for a power of an array by these numbers of Python's.
_POWERS = MappingProxyType({2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal})


class UfuncRules(SlotViews):
    """Takes calls apart that compute element by element, or copy."""

    def __init__(self, capture: Capture, machine: Machine) -> None:
        super().__init__(capture, machine)
        self._steps: dict[Any, Step] = {}  # of ufuncs

    def _check_scalars(self, ufunc: np.ufunc, args: Sequence[Any], made: View) -> None:
        """Raise where NumPy computes with scalars, not by a ufunc, and may round otherwise."""
        exact = _EXACT if made.dtype.kind != "c" else _EXACT_OF_COMPLEX
        if made.is_scalar and (ufunc not in exact or ufunc is np.reciprocal) and len(args) == 2:
            raise NotLoweredError

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
        result = out if out.dtype == loop.dtypes[-1] else temporary(out.shape, loop.dtypes[-1])
        if (result is not out and not exact) or any(overlaps(view, out) for view in views):
            raise NotLoweredError
        if not exact and (not is_trivial([*views, result]) or ("c" in kinds and not result.shape)):
            raise NotLoweredError
        steps.append(elementwise(loop.function, [*views, result], exact=exact, **of_loop(loop)))
        return steps if result is out else [*steps, self._copied(result, out)]

    def _cast(self, operand: Any, value: Any, dtype: np.dtype[Any], steps: list[Step], exact: bool) -> View:
        """Return an operand in the dtype of a loop, by a step where it needs one."""
        if isinstance(operand, type):
            return constant(np.array(value, dtype), is_scalar=True)
        if operand.dtype == dtype:
            return operand  # type: ignore[no-any-return]  # a View
        if isinstance(value, (np.generic, bool)):
            return constant(np.array(value).astype(dtype), is_scalar=True)
        if not exact:
            raise NotLoweredError
        made = temporary(operand.shape, dtype)
        steps.append(self._copied(operand, made))
        return made

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
        return constant(np.array(value).astype(dtype), is_scalar=True)


def _code(dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}{dtype.itemsize}"
