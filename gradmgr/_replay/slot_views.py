"""The views that stand for what a captured call is given and makes: in whose memory an array lies, and how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import Call, Slot
from gradmgr._arrays.native import Machine
from gradmgr._replay.call_facts import is_view
from gradmgr._replay.steps import NotLoweredError, Temporary, View, c_strides, size_of


class SlotViews:
    """Knows in whose memory the arrays of one capture lie.

    Attributes:
        bases: by slot, in whose memory its array lies, and where its lowest byte stands there.
    """

    def __init__(self, capture: Capture, machine: Machine) -> None:
        self.layouts = capture.layouts
        self.machine = machine
        self.bases: dict[int, tuple[int, int]] = {slot.number: (slot.number, 0) for slot in capture.inputs}
        self._views: dict[int, View] = {}  # by slot
        self._dtypes: dict[int, tuple[np.dtype[Any], bool]] = {}  # by identity

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
        """Return the view that represents a slot."""
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
            self._dtypes[id(dtype)] = dtype, is_plain(dtype)
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
            return constant(np.array(value), is_scalar=True)
        if type(value) is not np.ndarray or not value.flags.aligned or not value.size:
            raise NotLoweredError
        return constant(value)

    def _target(self, value: Any) -> View:
        if not isinstance(value, Slot):
            raise NotLoweredError
        view = self.view(value)
        if view.is_scalar:
            raise NotLoweredError
        return view


def is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biufc" and dtype.isnative and dtype.itemsize <= 16 and dtype.char not in "gG"


def constant(array: Any, *, is_scalar: bool = False) -> View:
    if not is_plain(array.dtype):
        raise NotLoweredError
    low = sum([min(0, s) * (n - 1) for n, s in zip(array.shape, array.strides, strict=True)])
    return View(array, -low, array.shape, array.strides, array.dtype, is_scalar)


def temporary(shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
    strides = c_strides(shape, dtype.itemsize)
    return View(Temporary(size_of(shape) * dtype.itemsize), 0, shape, strides, dtype)
