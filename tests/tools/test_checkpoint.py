"""Checkpoints: the same bits as without, of every order, from the arguments alone; and what cannot be repeated."""

import contextvars
import functools
import gc
import random
import threading
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import cupy_on_a_gpu

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, no_grad, tensor
from gradmgr._engine.history.saved_values import saved_tensors_hooks
from gradmgr._transforms.checkpoint import checkpoint, checkpoint_sequential
from gradmgr._transforms.grad import grad
from gradmgr._transforms.vmap import vmap
from gradmgr.anomaly import detect_anomaly
from gradmgr.forward_ad import dual_level, make_dual, unpack_dual
from gradmgr.function import Function
from gradmgr.graph import increment_version

RNG = np.random.default_rng(0)


def plain(function, *args, **kwargs):
    """Call, and ignore the options for checkpoints."""
    for name in ("preserve_rng_state", "debug", "generators", "determinism_check"):
        kwargs.pop(name, None)
    return function(*args, **kwargs)


def values(*shape):
    return RNG.normal(size=shape)


def gradients_of_program(tensors, program, call, **options):
    """Return the gradients of a program, whose `call` calls what may be checkpointed, and its value."""
    fresh = [tensor(t) for t in tensors]
    gm = GradManager().attach(fresh)
    with gm:
        y = program(functools.partial(call, **options), *fresh)
        gm.backward(y)
    return [y.numpy(), *[None if t.grad is None else t.grad.numpy() for t in fresh]]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()


def assert_same_bits(tensors, program, **options):
    assert_same(
        gradients_of_program(tensors, program, checkpoint, **options), gradients_of_program(tensors, program, plain)
    )


def layer(x, w):
    return gnp.tanh(x @ w)


# ---------------------------------------------------------------- the same bits


def two_layers(call, x, w):
    return call(layer, call(layer, x, w), w).sum()


def shared_weight_in_and_out(call, x, w):
    y = layer(x, w)
    for _ in range(3):
        y = call(lambda a: layer(a, w) + x, y) @ w
    return (y * w.sum()).sum()


def several_results(call, x, w):
    a, b = call(lambda x, w: (x @ w, (x * 2).sum()), x, w)
    return (a * b).sum()


def a_result_inside_and_outside(call, x, w):
    def function(x, w):
        h = gnp.tanh(x @ w)
        return h, h * h

    h, z = call(function, x, w)
    return (h * z).sum()


def an_op_of_several_results(call, x, w):
    values, vectors = call(lambda w: gnp.linalg.eigh(w @ w.T), w + x)
    return (values * vectors[0] ** 2 * x).sum()


def containers(call, x, w):
    def function(parts, scale=1):
        return {"a": [parts["x"] @ parts["w"][0] * scale], "n": 3}

    got = call(function, {"x": x, "w": (w,)}, scale=x[0, 0])
    assert got["n"] == 3
    return got["a"][0].sum()


def nested(call, x, w):
    def inner(a):
        return layer(a, w) * a

    def outer(a):
        return call(inner, call(inner, a) + a)

    return call(outer, x).sum()


def in_place(call, x, w):
    def function(a, w):
        a += 1
        b = a @ w
        b[0] = a[1] * 2
        b *= a
        return b

    h = x * 1
    y = call(function, h, w)
    return (y * h).sum()  # h was written to inside


def written_to_afterwards(call, x, w):
    h = x * 2
    y = call(layer, h, w)
    h *= 3
    h[0] = 0.0
    return (y * h).sum()


def stored_elsewhere(call, x, w):
    kept = []

    def function(a):
        h = layer(a, w)
        kept.append(h)
        return h * a

    return (call(function, x) * kept[0]).sum()


def the_same_twice(call, x, w):
    def function(a, b):
        a *= 2
        return a @ w + b  # b is a

    return call(function, h := x + 0, h).sum()


def an_argument_returned(call, x, w):
    a, b = call(lambda a: (a, a @ w), x)
    return (a * b).sum()


def constants_only(call, x, w):
    c = call(lambda: gnp.asarray(np.arange(4.0)) * 2)
    return (x @ w * c).sum()


def looped(call, x, w):
    def function(a):
        out = gnp.zeros((4, 4))
        out[0] = a[0]
        for k in range(1, 4):
            out[k] = gnp.sin(out[k - 1] + a[k])
        return out

    return call(function, x @ w).sum()


PROGRAMS = [
    two_layers,
    shared_weight_in_and_out,
    several_results,
    a_result_inside_and_outside,
    an_op_of_several_results,
    containers,
    nested,
    in_place,
    written_to_afterwards,
    stored_elsewhere,
    the_same_twice,
    an_argument_returned,
    constants_only,
    looped,
]
by_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
SQUARES = [values(4, 4), values(4, 4)]


@by_program
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits(program, dtype):
    assert_same_bits([a.astype(dtype) for a in SQUARES], program)


