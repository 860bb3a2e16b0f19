"""What a compiled function reads besides its arguments, where it changes between calls, and settings of the process."""

from __future__ import annotations

import contextlib
import contextvars
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_programs import facts, first_difference, wave

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, errors, nn, tensor


def same(found: Any, expected: Any) -> None:
    assert first_difference([dict(facts(found))], [dict(facts(expected))]) == ""


@contextlib.contextmanager
def refusal(match: str) -> Iterator[None]:
    """Expect that a function is not replayed, for this reason."""
    with pytest.warns(errors.CompileWarning, match=match):
        yield


def tensors(n: int = 3, count: int = 9) -> list[Tensor]:
    return [tensor(wave(n, at=k)) for k in range(count)]


# ---------------------------------------------------------------- constants


def test_a_large_array_that_is_read_by_name_is_another_one_when_it_is_replaced() -> None:
    held = [np.arange(1000.0)]
    compiled = compile(step := lambda x: x * held[0].sum())
    for k, x in enumerate(tensors()):
        if k % 4 == 3:
            held[0] = held[0] * 2.0
        same(compiled(x), step(x))


def test_a_write_to_a_large_array_that_is_a_constant_is_found_by_the_next_rehearsal() -> None:
    data = np.arange(1000.0)
    step = lambda x: x + data.sum()
    compiled, x = compile(step), tensor(wave(3))
    for _ in range(4):
        same(compiled(x), step(x))
    data += 1.0
    for _ in range(3):
        compiled(x)
    with refusal(rf"from one call to the next changes .*{Path(__file__).name}:{step.__code__.co_firstlineno}\b"):
        same(compiled(x), step(x))  # the eighth
    for _ in range(3):
        data += 1.0
        same(compiled(x), step(x))


def test_a_large_array_is_not_kept_alive_by_its_name() -> None:
    class Held:
        data = np.arange(1000.0)

    compiled = compile(step := lambda x: x * Held.data.sum())
    for x in tensors():
        same(compiled(x), step(x))
    Held.data, reference = np.zeros(1000), weakref.ref(Held.data)
    same(compiled(x), step(x))
    compiled.release()
    assert reference() is None


def test_an_attribute_of_its_object_is_given_to_a_method() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.x, self.w = np.arange(1000.0), tensor(0.5)
            self.compiled = compile(self.step)

        def step(self, x: Any) -> Any:
            return (x * self.w).sum()

    trainer = Trainer()
    for k in range(6):
        if k == 4:
            trainer.x = np.ones(1000)
        same(trainer.compiled(trainer.x), trainer.step(trainer.x))
        trainer.x += 1.0
    assert "calls:" in trainer.compiled.explain()


# ---------------------------------------------------------------- what changes again and again


class Trainer:
    """An object of the user's, with a number that each epoch changes."""

    epoch, model = 0.0, nn.Linear(3, 1)


NOW = 0.0


def changing_again_and_again() -> dict[str, tuple[Callable[[Any], Any], Callable[[int], None], str]]:
    """Functions, what changes in them what they read, and what a warning says of it."""
    trainer, outer = Trainer(), 0.0

    def of_outer(x: Any) -> Any:
        return x * outer

    def set_outer(k: int) -> None:
        nonlocal outer
        outer = float(k)

    def set_global(k: int) -> None:
        global NOW
        NOW = float(k)

    return {
        "an attribute": (lambda x: x * trainer.epoch, lambda k: setattr(trainer, "epoch", k * 1.0), "trainer.epoch"),
        "a variable": (of_outer, set_outer, "outer"),
        "a global": (lambda x: x * NOW, set_global, "NOW"),
        "an object": (
            lambda x: trainer.model(x),
            lambda k: setattr(trainer, "model", nn.Linear(3, 1, rng=np.random.default_rng(k))),
            "trainer.model",
        ),
    }


