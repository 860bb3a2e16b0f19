"""autograd.misc.fixed_points: the fixed point of an iteration, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradmgr.compat.autograd.core import make_vjp, vspace
from gradmgr.compat.autograd.extend import defvjp, primitive

__all__ = ["fixed_point"]


@primitive
def fixed_point(f: Callable[..., Any], a: Any, x0: Any, distance: Callable[..., Any], tol: float) -> Any:
    """Return x with f(a)(x) = x, iterated from x0 until distance(x, previous x) <= tol; differentiable in `a`.

    The gradient is that of the fixed point itself, not of the iteration: it solves u = g + u df/dx by the same
    iteration.

    >>> from gradmgr.compat.autograd import grad
    >>> from gradmgr.compat.autograd.misc.fixed_points import fixed_point
    >>> def newton(a):
    ...     return lambda x: (x + a / x) / 2
    >>> def root(a):
    ...     return fixed_point(newton, a, 1.0, lambda x, y: abs(x - y), 1e-12)
    >>> root(4.0), grad(root)(4.0)
    (2.0, np.float64(0.25))
    """
    step = f(a)
    x, previous = step(x0), x0
    while distance(x, previous) > tol:
        x, previous = step(x), x
    return x


def _fixed_point_vjp(ans: Any, f: Any, a: Any, x0: Any, distance: Any, tol: float) -> Callable[[Any], Any]:
    vjp_a, _ = make_vjp(lambda a: f(a)(ans), a)

    def iteration(given: tuple[Any, Any, Any]) -> Callable[[Any], Any]:
        a, x, g = given
        vjp_x, _ = make_vjp(f(a), x)
        return lambda u: vspace(g).add(vjp_x(u), g)

    return lambda g: vjp_a(fixed_point(iteration, (a, ans, g), vspace(ans).zeros(), distance, tol))


defvjp(fixed_point, None, _fixed_point_vjp, None)
