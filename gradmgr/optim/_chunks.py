"""Parameters in chunks: many small ones in one flat buffer, so that a step over them is a few array calls.

A chunk holds parameters of one group, dtype and device. Small ones become views of one flat buffer; a
large one stays as it is. A step writes to that memory only where nobody else can see it: the reference
counts of the views and of the buffer say so, compared with what they were when the chunk alone had
them. Where somebody holds on to a value (a slice, a `detach()`, a `numpy()` view, an open recording), the step is
computed in new memory, and the parameters are bound to that. A parameter that was written to or replaced
since the last step is noticed by its array being another one; its new value is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import blocks, libraries
from gradmgr._arrays.batched import Batched, is_batched
from gradmgr._arrays.refcounts import VIEW_IN_CHUNK
from gradmgr._engine.recorder import current, rebind, recorders, recording_threads
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr.ops.convert import wide_dtype

Array = Any

# Bytes of a parameter computed at a time: with its gradient, state and scratch these stay in a core's cache. Larger
# parameters are chunks by themselves, which costs a step little beside what it computes.
BLOCK_BYTES = 1 << 17
# Those are computed in longer blocks, and in twice as long ones where there is no state beside them: calls count for
# less. SGD over 1,000,000 float32 takes 0.8 of what it takes in blocks of 1 << 17, and no less in still longer ones.
_LARGE_BYTES = 1 << 18
# From so many numbers on, several threads take the blocks; a step over 100,000 took 1.2 of what it takes on one.
_MANY = 1 << 19
# On a GPU a kernel's launch costs as much as computing on a million elements; blocks only bound the scratch.
_GPU_SMALL = 1 << 20
_GPU_BLOCK = 1 << 22

_ARRAY = attrgetter("_array")


Silencing = tuple[Callable[[], Any], Callable[[Any], Any]]


def silencing(name: str = "numpy.ufunc.extobj") -> Silencing:
    """Return what lets floating-point errors pass, and what ends that, given what the first returned.

    As `numpy.errstate(all="ignore")` does, whose making, entering and leaving take 1.5 us amid other work: a fifth of a
    step over few small parameters. To set the variable of the context where NumPy keeps it, and to reset it, takes 0.5.
    Where no variable has this name, NumPy's own functions are returned.
    """
    with np.errstate(all="ignore"):
        for var, value in copy_context().items():
            if var.name == name:
                return partial(var.set, value), var.reset
    return partial(np.seterr, all="ignore"), lambda before: np.seterr(**before)


silence, speak = silencing()


# How an algorithm changes a block in place: a function and a text. The function, compute(xp, (_, _, *constants), p, g,
# t, u, *state), does it by array calls: g is not written to, t and u are scratch. The text, where it is not empty, says
# the same for one element in CUDA C++: x is the parameter, y the gradient, s0, s1, ... the state and c2, c3, ... the
# constants, all of the type W.
Update = tuple[Callable[..., None], str]
Rows = Sequence[Array]


def written(source: str = "") -> Callable[[Callable[..., None]], Update]:
    """Make an Update of a function and what it does to an element in CUDA C++."""
    return lambda compute: (compute, source)


class Plan:
    """What an algorithm does to a block, with a group's options as they are now."""

    __slots__ = ("compute", "constants", "counts", "decay", "kind", "maximize", "moving", "shrink", "source")

    def __init__(
        self,
        update: Update,
        constants: Sequence[float],
        moving: Callable[[int], list[float]] | None = None,
        *,
        decay: float = 0.0,
        shrink: float = 1.0,
        maximize: bool = False,
        counts: bool = True,
    ) -> None:
        self.compute, self.source = update
        self.decay = float(decay)  # what is added to the gradient of each parameter's value
        self.shrink = float(shrink)  # what the value is multiplied by before all
        self.maximize = maximize
        # What calls it takes, whatever the constants: so is a plan of the next step's, where the `lr` has changed.
        self.kind = self.compute, self.shrink != 1, bool(maximize), bool(self.decay)
        # The constants that are the same at each step; made numbers here, where what is none changes nothing.
        self.constants = [self.decay, self.shrink, *map(float, constants)]
        self.moving = moving  # what gives the others, which come after them, at the step of this number
        self.counts = counts  # whether the step is counted; else there is no state

    def apply(self, constants: Sequence[Any], p: Array, g: Array, rows: Rows, state: Sequence[Array]) -> None:
        """Compute one block in place, with three rows of scratch; a half-precision one in float32."""
        if p.dtype.itemsize == 2:
            wide = [row.astype(rows[0].dtype) for row in (p, g, *state)]
            self._apply(constants, wide[0], wide[1], rows, wide[2:])
            for row, computed in zip((p, *state), (wide[0], *wide[2:]), strict=True):
                row[...] = computed
        else:
            self._apply(constants, p, g, rows, state)

    def _apply(self, constants: Sequence[Any], p: Array, g: Array, rows: Rows, state: Sequence[Array]) -> None:
        xp = np if p.__class__ is np.ndarray else libraries.namespace(p)
        t, u, changed = rows
        if self.shrink != 1:
            xp.multiply(p, constants[1], p)
        if self.maximize:
            g = xp.negative(g, changed)
        if self.decay:
            g = xp.add(g, xp.multiply(p, constants[0], t), changed)
        self.compute(xp, constants, p, g, t, u, *state)


