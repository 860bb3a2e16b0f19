"""Fourier transforms beyond the table of samples: every length against every norm, keywords, errors, warnings."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor

OF_REAL = ("rfft", "ihfft")
OVER_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
OVER_SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
NORMS = (None, "backward", "ortho", "forward")


def random_array(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    real = random.normal(size=shape)
    return real if name in OF_REAL or name.startswith("r") else real + 1j * random.normal(size=shape)


def inner(u: np.ndarray, v: np.ndarray) -> float:
    return float(np.sum(np.conj(u) * v).real)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", OVER_ONE)
def test_every_length_has_its_adjoint(name: str, norm: Any) -> None:
    """<u, Fv> = <F'u, v>, with F NumPy's and F' ours, for all directions v: that is F' itself."""
    ours, numpys = getattr(gnp.fft, name), getattr(np.fft, name)
    for m, n in itertools.product(range(1, 6), (None, 1, 2, 3, 4, 5, 8)):
        if n is None and m == 1 and name in ("irfft", "hfft"):
            continue  # no points
        x = tensor(random_array(name, (m,)))
        with GradManager().attach(x) as manager:
            y = ours(x, n, norm=norm)
            u = (np.arange(y.size) + 1.5).astype(y.dtype)
            u = u * (1 + 0.5j) if y.dtype.kind == "c" else u
            manager.backward(y, u)
        units = [*np.eye(m), *(1j * np.eye(m) if x.dtype.kind == "c" else ())]
        found = [inner(x.grad.numpy(), v) for v in units]
        np.testing.assert_allclose(found, [inner(u, numpys(v, n, norm=norm)) for v in units], rtol=1e-12, atol=1e-12)


def test_imaginary_parts_that_irfft_ignores_get_no_gradient() -> None:
    for n, ignored in ((5, [0]), (6, [0, 3])):
        x = tensor(random_array("irfft", (n // 2 + 1,)))
        with GradManager().attach(x) as manager:
            manager.backward(gnp.fft.irfft(x, n), np.arange(1.0, n + 1))
        assert np.flatnonzero(x.grad.numpy().imag == 0).tolist() == ignored


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "fftn", "irfftn"])
def test_gradients_of_real_input_are_real(name: str) -> None:
    x = tensor(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    with GradManager().attach(x) as manager:
        y = getattr(gnp.fft, name)(x)
        manager.backward(y, np.ones(y.shape, y.dtype))
    assert x.grad.dtype == np.float32


@pytest.mark.parametrize("name", [*OVER_ONE, *OVER_SEVERAL])
def test_integers_are_constants(name: str) -> None:
    a = np.arange(12).reshape(3, 4)
    with GradManager().attach(tensor(1.0)) as manager:
        found = getattr(gnp.fft, name)(tensor(a))
        assert manager._tape.node_id_of(found) is None
    expected = getattr(np.fft, name)(a)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [*OVER_ONE, *OVER_SEVERAL])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_dtypes_are_numpys(name: str, dtype: str) -> None:
    if dtype == "complex64" and (name in OF_REAL or name.startswith("r")):
        with pytest.raises(TypeError, match=name):
            getattr(gnp.fft, name)(tensor(np.ones((2, 4), dtype)))
        return
    a = np.ones((2, 4), dtype)
    x = tensor(a)
    with GradManager().attach(x) as manager:
        y = getattr(gnp.fft, name)(x)
        manager.backward(y, np.ones(y.shape, y.dtype))
    assert y.dtype == getattr(np.fft, name)(a).dtype
    assert x.grad.dtype == a.dtype


@pytest.mark.parametrize("name", [*OVER_ONE, *OVER_SEVERAL])
def test_plain_arrays_go_to_numpy(name: str) -> None:
    a = random_array(name, (3, 4))
    found, expected = getattr(gnp.fft, name)(a), getattr(np.fft, name)(a)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, expected)
    out = np.empty_like(expected)
    assert getattr(gnp.fft, name)(a, out=out) is out
    np.testing.assert_array_equal(out, expected)
    listed = getattr(gnp.fft, name)([[tensor(1.0), tensor(2.0)], [3.0, 4.0]])  # Tensors in lists are found
    np.testing.assert_allclose(listed.numpy(), getattr(np.fft, name)([[1.0, 2.0], [3.0, 4.0]]), atol=1e-15)


@pytest.mark.parametrize("name", [*OVER_ONE, *OVER_SEVERAL])
def test_out_is_written_and_recorded(name: str) -> None:
    a = random_array(name, (3, 4))
    expected = getattr(np.fft, name)(a)
    x, out = tensor(a), tensor(np.empty_like(expected))
    with GradManager().attach(x) as manager:
        assert getattr(gnp.fft, name)(x, out=out) is out
        manager.backward(out, np.ones_like(expected))
    written, x.grad = x.grad, None
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-13, atol=1e-13)
    with GradManager().attach(x) as manager:
        manager.backward(getattr(gnp.fft, name)(x), np.ones_like(expected))
    np.testing.assert_array_equal(written.numpy(), x.grad.numpy())


def test_an_out_of_the_wrong_shape_or_dtype_is_refused() -> None:
    x = tensor(np.ones(4))
    wide, real, plain = tensor(np.ones((2, 4), complex)), tensor(np.ones(4)), np.ones(4, complex)
    with pytest.raises(ValueError, match=r"fft\(out=...\).*\(4,\).*\(2, 4\)"):
        gnp.fft.fft(x, out=wide)
    with pytest.raises(TypeError, match=r"fft\(out=...\)"):
        gnp.fft.fft(x, out=real)
    with GradManager().attach(x), pytest.raises(errors.TrackedConversionError, match=r"fft\(out=...\)"):
        gnp.fft.fft(x, out=plain)
    for target in (wide, real, plain):
        assert np.all(np.asarray(target) == 1)


# ---------------------------------------------------------------- errors are NumPy's


@pytest.mark.parametrize(
    ("name", "args", "keywords"),
    [
        *((name, ((4,),), {"n": 0}) for name in OVER_ONE),
        *((name, ((4,),), {"n": 2.5}) for name in OVER_ONE),
        *((name, ((4,),), {"axis": 1}) for name in OVER_ONE),
        *((name, ((4,),), {"norm": "unitary"}) for name in OVER_ONE),
        ("irfft", ((1,),), {}),
        ("hfft", ((2, 1),), {}),
        ("fft", ((),), {}),
        ("fft", ((3, 0),), {"axis": 1, "n": 0}),
        *((name, ((3, 4),), {"axes": (0, 2)}) for name in OVER_SEVERAL),
        *((name, ((3, 4),), {"axes": (0,), "s": (2, 2)}) for name in OVER_SEVERAL),
        *((name, ((3, 4),), {"axes": (0, 1), "s": (2, 0)}) for name in OVER_SEVERAL),
        *((name, ((3, 4),), {"axes": (0, 1), "s": (2, -2)}) for name in OVER_SEVERAL),
        *((name, ((3, 4),), {"norm": "unitary"}) for name in OVER_SEVERAL),
        *((name, ((4,),), {}) for name in OVER_SEVERAL if name.endswith("2")),
        ("rfftn", ((3, 4),), {"axes": ()}),
        ("irfftn", ((3, 4),), {"axes": ()}),
    ],
    ids=str,
)
def test_errors_are_of_numpys_type_and_name_the_function(name: str, args: Any, keywords: dict[str, Any]) -> None:
    (shape,) = args
    with pytest.raises((ValueError, TypeError, IndexError)) as numpys:
        getattr(np.fft, name)(np.ones(shape), **keywords)
    x = tensor(np.ones(shape))
    with GradManager().attach(x) as manager:
        with pytest.raises(numpys.type, match=name) as ours:
            getattr(gnp.fft, name)(x, **keywords)
        assert not manager._tape.entries
    assert isinstance(ours.value, numpys.type)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize(
    "keywords", [{"s": (2, 4)}, {"s": (None, 4), "axes": (0, 1)}, {"s": (2, None), "axes": (0, 1)}]
)
def test_deprecated_defaults_warn_as_numpys(name: str, keywords: dict[str, Any]) -> None:
    a = random_array(name, (3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(np.fft, name)(a, **keywords)
    with pytest.warns(DeprecationWarning, match=name) as caught:
        found = getattr(gnp.fft, name)(tensor(a), **keywords)
    assert [w.filename for w in caught] == [__file__]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------- frequencies and shifts


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_frequencies(name: str) -> None:
    for n in range(1, 9):
        found, expected = getattr(gnp.fft, name)(n, 0.3), getattr(np.fft, name)(n, 0.3)
        assert isinstance(found, Tensor)
        np.testing.assert_array_equal(found.numpy(), expected)
    assert getattr(gnp.fft, name)(4, device="cpu").device == "cpu"
    with pytest.raises(ValueError, match=f"{name}: n should be an integer"):
        getattr(gnp.fft, name)(4.0)
    with pytest.raises(ValueError, match="device"):
        getattr(gnp.fft, name)(4, device="gpu")


def test_the_spacing_of_frequencies_gets_a_gradient() -> None:
    d = tensor(0.5)
    with GradManager().attach(d) as manager:
        manager.backward(gnp.fft.fftfreq(4, d), np.arange(4.0))
    np.testing.assert_allclose(d.grad.numpy(), -np.dot(np.fft.fftfreq(4, 0.5), np.arange(4.0)) / 0.5)


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts(name: str) -> None:
    a = np.arange(15).reshape(3, 5)
    for axes in (None, 0, -1, (0, 1), (1, 1), ()):
        found = getattr(gnp.fft, name)(tensor(a), axes)
        np.testing.assert_array_equal(found.numpy(), getattr(np.fft, name)(a, axes))
        assert type(getattr(gnp.fft, name)(a, axes)) is np.ndarray
    with pytest.raises(IndexError):
        getattr(gnp.fft, name)(tensor(a), 2)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"fft\.nothing"):
        _ = gnp.fft.nothing
    assert sorted(gnp.fft.__all__) == sorted(np.fft.__all__)


@pytest.mark.parametrize("name", ["irfft", "hfft"])
def test_half_a_spectrum_of_nothing_is_that_of_zeros(name: str) -> None:
    """NumPy's reads memory that it did not write."""
    x = tensor(np.zeros((2, 0), complex))
    with GradManager().attach(x) as manager:
        z = getattr(gnp.fft, name)(x, 5)
        manager.backward(z, np.ones((2, 5)))
    np.testing.assert_array_equal(z.numpy(), np.zeros((2, 5)))
    assert x.grad.shape == (2, 0)
    np.testing.assert_array_equal(gnp.fft.irfftn(x, (3, 4), (0, 1)).numpy(), np.zeros((3, 4)))


def test_fewer_frequencies_than_none() -> None:
    for name in ("fftfreq", "rfftfreq"):
        with pytest.raises(ValueError, match=name):
            getattr(gnp.fft, name)(-1)
