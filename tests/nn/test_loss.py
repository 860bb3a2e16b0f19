"""Losses: known values, labels that are wrong, nothing to average, halves, NaN. The generic tests are elsewhere."""

import warnings

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, errors, tensor, vmap
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

INF = np.inf
LOGITS = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [2.0, -1.0, 0.5]])
LABELS = np.array([0, 2, -100])
WEIGHT = np.array([1.0, 2.0, 0.5])


def slopes(function, x):
    """The value and the gradient of a loss, with a seed of ones."""
    t = tensor(x)
    gm = GradManager().attach(t)
    with gm:
        y = function(t)
        gm.backward(y, np.ones(y.shape, y.dtype))
    return y.numpy(), t.grad.numpy()


# ---------------------------------------------------------------- torch 2.13's numbers, in double precision

CROSS_ENTROPIES = [
    (
        {},
        1.979525339188,
        [[-0.454984713415, 0.122364235527, 0.332620477887], [0.105970778809, 0.288058442383, -0.394029221191]],
    ),
    (
        {"weight": WEIGHT},
        2.12221888094,
        [[-0.606646284553, 0.163152314037, 0.443493970517], [0.070647185872, 0.192038961589, -0.262686147461]],
    ),
    (
        {"weight": WEIGHT, "label_smoothing": 0.1},
        2.106812045609,
        [[-0.561201500407, 0.121427074826, 0.439774425581], [0.057844588433, 0.173199712023, -0.231044300456]],
    ),
    (
        {"reduction": "sum", "label_smoothing": 0.1},
        3.825717345043,
        [[-0.843302760163, 0.211395137721, 0.631907622441], [0.178608224284, 0.542783551432, -0.721391775716]],
    ),
    (
        {"reduction": "none", "weight": WEIGHT},
        [2.407605964444, 0.775722356966, 0.0],
        [[-0.90996942683, 0.244728471055, 0.665240955775], [0.105970778809, 0.288058442383, -0.394029221191]],
    ),
]


@pytest.mark.parametrize(("options", "value", "gradient"), CROSS_ENTROPIES)
def test_cross_entropy_is_torchs(options, value, gradient):
    y, dy = slopes(lambda x: F.cross_entropy(x, LABELS, **options), LOGITS)
    np.testing.assert_allclose(y, value, rtol=1e-11)
    np.testing.assert_allclose(dy, [*gradient, [0, 0, 0]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 12289])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_squares_of_many_numbers_loses_nothing(size, dtype):
    rng = np.random.default_rng(size)
    x, y = (rng.standard_normal(size).astype(dtype) for _ in range(2))
    value, slope = slopes(lambda t: F.mse_loss(t, y), x)
    d = x.astype(np.longdouble) - y
    assert value.dtype == slope.dtype == dtype
    np.testing.assert_allclose(value, np.mean(d * d), rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(slope, 2 * d / size, rtol=1e-4 if dtype is np.float32 else 1e-13, atol=1e-9)


def test_the_mean_of_squares_does_not_depend_on_the_layout():
    x, y = np.random.default_rng(0).standard_normal((2, 90, 70))
    expected = F.mse_loss(x, y)
    assert F.mse_loss(x.T, y.T) == expected
    assert F.mse_loss(x[::2, ::-3], y[::2, ::-3]) == pytest.approx(np.mean((x - y)[::2, ::-3] ** 2), rel=1e-14)
    assert F.mse_loss(x, np.asfortranarray(y)) == pytest.approx(expected, rel=1e-14)
    assert np.isnan(F.mse_loss(np.append(x, np.nan), np.append(y, 0)))
    assert F.mse_loss(np.append(x, INF), np.append(y, 0)) == INF
    with np.errstate(over="ignore"):
        assert F.mse_loss(np.array([1e200, 1e200]), np.zeros(2)) == INF


def test_cross_entropy_of_probabilities_is_torchs():
    q = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.1, 0.1, 0.8]])
    y = F.cross_entropy(LOGITS, q, weight=WEIGHT, label_smoothing=0.1)
    np.testing.assert_allclose(y, 1.4872965198622377, rtol=1e-14)


