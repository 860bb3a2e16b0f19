"""Write the gallery: a page for each example with its picture and source, and one that shows all pictures."""

import ast
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

DOCS = Path(__file__).parents[1]
EXAMPLES = DOCS.parent / "examples"
GALLERY = DOCS / "gallery"
OPTION = re.compile(r"(?<!\S)(--[a-z][a-z-]*)")

INTRO = """\
# Gallery

Programs of fewer than 120 lines each, in the repository's folder `examples`. `pip install -e ".[dev]"` installs what
they need; `--help` lists the options of each. The pictures are what the programs drew, run as they are.

::::{grid} 1 2 3 3
:gutter: 3
"""


def heading(name: str) -> str:
    """Return what the page of an example is called.

    >>> heading("mnist_cnn")
    'mnist_cnn.py'
    """
    return f"{name}.py"


def write_gallery() -> None:
    """Write the pages; those that are as before are not touched."""
    GALLERY.mkdir(exist_ok=True)
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    summaries = {name: docstring(name) for name in names}
    # Those with a picture first.
    order = sorted(names, key=lambda name: (picture(name) is None, name))
    cards = [card(name, summaries[name].split("\n")[0]) for name in order]
    hidden = "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"
    write("index", "\n".join([INTRO, *cards, "::::\n", hidden]))
    for name in names:
        write(name, page(name, summaries[name]))


def docstring(name: str) -> str:
    """Return what an example says of itself."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    return with_options_as_code(ast.get_docstring(ast.parse(text)) or "")


def with_options_as_code(text: str) -> str:
    """Put options between backquotes, where they are in no code: else two hyphens would become a dash.

    >>> with_options_as_code("Draw it; --out names the file, and `--steps 5` makes it short.")
    'Draw it; `--out` names the file, and `--steps 5` makes it short.'
    >>> with_options_as_code("    python draw.py --out a.png")
    '    python draw.py --out a.png'
    """
    parts = re.split(r"(`[^`]*`|^    .*$)", text, flags=re.MULTILINE)
    return "".join(part if part.startswith(("`", "    ")) else OPTION.sub(r"`\1`", part) for part in parts)


def picture(name: str) -> str | None:
    """Return the path of the picture that `python docs/draw_gallery.py` has kept of an example."""
    return f"../pictures/{name}.png" if (DOCS / "pictures" / f"{name}.png").exists() else None


def card(name: str, summary: str) -> str:
    """Return one tile of the gallery."""
    shown = picture(name)
    image = f":img-top: {shown}\n" if shown else ""
    return f":::{{grid-item-card}} {heading(name)}\n{image}:link: {name}\n:link-type: doc\n\n{summary}\n:::\n"


def page(name: str, text: str) -> str:
    """Return the page of an example."""
    shown = picture(name)
    image = f"```{{image}} {shown}\n:alt: what {name}.py draws\n```\n\n" if shown else ""
    source = f"```{{literalinclude}} ../../examples/{name}.py\n:language: python\n```\n"
    return f"# {heading(name)}\n\n{text}\n\n```sh\npython examples/{name}.py\n```\n\n{image}{source}"


def write(name: str, text: str) -> None:
    """Write a page, unless it is there."""
    path = GALLERY / f"{name}.md"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Write the pages when the build begins."""
    app.connect("builder-inited", lambda app: write_gallery())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
