"""Special functions under scipy.special's names and definitions; numpy.i0.

What models need (expit, xlogy and kin) is computed by NumPy expressions of our own, in the
dtypes of SciPy's loops; what is truly special by SciPy's functions where SciPy is installed, and by
those of cupyx on a GPU. A derivative whose textbook form would take the difference of nearly equal
numbers goes through a family of functions instead, each the derivative of the one before; the
kernels of these families are written out here. Formulas are those of the NIST Digital Library of
Mathematical Functions (DLMF), chapters 5, 7 and 10, where no other source is named.
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
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.custom import custom
from gradmgr._engine.elementwise import OpFunction, conj_of, elementwise
from gradmgr._engine.mutation import as_type, store, with_keywords
from gradmgr._engine.op import Function
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops import _normal_distribution, arithmetic
from gradmgr.ops.arithmetic import absolute, choose, exp, log, sign, where_kernel
from gradmgr.ops.convert import lift, untracked
from gradmgr.ops.reduce import sum
from gradmgr.ops.shape import expand_dims

Kernel = Callable[..., Any]

_ROOT_PI = math.sqrt(math.pi)
_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2 * math.pi)

# ---------------------------------------------------------------- kernels: SciPy's


def _library(name: str, arrays: tuple[Any, ...]) -> Any:
    """Return the module of special functions for these arrays."""
    if libraries.loaded_cupy() is not None and any(libraries.namespace(a) is not np for a in arrays):
        return importlib.import_module("cupyx.scipy.special")
    try:
        import scipy.special as module
    except ImportError as error:
        raise errors.MissingDependencyError(
            f"special.{name} needs SciPy, which is not installed; pip install scipy"
        ) from error
    return module


def _library_function(name: str, arrays: tuple[Any, ...]) -> Kernel:
    module = _library(name, arrays)
    try:
        function: Kernel = getattr(module, name)
    except AttributeError:
        raise errors.UnsupportedFunctionError(
            f"{module.__name__} has no {name}; move to the CPU with .to('cpu') for it"
        ) from None
    return function if module.__name__.startswith("scipy") else _explained(name, function)


def _explained(name: str, cupys: Kernel) -> Kernel:
    """Let a function of CuPy's say what it lacks."""

    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return cupys(*args, **keywords) if keywords else batched.elementwise(cupys, *args)
        except TypeError:
            libraries.check_mixed(name, *args)
            raise

    return call


def _scipys(name: str) -> Kernel:
    """Make a kernel of SciPy's function, which is looked up, and SciPy imported, when it is called.

    Keywords are not left to SciPy: with where= its functions write outside of their arrays (1.17).
    """

    def kernel(*args: Any, **keywords: Any) -> Any:
        if keywords:
            return _with_keywords(name, kernel, args, **keywords)
        if len(args) == 1 and args[0].__class__ is np.ndarray:
            module = sys.modules.get("scipy.special")  # an import takes longer than 8 elements in its functions
            if module is not None:
                return getattr(module, name)(*args)
        return _library_function(name, args)(*args)

    return kernel


# ---------------------------------------------------------------- kernels: our own

# Since SciPy 1.18 their loops for singles come first: halves and short integers become singles, before that doubles.
_REORDERED = frozenset(("expit", "exprel", "gauss", "log_expit", "log_ndtr", "xlog1py", "xlogy"))


def _narrow() -> np.dtype[Any]:
    """Return what halves and short integers become: as in the SciPy that is installed, else as in the newest."""
    try:
        import scipy
    except ImportError:
        return libraries.F4
    return libraries.F8 if np.lib.NumpyVersion(scipy.__version__) < "1.18.0" else libraries.F4


