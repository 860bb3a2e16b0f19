"""A stand-in for CuPy where there is no GPU: an array class that refuses what CuPy's refuses.

It is no subclass of numpy.ndarray, for NumPy would look through that. What it has of CuPy 14:
an array never becomes NumPy's by itself; operators and ufuncs take arrays of its own kind, Python
and NumPy numbers, nothing else; functions have CuPy's keywords, fewer than NumPy's; every result is
an array, 0-d too; a view has `base`, the array that owns the memory; nothing is read-only, not even
a broadcast view; of several values written to one element, which stays is not NumPy's choice.
"""

from __future__ import annotations

import ctypes
import re
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import scipy.special
from cupy_signatures import LOOPS, SCATTERS, SIGNATURES, SPECIAL
from numpy.lib.stride_tricks import as_strided


class Flags(namedtuple("Flags", "c_contiguous f_contiguous owndata")):  # CuPy has no writeable
    """Flags by attribute and, in capitals, by item."""

    __slots__ = ()

    def __getitem__(self, name: str) -> bool:
        if name not in ("C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA"):
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return getattr(self, name.lower())

    fnc = property(lambda self: self.f_contiguous and not self.c_contiguous)
    forc = property(lambda self: self.f_contiguous or self.c_contiguous)


_SCALARS = (bool, int, float, complex, np.generic)

_RENAMED = {
    "a_min": "min",
    "a_max": "max",
    "tup": "arrays",
    "newshape": "shape",
    "dims": "shape",
}  # CuPy's keyword, NumPy's

# Ufuncs that CuPy names otherwise, and those it lacks.
_UFUNC_NAMES = {"divide": "true_divide"}
_NO_UFUNC = {"isnat", "spacing", "vecdot", "matvec", "vecmat"}


class Pointer:
    """Where an array lies on the GPU."""

    def __init__(self, array: ndarray) -> None:
        self._array = array
        self.mem, self.device, self.ptr = object(), array.device, array._host.ctypes.data

    def copy_from_device_async(self, source: Pointer, nbytes: int, stream: Any = None) -> None:
        """Copy bytes, of arrays without gaps."""
        ctypes.memmove(self.ptr, source.ptr, nbytes)


