"""Schedules of the learning rate by torch.optim.lr_scheduler's names.

A schedule is stepped after its optimiser, once per epoch or once per batch, whichever its arguments count. It counts
its steps as `last_epoch` and sets each group's `lr`. Most schedules multiply the present `lr`, so that several can be
combined (`ChainedScheduler`) and a program may change it in between.

>>> import gradmgr
>>> from gradmgr.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
>>> w = gradmgr.tensor([1.0])
>>> optimizer = gradmgr.optim.SGD([w], lr=1.0)
>>> warm_up = LinearLR(optimizer, start_factor=0.25, total_iters=3)
>>> schedule = SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, T_max=4)], milestones=[3])
>>> rates = []
>>> for _ in range(7):
...     rates += schedule.get_last_lr()
...     optimizer.step()
...     schedule.step()
>>> [round(rate, 3) for rate in rates]
[0.25, 0.5, 0.75, 1.0, 0.854, 0.5, 0.146]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import cos, inf, pi
from typing import Any

from gradmgr import errors
from gradmgr._engine.capture_notes import runs_each_time_without_tensors
from gradmgr._engine.tensor import bare
from gradmgr._engine.wrong_calls import explain_classes
from gradmgr.optim._optimizer import Group, Optimizer, check_number
from gradmgr.optim._schedules import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
    Saved,
    StepLR,
    check_count,
    check_optimizer,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


def _count_total_steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    """Return the number of steps of a cycle: total_steps, or epochs times steps_per_epoch."""
    if total_steps is None:
        if epochs is None or steps_per_epoch is None:
            raise ValueError("OneCycleLR needs total_steps, or both epochs and steps_per_epoch")
        check_count("epochs", epochs)
        check_count("steps_per_epoch", steps_per_epoch)
        total_steps = epochs * steps_per_epoch
    check_count("total_steps", total_steps)
    return total_steps


class OneCycleLR(LRScheduler):
    """Increase the `lr` to `max_lr` and decrease it to almost 0 in one training, and the momentum the other way.

    Smith, Topin: Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates (2018). It is
    stepped after each batch.

    Args:
        optimizer: see `LRScheduler`.
        max_lr: the largest `lr`, or a list with one for each group.
        total_steps: the number of all steps; or pass `epochs` and `steps_per_epoch`.
        epochs: see total_steps.
        steps_per_epoch: see total_steps.
        pct_start: the fraction of the steps in which the `lr` increases.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: whether to change "momentum", or the first of "betas", too.
        base_momentum: the least momentum, or a list with one for each group.
        max_momentum: the largest momentum, or a list with one for each group.
        div_factor: the first `lr` is max_lr / div_factor.
        final_div_factor: the last `lr` is the first one / final_div_factor.
        three_phase: decrease the `lr` in as many steps as it increased, then to the last one in the rest.
        last_epoch: see `LRScheduler`.

    Raises:
        ValueError: an option is out of range, the number of steps is missing, or there is no momentum to cycle.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0, momentum=0.9)
    >>> schedule = gradmgr.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=5, pct_start=0.4)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> [round(rate, 3) for rate in rates]
    [0.04, 1.0, 0.75, 0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "OneCycleLR")
        total_steps = _count_total_steps(total_steps, epochs, steps_per_epoch)
        check_number("pct_start", pct_start, high=1.0)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear'; found {anneal_strategy!r}")
        groups = optimizer.param_groups
        peaks = _values_by_group("max_lr", max_lr, groups)
        if cycle_momentum and not all("momentum" in group or "betas" in group for group in groups):
            raise ValueError(f"{type(optimizer).__name__} has no momentum to cycle; pass cycle_momentum=False")
        lows, highs = (
            _values_by_group(name, value, groups)
            for name, value in (("base_momentum", base_momentum), ("max_momentum", max_momentum))
        )
        self.total_steps = total_steps
        self.anneal_strategy = anneal_strategy
        self.cycle_momentum = cycle_momentum
        self._phases = _three_phases(total_steps, pct_start) if three_phase else _two_phases(total_steps, pct_start)
        self._marks = [  # the name is part of saved states
            {
                "initial": peak / div_factor,
                "max": peak,
                "min": peak / div_factor / final_div_factor,
                "low": low,
                "high": high,
            }
            for peak, low, high in zip(peaks, lows, highs, strict=True)
        ]
        super().__init__(optimizer, last_epoch)

    def _prepare(self, groups: list[Group]) -> None:
        for group, levels in zip(groups, self._marks, strict=True):
            group["initial_lr"] = group["lr"] = levels["initial"]
            if self.cycle_momentum:
                _set_momentum(group, levels["high"])

    def get_lr(self) -> list[float]:
        """Return each group's `lr` at `last_epoch`, and set its momentum.

        Raises:
            ValueError: the cycle is over.
        """
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR was made for {self.total_steps} steps; found one more, {self.last_epoch}")
        start, part, phase = 0.0, 0.0, self._phases[-1]
        for phase in self._phases:
            end = phase[0]
            part = (self.last_epoch - start) / (end - start) if end != start else 1.0
            if self.last_epoch <= end:
                break
            start = end if phase is not self._phases[-1] else start
        _, lr_from, lr_to, momentum_from, momentum_to = phase
        rates = []
        for group, levels in zip(self.optimizer.param_groups, self._marks, strict=True):
            rates.append(self._interpolate(levels[lr_from], levels[lr_to], part))
            if self.cycle_momentum:
                _set_momentum(group, self._interpolate(levels[momentum_from], levels[momentum_to], part))
        return rates

    @runs_each_time_without_tensors
    def step(self) -> None:
        """Advance by one step; call it after the optimiser's `step`.

        Raises:
            ValueError: the cycle is over; nothing is then changed.
        """
        if self.last_epoch + 1 > self.total_steps:
            raise ValueError(f"OneCycleLR was made for {self.total_steps} steps; found one more, {self.last_epoch + 1}")
        super().step()

    def _restart(self) -> None:
        self._step_count += 1
        self.last_epoch = 0
        self._set(self.get_lr())

    def _interpolate(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + cos(pi * part))


