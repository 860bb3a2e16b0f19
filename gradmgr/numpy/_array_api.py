"""What the Python Array API standard asks for and NumPy's namespace lacks."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import order as _order
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.shape import ravel

__array_api_version__ = "2024.12"

# The editions this namespace serves: each newer only one added to the one before.
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")

_KINDS = MappingProxyType(
    {
        "bool": ("bool",),
        "signed integer": ("int8", "int16", "int32", "int64"),
        "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
        "real floating": ("float32", "float64"),
        "complex floating": ("complex64", "complex128"),
    }
)
_UNIONS = MappingProxyType(
    {
        "integral": ("signed integer", "unsigned integer"),
        "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
    }
)


class __array_namespace_info__:  # noqa: N801  # the standard's name
    """What this namespace can do, by the Array API standard's inspection functions.

    >>> import gradmgr.numpy as np
    >>> np.__array_namespace_info__().default_device()
    'cpu'
    """

    __module__ = "gradmgr.numpy"

    def capabilities(self) -> dict[str, Any]:
        """Return what depends on the library: masks as indices, results whose shape depends on values, axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return where creation functions put their result."""
        return "cpu"

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """Return the dtype that creation functions give to each kind of value."""
        self._check(device)
        return {
            "real floating": np.dtype(np.float64),
            "complex floating": np.dtype(np.complex128),
            "integral": np.dtype(np.intp),
            "indexing": np.dtype(np.intp),
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype[Any]]:
        """Return the standard's dtypes by name, all of them or those of a kind or of several.

        Raises:
            ValueError: the standard knows no such kind, or there is no such device.
        """
        self._check(device)
        kinds = tuple(_KINDS) if kind is None else _atoms(kind)
        return {name: np.dtype(name) for atom, names in _KINDS.items() if atom in kinds for name in names}

    def devices(self) -> list[str]:
        """Return "cpu" and, once the program has imported CuPy, each GPU."""
        cupy = libraries.loaded_cupy()
        count = cupy.cuda.runtime.getDeviceCount() if cupy is not None and cupy.cuda.is_available() else 0
        return ["cpu", *(f"cuda:{k}" for k in range(count))]

    def _check(self, device: str | None) -> None:
        if device is None:
            return
        index = libraries.device_index(device)
        name = "cpu" if index is None else f"cuda:{index}"
        if name not in self.devices():
            raise ValueError(f"device {device!r} is not among the devices {self.devices()}")


def _atoms(kind: str | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(kind, tuple):
        return tuple([atom for part in kind for atom in _atoms(part)])
    if kind in _UNIONS:
        return _UNIONS[kind]
    if kind not in _KINDS:
        raise ValueError(f"dtypes knows the kinds {', '.join([*_KINDS, *_UNIONS])}; found {kind!r}")
    return (kind,)


# ---------------------------------------------------------------- properties of dtypes


def _dtype_of(value: Any) -> Any:
    return value.dtype if isinstance(value, Tensor) or libraries.is_array(value) else value


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Tell whether a cast is allowed as `numpy.can_cast`; of a Tensor or array its dtype counts."""
    return bool(np.can_cast(_dtype_of(from_), _dtype_of(to), casting))  # type: ignore[arg-type]  # a string NumPy checks


class finfo:  # noqa: N801  # NumPy's and the standard's name
    """The limits of a floating dtype as `numpy.finfo`, in Python numbers, which promote nothing.

    >>> import gradmgr.numpy as np
    >>> np.finfo(np.ones(3, dtype="float32")).eps
    1.1920928955078125e-07
    """

    __slots__ = ("_numpys",)

    def __init__(self, dtype: Any) -> None:
        self._numpys = np.finfo(_dtype_of(dtype))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._numpys, name)
        return float(value) if isinstance(value, np.floating) else value

    def __eq__(self, other: object) -> Any:
        return self._numpys == other._numpys if isinstance(other, finfo) else self._numpys == other

    def __hash__(self) -> int:
        return hash(self._numpys)

    def __repr__(self) -> str:
        return repr(self._numpys)

    def __str__(self) -> str:
        return str(self._numpys)


def iinfo(int_type: Any) -> np.iinfo:
    """Return the limits of an integer dtype, or of the dtype of an array, as `numpy.iinfo`."""
    return np.iinfo(_dtype_of(int_type))


# ---------------------------------------------------------------- order, the largest first


def sort(
    a: Any,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Any:
    """Sort as `numpy.sort`, or with `descending` the largest first; gradients go back through the stable order.

    NaN comes last in both orders.
    """
    if not descending:
        return _order.sort(a, axis, kind, order, stable=stable)
    a, axis = _flatten_if_no_axis(a, axis, "sort")
    return _order.permute(a, _sort_order("sort", _descending_keys(raw(a)), axis, kind, order, stable), axis)


def argsort(
    a: Any,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: bool | None = None,
    descending: bool = False,
) -> Any:
    """Return the order of `sort` as `numpy.argsort`; stable for Tensors unless stable=False, as the standard asks."""
    given = holds_tensor(a)
    if not given and not descending:
        return np.argsort(a, axis, kind, order, stable=stable)
    values = raw(lift(a))
    values, axis = _flatten_if_no_axis(values, None if values.ndim == 0 and axis in (-1, 0) else axis, "argsort")
    places = _sort_order("argsort", _descending_keys(values) if descending else values, axis, kind, order, stable)
    return wrap(places) if given else places


def _descending_keys(values: Any) -> Any:
    """Return what sorts upwards as the values do downwards; equal ones stay in their order, NaN comes last in both."""
    if values.dtype.kind in "biu":
        return ~values
    return -values.astype(np.float32) if values.dtype.kind == "V" else -values  # NumPy misplaces NaN in bfloat16


def _flatten_if_no_axis(a: Any, axis: int | None, name: str) -> tuple[Any, int]:
    """Return a flattened without an axis, and the axis as a position."""
    a = lift(a)
    return (ravel(a), 0) if axis is None else (a, normalize_axis_index(axis, a.ndim, name))


def _sort_order(name: str, values: Any, axis: int, kind: Any, order: Any, stable: bool | None) -> Any:
    """Return the order of the values, stable unless stable=False."""
    if kind is not None and stable is not None:
        raise ValueError(f"{name}: kind= and stable= say the same; give one of them")
    kind = "stable" if kind is None and stable is not False else kind
    keywords = {} if order is None else {"order": order}  # CuPy's has no such keyword
    try:
        return np.argsort(values, axis=axis, kind=kind, **keywords)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
