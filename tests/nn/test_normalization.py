"""Normalisations: values of torch's, running statistics, what they keep, what they refuse, halves."""

import numpy as np
import pytest
from machine import needs_machine

from gradmgr import GradManager, Tensor, errors, get_num_threads, gradcheck, no_grad, set_num_threads, tensor
from gradmgr._arrays import native_kernels
from gradmgr._transforms.vmap import vmap
from gradmgr.nn._functions import normalization
from gradmgr.nn.functional import batch_norm, group_norm, layer_norm, normalize, rms_norm

X = np.array([[1.0, 2.0, 4.0], [0.0, -1.0, 3.0], [2.0, 2.0, -5.0], [3.0, 0.0, 1.0]])
WEIGHT, BIAS = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.0, -1.0])
DY = np.array([[1.0, 0.0, 2.0], [-1.0, 1.0, 0.0], [0.5, 0.5, 0.5], [0.0, -2.0, 1.0]])


def results(function, *points, dy=DY):
    """The value and the gradients of the points, arrays."""
    points = [tensor(p) for p in points]
    with GradManager().attach(points) as gm:
        y = function(*points)
        gm.backward(y, dy)
    return [y.numpy(), *[p.grad.numpy() for p in points]]


# ---------------------------------------------------------------- in blocks