# A phase of a cycle: the step at which it ends, and the levels from which and to which the lr and the momentum go.
_Phase = tuple[float, str, str, str, str]


def _two_phases(total: int, part: float) -> list[_Phase]:
    return [(part * total - 1, "initial", "max", "high", "low"), (total - 1, "max", "min", "low", "high")]


def _three_phases(total: int, part: float) -> list[_Phase]:
    return [
        (part * total - 1, "initial", "max", "high", "low"),
        (2 * part * total - 2, "max", "initial", "low", "high"),
        (total - 1, "initial", "min", "high", "high"),
    ]


def _values_by_group(name: str, value: Any, groups: list[Any]) -> list[float]:
    values = list(value) if isinstance(value, (list, tuple)) else [value] * len(groups)
    if len(values) != len(groups):
        raise ValueError(f"{name} is one number, or one for each of {len(groups)} groups; found {len(values)}")
    return [float(v) for v in values]


def _set_momentum(group: dict[str, Any], momentum: float) -> None:
    if "momentum" in group:
        group["momentum"] = momentum
    else:
        group["betas"] = (momentum, *group["betas"][1:])


class ReduceLROnPlateau(Saved):
    """Multiply the `lr` by `factor` when a measure has not improved for a while.

    Args:
        optimizer: the optimiser whose groups' `lr` it sets.
        mode: "min" for a measure that should decrease, "max" for one that should increase.
        factor: below 1.
        patience: the number of steps without improvement after which one more reduces the `lr`.
        threshold: the least change that counts as an improvement.
        threshold_mode: "rel" for a threshold relative to the best measure, "abs" for a difference.
        cooldown: the number of steps after a reduction in which missing improvements do not count.
        min_lr: the least `lr`, or a list with one for each group.
        eps: a smaller change of the `lr` is not made.

    Raises:
        TypeError, ValueError: `optimizer` is not an Optimizer, or an option is out of range.

    >>> import gradmgr
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> schedule = gradmgr.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    >>> for loss in (1.0, 1.0, 1.0):
    ...     optimizer.step()
    ...     schedule.step(loss)
    >>> schedule.get_last_lr()
    [0.1]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        check_optimizer(optimizer, "ReduceLROnPlateau")
        check_number("factor", factor, high=1.0, below=True)
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"mode is 'min' or 'max', threshold_mode 'rel' or 'abs'; found {mode!r}, {threshold_mode!r}"
            )
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = _values_by_group("min_lr", min_lr, optimizer.param_groups)
        self.eps = eps
        self.best = inf if mode == "min" else -inf
        self.num_bad_epochs = 0
        self.cooldown_counter = 0
        self.last_epoch = 0
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """Return each group's `lr` as it was last set."""
        return self._last_lr

    @runs_each_time_without_tensors
    def step(self, metrics: Any) -> None:
        """Compare the measure, a number or a Tensor of one, with the best, and reduce the `lr` if it is time."""
        measure = float(bare(metrics))
        self._change(lambda schedule: schedule._advance(measure))

    def _advance(self, measure: float) -> None:
        self.last_epoch += 1
        if self.is_better(measure, self.best):
            self.best = measure
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def is_better(self, a: float, best: float) -> bool:
        """Tell whether a measure improves on the best so far."""
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return a > best + self.threshold if sign == 1 else a < best - self.threshold
        limit = best * (1 + sign * self.threshold)
        return a > limit if sign == 1 else a < limit

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            rate = max(group["lr"] * self.factor, least)
            if group["lr"] - rate > self.eps:
                group["lr"] = rate


