"""The programs that the suite `programs` times: gradmgr and PyTorch compute the same, and training descends."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from bench import programs
from bench._measure import Pace, check_agreement
from bench.programs import inference, learning, physics, vision

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)
SMALL = [
    partial(vision.bundle_adjustment, 3),
    partial(vision.registration, 32),
    partial(vision.resnet, batch=3, channels=4, side=6, depth=2),
    partial(learning.matrix_factorisation, users=7, items=5, rank=3, batch=20),
    partial(learning.vae, batch=4, pixels=9, hidden=6, codes=2),
    partial(learning.nano_gpt, letters=5, length=6, width=8, batch=2),
    partial(learning.maml, tasks=3, points=4, width=5, inner_steps=2),
    partial(inference.gaussian_process, 12),
    partial(inference.gaussian_process_by_slogdet, 12),
    partial(inference.kalman_filter, 4),
    partial(inference.hmc, points=12, features=3, leaps=4),
    partial(physics.n_body, bodies=4, steps=3),
    partial(physics.neural_ode, batch=5, hidden=6, steps=3),
    partial(physics.tensor_network, batch=4, rank=3),
]


def _name(made):
    return made.func.__name__


@pytest.mark.parametrize("made", SMALL, ids=_name)
def test_a_program_computes_the_same_in_both_libraries(made):
    pytest.importorskip("torch")
    program = made()
    contestants = programs.contestants(program, 1)
    assert [c.name for c in contestants] == ["PyTorch", "gradmgr"]
    check_agreement(program.label, contestants)


TRAINED = [*SMALL[1:7], SMALL[12]]


@pytest.mark.parametrize("made", TRAINED, ids=_name)
def test_training_descends(made):
    step = made().here()
    losses = [float(step()[0]) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_the_small_programs_are_all():
    assert [made.func for made in SMALL] == list(programs.PROGRAMS)


def test_the_table_has_a_row_for_each_and_the_geometric_mean():
    pytest.importorskip("torch")
    chosen = [SMALL[0], SMALL[-1]]
    (table,) = programs.tables(NO_TIME, 1, programs=chosen)
    *rows, mean = table.rows
    assert [row.label for row in rows] == [made().label for made in chosen]
    assert [len(row.verdicts) for row in table.rows] == [1, 1, 1]
    assert mean.cells["gradmgr"] == pytest.approx(np.prod([row.cells["gradmgr"] for row in rows]) ** 0.5)
    (table,) = programs.tables(NO_TIME, 1, "tensor network", programs=chosen)
    assert [row.label for row in table.rows] == [rows[1].label]


def test_without_pytorch_the_times_are_gradmgrs(monkeypatch):
    monkeypatch.setattr(programs, "torch", lambda threads: None)
    (table,) = programs.tables(NO_TIME, 1, programs=SMALL[-1:])
    assert [row.cells.keys() for row in table.rows] == [{"µs"}]
