"""Level fused of gradmgr.compile: products by oneDNN are within the bound of rounding, and all the rest is exact."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import compiled_functions
import compiled_training
import numpy as np
import pytest
from compiled_programs import PROGRAMS, first_difference, history
from compiled_training import Training
from helpers import normal
from machine import MACHINE, in_layouts_of, needs_machine

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, asarray, errors, nn, optim
from gradmgr._arrays import onednn_library, products
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._arrays.products import Products, find_products
from gradmgr._compile import program as program_module
from gradmgr._replay import fusion
from gradmgr._replay.fusion import Counts, Fusion
from gradmgr._replay.replay import Options, compile_replay
from gradmgr.nn import functional as F  # noqa: N812  # torch's name

MODULES_OF_PROGRAMS = compiled_training, compiled_functions  # each enters its own into PROGRAMS
# Each program is replayed in test_compile; here, half.
SOME_PROGRAMS = [name if k % 2 else pytest.param(name, marks=pytest.mark.slow) for k, name in enumerate(PROGRAMS)]
FOUND, REASON = (None, "there is no machine") if MACHINE is None else find_products(MACHINE)
pytestmark = [needs_machine, pytest.mark.skipif(FOUND is None, reason=f"oneDNN computes no products: {REASON}")]

ROUNDING = 2.0**-24
Array = Any
Formula = Callable[..., Sequence[Any]]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let oneDNN compute every product that it can, faster or not."""
    for name in ("are_faster", "are_faster_as_sums"):
        monkeypatch.setattr(Products, name, lambda self, n, k, m, *, b_transposed: True)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products be computed in one way, where they can be."""
    assert FOUND is not None
    if request.param != "oneDNN" and not FOUND.own:
        pytest.skip("the machine's own loop has not been measured on this processor")
    by_machine, transposed = request.param == "machine", request.param == "transposed"
    monkeypatch.setattr(Products, "are_faster_by_machine", lambda self, n, k, m, *, b_transposed: by_machine)
    monkeypatch.setattr(Products, "are_faster_transposed", lambda self, n, k, m: transposed)


def float32(*shape: int, seed: int = 0) -> Array:
    return normal(*shape, seed=seed).astype(np.float32)


def replays_of(formula: Formula, *arrays: Array) -> tuple[Any, Any, Any, Capture]:
    """Return the fused replay of a formula, the one that checks its products, NumPy's, and the capture."""
    capture = Capture()
    found = formula(*[capture.add_input(a) for a in arrays])
    made = functools.partial(compile_replay, capture, found)
    fused = Options(MACHINE, exact=False)
    return made(options=fused), made(options=fused, checked=True), made(options=Options(MACHINE)), capture


def check(formula: Formula, *arrays: Array, bound: Callable[..., Sequence[Any]] | None = None) -> Counts:
    """Check the replays of a formula for the arrays and for others; return what became of its products.

    Args:
        formula: what is computed.
        arrays: its arguments.
        bound: the most by which the results of the fused replay may differ from NumPy's; None where other parts
            follow the products, which the replay that checks them vouches for.
    """
    fused, checked, exact, capture = replays_of(formula, *arrays)
    for factor in (1.0, -0.7, 3.1):
        given = [in_layouts_of(capture, [a * a.dtype.type(factor) for a in arrays]) for _ in range(4)]
        expected = exact(*given[0])
        for one, other in zip(checked(*given[1]), expected, strict=True):
            assert one.tobytes() == other.tobytes()
        found = fused(*given[2])
        for one, again in zip(found, fused(*given[3]), strict=True):
            assert one.tobytes() == again.tobytes()
        for one, other, most in zip(found, expected, bound(*given[0]) if bound else (), strict=False):
            assert (np.abs(one.astype(float) - other) <= most).all()
    counts: Counts = fused.fusion
    return counts


def bound_of(a: Array, b: Array) -> Array:
    """By how much two float32 products may differ."""
    return 2 * a.shape[-1] * ROUNDING * (1 + 1e-3) * (np.abs(a).astype(float) @ np.abs(b).astype(float))


