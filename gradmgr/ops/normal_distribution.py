"""The error function and the normal distribution on arrays of NumPy's, in single and double precision; without SciPy.

SciPy takes 10 to 20 ns an element, one after the other. Here whole blocks go through NumPy's vector loops, some 20 to
50 of them at 0.07 ns an element in single and 0.13 ns in double precision.

Two quotients of polynomials carry all of it. Their coefficients were computed for this module: the largest weighted
error was made smallest, in 60 and 80 digits, by Lawson's iteration (weights of a linear least-squares problem,
multiplied by the errors found, again and again). All coefficients are positive, as the argument is, so nothing cancels.

* erf(x) = tanh(x R(x^2)). What R is off fades with the slope of tanh: R need be exact near 0 only. Largest relative
  error of erf by it: 3e-9 in single, 2e-16 in double precision.
* The tail of the normal distribution is Phi(-a) = exp(-a^2 / 2) T(a), a >= 0, with a T that falls smoothly from 1/2
  like 1 / (a sqrt(2 pi)); W. J. Cody (Rational Chebyshev approximations for the error function, Math. Comp. 23, 1969)
  splits off the exponential in the same way. Largest relative error of T for all a: 1.1e-9 and 1e-17.

The exponential of a rounded square would be off by up to a^2 / 2 roundings: what rounding took is put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.blocks import blocks, run

_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2 * math.pi)


class Quotient(NamedTuple):
    """A quotient of polynomials, the highest power first; that of `below` has the coefficient 1, which is left out."""

    above: tuple[float, ...]
    below: tuple[float, ...]

    def of_multiple(self, factor: float, times: float) -> Quotient:
        """Return the quotient that at a is `times` this one at factor * a."""
        top = len(self.below)
        above = [c * factor ** (len(self.above) - 1 - k) for k, c in enumerate(self.above)]
        below = [c * factor ** (top - 1 - k) for k, c in enumerate(self.below)]
        return Quotient(tuple([c * times / factor**top for c in above]), tuple([c / factor**top for c in below]))


class Precision(NamedTuple):
    """What one dtype computes with."""

    erf: Quotient  # R
    far: float  # where erf is 1
    tail: Quotient  # T
    bound: float  # a beyond which T is not asked for: its powers stay finite, and what lacks is below rounding
    shift: float  # added and taken away again, rounds a to so few digits that its square is exact
    integer: type[np.signedinteger[Any]]  # of the same size
    sign: int  # the bits to shift for the sign


def _monic(above: Sequence[float], below: Sequence[float]) -> Quotient:
    return Quotient(tuple([c / below[0] for c in above]), tuple([c / below[0] for c in below[1:]]))


_SINGLE = Precision(
    _monic(
        (0.0021789055475832234, 0.04265256267522089, 0.2798168413490581, 1.12837917109195),
        (0.00032505696238353852, 0.023694446164912455, 0.1569014512466686, 1.0),
    ),
    4.0,
    Quotient(
        (
            *(0.39894227997823761, 4.6836444180638591, 26.452839702927977, 86.691342589589774, 164.63533048341537),
            149.93539752090677,
        ),
        (
            *(11.740154755962409, 67.307523747284701, 229.03932912711795, 477.07126794331832, 568.53291252034385),
            299.87079535919472,
        ),
    ),
    1e4,
    1.5 * 2**15,
    np.int32,
    31,
)
_DOUBLE = Precision(
    _monic(
        (
            *(2.7066808697394802e-9, 4.3459449576745474e-7, 1.4569695398867199e-5, 2.5648951224845948e-4),
            *(0.0030171024293045101, 0.023970460804215951, 0.1372242573677324, 0.48741756998686905, 1.1283791670955124),
        ),
        (
            *(1.4424502372490287e-10, 8.8469802443935917e-8, 5.4203362743405421e-6, 1.1112619765841032e-4),
            *(0.0015763544557888338, 0.013563981344704078, 0.090749678654724173, 0.34088272621604256, 1.0),
        ),
    ),
    6.0,
    Quotient(
        (
            *(0.39894228040143268, 11.700600925415794, 170.09096898472142, 1588.541230802614, 10462.685593365175),
            *(50528.706285186655, 180830.31547343412, 473809.95548712145, 873111.1572486951, 1030086.2877906081),
            600395.76001958687,
        ),
        (
            *(29.32905710982091, 427.35483211647133, 4011.211421659988, 26650.418368685194, 130579.90812648911),
            *(478657.73465664157, 1306651.667586919, 2593576.3242182247, 3554054.0692717082, 3018265.5901634798),
            1200791.5200391737,
        ),
    ),
    1e8,
    1.5 * 2**32,
    np.int64,
    63,
)
_PRECISIONS = MappingProxyType({libraries.F4: _SINGLE, libraries.F8: _DOUBLE})
_OF_ERFC = MappingProxyType({dtype: p.tail.of_multiple(_ROOT_2, 2.0) for dtype, p in _PRECISIONS.items()})

Piece = Callable[..., None]

# ---------------------------------------------------------------- over whole arrays


def can_compute(x: Any) -> bool:
    """Tell whether these functions take x: an array of NumPy's, in single or double precision."""
    return x.__class__ is np.ndarray and x.dtype in _PRECISIONS


