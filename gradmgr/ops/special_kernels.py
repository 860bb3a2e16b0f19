"""Kernels of special functions: SciPy's or CuPy's functions where needed, NumPy expressions where these suffice.

What models need (expit, xlogy and others) is computed by NumPy expressions in the dtypes of SciPy's loops; all else
by SciPy's functions where SciPy is installed, and by those of cupyx on a GPU.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, blocks, libraries
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._engine.ufunc_keywords import with_keywords
from gradmgr.ops.convert import lift, untracked_value

Kernel = Callable[..., Any]

ROOT_PI = math.sqrt(math.pi)
ROOT_2 = math.sqrt(2.0)
ROOT_2PI = math.sqrt(2 * math.pi)

# ---------------------------------------------------------------- kernels: SciPy's


def _library(name: str, arrays: tuple[Any, ...]) -> Any:
    """Return the module of special functions for these arrays."""
    if libraries.loaded_cupy() is not None and any(libraries.root(a) is not np for a in arrays):
        return importlib.import_module("cupyx.scipy.special")
    try:
        import scipy.special as module
    except ImportError as error:
        raise errors.MissingDependencyError(
            f"special.{name} needs SciPy, which is not installed; pip install scipy"
        ) from error
    return module


def library_function(name: str, arrays: tuple[Any, ...]) -> Kernel:
    module = _library(name, arrays)
    try:
        function: Kernel = getattr(module, name)
    except AttributeError:
        on_gpu = not module.__name__.startswith("scipy")
        remedy = "move to the CPU with .to('cpu') for it" if on_gpu else "a newer SciPy may have it"
        raise errors.UnsupportedFunctionError(f"{module.__name__} has no {name}; {remedy}") from None
    return function if module.__name__.startswith("scipy") else _explaining_errors(name, function)


def _explaining_errors(name: str, cupy_function: Kernel) -> Kernel:
    """Let a function of CuPy's say what it lacks."""

    def called(*args: Any, **keywords: Any) -> Any:
        return libraries.foreign(cupy_function, *args)(*args, **keywords)

    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return called(*args, **keywords) if keywords else batched.call_elementwise(called, *args)
        except TypeError:
            libraries.check_mixed(name, *args)
            raise

    return call


def scipy_kernel(name: str) -> Kernel:
    """Make a kernel of SciPy's function, which is looked up, and SciPy imported, when it is called.

    Keywords are not left to SciPy: with where= its functions write outside of their arrays (1.17).
    """

    def kernel(*args: Any, **keywords: Any) -> Any:
        if keywords:
            return call_with_keywords(name, kernel, args, **keywords)
        if len(args) == 1 and args[0].__class__ is np.ndarray:
            module = sys.modules.get("scipy.special")  # an import takes longer than 8 elements in its functions
            if module is not None:
                return getattr(module, name)(*args)
        return library_function(name, args)(*args)

    return kernel


# ---------------------------------------------------------------- kernels by NumPy expressions

# Since SciPy 1.18 their loops for singles come first: halves and short integers become singles, before that doubles.
_REORDERED = frozenset(("expit", "exprel", "gauss", "log_expit", "log_ndtr", "xlog1py", "xlogy"))


def narrow_dtype() -> np.dtype[Any]:
    """Return what halves and short integers become: as in the SciPy that is installed, else as in the newest."""
    try:
        import scipy
    except ImportError:
        return libraries.F4
    return libraries.F8 if np.lib.NumpyVersion(scipy.__version__) < "1.18.0" else libraries.F4


def loop_dtype(name: str, loops: str, args: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the dtype in which SciPy computes: that of all operands, else the first loop to which all can be cast."""
    kinds = [_dtype_or_number(a) for a in args]
    dtypes = [k for k in kinds if isinstance(k, np.dtype)] or [np.result_type(*kinds)]
    if len(dtypes) == len(kinds) and len(set(dtypes)) == 1 and dtypes[0].char in loops:
        return dtypes[0]
    if name in _REORDERED and narrow_dtype() is libraries.F4:
        loops = loops.replace("df", "fd").replace("DF", "FD")
    planar = any(isinstance(k, complex) for k in kinds)
    for char in loops:
        if all(np.can_cast(dtype, char) for dtype in dtypes) and (char in "FD" or not planar):
            return np.dtype(char)
    raise TypeError(
        f"special.{name} computes in {', '.join(np.dtype(char).name for char in loops)}, to which "
        f"{' and '.join(str(k) for k in kinds)} cannot be cast safely"
    )


def _dtype_or_number(a: Any) -> Any:
    """Return what an operand contributes to the dtype: its own dtype, or a Python number itself."""
    if hasattr(a, "dtype"):
        return a.dtype
    return a if isinstance(a, (int, float, complex)) else np.asarray(a).dtype


def numpy_kernel(name: str, loops: str, compute: Kernel) -> Kernel:
    """Make a kernel of a function of arrays of one dtype, one of `loops` (SciPy's, in their order before 1.18)."""

    def kernel(*args: Any, **keywords: Any) -> Any:
        if keywords:
            return call_with_keywords(name, kernel, args, **keywords)
        first = args[0]
        if first.__class__ is np.ndarray and len(args) == 1 and first.dtype.char in loops:
            return blocks.mapped(compute, first)
        if not libraries.PLAIN.issuperset(map(type, args)):
            libraries.check_plain(args)
        dtype = loop_dtype(name, loops, args)
        xp = libraries.namespace_of(*args)
        return blocks.mapped(compute, *[xp.asarray(a, dtype) for a in args])[()]

    return kernel


def call_with_keywords(name: str, kernel: Kernel, args: tuple[Any, ...], **keywords: Any) -> Any:
    """Do for plain arrays what a ufunc's keywords ask."""

    def on_tensors(*parts: Any) -> Any:
        return wrap(kernel(*[raw(part) for part in parts]))

    on_tensors.__name__ = name
    asked = {"out": None, "where": True, "dtype": None} | keywords
    lifted = [a if isinstance(a, (int, float, complex)) else wrap(lift(a)) for a in args]
    lifted[0] = lifted[0] if isinstance(lifted[0], Tensor) else wrap(np.asarray(lifted[0]))
    return raw(with_keywords(on_tensors, kernel, tuple(lifted), asked["out"], asked["where"], asked["dtype"]))


# As SciPy's functions are: infinities and NaN without a warning. (It hides a function's parameters from `custom`.)
quiet = np.errstate(all="ignore")


def to_double(x: Any) -> tuple[Any, np.dtype[Any]]:
    """Return x in double precision, and the dtype its result is to have: x's own, but not of a half."""
    wide = np.result_type(x.dtype, np.float64)
    return x.astype(wide), wide if x.dtype.itemsize <= 2 else x.dtype


def constant_parameter(value: Any, function: str, name: str) -> Any:
    """Return a parameter in which there is no derivative, as an array or number.

    Raises:
        UnsupportedFunctionError: a manager tracks it.
    """
    value = untracked_value(value, f"special.{function}", name)
    libraries.check_plain(value)
    value = value if isinstance(value, (int, float, complex)) or libraries.is_array(value) else np.asarray(value)
    if getattr(value, "dtype", np.dtype(float)).kind in "bu":  # derivatives ask for the order below 0
        value = value.astype(np.float32 if value.dtype.itemsize <= 2 else np.float64)
    return value


def call_with_parameter(op: Function, x: Any, parameter: Any, given: Any) -> Any:
    """Call an op of x; a Tensor as parameter gives a Tensor, too."""
    z = op(x, parameter)
    return wrap(z) if isinstance(given, Tensor) and not isinstance(z, Tensor) else z
