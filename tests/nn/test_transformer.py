"""Transformer layers and plain recurrent networks: torch's numbers with torch's parameters."""

import numpy as np
import pytest

from gradmgr import GradManager, nn, tensor

RANDOM = np.random.default_rng(0)
SRC, MEMORY = RANDOM.standard_normal((3, 5, 8)).astype("f4"), RANDOM.standard_normal((3, 7, 8)).astype("f4")
PADDING = np.array([[False] * 4 + [True], [False] * 5, [False] * 3 + [True] * 2])
CAUSAL = np.triu(np.ones((5, 5), bool), 1)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="its numbers are compared")


def twins(torch, name, *args, **options):
    """A layer of torch, and ours with its parameters."""
    theirs = getattr(torch.nn, name)(*args, **options)
    ours = getattr(nn, name)(*args, **options)
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    return ours, theirs


def assert_same(ours, theirs, *args, **masks):
    """Results and gradients are the same."""
    import torch

    found, expected = (layer(*map(of, args), **masks) for layer, of, masks in (
        (ours, tensor, masks),
        (theirs, torch.tensor, {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in masks.items()}),
    ))  # fmt: skip
    first = found[0] if isinstance(found, tuple) else found
    other = expected[0] if isinstance(expected, tuple) else expected
    np.testing.assert_allclose(first.numpy(), other.detach().numpy(), atol=1e-5)
    gm = GradManager().attach(dict(ours.named_parameters()))
    with gm:
        found = ours(*map(tensor, args), **masks)
        gm.backward((found[0] if isinstance(found, tuple) else found)[..., :2].sum())
    other[..., :2].sum().backward()
    gradients = dict(theirs.named_parameters())
    for key, p in ours.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), gradients[key].grad.numpy(), atol=2e-4, err_msg=key)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_is_torchs(torch, norm_first, activation):
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
    ours, theirs = twins(torch, "TransformerEncoderLayer", 8, 2, 16, **options)
    assert_same(ours, theirs, SRC, src_mask=CAUSAL, src_key_padding_mask=PADDING)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_is_torchs(torch, norm_first):
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
    ours, theirs = twins(torch, "TransformerDecoderLayer", 8, 2, 16, **options)
    masks = {"tgt_mask": CAUSAL, "tgt_key_padding_mask": PADDING, "memory_mask": np.zeros((5, 7), bool)}
    assert_same(ours, theirs, SRC, MEMORY, **masks)


def test_is_causal_is_the_causal_mask():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    np.testing.assert_allclose(layer(SRC, is_causal=True).numpy(), layer(SRC, CAUSAL).numpy(), atol=1e-6)


def test_stacks_are_torchs(torch):
    stacks = []
    for kind in (nn, torch.nn):
        options = {"dropout": 0.0, "batch_first": True}
        encoder = kind.TransformerEncoder(kind.TransformerEncoderLayer(8, 2, 16, **options), 2, kind.LayerNorm(8))
        decoder = kind.TransformerDecoder(kind.TransformerDecoderLayer(8, 2, 16, **options), 2)
        stacks.append((encoder, decoder))
    for ours, theirs, args in zip(*stacks, ((SRC,), (SRC, MEMORY)), strict=True):
        ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
        assert_same(ours, theirs, *args)


def test_copies_have_the_same_values_and_draw_from_one_generator():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, rng=np.random.default_rng(0))
    stack = nn.TransformerEncoder(layer, 2)
    first, second = stack.layers
    assert first.linear1.weight.tolist() == second.linear1.weight.tolist()
    assert first.linear1.weight is not second.linear1.weight
    assert first.dropout1.rng is second.dropout2.rng is layer.self_attn.rng


def test_an_activation_may_be_a_function():
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=np.tanh)
    assert layer(SRC).shape == SRC.shape
    with pytest.raises(
        ValueError, match="TransformerEncoderLayer: activation must be one of 'relu' 'gelu'; found 'elu'"
    ):
        nn.TransformerEncoderLayer(8, 2, 16, activation="elu")


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_plain_recurrent_networks_are_torchs(torch, nonlinearity):
    options = {"num_layers": 2, "nonlinearity": nonlinearity, "batch_first": True, "bidirectional": True}
    ours, theirs = twins(torch, "RNN", 8, 4, **options)
    assert_same(ours, theirs, SRC)
    ours, theirs = twins(torch, "RNNCell", 8, 4, nonlinearity=nonlinearity)
    assert_same(ours, theirs, SRC[0])


def test_another_nonlinearity_is_refused():
    for make in (nn.RNN, nn.RNNCell):
        with pytest.raises(ValueError, match="nonlinearity must be one of 'tanh' 'relu'; found 'elu'"):
            make(2, 3, nonlinearity="elu")
