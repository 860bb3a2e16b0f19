"""The members of Tensor that are bound at import, for type checkers. Written by tools/make_stubs.py; do not edit."""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn, Self, overload

import numpy as np
from numpy.typing import DTypeLike

from gradmgr._engine.function_types import Axis
from gradmgr._engine.history.node import Node
from gradmgr._engine.hooks import Hook, RemovableHandle
from gradmgr._engine.tensor import Tensor
from gradmgr.ops.array_methods import Flat

class TensorMembers:
    """What is bound onto Tensor at import."""

    @property
    def T(self) -> Tensor:
        """The axes reversed."""

    def __abs__(self, /) -> Tensor: ...
    def __add__(self, y: Any, /) -> Tensor: ...
    def __and__(self, y: Any, /) -> Tensor: ...
    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, np.dtype[np.generic]]: ...
    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any: ...
    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """Return the namespace of functions for this array, as the Array API standard asks."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any: ...
    def __complex__(self) -> complex: ...
    def __contains__(self, value: Any) -> bool: ...
    def __copy__(self) -> Tensor:
        """Return a Tensor of the same values and history, for `copy.copy`."""

    def __cupy_override_elementwise_kernel__(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """CuPy's counterpart of __array_ufunc__: `cupy_array * tensor`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy with its history, for `copy.deepcopy`; of an attached Parameter another one without."""

    def __delitem__(self, index: Any) -> NoReturn: ...
    def __dir__(self) -> list[str]:
        """Return the names of a Tensor's attributes, without those that only raise."""

    def __divmod__(self, y: Any, /) -> tuple[Tensor, Tensor]:
        """Return divmod(x, y); NotImplemented for a y of another type."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export through DLPack: read-only, or a copy for a consumer of a version that has no read-only flag."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's name for where the memory is."""

    def __eq__(self, y: Any, /) -> Tensor:  # type: ignore[override]
        ...
    def __float__(self) -> float: ...
    def __floordiv__(self, y: Any, /) -> Tensor: ...
    def __ge__(self, y: Any, /) -> Tensor: ...
    def __getitem__(self, index: Any, /) -> Tensor:
        """Read x[index] with every kind of index NumPy takes; gradients of a repeated element add."""

    def __gt__(self, y: Any, /) -> Tensor: ...
    def __iadd__(self, y: Any, /) -> Self: ...
    def __iand__(self, y: Any, /) -> Self: ...
    def __ifloordiv__(self, y: Any, /) -> Self: ...
    def __ilshift__(self, y: Any, /) -> Self: ...
    def __imatmul__(self, y: Any, /) -> Self: ...
    def __imod__(self, y: Any, /) -> Self: ...
    def __imul__(self, y: Any, /) -> Self: ...
    def __invert__(self) -> Tensor: ...
    def __ior__(self, y: Any, /) -> Self: ...
    def __ipow__(self, y: Any, /) -> Self: ...
    def __irshift__(self, y: Any, /) -> Self: ...
    def __isub__(self, y: Any, /) -> Self: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __itruediv__(self, y: Any, /) -> Self: ...
    def __ixor__(self, y: Any, /) -> Self: ...
    def __le__(self, y: Any, /) -> Tensor: ...
    def __lshift__(self, y: Any, /) -> Tensor: ...
    def __lt__(self, y: Any, /) -> Tensor: ...
    def __matmul__(self, y: Any, /) -> Tensor: ...
    def __mod__(self, y: Any, /) -> Tensor: ...
    def __mul__(self, y: Any, /) -> Tensor: ...
    def __ne__(self, y: Any, /) -> Tensor:  # type: ignore[override]
        ...
    def __neg__(self, /) -> Tensor: ...
    def __or__(self, y: Any, /) -> Tensor: ...
    def __pos__(self, /) -> Tensor: ...
    def __pow__(self, y: Any, /) -> Tensor: ...
    def __radd__(self, x: Any, /) -> Tensor: ...
    def __rand__(self, x: Any, /) -> Tensor: ...
    def __rdivmod__(self, x: Any, /) -> tuple[Tensor, Tensor]:
        """Return the same with the operands exchanged."""

    def __rfloordiv__(self, x: Any, /) -> Tensor: ...
    def __rlshift__(self, x: Any, /) -> Tensor: ...
    def __rmatmul__(self, x: Any, /) -> Tensor: ...
    def __rmod__(self, x: Any, /) -> Tensor: ...
    def __rmul__(self, x: Any, /) -> Tensor: ...
    def __ror__(self, x: Any, /) -> Tensor: ...
    def __round__(self, digits: Any = 0) -> Tensor: ...
    def __rpow__(self, x: Any, /) -> Tensor: ...
    def __rrshift__(self, x: Any, /) -> Tensor: ...
    def __rshift__(self, y: Any, /) -> Tensor: ...
    def __rsub__(self, x: Any, /) -> Tensor: ...
    def __rtruediv__(self, x: Any, /) -> Tensor: ...
    def __rxor__(self, x: Any, /) -> Tensor: ...
    def __setitem__(self, index: Any, v: Any) -> None:
        """Write `x[index] = v` with every kind of index NumPy takes; recorded where a manager tracks x or v."""

    def __sub__(self, y: Any, /) -> Tensor: ...
    def __truediv__(self, y: Any, /) -> Tensor: ...
    def __xor__(self, y: Any, /) -> Tensor: ...
    def abs_(self) -> Self:
        """Apply `absolute` in place."""

    def absolute_(self) -> Self:
        """Apply `absolute` in place."""

    def acos_(self) -> Self:
        """Apply `arccos` in place."""

    def acosh_(self) -> Self:
        """Apply `arccosh` in place."""

    def add_(self, other: Any, *, alpha: Any = 1) -> Self:
        """Add alpha * other in place."""

    def addbmm_(self, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """Replace by beta * x + alpha * the sum over the first axis of batch1 @ batch2."""

    def addcdiv_(self, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Self:
        """Add value * tensor1 / tensor2 in place."""

    def addcmul_(self, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Self:
        """Add value * tensor1 * tensor2 in place."""

    def addmm_(self, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """Replace by beta * x + alpha * mat1 @ mat2, for matrices."""

    def addmv_(self, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """Replace by beta * x + alpha * mat @ vec, for a matrix and a vector."""

    def addr_(self, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """Replace by beta * x + alpha * the outer product of two vectors."""

    @overload
    def all(self, axis: Axis = None, out: Tensor | None = None, keepdims: bool = ..., *, where: Any = ...) -> Tensor:
        """`numpy.all` on the values; the result carries no gradient."""
    @overload
    def all(self, axis: Axis = None, out: Any = None, keepdims: bool = ..., *, where: Any = ...) -> Any: ...
    @overload
    def any(self, axis: Axis = None, out: Tensor | None = None, keepdims: bool = ..., *, where: Any = ...) -> Tensor:
        """`numpy.any` on the values; the result carries no gradient."""
    @overload
    def any(self, axis: Axis = None, out: Any = None, keepdims: bool = ..., *, where: Any = ...) -> Any: ...
    def arccos_(self) -> Self:
        """Apply `arccos` in place."""

    def arccosh_(self) -> Self:
        """Apply `arccosh` in place."""

    def arcsin_(self) -> Self:
        """Apply `arcsin` in place."""

    def arcsinh_(self) -> Self:
        """Apply `arcsinh` in place."""

    def arctan2_(self, other: Any) -> Self:
        """Apply `arctan2` with `other` in place."""

    def arctan_(self) -> Self:
        """Apply `arctan` in place."""

    def arctanh_(self) -> Self:
        """Apply `arctanh` in place."""

    @overload
    def argmax(self, axis: Axis = None, out: Tensor | None = None, *, keepdims: bool = ...) -> Tensor:
        """`numpy.argmax` on the values; the result carries no gradient."""
    @overload
    def argmax(self, axis: Axis = None, out: Any = None, *, keepdims: bool = ...) -> Any: ...
    @overload
    def argmin(self, axis: Axis = None, out: Tensor | None = None, *, keepdims: bool = ...) -> Tensor:
        """`numpy.argmin` on the values; the result carries no gradient."""
    @overload
    def argmin(self, axis: Axis = None, out: Any = None, *, keepdims: bool = ...) -> Any: ...
    def argpartition(self, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Tensor:
        """Return the order of `partition` as `numpy.argpartition`; integers carry no gradient."""

    def argsort(self, axis: Axis = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tensor:
        """`numpy.argsort` on the values; the result carries no gradient."""

    def asin_(self) -> Self:
        """Apply `arcsin` in place."""

    def asinh_(self) -> Self:
        """Apply `arcsinh` in place."""

    def astype(
        self, dtype: DTypeLike | None, order: str = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Tensor:
        """Cast as `numpy.ndarray.astype`; a cast to integers or booleans gives a constant."""

    def atan2_(self, other: Any) -> Self:
        """Apply `arctan2` with `other` in place."""

    def atan_(self) -> Self:
        """Apply `arctan` in place."""

    def atanh_(self) -> Self:
        """Apply `arctanh` in place."""

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool | None = None,
        inputs: Any = None,
    ) -> None:
        """Add the gradients of this tensor, weighted by `gradient`, to `.grad`; see `gradmgr.backward`."""

    def baddbmm_(self, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Self:
        """Replace by beta * x + alpha * batch1 @ batch2, for stacks of matrices."""

    def bernoulli_(self, p: Any = 0.5, *, generator: np.random.Generator) -> Self:
        """Fill with ones of probability `p`, a number or an array that broadcasts, and zeros."""

    def bitwise_and_(self, other: Any) -> Self:
        """Apply `bitwise_and` with `other` in place."""

    def bitwise_left_shift_(self, other: Any) -> Self:
        """Apply `left_shift` with `other` in place."""

    def bitwise_not_(self) -> Self:
        """Apply `invert` in place."""

    def bitwise_or_(self, other: Any) -> Self:
        """Apply `bitwise_or` with `other` in place."""

    def bitwise_right_shift_(self, other: Any) -> Self:
        """Apply `right_shift` with `other` in place."""

    def bitwise_xor_(self, other: Any) -> Self:
        """Apply `bitwise_xor` with `other` in place."""

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0, *, generator: np.random.Generator) -> Self:
        """Fill with values of a Cauchy distribution."""

    def ceil_(self) -> Self:
        """Apply `ceil` in place."""

    @overload
    def choose(self, choices: Any, out: Tensor | None = None, mode: str = "raise") -> Tensor:
        """Choose from arrays by the integers in this one, as `numpy.ndarray.choose`."""
    @overload
    def choose(self, choices: Any, out: Any = None, mode: str = "raise") -> Any: ...
    def clamp_(self, min: Any = None, max: Any = None) -> Self:
        """Clip to at least `min` and at most `max`, either of which may be None, in place."""

    def clamp_max_(self, max: Any) -> Self:
        """Clip to at most `max` in place."""

    def clamp_min_(self, min: Any) -> Self:
        """Clip to at least `min` in place."""

    @overload
    def clip(self, min: Any = None, max: Any = None, out: Tensor | None = None) -> Tensor:
        """Clip as `numpy.ndarray.clip`."""
    @overload
    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any: ...
    def clip_(self, min: Any = None, max: Any = None) -> Self:
        """Clip to at least `min` and at most `max`, either of which may be None, in place."""

    def clone(self) -> Tensor:
        """Return a copy, which is recorded as an operation."""

    @overload
    def compress(self, condition: Any, axis: int | None = None, out: Tensor | None = None) -> Tensor:
        """Take the slices of which the condition holds, as `numpy.ndarray.compress`."""
    @overload
    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Any: ...
    def conj(self) -> Tensor:
        """Return the complex conjugate as `numpy.ndarray.conj`; a real one as it is."""

    def conj_physical_(self) -> Self:
        """Apply `conjugate` in place."""

    def conjugate(self) -> Tensor:
        """Return the complex conjugate as `numpy.ndarray.conj`; a real one as it is."""

    def copy(self, order: str = "C") -> Tensor:
        """Return a copy as `numpy.ndarray.copy`, in C order by default."""

    def copy_(self, src: Any, non_blocking: bool = False) -> Self:
        """Write the values of `src`, broadcast, cast and moved to the device of x; `non_blocking` changes nothing."""

    def copysign_(self, other: Any) -> Self:
        """Apply `copysign` with `other` in place."""

    def cos_(self) -> Self:
        """Apply `cos` in place."""

    def cosh_(self) -> Self:
        """Apply `cosh` in place."""

    @overload
    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None) -> Tensor:
        """Return running products as `numpy.cumprod`."""
    @overload
    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
    def cumprod_(self, dim: int, *, dtype: DTypeLike | None = None) -> Self:
        """Replace by the cumulative product along an axis, computed in `dtype` if that is given."""

    @overload
    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None) -> Tensor:
        """Return running sums as `numpy.cumsum`."""
    @overload
    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
    def cumsum_(self, dim: int, *, dtype: DTypeLike | None = None) -> Self:
        """Replace by the cumulative sum along an axis, computed in `dtype` if that is given."""

    def deg2rad_(self) -> Self:
        """Apply `deg2rad` in place."""

    def detach_(self) -> Tensor:
        """Forget how this tensor was computed, for every manager that records here: from here on it is a constant."""

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Take diagonals as `numpy.diagonal`, as a copy."""

    def digamma_(self) -> Self:
        """Apply `digamma` in place."""

    def div_(self, other: Any, *, rounding_mode: str | None = None) -> Self:
        """Divide in place; `rounding_mode` is None, "trunc" (towards zero) or "floor", whose derivatives are zero."""

    def divide_(self, other: Any, *, rounding_mode: str | None = None) -> Self:
        """Divide in place; `rounding_mode` is None, "trunc" (towards zero) or "floor", whose derivatives are zero."""

    @overload
    def dot(self, b: Any, out: Tensor | None = None) -> Tensor:
        """Multiply as `numpy.dot`: matmul up to two axes, else the last axis of a with the one before of b."""
    @overload
    def dot(self, b: Any, out: Any = None) -> Any: ...
    def erf_(self) -> Self:
        """Apply `erf` in place."""

    def erfc_(self) -> Self:
        """Apply `erfc` in place."""

    def erfinv_(self) -> Self:
        """Apply `erfinv` in place."""

    def exp2_(self) -> Self:
        """Apply `exp2` in place."""

    def exp_(self) -> Self:
        """Apply `exp` in place."""

    def expm1_(self) -> Self:
        """Apply `expm1` in place."""

    def exponential_(self, lambd: float = 1.0, *, generator: np.random.Generator) -> Self:
        """Fill with values of an exponential distribution of rate `lambd`."""

    def fill(self, value: Any) -> None:
        """Write one value to every element, as `numpy.ndarray.fill`."""

    def fill_(self, value: Any) -> Self:
        """Write one value, a number or a Tensor without axes, to every element."""

    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Self:
        """Write one value to the main diagonal, of a tall matrix once more after each block if `wrap` is set."""

    def fix_(self) -> Self:
        """Apply `trunc` in place."""

    @property
    def flat(self) -> Flat:
        """The elements of a Tensor in C order, to read, to write and to iterate over, as `numpy.ndarray.flat`."""
    @flat.setter
    def flat(self, value: Any) -> None: ...
    def flatten(self, order: str = "C") -> Tensor:
        """Return a flattened copy."""

    def float_power_(self, other: Any) -> Self:
        """Apply `float_power` with `other` in place."""

    def floor_(self) -> Self:
        """Apply `floor` in place."""

    def floor_divide_(self, other: Any) -> Self:
        """Apply `floor_divide` with `other` in place."""

    def fmod_(self, other: Any) -> Self:
        """Apply `fmod` with `other` in place."""

    def frac_(self) -> Self:
        """Replace by the part after the point, of the sign of x; the derivative is 1."""

    def gcd_(self, other: Any) -> Self:
        """Apply `gcd` with `other` in place."""

    def geometric_(self, p: float, *, generator: np.random.Generator) -> Self:
        """Fill with values of a geometric distribution: how many trials of probability `p` the first success takes."""

    @property
    def grad_fn(self) -> Node | None:
        """The node of the operation that made this tensor, in the innermost recording that has it; None for leaves."""

    def heaviside_(self, other: Any) -> Self:
        """Apply `heaviside` with `other` in place."""

    def hypot_(self, other: Any) -> Self:
        """Apply `hypot` with `other` in place."""

    def i0_(self) -> Self:
        """Apply `i0` in place."""

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""

    def index_add_(self, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Self:
        """Add alpha * source[..., k, ...] to the slice that index[k] names along `dim`; repeated slices add up."""

    def index_copy_(self, dim: int, index: Any, source: Any) -> Self:
        """Write source[..., k, ...] to the slice that index[k] names along `dim`; of repeated slices the last stays."""

    def index_fill_(self, dim: int, index: Any, value: Any) -> Self:
        """Write one value to the slices that `index` names along `dim`."""

    def index_put_(self, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Self:
        """Write x[indices] = values; add them up, repeated elements too, if `accumulate` is set."""

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is a leaf: not the recorded result of an operation in this context."""

    def lcm_(self, other: Any) -> Self:
        """Apply `lcm` with `other` in place."""

    def ldexp_(self, other: Any) -> Self:
        """Apply `ldexp` with `other` in place."""

    def lerp_(self, end: Any, weight: Any) -> Self:
        """Go by `weight` of the way to `end` in place: x + weight * (end - x)."""

    def lgamma_(self) -> Self:
        """Apply `gammaln` in place."""

    def log10_(self) -> Self:
        """Apply `log10` in place."""

    def log1p_(self) -> Self:
        """Apply `log1p` in place."""

    def log2_(self) -> Self:
        """Apply `log2` in place."""

    def log_(self) -> Self:
        """Apply `log` in place."""

    def log_normal_(self, mean: float = 1.0, std: float = 2.0, *, generator: np.random.Generator) -> Self:
        """Fill with values of which the logarithms are of a normal distribution with this mean and deviation."""

    def logical_and_(self, other: Any) -> Self:
        """Apply `logical_and` with `other` in place."""

    def logical_not_(self) -> Self:
        """Apply `logical_not` in place."""

    def logical_or_(self, other: Any) -> Self:
        """Apply `logical_or` with `other` in place."""

    def logical_xor_(self, other: Any) -> Self:
        """Apply `logical_xor` with `other` in place."""

    def logit_(self, eps: float | None = None) -> Self:
        """Replace by log(x / (1 - x)), with x clipped to [eps, 1 - eps] first if `eps` is given."""

    @property
    def mT(self) -> Tensor:
        """Return the tensor with its last two axes swapped."""

    def masked_fill_(self, mask: Any, value: Any) -> Self:
        """Write one value where a mask of booleans, which broadcasts to x, is set."""

    def masked_scatter_(self, mask: Any, source: Any) -> Self:
        """Write the first elements of `source`, in C order, where a mask of booleans, which broadcasts to x, is set."""

    @overload
    def max(
        self,
        axis: Axis = None,
        out: Tensor | None = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Tensor:
        """Return the maximum along axes as `numpy.max`; ties share the gradient evenly."""
    @overload
    def max(
        self, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = ..., where: Any = True
    ) -> Any: ...
    @overload
    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Tensor | None = None,
        keepdims: bool = False,
        *,
        where: Any = True,
    ) -> Tensor:
        """Average as `numpy.mean`."""
    @overload
    def mean(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
        *,
        where: Any = True,
    ) -> Any: ...
    @overload
    def min(
        self,
        axis: Axis = None,
        out: Tensor | None = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Tensor:
        """Return the minimum along axes as `numpy.min`; ties share the gradient evenly."""
    @overload
    def min(
        self, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = ..., where: Any = True
    ) -> Any: ...
    def mul_(self, other: Any) -> Self:
        """Apply `multiply` with `other` in place."""

    def multiply_(self, other: Any) -> Self:
        """Apply `multiply` with `other` in place."""

    def mvlgamma_(self, p: int) -> Self:
        """Replace by the logarithm of the multivariate gamma function of dimension p."""

    def nan_to_num_(self, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Self:
        """Replace NaN and infinities as `numpy.nan_to_num`."""

    def neg_(self) -> Self:
        """Apply `negative` in place."""

    def negative_(self) -> Self:
        """Apply `negative` in place."""

    def nextafter_(self, other: Any) -> Self:
        """Apply `nextafter` with `other` in place."""

    def nonzero(self) -> tuple[Tensor, ...]:
        """`numpy.nonzero` on the values; the result carries no gradient."""

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: np.random.Generator) -> Self:
        """Fill with values of a normal distribution."""

    def partition(self, kth: Any, axis: int = -1, kind: Any = "introselect", order: Any = None) -> None:
        """Partition in place as `numpy.ndarray.partition`; recorded."""

    def polygamma_(self, n: int) -> Self:
        """Replace by the n-th derivative of the digamma function."""

    def pow_(self, other: Any) -> Self:
        """Apply `power` with `other` in place."""

    @overload
    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Tensor | None = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Tensor:
        """Multiply the elements along axes as `numpy.prod`; derivatives are exact where elements are 0, too."""
    @overload
    def prod(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Any: ...
    def put(self, ind: Any, v: Any, mode: Any = "raise") -> None:
        """Write flat values, in cycles, at flat positions of `a` in place, as `numpy.put`; recorded."""

    def put_(self, index: Any, source: Any, accumulate: bool = False) -> Self:
        """Write `source` where `index` names elements of the flattened tensor; add up if `accumulate` is set."""

    def rad2deg_(self) -> Self:
        """Apply `rad2deg` in place."""

    def random_(self, low: int, high: int | None = None, *, generator: np.random.Generator) -> Self:
        """Fill with integers from `low` to `high` - 1; with one number, from 0 to that less 1."""

    def ravel(self, order: str = "C") -> Tensor:
        """Flatten as `numpy.ravel`; order="K" follows the order in memory."""

    @property
    def real(self) -> Tensor:
        """The real part."""

    def reciprocal_(self) -> Self:
        """Apply `reciprocal` in place."""

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(grad)` in each backward when the gradient of this tensor is complete, before it is used."""

    def register_post_accumulate_grad_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(tensor)` after each backward that added to this attached tensor's `.grad`."""

    def relu_(self) -> Self:
        """Replace what is negative by 0; the derivative at 0 is 0."""

    def remainder_(self, other: Any) -> Self:
        """Apply `remainder` with `other` in place."""

    def repeat(self, repeats: Any, axis: int | None = None) -> Tensor:
        """Repeat elements as `numpy.repeat`; `repeats` is a number or an integer array."""

    @property
    def requires_grad(self) -> bool:
        """Whether a manager that records in this context tracks this tensor: it is attached, or depends on attached ones."""

    def requires_grad_(self, requires_grad: bool = True) -> NoReturn:
        """Refused: raise an error that says what to use, `GradManager.attach`."""

    def reshape(self, *shape_: Any, order: str = "C", copy: bool | None = None) -> Tensor:
        """Reshape as `numpy.ndarray.reshape`."""

    def retain_grad(self) -> None:
        """Let `backward` also write `.grad` of this result of an operation; for an attached tensor it always does."""

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this result of an operation, in a recording that lasts."""

    @overload
    def round(self, decimals: int = 0, out: Tensor | None = None) -> Tensor:
        """Round as `numpy.round`; the derivative is zero."""
    @overload
    def round(self, decimals: int = 0, out: Any = None) -> Any: ...
    def round_(self, *, decimals: int = 0) -> Self:
        """Round in place; the derivative is zero."""

    def rsqrt_(self) -> Self:
        """Replace by 1 / sqrt(x)."""

    def scatter_(self, dim: int, index: Any, src: Any, *, reduce: str | None = None) -> Self:
        """Write src[i, j] to x[index[i, j], j], for `dim` 0 of two axes; with `reduce` add or multiply."""

    def scatter_add_(self, dim: int, index: Any, src: Any) -> Self:
        """Add src[i, j] to x[index[i, j], j], for `dim` 0 of two axes; repeated elements add up."""

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Tensor:
        """`numpy.searchsorted` on the values; the result carries no gradient."""

    def sgn_(self) -> Self:
        """Apply `sign` in place."""

    def sigmoid_(self) -> Self:
        """Apply `expit` in place."""

    def sign_(self) -> Self:
        """Apply `sign` in place."""

    def sin_(self) -> Self:
        """Apply `sin` in place."""

    def sinc_(self) -> Self:
        """Apply `sinc` in place."""

    def sinh_(self) -> Self:
        """Apply `sinh` in place."""

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None) -> None:
        """Sort in place as `numpy.ndarray.sort`; recorded."""

    def sqrt_(self) -> Self:
        """Apply `sqrt` in place."""

    def square_(self) -> Self:
        """Apply `square` in place."""

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Remove axes of length 1 as `numpy.squeeze`."""

    def squeeze_(self, dim: int | tuple[int, ...] | None = None) -> Self:
        """Drop axes of length 1, all or those of `dim` that are, in place."""

    @overload
    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Tensor | None = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Tensor:
        """Return the standard deviation as `numpy.std`; gradients flow into a Tensor given as `mean`, `ddof` or `correction` too."""
    @overload
    def std(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Any: ...
    def sub_(self, other: Any, *, alpha: Any = 1) -> Self:
        """Subtract alpha * other in place."""

    def subtract_(self, other: Any, *, alpha: Any = 1) -> Self:
        """Subtract alpha * other in place."""

    @overload
    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Tensor | None = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Tensor:
        """Add up the elements along axes as `numpy.sum`."""
    @overload
    def sum(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Any: ...
    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Swap two axes as `numpy.swapaxes`."""

    def swapaxes_(self, axis0: int, axis1: int) -> Self:
        """Swap two axes in place."""

    def swapdims_(self, axis0: int, axis1: int) -> Self:
        """Swap two axes in place."""

    def t_(self) -> Self:
        """Swap the axes of a matrix in place; a vector or a number stays as it is."""

    @overload
    def take(self, indices: Any, axis: int | None = None, out: Tensor | None = None, mode: str = "raise") -> Tensor:
        """Take elements along an axis as `numpy.take`; of the flat array without `axis`."""
    @overload
    def take(self, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any: ...
    def tan_(self) -> Self:
        """Apply `tan` in place."""

    def tanh_(self) -> Self:
        """Apply `tanh` in place."""

    def to(self, device: str, /) -> Tensor:
        """Return the tensor on "cpu", "cuda:0", or "cuda", the current GPU; itself if it is there."""

    def to_device(self, device: str, /, stream: Any = None) -> Tensor:
        """Return the tensor on a device by the Array API's name for it; a GPU copies on `stream`, one of CuPy's."""

    @overload
    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Sum a diagonal as `numpy.trace`."""
    @overload
    def trace(
        self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None, out: Any = None
    ) -> Any: ...
    def transpose(self, *axes: Any) -> Tensor:
        """Permute axes as `numpy.ndarray.transpose`."""

    def transpose_(self, dim0: int, dim1: int) -> Self:
        """Swap two axes in place."""

    def tril_(self, diagonal: int = 0) -> Self:
        """Zero the elements above a diagonal."""

    def triu_(self, diagonal: int = 0) -> Self:
        """Zero the elements below a diagonal."""

    def true_divide_(self, other: Any, *, rounding_mode: str | None = None) -> Self:
        """Divide in place; `rounding_mode` is None, "trunc" (towards zero) or "floor", whose derivatives are zero."""

    def trunc_(self) -> Self:
        """Apply `trunc` in place."""

    def uniform_(self, low: float = 0.0, high: float = 1.0, *, generator: np.random.Generator) -> Self:
        """Fill with values drawn uniformly from `low` to below `high`."""

    def unsqueeze_(self, dim: int) -> Self:
        """Insert an axis of length 1 in place."""

    @overload
    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Tensor | None = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Tensor:
        """Return the variance as `numpy.var`; gradients flow into a Tensor given as `mean`, `ddof` or `correction` too."""
    @overload
    def var(
        self,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Any: ...
    def xlogy_(self, other: Any) -> Self:
        """Apply `xlogy` with `other` in place."""

    def zero_(self) -> Self:
        """Write 0 to every element: from there on the tensor is a constant."""
