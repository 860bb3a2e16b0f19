"""Module and Parameter: what is registered, called, moved, saved, loaded."""

import copy
import pickle
import threading

import numpy as np
import pytest
from small_modules import Affine, Net, values_of

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, nn, tensor
from gradmgr._engine import write_lock


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # our own bytes


# ---------------------------------------------------------------- Parameter


def test_parameter_copies():
    data = np.ones(2)
    p = nn.Parameter(data)
    q = nn.Parameter(p)
    data[0] = 5
    p[1] = 7
    assert (p.tolist(), q.tolist()) == ([1, 7], [1, 1])
    assert nn.Parameter([1, 2], dtype="float32").dtype == np.float32


def test_parameter_stays_one():
    p = nn.Parameter([[1.0, 2.0], [3.0, 4.0]])
    p.grad = tensor(np.ones((2, 2)))
    for twin in (copy.deepcopy(p), copy.copy(p), pickled(p)):
        assert type(twin) is nn.Parameter
        assert twin is not p
        assert twin.tolist() == p.tolist()
    assert copy.deepcopy(p).grad.tolist() == [[1, 1], [1, 1]]
    same = p
    p -= 0.5 * p.grad
    p[0] = 9
    p *= nn.Parameter(2.0)
    assert p is same
    assert type(p) is nn.Parameter
    assert p.tolist() == [[18, 18], [5, 7]]


def test_parameter_gives_tensors():
    p = nn.Parameter([1.0, 2.0])
    t = tensor([3.0, 4.0])
    for made in (p * t, t * p, p + p, -p, p[0], p.sum(), gnp.exp(p), np.sin(p), 2 - p, np.ones(2) * p, p.detach()):
        assert type(made) is gradmgr.Tensor
    assert (t * p).tolist() == [3, 8]


def test_deepcopy_of_parameter_is_its_own():
    p = nn.Parameter([1.0])
    q = copy.deepcopy(p)
    q += 1
    assert p.tolist() == [1]


def test_parameter_must_carry_gradients():
    with pytest.raises(errors.DtypeError, match=r"dtype int64 could receive no gradient.*register_buffer"):
        nn.Parameter([1, 2])
    with pytest.raises(TypeError):
        nn.Parameter(np.array([True]))


def test_repr_of_parameter():
    assert repr(nn.Parameter(np.ones(2, "f4"))) == "Parameter([1., 1.], dtype=float32)"
    assert repr(nn.Parameter(np.eye(2))) == "Parameter([[1., 0.],\n           [0., 1.]])"


# ---------------------------------------------------------------- what is registered


def test_names():
    net = Net()
    names = ["first.weight", "first.bias", "inner.last.weight", "inner.last.bias"]
    assert [name for name, _ in net.named_parameters()] == names
    assert [name for name, _ in net.named_parameters(prefix="a")] == ["a." + name for name in names]
    assert list(net.named_parameters(recurse=False)) == []
    assert [id(p) for p in net.parameters()] == [id(p) for _, p in net.named_parameters()]
    assert [name for name, _ in net.named_buffers()] == ["scale", "scratch"]
    assert [b.shape for b in net.buffers()] == [(2,), (3,)]
    assert [name for name, _ in net.named_modules()] == ["", "first", "inner", "inner.last"]
    assert list(net.modules())[1] is net.first
    assert [name for name, _ in net.named_children()] == ["first", "inner"]
    assert list(net.children()) == [net.first, net.inner]
    assert {"first", "scale", "forward", "parameters"} <= set(dir(net))
    assert net.sizes == (2, 2)


def test_shared_ones_are_listed_once():
    net = Net()
    net.inner.last.weight = net.first.weight
    net.again = net.first
    assert [name for name, _ in net.named_parameters()] == ["first.weight", "first.bias", "inner.last.bias"]
    everywhere = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    assert everywhere == [
        *("first.weight", "first.bias", "inner.last.weight", "inner.last.bias", "again.weight", "again.bias")
    ]
    assert len(list(net.modules())) == 4
    assert [name for name, _ in net.named_modules(remove_duplicate=False)][-1] == "again"
    assert [name for name, _ in net.named_children()] == ["first", "inner"]
    assert list(net.state_dict()) == ["scale", *everywhere]


