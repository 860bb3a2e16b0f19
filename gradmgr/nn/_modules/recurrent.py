"""LSTM, GRU and RNN over sequences, and their cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays.drawing import generator
from gradmgr._engine.op import zeros
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import init
from gradmgr.nn._functions.arguments import check_floating, check_word, length, one_array
from gradmgr.nn._functions.dropout import dropout
from gradmgr.nn._functions.linear import linear
from gradmgr.nn._functions.recurrent import gru_cell, lstm_cell, lstm_step
from gradmgr.nn._functions.recurrent_sequences import gru_over, lstm_over
from gradmgr.nn._functions.rnn_cell import ACTIVATIONS, rnn_relu_cell, rnn_tanh_cell
from gradmgr.nn._modules.module import Module
from gradmgr.ops.convert import cast_to, wide_dtype
from gradmgr.ops.join import concatenate, stack
from gradmgr.ops.shape import expand_dims, swapaxes


def _uniform(shape: tuple[int, ...], hidden: int, device: str | None, dtype: Any, rng: Any) -> Parameter:
    """Return a parameter drawn uniformly from [-1/sqrt(hidden), 1/sqrt(hidden)), as in torch."""
    bound = 1 / math.sqrt(hidden)
    made = Parameter(np.empty(shape, np.float32 if dtype is None else dtype), device=device)
    return init.uniform_(made, -bound, bound, rng=rng)


# ---------------------------------------------------------------- cells


class _Cell(Module):
    _gates: int

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        asked = type(self).__name__
        self.input_size = length(input_size, "input_size", asked, 1)
        self.hidden_size = hidden = length(hidden_size, "hidden_size", asked, 1)
        self.bias = bool(bias)
        rng, rows = generator(rng, asked), self._gates * hidden
        self.weight_ih = _uniform((rows, self.input_size), hidden, device, dtype, rng)
        self.weight_hh = _uniform((rows, hidden), hidden, device, dtype, rng)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, _uniform((rows,), hidden, device, dtype, rng) if bias else None)

    def extra_repr(self) -> str:
        """Return the sizes, for `repr`."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")

    def _zero_state(self, input: Any) -> Any:
        """Return a state of zeros for an input; the cell's function checks the input."""
        return zeros(input, (*input.shape[:-1], self.hidden_size), self.weight_hh.dtype)


class LSTMCell(_Cell):
    """One step of an LSTM: `functional.lstm_cell` with parameters; as torch.nn.LSTMCell.

    Args:
        input_size: features of the input.
        hidden_size: features of h and c.
        bias: whether there are bias_ih and bias_hh.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0; None for a new one.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.LSTMCell(2, 3, rng=numpy.random.default_rng(0))
    >>> h, c = cell(numpy.ones((4, 2), "float32"))
    >>> h.shape, c.shape
    ((4, 3), (4, 3))
    """

    _gates = 4

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Return (h', c') for input (batch, input_size) and hx = (h, c); None means zeros."""
        input = one_array(input)
        if hx is None:
            hx = (self._zero_state(input),) * 2
        return lstm_cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


class GRUCell(_Cell):
    """One step of a GRU: `functional.gru_cell` with parameters; as torch.nn.GRUCell.

    Args:
        input_size: features of the input.
        hidden_size: features of h.
        bias: whether there are bias_ih and bias_hh.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0; None for a new one.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.GRUCell(2, 3, rng=numpy.random.default_rng(0))
    >>> cell(numpy.ones((4, 2), "float32")).shape
    (4, 3)
    """

    _gates = 3

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """Return h' for input (batch, input_size) and hx = h; None means zeros."""
        input = one_array(input)
        hx = self._zero_state(input) if hx is None else hx
        return gru_cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)  # type: ignore[no-any-return]  # x is Any


class RNNCell(_Cell):
    """One step of a plain recurrent network: `functional.rnn_tanh_cell` or `rnn_relu_cell`; as torch.nn.RNNCell.

    Args:
        input_size: features of the input.
        hidden_size: features of h.
        bias: whether there are bias_ih and bias_hh.
        nonlinearity: "tanh" or "relu".
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0; None for a new one.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.RNNCell(2, 3, rng=numpy.random.default_rng(0))
    >>> cell(numpy.ones((4, 2), "float32")).shape
    (4, 3)
    """

    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        check_word(nonlinearity, tuple(ACTIVATIONS), "nonlinearity", "RNNCell")
        super().__init__(input_size, hidden_size, bias, device, dtype, rng=rng)
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """Return h' for input (batch, input_size) and hx = h; None means zeros."""
        input = one_array(input)
        hx = self._zero_state(input) if hx is None else hx
        cell = rnn_tanh_cell if self.nonlinearity == "tanh" else rnn_relu_cell
        return cell(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)  # type: ignore[no-any-return]  # x is Any


