"""Sorting, choosing and editing: what is not the value or derivative of a sample: errors, edges, tracked writes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import value_and_gradients, wave

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, no_grad, tensor

X = np.arange(6.0).reshape(2, 3)
NUMPY_2_2 = np.lib.NumpyVersion(np.__version__) >= "2.2.0"


def recorded(manager: GradManager) -> int:
    return len(manager._tape.entries)


# ---------------------------------------------------------------- what NumPy refuses, we refuse in the same way

REFUSED = [
    lambda xp, x: xp.sort(x, axis=2),
    lambda xp, x: xp.sort(x, kind="fast"),
    lambda xp, x: xp.sort(x, kind=3),
    lambda xp, x: xp.sort(x, order="field"),
    lambda xp, x: xp.sort(x, kind="stable", stable=True),
    lambda xp, x: xp.sort(x[0, 0]),
    lambda xp, x: xp.partition(x, 3),
    lambda xp, x: xp.partition(x, -4),
    lambda xp, x: xp.partition(x, 1.5),
    lambda xp, x: xp.partition(x, [[1]]),
    lambda xp, x: xp.partition(x, 1, kind="quick"),
    lambda xp, x: xp.partition(x, 1, axis=5),
    lambda xp, x: xp.partition(x, 1, order="field"),
    lambda xp, x: xp.argpartition(x, 7, axis=None),
    lambda xp, x: xp.argpartition(x, 1, axis=-3),
    lambda xp, x: xp.unique(x, axis=2),
    lambda xp, x: xp.choose([0, 5, 0], [x, x]),
    lambda xp, x: xp.choose([-1, 0, 0], [x, x]),
    lambda xp, x: xp.choose([0.5, 0, 0], [x, x]),
    lambda xp, x: xp.choose(0, [x], mode="fold"),
    lambda xp, x: xp.choose(np.zeros(5, int), [x, x]),
    lambda xp, x: xp.choose(0, x[:0]),
    lambda xp, x: xp.select([x > 0], [x, x]),
    lambda xp, x: xp.select([], [], x),
    lambda xp, x: xp.select([x], [x]),
    lambda xp, x: xp.select([x > 0], [x[0, :2]]),
    lambda xp, x: xp.compress([[True]], x),
    lambda xp, x: xp.compress([True, False, True], x, axis=0),
    lambda xp, x: xp.compress([True], x, axis=2),
    lambda xp, x: xp.extract([True] * 7, x),
    lambda xp, x: xp.put(x, 6, 1.0),
    lambda xp, x: xp.put(x, -7, x[0]),
    lambda xp, x: xp.put(x, 0, 1.0, mode="fold"),
    lambda xp, x: xp.put(x[:0].copy(), 0, 1.0),
    lambda xp, x: xp.put_along_axis(x, np.array([1]), 1.0, 1),
    lambda xp, x: xp.put_along_axis(x, np.array([[1.0]]), 1.0, 1),
    lambda xp, x: xp.put_along_axis(x, np.array([[1]]), 1.0, 2),
    lambda xp, x: xp.put_along_axis(x, np.array([[3]]), 1.0, 1),
    lambda xp, x: xp.put_along_axis(x, np.array([6]), 1.0, None),
    lambda xp, x: xp.put_along_axis(x, np.array([[1]]), np.ones((2, 2)), 1),
    lambda xp, x: xp.place(x, [True], [1.0]),
    lambda xp, x: xp.place(x, x > 1, []),
    lambda xp, x: xp.putmask(x, [True], [1.0]),
    lambda xp, x: xp.putmask(x, x > 1, np.ones(3, complex)),
    lambda xp, x: xp.place(x, x > 1, np.ones(3, complex)),
    lambda xp, x: xp.copyto(x, np.ones(2)),
    lambda xp, x: xp.copyto(x, 1j),
    lambda xp, x: xp.copyto(x, np.ones(3, complex)),
    lambda xp, x: xp.copyto(x, np.ones(3, int), casting="no"),
    lambda xp, x: xp.copyto(x, x, casting="loose"),
    lambda xp, x: xp.copyto(x, X * 2, where=[True, False]),
    lambda xp, x: xp.fill_diagonal(x[0], 1.0),
    lambda xp, x: xp.fill_diagonal(x[None], 1.0),
    lambda xp, x: xp.insert(x, 4, 1.0, axis=1),
    lambda xp, x: xp.insert(x, [0, 4], 1.0, axis=1),
    lambda xp, x: xp.insert(x, [[0, 1]], 1.0, axis=1),
    lambda xp, x: xp.insert(x, [0, 1], [1.0, 2.0, 3.0], axis=1),
    lambda xp, x: xp.insert(x, 0, 1.0, axis=2),
    lambda xp, x: xp.insert(x, 1.5, 1.0, axis=1),
    lambda xp, x: xp.delete(x, 3, axis=1),
    lambda xp, x: xp.delete(x, [True], axis=1),
    lambda xp, x: xp.delete(x, 1.5, axis=1),
    lambda xp, x: xp.delete(x, 0, axis=2),
    lambda xp, x: xp.append(x, x[0], axis=0),
    lambda xp, x: xp.append(x, x, axis=2),
    lambda xp, x: xp.resize(x, (2, -1)),
    lambda xp, x: xp.pad(x, 1, "mirror"),
    lambda xp, x: xp.pad(x, 1.5),
    lambda xp, x: xp.pad(x, -1),
    lambda xp, x: xp.pad(x, ((1, 2), (3, 4), (5, 6))),
    lambda xp, x: xp.pad(x, 1, "edge", stat_length=1),
    lambda xp, x: xp.pad(x, 1, "maximum", stat_length=0),
    lambda xp, x: xp.pad(x, 1, "mean", stat_length=-1),
    lambda xp, x: xp.pad(x[:0], 1, "reflect"),
    lambda xp, x: xp.pad(x, 1, constant_values=[1.0, 2.0, 3.0]),
    lambda xp, x: xp.block([]),
    lambda xp, x: xp.block([[x], x]),
    lambda xp, x: xp.block([(x, x)]),
    lambda xp, x: xp.block([[x, x], [x]]),
    lambda xp, x: xp.meshgrid(x, indexing="yx"),
    lambda xp, x: xp.ix_(x),
    lambda xp, x: xp.cross(x, x[:, :1]),
    lambda xp, x: xp.cross(x, x[0, 0]),
    lambda xp, x: xp.cross(x, x, axisa=2),
    lambda xp, x: xp.cross(x, x, axisb=2),
    lambda xp, x: xp.cross(x, x, axisc=2),
    lambda xp, x: xp.cross(x, gnp.ones((4, 3)) if xp is gnp else np.ones((4, 3))),
    lambda xp, x: xp.vander(x),
    lambda xp, x: xp.vander(x[0], -1),
    lambda xp, x: xp.require(x, requirements="CF"),
    lambda xp, x: xp.require(x, requirements="X"),
    lambda xp, x: xp.asarray_chkfinite(x / 0.0),
    lambda xp, x: xp.asanyarray(x, order="Q"),
    lambda xp, x: xp.r_[x, "0"],
    lambda xp, x: xp.r_["elsewhere", x],
]
if NUMPY_2_2:  # earlier ones let it pass
    REFUSED.append(lambda xp, x: xp.trim_zeros(x[0], "middle"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_numpy_refuses_raises_the_same_and_changes_nothing(number: int) -> None:
    call = REFUSED[number]
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # which one is what the test is about
        call(np, X.copy())
    x = tensor(X)
    with GradManager().attach(x) as manager:
        with pytest.raises(type(theirs.value)):
            call(gnp, x)
        np.testing.assert_array_equal(x.numpy(), X)
        manager.backward(x.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((2, 3)))


def test_errors_name_our_function() -> None:
    x = tensor(X)
    for name, call in {
        "sort": lambda: gnp.sort(x, kind="fast"),
        "partition": lambda: gnp.partition(x, 9),
        "insert": lambda: gnp.insert(x, 9, 0.0, axis=1),
        "delete": lambda: gnp.delete(x, 9, axis=1),
        "pad": lambda: gnp.pad(x, -1),
        "put": lambda: gnp.put(x, 9, 1.0),
        "block": lambda: gnp.block([[x], [x[0, :2]]]),
        "unique": lambda: gnp.unique(x, axis=4),
    }.items():
        with pytest.raises((ValueError, IndexError), match=rf"^{name}\b"):
            call()


# ---------------------------------------------------------------- writes in place

WRITES = {
    "put": lambda a, v: np.put(a, [0, 1], v),
    "put_along_axis": lambda a, v: np.put_along_axis(a, np.array([[0], [1]]), v, 1),
    "place": lambda a, v: np.place(a, a > -1, v),
    "putmask": lambda a, v: np.putmask(a, a > -1, v),
    "copyto": lambda a, v: np.copyto(a, v),
    "fill_diagonal": lambda a, v: gnp.fill_diagonal(a, v),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_tracked_tensor_is_never_written_into_a_plain_array(name: str) -> None:
    a, v = np.zeros((2, 3)), tensor([5.0])
    with GradManager().attach(v):
        for value in (v, v * 2.0):
            with pytest.raises(errors.TrackedConversionError, match=rf"{name} .* which a manager tracks"):
                WRITES[name](a, value)
    assert not a.any()
    WRITES[name](a, v)  # it is not tracked now
    assert a.any()
    assert isinstance(a, np.ndarray)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_recorded_and_rebinds_only_what_is_written_to(name: str) -> None:
    x, v = tensor(np.zeros((2, 3))), tensor([5.0])
    with GradManager().attach([x, v]) as manager:
        y = x * 1.0
        before = y.detach()
        WRITES[name](y, v)
        assert not before.numpy().any()
        manager.backward(y.sum())
    written = int((y.numpy() == 5.0).sum())
    assert written
    assert v.grad.tolist() == [written]
    assert x.grad.numpy().sum() == 6 - written
    with GradManager().attach([x, v]) as manager:
        y = x * 1.0
        with no_grad():
            WRITES[name](y, v)
        with pytest.raises(errors.NotRecordedError):
            manager.backward(y.sum())


def test_writes_cast_to_the_dtype_of_what_is_written_to() -> None:
    for name in ("put", "put_along_axis", "place", "putmask", "fill_diagonal"):
        whole, a = tensor(np.zeros((2, 3), int)), np.zeros((2, 3), int)
        WRITES[name](whole, 1.7)
        WRITES[name](a, 1.7)
        assert a.any()
        assert whole.dtype == a.dtype
        np.testing.assert_array_equal(whole.numpy(), a)


def test_the_last_write_gets_the_gradient() -> None:
    for write in (
        lambda y, v: gnp.put(y, [1, 1, 1], v),
        lambda y, v: gnp.put_along_axis(y, np.array([1, 1, 1]), v, 0),
        lambda y, v: gnp.put_along_axis(y, np.array([1, -2, 1]), v, None),
        lambda y, v: gnp.put(y, [4, -2, 7], v, mode="wrap"),
    ):
        x, v = tensor(np.zeros(3)), tensor([2.0, 3.0, 4.0])
        with GradManager().attach([x, v]) as manager:
            y = x * 1.0
            write(y, v)
            manager.backward(y.sum())
        assert y.tolist() == [0.0, 4.0, 0.0]
        assert v.grad.tolist() == [0.0, 0.0, 1.0]
        assert x.grad.tolist() == [1.0, 0.0, 1.0]


def test_writes_of_nothing_change_nothing() -> None:
    x = tensor(X)
    gnp.put(x, [], 1.0)
    gnp.put(x, [0], [])
    gnp.place(x, x > 99, [])
    gnp.putmask(x, x > 1, [])
    gnp.fill_diagonal(x, [])
    np.testing.assert_array_equal(x.numpy(), X)
    empty = tensor(np.zeros((0, 3)))
    gnp.fill_diagonal(empty, 1.0)
    assert empty.shape == (0, 3)


def test_only_arrays_and_tensors_are_written_to() -> None:
    for write in WRITES.values():
        with pytest.raises((TypeError, AttributeError)):
            write([1.0, 2.0], tensor([1.0]))


# ---------------------------------------------------------------- order


def test_sorting_goes_through_the_stable_order() -> None:
    x = tensor([2.0, 1.0, 2.0, 1.0])
    for kind in (None, "quicksort", "heapsort", "stable"):
        with GradManager().attach(x) as manager:
            manager.backward(gnp.sort(x, kind=kind), np.array([1.0, 2.0, 3.0, 4.0]))
        assert x.grad.tolist() == [3.0, 1.0, 4.0, 2.0]
        x.grad = None


def test_nan_sorts_last_and_gets_its_gradient() -> None:
    x = tensor([np.nan, 1.0, 0.0])
    with GradManager().attach(x) as manager:
        manager.backward(gnp.sort(x), np.array([1.0, 2.0, 3.0]))
    assert x.grad.tolist() == [3.0, 2.0, 1.0]


def test_recording_changes_no_value_of_a_partition() -> None:
    values = np.random.default_rng(0).normal(size=(3, 500))
    x = tensor(values)
    free = gnp.partition(x, [100, 250])
    with GradManager().attach(x):
        np.testing.assert_array_equal(gnp.partition(x, [100, 250]).numpy(), free.numpy())
    np.testing.assert_array_equal(np.sort(free.numpy()[:, :100]), np.sort(values)[:, :100])
    np.testing.assert_array_equal(free.numpy()[:, [100, 250]], np.sort(values)[:, [100, 250]])
    np.testing.assert_array_equal(np.take_along_axis(values, gnp.argpartition(x, [100, 250]).numpy(), -1), free.numpy())


def test_sets_give_the_gradient_to_the_first_occurrence() -> None:
    x = tensor([3.0, 1.0, 3.0, 1.0])
    y = tensor([1.0, 7.0])
    for call, of_x, of_y in (
        (lambda: gnp.unique(x), [1, 1, 0, 0], None),
        (lambda: gnp.union1d(x, y), [1, 1, 0, 0], [0, 1]),
        (lambda: gnp.intersect1d(x, y), [0, 1, 0, 0], None),
        (lambda: gnp.setdiff1d(x, y), [1, 0, 0, 0], None),
        (lambda: gnp.setxor1d(x, y), [1, 0, 0, 0], [0, 1]),
    ):
        x.grad = y.grad = None
        with GradManager().attach([x, y]) as manager:
            manager.backward(call().sum())
        assert x.grad.tolist() == of_x
        assert (y.grad is None or not y.grad.numpy().any()) if of_y is None else y.grad.tolist() == of_y


def test_unique_results_have_numpys_names() -> None:
    for name in ("unique_all", "unique_counts", "unique_inverse"):
        found, expected = getattr(gnp, name)(tensor([2.0, 1.0, 2.0])), getattr(np, name)(np.array([2.0, 1.0, 2.0]))
        assert found._fields == expected._fields
        for a, b in zip(found, expected, strict=True):
            assert isinstance(a, Tensor)
            np.testing.assert_array_equal(a.numpy(), b)


def test_integers_sort_choose_and_pad_as_constants() -> None:
    i = tensor([3, 1, 2])
    assert gnp.sort(i).tolist() == [1, 2, 3]
    assert gnp.unique(i).dtype == np.int64
    assert gnp.partition(i, 1).tolist()[1] == 2
    assert gnp.choose([0, 1, 0], [i, i * 2]).tolist() == [3, 2, 2]
    assert gnp.pad(i, 1, constant_values=7.9).tolist() == [7, 3, 1, 2, 7]
    assert gnp.pad(i, 1, "mean").tolist() == [2, 3, 1, 2, 2]
    assert gnp.insert(i, 1, 5.9).tolist() == [3, 5, 1, 2]


@pytest.mark.parametrize("value", [2, 2.5])
def test_nothing_is_padded_where_there_are_no_axes(value: float) -> None:
    assert gnp.pad(tensor(value), 1).tolist() == np.pad(value, 1).tolist() == value
    for pad_width in ([], ()):
        with pytest.raises(TypeError, match="`pad_width` must be of integral type"):
            gnp.pad(tensor(value), pad_width)


def test_numbers_promote_weakly_in_choose_and_select() -> None:
    x = tensor(np.float32([1, 2]))
    assert gnp.choose([0, 1], [x, 2.5]).dtype == np.float32
    assert gnp.select([x > 1], [x], 2.5).dtype == np.float32
    assert gnp.select([x > 1], [x], np.float64(2.5)).dtype == np.float64
    assert gnp.choose([0, 1], [x, np.array([2, 3])]).dtype == np.float64


def test_choose_and_select_accept_more_choices_than_numpy() -> None:
    x = tensor(np.arange(100.0))
    many = [x * k for k in range(100)]
    with GradManager().attach(x):
        assert gnp.choose(np.arange(100), many).tolist() == [k * k for k in range(100)]
    assert gnp.select([np.arange(100) == k for k in range(100)], many).tolist() == [k * k for k in range(100)]


# ---------------------------------------------------------------- pad


def _widths() -> list[tuple[int, int]]:
    return list(itertools.product([0, 1, 3, 5, 9, 14], repeat=2))


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect", "symmetric", "linear_ramp", "mean", "median", "maximum"])
def test_paddings_wider_than_the_array_are_numpys(mode: str, length: int) -> None:
    values = np.random.default_rng(length).normal(size=(length, 2))
    types = ({"reflect_type": "odd"}, {"reflect_type": "even"}) if mode in ("reflect", "symmetric") else ({},)
    for width, options in itertools.product(_widths(), types):
        expected = np.pad(values, (width, (0, 1)), mode, **options)
        found = gnp.pad(tensor(values), (width, (0, 1)), mode, **options)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11, atol=1e-11)


def test_a_padding_function_may_compute_with_tensors() -> None:
    def with_factor(vector: Any, widths: Any, axis: int, options: Any) -> None:
        seen.append((tuple(widths), axis, options))
        vector[: widths[0]] = vector[widths[0]] * options["factor"]

    seen: list[Any] = []
    x, factor = tensor([1.0, 2.0]), tensor(3.0)
    with GradManager().attach([x, factor]) as manager:
        y = gnp.pad(x, (2, 0), with_factor, factor=factor)
        manager.backward(y.sum())
    assert y.tolist() == [3.0, 3.0, 1.0, 2.0]
    assert seen == [((2, 0), 0, {"factor": factor})]
    assert (x.grad.tolist(), factor.grad.item()) == ([7.0, 1.0], 2.0)


def test_a_dict_names_the_axes_to_pad() -> None:
    x = tensor(X)
    assert gnp.pad(x, {0: 1, -1: (0, 2)}).shape == (4, 5)
    with pytest.raises(IndexError):
        gnp.pad(x, {3: 1})


# ---------------------------------------------------------------- grids, layouts, r_ and c_


def test_layouts_are_honoured_and_needless_copies_avoided() -> None:
    x = tensor(X)
    assert gnp.ascontiguousarray(x) is x
    assert gnp.asfortranarray(x).numpy().flags.f_contiguous
    assert gnp.ascontiguousarray(x.T).numpy().flags.c_contiguous
    assert gnp.asanyarray(x.T, order="C").numpy().flags.c_contiguous
    assert gnp.asanyarray(x.T, order="K").numpy().flags.f_contiguous
    assert gnp.require(x, requirements="F").numpy().flags.f_contiguous
    assert gnp.require(x[:1], requirements=["O"])._array.flags.owndata
    assert isinstance(gnp.require(X), Tensor)
    assert isinstance(gnp.ascontiguousarray([1, 2]), Tensor)
    assert gnp.ascontiguousarray(2.0).shape == (1,)
    with pytest.raises(ValueError, match="copy=False"):
        gnp.asanyarray(x, order="F", copy=False)
    with pytest.raises(TypeError, match="like"):
        gnp.ascontiguousarray(x, like="this")


def test_plain_joins_are_numpys() -> None:
    assert isinstance(gnp.r_[X, X], np.ndarray)
    np.testing.assert_array_equal(gnp.r_["1", X, X], np.r_["1", X, X])
    np.testing.assert_array_equal(gnp.c_[1:3, 4:6], np.c_[1:3, 4:6])
    with pytest.raises(ValueError, match=r"numpy\.matrix"):
        gnp.r_["r", tensor(X)]


def test_grids_of_numbers_and_tensors_are_all_tensors() -> None:
    grids = gnp.meshgrid(tensor([1.0, 2.0]), [3.0], 4)
    assert all(isinstance(g, Tensor) for g in grids)
    assert [g.shape for g in grids] == [(1, 2, 1)] * 3
    for name in ("mgrid", "ogrid", "s_", "index_exp"):
        assert getattr(gnp, name) is getattr(np, name)
    assert gnp.s_[1:, ...] == np.s_[1:, ...]


def test_tri_lives_where_like_does() -> None:
    assert gnp.tri(2, like=X).tolist() == [[1.0, 0.0], [1.0, 1.0]]
    with pytest.raises(TypeError, match="like"):
        gnp.tri(2, like="this")


@pytest.mark.skipif(NUMPY_2_2, reason="a mask is a mask since NumPy 2.2")
def test_insert_reads_a_mask_as_this_numpy_does() -> None:
    with pytest.warns(FutureWarning):
        gnp.insert(tensor(X), np.array([True, False]), 0.0, axis=0)


def test_row_stack_warns_as_numpy() -> None:
    with pytest.warns(DeprecationWarning, match="row_stack"):
        assert gnp.row_stack([tensor([1.0]), [2.0]]).tolist() == [[1.0], [2.0]]


def test_cross_of_plane_vectors_is_numpys() -> None:
    a, b = np.array([[1.0, 2.0], [0.5, 1.0]]), np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]])
    for one, other in ((a, b), (b, a), (a, a[::-1].copy())):
        x = tensor(one)
        if np.lib.NumpyVersion(np.__version__) >= "2.5.0":
            with pytest.raises(ValueError, match=r"cross: .*3-dimensional"):
                gnp.cross(x, other)
            continue
        with pytest.warns(DeprecationWarning, match="2-dimensional"):
            expected = np.cross(one, other)
        with GradManager().attach(x) as manager:
            with pytest.warns(DeprecationWarning, match="2-dimensional"):
                found = gnp.cross(x, other)
            manager.backward(found.sum())
        np.testing.assert_allclose(found.numpy(), expected)
        grown = one.copy()
        grown[0, 1] += 1.0  # linear in each vector
        with pytest.warns(DeprecationWarning, match="2-dimensional"):
            np.testing.assert_allclose(x.grad.numpy()[0, 1], np.cross(grown, other).sum() - expected.sum())


# ---------------------------------------------------------------- one entry each


@pytest.mark.parametrize(
    ("call", "entries"),
    [
        (lambda x: gnp.sort(x), 1),
        (lambda x: gnp.partition(x, 1), 1),
        (lambda x: gnp.choose([0, 1, 2], [x, x, x]), 1),
        (lambda x: gnp.select([x > 4, x > 3], [x, x], x), 1),
        (lambda x: gnp.pad(x, 1), 1),
        (lambda x: gnp.delete(x, [0, 2], axis=1), 1),
        (lambda x: gnp.insert(x, [0, 2], 1.0, axis=1), 2),
        (lambda x: gnp.cross(x, X), 1),
    ],
)
def test_few_entries_are_recorded(call: Any, entries: int) -> None:
    x = tensor(X)
    with GradManager().attach(x) as manager:
        held = call(x)
        assert recorded(manager) == entries
        del held


# ---------------------------------------------------------------- large arrays, empty ones, elements in C order


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("place", [0, 7, -1, -39])
def test_one_position_of_a_large_array_is_deleted_as_numpy_does(place: int, axis: int | None) -> None:
    """By slices, not by a mask."""
    x, weights = wave(40, 40), wave(40, 40, at=0.5)
    kept = np.ones_like(x)
    (kept if axis == 0 else kept.T if axis is not None else kept.reshape(-1))[place] = 0
    value, (found,) = value_and_gradients(lambda t: gnp.delete(t, place, axis), x, dy=np.delete(weights, place, axis))
    np.testing.assert_array_equal(value, np.delete(x, place, axis))
    np.testing.assert_array_equal(found, weights * kept)


def test_nothing_is_resized_to_zeros() -> None:
    found = gnp.resize(tensor(X[:0]), (2, 2))
    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found, np.resize(X[:0], (2, 2)))


def test_flat_counts_gives_and_takes_elements_as_numpys() -> None:
    t, a = tensor(X), X.copy()
    assert len(t.flat) == 6
    assert [element.item() for element in t.flat] == X.ravel().tolist()
    t.flat, a.flat = [1.0, 2.0], [1.0, 2.0]
    np.testing.assert_array_equal(t, a)
    with pytest.raises(ValueError, match=r"fill takes one number; found shape \(2,\)"):
        t.fill([1.0, 2.0])
    np.testing.assert_array_equal(t, a)


def test_copies_of_subclasses_and_in_an_order_that_is_none() -> None:
    assert type(gnp.copy(np.ma.array([1.0]), subok=True)) is np.ma.MaskedArray
    with pytest.raises(TypeError, match="order must be str, not int"):
        gnp.copy(tensor(X), order=3)


@pytest.mark.parametrize("ragged", [lambda t: [t[0], t[0, :2]], lambda t: [[t[0, 0]], []]])
def test_nested_lists_of_tensors_are_of_one_shape(ragged: Any) -> None:
    with pytest.raises(ValueError, match="nested lists must be of one shape"):
        gnp.array(ragged(tensor(X)))


def test_reductions_name_themselves_in_errors() -> None:
    with pytest.raises(TypeError, match=r"sum: axis must be None, an integer or a tuple of integers"):
        gnp.sum(tensor(X), axis=1.5)
    with pytest.raises(ValueError, match=r"max: zero-size array"):
        gnp.max(tensor(np.zeros(0, int)))
