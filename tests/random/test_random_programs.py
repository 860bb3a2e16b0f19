"""Random programs: every value and every gradient against the naive engine of reference.py.

A program is a list of (instruction, seed). Each instruction runs on two machines in step: gradmgr's,
which writes in place, shares buffers and records, and the reference's, which only ever makes new Nodes.
A variable is a Cell; two slots may hold the same Cell, as two names may hold the same Tensor.
"""

import contextlib
import operator

import numpy as np
import pytest
import reference
from helpers import assert_allclose
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, no_grad, tensor
from gradmgr._engine.entry import VJPS

SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3), (3, 3), (2, 1, 3), (1,)]
LARGEST = 10.0  # values above are squashed, so that a program's numbers stay comparable
MOST = 60  # elements of a variable


class Cell:
    """One variable: what it is to gradmgr and what it is to the reference."""

    def __init__(self, t, n):
        self.t, self.n = t, n

    def write(self, n):
        self.n = n

    def change(self, operate, value):
        """Let an operator change the Tensor in place, unless it is a number, of which it makes another one."""
        kept = self.t
        self.t = operate(self.t, value)
        assert kept is self.t or not kept.ndim

    def scale(self, factor):
        self.change(operator.imul, factor)


class Program:
    def __init__(self, managers, seed):
        self.rng = np.random.default_rng(seed)
        self.managers = managers
        self.cells = []
        self.leaves = [{} for _ in managers]  # by manager: Cell -> the Node it was when attached
        self.snapshots = []  # (array or Tensor that must not change, what it was)
        for shape in (SHAPES[k] for k in self.rng.integers(0, len(SHAPES), 4)):
            values = self.rng.uniform(-2, 2, shape)
            self.cells.append(Cell(tensor(values), reference.node(values)))
        for k in range(len(managers)):
            for cell in self.cells:
                if self.rng.random() < 0.7:
                    self.attach(k, cell)

    # ------------------------------------------------------------ drawing

    def seeded(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, matches=lambda cell: True):
        found = [cell for cell in self.cells if matches(cell)]
        return found[self.rng.integers(len(found))] if found else None

    def pair(self, matches):
        """A cell and another, or the same, whose shapes match."""
        one = self.pick()
        return one, self.pick(lambda other: matches(one.n.shape, other.n.shape))

    def index(self, shape):
        """An index of some kind that selects something."""
        if not shape:
            return [(), ..., None][self.rng.integers(3)]
        n = shape[0]
        kinds = [
            int(self.rng.integers(-n, n)),
            slice(0, max(1, n - 1)),
            slice(None, None, -1),
            (None, slice(None)),
            (..., int(self.rng.integers(shape[-1]))),
            self.rng.integers(0, n, 3),
            self.rng.integers(0, n, (2, 2)),
            [0, 0, n - 1],
            self.rng.random(shape) < 0.6,
            (..., slice(None, None, -1), None),
            (np.array([0, n - 1]), ...),
            (tuple(self.rng.integers(0, m, 4) for m in shape)),
        ]
        return kinds[self.rng.integers(len(kinds))]

    # ------------------------------------------------------------ state

    def attach(self, k, cell):
        """Let `cell`, unless it is one, be a variable of manager k: what was computed from it before is not its own."""
        if cell not in self.leaves[k]:
            cell.n = reference.same(cell.n)
            self.leaves[k][cell] = cell.n
        self.managers[k].attach(cell.t)

    def add(self, t, n):
        if 0 < np.size(n.value) <= MOST:
            if np.abs(n.value).max() > LARGEST:
                t, n = gnp.tanh(t), reference.tanh(n)
            self.cells.append(Cell(t, n))

    def written(self, cell, n):
        cell.write(n)
        if np.abs(n.value).max() > LARGEST:
            cell.scale(0.125)
            cell.write(n * 0.125)

    def write(self, cell, change, n):
        """Change a cell's Tensor in place; a view of one in use cannot be written to, so then a copy of it."""
        try:
            change(cell)
        except errors.LostWriteError:
            cell = Cell(cell.t.clone(), cell.n)
            self.cells.append(cell)
            change(cell)
        self.written(cell, n)

    def check_values(self):
        for cell in self.cells:
            assert isinstance(cell.t, Tensor)
            assert_allclose(cell.t.numpy(), cell.n.value, rtol=1e-9, atol=1e-11, strict=True)
        for held, was in self.snapshots:
            np.testing.assert_array_equal(held.numpy() if isinstance(held, Tensor) else held, was)


# ---------------------------------------------------------------- instructions


def broadcasts(one, other):
    try:
        return np.prod(np.broadcast_shapes(one, other)) <= MOST
    except ValueError:
        return False


def broadcasts_into(one, other):
    return broadcasts(one, other) and np.broadcast_shapes(one, other) == one


