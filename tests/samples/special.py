"""Special functions, measured by scipy.special; what only their rules call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from gradmgr import special
from gradmgr.ops import bessel, error_function, incomplete_beta, incomplete_gamma, special_kernels
from gradmgr.ops import special as ops
from samples._table import ANALYTIC, CUBE, EMPTY, SCALAR, VECTOR, Arg, Array, Field, X, add, at, function, given


def call(name: str, case: str, *args: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    """Enter special.name(*args, **keywords), which is to be what SciPy's function of that name gives."""
    add(
        f"special.{name}",
        case,
        lambda xp, *given: getattr(special, name)(*given, **keywords),
        *args,
        reference=lambda *given: getattr(scipy.special, name)(*given, **keywords),
        dispatches=False,
        **(facts or {}),
    )


# ---------------------------------------------------------------- one argument

_UNARY: dict[str, tuple[float, float, Field]] = {
    "digamma": (0.4, 4, "analytic"),
    "entr": (0.1, 2, "real"),
    "erf": (-2, 2, "analytic"),
    "erfc": (-2, 2, "analytic"),
    "erfcinv": (0.1, 1.9, "real"),
    "erfcx": (-1.5, 3, "analytic"),
    "erfinv": (-0.9, 0.9, "real"),
    "expit": (-4, 4, "real"),
    "expm1": (-2, 2, "analytic"),
    "exprel": (-3, 3, "real"),
    "gamma": (0.5, 3, "analytic"),
    "gammaln": (0.3, 4, "real"),
    "i0": (-3, 3, "real"),
    "i0e": (0.2, 3, "real"),
    "i1": (-3, 3, "real"),
    "i1e": (0.2, 3, "real"),
    "j0": (-6, 6, "real"),
    "j1": (-6, 6, "real"),
    "log1p": (-0.5, 3, "analytic"),
    "log_expit": (-4, 4, "real"),
    "log_ndtr": (-3, 2, "analytic"),
    "loggamma": (0.3, 4, "analytic"),
    "logit": (0.05, 0.95, "real"),
    "ndtr": (-2, 2, "analytic"),
    "ndtri": (0.05, 0.95, "real"),
}
for _name, (_low, _high, _field) in _UNARY.items():
    _facts: dict[str, Any] = {"field": _field}
    call(_name, "matrix", Arg((3, 4), _low, _high), facts=_facts | {"third": True})
    call(_name, "0-d", Arg((), _low, _high), facts=_facts)
    call(_name, "zero-size", Arg((0, 3), _low, _high), facts=_facts)
call("psi", "alias", Arg((3,), 0.4, 4), facts=ANALYTIC)
call("sinc", "NumPy's", X)
for _name in ("gamma", "gammaln", "digamma"):
    call(_name, "negative", at([-0.4, -1.3, -2.6]))
call("erfcx", "far out", at([3.0, 20.0, 500.0]), facts=ANALYTIC)
call("exprel", "about 0", at([0.0, 1e-9, -1e-5]), facts={"third": True})
call("exprel", "large", at([-40.0, 7.0, 10.0]))
call("log_ndtr", "far down", at([-5.0, -12.0, -40.0]), facts={"third": True})
call("log_expit", "far out", at([-50.0, 30.0]))
call("expit", "far out", at([40.0, -50.0, 0.3]))
call("logit", "near 1/2", at([0.5, 0.5 + 1e-9, 0.31, 0.29]))
for _name in ("i0e", "i1e"):
    call(_name, "negative", at([-0.3, -2.0, -60.0]))
call("i0e", "at 0", at([0.0, 1.0]), facts={"smooth": False})

# Without SciPy, where i0 is NumPy's own.
function("i0", "matrix", Arg((3, 4), -3, 3), facts={"third": True})
function("i0", "0-d", SCALAR)
function("i0", "zero-size", EMPTY)
function("i0", "from 8 on", at([-7.9, 9.5]))

# ---------------------------------------------------------------- two arguments

