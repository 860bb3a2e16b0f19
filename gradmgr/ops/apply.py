"""Functions of the user's applied along axes, to pieces or to elements; iteration over elements."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import is_tracked
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import zeros
from gradmgr._engine.tensor import Tensor, describe, raw, variable, wrap
from gradmgr.ops.constant import holds_numbers
from gradmgr.ops.convert import holds_tensor, lift, to
from gradmgr.ops.create import indices
from gradmgr.ops.join import stack
from gradmgr.ops.shape import broadcast_arrays, broadcast_to, expand_dims, moveaxis, reshape


class _GaveTensorError(Exception):
    """A user's function returned a Tensor where NumPy's own loop would make a plain array of it."""


def _stop_at_tensor(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the first Tensor it returns stops NumPy's loop.

    Such a function is differentiable in the Tensors it closes over, which NumPy's loop would convert.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if holds_tensor(result):
            raise _GaveTensorError
        return result

    return call


def _any_tensor(*arguments: Any) -> bool:
    return any(_any_tensor(*given.values()) if isinstance(given, dict) else holds_tensor(given) for given in arguments)


def _leading_indices(a: Any, axes: int) -> Iterator[tuple[int, ...]]:
    """Return every index into the first axes."""
    return itertools.product(*map(range, a.shape[:axes]))


def _stack_results(results: Sequence[Any], name: str, dtype: Any = None) -> Any:
    """Stack results in the shape and, unless another is asked for, dtype of the first, as NumPy's loops do."""
    parts = [lift(result) for result in results]
    shape, kind = parts[0].shape, parts[0].dtype if dtype is None else np.dtype(dtype)
    if dtype is None and not libraries.is_differentiable(kind):
        _check_nothing_is_cut(parts, kind, f"{name} gives the dtype of the first result")
    if all(part.shape == shape and part.dtype == kind for part in parts):
        return stack(parts)
    return stack([broadcast_to(part if part.dtype == kind else as_type(part, kind), shape) for part in parts])


def _check_nothing_is_cut(parts: Sequence[Any], kind: Any, rule: str) -> None:
    for part in parts:
        if isinstance(part, Tensor) and is_tracked(part):
            raise errors.TrackedConversionError(
                f"{rule}, here {kind}, and {describe(part)}, which a manager tracks, would lose its history; "
                "make that dtype a floating one (0.0 for 0), or cast the result explicitly"
            )


# ---------------------------------------------------------------- along axes


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function to 1-d slices as `numpy.apply_along_axis`; it is given Tensors where any argument is one."""
    if not _any_tensor(arr, args, kwargs):
        try:
            return np.apply_along_axis(_stop_at_tensor(func1d), axis, arr, *args, **kwargs)
        except _GaveTensorError:
            pass
    arr = lift(arr)
    axis = normalize_axis_index(axis, arr.ndim)
    rows = moveaxis(arr, axis, -1)
    lead = rows.shape[:-1]
    if 0 in lead:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    results = [func1d(rows[index], *args, **kwargs) for index in _leading_indices(rows, len(lead))]
    z = _stack_results(results, "apply_along_axis")
    own = z.ndim - 1
    z = reshape(z, (*lead, *z.shape[1:]))
    z = moveaxis(z, tuple(range(len(lead), len(lead) + own)), tuple(range(axis, axis + own)))
    return z if isinstance(z, Tensor) else wrap(z)


def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    """Apply func(a, axis) over axes one after the other as `numpy.apply_over_axes`."""
    if not holds_tensor(a):
        try:
            return np.apply_over_axes(_stop_at_tensor(func), a, axes)
        except _GaveTensorError:
            pass
    value = lift(a)
    ndim = value.ndim
    for axis in (axes,) if np.ndim(axes) == 0 else axes:
        axis = axis + ndim if axis < 0 else axis
        result = lift(func(value, axis))
        value = result if result.ndim == ndim else expand_dims(result, axis)
        if value.ndim != ndim:
            raise ValueError("apply_over_axes: function is not returning an array of the correct shape")
    return value


# ---------------------------------------------------------------- by pieces


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Evaluate by cases as `numpy.piecewise`: each function on the elements chosen only.

    So a NaN that a function has elsewhere cannot reach a gradient. The result has the dtype of x.
    """
    if not _any_tensor(x, condlist, args, kw) and not any(isinstance(f, Tensor) for f in funclist):
        functions = [_stop_at_tensor(f) if callable(f) else f for f in funclist]
        try:
            return np.piecewise(x, condlist, functions, *args, **kw)
        except _GaveTensorError:
            pass
    x = lift(x)
    z = variable(zeros(x, x.shape, x.dtype))
    for mask, choice in zip(_case_masks(x, condlist, len(funclist)), funclist, strict=True):
        if not callable(choice):
            _put_piece(z, mask, choice)
        elif mask.any():
            _put_piece(z, mask, choice(x[mask], *args, **kw))
    return z


