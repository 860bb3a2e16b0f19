"""Types of the functions that templates make: elementwise functions and NumPy's ufuncs. For type checkers only."""

from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias, overload

import numpy as np

from gradmgr._engine.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Axis: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None
Plain: TypeAlias = Array | np.generic | complex
Out: TypeAlias = Tensor | tuple[Tensor] | None  # what is written to is what is returned

class Function1(Protocol):
    """A function of one array."""

    __name__: str
    __qualname__: str
    @overload
    def __call__(self, x: Tensor, /, out: Out = None, where: Any = True, dtype: Any = None) -> Tensor: ...
    @overload
    def __call__(self, x: Array, /, out: None = None, where: Any = True, dtype: Any = None) -> Array: ...
    @overload
    def __call__(self, x: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any: ...

class Function2(Protocol):
    """A function of two arrays."""

    __name__: str
    __qualname__: str
    @overload
    def __call__(self, x: Tensor, y: Any, /, out: Out = None, where: Any = True, dtype: Any = None) -> Tensor: ...
    @overload
    def __call__(self, x: Any, y: Tensor, /, out: Out = None, where: Any = True, dtype: Any = None) -> Tensor: ...
    @overload
    def __call__(self, x: Array, y: Plain, /, out: None = None, where: Any = True, dtype: Any = None) -> Array: ...
    @overload
    def __call__(self, x: Plain, y: Array, /, out: None = None, where: Any = True, dtype: Any = None) -> Array: ...
    @overload
    def __call__(self, x: Any, y: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any: ...

class Methods(Protocol):
    """What a function that serves for one of NumPy's ufuncs has besides its call."""

    nin: int
    nout: int
    identity: Any
    @overload
    def reduce(
        self,
        array: Tensor,
        /,
        axis: Axis = 0,
        dtype: Any = None,
        out: Out = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Tensor: ...
    @overload
    def reduce(
        self,
        array: Any,
        /,
        axis: Axis = 0,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = ...,
        where: Any = True,
    ) -> Any: ...
    @overload
    def accumulate(self, array: Tensor, /, axis: SupportsIndex = 0, dtype: Any = None, out: Out = None) -> Tensor: ...
    @overload
    def accumulate(self, array: Any, /, axis: SupportsIndex = 0, dtype: Any = None, out: Any = None) -> Any: ...
    @overload
    def reduceat(
        self, array: Tensor, /, indices: Any, axis: SupportsIndex = 0, dtype: Any = None, out: Out = None
    ) -> Tensor: ...
    @overload
    def reduceat(
        self, array: Any, /, indices: Any, axis: SupportsIndex = 0, dtype: Any = None, out: Any = None
    ) -> Any: ...
    @overload
    def outer(self, A: Tensor, B: Any, /, **kwargs: Any) -> Tensor: ...
    @overload
    def outer(self, A: Any, B: Tensor, /, **kwargs: Any) -> Tensor: ...
    @overload
    def outer(self, A: Any, B: Any, /, **kwargs: Any) -> Any: ...
    def at(self, a: Any, indices: Any, b: Any = ..., /) -> None: ...

class Ufunc1(Function1, Methods, Protocol):
    """A function of one array that serves for one of NumPy's ufuncs."""

class Ufunc2(Function2, Methods, Protocol):
    """A function of two arrays that serves for one of NumPy's ufuncs."""

class Constant1(Methods, Protocol):
    """A function of one array whose results carry no gradient, with all keywords of NumPy's ufunc."""

    __name__: str
    __qualname__: str
    @overload
    def __call__(self, x: Tensor, /, out: Out = None, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self, x: Array, /, out: None = None, **kwargs: Any) -> Array: ...
    @overload
    def __call__(self, x: Any, /, out: Any = None, **kwargs: Any) -> Any: ...

class Constant2(Methods, Protocol):
    """A function of two arrays whose results carry no gradient, with all keywords of NumPy's ufunc."""

    __name__: str
    __qualname__: str
    @overload
    def __call__(self, x1: Tensor, x2: Any, /, out: Out = None, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self, x1: Any, x2: Tensor, /, out: Out = None, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self, x1: Array, x2: Plain, /, out: None = None, **kwargs: Any) -> Array: ...
    @overload
    def __call__(self, x1: Plain, x2: Array, /, out: None = None, **kwargs: Any) -> Array: ...
    @overload
    def __call__(self, x1: Any, x2: Any, /, out: Any = None, **kwargs: Any) -> Any: ...
