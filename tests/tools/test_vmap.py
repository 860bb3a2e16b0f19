"""vmap against a loop: every order of derivative, nesting, errors, memory."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, no_grad, special, tensor
from gradmgr._arrays.batched import RULES, Batched, Level, batched_to_hold, innermost, is_batched_at
from gradmgr._engine.context import current
from gradmgr._transforms.checkpoint import checkpoint
from gradmgr._transforms.gradcheck import gradcheck, jvp, vjp
from gradmgr._transforms.vmap import vmap
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

# ---------------------------------------------------------------- batching rules


def test_functions_with_a_batching_rule_are_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The common ones, at least."""

    def refuse(*args: Any) -> None:
        raise AssertionError("went example by example")

    x, w = tensor(np.random.default_rng(0).uniform(0.5, 1.5, (5, 3, 3))), tensor(np.eye(3) + 0.1)
    for f in (
        lambda x: gnp.sum(x, 0) + gnp.mean(x, axis=-1) + gnp.max(x, 0) + gnp.std(x, 1),
        lambda x: x @ w + w @ x + gnp.einsum("ij,jk->ik", x, w) + gnp.tensordot(x, w, 1) + gnp.dot(x, x[0]),
        lambda x: gnp.linalg.inv(x + w) @ gnp.linalg.solve(w, x) * gnp.linalg.det(x),
        lambda x: gnp.concatenate([x, w]).reshape(-1)[::2] * gnp.stack([x[0], w[1]]).T[1, 0],
        lambda x: gnp.where(x > 1, x, w) + gnp.clip(x, 0.7, 1.2) + gnp.sort(x) + gnp.cumsum(x, 0),
        lambda x: x[gnp.argmax(x, axis=0), np.arange(3)] + gnp.take_along_axis(x, gnp.argsort(x, 0), 0),
        lambda x: gnp.fft.rfft(x).real + special.logsumexp(x, axis=0)[0] + gnp.linalg.norm(x, axis=0)[0],
        lambda x: (
            gnp.moveaxis(x, 0, 1)
            + gnp.flip(x)
            + gnp.roll(x, 1)
            + gnp.tril(x)
            + gnp.diagonal(x)
            + gnp.diff(x, axis=0)[0]
        ),
        lambda x: gnp.cross(x, w) + gnp.cross(x[0], x, axisb=0, axisc=0) + gnp.vander(x[0]) + gnp.gradient(x, axis=0),
        lambda x: gnp.convolve(x[0], x[1]) + gnp.correlate(x[0], x[1], "full") + gnp.convolve(x[0], [1.0, 2.0, 3.0]),
        lambda x: (
            gnp.interp(x, [0.5, 1.0, 1.5], [0.0, 1.0, 4.0]) * gnp.isin(x, [0.7])
            + gnp.searchsorted(gnp.sort(x[0]), x[1])
        ),
        lambda x: gnp.select([x > 1, x > 0.8], [x, x**2], 0.5) + gnp.where(x > 1, x, gnp.gradient(x)[0]),
    ):
        plain = [f(t).numpy() for t in x]
        monkeypatch.setattr("gradmgr._arrays.batched.loop_over_examples", refuse)
        np.testing.assert_allclose(vmap(f)(x).numpy(), plain, rtol=1e-12)
        vmap(lambda t, f=f: vjp(f, [t], [0], [np.ones(f(t).shape)])[0])(x)
        monkeypatch.undo()


def test_a_loop_over_many_small_examples_warns() -> None:
    function = vmap(gnp.unique)
    with pytest.warns(errors.PerformanceWarning, match="inside vmap is called once for each of 64 examples") as w:
        function(tensor(np.tile([1.0, -3.0, 2.0], (64, 1))))
    assert w[0].filename == __file__
    function(tensor(np.tile([1.0, -3.0, 2.0], (63, 1))))  # few examples: no warning
    function(tensor(np.linspace(0, 1, 64 * 1001).reshape(64, 1001)))  # large ones: a call is most of the time


TABLE = np.array([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])
PICKERS: dict[str, Callable[[Any, Any], Any]] = {
    "take": lambda x, i: gnp.take(x, i[0], 1),
    "take, mode": lambda x, i: gnp.take(x, i[0] + 2, 1, mode="wrap") + gnp.take(x, i[0] + 2, 1, mode="clip"),
    "take_along_axis": lambda x, i: gnp.take_along_axis(x, i, 0),
    "bincount": lambda x, i: gnp.bincount(i[0], x[0], 4),
    "put": lambda x, i: _written(gnp.put, x, i[0], 7.0),
    "put_along_axis": lambda x, i: _written(gnp.put_along_axis, x, i, 7.0, 1),
    "put_along_axis, flattened": lambda x, i: _written(gnp.put_along_axis, x, i[0], 7.0, None),
    "place": lambda x, i: _written(gnp.putmask, x, i > 0, 7.0),
    "putmask": lambda x, i: _written(gnp.putmask, x, gnp.sort(i) > 0, [7.0, 8.0]),
    "compress": lambda x, i: gnp.compress(gnp.sort(i[0]) > 0, x, 1),
    "polygamma": lambda x, i: special.polygamma(i[0] + 1, x),
    "pinv": lambda x, i: gnp.linalg.pinv(x, 0.1 * i[0, 0]),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i[:, 0], ignore_index=0, reduction="none"),
}


def _written(write: Callable[..., None], x: Tensor, *arguments: Any) -> Tensor:
    made = gnp.copy(x)
    write(made, *arguments)
    return made


