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

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINK = re.compile(r"`[^`]*`|\[[^\]]+\]\(([^)]+)\)")  # what stands in backquotes is code, not a link


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language, text):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def prose_of(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


README = page("README.md")
OVERVIEW = page("docs/overview.md")
TEXT = README + OVERVIEW
PROSE = prose_of(TEXT)


def commands():
    return [line for block in blocks("sh", README) for line in block.splitlines()]


# Their programs print what they show; those of the other pages are fragments.
PAGES = (
    "README.md",
    "docs/overview.md",
    "docs/start.md",
    "docs/from_numpy.md",
    "docs/from_autograd.md",
    "docs/from_pytorch.md",
    "docs/from_megengine.md",
    "docs/training.md",
    "docs/compile.md",
    "docs/sparse.md",
    "docs/distributions.md",
    "docs/threads.md",
    "docs/notebooks.md",
    "docs/tensor.md",
)
PROGRAMS = [block for name in PAGES for block in blocks("python", page(name))]


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


@pytest.mark.parametrize("name", PAGES)
def test_every_program_of_a_page_is_found(name):
    text = page(name)
    assert len(blocks("python", text)) == text.count("```python") >= 1


def test_the_readme_is_read_in_two_minutes():
    assert len(README.splitlines()) <= 150


def test_set_up_is_two_commands_and_ci_runs_those_of_this_page():
    set_up = "python3 -m venv .venv && . .venv/bin/activate", 'pip install -e ".[dev]"'
    assert commands() == [*set_up, "python examples/digits.py", "python -m pytest -n auto"]
    before, reads, after = re.split(r'^eval "\$\((.+)\)"$', page(".ci/run"), flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", reads], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607  # our own text
    assert done.stdout.splitlines() == commands()
    assert "install" not in before.replace("do not install", "")  # what they need comes by them alone
    assert {"ruff check", "ruff format --check", "mypy"} <= set(after.splitlines())


def test_what_a_run_of_the_tests_leaves_out_is_said():
    markers = tomllib.loads(page("pyproject.toml"))["tool"]["pytest"]["ini_options"]["markers"]
    _, _, said = README.partition("Run the tests")
    said = said.partition("## ")[0]
    for name in {marker.partition(":")[0] for marker in markers} - {"gpu"}:
        assert f"`-m {name}`" in said
    for needed in ("CuPy", "PyTorch", "JAX", "./native", ".[bench]"):
        assert needed in said


def test_extras_and_files_that_are_named_exist():
    declared = set(PROJECT["optional-dependencies"])
    assert set(re.findall(r'"\.\[(\w+)\]"', TEXT)) - {"NAME"} <= declared
    table = OVERVIEW.partition("## Extras")[2].partition("##")[0]
    listed = {
        name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    }
    assert listed == declared - {
        "native",
        "test",
        "test-tools",
    }  # the first is on no index yet; the others are parts of dev
    files = [word for line in commands() for word in shlex.split(line) if word.startswith("examples/")]
    assert len(files) >= 1
    for file in files:
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(name):
    for link in filter(None, LINK.findall(prose_of(page(name)))):
        if not link.startswith(("https://", "#")):
            assert ((ROOT / name).parent / link.partition("#")[0]).exists(), link


def test_every_page_is_reached_from_the_readme():
    linked = {link.partition("#")[0].removeprefix("docs/") for link in LINK.findall(README + OVERVIEW)}
    # Lists of pages, and texts that lie elsewhere.
    of_the_site = {"index.md", "guides.md", "benchmarks.md", "changelog.md", "contributing.md"}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"overview.md"} - of_the_site <= linked


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
        a[1] = t[1].item()
        a[2] = t.sum()
        gm.backward(a.sum())
    assert a.tolist() == [1.0, 2.0, 3.0]
    assert t.grad.tolist() == [2.0, 1.0]


def test_no_text_says_that_an_index_has_gradmgr():
    """What installs it, or its extras, is said for a clone, by `errors.how_to_install`."""
    folders = [ROOT / name for name in ("gradmgr", "examples", "tests", "docs", "bench")]
    texts = [ROOT / "README.md", *(p for f in folders for p in f.rglob("*") if p.suffix in (".py", ".md", ".pyi"))]
    said = re.compile(r"(install|add) ['\"]?gradmgr\b|gradmgr\[[a-z]")
    assert [str(path) for path in texts if said.search(path.read_text(encoding="utf-8"))] == []