# ---------------------------------------------------------------- single products


def layouts(n: int, m: int) -> list[Array]:
    wide = float32(2 * n, 2 * m)
    return [wide[:n, :m].copy(), np.asfortranarray(wide[:n, :m]), wide[:n, :m], wide[::2, ::2]]


@pytest.mark.usefixtures("everywhere", "way")
@pytest.mark.parametrize(
    ("way", "n"),
    [*[("oneDNN", n) for n in (1, 2, 5, 17, 64)], ("machine", 5), ("machine", 17), ("transposed", 17)],
    indirect=["way"],
)
def test_products_of_any_layout(n: int) -> None:
    for k, m in itertools.product((1, 2, 16, 33), repeat=2):
        for a, b in itertools.product(layouts(n, k), layouts(k, m)):
            counts = check(lambda x, y: [x @ y, np.dot(x, y)], a, b, bound=lambda x, y: [bound_of(x, y)] * 2)
            if min(n, k, m) > 1 and a.strides[0] != 4 * a.strides[1] * 4:
                assert counts.products == 2
    stack, other = np.stack(layouts(n, 7)), np.stack(layouts(7, 9))
    counts = check(
        lambda x, y: [x @ y, x[0] @ y, np.matmul(x[:, None], y[None])],
        *(stack, other),
        bound=lambda x, y: [bound_of(x, y), bound_of(x[0], y), bound_of(x[:, None], y[None])],
    )
    assert counts.replaced == (3 if n > 1 else 0)


@pytest.mark.usefixtures("everywhere")
def test_other_dtypes_are_numpys() -> None:
    for dtype in ("f8", "c8", "i4"):
        a = (normal(5, 5) * 9).astype(dtype)
        fused, _, exact, _ = replays_of(lambda x: [x @ x], a)
        assert fused.fusion.replaced == 0
        assert fused(a)[0].tobytes() == exact(a)[0].tobytes()


@pytest.mark.usefixtures("everywhere")
def test_values_that_are_not_finite() -> None:
    a = float32(8, 8)
    fused, checked, exact, _ = replays_of(lambda x: [x @ x.T], a)
    for value in (np.inf, np.nan, 3e38, 1e-44):
        a[2, 3] = value
        expected = exact(a)[0]
        assert np.array_equal(checked(a)[0], expected, equal_nan=True)
        assert np.array_equal(np.isnan(fused(a)[0]), np.isnan(expected))


def test_bits_depend_neither_on_where_arrays_lie_nor_on_the_run() -> None:
    assert FOUND is not None
    for n, k, m in ((64, 256, 256), (33, 100, 65), (128, 64, 128), (32, 64, 64)):
        a, b = float32(n, k), float32(m, k, seed=1)
        fused, *_ = replays_of(lambda x, y: [x @ y.T], a, b)
        assert fused.fusion.replaced == 1
        expected = fused(a, b)[0]
        for shift in (0, 1, 3, 7, 8, 16):
            given = []
            for array in (a, b):
                memory = np.empty(array.size + 32, np.float32)
                given.append(memory[shift : shift + array.size].reshape(array.shape))
                given[-1][...] = array
            for _ in range(3):
                assert fused(*given)[0].tobytes() == expected.tobytes()


def test_a_product_starts_no_threads_and_leaves_their_number() -> None:
    library = onednn_library.found.get()
    assert library is not None
    if not library.has_openmp:
        pytest.skip("the library is built without OpenMP")
    fused, *_ = replays_of(lambda x: [x @ x.T], float32(200, 200))
    before = library._get_threads()
    library._set_threads(3)
    try:
        one = fused(float32(200, 200))[0]
        assert library._get_threads() == 3
    finally:
        library._set_threads(before)
    assert fused(float32(200, 200))[0].tobytes() == one.tobytes()


