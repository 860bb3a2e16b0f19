"""Parameters in chunks: many small ones in one flat buffer, so that a step over them is a few array calls.

A chunk holds parameters of one group, dtype and device. Small ones become views of one flat buffer; a
large one stays as it is. A step writes to that memory only where nobody else can see it: the reference
counts of the views and of the buffer say so, compared with what they were when the chunk alone had
them. Where somebody holds on to a value (a slice, a `detach()`, a `numpy()` view, an open recording), the step is
computed in new memory, and the parameters are bound to that. A parameter that was written to or replaced
since the last step is noticed by its array being another one; its new value is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from operator import attrgetter, is_
from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._batched import Batched, is_batched
from gradmgr._recorder import crowd, current, rebind, recorders
from gradmgr._tensor import Tensor, describe, wrap
from gradmgr.ops.convert import wide_dtype

Array = Any

# Bytes of a parameter computed at a time: with its gradient, state and scratch these stay in a core's cache. Larger
# parameters are chunks by themselves, which costs a step little beside what it computes.
BLOCK_BYTES = 1 << 17
# On a GPU a kernel's launch costs as much as computing on a million elements; blocks only bound the scratch.
_GPU_SMALL = 1 << 20
_GPU_BLOCK = 1 << 22

_ARRAY = attrgetter("_array")


def _count(views: list[Array]) -> int:
    return max(map(sys.getrefcount, views), default=0)


def _count_bound() -> int:
    views = [np.empty(1)]
    holder = wrap(views[0])
    count = _count(views)
    del holder
    return count


# The reference count of a view that only its chunk and its parameter hold, measured the way it is asked for.
_BOUND = _count_bound()


# How an algorithm changes a block in place: a function and a text. compute(xp, (_, _, *constants), p, g, t, *state)
# does it by array calls: g is not written to, t is scratch. The text, where it is not empty, says the same for one
# element in CUDA C++: x is the parameter, y the gradient, s0, s1, ... the state and c2, c3, ... the constants, all of
# the type W.
Update = tuple[Callable[..., None], str]


def written(source: str = "") -> Callable[[Callable[..., None]], Update]:
    """Make an Update of a function and what it does to an element in CUDA C++."""
    return lambda compute: (compute, source)


class Run:
    """Neighbouring parameters of a chunk that take the same step: what to compute with which constants."""

    __slots__ = ("first", "last", "plan", "step")

    def __init__(self, first: int, last: int, step: int, plan: Plan) -> None:
        self.first = first
        self.last = last  # exclusive
        self.step = step  # that they take: 1 for the first
        self.plan = plan


class Plan:
    """What an algorithm does to a block, with this group's options at this step."""

    __slots__ = ("compute", "constants", "counts", "decay", "maximize", "shrink", "source")

    def __init__(
        self,
        update: Update,
        constants: Sequence[float],
        *,
        decay: float = 0.0,
        shrink: float = 1.0,
        maximize: bool = False,
        counts: bool = True,
    ) -> None:
        self.compute, self.source = update
        self.constants = tuple(map(float, constants))  # here, where what is no number changes nothing
        self.decay = float(decay)  # what is added to the gradient of each parameter's value
        self.shrink = float(shrink)  # what the value is multiplied by before all
        self.maximize = maximize
        self.counts = counts  # whether the step is counted; else there is no state

    def apply(self, constants: Sequence[Any], p: Array, g: Array, t: Array, u: Array, state: list[Array]) -> None:
        """Compute one block in place; a half-precision one in float32."""
        if p.dtype.itemsize == 2:
            wide = [row.astype(t.dtype) for row in (p, g, *state)]
            self._apply(constants, wide[0], wide[1], t, u, wide[2:])
            for row, computed in zip((p, *state), (wide[0], *wide[2:]), strict=True):
                row[...] = computed
        else:
            self._apply(constants, p, g, t, u, state)

    def _apply(self, constants: Sequence[Any], p: Array, g: Array, t: Array, u: Array, state: list[Array]) -> None:
        xp = np if p.__class__ is np.ndarray else _xp.namespace(p)
        if self.shrink != 1:
            xp.multiply(p, constants[1], p)
        if self.maximize:
            g = xp.negative(g, u)
        if self.decay:
            g = xp.add(g, xp.multiply(p, constants[0], t), u)
        self.compute(xp, constants, p, g, t, *state)


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of complex numbers; any other is its own."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def block_of(dtype: np.dtype[Any]) -> int:
    """Return how many real numbers are computed at a time."""
    return BLOCK_BYTES // max(4, real_of(dtype).itemsize)


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
        self._rows: dict[tuple[str, np.dtype[Any]], tuple[Array, ...]] = {}
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def kernel(self, xp: Any, plan: Plan, constants: int, states: int, dtype: np.dtype[Any]) -> Any:
        """Return one CuPy kernel for the whole of an update; CuPy compiles it when it is first called."""
        wide = "double" if dtype.itemsize == 8 else "float"
        key = plan.source, states, wide, plan.decay != 0
        if key not in self._kernels:
            text = kernel_text(plan.source, constants, states, wide, plan.decay != 0)
            self._kernels[key] = xp.ElementwiseKernel(*text, "gradmgr_optim_step")
        return self._kernels[key]

    def rows(self, like: Array, dtype: np.dtype[Any], size: int) -> tuple[Array, ...]:
        """Return three rows of at least this size where `like` lives."""
        dtype = wide_dtype(dtype)
        key = _xp.device_of(like), dtype
        rows = self._rows.get(key)
        if rows is None or rows[0].size < size:
            rows = self._rows[key] = tuple(_xp.namespace(like).empty((3, size), dtype))
        return rows


