"""What a compiled function adds to, appends to and assigns, and does not read: a replay does so, too."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiled_programs import wave

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, compile, errors, nn, optim, tensor

CASES: dict[str, Callable[[], Any]] = {}
REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {}


def case(make: Callable[[], Any]) -> Callable[[], Any]:
    """Enter a function that makes a step, what returns the state, and what changes it between calls, if anything."""
    CASES[make.__name__.replace("_", " ")] = make
    return make


def refused(why: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter one whose step is not replayed, for this reason."""

    def enter(make: Callable[[], Any]) -> Callable[[], Any]:
        REFUSED[make.__name__.replace("_", " ")] = why, make
        return make

    return enter


@dataclasses.dataclass
class Counting:
    n: int = 0
    rate: float = 0.5

    def step(self, x: Any) -> Any:
        self.n += 1
        return x * self.rate


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: Any = None
        inner: Any = nn.Linear(4, 4)
        inner.weight[...], inner.bias[...] = np.eye(4), 0.0
        self.inner = inner

    def forward(self, x: Any) -> Any:
        self.calls += 1
        y = self.inner(x)
        self.seen = y
        return y * 2


def values(tree: Any) -> Any:
    """Return what a tree holds as bytes, numbers and texts."""
    if isinstance(tree, Tensor):
        return values(tree.numpy())
    if isinstance(tree, np.ndarray | np.generic):
        return "array", tree.dtype.str, tree.shape, tree.tobytes()
    if isinstance(tree, dict):
        return {key: values(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple, deque)):
        return [type(tree).__name__, *map(values, tree)]
    return values(vars(tree)) if hasattr(tree, "__dict__") else repr(tree)


# ---------------------------------------------------------------- what is replayed


