"""Types of special functions on Tensors. Written by tools/make_stubs.py; do not edit."""

from typing import Any, Literal, overload

from gradmgr._engine.function_types import Axis, Function1, Function2
from gradmgr._engine.tensor import Tensor

__all__ = [
    "beta",
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
betaln: Function2
digamma: Function1
entr: Function1
erf: Function1
erfc: Function1
erfcinv: Function1
erfcx: Function1
erfinv: Function1
expit: Function1
expm1: Function1
exprel: Function1
gamma: Function1
gammainc: Function2
gammaincc: Function2
gammaln: Function1
i0: Function1
i0e: Function1
i1: Function1
i1e: Function1
iv: Function2
j0: Function1
j1: Function1
jv: Function2
kl_div: Function2
log1p: Function1
log_expit: Function1
log_ndtr: Function1

@overload
def log_softmax(x: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def log_softmax(x: Any, axis: Axis = None) -> Any: ...

loggamma: Function1
logit: Function1

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
ndtri: Function1

@overload
def polygamma(n: Any, x: Tensor) -> Tensor: ...
@overload
def polygamma(n: Any, x: Any) -> Any: ...

psi: Function1
rel_entr: Function2

@overload
def sinc(x: Tensor) -> Tensor: ...
@overload
def sinc(x: Any) -> Any: ...
@overload
def softmax(x: Tensor, axis: Axis = None) -> Tensor: ...
@overload
def softmax(x: Any, axis: Axis = None) -> Any: ...

xlog1py: Function2
xlogy: Function2

@overload
def zeta(x: Tensor, q: Any = None, out: Tensor | None = None) -> Tensor: ...
@overload
def zeta(x: Any, q: Any = None, out: Any = None) -> Any: ...
