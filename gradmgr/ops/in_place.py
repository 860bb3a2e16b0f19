"""The methods of Tensor that write in place, under torch's names: `x.sin_()`, `x.add_(y, alpha=2)`.

Each is a function of the op table followed by what `x += y` does: it is recorded as that function,
and the tensor is bound to the result (`_recorder.rebind`), so that no slice, `detach()` or recorded
value of it changes. Each returns the tensor itself. Except for those that permute or drop axes,
none changes shape or dtype: where broadcasting would, that is a ShapeError, and where the result
is of another kind (float for integers, complex for floats), a DtypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.context import check_may_draw, current, rebind, recorders
from gradmgr._engine.elementwise import conj
from gradmgr._engine.mutation import as_type, updater, written_in_place
from gradmgr._engine.tensor import Tensor, describe, raw, wrap
from gradmgr.ops import (
    arithmetic,
    bessel,
    constant,
    error_function,
    extrema,
    floating_point,
    gamma,
    pick,
    products,
    put,
    reduce,
    running,
    shape,
    special,
    ufuncs,
    where,
)
from gradmgr.ops.convert import lift, lift_like, to

# ---------------------------------------------------------------- of one tensor

# By method: the function, and the ufunc of NumPy's that writes the same into its own input.
_UNARY: dict[str, tuple[Any, Any]] = {
    "abs_": (arithmetic.absolute, np.absolute),
    "acos_": (arithmetic.arccos, np.arccos),
    "acosh_": (arithmetic.arccosh, np.arccosh),
    "asin_": (arithmetic.arcsin, np.arcsin),
    "asinh_": (arithmetic.arcsinh, np.arcsinh),
    "atan_": (arithmetic.arctan, np.arctan),
    "atanh_": (arithmetic.arctanh, np.arctanh),
    "bitwise_not_": (constant.invert, None),
    "ceil_": (arithmetic.ceil, np.ceil),
    "conj_physical_": (conj, np.conjugate),
    "cos_": (arithmetic.cos, np.cos),
    "cosh_": (arithmetic.cosh, np.cosh),
    "deg2rad_": (arithmetic.deg2rad, np.deg2rad),
    "digamma_": (gamma.digamma, None),
    "erf_": (error_function.erf, None),
    "erfc_": (error_function.erfc, None),
    "erfinv_": (error_function.erfinv, None),
    "exp2_": (arithmetic.exp2, np.exp2),
    "exp_": (arithmetic.exp, np.exp),
    "expm1_": (arithmetic.expm1, np.expm1),
    "floor_": (arithmetic.floor, np.floor),
    "i0_": (bessel.i0, None),
    "lgamma_": (gamma.gammaln, None),
    "log10_": (arithmetic.log10, np.log10),
    "log1p_": (arithmetic.log1p, np.log1p),
    "log2_": (arithmetic.log2, np.log2),
    "log_": (arithmetic.log, np.log),
    "logical_not_": (constant.logical_not, None),
    "neg_": (arithmetic.negative, np.negative),
    "rad2deg_": (arithmetic.rad2deg, np.rad2deg),
    "reciprocal_": (arithmetic.reciprocal, np.reciprocal),
    "sgn_": (arithmetic.sign, np.sign),
    "sigmoid_": (special.expit, None),
    "sign_": (arithmetic.sign, np.sign),
    "sin_": (arithmetic.sin, np.sin),
    "sinc_": (arithmetic.sinc, None),
    "sinh_": (arithmetic.sinh, np.sinh),
    "sqrt_": (arithmetic.sqrt, np.sqrt),
    "square_": (arithmetic.square, np.square),
    "tan_": (arithmetic.tan, np.tan),
    "tanh_": (arithmetic.tanh, np.tanh),
    "trunc_": (arithmetic.trunc, np.trunc),
}

# ---------------------------------------------------------------- of two

# By method: what an operator is made of, and NumPy's ufunc where writing with it is safe.
_BINARY: dict[str, tuple[Any, Any]] = {
    "atan2_": (arithmetic.arctan2, np.arctan2),
    "bitwise_and_": (constant.bitwise_and, None),
    "bitwise_left_shift_": (constant.left_shift, None),
    "bitwise_or_": (constant.bitwise_or, None),
    "bitwise_right_shift_": (constant.right_shift, None),
    "bitwise_xor_": (constant.bitwise_xor, None),
    "copysign_": (arithmetic.copysign, np.copysign),
    "float_power_": (arithmetic.float_power, None),
    "floor_divide_": (arithmetic.floor_divide.operator, np.floor_divide),
    "fmod_": (arithmetic.fmod, np.fmod),
    "gcd_": (constant.gcd, None),
    "heaviside_": (arithmetic.heaviside, np.heaviside),
    "hypot_": (arithmetic.hypot, np.hypot),
    "lcm_": (constant.lcm, None),
    "ldexp_": (floating_point.ldexp, None),
    "logical_and_": (constant.logical_and, None),
    "logical_or_": (constant.logical_or, None),
    "logical_xor_": (constant.logical_xor, None),
    "mul_": (arithmetic.multiply.operator, np.multiply),
    "nextafter_": (arithmetic.nextafter, np.nextafter),
    "pow_": (arithmetic.power.operator, np.power),
    "remainder_": (arithmetic.remainder.operator, np.remainder),
    "xlogy_": (special.xlogy, None),
}

_add = updater(arithmetic.add.operator, np.add, "add_")
_subtract = updater(arithmetic.subtract.operator, np.subtract, "sub_")
_divide = updater(arithmetic.divide.operator, np.divide, "div_")
_floor_divide = updater(arithmetic.floor_divide.operator, np.floor_divide, "div_")


def add_(self: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """Add alpha * other in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).add_(tensor([1.0, 1.0]), alpha=10.0)
    Tensor([11., 12.])
    """
    return _check_operand("add_", _add(self, _scale(other, alpha)), other)


def sub_(self: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """Subtract alpha * other in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).sub_(tensor([1.0, 1.0]), alpha=10.0)
    Tensor([-9., -8.])
    """
    return _check_operand("sub_", _subtract(self, _scale(other, alpha)), other)


def div_(self: Tensor, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide in place; `rounding_mode` is None, "trunc" (towards zero) or "floor", whose derivatives are zero.

    >>> from gradmgr import tensor
    >>> tensor([7.0, -7.0]).div_(2.0, rounding_mode="floor")
    Tensor([ 3., -4.])
    """
    if rounding_mode is None:
        return _check_operand("div_", _divide(self, other), other)
    if rounding_mode == "floor":
        return _check_operand("div_", _floor_divide(self, other), other)
    if rounding_mode != "trunc":
        raise ValueError(f"div_: rounding_mode is None, 'trunc' or 'floor'; found {rounding_mode!r}")
    if self.dtype.kind in "iu":
        whole = arithmetic.floor_divide(self, other)
        rest = constant.not_equal(arithmetic.remainder(self, other), 0)
        up = constant.logical_and(rest, constant.less(whole, 0))
        return _rebind_same_shape(self, whole + up, "div_")
    return _rebind_same_shape(self, arithmetic.trunc(arithmetic.divide(self, other)), "div_")


