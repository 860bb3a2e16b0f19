"""The stubs are those of what is bound at import, and a user's program has the types that are known."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT

SCRIPT = ROOT / "tools" / "make_stubs.py"
PROGRAM = Path(__file__).with_name("typed_program.py")


@pytest.fixture(scope="module")
def stubs() -> dict[Path, str]:
    """What the script would write, by path."""
    spec = importlib.util.spec_from_file_location("make_stubs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.stubs()


def normal(text: str) -> str:
    """A stub without its layout: imports sorted, what an import binds on its own."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom | ast.Import)]
    names = sorted(
        f"{getattr(node, 'module', '')} {alias.name} {alias.asname}" for node in imports for alias in node.names
    )
    return "\n".join([*names, *[ast.dump(node) for node in tree.body if node not in imports]])


# Members and functions that stand for NumPy's have its signatures, which can be read from this version on.
@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.4.0", reason="NumPy's signatures are complete from 2.4 on")
def test_the_stubs_are_up_to_date(stubs: dict[Path, str]) -> None:
    for path, text in stubs.items():
        assert normal(path.read_text()) == normal(text), f"{path.name} is out of date; run python tools/make_stubs.py"
