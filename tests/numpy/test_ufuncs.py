"""Ufuncs beyond the table of samples: every method of every ufunc against NumPy's, errors, keywords, edges."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import factorial
from typing import Any

import numpy as np
import pytest
from helpers import gradient

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr.ops import floating_point
from gradmgr.ops.ufuncs import reduce

UFUNCS = sorted(
    {
        getattr(np, name).__name__
        for name in gnp.__all__
        if isinstance(getattr(np, name, None), np.ufunc) and hasattr(gnp, getattr(np, name).__name__)
    }
)
BINARY = [n for n in UFUNCS if getattr(np, n).nin == 2 and getattr(np, n).nout == 1 and not getattr(np, n).signature]
DTYPES = ["bool", "int8", "uint64", "float16", "float64", "complex64"]


def outcome(call: Any) -> Any:
    """What a call gives, or how it fails."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            return error


def assert_alike(found: Any, expected: Any) -> None:
    """Assert equal values, shape and dtype, or an error of the same kind."""
    if isinstance(expected, Exception):
        assert isinstance(found, Exception), f"NumPy raises {expected!r}; found {found!r}"
        kinds = (np.exceptions.AxisError, ValueError, TypeError, IndexError, RuntimeError)
        assert isinstance(found, next(k for k in kinds if isinstance(expected, k))), (found, expected)
        return
    assert isinstance(found, Tensor), found
    expected = np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    tolerance = {"e": 5e-3, "f": 1e-5, "F": 1e-5, "d": 1e-12}.get(expected.dtype.char, 0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def values_of(dtype: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray:
    random = np.random.default_rng(3)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(1, 4, shape).astype(dtype)


# ---------------------------------------------------------------- every method of every ufunc

# Complex numbers are not cast to real ones.
WIDE = {"c": np.complex128} | dict.fromkeys("bifu", np.float64)

CALLS: dict[str, Any] = {
    "reduce": lambda u, x: u.reduce(x),
    "reduce of two axes": lambda u, x: u.reduce(x, axis=(0, 1)),
    "reduce of all, kept": lambda u, x: u.reduce(x, axis=None, keepdims=True),
    "reduce of nothing": lambda u, x: u.reduce(x[:0]),
    "reduce of nothing, initial=": lambda u, x: u.reduce(x[:0], initial=1),
    "reduce of one": lambda u, x: u.reduce(x[:1], axis=0),
    "reduce with initial=": lambda u, x: u.reduce(x, axis=0, initial=2),
    "reduce with initial=None": lambda u, x: u.reduce(x, axis=0, initial=None),
    "reduce of nothing, initial=None": lambda u, x: u.reduce(x[:0], axis=0, initial=None),
    "reduce with where=": lambda u, x: u.reduce(x, where=np.array([[True], [False], [True]])),
    "reduce with where= and initial=": lambda u, x: u.reduce(x, where=np.array([True, True, False, True]), initial=2),
    "reduce with a where= too large": lambda u, x: u.reduce(x[:1], where=np.ones((3, 4), bool), initial=1),
    "reduce with a where= of more axes": lambda u, x: u.reduce(x, where=np.ones((2, 3, 4), bool), initial=1),
    "reduce with dtype=": lambda u, x: u.reduce(x, dtype=WIDE[x.dtype.kind]),
    "reduce past the axes": lambda u, x: u.reduce(x, axis=2),
    "reduce of 0-d": lambda u, x: u.reduce(x[0, 0, ...], axis=-1),
    "accumulate": lambda u, x: u.accumulate(x),
    "accumulate along the last axis": lambda u, x: u.accumulate(x, -1),
    "accumulate of nothing": lambda u, x: u.accumulate(x[:0]),
    "accumulate with dtype=": lambda u, x: u.accumulate(x, dtype=WIDE[x.dtype.kind]),
    "accumulate along all axes": lambda u, x: u.accumulate(x, axis=None),
    "accumulate of 0-d": lambda u, x: u.accumulate(x[0, 0, ...]),
    "accumulate past the axes": lambda u, x: u.accumulate(x, 5),
    "reduceat": lambda u, x: u.reduceat(x, [0, 2, 1]),
    "reduceat along the last axis": lambda u, x: u.reduceat(x, np.array([3, 0, 0, 2]), axis=-1),
    "reduceat nowhere": lambda u, x: u.reduceat(x, []),
    "reduceat with dtype=": lambda u, x: u.reduceat(x, [0, 1], dtype=WIDE[x.dtype.kind]),
    "reduceat past the end": lambda u, x: u.reduceat(x, [0, 3]),
    "reduceat before the beginning": lambda u, x: u.reduceat(x, [-1]),
    "reduceat of a number": lambda u, x: u.reduceat(x, 1),
    "outer": lambda u, x: u.outer(x, x[0]),
    "outer of 0-d": lambda u, x: u.outer(x[0], x[0, 0, ...]),
}


@pytest.mark.parametrize("name", BINARY)
def test_methods_are_numpys(name: str) -> None:
    for (case, call), dtype in itertools.product(CALLS.items(), DTYPES):
        if dtype == "complex64" and name in ("maximum", "minimum", "fmax", "fmin") and "initial" in case:
            continue  # NumPy's order of complex numbers
        a = values_of(dtype)
        expected = outcome(lambda a=a, call=call: call(getattr(np, name), a))
        for xp in (gnp, np) if dtype == "float64" else (gnp,):
            assert_alike(outcome(lambda xp=xp, a=a, call=call: call(getattr(xp, name), tensor(a))), expected)


AT_CALLS: dict[str, Any] = {
    "again": lambda u, x, v: u.at(x, [0, 2, 0], v[0, :3, None]),
    "a number": lambda u, x, v: u.at(x, (slice(None), 1), v[0, 0]),
    "a mask": lambda u, x, v: u.at(x, np.array([True, False, True]), v[1]),
    "everything": lambda u, x, v: u.at(x, ..., v),
    "past the end": lambda u, x, v: u.at(x, [7], v[0]),
    "of another shape": lambda u, x, v: u.at(x, [0], v[:, :3]),
    "nothing to apply": lambda u, x, v: u.at(x, [0]),
}


@pytest.mark.parametrize("name", BINARY)
def test_at_is_numpys(name: str) -> None:
    for call, dtype in itertools.product(AT_CALLS.values(), DTYPES):
        a, v = values_of(dtype), values_of(dtype)[::-1]

        def changed(u: Any, x: Any, v: Any, call: Any = call) -> Any:
            assert call(u, x, v) is None
            return x

        expected = outcome(lambda a=a, v=v: changed(getattr(np, name), a.copy(), v))
        for xp in (gnp, np) if dtype == "float64" else (gnp,):
            assert_alike(outcome(lambda xp=xp, a=a, v=v: changed(getattr(xp, name), tensor(a), tensor(v))), expected)


@pytest.mark.parametrize("name", [n for n in UFUNCS if n not in BINARY])
def test_what_other_ufuncs_refuse(name: str) -> None:
    """Reductions are for two operands and one result; outer for two operands, without core axes."""
    ufunc, ours = getattr(np, name), getattr(gnp, name)
    x = values_of("float64")
    for call in (
        lambda u, x: u.reduce(x),
        lambda u, x: u.accumulate(x),
        lambda u, x: u.reduceat(x, [0]),
        lambda u, x: u.at(x, [0], x[0]),
    ):
        expected = outcome(lambda call=call: call(ufunc, x.copy()))
        assert isinstance(expected, Exception)
        for u in (ours, ufunc):
            found = outcome(lambda u=u, call=call: call(u, tensor(x)))
            assert_alike(found, expected)
            assert (
                any(f".{method}" in str(found) for method in ("reduce", "accumulate", "reduceat", "at")) or u is ufunc
            )
    if ufunc.nin != 2 or ufunc.signature:
        assert_alike(outcome(lambda: ours.outer(tensor(x), tensor(x))), outcome(lambda: ufunc.outer(x, x)))


@pytest.mark.parametrize("name", UFUNCS)
def test_functions_have_the_attributes_of_their_ufunc(name: str) -> None:
    ufunc, ours = getattr(np, name), getattr(gnp, name)
    assert (ours.nin, ours.nout, ours.identity) == (ufunc.nin, ufunc.nout, ufunc.identity)


@pytest.mark.parametrize("name", BINARY)
def test_plain_arrays_go_to_numpy(name: str) -> None:
    a = values_of("int64")
    for method, args in {"reduce": (a,), "accumulate": (a,), "reduceat": (a, [0, 2]), "outer": (a, a[0])}.items():
        expected = outcome(lambda m=method, args=args: getattr(getattr(np, name), m)(*args))
        found = outcome(lambda m=method, args=args: getattr(getattr(gnp, name), m)(*args))
        assert type(found) is type(expected)
        if not isinstance(expected, Exception):
            np.testing.assert_array_equal(found, expected)
    ours, numpys = a.copy(), a.copy()
    expected = outcome(lambda: getattr(np, name).at(numpys, [0, 0], a[1]))
    assert type(outcome(lambda: getattr(gnp, name).at(ours, [0, 0], a[1]))) is type(expected)
    np.testing.assert_array_equal(ours, numpys)


def test_integers_and_booleans_are_constants() -> None:
    x = tensor(values_of("float64"))
    with GradManager().attach(x) as manager:
        for y in (
            gnp.add.reduce(x.astype(int)),
            gnp.add.reduce(x, dtype=int),
            gnp.subtract.accumulate(x, dtype=int),
            gnp.add.reduceat(x, [0, 1], dtype=int),
            gnp.logical_and.reduce(x),
            gnp.logical_or.accumulate(x),
            gnp.greater.outer(x, x),
            gnp.divide.reduce(x.astype(int)),
        ):
            assert manager._tape.node_id_of(y) is None


# ---------------------------------------------------------------- derivatives of methods where the table has no line


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (gnp.maximum.reduce, [3.0, 1.0, 3.0, 3.0], [1 / 3, 0, 1 / 3, 1 / 3]),
        (gnp.fmin.reduce, [3.0, np.nan, 3.0], [0.5, 0, 0.5]),
        (gnp.fmax.reduce, [np.nan, np.nan], [0, 0]),
        (gnp.multiply.reduce, [2.0, 0.0, 3.0], [0, 6, 0]),
        (gnp.logaddexp.reduce, [-np.inf, -np.inf], [0, 0]),
        (gnp.hypot.reduce, [0.0, 0.0, 0.0], [0, 0, 0]),
        (gnp.hypot.reduce, [-3.0], [-1]),
        (lambda x: gnp.hypot.reduce(x, where=np.array([True, False])), [-3.0, 7.0], [-1, 0]),
        (lambda x: gnp.divide.reduce(x, where=np.array([True, False]), initial=6.0), [2.0, 0.0], [-1.5, 0]),
        (lambda x: gnp.maximum.reduce(x, initial=3.0), [3.0, 1.0], [0.5, 0]),
        (lambda x: gnp.add.reduceat(x, [2, 0, 1, 1]), [1.0, 1.0, 1.0, 1.0], [1, 2, 2, 1]),
        (lambda x: gnp.maximum.accumulate(x), [1.0, 3.0, 2.0], [1, 2, 0]),
    ],
)
def test_gradients_at_the_edge(f: Any, x: Any, expected: Any) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(gradient(f, x), expected, rtol=1e-13)