IN_BLOCKS = {
    "layer_norm": (lambda x, w, b: layer_norm(x, x.shape[2:], w, b), (3, 130), (180, 9), True),
    "layer_norm, long rows": (lambda x, w, b: layer_norm(x, x.shape[2:], w, b), (7, 13), (2000,), True),
    "layer_norm, few": (lambda x, w, b: layer_norm(x, x.shape[2:], w, b), (2, 3), (5,), True),
    "rms_norm": (lambda x, w, b: rms_norm(x, x.shape[2:], w) + b, (3, 500), (131,), True),
    "group_norm": (lambda x, w, b: group_norm(x, 3, w, b), (15, 6), (21, 23), False),
    "group_norm, images": (lambda x, w, b: group_norm(x, 2, w, b), (3, 4), (120, 120), False),
    "group_norm, one channel each": (lambda x, w, b: group_norm(x, 6, w, b), (40, 6), (700,), False),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_in_blocks_is_what_algebra_gives(name, dtype):
    """Large NumPy arrays are computed in blocks, Tensors that are recorded twice are not; of any number of threads."""
    function, lead, rest, last = IN_BLOCKS[name]
    rng = np.random.default_rng(0)
    x = (rng.normal(size=lead + rest) + 0.5).astype(dtype)
    w, b = (rng.normal(size=rest if last else lead[1:]).astype(dtype) for _ in range(2))
    dy = rng.normal(size=x.shape).astype(dtype)
    found = []
    for threads in (1, 3):
        before = get_num_threads()
        set_num_threads(threads)
        found.append(results(function, x, w, b, dy=dy))
        set_num_threads(before)
    points = [tensor(p.astype(float)) for p in (x, w, b)]
    with GradManager().attach(points), GradManager().attach(points) as gm:  # the outer one records what rules compute
        gm.backward(function(*points), tensor(dy.astype(float)))
    plain = function(*(p.astype(float) for p in (x, w, b)))
    count = max(x.size // b.size, 1) ** 0.5
    for one, other, expected in zip(*found, [plain, *(p.grad.numpy() for p in points)], strict=True):
        np.testing.assert_array_equal(one, other)
        tolerance = 30 * np.finfo(dtype).eps * (count if one.shape == b.shape else 1)
        np.testing.assert_allclose(one, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


# ---------------------------------------------------------------- torch 2.13's numbers

LAYER = (
    [
        -0.96904153,
        0.53452077,
        -0.33184904,
        -0.29223159,
        1.96115796,
        -0.31359472,
        0.80710646,
        -1.41421291,
        -1.70710646,
        1.43630191,
        2.13808306,
        -1.13363019,
    ],
    [
        0.34362,
        -0.51543086,
        0.17181086,
        0.18102934,
        -0.13577404,
        -0.0452553,
        0.22728417,
        -0.22728426,
        9e-08,
        0.37224541,
        0.74451917,
        -1.11676457,
    ],
    [-0.32325671, 1.51105731, 1.69823699],
)
RMS = (
    [
        0.37796447,
        -1.51185789,
        0.75592895,
        0.0,
        1.09544512,
        0.82158384,
        0.60302269,
        -1.20604538,
        -0.75377836,
        1.64316767,
        -0.0,
        0.27386128,
    ],
    [
        0.28797293,
        -0.17998308,
        0.01799831,
        -0.54772256,
        -0.9859006,
        -0.32863353,
        0.19187086,
        -0.26039616,
        -0.02741012,
        -0.08215838,
        2.19089023,
        0.24647515,
    ],
    [0.67947582, -0.24621121, 2.81765998],
)
BATCH = (
    [
        -0.34703482,
        -1.92393093,
        -0.53454443,
        -1.24110445,
        2.6935033,
        -0.67776153,
        0.54703482,
        -1.92393093,
        -1.82349832,
        1.44110445,
        1.15435856,
        -0.96419573,
    ],
    [
        0.8939803,
        -0.08557134,
        0.12412452,
        -0.67082023,
        -1.88108829,
        -0.15092669,
        0.22360674,
        -0.85514371,
        0.01174578,
        -0.44676681,
        2.82180334,
        0.01505639,
    ],
    [1.11758704, 0.28858964, 1.10993252],
)


@pytest.mark.parametrize(
    ("function", "points", "expected"),
    [
        (lambda x, w, b: layer_norm(x, (3,), w, b), (X, WEIGHT, BIAS), LAYER),
        (lambda x, w: rms_norm(x, 3, w), (X, WEIGHT), RMS),
        (lambda x, w, b: batch_norm(x, None, None, w, b, True, eps=1e-3), (X, WEIGHT, BIAS), BATCH),
        (lambda x, w, b: batch_norm(x.T[None], None, None, w, b, True, eps=1e-3)[0].T, (X, WEIGHT, BIAS), BATCH),
    ],
    ids=["layer_norm", "rms_norm", "batch_norm", "batch_norm along an axis"],
)
def test_torchs_numbers(function, points, expected):
    found = results(function, *points)
    for a, b in zip(found, expected, strict=False):
        np.testing.assert_allclose(a.ravel(), b, atol=2e-8)
    if len(found) > 3:
        np.testing.assert_allclose(found[3], DY.sum(0), rtol=1e-14)


def test_group_norm_gives_torchs_numbers():
    expected = [-1.1977903, -0.94298575, -0.4770942, 0.12621298, 0.8406461, 1.65101118]
    expected += [-1.40354293, -0.89059296, -0.33956242, 0.24707849, 0.86728623, 1.51933358]
    found = group_norm(np.arange(12.0).reshape(1, 4, 3) ** 1.5, 2)
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-8)


# ---------------------------------------------------------------- running statistics


@pytest.mark.parametrize("kind", [tensor, np.array], ids=["Tensor", "array"])
def test_running_statistics_follow(kind):
    mean, var = kind([0.5, 0.0, -1.0]), kind([1.0, 2.0, 0.5])
    x = tensor(X)
    with GradManager().attach(x) as gm:
        y = batch_norm(x, mean, var, training=True, momentum=0.25)
        assert mean.tolist() == [0.75, 0.1875, -0.5625]
        np.testing.assert_allclose(var.tolist(), [1.1666666666666667, 2.0625, 4.4375], rtol=1e-15)  # the unbiased
        assert not isinstance(mean, Tensor) or gm._tape.node_id_of(mean) is None
        gm.backward(y, DY)
    np.testing.assert_array_equal(x.grad.numpy(), results(lambda x: batch_norm(x, None, None, training=True), X)[1])


def test_running_statistics_are_values():
    """What was seen of them before, or kept for a derivative, does not change."""
    mean, var, w = tensor(np.zeros(3)), tensor(np.ones(3)), tensor(WEIGHT)
    seen, before = mean.numpy(), mean.detach()
    with GradManager().attach(w) as gm:
        y = batch_norm(X, mean, var, w)
        batch_norm(X, mean, var, training=True)
        gm.backward(y, DY)
    assert (seen == 0).all()
    assert before.tolist() == [0.0] * 3
    assert (mean.numpy() != 0).any()
    np.testing.assert_allclose(w.grad.numpy(), (DY * X).sum(0), rtol=1e-5)


def test_arrays_of_running_statistics_may_be_written_to_afterwards():
    mean, var, w = np.zeros(3), np.ones(3), tensor(WEIGHT)
    with GradManager().attach(w) as gm:
        y = batch_norm(X, mean, var, w)
        mean[:], var[:] = 7, 9
        gm.backward(y, DY)
    np.testing.assert_allclose(w.grad.numpy(), (DY * X).sum(0), rtol=1e-5)


def test_one_of_the_running_statistics_alone():
    mean = tensor(np.zeros(3))
    batch_norm(X, mean, None, training=True, momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), X.mean(0))
    var = tensor(np.ones(3, np.float16))
    batch_norm(X, None, var, training=True, momentum=1.0)
    assert var.dtype == np.float16
    np.testing.assert_allclose(var.numpy(), X.var(0, ddof=1), rtol=1e-3)


def test_no_statistics_of_an_empty_batch():
    mean, var = tensor(np.zeros(3)), tensor(np.ones(3))
    assert batch_norm(np.ones((0, 3, 2)), mean, var, training=True).shape == (0, 3, 2)
    assert (mean.tolist(), var.tolist()) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"weight": np.ones(4)}, errors.ShapeError, r"takes weight of shape \(3,\); found \(4,\)"),
        ({"bias": np.ones((3, 1))}, errors.ShapeError, r"takes bias of shape \(3,\); found \(3, 1\)"),
        ({"running_var": np.ones(2)}, errors.ShapeError, r"takes running_var of shape \(3,\); found \(2,\)"),
        ({"running_var": np.ones(3, int)}, errors.DtypeError, "found running_var of dtype int64"),
        ({"running_var": [1.0, 1.0, 1.0]}, TypeError, "running statistics as Tensors, arrays or None; found list"),
        ({"running_var": np.broadcast_to(1.0, (3,))}, ValueError, "writes to running_var where training=True"),
        ({"input": X[:1]}, errors.ShapeError, r"several values of each channel; found one, in input \(1, 3\)"),
        ({"input": X[0]}, errors.ShapeError, r"takes input \(N, C, \.\.\.\); found shape \(3,\)"),
        ({"input": X.astype(int)}, errors.DtypeError, "batch_norm takes real floating-point numbers; found input"),
        ({"input": X + 0j}, errors.DtypeError, "batch_norm takes real floating-point numbers; found input"),
        ({"momentum": None}, TypeError, "momentum must be a number; found None"),
    ],
)
def test_batch_norm_refuses_and_leaves_all_as_it_was(change, error, text):
    mean, var = np.zeros(3), np.ones(3)
    given = {"input": tensor(X), "running_mean": mean, "running_var": var, "training": True} | change
    with GradManager().attach(tensor(X)) as gm:
        with pytest.raises(error, match=text):
            batch_norm(**given)
        assert len(gm._tape.entries) == 0
    assert (mean.tolist(), var.tolist()) == ([0.0] * 3, [1.0] * 3)


