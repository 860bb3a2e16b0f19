"""A picture of measured tables: a panel for each, a line for each row, a dot for each contestant's ratio."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from bench._measure import Row, Table

_LINE = 0.22  # inches for a row
_WIDTH = 10.0
_LETTERS = 110  # of a line of the heading


def _ratios(table: Table) -> list[str]:
    """Return the columns that are printed as ratios."""
    return [name for name, form in table.columns.items() if form.endswith("x")]


def _drawn(table: Table) -> list[Row]:
    columns = _ratios(table)
    return [row for row in table.rows if any(row.cells.get(name, 0) > 0 for name in columns)]


def write_png(file: str, title: str, tables: Sequence[Table]) -> bool:
    """Draw the tables that have ratios; returns False, and writes nothing, where none has.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [(table, rows) for table in tables if (rows := _drawn(table))]
    if not shown:
        return False
    # Of rows, or of the legend beside them, whose lines are narrower; and of title and axis.
    heights = [(max(len(rows), 0.7 * len(_ratios(table))) + 3) * _LINE for table, rows in shown]
    figure, panels = plt.subplots(
        len(shown),
        1,
        figsize=(_WIDTH, sum(heights) + 1),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        layout="constrained",
    )
    names = dict.fromkeys(name for table, _ in shown for name in _ratios(table))
    colours = {name: f"C{k % 10}" for k, name in enumerate(names)}  # the same in every panel
    for (table, rows), panel in zip(shown, panels[:, 0], strict=True):
        _draw(panel, table, rows, colours)
    figure.suptitle("\n".join([textwrap.fill(line, _LETTERS) for line in title.splitlines()]), fontsize=9)
    figure.savefig(file, dpi=100)
    plt.close(figure)
    return True


def _draw(panel: Any, table: Table, rows: list[Row], colours: dict[str, str]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    places = range(len(rows))
    for name in _ratios(table):
        there = [(row.cells[name], y) for y, row in zip(places, rows, strict=True) if row.cells.get(name, 0) > 0]
        if there:
            mine = name == "gradmgr"
            panel.scatter(
                *zip(*there, strict=True), s=34 if mine else 18, color=colours[name], label=name, zorder=3 + mine
            )
    for y, row in zip(places, rows, strict=True):
        if any(not verdict.reached for verdict in row.verdicts):
            panel.axhspan(y - 0.45, y + 0.45, color="0.92", zorder=0)
    panel.axvline(1, color="0.5", linewidth=0.8)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_yticks(list(places), [row.label for row in rows], fontsize=7)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(axis="x", which="both", color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.set_xlabel("ratio to the base, log scale", fontsize=7)  # of times, or of bytes
    panel.tick_params(axis="x", labelsize=7)
    note = "; grey: a target not reached" if any(not v.reached for row in rows for v in row.verdicts) else ""
    panel.set_title(f"{table.title} ({table.note}{note})", fontsize=8, loc="left", wrap=True)
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)