class ndarray:  # noqa: N801  # its name in CuPy
    """An array "on the GPU": it wraps a NumPy array and never gives it out."""

    __slots__ = ("__weakref__", "_host", "base")

    copies_to_host = 0  # how often an array of more than one element was copied to the host
    waits = 0  # how often the program had to wait for the GPU: for a number, or for how long a result is

    def __init__(self, host: np.ndarray, base: ndarray | None = None) -> None:
        self._host = host
        self.base = base

    # ------------------------------------------------------------ shape, dtype and flags

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    device = property(lambda self: SimpleNamespace(id=0))
    data = property(lambda self: Pointer(self))
    __cuda_array_interface__ = property(lambda self: {"version": 3})

    @property
    def flags(self) -> Flags:
        return Flags(self._host.flags.c_contiguous, self._host.flags.f_contiguous, self.base is None)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[k] for k in range(len(self)))

    __hash__ = None

    # ------------------------------------------------------------ conversion

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self) -> np.ndarray:
        ndarray.waits += 1
        if self.size > 1:
            ndarray.copies_to_host += 1
        return self._host.copy()

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    __bool__ = lambda self: bool(self.get())
    __int__ = lambda self: int(self.get())
    __float__ = lambda self: float(self.get())
    __complex__ = lambda self: complex(self.get())

    # ------------------------------------------------------------ protocols

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if len(keywords.get("out", (None,))) != 1:
            raise ValueError("The 'out' parameter must have exactly one array value")
        ours = getattr(_module, function.__name__, None)
        if method != "__call__":
            ours = getattr(ours, method, None)
        if ours is None:
            return NotImplemented
        if not all(isinstance(x, (ndarray, np.ndarray, *_SCALARS)) for x in (*inputs, *keywords.get("out", ()))):
            return NotImplemented
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        if function in _COMPARISONS.values():  # np.float64(1) < array arrives as 0-d; CuPy takes it in comparisons only
            inputs = tuple(x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs)
        return ours(*inputs, **keywords)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        ours = getattr(_library(function.__module__), function.__name__, None)
        if ours is None or not all(t in (ndarray, np.ndarray) for t in types):
            return NotImplemented
        return ours(*args, **keywords)

    # ------------------------------------------------------------ indexing

    def __getitem__(self, index: Any) -> ndarray:
        ndarray.waits += _has_mask(index)
        return _own(self._host[_index(index, self.shape)], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim and not _has_array(index):
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        index, value = _index(index, self.shape), value if isinstance(value, np.ndarray) else _host(value)
        places = np.arange(self.size).reshape(self.shape)[index]
        value = np.asarray(value)
        value = value.reshape(value.shape[max(0, value.ndim - places.ndim) :])
        written = np.broadcast_to(value, places.shape)
        self._host.flat[places.ravel()[::-1]] = written.ravel()[::-1]  # so that the first of several stays

    # ------------------------------------------------------------ methods

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        return _own(self._host.astype(dtype, copy=copy), self)

    def copy(self, order: str = "C") -> ndarray:
        return ndarray(self._host.copy(order))

    def flatten(self, order: str = "C") -> ndarray:
        return ndarray(self._host.flatten(order))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        return _own(self._host.reshape(*shape, order=order), self)

    def transpose(self, *axes: Any) -> ndarray:
        return _own(self._host.transpose(*axes), self)

    def view(self, dtype: Any = None) -> ndarray:
        return _own(self._host.view(self.dtype if dtype is None else dtype), self)

    def fill(self, value: Any) -> None:
        self._host.fill(_host(value))

    def set(self, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self.dtype != array.dtype:
            raise TypeError(f"{array.dtype} array cannot be set to {self.dtype} array")
        if self.shape != array.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {array.shape}")
        if not self.flags.forc:
            raise RuntimeError("Cannot set to non-contiguous array")
        self._host[...] = array

    def conj(self) -> ndarray:
        return self if self.dtype.kind != "c" else ndarray(self._host.conj())

    conjugate = conj
    T = property(lambda self: _own(self._host.T, self))
    mT = property(lambda self: _own(self._host.mT, self))  # noqa: N815  # NumPy's name
    real = property(lambda self: _own(self._host.real, self))
    imag = property(lambda self: _own(self._host.imag, self))


# ---------------------------------------------------------------- from NumPy's arrays to ours and back


def _own(result: Any, *sources: ndarray) -> Any:
    """NumPy's results as ours; a view of a source has the source's owner as its base."""
    if isinstance(result, (list, tuple)):
        parts = [_own(part, *sources) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    host = np.asarray(result)
    for source in sources:
        if host is source._host:
            return source
        if host.base is not None and np.may_share_memory(host, source._host):
            if not host.flags.writeable:
                host.flags.writeable = True
            return ndarray(host, source if source.base is None else source.base)
    return ndarray(host)


def _host(value: Any) -> Any:
    """Ours as NumPy's; everything that CuPy would not take is refused."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, _SCALARS):
        return value
    raise TypeError(f"Unsupported type {type(value)}")


def _argument(value: Any) -> Any:
    """The same for functions, which take axes, dtypes, and sequences of arrays, too."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_argument, value))
    if isinstance(value, np.ndarray) or hasattr(value, "__array_ufunc__"):
        return _host(value)
    return value


def _arrays_in(values: Any) -> list[ndarray]:
    found: list[ndarray] = []
    for value in values:
        if isinstance(value, ndarray):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _arrays_in(value)
    return found


def _has_array(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, (ndarray, np.ndarray, list)) for part in parts)


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, (ndarray, np.ndarray)) and part.dtype == bool for part in parts)