def test_where_onednn_is_faster() -> None:
    assert MACHINE is not None
    library = onednn_library.found.get()
    assert library is not None
    alone, several = Products(MACHINE, library, 1), Products(MACHINE, library, 2)
    for n, k, m, transposed, by_one, by_several in (
        (64, 256, 256, False, True, False),
        (128, 32, 96, False, False, False),
        (128, 32, 64, True, True, True),
        (128, 32, 96, True, True, False),
        (64, 1024, 64, True, False, False),
        (1, 4096, 4096, False, False, False),
        (4, 4, 4, True, False, False),
    ):
        assert alone.are_faster(n, k, m, b_transposed=transposed) == by_one
        assert several.are_faster(n, k, m, b_transposed=transposed) == by_several


@pytest.mark.parametrize(
    ("n", "k", "m", "by_one", "by_several", "is_transposed"),
    [
        (64, 256, 256, True, False, False),
        (128, 32, 32, True, True, False),
        (16, 8, 16, True, True, False),
        (2, 31, 4, True, True, False),
        (2, 32, 64, False, False, False),
        (8, 64, 256, False, False, False),
        (64, 8, 3, False, False, False),
        (1, 8, 64, False, False, False),
        (64, 1024, 64, False, False, False),
        (128, 1024, 1024, False, False, True),
        (100, 1024, 1024, False, False, False),
        (256, 512, 512, False, False, False),
    ],
)
def test_where_the_machine_is_faster(
    n: int, k: int, m: int, by_one: bool, by_several: bool, is_transposed: bool
) -> None:
    library = onednn_library.found.get()
    assert MACHINE is not None
    assert library is not None
    if not MACHINE.has("multiply_f4"):
        pytest.skip("the machine was not built for AVX-512")
    for threads, expected in ((1, by_one), (2, by_several)):
        with_own = Products(MACHINE, library, threads, has_own=True)
        assert with_own.are_faster_by_machine(n, k, m, b_transposed=True) == expected
        assert not with_own.are_faster_by_machine(n, k, m, b_transposed=False)
        assert with_own.are_faster_transposed(n, k, m) == is_transposed
        without = Products(MACHINE, library, threads)
        assert not without.are_faster_by_machine(n, k, m, b_transposed=True)
        assert not without.are_faster_transposed(n, k, m)


def test_products_in_the_machines_own_loop_go_through_blocks_of_terms_and_of_columns() -> None:
    assert FOUND is not None
    if not FOUND.own:
        pytest.skip("the machine's own loop has not been measured on this processor")
    for n, k, m in ((29, 300, 130), (64, 256, 65), (15, 31, 5), (48, 512, 48)):
        counts = check(lambda x, y: [x @ y.T], float32(n, k), float32(m, k), bound=lambda x, y: [bound_of(x, y.T)])
        assert counts.by_machine == 1
    counts = check(lambda x, y: [x @ y.T], float32(32, 520), float32(530, 520), bound=lambda x, y: [bound_of(x, y.T)])
    assert (counts.replaced, counts.by_machine) == (1, 0)


# ---------------------------------------------------------------- sums of products


def weights(xs: Array, gs: Array) -> list[Any]:
    """The gradient of recurrent weights, as eager calls add it up."""
    total = gs[0].T @ xs[0]
    for x, g in zip(xs[1:], gs[1:], strict=True):
        total += g.T @ x
    return [total]


def weights_bound(xs: Array, gs: Array) -> list[Array]:
    terms = 2 * (xs.shape[0] * xs.shape[1] + xs.shape[0]) * ROUNDING * (1 + 1e-3)
    return [terms * sum(np.abs(g).T.astype(float) @ np.abs(x) for x, g in zip(xs, gs, strict=True))]


def test_a_sum_over_steps_is_one_product() -> None:
    counts = check(weights, float32(12, 8, 33), float32(12, 8, 64, seed=1), bound=weights_bound)
    assert counts in ((12, 12, 0, 12, 1, 0), (12, 0, 0, 12, 1, 0))


