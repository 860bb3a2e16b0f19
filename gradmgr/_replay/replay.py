"""A capture as a function, which makes its calls again on other arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import CaptureError, Slot
from gradmgr._arrays.native import Machine, found
from gradmgr._arrays.products import find_products
from gradmgr._replay.native_replay import NativeWriter
from gradmgr._replay.native_test import check_machine
from gradmgr._replay.replay_text import Writer


class Options(NamedTuple):
    """How a capture is replayed.

    Attributes:
        native: whether the machine of gradmgr-native makes what calls it can, none on a GPU; None if there is one.
        exact: whether all bits are NumPy's; else oneDNN computes products in float32, where it is faster.
    """

    native: bool | Machine | None = None
    exact: bool = True


def require_machine() -> None:
    """Raise ImportError where there is no machine for native replays."""
    if found.get(check_machine) is None:
        raise ImportError(
            f"native=True asks for the machine of gradmgr-native, and there is none: {found.reason}. Leave native=True "
            "out, and Python makes the calls where there is no machine"
        )


def may_fuse(options: Options) -> bool:
    """Tell whether oneDNN and the machine compute matrix products in replays, where they are installed."""
    return not options.exact and _machine(options.native) is not None


def compile_replay(
    capture: Capture,
    results: Sequence[Any],
    rehearsed: Sequence[Slot] = (),
    options: Options = Options(),  # noqa: B008  # it cannot change
    *,
    buffers_from: int = 1,
    checked: bool = False,
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of arrays in place of the inputs that makes the calls again and returns these results.

    A native replay does not look at its inputs: they must have the shapes, dtypes and strides that were captured, and
    none that is written to may overlap another. It gives the bits that a plain one gives, and raises no warnings of
    floating-point numbers.

    Args:
        capture: what to replay.
        results: captured arrays, slots, and other values, which are returned as they are.
        rehearsed: slots that calls before the first effect make, and that are read later.
        options: who makes the calls.
        buffers_from: the bytes from which on results go into buffers, where Python makes all calls.
        checked: whether each product of oneDNN's is compared with NumPy's, within rounding, and replaced by it.

    Returns:
        The function. If calls have effects, it takes a list before the inputs, and appends to it before the first of
        them: until then nothing has changed. Given None for the list, it is a rehearsal, which there are none of on a
        GPU: it returns the rehearsed slots there, and has no effect. It raises GuardError where a guard has another
        value. Its attributes are `text`, and `nbytes` of the memory that it keeps; of a native one `fusion`, the Counts
        of products.

    Raises:
        CaptureError: there are obstacles; or `native` is true, and there is no machine.
    """
    capture.check_obstacles()
    if capture.is_on_gpu():  # whose addresses the machine cannot read; and CuPy's pool gives memory out at once
        return Writer(capture, results, sys.maxsize).function()
    machine = _machine(options.native)
    if machine is None:
        return Writer(capture, results, buffers_from, rehearsed).function()
    products = None if options.exact else find_products(machine)[0]
    return NativeWriter(capture, results, machine, products, rehearsed, checked=checked).function()


def _machine(native: bool | Machine | None) -> Machine | None:
    """Return the machine that is to make calls, or None if Python makes them all."""
    if isinstance(native, Machine) or native is False:
        return native or None
    machine = found.get(check_machine)
    if machine is None and native:
        raise CaptureError(f"a native replay was asked for, but there is no machine: {found.reason}")
    return machine
