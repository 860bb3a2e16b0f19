"""Ops that only the engine calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._engine.broadcast import broadcast_to, cast, sum_to
from gradmgr._engine.indexing import scatter
from gradmgr._engine.tensor import raw
from gradmgr._transforms.vmap import vmap
from gradmgr.ops.arithmetic import sin
from gradmgr.ops.convert import _to
from gradmgr.ops.reduce import _gather
from gradmgr.ops.running import _recur
from gradmgr.ops.shape import sliding_window_view
from samples._table import CUBE, Arg, Array, Field, X, add

# ---------------------------------------------------------------- ops that only the engine calls


def _recurrence(b: Array, a: Array) -> Array:
    out = b.astype(np.result_type(a, b))
    for k in range(1, out.shape[-1]):
        out[..., k] += a[..., k] * out[..., k - 1]
    return out


def _scattered(x: Array) -> Array:
    out = np.zeros((3, 4), x.dtype)
    np.add.at(out, ([0, 2, 0], slice(1, None)), x)
    return out


def engine(
    name: str, call: Callable[..., Any], reference: Callable[..., Any], *args: Arg, field: Field = "analytic"
) -> None:
    """Enter an op that has no public name of its own."""
    add(
        f"engine.{name}",
        "as called",
        call,
        *args,
        reference=reference,
        dispatches=False,
        third=True,
        field=field,
    )


engine("sum_to", lambda xp, x: sum_to(x, (3, 1)), lambda x: x.sum(axis=(0, 2))[:, None], CUBE)
engine("broadcast_to", lambda xp, x: broadcast_to(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), Arg((3, 1)))
engine("astype", lambda xp, x: cast(x, np.dtype(np.complex128)), lambda x: x.astype(np.complex128), X, field="complex")
engine("scatter", lambda xp, x: scatter(x, (3, 4), (np.array([0, 2, 0]), slice(1, None))), _scattered, Arg((3, 3)))
engine("to", lambda xp, x: _to(x, x.device, x.device), lambda x: x, X)
engine("linear_recurrence", lambda xp, b, a: _recur(b, a, 1), _recurrence, X, X)
engine(
    "sliding_window_view",
    lambda xp, x: sliding_window_view(x, (2, 3)),
    lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 3)),
    Arg((4, 5)),
)
engine(
    "vmap",
    lambda xp, x, w: vmap(lambda column: sin(column * w) * column, 1, 1)(x),
    lambda x, w: np.sin(x * w[:, None]) * x,
    X,
    Arg((3,)),
)

# One extreme in each row, as mostly, and equal ones, which share.
_SINGLE = Arg(values=[[1, 5, 2, 3], [7, 0, 6, 2], [3, 4, 1, 9]], constant=True)
_EQUAL = Arg(values=[[1, 5, 5, 3], [7, 7, 7, 7], [3, 4, 1, 9]], constant=True)


def _at_extremes(t: Array, x: Array) -> Array:
    top = x == x.max(axis=1, keepdims=True)
    return (t * (top / top.sum(axis=1, keepdims=True))).sum(axis=1, keepdims=True).astype(t.dtype)


for _case, _x in {"single": _SINGLE, "equal": _EQUAL}.items():
    add(
        "engine.gather_from_extremes",
        _case,
        lambda xp, t, x: _gather(t, raw(x).astype(t.dtype), raw(x).max(axis=1).astype(t.dtype), (1,), True),
        X,
        _x,
        reference=_at_extremes,
        dispatches=False,
        third=True,
    )