@pytest.mark.parametrize("name", PICKERS)
def test_only_the_positions_are_mapped(name: str) -> None:
    pick, positions = PICKERS[name], np.array([[[0, 1, 1], [1, 0, 0]], [[1, 1, 0], [0, 0, 1]]])

    def gradient(x: Tensor, i: Any) -> Any:
        y = pick(x, i)
        return y, vjp(lambda x: pick(x, i), [x], [0], [gnp.ones_like(y)])[0]

    one_by_one = [gradient(tensor(TABLE), i) for i in positions]
    for k, got in enumerate(vmap(lambda i: gradient(tensor(TABLE), i))(tensor(positions))):
        np.testing.assert_allclose(got.numpy(), [made[k].numpy() for made in one_by_one], rtol=1e-12)


LOW, HIGH = Level(2, 1), Level(3, 2)
BOTH = {"": (), "low": (LOW,), "high": (HIGH,), "both": (LOW, HIGH)}


def _of_levels(levels: tuple[Level, ...]) -> Any:
    """An array of 4 numbers that differs by example of these levels, from the lowest to the highest."""
    made: Any = np.arange(4.0 * np.prod([level.size for level in levels], dtype=int))
    made = made.reshape((*[level.size for level in levels], 4))
    for level in levels:
        made = Batched(level, made)
    return made


@pytest.mark.parametrize("own", BOTH)
@pytest.mark.parametrize("one", BOTH)
@pytest.mark.parametrize("other", BOTH)
def test_an_array_gets_batch_axes_for_all_levels(own: str, one: str, other: str) -> None:
    others = [_of_levels(BOTH[name]) for name in (one, other)]
    made = batched_to_hold(_of_levels(BOTH[own]), *others)
    assert all(is_batched_at(made, level) for name in (own, one, other) for level in BOTH[name])
    for values in others:
        made[...] = values
        np.testing.assert_array_equal(innermost(made - values), 0)


def test_every_rule_is_of_a_function_of_numpys() -> None:
    assert all(callable(f) and f.__module__.startswith("numpy") for f in RULES)


# ---------------------------------------------------------------- dims and containers


def rows(*shape: int) -> Tensor:
    return tensor(np.arange(float(np.prod(shape))).reshape(shape))


def test_negative_and_inner_dims() -> None:
    x = rows(2, 3, 4)
    for dim in range(-3, 3):
        moved = np.moveaxis(x.numpy(), dim, 0)
        for out in range(-3, 3):
            found = vmap(lambda t: t * 2, dim, out)(x)
            np.testing.assert_array_equal(found.numpy(), np.moveaxis(moved * 2, 0, out))


class Pair(NamedTuple):
    first: Any
    second: Any


def test_containers_in_and_out() -> None:
    x, y = rows(3, 2), rows(2, 3)

    def f(pair: Any, named: Any, more: Any) -> Any:
        assert pair[0].shape == pair[1].shape == named.second.shape == (2,)
        return {"sum": pair[0] + pair[1], "more": [named.first * more["k"], Pair(pair[0], named.second)]}

    dims = ((0, 1), Pair(None, 0), {"k": None})
    found = vmap(f, dims, {"sum": 0, "more": [1, 0]})((x, y), Pair(tensor(2.0), x), {"k": tensor([1.0, 3.0])})
    np.testing.assert_array_equal(found["sum"].numpy(), x.numpy() + y.numpy().T)
    np.testing.assert_array_equal(found["more"][0].numpy(), np.array([[2.0] * 3, [6.0] * 3]))
    assert isinstance(found["more"][1], Pair)
    np.testing.assert_array_equal(found["more"][1].second.numpy(), x.numpy())
    whole = vmap(lambda d: d["a"] + d["b"][0])({"a": x, "b": [x]})  # one dim for a whole container
    np.testing.assert_array_equal(whole.numpy(), 2 * x.numpy())


def test_keywords_are_the_same_for_all_and_plain_numbers_may_be_too() -> None:
    x = rows(3, 2)
    found = vmap(lambda t, k, power: (t * k).sum() ** power, (0, None))(x, 2.0, power=tensor(2))
    np.testing.assert_array_equal(found.numpy(), (x.numpy() * 2).sum(1) ** 2)


def test_plain_arrays_come_out_where_no_tensor_is_given() -> None:
    found = vmap(lambda a, b: (np.sin(a) * b, a.sum()), (0, None))(np.ones((3, 2)), np.arange(2.0))
    assert all(type(part) is np.ndarray for part in found)
    assert isinstance(vmap(lambda a, b: a * b, (0, None))(np.ones(3), tensor(2.0)), Tensor)


def test_what_does_not_differ_is_repeated() -> None:
    x, c = rows(3, 2), tensor([1.0, 2.0])
    found = vmap(lambda t: (c * 2, np.ones(2)), out_dims=(1, 0))(x)
    np.testing.assert_array_equal(found[0].numpy(), [[2.0] * 3, [4.0] * 3])
    np.testing.assert_array_equal(found[1].numpy(), np.ones((3, 2)))
    assert vmap(lambda t: (t, c), out_dims=(0, None))(x)[1].shape == (2,)


