"""Hooks on saved values, and values kept on the host."""

import asyncio
import contextvars
import functools
import gc
import threading
import weakref

import numpy as np
import pytest
from helpers import cupy_on_a_gpu

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr._engine.entry import VJPS
from gradmgr._engine.history.saved_values import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from gradmgr._transforms.grad import grad
from gradmgr.forward_ad import dual_level, make_dual, unpack_dual
from gradmgr.function import Function
from gradmgr.graph import increment_version
from gradmgr.special import expit

RNG = np.random.default_rng(0)
SQUARES = [RNG.normal(size=(4, 4)), RNG.normal(size=(4, 4))]


def copied():
    """Hooks that keep copies."""
    return saved_tensors_hooks(lambda t: t.numpy().copy(), tensor)


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def program(x, w):
    h = gnp.tanh(x @ w) * 2.0
    h += gnp.exp(x[[0, 1, 1, 2]]) / (1 + w**2)
    h[1:3] = expit(h[0]) + gnp.where(w[1] > 0, h[3], x[2])
    values, vectors = gnp.linalg.eigh(h @ h.T)
    z = gnp.einsum("ij,jk->k", vectors[0:1] ** 2, h) + gnp.concatenate([values[:2], w[0, :2]])
    return Cubed.apply(z).mean() + gnp.sort(x, axis=None)[3] + gnp.prod(w[0]) + gnp.logaddexp(x, w).sum()


def gradients_of_program(hooks, *, retain=False):
    x, w = (tensor(a) for a in SQUARES)
    gm = GradManager().attach([x, w])
    with gm:
        with hooks:
            y = program(x, w)
        gm.backward(y, retain=retain)
        if retain:
            x.grad = w.grad = None
            gm.backward(y)
    return x.grad.numpy(), w.grad.numpy()


class nothing:  # noqa: N801  # reads as a statement
    def __enter__(self):
        pass

    def __exit__(self, *exc):
        pass


@pytest.mark.parametrize("retain", [False, True])
def test_the_same_bits(retain):
    for found, expected in zip(
        gradients_of_program(copied(), retain=retain), gradients_of_program(nothing()), strict=True
    ):
        assert found.tobytes() == expected.tobytes()


def test_what_is_packed_and_unpacked():
    x = tensor([1.0, 2.0])
    packed, unpacked = [], []

    def pack(t):
        assert type(t) is Tensor
        packed.append(t.tolist())
        return len(packed)

    def unpack(k):
        unpacked.append(k)
        return tensor(packed[k - 1])

    gm = GradManager().attach(x)
    with gm:
        with saved_tensors_hooks(pack, unpack):
            y = gnp.sum(x * np.array([3.0, 4.0]) + 2)  # add and sum keep shapes only
            z = y * y * 5.0  # of numbers from Python, nothing is asked
        assert packed == [[3.0, 4.0], 15.0, 15.0]
        assert unpacked == []
        assert gm._tape.nbytes() == 0
        gm.backward(z)
    assert unpacked == [2, 3, 1]
    assert x.grad.tolist() == [2 * 15 * 5 * 3.0, 2 * 15 * 5 * 4.0]


def test_numpy_scalars_are_restored_unchanged():
    seen = []
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        with saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: tensor(t.numpy())):
            y = gnp.exp(x.sum())
        assert seen == [()]
        gm.backward(y)
    assert x.grad.tolist() == [np.exp(3.0)] * 2


def test_the_innermost_hooks_win():
    calls = []

    def hooks(name):
        return saved_tensors_hooks(lambda t: calls.append(name) or t, lambda t: t)

    x = tensor([1.0])
    with GradManager().attach(x), hooks("outer"):
        x * x
        with hooks("inner"):
            x * x
        x * x
    x * x
    assert calls == ["outer"] * 2 + ["inner"] * 2 + ["outer"] * 2


def test_a_block_may_be_left_without_arguments():
    packed = []
    hooks = saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t)
    hooks.__enter__()
    hooks.__exit__()
    x = tensor([2.0])
    with GradManager().attach(x) as gm:
        gm.backward((x * x).sum())
    assert packed == []


