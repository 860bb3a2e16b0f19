"""The operators and methods of Tensor, each bound to the op or function that is declared once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._arrays import operators
from gradmgr._engine import conversion
from gradmgr._engine.elementwise import conj
from gradmgr._engine.indexing import normalized
from gradmgr._engine.mutation import copied, setitem, updater
from gradmgr._engine.tensor import Tensor, describe, is_number
from gradmgr._engine.views import as_new_array, as_number
from gradmgr.ops import (
    arithmetic,
    constant,
    convert,
    create,
    extrema,
    floating_point,
    join,
    order,
    pick,
    products,
    put,
    reduce,
    running,
    shape,
)

# ---------------------------------------------------------------- operators

_BINARY = {
    "add": (arithmetic.add, np.add, "+="),
    "sub": (arithmetic.subtract, np.subtract, "-="),
    "mul": (arithmetic.multiply, np.multiply, "*="),
    "truediv": (arithmetic.divide, np.divide, "/="),
    "pow": (arithmetic.power, np.power, "**="),
    "matmul": (products.matmul, None, "@="),  # matmul reads its operands while it writes
    "mod": (arithmetic.remainder, np.remainder, "%="),
    "floordiv": (arithmetic.floor_divide, np.floor_divide, "//="),
}
_UNARY = {"neg": arithmetic.negative, "pos": arithmetic.positive, "abs": arithmetic.absolute}


def bind() -> None:
    """Bind everything onto Tensor; called once, by `gradmgr.ops`."""
    for name, (made, ufunc, symbol) in _BINARY.items():
        setattr(Tensor, f"__{name}__", made.operator)
        setattr(Tensor, f"__r{name}__", made.reflected)
        setattr(Tensor, f"__i{name}__", updater(made.operator, ufunc, symbol, is_operator=True))
    for name, made in _UNARY.items():
        setattr(Tensor, f"__{name}__", made.operator)
    for name, function in operators.COMPARISONS.items():
        setattr(Tensor, f"__{name}__", constant.valued_operator(function))
    for name, function in operators.BITWISE.items():
        setattr(Tensor, f"__{name}__", constant.valued_operator(function))
        setattr(Tensor, f"__r{name}__", constant.reflected(function))
        update = updater(constant.valued_operator(function), None, f"{name} in place", is_operator=True)
        setattr(Tensor, f"__i{name}__", update)
    for name, member in _METHODS.items():
        setattr(Tensor, name, member)


# ---------------------------------------------------------------- methods that differ from the function


def _reshape(self: Tensor, *shape_: Any, order: str = "C", copy: bool | None = None) -> Any:
    """Reshape as `numpy.ndarray.reshape`."""
    to = shape_[0] if len(shape_) == 1 else shape_
    return shape.reshape(self, to, order, copy=copy)


def _transpose(self: Tensor, *axes: Any) -> Any:
    """Permute axes as `numpy.ndarray.transpose`."""
    order = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes
    return shape.transpose(self, order or None)


def _flatten(self: Tensor, order: str = "C") -> Any:
    """Return a flattened copy."""
    return convert.copy(shape.ravel(self, order))


def _copy(self: Tensor, order: str = "C") -> Any:
    """Return a copy as `numpy.ndarray.copy`, in C order by default."""
    made = convert.copy(self, order)
    return as_number(made) if is_number(self) else made


def _clone(self: Tensor) -> Any:
    """Return a copy, which is recorded as an operation.

    >>> from gradmgr import tensor
    >>> x = tensor([1.0, 2.0])
    >>> y = x.clone()
    >>> y += 1
    >>> x
    Tensor([1., 2.])
    """
    return copied(self)


def _astype(
    self: Tensor, dtype: Any, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
) -> Any:
    """Cast as `numpy.ndarray.astype`; a cast to integers or booleans gives a constant."""
    if casting != "unsafe" and not np.can_cast(self.dtype, dtype, casting):
        raise TypeError(
            f"astype: cannot cast array data from {self.dtype} to {np.dtype(dtype)} according to the rule {casting!r}"
        )
    made = create.in_memory_order(convert.astype(self, dtype, copy=copy), order)
    return as_number(made) if is_number(self) else made


def _conj(self: Tensor) -> Any:
    """Return the complex conjugate as `numpy.ndarray.conj`; a real one as it is."""
    return conj(self) if self.dtype.kind == "c" else self


def _contains(self: Tensor, value: Any) -> bool:
    return bool(constant.any(constant.equal(self, value)))


def _clip(self: Tensor, min: Any = None, max: Any = None, out: Any = None) -> Any:
    """Clip as `numpy.ndarray.clip`."""
    return extrema.clip(self, min, max, out)


def _iter(self: Tensor) -> Iterator[Any]:
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d Tensor")
    if 1 < len(self) <= _FEW and self.ndim > 1:  # as in `q, k, v = parts`
        return iter(join.split_first_axis(self))
    return (self[k] for k in range(len(self)))


_FEW = 8  # rows that are made at once, as one operation; of more a loop may want the first only


def _matrix_transposed(self: Tensor) -> Any:
    """Return the tensor with its last two axes swapped.

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    return shape.matrix_transpose(self)


def _transposed(self: Tensor) -> Tensor:
    """The axes reversed."""
    return shape.transpose(self)  # type: ignore[no-any-return]  # what these functions return is Any


