"""PyTorch eager: its functions that do most at once, its fused optimisers, and no modules, whose calls cost time."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from bench.train.models import HEADS, Array, Model


def _mlp(torch: Any, p: list[Any], x: Any, target: Any) -> Any:
    f = torch.nn.functional
    h = x
    for k in range(0, len(p) - 2, 2):
        h = torch.tanh(f.linear(h, p[k], p[k + 1]))
    return f.mse_loss(f.linear(h, p[-2], p[-1]), target)


def _lstm(torch: Any, p: list[Any], x: Any, target: Any) -> Any:
    h = c = torch.zeros(x.shape[1:])
    seen = []
    for step in x.unbind():
        h, c = torch.lstm_cell(step, (h, c), *p)  # what torch.nn.LSTMCell calls
        seen.append(h)
    return torch.nn.functional.mse_loss(torch.stack(seen), target)


def _gpt(torch: Any, p: list[Any], x: Any, target: Any) -> Any:
    f = torch.nn.functional
    norm1, norm1_bias, w_qkv, w_out, b_out, norm2, norm2_bias, w_up, b_up, w_down, b_down = p
    batch, length, width = shape = x.shape
    qkv = f.linear(f.layer_norm(x, (width,), norm1, norm1_bias), w_qkv)
    q, k, v = qkv.view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind()
    attended = f.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + f.linear(attended.transpose(1, 2).reshape(shape), w_out, b_out)
    h = f.gelu(f.linear(f.layer_norm(x, (width,), norm2, norm2_bias), w_up, b_up))
    return f.mse_loss(x + f.linear(h, w_down, b_down), target)


def _cnn(torch: Any, p: list[Any], x: Any, target: Any) -> Any:
    f = torch.nn.functional
    conv1, bias1, conv2, bias2, w, b = p
    x = f.max_pool2d(f.relu(f.conv2d(x, conv1, bias1, padding=1)), 2)
    x = f.max_pool2d(f.relu(f.conv2d(x, conv2, bias2, padding=1)), 2)
    return f.cross_entropy(f.linear(x.flatten(1), w, b), target)


LOSSES: Mapping[str, Callable[..., Any]] = {"mlp": _mlp, "lstm": _lstm, "gpt": _gpt, "cnn": _cnn}


class InTorch:
    """Every model in PyTorch."""

    name = "PyTorch"

    def __init__(self, model: Model, threads: int) -> None:
        self.torch = torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        self.loss = LOSSES[model.kind]
        self.x, self.target = self._laid_out(model.x), torch.tensor(model.target)
        self.learned = [self._laid_out(a).requires_grad_() for a in model.values.values()]
        self.optimiser = getattr(torch.optim, model.optimiser)(self.learned, **model.options, fused=True)

    def _laid_out(self, a: Array) -> Any:
        """Return a tensor; of images and kernels the channels last, which takes a third off the time of the CNN."""
        made = self.torch.tensor(a)
        return made.to(memory_format=self.torch.channels_last) if a.ndim == 4 else made

    def step(self) -> float:
        loss = self.loss(self.torch, self.learned, self.x, self.target)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        return float(loss.item())

    def parameters(self) -> list[Array]:
        return [p.detach().numpy() for p in self.learned]


class CompiledTorch(InTorch):
    """The same, the loss and its gradient by torch.compile; its fused optimisers are compiled as they are."""

    name = "torch.compile"

    def __init__(self, model: Model, threads: int) -> None:
        super().__init__(model, threads)
        self.loss = compiled(self.torch, self.loss)


def has_compiler() -> bool:
    """Tell whether torch.compile finds a compiler of C++."""
    return any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++"))))


def compiled(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as torch.compile makes it for one set of shapes."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else processes wait beside what is timed
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return made