A, B = np.array([0.2, -1.5, 3.0]), np.array([0.0, 1.0, 0.3])
OTHERS = [
    (F.mse_loss, {}, 4.526666666667, [0.133333333333, -1.666666666667, 1.8]),
    (F.l1_loss, {}, 1.8, [0.333333333333, -0.333333333333, 0.333333333333]),
    (F.huber_loss, {"delta": 1.5}, 1.856666666667, [0.066666666667, -0.5, 0.5]),
    (F.smooth_l1_loss, {"beta": 0.5}, 1.58, [0.133333333333, -0.333333333333, 0.333333333333]),
    (
        F.binary_cross_entropy_with_logits,
        {"weight": WEIGHT, "pos_weight": 2 * WEIGHT},
        5.161246256343,
        [0.183277999104, -2.180198603183, 0.10876235447],
    ),
    (F.kl_div, {"reduction": "sum"}, 0.238808158702, [0.0, -1.0, -0.3]),
    (
        lambda x, y, weight: F.binary_cross_entropy(F.sigmoid(x), y, weight),
        {"weight": WEIGHT},
        1.758419700378,
        [0.183277999104, -0.545049650796, 0.10876235447],
    ),
]


@pytest.mark.parametrize(("function", "options", "value", "gradient"), OTHERS)
def test_other_losses_are_torchs(function, options, value, gradient):
    y, dy = slopes(lambda x: function(x, B, **options), A)
    np.testing.assert_allclose(y, value, rtol=1e-11)
    np.testing.assert_allclose(dy, gradient, rtol=0, atol=1e-11)


# ---------------------------------------------------------------- far out


def test_cross_entropy_keeps_small_losses_of_large_logits():
    y, dy = slopes(lambda x: F.cross_entropy(x, [0]), np.array([[1e4, 1e4 - 10.0]], np.float32))
    np.testing.assert_allclose(y, np.log1p(np.exp(-10.0)), rtol=1e-2)  # one rounding of 1
    np.testing.assert_allclose(dy, [[-4.539787e-05, 4.539787e-05]], rtol=1e-2)


def test_cross_entropy_of_halves_does_not_overflow():
    x = np.array([[60000, -60000, 0], [-60000, 60000, 60000]], np.float16)
    y, dy = slopes(lambda t: F.cross_entropy(t, [0, 1], reduction="none"), x)
    assert (y.dtype, dy.dtype) == (np.float16, np.float16)
    np.testing.assert_allclose(y, [0, np.log(2)], rtol=1e-3)
    np.testing.assert_array_equal(dy, [[0, 0, 0], [0, -0.5, 0.5]])
    assert (
        F.mse_loss(np.full(4, 300, np.float16), np.zeros(4, np.float16), "sum") == INF
    )  # which it is, without a warning
    assert F.mse_loss(np.array([300, 0, 0, 0], np.float16), np.zeros(4, np.float16)) == 22500  # the square is no half


def test_a_class_that_cannot_be():
    y, dy = slopes(lambda x: F.cross_entropy(x, [1, 0], reduction="none"), np.array([[-INF, 1, 1], [-INF, 0, 0]]))
    np.testing.assert_allclose(y, [np.log(2), INF])
    np.testing.assert_allclose(dy, [[0, -0.5, 0.5], [-1, 0.5, 0.5]])