def _put_piece(z: Tensor, mask: Any, piece: Any) -> None:
    if not libraries.is_differentiable(z.dtype):
        _check_nothing_is_cut([piece], z.dtype, "piecewise gives the dtype of x")
    z[mask] = piece


def _case_masks(x: Any, condlist: Any, functions: int) -> list[Any]:
    """Return one mask for each function; with one function more than conditions, the last is for where none holds."""
    xp = libraries.namespace(raw(x))
    masks = [xp.asarray(raw(lift(condition))).astype(bool) for condition in _conditions(x, condlist)]
    if len(masks) == functions - 1:
        covered = masks[0]
        for mask in masks[1:]:
            covered = covered | mask
        masks.append(~covered)
    elif len(masks) != functions:
        expected = f"either {len(masks)} or {len(masks) + 1} functions are expected"
        raise ValueError(f"piecewise: with {len(masks)} condition(s), {expected}")
    return masks


def _conditions(x: Any, condlist: Any) -> list[Any]:
    """Tell several conditions from one, as NumPy does."""
    if isinstance(condlist, (list, tuple)):
        one = x.ndim != 0 and not isinstance(condlist[0], (list, tuple)) and np.ndim(raw(condlist[0])) == 0
        return [condlist] if one else list(condlist)
    mask = raw(lift(condlist))
    one = mask.ndim == 0 or (mask.ndim == 1 and x.ndim != 0)
    return [mask] if one else [mask[k] for k in range(len(mask))]


# ---------------------------------------------------------------- element by element


