"""What the README says is true: its programs run and print what it shows, and what it names exists."""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from helpers import ROOT

import gradmgr
from gradmgr import GradManager, Tensor

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROSE = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"`[^`]*`|\[[^\]]+\]\(([^)]+)\)")  # what stands in backquotes is code, not a link


TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
SPARSE = (ROOT / "docs" / "sparse.md").read_text(encoding="utf-8")
COMPILE = (ROOT / "docs" / "compile.md").read_text(encoding="utf-8")
DISTRIBUTIONS = (ROOT / "docs" / "distributions.md").read_text(encoding="utf-8")
FROM_AUTOGRAD = (ROOT / "docs" / "from_autograd.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
TENSOR = (ROOT / "docs" / "tensor.md").read_text(encoding="utf-8")


def blocks(language, text=TEXT):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands():
    return [line for block in blocks("sh") for line in block.splitlines()]


PAGES = (TEXT, TRAINING, COMPILE, SPARSE, DISTRIBUTIONS, FROM_AUTOGRAD, START, TENSOR)
PROGRAMS = [block for page in PAGES for block in blocks("python", page)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[-1][:20])
def test_every_program_runs_and_prints_what_is_shown(program, tmp_path):
    """In an interpreter of its own: one sets what SciPy reads when it is first imported."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603  # the README's own programs
        [sys.executable, "-W", "error", file],
        cwd=tmp_path,  # one saves what it learned
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^print\(.*\)  # (.+)$", program, flags=re.MULTILINE)
    assert shown, "each program shows what it prints"
    printed = done.stdout.splitlines()
    assert len(printed) == len(shown)
    for line, pattern in zip(printed, shown, strict=True):  # "..." stands for anything, as in doctests
        assert re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line), (line, pattern)


def test_there_are_programs():
    for text in TEXT, TRAINING:
        assert len(blocks("python", text)) == text.count("```python") >= 2


def test_set_up_is_two_commands_and_ci_runs_the_same():
    set_up = "python3 -m venv .venv && . .venv/bin/activate", 'pip install -e ".[dev]"'
    assert commands() == [*set_up, "python examples/digits.py", "python -m pytest -n auto"]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert '-e ".[dev]"' in ci
    assert "python -m pytest -n auto" in ci


def test_extras_and_files_that_are_named_exist():
    extras = set(re.findall(r'"\.\[(\w+)\]"', TEXT))
    assert {"dev", "scipy", "cuda12", "cuda13"} <= extras <= set(PROJECT["optional-dependencies"])
    files = [word for line in commands() for word in shlex.split(line) if word.startswith("examples/")]
    files += filter(None, LINK.findall(PROSE))
    assert len(files) >= 3
    for file in files:
        assert (ROOT / file).is_file(), file


def test_supported_versions_are_those_of_the_package():
    python = PROJECT["requires-python"].removeprefix(">=")
    (numpy,) = (name.removeprefix("numpy>=") for name in PROJECT["dependencies"])
    for extra in "cuda12", "cuda13":
        (cupy,) = (name.partition(">=")[2] for name in PROJECT["optional-dependencies"][extra])
        assert f"Python >= {python}, NumPy >= {numpy} and, for a GPU, CuPy >= {cupy}." in TEXT
    assert f"Python {python} or newer" in TEXT
    assert PROJECT["license"] in TEXT


def test_names_in_the_text_exist():
    code = re.findall(r"`([^`]+)`", "\n".join(re.sub(r"^(\|[^|]*\|[^|]*\|).*", r"\1", x) for x in PROSE.splitlines()))
    methods = {"gm": GradManager, "t": Tensor, "x": Tensor}
    named = [(methods[m[1]], m[2]) for part in code for m in re.finditer(r"\b(gm|t|x)\.(\w+)", part)]
    assert len(named) >= 10
    for kind, name in named:
        assert hasattr(kind, name), f"{kind.__name__}.{name}"
    mine = {"f", "float"}  # the reader's function, and Python's own
    called = {m[1] for part in code for m in re.finditer(r"(?<![\w.])(\w+)\(", part)} - mine
    assert {"tensor", "no_grad", "gradcheck", "backward"} <= called
    for name in called:
        assert hasattr(gradmgr, name) or hasattr(GradManager, name), name


@pytest.mark.parametrize("write", ["numpy.asarray(t)", "a[:2] = t", "a += t[0]"])
def test_a_tracked_tensor_does_not_turn_into_a_plain_array(write):
    t = gradmgr.tensor([1.0, 2.0])
    a = np.zeros(3)
    with GradManager().attach(t), pytest.raises(TypeError) as caught:
        exec(write, {"a": a, "t": t, "numpy": np})  # noqa: S102  # our own text
    assert isinstance(caught.value, gradmgr.errors.TrackedConversionError)
    assert not a.any()


def test_an_array_of_ours_is_filled_element_by_element():
    t = gradmgr.tensor([1.0, 2.0])
    gm = GradManager().attach(t)
    with gm:
        a = gradmgr.numpy.zeros(3)
        a[0] = t[0]
        a[1] = float(t[1])
        a[2] = t.sum()
        gm.backward(a.sum())
    assert a.tolist() == [1.0, 2.0, 3.0]
    assert t.grad.tolist() == [2.0, 1.0]
