"""Programs run by gradmgr, differentiated in the way and under the options that they name."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import (
    GradManager,
    Tensor,
    checkpoint,
    detect_anomaly,
    errors,
    forward_ad,
    functional,
    graph,
    special,
    tensor,
)
from gradmgr.profiler import profile
from tools.fuzz.functions import OURS
from tools.fuzz.program import Block, Line, Program, Statement
from tools.fuzz.reference import Values, run_line, scope


class Found(NamedTuple):
    """Values by name, gradients by the leaves, those of their product with the directions, and a slope."""

    values: dict[str, Any]
    gradients: list[Any]
    seconds: list[Any]
    slope: Any = None


class Run:
    """The variables of a run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.namespace = np if "numpy" in program.options else gnp

    def names(self, leaves: Sequence[Tensor]) -> Values:
        """Return the variables that a program begins with."""
        names = scope(self.namespace, special, OURS)
        for name, each in self.program.inputs.items():
            if not each.attached:
                names[name] = each.array if each.plain else tensor(each.array)
        return names | dict(zip(self.program.leaves, leaves, strict=True))

    def run(self, leaves: Sequence[Tensor]) -> Values:
        """Run the statements on these leaves; return all variables."""
        names = self.names(leaves)
        self.statements(self.program.statements, names)
        return names

    def statements(self, statements: Sequence[Statement], names: Values) -> None:
        for each in statements:
            if isinstance(each, Line):
                try:
                    value = run_line(each, names)
                except errors.LostWriteError:  # to a view of a variable; in the reference no variable shares memory
                    names[each.target] = names[each.target].clone()
                    value = run_line(each, names)
                is_constant = each.target.startswith("v") and not isinstance(value, Tensor)  # made of plain arrays
                names[each.target] = tensor(value) if is_constant else value
            else:
                self._block(each, names)

    def _block(self, block: Block, names: Values) -> None:
        if block.kind == "vmap":
            over = gnp.asarray(names[block.over])
            names[block.target] = gradmgr.vmap(partial(self._row, block, names))(over)
        elif block.kind == "checkpoint":
            free = [name for name in sorted(block.reads()) if name.startswith("v") and isinstance(names[name], Tensor)]
            made = checkpoint(partial(self._made, block, names, free), *[names[name] for name in free])
            names.update(zip(block.targets(), made, strict=True))
        elif block.kind == "thread":
            _in_thread(partial(contextvars.copy_context().run, self.statements, block.body, names))
        elif block.kind == "copied_context":
            contextvars.copy_context().run(self.statements, block.body, names)
        else:
            with gradmgr.no_grad() if block.kind == "no_grad" else _packed():
                self.statements(block.body, names)

    def _row(self, block: Block, names: Values, row: Tensor) -> Any:
        inside = names | {block.row: row}
        self.statements(block.body, inside)
        return inside[block.result]

    def _made(self, block: Block, names: Values, free: Sequence[str], *given: Tensor) -> tuple[Any, ...]:
        inside = names | dict(zip(free, given, strict=True))
        self.statements(block.body, inside)
        return tuple([inside[name] for name in block.targets()])


def _packed() -> AbstractContextManager[Any]:
    """Keep saved values elsewhere."""
    return graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t.clone())


