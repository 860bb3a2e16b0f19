"""What dispatches to gradmgr, and what is refused: plain NumPy calls, operators, implicit conversions, out=."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest
from helpers import gradient

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor

VALUES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@pytest.fixture
def x() -> Tensor:
    return tensor(VALUES)


# ---------------------------------------------------------------- plain NumPy and ndarray operators dispatch to gradmgr


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (np.sin, np.cos(VALUES)),
        (lambda t: np.concatenate([t, VALUES]), np.ones((2, 3))),
        (lambda t: np.concatenate([VALUES, t, t]), np.full((2, 3), 2.0)),
        (lambda t: np.add(VALUES, t), np.ones((2, 3))),
        (lambda t: np.multiply(2.0, t), np.full((2, 3), 2.0)),
        (lambda t: np.sum(t, axis=0), np.ones((2, 3))),
        (lambda t: np.where(VALUES > 2, t, 0.0), (VALUES > 2) * 1.0),
        (lambda t: np.einsum("ij->j", t), np.ones((2, 3))),
        (lambda t: np.dot(VALUES.T, t), np.repeat(VALUES.sum(1), 3).reshape(2, 3)),
        (lambda t: np.clip(t, 2.0, 4.0), ((VALUES >= 2) & (VALUES <= 4)) * 1.0),
        (lambda t: VALUES + t, np.ones((2, 3))),
        (lambda t: VALUES - t, -np.ones((2, 3))),
        (lambda t: VALUES * t, VALUES),
        (lambda t: t * VALUES, VALUES),
        (lambda t: VALUES / t, -1 / VALUES),
        (lambda t: t / VALUES, 1 / VALUES),
        (lambda t: np.array([[1.0], [2.0]]).T @ t, [[1.0] * 3, [2.0] * 3]),
        (lambda t: t @ np.array([1.0, 2.0, 3.0]), [[1.0, 2.0, 3.0]] * 2),
        (lambda t: np.float64(2.0) * t, np.full((2, 3), 2.0)),
        (lambda t: np.float64(2.0) ** t, np.log(2.0) * 2.0**VALUES),
        (lambda t: np.array(3.0) - t, -np.ones((2, 3))),
        (lambda t: [[1.0, 2.0, 3.0]] * t, [[1.0, 2.0, 3.0]] * 2),
        (lambda t: operator.add(t, [1.0, 2.0, 3.0]), np.ones((2, 3))),
    ],
)
def test_numpy_calls_and_operators_give_tensors_with_gradients(x: Tensor, f: Any, expected: Any) -> None:
    assert isinstance(f(x), Tensor)
    np.testing.assert_allclose(gradient(f, x), expected)


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge])
def test_comparisons_on_both_sides(x: Tensor, op: Any) -> None:
    for other in (VALUES[::-1], 3.0, np.float32(3.0), tensor(VALUES[::-1])):
        plain = other.numpy() if isinstance(other, Tensor) else other
        for found, expected in ((op(x, other), op(VALUES, plain)), (op(other, x), op(plain, VALUES))):
            assert isinstance(found, Tensor)
            assert found.dtype == bool
            np.testing.assert_array_equal(found.numpy(), expected)


def test_equality_with_what_is_no_array_is_identity(x: Tensor) -> None:
    assert (x == None) is False  # noqa: E711  # the operator is what is tried
    assert (x != None) is True  # noqa: E711  # as above
    assert (x == "text") is False
    assert x in [x, 1]
    assert len({x, x}) == 1


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
def test_bitwise_operators_on_both_sides(op: Any) -> None:
    one, other = np.array([True, True, False]), np.array([True, False, False])
    for a, b in ((tensor(one), other), (one, tensor(other)), (tensor(one), tensor(other))):
        found = op(a, b)
        assert isinstance(found, Tensor)
        np.testing.assert_array_equal(found.numpy(), op(one, other))


def test_array_namespace_is_gradmgr_numpy(x: Tensor) -> None:
    assert x.__array_namespace__() is gnp
    assert x.__array_namespace__(api_version="2023.12") is gnp


# ---------------------------------------------------------------- what NumPy has and we lack


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda t: np.emath.sqrt(t), "numpy.lib.scimath.sqrt"),
        (lambda t: np.emath.log(t), "numpy.lib.scimath.log"),
    ],
)
def test_a_numpy_function_we_lack_raises_naming_itself(x: Tensor, call: Any, name: str) -> None:
    for tracked in (False, True):
        manager = GradManager().attach(x if tracked else tensor(0.0))
        with manager, pytest.raises(TypeError, match=rf"^{name.replace('.', '[.]')} ") as error:
            call(x)
        assert isinstance(error.value, errors.UnsupportedFunctionError)
        assert "t.numpy()" in str(error.value)
    np.testing.assert_array_equal(x.numpy(), VALUES)


@pytest.mark.parametrize("name", ["asmatrix", "bmat", "frompyfunc"])
def test_the_namespace_says_what_to_use_for_functions_it_lacks(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"numpy\.{name} is not in gradmgr\.numpy: .*use "):
        getattr(gnp, name)
    assert not hasattr(gnp, name)


def test_the_namespace_says_that_numpy_lacks_a_name_too() -> None:
    with pytest.raises(AttributeError, match=r"'gradmgr.numpy' has no attribute 'sine', and neither has numpy"):
        gnp.sine
    with pytest.raises(AttributeError, match="'arrange', and neither has numpy") as caught:
        gnp.arrange
    assert caught.value.name == "arrange"  # by these Python adds: "Did you mean: 'arange'?"
    assert hasattr(caught.value.obj, "arange")
    with pytest.raises(AttributeError, match=r"'Inf', and neither has numpy: .* Use `np\.inf`"):
        gnp.Inf


@pytest.mark.skipif(hasattr(np, "trapz"), reason="this NumPy still has trapz, deprecated")
def test_the_namespace_says_what_to_use_for_functions_numpy_removed() -> None:
    with pytest.raises(AttributeError, match=r"'trapz', and neither has numpy: .*use trapezoid"):
        gnp.trapz


# ---------------------------------------------------------------- unknown types


class Foreign:
    """A type whose operators accept anything, and return which of them was called."""


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv", "and", "or", "xor"):
    setattr(Foreign, f"__r{_name}__", lambda self, other, n=_name: ("reflected", n))
    setattr(Foreign, f"__{_name}__", lambda self, other, n=_name: ("plain", n))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Foreign, f"__{_name}__", lambda self, other, n=_name: ("plain", n))


_REFLECTED_COMPARISON = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv", "and", "or", "xor"]
)
def test_a_foreign_type_with_reflected_operators_has_precedence(x: Tensor, name: str) -> None:
    op = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    assert op(x, Foreign()) == ("reflected", name)
    assert op(Foreign(), x) == ("plain", name)
    y = x
    update = getattr(operator, f"i{name}")
    assert update(y, Foreign()) == ("reflected", name)  # as Python has it: y becomes what the other operand returns
    np.testing.assert_array_equal(x.numpy(), VALUES)


@pytest.mark.parametrize("name", list(_REFLECTED_COMPARISON))
def test_a_foreign_type_with_comparisons_has_precedence(x: Tensor, name: str) -> None:
    assert getattr(operator, name)(x, Foreign()) == ("plain", _REFLECTED_COMPARISON[name])


@pytest.mark.parametrize("value", [object(), "text", None, {"a": 1}, {1.0}])
def test_operators_give_notimplemented_for_unknown_types(x: Tensor, value: Any) -> None:
    names = ["add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv"]
    for method in (
        *(f"__{n}__" for n in names),
        *(f"__r{n}__" for n in names),
        "__lt__",
        "__ge__",
        "__eq__",
        "__and__",
    ):
        assert getattr(x, method)(value) is NotImplemented, method
    for op in (operator.add, operator.mul, operator.iadd, operator.matmul, operator.lt):
        with pytest.raises(TypeError):
            op(x, value)
    np.testing.assert_array_equal(x.numpy(), VALUES)


@pytest.mark.parametrize("value", [object(), None, {"a": 1}])
@pytest.mark.parametrize(
    "call",
    [
        lambda t, v: gnp.add(t, v),
        lambda t, v: gnp.add(v, t),
        lambda t, v: gnp.power(t, v),
        lambda t, v: gnp.matmul(t, v),
        lambda t, v: gnp.maximum(v, t),
        lambda t, v: gnp.concatenate([t, v]),
        lambda t, v: gnp.stack([t, v]),
        lambda t, v: gnp.dot(t, v),
        lambda t, v: gnp.einsum("ij,ij", t, v),
        lambda t, v: t.__setitem__(0, v),
        lambda t, v: gnp.where(t > 0, t, [v]),
        lambda t, v: gnp.less(t, v),
        lambda t, v: gnp.clip(t, v if v is not None else object(), None),
    ],
)
def test_functions_raise_for_unknown_types(x: Tensor, call: Any, value: Any) -> None:
    for manager in (GradManager(), GradManager().attach(x)):
        with manager, pytest.raises(TypeError):
            call(x, value)
    np.testing.assert_array_equal(x.numpy(), VALUES)


def test_a_function_names_the_type_it_was_given(x: Tensor) -> None:
    with pytest.raises(TypeError, match=r"add takes Tensors, arrays and numbers; found .*Foreign; .*gradmgr\.tensor"):
        gnp.add(x, Foreign())


# ---------------------------------------------------------------- implicit conversion


IMPLICIT = [
    lambda t, a: np.asarray(t),
    lambda t, a: np.array(t),
    lambda t, a: np.array([t, t]),
    lambda t, a: np.copyto(a, t),
    lambda t, a: a.__iadd__(t),
    lambda t, a: a.__imul__(t),
    lambda t, a: a.__setitem__(..., t),
    lambda t, a: a.__setitem__(0, t[0]),
    lambda t, a: np.add(a, t, out=a),
    lambda t, a: np.sum(t, axis=0, out=a[0]),
    lambda t, a: np.sin(t, out=a),
    lambda t, a: gnp.sin(t, out=a),
    lambda t, a: gnp.matmul(t, np.eye(3), out=a),
    lambda t, a: gnp.concatenate([t[:1], t[:1]], out=a),
    lambda t, a: gnp.clip(t, 0, 1, out=a),
    lambda t, a: memoryview(t),
    lambda t, a: np.from_dlpack(t),
    lambda t, a: np.random.default_rng(0).normal(loc=t),
    lambda t, a: np.frombuffer(t),
]


@pytest.mark.parametrize("convert", IMPLICIT)
def test_implicit_conversion_of_a_tracked_tensor_raises_and_changes_nothing(x: Tensor, convert: Any) -> None:
    manager = GradManager().attach(x)
    a = np.zeros((2, 3))
    with manager:
        y = x * 2.0
        for t in (x, y):
            with pytest.raises((TypeError, AttributeError, BufferError)):
                convert(t, a)
        np.testing.assert_array_equal(a, np.zeros((2, 3)))
        np.testing.assert_array_equal(x.numpy(), VALUES)
        manager.backward(y.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 2.0))


@pytest.mark.parametrize("convert", [np.asarray, np.array, lambda t: gnp.sin(t, out=VALUES.copy())])
def test_the_error_says_what_to_write_instead(x: Tensor, convert: Any) -> None:
    with GradManager().attach(x), pytest.raises(errors.TrackedConversionError) as error:
        convert(x)
    text = str(error.value)
    assert "shape (2, 3) and dtype float64" in text
    assert "numpy()" in text


def test_an_untracked_tensor_converts(x: Tensor) -> None:
    np.testing.assert_array_equal(np.asarray(x), VALUES)
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    a = np.zeros((2, 3))
    a[...] = x
    np.testing.assert_array_equal(a, VALUES)
    np.testing.assert_array_equal(np.from_dlpack(x.detach()), VALUES)
    np.add(a, x, out=a)
    np.testing.assert_array_equal(a, 2 * VALUES)
    a += x
    np.testing.assert_array_equal(a, 3 * VALUES)


def test_a_converted_tensor_is_not_written_through(x: Tensor) -> None:
    a = np.asarray(x)
    if a.flags.writeable:
        a[...] = 0.0
    np.testing.assert_array_equal(x.numpy(), VALUES)


def test_explicit_conversions_work_while_tracked(x: Tensor) -> None:
    with GradManager().attach(x):
        y = x * 1.0
        np.testing.assert_array_equal(y.numpy(), VALUES)
        assert y.tolist() == VALUES.tolist()
        assert y[0, 1].item() == 2.0
        assert int(y[0, 1]) == 2
        assert bool(y[0, 0] == 1.0)
        assert f"{y[0, 1]:.1f}" == "2.0"
        np.testing.assert_array_equal(np.asarray(y.detach()), VALUES)
        assert copy.copy(y).tolist() == VALUES.tolist()


# ---------------------------------------------------------------- out=


def calls_with_out() -> list[Any]:
    """Functions of a (2, 3) tensor and out=, whose result has the shape (2, 3)."""
    return [
        lambda t, o: gnp.sin(t, out=o),
        lambda t, o: gnp.add(t, 1.0, out=o),
        lambda t, o: gnp.add(1.0, t, o),
        lambda t, o: gnp.matmul(t, np.eye(3), out=o),
        lambda t, o: gnp.dot(t, np.eye(3), out=o),
        lambda t, o: gnp.cumsum(t, axis=0, out=o),
        lambda t, o: gnp.clip(t, 0.0, 3.0, out=o),
        lambda t, o: gnp.sum(gnp.stack([t, t]), axis=0, out=o),
        lambda t, o: gnp.max(gnp.stack([t, t]), axis=0, out=o),
        lambda t, o: gnp.mean(gnp.stack([t, t]), axis=0, out=o),
        lambda t, o: gnp.concatenate([t[:1], t[1:]], out=o),
        lambda t, o: gnp.stack([t[0], t[1]], out=o),
        lambda t, o: gnp.take(t, [0, 1], axis=0, out=o),
        lambda t, o: gnp.round(t, out=o),
        lambda t, o: gnp.einsum("ij->ij", t, out=o),
        lambda t, o: np.sin(t, out=o),
        lambda t, o: np.sum(gnp.stack([t, t]), axis=0, out=o),
    ]


with_out = pytest.mark.parametrize("call", calls_with_out())


@with_out
def test_out_receives_the_result_and_its_history(x: Tensor, call: Any) -> None:
    expected, expected_gradient = call(x, None), gradient(lambda t: call(t, None), x)
    o = tensor(np.zeros((2, 3)))
    manager = GradManager().attach(x)
    with manager:
        assert call(x, o) is o
        np.testing.assert_allclose(o.numpy(), expected.numpy())
        manager.backward(o.sum())
    np.testing.assert_allclose(x.grad.numpy(), expected_gradient)


@with_out
def test_out_of_the_wrong_shape_is_refused(x: Tensor, call: Any) -> None:
    o = tensor(np.full((3, 2), 7.0))
    manager = GradManager().attach([x, o])
    with manager:
        with pytest.raises(ValueError, match=r"\(2, 3\)|\(3, 2\)"):
            call(x, o)
        manager.backward((x * 2.0).sum() + o.sum())
    np.testing.assert_array_equal(o.numpy(), np.full((3, 2), 7.0))
    np.testing.assert_array_equal(o.grad.numpy(), np.ones((3, 2)))


@with_out
def test_out_of_a_kind_that_loses_the_result_is_refused(x: Tensor, call: Any) -> None:
    o = tensor(np.full((2, 3), 7))
    with GradManager().attach(x), pytest.raises(TypeError):
        call(x, o)
    np.testing.assert_array_equal(o.numpy(), np.full((2, 3), 7))
    assert o.dtype == np.int64


@with_out
def test_an_out_of_a_narrower_dtype_receives_the_result(x: Tensor, call: Any) -> None:
    o = tensor(np.zeros((2, 3)), dtype="float32")
    manager = GradManager().attach(x)
    with manager:
        manager.backward(call(x, o).sum())
    assert o.dtype == np.float32
    assert x.grad.dtype == np.float64


@with_out
def test_a_plain_array_as_out_of_a_tracked_result_is_refused(x: Tensor, call: Any) -> None:
    a = np.full((2, 3), 7.0)
    manager = GradManager().attach(x)
    with manager:
        with pytest.raises(errors.TrackedConversionError, match=r"pass a Tensor as out=|numpy\(\)"):
            call(x, a)
        np.testing.assert_array_equal(a, np.full((2, 3), 7.0))
        manager.backward(x.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((2, 3)))


@with_out
def test_a_plain_array_as_out_receives_an_untracked_result(x: Tensor, call: Any) -> None:
    a = np.full((2, 3), 7.0)
    z = call(x, a)
    assert z is a
    np.testing.assert_allclose(a, call(x, None).numpy())


@with_out
def test_an_out_that_does_not_have_the_shape_of_the_result_is_refused(x: Tensor, call: Any) -> None:
    """The result may not be broadcast into a larger out= where NumPy would not; nor out= stretched to the result."""
    with pytest.raises(ValueError, match=r"\(3,\)|shape|dimension"):
        call(x, tensor(np.zeros(3)))


def test_out_may_be_the_argument_itself(x: Tensor) -> None:
    def f(t: Tensor) -> Tensor:
        y = t * 1.0
        gnp.sin(y, out=y)
        gnp.multiply(y, y, out=y)
        return y

    np.testing.assert_allclose(gradient(f, x), 2 * np.sin(VALUES) * np.cos(VALUES))


def test_out_leaves_views_of_the_old_values_alone(x: Tensor) -> None:
    o = tensor(np.zeros((2, 3)))
    row = o[0]
    gnp.sin(x, out=o)
    np.testing.assert_array_equal(row.numpy(), np.zeros(3))


@pytest.mark.parametrize("out", [3.0, "text", [0.0], (), (None, None)])
def test_out_that_is_no_array_is_refused(x: Tensor, out: Any) -> None:
    for call in (lambda: gnp.sin(x, out=out), lambda: gnp.sum(x, axis=0, out=out), lambda: gnp.add(x, x, out)):
        with pytest.raises((TypeError, ValueError)):
            call()


# ---------------------------------------------------------------- keywords


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, t: xp.sum(t, axes=0),
        lambda xp, t: xp.mean(t, initial=0.0),
        lambda xp, t: xp.sin(t, axis=0),
        lambda xp, t: xp.add(t, t, axis=0),
        lambda xp, t: xp.matmul(t, t.T, keepdims=True),
        lambda xp, t: xp.reshape(t, (3, 2), axis=0),
        lambda xp, t: xp.concatenate([t], axes=0),
        lambda xp, t: xp.max(t, ddof=1),
        lambda xp, t: xp.var(t, initial=0.0),
        lambda xp, t: xp.cumsum(t, keepdims=True),
        lambda xp, t: xp.clip(t, 0, 1, low=0),
        lambda xp, t: xp.where(t > 0, t, t, out=None, mode="x"),
        lambda xp, t: xp.einsum("ij->j", t, axis=0),
        lambda xp, t: xp.take(t, 0, kind="x"),
        lambda xp, t: xp.equal(t, t, axis=0),
        lambda xp, t: xp.argmax(t, dims=0),
        lambda xp, t: t.sum(axes=0),
        lambda xp, t: t.reshape(3, 2, shape=1),
        lambda xp, t: t.max(ddof=0),
    ],
)
@pytest.mark.parametrize("xp", [gnp, np], ids=["ours", "plain NumPy"])
def test_an_unknown_keyword_raises(x: Tensor, call: Any, xp: Any) -> None:
    for manager in (GradManager(), GradManager().attach(x)):
        with manager, pytest.raises(TypeError):
            call(xp, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda xp, t: xp.sum(t, axis=2),
        lambda xp, t: xp.sum(t, axis=(0, 0)),
        lambda xp, t: xp.sum(t, axis=-3),
        lambda xp, t: xp.reshape(t, (4, 2)),
        lambda xp, t: xp.transpose(t, (0,)),
        lambda xp, t: xp.transpose(t, (0, 0)),
        lambda xp, t: xp.squeeze(t, axis=0),
        lambda xp, t: xp.concatenate([t, t[0]]),
        lambda xp, t: xp.concatenate([t, t.T]),
        lambda xp, t: xp.stack([t, t[0]]),
        lambda xp, t: xp.stack([t], axis=3),
        lambda xp, t: xp.concatenate([]),
        lambda xp, t: xp.split(t, 2, axis=1),
        lambda xp, t: xp.array_split(t, 0),
        lambda xp, t: xp.broadcast_to(t, (4, 3)),
        lambda xp, t: xp.add(t, t.T),
        lambda xp, t: xp.matmul(t, t),
        lambda xp, t: xp.matmul(t, 2.0),
        lambda xp, t: xp.dot(t, t),
        lambda xp, t: xp.inner(t, t[:, :2]),
        lambda xp, t: xp.tensordot(t, t, axes=1),
        lambda xp, t: xp.einsum("ij,jk", t, t),
        lambda xp, t: xp.einsum("ijk->i", t),
        lambda xp, t: xp.einsum("ij->k", t),
        lambda xp, t: xp.einsum("ij,ij", t),
        lambda xp, t: xp.cumsum(t, axis=2),
        lambda xp, t: xp.max(t[:0]),
        lambda xp, t: xp.max(t, where=t > 1),
        lambda xp, t: xp.moveaxis(t, (0, 1), (0,)),
        lambda xp, t: xp.take_along_axis(t, np.array([0]), axis=0),
        lambda xp, t: xp.where(t > 0, t),
        lambda xp, t: xp.var(t, ddof=1, correction=1),
        lambda xp, t: xp.repeat(t, [1, 2, 3], axis=0),
        lambda xp, t: xp.repeat(t, -1),
        lambda xp, t: xp.diag(xp.expand_dims(t, 0)),
        lambda xp, t: xp.roll(t, 1, axis=2),
        lambda xp, t: xp.flip(t, 2),
        lambda xp, t: xp.expand_dims(t, 4),
        lambda xp, t: xp.unstack(t, axis=2),
    ],
)
@pytest.mark.parametrize("tracked", [False, True])
def test_bad_arguments_raise_what_numpy_raises(x: Tensor, call: Any, tracked: bool) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)) as expected:  # AxisError is both of the last
        call(np, VALUES)
    builtin = next(kind for kind in (IndexError, ValueError, TypeError) if isinstance(expected.value, kind))
    with GradManager().attach(x if tracked else tensor(0.0)):
        for xp in (gnp, np):
            with pytest.raises(builtin):
                call(xp, x)
    np.testing.assert_array_equal(x.numpy(), VALUES)


@pytest.mark.parametrize("index", [2, (0, 3), (0, 0, 0), "text", 1.0, (1.5,), [0.5], np.array([2.0]), [True] * 3, [5]])
def test_bad_indices_raise_what_numpy_raises(x: Tensor, index: Any) -> None:
    with pytest.raises((IndexError, ValueError, TypeError)) as expected:
        VALUES[index]
    manager = GradManager().attach(x)
    with manager:
        with pytest.raises(expected.type):
            x[index]
        with pytest.raises(expected.type):
            x[index] = 0.0
        np.testing.assert_array_equal(x.numpy(), VALUES)
        manager.backward(x.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((2, 3)))


def test_a_value_of_the_wrong_shape_for_its_index_changes_nothing(x: Tensor) -> None:
    manager = GradManager().attach(x)
    with manager:
        for value in (np.zeros(2), tensor(np.zeros((2, 2))), [[1.0, 2.0]]):
            with pytest.raises(ValueError, match="broadcast"):
                x[0] = value
        with pytest.raises((ValueError, TypeError)):
            x[0] = "text"
        np.testing.assert_array_equal(x.numpy(), VALUES)
        manager.backward(x.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((2, 3)))


def test_an_update_of_the_wrong_shape_changes_nothing(x: Tensor) -> None:
    manager = GradManager().attach(x)
    with manager:
        for update, value, kind in (
            (operator.iadd, np.zeros((4, 2, 3)), ValueError),
            (operator.imul, np.zeros(2), ValueError),
            (operator.iadd, 1j, TypeError),
            (operator.imatmul, np.ones((3, 2)), ValueError),
        ):
            with pytest.raises(kind):
                update(x, value)
        np.testing.assert_array_equal(x.numpy(), VALUES)
        manager.backward(x.sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((2, 3)))


def test_updates_of_an_ndarray_by_an_untracked_tensor_stay_in_numpy(x: Tensor) -> None:
    a = VALUES.copy()
    b = a
    a += x
    assert a is b
    np.testing.assert_array_equal(a, 2 * VALUES)


def test_where_with_one_argument_is_nonzero(x: Tensor) -> None:
    for found, expected in zip(gnp.where(x > 2), np.where(VALUES > 2), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


def test_every_public_name_exists() -> None:
    for module in (gradmgr, gnp, gradmgr.special):
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"
    assert set(gnp.__all__) <= set(dir(gnp))
    assert all(getattr(gnp, name) is getattr(np, name) for name in set(dir(gnp)) - set(gnp.__all__))


def test_the_namespace_lists_all_its_public_names():
    """Written out, so that type checkers see it."""
    public = {name for name in vars(gnp) if not name.startswith("_")} - {"annotations", "Any"}
    assert public == set(gnp.__all__)


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda out: gnp.less(tensor([1.0, 1.0, 1.0]), tensor([0.0, 0.0, 2.0]), out), [False, False, True]),
        (lambda out: gnp.any(tensor([[False] * 3]), 0, out), [False] * 3),
        (lambda out: gnp.logical_not(tensor([True, False, True]), out), [False, True, False]),
    ],
)
def test_out_by_position_leaves_recorded_values_and_slices_alone(call, inputs):
    x = tensor([1.0, 2.0, 3.0])
    mask = tensor([True, True, False])
    kept = mask[:]
    gm = GradManager().attach(x)
    with gm:
        y = gnp.where(mask, x * 10, x)
        assert call(mask) is mask
        gm.backward(y.sum())
    assert mask.tolist() == inputs
    assert kept.tolist() == [True, True, False]
    assert x.grad.tolist() == [10.0, 10.0, 1.0]


def test_dtype_of_a_ufunc_is_asked_of_plain_arrays_too():
    assert gnp.add(tensor([1.0]), np.ones(1), dtype="f4").dtype == np.float32
    with pytest.raises(TypeError, match="same-kind"):
        gnp.add(tensor([1.0]), np.ones(1, complex), dtype="f8")


def test_take_reads_booleans_as_positions_and_takes_nothing_from_an_empty_list():
    t = tensor([5.0, 7.0])
    assert gnp.take(t, [True, False]).tolist() == np.take([5.0, 7.0], [True, False]).tolist()
    assert gnp.take(t, []).shape == (0,)
    with pytest.raises(IndexError, match="integer"):
        gnp.take_along_axis(t, np.array([True, False]), axis=0)


def test_bincount_passes_gradients_to_its_weights():
    w = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(w)
    with gm:
        y = gnp.bincount(np.array([0, 2, 0]), weights=w, minlength=4)
        gm.backward(y, [tensor([1.0, 10.0, 100.0, 1000.0])])
    assert y.tolist() == np.bincount([0, 2, 0], [1.0, 2.0, 3.0], 4).tolist()
    assert w.grad.tolist() == [1.0, 100.0, 1.0]


def test_bincount_of_nothing_and_of_weights_of_the_wrong_length():
    w = tensor([1.0, 2.0])
    found, expected = gnp.bincount([], gnp.zeros(0), 2), np.bincount([], [], 2)
    assert (found.tolist(), found.dtype) == (expected.tolist(), expected.dtype)
    with pytest.raises(ValueError, match="minlength"):
        gnp.bincount([0, 1], w, minlength=-1)
    with pytest.raises(ValueError, match="one axis and length"):
        gnp.bincount([0, 1, 1], w)
    with pytest.raises(TypeError, match=r"bincount.*complex128.*safe"):
        gnp.bincount([0, 1], w + 1j)


def test_a_mask_of_numbers_is_read_as_numpy_reads_it():
    x = np.array([1.0, 2.0, 3.0])
    for call in (
        lambda xp, x: xp.add(x, x, where=[1, 0, 1], out=xp.zeros(3)),
        lambda xp, x: xp.sin(x, where=1, out=xp.zeros(3)),
        lambda xp, x: xp.sum(x, where=[1, 0, 1]),
        lambda xp, x: xp.max(x, where=(0, 1.5, 0), initial=0),
    ):
        np.testing.assert_array_equal(call(gnp, tensor(x)).numpy(), call(np, x))
    for call in (
        lambda xp, x: xp.add(x, x, where=np.array([1, 0, 1]), out=xp.zeros(3)),
        lambda xp, x: xp.sum(x, where=np.array([1, 0, 1])),
        lambda xp, x: xp.matmul(x, x, where=[True, False, True]),
    ):
        for xp, t in (np, x), (gnp, tensor(x)):
            with pytest.raises(TypeError, match=r"where|bool"):
                call(xp, t)


def test_more_positions_than_the_function_has_are_an_error_and_write_nothing():
    t = tensor([1.0, 2.0])
    with pytest.raises(TypeError, match="positional"):
        gnp.isnan(t, t, t)
    assert t.tolist() == [1.0, 2.0]
