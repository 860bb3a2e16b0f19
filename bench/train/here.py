"""gradmgr, with `nn.functional` and `optim`; and, for the MLPs, with NumPy's functions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gradmgr
import gradmgr.numpy as gnp
from bench.libraries import Gradmgr, NetworkByHand, Trained
from bench.operations import Network
from bench.train.models import HEADS, Array, Model
from gradmgr import GradManager, Tensor, nn, optim, set_num_threads
from gradmgr._arrays import onednn_library
from gradmgr.nn import functional as F  # noqa: N812  # its usual name
from gradmgr.nn._functions import onednn

Values = Mapping[str, Tensor]


def _mlp(p: list[Tensor], x: Array, target: Array) -> Any:
    h = x
    for k in range(0, len(p) - 2, 2):
        h = gnp.tanh(F.linear(h, p[k], p[k + 1]))
    return F.mse_loss(F.linear(h, p[-2], p[-1]), target)


def _lstm(p: list[Tensor], x: Array, target: Array) -> Any:
    h = c = gnp.zeros(target.shape[1:], x.dtype)
    seen = []
    for step in x:
        h, c = F.lstm_cell(step, (h, c), *p)
        seen.append(h)
    return F.mse_loss(gnp.stack(seen), target)


def _gpt(p: list[Tensor], x: Array, target: Array) -> Any:
    norm1, norm1_bias, w_qkv, w_out, b_out, norm2, norm2_bias, w_up, b_up, w_down, b_down = p
    batch, length, width = shape = x.shape
    qkv = F.linear(F.layer_norm(x, (width,), norm1, norm1_bias), w_qkv)
    q, k, v = qkv.reshape(batch, length, 3, HEADS, width // HEADS).transpose(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(attended.swapaxes(1, 2).reshape(shape), w_out, b_out)
    h = F.gelu(F.linear(F.layer_norm(x, (width,), norm2, norm2_bias), w_up, b_up))
    return F.mse_loss(x + F.linear(h, w_down, b_down), target)


def _cnn(p: list[Tensor], x: Array, target: Array) -> Any:
    conv1, bias1, conv2, bias2, w, b = p
    x = F.max_pool2d(F.relu(F.conv2d(x, conv1, bias1, padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, conv2, bias2, padding=1)), 2)
    return F.cross_entropy(F.linear(x.reshape(len(x), -1), w, b), target)


LOSSES: Mapping[str, Callable[..., Any]] = {"mlp": _mlp, "lstm": _lstm, "gpt": _gpt, "cnn": _cnn}


class Here:
    """Every model as a user of `nn.functional` writes it."""

    name = "gradmgr"

    def __init__(self, model: Model, threads: int) -> None:
        set_num_threads(threads)
        self.loss, self.x, self.target = LOSSES[model.kind], model.x, model.target
        self.learned: list[Tensor] = [nn.Parameter(a) for a in model.values.values()]
        self.gm = GradManager().attach(self.learned)
        self.optimiser = getattr(optim, model.optimiser)(self.learned, **model.options)

    def step(self) -> float:
        return float(self.advance(self.x, self.target))

    def advance(self, x: Array, target: Array) -> Tensor:
        """Take one step of the optimiser and return the loss before it."""
        with self.gm as gm:
            loss: Tensor = self.loss(self.learned, x, target)
            gm.backward(loss)
        self.optimiser.step()
        gm.clear_grad()
        return loss

    def parameters(self) -> list[Array]:
        return [p.numpy() for p in self.learned]


class Compiled(Here):
    """The same, the whole step compiled."""

    name = "compiled"

    def __init__(self, model: Model, threads: int, how: Callable[..., Any] = gradmgr.compile) -> None:
        super().__init__(model, threads)
        self.compiled = how(self.advance)

    def step(self) -> float:
        return float(self.compiled(self.x, self.target))


class NumPyAlone(Here):
    """The same where oneDNN is installed and left out: the private switch is one that only a benchmark may touch."""

    name = "no oneDNN"

    def step(self) -> float:
        found = onednn_library.found
        library, found.library = found.get(), None
        try:
            return super().step()
        finally:
            found.library = library


def is_convolution_compiled() -> bool:
    """Tell whether convolutions are computed by oneDNN."""
    return onednn.convolution_library().startswith("oneDNN")


# ---------------------------------------------------------------- MLPs in NumPy's functions


class _Square:
    """A network of `bench.libraries`, which stores weights (in, out)."""

    def __init__(self, model: Model, made: Callable[[Network], Trained]) -> None:
        if model.kind != "mlp":
            raise NotImplementedError(f"{model.kind} has no such spelling")
        arrays = list(model.values.values())
        layers = [(w.T.copy(), b) for w, b in zip(arrays[::2], arrays[1::2], strict=True)]
        self.network = made(Network(model.x, model.target, layers, model.options["lr"]))
        self.step = self.network.step

    def parameters(self) -> list[Array]:
        return [p.T for p in self.network.parameters()]


class Plain(_Square):
    """gradmgr with NumPy's functions and the update in place."""

    name = "plain"

    def __init__(self, model: Model, threads: int) -> None:
        set_num_threads(threads)
        super().__init__(model, Gradmgr().network)


class ByHand(_Square):
    """NumPy with the gradients by hand."""

    name = "NumPy"

    def __init__(self, model: Model, threads: int) -> None:
        super().__init__(model, NetworkByHand)
