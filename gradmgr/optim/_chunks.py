"""Chunks of parameters: many small ones in one flat buffer, so that a step over them is a few array calls.

A chunk holds parameters of one group, dtype and device. Small parameters become views of one flat buffer; a large
one is a chunk by itself and keeps its array. A step writes to this memory only if nothing else refers to it, which it
tells by the reference counts of the views and of the buffer. Where a program holds a value (a slice, a `detach()`, a
`numpy()` view, an open recording), the step is computed in new memory, to which the parameters are then bound. If a
parameter was written to or replaced since the last step, its array is another object; the step starts from that.

A chunk takes no step itself: it returns the calls that do, down to the binding of the parameters and the count of
steps. The optimiser makes the calls of all chunks together (`_arrays.atomic`), so that an exception that strikes during
a step leaves all parameters and states as they were before it or after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter, is_, itemgetter, setitem
from sys import getrefcount
from typing import Any, Literal

import numpy as np

from gradmgr import errors
from gradmgr._arrays import blocks, libraries, native_kernels
from gradmgr._arrays.atomic import Call, run_quietly
from gradmgr._arrays.batched import Batched, is_batched
from gradmgr._arrays.refcounts import VIEW_IN_CHUNK
from gradmgr._arrays.table_rows import TableRows
from gradmgr._engine import write_lock
from gradmgr._engine.context import current, recorders
from gradmgr._engine.mutation import calls_to_step
from gradmgr._engine.row_sparse import RowSparse, stored_rows
from gradmgr._engine.tensor import Tensor, bare, describe
from gradmgr.ops.convert import wide_dtype
from gradmgr.optim._numbers import Number, is_used, number
from gradmgr.optim._updates import machine_update

Array = Any

# Bytes of a parameter that are computed at a time: with its gradient, state and scratch they fit in a core's cache.
# Larger parameters are chunks by themselves: the overhead of a chunk is small compared with their arithmetic.
BLOCK_BYTES = 1 << 17
# Large parameters are computed in larger blocks, which means fewer calls, and without state in blocks of twice this
# size. SGD over 1,000,000 float32 takes 0.8 of its time with blocks of 1 << 17; still larger blocks gain nothing.
_LARGE_BYTES = 1 << 18
# The least count of numbers for which several threads share the blocks: with 100,000 they took 1.2 times as long.
_MANY = 1 << 19
# On a GPU launching a kernel takes as long as computing a million elements; blocks only limit the scratch memory.
_GPU_SMALL = 1 << 20
_GPU_BLOCK = 1 << 22

_ARRAY = attrgetter("_array")
# NumPy's C function itself. Around it stands one that dispatches on the types of the arguments, written in Python.
_concatenate: Callable[..., Any] = getattr(np.concatenate, "_implementation", np.concatenate)


# How an algorithm updates a block in place: a function and a source text. The function, compute(xp, (_, _, *constants),
# p, g, t, u, *state), does it by array calls: it does not write to g; t and u are scratch. The source, if not empty, is
# the same for one element in CUDA C++: x is the parameter, y the gradient, s0, s1, ... the state and c2, c3, ... the
# constants, all of type W. The last is the name of a kernel of gradmgr-native that does the same, if not empty.
Update = tuple[Callable[..., None], str, str]
ByStep = Callable[[int], Sequence[Number]]  # returns the constants of the step with a number, from 1
Rows = Sequence[Array]


# What a step makes of a gradient of rows, a RowSparse: "update" only these rows, where that is what the whole table
# would give, or "need" it for that, and refuse others; make it "dense", as the other rows change too; "refuse" it. One
# that the user did not ask for is made dense, too, where it would be refused.
RowUse = Literal["update", "need", "dense", "refuse"]


def update_rule(source: str = "", kernel: str = "") -> Callable[[Callable[..., None]], Update]:
    """Make an Update of the decorated function, its CUDA C++ source for one element, and the name of a kernel."""
    return lambda compute: (compute, source, kernel)


class Plan:
    """How an algorithm updates a block, for fixed options of a group."""

    __slots__ = (
        *("by_step", "compute", "constants", "counts_step", "decays", "kernel", "kind", "maximize"),
        *("rows", "shrinks", "source"),
    )

    def __init__(
        self,
        update: Update,
        constants: Sequence[Number],
        by_step: ByStep | None = None,
        *,
        decay: Number = 0.0,
        shrink: Number = 1.0,
        maximize: bool = False,
        counts_step: bool = True,
        rows: RowUse = "refuse",
    ) -> None:
        self.compute, self.source, self.kernel = update
        # The constants that are the same at each step. What is not a number fails here, before anything is changed.
        self.constants = [*map(number, (decay, shrink, *constants))]
        self.decays = is_used(self.constants[0])  # whether this multiple of the parameter is added to its gradient
        self.shrinks = is_used(self.constants[1], 1)  # whether the parameter is first multiplied by this
        self.maximize = maximize
        # Which calls are made, whatever the constants: two plans that differ by the `lr` alone have the same kind.
        self.kind = self.compute, self.shrinks, bool(maximize), self.decays
        self.by_step = by_step  # returns the further constants of the step with this number
        self.rows = rows
        self.counts_step = counts_step  # whether steps are counted; not needed without state

    def native_flags(self) -> float:
        """Return the options of the plan that a kernel gets, as bits of a number, besides its constants."""
        return float(self.shrinks + 2 * bool(self.maximize) + 4 * self.decays)

    def update(
        self, xp: Any, constants: Sequence[Any], p: Any, g: Any, rows: Sequence[Any], state: Sequence[Any]
    ) -> None:
        """Update a block in place by functions of `xp`, with three scratch rows."""
        t, u, changed = rows
        if self.shrinks:
            xp.multiply(p, constants[1], p)
        if self.maximize:
            g = xp.negative(g, changed)
        if self.decays:
            g = xp.add(g, xp.multiply(p, constants[0], t), changed)
        self.compute(xp, constants, p, g, t, u, *state)


class _Tracer:
    """Stands in for NumPy in an update rule: notes each call, and which arrays it is given by their number."""

    def __init__(self, xp: Any) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[int, ...], int | None]] = []
        self._xp = xp

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._xp, name)

        def note(*operands: int, out: int | None = None) -> int:
            self.calls.append((function, operands, out))
            return operands[-1] if out is None else out  # where it writes

        return note


# The number of the first state in the calls of `traced`.
FIRST_STATE = 5


def traced(plan: Plan, xp: Any, states: int) -> list[tuple[Callable[..., Any], tuple[int, ...], int | None]]:
    """Return the calls of an update rule: the function, the numbers of its operands, and where it writes.

    The parameter has the number 0, its gradient 1, three scratch rows 2, 3 and 4; then come the states, and then the
    constants, of which there may be more than the rule uses. A function that is given None writes to its last operand.
    """
    tracer = _Tracer(xp)
    end = FIRST_STATE + states
    plan.update(tracer, range(end, end + 16), 0, 1, (2, 3, 4), tuple(range(FIRST_STATE, end)))
    return tracer.calls


class Program:
    """The calls of an update rule, for any arrays."""

    __slots__ = ("_calls", "_functions")

    def __init__(self, plan: Plan, xp: Any, states: int) -> None:
        calls = traced(plan, xp, states)
        self._functions = tuple([function for function, _, _ in calls])
        offset = len(self._functions)
        self._calls: list[Callable[[Any], Call]] = []  # each chooses its function and operands
        for k, (_, operands, out) in enumerate(calls):
            chosen = itemgetter(k, *[offset + number for number in operands])
            self._calls.append(chosen if out is None else partial(_with_out, chosen, offset + out))

    def calls(
        self, constants: Sequence[Any], p: Array, g: Array, rows: Sequence[Array], state: Sequence[Array]
    ) -> list[Call]:
        """Return the calls that update one block in place."""
        arrays = (*self._functions, p, g, *rows, *state, *constants)
        return [chosen(arrays) for chosen in self._calls]


class Run:
    """Neighbouring parameters of a chunk that take a step of the same number by the same plan."""

    __slots__ = ("first", "last", "plan", "step", "step_constants")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last  # exclusive
        self.step = 0  # the number of the step, from 1
        self.plan: Any = None
        self.step_constants: Sequence[Number] = ()  # what the plan's `by_step` returned

    def set_step(self, step: int, plan: Plan) -> None:
        """Set the step's number, its plan and the constants of this step."""
        self.step = step
        self.plan = plan
        self.step_constants = () if plan.by_step is None else plan.by_step(step)