def multiplies(one, other):
    return min(len(one), len(other)) >= 2 and one[-1] == other[-2] and broadcasts(one[:-2], other[:-2])


BINARY = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / (y * y + 1.5),
}
UNARY = {
    "exp": lambda xp, x: xp.exp(xp.sin(x)),
    "tanh": lambda xp, x: xp.tanh(x),
    "sin": lambda xp, x: xp.sin(x),
    "sum": lambda xp, x: xp.sum(x),
    "sum_last": lambda xp, x: xp.sum(x, axis=-1, keepdims=True) if x.ndim else x * 2.0,
    "mean": lambda xp, x: xp.mean(x),
    "mean_first": lambda xp, x: xp.mean(x, axis=0) if x.ndim else 1.0 - x,
    "reshape": lambda xp, x: xp.reshape(x, (-1, 1)),
    "ravel": lambda xp, x: xp.reshape(x, (-1,)),
    "transpose": lambda xp, x: xp.transpose(x, tuple(range(x.ndim))[::-1]),
    "roll_axes": lambda xp, x: xp.transpose(x, (*range(1, x.ndim), 0)) if x.ndim else -x,
    "broadcast": lambda xp, x: xp.broadcast_to(x, (2, *x.shape)),
    "with_array": lambda xp, x: np.full(x.shape, 0.75) * x + np.arange(3.0).reshape((3,) + (1,) * x.ndim),
    "gram": lambda xp, x: x @ xp.transpose(x, (1, 0)) if x.ndim == 2 else x**2,
    "reciprocal": lambda xp, x: 2 / (x**2 + 1),
}


def do_binary(p, name):
    one, other = p.pair(broadcasts)
    if other is not None:
        p.add(BINARY[name](one.t, other.t), BINARY[name](one.n, other.n))


def do_unary(p, name):
    cell = p.pick()
    p.add(UNARY[name](gnp, cell.t), UNARY[name](reference, cell.n))


def do_matmul(p):
    one, other = p.pair(multiplies)
    if other is not None:
        p.add(one.t @ other.t, one.n @ other.n)


def do_get(p):
    cell = p.pick()
    index = p.index(cell.n.shape)
    p.add(cell.t[index], cell.n[index])


def do_set(p):
    cell = p.pick()
    index = p.index(cell.n.shape)
    place = cell.n.value[index].shape
    value = p.pick(lambda other: broadcasts_into(place, other.n.shape))
    if value is None:
        numbers = p.rng.uniform(-1, 1, place)
        value = Cell(numbers, reference.node(numbers))
    p.write(cell, lambda c: c.t.__setitem__(index, value.t), reference.put(cell.n, index, value.n))


def do_fill(p):
    cell = p.pick()
    p.write(cell, lambda c: c.t.__setitem__(..., 0.5), reference.put(cell.n, ..., reference.node(0.5)))


def do_iadd(p):
    cell, other = p.pair(broadcasts_into)
    if other is not None:
        p.write(cell, lambda c: c.change(operator.iadd, other.t), cell.n + other.n)


def do_imul(p):
    cell, other = p.pair(broadcasts_into)
    if other is not None:
        p.write(cell, lambda c: c.change(operator.imul, other.t), cell.n * other.n)


def do_isub_number(p):
    cell = p.pick()
    p.write(cell, lambda c: c.change(operator.isub, 0.25), cell.n - 0.25)


def do_itruediv_array(p):
    cell = p.pick()
    by = p.rng.uniform(1, 2, cell.n.shape)
    p.write(cell, lambda c: c.change(operator.itruediv, by), cell.n / reference.node(by))


def do_sin_out(p):
    cell, other = p.pair(lambda one, two: one == two)
    p.write(other, lambda c: gnp.sin(cell.t, out=c.t), reference.sin(cell.n))


def do_slice_and_write(p):
    """A view of a variable becomes a variable; then that, or a copy of the view, is written to."""
    cell = p.pick()
    index = [..., slice(None, None, -1), slice(0, 1), None][p.rng.integers(4)] if cell.n.ndim else ...
    piece = Cell(cell.t[index], cell.n[index])
    p.cells.append(piece)
    target = piece if p.rng.random() < 0.5 else cell
    p.write(target, lambda c: c.scale(0.5), target.n * 0.5)


def do_alias(p):
    """Another name for the same Tensor: it is written to under both."""
    p.cells.append(p.pick())


def do_detach(p):
    cell = p.pick()
    p.cells.append(Cell(cell.t.detach(), reference.node(cell.n.value)))


def do_clone(p):
    cell = p.pick()
    p.add(cell.t.clone(), reference.same(cell.n))


