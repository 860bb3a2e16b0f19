"""LSTM, GRU and RNN over sequences, and their cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from gradmgr import errors
from gradmgr._arrays.drawing import generator
from gradmgr._engine.op import zeros
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import init
from gradmgr.nn._functions import recurrent_layers as kinds
from gradmgr.nn._functions.arguments import check_floating, check_word, length, one_array
from gradmgr.nn._functions.dropout import dropout
from gradmgr.nn._functions.packed_sequence import PackedSequence, checked_packed, pack, pad_packed_sequence
from gradmgr.nn._functions.recurrent_layers import RNN_KINDS, Kind, States, Weights, run_layer
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
    """The base class of the cells: the parameters, and one step."""

    _kind: Kind

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
        rng, rows = generator(rng, asked), self._kind.gates * hidden
        self.weight_ih = _uniform((rows, self.input_size), hidden, device, dtype, rng)
        self.weight_hh = _uniform((rows, hidden), hidden, device, dtype, rng)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, _uniform((rows,), hidden, device, dtype, rng) if bias else None)

    def extra_repr(self) -> str:
        """Return the sizes, for `repr`."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")

    def _step(self, input: Any, hx: Any) -> Any:
        """Return what the function of the kind does, from states of zeros where hx is None; it checks the input."""
        input = one_array(input)
        if hx is None:
            zero = zeros(input, (*input.shape[:-1], self.hidden_size), self.weight_hh.dtype)
            hx = zero if len(self._kind.states) == 1 else (zero,) * len(self._kind.states)
        return self._kind.step(input, hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)


class LSTMCell(_Cell):
    """One step of an LSTM: `functional.lstm_cell` with parameters; as torch.nn.LSTMCell.

    Args:
        input_size: features of the input.
        hidden_size: features of h and c.
        bias: whether there are bias_ih and bias_hh.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0; None for a new one.

    Raises:
        ValueError: a size is not positive; the shape of an input or of a state does not fit.
        TypeError: an input is not of real floating-point numbers, or the state is not a pair.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.LSTMCell(2, 3, rng=numpy.random.default_rng(0))
    >>> h, c = cell(numpy.ones((4, 2), "float32"))
    >>> h.shape, c.shape
    ((4, 3), (4, 3))
    """

    _kind = kinds.LSTM

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, Tensor]:
        """Return (h', c') for input (batch, input_size) and hx = (h, c); None means zeros."""
        return self._step(input, hx)  # type: ignore[no-any-return]  # x is Any


class GRUCell(_Cell):
    """One step of a GRU: `functional.gru_cell` with parameters; as torch.nn.GRUCell.

    Args:
        input_size: features of the input.
        hidden_size: features of h.
        bias: whether there are bias_ih and bias_hh.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values, uniform within 1/sqrt(hidden_size) of 0; None for a new one.

    Raises:
        ValueError: a size is not positive; the shape of an input or of a state does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.GRUCell(2, 3, rng=numpy.random.default_rng(0))
    >>> cell(numpy.ones((4, 2), "float32")).shape
    (4, 3)
    """

    _kind = kinds.GRU

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """Return h' for input (batch, input_size) and hx = h; None means zeros."""
        return self._step(input, hx)  # type: ignore[no-any-return]  # x is Any


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

    Raises:
        ValueError: a size is not positive, or `nonlinearity` unknown; the shape of an input or of a state does not fit.
        TypeError: an input is not of real floating-point numbers.

    >>> import numpy
    >>> from gradmgr import nn
    >>> cell = nn.RNNCell(2, 3, rng=numpy.random.default_rng(0))
    >>> cell(numpy.ones((4, 2), "float32")).shape
    (4, 3)
    """

    nonlinearity: str = "tanh"

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
        check_word(nonlinearity, tuple(RNN_KINDS), "nonlinearity", "RNNCell")
        super().__init__(input_size, hidden_size, bias, device, dtype, rng=rng)
        self.nonlinearity = nonlinearity

    @property
    def _kind(self) -> Kind:  # type: ignore[override]  # a cell of a kind that a setting chooses
        return RNN_KINDS[self.nonlinearity]

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        """Return h' for input (batch, input_size) and hx = h; None means zeros."""
        return self._step(input, hx)  # type: ignore[no-any-return]  # x is Any


# ---------------------------------------------------------------- layers over sequences