def test_getting_by_name():
    net = Net()
    assert net.get_submodule("") is net
    assert net.get_submodule("inner.last") is net.inner.last
    assert net.get_parameter("inner.last.bias") is net.inner.last.bias
    assert net.get_buffer("scale") is net.scale
    with pytest.raises(AttributeError, match=r"no module 'inner\.first': Module has no module 'first'; it has last"):
        net.get_submodule("inner.first")
    with pytest.raises(AttributeError, match=r"no parameter 'first\.w'.*it has weight, bias"):
        net.get_parameter("first.w")
    with pytest.raises(AttributeError, match="no buffer"):
        net.get_buffer("first.weight")


def test_assigning_what_is_registered():
    net = Affine()
    with pytest.raises(TypeError, match=r"Affine\.weight is registered as a parameter; found Tensor.*functional_call"):
        net.weight = tensor([1.0])
    net.bias = None
    assert [name for name, _ in net.named_parameters()] == ["weight"]
    assert list(net.state_dict()) == ["weight"]
    net.bias = nn.Parameter([1.0, 1.0])
    assert list(net.state_dict()) == ["weight", "bias"]
    del net.weight
    assert list(net.state_dict()) == ["bias"]
    with pytest.raises(AttributeError, match="has no attribute 'weight'"):
        net.weight
    net.weight = 3  # a plain attribute now
    assert list(net.state_dict()) == ["bias"]
    net.weight = nn.Parameter([1.0])
    net.bias = Affine()  # from a parameter to a module
    assert list(net.state_dict()) == ["weight", "bias.weight", "bias.bias"]
    with pytest.raises(TypeError, match="registered as a module; found int"):
        net.bias = 3


def test_buffers():
    net = Net()
    kept = net.scale
    net.scale = net.scale * 2
    assert net.scale is not kept
    assert [name for name, _ in net.named_buffers()] == ["scale", "scratch"]
    net.scale = np.ones(2)
    assert type(net.scale) is gradmgr.Tensor
    net.scratch = None
    assert [name for name, _ in net.named_buffers()] == ["scale"]
    with pytest.raises(TypeError, match=r"Net\.scale is a buffer.*found str"):
        net.scale = "two"
    with pytest.raises(TypeError, match="is a buffer"):
        net.register_buffer("more", [1.0])
    given = tensor([1.0])
    net.register_buffer("more", given)
    assert net.more is given
    net.plain = tensor([1.0])
    assert "plain" not in dict(net.named_buffers())


def test_registering_by_name():
    net = nn.Module()
    net.register_parameter("w", nn.Parameter([1.0]))
    net.register_parameter("none", None)
    net.add_module("m", Affine())
    net.register_module("n", None)
    assert list(net.state_dict()) == ["w", "m.weight", "m.bias"]
    assert net.none is None
    assert net.n is None
    with pytest.raises(TypeError, match=r"takes a Parameter or None; found Tensor.*nn\.Parameter"):
        net.register_parameter("x", tensor([1.0]))
    with pytest.raises(TypeError, match="takes a Module or None; found function"):
        net.register_module("x", lambda x: x)
    for bad in ("", "a.b"):
        with pytest.raises(ValueError, match="must not be empty or have a dot"):
            net.register_buffer(bad, None)
    with pytest.raises(TypeError, match="must be a string; found int"):
        net.register_module(1, Affine())
    with pytest.raises(ValueError, match="has an attribute 'forward' already"):
        net.register_parameter("forward", nn.Parameter([1.0]))
    with pytest.raises(ValueError, match="already"):
        net.register_buffer("w", None)
    assert list(net.state_dict()) == ["w", "m.weight", "m.bias"]


