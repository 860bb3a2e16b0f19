"""Layers: what they compute, how they begin, what they refuse; and models made of them."""

import copy
import math

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, nn, tensor
from gradmgr.nn import functional


def drawn(*shape, dtype="float32"):
    return np.random.default_rng(11).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- against torch

# The state of torch 2.13's Sequential(Conv2d(1, 2, 2), BatchNorm2d(2), ReLU(), Flatten(), Linear(8, 2)) after
# one batch, rounded to two digits.
TORCH_STATE = {
    "0.weight": np.float32([[[[-0.0, 0.27], [-0.41, -0.37]]], [[[-0.19, 0.13], [-0.01, 0.4]]]]),
    "0.bias": np.float32([-0.04, 0.13]),
    "1.weight": np.float32([1.0, 1.0]),
    "1.bias": np.float32([0.0, 0.0]),
    "1.running_mean": np.float32([-0.05, 0.04]),
    "1.running_var": np.float32([0.9, 0.9]),
    "1.num_batches_tracked": np.array(1),
    "4.weight": np.float32(
        [
            [-0.11, -0.07, -0.34, -0.23, -0.15, 0.01, 0.14, 0.21],
            [-0.24, -0.15, 0.13, 0.29, -0.07, 0.26, -0.06, 0.04],
        ]
    ),
    "4.bias": np.float32([0.32, -0.33]),
}


def small_net(rng=None):
    return nn.Sequential(
        nn.Conv2d(1, 2, 2, rng=rng), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2, rng=rng)
    )


def test_a_state_of_torchs():
    net = small_net()
    assert net.load_state_dict(TORCH_STATE) == ([], [])
    x = np.sin(np.arange(18, dtype="float32") / 10).reshape(2, 1, 3, 3)
    found = net.eval()(x).numpy()
    torchs = [[0.41164925694465637, -0.27699193358421326], [0.41358983516693115, -0.2527822256088257]]
    assert np.allclose(found, torchs, rtol=0, atol=1e-6)
    found = net.train()(x).numpy()
    torchs = [[-0.16336354613304138, -0.8091835975646973], [0.4956742227077484, -0.16677895188331604]]
    assert np.allclose(found, torchs, rtol=0, atol=1e-5)  # few values to normalise by: errors of 1e-7 grow
    state = net.state_dict()
    assert list(state) == list(TORCH_STATE)
    assert np.allclose(state["1.running_mean"].numpy(), [-0.09082946181297302, 0.07678492367267609], atol=1e-7)
    assert np.allclose(state["1.running_var"].numpy(), [0.8113032579421997, 0.8104919195175171], atol=1e-7)
    assert state["1.num_batches_tracked"].item() == 2


TORCH_REPR = """\
Sequential(
  (0): Linear(in_features=2, out_features=3, bias=False)
  (1): Conv2d(3, 4, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)
  (2): Conv2d(4, 4, kernel_size=(3, 2), stride=(1, 1), dilation=(2, 2), groups=2)
  (3): ConvTranspose2d(4, 4, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 1))
  (4): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
  (5): LayerNorm((4,), eps=1e-05, elementwise_affine=True)
  (6): GroupNorm(2, 4, eps=1e-05, affine=True)
  (7): RMSNorm((4,), eps=None, elementwise_affine=True)
  (8): Embedding(10, 3, padding_idx=0)
  (9): Dropout(p=0.3)
  (10): Flatten(start_dim=1, end_dim=-1)
  (11): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
  (12): AvgPool2d(kernel_size=2, stride=2, padding=0)
  (13): ReLU()
  (14): LeakyReLU(negative_slope=0.2)
  (15): ELU(alpha=1.0)
  (16): GELU(approximate='none')
  (17): SiLU()
  (18): Softplus(beta=1.0, threshold=20.0)
  (19): Softmax(dim=1)
  (20): LogSoftmax(dim=1)
  (21): CrossEntropyLoss()
  (22): HuberLoss()
  (23): Identity()
  (24): Conv1d(2, 2, kernel_size=(3,), stride=(1,), padding='same', padding_mode=circular)
)"""


