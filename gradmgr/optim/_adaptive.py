"""Further algorithms with a step size for each number: Adadelta, Adamax, NAdam, RAdam.

They are declared as those of `_algorithms`, which says what an update function is given.
"""

from __future__ import annotations

from typing import Any

from gradmgr.optim._algorithms import adam_by_rate, plan_with_decay, update_moments
from gradmgr.optim._chunks import Array, Plan, update_rule
from gradmgr.optim._numbers import Number, number, root
from gradmgr.optim._optimizer import Group, Optimizer, check_number, options_of

# ---------------------------------------------------------------- Adadelta


@update_rule(
    "s0 = s0 * c3 + c4 * y * y; W d = sqrt(s1 + c5) / sqrt(s0 + c5) * y; s1 = s1 * c3 + c4 * d * d; x -= c2 * d;"
)
def _adadelta(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, square: Array, moved: Array) -> None:
    xp.multiply(square, c[3], square)
    xp.multiply(g, g, t)
    xp.add(square, xp.multiply(t, c[4], t), square)
    xp.sqrt(xp.add(square, c[5], t), t)
    xp.sqrt(xp.add(moved, c[5], u), u)
    xp.multiply(xp.divide(u, t, u), g, u)
    xp.multiply(moved, c[3], moved)
    xp.multiply(u, u, t)
    xp.add(moved, xp.multiply(t, c[4], t), moved)
    xp.subtract(p, xp.multiply(u, c[2], u), p)


class Adadelta(Optimizer):
    """Adadelta: step by the gradient times the ratio of the root mean squares of past steps and past gradients.

    Zeiler: ADADELTA: An Adaptive Learning Rate Method (2012).

    Args:
        params: see `Optimizer`.
        lr: the factor of each step.
        rho: the decay factor of the two running means of squares, from 0 to 1.
        eps: added to both running means under the root.
        weight_decay: this multiple of the parameter is added to its gradient.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Adadelta([w], rho=0.75, eps=1e-4).step()
    >>> w.numpy().round(3).tolist()
    [0.98, 2.02]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1.0,
        rho: Number = 0.9,
        eps: Number = 1e-6,
        weight_decay: Number = 0,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay")
    _state = ("square_avg", "acc_delta")

    def _check_options(self, group: Group) -> None:
        super()._check_options(group)
        check_number("rho", group["rho"], high=1.0)

    def _plan(self, group: Group) -> Plan:
        rho = group["rho"]
        constants = group["lr"], rho, 1 - rho, group["eps"]
        return Plan(_adadelta, constants, decay=group["weight_decay"], maximize=group["maximize"])


# ---------------------------------------------------------------- Adamax


@update_rule("s0 += c2 * (y - s0); W d = abs(y) + c4; s1 *= c3; s1 = s1 > d ? s1 : d; x -= c5 * s0 / s1;")
def _adamax(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, largest: Array) -> None:
    xp.subtract(g, m, t)
    xp.add(m, xp.multiply(t, c[2], t), m)
    xp.multiply(largest, c[3], largest)
    xp.add(xp.absolute(g, t), c[4], t)
    xp.maximum(largest, t, out=largest)
    xp.multiply(xp.divide(m, largest, t), c[5], t)
    xp.subtract(p, t, p)


class Adamax(Optimizer):
    """Adamax: step by the running mean of the gradient over a decaying maximum of its absolute value.

    Kingma, Ba: Adam: A Method for Stochastic Optimization (2015), section 7.1.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: the decay factors of the running mean and of the maximum.
        eps: added to the absolute value of the gradient.
        weight_decay: this multiple of the parameter is added to its gradient.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Adamax([w], lr=0.5, eps=0).step()
    >>> w.tolist()
    [0.5, 2.5]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 2e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: Number = 1e-8,
        weight_decay: Number = 0,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay")
    _state = ("exp_avg", "exp_inf")

    def _plan(self, group: Group) -> Plan:
        lr, (beta1, beta2) = number(group["lr"]), group["betas"]
        return Plan(
            _adamax,
            (1 - beta1, beta2, group["eps"]),
            lambda step: [lr / (1 - beta1**step)],
            decay=group["weight_decay"],
            maximize=group["maximize"],
        )


