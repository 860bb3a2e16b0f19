"""Types of NumPy's namespace on Tensors. Written by tools/make_stubs.py; do not edit."""

from builtins import bool as _bool
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy import False_ as False_
from numpy import ScalarType as ScalarType
from numpy import True_ as True_
from numpy import bool as bool
from numpy import bool_ as bool_
from numpy import broadcast_shapes as broadcast_shapes
from numpy import busdaycalendar as busdaycalendar
from numpy import byte as byte
from numpy import bytes_ as bytes_
from numpy import cdouble as cdouble
from numpy import char as char
from numpy import character as character
from numpy import clongdouble as clongdouble
from numpy import complex64 as complex64
from numpy import complex128 as complex128
from numpy import complexfloating as complexfloating
from numpy import csingle as csingle
from numpy import ctypeslib as ctypeslib
from numpy import datetime64 as datetime64
from numpy import datetime_data as datetime_data
from numpy import double as double
from numpy import dtype as dtype
from numpy import dtypes as dtypes
from numpy import e as e
from numpy import emath as emath
from numpy import errstate as errstate
from numpy import euler_gamma as euler_gamma
from numpy import exceptions as exceptions
from numpy import f2py as f2py
from numpy import flatiter as flatiter
from numpy import flexible as flexible
from numpy import float16 as float16
from numpy import float32 as float32
from numpy import float64 as float64
from numpy import floating as floating
from numpy import generic as generic
from numpy import get_include as get_include
from numpy import get_printoptions as get_printoptions
from numpy import getbufsize as getbufsize
from numpy import geterr as geterr
from numpy import geterrcall as geterrcall
from numpy import half as half
from numpy import index_exp as index_exp
from numpy import inexact as inexact
from numpy import inf as inf
from numpy import info as info
from numpy import int8 as int8
from numpy import int16 as int16
from numpy import int32 as int32
from numpy import int64 as int64
from numpy import int_ as int_
from numpy import intc as intc
from numpy import integer as integer
from numpy import intp as intp
from numpy import isdtype as isdtype
from numpy import isscalar as isscalar
from numpy import issubdtype as issubdtype
from numpy import iterable as iterable
from numpy import lib as lib
from numpy import little_endian as little_endian
from numpy import long as long
from numpy import longdouble as longdouble
from numpy import longlong as longlong
from numpy import ma as ma
from numpy import memmap as memmap
from numpy import mgrid as mgrid
from numpy import nan as nan
from numpy import ndarray as ndarray
from numpy import ndindex as ndindex
from numpy import newaxis as newaxis
from numpy import number as number
from numpy import object_ as object_
from numpy import ogrid as ogrid
from numpy import pi as pi
from numpy import poly1d as poly1d
from numpy import polynomial as polynomial
from numpy import printoptions as printoptions
from numpy import promote_types as promote_types
from numpy import random as random
from numpy import rec as rec
from numpy import recarray as recarray
from numpy import record as record
from numpy import s_ as s_
from numpy import set_printoptions as set_printoptions
from numpy import setbufsize as setbufsize
from numpy import seterr as seterr
from numpy import seterrcall as seterrcall
from numpy import short as short
from numpy import show_config as show_config
from numpy import show_runtime as show_runtime
from numpy import signedinteger as signedinteger
from numpy import single as single
from numpy import str_ as str_
from numpy import strings as strings
from numpy import test as test
from numpy import testing as testing
from numpy import timedelta64 as timedelta64
from numpy import typename as typename
from numpy import typing as typing
from numpy import ubyte as ubyte
from numpy import ufunc as ufunc
from numpy import uint as uint
from numpy import uint8 as uint8
from numpy import uint16 as uint16
from numpy import uint32 as uint32
from numpy import uint64 as uint64
from numpy import uintc as uintc
from numpy import uintp as uintp
from numpy import ulong as ulong
from numpy import ulonglong as ulonglong
from numpy import unsignedinteger as unsignedinteger
from numpy import ushort as ushort
from numpy import void as void
from numpy.typing import DTypeLike

from gradmgr import special as special
from gradmgr._engine.function_types import Axis, Constant1, Constant2, Ufunc1, Ufunc2
from gradmgr._engine.tensor import Tensor
from gradmgr.numpy import fft as fft
from gradmgr.numpy import linalg as linalg
from gradmgr.numpy._array_api import finfo as finfo
from gradmgr.ops.apply import Broadcast
from gradmgr.ops.apply import vectorize as vectorize
from gradmgr.ops.grids import c_ as c_
from gradmgr.ops.grids import r_ as r_
from gradmgr.ops.order import UniqueAllResult, UniqueCountsResult, UniqueInverseResult

__all__ = [
    "False_",
    "ScalarType",
    "True_",
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "all",
    "allclose",
    "amax",
    "amin",
    "angle",
    "any",
    "append",
    "apply_along_axis",
    "apply_over_axes",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "argwhere",
    "around",
    "array",
    "array2string",
    "array_equal",
    "array_equiv",
    "array_repr",
    "array_split",
    "array_str",
    "asanyarray",
    "asarray",
    "asarray_chkfinite",
    "ascontiguousarray",
    "asfortranarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "average",
    "bartlett",
    "base_repr",
    "binary_repr",
    "bincount",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "blackman",
    "block",
    "bool",
    "bool_",
    "broadcast",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "busday_count",
    "busday_offset",
    "busdaycalendar",
    "byte",
    "bytes_",
    "c_",
    "can_cast",
    "cbrt",
    "cdouble",
    "ceil",
    "character",
    "choose",
    "clip",
    "clongdouble",
    "column_stack",
    "common_type",
    "complex64",
    "complex128",
    "complexfloating",
    "compress",
    "concat",
    "concatenate",
    "conj",
    "conjugate",
    "convolve",
    "copy",
    "copysign",
    "copyto",
    "corrcoef",
    "correlate",
    "cos",
    "cosh",
    "count_nonzero",
    "cov",
    "cross",
    "csingle",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "datetime64",
    "datetime_as_string",
    "datetime_data",
    "deg2rad",
    "degrees",
    "delete",
    "diag",
    "diag_indices",
    "diag_indices_from",
    "diagflat",
    "diagonal",
    "diff",
    "digitize",
    "divide",
    "divmod",
    "dot",
    "double",
    "dsplit",
    "dstack",
    "dtype",
    "e",
    "ediff1d",
    "einsum",
    "einsum_path",
    "empty",
    "empty_like",
    "equal",
    "errstate",
    "euler_gamma",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "extract",
    "eye",
    "fabs",
    "fft",
    "fill_diagonal",
    "finfo",
    "fix",
    "flatiter",
    "flatnonzero",
    "flexible",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "float_power",
    "floating",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "format_float_positional",
    "format_float_scientific",
    "frexp",
    "from_dlpack",
    "frombuffer",
    "fromfile",
    "fromfunction",
    "fromiter",
    "fromregex",
    "fromstring",
    "full",
    "full_like",
    "gcd",
    "generic",
    "genfromtxt",
    "geomspace",
    "get_include",
    "get_printoptions",
    "getbufsize",
    "geterr",
    "geterrcall",
    "gradient",
    "greater",
    "greater_equal",
    "half",
    "hamming",
    "hanning",
    "heaviside",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
    "hsplit",
    "hstack",
    "hypot",
    "i0",
    "identity",
    "iinfo",
    "imag",
    "index_exp",
    "indices",
    "inexact",
    "inf",
    "info",
    "inner",
    "insert",
    "int8",
    "int16",
    "int32",
    "int64",
    "int_",
    "intc",
    "integer",
    "interp",
    "intersect1d",
    "intp",
    "invert",
    "is_busday",
    "isclose",
    "iscomplex",
    "iscomplexobj",
    "isdtype",
    "isfinite",
    "isfortran",
    "isin",
    "isinf",
    "isnan",
    "isnat",
    "isneginf",
    "isposinf",
    "isreal",
    "isrealobj",
    "isscalar",
    "issubdtype",
    "iterable",
    "ix_",
    "kaiser",
    "kron",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "lexsort",
    "linalg",
    "linspace",
    "little_endian",
    "load",
    "loadtxt",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logspace",
    "long",
    "longdouble",
    "longlong",
    "mask_indices",
    "matmul",
    "matrix_transpose",
    "matvec",
    "max",
    "maximum",
    "may_share_memory",
    "mean",
    "median",
    "memmap",
    "meshgrid",
    "mgrid",
    "min",
    "min_scalar_type",
    "minimum",
    "mintypecode",
    "mod",
    "modf",
    "moveaxis",
    "multiply",
    "nan",
    "nan_to_num",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmedian",
    "nanmin",
    "nanpercentile",
    "nanprod",
    "nanquantile",
    "nanstd",
    "nansum",
    "nanvar",
    "ndarray",
    "ndenumerate",
    "ndim",
    "ndindex",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "number",
    "object_",
    "ogrid",
    "ones",
    "ones_like",
    "outer",
    "packbits",
    "pad",
    "partition",
    "percentile",
    "permute_dims",
    "pi",
    "piecewise",
    "place",
    "poly",
    "poly1d",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "positive",
    "pow",
    "power",
    "printoptions",
    "prod",
    "promote_types",
    "ptp",
    "put",
    "put_along_axis",
    "putmask",
    "quantile",
    "r_",
    "rad2deg",
    "radians",
    "ravel",
    "ravel_multi_index",
    "real",
    "real_if_close",
    "recarray",
    "reciprocal",
    "record",
    "remainder",
    "repeat",
    "require",
    "reshape",
    "resize",
    "result_type",
    "right_shift",
    "rint",
    "roll",
    "rollaxis",
    "roots",
    "rot90",
    "round",
    "row_stack",
    "s_",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
    "searchsorted",
    "select",
    "set_printoptions",
    "setbufsize",
    "setdiff1d",
    "seterr",
    "seterrcall",
    "setxor1d",
    "shape",
    "shares_memory",
    "short",
    "show_config",
    "show_runtime",
    "sign",
    "signbit",
    "signedinteger",
    "sin",
    "sinc",
    "single",
    "sinh",
    "size",
    "sort",
    "sort_complex",
    "spacing",
    "special",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "str_",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "test",
    "tile",
    "timedelta64",
    "trace",
    "transpose",
    "trapezoid",
    "tri",
    "tril",
    "tril_indices",
    "tril_indices_from",
    "trim_zeros",
    "triu",
    "triu_indices",
    "triu_indices_from",
    "true_divide",
    "trunc",
    "typename",
    "ubyte",
    "ufunc",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uintc",
    "uintp",
    "ulong",
    "ulonglong",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unpackbits",
    "unravel_index",
    "unsignedinteger",
    "unstack",
    "unwrap",
    "ushort",
    "vander",
    "var",
    "vdot",
    "vecdot",
    "vecmat",
    "vectorize",
    "void",
    "vsplit",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]
