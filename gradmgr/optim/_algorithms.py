"""The optimisation algorithms: SGD, Adam, AdamW, SparseAdam, RMSprop, Adagrad, Lion.

The constructor of each declares its options and their defaults; `_nonnegative` names the options that must be numbers
of at least 0, and `_state` the arrays that may be kept for each parameter. `_plan` says how a step is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmgr._engine.tensor import Tensor
from gradmgr.optim._chunks import ByStep, Plan, RowUse, Update, update_rule
from gradmgr.optim._numbers import Number, is_used, number, root
from gradmgr.optim._optimizer import Group, Optimizer, check_number, options_of

Array = Any

# The update functions compute in place: p is the parameter, g its gradient, which they do not write to, t and u are
# scratch rows, and an algorithm's constants begin at c[2] (c[0] and c[1] are weight decay and shrinking).
# `xp.f(a, b, t)` writes to t. Formulas are rearranged where that saves a call, as calls dominate for small parameters.


# ---------------------------------------------------------------- SGD


@update_rule("x -= c2 * y;", "sgd")
def _descend(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array) -> None:
    xp.subtract(p, xp.multiply(g, c[2], t), p)


def _velocity(xp: Any, c: Any, g: Array, t: Array, buffer: Array) -> None:
    xp.multiply(buffer, c[3], buffer)
    xp.add(buffer, g, buffer)


@update_rule("s0 = s0 * c3 + y; x -= c2 * s0;", "sgd_momentum")
def _momentum(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    _velocity(xp, c, g, t, buffer)
    xp.subtract(p, xp.multiply(buffer, c[2], t), p)


@update_rule("s0 = s0 * c3 + c4 * y; x -= c2 * s0;")
def _damped(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    xp.multiply(buffer, c[3], buffer)
    xp.add(buffer, xp.multiply(g, c[4], t), buffer)
    xp.subtract(p, xp.multiply(buffer, c[2], t), p)


@update_rule("s0 = s0 * c3 + y; x -= c2 * (y + c3 * s0);")
def _nesterov(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    _velocity(xp, c, g, t, buffer)
    xp.add(xp.multiply(buffer, c[3], t), g, t)
    xp.subtract(p, xp.multiply(t, c[2], t), p)


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum or Nesterov momentum.

    With momentum m, its buffer b and dampening d, a step computes `b = m b + (1 - d) g` (at the first step b = g) and
    `p -= lr b`; with Nesterov momentum `p -= lr (g + m b)`. From Sutskever, Martens, Dahl, Hinton: On the importance of
    initialization and momentum in deep learning (2013), except that b does not contain lr, as in torch.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        momentum: the factor of the buffer at each step; with 0 no state is kept.
        dampening: the gradient is added to the buffer times 1 - dampening.
        weight_decay: this multiple of the parameter is added to its gradient.
        nesterov: use Nesterov momentum; needs a momentum above 0 and a dampening of 0.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, 10.0])
    >>> gradmgr.optim.SGD([w], lr=0.1).step()
    >>> w.tolist()
    [0.0, 1.0]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        momentum: Number = 0,
        dampening: Number = 0,
        weight_decay: Number = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "momentum", "weight_decay")
    _state = ("momentum_buffer",)

    def _check_options(self, group: Group) -> None:
        super()._check_options(group)
        check_number("dampening", group["dampening"], low=-float("inf"))
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                "nesterov=True needs a momentum above 0 and a dampening of 0; "
                f"found momentum={group['momentum']!r}, dampening={group['dampening']!r}"
            )

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return self._state if is_used(group["momentum"]) else ()

    def _plan(self, group: Group) -> Plan:
        momentum, dampening = group["momentum"], group["dampening"]
        decay, maximize = group["weight_decay"], group["maximize"]
        if not is_used(momentum):
            rows: RowUse = "dense" if is_used(decay) else "update"
            return Plan(_descend, (group["lr"],), decay=decay, maximize=maximize, counts_step=False, rows=rows)
        update = _nesterov if group["nesterov"] else _damped if is_used(dampening) else _momentum
        return Plan(update, (group["lr"], momentum, 1 - dampening), decay=decay, maximize=maximize, rows="dense")

    def _first_plan(self, group: Group, plan: Plan) -> Plan:
        if plan.compute is not _damped[0]:
            return plan
        constants = group["lr"], group["momentum"]
        return Plan(_momentum, constants, decay=group["weight_decay"], maximize=group["maximize"], rows="dense")


# ---------------------------------------------------------------- Adam


def plan_with_decay(
    group: Group, update: Update, constants: Sequence[Number], by_step: ByStep | None, decoupled: bool
) -> Plan:
    """Return a plan in which weight decay is added to the gradient, or, decoupled, shrinks the parameter."""
    decay, maximize = group["weight_decay"], group["maximize"]
    if decoupled:
        return Plan(update, constants, by_step, shrink=1 - number(group["lr"]) * decay, maximize=maximize)
    return Plan(update, constants, by_step, decay=decay, maximize=maximize)


def update_moments(xp: Any, c: Any, g: Array, t: Array, m: Array, v: Array) -> None:
    """Update the running means of the gradient and of its square; c2, c3, c4 are 1 - beta1, beta2 and 1 - beta2."""
    xp.subtract(g, m, t)
    xp.add(m, xp.multiply(t, c[2], t), m)
    xp.multiply(v, c[3], v)
    xp.multiply(g, g, t)
    xp.add(v, xp.multiply(t, c[4], t), v)


@update_rule("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; x -= s0 / (sqrt(s1) * c5 + c6);", "adam")
def _adam(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array) -> None:
    xp.subtract(g, m, t)  # `update_moments` and `_adam_step` written out, which saves two calls
    xp.add(m, xp.multiply(t, c[2], t), m)
    xp.multiply(v, c[3], v)
    xp.multiply(g, g, t)
    xp.add(v, xp.multiply(t, c[4], t), v)
    xp.multiply(xp.sqrt(v, t), c[5], t)
    xp.add(t, c[6], t)
    xp.subtract(p, xp.divide(m, t, t), p)


@update_rule("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; s2 = s2 > s1 ? s2 : s1; x -= s0 / (sqrt(s2) * c5 + c6);")
def _amsgrad(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array, largest: Array) -> None:
    update_moments(xp, c, g, t, m, v)
    xp.maximum(largest, v, out=largest)
    _adam_step(xp, c, p, t, m, largest)


def _adam_step(xp: Any, c: Any, p: Array, t: Array, m: Array, v: Array) -> None:
    """Subtract m / (c5 sqrt(v) + c6) from p; c5 and c6 contain the learning rate and the bias correction."""
    xp.multiply(xp.sqrt(v, t), c[5], t)
    xp.add(t, c[6], t)
    xp.subtract(p, xp.divide(m, t, t), p)


def adam_by_rate(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array, *largest: Array) -> None:
    """Do as Adam, with the learning rate as a factor, c5; c6 and c7 are the bias correction and eps."""
    update_moments(xp, c, g, t, m, v)
    if largest:
        xp.maximum(largest[0], v, out=largest[0])
    xp.multiply(xp.sqrt(largest[0] if largest else v, t), c[6], t)
    xp.add(t, c[7], t)
    xp.multiply(xp.divide(m, t, t), c[5], t)
    xp.subtract(p, t, p)


# For a learning rate of 0 that is a Tensor, by which the step has a derivative.
_adam_at_rate_0 = update_rule()(adam_by_rate)


@update_rule()
def _update_moments_only(
    xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array, *largest: Array
) -> None:
    """Update the running means alone, for a learning rate of 0, by which c5 and c6 would divide."""
    update_moments(xp, c, g, t, m, v)
    if largest:
        xp.maximum(largest[0], v, out=largest[0])


class Adam(Optimizer):
    """Adam: step by the running mean of the gradient over the square root of the running mean of its square.

    Kingma, Ba: Adam: A Method for Stochastic Optimization (2015). With `amsgrad` the divisor uses the largest running
    mean square so far: Reddi, Kale, Kumar: On the Convergence of Adam and Beyond (2018).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: the decay factors of the two running means, of the gradient and of its square.
        eps: added to the divisor, the square root.
        weight_decay: this multiple of the parameter is added to its gradient; AdamW decays apart from it.
        amsgrad: use the largest running mean square so far.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Adam([w], lr=0.5, eps=0).step()
    >>> w.tolist()
    [0.5, 2.5]
    """

    _decoupled = False  # whether weight decay shrinks the parameter itself instead of entering the gradient

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: Number = 1e-8,
        weight_decay: Number = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay")
    _state = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return self._state if group["amsgrad"] else self._state[:2]

    def _plan(self, group: Group) -> Plan:
        lr, eps = number(group["lr"]), group["eps"]
        beta1, beta2 = group["betas"]

        def bias_corrected(step: int) -> list[Number]:
            rate = lr / (1 - beta1**step)
            return [1 / (root(1 - beta2**step) * rate), number(eps / rate)]

        def by_rate(step: int) -> list[Number]:
            return [lr / (1 - beta1**step), 1 / root(1 - beta2**step), eps]

        update: Update = _amsgrad if group["amsgrad"] else _adam
        by_step: ByStep | None = bias_corrected
        if not lr:
            update, by_step = (_adam_at_rate_0, by_rate) if isinstance(lr, Tensor) else (_update_moments_only, None)
        constants = 1 - beta1, beta2, 1 - beta2
        return plan_with_decay(group, update, constants, by_step, self._decoupled)


class AdamW(Adam):
    """Adam with decoupled weight decay: `p *= 1 - lr * weight_decay` before each step.

    Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: the decay factors of the two running means, of the gradient and of its square.
        eps: added to the divisor, the square root.
        weight_decay: each step multiplies the parameter by 1 - lr * weight_decay.
        amsgrad: use the largest running mean square so far.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([0.0, 0.0])
    >>> gradmgr.optim.AdamW([w], lr=0.5, weight_decay=0.5).step()
    >>> w.tolist()
    [0.75, 1.5]
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        betas: tuple[Number, Number] = (0.9, 0.999),
        eps: Number = 1e-8,
        weight_decay: Number = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, **options_of(locals()))


