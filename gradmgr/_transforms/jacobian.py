"""Jacobians and Hessians: blocks of rows by reverse mode, of columns by forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.listening import told
from gradmgr._engine.context import current, is_tracked, recorders
from gradmgr._engine.recorder import Recorder, snapshot
from gradmgr._engine.tensor import Tensor, raw
from gradmgr._transforms.derivative import (
    DerivativeCall,
    Derivatives,
    Pullback,
    Pushforward,
    as_tensor,
    check_varies,
    make_handle,
    one_real_output,
)
from gradmgr._transforms.vmap import map_units
from gradmgr.ops.join import stack
from gradmgr.ops.shape import reshape, transpose


class Gradient:
    """The gradient of the scalar function of a call, as a function; sets the outputs of the call."""

    def __init__(self, call: DerivativeCall) -> None:
        self._call = call

    def call_func(self, xs: Sequence[Tensor]) -> Derivatives:
        """Return the gradients at handles of the inputs, None if there is none."""
        back = Pullback(self._call.call_func, xs)
        return back.run(self._gradients, back, recorders(current()))

    def _gradients(self, back: Pullback, outside: list[Recorder]) -> Derivatives:
        call = self._call
        y = one_real_output(call.name, back.made, call.one_output)
        call.check_depends(back.tape, back.made, back.leaves)
        call.outs = [as_tensor(snapshot(y, call.outside))]
        return [None if g is None else snapshot(g, outside) for g in back.vjp([y], [None], last=True)]


def jacobian_blocks(
    call: DerivativeCall, compute: Callable[[list[Tensor]], Any], vectorize: bool, strategy: str, what: str
) -> list[Derivatives]:
    """Return the blocks of a Jacobian: for each output a list with one block for each input."""
    backward = strategy == "reverse-mode"
    if backward or call.strict:  # with strict, a tape is asked what depends on what
        back = Pullback(compute, call.xs)

        def blocks() -> list[Derivatives]:
            if call.strict and what != "output":
                check_varies(call.name, back.tape, back.made, "the gradient")
            call.check_depends(back.tape, back.made, back.leaves, what)
            return [_RowBlocks(back, y, vectorize).blocks(call.xs) for y in back.made] if backward else []

        rows = back.run(blocks)
        if backward:
            return rows
    columns = [_ColumnBlocks(call, compute, k, vectorize).blocks() for k in range(len(call.xs))]
    return [list(row) for row in zip(*columns, strict=True)]


def _unit_arrays(t: Tensor) -> Any:
    """Return the unit arrays of a tensor's shape, along a first axis."""
    a = t._array
    return libraries.namespace(a).eye(t.size, dtype=a.dtype).reshape((t.size, *t.shape))


class _RowBlocks:
    """The rows of a Jacobian that belong to one output."""

    def __init__(self, back: Pullback, y: Tensor, vectorize: bool) -> None:
        self._back = back
        self._y = y
        self._vectorize = vectorize

    def blocks(self, xs: Sequence[Tensor]) -> Derivatives:
        """Return the Jacobian by each input, None if there is none."""
        y = self._y
        if self._back.tape.node_id_of(y) is None:
            return [_zero_block(y, x, x.dtype) for x in xs]
        stacks = list(map(told, self._gradient_stacks(1)))
        if y.dtype.kind == "c":
            stacks = [
                None if g is None or h is None else g.real + h.real * 1j
                for g, h in zip(stacks, map(told, self._gradient_stacks(1j)), strict=True)
            ]
        return [
            _zero_block(y, x, x.dtype) if g is None else _reshape_if_needed(g, (*y.shape, *x.shape))
            for g, x in zip(stacks, xs, strict=True)
        ]

    def _gradient_stacks(self, factor: complex) -> Derivatives:
        """Return, for each input, a stack of its gradients for each unit array of the output times a factor."""
        if not self._y.size:
            return [None] * len(self._back.leaves)
        return _stack_derivatives(lambda u: self._back.vjp([self._y], [u]), self._y, factor, self._vectorize)


def _stack_derivatives(
    derivative: Callable[[Any], Derivatives], t: Tensor, factor: complex, vectorize: bool
) -> Derivatives:
    """Stack the derivatives along each unit array of a tensor's shape, times a factor; None for one is None for all."""
    units = _unit_arrays(t) if factor == 1 else _unit_arrays(t) * factor
    if not vectorize:
        columns = zip(*[derivative(unit) for unit in units], strict=True)
        return [None if column[0] is None else _stack(column) for column in columns]
    return map_units(derivative, units, identity=t.ndim == 1 and factor == 1)


def _stack(parts: Sequence[Any]) -> Any:
    if any(isinstance(part, Tensor) for part in parts):
        return stack(parts)
    arrays = list(map(told, parts))
    return libraries.namespace(arrays[0]).stack(arrays)


def _reshape_if_needed(t: Any, shape: tuple[int, ...]) -> Any:
    return t if t.shape == shape else reshape(t, shape)


def _first_axis_last(t: Any) -> Any:
    """Move the first axis to the end."""
    axes = (*range(1, t.ndim), 0)
    return transpose(t, axes) if isinstance(t, Tensor) and is_tracked(t) else raw(t).transpose(axes)


def _zero_block(y: Tensor, x: Tensor, dtype: Any) -> Any:
    """Return zeros for the derivative of `y` by `x`, of `dtype` or, where `x` or `y` is complex, its complex dtype."""
    if "c" in (y.dtype.kind, x.dtype.kind):
        dtype = np.result_type(dtype, np.complex64)
    return libraries.namespace(x._array).zeros((*y.shape, *x.shape), dtype)


class _ColumnBlocks:
    """The columns of a Jacobian that belong to one input."""

    def __init__(self, call: DerivativeCall, compute: Callable[[list[Tensor]], Any], k: int, vectorize: bool) -> None:
        self._call = call
        self._compute = compute
        self._k = k
        self._vectorize = vectorize
        self._outs: list[Tensor] = []

    def blocks(self) -> Derivatives:
        """Return the Jacobian of each output."""
        x = self._call.xs[self._k]
        if not x.size:
            outs = self._compute([make_handle(t) for t in self._call.xs])
            return [_zero_block(y, x, y.dtype) for y in outs]
        stacks = list(map(told, _stack_derivatives(self._tangents_along, x, 1, self._vectorize)))
        if x.dtype.kind == "c" and any(y.dtype.kind != "c" for y in self._outs):
            imaginary = list(map(told, _stack_derivatives(self._tangents_along, x, 1j, self._vectorize)))
            stacks = [
                t if t is None or y.dtype.kind == "c" else t + u * 1j
                for t, u, y in zip(stacks, imaginary, self._outs, strict=True)
            ]
        return [
            _zero_block(y, x, y.dtype) if t is None else _reshape_if_needed(_first_axis_last(t), (*y.shape, *x.shape))
            for t, y in zip(stacks, self._outs, strict=True)
        ]

    def _tangents_along(self, unit: Any) -> Derivatives:
        vs = [unit if k == self._k else None for k in range(len(self._call.xs))]
        forward = Pushforward(self._call.xs, vs)

        def tangents() -> Derivatives:
            self._outs = self._compute(forward.leaves)
            return forward.tangents(self._outs)

        return forward.run(tangents)
