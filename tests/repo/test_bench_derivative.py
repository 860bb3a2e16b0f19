"""The programs of the suite `derivative` compute what their names say, and all libraries agree on their gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bench import derivative
from bench._measure import Pace, WrongAnswerError
from bench.derivative import libraries, programs

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)
SMALL = {
    "gmm": lambda: programs.gmm(d=3, k=4, n=6),
    "lstm": lambda: programs.lstm(layers=2, characters=5, bits=3),
    "logsumexp": lambda: programs.logsumexp(40),
    "logsumexp by parts": lambda: programs.logsumexp_by_parts(40),
    "k-means": lambda: programs.kmeans(k=3, n=20, d=2),
    "ode": lambda: programs.ode(n=9, steps=3),
    "determinant": lambda: programs.determinant(4),
}


@pytest.fixture(scope="module")
def found():
    return libraries.installed(1)


# ---------------------------------------------------------------- the values, by loops over numbers


def _gmm(program):
    """Straight from the density: a mixture of Gaussians with precision Q'Q, times a Wishart prior."""
    (alphas, means, icf), x = program.parameters, program.constants["x"]
    d, factors = x.shape[1], []
    for row in icf:
        q, rest = np.diag(np.exp(row[:d])), iter(row[d:])
        for column in range(d):  # ADBench's order
            for line in range(column + 1, d):
                q[line, column] = next(rest)
        factors.append(q)
    total = 0.0
    weights = np.exp(alphas) / np.exp(alphas).sum()
    for point in x:
        density = 0.0
        for weight, mean, q in zip(weights, means, factors, strict=True):
            distance = ((q @ (point - mean)) ** 2).sum()
            density += weight * (2 * math.pi) ** (-d / 2) * np.linalg.det(q) * math.exp(-distance / 2)
        total += math.log(density)
    for q in factors:  # ADBench's prior: + gamma^2 / 2 |Q|^2 - m log det Q - log of the norm, with gamma 1 and m 0
        freedom = d + 1
        log_gamma = d * (d - 1) / 4 * math.log(math.pi) + sum(math.lgamma((freedom - j) / 2) for j in range(d))
        total += (q**2).sum() / 2 - (freedom * d * math.log(1 / math.sqrt(2)) - log_gamma)
    return total


def _sigmoid(x):
    return 1 / (1 + math.exp(-x))


def _lstm(program):
    (main, extra), state, text = program.parameters, program.constants["state"].copy(), program.constants["text"]
    total, bits = 0.0, text.shape[1]
    for seen, wanted in itertools.pairwise(text):
        given = [seen[b] * extra[0, b] for b in range(bits)]
        for layer in range(len(main) // 2):
            weight, bias = main[2 * layer].reshape(4, bits), main[2 * layer + 1].reshape(4, bits)
            hidden, cell = state[2 * layer], state[2 * layer + 1]
            for b in range(bits):
                forget = _sigmoid(given[b] * weight[0, b] + bias[0, b])
                ingate = _sigmoid(hidden[b] * weight[1, b] + bias[1, b])
                outgate = _sigmoid(given[b] * weight[2, b] + bias[2, b])
                change = math.tanh(hidden[b] * weight[3, b] + bias[3, b])
                cell[b] = cell[b] * forget + ingate * change
                hidden[b] = outgate * math.tanh(cell[b])
            given = list(hidden)
        y = [given[b] * extra[1, b] + extra[2, b] for b in range(bits)]
        norm = math.log(sum(math.exp(v) for v in y) + 2)
        total += sum(wanted[b] * (y[b] - norm) for b in range(bits))
    return -total / ((len(text) - 1) * bits)


def _logsumexp(program):
    return math.log(sum(math.exp(v) for v in program.parameters[0]))


def _kmeans(program):
    (centroids,), points = program.parameters, program.constants["points"]
    return sum(min(math.dist(point, centroid) ** 2 for centroid in centroids) for point in points)


def _ode(program):
    (x,), steps = program.parameters, program.constants["steps"]
    n, h, y = len(x), 2 / steps, [0.0] * len(x)

    def slope(y):
        return [x[0], *[x[i] * y[i - 1] for i in range(1, n)]]

    for _ in range(steps):
        k1 = slope(y)
        k2 = slope([y[i] + h * k1[i] / 2 for i in range(n)])
        k3 = slope([y[i] + h * k2[i] / 2 for i in range(n)])
        k4 = slope([y[i] + h * k3[i] for i in range(n)])
        y = [y[i] + h * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]) / 6 for i in range(n)]
    return sum(y)