def test_repr():
    net = nn.Sequential(
        nn.Linear(2, 3, bias=False),
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(4, 4, (3, 2), dilation=2, groups=2),
        nn.ConvTranspose2d(4, 4, 3, output_padding=1, stride=2),
        nn.BatchNorm1d(3),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
        nn.Embedding(10, 3, padding_idx=0),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.LeakyReLU(0.2),
        nn.ELU(),
        nn.GELU(),
        nn.SiLU(),
        nn.Softplus(),
        nn.Softmax(dim=1),
        nn.LogSoftmax(1),
        nn.CrossEntropyLoss(),
        nn.HuberLoss(),
        nn.Identity(),
        nn.Conv1d(2, 2, 3, padding="same", padding_mode="circular"),
    )
    assert repr(net) == TORCH_REPR


# ---------------------------------------------------------------- each layer is its function

LABELS = np.array([0, 2, 1])

CASES = {
    "Linear": (lambda: nn.Linear(4, 3), (5, 4), lambda m, x: functional.linear(x, m.weight, m.bias)),
    "Linear without bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4), lambda m, x: x @ m.weight.T),
    "Conv1d": (
        lambda: nn.Conv1d(2, 4, 3, 2, 1, 2, 2),
        (2, 2, 9),
        lambda m, x: functional.conv1d(x, m.weight, m.bias, 2, 1, 2, 2),
    ),
    "Conv2d": (
        lambda: nn.Conv2d(2, 4, (3, 2), (1, 2), (1, 0), (1, 2), 2),
        (2, 2, 6, 7),
        lambda m, x: functional.conv2d(x, m.weight, m.bias, (1, 2), (1, 0), (1, 2), 2),
    ),
    "Conv2d same": (
        lambda: nn.Conv2d(2, 4, (4, 3), padding="same", bias=False),
        (2, 2, 6, 7),
        lambda m, x: functional.conv2d(np.pad(x, [(0, 0), (0, 0), (1, 2), (1, 1)]), m.weight),
    ),
    "Conv2d valid": (
        lambda: nn.Conv2d(2, 4, 3, padding="valid", padding_mode="reflect"),
        (2, 2, 6, 7),
        lambda m, x: functional.conv2d(x, m.weight, m.bias),
    ),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, 2),
        (2, 4, 3, 4),
        lambda m, x: functional.conv_transpose2d(x, m.weight, m.bias, 2, 1, 1, 2),
    ),
    "ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, 2),
        (2, 2, 5),
        lambda m, x: functional.conv_transpose1d(x, m.weight, m.bias, 2, 1, 1, 2),
    ),
    "BatchNorm": (
        lambda: nn.BatchNorm(3),
        (4, 3, 2, 2, 2),
        lambda m, x: functional.batch_norm(x, None, None, m.weight, m.bias, training=True),
    ),
    "LayerNorm": (
        lambda: nn.LayerNorm((3, 2), eps=1e-3),
        (4, 3, 2),
        lambda m, x: functional.layer_norm(x, (3, 2), m.weight, m.bias, 1e-3),
    ),
    "LayerNorm without bias": (
        lambda: nn.LayerNorm([2], bias=False),
        (4, 2),
        lambda m, x: functional.layer_norm(x, (2,), m.weight),
    ),
    "GroupNorm": (
        lambda: nn.GroupNorm(2, 4),
        (3, 4, 5),
        lambda m, x: functional.group_norm(x, 2, m.weight, m.bias),
    ),
    "RMSNorm": (lambda: nn.RMSNorm(6), (3, 6), lambda m, x: functional.rms_norm(x, (6,), m.weight)),
    "Flatten": (lambda: nn.Flatten(), (2, 3, 4), lambda m, x: x.reshape(2, 12)),
    "Flatten the first": (lambda: nn.Flatten(0, -2), (2, 3, 4), lambda m, x: x.reshape(6, 4)),
    "Upsample": (
        lambda: nn.Upsample((3, 9), mode="bilinear", align_corners=True),
        (2, 2, 6, 5),
        lambda m, x: functional.interpolate(x, (3, 9), mode="bilinear", align_corners=True),
    ),
    "MaxPool1d": (
        lambda: nn.MaxPool1d(3, 2, 1, ceil_mode=True),
        (2, 2, 6),
        lambda m, x: functional.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    ),
    "AvgPool1d": (
        lambda: nn.AvgPool1d(3, padding=1, count_include_pad=False),
        (2, 2, 6),
        lambda m, x: functional.avg_pool1d(x, 3, None, 1, False, False),
    ),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 4, 5), lambda m, x: x.mean((2, 3), keepdims=True)),
    "MaxPool2d": (
        lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        (2, 2, 6, 6),
        lambda m, x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    "AvgPool2d": (
        lambda: nn.AvgPool2d((2, 3), padding=1, count_include_pad=False),
        (2, 2, 6, 6),
        lambda m, x: functional.avg_pool2d(x, (2, 3), None, 1, False, False),
    ),
    "Identity": (lambda: nn.Identity(3, of="anything"), (2, 3), lambda m, x: x),
    "ReLU": (lambda: nn.ReLU(), (7,), lambda m, x: np.maximum(x, 0)),
    "LeakyReLU": (lambda: nn.LeakyReLU(0.1), (7,), lambda m, x: np.where(x > 0, x, np.float32(0.1) * x)),
    "ELU": (lambda: nn.ELU(0.5), (7,), lambda m, x: functional.elu(x, 0.5)),
    "GELU": (lambda: nn.GELU("tanh"), (7,), lambda m, x: functional.gelu(x, "tanh")),
    "SiLU": (lambda: nn.SiLU(), (7,), lambda m, x: x / (1 + np.exp(-x))),
    "Sigmoid": (lambda: nn.Sigmoid(), (7,), lambda m, x: 1 / (1 + np.exp(-x))),
    "Tanh": (lambda: nn.Tanh(), (7,), lambda m, x: np.tanh(x)),
    "Softplus": (lambda: nn.Softplus(2.0), (7,), lambda m, x: np.log1p(np.exp(2 * x)) / 2),
    "Softmax": (lambda: nn.Softmax(0), (7, 2), lambda m, x: np.exp(x) / np.exp(x).sum(0)),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), (2, 7), lambda m, x: x - np.log(np.exp(x).sum(1, keepdims=True))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("as_tensor", [True, False])
