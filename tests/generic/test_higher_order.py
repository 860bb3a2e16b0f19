"""No derivative of any order is silently wrong: programs of the whole table of samples, and properties of all rules.

A program feeds sample after sample with what came out of earlier ones: reshaped, repeated, scaled into the
arguments' ranges. Between the samples it writes in place, cuts and uses things twice. The composition is what is
tested: which results get a cotangent at all, cotangents in odd layouts, gradients that meet, values written over.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import assert_allclose, each_case, tracks
from samples import SAMPLES, Sample, flat, gradients, pop_gradient_array, seeds, tensors
from table_programs import SHAPES, SMOOTH, Program

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, tensor
from gradmgr._arrays.batched import Level
from gradmgr._arrays.batched_library import Library
from gradmgr._engine.backward_pass import run_backward
from gradmgr._engine.entry import VJPS
from gradmgr._engine.tensor import raw
from gradmgr._transforms.gradcheck import jvp, vjp
from gradmgr.graph import increment_version

Array = Any

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")

EVERY = list(range(len(SHAPES)))
ONE = [np.float64(1.0)]


# ---------------------------------------------------------------- programs against numeric derivatives


def inner(us: Any, vs: Any) -> float:
    return float(sum(np.sum(np.asarray(raw(u)) * np.asarray(raw(v))) for u, v in zip(us, vs, strict=True)))


def slope(function: Any, points: list[Array], direction: list[Array], step: float) -> float:
    """The numeric derivative along a direction, by Richardson's extrapolation of central differences."""

    def difference(h: float) -> float:
        ahead, behind = ([tensor(p + s * h * d) for p, d in zip(points, direction, strict=True)] for s in (1, -1))
        return (function(*ahead) - function(*behind)) / (2 * h)

    return (4 * difference(step / 2) - difference(step)) / 3


def directions(seed: int, count: int) -> list[list[Array]]:
    random = np.random.default_rng((seed, 3))
    return [[np.asarray(random.uniform(0.5, 1.5, s) * random.choice([-1, 1], s)) for s in SHAPES] for _ in range(count)]


def derivatives(program: Program, order: int) -> Iterator[tuple[str, float, int]]:
    """Every way to the directional derivatives up to an order: its name, the outermost mode first; value; order."""
    points, forward = [tensor(p) for p in program.points], program.cut != "no_grad"  # which does not stop tangents
    v, w, z = directions(program.seed, 3)

    def reverse_of(function: Any, us: Any) -> Any:
        return lambda *at: vjp(function, at, EVERY, us)

    def forward_of(function: Any, vs: Any) -> Any:
        return lambda *at: jvp(function, at, EVERY, list(map(tensor, vs)))

    r, f = reverse_of(program, ONE), forward_of(program, v)
    yield "r", inner(r(*points), v), 1
    if forward:
        yield "f", inner(f(*points), ONE), 1
    rr, ff = reverse_of(r, v), forward_of(f, w)
    yield "rr", inner(rr(*points), w), 2
    if forward:
        yield "fr", inner(forward_of(r, w)(*points), v), 2
        yield "rf", inner(reverse_of(f, ONE)(*points), w), 2
        yield "ff", inner(ff(*points), ONE), 2
    if order == 3:
        yield "rrr", inner(reverse_of(rr, w)(*points), z), 3
        if forward:
            yield "frr", inner(forward_of(rr, z)(*points), w), 3
            yield "rff", inner(reverse_of(ff, ONE)(*points), z), 3
            yield "fff", inner(forward_of(ff, z)(*points), ONE), 3


def numeric(program: Program, order: int, step: float) -> list[float]:
    """The same by differences of values, of first and of second reverse derivatives."""
    v, w, z = directions(program.seed, 3)
    program.frozen = True

    def first(*at: Any) -> float:
        return inner(vjp(program, at, EVERY, ONE), v)

    def second(*at: Any) -> float:
        return inner(vjp(lambda *now: vjp(program, now, EVERY, ONE), at, EVERY, v), w)

    found = [slope(lambda *at: program(*at).item(), program.points, v, step), slope(first, program.points, w, step)]
    found += [slope(second, program.points, z, step)] if order == 3 else []
    program.frozen = False
    return found