@by_program
def test_the_same_bits_by_torchs_other_arguments(program):
    assert_same_bits(SQUARES, program, debug=True, determinism_check="none", preserve_rng_state=False)


@by_program
def test_second_order(program):
    def second(call):
        x, w = (tensor(a) for a in SQUARES)
        outer, inner = GradManager().attach([x, w]), GradManager().attach([x, w])
        with outer, inner:
            y = program(call, x, w)
            inner.backward(y)
            gx, gw = x.grad, w.grad
            x.grad = w.grad = None
            outer.backward(gnp.sum(gx**2) + gnp.sum(gw * gx) if gw is not None else gnp.sum(gx**2))
        return [gx.numpy(), x.grad.numpy()] + ([] if gw is None else [gw.numpy(), w.grad.numpy()])

    for found, expected in zip(second(checkpoint), second(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@by_program
def test_the_outer_of_two_managers(program):
    def both(call):
        x, w = (tensor(a) for a in SQUARES)
        outer, inner = GradManager().attach([x, w]), GradManager().attach(w)
        with outer, inner:
            y = program(call, x, w)
            outer.backward(y)
        return [x.grad.numpy(), None if w.grad is None else w.grad.numpy()]

    assert_same(both(checkpoint), both(plain))


@by_program
def test_a_group(program):
    def grouped(call):
        x, w = (tensor(a) for a in SQUARES)
        one, two = GradManager().attach([x, w]), GradManager().attach([x, w])
        with one | two:
            y = program(call, x, w)
            one.backward(y)
            two.backward(y)
        return [x.grad.numpy(), w.grad.numpy()]

    assert_same(grouped(checkpoint), grouped(plain))


@by_program
def test_derivatives_recorded_on_the_tape_itself(program):
    def second(call):
        x, w = (tensor(a) for a in SQUARES)
        with GradManager().attach([x, w]):
            y = program(call, x, w)
            gx, gw = grad(y, [x, w], create_graph=True)
            hx, hw = grad((gx**2).sum() + (gw * gx).sum(), [x, w], create_graph=True)
            (third,) = grad((hx * hw).sum(), x)
            return [a.numpy() for a in (gx, gw, hx, hw, third)]

    for found, expected in zip(second(checkpoint), second(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@by_program
def test_forward_mode_outside_and_inside_of_a_manager(program):
    tangent = values(4, 4)

    def both(call):
        x, w = (tensor(a) for a in SQUARES)
        found = []
        gm = GradManager().attach(w)
        with dual_level(), gm:  # the derivative along a direction of the gradient
            gm.backward(program(call, make_dual(x, tensor(tangent)), w))
            primal, t = unpack_dual(w.grad)
            found += [primal.numpy(), t.numpy()]
        w.grad = None
        with gm, dual_level():  # the gradient of the derivative along a direction
            _, t = unpack_dual(program(call, make_dual(x, tensor(tangent)), w))
            gm.backward(t)
        return [*found, w.grad.numpy()]

    for found, expected in zip(both(checkpoint), both(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@by_program
def test_retained_history_gives_the_same_twice(program):
    x, w = (tensor(a) for a in SQUARES)
    gm = GradManager().attach([x, w])
    with gm:
        y = program(checkpoint, x, w)
        gm.backward(y, retain=True)
        once = [x.grad.numpy().copy(), w.grad.numpy().copy()]
        x.grad = w.grad = None
        gm.backward(y, retain=True)
        assert_same([x.grad.numpy(), w.grad.numpy()], once)
        x.grad = w.grad = None
        gm.backward(y)
    assert_same([x.grad.numpy(), w.grad.numpy()], once)


@by_program
def test_hooks_on_saved_values_outside_and_inside(program):
    def hooked(call):
        def with_hooks(function, *args, **kwargs):
            def inside(*args, **kwargs):
                with saved_tensors_hooks(lambda t: t.numpy().copy(), tensor):
                    return function(*args, **kwargs)

            return call(inside, *args, **kwargs)

        return with_hooks

    expected = gradients_of_program(SQUARES, program, plain)
    assert_same(gradients_of_program(SQUARES, program, hooked(checkpoint)), expected)
    with saved_tensors_hooks(lambda t: t.numpy().copy(), tensor):
        assert_same(gradients_of_program(SQUARES, program, checkpoint), expected)
    with saved_tensors_hooks(lambda t: t.numpy().copy(), tensor):
        assert_same(gradients_of_program(SQUARES, program, hooked(checkpoint)), expected)


# ---------------------------------------------------------------- what is kept


def test_nothing_is_kept_but_the_arguments():
    w = tensor(values(64, 64))

    def function(a):
        for _ in range(10):
            a = gnp.tanh(a @ w)
        return a

    with GradManager().attach(w) as gm:
        x = tensor(values(64, 64))
        y = checkpoint(function, x)
        assert gm._tape.nbytes() == x.nbytes
        assert [e[0] for e in gm._tape.entries] == ["checkpoint", "checkpoint.result"]
        inner = weakref.ref(y)
        del y
        gm._tape.sweep(everything=True)
        assert gm._tape.entries == []
        assert inner() is None


def test_all_is_freed_by_reference_counting():
    gc.collect()
    gc.disable()
    try:
        w = tensor(values(4, 4))
        gm = GradManager().attach(w)
        arrays = []

        def function(a):
            h = gnp.tanh(a @ w)
            arrays.append(weakref.ref(h._array))
            return h @ w

        with gm:
            x = tensor(values(4, 4))
            arrays.append(weakref.ref(x._array))
            y = checkpoint(function, x).sum()
            del x
            assert [ref() is None for ref in arrays] == [False, True]
            gm.backward(y)
        assert [ref() is None for ref in arrays] == [True, True, True]
        with gm:
            y = checkpoint(function, tensor(values(4, 4)))
        del y
        assert all(ref() is None for ref in arrays)
    finally:
        gc.enable()


def test_a_chain_of_checkpoints_is_deep():
    x = tensor([0.5])
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(5_000):
            y = checkpoint(gnp.negative, y, preserve_rng_state=False)
        gm.backward(y)
    assert x.grad.tolist() == [1.0]


@pytest.mark.parametrize("segments", [1, 2, 7, 1000])
def test_sequential(segments):
    w = tensor(values(3, 3))
    functions = [lambda a, k=k: gnp.sin(a @ w + k) for k in range(1000)]

    def gradient(run):
        x = tensor(np.ones(3))
        w.grad = None
        gm = GradManager().attach([x, w])
        with gm:
            gm.backward(run(x).sum())
        return [x.grad.numpy(), w.grad.numpy()]

    def straight(x):
        for function in functions:
            x = function(x)
        return x

    assert_same(gradient(lambda x: checkpoint_sequential(functions, segments, x)), gradient(straight))


def test_sequential_keeps_the_inputs_of_segments():
    w = tensor(values(8, 8))
    with GradManager().attach(w) as gm:
        y = checkpoint_sequential([lambda a: a @ w] * 100, 10, tensor(values(8, 8)))
        # Nine inputs, of ten segments, and the last segment as it is: ten inputs and the weight.
        assert gm._tape.nbytes() == (9 + 10 + 1) * w.nbytes
        gm.backward(y.sum())


def test_a_checkpoint_without_a_recording():
    x = tensor([1.0])
    calls = []

    def function(a):
        calls.append(a)
        return a * 2

    assert checkpoint(function, x).tolist() == [2.0]
    assert calls == [x]
    with GradManager().attach(x) as gm:
        with no_grad():
            checkpoint(function, x)
        assert gm._tape.entries == []
        checkpoint(function, tensor([3.0]))
        assert gm._tape.entries == []
    assert len(calls) == 3


def test_arguments_of_every_kind():
    @dataclass
    class Pair:
        one: Tensor
        two: Tensor

    got = []

    def function(pair, numbers, *, flag, table):
        got.append((type(pair), numbers, flag, list(table)))
        numbers.append(1)
        return pair.one * pair.two * table["c"]

    def program(call, x, w):
        numbers = []
        y = call(function, Pair(x, w), numbers, flag="f", table={"c": np.full((4, 4), 3.0)})
        numbers.append(2)
        return y.sum()

    assert_same_bits(SQUARES, program)
    assert got[0] == got[1] == got[2] == (Pair, [1], "f", ["c"]) or len(got) == 3


def test_modes_are_those_of_the_call():
    seen = []

    def function(a, w):
        with no_grad():
            c = a @ w
        seen.append(gnp.is_grad_enabled() if hasattr(gnp, "is_grad_enabled") else None)
        return a * c @ w

    def program(call, x, w):
        return call(function, x, w).sum()

    assert_same_bits(SQUARES, program)
    x, w = (tensor(a) for a in SQUARES)
    gm = GradManager().attach([x, w])
    with gm:
        y = program(checkpoint, x, w)
        with no_grad():
            gm.backward(y)
    assert_same([x.grad.numpy(), w.grad.numpy()], gradients_of_program(SQUARES, program, plain)[1:])


def test_contexts():
    entered = []

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *exc):
            entered.append("-" + self.name)

    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(lambda a: a * a, x, context_fn=lambda: (Context("call"), Context("again")))
        assert entered == ["call", "-call"]
        gm.backward(y)
    assert entered == ["call", "-call", "again", "-again"]


# ---------------------------------------------------------------- hooks, and gradients of what is inside


def test_hooks_on_results_and_on_what_was_stored():
    def run(call):
        x, seen, kept = tensor([1.0, 2.0]), [], []
        gm = GradManager().attach(x)

        def function(a):
            h = gnp.sin(a)
            h.register_hook(lambda g: seen.append(("inside", g.tolist())))
            kept.append(h)
            return h, h * h

        with gm:
            h, z = call(function, x)
            h.register_hook(lambda g: seen.append(("h", g.tolist())) or g * 2)
            z.retain_grad()
            kept[0].retain_grad()
            gm.backward((h * z).sum())
        return seen, z.grad.tolist(), kept[0].grad.tolist(), x.grad.tolist()

    assert run(checkpoint) == run(plain)


def test_hooks_registered_inside_on_the_argument_are_called_once():
    def run(call):
        x, seen = tensor([1.0, 2.0]), []
        gm = GradManager().attach(x)

        def function(a):
            a.register_hook(lambda g: seen.append(g.tolist()))
            return a * a

        with gm:
            h = x * 3
            gm.backward(call(function, h).sum())
        return seen, x.grad.tolist()

    assert run(checkpoint) == run(plain)


@pytest.mark.parametrize("retained", [False, True])
def test_hooks_registered_inside_where_there_are_no_others(retained):
    """Backward meets the first of them in the second run, within a checkpoint or within one in one."""

    def run(call):
        x, seen = tensor([1.0, 2.0]), []
        gm = GradManager().attach(x)

        def inner(a):
            h = gnp.sin(a)
            h.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
            return h * a

        def function(a):
            h = call(inner, a)
            h.register_hook(lambda g: g * 2)
            return gnp.cos(h)

        with gm:
            y = call(function, x).sum() + (x * x).sum()
            gm.backward(y, retain=retained)
            if retained:
                gm.backward(y)
        return seen, x.grad.tolist()

    assert run(checkpoint) == run(plain)
    assert run(plain)[0]


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_hooks_in_a_derivative_that_is_recorded(place):
    """The second derivative goes through the values that the second run made; there are hooks on them, too."""

    def run(call):
        x = tensor([0.5, 1.0])

        def function(a):
            h = gnp.sin(a)
            if place == "inside":
                h.register_hook(lambda g: g * 10)
            return h * h * a, h

        with GradManager().attach(x):
            y, h = call(function, x)
            if place == "outside":
                h.register_hook(lambda g: g * 10)
            (slope,) = grad(y.sum(), x, create_graph=True)
            (curvature,) = grad((slope * slope).sum(), x)
        return slope.numpy(), curvature.numpy()

    for one, other in zip(run(checkpoint), run(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_there_are_no_nodes_inside():
    x = tensor([1.0])

    def function(a):
        h = gnp.sin(a)
        with pytest.raises(errors.RecordingError, match="checkpointed function that is running"):
            h.grad_fn  # reading it is what raises
        return h * h

    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(function, x)
        assert y.grad_fn.name() == "checkpoint"
        gm.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), np.sin([2.0]))


def test_a_hook_changes_nothing_of_what_a_checkpoint_within_keeps():
    """No value of the inner one is kept, the second time neither."""
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)

    def inner(a):
        return gnp.cos(a).tolist()

    def function(a):
        checkpoint(inner, a)
        z = gnp.sin(a)
        z.register_hook(lambda g: g * 2)
        return z

    with gm:
        gm.backward(checkpoint(function, x).sum())
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.cos([1.0, 2.0]))


def test_gradients_for_what_is_inside():
    def run(call):
        x, kept = tensor([1.0, 2.0]), []

        def function(a):
            h = gnp.sin(a)
            kept.append(h)
            return h * h, h * a

        with GradManager().attach(x):
            y, z = call(function, x)
            got = grad((y * z).sum(), [y, z, x], retain_graph=True)
            got += grad((y * z).sum(), [y], retain_graph=True)
            return [g.tolist() for g in got]

    assert run(checkpoint) == run(plain)


def test_the_history_as_seen_from_a_result():
    x, w = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach([x, w])
    seen = []
    with gm:
        a, b = checkpoint(lambda x: (gnp.sin(gnp.exp(x)) * w, x * x), x)
        node = a.grad_fn
        assert node.name() == "checkpoint"
        assert node == b.grad_fn
        assert [(before.name(), k) for before, k in node.next_functions] == [("AccumulateGrad", 0)] * 2
        node.register_prehook(lambda gs: seen.append([None if g is None else g.tolist() for g in gs]))
        node.register_hook(lambda gs, outs: seen.append((len(gs), len(outs))))
        gm.backward((b * 3).sum())
    assert seen == [[None, [3.0, 3.0]], (2, 2)]
    assert x.grad.tolist() == [6.0, 12.0]


def test_a_checkpoint_in_a_derivative_that_is_recorded():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * checkpoint(lambda x: 3 * x * x, x)

    x = tensor([2.0])
    with GradManager().attach(x):
        (g,) = grad(Cube.apply(x), x, create_graph=True)
        (h,) = grad(g, x, create_graph=True)
        (third,) = grad(h, x)
    assert [g.tolist(), h.tolist(), third.tolist()] == [[12.0], [12.0], [6.0]]


def test_callbacks_run_when_the_gradient_is_complete():
    def run(call):
        x, w = tensor(values(2, 2)), tensor(np.eye(2))
        order = []
        gm = GradManager().attach(x, lambda t, g: order.append("x") or g).attach(w, lambda t, g: order.append("w") or g)
        with gm:
            y = call(lambda a: a @ w, x)  # w is read without being given
            gm.backward((y * y).sum())
        return order

    assert sorted(run(checkpoint)) == ["w", "x"]


# ---------------------------------------------------------------- random numbers


GLOBAL = np.random.default_rng(5)


def masked(mask, a):
    return a * mask


def named_generator(a):
    return masked(GLOBAL.random(a.shape), a)


class Dropout:
    def __init__(self):
        self.rng = np.random.default_rng(3)
        self.layers = [functools.partial(masked_by, np.random.default_rng(4))]

    def __call__(self, a):
        return masked(self.rng.random(a.shape), self.layers[0](a))

    def method(self, a):
        return self(a) * GLOBAL.random(a.shape)


def masked_by(rng, a):
    return masked(rng.random(a.shape), a)


def closure(rng):
    return lambda a: masked_by(rng, a)


def of_python(a):
    return a * random.random()  # noqa: S311  # no secret


def of_numpy(a):
    return a * np.random.random(a.shape)


DRAWING = {
    "named": lambda: (named_generator, ()),
    "object": lambda: (Dropout(), ()),
    "method": lambda: (Dropout().method, ()),
    "partial": lambda: (functools.partial(masked_by, np.random.default_rng(7)), ()),
    "closure": lambda: (closure(np.random.default_rng(8)), ()),
    "closure in a closure": lambda: ((lambda f: lambda a: f(a))(closure(np.random.default_rng(8))), ()),
    "RandomState": lambda: (closure(np.random.RandomState(9)), ()),
    "Philox": lambda: (closure(np.random.Generator(np.random.Philox(9))), ()),
    "python": lambda: (of_python, ()),
    "random.Random": lambda: ((lambda rng: lambda a: a * rng.random())(random.Random(4)), ()),  # noqa: S311  # as above
    "numpy": lambda: (of_numpy, ()),
    "argument": lambda: (lambda a, box: masked_by(box["rng"][0], a), ({"rng": [np.random.default_rng(1)]},)),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_random_numbers_are_the_same_again(kind):
    def run(call):
        np.random.seed(1)
        random.seed(1)
        GLOBAL.bit_generator.state = np.random.default_rng(5).bit_generator.state
        function, more = DRAWING[kind]()
        x = tensor(np.ones((3, 4)))
        gm = GradManager().attach(x)
        with gm:
            y = call(function, x, *more)
            between = [np.random.random(), random.random(), GLOBAL.random()]  # noqa: S311  # as above
            gm.backward(y.sum(), retain=True)
            gm.backward(y.sum())
            after = [np.random.random(), random.random(), GLOBAL.random()]  # noqa: S311  # as above
        np.testing.assert_allclose(x.grad.numpy(), 2 * y.numpy(), rtol=1e-15)  # the mask itself
        return [y.numpy().copy(), x.grad.numpy(), np.array(between), np.array(after)]

    assert_same(run(checkpoint), run(plain))


def test_a_generator_that_is_not_found_can_be_named():
    class Box:
        rng = None

    box = Box()
    box.rng = hidden = np.random.default_rng(2)
    reference = weakref.ref(box)
    x = tensor(np.ones(5))

    def function(a):
        return a * reference().rng.random(a.shape)

    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(function, x, generators=hidden)
        gm.backward(y.sum())
    assert x.grad.tolist() == y.tolist()
    x.grad = None
    with gm:
        y = checkpoint(function, x)
        gm.backward(y.sum())
    assert x.grad.tolist() != y.tolist()  # as documented: it could not be found


def test_generators_cannot_be_spawned_inside():
    rng = np.random.default_rng(1)
    x = tensor(np.ones(5))
    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(errors.CheckpointError, match=r"calls spawn\(\) of a random generator"):
            checkpoint(lambda a: a * rng.spawn(1)[0].random(5), x)
        child = rng.spawn(1)[0]
        y = checkpoint(lambda a: a * child.random(5), x)
        gm.backward(y.sum())
    assert x.grad.tolist() == y.tolist()


def test_preserve_rng_state_off():
    x = tensor(np.ones(5))
    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(of_numpy, x, preserve_rng_state=False)
        gm.backward(y.sum())
    assert x.grad.tolist() != y.tolist()


def test_no_state_is_kept_where_none_is_drawn_from():
    with GradManager().attach(x := tensor(np.ones(5))) as gm:
        y = checkpoint(lambda a: a * GLOBAL.bit_generator.state["has_uint32"] + a, x)
        assert gm._tape.entries[0][3]._call.replay._states == []
        del y


# ---------------------------------------------------------------- what cannot be repeated


def failing(gm, y, match, *tensors):
    """A backward that fails, changes no .grad and leaves the manager idle."""
    before = [None if t.grad is None else t.grad.numpy().copy() for t in tensors]
    with pytest.raises(errors.CheckpointError, match=match) as caught:
        gm.backward(y)
    assert isinstance(caught.value, RuntimeError)
    assert gm._tape is None
    assert_same([None if t.grad is None else t.grad.numpy() for t in tensors], before)


def test_a_leaf_written_to_in_between():
    x, w = tensor(np.ones(2)), tensor([2.0, 3.0])
    gm = GradManager().attach([x, w])
    with gm:
        y = checkpoint(lambda a: a * w, x).sum()
        with no_grad():
            w *= 2
        failing(gm, y, "reads without being given it, was written to", x, w)
    with gm:  # given, its value is kept
        y = checkpoint(lambda a, w: a * w, x, w).sum()
        with no_grad():
            w *= 2
        gm.backward(y)
    assert x.grad.tolist() == [4.0, 6.0]


def test_a_value_written_to_in_between():
    x = tensor(np.ones(2))
    gm = GradManager().attach(x)
    with gm:
        h = x * 3
        y = checkpoint(lambda a: a * h, x).sum()
        h += 1
        failing(gm, y, "did not do in backward what it did when it was called", x)


def test_attached_in_between():
    x, c = tensor(np.ones(2)), tensor([2.0, 3.0])
    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(lambda a: a * c, x).sum()
        gm.attach(c)
        failing(gm, y, "did not do in backward", x, c)


@pytest.mark.parametrize("change", ["more", "less", "op", "shape", "order"])
def test_another_program(change):
    x = tensor(np.ones((2, 2)))
    gm = GradManager().attach(x)
    calls = []

    def function(a):
        calls.append(1)
        again = len(calls) > 1
        if change == "more":
            return gnp.sin(gnp.exp(a) if again else a)
        if change == "less":
            return a * 2 if again else gnp.sin(a * 2)
        if change == "op":
            return gnp.cos(a) if again else gnp.sin(a)
        if change == "shape":
            return gnp.sum(a, axis=0 if again else 1, keepdims=True) * 2
        b, c = gnp.sin(a), gnp.cos(a)
        return c * b - c if again else b * c - b

    with gm:
        y = checkpoint(function, x).sum()
        failing(gm, y, "did not do in backward", x)
    calls.clear()
    with gm:
        y = checkpoint(function, x, debug=True).sum()
        failing(gm, y, r"The first to differ was\n.*\nand is now\n", x)


def test_shapes_count_by_default_only():
    x = tensor(np.ones((2, 3)))
    calls = []

    def function(a):
        calls.append(1)
        return (a * np.ones((2, 3) if len(calls) % 2 else (4, 2, 3))).sum() * 2

    gm = GradManager().attach(x)
    with gm:
        failing(gm, checkpoint(function, x), "shapes or dtypes", x)
    calls.clear()
    with gm:
        gm.backward(checkpoint(function, x, determinism_check="none"))
    assert x.grad.tolist() == np.full((2, 3), 8.0).tolist()


def test_a_second_run_that_raises():
    x = tensor(np.ones(2))
    calls = []

    def function(a):
        calls.append(1)
        np.random.random()
        if len(calls) > 1:
            raise ZeroDivisionError("again")
        return a * 2

    gm = GradManager().attach(x)
    np.random.seed(3)
    expected = [np.random.random(), np.random.random()]
    np.random.seed(3)
    with gm:
        y = checkpoint(function, x).sum()
        with pytest.raises(ZeroDivisionError, match="again") as caught:
            gm.backward(y)
        assert "derivative of gradmgr op 'checkpoint'" in "".join(caught.value.__notes__)
        assert gm._tape is None
    assert x.grad is None
    assert np.random.random() == expected[1]
    with gm:
        gm.backward((x * 3).sum())
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_call_that_raises():
    x = tensor(np.ones(2))
    kept = []

    def function(a):
        kept.append(a * 2)
        raise ZeroDivisionError

    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(ZeroDivisionError):
            checkpoint(function, x)
        y = (x * 5).sum()
        gm.backward(y, retain=True)
        assert x.grad.tolist() == [5.0, 5.0]
        failing(gm, kept[0].sum(), "after that function raised", x)
    kept.clear()
    with gm:
        with pytest.raises(ZeroDivisionError):
            checkpoint(function, x)
        kept.clear()
        gm._tape.sweep(everything=True)
        assert gm._tape.entries == []


def test_managers_inside():
    def function(a):
        own = GradManager().attach(v := tensor(a.numpy()))
        with own:
            own.backward((v**3).sum())
        return a * v.grad

    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        gm.backward(checkpoint(function, x).sum())
    assert x.grad.tolist() == [3.0, 12.0]


@pytest.mark.parametrize("around", ["call", "backward"])
def test_managers_inside_under_detect_anomaly_at_one_time_only(around):
    """What the inner backward records is the same whether anomalies are looked for or not."""
    x = tensor([0.5, 1.0, 2.0])

    def slope(a):
        a = a * 1.0
        with GradManager().attach(a) as gm:
            z = a * 1.0
            for i in (1, 2):
                z[i] = gnp.sin(z[i - 1]) * a[i]
            gm.backward(z, np.ones(3))
        return a.grad

    gm = GradManager().attach(x)
    with gm:
        with detect_anomaly() if around == "call" else nullcontext():
            y = checkpoint(slope, x).sum()
        with detect_anomaly() if around == "backward" else nullcontext():
            gm.backward(y)
    found, x.grad = x.grad, None
    with gm:
        gm.backward(slope(x).sum())
    np.testing.assert_array_equal(found.numpy(), x.grad.numpy())


def test_a_second_derivative_inside():
    def function(a):
        inner = GradManager().attach(a)
        with inner:
            inner.backward((a**3).sum())
        g, a.grad = a.grad, None
        return g

    def run(call):
        x = tensor([1.0, 2.0])
        gm = GradManager().attach(x)
        with gm:
            gm.backward(call(function, x * 1).sum())
        return x.grad.tolist()

    assert run(checkpoint) == run(plain) == [6.0, 12.0]


def test_the_managers_around_cannot_be_used_inside():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm, pytest.raises(errors.CheckpointError, match=r"backward\(\) inside a checkpointed function"):
        checkpoint(lambda a: gm.backward((a * a).sum()), x)
    assert x.grad is None
    with gm, pytest.raises(errors.CheckpointError, match=r"attach\(\) of a value computed inside"):
        checkpoint(lambda a: gm.attach(a * a), x)


def test_memory_declared_overwritten():
    buffer = np.ones(2)
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = checkpoint(lambda a, b: a * b, x, buffer).sum()
        buffer[:] = 5
        increment_version(buffer)
        with pytest.raises(errors.StaleValueError, match="'checkpoint'"):
            gm.backward(y)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: checkpoint(3, x), TypeError, "takes a function; found int"),
        (lambda x: checkpoint(gnp.sin, x, determinism_check="all"), ValueError, "'default' or 'none'; found 'all'"),
        (lambda x: checkpoint(gnp.sin, x, generators=[3]), TypeError, "found builtins.int"),
        (lambda x: checkpoint_sequential([gnp.sin], 0, x), ValueError, "1 functions cannot be cut into 0 segments"),
        (lambda x: checkpoint_sequential([gnp.sin], 2, x), ValueError, "1 functions cannot be cut into 2 segments"),
        (lambda x: checkpoint_sequential([], 1, x), ValueError, "0 functions"),
        (lambda x: checkpoint_sequential([gnp.sin, 3], 1, x), TypeError, "element 1 .* cannot be called: int"),
        (lambda x: checkpoint_sequential([gnp.sin], 1.0, x), TypeError, "a number of segments; found float"),
        (lambda x: checkpoint_sequential([gnp.sin], True, x), TypeError, "found bool"),
        (lambda x: checkpoint_sequential([gnp.sin], 1, x, rng=3), TypeError, "no option 'rng'; it takes context_fn"),
    ],
)
def test_wrong_arguments(call, error, text, unchanged):
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        with unchanged([gm], [x, y]), pytest.raises(error, match=text.replace("(", r"\(")):
            call(x)


# ---------------------------------------------------------------- threads


def test_threads_that_record_into_one_tape():
    w = tensor(values(8, 8))
    gm = GradManager().attach(w)
    xs = [values(8, 8) for _ in range(4)]
    results = [None] * 4
    barrier = threading.Barrier(4)

    def work(k):
        barrier.wait()
        y = tensor(xs[k])
        for j in range(50):
            y = checkpoint(layer, y, w) if (j + k) % 2 else layer(y, w)
        results[k] = y

    with gm:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, k)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gm.backward(sum(y.sum() for y in results))
    found, w.grad = w.grad.numpy(), None
    with gm:
        total = 0
        for x in xs:
            y = tensor(x)
            for _ in range(50):
                y = layer(y, w)
            total = total + y.sum()
        gm.backward(total)
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-10)


