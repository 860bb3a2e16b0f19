"""Run the examples that draw, and keep their pictures for the gallery: `python docs/draw_gallery.py [NAME ...]`.

It takes three minutes. Pictures are drawn again by hand, where an example changed, and not at each build of the site.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"


def draw(example: Path) -> None:
    """Run an example as it is, and keep what it draws, in all its colours: a palette of 256 cuts maps into steps."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "picture.png"
        subprocess.run([sys.executable, str(example), "--out", str(out)], check=True, cwd=folder)  # noqa: S603  # ours
        with Image.open(out) as picture:
            picture.convert("RGB").save(PICTURES / f"{example.stem}.png", optimize=True)


if __name__ == "__main__":
    wanted = set(sys.argv[1:])
    for example in sorted((ROOT / "examples").glob("*.py")):
        if '"--out"' in example.read_text(encoding="utf-8") and (not wanted or example.stem in wanted):
            draw(example)