@pytest.mark.parametrize("index", [None, ..., (None, ...), (), np.array(True)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_at_of_no_axes(index: Any, dtype: str) -> None:
    """A sum is a NumPy scalar, which cannot be written to."""
    x = gnp.sum(tensor(np.array([1, 2], dtype)))
    expected = np.array(3, dtype)
    np.add.at(expected, index, 4)
    gnp.add.at(x, index, 4)
    assert_alike(x, expected)


def test_at_broadcasts_values_over_an_index_of_several_axes() -> None:
    """Where x has one axis NumPy 2.4 adds no more values than it is given."""
    x, v, index = tensor([1.0, 2.0, 3.0]), tensor([10.0, 20.0]), [[0, 2], [-1, 0]]
    gm = GradManager().attach([x, v])
    with gm:
        z = x * 1
        gnp.add.at(z, index, v)
        gm.backward(z, np.array([1.0, 2.0, 4.0]))
    assert z.tolist() == [31.0, 2.0, 33.0]
    assert x.grad.tolist() == [1.0, 2.0, 4.0]
    assert v.grad.tolist() == [5.0, 5.0]


def test_at_applies_again_for_each_time_an_element_is_named() -> None:
    x, v = tensor([2.0, 5.0]), tensor([3.0, 4.0, 10.0])
    with GradManager().attach([x, v]) as manager:
        y = x * 1
        gnp.divide.at(y, [0, 0, 1], v)
        manager.backward(y, np.array([1.0, 1.0]))
    np.testing.assert_allclose(y.numpy(), [2 / 12, 0.5])
    np.testing.assert_allclose(x.grad.numpy(), [1 / 12, 0.1])
    np.testing.assert_allclose(v.grad.numpy(), [-2 / 36, -2 / 48, -0.05])


def test_at_changes_no_other_tensor() -> None:
    x = tensor([1.0, 2.0])
    view, values = x[:1], x.numpy()
    np.add.at(x, [0, 0], 1.0)
    assert x.tolist() == [3.0, 2.0]
    assert (view.tolist(), values.tolist()) == ([1.0], [1.0, 2.0])


def test_at_reads_its_own_target() -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x) as manager:
        gnp.multiply.at(x, [0, 1, 0], x[0])
        manager.backward(x.sum())
    assert x.tolist() == [1.0, 2.0]
    assert x.grad.tolist() == [5.0, 1.0]  # of x0 * x0 * x0 + x1 * x0


def test_at_that_fails_changes_nothing() -> None:
    x, v = tensor([1.0, 2.0]), tensor([1.0, 2.0, 3.0])
    with GradManager().attach([x, v]) as manager:
        for call in (
            lambda: np.multiply.at(x, [0, 5], 2.0),
            lambda: np.multiply.at(x, [0, 1], v),
            lambda: np.add.at(x, [0]),
            lambda: np.negative.at(x, [0], 1.0),
            lambda: np.divmod.at(x, [0], 1.0),
        ):
            with pytest.raises((TypeError, ValueError, IndexError)):
                call()
        assert x.tolist() == [1.0, 2.0]
        manager.backward((x * 3).sum())
    assert x.grad.tolist() == [3.0, 3.0]


def test_at_into_a_plain_array() -> None:
    a, v = np.zeros(2), tensor([1.0, 2.0])
    np.add.at(a, [0, 0], v)  # v is not tracked
    assert a.tolist() == [3.0, 0.0]
    with GradManager().attach(v):
        for xp in (np, gnp):
            with pytest.raises(errors.TrackedConversionError, match=r"add\.at"):
                xp.add.at(a, [0, 0], v)
    assert a.tolist() == [3.0, 0.0]


@pytest.mark.parametrize("method", ["reduce", "accumulate", "reduceat", "outer"])
def test_a_result_is_not_written_into_an_out_of_the_wrong_shape_or_dtype(method: str) -> None:
    x = tensor(values_of("float64"))
    args = {"reduceat": (x, [0, 1]), "outer": (x, x)}.get(method, (x,))
    for out, kind in (
        (tensor(np.zeros(7)), ValueError),
        (tensor(np.zeros_like(getattr(np.subtract, method)(*args), int)), TypeError),
    ):
        with pytest.raises(kind, match=r"subtract.*out="):
            getattr(gnp.subtract, method)(*args, out=out)
        assert not out.numpy().any()


def test_a_method_of_a_plain_array_writes_into_a_tensor() -> None:
    a, t, narrow = np.ones((2, 3)), tensor(np.zeros(3)), tensor(np.zeros((2, 3)))
    assert a.sum(axis=0, out=t) is t
    assert t.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match=r"add\.reduce\(out="):
        a.sum(axis=0, out=narrow)
    assert not narrow.numpy().any()


