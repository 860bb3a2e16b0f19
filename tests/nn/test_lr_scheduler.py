"""Schedules of the learning rate: torch's values, state, errors."""

import copy
import json
import math
import warnings
from inspect import signature

import numpy as np
import pytest

from gradmgr import errors, optim, tensor
from gradmgr.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)


def optimizer_of(kind=optim.SGD, **options):
    groups = [{"params": [tensor(np.zeros(2))], "lr": 0.5}, {"params": [tensor(np.zeros(2))], "lr": 0.02}]
    return kind(groups, **options)


def run(schedule, count, step=lambda schedule, k: schedule.step()):
    """The lr of the first group over so many steps."""
    optimizer, rates = schedule.optimizer, []
    for k in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        step(schedule, k)
    return rates


# What torch 2.13 gives at a learning rate of 0.5.
SCHEDULES = {
    "lambda": (
        lambda o: LambdaLR(o, lambda epoch: 0.9**epoch),
        [0.5, 0.45, 0.405, 0.3645, 0.32805, 0.295245, 0.2657205],
    ),
    "step": (lambda o: StepLR(o, 3, 0.5), [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]),
    "milestones": (
        lambda o: MultiStepLR(o, [2, 5, 5, 9], 0.5),
        [0.5, 0.5, 0.25, 0.25, 0.25, 0.0625, 0.0625, 0.0625, 0.0625, 0.03125],
    ),
    "exponential": (lambda o: ExponentialLR(o, 0.8), [0.5, 0.4, 0.32, 0.256, 0.2048, 0.16384]),
    "constant": (lambda o: ConstantLR(o, 0.25, 4), [0.125, 0.125, 0.125, 0.125, 0.5, 0.5]),
    "polynomial": (lambda o: PolynomialLR(o, 4, 2.0), [0.5, 0.28125, 0.125, 0.03125, 0.0, 0.0]),
    "linear": (lambda o: LinearLR(o, 0.1, 0.8, 7), [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4]),
    "cosine": (
        lambda o: CosineAnnealingLR(o, 6, 0.01),
        [
            *(0.5, 0.467176223927, 0.3775, 0.255, 0.1325, 0.0428237760728, 0.01),
            *(0.0428237760728, 0.1325, 0.255, 0.3775, 0.467176223927, 0.5, 0.467176223927),
        ],
    ),
    "cosine of 1": (lambda o: CosineAnnealingLR(o, 1), [0.5, 0, 0.5, 0, 0.5, 0]),
    "restarts": (
        lambda o: CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
        [
            *(0.5, 0.3775, 0.1325, 0.5, 0.467176223927, 0.3775, 0.255, 0.1325, 0.0428237760728),
            *(0.5, 0.491651827441, 0.467176223927, 0.428241161391, 0.3775),
        ],
    ),
    "warm-up, cosine": (
        lambda o: SequentialLR(o, [LinearLR(o, 0.1, 1, 5), CosineAnnealingLR(o, 10)], [5]),
        [0.05, 0.14, 0.23, 0.32, 0.41, 0.5, 0.487764129074, 0.452254248594, 0.396946313073, 0.327254248594, 0.25],
    ),
    "warm-up, restarts": (
        lambda o: SequentialLR(o, [LinearLR(o, 0.1, 1, 5), CosineAnnealingWarmRestarts(o, 4, 2)], [5]),
        [
            *(0.05, 0.14, 0.23, 0.32, 0.41, 0.5, 0.426776695297, 0.25, 0.0732233047034),
            *(0.5, 0.480969883128, 0.426776695297, 0.345670858091, 0.25),
        ],
    ),
    "three after each other": (
        lambda o: SequentialLR(o, [ConstantLR(o, 0.1, 20), ExponentialLR(o, 0.9), StepLR(o, 2, 0.5)], [4, 12]),
        [
            *(0.05, 0.05, 0.05, 0.05, 0.5, 0.45, 0.405, 0.3645, 0.32805, 0.295245, 0.2657205, 0.23914845),
            *(0.5, 0.5),
        ],
    ),
    "together": (
        lambda o: ChainedScheduler([ConstantLR(o, 0.1, 4), ExponentialLR(o, 0.9)]),
        [0.05, 0.045, 0.0405, 0.03645, 0.32805, 0.295245, 0.2657205, 0.23914845],
    ),
}
EACH = pytest.mark.parametrize(("make", "expected"), SCHEDULES.values(), ids=SCHEDULES)


