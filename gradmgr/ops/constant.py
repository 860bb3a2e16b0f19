"""Functions whose results carry no gradient: comparisons, logic, tests, positions, integers, text, files."""

from __future__ import annotations

from builtins import any as _any
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import computed, listener
from gradmgr._engine.mutation import store
from gradmgr._engine.tensor import Tensor, cut, wrap


def _results(z: Any) -> Any:
    if isinstance(z, tuple):
        return tuple([_results(part) for part in z])
    if z.__class__ is int:  # count_nonzero, before NumPy 2.3
        return wrap(np.asarray(z))
    return wrap(z) if libraries.is_array(z) and holds_numbers(z.dtype) else z


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """Tell whether a Tensor may have this dtype: not one of dates, text, records or objects."""
    return dtype.kind in "biufc" or libraries.is_differentiable(dtype)


def _values(a: Any) -> Any:
    """Return an argument with the Tensors in it, in lists and tuples too, as their arrays."""
    if isinstance(a, Tensor):
        return a._array
    if a.__class__ in _SEQUENCES:
        return type(a)(map(_values, a))
    if a.__class__ not in libraries.PLAIN:
        libraries.check_plain(a)
    return a


def _on_one_device(values: tuple[Any, ...]) -> tuple[Any, ...]:
    xp = next((libraries.namespace(a) for a in values if libraries.namespace(a) is not np), np)
    return values if xp is np else tuple([xp.asarray(a) if a.__class__ in _NO_ARRAYS else a for a in values])


def _has_tensor(a: Any) -> bool:
    return isinstance(a, Tensor) or (a.__class__ in _SEQUENCES and _any(map(_has_tensor, a)))


def _log_constants(args: tuple[Any, ...], name: str, made: Any) -> None:
    """Tell recordings that keep a trace log that the results have no history."""
    for a in args:
        if isinstance(a, Tensor):
            cut(a, name, made)


_SEQUENCES = frozenset((list, tuple))
_NO_ARRAYS = frozenset((list, tuple, bool, int, float, complex))


def _position_of_out(function: Callable[..., Any]) -> tuple[int, tuple[str, ...]] | None:
    """Return the position of `out` among the parameters, and the names of the parameters from there on."""
    if isinstance(function, np.ufunc):
        return function.nin, ("out",)
    import inspect

    try:
        names = tuple(inspect.signature(function).parameters)
    except ValueError:  # written in C, without a signature, and without out=
        return None
    return (names.index("out"), names[names.index("out") :]) if "out" in names else None