def test_binary_losses_far_out():
    y, dy = slopes(
        lambda x: F.binary_cross_entropy_with_logits(x, np.array([1.0, 0.0, 1.0, 0.0]), reduction="none"),
        np.array([40.0, -40.0, -800.0, 800.0]),
    )
    np.testing.assert_allclose(y, [np.exp(-40.0), np.exp(-40.0), 800, 800], rtol=1e-14)
    np.testing.assert_allclose(dy, [-np.exp(-40.0), np.exp(-40.0), -1, 1], rtol=1e-14)
    y, dy = slopes(lambda p: F.binary_cross_entropy(p, np.array([1.0, 0.0]), reduction="none"), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(y, [100, 100])
    np.testing.assert_allclose(dy, [-1e12, 1e12])


# ---------------------------------------------------------------- nothing to average


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
def test_the_mean_over_nothing_is_nan_and_no_gradient(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, labels in ((LOGITS, [-100, -100, -100]), (LOGITS[0], -100), (np.zeros((0, 3)), np.zeros(0, int))):
            y, dy = slopes(lambda t, labels=labels: function(t, labels), x)
            assert np.isnan(y)
            np.testing.assert_array_equal(dy, np.zeros_like(x))
            y, _ = slopes(lambda t, labels=labels: function(t, labels, reduction="sum"), x)
            assert y == 0
        assert np.isnan(function(LOGITS, [0, 0, 0], weight=np.array([0.0, 1.0, 1.0])))  # weights that sum to 0


@pytest.mark.parametrize(
    "function",
    [
        *(F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.kl_div),
        *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.cross_entropy),
    ],
)
def test_empty_batches(function):
    nothing = np.zeros((0, 3), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, dy = slopes(lambda x: function(x, nothing), nothing)
    assert np.isnan(y)
    assert (y.dtype, dy.shape) == (np.float32, (0, 3))
    assert function(nothing, nothing, reduction="sum") == 0
    assert function(nothing, nothing, reduction="none").size == 0


def test_rows_that_do_not_count_may_hold_anything():
    x = np.array([[0.0, 1.0], [-INF, -INF], [3e38, 5.0]], np.float32)
    y, dy = slopes(lambda t: F.cross_entropy(t, [1, -100, -100]), x)
    np.testing.assert_allclose(y, 0.31326166, rtol=1e-6)
    np.testing.assert_array_equal(dy[1:], 0)


# ---------------------------------------------------------------- labels that are wrong


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        ([0, 3, 1], errors.LabelError, "labels from 0 to 2, of 3 classes, .*; found 3 at 1 of the target"),
        ([0, 1, -1], errors.LabelError, "found -1 at 2 of the target"),
        (np.array([0, 200, 1], np.uint8), errors.LabelError, "found 200 at 1"),
        ([0.0, 1.0, 2.0], errors.DtypeError, r"integer dtype and shape \(3,\).*found target of dtype float64"),
        ([True, False, True], errors.DtypeError, "found target of dtype bool"),
        ([0, 1], errors.ShapeError, r"shape \(3, 3\) takes labels of shape \(3,\); found target of shape \(2,\)"),
        ([[0, 1, 0]] * 3, errors.ShapeError, r"found target of shape \(3, 3\)"),
    ],
)
def test_wrong_labels_are_named(function, target, kind, says):
    x = tensor(LOGITS)
    gm = GradManager().attach(x)
    with gm:
        with pytest.raises(kind, match=f"{function.__name__} .*{says}"):
            function(x, target)
        gm.backward(function(x, [0, 1, 2]))  # the recording goes on as if nothing had been
    assert x.grad.shape == (3, 3)


def test_the_position_of_a_wrong_label_in_an_image_is_named():
    target = np.zeros((2, 4, 5), int)
    target[1, 2, 3] = -1
    with pytest.raises(IndexError, match=r"found -1 at \(1, 2, 3\) of the target"):
        F.cross_entropy(np.zeros((2, 3, 4, 5)), target)
    with pytest.raises(errors.LabelError, match="found 7 of the target"):
        F.cross_entropy(np.zeros(3), 7)


def test_both_forms_are_named_where_the_dtype_is_wrong():
    with pytest.raises(TypeError, match=r"or probabilities of a floating dtype and shape \(3, 3\)"):
        F.cross_entropy(LOGITS, [0.0, 1.0, 2.0])


