"""What a listener is told: a function's steps, computed again of other values, give what the function gives of them.

Each program runs four times: as it is on two sets of values, with a listener on the first, and then only the steps
that the listener was told of, on the second. That listening changes no bit is tested along with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from helpers import each_case, tracks
from samples import SAMPLES, Sample, flat, seeds

import gradmgr.numpy as gnp
from gradmgr import (
    Function,
    GradManager,
    Tensor,
    asarray,
    backward,
    checkpoint,
    custom_op,
    distributions,
    functional,
    grad,
    nn,
    vmap,
)
from gradmgr._arrays.batched import Batched
from gradmgr._arrays.listening import set_listener
from gradmgr._compile.log import Log
from gradmgr._compile.steps import Compute, Guard, Whole
from gradmgr._engine.context import Intercepting
from gradmgr._engine.tensor import wrap
from gradmgr.errors import DtypeError


class AnotherProgramError(Exception):
    """The steps are not those that the function would take: it decides something else."""


class ObstacleError(Exception):
    """The listener says that it is not told of all."""


def listening(log: Log, function: Callable[..., Any], *args: Any) -> Any:
    with Intercepting(log):
        set_listener(log)
        try:
            return function(*args)
        finally:
            set_listener(None)


class Again:
    """Steps computed again, with other arrays in the place of some; `table` has these by the identity of the first."""

    def __init__(self, log: Log, table: dict[int, Any]) -> None:
        self.table = table
        for step in log.steps:
            if isinstance(step, Guard):
                if step.read(*self.new(step.args)) != step.found:
                    raise AnotherProgramError
            elif isinstance(step, (Compute, Whole)):
                self.enter(step.result, step.function(*self.new(step.args), **self.new(step.keywords)))

    def new(self, value: Any) -> Any:
        """Return a value with the arrays of the present run."""
        if isinstance(value, (np.ndarray, np.generic)):
            return self.table.get(id(value), value)
        if value.__class__ is Batched:
            return Batched(value.level, self.new(value._array))
        if isinstance(value, Tensor):
            return wrap(self.new(value._array))
        if isinstance(value, tuple):
            parts = [self.new(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value.__class__ is list:
            return [self.new(part) for part in value]
        if value.__class__ is dict:
            return {name: self.new(part) for name, part in value.items()}
        if value.__class__ is slice:
            return slice(self.new(value.start), self.new(value.stop), self.new(value.step))
        return value

    def enter(self, old: Any, made: Any) -> None:
        """Let what a step returns stand for what it returned to the function."""
        if isinstance(old, np.bool_):  # there are only two
            if bool(made) != bool(old):
                raise AnotherProgramError
        elif isinstance(old, (np.ndarray, np.generic)):
            if (np.shape(made), made.dtype) != (old.shape, old.dtype):
                raise AnotherProgramError
            self.table[id(old)] = made
        elif isinstance(old, (Batched, Tensor)):
            self.enter(old._array, made._array)
        elif isinstance(old, dict):
            self.enter(tuple(old.values()), tuple(made.values()))
        elif isinstance(old, (tuple, list)):
            if len(old) != len(made):
                raise AnotherProgramError
            for part, new in zip(old, made, strict=True):
                self.enter(part, new)
        elif isinstance(old, (bool, int, float, complex, str)) and repr(old) != repr(made):
            raise AnotherProgramError


def arrays(values: Any) -> list[Any]:
    """The arrays of results."""
    found = [value._array if isinstance(value, Tensor) else value for value in flat(values)]
    return [a for a in found if a is None or (a is not NotImplemented and not isinstance(a, Tensor))]


def same_bits(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return (one.shape, one.dtype) == (other.shape, other.dtype) and one.tobytes() == other.tobytes()


def check_bits(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    assert len(found) == len(expected)
    different = [k for k, (a, b) in enumerate(zip(found, expected, strict=True)) if not same_bits(a, b)]
    assert not different, f"{what}: results {different} of {len(found)}: {[(found[k], expected[k]) for k in different]}"


def check_steps(
    run: Callable[..., Any], first: Sequence[Tensor], second: Sequence[np.ndarray], *expected: Sequence[np.ndarray]
) -> None:
    """Check `run` of tensors with the values of the first, and of the second, of which it returns `expected`."""
    log = Log()
    for number, t in enumerate(first):
        log.add_argument(number, t)
    table = {id(t._array): other for t, other in zip(first, second, strict=True)}
    kept = [t._array for t in first]  # so that no other array has these identities
    found = arrays(listening(log, run, *first))
    if log.obstacles:
        raise ObstacleError(log.obstacles)
    check_bits(found, expected[0], "listening changes it")
    again = Again(log, table)
    check_bits([a if a is None else again.table.get(id(a), a) for a in found], expected[1], "the steps lack something")
    assert kept


# ---------------------------------------------------------------- the table of samples

Program = Callable[[Callable[..., list[Tensor]], Sequence[Tensor], Any], Any]


def by_backward(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    with GradManager().attach(list(xs)) as gm:
        outs = [y for y in call(*xs) if tracks(gm, y)]
        dys += seeds(outs) if not dys else []
        gm.backward(outs, [asarray(d) for d in dys])
    return [*outs, *[t.grad for t in xs]]


def _twice(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any], *, nested: bool) -> list[Any]:
    with GradManager().attach(list(xs)) as outer:
        inner = GradManager().attach(list(xs)) if nested else outer
        with inner if nested else nullcontext():
            outs = [y for y in call(*xs) if tracks(inner, y)]
            dys += seeds(outs) if not dys else []
            backward(outs, [asarray(d) for d in dys], create_graph=not nested)
        gs = [t.grad for t in xs]
        tracked = [g for g in gs if g is not None and tracks(outer, g)]
        for t in xs:
            t.grad = None
        if tracked:
            outer.backward(tracked, [asarray(d) for d in seeds(tracked)])
    return [*outs, *gs, *[t.grad for t in xs]]


def by_nested_managers(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return _twice(call, xs, dys, nested=True)


def by_create_graph(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return _twice(call, xs, dys, nested=False)


def by_jvp(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    outs, tangents = functional.jvp(lambda *given: tuple(call(*given)), tuple(xs), tuple(map(asarray, seeds(xs))))
    return [*flat(outs), *flat(tangents)]


def other_values(sample: Sample, where: Sequence[int], dtype: Any) -> Iterator[list[np.ndarray]]:
    """Other arguments of a sample, the more different ones first: they may be refused, or lead elsewhere."""
    random = np.random.default_rng(zlib.crc32(str(sample).encode()) + 1)
    made, drawn, near = sample.make(dtype), sample.make(dtype), sample.make(dtype)
    for k in where:
        given = sample.args[k].values is not None or sample.args[k].constant
        drawn[k] = np.roll(made[k].ravel(), 1).reshape(made[k].shape) if given else sample.args[k].make(random, dtype)
        if made[k].dtype.kind in "fc":
            near[k] = np.asarray(made[k] * (1 + 1e-3))
    yield drawn
    yield near


# What a listener says that it is not told of: gradients of rows, values that leave for Python, iterations.
OBSTACLES = ("nn.embedding-sparse", "nn.embedding_bag", "sparse.cg", "sparse.gmres")
# A Generator is made in the call: the steps draw on.
DRAWS = ("nn.dropout-0.3", "nn.scaled_dot_product_attention-dropout")


def by_value(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    return call(*xs)


def check_sample(
    sample: Sample, program: Callable[..., list[Any]], *, constants: bool = False, dtype: Any = np.float64
) -> None:
    """Check a program of a sample; with `constants` its constant arguments are Tensors, too."""
    where, made = sample.where, sample.make(dtype)
    if constants:
        where = [k for k, a in enumerate(made) if isinstance(a, np.ndarray)]
    dys: list[Any] = []

    def run(*xs: Tensor) -> list[Any]:
        given = dict(zip(where, xs, strict=True))
        return program(lambda *xs: flat(sample.call(gnp, *_filled(made, where, xs))), list(given.values()), dys)

    def at(values: list[np.ndarray]) -> list[np.ndarray]:
        return [values[k] for k in where]

    try:
        first = arrays(run(*map(asarray, at(sample.make(dtype)))))
    except (TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError):
        if program in (by_value, by_vmap, by_derivative_within_vmap):
            return  # it takes no such arguments, or vmap refuses it
        raise
    for other in other_values(sample, where, dtype):
        if str(sample).startswith(DRAWS):
            return
        try:
            second = arrays(run(*map(asarray, at([a.copy() for a in other]))))
            check_steps(run, [asarray(a) for a in at(sample.make(dtype))], at(other), first, second)
        except ObstacleError:
            assert str(sample).startswith(OBSTACLES)
            return
        except (AnotherProgramError, ValueError, ArithmeticError, DtypeError) as error:
            last: Exception = error
        else:
            return
    raise last


def _filled(values: list[Any], where: Sequence[int], xs: Sequence[Tensor]) -> list[Any]:
    given = dict(zip(where, xs, strict=True))
    return [given.get(k, value) for k, value in enumerate(values)]


SECOND_ORDER = (by_nested_managers, by_create_graph)  # by turns


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # domains, overflows
@each_case([(s, p) for k, s in enumerate(SAMPLES) for p in (by_backward, by_jvp, SECOND_ORDER[k % 2])])
def test_steps_of_samples_and_of_their_derivatives(sample: Sample, program: Callable[..., list[Any]]) -> None:
    check_sample(sample, program)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
@each_case([(s, dtype) for s in SAMPLES for dtype in (np.float64, np.int64)])
def test_steps_of_samples_where_all_arguments_are_tensors(sample: Sample, dtype: Any) -> None:
    check_sample(sample, by_value, constants=True, dtype=dtype)


def by_vmap(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    mapped = vmap(lambda *given: tuple(call(*given)), randomness="same")
    with GradManager().attach(list(xs)) as gm:
        ys = [y for y in mapped(*[gnp.stack([x, x]) for x in xs]) if tracks(gm, y)]
        gm.backward(ys, [gnp.ones_like(y) for y in ys])
    return [*ys, *[t.grad for t in xs]]


def by_derivative_within_vmap(call: Callable[..., list[Tensor]], xs: Sequence[Tensor], dys: list[Any]) -> list[Any]:
    def derivative(*given: Tensor) -> tuple[Tensor, ...]:
        ys = [y for y in call(*given) if y.dtype.kind in "fc"]
        dys[:] = [gnp.ones_like(y) for y in ys]
        return functional.vjp(
            lambda *given: tuple([y for y in call(*given) if y.dtype.kind in "fc"]), given, tuple(dys)
        )[1]

    return flat(vmap(derivative, randomness="same")(*[gnp.stack([x, x]) for x in xs]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as above
@each_case([(s, (by_vmap, by_derivative_within_vmap)[k % 2]) for k, s in enumerate(SAMPLES[::5])])
def test_steps_of_samples_under_vmap(sample: Sample, program: Callable[..., list[Any]]) -> None:
    check_sample(sample, program)


# ---------------------------------------------------------------- programs
# Each is a function of Tensors of the shapes named, and of a Generator; modules it makes of these.

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def program(*shapes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, shapes
        return function

    return enter


def module_program(make: Callable[[], nn.Module], *shapes: Any, name: str = "") -> None:
    """Enter a training step of a module: of its parameters and buffers, which are arguments, too."""
    made = make()
    names = [name for name, _ in (*made.named_parameters(), *made.named_buffers())]
    state = [t for _, t in (*made.named_parameters(), *made.named_buffers())]

    def run(rng: np.random.Generator, *given: Tensor) -> Any:
        module, own, args = make(), given[len(shapes) :], given[: len(shapes)]
        for part in module.modules():
            if hasattr(part, "rng"):
                part.rng = rng
        parameters = [t for t in own if t.dtype.kind == "f"]
        with GradManager().attach(parameters) as gm:
            outs = [
                y for y in flat(nn.functional_call(module, dict(zip(names, own, strict=True)), args)) if y is not None
            ]
            gm.backward(sum(gnp.sum(y * y) for y in outs if y.dtype.kind == "f"))
        return [*outs, *own, *[t.grad for t in parameters]]

    PROGRAMS[name or type(made).__name__] = (
        run,
        (*shapes, *[t.shape if t.dtype.kind == "f" else t.numpy() for t in state]),
    )


def inputs_of(shapes: Sequence[Any], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.uniform(0.4, 1.6, shape) if isinstance(shape, tuple) else np.array(shape) for shape in shapes]


def check_program(name: str) -> None:
    function, shapes = PROGRAMS[name]
    rng = np.random.default_rng(0)
    expected = [arrays(function(rng, *map(asarray, inputs_of(shapes, seed)))) for seed in (0, 1)]
    rng = np.random.default_rng(0)
    assert any(not same_bits(a, b) for a, b in zip(*expected, strict=True))
    check_steps(lambda *xs: function(rng, *xs), [*map(asarray, inputs_of(shapes, 0))], inputs_of(shapes, 1), *expected)


def gradients(function: Callable[..., Any], *xs: Tensor) -> list[Any]:
    with GradManager().attach(list(xs)) as gm:
        made = flat(function(*xs))
        outs = [y for y in made if tracks(gm, y)]
        gm.backward(outs, [gnp.ones_like(y) * 1.5 for y in outs])
    found = [t.grad for t in xs]
    for t in xs:
        t.grad = None
    return [*made, *found]


def curved(w: Tensor, x: Tensor) -> Tensor:
    return gnp.sum(gnp.tanh(x @ w) * nn.functional.relu(x @ w - 1.0))


# ---------------------------------------------------------------- derivatives as functions


@program((3,), (4, 3))
def grad_and_value(rng, w, x):
    return [*functional.value_and_grad(curved)(w, x), *flat(functional.grad(curved, (0, 1))(w, x))]


@program((3,), (4, 3))
def vjp_and_jvp(rng, w, x):
    f = lambda w: gnp.sort(gnp.exp(x @ w))
    return [functional.vjp(f, w, gnp.cos(x[:, 0])), functional.jvp(f, w, gnp.sin(w))]


@program((3,), (4, 3))
def hvp_and_vhp(rng, w, x):
    f = lambda w: curved(w, x)
    return [functional.hvp(f, w, gnp.sin(w)), functional.vhp(f, w, gnp.sin(w))]


@program((3,), (4, 3))
def jacobians(rng, w, x):
    f = lambda w: nn.functional.relu(x @ w - 2.0) * w[0]
    return [
        functional.jacobian(f, w, vectorize=vectorize, strategy=strategy)
        for vectorize in (False, True)
        for strategy in ("reverse-mode", "forward-mode")
    ]


@program((3,), (4, 3))
def hessians(rng, w, x):
    f = lambda w: curved(w, x)
    return [functional.hessian(f, w, vectorize=vectorize) for vectorize in (False, True)]


@program((3,), (4, 3))
def gradient_of_a_jacobian(rng, w, x):
    f = lambda w: gnp.tanh(x @ w)
    return gradients(lambda w: functional.jacobian(f, w, create_graph=True), w)


# ---------------------------------------------------------------- vmap


@program((3,), (4, 3))
def vmap_of_values(rng, w, x):
    return [
        vmap(lambda row: gnp.sort(row * w)[::-1])(x),
        vmap(lambda row: row * 2, out_dims=1, chunk_size=2)(x),
        vmap(vmap(gnp.multiply, (None, 0)), (0, None))(w, w + 1),
    ]


@program((3,), (4, 3))
def gradients_per_example(rng, w, x):
    return vmap(functional.grad(lambda w, row: gnp.max(row * w) * gnp.sum(w)), (None, 0))(w, x)


@program((3,), (4, 3))
def vmap_within_a_manager(rng, w, x):
    return gradients(lambda w, x: vmap(lambda row: gnp.maximum(row, w) @ w)(x), w, x)


@program((3,), (4, 3))
def gradients_per_example_within_a_manager(rng, w, x):
    per_example = vmap(functional.grad(lambda w, row: gnp.sum(nn.functional.relu(row * w - 1) ** 2)), (None, 0))
    return gradients(per_example, w, x)


@program((3,), (4, 3))
def jvp_of_vmap(rng, w, x):
    return functional.jvp(lambda w: vmap(lambda row: gnp.maximum(row, w) @ w)(x), w, gnp.cos(w))


# ---------------------------------------------------------------- functions of the program's


@program((3,), (4, 3))
def checkpoints(rng, w, x):
    return gradients(lambda w, x: checkpoint(lambda w, x: gnp.sum(gnp.maximum(x, w) ** 2) * w, w, x) + w, w, x)


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return nn.functional.relu(x - 1) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * (x > 1), gnp.sum(g * nn.functional.relu(x - 1), 0)


@program((3,), (4, 3))
def functions(rng, w, x):
    f = lambda w, x: Scaled.apply(x, w) + Scaled.apply(x * w, w) * w
    return [*gradients(f, w, x), *functional.grad(lambda w, x: gnp.sum(f(w, x) ** 2), (0, 1))(w, x)]


@custom_op(vjp={"x": lambda g, x: g * np.cos(x)})
def sine(x):
    return np.sin(x)


@program((3,), (4, 3))
def custom_ops(rng, w, x):
    return gradients(lambda w, x: sine(x) * w + sine(w), w, x)


# ---------------------------------------------------------------- backward


@program((3,), (4, 3))
def hooks(rng, w, x):
    with GradManager().attach([w, x]) as gm:
        h = x * w
        h.retain_grad()
        h.register_hook(lambda g: g * gnp.sign(g - 3))
        y = gnp.exp(h)
        y.grad_fn.register_hook(lambda gs, outputs: tuple([g * 2 for g in gs]))
        y.grad_fn.register_prehook(lambda gs: tuple([g + 1 for g in gs]))
        gm.backward(gnp.sum(y))
    return [h.grad, w.grad, x.grad]


@program((3,), (4, 3))
def several_results_and_seeds_of_other_dtypes(rng, w, x):
    with GradManager().attach([w, x]) as gm:
        gm.backward([x * w, gnp.sum(x), x * w], [gnp.ones((4, 3), np.float32), gnp.floor(w[0] * 3).astype(np.int64), x])
    return [w.grad, x.grad]


@program((3,), (4, 3))
def gradients_of_two_passes_add_up(rng, w, x):
    for _ in range(2):
        with GradManager().attach([w, x]) as gm:
            gm.backward(curved(w, x))
    return [w.grad, x.grad]


@program((3,), (4, 3))
def gradients_of_some_inputs(rng, w, x):
    with GradManager().attach([w, x]):
        h = x * w
        y = gnp.sum(gnp.maximum(h, 1) ** 2)
        return [*grad(y, [h, w], retain_graph=True), *flat(grad(y, x))]


@program((3,), (80, 300))
def gradients_of_few_rows(rng, w, table):
    f = lambda w, table: gnp.sum(table[[3, 7, 3]] ** 2) * w + nn.functional.embedding(np.array([1, 5]), table)[0, 0]
    return gradients(f, w, table)


# ---------------------------------------------------------------- writes


@program((3,), (4, 3))
def writes(rng, w, x):
    def f(w, x):
        u = x * 1
        u[1] = w
        u[u > 1.2] = 0.5
        u[:, 0] += w[1]
        u *= w
        gnp.copyto(u, u * u)
        u.put([0, 1], w[:2])
        v = gnp.zeros((4, 3))
        v[0] = u[3]
        gnp.exp(u, out=v)
        v[[0, 0]] = u[:2]
        return u, v

    return [*f(w, x), *gradients(f, w, x)]


@program((3,), (4, 3))
def writes_to_constants(rng, w, x):
    z = np.zeros((4, 3))
    np.multiply(x, w, out=z)
    u = gnp.zeros((4, 3))
    u += x
    u.fill(2.0)
    u[0] = w
    k = gnp.argsort(x, axis=0)
    k[0] = 7
    k += 1
    return [z, u, k]


# ---------------------------------------------------------------- more of gradmgr


@program((4, 3))
def draws(rng, x):
    return [nn.functional.dropout(x, 0.5, rng=rng), nn.functional.dropout(x, 0.25, rng=rng)]


@program((3,), (3,))
def distributions_draw_and_give_densities(rng, mean, scale):
    def f(mean, scale):
        normal = distributions.Normal(mean, scale)
        z = normal.rsample(rng, (2,))
        gamma = distributions.Gamma(mean, scale)
        u = gamma.rsample(rng, (2,))
        return [
            z,
            normal.log_prob(z),
            u,
            gamma.log_prob(u),
            distributions.kl_divergence(normal, distributions.Normal(0.0, 1.0)),
        ]

    return gradients(f, mean, scale)


@program((5,), (5,))
def complex_numbers(rng, a, b):
    f = lambda a, b: gnp.abs(gnp.fft.fft(a + 1j * b) ** 2 * (a - 1j)) ** 0.5
    return gradients(f, a, b)


@program((4, 4), (4,))
def linear_algebra(rng, a, b):
    def f(a, b):
        s = a @ a.T + 4 * gnp.eye(4)
        _, sv, _ = gnp.linalg.svd(a)
        return [
            gnp.linalg.solve(s, b),
            gnp.linalg.det(s),
            gnp.linalg.cholesky(s),
            sv,
            gnp.linalg.eigh(s)[0],
            gnp.linalg.inv(s),
        ]

    return gradients(f, a, b)


@program((4, 3))
def losses(rng, x):
    labels = gnp.argmax(x, axis=1)
    of = nn.functional
    return gradients(
        lambda x: [
            of.cross_entropy(x, labels),
            of.huber_loss(x, x[::-1] * 2),
            of.nll_loss(of.log_softmax(x, 1), labels),
        ],
        x,
    )


for _make, *_shapes in (
    (lambda: nn.BatchNorm1d(3), (4, 3)),
    (lambda: nn.LayerNorm(3), (4, 3)),
    (lambda: nn.GroupNorm(1, 3), (4, 3)),
    (lambda: nn.LSTM(3, 2), (5, 4, 3)),
    (lambda: nn.GRU(3, 2), (5, 4, 3)),
    (lambda: nn.RNN(3, 2), (5, 4, 3)),
    (lambda: nn.MultiheadAttention(4, 2), (3, 2, 4), (3, 2, 4), (3, 2, 4)),
    (lambda: nn.Conv2d(2, 3, 2), (2, 2, 4, 4)),
):
    module_program(_make, *_shapes)
module_program(
    lambda: nn.Sequential(nn.Linear(3, 4, rng=np.random.default_rng(0)), nn.ReLU(), nn.Dropout(0.5)),
    (4, 3),
    name="dropout",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_of_programs(name: str) -> None:
    check_program(name)
