"""Loops over every public feature, one step at a time, for tests of what is left after many steps.

Each entry of STEPS is a function that prepares a loop and returns its step, a function without arguments. A step is
complete: what it makes is gone when it is over, except for what the loop holds by intention (parameters, optimiser
state), whose number of objects stays the same from step to step.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import (
    GradManager,
    Tensor,
    distributions,
    errors,
    forward_ad,
    functional,
    graph,
    nn,
    optim,
    sparse,
    special,
    tensor,
)
from gradmgr.function import Function, custom_op, once_differentiable
from gradmgr.optim import lr_scheduler
from gradmgr.profiler import emit_itt, profile, record_function

Step = Callable[[], Any]

STEPS: dict[str, Callable[[], Step]] = {}


def loop(prepare: Callable[[], Step]) -> Callable[[], Step]:
    """Enter a loop under the name of the function that prepares it."""
    STEPS[prepare.__name__] = prepare
    return prepare


def vector(n: int = 4) -> Tensor:
    return tensor(np.linspace(0.5, 1.5, n))


def loss_of(x: Tensor) -> Tensor:
    return gnp.sum(gnp.tanh(x) * x)


def with_folder(step: Callable[[Path], Any]) -> Step:
    """Return a step that is given a folder, which is removed with it."""
    folder = Path(tempfile.mkdtemp())
    made = partial(step, folder)
    weakref.finalize(made, shutil.rmtree, folder)
    return made


def cleared(*tensors: Tensor) -> None:
    for t in tensors:
        t.grad = None


def recorded(body: Callable[[GradManager, Tensor], Any], **options: Any) -> Step:
    """Return a step that calls body(manager, attached vector) inside a recording and clears the gradient."""
    x = vector()
    gm = GradManager(**options).attach({"x": x})

    def step() -> None:
        with gm:
            body(gm, x)
        cleared(x)

    return step


# ---------------------------------------------------------------- managers


@loop
def plain_step() -> Step:
    return recorded(lambda gm, x: gm.backward(loss_of(x)))


@loop
def update_in_place() -> Step:
    w, gm = vector(), GradManager()
    gm.attach(w)

    def step() -> None:
        nonlocal w
        with gm:
            gm.backward(loss_of(w))
        w -= 1e-3 * w.grad
        gm.clear_grad()

    return step


@loop
def released_without_backward() -> Step:
    return recorded(lambda gm, x: loss_of(x))


@loop
def retained() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = loss_of(x)
        gm.backward(y, retain=True)
        gm.backward(y)

    return recorded(body)


@loop
def backward_with_nothing() -> Step:
    return recorded(lambda gm, x: (loss_of(x), gm.backward(None)))


@loop
def several_results() -> Step:
    return recorded(
        lambda gm, x: gm.backward([x * 2, loss_of(x), *gnp.split(x, 2)], [np.ones(4), None, *np.ones((2, 2))])
    )


@loop
def dropped_results_in_one_recording() -> Step:
    x, gm = vector(), GradManager()
    gm.attach(x)

    def step() -> None:
        with gm:
            for _ in range(200):
                gnp.exp(x) * x
            gm.backward(loss_of(x))
        cleared(x)

    return step


@loop
def manager_of_each_step() -> Step:
    x = vector()

    def step() -> None:
        with GradManager().attach(x) as gm:
            gm.backward(loss_of(x))
        cleared(x)

    return step


@loop
def manager_dropped_while_recording() -> Step:
    x = vector()

    def step() -> None:
        gm = GradManager().attach(x)
        gm.record()
        loss_of(x)

    return step


@loop
def tensor_of_each_step() -> Step:
    gm = GradManager()

    def step() -> None:
        x = vector()
        gm.attach(x, callbacks=lambda t, g: g)
        with gm:
            gm.backward(loss_of(x))

    return step


@loop
def nested_managers() -> Step:
    x, v = vector(), np.ones(4)
    outer, inner = GradManager().attach(x), GradManager().attach(x)

    def step() -> None:
        with outer:
            with inner:
                inner.backward(loss_of(x))
            g, x.grad = x.grad, None
            outer.backward(g, v)
        cleared(x)

    return step


@loop
def three_nested_managers() -> Step:
    x = vector()
    first, second, third = (GradManager().attach(x) for _ in range(3))

    def step() -> None:
        with first:
            with second:
                with third:
                    third.backward(loss_of(x))
                g, x.grad = x.grad, None
                second.backward(gnp.sum(g * g))
            g, x.grad = x.grad, None
            first.backward(gnp.sum(g))
        cleared(x)

    return step


@loop
def group_of_managers() -> Step:
    x, y = vector(), vector()
    one, two = GradManager().attach(x), GradManager().attach(y)
    group = one | two

    def step() -> None:
        with group:
            z = loss_of(x * y)
            one.backward(z)
            two.backward(z)
        with gradmgr.GradManagerGroup([one, two]):
            one.backward(loss_of(x * y))
        cleared(x, y)

    return step


@loop
def attach_and_detach() -> Step:
    x, y, gm = vector(), vector(), GradManager()

    def step() -> None:
        gm.attach([x, y])
        with gm:
            z = loss_of(x * y)
            gm.detach(y)
            gm.backward(z)
        gm.detach(x)
        cleared(x, y)

    return step


@loop
def attach_again() -> Step:
    x, gm = vector(), GradManager()
    gm.attach(x)

    def step() -> None:
        gm.attach(x)
        with gm:
            y = loss_of(x)
            gm.attach(x)
            gm.backward(y)
        cleared(x)

    return step


@loop
def attach_of_an_intermediate() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        h = x * 2
        gm.attach(h)
        gm.backward(loss_of(h))

    return recorded(body)


@loop
def attach_and_detach_of_a_leaf_while_recording() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        gm.detach(x)
        gm.attach(x)
        gm.backward(loss_of(x))

    return recorded(body)


@loop
def texts_of_managers() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = loss_of(x)
        repr(gm), gm.attached_tensors(), gm.summary(), gm.explain(x), gm.explain(y)
        gm.backward(y)
        gm.summary(), gm.explain(x)

    return recorded(body)


@loop
def texts_with_stack() -> Step:
    x, gm = vector(), GradManager(with_stack=True)
    gm.attach({"x": x})

    def step() -> None:
        x * 2
        with gm:
            y = loss_of(x)
            x.detach(), y.item(), x.astype("int64")
            with gradmgr.no_grad():
                x * 3
            gm.summary(), gm.explain(x)
            gm.backward(y)
        gm.explain(x)
        cleared(x)

    return step


@loop
def group_with_stack() -> Step:
    x = vector()
    group = GradManager(with_stack=True).attach(x) | GradManager(with_stack=True).attach(x)

    def step() -> None:
        with group:
            loss_of(x)

    return step


# ---------------------------------------------------------------- callbacks


@loop
def callbacks() -> Step:
    x, gm = vector(), GradManager()
    gm.attach(x, callbacks=[lambda t, g: g * 2, lambda t, g: g + t])
    gm.register_after_backward_callback(lambda: None)

    def step() -> None:
        with gm:
            gm.backward(loss_of(x))
        cleared(x)

    return step


@loop
def callbacks_with_futures() -> Step:
    x, y, gm = vector(), vector(), GradManager()

    class Later:
        def __init__(self, g: Tensor) -> None:
            self.g = g

        def get(self) -> Tensor:
            return self.g * 2

    gm.attach([x, y], callbacks=lambda t, g: Later(g))

    def step() -> None:
        with gm:
            gm.backward(loss_of(x * y))
        cleared(x, y)

    return step


class Collecting:
    """A callback object that takes all gradients at once and gives one to a tensor that was not reached."""

    def begin(self, manager: GradManager) -> None:
        manager.current_run().collect(self, self.take)

    def take(self, gradients: dict[Tensor, Tensor]) -> None:
        for t in gradients:
            gradients[t] = gradients[t] * 2

    def __call__(self, t: Tensor, g: Tensor) -> Tensor:
        return g * 2

    def finish(self, manager: GradManager) -> None:
        run = manager.current_run()
        for t in run.attached(self):
            if t not in run.leaves:
                run.deliver(t, gnp.zeros_like(t), callback=self)

    def abort(self, manager: GradManager) -> None:
        manager.current_run()


@loop
def callback_objects() -> Step:
    x, unused, gm = vector(), vector(), GradManager()
    gm.attach([x, unused], callbacks=Collecting())

    def step() -> None:
        with gm:
            gm.backward(loss_of(x))
        cleared(x, unused)

    return step


@loop
def callbacks_that_record() -> Step:
    x, inner = vector(), GradManager()
    gm = GradManager()

    def callback(t: Tensor, g: Tensor) -> Tensor:
        y = g * 1
        with inner.attach(y):
            inner.backward(loss_of(y))
        inner.detach(y)
        assert gradmgr.get_backwarding_grad_manager() is gm
        return g

    gm.attach(x, callbacks=callback)

    def step() -> None:
        with gm:
            gm.backward(loss_of(x))
        cleared(x)

    return step


# ---------------------------------------------------------------- errors caught in each step


def failing(g: Any) -> Any:
    raise ZeroDivisionError("by intention")


def caught(function: Callable[[], Any], kind: type[BaseException] = ZeroDivisionError) -> None:
    try:
        function()
    except kind as error:
        str(error)
    else:
        raise AssertionError("nothing was raised")


@loop
def error_in_the_block() -> Step:
    x = vector()
    gm = GradManager().attach(x)

    def block() -> None:
        with gm:
            loss_of(x)
            failing(x)

    return lambda: caught(block)


@loop
def error_of_a_callback() -> Step:
    x, gm = vector(), GradManager()
    gm.attach(x, callbacks=[Collecting(), lambda t, g: failing(g)])

    def block() -> None:
        with gm:
            gm.backward(loss_of(x))

    return lambda: caught(block)


@loop
def error_of_a_future() -> Step:
    x, gm = vector(), GradManager()

    class Broken:
        """Keeps its error, as futures of the standard library do."""

        def __init__(self) -> None:
            self.error = ZeroDivisionError("by intention")

        def get(self) -> Any:
            try:
                raise self.error
            finally:
                del self

    gm.attach(x, callbacks=lambda t, g: Broken())

    def block() -> None:
        with gm:
            gm.backward(loss_of(x))

    return lambda: caught(block)


@loop
def error_of_a_hook() -> Step:
    x = vector()
    gm = GradManager().attach(x)
    x.register_hook(failing)

    def block() -> None:
        with gm:
            gm.backward(loss_of(x))

    return lambda: caught(block)


@loop
def error_of_a_vjp() -> Step:
    x = vector()
    gm = GradManager().attach(x)

    def block() -> None:
        with gm:
            y = x * 2
            y.register_hook(failing)
            gm.backward(loss_of(y))

    return lambda: caught(block)


@loop
def errors_of_arguments() -> Step:
    x, y = vector(), vector(3)
    gm = GradManager().attach(x)

    def step() -> None:
        with gm:
            caught(lambda: x + y, ValueError)
            caught(lambda: gnp.concatenate([x, "text"]), ValueError)
            caught(lambda: np.sin(x, out=np.ones(2)), (TypeError, ValueError, RuntimeError))
            caught(lambda: x.__setitem__(9, 1.0), IndexError)
            caught(lambda: np.asarray(x * 1), (TypeError, RuntimeError))
            caught(lambda: gm.backward(x), ValueError)
            caught(lambda: gm.backward(y), RuntimeError)
            caught(lambda: gm.backward(x, np.ones(3)), ValueError)
            caught(lambda: gm.record(), RuntimeError)
            caught(lambda: gm.attach("text"), TypeError)
            caught(lambda: gm.detach(y), ValueError)
            caught(lambda: setattr(x, "grad", 3), TypeError)
        caught(lambda: gm.backward(x), RuntimeError)
        caught(lambda: gm.current_run(), errors.RecordingError)

    return step


@loop
def errors_in_nested_managers() -> Step:
    x = vector()
    outer, inner = GradManager().attach(x), GradManager().attach(x)

    def block() -> None:
        with outer, inner:
            y = x * 2
            y.register_hook(failing)
            inner.backward(loss_of(y))

    return lambda: caught(block)


# ---------------------------------------------------------------- derivatives


@loop
def grad_of_tensors() -> Step:
    return recorded(lambda gm, x: gradmgr.grad(loss_of(x), x))


@loop
def grad_with_options() -> Step:
    unused = vector()

    def body(gm: GradManager, x: Tensor) -> None:
        gm.attach(unused)
        h = x * 2
        gradmgr.grad(loss_of(h), [x, h, unused], allow_unused=True, retain_graph=True)
        gradmgr.grad(h, [x, unused], np.ones(4), materialize_grads=True)
        gm.detach(unused)

    return recorded(body)


@loop
def grad_of_a_batch() -> Step:
    return recorded(lambda gm, x: gradmgr.grad(x * x, x, np.eye(4), is_grads_batched=True))


@loop
def create_graph() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        (g,) = gradmgr.grad(loss_of(x), [x], create_graph=True)
        (h,) = gradmgr.grad(gnp.sum(g * g), [x], create_graph=True)
        gm.backward(gnp.sum(h))

    return recorded(body)


@loop
def backward_function() -> Step:
    y = vector()

    def body(gm: GradManager, x: Tensor) -> None:
        gm.attach(y)
        gradmgr.backward(loss_of(x * y), inputs=[x], retain_graph=True)
        (x * y).sum().backward(create_graph=True)
        cleared(y)
        gm.detach(y)

    return recorded(body)


def products(**options: Any) -> Step:
    x, v = vector(), vector()

    def step() -> None:
        functional.vjp(lambda x: gnp.tanh(x) * x, x, v, **options)
        functional.jvp(lambda x: gnp.tanh(x) * x, x, v, **options)
        functional.vhp(loss_of, x, v, **options)
        functional.hvp(loss_of, x, v, **options)

    return step


STEPS["products_with_a_derivative"] = products
STEPS["products_with_a_derivative_strict"] = lambda: products(strict=True)


@loop
def products_with_a_derivative_recorded() -> Step:
    step = products(create_graph=True)
    return recorded(lambda gm, x: step())


@loop
def gradients_of_functions() -> Step:
    x, tree = vector(), {"a": np.ones(3), "b": [tensor(2.0), 3.0]}

    def of_tree(tree: Any) -> Any:
        return gnp.sum(tensor(1.0) * tree["a"]) * tree["b"][0] * tree["b"][1], "aux"

    def step() -> None:
        functional.grad(loss_of)(x)
        functional.value_and_grad(loss_of)(x)
        functional.grad(functional.grad(lambda x: x**3))(2.0)
        functional.value_and_grad(of_tree, has_aux=True)(tree)

    return step


def jacobians(**options: Any) -> Step:
    x, y = vector(3), vector(3)

    def step() -> None:
        functional.jacobian(lambda x: gnp.tanh(x) * x, x, **options)
        functional.jacobian(lambda x, y: (x * y * y, gnp.sum(x * x * y)), (x, y), **options)

    return step


STEPS["jacobian_by_rows"] = jacobians
STEPS["jacobian_vectorized"] = lambda: jacobians(vectorize=True)
STEPS["jacobian_by_columns"] = lambda: jacobians(strategy="forward-mode")
STEPS["jacobian_by_columns_vectorized"] = lambda: jacobians(strategy="forward-mode", vectorize=True)


@loop
def jacobian_strict_and_recorded() -> Step:
    step = jacobians(strict=True, create_graph=True)
    return recorded(lambda gm, x: step())


def hessians(**options: Any) -> Step:
    x = vector(3)
    return lambda: functional.hessian(loss_of, x, **options)


STEPS["hessian"] = hessians
STEPS["hessian_vectorized"] = lambda: hessians(vectorize=True, outer_jacobian_strategy="forward-mode")


@loop
def flattened() -> Step:
    tree = {"a": vector(), "b": [vector(2)]}

    def step() -> None:
        flat = functional.Flattened(lambda tree: loss_of(tree["a"]) * gnp.sum(tree["b"][0]), tree)
        flat.value_and_grad(flat.x0)
        flat.unflatten(flat.x0)

    return step


@loop
def vmap() -> Step:
    xs, w = tensor(np.ones((5, 4))), vector()
    mapped = gradmgr.vmap(lambda x, w: loss_of(x * w), (0, None))

    def step() -> None:
        mapped(xs, w)
        gradmgr.vmap(functional.grad(loss_of), chunk_size=2)(xs)
        gradmgr.vmap(gradmgr.vmap(gnp.sin))(xs)
        gradmgr.vmap(lambda x: x + np.random.uniform(), randomness="different")(xs)

    return step


@loop
def vmap_inside_a_recording() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        gm.backward(gradmgr.vmap(lambda a: gnp.exp(a) * a)(x).sum())

    return recorded(body)


@loop
def vmap_of_a_function_that_fails() -> Step:
    xs = tensor(np.ones((5, 4)))
    return lambda: caught(lambda: gradmgr.vmap(lambda x: failing(x * 2))(xs))


@loop
def forward_mode() -> Step:
    x, v = vector(), vector()

    @forward_ad.dual_level()
    def decorated() -> Any:
        return forward_ad.unpack_dual(loss_of(forward_ad.make_dual(x, v))).tangent

    def step() -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            with forward_ad.dual_level():
                forward_ad.unpack_dual(gnp.tanh(forward_ad.make_dual(dual, v)))
            forward_ad.unpack_dual(loss_of(dual))
        level = forward_ad.enter_dual_level()
        kept = forward_ad.make_dual(x, v) * 2
        forward_ad.exit_dual_level(level=level)
        decorated()
        assert isinstance(forward_ad.unpack_dual(kept), forward_ad.UnpackedDualTensor)

    return step


@loop
def forward_over_reverse() -> Step:
    x, v, gm = vector(), vector(), GradManager()

    def step() -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v)
            with gm.attach(dual):
                gm.backward(loss_of(dual))
            forward_ad.unpack_dual(dual.grad)

    return step


@loop
def reverse_over_forward() -> Step:
    v = vector()

    def body(gm: GradManager, x: Tensor) -> None:
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(loss_of(forward_ad.make_dual(x, v))).tangent
        gm.backward(tangent)

    return recorded(body)


@loop
def gradchecks() -> Step:
    x = tensor(0.5)
    wrong = custom_op(lambda x: np.sin(x), derivative={"x": lambda t: t * 2}, name="wrong")

    def step() -> None:
        gradmgr.gradcheck(gnp.tanh, x)
        gradmgr.gradgradcheck(gnp.tanh, x, fast_mode=True)
        caught(lambda: gradmgr.gradcheck(wrong, x), gradmgr.GradcheckError)

    return step


# ---------------------------------------------------------------- operations of the user's


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.more = [x * 1, "text"]
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return t * 3 * x**2


class Doubled(Function):
    """Writes in place, gives several results, and its derivative leaves gradmgr."""

    @staticmethod
    def forward(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        x *= scale
        return x, x + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.scale = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        return g.numpy() * ctx.scale, None


@loop
def function() -> Step:
    return recorded(lambda gm, x: gm.backward(Cube.apply(x).sum()))


@loop
def function_that_writes() -> Step:
    return recorded(lambda gm, x: gm.backward(Doubled.apply(x * 1, 2.0)[0].sum()))


@loop
def function_twice_differentiated() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        (g,) = gradmgr.grad(Cube.apply(x).sum(), [x], create_graph=True)
        gm.backward(g.sum())

    return recorded(body)


@loop
def function_in_other_modes() -> Step:
    x, xs = vector(), tensor(np.ones((3, 4)))

    def step() -> None:
        functional.jvp(Cube.apply, x, x)
        gradmgr.vmap(Cube.apply)(xs)
        Cube.apply(x)

    return step


@loop
def function_that_fails() -> Step:
    class Failing(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return failing(g)

    step = recorded(lambda gm, x: gm.backward(Failing.apply(x).sum()))
    return lambda: caught(step)


@loop
def custom_operation() -> Step:
    @custom_op(derivative={"x": lambda t, out, rate: t * out * rate})
    def growth(x: Any, rate: float = 1.0) -> Any:
        return np.exp(rate * x)

    def body(gm: GradManager, x: Tensor) -> None:
        (g,) = gradmgr.grad(growth(x, rate=2.0).sum(), [x], create_graph=True)
        gm.backward(g.sum())

    step = recorded(body)

    def all_modes() -> None:
        step()
        functional.jvp(growth, vector(), vector())

    return all_modes


@loop
def custom_operation_of_each_step() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        double = custom_op(lambda x: x * 2, vjp={"x": lambda g: g * 2}, jvp={"x": lambda t: t * 2}, name="double")
        gm.backward(double(x).sum())

    return recorded(body)


# ---------------------------------------------------------------- hooks


@loop
def tensor_hooks() -> Step:
    x = vector()
    gm = GradManager().attach(x)

    def step() -> None:
        with x.register_hook(lambda g: g * 2):
            handle = x.register_post_accumulate_grad_hook(lambda t: None)
            with gm:
                h = x * 2
                h.register_hook(lambda g: g * 2)
                h.retain_grad()
                assert h.retains_grad
                gm.backward(loss_of(h))
            handle.remove()
        cleared(x)

    return step


@loop
def hook_that_holds_its_tensor() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        h = x * 2
        handle = h.register_hook(lambda g: g * h)
        gm.backward(loss_of(h))
        handle.remove()

    return recorded(body)


@loop
def hooks_that_stay() -> Step:
    x = vector()
    gm = GradManager().attach(x)
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda t: None)

    def step() -> None:
        with gm:
            gm.backward(loss_of(x))
        cleared(x)

    return step


@loop
def node_hooks() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = loss_of(x)
        node = y.grad_fn
        assert isinstance(node, graph.Node)
        node.register_hook(lambda grad_inputs, grad_outputs: None)
        node.register_prehook(lambda grad_outputs: grad_outputs)
        node.metadata["key"] = node.next_functions
        gm.backward(y)

    return recorded(body)


@loop
def hooks_on_several_tensors() -> Step:
    y = vector()

    def body(gm: GradManager, x: Tensor) -> None:
        h = x * 2
        handles = [
            graph.register_multi_grad_hook([x, h, y], lambda gs: None, mode="all"),
            graph.register_multi_grad_hook([x, h], lambda g: None, mode="any"),
        ]
        gm.backward(loss_of(h * y))
        for handle in handles:
            handle.remove()
        cleared(y)

    other, step = GradManager().attach(y), recorded(body)
    return lambda: (step(), other)


@loop
def gradient_edges() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        h = x * 2
        edge = graph.get_gradient_edge(h)
        assert isinstance(edge, graph.GradientEdge)
        gradmgr.grad(loss_of(h), [edge, graph.get_gradient_edge(x)], retain_graph=True)
        for part in gnp.split(h, 2):
            part.grad_fn.next_functions
        gm.backward(loss_of(h))

    return recorded(body)


# ---------------------------------------------------------------- history and saved values


@loop
def saved_tensors_hooks() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with graph.saved_tensors_hooks(lambda t: t.numpy().tolist(), tensor):
            y = loss_of(x)
        with graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = y * loss_of(x)
        gm.backward(y)

    return recorded(body)


@loop
def saved_tensors_hooks_that_fail() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with graph.saved_tensors_hooks(lambda t: t, failing):
            y = loss_of(x)
        with graph.disable_saved_tensors_hooks("text"):
            caught(graph.save_on_cpu().__enter__, RuntimeError)
        gm.backward(y)

    step = recorded(body)
    return lambda: caught(step)


@loop
def save_on_cpu() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with graph.save_on_cpu(), graph.allow_mutation_on_saved_tensors():
            y = loss_of(x)
        gm.backward(y)

    return recorded(body)


@loop
def increment_version() -> Step:
    buffer = np.ones(4)

    def body(gm: GradManager, x: Tensor) -> None:
        y = (x * buffer).sum()
        graph.increment_version(buffer)
        caught(lambda: gm.backward(y), errors.StaleValueError)

    return recorded(body)


@loop
def anomaly() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with gradmgr.detect_anomaly():
            assert gradmgr.anomaly.is_anomaly_enabled()
            assert gradmgr.anomaly.is_anomaly_check_nan_enabled()
            gm.backward(loss_of(x))
        with gradmgr.set_detect_anomaly(True, check_nan=False):
            pass

    return recorded(body)


@loop
def anomaly_around_the_recording() -> Step:
    step = recorded(lambda gm, x: gm.backward(loss_of(x)))

    def around() -> None:
        with gradmgr.detect_anomaly():
            step()

    return around


@loop
def anomaly_found() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with np.errstate(all="ignore"), gradmgr.detect_anomaly():
            gm.backward((gnp.sqrt(x * 0) * x * 0).sum())

    step = recorded(body)
    return lambda: caught(step, errors.AnomalyError)


@loop
def promotions() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        with gradmgr.detect_promotion("raise"):
            gm.backward(loss_of(x))

    return recorded(body)


@loop
def promotions_found() -> Step:
    narrow, wide = tensor(np.ones(3, np.float32)), np.ones(3)

    def step() -> None:
        with gradmgr.detect_promotion("raise"):
            narrow * wide

    return lambda: caught(step, errors.PromotionError)


@loop
def random_values() -> Step:
    rng = np.random.default_rng(0)

    def body(gm: GradManager, x: Tensor) -> None:
        width = gnp.exp(x * 0)
        parts = distributions.Normal(x, width), distributions.Gamma(width, 2.0), distributions.StudentT(3.0, x, width)
        y = gnp.concatenate([part.rsample(rng).ravel() for part in parts])
        gm.backward(gnp.sum(y) + gnp.sum(distributions.kl_divergence(parts[0], distributions.Normal(0.0, 1.0))))

    return recorded(body)


@loop
def densities_of_random_values() -> Step:
    rng = np.random.default_rng(0)
    one = (distributions.Exponential, distributions.HalfNormal, distributions.HalfCauchy, distributions.Chi2)
    two = (
        *(distributions.Laplace, distributions.Cauchy, distributions.Gumbel, distributions.VonMises),
        *(distributions.Weibull, distributions.Pareto, distributions.InverseGamma),
    )

    def body(gm: GradManager, x: Tensor) -> None:
        width = distributions.transform_to(distributions.constraints.positive)(x)
        p = special.expit(x)
        parts = [kind(width) for kind in one] + [kind(width, width) for kind in two]
        parts += [distributions.Uniform(x, x + width), distributions.Binomial(3, p), distributions.Geometric(p)]
        parts += [distributions.NegativeBinomial(2.0, p), distributions.Normal(0.0, width).expand((2, *x.shape))]
        parts += [distributions.Multinomial(3, p), distributions.OneHotCategorical(p)]
        gm.backward(sum(gnp.sum(part.log_prob(part.sample(rng))) for part in parts))

    return recorded(body)


@loop
def pictures() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = loss_of(gnp.concatenate(gnp.split(x, 2)))
        graph.to_dot(y), graph.to_mermaid([y]), graph.to_dot(gm), graph.to_svg(y)
        gm.backward(y)

    return recorded(body)


@loop
def pictures_with_stack() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = loss_of(x)
        graph.to_dot(y), graph.to_mermaid(gm)
        gm.backward(y)

    return recorded(body, with_stack=True)


def compiled() -> Any:
    """A compiled training step with an optimiser, and its argument."""
    w = vector()
    gm, optimizer = GradManager().attach(w), optim.Adam([w], lr=1e-9)

    @gradmgr.compile
    def train(x: Tensor) -> Tensor:
        with gm:
            loss = loss_of(w * x)
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train


@loop
def replays() -> Step:
    train, x = compiled(), vector()
    return lambda: train(x)


@loop
def captures() -> Step:
    train, x = compiled(), vector()

    def step() -> None:
        for _ in range(3):
            train(x)
        train.explain()
        train.release()

    return step


@loop
def checkpoints() -> Step:
    w = vector()

    def layer(a: Tensor, factor: float = 1.0) -> Tensor:
        return gnp.tanh(a * w) * factor

    def body(gm: GradManager, x: Tensor) -> None:
        y = gradmgr.checkpoint(layer, x, factor=2.0)
        y = gradmgr.checkpoint_sequential([layer, layer, layer], 2, y)
        y = gradmgr.checkpoint(lambda y: gradmgr.checkpoint(layer, y), y)
        gm.backward(loss_of(y))

    return recorded(body)


@loop
def checkpoints_with_random_numbers() -> Step:
    rng = np.random.default_rng(0)

    def body(gm: GradManager, x: Tensor) -> None:
        y = gradmgr.checkpoint(lambda a: a * rng.uniform(size=4) * np.random.uniform(), x, debug=True)
        gm.backward(loss_of(y))

    return recorded(body)


@loop
def checkpoints_differentiated_twice() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = gradmgr.checkpoint(lambda a: gnp.tanh(a) * a, x)
        (g,) = gradmgr.grad(y.sum(), [x], create_graph=True)
        gm.backward(g.sum())

    return recorded(body)


@loop
def checkpoints_that_fail() -> Step:
    step = recorded(lambda gm, x: gradmgr.checkpoint(lambda a: failing(a * 2), x))
    return lambda: caught(step)


@loop
def spilled_to_disk() -> Step:
    x = tensor(np.ones(2000))
    gm = GradManager(budget=20_000, spill="disk").attach(x)

    def step() -> None:
        with gm:
            y = x
            for _ in range(4):
                y = gnp.tanh(y)
            gm.summary()
            gm.backward(y.sum())
        cleared(x)

    return step


@loop
def spilled_with_nested_managers() -> Step:
    x = tensor(np.ones(1000))
    outer, inner = (
        GradManager(budget="10KiB", spill="disk").attach(x),
        GradManager(budget=10_000, spill="disk").attach(x),
    )

    def step() -> None:
        with outer:
            with inner:
                y = x
                for _ in range(3):
                    y = gnp.tanh(y)
                inner.backward(y.sum())
            g, x.grad = x.grad, None
            outer.backward(g.sum())
        cleared(x)

    return step


# ---------------------------------------------------------------- modes


@loop
def modes() -> Step:
    @gradmgr.no_grad()
    def decorated(x: Tensor) -> Tensor:
        return x * 2

    @gradmgr.enable_grad()
    def generator(x: Tensor) -> Any:
        yield x * 2
        yield x * 3

    def body(gm: GradManager, x: Tensor) -> None:
        with gradmgr.no_grad():
            x * 2
            with gradmgr.enable_grad():
                y = x * 2
        with gradmgr.inference_mode():
            assert gradmgr.is_inference_mode_enabled()
            x * 3
        with gradmgr.set_grad_enabled(False):
            assert not gradmgr.is_grad_enabled()
        with gradmgr.set_multithreading_enabled(False):
            gm.backward(loss_of(y), retain=True)
        decorated(x)
        assert len(list(generator(x))) == 2
        next(generator(x))
        gm.backward(loss_of(y))

    return recorded(body)


@loop
def asyncio_tasks() -> Step:
    x = vector()
    runner = asyncio.new_event_loop()

    async def task() -> None:
        y = vector()
        gm = GradManager().attach(y)
        with gm:
            z = loss_of(x * y)
            await asyncio.sleep(0)
            gm.backward(z)

    async def main() -> None:
        await asyncio.gather(task(), task())

    def step() -> None:
        runner.run_until_complete(main())

    weakref.finalize(step, runner.close)
    return step


@loop
def threads() -> Step:
    step = recorded(lambda gm, x: gm.backward(loss_of(x)))

    def in_a_thread() -> None:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    return in_a_thread


# ---------------------------------------------------------------- writes in place


def written(write: Callable[[Tensor], Any]) -> tuple[Step, Step]:
    """Return steps that write to the same tensor again and again: outside of recordings, and inside."""
    x, w = vector(), vector()
    gm = GradManager().attach(w)

    def inside() -> None:
        with gm:
            y = w * 1
            write(y)
            gm.backward(y.sum()) if gm._tape.node_id_of(y) is not None else None
        cleared(w)

    return lambda: write(x), inside


def _operator(name: str) -> Callable[[Tensor], Any]:
    values = np.full(4, -1.0)  # by which numbers do not grow without end
    return lambda x: getattr(x, name)(values)


_half, _mask = np.full(4, 0.5), np.array([True, False, True, False])

WRITES: dict[str, Callable[[Tensor], Any]] = {
    **{name: _operator(f"__{name}__") for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imod", "ifloordiv")},
    "iadd of a number": lambda x: x.__iadd__(1.0),
    "imatmul": lambda x: (x * 1).reshape(2, 2).__imatmul__(np.eye(2)),
    "an element": lambda x: x.__setitem__(1, 2.0),
    "a slice": lambda x: x.__setitem__(slice(1, 3), _half[:2]),
    "everything": lambda x: x.__setitem__(Ellipsis, 1.0),
    "by a mask": lambda x: x.__setitem__(_mask, 3.0),
    "by indices": lambda x: x.__setitem__([0, 2, 2], [1.0, 2.0, 3.0]),
    "a tensor": lambda x: x.__setitem__(slice(2), x[2:]),
    "out=": lambda x: gnp.add(x, 1.0, out=x),
    "out= and where=": lambda x: gnp.add(x, 1.0, out=x, where=_mask),
    "NumPy's out=": lambda x: np.multiply(x, -1.0, out=(x,)),
    "copyto": lambda x: gnp.copyto(x, _half),
    "add.at": lambda x: np.add.at(x, [0, 0], 1.0),
    "put": lambda x: gnp.put(x, [1], 2.0),
    "fill": lambda x: x.fill(0.5),
    "fill_diagonal": lambda x: gnp.fill_diagonal((x * 1).reshape(2, 2), 1.0),
    "sort": lambda x: x.sort(),
    "methods": lambda x: x.add_(1.0).mul_(0.5).copy_(_half).zero_(),
    "a view": lambda x: (x * 1)[1:].__iadd__(1.0),
    "detach_": lambda x: x.detach_(),
}

for _name, _write in WRITES.items():
    STEPS[f"write: {_name}"] = lambda write=_write: written(write)[0]
    STEPS[f"write, recorded: {_name}"] = lambda write=_write: written(write)[1]


@loop
def array_filled_in_a_loop() -> Step:
    x, held = vector(), tensor(np.zeros(16))

    def step() -> None:
        made = gnp.zeros(16)
        for k in range(16):
            made[k] = x[k % 4] * k
            held[k] = k * 0.5

    return step


@loop
def array_filled_in_a_recording() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        made = gnp.zeros(16)
        for k in range(16):
            made[k] = x[k % 4] * k
            made[k - 1 : k] += 1.0
        gm.backward(made.sum())

    return recorded(body)


@loop
def array_filled_under_nested_managers() -> Step:
    x = vector()
    outer, inner = GradManager().attach(x), GradManager().attach(x)

    def step() -> None:
        with outer, inner:
            made = gnp.zeros(4)
            for k in range(4):
                made[k] = x[k] * x[k]
            inner.backward(made.sum())
            g, x.grad = x.grad, None
            outer.backward(g.sum())
        cleared(x)

    return step


@loop
def leaf_written_while_recording() -> Step:
    x = vector()
    gm = GradManager().attach(x)

    def step() -> None:
        nonlocal x
        with gm:
            y = loss_of(x)
            x *= 1.0
            x[0] = 0.5
            gm.backward(y + loss_of(x))
        cleared(x)

    return step


# ---------------------------------------------------------------- tensors


@loop
def conversions() -> Step:
    x = vector()

    def step() -> None:
        gradmgr.asarray(x.numpy()), gradmgr.from_dlpack(x.numpy().copy()), tensor(x.tolist()), gradmgr.Tensor([1.0])
        copy.copy(x), copy.deepcopy(x), repr(x), str(x), f"{x.sum():.3f}"
        pickle.loads(pickle.dumps(x))  # noqa: S301  # our own bytes
        x.clone(), x.detach(), x.to("cpu"), x.astype("float32"), x.item(0), float(x[0]), list(x)
        x.__array_namespace__(), x.requires_grad, x.is_leaf, np.asarray(x), x.__dlpack_device__()

    return step


@loop
def plain_numpy_functions() -> Step:
    def body(gm: GradManager, x: Tensor) -> None:
        y = np.concatenate([np.sin(x), np.ones(2)]) @ np.arange(6.0) + np.linalg.norm(x) + special.logsumexp(x)
        gm.backward(y + (np.ones(4) * x).sum() + gnp.einsum("i,i->", x, x))

    return recorded(body)


@loop
def random_numbers() -> Step:
    rng = np.random.default_rng(0)

    def body(gm: GradManager, x: Tensor) -> None:
        gm.backward(loss_of(x * rng.uniform(size=4) * np.random.standard_normal(4)))

    return recorded(body)


@loop
def settings() -> Step:
    def step() -> None:
        gradmgr.set_num_threads(gradmgr.get_num_threads())
        for name in ("gradmgr", "text"):
            caught(lambda name=name: getattr(gradmgr, name), AttributeError)

    return step


# ---------------------------------------------------------------- profiler


@loop
def profiler() -> Step:
    step = recorded(lambda gm, x: gm.backward(loss_of(x)))

    def profiled() -> None:
        with profile() as prof, record_function("region"):
            step()
        prof.key_averages().table()
        prof.table(), prof.total_average(), prof.function_events[1].cpu_parent, prof.self_cpu_time_total

    return profiled


@loop
def profiler_with_options() -> Step:
    step = recorded(lambda gm, x: gm.backward(loss_of(Cube.apply(x))))
    options = dict.fromkeys(["record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules"], True)

    def profiled(folder: Path) -> None:
        with profile(**options) as prof:
            record_function("left open").__enter__()
            step()
        prof.export_chrome_trace(folder / "trace.json")
        prof.export_stacks(folder / "stacks.txt")
        prof.key_averages(group_by_input_shape=True, group_by_stack_n=2).table(top_level_events_only=True)

    return with_folder(profiled)


@loop
def profiler_of_what_fails() -> Step:
    step = recorded(lambda gm, x: (x * 2).register_hook(failing).remove() or failing(x))

    def profiled() -> None:
        with profile():
            step()

    return lambda: caught(profiled)


@loop
def profiler_that_is_not_asked() -> Step:
    step = recorded(lambda gm, x: gm.backward(loss_of(x)))

    def profiled() -> None:
        with profile():
            step()

    return profiled


@loop
def region_without_a_profiler() -> Step:
    def step() -> None:
        with record_function("region"), emit_itt(enabled=False):
            pass

    return step


@loop
def ranges_of_another_tool() -> Step:
    nothing = SimpleNamespace(begin=lambda: None, end=lambda: None)
    ittapi = SimpleNamespace(task=lambda text, domain: nothing)
    step = recorded(lambda gm, x: gm.backward(loss_of(x)))

    def marked() -> None:
        before = sys.modules.get("ittapi")
        sys.modules["ittapi"] = ittapi  # type: ignore[assignment]  # stands for the package
        try:
            with emit_itt(record_shapes=True):
                record_function("left open").__enter__()
                step()
        finally:
            del sys.modules["ittapi"]
            if before is not None:
                sys.modules["ittapi"] = before

    return marked


# ---------------------------------------------------------------- optimisers


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda params: optim.SGD(params, lr=1e-3),
    "SGD with momentum": lambda params: optim.SGD(params, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda params: optim.Adam(params, amsgrad=True, weight_decay=0.1),
    "AdamW": optim.AdamW,
    "RMSprop": lambda params: optim.RMSprop(params, momentum=0.5, centered=True),
    "Adagrad": lambda params: optim.Adagrad(params, lr_decay=0.1),
    "Lion": optim.Lion,
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
}


def training(
    make: Callable[[Any], Any], after: Callable[[Any], Callable[[], Any]] = lambda optimizer: lambda: None
) -> Step:
    """Return a step that trains two parameters and then calls what `after` gives for the optimiser."""
    params = [vector(), vector(3)]
    gm = GradManager().attach(params)
    optimizer = make(params)
    then = after(optimizer)

    def step() -> None:
        with gm:
            gm.backward(loss_of(params[0]) * loss_of(params[1]))
        optimizer.step()
        then()
        optimizer.zero_grad()

    return step


def recorded_training(kind: Any, **options: Any) -> Step:
    """Return a step that differentiates through two recorded steps of one optimiser, by the start and the rate."""
    start, w, rate = vector(), vector(), tensor(1e-3)
    outer, inner = GradManager().attach([start, rate]), GradManager().attach(w)
    optimizer = kind([w], lr=rate, differentiable=True, **options)

    def step() -> None:
        with outer:
            w[...] = start
            for _ in range(2):
                with inner:
                    inner.backward(loss_of(w))
                optimizer.step()
                optimizer.zero_grad()
            outer.backward(loss_of(w))
        outer.clear_grad()

    return step


STEPS["optimiser: recorded SGD"] = lambda: recorded_training(optim.SGD, momentum=0.9)
STEPS["optimiser: recorded Adam"] = lambda: recorded_training(optim.Adam, amsgrad=True)


for _name, _make in OPTIMIZERS.items():
    STEPS[f"optimiser: {_name}"] = lambda make=_make: training(make)


@loop
def optimizer_with_a_closure() -> Step:
    params = [vector()]
    gm, optimizer = GradManager().attach(params), optim.SGD(params, lr=1e-3)

    def closure() -> Any:
        optimizer.zero_grad()
        with gm:
            y = loss_of(params[0])
            gm.backward(y)
        return y

    return lambda: optimizer.step(closure)


@loop
def steps_of_lbfgs() -> Step:
    x = vector()
    gm, optimizer = GradManager().attach(x), optim.LBFGS([x], lr=1e-3, max_iter=2, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        with gm:
            y = loss_of(x)
            gm.backward(y)
        return y

    return lambda: optimizer.step(closure)


@loop
def optimizer_state() -> Step:
    def after(optimizer: Any) -> Callable[[], Any]:
        return lambda: (optimizer.load_state_dict(optimizer.state_dict()), repr(optimizer))

    return training(optim.AdamW, after)


@loop
def optimizer_of_each_step() -> Step:
    params = [vector()]
    gm = GradManager().attach(params)

    def step() -> None:
        with gm:
            gm.backward(loss_of(params[0]))
        optimizer: optim.Optimizer = optim.AdamW([{"params": params, "lr": 1e-4}])
        optimizer.step()
        lr_scheduler.StepLR(optimizer, 3).step()
        cleared(*params)

    return step


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5 + 0.5 / (1 + epoch % 7)),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.99),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 5]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9999),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10**6),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], [4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 9)]
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=10**6),
}


def _scheduled(make: Callable[[Any], lr_scheduler.LRScheduler]) -> Step:
    def after(optimizer: Any) -> Callable[[], Any]:
        schedule = make(optimizer)

        def then() -> None:
            schedule.step()
            schedule.get_last_lr()
            schedule.load_state_dict(schedule.state_dict())

        return then

    return training(lambda params: optim.SGD(params, lr=1e-3, momentum=0.5), after)


for _name, _schedule in SCHEDULES.items():
    STEPS[f"schedule: {_name}"] = lambda make=_schedule: _scheduled(make)


@loop
def plateau() -> Step:
    def after(optimizer: Any) -> Callable[[], Any]:
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=10**6)
        return lambda: schedule.step(1.0)

    return training(lambda params: optim.SGD(params, lr=1e-3), after)


@loop
def clipping() -> Step:
    x, gm = vector(), GradManager()
    gm.attach(x)

    def step() -> None:
        with gm:
            gm.backward(loss_of(x))
        optim.get_total_norm([x.grad])
        optim.clip_grad_norm_([x], 0.1)
        optim.clip_grad_value_([x], 0.1)
        cleared(x)

    return step


@loop
def scaler() -> Step:
    w = tensor(np.ones(4, "float16"))
    gm, optimizer, scaled = GradManager().attach(w), optim.SGD([w], lr=1e-3), optim.GradScaler(init_scale=8.0)

    def step() -> None:
        with gm, np.errstate(over="ignore"):  # the scale is doubled now and then, until a step overflows
            gm.backward(scaled.scale(gnp.sum(w * w)))
        scaled.unscale_(optimizer)
        scaled.step(optimizer)
        scaled.update()
        scaled.load_state_dict(scaled.state_dict())
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- modules


def _images() -> np.ndarray:
    return np.linspace(-1, 1, 2 * 1 * 6 * 6, dtype="float32").reshape(2, 1, 6, 6)


@loop
def module_in_training() -> Step:
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )
    x, labels = _images(), np.array([0, 2])
    gm, optimizer = GradManager().attach(dict(net.named_parameters())), optim.AdamW(net.parameters())

    def step() -> None:
        net.train()
        with gm:
            gm.backward(nn.functional.cross_entropy(net(x), labels))
        optimizer.step()
        optimizer.zero_grad()
        net.eval()(x)

    return step


def _drawn(*shape: int) -> np.ndarray:
    return np.sin(np.arange(1, 1 + np.prod(shape)), dtype="float32").reshape(shape)


_targets, _tokens, _bits = (
    np.array([0, 2]),
    np.array([[1, 3], [0, 1]]),
    np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], "float32"),
)

# A layer, and what it is called with.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    **{
        name: (getattr(nn, name), (_drawn(2, 3),))
        for name in ("ELU", "GELU", "Identity", "LeakyReLU", "ReLU", "SiLU", "Sigmoid", "Softplus", "Tanh")
    },
    "Softmax": (lambda: nn.Softmax(1), (_drawn(2, 3),)),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), (_drawn(2, 3),)),
    "Linear": (lambda: nn.Linear(3, 2), (_drawn(2, 3),)),
    "Dropout": (lambda: nn.Dropout(0.5), (_drawn(2, 3),)),
    "Flatten": (nn.Flatten, (_drawn(2, 3, 2),)),
    "Embedding": (lambda: nn.Embedding(4, 3), (_tokens,)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(4, 3, mode="max"), (_tokens,)),
    "Conv1d": (lambda: nn.Conv1d(1, 2, 3), (_drawn(2, 1, 6),)),
    "Conv2d": (lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular"), (_drawn(2, 1, 5, 5),)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(1, 2, 3), (_drawn(2, 1, 6),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(1, 2, 3, stride=2), (_drawn(2, 1, 4, 4),)),
    "BatchNorm": (lambda: nn.BatchNorm(3), (_drawn(2, 3),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (_drawn(2, 3),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), (_drawn(2, 2, 3, 3),)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (_drawn(2, 4, 3),)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (_drawn(2, 3),)),
    "RMSNorm": (lambda: nn.RMSNorm(3), (_drawn(2, 3),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (_drawn(2, 1, 5, 5),)),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), (_drawn(2, 1, 5),)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), (_drawn(1, 1, 3, 3, 3),)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(2), (_drawn(2, 1, 5),)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), (_drawn(2, 1, 5, 5),)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), (_drawn(1, 1, 3, 3, 3),)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (_drawn(1, 1, 4, 4, 4),)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (_drawn(1, 1, 4, 4, 4),)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (_drawn(1, 1, 3, 3, 3),)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(1, 2, 2), (_drawn(1, 1, 3, 3, 3),)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(2, affine=True), (_drawn(2, 2, 5),)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(2, affine=True), (_drawn(2, 2, 3, 3),)),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(2, affine=True), (_drawn(1, 2, 2, 3, 3),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (_drawn(1, 1, 3, 3),)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (_drawn(2, 1, 6),)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (_drawn(2, 1, 4, 4),)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (_drawn(2, 1, 6),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (_drawn(2, 1, 4, 4),)),
    "LSTM": (lambda: nn.LSTM(3, 2, num_layers=2, dropout=0.5), (_drawn(4, 2, 3),)),
    "GRU": (lambda: nn.GRU(3, 2, bidirectional=True), (_drawn(4, 2, 3),)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 2), (_drawn(2, 3),)),
    "GRUCell": (lambda: nn.GRUCell(3, 2), (_drawn(2, 3),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (_drawn(3, 2, 4),) * 3),
    "RNN": (lambda: nn.RNN(3, 2), (_drawn(4, 2, 3),)),
    "RNNCell": (lambda: nn.RNNCell(3, 2), (_drawn(2, 3),)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (_drawn(3, 2, 4),)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 8), (_drawn(3, 2, 4),) * 2),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2),
        (_drawn(3, 2, 4),),
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2),
        (_drawn(3, 2, 4),) * 2,
    ),
    "MSELoss": (nn.MSELoss, (_drawn(2, 3), _bits)),
    "L1Loss": (nn.L1Loss, (_drawn(2, 3), _bits)),
    "HuberLoss": (nn.HuberLoss, (_drawn(2, 3), _bits)),
    "SmoothL1Loss": (nn.SmoothL1Loss, (_drawn(2, 3), _bits)),
    "BCELoss": (nn.BCELoss, (_bits * 0.5 + 0.25, _bits)),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, (_drawn(2, 3), _bits)),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), (_drawn(2, 3), _bits)),
    "NLLLoss": (nn.NLLLoss, (_drawn(2, 3), _targets)),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), (_drawn(2, 3), _targets)),
}


def layered(make: Callable[[], nn.Module], given: tuple[Any, ...]) -> Step:
    """Return a step that differentiates a layer by its parameters and by what it is given."""
    layer, points = make(), [tensor(a) if a.dtype.kind == "f" else a for a in given]
    leaves = [*layer.parameters(), *[t for t in points if isinstance(t, Tensor)]]
    gm = GradManager().attach(leaves)

    def step() -> None:
        with gm:
            y = layer(*points)
            while isinstance(y, tuple):
                y = y[0]
            gm.backward(y.sum())
        cleared(*leaves)

    return step


@loop
def packed_sequences() -> Step:
    lstm = nn.LSTM(3, 2, bidirectional=True)
    x = tensor(_drawn(4, 3, 3))
    gm = GradManager().attach([x, *lstm.parameters()])

    def step() -> None:
        with gm:
            packed = nn.utils.rnn.pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
            padded, lengths = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
            whole = nn.utils.rnn.pad_sequence(nn.utils.rnn.unpad_sequence(padded, lengths), padding_value=1.0)
            again = nn.utils.rnn.pack_sequence(nn.utils.rnn.unpack_sequence(packed), enforce_sorted=False)
            gm.backward(whole.sum() + again.data.sum() + lstm(x, lengths=lengths)[0].sum())
        cleared(x, *lstm.parameters())

    return step


for _name, (_layer, _given) in LAYERS.items():
    STEPS[f"layer: {_name}"] = lambda make=_layer, given=_given: layered(make, given)


@loop
def module_state() -> Step:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    def step() -> None:
        net.load_state_dict(net.state_dict())
        repr(net), list(net.named_modules()), list(net.buffers()), nn.summary(net, np.ones((2, 3), "float32"))
        nn.functional_call(net, dict(net.named_parameters()), (np.ones((2, 3), "float32"),))
        net.apply(lambda module: None).zero_grad()

    return step


@loop
def module_of_each_step() -> Step:
    def step() -> None:
        net = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)]), "b": nn.ParameterList([nn.Parameter(np.ones(2))])})
        nn.init.xavier_uniform_(net["a"][0].weight)
        with GradManager().attach(list(net.parameters())) as gm:
            gm.backward(net["a"][0](np.ones((1, 2), "float32")).sum())

    return step


@loop
def module_hooks() -> Step:
    net = nn.Linear(2, 2)
    x = np.ones((1, 2), "float32")

    def step() -> None:
        with net.register_forward_hook(lambda module, args, out: None):
            net(x)

    return step


# ---------------------------------------------------------------- files


@loop
def saved_and_loaded() -> Step:
    state = {"w": vector(), "rng": np.random.default_rng(0), "step": 7, "more": [1.0, (2, "text")]}

    def step(folder: Path) -> None:
        gradmgr.save(state, folder / "run")
        gradmgr.load(folder / "run")
        gradmgr.load(folder / "run", into={"w": state["w"], "rng": state["rng"]})

    return with_folder(step)


# ---------------------------------------------------------------- sparse


@loop
def gradients_of_rows() -> Step:
    table = nn.Parameter(np.ones((20, 3)))
    gm, optimizer = GradManager().attach(table), optim.SparseAdam([table], lr=1e-3)
    places = np.array([3, 1, 3])

    def step() -> None:
        for _ in range(2):
            with gm:
                gm.backward((nn.functional.embedding(places, table, sparse=True) ** 2).sum())
        optim.clip_grad_norm_([table], 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return step


@loop
def sparse_systems() -> Step:
    import scipy.sparse

    a = scipy.sparse.csr_array(np.eye(4) * 3 + np.eye(4, k=1))
    values, b = tensor(a.data), vector()
    gm = GradManager().attach([values, b])

    def step() -> None:
        with gm:
            operand = sparse.with_data(a, values)
            x = (
                sparse.spsolve(operand, b)
                + sparse.gmres(operand, b, rtol=1e-10)[0]
                + sparse.splu(operand).solve(b, "T")
            )
            gm.backward((a @ x + x @ operand).sum())
        cleared(values, b)

    return step
