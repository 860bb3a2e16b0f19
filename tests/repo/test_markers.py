"""Tests that need gradmgr-native are marked so, so that `-m native` runs them all."""

import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

PROGRAM = """
import pytest
from machine import needs_machine

@needs_machine
def test_marked():
    pytest.skip("gradmgr-native is not installed")

def test_not_marked():
    pytest.skip("gradmgr-native is not installed")

@pytest.mark.skipif(True, reason="needs kernels: gradmgr-native does not work here")
def test_not_marked_either():
    pass

def test_of_something_else():
    pytest.skip("CuPy is not installed")
"""
# What `conftest.py` finds in an environment without the package.
WITHOUT = "import sys; sys.modules['gradmgr_native'] = None; import pytest; raise SystemExit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("start", ["import pytest, sys; raise SystemExit(pytest.main(sys.argv[1:]))", WITHOUT])
def test_a_test_that_is_skipped_for_lack_of_the_package_fails_unless_it_is_marked(start, tmp_path):
    file = tmp_path / "test_of_this_test.py"
    file.write_text(PROGRAM, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    arguments = [str(file), "-q", "-rA", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(  # noqa: S603  # our own text
        [sys.executable, "-c", start, *arguments], cwd=ROOT / "tests", capture_output=True, text=True, check=False
    )
    found = {
        line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    }
    assert found == {"test_not_marked", "test_not_marked_either"}, done.stdout
    assert "2 skipped" in done.stdout
