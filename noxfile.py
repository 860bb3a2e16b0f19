#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox"]
# ///
"""Tests on every supported Python and NumPy, style, types, coverage and packages: `nox --list` shows the sessions."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv|virtualenv"

ROOT = Path(__file__).parent
# The oldest NumPy has wheels for Python 3.10 to 3.13; the newest is what pip finds.
NUMPY = {"oldest": ["numpy~=2.1.0"], "newest": ["numpy"]}
LONGER = ("-o", "faulthandler_timeout=7200")  # seconds after which a test is taken to hang
MATRIX = [("3.11", "oldest"), *((python, "newest") for python in ("3.11", "3.12", "3.13", "3.14"))]


@nox.session(default=False)
@nox.parametrize("python,numpy", MATRIX)
def tests(session: nox.Session, numpy: str) -> None:
    """Run the tests; arguments after -- go to pytest in place of the whole suite."""
    session.install("-e", ".[test]", "./native", *NUMPY[numpy])
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session(default=False)
def slow(session: nox.Session) -> None:
    """Run the tests marked slow, which the others leave out."""
    session.install("-e", ".[test]", "./native")
    session.run("python", "-m", "pytest", "-n", "auto", "-m", "slow", *LONGER, *session.posargs)


@nox.session(python=["3.13t", "3.14t"], default=False)
def free_threaded(session: nox.Session) -> None:
    """Run the tests of the engine and of the table of ops without the GIL."""
    # The other extras of "test" (scikit-learn, mpi4py, oneDNN) do not all have wheels for these builds.
    session.install("-e", ".[scipy,test-tools]", "./native")
    session.run("python", "-X", "gil=0", "-m", "pytest", "-n", "auto", *(session.posargs or FREE_THREADED))


FREE_THREADED = ("tests/engine", "tests/generic", "tests/random")


@nox.session
def style(session: nox.Session) -> None:
    """Run every pre-commit hook on every file: linter, formatter, types, workflows."""
    session.install("pre-commit")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Measure which lines the tests run."""
    session.install("-e", ".[dev]")
    session.run(
        "python", "-m", "pytest", "-n", "auto", "--cov", "--cov-report=term-missing:skip-covered", *session.posargs
    )


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the source archive and the wheel, and check what a package index will show of them."""
    session.install("build", "twine")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run("python", "-m", "build")
    session.run("python", "-m", "build", "--outdir", "dist", "native")
    session.run("twine", "check", "--strict", *map(str, sorted((ROOT / "dist").iterdir())))


@nox.session(default=False)
def review(session: nox.Session) -> None:
    """Compare the repository with the Scientific Python development guide."""
    session.install("sp-repo-review[cli]")
    session.run("repo-review", ".", *session.posargs)


if __name__ == "__main__":
    nox.main()
