"""Declarations of ops: what the rules may name, what is kept, several results, what rules share."""

import contextlib
import inspect

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, functional, gradcheck, gradgradcheck, tensor
from gradmgr._engine.custom import custom, several
from gradmgr._engine.elementwise import elementwise
from gradmgr._engine.entry import KINDS, VJPS
from gradmgr._engine.op import OPS
from gradmgr._engine.tensor import Tensor


@contextlib.contextmanager
def declaring():
    """Leave the op table as it was."""
    tables = [OPS, VJPS, KINDS]
    before = [dict(t) for t in tables]
    try:
        yield
    finally:
        for t, old in zip(tables, before, strict=True):
            t.clear()
            t.update(old)


@pytest.fixture
def counted():
    """A cell of two inputs and two results, and how often its shared part was computed."""
    calls = []

    def both(g, x, y):
        calls.append(1)
        product = 0 if g[0] is None else g[0]
        return product, (0 if g[1] is None else g[1])

    def gives(part, times):
        return part * times if isinstance(part, (np.ndarray, Tensor)) else None

    def total(*parts):
        there = [part for part in parts if part is not None]
        return sum(there[1:], there[0]) if there else None

    with declaring():
        yield (
            several(
                "test.cell",
                lambda x, y, scale: (scale * x * y, x * x + y),
                ("product", "mixed"),
                vjp={
                    "x": lambda g, x, y, scale, shared: total(gives(shared[0], scale * y), gives(shared[1], 2 * x)),
                    "y": lambda g, x, scale, shared: total(gives(shared[0], scale * x), gives(shared[1], 1)),
                },
                jvp={
                    "x": lambda t, x, y, scale: (scale * t * y, 2 * t * x),
                    "y": lambda t, x, scale: (scale * t * x, t),
                },
                shared=both,
            ),
            calls,
        )


def points():
    random = np.random.default_rng(3)
    return tensor(random.normal(size=(2, 3))), tensor(random.normal(size=(2, 3)))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_several_results_of_several_inputs(counted, used):
    cell, _ = counted
    x, y = points()

    def call(x, y):
        made = cell(x, y, 3.0)
        return tuple(gnp.sin(made[k]) for k in used)

    assert gradcheck(call, (x, y), check_forward_ad=True)
    assert gradgradcheck(call, (x, y), check_fwd_over_rev=True)


def test_one_of_the_inputs_may_be_constant(counted):
    cell, _ = counted
    x, y = points()
    assert gradcheck(lambda x: cell(x, y.numpy(), 3.0), (x,))
    assert gradgradcheck(lambda y: cell(x.numpy(), y, 3.0), (y,))
    assert isinstance(cell(x.numpy(), y.numpy(), 3.0)[0], np.ndarray)


def test_the_shared_part_is_computed_once_for_all_rules(counted):
    cell, calls = counted
    x, y = points()
    gm = GradManager().attach([x, y])
    with gm:
        product, mixed = cell(x, y, 3.0)
        gm.backward([product, mixed], [np.ones((2, 3)), np.ones((2, 3))])
    assert len(calls) == 1
    np.testing.assert_allclose(x.grad, 3 * y.numpy() + 2 * x.numpy())
    np.testing.assert_allclose(y.grad, 3 * x.numpy() + 1)


def test_create_graph_goes_through_results_and_shared(counted):
    cell, _ = counted
    x, y = points()

    def slope(x):
        product, mixed = cell(x, y, 3.0)
        return (product * mixed).sum()

    found = functional.hessian(slope, x)
    assert found.shape == (2, 3, 2, 3)
    numeric = functional.jacobian(functional.grad(slope), x, strategy="forward-mode", vectorize=True)
    np.testing.assert_allclose(found, numeric, atol=1e-12)


def test_what_the_shared_part_names_is_kept_only_when_it_is_needed():
    with declaring():
        op = custom(
            "test.keeps",
            lambda x, y: x * y,
            vjp={"x": lambda g, shared: shared, "y": lambda g, x: g * x},
            jvp={"x": lambda t, y: t * y, "y": lambda t, x: t * x},
            shared=lambda g, y: g * y,
        )
        x, y = points()
        with GradManager().attach(y) as gm:
            op(x, y)
            ((*_, kept),) = gm._tape.entries
            assert kept[0] is x._array
            assert kept[1:] == (None, None)
        with GradManager().attach(x) as gm:
            z = op(x, y)
            ((*_, kept),) = gm._tape.entries
            assert kept[0] is None
            assert kept[1] is y._array
            gm.backward(z.sum())
        np.testing.assert_allclose(x.grad, y.numpy())


def test_the_rules_must_name_what_there_is():
    with declaring():
        with pytest.raises(TypeError, match=r"asks for 'shared'; it may ask for x, out, shape"):
            custom("test.none", lambda x: x, vjp={"x": lambda g, shared: g}, jvp={"x": lambda t: t})
        with pytest.raises(TypeError, match="asks for 'shape'; it may ask for x, out"):
            custom(
                "test.no_shape",
                lambda x: x,
                vjp={"x": lambda g, shared: g},
                jvp={"x": lambda t: t},
                shared=lambda g, shape: g,
            )
        with pytest.raises(TypeError, match="in order"):
            several("test.order", lambda x, y: (x, y), ("a", "b"), vjp={"y": lambda g: g}, jvp={"y": lambda t: t})


def test_help_names_the_operands_before_and_after_the_first_call():
    with declaring():
        fresh = elementwise("fresh", np.multiply, "g * y", "g * x", operate="x * y")
        for _ in range(2):
            assert str(inspect.signature(fresh)) == "(x, y, /, out=None, where=True, dtype=None)"
            assert str(inspect.signature(fresh.operator)) == "(x, y, /)"
            assert str(inspect.signature(fresh.reflected)) == "(y, x, /)"
            np.testing.assert_array_equal(fresh(tensor([2.0]), 3.0).numpy(), [6.0])
            np.testing.assert_array_equal(fresh.operator(tensor([2.0]), 3.0).numpy(), [6.0])
            np.testing.assert_array_equal(fresh.reflected(tensor([2.0]), 3.0).numpy(), [6.0])
