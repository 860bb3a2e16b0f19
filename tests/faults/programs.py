"""The programs that are interrupted: every public feature that has state."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers import wave

import gradmgr
import gradmgr.numpy as gnp
from faults.harness import Program
from gradmgr import (
    Function,
    GradManager,
    checkpoint,
    checkpoint_sequential,
    custom_op,
    enable_grad,
    forward_ad,
    functional,
    graph,
    inference_mode,
    nn,
    no_grad,
    optim,
    set_grad_enabled,
    sparse,
    tensor,
    vmap,
)
from gradmgr._engine.history import modes
from gradmgr.optim import lr_scheduler
from gradmgr.profiler import profile, record_function

Mark = Callable[[], None]

# By name; a test makes a new one for each run.
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(name: str, *args: Any, **kwargs: Any) -> Callable[[type[Program]], type[Program]]:
    """Enter a class in the table, with arguments of its constructor; it may stand there several times."""

    def enter(cls: type[Program]) -> type[Program]:
        assert name not in PROGRAMS
        PROGRAMS[name] = lambda: cls(*args, **kwargs)
        return cls

    return enter


def frozen(value: Any) -> Any:
    """Return what can be compared: the dtype, shape and bytes of arrays, the same of what containers hold."""
    if isinstance(value, gradmgr.Tensor):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, frozen(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [frozen(part) for part in value]
    return value


class Training(Program):
    """Two parameters, a manager that has them attached, and a loss."""

    def __init__(self) -> None:
        self.w, self.b = tensor(wave(3, 2)), tensor(wave(2, at=1.0))
        self.params = [self.w, self.b]
        self.x = tensor(wave(4, 3, at=2.0))
        self.gm = GradManager().attach(self.params)
        self.managers = [self.gm]

    def loss(self) -> Any:
        return gnp.mean(gnp.tanh(self.x @ self.w + self.b) ** 2)

    def state(self) -> dict[str, Any]:
        return {"gradients": frozen([p.grad for p in self.params]), "parameters": frozen(self.params)}


# ---------------------------------------------------------------- managers


@program("step")
class Step(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(self.loss())
        mark()
        self.w -= 0.1 * self.w.grad
        mark()
        self.b -= 0.1 * self.b.grad
        mark()
        self.gm.clear_grad()


@program("a compiled step, captured")
class Captured(Training):
    def run(self, mark: Mark) -> None:
        def step() -> None:
            with self.gm:
                self.gm.backward(self.loss())
            mark()
            self.w -= 0.1 * self.w.grad
            mark()
            self.gm.clear_grad()

        with warnings.catch_warnings():  # it cannot be replayed, as what it marks changes
            warnings.simplefilter("ignore", gradmgr.errors.CompileWarning)
            gradmgr.compile(step)()


@program("a compiled step, replayed")
class Replayed(Training):
    """Nothing changes until all of it does."""

    def __init__(self) -> None:
        super().__init__()
        self.prepare()
        self.compiled = gradmgr.compile(self.step)
        for _ in range(4):  # of which the first, second and fourth run as written
            self.compiled()

    def prepare(self) -> None:
        """Make what the step uses besides the model."""

    def step(self) -> None:
        with self.gm:
            self.gm.backward(self.loss())
        self.w -= 0.1 * self.w.grad
        self.b -= 0.1 * self.b.grad
        self.gm.clear_grad()

    def run(self, mark: Mark) -> None:
        self.compiled()


@program("a compiled step with an optimiser, replayed")
class ReplayedWithOptimiser(Replayed):
    """Gradients come and go in it: nothing changes until the optimiser's step, which is all that does."""

    def prepare(self) -> None:
        self.optimizer = optim.Adam(self.params, lr=0.1)

    def step(self) -> None:
        with self.gm:
            self.gm.backward(self.loss())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model = [self.params, self.optimizer.state_dict(), self.optimizer._step_count]
        return {"all": frozen([*model, [p.grad for p in self.params]])}


@program("release by hand")
class ByHand(Training):
    def run(self, mark: Mark) -> None:
        self.gm.record()
        try:
            self.gm.backward(self.loss(), retain=True)
        finally:
            self.gm.release()