def _with_names(name: str, names: tuple[str, ...], values: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keywords with those among them that were given by position."""
    given = dict(zip(names, values, strict=False))
    if given.keys() & kwargs:
        raise TypeError(f"{name}() was given an argument both by position and by name")
    return given | kwargs


def with_metadata_of(function: Callable[..., Any], call: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """Give a function that takes the place of one of NumPy's its name, signature (for inspect) and a line of help."""
    call.__name__ = call.__qualname__ = function.__name__
    call.__dict__["__wrapped__"] = function
    call.__doc__ = doc
    return call


def _check_runs_on_gpu(name: str, arrays: tuple[Any, ...], error: Exception) -> None:
    """Raise for what a function of CuPy lacks, if that is the cause of an error."""
    if _any(libraries.is_array(a) and libraries.namespace(a) is not np for a in arrays):
        raise errors.UnsupportedFunctionError(
            f"{name} does not run on a GPU with these arguments: {error}; move to the CPU with .to('cpu') for it"
        ) from error


def constant(function: Callable[..., Any], arrays_first: int = 0) -> Callable[..., Any]:
    """Let a NumPy function take Tensors: computed on the values, never recorded.

    Its first `count` arguments are arrays: numbers and lists among them are moved to the device of the others.
    """
    name = function.__name__
    may_broadcast = isinstance(function, np.ufunc) or name in ("isneginf", "isposinf")  # made of ufuncs
    place: Any = ...  # looked up when it is first asked for: reading signatures takes 3 ms of the import

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal place
        if len(args) > 1:
            place = _position_of_out(function) if place is ... else place
            if place is not None and place[0] < len(args) <= place[0] + len(place[1]):  # NumPy rejects more
                kwargs = _with_names(name, place[1], args[place[0] :], kwargs)
                args = args[: place[0]]
        out = kwargs.get("out")
        if isinstance(out, (Tensor, tuple)):
            place = _position_of_out(function) if place is ... else place
            if place is None:
                raise TypeError(f"{name}() got an unexpected keyword argument 'out'; use what it returns")
            del kwargs["out"]
            z = call(*args, **kwargs)
            return store(out, z, f"{name}(out=...)", may_broadcast=may_broadcast)
        arrays = args
        try:
            if not _any(map(_has_tensor, (*args, *kwargs.values()))):
                return function(*args, **kwargs)
            heard = listener()
            if heard is not None:
                heard.meet_all((args, kwargs))
            arrays = tuple([_values(arg) for arg in args])
            arrays = (*_on_one_device(arrays[:arrays_first]), *arrays[arrays_first:])
            made = _results(computed(function, *arrays, **{key: _values(value) for key, value in kwargs.items()}))
            _log_constants(args, name, made)
            return made
        except errors.REJECTIONS as error:
            if isinstance(error, TypeError):
                libraries.check_mixed(name, *arrays)
            errors.put_name(error, name)
            raise
        except (AttributeError, NotImplementedError) as error:
            _check_runs_on_gpu(name, arrays, error)
            raise

    return with_metadata_of(function, call, f"`numpy.{name}` on the values; the result carries no gradient.")


def _not_implemented(x: object, y: object) -> Any:
    return NotImplemented


def valued_operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the operator of a comparison or bitwise function: NotImplemented for operands of other types."""
    compute = constant(function)
    # What is equal to no Tensor may be looked for in a list of Tensors.
    of_others = _not_implemented if function in (np.equal, np.not_equal) else libraries.try_the_other

    def operate(x: Tensor, y: Any, /) -> Any:
        other = y if isinstance(y, (Tensor, list, tuple)) else libraries.operand(y)
        return of_others(x, y) if other is NotImplemented else compute(x, other)

    operate.__name__ = operate.__qualname__ = function.__name__
    return operate


def reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same with the operands exchanged."""
    compute = constant(function)

    def operate(y: Tensor, x: Any, /) -> Any:
        other = x if isinstance(x, (Tensor, list, tuple)) else libraries.operand(x)
        return libraries.try_the_other(x, y) if other is NotImplemented else compute(other, y)

    operate.__name__ = operate.__qualname__ = function.__name__
    return operate


equal = constant(np.equal)
not_equal = constant(np.not_equal)
less = constant(np.less)
less_equal = constant(np.less_equal)
greater = constant(np.greater)
greater_equal = constant(np.greater_equal)
logical_and = constant(np.logical_and)
logical_or = constant(np.logical_or)
logical_xor = constant(np.logical_xor)
logical_not = constant(np.logical_not)
bitwise_and = constant(np.bitwise_and)
bitwise_or = constant(np.bitwise_or)
bitwise_xor = constant(np.bitwise_xor)
invert = constant(np.invert)
left_shift = constant(np.left_shift)
right_shift = constant(np.right_shift)
isnan = constant(np.isnan)
isinf = constant(np.isinf)
isfinite = constant(np.isfinite)
signbit = constant(np.signbit)
isclose = constant(np.isclose)
iscomplexobj = constant(np.iscomplexobj)
isrealobj = constant(np.isrealobj)
allclose = constant(np.allclose)
array_equal = constant(np.array_equal, 2)
all = constant(np.all)
any = constant(np.any)
count_nonzero = constant(np.count_nonzero)
nonzero = constant(np.nonzero)
flatnonzero = constant(np.flatnonzero)
argwhere = constant(np.argwhere)
argmax = constant(np.argmax)
argmin = constant(np.argmin)
argsort = constant(np.argsort)
searchsorted = constant(np.searchsorted, 2)
result_type = constant(np.result_type)

# ---------------------------------------------------------------- integers, tests, indices

gcd = constant(np.gcd)
lcm = constant(np.lcm)
bitwise_count = constant(np.bitwise_count)
packbits = constant(np.packbits)
unpackbits = constant(np.unpackbits)
isnat = constant(np.isnat)
isneginf = constant(np.isneginf)
isposinf = constant(np.isposinf)
isreal = constant(np.isreal)
iscomplex = constant(np.iscomplex)
isfortran = constant(np.isfortran)
array_equiv = constant(np.array_equiv)
ravel_multi_index = constant(np.ravel_multi_index)
unravel_index = constant(np.unravel_index)
tril_indices_from = constant(np.tril_indices_from)
triu_indices_from = constant(np.triu_indices_from)
diag_indices_from = constant(np.diag_indices_from)
shares_memory = constant(np.shares_memory)
may_share_memory = constant(np.may_share_memory)
common_type = constant(np.common_type)
min_scalar_type = constant(np.min_scalar_type)
mintypecode = constant(np.mintypecode)
busday_count = constant(np.busday_count)
busday_offset = constant(np.busday_offset)
is_busday = constant(np.is_busday)
datetime_as_string = constant(np.datetime_as_string)


def einsum_path(*operands: Any, optimize: Any = "greedy", einsum_call: bool = False) -> Any:
    """Find a good order of contraction as `numpy.einsum_path`; only the shapes of the operands count."""
    shapes = [np.broadcast_to(np.empty((), t.dtype), t.shape) if isinstance(t, Tensor) else t for t in operands]
    find: Any = np.einsum_path  # its stubs do not know einsum_call
    return find(*shapes, optimize=optimize, einsum_call=einsum_call)


# ---------------------------------------------------------------- text and files


def _on_host(a: Any) -> Any:
    if isinstance(a, Tensor):
        return a.numpy()
    return type(a)(map(_on_host, a)) if a.__class__ in _SEQUENCES else a


def _number_on_host(a: Any) -> Any:
    """Return a Tensor of one element as NumPy's number of its dtype."""
    return a.numpy().reshape(())[()] if isinstance(a, Tensor) else a


def output(function: Callable[..., Any], value: Callable[[Any], Any] = _on_host) -> Callable[..., Any]:
    """Let a NumPy function that writes text or a file take Tensors by their values, tracked ones too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*map(value, args), **{key: value(a) for key, a in kwargs.items()})
        except errors.REJECTIONS as error:
            errors.put_name(error, function.__name__)
            raise

    return with_metadata_of(
        function, call, f"`numpy.{function.__name__}` of the values, copied to the host from a GPU."
    )


save = output(np.save)
savez = output(np.savez)
savez_compressed = output(np.savez_compressed)
savetxt = output(np.savetxt)
array_repr = output(np.array_repr)
array_str = output(np.array_str)
array2string = output(np.array2string)
format_float_positional = output(np.format_float_positional, _number_on_host)
format_float_scientific = output(np.format_float_scientific, _number_on_host)
binary_repr = output(np.binary_repr, _number_on_host)
base_repr = output(np.base_repr, _number_on_host)