@case
def a_list_of_losses() -> Any:
    w, losses = tensor([1.0, -1.0, 2.0, 0.5]), list[Any]()
    gm, optimizer = GradManager().attach(w), optim.Adam([w], lr=0.1)

    def step(x: Any) -> Any:
        with gm:
            loss = gnp.sum((w * x) ** 2)
            gm.backward(loss)
        losses.append(loss)
        optim.clip_grad_norm_([w], 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((loss, "loss"))
        return loss

    return step, lambda: (losses, w)


@case
def lists_in_a_dict() -> Any:
    owner = SimpleNamespace(history={"loss": [], "rate": []}, rate=0.5)

    def step(x: Any) -> Any:
        owner.history["loss"].append(gnp.sum(x))
        owner.history["rate"].append({"rate": owner.rate, "values": [x * 2]})
        return x * owner.rate

    def change(k: int) -> None:
        owner.rate = 0.25 if k == 5 else owner.rate

    return step, lambda: owner, change


@case
def lists_that_a_first_call_makes() -> Any:
    history: Any = defaultdict(list)

    def step(x: Any) -> Any:
        history["loss"].append(gnp.sum(x))
        return x * 2

    return step, lambda: history


@case
def a_list_that_others_replace_and_fill() -> Any:
    owner, old = SimpleNamespace(losses=[]), list[Any]()

    def step(x: Any) -> Any:
        owner.losses.append(gnp.sum(x))
        return x * 2

    def change(k: int) -> None:
        owner.losses.append("a text")
        if k % 3 == 2:
            old.append(owner.losses)
            owner.losses = []

    return step, lambda: (owner, old), change


@case
def a_list_of_more_than_is_compared() -> Any:
    losses: list[Any] = [0.0] * 10_001

    def step(x: Any) -> Any:
        losses.append(gnp.sum(x))
        return x * 2

    return step, lambda: losses[10_000:]


@case
def a_list_that_depends_on_a_value() -> Any:
    found: list[Any] = []

    def step(x: Any) -> Any:
        total = gnp.sum(x)
        if total > 0:
            found.append(total)
        else:
            found.append(-total)
        return x

    return step, lambda: found


@case
def arguments_parameters_and_what_changes_later() -> Any:
    kept, w = list[Any](), tensor([1.0, 2.0, 3.0, 4.0])

    def step(x: Any) -> Any:
        y = w * x
        kept.append(w)
        kept.append(x)
        kept.append(y)
        kept.append(y.copy())
        y[...] = 0.0
        return x

    return step, lambda: kept


@case
def counters_everywhere() -> Any:
    owner, held, count = SimpleNamespace(steps=0, left=9), {"n": 0, "m": 1}, 0

    def step(x: Any) -> Any:
        nonlocal count
        count += 1
        owner.steps += len(x)
        owner.left = owner.left - 2
        held["n"] += 1
        held["m"] -= 1
        step.calls += 1  # type: ignore[attr-defined]  # what is tested
        return x * 2

    step.calls = 0  # type: ignore[attr-defined]  # as above

    def change(k: int) -> None:
        owner.steps = 100 if k == 4 else owner.steps

    return step, lambda: (owner, held, count, vars(step)), change


@case
def the_counter_of_a_dataclass() -> Any:
    counting = Counting()
    return counting.step, lambda: counting


@case
def a_counter_that_is_deleted() -> Any:
    counting = Counting()

    def change(k: int) -> None:
        if k == 5:
            del counting.n

    return counting.step, lambda: counting, change


@case
def the_counter_of_a_module_and_what_it_keeps() -> Any:
    layer = Layer()
    return lambda x: layer(x), lambda: (layer.calls, layer.seen.numpy() if layer.seen is not None else None)


@case
def an_error_of_the_function() -> Any:
    owner, kept = SimpleNamespace(n=0), list[Any]()

    def step(x: Any) -> Any:
        owner.n += 1
        kept.append(x)
        if gnp.sum(x) > 1:
            raise ValueError("large")
        owner.n += 1
        return x

    return step, lambda: (owner, kept)


@case
def what_is_only_assigned() -> Any:
    owner, last = SimpleNamespace(last=None, kind=0), None

    def step(x: Any) -> Any:
        nonlocal last
        y = x * 2
        last = y
        owner.last = [y, {"x": x}]
        if gnp.sum(x) > 0:
            owner.kind = 7
        return x

    def change(k: int) -> None:
        owner.kind = k

    return step, lambda: (owner, last), change


@case
def a_global_that_is_only_assigned() -> Any:
    variables: dict[str, Any] = {}
    exec("LAST = None\ndef step(x):\n    global LAST\n    LAST = x * 3\n    return x * 2", variables)  # noqa: S102  # a global of its own
    return variables["step"], lambda: variables["LAST"]


def calls_of(step: Callable[[Any], Any], state: Callable[[], Any], change: Any = None) -> list[Any]:
    """Return what nine calls give and leave."""
    found = []
    for k in range(9):
        x = tensor(wave(4, at=k))
        try:
            made = values(step(x))
        except ValueError as error:
            made = str(error)
        found.append((made, values(state())))
        if change is not None:
            change(k)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_replay_accumulates_what_the_function_would(name: str) -> None:
    step, *rest = CASES[name]()
    expected = calls_of(step, *rest)
    step, *rest = CASES[name]()
    compiled = compile(step)
    assert calls_of(compiled, *rest) == expected
    assert "calls:" in compiled.explain()


def test_what_is_returned_and_appended_is_one_object() -> None:
    kept: list[Any] = []

    def step(x: Any) -> Any:
        y = x * 2
        kept.append(y)
        return y

    compiled = compile(step)
    for k in range(5):
        assert compiled(tensor(wave(4, at=k))) is kept[-1]
    assert len({id(each) for each in kept}) == 5


# ---------------------------------------------------------------- what is not


@refused("changes owner.steps")
def a_counter_that_is_read() -> Any:
    owner = SimpleNamespace(steps=1)

    def step(x: Any) -> Any:
        owner.steps += 1
        return x * owner.steps

    return step, lambda: owner


@refused("changes owner.steps")
def a_counter_that_is_read_by_a_text() -> Any:
    owner, name = SimpleNamespace(steps=1), "steps"

    def step(x: Any) -> Any:
        owner.steps += 1
        return x * getattr(owner, name)

    return step, lambda: owner


@refused("changes owner.steps")
def a_counter_of_halves() -> Any:
    owner = SimpleNamespace(steps=1.0)

    def step(x: Any) -> Any:
        owner.steps += 0.5
        return x * 2

    return step, lambda: owner


@refused("changes counting.n")
def a_counter_that_is_compared() -> Any:
    counting, others = Counting(), [Counting(5)]

    def step(x: Any) -> Any:
        counting.n += 1
        return x * 2 if counting in others else x * 3

    return step, lambda: counting


@refused("changes counting.n")
def a_counter_that_is_copied() -> Any:
    counting = Counting()

    def step(x: Any) -> Any:
        counting.n += 1
        return x * copy.copy(counting).rate

    return step, lambda: counting


@refused("changes what it returns")
def a_dataclass_with_a_counter_that_is_returned() -> Any:
    counting = Counting()

    def step(x: Any) -> Any:
        counting.n += 1
        return x, counting

    return step, lambda: counting


@refused("which a function may read that is called each time")
def a_counter_that_a_hook_reads() -> Any:
    layer, seen = Layer(), list[int]()
    layer.register_forward_hook(lambda module, args, result: seen.append(module.calls))
    return lambda x: layer(x), lambda: (layer.calls, seen)


@refused("which a function may read that is called each time")
def a_counter_of_a_closure_of_an_optimiser() -> Any:
    owner, w = SimpleNamespace(calls=0), tensor([1.0, 2.0, 3.0, 4.0])
    gm, optimizer = GradManager().attach(w), optim.LBFGS([w], max_iter=3)

    def step(x: Any) -> Any:
        def closure() -> Any:
            owner.calls += 1
            with gm:
                loss = gnp.sum((w - x) ** 2)
                gm.backward(loss)
            return loss

        gm.clear_grad()
        return optimizer.step(closure)

    return step, lambda: (owner, w)


@refused("by two names")
def one_list_by_two_names() -> Any:
    one: list[Any] = []
    owner = SimpleNamespace(one=one, other=one)

    def step(x: Any) -> Any:
        owner.one.append(x)
        owner.other.append(x * 2)
        return x

    return step, lambda: owner


@refused("changes group")
def a_rate_of_an_optimiser() -> Any:
    w = tensor([1.0, 2.0, 3.0, 4.0])
    gm, optimizer = GradManager().attach(w), optim.SGD([w], lr=1)
    group = optimizer.param_groups[0]

    def step(x: Any) -> Any:
        group["lr"] += 1
        with gm:
            gm.backward(gnp.sum(w * x))
        optimizer.step()
        optimizer.zero_grad()
        return w * 1

    return step, lambda: (w, group["lr"])


@refused("changes drop.p")
def what_the_code_of_a_library_reads() -> Any:
    drop, settings = nn.Dropout(0.5), SimpleNamespace(p=0.0)

    def step(x: Any) -> Any:
        drop.p = settings.p
        return drop(x)

    def change(k: int) -> None:
        drop.p = 1.0

    return step, lambda: drop.p, change


@refused("changes losses")
def a_list_that_is_read() -> Any:
    losses = [tensor([1.0])]

    def step(x: Any) -> Any:
        losses.append(x)
        return x * len(losses)

    return step, lambda: losses


@refused("changes recent")
def a_queue_of_a_length() -> Any:
    recent: Any = deque(maxlen=3)

    def step(x: Any) -> Any:
        recent.append(gnp.sum(x))
        return x

    return step, lambda: recent


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_be_read_is_not_accumulated(name: str) -> None:
    why, make = REFUSED[name]
    step, *rest = make()
    expected = calls_of(step, *rest)
    step, *rest = make()
    compiled = compile(step)
    with pytest.warns(errors.CompileWarning, match=why):
        found = calls_of(compiled, *rest)
    assert found == expected
    assert "calls:" not in compiled.explain()


def test_a_call_that_is_made_again_does_not_accumulate_twice() -> None:
    """An array stands for others in a capture; what takes none of these raises, and the function is called again."""
    owner, kept, held = SimpleNamespace(n=0, last=None, doubled=1), list[Any](), {"n": 3}

    def step(x: Any) -> Any:
        owner.n += 1
        owner.doubled *= 2
        held["n"] *= 2
        owner.last = x.sum()
        kept.append(x)
        return memoryview(x).nbytes

    x = wave(4)
    with pytest.warns(errors.CompileWarning, match="TypeError"):
        assert compile(step)(x) == x.nbytes
    assert (owner.n, owner.doubled, held) == (1, 2, {"n": 6})
    assert values(owner.last) == values(x.sum())
    assert len(kept) == 1
    assert kept[0] is x


def test_a_program_keeps_nothing_alive_that_it_has_appended_or_assigned() -> None:
    owner: Any = SimpleNamespace(kept=[], last=None)

    def step(x: Any) -> Any:
        owner.kept.append(x * 2)
        owner.last = x * 3
        return x

    compiled = compile(step)
    for k in range(4):
        compiled(tensor(wave(4, at=k)))
    references = [weakref.ref(each) for each in (*owner.kept, owner.last)]
    owner.kept, owner.last = [], None
    assert "calls:" in compiled.explain()
    assert [reference() for reference in references] == [None] * 5