class _Recurrent(Module):
    """The base class of LSTM, GRU and RNN: parameters of all layers and directions, and the loop over them."""

    _kind: Kind

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
        rng, rows = self.rng, self._kind.gates * self.hidden_size
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

    def _run(self, input: Any, given: tuple[Any, ...] | None, lengths: Any) -> tuple[Any, States]:
        """Return the output and the last states, in the order of the kind's."""
        if lengths is not None:
            return self._run_padded(input, given, lengths)
        if isinstance(input, PackedSequence):
            return self._run_packed(input, given)
        x = self._checked(one_array(input))
        of_batch = x.ndim == 3
        if not of_batch:
            x = expand_dims(x, 1)
        elif self.batch_first:
            x = swapaxes(x, 0, 1)
        x, last = self._run_layers(x, self._first_states(x, x.shape[1], given, of_batch))
        if not of_batch:
            return x[:, 0], [state[:, 0] for state in last]
        return swapaxes(x, 0, 1) if self.batch_first else x, last

    def _run_padded(self, input: Any, given: tuple[Any, ...] | None, lengths: Any) -> tuple[Any, States]:
        """Run over a padded batch without its padding; the output has zeros there."""
        asked = type(self).__name__
        if isinstance(input, PackedSequence):
            raise TypeError(f"{asked}: a PackedSequence has its own lengths; leave lengths= out")
        x = self._checked(one_array(input))
        if x.ndim != 3:
            raise errors.ShapeError(
                f"{asked}: lengths= are those of a batch of sequences; found one, of shape {x.shape}"
            )
        packed = pack(x, lengths, self.batch_first, enforce_sorted=False, asked=asked)
        output, last = self._run_packed(packed, given)
        steps = x.shape[1 if self.batch_first else 0]
        padded, _ = pad_packed_sequence(output, self.batch_first, total_length=steps)
        return padded, last

    def _run_packed(self, packed: PackedSequence, given: tuple[Any, ...] | None) -> tuple[PackedSequence, States]:
        """Run over a packed batch; states are in the order that its sequences had before."""
        asked = type(self).__name__
        packed = checked_packed(packed, asked)
        x, sizes, order, back = packed
        check_floating(asked, input=x)
        if x.ndim != 2 or x.shape[1] != self.input_size:
            raise errors.ShapeError(
                f"{asked}: packed data must have shape (steps of all sequences, {self.input_size}); found {x.shape}"
            )
        states = self._first_states(x, int(sizes[0]), given, of_batch=True)
        if order is not None and given is not None:
            states = [state[:, order] for state in states]
        x, last = self._run_layers(x, states, sizes.tolist())
        return packed._replace(data=x), last if back is None else [state[:, back] for state in last]

    def _run_layers(self, x: Any, states: States, sizes: list[int] | None = None) -> tuple[Any, States]:
        """Run all layers over (length, batch, features), or over the rows of a packed batch with these sizes."""
        last: list[list[Any]] = [[] for _ in states]
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                x = dropout(x, self.dropout, rng=self.rng)
            outputs = []
            for direction, suffix in enumerate(self._parameter_suffixes(layer)):
                place = layer * (1 + self.bidirectional) + direction
                output, ends = self._run_layer(x, [state[place] for state in states], suffix, direction == 1, sizes)
                outputs.append(output)
                for ended, end in zip(last, ends, strict=True):
                    ended.append(end)
            x = outputs[0] if len(outputs) == 1 else concatenate(outputs, axis=-1)
        return x, [stack(ended) for ended in last]

    def _run_layer(
        self, x: Any, states: States, suffix: str, reverse: bool, sizes: list[int] | None
    ) -> tuple[Any, States]:
        """Run one layer in one direction, half precision in float32."""
        given = [getattr(self, name + suffix) for name in ("weight_ih", "weight_hh")]
        given += [getattr(self, name + suffix) for name in ("bias_ih", "bias_hh")] if self.bias else [None, None]
        given.append(getattr(self, "weight_hr" + suffix) if self.proj_size else None)
        dtype = np.result_type(x.dtype, given[0].dtype)
        inner = wide_dtype(dtype)
        x, *rest = (None if t is None else cast_to(t, inner) for t in (x, *given, *states))
        weights, states = Weights(*rest[: len(given)]), rest[len(given) :]
        output, last = run_layer(self._kind, x, states, weights, reverse, sizes)
        return cast_to(output, dtype), [cast_to(state, dtype) for state in last]

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

    def _first_states(self, x: Any, batch: int, given: tuple[Any, ...] | None, of_batch: bool) -> States:
        """Return the initial states, (layers and directions, batch, features)."""
        lead = (self.num_layers * (1 + self.bidirectional), batch)
        widths = {"h": self._output_size, "c": self.hidden_size}
        if given is None:
            return [zeros(x, (*lead, widths[name]), x.dtype) for name in self._kind.states]
        states = []
        for name, state in zip(self._kind.states, map(one_array, given), strict=True):
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

    _kind = kinds.LSTM

    if TYPE_CHECKING:  # what is packed gives what is packed

        @overload
        def __call__(self, input: PackedSequence, hx: Any = None) -> tuple[PackedSequence, tuple[Tensor, Tensor]]: ...
        @overload
        def __call__(
            self, input: Tensor | np.ndarray[Any, Any], hx: Any = None, *, lengths: Any = None
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]: ...
        def __call__(self, input: Any, hx: Any = None, *, lengths: Any = None) -> tuple[Any, tuple[Tensor, Tensor]]: ...

    def forward(self, input: Any, hx: Any = None, *, lengths: Any = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Run over sequences.

        Args:
            input: shape (length, batch, input_size), with batch_first (batch, length, input_size); or
                (length, input_size); or a `nn.utils.rnn.PackedSequence`, for sequences of several lengths.
            hx: the initial pair (h, c), of shape (layers and directions, batch, features); None for zeros.
            lengths: the lengths of the sequences in a padded batch, in any order: integers on the host. Steps after
                the end of a sequence are not computed, and are zeros in the output.

        Returns:
            The output, h of the last layer after every step, packed if the input is; and the pair (h, c) after the
            last step of each sequence, of all layers.

        Raises:
            ShapeError: the input, a state or lengths do not fit.
            TypeError: hx is not a pair; lengths are not integers on the host, or given with a PackedSequence.
            ValueError: a length is 0 or too great.
        """
        if hx is not None and not (isinstance(hx, (tuple, list)) and len(hx) == 2):
            raise TypeError(f"LSTM: hx must be the pair (h, c); found {type(hx).__name__}")
        output, (h, c) = self._run(input, None if hx is None else tuple(hx), lengths)
        return output, (h, c)


class _OneState(_Recurrent):
    """The base class of GRU and RNN, which pass h alone from step to step."""

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

    if TYPE_CHECKING:  # what is packed gives what is packed

        @overload
        def __call__(self, input: PackedSequence, hx: Any = None) -> tuple[PackedSequence, Tensor]: ...
        @overload
        def __call__(
            self, input: Tensor | np.ndarray[Any, Any], hx: Any = None, *, lengths: Any = None
        ) -> tuple[Tensor, Tensor]: ...
        def __call__(self, input: Any, hx: Any = None, *, lengths: Any = None) -> tuple[Any, Tensor]: ...

    def forward(self, input: Any, hx: Any = None, *, lengths: Any = None) -> tuple[Any, Tensor]:
        """Run over sequences.

        Args:
            input: shape (length, batch, input_size), with batch_first (batch, length, input_size); or
                (length, input_size); or a `nn.utils.rnn.PackedSequence`, for sequences of several lengths.
            hx: the initial h, of shape (layers and directions, batch, hidden_size); None for zeros.
            lengths: the lengths of the sequences in a padded batch, in any order: integers on the host. Steps after
                the end of a sequence are not computed, and are zeros in the output.

        Returns:
            The output, h of the last layer after every step, packed if the input is; and h after the last step of each
            sequence, of all layers.

        Raises:
            ShapeError: the input, hx or lengths do not fit.
            TypeError: lengths are not integers on the host, or given with a PackedSequence.
            ValueError: a length is 0 or too great.
        """
        output, (h,) = self._run(input, None if hx is None else (hx,), lengths)
        return output, h


class GRU(_OneState):
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

    _kind = kinds.GRU


class RNN(_OneState):
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

    nonlinearity: str = "tanh"

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
        check_word(nonlinearity, tuple(RNN_KINDS), "nonlinearity", "RNN")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype, rng=rng
        )
        self.nonlinearity = nonlinearity

    @property
    def _kind(self) -> Kind:  # type: ignore[override]  # a kind that a setting chooses
        return RNN_KINDS[self.nonlinearity]