def do_snapshot(p):
    cell = p.pick()
    p.snapshots.append((cell.t.numpy(), cell.t.numpy().copy()))
    p.snapshots.append((cell.t.detach(), cell.t.numpy().copy()))


def do_no_grad(p):
    cell = p.pick()
    with no_grad():
        p.add(gnp.sin(cell.t) * 2.0, reference.node(np.sin(cell.n.value) * 2))


def do_write_under_no_grad(p):
    cell = p.pick()
    with no_grad():
        p.write(cell, lambda c: c.scale(0.5), reference.node(cell.n.value * 0.5))


def do_attach(p):
    p.attach(int(p.rng.integers(len(p.managers))), p.pick())


def do_overwrite_attached(p):
    """A leaf is written to: its gradient stays that of the value it was attached with."""
    cells = [cell for leaves in p.leaves for cell in leaves]
    if cells:
        cell = cells[p.rng.integers(len(cells))]
        p.write(cell, lambda c: c.scale(1.5), cell.n * 1.5)


def do_drop(p):
    """A name goes; the history needs what it held."""
    if len(p.cells) > 4:
        p.cells.pop(int(p.rng.integers(4, len(p.cells))))


INSTRUCTIONS = {
    **{name: lambda p, name=name: do_binary(p, name) for name in BINARY},
    **{name: lambda p, name=name: do_unary(p, name) for name in UNARY},
    **{name.removeprefix("do_"): f for name, f in globals().items() if name.startswith("do_")},
}
del INSTRUCTIONS["binary"], INSTRUCTIONS["unary"]

programs = st.lists(st.tuples(st.sampled_from(sorted(INSTRUCTIONS)), st.integers(0, 2**20)), min_size=8, max_size=24)
seeds = st.integers(0, 2**20)
bounded = settings(
    derandomize=True, deadline=None, max_examples=500, database=None, suppress_health_check=list(HealthCheck)
)


def execute(p, program):
    for name, seed in program:
        p.seeded(seed)
        INSTRUCTIONS[name](p)
        p.check_values()


# ---------------------------------------------------------------- gradients


def known_outputs(p, rng):
    """Up to three variables that the innermost manager tracks; perhaps one of them twice."""
    reached = [
        cell
        for cell in p.cells
        if any(g is not None for g in reference.grad([cell.n], [np.ones(cell.n.shape)], list(p.leaves[-1].values())))
    ]
    return [reached[k] for k in rng.integers(0, len(reached), min(3, len(reached)))] if reached else []


def cotangents(p, outputs, rng):
    """Arrays, Tensors and, where a variable has the shape, the variable's own present value."""
    dys = []
    for cell in outputs:
        values = rng.uniform(-1, 1, cell.n.shape)
        same_shape = [other for other in p.cells if other.n.shape == cell.n.shape]
        choice = rng.integers(3)
        if choice == 0:
            dys.append((values, reference.node(values)))
        elif choice == 1:
            dys.append((tensor(values), reference.node(values)))
        else:
            other = same_shape[rng.integers(len(same_shape))]
            dys.append((other.t, other.n))
    return [t for t, _ in dys], [n for _, n in dys]


def assert_gradient(found, expected, shape, *, times=1):
    """A gradient that the reference finds zero by a path may be absent, one it finds no path to must be."""
    if expected is None:
        assert found is None or not np.any(found.numpy()), "a gradient where no path leads"
        return
    value = np.zeros(shape) if found is None else found.numpy()
    assert_allclose(value, expected.value * times, rtol=1e-8, atol=1e-9, strict=True)


def first_order(seed, program, retain):
    gm = GradManager()
    rng = np.random.default_rng(seed)
    with contextlib.ExitStack() as stack:
        if rng.random() < 0.5:
            stack.enter_context(gm)
            p = Program([gm], seed)
        else:
            p = Program([gm], seed)
            stack.enter_context(gm)
        execute(p, program)
        outputs = known_outputs(p, rng)
        if not outputs:
            return
        dys, seeds_of_reference = cotangents(p, outputs, rng)
        gm.backward([cell.t for cell in outputs], dys, retain=retain)
        if retain:
            gm.backward([cell.t for cell in outputs], dys)
        cells, nodes = list(p.leaves[0]), list(p.leaves[0].values())
        expected = reference.grad([cell.n for cell in outputs], seeds_of_reference, nodes)
        for cell, n, g in zip(cells, nodes, expected, strict=True):
            assert_gradient(cell.t.grad, g, n.shape, times=2 if retain else 1)
        attached = {cell.t for cell in cells}
        assert all(cell.t.grad is None for cell in p.cells if cell.t not in attached)
    p.check_values()