def _axes_of(part: Any) -> int:
    """How many axes a part of an index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def _index(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """NumPy's index of a CuPy index: host arrays and lists are taken there, one mask at most, and what is out of range
    in an array of integers begins anew.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    for k, part in enumerate(parts):
        if isinstance(part, ndarray):
            parts[k] = part._host
        elif isinstance(part, list):
            parts[k] = np.asarray(part, dtype=None if part else np.intp)
        elif not (part is None or part is Ellipsis or isinstance(part, (int, slice, np.integer, np.ndarray))):
            raise IndexError(f"only integers, slices, ellipsis, newaxis and arrays are valid indices, not {type(part)}")
    if sum(isinstance(part, np.ndarray) and part.dtype == bool for part in parts) > 1:
        raise ValueError("Only one boolean array is supported in an index")
    axis = 0
    for k, part in enumerate(parts):
        if isinstance(part, np.ndarray) and part.dtype.kind in "iu" and axis < len(shape) and shape[axis]:
            parts[k] = np.asarray(part % shape[axis])
        axis = len(shape) - sum(map(_axes_of, parts[k + 1 :])) if part is Ellipsis else axis + _axes_of(part)
    # With an ellipsis NumPy gives arrays, and views of one element, where it would give a scalar.
    return tuple(parts) if any(part is Ellipsis for part in parts) else (*parts, ...)


# ---------------------------------------------------------------- ufuncs and functions


