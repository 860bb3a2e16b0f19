"""The contract of `compile`, sentence by sentence: inputs, compared names, guards, values that leave, constants.

Programs as people write them are in test_contract_programs.py.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import enum
import io
import json
import math
import operator
import os
import random
import re
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from contract_harness import Program, assert_names, assert_plain, check, compile_warnings, compiled, runs_of
from contract_not_yet import cases, not_yet
from contract_programs import tensors, wave
from machine import needs_machine

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, functional, tensor
from gradmgr.function import Function, custom_op

LEVELS = pytest.mark.parametrize("level", ["plain", pytest.param("native", marks=needs_machine)])


def rehearsed(call: int) -> bool:
    """Return True if the function runs as written in the call of a number, of which the first is 1."""
    return call & (call - 1) == 0


@not_yet
@LEVELS
def test_the_function_runs_as_written_at_calls_that_are_powers_of_two(level: str) -> None:
    def step(x: Any) -> Any:
        return gnp.tanh(x) * 2

    made = compiled(step, level)
    with runs_of(step) as runs:
        ran = []
        for k in range(1, 20):
            before = runs[0]
            made(tensor(wave(3, at=k)))
            ran.append(runs[0] - before)
    assert ran == [int(rehearsed(k)) for k in range(1, 20)]


# ---------------------------------------------------------------- inputs and results


def kinds(value: Any) -> Any:
    """Return the classes of the parts of a value."""
    if isinstance(value, dict):
        return {key: kinds(part) for key, part in value.items()}
    return [kinds(part) for part in value] if isinstance(value, (list, tuple)) else type(value)


@not_yet
@LEVELS
def test_arrays_arrive_as_tensors_and_plain_results_come_back(level: str) -> None:
    def step(x: Any, more: Any) -> Any:
        signs = [1.0 if isinstance(a, Tensor) else -1.0 for a in (x, more["y"], more["z"][0])]
        return x * signs[0], {
            "y": [more["y"] * signs[1], gnp.sum(more["z"][0]) * signs[2]],
            "shape": x.shape,
            "none": None,
        }

    made = compiled(step, level)
    for k in range(6):
        x, y, z = (wave(3, at=k + j) for j in range(3))
        one, rest = made(x, {"y": y, "z": (z,)})
        assert kinds((one, rest)) == [np.ndarray, {"y": [np.ndarray, np.float64], "shape": [int], "none": type(None)}]
        assert one.tobytes() == x.tobytes()
        assert rest["y"][0].tobytes() == y.tobytes()
        assert rest["y"][1] == np.sum(z)


@not_yet
@LEVELS
def test_results_are_tensors_where_an_argument_is_one(level: str) -> None:
    made = compiled(lambda x, w: (x * 2, w * x, gnp.sum(x)), level)
    for k in range(6):
        assert kinds(made(wave(3, at=k), tensor(wave(3)))) == [Tensor] * 3


@not_yet
@LEVELS
def test_an_array_argument_that_is_written_in_place_is_written_as_without_compile(level: str) -> None:
    def step(x: Any) -> Any:
        x *= 2
        x[0] = 7.0
        return x + 1

    check(lambda: Program(step, lambda k: (wave(3, at=k),), replays=None), levels=(level,))


@LEVELS
def test_a_result_keeps_its_values_when_later_calls_are_made(level: str) -> None:
    made = compiled(lambda x: (gnp.tanh(x), x.T[:1], gnp.sum(x)), level)
    kept = [(k, made(wave(3, 2, at=k))) for k in range(10)]
    for k, (a, b, c) in kept:
        x = wave(3, 2, at=k)
        assert (a.tobytes(), b.tobytes(), c) == (np.tanh(x).tobytes(), x.T[:1].tobytes(), np.sum(x))


@LEVELS
def test_a_recording_of_the_caller_goes_through_a_compiled_function(level: str) -> None:
    function = lambda x: gnp.tanh(x) * x
    made, found = compiled(function, level), {}
    for call in (function, made):
        w = tensor(wave(3))
        gm = GradManager().attach(w)
        for k in range(8):
            call(w * k)  # outside of the recording it is replayed
            with gm:
                gm.backward(gnp.sum(call(w * wave(3, at=k))))
        found[call] = w.grad.tolist()
    assert found[made] == found[function]


@pytest.mark.parametrize("kind", ["generator", "coroutine", "asynchronous generator"])
def test_functions_that_suspend_are_refused(kind: str) -> None:
    def generator(x: Any) -> Any:
        yield x

    async def coroutine(x: Any) -> Any:
        await asyncio.sleep(0)

    async def asynchronous(x: Any) -> Any:
        yield x

    function = {"generator": generator, "coroutine": coroutine}.get(kind, asynchronous)
    with pytest.raises(TypeError, match=rf"{function.__name__}.*compile what it calls"):
        gradmgr.compile(function)


# ---------------------------------------------------------------- what is read by name is compared before each call


class Mode(enum.Enum):
    SLOW = 2
    FAST = 3


def times(x: Any, value: Any) -> Any:
    return x * value


# A value, another one, and what a step computes of x by it.
VALUES: dict[str, tuple[Any, Any, Callable[[Any, Any], Any]]] = {
    "int": (2, 3, times),
    "float": (0.5, 0.25, times),
    "zero of another sign": (0.0, -0.0, lambda x, v: x * math.copysign(1, v)),
    "bool": (True, False, lambda x, v: x * 2 if v else x * 3),
    "None": (None, 2.0, lambda x, v: x if v is None else x * v),
    "text": ("a", "bb", lambda x, v: x * len(v)),
    "tuple": ((1, 2), (1, 3), lambda x, v: x * v[1]),
    "list": ([1, 2], [1, 3], lambda x, v: x * v[1]),
    "nested dict": ({"a": {"b": 2}}, {"a": {"b": 3}}, lambda x, v: x * v["a"]["b"]),
    "set": ({2}, {3}, lambda x, v: x * max(v)),
    "enum": (Mode.SLOW, Mode.FAST, lambda x, v: x * v.value),
    "slice": (slice(1), slice(2), lambda x, v: x[v]),
    "dtype": (np.float32, np.float64, lambda x, v: x.astype(v)),
    "number of NumPy's": (np.float32(2), np.float32(3), times),
    "small array": (wave(3), wave(3, at=1), times),
    "large array": (wave(3, 1000), wave(3, 1000, at=1), lambda x, v: x @ v),
    "Tensor": (tensor(wave(3)), tensor(wave(3, at=1)), times),
    "function": (gnp.sin, gnp.cos, lambda x, v: v(x)),
    "function of the program": (lambda x: x * 2, lambda x: x * 3, lambda x, v: v(x)),
}


VALUE: Any = None
SHARED = wave(3, 1000)


class Holder:
    value: Any = None


def in_global(use: Any) -> Any:
    return lambda x: use(x, VALUE), lambda value: globals().update(VALUE=value)


def in_closure(use: Any) -> Any:
    held = None

    def change(value: Any) -> None:
        nonlocal held
        held = value

    return lambda x: use(x, held), change


def in_attribute(use: Any) -> Any:
    holder = types.SimpleNamespace(inner=Holder())
    return lambda x: use(x, holder.inner.value), lambda value: setattr(holder.inner, "value", value)


def in_class(use: Any) -> Any:
    return lambda x: use(x, Holder.value), lambda value: setattr(Holder, "value", value)


def in_container(use: Any) -> Any:
    held = {"values": [None]}
    return lambda x: use(x, held["values"][0]), lambda value: held["values"].__setitem__(0, value)


def in_called_function(use: Any) -> Any:
    held = types.SimpleNamespace(value=None)

    def inner(x: Any) -> Any:
        return use(x, held.value)

    return lambda x: inner(x), lambda value: setattr(held, "value", value)  # a function that calls one


PLACES = {
    "global": in_global,
    "closure": in_closure,
    "attribute": in_attribute,
    "class": in_class,
    "container": in_container,
    "function that is called": in_called_function,
}


@pytest.mark.parametrize("place", cases(PLACES, "read by name: "))
@pytest.mark.parametrize("name", cases(VALUES, "read by name: "))
def test_a_value_that_is_read_by_name_is_compared_before_each_call(name: str, place: str) -> None:
    def make() -> Program:
        first, other, use = VALUES[name]
        step, change = PLACES[place](use)
        steps = {0: first, 5: other, 8: first}
        return Program(step, tensors((3,)), between=lambda k: k in steps and change(steps[k]), replays=2)

    check(make, levels=("plain",))


ARGUMENTS = ["int", "float", "bool", "None", "text", "tuple", "list", "nested dict", "enum", "slice", "dtype"]


@pytest.mark.parametrize("name", cases(ARGUMENTS, "argument: "))
def test_a_plain_value_among_the_arguments_is_compared_before_each_call(name: str) -> None:
    first, other, use = VALUES[name]
    check(
        lambda: Program(use, lambda k: (tensor(wave(3, at=k)), other if 4 < k < 8 else first), replays=2),
        levels=("plain",),
    )


# ---------------------------------------------------------------- values that decide, and values that leave

# Each takes one way in the first five calls, and another one in the last five, where x has the other sign.
GUARDS: dict[str, Callable[[Any], Any]] = {
    "greater": lambda x: x * 2 if gnp.sum(x) > 0 else x * 3,
    "at most, by a number on the left": lambda x: x * 2 if x[0] >= 0 else x * 3,
    "equal": lambda x: x * 2 if gnp.sign(x[0]) == 1 else x * 3,
    "not equal": lambda x: x * 2 if gnp.sign(x[0]) != 1 else x * 3,
    "truth": lambda x: x * 2 if x[0] > 0 and not x[1] < 0 else x * 3,
    "conditional chain": lambda x: x * 2 if 0 < x[0] < 10 else x * 3,
    "any": lambda x: x * 2 if (x > 0).any() else x * 3,
    "all of the loop": lambda x: x * 2 if all(v > 0 for v in x) else x * 3,
    "allclose": lambda x: x * 2 if gnp.allclose(x, gnp.abs(x)) else x * 3,
    "largest of Python's": lambda x: max(x[0], -2 * x[1]) * x,
    "sorted of Python's": lambda x: sorted([x[0], x[1] * 2, -x[2]], key=lambda v: v)[0] * x,
    "index": lambda x: [x * 2, x * 3][int(x[0] > 0)],
    "index of a tuple": lambda x: (x * 2, x * 3)[int(gnp.argmax(x)) == 2],
    "count": lambda x: sum([x * k for k in range(2 + int(gnp.sign(x[0])))], x),
    "length that a mask gives": lambda x: x[x > -0.8],
    "assertion": lambda x: x * 2 if gnp.isfinite(x).all() else x,
}


def of_two_signs(k: int) -> tuple[Any, ...]:
    return (tensor((np.array([0.5, 0.7, 0.9]) + 0.01 * k) * (1 if k < 5 else -1)),)


@pytest.mark.parametrize("name", cases(GUARDS, "guard: "))
def test_a_value_that_is_only_compared_is_a_guard(name: str) -> None:
    check(lambda: Program(GUARDS[name], of_two_signs, replays=2), levels=("plain",))


# What leaves, and the name that the warning is to have.
LEAVES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "item": ("item", lambda x: x * x[0].item()),
    "float": ("float", lambda x: x * float(x[0])),
    "complex": ("complex", lambda x: x * complex(x[0])),
    "numpy": ("numpy", lambda x: x * np.exp(x.numpy())),
    "tolist": ("tolist", lambda x: x * x.tolist()[0]),
    "asarray": ("asarray|array", lambda x: x * np.asarray(x)[0]),
    "math": ("float|tanh", lambda x: x * math.tanh(x[0])),
    "text": ("format|str|float", lambda x: x * len(f"{x[0]:.6g}")),
    "repr": ("repr|str|print", lambda x: x * len(repr(x))),
    "round": ("float|round", lambda x: x * round(float(x[0]), 2)),
    "returned float": ("float", lambda x: float(gnp.sum(x))),
    "json": ("tolist", lambda x: json.dumps(x.tolist())),
    "memory": ("DLPack|dlpack|array|numpy", lambda x: x * np.from_dlpack(x)[0]),
    "list of numbers": ("float", lambda x: x * np.array([float(v) for v in x])),
}


@LEVELS
@pytest.mark.parametrize("name", cases(LEAVES, "leaves: "))
def test_a_value_that_leaves_ends_the_capture_with_one_warning(name: str, level: str) -> None:
    word, step = LEAVES[name]
    says = rf"(?s)(?=.*({word})).*return"
    check(lambda: Program(step, tensors((3,)), replays=0, says=says), levels=(level,))


NEVER_CONSTANT: dict[str, Callable[[Any], Any]] = {
    "time": lambda x: x + 0.0 * time.time(),
    "perf_counter": lambda x: x + 0.0 * time.perf_counter_ns(),
    "random": lambda x: x + 0.0 * random.random(),  # noqa: S311  # what is refused
    "os": lambda x: x + 0.0 * os.getpid(),
    "environ": lambda x: x + 0.0 * len(os.environ),
    "sys": lambda x: x + 0.0 * sys.getrefcount(x),
    "io": lambda x: x + 0.0 * len(io.open(__file__).readline()),  # noqa: UP020, SIM115  # the name that is tested
    "socket": lambda x: x + 0.0 * len(socket.gethostname()),
    "np.random": lambda x: x + 0.0 * np.random.normal(size=3),
}


@pytest.mark.parametrize("name", cases(NEVER_CONSTANT, "never constant: "))
def test_modules_whose_answers_are_never_constant_end_a_capture_by_name(name: str) -> None:
    words = {"perf_counter": "time", "environ": "os", "np.random": "random"}
    check(
        lambda: Program(NEVER_CONSTANT[name], tensors((3,)), replays=0, says=rf"\b{words.get(name, name)}\b"),
        levels=("plain",),
    )


# ---------------------------------------------------------------- constants, and what rehearsals find


def large_array() -> Any:
    big = wave(3, 1000)
    return lambda x: x @ big, lambda: big.__setitem__((0, 0), 5.0)


def array_made_of_a_large_one() -> Any:
    big = wave(3, 1000)
    return lambda x: x @ np.sqrt(big**2 + 1), lambda: big.__setitem__((0, 0), 5.0)


def array_of_pythons() -> Any:
    numbers = array.array("d", [2.0])
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 3.0)


def ctypes_number() -> Any:
    number = ctypes.c_double(2.0)
    return lambda x: x * number.value, lambda: setattr(number, "value", 3.0)


def buffer() -> Any:
    data = bytearray(np.ones(3).tobytes())
    return lambda x: x * np.frombuffer(data), lambda: data.__setitem__(slice(8), np.float64(3.0).tobytes())


def attribute_without_a_name() -> Any:
    holder, read = Holder(), operator.attrgetter("value")
    holder.value = 2.0
    return lambda x: x * read(holder), lambda: setattr(holder, "value", 3.0)


def attribute_by_a_text() -> Any:
    holder = Holder()
    holder.value = 2.0
    return lambda x: x * getattr(holder, "va" + "lue"), lambda: setattr(holder, "value", 3.0)


HIDDEN: dict[str, Callable[[], Any]] = {
    "large array": large_array,
    "array made of a large one": array_made_of_a_large_one,
    "array of Python's": array_of_pythons,
    "ctypes number": ctypes_number,
    "buffer": buffer,
    "attribute without a name": attribute_without_a_name,
    "attribute by a text": attribute_by_a_text,
}


@pytest.mark.parametrize(("changed", "noticed"), [(2, 2), (3, 4), (6, 8), (10, 16)])
@pytest.mark.parametrize("name", cases(HIDDEN, "constant: "))
def test_a_constant_that_changes_is_noticed_at_the_next_rehearsal_and_said(
    name: str, changed: int, noticed: int
) -> None:
    step, change = HIDDEN[name]()
    made, runs_after = compiled(step, "plain"), []
    is_stale = False
    with compile_warnings() as warned, runs_of(step) as runs:
        for k in range(1, 20):
            if k == changed:
                change()
            x, before = tensor(wave(3, at=k)), runs[0]
            found = made(x).tolist()
            ran = runs[0] - before
            is_right = found == step(x).tolist()
            assert is_right or changed <= k < noticed, f"call {k} is stale"
            is_stale |= not is_right
            runs_after += [ran] * (k > noticed)
    if is_stale or warned:  # as an array that is read in each call is no constant
        assert len(warned) == 1
        assert_names(warned[0], Program(step, tensors()))
        assert_plain(warned[0])
        assert set(runs_after) == {1}, "after the warning it stays as written"


@not_yet
def test_check_runs_a_rehearsal_now() -> None:
    step, change = array_made_of_a_large_one()
    made = compiled(step, "plain")
    for k in range(5):
        made(tensor(wave(3, at=k)))
    with compile_warnings() as warned:
        made.check(tensor(wave(3)))
    assert warned == []
    change()
    with compile_warnings() as warned:
        made.check(tensor(wave(3)))
    assert len(warned) == 1
    x = tensor(wave(3, at=9))
    assert made(x).tolist() == step(x).tolist()


@not_yet
def test_explain_tells_what_is_compared_and_which_constants_there_are() -> None:
    big, rate = wave(3, 1000), 0.5

    def step(x: Any) -> Any:
        return gnp.tanh(x * rate) @ np.sqrt(big**2 + 1)

    made = compiled(step, "plain")
    for k in range(5):
        made(tensor(wave(3, at=k)))
    text = made.explain()
    assert_plain(text)
    line = step.__code__.co_firstlineno + 1
    for said in ("1 variant", r"\(3,\) float64", r"\brate\b", "constant", rf"test_contract\.py:{line}\b", "tanh"):
        assert re.search(said, text), f"{said} is not in:\n{text}"


# ---------------------------------------------------------------- a program with one step changed


def step_with_one_change(place: str) -> Callable[[Any], Any]:
    """Return a step of which one part computes another bit where a program runs it, and not the step itself."""
    is_inside = array.array("b", [0])  # whether the step runs: hidden state, which no value of the program's is

    def factor(*at: str) -> float:
        return 1.0 if is_inside[0] or place not in at else float(np.nextafter(1.0, 2.0))

    @custom_op(vjp={"x": lambda g, x: 2 * x * g * factor("rule of an operation")})
    def square(x: Any) -> Any:
        return x * x * factor("kernel of an operation")

    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2 * factor("forward of a Function")

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * factor("backward of a Function")

    w = tensor(wave(3))
    gm = GradManager().attach(w, callbacks=lambda t, g: g * factor("callback"))
    w.register_hook(lambda g: g * factor("hook"))

    def step(x: Any) -> Any:
        is_inside[0] = 1
        with gm:
            loss = gnp.sum(Twice.apply(square(w * x)))
            gm.backward(loss)
        is_inside[0] = 0
        g, w.grad = w.grad, None
        return loss, g

    return step


MUTATED = [
    "nothing",
    "kernel of an operation",
    "rule of an operation",
    "forward of a Function",
    "backward of a Function",
    "hook",
    "callback",
]


@LEVELS
@pytest.mark.parametrize("place", cases(MUTATED, "mutated: "))
def test_a_program_with_one_step_changed_by_one_bit_is_caught_at_the_second_call(place: str, level: str) -> None:
    step = step_with_one_change(place)
    made = compiled(step, level)
    with compile_warnings() as warned, runs_of(step) as runs:
        for k in range(10):
            x = wave(3, at=k)
            found, expected = made(x), step(x)
            assert [a.tolist() for a in found] == [a.tolist() for a in expected], f"call {k + 1}"
    is_replayed = runs[0] < 20
    assert len(warned) == (not is_replayed)
    assert is_replayed == (place == "nothing") or place == "rule of an operation"  # which may be taken apart into ops
    for text in warned:
        assert_plain(text)
        assert "test_contract.py:" in text


# ---------------------------------------------------------------- threads


def look(found: list[Any]) -> None:
    """Note what another thread sees of a global array."""
    try:
        found.append((type(SHARED), isinstance(SHARED, np.ndarray), memoryview(SHARED).nbytes, float(SHARED.sum())))
    except Exception as error:
        found.append(error)


def during_each_run(act: Callable[[], None]) -> Callable[[Any], Any]:
    """Return a step that reads a global array, and in the middle of each run lets another thread act."""

    def other(x: Any) -> Any:
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        return x * 1.0

    operation = custom_op(vjp={"x": lambda g: g})(other)
    return lambda x: operation(x) @ SHARED + SHARED[0]


@not_yet
@LEVELS
def test_another_thread_sees_a_global_array_as_it_is_in_every_call(level: str) -> None:
    globals().update(SHARED=wave(3, 1000))
    found: list[Any] = []
    step = compiled(during_each_run(lambda: look(found)), level)
    with compile_warnings():
        for k in range(6):
            step(tensor(wave(3, at=k)))
    assert len(found) >= 2
    assert set(found) == {(np.ndarray, True, SHARED.nbytes, float(SHARED.sum()))}


@not_yet
@LEVELS
def test_what_another_thread_assigns_during_a_call_stays(level: str) -> None:
    values = [wave(3, 1000, at=k) for k in range(9)]
    globals().update(SHARED=values[-1])
    rest = iter(values)
    step = compiled(during_each_run(lambda: globals().update(SHARED=next(rest))), level)
    with compile_warnings():
        for k in range(6):
            step(tensor(wave(3, at=k)))
            assert any(SHARED is value for value in values), type(SHARED)


@LEVELS
@pytest.mark.usefixtures("quick_switches")
def test_threads_call_one_compiled_function(level: str) -> None:
    value_and_grad = functional.value_and_grad(lambda x: gnp.sum(gnp.tanh(x) * x))
    step = compiled(value_and_grad, level)

    def work(j: int) -> Any:
        return [[a.tolist() for a in step(tensor(wave(3 + j % 2, at=j + k)))] for k in range(12)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for j, results in enumerate(found):
        assert results == [[a.tolist() for a in value_and_grad(tensor(wave(3 + j % 2, at=j + k)))] for k in range(12)]


@not_yet
def test_lengths_that_vary_are_replayed_or_named_after_a_few() -> None:
    def step(x: Any) -> Any:
        return gnp.sum(gnp.tanh(x) * x)

    made = compiled(step, "plain")
    for k in range(20):
        with compile_warnings() as warned, runs_of(step) as runs:
            x = tensor(wave(3 + k))
            assert made(x).item() == gnp.sum(gnp.tanh(x) * x).item()
        if warned:
            assert len(warned) == 1
            assert_plain(warned[0])
            assert_names(warned[0], Program(step, tensors(), says="pad"))
            assert k >= 3
            break
        assert k < 6 or runs[0] == 0, "each length is captured, without a word"
