"""CapturingLibrary: what takes the place of the modules `numpy` and `cupy` in a kernel that is captured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from gradmgr._arrays import gpu
from gradmgr._arrays.capture import Capture
from gradmgr._arrays.captured import inner_of, is_captured


class CapturingLibrary:
    """Takes the place of the module `numpy` or `cupy` in a kernel: the arrays that it makes are captured.

    CuPy's functions do not dispatch by protocol. So those that NumPy has, too, are NumPy's here, which call CuPy's with
    the arrays inside; of the others each call is captured.
    """

    __slots__ = ("__name__", "_module", "capture")

    def __init__(self, capture: Capture, module: Any = np) -> None:
        self.capture = capture
        self._module = module
        self.__name__ = module.__name__

    def __getattr__(self, name: str) -> Any:
        if name in _MAKERS:
            return partial(_called, self.capture, getattr(self._module, name))
        if self._module is np:
            return getattr(np, name)
        if name in _DISPATCHED:
            return getattr(np, name)
        return _capturing_part(self.capture, getattr(self._module, name))

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """Return `a` as an array; a captured one stays as it is."""
        if not is_captured(a) or (self._module is not np and not gpu.is_on_gpu(a.inner)):
            return self.capture.call(self._module.asarray, (a, dtype), {})
        return a if dtype is None or a.dtype == dtype else a.astype(dtype)

    def array(self, a: Any, dtype: Any = None, copy: bool = True) -> Any:
        """Return a copy of `a` as an array."""
        return self.capture.call(self._module.array, (a, dtype), {}) if copy else self.asarray(a, dtype)

    def may_share_memory(self, one: Any, other: Any) -> bool:
        """Tell whether memory bounds overlap."""
        return bool(self._module.may_share_memory(inner_of(one), inner_of(other)))


def _called(capture: Capture, function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    return capture.call(function, args, keywords)


def _capturing_part(capture: Capture, part: Any) -> Any:
    """Return a part of CuPy such that calls of its functions are captured; classes and such as they are."""
    if isinstance(part, ModuleType):
        return CapturingLibrary(capture, part)
    if isinstance(part, type) or not callable(part):
        return part
    return partial(_called, capture, part)


# NumPy's functions that dispatch by protocol, in a library that is CuPy's.
_DISPATCHED = frozenset(
    (
        *(name for name, f in vars(np).items() if type(f).__name__ in ("ufunc", "_ArrayFunctionDispatcher")),
        *("linalg", "fft", "lib"),
    )
)


# Functions that make arrays without being given one, so that they do not dispatch.
_MAKERS = frozenset(("zeros", "ones", "empty", "full", "arange", "eye", "identity", "linspace", "tri"))