def _scale(other: Any, alpha: Any) -> Any:
    """Return alpha * other; `other` itself for the usual alpha."""
    return other if alpha.__class__ is int and alpha == 1 else arithmetic.multiply(other, alpha)


def _check_operand(name: str, result: Any, other: Any) -> Any:
    if result is NotImplemented:
        libraries.need_operand(other, name)  # raises, saying what was found
    return result


# ---------------------------------------------------------------- of more: what the result is

# These functions return the result; the method made of one binds the tensor to it.


def addbmm_(self: Tensor, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace by beta * x + alpha * the sum over the first axis of batch1 @ batch2.

    >>> from gradmgr import tensor
    >>> tensor([[1.0]]).addbmm_(tensor([[[2.0]], [[3.0]]]), tensor([[[10.0]], [[100.0]]]))
    Tensor([[321.]])
    """
    return _scaled_sum(self, beta, reduce.sum(products.matmul(batch1, batch2), axis=0), alpha)


def addcdiv_(self: Tensor, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Add value * tensor1 / tensor2 in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 1.0]).addcdiv_(tensor([6.0, 8.0]), tensor([3.0, 2.0]), value=0.5)
    Tensor([2., 3.])
    """
    return self + _scale(arithmetic.divide(tensor1, tensor2), value)


def addcmul_(self: Tensor, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Add value * tensor1 * tensor2 in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 1.0]).addcmul_(tensor([2.0, 3.0]), tensor([10.0, 10.0]), value=0.5)
    Tensor([11., 16.])
    """
    return self + _scale(arithmetic.multiply(tensor1, tensor2), value)


def addmm_(self: Tensor, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace by beta * x + alpha * mat1 @ mat2, for matrices.

    >>> from gradmgr import tensor
    >>> tensor([[1.0]]).addmm_(tensor([[2.0, 3.0]]), tensor([[10.0], [100.0]]), beta=0.5)
    Tensor([[320.5]])
    """
    return _scaled_sum(self, beta, products.matmul(mat1, mat2), alpha)


