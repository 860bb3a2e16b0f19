"""Programs as people write them: compiled, they do what they do as written, after each of ten calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import contract_harness
import numpy as np
import pytest
from contract_harness import check, compiled
from contract_not_yet import cases
from contract_programs import PROGRAMS, Task
from machine import needs_machine

from gradmgr import errors


@pytest.mark.parametrize("level", ["plain", pytest.param("native", marks=needs_machine)])
@pytest.mark.parametrize("name", cases(PROGRAMS))
def test_a_program_does_compiled_what_it_does_as_written(name: str, level: str) -> None:
    check(PROGRAMS[name], levels=(level,))


def then(*done: Any) -> None:
    """Return None: the result stays as it is."""


# What a fault of `compile` would do, given a task, the arguments and the results so far, and what the harness says.
# It returns another result, or None.
FAULTS: dict[str, tuple[Callable[[Task, Any, list[Any]], Any], str]] = {
    "a bit of a result": (lambda t, args, results: results[-1] * np.float32(1 + 2**-23), "result|after"),
    "a result as a plain array": (lambda t, args, results: results[-1].numpy(), "result"),
    "an earlier result": (lambda t, args, results: then(results[0].__setitem__(..., 0)), "args"),
    "a bit of a parameter": (lambda t, args, results: then(t.params[0].__imul__(np.float32(1 + 2**-23))), "weight"),
    "a gradient": (lambda t, args, results: setattr(t.params[0], "grad", t.params[0] * 0), "grad"),
    "a number drawn": (lambda t, args, results: then(t.rng.random()), "rng"),
    "a setting of the optimiser": (lambda t, args, results: t.optimizer.param_groups[0].update(lr=0.2), "optimizer"),
    "state of the optimiser": (lambda t, args, results: forget(t.optimizer), "optimizer"),
    "what is attached": (lambda t, args, results: then(t.gm.detach(t.params[0])), "attached"),
    "a class of gradmgr's own": (lambda t, args, results: setattr(t, "left", Stray()), "private class"),
    "another run": (lambda t, args, results: then(t.step(*args)), "several times|weight"),
    "a warning": (lambda t, args, results: warnings.warn("surprise", errors.CompileWarning, 2), "surprise"),
}
Stray = type("Stray", (), {"__module__": "gradmgr._engine"})


def forget(optimizer: Any) -> None:
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "state": {}})


@pytest.mark.parametrize("name", FAULTS)
def test_the_comparison_finds_what_a_fault_would_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, said = FAULTS[name]

    def with_a_fault(step: Any, level: str) -> Any:
        made, results = compiled(step, level), []

        def call(*args: Any) -> Any:
            results.append(made(*args))
            changed = fault(step.__self__, args, results) if len(results) == 6 else None
            return results[-1] if changed is None else changed

        return call

    monkeypatch.setattr(contract_harness, "compiled", with_a_fault)
    with pytest.raises(AssertionError, match=said):
        check(PROGRAMS["loss_is_logged_outside"], levels=("plain",))