def test_a_tape_that_gets_an_observer_while_threads_record_loses_no_entry():
    w = tensor([1.0])
    gm = GradManager().attach(w)
    count, stop = [], threading.Event()
    with gm:
        context = contextvars.copy_context()

        def record():
            while not stop.is_set():
                count.append(w * 1.0)

        thread = threading.Thread(target=context.run, args=(record,))
        thread.start()
        while len(count) < 2000:
            pass
        checkpoint(gnp.sin, w)
        seen = len(count)
        while len(count) < seen + 2000:
            pass
        stop.set()
        thread.join()
        gm.backward(count, [np.ones(1)] * len(count))
    assert w.grad.tolist() == [float(len(count))]


# ---------------------------------------------------------------- with other tools


def test_an_anomaly_is_found_inside():
    x = tensor([0.0, 1.0])
    gm = GradManager().attach(x)

    def function(a):
        return gnp.sqrt(a) * a  # at 0, inf times 0

    with detect_anomaly(), gm:
        y = checkpoint(function, x).sum()
        wanted = pytest.raises(errors.AnomalyError, match=r"op 'sqrt' .*at 0, inf times 0")
        with np.errstate(invalid="ignore"), wanted:
            gm.backward(y * 0.0)
    assert x.grad is None


def test_per_example_gradients():
    def per_example(call):
        w = tensor(SQUARES[1])

        def slope(x):
            with GradManager().attach(w) as gm:
                (g,) = grad(call(layer, x, w).sum(), w)
            assert gm._tape is None
            return g

        return vmap(slope)(tensor(SQUARES[0])).numpy()

    assert_same([per_example(checkpoint)], [per_example(plain)])


