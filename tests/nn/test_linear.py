"""linear, embedding and one_hot: what they keep, what they refuse, halves."""

import numpy as np
import pytest
from helpers import gradients

from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr._transforms.vmap import vmap
from gradmgr.nn.functional import embedding, linear, one_hot

# ---------------------------------------------------------------- linear


def test_linear_by_hand():
    x, w, b = (
        np.array([[1.0, 2.0], [0.0, -1.0]]),
        np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 1.0]]),
        np.array([0.5, 0, -1]),
    )
    assert linear(x, w, b).tolist() == [[11.5, 2.0, 2.0], [-3.5, -1.0, -2.0]]
    dx, dw, db = gradients(linear, x, w, b, dy=np.array([[1.0, 0, 2], [0, 1, 0]]))
    assert dx.tolist() == [[5.0, 6.0], [0.0, 1.0]]
    assert dw.tolist() == [[1.0, 2.0], [0.0, -1.0], [2.0, 4.0]]
    assert db.tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("attached", "kept"),
    [("x", ["w"]), ("w", ["x"]), ("b", []), ("xb", ["w"]), ("wb", ["x"]), ("xwb", ["x", "w"])],
)
def test_linear_keeps_what_the_tracked_inputs_need(attached, kept):
    given = {"x": tensor(np.ones((2, 5, 30))), "w": tensor(np.ones((7, 30))), "b": tensor(np.ones(7))}
    with GradManager().attach([given[name] for name in attached]) as gm:
        y = linear(*given.values())
        assert gm._tape.nbytes() == sum(given[name].nbytes for name in kept)
    assert y.shape == (2, 5, 7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_linear_sums_halves_in_singles(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")  # bfloat16 is its dtype; the test extra holds it
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    large = float(ml_dtypes.finfo(dtype).max) * 0.75
    x, w = np.array([[large, large, -large]], dtype), np.ones((1, 3), dtype)
    assert linear(x, w).dtype == dtype
    np.testing.assert_array_equal(linear(x, w), x[:, :1])
    dx, dw, db = gradients(linear, w, x, np.zeros(1, dtype))
    assert (dx.dtype, dw.dtype, db.dtype) == (dtype,) * 3
    many, one = np.ones((5000, 1), dtype), np.ones((1, 1), dtype)
    _, dw, db = gradients(linear, many, one, np.zeros(1, dtype))
    np.testing.assert_allclose([float(dw[0, 0]), float(db[0])], 5000, rtol=0.01)


def test_linear_of_two_dtypes_gives_the_wider():
    x, w, b = np.ones((2, 3), np.float32), np.ones((4, 3)), np.ones(4, np.float16)
    assert linear(x, w, b).dtype == np.float64
    assert [g.dtype for g in gradients(linear, x, w, b)] == [np.float32, np.float64, np.float16]


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (4, 5), None),
        ((2, 3), (4, 3), (3,)),
        ((2, 3), (4, 3), (1,)),
        ((2, 3), (4, 3), ()),
        ((2, 3), (4, 3), (2, 4)),
        ((), (4, 3), None),
        ((2, 3), (2, 4, 3), None),
        ((2, 3), (), None),
        ((2, 3), (3,), (3,)),
        ((2, 4), (3,), None),
    ],
)
def test_linear_refuses_shapes(shapes):
    given = [None if shape is None else tensor(np.ones(shape)) for shape in shapes]
    with GradManager().attach(given[0]) as gm:
        with pytest.raises(errors.ShapeError, match=r"linear takes input \(\.\.\., in_features\)"):
            linear(*given)
        assert len(gm._tape.entries) <= 1  # a weight without rows may have been given one
    with pytest.raises(errors.ShapeError, match="linear takes input"):
        linear(*[None if t is None else t.numpy() for t in given])


def test_linear_refuses_integers():
    with pytest.raises(
        errors.DtypeError, match="linear takes floating-point or complex numbers; found weight of dtype int"
    ):
        linear(np.ones((2, 3)), np.ones((4, 3), int))


# ---------------------------------------------------------------- embedding

TABLE = np.arange(12.0).reshape(4, 3)


def test_gradient_of_embedding_in_tables_without_columns_and_of_foreign_byte_order():
    places = np.array([1, 2, 1])
    (found,) = gradients(lambda w: embedding(places, w), np.ones((4, 0)))
    assert found.shape == (4, 0)
    (found,) = gradients(lambda w: embedding(places, w), np.ones((4, 40), ">f4"))
    np.testing.assert_array_equal(found, np.broadcast_to([[0], [2], [1], [0]], (4, 40)))


@pytest.mark.parametrize("columns", [1, 3, 31, 32, 100])
def test_gradient_of_embedding_is_the_sum_by_row(columns):
    random = np.random.default_rng(0)
    places, dy = random.integers(0, 50, (7, 40)), random.standard_normal((7, 40, columns))
    expected = np.zeros((50, columns))
    np.add.at(expected, places, dy)
    (found,) = gradients(lambda w: embedding(places, w), np.zeros((50, columns)), dy=dy)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    (again,) = gradients(lambda w: embedding(places, w), np.zeros((50, columns)), dy=dy)
    np.testing.assert_array_equal(found, again)
    # What is not finite stays in its rows.
    part = (abs(dy) * np.where(np.arange(7) == 2, np.inf, 1)[:, None, None]).astype(np.float32)
    (found,) = gradients(lambda w: embedding(places, w), np.zeros((50, columns), np.float32), dy=part)
    assert not np.isfinite(found[np.unique(places[2])]).any()
    assert np.isfinite(found[np.setdiff1d(np.arange(50), places[2])]).all()


