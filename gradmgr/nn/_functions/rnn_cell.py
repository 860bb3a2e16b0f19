"""One step of a plain recurrent network, made of ops."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gradmgr import errors
from gradmgr.nn._functions.activation import relu, tanh
from gradmgr.nn._functions.arguments import check_floating, one_array
from gradmgr.nn._functions.linear import linear

ACTIVATIONS: MappingProxyType[str, Callable[[Any], Any]] = MappingProxyType({"tanh": tanh, "relu": relu})


def _step(asked: str, activation: Callable[[Any], Any], input: Any, hx: Any, weights: tuple[Any, ...]) -> Any:
    x, h = one_array(input), one_array(hx)
    w_ih, w_hh = map(one_array, weights[:2])
    b_ih, b_hh = (None if b is None else one_array(b) for b in weights[2:])
    check_floating(asked, input=x, hx=h, w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)
    hidden = w_hh.shape[0] if w_hh.ndim else 0
    features = x.shape[-1] if x.ndim else 0
    expected = {
        "hx": (h, (*x.shape[:-1], hidden)),
        "w_ih": (w_ih, (hidden, features)),
        "w_hh": (w_hh, (hidden, hidden)),
    }
    expected |= {name: (b, (hidden,)) for name, b in (("b_ih", b_ih), ("b_hh", b_hh)) if b is not None}
    if x.ndim not in (1, 2):
        raise errors.ShapeError(
            f"{asked}: input must have shape (batch, features) or (features,); found {x.shape}; for a sequence call it "
            "step by step"
        )
    for name, (found, shape) in expected.items():
        if found.shape != shape:
            raise errors.ShapeError(
                f"{asked}: {name} must have shape {shape}, as input has shape {x.shape} and the hidden size is "
                f"{hidden}; found {found.shape}"
            )
    return activation(linear(x, w_ih, b_ih) + linear(h, w_hh, b_hh))


def rnn_tanh_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of a recurrent network, as torch.rnn_tanh_cell: tanh(input w_ih^T + b_ih + h w_hh^T + b_hh).

    Args:
        input: shape (batch, features) or (features,).
        hx: h, of shape (batch, hidden) or (hidden,).
        w_ih: shape (hidden, features).
        w_hh: shape (hidden, hidden).
        b_ih: shape (hidden,).
        b_hh: shape (hidden,).

    Returns:
        h', in the common dtype of all arguments.

    Raises:
        DtypeError: an argument is not of real floating-point numbers.
        ShapeError: an argument does not fit; the message names it.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.rnn_tanh_cell(np.ones((1, 2)), np.zeros((1, 1)), np.ones((1, 2)), np.ones((1, 1))).round(4).tolist()
    [[0.964]]
    """
    return _step("rnn_tanh_cell", tanh, input, hx, (w_ih, w_hh, b_ih, b_hh))


def rnn_relu_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Compute one step of a recurrent network, as torch.rnn_relu_cell: relu(input w_ih^T + b_ih + h w_hh^T + b_hh).

    Args:
        input: shape (batch, features) or (features,).
        hx: h, of shape (batch, hidden) or (hidden,).
        w_ih: shape (hidden, features).
        w_hh: shape (hidden, hidden).
        b_ih: shape (hidden,).
        b_hh: shape (hidden,).

    Returns:
        h', in the common dtype of all arguments.

    Raises:
        DtypeError: an argument is not of real floating-point numbers.
        ShapeError: an argument does not fit; the message names it.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.rnn_relu_cell(np.ones((1, 2)), np.zeros((1, 1)), np.ones((1, 2)), np.ones((1, 1))).tolist()
    [[2.0]]
    """
    return _step("rnn_relu_cell", relu, input, hx, (w_ih, w_hh, b_ih, b_hh))
