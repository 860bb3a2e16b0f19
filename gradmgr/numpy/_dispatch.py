"""Plain `numpy.f(tensor)` and `ndarray op tensor` come to us; what we lack raises, naming itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.recorder import current, is_tracked, recorders
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr.numpy._array_api import VERSIONS
from gradmgr.numpy._refused import REFUSED
from gradmgr.ops.convert import to_device
from gradmgr.ops.shape import sliding_window_view
from gradmgr.ops.ufuncs import give_methods

# What a ufunc's keywords say by default is what ours do.
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


def missing(name: str, where: str, numpys: ModuleType) -> AttributeError:
    """Make the error for a name that a door lacks; `where` is "" or ends with a dot, as "linalg."."""
    if name.startswith("_") or not hasattr(numpys, name):
        text = f"module 'gradmgr.numpy' has no attribute '{where}{name}', and neither has numpy"
        advice = _advice(name, where, numpys)
        return AttributeError(f"{text}: {advice}" if advice else text)
    reason = REFUSED.get(where + name, "gradmgr has no differentiable counterpart of it")
    return AttributeError(f"numpy.{where}{name} is not in gradmgr.numpy: {reason}")


def _advice(name: str, where: str, numpys: ModuleType) -> str:
    """Return what to use for a name that NumPy once had, in its own words; "" where it never had it."""
    if where + name in REFUSED:
        return REFUSED[where + name]
    try:
        getattr(numpys, name)
    except AttributeError as error:
        said = str(error)
        told = said.partition(f"has no attribute '{name}'")[2] if "has no attribute" in said else said
        return told.strip(".\n ").partition("\n")[0]
    return ""


def _served(numpys: ModuleType, door: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Map NumPy's functions to those of the same name in our door."""
    return {
        getattr(numpys, name): function
        for name, function in vars(door).items()
        if callable(function) and not isinstance(function, type) and callable(getattr(numpys, name, None))
    }


# Functions that call one of the user's, whose errors are not ours to touch.
_CALL_BACK = frozenset(("apply_along_axis", "apply_over_axes", "fromfunction", "fromiter", "pad", "piecewise"))


def _name_the_errors(door: ModuleType, numpys: ModuleType | None, made: dict[Any, Any]) -> None:
    """Let the errors of every function of a door begin with its name, and pickles look for it in the door."""
    for name, function in vars(door).items():
        ours = isinstance(function, FunctionType) and function.__module__.startswith("gradmgr.")
        if not ours or name.startswith("_") or name in _CALL_BACK:
            continue
        if function not in made:
            # What a template makes is one frame, and stays it; what wraps a function of NumPy's names it itself.
            apart = function.__globals__["__name__"] == "gradmgr._engine.elementwise" or hasattr(
                function, "__wrapped__"
            )
            theirs = getattr(numpys, name, None)
            made[function] = function if apart else _naming(function, function.__name__, theirs)
            made[function].__module__ = door.__name__
        setattr(door, name, made[function])


def _name_the_methods_errors() -> None:
    for name, member in list(vars(Tensor).items()):
        ours = isinstance(member, FunctionType) and member.__module__.startswith("gradmgr.ops.")
        if ours and not name.startswith("_") and name not in _CALL_BACK:
            setattr(Tensor, name, _naming(member, name, getattr(np.ndarray, name, None)))


def _naming(function: Callable[..., Any], name: str, numpys: Callable[..., Any] | None) -> Callable[..., Any]:
    """Make the same function whose errors begin with its name and have the type of NumPy's; 0.1 us a call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.REJECTIONS as error:
            _take_back(error)
            other = None if isinstance(error, errors.GradmgrError) else _error_of(numpys, args, kwargs)
            if other is not None and not isinstance(error, type(other)):
                errors.put_name(other, name)
                raise other from error
            errors.put_name(error, name)
            raise

    # As functools.wraps, which for so many functions takes 1 ms more of the import.
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = getattr(function, "__module__", __name__), function.__doc__
    call.__dict__["__wrapped__"] = function
    return call


def _take_back(error: BaseException | None) -> None:
    """Let the tapes forget what a failed call has computed so far, which only its traceback still holds."""
    import traceback  # late: with what it imports it takes 1 ms

    tapes: list[Any] = [rec for rec in recorders(current()) if rec.is_tape]
    while tapes and error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    for tape in tapes:
        tape.sweep(everything=True)


# More bytes than this are not copied to learn how NumPy would call an error.
_MUCH = 1 << 24


def _error_of(numpys: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """Return what NumPy's function raises when it is given these values, which it gets copies of."""
    if numpys is None:
        return None
    try:
        values, named = _copies(args), _copies(kwargs)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            numpys(*values, **named)
    except errors.REJECTIONS as error:
        of_a_keyword = isinstance(error, TypeError) and "keyword argument" in str(error)  # one of ours that NumPy lacks
        return None if of_a_keyword or isinstance(error, errors.GradmgrError) else error
    except Exception:  # whatever it is, it does not tell us more
        return None
    return None


