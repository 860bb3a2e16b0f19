"""The methods of Tensor that write in place, under torch's names: `x.sin_()`, `x.add_(y, alpha=2)`.

Each is a function of the op table followed by what `x += y` does: it is recorded as that function,
and the tensor is bound to the result (`context.rebind`), so that no slice, `detach()` or recorded
value of it changes. Each returns the tensor itself. Except for those that permute or drop axes,
none changes shape or dtype: where broadcasting would, that is a ShapeError, and where the result
is of another kind (float for integers, complex for floats), a DtypeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import current, rebind, recorders
from gradmgr._engine.elementwise import conj
from gradmgr._engine.mutation import as_type, updater, write_whole, written_in_place
from gradmgr._engine.tensor import Tensor, describe, raw, wrap
from gradmgr._engine.views import check_kept
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
    reduce,
    running,
    shape,
    special,
    where,
)
from gradmgr.ops.convert import lift
from gradmgr.ops.in_place_random import DRAWS
from gradmgr.ops.in_place_writes import WRITES, checked_mask, scaled

# ---------------------------------------------------------------- functions of the tensor alone

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

# ---------------------------------------------------------------- functions of two operands

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
    return _check_operand("add_", _add(self, scaled(other, alpha)), other)


def sub_(self: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """Subtract alpha * other in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 2.0]).sub_(tensor([1.0, 1.0]), alpha=10.0)
    Tensor([-9., -8.])
    """
    return _check_operand("sub_", _subtract(self, scaled(other, alpha)), other)


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


def _check_operand(name: str, result: Any, other: Any) -> Any:
    if result is NotImplemented:
        libraries.need_operand(other, name)  # raises, saying what was found
    return result


# ---------------------------------------------------------------- functions of further arguments

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
    return self + scaled(arithmetic.divide(tensor1, tensor2), value)


def addcmul_(self: Tensor, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Add value * tensor1 * tensor2 in place.

    >>> from gradmgr import tensor
    >>> tensor([1.0, 1.0]).addcmul_(tensor([2.0, 3.0]), tensor([10.0, 10.0]), value=0.5)
    Tensor([11., 16.])
    """
    return self + scaled(arithmetic.multiply(tensor1, tensor2), value)


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
    mask = checked_mask("masked_fill_", self, mask)
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
    product = scaled(product, alpha)
    if not isinstance(beta, Tensor) and beta == 0:
        return shape.broadcast_to(product, np.broadcast_shapes(x.shape, product.shape))
    return arithmetic.add(scaled(x, beta), product)


def _as_scalar_of_dtype(value: Any, x: Tensor) -> Any:
    """Return a number as a 0-d array of the dtype of x where that keeps its kind, so that it promotes nothing."""
    made = lift(value)
    if made.ndim == 0 and np.can_cast(made.dtype, x.dtype, "same_kind"):
        return libraries.namespace(x._array).asarray(made, dtype=x.dtype)
    return made


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
_WRITES = (add_, sub_, div_, *WRITES, *DRAWS)
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
        check_kept(self, name)
        if ufunc is not None and current() is None and _write_to_own_buffer(self, ufunc):
            return self
        return _rebind_same_shape(self, function(self), name)

    return _with_name(method, name, f"Apply `{function.__name__}` in place.")


def _binary_method(name: str, function: Any, ufunc: Any) -> Any:
    update = updater(function, ufunc, name)

    def method(self: Tensor, other: Any) -> Any:
        if other is None:  # of which some of NumPy's functions would make objects
            libraries.need_operand(other, name)
        return _check_operand(name, update(self, other), other)

    return _with_name(method, name, f"Apply `{function.__name__}` with `other` in place.")


def _rebinding_method(function: Any, bound: Any) -> Any:
    name = function.__name__

    def method(self: Tensor, *args: Any, **keywords: Any) -> Any:
        if bound is _rebind_same_shape:
            check_kept(self, name)
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
    check_kept(x, name)
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
    return write_whole(x, z)


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
