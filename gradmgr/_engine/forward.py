"""Forward mode: tangents are computed as the operations happen; the node id of a tensor is the cell of its tangent."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from gradmgr import errors
from gradmgr._arrays.libraries import is_differentiable
from gradmgr._arrays.listening import listener
from gradmgr._engine.broadcast import broadcast_like
from gradmgr._engine.cleanup import Scope, call_if_free
from gradmgr._engine.context import (
    Context,
    current,
    enter_recorders,
    leave_recorders,
    recorders,
    set_current,
)
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor, bare

# So many tangents are made between two looks at which of them are still held.
_MANY = 64

# So many contexts are remembered; a level meets one or two at a time, and a new one with every mode that is entered.
_FEW = 8


class _Cell:
    """Holds one tangent, for every tensor and handle that has it; emptied when the level closes."""

    __slots__ = ("__weakref__", "tangent")

    tangent: Any


_new = object.__new__


class Forward(Recorder):
    """One level of forward mode; levels nest as recorders do."""

    __slots__ = ("_cells", "_limit", "_outer_contexts", "_tidying", "is_of_transform")

    def __init__(self, is_of_transform: bool = False) -> None:
        super().__init__()
        self.is_of_transform = is_of_transform
        self._cells: list[weakref.ref[_Cell]] = []
        self._limit = _MANY
        self._outer_contexts: dict[Any, Any] = {}  # by what is current, the part of it that records tangents
        self._tidying = threading.RLock()

    def add_dual(self, t: Tensor, tangent: Any) -> None:
        """Let `t`, which is kept alive, have this tangent, an array or a Tensor of its shape and dtype."""
        self.leaf_ids[t] = tangent

    def node_id_of(self, t: Tensor) -> Any:
        """Return the tangent of `t`, or None."""
        if t._rec is self:
            return t._node_id.tangent
        tangent = self.leaf_ids.get(t)
        if tangent is None and self.has_overflow_ids:
            cell = getattr(t, "_overflow_ids", {}).get(self)
            return None if cell is None else cell.tangent
        return tangent

    def track(self, t: Tensor, node_id: Any) -> None:
        """Let `t` have the tangent `node_id` from now on."""
        cell = _new(_Cell)
        cell.tangent = node_id
        if t._rec is None:  # the common case
            t._node_id = cell
            t._rec = self
        else:
            super().track(t, cell)
        self._cells.append(weakref.ref(cell))
        if len(self._cells) > self._limit:
            self._tidy()

    def record_op(
        self, op: Any, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        several = z.__class__ is tuple
        if not (several or is_differentiable(z._array.dtype)):
            return
        now = current()
        try:
            outside = self._outer_context(now)
            set_current(outside)
            heard = listener()
            if heard is None or op.runs == "steps" or (op.runs and recorders(outside)):
                tangents = _tangents(op.jvp, node_ids, values, out, params)
            else:
                rule = _foreign_tangents if op.runs else _tangents
                tangents = heard.compute_tangents(rule, (op.jvp, node_ids, values, out, params))
            for result, tangent in zip(z, tangents, strict=True) if several else ((z, tangents),):
                if tangent is not None:
                    self.track(result, tangent)
        except errors.GradmgrError:
            raise
        except Exception as error:  # whatever it is, it goes on, with the op's name
            error.add_note(f"(in the forward derivative of gradmgr op {op.name!r})")
            raise
        finally:
            set_current(now)

    def _outer_context(self, now: Any) -> Any:
        """Return the context to compute tangents in: of the recorders that record now, those outside of this level.

        They are those that track the values too. Not what was current at the entry: modes come and go.
        """
        try:
            return self._outer_contexts[now]
        except KeyError:
            if len(self._outer_contexts) > _FEW:
                self._outer_contexts.clear()
            self._outer_contexts[now] = found = _context_outside(now, self)
            return found

    def _tidy(self) -> None:
        """Forget the cells that are gone. Threads that carry the level on may append meanwhile."""
        call_if_free(self._tidying, self._drop_unheld)

    def _drop_unheld(self) -> None:
        seen = len(self._cells)
        self._cells[:seen] = [cell for cell in self._cells[:seen] if cell() is not None]
        self._limit = 2 * len(self._cells) + _MANY

    def close(self) -> None:
        """Forget every tangent, also those of tensors that live on."""
        super().close()
        self.outer = None
        self._outer_contexts.clear()
        with self._tidying:
            cells, self._cells = self._cells, []
        for found in cells:
            cell = found()
            if cell is not None:
                cell.tangent = None


def _tangents(jvp: Any, node_ids: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...]) -> Any:
    """Return the tangent of each result, by the rule of an op; None of one that has none."""
    made = jvp(node_ids, values, out, params)
    if out.__class__ is not tuple:
        return broadcast_like(made, bare(out))
    return tuple(
        [
            broadcast_like(tangent, bare(part)) if is_differentiable(part.dtype) else None
            for tangent, part in zip(made, out, strict=True)
        ]
    )


class ForwardScope(Scope):
    """In which a level of forward mode is open."""

    __slots__ = ("level",)

    def __init__(self, is_of_transform: bool = False) -> None:
        self.level = Forward(is_of_transform)

    def _open(self, opened: Any) -> None:
        enter_recorders(self.level)

    def _close(self, opened: Any) -> None:
        self.level.close()
        leave_recorders(self.level)


def _context_outside(context: Context, rec: Recorder) -> Any:
    """Return the part of a context that was entered before a recorder, with all its interceptors."""
    outer = entered_before(context, rec)
    part = context.narrowed(outer.__contains__).with_interceptors(context.open_interceptors())
    return (part.resumed() if part.groups == part.with_paused else part).simplest()


def entered_before(context: Context, rec: Recorder) -> list[Recorder]:
    """Return the recorders of a context, paused ones too, that were entered before one of them."""
    found: list[Recorder] = []
    for group in context.with_paused:
        if rec in group:
            break
        found.extend(group)
    return found


def _foreign_tangents(*args: Any) -> Any:
    """Do as `_tangents` where the rule is code of the program's, which a replay calls each time."""
    return _tangents(*args)


_foreign_tangents.runs_each_time = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions
