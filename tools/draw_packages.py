"""Draw the packages of gradmgr and their imports into CONTRIBUTING.md, as a Mermaid graph.

python tools/draw_packages.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradmgr"
PAGE = ROOT / "CONTRIBUTING.md"
START, END = "<!-- packages: start -->", "<!-- packages: end -->"
BOXES_WITHIN = ("_engine.history",)  # subpackages that get a box of their own


def module_name(path: Path) -> str:
    """Return the dotted name of a source file, without "gradmgr."; that of the package itself is empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, modules: frozenset[str]) -> Iterator[str]:
    """Yield the names of gradmgr's modules that a source file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}:{node.lineno} imports relatively; write the name from gradmgr on")
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("gradmgr."):
                inner = name.removeprefix("gradmgr.")
                yield inner if inner in modules else inner.rpartition(".")[0]


def box_of(module: str) -> str:
    """Return the name of the box in which a module lies."""
    return next((box for box in BOXES_WITHIN if f"{module}.".startswith(f"{box}.")), module.partition(".")[0])


def imports_between_boxes() -> dict[str, set[str]]:
    """Map each box to the boxes from which its modules import."""
    files = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    del files[""]  # imports everything
    modules = frozenset(files)
    found: dict[str, set[str]] = {box_of(module): set() for module in files}
    for module, path in files.items():
        found[box_of(module)].update(box_of(name) for name in imported_modules(path, modules) if name)
        found[box_of(module)].discard(box_of(module))
    return found


def reachable(box: str, imports: dict[str, set[str]]) -> set[str]:
    """Return all boxes that a box imports, directly or through others."""
    found: set[str] = set()
    waiting = [box]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def without_implied(imports: dict[str, set[str]]) -> dict[str, list[str]]:
    """Leave out each import that follows from others, so that the arrows can be read."""
    return {
        box: sorted(other for other in direct if not any(other in reachable(third, imports) for third in direct))
        for box, direct in imports.items()
    }


def picture() -> str:
    """Return the Mermaid graph; boxes with the same arrows share a box, since they lie side by side."""
    imports = imports_between_boxes()
    arrows = without_implied(imports)
    users = {box: frozenset(other for other in arrows if box in arrows[other]) for box in arrows}
    groups: dict[tuple[frozenset[str], tuple[str, ...]], list[str]] = {}
    for box in arrows:
        groups.setdefault((users[box], tuple(arrows[box])), []).append(box)
    group_of = {box: group[0] for group in groups.values() for box in group}
    lines = ["```mermaid", "graph TD"]
    lines += [f'    {name(group[0])}["{"<br>".join(map(path_of, group))}"]' for group in groups.values()]
    drawn = {(group_of[box], group_of[other]) for box in arrows for other in arrows[box]}
    lines += [f"    {name(box)} --> {name(other)}" for box, other in sorted(drawn)]
    return "\n".join([*lines, "```"])


def name(box: str) -> str:
    """Return a name that Mermaid takes for a node: "graph", for one, is a word of its own."""
    return f"p_{box.replace('.', '_')}"


def path_of(box: str) -> str:
    """Return what to write into a box: a package with a slash, a module without."""
    path = box.replace(".", "/")
    return f"{path}/" if (PACKAGE / path).is_dir() else path


def drawn_page() -> str:
    """Return the text of the page with the current picture between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{PAGE} has no markers {START} and {END}")
    return f"{before}{START}\n{picture()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(drawn_page(), encoding="utf-8")