def mismatches(seed: int) -> list[str]:
    program = Program(seed, (None, "detach", "no_grad")[seed % 3])
    program(*map(tensor, program.points))
    order = 3 if seed % 5 == 0 else 2
    found = list(derivatives(program, order))
    bad: list[str] = []
    for step in (2e-4, 1e-5):  # a longer step may have met a corner, or another order of what is sorted
        expected = numeric(program, order, step)
        bad = [
            f"{name}: {value!r}, numeric {expected[k - 1]!r}"
            for name, value, k in found
            if not abs(value - expected[k - 1]) <= (1e-6, 1e-5, 1e-4)[k - 1] * max(1.0, abs(expected[k - 1]))
        ]
        if not bad:
            break
    return [f"{program.names} {program.cut}: {bad}"] if bad else []


def without_degeneracy(seed: int) -> bool:
    """Second derivatives at equal eigenvalues are NaN, as documented."""
    program = Program(seed, (None, "detach", "no_grad")[seed % 3])
    program(*map(tensor, program.points))
    return not any("equal eigenvalues" in name for name in program.names)


@pytest.mark.parametrize("part", range(8))
def test_programs_of_samples_have_the_numeric_derivatives_in_every_mode(part: int) -> None:
    chosen = filter(without_degeneracy, range(part * 11, len(SMOOTH), 8 * 11))
    assert [text for seed in chosen for text in mismatches(seed)] == []


def with_error(vjp_of_entry: Any) -> Any:
    def scaled_vjp(entry: Any, g: Any, grads: Any, owned: Any) -> None:
        vjp_of_entry(entry, g * 1.001, grads, owned)

    return scaled_vjp


@pytest.mark.parametrize("code", ["getitem", "setitem", "sum", "multiply.xy", "sqrt.x"])
def test_a_rule_a_thousandth_off_is_noticed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list(filter(without_degeneracy, range(0, 40, 10)))
    assert [text for seed in chosen for text in mismatches(seed)] == []
    monkeypatch.setitem(VJPS, code, with_error(VJPS[code]))
    assert [text for seed in chosen for text in mismatches(seed)] != []


def gradients_of(program: Program, managers: int, grouped: bool, retain: bool) -> list[list[Array]]:
    points = [tensor(p) for p in program.points]
    recording = [GradManager().attach(points) for _ in range(managers)]
    if grouped:
        (recording[0] | recording[1]).record()
    else:
        for manager in recording:
            manager.record()
    y = program(*points)
    found = []
    for manager in reversed(recording):
        for again in (True, False) if retain else (False,):
            manager.backward(y, retain=again)
        found.append([pop_gradient_array(t) / (2 if retain else 1) for t in points])
    return found


@pytest.mark.parametrize("part", range(4))
def test_programs_have_one_gradient_however_it_is_recorded(part: int) -> None:
    for seed in range(part * 19, len(SMOOTH), 4 * 19):
        program = Program(seed, (None, "detach", "no_grad")[seed % 3])
        (expected,) = gradients_of(program, 1, grouped=False, retain=False)
        for managers, grouped, retain in ((2, False, False), (2, True, False), (1, False, True), (2, True, True)):
            for found in gradients_of(program, managers, grouped, retain):
                for a, b in zip(found, expected, strict=True):
                    assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=str(program.names))


@pytest.mark.parametrize("part", range(2))
def test_programs_have_the_same_gradient_in_single_precision(part: int) -> None:
    for seed in range(part * 23, len(SMOOTH), 2 * 23):
        double, single = Program(seed), Program(seed, dtype=np.float32)
        single.points = [p.astype(np.float32) for p in double.points]
        (expected,) = gradients_of(double, 1, grouped=False, retain=False)
        (found,) = gradients_of(single, 1, grouped=False, retain=False)
        size = max(1.0, *(np.abs(g).max() for g in expected))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == np.float32
            assert_allclose(a, b, rtol=2e-3, atol=2e-3 * size, err_msg=str(double.names))


# ---------------------------------------------------------------- single samples, at their edges too


def in_direction(points: list[Any], where: list[int], random: Any) -> list[Tensor]:
    made = []
    for k in where:
        values = random.uniform(0.5, 1.5, points[k].shape)
        values = values + 0.4j * random.uniform(-1, 1, points[k].shape) if points[k].dtype.kind == "c" else values
        made.append(tensor(np.asarray(values, points[k].dtype)))
    return made