def is_worthwhile(x: Any) -> bool:
    """Tell whether x is of those and large: for few elements SciPy's loops are faster than 20 to 60 calls."""
    if x.__class__ is not np.ndarray:
        return False
    return (x.dtype is libraries.F4 and x.size >= 2048) or (x.dtype is libraries.F8 and x.size >= 8192)


def _run_in_blocks(piece: Piece, scratch: int, x: Any) -> Any:
    """Call piece(x, out, scratch...) on blocks of an array, each with `scratch` arrays of its size to compute in."""
    turned = not x.flags.c_contiguous and x.flags.f_contiguous
    given = np.ascontiguousarray(x.T if turned else x)
    made = np.empty(given.shape, x.dtype)
    flat, out = given.reshape(-1), made.reshape(-1)

    def work(part: slice) -> None:
        here = flat[part]
        piece(here, out[part], *np.empty((scratch, here.size), x.dtype))

    with np.errstate(all="ignore"):
        run(work, blocks(flat.size, flat.nbytes))
    return made.T if turned else made.reshape(x.shape)[()]


def erf(x: Any) -> Any:
    """Return the error function, to within 5 units of the last place."""
    return _run_in_blocks(_erf_piece, 2, x)


def erfc(x: Any) -> Any:
    """Return 1 - erf(x), without the difference; to within 10 units of the last place, far out too."""
    return _run_in_blocks(_erfc_piece, 4, x)


def ndtr(x: Any) -> Any:
    """Return the distribution function of the normal distribution; to within 10 units of the last place."""
    return _run_in_blocks(_ndtr_piece, 4, x)


def log_ndtr(x: Any) -> Any:
    """Return its logarithm, to within 10 units of the last place, also where it itself underflows."""
    return _run_in_blocks(_log_ndtr_piece, 4, x)


def hazard(x: Any) -> Any:
    """Return the density over the distribution function, the slope of log_ndtr; as exact as that."""
    return _run_in_blocks(_hazard_piece, 4, x)


# ---------------------------------------------------------------- over pieces


def _divide_polynomials(a: Any, out: Any, work: Any, quotient: Quotient) -> None:
    """Put the quotient at a into `out`."""
    above, below = quotient
    np.multiply(a, above[0], out=out)
    for c in above[1:-1]:
        out += c
        out *= a
    out += above[-1]
    np.add(a, below[0], out=work)
    for c in below[1:]:
        work *= a
        work += c
    out /= work


def _gaussian(a: Any, out: Any, half: Any, work: Any, p: Precision, factor: float) -> None:
    """Put exp(factor * a^2) into `out`: with s, the square as rounded, exp(factor * s) (1 + factor * (a^2 - s))."""
    np.add(a, p.shift, out=half)
    half -= p.shift
    np.subtract(a, half, out=work)
    np.add(a, half, out=out)
    work *= out
    half *= half  # exact
    np.multiply(a, a, out=out)
    half -= out  # exact
    work += half
    work *= factor
    work += 1
    out *= factor
    np.exp(out, out=out)
    out *= work


