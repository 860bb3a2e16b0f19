"""Sequences of several lengths: packing and padding, recurrent layers over them, torch's numbers, what is refused."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from typing import Any

import guard
import numpy as np
import pytest
from helpers import assert_close_to_8_digits, wave

import gradmgr
from gradmgr import GradManager, Tensor, asarray, errors, gradcheck, gradgradcheck, nn, tensor, vmap
from gradmgr.nn.functional import dropout
from gradmgr.nn.utils import rnn

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
SORTED, UNSORTED = [5, 3, 3, 1], [3, 1, 5, 3]


def filled(kind: type[Any], *sizes: int, **options: Any) -> Any:
    """A module in float64 with parameters that are waves, the n-th beginning at n."""
    made = kind(*sizes, dtype="float64", **options)
    for n, p in enumerate(made.parameters()):
        p[...] = wave(*p.shape, at=n)
    return made


def states_of(kind: type[Any], last: Any) -> tuple[Any, ...]:
    return tuple(last) if kind is nn.LSTM else (last,)


def hx_of(kind: type[Any], *states: Any) -> Any:
    return states if kind is nn.LSTM else states[0]


# ---------------------------------------------------------------- recurrent layers

OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]


def _with_torch(kind: type[Any], options: dict[str, Any], lengths: list[int]) -> tuple[list[Any], list[Any]]:
    """Output, lengths, last states and gradients by all that is differentiable: ours, and torch's."""
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    layer = filled(kind, 2, 3, **options)
    other = getattr(torch.nn, kind.__name__)(2, 3, dtype=torch.float64, **options)
    other.load_state_dict({name: torch.tensor(t.numpy()) for name, t in layer.state_dict().items()})
    lead = layer.num_layers * (1 + layer.bidirectional)
    given = [wave(4, 5, 2) if layer.batch_first else wave(5, 4, 2), wave(lead, 4, 3, at=1), wave(lead, 4, 3, at=2)]
    ours, torchs = [tensor(a) for a in given], [torch.tensor(a, requires_grad=True) for a in given]
    with GradManager().attach([*ours, *layer.parameters()]) as gm:
        packed = rnn.pack_padded_sequence(ours[0], lengths, layer.batch_first, enforce_sorted=False)
        output, last = layer(packed, hx_of(kind, *ours[1:]))
        padded, counts = rnn.pad_packed_sequence(output, layer.batch_first, 0.5, total_length=5)
        found = [padded, *states_of(kind, last)]
        gm.backward(sum([(z * wave(*z.shape)).sum() for z in found]))
    its = torch.nn.utils.rnn
    packed = its.pack_padded_sequence(torchs[0], torch.tensor(lengths), layer.batch_first, enforce_sorted=False)
    output, last = other(packed, hx_of(kind, *torchs[1:]))
    padded, its_counts = its.pad_packed_sequence(output, layer.batch_first, 0.5, total_length=5)
    expected = [padded, *states_of(kind, last)]
    sum([(z * torch.tensor(wave(*z.shape))).sum() for z in expected]).backward()
    used = slice(3 if kind is nn.LSTM else 2)
    found += [counts, *[t.grad for t in ours[used]], *[p.grad for p in layer.parameters()]]
    expected += [its_counts, *[t.grad for t in torchs[used]], *[p.grad for p in other.parameters()]]
    return found, [t.detach().numpy() for t in expected]