@each_case([(s, d) for s in SAMPLES if not s.smooth for d in (np.float64, np.complex128)[: 1 + s.is_complex]])
def test_all_second_derivatives_agree_at_edges(sample: Sample, dtype: Any) -> None:
    """Where there is no numeric derivative to compare with; and the second derivative is symmetric."""
    points, where = tensors(sample, sample.make(dtype)), sample.where

    def call(*at: Any) -> list[Any]:
        return [y for y in flat(sample.call(gnp, *at)) if y.dtype.kind in "fc"]

    random = np.random.default_rng(1)
    us = [tensor(u) for u in seeds(call(*points))]
    v, w = in_direction(points, where, random), in_direction(points, where, random)

    def along(found: Any, direction: Any) -> float:
        return sum(float(np.sum(np.conj(d.numpy()) * t.numpy()).real) for t, d in zip(found, direction, strict=True))

    with np.errstate(all="ignore"):
        r = lambda *at: vjp(call, at, where, us)
        f = lambda *at: jvp(call, at, where, v)
        ways = [
            along(vjp(r, points, where, v), w),
            along(vjp(r, points, where, w), v),
            along(jvp(r, points, where, w), v),
            along(vjp(f, points, where, us), w),
            along(jvp(f, points, where, w), us),
        ]
    assert_allclose(ways, ways[0], rtol=1e-9, atol=1e-9)


@each_case([s for s in SAMPLES if s.smooth])
def test_the_derivative_by_the_cotangents_alone_is_the_tangent(sample: Sample) -> None:
    """A manager that knows nothing but the cotangents records what backward computes of plain arrays with them."""
    points = tensors(sample, sample.make())
    leaves = [points[k] for k in sample.where]
    vs = in_direction(points, sample.where, np.random.default_rng(2))
    inner = GradManager().attach(leaves)
    with inner:
        outs = flat(sample.call(gnp, *points))
        recorded = [k for k, y in enumerate(outs) if tracks(inner, y)]  # the others are constants
    us = [tensor(u) for u in seeds([outs[k] for k in recorded])]

    def call(*at: Any) -> list[Any]:
        made = flat(sample.call(gnp, *at))
        return [made[k] for k in recorded]

    with GradManager().attach(us) as outer, inner:
        inner.backward(call(*points), us)
        found = [(t.grad, v) for t, v in zip(leaves, vs, strict=True) if t.grad is not None and tracks(outer, t.grad)]
        outer.backward([g for g, _ in found], [v for _, v in found])
    for u, t in zip(us, jvp(call, points, sample.where, vs), strict=True):
        assert_allclose(pop_gradient_array(u), t.numpy(), rtol=1e-6, atol=1e-8)


def test_the_mixed_derivative_of_a_power_at_an_exponent_of_0_is_not_masked() -> None:
    """That in x is 0 there, but its slope in the exponent is 1 / x; where x is 0, too, all is 0."""
    x, p = tensor([2.0, 0.25, 0.0, 5e-324]), tensor(np.zeros(4))
    with np.errstate(all="ignore"):
        of_x, of_p = vjp(lambda *at: vjp(lambda x, p: x**p, at, [0, 1], [np.ones(4)])[0], [x, p], [0, 1], [np.ones(4)])
    np.testing.assert_array_equal(of_x.numpy(), np.zeros(4))
    np.testing.assert_array_equal(of_p.numpy(), [0.5, 4, 0, 0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: gnp.hypot(x[0], x[1]),
        lambda x: gnp.arctan2(x[0], x[1]),
        lambda x: gnp.angle(x[0] + 1j * x[1]),
        lambda x: gnp.absolute(x[0] + 1j * x[1]),
        lambda x: gnp.linalg.norm(x),
        lambda x: gnp.linalg.norm(x, 3),
        lambda x: gnp.std(x),
        lambda x: gnp.std(x, where=[True, True]),
        lambda x: gnp.nanstd(x),
    ],
)
def test_where_the_first_derivative_is_0_by_convention_so_is_the_second(function: Any) -> None:
    x, v = tensor(np.zeros(2)), np.array([0.7, -1.3])
    with np.errstate(all="ignore"):
        ways = [
            *vjp(lambda at: vjp(function, [at], [0], ONE), [x], [0], [v]),
            *jvp(lambda at: vjp(function, [at], [0], ONE), [x], [0], [v]),
            *vjp(lambda at: jvp(function, [at], [0], [v]), [x], [0], ONE),
            *jvp(lambda at: jvp(function, [at], [0], [v]), [x], [0], [v]),
        ]
    for found in ways:
        np.testing.assert_array_equal(found.numpy(), np.zeros(found.shape))


