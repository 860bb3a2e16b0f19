"""Recurrent cells and layers: torch's numbers, layouts, states, what is kept, errors of wrong arguments.

The generic tests run on tests/samples/nn_recurrent.py. Numbers called torch's are those of torch 2.13.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  # registers bfloat16
import numpy as np
import pytest
from helpers import assert_close_to_8_digits, wave

from gradmgr import GradManager, errors, gradcheck, gradgradcheck, tensor
from gradmgr.nn import GRU, LSTM, GRUCell, LSTMCell, Module
from gradmgr.nn.functional import dropout, gru_cell, lstm_cell, rnn_tanh_cell


def filled(kind: type[Any], *sizes: int, **options: Any) -> Any:
    """A module in float64 with parameters that are waves, the n-th beginning at n."""
    made: Module = kind(*sizes, dtype="float64", **options)
    for n, p in enumerate(made.parameters()):
        p[...] = wave(*p.shape, at=n)
    return made


# ---------------------------------------------------------------- torch's numbers


def test_lstm_of_two_layers_and_directions_gives_torchs_numbers() -> None:
    lstm, x = filled(LSTM, 2, 2, num_layers=2, bidirectional=True), tensor(wave(3, 1, 2))
    with GradManager().attach([x, *lstm.parameters()]) as gm:
        output, (h, c) = lstm(x)
        gm.backward((output**2).sum() + (h * c).sum())
    expected = [
        [0.1432312568, 0.0600536516, -0.3435929053, -0.1277167769],
        [0.2065331843, 0.0961865786, -0.3728928539, -0.135419072],
        [0.1889655223, 0.1306602925, -0.3873493144, -0.0922401791],
    ]
    assert_close_to_8_digits(output[:, 0], expected)
    of_h = [[-0.1392164952, 0.1005805105], [-0.2072917092, -0.5831782846]]
    assert_close_to_8_digits(h[:, 0], [*of_h, [0.1889655223, 0.1306602925], [-0.3435929053, -0.1277167769]])
    of_c = [[-0.1707586575, 0.1073983147], [-0.839811418, -1.7210314548], [0.3310037852, 0.3461686529]]
    assert_close_to_8_digits(c[:, 0], [*of_c, [-0.5558361593, -0.142976528]])
    of_x = [[0.3380398107, 0.0304219777], [-0.0371331006, -0.1583608077], [0.2434788535, 0.2660370726]]
    assert_close_to_8_digits(x.grad[:, 0], of_x)
    rows = [-0.0509329098, -0.0623732291, -0.0041655187, -0.1140401686]
    rows += [0.006779417, 0.0069736991, -0.0583970984, -0.178587349]
    assert_close_to_8_digits(lstm.weight_hh_l0_reverse.grad.sum(1), rows)


def test_gru_gives_torchs_numbers() -> None:
    gru, x = filled(GRU, 2, 2), tensor(wave(3, 1, 2))
    with GradManager().attach([x, *gru.parameters()]) as gm:
        output, h = gru(x)
        gm.backward((output**2).sum())
    assert_close_to_8_digits(
        output[:, 0], [[0.1138580019, 0.8807175456], [0.4450460016, 0.8673139261], [-0.4364347059, -0.1502302186]]
    )
    assert_close_to_8_digits(h[0], output[-1])
    assert_close_to_8_digits(
        x.grad[:, 0], [[0.42870764, 0.7247897327], [0.3860602315, 0.5946735828], [-0.0618933403, -0.4589317447]]
    )
    rows = [-0.1877340779, 0.0452211565, -0.1202911114, -0.1534918599, -0.011726124, 0.0766278256]
    assert_close_to_8_digits(gru.weight_hh_l0.grad.sum(1), rows)
    rows = [-0.1042893369, 0.0950096556, -0.0973461487, -0.2376269502, 0.5410110824, 0.1823810977]
    assert_close_to_8_digits(gru.bias_hh_l0.grad, rows)


def test_lstm_with_projection_gives_torchs_numbers() -> None:
    output, (h, c) = filled(LSTM, 2, 3, proj_size=1)(wave(3, 1, 2))
    assert_close_to_8_digits(output[:, 0, 0], [-0.4933884546, -0.3605523684, -0.0957933444])
    assert_close_to_8_digits(h[0, 0], [-0.0957933444])
    assert_close_to_8_digits(c[0, 0], [0.4242149957, 0.1740347634, 0.2293540128])


def test_names_and_shapes_of_parameters_are_torchs() -> None:
    def shapes(module: Module) -> dict[str, tuple[int, ...]]:
        return {name: t.shape for name, t in module.state_dict().items()}

    def layer(suffix: str, rows: int, features: int, width: int) -> dict[str, tuple[int, ...]]:
        weights = {f"weight_ih{suffix}": (rows, features), f"weight_hh{suffix}": (rows, width)}
        return weights | {f"bias_ih{suffix}": (rows,), f"bias_hh{suffix}": (rows,)}

    expected: dict[str, tuple[int, ...]] = {}
    for suffix, features in (("_l0", 3), ("_l0_reverse", 3), ("_l1", 4), ("_l1_reverse", 4)):
        expected |= layer(suffix, 16, features, 2) | {f"weight_hr{suffix}": (2, 4)}
    assert shapes(LSTM(3, 4, 2, bidirectional=True, proj_size=2)) == expected
    assert shapes(GRU(3, 4, bias=False)) == {"weight_ih_l0": (12, 3), "weight_hh_l0": (12, 4)}
    assert shapes(LSTMCell(3, 4)) == layer("", 16, 3, 4)
    assert shapes(GRUCell(3, 4)) == layer("", 12, 3, 4)


@pytest.mark.parametrize("kind", [LSTM, GRU, LSTMCell, GRUCell])
def test_first_values_are_uniform_and_decided_by_the_generator(kind: type[Any]) -> None:
    one, same, other = (kind(30, 25, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    for p, q, r in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(p, q)
        assert (p != r).any()
        assert p.dtype == np.float32
        assert 0.18 < np.abs(p.numpy()).max() <= 0.2
    with pytest.raises(TypeError, match=r"numpy.random.default_rng\(3\)"):
        kind(2, 2, rng=3)


def test_repr_says_sizes_and_what_is_not_default() -> None:
    found = repr(LSTM(3, 4, 2, bias=False, batch_first=True, dropout=0.5, bidirectional=True, proj_size=2))
    options = "proj_size=2, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True"
    assert found == f"LSTM(3, 4, {options})"
    assert repr(GRU(3, 4)) == "GRU(3, 4)"
    assert repr(GRUCell(3, 4, bias=False)) == "GRUCell(3, 4, bias=False)"


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("kind", "cell"), [(LSTM, LSTMCell), (GRU, GRUCell)])
def test_a_layer_is_its_cell_step_by_step(kind: type[Any], cell: type[Any], backwards: bool) -> None:
    layer, alone, x = filled(kind, 2, 3, bidirectional=backwards), filled(cell, 2, 3), wave(4, 5, 2)
    suffix = "_l0_reverse" if backwards else "_l0"
    alone.load_state_dict({name: layer.get_parameter(name + suffix) for name in alone.state_dict()})
    output, last = layer(x)
    state = None
    for k in range(4)[:: -1 if backwards else 1]:
        state = alone(x[k], state)
        assert_close_to_8_digits(output[k][:, -3:], state[0] if kind is LSTM else state)
    for found, expected in zip(*((s if kind is LSTM else (s,)) for s in (last, state)), strict=True):
        assert_close_to_8_digits(found[-1], expected)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}, {"proj_size": 2}])
@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_layouts_agree(kind: type[Any], options: dict[str, Any]) -> None:
    if kind is GRU:
        options = {name: value for name, value in options.items() if name != "proj_size"}
    layer, first, x = filled(kind, 2, 3, **options), filled(kind, 2, 3, batch_first=True, **options), wave(4, 5, 2)
    output, last = layer(x)
    of_first, same = first(x.swapaxes(0, 1))
    assert_close_to_8_digits(of_first.swapaxes(0, 1), output)
    states, same = (s if kind is LSTM else (s,) for s in (last, same))
    again = [0.5 * s for s in states]
    onward = layer(x, tuple(again) if kind is LSTM else again[0])[0]
    for state, other in zip(states, same, strict=True):
        assert_close_to_8_digits(other, state)
    for k in range(5):
        alone, ends = layer(x[:, k])
        assert_close_to_8_digits(alone, output[:, k])
        for end, state in zip(ends if kind is LSTM else (ends,), states, strict=True):
            assert_close_to_8_digits(end, state[:, k])
        begin = [s[:, k] for s in again]
        assert_close_to_8_digits(layer(x[:, k], tuple(begin) if kind is LSTM else begin[0])[0], onward[:, k])


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_derivatives_of_layers_in_all_directions(kind: type[Any]) -> None:
    options = {"proj_size": 1} if kind is LSTM else {}
    layer = filled(kind, 2, 2, num_layers=2, bidirectional=True, **options)

    def call(x: Any, h: Any) -> Any:
        output, last = layer(x, (h, wave(4, 1, 2, at=3)) if kind is LSTM else h)
        return output, *(last if kind is LSTM else (last,))

    points = [tensor(wave(3, 1, 2)), tensor(wave(4, 1, 1 if kind is LSTM else 2, at=2))]
    assert gradcheck(call, points, check_forward_ad=True)
    assert gradgradcheck(call, points, check_fwd_over_rev=True, fast_mode=True)


def test_an_unused_end_gets_no_gradient_and_an_unused_output_is_no_error() -> None:
    lstm, x = filled(LSTM, 2, 3), wave(4, 5, 2)
    found = []
    for used in (lambda output, h, c: output[-1], lambda output, h, c: h[0]):
        with GradManager().attach(dict(lstm.named_parameters())) as gm:
            output, (h, c) = lstm(x)
            gm.backward((used(output, h, c) ** 2).sum())
        found.append([p.grad.numpy() for p in lstm.parameters()])
        lstm.zero_grad()
    for one, other in zip(*found, strict=True):
        assert_close_to_8_digits(one, other)
    with GradManager().attach(dict(lstm.named_parameters())) as gm:
        gm.backward(lstm(x)[1][1].sum())
    assert all(p.grad.numpy().any() for p in lstm.parameters())


def test_dropout_acts_between_layers_while_training() -> None:
    x = wave(4, 5, 2)
    gru = filled(GRU, 2, 3, num_layers=2, dropout=0.5, rng=np.random.default_rng(3))
    first, second = filled(GRU, 2, 3), filled(GRU, 3, 3)
    for n, layer in enumerate((first, second)):
        layer.load_state_dict({name: gru.get_parameter(name.replace("l0", f"l{n}")) for name in layer.state_dict()})
    rng = np.random.default_rng()
    rng.bit_generator.state = gru.rng.bit_generator.state
    assert_close_to_8_digits(gru(x)[0], second(dropout(first(x)[0], 0.5, rng=rng))[0])
    assert_close_to_8_digits(gru.eval()(x)[0], second(first(x)[0])[0])
    with pytest.warns(UserWarning, match="applies between layers, and there is one"):
        GRU(2, 3, dropout=0.5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", [LSTM, GRU, LSTMCell, GRUCell])
def test_results_and_gradients_have_the_parameters_dtype(kind: type[Any], dtype: str) -> None:
    precise = filled(kind, 2, 3)
    module = kind(2, 3, dtype=dtype)
    module.load_state_dict(precise.state_dict())
    x = wave(4, 2)
    with GradManager().attach(dict(module.named_parameters())) as gm:
        result = module(tensor(x).astype(dtype))
        while isinstance(result, tuple):
            result = result[0]
        gm.backward(result.sum())
    assert result.dtype == dtype
    expected = precise(x)
    while isinstance(expected, tuple):
        expected = expected[0]
    np.testing.assert_allclose(result.numpy().astype(float), expected.numpy(), atol=2e-2)
    assert {str(p.grad.dtype) for p in module.parameters()} == {dtype}


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize(("cell", "gates"), [(lstm_cell, 4), (gru_cell, 3)])
def test_gates_far_out_saturate_without_a_warning(cell: Any, gates: int) -> None:
    for far in (-1e4, 1e4):
        h, w = np.zeros((1, 2), np.float32), np.ones((gates * 2, 1), np.float32)
        points = [tensor(np.full((1, 1), far, np.float32)), tensor(w)]
        with GradManager().attach(points) as gm:
            result = cell(points[0], (h, h) if gates == 4 else h, points[1], np.ones((gates * 2, 2), np.float32))
            gm.backward((result[0] if gates == 4 else result).sum())
        assert all(np.isfinite(p.grad.numpy()).all() for p in points)


@pytest.mark.parametrize("gates", [4, 3])
def test_one_step_is_one_entry_and_a_frozen_weight_keeps_no_input(gates: int) -> None:
    x, state = wave(2, 5), tensor(wave(2, 3))
    w_ih, w_hh = wave(3 * gates, 5), wave(3 * gates, 3)
    with GradManager().attach(state) as gm:
        held = lstm_cell(x, (state, wave(2, 3)), w_ih, w_hh) if gates == 4 else gru_cell(x, state, w_ih, w_hh)
        (*_, kept), *rest = gm._tape.entries
        assert {entry[0] for entry in rest} == {"result"}
        assert not any(a is x for a in kept)
        assert not any(a is w_ih for a in kept)
        del held


@pytest.mark.parametrize("kind", [LSTM, GRU])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}])
def test_what_a_layer_computes_in_place_is_its_own(kind: type[Any], options: dict[str, Any]) -> None:
    """Neither what is kept, nor what was given, nor the gradients of the results are written to."""
    layer = filled(kind, 3, 5, **options)
    x, dy = wave(4, 2, 3), wave(4, 2, 5 * (1 + layer.bidirectional))
    given, found = (x.copy(), dy.copy()), []
    with GradManager().attach(layer.parameters()) as gm:
        output, _ = layer(x)
        for _ in range(2):
            gm.backward(output, dy, retain=True)
            found.append([p.grad.numpy().copy() for p in layer.parameters()])
            for p in layer.parameters():
                p.grad = None
    for one, other in zip((*given, *found[0]), (x, dy, *found[1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_plain_arrays_give_plain_arrays() -> None:
    h = np.zeros((2, 3))
    assert isinstance(gru_cell(wave(2, 5), h, wave(9, 5), wave(9, 3)), np.ndarray)
    assert all(isinstance(z, np.ndarray) for z in lstm_cell(wave(2, 5), (h, h), wave(12, 5), wave(12, 3)))


def test_a_cell_begins_with_zeros() -> None:
    for cell in (filled(LSTMCell, 2, 3), filled(GRUCell, 2, 3)):
        for lead in ((), (4,)):
            x, zero = wave(*lead, 2), np.zeros((*lead, 3))
            given = (zero, zero) if isinstance(cell, LSTMCell) else zero
            for found, expected in zip(cell(x), cell(x, given), strict=True):
                assert_close_to_8_digits(found, expected)


# ---------------------------------------------------------------- wrong arguments

H, C, X = np.zeros((2, 3)), np.zeros((2, 3)), np.ones((2, 5))
OF_LSTM = {"w_ih": np.ones((12, 5)), "w_hh": np.ones((12, 3)), "b_ih": np.ones(12), "b_hh": np.ones(12)}
OF_GRU = {"w_ih": np.ones((9, 5)), "w_hh": np.ones((9, 3)), "b_ih": np.ones(9), "b_hh": np.ones(9)}
WRONG_STEPS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (X[None], {}, errors.ShapeError, r"input must have shape \(batch, features\) or \(features,\); found \(1, 2, 5\)"),
    (X[:1], {}, errors.ShapeError, r"h must have shape \(1, 3\)"),
    (X[:, :4], {}, errors.ShapeError, r"w_ih must have shape \(\d+, 4\), for \d gates, hidden size 3 and 4 features"),
    (X, {"w_hh": np.ones((12, 4))}, errors.ShapeError, r"w_hh must have shape \(\d+, 3\)"),
    (X, {"b_hh": np.ones(3)}, errors.ShapeError, r"b_hh must have shape \(\d+,\)"),
    (X.astype(int), {}, errors.DtypeError, "found input of dtype int64"),
    (X, {"b_ih": np.ones(9, bool)}, errors.DtypeError, "found b_ih of dtype bool"),
]


@pytest.mark.parametrize(("x", "changes", "kind", "says"), WRONG_STEPS, ids=[w[-1] for w in WRONG_STEPS])
def test_wrong_arguments_of_cells(x: Any, changes: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=f"lstm_cell.*{says}"):
        lstm_cell(x, (H, C), **(OF_LSTM | changes))
    with pytest.raises(kind, match=f"gru_cell.*{says}"):
        gru_cell(x, H, **(OF_GRU | changes))


def test_wrong_arguments_of_plain_cells() -> None:
    weights = {"w_ih": np.ones((3, 5)), "w_hh": np.ones((3, 3))}
    says = r"rnn_tanh_cell: input must have shape \(batch, features\) or \(features,\); found \(1, 2, 5\); for a"
    with pytest.raises(errors.ShapeError, match=says):
        rnn_tanh_cell(X[None], H, **weights)
    says = r"w_ih must have shape \(3, 4\), as input has shape \(2, 4\) and the hidden size is 3; found \(3, 5\)"
    with pytest.raises(errors.ShapeError, match=says):
        rnn_tanh_cell(X[:, :4], H, **weights)


def test_lstm_refuses_states_that_are_no_pair_or_of_the_wrong_shape() -> None:
    for call in (lambda hx: lstm_cell(X, hx, **OF_LSTM), lambda hx: LSTM(5, 3)(X[None], hx)):
        with pytest.raises(TypeError, match=r"hx must be the pair \(h, c\); found ndarray"):
            call(H)
    with pytest.raises(errors.ShapeError, match=r"c must have shape \(2, 3\)"):
        lstm_cell(X, (H, C[:1]), **OF_LSTM)
    with pytest.raises(errors.ShapeError, match=r"LSTM: c must have shape \(1, 2, 3\): layers and directions, batch"):
        LSTM(5, 3)(X[None], (H[None], C))
    with pytest.raises(errors.ShapeError, match=r"GRU: h must have shape \(2, 3\): layers and directions, features"):
        GRU(5, 3, bidirectional=True)(X, np.ones((1, 3)))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.ones(3), r"takes an input \(length, batch, features\), or \(length, features\); found \(3,\)"),
        (np.ones((2, 1, 4)), "must have 3 features"),
        (np.ones((0, 1, 3)), "has no steps"),
    ],
)
def test_wrong_inputs_of_layers(x: Any, says: str) -> None:
    for layer in (LSTM(3, 2), GRU(3, 2)):
        with pytest.raises(errors.ShapeError, match=says):
            layer(x)
    with pytest.raises(errors.DtypeError, match="LSTM takes real floating-point numbers; found input of dtype int64"):
        LSTM(3, 2)(np.ones((2, 1, 3), int))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1; found 0"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"proj_size": 3}, "proj_size=3 must be smaller than hidden_size=3"),
        ({"dropout": 1.5}, "dropout must be a probability"),
    ],
)
def test_wrong_sizes_of_layers(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LSTM(**({"input_size": 2, "hidden_size": 3} | options))