_BINARY: dict[str, tuple[tuple[float, float], tuple[float, float], Field]] = {
    "beta": ((0.4, 3), (0.4, 3), "real"),
    "betaln": ((0.4, 3), (0.4, 3), "real"),
    "gammainc": ((0.4, 3), (0.2, 4), "real"),
    "gammaincc": ((0.4, 3), (0.2, 4), "real"),
    "gammainccinv": ((0.4, 3), (0.1, 0.9), "real"),
    "gammaincinv": ((0.4, 3), (0.1, 0.9), "real"),
    "kl_div": ((0.3, 2), (0.3, 2), "real"),
    "rel_entr": ((0.3, 2), (0.3, 2), "real"),
    "xlog1py": ((-2, 2), (-0.5, 2), "analytic"),
    "xlogy": ((-2, 2), (0.4, 2), "analytic"),
}
for _name, (_of_x, _of_y, _field) in _BINARY.items():
    _facts = {"field": _field}
    call(_name, "same shape", Arg((3, 4), *_of_x), Arg((3, 4), *_of_y), facts=_facts | {"third": True})
    call(_name, "broadcast both", Arg((3, 1), *_of_x), Arg((4,), *_of_y), facts=_facts)
    call(_name, "both 0-d", Arg((), *_of_x), Arg((), *_of_y), facts=_facts)
    call(_name, "zero-size", Arg((0, 3), *_of_x), Arg((3,), *_of_y), facts=_facts)
    call(_name, "array on the right", Arg((3, 4), *_of_x), Arg((4,), *_of_y, constant=True), facts=_facts)
    call(_name, "array on the left", Arg((3, 1), *_of_x, constant=True), Arg((4,), *_of_y), facts=_facts)
for _name in ("xlogy", "xlog1py"):
    call(_name, "x = 0", at([0.0, 0.0, 1.0]), at([0.5, 2.0, 1.5]))
for _name, _edge in (("xlogy", 0.0), ("xlog1py", -1.0)):
    call(_name, "0 times the log of 0", at([0.0, 1.0]), at([_edge, 0.5]), facts={"smooth": False})
    call(_name, "x alone, at the log of 0", at([0.0, 1.0]), given([_edge, 0.5]), facts={"smooth": False})
for _name in ("rel_entr", "kl_div"):
    call(_name, "nearly equal", at([1.0, 0.5]), at([1 + 1e-9, 0.5]))
    call(_name, "both 0", at([0.0, 1.0]), at([0.0, 0.5]), facts={"smooth": False})

for _name in ("gammainc", "gammaincc"):
    call(_name, "tails", at([0.02, 0.3, 40.0, 40.0]), at([1e-3, 6.0, 20.0, 70.0]), facts={"third": True})
    call(_name, "large", at([900.0, 1000.0]), at([910.0, 950.0]))
    call(_name, "at the ends", at([0.5, 1.0, 3.0]), given([0.0, np.inf, 0.0]), facts={"smooth": False})

# ---------------------------------------------------------------- three arguments

for _name in ("betainc", "betaincinv"):
    _A, _B, _LEVEL = ((0.4, 3), (0.4, 3), (0.05, 0.95))
    call(_name, "same shape", Arg((3, 4), *_A), Arg((3, 4), *_B), Arg((3, 4), *_LEVEL), facts={"third": True})
    call(_name, "broadcast", Arg((3, 1), *_A), Arg((4,), *_B), Arg((), *_LEVEL))
    call(_name, "all 0-d", Arg((), *_A), Arg((), *_B), Arg((), *_LEVEL))
    call(_name, "zero-size", Arg((0, 3), *_A), Arg((3,), *_B), Arg((1, 1), *_LEVEL))
    call(_name, "constants", Arg((4,), *_A, constant=True), given(2.0), Arg((3, 4), *_LEVEL))
    call(_name, "level constant", Arg((4,), *_A), Arg((3, 1), *_B), Arg((3, 4), *_LEVEL, constant=True))
call("betainc", "large", at([40.0, 90.0]), at([60.0, 20.0]), at([0.45, 0.8]))
call(
    "betainc", "at the ends", at([0.5, 1.0, 3.0]), at([2.0, 3.0, 0.5]), given([0.0, 1.0, 0.0]), facts={"smooth": False}
)

# ---------------------------------------------------------------- with a parameter that is not differentiated

_Q = Arg((3, 4), 0.4, 4)
for _n in (0, 1, 2):
    add(
        "special.polygamma",
        f"order {_n}",
        lambda xp, x, n=_n: special.polygamma(n, x),
        _Q,
        reference=lambda x, n=_n: scipy.special.polygamma(n, x),
        dispatches=False,
        third=_n == 1,
    )