def test_factors_are_placed_one_after_the_other() -> None:
    """Of those that the program computes; and with them the views, and what reads them elsewhere."""

    def formula(xs: Array, w: Array) -> list[Any]:
        seen = [np.tanh(x @ w) for x in xs]
        total, other = seen[0].T @ xs[0], seen[0].T @ np.cos(seen[0])
        for x, g in zip(xs[1:], seen[1:], strict=True):
            total += g.T @ x
            other += g.T @ np.cos(g)
        return [total, other, seen[3].sum(axis=0), seen[-1][::2] * 2, np.stack(seen)]

    fused, *_ = replays_of(formula, float32(9, 8, 16), float32(16, 64, seed=1))
    assert "copyto" not in fused.text
    found = check(formula, float32(9, 8, 16), float32(16, 64, seed=1))
    assert (found.merged, found.merges) == (18, 4)  # of 48 rows, and of the rest


def test_factors_in_another_order_are_copied_or_left_alone() -> None:
    def backwards(xs: Array, gs: Array) -> list[Any]:
        return weights(xs[::-1], gs[::-1])

    def crossed(xs: Array, gs: Array) -> list[Any]:
        return weights(xs, gs[::-1])

    arrays = float32(6, 8, 32), float32(6, 8, 40, seed=1)
    assert check(backwards, *arrays, bound=weights_bound).merges == 1
    assert check(crossed, *arrays).merges == 0


def test_sums_are_added_to_what_was_there() -> None:
    def formula(total: Array, xs: Array, gs: Array) -> list[Any]:
        held = total.copy()
        for x, g in zip(xs, gs, strict=True):
            held += g.T @ x
        return [held]

    counts = check(formula, float32(64, 64), float32(5, 8, 64), float32(5, 8, 64, seed=1))
    assert counts.merged == 5


@pytest.mark.usefixtures("everywhere")
def test_two_products_are_added_at_once() -> None:
    def formula(a: Array, b: Array) -> list[Any]:
        made = a @ b + b.T @ a.T
        made += a @ a.T
        return [made]

    counts = check(formula, float32(48, 32), float32(32, 48, seed=1))
    assert (counts.replaced, counts.added) == (3, 2)


def written_between(x: Array, g: Array) -> list[Any]:
    """A factor is written to before the product is added."""
    g, total = g.copy(), x.T @ x
    part = g.T @ x
    g *= 2
    total += part
    return [total, g]


def read_between(x: Array, g: Array) -> list[Any]:
    """What the sum is on the way is read, and written to."""
    total = g.T @ x
    total += x.T @ g
    half = total * 0.5
    total += g.T @ g
    total *= 2
    total += x.T @ x
    return [total, half]


def read_twice(x: Array, g: Array) -> list[Any]:
    part = g.T @ x
    total = x.T @ x
    total += part
    total += part
    return [total, part]


def added_to_itself(x: Array, g: Array) -> list[Any]:
    total = g.T @ x
    total += total
    total += total.T @ total
    return [total]


def of_a_sum(x: Array, g: Array) -> list[Any]:
    """A sum of products is a factor in another."""
    one = g.T @ x
    one += x.T @ g
    two = one.T @ x.T
    two += one @ x.T
    return [one, two]


def into_a_part(x: Array, g: Array) -> list[Any]:
    total = np.stack([x.T @ x, g.T @ g])
    for part in (total[0], total[1]):
        part += g.T @ x
        part += x.T @ x
    return [total]


def into_columns(x: Array, g: Array) -> list[Any]:
    total = np.stack([x.T @ x, g.T @ g])[0].T
    total += g.T @ x
    total += x.T @ x
    return [total]


def of_an_overlapping_argument(x: Array, g: Array) -> list[Any]:
    total = x[:-1].T @ g[1:]
    total += x[1:].T @ g[:-1]
    return [total]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    "formula",
    [
        *(written_between, read_between, read_twice, added_to_itself, of_a_sum, into_a_part, into_columns),
        of_an_overlapping_argument,
    ],
)
def test_sums_where_something_is_in_the_way(formula: Formula) -> None:
    for n in (2, 8, 33):
        check(formula, float32(n, 24), float32(n, 24, seed=1))


# ---------------------------------------------------------------- turned


