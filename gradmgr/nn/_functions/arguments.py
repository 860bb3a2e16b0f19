"""Checks and conversions of the arguments of `nn`: numbers, sizes, dtypes, words, reductions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._engine.tensor import Tensor
from gradmgr.ops.convert import holds_tensor, is_floating, lift
from gradmgr.ops.reduce import mean, sum

REDUCTIONS = ("none", "mean", "sum")


def one_array(value: Any) -> Any:
    """Lift an argument that must be one array.

    Raises:
        TypeError: it is a tuple of Tensors, as some layers return it, which would otherwise be stacked.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple) and holds_tensor(value):
        if hasattr(value, "_fields"):  # a PackedSequence, or a result of linalg
            raise TypeError(
                f"expected one Tensor or array; found a {type(value).__name__}: pass on one of its fields, "
                f"{', '.join(value._fields)}"
            )
        raise TypeError(
            f"expected one Tensor or array; found a tuple of {len(value)}, as LSTM, GRU and MultiheadAttention return "
            "it: pass on its first, as in `out, _ = layer(x)`"
        )
    return lift(value)


def integer(value: Any, name: str, asked: str) -> int:
    """Return an argument that must be an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{asked}: {name} must be an integer; found {value!r}") from None


def length(value: Any, name: str, asked: str, least: int = 0) -> int:
    """Return an argument that must be an integer of at least `least`."""
    count = integer(value, name, asked)
    if count < least:
        raise ValueError(f"{asked}: {name} must be at least {least}; found {value!r}")
    return count


def number(value: Any, name: str, asked: str) -> float:
    """Return an argument that must be a real number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{asked}: {name} must be a number; found {value!r}") from None


def single(value: Any, name: str, asked: str) -> tuple[int]:
    """Return an integer, or a sequence of one, as a tuple."""
    return (_lengths(value, 1, name, asked)[0],)


def pair(value: Any, name: str, asked: str) -> tuple[int, int]:
    """Return an integer, used for both, or a sequence of two, as a tuple."""
    first, second = _lengths(value, 2, name, asked)
    return first, second


def triple(value: Any, name: str, asked: str) -> tuple[int, int, int]:
    """Return an integer, used for all three, or a sequence of three, as a tuple."""
    first, second, third = _lengths(value, 3, name, asked)
    return first, second, third


def _lengths(value: Any, count: int, name: str, asked: str) -> tuple[int, ...]:
    if isinstance(value, (tuple, list)):
        if len(value) != count:
            says = "one integer" if count == 1 else f"an integer or {count} of them"
            raise ValueError(f"{asked}: {name} must be {says}; found {value!r}")
        return tuple([integer(part, name, asked) for part in value])
    return (integer(value, name, asked),) * count


def check_floating(asked: str, /, **arrays: Any) -> None:
    """Raise unless all arguments are None or of real floating-point numbers.

    Raises:
        DtypeError: an argument is not; the message names it and its dtype.
    """
    _check_kind(asked, "real floating-point numbers", arrays, complex_too=False)


def check_inexact(asked: str, /, **arrays: Any) -> None:
    """Raise unless all arguments are None or of floating-point or complex numbers.

    Raises:
        DtypeError: an argument is not; the message names it and its dtype.
    """
    _check_kind(asked, "floating-point or complex numbers", arrays, complex_too=True)


def _check_kind(asked: str, says: str, arrays: dict[str, Any], *, complex_too: bool) -> None:
    for name, a in arrays.items():
        if a is None or a.dtype.kind == "f":  # the common case, without a call
            continue
        if not (is_floating(a.dtype) or (complex_too and a.dtype.kind == "c")):
            raise errors.DtypeError(
                f"{asked} takes {says}; found {name} of dtype {a.dtype}; convert it with .astype(numpy.float32)"
            )


def check_word(value: Any, among: tuple[str, ...], name: str, asked: str) -> None:
    """Raise unless a word is one of the known ones."""
    if not (isinstance(value, str) and value in among):
        known = " ".join(repr(word) for word in among)
        raise ValueError(f"{asked}: {name} must be one of {known}; found {value!r}")


def check_not_in_place(inplace: bool, asked: str) -> None:
    """Refuse inplace=True. Programs written for torch may rely on what it does, so it is not ignored."""
    if not isinstance(inplace, (bool, np.bool_)):
        raise TypeError(
            f"{asked}: inplace must be False; found {type(inplace).__name__}; a layer is made first and then called, "
            f"as in {asked}()(x)"
        )
    if inplace:
        raise ValueError(
            f"{asked}: inplace=True is not supported, as no layer writes to its input; leave it out, and use what "
            "the layer returns"
        )


def check_reduction(reduction: Any, asked: str) -> None:
    """Raise unless a reduction is "none", "mean" or "sum"."""
    check_word(reduction, REDUCTIONS, "reduction", asked)


def reduced(loss: Any, reduction: str, asked: str) -> Any:
    """Reduce the losses of elements: "none" returns them, "mean" and "sum" return one number.

    The mean over nothing is NaN, without a warning.
    """
    check_reduction(reduction, asked)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return sum(loss)
    return mean(loss) if loss.size else sum(loss) * np.asarray(np.nan, loss.dtype)[()]
