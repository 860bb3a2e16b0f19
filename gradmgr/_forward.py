"""Forward: tangents pushed along as the operations happen; the mark of a tensor is its tangent."""

from __future__ import annotations

from typing import Any

from gradmgr._broadcast import spread
from gradmgr._recorder import Recorder, during
from gradmgr._tensor import Tensor, raw
from gradmgr._xp import is_differentiable


class Forward(Recorder):
    """Forward mode, one level; levels nest as recorders do."""

    __slots__ = ()

    def watch(self, t: Tensor, tangent: Any) -> None:
        """Let `t` have this tangent, an array or a Tensor of its shape and dtype."""
        self.guests[t] = tangent

    def note(
        self, op: Any, marks: tuple[Any, ...], values: tuple[Any, ...], out: Any, params: tuple[Any, ...], z: Any
    ) -> None:
        if z.__class__ is tuple:
            with during(self.below):
                tangents = op.push(marks, values, out, params)
            for result, handle, tangent in zip(z, out, tangents, strict=True):
                if is_differentiable(result.dtype):
                    with during(self.below):
                        fitting = spread(tangent, raw(handle))
                    self.stamp(result, fitting)
        elif is_differentiable(z.dtype):
            with during(self.below):
                tangent = spread(op.push(marks, values, out, params), raw(out))
            self.stamp(z, tangent)
