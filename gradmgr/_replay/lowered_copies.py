"""Captured calls that copy, fill, index, join or choose, as steps of the machine."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from gradmgr._arrays.captured_calls import Call, Slot
from gradmgr._replay.call_facts import bound, only, rule_name_of
from gradmgr._replay.lowered_ufuncs import UfuncRules
from gradmgr._replay.slot_views import constant, temporary
from gradmgr._replay.steps import (
    NotLoweredError,
    Run,
    Step,
    View,
    broadcast,
    c_strides,
    elementwise,
    is_contiguous,
    of_loop,
    overlaps,
    size_of,
)

_COPIERS = frozenset(("copy", "flatten", "array"))  # which never give a view, if no argument asks for it
MAKERS: MappingProxyType[Any, int] = MappingProxyType({np.zeros: 0, np.ones: 1, np.zeros_like: 0, np.ones_like: 1})


class CopyRules(UfuncRules):
    """Takes calls apart that give elements of their arguments, or one value many times."""

    def _constant_made(self, call: Call) -> list[Step]:
        if any(isinstance(part, Slot) for part in (*call.args, *call.keywords.values())):
            raise NotLoweredError
        return self._assigned(self.made(call), constant(np.asarray(call.function(*call.args, **call.keywords))))

    def _setitem(self, call: Call) -> list[Step]:
        a, index, value = call.args
        if _is_one_of_each_row(index):
            return self._put(self._target(a), index, value, call)
        target = indexed(self._target(a), index)
        return self._assigned(target, self._value(value, target.dtype))

    def _filled(self, call: Call) -> list[Step]:
        target = self._target(call.args[0])
        return self._assigned(target, self._value(only(call, 2)[1], target.dtype))

    def _copy_to(self, call: Call) -> list[Step]:
        facts = bound(call, ("dst", "src"))
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
        return [self._copied(constant(np.array(MAKERS[call.function], made.dtype)), made)]

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
            return [self._copied(constant(np.array(call.args[0], made.dtype)), made)]
        if rule_name_of(call.function) not in _COPIERS and not self._would_know(source):
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
        steps = self._picked(target, index, temporary((rows,), target.dtype), call)
        masks = [temporary(target.shape, boolean) for _ in range(2)]
        column = numbers._replace(shape=(rows, 1), strides=(numbers.strides[0], 0))
        equal = self.machine.loop(np.equal, (numbers.dtype, numbers.dtype, None))
        either = self.machine.loop(np.logical_or, (boolean, boolean, None))
        if equal is None or either is None:
            raise NotLoweredError
        for mask, first in zip(masks, (0, -columns), strict=True):
            places = constant(np.arange(first, first + columns, dtype=np.int64))
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
        facts = bound(call, ("arrays", "axis"))
        given = facts.get("arrays")
        if not isinstance(given, (tuple, list)):
            raise NotLoweredError
        parts = [self.operand(part) for part in given]
        axis, ndim = facts.get("axis", 0), len(self.made(call).shape)
        if any(isinstance(part, type) for part in parts) or type(axis) is not int:
            raise NotLoweredError
        return parts, axis + ndim if axis < 0 else axis

    def _where(self, call: Call) -> list[Step]:
        condition, x, y = only(call, 3)
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


def _is_one_of_each_row(index: Any) -> bool:
    """Tell whether an index is the numbers of all rows in their order, as an array, and numbers of columns."""
    if not isinstance(index, tuple) or len(index) != 2 or not isinstance(index[0], np.ndarray):
        return False
    return index[0].ndim == 1 and index[0].dtype.kind == "i" and np.array_equal(index[0], np.arange(len(index[0])))


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


def _without(values: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return values[:axis] + values[axis + 1 :]
