"""Threads that write while others read: no value that anybody holds changes, and nothing fails.

Each kind of write meets each kind of reading; see `thread_storm`. A sample of the pairs is drawn anew each day.
"""

from __future__ import annotations

import datetime as dt

import pytest
from helpers import seeded_random
from thread_storm import WRITERS, pairs, storm

from gradmgr._arrays import memory

DAY = dt.datetime.now(dt.UTC).date().toordinal()

# Which pairs a day's run takes: some 12 s on one core.
_SAMPLE = seeded_random(DAY).sample(pairs(), 600)
_ROUNDS = 30
# Writes by each writer, among all that is read, in the long run.
_MANY_ROUNDS = 100_000


def _check(cases, rounds):
    found = [
        f"{writer!r} by {1 + k % 2}, {reader!r}, {shape}: {fault}"
        for k, (writer, reader, shape) in enumerate(cases)
        for fault in storm(writer, reader, shape, rounds, writers=1 + k % 2)
    ]
    assert not found, "\n".join(found)


def test_no_value_changes_while_others_write_in_a_sample_of_the_pairs(quick_switches):
    _check(_SAMPLE, _ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_no_value_changes_while_others_write(writer, quick_switches):
    cases = [case for case in pairs() if case[0] == writer]
    _check(cases, _MANY_ROUNDS // len(cases))


@pytest.mark.parametrize("reader", ["detach", "numpy()", "slice"])
def test_a_write_into_memory_that_a_reader_holds_is_noticed(reader, quick_switches, monkeypatch):
    monkeypatch.setattr(memory, "is_sole", lambda array: True)
    # Several times, as threads of a busy machine may take turns that never meet.
    assert any("changed" in fault for _ in range(30) for fault in storm("x[:] = array", reader, (4, 5000), 300))
