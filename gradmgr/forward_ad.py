"""Forward mode: tangents that are computed together with the values, operation by operation.

Levels nest, where PyTorch has one: a second derivative is a level inside a level. With managers, the
rule is the same: a derivative is recorded by what was entered earlier. A level inside a manager's recording
gives tangents that the manager differentiates (reverse over forward); a manager inside a level gives
gradients that have tangents (forward over reverse: a Hessian times a vector, at the cost of two gradients).
The gradient of a manager that was entered before a level has no tangent there.

>>> import gradmgr.numpy as np
>>> from gradmgr import GradManager, forward_ad, tensor
>>> x = tensor([1.0, 2.0])
>>> with forward_ad.dual_level():
...     dual = forward_ad.make_dual(x, tensor([1.0, 0.0]))
...     gm = GradManager().attach(dual)
...     with gm:
...         gm.backward(np.sum(dual**3))
...     gradient, second = forward_ad.unpack_dual(dual.grad)
>>> gradient, second
(Tensor([ 3., 12.]), Tensor([6., 0.]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import Scope, complete
from gradmgr._engine.context import current, enter_recorders, leave_recorders, recorders
from gradmgr._engine.forward import Forward, entered_before
from gradmgr._engine.history.modes import decorate
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tensor import Tensor, describe, raw, wrap

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]

F = TypeVar("F", bound=Callable[..., Any])


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns: `primal`, the values, and `tangent`, None if there is none.

    >>> from gradmgr import forward_ad, tensor
    >>> with forward_ad.dual_level():
    ...     x = forward_ad.make_dual(tensor(3.0), tensor(1.0))
    ...     primal, tangent = forward_ad.unpack_dual(x**2)
    >>> primal, tangent
    (Tensor(9.), Tensor(6.))
    """

    primal: Tensor
    tangent: Tensor | None


