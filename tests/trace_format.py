"""The Trace Event Format, as far as the profiler uses it, as a check of a trace.

The format is described in "Trace Event Format" (Duca, Sinclair, 2016), which Perfetto's page on external formats refers
to: https://perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

# What an event of each kind must have beside "ph", "name", "pid" and "tid".
REQUIRED = {
    "X": ("ts", "dur"),  # a span
    "B": ("ts",),  # the begin of a span
    "E": ("ts",),  # and its end
    "i": ("ts",),  # an instant
    "C": ("ts", "args"),  # a counter
    "s": ("ts", "id"),  # the start of an arrow
    "t": ("ts", "id"),  # a point on its way
    "f": ("ts", "id"),  # its end
    "M": ("args",),  # metadata
}
TYPES = {"name": str, "cat": str, "args": dict, "pid": int, "tid": int, "id": (int, str)}
# The names of metadata, and the key that their "args" have.
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
ROUNDING = 1e-3  # of times in microseconds: Perfetto counts nanoseconds


def problems(trace: Any) -> list[str]:
    """Return, in words, what a trace that was read from JSON has against the format."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["a trace is an object whose traceEvents is a list"]
    events = trace["traceEvents"]
    found = [f"event {k}: {text}" for k, event in enumerate(events) for text in _problems_of_event(event)]
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append("displayTimeUnit is neither ms nor ns")
    if found:
        return found  # what follows relies on keys
    return [*_problems_of_spans(events), *_problems_of_arrows(events)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _problems_of_event(event: Any) -> Iterator[str]:
    if not isinstance(event, dict) or event.get("ph") not in REQUIRED:
        yield f"it has no known phase: {event!r}"
        return
    phase = event["ph"]
    for key in ("name", "pid", "tid", *REQUIRED[phase]):
        if key not in event:
            yield f"{phase} needs {key}"
    for key, kind in TYPES.items():
        if key in event and (not isinstance(event[key], kind) or isinstance(event[key], bool)):
            yield f"{key} is {event[key]!r}"
    for key in ("ts", "dur"):
        if key in event and not _is_number(event[key]):
            yield f"{key} is no number: {event[key]!r}"
        elif event.get(key, 0) < 0:
            yield f"{key} is negative"
    yield from _problems_of_details(event)


def _problems_of_details(event: Any) -> Iterator[str]:
    """What is particular to metadata, counters and instants."""
    phase, args = event["ph"], event.get("args", {})
    if phase == "M":
        key, kind = METADATA.get(event.get("name"), (None, object))
        if key is None or not isinstance(args, dict) or not isinstance(args.get(key), kind):
            yield f"metadata {event.get('name')!r} with {args!r}"
    if phase == "C" and not all(map(_is_number, args.values())):
        yield f"a counter of {args!r}"
    if phase == "i" and event.get("s", "t") not in ("g", "p", "t"):
        yield f"an instant of the scope {event['s']!r}"


def _problems_of_spans(events: list[Any]) -> Iterator[str]:
    """Spans of one thread stand one in the other, or apart; begins have ends."""
    open_at: dict[Any, list[Any]] = defaultdict(list)
    for event in events:
        track = open_at[event["pid"], event["tid"]]
        if event["ph"] == "B":
            track.append(event)
        elif event["ph"] == "E" and (not track or track.pop()["ts"] > event["ts"]):
            yield f"the end of {event['name']} has no begin before it"
    yield from (f"{event['name']} has no end" for track in open_at.values() for event in track)
    for spans in _spans_by_track(events).values():
        enclosing: list[Any] = []
        for span in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            while enclosing and _end(enclosing[-1]) <= span["ts"] + ROUNDING:
                enclosing.pop()
            if enclosing and _end(span) > _end(enclosing[-1]) + ROUNDING:
                yield f"{span['name']} begins in {enclosing[-1]['name']} and ends after it"
            enclosing.append(span)


def _problems_of_arrows(events: list[Any]) -> Iterator[str]:
    """An arrow has one start and one end, later than the start, each in a span of its thread."""
    spans = _spans_by_track(events)
    arrows: dict[Any, list[Any]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            arrows[event.get("cat"), event["name"], event["id"]].append(event)
            around = [e for e in spans[event["pid"], event["tid"]] if e["ts"] <= event["ts"] <= _end(e)]
            if not around:
                yield f"the arrow {event['id']} touches no span"
    for (_, _, number), points in arrows.items():
        if "".join([point["ph"] for point in points]).strip("t") != "sf":
            yield f"the arrow {number} has not one start and one end"
        if any(first["ts"] > second["ts"] for first, second in itertools.pairwise(points)):
            yield f"the arrow {number} goes back in time"
        if any(point["ph"] == "f" and point.get("bp", "e") != "e" for point in points):
            yield f"the arrow {number} has an unknown binding point"


def _spans_by_track(events: list[Any]) -> dict[Any, list[Any]]:
    spans: dict[Any, list[Any]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(event)
    return spans


def _end(span: Any) -> float:
    return float(span["ts"] + span["dur"])
