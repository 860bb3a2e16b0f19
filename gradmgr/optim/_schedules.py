"""The base class of learning rate schedules, and those that depend on the step alone."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import cos, pi
from typing import Any

from gradmgr import errors
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine.capture_notes import refuse_in_replay, runs_each_time_without_tensors
from gradmgr._engine.tensor import Tensor, bare
from gradmgr.optim._optimizer import Group, Optimizer, check_number


def check_optimizer(optimizer: Any, asked: str) -> None:
    """Raise unless it is an optimiser whose learning rates may be set to numbers."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{asked} takes an optimiser of gradmgr.optim; found {type(optimizer).__name__}")
    for k, group in enumerate(optimizer.param_groups):
        if group.get("differentiable") and isinstance(group.get("lr"), Tensor):
            raise ValueError(
                f"{asked} sets `lr` to a number; in group {k} it is a Tensor, by which steps have a derivative; "
                f"set optimizer.param_groups[{k}]['lr'] to a function of the Tensor before each step instead"
            )


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number above 0; found {value!r}")


class Saved:
    """A schedule whose attributes are its state.

    It changes as a whole: its attributes, those of the schedules it is made of, and the options of the optimiser.
    """

    _left_out: tuple[str, ...] = ("optimizer",)
    optimizer: Optimizer

    def _change(self, change: Callable[[Any], object], *more: Call) -> None:
        """Apply `change` to a copy of the schedule and of its optimiser's groups; then take over all that has changed.

        Within another change, where the schedule is such a copy, it is applied to the schedule itself.

        Args:
            change: takes the copy.
            more: calls to make with the rest.
        """
        groups = self.optimizer.param_groups
        later = self.optimizer.__dict__.get("_later")
        if later is not None:
            change(self)
            later.extend(more)
            return
        trial = _with_groups(self.optimizer, [dict(group) for group in groups])
        pairs: list[tuple[Saved, Saved]] = []
        change(self._copied(trial, pairs))
        calls: list[Call] = [*trial.__dict__["_later"], *more]
        calls += [(group.update, changed) for group, changed in zip(groups, trial.param_groups, strict=True)]
        for schedule, copy in pairs:
            kept = {key: value for key, value in copy.__dict__.items() if key not in ("_schedulers", "optimizer")}
            calls.append((schedule.__dict__.update, kept))
        run_atomically(calls)

    def _copied(self, optimizer: Optimizer, pairs: list[tuple[Saved, Saved]]) -> Any:
        """Return a copy with another optimiser, and note the pair."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, optimizer=optimizer)
        pairs.append((self, made))
        return made

    def state_dict(self) -> dict[str, Any]:
        """Return the state: all attributes but the optimiser and functions."""
        refuse_in_replay(f"state_dict() of {type(self).__name__}")
        return {key: value for key, value in self.__dict__.items() if key not in self._left_out}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state to that of a schedule of the same kind; the `lr` is part of the optimiser's state.

        Raises:
            StateError: it is of another kind of schedule; nothing is then changed.
        """
        wanted = {key for key in self.__dict__ if key not in self._left_out}
        missing, unknown = sorted(wanted - set(state_dict)), sorted(set(state_dict) - wanted)
        if missing or unknown:
            raise errors.StateError(
                f"load_state_dict: the state does not fit {type(self).__name__}: "
                f"missing: {missing or 'none'}, unknown: {unknown or 'none'}"
            )
        self.__dict__.update(dict(state_dict))


def _with_groups(optimizer: Optimizer, groups: list[Group]) -> Optimizer:
    """Return what looks like the optimiser to a schedule, with these groups, and a list of calls to make later."""
    made = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__, param_groups=groups, _later=[])
    return made


