"""Functions whose results carry no gradient, and creation functions."""

from __future__ import annotations

import numpy as np

from samples._table import CONSTANTS, CREATION

# ---------------------------------------------------------------- functions whose results carry no gradient

CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(x, y), lambda xp, x, y, n=name: getattr(xp, n)(x, 0.5)]
        for name in (
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isclose"),
            *("logical_and", "logical_or", "logical_xor", "allclose", "array_equal"),
        )
    }
)
CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(x)]
        for name in (
            *("logical_not", "isnan", "isinf", "isfinite", "signbit", "iscomplexobj", "isrealobj"),
            *("argwhere", "flatnonzero", "nonzero", "shape", "ndim", "zeros_like", "ones_like"),
        )
    }
)
CONSTANTS.update(
    {
        name: [
            lambda xp, x, y, n=name: getattr(xp, n)(x),
            lambda xp, x, y, n=name: getattr(xp, n)(x, axis=0),
            lambda xp, x, y, n=name: getattr(xp, n)(x, axis=-1, keepdims=True),
        ]
        for name in ("all", "any", "argmax", "argmin", "count_nonzero")
    }
)
CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(x > 0, y > 0)]
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    }
)
CONSTANTS.update({name: [lambda xp, x, y, n=name: getattr(xp, n)(x > 0, 2)] for name in ("left_shift", "right_shift")})
CONSTANTS.update(
    {
        "result_type": [lambda xp, x, y: xp.zeros(2, xp.result_type(x, y, "float32"))],
        "invert": [lambda xp, x, y: xp.invert(x > 0)],
        "argsort": [lambda xp, x, y: xp.argsort(x), lambda xp, x, y: xp.argsort(x, axis=0, kind="stable")],
        "bincount": [lambda xp, x, y: xp.bincount(xp.argmax(x, axis=0), minlength=5)],
        "searchsorted": [lambda xp, x, y: xp.searchsorted(xp.ravel(x), y), lambda xp, x, y: xp.searchsorted(x[0], 0.5)],
        "size": [lambda xp, x, y: xp.size(x), lambda xp, x, y: xp.size(x, 0)],
        "empty_like": [lambda xp, x, y: xp.empty_like(x).shape],
    }
)
CREATION.update(
    {
        "zeros": [lambda xp: xp.zeros((2, 3)), lambda xp: xp.zeros(3, dtype="float32")],
        "ones": [lambda xp: xp.ones((2, 3)), lambda xp: xp.ones((), dtype=np.complex64)],
        "empty": [lambda xp: xp.empty((2, 3)) * 0 == 1],
        "full": [lambda xp: xp.full((2, 3), 1.5), lambda xp: xp.full(2, 1, dtype="float32")],
        "full_like": [lambda xp: xp.full_like(np.ones(3, np.float32), 2)],
        "arange": [lambda xp: xp.arange(5), lambda xp: xp.arange(1, 4, 0.5), lambda xp: xp.arange(3, dtype="float32")],
        "linspace": [lambda xp: xp.linspace(0, 1, 5), lambda xp: xp.linspace(0, 1, 5, endpoint=False)],
        "eye": [lambda xp: xp.eye(3), lambda xp: xp.eye(2, 3, k=1, dtype="float32")],
        "identity": [lambda xp: xp.identity(3), lambda xp: xp.identity(2, dtype="float32")],
        "array": [lambda xp: xp.array([[1, 2], [3, 4]]), lambda xp: xp.array(1.5, ndmin=2)],
        "asarray": [lambda xp: xp.asarray([1.0, 2.0]), lambda xp: xp.asarray([1, 2], dtype="float32")],
    }
)
