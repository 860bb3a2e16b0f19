"""What NumPy's functions are in torch, where torch has none of the same meaning.

What only moves elements is one function, `moved`: NumPy moves the positions, and torch takes the elements from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

T = torch.Tensor
Dims = Sequence[int] | None


def _dims(x: T, dims: Dims) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if dims is None else tuple(dims)


def _positions(x: T) -> Any:
    return np.arange(x.numel()).reshape(tuple(x.shape))


def moved(x: T, move: Callable[[Any], Any]) -> T:
    """Return x with its elements moved as NumPy's function moves them."""
    places = np.array(move(_positions(x)))
    if not x.numel():
        return torch.zeros(places.shape, dtype=x.dtype)
    return x.reshape(-1)[torch.from_numpy(places.reshape(-1))].reshape(places.shape)


def written(x: T, where: Callable[[Any], Any], value: Any) -> T:
    """Return x with `value` in the places that NumPy's function takes; of equal places the last one counts."""
    places = np.array(where(_positions(x)))
    value = _like(value, x)
    flat = torch.broadcast_to(value, places.shape).reshape(-1)
    last = {int(place): k for k, place in enumerate(places.reshape(-1))}
    if not last:
        return x
    at, of = torch.tensor(list(last)), torch.tensor(list(last.values()))
    return x.reshape(-1).index_put((at,), flat[of]).reshape(x.shape)


def added(x: T, where: Callable[[Any], Any], value: Any) -> T:
    """Return x with `value` added in the places that NumPy's function takes, as often as it takes them."""
    places = np.array(where(_positions(x)))
    flat = torch.broadcast_to(_like(value, x), places.shape).reshape(-1)
    at = torch.from_numpy(places.reshape(-1))
    return x.reshape(-1).index_put((at,), flat, accumulate=True).reshape(x.shape)


def _like(value: Any, x: T) -> T:
    value = torch.as_tensor(value)
    return value if value.is_complex() and x.is_complex() else value.to(x.dtype)


def into(x: T, value: Any, where: Any = True) -> T:
    """Return what `out=x, where=where` leaves in x."""
    value = torch.broadcast_to(_like(value, x), x.shape)
    return value if where is True else torch.where(where, value, x)