class LRScheduler(Saved):
    """The base class of schedules: it counts steps, and sets each group's `lr` to what `get_lr` returns.

    Args:
        optimizer: the optimiser whose groups' `lr` it sets.
        last_epoch: -1 starts, and stores each group's `lr` as its "initial_lr". Over an optimiser whose state was
            loaded after k steps of a schedule, k - 1 goes on, with the `lr` of that state.

    Raises:
        TypeError: `optimizer` is not an Optimizer.
        ValueError: it is differentiable, and an `lr` is a Tensor.
        KeyError: last_epoch is not -1, and a group has no "initial_lr".

    >>> import gradmgr
    >>> class HalveEachStep(gradmgr.optim.lr_scheduler.LRScheduler):
    ...     def get_lr(self):
    ...         return [lr * 0.5**self.last_epoch for lr in self.base_lrs]
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = HalveEachStep(optimizer)
    >>> optimizer.step(); schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer, type(self).__name__)
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch != -1 and "initial_lr" not in group:
                raise KeyError(
                    f"parameter group {k} has no 'initial_lr', which going on from last_epoch={last_epoch} needs; "
                    "load the optimiser's state first, or set it"
                )
        self.optimizer = optimizer
        self.base_lrs: list[float] = []
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[float] = []
        self._change(_start)

    def _prepare(self, groups: list[Group]) -> None:
        """Store what the groups begin with."""
        for group in groups:
            group.setdefault("initial_lr", float(bare(group["lr"])))

    def _begin(self) -> None:
        self._step_count = 0
        self._advance()

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`; subclasses define it."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Return each group's `lr` as it was last set.

        >>> from gradmgr import optim, tensor
        >>> optimizer = optim.SGD([tensor([1.0])], lr=0.5)
        >>> optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1).get_last_lr()
        [0.5]
        """
        return self._last_lr

    @runs_each_time_without_tensors
    def step(self) -> None:
        """Advance by one step; call it after the optimiser's `step`."""
        self._warn_of_order()
        self._change(_advance)

    def _warn_of_order(self) -> None:
        if self._step_count == 1 and self.optimizer._step_count == 0:
            errors.warn(
                "the schedule was stepped before the optimiser, so the first learning rate is never used; "
                "call optimizer.step() before scheduler.step()",
                UserWarning,
            )

    def _advance(self) -> None:
        self._step_count += 1
        self.last_epoch += 1
        self._set(self.get_lr())

    def _restart(self) -> None:
        """Go back to step 0 and set its `lr`, whatever the present one is."""
        self._step_count += 1
        self.last_epoch = 0
        self._set(self.get_lr())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)


def _start(schedule: LRScheduler) -> None:
    groups = schedule.optimizer.param_groups
    if schedule.last_epoch == -1:
        schedule._prepare(groups)
    schedule.base_lrs = [group["initial_lr"] for group in groups]
    schedule._begin()


def _advance(schedule: LRScheduler) -> None:
    schedule._advance()


class RelativeSchedule(LRScheduler):
    """The base class of schedules that compute each `lr` from the present one."""

    def _begin(self) -> None:
        if self.last_epoch == -1:
            super()._begin()
            return
        # The present `lr` is that of a state loaded after this step; the step's factor is already in it.
        self._step_count = 1
        self.last_epoch += 1
        self._set(self._scale_lrs(1.0))

    def _restart(self) -> None:
        self._step_count += 1
        self.last_epoch = 0
        self._set([base * self._first_factor() for base in self.base_lrs])

    def _first_factor(self) -> float:
        """Return the `lr` at step 0 divided by the initial `lr`."""
        return 1.0

    def _scale_lrs(self, factor: float) -> list[float]:
        return [group["lr"] * factor for group in self.optimizer.param_groups]


