"""Bessel functions; numpy.i0.

Formulas are those of the NIST Digital Library of Mathematical Functions (DLMF), chapter 10.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import OpFunction, conj_of, elementwise
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr._engine.views import new_array
from gradmgr.ops.arithmetic import absolute, sign
from gradmgr.ops.convert import lift
from gradmgr.ops.naming import named
from gradmgr.ops.special_kernels import (
    ROOT_2,
    call_with_parameter,
    constant_parameter,
    library_function,
    quiet,
    scipy_kernel,
    to_double,
)

_NODES = 96  # on the circle; for arguments up to _FAR the rule's error is below 1e-24 of the result
_FAR = 50.0


def _fall_far(x: Any, k: int) -> Any:
    """Return the integral of `_fall_kernel` for large x, term by term (as DLMF 10.40.1): 30 terms from 50 on."""
    coefficients, c = [], math.gamma(k + 0.5) / (math.pi * ROOT_2)
    for j in range(30):
        coefficients.append(c)
        c *= (j + 0.5) / (2 * (j + 1)) * (k + j + 0.5)
    total = np.zeros_like(x)
    for c in coefficients[::-1]:
        total = total / x + c
    return total * x ** (-k - 0.5)


@quiet
def _fall_kernel(x: Any, k: int) -> Any:
    """Return the mean over the circle of u^k exp(-x u), u = 1 - cos t, for x >= 0; for k = 0 it is i0e.

    By the trapezoid rule, which converges faster than any power for periodic functions. Nothing cancels.
    """
    x, dtype = to_double(x)
    near = np.minimum(x, _FAR)
    total = np.zeros_like(x)
    for j in range(_NODES // 2 + 1):
        u = 2 * math.sin(math.pi * j / _NODES) ** 2
        share = (1 if j in (0, _NODES // 2) else 2) / _NODES
        total = total + share * u**k * np.exp(-near * u)
    return np.where(x <= _FAR, total, _fall_far(np.maximum(x, _FAR), k)).astype(dtype)


_fall: Function = custom(
    "i0e_fall",
    lambda x, k: _fall_kernel(x, k),
    vjp={"x": lambda g, x, k: -g * _fall(x, k + 1)},
    jvp={"x": lambda t, x, k: -t * _fall(x, k + 1)},
)


@quiet
def _i0_slope_kernel(x: Any, k: int) -> Any:
    """Return the k-th derivative of I0, the mean over the circle of c^k exp(x c), c = cos t (DLMF 10.32.1).

    The nodes at c and -c taken together give a cosh or a sinh, so that nothing cancels at small x.
    """
    x, dtype = to_double(x)
    size, together = np.abs(x), np.sinh if k % 2 else np.cosh
    near = np.minimum(size, _FAR)
    total = np.full_like(x, 2 / _NODES if k == 0 else 0.0)  # c = 0
    for j in range(_NODES // 4):
        c = math.cos(2 * math.pi * j / _NODES)
        total = total + (2 if j == 0 else 4) / _NODES * c**k * together(near * c)
    large, far = np.maximum(size, _FAR), np.zeros_like(x)
    for j in range(k + 1):
        far = far + math.comb(k, j) * (-1) ** j * _fall_far(large, j)
    far = np.where(size == np.inf, size, np.exp(size) * far)
    z = np.where(size <= _FAR, total, far)
    return (z * np.sign(x) if k % 2 else z).astype(dtype)


_i0_slope: Function = custom(
    "i0_slope",
    lambda x, k: _i0_slope_kernel(x, k),
    vjp={"x": lambda g, x, k: g * _i0_slope(x, k + 1)},
    jvp={"x": lambda t, x, k: t * _i0_slope(x, k + 1)},
)

_numpy_i0 = custom(
    "numpy_i0",
    lambda x: np.i0(x),
    vjp={"x": lambda g, x: g * _i0_slope(x, 1)},
    jvp={"x": lambda t, x: t * _i0_slope(x, 1)},
    view_of=new_array,
)


def numpy_i0(x: Any) -> Any:
    """Return the modified Bessel function of order 0 as `numpy.i0`, without SciPy."""
    return _numpy_i0(lift(x))


numpy_i0.__name__ = numpy_i0.__qualname__ = "i0"


i1 = elementwise("i1", scipy_kernel("i1"), lambda g, x: g * _i0_slope(x, 2))
i0 = elementwise("i0", scipy_kernel("i0"), lambda g, x: g * i1(x))
i0e = elementwise("i0e", scipy_kernel("i0e"), lambda g, x: -g * (sign(x) * _fall(absolute(x), 1)))
i1e = elementwise("i1e", scipy_kernel("i1e"), lambda g, x: g * (_fall(absolute(x), 2) - _fall(absolute(x), 1)))


def _jv_of_integer(n: int, x: Any) -> Any:
    """J_n where the library has J_0 and J_1 only, as CuPy.

    Beyond x = n and 1 by the recurrence upwards from them, stable there (DLMF 10.6.1); before it the mean of
    cos(x sin t - n t) over the circle (DLMF 10.9.2): the trapezoid rule's error is J of an order far beyond x.
    """
    x, dtype = to_double(x)
    sign_of_order, n = -1 if n < 0 and n % 2 else 1, abs(n)
    size, limit = np.abs(x), max(n, 1)
    far = np.maximum(size, limit)
    z, above = library_function("j0", (x,))(far), library_function("j1", (x,))(far)
    for k in range(1, n + 1):
        z, above = above, 2 * k / far * above - z
    near, half = np.minimum(size, limit), (3 * n + 21) // 2
    total = np.ones_like(x)
    for j in range(1, half + 1):
        t = 2 * math.pi * j / (2 * half + 1)
        total = total + 2 * np.cos(near * math.sin(t) - n * t)
    z = sign_of_order * np.where(size <= limit, total / (2 * half + 1), z)
    return (z * np.sign(x) if n % 2 else z).astype(dtype)


def _bessel(name: str, v: Any, z: Any) -> Any:
    if name == "jv" and isinstance(v, int) and libraries.root(z) is not np and z.dtype.kind != "c":
        return _jv_of_integer(v, z)
    return library_function(name, (z, v))(v, z)


def _op_of_order(name: str, sign_above: float) -> Function:
    """Make the op of a Bessel function: its slope is half of that one order lower, and of that one higher."""

    def slope(z: Any, v: Any) -> Any:
        below, above = op(z, v - 1), op(z, v + 1)
        return (below + above if sign_above > 0 else below - above) * 0.5

    op = custom(
        name,
        lambda z, v: _bessel(name, v, z),
        vjp={"z": lambda g, z, v: g * conj_of(slope(z, v))},
        jvp={"z": lambda t, z, v: t * slope(z, v)},
    )
    return op


def _function_of_order(name: str, op: Function) -> Function:
    kernel = scipy_kernel(name)

    def function(v: Any, z: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
        if out is not None or where is not True or dtype is not None:
            return with_keywords(function, kernel, (v, z), out, where, dtype)
        if not isinstance(v, Tensor) and not isinstance(z, Tensor):
            return kernel(v, z)
        order = constant_parameter(v, name, "v")
        return call_with_parameter(op, z if isinstance(z, Tensor) else libraries.need_operand(z, name), order, v)

    text = f"Return the Bessel function whose order comes first as `scipy.special.{name}`; the order is a constant."
    return named(function, name, text)


_jv = _op_of_order("jv", -1)
j1 = elementwise("j1", scipy_kernel("j1"), lambda g, x: g * ((j0(x) - _jv(x, 2)) * 0.5))
j0: OpFunction = elementwise("j0", scipy_kernel("j0"), lambda g, x: -g * j1(x))
jv = _function_of_order("jv", _jv)
iv = _function_of_order("iv", _op_of_order("iv", +1))