def test_layer_is_its_function(name, as_tensor):
    make, shape, function = CASES[name]
    layer, x = make(), drawn(*shape)
    found = layer(tensor(x) if as_tensor else x)
    expected = function(layer, x)
    found, expected = (t.numpy() if isinstance(t, gradmgr.Tensor) else t for t in (found, expected))
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


LOSSES = {
    "MSELoss": (nn.MSELoss, {}, functional.mse_loss),
    "L1Loss": (nn.L1Loss, {}, functional.l1_loss),
    "SmoothL1Loss": (nn.SmoothL1Loss, {"beta": 0.5}, functional.smooth_l1_loss),
    "HuberLoss": (nn.HuberLoss, {"delta": 0.5}, functional.huber_loss),
    "BCEWithLogitsLoss": (
        nn.BCEWithLogitsLoss,
        {"weight": np.float32([1, 2, 3, 4]), "pos_weight": np.float32([2, 1, 1, 1])},
        functional.binary_cross_entropy_with_logits,
    ),
    "NLLLoss": (nn.NLLLoss, {"weight": np.float32([1, 2, 3, 4]), "ignore_index": 1}, functional.nll_loss),
    "CrossEntropyLoss": (
        nn.CrossEntropyLoss,
        {"weight": np.float32([1, 2, 3, 4]), "ignore_index": 1, "label_smoothing": 0.1},
        functional.cross_entropy,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_loss_is_its_function(name, reduction):
    kind, options, function = LOSSES[name]
    x = tensor(drawn(3, 4))
    target = LABELS if name in ("NLLLoss", "CrossEntropyLoss") else abs(drawn(3, 4)) % 1
    loss = kind(**options, reduction=reduction)
    assert loss(x, target).tolist() == function(x, target, **options, reduction=reduction).tolist()
    assert [b.shape for b in loss.buffers()] == [np.shape(v) for v in options.values() if np.ndim(v)]
    with pytest.raises(ValueError, match=f"{kind.__name__}: reduction must be one of 'none' 'mean' 'sum'; found 'avg'"):
        kind(reduction="avg")


def test_losses_of_probabilities():
    x, y = abs(drawn(3, 4)) % 1, abs(drawn(3, 4)) % 1
    weight = np.float32([1, 2, 3, 4])
    found = nn.BCELoss(weight, reduction="none")(x, y)
    assert np.allclose(found, -weight * (y * np.log(x) + (1 - y) * np.log(1 - x)), rtol=1e-5)
    found = nn.KLDivLoss("batchmean", log_target=True)(x, y)
    assert np.allclose(found, np.sum(np.exp(y) * (y - x)) / 3, rtol=1e-5)
    with pytest.raises(ValueError, match="KLDivLoss: reduction must be one of 'none' 'mean' 'sum' 'batchmean'"):
        nn.KLDivLoss("avg")


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(2, 1), "same"])
def test_padding_modes(mode, padding):
    layer, x = nn.Conv2d(2, 3, (4, 3), padding=padding, padding_mode=mode), tensor(drawn(2, 2, 5, 6))
    sides = [(1, 2), (1, 1)] if padding == "same" else [(2, 2), (1, 1)]
    numpys = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    padded = np.pad(x.numpy(), [(0, 0), (0, 0), *sides], mode=numpys)
    expected = functional.conv2d(padded, layer.weight, layer.bias)
    assert np.allclose(layer(x).numpy(), expected.numpy(), rtol=1e-6)
    gm = GradManager().attach(x)
    with gm:
        gm.backward(layer(x).sum())
    one = np.zeros(x.shape)
    one[0, 1, 0, 0] = 1  # the derivative in one element is the sum of what the layer makes of it
    with_bias = layer(one.astype("float32")).numpy() - layer.bias.numpy().reshape(3, 1, 1)
    assert np.isclose(x.grad.numpy()[0, 1, 0, 0], with_bias[0].sum(), rtol=1e-4)


