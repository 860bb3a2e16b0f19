"""Optimisers and user Functions in a compiled step: what runs in each call, what it reads, and what it leaves."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from compiled_programs import Program as Compared
from compiled_programs import first_difference, history, wave
from compiled_training import OPTIMISERS, Training
from machine import needs_machine
from test_compile import runs_of

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, errors, functional, optim, tensor, vmap
from gradmgr.function import Function, custom_op, once_differentiable

CALLS = 7
LEVELS = {"plain": False, "native": True}


@pytest.fixture(params=[pytest.param("plain"), pytest.param("native", marks=needs_machine)])
def native(request: pytest.FixtureRequest) -> bool:
    return LEVELS[request.param]


def both(make: Callable[[], Compared], native: bool) -> None:
    """Assert that a program does the same, bit by bit, compiled and as it is, and that it is replayed."""
    expected = history(make())
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.CompileWarning)
        found = history(make(), lambda step: compile(step, native=native))
    assert first_difference(found, expected) == ""


# ---------------------------------------------------------------- optimisers


class Steps:
    """Parameters of several shapes, one of them large, and an optimiser."""

    def __init__(self, optimiser: Callable[[Any], optim.Optimizer], dtype: str, shapes: Any) -> None:
        self.params = [tensor(wave(*shape, at=k, dtype="f8").astype(dtype)) for k, shape in enumerate(shapes)]
        self.gm = GradManager().attach(self.params)
        self.optimizer = optimiser(self.params)

    def gradients(self, x: Any) -> Tensor:
        with self.gm:
            loss = sum([gnp.sum(gnp.real(p * gnp.conj(p)) * x) for p in self.params])
            self.gm.backward(loss)
        return loss

    def step(self, x: Any) -> Tensor:
        loss = self.gradients(x)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def state(self) -> Any:
        return self.params, self.optimizer.state_dict(), [p.grad for p in self.params]

    def compared(self, **options: Any) -> Compared:
        calls = [((np.array(1 + k / 8),), {}) for k in range(CALLS)]
        return Compared(options.pop("step", self.step), calls, self.state, **options)


SMALL, LARGE = ((3, 2), (), (5,), (1, 0), (2, 2, 2)), ((3,), (300, 300), (140_001,))
PACKED = (3, 2), (5,), (2, 2, 2)
MIXED = (3,), (200, 200), (5,)
MANY = ((20_000,), (3, 5), (20_000,), (30_000,), (7,))


@pytest.mark.parametrize("shapes", [SMALL, PACKED, LARGE, MANY], ids=["small", "packed", "large", "many"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "f2"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_each_algorithm_steps_as_eagerly(name: str, dtype: str, shapes: Any, native: bool) -> None:
    both(lambda: Steps(OPTIMISERS[name], dtype, shapes).compared(), native)


@needs_machine
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_machine_takes_the_steps_of_each_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradmgr.optim._chunks._FOR_KERNELS", 1 << 30)
    for shapes in (PACKED, LARGE, MANY):
        t = Steps(OPTIMISERS[name], "f4", shapes)
        step = compile(t.step, native=True)
        for _ in range(CALLS):
            step(np.array(1.0))
        made = [u for chunks in t.optimizer._chunks for chunk in chunks or () for u in chunk.updates.values()]
        assert made
        assert all(made)


@pytest.mark.parametrize("shapes", [SMALL, PACKED], ids=["small", "packed"])
def test_options_are_read_in_each_call(shapes: Any, native: bool) -> None:
    """Learning rate, betas, eps and weight decay are inputs, also where they change which calls there are."""

    def make() -> Compared:
        t = Steps(lambda params: optim.AdamW(params, lr=0.1), "f4", shapes)
        group = t.optimizer.param_groups[0]
        changes = [{}, {}, {}, {"lr": 0.01}, {"betas": (0.5, 0.9)}, {"weight_decay": 0.0, "eps": 0.1}, {"lr": 0.0}]
        return t.compared(between={k: lambda k=k: group.update(changes[k]) for k in range(CALLS)})

    both(make, native)
    t = make()
    step = compile(t.step, native=native)
    function = t.step.__func__
    with runs_of(function) as runs:
        for k, (args, _) in enumerate(t.calls):
            t.between[k]()
            step(*args)
    assert runs[0] <= 4  # one more than calls 1, 2 and 4, as the first step makes the state


def test_one_optimiser_with_groups_and_schedule_inside_and_outside(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda ps: optim.Adam([{"params": ps[:2], "lr": 0.5}, {"params": ps[2:]}], lr=0.1), "f8", SMALL)
        schedules = [optim.lr_scheduler.ExponentialLR(t.optimizer, 0.9) for _ in range(2)]

        def step(x: Any) -> Any:
            loss = t.step(x)
            schedules[0].step()
            return loss

        return t.compared(step=step, between=dict.fromkeys(range(1, CALLS), schedules[1].step))

    both(make, native)


def test_a_group_that_is_added_between_calls(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda params: optim.SGD(params[:2], lr=0.1, momentum=0.9), "f4", SMALL)
        return t.compared(between={4: lambda: t.optimizer.add_param_group({"params": t.params[2:]})})

    both(make, native)


def test_gradients_that_stay_come_or_are_missing(native: bool) -> None:
    """They are as the eager step leaves them; a parameter without one is left alone, and counts no step."""

    def make() -> Compared:
        t = Steps(lambda params: optim.Adam(params, lr=0.1), "f8", SMALL)
        unused = tensor(wave(2))
        t.optimizer.add_param_group({"params": [unused]})

        def step(x: Any) -> Any:
            loss = t.gradients(x)
            t.optimizer.step()
            return loss, [p.grad for p in t.params[:2]], unused

        def replaced() -> None:
            t.params[0].grad = None
            t.params[1].grad = tensor(np.ones((), "f8"))

        return t.compared(step=step, between={2: t.optimizer.zero_grad, 5: replaced})

    both(make, native)


def test_gradients_that_are_returned_and_cleared(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda params: optim.SGD(params, lr=0.1), "f8", SMALL)

        def step(x: Any) -> Any:
            t.gradients(x)
            grads = [p.grad for p in t.params]
            t.optimizer.step()
            t.optimizer.zero_grad()
            return grads

        return t.compared(step=step)

    both(make, native)


@pytest.mark.parametrize("shapes", [LARGE, PACKED], ids=["large", "packed"])
def test_what_a_user_holds_is_not_written_to(shapes: Any, native: bool) -> None:
    t = Steps(lambda params: optim.Adam(params, lr=0.1), "f4", shapes)
    step = compile(t.step, native=native)
    held, values = [], []
    for k in range(CALLS):
        step(np.array(1.0 + k))
        now = [
            t.params[0].numpy(),
            t.params[1][1:],
            t.params[2].detach(),
            *t.optimizer.state_dict()["state"][1].values(),
        ]
        held.append(now)
        values.append([np.array(v) if isinstance(v, (int, np.ndarray)) else v.numpy().copy() for v in now])
    for now, before in zip(held, values, strict=True):
        for v, expected in zip(now, before, strict=True):
            np.testing.assert_array_equal(v if isinstance(v, (int, np.ndarray)) else v.numpy(), expected)


@pytest.mark.parametrize("shapes", [PACKED, MIXED], ids=["packed", "mixed"])
@pytest.mark.parametrize("change", [{"lr": 0.01}, {"weight_decay": 0.1}, {"lr": 0.0}, {"maximize": True}])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_options_that_change_once_hold_from_then_on(name: str, change: Any, shapes: Any, native: bool) -> None:
    def make() -> Compared:
        t = Steps(partial(getattr(optim, name), lr=0.1), "f4", shapes)
        return t.compared(between={4: lambda: t.optimizer.param_groups[0].update(change)})

    both(make, native)


def _replaced(t: Steps) -> None:
    t.params[1]._array = wave(*t.params[1].shape, at=3)


def _written(t: Steps) -> None:
    t.params[1][...] = 2.0


def _loaded(t: Steps) -> None:
    state = t.optimizer.state_dict()
    for saved in state["state"].values():
        saved["step"] = 40
    t.optimizer.load_state_dict(state)


@pytest.mark.parametrize("shapes", [PACKED, MIXED], ids=["packed", "mixed"])
@pytest.mark.parametrize("change", [_replaced, _written, _loaded])
@pytest.mark.parametrize("name", ["SGD", "Adam", "momentum"])
def test_parameters_and_state_that_change_between_steps(name: str, change: Any, shapes: Any, native: bool) -> None:
    makers = {"SGD": optim.SGD, "Adam": optim.Adam, "momentum": partial(optim.SGD, momentum=0.5)}

    def make() -> Compared:
        t = Steps(partial(makers[name], lr=0.1), "f4", shapes)
        return t.compared(between={k: partial(change, t) for k in range(3, CALLS, 2)})

    both(make, native)


@needs_machine
@pytest.mark.parametrize("shapes", [PACKED, MIXED], ids=["packed", "mixed"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_a_usual_step_makes_no_calls_anew(name: str, shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Steps(partial(getattr(optim, name), lr=0.1), "f4", shapes)
    step = compile(t.step, native=True)
    for _ in range(CALLS + 1):
        step(np.array(1.0))
    anew: list[Any] = []
    monkeypatch.setattr("gradmgr.optim._chunks.Chunk.next_step", lambda *args: anew.append(args) or ((), []))
    step(np.array(1.0))
    assert not anew
    for held in (t.params[0].numpy(), t.params[1][1:], t.params[2]._array):
        step(np.array(1.0))
        assert anew
        anew.clear()
        del held


@needs_machine
def test_where_the_machine_takes_the_steps_nothing_keeps_the_scratch_of_eager_ones(monkeypatch: Any) -> None:
    """Of which eager steps, before and after, make anew what they need."""
    monkeypatch.setattr("gradmgr.optim._chunks._FOR_KERNELS", 1 << 30)
    twins = [Steps(OPTIMISERS["Adam"], "f8", PACKED) for _ in range(2)]
    scratch = twins[0].optimizer._scratch
    step = compile(twins[0].step, native=True)
    for _ in range(2):
        step(np.array(1.0))
    assert scratch._rows
    step(np.array(1.0))
    assert not scratch._rows
    for call in (twins[0].step, step, twins[0].step):
        call(np.array(1.0))
    for _ in range(6):
        twins[1].step(np.array(1.0))
    for one, other in zip(twins[0].params, twins[1].params, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@needs_machine
def test_what_python_computes_in_a_native_replay_warns_of_nothing() -> None:
    step = compile(lambda x: gnp.cumprod(x), native=True)
    for k in range(5):
        found = step(tensor([1.0, 2.0] if k < 4 else [1e300, 1e300]))
    assert found.tolist() == [1e300, np.inf]
    assert "cumprod" in step.explain()


def test_an_error_of_the_step_leaves_what_it_leaves_eagerly(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda params: optim.SGD(params, lr=0.1, momentum=0.5), "f8", SMALL)
        group = t.optimizer.param_groups[0]
        between = {4: lambda: group.update(lr="fast"), 5: lambda: (group.update(lr=0.2), t.optimizer.zero_grad())}
        return t.compared(between=between, raises=(TypeError,))

    both(make, native)


def test_a_step_inside_of_a_recording(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda params: optim.SGD(params, lr=0.1), "f8", SMALL)

        def step(x: Any) -> Any:
            with t.gm:
                t.gm.backward(gnp.sum(t.params[0] * x))
                t.optimizer.step()
            t.optimizer.zero_grad()

        return t.compared(step=step)

    both(make, native)


def test_two_steps_and_two_optimisers_in_one_call(native: bool) -> None:
    def make() -> Compared:
        t = Steps(lambda params: optim.Adam(params[:2], lr=0.1), "f4", SMALL)
        other = optim.SGD(t.params[2:], lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            t.gradients(x)
            t.optimizer.step()
            other.step()
            other.zero_grad()
            t.optimizer.zero_grad()
            t.gradients(x * 2)
            other.step()
            t.optimizer.step()
            for p in t.params:
                p.grad = None

        made = t.compared(step=step)
        made.state = lambda: (t.state(), other.state_dict())
        return made

    both(make, native)


def test_several_threads_compute_large_parameters(native: bool) -> None:
    before = gradmgr.get_num_threads()
    try:
        gradmgr.set_num_threads(2)
        both(lambda: Steps(OPTIMISERS["Adam"], "f4", ((800, 800), (3,))).compared(), native)
    finally:
        gradmgr.set_num_threads(before)


def test_a_replay_makes_no_tensor_of_a_gradient_that_comes_and_goes() -> None:
    t = Training("MLP", "Adam")
    step = compile(lambda x, y: t.step(x, y))
    for k in range(3):
        step(*t.batch(k))
    (variants,) = step._variants.values()
    assert variants.programs[0]._replay.text.count("wrap") == 1  # of the loss
    assert "_grad'" in variants.programs[0]._replay.text  # it is looked for


def test_callbacks_are_called_before_the_rest_of_backward_is_computed() -> None:
    t = Training("MLP", "SGD", callbacks=lambda p, g: g)
    step = compile(lambda x, y: t.step(x, y), native=False)
    for k in range(3):
        step(*t.batch(k))
    (variants,) = step._variants.values()
    lines = variants.programs[0]._replay.text.splitlines()
    received = [k for k, line in enumerate(lines) if "_receive" in line]
    products = [k for k, line in enumerate(lines) if re.search(r"\b(dot|matmul)", line)]
    assert len(received) == len(t.params)
    # Between the callbacks of a layer and of the one before it, the gradients of the latter are computed.
    assert sum(received[0] < k < received[-1] for k in products) >= 2


# ---------------------------------------------------------------- Functions


class Scaled(Function):
    """Takes two Tensors and numbers, returns two results, and keeps what it needs in several ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int, y: Tensor, *, factor: float = 1.0) -> Any:
        ctx.save_for_backward(x, None, y)
        ctx.more = {"largest": gnp.max(x), "list": [x * 2]}
        return x * ctx.more["largest"] * factor, (x * k) @ y

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:
        x, nothing, _ = ctx.saved_tensors
        assert nothing is None
        return g * ctx.more["largest"] + ctx.more["list"][0] * h, None, x * h if ctx.needs_input_grad[2] else None