def test_a_tracked_result_does_not_go_into_a_plain_array() -> None:
    x = tensor([1.0, 2.0])
    with GradManager().attach(x), pytest.raises(errors.TrackedConversionError, match="reduce"):
        np.add.reduce(x, out=np.zeros(()))


def test_lists_that_hold_tensors() -> None:
    x = tensor(2.0)
    with GradManager().attach(x) as manager:
        y = gnp.multiply.reduce([x, 3.0, x])
        manager.backward(y)
    assert (y.item(), x.grad.item()) == (12.0, 12.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: gnp.subtract.reduce(t, axis=(0, 1)), "subtract"),
        (lambda t: gnp.subtract.reduce(t[:0]), "subtract"),
        (lambda t: gnp.maximum.reduce(t[:0]), "maximum"),
        (lambda t: gnp.hypot.reduce(t, axis=9), "hypot.reduce"),
        (lambda t: gnp.hypot.accumulate(t, axis=9), "hypot.accumulate"),
        (lambda t: gnp.hypot.accumulate(t[0, 0]), "hypot.accumulate"),
        (lambda t: gnp.hypot.reduceat(t, [9]), "hypot.reduceat"),
        (lambda t: gnp.hypot.at(t, [0], 1j), "hypot"),
        (lambda t: gnp.add.reduce(t, order="C"), "reduce.*order"),
        (lambda t: gnp.add(t, 1, order="C"), "add.*order"),
        (lambda t: gnp.add(t, 1, casting="unsafe"), "add.*casting"),
        (lambda t: np.add(t, 1, casting="unsafe"), "add.*casting"),
        (lambda t: np.add(t, 1, signature="dd->d"), "add.*signature"),
        (lambda t: gnp.sin.reduce(t), "sin.reduce"),
    ],
)
def test_errors_name_the_function(call: Any, says: str) -> None:
    x = tensor(values_of("float64"))
    with GradManager().attach(x) as manager:
        with pytest.raises((TypeError, ValueError, IndexError), match=says):
            call(x)
        assert not [e for e in manager._tape.entries if e[0] != "getitem"]