# ---------------------------------------------------------------- how they begin


def test_first_values_are_float32():
    for make, _, _ in CASES.values():
        assert {p.dtype for p in make().parameters()} <= {np.dtype("float32")}
    assert nn.Linear(2, 2, dtype="float64").weight.dtype == np.float64
    assert nn.Conv2d(1, 1, 1, dtype=np.float16).bias.dtype == np.float16
    norm = nn.BatchNorm1d(2, dtype="float64")
    assert {t.dtype.name for t in norm.state_dict().values()} == {"float64", "int64"}
    with pytest.raises(errors.DtypeError, match="could receive no gradient"):
        nn.Linear(2, 2, dtype=int)


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (nn.Linear(300, 400, rng=np.random.default_rng(0)), 300),
        (nn.Conv1d(60, 200, 5, rng=np.random.default_rng(0)), 300),
        (nn.Conv2d(60, 200, (5, 2), groups=2, rng=np.random.default_rng(0)), 300),
        (nn.ConvTranspose2d(200, 60, (5, 2), groups=2, rng=np.random.default_rng(0)), 300),
    ],
)
def test_first_values_are_distributed_as_torchs(layer, fan_in):
    bound = 1 / math.sqrt(fan_in)
    for p in (layer.weight, layer.bias):
        values = p.numpy()
        assert abs(values).max() <= bound
        assert abs(values).max() > 0.95 * bound
        off = abs(values.astype(float).var() / (bound**2 / 3) - 1)
        assert off < max(0.01, 4 / math.sqrt(values.size))  # 1 % where there are enough to tell


