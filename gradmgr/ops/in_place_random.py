"""The methods of Tensor that fill it with random values: `x.normal_(generator=rng)`. See `in_place`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import asked, computed
from gradmgr._engine.context import check_may_draw
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr._engine.views import check_kept
from gradmgr.ops.convert import lift
from gradmgr.ops.in_place_writes import can_broadcast, copy_


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: np.random.Generator) -> Any:
    """Fill with ones of probability `p`, a number or an array that broadcasts, and zeros.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).bernoulli_(0.25, generator=numpy.random.default_rng(0))
    >>> abs(w.mean() - 0.25) < 0.05, sorted(set(w.tolist()))
    (Tensor(True), [0.0, 1.0])
    """
    chance = _raw_on_host(p)
    if not asked(_are_chances, chance) or not can_broadcast(chance.shape, self.shape):
        raise ValueError(f"bernoulli_ takes p in [0, 1] that broadcasts to {self.shape}; found shape {chance.shape}")
    return _fill_with(self, computed(operator.lt, _draw(self, generator, "bernoulli_", "random"), chance))


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of a Cauchy distribution.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).cauchy_(median=3.0, generator=numpy.random.default_rng(0))
    >>> abs(w - 3.0).max() > 10.0
    Tensor(True)
    """
    return _fill_with(self, computed(_moved, _draw(self, generator, "cauchy_", "standard_cauchy"), median, sigma))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of an exponential distribution of rate `lambd`.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).exponential_(2.0, generator=numpy.random.default_rng(0))
    >>> abs(w.mean() - 1 / 2.0) < 0.05
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "exponential_", "exponential", 1 / lambd))


def geometric_(self: Tensor, p: float, *, generator: np.random.Generator) -> Any:
    """Fill with values of a geometric distribution: how many trials of probability `p` the first success takes.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).geometric_(0.5, generator=numpy.random.default_rng(0))
    >>> w.min(), abs(w.mean() - 1 / 0.5) < 0.1
    (Tensor(1.), Tensor(True))
    """
    return _fill_with(self, _draw(self, generator, "geometric_", "geometric", p))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of which the logarithms are of a normal distribution with this mean and deviation.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).log_normal_(0.0, 0.5, generator=numpy.random.default_rng(0))
    >>> w.min() > 0.0
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "log_normal_", "lognormal", mean, std))


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of a normal distribution.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).normal_(3.0, 0.1, generator=numpy.random.default_rng(0))
    >>> w.mean().round(1), w.std().round(1)
    (Tensor(3.), Tensor(0.1))
    """
    return _fill_with(self, _draw(self, generator, "normal_", "normal", mean, std))


def random_(self: Tensor, low: int, high: int | None = None, *, generator: np.random.Generator) -> Any:
    """Fill with integers from `low` to `high` - 1; with one number, from 0 to that less 1.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).random_(1, 7, generator=numpy.random.default_rng(0))
    >>> sorted(set(w.tolist()))
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    """
    return _fill_with(self, _draw(self, generator, "random_", "integers", low, high))


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values drawn uniformly from `low` to below `high`.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).uniform_(2.0, 3.0, generator=numpy.random.default_rng(0))
    >>> (w >= 2.0).all() & (w < 3.0).all()
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "uniform_", "uniform", low, high))


def _draw(x: Tensor, generator: Any, name: str, method: str, *args: Any) -> Any:
    """Draw as many numbers on the host as x has: the same on every device."""
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"{name} draws from generator=, a numpy.random.Generator such as numpy.random.default_rng(0); "
            f"found {type(generator).__name__}"
        )
    if x.dtype.kind in "biu" and name not in ("bernoulli_", "geometric_", "random_"):
        raise errors.DtypeError(f"{name} fills with real numbers, not {describe(x)}; make it of a floating dtype")
    check_kept(x, name)
    check_may_draw(name)
    return computed(_drawn, generator, method, args, x.shape)


def _drawn(generator: np.random.Generator, method: str, args: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    return getattr(generator, method)(*args, shape)


def _fill_with(x: Tensor, drawn: Any) -> Any:
    return copy_(x, computed(_as_dtype, drawn, x.dtype))


def _as_dtype(drawn: Any, dtype: Any) -> Any:
    return libraries.namespace(drawn).asarray(drawn).astype(dtype)


def _are_chances(a: Any) -> bool:
    return bool(((a >= 0) & (a <= 1)).all())


def _moved(drawn: Any, median: float, sigma: float) -> Any:
    return median + sigma * drawn


def _raw_on_host(value: Any) -> Any:
    return libraries.to_device(raw(lift(value)), "cpu")


DRAWS = (bernoulli_, cauchy_, exponential_, geometric_, log_normal_, normal_, random_, uniform_)