Segment = tuple[int, int, Array, list[Array]]  # first and last (exclusive) parameter, their numbers, their states


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the real and imaginary part of a complex dtype, and any other dtype itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def block_size(dtype: np.dtype[Any], nbytes: int = BLOCK_BYTES) -> int:
    """Return how many real numbers of this dtype are computed at a time."""
    return nbytes // max(4, real_of(dtype).itemsize)


def flattened(array: Array) -> Array:
    """View a C-contiguous array as one row of real numbers, a complex number as two."""
    row = array.reshape(-1)
    return row.view(real_of(row.dtype)) if row.dtype.kind == "c" else row


def kernel_text(source: str, constants: int, states: int, wide: str, decays: bool) -> tuple[str, str, str]:
    """Return the arguments of CuPy's ElementwiseKernel: input and output parameters, and the code for one element.

    Args:
        source: the source of an `Update`.
        constants: the number of constants, weight decay and shrinking included.
        states: the number of states.
        wide: the type to compute in, "float" or "double".
        decays: whether to add weight decay to the gradient. (Adding it times 0 would spread inf and NaN.)
    """
    bits = "float32" if wide == "float" else "float64"
    given = ", ".join(["T g", f"{bits} sign", *[f"{bits} c{k}" for k in range(constants)]])
    changed = ", ".join(["T p", *[f"T r{k}" for k in range(states)]])
    start = [f"{wide} x = ({wide})p * c1;", f"{wide} y = ({wide})g * sign{' + c0 * x' * decays};"]
    start += [f"{wide} s{k} = ({wide})r{k};" for k in range(states)]
    end = ["p = (T)x;", *[f"r{k} = (T)s{k};" for k in range(states)]]
    return given, changed, " ".join([*start, source.replace("W ", f"{wide} "), *end])


