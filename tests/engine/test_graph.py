"""The history as seen from outside: what a tensor is for the managers, nodes, edges, and what is refused."""

import copy
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, backward, errors, grad, graph, no_grad, tensor
from gradmgr.graph import GradientEdge, Node, get_gradient_edge


def names(node):
    return [(before.name(), k) for before, k in node.next_functions]


# ---------------------------------------------------------------- what a tensor is for the managers


def test_requires_grad_is_leaf_and_grad_fn():
    x, loose = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    gm = GradManager().attach(x)

    def facts(t):
        return t.requires_grad, t.is_leaf, t.grad_fn and t.grad_fn.name()

    assert facts(x) == (False, True, None)
    with gm:
        y = x * 2
        assert facts(x) == (True, True, None)
        assert facts(y) == (True, False, "multiply")
        assert facts(loose) == facts(loose * 2) == facts(y.detach()) == (False, True, None)
        assert facts(gnp.rint(x).astype(int)) == (False, True, None)
        with no_grad():
            assert facts(x) == (True, True, None)
            assert facts(y) == (True, False, "multiply")
            assert facts(y * 2) == (False, True, None)
        x += 1
        assert facts(x) == (True, False, "add")
        with no_grad():
            x[...] = 0.0
        assert facts(x) == (False, True, None)
        gm.attach(y)
        assert facts(y) == (True, True, None)
        assert facts(y * 2) == (True, False, "multiply")
    assert facts(y) == (False, True, None)


def test_a_clone_is_a_result_and_a_detached_leaf_a_constant_for_what_follows():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        assert x.clone().grad_fn.name() == "copy"
        y = x * x
        assert y.detach_() is y
        assert (y.requires_grad, y.is_leaf, y.grad_fn) == (False, True, None)
        gm.backward(x * y)
    assert x.grad.tolist() == [9.0]
    assert y.tolist() == [9.0]