class LambdaLR(LRScheduler):
    """Set each `lr` to the initial one times a function of the step.

    Args:
        optimizer: see `LRScheduler`.
        lr_lambda: `factor(last_epoch)`, or a list with one for each group.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: the number of functions is not that of the groups.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    >>> optimizer.step(); schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    _left_out = ("lr_lambdas", "optimizer")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "LambdaLR")
        count = len(optimizer.param_groups)
        self.lr_lambdas: list[Any] = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        if len(self.lr_lambdas) != count or not all(callable(function) for function in self.lr_lambdas):
            raise ValueError(
                f"LambdaLR takes one function for all groups or one for each of {count}; found {lr_lambda!r}"
            )
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * function(self.last_epoch) for base, function in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the attributes of those functions that are callable objects."""
        states = [
            None if isinstance(function, types.FunctionType) else dict(getattr(function, "__dict__", {}))
            for function in self.lr_lambdas
        ]
        return {**super().state_dict(), "lr_lambdas": states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state to that of a schedule of the same kind.

        Raises:
            StateError: it is of another kind of schedule; nothing is then changed.
        """
        rest = dict(state_dict)
        states = rest.pop("lr_lambdas", [None] * len(self.lr_lambdas))
        pairs = zip(self.lr_lambdas, states, strict=False)
        calls: list[Call] = [(function.__dict__.update, state) for function, state in pairs if state]
        self._change(lambda schedule: Saved.load_state_dict(schedule, rest), *calls)


class StepLR(RelativeSchedule):
    """Multiply the `lr` by `gamma` every `step_size` steps.

    Args:
        optimizer: see `LRScheduler`.
        step_size: the number of steps between two changes.
        gamma: the factor.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: step_size is not a whole number above 0.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> for _ in range(4):
    ...     optimizer.step()
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.25]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        check_count("step_size", step_size)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        is_due = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return self._scale_lrs(self.gamma if is_due else 1.0)


class MultiStepLR(RelativeSchedule):
    """Multiply the `lr` by `gamma` at each milestone, and twice at one given twice.

    Args:
        optimizer: see `LRScheduler`.
        milestones: numbers of steps.
        gamma: the factor.
        last_epoch: see `LRScheduler`.

    Raises:
        TypeError: `optimizer` is not one of `gradmgr.optim`.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [1.0, 0.5, 0.5, 0.25]
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        return self._scale_lrs(self.gamma ** self.milestones[self.last_epoch])

    def state_dict(self) -> dict[str, Any]:
        """Return the state; the milestones as a list."""
        return {**super().state_dict(), "milestones": sorted(self.milestones.elements())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state to that of a schedule of the same kind.

        Raises:
            StateError: it is of another kind of schedule; nothing is then changed.
        """
        known = {"milestones": Counter(state_dict["milestones"])} if "milestones" in state_dict else {}
        super().load_state_dict({**state_dict, **known})


class ExponentialLR(RelativeSchedule):
    """Multiply the `lr` by `gamma` at each step.

    Args:
        optimizer: see `LRScheduler`.
        gamma: the factor.
        last_epoch: see `LRScheduler`.

    Raises:
        TypeError: `optimizer` is not one of `gradmgr.optim`.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    >>> for _ in range(3):
    ...     optimizer.step()
    ...     schedule.step()
    >>> schedule.get_last_lr()
    [0.125]
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        return self._scale_lrs(self.gamma if self.last_epoch > 0 else 1.0)


class ConstantLR(RelativeSchedule):
    """Multiply the `lr` by `factor` for the first `total_iters` steps.

    Args:
        optimizer: see `LRScheduler`.
        factor: from 0 to 1.
        total_iters: the number of steps.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: a factor is out of range.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.ConstantLR(optimizer, factor=0.25, total_iters=1)
    >>> schedule.get_last_lr()
    [0.25]
    >>> optimizer.step(); schedule.step()
    >>> schedule.get_last_lr()
    [1.0]
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        check_number("factor", factor, high=1.0)
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        if self.last_epoch == 0:
            return self._scale_lrs(self.factor)
        return self._scale_lrs(1.0 / self.factor if self.last_epoch == self.total_iters else 1.0)

    def _first_factor(self) -> float:
        return self.factor if self.total_iters > 0 else 1.0


