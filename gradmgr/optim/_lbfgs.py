"""L-BFGS, a quasi-Newton method, whose step calls a closure that computes the loss and the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.listening import listener
from gradmgr._engine.capture_notes import call_whole
from gradmgr._engine.context import current
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr.ops.convert import wide_dtype
from gradmgr.optim._chunks import flattened, real_of
from gradmgr.optim._line_search import LineSearch, Point
from gradmgr.optim._optimizer import Group, Optimizer, check_number, options_of
from gradmgr.optim._recorded import check_has_no_tangent, write_step

Array = Any

_LEAST_CURVATURE = 1e-10  # y s of a pair that is kept; with less the estimate of the Hessian is not positive


class _Memory:
    """What one iteration leaves for the next, over all parameters as one row."""

    def __init__(self) -> None:
        self.iterations = self.evaluations = 0
        self.step = self.scale = 1.0
        self.loss = 0.0
        self.direction: Array = None
        self.gradient: Array = None  # where the direction was chosen
        self.changes: list[Array] = []  # of the gradient, the oldest first
        self.moves: list[Array] = []  # of the parameters

    def copied(self) -> _Memory:
        """Return a copy; the arrays are not written to."""
        made = _Memory()
        made.__dict__.update(self.__dict__, changes=list(self.changes), moves=list(self.moves))
        return made

    def add(self, gradient: Array, most: int) -> None:
        """Take in the move that led to a gradient, in place of the oldest of `most`."""
        xp = libraries.namespace(gradient)
        change, move = gradient - self.gradient, self.direction * self.step
        curvature = float(xp.dot(change, move))
        if curvature > _LEAST_CURVATURE:
            self.changes = [*self.changes, change][-most:]
            self.moves = [*self.moves, move][-most:]
            self.scale = curvature / float(xp.dot(change, change))

    def descent(self, gradient: Array) -> Array:
        """Return the negative gradient times the estimate of the inverse Hessian, by the two-loop recursion."""
        xp = libraries.namespace(gradient)
        pairs = [(y, s, 1 / float(xp.dot(y, s))) for y, s in zip(self.changes, self.moves, strict=True)]
        row, factors = -gradient, []
        for y, s, rate in reversed(pairs):
            factors.append(float(xp.dot(s, row)) * rate)
            row = row - factors[-1] * y
        row = row * self.scale
        for (y, s, rate), factor in zip(pairs, reversed(factors), strict=True):
            row = row + s * (factor - float(xp.dot(y, row)) * rate)
        return row


class LBFGS(Optimizer):
    """L-BFGS: step along the gradient times an estimate of the inverse Hessian, made of the last changes of both.

    Liu, Nocedal: On the limited memory BFGS method for large scale optimization (1989); Nocedal, Wright: Numerical
    Optimization (2006), algorithm 7.4. `step` takes up to `max_iter` iterations and needs a closure, which clears the
    gradients, computes the loss and its gradients, and returns the loss. If the closure raises, the parameters are as
    before the step. All parameters are in one group and on one device.

    Args:
        params: see `Optimizer`.
        lr: the factor of a step, or where the line search begins.
        max_iter: the maximum number of iterations in a `step`.
        max_eval: the maximum number of calls of the closure in a `step`; by default 5 / 4 max_iter.
        tolerance_grad: a `step` ends where no number of the gradient is larger.
        tolerance_change: a `step` ends where no parameter, or where the loss, changes by more.
        history_size: how many changes are kept.
        line_search_fn: None for none, or "strong_wolfe".

    Raises:
        TypeError, ValueError: see `Optimizer`; or there are several groups, or parameters of several devices.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import GradManager, optim, tensor
    >>> w = tensor([-1.5, 2.0])
    >>> gm, optimizer = GradManager().attach(w), optim.LBFGS([w], max_iter=50, line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     with gm:
    ...         loss = (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    ...         gm.backward(loss)
    ...     return loss
    >>> first = optimizer.step(closure)
    >>> w.numpy().round(4).tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if max_eval is None:
            max_eval = max_iter * 5 // 4
        self._memory = _Memory()
        super().__init__(params, options_of(locals()))

    _nonnegative = ("lr", "tolerance_grad", "tolerance_change")
    _state = ("d", "prev_flat_grad", "old_dirs", "old_stps")

    def _check_options(self, group: Group) -> None:
        super()._check_options(group)
        for name in ("max_iter", "max_eval", "history_size"):
            check_number(name, group[name], low=1)
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise ValueError(f"line_search_fn must be None or 'strong_wolfe'; found {group['line_search_fn']!r}")

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add the group of parameters; a second one is refused.

        Raises:
            TypeError, ValueError: as for the constructor.
        """
        if self.param_groups:
            raise ValueError("LBFGS takes one group of parameters, as it updates all of them together; found a second")
        super().add_param_group(param_group)

    # ------------------------------------------------------------ the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to `max_iter` iterations.

        Args:
            closure: clears the gradients, computes the loss and the gradients, and returns the loss.

        Returns:
            The result of the first call of the closure.

        Raises:
            TypeError: there is no closure, or it does not return a number.
            ValueError: the parameters are on several devices.
        """
        if closure is None:
            raise TypeError("LBFGS.step needs a closure that computes the loss and its gradients; found None")
        if listener() is not None:
            return call_whole(self.step, closure, changes=list(self._params()))
        check_has_no_tangent(self._params())
        with self._lock:
            before, memory = [bare(p).copy() for p in self._params()], self._memory.copied()
            try:
                return self._iterate(closure)
            except BaseException:
                self._memory = memory
                for p, value in zip(self._params(), before, strict=True):
                    _write(p, value)
                raise

    def _iterate(self, closure: Callable[[], Any]) -> Any:
        group, memory = self.param_groups[0], self._memory
        first = closure()
        loss, gradient = _number(first), self._flat_gradient()
        calls = 1
        if _largest(gradient) > group["tolerance_grad"]:
            for iteration in range(1, group["max_iter"] + 1):
                memory.iterations += 1
                self._choose_direction(gradient)
                old, memory.loss = loss, loss
                slope = float(libraries.namespace(gradient).dot(gradient, memory.direction))
                if slope > -group["tolerance_change"]:
                    break
                start = Point(0.0, loss, gradient, slope)
                loss, gradient, count = self._move(start, closure, is_last=iteration == group["max_iter"])
                calls += count
                if calls >= group["max_eval"] or self._has_converged(loss - old, gradient):
                    break
        memory.evaluations += calls
        self._step_count += 1
        return first

    def _choose_direction(self, gradient: Array) -> None:
        """Set the direction and the first step of an iteration."""
        group, memory = self.param_groups[0], self._memory
        if memory.direction is None:
            memory.direction = -gradient
            total = float(abs(gradient).sum())
            memory.step = min(1.0, 1.0 / total) * group["lr"]
        else:
            memory.add(gradient, int(group["history_size"]))
            memory.direction = memory.descent(gradient)
            memory.step = float(group["lr"])
        memory.gradient = gradient

    def _move(self, start: Point, closure: Callable[[], Any], *, is_last: bool) -> tuple[float, Array, int]:
        """Move the parameters; return the loss and the gradient there, and how often the closure was called."""
        group, memory = self.param_groups[0], self._memory
        origin = [bare(p).copy() for p in self._params()]
        if group["line_search_fn"] is None:
            self._put(origin, memory.step)
            if is_last:  # the loss there is not used
                return start.value, start.gradient, 0
            return _number(closure()), self._flat_gradient(), 1

        def evaluate(step: float) -> Point:
            self._put(origin, step)
            loss, gradient = _number(closure()), self._flat_gradient()
            return Point(step, loss, gradient, float(libraries.namespace(gradient).dot(gradient, memory.direction)))

        search = LineSearch(evaluate, start, _largest(memory.direction), group["tolerance_change"])
        found = search.run(memory.step)
        self._put(origin, found.step)
        memory.step = found.step
        return found.value, found.gradient, search.evaluations

    def _has_converged(self, change: float, gradient: Array) -> bool:
        group, memory = self.param_groups[0], self._memory
        return bool(
            _largest(gradient) <= group["tolerance_grad"]
            or _largest(memory.direction) * abs(memory.step) <= group["tolerance_change"]
            or abs(change) < group["tolerance_change"]
        )

    def _flat_gradient(self) -> Array:
        """Return the gradients as one new row of real numbers; zeros for parameters that have none."""
        params = list(self._params())
        devices = {p.device for p in params}
        if len(devices) > 1:
            raise ValueError(f"LBFGS: all parameters must be on one device; found {', '.join(sorted(devices))}")
        xp = libraries.namespace(bare(params[0]))
        rows = []
        for p in params:
            grad = p.grad
            row = xp.zeros(p.shape, p.dtype) if grad is None else bare(grad)
            rows.append(flattened(xp.ascontiguousarray(row)))
        dtype = real_of(wide_dtype(np.result_type(*[row.dtype for row in rows])))
        return xp.concatenate(rows).astype(dtype, copy=False)

    def _put(self, origin: list[Array], step: float) -> None:
        """Set the parameters to those at a step along the direction."""
        at = 0
        for p, value in zip(self._params(), origin, strict=True):
            count = value.size * (2 if value.dtype.kind == "c" else 1)
            part = self._memory.direction[at : at + count]
            moved = flattened(libraries.namespace(value).ascontiguousarray(value)) + part * step
            _write(p, _unflattened(moved, value))
            at += count

    # ------------------------------------------------------------ state

    def _state_by_parameter(self) -> dict[str, Any]:
        group, memory = self.param_groups[0], self._memory
        saved = {key: value for key, value in group.items() if key != "params"}
        saved["params"] = list(range(len(group["params"])))
        state: dict[str, Any] = {}
        if memory.iterations:
            xp = libraries.namespace(memory.gradient)
            state = {"step": memory.iterations, "func_evals": memory.evaluations, "t": memory.step}
            state |= {"H_diag": memory.scale, "prev_loss": memory.loss}
            state |= {"d": wrap(memory.direction.copy()), "prev_flat_grad": wrap(memory.gradient.copy())}
            for name, rows in (("old_dirs", memory.changes), ("old_stps", memory.moves)):
                empty = xp.zeros((0, memory.gradient.size), memory.gradient.dtype)
                state[name] = wrap(xp.stack(rows) if rows else empty)
        return {"state": {0: state} if state else {}, "param_groups": [saved]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the state and the options to those of a `state_dict` of an LBFGS over parameters of the same sizes.

        Raises:
            StateError: it does not fit; nothing is changed.
        """
        is_state = isinstance(state_dict, Mapping) and {"state", "param_groups"} <= set(state_dict)
        group: Group = {}
        faults, memory = ["it is not a dict with 'state' and 'param_groups'"], _Memory()
        if is_state:
            faults, group = self._read_group(state_dict["param_groups"])
            try:
                memory = self._read_memory(dict(state_dict["state"]))
            except (KeyError, TypeError, ValueError) as error:
                faults.append(f"its state: {type(error).__name__}: {error}")
        if faults:
            raise errors.StateError("load_state_dict: the state does not fit LBFGS:\n  " + "\n  ".join(faults))
        with self._lock:
            self.param_groups[0].update(group)
            self._memory = memory

    def _read_group(self, groups: Any) -> tuple[list[str], Group]:
        if len(groups) != 1:
            return [f"it has {len(groups)} parameter groups, the optimiser 1"], {}
        saved, group = dict(groups[0]), self.param_groups[0]
        count = len(list(saved.pop("params", ())))
        faults = [] if count == len(group["params"]) else [f"it has {count} parameters, not {len(group['params'])}"]
        return [*faults, *self._option_faults(group, saved)], saved

    def _read_memory(self, states: dict[Any, Any]) -> _Memory:
        memory = _Memory()
        if not states:
            return memory
        state: dict[str, Any] = dict(next(iter(states.values())))
        size = sum([p.size * (2 if p.dtype.kind == "c" else 1) for p in self._params()])
        memory.iterations = int(state["step"])
        memory.evaluations = int(state["func_evals"])
        memory.step, memory.scale, memory.loss = (float(bare(state[name])) for name in ("t", "H_diag", "prev_loss"))
        device = libraries.device_of(bare(next(self._params())))
        rows = [libraries.to_device(bare(state[name]), device).copy() for name in self._state]
        for name, row in zip(self._state, rows, strict=True):
            if row.shape[-1] != size:
                raise ValueError(f"{name!r} is for {row.shape[-1]} numbers; the parameters have {size}")
        memory.direction, memory.gradient, changes, moves = rows
        memory.changes, memory.moves = list(changes), list(moves)
        return memory


def _write(p: Tensor, values: Array) -> None:
    """Give a parameter other values: in place, where there is no recording that must note the unrecorded write."""
    if current() is None:
        p[...] = values
    else:
        write_step(p, values)


def _number(loss: Any) -> float:
    """Return what a closure returned as a number."""
    try:
        return float(bare(loss) if isinstance(loss, Tensor) else loss)
    except TypeError:
        raise TypeError(f"LBFGS: the closure must return the loss, a number; found {type(loss).__name__}") from None


def _largest(row: Array) -> float:
    return float(abs(row).max()) if row.size else 0.0


def _unflattened(row: Array, like: Array) -> Array:
    """Return a row of real numbers in the shape and dtype of an array."""
    row = row.astype(real_of(like.dtype), copy=False)
    return (row.view(like.dtype) if like.dtype.kind == "c" else row).reshape(like.shape)
