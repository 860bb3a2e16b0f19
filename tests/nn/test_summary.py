"""nn.summary: what the table says, and that it changes nothing."""

import numpy as np
import pytest

from gradmgr import GradManager, nn, tensor


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.table = nn.Embedding(10, 4, rng=rng)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4, rng=rng), nn.Dropout(0.5, rng=rng)) for _ in range(2))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, rng=rng)
        self.head.weight = self.table.weight
        self.unused = nn.ReLU()
        self.calls = 0

    def forward(self, x, *, twice=False):
        self.calls += 1
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x.reshape(-1, 4))
        return (self.head(x), x) if twice else self.head(x)


FULL = """\
layer     type         output             parameters
--------  -----------  -----------------  ----------
(model)   Tied         (15, 10), (15, 4)          98
  table   Embedding    (3, 5, 4)                  40
  blocks  ModuleList   -                          40
    0     Sequential   (3, 5, 4)                  20
      0   Linear       (3, 5, 4)                  20
      1   Dropout      (3, 5, 4)                   0
    1     Sequential   (3, 5, 4)                  20
      0   Linear       (3, 5, 4)                  20
      1   Dropout      (3, 5, 4)                   0
  norm    BatchNorm1d  (15, 4)                     8
  head    Linear       (15, 10)                   50
  unused  ReLU         -                           0
--------  -----------  -----------------  ----------
98 parameters (392 B), 9 elements in buffers (40 B)"""


def test_the_table():
    assert nn.summary(Tied(), np.zeros((3, 5), int), twice=True) == FULL


def test_without_inputs_nothing_is_called():
    net = Tied()
    lines = nn.summary(net).splitlines()
    assert lines[0].split() == ["layer", "type", "parameters"]
    assert lines[2].split() == ["(model)", "Tied", "98"]
    assert net.calls == 0


def test_plain_functions_go_by_their_names():
    net = nn.Sequential(nn.Linear(2, 2), np.tanh)
    assert nn.summary(net, np.zeros((1, 2), "float32")).splitlines()[4].split() == ["1", "tanh", "(1,", "2)", "0"]


def test_depth():
    net = Tied()
    x = np.zeros((3, 5), int)
    assert len(nn.summary(net, x, depth=0).splitlines()) == 5
    assert len(nn.summary(net, x, depth=1).splitlines()) == 10
    assert nn.summary(net, x, depth=9) == nn.summary(net, x)
    assert "(3, 5, 4)" not in nn.summary(net, x, depth=0)
    with pytest.raises(ValueError, match="depth must be at least 0; found -1"):
        nn.summary(net, depth=-1)
    with pytest.raises(TypeError, match="depth must be an integer"):
        nn.summary(net, depth="all")


def test_large_numbers_can_be_read():
    net = nn.Linear(1000, 2000, bias=False, dtype="float64")
    assert nn.summary(net).splitlines()[-1] == "2,000,000 parameters (15.26 MiB), 0 elements in buffers (0 B)"
    assert "2,000,000" in nn.summary(net).splitlines()[2]


def test_nothing_changes():
    net, seen = Tied(), []
    net.norm.eval()
    handle = net.head.register_forward_hook(lambda module, args, result: seen.append(result))
    before = {name: t.tolist() for name, t in net.state_dict().items()}
    tensors = [*net.parameters(), *net.buffers()]
    draws = net.blocks[0][1].rng.bit_generator.state
    attributes = {name: dict(module.__dict__) for name, module in net.named_modules()}
    gm = GradManager().attach(net.parameters())
    with gm:
        nn.summary(net, np.zeros((3, 5), int))
        assert gm.summary().startswith("0 operations recorded")
    assert {name: t.tolist() for name, t in net.state_dict().items()} == before
    assert all(a is b for a, b in zip(tensors, [*net.parameters(), *net.buffers()], strict=True))
    assert net.blocks[0][1].rng.bit_generator.state == draws
    assert [module.training for module in (net, net.norm, net.head)] == [True, False, True]
    assert net.calls == 0
    for name, module in net.named_modules():
        assert module.__dict__.keys() == attributes[name].keys()
        assert all(module.__dict__[key] is value for key, value in attributes[name].items())
    assert len(seen) == 1  # hooks of the user's are part of what is called
    handle.remove()


class Drawing(nn.Module):
    """Draws and counts in evaluation, too."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.register_buffer("seen", np.zeros(2))

    def forward(self, x):
        self.seen += 1
        assert not self.training
        return x + self.rng.standard_normal(x.shape)


def test_generators_and_buffers_are_restored():
    net = Drawing()
    text = nn.summary(net, tensor([[1.0, 2.0]]))
    assert "(1, 2)" in text
    assert net.seen.tolist() == [0, 0]
    assert net.rng.random() == np.random.default_rng(0).random()


def test_a_call_that_fails_changes_nothing():
    net = nn.Sequential(Drawing(), nn.Linear(3, 3))
    with pytest.raises(ValueError, match="linear"):
        nn.summary(net, np.zeros((1, 2), "float32"))
    assert net[0].seen.tolist() == [0, 0]
    assert net[0].rng.random() == np.random.default_rng(0).random()
    assert net.training
    assert net[1]._post_hooks is None


def test_other_objects_than_modules_are_refused():
    with pytest.raises(TypeError, match="summary takes a Module; found function"):
        nn.summary(lambda x: x)
