"""The array library of a level of `vmap`: what a kernel uses as its module `numpy`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr._arrays.batched import Batched, Level, innermost, is_batched
from gradmgr._arrays.captured import CapturedArray, capturing


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
        make, given, capture = getattr(self.level.root, name), ((self.level.size, *lengths), *args), capturing()
        made = make(*given, **keywords) if capture is None else capture.call(make, given, keywords)
        return Batched(self.level, made)

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
