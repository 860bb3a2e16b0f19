"""Tables of events, with the columns of torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SORTABLE = (
    *("count", "cpu_time", "cpu_time_total", "self_cpu_time_total", "device_time", "device_time_total"),
    *("self_device_time_total", "cuda_time", "cuda_time_total", "self_cuda_time_total", "flops"),
    *("cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage"),
)
_TIME_UNITS = (("s", 1e6), ("ms", 1e3), ("us", 1.0))
_BYTE_UNITS = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))
_SCALES = ("", "K", "M", "G", "T", "P")

Column = tuple[str, Callable[[Any], str], int]


def duration(us: float, unit: str | None = None) -> str:
    """Return microseconds as text, in the given or else a suitable unit."""
    for name, size in _TIME_UNITS:
        if name == unit or (unit is None and (us >= size or name == "us")):
            return f"{us / size:.3f}{name}"
    raise ValueError(f"table: time_unit must be 'us', 'ms', 's' or None; found {unit!r}")


def _bytes(count: int) -> str:
    for name, size in _BYTE_UNITS:
        if abs(count) >= size:
            return f"{count / size:.2f} {name}"
    return f"{count} B"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "--"


def _truncate(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."


def format_table(
    events: Any,
    sort_by: str | None,
    row_limit: int,
    widths: tuple[int, int, int],
    header: str | None,
    top_level_only: bool,
    unit: str | None,
) -> str:
    """Return events as a table; see EventList.table."""
    duration(0.0, unit)  # raises for an unknown unit
    if sort_by is not None and sort_by not in _SORTABLE:
        raise ValueError(f"table: sort_by must be one of {', '.join(_SORTABLE)}, or None; found {sort_by!r}")
    rows = [event for event in events if not (top_level_only and event.cpu_parent is not None)]
    if sort_by is not None:
        rows.sort(key=lambda event: getattr(event, sort_by), reverse=True)
    columns = _columns(events, rows, widths, unit)
    shown = rows if row_limit < 0 else rows[:row_limit]
    cells = [[write(event) for _, write, _ in columns] for event in shown]
    sizes = [max([least, len(title), *[len(row[k]) for row in cells]]) for k, (title, _, least) in enumerate(columns)]
    rule = "  ".join("-" * size for size in sizes)
    lines = ["=" * len(rule), header] if header is not None else []
    titles = [title for title, _, _ in columns]
    written = ["  ".join(cell.rjust(n) for cell, n in zip(row, sizes, strict=True)) for row in (titles, *cells)]
    lines += [rule, written[0], rule, *written[1:], rule]
    lines.append(f"Self CPU time total: {duration(events.self_cpu_time_total, unit)}")
    if "device" in events.shown:
        lines.append(f"Self CUDA time total: {duration(_sum_of_column(events, 'self_device_time_total'), unit)}")
    return "\n".join(lines) + "\n"


def _sum_of_column(events: Any, name: str) -> float:
    return float(sum(getattr(event, name) for event in events))


def _columns(events: Any, rows: list[Any], widths: tuple[int, int, int], unit: str | None) -> list[Column]:
    name_width, shapes_width, source_width = widths
    cpu = events.self_cpu_time_total
    shown = events.shown
    columns: list[Column] = [
        ("Name", lambda e: _truncate(e.key, name_width), 0),
        ("Self CPU %", lambda e: _percent(e.self_cpu_time_total, cpu), 12),
        ("Self CPU", lambda e: duration(e.self_cpu_time_total, unit), 12),
        ("CPU total %", lambda e: _percent(e.cpu_time_total, cpu), 12),
        ("CPU total", lambda e: duration(e.cpu_time_total, unit), 12),
        ("CPU time avg", lambda e: duration(e.cpu_time, unit), 12),
    ]
    if "device" in shown:
        device = _sum_of_column(events, "self_device_time_total")
        columns += [
            ("Self CUDA", lambda e: duration(e.self_device_time_total, unit), 12),
            ("Self CUDA %", lambda e: _percent(e.self_device_time_total, device), 12),
            ("CUDA total", lambda e: duration(e.device_time_total, unit), 12),
            ("CUDA time avg", lambda e: duration(e.device_time, unit), 12),
        ]
    if "memory" in shown:
        columns += [
            ("CPU Mem", lambda e: _bytes(e.cpu_memory_usage), 12),
            ("Self CPU Mem", lambda e: _bytes(e.self_cpu_memory_usage), 12),
        ]
        if "device" in shown:
            columns += [
                ("CUDA Mem", lambda e: _bytes(e.device_memory_usage), 12),
                ("Self CUDA Mem", lambda e: _bytes(e.self_device_memory_usage), 12),
            ]
    columns.append(("# of Calls", lambda e: str(e.count), 12))
    if "shapes" in shown:
        columns.append(("Input Shapes", lambda e: _truncate(str(e.input_shapes or []), shapes_width), 12))
    if "stack" in shown:
        columns.append(("Source Location", lambda e: _truncate(e.stack[0] if e.stack else "", source_width), 12))
    counted = [e.flops for e in rows if e.flops > 0]
    if "flops" in shown and counted:
        scale = min((len(str(min(counted))) - 1) // 3, len(_SCALES) - 1)
        title = f"Total {_SCALES[scale]}FLOPs"
        columns.append((title, lambda e: f"{e.flops / 1000**scale:.3f}" if e.flops > 0 else "--", 12))
    return columns
