"""SGD, Adam, AdamW, RMSprop, Adagrad, Lion."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gradmgr.optim._chunks import Plan, written
from gradmgr.optim._optimizer import Group, Optimizer, check_betas, check_number

Array = Any

# The updates compute in place, with two rows of scratch, t and u, and constants c from the third on. `xp.f(a, b, t)`
# writes to t. What is written with fewer calls than the formula has operations is so for speed.


# ---------------------------------------------------------------- SGD


@written("x -= c2 * y;")
def _descend(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array) -> None:
    xp.subtract(p, xp.multiply(g, c[2], t), p)


def _velocity(xp: Any, c: Any, g: Array, t: Array, buffer: Array) -> None:
    xp.multiply(buffer, c[3], buffer)
    xp.add(buffer, g, buffer)


@written("s0 = s0 * c3 + y; x -= c2 * s0;")
def _momentum(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    _velocity(xp, c, g, t, buffer)
    xp.subtract(p, xp.multiply(buffer, c[2], t), p)


@written("s0 = s0 * c3 + c4 * y; x -= c2 * s0;")
def _damped(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    xp.multiply(buffer, c[3], buffer)
    xp.add(buffer, xp.multiply(g, c[4], t), buffer)
    xp.subtract(p, xp.multiply(buffer, c[2], t), p)


@written("s0 = s0 * c3 + y; x -= c2 * (y + c3 * s0);")
def _nesterov(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, buffer: Array) -> None:
    _velocity(xp, c, g, t, buffer)
    xp.add(xp.multiply(buffer, c[3], t), g, t)
    xp.subtract(p, xp.multiply(t, c[2], t), p)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum or Nesterov's.

    With b the buffer of momentum m and d the dampening: `b = m b + (1 - d) g`, b = g at the first step, and
    `p -= lr b`; for Nesterov's `p -= lr (g + m b)`. From Sutskever, Martens, Dahl, Hinton: On the importance of
    initialization and momentum in deep learning (2013), with lr outside of the buffer.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        momentum: the part of the last step that goes on; 0 keeps no state.
        dampening: what the gradient enters the buffer less by.
        weight_decay: adds this multiple of the parameter to its gradient.
        nesterov: look ahead; needs momentum, and no dampening.
        maximize: climb instead.

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
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            check_number(name, group[name])
        check_number("dampening", group["dampening"], low=-float("inf"))
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                "nesterov=True needs a momentum above 0 and a dampening of 0; "
                f"found momentum={group['momentum']!r}, dampening={group['dampening']!r}"
            )

    def _known_state(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _plan(self, group: Group) -> Plan:
        momentum, dampening = group["momentum"], group["dampening"]
        decay, maximize = group["weight_decay"], group["maximize"]
        if not momentum:
            return Plan(_descend, (group["lr"],), decay=decay, maximize=maximize, counts=False)
        update = _nesterov if group["nesterov"] else _damped if dampening else _momentum
        return Plan(update, (group["lr"], momentum, 1 - dampening), decay=decay, maximize=maximize)

    def _first_plan(self, group: Group, plan: Plan) -> Plan:
        if plan.compute is not _damped[0]:
            return plan
        constants = group["lr"], group["momentum"]
        return Plan(_momentum, constants, decay=group["weight_decay"], maximize=group["maximize"])


# ---------------------------------------------------------------- Adam


def _moments(xp: Any, c: Any, g: Array, t: Array, m: Array, v: Array) -> None:
    xp.subtract(g, m, t)
    xp.add(m, xp.multiply(t, c[2], t), m)
    xp.multiply(v, c[3], v)
    xp.multiply(g, g, t)
    xp.add(v, xp.multiply(t, c[4], t), v)


@written("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; x -= s0 / (sqrt(s1) * c5 + c6);")
def _adam(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array) -> None:
    xp.subtract(g, m, t)  # as `_moments` and `_adam_step` do, without the two calls
    xp.add(m, xp.multiply(t, c[2], t), m)
    xp.multiply(v, c[3], v)
    xp.multiply(g, g, t)
    xp.add(v, xp.multiply(t, c[4], t), v)
    xp.multiply(xp.sqrt(v, t), c[5], t)
    xp.add(t, c[6], t)
    xp.subtract(p, xp.divide(m, t, t), p)


@written("s0 += c2 * (y - s0); s1 = s1 * c3 + c4 * y * y; s2 = s2 > s1 ? s2 : s1; x -= s0 / (sqrt(s2) * c5 + c6);")
def _amsgrad(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array, largest: Array) -> None:
    _moments(xp, c, g, t, m, v)
    xp.maximum(largest, v, out=largest)
    _adam_step(xp, c, p, t, m, largest)


def _adam_step(xp: Any, c: Any, p: Array, t: Array, m: Array, v: Array) -> None:
    """Take the step m / (sqrt(v) a + b): the learning rate and the correction for the start are in a and b."""
    xp.multiply(xp.sqrt(v, t), c[5], t)
    xp.add(t, c[6], t)
    xp.subtract(p, xp.divide(m, t, t), p)


@written()
def _still(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array, v: Array, *largest: Array) -> None:
    """Keep the averages, at a learning rate of 0."""
    _moments(xp, c, g, t, m, v)
    if largest:
        xp.maximum(largest[0], v, out=largest[0])


class Adam(Optimizer):
    """Adam: steps by a running mean of the gradient over the root of one of its square.

    Kingma, Ba: Adam: A Method for Stochastic Optimization (2015). With `amsgrad` the largest mean square so far
    counts: Reddi, Kale, Kumar: On the Convergence of Adam and Beyond (2018).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: what the two running means keep at each step.
        eps: added to the root.
        weight_decay: adds this multiple of the parameter to its gradient; see AdamW for the other way.
        amsgrad: divide by the largest so far.
        maximize: climb instead.

    Raises:
        TypeError, ValueError: see `Optimizer`.

    >>> import gradmgr
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> w.grad = gradmgr.tensor([10.0, -0.1])
    >>> gradmgr.optim.Adam([w], lr=0.5, eps=0).step()
    >>> w.tolist()
    [0.5, 2.5]
    """

    _decoupled = False  # whether weight decay is apart from the gradient

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay"):
            check_number(name, group[name])
        check_betas(group["betas"])

    def _known_state(self) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq", "max_exp_avg_sq"

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return self._known_state() if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def _plan(self, group: Group) -> Plan:
        lr, eps, decay = float(group["lr"]), group["eps"], group["weight_decay"]
        beta1, beta2 = group["betas"]

        def corrected(step: int) -> list[float]:
            rate = lr / (1 - beta1**step)
            return [1 / (sqrt(1 - beta2**step) * rate), float(eps / rate)]

        update, moving = (_amsgrad if group["amsgrad"] else _adam, corrected) if lr else (_still, None)
        constants = 1 - beta1, beta2, 1 - beta2
        if self._decoupled:
            return Plan(update, constants, moving, shrink=1 - lr * decay, maximize=group["maximize"])
        return Plan(update, constants, moving, decay=decay, maximize=group["maximize"])


class AdamW(Adam):
    """Adam with weight decay apart from the gradient: `p *= 1 - lr * weight_decay` before each step.

    Loshchilov, Hutter: Decoupled Weight Decay Regularization (2019).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: what the two running means keep at each step.
        eps: added to the root.
        weight_decay: what part of the parameter goes, times lr.
        amsgrad: divide by the largest mean square so far.
        maximize: climb instead.

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
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