class Run:
    """Neighbouring parameters of a chunk that take the same step, and what that is."""

    __slots__ = ("first", "last", "moving", "plan", "step")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last  # exclusive
        self.step = 0  # that they take: 1 for the first
        self.plan: Any = None
        self.moving: Sequence[float] = ()  # the constants of the plan that are this step's

    def take(self, step: int, plan: Plan) -> None:
        """Say which step it is, and how it is taken."""
        self.step = step
        self.plan = plan
        self.moving = () if plan.moving is None else plan.moving(step)


Segment = tuple[int, int, Array, list[Array]]  # parameters from the first to the last, exclusive, their numbers, states


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of complex numbers; any other is its own."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def block_of(dtype: np.dtype[Any], nbytes: int = BLOCK_BYTES) -> int:
    """Return how many real numbers are computed at a time."""
    return nbytes // max(4, real_of(dtype).itemsize)


def flattened(array: Array) -> Array:
    """Return all numbers of a C-contiguous array in one row, complex ones as two each: a view of it."""
    row = array.reshape(-1)
    return row.view(real_of(row.dtype)) if row.dtype.kind == "c" else row


def kernel_text(source: str, constants: int, states: int, wide: str, decays: bool) -> tuple[str, str, str]:
    """Return what CuPy's ElementwiseKernel takes: parameters in and out, and what to do with an element.

    Args:
        source: of an `Update`.
        constants: how many, the weight decay and the shrinking among them.
        states: how many.
        wide: what to compute in, "float" or "double".
        decays: whether the parameter is added to its gradient; times 0, what is not finite would spoil that.
    """
    bits = "float32" if wide == "float" else "float64"
    given = ", ".join(["T g", f"{bits} sign", *[f"{bits} c{k}" for k in range(constants)]])
    changed = ", ".join(["T p", *[f"T r{k}" for k in range(states)]])
    start = [f"{wide} x = ({wide})p * c1;", f"{wide} y = ({wide})g * sign{' + c0 * x' * decays};"]
    start += [f"{wide} s{k} = ({wide})r{k};" for k in range(states)]
    end = ["p = (T)x;", *[f"r{k} = (T)s{k};" for k in range(states)]]
    return given, changed, " ".join([*start, source.replace("W ", f"{wide} "), *end])