@pytest.mark.parametrize("mode", ["valid", "same", "full"])
@pytest.mark.parametrize(("n", "m"), [(5, 2), (2, 5), (4, 4), (4, 3), (3, 4), (1, 1)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_sliding_products_are_those_of_each_example(mode: Any, n: int, m: int, dtype: str) -> None:
    a, v = (np.random.default_rng(k).normal(size=(3, size, 2)).view("c16")[..., 0] for k, size in enumerate((n, m)))
    a, v = (p.astype(dtype) if dtype == "c16" else p.real.astype(dtype) for p in (a, v))
    for function in (gnp.convolve, gnp.correlate):
        for one, other in ((tensor(a), tensor(v)), (tensor(a), v[0]), (a[0], tensor(v))):
            axes = tuple(0 if np.ndim(p) == 2 else None for p in (one, other))
            made = vmap(lambda x, y, f=function: f(x, y, mode), axes)(one, other)
            rows_of = [p if np.ndim(p) == 2 else [p] * 3 for p in (one, other)]
            plain = [function(x, y, mode) for x, y in zip(*rows_of, strict=True)]
            assert made.dtype == dtype
            np.testing.assert_allclose(made.numpy(), plain, rtol=2e-5 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_has_nans_at_the_end(side: str) -> None:
    a = np.array([[1.0, 2.0, np.nan], [0.0, np.nan, np.nan], [1.0, 2.0, 3.0]])
    v = np.array([[0.5, 2.0, np.nan, 9.0]] * 3)
    found = vmap(lambda a, v: gnp.searchsorted(a, v, side))(tensor(a), tensor(v))
    plain = [np.searchsorted(*pair, side) for pair in zip(a, v, strict=True)]
    np.testing.assert_array_equal(np.asarray(found), plain)


@pytest.mark.parametrize("like", [gnp.zeros_like, gnp.ones_like, partial(gnp.full_like, fill_value=2.0)])
def test_arrays_like_another_may_have_another_shape(like: Callable[..., Any]) -> None:
    found = vmap(lambda x: like(x, shape=(2, 5), dtype="f4") + x[:1])(rows(3, 4))
    assert found.shape == (3, 2, 5)


def test_zero_examples() -> None:
    assert vmap(lambda t: gnp.sin(t) @ tensor(np.ones((2, 4))))(tensor(np.ones((0, 2)))).shape == (0, 4)
    with pytest.raises(errors.BatchedValueError, match="a batch of 0"):
        vmap(lambda t: gnp.interp(t, [0.0, 1.0], t))(tensor(np.ones((0, 2))))


def test_repr_inside_shows_that_it_is_batched() -> None:
    seen: list[str] = []
    vmap(lambda t: seen.append(repr(t)) or t)(rows(2, 2))
    assert "batched" in seen[0]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_chunks(size: int) -> None:
    x, seen = rows(2, 7), []
    gm = GradManager().attach(x)
    with gm:
        y, z = vmap(lambda t: (seen.append(t) or gnp.sin(t), t.sum()), 1, (1, 0), chunk_size=size)(x)
        gm.backward((y * z).sum())
    np.testing.assert_allclose(y.numpy(), np.sin(x.numpy()))
    s = x.numpy().sum(0)
    np.testing.assert_allclose(x.grad.numpy(), np.cos(x.numpy()) * s + np.sin(x.numpy()).sum(0))
    assert len(seen) == -(-7 // size)


# ---------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: vmap(abs, (0, 0))(x), ValueError, "does not have the form"),
        (lambda x: vmap(abs, 2)(x), ValueError, "in_dims is 2 for input 0.*shape \\(3, 2\\)"),
        (lambda x: vmap(abs, -3)(x), ValueError, "at least -2"),
        (lambda x: vmap(abs)(x[0, 0]), ValueError, "in_dims is 0 for input 0, which has shape \\(\\); use None for it"),
        (lambda x: vmap(abs, None)(x), ValueError, "in_dims is an int"),
        (lambda x: vmap(abs, "a")(x), ValueError, "in_dims is an int"),
        (lambda x: vmap(abs, [0])(x), ValueError, "in_dims is an int"),
        (lambda x: vmap(abs, True)(x), ValueError, "in_dims is an int"),
        (lambda x: vmap(abs, (None,))(x), ValueError, "at least one"),
        (lambda x: vmap(abs, ("a",))(x), ValueError, "does not have the form"),
        (lambda x: vmap(abs, ({"a": 0},))({"b": x}), ValueError, "does not have the form"),
        (lambda x: vmap(abs)(), ValueError, "without arguments"),
        (lambda x: vmap(lambda a, b: a)(x, 1.0), ValueError, "input 1, a float"),
        (lambda x: vmap(lambda a, b: a)(x, rows(4)), ValueError, r"one length; found \[3, 4\]"),
        (lambda x: vmap(lambda a: 1.0)(x), ValueError, "must return Tensors; found float"),
        (lambda x: vmap(lambda a: None)(x), ValueError, "must return Tensors; found NoneType"),
        (lambda x: vmap(abs, out_dims=None)(x), ValueError, "differs between examples"),
        (lambda x: vmap(lambda a: (a, a), out_dims=(0,))(x), ValueError, "form of the results"),
        (lambda x: vmap(abs, out_dims="a")(x), ValueError, "out_dims holds ints"),
        (lambda x: vmap(abs, out_dims=3)(x), IndexError, "out_dims is 3"),
        (lambda x: vmap(abs, randomness="some")(x), RuntimeError, "'different' or 'same'"),
        (lambda x: vmap(abs, chunk_size=0)(x), ValueError, "at least 1"),
        (lambda x: vmap(lambda a: a.item())(x), RuntimeError, "inside vmap"),
        (lambda x: vmap(lambda a: a.numpy())(x), RuntimeError, "inside vmap"),
        (lambda x: vmap(lambda a: np.asarray(a.detach()))(x), RuntimeError, "inside vmap"),
        (lambda x: vmap(lambda a: a * float(a.sum()))(x), RuntimeError, "float"),
        (lambda x: vmap(lambda a: a if a.sum() > 0 else -a)(x), RuntimeError, "where\\(\\) instead of if"),
        (lambda x: vmap(lambda a: a if (a > 0).all() else -a)(x), RuntimeError, "where\\(\\) instead of if"),
        (lambda x: vmap(lambda a: a if gnp.any(a > 0) else -a)(x), RuntimeError, "where\\(\\) instead of if"),
        (lambda x: vmap(lambda a: a[a > 1])(x), RuntimeError, "different number of elements"),
        (lambda x: vmap(lambda a: gnp.unique(gnp.round(a / 3)))(x), RuntimeError, "different"),
        (lambda x: vmap(lambda a: a @ gnp.ones((3, 3)))(x), ValueError, "matmul"),
        (lambda x: vmap(lambda a: a + gnp.ones(3))(x), ValueError, r"\(2,\)"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(call: Any, error: type[Exception], says: str) -> None:
    x = rows(3, 2)
    gm = GradManager().attach(x)
    with gm:
        state = current()
        with pytest.raises(error, match=says):
            call(x)
        assert current() is state
        gm.backward((x * x).sum())
    np.testing.assert_array_equal(x.grad.numpy(), 2 * x.numpy())


# ---------------------------------------------------------------- random numbers


def test_randomness() -> None:
    np.random.seed(0)  # the second of a pair of normal numbers, which an earlier test may have left, is not noticed
    x = tensor(np.zeros(4))
    draw = lambda t: t + np.random.normal()
    with pytest.raises(errors.RandomnessError, match="randomness='same'"):
        vmap(draw)(x)
    assert len(set(vmap(draw, randomness="same")(x).tolist())) == 1
    assert len(set(vmap(draw, randomness="different")(x).tolist())) == 4
    random = np.random.default_rng(0)
    assert len(set(vmap(lambda t: t + random.normal())(x).tolist())) == 1  # a generator of the user is not seen
    assert len(set(vmap(lambda t: t + random.normal(), randomness="different")(x).tolist())) == 4


# ---------------------------------------------------------------- derivatives


def grad_of(f: Callable[..., Tensor], k: int = 0) -> Callable[..., Tensor]:
    """The gradient of a scalar function in argument k, by a manager of its own."""
    return lambda *given: vjp(f, list(given), [k], [np.float64(1.0)])[0]


def loss(w: Tensor, x: Tensor, y: Any) -> Tensor:
    z = gnp.tanh(x @ w)
    return special.logsumexp(z) - z[y]


def problem() -> tuple[Tensor, Tensor, np.ndarray]:
    random = np.random.default_rng(3)
    return tensor(random.normal(size=(4, 3))), tensor(random.normal(size=(5, 4))), random.integers(0, 3, 5)


def test_per_sample_gradients() -> None:
    w, x, y = problem()
    found = vmap(grad_of(loss), (None, 0, 0))(w, x, y)
    expected = [grad_of(loss)(w, x[k], int(y[k])).numpy() for k in range(5)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_per_sample_gradients_of_many_numbers(dtype: str) -> None:
    """Outer products of large arrays take another path."""
    random = np.random.default_rng(4)
    x, u = (tensor(random.normal(size=(20, n)).astype(dtype)) for n in (30, 700))
    w = tensor(random.normal(size=(30, 700)).astype(dtype))

    def f(w: Tensor, x: Tensor, u: Tensor) -> Any:
        h = x @ w
        return (gnp.where(h.real > 0, h, 0.0).real * u.real).sum() + gnp.maximum(h.real, -0.5).sum()

    found = vmap(grad_of(f), (None, 0, 0))(w, x, u)
    expected = [grad_of(f)(w, x[k], u[k]).numpy() for k in range(20)]
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_large_products_of_columns_and_rows() -> None:
    random = np.random.default_rng(5)
    a, b = random.normal(size=(20, 30, 1)), random.normal(size=(20, 1, 40))
    a[0, 0], a[1, 1], b[0, 0, 0], b[1] = np.inf, -1, 0, 0
    with np.errstate(invalid="ignore"):
        for dtype in (np.float32, np.complex64, np.int32):
            for kinds in ((np.float64, np.float64), (dtype, dtype), (dtype, np.float64), (np.float64, dtype)):
                p, q = a.astype(kinds[0]), b.astype(kinds[1])
                made = vmap(lambda p, q: p @ q)(tensor(p), tensor(q)).numpy()
                assert made.dtype == (p * q).dtype
                np.testing.assert_array_equal(made, p * q)
        made = vmap(lambda a, b: a * b)(tensor(a), tensor(b)).numpy()
        np.testing.assert_array_equal(made, a * b)
        np.testing.assert_array_equal(np.signbit(made), np.signbit(a * b))
        np.testing.assert_array_equal(vmap(lambda a: a @ tensor(b[0]))(tensor(a)).numpy(), a * b[0])
    with pytest.raises(ValueError, match=r"shapes \(30, 1\) and \(2, 40\) do not fit"):
        vmap(lambda a, b: a @ b)(tensor(a), tensor(np.zeros((20, 2, 40))))


def test_a_manager_of_its_own_inside() -> None:
    w, x, y = problem()

    def f(x: Tensor, y: Tensor) -> Any:
        own = w.clone()
        gm = GradManager().attach(own)
        with gm:
            gm.backward(loss(own, x, y))
        return own.grad

    expected = [grad_of(loss)(w, x[k], int(y[k])).numpy() for k in range(5)]
    np.testing.assert_allclose(vmap(f)(x, y).numpy(), expected, rtol=1e-12)
    assert w.grad is None


def test_a_manager_around_gets_the_sum_for_what_is_closed_over() -> None:
    w, x, y = problem()
    gm = GradManager().attach([w, x])
    with gm:
        gm.backward(vmap(lambda x, y: loss(w, x, y))(x, y).sum())
    expected = sum(grad_of(loss)(w, x[k], int(y[k])).numpy() for k in range(5))
    np.testing.assert_allclose(w.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("inner", ["reverse", "forward"])
@pytest.mark.parametrize("outer", ["reverse", "forward"])
def test_second_order_in_all_four_combinations(inner: str, outer: str) -> None:
    """The outer derivative around vmap, the inner one within; what is closed over, shared before and after it meets."""
    w, x, y = problem()
    v = np.random.default_rng(1).normal(size=(4, 3))
    u = np.random.default_rng(2).normal(size=(4, 3))

    def once(w: Tensor, x: Tensor, y: Any) -> Tensor:
        scaled = lambda w: loss(gnp.sin(w) * w, x, y)
        if inner == "reverse":
            return (vjp(scaled, [w], [0], [np.float64(1.0)])[0] * v).sum()
        return jvp(scaled, [w], [0], [v])[0]

    def at_once(w: Tensor, x: Tensor) -> Tensor:
        double = w * 2.0
        return vmap(lambda x, y: once(double + w, x, y))(x, y)

    def in_a_loop(w: Tensor, x: Tensor) -> Tensor:
        double = w * 2.0
        return gnp.stack([once(double + w, x[k], int(y[k])) for k in range(5)])

    for f_found, f_expected in ((at_once, in_a_loop),):
        if outer == "reverse":
            found, expected = (vjp(f, [w, x], [0, 1], [np.arange(5.0)]) for f in (f_found, f_expected))
        else:
            found, expected = (jvp(f, [w, x], [0, 1], [u, x.numpy()]) for f in (f_found, f_expected))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)


def test_gradcheck_through_vmap_to_third_order() -> None:
    def f(w: Tensor, x: Tensor) -> Tensor:
        return vmap(lambda row: (gnp.exp(row * w) / (1 + w * w)).sum())(x)

    random = np.random.default_rng(0)
    points = (tensor(random.normal(size=3)), tensor(random.normal(size=(2, 3))))
    assert gradcheck(f, points, order=3, fast_mode=True)


def test_gradcheck_of_derivatives_within() -> None:
    def hessian_vector(w: Tensor, x: Tensor) -> Tensor:
        inner = lambda w, x: (gnp.sin(w * x) * w).sum()
        one = lambda w, x: grad_of(lambda w: (grad_of(lambda w: inner(w, x))(w) * x).sum())(w)
        return vmap(one, (None, 0))(w, x)

    random = np.random.default_rng(0)
    points = (tensor(random.normal(size=3)), tensor(random.normal(size=(2, 3))))
    assert gradcheck(hessian_vector, points, order=2, fast_mode=True)


def test_jacobian_is_a_vmap_of_backward_of_an_outer_recording() -> None:
    """One recording, many cotangents at once: `is_grads_batched` and `jacobian(vectorize=True)`."""
    x = tensor([0.3, -1.2, 0.8])
    f = lambda x: gnp.cumsum(gnp.sin(x) * x[::-1])
    gm = GradManager().attach(x)
    with gm:
        y = f(x)

        def row(u: Tensor) -> Tensor:
            gm.backward(y, u, retain=True)
            g, x.grad = x.grad, None
            return g

        found = vmap(row)(np.eye(3))
    expected = np.stack([vjp(f, [x], [0], [u])[0].numpy() for u in np.eye(3)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_jacobian_is_recorded_by_a_manager_around() -> None:
    x = tensor([0.3, -1.2, 0.8])
    f = lambda x: gnp.sin(x) * x[::-1] + gnp.exp(x).sum()

    def whole(x: Tensor) -> Tensor:
        inner, point = GradManager(), x.clone()
        inner.attach(point)
        with inner:
            y = f(point)

            def row(u: Tensor) -> Tensor:
                inner.backward(y, u, retain=True)
                g, point.grad = point.grad, None
                return g

            return vmap(row)(tensor(np.eye(3)))

    expected = lambda x: gnp.stack([vjp(f, [x], [0], [u])[0] for u in np.eye(3)])
    np.testing.assert_allclose(whole(x).numpy(), expected(x).numpy(), rtol=1e-12)
    weights = np.random.default_rng(0).normal(size=(3, 3))
    np.testing.assert_allclose(
        vjp(whole, [x], [0], [weights])[0].numpy(), vjp(expected, [x], [0], [weights])[0].numpy()
    )


def test_levels_nest() -> None:
    x, w = rows(2, 3), tensor([1.0, 2.0])
    found = vmap(lambda a: vmap(lambda b: a * b)(w))(x)
    np.testing.assert_array_equal(found.numpy(), x.numpy()[:, None, :] * w.numpy()[None, :, None])
    table = vmap(vmap(lambda a, b: gnp.sin(a) * b, (0, None)), (None, 0))(w, w)
    np.testing.assert_allclose(table.numpy(), np.outer(w.numpy(), np.sin(w.numpy())))
    hessians = vmap(lambda a: vmap(lambda v: jvp(grad_of(lambda t: (t**3).sum()), [a], [0], [v])[0])(np.eye(3)))(x)
    np.testing.assert_allclose(hessians.numpy(), 6 * x.numpy()[:, :, None] * np.eye(3))


def test_a_manager_between_two_levels() -> None:
    """To it what the inner level shares belongs in sum, to the outer level example by example."""
    x, s = rows(2, 3), tensor([1.0, 2.0, 5.0])

    def f(row: Tensor) -> Any:
        gm = GradManager().attach(row)
        with gm:
            gm.backward(vmap(lambda k: (gnp.sin(row) * k).sum())(s).sum())
        g, row.grad = row.grad, None
        return g

    np.testing.assert_allclose(vmap(f)(x).numpy(), np.cos(x.numpy()) * 8.0)


def test_no_grad_inside() -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)
    gm = GradManager().attach(w)
    with gm:

        def f(row: Tensor) -> Tensor:
            with no_grad():
                c = w * row
            return (w * c).sum()

        gm.backward(vmap(f)(x).sum())
    np.testing.assert_array_equal(w.grad.numpy(), (w.numpy() * x.numpy()).sum(0))


def test_frozen_weights_and_detach() -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)
    gm = GradManager().attach(w)
    with gm:
        gm.backward(vmap(lambda row: (w.detach() * w * row).sum())(x).sum())
    np.testing.assert_array_equal(w.grad.numpy(), w.numpy() * x.numpy().sum(0))


# ---------------------------------------------------------------- writing in place


def test_in_place_writes_inside() -> None:
    x, w = rows(3, 4), tensor([1.0, 2.0, 3.0, 4.0])

    def f(row: Tensor) -> Tensor:
        made = gnp.zeros(4)
        made[1:] = row[:-1] * w[1:]
        made += row
        row = row.copy()  # a write to a row would be one to all of x
        row[0] = 5.0
        made[[0, 0]] = row[:2]
        return (made * row * w).sum()

    gm = GradManager().attach([x, w])
    with gm:
        y = vmap(f)(x)
        gm.backward(y.sum())
    found = y.numpy(), x.grad.numpy(), w.grad.numpy()
    x.grad = w.grad = None
    with gm:
        ys = [f(x[k]) for k in range(3)]
        gm.backward(sum(ys))
    np.testing.assert_allclose(found[0], [t.item() for t in ys])
    np.testing.assert_allclose(found[1], x.grad.numpy())
    np.testing.assert_allclose(found[2], w.grad.numpy())
    np.testing.assert_array_equal(x.numpy(), rows(3, 4).numpy())


def test_a_loop_that_fills_an_array() -> None:
    x = tensor(np.random.default_rng(0).normal(size=(3, 20)))

    def random_walk(row: Tensor) -> Tensor:
        s = gnp.zeros(20)
        for k in range(1, 20):
            s[k] = gnp.tanh(s[k - 1] + row[k])
        return s

    g = vmap(lambda row: vjp(random_walk, [row], [0], [np.ones(20)])[0])(x)
    expected = [vjp(random_walk, [x[k]], [0], [np.ones(20)])[0].numpy() for k in range(3)]
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-12)


def test_positions_that_differ_by_example() -> None:
    random = np.random.default_rng(0)
    x, i, j, m = (
        random.normal(size=(3, 4, 5, 2)),
        *(random.integers(0, n, (3, 6)) for n in (4, 5)),
        random.integers(0, 2, 3),
    )
    for pick in (
        lambda t, i, j, m: t[i],
        lambda t, i, j, m: t[i, j],
        lambda t, i, j, m: t[:, j],
        lambda t, i, j, m: t[i, :, m],
        lambda t, i, j, m: t[..., m],
        lambda t, i, j, m: t[1, j, m],
        lambda t, i, j, m: t[None, i[:2, None], j[None, 3:]],
        lambda t, i, j, m: t[:, j, None],
        lambda t, i, j, m: t[1:, [0, 2], m],
    ):
        index = lambda k, pick=pick: pick(x[k], i[k], j[k], m[k])
        found = vmap(pick)(*map(tensor, (x, i, j, m)))
        np.testing.assert_array_equal(found.numpy(), np.stack([index(k) for k in range(3)]))
        shared = vmap(pick, (None, 0, 0, 0))(tensor(x[0]), *map(tensor, (i, j, m)))
        np.testing.assert_array_equal(shared.numpy(), np.stack([pick(x[0], i[k], j[k], m[k]) for k in range(3)]))
        u = random.normal(size=found.shape[1:])
        mapped_vjp = vmap(lambda t, i, j, m, u=u, pick=pick: vjp(lambda t: pick(t, i, j, m), [t], [0], [u])[0])
        many = mapped_vjp(*map(tensor, (x, i, j, m)))
        for k in range(3):
            one = vjp(lambda t, k=k, pick=pick: pick(t, i[k], j[k], m[k]), [tensor(x[k])], [0], [u])[0]
            np.testing.assert_allclose(many.numpy()[k], one.numpy(), rtol=1e-12)


def test_writes_at_positions_that_differ_by_example() -> None:
    random = np.random.default_rng(0)
    x, v = random.normal(size=(3, 4, 5)), random.normal(size=(3, 2, 5))
    i = np.stack([random.permutation(4)[:2] for _ in range(3)])

    def f(t: Tensor, v: Tensor, i: Tensor) -> Tensor:
        t = t * 2.0
        t[i] = v
        t[:, i] = 3.0
        return t

    found = vmap(f)(*map(tensor, (x, v, i)))
    np.testing.assert_array_equal(
        found.numpy(), np.stack([f(*map(tensor, (x[k], v[k], i[k]))).numpy() for k in range(3)])
    )
    g = vmap(lambda t, v, i: vjp(lambda t, v: f(t, v, i), [t, v], [0, 1], [np.ones((4, 5))])[1])(
        *map(tensor, (x, v, i))
    )
    for k in range(3):
        one = vjp(lambda t, v, k=k: f(t, v, tensor(i[k])), [tensor(x[k]), tensor(v[k])], [0, 1], [np.ones((4, 5))])[1]
        np.testing.assert_allclose(g.numpy()[k], one.numpy())


def test_an_argument_that_is_the_same_for_all_is_not_changed_for_good() -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)

    def f(w: Tensor, row: Tensor) -> Tensor:
        w += row
        return w

    gm = GradManager().attach(w)
    with gm:
        with pytest.raises(errors.BatchedWriteError, match="the same for all"):
            vmap(f, (None, 0))(w, x)
        assert not isinstance(w._array, Batched)
        gm.backward((w * w).sum())
    np.testing.assert_array_equal(w.grad.numpy(), [2.0, 4.0])


def _write_all(w: Tensor, row: Tensor) -> Any:
    w[...] = row


def _write_a_number(w: Tensor, row: Tensor) -> Any:
    w[0] = row[1]


def _add(w: Tensor, row: Tensor) -> Any:
    w += row
    return w


def _add_by_out(w: Tensor, row: Tensor) -> Any:
    return [np.add(w, row, out=w), {"w": w}]


def _write_twice(w: Tensor, row: Tensor) -> Any:
    w *= row
    w[1] = 0.0


def _write_in_a_nested_vmap(w: Tensor, row: Tensor) -> Any:
    def write(number: Tensor) -> Tensor:
        w[0] = number
        return number

    return vmap(write)(row)


def _fail(w: Tensor, row: Tensor) -> Any:
    w += row
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "write", [_write_all, _write_a_number, _add, _add_by_out, _write_twice, _write_in_a_nested_vmap, _fail]
)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_tensor_from_outside_is_not_changed_for_good(
    write: Callable[[Tensor, Tensor], Any], chunk_size: int | None
) -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)

    def f(row: Tensor) -> Any:
        found = write(doubled, row)
        return row if found is None else found

    expected: Any = ZeroDivisionError if write is _fail else errors.BatchedWriteError
    gm = GradManager().attach(w)
    with gm:
        doubled = w * 2
        with pytest.raises(expected, match=None if write is _fail else r"a Tensor of shape \(2,\).*the same for all"):
            vmap(f, chunk_size=chunk_size)(x)
        assert type(doubled._array) is np.ndarray
        assert doubled.tolist() == [2.0, 4.0]
        gm.backward((doubled * doubled).sum())
    np.testing.assert_array_equal(w.grad.numpy(), [8.0, 16.0])


def test_what_was_made_inside_is_written_to_and_may_be_returned() -> None:
    x = rows(3, 2)

    def f(row: Tensor) -> Any:
        t, kept = tensor(np.zeros(2)), gnp.zeros(2)
        t[...] = row
        kept += row

        def again(n: int) -> Tensor:  # it refers to itself, and to t
            return t if n == 0 else again(n - 1)

        return [kept, {"t": again(2) + kept}, kept]

    one, two, three = vmap(f)(x)
    np.testing.assert_array_equal(one.numpy(), x.numpy())
    np.testing.assert_array_equal(two["t"].numpy(), 2 * x.numpy())
    np.testing.assert_array_equal(three.numpy(), x.numpy())


def test_what_was_made_inside_may_be_held_by_a_history() -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)

    def f(row: Tensor) -> Tensor:
        total = gnp.zeros(2)
        total += row
        return checkpoint(lambda t: t * total, w)

    with GradManager().attach(w) as gm:
        gm.backward(vmap(f)(x).sum())
    np.testing.assert_array_equal(w.grad.numpy(), x.numpy().sum(axis=0))


class _Statistics:
    def __init__(self) -> None:
        self.totals = [tensor([1.0, 2.0])]

    def add(self, row: Tensor) -> Tensor:
        self.totals[0] += row
        return row


_total = tensor([1.0, 2.0])


def _add_to_a_global(row: Tensor) -> Tensor:
    global _total
    _total += row
    return row


def test_tensors_from_outside_are_found_in_objects_and_globals() -> None:
    statistics, x = _Statistics(), rows(3, 2)
    for f in (statistics.add, partial(_Statistics.add, statistics), lambda row: statistics.add(row)):
        with pytest.raises(errors.BatchedWriteError, match="the same for all"):
            vmap(f)(x)
        assert statistics.totals[0].tolist() == [1.0, 2.0]
    with pytest.raises(errors.BatchedWriteError, match="the same for all"):
        vmap(_add_to_a_global)(x)
    assert _total.tolist() == [1.0, 2.0]


def _by_backward(w: Tensor, row: Tensor) -> Tensor:
    gm = GradManager().attach(w)
    with gm:
        gm.backward((w * w * row).sum())
    return row


def _by_assignment(w: Tensor, row: Tensor) -> Tensor:
    w.grad = 2 * row
    return row


def _by_a_nested_vmap(w: Tensor, row: Tensor) -> Tensor:
    return vmap(lambda number: _by_backward(w, number * w))(row)


@pytest.mark.parametrize("is_argument", [True, False])
@pytest.mark.parametrize("before", [None, [5.0, 6.0]])
@pytest.mark.parametrize("f", [_by_backward, _by_assignment, _by_a_nested_vmap])
def test_a_gradient_of_each_example_is_not_left_in_what_all_share(
    f: Callable[[Tensor, Tensor], Tensor], before: list[float] | None, is_argument: bool
) -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)
    held = w.grad = None if before is None else tensor(before)
    with pytest.raises(
        errors.BatchedWriteError, match=r"the \.grad of a Tensor of shape \(2,\).*set to gradients that"
    ):
        vmap(f, (None, 0))(w, x) if is_argument else vmap(lambda row: f(w, row))(x)
    assert w.grad is held
    assert held is None or held.tolist() == before