def test_blocks_left_in_any_order_and_entered_again():
    calls = []

    def hooks(name):
        return saved_tensors_hooks(lambda t: calls.append(name) or t, lambda t: t)

    x = tensor([1.0])
    with GradManager().attach(x):
        a, b = hooks("a"), hooks("b")
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)
        gnp.exp(x)
        with a, a:
            gnp.exp(x)
        b.__exit__(None, None, None)
        gnp.exp(x)
    assert calls == ["b", "a"]


def test_as_a_decorator():
    calls = []

    @saved_tensors_hooks(lambda t: calls.append(1) or t, lambda t: t)
    def function(x):
        return gnp.exp(x)

    x = tensor([1.0])
    with GradManager().attach(x):
        gnp.exp(function(x))
    assert calls == [1]


def test_a_manager_that_recorded_before_and_one_that_begins_inside():
    calls = []
    hooks = saved_tensors_hooks(lambda t: calls.append(1) or t, lambda t: t)
    x = tensor([1.0])
    gm = GradManager().attach(x)
    gm.record()
    with hooks:
        y = gnp.exp(x)
    gm.backward(y)
    with hooks:
        gm.record()
        y = gnp.exp(x)
        gm.backward(y)
    assert calls == [1, 1]
    assert x.grad.tolist() == [2 * np.e]


def test_hooks_are_of_their_thread_and_task():
    calls = []
    x = tensor([1.0])

    def record():
        with GradManager().attach(x):
            gnp.exp(x)

    async def task(wait, hooks):
        with hooks:
            await wait.wait()
            record()

    async def tasks():
        event = asyncio.Event()
        one = asyncio.create_task(task(event, saved_tensors_hooks(lambda t: calls.append("task") or t, lambda t: t)))
        await asyncio.sleep(0)
        record()
        event.set()
        await one

    with saved_tensors_hooks(lambda t: calls.append("here") or t, lambda t: t):
        thread = threading.Thread(target=record)
        thread.start()
        thread.join()
        assert calls == []
        thread = threading.Thread(target=contextvars.copy_context().run, args=(record,))
        thread.start()
        thread.join()
    assert calls == ["here"]
    asyncio.run(tasks())
    assert calls == ["here", "task"]


# ---------------------------------------------------------------- higher order