def _loop(name: str, loops: str, args: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the dtype in which SciPy computes: that of all operands, else the first loop to which all can be cast."""
    kinds = [_kind(a) for a in args]
    dtypes = [k for k in kinds if isinstance(k, np.dtype)] or [np.result_type(*kinds)]
    if len(dtypes) == len(kinds) and len(set(dtypes)) == 1 and dtypes[0].char in loops:
        return dtypes[0]
    if name in _REORDERED and _narrow() is libraries.F4:
        loops = loops.replace("df", "fd").replace("DF", "FD")
    planar = any(isinstance(k, complex) for k in kinds)
    for char in loops:
        if all(np.can_cast(dtype, char) for dtype in dtypes) and (char in "FD" or not planar):
            return np.dtype(char)
    raise TypeError(
        f"special.{name} computes in {', '.join(np.dtype(char).name for char in loops)}, to which "
        f"{' and '.join(str(k) for k in kinds)} cannot be cast safely"
    )


def _kind(a: Any) -> Any:
    """What an operand contributes to the dtype: its own, but a Python number only itself."""
    if hasattr(a, "dtype"):
        return a.dtype
    return a if isinstance(a, (int, float, complex)) else np.asarray(a).dtype


def _own(name: str, loops: str, compute: Kernel) -> Kernel:
    """Make a kernel of a function of arrays of one dtype, one of `loops` (SciPy's, in their order before 1.18)."""

    def kernel(*args: Any, **keywords: Any) -> Any:
        if keywords:
            return _with_keywords(name, kernel, args, **keywords)
        first = args[0]
        if first.__class__ is np.ndarray and len(args) == 1 and first.dtype.char in loops:
            return blocks.mapped(compute, first)
        dtype = _loop(name, loops, args)
        xp = libraries.namespace_of(*args)
        return blocks.mapped(compute, *[xp.asarray(a, dtype) for a in args])[()]

    return kernel


def _from_normal(name: str, compute: Kernel, otherwise: Kernel | None = None) -> Kernel:
    """Make a kernel of one of `_normal`, which takes large arrays, and any real numbers where SciPy is missing.

    Args:
        name: the function's.
        compute: of arrays of NumPy's, in single or double precision.
        otherwise: the kernel for all else; SciPy's function of that name unless given.
    """
    otherwise = _scipys(name) if otherwise is None else otherwise

    def kernel(x: Any, **keywords: Any) -> Any:
        if keywords:
            return _with_keywords(name, kernel, (x,), **keywords)
        if _normal_distribution.pays(x):
            return compute(x)
        try:
            return otherwise(x)
        except errors.MissingDependencyError:
            if is_complex(x):
                raise
        x = x if batched.differs(x) else np.asarray(x)
        return batched.elementwise(compute, x.astype(_loop(name, "df", (x,)), copy=False))

    return kernel


def _with_keywords(name: str, kernel: Kernel, args: tuple[Any, ...], **keywords: Any) -> Any:
    """Do for plain arrays what a ufunc's keywords ask."""

    def door(*parts: Any) -> Any:
        return wrap(kernel(*[raw(part) for part in parts]))

    door.__name__ = name
    asked = {"out": None, "where": True, "dtype": None} | keywords
    held = [a if isinstance(a, (int, float, complex)) else wrap(lift(a)) for a in args]
    held[0] = held[0] if isinstance(held[0], Tensor) else wrap(np.asarray(held[0]))
    return raw(with_keywords(door, kernel, tuple(held), asked["out"], asked["where"], asked["dtype"]))


# As SciPy's functions are: infinities and NaN without a warning. (It hides a function's parameters from `custom`.)
_quiet = np.errstate(all="ignore")


def _doubled(x: Any) -> tuple[Any, np.dtype[Any]]:
    """Return x in double precision, and the dtype its result is to have: x's own, but not of a half."""
    wide = np.result_type(x.dtype, np.float64)
    return x.astype(wide), wide if x.dtype.itemsize <= 2 else x.dtype


# ---------------------------------------------------------------- the logistic function


@_quiet
def _expit_kernel(x: Any) -> Any:
    z = np.exp(-x)
    z += 1
    return np.reciprocal(z)


@_quiet
def _logit_kernel(x: Any) -> Any:
    """log(x / (1 - x)); about 1/2 by the area tangent, which is exact where the quotient is rounded to 1."""
    return where_kernel(2 * np.arctanh(2 * x - 1), np.log(x / (1 - x)), np.abs(x - 0.5) < 0.2)


@_quiet
def _log_expit_kernel(x: Any) -> Any:
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


_expit = elementwise(
    "expit",
    _own("expit", "dfg", _expit_kernel),
    "s = out * out; multiply(subtract(out, s, s), g, s) if s.__class__ is g.__class__ is ndarray else (out - s) * g",
)
_logit = elementwise("logit", _own("logit", "dfg", _logit_kernel), "g / (x * (1 - x))")
_log_expit = elementwise("log_expit", _own("log_expit", "dfg", _log_expit_kernel), lambda g, x: g * _expit(-x))
expit = _expit
logit = _logit
log_expit = _log_expit

# ---------------------------------------------------------------- x log y, entropies


def _is_nothing(x: Any, y: Any, edge: float) -> Any:
    """Where x is 0 and log y has no derivative: the product is 0 there, and so are its derivatives."""
    a, b = raw(x), raw(y)
    at_edge = b == edge if is_complex(a) or is_complex(b) else b <= edge
    return (a == 0) & at_edge


def _unless(nothing: Any, value: float, x: Any) -> Any:
    """Return x, and `value` where there is nothing."""
    return choose(nothing, value, x) if libraries.may_hold(nothing) else x


def _as_result(name: str, g: Any, y: Any, neutral: float, nothing: Any) -> Any:
    """Return y, neutral where there is nothing, in the dtype of the result: more precise, or complex.

    g is a cotangent, of that dtype, or a tangent of the dtype of the other operand.
    """
    dtype = _loop(name, "dfDF", (g, y))
    y = _unless(nothing, neutral, y) if hasattr(y, "dtype") else choose(nothing, neutral, y)
    return y if y.dtype == dtype else as_type(y, dtype)


def _xlogy_y(g: Any, x: Any, y: Any) -> Any:
    nothing = _is_nothing(x, y, 0)
    return g * (_unless(nothing, 0.0, x) / _unless(nothing, 1.0, y))


def _xlog1py_y(g: Any, x: Any, y: Any) -> Any:
    nothing = _is_nothing(x, y, -1)
    return g * (_unless(nothing, 0.0, x) / (_unless(nothing, 0.0, y) + 1))


@_quiet
def _xlogy_kernel(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log(y))  # y == y: is no NaN


@_quiet
def _xlog1py_kernel(x: Any, y: Any) -> Any:
    return np.where((x == 0) & (y == y), 0.0, x * np.log1p(y))


_xlogy = elementwise(
    "xlogy",
    _own("xlogy", "dfDF", _xlogy_kernel),
    lambda g, x, y: g * log(_as_result("xlogy", g, y, 1.0, _is_nothing(x, y, 0))),
    _xlogy_y,
)
_xlog1py = elementwise(
    "xlog1py",
    _own("xlog1py", "dfDF", _xlog1py_kernel),
    lambda g, x, y: g * arithmetic.log1p(_as_result("xlog1py", g, y, 0.0, _is_nothing(x, y, -1))),
    _xlog1py_y,
)


@_quiet
def _log_ratio_kernel(x: Any, y: Any) -> Any:
    """log(x / y): without the rounding of the quotient where that is near 1, and where it over- or underflows."""
    ratio = x / y
    lost, far = (ratio == 0) | (ratio == np.inf), np.log(ratio)
    far = np.where(lost, np.log(x) - np.log(y), far) if libraries.may_hold(lost) else far
    return where_kernel(np.log1p((x - y) / y), far, np.abs(ratio - 1) < 0.5)


_log_ratio = elementwise("log_ratio", _own("log_ratio", "fd", _log_ratio_kernel), "g / x", "-g / y")


@_quiet
def _entr_kernel(x: Any) -> Any:
    return np.where(x > 0, -x * np.log(x), np.where(x == 0, 0.0, np.where(x < 0, -np.inf, x)))


def _on_domain(x: Any, y: Any, inside: Any, at_0: Any) -> Any:
    """The value inside, that at x = 0, and inf where x or y is negative or y alone is 0."""
    z = np.where((x > 0) & (y > 0), inside, np.where((x == 0) & (y >= 0), at_0, np.inf))
    return np.where((x != x) | (y != y), np.nan, z)


@_quiet
def _rel_entr_kernel(x: Any, y: Any) -> Any:
    return _on_domain(x, y, x * _log_ratio_kernel(x, y), 0.0).astype(x.dtype, copy=False)


@_quiet
def _kl_div_kernel(x: Any, y: Any) -> Any:
    return _on_domain(x, y, x * _log_ratio_kernel(x, y) - x + y, y).astype(x.dtype, copy=False)


def _both_0(x: Any, y: Any) -> Any:
    return (raw(x) == 0) & (raw(y) == 0)


def _log_of_ratio(x: Any, y: Any) -> Any:
    """log(x / y), 0 where both are 0."""
    both = _both_0(x, y)
    return _log_ratio(_unless(both, 1.0, x), _unless(both, 1.0, y))


def _ratio(x: Any, y: Any) -> Any:
    """Return x / y, 0 where both are 0; NaN outside the domain, where the functions below are inf."""
    both, outside = _both_0(x, y), (raw(x) < 0) | (raw(y) < 0)
    return _unless(outside, np.nan, _unless(both, 0.0, x)) / _unless(both, 1.0, y)


_entr = elementwise("entr", _own("entr", "fd", _entr_kernel), lambda g, x: -g * (log(x) + 1))
_rel_entr = elementwise(
    "rel_entr",
    _own("rel_entr", "fd", _rel_entr_kernel),
    lambda g, x, y: g * _unless(_both_0(x, y), 0.0, _log_of_ratio(x, y) + 1),
    lambda g, x, y: -g * _ratio(x, y),
)
_kl_div = elementwise(
    "kl_div",
    _own("kl_div", "fd", _kl_div_kernel),
    lambda g, x, y: g * _log_of_ratio(x, y),
    lambda g, x, y: g * (1 - _ratio(x, y)),
)
xlogy = _xlogy
xlog1py = _xlog1py
entr = _entr
rel_entr = _rel_entr
kl_div = _kl_div

# ---------------------------------------------------------------- exp(x) - 1 and log(1 + x), and over x


def _as_scipys(x: Any) -> Any:
    """SciPy computes these in single or double where NumPy would in half."""
    narrow = hasattr(x, "dtype") and x.dtype.itemsize <= 2
    return as_type(x, _narrow()) if narrow else x


@_quiet
def expm1(x: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Return exp(x) - 1, exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
    return arithmetic.expm1(_as_scipys(x), out, where, dtype)


@_quiet
def log1p(x: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
    """Return log(1 + x), exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
    return arithmetic.log1p(_as_scipys(x), out, where, dtype)


@_quiet
def _exprel_kernel(x: Any) -> Any:
    """In double precision, as SciPy's: in single, expm1 overflows before the quotient does."""
    z, dtype = _doubled(x)
    quotient = np.expm1(z) / np.where(z == 0, 1.0, z)
    return np.where(z == 0, 1.0, np.where(z == np.inf, np.inf, quotient)).astype(dtype)


@_quiet
def _exprel_slope_kernel(x: Any, k: int) -> Any:
    """The k-th derivative of exprel, the integral of t^k exp(x t) over [0, 1].

    Near 0 by the power series, for negative x by that of the integral over exp(x): all terms are
    positive, so nothing cancels. Further out by parts, k times, which is stable there; divided by
    exp(x) where that is large.
    """
    x, dtype = _doubled(x)
    bound, negative = 4.0 + 2 * k, x < 0
    size = np.minimum(np.abs(x), bound)
    near = np.zeros_like(x)
    for j in range(32 + 6 * k, -1, -1):
        right = 1 / (math.factorial(j) * (j + k + 1))
        left = math.factorial(k) / math.factorial(j + k + 1)
        near = near * size + np.where(negative, left, right)
    near = np.where(negative, np.exp(-size), 1.0) * near
    z = np.where(np.abs(x) < bound, 1.0, x)
    ahead, behind = -np.expm1(-z) / z, np.expm1(z) / z
    for j in range(1, k + 1):
        ahead, behind = (1 - j * ahead) / z, (np.exp(z) - j * behind) / z
    far = np.where(x > 0, np.where(x == np.inf, x, np.exp(x) * ahead), behind)
    return np.where(np.abs(x) < bound, near, far).astype(dtype)


_exprel_slope: Function = custom(
    "exprel_slope",
    lambda x, k: _exprel_slope_kernel(x, k),
    vjp={"x": lambda g, x, k: g * _exprel_slope(x, k + 1)},
    jvp={"x": lambda t, x, k: t * _exprel_slope(x, k + 1)},
)
_exprel = elementwise("exprel", _own("exprel", "df", _exprel_kernel), lambda g, x: g * _exprel_slope(x, 1))
exprel = _exprel

# ---------------------------------------------------------------- the error function


@_quiet
def _gauss_kernel(x: Any) -> Any:
    return np.exp(-x * x)


# exp(-x^2); infinitely far out nothing of any derivative is left.
_gauss: OpFunction = elementwise(
    "gauss",
    _own("gauss", "dfDF", _gauss_kernel),
    lambda g, x, out: g * (choose(raw(out) == 0, 0.0, x) * out) * -2.0,
)


def _tail_product(x: Any, first: int, last: int) -> Any:
    """Return E_last / E_(first-1) of the E below, for Re x > 2: the product of the ratios E_k / E_(k-1).

    Each ratio follows from the next, as E_(k-1) = 2 x E_k + 2 (k+1) E_(k+1); the ratio that is set to 0 in
    the beginning has faded out by exp(-4 sqrt(2 * 60)).
    """
    ratio, product = np.zeros_like(x), np.ones_like(x)
    for k in range(60 + last, first - 1, -1):
        ratio = 1 / (2 * x + 2 * (k + 1) * ratio)
        if k <= last:
            product = product * ratio
    return product


@_quiet
def _ierfcx_kernel(x: Any, n: int) -> Any:
    """E_n = exp(x^2) times the n-th repeated integral of erfc (DLMF 7.18); E_0 is erfcx.

    By the recurrence upwards, which loses more and more for large x: there from the tail.
    """
    x, dtype = _doubled(x)
    before, now = 2 / _ROOT_PI, _library_function("erfcx", (x,))(x)
    for k in range(n):
        before, now = now, (before - 2 * x * now) / (2 * (k + 1))
    far = np.real(x) > 2
    tail = 2 / _ROOT_PI * _tail_product(np.where(far, x, 2.0), 0, n)
    return np.where(far, tail, now).astype(dtype)


_ierfcx: Function = custom(
    "ierfcx",
    lambda x, n: _ierfcx_kernel(x, n),
    vjp={"x": lambda g, x, n: g * conj_of(_ierfcx(x, n + 1) * (-2.0 * (n + 1)))},
    jvp={"x": lambda t, x, n: t * _ierfcx(x, n + 1) * (-2.0 * (n + 1))},
)

_erf = elementwise("erf", _from_normal("erf", _normal_distribution.erf), lambda g, x: g * (_gauss(x) * (2 / _ROOT_PI)))
_erfc = elementwise(
    "erfc", _from_normal("erfc", _normal_distribution.erfc), lambda g, x: g * (_gauss(x) * (-2 / _ROOT_PI))
)
_erfcx = elementwise("erfcx", _scipys("erfcx"), lambda g, x: g * (_ierfcx(x, 1) * -2.0))
_erfinv = elementwise("erfinv", _scipys("erfinv"), lambda g, out: g * (exp(out * out) * (_ROOT_PI / 2)))
_erfcinv = elementwise("erfcinv", _scipys("erfcinv"), lambda g, out: g * (exp(out * out) * (-_ROOT_PI / 2)))
erf = _erf
erfc = _erfc
erfcx = _erfcx
erfinv = _erfinv
erfcinv = _erfcinv

# ---------------------------------------------------------------- the normal distribution


@_quiet
def _hazard_kernel(x: Any) -> Any:
    """The density over the distribution function; both underflow, their quotient does not."""
    return math.sqrt(2 / math.pi) / _library_function("erfcx", (x,))(x * (-1 / _ROOT_2))


@_quiet
def _excess_kernel(x: Any) -> Any:
    """Return x + hazard(x), by which the mean of what lies below x is less than x; far down from the tail."""
    x, dtype = _doubled(x)
    u = x * (-1 / _ROOT_2)
    far = np.real(u) > 2
    return np.where(far, _ROOT_2 * _tail_product(np.where(far, u, 2.0), 1, 1), x + _hazard.op.kernel(x)).astype(dtype)


def _hazard_rule(g: Any, x: Any, out: Any) -> Any:
    """Return -g out excess, where out has underflowed 0, and -g at -inf."""
    product = out * choose(raw(out) == 0, 1.0, _excess(x))
    return -g * choose(raw(x) == -np.inf, 1.0, product)


_hazard: OpFunction = elementwise(
    "normal_hazard",
    _from_normal("log_ndtr", _normal_distribution.hazard, _own("log_ndtr", "dfDF", _hazard_kernel)),
    _hazard_rule,
)
_excess: OpFunction = elementwise(
    "normal_excess", _own("log_ndtr", "dfDF", _excess_kernel), lambda g, x, out: g * (1 - _hazard(x) * out)
)
_ndtr = elementwise(
    "ndtr",
    _from_normal("ndtr", _normal_distribution.ndtr),
    lambda g, x: g * (_gauss(x * (1 / _ROOT_2)) * (1 / _ROOT_2PI)),
)
_log_ndtr = elementwise(
    "log_ndtr", _from_normal("log_ndtr", _normal_distribution.log_ndtr), lambda g, x: g * _hazard(x)
)
_ndtri = elementwise("ndtri", _scipys("ndtri"), lambda g, out: g * (exp(out * out * 0.5) * _ROOT_2PI))
ndtr = _ndtr
log_ndtr = _log_ndtr
ndtri = _ndtri

# ---------------------------------------------------------------- the gamma function

# The Bernoulli numbers B_2, B_4, ...
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510),
    *(43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730),
)


def _complex_polygamma(z: Any, n: int) -> Any:
    """The polygamma function of order n >= 1 in the plane, which SciPy has on the real line only.

    From the left half to the right by reflection (DLMF 5.15.6), on from there by 20 steps of the
    recurrence (5.15.5), and then by the asymptotic series (5.15.8).
    """
    left = z.real < 0
    w = np.where(left, 1 - z, z)
    total = np.zeros_like(w)
    for _ in range(20 + n):
        total = total + math.factorial(n) * w ** (-n - 1)
        w = w + 1
    series = math.factorial(n - 1) + math.factorial(n) / (2 * w)
    for k, b in enumerate(_BERNOULLI, start=1):
        series = series + b * (math.factorial(2 * k + n - 1) / math.factorial(2 * k)) * w ** (-2 * k)
    right = (total + series * w ** (-n)) * (-1) ** (n + 1)
    return np.where(left, right * (-1) ** n - math.pi * _cot_slope(np.where(left, z, -0.5), n), right)


def _cot_slope(z: Any, n: int) -> Any:
    """The n-th derivative of cot(pi z), n >= 1: a polynomial in the cotangent over the squared sine.

    Where that is nothing beside a polygamma function, 100 above or below the real line, it is cut off.
    """
    pi, polynomial = math.pi, np.polynomial.Polynomial
    z = z.real - np.round(z.real) + 1j * np.clip(z.imag, -100, 100)
    sine, factor = np.sin(pi * z), polynomial([-pi])
    for _ in range(n - 1):
        factor = -pi * (polynomial([0, 2]) * factor + polynomial([1, 0, 1]) * factor.deriv())
    total, cot = np.zeros_like(z), np.cos(pi * z) / sine
    for c in factor.coef[::-1]:
        total = total * cot + float(c)
    return total / (sine * sine)


@_quiet
def _polygamma_kernel(x: Any, n: Any) -> Any:
    if is_complex(x):
        return _complex_polygamma(*_doubled(x)[:1], n).astype(x.dtype)
    if batched.differs(x, n):
        return batched.elementwise(_polygamma_kernel, x, n)
    xp = libraries.namespace(x)
    return _library_function("polygamma", (x,))(n if xp is np else xp.asarray(n), x)  # CuPy's asks n for its shape


_polygamma: Function = custom(
    "polygamma",
    lambda x, n: _polygamma_kernel(x, n),
    vjp={"x": lambda g, x, n: g * conj_of(_polygamma(x, n + 1))},
    jvp={"x": lambda t, x, n: t * _polygamma(x, n + 1)},
)
_digamma = elementwise("digamma", _scipys("digamma"), lambda g, x: g * _polygamma(x, 1))
_gamma = elementwise("gamma", _scipys("gamma"), lambda g, x, out: g * (out * _digamma(x)))
_gammaln = elementwise("gammaln", _scipys("gammaln"), lambda g, x: g * _digamma(x))
_loggamma = elementwise("loggamma", _scipys("loggamma"), lambda g, x: g * _digamma(_principal(x)))


def _principal(x: Any) -> Any:
    """NaN for negative real x, where loggamma is NaN."""
    return x if is_complex(x) else choose(raw(x) < 0, np.nan, x)


def _beta_slope(x: Any, y: Any) -> Any:
    return _digamma(x) - _digamma(x + y)


_beta = elementwise(
    "beta",
    _scipys("beta"),
    lambda g, x, y, out: g * (out * _beta_slope(x, y)),
    lambda g, x, y, out: g * (out * _beta_slope(y, x)),
)
_betaln = elementwise(
    "betaln",
    _scipys("betaln"),
    lambda g, x, y: g * _beta_slope(x, y),
    lambda g, x, y: g * _beta_slope(y, x),
)
gamma = _gamma
gammaln = _gammaln
loggamma = _loggamma
digamma = psi = _digamma
beta = _beta
betaln = _betaln


def _parameter(value: Any, function: str, name: str) -> Any:
    """Return a parameter in which there is no derivative, as an array or number.

    Raises:
        UnsupportedFunctionError: a manager tracks it.
    """
    value = untracked(value, f"special.{function}", name)
    value = value if isinstance(value, (int, float, complex)) or libraries.is_array(value) else np.asarray(value)
    if getattr(value, "dtype", np.dtype(float)).kind in "bu":  # derivatives ask for the order below 0
        value = value.astype(np.float32 if value.dtype.itemsize <= 2 else np.float64)
    return value


def _with_parameter(op: Function, x: Any, parameter: Any, given: Any) -> Any:
    """Call an op of x; a Tensor as parameter gives a Tensor, too."""
    z = op(x, parameter)
    return wrap(z) if isinstance(given, Tensor) and not isinstance(z, Tensor) else z


def polygamma(n: Any, x: Any) -> Any:
    """Return the n-th derivative of digamma, in float64 as SciPy; n is a constant."""
    order = _parameter(n, "polygamma", "n")
    x = lift(x)
    if is_complex(x):
        raise TypeError("special.polygamma takes real x, as SciPy's; found complex values")
    return _with_parameter(_polygamma, x, order, n)


def multigammaln(a: Any, d: Any) -> Any:
    """Return the logarithm of the multivariate gamma function of dimension d.

    Raises:
        ValueError: d is no positive integer, or some a is not above (d - 1) / 2.
    """
    a, d = lift(a), untracked(d, "special.multigammaln", "d")
    if np.ndim(d) or d != int(d) or d < 1:
        raise ValueError(f"multigammaln: d should be a positive integer (dimension); found {d!r}")
    if (raw(a) <= (d - 1) / 2).any():
        raise ValueError(f"multigammaln: condition a > 0.5 * (d-1) not met for d = {d}")
    xp = libraries.namespace(raw(a))
    steps = xp.arange(int(d)).astype(a.dtype if a.dtype.kind == "f" else np.float64) / 2
    terms = _gammaln(expand_dims(a, -1) - steps)
    return sum(terms, -1) + np.float64(d * (d - 1) / 4 * math.log(math.pi))


# ---------------------------------------------------------------- the zeta function


def _zeta_kernel(q: Any, x: Any) -> Any:
    return _library_function("zeta", (q, x))(x, q)


_zeta: Function = custom(
    "zeta",
    _zeta_kernel,
    vjp={"q": lambda g, q, x: g * (_zeta(q, x + 1) * -x)},
    jvp={"q": lambda t, q, x: t * (_zeta(q, x + 1) * -x)},
)


def zeta(x: Any, q: Any = None, out: Any = None) -> Any:
    """Return the Hurwitz zeta function, Riemann's without q; differentiable in q, x is a constant."""
    if q is None and libraries.root(raw(x)) is not np:
        raise errors.UnsupportedFunctionError("special.zeta needs q on a GPU: cupyx.scipy.special has no Riemann zeta")
    if not any(isinstance(t, Tensor) for t in (x, q, out)):
        return _library_function("zeta", (x, q))(x, q, **({} if out is None else {"out": out}))
    exponent = _parameter(x, "zeta", "x")
    if q is None:
        z = wrap(_library_function("zeta", (exponent,))(exponent))
    else:
        z = _with_parameter(_zeta, q if isinstance(q, Tensor) else libraries.need_operand(q, "zeta"), exponent, x)
    return z if out is None else store(out, z, "zeta(out=...)", may_broadcast=True)


# ---------------------------------------------------------------- Bessel functions

_NODES = 96  # on the circle; for arguments up to _FAR the rule's error is below 1e-24 of the result
_FAR = 50.0


def _fall_far(x: Any, k: int) -> Any:
    """The integral of `_fall_kernel` for large x, term by term (as DLMF 10.40.1): 30 terms from 50 on."""
    coefficients, c = [], math.gamma(k + 0.5) / (math.pi * _ROOT_2)
    for j in range(30):
        coefficients.append(c)
        c *= (j + 0.5) / (2 * (j + 1)) * (k + j + 0.5)
    total = np.zeros_like(x)
    for c in coefficients[::-1]:
        total = total / x + c
    return total * x ** (-k - 0.5)


@_quiet
def _fall_kernel(x: Any, k: int) -> Any:
    """The mean over the circle of u^k exp(-x u), u = 1 - cos t, for x >= 0; for k = 0 it is i0e.

    By the trapezoid rule, which converges faster than any power for periodic functions. Nothing cancels.
    """
    x, dtype = _doubled(x)
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


@_quiet
def _i0_slope_kernel(x: Any, k: int) -> Any:
    """The k-th derivative of I0, the mean over the circle of c^k exp(x c), c = cos t (DLMF 10.32.1).

    The nodes at c and -c taken together give a cosh or a sinh, so that nothing cancels at small x.
    """
    x, dtype = _doubled(x)
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
)


def numpy_i0(x: Any) -> Any:
    """Return the modified Bessel function of order 0 as `numpy.i0`, without SciPy."""
    return _numpy_i0(lift(x))


numpy_i0.__name__ = numpy_i0.__qualname__ = "i0"


_i1 = elementwise("i1", _scipys("i1"), lambda g, x: g * _i0_slope(x, 2))
_i0 = elementwise("i0", _scipys("i0"), lambda g, x: g * _i1(x))
_i0e = elementwise("i0e", _scipys("i0e"), lambda g, x: -g * (sign(x) * _fall(absolute(x), 1)))
_i1e = elementwise("i1e", _scipys("i1e"), lambda g, x: g * (_fall(absolute(x), 2) - _fall(absolute(x), 1)))


def _jv_of_integer(n: int, x: Any) -> Any:
    """J_n where the library has J_0 and J_1 only, as CuPy.

    Beyond x = n and 1 by the recurrence upwards from them, stable there (DLMF 10.6.1); before it the mean of
    cos(x sin t - n t) over the circle (DLMF 10.9.2): the trapezoid rule's error is J of an order far beyond x.
    """
    x, dtype = _doubled(x)
    sign_of_order, n = -1 if n < 0 and n % 2 else 1, abs(n)
    size, limit = np.abs(x), max(n, 1)
    far = np.maximum(size, limit)
    z, above = _library_function("j0", (x,))(far), _library_function("j1", (x,))(far)
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
    return _library_function(name, (z, v))(v, z)


def _of_order(name: str, sign_above: float) -> Function:
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


def _door_of_order(name: str, op: Function) -> Function:
    kernel = _scipys(name)

    def function(v: Any, z: Any, /, out: Any = None, where: Any = True, dtype: Any = None) -> Any:
        if out is not None or where is not True or dtype is not None:
            return with_keywords(function, kernel, (v, z), out, where, dtype)
        if not isinstance(v, Tensor) and not isinstance(z, Tensor):
            return kernel(v, z)
        order = _parameter(v, name, "v")
        return _with_parameter(op, z if isinstance(z, Tensor) else libraries.need_operand(z, name), order, v)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the Bessel function of order v as `scipy.special.{name}`; v is a constant."
    return function


_jv = _of_order("jv", -1)
_j1 = elementwise("j1", _scipys("j1"), lambda g, x: g * ((_j0(x) - _jv(x, 2)) * 0.5))
_j0: OpFunction = elementwise("j0", _scipys("j0"), lambda g, x: -g * _j1(x))
i0 = _i0
i1 = _i1
i0e = _i0e
i1e = _i1e
j0 = _j0
j1 = _j1
jv = _door_of_order("jv", _jv)
iv = _door_of_order("iv", _of_order("iv", +1))
