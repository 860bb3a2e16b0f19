"""Convolutions: values, sweeps against loops, options, dtypes, memory, what is refused."""

import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest
from helpers import normal, value_and_gradients
from samples.nn_convolution import conv, conv_transpose

import gradmgr
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import convolution, onednn, windows


def gradients_of_cosines(f, *tensors):
    """Return the value of f and what a cotangent of cosines gives to each of the tensors."""
    return value_and_gradients(f, *tensors, dy=lambda z: np.cos(np.arange(z.size)).reshape(z.shape).astype(z.dtype))


# ---------------------------------------------------------------- values


def test_numbers_of_torch():
    """The numbers are those of torch 2.13."""
    x = tensor(np.arange(12.0).reshape(1, 1, 3, 4))
    w = tensor(np.array([[[[1.0, -2.0], [0.5, 3.0]]]]))
    b = tensor(np.array([0.25]))
    z, (gx, gw, gb) = gradients_of_cosines(lambda x, w, b: F.conv2d(x, w, b, stride=(1, 2), padding=(1, 0)), x, w, b)
    assert z.tolist() == [[[[3.25, 10.25], [15.25, 20.25], [25.25, 30.25], [-9.75, -11.75]]]]
    assert np.allclose(gb, np.cos(np.arange(8)).sum())
    rows = [[0.0839, 3.8323, -0.7198, 3.6009], [-0.8617, 0.0588, -0.2113, -3.5373], [0.6333, -3.8813, 0.8957, -0.6568]]
    assert np.allclose(gx, [[rows]], atol=1e-4)
    assert np.allclose(gw, [[[[12.3278, 12.2658], [-8.9165, -9.1523]]]], atol=1e-4)


def test_transposed_numbers_of_torch():
    x, w = np.array([[[1.0, 2.0], [3.0, 4.0]]]), np.array([[[[1.0, 2.0, 0.5], [0.0, -1.0, 1.0]]]])
    z = F.conv_transpose2d(x, w, np.array([0.5]), stride=2, padding=(0, 1), output_padding=1)
    assert z.tolist() == [
        [
            [2.5, 3.0, 4.5, 1.5],
            [-0.5, 1.5, -1.5, 2.5],
            [6.5, 6.0, 8.5, 2.5],
            [-2.5, 3.5, -3.5, 4.5],
            [0.5, 0.5, 0.5, 0.5],
        ]
    ]


def draw(random):
    """One random convolution: shapes and options that fit."""
    groups, inputs, outputs = (int(n) for n in random.integers(1, 4, 3))
    kernel, stride, dilation = (tuple(int(n) for n in random.integers(1, 4, 2)) for _ in range(3))
    padding = tuple(int(n) for n in random.integers(0, 4, 2))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [int(random.integers(max(1, s - 2 * p), s - 2 * p + 8)) for s, p in zip(spans, padding, strict=True)]
    shape = (int(random.integers(0, 4)), groups * inputs, *[max(1, n) for n in size])
    return shape, (groups * outputs, inputs, *kernel), stride, padding, dilation, groups


@pytest.mark.parametrize(("block", "fewest"), [(2**19, 512), (60, 4), (7, 1)])
def test_random_convolutions(monkeypatch, block, fewest):
    """Blocks of many images, of one, and of a few lines of one give what loops give; the adjoints are adjoint."""
    monkeypatch.setattr(windows, "_BLOCK", block)
    monkeypatch.setattr(windows, "_FEWEST", fewest)
    random = np.random.default_rng(block)
    for _ in range(60):
        shape, of_w, *options, groups = draw(random)
        x, w, b = (random.standard_normal(s) for s in (shape, of_w, of_w[:1]))
        z, (gx, gw, gb) = gradients_of_cosines(
            lambda x, w, b, o=options, n=groups: F.conv2d(x, w, b, *o, n), *map(tensor, (x, w, b))
        )
        assert np.allclose(z, conv(x, w, b, *options, groups)), (shape, of_w, options, groups)
        g = np.cos(np.arange(z.size)).reshape(z.shape)
        moved = random.standard_normal(shape), random.standard_normal(of_w)
        assert np.allclose((gx * moved[0]).sum(), (g * conv(moved[0], w, None, *options, groups)).sum())
        assert np.allclose((gw * moved[1]).sum(), (g * conv(x, moved[1], None, *options, groups)).sum())
        assert np.allclose(gb, g.sum((0, 2, 3)))