def test_running_statistics_must_be_there_to_normalise_by():
    for given in ((None, None), (np.zeros(3), None), (None, np.ones(3))):
        with pytest.raises(ValueError, match="training=False normalises by running_mean and running_var; found None"):
            batch_norm(X, *given)


def test_running_statistics_under_vmap():
    mean, var, many = tensor(np.zeros(3)), tensor(np.ones(3)), np.stack([X, 2 * X])
    with pytest.raises(errors.BatchedWriteError, match="statistics that differ between examples"):
        vmap(lambda x: batch_norm(x, mean, var, training=True))(many)
    assert (mean.tolist(), var.tolist()) == ([0.0] * 3, [1.0] * 3)
    found = vmap(lambda x: batch_norm(x, mean, var))(many)
    np.testing.assert_allclose(found, many / np.sqrt(1 + 1e-5))
    found = vmap(lambda x: batch_norm(x, None, None, training=True))(many)
    np.testing.assert_allclose(found[0], batch_norm(X, None, None, training=True))


# ---------------------------------------------------------------- what is kept, how exactly it is computed


@pytest.mark.parametrize(
    ("function", "statistics"),
    [
        (lambda x, w, b: layer_norm(x, (50,), w, b), 40),
        (lambda x, w, b: group_norm(x, 10, w, b), 400),
        (lambda x, w, b: batch_norm(x, None, None, w, b, True), 50),
    ],
)
def test_what_is_kept(function, statistics, monkeypatch):
    """The values normalised, and of 1/std one number for each statistic: neither x nor y."""
    monkeypatch.setattr(native_kernels.kernels, "_found", {})
    x, w, b = (tensor(np.random.default_rng(0).standard_normal(shape)) for shape in ((40, 50), 50, 50))
    with GradManager().attach([x, w, b]) as gm:
        y = function(x * 1.0, w, b)
        kept = gm._tape.nbytes()
        assert kept == x.nbytes + w.nbytes + 8 * statistics
    with GradManager().attach(b) as gm:
        y = function(x, w, b)
        assert gm._tape.nbytes() == (x.nbytes if statistics == 50 else 0)  # over a batch, rules share two sums
    assert y.shape == x.shape


