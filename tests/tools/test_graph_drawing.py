"""Pictures of the history: what stands in them, and that Graphviz draws them."""

import re
import shutil

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, detect_anomaly, no_grad, tensor
from gradmgr.graph import to_dot, to_mermaid, to_svg


def labels(dot):
    return dict(re.findall(r'(n\d+) \[.*label="(.*)"\];', dot))


def edges(dot):
    return re.findall(r"(n\d+) -> (n\d+);", dot)


def layer():
    w, b = tensor(np.ones((3, 2))), tensor(np.zeros(2))
    return w, b, GradManager().attach({"w": w, "b": b})


def test_ops_shapes_bytes_and_edges():
    w, b, gm = layer()
    x = np.ones((4, 3))
    with gm:
        y = gnp.tanh(x @ w + b)
        dot = to_dot(y)
    found = labels(dot)
    by_text = {text.split(r"\n")[0]: key for key, text in found.items()}
    assert found[by_text["w"]] == r"w\n(3, 2) float64"
    assert found[by_text["matmul"]] == r"matmul\n(4, 2) float64\nkeeps 96 B"
    assert found[by_text["add"]] == r"add\n(4, 2) float64"
    assert found[by_text["tanh"]] == r"tanh\n(4, 2) float64\nkeeps 64 B"
    arrows = {(found[a].split(r"\n")[0], found[b].split(r"\n")[0]) for a, b in edges(dot)}
    assert arrows == {("w", "matmul"), ("matmul", "add"), ("b", "add"), ("add", "tanh")}


def test_lines_of_the_program_where_traced():
    w, _, _ = layer()
    gm = GradManager(with_stack=True).attach(w)
    with gm:
        y = gnp.exp(w)
        assert re.search(r"test_graph_drawing.py:\d+", to_dot(y))
    with detect_anomaly(), GradManager().attach(w):
        y = gnp.exp(w)
        assert re.search(r"test_graph_drawing.py:\d+", to_mermaid(y))


def test_only_what_the_tensor_was_computed_from():
    w, b, gm = layer()
    with gm:
        y, z = gnp.exp(w), gnp.sin(b)
        assert "sin" not in to_dot(y)
        assert {"exp", "sin"} <= {text.split(r"\n")[0] for text in labels(to_dot(gm)).values()}
        assert {"exp", "sin"} <= {text.split(r"\n")[0] for text in labels(to_dot([y, z])).values()}


def test_ops_of_several_results_and_attached_intermediates_are_one_box_each():
    a = tensor(np.diag([1.0, 2.0]))
    gm = GradManager().attach({"a": a})
    with gm:
        values, vectors = gnp.linalg.eigh(a)
        gm.attach({"values": values})
        y = (values * vectors[0]).sum()
        texts = [text.split(r"\n")[0] for text in labels(to_dot(y)).values()]
    assert texts.count("eigh") == 1
    assert "values" in texts
    assert all(f"[{key}" not in texts for key in ("result", "attach"))


def test_mermaid_escapes():
    w, _, _ = layer()
    gm = GradManager().attach({'a "quoted" <name>': w})
    with gm:
        text = to_mermaid(w * 2)
    assert text.splitlines()[0] == "flowchart TB"
    assert "a #quot;quoted#quot; #lt;name#gt;<br/>(3, 2) float64" in text
    with gm:
        assert r"a \"quoted\" <name>\n" in to_dot(w * 2)


def test_errors():
    w, _, gm = layer()
    with pytest.raises(RuntimeError, match="no manager that records here tracks"):
        to_dot(w)
    with gm:
        with no_grad():
            y = w * 2
        with pytest.raises(RuntimeError, match="before backward"):
            to_mermaid(y)
        with pytest.raises(TypeError, match="number 1 is ndarray"):
            to_dot([w, np.ones(2)])
        gm.backward(w.sum())
    with pytest.raises(RuntimeError, match="idle"):
        to_dot(gm)


def test_drawing_keeps_nothing():
    w, _, gm = layer()
    with gm:
        y = gnp.exp(w)
        before = list(gm._tape.entries)
        to_dot(gm), to_mermaid(y)
        assert gm._tape.entries == before
        assert gm._tape.annotations is None


def test_svg_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    w, _, gm = layer()
    with gm, pytest.raises(ImportError, match="install Graphviz"):
        to_svg(w * 2)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed here")
def test_svg():
    w, b, gm = layer()
    with gm:
        svg = to_svg(gnp.tanh(np.ones((4, 3)) @ w + b))
    assert svg.count('class="node"') == 5
    assert svg.count('class="edge"') == 4
    assert "keeps 96 B" in svg