def _copies(given: Any) -> Any:
    if isinstance(given, (list, tuple)) and type(given) in (list, tuple):
        return type(given)(map(_copies, given))
    if isinstance(given, dict):
        return {name: _copies(value) for name, value in given.items()}
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
                method = _naming(getattr(function, name), f"{ufunc.__name__}.{name}", getattr(ufunc, name))
                setattr(function, name, method)


def _document(door: ModuleType) -> None:
    """Give functions that a template made a line for help()."""
    for module, theirs in ((door, "numpy"), (door.special, "scipy.special")):
        for name in module.__all__:
            function = getattr(module, name)
            if isinstance(function, FunctionType) and function.__doc__ is None:
                function.__doc__ = f"Compute `{theirs}.{name}` of Tensors or arrays, differentiably."


def bind(door: ModuleType) -> None:
    """Bind NumPy's protocols onto Tensor, served by the functions of `door` and its linalg and fft."""
    made: dict[Any, Any] = {}  # what stands under two names, or in two doors, stays one function
    for part, numpys in ((door, np), (door.fft, np.fft), (door.linalg, np.linalg), (door.special, None)):
        _name_the_errors(part, numpys, made)
    _name_the_methods_errors()
    windows = {np.lib.stride_tricks.sliding_window_view: sliding_window_view}  # np.lib is handed on, this is ours
    served = _served(np.fft, door.fft) | _served(np.linalg, door.linalg) | _served(np, door)
    table = MappingProxyType(served | windows)
    _give_methods(table)
    _document(door)
    by_name = MappingProxyType({name: function for name, function in vars(door).items() if callable(function)})

    def __array_ufunc__(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        ours = table.get(ufunc)
        called = ours if method == "__call__" else getattr(ours, method, None)
        if called is None:
            raise _lacking_ufunc(ufunc.__name__, method, door.special)
        return called(*inputs, **{k: v for k, v in kwargs.items() if k not in _DEFAULTS or v != _DEFAULTS[k]})

    def __array_function__(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        ours = table.get(function)
        if ours is None:
            raise _lacking(_dotted(function))
        return ours(*args, **kwargs)

    def __cupy_override_elementwise_kernel__(self: Tensor, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """CuPy's counterpart of __array_ufunc__: `cupy_array * tensor`."""
        name = getattr(kernel, "__name__", "").removeprefix("cupy_")
        if name not in by_name:
            raise _lacking(name)
        return by_name[name](*args, **kwargs)

    def __array_namespace__(self: Tensor, /, *, api_version: str | None = None) -> ModuleType:
        """The Array API's way from an array to its functions."""
        if api_version is not None and api_version not in VERSIONS:
            raise ValueError(
                f"gradmgr.numpy follows the Array API standard of {', '.join(VERSIONS)}; asked for was {api_version!r}"
            )
        return door

    for method in (
        __dlpack__,
        __dlpack_device__,
        to_device,
        __array_namespace__,
        __array_ufunc__,
        __array_function__,
        __cupy_override_elementwise_kernel__,
        __array__,
    ):
        setattr(Tensor, method.__name__, method)


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    if is_tracked(self):
        raise errors.TrackedConversionError(
            f"{describe(self)} is tracked by a manager and was about to become a plain NumPy array, which would "
            "silently cut its gradient; use functions of gradmgr.numpy or gradmgr.special, or say t.numpy() or "
            "t.detach()"
        )
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
    """Export through DLPack: read-only, or a copy for a consumer that cannot be told so.

    With copy=False such a consumer gets the memory itself; who then writes to it says so with
    `gradmgr.graph.increment_version`.
    """
    if is_tracked(self):
        raise errors.TrackedConversionError(
            f"{describe(self)} is tracked by a manager and was about to be exported through DLPack, which would "
            "silently cut its gradient; say t.numpy() or t.detach()"
        )
    if self.device != "cpu":
        return self._array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
    told = max_version is not None and max_version >= (1, 0)
    if not told and copy is None:
        return self.numpy().copy().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)
    source = self.numpy() if told else np.asarray(self._array)
    return source.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def __dlpack_device__(self: Tensor) -> Any:
    """DLPack's name for where the memory is."""
    return np.asarray(self._array).__dlpack_device__() if self.device == "cpu" else self._array.__dlpack_device__()


def _dotted(function: Any) -> str:
    module = getattr(function, "__module__", None) or "numpy"
    module = module.removeprefix("numpy").replace("._scimath_impl", ".scimath")  # NumPy before 2.2 says where it lies
    name = str(getattr(function, "__name__", function))
    return f"{module}.{name}".removeprefix(".").removeprefix("_core.")
