"""GradScaler: gradients of half-precision losses, scaled to stay above underflow."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays.atomic import Call, call_quietly, run_atomically
from gradmgr._arrays.libraries import to_device
from gradmgr._arrays.listening import listener
from gradmgr._engine.capture_notes import refuse_in_replay, runs_each_time, runs_each_time_without_tensors
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr.ops.convert import widen_half
from gradmgr.optim._chunks import real_of
from gradmgr.optim._clip import Row, change_all, copies_of, gradients_of, rows_of
from gradmgr.optim._optimizer import Optimizer, check_number


class _RoundState:
    """What was done with an optimiser since the last `update`."""

    __slots__ = ("_optimizer", "_steps_before", "found_inf", "has_checked", "has_stepped", "is_unscaled")

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._steps_before = optimizer._step_count
        self.is_unscaled = False
        self.has_checked = False  # whether a gradient was checked
        self.found_inf = False
        self.has_stepped = False

    @property
    def stepped(self) -> bool:
        """Whether `step` is done. The optimiser counts a step as it takes it, which nothing can interrupt."""
        return self.has_stepped or self._optimizer._step_count != self._steps_before


class GradScaler:
    """Scale a loss so that half-precision gradients do not underflow, and skip steps whose gradients overflowed.

    The scale grows while all gradients are finite and shrinks when one is infinite or NaN. Micikevicius and others:
    Mixed Precision Training (2018).

    Args:
        init_scale: the initial scale.
        growth_factor: the scale is multiplied by this after `growth_interval` updates without an overflow.
        backoff_factor: the scale is multiplied by this after an overflow.
        growth_interval: the number of updates without an overflow after which the scale grows.
        enabled: with False no method scales, checks or skips anything.

    Raises:
        TypeError, ValueError: a factor is out of range.

    >>> import gradmgr
    >>> from gradmgr import GradManager, optim, tensor
    >>> w = tensor([1.0], dtype="float16")
    >>> scaler, optimizer = optim.GradScaler(init_scale=1024.0), optim.SGD([w], lr=0.5)
    >>> gm = GradManager().attach(w)
    >>> with gm:
    ...     gm.backward(scaler.scale(w.sum()))
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> w.tolist()
    [0.5]
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = bool(enabled)
        self._has_scaled = False  # whether `scale` was ever called
        self._rounds: dict[Optimizer, _RoundState] = {}
        self._growth_tracker = 0
        _check_scale(init_scale)
        self._scale = float(init_scale)
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.set_growth_interval(growth_interval)

    # ------------------------------------------------------------ a training step

    def scale(self, outputs: Any) -> Any:
        """Return the loss, or each Tensor in a nested container of them, times the scale.

        A half-precision loss becomes float32, in which the scaled loss does not overflow. If a gradient overflows in
        the backward pass, NumPy warns as for any overflow; `with numpy.errstate(over="ignore")` prevents that.

        Raises:
            TypeError: an element of the container is not a floating Tensor.
        """
        if not self._enabled:
            return outputs
        losses = leaves_of(outputs)
        for t in losses:
            if not isinstance(t, Tensor) or t.dtype.kind in "biu":
                raise TypeError(f"scale() takes floating Tensors; found {t!r:.60}")
        self._has_scaled = True
        return rebuilt(outputs, iter([self._scaled(t) for t in losses]))

    def _scaled(self, t: Tensor) -> Any:
        capture = listener()
        if capture is None:
            return widen_half(t) * self._scale
        # What the scale is when the program is replayed.
        t = widen_half(t)
        return t * wrap(to_device(capture.call(self._scale_as, (real_of(t.dtype),), {}), t.device))

    def _scale_as(self, dtype: Any) -> Any:
        return np.asarray(self._scale, dtype)

    _scale_as.runs_each_time = True  # type: ignore[attr-defined]  # mypy knows no attributes of functions

    @runs_each_time
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser's parameters by the scale, and check whether they are finite.

        Call it before code that needs unscaled gradients, such as `clip_grad_norm_`; otherwise `step` calls it.

        Raises:
            RuntimeError: it was called since the last `update`, or after `step`; no loss was ever scaled; or a step of
                the optimiser is recorded here (`differentiable=True`).
        """
        if not self._enabled:
            return
        state = self._state_of_round(optimizer)
        if not self._has_scaled:
            self._rounds.pop(optimizer, None)
            raise RuntimeError(
                "no loss was scaled, and the gradients would be divided by the scale: "
                "call backward of scaler.scale(loss) before step() and unscale_()"
            )
        if state.stepped:
            raise RuntimeError("unscale_() comes after step() of this optimiser; call it before, or update() between")
        if state.is_unscaled:
            raise RuntimeError("unscale_() was called on this optimiser already since the last update(); call it once")
        params = [p for group in optimizer.param_groups for p in group["params"]]
        inverse = 1.0 / self._scale
        work = [(row, row.values()) for row in rows_of(gradients_of(params, "unscale_"))]
        finite = [_stays_finite(row, values, inverse) for row, values in work]  # read below: reading waits for the GPU
        last: list[Call] = [
            (setattr, state, "has_checked", state.has_checked or bool(finite)),
            (setattr, state, "found_inf", state.found_inf or not all(finite)),
            (setattr, state, "is_unscaled", True),
        ]
        change_all(copies_of(work), lambda xp: lambda a: [(xp.multiply, a, inverse, a)], last)

    @runs_each_time
    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients if `unscale_` did not, and call the optimiser's `step` if all of them are finite.

        Args:
            optimizer: the optimiser.
            *args: arguments of its `step`; a closure is refused, as it would compute scaled gradients again.
            **kwargs: keyword arguments of its `step`.

        Returns:
            What the optimiser's `step` returned, or None if it was skipped.

        Raises:
            RuntimeError: it was called since the last `update`, no loss was scaled, no parameter has a gradient, or
                the step is recorded here (`differentiable=True`).
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("step() of a GradScaler takes no closure: compute the gradients before it")
        state = self._state_of_round(optimizer)
        if state.stepped:
            raise RuntimeError(
                "step() was called on this optimiser already since the last update(); call update() first"
            )
        if not state.is_unscaled:
            self.unscale_(optimizer)
        if not state.has_checked:
            self._rounds.pop(optimizer, None)
            raise RuntimeError(
                "step(): no parameter of the optimiser has a gradient; was backward() called on the loss?"
            )
        result = None
        if state.found_inf:
            # This also says that the step is done, and a schedule does not warn that it was stepped first.
            optimizer._step_count += 1
        else:
            result = optimizer.step(**kwargs)
        state.has_stepped = True
        return result

    @runs_each_time_without_tensors
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adjust the scale to whether gradients were finite since the last `update`, or set it.

        Raises:
            RuntimeError: no gradients were checked since the last `update`.
        """
        if not self._enabled:
            return
        growth_tracker = self._growth_tracker
        if new_scale is not None:
            scale = new_scale.item() if isinstance(new_scale, Tensor) else new_scale
            _check_scale(scale)
        else:
            checked = [state for state in self._rounds.values() if state.has_checked]
            if not checked:
                raise RuntimeError("update() comes after step() or unscale_() of an optimiser; none was called")
            scale, growth_tracker = self._adjusted(any(state.found_inf for state in checked))
        run_atomically(
            [
                (setattr, self, "_scale", float(scale)),
                (setattr, self, "_growth_tracker", growth_tracker),
                (self._rounds.clear,),
            ]
        )

    def _adjusted(self, found_inf: bool) -> tuple[float, int]:
        """Return the scale for the next steps, and the number of updates without an overflow."""
        if found_inf:
            return self._scale * self._backoff_factor, 0
        if self._growth_tracker + 1 < self._growth_interval:
            return self._scale, self._growth_tracker + 1
        grown = self._scale * self._growth_factor
        return grown if grown <= float(np.finfo(np.float32).max) else self._scale, 0

    def _state_of_round(self, optimizer: Optimizer) -> _RoundState:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"a GradScaler works with an optimiser of gradmgr.optim; found {type(optimizer).__name__}")
        if optimizer._is_recorded():
            raise errors.RecordingError(
                "a GradScaler divides gradients in place, as constants, which would cut their history, and the step of "
                "this optimiser, of differentiable=True, is recorded here; step it without a GradScaler, in float32"
            )
        return self._rounds.setdefault(optimizer, _RoundState(optimizer))

    # ------------------------------------------------------------ options and state

    def get_scale(self) -> float:
        """Return the scale; 1.0 where disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return the factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows, above 1."""
        check_number("growth_factor", new_factor, low=1.0)
        if new_factor == 1:
            raise ValueError("growth_factor must be above 1; found 1")
        self._growth_factor = float(new_factor)

    def get_backoff_factor(self) -> float:
        """Return the factor by which the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks, between 0 and 1."""
        check_number("backoff_factor", new_factor, high=1.0, below=True)
        if new_factor == 0:
            raise ValueError("backoff_factor must be above 0; found 0")
        self._backoff_factor = float(new_factor)

    def get_growth_interval(self) -> int:
        """Return after how many updates without an overflow the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many updates without an overflow the scale grows."""
        if int(new_interval) != new_interval or new_interval < 1:
            raise ValueError(f"growth_interval must be a whole number above 0; found {new_interval!r}")
        self._growth_interval = int(new_interval)

    def is_enabled(self) -> bool:
        """Tell whether scaling is enabled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, the factors and the number of updates without an overflow; empty where disabled."""
        refuse_in_replay("state_dict() of GradScaler")
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state to that of a `state_dict`; does nothing where disabled.

        Raises:
            StateError: it does not fit; nothing is then changed.
        """
        if not self._enabled:
            return
        wanted = set(self.state_dict())
        if set(state_dict) != wanted:
            missing, unknown = sorted(wanted - set(state_dict)), sorted(set(state_dict) - wanted)
            raise errors.StateError(
                f"load_state_dict of GradScaler: missing: {missing or 'none'}, unknown: {unknown or 'none'}; "
                "the state of a disabled scaler is empty and fits only a disabled one"
            )
        try:
            factors = [_number(state_dict[name]) for name in ("scale", "growth_factor", "backoff_factor")]
            read = GradScaler(factors[0], factors[1], factors[2])
            read.set_growth_interval(int(state_dict["growth_interval"]))
            read._growth_tracker = int(state_dict["_growth_tracker"])
        except (TypeError, ValueError) as error:
            raise errors.StateError(f"load_state_dict of GradScaler: {error}") from None
        read._has_scaled, read._rounds = self._has_scaled, self._rounds
        self.__dict__.update(read.__dict__)

    def __repr__(self) -> str:
        return f"GradScaler(scale={self.get_scale():g}, enabled={self._enabled})"


def _stays_finite(row: Row, values: Any, factor: float) -> Any:
    """Tell whether each number of a row is finite when it is multiplied by a factor; on a GPU as an array."""
    if values.size == 0:
        return True
    return call_quietly(_is_largest_finite, row.xp, values, factor)


def _is_largest_finite(xp: Any, values: Any, factor: float) -> Any:
    # The largest is NaN where any number is.
    return xp.isfinite(xp.maximum(values.max(), -values.min()) * values.dtype.type(factor))


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, Tensor) else value)


def _check_scale(value: Any) -> None:
    number = float(value)
    if not (number > 0 and isfinite(number)):
        raise ValueError(f"the scale must be finite and above 0; found {value!r}")