@pytest.mark.parametrize("before", [None, [5.0, 6.0]])
def test_a_gradient_of_each_example_may_be_taken_inside(before: list[float] | None) -> None:
    w, x = tensor([1.0, 2.0]), rows(3, 2)
    held = None if before is None else tensor(before)

    def f(row: Tensor) -> Any:
        w.grad = held
        _by_backward(w, row)
        found, w.grad = w.grad, None
        return found

    np.testing.assert_allclose(vmap(f)(x).numpy(), 2 * w.numpy() * x.numpy() + (before or 0.0))
    assert w.grad is None
    assert held is None or held.tolist() == before


def test_a_gradient_is_as_before_where_the_mapped_function_raises() -> None:
    w, held = tensor([1.0, 2.0]), tensor([5.0, 6.0])
    w.grad = held

    def f(row: Tensor) -> Tensor:
        _by_backward(w, row)
        raise KeyError

    with pytest.raises(KeyError):
        vmap(f)(rows(3, 2))
    assert w.grad is held
    assert held.tolist() == [5.0, 6.0]


def test_gradients_of_what_was_made_inside_are_no_error() -> None:
    """Here what is made refers to itself, and lives until garbage is collected."""

    class Holder:
        def __init__(self) -> None:
            self.own, self.itself = tensor([1.0, 2.0]), self

    def f(row: Tensor) -> Any:
        holder = Holder()
        _by_backward(holder.own, row)
        return holder.own.grad

    x = rows(3, 2)
    np.testing.assert_allclose(vmap(f)(x).numpy(), 2 * np.array([1.0, 2.0]) * x.numpy())