def second_order(seed, program):
    """Outer entered first; inner.backward; a function of the gradients; outer.backward."""
    outer, inner = GradManager(), GradManager()
    rng = np.random.default_rng(seed)
    with outer, inner:
        p = Program([outer, inner], seed)
        execute(p, program)
        outputs = known_outputs(p, rng)
        if not outputs:
            return
        dys, seeds_of_reference = cotangents(p, outputs, rng)
        inner.backward([cell.t for cell in outputs], dys)
        cells, nodes = list(p.leaves[1]), list(p.leaves[1].values())
        first = reference.grad([cell.n for cell in outputs], seeds_of_reference, nodes)
        for cell, n, g in zip(cells, nodes, first, strict=True):
            assert_gradient(cell.t.grad, g, n.shape)
        pairs = [(cell.t.grad, g) for cell, g in zip(cells, first, strict=True) if cell.t.grad is not None]
        loss_t = sum((gnp.sum(gnp.sin(t) * t) for t, _ in pairs), start=tensor(0.0))
        loss_n = sum((reference.sum(reference.sin(n) * n) for _, n in pairs), start=reference.node(0.0))
        for cell in p.cells:
            cell.t.grad = None
        outer_cells, outer_nodes = list(p.leaves[0]), list(p.leaves[0].values())
        second = reference.grad([loss_n], [np.array(1.0)], outer_nodes)
        for cell in outer_cells:
            cell.t.grad = None
        try:
            outer.backward(loss_t)
        except gradmgr.errors.NotRecordedError:  # the derivative does not depend on what outer tracks
            assert all(g is None or not np.any(g.value) for g in second)
            return
        for cell, n, g in zip(outer_cells, outer_nodes, second, strict=True):
            assert_gradient(cell.t.grad, g, n.shape)


@bounded
@given(seeds, programs, st.booleans())
def test_gradients_are_those_of_the_reference(seed, program, retain):
    first_order(seed, program, retain)


@bounded
@given(seeds, programs)
def test_second_derivatives_are_those_of_the_reference(seed, program):
    second_order(seed, program)


# ---------------------------------------------------------------- the reference and the comparison, tested themselves

SMOOTH = {
    **{name: (lambda x, y, f=f: f(x, y)) for name, f in BINARY.items()},
    **{name: (lambda x, y, f=f: f(reference, x)) for name, f in UNARY.items()},
    "matmul": lambda x, y: x @ reference.transpose(y, (1, 0)),
    "get": lambda x, y: x[[0, 0, 1], ::-1],
    "put": lambda x, y: reference.put(x, ([0, 0, 1], 1), y[..., 0, :]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_reference_agrees_with_central_differences(name):
    rng = np.random.default_rng(0)
    x0, y0, direction = rng.uniform(-1, 1, (3, 2, 3))

    def loss(x, y):
        return reference.sum(reference.sin(SMOOTH[name](x, y)) * 2.0)

    def slope_along(x, y):
        g = reference.grad([loss(x, y)], [1.0], [x])[0]
        return g, reference.sum(g * direction)

    def numeric(f, step=1e-6):
        up, down = reference.node(x0 + step * direction), reference.node(x0 - step * direction)
        return (f(up, reference.node(y0)).value - f(down, reference.node(y0)).value) / (2 * step)

    x, y = reference.node(x0), reference.node(y0)
    _, slope = slope_along(x, y)
    assert_allclose(slope.value, numeric(loss), rtol=1e-7)
    (second,) = reference.grad([slope], [1.0], [x])
    expected = numeric(lambda x, y: slope_along(x, y)[1])
    assert_allclose(np.sum(second.value * direction), expected, rtol=1e-6, atol=1e-8)


def off_by_a_thousandth(vjp):
    def wrong_vjp(entry, g, grads, owned):
        vjp(entry, g * 1.001, grads, owned)

    return wrong_vjp


@pytest.mark.parametrize("code", ["sin.x", "multiply.xy", "getitem", "setitem", "matmul.xy", "sum"])
def test_a_rule_a_thousandth_off_is_noticed(code, monkeypatch):
    program = [("sin", 1), ("matmul", 2), ("get", 3), ("set", 4), ("multiply", 5), ("sum_last", 6), ("imul", 7)]
    program += [(name, seed + 100) for name, seed in program]

    def run():
        for seed in range(40):
            first_order(seed, program, retain=False)

    run()
    monkeypatch.setitem(VJPS, code, off_by_a_thousandth(VJPS[code]))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run()


def test_a_view_that_changes_with_its_origin_is_noticed():
    p = Program([GradManager()], 0)
    cell = Cell(tensor([1.0, 2.0]), reference.node([1.0, 2.0]))
    p.cells = [cell, Cell(cell.t[:1], cell.n[:1])]
    p.check_values()
    cell.t._array[0] = 5.0  # unseen by the engine
    with pytest.raises(AssertionError):
        p.check_values()
