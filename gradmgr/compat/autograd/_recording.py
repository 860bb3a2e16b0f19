"""A function at a point: recorded for reverse mode, or run in forward mode, on nested containers of numbers.

autograd's convention for complex numbers is the conjugate of gradmgr's, so cotangents are conjugated on their way in
and out. Tangents are the same in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of, parts_of, rebuilt
from gradmgr._engine.context import current, recorders
from gradmgr._engine.mutation import as_type
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr._transforms.derivative import (
    Derivatives,
    Function,
    LastingPullback,
    Pushforward,
    as_kind_of,
    is_differentiable_leaf,
    leaf_as_tensor,
    new_tensors,
    zeros_of,
)


class Point:
    """Where a function is differentiated: a container, the Tensors in it that vary, and what stays."""

    def __init__(self, x: Any) -> None:
        self.given = x
        self.is_one = parts_of(x) is None  # no container: 5 us less for each derivative
        self.leaves = [_as_floating(leaf) for leaf in ([x] if self.is_one else leaves_of(x))]
        self.is_varied = [is_differentiable_leaf(leaf) for leaf in self.leaves]
        if not any(self.is_varied) and self.leaves:  # an empty container has an empty gradient
            found = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in self.leaves})
            raise errors.DtypeError(
                f"can't differentiate with respect to {type(x).__name__}: it holds {', '.join(found)} only, and "
                "derivatives are by float16, float32, float64, complex64 and complex128; pass floats, such as 3.0 for 3"
            )
        self.tensors = [
            leaf_as_tensor(leaf) for leaf, varied in zip(self.leaves, self.is_varied, strict=True) if varied
        ]

    def filled(self, values: Sequence[Any]) -> Any:
        """Return the container with these values for those that vary."""
        if self.is_one:
            return values[0]
        given = iter(values)
        pairs = zip(self.leaves, self.is_varied, strict=True)
        return rebuilt(self.given, iter([next(given) if varied else leaf for leaf, varied in pairs]))

    def derivatives(self, found: Derivatives) -> Any:
        """Return gradients of the values that vary, None for zeros, in the container; zeros for other numbers."""
        found = [zeros_of(t) if g is None else g for g, t in zip(found, self.tensors, strict=True)]
        if self.is_one:
            return conjugate(_scalar_or_array(new_tensors(found)[0], self.leaves[0]))
        made = iter(new_tensors(found))
        pairs = zip(self.leaves, self.is_varied, strict=True)
        leaves = [
            conjugate(_scalar_or_array(next(made), leaf)) if varied else zeros_like(leaf) for leaf, varied in pairs
        ]
        return rebuilt(self.given, iter(leaves))


def _scalar_or_array(made: Tensor, leaf: Any) -> Any:
    """Return a derivative as what its leaf is; without axes as a NumPy scalar, as programs of autograd format it."""
    value = as_kind_of(made, leaf)
    return value if isinstance(value, Tensor) or value.shape else value[()]


def _as_floating(leaf: Any) -> Any:
    """Return integer arrays as float64, as they may be differentiated by; all else as it is."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu":
        return leaf.astype(np.float64)
    return leaf


def zeros_like(value: Any) -> Any:
    """Return zeros like an array or a number, without axes as a NumPy scalar; None for anything else."""
    value = bare(value)
    is_number = libraries.is_array(value) or isinstance(value, (int, float, complex))
    return np.zeros_like(value)[()] if is_number else None


def conjugate(value: Any) -> Any:
    """Return the conjugate of complex values, anything else as it is."""
    dtype = getattr(value, "dtype", None)
    is_complex = isinstance(value, complex) if dtype is None else dtype.kind == "c"
    return gnp.conj(value) if is_complex else value


