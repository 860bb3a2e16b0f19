"""A stand-in for CuPy where there is no GPU: an array class that refuses what CuPy's refuses.

It is no subclass of numpy.ndarray, for NumPy would look through that. What it knows of CuPy 14:
an array never becomes NumPy's by itself; operators and ufuncs take arrays of its own kind, Python
and NumPy numbers, nothing else; functions have CuPy's keywords, fewer than NumPy's; every result is
an array, 0-d too; a view has `base`, the array that owns the memory; nothing is read-only, not even
a broadcast view; of several values written to one element, which stays is not NumPy's choice.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special
from cupy_signatures import SIGNATURES
from numpy.lib.stride_tricks import as_strided

Flags = namedtuple("Flags", "c_contiguous f_contiguous owndata")  # CuPy has no writeable

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


class ndarray:  # noqa: N801  # its name in CuPy
    """An array "on the GPU": it wraps a NumPy array and gives it to nobody."""

    __slots__ = ("__weakref__", "_host", "base")

    copies_to_host = 0  # how often an array of more than one element was copied to the host

    def __init__(self, host: np.ndarray, base: ndarray | None = None) -> None:
        self._host = host
        self.base = base

    # ------------------------------------------------------------ facts

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    device = property(lambda self: SimpleNamespace(id=0))
    data = property(lambda self: SimpleNamespace(mem=object(), device=self.device))
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
        ours = getattr(_module, function.__name__, None)
        if method != "__call__" or ours is None:
            return NotImplemented
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        if not all(isinstance(x, (ndarray, np.ndarray, *_SCALARS)) for x in inputs):
            return NotImplemented
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
        return _own(self._host[_index(index)], self)

    def __setitem__(self, index: Any, value: Any) -> None:
        index, value = _index(index), _host(value)
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

    def view(self) -> ndarray:
        return _own(self._host.view(), self)

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
        found += _arrays_in(value) if isinstance(value, (list, tuple)) else [value] * isinstance(value, ndarray)
    return found


def _index(index: Any) -> tuple[Any, ...]:
    """NumPy's index of a CuPy index: host arrays and lists are taken there, one mask at most."""
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
        out = keywords.pop("out", None) if len(args) == count else args[count]
        hosts = [_host(x) for x in args[:count]]
        if out is None:
            return _own(self._numpys(*hosts, **keywords))
        self._numpys(*hosts, out=_host(out), **keywords)
        return out

    def at(self, a: ndarray, indices: Any, b: Any = None) -> None:
        if self._numpys is not np.add:
            raise NotImplementedError(f"{self.__name__}.at")
        np.add.at(_host(a), _index(indices), _host(b))


def _function(name: str) -> Callable[..., Any]:
    names = SIGNATURES[name].split()
    numpys = attrgetter(name)(np)

    def call(*args: Any, **keywords: Any) -> Any:
        if names != ["*"]:
            unknown = set(keywords) - set(names)
            if unknown or len(args) > len(names):
                raise TypeError(f"cupy.{name} takes {names}; found {len(args)} arguments and {sorted(keywords)}")
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


def _array(a: Any, dtype: Any = None) -> ndarray:
    return ndarray(np.array(a._host if isinstance(a, ndarray) else a, dtype=dtype))


@contextmanager
def _device(number: int) -> Iterator[None]:
    if number != 0:
        raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    yield


# ---------------------------------------------------------------- the module and the methods

_module = ModuleType("cupy", "A stand-in for CuPy.")
_module.ndarray = ndarray
_module.ufunc = ufunc
for _name, _numpys in vars(np).items():
    if isinstance(_numpys, np.ufunc) and _name not in _NO_UFUNC:
        setattr(_module, _name, ufunc(_numpys))
_module.linalg = ModuleType("cupy.linalg", "A stand-in for cupy.linalg.")
_module.fft = ModuleType("cupy.fft", "A stand-in for cupy.fft.")


def _library(numpys: str) -> Any:
    """Our module for numpy, numpy.linalg or numpy.fft; None for others."""
    return {"numpy": _module, "numpy.linalg": _module.linalg, "numpy.fft": _module.fft}.get(numpys)


for _name in SIGNATURES:
    _in, _, _last = f"numpy.{_name}".rpartition(".")
    if hasattr(np if _in == "numpy" else getattr(np, _in.removeprefix("numpy.")), _last):  # not all in each NumPy
        setattr(_library(_in), _last, _function(_name))
_module.asarray = _asarray
_module.array = _array
_module.broadcast_arrays = _broadcast_arrays
_module.broadcast_to = _broadcast_to
_module.einsum = _einsum
_module.asnumpy = lambda a: a.get()
_module.cuda = SimpleNamespace(is_available=lambda: True, Device=_device)

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

# ---------------------------------------------------------------- cupyx: what SciPy's functions are called there

_SPECIAL = (
    *("beta", "betaln", "binom", "digamma", "entr", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "expit", "exprel"),
    *("gamma", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "j0", "j1", "kl_div", "log1p"),
    *("log_expit", "log_ndtr", "log_softmax", "loggamma", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri"),
    *("polygamma", "poch", "rel_entr", "rgamma", "sinc", "softmax", "xlog1py", "xlogy", "y0", "y1", "yn", "zeta"),
)
_LINALG = {"expm": 2, "lu_factor": 2, "lu_solve": None, "solve_triangular": None}  # the only number of axes it takes


def _of_scipy(numpys: Callable[..., Any], axes: int | None = None) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if axes is not None and args[0].ndim != axes:
            raise ValueError(f"{args[0].ndim}-dimensional array given; array must be {axes}-dimensional")
        plain = {k: _argument(v) for k, v in keywords.items()}
        return _own(numpys(*[_argument(a) for a in args], **plain), *_arrays_in((*args, *keywords.values())))

    return call


def cupyx_modules() -> dict[str, ModuleType]:
    """The modules of cupyx by name, with what they have of SciPy's; there is no jv, for one."""
    names = ("cupyx", "cupyx.scipy", "cupyx.scipy.special", "cupyx.scipy.linalg")
    modules = {name: ModuleType(name, f"A stand-in for {name}.") for name in names}
    for name, module in modules.items():
        above, _, last = name.rpartition(".")
        if above:
            setattr(modules[above], last, module)
    for name in _SPECIAL:
        if hasattr(scipy.special, name):
            setattr(modules["cupyx.scipy.special"], name, _of_scipy(getattr(scipy.special, name)))
    for name, axes in _LINALG.items():
        setattr(modules["cupyx.scipy.linalg"], name, _of_scipy(getattr(scipy.linalg, name), axes))
    return modules