def gates(w: Array, x: Array) -> Array:
    """A product for a small batch, as cells compute it: (256, 64) @ (64, 8)."""
    return w @ x.T


READ_BY_COLUMNS: dict[str, Callable[[Array, Array], Any]] = {
    "an operator": lambda y, b: y.T + b,
    "a column": lambda y, b: y[:, 3] - b,
    "gates of cells": lambda y, b: y.reshape(4, 64, 8).swapaxes(1, 2) + b.reshape(4, 1, 64),
    "every second": lambda y, b: y[::2, 1::2] * b[:4],
    "twice": lambda y, b: [y.T + b, y[:, 2] - b],
}
READ_OTHERWISE: dict[str, Callable[[Array, Array], Any]] = {
    "a function that is not rounded exactly": lambda y, b: np.tanh(y),
    "a sum": lambda y, b: y.sum(axis=0) + y.sum(axis=1)[:8],
    "parts of rows in line": lambda y, b: y[64:128] * y[1:65],
    "rows in line": lambda y, b: y.reshape(-1) * 2,
    "from below": lambda y, b: y[::-1].T + b,
    "a product": lambda y, b: y.T @ y,
    "itself": lambda y, b: y,
    "a write": lambda y, b: np.multiply(y, 2, out=y),
    "a number": lambda y, b: y[3, 5] + b,
    "as columns in line": lambda y, b: y.T.reshape(-1) * np.concatenate([b] * 8),
}


@pytest.mark.parametrize("name", [*READ_BY_COLUMNS, *READ_OTHERWISE])
def test_products_for_small_batches_are_turned_where_they_can_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, made = (READ_BY_COLUMNS | READ_OTHERWISE)[name], []
    original = fusion._turned
    monkeypatch.setattr(fusion, "_turned", lambda *args: made.append(args) or original(*args))

    def formula(w: Array, x: Array, b: Array) -> list[Any]:
        found = read(gates(w, x), b)
        return found if isinstance(found, list) else [found]

    arrays = float32(256, 64), float32(8, 64, seed=1), float32(256, seed=2)
    assert check(formula, *arrays).replaced == (name in READ_BY_COLUMNS)
    assert bool(made) == (name in READ_BY_COLUMNS)

    def of_two(w: Array, x: Array, b: Array) -> list[Any]:
        total = gates(w, x)
        total += gates(w * 2, np.cos(x))
        found = read(total, b)
        return found if isinstance(found, list) else [found]

    counts = check(of_two, *arrays)
    assert (counts.replaced, counts.added) == ((2, 1) if name in READ_BY_COLUMNS else (0, 0))
    check(lambda w, x, b: [read(gates(w, x) + gates(w * 2, np.cos(x)), b)][:1] if name != "twice" else [w], *arrays)


def test_a_matrix_that_is_read_by_rows_after_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_by_columns", lambda step, *_: (step.operands, step.run.strides, step.run.outer))
    arrays = float32(256, 64), float32(8, 64, seed=1), float32(256, seed=2)
    _, checked, exact, _ = replays_of(lambda w, x, b: [gates(w, x).T + b], *arrays)
    assert checked(*arrays)[0].tobytes() != exact(*arrays)[0].tobytes()


# ---------------------------------------------------------------- whole programs


def compiled_and_checked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a compile of which every replay compares its products with NumPy's."""
    monkeypatch.setattr(
        program_module, "compile_replay", lambda *args, **facts: compile_replay(*args, **{**facts, "checked": True})
    )
    return gradmgr.compile


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", SOME_PROGRAMS)
def test_all_but_the_rounding_of_products_is_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = history(PROGRAMS[name]())
    found = history(PROGRAMS[name](), compiled_and_checked(monkeypatch))
    assert first_difference(found, expected) == ""


def of_float32(fact: Any) -> Array | None:
    return np.frombuffer(fact[-1], np.float32) if "float32" in fact and isinstance(fact[-1], bytes) else None