def test_a_plain_array_is_never_written_to() -> None:
    plain, x = np.zeros(2), rows(3, 2)
    with pytest.raises(errors.BatchedWriteError, match="the same for all"):
        vmap(lambda t: np.add(t, 1.0, out=plain))(x)
    with pytest.raises((errors.BatchedWriteError, errors.BatchedValueError, TypeError)):
        vmap(lambda t: np.copyto(plain, t))(x)
    np.testing.assert_array_equal(plain, 0.0)


@pytest.mark.parametrize("mapped", [True, False])
def test_copyto_where_a_mask_differs_by_example(mapped: bool) -> None:
    """Into what is mapped, and into what was made inside and was the same for all until then."""
    x, source = rows(3, 4), tensor([1.0, 2.0, 3.0, 4.0])

    def f(row: Tensor) -> Tensor:
        target = row * 2 if mapped else source * 2
        np.copyto(target, source, where=row > 0)
        return target

    rest = 2 * x.numpy() if mapped else np.broadcast_to(2 * source.numpy(), (3, 4))
    is_taken = x.numpy() > 0
    gm = GradManager().attach([x, source])
    with gm:
        y = vmap(f)(x)
        gm.backward(y, np.ones((3, 4)))
    np.testing.assert_array_equal(y.numpy(), np.where(is_taken, source.numpy(), rest))
    np.testing.assert_array_equal(np.zeros((3, 4)) if x.grad is None else x.grad.numpy(), 2.0 * (mapped & ~is_taken))
    np.testing.assert_array_equal(source.grad.numpy(), np.sum(is_taken + 2.0 * (~is_taken & (not mapped)), axis=0))


