"""Distribution: parameters, shapes, and what every distribution does with them."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

import gradmgr.numpy as gnp
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.drawing import generator
from gradmgr._arrays.libraries import device_of, may_hold, to_device
from gradmgr._engine.context import check_may_draw
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.distributions import constraints
from gradmgr.distributions.constraints import Constraint

Shape = tuple[int, ...]
D = TypeVar("D", bound="Distribution")


def sample_shape_of(shape: int | Shape, asked: str, name: str = "sample_shape") -> Shape:
    """Return the shape of a sample as a tuple."""
    try:
        lengths = tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    except TypeError:
        lengths = (-1,)
    if any(n < 0 for n in lengths):
        raise ValueError(f"{asked}: {name} must be lengths, as 5 or (5, 2); found {shape!r}")
    return lengths


def parameter_of(value: Any, name: str, owner: str) -> Any:
    """Return a parameter: a Tensor or array as it is, a Python number as it is, all else as an array.

    Raises:
        TypeError: it does not consist of real numbers.
    """
    if not isinstance(value, (int, float)) and not hasattr(value, "dtype"):
        value = gnp.asarray(value) if _holds_tensors(value) else np.asarray(value)
    kind = value.dtype.kind if hasattr(value, "dtype") else "f"
    if kind not in "fiub" and getattr(value.dtype, "name", "") != "bfloat16":
        raise TypeError(f"{owner}: {name} must be real numbers; found dtype {value.dtype}")
    return value


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) or _holds_tensors(v) for v in value)


def in_dtype(value: Any, dtype: Any) -> Any:
    """Return a number as a NumPy scalar of a dtype; an array or Tensor cast to it."""
    if not hasattr(value, "dtype"):
        return dtype.type(value)
    return value if value.dtype == dtype else gnp.astype(value, dtype)


def common_dtype(*values: Any) -> Any:
    """Return the floating dtype in which values meet; Python numbers and integers promote nothing; else float64."""
    dtypes = [v.dtype for v in values if hasattr(v, "dtype") and v.dtype.kind not in "iub"]
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float64)


def shape_of(value: Any) -> Shape:
    """Return the shape of an array or number."""
    return getattr(value, "shape", ())


def require(value: Any, constraint: Constraint, name: str, owner: str) -> None:
    """Raise a ValueError unless the elements of a plain array or number are as they must be."""
    holds = constraint.holds(value)
    if not (holds if holds.__class__ is bool else holds.all()):
        raise ValueError(
            f"{owner}: {name} must be {constraint.words}; found {first_failure(value, holds)}. validate_args=False "
            "leaves this check out"
        )


def first_failure(value: Any, holds: Any) -> str:
    """Return in words which elements of a plain array fail, `holds` telling of each whether it does not."""
    if not shape_of(value):
        return str(value)
    value, holds = to_device(value, "cpu"), to_device(holds, "cpu")
    failed = np.argwhere(~np.broadcast_to(holds, value.shape))
    place = tuple(map(int, failed[0]))
    others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{value[place]} at index {place[0] if len(place) == 1 else place}{others}, in shape {value.shape}"


def generator_for(rng: Any, asked: str) -> np.random.Generator:
    """Return the Generator to draw from.

    Raises:
        TypeError: rng is not a Generator; where torch's first argument, a shape, was passed, the error says so.
        RandomnessError: it is inside a vmap with randomness="error".
    """
    if isinstance(rng, (tuple, list)):
        raise TypeError(
            f"{asked} takes a numpy.random.Generator first, then the shape: {asked.partition('.')[2]}(rng, {rng!r}), "
            f"or sample_shape={rng!r} alone; found rng={rng!r}"
        )
    check_may_draw(asked)
    return generator(rng, asked)


class Distribution:
    """The base of all distributions: a batch of independent random variables, each with its own parameters.

    Parameters are kept as they are given, and read when something is computed, so that a manager which tracks one gets
    its gradient. Results have the dtype of the arrays and Tensors among parameters and values: Python numbers and
    integers take that dtype, which is float64 if there are none. They are Tensors where a parameter or value is one;
    of numbers and plain arrays alone they may be NumPy's.

    Attributes:
        has_rsample: whether there is an `rsample`, whose results are differentiable in the parameters.
        arg_constraints: what each parameter must be, by its name.

    Raises:
        NotImplementedError: there is no closed form of what is asked for.

    >>> from gradmgr import tensor
    >>> from gradmgr.distributions import Normal
    >>> normal = Normal(tensor([0.0, 10.0]), 1.0)
    >>> normal.batch_shape, normal.mean, normal.support
    ((2,), Tensor([ 0., 10.]), constraints.real)
    """

    has_rsample = False
    arg_constraints: ClassVar[Mapping[str, Constraint]] = MappingProxyType({})
    # What the constructor asks of a parameter where that is less, as of weights whose sum need not be 1.
    _requirements: ClassVar[Mapping[str, Constraint]] = MappingProxyType({})
    # An element at which the density is computed in place of those outside of the support; None if none is needed.
    _inner: ClassVar[float | None] = None
    _support: ClassVar[Constraint]

    def __init__(self, validate_args: bool, **parameters: Any) -> None:
        owner = type(self).__name__
        self._parameters = {name: parameter_of(value, name, owner) for name, value in parameters.items()}
        for name, value in self._parameters.items():
            ndim = self.arg_constraints[name].event_dim
            if len(shape_of(value)) < ndim:
                raise ValueError(f"{owner}: {name} has at least {ndim} dimensions; found shape {shape_of(value)}")
        try:
            self._batch_shape: Shape = np.broadcast_shapes(
                *[self._batch_shape_of(name, value) for name, value in self._parameters.items()]
            )
        except ValueError:
            found = ", ".join(f"{name} {shape_of(value)}" for name, value in self._parameters.items())
            raise ValueError(f"{owner}: the parameters' shapes must broadcast; found {found}") from None
        if validate_args:
            for name, value in self._parameters.items():
                self._check(name, value)

    def _batch_shape_of(self, name: str, value: Any) -> Shape:
        shape = shape_of(value)
        return shape[: len(shape) - self.arg_constraints[name].event_dim]

    def _check(self, name: str, value: Any) -> None:
        constraint = self._requirements.get(name, self.arg_constraints[name])
        if constraint is constraints.real or constraint is constraints.real_vector:
            constraint = constraints.finite  # an infinite location gives NaN everywhere
        plain = raw(value)
        if not is_batched(plain):  # the examples of a vmap have no common truth value
            require(plain, constraint, name, type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        parameters = self.__dict__.get("_parameters", {})
        if name in parameters:
            return parameters[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}: {shape_of(v)}' for name, v in self._parameters.items())})"

    @property
    def batch_shape(self) -> Shape:
        """The shape to which the parameters broadcast."""
        return self._batch_shape

    @property
    def event_shape(self) -> Shape:
        """The shape of one value."""
        return ()

    @property
    def support(self) -> Constraint:
        """What the values are; a class overrides it where that depends on the parameters."""
        return self._support

    def expand(self: D, batch_shape: int | Shape) -> D:
        """Return the same distribution with its parameters broadcast.

        Args:
            batch_shape: the new `batch_shape`, to which the present one broadcasts.

        Raises:
            ValueError: it does not.

        >>> from gradmgr import distributions
        >>> distributions.Normal(0.0, 1.0).expand((2, 3)).log_prob(0.0).shape
        (2, 3)
        """
        shape = sample_shape_of(batch_shape, f"{type(self).__name__}.expand", "batch_shape")
        if len(shape) < len(self._batch_shape) or any(
            old not in (1, new) for old, new in zip(self._batch_shape[::-1], shape[::-1], strict=False)
        ):
            raise ValueError(
                f"{type(self).__name__}.expand: batch_shape {self._batch_shape} must broadcast to the new one; found "
                f"{shape}"
            )
        made = copy.copy(self)
        made._expand_to(shape)
        return made

    def _expand_to(self, shape: Shape) -> None:
        dtype = self._dtype_with()  # numbers become arrays, of the dtype in which they would be computed with
        found = {}
        for name, value in self._parameters.items():
            own = shape_of(value)[len(self._batch_shape_of(name, value)) :]
            found[name] = gnp.broadcast_to(value if hasattr(value, "dtype") else in_dtype(value, dtype), shape + own)
        self._parameters, self._batch_shape = found, shape

    def _dtype_with(self, *values: Any) -> Any:
        return common_dtype(*self._parameters.values(), *values)

    def _values(self, *values: Any, are_constant: bool = False) -> list[Any]:
        """Return the parameters, and values beside them, in one dtype; as Tensors that no manager tracks if asked."""
        found = [*self._parameters.values(), *values]
        dtype = self._dtype_with(*values)
        if are_constant:
            found = [wrap(raw(value)) if isinstance(value, Tensor) else value for value in found]
        return [in_dtype(value, dtype) for value in found]

    # ------------------------------------------------------------ what the distributions compute

    def _draw(self, rng: np.random.Generator, shape: Shape, *parameters: Any) -> Any:
        """Return random values of shape + event_shape, computed of parameters as `_values` gives them."""
        raise NotImplementedError

    def _log_prob(self, value: Any, *parameters: Any) -> Any:
        """Return log_prob at values of the support, all in one dtype."""
        raise NotImplementedError

    def _cdf(self, value: Any, *parameters: Any) -> Any:
        """Return cdf at values between the ends, all in one dtype."""
        return self._without_closed_form("cdf")

    def _ends(self, value: Any, *parameters: Any) -> tuple[Any, Any, Any]:
        """Return of plain values where the cdf is 0 and where it is 1 with all derivatives 0, and a value between."""
        return self._without_closed_form("cdf")

    # ------------------------------------------------------------ for the user

    def log_prob(self, value: Any) -> Any:
        """Return the logarithm of the density, or of the probability, at a value; -inf if there is none, NaN at NaN.

        Args:
            value: numbers of shape (..., *event_shape); the leading axes broadcast with `batch_shape`.

        Returns:
            Of the shape of the leading axes, broadcast.

        Raises:
            ValueError: the shapes do not broadcast.
        """
        value = parameter_of(value, "value", f"{type(self).__name__}.log_prob")
        self._check_shape(value)
        *parameters, value = self._values(value)
        if self._inner is None:
            return self._log_prob(value, *parameters)
        support, plain = self.support, raw(value)
        is_inside = support.holds(plain) & np.isfinite(plain)
        return within(is_inside, lambda x: self._log_prob(x, *parameters), value, self._inner, support.event_dim)

    def _check_shape(self, value: Any) -> None:
        try:
            np.broadcast_shapes(shape_of(value), self._batch_shape + self.event_shape)
        except ValueError:
            raise ValueError(
                f"{type(self).__name__}.log_prob: a value must broadcast with batch_shape {self._batch_shape} + "
                f"event_shape {self.event_shape}; found shape {shape_of(value)}"
            ) from None

    def rsample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return random values that are differentiable in the parameters.

        Args:
            rng: the generator to draw from; None for a new one, seeded from NumPy's global generator.
            sample_shape: how many values to draw of each variable.

        Returns:
            Of shape sample_shape + batch_shape + event_shape.

        Raises:
            NotImplementedError: the values are discrete.
            TypeError: rng is not a Generator, as where a shape is given first.
            RandomnessError: it is called inside a vmap with randomness="error".
        """
        owner = type(self).__name__
        if not self.has_rsample:
            raise NotImplementedError(
                f"{owner} has no rsample: its values are not a differentiable function of the parameters; use "
                "sample(), and the gradient of log_prob()"
            )
        shape = sample_shape_of(sample_shape, f"{owner}.rsample") + self._batch_shape
        return self._draw(generator_for(rng, f"{owner}.rsample"), shape, *_on_one_device(self._values()))

    def sample(self, rng: np.random.Generator | None = None, sample_shape: int | Shape = ()) -> Any:
        """Return random values, which are constants to every manager; arguments and shape as for `rsample`."""
        owner = type(self).__name__
        shape = sample_shape_of(sample_shape, f"{owner}.sample") + self._batch_shape
        rng = generator_for(rng, f"{owner}.sample")
        made = self._draw(rng, shape, *_on_one_device(self._values(are_constant=True)))
        return wrap(raw(made)) if self._has_tensors() else made

    def _has_tensors(self) -> bool:
        return any(isinstance(value, Tensor) for value in self._parameters.values())

    def _without_closed_form(self, what: str) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} has no closed form of its {what}")

    def entropy(self) -> Any:
        """Return the (differential) entropy in nats, of shape batch_shape."""
        return self._without_closed_form("entropy")

    @property
    def mean(self) -> Any:
        """The expectation, of shape batch_shape + event_shape."""
        return self._without_closed_form("mean")

    @property
    def variance(self) -> Any:
        """The variance of each element, of shape batch_shape + event_shape."""
        return self._without_closed_form("variance")

    @property
    def stddev(self) -> Any:
        """The standard deviation: the root of the variance; where that is 0, its derivative is 0."""
        variance = self.variance
        is_zero = raw(variance) == 0
        return gnp.where(is_zero, 0, gnp.sqrt(gnp.where(is_zero, 1, variance)))

    def cdf(self, value: Any) -> Any:
        """Return the probability of values up to this one; NaN at NaN.

        Its derivatives at a bound of the support are those from within.

        Raises:
            NotImplementedError: there is no closed form.
        """
        *parameters, value = self._values(parameter_of(value, "value", f"{type(self).__name__}.cdf"))
        with np.errstate(all="ignore"):
            is_low, is_high, inner = self._ends(raw(value), *map(raw, parameters))
        return between_ends(is_low, is_high, lambda x: self._cdf(x, *parameters), value, inner)

    def icdf(self, q: Any) -> Any:
        """Return the value whose cdf is q."""
        return self._without_closed_form("icdf")

    def _spread(self, value: Any) -> Any:
        """Return what was computed of some of the parameters in the full shape."""
        shape = self._batch_shape + self.event_shape
        return value if shape_of(value) == shape else gnp.broadcast_to(value, shape)