def addmv_(self: Tensor, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace by beta * x + alpha * mat @ vec, for a matrix and a vector.

    >>> from gradmgr import tensor
    >>> tensor([1.0]).addmv_(tensor([[2.0, 3.0]]), tensor([10.0, 100.0]), beta=0.5)
    Tensor([320.5])
    """
    return _scaled_sum(self, beta, products.matmul(mat, vec), alpha)


def addr_(self: Tensor, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace by beta * x + alpha * the outer product of two vectors.

    >>> from gradmgr import tensor
    >>> tensor([[0.0, 0.0], [0.0, 0.0]]).addr_(tensor([1.0, 2.0]), tensor([1.0, 10.0]))
    Tensor([[ 1., 10.],
            [ 2., 20.]])
    """
    return _scaled_sum(self, beta, products.outer(vec1, vec2), alpha)


def baddbmm_(self: Tensor, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Replace by beta * x + alpha * batch1 @ batch2, for stacks of matrices.

    >>> from gradmgr import tensor
    >>> tensor([[[1.0]]]).baddbmm_(tensor([[[2.0, 3.0]]]), tensor([[[10.0], [100.0]]]))
    Tensor([[[321.]]])
    """
    return _scaled_sum(self, beta, products.matmul(batch1, batch2), alpha)


def clamp_(self: Tensor, min: Any = None, max: Any = None) -> Any:
    """Clip to at least `min` and at most `max`, either of which may be None, in place.

    >>> from gradmgr import tensor
    >>> tensor([-2.0, 0.5, 3.0]).clamp_(0.0, 1.0)
    Tensor([0. , 0.5, 1. ])
    """
    if min is None and max is None:
        raise ValueError("clamp_: give min, max or both; found neither")
    return extrema.clip(self, min, max)


def clamp_max_(self: Tensor, max: Any) -> Any:
    """Clip to at most `max` in place.

    >>> from gradmgr import tensor
    >>> tensor([-2.0, 0.5, 3.0]).clamp_max_(1.0)
    Tensor([-2. ,  0.5,  1. ])
    """
    return extrema.clip(self, None, max)


def clamp_min_(self: Tensor, min: Any) -> Any:
    """Clip to at least `min` in place.

    >>> from gradmgr import tensor
    >>> tensor([-2.0, 0.5, 3.0]).clamp_min_(0.0)
    Tensor([0. , 0.5, 3. ])
    """
    return extrema.clip(self, min, None)


def cumprod_(self: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Replace by the cumulative product along an axis, computed in `dtype` if that is given.

    >>> from gradmgr import tensor
    >>> tensor([2.0, 3.0, 4.0]).cumprod_(0)
    Tensor([ 2.,  6., 24.])
    """
    return running.cumprod(self, dim, self.dtype if dtype is None else dtype)


def cumsum_(self: Tensor, dim: int, *, dtype: Any = None) -> Any:
    """Replace by the cumulative sum along an axis, computed in `dtype` if that is given.

    >>> from gradmgr import tensor
    >>> tensor([2.0, 3.0, 4.0]).cumsum_(0)
    Tensor([2., 5., 9.])
    """
    return running.cumsum(self, dim, self.dtype if dtype is None else dtype)


def frac_(self: Tensor) -> Any:
    """Replace by the part after the point, of the sign of x; the derivative is 1.

    >>> from gradmgr import tensor
    >>> tensor([1.25, -1.25]).frac_()
    Tensor([ 0.25, -0.25])
    """
    return self - arithmetic.trunc(self)


def lerp_(self: Tensor, end: Any, weight: Any) -> Any:
    """Go by `weight` of the way to `end` in place: x + weight * (end - x).

    >>> from gradmgr import tensor
    >>> tensor([0.0, 10.0]).lerp_(tensor([1.0, 20.0]), 0.25)
    Tensor([ 0.25, 12.5 ])
    """
    return self + arithmetic.multiply(weight, arithmetic.subtract(end, self))


def logit_(self: Tensor, eps: float | None = None) -> Any:
    """Replace by log(x / (1 - x)), with x clipped to [eps, 1 - eps] first if `eps` is given.

    >>> from gradmgr import tensor
    >>> tensor([0.5]).logit_()
    Tensor([0.])
    """
    return special.logit(self if eps is None else extrema.clip(self, eps, 1 - eps))


def masked_fill_(self: Tensor, mask: Any, value: Any) -> Any:
    """Write one value where a mask of booleans, which broadcasts to x, is set.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0, 3.0]).masked_fill_(tensor([True, False, True]), 0.0)
    Tensor([0., 2., 0.])
    """
    mask = _mask("masked_fill_", self, mask)
    if np.shape(raw(value)) != ():
        raise errors.ShapeError(
            f"masked_fill_ takes one value; found shape {np.shape(raw(value))}; use x[mask] = values"
        )
    return where.choose(mask, value if isinstance(value, Tensor) else _as_scalar_of_dtype(value, self), self)


def mvlgamma_(self: Tensor, p: int) -> Any:
    """Replace by the logarithm of the multivariate gamma function of dimension p.

    >>> from gradmgr import tensor
    >>> tensor([2.0]).mvlgamma_(1)
    Tensor([0.])
    """
    return gamma.multigammaln(self, p)


def nan_to_num_(self: Tensor, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Replace NaN and infinities as `numpy.nan_to_num`.

    >>> from gradmgr import tensor
    >>> tensor([1.0, float("nan")]).nan_to_num_()
    Tensor([1., 0.])
    """
    return extrema.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


def polygamma_(self: Tensor, n: int) -> Any:
    """Replace by the n-th derivative of the digamma function.

    >>> from gradmgr import tensor
    >>> tensor([1.0]).polygamma_(1)  # pi**2 / 6
    Tensor([1.64493407])
    """
    return gamma.polygamma(n, self)


def relu_(self: Tensor) -> Any:
    """Replace what is negative by 0; the derivative at 0 is 0.

    >>> from gradmgr import tensor
    >>> tensor([-1.0, 2.0]).relu_()
    Tensor([0., 2.])
    """
    if self.dtype.kind == "c":
        raise errors.DtypeError(f"relu_ needs an order, which complex numbers have not; found {describe(self)}")
    return where.choose(raw(self) <= 0, _as_scalar_of_dtype(0, self), self)


def round_(self: Tensor, *, decimals: int = 0) -> Any:
    """Round in place; the derivative is zero.

    >>> from gradmgr import tensor
    >>> tensor([1.26, -0.34]).round_(decimals=1)
    Tensor([ 1.3, -0.3])
    """
    return pick.round(self, decimals)


def rsqrt_(self: Tensor) -> Any:
    """Replace by 1 / sqrt(x).

    >>> from gradmgr import tensor
    >>> tensor([4.0, 16.0]).rsqrt_()
    Tensor([0.5 , 0.25])
    """
    return arithmetic.reciprocal(arithmetic.sqrt(self))


def tril_(self: Tensor, diagonal: int = 0) -> Any:
    """Zero the elements above a diagonal.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).tril_()
    Tensor([[1., 0.],
            [3., 4.]])
    """
    return shape.tril(self, diagonal)


def triu_(self: Tensor, diagonal: int = 0) -> Any:
    """Zero the elements below a diagonal.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).triu_()
    Tensor([[1., 2.],
            [0., 4.]])
    """
    return shape.triu(self, diagonal)


def _scaled_sum(x: Tensor, beta: Any, product: Any, alpha: Any) -> Any:
    """Return beta * x + alpha * product; for a beta of 0 without what is in x, which may be NaN."""
    product = _scale(product, alpha)
    if not isinstance(beta, Tensor) and beta == 0:
        return shape.broadcast_to(product, np.broadcast_shapes(x.shape, product.shape))
    return arithmetic.add(_scale(x, beta), product)


def _as_scalar_of_dtype(value: Any, x: Tensor) -> Any:
    """Return a number as a 0-d array of the dtype of x where that keeps its kind, so that it promotes nothing."""
    made = lift(value)
    if made.ndim == 0 and np.can_cast(made.dtype, x.dtype, "same_kind"):
        return libraries.namespace(x._array).asarray(made, dtype=x.dtype)
    return made


def _mask(name: str, x: Tensor, mask: Any) -> Any:
    mask = raw(lift_like(mask, x))
    if mask.dtype != bool:
        raise errors.DtypeError(f"{name} takes a mask of booleans; found {mask.dtype}; compare, as in x > 0")
    return mask


# ---------------------------------------------------------------- writes at places, as x[index] = v

# These functions write, and return the tensor.


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Any:
    """Write the values of `src`, broadcast, cast and moved to the device of x; `non_blocking` changes nothing.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).copy_(tensor([3, 4]))
    Tensor([3., 4.])
    """
    src = lift(src)
    if isinstance(src, Tensor):
        src = src if src.device == self.device else to(src, self.device)
    else:
        src = libraries.to_device(src, self.device)
    if not _can_broadcast(src.shape, self.shape):
        raise errors.ShapeError(f"copy_ writes values of shape {src.shape} into {describe(self)}; they do not fit")
    self[...] = src
    return self


def _can_broadcast(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(given, wanted) == wanted
    except ValueError:
        return False


def fill_(self: Tensor, value: Any) -> Any:
    """Write one value, a number or a Tensor without axes, to every element.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).fill_(7.0)
    Tensor([7., 7.])
    """
    if np.shape(raw(value)) != ():
        raise errors.ShapeError(f"fill_ takes one number; found shape {np.shape(raw(value))}; use copy_(values)")
    self[...] = value
    return self


def zero_(self: Tensor) -> Any:
    """Write 0 to every element: from there on the tensor is a constant.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).zero_()
    Tensor([0., 0.])
    """
    self[...] = 0
    return self


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Any:
    """Write one value to the main diagonal, of a tall matrix once more after each block if `wrap` is set.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).fill_diagonal_(0.0)
    Tensor([[0., 2.],
            [3., 0.]])
    """
    put.fill_diagonal(self, fill_value, wrap)
    return self


def index_add_(self: Tensor, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """Add alpha * source[..., k, ...] to the slice that index[k] names along `dim`; repeated slices add up.

    >>> from gradmgr import tensor
    >>> tensor([0.0, 0.0, 0.0]).index_add_(0, tensor([2, 0, 2]), tensor([1.0, 2.0, 3.0]))
    Tensor([2., 0., 4.])
    """
    ufuncs.at(np.add, arithmetic.add, self, _slices("index_add_", self, dim, index), _scale(source, alpha))
    return self


def index_copy_(self: Tensor, dim: int, index: Any, source: Any) -> Any:
    """Write source[..., k, ...] to the slice that index[k] names along `dim`; of repeated slices the last stays.

    >>> from gradmgr import tensor
    >>> tensor([0.0, 0.0, 0.0]).index_copy_(0, tensor([2, 0]), tensor([1.0, 2.0]))
    Tensor([2., 0., 1.])
    """
    self[_slices("index_copy_", self, dim, index)] = source
    return self


def index_fill_(self: Tensor, dim: int, index: Any, value: Any) -> Any:
    """Write one value to the slices that `index` names along `dim`.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).index_fill_(1, tensor([0]), 9.0)
    Tensor([[9., 2.],
            [9., 4.]])
    """
    if np.shape(raw(value)) != ():
        raise errors.ShapeError(f"index_fill_ takes one value; found shape {np.shape(raw(value))}; use index_copy_")
    self[_slices("index_fill_", self, dim, index)] = value
    return self


def index_put_(self: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Write x[indices] = values; add them up, repeated elements too, if `accumulate` is set.

    >>> from gradmgr import tensor
    >>> tensor([0.0, 0.0]).index_put_([tensor([1, 1])], tensor([2.0, 3.0]), accumulate=True)
    Tensor([0., 5.])
    """
    where = tuple([raw(part) for part in indices])
    if accumulate:
        ufuncs.at(np.add, arithmetic.add, self, where, values)
    else:
        self[where] = values
    return self


