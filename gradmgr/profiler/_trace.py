"""Events as a trace in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

_GPU_TRACKS = 1_000_000  # above the numbers of all threads


def trace_of(events: Any, wall: int) -> dict[str, Any]:
    """Return the trace, to be written as JSON.

    Args:
        events: FunctionEvents, in the order in which they began.
        wall: when the profile began, in nanoseconds since 1970.
    """
    import os

    pid = os.getpid()
    by_sequence = {event.sequence_nr: event for event in events if event.scope == 0 and event.sequence_nr >= 0}
    threads = {event.thread: event.thread_name for event in events}
    entries = [_metadata_event("process_name", pid, 0, "gradmgr")]
    entries += [_metadata_event("thread_name", pid, number, f"{name} ({number})") for number, name in threads.items()]
    for number in sorted({event.device_index for event in events if event.device_range is not None}):
        entries.append(_metadata_event("thread_name", pid, _GPU_TRACKS + number, f"GPU {number}"))
    arrows = 0
    for event in events:
        entries.append(_duration_event(event, pid))
        if event.device_range is not None:
            entries.append(_kernel_event(event, pid))
        forward = by_sequence.get(event.sequence_nr) if event.scope == 1 else None
        if forward is not None:
            arrows += 1
            entries += _flow_events(arrows, pid, forward, event)
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": wall,
        "traceEvents": entries,
    }


def _metadata_event(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _duration_event(event: Any, pid: int) -> dict[str, Any]:
    details = {
        "External id": event.id,
        "Fwd thread id": event.fwd_thread,
        "Input Dims": event.input_shapes,
        "Call stack": ";".join(reversed(event.stack)),
        "Module Hierarchy": event.module_hierarchy,
        "FLOPs": event.flops,
        "Bytes": event.self_cpu_memory_usage,
        "Device bytes": event.self_device_memory_usage,
        "Device time (us)": event.device_time_total,
        "Raised": event.raised,
        "Arguments": event.args,
    }
    args = {name: value for name, value in details.items() if value}
    if event.sequence_nr >= 0:
        args["Sequence number"] = event.sequence_nr
    return {
        "ph": "X",
        "cat": "user_annotation" if event.is_user_annotation else "cpu_op",
        "name": event.name,
        "pid": pid,
        "tid": event.thread,
        "ts": event.time_range.start,
        "dur": event.time_range.elapsed_us(),
        "args": args,
    }


def _kernel_event(event: Any, pid: int) -> dict[str, Any]:
    span = event.device_range
    return {
        "ph": "X",
        "cat": "kernel",
        "name": event.name,
        "pid": pid,
        "tid": _GPU_TRACKS + event.device_index,
        "ts": span.start,
        "dur": span.elapsed_us(),
        "args": {"External id": event.id},
    }


def _flow_events(number: int, pid: int, forward: Any, backward: Any) -> list[dict[str, Any]]:
    """Return the arrow from an operation to its derivative, with its own id: there may be two derivatives."""
    link = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": pid}
    return [
        {**link, "ph": "s", "tid": forward.thread, "ts": forward.time_range.start},
        {**link, "ph": "f", "bp": "e", "tid": backward.thread, "ts": backward.time_range.start},
    ]