def test_first_values_of_tables_and_norms():
    table = nn.Embedding(300, 200, padding_idx=-1, rng=np.random.default_rng(0))
    assert table.padding_idx == 299
    assert not table.weight.numpy()[299].any()
    assert abs(table.weight.numpy()[:299].var() - 1) < 0.02
    for norm in (nn.BatchNorm2d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3)):
        assert (norm.weight.tolist(), norm.bias.tolist()) == ([1, 1, 1], [0, 0, 0])


def deep_net(rng, dtype=None):
    return nn.Sequential(
        *(nn.Linear(4, 4, rng=rng, dtype=dtype) for _ in range(3)),
        nn.Conv2d(2, 2, 2, rng=rng, dtype=dtype),
        nn.Embedding(3, 2, rng=rng, dtype=dtype),
    )


def test_one_seed_decides_a_model():
    one, same, other, wide = (
        deep_net(np.random.default_rng(1)),
        deep_net(np.random.default_rng(1)),
        deep_net(np.random.default_rng(2)),
        deep_net(np.random.default_rng(1), "float64"),
    )
    for p, q, r, s in zip(*(net.parameters() for net in (one, same, other, wide)), strict=True):
        assert p.tolist() == q.tolist()
        assert p.tolist() != r.tolist()
        assert np.allclose(p.numpy(), s.numpy(), rtol=1e-6)
    assert len({str(one[k].weight.tolist()) for k in range(3)}) == 3
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)  # fresh entropy
    assert one.weight.tolist() != other.weight.tolist()


def test_seeds_are_refused():
    for make in (nn.Dropout, lambda rng: nn.Linear(1, 1, rng=rng), lambda rng: nn.Embedding(1, 1, rng=rng)):
        with pytest.raises(TypeError, match=r"found rng of type int; make one with numpy\.random\.default_rng\(0\)"):
            make(rng=0)


def test_drawing_anew():
    for layer in (nn.Linear(3, 3), nn.Conv2d(1, 2, 2), nn.Embedding(3, 2, 0)):
        weight, before = layer.weight, layer.weight.tolist()
        layer.reset_parameters(rng=np.random.default_rng(5))
        assert layer.weight is weight
        assert weight.tolist() != before
        again = copy.deepcopy(layer)
        again.reset_parameters(rng=np.random.default_rng(5))
        assert again.weight.tolist() == weight.tolist()