@pytest.mark.parametrize("block", [2**19, 30])
def test_random_transposed_convolutions(monkeypatch, block):
    monkeypatch.setattr(windows, "_BLOCK", block)
    monkeypatch.setattr(windows, "_FEWEST", 1)
    random, met = np.random.default_rng(1), 0
    for _ in range(60):
        (count, _, *size), (channels, outputs, *kernel), stride, padding, dilation, groups = draw(random)
        more = tuple(int(random.integers(0, max(pair))) for pair in zip(stride, dilation, strict=True))
        facts = zip(size, stride, padding, dilation, kernel, more, strict=True)
        if any((n - 1) * s - 2 * p + d * (k - 1) + e < 0 for n, s, p, d, k, e in facts):
            continue
        met += 1
        arrays = [random.standard_normal(s) for s in ((count, channels, *size), (channels, outputs, *kernel))]
        arrays.append(random.standard_normal(outputs * groups))
        options = stride, padding, more, groups, dilation
        z, (gx, gw, gb) = gradients_of_cosines(
            lambda x, w, b, o=options: F.conv_transpose2d(x, w, b, *o), *map(tensor, arrays)
        )
        x, w, b = arrays
        assert np.allclose(z, conv_transpose(x, w, b, *options)), options
        g = np.cos(np.arange(z.size)).reshape(z.shape)
        moved = random.standard_normal(x.shape), random.standard_normal(w.shape)
        assert np.allclose((gx * moved[0]).sum(), (g * conv_transpose(moved[0], w, None, *options)).sum())
        assert np.allclose((gw * moved[1]).sum(), (g * conv_transpose(x, moved[1], None, *options)).sum())
        assert np.allclose(gb, g.sum((0, 2, 3)))
    assert met > 30


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "f2"])
@pytest.mark.parametrize("line", [1 << 16, 300, 1])
def test_channels_that_do_not_mix(monkeypatch, line, dtype):
    """In blocks of all channels, of some, of one image: what matrix products give; the same bits by three threads."""
    monkeypatch.setattr(convolution, "_LINE", line)
    monkeypatch.setattr(convolution, "_MANY_NUMBERS", 0)
    random, before = np.random.default_rng(line), gradmgr.get_num_threads()

    def results(shape, of_w, geometry, few):
        monkeypatch.setattr(convolution, "_FEW_OUTPUTS", few)
        monkeypatch.setattr(convolution, "_FEW_OUTPUTS_OF_WEIGHTS", few)
        x, w, g, b = (normal(*s, seed=k).astype(dtype) for k, s in enumerate((shape, of_w, of_z, of_w[:1])))
        return (
            convolution._conv(x, w, b, geometry),
            convolution._conv_x(g, w, normal(shape[1]).astype(dtype), geometry),
            convolution._conv_w(x, g, geometry),
        )

    for _ in range(12):
        (count, *_, height, width), (_, _, *kernel), stride, padding, dilation, groups = draw(random)
        shape = (count, 4 * groups, height, width)
        of_w = (4 * groups * int(random.integers(1, 4)), 1, *kernel)
        facts = zip((height, width), kernel, stride, padding, dilation, strict=True)
        out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in facts)
        geometry = windows.geometry_of((height, width), tuple(kernel), out, stride, padding, dilation, 4 * groups)
        of_z = (count, of_w[0], *out)
        found, wanted = results(shape, of_w, geometry, 3), results(shape, of_w, geometry, 0)
        gradmgr.set_num_threads(3)
        again = results(shape, of_w, geometry, 3)
        gradmgr.set_num_threads(before)
        bound = {"f4": 1e-5, "f2": 5e-3}.get(dtype, 1e-12)
        for one, other, third in zip(found, wanted, again, strict=True):
            assert one.dtype == other.dtype
            assert np.allclose(one, other, rtol=bound, atol=bound * max(1, abs(other).max(initial=0)))
            assert np.array_equal(one, third)