@EACH
def test_rates_are_torchs(make, expected):
    schedule = make(optimizer_of())
    assert schedule.get_last_lr() == [group["lr"] for group in schedule.optimizer.param_groups]
    np.testing.assert_allclose(run(schedule, len(expected)), expected, rtol=1e-11, atol=1e-17)
    assert schedule.get_last_lr() == [group["lr"] for group in schedule.optimizer.param_groups]


@EACH
def test_each_group_has_its_own_rate(make, expected):
    if make is SCHEDULES["cosine"][0] or make is SCHEDULES["restarts"][0]:
        return  # eta_min is one for all
    schedule = make(optimizer_of())
    for rate in expected:
        first, second = [group["lr"] for group in schedule.optimizer.param_groups]
        assert first == pytest.approx(rate, rel=1e-11, abs=1e-17)
        assert second == pytest.approx(rate * 0.04, rel=1e-11, abs=1e-17)
        schedule.optimizer.step()
        schedule.step()


@EACH
@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_resume_goes_on_as_if_nothing_had_been(make, expected, at):
    first = make(optimizer_of())
    run(first, at)
    saved, of_optimizer = first.state_dict(), first.optimizer.state_dict()
    saved = json.loads(json.dumps(saved))
    second = make(optimizer_of())
    second.load_state_dict(saved)
    second.optimizer.load_state_dict(of_optimizer)
    assert run(first, 6) == run(second, 6)
    assert first.state_dict() == second.state_dict()


CYCLE = [
    *(0.036, 0.0902822618255, 0.239487547539, 0.446119559062, 0.658250273473, 0.822569806602, 0.897783547705),
    *(0.894973891906, 0.874747599649, 0.839711672857, 0.791087711066, 0.730571088555, 0.660271841639, 0.582641097926),
    *(0.50038561271, 0.4163733924, 0.333533695578, 0.254754898388, 0.182783785368, 0.12012977717, 0.0689774344508),
    *(0.0311102886829, 0.00784865566467, 3.6e-06),
]
MOMENTUM = [
    *(0.95, 0.943717330807, 0.926448200516, 0.902532458442, 0.877980292422, 0.85896182794, 0.85025653383),
    *(0.850558458689, 0.852805833485, 0.856698729811, 0.862101413843, 0.868825509907, 0.876636568586, 0.885262241279),
]


def test_one_cycle_is_torchs():
    optimizer = optimizer_of(momentum=0.9)
    schedule = OneCycleLR(optimizer, [0.9, 0.3], total_steps=24)
    momenta = []
    rates = run(
        schedule, 24, lambda schedule, k: (momenta.append(optimizer.param_groups[1]["momentum"]), schedule.step())
    )
    np.testing.assert_allclose(rates, CYCLE, rtol=1e-11)
    np.testing.assert_allclose(momenta[:14], MOMENTUM, rtol=1e-11)
    before = optimizer.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="made for 24 steps; found one more, 25"):
        schedule.step()
    assert (optimizer.param_groups[0]["lr"], schedule.last_epoch) == (before, 24)


def test_one_cycle_in_three_lines_with_the_first_beta():
    optimizer = optimizer_of(optim.Adam)
    schedule = OneCycleLR(
        optimizer, 0.9, epochs=5, steps_per_epoch=6, three_phase=True, anneal_strategy="linear", pct_start=0.4
    )
    betas = []
    rates = run(schedule, 30, lambda schedule, k: (betas.append(optimizer.param_groups[0]["betas"]), schedule.step()))
    up = 0.036 + (0.9 - 0.036) * np.arange(12) / 11
    np.testing.assert_allclose(rates[:23], [*up, *up[-2::-1]], rtol=1e-11)
    np.testing.assert_allclose(rates[22:], 0.036 + (3.6e-6 - 0.036) * np.arange(8) / 7, rtol=1e-11)
    np.testing.assert_allclose([b[0] for b in betas[:12]], 0.95 - 0.1 * np.arange(12) / 11, rtol=1e-11)
    np.testing.assert_allclose([b[0] for b in betas[22:]], 0.95, rtol=1e-11)
    assert {b[1] for b in betas} == {0.999}


