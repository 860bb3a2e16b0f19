"""functional_call: a module with other tensors, differentiable, in threads, and without a trace."""

import gc
import threading
import weakref

import numpy as np
import pytest
from small_modules import Affine, Net, values_of

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, nn, tensor


def test_functional_call():
    net = Net()
    before, x = values_of(net), np.array([[1.0, 2.0]])
    given = {"first.weight": tensor(np.zeros((2, 2))), "first.bias": tensor([1.0, 2.0])}
    assert nn.functional_call(net, given, (x,)).tolist() == [[20, 400]]
    assert nn.functional_call(net, given, x).tolist() == [[20, 400]]
    assert nn.functional_call(net, {}, (), {"x": x}).tolist() == net(x).tolist()
    assert values_of(net) == before


def test_functional_call_is_differentiable():
    net = Net()
    weight = tensor([[1.0, 0.0], [0.0, 1.0]])
    gm = GradManager().attach(weight)
    with gm:
        moved = weight * 3
        gm.backward(nn.functional_call(net, {"first.weight": moved}, np.array([[1.0, 2.0]])).sum())
    assert weight.grad.tolist() == [[60, 600], [120, 1200]]
    assert net.first.weight.grad is None


def test_functional_call_refuses():
    net = Net()
    net.inner.last.weight = net.first.weight
    one, two = tensor(np.zeros((2, 2))), tensor(np.zeros((2, 2)))
    with pytest.raises(errors.StateError) as caught:
        nn.functional_call(net, {"w": one, "first.bias": one, "first.weight": one, "inner.last.weight": two}, 1.0)
    assert str(caught.value).split("\n  ")[1:] == [
        "w: Net has no parameter or buffer of this name",
        "first.bias: shape (2, 2) given, (2,) in the module",
        "inner.last.weight: is one tensor with first.weight in the module, and two were given",
    ]
    with pytest.raises(TypeError, match=r"'scale' must be a Tensor; found ndarray.*gradmgr\.tensor"):
        nn.functional_call(net, {"scale": np.ones(2)}, 1.0)
    with pytest.raises(TypeError, match="calls a Module; found function"):
        nn.functional_call(gnp.exp, {}, 1.0)
    with pytest.raises(TypeError, match="takes a mapping"):
        nn.functional_call(net, [one], 1.0)


def test_functional_call_with_tied_weights():
    net = Net()
    net.inner.last.weight = net.first.weight
    given, x = tensor([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 2.0]])
    expected = ((x @ given + net.first.bias) @ given) * net.scale
    for name in ("first.weight", "inner.last.weight"):
        assert nn.functional_call(net, {name: given}, x).tolist() == expected.tolist()


class Busy(nn.Module):
    """Does in forward what modules do there."""

    def __init__(self):
        super().__init__()
        self.inner = Affine()
        self.listed = [self.inner, nn.Identity()]
        self.method = self.inner.forward
        self.register_buffer("mean", np.zeros(2))
        self.register_buffer("count", np.array(0))
        self.calls = 0

    def forward(self, x, fail=False):
        self.calls += 1
        self.last = self.inner
        self.mean = 0.5 * self.mean + x.sum(0)
        self.count += 1
        self.more = nn.Parameter([1.0])
        if fail:
            raise RuntimeError("asked for")
        return self.inner(x) + self.listed[0](x) + self.method(x) + sum(p.sum() for p in self.inner.parameters())


def test_functional_call_of_a_module_that_assigns_in_forward():
    net, twin = Busy(), Busy()
    x = np.ones((1, 2))
    net.inner.weight[...] = 5
    given = {name: tensor(t.numpy()) for name, t in twin.state_dict().items()}
    assert nn.functional_call(net, given, x).tolist() == twin(x).tolist()
    assert net.calls == 1
    assert net.last is net.inner
    assert given["mean"].tolist() == [1, 1]
    assert given["count"].item() == 1
    assert net.mean.tolist() == [0, 0]
    assert net.count.item() == 0
    assert isinstance(net.inner.weight, nn.Parameter)
    assert net.inner.weight.tolist() == [[5, 5], [5, 5]]
    assert "more" in dict(net.named_parameters())
    with pytest.raises(RuntimeError, match="asked for"):
        nn.functional_call(net, {"inner.weight": given["inner.weight"]}, x, {"fail": True})
    assert net.calls == 2
    assert net.mean.tolist() == [1, 1]  # it was not given, so it is the module's that changes
    assert net.inner.weight.tolist() == [[5, 5], [5, 5]]
    assert net(x).tolist() != twin(x).tolist()