@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 1)])
def test_same_keeps_the_size(kernel):
    x, w = normal(2, 3, 6, 5), normal(4, 3, *kernel, seed=1)
    z = F.conv2d(x, w, padding="same", dilation=(1, 2))
    total = kernel[0] - 1, 2 * (kernel[1] - 1)
    sides = tuple((n // 2, n - n // 2) for n in total)
    assert z.shape == (2, 4, 6, 5)
    assert np.allclose(z, conv(x, w, None, (1, 1), sides, (1, 2), 1))
    assert np.array_equal(F.conv2d(x, w, padding="valid"), F.conv2d(x, w))


def test_a_line_is_a_plane_of_one_row():
    x, w, b = normal(2, 4, 9), normal(6, 2, 3, seed=1), normal(6, seed=2)
    z = F.conv1d(x, w, b, stride=2, padding=1, dilation=2, groups=2)
    assert np.allclose(z, F.conv2d(x[:, :, None], w[:, :, None], b, (1, 2), (0, 1), (1, 2), 2)[:, :, 0])
    assert np.array_equal(F.conv1d(x[0], w, padding="same", groups=2), F.conv1d(x, w, padding="same", groups=2)[0])
    back = F.conv_transpose1d(z, w, stride=2, padding=1, output_padding=1, groups=2, dilation=2)
    of_planes = F.conv_transpose2d(z[:, :, None], w[:, :, None], None, (1, 2), (0, 1), (0, 1), 2, (1, 2))
    assert np.array_equal(back, of_planes[:, :, 0])


def test_what_comes_in_comes_out():
    x, w = normal(2, 3, 5, 4), normal(4, 3, 3, 3, seed=1)
    assert type(F.conv2d(x, w)) is np.ndarray
    assert isinstance(F.conv2d(tensor(x), w), Tensor)
    assert isinstance(F.conv2d(x, tensor(w)), Tensor)
    assert F.conv2d(x.tolist(), w.tolist()).shape == (2, 4, 3, 2)
    # To rounding: BLAS may sum the products of one image in another order than those of two, as OpenBLAS with AVX-512.
    np.testing.assert_allclose(F.conv2d(x[1], w), F.conv2d(x, w)[1], rtol=1e-13, atol=1e-14, strict=True)
    strided = np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert np.array_equal(F.conv2d(strided, w), F.conv2d(x, w))


def test_a_nan_stays_where_its_windows_are():
    """Rows and images lie end to end in the buffer; what is read beyond an end must not count."""
    x = normal(3, 1, 5, 6)
    x[1, 0, 2, 5] = np.nan  # at the right edge
    z = F.conv2d(x, normal(2, 1, 3, 3, seed=1), padding=1)
    lost = np.zeros(z.shape, bool)
    lost[1, :, 1:4, 4:] = True
    assert np.array_equal(np.isnan(z), lost)


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kernel", [1, 2])
def test_halves_are_summed_in_float32(dtype, kernel):
    x = np.full((1, 64, 2, 2), 200, dtype)
    w = np.full((1, 64, kernel, kernel), 10, dtype)
    w[:, 32:] *= -1  # half of the sum is 64000 for each tap
    w[:, 0, 0, 0] = 11
    assert F.conv2d(x, w).dtype == dtype
    assert (F.conv2d(x, w) == 200).all()
    _, grads = gradients_of_cosines(F.conv2d, tensor(x), tensor(w))
    assert [g.dtype for g in grads] == [dtype, dtype]
    g = np.full((64, 1, 2, 2), 200, dtype)
    assert F.conv_transpose2d(g.transpose(1, 0, 2, 3), w.transpose(1, 0, 2, 3)).dtype == dtype


def test_gradients_have_the_dtype_of_what_they_are_of():
    x, w, b = tensor(normal(1, 2, 4, 4).astype("f4")), tensor(normal(3, 2, 2, 2)), tensor(normal(3).astype("f2"))
    z, grads = gradients_of_cosines(F.conv2d, x, w, b)
    assert z.dtype == np.float64
    assert [g.dtype for g in grads] == [np.float32, np.float64, np.float16]


def test_complex_numbers():
    x, w = normal(2, 2, 4, 4) + 1j * normal(2, 2, 4, 4, seed=1), normal(4, 1, 2, 2) + 1j * normal(4, 1, 2, 2, seed=2)
    parts = [F.conv2d(a, c, groups=2) for a in (x.real, x.imag) for c in (w.real, w.imag)]
    assert np.allclose(F.conv2d(x, w, groups=2), parts[0] - parts[3] + 1j * (parts[1] + parts[2]))


# ---------------------------------------------------------------- memory


def peak_of(f):
    tracemalloc.start()
    try:
        f()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_not_that_of_the_columns(monkeypatch):
    """5 x 5 taps of 4 MiB of planes would be 100 MiB; a block is 2 MiB."""
    monkeypatch.setattr(onednn, "_is_faster_in_numpy", lambda *_: True)
    x, w = normal(1, 16, 256, 256).astype("f4"), normal(16, 16, 5, 5).astype("f4")
    one = x.nbytes
    assert peak_of(lambda: F.conv2d(x, w, padding=2)) < 3 * one  # result, padded planes, a block
    tx, tw = tensor(x), tensor(w)
    assert (
        peak_of(lambda: gradients_of_cosines(lambda x, w: F.conv2d(x, w, padding=2), tx, tw)) < 10 * one
    )  # seeds, too


def test_an_input_is_not_kept_for_a_constant_weight():
    x, w = tensor(normal(1, 2, 4, 4)), normal(2, 2, 3, 3)
    with GradManager().attach(x) as gm:
        h = x * 2
        kept = weakref.ref(h._array)
        z = F.conv2d(h, w)
        del h
        assert kept() is None
        gm.backward(z.sum())
    assert np.allclose(x.grad.numpy(), 2 * F.conv_transpose2d(np.ones((1, 2, 2, 2)), w))


# ---------------------------------------------------------------- what is refused

X, W = np.ones((2, 4, 5, 5)), np.ones((6, 4, 3, 3))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: F.conv2d(X[0, 0], W), errors.ShapeError, r"shape \(batch, channels, height, width\).*\(5, 5\)"),
        (lambda: F.conv1d(X, W[0]), errors.ShapeError, r"shape \(batch, channels, length\).*\(2, 4, 5, 5\)"),
        (lambda: F.conv2d(X, W[0]), errors.ShapeError, r"weight of 4 axes.*\(4, 3, 3\)"),
        (lambda: F.conv2d(X, W[..., :0]), errors.ShapeError, r"not empty.*\(6, 4, 3, 0\)"),
        (lambda: F.conv2d(X[:, :3], W), errors.ShapeError, r"takes 4 channels; found.*\(2, 3, 5, 5\), with 3"),
        (lambda: F.conv2d(X, W, groups=2), errors.ShapeError, "in 2 groups takes 8 channels.*with 4"),
        (lambda: F.conv2d(X, W[:5, :2], groups=2), errors.ShapeError, "its 5 must be a multiple of groups"),
        (lambda: F.conv2d(X, W, groups=0), errors.ShapeError, "groups must be at least 1; found 0"),
        (lambda: F.conv2d(X, W, groups=1.0), TypeError, "groups must be an integer; found 1.0"),
        (lambda: F.conv2d(X, W, np.ones(4)), errors.ShapeError, r"bias must have shape \(6,\).*found \(4,\)"),
        (lambda: F.conv2d(X, W, stride=0), errors.ShapeError, "stride must be at least 1; found 0"),
        (lambda: F.conv2d(X, W, stride=1.5), TypeError, "stride must be an integer; found 1.5"),
        (lambda: F.conv2d(X, W, dilation=(1, 0)), errors.ShapeError, "dilation must be at least 1"),
        (lambda: F.conv2d(X, W, padding=-1), errors.ShapeError, "padding must be at least 0; found -1"),
        (lambda: F.conv2d(X, W, padding=(1, 2, 3)), ValueError, "padding must be an integer or 2"),
        (lambda: F.conv2d(X, W, padding="full"), ValueError, "'same' or 'valid'; found 'full'"),
        (lambda: F.conv2d(X, W, padding="same", stride=2), errors.ShapeError, "'same' needs stride 1"),
        (
            lambda: F.conv2d(X, W, dilation=3),
            errors.ShapeError,
            r"spans \(7, 7\), more than the padded input's \(5, 5\)",
        ),
        (lambda: F.conv2d(X.astype(int), W), errors.DtypeError, "input of dtype int64"),
        (lambda: F.conv2d(X, W > 0), errors.DtypeError, "weight of dtype bool"),
        (lambda: F.conv2d(X, W, np.ones(6, int)), errors.DtypeError, "bias of dtype int64"),
        (lambda: F.conv_transpose2d(X, W), errors.ShapeError, "takes 6 channels; found.*with 4"),
        (lambda: F.conv_transpose2d(X, W[:4], np.ones(3)), errors.ShapeError, r"bias must have shape \(4,\)"),
        (lambda: F.conv_transpose2d(X, W[:4], output_padding=1), errors.ShapeError, "smaller than stride or dilation"),
        (lambda: F.conv_transpose2d(X, W[:4], padding=4), errors.ShapeError, r"would be of size \(-1, -1\)"),
    ],
)
def test_refused(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_a_refused_call_records_nothing():
    x = tensor(X)
    with GradManager().attach(x) as gm:
        z = F.conv2d(x, W)
        with pytest.raises(errors.ShapeError):
            F.conv2d(x, W, groups=2)
        gm.backward(z.sum())
    assert np.allclose(x.grad.numpy(), F.conv_transpose2d(np.ones(z.shape), W))