def _on_one_device(values: list[Any]) -> list[Any]:
    """Return parameters with numbers as arrays on the GPU of the others: random numbers are drawn for any of them."""
    devices = {device_of(raw(value)) for value in values if not isinstance(value, np.generic)} - {"cpu"}
    if len(devices) != 1:
        return values
    (device,) = devices
    return [to_device(np.asarray(value), device) if isinstance(value, np.generic) else value for value in values]


def full_like_shape(parameter: Any, shape: Shape) -> Any:
    """Return a parameter's plain values, broadcast to a shape: what random numbers are drawn for."""
    return np.broadcast_to(raw(parameter), shape)


def within(is_inside: Any, compute: Callable[[Any], Any], value: Any, inner: Any, event_axes: int = 0) -> Any:
    """Return compute(value) where it is defined, else -inf, and NaN for NaN.

    It is computed at `inner` there, so that no gradient is NaN. The last `event_axes` axes are one value, for which
    `compute` returns one number.
    """
    if is_inside.__class__ is not bool and not is_batched(is_inside) and is_inside.all():
        return compute(value)
    made = compute(gnp.where(is_inside, value, in_dtype(inner, value.dtype)))
    is_nan = raw(value) != raw(value)
    if event_axes:
        axes = tuple(range(-event_axes, 0))
        is_inside, is_nan = is_inside.all(axis=axes), is_nan.any(axis=axes)
    return gnp.where(is_nan, np.nan, gnp.where(is_inside, made, -np.inf))


