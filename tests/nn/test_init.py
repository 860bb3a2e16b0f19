"""First values: their distributions, that they are written in place and unrecorded, what is refused."""

import math

import numpy as np
import pytest

from gradmgr import GradManager, errors, nn, tensor
from gradmgr.nn import init

DRAWN = {
    "uniform_": {},
    "normal_": {},
    "trunc_normal_": {},
    "xavier_uniform_": {},
    "xavier_normal_": {},
    "kaiming_uniform_": {},
    "kaiming_normal_": {},
    "orthogonal_": {},
    "sparse_": {"sparsity": 0.5},
}
GIVEN = {"constant_": {"val": 2.5}, "ones_": {}, "zeros_": {}, "eye_": {}}


def blank(*shape, dtype="float64"):
    return tensor(np.empty(shape, dtype))


def truncated_variance(low, high):
    """The variance of the standard normal distribution between two bounds, from its density and function."""
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) if math.isfinite(x) else 0 for x in (low, high)]
    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    ends = [x * d if d else 0 for x, d in zip((low, high), density, strict=True)]
    return 1 + (ends[0] - ends[1]) / mass - ((density[0] - density[1]) / mass) ** 2


# ---------------------------------------------------------------- distributions

# Of a tensor of shape (500, 60, 5, 4): fan_in 1200, fan_out 10000.
VARIANCES = [
    (lambda t: init.uniform_(t, -1, 3, rng=np.random.default_rng(0)), 1, 16 / 12),
    (lambda t: init.normal_(t, 2, 3, rng=np.random.default_rng(0)), 2, 9),
    (lambda t: init.trunc_normal_(t, rng=np.random.default_rng(0)), 0, truncated_variance(-2, 2)),
    (lambda t: init.trunc_normal_(t, 1, 2, -1, 3, rng=np.random.default_rng(0)), 1, 4 * truncated_variance(-1, 1)),
    (lambda t: init.xavier_uniform_(t, 2, rng=np.random.default_rng(0)), 0, 4 * 2 / 11200),
    (lambda t: init.xavier_normal_(t, rng=np.random.default_rng(0)), 0, 2 / 11200),
    (lambda t: init.kaiming_uniform_(t, rng=np.random.default_rng(0)), 0, 2 / 1200),
    (lambda t: init.kaiming_uniform_(t, math.sqrt(5), rng=np.random.default_rng(0)), 0, 1 / 3600),
    (lambda t: init.kaiming_normal_(t, 3, "fan_out", "tanh", rng=np.random.default_rng(0)), 0, 25 / 9 / 10000),
    (lambda t: init.kaiming_normal_(t, 1, rng=np.random.default_rng(0)), 0, 1 / 1200),
]


@pytest.mark.parametrize(("fill", "mean", "variance"), VARIANCES)
def test_variance(fill, mean, variance):
    values = fill(blank(500, 60, 5, 4)).numpy()
    assert abs(values.var() / variance - 1) < 0.01
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / values.size)


def test_uniform_ones_keep_their_bounds():
    for fill, bound in (
        (lambda t: init.uniform_(t, -2, 2, rng=np.random.default_rng(0)), 2),
        (lambda t: init.xavier_uniform_(t, rng=np.random.default_rng(0)), math.sqrt(6 / 500)),
        (lambda t: init.kaiming_uniform_(t, nonlinearity="linear", rng=np.random.default_rng(0)), math.sqrt(3 / 200)),
    ):
        values = fill(blank(300, 200)).numpy()
        assert 0.999 * bound < abs(values).max() <= bound


@pytest.mark.parametrize(
    ("low", "high"),
    [(-2, 2), (1, math.inf), (3, math.inf), (-9, -4), (0.1, 0.2), (-0.1, 0.3), (-math.inf, 0.5), (1, 8)],
)
def test_truncated_tails(low, high):
    values = init.trunc_normal_(blank(400_000), a=low, b=high, rng=np.random.default_rng(1)).numpy()
    assert low <= values.min()
    assert values.max() <= high
    assert abs(values.var() / truncated_variance(low, high) - 1) < 0.015
    if math.isfinite(low) and math.isfinite(high) and high - low < 1:
        quarter = (values < low + (high - low) / 4).mean()
        assert abs(quarter - 0.25) < 0.01


@pytest.mark.parametrize("shape", [(30, 20), (20, 30), (25, 25), (10, 4, 5)])
def test_orthogonal(shape):
    w = init.orthogonal_(blank(*shape), 3, rng=np.random.default_rng(0)).numpy().reshape(shape[0], -1)
    gram = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    assert np.allclose(gram, 9 * np.eye(len(gram)), atol=1e-12)


def test_orthogonal_is_uniform():
    """Rotations of all angles are as likely; without the signs the first element would never be positive."""
    drawn = [init.orthogonal_(blank(2, 2), rng=np.random.default_rng(k)).numpy() for k in range(2000)]
    angles = np.array([math.atan2(w[1, 0], w[0, 0]) for w in drawn])
    counts, _ = np.histogram(angles, bins=8, range=(-math.pi, math.pi))
    assert counts.min() > 190
    assert counts.max() < 310
    assert 0.45 < np.mean([np.linalg.det(w) > 0 for w in drawn]) < 0.55


def test_sparse():
    w = init.sparse_(blank(1000, 200), 0.305, 2.0, rng=np.random.default_rng(0)).numpy()
    assert ((w == 0).sum(0) == 305).all()
    assert abs(w[w != 0].var() / 4 - 1) < 0.02
    rows = (w == 0).mean(1)
    assert rows.min() > 0.1  # no row is preferred
    assert rows.max() < 0.5
    assert ((init.sparse_(blank(7, 3), 0.2, rng=np.random.default_rng(0)).numpy() == 0).sum(0) == 2).all()