# ---------------------------------------------------------------- NAdam, RAdam


@update_rule("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; x -= (c7 * y + c8 * s0) / (sqrt(s1 * c6) + c5);")
def _nadam(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array) -> None:
    update_moments(xp, c, g, t, m, v)
    xp.sqrt(xp.multiply(v, c[6], t), t)
    xp.add(t, c[5], t)
    xp.subtract(p, xp.divide(xp.multiply(g, c[7], u), t, u), p)
    xp.subtract(p, xp.divide(xp.multiply(m, c[8], u), t, u), p)


# From here on 1 minus a product of momenta is 1 in float64.
_NEGLIGIBLE = 1e-20


class NAdam(Optimizer):
    """NAdam: Adam with Nesterov momentum, which grows from step to step.

    Dozat: Incorporating Nesterov Momentum into Adam (2016). The momentum at step n is
    `betas[0] * (1 - 0.96 ** (n * momentum_decay) / 2)`. The product of the momenta of all steps so far is computed from
    the present options; torch keeps it, which differs where these options change during training.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: the decay factors of the two running means, of the gradient and of its square.
        eps: added to the divisor, the square root.
        weight_decay: this multiple of the parameter is added to its gradient.
        momentum_decay: how fast the momentum grows.
        decoupled_weight_decay: shrink the parameter by lr * weight_decay instead, as AdamW does.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.NAdam([w], lr=0.5, eps=0).step()
    >>> w.numpy().round(2).tolist()
    [0.47, 2.53]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 2e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: Number = 1e-8,
        weight_decay: Number = 0,
        momentum_decay: Number = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay", "momentum_decay")
    _state = ("exp_avg", "exp_avg_sq")

    def _plan(self, group: Group) -> Plan:
        lr, rate = number(group["lr"]), number(group["momentum_decay"])
        beta1, beta2 = group["betas"]
        products: list[Number] = [1.0]  # of the momenta of the first steps, until they are negligible

        def momentum(step: int) -> Number:
            return number(beta1 * (1 - 0.5 * 0.96 ** (step * rate)))  # type: ignore[no-any-return]  # a Number

        def by_step(step: int) -> list[Number]:
            while len(products) <= step and products[-1] > _NEGLIGIBLE:
                products.append(products[-1] * momentum(len(products)))
            product = products[min(step, len(products) - 1)]
            now, following = momentum(step), momentum(step + 1)
            return [1 / (1 - beta2**step), lr * (1 - now) / (1 - product), lr * following / (1 - product * following)]

        constants = 1 - beta1, beta2, 1 - beta2, group["eps"]
        return plan_with_decay(group, _nadam, constants, by_step, group["decoupled_weight_decay"])


_radam = update_rule("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; x -= c5 * (s0 / (sqrt(s1) * c6 + c7));")(
    adam_by_rate
)


class RAdam(Optimizer):
    """RAdam: Adam whose first steps, while the mean of squares is over few of them, do not divide by it.

    Liu and others: On the Variance of the Adaptive Learning Rate and Beyond (2020).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: the decay factors of the two running means, of the gradient and of its square.
        eps: added to the divisor, the square root.
        weight_decay: this multiple of the parameter is added to its gradient.
        decoupled_weight_decay: shrink the parameter by lr * weight_decay instead, as AdamW does.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.RAdam([w], lr=0.5).step()
    >>> w.numpy().round(2).tolist()
    [-4.0, 2.05]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: Number = 1e-8,
        weight_decay: Number = 0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay")
    _state = ("exp_avg", "exp_avg_sq")

    def _plan(self, group: Group) -> Plan:
        lr, eps = number(group["lr"]), number(group["eps"])
        beta1, beta2 = group["betas"]
        longest = 2 / (1 - beta2) - 1

        def by_step(step: int) -> list[Number]:
            rate, rest = lr / (1 - beta1**step), 1 - beta2**step
            length = longest - 2 * step * beta2**step / rest  # of the mean of squares, in steps
            if length <= 5:
                return [rate, 0.0, 1.0]
            rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            return [rate * root(rest * rectified), 1.0, eps]

        constants = 1 - beta1, beta2, 1 - beta2
        return plan_with_decay(group, _radam, constants, by_step, group["decoupled_weight_decay"])