TRAINING = [name for name in PROGRAMS if PROGRAMS[name].__module__ == "compiled_training"]
SOME_TRAINING = [name if k % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for k, name in enumerate(TRAINING)]
# Optimisers that divide a gradient by its own size, or take its sign, and models with a bias whose gradient is 0: that
# of rounding alone becomes a whole step. The replays that check each product vouch for these.
DIVIDE = frozenset(("Adam", "AMSGrad", "AdamW", "RMSprop", "Adagrad", "Lion"))
WITH_IDLE_BIASES = frozenset(("BatchNorm and dropout", "GPT"))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", SOME_TRAINING)
def test_training_is_within_ulps_of_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ulps of the largest number of an array: products have at most 12 terms, and there are few steps."""
    made: list[tuple[str, str]] = []
    original = Training.__init__

    def noted(self: Any, model: str = "MLP", optimiser: str = "momentum", callbacks: Any = None) -> None:
        made.append((model, optimiser))
        original(self, model, optimiser, callbacks)

    monkeypatch.setattr(Training, "__init__", noted)
    expected = history(PROGRAMS[name]())
    found = history(PROGRAMS[name](), gradmgr.compile)
    amplifies = any(model in WITH_IDLE_BIASES or optimiser in DIVIDE for model, optimiser in made)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for path in one if not amplifies else ():
            a, b = of_float32(one[path]), of_float32(other[path])
            if a is None or b is None or a.shape != b.shape:
                assert one[path] == other[path], path
            else:
                most = 64 * 2 * ROUNDING * np.abs(b[np.isfinite(b)]).max(initial=0)
                assert ((np.abs(a - b) <= most) | (a == b) | (np.isnan(a) & np.isnan(b))).all(), path


class Trained:
    """A network that is trained: all products are large enough for oneDNN."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        rng = np.random.default_rng(0)
        self.model = nn.Sequential(nn.Linear(128, 160, rng=rng), nn.Tanh(), nn.Linear(160, 128, rng=rng)).float()
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1)
        self.gm = GradManager().attach(self.model.parameters())
        self.step = transform(self._step)

    def _step(self, x: Any) -> Any:
        with self.gm:
            loss = F.mse_loss(self.model(x), x)
            self.gm.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self, steps: int = 5) -> list[Array]:
        losses = [self.step(float32(96, 128, seed=k)).numpy() for k in range(steps)]
        return [*losses, *[p.numpy() for p in self.model.parameters()]]


def test_exact_gives_the_bits_of_eager() -> None:
    eager = Trained(lambda step: step).run()
    exact = Trained(functools.partial(gradmgr.compile, exact=True))
    assert [a.tobytes() for a in exact.run()] == [a.tobytes() for a in eager]
    assert "native, in" in exact.step.explain()
    assert "oneDNN" not in exact.step.explain()
    fused = Trained(gradmgr.compile)
    for one, other in zip(fused.run(), eager, strict=True):
        assert np.abs(one - other).max() <= 256 * ROUNDING * np.abs(other).max()
    assert "fused, in" in fused.step.explain()
    assert FOUND is not None
    assert ("oneDNN computes 3 and the machine 2 of" if FOUND.own else "oneDNN computes 5 of") in fused.step.explain()


def test_as_a_decorator() -> None:
    @gradmgr.compile(exact=True)
    def product(x: Any) -> Any:
        return x @ x

    x = float32(200, 200)
    assert all(product(x).tobytes() == (x @ x).tobytes() for _ in range(4))
    assert "oneDNN" not in product.explain()


def test_without_onednn_replays_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    none = onednn_library.Found()
    none.looked, none.reason = True, "not installed"
    monkeypatch.setattr(onednn_library, "found", none)
    assert MACHINE is not None
    assert find_products(MACHINE) == (None, "not installed")
    step = Trained(gradmgr.compile)
    assert [a.tobytes() for a in step.run()] == [a.tobytes() for a in Trained(lambda f: f).run()]
    assert "native, in" in step.step.explain()


def test_processors_that_have_not_been_measured_compute_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MACHINE is not None
    monkeypatch.setattr(products, "_vendor", lambda: "CentaurHauls")
    assert find_products(MACHINE) == (None, "oneDNN's products have not been measured on this processor")