def between_ends(is_low: Any, is_high: Any, compute: Callable[[Any], Any], value: Any, inner: Any) -> Any:
    """Return 0 where a value is too low and 1 where it is too high, else compute(value).

    It is computed at `inner` there, so that no gradient is NaN.
    """
    is_end = is_low | is_high
    if not is_batched(is_end) and not is_end.any():
        return compute(value)
    return gnp.where(is_low, 0, gnp.where(is_high, 1, compute(gnp.where(is_end, inner, value))))


def by_parts(
    is_first: Any, first: Callable[[Any], Any], second: Callable[[Any], Any], value: Any, inner: tuple[Any, Any]
) -> Any:
    """Return first(value) where asked, else second(value).

    Where a function is not asked for, it is computed at its element of `inner`, so that no gradient is NaN.
    """
    if not is_batched(is_first) and not is_first.any():
        return second(value)
    of_first, of_second = gnp.where(is_first, value, inner[0]), gnp.where(is_first, inner[1], value)
    return gnp.where(is_first, first(of_first), second(of_second))


def numbers_of(dtype: Any) -> tuple[float, float, float]:
    """Return the smallest normal number of a floating dtype, the largest below 1, and the largest."""
    if dtype.name == "bfloat16":
        return 2.0**-126, 1 - 2.0**-8, (2 - 2.0**-7) * 2.0**127
    info = np.finfo(dtype)
    return float(info.tiny), float(1 - info.epsneg), float(info.max)