# ---------------------------------------------------------------- RMSprop, Adagrad, Lion


def _mean_square(xp: Any, c: Any, g: Array, t: Array, square: Array) -> None:
    xp.multiply(square, c[4], square)
    xp.multiply(g, g, t)
    xp.add(square, xp.multiply(t, c[5], t), square)


def _rms_step(xp: Any, c: Any, p: Array, g: Array, t: Array, buffer: tuple[Array, ...]) -> None:
    """Step by g over t + eps, or by the momentum of that."""
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
_rmsprop = written(_SQUARED + "x -= c2 * (y / (sqrt(s0) + c6));")(_by_mean_square)
_rmsprop_with_momentum = written(_SQUARED + "s1 = s1 * c3 + y / (sqrt(s0) + c6); x -= c2 * s1;")(_by_mean_square)


@written()  # in one kernel the difference below would be rounded once, and fall below 0 more often
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
    """RMSprop: steps by the gradient over the root of a running mean of its square.

    Hinton: Neural Networks for Machine Learning, lecture 6 (2012); centred, after Graves: Generating Sequences With
    Recurrent Neural Networks (2013), with eps outside of the root.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        alpha: what the running mean keeps at each step.
        eps: added to the root.
        weight_decay: adds this multiple of the parameter to its gradient.
        momentum: the part of the last step that goes on.
        centered: divide by the root of the variance, not of the mean square.
        maximize: climb instead.

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
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
                "maximize": maximize,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "eps", "weight_decay", "momentum", "alpha"):
            check_number(name, group[name])

    def _known_state(self) -> tuple[str, ...]:
        return "square_avg", "grad_avg", "momentum_buffer"

    def _state_names(self, group: Group) -> tuple[str, ...]:
        wanted = True, group["centered"], group["momentum"] > 0
        return tuple([name for name, is_wanted in zip(self._known_state(), wanted, strict=True) if is_wanted])

    def _plan(self, group: Group) -> Plan:
        alpha = group["alpha"]
        return Plan(
            _centered if group["centered"] else _rmsprop_with_momentum if group["momentum"] > 0 else _rmsprop,
            (group["lr"], group["momentum"], alpha, 1 - alpha, group["eps"]),
            decay=group["weight_decay"],
            maximize=group["maximize"],
        )


@written("s0 += y * y; x -= c3 * y / (sqrt(s0) + c2);")
def _adagrad(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, total: Array) -> None:
    xp.add(total, xp.multiply(g, g, t), total)
    xp.add(xp.sqrt(total, t), c[2], t)
    xp.multiply(xp.divide(g, t, t), c[3], t)
    xp.subtract(p, t, p)


class Adagrad(Optimizer):
    """Adagrad: steps by the gradient over the root of the sum of all its squares.

    Duchi, Hazan, Singer: Adaptive Subgradient Methods for Online Learning and Stochastic Optimization (2011).

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        lr_decay: at step n the learning rate is lr / (1 + (n - 1) lr_decay).
        weight_decay: adds this multiple of the parameter to its gradient.
        initial_accumulator_value: what the sum begins with.
        eps: added to the root.
        maximize: climb instead.

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
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "eps": eps,
                "maximize": maximize,
            },
        )

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            check_number(name, group[name])

    def _known_state(self) -> tuple[str, ...]:
        return ("sum",)

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _initial(self, group: Group, name: str) -> float:
        return float(group["initial_accumulator_value"])

    def _plan(self, group: Group) -> Plan:
        lr, slower = float(group["lr"]), float(group["lr_decay"])
        return Plan(
            _adagrad,
            (group["eps"],),
            lambda step: [lr / (1 + (step - 1) * slower)],
            decay=group["weight_decay"],
            maximize=group["maximize"],
        )


