"""Vector spaces: the zeros, ones and products of values of one shape and dtype, or of containers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.tensor import bare

Example = Any  # of values, a container of arrays and numbers


class VSpace:
    """The vector space of a value, as `vspace` makes it.

    Attributes:
        shape, dtype: of an array; of a container, containers of them.
        size: the number of real numbers in it.
        iscomplex: whether it is an array of complex numbers.

    Raises:
        TypeError: the value is of no type that has a vector space.

    >>> import numpy
    >>> from gradmgr.compat.autograd.extend import vspace
    >>> space = vspace(numpy.zeros((2, 3)))
    >>> space.shape, space.size, space.zeros().tolist()
    ((2, 3), 6, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    """

    __slots__ = ("_example", "_leaves", "dtype", "iscomplex", "shape", "size")

    def __init__(self, value: Example) -> None:
        self._leaves = [_as_array(leaf) for leaf in leaves_of(value)]
        self._example = rebuilt(value, iter(self._leaves))
        self.shape: Any = rebuilt(value, iter([a.shape for a in self._leaves]))
        self.dtype: Any = rebuilt(value, iter([a.dtype for a in self._leaves]))
        self.iscomplex = self._example is self._leaves[0] and self.dtype.kind == "c" if self._leaves else False
        self.size = sum(a.size * (2 if a.dtype.kind == "c" else 1) for a in self._leaves)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def _map(self, function: Callable[..., Any], *trees: Any) -> Any:
        rows = zip(self._leaves, *map(leaves_of, trees), strict=True)
        return rebuilt(self._example, iter([function(*row) for row in rows]))

    def zeros(self) -> Any:
        """Return zeros."""
        return self._map(lambda a: np.zeros(a.shape, a.dtype))

    def ones(self) -> Any:
        """Return ones; 1 + 1j of complex numbers."""
        return self._map(lambda a: np.full(a.shape, 1 + 1j if a.dtype.kind == "c" else 1, a.dtype))

    def randn(self) -> Any:
        """Return random numbers of the standard normal distribution, from NumPy's global generator."""
        return self._map(_randn)

    def standard_basis(self) -> Iterator[Any]:
        """Yield the vectors with a single 1, or 1j, in order."""
        for k, a in enumerate(self._leaves):
            for index in np.ndindex(*a.shape):
                for unit in (1, 1j) if a.dtype.kind == "c" else (1,):
                    leaves = [np.zeros(other.shape, other.dtype) for other in self._leaves]
                    leaves[k][index] = unit
                    yield rebuilt(self._example, iter(leaves))

    def add(self, x: Any, y: Any) -> Any:
        """Return the sum."""
        return self._map(lambda _, a, b: gnp.add(a, b), x, y)

    def mut_add(self, x: Any, y: Any) -> Any:
        """Return the sum, of zeros if `x` is None."""
        return self.add(self.zeros() if x is None else x, y)

    def scalar_mul(self, x: Any, a: Any) -> Any:
        """Return a multiple."""
        return self._map(lambda _, part: gnp.multiply(part, a), x)

    def inner_prod(self, x: Any, y: Any) -> Any:
        """Return the real inner product."""
        products = [_inner(a, b) for a, b in zip(leaves_of(x), leaves_of(y), strict=True)]
        return sum(products[1:], products[0]) if products else 0.0

    def covector(self, x: Any) -> Any:
        """Return the covector: the conjugate."""
        return self._map(lambda a, part: gnp.conj(part) if a.dtype.kind == "c" else part, x)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, VSpace)
            and leaves_of(self.shape) == leaves_of(other.shape)
            and leaves_of(self.dtype) == leaves_of(other.dtype)
            and _form(self._example) == _form(other._example)
        )

    __hash__ = None  # type: ignore[assignment]  # as autograd's, it is compared by value

    def __repr__(self) -> str:
        return f"VSpace(shape={self.shape}, dtype={self.dtype})"

    @classmethod
    def register(cls, value_type: Any, vspace_maker: Any = None) -> NoReturn:
        """Raise: no further types can be differentiated."""
        raise NotImplementedError(
            f"VSpace.register({value_type!r}): gradmgr differentiates by arrays and numbers in nested lists, tuples, "
            "dicts and dataclasses, and by no other types; make the type a dataclass"
        )


def _as_array(leaf: Any) -> Any:
    value = bare(leaf)
    if isinstance(value, (float, complex)):
        value = np.asarray(value)
    libraries.check_plain(value)
    if not libraries.is_array(value) or value.dtype.kind not in "iufcV":
        raise errors.DtypeError(
            f"can't find a vector space for {leaf!r} of type {type(leaf).__name__}; it is for floating and complex "
            "arrays and numbers, and containers of them"
        )
    return value


def _form(tree: Any) -> Any:
    """Return the types of nested containers, and the keys of dicts."""
    if isinstance(tree, dict):
        return dict, {key: _form(part) for key, part in tree.items()}
    return (type(tree), [_form(part) for part in tree]) if isinstance(tree, (list, tuple)) else None


def _randn(a: Any) -> Any:
    made = np.random.standard_normal(a.shape)  # noqa: NPY002  # autograd's, so that a program's seed holds
    if a.dtype.kind == "c":
        made = made + 1j * np.random.standard_normal(a.shape)  # noqa: NPY002  # as above
    return np.asarray(made).astype(a.dtype)


def _inner(a: Any, b: Any) -> Any:
    return gnp.real(gnp.sum(gnp.conj(a) * b))


def vspace(value: Any) -> VSpace:
    """Return the vector space of an array, a number or a container of them.

    >>> import numpy
    >>> from gradmgr.compat.autograd.extend import vspace
    >>> vspace({"w": numpy.ones((2, 3)), "b": 1.0}).size
    7

    Raises:
        TypeError: it holds something else, such as an int.
    """
    return VSpace(value)
