"""Initialisation of parameters, with random numbers from a Generator that the caller passes.

The functions have the names and arguments of torch.nn.init, and the keyword `rng`, a numpy.random.Generator; without
one each call uses a new generator. Every function writes into its tensor, without being recorded, and returns it.
Numbers are drawn in float64 and cast, so that a seed gives the same values, to rounding, in every dtype and on every
device.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> w = nn.Parameter(np.empty((3, 2), np.float32))
    >>> nn.init.kaiming_uniform_(w, nonlinearity="relu", rng=np.random.default_rng(0)) is w
    True

For a tensor of shape (out, in, *window) fan_in is in x window, the number of inputs of one output, and fan_out is
out x window, the number of outputs that one input contributes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.drawing import generator
from gradmgr._engine.context import check_may_draw
from gradmgr._engine.history.modes import no_grad
from gradmgr._engine.tensor import Tensor, describe
from gradmgr.nn._functions.arguments import check_floating, check_word, integer, number

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

T = TypeVar("T", bound=Tensor)
Rng = np.random.Generator | None

_LINEAR = frozenset(
    ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")
)
_GAINS = ("leaky_relu", "relu", "selu", "tanh", *sorted(_LINEAR))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor of weights with which a layer with this activation preserves the variance.

    sqrt(2) for "relu" and sqrt(2 / (1 + a^2)) for "leaky_relu" of slope a (He et al., 2015), 5/3 for "tanh", 3/4 for
    "selu", 1 for "sigmoid", "linear" and the convolutions.

    Args:
        nonlinearity: the name of the activation, or of a linear function.
        param: the slope a of "leaky_relu", by default 0.01.

    Raises:
        ValueError: the name is not one of these.
        TypeError: the slope is not a number.

    >>> from gradmgr import nn
    >>> round(nn.init.calculate_gain("relu"), 4)
    1.4142
    """
    check_word(nonlinearity, _GAINS, "nonlinearity", "calculate_gain")
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else number(param, "param", "calculate_gain")
        return math.sqrt(2 / (1 + slope**2))
    return {"relu": math.sqrt(2), "tanh": 5 / 3, "selu": 3 / 4}.get(nonlinearity, 1.0)


# ---------------------------------------------------------------- given values


def constant_(tensor: T, val: float) -> T:
    """Fill with one value.

    Raises:
        TypeError: `tensor` is not a Tensor.

    >>> from gradmgr import nn, tensor
    >>> nn.init.constant_(tensor([1.0, 2.0]), 0.5)
    Tensor([0.5, 0.5])
    """
    return _fill(tensor, "constant_", lambda shape: np.full(shape, val))


def ones_(tensor: T) -> T:
    """Fill with ones.

    Raises:
        TypeError: `tensor` is not a Tensor.

    >>> from gradmgr import nn, tensor
    >>> nn.init.ones_(tensor([3.0, 4.0]))
    Tensor([1., 1.])
    """
    return _fill(tensor, "ones_", np.ones)


def zeros_(tensor: T) -> T:
    """Fill with zeros.

    Raises:
        TypeError: `tensor` is not a Tensor.

    >>> from gradmgr import nn, tensor
    >>> nn.init.zeros_(tensor([3.0, 4.0]))
    Tensor([0., 0.])
    """
    return _fill(tensor, "zeros_", np.zeros)