abs: Ufunc1
"""Compute `numpy.abs` of Tensors or arrays, differentiably."""
absolute: Ufunc1
"""Compute `numpy.abs` of Tensors or arrays, differentiably."""
acos: Ufunc1
"""Compute `numpy.acos` of Tensors or arrays, differentiably."""
acosh: Ufunc1
"""Compute `numpy.acosh` of Tensors or arrays, differentiably."""
add: Ufunc2
"""Compute `numpy.add` of Tensors or arrays, differentiably."""

@overload
def all(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, keepdims: _bool = ..., *, where: Any = ...
) -> Tensor: ...
@overload
def all(a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = ..., *, where: Any = ...) -> Any: ...
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: _bool = False) -> _bool: ...
@overload
def amax(
    a: Tensor,
    axis: Axis = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def amax(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = False, initial: Any = ..., where: Any = True
) -> Any: ...
@overload
def amin(
    a: Tensor,
    axis: Axis = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def amin(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = False, initial: Any = ..., where: Any = True
) -> Any: ...
@overload
def angle(z: Tensor, deg: Any = False) -> Tensor: ...
@overload
def angle(z: Any, deg: Any = False) -> Any: ...
@overload
def any(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, keepdims: _bool = ..., *, where: Any = ...
) -> Tensor: ...
@overload
def any(a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = ..., *, where: Any = ...) -> Any: ...
@overload
def append(arr: Tensor, values: Any, axis: int | None = None) -> Tensor: ...
@overload
def append(arr: Any, values: Tensor, axis: int | None = None) -> Tensor: ...
@overload
def append(arr: Any, values: Any, axis: int | None = None) -> Any: ...
@overload
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Tensor, *args: Any, **kwargs: Any) -> Any: ...
@overload
def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any: ...
@overload
def apply_over_axes(func: Callable[..., Any], a: Tensor, axes: Any) -> Tensor: ...
@overload
def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any: ...
def arange(
    start_or_stop: Any = None,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    like: Any = None,
) -> Tensor: ...

arccos: Ufunc1
"""Compute `numpy.acos` of Tensors or arrays, differentiably."""
arccosh: Ufunc1
"""Compute `numpy.acosh` of Tensors or arrays, differentiably."""
arcsin: Ufunc1
"""Compute `numpy.arcsin` of Tensors or arrays, differentiably."""
arcsinh: Ufunc1
"""Compute `numpy.arcsinh` of Tensors or arrays, differentiably."""
arctan: Ufunc1
"""Compute `numpy.arctan` of Tensors or arrays, differentiably."""
arctan2: Ufunc2
"""Compute `numpy.arctan2` of Tensors or arrays, differentiably."""
arctanh: Ufunc1
"""Compute `numpy.arctanh` of Tensors or arrays, differentiably."""

@overload
def argmax(a: Tensor, axis: Axis = None, out: Tensor | None = None, *, keepdims: _bool = ...) -> Tensor: ...
@overload
def argmax(a: Any, axis: Axis = None, out: Any = None, *, keepdims: _bool = ...) -> Any: ...
@overload
def argmin(a: Tensor, axis: Axis = None, out: Tensor | None = None, *, keepdims: _bool = ...) -> Tensor: ...
@overload
def argmin(a: Any, axis: Axis = None, out: Any = None, *, keepdims: _bool = ...) -> Any: ...
@overload
def argpartition(
    a: Tensor, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None
) -> Tensor: ...
@overload
def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Any: ...
@overload
def argsort(
    a: Tensor,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: _bool | None = None,
    descending: _bool = False,
) -> Tensor: ...
@overload
def argsort(
    a: Any,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: _bool | None = None,
    descending: _bool = False,
) -> Any: ...
@overload
def argwhere(a: Tensor) -> Tensor: ...
@overload
def argwhere(a: Any) -> Any: ...
@overload
def around(a: Tensor, decimals: int = 0, out: Tensor | None = None) -> Tensor: ...
@overload
def around(a: Any, decimals: int = 0, out: Any = None) -> Any: ...
def array(
    object: Any,
    dtype: DTypeLike | None = None,
    *,
    copy: _bool | None = True,
    order: str | None = "K",
    subok: _bool = False,
    ndmin: int = 0,
    ndmax: int = 0,
    like: Any = None,
    device: str | None = None,
) -> Tensor: ...
def array2string(
    a: Any,
    max_line_width: Any = None,
    precision: Any = None,
    suppress_small: Any = None,
    separator: Any = " ",
    prefix: Any = "",
    *,
    formatter: Any = None,
    threshold: Any = None,
    edgeitems: Any = None,
    sign: Any = None,
    floatmode: Any = None,
    suffix: Any = "",
    legacy: Any = None,
) -> str: ...
def array_equal(a1: Any, a2: Any, equal_nan: _bool = False) -> _bool: ...
def array_equiv(a1: Any, a2: Any) -> _bool: ...
def array_repr(arr: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str: ...
@overload
def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]: ...
@overload
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]: ...
def array_str(a: Any, max_line_width: Any = None, precision: Any = None, suppress_small: Any = None) -> str: ...
def asanyarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    copy: _bool | None = None,
    like: Any = None,
) -> Tensor: ...
def asarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: str | None = None,
    copy: _bool | None = None,
    like: Any = None,
) -> Tensor: ...
def asarray_chkfinite(a: Any, dtype: DTypeLike | None = None, order: str | None = None) -> Tensor: ...
def ascontiguousarray(a: Any, dtype: DTypeLike | None = None, *, like: Any = None) -> Tensor: ...
def asfortranarray(a: Any, dtype: DTypeLike | None = None, *, like: Any = None) -> Tensor: ...

asin: Ufunc1
"""Compute `numpy.arcsin` of Tensors or arrays, differentiably."""
asinh: Ufunc1
"""Compute `numpy.arcsinh` of Tensors or arrays, differentiably."""

@overload
def astype(x: Tensor, dtype: DTypeLike | None, /, *, copy: _bool = True, device: str | None = None) -> Tensor: ...
@overload
def astype(x: Any, dtype: DTypeLike | None, /, *, copy: _bool = True, device: str | None = None) -> Any: ...

atan: Ufunc1
"""Compute `numpy.arctan` of Tensors or arrays, differentiably."""
atan2: Ufunc2
"""Compute `numpy.arctan2` of Tensors or arrays, differentiably."""
atanh: Ufunc1
"""Compute `numpy.arctanh` of Tensors or arrays, differentiably."""