class ufunc:  # noqa: N801  # its name in CuPy
    def __init__(self, numpys: Any) -> None:
        self._numpys = numpys
        name = numpys.__name__
        self.__name__ = name if name == "matmul" else f"cupy_{_UFUNC_NAMES.get(name, name)}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        for x in args:
            if hasattr(x, "__cupy_override_elementwise_kernel__"):
                return x.__cupy_override_elementwise_kernel__(self, *args, **keywords)
        unknown = set(keywords) - {"out", "dtype", "casting"}
        if unknown:
            raise TypeError(f"Wrong arguments {unknown}")
        count = self._numpys.nin
        out = keywords.pop("out", None) if len(args) == count else args[count:]
        hosts = [_host(x) for x in args[:count]]
        if "dtype" not in keywords and self._numpys is not np.matmul:
            _find_loop(self.__name__, LOOPS[self._numpys.__name__], hosts)
        if out is None:
            return _own(self._numpys(*hosts, **keywords))
        outs = out if isinstance(out, tuple) else (out,)
        if len(outs) != self._numpys.nout:
            raise ValueError("The 'out' tuple must have exactly one entry per ufunc output")
        made = self._numpys(*hosts, out=tuple([None if o is None else _host(o) for o in outs]), **keywords)
        results = made if isinstance(made, tuple) else (made,)
        given = tuple([_own(z) if o is None else o for o, z in zip(outs, results, strict=True)])
        return given if self._numpys.nout > 1 else given[0]

    def _lacks(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"`{self.__name__}.{method}` is not supported yet")

    def reduce(self, array: ndarray, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        name = {"add": "sum", "multiply": "prod"}.get(self._numpys.__name__)
        if name is None:
            raise self._lacks("reduce")
        return getattr(array, name)(axis, dtype, out, keepdims)

    def accumulate(self, array: ndarray, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        name = {"add": "cumsum", "multiply": "cumprod"}.get(self._numpys.__name__)
        if name is None:
            raise self._lacks("accumulate")
        return getattr(array, name)(axis, dtype, out)

    def reduceat(self, array: ndarray, indices: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        """As CuPy does it, by differences of running sums: what is not finite makes all that follows NaN."""
        if self._numpys is not np.add:
            raise self._lacks("reduceat")
        a, begin = array._host, _host(indices)
        end = np.append(begin[1:], a.shape[axis])
        zero = np.zeros_like(np.take(a, [0], axis), np.cumsum(a, axis, dtype).dtype)
        sums = np.concatenate([zero, np.cumsum(a, axis, dtype)], axis)
        mask = np.expand_dims(begin >= end, tuple(range(1, a.ndim - axis)))
        made = np.where(mask, a.take(begin, axis), sums.take(end, axis) - sums.take(begin, axis))
        if out is None:
            return ndarray(made)
        out[...] = ndarray(made)
        return out

    def outer(self, a: Any, b: Any, **keywords: Any) -> Any:
        a, b = _array(a), _array(b)
        return self(a.reshape(a.shape + (1,) * b.ndim), b.reshape((1,) * a.ndim + b.shape), **keywords)

    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        dtypes = SCATTERS.get(self._numpys.__name__)
        if dtypes is None:
            raise self._lacks("at")
        parts = indices if isinstance(indices, tuple) else (indices,)
        named = [p._host if isinstance(p, ndarray) else p for p in parts if isinstance(p, (ndarray, np.ndarray, list))]
        atomic = len(named) > 1 or any(np.asarray(p).dtype.kind != "b" for p in named)
        if atomic and a.dtype.name not in dtypes.split():
            raise TypeError(f"cupy.{self._numpys.__name__}.at only supports {dtypes} as data type, not {a.dtype}")
        self._numpys.at(_host(a), _index(indices, a.shape), np.asarray(_host(b)).astype(a.dtype))


def _find_loop(name: str, loops: str, hosts: list[Any]) -> None:
    """Raise where CuPy has no loop for these dtypes; a number of Python's takes that of the arrays."""
    dtypes = [x.dtype if isinstance(x, (np.ndarray, np.generic)) else np.min_scalar_type(x) for x in hosts]
    if not _has_loop(loops, *dtypes):
        raise TypeError(f"Wrong type ({dtypes}) of arguments for {name}")


@cache
def _has_loop(loops: str, *dtypes: np.dtype) -> bool:
    return any(all(map(np.can_cast, dtypes, loop)) for loop in loops.split())


# Parameters that must be arrays for CuPy, where NumPy takes lists, too.
_OF_ARRAYS = frozenset(
    (
        *("a", "a1", "a2", "ar", "ar1", "ar2", "arr", "arr1", "arr2", "array", "ary", "b", "condition"),
        *("element", "f", "filt", "fp", "m", "p", "sorter", "test_elements", "v", "val", "weights"),
        *("x", "x1", "x2", "xp", "y", "z"),
    )
)


def _check_bins(bins: Any) -> None:
    if isinstance(bins, (list, tuple)) and any(isinstance(part, (list, tuple, np.ndarray)) for part in bins):
        raise ValueError("array-like bins not supported")


def _check_layout(x: ndarray) -> None:
    if not x.flags.c_contiguous:
        raise NotImplementedError("Non-C-contiguous x is currently not supported")


def _check_axis(axis: Any) -> None:
    if axis is not None:
        raise NotImplementedError("axis option is not supported yet")


def _check_stacks(a: ndarray, b: ndarray) -> None:
    if b.ndim > 1 and a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")


# What else CuPy asks of arguments, where NumPy takes more; where it asks a number or a list for an array's attribute,
# the error is Python's.
_CHECKS = {
    "array_equal": lambda a1, a2, *more, **named: (a1.shape, a2.shape),
    "digitize": lambda x, bins, *more, **named: bins.ndim,
    "histogram2d": lambda x, y, bins=10, *more, **named: _check_bins(bins),
    "histogramdd": lambda sample, bins=10, *more, **named: _check_bins(bins),
    "interp": lambda x, *more, **named: _check_layout(x),
    "linalg.solve": _check_stacks,
    "packbits": lambda a, axis=None, *more, **named: _check_axis(axis),
    "where": lambda condition, *more, **named: condition.dtype,
}


# Of these CuPy must know values before it can make the result.
_OF_UNKNOWN_LENGTH = frozenset(("argwhere", "bincount", "compress", "extract", "flatnonzero", "nonzero", "unique"))


def _function(name: str) -> Callable[..., Any]:
    names = SIGNATURES[name].split()
    numpys = attrgetter(name)(np)

    any_number = any(parameter.startswith("*") for parameter in names)

    def call(*args: Any, **keywords: Any) -> Any:
        if len(args) > len(names) and not any_number:
            raise TypeError(f"{name}() takes {len(names)} positional arguments but {len(args)} were given")
        for unknown in () if "*" in names else set(keywords) - set(names):
            raise TypeError(f"{name}() got an unexpected keyword argument '{unknown}'")
        for parameter, value in (*zip(names, args, strict=False), *keywords.items()):
            if parameter in _OF_ARRAYS and isinstance(value, list):
                raise AttributeError(f"'list' object has no attribute 'ndim'  ({parameter} of cupy.{name})")
        if name in _CHECKS:
            _CHECKS[name](*args, **keywords)
        ndarray.waits += name in _OF_UNKNOWN_LENGTH
        plain = [_argument(a) for a in args]
        named = {_RENAMED.get(k, k): _argument(v) for k, v in keywords.items()}
        out = keywords.get("out")
        result = numpys(*plain, **named)
        return out if out is not None else _own(result, *_arrays_in((*args, *keywords.values())))

    call.__name__ = name
    return call


def _broadcast_to(array: ndarray, shape: Any) -> ndarray:
    strides = np.broadcast_to(_host(array), shape).strides
    return _own(as_strided(array._host, shape, strides), array)


def _broadcast_arrays(*arrays: ndarray) -> tuple[ndarray, ...]:
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(_broadcast_to(a, shape) for a in arrays)


def _einsum(*operands: Any, **keywords: Any) -> ndarray:
    hosts = [x if isinstance(x, (str, list)) else _host(x) for x in operands]
    return ndarray(np.array(np.einsum(*hosts, **keywords)))


def _asarray(a: Any, dtype: Any = None) -> ndarray:
    return a if isinstance(a, ndarray) and dtype in (None, a.dtype) else _array(a, dtype)


def _array(a: Any, dtype: Any = None, copy: bool | None = True, order: str = "K") -> ndarray:
    if isinstance(a, ndarray) and copy is None:
        return _own(np.array(a._host, dtype, copy=None, order=order), a)
    return ndarray(np.array(a._host if isinstance(a, ndarray) else a, dtype, order=order))


def _spectrum(name: str) -> Callable[[ndarray], Any]:
    """eig or eigvals: of complex numbers, also where all are real."""

    def call(a: ndarray) -> Any:
        parts = getattr(np.linalg, name)(a._host)
        if not a.size:
            return _own(parts)
        wide = np.result_type(a.dtype, np.complex64)
        return _own(parts.astype(wide) if name == "eigvals" else type(parts)(*[part.astype(wide) for part in parts]))

    return call


class Device:
    """The only GPU there is; without a number the current one."""

    def __init__(self, number: int | None = None) -> None:
        if number not in (None, 0):
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self.id = 0

    def use(self) -> None:
        pass

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass


# ---------------------------------------------------------------- the module and the methods

_module = ModuleType("cupy", "A stand-in for CuPy.")
_module.ndarray = ndarray
_module.ufunc = ufunc
for _name, _numpys in vars(np).items():
    if isinstance(_numpys, np.ufunc) and _name not in _NO_UFUNC:
        setattr(_module, _name, ufunc(_numpys))


def _sliding_window_view(x: ndarray, window_shape: Any, axis: Any = None) -> ndarray:
    """CuPy's is a view that can be written to, and that does not say whose memory it is."""
    made = ndarray(np.lib.stride_tricks.sliding_window_view(x._host, window_shape, axis, writeable=True))
    made.base = None
    return made


def _as_strided(x: ndarray, shape: Any = None, strides: Any = None) -> ndarray:
    """As that one."""
    return ndarray(as_strided(x._host, shape, strides))


_module.lib = SimpleNamespace(
    stride_tricks=SimpleNamespace(sliding_window_view=_sliding_window_view, as_strided=_as_strided)
)
_module.linalg = ModuleType("cupy.linalg", "A stand-in for cupy.linalg.")
_module.fft = ModuleType("cupy.fft", "A stand-in for cupy.fft.")


def _library(numpys: str) -> Any:
    """Our module for numpy, numpy.linalg or numpy.fft; None for others."""
    ours = {"numpy": _module, "numpy.linalg": _module.linalg, "numpy.fft": _module.fft}
    return (ours | {"numpy.lib.stride_tricks": _module.lib.stride_tricks}).get(numpys)


for _name in SIGNATURES:
    _in, _, _last = f"numpy.{_name}".rpartition(".")
    if hasattr(np if _in == "numpy" else getattr(np, _in.removeprefix("numpy.")), _last):  # not all in each NumPy
        setattr(_library(_in), _last, _function(_name))
_module.linalg.eig = _spectrum("eig")
_module.linalg.eigvals = _spectrum("eigvals")
_module.asarray = _asarray
_module.array = _array
_module.broadcast_arrays = _broadcast_arrays
_module.broadcast_to = _broadcast_to
_module.einsum = _einsum
_module.asnumpy = lambda a: a.get()
_module.cuda = SimpleNamespace(is_available=lambda: True, Device=Device)

_METHODS = (
    *("sum", "prod", "mean", "var", "std", "max", "min", "all", "any", "argmax", "argmin", "argsort", "clip"),
    *("cumprod", "cumsum", "diagonal", "dot", "nonzero", "ravel", "repeat", "round", "squeeze", "swapaxes"),
    *("take", "trace"),
)
for _name in _METHODS:
    setattr(ndarray, _name, getattr(_module, _name))


def _operator(numpys: Any, swapped: bool) -> Callable[[Any, Any], Any]:
    def operate(x: ndarray, y: Any) -> Any:
        if isinstance(y, ndarray):
            x, y = (y, x) if swapped else (x, y)
            return getattr(_module, numpys.__name__)(x, y)
        if getattr(y, "__array_ufunc__", ...) is None:
            return NotImplemented
        return numpys(y, x) if swapped else numpys(x, y)

    return operate


def _update(numpys: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: getattr(_module, numpys.__name__)(x, y, out=x)


def _unary(numpys: Any) -> Callable[[Any], Any]:
    return lambda x: getattr(_module, numpys.__name__)(x)


_BINARY = {
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
}
_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
for _name, _numpys in _BINARY.items():
    setattr(ndarray, f"__{_name}__", _operator(_numpys, swapped=False))
    setattr(ndarray, f"__r{_name}__", _operator(_numpys, swapped=True))
    if _name != "matmul":
        setattr(ndarray, f"__i{_name}__", _update(_numpys))
for _name, _numpys in _COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operator(_numpys, swapped=False))
for _name, _numpys in _UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(_numpys))

cupy = _module

# ---------------------------------------------------------------- kernels of CUDA C++


class ElementwiseKernel:
    """Stands for CuPy's: reads the few sentences of C++ that gradmgr's kernels are made of."""

    def __init__(self, given: str, changed: str, text: str, name: str) -> None:
        self.given, self.changed = [part.split() for part in given.split(", ")], changed.split(", ")
        text = re.sub(r"\((float|double|T)\)|\b(float|double) ", "", text)
        text = re.sub(r"= ([^;=]*?) \? ([^;]*?) : ([^;]*?);", r"= where(\1, \2, \3);", text)
        self.text = text.replace("; ", "\n").rstrip(";")

    def __call__(self, *args: Any) -> None:
        names = [name for _, name in self.given] + [name.split()[1] for name in self.changed]
        arrays = dict(zip(names, args, strict=True))
        for kind, name in self.given:
            if isinstance(arrays[name], ndarray) != (kind == "T") or (kind != "T" and type(arrays[name]) is not float):
                raise TypeError(f"Wrong type {type(arrays[name])} for {kind} {name}")
        if len({value.dtype for value in arrays.values() if isinstance(value, ndarray)}) != 1:
            raise TypeError("Type is mismatched")
        if len({value.shape for value in arrays.values() if isinstance(value, ndarray)}) != 1:
            raise ValueError("Out shape is mismatched")
        wide = {name: self._widened(value) for name, value in arrays.items()}
        exec(self.text, {"sqrt": np.sqrt, "where": np.where}, wide)  # noqa: S102  # our own text
        for name in names[len(self.given) :]:
            arrays[name]._host[...] = wide[name]

    def _widened(self, value: Any) -> Any:
        return value._host.astype("f8" if value.dtype == "f8" else "f4") if isinstance(value, ndarray) else value


_module.ElementwiseKernel = ElementwiseKernel

# ---------------------------------------------------------------- streams, and NCCL for one GPU


class Event:
    """Everything is done at once here."""

    done = True

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        if not isinstance(stream, (Stream, type(None))):
            raise TypeError("stream must be a Stream")

    def synchronize(self) -> None:
        pass


class Stream:
    """Which has an address, and waits for events."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = 0 if null else id(self)

    def __enter__(self) -> Stream:
        _streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert _streams.pop() is self

    def record(self, event: Event | None = None) -> Event:
        return Event() if event is None else event

    def wait_event(self, event: Event) -> None:
        if not isinstance(event, Event):
            raise TypeError("event must be an Event")

    def synchronize(self) -> None:
        pass


Stream.null = Stream(null=True)
_streams = [Stream.null]  # the last is current


class NcclCommunicator:
    """That of CuPy, of one rank: what goes in comes out, from address to address."""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:  # noqa: N803  # CuPy's name
        if type(commId) is not tuple or len(commId) != 128 or not all(-128 <= c < 128 for c in commId):
            raise TypeError("a unique id is a tuple of 128 chars")
        if (ndev, rank) != (1, 0):
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT")

    def _moved(self, source: int, to: int, count: int, datatype: int, stream: int) -> None:
        if not all(type(number) is int for number in (source, to, count, datatype, stream)) or stream == 0:
            raise TypeError("an integer is required")
        ctypes.memmove(to, source, count * nccl.SIZES[datatype])

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:  # noqa: N802  # CuPy's name
        if op not in range(4):
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT")
        self._moved(sendbuf, recvbuf, count, datatype, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:  # noqa: N802  # CuPy's name
        self._moved(sendbuf, recvbuf, count, datatype, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:  # noqa: N802  # CuPy's name
        self.allReduce(sendbuf, recvbuf, count, datatype, op, stream)

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        if root != 0:
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT")
        self._moved(buff, buff, count, datatype, stream)

    def check_async_error(self) -> None:
        pass

    def destroy(self) -> None:
        pass


nccl = ModuleType("cupy.cuda.nccl", "A stand-in for cupy.cuda.nccl.")
nccl.available = True
nccl.NcclCommunicator = NcclCommunicator
nccl.get_unique_id = lambda: tuple(range(-64, 64))
nccl.SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)
_TYPES = ("INT8", "UINT8", "INT32", "UINT32", "INT64", "UINT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16")
for _code, _name in enumerate(_TYPES):
    setattr(nccl, f"NCCL_{_name}", _code)
for _code, _name in enumerate(["SUM", "PROD", "MAX", "MIN", "AVG"]):
    setattr(nccl, f"NCCL_{_name}", _code)
_module.cuda.Event, _module.cuda.Stream, _module.cuda.nccl = Event, Stream, nccl
_module.cuda.runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDevice=lambda: 0)
_module.cuda.get_current_stream = lambda: _streams[-1]

# ---------------------------------------------------------------- cupyx: what SciPy's functions are called there

_LINALG = {"expm": 2, "lu_factor": 2, "lu_solve": None, "solve_triangular": None}  # the only number of axes it takes


def _of_scipy(numpys: Callable[..., Any], axes: int | None = None, loops: str = "*") -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if axes is not None and args[0].ndim != axes:
            raise ValueError(f"{args[0].ndim}-dimensional array given; array must be {axes}-dimensional")
        if numpys is scipy.special.polygamma and not isinstance(args[0], ndarray):
            raise AttributeError(f"{type(args[0])} object has no attribute 'astype'")
        plain, hosts = {k: _argument(v) for k, v in keywords.items()}, [_argument(a) for a in args]
        if loops != "*":
            _find_loop(f"cupyx_scipy_special_{numpys.__name__}", loops, hosts)
        return _own(numpys(*hosts, **plain), *_arrays_in((*args, *keywords.values())))

    return call


class SparseMatrix:
    """A sparse matrix of CuPy's: its values and indices are arrays of the GPU, and it multiplies these alone."""

    def __init__(self, given: Any, shape: Any = None) -> None:
        if scipy.sparse.issparse(given):  # is copied to the GPU
            self.__dict__ = vars(_sparse_like(given.asformat(self.format)))
            return
        values, *indices = given
        indices = indices[0] if isinstance(indices[0], tuple) else indices
        hosts = tuple([array._host for array in indices])
        host = (values._host, hosts) if self.format == "coo" else (values._host, *hosts)
        self._matrix = getattr(scipy.sparse, f"{self.format}_matrix")(host, shape)
        self.data = values
        self.shape = self._matrix.shape
        self.ndim = 2
        for name, array in zip(("row", "col") if self.format == "coo" else ("indices", "indptr"), indices, strict=True):
            setattr(self, name, array)

    dtype = property(lambda self: self.data.dtype)
    T = property(lambda self: _sparse_like(self._matrix.T))

    def conj(self) -> Any:
        return _sparse_like(self._matrix.conj())

    def tocsc(self) -> Any:
        return _sparse_like(self._matrix.tocsc())

    def __matmul__(self, x: Any) -> Any:
        return _own(self._matrix @ x._host, x) if isinstance(x, ndarray) else NotImplemented

    dot = __matmul__


class csr_matrix(SparseMatrix):  # noqa: N801  # CuPy's name
    format = "csr"


class csc_matrix(SparseMatrix):  # noqa: N801  # as above
    format = "csc"


class coo_matrix(SparseMatrix):  # noqa: N801  # as above
    format = "coo"


_FORMATS = {"csr": csr_matrix, "csc": csc_matrix, "coo": coo_matrix}


def _sparse_like(host: Any) -> SparseMatrix:
    names = ("row", "col") if host.format == "coo" else ("indices", "indptr")
    values, *indices = [ndarray(np.asarray(getattr(host, name))) for name in ("data", *names)]
    return _FORMATS[host.format]((values, tuple(indices)) if host.format == "coo" else (values, *indices), host.shape)


class _SuperLU:
    def __init__(self, a: SparseMatrix, **options: Any) -> None:
        self._lu = scipy.sparse.linalg.splu(a._matrix.tocsc(), **options)

    def solve(self, b: Any, trans: str = "N") -> Any:
        return _own(self._lu.solve(b._host, trans), b)


def _iterate(name: str) -> Callable[..., Any]:
    def solve(a: SparseMatrix, b: ndarray, **options: Any) -> Any:
        x, info = getattr(scipy.sparse.linalg, name)(a._matrix, b._host, **options)
        return _own(x, b), info

    return solve


_SPARSE = {"issparse": lambda a: isinstance(a, SparseMatrix)} | {f"{k}_matrix": v for k, v in _FORMATS.items()}
_SOLVERS = {"splu": _SuperLU, "cg": _iterate("cg"), "gmres": _iterate("gmres")}


def cupyx_modules() -> dict[str, ModuleType]:
    """The modules of cupyx by name, with what they have of SciPy's; there is no jv, for one."""
    names = ("cupyx", "cupyx.scipy", "cupyx.scipy.special", "cupyx.scipy.linalg", "cupyx.scipy.sparse")
    names = (*names, "cupyx.scipy.sparse.linalg")
    modules = {name: ModuleType(name, f"A stand-in for {name}.") for name in names}
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
    for name, loops in SPECIAL.items():
        if hasattr(scipy.special, name):
            setattr(modules["cupyx.scipy.special"], name, _of_scipy(getattr(scipy.special, name), None, loops))
    for name, axes in _LINALG.items():
        setattr(modules["cupyx.scipy.linalg"], name, _of_scipy(getattr(scipy.linalg, name), axes))
    for module, members in (("cupyx.scipy.sparse", _SPARSE), ("cupyx.scipy.sparse.linalg", _SOLVERS)):
        for name, member in members.items():
            setattr(modules[module], name, member)
    return modules
