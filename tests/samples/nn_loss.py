"""Samples of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from samples._table import EMPTY, SCALAR, Arg, Array, X, add, at, given, wide

# ---------------------------------------------------------------- number with number

_Y = Arg((3, 4), -1.0, 1.0)
_P = Arg((3, 4), 0.1, 0.9)
_APART = Arg((3, 4), 3.0, 5.0)  # beyond any delta, so that no difference is at a corner
_WEIGHT = given([0.5, 2.0, 1.5, 1.0])


def _reduce(loss: Array, reduction: str) -> Array:
    return loss if reduction == "none" else getattr(np, reduction)(loss)


def _pairs(name: str, case: str, reference: Callable[..., Array], x: Arg, y: Arg, *weights: str, **facts: Any) -> None:
    """Enter a call; `options` in `facts` are its keywords, those but the reduction the reference's too."""
    options = facts.pop("options", {})
    others = {key: value for key, value in options.items() if key != "reduction"}
    function = getattr(F, name)

    def expected(x: Array, y: Array, *given: Array) -> Array:
        loss = reference(wide(x), wide(y), **others, **dict(zip(weights, given, strict=True)))
        return np.asarray(_reduce(loss, options.get("reduction", "mean"))).astype(np.result_type(x, y))

    add(
        f"nn.{name}",
        case,
        lambda xp, x, y, *given: function(x, y, **options, **dict(zip(weights, given, strict=True))),
        x,
        y,
        *[_WEIGHT] * len(weights),
        reference=expected,
        dispatches=False,
        **facts,
    )


def _huber(x: Array, y: Array, delta: float = 1.0) -> Array:
    d = np.abs(x - y)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def _with_logits(x: Array, y: Array, weight: Any = 1.0, pos_weight: Any = 1.0) -> Array:
    weight, pos_weight = np.asarray(weight, x.dtype), np.asarray(pos_weight, x.dtype)
    return weight * (pos_weight * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x))


def _bce(x: Array, y: Array, weight: Any = 1.0) -> Array:
    return -np.asarray(weight, x.dtype) * (y * np.log(x) + (1 - y) * np.log(1 - x))


def _kl_div(x: Array, y: Array, log_target: bool = False) -> Array:
    return np.exp(y) * (y - x) if log_target else y * (np.log(y) - x)


_DIFFERENCES: dict[str, Callable[..., Array]] = {
    "mse_loss": lambda x, y: (x - y) ** 2,
    "l1_loss": lambda x, y: np.abs(x - y),
    "huber_loss": _huber,
    "smooth_l1_loss": lambda x, y, beta=1.0: _huber(x, y, beta) / beta,
}
for _name, _reference in _DIFFERENCES.items():
    _pairs(_name, "mean", _reference, X, _APART, third=_name == "mse_loss")
    _pairs(_name, "none", _reference, X, _APART, options={"reduction": "none"})
_pairs("mse_loss", "0-d, sum", _DIFFERENCES["mse_loss"], SCALAR, SCALAR, options={"reduction": "sum"})
_pairs("mse_loss", "zero-size, sum", _DIFFERENCES["mse_loss"], EMPTY, EMPTY, options={"reduction": "sum"})
_NEAR = at([[0.3, -0.4, 3.0, -4.0]]), given([[0.0, 0.5, 0.0, 0.0]])
_pairs("huber_loss", "both parts", _huber, *_NEAR, options={"delta": 1.5})
_pairs("smooth_l1_loss", "both parts", _DIFFERENCES["smooth_l1_loss"], *_NEAR, options={"beta": 1.5})

_pairs("binary_cross_entropy_with_logits", "mean", _with_logits, X, _P, third=True)
_pairs("binary_cross_entropy_with_logits", "0-d", _with_logits, SCALAR, Arg((), 0.1, 0.9))
_pairs(
    *("binary_cross_entropy_with_logits", "weights", _with_logits, X, _P, "weight", "pos_weight"),
    options={"reduction": "sum"},
)
_pairs("binary_cross_entropy", "mean", _bce, _P, _P)
_pairs("binary_cross_entropy", "weight, none", _bce, _P, _P, "weight", options={"reduction": "none"})
_pairs("kl_div", "mean", _kl_div, X, _P)
_pairs("kl_div", "log_target, sum", _kl_div, X, _Y, options={"log_target": True, "reduction": "sum"})

