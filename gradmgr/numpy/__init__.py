"""NumPy's namespace on Tensors: the same names and keywords, differentiable.

Functions give Tensors where any argument is one and plain arrays for plain arrays; creation
functions give Tensors. Plain `numpy.f(tensor)` comes here too. A function that NumPy has and this
module does not raises, naming itself.

>>> import gradmgr.numpy as np
>>> np.sum(np.ones((2, 3)), axis=0)
Tensor([2., 2., 2.])
"""

from __future__ import annotations

import sys as _sys
from typing import Any as _Any

import numpy as _numpy  # noqa: ICN001  # np would be a public name of this namespace
from numpy import (
    bool,
    complex64,
    complex128,
    dtype,
    e,
    errstate,
    euler_gamma,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    inf,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    nan,
    newaxis,
    pi,
    uint8,
    uint16,
    uint32,
    uint64,
)

from gradmgr._elementwise import conj as _conj
from gradmgr.numpy import _dispatch, fft, linalg
from gradmgr.ops import arithmetic as _arithmetic
from gradmgr.ops.arithmetic import clip
from gradmgr.ops.constant import (
    all,
    allclose,
    any,
    argmax,
    argmin,
    argsort,
    argwhere,
    array_equal,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    count_nonzero,
    equal,
    flatnonzero,
    greater,
    greater_equal,
    invert,
    isclose,
    iscomplexobj,
    isfinite,
    isinf,
    isnan,
    isrealobj,
    left_shift,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    nonzero,
    not_equal,
    result_type,
    right_shift,
    searchsorted,
    signbit,
)
from gradmgr.ops.convert import astype, copy
from gradmgr.ops.create import (
    arange,
    array,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    identity,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from gradmgr.ops.join import (
    array_split,
    column_stack,
    concatenate,
    dsplit,
    dstack,
    hsplit,
    hstack,
    split,
    stack,
    unstack,
    vsplit,
    vstack,
)
from gradmgr.ops.pick import bincount, round, take, take_along_axis, where
from gradmgr.ops.products import dot, einsum, inner, outer, tensordot, vdot, vecdot
from gradmgr.ops.products import matmul as _matmul
from gradmgr.ops.reduce import cumprod, cumsum, max, mean, min, prod, std, sum, var
from gradmgr.ops.shape import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    broadcast_arrays,
    broadcast_to,
    diag,
    diagonal,
    expand_dims,
    flip,
    fliplr,
    flipud,
    matrix_transpose,
    moveaxis,
    ndim,
    ravel,
    repeat,
    reshape,
    roll,
    rollaxis,
    rot90,
    shape,
    size,
    squeeze,
    swapaxes,
    tile,
    trace,
    transpose,
    tril,
    triu,
)

absolute = abs = _arithmetic.absolute.door
add = _arithmetic.add.door
arccos = acos = _arithmetic.arccos.door
arccosh = acosh = _arithmetic.arccosh.door
arcsin = asin = _arithmetic.arcsin.door
arcsinh = asinh = _arithmetic.arcsinh.door
arctan = atan = _arithmetic.arctan.door
arctan2 = atan2 = _arithmetic.arctan2.door
arctanh = atanh = _arithmetic.arctanh.door
cbrt = _arithmetic.cbrt.door
ceil = _arithmetic.ceil.door
conjugate = conj = _conj.door
cos = _arithmetic.cos.door
cosh = _arithmetic.cosh.door
deg2rad = radians = _arithmetic.deg2rad.door
divide = true_divide = _arithmetic.divide.door
exp = _arithmetic.exp.door
exp2 = _arithmetic.exp2.door
expm1 = _arithmetic.expm1.door
fabs = _arithmetic.fabs.door
floor = _arithmetic.floor.door
floor_divide = _arithmetic.floor_divide.door
fmax = _arithmetic.fmax.door
fmin = _arithmetic.fmin.door
fmod = _arithmetic.fmod.door
hypot = _arithmetic.hypot.door
imag = _arithmetic.imag.door
log = _arithmetic.log.door
log10 = _arithmetic.log10.door
log1p = _arithmetic.log1p.door
log2 = _arithmetic.log2.door
logaddexp = _arithmetic.logaddexp.door
logaddexp2 = _arithmetic.logaddexp2.door
matmul = _matmul.door
maximum = _arithmetic.maximum.door
minimum = _arithmetic.minimum.door
multiply = _arithmetic.multiply.door
negative = _arithmetic.negative.door
positive = _arithmetic.positive.door
power = pow = _arithmetic.power.door
rad2deg = degrees = _arithmetic.rad2deg.door
real = _arithmetic.real.door
reciprocal = _arithmetic.reciprocal.door
remainder = mod = _arithmetic.remainder.door
rint = _arithmetic.rint.door
sign = _arithmetic.sign.door
sin = _arithmetic.sin.door
sinh = _arithmetic.sinh.door
sqrt = _arithmetic.sqrt.door
square = _arithmetic.square.door
subtract = _arithmetic.subtract.door
tan = _arithmetic.tan.door
tanh = _arithmetic.tanh.door
trunc = _arithmetic.trunc.door


def angle(z: _Any, deg: _Any = False) -> _Any:
    """Return the angle of complex numbers as `numpy.angle`, in radians or degrees."""
    a = _arithmetic.angle.door(z)
    return rad2deg(a) if deg else a


amax, amin, around = max, min, round
concat, permute_dims = concatenate, transpose

__all__ = [
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
    "argsort",
    "argwhere",
    "around",
    "array",
    "array_equal",
    "array_split",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "bincount",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "cbrt",
    "ceil",
    "clip",
    "column_stack",
    "complex64",
    "complex128",
    "concat",
    "concatenate",
    "conj",
    "conjugate",
    "copy",
    "cos",
    "cosh",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "deg2rad",
    "degrees",
    "diag",
    "diagonal",
    "divide",
    "dot",
    "dsplit",
    "dstack",
    "dtype",
    "e",
    "einsum",
    "empty",
    "empty_like",
    "equal",
    "errstate",
    "euler_gamma",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "fabs",
    "fft",
    "finfo",
    "flatnonzero",
    "flip",
    "fliplr",
    "flipud",
    "float16",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hsplit",
    "hstack",
    "hypot",
    "identity",
    "iinfo",
    "imag",
    "inf",
    "inner",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "isclose",
    "iscomplexobj",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "isrealobj",
    "left_shift",
    "less",
    "less_equal",
    "linalg",
    "linspace",
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
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "nan",
    "ndim",
    "negative",
    "newaxis",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "prod",
    "rad2deg",
    "radians",
    "ravel",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "right_shift",
    "rint",
    "roll",
    "rollaxis",
    "rot90",
    "round",
    "searchsorted",
    "shape",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "size",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "trace",
    "transpose",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unstack",
    "var",
    "vdot",
    "vecdot",
    "vsplit",
    "vstack",
    "where",
    "zeros",
    "zeros_like",
]

_dispatch.bind(_sys.modules[__name__])


def __getattr__(name: str) -> _Any:
    raise _dispatch.missing(name, "", _numpy)


def __dir__() -> list[str]:
    return sorted(__all__)