class Doubled(Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x *= 2
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Split(Function):
    """Has `setup_context`, a result without derivative, no zeros in place of missing gradients, and one derivative."""

    @staticmethod
    def forward(x: Tensor, k: int = 2) -> Any:
        return x * k, gnp.argsort(x), x + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.k = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, _: None, h: Tensor | None) -> Any:
        return (0 if g is None else g * ctx.k) + (0 if h is None else h), None


def _in_vmap(x: Tensor, y: Tensor) -> Any:
    return gnp.sum(vmap(lambda row: Cubed.apply(row)[0])(x * y))


def _second_order(x: Tensor, y: Tensor) -> Any:
    with GradManager().attach(y) as inner:
        inner.backward(gnp.sum(Cubed.apply(x * y)[0] ** 2))
        g = y.grad
        y.grad = None
    return gnp.sum(g**2)


class Cubed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x**3, x + 1

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:
        return g * 3 * ctx.saved_tensors[0] ** 2 + h


BODIES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "both results": lambda x, y: sum(map(gnp.sum, Scaled.apply(x, 3, y))),
    "one result": lambda x, y: gnp.sum(Scaled.apply(x, 2, y)[0]),
    "a keyword": lambda x, y: gnp.sum(Scaled.apply(x, 2, y, factor=0.5)[0]),
    "twice": lambda x, y: gnp.sum(Scaled.apply(Scaled.apply(x, 1, y)[0], 2, y)[1]),
    "the same argument twice": lambda x, y: gnp.sum(Scaled.apply(x, 1, x)[1]),
    "a write to its argument": lambda x, y: gnp.sum(Doubled.apply(x * 3) ** 2),
    "one of three results": lambda x, y: gnp.sum(Split.apply(x)[0]),
    "another one": lambda x, y: gnp.sum(Split.apply(x, 5)[2] * Split.apply(x)[1]),
    "a Function of another's result": lambda x, y: gnp.sum(Doubled.apply(Split.apply(x)[2] * x)),
    "in vmap": _in_vmap,
    "a second derivative": _second_order,
}