@pytest.mark.parametrize("lengths", [SORTED, UNSORTED], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_layers_give_torchs_numbers(kind: type[Any], lengths: list[int]) -> None:
    for options in OPTIONS:
        found, expected = _with_torch(kind, options, lengths)
        for one, other in zip(found, expected, strict=True):
            assert_close_to_8_digits(one, other)


@pytest.mark.parametrize("options", [*OPTIONS, {"proj_size": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_batch_is_each_sequence_alone(kind: type[Any], options: dict[str, Any]) -> None:
    if kind is not nn.LSTM:
        options = {name: value for name, value in options.items() if name != "proj_size"}
    layer = filled(kind, 2, 3, **options)
    lead, width = layer.num_layers * (1 + layer.bidirectional), options.get("proj_size", 3)
    sequences = [wave(length, 2, at=length) for length in UNSORTED]
    h, c = wave(lead, 4, width, at=1), wave(lead, 4, 3, at=2)
    output, last = layer(rnn.pack_sequence(sequences, enforce_sorted=False), hx_of(kind, h, c))
    for k, (sequence, of_it) in enumerate(zip(sequences, rnn.unpack_sequence(output), strict=True)):
        alone, ends = layer(sequence, hx_of(kind, h[:, k], c[:, k]))
        assert_close_to_8_digits(of_it, alone)
        for state, end in zip(states_of(kind, last), states_of(kind, ends), strict=True):
            assert_close_to_8_digits(state[:, k], end)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_packing_and_padding(kind: type[Any], batch_first: bool) -> None:
    layer = filled(kind, 2, 3, num_layers=2, bidirectional=True, batch_first=batch_first)
    x = wave(4, 6, 2) if batch_first else wave(6, 4, 2)
    state = wave(4, 4, 3)
    packed = rnn.pack_padded_sequence(x, UNSORTED, batch_first, enforce_sorted=False)
    output, last = layer(packed, hx_of(kind, state, state))
    padded, _ = rnn.pad_packed_sequence(output, batch_first, total_length=6)
    found, ends = layer(x, hx_of(kind, state, state), lengths=np.array(UNSORTED, np.int32))
    for one, other in zip((found, *states_of(kind, ends)), (padded, *states_of(kind, last)), strict=True):
        np.testing.assert_array_equal(one, other)
    steps = np.swapaxes(found.numpy(), 0, 1) if batch_first else found.numpy()
    assert [(steps[:, k] != 0).any(1).sum() for k in range(4)] == UNSORTED


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_packed_layers_in_all_directions(kind: type[Any]) -> None:
    layer = filled(kind, 2, 2, bidirectional=True)

    def call(x: Any, h: Any) -> Any:
        output, last = layer(rnn.pack_padded_sequence(x, [1, 3, 2], enforce_sorted=False), hx_of(kind, h, 0.5 * h))
        return rnn.pad_packed_sequence(output)[0], *states_of(kind, last)

    points = [tensor(wave(3, 3, 2)), tensor(wave(2, 3, 2, at=2))]
    assert gradcheck(call, points, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(call, points, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_has_no_effect(kind: type[Any]) -> None:
    layer, found = filled(kind, 2, 3, bidirectional=True), []
    for padding in (0.0, np.nan):
        x = tensor(wave(5, 4, 2))
        for k, length in enumerate(UNSORTED):
            x[length:, k] = padding
        with GradManager().attach([x, *layer.parameters()]) as gm:
            gm.backward((layer(x, lengths=UNSORTED)[0] ** 2).sum())
        found.append([x.grad.numpy().copy(), *[p.grad.numpy().copy() for p in layer.parameters()]])
        assert not any(x.grad[length:, k].numpy().any() for k, length in enumerate(UNSORTED))
        layer.zero_grad()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_dropout_acts_on_the_rows_between_packed_layers() -> None:
    packed = rnn.pack_padded_sequence(wave(5, 4, 2), SORTED)
    gru = filled(nn.GRU, 2, 3, num_layers=2, dropout=0.5, rng=np.random.default_rng(3))
    first, second = filled(nn.GRU, 2, 3), filled(nn.GRU, 3, 3)
    for n, layer in enumerate((first, second)):
        layer.load_state_dict({name: gru.get_parameter(name.replace("l0", f"l{n}")) for name in layer.state_dict()})
    rng = np.random.default_rng()
    rng.bit_generator.state = gru.rng.bit_generator.state
    between = first(packed)[0]
    expected = second(between._replace(data=dropout(between.data, 0.5, rng=rng)))[0]
    assert_close_to_8_digits(gru(packed)[0].data, expected.data)
    assert_close_to_8_digits(gru.eval()(packed)[0].data, second(between)[0].data)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_layers_inside_vmap_are_those_of_each_example(kind: type[Any]) -> None:
    layer, xs = filled(kind, 2, 3, bidirectional=True), wave(3, 5, 4, 2)

    def last_of(x: Any) -> Any:
        output, last = layer(x, lengths=UNSORTED)
        return output, states_of(kind, last)[0]

    for one, other in zip(vmap(last_of)(tensor(xs)), zip(*map(last_of, xs), strict=True), strict=True):
        assert_close_to_8_digits(one, np.stack(other))
    with pytest.raises(errors.BatchedValueError, match=f"{kind.__name__}: lengths must be the same for all examples"):
        vmap(lambda x, n: layer(x, lengths=n)[0])(tensor(xs), np.array([UNSORTED] * 3))
    with pytest.raises(
        errors.ShapeError, match=r"PackedSequence: batch_sizes must have one axis; found shape \(3, 5\)"
    ):
        layer(
            vmap(lambda x: rnn.pack_padded_sequence(x, SORTED, enforce_sorted=False))(tensor(xs))
        )  # sizes have the examples' axis, too


def test_a_compiled_step_follows_the_lengths() -> None:
    gru, x = filled(nn.GRU, 2, 3), wave(5, 4, 2)
    gm = GradManager().attach(gru.parameters())

    def step(x: Any, lengths: Any) -> Any:
        gru.zero_grad()
        with gm:
            output, h = gru(rnn.pack_padded_sequence(x, lengths, enforce_sorted=False))
            gm.backward((output.data**2).sum() + h.sum())
        return gru.weight_hh_l0.grad

    compiled = gradmgr.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lengths in (UNSORTED, UNSORTED, UNSORTED, UNSORTED, SORTED, SORTED, SORTED, UNSORTED):
            given = np.array(lengths)
            np.testing.assert_array_equal(compiled(x, given), step(x, given))


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("kind", KINDS)
def test_packed_layers_compute_on_the_gpu_and_lengths_stay_on_the_host(kind: type[Any]) -> None:
    layer, moved, x = filled(kind, 2, 3, bidirectional=True), filled(kind, 2, 3, bidirectional=True), wave(5, 4, 2)
    moved.to("cuda")
    found = []
    for module, at in ((layer, tensor(x)), (moved, asarray(guard.cupy.asarray(x)))):
        guard.ndarray.waits = 0
        with GradManager().attach([at, *module.parameters()]) as gm:
            output, last = module(rnn.pack_padded_sequence(at, UNSORTED, enforce_sorted=False))
            padded, _ = rnn.pad_packed_sequence(output, padding_value=2.0)
            gm.backward((padded**2).sum() + states_of(kind, last)[0].sum())
        assert guard.ndarray.waits == guard.ndarray.copies_to_host == 0
        found.append([padded, at.grad, *[p.grad for p in module.parameters()]])
    assert output.device.startswith("cuda")
    assert output.to("cpu").device == "cpu"
    for one, other in zip(*found, strict=True):
        assert_close_to_8_digits(one, other.to("cpu"))
    with pytest.raises(TypeError, match=r"lengths must be on the host, as it decides .* copy it once by .get\(\)"):
        rnn.pack_padded_sequence(at, guard.cupy.asarray(np.array(UNSORTED)))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_packed_layers_keep_the_dtype(dtype: str) -> None:
    lstm = nn.LSTM(2, 3, dtype=dtype, rng=np.random.default_rng(0))
    output, states = lstm(rnn.pack_sequence([wave(3, 2).astype(dtype), wave(2, 2).astype(dtype)]))
    assert {str(t.dtype) for t in (output.data, *states)} == {dtype}


# ---------------------------------------------------------------- functions

SEQUENCES = [wave(3, 2), wave(1, 2, at=1), wave(4, 2, at=2)]


def test_functions_are_torchs() -> None:
    torch = pytest.importorskip("torch", reason="its numbers are compared")
    its, theirs = torch.nn.utils.rnn, [torch.tensor(s) for s in SEQUENCES]
    for first, value, side in itertools.product((False, True), (0.0, -1.5), ("right", "left")):
        options = {"batch_first": first, "padding_value": value, "padding_side": side}
        np.testing.assert_array_equal(rnn.pad_sequence(SEQUENCES, **options), its.pad_sequence(theirs, **options))
    one, other = rnn.pack_sequence(SEQUENCES, False), its.pack_sequence(theirs, False)
    for found, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(found, expected)
    for first, value, total in itertools.product((False, True), (0.0, 7.0), (None, 6)):
        pairs = rnn.pad_packed_sequence(one, first, value, total), its.pad_packed_sequence(other, first, value, total)
        for found, expected in zip(*pairs, strict=True):
            np.testing.assert_array_equal(found, expected)
    for found, expected in zip(rnn.unpack_sequence(one), its.unpack_sequence(other), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_is_packed_comes_back_as_it_was() -> None:
    packed = rnn.pack_sequence(SEQUENCES, enforce_sorted=False)
    padded, lengths = rnn.pad_packed_sequence(packed, batch_first=True)
    assert lengths.tolist() == [3, 1, 4]
    again = rnn.pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    for found in (rnn.unpack_sequence(again), rnn.unpad_sequence(padded, lengths, batch_first=True)):
        for one, other in zip(found, SEQUENCES, strict=True):
            assert type(one) is np.ndarray
            np.testing.assert_array_equal(one, other)


def test_tokens_and_sequences_without_features_are_packed() -> None:
    packed = rnn.pack_padded_sequence(np.array([[4, 0], [7, 8], [0, 9]]).T, [2, 3], True, enforce_sorted=False)
    assert packed.data.tolist() == [0, 4, 8, 7, 9]
    rows = nn.Embedding(10, 3, rng=np.random.default_rng(0))(packed.data)
    assert isinstance(packed._replace(data=rows).data, Tensor)
    assert rnn.pad_sequence([np.array([], int), np.array([1, 2])]).tolist() == [[0, 1], [0, 2]]
    assert rnn.pad_sequence([np.ones(0), np.ones(0)]).shape == (0, 2)


def test_gradients_of_packing_and_padding() -> None:
    def call(*sequences: Any) -> Any:
        packed = rnn.pack_sequence(sequences, enforce_sorted=False)
        padded, lengths = rnn.pad_packed_sequence(packed, padding_value=3.0, total_length=5)
        return rnn.pad_sequence(sequences, padding_side="left") ** 2, *rnn.unpad_sequence(padded**3, lengths)

    assert gradcheck(call, [tensor(s) for s in SEQUENCES], check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(call, [tensor(s) for s in SEQUENCES], fast_mode=True)


def test_a_packed_sequence_is_copied_and_pickled() -> None:
    packed = rnn.pack_sequence(SEQUENCES, enforce_sorted=False)
    for twin in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):  # noqa: S301  # our own
        assert type(twin) is rnn.PackedSequence
        for one, other in zip(twin, packed, strict=True):
            np.testing.assert_array_equal(one, other)
    given = rnn.PackedSequence(packed.data, packed.batch_sizes, unsorted_indices=packed.unsorted_indices)
    assert given.sorted_indices.tolist() == packed.sorted_indices.tolist() == [2, 0, 1]


# ---------------------------------------------------------------- wrong arguments

PACKED, X = rnn.pack_sequence(SEQUENCES, enforce_sorted=False), np.ones((3, 2, 4))
WRONG: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: rnn.pack_padded_sequence(X, [3, 0]),
        ValueError,
        r"each must have at least 1 step; found lengths \[3, 0\]",
    ),
    (
        lambda: rnn.pack_padded_sequence(X, [2, 3]),
        ValueError,
        r"found lengths \[2, 3\]; sort the batch, or pass enforce_s",
    ),
    (lambda: rnn.pack_padded_sequence(X, [4, 3]), ValueError, r"cannot be longer than the 3 steps .* found length 4"),
    (lambda: rnn.pack_padded_sequence(X, [3, 2, 1]), errors.ShapeError, r"a length for each sequence: 2 for shape"),
    (lambda: rnn.pack_padded_sequence(X, [2.5, 2]), TypeError, "each of lengths must be an integer; found 2.5"),
    (lambda: rnn.pack_padded_sequence(X, np.ones(2)), TypeError, "lengths must be integers; found an array of float64"),
    (lambda: rnn.pack_padded_sequence(X, [[3], [2]]), TypeError, "each of lengths must be an integer"),
    (lambda: rnn.pack_padded_sequence(X, 3), TypeError, "lengths must be integers, in a list or an array; found 3"),
    (lambda: rnn.pack_padded_sequence(X[:, :0], []), ValueError, "there must be a sequence"),
    (lambda: rnn.pack_padded_sequence(X[0, 0], [1]), errors.ShapeError, r"takes a batch \(length, batch, ...\)"),
    (lambda: rnn.pad_packed_sequence(PACKED, total_length=3), ValueError, "at least 4, the length of the longest"),
    (lambda: rnn.pad_packed_sequence(X), TypeError, "takes a PackedSequence, as pack_sequence makes it; found ndarray"),
    (
        lambda: rnn.unpack_sequence((X, [1])),
        TypeError,
        "takes a PackedSequence, as pack_sequence makes it; found tuple",
    ),
    (lambda: rnn.pad_sequence([]), ValueError, "pad_sequence takes at least one sequence; found none"),
    (
        lambda: rnn.pad_sequence([X, X[..., 0]]),
        errors.ShapeError,
        r"found shape \(3, 2\) of sequence 1, and \(3, 2, 4\)",
    ),
    (
        lambda: rnn.pad_sequence([X], padding_side="x"),
        ValueError,
        "padding_side must be one of 'right' 'left'; found 'x'",
    ),
    (lambda: rnn.pack_sequence([X, X[:0]]), ValueError, "pack_sequence: .* at least 1 step"),
    (lambda: rnn.unpad_sequence(X, [1, -1]), ValueError, "a length cannot be negative"),
    (
        lambda: rnn.PackedSequence(X, [1, 2]),
        ValueError,
        r"batch_sizes must be at least 1 and never ascend; found \[1, 2\]",
    ),
    (lambda: rnn.PackedSequence(X, [2, 2]), errors.ShapeError, r"data must have 4 rows, .* found shape \(3, 2, 4\)"),
    (lambda: rnn.PackedSequence(X, [2, 1], [0]), errors.ShapeError, "sorted_indices must be 2 integers; found 1"),
    (lambda: rnn.PackedSequence(X, [2, 1], [0, 2]), ValueError, r"a permutation of 0 to 1; found \[0, 2\]"),
    (lambda: nn.LSTM(3, 2)(PACKED), errors.ShapeError, r"LSTM: packed data must have shape .*, 3\); found \(8, 2\)"),
    (lambda: nn.GRU(2, 2)(PACKED, np.ones((1, 2, 2))), errors.ShapeError, r"GRU: h must have shape \(1, 3, 2\)"),
    (lambda: nn.GRU(2, 2)(PACKED, lengths=[3, 1, 4]), TypeError, "GRU: a PackedSequence has its own lengths"),
    (
        lambda: nn.GRU(4, 2)(X[:, 0], lengths=[3]),
        errors.ShapeError,
        r"lengths= are those of a batch .* found one, of s",
    ),
    (lambda: nn.RNN(4, 2)(X, lengths=[3, 9]), ValueError, "RNN: a sequence cannot be longer than the 3 steps"),
    (lambda: nn.GRU(2, 2)(PACKED._replace(data=X)), errors.ShapeError, "data must have 8 rows"),
    (lambda: nn.GRU(2, 2)(rnn.pack_sequence([np.ones((2, 2), int)])), errors.DtypeError, "found input of dtype int64"),
    (
        lambda: nn.Linear(2, 2)(rnn.pack_sequence([tensor([1.0])])),
        TypeError,
        "found a PackedSequence: pass on one of its fields, data,",
    ),
    (lambda: nn.utils.clip_grad_norm_, AttributeError, r"it is gradmgr.optim.clip_grad_norm_"),
]


@pytest.mark.parametrize(("call", "kind", "says"), WRONG, ids=[w[-1] for w in WRONG])
def test_wrong_arguments(call: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        call()