@needs_machine
def test_what_is_kept_where_kernels_compute():
    """The input, and of mean and 1/std one number for each statistic."""
    if native_kernels.kernels.get("norm_rows", np.dtype(float)) is None:
        pytest.skip(f"needs kernels: {native_kernels.kernels.reason}")
    x, w, b = (tensor(np.random.default_rng(0).standard_normal(shape)) for shape in ((4, 50, 50), 50, 50))
    for function, statistics in (
        (lambda x, w, b: layer_norm(x, (50,), w, b), 200),
        (lambda x, w, b: group_norm(x, 10, w, b), 40),
        (lambda x, w, b: batch_norm(x, None, None, w, b, True), 50),
    ):
        with GradManager().attach([x, w, b]) as gm:
            y = function(x * 1.0, w, b)
            assert y.shape == x.shape
            assert gm._tape.nbytes() == x.nbytes + w.nbytes + 16 * statistics


def test_without_weight_the_result_itself_is_kept(monkeypatch):
    monkeypatch.setattr(native_kernels.kernels, "_found", {})
    x = tensor(np.random.default_rng(0).standard_normal((40, 50)))
    with GradManager().attach(x) as gm:
        y = layer_norm(x, (50,))
        assert gm._tape.nbytes() == x.nbytes + 8 * 40
        z = y * 3
        y *= 2  # what is kept does not change
        gm.backward(z.sum())
    np.testing.assert_allclose(x.grad.numpy(), 0, atol=1e-12)


