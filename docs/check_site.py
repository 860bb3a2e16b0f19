"""Look for what is broken in the built site: `python docs/check_site.py build/site`.

It reads the pages as a browser would, and prints every link to a page, an anchor or a file that is not there, every
picture that is missing, and every public name that the reference does not describe. Links to other sites are not
followed.
"""

import pkgutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import gradmgr

# Not for users; and names that are those of gradmgr.numpy, gradmgr.special and SciPy once more.
LEFT_OUT = ("gradmgr.ops", "gradmgr.compat.autograd.numpy", "gradmgr.compat.autograd.scipy")


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, and the addresses of links, pictures, styles and scripts."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.links.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield, in words, each link that leads nowhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    for path, page in pages.items():
        for link in sorted(page.links):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                yield f"{path.relative_to(site.resolve())}: {link} is not there"
            elif address.fragment and target in pages and unquote(address.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site.resolve())}: {link} has no such anchor"


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield every public name of every public module, in full, with what it names."""
    yield from _names_of(gradmgr)
    for found in pkgutil.walk_packages(gradmgr.__path__, "gradmgr."):
        if not found.name.startswith(LEFT_OUT) and "._" not in found.name:
            module = import_module(found.name)
            if isinstance(module, ModuleType):
                yield from _names_of(module)


def _names_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None)
    if names is None:  # what it defines and does not hide
        names = [name for name, value in vars(module).items() if _is_defined_in(module, name, value)]
    for name in names:
        if not isinstance(getattr(module, name), ModuleType):
            yield f"{module.__name__}.{name}", getattr(module, name)


def _is_defined_in(module: ModuleType, name: str, value: Any) -> bool:
    # The functions of `errors` raise and describe errors; they are for gradmgr itself.
    kinds = (type,) if module is gradmgr.errors else (type, type(_is_defined_in))
    return isinstance(value, kinds) and value.__module__ == module.__name__ and not name.startswith("_")


def missing_names(site: Path) -> Iterator[str]:
    """Yield, in words, each public name without an entry in the reference."""
    pages = (site / "reference" / "generated").glob("*.html")
    anchors = {anchor for page in pages for anchor in Page(page).anchors}
    names = list(public_names())
    # One function may have several names, of which one is described.
    described = {id(value) for name, value in names if name in anchors and callable(value)}
    for name, value in names:
        if name not in anchors and id(value) not in described:
            yield f"{name} is not described in the reference"


def main(site: Path) -> int:
    """Print what is wrong; return how much."""
    wrong = [*broken_links(site), *missing_names(site)]
    print("\n".join(wrong))
    print(f"{len(list(site.rglob('*.html')))} pages, {len(list(public_names()))} public names, {len(wrong)} errors")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