# ---------------------------------------------------------------- layers over sequences


class _Recurrent(Module):
    """The base class of LSTM, GRU and RNN: parameters of all layers and directions, and the loop over them."""

    _gates: int
    _states: tuple[str, ...]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        asked = type(self).__name__
        self.input_size = length(input_size, "input_size", asked, 1)
        self.hidden_size = length(hidden_size, "hidden_size", asked, 1)
        self.num_layers = length(num_layers, "num_layers", asked, 1)
        self.proj_size = length(proj_size, "proj_size", asked)
        if self.proj_size >= self.hidden_size:
            raise ValueError(f"{asked}: proj_size={proj_size} must be smaller than hidden_size={hidden_size}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{asked}: dropout must be a probability, from 0 to 1; found {dropout!r}")
        if dropout > 0 and self.num_layers == 1:
            errors.warn(
                f"{asked}: dropout={dropout} applies between layers, and there is one: it does nothing; use "
                "num_layers of 2 or more, or a Dropout module behind it",
                UserWarning,
            )
        self.bias, self.batch_first, self.bidirectional = bool(bias), bool(batch_first), bool(bidirectional)
        self.dropout = float(dropout)
        self.rng = generator(rng, asked)
        self._make_parameters(device, dtype)

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _parameter_suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: 1 + self.bidirectional]

    def _make_parameters(self, device: str | None, dtype: Any) -> None:
        rng, rows = self.rng, self._gates * self.hidden_size
        for layer in range(self.num_layers):
            features = self.input_size if layer == 0 else self._output_size * (1 + self.bidirectional)
            for suffix in self._parameter_suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, features),
                    "weight_hh": (rows, self._output_size),
                }
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {}
                shapes |= {"weight_hr": (self.proj_size, self.hidden_size)} if self.proj_size else {}
                for name, shape in shapes.items():
                    self.register_parameter(name + suffix, _uniform(shape, self.hidden_size, device, dtype, rng))

    def extra_repr(self) -> str:
        """Return the sizes and the options that differ from the defaults, for `repr`."""
        defaults = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0}
        defaults["bidirectional"] = False
        chosen = [f"{name}={getattr(self, name)}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join([str(self.input_size), str(self.hidden_size), *chosen])

    # ------------------------------------------------------------ forward

    def _run(self, input: Any, given: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        """Return the output and the last states, in the order of `_states`."""
        x = self._checked(one_array(input))
        of_batch = x.ndim == 3
        if not of_batch:
            x = expand_dims(x, 1)
        elif self.batch_first:
            x = swapaxes(x, 0, 1)
        states = self._first_states(x, given, of_batch)
        last: list[list[Any]] = [[] for _ in self._states]
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = dropout(x, self.dropout, rng=self.rng)
            outputs = []
            for direction, suffix in enumerate(self._parameter_suffixes(layer)):
                place = layer * (1 + self.bidirectional) + direction
                output, ends = self._run_layer(x, [state[place] for state in states], suffix, direction == 1)
                outputs.append(output)
                for ended, end in zip(last, ends, strict=True):
                    ended.append(end)
            x = outputs[0] if len(outputs) == 1 else concatenate(outputs, axis=2)
        ended_states = [stack(ended) for ended in last]
        if not of_batch:
            return x[:, 0], tuple([state[:, 0] for state in ended_states])
        return swapaxes(x, 0, 1) if self.batch_first else x, tuple(ended_states)

    def _run_layer(self, x: Any, states: list[Any], suffix: str, reverse: bool) -> tuple[Any, list[Any]]:
        """Run one layer in one direction; the input's part of all gates is one product."""
        weights = [getattr(self, name + suffix) for name in ("weight_ih", "weight_hh")]
        biases = [getattr(self, name + suffix) for name in ("bias_ih", "bias_hh")] if self.bias else [None, None]
        weight_hr = getattr(self, "weight_hr" + suffix) if self.proj_size else None
        result = x.dtype
        dtype = np.result_type(result, weights[0].dtype)
        inner = wide_dtype(dtype)
        x, *rest = (None if t is None else cast_to(t, inner) for t in (x, *weights, *biases, weight_hr, *states))
        w_ih, w_hh, b_ih, b_hh, w_hr, *states = rest
        output, last = self._run_direction(x, states, w_ih, w_hh, b_ih, b_hh, w_hr, reverse)
        return cast_to(output, dtype), [cast_to(state, dtype) for state in last]

    def _run_direction(
        self, x: Any, states: list[Any], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, reverse: bool
    ) -> tuple[Any, list[Any]]:
        """Return h after every step, and the states after the last one."""
        raise NotImplementedError

    def _checked(self, x: Any) -> Any:
        asked = type(self).__name__
        check_floating(asked, input=x)
        layout = "(batch, length, features)" if self.batch_first else "(length, batch, features)"
        if x.ndim not in (2, 3):
            raise errors.ShapeError(f"{asked} takes an input {layout}, or (length, features); found {x.shape}")
        if x.shape[-1] != self.input_size:
            raise errors.ShapeError(f"{asked}: the input must have {self.input_size} features; found {x.shape}")
        if x.shape[1 if self.batch_first and x.ndim == 3 else 0] == 0:
            raise errors.ShapeError(f"{asked}: the sequence has no steps; found an input {x.shape}, as {layout}")
        return x

    def _first_states(self, x: Any, given: tuple[Any, ...] | None, of_batch: bool) -> list[Any]:
        """Return the initial states, (layers and directions, batch, features)."""
        lead = (self.num_layers * (1 + self.bidirectional), x.shape[1])
        widths = {"h": self._output_size, "c": self.hidden_size}
        if given is None:
            return [zeros(x, (*lead, widths[name]), x.dtype) for name in self._states]
        states = []
        for name, state in zip(self._states, map(one_array, given), strict=True):
            expected = (*lead, widths[name]) if of_batch else (lead[0], widths[name])
            if state.shape != expected:
                raise errors.ShapeError(
                    f"{type(self).__name__}: {name} must have shape {expected}: layers and directions, "
                    f"{'batch, ' if of_batch else ''}features; found {state.shape}"
                )
            check_floating(type(self).__name__, **{name: state})
            states.append(state if of_batch else expand_dims(state, 1))
        return states


class LSTM(_Recurrent):
    """Layers of LSTM over sequences, as torch.nn.LSTM, with the same names of parameters.

    Args:
        input_size: features of the input.
        hidden_size: features of c, and of h unless it is projected.
        num_layers: layers, each over the output of the one before.
        bias: whether there are bias_ih and bias_hh.
        batch_first: whether input and output are (batch, length, features) instead of (length, batch, features).
        dropout: the probability with which the numbers passed from layer to layer are set to 0 in training.
        bidirectional: whether each layer runs in both directions, whose outputs are concatenated.
        proj_size: if not 0, h is a learned projection to this number of features, smaller than hidden_size.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0, and of dropout; None for a new
            one.

    Raises:
        ValueError: a size or probability is out of range.

    >>> import numpy
    >>> from gradmgr import nn
    >>> lstm = nn.LSTM(2, 3, rng=numpy.random.default_rng(0))
    >>> output, (h, c) = lstm(numpy.ones((5, 4, 2), "float32"))
    >>> output.shape, h.shape, c.shape
    ((5, 4, 3), (1, 4, 3), (1, 4, 3))
    """

    _gates = 4
    _states = ("h", "c")

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over sequences.

        Args:
            input: shape (length, batch, input_size), with batch_first (batch, length, input_size); or
                (length, input_size). Sequences of different lengths, as torch's packed ones, are not supported.
            hx: the initial pair (h, c), of shape (layers and directions, batch, features); None for zeros.

        Returns:
            The output, h of the last layer after every step; and the pair (h, c) after the last step of all layers.

        Raises:
            ShapeError: the input or a state does not fit.
            TypeError: hx is not a pair.
        """
        if hx is not None and not (isinstance(hx, (tuple, list)) and len(hx) == 2):
            raise TypeError(f"LSTM: hx must be the pair (h, c); found {type(hx).__name__}")
        output, (h, c) = self._run(input, None if hx is None else tuple(hx))
        return output, (h, c)

    def _run_direction(
        self, x: Any, states: list[Any], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, reverse: bool
    ) -> tuple[Any, list[Any]]:
        parts = linear(x, w_ih, None if b_ih is None else b_ih + b_hh)
        if w_hr is not None:
            return _run_projected(parts, states, w_hh, w_hr, reverse)
        outputs, cells = lstm_over(parts, states[0], states[1], w_hh, reverse)
        last = 0 if reverse else -1
        return outputs, [outputs[last], cells[last]]


def _run_projected(parts: Any, states: list[Any], w_hh: Any, w_hr: Any, reverse: bool) -> tuple[Any, list[Any]]:
    """Run step by step, projecting h after each step."""
    h, c = states
    outputs = []
    for k in range(parts.shape[0])[:: -1 if reverse else 1]:
        h, c = lstm_step(parts[k], h, c, None, w_hh, None, None)
        h = linear(h, w_hr)
        outputs.append(h)
    return stack(outputs[::-1] if reverse else outputs), [h, c]


class GRU(_Recurrent):
    """Layers of GRU over sequences, as torch.nn.GRU, with the same names of parameters.

    Args:
        input_size: features of the input.
        hidden_size: features of h.
        num_layers: layers, each over the output of the one before.
        bias: whether there are bias_ih and bias_hh.
        batch_first: whether input and output are (batch, length, features) instead of (length, batch, features).
        dropout: the probability with which the numbers passed from layer to layer are set to 0 in training.
        bidirectional: whether each layer runs in both directions, whose outputs are concatenated.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0, and of dropout; None for a new
            one.

    Raises:
        ValueError: a size or probability is out of range.

    >>> import numpy
    >>> from gradmgr import nn
    >>> gru = nn.GRU(2, 3, bidirectional=True, rng=numpy.random.default_rng(0))
    >>> output, h = gru(numpy.ones((5, 4, 2), "float32"))
    >>> output.shape, h.shape
    ((5, 4, 6), (2, 4, 3))
    """

    _gates = 3
    _states = ("h",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype, rng=rng
        )

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Run over sequences.

        Args:
            input: shape (length, batch, input_size), with batch_first (batch, length, input_size); or
                (length, input_size). Sequences of different lengths, as torch's packed ones, are not supported.
            hx: the initial h, of shape (layers and directions, batch, hidden_size); None for zeros.

        Returns:
            The output, h of the last layer after every step; and h after the last step of all layers.

        Raises:
            ShapeError: the input or hx does not fit.
        """
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h

    def _run_direction(
        self, x: Any, states: list[Any], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, reverse: bool
    ) -> tuple[Any, list[Any]]:
        outputs = gru_over(linear(x, w_ih, b_ih), states[0], w_hh, b_hh, reverse)
        return outputs, [outputs[0 if reverse else -1]]


class RNN(_Recurrent):
    """Layers of a plain recurrent network over sequences, as torch.nn.RNN, with the same names of parameters.

    Args:
        input_size: features of the input.
        hidden_size: features of h.
        num_layers: layers, each over the output of the one before.
        nonlinearity: "tanh" or "relu".
        bias: whether there are bias_ih and bias_hh.
        batch_first: whether input and output are (batch, length, features) instead of (length, batch, features).
        dropout: the probability with which the numbers passed from layer to layer are set to 0 in training.
        bidirectional: whether each layer runs in both directions, whose outputs are concatenated.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0, and of dropout; None for a new
            one.

    Raises:
        ValueError: a size or probability is out of range, or the nonlinearity none of these.

    >>> import numpy
    >>> from gradmgr import nn
    >>> rnn = nn.RNN(2, 3, rng=numpy.random.default_rng(0))
    >>> output, h = rnn(numpy.ones((5, 4, 2), "float32"))
    >>> output.shape, h.shape
    ((5, 4, 3), (1, 4, 3))
    """

    _gates = 1
    _states = ("h",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        check_word(nonlinearity, tuple(ACTIVATIONS), "nonlinearity", "RNN")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype, rng=rng
        )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Run over sequences.

        Args:
            input: shape (length, batch, input_size), with batch_first (batch, length, input_size); or
                (length, input_size). Sequences of different lengths, as torch's packed ones, are not supported.
            hx: the initial h, of shape (layers and directions, batch, hidden_size); None for zeros.

        Returns:
            The output, h of the last layer after every step; and h after the last step of all layers.

        Raises:
            ShapeError: the input or hx does not fit.
        """
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h

    def _run_direction(
        self, x: Any, states: list[Any], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, w_hr: Any, reverse: bool
    ) -> tuple[Any, list[Any]]:
        parts, activation = linear(x, w_ih, None if b_ih is None else b_ih + b_hh), ACTIVATIONS[self.nonlinearity]
        h, outputs = states[0], []
        for k in range(parts.shape[0])[:: -1 if reverse else 1]:
            h = activation(parts[k] + linear(h, w_hh))
            outputs.append(h)
        return stack(outputs[::-1] if reverse else outputs), [h]