@program("accumulated gradients")
class Accumulated(Training):
    def run(self, mark: Mark) -> None:
        for _ in range(2):
            with self.gm:
                self.gm.backward(self.loss())
            mark()


@program("nested managers")
class Nested(Training):
    def __init__(self) -> None:
        super().__init__()
        self.inner = GradManager().attach(self.w)
        self.managers = [self.gm, self.inner]

    def run(self, mark: Mark) -> None:
        self.gm.clear_grad()
        mark()
        with self.gm:
            with self.inner:
                self.inner.backward(self.loss())
            mark()
            self.gm.backward(gnp.sum(self.w.grad**2))


@program("a group of managers")
class Group(Training):
    def __init__(self) -> None:
        super().__init__()
        self.other = GradManager().attach(self.b)
        self.managers = [self.gm, self.other]

    def run(self, mark: Mark) -> None:
        with self.gm | self.other:
            loss = self.loss()
            self.gm.backward(loss)
            mark()
            self.other.backward(loss)


@program("derivatives of a derivative")
class CreateGraph(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            slopes = gradmgr.grad(self.loss(), [self.w, self.b], create_graph=True)
            self.gm.backward(gnp.sum(slopes[0] ** 2) + gnp.sum(slopes[1] ** 2))


@program("grad")
class Grad(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            gradmgr.grad(self.loss(), self.w, retain_graph=True)
            gradmgr.grad(self.loss(), [self.b], is_grads_batched=True, grad_outputs=tensor(wave(3)))


@program("backward to inputs")
class ToInputs(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            h = self.x @ self.w
            h.retain_grad()
            gradmgr.backward(gnp.sum(h * h), inputs=[self.w, h])


@program("attach and detach while recording")
class Attaching(Training):
    def run(self, mark: Mark) -> None:
        self.gm.attach(self.b)  # it is, unless an earlier run was interrupted while it was not
        mark()
        with self.gm:
            h = self.x @ self.w
            self.gm.attach(h)
            self.gm.detach(self.b)
            mark()
            y = gnp.sum(h * h + self.b)
            self.gm.attach(self.b)
            mark()
            self.gm.backward(y)

    def state(self) -> dict[str, Any]:
        attached = self.gm.attached_tensors()
        return {**super().state(), "attached": [any(p is t for t in attached) for p in self.params]}


@program("writes in place")
class Writes(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            h = gnp.zeros((4, 2))
            h[0] = self.b
            h += self.x @ self.w
            gnp.exp(h, out=h)
            h[1:, 0] *= 2
            h.clip(-1, 1)
            self.gm.backward(gnp.sum(h))


@program("with_stack")
class Traced(Training):
    def __init__(self) -> None:
        super().__init__()
        self.gm = GradManager(with_stack=True).attach({"w": self.w, "b": self.b})
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        with self.gm:
            loss = self.loss()
            self.gm.summary()
            self.gm.backward(loss)
        self.gm.explain(self.w)


@program("one backward at a time")
class OneAtATime(Training):
    def run(self, mark: Mark) -> None:
        with gradmgr.set_multithreading_enabled(False), self.gm:
            self.gm.backward(self.loss())


@program("a manager that dies")
class Dying(Training):
    def run(self, mark: Mark) -> None:
        gm = GradManager().attach(self.w)
        gm.record()
        loss = self.loss()
        del gm
        with self.gm:
            self.gm.backward(self.loss() + loss)


# ---------------------------------------------------------------- hooks and callbacks


@program("hooks")
class Hooks(Training):
    def run(self, mark: Mark) -> None:
        with (
            self.w.register_hook(lambda g: g * 2),
            self.b.register_post_accumulate_grad_hook(lambda t: None),
            graph.register_multi_grad_hook(self.params, lambda gs: None),
            self.gm,
        ):
            h = self.x @ self.w + self.b
            h.register_hook(lambda g: g + 1)
            h.grad_fn.register_hook(lambda inputs, outputs: None)
            h.grad_fn.register_prehook(lambda outputs: None)
            self.gm.backward(gnp.sum(gnp.tanh(h)))


class _Future:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


class _Callback:
    """Has all the methods that a callback object may have."""

    def __call__(self, t: Any, grad: Any) -> Any:
        return _Future(grad * 2)

    def begin(self, manager: Any) -> None:
        assert manager.current_run().manager is manager

    def finish(self, manager: Any) -> None:
        pass

    def abort(self, manager: Any) -> None:
        pass


class _Collecting(_Callback):
    """Takes all gradients at once."""

    def begin(self, manager: Any) -> None:
        manager.current_run().collect(self, self.double)

    def double(self, gradients: dict[Any, Any]) -> None:
        for t in gradients:
            gradients[t] = gradients[t] * 2


class _Delivering(_Callback):
    """Gives zeros to what was not reached."""

    def __call__(self, t: Any, grad: Any) -> Any:
        return grad

    def finish(self, manager: Any) -> None:
        run = manager.current_run()
        for t in run.attached(self):
            run.replace(t)
            if t not in run.leaves:
                run.deliver(t, gnp.zeros_like(t), callback=self)


class _WithCallbacks(Training):
    def __init__(self, callback: Any) -> None:
        super().__init__()
        self.gm = GradManager().attach(self.w, callback()).attach(self.b, lambda t, g: g + 1)
        if callback is not _Callback:
            self.gm = GradManager().attach([self.w, self.b], callback())
        self.gm.register_after_backward_callback(lambda: None)
        self.managers = [self.gm]


@program("callbacks and futures", _Callback)
@program("callbacks that collect", _Collecting)
class Callbacks(_WithCallbacks):
    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(self.loss())


@program("callbacks that deliver", _Delivering)
class Delivering(_WithCallbacks):
    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(gnp.sum(self.w * self.w))


# ---------------------------------------------------------------- memory


def layer(x: Any, w: Any, b: Any) -> Any:
    return gnp.tanh(x @ w + b) * np.random.standard_normal(2)


@program("checkpoint")
class Checkpoint(Training):
    def __init__(self) -> None:
        super().__init__()
        np.random.seed(0)

    def run(self, mark: Mark) -> None:
        before = np.random.get_state()
        try:
            with self.gm:
                self.gm.backward(gnp.sum(checkpoint(layer, self.x, self.w, self.b)))
        finally:
            np.random.set_state(before)


@program("checkpoint and random numbers")
class RandomNumbers(Training):
    """Draws in the second run leave the generator as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def run(self, mark: Mark) -> None:
        with self.gm:
            y = checkpoint(lambda x: gnp.sum(x * self.rng.normal(size=2)), self.x @ self.w)
            mark()
            self.gm.backward(y)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "generator": frozen(self.rng.bit_generator.state)}


@program("nested checkpoints")
class NestedCheckpoints(Training):
    def run(self, mark: Mark) -> None:
        def inner(h: Any) -> Any:
            h += self.b
            return gnp.tanh(h)

        def outer(x: Any) -> Any:
            with no_grad():
                gnp.exp(x)
            return checkpoint(inner, x @ self.w, debug=True) * 2

        with self.gm:
            self.gm.backward(gnp.sum(checkpoint(outer, self.x)))


@program("checkpoint_sequential")
class Sequential(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(gnp.sum(checkpoint_sequential([gnp.sin, gnp.cos, gnp.tanh, gnp.exp], 2, self.w)))


@program("checkpoint and derivatives of a derivative")
class CheckpointTwice(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            y = gnp.sum(checkpoint(lambda x: gnp.tanh(x) ** 2, self.w))
            (slope,) = gradmgr.grad(y, self.w, create_graph=True)
            self.gm.backward(gnp.sum(slope**2))


@program("spill to disk")
class Spilled(Training):
    def __init__(self) -> None:
        super().__init__()
        self.w = tensor(wave(32, 32))
        self.params = [self.w]
        self.gm = GradManager(budget="10 kB", spill="disk").attach(self.w)
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        with self.gm:
            y = self.w
            for _ in range(3):
                y = gnp.exp(gnp.sin(y))
            self.gm.backward(gnp.sum(y))


@program("saved_tensors_hooks")
class SavedTensorsHooks(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            with graph.saved_tensors_hooks(lambda t: t.numpy().copy(), tensor):
                loss = self.loss()
            with graph.save_on_cpu(), graph.allow_mutation_on_saved_tensors():
                loss = loss + gnp.sum(self.w * self.w)
            with graph.disable_saved_tensors_hooks("not here"):
                loss = loss * 2
            self.gm.backward(loss)


@program("increment_version")
class IncrementVersion(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            loss = self.loss()
            graph.increment_version(np.ones(3))
            self.gm.backward(loss)


# ---------------------------------------------------------------- modes


@program("no_grad and enable_grad")
class Modes(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            with no_grad():
                c = self.w * self.w
                with enable_grad():
                    y = self.w * 3
            self.gm.backward(gnp.sum(c * y))


@program("inference_mode")
class Inference(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            with inference_mode():
                c = self.w * self.w
                with inference_mode(False):
                    y = self.w * 3
            self.gm.backward(gnp.sum(c * y))


@program("set_grad_enabled")
class SetGradEnabled(Training):
    takes_effect_when_called = True  # as torch's does

    def leave(self) -> None:
        super().leave()
        modes._modes.set(())

    def run(self, mark: Mark) -> None:
        with self.gm:
            with set_grad_enabled(False):
                c = self.w * self.w
                with set_grad_enabled(True):
                    y = self.w * 3
            self.gm.backward(gnp.sum(c * y))


@program("no_grad around a generator")
class Decorated(Training):
    def run(self, mark: Mark) -> None:
        @no_grad
        def squares() -> Any:
            for p in self.params:
                yield p * p

        @enable_grad()
        def total(values: Any) -> Any:
            return sum(gnp.sum(value) for value in values)

        with self.gm:
            self.gm.backward(total(squares()) + gnp.sum(self.w))


# ---------------------------------------------------------------- transforms


@program("vmap")
class Vmap(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            y = vmap(lambda row: gnp.tanh(row @ self.w + self.b))(self.x)
            self.gm.backward(gnp.sum(y))


@program("vmap in chunks, of a gradient")
class PerExample(Training):
    def run(self, mark: Mark) -> None:
        one = functional.grad(lambda w, row: gnp.sum((row @ w) ** 2))
        with self.gm:
            self.gm.backward(gnp.sum(vmap(one, in_dims=(None, 0), chunk_size=2)(self.w, self.x[:3])))


class _Functional(Training):
    """A function of `gradmgr.functional`, inside a recording."""

    def __init__(self, function: Any, *args: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.args, self.options = function, args, options
        self.found: Any = None

    def run(self, mark: Mark) -> None:
        with self.gm:
            self.found = self.function(lambda b: gnp.sum(b**3), self.b, *self.args, **self.options)
            self.gm.backward(gnp.sum(self.b))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "result": None}


V = wave(2, at=3.0)
program("jacobian", functional.jacobian)(_Functional)
program("jacobian, forward", functional.jacobian, strategy="forward-mode", vectorize=True)(_Functional)
program("jacobian, recorded", functional.jacobian, create_graph=True, strict=True)(_Functional)
program("hessian", functional.hessian)(_Functional)
program("hessian, vectorized", functional.hessian, vectorize=True, outer_jacobian_strategy="forward-mode")(_Functional)
program("vjp", functional.vjp)(_Functional)
program("jvp", functional.jvp, V)(_Functional)
program("hvp", functional.hvp, V)(_Functional)
program("vhp", functional.vhp, V, create_graph=True)(_Functional)
program("gradcheck", lambda f, b: gradmgr.gradcheck(f, tensor(b.numpy()[:1])))(_Functional)


@program("value_and_grad")
class ValueAndGrad(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            value, slopes = functional.value_and_grad(lambda p: gnp.sum(p["w"] ** 2) + gnp.sum(p["b"]))(
                {"w": self.w, "b": self.b}
            )
            self.gm.backward(value + gnp.sum(slopes["w"]))


class Squared(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * g * x


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x *= 2
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


@program("Function")
class OwnFunction(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            h = self.x @ self.w
            Doubled.apply(h)
            (slope,) = gradmgr.grad(gnp.sum(Squared.apply(h)), self.w, create_graph=True)
            self.gm.backward(gnp.sum(slope * self.w))


@custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
def growth(x: Any, rate: float = 1.0) -> Any:
    return np.exp(rate * x)


@program("custom_op")
class OwnOp(Training):
    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(gnp.sum(growth(self.w, rate=2.0)))


@program("dual levels")
class Duals(Training):
    def run(self, mark: Mark) -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(self.b, V)
            with forward_ad.dual_level():
                forward_ad.unpack_dual(forward_ad.make_dual(dual, V) ** 3)
            gm = GradManager().attach(dual)
            with gm:
                gm.backward(gnp.sum(dual**3))
            forward_ad.unpack_dual(dual.grad)
        with self.gm:
            self.gm.backward(self.loss())


@program("a dual level by hand")
class LevelByHand(Training):
    takes_effect_when_called = True

    def run(self, mark: Mark) -> None:
        level = None
        try:
            level = forward_ad.enter_dual_level()
            with self.gm:
                dual = forward_ad.make_dual(self.b, V, level=level)
                forward_ad.unpack_dual(gnp.sum(dual * dual))
                self.gm.backward(gnp.sum(dual * self.b))
        finally:
            with contextlib.suppress(RuntimeError):
                forward_ad.exit_dual_level(level=level)

    def leave(self) -> None:
        super().leave()
        with contextlib.suppress(RuntimeError):
            while True:
                forward_ad.exit_dual_level()


# ---------------------------------------------------------------- optimisers


class _Optimised(Program):
    """Steps of an optimiser on given gradients."""

    def __init__(self, kind: Any, large: bool = False, dtype: str = "float64", **options: Any) -> None:
        shapes = [(40_000,), (3,)] if large else [(3, 2), (2,), ()]
        self.params = [tensor(wave(*shape, at=k), dtype=dtype) for k, shape in enumerate(shapes)]
        groups = [{"params": self.params[:1], "lr": 0.05}, {"params": self.params[1:]}]
        self.optimizer = kind(groups, lr=0.1, **options)
        for p in self.params:
            p.grad = tensor(p.numpy() * 0.5 + 0.1)
        self.optimizer.step()  # an optimiser's first step makes its state
        self.after = self.optimizer._step_count

    def run(self, mark: Mark) -> None:
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        model = [self.params, self.optimizer.state_dict(), self.optimizer._step_count]
        return {"parameters and optimiser state": frozen(model), "gradients": frozen([p.grad for p in self.params])}


class _RecordedSteps(_Optimised):
    """A recorded step, after which the program goes on as it would after one that is not."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__(kind, differentiable=True, **options)
        self.gm = GradManager().attach(self.params)

    def run(self, mark: Mark) -> None:
        with self.gm:
            self.optimizer.step()


program("SGD", optim.SGD)(_Optimised)
program("a recorded step of Adam", optim.Adam, amsgrad=True)(_RecordedSteps)
program("a recorded step of SGD in float16", optim.SGD, momentum=0.9, dtype="float16")(_RecordedSteps)
program("SGD with momentum", optim.SGD, momentum=0.9, weight_decay=0.1, nesterov=True)(_Optimised)
program("Adam", optim.Adam, amsgrad=True)(_Optimised)
program("Adam in float16", optim.Adam, dtype="float16")(_Optimised)
program("Adam of large parameters", optim.Adam, large=True)(_Optimised)
program("AdamW", optim.AdamW, maximize=True)(_Optimised)
program("RMSprop", optim.RMSprop, momentum=0.5, centered=True)(_Optimised)
program("Adagrad", optim.Adagrad)(_Optimised)
program("Lion", optim.Lion, weight_decay=0.1)(_Optimised)
program("NAdam", optim.NAdam, weight_decay=0.1)(_Optimised)


@program("a step of a divided optimiser")
class DividedStep(_Optimised):
    """On one rank. SGD without momentum, as the inner optimiser's state may be a step ahead of the parameters."""

    def __init__(self) -> None:
        if not gradmgr.distributed.is_initialized():
            gradmgr.distributed.init()
        super().__init__(functools.partial(gradmgr.distributed.ZeroRedundancyOptimizer, optimizer_class=optim.SGD))

    def state(self) -> dict[str, Any]:
        return {"parameters": frozen([self.params, self.optimizer._step_count])}


@program("a backward, clipping and a step by rows", optim.SparseAdam)
class StepByRows(_Optimised):
    """The gradient of rows is added to one that is there, clipped, and updates its rows."""

    def __init__(self, kind: Any) -> None:
        self.params = [tensor(wave(5, 2))]
        self.optimizer = kind(self.params, lr=0.1)
        self.params[0].grad = sparse.RowSparse([1, 3], wave(2, 2), (5, 2))
        self.optimizer.step()
        self.gm = GradManager().attach(self.params)
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        with self.gm:
            read = nn.functional.embedding(np.array([3, 0, 3]), self.params[0], sparse=True)
            self.gm.backward(gnp.sum(read * read))
        mark()
        optim.clip_grad_norm_(self.params, 0.5)
        mark()
        self.optimizer.step()


@program("first step of an optimiser", optim.AdamW)
class FirstStep(_Optimised):
    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.optimizer = kind(self.params, lr=0.1)


@program("a step with values held elsewhere", optim.RMSprop)
class HeldElsewhere(_Optimised):
    """The step must be computed in new memory; one parameter has no gradient."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__(kind, **options)
        self.held = [p.detach() for p in self.params]
        self.params[1].grad = None


@program("a step inside a recording", optim.Adam)
class StepInside(_Optimised):
    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.gm = GradManager().attach(self.params)
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        with self.gm:
            y = gnp.sum(self.params[0] ** 2)
            self.optimizer.step()
            mark()
            self.gm.backward(y + gnp.sum(self.params[1].detach()))  # the new value is a constant


@program("zero_grad", optim.SGD)
class ZeroGrad(_Optimised):
    def run(self, mark: Mark) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        mark()
        self.optimizer.zero_grad()


@program("add_param_group", optim.SGD, momentum=0.9)
class AddGroup(_Optimised):
    def run(self, mark: Mark) -> None:
        if len(self.optimizer.param_groups) == 2:
            extra = tensor(wave(2))
            extra.grad = tensor(wave(2))
            self.optimizer.add_param_group({"params": [extra]})
        mark()
        self.optimizer.step()


@program("load_state_dict of an optimiser", optim.Adam)
class LoadOptimizer(_Optimised):
    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.saved = self.optimizer.state_dict()
        self.optimizer.param_groups[0]["lr"] = 0.3
        self.optimizer.step()

    def run(self, mark: Mark) -> None:
        self.optimizer.load_state_dict(self.saved)


class _Clipped(Program):
    def __init__(self, operate: Callable[[Any], Any]) -> None:
        self.operate = operate
        self.params = [tensor(wave(*shape)) for shape in ((3, 2), (2,), (40_000,))]
        for k, p in enumerate(self.params):
            p.grad = tensor(wave(*p.shape, at=k))
        self.gm = GradManager().attach(self.params)
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        self.operate(self.params)
        mark()
        with self.gm:
            self.operate([p * 1 for p in self.params] and self.params)
        mark()

    def state(self) -> dict[str, Any]:
        return {"gradients": frozen([p.grad for p in self.params])}


program("clip_grad_norm_", lambda params: optim.clip_grad_norm_(params, 0.5))(_Clipped)
program("clip_grad_value_", lambda params: optim.clip_grad_value_(params, 0.3))(_Clipped)


@program("GradScaler")
@program("GradScaler, an overflow", overflow=True)
class Scaler(Training):
    def __init__(self, overflow: bool = False) -> None:
        super().__init__()
        self.overflow = overflow
        self.optimizer = optim.AdamW(self.params, lr=0.1)
        self.scaler = optim.GradScaler(init_scale=4.0, growth_interval=1)

    def run(self, mark: Mark) -> None:
        self.optimizer.zero_grad()
        mark()
        with self.gm:
            self.gm.backward(self.scaler.scale(self.loss()))
        mark()
        if self.overflow:
            self.b.grad = tensor([np.inf, 1.0])
        mark()
        if not any(each.is_unscaled for each in self.scaler._rounds.values()):
            self.scaler.unscale_(self.optimizer)
        mark()
        optim.clip_grad_norm_(self.params, 0.1)
        mark()
        if not any(each.stepped for each in self.scaler._rounds.values()):
            self.scaler.step(self.optimizer)
        mark()
        self.scaler.update()

    def state(self) -> dict[str, Any]:
        rounds = [
            (each.is_unscaled, each.has_checked, each.found_inf, each.stepped)
            for each in self.scaler._rounds.values()
            if each.is_unscaled or each.stepped  # an empty round is as none
        ]
        found = super().state()
        found["parameters"] = [found["parameters"], frozen(self.optimizer.state_dict()), self.optimizer._step_count]
        return {**found, "scaler": [frozen(self.scaler.state_dict()), rounds]}


# ---------------------------------------------------------------- schedules


class _Scheduled(Program):
    def __init__(self, make: Callable[[Any], Any], *args: Any) -> None:
        p = tensor(wave(2))
        groups = [{"params": [p], "lr": 0.5}, {"params": [tensor(wave(3))]}]
        self.optimizer = optim.SGD(groups, lr=1.0, momentum=0.5)
        self.schedule = make(self.optimizer)
        self.args = args
        self.optimizer.step()

    def run(self, mark: Mark) -> None:
        for _ in range(3):
            self.schedule.step(*self.args)
            mark()

    def state(self) -> dict[str, Any]:
        groups = [{key: value for key, value in g.items() if key != "params"} for g in self.optimizer.param_groups]
        return {"schedule": frozen([self.schedule.state_dict(), self.schedule.get_last_lr(), groups])}


def _warm_up(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, 5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


def _chained(optimizer: Any) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    return lr_scheduler.ChainedScheduler(parts)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=20),
    "SequentialLR": _warm_up,
    "ChainedScheduler": _chained,
}
for _name, _make in SCHEDULES.items():
    program(_name, _make)(_Scheduled)
program("ReduceLROnPlateau", lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), 1.0)(_Scheduled)


@program("load_state_dict of a schedule", _warm_up)
class LoadSchedule(_Scheduled):
    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__(make)
        self.saved = self.schedule.state_dict()
        self.schedule.step()
        self.schedule.step()

    def run(self, mark: Mark) -> None:
        self.schedule.load_state_dict(self.saved)


# ---------------------------------------------------------------- files


class _Filed(Program):
    """A model, its optimiser, a schedule and a generator, and a file of them."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 3, rng=np.random.default_rng(0)), nn.Tanh())
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = lr_scheduler.StepLR(self.optimizer, 1)
        self.rng = np.random.default_rng(1)
        self.extra = tensor(wave(2))
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / "run"
        self.change()
        gradmgr.save(self.objects(), self.path)
        self.change()

    def objects(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "rng": self.rng,
            "extra": self.extra,
        }

    def change(self) -> None:
        for p in self.model.parameters():
            p.grad = tensor(np.ones(p.shape, p.dtype))
        self.optimizer.step()
        self.schedule.step()
        self.rng.random()
        self.extra += 1

    def state(self) -> dict[str, Any]:
        objects = [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict()]
        return {
            "objects": frozen([*objects, self.rng.bit_generator.state, self.extra]),
            "file": self.path.read_bytes(),
            "folder": sorted(path.name for path in self.path.parent.iterdir()),
        }


@program("save")
class Save(_Filed):
    def run(self, mark: Mark) -> None:
        gradmgr.save({"extra": self.extra, "optimizer": self.optimizer, "list": [1.0, "a", None]}, self.path)


@program("load")
class Load(_Filed):
    def run(self, mark: Mark) -> None:
        gradmgr.load(self.path)


@program("load into objects")
class LoadInto(_Filed):
    def run(self, mark: Mark) -> None:
        gradmgr.load(self.path, into=self.objects())


@program("load_state_dict of a module")
class LoadModule(_Filed):
    def run(self, mark: Mark) -> None:
        state = {name: np.ones(t.shape, t.dtype) for name, t in self.model.state_dict().items()}
        self.model.load_state_dict(state)


# ---------------------------------------------------------------- tools


@program("profiler")
class Profiled(Training):
    def run(self, mark: Mark) -> None:
        with profile(record_shapes=True, with_flops=True, profile_memory=True) as prof, self.gm:
            with record_function("forward"):
                loss = self.loss()
            self.gm.backward(loss)
        prof.key_averages()


@program("anomaly detection")
class Anomalies(Training):
    def run(self, mark: Mark) -> None:
        with self.gm, gradmgr.detect_anomaly():
            with gradmgr.set_detect_anomaly(False):
                loss = self.loss()
            self.gm.backward(loss * 2)


@program("a module's training step")
class Module(Program):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.model = nn.Sequential(nn.Linear(3, 4, rng=rng), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1, rng=rng))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.gm = GradManager().attach(dict(self.model.named_parameters()))
        self.managers = [self.gm]
        self.x, self.y = tensor(wave(4, 3), dtype="float32"), tensor(wave(4, 1), dtype="float32")

    def run(self, mark: Mark) -> None:
        with self.gm:
            self.gm.backward(nn.functional.mse_loss(self.model(self.x), self.y))
        mark()
        self.optimizer.step()
        mark()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {
            "parameters and optimiser state": frozen([self.model.state_dict(), self.optimizer.state_dict()]),
            "gradients": frozen([p.grad for p in self.model.parameters()]),
        }


@program("all-reduce on one rank")
class AllReduce(Training):
    def __init__(self) -> None:
        super().__init__()
        if not gradmgr.distributed.is_initialized():
            gradmgr.distributed.init()
        callback = gradmgr.distributed.make_allreduce_cb("mean", bucket_bytes=40)
        callback._even_alone = True
        self.callback = callback
        self.gm = GradManager().attach(self.params, callback)
        self.managers = [self.gm]

    def run(self, mark: Mark) -> None:
        self.gm.clear_grad()
        mark()
        with self.callback.no_sync(), self.gm:
            self.gm.backward(self.loss())
        mark()
        with self.gm:
            self.gm.backward(self.loss())
        mark()
        gradmgr.distributed.all_reduce(self.b)


@program("batch norm in training")
class BatchNorm(Training):
    """The running statistics and the number of batches change together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, dtype="float64")

    def loss(self) -> Any:
        return gnp.sum(self.norm(self.x @ self.w + self.b) ** 3)

    def run(self, mark: Mark) -> None:
        with self.gm:
            loss = self.loss()
            mark()
            self.gm.backward(loss)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "statistics": frozen(self.norm.state_dict())}


@program("a module's modes and containers")
class Containers(Program):
    """Modules are inserted, removed, replaced, and set to other modes, all of them at once."""

    def __init__(self) -> None:
        self.rows = nn.Sequential(nn.Identity(), nn.Tanh(), nn.Sequential(nn.ReLU()))
        self.named = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
        self.made = nn.Sigmoid(), nn.Softplus()

    def run(self, mark: Mark) -> None:
        self.rows.train(not self.rows.training)
        mark()
        del self.rows[0]
        mark()
        self.rows.insert(0, self.made[0])
        mark()
        self.rows.extend(self.made)
        mark()
        del self.rows[-2:]
        mark()
        self.named.update({"c": self.made[0], "a": self.made[1]})
        mark()
        self.named.clear()
        mark()
        self.named.register_buffer("mean", wave(2), persistent=False)
        mark()
        self.named.mean = None
        mark()
        del self.named.mean

    def state(self) -> dict[str, Any]:
        modules = [*self.rows.named_modules(), *self.named.named_modules()]
        states = [(name, type(module).__name__, module.training) for name, module in modules]
        own = self.named.__dict__
        registered = [
            dict(own["_kinds"]),
            set(own["_transient"]),
            [name for name in ("a", "b", "c", "mean") if name in own],
        ]
        return {"modules": states, "registered": registered}


@program("functional_call of a module that counts")
class FunctionalCall(Program):
    """What `forward` assigns is assigned all at once."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(wave(3))
            self.register_buffer("total", wave(3))
            self.calls = 0
            self.mark: Mark = lambda: None

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.mark()
            self.total = self.total + x
            self.mark()
            return x * self.weight

    def __init__(self) -> None:
        self.model = self.Counting()

    def run(self, mark: Mark) -> None:
        self.model.mark = mark
        nn.functional_call(self.model, {"weight": tensor(wave(3, at=1.0))}, tensor(wave(3, at=2.0)))

    def state(self) -> dict[str, Any]:
        return {"assigned": [self.model.calls, frozen(self.model.state_dict())]}