# ---------------------------------------------------------------- what they refuse


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: nn.Linear(2.5, 1), TypeError, "Linear: in_features must be an integer; found 2.5"),
        (lambda: nn.Linear(1, -1), ValueError, "Linear: out_features must be at least 0; found -1"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ValueError, "groups must divide in_channels 3 and out_channels 4"),
        (lambda: nn.Conv2d(3, 4, (1, 2, 3)), ValueError, "Conv2d: kernel_size must be"),
        (lambda: nn.Conv1d(3, 4, (1, 2)), ValueError, "Conv1d: kernel_size must be"),
        (lambda: nn.Conv2d(3, 4, 3, 2, "same"), ValueError, "padding='same' needs stride 1"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), ValueError, "padding must be one of 'same' 'valid'; found 'full'"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="edge"), ValueError, "padding_mode must be one of 'zeros' 'reflect'"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), ValueError, "one of 'zeros'; found 'reflect'"),
        (lambda: nn.GroupNorm(2, 3), ValueError, "num_groups must divide num_channels 3; found 2"),
        (lambda: nn.Embedding(3, 2, 3), IndexError, "padding_idx must be one of the 3 rows; found 3"),
        (lambda: nn.ReLU(inplace=True), ValueError, "ReLU: inplace=True is not supported"),
        (lambda: nn.LeakyReLU(0.2, True), ValueError, "LeakyReLU: inplace=True is not supported"),
        (lambda: nn.ELU(inplace=True), ValueError, "ELU: inplace=True is not supported"),
        (lambda: nn.SiLU(True), ValueError, "SiLU: inplace=True is not supported"),
        (lambda: nn.Dropout(0.5, True), ValueError, "Dropout: inplace=True is not supported"),
        (
            lambda: nn.CrossEntropyLoss(tensor(drawn(3, 4)), LABELS),
            TypeError,
            r"as in CrossEntropyLoss\(\)\(input, target\)",
        ),
        (lambda: nn.NLLLoss(None, 1.5), TypeError, "ignore_index must be an integer; found 1.5; a loss is made first"),
        (
            lambda: nn.Sequential(nn.GRU(3, 4), nn.Linear(4, 2))(drawn(1, 1, 3)),
            TypeError,
            "found a tuple of 2, as LSTM",
        ),
        (lambda: nn.LayerNorm(4)(nn.GRU(3, 4)(drawn(1, 1, 3))), TypeError, r"as in `out, _ = layer\(x\)`"),
        (lambda: nn.ReLU()(nn.GRU(3, 4)(drawn(1, 1, 3))), TypeError, "found a tuple of 2, as LSTM"),
        (lambda: nn.Dropout(1.5), ValueError, "p must be from 0 to 1; found 1.5"),
        (lambda: nn.GELU("fast"), ValueError, "approximate must be one of 'none' 'tanh'"),
        (lambda: nn.LayerNorm("ab"), TypeError, "normalized_shape must be an integer; found 'ab'"),
        (lambda: nn.BatchNorm1d(3)(np.ones((2, 3, 2, 2))), errors.ShapeError, r"BatchNorm1d takes \(N, C\) or"),
        (lambda: nn.BatchNorm2d(3)(np.ones((2, 3))), errors.ShapeError, r"BatchNorm2d takes \(N, C, H, W\); found"),
        (
            lambda: nn.BatchNorm(3)(np.ones(3)),
            errors.ShapeError,
            r"BatchNorm takes \(N, C, \.\.\.\); found shape \(3,\)",
        ),
        (lambda: nn.Flatten()(np.ones(3)), errors.ShapeError, r"Flatten of axes 1 to -1.*found shape \(3,\)"),
        (lambda: nn.Linear(2, 3)(np.ones((4, 3), "f4")), errors.ShapeError, "linear"),
    ],
)
def test_refusals(make, error, says):
    with pytest.raises(error, match=says):
        make()


# ---------------------------------------------------------------- batch norm


def test_batch_norm_in_training_and_evaluation():
    x = drawn(6, 3, dtype="float64")
    norm = nn.BatchNorm1d(3, dtype="float64", eps=0.0)
    mean, count = norm.running_mean, norm.num_batches_tracked
    y = norm(x).numpy()
    assert np.allclose(y.mean(0), 0)
    assert np.allclose(y.var(0), 1)
    assert np.allclose(norm.running_mean.numpy(), 0.1 * x.mean(0))
    assert np.allclose(norm.running_var.numpy(), 0.9 + 0.1 * x.var(0, ddof=1))
    assert norm.running_mean is mean
    assert norm.num_batches_tracked is count
    assert count.item() == 1
    norm.eval()
    expected = (x - norm.running_mean.numpy()) / np.sqrt(norm.running_var.numpy())
    assert np.allclose(norm(x).numpy(), expected)
    assert count.item() == 1
    norm.reset_parameters()
    assert [t.tolist() for t in norm.buffers()] == [[0, 0, 0], [1, 1, 1], 0]


