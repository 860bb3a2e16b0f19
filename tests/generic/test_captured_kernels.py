"""Kernels that compute large arrays in a way of their own: captured, and made again on other values, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import normal

import gradmgr.numpy as gnp
from gradmgr import GradManager, asarray, special
from gradmgr._arrays.capture import Capture
from gradmgr._replay.capture_difference import difference
from gradmgr._replay.replay import compile_replay
from gradmgr._transforms.vmap import vmap
from gradmgr.nn import functional as F  # noqa: N812  # torch's name

ROWS = (64, 200)
IMAGES = (8, 16, 16, 16)
ONES = {name: np.ones(IMAGES, name) for name in ("float32", "float64")}
CONSTANT_ROWS = {name: np.ones((8, 100), name) for name in ("float32", "float64")}
HEADS = (4, 4, 64, 16)
_random = np.random.default_rng(0)
LABELS = _random.integers(0, 200, 64)
MASK = _random.random((64, 64)) < 0.5
TARGETS = MASK * 1.0
TABLE = np.linspace(-3, 3, 50), np.linspace(0, 1, 50) ** 2
MANY_PLACES = np.tile(LABELS, 20)


def _unary(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    return function, [(200, 150)]


def _binary(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    return lambda x, y: function(abs(x) + 0.1, abs(y) + 0.1), [(60, 100), (60, 100)]


def _cross_entropy(**options: Any) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    return lambda x: F.cross_entropy(x, LABELS, **options), [ROWS]


# The function, and the shapes of what it is given.
KERNELS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{name: _unary(getattr(F, name)) for name in ("elu", "gelu", "leaky_relu", "relu", "silu", "softplus", "tanh")},
    "gelu, tanh": _unary(lambda x: F.gelu(x, "tanh")),
    "gelu of much": (F.gelu, [(600, 500)]),
    "relu of long rows": (F.relu, [(40, 30, 50)]),
    "relu of short rows": (F.relu, [(3000, 20)]),
    **{name: _unary(getattr(gnp, name)) for name in ("arctan", "arcsinh")},
    **{name: _binary(getattr(gnp, name)) for name in ("hypot", "logaddexp", "arctan2", "maximum")},
    **{name: _unary(getattr(special, name)) for name in ("erf", "erfc", "ndtr", "log_ndtr", "expit")},
    "softmax": (lambda x: F.softmax(x, 1), [ROWS]),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [ROWS]),
    "logsumexp": (lambda x: special.logsumexp(x, 1), [(300, 400)]),
    "cross_entropy": _cross_entropy(),
    "cross_entropy, smooth": _cross_entropy(label_smoothing=0.1),
    "cross_entropy, each": _cross_entropy(reduction="none"),
    "mse_loss": (F.mse_loss, [(300, 40), (300, 40)]),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy_with_logits(x, TARGETS), [(64, 64)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (200,), w, b), [ROWS, (200,), (200,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (200,), w), [ROWS, (200,)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [(8, 16, 8, 8), (16,), (16,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [IMAGES, (32, 16, 3, 3), (32,)]),
    "conv2d, by channel": (lambda x, w: F.conv2d(x, w, groups=32), [(16, 32, 32, 32), (32, 1, 3, 3)]),
    "conv2d, the image a constant": (lambda w: F.conv2d(ONES[w.dtype.name], w), [(32, 16, 3, 3)]),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, None, 2), [IMAGES, (16, 8, 3, 3)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGES]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), [IMAGES]),
    "attention": (F.scaled_dot_product_attention, [HEADS] * 3),
    "attention, causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [HEADS] * 3),
    "attention, masked": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK), [HEADS] * 3),
    "linear": (F.linear, [(8, 16, 100), (50, 100), (50,)]),
    "linear, the input a constant": (lambda w: F.linear(CONSTANT_ROWS[w.dtype.name], w), [(50, 100)]),
    "product of columns": (lambda x, y: x[:, ::2].T @ y, [(64, 100), (64, 1)]),
    "einsum": (lambda x, y: gnp.einsum("bij,bjk,bk->bi", x, y, y[:, 0]), [(8, 64, 100), (8, 100, 30)]),
    "embedding": (lambda w: F.embedding(MANY_PLACES, w), [(200, 64)]),
    "a table that is a constant": (lambda x: asarray(np.arange(99.0))[(abs(x) * 9).astype(int)._array] * x, [(64,)]),
    "places that repeat": (lambda x: x[MANY_PLACES], [(200, 3)]),
    "interp": (lambda x: gnp.interp(x, *TABLE), [(64, 20)]),
    "std": (lambda x: gnp.std(x, axis=0), [(300, 40)]),
    "max": (lambda x: gnp.max(x, axis=1), [(300, 40)]),
    "median": (lambda x: gnp.median(x, axis=0), [(300, 40)]),
    "sort": (lambda x: gnp.sort(x, axis=1), [(300, 40)]),
    "vmap of a product": (lambda x, w: vmap(lambda t: gnp.tanh(t @ w))(x), [(64, 100), (100, 30)]),
}


def with_gradients(function: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    points = [asarray(a) for a in arrays]
    with GradManager().attach(points) as gm:
        y = function(*points)
        gm.backward(gnp.sum(gnp.sin(y * 3)))
    return [y._array, *[t.grad._array for t in points]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_replayed_kernels_compute_the_same_bits(name: str, dtype: str) -> None:
    function, shapes = KERNELS[name]
    some, others = ([normal(*n, seed=seed + k).astype(dtype) for k, n in enumerate(shapes)] for seed in (1, 50))
    captures = [Capture(), Capture()]
    found = [with_gradients(function, [capture.add_input(a) for a in some]) for capture in captures][-1]
    assert difference(*captures) is None
    expected = with_gradients(function, [np.array(a) for a in others])
    for y, z in zip(compile_replay(captures[-1], found)(*others), expected, strict=True):
        assert (y.dtype, y.shape, y.strides) == (z.dtype, z.shape, z.strides)
        np.testing.assert_array_equal(y, z)