def test_plateau_is_torchs():
    losses = [5, 4, 3, 3, 3, 3, 3, 2.9999, 3, 3, 3, 3, 3, 3, 1]
    schedule = ReduceLROnPlateau(optimizer_of(), factor=0.5, patience=2, cooldown=2, min_lr=[0.1, 0.001])
    rates = run(schedule, 14, lambda schedule, k: schedule.step(tensor(float(losses[k]))))
    assert rates == [0.5] * 6 + [0.25] * 5 + [0.125] * 3
    assert schedule.get_last_lr() == [group["lr"] for group in schedule.optimizer.param_groups]
    measures = [1, 2, 2.05, 3, 3.05, 3.2, 2]
    schedule = ReduceLROnPlateau(optimizer_of(), "max", 0.3, 1, 0.1, "abs")
    rates = run(schedule, 14, lambda schedule, k: schedule.step(measures[k % 7]))
    np.testing.assert_allclose(rates, [0.5] * 8 + [0.15] * 2 + [0.045] * 2 + [0.0135] * 2, rtol=1e-12)


def test_plateau_is_saved_and_counts_nan_as_worse():
    first, second = (ReduceLROnPlateau(optimizer_of(), patience=1) for _ in range(2))
    first.step(1.0)
    first.step(math.nan)
    second.load_state_dict(first.state_dict())
    second.step(math.nan)
    assert second.get_last_lr() == [0.05, 0.002]


def test_restarts_at_a_fraction_of_an_epoch():
    schedule = CosineAnnealingWarmRestarts(optimizer_of(), 3, 2, 0.01)
    for epoch in (0.37, 2.96, 3.0, 8.5, 9.0, 20.99):
        schedule.optimizer.step()
        schedule.step(epoch)
        start, length = (0, 3) if epoch < 3 else (3, 6) if epoch < 9 else (9, 12)
        expected = 0.01 + 0.49 * (1 + math.cos(math.pi * (epoch - start) / length)) / 2
        assert schedule.get_last_lr()[0] == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="must not be negative; found -1"):
        schedule.step(-1)


def test_sequences_within_sequences():
    """The inner one begins when its turn comes."""
    optimizer = optimizer_of()
    inner = SequentialLR(optimizer, [ConstantLR(optimizer, 0.5, 9), ExponentialLR(optimizer, 0.5)], [2])
    chained = ChainedScheduler([ConstantLR(optimizer, 0.5, 2), ExponentialLR(optimizer, 0.5)])
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.2, 1, 4), inner, chained], [3, 7])
    expected = [0.1, 0.2, 0.3, 0.25, 0.25, 0.5, 0.25, 0.25, 0.125, 0.125]
    np.testing.assert_allclose(run(schedule, 10), expected, rtol=1e-12)


def test_a_schedule_of_ones_own():
    class Halves(LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

    assert run(Halves(optimizer_of()), 3) == [0.5, 0.25, 0.5 / 3]


WITH_LAST_EPOCH = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "StepLR": {"step_size": 3, "gamma": 0.5},
    "MultiStepLR": {"milestones": [2, 5, 5, 9], "gamma": 0.5},
    "ExponentialLR": {"gamma": 0.8},
    "ConstantLR": {"factor": 0.25, "total_iters": 4},
    "LinearLR": {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 7},
    "PolynomialLR": {"total_iters": 6, "power": 2.0},
    "CosineAnnealingLR": {"T_max": 5, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2, "eta_min": 0.01},
    "OneCycleLR": {"max_lr": 0.9, "total_steps": 15},
}


def test_each_schedule_with_last_epoch_is_tried():
    found = {
        name
        for name in optim.lr_scheduler.__all__
        if "last_epoch" in signature(getattr(optim.lr_scheduler, name)).parameters
    }
    assert found - {"LRScheduler", "SequentialLR"} == WITH_LAST_EPOCH.keys()


@pytest.mark.parametrize("name", WITH_LAST_EPOCH)
def test_a_run_goes_on_over_a_restored_optimiser_as_if_it_had_not_stopped(name):
    kind, options, count = getattr(optim.lr_scheduler, name), WITH_LAST_EPOCH[name], 13
    optimizer = optimizer_of(momentum=0.9)
    schedule = kind(optimizer, **options)
    states, rates = [], []
    for _ in range(count):
        states.append(copy.deepcopy(optimizer.state_dict()))
        rates.append(schedule.get_last_lr())
        optimizer.step()
        schedule.step()
    for k in range(1, count):
        optimizer = optimizer_of(momentum=0.9)
        optimizer.load_state_dict(states[k])
        schedule = kind(optimizer, **options, last_epoch=k - 1)
        assert schedule.last_epoch == k
        for expected in rates[k:]:
            np.testing.assert_allclose(schedule.get_last_lr(), expected, rtol=1e-12)
            np.testing.assert_allclose([group["lr"] for group in optimizer.param_groups], expected, rtol=1e-12)
            optimizer.step()
            schedule.step()