class _CombinedSchedule(Saved):
    """A schedule that combines others."""

    _left_out = ("_schedulers", "optimizer")

    def __init__(self, optimizer: Any, schedulers: Iterable[Any], asked: str) -> None:
        self._schedulers = list(schedulers)
        if not self._schedulers:
            raise ValueError(f"{asked} is made of schedules; found none")
        for k, schedule in enumerate(self._schedulers):
            if not isinstance(schedule, (LRScheduler, _CombinedSchedule)):
                raise TypeError(f"{asked} is made of schedules that take no measure; number {k} is {schedule!r:.60}")
        self.optimizer: Optimizer = self._schedulers[0].optimizer if optimizer is None else optimizer
        check_optimizer(self.optimizer, asked)
        if any(schedule.optimizer is not self.optimizer for schedule in self._schedulers):
            raise ValueError(f"the schedules of {asked} must be of one optimiser; found several")
        self._last_lr: list[float] = []

    def get_last_lr(self) -> list[float]:
        """Return each group's `lr` as it was last set."""
        return self._last_lr

    def _read_last_lr(self) -> None:
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with that of each schedule."""
        return {**super().state_dict(), "_schedulers": [schedule.state_dict() for schedule in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state to that of a schedule of the same kind.

        Raises:
            StateError: it is of another kind of schedule.
        """
        rest = dict(state_dict)
        parts = rest.pop("_schedulers", ())
        if len(parts) != len(self._schedulers):
            raise errors.StateError(
                f"load_state_dict: the state has {len(parts)} schedules, {type(self).__name__} {len(self._schedulers)}"
            )
        self._change(lambda schedule: schedule._load(parts, rest))

    def _load(self, parts: Sequence[Mapping[str, Any]], rest: Mapping[str, Any]) -> None:
        for schedule, part in zip(self._schedulers, parts, strict=True):
            schedule.load_state_dict(part)
        super().load_state_dict(rest)

    def _copied(self, optimizer: Optimizer, pairs: list[tuple[Saved, Saved]]) -> Any:
        made = super()._copied(optimizer, pairs)
        made._schedulers = [schedule._copied(optimizer, pairs) for schedule in self._schedulers]
        return made

    @runs_each_time_without_tensors
    def step(self) -> None:
        """Advance by one step; call it after the optimiser's `step`."""
        self._change(lambda schedule: schedule._advance())