@pytest.mark.parametrize("inside", [False, True])
def test_second_order_by_two_managers(inside):
    def second(hooks):
        x, w = (tensor(a) for a in SQUARES)
        outer, inner = GradManager().attach([x, w]), GradManager().attach([x, w])
        with outer, inner:
            with hooks:
                y = program(x, w)
            with hooks if inside else nothing():
                inner.backward(y)
            gx, gw = x.grad, w.grad
            x.grad = w.grad = None
            with hooks:
                z = (gx * gw).sum()
            outer.backward(z)
        return x.grad.numpy(), w.grad.numpy()

    for found, expected in zip(second(copied()), second(nothing()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_derivatives_recorded_on_the_tape_itself():
    def second(hooks):
        x, w = (tensor(a) for a in SQUARES)
        with hooks, GradManager().attach([x, w]):
            gx, gw = grad(program(x, w), [x, w], create_graph=True)
            return [g.numpy() for g in grad((gx * gw).sum(), [x, w])]

    for found, expected in zip(second(copied()), second(nothing()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_forward_over_reverse():
    def along(hooks):
        x = tensor(SQUARES[0])
        gm = GradManager().attach(w := tensor(SQUARES[1]))
        with dual_level(), gm:
            with hooks:
                y = gnp.tanh(make_dual(x, tensor(SQUARES[1])) @ w).sum()
            gm.backward(y)
            return unpack_dual(w.grad).tangent.numpy()

    assert along(copied()).tobytes() == along(nothing()).tobytes()


def test_what_hooks_compute_is_not_recorded():
    x = tensor([1.0, 2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            y = gnp.exp(x).sum()
        assert len(inner._tape.entries) == 2
        before = len(outer._tape.entries)
        inner.backward(y)
        g, x.grad = x.grad, None
        assert len(outer._tape.entries) == before + 1  # the gradient of the sum, times what exp gave
        outer.backward(g.sum())
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-15)


def test_managers_in_hooks():
    def pack(t):
        own = GradManager().attach(v := tensor(t.numpy()))
        with own:
            own.backward((v * v).sum())
        return v.grad

    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        with saved_tensors_hooks(pack, lambda t: t / 2):
            y = (x * x).sum()
        gm.backward(y)
    assert x.grad.tolist() == [2.0, 4.0]


# ---------------------------------------------------------------- memory


def test_what_is_packed_is_freed_by_reference_counting():
    class Form:
        def __init__(self, t):
            self.values = t.numpy().copy()

    forms = []

    def pack(t):
        form = Form(t)
        forms.append(weakref.ref(form))
        return form

    gc.collect()
    gc.disable()
    try:
        x = tensor([1.0, 2.0])
        gm = GradManager().attach(x)
        with gm, saved_tensors_hooks(pack, lambda form: tensor(form.values)):
            y = gnp.exp(x)
            assert forms[0]() is not None
            del y
            gm._tape.sweep(everything=True)
            assert forms[0]() is None
            y = gnp.exp(x).sum()
            gm.backward(y)
            assert forms[1]() is None
        with gm, saved_tensors_hooks(pack, lambda form: tensor(form.values)):
            y = gnp.exp(x)
        assert forms[2]() is None
        hooks = saved_tensors_hooks(pack, lambda form: tensor(form.values))
        gone = weakref.ref(hooks)
        del hooks
        assert gone() is None
    finally:
        gc.enable()


def test_a_tensor_that_is_kept_as_it_is_may_be_written_to():
    kept = []
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            y = (x * x).sum()
        kept[0] *= 100
        kept[1][0] = 5.0
        gm.backward(y)
    assert x.grad.tolist() == [2.0, 4.0]


def test_memory_declared_overwritten():
    buffer = np.array([1.0, 2.0])

    def recorded(hooks):
        x = tensor([1.0, 2.0])
        gm = GradManager().attach(x)
        with gm:
            with hooks:
                y = (x * buffer).sum()
            increment_version(buffer)
            gm.backward(y)
        return x.grad.tolist()

    with pytest.raises(errors.StaleValueError, match="'multiply'"):
        recorded(saved_tensors_hooks(lambda t: t, lambda t: t))
    assert recorded(copied()) == [1.0, 2.0]  # the copy is as it was


# ---------------------------------------------------------------- errors


def test_a_pack_hook_that_raises():
    def pack(t):
        raise ZeroDivisionError("full")

    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2.0
        with saved_tensors_hooks(pack, lambda t: t):
            with pytest.raises(ZeroDivisionError, match="full") as caught:
                y *= x
            assert "value kept by op 'multiply'" in caught.value.__notes__[0]
            with pytest.raises(ZeroDivisionError):
                gnp.exp(y)
        assert [e[0] for e in gm._tape.entries] == ["multiply.x"]
        gm.backward(y.sum())
    assert x.grad.tolist() == [2.0, 2.0]


def test_pack_hooks_are_not_called_after_memory_was_written():
    def pack(t):
        raise ZeroDivisionError

    x, v = tensor([1.0, 2.0, 3.0]), tensor([5.0, 6.0])
    gm = GradManager().attach([x, v])
    with gm:
        h = x * 2.0
        with saved_tensors_hooks(pack, lambda t: t):
            h[np.array([2, 0])] = v  # the buffer of h is its own, and written to
        assert h.tolist() == [6.0, 4.0, 5.0]
        gm.backward(h, np.array([1.0, 10.0, 100.0]))
    assert x.grad.tolist() == [0.0, 20.0, 0.0]
    assert v.grad.tolist() == [100.0, 1.0]


@pytest.mark.parametrize(
    ("unpack", "error", "text"),
    [
        (lambda t: t.numpy(), TypeError, "gave ndarray; it must give the Tensor that was packed"),
        (lambda t: None, TypeError, "gave NoneType"),
        (lambda t: t[:1], ValueError, r"gave a Tensor of shape \(1,\); the one that was packed has \(2,\)"),
        (lambda t: t.astype("float32"), TypeError, "of dtype float32; the one that was packed has float64"),
        (lambda t: 1 / 0, ZeroDivisionError, "division"),
    ],
)
@pytest.mark.parametrize("order", ["once", "graph", "outer"])
def test_an_unpack_hook_that_gives_something_else(unpack, error, text, order):
    x = tensor([1.0, 2.0])
    gm, outer = GradManager().attach(x), GradManager().attach(x)
    with outer if order == "outer" else nothing(), gm:
        with saved_tensors_hooks(lambda t: t, unpack):
            y = gnp.exp(x).sum()
        run = (
            functools.partial(grad, y, x, create_graph=True) if order == "graph" else functools.partial(gm.backward, y)
        )
        with pytest.raises(error, match=text) as caught:
            run()
        said = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
        assert "op 'exp'" in said
        assert "<lambda>" in said
        assert x.grad is None
        assert gm._tape is None


def test_wrong_arguments():
    with pytest.raises(TypeError, match="pack_hook must be a function; found int"):
        saved_tensors_hooks(3, tensor)
    with pytest.raises(TypeError, match="unpack_hook must be a function; found NoneType"):
        saved_tensors_hooks(tensor, None)
    with pytest.raises(TypeError, match="takes the text of an error; found int"):
        disable_saved_tensors_hooks(3)
    with pytest.raises(ValueError, match=r"device_type='xpu'\): GPUs are 'cuda' here"):
        save_on_cpu(device_type="xpu")


def test_disabled_hooks_raise_the_given_error():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with disable_saved_tensors_hooks("outer"):
        with disable_saved_tensors_hooks("not now"), pytest.raises(RuntimeError, match=r"^not now$"), copied():
            raise AssertionError
        with pytest.raises(errors.HooksDisabledError, match=r"^outer$"), save_on_cpu():
            raise AssertionError
        with gm:
            gm.backward((x * x).sum())
    with copied(), pytest.raises(RuntimeError, match=r"^no$"), disable_saved_tensors_hooks("no"):
        raise AssertionError
    with copied(), gm:
        gm.backward((x * x).sum())
    assert x.grad.tolist() == [4.0, 8.0]

    @disable_saved_tensors_hooks("in here")
    def function():
        with copied():
            pass

    with pytest.raises(RuntimeError, match="in here"):
        function()


def test_the_vjp_table_has_packed_entries():
    gradients_of_program(copied())
    codes = [code for code in VJPS if code.endswith(".packed")]
    assert codes
    assert all(code.count(".packed") == 1 for code in codes)


# ---------------------------------------------------------------- the host


def test_host_values_are_not_moved():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as gm:
        with save_on_cpu(pin_memory=True):
            y = gnp.exp(x).sum()
        assert gm._tape.nbytes() == x.nbytes
        gm.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]), rtol=1e-15)


def on_and_off(cupy, hooks, a, b):
    """Gradients on a GPU, and how many bytes of it the tape kept."""
    x, w = tensor(cupy.asarray(a)), tensor(cupy.asarray(b))
    gm = GradManager().attach([x, w])
    with gm:
        with hooks:
            y = gnp.tanh(x @ w.T)
            y = (y * gnp.exp(x.T)[::-1, ::2].repeat(2, axis=1) * y[0]).sum()
        kept = gm._tape.nbytes()
        gm.backward(y)
    assert x.grad.device == w.grad.device == "cuda:0"
    return x.grad._array.get(), w.grad._array.get(), kept


def test_gpu_values_of_the_guard_are_moved_to_the_host(cupy):
    *found, kept = on_and_off(cupy, save_on_cpu(), *SQUARES)
    *expected, before = on_and_off(cupy, nothing(), *SQUARES)
    assert kept == 0 < before
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("pin_memory", [False, True])
def test_gpu_values_are_moved_to_the_host(pin_memory):
    cupy = cupy_on_a_gpu()
    *found, kept = on_and_off(cupy, save_on_cpu(pin_memory), *SQUARES)
    *expected, before = on_and_off(cupy, nothing(), *SQUARES)
    assert kept == 0 < before
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()