@pytest.mark.parametrize("attach", ["w", "wv"])
@pytest.mark.parametrize("body", BODIES)
def test_functions_of_the_users_are_replayed(body: str, attach: str, native: bool) -> None:
    def make() -> Compared:
        w, v = tensor(wave(3)), tensor(wave(3, at=1))
        params = [{"w": w, "v": v}[name] for name in attach]
        gm, optimizer = GradManager().attach(params), optim.Adam(params, lr=0.1)

        def step(x: Any) -> Any:
            with gm:
                loss = BODIES[body](w * x, v)
                gm.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        calls = [((wave(3, at=k),), {}) for k in range(CALLS)]
        return Compared(step, calls, lambda: (w, v, optimizer.state_dict()))

    both(make, native)


def test_an_error_in_a_method_is_raised_as_it_is() -> None:
    class Failing(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.shape == (2,):
                raise ValueError("in forward")
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ValueError("in backward")

    w = tensor(2.0)
    gm = GradManager().attach(w)

    @compile
    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(Failing.apply(w * x)))

    for k in range(6):
        with pytest.raises(ValueError, match="in backward" if k % 2 else "in forward"):
            step(wave(2 + k % 2))
    assert w.grad is None


def test_a_function_that_reads_values_as_numbers_is_not_replayed() -> None:
    class Largest(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.largest = x.max().item()
            return x * ctx.largest

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.largest

    def make() -> Compared:
        gm = GradManager().attach(w := tensor(wave(3)))

        def step(x: Any) -> Any:
            with gm:
                loss = gnp.sum(Largest.apply(w * x))
                gm.backward(loss)
            return loss

        return Compared(step, [((wave(3, at=k),), {}) for k in range(CALLS)], lambda: w)

    expected = history(make())
    with pytest.warns(errors.CompileWarning, match=r"test_compiled_steps.py:\d+"):
        found = history(make(), compile)
    assert first_difference(found, expected) == ""


class Moved(Function):
    """Reads and writes what lies outside: a Tensor."""

    mean: Tensor

    @classmethod
    def of(cls) -> Any:
        return type("Moved", (cls,), {"mean": tensor(np.zeros(3))})

    @staticmethod
    def forward(ctx: Any, kind: Any, x: Tensor) -> Tensor:
        kind.mean[...] = kind.mean * 0.5 + x.detach()
        return x - kind.mean

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return None, g


def test_a_function_sees_and_changes_tensors_at_its_place(native: bool) -> None:
    def make() -> Compared:
        kind, w = Moved.of(), tensor(wave(3))
        gm = GradManager().attach(w)

        def step(x: Any) -> Any:
            kind.mean[0] = x[0]  # before it runs
            with gm:
                loss = gnp.sum(kind.apply(kind, w * x) ** 2)
                gm.backward(loss)
            return loss, kind.mean + 1  # and after

        return Compared(step, [((tensor(wave(3, at=k)),), {}) for k in range(CALLS)], lambda: (w, kind.mean))

    both(make, native)


def test_the_functions_of_a_custom_op_run_once_in_each_call(native: bool) -> None:
    """The log, which is compared, has each of their calls once."""

    def make() -> Compared:
        log: list[Any] = []

        @custom_op(vjp={"x": lambda g, x: (log.append(("rule", g.tolist())), 2 * x * g)[1]})
        def square(x: Any) -> Any:
            log.append(("function", x.tolist()))
            return x * x

        w = tensor(wave(3))
        gm = GradManager().attach(w)

        def step(x: Any) -> Any:
            with gm:
                loss = gnp.sum(square(w * x) * w)
                gm.backward(loss)
            return loss

        return Compared(step, [((wave(3, at=k),), {}) for k in range(CALLS)], lambda: (w, log))

    both(make, native)


@pytest.mark.parametrize("where", ["function", "rule"])
def test_an_error_in_a_custom_op_is_raised_as_it_is(where: str, native: bool) -> None:
    def make() -> Compared:
        def checked(name: str, x: Any) -> Any:
            if name == where and abs(x[0]) > 4:
                raise ValueError(f"{x[0]} in the {name}")
            return x

        square = custom_op(vjp={"x": lambda g, x: 2 * checked("rule", x) * g})(lambda x: checked("function", x) ** 2)
        gm = GradManager().attach(w := tensor(wave(3)))

        def step(x: Any) -> Any:
            with gm:
                loss = gnp.sum(square(w * x))
                gm.backward(loss)
            return loss

        calls = [((wave(3, at=k) * (20 if k in (3, 5) else 1),), {}) for k in range(CALLS)]
        return Compared(step, calls, lambda: w, raises=(ValueError,))

    assert any("ValueError" in str(each) for each in history(make()))
    both(make, native)


def test_a_custom_op_inside_vmap_is_not_replayed() -> None:
    def make() -> Compared:
        square = custom_op(vjp={"x": lambda g, x: 2 * x * g})(lambda x: x * x)
        step = vmap(functional.grad(lambda x: gnp.sum(square(x))))
        return Compared(step, [((tensor(wave(2, 3, at=k)),), {}) for k in range(CALLS)], lambda: None)

    with pytest.warns(errors.CompileWarning, match="inside vmap"):
        found = history(make(), compile)
    assert first_difference(found, history(make())) == ""


def test_a_decision_by_what_a_hook_made_stays_eager(native: bool) -> None:
    """A replay could not be given up any more: the hook has run."""

    def make() -> Compared:
        log: list[Any] = []
        layer = gradmgr.nn.Linear(3, 1, rng=np.random.default_rng(0))

        def hook(module: Any, args: Any, result: Tensor) -> Tensor:
            log.append("called")
            return result * 2

        layer.register_forward_hook(hook)

        def step(x: Any) -> Any:
            y = gnp.sum(layer(x))
            return y * 2 if y > 0 else y - 1

        return Compared(step, [((tensor(wave(3, at=k).astype("f4")),), {}) for k in range(CALLS)], lambda: log)

    expected = history(make())
    with pytest.warns(errors.CompileWarning, match="depends on what an earlier call has changed"):
        found = history(make(), lambda step: compile(step, native=native))
    assert first_difference(found, expected) == ""


def _count_in_callback(count: Callable[[], None], w: Tensor, other: Tensor) -> tuple[GradManager, Callable[..., Any]]:
    def callback(t: Tensor, grad: Tensor) -> Tensor:
        count()
        return grad

    gm = GradManager().attach([w, other], callbacks=callback)
    return gm, lambda x: gnp.sum(w * other * x)


def _count_in_hook(count: Callable[[], None], w: Tensor, other: Tensor) -> tuple[GradManager, Callable[..., Any]]:
    def loss(x: Any) -> Tensor:
        product = w * x
        product.register_hook(lambda grad: count())
        return gnp.sum(product * other)

    return GradManager().attach([w, other]), loss


@pytest.mark.parametrize("make", [_count_in_callback, _count_in_hook])
def test_code_of_the_program_runs_once_where_a_gradient_or_a_dtype_is_another(make: Any, native: bool) -> None:
    """A replay is given up before it: the function as written then runs it."""
    w, layer = tensor(wave(3)), gradmgr.nn.Linear(3, 1, bias=False, rng=np.random.default_rng(0))
    other, calls = layer.weight, tensor(0)

    def count() -> None:
        calls[...] += 1

    gm, loss = make(count, w, other)

    @partial(compile, native=native)
    def step(x: Tensor) -> Tensor:
        with gm:
            y = loss(x)
            gm.backward(y)
        return y

    counted = []
    for k in range(12):
        if k == 4:
            w.grad = None
        elif k == 6:
            w.grad = tensor(wave(3))
        elif k == 9:
            other.grad = None
            layer.double()
        before = calls.item()
        step(tensor(wave(3, at=k)))
        counted.append(calls.item() - before)
    assert counted == [counted[0]] * 12
    assert "variant for" in step.explain()


Made = tuple[GradManager, Callable[[Any], Tensor]]


def _set_in_hook(count: Tensor, w: Tensor, other: Tensor) -> Made:
    gm = GradManager().attach([w, other])

    def hook(grad: Tensor) -> None:
        count[...] += 1
        if count.item() >= 6:
            gm.clear_grad()

    def loss(x: Any) -> Tensor:
        product = w * x
        product.register_hook(hook)
        return gnp.sum(product * other)

    return gm, loss


def _set_in_callback(count: Tensor, w: Tensor, other: Tensor) -> Made:
    class Callback:
        def __call__(self, t: Tensor, grad: Tensor) -> Tensor:
            return grad

        def finish(self, manager: GradManager) -> None:
            count[...] += 1
            if count.item() >= 6:
                setattr(w, "grad", None)  # noqa: B010  # one more way to write it

    return GradManager().attach([w, other], callbacks=Callback()), lambda x: gnp.sum(w * other * x)


def _replaced_in_hook(count: Tensor, w: Tensor, other: Tensor) -> Made:
    def act() -> None:
        count[...] += 1
        if count.item() >= 6:
            w.grad = tensor(wave(3, at=count.item()))

    def loss(x: Any) -> Tensor:
        product = w * x
        product.register_hook(lambda grad: act())
        return gnp.sum(product * other)

    return GradManager().attach([w, other]), loss


def _sets_gradients(make: Callable[[Tensor, Tensor, Tensor], Made]) -> Compared:
    """A step in which code that runs each time sets gradients from the fifth call on."""
    w, other, count = tensor(wave(3)), tensor(wave(3, at=2)), tensor(0)
    gm, loss = make(count, w, other)

    def step(x: Any) -> Tensor:
        with gm:
            y = loss(x)
            gm.backward(y)
        return y

    return Compared(step, [((wave(3, at=k),), {}) for k in range(CALLS)], lambda: (w, other, count))


@pytest.mark.parametrize("make", [_set_in_hook, _set_in_callback, _replaced_in_hook])
def test_gradients_that_code_of_each_call_sets_are_noticed_once(make: Any, native: bool) -> None:
    """The call in which they are runs again; all later ones run as written."""
    made = _sets_gradients(make)
    step, (_, _, count) = compile(made.step, native=native), made.state()
    counted = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for args, _ in made.calls:
            step(*args)
            counted.append(count.item())
    assert counted == [1, 2, 3, 4, 5, 7, 8]
    (text,) = [str(w.message) for w in warned]
    assert "test_compiled_steps.py:" in text
    assert "has run twice" in text


def test_a_function_with_a_recorded_step_runs_eagerly():
    """Its derivatives are those of the step, and not of values that it left."""
    w = tensor([0.3, -0.8, 1.1])

    def step(x):
        with GradManager().attach(w) as outer:
            own = w * 1.0
            inner, optimizer = GradManager().attach(own), optim.SGD([own], lr=0.5, differentiable=True)
            with inner:
                inner.backward((own**3 * x).sum())
            optimizer.step()
            outer.backward((own * own).sum())

    compiled = compile(step)
    found = []
    for f in (step, compiled):
        for factor in (1.0, 2.0, 3.0):
            w.grad = None
            if f is compiled and factor == 1.0:
                with pytest.warns(errors.CompileWarning, match="a recorded step of an optimiser"):
                    f(tensor(factor))
            else:
                f(tensor(factor))
            found.append(w.grad.tolist())
    assert found[:3] == found[3:]