call("polygamma", "orders broadcast", given([[0], [2], [1]]), Arg((4,), 0.4, 4))
call("polygamma", "0-d", given(1), Arg((), 0.4, 4))
call("multigammaln", "matrix", Arg((3, 4), 1.2, 4), facts={"third": True}, d=3)
call("multigammaln", "0-d", Arg((), 0.2, 4), d=1)
call("zeta", "exponents broadcast", given([[2.0], [3.5], [1.5]]), Arg((4,), 0.4, 4), facts={"third": True})
call("zeta", "integer exponent", given(2), _Q)
call("zeta", "0-d", given(2.5), Arg((), 0.4, 4))
_ORDERS = given([[0], [2], [-3]])
for _name in ("jv", "iv"):
    call(_name, "integer orders", _ORDERS, Arg((4,), -3, 3), facts={"third": True})
    add(
        f"special.{_name}",
        "order 1.5",
        lambda xp, z, n=_name: getattr(special, n)(1.5, z),
        Arg((3, 4), 0.5, 4),
        reference=lambda z, n=_name: getattr(scipy.special, n)(1.5, z),
        dispatches=False,
        field="complex",  # SciPy's jv of complex z is off the real line by more than a complex step can bear
    )
    call(_name, "0-d", given(2), SCALAR)
    if _name == "jv":
        for _order in (0, -1, 2, 5, -3):  # the orders that a GPU has
            add(
                "special.jv",
                f"number {_order}",
                lambda xp, z, n=_order: special.jv(n, z),
                Arg((8,), -9, 9),
                reference=lambda z, n=_order: scipy.special.jv(n, z),
                dispatches=False,
            )
    call(_name, "at 0", given([0, 1, 2, 3]), at([0.0, 0.0, 0.0, 0.0]))

# ---------------------------------------------------------------- along axes

_AXES: dict[str, Any] = {"all axes": None, "axis 0": 0, "axis -1": -1, "axes (0, 2)": (0, 2), "no axes": ()}
for _name in ("logsumexp", "softmax", "log_softmax"):
    _facts = ANALYTIC
    for _case, _axis in _AXES.items():
        if (_name, _axis) != ("logsumexp", ()):
            call(_name, _case, CUBE, facts=_facts, axis=_axis)
    call(_name, "0-d", SCALAR, facts=_facts)
    call(_name, "zero-size", EMPTY, facts=_facts, axis=1)
    _masked = at([[-np.inf, 1.0, 2.0], [0.5, -np.inf, -np.inf]])
    call(_name, "some -inf", _masked, facts={"smooth": _name != "log_softmax"}, axis=-1)
    call(_name, "third order", Arg((2, 3)), facts=_facts | {"third": True}, axis=1)
call("logsumexp", "keepdims", CUBE, facts=ANALYTIC, axis=1, keepdims=True)
call("logsumexp", "one element", Arg((1,)))
call("logsumexp", "a row of -inf", at([[-np.inf, -np.inf], [0.5, 1.0]]), facts={"smooth": False}, axis=-1)
call("logsumexp", "nothing to sum", EMPTY, facts={"smooth": False}, axis=0)
_WEIGHT = Arg((2, 1, 4), 0.3, 2)


def _weighted(case: str, a: Arg, b: Arg, facts: dict[str, Any] | None = None, **keywords: Any) -> None:
    add(
        "special.logsumexp",
        case,
        lambda xp, a, b: special.logsumexp(a, b=b, **keywords),
        a,
        b,
        reference=lambda a, b: scipy.special.logsumexp(a, b=b, **keywords),
        dispatches=False,
        **(facts or {}),
    )


_weighted("b=", CUBE, _WEIGHT, facts=ANALYTIC | {"third": True}, axis=1)
_weighted("b= and keepdims", CUBE, _WEIGHT, facts=ANALYTIC, axis=(0, 2), keepdims=True)
_weighted("b= is an array", X, Arg((4,), 0.3, 2, constant=True), facts=ANALYTIC)
_weighted("b= alone", Arg((3, 4), constant=True), Arg((4,), 0.3, 2), facts=ANALYTIC)
_weighted("b= with 0s", VECTOR, at([1.0, 0.0, 2.0, 0.0]))
_weighted("b= with 0s, axis", at([[1.0, -np.inf, 0.5]]), given([[1.0, 2.0, 0.0]]), axis=1)
_weighted("b= and return_sign", Arg((2, 4)), at([-1.0, 0.5, -2.0, 0.3]), axis=1, return_sign=True)
call("logsumexp", "return_sign", CUBE, facts={"field": "complex"}, axis=1, return_sign=True)

