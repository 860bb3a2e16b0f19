"""autograd.scipy.special: `gradmgr.special`, and SciPy's other functions, without derivatives but for those here."""

from __future__ import annotations

from typing import Any

import gradmgr.numpy as gnp
from gradmgr import special
from gradmgr.compat.autograd._primitive import defjvp, defvjp
from gradmgr.compat.autograd.scipy._late import late_primitive, without_derivative

globals().update({name: getattr(special, name) for name in special.__all__})

gammasgn = late_primitive("special", "gammasgn")
ive = late_primitive("special", "ive")
rgamma = late_primitive("special", "rgamma")
jn = special.jv
y0, y1 = late_primitive("special", "y0"), late_primitive("special", "y1")
yn = late_primitive("special", "yn")

defvjp(gammasgn, None)
defjvp(gammasgn, None)
defvjp(rgamma, lambda ans, x: lambda g: -g * special.psi(x) * rgamma(x))
defjvp(rgamma, lambda g, ans, x: -g * special.psi(x) * rgamma(x))


def _ive_slope(n: Any, x: Any) -> Any:
    """Return the derivative of exp(-|x|) I(n, x) by x (DLMF 10.29.1)."""
    return (ive(n - 1, x) + ive(n + 1, x)) / 2 - gnp.sign(x) * ive(n, x)


defvjp(ive, None, lambda ans, n, x: lambda g: g * _ive_slope(n, x))
defjvp(ive, None, lambda g, ans, n, x: g * _ive_slope(n, x))
# Bessel functions of the second kind: Y0' = -Y1, Yn' = (Y(n-1) - Y(n+1)) / 2 (DLMF 10.6.1, 10.6.3).
defvjp(y0, lambda ans, x: lambda g: -g * y1(x))
defjvp(y0, lambda g, ans, x: -g * y1(x))
defvjp(y1, lambda ans, x: lambda g: g * (y0(x) - yn(2, x)) / 2)
defjvp(y1, lambda g, ans, x: g * (y0(x) - yn(2, x)) / 2)
defvjp(yn, None, lambda ans, n, x: lambda g: g * (yn(n - 1, x) - yn(n + 1, x)) / 2)
defjvp(yn, None, lambda g, ans, n, x: g * (yn(n - 1, x) - yn(n + 1, x)) / 2)

__all__ = [*special.__all__, "gammasgn", "ive", "jn", "rgamma", "y0", "y1", "yn"]


def __getattr__(name: str) -> Any:
    return without_derivative("special", name)
