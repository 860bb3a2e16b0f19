"""How long memory is held in a replay, and how much of it at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple


class Span(NamedTuple):
    """Memory that is held from a call to another one, both included, by their numbers."""

    start: int
    end: int
    nbytes: int


def peak_of(spans: Iterable[Span]) -> int:
    """Return the most bytes that are held at once.

    >>> peak_of([Span(0, 2, 8), Span(1, 1, 4), Span(2, 3, 2), Span(4, 9, 11)])
    12
    """
    changes: Counter[int] = Counter()
    for start, end, nbytes in spans:
        changes[start] += nbytes
        changes[end + 1] -= nbytes
    return max(accumulate([changes[number] for number in sorted(changes)]), default=0)


def over_runs(span: Span, pauses: Sequence[int]) -> Span | None:
    """Return for how long memory is held that is taken before the run of calls that writes it first.

    Runs are what lies between pauses, the numbers of calls, sorted. None if one run needs it and nothing after it.

    >>> over_runs(Span(3, 7, 8), [2, 5, 9])
    Span(start=2, end=9, nbytes=8)
    >>> over_runs(Span(3, 4, 8), [2, 5, 9]) is None
    True
    """
    before, after = bisect_left(pauses, span.start), bisect_left(pauses, span.end)
    if before == after and span.end not in pauses[after : after + 1]:
        return None
    end = pauses[after] if after < len(pauses) else span.end
    return Span(pauses[before - 1] if before else 0, end, span.nbytes)