def _with_out(chosen: Callable[[Any], Call], out: int, arrays: Sequence[Any]) -> Call:
    """Return a call of a function that takes the array to write to by name only."""
    function, *operands = chosen(arrays)
    return (partial(function, out=arrays[out]), *operands)


class Scratch:
    """What the chunks of an optimiser share: scratch rows for intermediate results, programs, and GPU kernels."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, np.dtype[Any], int], ScratchRows] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def program(self, xp: Any, plan: Plan, states: int) -> Program:
        """Return the program of plans of this kind."""
        key = xp, plan.kind, states
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = Program(plan, xp, states)
        return found

    def kernel(self, xp: Any, plan: Plan, constants: int, states: int, dtype: np.dtype[Any]) -> Any:
        """Return one CuPy kernel for a whole update; CuPy compiles it when it is first called."""
        wide = "double" if dtype.itemsize == 8 else "float"
        key = plan.source, states, wide, plan.decays
        if key not in self._kernels:
            text = kernel_text(plan.source, constants, states, wide, plan.decays)
            self._kernels[key] = xp.ElementwiseKernel(*text, "gradmgr_optim_step")
        return self._kernels[key]

    def rows(self, xp: Any, device: str, dtype: np.dtype[Any], size: int, lane: int = 0) -> ScratchRows:
        """Return rows of at least this size; calls that run at the same time have different lanes.

        They are kept, as new memory costs more than the arithmetic.
        """
        key = device, dtype, lane
        found = self._rows.get(key)
        if found is None or found.size < size:
            found = self._rows[key] = ScratchRows(xp, dtype, size)
        return found

    def drop_rows(self) -> None:
        """Let go of all rows."""
        self._rows.clear()


class ScratchRows:
    """Rows of scratch: one for gradients, three to compute in, and more for half precision.

    Each is made when it is first asked for: a kernel of gradmgr-native needs the first alone, or none.
    """

    __slots__ = ("_joined", "_more", "_slices", "dtype", "size", "xp")

    def __init__(self, xp: Any, dtype: np.dtype[Any], size: int) -> None:
        self.xp = xp
        self.dtype = dtype
        self.size = size
        self._joined: Array = None
        self._more: list[Array] = []
        # Kept by size: to slice three rows takes as long as two calls on them.
        self._slices: dict[int, list[Array]] = {}

    def for_gradients(self, size: int) -> Array:
        """Return the row into which gradients are joined, cut to this size."""
        if self._joined is None or self._joined.size < size:  # large parameters, which need longer rows, join none
            self._joined = self.xp.empty(size, self.dtype)
        return self._joined[:size]

    def to_compute_in(self, size: int) -> list[Array]:
        """Return three rows, cut to this size."""
        found = self._slices.get(size)
        if found is None:
            found = self.more(3, size)
            if len(self._slices) < 100:
                self._slices[size] = found
        return found

    def more(self, count: int, size: int) -> list[Array]:
        """Return so many rows, cut to this size; the first three are those of `to_compute_in`."""
        while len(self._more) < count:
            self._more.append(self.xp.empty(self.size, self.dtype))
        return [row[:size] for row in self._more[:count]]


def is_packable(p: Tensor) -> bool:
    """Tell whether a parameter is small enough to share a buffer with others."""
    size = p.size * (2 if p.dtype.kind == "c" else 1)
    return size <= (block_size(p.dtype) if libraries.namespace(p._array) is np else _GPU_SMALL)


def is_refused(rows: TableRows | None) -> bool:
    """Tell whether rows, if a gradient is of rows, are what the user asked for; others stand for a whole table."""
    return rows is not None and rows.on_request


def _offsets(params: list[Tensor], width: int) -> list[int]:
    """Return where each parameter begins in a row of real numbers, and where the last one ends."""
    return list(accumulate((width * p.size for p in params), initial=0))


def _check_not_batched(params: list[Tensor]) -> None:
    for p in params:
        if is_batched(p._array):
            raise errors.BatchedValueError(
                f"step(): {describe(p)} differs between examples of a vmap; step outside of it"
            )


_ROWS_OR_ALL = {True: "of rows, as embedding(..., sparse=True) gives it", False: "that of the whole table"}
_WHAT_TO_DO = {
    "need": "this optimiser takes gradients of rows alone: pass sparse=True to the embedding, or use Adam",
    "refuse": "this optimiser changes all rows in each step: use SparseAdam, SGD or Adagrad, or make it whole by "
    "p.grad = p.grad.to_dense()",
}

# Numbers from which on a kernel of gradmgr-native, called by Python, takes less time than the machine, which makes the
# calls of NumPy's loops that it replaces: .5 of it for Adam of 80,000, 1.3 of it for 1,000.
_FOR_KERNELS = 1 << 14


_NOT_QUICK: tuple[Any, Sequence[Array], Plan | None, Any] = None, (), None, None


class Chunk:
    """Some parameters of a group, their state and their steps."""

    __slots__ = (
        *(
            "_common_steps",
            "_constants",
            "_filled_by",
            "_flat",
            "_flat_references",
            "_is_even",
            "_may_write",
            "_one_run",
            "_quick",
        ),
        *("_packed", "_prepared", "_scratch", "_segments", "_step_constants", "_steps", "_views"),
        *("block", "buffers", "device", "dtype", "names", "offsets", "params", "pick", "recorded", "shapes"),
        *("updates", "xp"),
    )

    def __init__(self, params: list[Tensor], scratch: Scratch, may_pack: bool = True) -> None:
        _check_not_batched(params)
        like = params[0]._array
        self.params = params
        self.shapes = [p._array.shape for p in params]
        self.dtype = like.dtype
        self.device = libraries.device_of(like)
        self.xp = libraries.namespace(like)
        self.offsets = _offsets(params, 2 if self.dtype.kind == "c" else 1)
        self._packed = may_pack and is_packable(params[0])  # the parameters are views of one buffer
        self.block = _GPU_BLOCK if self.xp is not np else block_size(self.dtype, _LARGE_BYTES >> self._packed)
        self.buffers: dict[str, Array] = {}  # each state of all parameters as one row of real numbers, by name
        self.names: tuple[str, ...] = ()  # of the states that the algorithm uses, in its order
        # By name and number of the parameter, states that a recorded step computed, with the number of that step.
        self.recorded: dict[tuple[str, int], tuple[int, Tensor]] = {}
        self._scratch = scratch
        # The steps of each parameter except those that all took together since; and whether all took the same number.
        self._steps = [0] * len(params)
        self._common_steps = 0
        self._is_even = True
        self._one_run = [Run(0, len(params))]  # the runs where all parameters take the same step
        # The plan whose constants these arrays hold; all constants; those that change with each step, which come last.
        self._filled_by: Plan | None = None
        self._constants: list[Array] = []
        self._step_constants: list[Array] = []
        # The buffer; the parameters as views of it; its reference count if nothing else refers to it; whether it may be
        # written to now.
        self._flat: Array = None
        self._views: list[Array] = []
        self._flat_references = 0
        self._may_write = False
        self._segments: list[Segment] = []
        # Of the last step, if there is one segment: the kind of its plan, the row into which the gradients are joined,
        # and the other calls. A step of the same kind makes the same.
        self._prepared: tuple[Any, Array, list[Call]] | None = None
        # What takes the gradients of these parameters out of those of all; updates by a machine, by their kind.
        self.pick: Callable[[Sequence[Array]], Sequence[Array]] | None = None
        self.updates: dict[Any, Callable[..., Any] | None] = {}
        # Of the last step that was taken so: an update, the rows of its states, the plan, and the machine.
        self._quick = _NOT_QUICK

    # ------------------------------------------------------------ before the step

    def fits(self) -> bool:
        """Tell whether the parameters still have the dtype and device that the chunk was made for.

        The caller holds `write_lock.lock` until the step is taken: no other thread takes the arrays.
        """
        # In this order: other threads may replace arrays, but after the guard they take none.
        if self._views and write_lock.hold_all(self.params) and self._is_unshared():
            self._may_write = all(map(is_, map(_ARRAY, self.params), self._views))
            if self._may_write:
                return True
        self._may_write = False
        if not self._packed and self.xp is np:
            a = self.params[0]._array
            if a.__class__ is np.ndarray and a.dtype is self.dtype:  # the common case
                return True
        _check_not_batched(self.params)
        return all(p._array.dtype == self.dtype and libraries.device_of(p._array) == self.device for p in self.params)

    def _is_unshared(self) -> bool:
        """Tell whether only the chunk and the parameters refer to the buffer and its views."""
        return max(map(getrefcount, self._views)) <= VIEW_IN_CHUNK and getrefcount(self._flat) <= self._flat_references

    def next_step(
        self, first: Plan, later: Plan, given: Sequence[Array] | None = None
    ) -> tuple[Sequence[Array], list[Run]]:
        """Return the array of each parameter's gradient, None if there is none, and the runs of the next step.

        There is one run if all parameters have gradients and have taken the same number of steps.

        Args:
            first: the plan of a parameter's first step.
            later: the plan of its later steps.
            given: the array of each parameter's gradient, where it is not that of its `.grad`.

        Raises:
            ShapeError, TypeError: a gradient does not fit its parameter.
        """
        try:
            # Of None it raises AttributeError.
            if given is None:
                held = [p._grad for p in self.params]
                grads: Sequence[Any]
                if RowSparse in map(type, held) or later.rows == "need":
                    grads = self._arrays_or_rows(held, later.rows)
                else:
                    grads = [g._array for g in held]  # type: ignore[union-attr]  # see above
            else:
                grads = given
            shapes = [g.shape for g in grads]
        except AttributeError:
            # Read once: threads set it.
            grads = given or self._arrays_or_rows([p.grad for p in self.params], later.rows)
            self.check(grads)
            return grads, self.runs_of(grads, first, later)
        if shapes != self.shapes or Batched in map(type, grads):
            self.check(grads)
        if not self._is_even:
            return grads, self.runs_of(grads, first, later)
        run = self._one_run[0]
        run.step = step = self._steps[0] + self._common_steps + 1
        run.plan = plan = later if step > 1 else first
        run.step_constants = () if plan.by_step is None else plan.by_step(step)
        return grads, self._one_run

    def _arrays_or_rows(self, held: Sequence[Tensor | None], use: RowUse) -> list[Any]:
        """Return the arrays of gradients; the rows of one of these, where only they are updated."""
        found: list[Any] = []
        for p, g in zip(self.params, held, strict=True):
            rows = stored_rows(g)
            is_wrong = (use == "need" and rows is None) or (use == "refuse" and is_refused(rows))
            if g is not None and is_wrong:
                raise errors.UnsupportedFunctionError(
                    f"step(): the gradient of {describe(p)} is {_ROWS_OR_ALL[g.is_sparse]}; {_WHAT_TO_DO[use]}"
                )
            as_rows = rows is not None and (use == "need" or (use == "update" and not self._packed))
            found.append(rows if as_rows else None if g is None else g._array)
        return found

    def check(self, grads: Sequence[Array]) -> None:
        """Raise if the array of a gradient, None if there is none, does not fit its parameter.

        Raises:
            ShapeError, RuntimeError: it does not, or the parameter has another shape than before.
        """
        for p, g, shape in zip(self.params, grads, self.shapes, strict=True):
            if p._array.shape != shape:
                raise errors.StateError(
                    f"step(): {describe(p)} had shape {shape} when the optimiser last saw it; make a new optimiser"
                )
            if g is not None and is_batched(g):
                raise errors.BatchedValueError(
                    f"step(): the gradient of {describe(p)} differs between examples of a vmap; step outside of it"
                )
            if g is not None and g.shape != shape:
                raise errors.ShapeError(f"step(): the gradient of {describe(p)} has shape {g.shape}")

    def runs_of(self, grads: Sequence[Any], first: Plan, later: Plan) -> list[Run]:
        """Return the runs of the next step, where these are the gradients, None if there is none."""
        found: list[Run] = []
        for k, g in enumerate(grads):
            if g is None:
                continue
            step = self.step_of(k) + 1
            if found and found[-1].last == k and found[-1].step == step:
                found[-1].last = k + 1
            else:
                found.append(Run(k, k + 1))
                found[-1].set_step(step, later if step > 1 else first)
        return found

    # ------------------------------------------------------------ state

    def step_of(self, k: int) -> int:
        """Return how many steps parameter k has taken."""
        return self._steps[k] + self._common_steps

    def set_steps(self, steps: list[int]) -> None:
        """Set how many steps each parameter has taken."""
        self._steps = steps
        self._common_steps = 0
        self._is_even = steps.count(steps[0]) == len(steps)

    def calls_to_count(self, runs: list[Run]) -> list[Call]:
        """Return the calls that count the step of parameters that do not all take the same."""
        steps = [step + self._common_steps for step in self._steps]
        for run in runs:
            if run.plan.counts_step:
                steps[run.first : run.last] = [run.step] * (run.last - run.first)
        is_even = steps.count(steps[0]) == len(steps)
        values = {"_steps": steps, "_common_steps": 0, "_is_even": is_even}
        return [(setattr, self, name, value) for name, value in values.items()]

    def use_states(self, names: tuple[str, ...], initial: Callable[[str], Number]) -> None:
        """Pass these states to the algorithm, in this order; others, of earlier options, are kept but not used."""
        for name in names:
            self.ensure_state(name, initial(name))
        self.names = names
        self._views = []  # so that the next step makes a new buffer and new segments
        self._quick = _NOT_QUICK
        self._may_write = False

    def ensure_state(self, name: str, value: Number = 0.0) -> None:
        """Make the row of a state, filled with this value, unless there is one."""
        if name not in self.buffers:
            like = self.params[0]._array
            row = self.xp.empty_like(like, dtype=real_of(self.dtype), shape=(self.offsets[-1],))
            row[...] = float(bare(value))
            self.buffers[name] = row

    def _states(self) -> list[Array]:
        return [self.buffers[name] for name in self.names]

    def state_part(self, name: str, k: int) -> Array:
        """Return the state of parameter k, in its shape: a view."""
        row = self.buffers[name][self.offsets[k] : self.offsets[k + 1]]
        return (row.view(self.dtype) if self.dtype.kind == "c" else row).reshape(self.shapes[k])

    # ------------------------------------------------------------ the step

    def step_calls(
        self,
        grads: Sequence[Array],
        runs: list[Run],
        lanes: list[list[Call]],
        machine: Any = None,
        options: Sequence[Tensor] = (),
    ) -> list[Call]:
        """Return the calls that take the step: in place, or in new memory if something else refers to the old.

        The caller has held `write_lock.lock` since it called `fits`, and makes the calls with it.

        Args:
            grads: as `next_step` returned them.
            runs: the same.
            lanes: to which calls are added that come before the others; each lane may run on its own thread.
            machine: makes the calls of the update where it can; the gradients are then contiguous and aligned.
            options: Tensors on which the step depends, besides the parameters.
        """
        update = None if machine is None else self._update_by(machine, runs)
        if not self._packed:
            calls = self._large_calls(grads[0], runs[0], lanes, update)
        elif self._may_write:
            calls = self._packed_calls(grads, runs, update)
        else:
            self._move()
            calls = self._packed_calls(grads, runs, update)
            calls += [(setattr, p, "_array", view) for p, view in zip(self.params, self._views, strict=True)]
        if runs is self._one_run:
            stepped = self.params
            if runs[0].plan.counts_step:
                calls.append((setattr, self, "_common_steps", self._common_steps + 1))
        else:
            stepped = [p for run in runs for p in self.params[run.first : run.last]]
            calls += self.calls_to_count(runs)
        state = current()
        if state is not None and any(rec.open for rec in recorders(state)):
            for p in stepped:
                calls += calls_to_step(p, options)
        else:
            for p in stepped:
                p._rec = None
        if self.recorded:
            calls.append((self.recorded.clear,))
        return calls

    def add_quick_calls(
        self, calls: list[Call], first: Plan, later: Plan, given: Sequence[Array], machine: Any
    ) -> bool:
        """Add the calls of `step_calls` after `fits` and `next_step` in the usual case.

        It is that a machine took such a step before. In any other case add none, and return False. There are gradients
        of all parameters of the optimiser, in their shapes, contiguous and aligned. It is one frame, as each replay
        asks: `fits` alone would take 0.3 us more.
        """
        views, params = self._views, self.params
        if not self._is_even:
            return False
        step = self._steps[0] + self._common_steps + 1
        plan = later if step > 1 else first
        if not views:
            return not self._packed and self._add_large_call(calls, step, plan, given, machine)
        update, rows, known, by = self._quick
        if plan is not known or by is not machine:
            update = self.updates.get((machine, plan.kind, len(self.names)))
            if update is None or self.pick is None:
                return False
            rows = [self.buffers[name] for name in self.names]
            self._quick = update, rows, plan, machine
        if not (
            write_lock.hold_all(params)
            and max(map(getrefcount, views)) <= VIEW_IN_CHUNK
            and getrefcount(self._flat) <= self._flat_references
        ):
            return False
        # Half the time of `all(map(...))`; to say that both are of one length, which they are, would take 0.2 us.
        for p, view in zip(params, views):  # noqa: B905  # see above
            if p._array is not view or p._rec is not None:
                return False
        if plan.by_step is not None or plan is not self._filled_by:
            run = self._one_run[0]
            run.set_step(step, plan)
            self._constants_of(run)
        calls.append((update, self._flat, *rows, *self.pick(given)))  # type: ignore[misc]  # there is one
        if plan.counts_step:
            calls.append((setattr, self, "_common_steps", self._common_steps + 1))
        return True

    def _add_large_call(self, calls: list[Call], step: int, plan: Plan, given: Sequence[Array], machine: Any) -> bool:
        """Do as `add_quick_calls` for a large parameter, which is computed on one thread, in place, by one call."""
        size = self.offsets[-1]
        if self.xp is not np or self.pick is None or (size >= _MANY and blocks.get_num_threads() > 1):
            return False
        kernel = native_kernels.kernels.get(plan.kernel, self.dtype)
        update = self.updates.get((machine, plan.kind, len(self.names))) if kernel is None else kernel.call
        (t,) = self.params
        a = None if update is None else write_lock.hold(t)
        if a is None or a.__class__ is not np.ndarray or a.dtype is not self.dtype or a.shape != self.shapes[0]:
            return False
        flags = a.flags
        if not (flags.c_contiguous and flags.aligned):
            return False
        if plan.by_step is not None or plan is not self._filled_by:
            run = self._one_run[0]
            run.set_step(step, plan)
            self._constants_of(run)
        t._rec = None
        (g,) = self.pick(given)
        if kernel is None:
            calls.append((update, a, *self._states(), g))
        else:
            calls.append((update, g, a, *self._states(), size, plan.native_flags(), *self._constants))
        calls.append((setattr, t, "__class__", t._unguarded))
        if plan.counts_step:
            calls.append((setattr, self, "_common_steps", self._common_steps + 1))
        return True

    def _update_by(self, machine: Any, runs: list[Run]) -> Callable[..., Any] | None:
        """Return one call of a machine that makes those of the update; None if it does not."""
        plan, states = runs[0].plan, len(self.names)
        key = machine, plan.kind, states
        if key in self.updates and runs is self._one_run:
            return self.updates[key]
        if runs is not self._one_run or self.dtype.itemsize <= 2 or self.xp is not np:
            return None
        if self.offsets[-1] >= _FOR_KERNELS and native_kernels.kernels.get(plan.kernel, self.dtype) is not None:
            return None
        rule = partial(self._scratch.program(np, plan, states).calls, self._constants_of(runs[0]))
        sizes = [high - low for low, high in pairwise(self.offsets)]
        segments = list(self._ends(0, len(self.params)))
        self.updates[key] = machine_update(machine, rule, real_of(self.dtype), sizes, segments, states)
        if self.updates[key] is not None:  # it has its own scratch; steps by array calls make theirs again
            self._prepared = None
            self._scratch.drop_rows()
        return self.updates[key]

    def _move(self) -> None:
        """Copy the parameters' values into a new buffer, to which the step then binds them."""
        arrays = [p._array for p in self.params]
        flat = self.xp.empty_like(arrays[0], shape=(sum([a.size for a in arrays]),))
        self.xp.concatenate(arrays, axis=None, out=flat)
        width = 2 if self.dtype.kind == "c" else 1
        spans = zip(self.offsets, self.offsets[1:], self.shapes, strict=False)
        self._prepared = None
        self._views = [flat[low // width : high // width].reshape(shape) for low, high, shape in spans]
        self._flat = flat
        self._segments = [self._segment(*ends) for ends in self._ends(0, len(self.params))]
        del flat
        self._flat_references = getrefcount(self._flat)

    def _ends(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Split a run of parameters into parts of at most a block each."""
        start = first
        for k in range(first, last):
            if k > start and self.offsets[k + 1] - self.offsets[start] > self.block:
                yield start, k
                start = k
        yield start, last

    def _segment(self, first: int, last: int) -> Segment:
        low, high = self.offsets[first], self.offsets[last]
        return first, last, flattened(self._flat)[low:high], [row[low:high] for row in self._states()]

    def _rows(self, size: int, lane: int = 0) -> ScratchRows:
        return self._scratch.rows(self.xp, self.device, wide_dtype(real_of(self.dtype)), size, lane)

    def _packed_calls(self, grads: Sequence[Array], runs: list[Run], update: Any = None) -> list[Call]:
        """Return the calls that compute the step in the buffer; one where a machine has an update."""
        is_one = runs is self._one_run
        if update is not None:
            self._constants_of(runs[0])
            return [(update, self._flat, *self._states(), *grads)]
        if is_one and self._prepared is not None:
            plan = runs[0].plan
            kind, row, calls = self._prepared
            if plan.kind == kind:
                if runs[0].step_constants or plan is not self._filled_by:
                    self._constants_of(runs[0])
                return [(_concatenate, grads, None, row), *calls]
        made: list[Call] = []
        for run in runs:
            segments = self._segments
            if run.last - run.first != len(self.params):
                segments = [self._segment(*ends) for ends in self._ends(run.first, run.last)]
            constants = self._constants_of(run) if is_one else self._new_constants(run)
            for segment in segments:
                made += self._segment_calls(segment, grads, run.plan, constants)
        if is_one and len(self._segments) == 1 and self.xp is np:
            self._prepared = runs[0].plan.kind, made[0][-1], made[1:]
        return made

    def _segment_calls(
        self, segment: Segment, grads: Sequence[Array], plan: Plan, constants: Sequence[Any]
    ) -> list[Call]:
        first, last, p, state = segment
        rows = self._rows(min(self.block, max(1, self.offsets[-1])))
        joining: list[Call] = []
        if self.xp is np:
            g = rows.for_gradients(p.size)
            joining.append((_concatenate, grads[first:last], None, self._as_gradient(g)))
        else:  # CuPy's function is written in Python: the gradients are joined now, in their own memory
            g = self.xp.empty(p.size, rows.dtype)
            self.xp.concatenate(grads[first:last], None, self._as_gradient(g))
        return joining + self._block_calls(plan, constants, p, g, rows, state)

    def _as_gradient(self, row: Array) -> Array:
        """View real numbers in the dtype of this chunk."""
        return row.view(self.dtype) if self.dtype.kind == "c" else row

    def _row_calls(self, grad: TableRows, run: Run) -> list[Call]:
        """Return the calls that update some rows of a chunk's only parameter: they are computed apart, then written."""
        (t,) = self.params
        in_place = t._array.flags.c_contiguous and write_lock.may_write(t)
        a = t._array if in_place else t._array.copy(order="C")
        ((rows, values),) = grad.coalesced().parts
        tables = [row.reshape((len(a), -1)) for row in (flattened(a), *self._states())]
        parts = [table.take(rows, 0) for table in tables]  # in a third of the time of table[rows]
        p, *state = [part.reshape(-1) for part in parts]
        g = flattened(self.xp.ascontiguousarray(values))
        constants, scratch = self._constants_of(run), self._rows(min(self.block, max(1, p.size)))
        for low in range(0, p.size, self.block):
            part = slice(low, low + self.block)
            run_quietly(self._block_calls(run.plan, constants, p[part], g[part], scratch, [row[part] for row in state]))
        written = [(setitem, table, rows, part) for table, part in zip(tables, parts, strict=True)]
        return [*written, (setattr, t, "__class__", t._unguarded) if in_place else (setattr, t, "_array", a)]

    def _large_calls(self, grad: Array, run: Run, lanes: list[list[Call]], update: Any = None) -> list[Call]:
        """Return the calls for a chunk's only parameter, a large one: in place, or in new memory that is bound last."""
        if isinstance(grad, TableRows):
            return self._row_calls(grad, run)
        (t,) = self.params
        in_place = t._array.flags.c_contiguous and write_lock.may_write(t)
        a = t._array if in_place else t._array.copy(order="C")
        plan, constants, states = run.plan, self._constants_of(run), self._states()
        p = flattened(a)
        g = flattened(grad if grad.flags.c_contiguous else self.xp.ascontiguousarray(grad))
        block = min(self.block if states or self.xp is not np else 2 * self.block, p.size)
        threads = blocks.get_num_threads() if self.xp is np and p.size >= _MANY else 1
        bound = (setattr, t, "__class__", t._unguarded) if in_place else (setattr, t, "_array", a)
        if update is not None and threads == 1:
            return [(update, p, *states, g), bound]
        calls: list[Call] = []
        while threads > 1 and len(lanes) < threads:
            lanes.append([])
        for k, low in enumerate(range(0, p.size, block)):
            part = slice(low, low + block)
            lane = k % threads
            rows = self._rows(block, lane)
            made = self._block_calls(plan, constants, p[part], g[part], rows, [row[part] for row in states])
            (calls if threads == 1 else lanes[lane]).extend(made)
        return [*calls, bound]

    def _block_calls(
        self, plan: Plan, constants: Sequence[Any], p: Array, g: Array, rows: ScratchRows, state: Sequence[Array]
    ) -> list[Call]:
        """Return the calls that update one block in place; half precision is computed in float32."""
        if self.xp is not np and plan.source and p.dtype.char in "efd":
            kernel = self._scratch.kernel(self.xp, plan, len(constants), len(state), p.dtype)
            return [(kernel, g.astype(p.dtype, copy=False), -1.0 if plan.maximize else 1.0, *constants, p, *state)]
        if plan.kernel and p.flags.aligned and g.flags.aligned:
            native = native_kernels.find(plan.kernel, p, g, *state) if self.xp is np else None
            if native is not None:  # it computes the same, bit for bit
                return [(native.call, g, p, *state, p.size, plan.native_flags(), *constants)]
        program = self._scratch.program(self.xp, plan, len(state))
        scratch = rows.to_compute_in(p.size)
        if p.dtype.itemsize > 2:
            return program.calls(constants, p, g, scratch, state)
        narrow = (p, *state, g)
        wide = rows.more(len(scratch) + len(narrow), p.size)[len(scratch) :]
        widen = [(setitem, row, ..., array) for row, array in zip(wide, narrow, strict=True)]
        update = program.calls(constants, wide[0], wide[-1], scratch, wide[1:-1])
        narrowed = [(setitem, array, ..., row) for array, row in zip(narrow[:-1], wide, strict=False)]
        return [*widen, *update, *narrowed]

    def _constants_of(self, run: Run) -> Sequence[Any]:
        """Return the constants as 0-d arrays, by which NumPy multiplies twice as fast as by a float."""
        plan: Plan = run.plan
        if self.xp is not np:
            return (*plan.constants, *run.step_constants)
        if plan is not self._filled_by:
            self._filled_by = None  # until all are filled
            count = len(plan.constants) + len(run.step_constants)
            dtype = real_of(wide_dtype(self.dtype))
            self._constants += [np.empty((), dtype) for _ in range(count - len(self._constants))]
            self._step_constants = self._constants[len(plan.constants) : count]
            for constant, value in zip(self._constants, plan.constants, strict=False):
                constant.fill(value)
            self._filled_by = plan
        for constant, value in zip(self._step_constants, run.step_constants, strict=True):
            constant.fill(value)
        return self._constants

    def _new_constants(self, run: Run) -> Sequence[Any]:
        """Return the constants of one of several runs, whose calls are made with those of the others."""
        values = (*run.plan.constants, *run.step_constants)
        return values if self.xp is not np else [np.array(value, real_of(wide_dtype(self.dtype))) for value in values]
