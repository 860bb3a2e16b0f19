"""Typed exceptions; each is also the builtin a reader expects to catch."""

from __future__ import annotations

import re
import sys
import warnings
from types import MappingProxyType


class GradmgrError(Exception):
    """The root of everything gradmgr raises on its own account.

    >>> from gradmgr import GradManager, errors, tensor
    >>> try:
    ...     GradManager().backward(tensor(1.0))
    ... except errors.GradmgrError as error:
    ...     print(type(error).__name__, isinstance(error, RuntimeError))
    RecordingError True
    """


class RecordingError(GradmgrError, RuntimeError):
    """A manager was asked for something its recording state does not allow.

    >>> from gradmgr import GradManager
    >>> with GradManager() as gm:  # doctest: +ELLIPSIS
    ...     gm.record()
    Traceback (most recent call last):
        ...
    gradmgr.errors.RecordingError: record() was called on a GradManager that is recording already; call release() ...
    """


class NotRecordedError(GradmgrError, RuntimeError):
    """A tensor was used as if a manager had recorded how it came about.

    >>> from gradmgr import GradManager, tensor
    >>> with GradManager() as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(tensor(1.0))
    Traceback (most recent call last):
        ...
    gradmgr.errors.NotRecordedError: backward: this GradManager does not know y number 0, a Tensor of shape () ...
    """


class StaleValueError(GradmgrError, RuntimeError):
    """Memory that a derivative needs was declared overwritten from outside.

    >>> import numpy
    >>> from gradmgr import GradManager, asarray, graph
    >>> memory = numpy.array([1.0, 2.0])
    >>> x = asarray(memory)  # shares the memory
    >>> with GradManager().attach(x) as gm:  # doctest: +ELLIPSIS
    ...     y = (x * x).sum()
    ...     memory[0] = 5.0
    ...     graph.increment_version(x)
    ...     gm.backward(y)
    Traceback (most recent call last):
        ...
    gradmgr.errors.StaleValueError: the derivative of op 'multiply' needs a value in memory that ...
    """


class LostWriteError(GradmgrError, ValueError):
    """NumPy would write through a view to another array, and a Tensor, being a value, would lose that.

    `fill` and `flat` of a number raise it, too, since in NumPy they write to a copy of it.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import tensor
    >>> u = tensor([0.0, 1.0, 2.0, 3.0])
    >>> inner = u[1:-1]
    >>> inner += 10  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.LostWriteError: x += y would write to a Tensor of shape (2,) and dtype float64 that is a view of ...
    >>> u[1:-1] += 10
    >>> u
    Tensor([ 0., 11., 12.,  3.])
    """


class TrackedConversionError(GradmgrError, TypeError):
    """A tracked tensor was about to become a plain array behind the user's back.

    >>> import numpy
    >>> from gradmgr import GradManager, tensor
    >>> x = tensor([1.0, 2.0])
    >>> with GradManager().attach(x):  # doctest: +ELLIPSIS
    ...     numpy.asarray(x * 2.0)
    Traceback (most recent call last):
        ...
    gradmgr.errors.TrackedConversionError: a Tensor of shape (2,) and dtype float64 is tracked by a manager and ...
    """


class UnsupportedFunctionError(GradmgrError, TypeError):
    """NumPy has this function, gradmgr does not.

    >>> import numpy
    >>> from gradmgr import tensor
    >>> halve = numpy.frompyfunc(lambda x: x / 2, 1, 1)
    >>> halve(tensor([1.0, 2.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.UnsupportedFunctionError: <lambda> (vectorized) was called on a Tensor: gradmgr has no ...
    """


class GaugeError(GradmgrError, RuntimeError):
    """A result was made to depend on a choice the library is free in: a vector's phase, a null space's basis.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import functional, tensor
    >>> a = tensor([[1.0], [2.0], [0.5]])
    >>> functional.vjp(lambda a: np.linalg.svd(a)[0].sum(), a)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.GaugeError: the derivative of svd: the result depends on the vectors that ...
    """


class AnomalyError(GradmgrError, RuntimeError):
    """A derivative is NaN, or failed, under anomaly detection.

    >>> import gradmgr.numpy as np
    >>> from gradmgr import GradManager, detect_anomaly, tensor
    >>> x = tensor([0.0])
    >>> with np.errstate(all="ignore"), detect_anomaly(), GradManager().attach(x) as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(np.sum(np.sqrt(x) * 0.0))
    Traceback (most recent call last):
        ...
    gradmgr.errors.AnomalyError: the derivative of op 'sqrt' is NaN in the gradient of its input number 0; it was ...
    """


