"""Transforms within transforms: each in each other one, in managers, in levels of forward mode, against a formula.

The function is a sum of sines, w[j] sin(C[j] x + B[j]), of which every derivative along any directions is known. A
transform makes of a function of a vector another one, here a derivative along fixed directions, a sum over scaled
arguments, or the same function; so do any two or three of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, checkpoint, forward_ad, functional, inference_mode, no_grad, tensor, vmap
from gradmgr.compat import autograd as ag

Array = Any
Scalar = Callable[[Any], Any]  # a smooth function of a vector

RNG = np.random.default_rng(8)
X = RNG.normal(size=3)
C, B, W = RNG.normal(size=(4, 3)), RNG.normal(size=4), RNG.normal(size=4)
FIRST, SECOND = RNG.normal(size=3), RNG.normal(size=3)
SCALES, SHARES = np.array([0.5, -1.2]), np.array([0.7, 1.9])


# ---------------------------------------------------------------- what is expected


@dataclass(frozen=True)
class Sum:
    """A sum of w[j] factors[j] sin(scale C[j] x + B[j] + turns pi/2)."""

    factors: Array
    turns: int = 0
    scale: float = 1.0

    def along(self, v: Array) -> Sum:
        """Its derivative along a direction."""
        return Sum(self.factors * (C @ v) * self.scale, self.turns + 1, self.scale)

    def by_weights(self, x: Array) -> Array:
        return self.factors * np.sin(self.scale * (C @ x) + B + self.turns * np.pi / 2)


Sums = list[Sum]


def unchanged(sums: Sums) -> Sums:
    return sums


def once(sums: Sums) -> Sums:
    return [each.along(FIRST) for each in sums]


def twice(sums: Sums) -> Sums:
    return [each.along(FIRST).along(SECOND) for each in sums]


def scaled(sums: Sums) -> Sums:
    return [
        Sum(each.factors * share, each.turns, each.scale * scale)
        for each in sums
        for scale, share in zip(SCALES, SHARES, strict=True)
    ]


def expected_by_weights(*effects: Callable[[Sums], Sums]) -> Array:
    """The derivative by w of what transforms, the outermost first, make of the function."""
    sums = [Sum(np.ones(4))]
    for effect in reversed(effects):
        sums = effect(sums)
    return sum(each.by_weights(X) for each in sums)


# ---------------------------------------------------------------- the transforms


def dot(a: Any, b: Any) -> Any:
    return gnp.sum(a * b)


def quadratic(h: Any) -> Any:
    return dot(FIRST, h @ SECOND)


def variable(x: Any) -> Tensor:
    """A Tensor of the same values, computed of x where that is one."""
    return x * 1.0 if isinstance(x, Tensor) else tensor(x)


def by_manager(f: Scalar) -> Scalar:
    def slope(x: Any) -> Any:
        x = variable(x)
        with GradManager().attach(x) as gm:
            gm.backward(f(x))
        return dot(x.grad, FIRST)

    return slope


def by_two_managers(f: Scalar) -> Scalar:
    def product(x: Any) -> Any:
        x = variable(x)
        outer, inner = GradManager().attach(x), GradManager().attach(x)
        with outer:
            with inner:
                inner.backward(f(x))
            slope, x.grad = dot(x.grad, FIRST), None
            outer.backward(slope)
        return dot(x.grad, SECOND)

    return product


def by_grad_on_one_tape(f: Scalar) -> Scalar:
    def product(x: Any) -> Any:
        x = variable(x)
        with GradManager().attach(x):
            (slope,) = gradmgr.grad(f(x), x, create_graph=True)
            (second,) = gradmgr.grad(dot(slope, FIRST), x)
        return dot(second, SECOND)

    return product


def by_batched_grad(f: Scalar) -> Scalar:
    def product(x: Any) -> Any:
        x = variable(x)
        with GradManager().attach(x):
            (slope,) = gradmgr.grad(f(x), x, create_graph=True)
            (rows,) = gradmgr.grad(slope, x, np.eye(3), is_grads_batched=True)
        return quadratic(rows)

    return product


def by_level(f: Scalar) -> Scalar:
    def slope(x: Any) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(variable(x), FIRST))).tangent

    return slope


def by_level_over_reverse(f: Scalar) -> Scalar:
    def product(x: Any) -> Any:
        with forward_ad.dual_level():
            slope = functional.vjp(f, forward_ad.make_dual(variable(x), SECOND))[1]
            return dot(forward_ad.unpack_dual(slope).tangent, FIRST)

    return product


def of_pairs(derivative: Callable[..., Any]) -> Callable[[Scalar], Scalar]:
    """The derivative by the second of two inputs, at both as one."""
    return lambda f: lambda x: dot(derivative(lambda y, z: f(y * 0.25 + z * 0.75), (x, x))[1], FIRST / 0.75)


FIRST_ORDER: dict[str, Callable[[Scalar], Scalar]] = {
    "vjp": lambda f: lambda x: dot(functional.vjp(f, x)[1], FIRST),
    "vjp of a vector": lambda f: lambda x: dot(
        functional.vjp(lambda y: gnp.stack([f(y), f(2 * y)]), x, np.array([1.0, 0.0]))[1], FIRST
    ),
    "vjp of pairs": of_pairs(lambda f, xs: functional.vjp(f, xs)[1]),
    "jvp": lambda f: lambda x: functional.jvp(f, x, FIRST)[1],
    "jacobian": lambda f: lambda x: dot(functional.jacobian(f, x), FIRST),
    "jacobian of pairs": of_pairs(functional.jacobian),
    **{
        f"jacobian, {strategy}, {vectorize}": lambda f, how=(strategy, vectorize): lambda x: dot(
            functional.jacobian(lambda y: gnp.stack([f(2 * y), f(y)]), x, strategy=how[0], vectorize=how[1])[1], FIRST
        )
        for strategy in ("reverse-mode", "forward-mode")
        for vectorize in (False, True)
    },
    "grad": lambda f: lambda x: dot(functional.grad(f)(x), FIRST),
    "grad of a dict": lambda f: lambda x: dot(functional.grad(lambda p: f(p["a"]))({"a": x})["a"], FIRST),
    "value_and_grad": lambda f: lambda x: dot(functional.value_and_grad(f)(x)[1], FIRST),
    "a manager": by_manager,
    "a level": by_level,
    "compat grad": lambda f: lambda x: dot(ag.grad(f)(x), FIRST),
    "compat value_and_grad": lambda f: lambda x: dot(ag.value_and_grad(f)(x)[1], FIRST),
    "compat grad_and_aux": lambda f: lambda x: dot(ag.grad_and_aux(lambda y: (f(y), 1))(x)[0], FIRST),
    "compat grad_named": lambda f: lambda x: dot(ag.grad_named(lambda y: f(y), "y")(x), FIRST),
    "compat multigrad_dict": lambda f: lambda x: dot(ag.multigrad_dict(lambda y: f(y))(y=x)["y"], FIRST),
    "compat elementwise_grad": lambda f: lambda x: dot(ag.elementwise_grad(f)(x), FIRST),
    "compat jacobian": lambda f: lambda x: dot(ag.jacobian(f)(x), FIRST),
    "compat make_vjp": lambda f: lambda x: dot(ag.make_vjp(f)(x)[0](1.0), FIRST),
    "compat make_jvp": lambda f: lambda x: ag.make_jvp(f)(x)(FIRST)[1],
    "compat make_jvp_reversemode": lambda f: lambda x: ag.differential_operators.make_jvp_reversemode(f)(x)(FIRST),
    "compat deriv": lambda f: lambda x: ag.deriv(lambda t: f(x + t * FIRST))(0.0),
    "compat tensor_jacobian_product": lambda f: lambda x: dot(ag.tensor_jacobian_product(f)(x, np.array(1.0)), FIRST),
}

SECOND_ORDER: dict[str, Callable[[Scalar], Scalar]] = {
    "hessian": lambda f: lambda x: quadratic(functional.hessian(f, x)),
    **{
        f"hessian, {strategy}, {vectorize}": lambda f, how=(strategy, vectorize): lambda x: quadratic(
            functional.hessian(f, x, outer_jacobian_strategy=how[0], vectorize=how[1])
        )
        for strategy in ("reverse-mode", "forward-mode")
        for vectorize in (False, True)
    },
    "jacobian of grad": lambda f: lambda x: quadratic(functional.jacobian(functional.grad(f), x)),
    "hvp": lambda f: lambda x: dot(functional.hvp(f, x, FIRST)[1], SECOND),
    "vhp": lambda f: lambda x: dot(functional.vhp(f, x, FIRST)[1], SECOND),
    "hvp, strict": lambda f: lambda x: dot(functional.hvp(f, x, FIRST, strict=True)[1], SECOND),
    "two managers": by_two_managers,
    "grad on one tape": by_grad_on_one_tape,
    "batched grad": by_batched_grad,
    "a level over reverse": by_level_over_reverse,
    "compat hessian": lambda f: lambda x: quadratic(ag.hessian(f)(x)),
    "compat make_hvp": lambda f: lambda x: dot(ag.make_hvp(f)(x)[0](FIRST), SECOND),
    "compat hessian_vector_product": lambda f: lambda x: dot(ag.hessian_vector_product(f)(x, FIRST), SECOND),
}

SAME: dict[str, Callable[[Scalar], Scalar]] = {
    "value of vjp": lambda f: lambda x: functional.vjp(f, x)[0],
    "value of jvp": lambda f: lambda x: functional.jvp(f, x, FIRST)[0],
    "value of hvp": lambda f: lambda x: functional.hvp(f, x, FIRST)[0],
    "value of vhp": lambda f: lambda x: functional.vhp(f, x, FIRST)[0],
    "value of value_and_grad": lambda f: lambda x: functional.value_and_grad(f)(x)[0],
    "value of compat value_and_grad": lambda f: lambda x: ag.value_and_grad(f)(x)[0],
    "checkpoint": lambda f: lambda x: checkpoint(f, x),
    "compat checkpoint": lambda f: lambda x: ag.checkpoint(f)(x),
}

SUMS: dict[str, Callable[[Scalar], Scalar]] = {
    "vmap": lambda f: lambda x: dot(vmap(f)(gnp.outer(SCALES, x)), SHARES),
    "vmap over scales": lambda f: lambda x: dot(vmap(lambda t: f(x * t))(SCALES), SHARES),
}

Transform = tuple[Callable[[Scalar], Scalar], Callable[[Sums], Sums]]

TRANSFORMS: dict[str, Transform] = {
    name: (transform, effect)
    for table, effect in ((FIRST_ORDER, once), (SECOND_ORDER, twice), (SAME, unchanged), (SUMS, scaled))
    for name, transform in table.items()
}


def sines(x: Any, w: Any) -> Any:
    return dot(w, gnp.sin(C @ x + B))


def close(found: Any, expected: Any, what: Any = "") -> None:
    found = found.numpy() if isinstance(found, Tensor) else found
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10, err_msg=str(what))


def check_composed(names: tuple[str, ...]) -> None:
    """Compose transforms, the outermost first, and compare the value, and its gradient by what was closed over."""
    w, composed = tensor(W), lambda x: sines(x, w)
    for name in reversed(names):
        composed = TRANSFORMS[name][0](composed)
    with GradManager().attach(w) as gm:
        y = composed(X)
        gm.backward(y)
    expected = expected_by_weights(*[TRANSFORMS[name][1] for name in names])
    close(y, W @ expected, names)
    close(w.grad, expected, names)


@pytest.mark.parametrize("outer", TRANSFORMS)
def test_each_transform_within_each_and_they_in_a_manager(outer: str) -> None:
    for inner in TRANSFORMS:
        check_composed((outer, inner))
