"""Affine maps, table look-up, dropout, measured by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._engine.tensor import bare
from gradmgr.nn import functional
from gradmgr.nn._functions import embedding
from samples._table import ANALYTIC, Arg, Array, add, given


def call(
    name: str, case: str, *args: Arg, reference: Any, facts: dict[str, Any] | None = None, **keywords: Any
) -> None:
    """Enter nn.functional.name(*args, **keywords); a seed makes the generator, a new one for each call."""
    seed = keywords.pop("seed", None)

    def run(xp: Any, *given: Any) -> Any:
        rng = {} if seed is None else {"rng": np.random.default_rng(seed)}
        return getattr(functional, name)(*given, **keywords, **rng)

    add(
        f"nn.{name}",
        case,
        run,
        *args,
        reference=reference,
        dispatches=False,
        **(facts or {}),
    )


def affine(x: Array, w: Array, b: Array | None = None) -> Array:
    """What linear computes, in one dtype; sums of halves in singles."""
    dtype = np.result_type(x, w, *(() if b is None else (b,)))
    inner = np.float32 if dtype.itemsize == 2 else dtype
    y = np.einsum("...i,oi->...o", x.astype(inner), w.astype(inner))
    return np.asarray(y if b is None else y + b.astype(inner)).astype(dtype)


call("linear", "matrix", Arg((3, 4)), Arg((2, 4)), reference=affine, facts=ANALYTIC | {"third": True})
call("linear", "bias", Arg((3, 4)), Arg((2, 4)), Arg((2,)), reference=affine, facts=ANALYTIC)
call("linear", "vector", Arg((4,)), Arg((2, 4)), Arg((2,)), reference=affine, facts=ANALYTIC)
call("linear", "further axes", Arg((2, 3, 4)), Arg((2, 4)), Arg((2,)), reference=affine)
call(
    "linear",
    "weight without rows",
    Arg((3, 4)),
    Arg((4,)),
    Arg(()),
    reference=lambda x, w, b: affine(x, w[None], b)[..., 0],
)
call("linear", "no batch", Arg((0, 4)), Arg((2, 4)), Arg((2,)), reference=affine)
call("linear", "no features", Arg((3, 0)), Arg((2, 0)), Arg((2,)), reference=affine)
call("linear", "frozen", Arg((3, 4)), Arg((2, 4), constant=True), Arg((2,)), reference=affine)
call("linear", "frozen input", Arg((3, 4), constant=True), Arg((2, 4)), reference=affine)


def rows(places: Array, table: Array) -> Array:
    """What embedding computes."""
    return table[places]


_PLACES = given([[2, 0, 2], [1, 2, 4]])
_PADDED: dict[str, Any] = {"smooth": False}  # differences do not see that a row is a constant
call("embedding", "narrow", _PLACES, Arg((5, 3)), reference=rows, facts=ANALYTIC)
call("embedding", "wide", _PLACES, Arg((5, 33)), reference=rows)
call("embedding", "0-d", given(3), Arg((5, 3)), reference=rows)
call("embedding", "no indices", given(np.zeros((2, 0), int)), Arg((5, 3)), reference=rows)
call("embedding", "padding", _PLACES, Arg((5, 3)), reference=rows, facts=_PADDED, padding_idx=-3)
call("embedding", "by frequency", _PLACES, Arg((5, 3)), reference=rows, facts=_PADDED, scale_grad_by_freq=True)
call(
    "embedding",
    "both, wide",
    _PLACES,
    Arg((5, 33)),
    reference=rows,
    facts=_PADDED,
    padding_idx=1,
    scale_grad_by_freq=True,
)
call("embedding", "sparse", _PLACES, Arg((5, 3)), reference=rows, facts=ANALYTIC, sparse=True)
call("embedding", "sparse, padding", _PLACES, Arg((5, 3)), reference=rows, facts=_PADDED, padding_idx=2, sparse=True)

_OFFSETS = [0, 2, 2]  # the second bag of six indices is empty


def bags(function: Any, padding: int | None = None, starts: Any = None) -> Any:
    """Make what embedding_bag computes, by a loop over the bags; 0 for an empty one."""

    def reference(places: Array, table: Array, *weights: Array) -> Array:
        flat, factors = places.ravel(), np.ones(places.shape) if not weights else weights[0]
        ends = np.arange(len(places)) * places.shape[-1] if starts is None else np.array(starts)
        owner = np.searchsorted(ends, np.arange(places.size), side="right") - 1
        found = np.zeros((len(ends), table.shape[1]), table.dtype)
        for k in range(len(ends)):
            kept = [j for j in range(places.size) if owner[j] == k and flat[j] != padding]
            if kept:
                found[k] = function(table[flat[kept]] * factors.ravel()[kept, None].astype(table.dtype), axis=0)
        return found

    return reference


_FLAT = given([2, 0, 2, 1, 2, 4])
_EACH: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}
for _mode, _function in _EACH.items():
    _facts = {} if _mode == "max" else ANALYTIC
    call("embedding_bag", f"{_mode} of rows", _PLACES, Arg((5, 3)), reference=bags(_function), facts=_facts, mode=_mode)
    call(
        "embedding_bag",
        f"{_mode}, offsets, padding",
        _FLAT,
        Arg((5, 33)),
        reference=bags(_function, 2, _OFFSETS),
        facts=_PADDED,
        mode=_mode,
        offsets=np.array([*_OFFSETS, 6]),
        include_last_offset=True,
        padding_idx=2,
        sparse=_mode != "mean",
    )
add(
    "nn.embedding_bag",
    "weights",
    lambda xp, places, table, weights: functional.embedding_bag(
        places, table, np.array(_OFFSETS), mode="sum", per_sample_weights=weights
    ),
    _FLAT,
    Arg((5, 3)),
    Arg((6,)),
    reference=bags(np.sum, None, _OFFSETS),
    dispatches=False,
    **ANALYTIC,
)
call("embedding_bag", "no indices", given(np.zeros((2, 0), int)), Arg((5, 3)), reference=bags(np.sum), mode="max")

# What the seed 7 draws for p = 0.3.
_KEPT = np.array([[True, False, True, True], [True, False, False, True], [True, True, False, True]])
call(
    "dropout",
    "0.3",
    Arg(),
    reference=lambda x: _KEPT * x / x.real.dtype.type(0.7),
    facts=ANALYTIC,
    p=0.3,
    seed=7,
)
call("dropout", "1", Arg(), reference=np.zeros_like, p=1.0)
call("dropout", "nothing", Arg((0, 3)), reference=lambda x: x, p=0.5)
call("dropout", "not training", Arg(), reference=lambda x: x, training=False)


def read_alone(places: Array, table: Array) -> Array:
    """Rows as the tangent of embedding reads them: divided by how often each is named, zeros for padding row 2."""
    counts = np.bincount(places.ravel(), minlength=len(table)).astype(table.dtype)
    return np.where((places == 2)[..., None], table.dtype.type(0), table[places] / counts[places][..., None])


add(
    "nn.embedding",
    "its tangent alone",
    lambda xp, places, table: embedding._read(table, bare(places), 2, True),
    _PLACES,
    Arg((5, 3)),
    reference=read_alone,
    dispatches=False,
    **ANALYTIC,
)
