"""Captured calls: what a replay computes, what it must notice, what a capture refuses."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import normal
from machine import needs_machine

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, compile, functional
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured import CapturedArray
from gradmgr._arrays.captured_calls import CaptureError
from gradmgr._replay.capture_difference import difference
from gradmgr._replay.replay import Options, compile_replay
from gradmgr._transforms.vmap import vmap
from gradmgr.nn import functional as F  # noqa: N812  # torch's name
from gradmgr.nn._functions import activation

Program = Callable[..., Sequence[Any]]


def capture_of(program: Program, *arrays: Any) -> tuple[Capture, Sequence[Any]]:
    """Capture a program of arrays."""
    capture = Capture()
    return capture, program(*[capture.add_input(np.array(a)) for a in arrays])


def check_replay(program: Program, arrays: Sequence[Any], others: Sequence[Any]) -> None:
    """Capture a program, and check that a replay gives for other arrays, bit by bit, what the program does."""
    capture, found = capture_of(program, *arrays)
    assert any(isinstance(y, CapturedArray) for y in found)
    expected = program(*[np.array(a) for a in others])
    for buffers_from in (1 << 14, 1):
        replay = compile_replay(capture, found, buffers_from=buffers_from, options=Options(native=False))
        first = replay(*[np.array(a) for a in arrays])
        kept = [np.array(y) for y in first]
        for y, z in zip(replay(*[np.array(a) for a in others]), expected, strict=True):
            assert (type(y), y.dtype) == (type(z), z.dtype)
            np.testing.assert_array_equal(y, z)
        for y, z in zip(first, kept, strict=True):  # which the second replay has not written to
            np.testing.assert_array_equal(y, z)


def with_gradients(loss: Callable[..., Tensor], *arrays: Any) -> list[Any]:
    """The arrays of a loss and of its gradients."""
    points = [asarray(a) for a in arrays]
    with GradManager().attach(points) as gm:
        y = loss(*points)
        gm.backward(y)
    return [y._array, *[t.grad._array for t in points]]


def classifier(x: Any, w: Any, b: Any, v: Any) -> Any:
    return F.cross_entropy(gnp.tanh(x @ w + b) @ v, np.array([0, 2, 1, 1, 0]))


def written_in_place(x: Any, w: Any) -> Any:
    y = x * 1
    y[1:3] *= w[1:3]
    y[0] = y[3] * 2
    y += w
    return gnp.sum(y * y)


def second_order(x: Any, w: Any) -> list[Any]:
    t, u = asarray(x), asarray(w)
    outer, inner = GradManager().attach(u), GradManager().attach(t)
    with outer:
        with inner:
            inner.backward(gnp.sum(gnp.sin(t * u) * t))
        outer.backward(gnp.sum(t.grad**2))
    return [u.grad._array]


def update(w: Any, g: Any) -> list[Any]:
    """A step of momentum, in place."""
    m = np.zeros_like(w)
    for _ in range(3):
        m *= 0.9
        m += g
        w -= 0.1 * m
    return [w, m]


PROGRAMS: dict[str, tuple[Program, list[tuple[int, ...]]]] = {
    "classifier": (lambda *a: with_gradients(classifier, *a), [(5, 4), (4, 3), (3,), (3, 3)]),
    "written in place": (lambda *a: with_gradients(written_in_place, *a), [(4,), (4,)]),
    "second order": (second_order, [(4,), (4,)]),
    "update": (update, [(4,), (4,)]),
    "hessian": (lambda x: [functional.hessian(lambda t: gnp.sum(t**3), asarray(x))._array], [(3,)]),
    "vmap": (lambda x: [vmap(lambda t: gnp.sum(t * t) * t)(asarray(x))._array], [(5, 3)]),
    "views of an input": (lambda x: [x.T[1:], x.reshape(-1)[::2], np.moveaxis(x, 0, 1)], [(3, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replay_gives_what_the_program_does(name: str) -> None:
    program, shapes = PROGRAMS[name]
    check_replay(program, [normal(*n, seed=1) for n in shapes], [normal(*n, seed=2) for n in shapes])


def test_a_branch_is_a_guard() -> None:
    def program(x: Any) -> list[Any]:
        return [x * 2 if x.sum() > 0 else x - 1]

    capture, found = capture_of(program, [1.0, 2.0])
    replay = compile_replay(capture, found)
    np.testing.assert_array_equal(replay(np.array([3.0, 0.0]))[0], [6.0, 0.0])
    for again in (replay, capture.replay):
        with pytest.raises(
            CaptureError, match=r"the truth of an array at .*test_captured.py:\d+ gave True, and False now"
        ):
            again(np.array([-3.0, 0.0]))


def test_a_truth_that_numpy_has_once_is_a_result_of_its_own() -> None:
    def program(x: Any) -> list[Any]:
        one, other = (x == 9).any(), (x > 5).any()
        either = np.logical_or(one, other)  # numpy.False_, as both are when it is captured
        return [one * 1, other * 1, either * 1]

    capture = Capture()
    results = program(capture.add_input(np.array([1, 2])))
    values = capture.replay(np.array([1, 7]))
    assert [values[a.slot.number] for a in results] == [0, 1, 1]


def test_a_shape_that_depends_on_values_is_a_guard() -> None:
    capture, found = capture_of(lambda x: [x[x > 0] * 2], [1.0, -1.0, 2.0])
    replay = compile_replay(capture, found)
    np.testing.assert_array_equal(replay(np.array([-1.0, 3.0, 4.0]))[0], [6.0, 8.0])
    with pytest.raises(CaptureError, match=r"getitem at .* gave \(2,\), and \(1,\) now"):
        replay(np.array([-1.0, -3.0, 4.0]))


@pytest.mark.parametrize("ask", [lambda x: np.allclose(x, 1), lambda x: np.array_equal(x, np.ones(2))])
def test_what_a_function_of_numpys_says_of_values_is_a_guard(ask: Callable[[Any], bool]) -> None:
    capture, found = capture_of(lambda x: [x * 2 if ask(x) else x - 1], [1.0, 1.0])
    with pytest.raises(CaptureError, match=r"(allclose|array_equal) at .* gave True, and False now"):
        compile_replay(capture, found)(np.zeros(2))


def test_what_is_asked_of_shapes_and_dtypes_is_no_call() -> None:
    def program(x: Any) -> list[Any]:
        assert (np.shape(x), np.ndim(x), np.size(x), np.result_type(x, 1)) == ((2,), 1, 2, np.float64)
        assert np.shares_memory(x, x)
        assert np.isrealobj(x)
        return [x * 2]

    assert len(capture_of(program, [1.0, 1.0])[0].calls) == 1


TAKEN_OUT: dict[str, Callable[[Any], Any]] = {
    r"float\(\) of an array": lambda x: [x * float(x[0])],
    r"int\(\) of an array": lambda x: [x * int(x[0])],
    r"complex\(\) of an array": lambda x: [x * complex(x[0])],
    r"item\(\) of an array": lambda x: [x * x[0].item()],
    r"tolist\(\) of an array": lambda x: [x * x.tolist()[0]],
    "an array as an index of a list": lambda x: [x * [1.0, 2.0][x.astype(int)[0]]],
    "a function that is not NumPy's": lambda x: [x * np.asarray(x)],
    "multiply writes into an array that is not captured": lambda x: [np.multiply(x, x, out=np.ones(2))],
    "copyto writes into an array that is not captured": lambda x: [np.copyto(np.ones(2), x)],
}


@pytest.mark.parametrize("reason", TAKEN_OUT)
def test_values_that_leave_are_obstacles_with_their_line(reason: str) -> None:
    capture, found = capture_of(TAKEN_OUT[reason], [1.0, 1.0])
    for again in (lambda: capture.replay(np.ones(2)), lambda: compile_replay(capture, found)):
        with pytest.raises(CaptureError, match=rf"^the calls cannot be made again: {reason}.* at .*\.py:\d+$"):
            again()


def test_a_constant_that_is_written_to_between_two_calls_is_an_obstacle() -> None:
    def program(x: Any) -> list[Any]:
        step = np.zeros(2)
        y = x + step
        step += 1
        return [y * step]

    capture, found = capture_of(program, [1.0, 2.0])
    with pytest.raises(CaptureError, match=r"the array given to add at .*test_captured.py:\d+ was written to since"):
        compile_replay(capture, found)


def test_the_same_method_of_a_ufunc_is_no_difference() -> None:
    one, other = (capture_of(lambda x: [np.add.reduce(x)], [1.0, 2.0])[0] for _ in range(2))
    assert difference(one, other) is None


_random, _count = np.random.default_rng(0), iter(range(100))

FROM_ELSEWHERE: dict[str, Program] = {
    "the array that multiply is given at": lambda x: [np.multiply(x, _random.normal(size=2))],
    "what power is given at": lambda x: [np.power(x, next(_count))],
    "(sin|cos) at .*, then (sin|cos) at": lambda x: [(np.sin if next(_count) % 2 else np.cos)(x)],
    "one more call: add at": lambda x: [x + 1 for _ in range(next(_count))],
}


@pytest.mark.parametrize("found", FROM_ELSEWHERE)
def test_what_comes_from_elsewhere_shows_in_a_second_capture(found: str) -> None:
    one, other = (capture_of(FROM_ELSEWHERE[found], [1.0, 2.0])[0] for _ in range(2))
    said = difference(one, other)
    assert said is not None
    assert re.match(rf"{found} .*test_captured.py:\d+", said)


def _attended(x: Any, rng: Any) -> Any:
    return F.scaled_dot_product_attention(x, x[:3], x[:3], dropout_p=0.25, rng=rng)


def _dropped_by_vmap(x: Any, rng: Any, randomness: str) -> Any:
    return vmap(lambda t: F.dropout(t * 2, 0.3, rng=rng), randomness=randomness)(x)


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "dropout": lambda x, rng: F.dropout(x, 0.3, rng=rng),
    "dropout, decided by a byte": lambda x, rng: F.dropout(x, 0.5, rng=rng),
    "attention": _attended,
    "attention, keys alone": lambda x, rng: F.scaled_dot_product_attention(
        np.ones((4, 5)), x, x, dropout_p=0.25, rng=rng
    ),
    "vmap, the same": lambda x, rng: _dropped_by_vmap(x, rng, "same"),
    "vmap, different": lambda x, rng: _dropped_by_vmap(x, rng, "different"),
    "bernoulli_": lambda x, rng: (x * 1).bernoulli_(0.3, generator=rng),
    "bernoulli_, of probabilities": lambda x, rng: asarray(np.ones((4, 5))).bernoulli_(np.exp(-abs(x)), generator=rng),
    "normal_": lambda x, rng: (x * 1).normal_(1, 2, generator=rng) * x,
    "normal_, 0-d": lambda x, rng: (x * 1)[0, 0].normal_(1, 2, generator=rng) * x,
    "cauchy_": lambda x, rng: (x * 1).cauchy_(1, 2, generator=rng),
    "random_": lambda x, rng: (x * 1).random_(3, 7, generator=rng),
    "uniform_, in vmap": lambda x, rng: vmap(lambda t: (t * 1).uniform_(3, 7, generator=rng) * t, randomness="same")(x),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_replay_draws_as_the_function_does(name: str) -> None:
    rng, expected = np.random.default_rng(7), np.random.default_rng(7)
    compiled = compile(lambda x: DRAWS[name](x, rng))
    for k in range(6):
        x = asarray(normal(4, 5, seed=k))
        np.testing.assert_array_equal(compiled(x).numpy(), DRAWS[name](x, expected).numpy())
        assert rng.bit_generator.state == expected.bit_generator.state
    assert "1 variant" in compiled.explain()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_program_is_captured_the_same(name: str) -> None:
    program, shapes = PROGRAMS[name]
    one, other = (capture_of(program, *[normal(*n, seed=seed) for n in shapes])[0] for seed in (1, 2))
    assert difference(one, other) is None


def test_the_text_drops_each_value_after_its_last_use() -> None:
    large = np.ones((600, 3))
    capture, found = capture_of(lambda x, y: [(x * y).sum(axis=0)], large, large)
    replay: Any = compile_replay(capture, found, options=Options(native=False), buffers_from=1 << 20)
    assert replay.text == (
        "def replay(v0, v1):\n    v2 = v0 * v1\n    del v0, v1\n    v3 = v2.sum(axis=0)\n    del v2\n    return (v3, )"
    )


def test_a_later_result_takes_the_name_of_a_small_one() -> None:
    def program(x: Any) -> list[Any]:
        y = x + 1
        for _ in range(4):
            y = np.sin(y) * x
        x += 1  # which has its own name, as all that comes from outside
        return [y, x.copy()]

    capture, found = capture_of(program, np.ones(3))
    replay: Any = compile_replay(capture, found, options=Options(native=False))
    names = set(re.findall(r"(v\d+) =", replay.text))
    assert len(names) <= 4
    assert "del v0" in replay.text
    x = np.linspace(0, 1, 3)
    for made, expected in zip(replay(x.copy()), program(x.copy()), strict=True):
        np.testing.assert_array_equal(made, expected)


def interleaved(x: Any) -> list[Any]:
    """A ufunc, whose result a replay may hold, and functions whose results come when it is not read any more."""
    a = np.cumsum(np.exp(x), axis=0)
    b = np.cumsum(a, axis=1)
    c = np.cumsum(b, axis=0)
    return [a[0] + b[0] + c[0]]


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_machine)])
def test_no_memory_is_held_for_good_beside_large_arrays_that_come_and_go(native: bool) -> None:
    arrays = [np.linspace(start, 1.0, 1 << 16).reshape(256, 256) for start in (0.0, 0.5)]
    capture, found = capture_of(interleaved, arrays[0])
    replay: Any = compile_replay(capture, found, options=Options(native=native))
    assert replay.nbytes < arrays[0].nbytes
    for x in arrays:
        for made, expected in zip(replay(x), interleaved(x), strict=True):
            np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_machine)])
@pytest.mark.parametrize("who", ["nobody", "the caller", "a view", "a later call"])
def test_a_rule_computes_over_what_nobody_else_has(who: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rule: Any = activation._relu_rule
    seen: list[Any] = []
    into = rule.__wrapped__.into
    monkeypatch.setattr(rule.__wrapped__, "into", lambda *args: (seen.append(args), into(*args))[1])

    def program(x: Any, out: Any) -> list[Any]:
        g = np.cumsum(x, axis=0)
        view = g[:1] if who == "a view" else None
        y = rule(g, out)
        if who == "a later call":
            return [y, np.cumsum(g, axis=1)]
        return [y, *{"the caller": [g], "a view": [view]}.get(who, [])]

    x, out = normal(200, 200), np.maximum(normal(200, 200, seed=2), 0)  # more than one block
    capture, found = capture_of(program, x, out)
    replay: Any = compile_replay(capture, found, options=Options(native=native))
    for _ in range(2):
        for made, expected in zip(replay(x, out), program(x, out), strict=True):
            np.testing.assert_array_equal(made, expected)
    assert len(seen) == (2 if who == "nobody" else 0)


def test_a_rule_never_computes_over_an_input() -> None:
    rule: Any = activation._relu_rule
    x, out = normal(200, 200), np.maximum(normal(200, 200, seed=2), 0)  # more than one block
    before = x.copy()
    capture, found = capture_of(lambda x, out: [rule(x, out)], x, out)
    replay: Any = compile_replay(capture, found, options=Options(native=False))
    np.testing.assert_array_equal(replay(x, out)[0], rule(x, out))
    np.testing.assert_array_equal(x, before)


def test_buffers_serve_again_when_nothing_reads_them_any_more() -> None:
    def program(x: Any) -> list[Any]:
        y = x * 2  # read by way of its view until the end
        row = y[1]
        for _ in range(5):
            x = np.sin(x) * x
        return [x, x.sum() + row.sum()]

    capture, found = capture_of(program, np.ones((3, 4)))
    replay: Any = compile_replay(capture, found, buffers_from=1, options=Options(native=False))
    written = re.findall(r"^    \w+\(.*\b(b\d)\)$", replay.text, re.MULTILINE)
    assert len(set(written)) == 4
    assert written.count(written[0]) == 1
    x = np.linspace(0, 1, 12).reshape(3, 4)
    np.testing.assert_array_equal(replay(x)[1], program(x)[1])


def test_what_is_held_the_longest_comes_and_goes_where_all_would_take_more_memory_at_once() -> None:
    def program(x: Any) -> list[Any]:
        kept = [np.sin(x) * (k + 2) for k in range(8)]
        total = kept[0] * 0
        for y in kept[::-1]:
            total = total + np.cos(y) * y
        return [total.sum(), *[x + k for k in range(6)]]  # are made when nothing else is held

    x = normal(300)
    capture, found = capture_of(program, x)
    replay: Any = compile_replay(capture, found, buffers_from=1, options=Options(native=False))
    most, results = 11, 6  # arrays held at the end of the first loop, and those that leave
    assert 2 * x.nbytes <= replay.nbytes <= (most - results) * (x.nbytes + 64)
    assert re.search(r"^    \w+\(.*\bb\d\)$", replay.text, re.MULTILINE) is not None
    assert re.search(r"^    v\d+ = .*\* \w+$", replay.text, re.MULTILINE) is not None
    check_replay(program, [x], [normal(300, seed=1)])


def test_views_of_buffers_are_made_once() -> None:
    def program(x: Any) -> list[Any]:
        rows = np.empty_like(x, shape=(4, 6))
        np.multiply(x, 2.0, out=rows[1:3, ::-1])
        rows[0] = rows[1, 0]
        rows[3] = rows[2].reshape(2, 3).T.reshape(-1)
        return [(rows.T * 3)[::-2], rows.sum()]

    capture, found = capture_of(program, normal(2, 6))
    replay: Any = compile_replay(capture, found, options=Options(native=False))
    assert re.search(r"1:3", replay.text) is None
    assert re.search(r"empty", replay.text.replace("make_arena", "")) is None
    check_replay(program, [normal(2, 6)], [normal(2, 6, seed=1)])


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum, np.add, np.hypot])
def test_ufuncs_write_into_buffers_as_each_takes_its_result(ufunc: np.ufunc) -> None:
    check_replay(lambda x, y: [ufunc(ufunc(x, y), 0.5) * 2], [normal(3), normal(3, seed=1)], [normal(3), normal(3)])


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_numbers_are_as_in_numpy_beside_arrays_of_any_dtype(dtype: str) -> None:
    """Those that the dtype does not hold, too, and those that are no numbers to it."""

    def program(x: Any) -> list[Any]:
        found = [
            x * 0.1,
            1 - x,
            x / 3,
            x + 16_777_217,
            np.maximum(x, -0.0),
            x * -0.0,
            x - np.inf,
            np.minimum(x, np.nan),
        ]
        found += [x * 1e300, x[0] * 0.1, (x > 0) * 0.1, x.astype(int) + 1]
        y = x * 2
        y += 0.1
        y *= 3
        return [*found, y, np.add(y, 0.3, out=x.copy())]

    with np.errstate(all="ignore"):
        check_replay(program, [normal(5).astype(dtype)], [normal(5, seed=1).astype(dtype)])


def test_a_number_is_made_an_array_once() -> None:
    capture, found = capture_of(lambda x: [x * 0.5 + (x - 0.5)], normal(3))
    replay: Any = compile_replay(capture, found, options=Options(native=False))
    numbers = [value for value in replay.__globals__.values() if value.__class__ is np.ndarray and not value.shape]
    assert numbers == [0.5]


def test_joined_arrays_and_products_of_any_size_are_in_buffers() -> None:
    def program(x: Any, y: Any) -> list[Any]:
        joined = np.concatenate([np.dot(x, y), x, y], 1)
        whole = np.concatenate((joined * 2, joined))
        return [np.dot(whole, np.dot(whole.T, whole[:, 0])).sum()]

    capture, found = capture_of(program, normal(64, 64), normal(64, 64))
    replay: Any = compile_replay(capture, found, options=Options(native=False))
    assert not re.search(r"^    v\d+ = (dot|concatenate)", replay.text, re.MULTILINE)
    check_replay(program, [normal(64, 64)] * 2, [normal(64, 64, seed=1), normal(64, 64, seed=2)])


def owners_of(program: Program, *arrays: Any) -> list[tuple[int, int | None]]:
    """The slots of a program's results, and those in whose memory they lie."""
    capture, found = capture_of(program, *arrays)
    return [(y.slot.number, capture.layouts[y.slot.number].owner) for y in found]


def test_a_copy_that_reshape_makes_has_memory_of_its_own_and_a_view_has_not() -> None:
    def program(x: Any) -> list[Any]:
        copied = x.T.reshape(-1)
        return [copied, copied[1:], (x * 2)[1:][:1]]

    (copied, owner), (_, of_part), (view, of_view) = owners_of(program, normal(3, 4))
    assert owner == copied
    assert of_part == copied
    assert of_view == view - 2  # the product, which nobody holds


def test_replays_at_the_same_time_have_buffers_of_their_own() -> None:
    entered, released = threading.Event(), threading.Event()

    def pause(x: Any) -> Any:
        if x[0] == 3.0:  # in the first thread
            entered.set()
            assert released.wait(20)
        return x

    capture = Capture()
    x = capture.add_input(np.ones(4))
    y = x * 2
    capture.call_foreign(pause, x)
    replay = compile_replay(capture, [y + 1], buffers_from=1, options=Options(native=False))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(replay, np.full(4, 3.0))
        assert entered.wait(20)
        np.testing.assert_array_equal(replay(np.full(4, 5.0))[0], np.full(4, 11.0))
        released.set()
        np.testing.assert_array_equal(first.result()[0], np.full(4, 7.0))
