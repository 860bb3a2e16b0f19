"""Draw the README's chart of training steps from what `python -m bench compiled --json FILE` wrote.

python tools/draw_speed.py bench/results/DATE-MACHINE-compiled.json docs/pictures/speed.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TITLE = "Compiled training steps"
SHOWN = {  # by the columns of the table
    "gradmgr": ("gradmgr", "#1f77b4"),
    "fused": ("gradmgr.compile", "#0b3d68"),
    "JAX jit": ("JAX, compiled", "#f0a04b"),
}


def ratios_over_pytorch(file: str) -> dict[str, dict[str, float]]:
    """Return, for each training step, every contestant's time over that of PyTorch's eager mode."""
    tables = json.loads(Path(file).read_text(encoding="utf-8"))["tables"]
    (table,) = (table for table in tables if table["title"] == TITLE)
    found = {}
    for row in table["rows"]:
        cells = row["cells"]  # over JAX, whose own time is in microseconds
        over_jax = {**cells, "JAX jit": 1.0}
        found[row["label"]] = {name: over_jax[name] / cells["PyTorch"] for name in SHOWN}
    return found


def draw(ratios: dict[str, dict[str, float]], file: str) -> None:
    """Write the chart, as SVG whose bytes depend on the ratios alone."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "gradmgr", "svg.fonttype": "none", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.55 * len(ratios) + 1), layout="constrained")
    height = 0.8 / len(SHOWN)
    for k, (name, (label, colour)) in enumerate(SHOWN.items()):
        places = [row + (k - 1) * height for row in range(len(ratios))]
        bars = axes.barh(places, [row[name] for row in ratios.values()], height * 0.9, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.axvline(1, color="#555555", linewidth=1)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.set_xlabel("time of a training step over that of PyTorch's eager mode, one thread")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    draw(ratios_over_pytorch(sys.argv[1]), sys.argv[2])
