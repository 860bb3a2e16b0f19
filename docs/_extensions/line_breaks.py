"""Let long names in code be broken after dots, brackets and underscores, where a narrow cell or a phone needs it."""

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

WORD = re.compile(r'(?<=<span class="pre">)[^<]{16,}(?=</span>)')
PLACE = re.compile(r"(?<=[^\W_])([._=/(,\[])(?=[^\W_])")


def with_breaks(page: str) -> str:
    """Return the HTML of a page with a `<wbr>`, which is not copied, where words of inline code may be broken.

    >>> with_breaks('<span class="pre">graph.save_on_cpu(x)</span> <span class="pre">gm.backward(y)</span>')
    '<span class="pre">graph.<wbr>save_<wbr>on_<wbr>cpu(<wbr>x)</span> <span class="pre">gm.backward(y)</span>'
    """
    return WORD.sub(lambda word: PLACE.sub(r"\1<wbr>", word[0]), page)


def _write(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    if "body" in context:
        context["body"] = with_breaks(context["body"])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Change each page just before it is written."""
    app.connect("html-page-context", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