def drawn_exp(log: Any, scale: Any) -> Any:
    """Return scale exp(log) of random numbers, in the dtype of scale.

    They are moved from 0 and infinity to normal numbers, whose logarithms are finite.
    """
    least, below_one, largest = numbers_of(scale.dtype)
    rounded, shift = 4 * below_one - 3, np.log(in_dtype(raw(scale), log.dtype))  # no bound rounds to the other side
    low, high = (log.dtype.type(math.log(bound) * rounded) - shift for bound in (least, largest))
    log = gnp.exp(_moved_between(log, low, high))  # the name no longer holds the logarithms' memory
    return in_dtype(scale * log, scale.dtype)


def drawn_share(value: Any, dtype: Any) -> Any:
    """Return random numbers moved from 0 and 1 to the nearest normal number between."""
    least, below_one, _ = numbers_of(dtype)
    return in_dtype(_moved_between(value, value.dtype.type(least), value.dtype.type(below_one)), dtype)


def _moved_between(value: Any, low: Any, high: Any) -> Any:
    """Return the value clipped; itself where all of it is between, as nearly always: no array of its size is made."""
    plain = raw(value)
    if is_batched(plain) or is_batched(low) or not plain.size:
        return gnp.clip(value, low, high)
    return gnp.clip(value, low, high) if may_hold((plain.min() < low) | (plain.max() > high)) else value