NORMS = {
    "layer_norm": lambda x: layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: group_norm(x, 1),
    "batch_norm": lambda x: batch_norm(x.T, None, None, training=True).T,
    "rms_norm": lambda x: rms_norm(x, x.shape[1:], eps=1e-5),
    "normalize": normalize,
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_neither_overflow_nor_vanish(name, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")  # bfloat16 is its dtype; the test extra holds it
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    random = np.random.default_rng(0)
    x, dy = ((random.standard_normal((3, 500)) * scale).astype(dtype) for scale in (3000, 1))
    found = results(NORMS[name], x, dy=dy)
    expected = results(NORMS[name], x.astype(np.float64), dy=dy.astype(np.float64))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=0.02, atol=0.02 * abs(b).max())


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_a_large_mean_costs_no_digits_of_the_variance(name):
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    shifted = x + np.float32(4096)  # 12 bits of 24
    np.testing.assert_allclose(NORMS[name](shifted), NORMS[name](shifted.astype(np.float64)), atol=2e-3)


@pytest.mark.parametrize("name", NORMS)
def test_equal_values_and_zeros(name):
    for x in (np.zeros((3, 4)), np.full((3, 4), 2.0)):
        y, dx = results(NORMS[name], x, dy=np.arange(12.0).reshape(3, 4))
        assert np.isfinite(y).all()
        assert np.isfinite(dx).all()


def test_all_results_of_an_op_have_derivatives():
    """Public functions return the first result alone; second derivatives use that of 1/std, none of the others."""
    layout = normalization.Layout((4, 3, 2), (4, 3, 2), per_channel=True)
    points = [tensor(np.random.default_rng(k).standard_normal(shape)) for k, shape in enumerate(((4, 3, 2), 3, 3))]
    assert gradcheck(lambda x, w, b: normalization._batch_norm(x, w, b, layout, 0.1), points, order=2)
    rows = normalization.Layout((1, 8, 3), (1, 8, 3), per_channel=False)
    for centred in (True, False):
        assert gradcheck(lambda x, w, b, c=centred: normalization._layer_norm(x, w, b, rows, 0.1, c), points, order=2)


def test_nothing_is_recorded_without_need():
    x, w = tensor(X), tensor(WEIGHT)
    with GradManager().attach(w) as gm, no_grad():
        y = layer_norm(x, 3, w)
        assert gm._tape.node_id_of(y) is None
    assert isinstance(layer_norm(X, 3, WEIGHT), np.ndarray)
    assert isinstance(layer_norm(X, 3, w), Tensor)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: layer_norm(X, 4),
            r"layer_norm normalises over the last axes.*normalized_shape \(4,\) and input \(4, 3\)",
        ),
        (lambda: layer_norm(X, (2, 4, 3)), r"found normalized_shape \(2, 4, 3\) and input \(4, 3\)"),
        (lambda: layer_norm(X, ()), r"found normalized_shape \(\) and input"),
        (
            lambda: layer_norm(X, 3, np.ones(1)),
            r"layer_norm takes weight of the shape normalized_shape, \(3,\); found \(1,\)",
        ),
        (lambda: layer_norm(X, 3, None, np.ones((1, 3))), r"takes bias of the shape normalized_shape"),
        (lambda: rms_norm(X, 4), r"rms_norm normalises over the last axes"),
        (lambda: rms_norm(X, (4, 3), np.ones(3)), r"rms_norm takes weight of the shape normalized_shape, \(4, 3\)"),
        (lambda: group_norm(X, 2), r"C a multiple of num_groups; found shape \(4, 3\), num_groups 2"),
        (lambda: group_norm(X, 0), r"num_groups 0"),
        (lambda: group_norm(X[0], 1), r"found shape \(3,\)"),
        (
            lambda: group_norm(X, 3, np.ones(1)),
            r"group_norm of input \(4, 3\) takes weight of shape \(3,\); found \(1,\)",
        ),
        (lambda: group_norm(X[:1], 3), r"several values of each group; found one, in input \(1, 3\)"),
    ],
)
def test_wrong_shapes_are_refused(call, text):
    with pytest.raises(errors.ShapeError, match=text):
        call()


@pytest.mark.parametrize("function", [lambda x: layer_norm(x, 3), lambda x: rms_norm(x, 3), lambda x: group_norm(x, 3)])
@pytest.mark.parametrize("dtype", [int, bool, complex])
def test_dtypes_that_are_not_real(function, dtype):
    with pytest.raises(errors.DtypeError, match=r"_norm takes real floating-point numbers; found input of dtype"):
        function(X.astype(dtype))


def test_arguments_that_are_not_integers():
    with pytest.raises(TypeError, match=r"layer_norm: normalized_shape must be an integer; found 3\.0"):
        layer_norm(X, 3.0)
    with pytest.raises(TypeError, match=r"group_norm: num_groups must be an integer"):
        group_norm(X, "3")
    with pytest.raises(TypeError, match=r"normalize: dim must be an integer; found \(0, 1\)"):
        normalize(X, dim=(0, 1))
    with pytest.raises(errors.DtypeError, match="normalize takes floating-point or complex numbers"):
        normalize(X.astype(int))
    with pytest.raises(np.exceptions.AxisError):
        normalize(X, dim=2)