# ---------------------------------------------------------------- memory, threads


def test_memory_is_freed() -> None:
    big: list[weakref.ref[Any]] = []
    w, x = tensor(np.ones(100)), tensor(np.ones((3, 100)))
    gm = GradManager().attach(w)

    def f(row: Tensor) -> Tensor:
        t = gnp.sin(w * row)
        big.append(weakref.ref(t._array))
        return t.sum()

    gc.disable()
    try:
        with gm:
            gm.backward(vmap(f)(x).sum())
        assert big
        assert all(ref() is None for ref in big)
        with gm:
            vmap(f)(x)
            gm._tape.sweep(everything=True)
            assert not gm._tape.entries
        assert big
        assert all(ref() is None for ref in big)
    finally:
        gc.enable()


def test_a_level_is_freed_by_reference_counting() -> None:
    def levels() -> set[int]:
        return {id(kept) for kept in gc.get_objects() if type(kept) is Level}

    gc.collect()
    gc.disable()
    try:
        before = levels()
        vmap(gnp.sin)(tensor(np.ones((3, 2))))
        assert levels() <= before
    finally:
        gc.enable()


def test_threads_map_apart() -> None:
    w, x, y = problem()
    expected = vmap(grad_of(loss), (None, 0, 0))(w, x, y).numpy()
    wrong: list[Any] = []

    def work() -> None:
        found = [vmap(grad_of(loss), (None, 0, 0))(w, x, y).numpy() for _ in range(10)]
        wrong.extend(g for g in found if not np.allclose(g, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_names_and_help_are_the_functions() -> None:
    def f(x: Tensor) -> Tensor:
        """Say what it does."""
        return x

    assert vmap(f).__name__ == "f"
    assert re.match("Say what", vmap(f).__doc__ or "")
    assert gradmgr is not None
