"""Sums, maxima and other reductions of captured calls as steps of the machine, in the order in which NumPy adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays.captured_calls import Call
from gradmgr._replay.call_facts import bound
from gradmgr._replay.lowered_ufuncs import UfuncRules
from gradmgr._replay.slot_views import constant
from gradmgr._replay.steps import (
    NotLoweredError,
    Step,
    View,
    elementwise,
    is_contiguous,
    of_loop,
    over,
    overlaps,
    size_of,
)

# Before NumPy 2.3, sums go over pieces of as many elements as np.getbufsize() says when they are not along one axis.
_IN_PIECES = 8192 if np.lib.NumpyVersion(np.__version__) < "2.3.0" else 0


class SumRules(UfuncRules):
    """Takes reductions apart."""

    def _reduced(self, ufunc: np.ufunc, call: Call, names: tuple[str, ...], axis: Any) -> list[Step]:
        facts = bound(call, ("a", *names))
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
            steps.append(self._copied(constant(least), out))
        elif ufunc in (np.maximum, np.minimum):
            a, first = _without_first(a, where)
            steps.append(self._copied(first, kept._replace(shape=first.shape)))
            if not size_of(a.shape):
                return steps
            kept = kept._replace(shape=a.shape)
        else:
            steps.append(self._copied(constant(np.array(ufunc.identity, out.dtype)), out))
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
        facts = bound(call, ("a", "axis", "dtype", "out", "keepdims"))
        made = self.made(call)
        if "a" not in facts or facts.keys() - {"a", "axis", "dtype", "out", "keepdims"}:
            raise NotLoweredError
        a = self._value(facts["a"], made.dtype)
        if facts.get("dtype") is not None or facts.get("out") is not None or made.dtype.char not in "fd":
            raise NotLoweredError
        steps = self._reduction(np.add, a, facts.get("axis"), made)
        wide = np.dtype(np.float64)
        count = constant(np.array(size_of(a.shape) // size_of(made.shape), wide))
        loop = self.machine.loop(np.true_divide, (wide, wide, None))
        if loop is None:
            raise NotLoweredError
        total = self._cast(made, None, wide, steps, True)
        quotient = total if total is not made else made
        steps.append(elementwise(loop.function, [total, count, quotient], **of_loop(loop)))
        return steps if quotient is made else [*steps, self._copied(quotient, made)]


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


def _reduced_axes(axis: Any, ndim: int) -> set[int]:
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(d, (int, np.integer)) for d in axes):
        raise NotLoweredError
    return {int(d) % ndim for d in axes}