@pytest.mark.parametrize("depth", [1, 2])
def test_inside_vmap_for_a_manager_outside(depth):
    """What vmap does to values that are the same for all examples is done again."""

    def run(call):
        w, x = tensor(SQUARES[0]), tensor(np.stack([SQUARES[1], SQUARES[0]]))

        def one(row):
            return call(lambda a: gnp.sin(a @ w[0] + 1j * (w[1] * w[2])).imag * w[0], row)

        mapped = one
        for _ in range(depth):
            mapped = vmap(mapped)
        gm = GradManager().attach([w, x])
        with gm:
            gm.backward(mapped(x if depth == 2 else x[0]).sum())
        return w.grad.numpy(), x.grad.numpy()

    assert_same(run(checkpoint), run(plain))


# ---------------------------------------------------------------- CuPy's random numbers


class FakeRandomState:
    """A stream that cannot be read, seeded when it is made, as CuPy's RandomState."""

    made = 0

    def __init__(self, seed=None):
        type(self).made += 1
        self._generator = np.random.default_rng(seed)

    def __del__(self):
        if hasattr(self, "_generator"):
            self._generator = None

    def randint(self, low, high):
        return self._generator.integers(low, high)

    def random(self, shape):
        return self._generator.random(shape)


@pytest.fixture
def cupy_with_random(cupy, monkeypatch):
    """The guard as CuPy, with random numbers."""
    states = [FakeRandomState(1)]
    functions = SimpleNamespace(
        RandomState=FakeRandomState,
        get_random_state=lambda: states[-1],
        set_random_state=lambda state: states.append(state),
        random=lambda shape: cupy.asarray(states[-1].random(shape)),
    )
    monkeypatch.setattr(cupy, "random", functions, raising=False)
    monkeypatch.setattr(cupy.cuda, "is_available", lambda: True, raising=False)
    return cupy