def pair(*xs: T) -> list[T]:
    """Return tensors of one dtype."""
    dtype = xs[0].dtype
    for x in xs[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.float64
    return [x.to(dtype) for x in xs]


def real(x: T) -> T:
    return x.real if x.is_complex() else x


def imag(x: T) -> T:
    return x.imag if x.is_complex() else torch.zeros_like(x)


def conj(x: T) -> T:
    return x.conj().resolve_conj() if x.is_complex() else x


# ---------------------------------------------------------------- reductions


def sum_(x: T, dims: Dims, keep: bool, where: Any = None) -> T:
    dims = _dims(x, dims)
    x = x if where is None else torch.where(where, x, torch.zeros_like(x))
    return x.sum(dim=dims, keepdim=keep) if dims else x * 1


def _count(x: T, dims: Dims, where: Any) -> T:
    return sum_(torch.broadcast_to(where, x.shape).double() if where is not None else torch.ones(x.shape), dims, True)


def mean(x: T, dims: Dims, keep: bool, where: Any = None) -> T:
    made = sum_(x, dims, True, where) / _count(x, dims, where)
    return made if keep else made.reshape(sum_(x, dims, False).shape)


def var(x: T, dims: Dims, keep: bool, ddof: float = 0, where: Any = None) -> T:
    apart = x - mean(x, dims, True, where)
    made = sum_(real(apart * conj(apart)), dims, True, where) / (_count(x, dims, where) - ddof)
    return made if keep else made.reshape(sum_(x, dims, False).shape)


def std(x: T, dims: Dims, keep: bool, ddof: float = 0, where: Any = None) -> T:
    return torch.sqrt(var(x, dims, keep, ddof, where))


def prod(x: T, dims: Dims, keep: bool, where: Any = None) -> T:
    x = x if where is None else torch.where(where, x, torch.ones_like(x))
    dims = _dims(x, dims)
    for dim in sorted([dim % x.ndim for dim in dims], reverse=True):
        x = torch.prod(x, dim, keepdim=keep)
    return x * 1


def extreme(which: str, x: T, dims: Dims, keep: bool, where: Any = None, initial: float | None = None) -> T:
    """Compute numpy.max or numpy.min."""
    if initial is not None:
        full = torch.full_like(x, initial)
        x = x if where is None else torch.where(where, x, full)
        x = torch.maximum(x, full) if which == "max" else torch.minimum(x, full)
    dims = _dims(x, dims)
    return getattr(torch, f"a{which}")(x, dim=dims, keepdim=keep) if dims else x * 1


def ordered(x: T, dim: int) -> T:
    return torch.sort(x, dim=dim, stable=True)[0]


def median(x: T, dim: int, keep: bool) -> T:
    x, n = ordered(x, dim), x.shape[dim]
    made = (x.select(dim, (n - 1) // 2) + x.select(dim, n // 2)) / 2
    return made.unsqueeze(dim) if keep else made


def gradient(x: T, dim: int) -> T:
    """Compute numpy.gradient along one axis with a step of 1."""
    x = x.movedim(dim, 0)
    made = torch.cat([(x[1] - x[0])[None], (x[2:] - x[:-2]) / 2, (x[-1] - x[-2])[None]])
    return made.movedim(0, dim)


def trapezoid(x: T, dim: int, dx: float) -> T:
    x = x.movedim(dim, 0)
    return (x[1:] + x[:-1]).sum(0) * (dx / 2)


def differences(x: T, n: int, dim: int) -> T:
    for _ in range(n):
        x = x.narrow(dim, 1, x.shape[dim] - 1) - x.narrow(dim, 0, x.shape[dim] - 1)
    return x * 1


# ---------------------------------------------------------------- elementwise


def extreme_but_nan(extreme: Callable[[T, T], T], x: T, y: T) -> T:
    """Return fmax or fmin; where the two are equal each gets half of the derivative, unlike torch's own functions."""
    x, y = pair(x, y)
    return extreme(torch.where(x.isnan(), y, x), torch.where(y.isnan(), x, y))


def cbrt(x: T) -> T:
    return torch.sign(x) * torch.abs(x) ** (1 / 3)


def power(x: T, y: T) -> T:
    if y.is_complex() or x.is_complex():
        x, y = pair(x, y)
        return torch.exp(y * torch.log(x))
    return torch.pow(x, y)


def choose(condition: T, x: Any, y: Any) -> T:
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    return torch.where(condition, x.to(dtype), y.to(dtype))


def fmod_times(x: T, y: Any, rounded: Callable[[T], T]) -> T:
    """Compute x minus y as often as it was taken, a constant."""
    y = torch.as_tensor(y)
    return x - y * rounded((x / y).detach())


# ---------------------------------------------------------------- products


def matmul(x: T, y: T) -> T:
    return torch.matmul(*pair(x, y))


def einsum(text: str, *xs: T) -> T:
    return torch.einsum(text, *pair(*xs))


def outer(x: T, y: T) -> T:
    x, y = pair(x, y)
    return x.reshape(-1, 1) * y.reshape(1, -1)


def kron(x: T, y: T) -> T:
    return torch.kron(*[each.contiguous() for each in pair(x, y)])


def tensordot(x: T, y: T, axes: int) -> T:
    return torch.tensordot(*pair(x, y), dims=axes)


def convolve(x: T, y: T, mode: str) -> T:
    """Compute numpy.convolve by its definition."""
    x, y = pair(x, y)
    if len(x) < len(y):
        x, y = y, x
    full = sum(torch.nn.functional.pad(x * y[k], (k, len(y) - 1 - k)) for k in range(len(y)))
    n, m = len(x), len(y)
    if mode == "full":
        return full
    if mode == "same":
        return full[(m - 1) // 2 : (m - 1) // 2 + n]
    return full[m - 1 : n]


# ---------------------------------------------------------------- linear algebra


def eye(x: T, factor: float) -> T:
    return factor * torch.eye(x.shape[-1])


def spd(x: T) -> T:
    return x @ conj(x).mT + eye(x, 2)


def solve(x: T, y: T) -> T:
    x, y = pair(x, y)
    return torch.linalg.solve(x, y) if y.ndim > 1 else torch.linalg.solve(x, y[:, None])[..., 0]


def sine_of_symmetric(x: T) -> T:
    w, v = torch.linalg.eigh(x + conj(x).mT)
    return (v * torch.sin(w)[..., None, :]) @ conj(v).mT
