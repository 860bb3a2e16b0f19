"""Batched: an array for each example of a batch, with the shape of one example; the batch axis is hidden.

Inside `vmap` the arrays of mapped tensors are of this class. It is one more array library: NumPy's
functions dispatch to it by protocol, so the kernels and rules of the op table run on it unchanged.
One mechanism serves all ufuncs; every other function needs a rule in the table RULES (filled by `batching_rules`).
A function without a rule is called once for each example.

The batch axis is axis 0 of the inner array, `Batched._array`. It may have length 1 where all examples are the same.
Levels of vmap nest: a call is handled at the highest level among its arguments, to which those of
lower levels are plain arrays.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from gradmgr import errors
from gradmgr._arrays.arguments import leaves_in, map_leaves
from gradmgr._arrays.captured import CapturedArray, is_numpy
from gradmgr._arrays.sums import sum_of_numpy

Array = Any
# By NumPy function: rule(level, *args, **kwargs), which may return NotImplemented for arguments it cannot handle.
RULES: dict[Any, Callable[..., Any]] = {}


class Level:
    """One vmap: how many examples it has, and how deep it is nested in others."""

    __slots__ = ("_gradients", "_written", "identity", "order", "root", "size")

    def __init__(self, size: int, depth: int, root: Any = np) -> None:
        self.size = size
        # By id, tensors that were given gradients of this level, and what was their gradient before.
        self._gradients: dict[int, tuple[weakref.ref[Any], Any]] = {}
        # By id, tensors that are alive to which values of this level were written in place, and what they were before.
        self._written: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self.order = (depth, id(self))  # any order will do, if it is always the same
        self.root = root  # NumPy or CuPy
        self.identity: Any = None  # the inner array whose examples are the unit vectors, if there is one

    def note_gradient(self, t: Any, before: Any) -> None:
        """Note that a tensor is given a gradient of this level; the first time, what its gradient was before."""
        known = self._gradients.get(id(t))
        if known is None or known[0]() is not t:
            self._gradients[id(t)] = weakref.ref(t), before

    def given_gradients(self) -> Iterator[tuple[Any, Any]]:
        """Yield the tensors passed to `note_gradient` that are alive, each with its gradient before."""
        for known, before in self._gradients.values():
            t = known()
            if t is not None:
                yield t, before

    def note_write(self, t: Any, before: Any) -> None:
        """Note that a tensor was the same for all examples, with this value, until a write in place."""
        key, written = id(t), self._written
        written[key] = weakref.ref(t, lambda _: written.pop(key, None)), before

    def written_tensors(self) -> list[tuple[Any, Any]]:
        """Return the tensors passed to `note_write` that are alive, each with its value before."""
        return [(t, before) for known, before in list(self._written.values()) if (t := known()) is not None]

    @property
    def library(self) -> Library:
        """Return the library that makes arrays of this level.

        It is a new one each time, as two objects that refer to each other are freed by the garbage collector only.
        """
        return Library(self)


class Library:
    """Takes the place of the module `numpy` in a kernel: new arrays can hold values that differ between examples."""

    __slots__ = ("level",)

    def __init__(self, level: Level) -> None:
        self.level = level

    @property
    def __name__(self) -> str:
        name: str = self.level.root.__name__
        return name

    def __getattr__(self, name: str) -> Any:
        return getattr(np if name in _DISPATCHED else self.level.root, name)

    def _new(self, name: str, shape: Any, *args: Any, **keywords: Any) -> Batched:
        lengths = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        make = getattr(self.level.root, name)
        return Batched(self.level, make((self.level.size, *lengths), *args, **keywords))

    def zeros(self, shape: Any, dtype: Any = float) -> Batched:
        """Return zeros, one array per example."""
        return self._new("zeros", shape, dtype)

    def ones(self, shape: Any, dtype: Any = float) -> Batched:
        """Return ones, one array per example."""
        return self._new("ones", shape, dtype)

    def empty(self, shape: Any, dtype: Any = float) -> Batched:
        """Return uninitialised memory, one array per example."""
        return self._new("empty", shape, dtype)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Batched:
        """Return one value everywhere, one array per example."""
        made = self.empty(shape, fill_value.dtype if dtype is None and is_batched(fill_value) else dtype or float)
        if dtype is None and not is_batched(fill_value):
            made = made.astype(np.asarray(fill_value).dtype)
        made[...] = fill_value
        return made

    def zeros_like(self, a: Any, dtype: Any = None, order: str = "K", shape: Any = None) -> Batched:
        """Return zeros of the shape and dtype of `a`."""
        return self.zeros(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)

    def ones_like(self, a: Any, dtype: Any = None, order: str = "K", shape: Any = None) -> Batched:
        """Return ones of the shape and dtype of `a`."""
        return self.ones(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)

    def empty_like(self, a: Any, dtype: Any = None, order: str = "K", shape: Any = None) -> Batched:
        """Return uninitialised memory of the shape and dtype of `a`."""
        return self.empty(a.shape if shape is None else shape, a.dtype if dtype is None else dtype)

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """Return `a` as an array; a batched array stays one."""
        if not is_batched(a) and a.__class__ is not CapturedArray:
            return self.level.root.asarray(a, dtype)
        return a if dtype is None or a.dtype == dtype else a.astype(dtype)

    def array(self, a: Any, dtype: Any = None, copy: bool = True) -> Any:
        """Return a copy of `a` as an array."""
        made = self.asarray(a, dtype)
        return made.copy() if made is a and copy else made

    def may_share_memory(self, one: Any, other: Any) -> bool:
        """Tell whether memory bounds overlap."""
        return bool(np.may_share_memory(innermost(one), innermost(other)))


# NumPy's functions in a kernel's `xp` that dispatch by protocol; functions that create arrays are those of the root.
_DISPATCHED = frozenset(
    (
        *(name for name, f in vars(np).items() if type(f).__name__ in ("ufunc", "_ArrayFunctionDispatcher")),
        *("linalg", "fft", "lib"),
    )
)


def is_batched(value: Any) -> bool:
    """Tell whether a value is a batched array."""
    return isinstance(value, Batched)


def innermost(a: Any) -> Any:
    """Return the array under all levels."""
    while isinstance(a, Batched):
        a = a._array
    return a


def count_levels(arrays: Iterable[Any]) -> int:
    """Return at how many levels of vmap arrays are batched."""
    levels = set()
    for a in arrays:
        while isinstance(a, Batched):
            levels.add(id(a.level))
            a = a._array
    return len(levels)


def is_batched_at(a: Any, level: Level) -> bool:
    """Tell whether an array is batched at this level."""
    while isinstance(a, Batched):
        if a.level is level:
            return True
        a = a._array
    return False


def find_batched(values: Iterable[Any]) -> Iterator[Batched]:
    """Find every Batched in nested lists, tuples and dicts."""
    for value in values:
        if isinstance(value, Batched):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from find_batched(value)
        elif isinstance(value, dict):
            yield from find_batched(value.values())


def highest_level(values: Iterable[Any]) -> Level | None:
    """Return the highest level among the arguments of a call; None if none of them is batched."""
    found: Level | None = None
    for value in values:
        if isinstance(value, Batched):
            level: Level | None = value.level
        elif isinstance(value, (list, tuple)):
            level = highest_level(value)
        elif isinstance(value, dict):
            level = highest_level(value.values())
        else:
            continue
        if found is None or (level is not None and level.order > found.order):
            found = level
    return found


def refuse_conversion(what: str) -> NoReturn:
    """Raise: a single value is needed, and each example has its own."""
    raise errors.BatchedValueError(
        f"{what} of a tensor inside vmap: its values differ between examples, so there is no one value to convert or "
        "to branch on; use where() instead of if, keep to functions of tensors, or call the function without vmap"
    )


# ---------------------------------------------------------------- batching and unbatching


def batch(a: Any, level: Level, axis: int) -> Batched:
    """Make an axis the batch axis: its elements become the examples of a level."""
    if isinstance(a, Batched) and a.level.order > level.order:
        return Batched(a.level, batch(a._array, level, axis + 1))
    return Batched(level, np.moveaxis(a, axis, 0) if axis else a)


def unbatch(a: Any, level: Level, axis: int) -> Any:
    """Make the batch axis of a level an ordinary axis again; an array that is the same for all examples is repeated."""
    if isinstance(a, Batched):
        if a.level.order > level.order:
            return Batched(a.level, unbatch(a._array, level, axis + 1))
        if a.level is level:
            shown = repeat_examples(a._array, level.size)
            return np.moveaxis(shown, 0, axis) if axis else shown
    shown = a.reshape((1, *a.shape)) if is_batched(a) else as_array(a)[None]
    return np.moveaxis(_repeat_single(shown, level.size), 0, axis)


def broadcast_over_examples(a: Any, level: Level) -> Batched:
    """Return a batched array of a level that is the same for every example: its batch axis has length 1."""
    if isinstance(a, Batched) and a.level.order > level.order:
        return Batched(a.level, broadcast_over_examples(a._array, level))
    return Batched(level, a.reshape((1, *a.shape)))


def sum_over_examples(a: Any, level: Level) -> Any:
    """Sum over the examples of a level."""
    if isinstance(a, Batched):
        if a.level.order > level.order:
            return Batched(a.level, sum_over_examples(a._array, level))
        if a.level is level and a._array.shape[0] != 1:
            return np.sum(a._array, axis=0)
        if a.level is level:
            a = a._array[0, ...]
    return a * level.size


def any_batched(*values: Any) -> bool:
    """Tell whether any of the values, which may be containers, is batched."""
    return highest_level(values) is not None


def getitem_of(a: Any, index: Any) -> Any:
    """Return a[index], where either may be batched."""
    return get_item(a, index) if highest_level((index,)) is not None else a[index]


def common_value(value: Any, what: str) -> Any:
    """Return a value that a shape depends on, which must be the same for all examples."""
    values = innermost(value)
    if values is value:
        return value
    if (values != values.ravel()[0]).any():
        raise errors.BatchedValueError(
            f"{what} differs between examples inside vmap, and arrays of different shapes do not make one"
        )
    return values.ravel()[0]


def call_elementwise(kernel: Callable[..., Any], *args: Any) -> Any:
    """Call a function that broadcasts but does not dispatch by protocol, on the innermost arrays."""
    level = highest_level(args)
    if level is None:
        return kernel(*args)
    ndim = max(map(_ndim, args))
    return Batched(level, call_elementwise(kernel, *[align(x, level, ndim) for x in args]))


def call_unary(kernel: Callable[..., Any], x: Any, *params: Any) -> Any:
    """Call an elementwise kernel that does not dispatch by protocol, on the innermost array."""
    return Batched(x.level, call_unary(kernel, x._array, *params)) if isinstance(x, Batched) else kernel(x, *params)


def _repeat_single(p: Any, count: int) -> Any:
    if is_numpy(p):
        return np.broadcast_to(p, (count, *p.shape[1:])).copy("K")
    return np.repeat(p, count, axis=0)


def repeat_examples(p: Any, count: int) -> Any:
    """Return an inner array that holds every example: one that is the same for all is repeated."""
    return p if p.shape[0] == count else _repeat_single(p, count)


def as_array(a: Any) -> Any:
    """Return a number or list as an array; arrays as they are."""
    return a if hasattr(a, "shape") and not isinstance(a, np.generic) else np.asarray(a)


def insert_axes(p: Any, ndim: int) -> Any:
    """Insert axes after the batch axis, so that one example has `ndim` axes."""
    lacking = ndim + 1 - p.ndim
    return p if lacking <= 0 else p.reshape((p.shape[0],) + (1,) * lacking + p.shape[1:])


def batched_to_hold(a: Any, *others: Any) -> Any:
    """Return `a`, or a copy batched at the levels of the others, so that their values can be written to it."""
    level = highest_level(others)
    if level is None:
        return a
    if isinstance(a, Batched) and a.level.order > level.order:
        held = batched_to_hold(a._array, *others)
        return a if held is a._array else Batched(a.level, held)
    if not (isinstance(a, Batched) and a.level is level):
        a = Batched(level, _repeat_single(broadcast_over_examples(as_array(a), level)._array, level.size))
    held = repeat_examples(a._array, level.size)
    lower = [b for b in _arrays_under(others, level) if is_batched(b)]
    held = batched_to_hold(held, *lower) if lower else held
    return a if held is a._array else Batched(level, held)


def _arrays_under(values: Iterable[Any], level: Level) -> Iterator[Any]:
    """Yield the Batched among the values, without their batch axis of this level."""
    return (b._array if b.level is level else b for b in find_batched(values))


def _batch_to_hold(a: Batched, others: Iterable[Any], name: str) -> None:
    """Batch `a` at the levels of the others, whose values are to be written to it.

    Raise where that is impossible: a view would then have memory of its own, and its owner not see what is written.
    """
    batched = batched_to_hold(a, *others)
    if batched is a:
        return
    if batched.level is not a.level or a._array.base is not None:
        refuse_to_write(name)
    a._array = batched._array


# ---------------------------------------------------------------- the array


class Batched:
    """An array for each example, with the shape and dtype of one of them."""

    __slots__ = ("__weakref__", "_array", "level")

    __array_priority__ = 1000.0  # CuPy's operators ask for it
    __hash__ = None  # type: ignore[assignment]  # as arrays

    def __init__(self, level: Level, array: Any) -> None:
        self.level = level
        self._array = array

    # ------------------------------------------------------------ shape and dtype, of one example

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one example."""
        return self._array.shape[1:]  # type: ignore[no-any-return]  # arrays are Any

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self._array.dtype  # type: ignore[no-any-return]  # as above

    @property
    def ndim(self) -> int:
        """Number of axes of one example."""
        return int(self._array.ndim - 1)

    @property
    def size(self) -> int:
        """Number of elements of one example."""
        count = 1
        for length in self._array.shape[1:]:
            count *= length
        return count

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self._array.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all examples, which is the memory in use."""
        return int(self._array.nbytes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the axes of one example."""
        return self._array.strides[1:]  # type: ignore[no-any-return]  # as above

    @property
    def flags(self) -> Any:
        """Flags of the inner array."""
        return self._array.flags

    @property
    def base(self) -> Any:
        """The array that owns the memory, None where the inner array owns it."""
        return self._array.base

    @property
    def device(self) -> Any:
        """Return the device of the inner array."""
        return self._array.device

    @property
    def T(self) -> Batched:  # noqa: N802  # NumPy's name
        """Return the array with the axes of one example reversed."""
        return self.transpose()

    @property
    def mT(self) -> Batched:  # noqa: N802  # NumPy's name
        """Return the array with the last two axes exchanged."""
        return Batched(self.level, np.swapaxes(self._array, -1, -2))

    @property
    def real(self) -> Batched:
        """Return the real part."""
        return Batched(self.level, self._array.real)

    @property
    def imag(self) -> Batched:
        """Return the imaginary part."""
        return Batched(self.level, self._array.imag)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of unsized object")
        return int(self._array.shape[1])

    def __iter__(self) -> Iterator[Batched]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"{self._array!r}, batched over axis 0"

    # ------------------------------------------------------------ conversions that raise

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        refuse_conversion("the values")

    def __bool__(self) -> bool:
        refuse_conversion("the truth")

    def __float__(self) -> float:
        refuse_conversion("float()")

    def __int__(self) -> int:
        refuse_conversion("int()")

    def __complex__(self) -> complex:
        refuse_conversion("complex()")

    def __index__(self) -> int:
        refuse_conversion("an integer, as for an index or a range,")

    def item(self, *args: Any) -> NoReturn:
        """Raise: a batched array has no one value."""
        refuse_conversion("item()")

    def tolist(self) -> NoReturn:
        """Raise: a batched array has no one value."""
        refuse_conversion("tolist()")

    def get(self) -> NoReturn:
        """Raise: a batched array has no one value."""
        refuse_conversion("the values")

    # ------------------------------------------------------------ protocols

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if not keywords and method == "__call__":
            made = _fast_path_of(ufunc)(ufunc, self.level, inputs)
            if made is not None:
                return made
        outs = keywords.get("out", ())
        where = keywords.get("where", True)
        given = (*inputs, *outs, where)
        if not all(map(_is_supported, given)):
            return NotImplemented
        level = highest_level((*given, keywords.get("initial")))
        if level is None:
            return NotImplemented
        return _METHODS[method](level, ufunc, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        for t in types:
            if t is not Batched and not issubclass(t, (Batched, CapturedArray, np.ndarray)) and not _is_cupy_array(t):
                return NotImplemented
        level = highest_level((args, keywords))
        if level is None:
            return NotImplemented
        out = keywords.get("out")
        if out is not None:
            del keywords["out"]
            return _write_results(out, self.__array_function__(function, types, args, keywords), function.__name__)
        rule = RULES.get(function)
        made = NotImplemented if rule is None else rule(level, *args, **keywords)
        return loop_over_examples(level, function, args, keywords) if made is NotImplemented else made

    # ------------------------------------------------------------ indexing

    def __getitem__(self, index: Any) -> Any:
        return get_item(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        set_item(self, index, value)

    # ------------------------------------------------------------ methods

    def sum(self, axis: Any = None, *args: Any, **keywords: Any) -> Any:
        """Sum over axes of one example."""
        p = self._array
        if p.__class__ is np.ndarray and not args and (not keywords or keywords.keys() == {"keepdims"}):
            axes = inner_axes(axis, p.ndim - 1)
            return Batched(self.level, sum_of_numpy(p, axes if axes.__class__ is tuple else (axes,), **keywords))
        return np.sum(self, axis, *args, **keywords)

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> Batched:
        """Cast."""
        made = self._array.astype(dtype, copy=copy)
        return self if made is self._array else Batched(self.level, made)

    def copy(self, order: str = "C") -> Batched:
        """Return the values in memory of their own."""
        return Batched(self.level, self._array.copy(order))

    def view(self) -> Batched:
        """Return another array of the same memory."""
        return Batched(self.level, self._array.view())

    def reshape(self, *shape: Any, order: str = "C") -> Batched:
        """Return the elements of each example in another shape."""
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        lengths = _without_minus_one(self, tuple([operator.index(n) for n in lengths]))
        p = self._array
        if order == "F":
            q = np.transpose(p, (0, *range(p.ndim - 1, 0, -1))).reshape((p.shape[0], *lengths[::-1]))
            return Batched(self.level, np.transpose(q, (0, *range(q.ndim - 1, 0, -1))))
        return Batched(self.level, p.reshape((p.shape[0], *lengths)))

    def ravel(self, order: str = "C") -> Batched:
        """Return the elements of each example in one row."""
        return self.reshape(-1, order=order)

    def flatten(self, order: str = "C") -> Batched:
        """Return a copy of the elements of each example in one row."""
        return self.reshape(-1, order=order).copy()

    def transpose(self, *axes: Any) -> Batched:
        """Permute the axes of one example."""
        order: Any = axes[0] if len(axes) == 1 and not hasattr(axes[0], "__index__") else axes
        if order is None or not axes:
            order = range(self.ndim)[::-1]
        places = [operator.index(k) for k in order]
        if sorted(k % max(1, self.ndim) for k in places) != list(range(self.ndim)):
            raise ValueError("axes don't match array")
        return Batched(self.level, np.transpose(self._array, (0, *[k % self.ndim + 1 for k in places])))

    def fill(self, value: Any) -> None:
        """Set every element."""
        self[...] = value

    def conj(self) -> Batched:
        """Return the complex conjugate."""
        return Batched(self.level, np.conjugate(self._array)) if self.dtype.kind == "c" else self

    conjugate = conj

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Tell whether any element of any example is true; a kernel then takes a more general path."""
        return _condition(self, np.any, axis, keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Tell whether all elements of all examples are true; a kernel then takes a shorter path."""
        return _condition(self, np.all, axis, keepdims)


class _Condition(Batched):
    """What any() and all() return to a kernel: a condition on all examples together, which it may branch on.

    Every kernel that branches on one is right for stacks of arrays, and examples are a stack. Users do not get
    this class into a Tensor: numpy.any and numpy.all, which serve Tensors, return a Batched.
    """

    __slots__ = ("ask",)

    ask: Any  # numpy.any or numpy.all, over the examples

    def __bool__(self) -> bool:
        return bool(self.ask(innermost(self)))

    def __invert__(self) -> _Condition:
        return _make_condition(np.logical_not(self), np.all if self.ask is np.any else np.any)


def _make_condition(plain: Any, ask: Any) -> _Condition:
    made = _Condition(plain.level, plain._array)
    made.ask = ask
    return made


def _condition(a: Batched, ask: Any, axis: Any, keepdims: bool) -> Any:
    plain = ask(a, axis=axis, keepdims=keepdims)
    return _make_condition(plain, ask) if axis is None else plain


def _method(name: str, function: Any = None) -> Callable[..., Any]:
    called = function or getattr(np, name)

    def method(self: Batched, *args: Any, **keywords: Any) -> Any:
        return called(self, *args, **keywords)

    method.__name__ = name
    return method


for _name in (
    *("prod", "mean", "var", "std", "max", "min", "argmax", "argmin", "argsort", "argpartition", "clip"),
    *("cumsum", "cumprod", "diagonal", "dot", "nonzero", "ptp", "repeat", "round", "searchsorted", "squeeze"),
    *("swapaxes", "take", "trace", "choose", "compress"),
):
    setattr(Batched, _name, _method(_name))


def _without_minus_one(a: Batched, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with the length that -1 leaves open: of one example, since the batch axis may have length 0."""
    if -1 not in shape:
        return shape
    rest = 1
    for length in shape:
        rest *= 1 if length == -1 else length
    if shape.count(-1) > 1 or (rest == 0 and a.size) or (rest and a.size % rest):
        raise ValueError(f"cannot reshape array of size {a.size} into shape {shape}")
    found = a.size // rest if rest else 0
    return tuple([found if length == -1 else length for length in shape])


# ---------------------------------------------------------------- ufuncs


_PLAIN = (bool, int, float, complex, np.ndarray, np.generic, type(None))


def _is_cupy_array(kind: type) -> bool:
    module = sys.modules.get("cupy")
    return module is not None and issubclass(kind, getattr(module, "ndarray", ()))


def _is_supported(value: Any) -> bool:
    if isinstance(value, (Batched, CapturedArray, *_PLAIN)) or not hasattr(value, "__array_ufunc__"):
        return True
    if isinstance(value, CapturedArray):
        return not is_batched(value.inner)
    return _is_cupy_array(type(value))


def _ndim(value: Any) -> int:
    return int(value.ndim) if hasattr(value, "ndim") else np.ndim(value)


def align(value: Any, level: Level, ndim: int) -> Any:
    """Return the inner array of an argument, with axes inserted so that an example has `ndim` of them."""
    return insert_axes(value._array, ndim) if isinstance(value, Batched) and value.level is level else value


def _call_aligned(ufunc: Any, level: Level, inputs: tuple[Any, ...]) -> Batched | None:
    """Call a ufunc with arrays of one level and numbers, in half of the time; return None in all other cases."""
    lowest, highest, plain = _MOST_AXES, 0, 0
    arrays = []
    for x in inputs:
        kind = x.__class__
        if kind is Batched and x.level is level:
            a = x._array
            if a.ndim > highest:
                highest = a.ndim
            if a.ndim < lowest:
                lowest = a.ndim
        elif kind is np.ndarray:
            a = x
            if x.ndim > plain:
                plain = x.ndim
        elif kind is float or kind is int:
            a = x
        else:
            return None
        arrays.append(a)
    if lowest < highest or plain >= lowest:  # axes are inserted, so that those of one example are aligned
        ndim = highest - 1 if highest > plain else plain
        arrays = [insert_axes(a, ndim) if x.__class__ is Batched else a for x, a in zip(inputs, arrays, strict=True)]
    try:
        return Batched(level, ufunc(*arrays))
    except ValueError:
        return None  # the general path raises with the shapes of one example


_MOST_AXES = 64  # that NumPy's arrays have


def _multiply_by_one_matrix(matmul: Any, level: Level, inputs: tuple[Any, ...]) -> Batched | None:
    """Multiply a vector of each example with one matrix, or a column with a row; return None in all other cases."""
    a, b = inputs
    if a.__class__ is b.__class__ is Batched and a.level is b.level:
        made = _column_times_row(a._array, b._array)
        return None if made is None else Batched(level, made)
    if a.__class__ is Batched and is_numpy(b):
        rows, matrix, inner = a._array, b, 0  # the vectors of all examples are the rows of a matrix
    elif b.__class__ is Batched and is_numpy(a):
        rows, matrix, inner = b._array, a, 1
    else:
        return None
    if not is_numpy(rows) or not rows.ndim == matrix.ndim == 2 or rows.shape[1] != matrix.shape[inner]:
        return None
    matrix = matrix.T if inner else matrix
    if rows is level.identity and rows.dtype == matrix.dtype:
        return Batched(level, matrix.copy("K"))
    return Batched(level, matmul(rows, matrix))


def _column_times_row(p: Any, q: Any) -> Any:
    """Return p @ q for a column and a row of each example, None for other shapes."""
    if not p.ndim == q.ndim == 3 or not p.shape[2] == q.shape[1] == 1 or p.dtype.kind not in "fc":
        return None
    large = p.shape[1] * q.size > _EINSUM_FASTER_ABOVE and len(p) == len(q)
    if large and is_numpy(p) and is_numpy(q) and p.dtype == q.dtype and p.dtype.kind == "f":
        return np.einsum("kij,kjl->kil", p, q)  # 3/4 of multiply's time
    return np.multiply(p, q)


_EINSUM_FASTER_ABOVE = 10_000  # elements, above which einsum is the quicker


def _no_fast_path(ufunc: Any, level: Level, inputs: tuple[Any, ...]) -> None:
    """Return None: there is no fast path."""


def _fast_path_of(ufunc: Any) -> Callable[[Any, Level, tuple[Any, ...]], Batched | None]:
    """Return a function that calls a ufunc in the most frequent cases, without keywords, and returns None in others."""
    if ufunc is np.matmul:
        return _multiply_by_one_matrix
    return _call_aligned if ufunc.signature is None and ufunc.nout == 1 else _no_fast_path


def _call(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if ufunc.signature is not None:
        return _call_generalized(level, ufunc, inputs, keywords)
    outs = keywords.pop("out", (None,) * ufunc.nout)
    if "where" in keywords and keywords["where"] is True:
        del keywords["where"]
    where = keywords.get("where")
    ndim = max(map(_ndim, (*inputs, *([] if where is None else [where]), *[o for o in outs if o is not None])))
    arrays = [align(x, level, ndim) for x in inputs]
    if where is not None:
        keywords["where"] = align(where, level, ndim)
    if all(o is None for o in outs):
        try:
            made = ufunc(*arrays, **keywords)
        except ValueError:
            np.broadcast_shapes(*[np.shape(x) for x in inputs])  # raises with the shapes of one example
            raise
        return tuple([Batched(level, part) for part in made]) if ufunc.nout > 1 else Batched(level, made)
    written = tuple([_array_to_write(level, o, inputs, arrays, ndim, ufunc) for o in outs])
    if written[0] is _NEW_ARRAY:
        return Batched(level, ufunc(*arrays, **keywords))
    made = ufunc(*arrays, out=written, **keywords)
    for o, part in zip(outs, made if ufunc.nout > 1 else (made,), strict=True):
        if o is not None:
            o._array = part
    return outs if ufunc.nout > 1 else outs[0]


_NEW_ARRAY: Any = object()


def _array_to_write(level: Level, out: Any, inputs: Any, arrays: Any, ndim: int, ufunc: Any) -> Any:
    """Return the inner array to write to for out=; _NEW_ARRAY where `h += d` makes a new h."""
    if out is None:
        return None
    if isinstance(out, Batched) and out.level is level:
        _batch_to_hold(out, inputs, ufunc.__name__)
        if out.ndim != ndim:
            raise ValueError(f"non-broadcastable output operand with shape {out.shape}")
        return out._array
    if len(inputs) == 2 and out is inputs[0]:  # Python binds h to what this returns
        return _NEW_ARRAY
    return refuse_to_write(ufunc.__name__)


def refuse_to_write(name: str) -> NoReturn:
    """Raise: a result that differs between examples cannot be written to an array that is the same for all of them."""
    raise errors.BatchedWriteError(
        f"{name} would write values that differ between examples, inside vmap, into an array that is the same for "
        "all of them; make that array inside the mapped function, or pass it as a mapped argument"
    )


def _write_results(out: Any, made: Any, name: str) -> Any:
    """Write the results of a function to out=."""
    if isinstance(out, tuple):
        results = made if isinstance(made, tuple) else (made,)
        return tuple([_write_results(o, part, name) for o, part in zip(out, results, strict=True)])
    if not isinstance(made, Batched) or not isinstance(out, Batched) or out.level.order < made.level.order:
        refuse_to_write(name)
    if not np.can_cast(made.dtype, out.dtype, "same_kind"):
        raise TypeError(f"Cannot cast output from {made.dtype!r} to {out.dtype!r} with casting rule 'same_kind'")
    if made.shape != out.shape:
        raise ValueError(f"{name}(out=...) has a result of shape {made.shape}; found {out.shape}")
    out[...] = made
    return out


_CORE = {"vecdot": (1, 1), "matvec": (2, 1), "vecmat": (1, 2)}


def _call_generalized(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call matmul or a similar ufunc; those of linear algebra are called by functions that have rules."""
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return _write_results(out, ufunc(*inputs, **keywords), ufunc.__name__)
    if ufunc.__name__ == "matmul" and "axes" not in keywords and "axis" not in keywords:
        return Batched(level, _matmul(level, *inputs, **keywords))
    core = _CORE.get(ufunc.__name__)
    if core is None or {"axes", "axis", "keepdims"} & set(keywords):
        return loop_over_examples(level, ufunc, inputs, keywords)
    outer = max(_ndim(x) - c for x, c in zip(inputs, core, strict=True))
    arrays = [align(x, level, outer + c) for x, c in zip(inputs, core, strict=True)]
    return Batched(level, ufunc(*arrays, **keywords))


def _matmul(level: Level, a: Any, b: Any, **keywords: Any) -> Any:
    na, nb = _ndim(a), _ndim(b)
    if 0 in (na, nb):
        raise ValueError("matmul: Input operand does not have enough dimensions")
    _check_inner(np.shape(a), np.shape(b))
    a, b = _without_single_example(a, level), _without_single_example(b, level)
    a_is_batched, b_is_batched = (
        isinstance(a, Batched) and a.level is level,
        isinstance(b, Batched) and b.level is level,
    )
    p, q = (a._array if a_is_batched else a), (b._array if b_is_batched else b)
    if not (a_is_batched or b_is_batched):
        return np.matmul(p, q, **keywords)[None]
    if a_is_batched and not b_is_batched and nb <= 2:
        return _multiply_rows(p, q, keywords)
    if b_is_batched and not a_is_batched and nb == 1 and na <= 2:
        return np.matmul(q, p if na == 1 else np.swapaxes(p, 0, 1), **keywords)
    if b_is_batched and not a_is_batched and nb == na == 2:  # (p q)^T = q^T p^T, whose rows are those of all examples
        return np.swapaxes(_multiply_rows(np.swapaxes(q, 1, 2), np.swapaxes(p, 0, 1), keywords), 1, 2)
    if na == 1:
        p = p[:, None, :] if a_is_batched else p[None, :]
    if nb == 1:
        q = q[..., None]
    outer = max(na, nb, 2)
    made = np.matmul(
        insert_axes(p, outer) if a_is_batched else p, insert_axes(q, outer) if b_is_batched else q, **keywords
    )
    made = made[..., 0] if nb == 1 else made
    return made if na > 1 else made[..., 0] if nb == 1 else made[..., 0, :]


def _check_inner(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[-1] != b[max(-2, -len(b))]:
        raise ValueError(f"matmul: shapes {a} and {b} do not fit: {a[-1]} columns, {b[max(-2, -len(b))]} rows")


def _without_single_example(a: Any, level: Level) -> Any:
    """Return an array that is the same for all examples without its batch axis: one large product instead of many."""
    if isinstance(a, Batched) and a.level is level and a._array.shape[0] == 1 != level.size:
        return a._array[0]
    return a


def _multiply_rows(p: Any, q: Any, keywords: dict[str, Any]) -> Any:
    """Multiply the rows of all examples by one matrix, in one product."""
    if p.ndim <= 2 or is_batched(p) or is_batched(q):
        return np.matmul(p, q, **keywords)
    made = np.matmul(p.reshape(-1, p.shape[-1]), q, **keywords) if p.size else np.matmul(p, q, **keywords)
    return made.reshape(p.shape[:-1] + q.shape[1:])


def _reduce(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    (a,) = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return _write_results(out, ufunc.reduce(a, **keywords), ufunc.__name__)
    keywords = {k: v for k, v in keywords.items() if v is not np._NoValue}
    if is_batched(keywords.get("initial")):
        return loop_over_examples(level, ufunc.reduce, inputs, keywords)
    p = at_level(a, level)._array
    keywords["axis"] = inner_axes(keywords.get("axis", 0), p.ndim - 1)
    if is_batched(keywords.get("where")):
        p = repeat_examples(p, level.size)
        keywords["where"] = align(keywords["where"], level, p.ndim - 1)
    return Batched(level, ufunc.reduce(p, **keywords))


def at_level(a: Any, level: Level) -> Batched:
    """Return an array as one that is batched at this level."""
    return a if isinstance(a, Batched) and a.level is level else broadcast_over_examples(as_array(a), level)


def inner_axes(axis: Any, ndim: int) -> Any:
    """Return the axes of the inner array for axes of one example; None means all of them."""
    if axis is None:
        return tuple(range(1, ndim + 1))
    if isinstance(axis, (tuple, list)):
        return tuple([inner_axis(k, ndim) for k in axis])
    return inner_axis(axis, ndim)


def inner_axis(axis: Any, ndim: int) -> int:
    """Return the axis of the inner array for an axis of one example."""
    k = operator.index(axis)
    if not -ndim <= k < ndim:
        raise np.exceptions.AxisError(k, ndim)
    return k % ndim + 1


def _accumulate(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    (a,) = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return _write_results(out, ufunc.accumulate(a, **keywords), ufunc.__name__)
    axis = inner_axis(keywords.pop("axis", 0), a.ndim)
    return Batched(level, ufunc.accumulate(a._array, axis=axis, **keywords))


def _reduceat(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    a, indices = inputs
    out = keywords.pop("out", (None,))[0]
    if out is not None:
        return _write_results(out, ufunc.reduceat(a, indices, **keywords), ufunc.__name__)
    if is_batched_at(indices, level):
        return loop_over_examples(level, ufunc.reduceat, inputs, keywords)
    axis = inner_axis(keywords.pop("axis", 0), a.ndim)
    return Batched(level, ufunc.reduceat(a._array, indices, axis=axis, **keywords))


def _outer(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    a, b = (x if is_batched(x) else as_array(x) for x in inputs)
    return ufunc(a.reshape(a.shape + (1,) * b.ndim), b, **keywords)


def _at(level: Level, ufunc: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    a, index, *more = inputs
    if not isinstance(a, Batched) or a.level is not level:
        refuse_to_write(f"{ufunc.__name__}.at")
    _batch_to_hold(a, (index, *more), f"{ufunc.__name__}.at")
    p, place, layout = _locate(a, index)
    own = ufunc if is_batched(p) else getattr(level.root, ufunc.__name__, ufunc)  # CuPy's is not reached by protocol
    own.at(p, place, *[layout(v) for v in more])


_METHODS = MappingProxyType(
    {
        "__call__": _call,
        "reduce": _reduce,
        "accumulate": _accumulate,
        "reduceat": _reduceat,
        "outer": _outer,
        "at": _at,
    }
)


def _operator(ufunc: Any, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def operate(x: Batched, y: Any) -> Any:
        made = quick(ufunc, x.level, (y, x) if reflected else (x, y))
        if made is not None:
            return made
        if not _is_supported(y):
            return NotImplemented
        return ufunc(y, x) if reflected else ufunc(x, y)

    quick = _fast_path_of(ufunc)
    return operate


def _update(ufunc: Any) -> Callable[[Any, Any], Any]:
    def update(x: Batched, y: Any) -> Any:
        if y.__class__ is Batched and y.level is x.level:
            p, q = x._array, y._array
            if p.__class__ is q.__class__ is np.ndarray and p.shape == q.shape and p.dtype == q.dtype:
                ufunc(p, q, out=p)
                return x
        if not _is_supported(y):
            return NotImplemented
        return ufunc(x, y, out=(x,)) if batched_to_hold(x, y) is x else ufunc(x, y)

    return update


def _unary(ufunc: Any) -> Callable[[Any], Any]:
    return lambda x: ufunc(x)


for _name, _ufunc in {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "divmod": np.divmod,
}.items():
    setattr(Batched, f"__{_name}__", _operator(_ufunc))
    setattr(Batched, f"__r{_name}__", _operator(_ufunc, reflected=True))
    if _name != "divmod":
        setattr(Batched, f"__i{_name}__", _update(_ufunc))
for _name, _ufunc in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    setattr(Batched, f"__{_name}__", _operator(_ufunc))
for _name, _ufunc in {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}.items():
    setattr(Batched, f"__{_name}__", _unary(_ufunc))


# ---------------------------------------------------------------- indexing


def _parts(index: Any, ndim: int) -> list[Any]:
    """Return an index as a list with a part for each axis: lists become arrays, the ellipsis slices."""
    parts = [np.asarray(p) if isinstance(p, list) else p for p in (index if isinstance(index, tuple) else (index,))]
    taken = sum(p.ndim if _is_mask(p) else p is not None and p is not Ellipsis for p in parts)
    if taken > ndim:
        raise IndexError(f"too many indices for array: array is {ndim}-dimensional, but {taken} were indexed")
    missing = [slice(None)] * (ndim - taken)
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    return [*parts[: dots[0]], *missing, *parts[dots[0] + 1 :]] if dots else [*parts, *missing]


_NO_DTYPE = np.dtype("V")


def _is_mask(part: Any) -> bool:
    return getattr(part, "dtype", _NO_DTYPE).kind == "b"


def _is_advanced(part: Any) -> bool:
    return not (part is None or isinstance(part, slice))


class _Layout:
    """Where the axes of integer arrays are in an indexed result: in their place, or in front of all others."""

    def __init__(self, parts: list[Any]) -> None:
        arrays = [p for p in parts if _is_advanced(p)]
        places = [k for k, p in enumerate(parts) if _is_advanced(p)]
        self.any_array = any(not isinstance(p, (int, np.integer)) for p in arrays)
        self.broadcast = max([1 if _is_mask(p) else _ndim(p) for p in arrays], default=0)
        self.adjacent = not places or places[-1] - places[0] == len(places) - 1
        self.before = places[0] if places and self.adjacent else 0
        self.ndim = self.broadcast + len(parts) - len(places)


def _is_simple(index: Any) -> bool:
    """Tell whether an index has only integers, slices, None and the ellipsis."""
    if index.__class__ is not tuple:
        return index.__class__ in _SIMPLE or isinstance(index, np.integer)
    return _SIMPLE.issuperset(map(type, index)) or all(
        p.__class__ in _SIMPLE or isinstance(p, np.integer) for p in index
    )


_SIMPLE = frozenset((int, slice, type(None), type(Ellipsis)))


def _needs_loop(parts: Iterable[Any]) -> bool:
    """Tell whether an index needs a loop over the examples, as a truth value and a batched mask do."""
    return any(p is True or p is False or (_is_mask(p) and (_ndim(p) == 0 or is_batched(p))) for p in parts)


def get_item(a: Any, index: Any) -> Any:
    """Return a[index], where at least one of the two is batched."""
    parts = index if isinstance(index, tuple) else (index,)
    if isinstance(a, Batched) and _is_simple(index):
        return Batched(a.level, a._array[(slice(None), *parts)])
    level = highest_level((a, index))
    if level is None:
        return a[index]
    if _needs_loop(parts):
        _check_mask_counts(parts, level)
        return loop_over_examples(level, operator.getitem, (a, index), {})
    is_at_level = isinstance(a, Batched) and a.level is level
    if is_at_level and not any(is_batched_at(p, level) for p in parts):
        written = _parts(index, a.ndim)
        layout, made = _Layout(written), getitem_of(a._array, (slice(None), *written))
        in_front = layout.any_array and not layout.adjacent
        return Batched(level, np.moveaxis(made, layout.broadcast, 0) if in_front else made)
    written = _parts(index, _ndim(a))
    layout = _Layout(written)
    arrays = [
        insert_axes(p._array, layout.broadcast) if is_batched_at(p, level) and p.level is level else p for p in written
    ]
    if not is_at_level:
        made = getitem_of(a, tuple(arrays))
        return Batched(level, np.moveaxis(made, layout.before, 0) if layout.before else made)
    p = repeat_examples(a._array, level.size)
    made = getitem_of(p, (_examples(level, layout), *arrays))
    return Batched(level, _move_indexed_axes(made, layout))


def _examples(level: Level, layout: _Layout) -> Any:
    return level.root.arange(level.size).reshape((level.size,) + (1,) * layout.broadcast)


def _move_indexed_axes(made: Any, layout: _Layout) -> Any:
    """Move the axes of index arrays from after the batch axis to their place in one example."""
    if not (layout.before and layout.broadcast):
        return made
    count = layout.broadcast
    return np.moveaxis(made, tuple(range(1, 1 + count)), tuple(range(1 + layout.before, 1 + layout.before + count)))


def _check_mask_counts(parts: Iterable[Any], level: Level) -> None:
    for p in parts:
        if _is_mask(p) and is_batched_at(p, level):
            counts = np.sum(innermost(p), axis=tuple(range(1, innermost(p).ndim)))
            if (counts != counts.ravel()[:1]).any():
                raise errors.BatchedValueError(
                    "x[mask] inside vmap: the mask picks a different number of elements in each example, and arrays "
                    "of different lengths do not make one; use where(mask, x, ...) instead"
                )


def _locate(a: Batched, index: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Return the inner array, the index into it, and a function that brings a value into the layout of the result."""
    level = a.level
    parts = _parts(index, a.ndim)
    layout = _Layout(parts)
    if any(is_batched_at(p, level) for p in parts):
        arrays = [
            insert_axes(p._array, layout.broadcast) if isinstance(p, Batched) and p.level is level else p for p in parts
        ]
        place: Any = (_examples(level, layout), *arrays)
        count, before = layout.broadcast, layout.before

        def move(v: Any) -> Any:
            if not (before and count):
                return v
            return np.moveaxis(v, tuple(range(1 + before, 1 + before + count)), tuple(range(1, 1 + count)))
    else:
        place = (slice(None), *parts)

        def move(v: Any) -> Any:
            return np.moveaxis(v, 0, layout.broadcast) if layout.any_array and not layout.adjacent else v

    def lay_out(value: Any) -> Any:
        if not is_batched(value) and np.ndim(value) == 0:
            return value
        v = at_level(value, level)._array
        while v.ndim - 1 > layout.ndim and v.shape[1] == 1:
            v = v[:, 0]
        return move(insert_axes(v, layout.ndim))

    return a._array, place, lay_out


def set_item(a: Batched, index: Any, value: Any) -> None:
    """Write a[index] = value, where index and value may be batched too."""
    if value.__class__ is Batched and value.level is a.level and _is_simple(index):
        p, v = a._array, value._array
        if p.__class__ is v.__class__ is np.ndarray and len(p) == len(v):
            target = p[(slice(None), *(index if isinstance(index, tuple) else (index,)))]
            if target.ndim == v.ndim and target.shape == v.shape:
                target[...] = v
                return
    _batch_to_hold(a, (index, value), "x[index] = v")
    if _needs_loop(index if isinstance(index, tuple) else (index,)):
        loop_over_examples(a.level, _write, (a, index, value), {})
        return
    p, place, layout = _locate(a, index)
    p[place] = layout(value)


def _write(a: Any, index: Any, value: Any) -> None:
    a[index] = value


# ---------------------------------------------------------------- loops over the examples


def loop_over_examples(level: Level, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
    """Call a function for each example and stack the results; right for every function without side effects."""
    name = getattr(function, "__name__", "the function")
    if level.size == 0:
        raise errors.BatchedValueError(
            f"{name} inside vmap is called once for each example, and there is none: a batch of 0 examples gives no "
            "shape"
        )
    if name in _WRITERS:
        prepare_target(args[0], level, (args[1:], keywords), name)
    if level.size >= _MANY_EXAMPLES:
        _warn_of_loop(level, name, (args, keywords))
    made = [
        function(*_select_example(level, args, k), **_select_example(level, keywords, k)) for k in range(level.size)
    ]
    return _stack_results(level, made, name)


# From so many examples on, of at most so many numbers each, the calls take most of the time.
_MANY_EXAMPLES, _FEW_NUMBERS = 64, 1000


def _warn_of_loop(level: Level, name: str, given: Any) -> None:
    """Warn where a rule for all examples would be much faster than a loop over them."""
    if sum([part.size for part in leaves_in(given) if isinstance(part, Batched)]) <= _FEW_NUMBERS:
        errors.warn(
            f"{name} inside vmap is called once for each of {level.size} examples, as it has no rule for all of them "
            "at once; docs/coverage.md lists the functions that have",
            errors.PerformanceWarning,
        )


_WRITERS = frozenset(("copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal", "_write"))


def prepare_target(target: Any, level: Level, others: Any, name: str) -> None:
    """Let an array that is written to hold every example of the others, or raise."""
    if not (isinstance(target, Batched) and target.level is level):
        refuse_to_write(name)
    _batch_to_hold(target, others, name)


def _select_example(level: Level, value: Any, k: int) -> Any:
    """Return an argument with the values of example k."""

    def select(part: Any) -> Any:
        if not isinstance(part, Batched) or part.level is not level:
            return part
        return part._array[k if part._array.shape[0] != 1 else 0, ...]

    return map_leaves(select, value)


def _stack_results(level: Level, made: list[Any], name: str) -> Any:
    first = made[0]
    if first is None or isinstance(first, (str, np.dtype, type)):
        return first
    if isinstance(first, (list, tuple)):
        if any(len(result) != len(first) for result in made):
            raise _shape_error(name, [len(result) for result in made])
        parts = [_stack_results(level, list(column), name) for column in zip(*made, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    shapes = [np.shape(result) for result in made]
    if any(shape != shapes[0] for shape in shapes):
        raise _shape_error(name, shapes)
    return Batched(level, np.stack([as_array(result) for result in made]))


def _shape_error(name: str, found: list[Any]) -> errors.BatchedValueError:
    return errors.BatchedValueError(
        f"{name} inside vmap gives results of different shapes for different examples: {found[:4]}; "
        "arrays of different shapes do not make one"
    )
