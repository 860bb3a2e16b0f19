"""`ZeroRedundancyOptimizer`: each rank keeps the optimiser's state of a part of the numbers, and updates that part.

The parameters of a group are laid out flat, those of one dtype in one row, and cut into a part for each rank. The
algorithms that are taken treat each number by itself, so that the parts together are what one optimiser computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine import write_lock
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr.distributed._group import Group
from gradmgr.distributed._world import group as resolve_group
from gradmgr.optim import LBFGS, Optimizer, SparseAdam
from gradmgr.optim._recorded import calls_to_write_step

_NAME = "ZeroRedundancyOptimizer"
_FAILED_STEP = f"the rest of a step of {_NAME} that failed"  # asked for in place of the parameters


class ZeroRedundancyOptimizer(Optimizer):
    """An optimiser whose state is divided among the ranks: each keeps and updates 1/n of it (ZeRO, stage 1).

    After the step every rank has all new parameters, the same bits as without it: each number is updated on one rank,
    by the same algorithm from the same gradient, and sent to the others. Beside 1/n of the state a rank keeps a copy
    of its 1/n of the parameters.

    Gradients must be the same on all ranks, as `make_allreduce_cb` leaves them. So `clip_grad_norm_` and `GradScaler`,
    which look at gradients, find and do the same on every rank, and work as with any optimiser; so do schedules.
    All ranks call `step`, `add_param_group` and `consolidate_state_dict` together.

    Source: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    2020, section 5.1. torch's optimiser of this name gives whole parameters to ranks; here large ones are cut, too.

    Args:
        params: as for any optimiser, the same on every rank.
        optimizer_class: the algorithm, a class of `gradmgr.optim`.
        group: the ranks that divide the state; None for all.
        **defaults: its options.

    Raises:
        TypeError: `optimizer_class` is not a class of optimisers, or has no such option; or it is LBFGS, which does not
            treat each number by itself, or SparseAdam, which takes gradients of rows.
        ValueError: an option is out of range; or it is `differentiable=True`.
        DistributedError: in `step`: the ranks have different parameters or options, or a gradient where others have
            none, or the step failed on another rank. No parameter has changed; the state of this rank may have.
        KeyboardInterrupt: this, or another exception of the program, interrupts `step`: either all parameters of this
            rank are written or none, but the state of this rank may be a step ahead, and the other ranks may have
            taken the step. So continue from a checkpoint.
        StateError: in `state_dict`: see there.

    >>> import gradmgr
    >>> from gradmgr import distributed, optim
    >>> distributed.init()
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> optimizer = distributed.ZeroRedundancyOptimizer([w], optim.SGD, lr=0.5, momentum=0.9)
    >>> gm = gradmgr.GradManager().attach(w, distributed.make_allreduce_cb("mean"))
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> optimizer.step()
    >>> w
    Tensor([0., 0.])
    >>> optimizer.consolidate_state_dict(to=0)
    >>> sorted(optimizer.state_dict()["state"][0])
    ['momentum_buffer', 'step']
    >>> distributed.finalize()
    """

    def __init__(
        self, params: Any, optimizer_class: type[Optimizer], *, group: Group | None = None, **defaults: Any
    ) -> None:
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise TypeError(f"{_NAME} takes a class of gradmgr.optim, such as Adam; found {optimizer_class!r}")
        if issubclass(optimizer_class, (LBFGS, SparseAdam)):
            raise TypeError(
                f"{_NAME} takes an algorithm that updates each number by itself, from a whole gradient, such as Adam; "
                f"found {optimizer_class.__name__}: use that itself, on every rank"
            )
        self._at = resolve_group(group)
        self._rows: list[_Row] = []
        self._consolidated: dict[int, dict[str, Any]] | None = None  # states by number of the parameter
        self._has_state = False  # on any rank
        # What checks options, and knows their defaults; its parameter takes the place of those that are not known yet.
        self._inner = optimizer_class([wrap(np.zeros(0, np.float32))], **defaults)
        self._inner.param_groups.clear()
        self._inner._chunks.clear()
        self._inner._plans.clear()
        self._state = self._inner._state
        super().__init__(params, self._inner.defaults)

    def _check_options(self, group: dict[str, Any]) -> None:
        if group.get("differentiable"):
            raise ValueError(
                f"{_NAME}: differentiable=True is not possible, as each rank updates a part of the numbers and the "
                f"others get values alone; use {type(self._inner).__name__} itself"
            )
        self._inner._check_options(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add a group of parameters with its own options; all ranks call it.

        Raises:
            TypeError, ValueError: as for the constructor; nothing is then added.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        rows = [_Row(len(self.param_groups) - 1, params, self._at) for params in _by_kind(group["params"])]
        options = {name: group[name] for name in self.defaults}
        self._inner.add_param_group({"params": [p for row in rows for p in row.pieces], **options})
        self._rows += rows
        self._consolidated = None

    # ------------------------------------------------------------ the step

    def _take_step(self, *_: Any) -> None:
        work = [row for row in self._rows if any(p.grad is not None for p in row.params)]
        for group, own in zip(self.param_groups, self._inner.param_groups, strict=True):
            own.update({name: group[name] for name in self.defaults})
        try:
            self._check_has_no_tangent()
            for row in self._rows:
                row.take_gradients()
            self._inner.step()
        except BaseException:
            self._at.start_agree(_FAILED_STEP)
            raise
        finally:
            for row in self._rows:
                for piece in row.pieces:
                    piece.grad = None
        self._consolidated, self._has_state = None, True
        lacking = self._lacking_text()
        if not work:  # the other ranks may have gradients
            self._at.agree(f"a step of {_NAME}", lacking)
        gathered = [row.gather(row.own_values(), f"{self._options_text(row)}, {lacking}") for row in work]
        self._write_all(work, gathered)

    def _write_all(self, work: list[_Row], gathered: list[Any]) -> None:
        """Give the parameters that have gradients their new values, all together."""
        calls: list[Call] = []
        with write_lock.lock:
            for row, flat in zip(work, gathered, strict=True):
                options = self._tensor_options(self.param_groups[row.group])
                for p, values in row.parts(flat):
                    if p.grad is not None:
                        calls += calls_to_write_step(p, values, options)
            run_atomically([*calls, (setattr, self, "_step_count", self._step_count + 1)])

    def _capture_turn(self, capture: Any) -> None:
        call_whole(self._take_turn, changes=list(self._params()))

    def _options_text(self, row: _Row) -> str:
        """Return what must be the same on all ranks of a row: shapes and options."""
        group = self.param_groups[row.group]
        options = ", ".join(f"{name}={group[name]!r}" for name in self.defaults)
        return (
            f", the new parameters of group {row.group} in a {_NAME} of {type(self._inner).__name__} ({options}) over "
            f"shapes {', '.join([str(p.shape) for p in row.params])}"
        )

    def _lacking_text(self) -> str:
        """Return which parameters of all groups have no gradient, which must be the same on all ranks."""
        lacking = [k for k, p in enumerate(self._params()) if p.grad is None]
        return f"without gradients for those at {lacking}" if lacking else "with all gradients"

    # ------------------------------------------------------------ state

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Gather the state of all ranks on one of them, whose `state_dict` then returns it; all ranks call it.

        One state of one row is sent at a time, to every rank, so that the others need as much memory for a moment.

        Args:
            to: the rank of the group that receives it.

        Raises:
            ValueError: `to` is not a rank of the group.
            DistributedError, RankFailedError: as for every collective.
        """
        if not 0 <= to < self._at.size:
            raise ValueError(f"consolidate_state_dict: a rank is from 0 to {self._at.size - 1}; found {to}")
        with self._lock:
            self._consolidate(to)

    def _consolidate(self, to: int) -> None:
        own = self._inner.state_dict()
        states: dict[Tensor, dict[str, Any]] = {}
        pieces = [p for group in self._inner.param_groups for p in group["params"]]
        by_piece = {pieces[number]: state for number, state in own["state"].items()}
        for row in self._rows:
            found = self._gather_states(row, by_piece)
            if self._at.rank == to:
                states.update(found)
        if self._at.rank == to:
            self._consolidated = {k: states[p] for k, p in enumerate(self._params()) if p in states}

    def _gather_states(self, row: _Row, by_piece: Mapping[Tensor, Mapping[str, Any]]) -> dict[Tensor, dict[str, Any]]:
        names = self._state
        table = np.zeros((1 + len(names), len(row.params)), np.int64)  # steps; 1 for a real state, 2 for a complex one
        for place, piece in zip(row.places, row.pieces, strict=True):
            state = by_piece.get(piece)
            if state is not None:
                table[0, place] = state["step"]
                table[1:, place] = [(name in state) + _is_complex(state.get(name)) for name in names]
        self._at.start_all_reduce(table, "max", None, f", the steps in a {_NAME}").wait()
        steps, *kinds = table.tolist()
        found: dict[Tensor, dict[str, Any]] = {p: {"step": s} for p, s in zip(row.params, steps, strict=True) if s}
        for name, kind in zip(names, kinds, strict=True):
            if not any(kind):
                continue
            mine = row.empty(np.dtype(row.dtype) if max(kind) == 2 else _real(row.dtype))
            for (start, stop), piece in zip(row.ranges, row.pieces, strict=True):
                state = by_piece.get(piece, {})
                if name in state:
                    mine[start:stop] = bare(state[name])
            flat = row.gather(mine, f", the state {name!r} in a {_NAME}")
            for (p, values), has in zip(row.parts(flat), kind, strict=True):
                if has:
                    found[p][name] = wrap(values)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as an optimiser that is not divided returns it; see `consolidate_state_dict`.

        An optimiser without state, as before its first step, needs no gathering: `gradmgr.load` into it works at once.

        Raises:
            StateError: it was not gathered on this rank since the last step.
        """
        with self._lock:
            everything = self._state_by_parameter()  # without states, but with a rate as it is set now
            if self._has_state and self._consolidated is None:
                raise errors.StateError(
                    f"state_dict() of a {_NAME}: this rank has a part of the state; call "
                    f"consolidate_state_dict(to={self._at.rank}) on every rank first, after the last step"
                )
            if self._consolidated is not None:
                everything["state"] = {number: dict(state) for number, state in self._consolidated.items()}
            return everything

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state and the options: every rank is given the whole state and takes its part.

        The state may come from an optimiser that is not divided, or from one divided among another number of ranks.

        Raises:
            StateError: it does not fit; every difference is listed, and nothing is changed.
        """
        misfits, groups, states = self._read(state_dict)
        if misfits:
            listed = "\n  ".join(misfits)
            raise errors.StateError(f"load_state_dict: the state does not fit {_NAME}:\n  {listed}")
        with self._lock:
            self._inner.load_state_dict(self._own_part(groups, states))
            calls: list[Any] = [(group.update, given) for group, given in zip(self.param_groups, groups, strict=True)]
            changed = {"_consolidated": None, "_has_state": bool(states)}
            run_atomically([*calls, (self.__dict__.update, changed)])

    def _own_part(self, groups: list[dict[str, Any]], states: Mapping[Tensor, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the state of this rank's part."""
        own = self._inner.state_dict()
        own["state"], number = {}, 0
        for row in self._rows:
            for k, (place, (start, stop)) in enumerate(zip(row.places, row.spans, strict=True)):
                state = states.get(row.params[place]) if row.counts(k) else None
                if state is not None:
                    cut = {name: bare(s).reshape(-1)[start:stop] for name, s in state.items() if name != "step"}
                    own["state"][number] = {"step": state["step"], **cut}
                number += 1
        for saved, given in zip(own["param_groups"], groups, strict=True):
            saved.update({name: given[name] for name in self.defaults if name in given})
        return own


def _is_complex(state: Any) -> bool:
    return state is not None and bare(state).dtype.kind == "c"


def _real(dtype: Any) -> Any:
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def _by_kind(params: list[Tensor]) -> list[list[Tensor]]:
    """Return lists of parameters of one dtype and device."""
    found: dict[Any, list[Tensor]] = {}
    for p in params:
        found.setdefault((p.dtype, p.device), []).append(p)
    return list(found.values())


class _Row:
    """Parameters laid out flat, of which this rank has a part: `pieces`, Tensors of their own.

    A piece is the part of one parameter: `places` has the parameter's number, `spans` where the piece lies in it, and
    `ranges` where it lies in this rank's part. A rank for which nothing is left has one piece of no numbers.
    """

    def __init__(self, group: int, params: list[Tensor], at: Group) -> None:
        self.group = group
        self.params = params
        self.dtype = params[0].dtype
        self._at = at
        sizes = [p.size for p in params]
        self._starts = np.cumsum([0, *sizes]).tolist()
        self._length = max(1, -(-self._starts[-1] // at.size))  # of each rank's part; the last may be padded
        first = at.rank * self._length
        self.places, self.spans, self.ranges = [], [], []
        for k, size in enumerate(sizes):
            start, stop = (min(max(first + n - self._starts[k], 0), size) for n in (0, self._length))
            if stop > start or (size == at.rank == 0):  # what has no numbers has a state, too
                offset = self._starts[k] - first
                self.places.append(k)
                self.spans.append((start, stop))
                self.ranges.append((offset + start, offset + stop))
        if not self.places:
            self.places, self.spans, self.ranges = [0], [(0, 0)], [(0, 0)]
        self.pieces = [
            wrap(self._part(params[k]._array, *span)) for k, span in zip(self.places, self.spans, strict=True)
        ]

    @staticmethod
    def _part(array: Any, start: int, stop: int) -> Any:
        return array.reshape(-1)[start:stop].copy()

    def counts(self, k: int) -> bool:
        """Tell whether a piece is a part of its parameter, not the empty one of a rank for which nothing is left."""
        return bool(self.pieces[k].size) or not self.params[self.places[k]].size

    def empty(self, dtype: Any) -> Any:
        """Return memory for this rank's part."""
        return libraries.namespace(self.params[0]._array).zeros(self._length, dtype.newbyteorder("="))

    def take_gradients(self) -> None:
        """Give the pieces the values and gradients that the parameters have."""
        for k, (place, span, piece) in enumerate(zip(self.places, self.spans, self.pieces, strict=True)):
            p = self.params[place]
            grad = p.grad
            if grad is not None and self.counts(k):
                piece[...] = self._part(p._array, *span)
                piece.grad = wrap(self._part(grad._array, *span))

    def own_values(self) -> Any:
        """Return this rank's part of the parameters."""
        flat = self.empty(self.dtype)
        for (start, stop), piece in zip(self.ranges, self.pieces, strict=True):
            flat[start:stop] = piece._array
        return flat

    def gather(self, mine: Any, more: str) -> Any:
        """Return the parts of all ranks, one after the other."""
        return self._at.all_gather(mine, more).reshape(-1)

    def parts(self, flat: Any) -> Iterator[tuple[Tensor, Any]]:
        """Yield each parameter and a copy of what belongs to it."""
        for p, start in zip(self.params, self._starts, strict=False):
            values = flat[start : start + p.size].reshape(p.shape)
            dtype = flat.dtype if flat.dtype != self.dtype.newbyteorder("=") else self.dtype
            yield p, values.astype(dtype)