class vectorize(np.vectorize):  # noqa: N801  # NumPy's name
    """Apply a Python function element by element as `numpy.vectorize`, through which gradients flow.

    Where any argument holds a Tensor the function is called with 0-d Tensors in place of its
    elements (with a `signature`, Tensors of the core axes), once for each, and the results are
    stacked. What is not a Tensor arrives as Python numbers, as from NumPy's.

    >>> import gradmgr
    >>> import gradmgr.numpy as np
    >>> relu = np.vectorize(lambda v: v if v > 0 else 0 * v)
    >>> relu(gradmgr.tensor([-1.0, 2.0]))
    Tensor([-0.,  2.])
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        unset: Any = np._NoValue
        if self.pyfunc is unset:
            return super().__call__(*args, **kwargs)  # the decorator with keywords
        if not _any_tensor(args, kwargs):
            names = ("otypes", "excluded", "cache", "signature")
            settings: dict[str, Any] = {name: getattr(self, name) for name in names}
            try:
                return np.vectorize(_stop_at_tensor(self.pyfunc), **settings)(*args, **kwargs)
            except _GaveTensorError:
                pass
        places = [k for k in range(len(args)) if k not in self.excluded]
        named_ones = [name for name in kwargs if name not in self.excluded]

        def function(*elements: Any) -> Any:
            given, named = list(args), dict(kwargs)
            for k, element in zip(places, elements, strict=False):
                given[k] = element
            named.update(zip(named_ones, elements[len(places) :], strict=True))
            return self.pyfunc(*given, **named)

        operands = [args[k] for k in places] + [kwargs[name] for name in named_ones]
        if self.signature is not None:
            return self._call_by_signature(function, [lift(t) for t in operands])
        if not operands:
            return function()
        return self._call_by_element(function, operands)

    def _call_by_element(self, function: Callable[..., Any], operands: list[Any]) -> Any:
        parts = [_elements_of(t) for t in operands]
        shape = np.broadcast_shapes(*[t.shape for t in parts])
        arrays = [broadcast_to(t, shape) for t in parts]
        results = [function(*[a[index] for a in arrays]) for index in _leading_indices(arrays[0], len(shape))]
        if not results:
            return self._empty_result([shape] * len(self.otypes or ()))
        several = isinstance(results[0], tuple)
        columns = list(zip(*results, strict=True)) if several else [results]
        joined = [self._column(column, k, shape, ()) for k, column in enumerate(columns)]
        return tuple(joined) if several else joined[0]

    def _call_by_signature(self, function: Callable[..., Any], operands: list[Any]) -> Any:
        inputs, outputs = _core_axes(str(self.signature))
        if len(operands) != len(inputs):
            raise TypeError(
                f"vectorize: wrong number of positional arguments: expected {len(inputs)}, got {len(operands)}"
            )
        sizes: dict[str, int] = {}
        for t, axes in zip(operands, inputs, strict=True):
            _bind_sizes(sizes, t.shape, axes)
        loops = [t.shape[: t.ndim - len(axes)] for t, axes in zip(operands, inputs, strict=True)]
        shape = np.broadcast_shapes(*loops)
        arrays = [
            broadcast_to(t, (*shape, *[sizes[axis] for axis in axes])) for t, axes in zip(operands, inputs, strict=True)
        ]
        results = [_as_tuple(function(*[a[i] for a in arrays]), len(outputs)) for i in np.ndindex(*shape)]
        if not results and any(axis not in sizes for axes in outputs for axis in axes):
            raise ValueError(
                "cannot call `vectorize` with a signature including new output dimensions on size 0 inputs"
            )
        for result, axes in zip(results[0] if results else (), outputs, strict=bool(results)):
            _bind_sizes(sizes, np.shape(raw(lift(result))), axes)
        cores = [tuple([sizes[axis] for axis in axes]) for axes in outputs]
        if not results:
            return self._empty_result([(*shape, *core) for core in cores])
        columns = zip(*results, strict=True)
        joined = [self._column(c, k, shape, core) for k, (c, core) in enumerate(zip(columns, cores, strict=True))]
        return joined[0] if len(outputs) == 1 else tuple(joined)

    def _column(self, results: Sequence[Any], k: int, shape: tuple[int, ...], core: tuple[int, ...]) -> Any:
        """Join one output of all calls."""
        otype = None if self.otypes is None else self.otypes[k]
        if not any(map(holds_tensor, results)):
            return _join_plain(results, shape, core, otype)
        if otype is not None and not holds_numbers(np.dtype(otype)):
            raise errors.DtypeError(f"vectorize: a Tensor holds numbers; otypes asks for {np.dtype(otype)}")
        parts = [lift(result) for result in results]
        if self.signature is None and any(part.ndim for part in parts):
            raise ValueError("vectorize: the function gave an array for an element; say its shape by signature=")
        if core and parts[0].shape != core:
            parts[0] = broadcast_to(parts[0], core)
        z = reshape(_stack_results(parts, "vectorize", otype), (*shape, *core))
        return z if isinstance(z, Tensor) else wrap(z)

    def _empty_result(self, shapes: list[tuple[int, ...]]) -> Any:
        if self.otypes is None:
            raise ValueError("cannot call `vectorize` on size 0 inputs unless `otypes` is set")
        made = [wrap(np.empty(shape, otype)) for shape, otype in zip(shapes, self.otypes, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)


def _elements_of(a: Any) -> Any:
    """An argument whose elements are 0-d Tensors or, as NumPy's vectorize passes them, Python objects."""
    if holds_tensor(a) or libraries.namespace(a) is not np:
        return lift(a)
    return libraries.as_array(a, object)