NAIVE = {
    "gmm": _gmm,
    "lstm": _lstm,
    "logsumexp": _logsumexp,
    "logsumexp by parts": _logsumexp,
    "k-means": _kmeans,
    "ode": _ode,
    "determinant": lambda program: np.linalg.det(program.parameters[0]),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_program_is_what_it_is_called(name):
    program = SMALL[name]()
    assert libraries.numpy_alone(program)(*program.parameters) == pytest.approx(NAIVE[name](program), rel=1e-12)


def test_the_ode_is_solved():
    program = programs.ode(n=3, steps=50)
    (x,) = program.parameters
    at_2 = [2 * x[0], 2 * x[0] * x[1], 4 / 3 * x[0] * x[1] * x[2]]
    assert libraries.numpy_alone(program)(x) == pytest.approx(sum(at_2), rel=1e-6)


# ---------------------------------------------------------------- the derivatives


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_difference_quotients(name):
    program = SMALL[name]()
    function, gradmgr = libraries.numpy_alone(program), libraries.Gradmgr(1)
    for _ in range(2):  # nothing of the first time must be left
        value, *gradients = [gradmgr.plain(part) for part in gradmgr.differentiated(program)()]
    assert value == pytest.approx(function(*program.parameters))
    for k, parameter in enumerate(program.parameters):
        for place in np.ndindex(parameter.shape):
            ends = []
            for move in (1e-6, -1e-6):
                moved = [a.copy() for a in program.parameters]
                moved[k][place] += move
                ends.append(function(*moved))
            assert gradients[k][place] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


def test_the_hessian_of_kmeans_is_twice_the_number_of_the_nearest():
    program = SMALL["k-means"]()
    (centroids,), points = program.parameters, program.constants["points"]
    nearest = [min(range(3), key=lambda k: math.dist(point, centroids[k])) for point in points]
    _, _, diagonal = libraries.Gradmgr(1).differentiated(program)()
    for k in range(3):
        np.testing.assert_allclose(diagonal.numpy()[k], 2.0 * nearest.count(k))


@pytest.mark.parametrize("name", SMALL)
def test_every_installed_library_gives_the_same(name, found):
    row = derivative.measured(SMALL[name](), found, NO_TIME, {"NumPy µs": 2.0, "nobody": 1.0})
    assert row.cells.keys() == {"NumPy µs", *(library.name for library in found)}
    assert [verdict.what for verdict in row.verdicts] == ["gradmgr / NumPy"]


class _Wrong(libraries.Gradmgr):
    """Gives gradients that are 1 % off."""

    def __init__(self, threads):
        super().__init__(threads, "wrong")

    def differentiated(self, program):
        right = super().differentiated(program)

        def wrong():
            value, *gradients = right()
            return [value, *[g * 1.01 for g in gradients]]

        return wrong


@pytest.mark.parametrize("others", [[], [libraries.Gradmgr(1)]], ids=["alone", "beside another"])
def test_a_wrong_gradient_is_rejected(others):
    with pytest.raises(WrongAnswerError, match="wrong"):
        derivative.measured(SMALL["gmm"](), [*others, _Wrong(1)], NO_TIME, {})


# ---------------------------------------------------------------- the table


def test_a_table_has_a_row_for_every_program():
    entries = [(made, limits, slow) for made, (_, limits, slow) in zip(SMALL.values(), derivative.PROGRAMS)]  # noqa: B905  # one determinant is enough
    (table,) = derivative.tables(NO_TIME, 1, entries=entries)
    assert len(table.rows) == len(SMALL)
    assert all(row.cells.keys() <= table.columns.keys() for row in table.rows)
    assert all(row.cells["gradmgr"] > 0 for row in table.rows)


def test_a_row_may_be_asked_for_by_its_label():
    (table,) = derivative.tables(NO_TIME, 1, "determinant n=5")
    assert [row.label for row in table.rows] == ["determinant n=5"]
    assert not list(derivative.tables(NO_TIME, 1, "no such row"))


def test_slow_libraries_are_left_out_of_a_quick_run(found):
    quick, full = (Pace(1, 1, 0.0, long_rounds) for long_rounds in (2, 9))
    assert derivative._chosen(found, ("gradmgr",), quick) == found[1:]
    assert derivative._chosen(found, ("gradmgr",), full) == found
