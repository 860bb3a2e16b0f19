"""Pictures of the history: what stands in them, and where."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, detect_anomaly, no_grad, tensor
from gradmgr._transforms.layout import Layout
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
    assert found[by_text["tanh"]] == r"tanh\n(4, 2) float64\nkeeps 128 B"
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
        with pytest.raises(TypeError, match=r"a picture is drawn of a Tensor, a list of Tensors, .*; found int"):
            to_svg(3)
        with pytest.raises(TypeError, match="number 1 is ndarray"):
            to_dot([w, np.ones(2)])
        gm.backward(w.sum())
    with pytest.raises(RuntimeError, match="idle and has no history to draw"):
        to_dot(gm)


def test_drawing_keeps_nothing():
    w, _, gm = layer()
    with gm:
        y = gnp.exp(w)
        before = list(gm._tape.entries)
        to_dot(gm), to_mermaid(y)
        assert gm._tape.entries == before
        assert gm._tape.annotations is None


# ---------------------------------------------------------------- SVG

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(svg):
    """The boxes, as (left, top, right, bottom) by the first line of their text, and the number of edges."""
    root = ET.fromstring(svg)  # noqa: S314  # made here
    boxes = {}
    for group in root.iter(f"{NAMESPACE}g"):
        if group.get("class") == "node":
            rect = group.find(f"{NAMESPACE}rect")
            x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            boxes[group.find(f"{NAMESPACE}text").text] = (x, y, x + width, y + height)
    return boxes, svg.count('class="edge"')


def test_svg():
    w, b, gm = layer()
    with gm:
        svg = to_svg(gnp.tanh(np.ones((4, 3)) @ w + b))
    boxes, edge_count = drawn(svg)
    assert (set(boxes), edge_count) == ({"w", "b", "matmul", "add", "tanh"}, 4)
    assert "keeps 96 B" in svg
    for above, below in (("w", "matmul"), ("matmul", "add"), ("b", "add"), ("add", "tanh")):
        assert boxes[above][3] < boxes[below][1]
    assert svg._repr_svg_() == svg


def test_svg_escapes():
    w, _, _ = layer()
    name = "a \"quoted\" <name> & 'more' \x01 \ud800"
    with GradManager().attach({name: w}):
        boxes, _ = drawn(to_svg(w * 2))
    assert set(boxes) == {name.replace("\x01", "\ufffd").replace("\ud800", "\ufffd"), "multiply"}


def random_graph(rng, count):
    return [sorted({int(k) for k in rng.integers(0, j, rng.integers(0, 3))}) if j else [] for j in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_boxes_do_not_overlap_and_edges_lead_down(seed):
    rng = np.random.default_rng(seed)
    inputs = random_graph(rng, 40)
    sizes = [(float(rng.integers(20, 90)), float(rng.integers(20, 60))) for _ in inputs]
    layout = Layout(sizes, inputs)
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(layout.centres, sizes, strict=True)]
    for k, one in enumerate(boxes):
        assert min(one) >= -1e-9
        assert one[2] <= layout.width + 1e-9
        assert one[3] <= layout.height + 1e-9
        for other in boxes[:k]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert layout.edges.keys() == {(start, end) for end, starts in enumerate(inputs) for start in starts}
    for (start, end), piece in layout.edges.items():
        assert layout.centres[start][1] < layout.centres[end][1]
        assert piece[-1] == layout.centres[end]
        heights = [y for _, y in piece]
        assert heights == sorted(heights)


def test_lanes_of_long_edges_pass_no_box():
    inputs = random_graph(np.random.default_rng(9), 60)
    layout = Layout([(50.0, 30.0)] * 60, inputs)
    lanes = [
        (x, top, bottom)
        for trunk in layout.trunks
        for (x, top), (below, bottom) in zip(trunk[2::2], trunk[3::2], strict=True)
        if x == below
    ]
    assert len(lanes) > 20
    for x, top, bottom in lanes:
        for left, y in layout.centres:
            assert not (abs(x - left) < 25 and top < y < bottom)


def test_an_order_is_found_that_crosses_no_edges():
    """Two chains whose boxes come in turns, and ends in exchanged order."""
    layout = Layout([(10.0, 10.0)] * 6, [[], [], [1], [0], [2], [3]])
    places = [x for x, _ in layout.centres]
    assert (places[0] < places[1]) == (places[3] < places[2]) == (places[5] < places[4])


def test_operations_of_one_input_stand_above_what_uses_them():
    x = tensor(np.ones(3))
    with GradManager().attach({"x": x}):
        y = x
        for k in range(300):
            y = y + x * k
        assert len(to_svg(y)) < 500_000  # 3 MB where each product has an edge past all sums above its own


def test_more_long_edges_than_can_be_followed_are_refused():
    """Each of a chain of 700 boxes uses the two before it; those of a second chain use the first, last ones first."""
    inputs = [sorted({max(k - 2, 0), k - 1}) if k else [] for k in range(700)]
    inputs += [[699 - k, 699 + k] if k else [699] for k in range(700)]
    with pytest.raises(ValueError, match=r"to_svg: 1400 boxes have long edges .* or by to_dot"):
        Layout([(10.0, 10.0)] * len(inputs), inputs)


def test_a_long_history_is_drawn_in_time_and_space_that_grow_with_it():
    x = tensor(np.ones(3))
    with GradManager().attach({"x": x}):
        y = x
        for _ in range(200):
            y = gnp.sin(y) * x  # edges from x to all layers share one trunk
        svg = to_svg(y)
    assert svg.count('class="node"') == 401
    assert len(svg) < 400_000