class Scratch:
    """What the chunks of an optimiser share: rows for what a block computes on its way, and kernels for a GPU."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[str, np.dtype[Any]], Shelf] = {}
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def kernel(self, xp: Any, plan: Plan, constants: int, states: int, dtype: np.dtype[Any]) -> Any:
        """Return one CuPy kernel for the whole of an update; CuPy compiles it when it is first called."""
        wide = "double" if dtype.itemsize == 8 else "float"
        key = plan.source, states, wide, plan.decay != 0
        if key not in self._kernels:
            text = kernel_text(plan.source, constants, states, wide, plan.decay != 0)
            self._kernels[key] = xp.ElementwiseKernel(*text, "gradmgr_optim_step")
        return self._kernels[key]

    def shelf(self, like: Array, dtype: np.dtype[Any]) -> Shelf:
        """Return where the rows lie for arrays of this dtype, where `like` lives."""
        dtype = wide_dtype(dtype)
        key = libraries.device_of(like), dtype
        if key not in self._shelves:
            self._shelves[key] = Shelf(libraries.namespace(like), dtype)
        return self._shelves[key]


class Shelf:
    """Rows to compute in, as many sets as threads compute at once: kept, as new memory costs more than computing."""

    __slots__ = ("_dtype", "_free", "_xp")

    def __init__(self, xp: Any, dtype: np.dtype[Any]) -> None:
        self._xp = xp
        self._dtype = dtype
        self._free: deque[RowSet] = deque()

    def take(self, size: int) -> RowSet:
        """Return rows of at least this size, that nobody else has until they are put back."""
        try:
            rows = self._free.pop()
        except IndexError:
            rows = None
        return rows if rows is not None and rows.size >= size else RowSet(self._xp.empty((4, size), self._dtype))

    def put(self, rows: RowSet) -> None:
        """Take rows back."""
        self._free.append(rows)


class RowSet:
    """Four rows of scratch: one for gradients, three to compute in."""

    __slots__ = ("_cuts", "_rows", "size")

    def __init__(self, rows: Array) -> None:
        self._rows = tuple(rows)
        # By size; to cut four rows takes as long as two calls on them.
        self._cuts: dict[int, tuple[Array, list[Array]]] = {}
        self.size = rows.shape[1]

    def cut(self, size: int, keep: bool = True) -> tuple[Array, list[Array]]:
        """Return the first row and the others, of this size; `keep` where it comes again with each step."""
        found = self._cuts.get(size)
        if found is None:
            g, *rest = [row[:size] for row in self._rows]
            found = g, rest
            if keep and len(self._cuts) < 100:
                self._cuts[size] = found
        return found


def is_packable(p: Tensor) -> bool:
    """Tell whether a parameter is small enough to stand in a buffer with others."""
    size = p.size * (2 if p.dtype.kind == "c" else 1)
    return size <= (block_of(p.dtype) if libraries.namespace(p._array) is np else _GPU_SMALL)


def _check_same_for_all(params: list[Tensor]) -> None:
    for p in params:
        if is_batched(p._array):
            raise errors.BatchedValueError(f"step(): {describe(p)} differs by example of a vmap; step outside of it")


class Chunk:
    """Some parameters of a group, their state and their steps."""

    __slots__ = (
        *("_alone", "_arguments", "_constants", "_filled", "_flat", "_into", "_is_bare", "_is_even", "_is_ready"),
        *("_moving", "_packed", "_scratch", "_segments", "_shelf", "_since", "_steps", "_usual", "_views", "_whole"),
        *("block", "buffers", "device", "dtype", "names", "offsets", "params", "shapes", "xp"),
    )

    def __init__(self, params: list[Tensor], scratch: Scratch) -> None:
        _check_same_for_all(params)
        like = params[0]._array
        self.params = params
        self.shapes = [p._array.shape for p in params]
        self.dtype = like.dtype
        self.device = libraries.device_of(like)
        self.xp = libraries.namespace(like)
        width = 2 if self.dtype.kind == "c" else 1
        self.offsets = [0]  # where each parameter begins among the real numbers, and where the last ends
        for p in params:
            self.offsets.append(self.offsets[-1] + width * p.size)
        self._packed = is_packable(params[0])  # the parameters are views of one buffer
        self.block = _GPU_BLOCK if self.xp is not np else block_of(self.dtype, _LARGE_BYTES >> self._packed)
        self.buffers: dict[str, Array] = {}  # by name, the state of all in one row of real numbers
        self.names: tuple[str, ...] = ()  # of those that the algorithm asks for, in its order
        self._scratch = scratch
        self._shelf = scratch.shelf(like, real_of(self.dtype))
        # Steps: of each parameter, without those that all have taken together since; whether all have taken as many.
        self._steps = [0] * len(params)
        self._since = 0
        self._is_even = True
        self._whole = [Run(0, len(params))]  # what there is to do where all parameters take the same step
        # Constants as arrays, the last of them changing at each step, and the plan whose they are.
        self._filled: Plan | None = None
        self._constants: list[Array] = []
        self._moving: list[Array] = []
        # Their buffer and the parameters as views of it, how often it is held, and whether it may be written to now.
        self._flat: Array = None
        self._views: list[Array] = []
        self._alone = 0
        self._is_ready = False
        self._segments: list[Segment] = []
        # What a step does that is like the last one, where there is one segment: the plan of that, where gradients are
        # put together, and what `compute`, where it is all there is to do, or `apply` is called with.
        self._usual: Plan | None = None
        self._into: Array = None
        self._is_bare = False
        self._arguments: list[Any] = []

    # ------------------------------------------------------------ whether it fits, and what is to be done

    def fits(self) -> bool:
        """Tell whether the parameters still have the dtype and device that the chunk was made for.

        The lock of `crowd` is held until the step is taken: what nobody else holds now is still so then.
        """
        # The count comes first: where the parameter itself turns out to hold the view then, there was no other holder.
        if self._views and self._is_alone() and all(map(is_, map(_ARRAY, self.params), self._views)):
            self._is_ready = recording_threads.is_alone()
            return True
        self._is_ready = False
        if not self._packed and self.xp is np:
            a = self.params[0]._array
            if a.__class__ is np.ndarray and a.dtype is self.dtype:  # the usual, at once
                return True
        _check_same_for_all(self.params)
        return all(p._array.dtype == self.dtype and libraries.device_of(p._array) == self.device for p in self.params)

    def _is_alone(self) -> bool:
        """Tell whether nobody but the chunk and the parameters holds the buffer or a view of it."""
        return max(map(getrefcount, self._views)) <= VIEW_IN_CHUNK and getrefcount(self._flat) <= self._alone

    def due(self, first: Plan, later: Plan) -> tuple[list[Array], list[Run]]:
        """Return the array of each parameter's gradient, None where there is none, and what there is to do.

        That is one run where all parameters have gradients and have taken as many steps.

        Args:
            first: what is done at a parameter's first step.
            later: at all others.

        Raises:
            ShapeError, TypeError: a gradient is not of its parameter's kind.
        """
        try:
            grads = [p._grad._array for p in self.params]  # type: ignore[union-attr]  # None has no _array, and tells so
        except AttributeError:
            grads = [None if p.grad is None else p.grad._array for p in self.params]
            self._check(grads)
            return grads, self._runs(grads, first, later)
        if [g.shape for g in grads] != self.shapes or Batched in map(type, grads):
            self._check(grads)
        if not self._is_even:
            return grads, self._runs(grads, first, later)
        run = self._whole[0]
        run.step = step = self._steps[0] + self._since + 1
        run.plan = plan = later if step > 1 else first
        run.moving = () if plan.moving is None else plan.moving(step)
        return grads, self._whole

    def _check(self, grads: list[Array]) -> None:
        for p, g, shape in zip(self.params, grads, self.shapes, strict=True):
            if p._array.shape != shape:
                raise errors.StateError(
                    f"step(): {describe(p)} had shape {shape} when the optimiser last saw it; make a new optimiser"
                )
            if g is not None and is_batched(g):
                raise errors.BatchedValueError(
                    f"step(): the gradient of {describe(p)} differs by example of a vmap; step outside of it"
                )
            if g is not None and g.shape != shape:
                raise errors.ShapeError(f"step(): the gradient of {describe(p)} has shape {g.shape}")

    def _runs(self, grads: list[Array], first: Plan, later: Plan) -> list[Run]:
        found: list[Run] = []
        for k, g in enumerate(grads):
            if g is None:
                continue
            step = self.step_of(k) + 1
            if found and found[-1].last == k and found[-1].step == step:
                found[-1].last = k + 1
            else:
                found.append(Run(k, k + 1))
                found[-1].take(step, later if step > 1 else first)
        return found

    # ------------------------------------------------------------ state

    def step_of(self, k: int) -> int:
        """Return how many steps parameter k has taken."""
        return self._steps[k] + self._since

    def set_steps(self, steps: list[int]) -> None:
        """Say how many steps each parameter has taken."""
        self._steps = steps
        self._since = 0
        self._is_even = steps.count(steps[0]) == len(steps)

    def _count_steps(self, runs: list[Run]) -> None:
        steps = [step + self._since for step in self._steps]
        for run in runs:
            if run.plan.counts:
                steps[run.first : run.last] = [run.step] * (run.last - run.first)
        self.set_steps(steps)

    def use(self, names: tuple[str, ...], initial: Callable[[str], float]) -> None:
        """Let the algorithm have these states, in this order, whatever else there is from other options or a file."""
        for name in names:
            self.need(name, initial(name))
        self.names = names
        self._views = []  # the step lays out everything anew
        self._is_ready = False

    def need(self, name: str, value: float = 0.0) -> None:
        """Make a row of state, filled with this value, unless there is one."""
        if name not in self.buffers:
            like = self.params[0]._array
            row = self.xp.empty_like(like, dtype=real_of(self.dtype), shape=(self.offsets[-1],))
            row[...] = value
            self.buffers[name] = row

    def _states(self) -> list[Array]:
        return [self.buffers[name] for name in self.names]

    def part(self, name: str, k: int) -> Array:
        """Return the state of parameter k, in its shape: a view."""
        row = self.buffers[name][self.offsets[k] : self.offsets[k + 1]]
        return (row.view(self.dtype) if self.dtype.kind == "c" else row).reshape(self.shapes[k])

    # ------------------------------------------------------------ the step

    def update(self, grads: list[Array], runs: list[Run]) -> None:
        """Take the step: in place, or in new memory where somebody else may see the old.

        The lock of `crowd` is held, since `fits` was asked.
        """
        if not self._packed:
            self._update_large(grads[0], runs[0])
        elif self._is_ready:
            self._compute(grads, runs)
        else:
            self._move()
            self._compute(grads, runs)
            for p, view in zip(self.params, self._views, strict=True):
                p._array = view
        if runs is self._whole:
            self._since += runs[0].plan.counts
            stepped = self.params
        else:
            self._count_steps(runs)
            stepped = [p for run in runs for p in self.params[run.first : run.last]]
        state = current()
        if state is not None and any(rec.open for rec in recorders(state)):
            for p in stepped:  # from here on they are constants for whoever records
                rebind(p, wrap(p._array))
        else:
            for p in stepped:
                p._rec = None

    def _move(self) -> None:
        """Make a new buffer with the values that the parameters have now; they are not bound to it yet."""
        arrays = [p._array for p in self.params]
        flat = self.xp.empty_like(arrays[0], shape=(sum([a.size for a in arrays]),))
        self.xp.concatenate(arrays, axis=None, out=flat)
        width = 2 if self.dtype.kind == "c" else 1
        spans = zip(self.offsets, self.offsets[1:], self.shapes, strict=False)
        self._views = [flat[low // width : high // width].reshape(shape) for low, high, shape in spans]
        self._flat = flat
        self._segments = [self._segment(*ends) for ends in self._ends(0, len(self.params))]
        self._usual = None
        del flat
        self._alone = getrefcount(self._flat)

    def _ends(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cut a run of parameters where the next does not fit into a block."""
        start = first
        for k in range(first, last):
            if k > start and self.offsets[k + 1] - self.offsets[start] > self.block:
                yield start, k
                start = k
        yield start, last

    def _segment(self, first: int, last: int) -> Segment:
        low, high = self.offsets[first], self.offsets[last]
        return first, last, flattened(self._flat)[low:high], [row[low:high] for row in self._states()]

    def _row_size(self) -> int:
        return min(self.block, max(1, self.offsets[-1]))

    def _as_gradient(self, row: Array) -> Array:
        """Return real numbers as those of this chunk."""
        return row.view(self.dtype) if self.dtype.kind == "c" else row

    def _compute(self, grads: list[Array], runs: list[Run]) -> None:
        if runs is self._whole and self._usual is not None:
            plan = runs[0].plan
            if plan is self._usual or plan.kind == self._usual.kind:
                if runs[0].moving or plan is not self._filled:
                    self._constants_of(runs[0])
                self._usual = plan
                np.concatenate(grads, None, self._into)
                if self._is_bare:
                    plan.compute(*self._arguments)
                else:
                    plan.apply(*self._arguments)
                return
        for run in runs:
            constants = self._constants_of(run)
            if run.last - run.first == len(self.params):
                segments = self._segments
                self._prepare(run.plan)
            else:
                segments = [self._segment(*ends) for ends in self._ends(run.first, run.last)]
            self._compute_segments(segments, grads, run.plan, constants)

    def _prepare(self, plan: Plan) -> None:
        """Make ready what a step over few small parameters does, so that the next one takes the fewest calls."""
        if len(self._segments) > 1 or self.xp is not np:
            return
        rows = self._shelf.take(self._row_size())
        _, _, p, state = self._segments[0]
        g, rest = rows.cut(p.size)
        self._shelf.put(rows)  # nobody else takes them while this chunk computes
        self._into = self._as_gradient(g)
        self._is_bare = not any(plan.kind[1:]) and self.dtype.itemsize > 2
        if self._is_bare:
            self._arguments = [np, self._constants, p, g, *rest[:2], *state]
        else:
            self._arguments = [self._constants, p, g, rest, state]
        self._usual = plan

    def _compute_segments(
        self, segments: list[Segment], grads: list[Array], plan: Plan, constants: Sequence[Any]
    ) -> None:
        def work(part: slice) -> None:
            rows = self._shelf.take(self._row_size())
            for first, last, p, state in segments[part]:
                g, rest = rows.cut(p.size, keep=segments is self._segments)
                self.xp.concatenate(grads[first:last], None, self._as_gradient(g))
                self._apply(plan, constants, p, g, rest, state)
            self._shelf.put(rows)

        self._each([slice(k, k + 1) for k in range(len(segments))], work)

    def _update_large(self, grad: Array, run: Run) -> None:
        """Take the step of the one parameter of a chunk: as the others, in new memory, bound last, if need be."""
        (t,) = self.params
        if t._array.flags.c_contiguous and recording_threads.may_write(t):
            self._compute_large(t._array, grad, run)
        else:
            a = t._array.copy(order="C")
            self._compute_large(a, grad, run)
            t._array = a

    def _compute_large(self, a: Array, grad: Array, run: Run) -> None:
        plan, constants = run.plan, self._constants_of(run)
        p = flattened(a)
        g = flattened(grad if grad.flags.c_contiguous else self.xp.ascontiguousarray(grad))
        states = self._states()
        block = min(self.block if states or self.xp is not np else 2 * self.block, p.size)

        def work(part: slice) -> None:
            rows = self._shelf.take(block)
            for low in range(part.start, part.stop, block):
                high = min(low + block, part.stop)
                _, rest = rows.cut(high - low)
                self._apply(plan, constants, p[low:high], g[low:high], rest, [row[low:high] for row in states])
            self._shelf.put(rows)

        # One thread does it all, with one call of `work`; several share the blocks.
        step = block if p.size >= _MANY and blocks.get_num_threads() > 1 else p.size
        self._each([slice(low, min(low + step, p.size)) for low in range(0, p.size, step)], work)

    def _each(self, parts: list[slice], work: Callable[[slice], None]) -> None:
        """Do the work on each part, on several threads where the arrays are NumPy's."""
        if self.xp is np and self.offsets[-1] >= _MANY:
            blocks.run(work, parts)
            return
        for part in parts:
            work(part)

    def _apply(
        self, plan: Plan, constants: Sequence[Any], p: Array, g: Array, rows: Rows, state: Sequence[Array]
    ) -> None:
        if self.xp is np or not plan.source or p.dtype.char not in "efd":
            plan.apply(constants, p, g, rows, state)
            return
        kernel = self._scratch.kernel(self.xp, plan, len(constants), len(state), p.dtype)
        kernel(g.astype(p.dtype, copy=False), -1.0 if plan.maximize else 1.0, *constants, p, *state)

    def _constants_of(self, run: Run) -> Sequence[Any]:
        """Return the constants as arrays, which NumPy multiplies by twice as fast as by a float."""
        plan: Plan = run.plan
        if self.xp is not np:
            return (*plan.constants, *run.moving)
        if plan is not self._filled:
            count = len(plan.constants) + len(run.moving)
            dtype = real_of(wide_dtype(self.dtype))
            self._constants += [np.empty((), dtype) for _ in range(count - len(self._constants))]
            self._moving = self._constants[len(plan.constants) : count]
            for constant, value in zip(self._constants, plan.constants, strict=False):
                constant.fill(value)
            self._filled = plan
        for constant, value in zip(self._moving, run.moving, strict=True):
            constant.fill(value)
        return self._constants