def test_random_numbers_on_a_gpu_are_the_same_again(cupy_with_random):
    cupy = cupy_with_random
    own = cupy.random.get_random_state()
    x = tensor(cupy.asarray(np.ones((3, 4))))
    gm = GradManager().attach(x)

    def function(a):
        return a * cupy.random.random(a.shape)

    with gm:
        y = checkpoint(function, x)
        assert cupy.random.get_random_state() is own
        gm.backward(y, cupy.asarray(np.ones((3, 4))), retain=True)
        once = x.grad._array.get().copy()
        gm.backward(y, cupy.asarray(np.ones((3, 4))))
    assert once.tobytes() == y._array.get().tobytes()
    assert (2 * once).tobytes() == x.grad._array.get().tobytes()
    assert cupy.random.get_random_state() is own
    # One number was drawn from CuPy's own stream, and none where the function draws none.
    expected = np.random.default_rng(1)
    expected.integers(0, 2**31 - 1)
    before = FakeRandomState.made
    with gm:
        gm.backward(checkpoint(lambda a: a * a, x), cupy.asarray(np.ones((3, 4))))
    assert FakeRandomState.made == before
    assert own.random(3).tolist() == expected.random(3).tolist()


@pytest.mark.gpu
def test_random_numbers_of_cupy():
    cupy = cupy_on_a_gpu()
    cupy.random.seed(3)
    x = tensor(cupy.ones((3, 5)))
    gm = GradManager().attach(x)

    def function(a):
        return a * cupy.random.random(a.shape) * cupy.random.normal(size=a.shape) * cupy.random.beta(2.0, 3.0, a.shape)

    with gm:
        y = checkpoint(function, x)
        gm.backward(y, cupy.ones((3, 5)))
    np.testing.assert_allclose(x.grad._array.get(), y._array.get(), rtol=1e-15)
    again = cupy.random.random(4).get()
    cupy.random.seed(3)
    with gm:
        checkpoint(function, x)
    assert again.tolist() == cupy.random.random(4).get().tolist()
