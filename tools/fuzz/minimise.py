"""Reducing a program to what a finding needs: delta debugging over its lines, then its blocks, options and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tools.fuzz.program import Block, Input, Line, Program, Statement, is_inexact, lines_of, repaired
from tools.fuzz.reference import Reference

Fails = Callable[[Program], bool]


def minimise(program: Program, fails: Fails) -> Program:
    """Return a smaller program that fails as this one does.

    Args:
        program: one that fails.
        fails: tells whether a program fails in the same way; a program that raises elsewhere does not.
    """
    while True:
        smaller = next((p for p in _smaller(program) if fails(p)), None)
        if smaller is None:
            return program
        program = smaller


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with less in them, those with much less first."""
    count = len(list(lines_of(program.statements)))
    size = count
    while size > 0:
        for start in range(0, count, size):
            yield from _repaired(replace(program, statements=_without(program.statements, range(start, start + size))))
        size //= 2
    for name, _ in program.outputs:
        if len(program.outputs) > 1:
            yield from _repaired(replace(program, outputs=tuple([each for each in program.outputs if each[0] != name])))
    for option in sorted(program.options):
        yield replace(program, options=program.options - {option})
    for k, each in enumerate(program.statements):
        if isinstance(each, Block) and each.kind != "vmap":
            body = (*program.statements[:k], *each.body, *program.statements[k + 1 :])
            yield from _repaired(replace(program, statements=body))
    yield from _with_inputs_for_lines(program)
    for name, each in program.inputs.items():
        if each.attached and len(program.leaves) > 1:
            yield _changed(program, name, replace(each, attached=False))
        if not np.array_equal(each.array, _plain_numbers(each.array)):
            yield _changed(program, name, replace(each, array=_plain_numbers(each.array)))


def _repaired(program: Program) -> Iterator[Program]:
    mended = repaired(program)
    if mended is not None:
        yield mended


def _without(statements: Sequence[Statement], gone: range) -> tuple[Statement, ...]:
    """Return statements without some of their lines, which are numbered with those in blocks."""
    number = 0

    def kept(many: Sequence[Statement]) -> tuple[Statement, ...]:
        nonlocal number
        found: list[Statement] = []
        for each in many:
            if isinstance(each, Block):
                found.append(replace(each, body=kept(each.body)))
                continue
            if number not in gone:
                found.append(each)
            number += 1
        return tuple(found)

    return kept(statements)


def _with_inputs_for_lines(program: Program) -> Iterator[Program]:
    """Yield programs in which an input stands for a line, and so for what leads to it."""
    try:
        run = Reference(program)
        for k, each in enumerate(program.statements):
            run.run([each])
            if isinstance(each, Line) and not each.writes and program.statements[k] is each:
                value = run.names[each.target]
                attached = is_inexact(value)
                inputs = {**program.inputs, each.target: Input(value, attached)}
                directions = dict(program.directions)
                if attached:
                    directions[each.target] = np.array(_plain_numbers(value) + 1, value.dtype)
                rest = (*program.statements[:k], *program.statements[k + 1 :])
                yield from _repaired(replace(program, inputs=inputs, statements=rest, directions=directions))
    except Exception:  # a program that NumPy refuses has no values to begin with
        return


def _changed(program: Program, name: str, changed: Input) -> Program:
    inputs = {**program.inputs, name: changed}
    directions = program.directions if changed.attached else {k: a for k, a in program.directions.items() if k != name}
    return replace(program, inputs=inputs, directions=directions)


def _plain_numbers(a: np.ndarray) -> np.ndarray:
    """Return numbers that are easy to read."""
    return np.array(np.round(a, 1) if a.dtype.kind in "fc" else a, dtype=a.dtype)