@pytest.mark.parametrize("name", changing_again_and_again())
@pytest.mark.parametrize("calls", [1, 3])
def test_a_step_goes_on_whatever_a_name_stands_for_and_warns_of_it(name: str, calls: int) -> None:
    """Calls of each value: with one, all are captured; with three, some are replayed. None moves the weights twice."""
    function, change, what = changing_again_and_again()[name]
    found, expected = tensor([1.0, 2.0, 3.0]), tensor([1.0, 2.0, 3.0])

    def step(w: Any) -> Any:
        gm = GradManager().attach(w)
        with gm:
            gm.backward(loss := gnp.sum(function(w) ** 2))
        w -= 1e-6 * w.grad
        w.grad = None
        return loss

    compiled = compile(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(30):
            change(k)
            for _ in range(calls):
                same(compiled(found), step(expected))
                same(found, expected)
    warned = [str(each.message) for each in caught if each.category is errors.CompileWarning]
    assert warned
    assert len(warned) == len(set(warned)) <= 2
    line = f"{Path(__file__).name}:{function.__code__.co_firstlineno + (function.__name__ == 'of_outer')}"
    assert all(what in text and line in text for text in warned), warned
    assert "no further variants" in compiled.explain()


def test_a_name_that_changes_after_many_replays_is_captured_again() -> None:
    trainer = Trainer()
    compiled = compile(step := lambda x: x * trainer.epoch)
    x = tensor(wave(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.CompileWarning)
        for k in range(25):
            trainer.epoch = k * 1.0
            for _ in range(110):
                found = compiled(x)
            same(found, step(x))
    assert "no further variants" not in compiled.explain()


# ---------------------------------------------------------------- settings of what runs at the moment


@pytest.mark.parametrize("asked", [gradmgr.is_grad_enabled, gradmgr.is_inference_mode_enabled])
def test_modes_that_a_function_asks_for_are_compared(asked: Callable[[], bool]) -> None:
    modes = (contextlib.nullcontext, gradmgr.no_grad, gradmgr.inference_mode, gradmgr.enable_grad)
    compiled = compile(step := lambda x: x * 2 if asked() else x * 3)
    for k, x in enumerate(tensors(count=16)):
        with modes[(k // 3 + k) % 4]():
            same(compiled(x), step(x))
    assert "not replayed" not in compiled.explain()


def _dividing_as(way: str, value: Any) -> Callable[[Any], Any]:
    def with_block(x: Any) -> Any:
        with np.errstate(divide=value):
            return 1.0 / x

    def with_seterr(x: Any) -> Any:
        before = np.seterr(divide=value)
        try:
            return 1.0 / x
        finally:
            np.seterr(**before)

    @np.errstate(divide=value)
    def decorated(x: Any) -> Any:
        return 1.0 / x

    def in_backward(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            y = gnp.sum(gnp.sqrt(x))  # whose derivative divides by zero
            with np.errstate(divide=value):
                gm.backward(y)
        found, x.grad = x.grad, None
        return found

    return {"with": with_block, "seterr": with_seterr, "decorator": decorated, "backward": in_backward}[way]


@pytest.mark.parametrize("way", ["with", "seterr", "decorator", "backward"])
@pytest.mark.parametrize("value", ["raise", "call"])
def test_a_function_that_lets_floating_point_errors_raise_raises_in_each_call(way: str, value: str) -> None:
    compiled = compile(_dividing_as(way, value))

    def refuse(*args: Any) -> None:
        raise FloatingPointError(args)

    before = np.geterrcall()
    np.seterrcall(refuse)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.CompileWarning)
            for x in tensors():
                compiled(x + 9)
        for x in tensors():
            with pytest.raises(FloatingPointError):
                compiled(x * 0)
    finally:
        np.seterrcall(before)


@pytest.mark.parametrize(
    ("change", "read", "undo"),
    [
        (lambda: gradmgr.set_grad_enabled(False), gradmgr.is_grad_enabled, lambda: gradmgr.set_grad_enabled(True)),
        (lambda: np.seterr(all="ignore"), lambda: np.geterr()["over"], lambda: np.seterr(all="warn")),
    ],
)
def test_a_setting_that_a_function_leaves_behind_is_left_behind_by_each_call(
    change: Callable[[], Any], read: Callable[[], Any], undo: Callable[[], Any]
) -> None:
    def step(x: Any) -> Any:
        change()
        return x * 2

    def check() -> None:
        compiled = compile(step)
        with refusal("changes what .* sets?, for what comes after it, too; do that outside"):
            for x in tensors():
                undo()
                before = read()
                compiled(x)
                assert read() != before
                undo()

    contextvars.copy_context().run(check)  # where the settings end
