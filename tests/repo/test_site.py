"""The documentation's site: its pages are in its table of contents, its programs run, and nothing in it is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
import test_readme
from helpers import ROOT

DOCS = ROOT / "docs"
MADE_AT_BUILD = ("gallery", "generated")  # written by docs/_extensions
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name not in MADE_AT_BUILD)
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
LISTED = re.compile(r"^```\{toctree\}\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def listed(page):
    """Return the pages of the tables of contents of a page, as files without a suffix."""
    lines = [line for table in LISTED.findall(page.read_text(encoding="utf-8")) for line in table.splitlines()]
    names = [re.sub(r".*<(.*)>", r"\1", line.strip()) for line in lines if line.strip() and line[0] != ":"]
    files = [page.parent / f"{name}.md" for name in names]
    found = [match for file in files for match in (sorted(file.parent.glob(file.name)) if "*" in file.name else [file])]
    return [file.resolve().with_suffix("") for file in found]


def test_every_page_is_in_one_table_of_contents():
    found = [name for page in PAGES for name in listed(page)]
    written = [page.with_suffix("") for page in PAGES if page.name != "index.md" or page.parent != DOCS]
    assert sorted(name for name in found if name.parent.name not in MADE_AT_BUILD) == sorted(written)


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_is_executed_or_says_why_not(page):
    text = page.read_text(encoding="utf-8")
    if page.stem != "index":
        assert CELL.search(text) or "This page was not executed" in text
        for cell in CELL.findall(text):
            if not cell.startswith("%%"):
                compile(cell, page.name, "exec")


# Parts of programs, whose whole stands on the same page; and what needs a GPU, as the page says.
NOT_RUN = ("how_it_works", "data_parallel", "cupy")
PROGRAM = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
RUN_ELSEWHERE = {ROOT / name for name in test_readme.PAGES}
OTHERS = [page for page in PAGES if page.stem not in NOT_RUN and page not in RUN_ELSEWHERE]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.stem)
def test_the_programs_of_other_pages_run(page, tmp_path):
    """Those of most pages run in test_readme, which compares what they print, too."""
    for program in PROGRAM.findall(page.read_text(encoding="utf-8")):
        done = subprocess.run(  # noqa: S603  # the page's own programs
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_extra_has_every_extension():
    """What conf.py names is installed by the extra, or part of Sphinx, or lies beside it."""
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    extensions = re.search(r"^extensions = \[\n(.*?)^\]", settings, flags=re.DOTALL | re.MULTILINE)[1]
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    for name in re.findall(r'"([^"]+)"', extensions):
        ours = (DOCS / "_extensions" / f"{name}.py").exists()
        assert ours or name.startswith("sphinx.ext.") or re.sub(r"[_.]", "-", name) in extra, name


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_nothing_in_it_is_broken(tmp_path):
    """Without executing the tutorials, which `nox -s docs` does."""
    pytest.importorskip("sphinx", reason="the site is built by Sphinx: pip install -e '.[docs]'")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    site = str(tmp_path / "site")
    options = ["-q", "-W", "-D", "nb_execution_mode=off", "-d", str(tmp_path / "read")]
    build = ["-m", "sphinx", *options, str(DOCS), site]
    for command in build, [str(DOCS / "check_site.py"), site]:
        done = subprocess.run(  # noqa: S603  # our own files
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