class _Level(Forward):
    """A level that the user entered; those of `functional` have no number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __del__(self) -> None:
        if getattr(self, "open", False):
            self.close()  # the thread that entered it ended without leaving it


# ---------------------------------------------------------------- levels


def _open_levels() -> list[_Level]:
    """Return the levels that are open in this context, the innermost last."""
    return [rec for rec in recorders(current()) if isinstance(rec, _Level) and rec.open]


def _find_level(caller: str, level: int | None) -> _Level:
    """Return the level of this number, the innermost for None."""
    if level is not None and (not isinstance(level, int) or isinstance(level, bool)):
        raise TypeError(f"{caller}: level= is a number that enter_dual_level() returned; found {type(level).__name__}")
    levels = _open_levels()
    if not levels:
        raise errors.RecordingError(
            f"{caller} needs a dual level, and none is open in this thread or task; "
            "write `with forward_ad.dual_level():` around it"
        )
    if level is None:
        return levels[-1]
    for found in levels:
        if found.number == level:
            return found
    raise errors.RecordingError(
        f"{caller}: level {level} is not open in this thread or task: it was never entered, or exited already; "
        f"open: {', '.join(str(found.number) for found in levels)}"
    )


def _new_level() -> _Level:
    levels = _open_levels()
    return _Level(levels[-1].number + 1 if levels else 0)


def _exit_level(level: _Level) -> None:
    level.close()
    leave_recorders(level)


def enter_dual_level() -> int:
    """Open a level inside those that are open, and return its number: 0 for the outermost.

    Prefer `dual_level`, which also closes it.

    >>> from gradmgr import forward_ad
    >>> forward_ad.enter_dual_level()
    0
    >>> forward_ad.exit_dual_level()
    """
    level = _new_level()
    try:
        enter_recorders(level)
        return level.number
    except BaseException:
        complete(_exit_level, level)
        raise


def exit_dual_level(*, level: int | None = None) -> None:
    """Close a level: its tangents are gone, also from tensors that live on.

    Levels may be closed in any order, as managers may be released; those that stay open lose nothing.

    Args:
        level: its number; None for the innermost that is open.

    Raises:
        RuntimeError: it is not open in this thread or task.

    >>> from gradmgr import forward_ad
    >>> outer, inner = forward_ad.enter_dual_level(), forward_ad.enter_dual_level()
    >>> forward_ad.exit_dual_level(level=outer)
    >>> forward_ad.exit_dual_level(level=inner)
    """
    found: list[_Level] = []
    try:
        try:
            _exit(level, found)
        except (errors.RecordingError, TypeError):
            raise
        except BaseException:
            complete(_exit, level, found)
            raise
    except (errors.RecordingError, TypeError):
        raise
    except BaseException:
        complete(_exit, level, found)
        raise


def _exit(number: int | None, found: list[_Level]) -> None:
    """Close the level of this number, and note it, so that called again this closes no other."""
    if not found:
        found.append(_find_level("exit_dual_level", number))
    _exit_level(found[0])


class dual_level(Scope):  # noqa: N801  # torch's spelling
    """A level that is open in a with block or in a decorated function or coroutine.

    The block gets the number of its level. However it ends, the level is closed, and a level that was
    closed inside stays so.

    >>> from gradmgr import forward_ad, tensor
    >>> with forward_ad.dual_level():
    ...     x = forward_ad.make_dual(tensor(3.0), 1.0)
    ...     y, dy = forward_ad.unpack_dual(x * x)
    >>> y, dy
    (Tensor(9.), Tensor(6.))
    """

    __slots__ = ("_entered",)

    def __init__(self) -> None:
        self._entered: list[_Level] = []

    if TYPE_CHECKING:

        def __enter__(self) -> int: ...

    def _begin(self) -> _Level:
        return _new_level()

    def _latest(self) -> _Level | None:
        own = [level for level in self._entered if level.open]
        # The last one entered in this context; if there is none, a generator is finalised in another context.
        return next((level for level in reversed(_open_levels()) if level in own), own[-1] if own else None)

    def _open(self, opened: _Level) -> int:
        self._entered.append(opened)
        enter_recorders(opened)
        return opened.number

    def _close(self, opened: _Level) -> None:
        _exit_level(opened)
        for level in list(self._entered):
            if not level.open:
                with suppress(ValueError):  # another thread that entered this object has removed it
                    self._entered.remove(level)

    def __call__(self, function: F) -> F:
        """Run each call of a function, or the whole of a coroutine, in its own level.

        Raises:
            TypeError: a generator function, a class, or nothing that can be called.
        """
        return decorate("dual_level", dual_level, function, may_suspend=False)


# ---------------------------------------------------------------- duals


def make_dual(tensor: Tensor, tangent: Any, *, level: int | None = None) -> Tensor:
    """Return a tensor with the values of `tensor` and, until the level is closed, a tangent.

    It shares its values with `tensor` and is tracked by the managers and levels that track `tensor`, so
    gradients of the one reach the other, also under `no_grad`. Writing in place to `tensor`, to the result or to
    `tangent` changes none of the others.

    Args:
        tensor: of a floating or complex dtype, of any shape.
        tangent: a Tensor or array of the same shape, dtype and device, or nested lists of numbers. A Tensor
            keeps its own history with the managers and levels entered before this level.
        level: the number of an open level; None for the innermost.

    Raises:
        RuntimeError: no such level is open here; `tensor` has a tangent there already; or `tangent` has a
            history with the level itself, or with what was entered after it, that would be lost.
        TypeError: `tensor` is not a Tensor or an integer one; the dtype or the device of `tangent` is another.
        ValueError: the shape of `tangent` is another.

    >>> from gradmgr import forward_ad, tensor
    >>> with forward_ad.dual_level():
    ...     x = forward_ad.make_dual(tensor([1.0, 2.0]), [1.0, 0.0])
    ...     (x * x).tolist(), forward_ad.unpack_dual(x * x).tangent.tolist()
    ([1.0, 4.0], [2.0, 0.0])
    """
    found = _find_level("make_dual", level)
    _check_primal(tensor, found)
    handle = _checked_tangent(tensor, tangent, found)
    dual = _make_handle(tensor, recorders(current()))
    found.track(dual, handle)
    return dual


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the values of a tensor and its tangent at a level; the tangent is None if it has none.

    Both are new tensors. The primal is tracked by all managers and levels that track `tensor`, except
    this level; the tangent by those entered before this level, which can so differentiate it once more.

    Args:
        tensor: any Tensor.
        level: the number of an open level; None for the innermost. With None and no level open the
            tangent is None.

    Raises:
        RuntimeError: the level of this number is not open here.
        TypeError: `tensor` is not a Tensor.

    >>> from gradmgr import forward_ad, tensor
    >>> forward_ad.unpack_dual(tensor([1.0]))
    UnpackedDualTensor(primal=Tensor([1.]), tangent=None)
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"unpack_dual takes a Tensor; found {type(tensor).__name__}")
    state = current()
    if level is None and not _open_levels():
        return UnpackedDualTensor(_make_handle(tensor, recorders(state)), None)
    found = _find_level("unpack_dual", level)
    primal = _make_handle(tensor, [rec for rec in recorders(state) if rec is not found])
    tangent = found.node_id_of(tensor)
    if tangent is None:
        return UnpackedDualTensor(primal, None)
    return UnpackedDualTensor(primal, _make_handle(tangent, entered_before(state, found)))


def _make_handle(value: Any, tracking: Iterable[Recorder]) -> Tensor:
    """Return a new Tensor of the same array; those of the recorders that track `value` track it too."""
    made = wrap(raw(value))
    if isinstance(value, Tensor):
        for rec in tracking:
            node_id = rec.node_id_of(value) if rec.open else None
            if node_id is not None:
                rec.track(made, node_id)
    return made


def _check_primal(tensor: Any, level: _Level) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"make_dual takes a Tensor and its tangent; found {type(tensor).__name__}; "
            "make one with gradmgr.tensor(...)"
        )
    if not libraries.is_differentiable(tensor.dtype):
        raise errors.DtypeError(
            f"make_dual: {describe(tensor)} cannot have a tangent; "
            "use a floating or complex dtype, as with t.astype('float64')"
        )
    if level.node_id_of(tensor) is not None:
        raise errors.RecordingError(
            f"make_dual: {describe(tensor)} has a tangent at level {level.number} already; for a second derivative "
            "open a level inside, to replace the tangent start from unpack_dual(t).primal"
        )


def _checked_tangent(tensor: Tensor, tangent: Any, level: _Level) -> Any:
    """Return the tangent that the level keeps, to which the user cannot write."""
    value = tangent if isinstance(tangent, Tensor) or libraries.is_array(tangent) else _from_numbers(tensor, tangent)
    what = f"make_dual: the tangent of {describe(tensor)}"
    if value.shape != tensor.shape:
        raise errors.ShapeError(f"{what} must have its shape {tensor.shape}; found {value.shape}")
    if value.dtype != tensor.dtype:
        raise errors.DtypeError(
            f"{what} must have its dtype {tensor.dtype}; found {value.dtype}; "
            f"convert it with .astype({str(tensor.dtype)!r})"
        )
    device = libraries.device_of(raw(value))
    if device != tensor.device:
        raise errors.MixedArraysError(f"{what} must live on {tensor.device}; found {device}; move one of them")
    if not isinstance(value, Tensor):
        return libraries.make_array(value, copy=True)
    state = current()
    outer_recorders = entered_before(state, level)
    losing = [
        rec for rec in recorders(state) if rec.open and rec not in outer_recorders and rec.node_id_of(value) is not None
    ]
    if losing:
        which = "the level itself" if level in losing else "a manager or level that was entered after the level"
        raise errors.RecordingError(
            f"{what} has a history with {which}, which cannot differentiate it: derivatives are recorded by what was "
            "entered earlier; pass tangent.detach(), or enter the level last"
        )
    handle = _make_handle(value, outer_recorders)
    return raw(handle) if handle._rec is None else handle


def _from_numbers(tensor: Tensor, tangent: Any) -> Any:
    """Make an array in the dtype of `tensor` of a number or nested lists."""
    try:
        plain = libraries.make_array(tangent)
    except errors.REJECTIONS as error:
        errors.put_name(error, "make_dual")
        raise
    if plain.dtype.kind == "c" and tensor.dtype.kind != "c":
        return plain  # refused by the check of dtypes
    return libraries.to_device(plain.astype(tensor.dtype), tensor.device)