# ---------------------------------------------------------------- what rules may touch, and what is kept for them


# They name each other, and hold no value.
ENDLESS = (Level, Library)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """The arrays in an entry of a tape, those in objects of ours too."""
    value = value._array if isinstance(value, Tensor) else value
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from arrays_in(part)
    elif type(value).__module__.startswith("gradmgr") and not isinstance(
        value, (Level, Library)
    ):  # they name each other
        for name in getattr(type(value), "__slots__", ()):
            yield from arrays_in(getattr(value, name, None))


def lock(values: Any) -> None:
    for a in arrays_in(values):
        a.flags.writeable = False


def with_locked_cotangents(vjp_of_entry: Any) -> Any:
    def locked_vjp(entry: Any, g: Any, grads: Any, owned: Any) -> None:
        if not set.__contains__(owned, entry[1]):  # else the buffer was made for this gradient alone
            lock(list(g.values()) if isinstance(g, dict) else g)
        vjp_of_entry(entry, g, grads, owned)

    return locked_vjp


def recorded(sample: Sample, manager: GradManager, points: list[Any]) -> list[Tensor]:
    return [y for y in flat(sample.call(gnp, *points)) if tracks(manager, y)]


def twice_derived_with_locks(sample: Sample) -> None:
    points = tensors(sample, sample.make())
    attached = [points[k] for k in sample.where]
    outer, innermost = GradManager().attach(attached), GradManager().attach(attached)
    with outer, innermost:
        outs = recorded(sample, innermost, points)
        dys = seeds(outs)
        lock([innermost._tape.entries, points, outs, dys])
        innermost.backward(outs, dys)
        gs = [t.grad for t in attached if t.grad is not None and tracks(outer, t.grad)]
        for t in attached:
            t.grad = None
        dys = seeds(gs)
        lock([outer._tape.entries, gs, dys])
        outer.backward(gs, dys)


