"""What only looks on changes no bit: every op of the table under each tool that watches a program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers import each_case, identity, tracks
from samples import SAMPLES, Sample, flat, pop_gradient_array, seeds, tensors, twice_on_one_tape

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, detect_anomaly, detect_promotion, graph, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.profiler import profile, record_function

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning"),
    pytest.mark.filterwarnings("ignore::gradmgr.errors.PromotionWarning"),
]


def look(*given: Any) -> None:
    """Change nothing."""


def ask_nothing(gm: GradManager, xs: list[Tensor], outs: list[Tensor]) -> None:
    """Leave the recording alone."""


@dataclass(frozen=True)
class Onlooker:
    """A tool that watches a program: entered around it, given to the manager, or asked before backward."""

    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    ask: Callable[[GradManager, list[Tensor], list[Tensor]], None] = ask_nothing
    settings: dict[str, Any] = field(default_factory=dict)  # of the manager
    callbacks: tuple[Any, ...] = ()


def profiled() -> AbstractContextManager[Any]:
    """Measure all that a profiler can measure on a CPU, with a region."""
    entered = ExitStack()
    entered.enter_context(
        profile(record_shapes=True, with_flops=True, profile_memory=True, with_stack=True, with_modules=True)
    )
    entered.enter_context(record_function("region"))
    return entered


def describe(gm: GradManager, xs: list[Tensor], outs: list[Tensor]) -> None:
    """Ask for all texts and pictures of a recording."""
    gm.summary()
    for x in xs:
        gm.explain(x)
    graph.to_dot(gm)


def nodes(outs: list[Tensor]) -> set[graph.Node]:
    """Return the ops and leaves that lead to these results."""
    found: set[graph.Node] = set()
    waiting = [y.grad_fn for y in outs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:  # None of a leaf
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return found


def hook(gm: GradManager, xs: list[Tensor], outs: list[Tensor]) -> None:
    """Hang hooks on all ops, results and leaves.

    Not `Node.register_hook`, which is shown the sum of what an op gives an operand that appears twice in it: that is
    then added to the other gradients as a whole.
    """
    for node in nodes(outs):
        if not node.is_leaf():
            node.register_prehook(look)
    for t in (*xs, *outs):
        t.register_hook(look)
    for x in xs:
        x.register_post_accumulate_grad_hook(look)
    for y in outs:
        y.retain_grad()
    if outs:
        graph.register_multi_grad_hook([*xs, *outs], look)


ONLOOKERS = {
    "profile": Onlooker(profiled),
    "detect_anomaly": Onlooker(detect_anomaly),
    "detect_promotion": Onlooker(detect_promotion),
    "saved_tensors_hooks": Onlooker(lambda: graph.saved_tensors_hooks(lambda t: t, lambda t: t)),
    "with_stack, summary, explain, to_dot": Onlooker(ask=describe, settings={"with_stack": True}),
    "hooks and callbacks": Onlooker(ask=hook, callbacks=(identity,)),
}


def with_all() -> AbstractContextManager[Any]:
    """Enter everything that is entered around a program."""
    entered = ExitStack()
    for onlooker in ONLOOKERS.values():
        entered.enter_context(onlooker.around())
    return entered


def bits(arrays: list[Any]) -> list[tuple[Any, ...]]:
    return [(a.dtype, a.shape, np.asarray(a).tobytes()) for a in arrays]


def watched(sample: Sample, dtype: Any, onlooker: Onlooker) -> list[tuple[Any, ...]]:
    """Return the values and gradients of a sample's call while a tool looks on."""
    points = tensors(sample, sample.make(dtype))
    return run(lambda: flat(sample.call(gnp, *points)), [points[k] for k in sample.where], onlooker)


def run(program: Callable[[], list[Any]], xs: list[Tensor], onlooker: Onlooker) -> list[tuple[Any, ...]]:
    """Return the values and gradients of a program while a tool looks on."""
    with onlooker.around():
        gm = GradManager(**onlooker.settings).attach(xs, onlooker.callbacks)
        with gm:
            made = program()
            outs = [y for y in made if tracks(gm, y)]
            onlooker.ask(gm, xs, outs)
            gm.backward(outs, seeds(outs))
    return bits([*[y.numpy() for y in made], *[pop_gradient_array(x) for x in xs]])


# Its derivative is NaN, as it should be, which anomaly detection reports.
WITHOUT_NAN = [sample for sample in SAMPLES if str(sample) != "engine.drop_degenerate-0 over 0"]


@each_case(WITHOUT_NAN)
def test_values_and_gradients_are_those_of_the_program_alone(sample: Sample) -> None:
    dtype = np.complex128 if sample.is_complex else np.float64
    expected = watched(sample, dtype, Onlooker())
    assert {name for name, each in ONLOOKERS.items() if watched(sample, dtype, each) != expected} == set()


@each_case({sample.name: sample for sample in WITHOUT_NAN}.values())  # one of each op, as these take longest
def test_second_derivatives_are_those_of_the_program_alone(sample: Sample) -> None:
    found = []
    for around in (nullcontext, with_all):
        with around():
            first, second = twice_on_one_tape(sample, sample.make())
        found.append(bits([t.numpy() for t in first + second]))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ONLOOKERS)
def test_large_arrays_too(name: str) -> None:
    """Those that are computed in blocks and by several threads, and whose gradients take one another's memory."""
    random = np.random.default_rng(1)
    shapes = ((600, 300), (300, 200), (200,), (50, 200))
    xs = [tensor(random.normal(size=shape).astype(np.float32)) for shape in shapes]
    rows = random.integers(50, size=600)

    def program() -> list[Any]:
        x, w, b, table = xs
        y = gnp.tanh(gnp.exp(-x * x) @ w + b) * table[rows]
        y = F.layer_norm(F.gelu(y) / (1 + y * y), (200,))
        z = gnp.zeros((600, 200), np.float32)
        z[100:] = F.softmax(y, 1)[:500] + y[100:]
        return [gnp.sum(z * y), F.cross_entropy(y, rows)]

    assert run(program, xs, ONLOOKERS[name]) == run(program, xs, Onlooker())
