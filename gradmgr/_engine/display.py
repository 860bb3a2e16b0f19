"""What a notebook shows as the result of a cell: texts and pictures that display themselves, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


class Text(str):
    """A text of several lines, which IPython and Jupyter show as it is printed, and not as a literal."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class Svg(str):
    """A picture as SVG, which Jupyter draws."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def escape(text: object) -> str:
    """Return a text for HTML and SVG; characters that XML does not have are replaced."""
    text = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", str(text))
    for char, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(char, code)
    return text


def html_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in HTML, with a line above it."""
    lines = ["<div>", f"<div>{escape(caption)}</div>", "<table>"]
    lines.append("<thead><tr>" + "".join(f"<th>{escape(title)}</th>" for title in titles) + "</tr></thead>")
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>", "</div>"])
