"""NumPy's protocols: plain `numpy.f(tensor)` and `ndarray op tensor` call gradmgr's functions, or raise by name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import dropwhile
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.context import current, recorders
from gradmgr._engine.conversion import check_no_array, check_uncut
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr.numpy._array_api import VERSIONS
from gradmgr.numpy._docstrings import document
from gradmgr.numpy._refused import REFUSED, TORCHS
from gradmgr.ops.convert import to_device
from gradmgr.ops.shape import sliding_window_view
from gradmgr.ops.ufuncs import give_methods

# Defaults of a ufunc's keywords, which gradmgr's functions have too and do not take.
_DEFAULTS = MappingProxyType({"casting": "same_kind", "order": "K", "subok": True})


def _lacking(name: str) -> errors.UnsupportedFunctionError:
    prefix = "numpy." if hasattr(np, name.partition(".")[0]) else ""
    reason = REFUSED.get(name, "gradmgr has no differentiable counterpart of it")
    return errors.UnsupportedFunctionError(
        f"{prefix}{name} was called on a Tensor: {reason}; for values without gradients call it on t.numpy()"
    )


def _lacking_ufunc(name: str, method: str, special: ModuleType) -> errors.UnsupportedFunctionError:
    if method != "__call__":
        return _lacking(f"{name}.{method}")
    if name not in special.__all__:
        return _lacking(name)
    return errors.UnsupportedFunctionError(
        f"scipy.special.{name} was called on a Tensor: it computes on plain arrays; use gradmgr.special.{name}"
    )


def missing_name_error(name: str, where: str, numpy_module: ModuleType) -> AttributeError:
    """Make the error for a name that a namespace lacks; `where` is "" or ends with a dot, as "linalg."."""
    if name.startswith("_") or not hasattr(numpy_module, name):
        text = f"module 'gradmgr.numpy' has no attribute '{where}{name}', and neither has numpy"
        advice = _advice_on_removed(name, where, numpy_module)
        if advice:
            return AttributeError(f"{text}: {advice}")
        return AttributeError(text, name=name, obj=numpy_module)  # by these Python finds names that are spelt alike
    reason = REFUSED.get(where + name, "gradmgr has no differentiable counterpart of it")
    return AttributeError(f"numpy.{where}{name} is not in gradmgr.numpy: {reason}")


def _advice_on_removed(name: str, where: str, numpy_module: ModuleType) -> str:
    """Return what to use for a name that NumPy once had, in its own words; "" where it never had it."""
    if where + name in REFUSED:
        return REFUSED[where + name]
    if not where and name in TORCHS:
        return f"write {TORCHS[name]}"
    try:
        getattr(numpy_module, name)
    except AttributeError as error:
        said = str(error)
        advice = said.partition(f"has no attribute '{name}'")[2] if "has no attribute" in said else said
        return advice.strip(".\n ").partition("\n")[0]
    return ""


def _served_functions(numpy_module: ModuleType, namespace: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Map NumPy's functions to those of the same name in gradmgr's namespace."""
    return {
        getattr(numpy_module, name): function
        for name, function in vars(namespace).items()
        if callable(function) and not isinstance(function, type) and callable(getattr(numpy_module, name, None))
    }


# Functions that call one of the user's, whose errors stay as they are.
_CALL_BACK = frozenset(("apply_along_axis", "apply_over_axes", "fromfunction", "fromiter", "pad", "piecewise"))


def _name_the_errors(namespace: ModuleType, numpy_module: ModuleType | None, made: dict[Any, Any]) -> None:
    """Let the errors of every function of a namespace begin with its name, and pickles look for it there."""
    for name, function in vars(namespace).items():
        own = isinstance(function, FunctionType) and function.__module__.startswith("gradmgr.")
        if not own or name.startswith("_") or name in _CALL_BACK:
            continue
        if function not in made:
            # A function made by a template is one frame and stays so; a wrapper of NumPy's function names its errors
            # itself.
            apart = function.__globals__["__name__"] == "gradmgr._engine.elementwise" or hasattr(
                function, "__wrapped__"
            )
            original = getattr(numpy_module, name, None)
            made[function] = function if apart else _with_named_errors(function, function.__name__, original)
            made[function].__module__ = namespace.__name__
        setattr(namespace, name, made[function])