@overload
def atleast_1d(a0: Tensor, /) -> Tensor: ...
@overload
def atleast_1d(*arys: Tensor) -> tuple[Tensor, ...]: ...
@overload
def atleast_1d(*arys: Any) -> Any: ...
@overload
def atleast_2d(a0: Tensor, /) -> Tensor: ...
@overload
def atleast_2d(*arys: Tensor) -> tuple[Tensor, ...]: ...
@overload
def atleast_2d(*arys: Any) -> Any: ...
@overload
def atleast_3d(a0: Tensor, /) -> Tensor: ...
@overload
def atleast_3d(*arys: Tensor) -> tuple[Tensor, ...]: ...
@overload
def atleast_3d(*arys: Any) -> Any: ...
@overload
def average(
    a: Tensor, axis: Axis = None, weights: Any = None, returned: Literal[False] = False, *, keepdims: _bool = ...
) -> Tensor: ...
@overload
def average(
    a: Tensor, axis: Axis = None, weights: Any = None, *, returned: Literal[True], keepdims: _bool = ...
) -> tuple[Tensor, Tensor]: ...
@overload
def average(
    a: Tensor, axis: Axis = None, weights: Any = None, returned: _bool = False, *, keepdims: _bool = ...
) -> Any: ...
@overload
def average(
    a: Any, axis: Axis = None, weights: Any = None, returned: _bool = False, *, keepdims: _bool = ...
) -> Any: ...
def bartlett(M: Any) -> Tensor: ...
def base_repr(number: Any, base: Any = 2, padding: Any = 0) -> str: ...
def binary_repr(num: Any, width: Any = None) -> str: ...
@overload
def bincount(x: Tensor, /, weights: Any = None, minlength: int = 0) -> Tensor: ...
@overload
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any: ...

bitwise_and: Constant2
"""`numpy.bitwise_and` on the values; the result carries no gradient."""
bitwise_count: Constant1
"""`numpy.bitwise_count` on the values; the result carries no gradient."""
bitwise_invert: Constant1
"""`numpy.invert` on the values; the result carries no gradient."""
bitwise_left_shift: Constant2
"""`numpy.left_shift` on the values; the result carries no gradient."""
bitwise_not: Constant1
"""`numpy.invert` on the values; the result carries no gradient."""
bitwise_or: Constant2
"""`numpy.bitwise_or` on the values; the result carries no gradient."""
bitwise_right_shift: Constant2
"""`numpy.right_shift` on the values; the result carries no gradient."""
bitwise_xor: Constant2
"""`numpy.bitwise_xor` on the values; the result carries no gradient."""

def blackman(M: Any) -> Tensor: ...
@overload
def block(arrays: Sequence[Tensor]) -> Tensor: ...
@overload
def block(arrays: Any) -> Any: ...
def broadcast(*args: Any) -> Broadcast: ...
@overload
def broadcast_arrays(*args: Tensor, subok: _bool = False) -> tuple[Tensor, ...]: ...
@overload
def broadcast_arrays(*args: Any, subok: _bool = False) -> tuple[Any, ...]: ...
@overload
def broadcast_to(array: Tensor, shape: Any, subok: _bool = False) -> Tensor: ...
@overload
def broadcast_to(array: Any, shape: Any, subok: _bool = False) -> Any: ...
def busday_count(
    begindates: Any,
    enddates: Any,
    weekmask: Any = "1111100",
    holidays: Any = ...,
    busdaycal: Any = None,
    out: Any = None,
) -> Any: ...
def busday_offset(
    dates: Any,
    offsets: Any,
    roll: Any = "raise",
    weekmask: Any = "1111100",
    holidays: Any = None,
    busdaycal: Any = None,
    out: Any = None,
) -> Any: ...
def can_cast(from_: Any, to: Any, casting: str = "safe") -> _bool: ...

cbrt: Ufunc1
"""Compute `numpy.cbrt` of Tensors or arrays, differentiably."""
ceil: Ufunc1
"""Compute `numpy.ceil` of Tensors or arrays, differentiably."""