def is_packable(p: Tensor) -> bool:
    """Tell whether a parameter is small enough to stand in a buffer with others."""
    size = p.size * (2 if p.dtype.kind == "c" else 1)
    return size <= (block_of(p.dtype) if _xp.namespace(p._array) is np else _GPU_SMALL)


def _check_same_for_all(params: list[Tensor]) -> None:
    for p in params:
        if is_batched(p._array):
            raise errors.BatchedValueError(f"step(): {describe(p)} differs by example of a vmap; step outside of it")


class Chunk:
    """Some parameters of a group, their state and their steps."""

    __slots__ = (
        *("_alone", "_constants", "_flat", "_packed", "_scratch", "_segments", "_values", "_views"),
        *("block", "buffers", "device", "dtype", "names", "offsets", "params", "shapes", "steps", "xp"),
    )

    def __init__(self, params: list[Tensor], scratch: Scratch) -> None:
        _check_same_for_all(params)
        like = params[0]._array
        self.params = params
        self.shapes = [p._array.shape for p in params]
        self.dtype = like.dtype
        self.device = _xp.device_of(like)
        self.xp = _xp.namespace(like)
        width = 2 if self.dtype.kind == "c" else 1
        self.offsets = [0]  # where each parameter begins among the real numbers, and where the last ends
        for p in params:
            self.offsets.append(self.offsets[-1] + width * p.size)
        self.block = block_of(self.dtype) if self.xp is np else _GPU_BLOCK
        self.steps = [0] * len(params)
        self.buffers: dict[str, Array] = {}  # by name, the state of all in one row of real numbers
        self.names: tuple[str, ...] = ()  # of those that the algorithm asks for, in its order
        self._constants: list[Array] = []
        self._packed = is_packable(params[0])  # the parameters are views of one buffer
        self._values: tuple[float, ...] = ()
        self._flat: Array = None
        self._views: list[Array] = []
        self._alone = 0
        self._scratch = scratch
        self._segments: list[tuple[Any, ...]] = []

    # ------------------------------------------------------------ whether it fits, and what is to be done

    def fits(self) -> bool:
        """Tell whether the parameters still have the dtype and device that the chunk was made for."""
        if self._is_home():
            return True
        _check_same_for_all(self.params)
        return all(p._array.dtype == self.dtype and _xp.device_of(p._array) == self.device for p in self.params)

    def gradients(self) -> list[Array]:
        """Return the array of each parameter's gradient, None where there is none.

        Raises:
            ShapeError, TypeError: a gradient is not of its parameter's kind.
        """
        try:
            grads = [p._grad._array for p in self.params]  # type: ignore[union-attr]  # None has no _array, and tells so
        except AttributeError:
            grads = [None if p.grad is None else p.grad._array for p in self.params]
            self._check(grads)
            return grads
        if [g.shape for g in grads] != self.shapes or Batched in map(type, grads):
            self._check(grads)
        return grads

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

    def runs(self, grads: list[Array], group: dict[str, Any], plan: Callable[[dict[str, Any], int], Plan]) -> list[Run]:
        """Return what there is to do: one run where all parameters have gradients and have taken as many steps."""
        steps = self.steps
        if type(None) not in map(type, grads) and steps.count(steps[0]) == len(steps):
            return [Run(0, len(steps), steps[0] + 1, plan(group, steps[0] + 1))]
        found: list[Run] = []
        for k, g in enumerate(grads):
            if g is None:
                continue
            if found and found[-1].last == k and found[-1].step == steps[k] + 1:
                found[-1].last = k + 1
            else:
                found.append(Run(k, k + 1, steps[k] + 1, plan(group, steps[k] + 1)))
        return found

    # ------------------------------------------------------------ state

    def need(self, name: str, value: float = 0.0) -> None:
        """Make a row of state, filled with this value, unless there is one."""
        if name not in self.buffers:
            like = self.params[0]._array
            row = self.xp.empty_like(like, dtype=real_of(self.dtype), shape=(self.offsets[-1],))
            row[...] = value
            self.buffers[name] = row
            self._views = []  # the next step lays out everything anew

    def order(self, names: tuple[str, ...]) -> None:
        """Let the algorithm have these states, in this order, whatever else there is from other options or a file."""
        if names != self.names:
            self.names = names
            self._views = []

    def _states(self) -> list[Array]:
        return [self.buffers[name] for name in self.names]

    def part(self, name: str, k: int) -> Array:
        """Return the state of parameter k, in its shape: a view."""
        row = self.buffers[name][self.offsets[k] : self.offsets[k + 1]]
        return (row.view(self.dtype) if self.dtype.kind == "c" else row).reshape(self.shapes[k])

    # ------------------------------------------------------------ the step

    def update(self, grads: list[Array], runs: list[Run]) -> None:
        """Take the step: in place, or in new memory where somebody else may see the old."""
        with crowd.lock:
            if not self._packed:
                self._update_large(grads[0], runs[0].plan)
            elif self._is_home() and self._is_alone() and crowd.is_alone():
                self._compute(grads, runs)
            else:
                self._move()
                self._compute(grads, runs)
                for p, view in zip(self.params, self._views, strict=True):
                    p._array = view
            self._tell(runs)
        for run in runs:
            if run.plan.counts:
                self.steps[run.first : run.last] = [run.step] * (run.last - run.first)

    def _is_home(self) -> bool:
        """Tell whether each parameter has the view of the buffer that it was given."""
        return bool(self._views) and all(map(is_, map(_ARRAY, self.params), self._views))

    def _is_alone(self) -> bool:
        """Tell whether nobody but the chunk and the parameters holds the buffer or a view of it."""
        return _count(self._views) <= _BOUND and sys.getrefcount(self._flat) <= self._alone

    def _move(self) -> None:
        """Make a new buffer with the values that the parameters have now; they are not bound to it yet."""
        arrays = [p._array for p in self.params]
        flat = self.xp.empty_like(arrays[0], shape=(sum([a.size for a in arrays]),))
        self.xp.concatenate(arrays, axis=None, out=flat)
        width = 2 if self.dtype.kind == "c" else 1
        spans = zip(self.offsets, self.offsets[1:], self.shapes, strict=False)
        self._views = [flat[low // width : high // width].reshape(shape) for low, high, shape in spans]
        self._flat = flat
        self._segments = [self._segment(*ends) for ends in self._blocks(0, len(self.params))]
        del flat
        self._alone = sys.getrefcount(self._flat)

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cut a run of parameters where the next does not fit into a block."""
        start = first
        for k in range(first, last):
            if k > start and self.offsets[k + 1] - self.offsets[start] > self.block:
                yield start, k
                start = k
        yield start, last

    def _segment(self, first: int, last: int) -> tuple[Any, ...]:
        low, high = self.offsets[first], self.offsets[last]
        g, t, u = [row[: high - low] for row in self._rows()]
        into = g.view(self.dtype) if self.dtype.kind == "c" else g
        p = flattened(self._flat)[low:high]
        return first, last, into, g, t, u, p, [row[low:high] for row in self._states()]

    def _rows(self) -> tuple[Array, ...]:
        real = real_of(self.dtype)
        return self._scratch.rows(self.params[0]._array, real, min(self.block, max(1, self.offsets[-1])))

    def _compute(self, grads: list[Array], runs: list[Run]) -> None:
        for run in runs:
            constants = self._filled(run.plan)
            whole = run.last - run.first == len(self.params)
            segments = self._segments if whole else starmap(self._segment, self._blocks(run.first, run.last))
            for first, last, into, g, t, u, p, state in segments:
                self.xp.concatenate(grads if whole and len(self._segments) == 1 else grads[first:last], None, into)
                self._apply(run.plan, constants, p, g, t, u, state)

    def _update_large(self, grad: Array, plan: Plan) -> None:
        """Take the step of the one parameter of a chunk: as the others, in new memory, bound last, if need be."""
        (t,) = self.params
        if t._array.flags.c_contiguous and crowd.may_write(t):
            self._compute_large(t._array, grad, plan)
        else:
            a = t._array.copy(order="C")
            self._compute_large(a, grad, plan)
            t._array = a

    def _compute_large(self, a: Array, grad: Array, plan: Plan) -> None:
        constants = self._filled(plan)
        p = flattened(a)
        g = flattened(self.xp.ascontiguousarray(grad))
        _, t, u = [row[: self.block] for row in self._rows()]
        rows = self._states()
        for low in range(0, p.size, self.block):
            part = slice(low, low + self.block)
            if low + self.block > p.size:
                t, u = t[: p.size - low], u[: p.size - low]
            self._apply(plan, constants, p[part], g[part], t, u, [row[part] for row in rows])

    def _apply(
        self, plan: Plan, constants: Sequence[Any], p: Array, g: Array, t: Array, u: Array, state: list[Array]
    ) -> None:
        if self.xp is np or not plan.source or p.dtype.char not in "efd":
            plan.apply(constants, p, g, t, u, state)
            return
        kernel = self._scratch.kernel(self.xp, plan, len(constants), len(state), p.dtype)
        kernel(g.astype(p.dtype, copy=False), -1.0 if plan.maximize else 1.0, *constants, p, *state)

    def _filled(self, plan: Plan) -> Sequence[Any]:
        """Return the constants as arrays, which NumPy multiplies by twice as fast as by a float."""
        values = (plan.decay, plan.shrink, *plan.constants)
        if self.xp is not np:
            return tuple(map(float, values))
        if values == self._values:
            return self._constants
        self._values = values
        while len(self._constants) < len(values):
            self._constants.append(np.empty((), real_of(wide_dtype(self.dtype))))
        for constant, value in zip(self._constants, values, strict=False):
            constant.fill(value)
        return self._constants

    def _tell(self, runs: list[Run]) -> None:
        """Let the parameters that took a step be constants, from here on, for whoever records."""
        state = current()
        is_heard = state is not None and any(rec.open for rec in recorders(state))
        for run in runs:
            for p in self.params[run.first : run.last]:
                if is_heard:
                    rebind(p, wrap(p._array))
                else:
                    p._rec = None
