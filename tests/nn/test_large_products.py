"""Linear layers whose products oneDNN computes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from machine import needs_machine

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, nn, tensor
from gradmgr._arrays import large_products

pytestmark = needs_machine

RNG = np.random.default_rng(0)
ROWS, INTO, OUT = 64, 320, 256  # more multiplications than from which on oneDNN computes


def float32(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the products that oneDNN computes, whatever the number of BLAS's threads."""
    multiplier = large_products.found.get()
    if multiplier is None:
        pytest.skip("oneDNN is not installed, or the processor is not known")
    shapes: list[tuple[int, ...]] = []

    class Noting(large_products._Multiplier):
        def store(self, a: Any, b: Any, out: Any) -> bool:
            shapes.append((*a.shape, b.shape[1]))
            return super().store(a, b, out)

    noting = Noting.__new__(Noting)
    vars(noting).update(vars(multiplier), _blas_threads=lambda: 1)
    monkeypatch.setattr(large_products.found, "_multiplier", noting)
    return shapes


def step(x: Any, w: Any, b: Any) -> list[Any]:
    """Return the value of a layer and its gradients."""
    leaves = [tensor(a) for a in (x, w, b)]
    with GradManager().attach(leaves) as gm:
        y = nn.functional.linear(*leaves)
        gm.backward(y, gnp.cos(y.detach()))
    return [y, *[t.grad for t in leaves]]


def bound(a: Any, b: Any) -> Any:
    """By how much a product in float32 may be off."""
    return a.shape[-1] * 2.0**-23 * (np.abs(a).astype(float) @ np.abs(b).astype(float))


@pytest.mark.parametrize("shape", [(ROWS,), (4, ROWS // 4)])
def test_values_and_gradients_are_off_by_rounding_alone(computed, shape):
    x, w, b = float32(*shape, INTO), float32(OUT, INTO), float32(OUT)
    y, of_x, of_w, of_b = [t.numpy() for t in step(x, w, b)]
    assert sorted(computed) == [(ROWS, OUT, INTO), (ROWS, INTO, OUT), (OUT, ROWS, INTO)]
    rows, slope = x.reshape(-1, INTO), np.cos(y).reshape(-1, OUT)
    wide = [a.astype(float) for a in (rows, w, slope)]
    assert (np.abs(y.reshape(-1, OUT) - (wide[0] @ wide[1].T + b)) <= bound(rows, w.T) + 1e-6).all()
    assert (np.abs(of_x.reshape(-1, INTO) - wide[2] @ wide[1]) <= bound(slope, w)).all()
    assert (np.abs(of_w - wide[2].T @ wide[0]) <= bound(slope.T, rows)).all()
    np.testing.assert_allclose(of_b, wide[2].sum(0), rtol=1e-4, atol=1e-4)
    assert of_w.shape == w.shape


def test_small_ones_other_dtypes_and_strided_ones_are_numpys(computed):
    for x, w in (
        (float32(8, 32), float32(16, 32)),
        (float32(ROWS, INTO).astype(float), float32(OUT, INTO).astype(float)),
        (float32(2 * ROWS, INTO)[::2, ::-1], float32(OUT, INTO)),
    ):
        assert np.array_equal(nn.functional.linear(x, w), x.dot(w.T))
    assert not computed


def test_numpy_computes_where_errors_raise_or_blas_has_threads(computed, monkeypatch):
    x, w = float32(ROWS, INTO), float32(OUT, INTO)
    with np.errstate(over="raise"):
        nn.functional.linear(x, w)
    monkeypatch.setattr(large_products.found._multiplier, "_blas_threads", lambda: 2)
    assert np.array_equal(nn.functional.linear(x, w), x.dot(w.T))
    assert not computed


def test_where_the_library_fails_numpy_computes(computed, monkeypatch):
    monkeypatch.setattr(type(large_products.found._multiplier), "store", lambda self, a, b, out: False)
    x, w = float32(ROWS, INTO), float32(OUT, INTO)
    assert np.array_equal(nn.functional.linear(x, w), x.dot(w.T))


@pytest.mark.parametrize("keywords", [{"exact": True}, {"native": False}], ids=str)
def test_compiled_steps_have_the_bits_of_eager_ones(computed, keywords):
    w, b = float32(OUT, INTO), float32(OUT)
    compiled = gradmgr.compile(lambda x: step(x, w, b), **keywords)
    for k in range(4):
        x = float32(4, ROWS // 4, INTO) * np.float32(k + 1)
        for found, expected in zip(compiled(x), step(x, w, b), strict=True):
            assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert computed


@pytest.mark.parametrize("keywords", [{"exact": True}, {"native": False}], ids=str)
def test_products_that_stay_in_a_replay_go_into_the_memory_that_it_keeps(computed, keywords):
    w = float32(INTO, INTO)
    compiled = gradmgr.compile(lambda x: gnp.sum(nn.functional.linear(nn.functional.linear(x, w), w)), **keywords)
    x = float32(ROWS, INTO)
    for _ in range(4):  # of which the fourth runs as written
        compiled(x)
    computed.clear()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        compiled(x)
        assert tracemalloc.get_traced_memory()[1] - before < x.nbytes / 4
    finally:
        tracemalloc.stop()
    assert len(computed) == 2
