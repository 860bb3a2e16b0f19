"""Batched: an array for each example of a batch, with the shape of one example; the batch axis is hidden.

Inside `vmap` the arrays of mapped tensors are of this class. It is one more array library: NumPy's
functions dispatch to it by protocol, so the kernels and rules of the op table run on it unchanged.
One mechanism serves all ufuncs (`batched_ufuncs`); every other function needs a rule in the table RULES (filled by
`batching_rules`). A function without a rule is called once for each example.

The batch axis is axis 0 of the inner array, `Batched._array`. It may have length 1 where all examples are the same.
Levels of vmap nest: a call is handled at the highest level among its arguments, to which those of
lower levels are plain arrays.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
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


# ---------------------------------------------------------------- which arrays are batched


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


def any_batched(*values: Any) -> bool:
    """Tell whether any of the values, which may be containers, is batched."""
    return highest_level(values) is not None


def is_cupy_array(kind: type) -> bool:
    module = sys.modules.get("cupy")
    return module is not None and issubclass(kind, getattr(module, "ndarray", ()))


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


def at_level(a: Any, level: Level) -> Batched:
    """Return an array as one that is batched at this level."""
    return a if isinstance(a, Batched) and a.level is level else broadcast_over_examples(as_array(a), level)


def sum_over_examples(a: Any, level: Level, add_up: Callable[..., Any]) -> Any:
    """Sum over the examples of a level by add_up(array, axes)."""
    if isinstance(a, Batched):
        if a.level.order > level.order:
            return Batched(a.level, sum_over_examples(a._array, level, add_up))
        if a.level is level and a._array.shape[0] != 1:
            return add_up(a._array, (0,))
        if a.level is level:
            a = a._array[0, ...]
    return a * level.size


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
    ndim = max(map(ndim_of, args))
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


# ---------------------------------------------------------------- axes


def ndim_of(value: Any) -> int:
    return int(value.ndim) if hasattr(value, "ndim") else np.ndim(value)


def insert_axes(p: Any, ndim: int) -> Any:
    """Insert axes after the batch axis, so that one example has `ndim` axes."""
    lacking = ndim + 1 - p.ndim
    return p if lacking <= 0 else p.reshape((p.shape[0],) + (1,) * lacking + p.shape[1:])


def align(value: Any, level: Level, ndim: int) -> Any:
    """Return the inner array of an argument, with axes inserted so that an example has `ndim` of them."""
    return insert_axes(value._array, ndim) if isinstance(value, Batched) and value.level is level else value


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


# ---------------------------------------------------------------- writing


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


def batch_to_hold(a: Batched, others: Iterable[Any], name: str) -> None:
    """Batch `a` at the levels of the others, whose values are to be written to it.

    Raise where that is impossible: a view would then have its own memory, and its owner not see what is written.
    """
    batched = batched_to_hold(a, *others)
    if batched is a:
        return
    if batched.level is not a.level or a._array.base is not None:
        refuse_to_write(name)
    a._array = batched._array


def write_results(out: Any, made: Any, name: str) -> Any:
    """Write the results of a function to out=."""
    if isinstance(out, tuple):
        results = made if isinstance(made, tuple) else (made,)
        return tuple([write_results(o, part, name) for o, part in zip(out, results, strict=True)])
    if not isinstance(made, Batched) or not isinstance(out, Batched) or out.level.order < made.level.order:
        refuse_to_write(name)
    if not np.can_cast(made.dtype, out.dtype, "same_kind"):
        raise TypeError(f"Cannot cast output from {made.dtype!r} to {out.dtype!r} with casting rule 'same_kind'")
    if made.shape != out.shape:
        raise ValueError(f"{name}(out=...) has a result of shape {made.shape}; found {out.shape}")
    out[...] = made
    return out


def refuse_to_write(name: str) -> NoReturn:
    """Raise: a result that differs between examples cannot be written to an array that is the same for all of them."""
    raise errors.BatchedWriteError(
        f"{name} would write values that differ between examples, inside vmap, into an array that is the same for "
        "all of them; make that array inside the mapped function, or pass it as a mapped argument"
    )


# ---------------------------------------------------------------- the array


class Batched:
    """An array for each example, with the shape and dtype of one of them."""

    __slots__ = ("__weakref__", "_array", "level")

    __array_priority__ = 1000.0  # CuPy's operators ask for it
    __hash__ = None  # type: ignore[assignment]  # as arrays

    # Bound by batched_ufuncs, as are the operators, and by batched_indexing; both import this class.
    __array_ufunc__: Callable[..., Any]
    __getitem__: Callable[..., Any]
    __setitem__: Callable[..., None]

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
        """The array that owns the memory, None if the inner array owns it."""
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

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        for t in types:
            if t is not Batched and not issubclass(t, (Batched, CapturedArray, np.ndarray)) and not is_cupy_array(t):
                return NotImplemented
        level = highest_level((args, keywords))
        if level is None:
            return NotImplemented
        out = keywords.get("out")
        if out is not None:
            del keywords["out"]
            return write_results(out, self.__array_function__(function, types, args, keywords), function.__name__)
        rule = RULES.get(function)
        made = NotImplemented if rule is None else rule(level, *args, **keywords)
        return loop_over_examples(level, function, args, keywords) if made is NotImplemented else made

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
        """Return the values in their own memory."""
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
    batch_to_hold(target, others, name)


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
