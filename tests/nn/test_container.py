"""Sequential, ModuleList, ModuleDict, ParameterList."""

import copy

import numpy as np
import pytest
from small_modules import Affine

import gradmgr.numpy as gnp
from gradmgr import nn, tensor


def test_sequential():
    a, b, c = Affine(), nn.Identity(), Affine()
    net = nn.Sequential(a, b)
    assert net.append(c) is net
    assert len(net) == 3
    assert list(net) == [a, b, c]
    assert net[0] is a
    assert net[-1] is c
    assert list(net[1:]) == [b, c]
    assert type(net[:1]) is nn.Sequential
    assert list(net[1:].state_dict()) == ["2.weight", "2.bias"]
    x = np.ones((1, 2))
    assert net(x).tolist() == c(a(x)).tolist()
    assert nn.Sequential()(3) == 3
    net[1] = gnp.exp
    assert net(x).tolist() == c(gnp.exp(a(x))).tolist()
    assert net.pop(1)(1.0) == np.exp(1)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    net.insert(0, b)
    del net[1]
    assert list(net) == [b, c]
    assert c in net
    assert a not in net
    del net[:]
    assert len(net) == 0
    with pytest.raises(IndexError, match="has 0 modules, and no position 1"):
        net[1]


def test_sequential_of_names():
    net = nn.Sequential({"first": Affine(), "act": nn.functional.relu, "last": Affine()})
    assert list(net.state_dict()) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert net.act is net[1]
    assert repr(net) == "Sequential(\n  (first): Affine()\n  (act): relu\n  (last): Affine()\n)"
    assert list(net[1:].state_dict()) == ["last.weight", "last.bias"]
    net.append(nn.Identity())
    assert [name for name, _ in net.named_children()][-1] == "3"


def test_sequential_of_functions_is_copied():
    net = nn.Sequential(Affine(), gnp.tanh, nn.functional.relu)
    x = np.ones((1, 2))
    twin = copy.deepcopy(net)
    twin[0].weight += 1
    assert twin(x).tolist() == nn.functional.relu(gnp.tanh(twin[0](x))).tolist() != net(x).tolist()


@pytest.mark.parametrize("kind", [nn.Sequential, lambda *modules: nn.ModuleList(modules)])
def test_elements_must_be_modules(kind):
    with pytest.raises(TypeError, match=r"found the class ReLU: call it, ReLU\(\.\.\.\)"):
        kind(nn.ReLU)
    net = kind(nn.Identity())
    with pytest.raises(TypeError, match="found int"):
        net.extend([nn.Identity(), 3])
    assert len(net) == 1


def test_module_list():
    layers = nn.ModuleList(Affine() for _ in range(3))
    layers.append(nn.Identity()).extend([nn.Identity()])
    assert len(list(layers.parameters())) == 6
    assert type(layers[1:]) is nn.ModuleList
    assert list(layers[2:].state_dict()) == ["0.weight", "0.bias"]
    assert repr(layers) == "ModuleList(\n  (0-2): 3 x Affine()\n  (3-4): 2 x Identity()\n)"
    assert repr(nn.ModuleList()) == "ModuleList()"
    first = layers[0]
    layers[0] = nn.Identity()
    assert first not in layers
    with pytest.raises(TypeError, match="holds Modules; found function"):
        layers.append(lambda x: x)
    with pytest.raises(NotImplementedError):
        layers(1)


def test_module_dict():
    heads = nn.ModuleDict({"a": Affine(), "b": nn.Identity()})
    heads["c"] = Affine()
    assert list(heads) == list(heads.keys()) == ["a", "b", "c"]
    assert len(heads) == 3
    assert "b" in heads
    assert heads["b"] is dict(heads.items())["b"] is list(heads.values())[1]
    assert list(heads.state_dict()) == ["a.weight", "a.bias", "c.weight", "c.bias"]
    gone = heads.pop("a")
    assert isinstance(gone, Affine)
    del heads["b"]
    for key in ("b", "training", "keys"):
        with pytest.raises(KeyError):
            del heads[key]
    with pytest.raises(ValueError, match="has an attribute 'keys' already"):
        heads["keys"] = nn.Identity()
    with pytest.raises(TypeError, match="found function as 'g'"):
        heads.update({"f": nn.Identity(), "g": gnp.exp})
    assert list(heads) == ["c"]
    heads.clear()
    assert list(heads.parameters()) == []


def test_parameter_list():
    p = nn.Parameter([1.0])
    ps = nn.ParameterList([p, np.zeros(2), tensor([2.0])])
    assert ps[0] is p
    assert all(type(q) is nn.Parameter for q in ps)
    assert list(ps.state_dict()) == ["0", "1", "2"]
    assert [q.shape for q in ps[1:]] == [(2,), (1,)]
    ps.append(p)
    assert [id(q) for q in ps.parameters()] == [id(q) for q in list(ps)[:3]]
    ps[-1] = np.ones(4)
    assert len(ps) == 4
    assert ps[3].shape == (4,)
    with pytest.raises(TypeError, match="found str"):
        ps.extend(["one"])
    assert repr(ps[1:2]) == "ParameterList(\n  (0): Parameter of shape (2,) and dtype float64\n)"
    assert repr(nn.ParameterList()) == "ParameterList()"
