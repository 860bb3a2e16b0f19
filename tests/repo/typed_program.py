"""A user's program that touches every public module, for the type checkers: what is known has a type, and no error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, assert_type

import numpy
from numpy.typing import NDArray

import gradmgr
import gradmgr.nn.functional as F
import gradmgr.numpy as np
from gradmgr import GradManager, Tensor, anomaly, errors, graph, nn, optim, profiler, special, tensor
from gradmgr import distributed as dist
from gradmgr import forward_ad as fwd
from gradmgr import functional as fn
from gradmgr.function import Function, FunctionCtx, custom_op
from gradmgr.nn import init
from gradmgr.optim import lr_scheduler
from gradmgr.serialization import load, save

Batch = tuple[NDArray[numpy.float64], NDArray[numpy.float64]]


class Cube(Function):
    """x cubed, with a derivative of its own."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return 3 * x * x * g


class Net(nn.Module):
    """A network with layers with and without parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.act = nn.ReLU()
        self.scale = nn.Parameter([1.0])
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x: NDArray[numpy.float64] | Tensor) -> Tensor:
        hidden = self.act(assert_type(self.first(x), Tensor))
        result: Tensor = self.rest(hidden * self.scale)
        return result


def batches(count: int) -> Iterator[Batch]:
    random = numpy.random.default_rng(0)
    for _ in range(count):
        x = random.normal(size=(8, 2))
        yield x, x[:, :1] * 2.0


def use_tensors(t: Tensor, a: NDArray[numpy.float64]) -> Tensor:
    assert_type(t * t, Tensor)
    assert_type(2.0 * t - a, Tensor)
    assert_type(a @ t, Tensor)
    assert_type(-t < 0, Tensor)
    assert_type(t.max(), Tensor)
    assert_type(t.argmax(axis=0), Tensor)
    assert_type(t.copy().add_(1.0), Tensor)
    assert_type(t.T.reshape(-1)[0].item(), Any)
    assert_type(t.grad, Tensor | None)
    assert_type(t.shape, tuple[int, ...])
    assert_type(t.requires_grad, bool)
    assert_type(list(t), list[Tensor])
    assert_type(t.numpy().tolist(), Any)
    assert_type(divmod(t, 2.0), tuple[Tensor, Tensor])
    t += 1.0
    t[0] = 3.0
    return t


def use_functions(t: Tensor, a: NDArray[numpy.float64]) -> Tensor:
    assert_type(np.sum(t, axis=0), Tensor)
    assert_type(np.tanh(t), Tensor)
    assert_type(np.tanh(a), numpy.ndarray[Any, numpy.dtype[Any]])
    assert_type(np.maximum(a, t), Tensor)
    assert_type(np.add.reduce(t), Tensor)
    assert_type(np.where(t > 0, t, 0.0), Tensor)
    assert_type(np.concatenate([t, t]), Tensor)
    assert_type(np.split(t, 2), list[Tensor])
    assert_type(np.einsum("ij,jk->ik", t, t), Tensor)
    assert_type(np.zeros((2, 2), dtype=np.float32), Tensor)
    assert_type(np.allclose(t, t), bool)
    assert_type(np.isfinite(t).all(), Tensor)
    values, vectors = np.linalg.eigh(t @ t.T)
    assert_type(values * vectors, Tensor)
    assert_type(np.linalg.svd(t).S, Tensor)
    assert_type(np.linalg.solve(t, t[0]), Tensor)
    assert_type(np.abs(np.fft.rfft(t)), Tensor)
    cubes: Tensor = Cube.apply(t)
    return np.mean(special.erf(t)) + special.logsumexp(t) + F.softmax(t, dim=-1).sum() + cubes.sum()


def use_transforms(t: Tensor) -> None:
    def square(x: Tensor) -> Tensor:
        return np.sum(x * x)

    assert_type(gradmgr.vmap(square)(t), Tensor)
    assert_type(gradmgr.checkpoint(square, t), Tensor)
    assert_type(gradmgr.gradcheck(square, t), bool)
    value, slope = fn.vjp(square, t)
    assert_type(value + slope, Tensor)
    fn.hessian(square, t)
    fn.grad(square)(t)
    with fwd.dual_level():
        dual = fwd.unpack_dual(square(fwd.make_dual(t, np.ones_like(t))))
        assert_type(dual.primal, Tensor)
        assert_type(dual.tangent, Tensor | None)

    def slope_of_square(x: Any) -> Any:
        return 2 * x

    @custom_op(derivative={"x": slope_of_square})
    def squared(x: Any) -> Any:
        return x * x

    squared(t)


def train(net: Net, manager: GradManager) -> float:
    optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = lr_scheduler.StepLR(optimizer, step_size=2)
    mean_squares, loss = nn.MSELoss(), tensor(0.0)
    for x, y in batches(3):
        with manager:
            loss = mean_squares(net(x), y)
            manager.backward(loss)
        optim.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert_type(schedule.get_last_lr(), list[float])
    assert_type(F.mse_loss(net(np.ones((1, 2))), tensor([[2.0]])), Tensor)
    return float(loss)


def use_sequences() -> None:
    packed = nn.utils.rnn.pack_sequence([numpy.ones((3, 2)), numpy.ones((1, 2))])
    output, states = nn.LSTM(2, 4)(packed)
    assert_type(output, nn.utils.rnn.PackedSequence)
    assert_type(states, tuple[Tensor, Tensor])
    padded, h = nn.GRU(2, 4)(tensor(numpy.ones((3, 2, 2))), lengths=[3, 1])
    assert_type((padded, h), tuple[Tensor, Tensor])


def main() -> None:
    t = tensor([[2.0, 1.0], [1.0, 3.0]], dtype=np.float64)
    a = numpy.eye(2)
    net = Net(4)
    init.xavier_uniform_(net.first.weight)
    manager = GradManager().attach(net.parameters()).attach({"t": t})
    with manager, anomaly.detect_anomaly():
        result = use_functions(t, a)
        print(graph.to_mermaid(result))
        manager.backward(result)
    use_tensors(t, a)
    use_transforms(tensor([1.0, 2.0]))
    use_sequences()
    with profiler.profile() as measured:
        train(net, manager)
    print(measured.key_averages().table())
    dist.init()
    assert_type(dist.all_reduce(t), Tensor)
    assert_type(dist.rank(), int)
    dist.finalize()
    with tempfile.TemporaryDirectory() as folder:
        save(net.state_dict(), os.path.join(folder, "net.npz"))
        net.load_state_dict(load(os.path.join(folder, "net.npz")))
    try:
        t.grad = tensor([1.0])
    except errors.ShapeError as error:
        print(error)


if __name__ == "__main__":
    main()
