"""Where in one block of memory lies what is held for some time, so that memory serves again."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from gradmgr._replay.spans import Span, peak_of

ALIGNMENT = 64  # bytes: of a cache line
_NEARLY = 1.001  # times the most that is held at once: to look for less pays no more
# How many of the largest are placed one by one; the time that takes grows with their square.
_MOST = 400


class Arena:
    """A plan of one block of memory, by first fit.

    Args:
        nbytes: how large it is to begin with.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes // ALIGNMENT * ALIGNMENT
        # Start and end of what is free below nbytes, sorted.
        self._gaps: list[tuple[int, int]] = [(0, self.nbytes)] if self.nbytes else []
        self._sizes: dict[int, int] = {}  # of what is held, by its start

    def take(self, nbytes: int) -> int:
        """Return where so many bytes are free, and hold them; the block grows where there is no room."""
        low = self.take_from_gaps(nbytes)
        if low is None:
            low = self.nbytes
            if self._gaps and self._gaps[-1][1] == self.nbytes:  # which is too short, and ends where nothing follows
                low = self._gaps.pop()[0]
            self._sizes[low] = _aligned(nbytes)
            self.nbytes = low + _aligned(nbytes)
        return low

    def take_from_gaps(self, nbytes: int) -> int | None:
        """Return where so many bytes are free, and hold them; None if there is no room."""
        nbytes = _aligned(nbytes)
        for k, (low, high) in enumerate(self._gaps):
            if high - low >= nbytes:
                self._gaps[k : k + 1] = [(low + nbytes, high)] if high - low > nbytes else []
                self._sizes[low] = nbytes
                return low
        return None

    def free(self, start: int) -> None:
        """Let go of what begins there."""
        end = start + self._sizes.pop(start)
        k = bisect_left(self._gaps, (start, end))
        if k < len(self._gaps) and self._gaps[k][0] == end:
            end = self._gaps.pop(k)[1]
        if k and self._gaps[k - 1][1] == start:
            k -= 1
            start = self._gaps.pop(k)[0]
        self._gaps.insert(k, (start, end))


def _aligned(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def packed(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Return where in one block each span of memory begins, and how large the block is.

    What is held in turn lies in the first gap, which leaves none where arrays have one size. Else the largest are
    placed first, each as low as what is held meanwhile allows: the steps of a transformer need .8 of the memory then.
    """
    starts, nbytes = _in_turn(spans)
    least = peak_of([Span(start, end, _aligned(nbytes)) for start, end, nbytes in spans])
    if nbytes <= _NEARLY * least:
        return starts, nbytes
    return min((starts, nbytes), _largest_first(spans), key=lambda found: found[1])


def _in_turn(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Return where spans begin, each in the first gap when it is taken, and the size of the block."""
    arena, starts = Arena(), [0] * len(spans)
    held: list[tuple[int, int]] = []  # until when, and where
    for k in sorted(range(len(spans)), key=lambda k: (spans[k].start, -spans[k].nbytes)):
        while held and held[0][0] < spans[k].start:
            arena.free(heapq.heappop(held)[1])
        starts[k] = arena.take(spans[k].nbytes)
        heapq.heappush(held, (spans[k].end, starts[k]))
    return starts, arena.nbytes


def _largest_first(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Return where spans begin if large ones are placed first and small ones behind them, and the size of the block."""
    order = sorted(range(len(spans)), key=lambda k: (-spans[k].nbytes, spans[k].start))
    starts, size = [0] * len(spans), 0
    placed: list[tuple[int, int, int, int]] = []  # where it begins and ends, and from when to when
    for k in order[:_MOST]:
        first, last, nbytes = spans[k]
        nbytes, at = _aligned(nbytes), 0
        for low, high, start, end in placed:
            if start <= last and first <= end:
                if low - at >= nbytes:
                    break
                at = max(at, high)
        insort(placed, (at, at + nbytes, first, last))
        starts[k], size = at, max(size, at + nbytes)
    rest = order[_MOST:]
    behind, more = _in_turn([spans[k] for k in rest])
    for k, start in zip(rest, behind, strict=True):
        starts[k] = size + start
    return starts, size + more