class CallbackError(GradmgrError, TypeError):
    """A callback did not return a gradient or a future of one.

    >>> from gradmgr import GradManager, tensor
    >>> x = tensor(1.0)
    >>> with GradManager().attach({"x": x}, callbacks=lambda t, grad: 2.0) as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(x * 2.0)
    Traceback (most recent call last):
        ...
    gradmgr.errors.CallbackError: callback <lambda> on ... gave float; return a Tensor, ...
    """


class FunctionError(GradmgrError, RuntimeError):
    """A user's Function does not do what was asked of it.

    >>> from gradmgr import Function, GradManager, tensor
    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2.0
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * 2.0, g
    >>> x = tensor(1.0)
    >>> with GradManager().attach(x) as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(Double.apply(x))
    Traceback (most recent call last):
        ...
    gradmgr.errors.FunctionError: Double.backward returned 2 gradients for 1 argument of forward; ...
    """


class MissingRuleError(GradmgrError, NotImplementedError):
    """A user's Function lacks the method that this derivative needs.

    >>> from gradmgr import Function, GradManager, tensor
    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2.0
    >>> x = tensor(1.0)
    >>> with GradManager().attach(x) as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(Double.apply(x))
    Traceback (most recent call last):
        ...
    gradmgr.errors.MissingRuleError: Double must define the static method backward(ctx, *grad_outputs), or vjp, ...
    """


class HooksDisabledError(GradmgrError, RuntimeError):
    """Hooks on saved tensors were entered where they are forbidden.

    >>> from gradmgr import graph
    >>> with graph.disable_saved_tensors_hooks("this model's values stay where they are"), graph.save_on_cpu():
    ...     pass
    Traceback (most recent call last):
        ...
    gradmgr.errors.HooksDisabledError: this model's values stay where they are
    """


class CheckpointError(GradmgrError, RuntimeError):
    """A checkpointed function did not do the same again, or was used in a way that cannot be repeated.

    >>> from gradmgr import GradManager, checkpoint, tensor
    >>> x, factors = tensor(2.0), iter([1.0, 0.0])
    >>> with GradManager().attach(x) as gm:  # doctest: +ELLIPSIS
    ...     gm.backward(checkpoint(lambda x: x * x if next(factors) else x, x))
    Traceback (most recent call last):
        ...
    gradmgr.errors.CheckpointError: checkpoint: <lambda> did not do in backward what it did when it was called: ...
    """


class CompileWarning(RuntimeWarning):
    """A compiled function runs as if it were not compiled; the text says why.

    >>> import warnings
    >>> import gradmgr
    >>> scale = gradmgr.compile(lambda x: x * float(x.sum()))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     y = scale(gradmgr.tensor([1.0, 2.0]))
    >>> print(caught[0].message)  # doctest: +ELLIPSIS
    <lambda> is not replayed, and runs as if it were not compiled: ... float() of a Tensor at ...
    """


class TrackedConversionWarning(UserWarning):
    """A tracked tensor became a plain number, which has no gradient: once for each line of the program.

    >>> import math, warnings
    >>> from gradmgr import GradManager, tensor
    >>> x = tensor(2.0)
    >>> with GradManager().attach(x), warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     y = math.sin(x)
    >>> found[0].category.__name__
    'TrackedConversionWarning'
    """


class PerformanceWarning(RuntimeWarning):
    """What was asked for is computed in a slow way; the text says which.

    >>> import warnings
    >>> import gradmgr.numpy as np
    >>> from gradmgr import vmap
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     y = vmap(np.unique)(np.arange(200.0).reshape(100, 2))
    >>> print(caught[0].message)  # doctest: +ELLIPSIS
    unique inside vmap is called once for each of 100 examples, as it has no rule for all of them at once; ...
    """


class PromotionWarning(RuntimeWarning):
    """An operation gives a wider dtype than its Tensors have.

    >>> import warnings
    >>> import numpy
    >>> from gradmgr import detect_promotion, tensor
    >>> with detect_promotion(), warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     y = tensor([1.0], dtype=numpy.float32) * numpy.ones(1)
    >>> print(caught[0].message)  # doctest: +ELLIPSIS
    multiply of a Tensor of shape (1,) and dtype float32 gives float64, as another operand has float64: ...
    """


class PromotionError(GradmgrError, TypeError):
    """An operation gives a wider dtype than its Tensors have, within `detect_promotion("raise")`.

    >>> import numpy
    >>> from gradmgr import detect_promotion, tensor
    >>> with detect_promotion("raise"):  # doctest: +ELLIPSIS
    ...     tensor([1.0], dtype=numpy.float32) * numpy.ones(1)
    Traceback (most recent call last):
        ...
    gradmgr.errors.PromotionError: multiply of a Tensor of shape (1,) and dtype float32 gives float64, as another ...
    """