def test_going_on_by_last_epoch():
    optimizer = optimizer_of()
    with pytest.raises(KeyError, match="group 0 has no 'initial_lr'"):
        StepLR(optimizer, 3, last_epoch=4)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    assert LambdaLR(optimizer, lambda epoch: 0.5**epoch, last_epoch=1).get_last_lr() == [0.125, 0.005]


RESUMED = {  # each class that takes last_epoch, of the optimiser and last_epoch
    LambdaLR: lambda o, last: LambdaLR(o, lambda epoch: 0.9**epoch, last_epoch=last),
    StepLR: lambda o, last: StepLR(o, 3, 0.5, last_epoch=last),
    MultiStepLR: lambda o, last: MultiStepLR(o, [2, 5, 5, 9], 0.5, last_epoch=last),
    ExponentialLR: lambda o, last: ExponentialLR(o, 0.8, last_epoch=last),
    ConstantLR: lambda o, last: ConstantLR(o, 0.25, 4, last_epoch=last),
    LinearLR: lambda o, last: LinearLR(o, 0.1, 0.8, 7, last_epoch=last),
    PolynomialLR: lambda o, last: PolynomialLR(o, 6, 2.0, last_epoch=last),
    CosineAnnealingLR: lambda o, last: CosineAnnealingLR(o, 4, 0.01, last_epoch=last),
    CosineAnnealingWarmRestarts: lambda o, last: CosineAnnealingWarmRestarts(o, 2, 2, 0.01, last_epoch=last),
    OneCycleLR: lambda o, last: OneCycleLR(o, 0.9, 24, last_epoch=last),
    SequentialLR: lambda o, last: SequentialLR(
        o, [LinearLR(o, 0.1, 1, 3), CosineAnnealingWarmRestarts(o, 2), StepLR(o, 2, 0.5)], [3, 8], last_epoch=last
    ),
    ChainedScheduler: lambda o, last: ChainedScheduler(
        [ConstantLR(o, 0.1, 4, last_epoch=last), MultiStepLR(o, [3, 6], 0.5, last_epoch=last)]
    ),
}


@pytest.mark.parametrize("at", range(1, 13))
def test_last_epoch_over_a_restored_optimizer_goes_on_as_the_uninterrupted_run(at):
    """So in torch, but where the state is one of a step with a factor: StepLR and others apply it again there."""
    classes = {getattr(optim.lr_scheduler, name) for name in optim.lr_scheduler.__all__}
    assert set(RESUMED) == classes - {LRScheduler, ReduceLROnPlateau}
    for make in RESUMED.values():
        first = make(optimizer_of(momentum=0.9), -1)
        run(first, at)
        optimizer = optimizer_of(momentum=0.9)
        optimizer.load_state_dict(first.optimizer.state_dict())
        second = make(optimizer, at - 1)
        for _ in range(9):
            assert second.get_last_lr() == pytest.approx(first.get_last_lr(), rel=1e-12, abs=1e-17)
            for found, expected in zip(optimizer.param_groups, first.optimizer.param_groups, strict=True):
                assert found["momentum"] == pytest.approx(expected["momentum"])
                assert found["lr"] == pytest.approx(expected["lr"], rel=1e-12, abs=1e-17)
            for schedule in (first, second):
                schedule.optimizer.step()
                schedule.step()


def test_a_callable_object_is_saved_a_function_is_not():
    class Slope:
        def __init__(self):
            self.slope = 0.5

        def __call__(self, epoch):
            return self.slope**epoch

    schedule = LambdaLR(optimizer_of(), [Slope(), lambda epoch: 1.0])
    schedule.lr_lambdas[0].slope = 0.25
    saved = copy.deepcopy(schedule.state_dict())
    assert saved["lr_lambdas"] == [{"slope": 0.25}, None]
    other = LambdaLR(optimizer_of(), [Slope(), lambda epoch: 1.0])
    other.load_state_dict(saved)
    assert other.lr_lambdas[0].slope == 0.25


# ---------------------------------------------------------------- misuse


