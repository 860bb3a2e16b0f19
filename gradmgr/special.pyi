"""Types of special functions on Tensors. Written by tools/make_stubs.py; do not edit."""

from typing import Any, Literal, overload

from gradmgr._engine.function_types import Axis, Function1, Function2
from gradmgr._engine.tensor import Tensor

__all__ = [
    "beta",
    "betainc",
    "betaincinv",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "expit",
    "expm1",
    "exprel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammainccinv",
    "gammaincinv",
    "gammaln",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "iv",
    "j0",
    "j1",
    "jv",
    "kl_div",
    "log1p",
    "log_expit",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "rel_entr",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
    "zeta",
]
beta: Function2
"""Compute `scipy.special.beta` of Tensors or arrays, differentiably."""

@overload
def betainc(a: Tensor, b: Any, x: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def betainc(a: Any, b: Tensor, x: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def betainc(a: Any, b: Any, x: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def betainc(a: Any, b: Any, x: Any, out: Any = None) -> Any: ...
@overload
def betaincinv(a: Tensor, b: Any, y: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def betaincinv(a: Any, b: Tensor, y: Any, out: Tensor | None = None) -> Tensor: ...
@overload
def betaincinv(a: Any, b: Any, y: Tensor, out: Tensor | None = None) -> Tensor: ...
@overload
def betaincinv(a: Any, b: Any, y: Any, out: Any = None) -> Any: ...

betaln: Function2
"""Compute `scipy.special.betaln` of Tensors or arrays, differentiably."""
digamma: Function1
"""Compute `scipy.special.digamma` of Tensors or arrays, differentiably."""
entr: Function1
"""Compute `scipy.special.entr` of Tensors or arrays, differentiably."""
erf: Function1
"""Compute `scipy.special.erf` of Tensors or arrays, differentiably."""
erfc: Function1
"""Compute `scipy.special.erfc` of Tensors or arrays, differentiably."""
erfcinv: Function1
"""Compute `scipy.special.erfcinv` of Tensors or arrays, differentiably."""
erfcx: Function1
"""Compute `scipy.special.erfcx` of Tensors or arrays, differentiably."""
erfinv: Function1
"""Compute `scipy.special.erfinv` of Tensors or arrays, differentiably."""
expit: Function1
"""Compute `scipy.special.expit` of Tensors or arrays, differentiably."""
expm1: Function1
"""Return exp(x) - 1, exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
exprel: Function1
"""Compute `scipy.special.exprel` of Tensors or arrays, differentiably."""
gamma: Function1
"""Compute `scipy.special.gamma` of Tensors or arrays, differentiably."""
gammainc: Function2
"""Compute `scipy.special.gammainc` of Tensors or arrays, differentiably."""
gammaincc: Function2
"""Compute `scipy.special.gammaincc` of Tensors or arrays, differentiably."""
gammainccinv: Function2
"""Compute `scipy.special.gammainccinv` of Tensors or arrays, differentiably."""
gammaincinv: Function2
"""Compute `scipy.special.gammaincinv` of Tensors or arrays, differentiably."""
gammaln: Function1
"""Compute `scipy.special.gammaln` of Tensors or arrays, differentiably."""
i0: Function1
"""Compute `scipy.special.i0` of Tensors or arrays, differentiably."""
i0e: Function1
"""Compute `scipy.special.i0e` of Tensors or arrays, differentiably."""
i1: Function1
"""Compute `scipy.special.i1` of Tensors or arrays, differentiably."""
i1e: Function1
"""Compute `scipy.special.i1e` of Tensors or arrays, differentiably."""
iv: Function2
"""Return the Bessel function whose order comes first as `scipy.special.iv`; the order is a constant."""
j0: Function1
"""Compute `scipy.special.j0` of Tensors or arrays, differentiably."""
j1: Function1
"""Compute `scipy.special.j1` of Tensors or arrays, differentiably."""
jv: Function2
"""Return the Bessel function whose order comes first as `scipy.special.jv`; the order is a constant."""
kl_div: Function2
"""Compute `scipy.special.kl_div` of Tensors or arrays, differentiably."""
log1p: Function1
"""Return log(1 + x), exact near 0; float16 and short integers in SciPy's dtype: float64, since 1.18 float32."""
log_expit: Function1
"""Compute `scipy.special.log_expit` of Tensors or arrays, differentiably."""
log_ndtr: Function1
"""Compute `scipy.special.log_ndtr` of Tensors or arrays, differentiably."""

@overload
def log_softmax(x: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def log_softmax(x: Any, axis: Axis = None) -> Any: ...

loggamma: Function1
"""Compute `scipy.special.loggamma` of Tensors or arrays, differentiably."""
logit: Function1
"""Compute `scipy.special.logit` of Tensors or arrays, differentiably."""

@overload
def logsumexp(
    a: Tensor, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: Literal[False] = False
) -> Tensor: ...
@overload
def logsumexp(
    a: Tensor, axis: Axis = None, b: Any = None, keepdims: bool = False, *, return_sign: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def logsumexp(
    a: Tensor, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any: ...
@overload
def logsumexp(a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any: ...
@overload
def multigammaln(a: Tensor, d: Any) -> Tensor: ...
@overload
def multigammaln(a: Any, d: Any) -> Any: ...

ndtr: Function1
"""Compute `scipy.special.ndtr` of Tensors or arrays, differentiably."""
ndtri: Function1
"""Compute `scipy.special.ndtri` of Tensors or arrays, differentiably."""

@overload
def polygamma(n: Any, x: Tensor) -> Tensor: ...
@overload
def polygamma(n: Any, x: Any) -> Any: ...

psi: Function1
"""Compute `scipy.special.digamma` of Tensors or arrays, differentiably."""
rel_entr: Function2
"""Compute `scipy.special.rel_entr` of Tensors or arrays, differentiably."""

@overload
def sinc(x: Tensor) -> Tensor: ...
@overload
def sinc(x: Any) -> Any: ...
@overload
def softmax(x: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def softmax(x: Any, axis: Axis = None) -> Any: ...

xlog1py: Function2
"""Compute `scipy.special.xlog1py` of Tensors or arrays, differentiably."""
xlogy: Function2
"""Compute `scipy.special.xlogy` of Tensors or arrays, differentiably."""

@overload
def zeta(x: Tensor, q: Any = None, out: Tensor | None = None) -> Tensor: ...
@overload
def zeta(x: Any, q: Any = None, out: Any = None) -> Any: ...
