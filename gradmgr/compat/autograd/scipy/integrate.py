"""autograd.scipy.integrate: `odeint`, differentiated by the adjoint equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr.compat.autograd._primitive import defvjp_argnums
from gradmgr.compat.autograd.core import make_vjp
from gradmgr.compat.autograd.misc.flatten import flatten
from gradmgr.compat.autograd.scipy._late import late_primitive

__all__ = ["odeint"]

odeint = late_primitive("integrate", "odeint")


def _odeint_vjp(
    ys: Any, func: Callable[..., Any], y0: Any, t: Any, args: Any = (), **kwargs: Any
) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the gradients of (func, y0, t, args) (Chen et al., 2018, algorithm 2)."""
    size = np.shape(ys)[1]
    flat_args, unflatten = flatten(args)

    def backward_dynamics(state: Any, time: Any, flat_args: Any) -> Any:
        def at(given: tuple[Any, Any, Any]) -> Any:
            return gnp.reshape(gnp.array(func(given[0], given[1], *unflatten(given[2]))), (size,))

        vjp, slope = make_vjp(at, (state[:size], 1.0 * time, flat_args))
        of_y, of_t, of_args = vjp(-state[size : 2 * size])
        return gnp.concatenate([slope, of_y, gnp.reshape(of_t, (1,)), of_args])

    def gradients(g: Any) -> tuple[Any, ...]:
        adjoint, of_t0, of_args = g[-1], np.zeros(()), np.zeros(np.shape(flat_args))
        of_times = []
        for i in range(len(t) - 1, 0, -1):
            now = gnp.dot(gnp.array(func(ys[i], t[i], *args)), g[i])
            of_times.append(now)
            state = gnp.concatenate([ys[i], adjoint, gnp.reshape(of_t0 - now, (1,)), of_args])
            back = odeint(backward_dynamics, state, gnp.stack([t[i], t[i - 1]]), (flat_args,), **kwargs)[1]
            adjoint, of_t0, of_args = back[size : 2 * size] + g[i - 1], back[2 * size], back[2 * size + 1 :]
        of_times.append(of_t0)
        return None, adjoint, gnp.stack(of_times[::-1]), unflatten(of_args)

    return gradients


def _chosen(argnums: Sequence[int], ys: Any, args: Any, kwargs: Any) -> Callable[[Any], list[Any]]:
    given = dict(zip(("func", "y0", "t", "args"), args, strict=False))
    gradients = _odeint_vjp(ys, **given, **kwargs)
    return lambda g: [made[argnum] for made in [gradients(g)] for argnum in argnums]


defvjp_argnums(odeint, _chosen)
