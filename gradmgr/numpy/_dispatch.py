"""Plain `numpy.f(tensor)` and `ndarray op tensor` come to us; what we lack raises, naming itself."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._recorder import is_tracked
from gradmgr._tensor import Tensor, describe
from gradmgr.numpy._array_api import VERSIONS
from gradmgr.numpy._refused import REFUSED
from gradmgr.ops.convert import to_device
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
        return AttributeError(f"module 'gradmgr.numpy' has no attribute '{where}{name}', and neither has numpy")
    reason = REFUSED.get(where + name, "gradmgr has no differentiable counterpart of it")
    return AttributeError(f"numpy.{where}{name} is not in gradmgr.numpy: {reason}")


def _served(numpys: ModuleType, door: ModuleType) -> dict[Any, Callable[..., Any]]:
    """Map NumPy's functions to those of the same name in our door."""
    return {
        getattr(numpys, name): function
        for name, function in vars(door).items()
        if callable(function) and not isinstance(function, type) and callable(getattr(numpys, name, None))
    }


def bind(door: ModuleType) -> None:
    """Bind NumPy's protocols onto Tensor, served by the functions of `door` and its linalg and fft."""
    table = MappingProxyType(_served(np.fft, door.fft) | _served(np.linalg, door.linalg) | _served(np, door))
    for ufunc, function in table.items():
        if isinstance(ufunc, np.ufunc) and isinstance(function, FunctionType):
            give_methods(function, ufunc)
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
            "silently cut its gradient; use gradmgr.numpy functions, or say t.numpy() or t.detach()"
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
    name = str(getattr(function, "__name__", function))
    return f"{module.removeprefix('numpy')}.{name}".removeprefix(".").removeprefix("_core.")
