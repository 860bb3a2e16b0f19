"""The suites `scale` and `memory` compute what they say, at tiny sizes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bench import memory, operations, scale
from bench._arrays import counting
from bench._measure import Pace
from gradmgr import errors, get_num_threads
from gradmgr._engine.context import current, recorders

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)


# ---------------------------------------------------------------- scale


def test_rows_of_ops_agree(libraries):
    rows = scale.rows(libraries, NO_TIME, chain_lengths=(20, 40, 80), loop_lengths=(20, 40))
    assert [len(row.verdicts) for row in rows] == [0, 0, 2, 0, 1, 1]
    assert all(row.cells["n µs"] > 0 for row in rows)


def test_exponent_is_the_slope_of_the_logarithms():
    assert scale.exponent((10, 100, 1000), (3.0, 30.0, 300.0)) == pytest.approx(1)
    assert scale.exponent((10, 100, 1000), (2.0, 200.0, 20_000.0)) == pytest.approx(2)


def test_rows_of_elements_agree(libraries):
    rows = scale.elements(libraries, NO_TIME, sizes=(1, 300))
    assert [row.label for row in rows] == ["1 elements", "300 elements"]
    assert all(row.cells.keys() == {"NumPy µs", *(lib.name for lib in libraries)} for row in rows)


def test_rows_of_parameters_have_every_part(libraries):
    rows = scale.parameters(libraries, NO_TIME, counts=(1, 2, 4))
    assert len(rows) == 4
    assert all(row.cells.keys() >= {"n µs", "N µs", "growth", "exponent"} for row in rows)


def test_every_manager_records_what_is_timed():
    arrays = operations.inputs(operations.PRODUCT, 3)
    entries = []
    for leaves in (True, False):
        contestant = scale._recorded_by(3, arrays, leaves=leaves)
        with contestant.session() as run:
            run(1)
            entries.append([len(rec.entries) for rec in recorders(current())])
    assert entries[0] == [1, 1, 1]
    assert entries[1] == [3, 3, 3]  # and the two factors 1.0


def test_rows_of_managers_agree():
    rows = scale.managers(NO_TIME, counts=(1, 2, 3), sizes=(3,))
    assert [len(row.verdicts) for row in rows] == [1, 1]
    assert all(row.cells.keys() == {"1 µs", "NumPy", "2", "3"} for row in rows)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_works_are_shared_out_among_threads(n):
    done = []
    works = [lambda k=k: done.append((k, threading.get_ident())) for k in range(2)]
    with scale._shared_out(works)() as run:
        run(n)
    assert len(done) == n
    assert len({k for k, _ in done}) == min(n, 2)
    assert len(set(done)) == min(n, 2)


def test_threads_are_as_many_as_before():
    before = get_num_threads()
    rows = scale.large_functions(NO_TIME, (1, 2), shape=(4, 8))
    assert len(rows) >= 3
    assert get_num_threads() == before


def test_rows_of_recordings_on_threads_agree():
    for row in scale.recordings(NO_TIME, (1, 2), sizes=(3,)):
        assert row.cells.keys() == {"1 µs", "2", "NumPy 1", "NumPy 2"}


def test_two_ranks_are_measured():
    rows = scale.ranks(NO_TIME)
    if not rows:
        pytest.skip(f"mpi4py, or the launcher of the mpich wheel, is not installed; {errors.how_to_install('mpich')}")
    has_limit = [bool(row.verdicts) for row in rows]
    assert has_limit[:10] == [False, True, *5 * [False], *3 * [True]]
    assert has_limit[10:] in ([], [True, False, False, False], 2 * [True, False, False, False])  # without PyTorch, ...
    for row in rows:
        # How much longer a step is over a slow network is a difference of times, which noise can make negative.
        assert np.isfinite(row.cells["gradmgr"]) if "slow network" in row.label else row.cells["gradmgr"] > 0, row


# ---------------------------------------------------------------- memory


def test_a_quick_run_measures_one_model_of_each_kind():
    assert memory.first_of_each_kind(["MLP 8", "MLP 32", "CNN 64", "GPT 1", "GPT 2"]) == ["MLP 8", "CNN 64", "GPT 1"]


def test_rows_of_a_recording_reach_their_targets():
    for row in memory.rows():
        for verdict in row.verdicts:
            assert verdict.reached, (row.label, verdict)


def test_what_is_kept_is_counted():
    x = memory._ones()
    assert memory._kept(lambda t, w: t * w) == x.nbytes
    assert memory._kept(lambda t, w: t * t + t * w) == 2 * x.nbytes


def test_peak_and_residue_of_a_step_are_counted():
    left = []

    def step():
        np.empty(50_000)  # 400,000 bytes, freed
        left.append(np.empty(1000))

    assert memory.counted(step) == (400_000, 8000)
    assert 400_000 <= memory.traced(step) < 420_000


def test_arrays_are_counted_as_they_come_and_go():
    with counting() as arrays:
        a = np.zeros((10, 10))
        assert (arrays.now, arrays.most) == (800, 800)
        b = a + a
        del a
        assert (arrays.now, arrays.most) == (800, 1600)
        arrays.restart()
        b.resize((5, 5))
        assert (arrays.now, arrays.most) == (200, 800)
    c = np.ones(3)
    assert arrays.now == 200
    del b, c
    assert arrays.now == 0


@pytest.mark.skipif(not memory.can_see_peaks(), reason="/proc/self/clear_refs and glibc's malloc_trim are not there")
def test_the_peak_of_a_process_is_what_it_took_at_most():
    peak = memory.resident_peak(lambda: np.ones(5_000_000).sum())
    assert 38e6 < peak < 43e6


def test_memory_of_a_small_step():
    found = memory.steps_of("MLP 8x16x3", "gradmgr", 1)
    assert found["residue"] == 0
    assert 1000 < found["peak"] < found["traced"] < 100_000


def test_rows_of_steps_compare_what_is_counted():
    here, there = {"peak": 9e6, "traced": 9.1e6, "residue": 0}, {"peak": 10e6, "residue": 0, "resident": 9e6}
    row = memory._row_of_steps("both", here, there)
    assert row.cells["ratio"] == 0.9
    assert [v.reached for v in row.verdicts] == [True, True]
    row = memory._row_of_steps("alone", here | {"residue": 16, "resident": 9e6}, None)
    assert "ratio" not in row.cells
    assert [v.reached for v in row.verdicts] == [False]
    assert row.cells.keys() <= memory.STEPS_COLUMNS.keys()
