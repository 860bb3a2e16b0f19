"""The losses in NumPy's functions: read by NumPy itself, by HIPS autograd, and by JAX where it has no better functions.

Each is loss(xp, erf, values, x, target); `xp` mirrors NumPy's namespace, `values` is a mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.train.models import HEADS

Array = Any
Values = Mapping[str, Array]


def mlp(xp: Any, erf: Any, p: Values, x: Array, target: Array) -> Array:
    depth = len(p) // 2
    h = x
    for k in range(depth - 1):
        h = xp.tanh(h @ p[f"weight{k}"].T + p[f"bias{k}"])
    return xp.mean((h @ p[f"weight{depth - 1}"].T + p[f"bias{depth - 1}"] - target) ** 2)


def _expit(xp: Any, a: Array) -> Array:
    return 0.5 * (xp.tanh(0.5 * a) + 1)


def lstm_cell(xp: Any, p: Values, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    size = h.shape[-1]
    a = x @ p["weight_ih"].T + h @ p["weight_hh"].T + (p["bias_ih"] + p["bias_hh"])
    i, f, o = (_expit(xp, a[:, k * size : (k + 1) * size]) for k in (0, 1, 3))
    c = f * c + i * xp.tanh(a[:, 2 * size : 3 * size])
    return o * xp.tanh(c), c


def lstm(xp: Any, erf: Any, p: Values, x: Array, target: Array) -> Array:
    h = c = np.zeros(target.shape[1:], x.dtype)
    seen = []
    for step in x:
        h, c = lstm_cell(xp, p, step, h, c)
        seen.append(h)
    return xp.mean((xp.stack(seen) - target) ** 2)


def _layer_norm(xp: Any, x: Array, weight: Array, bias: Array) -> Array:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5) * weight + bias


def _attention(xp: Any, p: Values, x: Array) -> Array:
    batch, length, width = x.shape
    qkv = xp.reshape(x @ p["qkv"].T, (batch, length, 3, HEADS, width // HEADS))
    q, k, v = (xp.swapaxes(qkv[:, :, part], 1, 2) for part in range(3))
    ahead = np.triu(np.full((length, length), -np.inf, x.dtype), 1)
    scores = q @ xp.swapaxes(k, -1, -2) * (width // HEADS) ** -0.5 + ahead
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    return xp.reshape(xp.swapaxes(weights @ v, 1, 2), (batch, length, width)) @ p["out_weight"].T + p["out_bias"]


def gpt(xp: Any, erf: Any, p: Values, x: Array, target: Array) -> Array:
    x = x + _attention(xp, p, _layer_norm(xp, x, p["norm1_weight"], p["norm1_bias"]))
    h = _layer_norm(xp, x, p["norm2_weight"], p["norm2_bias"]) @ p["up_weight"].T + p["up_bias"]
    h = 0.5 * h * (1 + erf(h * math.sqrt(0.5)))
    return xp.mean((x + h @ p["down_weight"].T + p["down_bias"] - target) ** 2)


def _convolved(xp: Any, x: Array, weight: Array, bias: Array) -> Array:
    """Return a convolution with zeros around: what the kernel covers is laid side by side, for one product."""
    *_, rows, columns = x.shape
    x = xp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), "constant")
    covered = [x[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return xp.moveaxis(
        xp.tensordot(xp.stack(covered, axis=2), xp.reshape(weight, (*weight.shape[:2], 9)), ((1, 2), (1, 2))), -1, 1
    ) + xp.reshape(bias, (-1, 1, 1))


def pooled(xp: Any, x: Array) -> Array:
    batch, channels, rows, columns = x.shape
    return xp.max(xp.reshape(x, (batch, channels, rows // 2, 2, columns // 2, 2)), axis=(3, 5))


def cnn_head(xp: Any, p: Values, x: Array, target: Array) -> Array:
    logits = xp.reshape(x, (x.shape[0], -1)) @ p["linear_weight"].T + p["linear_bias"]
    logits = logits - xp.max(logits, axis=1, keepdims=True)
    return xp.mean(xp.log(xp.sum(xp.exp(logits), axis=1)) - logits[np.arange(len(target)), target])


def cnn(xp: Any, erf: Any, p: Values, x: Array, target: Array) -> Array:
    for k in (1, 2):
        x = pooled(xp, xp.maximum(_convolved(xp, x, p[f"conv{k}_weight"], p[f"conv{k}_bias"]), 0))
    return cnn_head(xp, p, x, target)


LOSSES: Mapping[str, Callable[..., Array]] = {"mlp": mlp, "lstm": lstm, "gpt": gpt, "cnn": cnn}