@pytest.mark.parametrize("rows", [1, 7, 300, 1 << 15, (1 << 15) + 1])
@pytest.mark.parametrize("skew", [0.2, 1, 6])
def test_gradient_of_embedding_where_rows_are_read_often(rows, skew):
    random = np.random.default_rng(0)
    places = np.append(rows * random.random(999) ** skew, rows - 1).astype(int)
    dy = random.standard_normal((1000, 33))
    expected = np.zeros((rows, 33))
    np.add.at(expected, places, dy)
    (found,) = gradients(lambda w: embedding(places, w), np.zeros((rows, 33)), dy=dy)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", [1, -3])
@pytest.mark.parametrize("columns", [3, 40])
def test_padding_row_gets_no_gradient(padding, columns):
    places, dy = np.array([1, 2, 1, 2]), np.ones((4, columns))
    dy[0] = np.nan
    (found,) = gradients(lambda w: embedding(places, w, padding_idx=padding), np.ones((4, columns)), dy=dy)
    assert found[:, 0].tolist() == [0.0, 0.0, 2.0, 0.0]


def test_gradient_by_frequency():
    (found,) = gradients(
        lambda w: embedding(np.array([1, 2, 1]), w, scale_grad_by_freq=True), TABLE, dy=np.full((3, 3), 2.0)
    )
    assert found[:, 0].tolist() == [0.0, 2.0, 2.0, 0.0]


@pytest.mark.parametrize("columns", [1, 40])
def test_embedding_sums_halves_in_singles(columns):
    (found,) = gradients(lambda w: embedding(np.zeros(3000, int), w), np.ones((2, columns), np.float16))
    assert found.dtype == np.float16
    assert found[:, 0].tolist() == [3000.0, 0.0]


def test_indices_may_be_written_to_afterwards():
    places, weight = np.array([0, 1]), tensor(TABLE)
    with GradManager().attach(weight) as gm:
        y = embedding(places, weight)
        places[:] = 3
        gm.backward(y, np.ones((2, 3)))
    assert weight.grad[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, np.int64])
def test_indices_of_every_integer_dtype(dtype):
    assert embedding(np.array([3, 0], dtype), TABLE).tolist() == TABLE[[3, 0]].tolist()
    assert one_hot(np.array([3, 0], dtype), 4).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    (found,) = gradients(lambda w: embedding(np.array([3, 0], dtype), w), TABLE)
    assert found[:, 0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.bool_])
def test_indices_of_another_dtype_are_refused(dtype):
    for call in (lambda i: embedding(i, TABLE), lambda i: one_hot(i, 4)):
        with pytest.raises(errors.DtypeError, match=r"takes indices of an integer dtype; found (float64|bool)"):
            call(np.zeros(2, dtype))


def test_indices_that_name_no_row():
    text = r"index 4 at position \(1, 0\) is not an index of a table of 4 rows; it must be at least 0 and less than 4"
    with pytest.raises(errors.LabelError, match=text):
        embedding([[0, 3], [4, -1]], TABLE)
    with pytest.raises(IndexError, match=r"index -1 at position \(2,\)"):
        embedding(tensor([0, 3, -1]), TABLE)
    with pytest.raises(errors.LabelError, match=r"one_hot: index 3 at position \(\) is not an index of 3 classes"):
        one_hot(3, 3)
    with pytest.raises(errors.LabelError, match=r"-2 at position \(1,\) is not an index of classes; it must be not"):
        one_hot([0, -2])
    with pytest.raises(errors.LabelError, match=r"index 7 at position \(1, 2\)"):
        vmap(lambda i: embedding(i, tensor(TABLE)))(np.array([[0, 1, 2], [3, 0, 7]]))
    with pytest.raises(errors.LabelError, match="padding_idx 4 is not a row of a table of 4"):
        embedding([0], TABLE, padding_idx=4)


def test_what_embedding_does_not_do():
    with pytest.raises(errors.UnsupportedFunctionError, match="max_norm would write to the table"):
        embedding([0], TABLE, max_norm=1.0)
    with pytest.raises(errors.ShapeError, match=r"takes weight \(rows, columns\); found shape \(4,\)"):
        embedding([0], TABLE[:, 0])
    with pytest.raises(errors.DtypeError, match="found weight of dtype int64"):
        embedding([0], TABLE.astype(int))
    with pytest.raises(TypeError, match=r"padding_idx must be an integer; found 1\.5"):
        embedding([0], TABLE, padding_idx=1.5)


def test_a_tensor_anywhere_gives_a_tensor():
    assert isinstance(embedding(tensor([0]), TABLE), Tensor)
    assert isinstance(embedding([0], tensor(TABLE)), Tensor)
    assert isinstance(embedding([0], TABLE), np.ndarray)
    assert isinstance(one_hot(tensor([0])), Tensor)
    assert isinstance(one_hot([0]), np.ndarray)


# ---------------------------------------------------------------- one_hot


def test_one_hot():
    hot = one_hot(np.array([[2, 0]]))
    assert (hot.dtype, hot.tolist()) == (np.int64, [[[0, 0, 1], [1, 0, 0]]])
    assert one_hot(np.zeros((0, 2), int), 3).shape == (0, 2, 3)
    mapped = vmap(lambda i: one_hot(i, 3))(np.array([[1, 2], [0, 0]]))
    assert mapped.tolist() == one_hot([[1, 2], [0, 0]], 3).tolist()


def test_one_hot_refuses():
    for classes in (0, -2):
        with pytest.raises(ValueError, match="num_classes must be positive, or -1"):
            one_hot([0], classes)
    with pytest.raises(ValueError, match="finds num_classes from the indices, and there are none"):
        one_hot(np.zeros(0, int))
    with pytest.raises(errors.BatchedValueError):
        vmap(one_hot)(np.array([[1, 2], [0, 0]]))
