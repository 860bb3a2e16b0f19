"""The suite `compiled`: what is timed is replayed and equals eager, and what is counted is what it says."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from bench_models import SMALL

import gradmgr
from bench import compiled, derivative, memory
from bench._measure import FULL, QUICK, Contestant, Pace, WrongAnswerError, always
from bench.compiled import costs, speed
from bench.compiled.levels import FUSED, PLAIN, levels
from bench.derivative import libraries, programs
from bench.train import MODELS, Trainer, here

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)

# ---------------------------------------------------------------- what is timed


def test_every_step_is_replayed_and_equals_eager():
    (table,) = speed.steps(NO_TIME, 1, models=SMALL)
    assert [row.label for row in table.rows] == list(SMALL)  # unmarked
    for row in table.rows:
        assert row.cells.keys() <= table.columns.keys()
        assert {"µs", f"last/{speed.EAGER}"} <= row.cells.keys()


def test_derivatives_are_replayed_and_equal_eager():
    entries = [(lambda: programs.kmeans(k=3, n=20, d=2), {}, ()), (lambda: programs.ode(n=9, steps=3), {}, ())]
    (table,) = speed.derivatives(NO_TIME, 1, entries=entries)
    assert [row.label for row in table.rows[:2]] == ["k-means k=3 n=20", "ODE n=9 s=3"]
    if importlib.util.find_spec("jax") is not None:
        assert table.rows[2].label == "geometric mean of 2"
        assert table.rows[2].cells.keys() <= table.columns.keys()


def _answering(name: str, *values: float) -> Contestant:
    return Contestant(name, always(lambda n: None), lambda: [np.array(values)])


def test_an_answer_that_differs_in_the_last_bit_is_rejected():
    with pytest.raises(WrongAnswerError, match="other"):
        speed.check_replays("a row", _answering("one", 1.0), [_answering("other", np.nextafter(1.0, 2.0))])


def test_an_answer_of_level_fused_may_differ_by_rounding():
    eager = _answering("one", 1.0)
    assert speed.check_replays("a row", eager, [_answering(FUSED, 1.00001)]) == "a row"
    with pytest.raises(WrongAnswerError, match=FUSED):
        speed.check_replays("a row", eager, [_answering(FUSED, 1.01)])


def test_what_is_not_replayed_is_marked():
    numbers = itertools.count()
    refused = gradmgr.compile(lambda x: x + next(numbers))

    def answer():
        for _ in range(3):
            refused(gradmgr.tensor(1.0))
        return [1.0]

    contestant = Contestant("refused", always(lambda n: None), answer)
    assert speed.check_replays("a row", _answering("one", 1.0), [_answering("same", 1.0)]) == "a row"
    assert speed.check_replays("a row", contestant, [contestant]) == "a row: NOT REPLAYED"


def test_a_quick_run_waits_for_no_compiler():
    model = SMALL["mlp"]()
    assert speed.TORCH_COMPILED not in speed.makers(model, 1, QUICK)
    assert list(speed.makers(model, 1, FULL))[:2] == [speed.EAGER, PLAIN]


def test_every_figure_is_of_a_row():
    labels = {*MODELS, *(made().label for made, _, _ in derivative.PROGRAMS)}
    assert speed.FIGURES.keys() <= labels
    assert {base for figures in speed.FIGURES.values() for base in figures} <= {speed.JAX, speed.TORCH}
    assert {*speed._NOT_BY_TORCH, *speed._LONG_TO_CAPTURE} <= labels


def test_the_derivatives_of_gradmgr_are_compiled_as_they_are():
    program = programs.kmeans(k=3, n=20, d=2)
    seen = []
    run = libraries.Gradmgr(1, "mine", lambda function: seen.append(function) or function).differentiated(program)
    assert len(run()) == 3
    assert seen


# ---------------------------------------------------------------- what is counted


def test_the_chain_makes_two_calls_a_step():
    step, factor = costs.chain(50)
    value, gradient = step(factor * 1.5)
    np.testing.assert_allclose(value, np.full(8, 0.5 * 1.5**50))
    np.testing.assert_allclose(gradient, np.full(8, 1.5**50))


@pytest.mark.parametrize("name", list(levels()))
def test_capturing_is_timed(name):
    found = costs.capturing(levels()[name], 100, 2)
    assert all(seconds > 0 for seconds in found.values())
    assert found["replay"] < found["first"]


def test_the_peak_is_counted_from_before_the_model_is_made(monkeypatch):
    def steps(kept: int):
        class Keeping:
            def __init__(self):
                self.kept = None

            def step(self):
                self.kept = np.empty(kept // 8) if self.kept is None else self.kept
                np.empty(1000)

        return Keeping

    few = costs.peaks(steps(8000))
    assert ("resident" in few) == memory.can_see_peaks()
    monkeypatch.setattr(memory, "can_see_peaks", lambda: False)  # to count resident pages takes seconds
    many = costs.peaks(steps(80_000))
    assert many["peak"] - few["peak"] == many["between"] - few["between"] == 72_000
    assert few["peak"] - few["between"] == 8000


def test_what_steps_leave_is_seen():
    class Leaking:
        found: list[object] = []  # noqa: RUF012  # that is the leak

        def step(self):
            self.found.append(object())

    assert costs.left(Leaking, 1000)["blocks"] > 900  # the few that others free meanwhile count, too
    trained: Trainer = here.Compiled(SMALL["mlp"](), 1)
    assert costs.left(lambda: trained, 200)["blocks"] < 100


def test_the_tables_are_there(monkeypatch):
    """Of one model: each row of memory is a process of its own, which takes seconds to import all libraries."""
    monkeypatch.setattr(memory, "first_of_each_kind", lambda _: [costs._SMALL])
    found = list(compiled.tables(NO_TIME, 1, only="replay"))
    assert [table.title for table in found] == ["Cost of a replayed call", "Memory after replays"]
    for table in found:
        for row in table.rows:
            assert row.cells.keys() <= table.columns.keys()
            assert row.verdicts
