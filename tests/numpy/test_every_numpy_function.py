"""Every function of NumPy is served or refused; functions of the user, of text and files, and rare ones."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from helpers import gradient

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr._transforms.gradcheck import gradcheck
from gradmgr.numpy._refused import PASSED_ON, REFUSED

NAMESPACES = [("", np, gnp), ("linalg.", np.linalg, gnp.linalg), ("fft.", np.fft, gnp.fft)]
PUBLIC = [
    (prefix + name, getattr(numpys, name), ours)
    for prefix, numpys, ours in NAMESPACES
    for name in sorted(numpys.__all__)
    if callable(getattr(numpys, name)) and not name.startswith("_")  # NumPy 2.1 exports private ones
]


@pytest.fixture
def tracked() -> Any:
    """A tensor that a manager tracks."""
    t = tensor([1.0, 2.0, 4.0])
    with GradManager().attach(t):
        yield t


# ---------------------------------------------------------------- completeness


def test_help_has_a_line_on_every_function() -> None:
    namespaces = gnp, gnp.linalg, gnp.fft, gnp.special
    public = [(name, getattr(namespace, name)) for namespace in namespaces for name in namespace.__all__]
    assert not [name for name, thing in public if callable(thing) and not thing.__doc__]
    assert "numpy.sin" in gnp.sin.__doc__


@pytest.mark.parametrize(("name", "numpys", "namespace"), PUBLIC, ids=[name for name, _, _ in PUBLIC])
def test_every_function_of_numpy_is_served_or_refused(name: str, numpys: Any, namespace: Any) -> None:
    served = hasattr(namespace, name.rpartition(".")[2])
    assert served != (name in REFUSED), f"{name} is {'served and refused' if served else 'neither served nor refused'}"


@pytest.mark.parametrize("name", sorted(REFUSED.keys() & set(np.__all__)))
def test_what_is_refused_says_why(name: str) -> None:
    with pytest.raises(AttributeError, match=REFUSED[name].split(";")[0].replace(".", r"\.")):
        getattr(gnp, name)


def test_nothing_that_numpy_dispatches_is_handed_on_as_it_is() -> None:
    """NumPy would dispatch a Tensor to gradmgr, and gradmgr back to NumPy, without end."""
    dispatched = type(np.sum)
    for _, numpys, namespace in NAMESPACES:
        for name in namespace.__all__:
            thing = getattr(namespace, name)
            handed_on = thing is getattr(numpys, name, None)
            assert not (handed_on and isinstance(thing, (dispatched, np.ufunc))), name


@pytest.mark.parametrize("name", sorted(PASSED_ON))
def test_modules_and_rare_types_are_numpys(name: str) -> None:
    if hasattr(np, name):
        assert getattr(gnp, name) is getattr(np, name)
        assert name in dir(gnp)
    else:
        with pytest.raises(AttributeError, match=name):
            getattr(gnp, name)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: np.emath.sqrt(t),
        lambda t: np.polynomial.Polynomial(t),
        lambda t: np.polynomial.polynomial.polyval(2.0, t),
        lambda t: np.ma.array(t),
        lambda t: np.random.default_rng(0).normal(t),
        lambda t: np.random.default_rng(0).permutation(t),
        lambda t: np.vectorize(float)(t),
        lambda t: np.broadcast(t, t),
        lambda t: np.ndenumerate(t),
        lambda t: np.array([t, t]),
        lambda t: gnp.float64(t),
    ],
)
def test_numpys_own_modules_and_classes_never_detach(call: Any, tracked: Tensor) -> None:
    with pytest.raises((errors.TrackedConversionError, errors.UnsupportedFunctionError)):
        call(tracked)


# ---------------------------------------------------------------- values, text, files


def test_output_of_a_tracked_tensor_is_written(tracked: Tensor) -> None:
    file = io.BytesIO()
    gnp.savez(file, tracked, pair=[tracked, tracked])
    file.seek(0)
    found = gnp.load(file)
    assert isinstance(found, np.lib.npyio.NpzFile)
    assert found["arr_0"].tolist() == [1, 2, 4]
    assert found["pair"].tolist() == [[1, 2, 4]] * 2
    assert gnp.array_repr(tracked) == "array([1., 2., 4.])"
    narrow = gnp.astype(tracked[0], np.float32) / 3
    assert gnp.format_float_positional(narrow) == np.format_float_positional(np.float32(1) / np.float32(3))
    assert gnp.format_float_scientific(tracked[1:2]) == "2.e+00"


def test_what_is_no_number_stays_numpys() -> None:
    text = lambda: io.StringIO("1 a\n2 b")
    records = gnp.loadtxt(text(), dtype=[("n", int), ("s", "U1")])
    assert type(records) is np.ndarray
    assert records["s"].tolist() == ["a", "b"]
    numbers, names = gnp.genfromtxt(text(), dtype=None, unpack=True, encoding="utf-8")
    assert isinstance(numbers, Tensor)
    assert type(names) is np.ndarray
    assert type(gnp.genfromtxt(text(), usemask=True)) is np.ma.MaskedArray
    assert type(gnp.frombuffer(b"ab", dtype="S1")) is np.ndarray


def test_a_file_mapped_to_memory_stays_mapped(tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    assert isinstance(gnp.load(tmp_path / "a.npy", mmap_mode="r"), np.memmap)
    assert isinstance(gnp.load(tmp_path / "a.npy"), Tensor)


def test_like_asks_for_a_kind_of_array() -> None:
    data = np.arange(3.0).tobytes()
    assert isinstance(gnp.frombuffer(data, like=tensor(1.0)), Tensor)
    assert type(gnp.frombuffer(data, like=np.ones(1))) is np.ndarray
    assert isinstance(np.frombuffer(data, like=tensor(1.0)), Tensor)
    assert isinstance(gnp.fromiter(range(3), float, like=tensor(1.0)), Tensor)
    assert type(gnp.fromfunction(np.add, (2, 2), like=np.ones(1))) is np.ndarray
    assert isinstance(gnp.fromfunction(gnp.add, (2, 2), like=tensor(1.0)), Tensor)


def test_memory_of_a_buffer_is_shared_and_never_written() -> None:
    memory = bytearray(np.arange(3.0).tobytes())
    t = gnp.frombuffer(memory)
    t += 1
    assert np.frombuffer(memory).tolist() == [0, 1, 2]
    assert t.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "call",
    [
        lambda t: gnp.kaiser(5, t[0]),
        lambda t: gnp.hanning(t[0]),
        lambda t: gnp.fromiter((1.0, t[0]), float),
        lambda t: gnp.arange(t[0]),
    ],
)
def test_tracked_numbers_are_not_used_as_plain_ones(call: Any, tracked: Tensor) -> None:
    with pytest.raises(errors.TrackedConversionError, match=r"which a manager tracks.*say t\.item\(\)"):
        call(tracked)


def test_untracked_numbers_are_accepted() -> None:
    np.testing.assert_array_equal(gnp.kaiser(tensor(5), tensor(8.6)).numpy(), np.kaiser(5, 8.6))
    assert gnp.tril_indices(tensor(3))[0].tolist() == [0, 1, 1, 2, 2, 2]


def test_tensors_in_lists_count_by_their_values(tracked: Tensor) -> None:
    assert gnp.array_equiv([tracked, tracked], tracked)
    places = gnp.ravel_multi_index([tensor([0, 1]), tensor([1, 2])], (2, 3))
    assert isinstance(places, Tensor)
    assert places.tolist() == [1, 5]
    assert gnp.mintypecode([tracked, "f"]) == "d"
    assert gnp.shares_memory(tracked, tracked)


def test_dates_stay_numpys() -> None:
    assert gnp.busday_offset("2024-01-01", tensor([0, 1])).dtype == np.dtype("M8[D]")
    assert isinstance(gnp.busday_offset("2024-01-01", tensor([0, 1])), np.ndarray)
    with pytest.raises(TypeError, match="isnat"):
        gnp.isnat(tensor([1.0]))


def test_functions_that_ask_for_shape_or_dtype_accept_tensors(tracked: Tensor) -> None:
    assert not gnp.isscalar(tracked)
    assert gnp.iterable(tracked)
    assert not gnp.iterable(tracked[0])
    assert gnp.issubdtype(tracked.dtype, gnp.floating)
    assert list(gnp.ndindex(tracked.shape)) == [(0,), (1,), (2,)]


# ---------------------------------------------------------------- creation between tensors


def test_linspace_and_geomspace_reach_their_ends() -> None:
    third = tensor(1 / 3)
    assert gnp.linspace(0.1, third, 7)[-1].item() == 1 / 3
    assert gnp.geomspace(0.1, third, 7)[-1].item() == 1 / 3
    assert gnp.geomspace(-third, -7.0, 7)[0].item() == -1 / 3
    assert gnp.geomspace(tensor(1e-300), 1e300, 3).tolist() == [1e-300, pytest.approx(1), 1e300]


@pytest.mark.parametrize("num", [0, 1])
def test_the_step_of_too_few_samples_is_nan(num: int) -> None:
    values, step = gnp.linspace(tensor([0.0, 2.0]), 1.0, num, retstep=True)
    assert values.shape == (num, 2)
    assert np.isnan(step.numpy()).all()


def test_samples_between_lists_of_tensors() -> None:
    a, b = tensor(1.0), tensor(2.0)
    for f in (gnp.linspace, gnp.logspace, gnp.geomspace):
        assert gradcheck(lambda a, b, f=f: f([a, b], [3.0, b * b], 3), [a, b])


def test_bad_samples_are_refused() -> None:
    for f in (gnp.linspace, gnp.logspace, gnp.geomspace):
        with pytest.raises(ValueError, match="must be non-negative"):
            f(tensor(1.0), 2.0, -1)
        with pytest.raises(TypeError, match="integer"):
            f(tensor(1.0), 2.0, 2.5)
        with pytest.raises(ValueError, match="axis"):
            f(tensor(1.0), 2.0, 3, axis=4)
    with pytest.raises(ValueError, match="cannot include zero"):
        gnp.geomspace(tensor([1.0, 0.0]), 2.0)


@pytest.mark.parametrize("dtype", [None, int, np.float32, complex])
@pytest.mark.parametrize("start", [1, 1.0, np.float32(1), [1.0, 2.0]])
def test_samples_have_numpys_dtype(start: Any, dtype: Any) -> None:
    for name in ("linspace", "logspace", "geomspace"):
        for stop in (np.float32(4), np.array([4, 9])):
            found = getattr(gnp, name)(start, tensor(stop), 3, dtype=dtype)
            expected = getattr(np, name)(start, stop, 3, dtype=dtype)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_fromiter_with_too_few_items_is_refused() -> None:
    with pytest.raises(ValueError, match="iterator too short"):
        gnp.fromiter(iter([tensor(1.0)]), float, count=2)
    assert gnp.fromiter([tensor(1.0)], float, count=0).shape == (0,)
    items = iter([tensor(1.0), tensor(2.0), tensor(3.0)])
    gnp.fromiter(items, float, count=2)
    assert next(items).item() == 3


# ---------------------------------------------------------------- functions of the user


def test_plain_arrays_stay_plain_through_functions_of_the_user() -> None:
    a = np.arange(6.0).reshape(2, 3)
    for f in (
        lambda xp: xp.apply_along_axis(np.sort, 0, a),
        lambda xp: xp.apply_over_axes(np.sum, a, [0, 1]),
        lambda xp: xp.piecewise(a, [a < 2], [np.negative, 7]),
        lambda xp: xp.vectorize(lambda v: v + 1)(a),
        lambda xp: xp.vectorize(str)(a),
        lambda xp: xp.vectorize(np.cumsum, signature="(n)->(n)")(a),
    ):
        found, expected = f(gnp), f(np)
        assert type(found) is np.ndarray
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda w, a: gnp.apply_along_axis(lambda v: gnp.sum(w * v), 1, a), [3, 5, 7]),
        (lambda w, a: gnp.apply_over_axes(lambda v, axis: gnp.sum(v * w, axis), a, 1), [3, 5, 7]),
        (lambda w, a: gnp.piecewise(a, [a > 3], [lambda v: v * w[0], w[1]]), [9, 4, 0]),
        (lambda w, a: gnp.piecewise(a, [a > 3], [lambda v: v * w[0], 0.0]), [9, 0, 0]),
        (lambda w, a: gnp.vectorize(lambda v: v * w[1])(a), [0, 15, 0]),
        (lambda w, a: gnp.vectorize(lambda v: v @ w, signature="(n)->()")(a), [3, 5, 7]),
    ],
)
def test_gradients_reach_what_a_function_closes_over(call: Any, expected: Any) -> None:
    found = gradient(lambda w: call(w, np.arange(6.0).reshape(2, 3)), tensor([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, expected)


def test_a_piece_not_chosen_has_no_part_in_the_gradient() -> None:
    f = lambda x: gnp.piecewise(x, [x > 0], [lambda v: gnp.log(v) + gnp.sqrt(v), 0.0])
    with np.errstate(all="raise"):
        found = gradient(f, tensor([-1.0, 0.0, 4.0]))
    np.testing.assert_allclose(found, [0, 0, 0.5])


def test_the_dtype_of_a_result_never_stops_a_gradient_silently(tracked: Tensor) -> None:
    for call in (
        lambda: gnp.piecewise(np.arange(3), [[True, False, True]], [lambda v: v * tracked[0], 0]),
        lambda: gnp.piecewise(np.arange(3), [[True, False, True]], [tracked[1], 0]),
        lambda: gnp.vectorize(lambda v: v if v > 1 else 0)(tracked),
        lambda: gnp.apply_along_axis(lambda v: v[0] if v[0] > 1 else 0, 0, tracked[None]),
    ):
        with pytest.raises(errors.TrackedConversionError, match="would lose its history"):
            call()


def test_piecewise_refuses_a_wrong_number_of_pieces() -> None:
    x = tensor([1.0, 2.0])
    for conditions in ([x > 1, x < 1, x < 0], x > 0):
        with pytest.raises(ValueError, match="functions are expected"):
            gnp.piecewise(x, conditions, [1.0] if conditions is not None and len(conditions) == 3 else [1.0, 2.0, 3.0])
    with pytest.raises(IndexError):
        gnp.piecewise(x, [[True, False, True]], [1.0])


def test_axes_out_of_range_are_refused() -> None:
    x = tensor(np.ones((2, 3)))
    with pytest.raises(ValueError, match="out of bounds"):
        gnp.apply_along_axis(gnp.sum, 2, x)
    with pytest.raises(ValueError, match="iteration dimensions are 0"):
        gnp.apply_along_axis(gnp.sum, 1, x[:0])
    with pytest.raises(ValueError, match="correct shape"):
        gnp.apply_over_axes(lambda a, axis: gnp.sum(a), x, 0)


# ---------------------------------------------------------------- vectorize


def test_vectorize_decorates() -> None:
    @gnp.vectorize
    def half(v: Any) -> Any:
        """Half of it."""
        return v / 2

    @gnp.vectorize(otypes=[np.float32], excluded={"k"})
    def times(v: Any, *, k: Any) -> Any:
        return v * k[0]

    assert isinstance(half, np.vectorize)
    assert (half.__doc__, half.__name__, times.__name__) == ("Half of it.", "half", "times")
    found = gradient(half, tensor([1.0, 2.0]))
    np.testing.assert_allclose(found, [0.5, 0.5])
    z = times(tensor([1.0, 2.0]), k=[3.0])
    assert (z.dtype, z.tolist()) == (np.float32, [3, 6])


def test_vectorize_calls_once_for_each_element_with_0d_tensors() -> None:
    seen = []

    def f(a: Any, b: Any) -> Any:
        seen.append((a, b))
        return a * b

    gnp.vectorize(f)(tensor([[1.0], [2.0]]), [3, 4])
    assert [(a.shape, a.item(), type(b), b) for a, b in seen] == [
        ((), 1, int, 3),
        ((), 1, int, 4),
        ((), 2, int, 3),
        ((), 2, int, 4),
    ]


def test_vectorize_of_what_is_no_number() -> None:
    names = gnp.vectorize(lambda v: "big" if v > 1 else "no")(tensor([0.0, 2.0]))
    assert type(names) is np.ndarray
    assert names.tolist() == ["no", "big"]
    counts = gnp.vectorize(lambda v: int(v))(tensor([0.0, 2.0]))
    assert isinstance(counts, Tensor)
    assert (counts.dtype, counts.tolist()) == (np.int64, [0, 2])
    with pytest.raises(TypeError, match="a Tensor holds numbers"):
        gnp.vectorize(lambda v: v, otypes=[object])(tensor([1.0]))


def test_vectorize_of_no_elements() -> None:
    nothing = tensor(np.ones((0, 2)))
    with pytest.raises(ValueError, match="unless `otypes` is set"):
        gnp.vectorize(lambda v: v)(nothing)
    z = gnp.vectorize(lambda v: v, otypes="f")(nothing)
    assert (z.shape, z.dtype) == ((0, 2), np.float32)
    one, two = gnp.vectorize(lambda v: v, otypes="fd", signature="(n)->(),(n)")(nothing)
    assert (one.shape, two.shape, two.dtype) == ((0,), (0, 2), np.float64)
    with pytest.raises(ValueError, match="new output dimensions"):
        gnp.vectorize(lambda v: v, otypes="f", signature="(n)->(m)")(nothing)


@pytest.mark.parametrize(
    ("function", "signature", "shapes", "message"),
    [
        (lambda a, b: a, "(n),(n)->()", [(3,), (4,)], "inconsistent size for core dimension 'n'"),
        (lambda a: a, "(n,m)->()", [(3,)], "does not have enough dimensions"),
        (lambda a: (a, a), "(n)->(n)", [(3,)], "wrong number of outputs"),
        (lambda a: a, "(n)->(n),(n)", [(3,)], "wrong number of outputs"),
        (lambda a: a[:2], "(n)->(n)", [(3,)], "inconsistent size"),
        (lambda a: a, None, [(2,), (3,)], "broadcast"),
        (lambda a: a[None], None, [(2,)], "signature="),
    ],
)
def test_vectorize_refuses_arguments_of_the_wrong_shape(
    function: Any, signature: Any, shapes: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gnp.vectorize(function, signature=signature)(*[tensor(np.ones(shape)) for shape in shapes])


def test_vectorize_refuses_a_wrong_number_of_arguments() -> None:
    with pytest.raises(TypeError, match="expected 2, got 1"):
        gnp.vectorize(lambda a, b: a, signature="(n),(n)->()")(tensor([1.0]))
    with pytest.raises(TypeError, match="only accepts keyword arguments"):
        gnp.vectorize(3)


def test_broadcast_has_numpys_attributes() -> None:
    b, expected = gnp.broadcast(tensor(np.ones((2, 1))), [1, 2, 3]), np.broadcast(np.ones((2, 1)), [1, 2, 3])
    for fact in ("shape", "nd", "ndim", "size", "numiter", "index"):
        assert getattr(b, fact) == getattr(expected, fact)
    next(b)
    assert b.index == 1
    b.reset()
    assert len(list(b)) == 6
    assert isinstance(gnp.broadcast([1], [2]), np.broadcast)
    assert [v for _, v in gnp.ndenumerate(np.ones(2))] == [1, 1]


# ---------------------------------------------------------------- polynomials


def test_poly1d_holds_tensors() -> None:
    def f(c: Any, x: Any) -> Any:
        p = gnp.poly1d(c)
        q = (p * p - 2 * p + 1).deriv() + p.integ()
        return q(x) + p.r.sum() + p[1] + gnp.polydiv(p, gnp.poly1d([1.0, 1.0]))[0](x)

    assert gradcheck(f, [tensor([1.0, -3.0, 2.0]), tensor(1.5)])
    p = gnp.poly1d(tensor([1.0, 2.0]))
    with GradManager().attach(p.coeffs), pytest.raises(errors.TrackedConversionError):
        p / p
    for result in (gnp.polyadd(p, [1.0]), gnp.polymul(p, p), gnp.polyder(p), gnp.polyint(p), gnp.polydiv(p, p)[0]):
        assert isinstance(result, np.poly1d)
        assert isinstance(result.coeffs, Tensor)
    assert gnp.polyval(p, np.poly1d([1.0, 1.0])).coeffs.tolist() == [1, 3]


def test_roots_have_their_derivative_with_leading_and_trailing_zeros_too() -> None:
    """A leading or trailing zero is a coefficient like another; NumPy only strips it before it computes."""
    p = np.array([0.0, 1.0, -3.0, 2.0, 0.0])
    found = gradient(lambda p: (gnp.roots(p) * [1.0, 2.0, 3.0]).sum(), tensor(p))
    for j in range(1, 5):
        h = 1e-6 * np.eye(5)[j]
        up, down = ((np.roots(p + s * h) * [1.0, 2.0, 3.0]).sum() for s in (1, -1))
        np.testing.assert_allclose(found[j], (up - down) / 2e-6, rtol=1e-6)
    shrunk = np.roots(p + 1e-7 * np.eye(5)[0])[1:]  # without the root that comes in from infinity
    np.testing.assert_allclose(found[0], ((shrunk - np.roots(p)) * [1.0, 2.0, 3.0]).sum() / 1e-7, rtol=1e-4)


def test_a_multiple_root_has_no_finite_derivative() -> None:
    with np.errstate(all="ignore"):
        found = gradient(lambda p: gnp.roots(p)[0], tensor([1.0, 0.0, 0.0]))
    assert not np.isfinite(found[2])


def test_poly_of_nothing_and_of_a_conjugate_pair() -> None:
    assert gnp.poly(tensor(np.ones(0))) == np.poly(np.ones(0)) == 1.0
    pair = gnp.poly(tensor([1 + 2j, 1 - 2j]))
    assert (pair.dtype, pair.tolist()) == (np.float64, [1, -2, 5])


def test_polynomials_with_wrong_arguments_are_refused() -> None:
    x = tensor([1.0, 2.0, 4.0])
    for call, kind, message in (
        (lambda: gnp.polyder(x, -1), ValueError, "must be positive"),
        (lambda: gnp.polyint(x, -1), ValueError, "must be positive"),
        (lambda: gnp.polyint(x, 3, [1.0, 2.0]), ValueError, "scalar or a rank-1 array"),
        (lambda: gnp.roots(x[None]), ValueError, "rank-1"),
        (lambda: gnp.roots(x.astype(np.float16)), TypeError, "roots: array type float16"),
        (lambda: gnp.poly(x[None]), ValueError, "square 2d"),
        (lambda: gnp.polyfit(x, x, -1), ValueError, "expected deg >= 0"),
        (lambda: gnp.polyfit(x[None], x, 1), TypeError, "1D vector for x"),
        (lambda: gnp.polyfit(x[:0], x, 1), TypeError, "non-empty"),
        (lambda: gnp.polyfit(x, x[0], 1), TypeError, "1D or 2D array for y"),
        (lambda: gnp.polyfit(x, x[:2], 1), TypeError, "same length"),
        (lambda: gnp.polyfit(x, x, 1, w=x[None]), TypeError, "1-d array for weights"),
        (lambda: gnp.polyfit(x, x, 1, w=x[:2]), TypeError, "w and y"),
        (lambda: gnp.polyfit(x, x, 2, cov=True), ValueError, "must exceed order"),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_a_poor_fit_warns() -> None:
    x = np.array([1.0, 1.0, 1.0])
    with pytest.warns(np.exceptions.RankWarning, match="poorly conditioned"):
        found = gnp.polyfit(tensor(x), tensor([1.0, 2.0, 3.0]), 1)
    with pytest.warns(np.exceptions.RankWarning):
        np.testing.assert_allclose(found.numpy(), np.polyfit(x, [1.0, 2.0, 3.0], 1))


def test_a_full_fit_has_rank_and_rcond() -> None:
    x, y = np.arange(4.0), np.array([1.0, 3.0, 2.0, 5.0])
    found, expected = gnp.polyfit(tensor(x), y, 1, full=True), np.polyfit(x, y, 1, full=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy() if isinstance(a, Tensor) else a, b, rtol=1e-12)