def as_plain(value: Any) -> Any:
    """Return a Tensor as an array or a NumPy scalar unless an outer recorder tracks it; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    handle = snapshot(value, recorders(current()))
    return handle if isinstance(handle, Tensor) else handle[()]


class Recording:
    """A function recorded at a point: its value, and its vjp, which may be called at any later time.

    Attributes:
        value: what the function returned, its Tensors as arrays and NumPy scalars, but for what is tracked outside.
    """

    def __init__(self, fun: Function, x: Any) -> None:
        point = self._point = Point(x)
        self._pullback = LastingPullback(lambda handles: fun(point.filled(handles)), point.tensors)
        made = self._pullback.run(lambda: self._pullback.made)
        outs = leaves_of(made)
        self._made = made
        self._tracked = [isinstance(y, Tensor) and self._pullback.tape.node_id_of(y) is not None for y in outs]
        if not any(self._tracked):
            errors.warn("Output seems independent of input.", UserWarning)
        self.value = rebuilt(made, iter(map(as_plain, outs)))
        self._outs = outs

    def gradient(self) -> Any:
        """Return the gradient of the value, which is one real number, in the form of the point; free the history."""
        chosen = self._outs if self._tracked[0] else []
        return self._point.derivatives(self._pullback.vjp_here(chosen, [None] * len(chosen), last=True))

    def vjp(self, g: Any, *, last: bool = False) -> Any:
        """Return the product of a cotangent, in the form of the value, with the Jacobian, in the form of the point.

        Args:
            g: the cotangent.
            last: free the history meanwhile.
        """
        gs = leaves_of(g)
        if len(gs) != len(self._outs):
            raise errors.ShapeError(
                f"vjp: the cotangent has {len(gs)} parts and the function's value {len(self._outs)}; give one for each"
            )
        chosen = [(y, _as_cotangent(u, y)) for y, u, t in zip(self._outs, gs, self._tracked, strict=True) if t]
        found = self._pullback.vjp_here([y for y, _ in chosen], [u for _, u in chosen], last=last)
        return self._point.derivatives(found)


def _broadcast(a: Any, shape: tuple[int, ...], must: str) -> Any:
    try:
        return np.broadcast_to(a, shape)
    except ValueError:
        raise errors.ShapeError(f"{must}, {shape}; found {a.shape}") from None


def _as_cotangent(u: Any, y: Tensor) -> Any:
    if not isinstance(u, Tensor):
        u = libraries.as_array(u)
        if u.shape != y.shape:
            u = _broadcast(u, y.shape, "vjp: the cotangent must have the shape of the value")
    return conjugate(u)


def value_and_tangent(fun: Function, x: Any, v: Any) -> tuple[Any, Any]:
    """Return the value of a function at a point and its derivative along a direction, by forward mode."""
    point = Point(x)
    directions = leaves_of(v)
    if len(directions) != len(point.leaves):
        raise errors.ShapeError(
            f"jvp: the direction has {len(directions)} parts and the point {len(point.leaves)}; give one for each"
        )
    varied = [d for d, is_varied in zip(directions, point.is_varied, strict=True) if is_varied]
    forward = Pushforward(point.tensors, [_as_tangent(d, t) for d, t in zip(varied, point.tensors, strict=True)])

    def run() -> tuple[Any, list[Any]]:
        made = fun(point.filled(forward.leaves))
        return made, [forward.tangents([y])[0] if isinstance(y, Tensor) else None for y in leaves_of(made)]

    made, tangents = forward.run(run)
    outs = [as_plain(y) for y in leaves_of(made)]
    filled = [
        zeros_like(y) if t is None else as_plain(t) if isinstance(t, Tensor) else t[()]
        for t, y in zip(tangents, outs, strict=True)
    ]
    return rebuilt(made, iter(outs)), rebuilt(made, iter(filled))


def _as_tangent(v: Any, t: Tensor) -> Any:
    """Return a direction in the shape and dtype of a Tensor, recorded if it is tracked."""
    if not isinstance(v, Tensor):
        v = wrap(_broadcast(np.asarray(v), t.shape, "jvp: the direction must have the shape of the point").copy())
    return v if v.dtype == t.dtype else as_type(v, t.dtype)
