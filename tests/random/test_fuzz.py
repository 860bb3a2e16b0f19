"""Random programs over NumPy's functions, in every way to differentiate: a sample of tools/fuzz, and itself tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradmgr._engine.entry import VJPS
from tools.fuzz.__main__ import main
from tools.fuzz.check import check
from tools.fuzz.generate import generate
from tools.fuzz.program import MODES, Line, Program, lines_of
from tools.fuzz.reference import HAS_TORCH
from tools.fuzz.report import run

ORACLES = ["torch", "differences"] if HAS_TORCH else ["differences"]


@pytest.mark.parametrize("block", range(10))
def test_random_programs_have_the_derivatives_of_torch_or_of_differences(block: int) -> None:
    report = run(range(block * 50, block * 50 + 50))
    assert not report.findings, report.text()
    assert len(report.unclear) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_more_random_programs(block: int) -> None:
    report = run(range(1_000_000 + block * 500, 1_000_500 + block * 500))
    assert not report.findings, report.text()


def test_a_seed_gives_one_program() -> None:
    one, other = generate(7), generate(7)
    assert str(one) == str(other)
    assert all(np.array_equal(one.inputs[name].array, other.inputs[name].array) for name in one.inputs)
    assert str(generate(8)) != str(one)


def test_every_way_to_differentiate_is_drawn() -> None:
    assert {generate(seed).mode for seed in range(150)} == set(MODES)


def spoiled(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the derivative of an op be a thousandth off."""
    rule = VJPS[code]

    def a_thousandth_off(e: Any, g: Any, grads: Any, owned: Any) -> None:
        rule(e, g * 1.001, grads, owned)

    monkeypatch.setitem(VJPS, code, a_thousandth_off)


@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize("code", ["multiply.xy", "getitem", "sum"])
def test_a_rule_a_thousandth_off_is_found_and_reduced_to_what_it_needs(
    code: str, oracle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(code, monkeypatch)
    report = run(range(14 if oracle == "torch" else 40), oracle=oracle)
    assert report.findings
    sizes = [len(list(lines_of(program.statements))) for _, _, program in report.findings]
    assert min(sizes) <= 2
    assert max(sizes) <= 6
    for _, finding, program in report.findings:
        assert check(program, oracle=oracle).kind == finding.kind


def test_an_error_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("mine")

    monkeypatch.setitem(VJPS, "multiply.xy", broken)
    report = run(range(12))
    assert {finding.kind for _, finding, _ in report.findings} == {"ZeroDivisionError"}
    assert "mine" in report.text()


def test_a_wrong_value_is_a_finding() -> None:
    program = generate(3)
    wrong = Line("v900", "np.sin(v1) * (2 if hasattr(np, 'grad') or 'gradmgr' in np.__name__ else 1)", "torch.sin(v1)")
    finding = check(
        Program(
            {**program.inputs},
            (wrong,),
            (("v900", np.ones(program.inputs["v1"].array.shape)),),
            "backward",
        )
    )
    assert finding.kind == "value"


def test_the_command_writes_a_report(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.txt"
    assert main(["--seed", "3", "--programs", "4", "--report", str(file)]) == 0
    assert capsys.readouterr().out == file.read_text()
    assert file.read_text().startswith("4 random programs")
    assert main(["--seed", "3", "--show"]) == 0
    assert capsys.readouterr().out.startswith("# seed 3: ")