def test_init_was_not_called():
    class Forgot(nn.Module):
        def __init__(self, part):
            self.size = 3
            self.part = part

    for part in (nn.Parameter([1.0]), nn.Identity()):
        with pytest.raises(
            AttributeError, match=r"Forgot is not set up as a Module: call super\(\).__init__\(\) first"
        ):
            Forgot(part)
    plain = Forgot(3)
    for use in (plain, lambda: list(plain.parameters()), plain.state_dict, lambda: plain.training):
        with pytest.raises(AttributeError, match="not set up"):
            use()


def test_names_of_torchs_that_are_refused():
    with pytest.raises(
        AttributeError, match=r"no attribute 'requires_grad_': what receives gradients is the manager's"
    ):
        Net().requires_grad_(False)
    with pytest.raises(AttributeError, match=r"to\('cuda:0'\)"):
        Net().cuda()
    assert not hasattr(Net(), "requires_grad_")


# ---------------------------------------------------------------- calling


def test_forward_must_be_there():
    with pytest.raises(NotImplementedError, match="Module defines no forward"):
        nn.Module()(1)


def test_training_by_a_manager():
    net = Net()
    x, y = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    for tensors, name in ((dict(net.named_parameters()), "first.bias"), (net.parameters(), "of shape")):
        gm = GradManager().attach(tensors)
        before = values_of(net)
        with gm:
            gm.backward(((net(x) - y) ** 2).sum())
        grads = [p.grad for p in net.parameters()]
        assert all(g is not None for g in grads)
        assert name in gm.explain(net.first.bias)
        net.zero_grad()
        assert all(p.grad is None for p in net.parameters())
        assert values_of(net) == before
    residual = 2 * (net(x).numpy() - y) * [10, 100]
    assert np.allclose(grads[3].numpy(), residual[0])


def test_zero_grad_with_zeros():
    net = Affine()
    net.bias.grad = tensor([1.0, 2.0])
    net.zero_grad(set_to_none=False)
    assert net.bias.grad.tolist() == [0, 0]
    assert net.weight.grad is None


def test_hooks():
    net, seen = Affine(), []
    x = np.ones((1, 2))
    pre = net.register_forward_pre_hook(lambda module, args: seen.append((module, args)))
    post = net.register_forward_hook(lambda module, args, result: seen.append(result))
    y = net(x)
    assert seen[0][0] is net
    assert seen[0][1][0] is x
    assert seen[1] is y
    pre.remove()
    post.remove()
    net(x)
    assert len(seen) == 2
    with net.register_forward_pre_hook(lambda module, args: 2 * args[0]):
        doubled = net(x)
    assert doubled.tolist() == [[8.5, 11.5]]
    with (
        net.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        net.register_forward_hook(lambda module, args, result: (result, args[0])),
    ):
        assert net(x)[1].tolist() == [[2, 2]]
    assert net(x).tolist() == y.tolist()
    with pytest.raises(TypeError, match="register_forward_hook takes a function"):
        net.register_forward_hook(3)


def test_train_eval_apply():
    net, order = Net(), []
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    net.first.train()
    assert [module.training for module in net.modules()] == [False, True, False, False]
    assert net.train().inner.last.training
    with pytest.raises(TypeError, match="True or False; found int"):
        net.train(1)
    assert net.apply(lambda module: order.append(module)) is net
    assert order == [net.first, net.inner.last, net.inner, net]


def test_train_calls_the_method_of_a_nested_module_that_overrides_it():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    model = nn.Sequential(nn.Sequential(nn.Dropout(0.5), Frozen()), nn.Dropout(0.5))
    model.eval()
    assert not any(module.training for module in model.modules())
    model.train()
    assert [name for name, module in model.named_modules() if not module.training] == ["0.1.norm"]


# ---------------------------------------------------------------- moving