def test_batch_norm_averages_over_all_batches():
    x = drawn(3, 6, 2, dtype="float64")
    norm = nn.BatchNorm1d(2, momentum=None, dtype="float64")
    for batch in x:
        norm(batch)
    assert np.allclose(norm.running_mean.numpy(), x.mean((0, 1)))
    assert np.allclose(norm.running_var.numpy(), x.var(1, ddof=1).mean(0))


def test_batch_norm_without_statistics_or_weights():
    x = drawn(6, 3)
    norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    assert list(norm.state_dict()) == []
    trained = norm(x).tolist()
    assert norm.eval()(x).tolist() == trained
    assert "bias" not in nn.BatchNorm1d(3, bias=False).state_dict()
    assert nn.BatchNorm1d(3, bias=False).bias is None


def test_batch_norm_that_fails_changes_nothing():
    norm = nn.BatchNorm1d(3)
    before = {name: t.tolist() for name, t in norm.state_dict().items()}
    for x in (np.ones((2, 4), "f4"), np.ones((1, 3), "f4"), np.ones((2, 3), int)):
        with pytest.raises((ValueError, TypeError)):
            norm(x)
        assert {name: t.tolist() for name, t in norm.state_dict().items()} == before


def test_batch_norm_while_a_manager_records():
    norm, x = nn.BatchNorm1d(2), tensor(drawn(4, 2))
    gm = GradManager().attach([x, *norm.parameters()])
    with gm:
        gm.backward((norm(x) ** 2 * x).sum())
    assert norm.weight.grad is not None
    assert norm.num_batches_tracked.item() == 1
    assert not norm.running_mean.requires_grad


# ---------------------------------------------------------------- dropout


def test_dropout_goes_by_its_generator():
    x = np.ones(1000, "float32")
    one, same = nn.Dropout(0.25, rng=np.random.default_rng(3)), nn.Dropout(0.25, rng=np.random.default_rng(3))
    first = one(x)
    assert set(first.tolist()) == {0, np.float32(1 / 0.75)}
    assert 200 < (first == 0).sum() < 300
    assert first.tolist() == same(x).tolist()
    assert one(x).tolist() != first.tolist()
    assert one.eval()(x).tolist() == x.tolist()


class Block(nn.Module):
    def __init__(self, rng, saves):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8, rng=rng), nn.Dropout(0.5, rng=rng), gnp.tanh)
        self.saves = saves

    def forward(self, x):
        return gradmgr.checkpoint(self.body, x) if self.saves else self.body(x)


def test_checkpoint_draws_the_same_mask_again():
    x, results = drawn(16, 8), []
    for saves in (False, True):
        rng = np.random.default_rng(4)
        net = nn.Sequential(*(Block(rng, saves) for _ in range(2)))
        gm = GradManager().attach(dict(net.named_parameters()))
        with gm:
            loss = (net(x) ** 2).sum()
            gm.backward(loss)
        results.append((loss.item(), [p.grad.tolist() for p in net.parameters()], rng.random()))
    assert results[0] == results[1]


def test_generators_are_copied_with_the_model():
    rng = np.random.default_rng(5)
    net = nn.Sequential(nn.Dropout(rng=rng), nn.Dropout(rng=rng))
    twin = copy.deepcopy(net)
    assert twin[0].rng is twin[1].rng
    assert twin[0].rng is not rng
    x = np.ones(50)
    assert net(x).tolist() == twin(x).tolist()


# ---------------------------------------------------------------- a model learns


def test_a_convolutional_net_learns():
    rng = np.random.default_rng(6)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, rng=rng),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1, rng=rng),
        nn.Linear(64, 2, rng=rng),
    )
    x = rng.standard_normal((64, 1, 8, 8)).astype("float32")
    labels = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).astype(int)
    x[:, 0, :4] += np.where(labels, 0.5, -0.5).astype("float32").reshape(-1, 1, 1)
    loss_of = nn.CrossEntropyLoss()
    gm = GradManager().attach(dict(net.named_parameters()))
    losses = []
    for _ in range(60):
        with gm:
            loss = loss_of(net(x), labels)
            gm.backward(loss)
        losses.append(loss.item())
        for p in net.parameters():
            p -= 0.1 * p.grad
        net.zero_grad()
    assert 0.4 < losses[0] < 1.5
    assert losses[-1] < 0.1
    assert (net.eval()(x).numpy().argmax(1) == labels).mean() > 0.95


