"""Typed exceptions; each is also the builtin a reader expects to catch."""

from __future__ import annotations

import re
import sys
import warnings
from types import MappingProxyType


class GradmgrError(Exception):
    """The root of everything gradmgr raises on its own account."""


class RecordingError(GradmgrError, RuntimeError):
    """A manager was asked for something its recording state does not allow."""


class NotRecordedError(GradmgrError, RuntimeError):
    """A tensor was used as if a manager had recorded how it came about."""


class StaleValueError(GradmgrError, RuntimeError):
    """Memory that a derivative needs was declared overwritten from outside."""


class TrackedConversionError(GradmgrError, TypeError):
    """A tracked tensor was about to become a plain array behind the user's back."""


class UnsupportedFunctionError(GradmgrError, TypeError):
    """NumPy has this function, gradmgr does not."""


class GaugeError(GradmgrError, RuntimeError):
    """A result was made to depend on a choice the library is free in: a vector's phase, a null space's basis."""


class AnomalyError(GradmgrError, RuntimeError):
    """A derivative is NaN, or failed, under anomaly detection."""


class CallbackError(GradmgrError, TypeError):
    """A callback did not return a gradient or a future of one."""


class FunctionError(GradmgrError, RuntimeError):
    """A user's Function does not do what was asked of it."""


class MissingRuleError(GradmgrError, NotImplementedError):
    """A user's Function lacks the method that this derivative needs."""


class HooksDisabledError(GradmgrError, RuntimeError):
    """Hooks on saved tensors were entered where they are forbidden."""


class CheckpointError(GradmgrError, RuntimeError):
    """A checkpointed function did not do the same again, or was used in a way that cannot be repeated."""


class CompileWarning(RuntimeWarning):
    """A compiled function runs as if it were not compiled; the text says why."""


class PerformanceWarning(RuntimeWarning):
    """What was asked for is computed in a slow way; the text says which."""


class PromotionWarning(RuntimeWarning):
    """An operation gives a wider dtype than its Tensors have."""


class PromotionError(GradmgrError, TypeError):
    """An operation gives a wider dtype than its Tensors have, within `detect_promotion("raise")`."""


class AllocatorError(GradmgrError, RuntimeError):
    """The C library's memory allocator was asked for something that it does not have, or refused."""


class SpillError(GradmgrError, OSError):
    """Values that a budget moved to disk could not be written or read."""


class MixedArraysError(GradmgrError, TypeError):
    """NumPy and CuPy arrays met in one operation."""


class BatchedValueError(GradmgrError, RuntimeError):
    """One value was asked for, inside vmap, of a tensor whose values differ between examples."""


class RandomnessError(GradmgrError, RuntimeError):
    """Random numbers were drawn inside vmap, whose randomness= does not say whether they differ between examples."""


class BatchedWriteError(GradmgrError, RuntimeError):
    """A write, inside vmap, of values that differ between examples to memory that all examples share."""


class DtypeError(GradmgrError, TypeError):
    """A dtype that cannot carry or receive this gradient."""


class ShapeError(GradmgrError, ValueError):
    """A shape that does not fit what it was given for."""


class DeviceError(GradmgrError, RuntimeError):
    """A device was asked for that this machine or installation does not have."""


class GradcheckError(GradmgrError, RuntimeError):
    """An analytic derivative disagrees with the numeric one."""


class LabelError(GradmgrError, IndexError):
    """A label of a loss, or an index of a table, is outside of what there is."""


class NonFiniteError(GradmgrError, RuntimeError):
    """A number that was to be finite is infinite or NaN."""


class StateError(GradmgrError, ValueError):
    """A saved state does not fit what it is loaded into, or its file was not written by gradmgr."""


class DistributedError(GradmgrError, RuntimeError):
    """The ranks did not ask for the same, or MPI or NCCL failed."""

    asked: tuple[str, ...] = ()  # what each rank did, where that is what they did not agree on


class RankFailedError(DistributedError):
    """Another rank ended, or did not answer in time."""


class MissingDependencyError(GradmgrError, ImportError):
    """An optional library that this function needs is not installed."""


def how_to_install(*extras: str) -> str:
    """Return in words how to install what one of the extras brings, for errors.

    gradmgr itself is on no index of packages, so that pip finds its extras, and gradmgr-native, in a clone alone.

    >>> from gradmgr import errors
    >>> print(errors.how_to_install("mpich"))
    in a clone of gradmgr: pip install -e ".[mpich]"
    """
    what = "./native" if extras == ("native",) else "-e " + " or ".join(f'".[{extra}]"' for extra in extras)
    return f"in a clone of gradmgr: pip install {what}"


# The classes of errors that wrong arguments cause.
REJECTIONS = (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError)


def put_name(error: Exception, name: str) -> None:
    """Begin an error's text with the name of the function that was called, unless it is there already.

    In place, so that the error keeps its type, its traceback and what else it knows. Where an op
    within had put its own name, that of the function called last, the user's, replaces it.
    """
    text = getattr(error, "_unnamed", None) or str(error)
    if re.search(rf"^{name}\b|(?<![\w.]){name}\(|numpy\.{name}\b|'{name}'", text):
        return
    error._unnamed = text  # type: ignore[attr-defined]  # a note to the next call of this function
    if hasattr(error, "_msg"):  # numpy.exceptions.AxisError, whose text is made of its fields
        error._msg = name if text.startswith("axis ") else f"{name}: {text.partition(': axis ')[0]}"
    else:
        error.args = (f"{name}: {text}",)


def warn(message: str, category: type[Warning]) -> None:
    """Warn with the line of the user's program that called gradmgr, through any number of gradmgr's frames."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradmgr."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


# Names of torch's that are not here, and what to use instead.
_REFUSED = MappingProxyType(
    {
        "autograd": "what torch.autograd has is in gradmgr itself: gradmgr.grad, gradmgr.functional",
        "func": "vmap is in gradmgr itself; grad, vjp, jvp, jacobian and hessian are in gradmgr.functional",
        "Variable": "torch deprecates it and a Tensor needs no wrapping; use gradmgr.tensor and GradManager.attach",
        "BackwardCFunction": "it is the inside of torch's Function; subclass gradmgr.Function",
        "InplaceFunction": "torch keeps it for old code alone; subclass gradmgr.Function and call ctx.mark_dirty",
        "NestedIOFunction": "torch keeps it for old code alone; subclass gradmgr.Function, with flat arguments",
    }
)


def lacking(name: str, module: str) -> AttributeError:
    """Make the error for a name that a module lacks, which torch may have."""
    text = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{text}: {_REFUSED[name]}" if name in _REFUSED else text)