@written("W d = s0 + c3 * (y - s0); d = d > 0 ? 1 : d; d = d < 0 ? -1 : d; x -= c2 * d; s0 += c4 * (y - s0);")
def _lion(xp: Any, c: Any, p: Array, g: Array, t: Array, u: Array, m: Array) -> None:
    xp.multiply(xp.subtract(g, m, t), c[3], t)
    xp.sign(xp.add(t, m, t), u)  # in place NumPy's loop has a branch for each number, and takes ten times as long
    xp.subtract(p, xp.multiply(u, c[2], u), p)
    xp.multiply(xp.subtract(g, m, t), c[4], t)
    xp.add(m, t, m)


class Lion(Optimizer):
    """Lion: steps by the sign of an average of the gradient and its running mean.

    With m the running mean: `p -= lr sign(b1 m + (1 - b1) g)`, then `m = b2 m + (1 - b2) g`. Chen and others: Symbolic
    Discovery of Optimization Algorithms (2023), which advises a learning rate 3 to 10 times smaller than AdamW's, and a
    weight decay larger by as much.

    Args:
        params: see `Optimizer`.
        lr: the learning rate.
        betas: b1 and b2.
        weight_decay: before each step, `p *= 1 - lr * weight_decay`.
        maximize: climb instead.

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
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def _check_options(self, group: Group) -> None:
        for name in ("lr", "weight_decay"):
            check_number(name, group[name])
        check_betas(group["betas"])

    def _known_state(self) -> tuple[str, ...]:
        return ("exp_avg",)

    def _state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg",)

    def _plan(self, group: Group) -> Plan:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        shrink = 1 - lr * group["weight_decay"]
        return Plan(_lion, (lr, 1 - beta1, 1 - beta2), shrink=shrink, maximize=group["maximize"])