# ---------------------------------------------------------------- what only rules call


def _wide(reference: Callable[..., Array], dtype: Any = np.float64) -> Callable[..., Array]:
    """The reference, of halves in the dtype that the op gives for them."""
    return lambda *given: reference(*[a.astype(dtype) if a.dtype.itemsize <= 2 else a for a in given])


def engine(
    name: str,
    call: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Arg,
    case: str = "as called",
    **facts: Any,
) -> None:
    """Enter an op that has no public name of its own."""
    add(f"engine.{name}", case, lambda xp, *given: call(*given), *args, reference=reference, dispatches=False, **facts)


def _hazard(x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi).astype(x.dtype) / scipy.special.ndtr(x)


_RIGHT = Arg((3, 4), 0.4, 3)
engine(
    "gauss",
    error_function._gauss,
    _wide(lambda x: np.exp(-x * x), special_kernels.narrow_dtype()),
    X,
    field="analytic",
    third=True,
)
engine(
    "ierfcx",
    lambda x: error_function._ierfcx(x, 1),
    _wide(lambda x: 1 / np.sqrt(np.pi).astype(x.real.dtype) - x * scipy.special.erfcx(x)),
    Arg((3, 4), -1.5, 3),
    field="analytic",
    third=True,
)
engine(
    "exprel_slope",
    lambda x: ops._exprel_slope(x, 1),
    _wide(lambda x: (np.exp(x) - np.expm1(x) / x) / x),
    Arg((3, 4), 1, 3),
    third=True,
)
engine(
    "normal_hazard",
    error_function._hazard,
    _wide(_hazard, special_kernels.narrow_dtype()),
    X,
    field="analytic",
    third=True,
)
engine(
    "normal_excess",
    error_function._excess,
    _wide(lambda x: x + _hazard(x), special_kernels.narrow_dtype()),
    X,
    field="analytic",
    third=True,
)
_LOGS = _wide(lambda x, y: np.log(x / y), np.float32)
engine("log_ratio", ops._log_ratio, _LOGS, _RIGHT, _RIGHT, third=True)
engine("log_ratio", ops._log_ratio, _LOGS, _RIGHT, Arg((4,), 0.4, 3, constant=True), case="array on the right")
engine("log_ratio", ops._log_ratio, _LOGS, Arg((4,), 0.4, 3, constant=True), _RIGHT, case="array on the left")
engine("i0_slope", lambda x: bessel._i0_slope(x, 1), _wide(scipy.special.i1), X, third=True)
engine(
    "i0e_fall",
    lambda x: bessel._fall(x, 1),
    _wide(lambda x: scipy.special.i0e(x) - scipy.special.i1e(x)),
    _RIGHT,
    third=True,
)


def _beta_power(a: Array, b: Array, x: Array) -> Array:
    factor = (a - 1) * (b - 1)
    return np.exp((a - 2) * np.log(x) + (b - 2) * np.log1p(-x) - scipy.special.betaln(a, b)) * factor


for _a, _case in ((Arg((3, 4), 0.4, 3), "as called"), (Arg((4,), 1.2, 3), "broadcast")):
    engine(
        "gamma_power",
        lambda a, x: incomplete_gamma._power(*incomplete_gamma._in_one_dtype(a, x), 1),
        _wide(lambda a, x: np.exp((a - 2) * np.log(x) - x - scipy.special.gammaln(a)) * (a - 1)),
        _a,
        _RIGHT,
        case=_case,
        third=True,
    )
    engine(
        "beta_power",
        lambda a, b, x: incomplete_beta._power(*incomplete_beta._in_one_dtype(a, b, x), 1, 1),
        _wide(_beta_power),
        _a,
        Arg((3, 4), 0.4, 3),
        Arg((3, 4), 0.1, 0.9),
        case=_case,
        third=True,
    )


# ---------------------------------------------------------------- what only gamma variates call

# A variate is a constant to NumPy: tests/tools/test_distributions.py compares its slope with that of the quantile.
engine(
    "reparameterized_log_gamma",
    incomplete_gamma.reparameterized_log_gamma,
    lambda a, drawn: drawn.astype(a.dtype),
    at([0.05, 0.6, 3.0, 50.0]),
    given([-30.0, 0.4, 0.2, 4.0]),
    smooth=False,
)
