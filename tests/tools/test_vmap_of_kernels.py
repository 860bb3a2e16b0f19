"""NumPy's functions on the arrays that kernels see inside vmap: each example gets what the function gives it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import normal

import gradmgr.numpy as gnp
from gradmgr._engine.tensor import raw, wrap
from gradmgr.functional import grad
from gradmgr.vmap import vmap

CALLS = {
    "cumsum of all": lambda a: np.cumsum(a),
    "argmax of all": lambda a: np.argmax(a, keepdims=True),
    "argmin": lambda a: np.argmin(a, 1, keepdims=True),
    "sort": lambda a: np.sort(a, axis=0),
    "argsort": lambda a: np.argsort(a),
    "partition": lambda a: np.partition(a, 1, axis=1),
    "diff": lambda a: np.diff(a, 2, axis=1),
    "reshape": lambda a: np.reshape(a, (4, 2)),
    "reshape to a copy": lambda a: np.reshape(a, (8,), copy=True),
    "ravel": lambda a: np.ravel(a, order="F"),
    "transpose": lambda a: np.transpose(a, (1, 0)),
    "transpose all": lambda a: np.transpose(a),
    "matrix_transpose": lambda a: np.matrix_transpose(a),
    "rollaxis": lambda a: np.rollaxis(a, 1),
    "rollaxis to the end": lambda a: np.rollaxis(a, 0, -1),
    "squeeze": lambda a: np.squeeze(a[:1]),
    "squeeze an axis": lambda a: np.squeeze(a[:, :1], axis=1),
    "expand_dims": lambda a: np.expand_dims(a, (0, 2)),
    "broadcast_to": lambda a: np.broadcast_to(a, (3, 2, 4)),
    "broadcast_arrays": lambda a: np.broadcast_arrays(a, np.ones((3, 1, 1)))[0],
    "flip": lambda a: np.flip(a, 1),
    "roll": lambda a: np.roll(a, 3),
    "roll along an axis": lambda a: np.roll(a, 1, axis=1),
    "repeat": lambda a: np.repeat(a, 2),
    "repeat along an axis": lambda a: np.repeat(a, [1, 2], axis=0),
    "tile": lambda a: np.tile(a, 2),
    "tile with a new axis": lambda a: np.tile(a, (2, 1, 2)),
    "tril": lambda a: np.tril(a),
    "linalg.diagonal": lambda a: np.linalg.diagonal(a, offset=1),
    "linalg.trace": lambda a: np.linalg.trace(a),
    "concatenate": lambda a: np.concatenate([a, np.ones((1, 4))]),
    "concatenate all": lambda a: np.concatenate([a, np.ones(3)], axis=None),
    "stack": lambda a: np.stack([a, np.zeros((2, 4))], axis=-1),
    "take": lambda a: np.take(a, [0, 5, 7]),
    "take along an axis": lambda a: np.take(a, [[0, 3]], axis=1),
    "take at places of the example": lambda a: np.take(a, np.argsort(a)),
    "take_along_axis": lambda a: np.take_along_axis(a, np.argsort(a, axis=1), 1),
    "take_along_axis of all": lambda a: np.take_along_axis(a, np.array([7, 0]), None),
    "dot of numbers": lambda a: np.dot(a[0, 0], 2.0),
    "dot": lambda a: np.dot(a, np.ones((4, 3))),
    "dot of three axes": lambda a: np.dot(a, np.arange(24.0).reshape(2, 4, 3)),
    "inner": lambda a: np.inner(a, a),
    "inner with a number": lambda a: np.inner(a, 2.0),
    "vdot": lambda a: np.vdot(a, a + 1),
    "interp at knots of the example": lambda a: np.interp(a, np.sort(a[0]), a[1]),
    "interp of constants at knots of the example": lambda a: np.interp([-9.0, 0.1, 9.0, np.nan], np.sort(a[0]), a[1]),
    "interp on a knot and beside an infinite value": lambda a: np.interp(
        np.append(a[1], np.sort(a[0])), np.sort(a[0]), np.where(a[1] == a[1].max(), np.inf, a[1])
    ),
    "interp of complex values": lambda a: np.interp(a[1], np.sort(a[0]), a[0] + 1j * a[1]),
    "interp where a knot stands twice": lambda a: np.interp(a, np.sort(np.round(a[0])), a[1]),
    "roots": lambda a: np.roots(a[0]),
    "roots of small degree": lambda a: np.roots(a[0, :3]),
    "characteristic polynomial": lambda a: np.poly(a[:, :2]),
    "characteristic polynomial of real eigenvalues": lambda a: np.poly(a[:, :2] + a[:, :2].T),
    "allclose": lambda a: np.allclose(a, np.round(a), atol=0.4),
    "histogram of a number of bins": lambda a: np.concatenate(np.histogram(a, 5)),
    "histogram of a range": lambda a: np.histogram(a, 3, (-1, 1))[0],
    "histogram of edges": lambda a: np.concatenate(np.histogram(np.round(a), [-2.0, -1.0, 0.0, 3.0], density=True)),
    "histogram with weights": lambda a: np.concatenate(np.histogram(a, 5, weights=a**2)),
    "histogram of a range with weights": lambda a: np.histogram(a, 3, (-1, 1), weights=a**2, density=True)[0],
    "histogram of edges with weights": lambda a: np.histogram(a, [-1.0, 0.3, 0.5, 2.0], weights=a**3)[0],
    "histogram of constants with weights": lambda a: np.histogram([0.0, 5.0, 1.0, 2.0], 3, weights=a[0])[0],
    "histogram of equal numbers": lambda a: np.concatenate(np.histogram(a * 0 + 2, 4)),
    "cross of vectors and a constant": lambda a: np.cross(a[:, :3], [1.0, 2.0, 3.0]),
    "cross along the first axis": lambda a: np.cross(a.T[:3], a.T[1:], axis=0),
    "cross of a vector and rows": lambda a: np.cross(a[0, :3], a[:, 1:], axisc=0),
    "a number of each example and an array": lambda a: a[0, 0] * np.arange(4.0) + a[1],
    "a vector and a matrix of each example": lambda a: a[0] - a * a[1, 0],
}


@pytest.mark.parametrize("name", CALLS)
def test_each_example_is_computed_as_if_alone(name: str) -> None:
    call, x = CALLS[name], normal(3, 2, 4)
    found = vmap(lambda t: wrap(call(raw(t))))(x)
    expected = np.stack([call(example) for example in x])
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14, strict=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda a: np.size(a),
        lambda a: np.shape(a),
        lambda a: np.ndim(a),
        lambda a: np.iscomplexobj(a),
        lambda a: np.isrealobj(a),
        lambda a: np.result_type(a, np.float32),
        lambda a: np.can_cast(a.dtype, np.float32),
        lambda a: np.common_type(a),
        lambda a: np.may_share_memory(a, a),
    ],
)
def test_what_is_asked_of_an_array_is_that_of_one_example(ask: Callable[[Any], Any]) -> None:
    x, found = normal(3, 2, 4), []
    vmap(lambda t: found.append(ask(raw(t))) or t)(x)
    assert found == [ask(x[0])]


def test_what_one_example_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="matrix_transpose needs 2 axes"):
        vmap(lambda t: wrap(np.matrix_transpose(raw(t))))(normal(3, 2))
    with pytest.raises(ValueError, match="cannot broadcast shape"):
        vmap(lambda t: wrap(np.broadcast_to(raw(t), (4,))))(normal(3, 2, 4))


def test_weights_get_gradients_where_examples_have_other_numbers_outside_of_the_bins() -> None:
    x, weights, factors = normal(5, 8), normal(5, 8, seed=1), np.array([2.0, 3.0, 5.0])

    def weighed(w: Any, values: Any) -> Any:
        return gnp.sum(gnp.histogram(values, 3, (-1, 1), weights=w)[0] * factors)

    found = vmap(grad(weighed))(weights, x)
    bins = np.digitize(x, np.linspace(-1, 1, 4)) - 1
    expected = np.where((x >= -1) & (x <= 1), factors[np.clip(bins, 0, 2)], 0)
    assert len(set(np.count_nonzero(expected, axis=1))) > 1
    np.testing.assert_array_equal(found, expected)


def test_arrays_are_written_example_by_example() -> None:
    x = normal(3, 2, 4)

    def written(a: Any) -> Any:
        made = a.copy()
        np.put_along_axis(made, np.array([[1], [2]]), 7.0, 1)
        np.copyto(made[:1], np.zeros(4))
        return made

    found = vmap(lambda t: wrap(written(raw(t))))(x)
    np.testing.assert_array_equal(found, np.stack([written(example) for example in x]))
