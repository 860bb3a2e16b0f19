"""The benchmarks compute what they say, with whatever peers are installed; nothing is timed in earnest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers import ROOT

from bench import __main__ as bench_main
from bench import _chart, _measure, _report, atoms, layers, operations, tools
from bench._measure import Contestant, Pace, Row, Table, Verdict, WrongAnswerError, always
from bench.libraries import Gradmgr, NetworkByHand, by_hand, chain_by_hand

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)


# ---------------------------------------------------------------- the work by hand is right


EVERY_OPERATION = pytest.mark.parametrize(
    "operation", [*operations.KINDS, operations.MULTIPLY], ids=lambda op: op.label
)


@EVERY_OPERATION
def test_gradients_of_an_operation_by_hand_are_the_difference_quotients(operation):
    arrays = [a.astype(float) for a in operations.inputs(operation, 8)]
    value, *gradients = by_hand(operation, arrays)
    np.testing.assert_array_equal(value, operation.once(np, *arrays))
    for k, gradient in enumerate(gradients):
        for place in np.ndindex(arrays[k].shape):
            moved = [a.copy() for a in arrays]
            moved[k][place] += 1e-6
            slope = (operation.once(np, *moved).sum() - value.sum()) / 1e-6
            assert gradient[place] == pytest.approx(slope, rel=1e-5)


@EVERY_OPERATION
def test_the_timed_loop_does_the_operation_so_many_times(operation):
    done = []

    class Counting:
        def __getattr__(self, name):
            return lambda *arguments, **options: done.append((name, options))

        def __mul__(self, other):
            return self.multiply(other)

        def __add__(self, other):
            return self.add(other)

        def __matmul__(self, other):
            return self.matmul(other)

        def __getitem__(self, place):
            return self.item(place)

    operation.once(Counting(), *[Counting()] * operation.inputs)
    assert len(done) == 1
    operation.times(Counting(), 7, *[Counting()] * operation.inputs)
    assert done == done[:1] * 8


@pytest.mark.parametrize("both", [False, True])
def test_chain_by_hand_has_the_closed_form(both):
    program = operations.chain(50, both=both)
    x, y, dy = program.x.astype(float), program.y.astype(float), program.dy.astype(float)
    expected = [x * y**50, dy * y**50, *([dy * x * 50 * y**49] if both else [])]
    found = chain_by_hand(program)()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_million_factors_stay_normal_numbers():
    program = operations.chain(1_000_000, both=False)
    assert np.all(np.isfinite(program.y.astype(float) ** 1_000_000))
    assert np.all(program.y.astype(float) ** 1_000_000 > 1e-3)


def test_network_by_hand_descends_along_the_difference_quotient():
    program = operations.network(3, 4, 3)
    program = operations.Network(
        program.x.astype(float),
        program.target.astype(float),
        [(w.astype(float), b.astype(float)) for w, b in program.layers],
    )

    def loss(layers):
        h = program.x
        for w, b in layers[:-1]:
            h = np.tanh(h @ w + b)
        w, b = layers[-1]
        return ((h @ w + b - program.target) ** 2).mean()

    trained = NetworkByHand(program)
    assert trained.step() == pytest.approx(loss(program.layers), rel=1e-12)
    flat = [p for layer in program.layers for p in layer]
    for k, (before, after) in enumerate(zip(flat, trained.parameters(), strict=True)):
        for place in np.ndindex(before.shape):
            moved = [p.copy() for p in flat]
            moved[k][place] += 1e-6
            up = loss(list(zip(moved[::2], moved[1::2], strict=True)))
            moved[k][place] -= 2e-6
            down = loss(list(zip(moved[::2], moved[1::2], strict=True)))
            slope = (up - down) / 2e-6
            assert (before[place] - after[place]) / program.rate == pytest.approx(slope, rel=1e-5, abs=1e-8)


# ---------------------------------------------------------------- every row's contestants agree


@EVERY_OPERATION
def test_rows_of_single_ops_agree(libraries, operation):
    if operation in (operations.PRODUCT, operations.MULTIPLY, operations.EXP):
        compared = libraries if operation is operations.PRODUCT else libraries[:1]  # JAX takes a second for each row
        rows = [
            atoms.control(operation, 8, NO_TIME),
            atoms.idle(operation, 8, compared, NO_TIME, [("NumPy", 2.5)]),
            atoms.recorded(operation, 8, compared, NO_TIME, [("NumPy", 3.6)], leaves=True),
            atoms.recorded(operation, 8, compared, NO_TIME, [("NumPy", 3.6)], leaves=False),
        ]
        assert [len(row.verdicts) for row in rows] == [0, 1, 1, 1]
        assert {"NumPy µs", "gradmgr"} <= rows[1].cells.keys()
    row = atoms.recorded(operation, 64, libraries, NO_TIME, [("NumPy", 3.3)], leaves=True)
    assert row.cells.keys() == {"NumPy µs", *(lib.name for lib in libraries)}


@EVERY_OPERATION
def test_backward_of_many_ops_is_timed_and_gives_their_sum(libraries, operation):
    row = atoms.backward(operation, 64, libraries, NO_TIME, [("NumPy", 3.0)])
    assert {"NumPy µs", "gradmgr"} <= row.cells.keys()
    arrays = [a.astype(float) for a in operations.inputs(operation, 64)]
    dy = np.ones_like(operation.once(np, *arrays))
    found = []
    assert Gradmgr().backward(operation, arrays, dy, 3, keep=found.append)() > 0
    for gradients, of_one in zip(found[0], operation.gradients(*arrays), strict=True):
        np.testing.assert_allclose(gradients, 3 * of_one)


@pytest.mark.parametrize("both", [False, True])
def test_rows_of_chains_agree(libraries, both):
    row = atoms.chain(50, libraries, NO_TIME, [("NumPy", 3.5)], both=both)
    assert row.cells.keys() == {"NumPy µs", *(lib.name for lib in libraries)}


def test_rows_of_networks_agree(libraries):
    row = atoms.network(8, 16, 3, libraries, NO_TIME)
    assert row.cells.keys() == {"NumPy µs", *(lib.name for lib in libraries)}


def test_recorded_operations_are_recorded():
    seen = []
    operation = replace(operations.EXP, times=lambda xp, n, x: seen.append((x * x)._rec))
    for leaves in (True, False):
        with Gradmgr().recorded(operation, [np.ones(2, np.float32)], leaves=leaves)() as run:
            run(1)
    with Gradmgr().idle(operation, [np.ones(2, np.float32)])() as run:
        run(1)
    assert [rec is not None for rec in seen] == [True, True, False]


@pytest.mark.parametrize(
    "title",
    [
        "Control",
        pytest.param("Single ops", marks=pytest.mark.slow),
        "Programs",
        pytest.param("Ten kinds", marks=pytest.mark.slow),
        "Backward",
    ],
)
def test_every_row_of_a_table_can_be_measured(title):
    (table,) = atoms.tables(NO_TIME, 1, only=title)
    assert table.title.startswith(title)
    assert len(table.rows) >= 4
    assert all(row.cells.keys() <= table.columns.keys() for row in table.rows)


# ---------------------------------------------------------------- checking and timing


def _giving(name, *arrays):
    return Contestant(name, always(lambda n: None), lambda: arrays)


@pytest.mark.parametrize(
    "answer", [[np.full(3, 1.001)], [np.ones(4)], [np.array([1, 1, np.nan])], [np.ones(3), np.ones(3)]]
)
def test_a_contestant_with_another_answer_is_rejected(answer):
    with pytest.raises(WrongAnswerError, match="late"):
        _measure.race("row", [_giving("first", np.ones(3)), _giving("late", *answer)], NO_TIME)


def test_agreeing_contestants_have_a_time_for_every_round():
    times = _measure.race("row", [_giving("first", np.ones(3)), _giving("late", np.ones(3))], NO_TIME)
    assert {name: len(seconds) for name, seconds in times.items()} == {"first": 2, "late": 2}


def test_ratio_is_the_median_of_the_rounds_ratios():
    times = {"base": [1.0, 2.0, 10.0], "other": [2.0, 6.0, 1.0]}
    assert _measure.ratio(times, "other", "base") == 2.0
    assert _measure.ratio(times, "base", "base") == 1.0


def test_turns_rotate():
    assert [_measure.rotated("abc", k) for k in (0, 1, 5)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


# ---------------------------------------------------------------- tools


def test_the_tools_compute_what_plain_programs_do():
    rows = [*tools.jacobian(NO_TIME, 5), *tools.per_sample(NO_TIME, 3), *tools.checkpoints(NO_TIME, 9)]
    assert [len(row.verdicts) for row in rows] == [1, 1, 1, 0, 1, 1]
    assert all(row.cells for row in rows)


def test_the_profiler_and_anomaly_detection_change_no_value():
    labels = [row.label for row in tools.profiler_and_anomaly_detection(NO_TIME)]
    assert labels[:2] == ["profiler, 8 elements", "anomaly, 8 elements"]
    assert len(labels) == 7


def test_own_operations_hooks_and_checkpoints_compute_what_pytorch_does():
    pytest.importorskip("torch")
    rows = tools.own_code(NO_TIME, 1)
    assert len(rows) == 9
    assert [row.label for row in rows if row.verdicts] == ["Function, forward", "custom_op over Function, forward"]


# ---------------------------------------------------------------- training


def test_optimisers_agree_with_the_formulas_by_hand():
    rows = layers.optimisers(NO_TIME, 1, {"small": [(3,), (2, 5)], "large": [(300, 200)]})
    assert len(rows) == 2 * len(layers.ALGORITHMS)
    for row in rows:
        assert "gradmgr" in row.cells


def test_functions_run_forward_and_backward():
    for label, (shapes, call, constants) in layers._calls().items():
        arrays = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in shapes]
        value, *gradients = layers._forward_backward(arrays, call, constants).answer()
        assert value.dtype == np.float32, label
        assert [g.shape for g in gradients] == [a.shape for a in arrays]
        assert all(g.any() for g in gradients), label


def test_steps_by_rows_of_a_table_agree():
    rows = layers.look_ups(NO_TIME, 1, (50, 3), [4, 60])
    assert [row.label for row in rows] == ["4 of 50 x 3", "60 of 50 x 3"]
    for row in rows:
        assert "gradmgr" in row.cells or "embedding" in row.cells


# ---------------------------------------------------------------- reporting


def test_text_and_json_show_figure_target_and_verdict(tmp_path):
    rows = [Row("quick", {"NumPy µs": 0.25, "gradmgr": 3.0}, (Verdict("gradmgr / NumPy", 3.0, 3.6),))]
    rows.append(Row("slow", {"NumPy µs": 0.25}, (Verdict("gradmgr / NumPy", 4.0, 3.6),)))
    table = Table("Ops", {"NumPy µs": "{:.3g}", "gradmgr": "{:.2f}x"}, rows)
    text = _report.text(table)
    assert "3.00x" in text
    assert "gradmgr / NumPy at most 3.6: 3, reached" in text
    assert "gradmgr / NumPy at most 3.6: 4, NOT REACHED" in text
    summary = _report.summary([table])
    assert "1 of 2 targets reached" in summary
    assert "slow" in summary
    assert "quick" not in summary
    file = tmp_path / "figures.json"
    _report.write_json(str(file), {"processor": "?"}, [table])
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["machine"] == {"processor": "?"}
    assert content["tables"][0]["rows"][1]["targets"] == [
        {"what": "gradmgr / NumPy", "value": 4.0, "at_most": 3.6, "reached": False}
    ]


def test_a_picture_shows_the_tables_with_ratios(tmp_path):
    rows = [Row("one", {"NumPy µs": 1.0, "gradmgr": 3.0, "PyTorch": 7.0}, (Verdict("gradmgr / NumPy", 3.0, 2.0),))]
    table = Table("Ops", {"NumPy µs": "{:.3g}", "gradmgr": "{:.2f}x", "PyTorch": "{:.2f}x"}, rows, "a note")
    counts = Table("Bytes", {"found": "{:,.0f}"}, [Row("entries", {"found": 3.0})])
    file = tmp_path / "picture.png"
    assert not _chart.write_png(str(file), "nothing to draw", [counts])
    assert not file.exists()
    assert _chart.write_png(str(file), "a title", [table, counts])
    assert file.read_bytes().startswith(b"\x89PNG")


def _run(*arguments):
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)  # noqa: S603  # our own program


def test_the_command_prints_a_table_and_writes_json(tmp_path):
    file = tmp_path / "figures.json"
    picture = tmp_path / "figures.png"
    done = _run("atoms", "--quick", "--only", "control", "--json", str(file), "--png", str(picture))
    assert done.returncode == 0, done.stderr
    assert "x * y over x * y, 8" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["machine"]["threads"] == 1
    assert content["machine"]["versions"]["numpy"] == np.__version__
    assert [table["title"] for table in content["tables"]] == ["Control"]


def test_an_unknown_suite_is_refused():
    done = _run("molecules")
    assert done.returncode == 2
    assert "atoms" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--threads", "0"], "at least 1; found 0"),
        (["--json", "nowhere/at/all.json"], "--json: there is no folder nowhere/at"),
        (["--png", "nowhere/at/all.png"], "--png: there is no folder nowhere/at"),
    ],
)
def test_what_would_fail_after_the_measuring_is_refused_before(capsys, arguments, says):
    with pytest.raises(SystemExit, match="2"):
        bench_main._arguments(["atoms", *arguments])
    assert says in capsys.readouterr().err


def test_a_picture_without_matplotlib_is_refused_before_measuring(monkeypatch, capsys):
    monkeypatch.setattr(bench_main, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        bench_main._arguments(["atoms", "--png", "figures.png"])
    assert "matplotlib" in capsys.readouterr().err


def test_a_title_that_no_table_has_is_an_error(tmp_path):
    done = _run("train", "--quick", "--only", "nothing like it", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 1
    assert "no table of train has 'nothing like it' in its title" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_contestant_with_a_wrong_gradient_is_rejected():
    class Wrong(Gradmgr):
        name = "wrong"

        def gradients(self, operation, arrays):
            value, *gradients = super().gradients(operation, arrays)
            return [value, *[2 * g for g in gradients]]

    with pytest.raises(WrongAnswerError, match="wrong"):
        atoms.backward(operations.PRODUCT, 8, [Wrong()], NO_TIME, [])