class SparseAdam(Optimizer):
    """Adam for gradients of rows, as `embedding(..., sparse=True)` gives them: a step changes these rows alone.

    The running means of other rows do not decay, which Adam's do: so a step takes time in proportion to the rows that
    were read. As in torch, eps is added to the square root before the bias correction.

    Args:
        params: see `Optimizer`; tables whose gradients are all of rows.
        lr: the learning rate.
        betas: the decay factors of the two running means, of the gradient and of its square.
        eps: added to the divisor, the square root.
        maximize: step along the gradient instead of against it.

    Raises:
        TypeError, ValueError: see `Optimizer`.
        UnsupportedFunctionError: in `step`: a gradient is that of the whole table.

    >>> import gradmgr
    >>> from gradmgr import sparse
    >>> w = gradmgr.tensor([[1.0], [2.0], [3.0]])
    >>> w.grad = sparse.RowSparse([1], [[-10.0]], (3, 1))
    >>> gradmgr.optim.SparseAdam([w], lr=0.5, eps=0).step()
    >>> w.tolist()
    [[1.0], [2.5], [3.0]]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps")
    _state = ("exp_avg", "exp_avg_sq")
    _packs = False  # rows of a table are updated in the table itself

    def _plan(self, group: Group) -> Plan:
        lr, eps = float(group["lr"]), group["eps"]
        beta1, beta2 = group["betas"]

        def bias_corrected(step: int) -> list[Number]:
            factor = (1 - beta1**step) / (lr * root(1 - beta2**step))
            return [factor, float(eps * factor)]

        update, by_step = (_adam, bias_corrected) if lr else (_update_moments_only, None)
        constants = 1 - beta1, beta2, 1 - beta2
        return Plan(update, constants, by_step, maximize=group["maximize"], rows="need")


# ---------------------------------------------------------------- RMSprop, Adagrad, Lion


def _mean_square(xp: Any, c: Any, g: Array, t: Array, square: Array) -> None:
    xp.multiply(square, c[4], square)
    xp.multiply(g, g, t)
    xp.add(square, xp.multiply(t, c[5], t), square)


def _rms_step(xp: Any, c: Any, p: Array, g: Array, t: Array, buffer: tuple[Array, ...]) -> None:
    """Subtract lr * g / (t + eps) from p, or, with a momentum buffer, lr times the running sum of g / (t + eps)."""
    xp.add(t, c[6], t)
    xp.divide(g, t, t)
    if buffer:
        xp.multiply(buffer[0], c[3], buffer[0])
        xp.add(buffer[0], t, buffer[0])
        xp.multiply(buffer[0], c[2], t)
    else:
        xp.multiply(t, c[2], t)
    xp.subtract(p, t, p)


def _by_mean_square(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, square: Array, *buffer: Array) -> None:
    _mean_square(xp, c, g, t, square)
    xp.sqrt(square, t)
    _rms_step(xp, c, p, g, t, buffer)


_SQUARED = "s0 = s0 * c4 + c5 * y * y; "
_rmsprop = update_rule(_SQUARED + "x -= c2 * (y / (sqrt(s0) + c6));")(_by_mean_square)
_rmsprop_with_momentum = update_rule(_SQUARED + "s1 = s1 * c3 + y / (sqrt(s0) + c6); x -= c2 * s1;")(_by_mean_square)


@update_rule()  # no fused kernel: the difference below would be rounded only once there, and be negative more often
def _centered(
    xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, square: Array, mean: Array, *buffer: Array
) -> None:
    _mean_square(xp, c, g, t, square)
    xp.subtract(g, mean, t)
    xp.add(mean, xp.multiply(t, c[5], t), mean)
    xp.multiply(mean, mean, t)
    xp.sqrt(xp.subtract(square, t, t), t)
    _rms_step(xp, c, p, g, t, buffer)


class RMSprop(Optimizer):
    """RMSprop: step by the gradient over the square root of the running mean of its square.

    Hinton: Neural Networks for Machine Learning, lecture 6 (2012). The centred variant follows Graves: Generating
    Sequences With Recurrent Neural Networks (2013), except that eps is added after the square root.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        alpha: the decay factor of the running mean.
        eps: added to the divisor, the square root.
        weight_decay: this multiple of the parameter is added to its gradient.
        momentum: the factor of the momentum buffer at each step; with 0 there is none.
        centered: divide by the square root of the variance instead of the mean square.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.RMSprop([w], lr=0.5, alpha=0.75, eps=0).step()
    >>> w.tolist()
    [0.0, 3.0]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-2,
        alpha: Number = 0.99,
        eps: Number = 1e-8,
        weight_decay: Number = 0,
        momentum: Number = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "eps", "weight_decay", "momentum", "alpha")
    _state = ("square_avg", "grad_avg", "momentum_buffer")

    def _state_names(self, group: Group) -> tuple[str, ...]:
        wanted = True, group["centered"], is_used(group["momentum"])
        return tuple([name for name, is_wanted in zip(self._state, wanted, strict=True) if is_wanted])

    def _plan(self, group: Group) -> Plan:
        alpha = group["alpha"]
        return Plan(
            _centered if group["centered"] else _rmsprop_with_momentum if is_used(group["momentum"]) else _rmsprop,
            (group["lr"], group["momentum"], alpha, 1 - alpha, group["eps"]),
            decay=group["weight_decay"],
            maximize=group["maximize"],
        )