def test_a_model_under_vmap():
    """One example at a time, and an ensemble of parameters."""
    net = nn.Sequential(
        nn.Linear(3, 4, rng=np.random.default_rng(7)), nn.Tanh(), nn.Linear(4, 2, rng=np.random.default_rng(8))
    )
    x = drawn(5, 3)
    assert np.allclose(gradmgr.vmap(net)(tensor(x)).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-7)
    stacked = {name: tensor(np.stack([p.numpy(), 2 * p.numpy()])) for name, p in net.named_parameters()}
    twice = {name: tensor(2 * p.numpy()) for name, p in net.named_parameters()}
    found = gradmgr.vmap(lambda params: nn.functional_call(net, params, x))(stacked)
    assert np.allclose(found[0].numpy(), net(x).numpy(), rtol=1e-5, atol=1e-7)
    assert np.allclose(found[1].numpy(), nn.functional_call(net, twice, x).numpy(), rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------- on a GPU's arrays


def model_of_everything(device):
    rng = np.random.default_rng(9)
    on = {"device": device, "dtype": "float64"}
    return nn.Sequential(
        nn.Embedding(5, 8, 0, rng=rng, **on),
        nn.LayerNorm(8, **on),
        nn.RMSNorm(8, **on),
        nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect", rng=rng, **on),
        nn.BatchNorm1d(4, **on),
        nn.GELU(),
        lambda x: x.reshape(-1, 1, 4, 8),
        nn.ConvTranspose2d(1, 2, 2, rng=rng, **on),
        nn.BatchNorm2d(2, momentum=None, **on),
        nn.Conv2d(2, 4, 2, rng=rng, **on),
        nn.GroupNorm(2, 4, **on),
        nn.MaxPool2d(2),
        nn.AvgPool2d((2, 1)),
        nn.Flatten(),
        nn.Dropout(0.2, rng=rng),
        nn.Linear(16, 3, rng=rng, **on),
    )


def test_a_model_on_a_gpus_arrays(cupy):
    x, labels = np.array([[1, 2, 3, 0], [4, 4, 2, 1]]), np.array([2, 0])
    host, other = model_of_everything("cpu"), model_of_everything("cuda:0")
    assert {t.device for t in other.state_dict().values()} == {"cuda:0"}
    results = []
    for net, given in ((host, (x, labels)), (other, (cupy.asarray(x), cupy.asarray(labels)))):
        gm = GradManager().attach(dict(net.named_parameters()))
        with gm:
            loss = nn.CrossEntropyLoss()(net(tensor(given[0])), given[1])
            gm.backward(loss)
        for p in net.parameters():
            p -= 0.1 * p.grad
        results.append(loss.item())
        net.eval()(given[0])
        nn.summary(net, given[0])
    assert np.isclose(results[0], results[1], rtol=1e-10)
    assert cupy.ndarray.copies_to_host == 0
    for p, q in zip(host.state_dict().values(), other.state_dict().values(), strict=True):
        assert np.allclose(p.numpy(), q.numpy(), rtol=1e-8, atol=1e-10)
    fresh = model_of_everything("cuda:0")
    weight = fresh[-1].weight
    fresh.load_state_dict(host.state_dict())
    assert (weight.device, weight.tolist()) == ("cuda:0", host[-1].weight.tolist())
    assert fresh.to("cpu")[-1].weight is weight
    assert weight.device == "cpu"
    assert fresh.float().to(device="cuda:0")[-1].weight.dtype == np.float32
    assert {t.device for t in fresh.state_dict().values()} == {"cuda:0"}