def test_numpys_defaults_may_be_said() -> None:
    x = tensor([1.0, 2.0])
    assert np.add(x, 1, casting="same_kind", order="K", subok=True).tolist() == [2.0, 3.0]


def test_the_first_axis_is_the_default() -> None:
    a = values_of("float64", (2, 3, 4))
    for name in ("add", "subtract", "maximum"):
        assert getattr(gnp, name).reduce(tensor(a)).shape == (3, 4)
    assert reduce(np.add, gnp.add, tensor(a)).shape == (3, 4)


def test_reductions_in_pairs_record_little() -> None:
    x = tensor(np.ones(1000))
    with GradManager().attach(x) as manager:
        y = gnp.hypot.reduce(x)
        assert len([e for e in manager._tape.entries if e[0].startswith("hypot")]) == 10
        manager.backward(y)
    np.testing.assert_allclose(x.grad.numpy(), 1 / np.sqrt(1000))


# ---------------------------------------------------------------- sinc


def exact_derivative_of_sinc(x: Fraction, order: int) -> float:
    """The power series of sinc, differentiated term by term, in rational numbers."""
    pi = Fraction(31415926535897932384626433832795028841, 10**37)
    total = Fraction(0)
    for k in range(45):
        power = 2 * k
        if power < order:
            continue
        term = (-1) ** k * pi**power * Fraction(factorial(power), factorial(power - order)) * x ** (power - order)
        total += term / factorial(power + 1)
    return float(total)


