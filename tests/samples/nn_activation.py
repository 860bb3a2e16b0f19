"""Samples of activations and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import activation
from samples._table import CUBE, EMPTY, SCALAR, Arg, Array, X, add, at, wide

_AWAY = at([[-1.7, -0.4, 0.3, 1.1], [0.9, -2.1, 1.6, -0.2], [-0.8, 0.5, -1.2, 2.3]])  # from 0, where relu has a corner


def _call(name: str, case: str, reference: Callable[..., Array], x: Arg, *params: Any, **facts: Any) -> None:
    function = getattr(F, name)
    add(
        f"nn.{name}",
        case,
        lambda xp, x: function(x, *params),
        x,
        reference=lambda x: np.asarray(reference(wide(x), *params)).astype(x.dtype),
        dispatches=False,
        **facts,
    )


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "none":
        return x * scipy.special.ndtr(x)
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


_REFERENCES: dict[str, Callable[..., Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": _softplus,
    "gelu": _gelu,
}
_SMOOTH = ("sigmoid", "logsigmoid", "tanh", "silu", "softplus", "gelu")
for _name, _reference in _REFERENCES.items():
    _call(
        _name,
        "matrix",
        _reference,
        X if _name in _SMOOTH else _AWAY,
        third=_name in ("silu", "softplus", "gelu"),
    )
    _call(_name, "0-d", _reference, SCALAR)
for _name in ("relu", "gelu"):
    _call(_name, "zero-size", _REFERENCES[_name], EMPTY)
_call("relu", "at 0", _REFERENCES["relu"], at([0.0, -1.0, 2.0]), smooth=False)
_call("leaky_relu", "slope", _REFERENCES["leaky_relu"], _AWAY, 0.3)
_call("leaky_relu", "negative slope", _REFERENCES["leaky_relu"], _AWAY, -0.5)
_call("elu", "alpha", _REFERENCES["elu"], _AWAY, 0.5)
_call("elu", "far out", _REFERENCES["elu"], at([-40.0, -2.0, 3.0]))
_call("elu", "negative alpha", _REFERENCES["elu"], _AWAY, -0.5)
_call("softplus", "beta and threshold", _softplus, X, 2.0, 1.5)
_call("gelu", "tanh", _gelu, X, "tanh", third=True)
_call("gelu", "tanh, 0-d", _gelu, SCALAR, "tanh")
_call("gelu", "far out", _gelu, at([-6.0, -3.5, 3.5, 6.0]))


def _softmax(x: Array, dim: int) -> Array:
    share = np.exp(x - x.max(axis=dim, keepdims=True))
    return share / share.sum(axis=dim, keepdims=True)


def _log_softmax(x: Array, dim: int) -> Array:
    return np.log(_softmax(x, dim))


for _name, _reference in (("softmax", _softmax), ("log_softmax", _log_softmax)):
    _call(_name, "dim 0", _reference, CUBE, 0)
    _call(_name, "dim -1", _reference, CUBE, -1, third=True)
    _call(_name, "0-d", lambda x, dim, r=_reference: r(x[None], dim)[0], SCALAR, -1)
    _call(_name, "zero-size", lambda x, dim: x, EMPTY, 1)
    _call(_name, "large", _reference, at([[900.0, 901.0, 899.5], [-900.0, -901.0, -899.5]]), -1)
_call("softmax", "some -inf", _softmax, at([[-np.inf, 1.0, 2.0], [0.5, -np.inf, -np.inf]]), -1)


def _gelu_by_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)))


# Which of them `gelu` is depends on the size, and on whether there is a kernel in C.
for _name, _op, _exact in (
    ("gelu", activation._gelu, lambda x: x * scipy.special.ndtr(x)),
    ("gelu_of_input", activation._gelu_of_input, lambda x: x * scipy.special.ndtr(x)),
    ("gelu_tanh", activation._gelu_tanh, _gelu_by_tanh),
    ("gelu_tanh_of_input", activation._gelu_tanh_of_input, _gelu_by_tanh),
):
    add(
        f"engine.nn.{_name}",
        "as called",
        lambda xp, x, op=_op: op(x),
        X,
        reference=lambda x, exact=_exact: exact(wide(x)).astype(x.dtype),
        dispatches=False,
    )
add(
    "engine.nn.gelu_slope",
    "as called",
    lambda xp, x: activation._gelu_slope(x),
    X,
    reference=lambda x: (
        scipy.special.ndtr(wide(x)) + wide(x) * np.exp(-(wide(x) ** 2) / 2) / np.sqrt(2 * np.pi).astype(wide(x).dtype)
    ).astype(x.dtype),
    dispatches=False,
)
