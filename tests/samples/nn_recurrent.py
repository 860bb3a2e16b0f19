"""nn.functional.lstm_cell and gru_cell, measured by their formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.nn import functional
from gradmgr.nn._functions import packed_sequence, recurrent, recurrent_sequences
from samples._table import ANALYTIC, Arg, Array, add


def _expit(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gates(x: Array, weight: Array, bias: Any, count: int) -> list[Array]:
    rows = x @ weight.T
    return np.split(rows if bias is None else rows + bias, count, axis=-1)


def _widely(formula: Any) -> Any:
    """Compute halves in float32."""

    def computed(*arrays: Array) -> Any:
        dtype = arrays[0].dtype
        results = formula(*[a.astype(np.float32) if dtype.itemsize == 2 else a for a in arrays])
        return [z.astype(dtype) for z in results]

    return computed


@_widely
def naive_lstm(x: Array, h: Array, c: Array, w_ih: Array, w_hh: Array, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The pair (h', c')."""
    i, f, g, o = (a + b for a, b in zip(_gates(x, w_ih, b_ih, 4), _gates(h, w_hh, b_hh, 4), strict=True))
    c = _expit(f) * c + _expit(i) * np.tanh(g)
    return _expit(o) * np.tanh(c), c


@_widely
def naive_gru(x: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Any = None, b_hh: Any = None) -> Any:
    """A list of h' alone."""
    (r, z, n), (r_h, z_h, n_h) = _gates(x, w_ih, b_ih, 3), _gates(h, w_hh, b_hh, 3)
    r, z = _expit(r + r_h), _expit(z + z_h)
    n = np.tanh(n + r * n_h)
    return [(1 - z) * n + z * h]


def cells(case: str, lead: tuple[int, ...], bias: bool, constant: tuple[str, ...] = (), third: bool = False) -> None:
    """Enter one step of each, for 2 features and hidden size 3; names of arguments that are constant."""

    def arguments(gates: int, states: tuple[str, ...]) -> list[Arg]:
        shapes = {"x": (*lead, 2), **dict.fromkeys(states, (*lead, 3))}
        shapes |= {"w_ih": (3 * gates, 2), "w_hh": (3 * gates, 3)}
        shapes |= {"b_ih": (3 * gates,), "b_hh": (3 * gates,)} if bias else {}
        return [Arg(shape, constant=name in constant) for name, shape in shapes.items()]

    facts: dict[str, Any] = {"dispatches": False, "third": third}
    add(
        "nn.lstm_cell",
        case,
        lambda xp, x, h, c, *weights: recurrent.lstm_cell(x, (h, c), *weights),
        *arguments(4, ("h", "c")),
        reference=naive_lstm,
        **facts,
    )
    add(
        "nn.gru_cell",
        case,
        lambda xp, *given: recurrent.gru_cell(*given),
        *arguments(3, ("h",)),
        reference=naive_gru,
        **facts,
    )


cells("a batch", (2,), bias=True)
cells("one example", (), bias=True)
cells("without bias", (2,), bias=False, third=True)
cells("weights alone", (2,), bias=True, constant=("x", "h", "c"))
cells("states alone", (2,), bias=True, constant=("x", "w_ih", "w_hh", "b_ih", "b_hh"))
cells("an empty batch", (0,), bias=True)


# ---------------------------------------------------------------- all steps in one op


@_widely
def naive_lstm_over(parts: Array, h: Array, c: Array, w_hh: Array) -> Any:
    """H and c after every step; the input's part of the gates is given."""
    steps = []
    for part in parts:
        i, f, g, o = (a + b for a, b in zip(np.split(part, 4, axis=-1), _gates(h, w_hh, None, 4), strict=True))
        c = _expit(f) * c + _expit(i) * np.tanh(g)
        h = _expit(o) * np.tanh(c)
        steps.append((h, c))
    return [np.stack(states) for states in zip(*steps, strict=True)]


@_widely
def naive_gru_over(parts: Array, h: Array, w_hh: Array, b_hh: Any = None) -> Any:
    """A list of h after every step."""
    steps = []
    for part in parts:
        (r, z, n), (r_h, z_h, n_h) = np.split(part, 3, axis=-1), _gates(h, w_hh, b_hh, 3)
        r, z = _expit(r + r_h), _expit(z + z_h)
        h = (1 - z) * np.tanh(n + r * n_h) + z * h
        steps.append(h)
    return [np.stack(steps)]


def _turned(reference: Any) -> Any:
    return lambda parts, *rest: [z[::-1] for z in reference(parts[::-1], *rest)]


for _backwards, _case in ((False, "forwards"), (True, "backwards")):
    add(
        "nn.lstm",
        _case,
        lambda xp, *given, b=_backwards: recurrent_sequences.lstm_over(*given, b),
        *(Arg((3, 2, 8)), Arg((2, 2)), Arg((2, 2)), Arg((8, 2))),
        reference=_turned(naive_lstm_over) if _backwards else naive_lstm_over,
        dispatches=False,
    )
    add(
        "nn.gru",
        _case,
        lambda xp, *given, b=_backwards: recurrent_sequences.gru_over(*given, b),
        *(Arg((3, 2, 6)), Arg((2, 2)), Arg((6, 2)), Arg((6,))),
        reference=_turned(naive_gru_over) if _backwards else naive_gru_over,
        dispatches=False,
    )
add(
    "nn.lstm",
    "c alone",
    lambda xp, *given: recurrent_sequences.lstm_over(*given, False)[1],
    *(Arg((2, 1, 8), constant=True), Arg((1, 2), constant=True), Arg((1, 2)), Arg((8, 2), constant=True)),
    reference=lambda *given: naive_lstm_over(*given)[1],
    dispatches=False,
)
add(
    "nn.gru",
    "without bias",
    lambda xp, *given: recurrent_sequences.gru_over(*given, None, False),
    *(Arg((2, 1, 6)), Arg((1, 2)), Arg((6, 2))),
    reference=naive_gru_over,
    dispatches=False,
)


# ---------------------------------------------------------------- plain recurrent networks


def _naive_rnn(activation: Any) -> Any:
    @_widely
    def formula(x: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array) -> Any:
        return [activation(x @ w_ih.T + b_ih + h @ w_hh.T + b_hh)]

    return lambda *arrays: formula(*arrays)[0]


for _name, _activation in (("rnn_tanh_cell", np.tanh), ("rnn_relu_cell", lambda v: np.maximum(v, 0))):
    add(
        f"nn.{_name}",
        "a batch",
        lambda xp, *arrays, cell=getattr(functional, _name): cell(*arrays),  # noqa: B008  # one for each
        *[Arg(shape) for shape in ((2, 3), (2, 4), (4, 3), (4, 4), (4,), (4,))],
        reference=_naive_rnn(_activation),
        dispatches=False,
    )


# ---------------------------------------------------------------- sequences of several lengths


def _naive_move(x: Array, places: list[int], count: int) -> Array:
    return np.stack([x[places.index(k)] if k in places else np.zeros_like(x[0]) for k in range(count)])


for _case, _places, _count in (("some rows", [1, -1, -1, 0], 2), ("rows and padding", [2, 5, 0, 3], 6)):
    add(
        "nn.move_rows",
        _case,
        lambda xp, x, places=np.array(_places), count=_count: packed_sequence.move_rows(x, places, count),  # noqa: B008  # one for each
        Arg((4, 2)),
        reference=lambda x, places=_places, count=_count: _naive_move(x, places, count),
        dispatches=False,
        **ANALYTIC,
    )