class AllocatorError(GradmgrError, RuntimeError):
    """The C library's memory allocator was asked for something that it does not have, or refused."""


class SpillError(GradmgrError, OSError):
    """Values that a budget moved to disk could not be written or read."""


class MixedArraysError(GradmgrError, TypeError):
    """NumPy and CuPy arrays met in one operation."""


class ArrayClassError(GradmgrError, TypeError):
    """An array of a class of its own, such as a masked array, would lose what it means beside its numbers.

    >>> import numpy as np
    >>> from gradmgr import tensor
    >>> np.add(tensor([1.0, 2.0]), np.ma.array([1.0, 2.0], mask=[0, 1]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.ArrayClassError: add: a numpy.ma.MaskedArray is more than its numbers, ...
    """


class BatchedValueError(GradmgrError, RuntimeError):
    """One value was asked for, inside vmap, of a tensor whose values differ between examples.

    >>> from gradmgr import tensor, vmap
    >>> vmap(lambda x: x if x > 0 else -x)(tensor([1.0, -2.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.BatchedValueError: the truth of a tensor inside vmap: its values differ between examples, ...
    """


class RandomnessError(GradmgrError, RuntimeError):
    """Random numbers were drawn inside vmap, whose randomness= does not say whether they differ between examples.

    >>> from gradmgr import tensor, vmap
    >>> from gradmgr.nn import functional as F
    >>> vmap(F.dropout)(tensor([1.0, -2.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.RandomnessError: vmap(dropout): dropout draws random numbers; say randomness='same' ...
    """


class BatchedWriteError(GradmgrError, RuntimeError):
    """A write, inside vmap, of values that differ between examples to memory that all examples share.

    >>> from gradmgr import tensor, vmap
    >>> def add(total, x):
    ...     total += x
    ...     return total
    >>> vmap(add, in_dims=(None, 0))(tensor(0.0), tensor([1.0, -2.0]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.BatchedWriteError: vmap(add): a Tensor of shape () and dtype float64, which is the same for all ...
    """


class DtypeError(GradmgrError, TypeError):
    """A dtype that cannot carry or receive this gradient.

    >>> from gradmgr import GradManager, tensor
    >>> GradManager().attach(tensor([1, 2]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.DtypeError: attach: element 0, a Tensor of shape (2,) and dtype int64, cannot have a gradient; ...
    """


class ShapeError(GradmgrError, ValueError):
    """A shape that does not fit what it was given for.

    >>> from gradmgr import tensor
    >>> x = tensor([1.0, 2.0])
    >>> x.grad = tensor([1.0])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.ShapeError: the .grad of a Tensor of shape (2,) and dtype float64 must have its shape (2,); ...
    """


class DeviceError(GradmgrError, RuntimeError):
    """A device was asked for that this machine or installation does not have."""


class GradcheckError(GradmgrError, RuntimeError, AssertionError):
    """An analytic derivative disagrees with the numeric one; also an AssertionError, as a failed test is.

    >>> from gradmgr import Function, gradcheck, tensor
    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x * 2.0
    ...
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g * 3.0
    >>> gradcheck(Double.apply, tensor([1.0]), check_forward_ad=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.GradcheckError: the derivatives do not agree:
    - reverse Jacobian of output 0 by input 0: 1 of 1 differ, most at [0] by [0]: found 3.0, expected ...
    """


class LabelError(GradmgrError, IndexError):
    """A label of a loss, or an index of a table, is outside of what there is.

    >>> import numpy
    >>> from gradmgr.nn import functional as F
    >>> F.nll_loss(numpy.array([[-1.0, -2.0]]), numpy.array([2]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.LabelError: nll_loss takes labels from 0 to 1, of 2 classes, and ignore_index=-100; found 2 ...
    """


class NonFiniteError(GradmgrError, RuntimeError):
    """A number that was to be finite is infinite or NaN.

    >>> import numpy
    >>> from gradmgr import optim, tensor
    >>> w = tensor([1.0])
    >>> w.grad = tensor([numpy.inf])
    >>> optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.NonFiniteError: clip_grad_norm_: the norm of order 2 of all gradients is inf; ...
    """


class StateError(GradmgrError, ValueError):
    """A saved state does not fit what it is loaded into, or its file was not written by gradmgr.

    >>> from gradmgr import nn
    >>> nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.StateError: load_state_dict: the state does not fit Linear; nothing was changed:
      weight: shape (4, 2) in the state, (3, 2) here
      ...
    """