def masked_scatter_(self: Tensor, mask: Any, source: Any) -> Any:
    """Write the first elements of `source`, in C order, where a mask of booleans, which broadcasts to x, is set.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0, 3.0]).masked_scatter_(tensor([True, False, True]), tensor([10.0, 20.0]))
    Tensor([10.,  2., 20.])
    """
    mask = _mask("masked_scatter_", self, mask)
    mask = libraries.namespace(mask).broadcast_to(mask, self.shape)
    source, count = shape.ravel(lift_like(source, self)), int(mask.sum())
    if source.shape[0] < count:
        raise errors.ShapeError(f"masked_scatter_ has {count} places to write to; found {source.shape[0]} values")
    self[mask] = source[:count]
    return self


def put_(self: Tensor, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Write `source` where `index` names elements of the flattened tensor; add up if `accumulate` is set.

    >>> from gradmgr import tensor
    >>> tensor([[0.0, 0.0], [0.0, 0.0]]).put_(tensor([3, 1]), tensor([1.0, 2.0]))
    Tensor([[0., 2.],
            [0., 1.]])
    """
    places = raw(lift_like(index, self))
    if not bool(((places >= -self.size) & (places < self.size)).all()):
        raise IndexError(f"put_: an index is out of range for {self.size} elements")
    where = libraries.namespace(self._array).unravel_index(places % max(self.size, 1), self.shape)
    return index_put_(self, where, shape.reshape(lift_like(source, self), places.shape), accumulate)


def scatter_(self: Tensor, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Any:
    """Write src[i, j] to x[index[i, j], j], for `dim` 0 of two axes; add or multiply by it if `reduce` says so.

    `index` has as many axes as x, none longer than that of `src`, nor, but for `dim`, than that of x; `src` may
    be one number.

    >>> from gradmgr import tensor
    >>> tensor([[0.0, 0.0], [0.0, 0.0]]).scatter_(0, tensor([[1, 0]]), tensor([[5.0, 6.0]]))
    Tensor([[0., 6.],
            [5., 0.]])
    """
    where, values = _scatter_arguments("scatter_", self, dim, index, src)
    if reduce is None:
        self[where] = values
    elif reduce == "add":
        ufuncs.at(np.add, arithmetic.add, self, where, values)
    elif reduce == "multiply":
        ufuncs.at(np.multiply, arithmetic.multiply, self, where, values)
    else:
        raise ValueError(f"scatter_: reduce is None, 'add' or 'multiply'; found {reduce!r}")
    return self


def scatter_add_(self: Tensor, dim: int, index: Any, src: Any) -> Any:
    """Add src[i, j] to x[index[i, j], j], for `dim` 0 of two axes; repeated elements add up.

    >>> from gradmgr import tensor
    >>> tensor([0.0, 0.0]).scatter_add_(0, tensor([1, 1, 0]), tensor([1.0, 2.0, 3.0]))
    Tensor([3., 3.])
    """
    where, values = _scatter_arguments("scatter_add_", self, dim, index, src)
    ufuncs.at(np.add, arithmetic.add, self, where, values)
    return self


def _slices(name: str, x: Tensor, dim: int, index: Any) -> tuple[Any, ...]:
    """Return the index that names whole slices along an axis."""
    places = raw(lift_like(index, x))
    if places.ndim > 1 or (places.size and places.dtype.kind not in "iu"):
        raise IndexError(f"{name} takes a vector of integers as index; found shape {places.shape}, {places.dtype}")
    dim = normalize_axis_index(dim, x.ndim)
    return (*[slice(None)] * dim, places.reshape(-1).astype(np.intp))


def _scatter_arguments(name: str, x: Tensor, dim: int, index: Any, src: Any) -> tuple[Any, Any]:
    """Return the index of the elements that are written, and what is written to them."""
    places, xp = raw(lift_like(index, x)), libraries.namespace(x._array)
    dim = normalize_axis_index(dim, x.ndim)
    if places.ndim != x.ndim or (places.size and places.dtype.kind not in "iu"):
        raise IndexError(
            f"{name} takes an index of integers with {x.ndim} axes; found {places.dtype} with {places.ndim}"
        )
    if any(n > m for k, (n, m) in enumerate(zip(places.shape, x.shape, strict=True)) if k != dim):
        raise errors.ShapeError(f"{name}: an index of shape {places.shape} does not fit {describe(x)} along dim {dim}")
    values: Any = src if isinstance(src, (int, float, complex)) else lift_like(src, x)
    if np.shape(raw(values)):
        if values.ndim != x.ndim or any(n > m for n, m in zip(places.shape, values.shape, strict=True)):
            raise errors.ShapeError(f"{name}: src of shape {values.shape} is too small for an index of {places.shape}")
        values = values[tuple([slice(n) for n in places.shape])]
    axes = [xp.arange(n).reshape([-1 if j == k else 1 for j in range(x.ndim)]) for k, n in enumerate(places.shape)]
    axes[dim] = places.astype(np.intp)
    return tuple(axes), values


# ---------------------------------------------------------------- random values


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: np.random.Generator) -> Any:
    """Fill with ones of probability `p`, a number or an array that broadcasts, and zeros.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).bernoulli_(0.25, generator=numpy.random.default_rng(0))
    >>> abs(w.mean() - 0.25) < 0.05, sorted(set(w.tolist()))
    (Tensor(True), [0.0, 1.0])
    """
    chance = _raw_on_host(p)
    if not bool(((chance >= 0) & (chance <= 1)).all()) or not _can_broadcast(chance.shape, self.shape):
        raise ValueError(f"bernoulli_ takes p in [0, 1] that broadcasts to {self.shape}; found shape {chance.shape}")
    return _fill_with(self, _draw(self, generator, "bernoulli_", "random", like=chance) < chance)


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of a Cauchy distribution.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).cauchy_(median=3.0, generator=numpy.random.default_rng(0))
    >>> abs(w - 3.0).max() > 10.0
    Tensor(True)
    """
    return _fill_with(self, median + sigma * _draw(self, generator, "cauchy_", "standard_cauchy"))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of an exponential distribution of rate `lambd`.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).exponential_(2.0, generator=numpy.random.default_rng(0))
    >>> abs(w.mean() - 1 / 2.0) < 0.05
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "exponential_", "exponential", 1 / lambd))