@pytest.mark.parametrize("shift", [0.0, 60.0, -300.0])
@pytest.mark.parametrize("columns", [3, 65, 700])
def test_cross_entropy_of_blocks_of_rows(columns, shift):
    """As the composition of small steps in double precision; of any number of threads."""
    rng = np.random.default_rng(0)
    rows = 150_000 // columns
    x, labels = rng.normal(size=(rows, columns)) + shift, rng.integers(0, columns, rows)
    x[3, labels[3]] += 25  # a loss that is next to nothing
    for reduction in ("mean", "sum", "none"):
        found = []
        for threads in (1, 3):
            before = gradmgr.get_num_threads()
            gradmgr.set_num_threads(threads)
            found.append(slopes(lambda t, r=reduction: F.cross_entropy(t, labels, reduction=r), x.astype(np.float32)))
            gradmgr.set_num_threads(before)
        expected = slopes(lambda t, r=reduction: F.nll_loss(F.log_softmax(t, 1), labels, reduction=r), x)
        scale = rows if reduction == "mean" else 1
        np.testing.assert_allclose(found[0][0], expected[0], rtol=3e-5, atol=1e-6)
        np.testing.assert_allclose(found[0][1] * scale, expected[1] * scale, rtol=0, atol=3e-5)
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_of_yes_and_no_in_blocks(dtype):
    rng = np.random.default_rng(0)
    x, y = (4 * rng.normal(size=(3, 50_001))).astype(dtype), rng.random((3, 50_001)).astype(dtype)
    x[0, :4], y[0, :4] = [90, -90, 90, -90], [1, 0, 0, 1]
    function = F.binary_cross_entropy_with_logits
    parts = [slopes(lambda t, k=k: function(t, y[k], reduction="none"), x[k]) for k in range(3)]
    found = slopes(lambda t: function(t, y, reduction="none"), np.asfortranarray(x))
    weighted = slopes(lambda t: function(t, y, reduction="none", pos_weight=np.ones(1, dtype)), x)
    for one, rows, other in zip(found, zip(*parts, strict=True), weighted, strict=True):
        np.testing.assert_array_equal(one, np.stack(rows))
        np.testing.assert_allclose(one, other, rtol=64 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)


def test_a_label_may_be_ignored_wherever_it_lies():
    """Common labels take a fast path; what is to be ignored may be a class."""
    labels = np.array([0, 2, 1])
    for ignore_index in (1, 2, -7, 100):
        y, dy = slopes(lambda x, k=ignore_index: F.cross_entropy(x, labels, ignore_index=k), LOGITS)
        counts = labels != ignore_index
        each = F.cross_entropy(LOGITS, labels, reduction="none")
        np.testing.assert_allclose(y, each[counts].mean())
        np.testing.assert_array_equal((dy == 0).all(1), ~counts)
    with pytest.raises(TypeError, match="ignore_index must be an integer"):
        F.cross_entropy(LOGITS, labels, ignore_index=0.5)