@overload
def choose(a: Tensor, choices: Any, out: Tensor | None = None, mode: Any = "raise") -> Tensor: ...
@overload
def choose(a: Any, choices: Tensor, out: Tensor | None = None, mode: Any = "raise") -> Tensor: ...
@overload
def choose(a: Any, choices: Any, out: Any = None, mode: Any = "raise") -> Any: ...
@overload
def clip(
    a: Tensor,
    min: Any = ...,
    max: Any = ...,
    out: Tensor | None = None,
    *,
    a_min: Any = ...,
    a_max: Any = ...,
    **kwargs: Any,
) -> Tensor: ...
@overload
def clip(
    a: Any, min: Any = ..., max: Any = ..., out: Any = None, *, a_min: Any = ..., a_max: Any = ..., **kwargs: Any
) -> Any: ...
@overload
def column_stack(tup: Sequence[Tensor]) -> Tensor: ...
@overload
def column_stack(tup: Any) -> Any: ...
def common_type(*arrays: Any) -> type[Any]: ...
@overload
def compress(condition: Tensor, a: Any, axis: int | None = None, out: Tensor | None = None) -> Tensor: ...
@overload
def compress(condition: Any, a: Tensor, axis: int | None = None, out: Tensor | None = None) -> Tensor: ...
@overload
def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any: ...
@overload
def concat(
    arrays: Sequence[Tensor],
    /,
    axis: int | None = 0,
    out: Tensor | None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> Tensor: ...
@overload
def concat(
    arrays: Any, /, axis: int | None = 0, out: Any = None, *, dtype: DTypeLike | None = None, casting: str = "same_kind"
) -> Any: ...
@overload
def concatenate(
    arrays: Sequence[Tensor],
    /,
    axis: int | None = 0,
    out: Tensor | None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> Tensor: ...
@overload
def concatenate(
    arrays: Any, /, axis: int | None = 0, out: Any = None, *, dtype: DTypeLike | None = None, casting: str = "same_kind"
) -> Any: ...

conj: Ufunc1
"""Compute `numpy.conj` of Tensors or arrays, differentiably."""
conjugate: Ufunc1
"""Compute `numpy.conj` of Tensors or arrays, differentiably."""

@overload
def convolve(a: Tensor, v: Any, mode: str = "full") -> Tensor: ...
@overload
def convolve(a: Any, v: Tensor, mode: str = "full") -> Tensor: ...
@overload
def convolve(a: Any, v: Any, mode: str = "full") -> Any: ...
@overload
def copy(a: Tensor, order: str = "K", subok: _bool = False) -> Tensor: ...
@overload
def copy(a: Any, order: str = "K", subok: _bool = False) -> Any: ...

copysign: Ufunc2
"""Compute `numpy.copysign` of Tensors or arrays, differentiably."""

def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None: ...
@overload
def corrcoef(x: Tensor, y: Any = None, rowvar: _bool = True, *, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def corrcoef(x: Any, y: Any = None, rowvar: _bool = True, *, dtype: DTypeLike | None = None) -> Any: ...
@overload
def correlate(a: Tensor, v: Any, mode: str = "valid") -> Tensor: ...
@overload
def correlate(a: Any, v: Tensor, mode: str = "valid") -> Tensor: ...
@overload
def correlate(a: Any, v: Any, mode: str = "valid") -> Any: ...

cos: Ufunc1
"""Compute `numpy.cos` of Tensors or arrays, differentiably."""
cosh: Ufunc1
"""Compute `numpy.cosh` of Tensors or arrays, differentiably."""

@overload
def count_nonzero(a: Tensor, axis: Axis = None, *, keepdims: _bool = False) -> Tensor: ...
@overload
def count_nonzero(a: Any, axis: Axis = None, *, keepdims: _bool = False) -> Any: ...
@overload
def cov(
    m: Tensor,
    y: Any = None,
    rowvar: _bool = True,
    bias: _bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def cov(
    m: Any,
    y: Any = None,
    rowvar: _bool = True,
    bias: _bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: DTypeLike | None = None,
) -> Any: ...
@overload
def cross(a: Tensor, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Tensor: ...
@overload
def cross(a: Any, b: Tensor, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Tensor: ...
@overload
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any: ...
@overload
def cumprod(
    a: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None
) -> Tensor: ...
@overload
def cumprod(a: Any, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
@overload
def cumsum(a: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None) -> Tensor: ...
@overload
def cumsum(a: Any, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
@overload
def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    include_initial: _bool = False,
) -> Tensor: ...
@overload
def cumulative_prod(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    include_initial: _bool = False,
) -> Any: ...
@overload
def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    include_initial: _bool = False,
) -> Tensor: ...
@overload
def cumulative_sum(
    x: Any,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    include_initial: _bool = False,
) -> Any: ...
def datetime_as_string(arr: Any, unit: Any = None, timezone: Any = "naive", casting: Any = "same_kind") -> Any: ...

deg2rad: Ufunc1
"""Compute `numpy.deg2rad` of Tensors or arrays, differentiably."""
degrees: Ufunc1
"""Compute `numpy.degrees` of Tensors or arrays, differentiably."""

@overload
def delete(arr: Tensor, obj: Any, axis: int | None = None) -> Tensor: ...
@overload
def delete(arr: Any, obj: Any, axis: int | None = None) -> Any: ...
@overload
def diag(v: Tensor, k: int = 0) -> Tensor: ...
@overload
def diag(v: Any, k: int = 0) -> Any: ...
def diag_indices(n: Any, ndim: Any = 2) -> tuple[Tensor, ...]: ...
@overload
def diag_indices_from(arr: Tensor) -> tuple[Tensor, ...]: ...
@overload
def diag_indices_from(arr: Any) -> tuple[Any, ...]: ...
@overload
def diagflat(v: Tensor, k: int = 0) -> Tensor: ...
@overload
def diagflat(v: Any, k: int = 0) -> Any: ...
@overload
def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor: ...
@overload
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any: ...
@overload
def diff(a: Tensor, n: int = 1, axis: int = -1, prepend: Any = ..., append: Any = ...) -> Tensor: ...
@overload
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = ..., append: Any = ...) -> Any: ...
@overload
def digitize(x: Tensor, bins: Any, right: Any = False) -> Tensor: ...
@overload
def digitize(x: Any, bins: Any, right: Any = False) -> Any: ...

divide: Ufunc2
"""Compute `numpy.divide` of Tensors or arrays, differentiably."""

@overload
def divmod(x: Tensor, y: Any, /, *, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Tensor, Tensor]: ...
@overload
def divmod(x: Any, y: Tensor, /, *, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Tensor, Tensor]: ...
@overload
def divmod(*args: Any, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Any, Any]: ...
@overload
def dot(a: Tensor, b: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def dot(a: Any, b: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def dot(a: Any, b: Any, out: Any = None) -> Any: ...
@overload
def dsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def dstack(tup: Sequence[Tensor]) -> Tensor: ...
@overload
def dstack(tup: Any) -> Any: ...
@overload
def ediff1d(ary: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor: ...
@overload
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any: ...
@overload
def einsum(
    subscripts: str,
    x: Tensor,
    /,
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: DTypeLike | None = None,
    order: str = "K",
    casting: Any = "safe",
) -> Tensor: ...
@overload
def einsum(
    subscripts: str,
    x: Any,
    y: Tensor,
    /,
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: DTypeLike | None = None,
    order: str = "K",
    casting: Any = "safe",
) -> Tensor: ...
@overload
def einsum(
    *operands: Any,
    out: Any = None,
    optimize: Any = False,
    dtype: DTypeLike | None = None,
    order: str = "K",
    casting: Any = "safe",
) -> Any: ...
def einsum_path(*operands: Any, optimize: Any = "greedy", einsum_call: _bool = False) -> tuple[list[Any], str]: ...
def empty(
    shape: Any, dtype: DTypeLike | None = None, order: str = "C", *, device: str | None = None, like: Any = None
) -> Tensor: ...
def empty_like(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: _bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Tensor: ...

equal: Constant2
"""`numpy.equal` on the values; the result carries no gradient."""
exp: Ufunc1
"""Compute `numpy.exp` of Tensors or arrays, differentiably."""
exp2: Ufunc1
"""Compute `numpy.exp2` of Tensors or arrays, differentiably."""

@overload
def expand_dims(a: Tensor, axis: int | Sequence[int]) -> Tensor: ...
@overload
def expand_dims(a: Any, axis: int | Sequence[int]) -> Any: ...

expm1: Ufunc1
"""Compute `numpy.expm1` of Tensors or arrays, differentiably."""

@overload
def extract(condition: Tensor, arr: Any) -> Tensor: ...
@overload
def extract(condition: Any, arr: Tensor) -> Tensor: ...
@overload
def extract(condition: Any, arr: Any) -> Any: ...
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = ...,
    order: str = "C",
    *,
    device: str | None = None,
    like: Any = None,
) -> Tensor: ...

fabs: Ufunc1
"""Compute `numpy.fabs` of Tensors or arrays, differentiably."""

def fill_diagonal(a: Any, val: Any, wrap: _bool = False) -> None: ...
@overload
def fix(x: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def fix(x: Any, out: Any = None) -> Any: ...
@overload
def flatnonzero(a: Tensor) -> Tensor: ...
@overload
def flatnonzero(a: Any) -> Any: ...
@overload
def flip(m: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def flip(m: Any, axis: Axis = None) -> Any: ...
@overload
def fliplr(m: Tensor) -> Tensor: ...
@overload
def fliplr(m: Any) -> Any: ...
@overload
def flipud(m: Tensor) -> Tensor: ...
@overload
def flipud(m: Any) -> Any: ...

float_power: Ufunc2
"""Raise to a power in float64 or complex128 as `numpy.float_power`."""
floor: Ufunc1
"""Compute `numpy.floor` of Tensors or arrays, differentiably."""
floor_divide: Ufunc2
"""Compute `numpy.floor_divide` of Tensors or arrays, differentiably."""
fmax: Ufunc2
"""Compute `numpy.fmax` of Tensors or arrays, differentiably."""
fmin: Ufunc2
"""Compute `numpy.fmin` of Tensors or arrays, differentiably."""
fmod: Ufunc2
"""Compute `numpy.fmod` of Tensors or arrays, differentiably."""

def format_float_positional(
    x: Any,
    precision: Any = None,
    unique: Any = True,
    fractional: Any = True,
    trim: Any = "k",
    sign: Any = False,
    pad_left: Any = None,
    pad_right: Any = None,
    min_digits: Any = None,
) -> str: ...
def format_float_scientific(
    x: Any,
    precision: Any = None,
    unique: Any = True,
    trim: Any = "k",
    sign: Any = False,
    pad_left: Any = None,
    exp_digits: Any = None,
    min_digits: Any = None,
) -> str: ...
@overload
def frexp(x: Tensor, /, *, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Tensor, Tensor]: ...
@overload
def frexp(*args: Any, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Any, Any]: ...
def from_dlpack(source: Any, /, *, device: str | None = None, copy: _bool | None = None) -> Tensor: ...
def frombuffer(
    buffer: Any, dtype: DTypeLike | None = None, count: Any = -1, offset: int = 0, *, like: Any = None
) -> Tensor: ...
def fromfile(
    file: Any, dtype: DTypeLike | None = None, count: Any = -1, sep: Any = "", offset: int = 0, *, like: Any = None
) -> Tensor: ...
def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: DTypeLike | None = ..., like: Any = None, **kwargs: Any
) -> Tensor: ...
def fromiter(iter: Iterable[Any], dtype: DTypeLike | None, count: int = -1, *, like: Any = None) -> Tensor: ...
def fromregex(file: Any, regexp: Any, dtype: DTypeLike | None, encoding: Any = None) -> Tensor: ...
def fromstring(*args: Any, **kwargs: Any) -> Tensor: ...
def full(
    shape: Any,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: str | None = None,
    like: Any = None,
) -> Tensor: ...
def full_like(
    a: Any,
    fill_value: Any,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: _bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Tensor: ...

gcd: Constant2
"""`numpy.gcd` on the values; the result carries no gradient."""

def genfromtxt(
    fname: Any,
    dtype: DTypeLike | None = ...,
    comments: Any = "#",
    delimiter: Any = None,
    skip_header: Any = 0,
    skip_footer: Any = 0,
    converters: Any = None,
    missing_values: Any = None,
    filling_values: Any = None,
    usecols: Any = None,
    names: Any = None,
    excludelist: Any = None,
    deletechars: Any = " !#$%&'()*+,-./:;<=>?@[\\]^{|}~",
    replace_space: Any = "_",
    autostrip: Any = False,
    case_sensitive: Any = True,
    defaultfmt: Any = "f%i",
    unpack: Any = None,
    usemask: Any = False,
    loose: Any = True,
    invalid_raise: Any = True,
    max_rows: Any = None,
    encoding: Any = None,
    *,
    ndmin: Any = 0,
    like: Any = None,
) -> Tensor: ...
def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: _bool = True, dtype: DTypeLike | None = None, axis: int = 0
) -> Tensor: ...
@overload
def gradient(f: Tensor, *varargs: Any, axis: Axis = None, edge_order: int = 1) -> Any: ...
@overload
def gradient(f: Any, *varargs: Any, axis: Axis = None, edge_order: int = 1) -> Any: ...

greater: Constant2
"""`numpy.greater` on the values; the result carries no gradient."""
greater_equal: Constant2
"""`numpy.greater_equal` on the values; the result carries no gradient."""

def hamming(M: Any) -> Tensor: ...
def hanning(M: Any) -> Tensor: ...

heaviside: Ufunc2
"""Compute `numpy.heaviside` of Tensors or arrays, differentiably."""

@overload
def histogram(
    a: Tensor, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Tensor, Tensor]: ...
@overload
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Any, Any]: ...
@overload
def histogram2d(
    x: Tensor, y: Any, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def histogram2d(
    x: Any, y: Tensor, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Any, Any, Any]: ...
@overload
def histogram_bin_edges(a: Tensor, bins: Any = 10, range: Any = None, weights: Any = None) -> Tensor: ...
@overload
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any: ...
@overload
def histogramdd(
    sample: Tensor, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Tensor, list[Tensor]]: ...
@overload
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: _bool | None = None, weights: Any = None
) -> tuple[Any, list[Any]]: ...
@overload
def hsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def hstack(tup: Sequence[Tensor], *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> Tensor: ...
@overload
def hstack(tup: Any, *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> Any: ...

hypot: Ufunc2
"""Compute `numpy.hypot` of Tensors or arrays, differentiably."""

@overload
def i0(x: Tensor) -> Tensor: ...
@overload
def i0(x: Any) -> Any: ...
def identity(n: int, dtype: DTypeLike | None = None, *, like: Any = None) -> Tensor: ...
def iinfo(int_type: Any) -> np.iinfo: ...
@overload
def imag(val: Tensor) -> Tensor: ...
@overload
def imag(val: Any) -> Any: ...
@overload
def indices(dimensions: Any, dtype: DTypeLike | None = ..., sparse: Literal[False] = False) -> Tensor: ...
@overload
def indices(dimensions: Any, dtype: DTypeLike | None = ..., *, sparse: Literal[True]) -> tuple[Tensor, ...]: ...
@overload
def indices(dimensions: Any, dtype: DTypeLike | None = ..., sparse: Any = False) -> Any: ...
@overload
def inner(a: Tensor, b: Any, /) -> Tensor: ...
@overload
def inner(a: Any, b: Tensor, /) -> Tensor: ...
@overload
def inner(a: Any, b: Any, /) -> Any: ...
@overload
def insert(arr: Tensor, obj: Any, values: Any, axis: int | None = None) -> Tensor: ...
@overload
def insert(arr: Any, obj: Any, values: Tensor, axis: int | None = None) -> Tensor: ...
@overload
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any: ...
@overload
def interp(x: Tensor, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Tensor, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Any, fp: Tensor, left: Any = None, right: Any = None, period: Any = None) -> Tensor: ...
@overload
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any: ...
@overload
def intersect1d(
    ar1: Tensor, ar2: Any, assume_unique: _bool = False, return_indices: Literal[False] = False
) -> Tensor: ...
@overload
def intersect1d(
    ar1: Any, ar2: Tensor, assume_unique: _bool = False, return_indices: Literal[False] = False
) -> Tensor: ...
@overload
def intersect1d(
    ar1: Tensor, ar2: Any, assume_unique: _bool = False, *, return_indices: Literal[True]
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def intersect1d(ar1: Tensor, ar2: Any, assume_unique: _bool = False, return_indices: _bool = False) -> Any: ...
@overload
def intersect1d(ar1: Any, ar2: Any, assume_unique: _bool = False, return_indices: _bool = False) -> Any: ...

invert: Constant1
"""`numpy.invert` on the values; the result carries no gradient."""

def is_busday(
    dates: Any, weekmask: Any = "1111100", holidays: Any = None, busdaycal: Any = None, out: Any = None
) -> Any: ...
@overload
def isclose(a: Tensor, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: _bool = False) -> Tensor: ...
@overload
def isclose(a: Any, b: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: _bool = False) -> Tensor: ...
@overload
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: _bool = False) -> Any: ...
@overload
def iscomplex(x: Tensor) -> Tensor: ...
@overload
def iscomplex(x: Any) -> Any: ...
def iscomplexobj(x: Any) -> _bool: ...

isfinite: Constant1
"""`numpy.isfinite` on the values; the result carries no gradient."""

def isfortran(a: Any) -> _bool: ...
@overload
def isin(
    element: Tensor, test_elements: Any, assume_unique: _bool = False, invert: Any = False, *, kind: Any = None
) -> Tensor: ...
@overload
def isin(
    element: Any, test_elements: Tensor, assume_unique: _bool = False, invert: Any = False, *, kind: Any = None
) -> Tensor: ...
@overload
def isin(
    element: Any, test_elements: Any, assume_unique: _bool = False, invert: Any = False, *, kind: Any = None
) -> Any: ...

isinf: Constant1
"""`numpy.isinf` on the values; the result carries no gradient."""
isnan: Constant1
"""`numpy.isnan` on the values; the result carries no gradient."""
isnat: Constant1
"""`numpy.isnat` on the values; the result carries no gradient."""

@overload
def isneginf(x: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def isneginf(x: Any, out: Any = None) -> Any: ...
@overload
def isposinf(x: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def isposinf(x: Any, out: Any = None) -> Any: ...
@overload
def isreal(x: Tensor) -> Tensor: ...
@overload
def isreal(x: Any) -> Any: ...
def isrealobj(x: Any) -> _bool: ...
@overload
def ix_(*args: Tensor) -> tuple[Tensor, ...]: ...
@overload
def ix_(*args: Any) -> tuple[Any, ...]: ...
def kaiser(M: Any, beta: Any) -> Tensor: ...
@overload
def kron(a: Tensor, b: Any) -> Tensor: ...
@overload
def kron(a: Any, b: Tensor) -> Tensor: ...
@overload
def kron(a: Any, b: Any) -> Any: ...

lcm: Constant2
"""`numpy.lcm` on the values; the result carries no gradient."""
ldexp: Ufunc2
"""Return x1 * 2**x2 as `numpy.ldexp`, exactly; gradients flow into x1."""
left_shift: Constant2
"""`numpy.left_shift` on the values; the result carries no gradient."""
less: Constant2
"""`numpy.less` on the values; the result carries no gradient."""
less_equal: Constant2
"""`numpy.less_equal` on the values; the result carries no gradient."""

@overload
def lexsort(keys: Sequence[Tensor], axis: int = -1) -> Tensor: ...
@overload
def lexsort(keys: Any, axis: int = -1) -> Any: ...
@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: _bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: str | None = None,
) -> Tensor: ...
@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: _bool = True,
    *,
    retstep: Literal[True],
    dtype: DTypeLike | None = None,
    axis: int = 0,
    device: str | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: _bool = True,
    retstep: _bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: str | None = None,
) -> Any: ...
def load(
    file: Any,
    mmap_mode: Any = None,
    allow_pickle: Any = False,
    fix_imports: Any = True,
    encoding: Any = "ASCII",
    *,
    max_header_size: Any = 10000,
) -> Any: ...
def loadtxt(
    fname: Any,
    dtype: DTypeLike | None = ...,
    comments: Any = "#",
    delimiter: Any = None,
    converters: Any = None,
    skiprows: Any = 0,
    usecols: Any = None,
    unpack: Any = False,
    ndmin: Any = 0,
    encoding: Any = None,
    max_rows: Any = None,
    *,
    quotechar: Any = None,
    like: Any = None,
) -> Tensor: ...

log: Ufunc1
"""Compute `numpy.log` of Tensors or arrays, differentiably."""
log10: Ufunc1
"""Compute `numpy.log10` of Tensors or arrays, differentiably."""
log1p: Ufunc1
"""Compute `numpy.log1p` of Tensors or arrays, differentiably."""
log2: Ufunc1
"""Compute `numpy.log2` of Tensors or arrays, differentiably."""
logaddexp: Ufunc2
"""Compute `numpy.logaddexp` of Tensors or arrays, differentiably."""
logaddexp2: Ufunc2
"""Compute `numpy.logaddexp2` of Tensors or arrays, differentiably."""
logical_and: Constant2
"""`numpy.logical_and` on the values; the result carries no gradient."""
logical_not: Constant1
"""`numpy.logical_not` on the values; the result carries no gradient."""
logical_or: Constant2
"""`numpy.logical_or` on the values; the result carries no gradient."""
logical_xor: Constant2
"""`numpy.logical_xor` on the values; the result carries no gradient."""

def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: _bool = True,
    base: Any = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Tensor: ...
def mask_indices(n: Any, mask_func: Any, k: Any = 0) -> tuple[Tensor, ...]: ...

matmul: Ufunc2
"""Compute `numpy.matmul` of Tensors or arrays, differentiably."""

@overload
def matrix_transpose(x: Tensor, /) -> Tensor: ...
@overload
def matrix_transpose(x: Any, /) -> Any: ...
@overload
def matvec(
    x1: Tensor, x2: Any, /, out: Tensor | None = None, *, axes: Any = None, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def matvec(
    x1: Any, x2: Tensor, /, out: Tensor | None = None, *, axes: Any = None, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def matvec(x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, dtype: DTypeLike | None = None) -> Any: ...
@overload
def max(
    a: Tensor,
    axis: Axis = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def max(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = False, initial: Any = ..., where: Any = True
) -> Any: ...

maximum: Ufunc2
"""Compute `numpy.maximum` of Tensors or arrays, differentiably."""

def may_share_memory(a: Any, b: Any, /, max_work: Any = 0) -> _bool: ...
@overload
def mean(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    *,
    where: Any = True,
) -> Tensor: ...
@overload
def mean(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = False,
    *,
    where: Any = True,
) -> Any: ...
@overload
def median(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, overwrite_input: _bool = False, keepdims: _bool = False
) -> Tensor: ...
@overload
def median(
    a: Any, axis: Axis = None, out: Any = None, overwrite_input: _bool = False, keepdims: _bool = False
) -> Any: ...
@overload
def meshgrid(*xi: Tensor, copy: _bool = True, sparse: _bool = False, indexing: Any = "xy") -> tuple[Tensor, ...]: ...
@overload
def meshgrid(*xi: Any, copy: _bool = True, sparse: _bool = False, indexing: Any = "xy") -> tuple[Any, ...]: ...
@overload
def min(
    a: Tensor,
    axis: Axis = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def min(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = False, initial: Any = ..., where: Any = True
) -> Any: ...
def min_scalar_type(a: Any, /) -> np.dtype[Any]: ...

minimum: Ufunc2
"""Compute `numpy.minimum` of Tensors or arrays, differentiably."""

def mintypecode(typechars: Any, typeset: Any = "GDFgdf", default: Any = "d") -> str: ...

mod: Ufunc2
"""Compute `numpy.mod` of Tensors or arrays, differentiably."""

@overload
def modf(x: Tensor, /, *, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Tensor, Tensor]: ...
@overload
def modf(*args: Any, out: Any = None, where: Any = True, dtype: Any = None) -> tuple[Any, Any]: ...
@overload
def moveaxis(a: Tensor, source: Any, destination: Any) -> Tensor: ...
@overload
def moveaxis(a: Any, source: Any, destination: Any) -> Any: ...

multiply: Ufunc2
"""Compute `numpy.multiply` of Tensors or arrays, differentiably."""

@overload
def nan_to_num(x: Tensor, copy: _bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor: ...
@overload
def nan_to_num(x: Any, copy: _bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any: ...
@overload
def nanargmax(a: Tensor, axis: Axis = None, out: Tensor | None = None, *, keepdims: _bool = ...) -> Tensor: ...
@overload
def nanargmax(a: Any, axis: Axis = None, out: Any = None, *, keepdims: _bool = ...) -> Any: ...
@overload
def nanargmin(a: Tensor, axis: Axis = None, out: Tensor | None = None, *, keepdims: _bool = ...) -> Tensor: ...
@overload
def nanargmin(a: Any, axis: Axis = None, out: Any = None, *, keepdims: _bool = ...) -> Any: ...
@overload
def nancumprod(
    a: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None
) -> Tensor: ...
@overload
def nancumprod(a: Any, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
@overload
def nancumsum(
    a: Tensor, axis: int | None = None, dtype: DTypeLike | None = None, out: Tensor | None = None
) -> Tensor: ...
@overload
def nancumsum(a: Any, axis: int | None = None, dtype: DTypeLike | None = None, out: Any = None) -> Any: ...
@overload
def nanmax(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, keepdims: _bool = ..., initial: Any = ..., where: Any = ...
) -> Tensor: ...
@overload
def nanmax(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = ..., initial: Any = ..., where: Any = ...
) -> Any: ...
@overload
def nanmean(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
) -> Tensor: ...
@overload
def nanmean(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
) -> Any: ...
@overload
def nanmedian(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, overwrite_input: _bool = False, keepdims: _bool = ...
) -> Tensor: ...
@overload
def nanmedian(
    a: Any, axis: Axis = None, out: Any = None, overwrite_input: _bool = False, keepdims: _bool = ...
) -> Any: ...
@overload
def nanmin(
    a: Tensor, axis: Axis = None, out: Tensor | None = None, keepdims: _bool = ..., initial: Any = ..., where: Any = ...
) -> Tensor: ...
@overload
def nanmin(
    a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = ..., initial: Any = ..., where: Any = ...
) -> Any: ...
@overload
def nanpercentile(
    a: Tensor,
    q: Any,
    axis: Axis = None,
    out: Tensor | None = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = ...,
    *,
    weights: Any = None,
) -> Tensor: ...
@overload
def nanpercentile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: Any = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = ...,
    *,
    weights: Any = None,
) -> Any: ...
@overload
def nanprod(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = ...,
    initial: Any = ...,
    where: Any = ...,
) -> Tensor: ...
@overload
def nanprod(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = ...,
    initial: Any = ...,
    where: Any = ...,
) -> Any: ...
@overload
def nanquantile(
    a: Tensor,
    q: Any,
    axis: Axis = None,
    out: Tensor | None = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = ...,
    *,
    weights: Any = None,
) -> Tensor: ...
@overload
def nanquantile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: Any = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = ...,
    *,
    weights: Any = None,
) -> Any: ...
@overload
def nanstd(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    ddof: Any = 0,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
    mean: Any = ...,
    correction: Any = ...,
) -> Tensor: ...
@overload
def nanstd(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
    mean: Any = ...,
    correction: Any = ...,
) -> Any: ...
@overload
def nansum(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = ...,
    initial: Any = ...,
    where: Any = ...,
) -> Tensor: ...
@overload
def nansum(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = ...,
    initial: Any = ...,
    where: Any = ...,
) -> Any: ...
@overload
def nanvar(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    ddof: Any = 0,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
    mean: Any = ...,
    correction: Any = ...,
) -> Tensor: ...
@overload
def nanvar(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: _bool = ...,
    *,
    where: Any = ...,
    mean: Any = ...,
    correction: Any = ...,
) -> Any: ...
@overload
def ndenumerate(arr: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]: ...
@overload
def ndenumerate(arr: Any) -> Iterator[tuple[tuple[int, ...], Any]]: ...
def ndim(a: Any) -> int: ...

negative: Ufunc1
"""Compute `numpy.negative` of Tensors or arrays, differentiably."""
nextafter: Ufunc2
"""Compute `numpy.nextafter` of Tensors or arrays, differentiably."""

@overload
def nonzero(a: Tensor) -> tuple[Tensor, ...]: ...
@overload
def nonzero(a: Any) -> tuple[Any, ...]: ...

not_equal: Constant2
"""`numpy.not_equal` on the values; the result carries no gradient."""

def ones(
    shape: Any, dtype: DTypeLike | None = None, order: str = "C", *, device: str | None = None, like: Any = None
) -> Tensor: ...
def ones_like(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: _bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Tensor: ...
@overload
def outer(a: Tensor, b: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def outer(a: Any, b: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def outer(a: Any, b: Any, out: Any = None) -> Any: ...
@overload
def packbits(a: Tensor, /, axis: Axis = None, bitorder: Any = "big") -> Tensor: ...
@overload
def packbits(a: Any, /, axis: Axis = None, bitorder: Any = "big") -> Any: ...
@overload
def pad(array: Tensor, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Tensor: ...
@overload
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any: ...
@overload
def partition(a: Tensor, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Tensor: ...
@overload
def partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = "introselect", order: Any = None) -> Any: ...
@overload
def percentile(
    a: Tensor,
    q: Any,
    axis: Axis = None,
    out: Tensor | None = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = False,
    *,
    weights: Any = None,
) -> Tensor: ...
@overload
def percentile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: Any = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = False,
    *,
    weights: Any = None,
) -> Any: ...
@overload
def permute_dims(a: Tensor, axes: Axis = None) -> Tensor: ...
@overload
def permute_dims(a: Any, axes: Axis = None) -> Any: ...
@overload
def piecewise(x: Tensor, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any: ...
@overload
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any: ...
def place(arr: Any, mask: Any, vals: Any) -> None: ...
@overload
def poly(seq_of_zeros: Tensor) -> Tensor: ...
@overload
def poly(seq_of_zeros: Any) -> Any: ...
@overload
def polyadd(a1: Tensor, a2: Any) -> Tensor: ...
@overload
def polyadd(a1: Any, a2: Tensor) -> Tensor: ...
@overload
def polyadd(a1: Any, a2: Any) -> Any: ...
@overload
def polyder(p: Tensor, m: int = 1) -> Tensor: ...
@overload
def polyder(p: Any, m: int = 1) -> Any: ...
@overload
def polydiv(u: Tensor, v: Any) -> tuple[Tensor, Tensor]: ...
@overload
def polydiv(u: Any, v: Tensor) -> tuple[Tensor, Tensor]: ...
@overload
def polydiv(u: Any, v: Any) -> tuple[Any, Any]: ...
@overload
def polyfit(
    x: Tensor,
    y: Any,
    deg: Any,
    rcond: Any = None,
    full: Literal[False] = False,
    w: Any = None,
    cov: Literal[False] = False,
) -> Tensor: ...
@overload
def polyfit(
    x: Any,
    y: Tensor,
    deg: Any,
    rcond: Any = None,
    full: Literal[False] = False,
    w: Any = None,
    cov: Literal[False] = False,
) -> Tensor: ...
@overload
def polyfit(
    x: Tensor, y: Any, deg: Any, rcond: Any = None, *, full: Literal[True], w: Any = None, cov: Any = False
) -> tuple[Tensor, ...]: ...
@overload
def polyfit(
    x: Tensor,
    y: Any,
    deg: Any,
    rcond: Any = None,
    full: Literal[False] = False,
    w: Any = None,
    *,
    cov: Literal[True, "unscaled"],
) -> tuple[Tensor, ...]: ...
@overload
def polyfit(
    x: Tensor, y: Any, deg: Any, rcond: Any = None, full: _bool = False, w: Any = None, cov: Any = False
) -> Any: ...
@overload
def polyfit(
    x: Any, y: Any, deg: Any, rcond: Any = None, full: _bool = False, w: Any = None, cov: Any = False
) -> Any: ...
@overload
def polyint(p: Tensor, m: int = 1, k: Any = None) -> Tensor: ...
@overload
def polyint(p: Any, m: int = 1, k: Any = None) -> Any: ...
@overload
def polymul(a1: Tensor, a2: Any) -> Tensor: ...
@overload
def polymul(a1: Any, a2: Tensor) -> Tensor: ...
@overload
def polymul(a1: Any, a2: Any) -> Any: ...
@overload
def polysub(a1: Tensor, a2: Any) -> Tensor: ...
@overload
def polysub(a1: Any, a2: Tensor) -> Tensor: ...
@overload
def polysub(a1: Any, a2: Any) -> Any: ...
@overload
def polyval(p: Tensor, x: Any) -> Tensor: ...
@overload
def polyval(p: Any, x: Tensor) -> Tensor: ...
@overload
def polyval(p: Any, x: Any) -> Any: ...

positive: Ufunc1
"""Compute `numpy.positive` of Tensors or arrays, differentiably."""
pow: Ufunc2
"""Compute `numpy.pow` of Tensors or arrays, differentiably."""
power: Ufunc2
"""Compute `numpy.pow` of Tensors or arrays, differentiably."""

@overload
def prod(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def prod(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Any: ...
@overload
def ptp(a: Tensor, axis: Axis = None, out: Tensor | None = None, keepdims: _bool = ...) -> Tensor: ...
@overload
def ptp(a: Any, axis: Axis = None, out: Any = None, keepdims: _bool = ...) -> Any: ...
def put(a: Any, ind: Any, v: Any, mode: Any = "raise") -> None: ...
def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None: ...
def putmask(a: Any, /, mask: Any, values: Any) -> None: ...
@overload
def quantile(
    a: Tensor,
    q: Any,
    axis: Axis = None,
    out: Tensor | None = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = False,
    *,
    weights: Any = None,
) -> Tensor: ...
@overload
def quantile(
    a: Any,
    q: Any,
    axis: Axis = None,
    out: Any = None,
    overwrite_input: _bool = False,
    method: str = "linear",
    keepdims: _bool = False,
    *,
    weights: Any = None,
) -> Any: ...

rad2deg: Ufunc1
"""Compute `numpy.degrees` of Tensors or arrays, differentiably."""
radians: Ufunc1
"""Compute `numpy.deg2rad` of Tensors or arrays, differentiably."""

@overload
def ravel(a: Tensor, order: str = "C") -> Tensor: ...
@overload
def ravel(a: Any, order: str = "C") -> Any: ...
@overload
def ravel_multi_index(multi_index: Sequence[Tensor], dims: Any, mode: Any = "raise", order: Any = "C") -> Tensor: ...
@overload
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: Any = "C") -> Any: ...
@overload
def real(val: Tensor) -> Tensor: ...
@overload
def real(val: Any) -> Any: ...
@overload
def real_if_close(a: Tensor, tol: float = 100) -> Tensor: ...
@overload
def real_if_close(a: Any, tol: float = 100) -> Any: ...

reciprocal: Ufunc1
"""Compute `numpy.reciprocal` of Tensors or arrays, differentiably."""
remainder: Ufunc2
"""Compute `numpy.mod` of Tensors or arrays, differentiably."""

@overload
def repeat(a: Tensor, repeats: Any, axis: int | None = None) -> Tensor: ...
@overload
def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any: ...
def require(a: Any, dtype: DTypeLike | None = None, requirements: Any = None, *, like: Any = None) -> Tensor: ...
@overload
def reshape(a: Tensor, /, shape: Any, order: str = "C", *, copy: _bool | None = None) -> Tensor: ...
@overload
def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: _bool | None = None) -> Any: ...
@overload
def resize(a: Tensor, new_shape: Any) -> Tensor: ...
@overload
def resize(a: Any, new_shape: Any) -> Any: ...
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]: ...

right_shift: Constant2
"""`numpy.right_shift` on the values; the result carries no gradient."""
rint: Ufunc1
"""Compute `numpy.rint` of Tensors or arrays, differentiably."""

@overload
def roll(a: Tensor, shift: Any, axis: Axis = None) -> Tensor: ...
@overload
def roll(a: Any, shift: Any, axis: Axis = None) -> Any: ...
@overload
def rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor: ...
@overload
def rollaxis(a: Any, axis: int, start: int = 0) -> Any: ...
@overload
def roots(p: Tensor) -> Tensor: ...
@overload
def roots(p: Any) -> Any: ...
@overload
def rot90(m: Tensor, k: int = 1, axes: tuple[int, int] = ...) -> Tensor: ...
@overload
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = ...) -> Any: ...
@overload
def round(a: Tensor, decimals: int = 0, out: Tensor | None = None) -> Tensor: ...
@overload
def round(a: Any, decimals: int = 0, out: Any = None) -> Any: ...
@overload
def row_stack(tup: Sequence[Tensor], *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Tensor: ...
@overload
def row_stack(tup: Any, *, dtype: DTypeLike | None = None, casting: Any = "same_kind") -> Any: ...
def save(file: Any, arr: Any, allow_pickle: Any = True) -> None: ...
def savetxt(
    fname: Any,
    X: Any,
    fmt: Any = "%.18e",
    delimiter: Any = " ",
    newline: Any = ...,
    header: Any = "",
    footer: Any = "",
    comments: Any = "# ",
    encoding: Any = None,
) -> None: ...
def savez(file: Any, *args: Any, allow_pickle: Any = True, **kwds: Any) -> None: ...
def savez_compressed(file: Any, *args: Any, allow_pickle: Any = True, **kwds: Any) -> None: ...
@overload
def searchsorted(a: Tensor, v: Any, side: Any = "left", sorter: Any = None) -> Tensor: ...
@overload
def searchsorted(a: Any, v: Tensor, side: Any = "left", sorter: Any = None) -> Tensor: ...
@overload
def searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any: ...
@overload
def select(condlist: Any, choicelist: Tensor, default: Any = 0) -> Tensor: ...
@overload
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any: ...
@overload
def setdiff1d(ar1: Tensor, ar2: Any, assume_unique: _bool = False) -> Tensor: ...
@overload
def setdiff1d(ar1: Any, ar2: Tensor, assume_unique: _bool = False) -> Tensor: ...
@overload
def setdiff1d(ar1: Any, ar2: Any, assume_unique: _bool = False) -> Any: ...
@overload
def setxor1d(ar1: Tensor, ar2: Any, assume_unique: _bool = False) -> Tensor: ...
@overload
def setxor1d(ar1: Any, ar2: Tensor, assume_unique: _bool = False) -> Tensor: ...
@overload
def setxor1d(ar1: Any, ar2: Any, assume_unique: _bool = False) -> Any: ...
def shape(a: Any) -> tuple[int, ...]: ...
def shares_memory(a: Any, b: Any, /, max_work: Any = -1) -> _bool: ...

sign: Ufunc1
"""Compute `numpy.sign` of Tensors or arrays, differentiably."""
signbit: Constant1
"""`numpy.signbit` on the values; the result carries no gradient."""
sin: Ufunc1
"""Compute `numpy.sin` of Tensors or arrays, differentiably."""

@overload
def sinc(x: Tensor) -> Tensor: ...
@overload
def sinc(x: Any) -> Any: ...

sinh: Ufunc1
"""Compute `numpy.sinh` of Tensors or arrays, differentiably."""

def size(a: Any, axis: Axis = None) -> int: ...
@overload
def sort(
    a: Tensor,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: _bool | None = None,
    descending: _bool = False,
) -> Tensor: ...
@overload
def sort(
    a: Any,
    axis: int | None = -1,
    kind: Any = None,
    order: Any = None,
    *,
    stable: _bool | None = None,
    descending: _bool = False,
) -> Any: ...
@overload
def sort_complex(a: Tensor) -> Tensor: ...
@overload
def sort_complex(a: Any) -> Any: ...

spacing: Ufunc1
"""Compute `numpy.spacing` of Tensors or arrays, differentiably."""

@overload
def split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]: ...
@overload
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]: ...

sqrt: Ufunc1
"""Compute `numpy.sqrt` of Tensors or arrays, differentiably."""
square: Ufunc1
"""Compute `numpy.square` of Tensors or arrays, differentiably."""

@overload
def squeeze(a: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def squeeze(a: Any, axis: Axis = None) -> Any: ...
@overload
def stack(
    arrays: Sequence[Tensor],
    axis: int = 0,
    out: Tensor | None = None,
    *,
    dtype: DTypeLike | None = None,
    casting: str = "same_kind",
) -> Tensor: ...
@overload
def stack(
    arrays: Any, axis: int = 0, out: Any = None, *, dtype: DTypeLike | None = None, casting: str = "same_kind"
) -> Any: ...
@overload
def std(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    ddof: Any = 0,
    keepdims: _bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Tensor: ...
@overload
def std(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: _bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any: ...

subtract: Ufunc2
"""Compute `numpy.subtract` of Tensors or arrays, differentiably."""

@overload
def sum(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Tensor: ...
@overload
def sum(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    keepdims: _bool = False,
    initial: Any = ...,
    where: Any = True,
) -> Any: ...
@overload
def swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor: ...
@overload
def swapaxes(a: Any, axis1: int, axis2: int) -> Any: ...
@overload
def take(
    a: Tensor, indices: Any, axis: int | None = None, out: Tensor | None = None, mode: str = "raise"
) -> Tensor: ...
@overload
def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any: ...
@overload
def take_along_axis(arr: Tensor, indices: Any, axis: int | None = -1) -> Tensor: ...
@overload
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any: ...

tan: Ufunc1
"""Compute `numpy.tan` of Tensors or arrays, differentiably."""
tanh: Ufunc1
"""Compute `numpy.tanh` of Tensors or arrays, differentiably."""

@overload
def tensordot(a: Tensor, b: Any, axes: Any = 2) -> Tensor: ...
@overload
def tensordot(a: Any, b: Tensor, axes: Any = 2) -> Tensor: ...
@overload
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any: ...
@overload
def tile(A: Tensor, reps: Any) -> Tensor: ...
@overload
def tile(A: Any, reps: Any) -> Any: ...
@overload
def trace(
    a: Tensor,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DTypeLike | None = None, out: Any = None
) -> Any: ...
@overload
def transpose(a: Tensor, axes: Axis = None) -> Tensor: ...
@overload
def transpose(a: Any, axes: Axis = None) -> Any: ...
@overload
def trapezoid(y: Tensor, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Tensor: ...
@overload
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any: ...
def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = ..., *, like: Any = None) -> Tensor: ...
@overload
def tril(m: Tensor, k: int = 0) -> Tensor: ...
@overload
def tril(m: Any, k: int = 0) -> Any: ...
def tril_indices(n: Any, k: Any = 0, m: Any = None) -> tuple[Tensor, ...]: ...
@overload
def tril_indices_from(arr: Tensor, k: Any = 0) -> tuple[Tensor, ...]: ...
@overload
def tril_indices_from(arr: Any, k: Any = 0) -> tuple[Any, ...]: ...
@overload
def trim_zeros(filt: Tensor, trim: Any = "fb", axis: Axis = None) -> Tensor: ...
@overload
def trim_zeros(filt: Any, trim: Any = "fb", axis: Axis = None) -> Any: ...
@overload
def triu(m: Tensor, k: int = 0) -> Tensor: ...
@overload
def triu(m: Any, k: int = 0) -> Any: ...
def triu_indices(n: Any, k: Any = 0, m: Any = None) -> tuple[Tensor, ...]: ...
@overload
def triu_indices_from(arr: Tensor, k: Any = 0) -> tuple[Tensor, ...]: ...
@overload
def triu_indices_from(arr: Any, k: Any = 0) -> tuple[Any, ...]: ...

true_divide: Ufunc2
"""Compute `numpy.divide` of Tensors or arrays, differentiably."""
trunc: Ufunc1
"""Compute `numpy.trunc` of Tensors or arrays, differentiably."""

@overload
def union1d(ar1: Tensor, ar2: Any) -> Tensor: ...
@overload
def union1d(ar1: Any, ar2: Tensor) -> Tensor: ...
@overload
def union1d(ar1: Any, ar2: Any) -> Any: ...
@overload
def unique(
    ar: Tensor,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> Tensor: ...
@overload
def unique(
    ar: Tensor,
    *,
    return_index: Literal[True],
    return_inverse: _bool = False,
    return_counts: _bool = False,
    axis: int | None = None,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> tuple[Tensor, ...]: ...
@overload
def unique(
    ar: Tensor,
    return_index: Literal[False] = False,
    *,
    return_inverse: Literal[True],
    return_counts: _bool = False,
    axis: int | None = None,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> tuple[Tensor, ...]: ...
@overload
def unique(
    ar: Tensor,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    *,
    return_counts: Literal[True],
    axis: int | None = None,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> tuple[Tensor, ...]: ...
@overload
def unique(
    ar: Tensor,
    return_index: _bool = False,
    return_inverse: _bool = False,
    return_counts: _bool = False,
    axis: int | None = None,
    *,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> Any: ...
@overload
def unique(
    ar: Any,
    return_index: _bool = False,
    return_inverse: _bool = False,
    return_counts: _bool = False,
    axis: int | None = None,
    *,
    equal_nan: _bool = True,
    sorted: _bool = True,
) -> Any: ...
@overload
def unique_all(x: Tensor) -> UniqueAllResult: ...
@overload
def unique_all(x: Any) -> Any: ...
@overload
def unique_counts(x: Tensor) -> UniqueCountsResult: ...
@overload
def unique_counts(x: Any) -> Any: ...
@overload
def unique_inverse(x: Tensor) -> UniqueInverseResult: ...
@overload
def unique_inverse(x: Any) -> Any: ...
@overload
def unique_values(x: Tensor) -> Tensor: ...
@overload
def unique_values(x: Any) -> Any: ...
@overload
def unpackbits(a: Tensor, /, axis: Axis = None, count: Any = None, bitorder: Any = "big") -> Tensor: ...
@overload
def unpackbits(a: Any, /, axis: Axis = None, count: Any = None, bitorder: Any = "big") -> Any: ...
@overload
def unravel_index(indices: Tensor, shape: Any, order: Any = "C") -> tuple[Tensor, ...]: ...
@overload
def unravel_index(indices: Any, shape: Any, order: Any = "C") -> tuple[Any, ...]: ...
@overload
def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]: ...
@overload
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]: ...
@overload
def unwrap(p: Tensor, discont: Any = None, axis: int = -1, *, period: Any = 6.283185307179586) -> Tensor: ...
@overload
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 6.283185307179586) -> Any: ...
@overload
def vander(x: Tensor, N: int | None = None, increasing: _bool = False) -> Tensor: ...
@overload
def vander(x: Any, N: int | None = None, increasing: _bool = False) -> Any: ...
@overload
def var(
    a: Tensor,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Tensor | None = None,
    ddof: Any = 0,
    keepdims: _bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Tensor: ...
@overload
def var(
    a: Any,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: _bool = False,
    *,
    where: Any = True,
    mean: Any = None,
    correction: Any = None,
) -> Any: ...
@overload
def vdot(a: Tensor, b: Any, /) -> Tensor: ...
@overload
def vdot(a: Any, b: Tensor, /) -> Tensor: ...
@overload
def vdot(a: Any, b: Any, /) -> Any: ...
@overload
def vecdot(
    x1: Tensor,
    x2: Any,
    /,
    out: Tensor | None = None,
    *,
    axes: Any = None,
    axis: int | None = None,
    keepdims: _bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def vecdot(
    x1: Any,
    x2: Tensor,
    /,
    out: Tensor | None = None,
    *,
    axes: Any = None,
    axis: int | None = None,
    keepdims: _bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def vecdot(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    axes: Any = None,
    axis: int | None = None,
    keepdims: _bool = False,
    dtype: DTypeLike | None = None,
) -> Any: ...
@overload
def vecmat(
    x1: Tensor, x2: Any, /, out: Tensor | None = None, *, axes: Any = None, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def vecmat(
    x1: Any, x2: Tensor, /, out: Tensor | None = None, *, axes: Any = None, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def vecmat(x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, dtype: DTypeLike | None = None) -> Any: ...
@overload
def vsplit(ary: Tensor, indices_or_sections: Any) -> list[Tensor]: ...
@overload
def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]: ...
@overload
def vstack(tup: Sequence[Tensor], *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> Tensor: ...
@overload
def vstack(tup: Any, *, dtype: DTypeLike | None = None, casting: str = "same_kind") -> Any: ...
@overload
def where(condition: Tensor, /) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Any, /) -> tuple[Any, ...]: ...
@overload
def where(condition: Tensor, x: Any, y: Any, /) -> Tensor: ...
@overload
def where(condition: Any, x: Tensor, y: Any, /) -> Tensor: ...
@overload
def where(condition: Any, x: Any, y: Tensor, /) -> Tensor: ...
@overload
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any: ...
def zeros(
    shape: Any, dtype: DTypeLike | None = None, order: str = "C", *, device: str | None = None, like: Any = None
) -> Tensor: ...
def zeros_like(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: _bool = True,
    shape: Any = None,
    *,
    device: str | None = None,
) -> Tensor: ...
