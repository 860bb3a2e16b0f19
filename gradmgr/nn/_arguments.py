"""What the functions of `nn` ask of their arguments: pairs of sizes, dtypes, words, labels."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._inplace import as_type
from gradmgr.ops.reduce import mean, sum

REDUCTIONS = ("none", "mean", "sum")


def generator(rng: Any, asked: str) -> np.random.Generator:
    """Return the Generator to draw from: the caller's, or for None a new one, seeded by NumPy's global generator.

    So what is drawn without a Generator can be brought back by `gradmgr.checkpoint` and is seen by `gradmgr.vmap`.

    Raises:
        TypeError: rng is a seed, or a generator of another kind.
    """
    if rng is None:
        return np.random.default_rng(np.random.randint(0, 2**32, 4, dtype=np.uint32))  # noqa: NPY002  # why: as above
    if isinstance(rng, np.random.Generator):
        return rng
    example = rng if isinstance(rng, int) and not isinstance(rng, bool) else "seed"
    raise TypeError(
        f"{asked} draws from a numpy.random.Generator; found rng of type {type(rng).__name__}; make one with "
        f"numpy.random.default_rng({example}), once, and pass it wherever random numbers are drawn"
    )


def integer(value: Any, name: str, asked: str) -> int:
    """Return an argument that must be one integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{asked}: {name} must be an integer; found {value!r}") from None


def single(value: Any, name: str, asked: str) -> tuple[int]:
    """Return an integer, or a sequence of one, as a tuple."""
    return (_lengths(value, 1, name, asked)[0],)


def pair(value: Any, name: str, asked: str) -> tuple[int, int]:
    """Return an integer, used for both, or a sequence of two, as a tuple."""
    first, second = _lengths(value, 2, name, asked)
    return first, second


def _lengths(value: Any, count: int, name: str, asked: str) -> tuple[int, ...]:
    if isinstance(value, (tuple, list)):
        if len(value) != count:
            says = "one integer" if count == 1 else f"an integer or {count} of them"
            raise ValueError(f"{asked}: {name} must be {says}; found {value!r}")
        return tuple([integer(part, name, asked) for part in value])
    return (integer(value, name, asked),) * count


def is_floating(dtype: Any) -> bool:
    """Tell whether a dtype is of real floating-point numbers, bfloat16 among them."""
    return bool(dtype.kind == "f" or dtype.name == "bfloat16")


def is_half(dtype: Any) -> bool:
    """Tell whether a dtype is floating and of two bytes: what is computed in float32 inside."""
    return is_floating(dtype) and bool(dtype.itemsize <= 2)


def wide_dtype(dtype: Any) -> Any:
    """Return float32 for halves, each other dtype as it is."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def widened(x: Any) -> Any:
    """Return halves in float32, all else as it is."""
    return as_type(x, np.float32) if is_half(x.dtype) else x


def narrowed(x: Any, dtype: Any) -> Any:
    """Return what was computed of halves in float32 in their dtype, where it may overflow, quietly."""
    if not is_half(dtype):
        return x
    with np.errstate(over="ignore"):
        return as_type(x, dtype)


def check_floating(asked: str, /, **arrays: Any) -> None:
    """Refuse arguments that are not of real floating-point numbers; None is let through.

    Raises:
        DtypeError: it names the argument and its dtype.
    """
    _check_kind(asked, "real floating-point numbers", arrays, planar=False)


def check_inexact(asked: str, /, **arrays: Any) -> None:
    """Refuse arguments that are of neither floating-point nor complex numbers; None is let through.

    Raises:
        DtypeError: it names the argument and its dtype.
    """
    _check_kind(asked, "floating-point or complex numbers", arrays, planar=True)


def _check_kind(asked: str, says: str, arrays: dict[str, Any], *, planar: bool) -> None:
    for name, a in arrays.items():
        if a is not None and not (is_floating(a.dtype) or (planar and a.dtype.kind == "c")):
            raise errors.DtypeError(
                f"{asked} takes {says}; found {name} of dtype {a.dtype}; convert it with .astype(numpy.float32)"
            )


def check_word(value: Any, among: tuple[str, ...], name: str, asked: str) -> None:
    """Refuse a word that is not one of those known."""
    if not (isinstance(value, str) and value in among):
        known = " ".join(repr(word) for word in among)
        raise ValueError(f"{asked}: {name} must be one of {known}; found {value!r}")


def check_reduction(reduction: Any, asked: str) -> None:
    """Refuse a reduction that is not one of the three."""
    check_word(reduction, REDUCTIONS, "reduction", asked)


def reduced(loss: Any, reduction: str, asked: str) -> Any:
    """Reduce the losses of single elements: "none" leaves them, "mean" and "sum" give one number.

    The mean over nothing is NaN, without a warning.
    """
    check_reduction(reduction, asked)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return sum(loss)
    return mean(loss) if loss.size else sum(loss) * np.asarray(np.nan, loss.dtype)[()]