def geometric_(self: Tensor, p: float, *, generator: np.random.Generator) -> Any:
    """Fill with values of a geometric distribution: how many trials of probability `p` the first success takes.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).geometric_(0.5, generator=numpy.random.default_rng(0))
    >>> w.min(), abs(w.mean() - 1 / 0.5) < 0.1
    (Tensor(1.), Tensor(True))
    """
    return _fill_with(self, _draw(self, generator, "geometric_", "geometric", p))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of which the logarithms are of a normal distribution with this mean and deviation.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).log_normal_(0.0, 0.5, generator=numpy.random.default_rng(0))
    >>> w.min() > 0.0
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "log_normal_", "lognormal", mean, std))


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values of a normal distribution.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).normal_(3.0, 0.1, generator=numpy.random.default_rng(0))
    >>> w.mean().round(1), w.std().round(1)
    (Tensor(3.), Tensor(0.1))
    """
    return _fill_with(self, _draw(self, generator, "normal_", "normal", mean, std))


def random_(self: Tensor, low: int, high: int | None = None, *, generator: np.random.Generator) -> Any:
    """Fill with integers from `low` to `high` - 1; with one number, from 0 to that less 1.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).random_(1, 7, generator=numpy.random.default_rng(0))
    >>> sorted(set(w.tolist()))
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    """
    return _fill_with(self, _draw(self, generator, "random_", "integers", low, high))


def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: np.random.Generator) -> Any:
    """Fill with values drawn uniformly from `low` to below `high`.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> w = tensor([0.0] * 1000).uniform_(2.0, 3.0, generator=numpy.random.default_rng(0))
    >>> (w >= 2.0).all() & (w < 3.0).all()
    Tensor(True)
    """
    return _fill_with(self, _draw(self, generator, "uniform_", "uniform", low, high))


def _draw(x: Tensor, generator: Any, name: str, method: str, *args: Any, like: Any = None) -> Any:
    """Draw as many numbers on the host as x has: the same on every device.

    Where x or `like` is captured, the draw is, so that each replay draws new ones.
    """
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"{name} draws from generator=, a numpy.random.Generator such as numpy.random.default_rng(0); "
            f"found {type(generator).__name__}"
        )
    if x.dtype.kind in "biu" and name not in ("bernoulli_", "geometric_", "random_"):
        raise errors.DtypeError(f"{name} fills with real numbers, not {describe(x)}; make it of a floating dtype")
    check_may_draw(name)
    return libraries.foreign(getattr(generator, method), batched.innermost(x._array), batched.innermost(like))(
        *args, x.shape
    )


def _fill_with(x: Tensor, drawn: Any) -> Any:
    return copy_(x, libraries.namespace(drawn).asarray(drawn).astype(x.dtype))


def _raw_on_host(value: Any) -> Any:
    return libraries.to_device(raw(lift(value)), "cpu")


# ---------------------------------------------------------------- axes


def squeeze_(self: Tensor, dim: int | tuple[int, ...] | None = None) -> Any:
    """Drop axes of length 1, all or those of `dim` that are, in place.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0]]).squeeze_()
    Tensor([1., 2.])
    """
    if dim is not None:
        many = dim if isinstance(dim, tuple) else (dim,)
        dim = tuple([k for k in many if self.shape[normalize_axis_index(k, self.ndim)] == 1])
    return shape.squeeze(self, dim)


def swapaxes_(self: Tensor, axis0: int, axis1: int) -> Any:
    """Swap two axes in place.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).swapaxes_(0, 1)
    Tensor([[1., 3.],
            [2., 4.]])
    """
    return shape.swapaxes(self, axis0, axis1)


def t_(self: Tensor) -> Any:
    """Swap the axes of a matrix in place; a vector or a number stays as it is.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).t_()
    Tensor([[1., 3.],
            [2., 4.]])
    """
    if self.ndim > 2:
        raise errors.ShapeError(f"t_ takes at most two axes; found {describe(self)}; use transpose_ or x.mT")
    return shape.transpose(self)


def transpose_(self: Tensor, dim0: int, dim1: int) -> Any:
    """Swap two axes in place.

    >>> from gradmgr import tensor
    >>> tensor([[1.0, 2.0], [3.0, 4.0]]).transpose_(0, 1)
    Tensor([[1., 3.],
            [2., 4.]])
    """
    return shape.swapaxes(self, dim0, dim1)


def unsqueeze_(self: Tensor, dim: int) -> Any:
    """Insert an axis of length 1 in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).unsqueeze_(0)
    Tensor([[1., 2.]])
    """
    return shape.expand_dims(self, dim)


# ---------------------------------------------------------------- binding

_RESULTS = (
    *(addbmm_, addcdiv_, addcmul_, addmm_, addmv_, addr_, baddbmm_, clamp_, clamp_max_, clamp_min_, cumprod_, cumsum_),
    *(frac_, lerp_, logit_, masked_fill_, mvlgamma_, nan_to_num_, polygamma_, relu_, round_, rsqrt_, tril_, triu_),
)
_WRITES = (
    *(add_, sub_, div_, copy_, fill_, zero_, fill_diagonal_, index_add_, index_copy_, index_fill_, index_put_),
    *(masked_scatter_, put_, scatter_, scatter_add_),
    *(bernoulli_, cauchy_, exponential_, geometric_, log_normal_, normal_, random_, uniform_),
)
_AXES = (squeeze_, swapaxes_, t_, transpose_, unsqueeze_)

# Other names torch has for the same.
_ALIASES = {
    "absolute_": "abs_",
    "arccos_": "acos_",
    "arccosh_": "acosh_",
    "arcsin_": "asin_",
    "arcsinh_": "asinh_",
    "arctan2_": "atan2_",
    "arctan_": "atan_",
    "arctanh_": "atanh_",
    "clip_": "clamp_",
    "divide_": "div_",
    "fix_": "trunc_",
    "multiply_": "mul_",
    "negative_": "neg_",
    "subtract_": "sub_",
    "swapdims_": "swapaxes_",
    "true_divide_": "div_",
}


def bind() -> None:
    """Bind the methods onto Tensor; called once, by `gradmgr.ops`."""
    for name, (function, ufunc) in _UNARY.items():
        setattr(Tensor, name, _unary_method(name, function, ufunc))
    for name, (function, ufunc) in _BINARY.items():
        setattr(Tensor, name, _binary_method(name, function, ufunc))
    for method in _WRITES:
        setattr(Tensor, method.__name__, method)
    for function in _RESULTS:
        setattr(Tensor, function.__name__, _rebinding_method(function, _rebind_same_shape))
    for function in _AXES:
        setattr(Tensor, function.__name__, _rebinding_method(function, _rebind_other_shape))
    for alias, name in _ALIASES.items():
        setattr(Tensor, alias, getattr(Tensor, name))


def _unary_method(name: str, function: Any, ufunc: Any) -> Any:
    def method(self: Tensor) -> Any:
        if ufunc is not None and current() is None and _write_to_own_buffer(self, ufunc):
            return self
        return _rebind_same_shape(self, function(self), name)

    return _with_name(method, name, f"Put `{function.__name__}` of the values in their place.")


def _binary_method(name: str, function: Any, ufunc: Any) -> Any:
    update = updater(function, ufunc, name)

    def method(self: Tensor, other: Any) -> Any:
        return _check_operand(name, update(self, other), other)

    return _with_name(method, name, f"Put `{function.__name__}` of the values and `other` in their place.")


def _rebinding_method(function: Any, bound: Any) -> Any:
    name = function.__name__

    def method(self: Tensor, *args: Any, **keywords: Any) -> Any:
        return bound(self, function(self, *args, **keywords), name)

    method.__wrapped__ = function  # type: ignore[attr-defined]  # what inspect.signature reads
    return _with_name(method, name, function.__doc__)


def _with_name(method: Any, name: str, doc: str | None) -> Any:
    method.__name__ = method.__qualname__ = name
    method.__doc__ = doc
    return method


def _write_to_own_buffer(x: Tensor, ufunc: Any) -> bool:
    """Write a ufunc of x into its own buffer if nothing else can see it; tell whether it was done."""
    if libraries.float_errors_raise() or not libraries.is_differentiable(x._array.dtype):
        return False
    return written_in_place(x, ufunc)


def _rebind_same_shape(x: Tensor, z: Any, name: str) -> Tensor:
    """Let x be a result of its own shape, and of its dtype up to a cast within the kind."""
    z = z if isinstance(z, Tensor) else wrap(z)
    if z.shape != x.shape:
        raise errors.ShapeError(
            f"{name} would change {describe(x)} to shape {z.shape}; broadcasting cannot enlarge what is written "
            "in place; compute it into a new tensor"
        )
    if z.dtype != x.dtype:
        if not np.can_cast(z.dtype, x.dtype, "same_kind"):
            raise errors.DtypeError(
                f"{name} would change {describe(x)} to dtype {z.dtype}; make it {z.dtype} first, or compute it into "
                "a new tensor"
            )
        z = as_type(z, x.dtype)
    return rebind(x, z)


def _rebind_other_shape(x: Tensor, z: Tensor, name: str) -> Tensor:
    """Let x be a result with other axes, unless a gradient in its present shape is to be written to it."""
    if z.shape != x.shape and x.grad is not None:
        raise errors.ShapeError(
            f"{name} would change {describe(x)} to shape {z.shape}, and its .grad has the present one; "
            "set x.grad = None first, or make a new tensor"
        )
    if z.shape != x.shape and any(x in getattr(rec, "leaves", ()) for rec in recorders(current())):
        raise errors.ShapeError(
            f"{name} would change {describe(x)} to shape {z.shape}, while a manager that records it is to write "
            "its gradient in the present one; make a new tensor, as with x.T"
        )
    return rebind(x, z)