# ---------------------------------------------------------------- labels

_ROWS = given([2, 0, 3])
_SOME = given([2, -100, 3])
_PIXELS = given([[1, 0, 2, 2], [0, 1, -1, 1]])
_IMAGES = Arg((2, 3, 4))


def _distribution(shape: tuple[int, ...], target: Array, ignore_index: int) -> Array:
    """One-hot along the axis of the classes; zeros for a row that does not count."""
    axis = min(1, len(shape) - 1)
    classes = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return (classes == np.expand_dims(target, axis)) & (np.expand_dims(target, axis) != ignore_index)


def _from_logs(
    logs: Array,
    target: Array,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    axis = min(1, logs.ndim - 1)
    row = [-1 if k == axis else 1 for k in range(logs.ndim)]
    each = np.ones(logs.shape[axis]) if weight is None else weight
    each = each.reshape(row).astype(logs.dtype)
    if target.dtype.kind not in "iu":
        hot = np.ones(logs.shape, logs.dtype)
        q, count = wide(target), logs.size // logs.shape[axis]
    else:
        hot = _distribution(logs.shape, target, ignore_index)
        q, count = hot, np.sum(hot * each)
    spread = hot.any(axis=axis, keepdims=True) / logs.dtype.type(logs.shape[axis])
    q = (1 - label_smoothing) * q + label_smoothing * spread
    loss = -np.sum(q * each * logs, axis=axis)
    return np.sum(loss) / count if reduction == "mean" else _reduce(loss, reduction)


def _from_logits(x: Array, target: Array, *args: Any, **options: Any) -> Array:
    axis = min(1, x.ndim - 1)
    shifted = x - x.max(axis=axis, keepdims=True)
    return _from_logs(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)), target, *args, **options)


def _labels(
    name: str, case: str, x: Arg, target: Arg, *weight: Arg, facts: dict[str, Any] | None = None, **options: Any
) -> None:
    function, reference = getattr(F, name), _from_logits if name == "cross_entropy" else _from_logs

    def expected(x: Array, target: Array, *weight: Array) -> Array:
        dtype = x.dtype if target.dtype.kind in "iu" else np.result_type(x, target)
        return np.asarray(reference(wide(x), target, *weight, **options)).astype(dtype)

    add(
        f"nn.{name}",
        case,
        lambda xp, x, target, *weight: function(x, target, *weight, **options),
        x,
        target,
        *weight,
        reference=expected,
        dispatches=False,
        **(facts or {}),
    )


for _name in ("nll_loss", "cross_entropy"):
    _labels(_name, "rows", X, _ROWS, facts={"third": True})
    _labels(_name, "some ignored, weights", X, _SOME, _WEIGHT)
    _labels(_name, "one row", Arg((4,)), given(1))
    _labels(_name, "images", _IMAGES, _PIXELS, ignore_index=-1, reduction="none")
_labels("cross_entropy", "smoothed", X, _ROWS, label_smoothing=0.2)
_labels(
    *("cross_entropy", "all options", _IMAGES, _PIXELS, given([0.5, 2.0, 1.5])),
    ignore_index=-1,
    label_smoothing=0.2,
    reduction="sum",
)
_labels("cross_entropy", "large", at([[900.0, 901.0, 899.5], [-900.0, -901.0, -899.5]]), given([0, 1]))
_labels("cross_entropy", "no rows, sum", EMPTY, given(np.zeros(0, int)), reduction="sum")
_labels("cross_entropy", "probabilities", X, _P)
_labels("cross_entropy", "probabilities, smoothed, weights", X, _P, _WEIGHT, label_smoothing=0.2)