# ---------------------------------------------------------------- what is wrong is found


def _wrong_sum(original: Any, self: Any, originals: Any, step: Any, *, is_new: bool) -> Any:
    steps = original(self, originals, step, is_new=is_new)
    for each in steps:
        if each.run.function in (self.products.function, self.products.own):
            each.run.auxdata = 1 - each.run.auxdata
    return steps


def _wrong_place(original: Any, self: Any, originals: Any, step: Any, *, is_new: bool) -> Any:
    steps = original(self, originals, step, is_new=is_new)
    for each in steps:
        if each.run.function in (self.products.function, self.products.own):
            (base, offset), *others = each.operands
            each.operands = ((base, offset + 4), *others)
            each.run.dims = (each.run.dims[0], each.run.dims[1] - 1, *each.run.dims[2:])
    return steps


def _wrong_depth(original: Any, self: Any, originals: Any, step: Any, *, is_new: bool) -> Any:
    steps = original(self, originals, step, is_new=is_new)
    for each in steps:
        if each.run.function in (self.products.function, self.products.own):
            each.run.dims = (*each.run.dims[:2], each.run.dims[2] - 1, each.run.dims[3])
    return steps


@pytest.mark.parametrize("change", [_wrong_sum, _wrong_place, _wrong_depth])
def test_a_changed_product_is_found(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fusion, "_replacing", functools.partialmethod(_changed, change, Fusion._replacing))
    step = Trained(gradmgr.compile)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trained = step.run()
    assert [w.category for w in found] == [errors.CompileWarning]
    assert "differs from NumPy's by more than rounding" in str(found[0].message)
    assert [a.tobytes() for a in trained] == [a.tobytes() for a in Trained(lambda f: f).run()]


def _changed(self: Any, change: Any, original: Any, *args: Any, **facts: Any) -> Any:
    return change(original, self, *args, **facts)


def test_factors_that_do_not_last_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that serves again too early is no rounding: all but products is compared bit by bit."""
    monkeypatch.setattr(fusion.Analysis, "place_together", functools.partialmethod(_overlapping))
    x = float32(9, 8, 64)
    _, checked, exact, _ = replays_of(_recurrent, x)
    with pytest.raises(CaptureError, match="more than rounding"):
        _same(checked(x), exact(x))


def _overlapping(self: Any, slot: int, moves: Any, number: int) -> None:
    """Place all pieces at the same place."""
    original_place_together(self, slot, {base: (to, 0) for base, (to, _) in moves.items()}, number)


original_place_together = fusion.Analysis.place_together


def _recurrent(xs: Array) -> list[Any]:
    seen = [np.tanh(x) for x in xs]
    total = seen[0].T @ xs[0]
    for x, g in zip(xs[1:], seen[1:], strict=True):
        total += g.T @ x
    return [total]


def _same(found: Sequence[Array], expected: Sequence[Array]) -> None:
    if [a.tobytes() for a in found] != [a.tobytes() for a in expected]:
        raise CaptureError("differs by more than rounding")


def test_recurrent_cells_are_trained_with_merged_products() -> None:
    cell, gm = nn.LSTMCell(32, 64, rng=np.random.default_rng(0)).float(), GradManager()
    gm.attach(cell.parameters())

    def step(xs: Any) -> Any:
        with gm:
            state, seen = None, []
            for x in xs:
                state = cell(x, state)
                seen.append(state[0])
            loss = gnp.mean(gnp.stack(seen) ** 2)
            gm.backward(loss)
        return loss, [p.grad for p in cell.parameters()]

    compiled = gradmgr.compile(step)
    for k in range(5):
        xs = asarray(float32(20, 8, 32, seed=k))
        (loss, found), (expected_loss, expected) = compiled(xs), step(xs)
        assert abs(loss.item() - expected_loss.item()) <= 64 * ROUNDING
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one.numpy() - other.numpy()).max() <= 256 * ROUNDING * np.abs(other.numpy()).max()
        gm.clear_grad()
    assert "40 products are merged into 8" in compiled.explain()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
