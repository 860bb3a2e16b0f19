"""Functions that lines call as `F`: hooks, cuts, Functions of one's own; for NumPy and for gradmgr."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import Function, Tensor


def sine_of_symmetric(xp: Any, x: Any) -> Any:
    """Return the sine of the matrix x + x^H, by its eigenvalues."""
    w, v = xp.linalg.eigh(x + xp.conj(xp.swapaxes(x, -1, -2)))
    return (v * xp.sin(w)[..., None, :]) @ xp.conj(xp.swapaxes(v, -1, -2))


class Cube(Function):
    """x^3, from the saved argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * gnp.conj(x * x)

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        (x,) = ctx.saved_tensors
        return t * 3 * x * x


class Wave(Function):
    """sin(x) and x sin(x): two results, one of them saved."""

    @staticmethod
    def forward(x: Any) -> Any:
        sine = gnp.sin(x)
        return sine, x * sine

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output[0])
        ctx.save_for_forward(inputs[0], output[0])

    @staticmethod
    def vjp(ctx: Any, g: Any, h: Any) -> Any:
        x, sine = ctx.saved_tensors
        return g * gnp.conj(gnp.cos(x)) + h * gnp.conj(sine + x * gnp.cos(x))

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        x, sine = ctx.saved_tensors
        return t * gnp.cos(x), t * (sine + x * gnp.cos(x))


class Product(Function):
    """sin(x) y, broadcast, with gradients of the right shapes."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return gnp.sin(x) * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return _fitted(g * gnp.conj(y * gnp.cos(x)), x), _fitted(g * gnp.conj(gnp.sin(x)), y)

    @staticmethod
    def jvp(ctx: Any, tx: Any, ty: Any) -> Any:
        x, y = ctx.saved_tensors
        return tx * y * gnp.cos(x) + ty * gnp.sin(x)


def _fitted(g: Any, x: Any) -> Any:
    """Return a gradient summed to the shape of x, and real where that is."""
    lead = g.ndim - x.ndim
    axes = (*range(lead), *(k + lead for k, n in enumerate(x.shape) if n == 1 and g.shape[k + lead] != 1))
    g = gnp.reshape(gnp.sum(g, axis=axes), x.shape) if axes else g
    return gnp.astype(g if x.dtype.kind == "c" else g.real, x.dtype)


def _hooked(x: Any, factor: float) -> Any:
    """Return x, with a hook that multiplies its gradient."""
    y = x * 1
    if isinstance(y, Tensor) and y.requires_grad:
        y.register_hook(lambda g: g * factor)
    return y


OURS = SimpleNamespace(
    Cube=SimpleNamespace(apply=lambda x: Cube.apply(gnp.asarray(x))),
    Wave=SimpleNamespace(apply=lambda x: Wave.apply(gnp.asarray(x))),
    Product=SimpleNamespace(apply=lambda x, y: Product.apply(gnp.asarray(x), gnp.asarray(y))),
    hooked=_hooked,
    detached=lambda x: x.detach() if isinstance(x, Tensor) else x,
    sine_of_symmetric=sine_of_symmetric,
)
PLAIN = SimpleNamespace(
    Cube=SimpleNamespace(apply=lambda x: x**3),
    Wave=SimpleNamespace(apply=lambda x: (np.sin(x), x * np.sin(x))),
    Product=SimpleNamespace(apply=lambda x, y: np.sin(x) * y),
    hooked=lambda x, factor: x * 1,
    detached=lambda x: x * 1,
    sine_of_symmetric=sine_of_symmetric,
)