class LinearLR(RelativeSchedule):
    """Change the `lr` linearly from `start_factor` to `end_factor` times its initial value, mostly for a warm-up.

    Args:
        optimizer: see `LRScheduler`.
        start_factor: above 0, at most 1.
        end_factor: from 0 to 1.
        total_iters: the number of steps this takes.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: a factor is out of range.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        check_number("start_factor", start_factor, high=1.0)
        if start_factor == 0:
            raise ValueError("start_factor must be above 0, as later factors are relative to it; found 0")
        check_number("end_factor", end_factor, high=1.0)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        if self.last_epoch == 0:
            return self._scale_lrs(self.start_factor)
        if self.last_epoch > self.total_iters:
            return self._scale_lrs(1.0)
        rise = self.end_factor - self.start_factor
        return self._scale_lrs(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _first_factor(self) -> float:
        return self.start_factor


class PolynomialLR(RelativeSchedule):
    """Decrease the `lr` to 0 in `total_iters` steps, as `(1 - step / total_iters) ** power`.

    Args:
        optimizer: see `LRScheduler`.
        total_iters: the number of steps.
        power: the exponent; 1 for a line.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: total_iters is not a whole number above 0, or power is negative.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=4)
    >>> rates = []
    >>> for _ in range(5):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> [round(rate, 6) for rate in rates]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        check_count("total_iters", total_iters)
        check_number("power", power)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return self._scale_lrs(1.0)
        left = self.total_iters - self.last_epoch
        return self._scale_lrs((left / (left + 1)) ** self.power)


class CosineAnnealingLR(RelativeSchedule):
    """Decrease the `lr` to `eta_min` along half a cosine in `T_max` steps, and increase it again afterwards.

    Loshchilov, Hutter: SGDR: Stochastic Gradient Descent with Warm Restarts (2017), without the restarts.

    Args:
        optimizer: see `LRScheduler`.
        T_max: the number of steps of the decrease.
        eta_min: the least `lr`.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: T_max is not a whole number above 0.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    >>> for _ in range(2):
    ...     optimizer.step()
    ...     schedule.step()
    ...     round(schedule.get_last_lr()[0], 6)
    0.5
    0.0
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:  # noqa: N803  # torch's name
        check_count("T_max", T_max)
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        if self.last_epoch == 0:
            return self._scale_lrs(1.0)
        before, now = (1 + cos(pi * t / self.T_max) for t in (self.last_epoch - 1, self.last_epoch))
        groups = self.optimizer.param_groups
        if (self.last_epoch - 1) % (
            2 * self.T_max
        ) == self.T_max:  # the step after the minimum, where the ratio is 0 / 0
            pairs = zip(groups, self.base_lrs, strict=True)
            return [group["lr"] + (base - self.eta_min) * now / 2 for group, base in pairs]
        return [self.eta_min + (group["lr"] - self.eta_min) * now / before for group in groups]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Decrease the `lr` along half a cosine, then restart with a longer one, again and again.

    Loshchilov, Hutter: SGDR: Stochastic Gradient Descent with Warm Restarts (2017).

    Args:
        optimizer: see `LRScheduler`.
        T_0: the number of steps until the first restart.
        T_mult: the factor by which each period is longer than the one before.
        eta_min: the least `lr`.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: T_0 or T_mult is not a whole number above 0.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> [round(rate, 6) for rate in rates]
    [1.0, 0.5, 1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803  # torch's name
        T_mult: int = 1,  # noqa: N803  # torch's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        check_count("T_0", T_0)
        check_count("T_mult", T_mult)
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_i = T_0
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`."""
        part = (1 + cos(pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * part for base in self.base_lrs]

    @runs_each_time_without_tensors
    def step(self, epoch: float | None = None) -> None:
        """Advance by one step, or go to `epoch`, which may be fractional if called after each batch.

        Raises:
            ValueError: epoch is negative.
        """
        if epoch is not None and epoch < 0:
            raise ValueError(f"epoch must not be negative; found {epoch}")
        self._warn_of_order()
        self._change(_advance if epoch is None else lambda schedule: schedule._go_to(epoch))

    def _begin(self) -> None:
        self._step_count = 0
        self._go_to(self.last_epoch + 1)

    def _advance(self) -> None:
        self._step_count += 1
        self.last_epoch += 1
        self.T_cur += 1
        if self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult
        self._set(self.get_lr())

    def _restart(self) -> None:
        self._go_to(0)

    def _go_to(self, epoch: float) -> None:
        self._step_count += 1
        self.last_epoch = int(epoch)
        self.T_cur, self.T_i = epoch, self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult
            if self.T_mult == 1:
                self.T_cur %= self.T_i
        self._set(self.get_lr())