def derivatives(f: Any, x: float, orders: int) -> list[float]:
    """Derivatives of a function of one number, by managers within managers."""
    t = tensor(x)
    managers = [GradManager().attach(t) for _ in range(orders)]
    found = []
    for manager in managers:
        manager.record()
    y = f(t)
    for manager in reversed(managers):
        manager.backward(y)
        y, t.grad = t.grad, None
        found.append(y.item())
    return found


@pytest.mark.parametrize("x", [0.0, 1e-9, -1e-4, 0.01, 0.3, -0.6366, 0.6367, 1.0, 1.9, 2.5, -4.75])
def test_derivatives_of_sinc_to_the_fifth(x: float) -> None:
    found = derivatives(gnp.sinc, x, 5)
    expected = [exact_derivative_of_sinc(Fraction(x), order) for order in range(1, 6)]
    np.testing.assert_allclose(found, expected, rtol=2e-13, atol=1e-13)
    if x == 0:
        assert found[0] == found[2] == found[4] == 0
        np.testing.assert_allclose(found[1::2], [-(np.pi**2) / 3, np.pi**4 / 5], rtol=1e-15)


def test_small_slopes_of_sinc_have_all_their_digits() -> None:
    for x in (1e-3, 1e-6, 1e-12):
        (slope,) = derivatives(gnp.sinc, x, 1)
        np.testing.assert_allclose(slope, exact_derivative_of_sinc(Fraction(x), 1), rtol=1e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float32", 1e-6)])
def test_slopes_of_sinc_in_narrow_dtypes(dtype: str, tolerance: float) -> None:
    x = tensor(np.array([0.0, 0.01, 0.5, 1.25, 3.0], dtype))
    with GradManager().attach(x) as manager:
        manager.backward(gnp.sinc(x), np.ones(5, dtype))
    exact = [exact_derivative_of_sinc(Fraction(float(v)), 1) for v in x.numpy()]
    np.testing.assert_allclose(x.grad.numpy().astype(float), exact, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- parts of numbers


def test_frexp_gives_a_constant_exponent() -> None:
    values = np.array([0.0, -0.0, 3.0, -0.1, 1e-310, np.inf, -np.inf, np.nan])
    x = tensor(values)
    with GradManager().attach(x) as manager:
        mantissa, exponent = gnp.frexp(x)
        assert manager._tape.node_id_of(exponent) is None
        for found, expected in zip((mantissa, exponent), np.frexp(values), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.numpy(), expected)
            np.testing.assert_array_equal(np.signbit(found.numpy()), np.signbit(expected))
        with np.errstate(all="ignore"):
            manager.backward(mantissa, np.ones(8))
    np.testing.assert_array_equal(x.grad.numpy()[:4], [1, 1, 0.25, 8])


def test_modf_keeps_signs_and_infinities() -> None:
    values = np.array([-2.0, -0.5, 0.0, -0.0, np.inf, -np.inf, 2.75])
    for found, expected in zip(gnp.modf(tensor(values)), np.modf(values), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(np.signbit(found.numpy()), np.signbit(expected))


@pytest.mark.parametrize("name", ["frexp", "modf", "divmod"])
def test_two_results(name: str) -> None:
    values = np.array([[2.5, -3.25, 7.0]] * 2)
    args = (values, 1.5) if name == "divmod" else (values,)
    ours, numpys = getattr(gnp, name), getattr(np, name)
    tracked = (tensor(values), *args[1:])
    mask = np.array([True, False, True])

    def assert_both(found: Any, expected: Any) -> None:
        assert len(found) == 2
        for a, b in zip(found, expected, strict=True):
            assert (isinstance(a, Tensor), a.dtype) == (True, b.dtype)
            np.testing.assert_array_equal(a.numpy(), b)

    expected = numpys(*args)
    assert_both(ours(*tracked), expected)
    assert_both(numpys(*tracked), expected)
    assert all(type(part) is np.ndarray for part in ours(*args))
    outs = tuple([tensor(np.full_like(part, 9)) for part in expected])
    found = ours(*tracked, out=outs)
    assert all(a is b for a, b in zip(found, outs, strict=True))
    assert_both(outs, expected)
    one = tensor(np.full_like(expected[0], 9))
    found = ours(*tracked, one)
    assert found[0] is one
    assert_both(found, expected)
    masked = numpys(*args, out=tuple([np.full_like(part, 9) for part in expected]), where=mask)
    outs = tuple([tensor(np.full_like(part, 9)) for part in expected])
    assert_both(ours(*tracked, out=outs, where=mask), masked)
    found = ours(*tracked, where=mask)
    assert_both([part[:, ::2] for part in found], [part[:, ::2] for part in expected])
    with pytest.raises(TypeError, match=name):
        ours(*tracked, dtype="float32")
    with pytest.raises(TypeError, match=name):
        ours()
    with pytest.raises(TypeError, match=name):
        ours(*tracked, None, None, None)


def test_divmod_as_an_operator() -> None:
    x, y = np.array([7.0, -7.0]), np.array([2.0, 3.0])
    for found in (floating_point.divmod_operator(tensor(x), y), floating_point.divmod_reflected(tensor(y), x)):
        for a, b in zip(found, divmod(x, y), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
    assert floating_point.divmod_operator(tensor(x), "a") is NotImplemented
    assert floating_point.divmod_reflected(tensor(x), "a") is NotImplemented


def test_ldexp_accepts_integers() -> None:
    x = tensor(np.array([1.5, -2.0], np.float32))
    with GradManager().attach(x) as manager:
        y = gnp.ldexp(x, tensor([2, -1]))
        assert y.dtype == np.float32
        manager.backward(y, np.float32([1, 1]))
    assert y.tolist() == [6.0, -1.0]
    assert x.grad.tolist() == [4.0, 0.5]
    assert gnp.ldexp(tensor([1, 2]), 3).dtype == np.ldexp(np.array([1, 2]), 3).dtype
    assert gnp.ldexp(1.5, tensor([2, 3])).tolist() == [6.0, 12.0]
    assert gnp.ldexp(tensor(1e-300), 2000).item() == np.ldexp(1e-300, 2000)  # 2**2000 is no float64
    for exponent in (1.5, tensor([0.5, 1.0]), np.array([2], np.uint64)):
        with pytest.raises(TypeError, match="ldexp"):
            gnp.ldexp(x, exponent)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool", "complex64"])
def test_float_power_computes_in_double_precision(dtype: str) -> None:
    a = values_of(dtype)
    for args in ((a, 2), (a, 0.5), (2, a), (a, a), (a, np.float32(1.5)), (a, np.array([1, 2, 3, 4]))):
        expected = np.float_power(*args)
        found = gnp.float_power(*[tensor(t) if t is a else t for t in args])
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)
    with pytest.raises(TypeError, match="float_power"):
        gnp.float_power(tensor(a), 2, dtype="float32")


def test_float_power_has_precise_slopes() -> None:
    x = tensor(np.float32(1.1))
    with GradManager().attach(x) as manager:
        manager.backward(gnp.float_power(x, 30))
    np.testing.assert_allclose(x.grad.item(), np.float32(30 * float(np.float32(1.1)) ** 29), rtol=1e-7)


# ---------------------------------------------------------------- signs, steps, replaced values


def test_heaviside_copysign_nextafter_spacing_at_the_edge() -> None:
    values = np.array([0.0, -0.0, 2.0, -3.0, np.nan, np.inf])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(gradient(lambda h: gnp.heaviside(values, h), np.ones(6)), [1, 1, 0, 0, 0, 0])
        np.testing.assert_array_equal(gradient(lambda x: gnp.copysign(x, -1.0), values[:4]), [0, 0, -1, 1])
        np.testing.assert_array_equal(gradient(lambda s: gnp.copysign(values, s), np.ones(6)), np.zeros(6))
        np.testing.assert_array_equal(gradient(lambda x: gnp.nextafter(x, 9.0), values), np.ones(6))
        np.testing.assert_array_equal(gradient(gnp.spacing, values), np.zeros(6))
        np.testing.assert_array_equal(gnp.spacing(tensor(values)).numpy(), np.spacing(values))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "int64"])
def test_nan_to_num(dtype: str) -> None:
    a = np.array([1, 2, 3, 4]).astype(dtype)
    if dtype != "int64":
        a[:3] = np.nan, np.inf, -np.inf
    if dtype.startswith("complex"):
        a.imag = [5, np.nan, np.inf, np.nan]
    for keywords in ({}, {"nan": 7.0}, {"posinf": 1.5, "neginf": -2.5}, {"nan": np.inf}):
        expected = np.nan_to_num(a, **keywords)
        found = gnp.nan_to_num(tensor(a), **keywords)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected)


