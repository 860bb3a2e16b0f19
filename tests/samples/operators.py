"""Operators, methods and properties of Tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samples._table import ANALYTIC, MATRIX, POSITIVE, SCALAR, VECTOR, Arg, Array, Field, X, add

# ---------------------------------------------------------------- operators

_OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], Arg, Arg, Field]] = {
    "add": (lambda x, y: x + y, X, VECTOR, "analytic"),
    "sub": (lambda x, y: x - y, X, VECTOR, "analytic"),
    "mul": (lambda x, y: x * y, X, VECTOR, "analytic"),
    "truediv": (lambda x, y: x / y, POSITIVE, Arg((4,), 0.4, 2), "analytic"),
    "pow": (lambda x, y: x**y, POSITIVE, Arg((4,), 0.4, 2), "analytic"),
    "matmul": (lambda x, y: x @ y, X, Arg((4, 2)), "analytic"),
    "mod": (lambda x, y: x % y, POSITIVE, Arg((4,), 0.4, 2), "real"),
    "floordiv": (lambda x, y: x // y, POSITIVE, Arg((4,), 0.4, 2), "real"),
}
for _name, (_operate, _of_x, _of_y, _field) in _OPERATORS.items():
    _facts = {"field": _field}
    _fixed_x = Arg(_of_x.shape, _of_x.low, _of_x.high, constant=True)
    _fixed_y = Arg(_of_y.shape, _of_y.low, _of_y.high, constant=True)
    add(f"Tensor.__{_name}__", "tensors", lambda xp, x, y, op=_operate: op(x, y), _of_x, _of_y, **_facts)
    add(f"Tensor.__{_name}__", "tensor and array", lambda xp, x, y, op=_operate: op(x, y), _of_x, _fixed_y, **_facts)
    add(f"Tensor.__r{_name}__", "array and tensor", lambda xp, x, y, op=_operate: op(x, y), _fixed_x, _of_y, **_facts)
    if _name != "matmul":
        _numbers = {"float": 1.5, "integer": 2, "NumPy number": np.float32(1.5)}
        for _case, _number in _numbers.items():
            add(
                f"Tensor.__{_name}__",
                f"tensor and {_case}",
                lambda xp, x, op=_operate, n=_number: op(x, n),
                _of_x,
                **_facts,
            )
            add(
                f"Tensor.__r{_name}__",
                f"{_case} and tensor",
                lambda xp, y, op=_operate, n=_number: op(n, y),
                _of_y,
                **_facts,
            )
add(
    "Tensor.__rmatmul__",
    "called",
    lambda xp, x, y: y.__rmatmul__(x),
    Arg((3, 4), constant=True),
    Arg((4, 2)),
    field="analytic",
)
add("Tensor.__neg__", "matrix", lambda xp, x: -x, X, **ANALYTIC)
add("Tensor.__pos__", "matrix", lambda xp, x: +x, X, **ANALYTIC)
add("Tensor.__abs__", "matrix", lambda xp, x: abs(x), X, field="complex")
add("Tensor.__round__", "decimals", lambda xp, x: round(x, 1), X, reference=lambda x: np.round(x, 1))
add("Tensor.__mul__", "tensor and complex number", lambda xp, x: x * (1.0 + 2.0j), X, field="complex")
for _name in ("add", "sub", "mul", "truediv", "pow"):
    _operate = _OPERATORS[_name][0]
    add(
        f"Tensor.__r{_name}__",
        "complex number and 0-d",
        lambda xp, x, op=_operate: op(1.0 + 2.0j, x.sum()),
        VECTOR,
        field="complex",
    )
add("Tensor.__rmul__", "complex number and tensor", lambda xp, x: (1.0 + 2.0j) * x, X, field="complex")


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """y op= x as a function that leaves y alone."""

    def update(y: Array, x: Array) -> Array:
        y = y.copy()
        return getattr(y, f"__i{name}__")(x)

    return update


_UPDATES: dict[str, Field] = {
    "add": "analytic",
    "sub": "analytic",
    "mul": "analytic",
    "truediv": "analytic",
    "pow": "analytic",
    "mod": "real",
    "floordiv": "real",
}
for _name, _field in _UPDATES.items():
    _update = _in_place(_name)
    _facts = {"field": _field}
    add(f"Tensor.__i{_name}__", "same shape", lambda xp, x, y, u=_update: u(x, y), POSITIVE, POSITIVE, **_facts)
    add(f"Tensor.__i{_name}__", "broadcast", lambda xp, x, y, u=_update: u(x, y), POSITIVE, Arg((4,), 0.4, 2), **_facts)
    add(f"Tensor.__i{_name}__", "number", lambda xp, x, u=_update: u(x, 1.5), POSITIVE, **_facts)
    add(f"Tensor.__i{_name}__", "itself", lambda xp, x, u=_update: u(x, x), POSITIVE, **_facts)
    add(
        f"Tensor.__i{_name}__",
        "array",
        lambda xp, x, y, u=_update: u(x, y),
        POSITIVE,
        Arg((3, 1), 0.4, 2, constant=True),
        **_facts,
    )
add("Tensor.__imatmul__", "same shape", lambda xp, x, y: _in_place("matmul")(x, y), MATRIX, MATRIX, **ANALYTIC)

# ---------------------------------------------------------------- other methods and properties

add("Tensor.real", "matrix", lambda xp, x: x.real, X, field="complex")
add("Tensor.imag", "matrix", lambda xp, x: x.imag, X, field="complex")
add("Tensor.conj", "matrix", lambda xp, x: x.conj(), X, field="complex")
add("Tensor.conjugate", "matrix", lambda xp, x: x.conjugate(), X, field="complex")
add("Tensor.clip", "both", lambda xp, x: x.clip(-1.0, 1.0), X)
add("Tensor.clip", "max=", lambda xp, x: x.clip(max=0.5), X)
add("Tensor.round", "decimals", lambda xp, x: x.round(1), X)
add("Tensor.clone", "matrix", lambda xp, x: x.clone(), X, reference=lambda x: x.copy(), **ANALYTIC)
add("Tensor.to", "where it is", lambda xp, x: x.to(x.device), X, reference=lambda x: x, **ANALYTIC)
add("Tensor.__divmod__", "tensors", lambda xp, x, y: divmod(x, y), POSITIVE, Arg((4,), 0.4, 2))
add("Tensor.__rdivmod__", "a number", lambda xp, y: divmod(3.3, y), Arg((4,), 0.4, 2))
add("Tensor.to_device", "where it is", lambda xp, x: x.to_device(x.device), X, reference=lambda x: x, **ANALYTIC)
add("Tensor.astype", "to complex", lambda xp, x: x.astype(np.complex128) * 1j, X, field="complex")
add("Tensor.astype", "to the same", lambda xp, x: x.astype(x.dtype), X, **ANALYTIC)
add("astype", "to complex", lambda xp, x: xp.astype(x, np.complex128) * x, X, field="complex")
add("astype", "without a copy", lambda xp, x: xp.astype(x, x.dtype, copy=False) * 2, X, **ANALYTIC)


def _changed(change: Callable[[Array], None]) -> Callable[[Any, Array], Array]:
    """A call that changes a copy in place by a method, and returns it."""

    def call(xp: Any, x: Array, *more: Array) -> Array:
        y = x.copy()
        change(y, *more)
        return y

    return call


def _flat_set(index: Any) -> Callable[..., Array]:
    return _changed(lambda y, v: y.flat.__setitem__(index, v))


add("Tensor.sort", "last axis", _changed(lambda y: y.sort()), X)
add("Tensor.sort", "axis 0", _changed(lambda y: y.sort(0)), X)
add("Tensor.partition", "axis 0", _changed(lambda y: y.partition(1, axis=0)), X, reference=lambda x: np.sort(x, 0))
add("Tensor.fill", "a number", _changed(lambda y, v: y.fill(v)), X, SCALAR, **ANALYTIC, writes=True)
add("Tensor.flat", "read", lambda xp, x: x.flat[2:9:3] * 2, X, **ANALYTIC)
add(
    "Tensor.flat",
    "write",
    _flat_set(slice(1, 9, 2)),
    X,
    VECTOR,
    **ANALYTIC,
    writes=True,
)
add(
    "Tensor.flat",
    "write places",
    _flat_set([0, 7]),
    X,
    Arg((2,)),
    **ANALYTIC,
    writes=True,
)
add(
    "Tensor.flat",
    "too few values",
    _flat_set(slice(0, 6)),
    X,
    VECTOR,
    **ANALYTIC,
    writes=True,
)
add("Tensor.put", "places", _changed(lambda y, v: y.put([0, 7], v)), X, Arg((2,)), **ANALYTIC, writes=True)
add("Tensor.compress", "rows", lambda xp, x: x.compress([True, False, True], axis=0), X, **ANALYTIC)
add(
    "Tensor.choose",
    "of two",
    lambda xp, x, y: (x * 0 > 1).choose([x, y]),
    MATRIX,
    MATRIX,
)