def eye_(tensor: T) -> T:
    """Fill a matrix with the identity, so that a linear layer passes on as many of its inputs as possible.

    Raises:
        ShapeError: the tensor does not have 2 axes.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> nn.init.eye_(np.empty((2, 3)))
    Tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    _check_axes(tensor, (2,), "eye_")
    return _fill(tensor, "eye_", lambda shape: np.eye(shape[0], shape[1]))


def dirac_(tensor: T, groups: int = 1) -> T:
    """Fill the weight of a convolution so that it passes on as many input channels as possible, group by group.

    Raises:
        ShapeError: the tensor does not have 3 to 5 axes, or `groups` does not divide the length of the first.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> from gradmgr.nn import functional as F
    >>> signal, weight = np.arange(4.0).reshape(1, 1, 4), nn.init.dirac_(np.empty((1, 1, 3)))
    >>> F.conv1d(signal, weight, padding=1)
    Tensor([[[0., 1., 2., 3.]]])
    """
    _check_axes(tensor, (3, 4, 5), "dirac_")
    groups = integer(groups, "groups", "dirac_")
    out, channels, *window = tensor.shape
    if groups < 1 or out % groups:
        raise errors.ShapeError(f"dirac_: groups must divide the {out} output channels; found {groups}")
    values = np.zeros(tensor.shape)
    per_group = out // groups
    for k in range(min(per_group, channels)):
        middle: tuple[Any, ...] = (slice(k, None, per_group), k, *[length // 2 for length in window])
        values[middle] = 1
    return _fill(tensor, "dirac_", lambda shape: values)


# ---------------------------------------------------------------- random values


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, *, rng: Rng = None) -> T:
    """Fill from the uniform distribution over [a, b).

    Raises:
        ValueError: b is less than a, or one of them not finite.

    >>> import numpy
    >>> from gradmgr import nn, tensor
    >>> w = nn.init.uniform_(tensor([0.0] * 1000), 2.0, 3.0, rng=numpy.random.default_rng(0))
    >>> (w >= 2.0).all() & (w < 3.0).all(), abs(w.mean() - 2.5) < 0.05
    (Tensor(True), Tensor(True))
    """
    a, b = number(a, "a", "uniform_"), number(b, "b", "uniform_")
    if not (a <= b and math.isfinite(b - a)):
        raise ValueError(f"uniform_ needs finite a <= b; found a={a}, b={b}")
    return _fill_with_draws(tensor, "uniform_", rng, lambda rng, shape: rng.uniform(a, b, shape))


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, *, rng: Rng = None) -> T:
    """Fill from the normal distribution.

    Raises:
        ValueError: std is negative.

    >>> import numpy
    >>> from gradmgr import nn, tensor
    >>> w = nn.init.normal_(tensor([0.0] * 1000), mean=1.0, std=0.1, rng=numpy.random.default_rng(0))
    >>> w.mean().round(1), w.std().round(1)
    (Tensor(1.), Tensor(0.1))
    """
    mean, std = number(mean, "mean", "normal_"), _checked_std(std, "normal_")
    return _fill_with_draws(tensor, "normal_", rng, lambda rng, shape: rng.normal(mean, std, shape))


def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, *, rng: Rng = None
) -> T:
    """Fill from the normal distribution truncated to [a, b]; a and b are absolute, not relative to the mean.

    The values follow the distribution exactly: they are drawn by rejection, from the normal distribution or, if that is
    rarely in [a, b], from the uniform distribution over it.

    Raises:
        ValueError: std is not positive, or a is not less than b.

    >>> import numpy
    >>> from gradmgr import nn, tensor
    >>> w = nn.init.trunc_normal_(tensor([0.0] * 1000), std=1.0, a=-0.5, b=0.5, rng=numpy.random.default_rng(0))
    >>> abs(w).max() <= 0.5
    Tensor(True)
    """
    mean, std = number(mean, "mean", "trunc_normal_"), _checked_std(std, "trunc_normal_")
    a, b = number(a, "a", "trunc_normal_"), number(b, "b", "trunc_normal_")
    if not (a < b and std > 0):
        raise ValueError(f"trunc_normal_ needs a < b and std > 0; found a={a}, b={b}, std={std}")
    low, high = (a - mean) / std, (b - mean) / std

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        standard = _truncated_normal(low, high, math.prod(shape), rng)
        return np.clip(mean + std * standard, a, b).reshape(shape)  # rounding may exceed the bounds

    return _fill_with_draws(tensor, "trunc_normal_", rng, draw)


def _truncated_normal(low: float, high: float, count: int, rng: np.random.Generator) -> Any:
    """Draw numbers of the standard normal distribution that lie between two bounds."""
    often = math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)) > 0.5
    peak = min(max(low, 0.0), high)
    if not often:  # beyond these the density is below e^-40 of its maximum
        reach = math.sqrt(peak * peak + 80)
        low, high = max(low, -reach), min(high, reach)
    kept: list[Any] = [np.empty(0)]
    missing = count
    while missing > 0:
        if often:
            drawn = rng.standard_normal(2 * missing)
            drawn = drawn[(drawn >= low) & (drawn <= high)]
        else:
            drawn = rng.uniform(low, high, 2 * missing)
            drawn = drawn[rng.random(2 * missing) < np.exp((peak * peak - drawn * drawn) / 2)]
        kept.append(drawn[:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept)


def xavier_uniform_(tensor: T, gain: float = 1.0, *, rng: Rng = None) -> T:
    """Fill from the uniform distribution over +-gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).

    Raises:
        ShapeError: the tensor has fewer than 2 axes.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.xavier_uniform_(np.empty((20, 30)), rng=numpy.random.default_rng(0))
    >>> abs(w).max() <= np.sqrt(6 / (20 + 30))
    Tensor(True)
    """
    std = _xavier(tensor, gain, "xavier_uniform_")
    return _draw_uniform(tensor, "xavier_uniform_", rng, std)


def xavier_normal_(tensor: T, gain: float = 1.0, *, rng: Rng = None) -> T:
    """Fill from the normal distribution of std gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010).

    Raises:
        ShapeError: the tensor has fewer than 2 axes.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.xavier_normal_(np.empty((20, 30)), rng=numpy.random.default_rng(0))
    >>> w.std().round(2), np.sqrt(2 / (20 + 30)).round(2)
    (Tensor(0.2), np.float64(0.2))
    """
    std = _xavier(tensor, gain, "xavier_normal_")
    return _fill_with_draws(tensor, "xavier_normal_", rng, lambda rng, shape: rng.normal(0, std, shape))


def kaiming_uniform_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, rng: Rng = None
) -> T:
    """Fill from the uniform distribution over +-gain sqrt(3 / fan) (He et al., 2015).

    Args:
        tensor: of 2 or more axes, (out, in, *window).
        a: the slope of "leaky_relu" below 0; other nonlinearities ignore it.
        mode: "fan_in" preserves the variance of values, "fan_out" that of gradients.
        nonlinearity: the activation; the gain is `calculate_gain` of it.
        rng: a Generator to draw from.

    Raises:
        ShapeError: the tensor has fewer than 2 axes.
        ValueError: mode or nonlinearity is not known.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.kaiming_uniform_(np.empty((20, 30)), nonlinearity="relu", rng=numpy.random.default_rng(0))
    >>> abs(w).max() <= np.sqrt(2.0) * np.sqrt(3 / 30)
    Tensor(True)
    """
    std = _kaiming(tensor, a, mode, nonlinearity, "kaiming_uniform_")
    return _draw_uniform(tensor, "kaiming_uniform_", rng, std)


def kaiming_normal_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, rng: Rng = None
) -> T:
    """Fill from the normal distribution of std gain / sqrt(fan) (He et al., 2015); arguments as `kaiming_uniform_`.

    Raises:
        TypeError: `tensor` is not a Tensor.
        ValueError: `tensor` has fewer than two axes, or `mode` is unknown.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.kaiming_normal_(np.empty((20, 50)), nonlinearity="relu", rng=numpy.random.default_rng(0))
    >>> w.std().round(2), np.sqrt(2 / 50).round(2)
    (Tensor(0.2), np.float64(0.2))
    """
    std = _kaiming(tensor, a, mode, nonlinearity, "kaiming_normal_")
    return _fill_with_draws(tensor, "kaiming_normal_", rng, lambda rng, shape: rng.normal(0, std, shape))


def orthogonal_(tensor: T, gain: float = 1, *, rng: Rng = None) -> T:
    """Fill with a random matrix whose rows, or columns where those are fewer, are orthogonal and of length gain.

    Further axes count as columns. For deep linear networks: Saxe, McClelland and Ganguli, 2013. The matrix is the Q
    of a normal matrix's QR, with signs that make it uniformly distributed (Mezzadri, 2007).

    Raises:
        ShapeError: the tensor has fewer than 2 axes.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.orthogonal_(np.empty((2, 3)), gain=2.0, rng=numpy.random.default_rng(0))
    >>> np.allclose(w @ w.T, 4 * np.eye(2))
    True
    """
    _check_tensor(tensor, "orthogonal_")
    gain = number(gain, "gain", "orthogonal_")
    if tensor.ndim < 2:
        raise errors.ShapeError(f"orthogonal_ needs 2 axes or more; found {describe(tensor)}")

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return gain * (q.T if rows < columns else q).reshape(shape)

    return _fill_with_draws(tensor, "orthogonal_", rng, draw)


def sparse_(tensor: T, sparsity: float, std: float = 0.01, *, rng: Rng = None) -> T:
    """Fill a matrix from the normal distribution, and set a part of each column to 0 (Martens, 2010).

    Args:
        tensor: of 2 axes.
        sparsity: the fraction of each column that is 0, rounded up to whole elements.
        std: the standard deviation of the others.
        rng: a Generator to draw from.

    Raises:
        ShapeError: the tensor does not have 2 axes.
        ValueError: sparsity is not from 0 to 1, or std negative.

    >>> import gradmgr.numpy as np
    >>> import numpy
    >>> from gradmgr import nn
    >>> w = nn.init.sparse_(np.empty((4, 3)), sparsity=0.5, rng=numpy.random.default_rng(0))
    >>> (w == 0).sum(axis=0)
    Tensor([2, 2, 2])
    """
    _check_axes(tensor, (2,), "sparse_")
    sparsity, std = number(sparsity, "sparsity", "sparse_"), _checked_std(std, "sparse_")
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparse_: sparsity must be from 0 to 1; found {sparsity}")

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        values = rng.normal(0, std, shape)
        rows = rng.random(shape).argsort(axis=0)[: math.ceil(sparsity * shape[0])]
        np.put_along_axis(values, rows, 0, axis=0)
        return values

    return _fill_with_draws(tensor, "sparse_", rng, draw)


# ---------------------------------------------------------------- helpers


def _fill_with_draws(tensor: T, asked: str, rng: Rng, draw: Callable[[np.random.Generator, tuple[int, ...]], Any]) -> T:
    _check_tensor(tensor, asked)
    check_floating(asked, tensor=tensor)
    check_may_draw(asked)
    chosen = generator(rng, asked)
    return _fill(tensor, asked, lambda shape: draw(chosen, shape) if tensor.size else np.empty(shape))


def _draw_uniform(tensor: T, asked: str, rng: Rng, std: float) -> T:
    bound = math.sqrt(3) * std
    return _fill_with_draws(tensor, asked, rng, lambda rng, shape: rng.uniform(-bound, bound, shape))


def _fill(tensor: T, asked: str, make: Callable[[tuple[int, ...]], Any]) -> T:
    _check_tensor(tensor, asked)
    values = libraries.to_device(make(tensor.shape).astype(tensor.dtype), tensor.device)
    with no_grad():
        tensor[...] = values
    return tensor


def _xavier(tensor: Tensor, gain: float, asked: str) -> float:
    fan_in, fan_out = _fans(tensor, asked)
    return number(gain, "gain", asked) * math.sqrt(2 / max(fan_in + fan_out, 1))


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str, asked: str) -> float:
    check_word(mode, ("fan_in", "fan_out"), "mode", asked)
    fan = _fans(tensor, asked)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def _fans(tensor: Tensor, asked: str) -> tuple[int, int]:
    _check_tensor(tensor, asked)
    if tensor.ndim < 2:
        raise errors.ShapeError(
            f"{asked} needs a tensor of shape (out, in, ...), for its fans; found {describe(tensor)}"
        )
    out, channels, *window = tensor.shape
    return channels * math.prod(window), out * math.prod(window)


def _check_tensor(tensor: Any, asked: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{asked} writes into a Tensor; found {type(tensor).__name__}; make one with gradmgr.tensor(...)"
        )


def _check_axes(tensor: Any, known: tuple[int, ...], asked: str) -> None:
    _check_tensor(tensor, asked)
    if tensor.ndim not in known:
        says = " or ".join(map(str, known))
        raise errors.ShapeError(f"{asked} needs a tensor of {says} axes; found {describe(tensor)}")


def _checked_std(std: Any, asked: str) -> float:
    found = number(std, "std", asked)
    if not found >= 0:
        raise ValueError(f"{asked}: std must not be negative; found {found}")
    return found
