"""Programs as people write them: compiled, they do what they do as written, after each of ten calls."""

from __future__ import annotations

import pytest
from contract_harness import check
from contract_not_yet import cases
from contract_programs import PROGRAMS
from machine import needs_machine


@pytest.mark.parametrize("level", ["plain", pytest.param("native", marks=needs_machine)])
@pytest.mark.parametrize("name", cases(PROGRAMS))
def test_a_program_does_compiled_what_it_does_as_written(name: str, level: str) -> None:
    check(PROGRAMS[name], levels=(level,))
