"""What gradcheck checks: a function at a point, a recording of it, and its derivatives as such functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr._transforms.gradcheck_derivatives import (
    Function,
    Recorded,
    differentiable_outputs,
    flatten,
    is_differentiable,
    jvp,
    new_handle,
    or_zeros,
    unit_arrays,
    vjp,
)


class NotDeterministicError(Exception):
    """Two calls of a function gave outputs that cannot be compared; holds the line to report."""


class Problem:
    """A function at a point, and the names of its inputs and outputs in a report."""

    __slots__ = ("argnums", "func", "names", "output_metadata", "outs", "points", "prefix")

    def __init__(
        self, func: Function, points: list[Any], names: list[str], outs: list[str] | None, prefix: str
    ) -> None:
        self.func = func
        self.points = points
        self.names = names
        self.outs = outs  # None: "output k"
        self.prefix = prefix  # names the derivatives taken so far
        self.argnums = [k for k, t in enumerate(points) if is_differentiable(t)]
        self.output_metadata: list[Any] | None = None  # of the first call: shapes, and which are complex

    def outputs(self) -> list[tuple[str, Tensor]]:
        """Call the function; return the names of the differentiable outputs, and the outputs."""
        found = self.call_for_values(self.call_checked, list(map(new_handle, self.points)))
        return [(f"output {k}" if self.outs is None else self.outs[k], y) for k, y in found]

    def call_for_values(self, func: Function, args: list[Any]) -> list[tuple[int, Tensor]]:
        """Return the differentiable outputs of the function, called for its values alone.

        It is recorded, as it may set hooks on what it computes; a derivative as a function has its own recording.
        """
        if self.prefix:
            return differentiable_outputs(func(*args))
        return Recorded([args[k] for k in self.argnums]).run(lambda: differentiable_outputs(func(*args)))

    def call_checked(self, *args: Any) -> Any:
        """Call the function and check that its outputs are as those of the first call."""
        result = self.func(*args)
        self.check_metadata([y for _, y in differentiable_outputs(result)])
        return result

    def check_metadata(self, outs: Sequence[Tensor]) -> None:
        """Check that the outputs of a call have the shapes of those of the first, and are complex where those were."""
        metadata = [(y.shape, y.size > 0 and y.dtype.kind == "c") for y in outs]
        if self.output_metadata is None:
            self.output_metadata = metadata
        if metadata != self.output_metadata:
            one, other = (
                ", ".join(f"{shape}{' complex' * c}" for shape, c in many) for many in (self.output_metadata, metadata)
            )
            raise NotDeterministicError(
                f"- {self.prefix}the function is not deterministic: one call gave outputs of {one}, another of {other}"
            )

    def input_blocks(self) -> list[Block]:
        """Return a block for each differentiable input."""
        return blocks_of([(self.names[k], self.points[k]) for k in self.argnums])


class Block:
    """The slice of one tensor in a vector of all of them: its real parts, then its imaginary ones."""

    __slots__ = ("complex", "name", "shape", "start", "stop")

    def __init__(self, name: str, shape: tuple[int, ...], start: int, stop: int, is_complex: bool) -> None:
        self.name = name
        self.shape = shape
        self.start = start
        self.stop = stop
        self.complex = is_complex

    def format_index(self, k: int) -> str:
        """Return the index of an element, counted from the start of the block, as text."""
        size = int(np.prod(self.shape))
        index = f"[{', '.join(map(str, np.unravel_index(k % size, self.shape)))}]" if self.shape else "[()]"
        return index + (".imag" if k >= size else ".real" if self.complex else "")


def blocks_of(tensors: Sequence[tuple[str, Any]]) -> list[Block]:
    """Return where each tensor, given with its name, is in the vector of all of their real numbers."""
    made, start = [], 0
    for name, t in tensors:
        is_complex = t.dtype.kind == "c"
        stop = start + t.size * (1 + is_complex)
        made.append(Block(name, t.shape, start, stop, is_complex))
        start = stop
    return made


def describe_missing_input(problem: Problem) -> str:
    """Return the line of a report that says that there is nothing to differentiate by."""
    found = ", ".join(str(t.dtype) if isinstance(t, Tensor) else type(t).__name__ for t in problem.points)
    return (
        f"- {problem.prefix}no input is of a floating or complex dtype; found {found or 'none'}: "
        "make what is to be differentiated with gradmgr.tensor(..., dtype='float64')"
    )


# ---------------------------------------------------------------- its derivatives


def reverse_problem(problem: Problem, rows: Sequence[Block], us: Sequence[Any]) -> Problem:
    """Return the problem of the reverse derivative, a function of the inputs and the cotangents."""
    names = [f"the cotangent of {row.name}" for row in rows]
    outs = [f"the gradient of {problem.names[k]}" for k in problem.argnums]
    return _derived(problem, "reverse", vjp, us, names, outs)


def forward_problem(problem: Problem, rows: Sequence[Block], vs: Sequence[Any]) -> Problem:
    """Return the problem of the forward derivative, a function of the inputs and the tangents."""
    names = [f"the tangent of {problem.names[k]}" for k in problem.argnums]
    outs = [f"the tangent of {row.name}" for row in rows]
    return _derived(problem, "forward", jvp, vs, names, outs)


def _derived(
    problem: Problem,
    mode: str,
    derivative: Callable[..., Any],
    vectors: Sequence[Any],
    names: list[str],
    outs: list[str],
) -> Problem:
    """Return the problem of `vjp` or `jvp` as a function of the inputs and of vectors with these names."""
    count = len(problem.points)

    def function(*args: Any) -> Any:
        return derivative(problem.func, args[:count], problem.argnums, args[count:])

    points = [*problem.points, *map(wrap, vectors)]
    prefix = f"{problem.prefix}derivative of the {mode} derivative: "
    return Problem(function, points, [*problem.names, *names], outs, prefix)


def forward_derivative(problem: Problem, vs: Any) -> Any:
    """Return the forward derivative; where that raises, add a note that says how to leave it out."""
    try:
        tangents = jvp(problem.call_checked, problem.points, problem.argnums, vs)
    except NotDeterministicError:
        raise
    except Exception as error:  # re-raised, with the note
        error.add_note("(gradcheck was checking forward mode, which check_forward_ad=False leaves out)")
        raise
    return flatten(tangents)


class RecordedFunction(Recorded):
    """A function recorded once, whose vjp can be called any number of times while this is open."""

    def __init__(self, problem: Problem) -> None:
        self.has_misfit = False  # whether a gradient has not the shape of its input, so that there is no Jacobian
        self.gradients: list[Tensor] = []  # along the random direction
        self.leaves = [new_handle(t) for t in problem.points]
        self.inputs = [self.leaves[k] for k in problem.argnums]
        self._problem = problem
        super().__init__(self.inputs)

    def _open(self, opened: Any) -> None:
        super()._open(opened)
        self.outs = [y for _, y in differentiable_outputs(self._problem.call_checked(*self.leaves))]
        tape = self.manager._open_tape()
        self.tracked = [tape.node_id_of(y) is not None for y in self.outs]

    def vjp(self, us: Sequence[Any], missing: int | None = None) -> list[Tensor]:
        """Return the gradients for these cotangents; one may be missing."""
        given = [k for k, tracked in enumerate(self.tracked) if tracked and k != missing]
        self.manager.backward([self.outs[k] for k in given], [us[k] for k in given], retain=True)
        found = [or_zeros(t.grad, t) for t in self.inputs]
        self.manager.clear_grad()
        return found

    def jacobian(self, outs: Sequence[Tensor], height: int, width: int) -> Any:
        """Return the Jacobian, row by row: the vjp of each unit cotangent is a row."""
        made, row = np.zeros((height, width)), 0
        zeros = [np.zeros_like(raw(y)) for y in outs]
        for place, y in enumerate(outs):
            for direction in unit_arrays(y):
                made[row] = flatten(self.vjp([direction if j == place else zero for j, zero in enumerate(zeros)]))
                row += 1
        return made