def test_other_wrong_arguments():
    for function in (F.cross_entropy, F.nll_loss):
        with pytest.raises(errors.ShapeError, match=r"one weight for each of 3 classes; found shape \(2,\)"):
            function(LOGITS, LABELS, weight=np.ones(2))
        with pytest.raises(errors.DtypeError, match="real floating-point"):
            function(LOGITS.astype(int), LABELS)
        with pytest.raises(ValueError, match="reduction must be one of 'none' 'mean' 'sum'; found 'avg'"):
            function(LOGITS, LABELS, reduction="avg")
        with pytest.raises(errors.ShapeError, match=r"found \(\)"):
            function(np.float64(1.0), 0)
        with pytest.raises(errors.ShapeError, match=r"found \(3, 0\)"):
            function(np.zeros((3, 0)), LABELS)
    with pytest.raises(ValueError, match=r"label_smoothing must be from 0 to 1; found 1\.5"):
        F.cross_entropy(LOGITS, LABELS, label_smoothing=1.5)
    with pytest.raises(ValueError, match="ignore_index is for labels"):
        F.cross_entropy(LOGITS, LOGITS, ignore_index=1)
    with pytest.raises(errors.ShapeError, match=r"\(3,\) and target of shape \(3, 1\); reshape"):
        F.mse_loss(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="delta must be positive; found 0"):
        F.huber_loss(A, B, delta=0)
    with pytest.raises(ValueError, match="beta must not be negative"):
        F.smooth_l1_loss(A, B, beta=-1.0)
    with pytest.raises(ValueError, match=r"outside of \[0, 1\].*binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(A, B)
    with pytest.raises(errors.ShapeError, match=r"pos_weight of shape \(2,\) does not broadcast to \(3,\)"):
        F.binary_cross_entropy_with_logits(A, B, pos_weight=np.ones(2))
    weight = tensor(WEIGHT)
    with GradManager().attach(weight), pytest.raises(errors.UnsupportedFunctionError, match="no derivative in weight"):
        F.cross_entropy(LOGITS, LABELS, weight=weight)


# ---------------------------------------------------------------- what is kept, what is traced, vmap


def test_the_batch_of_labels_may_be_read_into_again():
    labels = np.array([0, 1, 2])
    x = tensor(LOGITS)
    with GradManager().attach(x) as gm:
        loss = F.cross_entropy(x, labels)
        labels[...] = 0
        gm.backward(loss)
    np.testing.assert_array_equal(x.grad.numpy(), slopes(lambda t: F.cross_entropy(t, [0, 1, 2]), LOGITS)[1])


def test_cross_entropy_keeps_the_logits_and_two_numbers_for_each_row():
    x = tensor(np.zeros((8, 100), np.float32))
    with GradManager().attach(x) as gm:
        F.cross_entropy(x, np.zeros(8, int))
        kept = next(e for e in gm._tape.entries if e[0] == "nn.cross_entropy")
        parts = [part for field in kept for part in (field if isinstance(field, tuple) else (field,))]
        arrays = [getattr(part, "_array", part) for part in parts if hasattr(part, "nbytes")]
    assert sum(a.nbytes for a in arrays if a is not x._array) == 2 * 8 * 4


def test_a_row_of_nan_leaves_the_gradients_of_other_rows_finite_where_logits_are_huge():
    x = np.random.default_rng(0).normal(size=(60, 70))
    x[3, 5] = 1e300
    alone = slopes(lambda t: F.cross_entropy(t, np.arange(60), reduction="none"), x)[1]
    x[7, 2] = np.nan
    together = slopes(lambda t: F.cross_entropy(t, np.arange(60), reduction="none"), x)[1]
    assert np.isnan(together[7]).all()
    others = np.arange(60) != 7
    np.testing.assert_allclose(together[others], alone[others], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("value", [INF, np.nan])
def test_a_nan_loss_is_traced_to_its_line(value):
    x = tensor([[1.0, value, 0.0], [0.0, 1.0, 2.0]])
    gm = GradManager().attach(x)
    losses = {
        "cross_entropy": lambda: F.cross_entropy(x, [0, 1]),
        "log_softmax": lambda: F.nll_loss(F.log_softmax(x, 1), [0, 1]),
        "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(x * 0, np.ones((2, 3))),
    }
    for name, loss in losses.items():
        with np.errstate(invalid="ignore"), gradmgr.detect_anomaly(), gm:  # 0 * inf is the user's own
            y = loss()
            with pytest.raises(errors.AnomalyError, match=rf"'(nn\.)?{name}' is NaN .*test_loss\.py:\d+"):
                gm.backward(y)
        assert x.grad is None


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1, "reduction": "sum"}])
def test_losses_of_single_examples(options):
    per_example = vmap(lambda x, y: F.cross_entropy(x, y, **options))(tensor(LOGITS), LABELS)
    one_by_one = [F.cross_entropy(x, y, **options) for x, y in zip(LOGITS, LABELS, strict=True)]
    np.testing.assert_allclose(per_example.numpy(), one_by_one)


def test_gradients_of_single_examples():
    of_each = vmap(gradmgr.functional.grad(lambda x, y: F.cross_entropy(x, y)))(tensor(LOGITS), np.array([0, 2, 1]))
    np.testing.assert_allclose(of_each.numpy(), F.softmax(LOGITS, 1) - np.eye(3)[[0, 2, 1]], atol=1e-15)


def test_one_row_of_logits_with_several_labels_under_vmap():
    x = tensor(LOGITS[0])
    with GradManager().attach(x) as gm:
        gm.backward(vmap(lambda y: F.cross_entropy(x, y))(np.array([0, 1, 1])).sum())
    np.testing.assert_allclose(x.grad.numpy(), 3 * F.softmax(LOGITS[0], 0) - [1, 2, 0])


def test_a_wrong_label_inside_vmap_is_named():
    with pytest.raises(errors.LabelError, match="found 9 at 2"):
        vmap(lambda x, y: F.cross_entropy(x, y))(tensor(LOGITS), np.array([0, 1, 9]))


def test_plain_arrays_give_plain_numbers():
    assert not isinstance(F.cross_entropy(LOGITS, LABELS), gradmgr.Tensor)
    assert not isinstance(F.mse_loss(A, B), gradmgr.Tensor)
    assert F.mse_loss(A.astype(np.float32), np.array([1, 2, 3])).dtype == np.float32