def _real(self: Tensor) -> Tensor:
    """The real part."""
    return arithmetic.real(self)  # type: ignore[no-any-return]  # as above


def _imag(self: Tensor) -> Tensor:
    """The imaginary part."""
    return arithmetic.imag(self)  # type: ignore[no-any-return]  # as above


def _choose(self: Tensor, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Choose from arrays by the integers in this one, as `numpy.ndarray.choose`."""
    return order.choose(self, choices, out, mode)


def _compress(self: Tensor, condition: Any, axis: int | None = None, out: Any = None) -> Any:
    """Take the slices of which the condition holds, as `numpy.ndarray.compress`."""
    return order.compress(condition, self, axis, out)


def _fill(self: Tensor, value: Any) -> None:
    """Write one value to every element, as `numpy.ndarray.fill`."""
    if np.shape(value if not isinstance(value, Tensor) else value._array) != ():
        raise ValueError(f"fill takes one number; found shape {np.shape(value)}; use x[...] = value")
    _check_no_number(self, "fill")
    self[...] = value


def _check_no_number(t: Tensor, asked: str) -> None:
    """Raise if NumPy would have a number in place of a tensor, of which its `fill` and `flat` write to a copy."""
    if is_number(t):
        raise errors.LostWriteError(
            f"{asked} would write to {describe(t)} that is a number, the result of an operation, and numbers do not "
            "change, as NumPy's; give the name another value, as t = tensor(v)"
        )


class Flat:
    """The elements of a Tensor in C order, to read, to write and to iterate over, as `numpy.ndarray.flat`."""

    __slots__ = ("_tensor",)

    def __init__(self, t: Tensor) -> None:
        self._tensor = t

    def __len__(self) -> int:
        return self._tensor.size

    def __iter__(self) -> Iterator[Tensor]:
        return _iter(shape.ravel(self._tensor))

    def __getitem__(self, index: Any) -> Tensor:
        z = shape.ravel(self._tensor)[index]
        return as_new_array(z) if z.ndim else z  # type: ignore[no-any-return]  # what `ravel` returns is Any

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write values, from the first again where there are too few, as NumPy does."""
        t = self._tensor
        _check_no_number(t, "x.flat[i] = v")
        picked = np.arange(t.size)[normalized(index)]
        value = shape.ravel(convert.lift(value))
        value = shape.reshape(value[np.arange(picked.size) % value.shape[0]], picked.shape)
        if t.ndim:
            t[np.unravel_index(picked, t.shape)] = value
        elif picked.size:
            t[()] = shape.ravel(value)[-1]


def _flat(self: Tensor) -> Flat:
    return Flat(self)


def _set_flat(self: Tensor, value: Any) -> None:
    self.flat[...] = value


def _delete(self: Tensor, index: Any) -> NoReturn:
    raise ValueError(
        f"elements of {describe(self)} cannot be deleted: write gradmgr.numpy.delete(t, index, axis=0), or t[mask]"
    )


_METHODS = {
    "__complex__": conversion.to_complex,
    "__contains__": _contains,
    "__copy__": conversion.copied_shallowly,
    "__deepcopy__": conversion.copied_deeply,
    "__delitem__": _delete,
    "__float__": conversion.to_float,
    "_check_saved": conversion.check_saved,
    "_check_uncut": conversion.check_uncut,
    "__divmod__": floating_point.divmod_operator,
    "__rdivmod__": floating_point.divmod_reflected,
    "__setitem__": setitem,
    "__getitem__": pick.item_of,
    "__iter__": _iter,
    "__invert__": lambda self: constant.invert(self),
    "__round__": lambda self, digits=0: pick.round(self, digits),
    "T": property(_transposed, doc=_transposed.__doc__),
    "mT": property(_matrix_transposed, doc=_matrix_transposed.__doc__),
    "real": property(_real, doc=_real.__doc__),
    "imag": property(_imag, doc=_imag.__doc__),
    "all": constant.all,
    "any": constant.any,
    "argmax": constant.argmax,
    "argmin": constant.argmin,
    "argpartition": order.argpartition,
    "argsort": constant.argsort,
    "astype": _astype,
    "clip": _clip,
    "choose": _choose,
    "clone": _clone,
    "compress": _compress,
    "conj": _conj,
    "conjugate": _conj,
    "copy": _copy,
    "cumprod": running.cumprod,
    "cumsum": running.cumsum,
    "diagonal": shape.diagonal,
    "dot": products.dot,
    "fill": _fill,
    "flat": property(_flat, _set_flat, doc=Flat.__doc__),
    "flatten": _flatten,
    "max": reduce.max,
    "mean": reduce.mean,
    "min": reduce.min,
    "nonzero": constant.nonzero,
    "partition": order.partition_in_place,
    "prod": running.prod,
    "put": put.put,
    "ravel": shape.ravel,
    "repeat": shape.repeat,
    "reshape": _reshape,
    "round": pick.round,
    "searchsorted": constant.searchsorted,
    "sort": order.sort_in_place,
    "squeeze": shape.squeeze,
    "std": reduce.std,
    "sum": reduce.sum,
    "swapaxes": shape.swapaxes,
    "take": pick.take,
    "to": convert.to,
    "trace": shape.trace,
    "transpose": _transpose,
    "var": reduce.var,
}