def _erf_piece(x: Any, out: Any, square: Any, work: Any) -> None:
    p = _PRECISIONS[x.dtype]
    np.clip(x, -p.far, p.far, out=work)
    np.multiply(work, work, out=square)
    _divide_polynomials(square, out, work, p.erf)
    np.clip(x, -p.far, p.far, out=work)
    out *= work
    np.tanh(out, out=out)


def _compute_tail(
    x: Any, out: Any, a: Any, bell: Any, half: Any, work: Any, p: Precision, quotient: Quotient, factor: float
) -> None:
    """Put T(|x|) into `out`, |x| into `a`, within bounds, and the exponential into `bell`."""
    np.clip(x, -p.bound, p.bound, out=a)
    np.abs(a, out=a)
    _gaussian(a, bell, half, work, p, factor)
    _divide_polynomials(a, out, work, quotient)


def _reflect(x: Any, out: Any, work: Any, p: Precision, total: float) -> None:
    """Change `out` to total - out where x is negative.

    By its bits: a choice by numpy.where or numpy.copyto takes ten times as long.
    """
    bits, sign = out.view(p.integer), work.view(p.integer)
    np.right_shift(x.view(p.integer), p.sign, out=sign)  # -1, all bits, where x is negative
    sign &= -1 << p.sign
    bits |= sign
    np.right_shift(sign, p.sign, out=sign)
    sign &= int(out.dtype.type(total).view(p.integer))
    out += work


def _erfc_piece(x: Any, out: Any, a: Any, bell: Any, half: Any, work: Any) -> None:
    p = _PRECISIONS[x.dtype]
    _compute_tail(x, out, a, bell, half, work, p, _OF_ERFC[x.dtype], -1.0)
    out *= bell
    _reflect(x, out, work, p, 2.0)


def _ndtr_piece(x: Any, out: Any, a: Any, bell: Any, half: Any, work: Any) -> None:
    p = _PRECISIONS[x.dtype]
    _compute_tail(x, out, a, bell, half, work, p, p.tail, -0.5)
    out *= bell
    np.negative(x, out=a)
    _reflect(a, out, work, p, 1.0)


def _log_ndtr_piece(x: Any, out: Any, a: Any, bell: Any, half: Any, work: Any) -> None:
    """Compute log1p(-T(x) exp(-x^2 / 2)) for positive x, for others log1p(T(-x) - 1) - x^2 / 2."""
    p = _PRECISIONS[x.dtype]
    _compute_tail(x, out, a, bell, half, work, p, p.tail, -0.5)
    positive = _masks_of_positive(x, work, p)
    bell *= out
    np.negative(bell, out=bell)
    out -= 1
    _copy_where(positive, bell, out, p)
    np.log1p(out, out=out)
    np.multiply(x, -0.5, out=a)
    a *= x
    np.invert(positive, out=positive)
    bits = a.view(p.integer)
    bits &= positive
    out += a


def _hazard_piece(x: Any, out: Any, a: Any, bell: Any, half: Any, work: Any) -> None:
    """Compute 1 / T(-x), where x is positive exp(-x^2 / 2) / (1 - T(x) exp(-x^2 / 2)), over sqrt(2 pi)."""
    p = _PRECISIONS[x.dtype]
    _compute_tail(x, out, a, bell, half, work, p, p.tail, -0.5)
    positive = _masks_of_positive(x, work, p)
    np.multiply(bell, out, out=a)
    np.subtract(1, a, out=a)
    _copy_where(positive, a, out, p)
    half.fill(1)
    _copy_where(positive, bell, half, p)
    out *= _ROOT_2PI
    np.divide(half, out, out=out)
    np.negative(x, out=a)
    np.maximum(out, a, out=out)  # which it is next to beyond the bound


def _masks_of_positive(x: Any, scratch: Any, p: Precision) -> Any:
    """Return -1, all bits, where x is positive or NaN, else 0."""
    mask = scratch.view(p.integer)
    np.negative(x, out=scratch)
    np.right_shift(mask, p.sign, out=mask)
    return mask


def _copy_where(mask: Any, x: Any, out: Any, p: Precision) -> None:
    """Put x into `out` where the mask is set; x is lost."""
    new, old = x.view(p.integer), out.view(p.integer)
    new ^= old
    new &= mask
    old ^= new