def test_detach_in_place_stops_gradients_for_every_manager_and_keeps_what_was_computed_before():
    x = tensor([3.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        h = x * x
        y = h * x
        h.detach_()
        z = y + h * x
        outer.backward(z, retain=True)
        assert x.grad.tolist() == [27.0 + 9.0]
        x.grad = None
        inner.backward(z)
    assert x.grad.tolist() == [27.0 + 9.0]


def test_detach_in_place_of_a_leaf_and_outside_of_a_recording():
    x = tensor([3.0])
    gm = GradManager().attach(x)
    assert x.detach_() is x
    with gm:
        y = x * x
        x.detach_()
        gm.backward(y + x * 100)
    assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("value", [True, False])
def test_requires_grad_cannot_be_set(value):
    x = tensor([1.0])
    gm = GradManager().attach(x)
    for ask in (
        lambda: setattr(x, "requires_grad", value),
        lambda: x.requires_grad_(value),
        lambda: x.requires_grad_(),
    ):
        with pytest.raises(RuntimeError, match=r"requires_grad of a Tensor of shape \(1,\).*attach\(t\).*detach\(t\)"):
            ask()
    with gm:
        gm.backward(x * 1)
    assert x.grad.tolist() == [1.0]


def test_data_is_refused_with_what_to_use():
    x = tensor([1.0])
    for ask in (lambda: x.data, lambda: setattr(x, "data", x), lambda: delattr(x, "data")):
        with pytest.raises(AttributeError, match=r"detach\(\).*numpy\(\).*no_grad"):
            ask()
    assert not hasattr(x, "data")


def test_backward_of_a_tensor():
    x = tensor([1.0, 2.0])
    with GradManager().attach(x):
        y = x * x
        y.backward(np.array([1.0, 10.0]), retain_graph=True)
        assert x.grad.tolist() == [2.0, 40.0]
        x.grad = None
        y.sum().backward(create_graph=True)
        first, x.grad = x.grad, None
        first.sum().backward(inputs=[x])
    assert x.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="backward: no manager records here"):
        tensor(1.0).backward()
    with GradManager().attach(x), pytest.raises(ValueError, match="one real number"):
        (x * x).backward()


def test_copies_have_no_hooks():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    x.register_hook(lambda g: g * 10)
    for other in (copy.copy(x), copy.deepcopy(x), x.clone()):
        with GradManager().attach(other) as other_gm:
            other_gm.backward(other * 1)
        assert other.grad.tolist() == [1.0]
    assert len(gm.attached_tensors()) == 1


# ---------------------------------------------------------------- nodes


def test_next_functions_lead_to_the_leaves():
    x, w = tensor([1.0, 2.0]), tensor([3.0, 4.0])
    with GradManager().attach([x, w]):
        node = (gnp.tanh(x * w) + 5).sum().grad_fn
        assert node.name() == "sum"
        assert names(node) == [("add", 0)]
        (add,) = (before for before, _ in node.next_functions)
        assert names(add) == [("tanh", 0)]
        tanh = add.next_functions[0][0]
        multiply = tanh.next_functions[0][0]
        assert names(multiply) == [("AccumulateGrad", 0), ("AccumulateGrad", 0)]
        leaves = [before for before, _ in multiply.next_functions]
        assert leaves[0].variable is x
        assert leaves[1].variable is w
        assert [leaf.next_functions for leaf in leaves] == [(), ()]
        assert repr(multiply) == "<Node multiply>"


def test_an_operand_twice_and_constants():
    x = tensor([1.0])
    with GradManager().attach(x):
        assert names((x * x).grad_fn) == [("AccumulateGrad", 0), ("AccumulateGrad", 0)]
        assert names((x * 3).grad_fn) == names((3 / x).grad_fn) == [("AccumulateGrad", 0)]


def test_nodes_are_equal_by_what_they_name():
    x = tensor([1.0])
    gm, other = GradManager().attach(x), GradManager().attach(x)
    with gm:
        y, z = x * 2, x * 2
        assert y.grad_fn == y.grad_fn
        assert hash(y.grad_fn) == hash(y.grad_fn)
        assert y.grad_fn != z.grad_fn
        assert y.grad_fn != "multiply"
        assert (y * z).grad_fn.next_functions == ((y.grad_fn, 0), (z.grad_fn, 0))
        assert len({y.grad_fn, y.grad_fn, z.grad_fn}) == 2
        leaf = get_gradient_edge(x).node
        with other:
            assert get_gradient_edge(x).node != leaf


def test_metadata_is_one_dict_for_each_operation():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        y.grad_fn.metadata["why"] = "because"
        assert y.grad_fn.metadata == {"why": "because"}
        assert (y + 1).grad_fn.next_functions[0][0].metadata is y.grad_fn.metadata
        assert (y + 1).grad_fn.metadata == {}
        get_gradient_edge(x).node.metadata["leaf"] = 1
        assert get_gradient_edge(x).node.metadata == {"leaf": 1}
        node = y.grad_fn
        assert node.metadata
        late = (y * 1).grad_fn
        gm.backward(y)
    assert node.metadata == {"why": "because"}
    with pytest.raises(RuntimeError, match=r"<Node multiply>\.metadata: the history .* was freed"):
        late.metadata  # reading it is what raises
    assert x.grad.tolist() == [2.0]


def test_results_of_an_op_of_several_share_a_node():
    x = tensor([[2.0, 1.0], [1.0, 3.0]])
    with GradManager().attach(x):
        w, v = gnp.linalg.eigh(x)
        first, second = get_gradient_edge(w), get_gradient_edge(v)
        assert first.node == second.node == w.grad_fn == v.grad_fn
        assert (first.output_nr, second.output_nr) == (0, 1)
        assert first.node.name() == "eigh"
        assert names(first.node) == [("AccumulateGrad", 0)]
        assert [k for _, k in (v * v).grad_fn.next_functions] == [1, 1]


def test_an_attached_result_is_a_leaf_and_passes_its_gradient_on():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        h = x * 2
        gm.attach(h)
        ((leaf, k),) = (h * 3).grad_fn.next_functions
        assert (leaf.name(), k) == ("AccumulateGrad", 0)
        assert leaf.variable is h
        assert names(leaf) == [("multiply", 0)]
        assert get_gradient_edge(h) == GradientEdge(leaf, 0)


def test_the_node_is_that_of_the_innermost_recording_that_tracks_the_result():
    x, w = tensor([1.0]), tensor([2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(w)
    with outer:
        a = x * 2
        with inner:
            b = w * 3
            c = a + b
            assert names(a.grad_fn) == [("AccumulateGrad", 0)]
            assert names(c.grad_fn) == [("multiply", 0)]  # as the inner one sees it: b alone
            assert c.grad_fn.next_functions[0][0] == b.grad_fn
        assert c.grad_fn.next_functions[0][0] == a.grad_fn


def test_a_tensor_attached_to_the_inner_manager_is_a_result_for_the_outer():
    x = tensor([1.0])
    outer, inner = GradManager().attach(x), GradManager()
    with outer:
        h = x * 2
        with inner.attach(h):
            assert h.grad_fn.name() == "multiply"
            assert not h.is_leaf
            assert get_gradient_edge(h).node.variable is h


@pytest.mark.parametrize("end", ["backward", "release", "del"])
def test_a_node_of_a_freed_history_says_so(end):
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * 2
        node, leaf = y.grad_fn, get_gradient_edge(x).node
        if end == "backward":
            gm.backward(y)
        elif end == "release":
            gm.release()
    if end == "del":
        del gm
    for one, what in (
        (node, "next_functions"),
        (leaf, "next_functions"),
        (leaf, "variable"),
        (node, "metadata"),
    ):
        with pytest.raises(errors.RecordingError, match=f"{one!r}.{what}: .*freed by backward.*retain=True"):
            getattr(one, what)
    for register in (node.register_hook, node.register_prehook):
        with pytest.raises(errors.RecordingError, match="freed by backward"):
            register(print)
    assert (node.name(), leaf.name(), repr(node)) == ("multiply", "AccumulateGrad", "<Node multiply>")
    assert y.grad_fn is None


def test_a_node_that_backward_has_freed_already_cannot_be_asked_for():
    x, seen = tensor([1.0]), []
    gm = GradManager().attach(x)
    with gm:
        a = x * 2
        y = x * 1
        b = a * 3
        node = b.grad_fn

        def hook(g):
            seen.append(names(a.grad_fn))
            with pytest.raises(errors.RecordingError, match="freed as backward"):
                node.next_functions  # reading it is what raises
            with pytest.raises(errors.RecordingError, match="freed as backward"):
                b.grad_fn  # as above

        y.register_hook(hook)  # called between b and a
        gm.backward(y * 1 + b)
    assert x.grad.tolist() == [7.0]
    assert seen == [[("AccumulateGrad", 0)]]


def test_leaves_have_no_hooks_of_operations_and_operations_no_variable():
    x = tensor([1.0])
    with GradManager().attach(x):
        leaf = get_gradient_edge(x).node
        for register in (leaf.register_hook, leaf.register_prehook):
            with pytest.raises(
                RuntimeError, match=r"this node is an attached tensor.*register_post_accumulate_grad_hook"
            ):
                register(print)
        assert leaf.is_leaf()
        with pytest.raises(AttributeError, match="<Node multiply> is an operation"):
            (x * 2).grad_fn.variable  # reading it is what raises
        assert not hasattr((x * 2).grad_fn, "variable")


def test_the_variable_of_a_tensor_that_was_detached():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        leaf = get_gradient_edge(x).node
        gm.detach(x)
        with pytest.raises(RuntimeError, match="variable: the tensor was detached"):
            leaf.variable  # reading it is what raises


def test_the_history_of_a_custom_function_by_its_name():
    class Twice(gradmgr.function.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = Twice.apply(x)
        assert names(y.grad_fn) == [("AccumulateGrad", 0)]
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
        y.grad_fn.register_prehook(lambda gs: (gs[0] * 5,))
        y.grad_fn.register_hook(lambda gi, go: (gi[0] * 7,))
        gm.backward(y)
    assert (y.grad.tolist(), x.grad.tolist()) == ([3.0], [210.0])


# ---------------------------------------------------------------- what nodes hold


def test_a_node_keeps_its_operation_from_being_swept_but_not_beyond_the_recording():
    x = tensor(np.ones(3))
    gm = GradManager().attach(x)
    with gm:
        h = gnp.exp(x)
        ref = weakref.ref(h._array)
        node = h.grad_fn
        del h
        gm._tape.sweep(everything=True)
        assert names(node) == [("AccumulateGrad", 0)]
        assert ref() is not None
        gm.release()
        gc.collect()
        assert ref() is None
        assert node.name() == "exp"


def test_a_dropped_node_lets_its_operation_be_swept():
    x = tensor(np.ones(3))
    gm = GradManager().attach(x)
    with gm:
        for _ in range(10):
            gnp.exp(x).grad_fn.metadata["k"] = gnp.exp(x).grad_fn.next_functions
        gm._tape.sweep(everything=True)
        assert gm._tape.entries == []
        assert gm._tape.annotations.metadata == {}


def test_nodes_keep_no_manager_alive():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    gm.record()
    node = (x * 2).grad_fn
    ref = weakref.ref(gm)
    del gm
    assert ref() is None
    with pytest.raises(errors.RecordingError):
        node.next_functions  # reading it is what raises


def test_an_index_of_many_entries_is_right_after_sweeps_and_appends():
    x = tensor([1.0])
    with GradManager().attach(x) as gm:
        y, nodes = x, []
        for k in range(300):
            y = y + 1
            nodes.append(y.grad_fn)
            for _ in range(k % 5):
                y * 2  # dropped at once
            if k % 50 == 0:
                gm._tape.sweep(everything=True)
        for before, after in itertools.pairwise(nodes):
            assert after.next_functions == ((before, 0),)
        depth, node = 0, y.grad_fn
        while node.next_functions:
            ((node, _),) = node.next_functions
            depth += 1
        assert depth == 300
        assert node.variable is x


# ---------------------------------------------------------------- edges


def test_grad_accepts_edges_for_inputs_and_outputs():
    a = tensor([1.0, 2.0])
    with GradManager().attach(a):
        b = a * 7
        c = (b * b).sum()
        to_b, to_a, to_c = get_gradient_edge(b), get_gradient_edge(a), get_gradient_edge(c)
        del b
        of_b, of_a = grad(c, [to_b, to_a], retain_graph=True)
        assert (of_b.tolist(), of_a.tolist()) == ([14.0, 28.0], [98.0, 196.0])
        (of_a,) = grad(to_c, to_a, retain_graph=True)
        assert of_a.tolist() == [98.0, 196.0]
        (of_a,) = grad([to_b], a, grad_outputs=[np.ones(2)], retain_graph=True)
        assert of_a.tolist() == [7.0, 7.0]
        (found,) = (before for before, _ in c.grad_fn.next_functions)
        ((node, k), _) = found.next_functions
        (of_a,) = grad(GradientEdge(node, k), a, np.ones(2), retain_graph=True)
        assert of_a.tolist() == [7.0, 7.0]
        with pytest.raises(ValueError, match="one real number"):
            grad(to_b, a, retain_graph=True)
        with pytest.raises(errors.ShapeError):
            grad(to_b, a, grad_outputs=np.ones(3), retain_graph=True)
        (none,) = grad(c, get_gradient_edge(a * 3), allow_unused=True)
        assert none is None


def test_backward_accepts_edges():
    a = tensor([1.0, 2.0])
    with GradManager().attach(a):
        b = a * 7
        edge = get_gradient_edge(b)
        backward(edge, np.ones(2), retain_graph=True)
        assert a.grad.tolist() == [7.0, 7.0]
        backward((b * b).sum(), inputs=get_gradient_edge(a), retain_graph=True)
        assert a.grad.tolist() == [105.0, 203.0]
        seen = []
        b.register_hook(lambda g: seen.append(g.tolist()))
        backward((b * b).sum(), inputs=[edge], retain_graph=True)  # as in torch, only hooks see this gradient
        assert seen == [[14.0, 28.0]]
        assert b.grad is None
        assert a.grad.tolist() == [105.0, 203.0]
        with pytest.raises(TypeError, match=r"number 0 is Node; pass get_gradient_edge\(t\)"):
            backward(b.sum(), inputs=[edge.node], retain_graph=True)


def test_edges_to_results_of_an_op_of_several():
    x = tensor([[2.0, 1.0], [1.0, 3.0]])
    with GradManager().attach(x):
        w, v = gnp.linalg.eigh(x)
        edges = [get_gradient_edge(t) for t in (w, v)]
        y = (w * w).sum()
        (of_w,) = grad(y, edges[0], retain_graph=True)
        np.testing.assert_allclose(of_w.numpy(), 2 * w.numpy())
        (of_x,) = grad(edges[0], x, np.ones(2), retain_graph=True)
        np.testing.assert_allclose(of_x.numpy(), np.eye(2), atol=1e-12)
        (of_x,) = grad(edges, x, [np.ones(2), np.zeros((2, 2))])
        np.testing.assert_allclose(of_x.numpy(), np.eye(2), atol=1e-12)


def test_an_edge_whose_result_was_dropped():
    x = tensor([[2.0, 1.0], [1.0, 3.0]])
    with GradManager().attach(x) as gm:
        w, v = gnp.linalg.eigh(x)
        edge = get_gradient_edge(w)
        del w
        gm._tape.sweep(everything=True)
        (of_x,) = grad(edge, x, np.ones(2))
        np.testing.assert_allclose(of_x.numpy(), np.eye(2), atol=1e-12)
        assert v.shape == (2, 2)


def test_an_edge_of_a_leaf_that_was_written_to():
    x = tensor([3.0])
    with GradManager().attach(x):
        before = get_gradient_edge(x)
        x *= 2
        after = get_gradient_edge(x)
        y = x * x
        of_before, of_after = grad(y, [before, after], retain_graph=True)
        assert (of_before.tolist(), of_after.tolist()) == ([24.0], [12.0])
        (of_x,) = grad(before, before, np.ones(1))
        assert of_x.tolist() == [1.0]


def test_second_order_through_edges():
    x = tensor([3.0])
    with GradManager().attach(x):
        edge = get_gradient_edge(x)
        (first,) = grad(x**3, edge, create_graph=True)
        (second,) = grad(get_gradient_edge(first), edge, np.ones(1))
    assert (first.tolist(), second.tolist()) == ([27.0], [18.0])


def test_an_untracked_tensor_has_no_edge():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    for t in (x, tensor([2.0])):
        with pytest.raises(errors.NotRecordedError, match=r"get_gradient_edge: no manager.*shape \(1,\)"):
            get_gradient_edge(t)
    with pytest.raises(TypeError, match="get_gradient_edge takes a Tensor; found int"):
        get_gradient_edge(3)
    with gm:
        edge = get_gradient_edge(x * 2)
    with pytest.raises(errors.RecordingError, match="freed by backward"):
        grad(edge, x)


def test_an_edge_of_unknown_shape_says_so():
    x = tensor([1.0])
    with GradManager().attach(x):
        y = x * 2
        edge = get_gradient_edge(y)
        bare = GradientEdge(Node(edge.node._tape, edge.node._node_id, "multiply"), 0)
        with pytest.raises(RuntimeError, match="its shape is not known; pass the tensor itself"):
            grad(bare, x, np.ones(1))


# ---------------------------------------------------------------- what is said of memory


def test_increment_version_with_hooks_and_nodes():
    x, buffer = tensor([1.0, 2.0]), np.ones(2)
    gm = GradManager().attach(x)
    with gm:
        y = x * buffer
        y.register_hook(lambda g: g)
        node = y.grad_fn
        graph.increment_version([buffer])
        assert y.grad_fn == node
        assert names(node) == [("AccumulateGrad", 0)]
        with pytest.raises(errors.StaleValueError, match="multiply"):
            gm.backward(y.sum())
    assert x.grad is None


def test_increment_version_ignores_freed_histories():
    buffer = np.ones(2)
    graph.increment_version(buffer)
    graph.increment_version((buffer, tensor([1.0])))
    assert buffer.tolist() == [1.0, 1.0]


def test_mutation_is_always_allowed():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm, graph.allow_mutation_on_saved_tensors() as ctx:
        y = x * 1
        z = (y * y).sum()
        y *= 0
        ctx.clear()
        gm.backward(z)
    assert x.grad.tolist() == [2.0, 4.0]


def test_nodes_from_several_threads():
    x, failures = tensor([1.0]), []

    def work():
        try:
            for _ in range(20):
                with GradManager().attach(x) as gm:
                    y = x
                    for _ in range(30):
                        y = y * 2
                        assert isinstance(y.grad_fn, Node)
                        y.grad_fn.register_prehook(lambda gs: None)
                    gm.backward(y)
        except BaseException as error:  # the test raises any error of a thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert x.grad.tolist() == [80 * 2.0**30]
    assert isinstance(x, Tensor)