class SequentialLR(_CombinedSchedule):
    """Run one schedule after another, each from its start.

    Args:
        optimizer: the optimiser of all schedules.
        schedulers: the schedules.
        milestones: the steps at which the second and each later schedule start.
        last_epoch: see `LRScheduler`; each schedule is given from its own start, and stepped to where it then is.

    Raises:
        TypeError, ValueError: an element is not a schedule of this optimiser, or the number of milestones is wrong.

    >>> import gradmgr
    >>> from gradmgr.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> warm_up = ConstantLR(optimizer, factor=0.25, total_iters=2)
    >>> schedule = SequentialLR(optimizer, [warm_up, ExponentialLR(optimizer, gamma=0.5)], milestones=[2])
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.25, 0.25, 1.0, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Iterable[Any], milestones: Iterable[int], last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, schedulers, "SequentialLR")
        self._milestones = list(milestones)
        if len(self._milestones) != len(self._schedulers) - 1:
            raise ValueError(
                f"SequentialLR needs a milestone between any two schedules; found {len(self._schedulers)} schedules "
                f"and {len(self._milestones)} milestones"
            )
        self.last_epoch = 0
        self._change(lambda schedule: schedule._start(last_epoch + 1))

    def _start(self, steps: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for schedule in self._schedulers:
            _undo_first_step(schedule)
        self._schedulers[0]._begin()
        self._read_last_lr()
        if steps:
            self.optimizer._step_count = 1  # of `_change`'s copy: this catches up, and is no wrong order of steps
        for _ in range(steps):
            self._advance()

    def _advance(self) -> None:
        self.last_epoch += 1
        k = bisect_right(self._milestones, self.last_epoch)
        if k > 0 and self._milestones[k - 1] == self.last_epoch:
            self._schedulers[k]._restart()
        else:
            self._schedulers[k].step()
        self._read_last_lr()

    def _begin(self) -> None:
        self.last_epoch += 1
        self._schedulers[0]._begin()
        self._read_last_lr()

    def _restart(self) -> None:
        self.last_epoch = 0
        self._schedulers[0]._restart()
        self._read_last_lr()


def _undo_first_step(schedule: Any) -> None:
    """Undo the step that a schedule's constructor took: a schedule of a sequence starts later."""
    if isinstance(schedule, ChainedScheduler):
        for part in schedule._schedulers:
            _undo_first_step(part)
        return
    schedule.last_epoch -= 1
    if isinstance(schedule, SequentialLR):
        _undo_first_step(schedule._schedulers[0])


class ChainedScheduler(_CombinedSchedule):
    """Step several schedules together, so that their factors of the `lr` are multiplied.

    Args:
        schedulers: the schedules, of one optimiser.
        optimizer: their optimiser; by default that of the first.

    Raises:
        TypeError, ValueError: an element is not a schedule, or they are of different optimisers.

    >>> import gradmgr
    >>> from gradmgr.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR
    >>> optimizer = gradmgr.optim.SGD([gradmgr.tensor([1.0])], lr=1.0)
    >>> warm_up = ConstantLR(optimizer, factor=0.5, total_iters=2)
    >>> schedule = ChainedScheduler([warm_up, ExponentialLR(optimizer, gamma=0.5)])
    >>> rates = []
    >>> for _ in range(4):
    ...     rates += schedule.get_last_lr()
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.5, 0.25, 0.25, 0.125]
    """

    def __init__(self, schedulers: Iterable[Any], optimizer: Optimizer | None = None) -> None:
        super().__init__(optimizer, schedulers, "ChainedScheduler")
        self._read_last_lr()

    def _advance(self) -> None:
        for schedule in self._schedulers:
            schedule.step()
        self._read_last_lr()

    def _begin(self) -> None:
        for schedule in self._schedulers:
            schedule._begin()
        self._read_last_lr()

    def _restart(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for schedule in self._schedulers:
            schedule.last_epoch = -1
            schedule._begin()
        self._read_last_lr()


explain_classes(globals(), [name for name in __all__ if name != "LRScheduler"])
