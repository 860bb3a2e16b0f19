"""The derivatives of a function of Tensors that gradcheck compares: vjp, jvp, and those of a recording.

They are functions of Tensors themselves, so that derivatives of derivatives are checked the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.context import current, recorders
from gradmgr._engine.forward import ForwardScope
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.manager import GradManager

Function = Callable[..., Any]


def vjp(func: Function, points: Sequence[Any], argnums: Sequence[int], us: Sequence[Any]) -> list[Tensor]:
    """Return the cotangents of the inputs at `where`, through a manager; differentiable itself."""
    leaves = [new_handle(t) for t in points]
    recorded = Recorded([leaves[k] for k in argnums])

    def compute() -> None:
        outs = [y for _, y in differentiable_outputs(func(*leaves))]
        tape = recorded.manager._open_tape()
        pairs = [(y, u) for y, u in zip(outs, us, strict=True) if tape.node_id_of(y) is not None]
        recorded.manager.backward([y for y, _ in pairs], [u for _, u in pairs])

    recorded.run(compute)
    return [or_zeros(leaves[k].grad, leaves[k]) for k in argnums]


def jvp(func: Function, points: Sequence[Any], argnums: Sequence[int], vs: Sequence[Any]) -> list[Any]:
    """Return the tangents of the outputs for tangents of the inputs at `where`; differentiable itself."""
    leaves = [new_handle(t) for t in points]
    scope = ForwardScope(is_of_transform=True)
    for k, v in zip(argnums, vs, strict=True):
        scope.level.add_dual(leaves[k], v)
    tangents = scope.run(
        lambda: [or_zeros(scope.level.node_id_of(y), y) for _, y in differentiable_outputs(func(*leaves))]
    )
    return [t if isinstance(t, Tensor) else wrap(t) for t in tangents]


class _Manager(GradManager):
    """The manager of one derivative, as of a transform."""

    is_of_transform = True


class Recorded(Scope):
    """In which a manager of its own records what is computed from Tensors."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.manager = _Manager().attach(inputs)

    def _open(self, opened: Any) -> None:
        self.manager.record()

    def _close(self, opened: Any) -> None:
        self.manager._release()


# ---------------------------------------------------------------- inputs and outputs


def new_handle(t: Any) -> Any:
    """Return a new tensor with the node ids of `t`, as func may write to it in place."""
    if not isinstance(t, Tensor):
        return t
    handle = snapshot(t, recorders(current()))
    handle = handle if isinstance(handle, Tensor) else wrap(handle)
    handle._view_of = ()  # a variable, as points are
    return handle


def or_zeros(value: Any, like: Tensor) -> Any:
    return wrap(libraries.namespace(like._array).zeros_like(like._array)) if value is None else value


def differentiable_outputs(result: Any) -> list[tuple[int, Tensor]]:
    """Return the differentiable outputs of a function, each with its position."""
    many = list(result) if isinstance(result, (list, tuple)) else [result]
    for k, y in enumerate(many):
        if not isinstance(y, Tensor):
            which = f"as output {k} " if len(many) > 1 else ""
            raise TypeError(f"gradcheck: the function must return Tensors; found {type(y).__name__} {which}".rstrip())
    return [(k, y) for k, y in enumerate(many) if is_differentiable(y)]


def is_differentiable(t: Any) -> bool:
    return isinstance(t, Tensor) and libraries.is_differentiable(t.dtype)


def on_host(value: Any) -> Any:
    return np.asarray(libraries.to_device(raw(value), "cpu"))


def flatten(values: Sequence[Any]) -> Any:
    """Return all values as one real vector; a complex array gives its real parts, then its imaginary ones."""
    parts = [np.zeros(0)]
    for value in map(on_host, values):
        parts.append(value.real.ravel())
        if value.dtype.kind == "c":
            parts.append(value.imag.ravel())
    return np.concatenate(parts).astype(float)


def unit_arrays(t: Tensor) -> list[Any]:
    """Return the unit arrays of a tensor's shape, real and, for complex dtypes, imaginary."""
    units = []
    for scale in (1, 1j) if t.dtype.kind == "c" else (1,):
        for k in range(t.size):
            unit = np.zeros(t.size, t.dtype)
            unit[k] = scale
            units.append(libraries.to_device(unit.reshape(t.shape), t.device))
    return units
