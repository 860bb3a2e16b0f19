"""What a notebook shows: texts, tables, pictures, short tracebacks; and that it goes on after an interruption."""

import re
import traceback

import numpy as np
import pytest
from helpers import ROOT

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, nn, profiler, tensor
from gradmgr._engine.display import Text, html_table
from gradmgr._transforms.notebook import shorten


class Printer:
    """What IPython gives `_repr_pretty_`."""

    def __init__(self):
        self.written = ""

    def text(self, text):
        self.written += text


def shown(value):
    printer = Printer()
    value._repr_pretty_(printer, False)
    return printer.written


def test_tables_show_themselves_as_they_are_printed():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with profiler.profile() as profile, gm:
        gnp.exp(x)
        texts = [gm.summary(), gm.explain(x)]
    step = gradmgr.compile(lambda t: t * 2)
    step(x)
    texts += [nn.summary(nn.Linear(2, 3)), profile.key_averages().table(), step.explain()]
    for text in texts:
        assert isinstance(text, str)
        assert shown(text) == text
    assert shown(profile.key_averages()) == profile.key_averages().table()


def test_a_manager_shows_a_table_of_what_is_attached():
    named, other = tensor(np.ones((2, 3), np.float32)), tensor(1.0)
    gm = GradManager().attach({"<w> & 'b'": named}).attach(other)
    with gm:
        gm.backward(gnp.sum(named))
    text = gm._repr_html_()
    rows = re.findall(r"<tr>(.*?)</tr>", text.partition("</thead>")[2])
    assert [re.findall(r"<td>(.*?)</td>", row) for row in rows] == [
        ["&lt;w&gt; &amp; &#39;b&#39;", "(2, 3)", "float32", "set"],
        ["1", "()", "float64", "None"],
    ]
    assert "<div>GradManager(2 attached)</div>" in text
    many = [tensor(1.0) for _ in range(60)]
    assert "and 10 more" in GradManager().attach(many)._repr_html_()


def test_tables_escape_what_they_show():
    assert "<td>&lt;script&gt;</td>" in html_table("a", ["b"], [["<script>"]])
    assert "<div>&lt;a&gt;</div>" in html_table("<a>", ["<b>"], [])
    assert shown(Text("a\nb")) == "a\nb"


# ---------------------------------------------------------------- tracebacks


def functions_in(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_a_short_traceback_ends_with_the_line_of_the_user():
    x, w = tensor(np.ones((2, 3))), tensor(np.ones((2, 4)))
    for call in (
        lambda: x @ w,
        lambda: np.concatenate([x, w]),
        lambda: gnp.sum(x, axis=5),
        lambda: nn.Sequential(nn.Linear(3, 4))(w),
        lambda: np.linalg.solve(x, w),
    ):
        with pytest.raises(ValueError, match=r"\w") as caught:
            call()
        assert len(functions_in(caught.value)) > 2
        shorten(caught.value)
        assert functions_in(caught.value)[1:] == ["<lambda>"]


def test_functions_of_the_user_that_gradmgr_calls_stay_in_it():
    def scale(t):
        return t @ t.reshape(5)

    with pytest.raises(ValueError, match="reshape") as caught:
        gradmgr.checkpoint(scale, tensor(np.ones((2, 3))))
    shorten(caught.value)
    assert functions_in(caught.value)[1:] == ["scale"]


def test_errors_that_an_error_came_from_are_shortened_too():
    try:
        try:
            tensor([1.0]).reshape(5)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        caught = error
    shorten(caught)
    assert functions_in(caught.__cause__) == [functions_in(caught)[-1]]


def test_a_traceback_within_gradmgr_alone_stays_whole():
    with pytest.raises(ValueError, match="reshape") as caught:
        tensor([1.0]).reshape(5)
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    before = functions_in(caught.value)
    shorten(caught.value)
    assert functions_in(caught.value) == before


# ---------------------------------------------------------------- a notebook

CELLS = """
%load_ext gradmgr
import _thread, threading, numpy as np, gradmgr, gradmgr.numpy as gnp
from gradmgr import GradManager, graph, nn, tensor
x, w = tensor(np.ones((2, 3))), tensor(np.ones((2, 4)))
gm = GradManager().attach({"x": x})
---
gm
---
nn.summary(nn.Linear(3, 2))
---
with gm:
    picture = graph.to_svg(gnp.exp(x) * x)
picture
---
def multiply():
    return gnp.exp(x) @ w
with gm:
    multiply()
---
threading.Timer(0.2, _thread.interrupt_main).start()
with gm:
    while True:
        y = gnp.sum(gnp.exp(x))
        gm.backward(y, retain=True)
---
step = gradmgr.compile(lambda t: gnp.sum(t * t))
threading.Timer(0.2, _thread.interrupt_main).start()
while True:
    step(x)
---
x.grad = None
with gm:
    gm.backward(gnp.sum(x * 2))
print(x.grad.numpy().ravel(), step(x).item(), len(gradmgr._engine.context.recorders(gradmgr._engine.context.current())))
---
%unload_ext gradmgr
x @ w
"""


def test_a_notebook_shows_tables_pictures_and_short_tracebacks(monkeypatch):
    """And works on after an interruption; one kernel runs it."""
    why = f"Jupyter is not installed; {gradmgr.errors.how_to_install('test')}"
    nbclient = pytest.importorskip("nbclient", reason=why)
    nbformat = pytest.importorskip("nbformat", reason=why)
    pytest.importorskip("ipykernel", reason=why)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = [nbformat.v4.new_code_cell(cell.strip("\n")) for cell in CELLS.split("---")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    first, manager, summary, picture, error, interrupted, in_step, last, whole = [cell.outputs for cell in cells]
    assert not first
    assert "<td>x</td><td>(2, 3)</td>" in manager[0].data["text/html"]
    assert summary[0].data["text/plain"].startswith("layer ")
    assert picture[0].data["image/svg+xml"].count('class="node"') == 3
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error[0].traceback))
    assert "return gnp.exp(x) @ w" in text.splitlines()[-3]
    assert "ValueError: matmul" in text.splitlines()[-1]
    assert "gradmgr" not in text
    assert [output[0].ename for output in (interrupted, in_step)] == ["KeyboardInterrupt"] * 2
    assert last[0].text == "[2. 2. 2. 2. 2. 2.] 6.0 0\n"
    assert "gradmgr operator matmul" in "\n".join(whole[0].traceback)