# ---------------------------------------------------------------- numbers that are given


def test_given_numbers():
    assert init.constant_(blank(2, 2), 2.5).tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert init.ones_(blank(2)).tolist() == [1, 1]
    assert init.zeros_(blank(2)).tolist() == [0, 0]
    assert init.eye_(blank(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert init.constant_(tensor([1, 2]), 3).dtype == np.int64


@pytest.mark.parametrize("groups", [1, 2])
def test_dirac_hands_channels_on(groups):
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 6))
    w = init.dirac_(blank(6, 4 // groups, 3, 3), groups)
    y = nn.functional.conv2d(x, w, padding=1, groups=groups).numpy()
    for k in range(groups):
        made, given = y[:, 6 // groups * k :], x[:, 4 // groups * k :]
        shared = min(6, 4) // groups
        assert np.array_equal(made[:, :shared], given[:, :shared])
    assert w.numpy().sum() == 4
    assert init.dirac_(blank(1, 1, 4)).tolist() == [[[0, 0, 1, 0]]]


def test_gains():
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu") == math.sqrt(2 / 1.0001)
    assert init.calculate_gain("leaky_relu", 2) == math.sqrt(0.4)
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("selu") == 0.75
    for name in ("linear", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose2d"):
        assert init.calculate_gain(name) == 1
    with pytest.raises(ValueError, match="calculate_gain: nonlinearity must be one of 'leaky_relu' 'relu'"):
        init.calculate_gain("swish")
    with pytest.raises(TypeError, match="param must be a number; found 'a'"):
        init.calculate_gain("leaky_relu", "a")


# ---------------------------------------------------------------- how they write


@pytest.mark.parametrize("name", [*DRAWN, *GIVEN])
def test_in_place_and_unrecorded(name):
    fill = getattr(init, name)
    options = {**DRAWN, **GIVEN}[name] | ({"rng": np.random.default_rng(0)} if name in DRAWN else {})
    w = nn.Parameter(np.full((4, 4), 9.0, np.float32))
    view = w.numpy()
    gm = GradManager().attach(w)
    with gm:
        y = (w * w).sum()
        assert fill(w, **options) is w
        gm.backward(y)
    assert type(w) is nn.Parameter
    assert w.dtype == np.float32
    assert (view == 9).all()
    assert not (w.numpy() == 9).any()
    assert w.grad.tolist() == [[18] * 4] * 4


@pytest.mark.parametrize("name", DRAWN)
def test_one_seed_gives_the_same_in_every_dtype(name):
    fill, options = getattr(init, name), DRAWN[name]
    wide = fill(blank(5, 4), **options, rng=np.random.default_rng(7)).numpy()
    for dtype in ("float32", "float16"):
        w = fill(blank(5, 4, dtype=dtype), **options, rng=np.random.default_rng(7))
        assert np.array_equal(w.numpy(), wide.astype(dtype))
    one, other = (fill(blank(5, 4), **options).tolist() for _ in range(2))
    assert one != other


def test_empty_tensors():
    for name, options in DRAWN.items():
        for shape in ((0, 3), (3, 0)):
            assert getattr(init, name)(blank(*shape), **options).shape == shape


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: init.normal_(np.ones(2)), TypeError, r"normal_ writes into a Tensor; found ndarray.*gradmgr\.tensor"),
        (lambda: init.zeros_([1.0]), TypeError, "zeros_ writes into a Tensor; found list"),
        (lambda: init.normal_(tensor([1, 2])), TypeError, "normal_ takes real floating-point numbers; found tensor of"),
        (lambda: init.normal_(blank(2), rng=3), TypeError, r"normal_ draws from a numpy.*default_rng\(3\)"),
        (lambda: init.normal_(blank(2), std=-1), ValueError, "normal_: std must not be negative; found -1"),
        (lambda: init.uniform_(blank(2), 2, 1), ValueError, r"uniform_ needs finite a <= b; found a=2\.0, b=1\.0"),
        (lambda: init.uniform_(blank(2), "a"), TypeError, "uniform_: a must be a number; found 'a'"),
        (lambda: init.trunc_normal_(blank(2), a=1, b=1), ValueError, "trunc_normal_ needs a < b and std > 0"),
        (lambda: init.xavier_normal_(blank(2)), errors.ShapeError, r"xavier_normal_ needs a tensor of shape \(out, in"),
        (lambda: init.kaiming_normal_(blank(2)), errors.ShapeError, r"found a Tensor of shape \(2,\)"),
        (lambda: init.kaiming_uniform_(blank(2, 2), mode="in"), ValueError, "mode must be one of 'fan_in' 'fan_out'"),
        (lambda: init.orthogonal_(blank(2)), errors.ShapeError, "orthogonal_ needs 2 axes or more"),
        (lambda: init.eye_(blank(2, 2, 2)), errors.ShapeError, "eye_ needs a tensor of 2 axes"),
        (lambda: init.sparse_(blank(2), 0.5), errors.ShapeError, "sparse_ needs a tensor of 2 axes"),
        (lambda: init.sparse_(blank(2, 2), 2), ValueError, "sparsity must be from 0 to 1; found 2"),
        (lambda: init.dirac_(blank(2, 2)), errors.ShapeError, "dirac_ needs a tensor of 3 or 4 or 5 axes"),
        (
            lambda: init.dirac_(blank(3, 2, 2), 2),
            errors.ShapeError,
            "groups must divide the 3 output channels; found 2",
        ),
    ],
)
def test_refusals(call, error, says):
    with pytest.raises(error, match=says):
        call()