def test_casting_keeps_the_tensors():
    net = Net()
    net.register_buffer("count", np.array(3))
    weight, scale = net.first.weight, net.scale
    weight.grad = tensor(np.ones((2, 2)))
    gm = GradManager().attach(net.parameters())
    assert net.float() is net
    assert net.first.weight is weight
    assert net.scale is scale
    assert (weight.dtype, weight.grad.dtype, scale.dtype, net.count.dtype) == (*["float32"] * 3, "int64")
    net.first.weight.grad = None
    with gm:
        gm.backward(net(np.ones((1, 2), "float32")).sum())
    assert weight.grad.dtype == np.float32
    assert type(weight) is nn.Parameter
    assert net.half().scale.dtype == np.float16
    assert net.double().scale.dtype == np.float64
    for how in (("float32",), (np.float32, "cpu"), ("cpu", np.float32)):
        assert net.double().to(*how).scale.dtype == np.float32
    assert net.to(dtype="float64", device="cpu").scale.dtype == np.float64
    assert net.to("complex128").scale.dtype == np.complex128
    assert net.float().scale.dtype == np.complex128


def test_casts_that_are_refused():
    net = Net()
    net.register_buffer("phase", np.array(1j))
    for bad, says in (
        ((), "found none"),
        (("cpu", "cpu"), "two devices"),
        ((np.float32, np.float64), "two dtypes"),
        ((np.int64,), "can carry gradients"),
        (("mps",), "'mps' is neither a device, 'cpu' or 'cuda:0', nor a dtype"),
        ((np.float32,), "would drop the imaginary part of phase"),
    ):
        with pytest.raises(TypeError, match=says):
            net.to(*bad)
    with pytest.raises(ValueError, match="cuda:x"):
        net.to(device="cuda:x")
    assert net.scale.dtype == np.float64


# ---------------------------------------------------------------- state


def test_state_is_of_now():
    net = Net()
    state = net.state_dict()
    assert list(state) == ["scale", "first.weight", "first.bias", "inner.last.weight", "inner.last.bias"]
    assert {type(t) for t in state.values()} == {gradmgr.Tensor}
    before = state["first.bias"].tolist()
    net.first.bias += 1
    assert state["first.bias"].tolist() == before
    assert next(iter(net.state_dict(prefix="model."))) == "model.scale"


def test_loading_keeps_the_tensors():
    net, other = Net(), Net()
    other.first.weight[...] = 7
    other.scale *= 3
    own = dict(net.named_parameters())
    gm = GradManager().attach(own)
    assert net.load_state_dict(other.state_dict()) == ([], [])
    assert values_of(net) == values_of(other)
    assert all(p is own[name] for name, p in net.named_parameters())
    other.first.weight[...] = 8
    assert net.first.weight.tolist() == [[7, 7], [7, 7]]
    with gm:
        gm.backward(net(np.ones((1, 2))).sum())
    assert net.first.weight.grad is not None


class Torchlike:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        if self.values is None:
            raise RuntimeError("call detach() first")
        return np.asarray(self.values, dtype)


def test_loading_arrays_of_all_kinds():
    net = Affine()
    net.register_buffer("count", np.array(0))
    found = net.load_state_dict({"weight": Torchlike([[1, 2.5], [3, 4]]), "bias": np.float32([5, 6]), "count": 4})
    assert found.missing_keys == []
    assert values_of(net) == {"weight": [[1, 2.5], [3, 4]], "bias": [5, 6], "count": 4}
    assert net.bias.dtype == np.float64