def test_what_is_replaced_has_no_derivative() -> None:
    np.testing.assert_array_equal(gradient(gnp.nan_to_num, [np.nan, np.inf, -np.inf, 2.0]), [0, 0, 0, 1])
    z = tensor(np.array([complex(1, np.nan), complex(np.inf, 1), 2 + 3j]))
    with GradManager().attach(z) as manager:
        manager.backward(gnp.nan_to_num(z), np.full(3, 5 + 7j))
    np.testing.assert_array_equal(z.grad.numpy(), [5, 7j, 5 + 7j])


def test_nan_to_num_in_place() -> None:
    x = tensor([np.nan, 2.0])
    with GradManager().attach(x) as manager:
        y = gnp.nan_to_num(x, copy=False, nan=3.0)
        assert y is x
        manager.backward((x * x).sum())
    assert (x.tolist(), x.grad.tolist()) == ([3.0, 2.0], [0.0, 4.0])
    a, nan = np.array([np.nan, 2.0]), tensor(3.0)
    assert gnp.nan_to_num(a, False, nan) is a
    assert a.tolist() == [3.0, 2.0]
    with pytest.raises(TypeError, match="nan_to_num"):
        gnp.nan_to_num(tensor([1j]), nan=nan)


def test_real_if_close() -> None:
    close, far = tensor(np.array([1 + 1e-15j, 2])), tensor(np.array([1 + 1e-3j, 2]))
    assert gnp.real_if_close(close).dtype == np.float64
    assert gnp.real_if_close(far) is far
    assert gnp.real_if_close(far, tol=0.1).dtype == np.float64
    assert gnp.real_if_close(tensor([1.0])).dtype == np.float64
    with GradManager().attach(close) as manager:
        manager.backward(gnp.real_if_close(close), np.array([3.0, 4.0]))
    assert close.grad.tolist() == [3.0, 4.0]