class DistributedError(GradmgrError, RuntimeError):
    """The ranks called different operations, or MPI or NCCL failed.

    >>> from gradmgr import distributed
    >>> distributed.rank()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    gradmgr.errors.DistributedError: the ranks are not connected; call gradmgr.distributed.init() once ...
    """

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


def check_function(function: object, asked: str) -> None:
    """Raise TypeError unless an argument can be called."""
    if not callable(function):
        raise TypeError(f"{asked} takes a function; found {type(function).__name__}")


# The classes of errors that wrong arguments cause.
REJECTIONS = (TypeError, ValueError, IndexError, ZeroDivisionError, OverflowError)


def put_name(error: Exception, name: str) -> None:
    """Begin an error's text with the name of the function that was called, unless it is there already.

    In place, so that the error keeps its type, its traceback and what else it knows. Where an op
    within had put its own name, that of the function called last, the user's, replaces it.
    """
    _call_by_its_name(error, name)
    _hint_at_numpys_keyword(error)
    text = getattr(error, "_unnamed", None) or str(error)
    if re.search(rf"^{name}\b|(?<![\w.]){name}\(|numpy\.{name}\b|'{name}'", text):
        return
    error._unnamed = text  # type: ignore[attr-defined]  # a note to the next call of this function
    if hasattr(error, "_msg"):  # numpy.exceptions.AxisError, whose text is made of its fields
        error._msg = name if text.startswith("axis ") else f"{name}: {text.partition(': axis ')[0]}"
    else:
        error.args = (f"{name}: {text}",)


def _call_by_its_name(error: Exception, name: str) -> None:
    """Replace the name of a function whose arguments Python refuses by the name under which it was called."""
    was_entered = error.__traceback__ is None or error.__traceback__.tb_next is not None
    refused = re.match(r"[\w.]+\(\) (?=got |takes |missing )", str(error))
    if isinstance(error, TypeError) and refused and not was_entered:
        error.args = (f"{name}() {str(error)[refused.end() :]}",)


HOW_TO_REQUIRE_GRAD = (
    "what receives gradients is what a manager has attached: leave it out, and write gm = GradManager().attach(x)"
)

# Keywords of torch's functions, and NumPy's for the same.
_KEYWORDS = MappingProxyType({"dim": "axis", "dims": "axis", "keepdim": "keepdims"})


def _hint_at_numpys_keyword(error: Exception) -> None:
    """Add to an error of arguments that torch's functions take what NumPy's take instead."""
    text = str(error)
    if not isinstance(error, TypeError) or "NumPy's" in text:
        return
    refused = re.search(r"unexpected keyword argument '(dim|dims|keepdim)'", text)
    if refused:
        error.args = (f"{text}; NumPy's keyword for it is {_KEYWORDS[refused[1]]}=",)
    elif "unexpected keyword argument 'requires_grad'" in text:
        error.args = (f"{text}; {HOW_TO_REQUIRE_GRAD}",)
    elif "only integer scalar arrays can be converted to a scalar index" in text:
        error.args = (f"{text}; several arrays are passed as one list, as in concatenate([a, b])",)
    elif torchs := re.search(r"Cannot interpret 'torch\.(\w+)' as a data type", text):
        error.args = (f"{text}; dtypes are NumPy's: write numpy.{torchs[1]}",)
    elif re.search("Cannot interpret '(True|False)' as a data type", text):
        error.args = (f"{text}; after axis comes NumPy's dtype: write keepdims=True",)
    elif re.search(r"out=\.\.\.\) writes into .* found bool", text):
        error.args = (f"{text}; after axis comes NumPy's out: write keepdims=True",)


def warn(message: str, category: type[Warning]) -> None:
    """Warn with the line of the user's program that called gradmgr, through any number of gradmgr's frames."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gradmgr."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


_GENERATORS = "random numbers come from a Generator: rng = numpy.random.default_rng(0), then rng.normal(size=3)"

# Names of torch's that are not here, and what to use instead.
_REFUSED = MappingProxyType(
    {
        "autograd": "what torch.autograd has is in gradmgr itself: gradmgr.grad, gradmgr.functional",
        "func": "vmap is in gradmgr itself; grad, vjp, jvp, jacobian and hessian are in gradmgr.functional",
        "cuda": "t.to('cuda:0') moves to a GPU, and tensor(a, device='cuda:0') makes a Tensor there",
        "device": "a device is a string, 'cpu' or 'cuda:0'",
        "from_numpy": "gradmgr.asarray(a) shares the memory of an array, and gradmgr.tensor(a) copies it",
        "jit": "gradmgr.compile makes a step faster",
        **dict.fromkeys(("manual_seed", "rand", "randn", "randint", "randperm", "normal"), _GENERATORS),
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