def test_a_schedule_stepped_before_its_optimizer_warns_as_torchs():
    schedule = StepLR(optimizer_of(), 3)
    with pytest.warns(UserWarning, match=r"call optimizer\.step\(\) before scheduler\.step\(\)"):
        schedule.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()


@pytest.mark.parametrize("make", [lambda o: StepLR(o, 3), lambda o: OneCycleLR(o, 1.0, 9), ReduceLROnPlateau])
def test_a_state_of_another_schedule_is_refused(make):
    schedule = make(optimizer_of(momentum=0.9))
    before = schedule.state_dict()
    with pytest.raises(errors.StateError, match=r"missing: .*unknown: \['gamma2'\]"):
        schedule.load_state_dict({"last_epoch": 7, "gamma2": 1})
    assert schedule.state_dict() == before


def test_a_sequence_is_loaded_whole_or_not_at_all():
    optimizer = optimizer_of()
    schedule = SequentialLR(optimizer, [StepLR(optimizer, 3), ExponentialLR(optimizer, 0.5)], [4])
    before = copy.deepcopy(schedule.state_dict())
    bad = copy.deepcopy(before)
    bad["_schedulers"][0]["last_epoch"] = 9
    bad["_schedulers"][1].pop("gamma")
    with pytest.raises(errors.StateError, match="ExponentialLR"):
        schedule.load_state_dict(bad)
    assert schedule.state_dict() == before
    with pytest.raises(errors.StateError, match="the state has 1 schedules, SequentialLR 2"):
        schedule.load_state_dict({**before, "_schedulers": before["_schedulers"][:1]})


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda o: StepLR("o", 3), TypeError, "StepLR takes an optimiser of gradmgr.optim; found str"),
        (lambda o: StepLR(o, 0), ValueError, "step_size must be a whole number above 0; found 0"),
        (lambda o: LambdaLR(o, [abs]), ValueError, "one for each of 2"),
        (lambda o: LambdaLR(o, 0.5), ValueError, "found 0.5"),
        (lambda o: ConstantLR(o, 1.5), ValueError, "factor must be at least 0 and at most 1; found 1.5"),
        (lambda o: PolynomialLR(o, 0), ValueError, "total_iters"),
        (lambda o: LinearLR(o, 0), ValueError, "start_factor must be above 0"),
        (lambda o: LinearLR(o, 0.5, 2), ValueError, "end_factor"),
        (lambda o: CosineAnnealingLR(o, 0), ValueError, "T_max"),
        (lambda o: CosineAnnealingWarmRestarts(o, 1.5), ValueError, "T_0"),
        (lambda o: CosineAnnealingWarmRestarts(o, 1, 0), ValueError, "T_mult"),
        (lambda o: OneCycleLR(o, 1.0), ValueError, "total_steps, or both epochs and steps_per_epoch"),
        (lambda o: OneCycleLR(o, 1.0, 0), ValueError, "total_steps"),
        (lambda o: OneCycleLR(o, 1.0, 9, pct_start=2), ValueError, "pct_start"),
        (lambda o: OneCycleLR(o, 1.0, 9, anneal_strategy="steep"), ValueError, "'cos' or 'linear'; found 'steep'"),
        (lambda o: OneCycleLR(o, [1.0], 9), ValueError, "one for each of 2 groups; found 1"),
        (lambda o: OneCycleLR(optimizer_of(optim.Adagrad), 1.0, 9), ValueError, "Adagrad has no momentum to cycle"),
        (lambda o: ReduceLROnPlateau(o, "least"), ValueError, "found 'least', 'rel'"),
        (lambda o: ReduceLROnPlateau(o, factor=1.0), ValueError, "factor must be at least 0 and below 1"),
        (lambda o: SequentialLR(o, [StepLR(o, 3)], [3]), ValueError, "1 schedules and 1 milestones"),
        (lambda o: SequentialLR(o, [], []), ValueError, "found none"),
        (lambda o: SequentialLR(o, [StepLR(o, 3), ReduceLROnPlateau(o)], [3]), TypeError, "take no measure; number 1"),
        (lambda o: ChainedScheduler([StepLR(o, 3), StepLR(optimizer_of(), 3)]), ValueError, "of one optimiser"),
    ],
)
def test_wrong_arguments(call, kind, said):
    optimizer = optimizer_of(momentum=0.9)
    with pytest.raises(kind, match=said):
        call(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.02]
