"""The stubs are those of what is bound at import, and a user's program has the types that are known."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from samples import SAMPLES

import gradmgr.numpy as gnp
from gradmgr import Tensor, asarray

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


# Members and functions that stand for NumPy's have its signatures.
@pytest.mark.skipif(
    not "2.4.0" <= np.lib.NumpyVersion(np.__version__) < "2.5.0.dev0",
    reason="the stubs have the signatures of NumPy 2.4: before, not all can be read; 2.5 has further arguments",
)
def test_the_stubs_are_up_to_date(stubs: dict[Path, str]) -> None:
    for path, text in stubs.items():
        assert normal(path.read_text()) == normal(text), f"{path.name} is out of date; run python tools/make_stubs.py"


# ---------------------------------------------------------------- what functions return


def declared(tree: ast.AST) -> dict[str, set[str]]:
    """The results of each function of a stub, of all its overloads; a type for the elementwise ones."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, set()).add(ast.unparse(node.returns))
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = {"Tensor", "Any"}  # Function1 and its like
    return found


def results() -> dict[str, set[str]]:
    """What the stubs say by the names that samples have."""
    parts = (
        ("", "numpy/__init__.pyi"),
        ("linalg.", "numpy/linalg.pyi"),
        ("fft.", "numpy/fft.pyi"),
        ("special.", "special.pyi"),
        ("nn.", "nn/functional.pyi"),
        ("Tensor.", "_engine/tensor_members.pyi"),
    )
    return {
        prefix + name: kinds
        for prefix, path in parts
        for name, kinds in declared(ast.parse((ROOT / "gradmgr" / path).read_text())).items()
    }


def test_what_the_stubs_call_a_tensor_is_one() -> None:
    """Where one argument is a Tensor, whichever of those that are differentiated."""
    said, checked = results(), set()
    for sample in SAMPLES:
        if said.get(sample.name, set()) - {"Any"} != {"Tensor"} or sample.name.startswith("Tensor.__r"):
            continue  # Python asks a reflected operator; called by name it may give NotImplemented
        arrays = sample.make()
        alone = [k for k in sample.where if k == 0 or not sample.name.startswith("Tensor.")]
        if "out=" in sample.case or "where=" in sample.case or sample.case.startswith("at,"):
            alone = []  # all Tensors: what is written to is what is returned
        for k in alone or [None]:
            given = [asarray(a) if k in (None, j) else a for j, a in enumerate(arrays)]
            assert isinstance(sample.call(gnp, *given), Tensor), f"{sample}, argument {k}"
        checked.add(sample.name)
    assert len(checked) > 250


# ---------------------------------------------------------------- a user's program

# Each line is an error for a checker that sees the types.
WRONG = """\
import gradmgr.numpy as np
from gradmgr import nn, tensor

a: int = tensor(1.0) * 2
b: int = np.sum(tensor(1.0))
c: int = nn.Linear(1, 1)(tensor([1.0]))
d = tensor(1.0).there_is_no_such_method()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder outside the repository with the program, and one in which each of four lines is an error."""
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return tmp_path


def errors_of(folder: Path, *command: str) -> list[str]:
    """What a checker reports in a folder, a line for each error."""
    paths = {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-m", *command], cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "error:" in line or " - error" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("mypy", "--strict", "--config-file=", "typed_program.py", "wrong.py"), ("pyright",)],
    ids=["mypy", "pyright"],
)
def test_a_users_program_has_no_error_and_no_unknown_type(folder: Path, command: tuple[str, ...]) -> None:
    pytest.importorskip(command[0])  # not installed where Python is free-threaded
    found = errors_of(folder, *command)
    assert not [line for line in found if "wrong.py" not in line]
    assert {f"wrong.py:{line}" for line in (4, 5, 6, 7)} <= {
        match[0] for line in found if (match := re.search(r"wrong\.py:\d+", line))
    }


def test_the_program_runs() -> None:
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-W", "error", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "gradmgr" / "py.typed").exists()