def test_misfits_are_all_listed():
    net = Net()
    net.register_buffer("count", np.array(0))
    net.register_buffer("small", np.zeros(2, np.int8))
    before = values_of(net)
    state = {
        "small": np.array([1, 300]),
        "first.weight": np.zeros((2, 3)),
        "first.bias": np.zeros(2, int),
        "inner.last.weight": [[1.0, 2.0], [3.0, 4.0]],
        "inner.last.bias": Torchlike(None),
        "count": np.array(0.5),
        "scale": np.ones(2),
        "second.bias": np.zeros(2),
    }
    with pytest.raises(errors.StateError) as caught:
        net.load_state_dict(state)
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "load_state_dict: the state does not fit Net; nothing was changed:"
    assert sorted(lines[1:]) == [
        "count: dtype float64 in the state, int64 here",
        "first.bias: dtype int64 in the state, float64 here",
        "first.weight: shape (2, 3) in the state, (2, 2) here",
        "inner.last.bias: not an array: call detach() first",
        "inner.last.weight: not an array: list",
        "second.bias: unexpected, Net has no such name",
        "small: int64 values in the state that int8 cannot hold",
    ]
    assert values_of(net) == before
    with pytest.raises(errors.StateError, match=r"first\.weight: missing in the state\n"):
        net.load_state_dict({})
    with pytest.raises(TypeError, match="takes a mapping"):
        net.load_state_dict([("scale", 1)])


def test_loading_a_part():
    net = Net()
    found = net.load_state_dict({"scale": np.zeros(2), "other": np.ones(1)}, strict=False)
    assert found.missing_keys == ["first.weight", "first.bias", "inner.last.weight", "inner.last.bias"]
    assert found.unexpected_keys == ["other"]
    assert net.scale.tolist() == [0, 0]
    with pytest.raises(errors.StateError, match="shape"):
        net.load_state_dict({"scale": np.zeros(3)}, strict=False)


def test_loading_tied_weights():
    net = Net()
    net.inner.last.weight = net.first.weight
    state = net.state_dict()
    assert state.keys() >= {"first.weight", "inner.last.weight"}
    one = {name: value for name, value in state.items() if name != "inner.last.weight"}
    assert net.load_state_dict(one) == ([], [])
    state["inner.last.weight"] = np.zeros((2, 2))
    with pytest.raises(errors.StateError, match=r"is one tensor with first\.weight here"):
        net.load_state_dict(state)
    state["inner.last.weight"] = state["first.weight"].numpy().copy()
    net.load_state_dict(state, assign=True)
    assert net.inner.last.weight is net.first.weight


def test_loading_by_assignment():
    net = Net()
    old, values = net.first.weight, np.full((2, 2), 3, np.float32)
    state = {**net.state_dict(), "first.weight": values}
    net.load_state_dict(state, assign=True)
    assert net.first.weight is not old
    assert type(net.first.weight) is nn.Parameter
    assert type(net.scale) is gradmgr.Tensor
    assert net.first.weight.dtype == np.float32
    net.first.weight += 1
    assert values[0, 0] == 3


def test_loading_is_not_recorded():
    net = Affine()
    gm = GradManager().attach(net.parameters())
    with gm:
        y = net(np.ones((1, 2))).sum()
        net.load_state_dict({"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
        gm.backward(y)
    assert net.bias.grad.tolist() == [1, 1]
    assert net.weight.tolist() == [[0, 0], [0, 0]]


def test_copies_of_modules():
    net = Net()
    net.inner.last.weight = net.first.weight
    net.register_forward_hook(print)
    for twin in (copy.deepcopy(net), pickled(net)):
        assert values_of(twin) == values_of(net)
        assert twin.inner.last.weight is twin.first.weight
        assert twin.first.weight is not net.first.weight
        twin.first.bias += 1
        assert values_of(twin) != values_of(net)
        assert [name for name, _ in twin.named_buffers()] == ["scale", "scratch"]
        assert "scratch" not in twin.state_dict()


def test_repr_is_a_tree():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), gnp.tanh), nn.Flatten())
    assert repr(net) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): tanh\n"
        "  )\n"
        "  (2): Flatten(start_dim=1, end_dim=-1)\n"
        ")"
    )
    assert repr(Net()).startswith("Net(\n  (first): Affine()\n  (inner): Module(\n    (last): Affine()\n  )\n)")


def test_a_state_is_read_and_written_before_or_after_what_another_thread_writes():
    net = Net()
    state = net.state_dict()
    for work in (net.state_dict, lambda: net.load_state_dict(state)):
        thread = threading.Thread(target=work)
        with write_lock.lock:  # as a step of an optimiser holds it
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()
        thread.join()