def _join_plain(results: Sequence[Any], shape: tuple[int, ...], core: tuple[int, ...], otype: Any) -> Any:
    """Join results that hold no Tensor: a Tensor of numbers, NumPy's array of anything else."""
    first = np.asarray(results[0]).dtype
    dtype = (first if core else first.char) if otype is None else otype  # the char of text has no length
    z = np.empty((len(results), *core), dtype if core else object)
    for k, result in enumerate(results):
        z[k] = result
    z = z.astype(dtype, copy=False).reshape((*shape, *core))
    return wrap(z) if holds_numbers(z.dtype) else z


def _as_tuple(result: Any, count: int) -> tuple[Any, ...]:
    found = len(result) if isinstance(result, tuple) else 1
    if found != count:
        raise ValueError(f"wrong number of outputs from pyfunc: expected {count}, got {found}")
    return (result,) if count == 1 else result


def _core_axes(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Read "(m,n),(n)->(m)", which NumPy's constructor has checked."""
    sides = re.sub(r"\s+", "", signature).split("->")
    left, right = ([tuple(re.findall(r"\w+", core)) for core in re.findall(r"\(.*?\)", side)] for side in sides)
    return left, right


def _bind_sizes(sizes: dict[str, int], shape: tuple[int, ...], axes: tuple[str, ...]) -> None:
    """Enter the lengths of core axes; one name has one length."""
    if len(shape) < len(axes):
        raise ValueError(f"{len(shape)}-dimensional argument does not have enough dimensions for core axes {axes}")
    for axis, length in zip(axes, shape[len(shape) - len(axes) :], strict=True):
        if sizes.setdefault(axis, length) != length:
            raise ValueError(f"inconsistent size for core dimension {axis!r}: {length} vs {sizes[axis]}")


def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = float, like: Any = None, **kwargs: Any
) -> Any:
    """Call a function with the coordinates as `numpy.fromfunction`: a Tensor for each axis, on the device of `like`."""
    if like is not None and not isinstance(like, Tensor):
        return np.fromfunction(function, shape, dtype=dtype, like=like, **kwargs)
    coordinates = indices(shape, dtype=dtype)
    return function(*(coordinates if like is None else to(coordinates, like.device)), **kwargs)


# ---------------------------------------------------------------- iteration over elements


class Broadcast:
    """What `broadcast` gives for Tensors: the attributes of `numpy.broadcast`, and tuples of 0-d Tensors."""

    __slots__ = ("_arrays", "index", "shape")

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = broadcast_arrays(*arrays)
        self.shape: tuple[int, ...] = self._arrays[0].shape
        self.index = 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    nd = ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.intp))

    @property
    def numiter(self) -> int:
        """Number of arrays."""
        return len(self._arrays)

    def reset(self) -> None:
        """Begin again."""
        self.index = 0

    def __iter__(self) -> Broadcast:
        return self

    def __next__(self) -> tuple[Any, ...]:
        if self.index >= self.size:
            raise StopIteration
        place = np.unravel_index(self.index, self.shape) if self.shape else ()
        self.index += 1
        return tuple([a[place] for a in self._arrays])


def broadcast(*args: Any) -> Any:
    """Broadcast arrays against each other as `numpy.broadcast`; the elements of Tensors come as 0-d Tensors."""
    if not holds_tensor(args):
        return np.broadcast(*args)
    return Broadcast([lift(a) for a in args])


def ndenumerate(arr: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Iterate over indices and elements as `numpy.ndenumerate`; the elements of a Tensor are 0-d Tensors."""
    if not holds_tensor(arr):
        return np.ndenumerate(arr)
    arr = lift(arr)
    return ((index, arr[index]) for index in _leading_indices(arr, arr.ndim))
