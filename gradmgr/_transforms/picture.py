"""The history as a picture: SVG, Graphviz's dot, Mermaid."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from gradmgr import errors
from gradmgr._arrays.libraries import is_array
from gradmgr._engine.context import current, recorders
from gradmgr._engine.display import Svg, escape
from gradmgr._engine.entry import flat, is_result, op_name, tracked_input_ids
from gradmgr._engine.history.spill import format_bytes
from gradmgr._engine.observers import SourceLocation
from gradmgr._engine.tape import Tape
from gradmgr._engine.tensor import Tensor, describe
from gradmgr._transforms.layout import Layout
from gradmgr.manager import GradManager


class _Box:
    """One op or attached tensor."""

    __slots__ = ("inputs", "key", "kind", "lines")

    def __init__(self, key: str, kind: str, lines: list[str], inputs: list[str]) -> None:
        self.key = key
        self.kind = kind  # "op", "leaf" or "result"
        self.lines = lines
        self.inputs = inputs


def to_dot(what: Tensor | Iterable[Tensor] | GradManager) -> str:
    r"""Return the history in the language of Graphviz's dot: operations with shapes, bytes kept and, if traced, lines.

    Args:
        what: one Tensor or several, whose history by the innermost manager that records is drawn; or a
            manager, of which all is drawn. Lines of the program are stored by a manager made with
            `with_stack=True`, and under `detect_anomaly`.

    Raises:
        RuntimeError: no manager that records here tracks a tensor; the manager does not record.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach({"x": x}):
    ...     print(gradmgr.graph.to_dot(x * 3))
    digraph history {
      rankdir=TB; node [fontname="sans-serif", fontsize=10];
      n0 [shape=ellipse, style=filled, fillcolor="#cfe8cf", label="x\n(2,) float64"];
      n1 [shape=box, style="rounded,bold", label="multiply\n(2,) float64"];
      n0 -> n1;
    }
    """
    styles = {
        "op": 'shape=box, style="rounded"',
        "result": 'shape=box, style="rounded,bold"',
        "leaf": 'shape=ellipse, style=filled, fillcolor="#cfe8cf"',
    }
    boxes = _boxes(what)
    lines = ["digraph history {", '  rankdir=TB; node [fontname="sans-serif", fontsize=10];']
    for box in boxes:
        label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in box.lines)
        lines.append(f'  {box.key} [{styles[box.kind]}, label="{label}"];')
    lines += [f"  {start} -> {box.key};" for box in boxes for start in box.inputs]
    return "\n".join([*lines, "}"])


def to_mermaid(what: Tensor | Iterable[Tensor] | GradManager) -> str:
    """Return the history as a Mermaid flowchart, which Markdown viewers draw; as `to_dot` otherwise.

    Raises:
        RuntimeError: no manager that records here tracks the tensors.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach({"x": x}):
    ...     print(gradmgr.graph.to_mermaid(x * 3))
    flowchart TB
      n0(["x<br/>(2,) float64"])
      n1["multiply<br/>(2,) float64"]
      n0 --> n1
    """
    boxes = _boxes(what)
    lines = ["flowchart TB"]
    for box in boxes:
        label = "<br/>".join(_escape(line) for line in box.lines)
        lines.append(f'  {box.key}(["{label}"])' if box.kind == "leaf" else f'  {box.key}["{label}"]')
    return "\n".join([*lines, *[f"  {start} --> {box.key}" for box in boxes for start in box.inputs]])


def to_svg(what: Tensor | Iterable[Tensor] | GradManager) -> Svg:
    """Return the history as SVG, which a notebook draws where it is the result of a cell; as `to_dot` otherwise.

    It suits some hundreds of operations; Graphviz, which `to_dot` writes for, lays out large ones better. A ValueError
    is raised where long edges pass others in more than 200,000 places.

    Raises:
        RuntimeError: no manager that records here tracks the tensors.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach({"x": x}):
    ...     picture = gradmgr.graph.to_svg(x * 3)
    >>> picture.startswith("<svg"), picture.count('class="node"'), picture.count('class="edge"')
    (True, 2, 1)
    """
    boxes = _boxes(what)
    numbers = {box.key: k for k, box in enumerate(boxes)}
    layout = Layout([_size(box) for box in boxes], [[numbers[start] for start in box.inputs] for box in boxes])
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-_MARGIN:g} {-_MARGIN:g} {width:.1f} {height:.1f}" style="max-width: 100%; height: auto" '
        f'font-family="sans-serif" font-size="{_FONT:g}" role="img">',
        "<title>history</title>",
    ]
    lines += [f'<path d="{_curve(trunk)}" fill="none" stroke="{_GREY}"/>' for trunk in layout.trunks]
    lines += [_edge(piece, _size(boxes[end])[1]) for (_, end), piece in layout.edges.items()]
    lines += [_node(box, centre) for box, centre in zip(boxes, layout.centres, strict=True)]
    return Svg("\n".join([*lines, "</svg>"]))


_MARGIN, _FONT = 6.0, 11.0
_GREY = "#8c959f"
_LINE = 14.0  # from line to line of a text
_LETTER = 6.4  # how wide a letter of a font without serifs is at most, but for rare ones
_FILL = MappingProxyType({"op": "#f6f8fa", "result": "#dbe9ff", "leaf": "#cfe8cf"})


def _size(box: _Box) -> tuple[float, float]:
    return max(map(len, box.lines)) * _LETTER + 16, len(box.lines) * _LINE + 8


def _node(box: _Box, centre: tuple[float, float]) -> str:
    """Draw a box. Its colours are its own, so that the text can be read on a dark page, too."""
    (width, height), (x, y) = _size(box), centre
    round_off = height / 2 if box.kind == "leaf" else 4
    parts = [
        f'<g class="node"><rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{round_off:g}" fill="{_FILL[box.kind]}" stroke="#57606a" '
        f'stroke-width="{2 if box.kind == "result" else 1}"/>'
    ]
    first = y - (len(box.lines) - 1) * _LINE / 2 + _FONT / 3
    for k, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if k == 0 else ""
        parts.append(
            f'<text x="{x:.1f}" y="{first + k * _LINE:.1f}" text-anchor="middle" fill="#1f2328"{weight}>'
            f"{escape(line)}</text>"
        )
    return "".join([*parts, "</g>"])


def _edge(piece: list[tuple[float, float]], height: float) -> str:
    """Draw the last piece of an edge, with a head where it meets a box of this height."""
    *before, (x, y) = piece
    y -= height / 2
    head = f"{x - 3.5:.1f},{y - 7:.1f} {x + 3.5:.1f},{y - 7:.1f} {x:.1f},{y:.1f}"
    return (
        f'<g class="edge"><path d="{_curve([*before, (x, y - 5)])}" fill="none" stroke="{_GREY}"/>'
        f'<polygon points="{head}" fill="{_GREY}"/></g>'
    )


def _curve(points: list[tuple[float, float]]) -> str:
    """Return a path that passes points upright: a line from one to another below it, else a curve."""
    drawn = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        bend = f"C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
        drawn += f" V{y1:.1f}" if x0 == x1 else f" {bend}"
    return drawn


def _escape(line: str) -> str:
    for char, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        line = line.replace(char, code)
    return line


def _boxes(what: Any) -> list[_Box]:
    """Return what to draw, inputs before what is computed from them."""
    tape, ends = _tape_and_ends(what)
    entries = tape.kept_entries()
    leaves = list(tape.leaves.copy().items())
    if ends is not None:
        entries = _ancestors(entries, set(ends))
        used = set(ends).union(*map(tracked_input_ids, entries))
        leaves = [(t, node_id) for t, node_id in leaves if node_id in used]
    shapes = _shapes(tape, ends)
    names: dict[Any, str] = {}
    boxes = [_leaf(tape, t, node_id, names) for t, node_id in leaves]
    for e in entries:
        if is_result(e) or e[0] == "attach":  # the value is its op's, or the tensor's that was attached
            names.setdefault(e[1], names.get(e[2], f"n{len(names)}"))
            continue
        names[e[1]] = f"n{len(names)}"
        kind = "result" if ends is not None and e[1] in ends else "op"
        starts = dict.fromkeys(names[node_id] for node_id in tracked_input_ids(e) if node_id in names)
        boxes.append(_Box(names[e[1]], kind, _lines(tape, e, shapes), list(starts)))
    return boxes


def _tape_and_ends(what: Any) -> tuple[Tape, dict[Any, Tensor] | None]:
    """Return the tape, and, by node id, the tensors whose history is drawn; None for all."""
    if isinstance(what, GradManager):
        if what._tape is None or not what._tape.open:
            raise errors.RecordingError(
                "this GradManager is idle and has no history to draw: draw it inside the with block, before backward() "
                "frees it"
            )
        return what._tape, None
    if not isinstance(what, (Tensor, list, tuple)):
        raise TypeError(
            f"a picture is drawn of a Tensor, a list of Tensors, or a GradManager; found {type(what).__name__}"
        )
    tensors = [what] if isinstance(what, Tensor) else list(what)
    for k, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            raise TypeError(f"a picture is drawn of Tensors or of a GradManager; number {k} is {type(t).__name__}")
    for tape in reversed(recorders(current())):
        if isinstance(tape, Tape) and all(tape.node_id_of(t) is not None for t in tensors):
            return tape, {tape.node_id_of(t): t for t in tensors}
    raise errors.NotRecordedError(
        f"no manager that records here tracks {', '.join(map(describe, tensors))}; draw the picture inside the with "
        "block, before backward() frees the history"
    )


def _ancestors(entries: list[Any], ends: set[Any]) -> list[Any]:
    needed, kept = set(ends), []
    for e in reversed(entries):
        if e[1] in needed:
            needed.update(tracked_input_ids(e))
            kept.append(e)
    return kept[::-1]


def _leaf(tape: Tape, t: Tensor, node_id: Any, names: dict[Any, str]) -> _Box:
    names[node_id] = f"n{len(names)}"
    manager = tape.owner()
    spec = None if manager is None else manager._attachments.of(t)
    name = spec.name if spec is not None and spec.name else "attached"
    return _Box(names[node_id], "leaf", [name, f"{t.shape} {t.dtype}"], [])


def _shapes(tape: Tape, ends: dict[Any, Tensor] | None) -> dict[Any, tuple[Any, Any]]:
    metadata = tape.metadata()
    if ends is not None:
        metadata |= {node_id: (t.shape, t.dtype) for node_id, t in ends.items()}
    return metadata


def _lines(tape: Tape, e: tuple[Any, ...], shapes: dict[Any, tuple[Any, Any]]) -> list[str]:
    lines = [op_name(e)]
    if e[1] in shapes:
        shape, dtype = shapes[e[1]]
        lines.append(f"{tuple(shape)} {dtype}")
    kept = sum(int(a.nbytes) for a in flat(e[2:]) if is_array(a) and a.ndim > 0)
    if kept:
        lines.append(f"keeps {format_bytes(kept)}")
    place: SourceLocation | None = tape.location_of(e[1])
    if place is not None:
        lines.append(f"{place.file.rpartition('/')[2]}:{place.line}")
    return lines
