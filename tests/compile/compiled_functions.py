"""Functions and small steps for gradmgr.compile: arguments, results, branches, Python state, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from compiled_programs import CALLS, PROGRAMS, Program, call, calls_with, loss_of, program, tensors, wave, waves
from compiled_training import Training, logged

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, forward_ad, functional, nn, optim, tensor
from gradmgr.nn import functional as F  # noqa: N812  # torch's name

# ---------------------------------------------------------------- functions without a manager


def pure(function: Callable[..., Any], *values: Any, **options: Any) -> Callable[[], Program]:
    return lambda: Program(function, calls_with(*(values or tensors(3))), **options)


PURE: dict[str, Callable[..., Any]] = {
    "value_and_grad": functional.value_and_grad(loss_of),
    "value_and_grad with more": functional.value_and_grad(lambda x: (loss_of(x), {"twice": x * 2}), has_aux=True),
    "grad of grad": functional.grad(lambda x: gnp.sum(functional.grad(loss_of)(x) ** 2)),
    "hessian": functional.hessian(loss_of),
    "hessian at a point": lambda x: functional.hessian(loss_of, x),
    "hessian, vectorised": lambda x: functional.hessian(
        loss_of, x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "jacobian": lambda x: functional.jacobian(lambda a: gnp.tanh(a) * a[::-1], x),
    "jacobian, forward": lambda x: functional.jacobian(gnp.tanh, x, strategy="forward-mode", vectorize=True),
    "vjp": lambda x: functional.vjp(gnp.tanh, x, x * 2),
    "vjp of a scalar": functional.vjp(loss_of),
    "jvp": lambda x: functional.jvp(gnp.tanh, x, x * 2),
    "vhp": lambda x: functional.vhp(loss_of, x, x),
    "hvp": lambda x: functional.hvp(loss_of, x, x),
    "vmap": gradmgr.vmap(lambda a: gnp.exp(a) * a),
    "vmap of grad": gradmgr.vmap(functional.grad(lambda a: gnp.sin(a) * a)),
    "no derivative": lambda x: gnp.tanh(x) * x + 1,
    "plain NumPy functions": lambda x: np.concatenate([np.sin(x), np.cumsum(x)]) / np.linalg.norm(x),
    "sorted": lambda x: (gnp.sort(x), gnp.argsort(x), gnp.max(x)),
    "einsum": lambda x: gnp.einsum("i,j->ij", x, x),
    "linear algebra": lambda x: gnp.linalg.solve(gnp.eye(3) * 9 + gnp.outer(x, x), x),
    "made inside": lambda x: x * gnp.ones(3) + gnp.arange(3) + gnp.zeros_like(x),
    "in place on a copy": lambda x: _written(x.copy()),
    "forward mode": lambda x: _tangent(x),
    "several outputs": lambda x: [*gnp.split(x, 3), x.mean(), gnp.divmod(x, 0.3)],
    "masked": lambda x: x[x > 0],
    "non-zero": lambda x: gnp.nonzero(x > 0),
    "unique": lambda x: gnp.unique(gnp.round(x)),
}


def _written(x: Any) -> Any:
    x[1:] *= x[:-1]
    x[0] = 3.0
    x += 1
    return x


def _tangent(x: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(loss_of(forward_ad.make_dual(x, x * 2))).tangent


for _name, _function in PURE.items():
    PROGRAMS[f"pure: {_name}"] = lambda f=_function: Program(f, calls_with(*tensors(3)))


# ---------------------------------------------------------------- what is given and what comes back


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Batch:
    x: Any
    scale: float = 1.0


def square_norm(x: Any) -> Any:
    return gnp.sum(x * x)


def _writes(x: Any) -> Any:
    x *= 2
    x[0] = 1.0
    return gnp.sum(x)


def _of_container(value: Any) -> Any:
    """A function of any nesting, that tells the kinds of containers apart."""
    if isinstance(value, dict):
        return {key: _of_container(v) for key, v in value.items()}
    if isinstance(value, Pair):
        return Pair(_of_container(value.first), value.second)
    if isinstance(value, (list, tuple)):
        return type(value)(_of_container(v) for v in value)
    if isinstance(value, Batch):
        return Batch(value.x * value.scale, value.scale + 1)
    return value if value is None else value * 2


def _nestings() -> list[Any]:
    return [
        {"a": wave(2), "b": (wave(2), None)},
        {"a": wave(2, at=1), "b": (wave(2, at=2), None)},
        {"a": wave(2, at=3), "b": (wave(2, at=4), None)},
        {"b": (wave(2, at=4), None), "a": wave(2, at=3)},
        [wave(2), [wave(2)]],
        (wave(2), [wave(2)]),
        Pair(wave(2), tensor(wave(2))),
        Pair(tensor(wave(2)), wave(2)),
    ]


ARGUMENTS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "other values": (square_norm, lambda: calls_with(*waves(3))),
    "other shapes": (square_norm, lambda: calls_with(*[wave(2 + k % 3) for k in range(12)])),
    "other dtypes": (
        lambda x: x * 2 + x.sum(),
        lambda: calls_with(*[wave(3, at=k, dtype=d) for k in range(3) for d in ("float32", "float64", "int64")]),
    ),
    "other strides": (
        lambda x: (x @ x, gnp.sum(x, axis=0)),
        lambda: calls_with(*[a for k in range(3) for x in [wave(3, 3, at=k)] for a in (x, x.T, x[::-1])]),
    ),
    "Tensor and array": (
        square_norm,
        lambda: calls_with(*[tensor(wave(3, at=k)) if k % 2 else wave(3, at=k) for k in range(8)]),
    ),
    "numbers": (lambda x, k: x * k, lambda: [call(wave(2, at=n), n % 3) for n in range(9)]),
    "1, 1.0 and True": (
        lambda x, k: (x * k, x**k, k),
        lambda: [call(np.arange(3), k) for _ in range(3) for k in (1, 1.0, True)],
    ),
    "0.0 and -0.0": (
        lambda x, k: np.copysign(x, k),
        lambda: [call(wave(3, at=n), k) for n in range(3) for k in (0.0, -0.0)],
    ),
    "NaN": (lambda x, k: x * k, lambda: [call(wave(3, at=n), float("nan")) for n in range(5)]),
    "NumPy scalars": (
        lambda x, k: x * k,
        lambda: [call(wave(3, at=n, dtype="float32"), t(n + 1)) for n in range(4) for t in (np.float64, np.float32)],
    ),
    "None and Tensor": (
        lambda x, mask: x if mask is None else x * mask,
        lambda: [call(wave(3, at=k), None if k % 3 else wave(3) > 0) for k in range(9)],
    ),
    "texts": (
        lambda x, how: getattr(gnp, how)(x),
        lambda: [call(wave(3), h) for _ in range(3) for h in ("sum", "max")],
    ),
    "functions": (
        lambda x, how: how(x),
        lambda: [call(wave(3, at=k), h) for k in range(3) for h in (gnp.tanh, gnp.sin)],
    ),
    "slices": (
        lambda x, where: x[where],
        lambda: [call(wave(5, at=k), s) for k in range(4) for s in (slice(0, 3), slice(1, 4))],
    ),
    "dtypes": (
        lambda x, d: x.astype(d),
        lambda: [call(wave(3, at=k), d) for k in range(3) for d in ("float32", np.float64, np.dtype("int8"))],
    ),
    "keywords": (
        lambda x, y=2.0, *, z=None: x * y if z is None else x * y + z,
        lambda: [c for k in range(3) for c in (call(wave(2, at=k)), call(x=wave(2, at=k), y=3.0), call(wave(2), z=1))],
    ),
    "any number": (
        lambda *xs, **more: sum(xs) + sum(more.values()),
        lambda: [call(*waves(2, count=1 + k % 3), a=wave(2, at=k)) for k in range(9)],
    ),
    "names in another order": (
        lambda **more: list(more.values()),
        lambda: [c for k in range(3) for c in (call(a=wave(2, at=k), b=1), call(b=1, a=wave(2, at=k)))],
    ),
    "list of another length": (
        lambda xs: sum(gnp.sum(x) for x in xs),
        lambda: [call(waves(2, count=1 + k % 3)) for k in range(9)],
    ),
    "containers": (_of_container, lambda: calls_with(*_nestings(), *_nestings())),
    "data class": (_of_container, lambda: calls_with(*[Batch(wave(2, at=k), 1.0 + k % 2) for k in range(8)])),
    # What an iterator gives cannot be asked for twice: such a step may stay eager.
    "iterator": (lambda xs: sum(gnp.sum(x) for x in xs), lambda: [call(iter(waves(2 + k, count=3))) for k in range(5)]),
    "generator": (
        lambda xs: gnp.stack([x * 2 for x in xs]),
        lambda: [call(wave(2, at=k + j) for j in range(3)) for k in range(5)],
    ),
    "range": (lambda ks: gnp.arange(3) + sum(ks), lambda: calls_with(*[range(k % 3) for k in range(9)])),
    "Python lists of numbers": (gnp.sum, lambda: calls_with(*[[1.0, 2.0 + k % 3] for k in range(9)])),
    "scalars with no axis": (lambda x: x * x, lambda: calls_with(*[np.array(float(k)) for k in range(7)])),
    "empty arrays": (lambda x: x.sum() + x, lambda: calls_with(*[np.zeros((0, 2)) for _ in range(4)])),
    "read-only": (lambda x: x * 2, lambda: calls_with(*[np.broadcast_to(wave(3, at=k), (2, 3)) for k in range(5)])),
    "not contiguous": (lambda x: x.reshape(-1) * 2, lambda: calls_with(*[wave(4, 4, at=k)[::2, 1:] for k in range(5)])),
    "byte order": (lambda x: x * 2, lambda: calls_with(*[wave(3, at=k).astype(">f8") for k in range(5)])),
    "complex": (lambda x: abs(x) * x.conj(), lambda: calls_with(*[wave(3, at=k) + 1j for k in range(5)])),
    "written in place": (_writes, lambda: calls_with(*waves(3), *tensors(3))),
    "one Tensor twice": (lambda x, y: x * y, lambda: [call(*[tensor(wave(3, at=k))] * 2) for k in range(5)]),
    # An argument or parameter that is returned is that object, as users of Python expect.
    "given back": (lambda x: x, lambda: calls_with(*tensors(3))),
    "given back in a container": (lambda x: {"x": x, "y": [x, x * 2]}, lambda: calls_with(*tensors(3))),
    "one result twice": (lambda x: (lambda y: (y, y, {"y": y}))(x * 2), lambda: calls_with(*tensors(3))),
    "a constant result": (lambda x: (3, "text", None, 2.5, True), lambda: calls_with(*tensors(3))),
    "no result": (lambda x: None, lambda: calls_with(*tensors(3))),
    "a shape as a result": (
        lambda x: (x.shape, x.size, x.dtype.name),
        lambda: calls_with(*[wave(2 + k % 2, 1 + k // 4) for k in range(8)]),
    ),
    "a named tuple as a result": (lambda x: Pair(x * 2, 1), lambda: calls_with(*tensors(3))),
    "a data class as a result": (lambda x: Batch(x * 2, 0.5), lambda: calls_with(*tensors(3))),
    # Whether a view that is returned still shares memory with its argument is left open: "results are copies".
    "views of an argument": (lambda x: (x[1:], x.T, x.reshape(3, 1)), lambda: calls_with(*tensors(3))),
    "views of a result": (lambda x: (lambda y: (y, y[1:]))(x * 2), lambda: calls_with(*tensors(3))),
    "no arguments": (lambda: gnp.arange(3) * 2, lambda: [call()] * 5),
    "loop by a number": (
        lambda x, n: [x := x * 1.5 for _ in range(n)][-1],
        lambda: [call(wave(2), 1 + k % 3) for k in range(9)],
    ),
}

for _name, (_function, _given) in ARGUMENTS.items():
    PROGRAMS[f"given: {_name}"] = lambda f=_function, given=_given, name=_name: Program(
        f, given(), may_warn=name in ("iterator", "generator")
    )


@program
def argument_that_is_a_parameter() -> Program:
    w, v = nn.Parameter(wave(3)), nn.Parameter(wave(3, at=1))
    gm = GradManager().attach([w, v])

    def step(p: Any) -> Any:
        with gm:
            gm.backward(loss_of(p * w))
        p -= 0.1 * p.grad
        return gnp.sum(p)

    return Program(step, calls_with(w, w, w, v, v, w, tensor(wave(3)), w)[:6], lambda: (w, v))


@program
def argument_that_has_a_gradient() -> Program:
    xs = tensors(3)
    for k, x in enumerate(xs):
        if k % 2:
            x.grad = tensor(wave(3, at=9))

    def step(x: Any) -> Any:
        with GradManager().attach(x) as gm:
            gm.backward(loss_of(x))
        return x.grad

    return Program(step, calls_with(*xs, *xs))


# ---------------------------------------------------------------- branches


def _by_sign(x: Any) -> Any:
    return x * 2 if gnp.sum(x) > 0 else x - 1


def _by_three_signs(x: Any) -> Any:
    return [v * 2 if v > 0 else v - 1 for v in x]


def _until_small(x: Any) -> Any:
    while gnp.sum(x * x) > 1:
        x = x * 0.6
    return x


def _by_python_functions(x: Any) -> Any:
    """Truth asked for by Python itself, not by an if."""
    return max(x[0], x[1]), min(x[1], x[2]), x[0] > 0 and x[1], not x[2] > 0, any(x > 0), all(x > 0), 0 in x


def _equal_to(x: Any) -> Any:
    return x * 2 if x[0] == x[1] or (x < 0.5).any() else x


BRANCHES: dict[str, Callable[[Any], Any]] = {
    "a sign": _by_sign,
    "several signs": _by_three_signs,
    "a loop": _until_small,
    "Python functions": _by_python_functions,
    "any and equal": _equal_to,
    "assert": lambda x: (lambda ok: x if ok else -x)(bool((x * x).sum() < 1.5)),
    "inside a derivative": functional.value_and_grad(lambda x: gnp.sum(_by_sign(x) * x)),
    "array_equal": lambda x: x if np.array_equal(x > 0, np.ones(3, bool)) else -x,
    "allclose": lambda x: x if gnp.allclose(x, 0.5, atol=1.0) else -x,
}

for _name, _function in BRANCHES.items():
    PROGRAMS[f"branch: {_name}"] = lambda f=_function: Program(f, calls_with(*tensors(3, count=15)), may_warn=True)
    PROGRAMS[f"branch: {_name}, array"] = lambda f=_function: Program(f, calls_with(*waves(3, count=15)), may_warn=True)


@program
def branch_after_writes() -> Program:
    """What a replay finds out late: a Tensor, a parameter, a generator and a log were changed before the branch."""
    w, rng, total, log = tensor(wave(3)), np.random.default_rng(0), tensor(np.zeros(3)), []
    gm = GradManager().attach(w, callbacks=logged(log, 2.0))

    def step(x: Any) -> Any:
        total.__iadd__(x)
        with gm:
            loss = gnp.sum(w * x * gnp.zeros(3).normal_(generator=rng))
            gm.backward(loss)
        w.__isub__(w.grad * 0.1)
        w.grad = None
        if loss > 0:
            w.__imul__(0.5)
            return loss * 2
        return loss

    # The branch depends on what the callback returns.
    return Program(step, calls_with(*waves(3, count=12)), lambda: (w, rng, total, log), may_warn=True)


@program
def branch_on_random_numbers() -> Program:
    rng, drawn = np.random.default_rng(1), np.random.default_rng(2)

    def step(x: Any) -> Any:
        noise = gnp.zeros(3).normal_(generator=rng)
        if noise.sum() > 0:
            return x * gnp.zeros(3).uniform_(generator=drawn)
        return x - noise

    return Program(step, calls_with(*tensors(3, count=12)), lambda: (rng, drawn))


# ---------------------------------------------------------------- random numbers


@program
def generators_in_turn() -> Program:
    a, b = np.random.default_rng(0), np.random.default_rng(0)

    def step(x: Any) -> Any:
        y = F.dropout(x, 0.3, rng=a)
        y = y * gnp.zeros(3).uniform_(generator=b) + gnp.zeros(3).normal_(1.0, 0.1, generator=a)
        return gnp.where(gnp.zeros(3).bernoulli_(0.5, generator=b) > 0, y, 0)

    return Program(step, calls_with(*tensors(3)), lambda: (a, b), between={4: a.random})


@program
def generator_as_an_argument() -> Program:
    a, b = np.random.default_rng(0), np.random.default_rng(1)
    step = lambda x, rng: F.dropout(x, 0.5, rng=rng)
    return Program(step, [call(tensor(wave(3, at=k)), b if k % 3 == 2 else a) for k in range(9)], lambda: (a, b))


@program
def generator_that_is_replaced() -> Program:
    s = SimpleNamespace(rng=np.random.default_rng(0))
    change = lambda: setattr(s, "rng", np.random.default_rng(5))
    return Program(lambda x: F.dropout(x, 0.5, rng=s.rng), calls_with(*tensors(3)), lambda: s.rng, between={4: change})


# ---------------------------------------------------------------- values that decide shapes, places and Python numbers


def _index_of(x: Any) -> Any:
    return ["a", "b", "c"][gnp.argmax(x).astype(int)]


BY_VALUE: dict[str, Callable[[Any], Any]] = {
    "size of a selection": lambda x: x * x[x > 0].size,
    "length of a selection": lambda x: x * len(x[x > 0]),
    "count_nonzero": lambda x: x * np.count_nonzero(x > 0),
    "size of nonzero": lambda x: x * gnp.nonzero(x > 0)[0].size,
    "size of unique": lambda x: x * gnp.unique(gnp.round(x * 2)).size,
    "zeros of a size": lambda x: np.zeros(x[x > 0].shape) + x.sum(),
    "bincount": lambda x: np.bincount((x > 0).astype(int)) * 2,
    "histogram": lambda x: np.histogram(x, bins=3),
    "repeat": lambda x: gnp.repeat(x, (x > 0).astype(int) + 1),
    "a slice": lambda x: x[: (x > 0).sum()],
    "an index of an array": lambda x: x[gnp.argmax(x)] * x[gnp.argsort(x)[0]],
    "an index of a list": _index_of,
    "a shift": lambda x: gnp.roll(x, (x > 0).sum()),
    "arange": lambda x: np.arange((x > 0).sum()),
    "linspace": lambda x: np.linspace(x[0], x[1], 3),
    "full": lambda x: np.full(2, x[0]),
    "split": lambda x: [part * 2 for part in gnp.split(x, [(x[:1] > 0).sum()])],
    "a mask of writes": lambda x: _masked_write(x),
    "where of one argument": lambda x: gnp.where(x > 0)[0] * 2,
    "a key of a dict": lambda x: {(x > 0).sum().item(): x * 2},
    "isclose": lambda x: [k for k, v in enumerate(gnp.isclose(x, 0, atol=0.7)) if v],
    "max of Python": lambda x: max(enumerate(x), key=lambda pair: pair[1])[0] * x,
    "sorted of Python": lambda x: sorted(x, key=lambda v: -v),
    "a list in a Tensor": lambda x: tensor([x[2], x[0]]) * 2,
}


def _masked_write(x: Any) -> Any:
    y = x.copy()
    y[y > 0] *= 3
    y[y < -0.5] = 0
    return y


for _name, _function in BY_VALUE.items():
    for _kind, _made in (("Tensor", tensors), ("array", waves)):
        PROGRAMS[f"by value: {_name}, {_kind}"] = lambda f=_function, made=_made: Program(
            f, calls_with(*made(3, count=10)), may_warn=True, raises=(errors.GradmgrError, TypeError)
        )


@program
def error_that_the_step_catches() -> Program:
    """The values decide whether NumPy raises."""

    def step(a: Any) -> Any:
        try:
            return gnp.linalg.inv(a)
        except np.linalg.LinAlgError:
            return a - 1

    matrices = [np.zeros((2, 2)) if k in (4, 7) else np.eye(2) * (k + 1) for k in range(10)]
    return Program(step, calls_with(*matrices), may_warn=True)


@program
def error_that_the_step_caught_at_first() -> Program:
    def step(a: Any) -> Any:
        try:
            return gnp.linalg.inv(a)
        except np.linalg.LinAlgError:
            return a - 1

    matrices = [np.eye(2) * k if k > 3 else np.zeros((2, 2)) for k in range(8)]
    return Program(step, calls_with(*matrices), may_warn=True)


# ---------------------------------------------------------------- which objects are the same


@program
def identity_of_arguments() -> Program:
    x, y = tensor(wave(3)), tensor(wave(3, at=1))
    step = lambda a, b: a * 2 if a is b else a + b
    return Program(step, [call(x, y if k % 3 else x) for k in range(9)])


@program
def identity_of_an_argument_and_the_state() -> Program:
    w = tensor(wave(3))
    step = lambda x: x * 2 if x is w else x + w
    return Program(step, calls_with(*[w if k % 3 == 2 else tensor(wave(3)) for k in range(9)]), lambda: w)


@program
def argument_that_is_a_running_mean() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    mean = t.model[1].running_mean

    def step(x: Any, y: Any, seen: Any) -> Any:
        return t.step(x, y), gnp.sum(seen * 2)

    given = [call(*t.batch(k), mean if k % 2 else tensor(wave(5, dtype="float32"))) for k in range(8)]
    return t.program(step, calls=given)


@program
def one_gradient_of_two_parameters() -> Program:
    w, v = tensor(wave(3)), tensor(wave(3, at=1))
    gm = GradManager().attach([w, v])

    def share() -> None:
        w.grad = v.grad = tensor(wave(3, at=2))

    def step(x: Any) -> Any:
        with gm:
            gm.backward(gnp.sum(w * x + gnp.tanh(v)))
        return w.grad * v.grad

    return Program(step, calls_with(*waves(3, count=9)), lambda: (w, v), {3: share, 6: share})


class Tied(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 4, rng=rng), nn.Linear(4, 4, rng=rng)
        self.out.weight = self.into.weight

    def forward(self, x: Any) -> Any:
        return self.out(gnp.tanh(self.into(x)))


def _tied() -> Training:
    t = Training("MLP", "Adam")
    t.gm.detach(t.params)
    t.model = Tied(t.rng)
    t.params = list(t.model.parameters())
    t.gm.attach(t.params)
    t.optimizer = optim.Adam(t.params, lr=0.1)
    return t


@program
def tied_weights_that_are_untied() -> Program:
    """The copy has the same shape and values, and is not trained."""
    t = _tied()
    return t.program(between={4: lambda: setattr(t.model.out, "weight", nn.Parameter(t.model.into.weight.copy()))})


@program
def two_parameters_that_change_places() -> Program:
    t = _tied()
    t.model.out.weight = nn.Parameter(wave(4, 4, dtype="float32"))
    t.gm.attach(t.model.out.weight)

    def swap() -> None:
        a, b = t.model.into, t.model.out
        a.weight, b.weight = b.weight, a.weight

    made = t.program(between={3: swap, 6: swap})
    made.state = lambda: [t.params, list(t.model.parameters()), t.optimizer.state_dict()]
    return made


# ---------------------------------------------------------------- more of what steps write to Python state


@program
def gradient_that_the_step_looks_for() -> Program:
    w = tensor(wave(3))
    gm = GradManager().attach(w)

    def step(x: Any) -> Any:
        if w.grad is None:
            w.grad = gnp.ones(3)
        with gm:
            gm.backward(gnp.sum(w * x))
        return w.grad * 2

    drop = lambda: setattr(w, "grad", None)
    return Program(step, calls_with(*waves(3, count=9)), lambda: w, {3: drop, 4: drop, 7: drop})


@program
def attachments_that_the_step_changes() -> Program:
    w, v, gm = tensor(wave(3)), tensor(wave(3, at=1)), GradManager()
    gm.attach(w)

    def step(x: Any) -> Any:
        gm.attach(v)
        with gm:
            gm.backward(gnp.sum(w * v * x))
            count = len(gm.attached_tensors())
        gm.detach(v)
        return count, len(gm.attached_tensors())

    return Program(step, calls_with(*waves(3)), lambda: (w, v, len(gm.attached_tensors())))


@program
def training_mode_that_the_step_changes_and_leaves() -> Program:
    t = Training("BatchNorm and dropout", "Adam")

    def step(x: Any, y: Any) -> Any:
        loss = t.step(x, y)
        t.model.train(not t.model.training)
        return loss

    return t.program(step, calls=[call(*t.batch(k)) for k in range(10)], may_warn=True)


# ---------------------------------------------------------------- data


@program
def last_batch_is_smaller() -> Program:
    t = Training("BatchNorm and dropout", "Adam")
    batches = [t.batch(k) for k in range(12)]
    return t.program(
        calls=[call(x[: 6 - 2 * (k % 3 == 2)], y[: 6 - 2 * (k % 3 == 2)]) for k, (x, y) in enumerate(batches)]
    )


@program
def batches_by_index_arrays() -> Program:
    t, data, labels = Training("MLP", "Adam"), wave(40, 4, dtype="float32"), np.arange(40) % 3
    step = lambda where: t.step(data[where], labels[where])
    rng = np.random.default_rng(4)
    calls = calls_with(*[rng.permutation(40)[:5] for _ in range(CALLS)])
    return t.program(step, calls=calls, may_warn=True)  # a plain array takes the numbers of its index


@program
def buffer_that_the_caller_fills() -> Program:
    t, (x, y) = Training("MLP", "Adam"), Training("MLP").batch(0)

    def fill() -> None:
        x.__imul__(0.7)
        y[...] = (y + 1) % 3

    return t.program(calls=[call(x, y)] * CALLS, between=t.every_time(fill))


DTYPES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "booleans": (lambda x: ~x | (x & True), lambda: calls_with(*[wave(4, at=k) > 0 for k in range(6)])),
    "small integers": (
        lambda x: x * 100 + x,
        lambda: calls_with(*[np.arange(k, k + 4, dtype="int8") for k in range(6)]),
    ),
    "unsigned": (lambda x: x - 3, lambda: calls_with(*[np.arange(k, k + 4, dtype="uint8") for k in range(6)])),
    "half": (
        lambda x: x * x + x.sum(),
        lambda: calls_with(*[tensor(wave(4, at=k, dtype="float16")) for k in range(6)]),
    ),
    "dates": (
        lambda x: x - x[0] + np.timedelta64(1, "D"),
        lambda: calls_with(
            *[np.array(["2020-01-01", "2020-01-03"], "M8[D]") + np.timedelta64(k * k, "D") for k in range(6)]
        ),
    ),
    "objects": (lambda x: x + x, lambda: calls_with(*[np.array([k, 2.5, "a" * k], object) for k in range(6)])),
    "texts": (lambda x: x == "b1", lambda: calls_with(*[np.array([f"a{k}", f"b{k % 2}"]) for k in range(6)])),
    "records": (
        lambda x: x["a"] * x["b"],
        lambda: calls_with(
            *[np.array([(k, 2.0), (1, k)], "i4,f8").astype([("a", "i4"), ("b", "f8")]) for k in range(6)]
        ),
    ),
    "long numbers": (
        lambda x, k: x * k,
        lambda: [call(wave(2, at=n), k) for n in range(3) for k in (2**62, 1e300, 2j)],
    ),
    "negative zero": (lambda x: (x * 0, -x, 1 / x), lambda: calls_with(*[wave(3, at=k) * 0 for k in range(6)])),
    "subnormal": (lambda x: x * 1e-310 * 1e5, lambda: calls_with(*waves(3))),
    "infinite": (lambda x: x / 0 - np.inf, lambda: calls_with(*waves(3))),
}

for _name, (_function, _given) in DTYPES.items():
    PROGRAMS[f"dtype: {_name}"] = lambda f=_function, given=_given: Program(f, given(), may_warn=True)