# ---------------------------------------------------------------- matvec, vecmat


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("matvec", ((3, 4), (3,))),
        ("matvec", ((3,), (3,))),
        ("matvec", ((2, 3, 4), (3, 4))),
        ("vecmat", ((4,), (3, 4))),
        ("vecmat", ((3,), (3,))),
        ("vecmat", ((), (3, 4))),
    ],
)
def test_wrong_shapes_are_refused(name: str, shapes: Any) -> None:
    with pytest.raises(ValueError, match=name):
        getattr(gnp, name)(*(tensor(np.ones(shape)) for shape in shapes))


@pytest.mark.parametrize("name", ["matvec", "vecmat"])
def test_products_keep_dtype_and_write_out(name: str) -> None:
    x, v = np.arange(6).reshape(2, 3), np.arange(3 if name == "matvec" else 2)
    args = (x, v) if name == "matvec" else (v, x)
    expected = x @ v if name == "matvec" else v @ x
    found = getattr(gnp, name)(*map(tensor, args))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(getattr(gnp, name)(*args), expected)
    out = tensor(np.zeros(expected.shape))
    assert getattr(gnp, name)(*map(tensor, args), out=out, dtype=float) is out
    np.testing.assert_array_equal(out.numpy(), expected)
    assert getattr(gnp, name)(*map(tensor, args), dtype="float32").dtype == np.float32
