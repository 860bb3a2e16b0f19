"""One layer of a recurrent network in one direction, of each kind of cell: over sequences of one length, or packed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from gradmgr.nn._functions.linear import linear
from gradmgr.nn._functions.recurrent import gru_cell, lstm_cell, lstm_step
from gradmgr.nn._functions.recurrent_sequences import gru_over, lstm_over
from gradmgr.nn._functions.rnn_cell import ACTIVATIONS, rnn_relu_cell, rnn_tanh_cell
from gradmgr.ops.join import concatenate, stack

States = list[Any]


class Weights(NamedTuple):
    """The parameters of one layer in one direction; w_hr is that of a projection of h."""

    w_ih: Any
    w_hh: Any
    b_ih: Any
    b_hh: Any
    w_hr: Any


class Kind(NamedTuple):
    """What a kind of recurrent network consists of.

    Attributes:
        gates: how many parts of `hidden` rows the weights have.
        states: the names of what is passed from step to step; the first is the output.
        step: the function of one step, as `functional.lstm_cell`.
        adds_biases: whether both biases belong to the input's part of the gates.
        over: over(parts, states, weights, reverse) runs over all steps, from the input's part of the gates, (length,
            batch, gates * hidden); it returns the output of every step, and the states after the last one.
    """

    gates: int
    states: tuple[str, ...]
    step: Callable[..., Any]
    adds_biases: bool
    over: Callable[[Any, States, Weights, bool], tuple[Any, States]]


def _lstm(parts: Any, states: States, weights: Weights, reverse: bool) -> tuple[Any, States]:
    if weights.w_hr is not None:
        return _projected_lstm(parts, states, weights, reverse)
    outputs, cells = lstm_over(parts, states[0], states[1], weights.w_hh, reverse)
    last = 0 if reverse else -1
    return outputs, [outputs[last], cells[last]]


def _projected_lstm(parts: Any, states: States, weights: Weights, reverse: bool) -> tuple[Any, States]:
    """Run step by step, projecting h after each step."""
    h, c = states
    outputs = []
    for k in range(parts.shape[0])[:: -1 if reverse else 1]:
        h, c = lstm_step(parts[k], h, c, None, weights.w_hh, None, None)
        h = linear(h, weights.w_hr)
        outputs.append(h)
    return stack(outputs[::-1] if reverse else outputs), [h, c]


def _gru(parts: Any, states: States, weights: Weights, reverse: bool) -> tuple[Any, States]:
    outputs = gru_over(parts, states[0], weights.w_hh, weights.b_hh, reverse)
    return outputs, [outputs[0 if reverse else -1]]


def _rnn(
    activation: Callable[[Any], Any], parts: Any, states: States, weights: Weights, reverse: bool
) -> tuple[Any, States]:
    (h,), outputs = states, []
    for k in range(parts.shape[0])[:: -1 if reverse else 1]:
        h = activation(parts[k] + linear(h, weights.w_hh))
        outputs.append(h)
    return stack(outputs[::-1] if reverse else outputs), [h]


LSTM = Kind(4, ("h", "c"), lstm_cell, True, _lstm)
GRU = Kind(3, ("h",), gru_cell, False, _gru)
RNN_KINDS = MappingProxyType(  # by nonlinearity
    {
        name: Kind(1, ("h",), step, True, partial(_rnn, ACTIVATIONS[name]))
        for name, step in (("tanh", rnn_tanh_cell), ("relu", rnn_relu_cell))
    }
)


def run_layer(
    kind: Kind, x: Any, states: States, weights: Weights, reverse: bool, sizes: list[int] | None = None
) -> tuple[Any, States]:
    """Run one layer in one direction, for checked arguments of one dtype.

    The input's part of all gates is one product.

    Args:
        kind: of which cells.
        x: (length, batch, features), or where `sizes` are given the rows of a packed batch.
        states: the first ones, each (batch, width); for a packed batch longer sequences come first.
        weights: its parameters.
        reverse: whether to run from the last step of each sequence to the first.
        sizes: how many sequences each step of a packed batch has.

    Returns:
        The output of every step, as x has them, and the states after the last step of each sequence.
    """
    bias = weights.b_ih
    if bias is not None and kind.adds_biases:
        bias = bias + weights.b_hh
    parts = linear(x, weights.w_ih, bias)
    if sizes is None:
        return kind.over(parts, states, weights, reverse)
    return _run_packed(kind, parts, states, weights, reverse, sizes)


def _run_packed(
    kind: Kind, parts: Any, states: States, weights: Weights, reverse: bool, sizes: list[int]
) -> tuple[Any, States]:
    """Run over the rows of a packed batch, the steps with equally many sequences together.

    Forwards, sequences end between two of these stretches; in reverse they begin there, with their first states.
    """
    stretches = _stretches(sizes)[:: -1 if reverse else 1]
    outputs: list[Any] = []
    ended: list[list[Any]] = [[] for _ in states]
    size = stretches[0][2]
    now = [state[:size] for state in states] if reverse else states
    for start, steps, batch in stretches:
        if batch > size:
            now = [concatenate([held, first[size:batch]]) for held, first in zip(now, states, strict=True)]
        elif batch < size:
            for ends, held in zip(ended, now, strict=True):
                ends.append(held[batch:])
            now = [held[:batch] for held in now]
        of_stretch = parts[start : start + steps * batch].reshape((steps, batch, parts.shape[1]))
        output, now = kind.over(of_stretch, now, weights, reverse)
        outputs.append(output.reshape((steps * batch, output.shape[2])))
        size = batch
    last = [_join([held, *ends[::-1]]) for held, ends in zip(now, ended, strict=True)]
    return _join(outputs[::-1] if reverse else outputs), last


def _stretches(sizes: list[int]) -> list[tuple[int, int, int]]:
    """Return the first row, the number of steps and the number of sequences of each stretch of equal sizes."""
    found: list[tuple[int, int, int]] = []
    row = 0
    for size in sizes:
        if found and found[-1][2] == size:
            start, steps, _ = found[-1]
            found[-1] = start, steps + 1, size
        else:
            found.append((row, 1, size))
        row += size
    return found


def _join(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else concatenate(parts)