def _in_thread(function: Callable[[], Any]) -> None:
    """Call a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


# ---------------------------------------------------------------- options


def _manager(program: Program) -> GradManager:
    options: dict[str, Any] = {"with_stack": "with_stack" in program.options}
    if "spill" in program.options or "spill_to_host" in program.options:
        options |= {"budget": 0, "spill": "disk" if "spill" in program.options else "host"}
    return GradManager(**options)


def _attached(program: Program, leaves: Sequence[Tensor]) -> GradManager:
    callbacks = [lambda t, g: None, lambda t, g: g * 1, _Later] if "callbacks" in program.options else None
    if "hooks" in program.options:
        for leaf in leaves:
            GradManager.attach(made := GradManager(), leaf)  # a hook needs a manager that has the tensor
            leaf.register_hook(lambda g: None)
            del made
    return _manager(program).attach(leaves, callbacks)


class _Later:
    """A future of the gradient."""

    def __init__(self, t: Tensor, g: Tensor) -> None:
        self._g = g

    def get(self) -> Tensor:
        return self._g


@contextlib.contextmanager
def _around(program: Program, gm: GradManager, leaves: Sequence[Tensor]) -> Iterator[None]:
    """Enter what the options name, and the manager."""
    with ExitStack() as stack:
        if "outer" in program.options:
            stack.enter_context(GradManager().attach(leaves))
        if "anomaly" in program.options:
            stack.enter_context(detect_anomaly(check_nan=False))
        if "profiled" in program.options:
            stack.enter_context(profile())
        if "packed" in program.options:
            stack.enter_context(_packed())
        if "forward_level" in program.options:
            stack.enter_context(forward_ad.dual_level())
        stack.enter_context(gm | GradManager().attach(leaves) if "outer_group" in program.options else gm)
        yield


# ---------------------------------------------------------------- ways to differentiate


def found_by(program: Program) -> Found:
    """Run a program and differentiate it in its way."""
    way = {
        "forward": _forward,
        "created": _created,
        "nested": _nested,
        "forward_over_reverse": _forward_over_reverse,
        "reverse_over_forward": _reverse_over_forward,
        "functional": _functional,
        "jacobian": _jacobian,
        "mapped": _mapped,
    }.get(program.mode, _reverse)
    if "threads" in program.options and way is _reverse:
        return _in_two_threads(program)
    return way(program, _leaves(program))


def _leaves(program: Program) -> list[Tensor]:
    return [tensor(program.inputs[name].array) for name in program.leaves]


def _in_two_threads(program: Program) -> Found:
    """Run a program in two threads at once, on the same leaves; their gradients add up."""
    leaves = _leaves(program)
    with ThreadPoolExecutor(2) as pool:
        one, other = [each.result() for each in [pool.submit(_reverse, program, leaves) for _ in range(2)]]
    if program.mode in ("grad", "batched"):
        return other
    return one._replace(gradients=[None if leaf.grad is None else leaf.grad * 0.5 for leaf in leaves])


def _known(program: Program, names: Values, gm: GradManager) -> tuple[list[Tensor], list[Any]]:
    """Return the outputs that a manager knows, and their weights."""
    tape = gm._open_tape()
    pairs = [(names[name], weight) for name, weight in program.outputs if tape.node_id_of(names[name]) is not None]
    return [y for y, _ in pairs], [np.array(weight) for _, weight in pairs]


def _reverse(program: Program, leaves: Sequence[Tensor]) -> Found:
    gm = _attached(program, leaves)
    with _around(program, gm, leaves):
        names = Run(program).run(leaves)
        ys, weights = _known(program, names, gm)
        gradients: Sequence[Any] = [None] * len(leaves)
        if ys:
            gradients = _REVERSE[program.mode](gm, ys, weights, leaves)
    return Found(_values(names), list(gradients), [])


def _by_backward(gm: GradManager, ys: Any, weights: Any, leaves: Any) -> Any:
    gm.backward(ys, weights)
    return [leaf.grad for leaf in leaves]


def _by_retained(gm: GradManager, ys: Any, weights: Any, leaves: Any) -> Any:
    gm.backward(ys, [0.25 * weight for weight in weights], retain=True)
    gm.backward(ys, [0.75 * weight for weight in weights])
    return [leaf.grad for leaf in leaves]


def _by_grad(gm: GradManager, ys: Any, weights: Any, leaves: Any) -> Any:
    return gradmgr.grad(ys, leaves, weights, allow_unused=True)


def _by_function(gm: GradManager, ys: Any, weights: Any, leaves: Any) -> Any:
    gradmgr.backward(ys, weights, inputs=leaves)
    return [leaf.grad for leaf in leaves]


def _by_batch(gm: GradManager, ys: Any, weights: Any, leaves: Any) -> Any:
    stacked = [np.stack([weight, -weight]) for weight in weights]
    found = gradmgr.grad(ys, leaves, stacked, is_grads_batched=True, allow_unused=True)
    return [None if g is None else g[0] * 0.5 - g[1] * 0.5 for g in found]


_REVERSE = {
    "backward": _by_backward,
    "retained": _by_retained,
    "grad": _by_grad,
    "backward_function": _by_function,
    "batched": _by_batch,
}


def _weighted(program: Program, names: Values) -> list[Any]:
    """Return, for each output, what its weight takes of it."""
    return [gnp.sum(gnp.real(names[name] * np.conj(weight))) for name, weight in program.outputs]


def _slope(program: Program, gradients: Sequence[Any]) -> Any:
    """Return the product of gradients and directions."""
    directions = [program.directions[name] for name in program.leaves]
    return sum(gnp.sum(gnp.real(g * np.conj(v))) for g, v in zip(gradients, directions, strict=True))


def _created(program: Program, leaves: Sequence[Tensor]) -> Found:
    gm = _attached(program, leaves)
    with _around(program, gm, leaves):
        names = Run(program).run(leaves)
        ys, weights = _known(program, names, gm)
        gradients: Sequence[Any] = [None] * len(leaves)
        seconds: Sequence[Any] = gradients
        if ys:
            gradients = gradmgr.grad(ys, leaves, weights, create_graph=True, materialize_grads=True)
            seconds = gradmgr.grad(_slope(program, gradients), leaves, materialize_grads=True)
    return Found(_values(names), list(gradients), list(seconds))


def _nested(program: Program, leaves: Sequence[Tensor]) -> Found:
    gm, outer = _attached(program, leaves), GradManager().attach(leaves)
    with outer, _around(program, gm, leaves):
        names = Run(program).run(leaves)
        ys, weights = _known(program, names, gm)
        gradients: list[Any] = [None] * len(leaves)
        if ys:
            gm.backward(ys, weights)
            gradients = _taken(leaves)
            slope = _slope(program, [leaf * 0 if g is None else g for leaf, g in zip(leaves, gradients, strict=True)])
            if outer._open_tape().node_id_of(slope) is not None:
                outer.backward(slope)
        seconds = _taken(leaves)
    return Found(_values(names), gradients, seconds)


def _taken(leaves: Sequence[Tensor]) -> list[Any]:
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def _duals(program: Program, leaves: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(leaves, program.leaves, strict=True)
    return [forward_ad.make_dual(leaf, program.directions[name]) for leaf, name in pairs]


def _forward(program: Program, leaves: Sequence[Tensor]) -> Found:
    with forward_ad.dual_level():
        names = Run(program).run(_duals(program, leaves))
        slope = 0.0
        for name, weight in program.outputs:
            t = forward_ad.unpack_dual(names[name]).tangent
            slope += 0.0 if t is None else float(np.sum(np.real(t.numpy() * np.conj(weight))))
    return Found(_values(names), [], [], slope)


def _forward_over_reverse(program: Program, leaves: Sequence[Tensor]) -> Found:
    with forward_ad.dual_level():
        found = _reverse_of_duals(program, _duals(program, leaves))
        pairs = [(None, None) if g is None else forward_ad.unpack_dual(g) for g in found.gradients]
    return found._replace(gradients=[g for g, _ in pairs], seconds=[t for _, t in pairs])


def _reverse_of_duals(program: Program, duals: Sequence[Tensor]) -> Found:
    gm = GradManager().attach(duals)
    with gm:
        names = Run(program).run(duals)
        ys, weights = _known(program, names, gm)
        if ys:
            gm.backward(ys, weights)
    return Found(_values(names), [dual.grad for dual in duals], [])


def _reverse_over_forward(program: Program, leaves: Sequence[Tensor]) -> Found:
    gm = _attached(program, leaves)
    with _around(program, gm, leaves), forward_ad.dual_level():
        names = Run(program).run(_duals(program, leaves))
        slope: Any = 0.0
        for name, weight in program.outputs:
            t = forward_ad.unpack_dual(names[name]).tangent
            slope = slope if t is None else slope + gnp.sum(gnp.real(t * np.conj(weight)))
        if isinstance(slope, Tensor) and gm._open_tape().node_id_of(slope) is not None:
            gm.backward(slope)
    return Found(_values(names), [], [leaf.grad for leaf in leaves], float(slope))


def _functional(program: Program, leaves: Sequence[Tensor]) -> Found:
    kept: Values = {}

    def function(*xs: Tensor) -> tuple[Tensor, ...]:
        names = Run(program).run(xs)
        kept.update(_values(names))
        return tuple([names[name] for name, _ in program.outputs])

    _, gradients = functional.vjp(function, tuple(leaves), tuple([np.array(weight) for _, weight in program.outputs]))
    return Found(kept, list(gradients), [])


def _jacobian(program: Program, leaves: Sequence[Tensor]) -> Found:
    def function(*xs: Tensor) -> Tensor:
        return sum(_weighted(program, Run(program).run(xs)))

    options = {"vectorize": bool(program.seed % 2), "strategy": ["reverse-mode", "forward-mode"][program.seed // 2 % 2]}
    if program.contains("F.hooked", "with no_grad") or program.is_single():  # which are other things in forward mode
        options["strategy"] = "reverse-mode"
    gradients = functional.jacobian(function, tuple(leaves), **options)
    return Found({}, list(gradients), [])


def _mapped(program: Program, leaves: Sequence[Tensor]) -> Found:
    """Map the gradient over a batch of the same inputs."""

    def gradients(*xs: Tensor) -> tuple[Tensor, ...]:
        gm = GradManager().attach(xs)
        with gm:
            ys, weights = _known(program, Run(program).run(xs), gm)
            if ys:
                gm.backward(ys, weights)
        return tuple([gnp.zeros_like(x) if x.grad is None else x.grad for x in xs])

    found = gradmgr.vmap(gradients)(*[gnp.stack([leaf, leaf * 1]) for leaf in leaves])
    return Found({}, [g[1] for g in found], [])


def _values(names: Values) -> Values:
    return {name: value for name, value in names.items() if isinstance(value, (Tensor, np.ndarray, np.generic))}