@pytest.mark.parametrize("part", range(4))
def test_no_rule_writes_to_a_cotangent_or_to_what_is_kept(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = SAMPLES[part::4]
    for sample in chosen:  # the first use of a rule puts its compiled form into the table
        twice_derived_with_locks(sample)
    for code, vjp_of_entry in VJPS.items():
        monkeypatch.setitem(VJPS, code, with_locked_cotangents(vjp_of_entry))
    for sample in chosen:
        twice_derived_with_locks(sample)


def references_to_kept(tape: Any, held_elsewhere: list[Any]) -> list[Any]:
    """Return weak references to the arrays that a tape keeps, but for those held elsewhere."""
    others = {id(a) for a in arrays_in(held_elsewhere)}
    return [weakref.ref(a) for a in arrays_in(tape.entries) if id(a) not in others]


def constants_of(sample: Sample) -> list[Any]:
    """The arrays that a sample's call closes over, has as defaults, or finds in its module."""
    call = sample.call
    cells = [cell.cell_contents for cell in call.__closure__ or ()]
    return [*cells, *(call.__defaults__ or ()), *(call.__globals__.get(name) for name in call.__code__.co_names)]


@pytest.mark.parametrize("end", ["backward", "release"])
def test_nothing_is_kept_after_the_end(end: str, no_cyclic_collector: None) -> None:
    left = {}
    for sample in SAMPLES:
        arrays = sample.make()
        points = tensors(sample, arrays)
        attached = [points[k] for k in sample.where]
        outer, innermost = GradManager().attach(attached), GradManager().attach(attached)
        outer.record()
        innermost.record()
        outs = recorded(sample, innermost, points)
        held_elsewhere = [arrays, constants_of(sample)]
        references = references_to_kept(innermost._tape, held_elsewhere)
        innermost.backward(outs, seeds(outs))
        gs = [t.grad for t in attached if t.grad is not None and tracks(outer, t.grad)]
        references += references_to_kept(outer._tape, held_elsewhere)
        if end == "backward":
            outer.backward(gs, seeds(gs))
        else:
            outer.release()
        for t in attached:
            t.grad = None
        del outs, gs, t
        alive = sum(ref() is not None for ref in references)
        if alive:
            left[str(sample)] = alive
    assert left == {}


# ---------------------------------------------------------------- an entry keeps nothing for nothing


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The arrays of some elements in an entry, and how to get to each."""
    value = value._array if isinstance(value, Tensor) else value
    if isinstance(value, np.ndarray):
        if value.size > 1:
            yield path, value
    elif isinstance(value, (tuple, list)):
        for k, part in enumerate(value):
            yield from places_of(part, (*path, k))
    elif type(value).__module__.startswith("gradmgr") and not isinstance(
        value, (Level, Library)
    ):  # they name each other
        for name in getattr(type(value), "__slots__", ()):
            yield from places_of(getattr(value, name, None), (*path, name))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same entry with another array at its place."""
    if not path:
        return new
    here, *rest = path
    if isinstance(value, (tuple, list)):
        parts = list(value)
        parts[here] = replaced(value[here], tuple(rest), new)
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    changed = copy.copy(value)
    setattr(changed, here, replaced(getattr(value, here), tuple(rest), new))
    return changed


def other_values(a: np.ndarray) -> list[np.ndarray]:
    """Other values, valid where these are, in the place of an array."""
    if a.dtype.kind == "b":
        return [~a]
    if a.dtype.kind in "iu":
        return [np.zeros_like(a) if a.any() else np.ones_like(a)]
    return [np.linspace(0.3, 0.9, a.size).reshape(a.shape).astype(a.dtype), -3 * a - 0.1]


def gradients_from(tape: Any, outs: list[Tensor]) -> list[Array] | None:
    """What flows to the leaves, the tape being as it is now; None where an error says that it cannot."""
    try:
        grads = run_backward(
            tape, [(tape.node_id_of(y), u) for y, u in zip(outs, seeds(outs), strict=True)], retain=True
        )
    except (errors.GaugeError, ArithmeticError, ValueError, IndexError):
        return None
    return [raw(grads[node_id]) for node_id in tape.leaves.values() if node_id in grads]


def matters(tape: Any, k: int, path: tuple[Any, ...], outs: list[Tensor], expected: list[Array]) -> bool:
    """Whether another array at that place of entry k makes another gradient."""
    entry, found = tape.entries[k], []
    for other in other_values(dict(places_of(entry))[path]):
        tape.entries[k] = replaced(entry, path, other)
        found.append(gradients_from(tape, outs))
    tape.entries[k] = entry
    return any(
        g is None or not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(g, expected, strict=True))
        for g in found
    )


def test_every_array_that_an_entry_keeps_has_a_part_in_some_gradient() -> None:
    needed: dict[tuple[Any, ...], bool] = {}
    for sample, dtype in ((s, d) for s in SAMPLES for d in (np.float64, np.complex128)[: 1 + s.is_complex]):
        points = tensors(sample, sample.make(dtype))
        manager = GradManager().attach([points[k] for k in sample.where])
        with manager:
            outs, tape = recorded(sample, manager, points), manager._tape
            expected = gradients_from(tape, outs)
            assert expected is not None
            for k, entry in enumerate(tape.entries):
                places = dict(places_of(entry))
                once = {id(a): path for path, a in reversed(places.items())}  # what stands twice is kept once
                for path in once.values():
                    if not needed.get((entry[0], path)):
                        needed[entry[0], path] = matters(tape, k, path, outs, expected)
    assert [place for place, is_needed in needed.items() if not is_needed] == []


def gradients_after_a_write(sample: Sample, k: int) -> list[Array]:
    """The gradients where the memory of argument k was written to before the derivative, and declared so."""
    arrays = sample.make()
    points = tensors(sample, arrays)
    attached = [points[j] for j in sample.where]
    manager = GradManager().attach(attached)
    with manager:
        outs = recorded(sample, manager, points)
        arrays[k][...] = arrays[k] * -0.37 + 0.11
        increment_version(arrays[k])
        manager.backward(outs, seeds(outs))
    return [pop_gradient_array(t) for t in attached]


def test_memory_that_is_overwritten_is_noticed_or_not_needed() -> None:
    noticed = 0
    for sample in SAMPLES:
        expected = gradients(sample, sample.make())
        for k in (k for k, a in enumerate(sample.make()) if a.dtype.kind == "f" and a.size):
            try:
                found = gradients_after_a_write(sample, k)
            except errors.StaleValueError:
                noticed += 1
                continue
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str(sample))
    assert noticed > len(SAMPLES) // 4