class Slotted(nn.Module):
    """Has attributes outside of __dict__, and takes some away."""

    __slots__ = ("factor", "unset")

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter([1.0])
        self.old = nn.Parameter([1.0])
        object.__setattr__(self, "factor", 3)

    def forward(self, x):
        if "old" in self.__dict__:
            del self.old
            self.plain = 1
            del self.plain
        return self.factor * x * self.weight


def test_functional_call_of_a_module_that_deletes_attributes():
    net = Slotted()
    assert nn.functional_call(net, {"weight": tensor([2.0])}, 1.0).tolist() == [6]
    assert list(net.state_dict()) == ["weight"]
    assert not hasattr(net, "old")
    assert not hasattr(net, "plain")
    with pytest.raises(AttributeError):
        del net.old


def test_functional_call_keeps_nothing_alive():
    net, weight = Net(), tensor(np.ones((2, 2)))
    gone = weakref.ref(weight)
    gc.disable()
    try:
        nn.functional_call(net, {"first.weight": weight}, np.ones((1, 2)))
        del weight
        assert gone() is None
    finally:
        gc.enable()


def test_functional_call_in_threads():
    net, results = Net(), {}
    meet = threading.Barrier(2, timeout=20)
    net.first.register_forward_hook(lambda *_: meet.wait() * 0 or None)

    def call(value):
        given = {"inner.last.weight": tensor(np.full((2, 2), value))}
        results[value] = nn.functional_call(net, given, np.ones((1, 2))).tolist()

    threads = [threading.Thread(target=call, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1.0: [[100, 1000]], 2.0: [[200, 2000]]}


def test_functional_call_and_checkpoint():
    """What a checkpoint runs again in backward must be run with the tensors of the call."""

    class Saving(Net):
        def forward(self, x):
            return gradmgr.checkpoint(self.first, x).sum()

    weight = tensor([[2.0, 0.0], [0.0, 2.0]])
    gm = GradManager().attach(weight)
    with gm:
        moved = weight * weight
        gm.backward(nn.functional_call(Saving(), {"first.weight": moved}, tensor([[1.0, 3.0]])))
    assert weight.grad.tolist() == [[4, 0], [0, 12]]


def adapted_loss(net, x, y, params, steps):
    """The loss after steps of gradient descent: the inner half of MAML."""
    for _ in range(steps):
        inner = GradManager().attach(list(params.values()))
        with inner:
            loss = ((nn.functional_call(net, params, x) - y) ** 2).mean()
            grads = gradmgr.grad(loss, list(params.values()), create_graph=True)
        params = {name: p - 0.1 * g for (name, p), g in zip(params.items(), grads, strict=True)}
    return ((nn.functional_call(net, params, x) - y) ** 2).mean()


def test_gradients_through_steps_of_descent():
    rng = np.random.default_rng(3)
    net = nn.Sequential(nn.Linear(2, 3, dtype="float64", rng=rng), gnp.tanh, nn.Linear(3, 1, dtype="float64", rng=rng))
    x, y = rng.standard_normal((5, 2)), rng.standard_normal((5, 1))
    params = dict(net.named_parameters())
    gm = GradManager().attach(params)
    with gm:
        gm.backward(adapted_loss(net, x, y, params, steps=2))
    for p in net.parameters():
        analytic, values, numeric = p.grad.numpy(), p.numpy().copy(), np.zeros(p.shape)
        for k in np.ndindex(p.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = values.copy()
                moved[k] += step
                p[...] = moved
                ends.append(adapted_loss(net, x, y, params, steps=2).item())
            numeric[k] = (ends[0] - ends[1]) / 2e-5
        p[...] = values
        assert np.abs(numeric).max() > 1e-4
        assert np.allclose(analytic, numeric, rtol=1e-6, atol=1e-9)