def _name_the_methods_errors() -> None:
    for name, member in list(vars(Tensor).items()):
        own = isinstance(member, FunctionType) and member.__module__.startswith("gradmgr.ops.")
        if own and not name.startswith("_") and name not in _CALL_BACK:
            setattr(Tensor, name, _with_named_errors(member, name, getattr(np.ndarray, name, None)))


def _with_named_errors(
    function: Callable[..., Any], name: str, numpy_function: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Return a function whose errors begin with its name and have the type of NumPy's; 0.1 us a call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.REJECTIONS as error:
            _discard_results(error)
            other = None if isinstance(error, errors.GradmgrError) else _error_of(numpy_function, args, kwargs)
            try:
                if other is not None and not isinstance(error, type(other)):
                    errors.put_name(other, name)
                    raise other from error
            finally:
                del other  # each error's traceback refers to this frame, and the other error to the first
            errors.put_name(error, name)
            raise

    # This does what functools.wraps does, which would add 1 ms to the import for all functions.
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = getattr(function, "__module__", __name__), function.__doc__
    call.__dict__["__wrapped__"] = function
    return call


def _discard_results(error: BaseException | None) -> None:
    """Let the tapes drop what a failed call has computed so far, which only its traceback still references."""
    import traceback  # deferred: it takes 1 ms to import

    tapes: list[Any] = [rec for rec in recorders(current()) if rec.is_tape]
    while tapes and error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    for tape in tapes:
        tape.sweep(everything=True)


# Arrays of more bytes are not copied to find out which error NumPy raises.
_MUCH = 1 << 24


def _error_of(
    numpy_function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Return what NumPy's function raises when it is given these values, which it gets copies of."""
    if numpy_function is None:
        return None
    try:
        values, named = _copy_arguments(args), _copy_arguments(kwargs)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            numpy_function(*values, **named)
    except errors.REJECTIONS as error:
        of_a_keyword = isinstance(error, TypeError) and "keyword argument" in str(
            error
        )  # a keyword that NumPy's function lacks
        return None if of_a_keyword or isinstance(error, errors.GradmgrError) else error
    except Exception:  # any other error says nothing about the arguments
        return None
    return None


def _copy_arguments(given: Any) -> Any:
    if isinstance(given, (list, tuple)) and type(given) in (list, tuple):
        return type(given)(map(_copy_arguments, given))
    if isinstance(given, dict):
        return {name: _copy_arguments(value) for name, value in given.items()}
    if isinstance(given, Tensor) or libraries.is_array(given):
        if given.nbytes > _MUCH:
            raise MemoryError("not worth a copy")
        return np.array(libraries.to_device(raw(given), "cpu"))
    return given


_METHODS = ("reduce", "accumulate", "reduceat", "outer", "at")


def _give_methods(table: Mapping[Any, Callable[..., Any]]) -> None:
    for ufunc, function in table.items():
        if isinstance(ufunc, np.ufunc) and isinstance(function, FunctionType):
            give_methods(function, ufunc)
            for name in _METHODS:
                method = _with_named_errors(getattr(function, name), f"{ufunc.__name__}.{name}", getattr(ufunc, name))
                setattr(function, name, method)


def bind(namespace: ModuleType) -> None:
    """Bind NumPy's protocols onto Tensor, served by the functions of a namespace, its linalg and its fft."""
    made: dict[Any, Any] = {}  # a function under two names, or in two namespaces, stays one function
    for part, numpy_module in (
        (namespace, np),
        (namespace.fft, np.fft),
        (namespace.linalg, np.linalg),
        (namespace.special, None),
    ):
        _name_the_errors(part, numpy_module, made)
    _name_the_methods_errors()
    table = MappingProxyType(
        _served_functions(np.fft, namespace.fft)
        | _served_functions(np.linalg, namespace.linalg)
        | _served_functions(np, namespace)
        | {np.lib.stride_tricks.sliding_window_view: sliding_window_view}  # the one function of np.lib that is served
    )
    _give_methods(table)
    methods = (*_numpy_protocols(namespace, table), *_library_protocols(namespace), __array__)
    for method in (*methods, __dlpack__, __dlpack_device__, to_device):
        setattr(Tensor, method.__name__, method)
    document(namespace)


def _numpy_protocols(namespace: ModuleType, table: Mapping[Any, Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    """Return the methods by which NumPy calls the functions of a table."""

    def __array_ufunc__(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        own = table.get(ufunc)
        called = own if method == "__call__" else getattr(own, method, None)
        if called is None:
            raise _lacking_ufunc(ufunc.__name__, method, namespace.special)
        try:
            return called(*inputs, **{k: v for k, v in kwargs.items() if k not in _DEFAULTS or v != _DEFAULTS[k]})
        except errors.ArrayClassError:
            given = (*inputs, *kwargs.get("out", ()), kwargs.get("where"))
            if _are_asked_later("__array_ufunc__", map(type, given)):
                return NotImplemented
            raise

    def __array_function__(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        own = table.get(function)
        if own is None:
            raise _lacking(_dotted_name(function))
        try:
            return own(*args, **kwargs)
        except errors.ArrayClassError:
            if _are_asked_later("__array_function__", types):
                return NotImplemented
            raise

    return __array_ufunc__, __array_function__


def _are_asked_later(protocol: str, kinds: Iterable[type]) -> bool:
    """Return True if NumPy asks a class after Tensor that has a method of this protocol of its own."""
    own = getattr(np.ndarray, protocol)
    later = dropwhile(lambda kind: not issubclass(kind, Tensor), kinds)
    return any(not issubclass(kind, Tensor) and getattr(kind, protocol, own) is not own for kind in later)


def _library_protocols(namespace: ModuleType) -> tuple[Callable[..., Any], ...]:
    """Return the methods by which CuPy, and programs of the Array API standard, find the functions of a namespace."""
    by_name = MappingProxyType({name: function for name, function in vars(namespace).items() if callable(function)})

    def __cupy_override_elementwise_kernel__(self: Tensor, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """CuPy's counterpart of __array_ufunc__: `cupy_array * tensor`."""
        name = getattr(kernel, "__name__", "").removeprefix("cupy_")
        if name not in by_name:
            raise _lacking(name)
        return by_name[name](*args, **kwargs)

    def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
        """Return the namespace of functions for this array, as the Array API standard asks."""
        if api_version is not None and api_version not in VERSIONS:
            raise ValueError(
                f"gradmgr.numpy follows the Array API standard of {', '.join(VERSIONS)}; asked for was {api_version!r}"
            )
        return namespace

    return __cupy_override_elementwise_kernel__, __array_namespace__


def _answer_to_sparse_product() -> np.ndarray[Any, Any] | None:
    """Return what SciPy's `A @ tensor` and `A.dot(tensor)`, for a sparse A, are to get from `__array__`; else None.

    SciPy leaves a product to the other operand where no array can be made of it but one of an object, of no axes. The
    `dot` of its COO arrays looks at the array alone whether it is one of numbers, and then computes `A @ tensor`.
    """
    caller = sys._getframe(2)
    if not caller.f_globals.get("__name__", "").startswith("scipy.sparse."):
        return None
    name = caller.f_code.co_name
    if name in ("_matmul_dispatch", "_mul_dispatch"):  # the second in SciPy before 1.14
        return np.empty((), np.object_)
    return np.empty(0) if name == "dot" else None


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    answer = _answer_to_sparse_product()
    if answer is not None:
        return answer
    check_no_array(self)
    if self.device != "cpu":
        raise errors.TrackedConversionError(
            f"{describe(self)} lives on {self.device}; a copy to the host is never implicit; say t.numpy()"
        )
    return np.array(self.numpy(), dtype=dtype, copy=copy)


def __dlpack__(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Export through DLPack: read-only, or a copy for a consumer of a version that has no read-only flag.

    With copy=False such a consumer gets the memory itself; whatever then writes to it must call
    `gradmgr.graph.increment_version`.
    """
    check_uncut(self, "an export through DLPack", "say t.numpy() or t.detach()")
    if self.device != "cpu":
        return self._array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
    read_only = max_version is not None and max_version >= (1, 0)
    if not read_only and copy is None:
        return self.numpy().copy().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)
    source = self.numpy() if read_only else np.asarray(self._array)
    return source.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def __dlpack_device__(self: Tensor) -> Any:
    """DLPack's name for where the memory is."""
    return np.asarray(self._array).__dlpack_device__() if self.device == "cpu" else self._array.__dlpack_device__()


def _dotted_name(function: Any) -> str:
    module = getattr(function, "__module__", None) or "numpy"
    module = module.removeprefix("numpy").replace("._scimath_impl", ".scimath")  # NumPy before 2.2 says where it lies
    name = str(getattr(function, "__name__", function))
    return f"{module}.{name}".removeprefix(".").removeprefix("_core.")
