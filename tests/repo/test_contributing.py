"""CONTRIBUTING.md: its picture is current, and its worked examples work when they are carried out on a copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
EXAMPLES = TEXT.partition("\n## Add an op\n")[2].partition("\n## The documentation's site\n")[0]


def test_picture_is_current():
    done = subprocess.run(
        [sys.executable, "-c", "import draw_packages; print(draw_packages.drawn_page(), end='')"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == TEXT, "run `python tools/draw_packages.py`"


def test_files_and_modules_that_are_named_exist():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    folders = re.findall(r"`(\w+(?:/\w+)*/)`", TEXT.partition("## Add an op")[0])
    assert len(links) > 2
    assert len(folders) > 8
    for path in links:
        assert (ROOT / path).is_file(), path
    for path in folders:
        assert any((ROOT / base / path).is_dir() for base in ("", "gradmgr", "gradmgr/nn")), path


def changed(text, diff):
    """Return a text in which the lines of each hunk of a diff, found by its " ", "-" and empty lines, are exchanged."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join([line[1:] or line for line in lines if not line.startswith("+")])
        assert text.count(before) == 1, before
        text = text.replace(before, "".join([line[1:] or line for line in lines if not line.startswith("-")]))
    return text


def test_a_diff_is_applied_where_its_context_is():
    assert changed("a\nb\nc\n", " b\n+x\n-c\n@@\n a\n+y\n") == "a\ny\nb\nx\n"
    assert changed("a\n\nb\na\n", " a\n\n b\n+x\n") == "a\n\nb\nx\na\n"
    with pytest.raises(AssertionError):
        changed("a\nb\n", " c\n+x\n")


@pytest.mark.slow
def test_worked_examples_work(tmp_path):
    """On a copy, each file is extended as the text says; then the tests that the text names are there and pass."""
    for name in "gradmgr", "tests":
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    paths, words = [], []
    for language, block in BLOCK.findall(EXAMPLES):
        if language == "sh":
            path, _, word = block.removeprefix("python -m pytest ").strip().partition(" -k ")
            paths += path.split()
            words += word.strip('"\n').split(" or ") if word else [Path(path).stem.removeprefix("test_")]
            continue
        head, _, body = block.partition("\n")
        path = tmp_path / re.fullmatch(r"# (\S+?)(, at the end)?", head)[1]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        text = changed(text, body) if language == "diff" else "\n\n".join(filter(None, (text, body)))
        path.write_text(text, encoding="utf-8")
    assert len(words) == 5
    done = subprocess.run(  # noqa: S603  # the page's own commands, in one process, for the time that collecting takes
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            *dict.fromkeys(paths),
            "-k",
            " or ".join(words),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = [line for line in done.stdout.splitlines() if " PASSED " in line]
    for path in paths:
        assert any(line.startswith(path) for line in passed), path
    for word in words:
        assert any(word in line for line in passed), word
