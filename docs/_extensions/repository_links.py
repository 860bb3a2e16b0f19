"""Let the pages keep links that work in the repository: to its examples, its other texts and its files."""

import re
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/gradmgr/gradmgr/blob/main/"
FOLDER = "https://github.com/gradmgr/gradmgr/tree/main/"
# A link, but to a picture: Sphinx copies these itself.
LINK = re.compile(r"(?<=\]\()(?!https?:|#|/)([^)\s#]+)(?<!\.png)(?<!\.svg)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", flags=re.DOTALL | re.MULTILINE)

# Texts of the repository that are pages here.
PAGES = {
    "README.md": "/start.md",
    "CHANGELOG.md": "/changelog.md",
    "CONTRIBUTING.md": "/contributing.md",
    "bench/README.md": "/benchmarks.md",
}


def target_here(file: str, path: str) -> str:
    """Return where a link of a file of the repository leads on the site; both are relative to the repository's root.

    >>> target_here("docs/compile.md", "../examples/ode.py")
    '/gallery/ode.md'
    """
    parts: list[str] = []
    for part in (PurePosixPath(file).parent / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    found = "/".join(parts)
    if found in PAGES:
        return PAGES[found]
    if parts[0] == "docs":
        return "/" + "/".join(parts[1:])
    if parts[0] == "examples" and found.endswith(".py"):
        return f"/gallery/{PurePosixPath(found).stem}.md"
    if (ROOT / found).is_dir():
        return FOLDER + found
    if (ROOT / found).is_file():
        return SOURCE + found
    raise FileNotFoundError(f"{file} links to {path}, which is neither a file nor a folder of the repository")


def rewritten(file: str, text: str) -> str:
    """Return a text of the repository with its links led to pages of the site."""
    parts = CODE.split(text)
    for k in range(0, len(parts), 2):  # what is not code
        parts[k] = LINK.sub(lambda m: target_here(file, m[1]) + (m[2] or ""), parts[k])
    return "".join(parts)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    source = Path(app.env.doc2path(docname))
    if source.suffix == ".md":
        content[0] = rewritten(source.resolve().relative_to(ROOT).as_posix(), content[0])


def _included(app: Sphinx, relative: Path, docname: str, content: list[str]) -> None:
    included = (Path(app.srcdir) / relative).resolve()
    if included.suffix == ".md":
        content[0] = rewritten(included.relative_to(ROOT).as_posix(), content[0])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Read each page, and each text that a page includes, through `rewritten`."""
    app.connect("source-read", _read)
    app.connect("include-read", _included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
