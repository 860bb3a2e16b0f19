"""Hooks of modules: with keyword arguments, in front of others, and on the gradients of a call."""

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, forward_ad, functional, nn, tensor


class Scale(nn.Module):
    def forward(self, x, *, by=1.0):
        return x * by


class Two(nn.Module):
    def forward(self, x, y, power):
        return x * y, y**power


def test_hooks_with_keywords_see_and_replace_them():
    net, seen = Scale(), []
    with (
        net.register_forward_pre_hook(lambda m, args, kwargs: (args, {"by": kwargs["by"] + 1}), with_kwargs=True),
        net.register_forward_hook(
            lambda m, args, kwargs, result: seen.append((args, kwargs, result)), with_kwargs=True
        ),
    ):
        assert net(2.0, by=3.0) == 8.0
    assert seen == [((2.0,), {"by": 4.0}, 8.0)]
    with net.register_forward_hook(lambda m, args, kwargs, result: result + kwargs["by"], with_kwargs=True):
        assert net(2.0, by=3.0) == 9.0
    with (
        net.register_forward_pre_hook(lambda m, args, kwargs: 5.0, with_kwargs=True),
        pytest.raises(TypeError, match=r"returns None or a pair \(args, kwargs\); found float"),
    ):
        net(2.0)


def test_a_prepended_hook_is_called_first():
    net, order = Scale(), []
    for name in "ab":
        net.register_forward_pre_hook(lambda m, args, name=name: order.append(name), prepend=name == "b")
        net.register_forward_hook(lambda m, args, result, name=name: order.append(name + name), prepend=name == "b")
    net(1.0)
    assert order == ["b", "a", "bb", "aa"]


def test_a_backward_hook_sees_the_gradients_of_its_call_alone():
    """Other uses of the argument, and of the result, count where they belong."""
    net, seen = Two(), []
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append((module, inputs, outputs)))
    x, y = tensor([2.0]), tensor([3.0])
    gm = GradManager().attach([x, y])
    with gm:
        product, power = net(x, y, 2)
        gm.backward((product * 10 + power + x * 7).sum())
    ((module, inputs, outputs),) = seen
    assert module is net
    assert [None if g is None else g.tolist() for g in inputs] == [[30.0], [26.0], None]
    assert [g.tolist() for g in outputs] == [[10.0], [1.0]]
    assert x.grad.tolist() == [37.0]
    assert y.grad.tolist() == [26.0]


def test_a_backward_hook_replaces_the_gradients_of_the_arguments():
    net, x = Scale(), tensor([2.0])
    gm = GradManager().attach(x)
    with net.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 100,)), gm:
        gm.backward(net(x, by=3.0))
    assert x.grad.tolist() == [300.0]
    x.grad = None
    with net.register_full_backward_hook(lambda *_: (None, None)), gm, pytest.raises(TypeError, match="found 2 for 1"):
        gm.backward(net(x, by=3.0))


def test_a_backward_hook_of_a_module_whose_arguments_are_constants():
    net, seen = nn.Linear(2, 1, rng=np.random.default_rng(0)), []
    gm = GradManager().attach(dict(net.named_parameters()))
    with (
        net.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs, outputs[0].tolist()))),
        gm,
    ):
        gm.backward(net(np.ones((1, 2), "f4")) * 3)
    assert seen == [((None,), [[3.0]])]
    assert net.bias.grad.tolist() == [3.0]


def test_backward_hooks_in_second_derivatives_and_forward_mode():
    net, x = Two(), tensor(2.0)
    net.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2, *inputs[1:]))
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(net(x, 3.0, 1)[0] * x)
        first = x.grad
        x.grad = None
        outer.backward(first)
    assert first.item() == 3 * 2 + 2 * 6  # from the second factor, and twice what comes through the module
    assert x.grad.item() == 2 * 3 + 2 * 3  # the outer backward comes through the module, too: 9 without the hook there
    with forward_ad.dual_level():
        z = net(forward_ad.make_dual(x, tensor(1.0)), 3.0, 1)[0]
        assert forward_ad.unpack_dual(z).tangent.item() == 3.0


@pytest.mark.parametrize("way", ["create_graph", "two managers", "transforms"])
def test_a_backward_hook_is_called_in_each_backward_of_the_results_and_in_no_other(way):
    """The derivative of 3 x**2 does not come through the module's result, that of (x**3)**2 does: torch's numbers."""

    class Cube(nn.Module):
        def forward(self, x):
            return x**3

    net, seen, x = Cube(), [], tensor([2.0])
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs[0].item(), outputs[0].item())))

    def second(f):
        seen.append("first")
        if way == "transforms":
            return functional.grad(lambda x: second_step(functional.grad(f)(x)))(x).item()
        if way == "create_graph":
            with GradManager().attach(x):
                (g,) = gradmgr.grad(f(x), x, create_graph=True)
                return gradmgr.grad(second_step(g), x)[0].item()
        outer, inner = GradManager().attach(x), GradManager().attach(x)
        with outer:
            with inner:
                inner.backward(f(x))
            g, x.grad = x.grad, None
            outer.backward(second_step(g))
        h, x.grad = x.grad, None
        return h.item()

    def second_step(g):
        seen.append("second")
        return g.sum()

    assert second(lambda x: net(x).sum()) == 12.0
    assert seen == ["first", (12.0, 1.0), "second"]
    seen.clear()
    assert second(lambda x: (net(x) ** 2).sum()) == 480.0
    assert seen == ["first", (192.0, 16.0), "second", (480.0, 24.0)]


def test_without_a_recording_nothing_is_called():
    net, x = Scale(), tensor([1.0])
    net.register_full_backward_hook(lambda *_: pytest.fail("called"))
    assert net(x, by=2.0).tolist() == [2.0]
