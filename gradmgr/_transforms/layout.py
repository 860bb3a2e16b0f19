"""A layered layout of a graph without cycles: layers, an order in each that crosses few edges, places.

The steps are those of Sugiyama, Tagawa and Toda (1981). An edge that spans several layers passes through a lane in each
of those between; the long edges of one box share their lanes, its trunk. The order is improved by barycentres. Places
come from an isotonic regression, which puts each box as near to the middle of its neighbours as the boxes beside it let
it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]

_GAP = 18.0  # between boxes of a layer
_LANE = 8.0  # between edges that pass a layer
_RISE = 34.0  # between layers
_SWEEPS = 8
_MOST_LANES = 200_000  # 12 MB of SVG, drawn in 10 s


class Layout:
    """Places for boxes.

    Args:
        sizes: width and height of each box.
        inputs: for each box the numbers of those that have edges to it, all less than its own.

    Attributes:
        centres: where the middle of each box is.
        trunks: of each box with long edges, the points that they share, which are joined by lines or curves: where the
            lanes enter a layer and leave it.
        edges: for each edge, as (start, end), its last piece: from the box or its trunk to the middle of the other.
        width, height: of the whole.

    Raises:
        ValueError: there are too many long edges for a readable picture.
    """

    def __init__(self, sizes: Sequence[tuple[float, float]], inputs: Sequence[Sequence[int]]) -> None:
        self._sizes = list(sizes)
        layer_of = _layers(inputs)
        lanes = _lanes(inputs, layer_of)
        if lanes > _MOST_LANES:
            raise ValueError(
                f"to_svg: {len(inputs)} boxes have long edges that pass others in {lanes} places, and a picture takes "
                f"{_MOST_LANES} at most; draw the history of a tensor that was computed earlier, or by to_dot"
            )
        self._layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
        for k, layer in enumerate(layer_of):
            self._layers[layer].append(k)
        self._above: list[list[int]] = [[] for _ in sizes]
        self._below: list[list[int]] = [[] for _ in sizes]
        trunks: list[list[int]] = [[k] for k in range(len(inputs))]
        pieces = {
            (start, end): self._connect(trunks[start], layer_of[start], end, layer_of[end])
            for end, starts in enumerate(inputs)
            for start in starts
        }
        self._order()
        self._place(len(inputs), layer_of, trunks, pieces)

    def _place(
        self, count: int, layer_of: list[int], trunks: list[list[int]], pieces: dict[tuple[int, int], int]
    ) -> None:
        x, spans = self._across(), self._down()
        of_layer = {k: layer for layer, row in enumerate(self._layers) for k in row}

        def through(k: int) -> list[Point]:
            top, bottom = spans[of_layer[k]]
            return [(x[k], (top + bottom) / 2 if k < count else top), (x[k], bottom)]

        self.centres: list[Point] = [through(k)[0] for k in range(count)]
        self.trunks = [[point for k in trunk for point in through(k)] for trunk in trunks if len(trunk) > 1]
        self.edges = {
            (start, end): [*through(last), (x[end], spans[layer_of[end]][0]), self.centres[end]]
            for (start, end), last in pieces.items()
        }
        self.height = spans[-1][1] if spans else 0.0
        self.width = max((x[k] + self._sizes[k][0] / 2 for k in range(len(x))), default=0.0)

    def _connect(self, trunk: list[int], top: int, end: int, bottom: int) -> int:
        """Lengthen the trunk of a box in layer `top` to above `bottom`, connect it with a box there; return its end."""
        for layer in range(top + len(trunk), bottom):
            k = len(self._sizes)
            self._sizes.append((0.0, 0.0))
            self._above.append([trunk[-1]])
            self._below.append([])
            self._below[trunk[-1]].append(k)
            self._layers[layer].append(k)
            trunk.append(k)
        last = trunk[bottom - top - 1]
        self._below[last].append(end)
        self._above[end].append(last)
        return last

    # ------------------------------------------------------------ order

    def _order(self) -> None:
        """Sort each layer by the mean place of the neighbours above, or below, in turns; keep the best."""
        best, fewest = [list(layer) for layer in self._layers], self._crossings()
        for sweep in range(_SWEEPS):
            if not fewest:
                break
            downwards = sweep % 2 == 0
            layers = self._layers if downwards else self._layers[::-1]
            for fixed, layer in pairwise(layers):
                places = {k: place for place, k in enumerate(fixed)}
                neighbours = self._above if downwards else self._below
                own = {k: place for place, k in enumerate(layer)}
                layer.sort(key=lambda k: _mean([places[j] for j in neighbours[k]], own[k]))  # called at once
            found = self._crossings()
            if found < fewest:
                best, fewest = [list(layer) for layer in self._layers], found
        self._layers = best

    def _crossings(self) -> int:
        """Count the pairs of edges that cross, by the inversions of their ends."""
        count = 0
        for layer, following in pairwise(self._layers):
            places = {k: place for place, k in enumerate(following)}
            seen: list[int] = []
            for k in layer:
                ends = sorted(places[j] for j in self._below[k])
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    # ------------------------------------------------------------ places

    def _across(self) -> list[float]:
        x = [0.0] * len(self._sizes)
        for layer in self._layers:
            for k, offset in zip(layer, self._offsets(layer), strict=True):
                x[k] = offset
        for sweep in range(_SWEEPS):
            for layer in self._layers if sweep % 2 == 0 else self._layers[::-1]:
                wanted = [_mean([x[j] for j in (*self._above[k], *self._below[k])], x[k]) for k in layer]
                offsets = self._offsets(layer)
                moved = _isotonic([w - offset for w, offset in zip(wanted, offsets, strict=True)])
                for k, base, offset in zip(layer, moved, offsets, strict=True):
                    x[k] = base + offset
        left = min((x[k] - self._sizes[k][0] / 2 for k in range(len(x))), default=0.0)
        return [value - left for value in x]

    def _offsets(self, layer: list[int]) -> list[float]:
        """Return where the middles are if the boxes stand as close as they may."""
        offsets, reached = [], 0.0
        for k in layer:
            width = self._sizes[k][0]
            offsets.append(reached + width / 2)
            reached += width + (_GAP if width else _LANE)
        return offsets

    def _down(self) -> list[tuple[float, float]]:
        """Return where each layer begins and ends."""
        spans, reached = [], 0.0
        for layer in self._layers:
            height = max(self._sizes[k][1] for k in layer)
            spans.append((reached, reached + height))
            reached += height + _RISE
        return spans


def _layers(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the layer of each box: below all its inputs; with one input or none, right above the first that uses it.

    Moving such a box down adds no lane: where its own edge passed a layer, the one to it does.
    """
    layer_of: list[int] = []
    for starts in inputs:
        layer_of.append(1 + max((layer_of[k] for k in starts), default=-1))
    first_use: dict[int, int] = {}
    for k in reversed(range(len(inputs))):  # those that use a box have larger numbers
        starts = inputs[k]
        if len(starts) < 2 and k in first_use:
            layer_of[k] = first_use[k] - 1
        for start in starts:
            first_use[start] = min(first_use.get(start, layer_of[k]), layer_of[k])
    return layer_of


def _lanes(inputs: Sequence[Sequence[int]], layer_of: Sequence[int]) -> int:
    """Return how many lanes the long edges take in all layers together."""
    last_use = list(layer_of)
    for k, starts in enumerate(inputs):
        for start in starts:
            last_use[start] = max(last_use[start], layer_of[k])
    return sum(max(0, last - own - 1) for last, own in zip(last_use, layer_of, strict=True))


def _mean(values: list[float] | list[int], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _isotonic(wanted: list[float]) -> list[float]:
    """Return the numbers nearest to some, in the sum of squares, that do not decrease: neighbours are averaged."""
    blocks: list[tuple[float, int]] = []  # means and lengths
    for value in wanted:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            other, length = blocks.pop()
            mean = (mean * count + other * length) / (count + length)
            count += length
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]
