"""`detect_promotion`: which line of the program computes in a wider dtype than its Tensors have."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from gradmgr import errors
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.context import add_interceptor, current, interceptors_of, remove_interceptor
from gradmgr._engine.interceptors import Interceptor
from gradmgr._engine.observers import SourceLocation, user_location
from gradmgr._engine.tensor import Tensor, describe

_MODES = ("warn", "raise")
# What a program calls in order to cast.
_CASTS = frozenset(("asarray", "astype", "tensor", "to"))


class _PromotionInterceptor(Interceptor):
    """Compares the dtypes of each op's result and inputs."""

    __slots__ = ("_mode", "owner")

    follows_backward = False
    affects_results = True  # so that a function computed again, as by `checkpoint`, is looked at again

    def __init__(self, mode: str, owner: object) -> None:
        super().__init__()
        self._mode = mode
        self.owner = owner

    def reopened(self) -> _PromotionInterceptor:
        return _PromotionInterceptor(self._mode, self.owner)

    def after_op(self, op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> None:
        widest = max(map(_precision, result if result.__class__ is tuple else (result,)))
        narrow = [t for t in inputs if isinstance(t, Tensor) and 0 < _precision(t) < widest]
        if not narrow or (op.name == "astype" and _is_asked_for()):
            return
        message = _message(op.name, narrow[0], inputs, result)
        if self._mode == "raise":
            raise errors.PromotionError(message)
        errors.warn(message, errors.PromotionWarning)


def _precision(value: Any) -> int:
    """Return the bytes of a real number of a value's dtype; 0 for integers, booleans and what has no dtype."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or (dtype.kind not in "fc" and dtype.name != "bfloat16"):
        return 0
    return int(dtype.itemsize) // (2 if dtype.kind == "c" else 1)


def _is_asked_for() -> bool:
    """Tell whether the function that the program called casts, or was given a dtype.

    Its frame is the outermost of gradmgr's, or the one below where a function dispatches for it.
    """
    frame: FrameType | None = sys._getframe(1)
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__", "").startswith("gradmgr."):
        frames.append(frame)
        frame = frame.f_back
    return any(map(_casts, frames[-2:]))


def _casts(frame: FrameType) -> bool:
    code = frame.f_code
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_name.strip("_") in _CASTS or ("dtype" in parameters and frame.f_locals["dtype"] is not None)


def _message(name: str, narrow: Tensor, inputs: tuple[Any, ...], result: Any) -> str:
    made = result[0] if result.__class__ is tuple else result
    wide = next((x for x in inputs if _precision(x) > _precision(narrow)), None)
    if wide is None:
        cause = ""
    elif getattr(wide, "shape", ()) == ():
        cause = f", as another operand is a number of {wide.dtype}: a Python number keeps the dtype"
    else:
        cause = f", as another operand has {wide.dtype}: cast it with .astype({narrow.dtype.name!r})"
    found = user_location(2)
    at = "" if found is None else f" at {SourceLocation(*found)}"
    return f"{name} of {describe(narrow)} gives {made.dtype}{cause}{at}"


class detect_promotion(Scope):  # noqa: N801  # reads as a statement, as detect_anomaly
    """In a with block, report the lines of the program that compute in a wider dtype than that of their Tensors.

    Float32 work becomes float64 where an operand is a float64 array, or a NumPy scalar, as in `x / numpy.sqrt(d)`:
    twice the memory and time. Casts that the program asks for are left alone: `astype`, `dtype=`. What an op computes
    inside itself, and derivatives, are not looked at. Operations take longer in the block.

    Args:
        mode: "warn" with an errors.PromotionWarning, once for each line under Python's default filter; or "raise" an
            errors.PromotionError, a TypeError.

    Raises:
        ValueError: mode is neither.

    >>> import numpy, gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0], dtype="float32")
    >>> with gradmgr.detect_promotion("raise"):
    ...     y = x / 3.0
    ...     z = x / numpy.sqrt(3.0)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    gradmgr.errors.PromotionError: divide of a Tensor of shape (2,) and dtype float32 gives float64, ...
    """

    def __init__(self, mode: str = "warn") -> None:
        if mode not in _MODES:
            raise ValueError(f"detect_promotion: mode is 'warn' or 'raise'; found {mode!r}")
        self._mode = mode

    def _begin(self) -> _PromotionInterceptor:
        return _PromotionInterceptor(self._mode, self)

    def _latest(self) -> _PromotionInterceptor | None:
        own = [each for each in interceptors_of(current()) if getattr(each, "owner", None) is self]
        return own[-1] if own else None  # type: ignore[return-value]  # such an interceptor has an owner

    def _open(self, opened: Any) -> None:
        add_interceptor(opened)

    def _close(self, opened: Any) -> None:
        remove_interceptor(opened)
