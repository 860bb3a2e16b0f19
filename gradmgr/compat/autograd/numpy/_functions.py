"""Functions of `autograd.numpy`, made of `gradmgr.numpy`'s; apart from the namespace, whose names hide builtins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

import gradmgr.numpy as gnp
from gradmgr._engine.containers import leaves_of
from gradmgr._engine.tensor import Tensor
from gradmgr.compat.autograd._primitive import holds_traced, notrace_primitive, untraced

# Functions that take values, which may be traced, and give Tensors in gradmgr.numpy.
_OF_VALUES = frozenset(
    (
        *("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "asarray_chkfinite", "require"),
        *("arange", "linspace", "logspace", "geomspace", "full", "full_like", "fromfunction", "fromiter", "vander"),
        *("frombuffer", "fromfile", "fromstring", "fromregex", "genfromtxt", "loadtxt", "load", "from_dlpack"),
    )
)
# Functions whose results depend on shapes and integers only.
_OF_SHAPES = frozenset(
    (
        *("zeros", "ones", "empty", "zeros_like", "ones_like", "empty_like", "eye", "identity", "tri", "indices"),
        *("bartlett", "blackman", "hamming", "hanning", "kaiser", "diag_indices", "mask_indices", "tril_indices"),
        *("triu_indices", "diag_indices_from", "tril_indices_from", "triu_indices_from"),
    )
)


def _of_values(name: str) -> Callable[..., Any]:
    """Return NumPy's function for plain values and gradmgr's for traced ones."""
    plain, traced = getattr(numpy, name), getattr(gnp, name)

    @functools.wraps(plain, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        if not (holds_traced(args) or holds_traced(kwargs)):
            return plain(*args, **kwargs)
        if kwargs.get("dtype") is object:  # a list of objects that are traced numbers is an array of these numbers
            del kwargs["dtype"]
        return traced(*args, **kwargs)

    return function


class _Joined:
    """`r_` and `c_`: NumPy's for plain values, gradmgr's for traced ones."""

    __slots__ = ("_plain", "_traced")

    def __init__(self, name: str) -> None:
        self._plain, self._traced = getattr(numpy, name), getattr(gnp, name)

    def __getitem__(self, index: Any) -> Any:
        return (self._traced if holds_traced(index) else self._plain)[index]


class _OfPlainValues(type):
    """The class of integer types that also take traced values, of which they make constants, as `int64(x)`."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.__base__(*untraced(list(args)), **kwargs)  # type: ignore[misc]  # NumPy's type

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__base__)  # type: ignore[arg-type]  # as above

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__base__)  # type: ignore[arg-type]  # as above


_INTEGERS = {
    of_numpy: _OfPlainValues(of_numpy.__name__, (of_numpy,), {"__doc__": of_numpy.__doc__})
    for of_numpy in (numpy.dtype(code).type for code in "bhilqBHILQ")
}


def exported(name: str) -> Any:
    """Return what stands under a name of NumPy's here."""
    if name in _OF_VALUES:
        return _of_values(name)
    if name in _OF_SHAPES:
        return notrace_primitive(getattr(numpy, name))
    if isinstance(getattr(numpy, name), type) and getattr(numpy, name) in _INTEGERS:
        return _INTEGERS[getattr(numpy, name)]
    if name in ("r_", "c_"):
        return _Joined(name)
    if name == "where":
        return where
    return getattr(gnp, name, getattr(numpy, name))


def names() -> list[str]:
    """Return NumPy's public names, but for submodules and tables."""
    own = [name for name in dir(gnp) if not name.startswith("_") and hasattr(numpy, name)]
    return [name for name in own if not isinstance(getattr(numpy, name), (ModuleType, dict))]


def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:  # noqa: N803  # autograd's name
    """Return matrices with the last axis of `D` on their diagonals; only for offset=0, axis1=-1, axis2=-2."""
    if (offset, axis1, axis2) != (0, -1, -2):
        raise NotImplementedError("make_diagonal takes offset=0, axis1=-1, axis2=-2 only, as autograd's")
    return gnp.expand_dims(D, -1) * numpy.eye(numpy.shape(D)[-1])


def metadata(A: Any) -> tuple[Any, int, Any, bool]:  # noqa: N803  # autograd's name
    """Return the shape, the number of axes and the dtype of an array, and whether it is complex.

    >>> import numpy
    >>> from gradmgr.compat.autograd.numpy import metadata
    >>> metadata(numpy.ones((2, 3)))
    ((2, 3), 2, dtype('float64'), False)
    """
    return gnp.shape(A), gnp.ndim(A), gnp.result_type(A), gnp.iscomplexobj(A)


def where(condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Return NumPy's `where`; of Python's numbers and lists, as autograd's, such and no arrays.

    >>> import numpy
    >>> from gradmgr.compat.autograd.numpy import where
    >>> where(True, 1, 2), where(numpy.array([True, False]), 1, 2)
    (1, array([1, 2]))

    Raises:
        ValueError: one of x and y is given without the other.
    """
    if not args and not kwargs:
        return gnp.where(condition)
    given = [*args, *[kwargs[name] for name in ("x", "y")[len(args) :] if name in kwargs]]
    if len(given) != 2 or len(args) + len(kwargs) != 2:
        raise ValueError("where: either both or neither of x and y should be given")
    made = gnp.where(condition, *given)
    is_array = any(isinstance(leaf, (Tensor, numpy.ndarray, numpy.generic)) for leaf in leaves_of([condition, given]))
    return made if is_array else made.tolist()
