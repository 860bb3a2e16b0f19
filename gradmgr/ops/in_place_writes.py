"""The methods of Tensor that write to some of its elements, or copy all of them: `x.index_add_(...)`, `x.copy_(y)`.

Each does what `x[index] = v` does, see `in_place`, and returns the tensor itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr.ops import arithmetic, put, shape, ufuncs
from gradmgr.ops.convert import lift, lift_like, to


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
    if not can_broadcast(src.shape, self.shape):
        raise errors.ShapeError(f"copy_ writes values of shape {src.shape} into {describe(self)}; they do not fit")
    self[...] = src
    return self


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
    ufuncs.at(np.add, arithmetic.add, self, _slices("index_add_", self, dim, index), scaled(source, alpha))
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
    mask = checked_mask("masked_scatter_", self, mask)
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
    """Write src[i, j] to x[index[i, j], j], for `dim` 0 of two axes; with `reduce` add or multiply.

    `index` has as many axes as x. None is longer than that of `src` or, except for `dim`, than that of x. `src` may
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


# ---------------------------------------------------------------- arguments


def scaled(other: Any, alpha: Any) -> Any:
    """Return alpha * other; `other` itself for the usual alpha."""
    return other if alpha.__class__ is int and alpha == 1 else arithmetic.multiply(other, alpha)


def checked_mask(name: str, x: Tensor, mask: Any) -> Any:
    """Return a mask for x as an array of booleans.

    Raises:
        DtypeError: it is of another dtype.
    """
    mask = raw(lift_like(mask, x))
    if mask.dtype != bool:
        raise errors.DtypeError(f"{name} takes a mask of booleans; found {mask.dtype}; compare, as in x > 0")
    return mask


def can_broadcast(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Tell whether values of one shape fit into an array of another."""
    try:
        return np.broadcast_shapes(given, wanted) == wanted
    except ValueError:
        return False


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


WRITES = (
    *(copy_, fill_, zero_, fill_diagonal_, index_add_, index_copy_, index_fill_, index_put_),
    *(masked_scatter_, put_, scatter_, scatter_add_),
)
