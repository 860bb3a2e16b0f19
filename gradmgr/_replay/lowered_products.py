"""Matrix products of captured calls as steps of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays.captured_calls import Call
from gradmgr._arrays.native import UfuncLoop
from gradmgr._replay.call_facts import bound
from gradmgr._replay.lowered_ufuncs import UfuncRules
from gradmgr._replay.slot_views import temporary
from gradmgr._replay.steps import (
    NotLoweredError,
    Step,
    View,
    axes_of,
    broadcast,
    is_contiguous,
    is_in_same_memory,
    of_loop,
    over,
    transposed,
)

VECDOT: Any = getattr(np, "vecdot", None)  # NumPy has it since 2.0


class ProductRules(UfuncRules):
    """Takes products of matrices and vectors apart."""

    def _dot(self, call: Call) -> list[Step]:
        """A product of matrices and vectors: what `matmul` gives for contiguous ones; `dot` copies other matrices."""
        facts = bound(call, ("a", "b", "out"))
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
                copied = temporary(view.shape, view.dtype)
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
        loop = self.machine.loop(VECDOT, (a.dtype, b.dtype, None))
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