@update_rule("s0 += y * y; x -= c3 * y / (sqrt(s0) + c2);")
def _adagrad(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, total: Array) -> None:
    xp.add(total, xp.multiply(g, g, t), total)
    xp.add(xp.sqrt(total, t), c[2], t)
    xp.multiply(xp.divide(g, t, t), c[3], t)
    xp.subtract(p, t, p)


class Adagrad(Optimizer):
    """Adagrad: step by the gradient over the square root of the sum of all its squares so far.

    Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization (2011).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        lr_decay: at step n the learning rate is lr / (1 + (n - 1) lr_decay).
        weight_decay: this multiple of the parameter is added to its gradient.
        initial_accumulator_value: the initial value of the sum.
        eps: added to the divisor, the square root.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Adagrad([w], lr=0.5, eps=0).step()
    >>> w.tolist()
    [0.5, 2.5]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-2,
        lr_decay: Number = 0,
        weight_decay: Number = 0,
        initial_accumulator_value: Number = 0,
        eps: Number = 1e-10,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    _state = ("sum",)

    def _initial_value(self, group: Group, name: str) -> Number:
        return number(group["initial_accumulator_value"])  # type: ignore[no-any-return]  # a Number

    def _plan(self, group: Group) -> Plan:
        lr, lr_decay = number(group["lr"]), number(group["lr_decay"])
        return Plan(
            _adagrad,
            (group["eps"],),
            lambda step: [lr / (1 + (step - 1) * lr_decay)],
            decay=group["weight_decay"],
            maximize=group["maximize"],
            rows="dense" if is_used(group["weight_decay"]) else "update",
        )


@update_rule("W d = s0 + c3 * (y - s0); d = d > 0 ? 1 : d; d = d < 0 ? -1 : d; x -= c2 * d; s0 += c4 * (y - s0);")
def _lion(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array) -> None:
    xp.multiply(xp.subtract(g, m, t), c[3], t)
    xp.sign(xp.add(t, m, t), u)  # in place NumPy's loop branches per element and takes ten times as long
    xp.subtract(p, xp.multiply(u, c[2], u), p)
    xp.multiply(xp.subtract(g, m, t), c[4], t)
    xp.add(m, t, m)


class Lion(Optimizer):
    """Lion: step by the sign of a weighted mean of the gradient and its running mean.

    With m the running mean: `p -= lr sign(b1 m + (1 - b1) g)`, then `m = b2 m + (1 - b2) g`. Chen and others: Symbolic
    Discovery of Optimization Algorithms (2023), which advises a learning rate 3 to 10 times smaller than AdamW's, and a
    weight decay larger by as much.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: b1 and b2.
        weight_decay: before each step, `p *= 1 - lr * weight_decay`.
        maximize: step along the gradient instead of against it.
        differentiable: record a step inside a recording; see `Optimizer`.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Lion([w], lr=0.5).step()
    >>> w.tolist()
    [0.5, 2.5]
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-4,
        betas: tuple[Number, Number] = (0.9, 0.99),
        weight_decay: Number = 0,
        *,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "weight_decay")
    _state = ("exp_avg",)

    def _plan(self, group: Group) -> Plan:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        shrink = 1 - lr * group["weight_decay"]
        return Plan(_lion, (lr, 1 - beta1, 1 - beta2), shrink=shrink, maximize=group["maximize"])
