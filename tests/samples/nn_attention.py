"""nn.functional.scaled_dot_product_attention, measured by a softmax that NumPy writes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.nn._functions.attention import scaled_dot_product_attention
from gradmgr.nn._functions.dropout import dropout
from samples._table import Arg, Array, add, at, given


def naive(query: Array, key: Array, value: Array, mask: Any = None, **options: Any) -> Array:
    """softmax(query key^T scale + mask) value."""
    dtype = np.result_type(query, key, value)
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    q, k, v = (np.asarray(a, wide) for a in (query, key, value))
    if options.get("enable_gqa"):
        k, v = (np.repeat(a, q.shape[-3] // a.shape[-3], axis=-3) for a in (k, v))
    scale = options.get("scale")
    scores = (q * (float(1 / np.sqrt(q.shape[-1])) if scale is None else scale)) @ np.swapaxes(k, -1, -2)
    if options.get("is_causal"):
        mask = np.tri(*scores.shape[-2:], dtype=bool)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(wide)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    share = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = share.sum(axis=-1, keepdims=True)
    share = share / np.where(total == 0, 1, total)
    if options.get("dropout_p"):
        share = share * dropout(np.ones_like(share), options["dropout_p"], rng=np.random.default_rng(7))
    return (share.astype(wide) @ v).astype(dtype)


def attention(case: str, *args: Arg, third: bool = False, **options: Any) -> None:
    """Enter a call with options; a fourth argument is the mask."""

    def call(xp: Any, *arrays: Any) -> Any:
        rng = {"rng": np.random.default_rng(7)} if "dropout_p" in options else {}
        return scaled_dot_product_attention(*arrays, **options, **rng)

    add(
        "nn.scaled_dot_product_attention",
        case,
        call,
        *args,
        reference=lambda *arrays: naive(*arrays, **options),
        dispatches=False,
        third=third,
    )


_KEPT = given([[True, False, True, True], [False, False, False, False], [True, True, True, False]])
_ADDED = at([[0.5, -np.inf, -1.0, 0.0], [-np.inf, -np.inf, -np.inf, -np.inf], [0.0, 1.0, 0.3, -0.7]])

attention("plain", Arg((2, 3, 2)), Arg((2, 4, 2)), Arg((2, 4, 3)), third=True)
attention("leading axes broadcast", Arg((2, 1, 3, 2)), Arg((3, 4, 2)), Arg((2, 1, 4, 2)), scale=0.3)
attention("a boolean mask, a row without keys", Arg((2, 3, 2)), Arg((2, 4, 2)), Arg((2, 4, 2)), _KEPT)
attention("a mask that is added", Arg((2, 2, 3, 2)), Arg((2, 2, 4, 2)), Arg((2, 2, 4, 2)), Arg((2, 1, 1, 4)))
attention("a mask with -inf", Arg((3, 2)), Arg((4, 2)), Arg((4, 2)), Arg(values=_ADDED.values, constant=True))
attention("causal", Arg((2, 3, 2)), Arg((2, 4, 2)), Arg((2, 4, 2)), is_causal=True)
attention("causal, fewer keys", Arg((4, 2)), Arg((2, 2)), Arg((2, 3)), is_causal=True)
attention("grouped queries", Arg((2, 4, 3, 2)), Arg((2, 2, 3, 2)), Arg((2, 2, 3, 2)), enable_gqa=True)
attention("dropout", Arg((2, 3, 2)), Arg((2, 4, 2)), Arg((2, 4, 2)), dropout_p=0.4)
attention("no queries", Arg((0, 2)), Arg((4, 2)), Arg((4, 3)))
attention("no keys", Arg((3, 2)), Arg((0, 2)), Arg((0, 3)))
