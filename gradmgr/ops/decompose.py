"""Decompositions: eigh, eig, svd, qr and those of them that give the values only.

A decomposition is one op of several results; its rules go from the factors, so nothing is factorised
twice. X^H is written for the conjugate transpose, `pairs` for the matrix of all pairs (i, j) of
eigenvalues or singular values.

Sources. eigh, eig: M. B. Giles, "Collected matrix derivative results for forward and reverse mode
algorithmic differentiation" (2008). svd: the same; M. Seeger et al., "Auto-differentiating linear
algebra" (2017); for complex matrices Z.-Q. Wan and S.-X. Zhang, "Automatic differentiation for complex
valued SVD" (2019). qr: D. Roberts and L. Roberts, "QR and LQ decomposition matrix backpropagation
algorithms for square, wide, and deep matrices" (2020). The pairs' terms of svd are written by sums and
differences, 2 s_i / (s_j^2 - s_i^2) = 1/(s_j - s_i) - 1/(s_j + s_i), which does not square.

Degenerate values. Where values i and j are equal to rounding, their vectors are not determined, and
the rules divide 0 by 0; so they do, in svd, by values that vanish. There the derivative is

* in reverse mode: 0 from this pair where the result cannot depend on it: only values were used; or the
  vectors i and j and their values were not used; or no values were used and the numerator vanishes to
  rounding, as it does for functions of spectral projectors. Else NaN.
* in forward mode: for the values the diagonal of V^H dA V, right for symmetric functions of them; for
  the vectors 0 from this pair where its element of V^H dA V vanishes, else NaN.

`V @ diag(w) @ V^H` has the numerators of a projector but another derivative, so that 0 is right only
where values were not used. That vectors received cotangents of 0 does not say that they were not used:
they may have been multiplied by an f(w) = 0, as in a reconstruction at a matrix of zeros. So it counts
only if the values received 0, too, or equal cotangents while they differ in their last bits, and f cannot
be 0 at both. What this cannot distinguish from it is a reconstruction, at values that are exactly equal with f = 0,
of which the cotangent is exactly 0 on the diagonal between these vectors: it gets 0.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import is_complex
from gradmgr._engine.context import is_tracked
from gradmgr._engine.custom import custom, several
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import as_type
from gradmgr._engine.op import Function, zeros
from gradmgr._engine.tensor import Tensor, raw, wrap
from gradmgr.ops.arithmetic import absolute, real
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.join import concatenate
from gradmgr.ops.matrices import from_triangle, to_triangle
from gradmgr.ops.pick import take_along_axis
from gradmgr.ops.shape import diagonal, swapaxes, tril, triu
from gradmgr.ops.where import choose

# How far above `_rounding` a sum of products in which all cancels still counts as rounding.
_SLACK = 16


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EigResult(NamedTuple):
    """What `eig` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


# ---------------------------------------------------------------- small parts


def _adjoint(x: Any) -> Any:
    """Return X^H."""
    return swapaxes(conj_of(x), -1, -2)


def _real(x: Any) -> Any:
    return real(x) if is_complex(x) else x


def _eye(x: Any) -> Any:
    """Return a mask of the diagonal."""
    a = raw(x)
    return libraries.namespace(a).eye(a.shape[-1], dtype=bool)


def _diagonal(x: Any) -> Any:
    return diagonal(x, 0, -2, -1)


def _diagonal_matrix(values: Any) -> Any:
    """Return a diagonal matrix."""
    return choose(_eye(values), values[..., None, :], 0.0)


def _off_diagonal(x: Any) -> Any:
    return choose(_eye(x), 0.0, x)


def _add_optional(x: Any, y: Any) -> Any:
    """Return x + y, either of which may be None for nothing."""
    if x is None or y is None:
        return y if x is None else x
    return x + y


def _in_dtype(t: Any, like: Any) -> Any:
    return t if t.dtype == like.dtype else as_type(t, like.dtype)


def _rounding(dtype: Any, n: int) -> float:
    """Return the error of LAPACK's values for a matrix of n rows, relative to the largest value.

    Measured: equal eigenvalues come out up to 10 spacings apart at n = 400, not n.
    """
    return float((4 + math.sqrt(n)) * np.finfo(dtype).eps)


def _largest_of_matrix(a: Any) -> Any:
    """Return the largest absolute value in each matrix, its axes kept with length 1."""
    return abs(a).max(axis=(-2, -1), keepdims=True)


def _call_named(name: str, factorise: Any, a: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call NumPy's function; its errors get the function's name."""
    try:
        return factorise(a, *arguments, **keywords)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"{name}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{name} of {a.dtype}: {error}") from error


def _nan_where(undetermined: Any, a: Any) -> Any:
    return np.where(undetermined[..., None, None], a.dtype.type(np.nan), a)


def _inverse_of_vectors(x: Any) -> Any:
    """Return the inverse; NaN where the columns, of norm 1, are linearly dependent to rounding."""
    try:
        y = np.linalg.inv(x)
    except np.linalg.LinAlgError:
        singular = np.linalg.slogdet(x)[0] == 0
        y = _nan_where(singular, np.linalg.inv(np.where(singular[..., None, None], _eye(x), x)))
    return _nan_where(~(abs(y).max(axis=(-2, -1)) * _rounding(y.dtype, y.shape[-1]) < 0.1), y)


def _inverse_of_triangle(r: Any, rounding: float) -> Any:
    """Return the inverse; NaN where a column depends linearly, to rounding, on those before it."""
    xp = libraries.namespace(r)
    determined = abs(xp.diagonal(r, 0, -2, -1)) > rounding * abs(r).max(axis=-2)
    singular = ~determined.all(axis=-1)
    return _nan_where(singular, np.linalg.inv(np.where(singular[..., None, None], _eye(r), r)))


# The inverse of a factor, NaN where it is useless, so that every derivative from it is NaN too.
_inverse: Function = custom(
    "inverse_of_factor",
    lambda x, rounding: _inverse_of_vectors(x) if rounding is None else _inverse_of_triangle(x, rounding),
    vjp={"x": lambda g, out: -(_adjoint(out) @ g @ _adjoint(out))},
    jvp={"x": lambda t, out: -(out @ t @ out)},
)

# ---------------------------------------------------------------- degenerate pairs


def _exceeds_rounding(x: Any, equal: Any) -> Any:
    """Return a mask of the pairs in `equal` where x is more than rounding."""
    a = raw(x)
    return equal & ~(abs(a) <= _SLACK * _rounding(a.dtype, max(a.shape[-2:])) * _largest_of_matrix(a))


def _drop_kernel(x: Any, equal: Any, undetermined: Any) -> Any:
    dropped = np.where(equal, x.dtype.type(0), x)
    return np.where(undetermined, x.dtype.type(np.nan), dropped)


# The numerator to divide: 0 for 0 over 0, NaN where something else is over 0 or where
# it is undetermined. Linear, so that its derivatives make the same choice.
_drop: Function = custom(
    "drop_degenerate",
    _drop_kernel,
    vjp={"x": lambda g, equal, undetermined: _drop(g, equal, undetermined | _exceeds_rounding(g, equal))},
    jvp={"x": lambda t, equal, undetermined: _drop(t, equal, undetermined | _exceeds_rounding(t, equal))},
)


def _divide_pairs(x: Any, divisor: Any, equal: Any, undetermined: Any) -> Any:
    """Return x / divisor; where `equal`, a mask or None for nowhere, the divisor counts as 0."""
    if equal is None:
        return x / divisor
    return _drop(x, equal, undetermined) / choose(equal, 1.0, divisor)


class _Pairs:
    """Differences of all pairs of values, w_j - w_i, and which of them are 0 to rounding."""

    __slots__ = ("differences", "equal")

    def __init__(self, w: Any) -> None:
        a, eye = raw(w), _eye(w)
        self.differences = w[..., None, :] - w[..., :, None] + eye  # 1 on the diagonal, where nothing is to divide
        limit = _rounding(a.dtype, a.shape[-1]) * abs(a).max(axis=-1)[..., None, None]
        equal = (abs(raw(self.differences)) <= limit) & ~eye
        self.equal = equal if equal.any() else None

    def divide(self, x: Any, undetermined: Any) -> Any:
        """Return x divided by the differences; the diagonal of x does not count."""
        return _divide_pairs(_off_diagonal(x), self.differences, self.equal, undetermined)


def _vectors_without_cotangent(*g_vectors: Any) -> Any:
    """Return a mask of the vectors, columns of these, that received no cotangent."""
    masks = [(raw(g) == 0).all(axis=-2) for g in g_vectors if g is not None]
    return masks[0] if len(masks) == 1 else masks[0] & masks[1]


def _pair_mask(mask: Any) -> Any:
    return mask[..., :, None] & mask[..., None, :]


def _unused_pairs(w: Any, gw: Any, *g_vectors: Any) -> Any:
    """Return a mask of the pairs of equal values whose vectors the result does not use.

    Vectors without a cotangent may still be used: they may have been multiplied by f(w) = 0. For
    values that differ in their last bits f is not 0 at both, and where it is not used f' is 0.
    """
    no_cotangent = _pair_mask(_vectors_without_cotangent(*g_vectors))
    if gw is None:
        return no_cotangent
    a, h = raw(w), raw(gw)
    rounding = _SLACK * _rounding(h.dtype, h.shape[-1]) * abs(h).max(axis=-1)[..., None, None]
    same_cotangent = abs(h[..., :, None] - h[..., None, :]) <= rounding
    return no_cotangent & (_pair_mask(h == 0) | same_cotangent & (a[..., :, None] != a[..., None, :]))


def _unused_vectors(s: Any, gs: Any, *g_vectors: Any) -> Any:
    """Return a mask of the vectors of zero singular values (to rounding) that the result does not use."""
    no_cotangent = _vectors_without_cotangent(*g_vectors)
    return no_cotangent if gs is None else no_cotangent & ((raw(gs) == 0) | (raw(s) != 0))


def _undetermined(zero: Any, idle: Any, numerator: Any, scales: tuple[Any, ...] | None) -> Any:
    """Return a mask of what reverse mode divides by 0 though the result depends on it.

    The mask is None if nothing is divided by 0.

    Args:
        zero: a mask of where the divisor is 0, or None.
        idle: a mask, that broadcasts, of where nothing received a cotangent.
        numerator: what is to divide.
        scales: the numerator's size before anything in it cancelled is the sum of the largest elements of these;
            None if the values were used.
    """
    if zero is None:
        return None
    harmless = idle
    if scales is not None:
        size = sum(_largest_of_matrix(raw(part)) for part in scales)
        rounding = _SLACK * _rounding(size.dtype, max(numerator.shape[-2:]))
        harmless = harmless | (abs(raw(numerator)) <= rounding * size)
    return zero & ~harmless


def _check_phase(name: str, turned: Any, *parts: Any) -> None:
    """Raise where a complex vector's cotangent has a component along its phase.

    Args:
        name: the function.
        turned: a matrix; the imaginary part of its diagonal is that component.
        parts: what it was summed from, for what counts as rounding.
    """
    a = raw(turned)
    if a.dtype.kind != "c":
        return
    xp, eps = libraries.namespace(a), float(np.finfo(a.dtype).eps)
    along = abs(xp.diagonal(a, 0, -2, -1).imag).max(axis=-1)
    scale = sum(_largest_of_matrix(raw(part))[..., 0, 0] for part in parts)
    # A cotangent that is rounding as a whole, as at a minimum, says nothing.
    floor = _SLACK * _rounding(a.dtype, a.shape[-1])
    if ((along > 10 * eps**0.5 * scale) & (scale > floor)).any():
        raise errors.GaugeError(
            f"the derivative of {name} of a complex matrix: the result depends on the phase of the vectors, which is "
            "arbitrary; use only what the phase does not change, such as abs(v) or v @ diag(f(w)) @ v^H, or fix it, "
            "as by dividing each vector by the sign of one of its elements"
        )


def _check_null_space(name: str, g: Any, k: int, option: str) -> None:
    """Raise where columns of a null space's basis received a cotangent."""
    if g is not None and g.shape[-1] > k and (raw(g)[..., k:] != 0).any():
        raise errors.GaugeError(
            f"the derivative of {name}: the result depends on the vectors that {option} adds, an arbitrary basis of a "
            f"null space; use only the first {k}, or leave {option} out"
        )


def _first_columns(x: Any, k: int) -> Any:
    """Return the first k columns of x; None for None."""
    return x if x is None or x.shape[-1] == k else x[..., :k]


def _with_null_space(dq: Any, q: Any) -> Any:
    """Return the tangent of an orthonormal basis whose first columns move by dq.

    The other columns change as little as possible.
    """
    k = dq.shape[-1]
    if q.shape[-1] == k:
        return dq
    return concatenate([dq, -(q[..., :k] @ (_adjoint(dq) @ q[..., k:]))], axis=-1)


# ---------------------------------------------------------------- eigh


def _eigh_kernel(a: Any, uplo: str) -> Any:
    return tuple(_call_named("eigh", np.linalg.eigh, a, uplo))


def _eigh_vjp(g: Any, w: Any, v: Any, uplo: str, shape: Any) -> Any:
    gw, gv = g
    if 0 in shape:
        return zeros(w, shape, v.dtype)
    if gv is None:
        return to_triangle((v * gw[..., None, :]) @ _adjoint(v), uplo == "L")
    x = _adjoint(v) @ gv
    _check_phase("eigh", x, x)
    skew, pairs = (x - _adjoint(x)) / 2, _Pairs(w)
    scales = (x,) if gw is None else None
    inner = pairs.divide(skew, _undetermined(pairs.equal, _unused_pairs(w, gw, gv), skew, scales))
    if gw is not None:
        inner = inner + _diagonal_matrix(gw)
    return to_triangle(v @ inner @ _adjoint(v), uplo == "L")


def _eigh_jvp(t: Any, w: Any, v: Any, uplo: str) -> Any:
    t = _in_dtype(t, v)
    if 0 in v.shape:
        return zeros(w, w.shape, w.dtype), t
    p = _adjoint(v) @ from_triangle(t, uplo == "L") @ v
    pairs = _Pairs(w)
    undetermined = None if pairs.equal is None else _exceeds_rounding(p, pairs.equal)
    return _real(_diagonal(p)), v @ pairs.divide(p, undetermined)


_eigh = several("eigh", _eigh_kernel, ("w", "v"), vjp=_eigh_vjp, jvp=_eigh_jvp)


def _triangle(uplo: str) -> str:
    if uplo.upper() not in ("L", "U"):
        raise ValueError("UPLO argument must be 'L' or 'U'")
    return uplo.upper()


def eigh(a: Any, UPLO: Literal["L", "U", "l", "u"] = "L") -> Any:  # noqa: N803  # NumPy's name
    """Eigenvalues and eigenvectors of a Hermitian matrix as `numpy.linalg.eigh`.

    The triangle that is read receives all of the gradient. At equal eigenvalues the derivative is right where the
    indeterminacy of the vectors cancels or only eigenvalues are used, else NaN. A result that depends on the phase
    of complex vectors raises GaugeError in reverse mode; forward mode gives the tangent that turns no vector's phase.
    """
    if not holds_tensor(a):
        return np.linalg.eigh(a, UPLO)
    return EighResult(*_eigh(lift(a), _triangle(UPLO)))


def eigvalsh(a: Any, UPLO: Literal["L", "U", "l", "u"] = "L") -> Any:  # noqa: N803  # NumPy's name
    """Eigenvalues of a Hermitian matrix as `numpy.linalg.eigvalsh`.

    The triangle that is read receives all of the gradient. At equal eigenvalues the derivative is right for symmetric
    functions of them, and for others one of the possible.
    """
    if not holds_tensor(a):
        return np.linalg.eigvalsh(a, UPLO)
    a, uplo = lift(a), _triangle(UPLO)
    if is_tracked(a):
        return _eigh(a, uplo)[0]
    return wrap(_call_named("eigvalsh", np.linalg.eigvalsh, raw(a), uplo))


# ---------------------------------------------------------------- eig


# NumPy 2.5 and later, and CuPy; before, real arrays for real matrices of real eigenvalues.
_EIG_IS_COMPLEX = np.lib.NumpyVersion(np.__version__) >= "2.5.0"


def _eig_kernel(a: Any) -> Any:
    """Real where all eigenvalues of a real matrix are, whatever the library gives: real vectors have no phase."""
    w, v = _call_named("eig", np.linalg.eig, a)
    if w.dtype.kind == "c" and a.dtype.kind != "c" and not w.imag.any():
        return w.real.copy(), v.real.copy()
    return w, v


def _eig_as_library(z: Any, a: Any) -> Any:
    """Make a result complex where the library's would be."""
    if is_complex(z) or not (_EIG_IS_COMPLEX or libraries.root(raw(a)) is not np):
        return z
    return as_type(z, np.result_type(z.dtype, np.complex64))


def _eig_vjp(g: Any, w: Any, v: Any, shape: Any) -> Any:
    gw, gv = g
    if 0 in shape:
        return zeros(w, shape, v.dtype)
    vh, left = _adjoint(v), _adjoint(_inverse(v, None))
    if gv is None:
        return left @ (gw[..., :, None] * vh)
    x = vh @ gv
    _check_phase("eig", x, x)
    x = x - (vh @ v) * _diagonal(x)[..., None, :]  # the vectors keep their length
    pairs = _Pairs(conj_of(w))
    scales = (x,) if gw is None else None
    inner = pairs.divide(x, _undetermined(pairs.equal, _unused_pairs(w, gw, gv), x, scales))
    if gw is not None:
        inner = inner + _diagonal_matrix(gw)
    return left @ inner @ vh


def _eig_jvp(t: Any, w: Any, v: Any) -> Any:
    t = _in_dtype(t, v)
    if 0 in v.shape:
        return zeros(w, w.shape, w.dtype), t
    p = _inverse(v, None) @ t @ v
    pairs = _Pairs(w)
    undetermined = None if pairs.equal is None else _exceeds_rounding(p, pairs.equal)
    dv = v @ pairs.divide(p, undetermined)
    return _diagonal(p), dv - v * _diagonal(_adjoint(v) @ dv)[..., None, :]


_eig = several("eig", _eig_kernel, ("w", "v"), vjp=_eig_vjp, jvp=_eig_jvp)


def eig(a: Any) -> Any:
    """Eigenvalues and right eigenvectors as `numpy.linalg.eig`; NumPy before 2.5 gives real ones where all are real.

    The vectors keep their length 1. At equal eigenvalues the derivative is right where the indeterminacy of the
    vectors cancels or only eigenvalues are used, else NaN; NaN where there are too few eigenvectors. A result
    that depends on the phase of complex vectors raises GaugeError in reverse mode; forward mode gives the
    tangent that turns no vector's phase.
    """
    if not holds_tensor(a):
        return np.linalg.eig(a)
    a = lift(a)
    return EigResult(*[_eig_as_library(z, a) for z in _eig(a)])


def eigvals(a: Any) -> Any:
    """Eigenvalues as `numpy.linalg.eigvals`; the derivative is NaN where there are too few eigenvectors."""
    if not holds_tensor(a):
        return np.linalg.eigvals(a)
    a = lift(a)
    if is_tracked(a):
        return _eig_as_library(_eig(a)[0], a)
    return wrap(_call_named("eigvals", np.linalg.eigvals, raw(a)))


# ---------------------------------------------------------------- svd


def _svd_kernel(a: Any, full_matrices: bool) -> Any:
    return tuple(_call_named("svd", np.linalg.svd, a, full_matrices=full_matrices))


class _Triplets:
    """What the rules of svd divide by: differences and sums of all pairs of values, the values; which are 0."""

    __slots__ = ("no_sum", "no_value", "pairs", "s", "sums")

    def __init__(self, s: Any, shape: tuple[int, ...]) -> None:
        a = raw(s)
        self.pairs = _Pairs(s)
        self.s, self.sums = s, s[..., None, :] + s[..., :, None]
        zero = a <= _rounding(a.dtype, max(shape[-2:])) * a.max(axis=-1)[..., None]
        some = bool(zero.any())
        self.no_sum = _pair_mask(zero) if some else None
        self.no_value = zero[..., None, :] if some else None


def _svd_vjp(g: Any, u: Any, s: Any, vh: Any, shape: Any) -> Any:
    k = s.shape[-1]
    gu, gs, gv = g[0], g[1], None if g[2] is None else _adjoint(g[2])
    if 0 in shape:
        return zeros(s, shape, u.dtype)
    _check_null_space("svd", gu, k, "full_matrices=True")
    _check_null_space("svd", gv, k, "full_matrices=True")
    gu, gv, u, v = _first_columns(gu, k), _first_columns(gv, k), _first_columns(u, k), _first_columns(_adjoint(vh), k)
    if gu is None and gv is None:
        return (u * gs[..., None, :]) @ _adjoint(v)
    return _svd_with_vectors(gu, gs, gv, u, v, _Triplets(s, shape))


def _svd_with_vectors(gu: Any, gs: Any, gv: Any, u: Any, v: Any, by: _Triplets) -> Any:
    """Return the cotangent of a = u @ diag(s) @ v^H from those of u, s and v, of which u or v has one."""
    x, y = None if gu is None else _adjoint(u) @ gu, None if gv is None else _adjoint(v) @ gv
    sizes = tuple([part for part in (x, y) if part is not None])
    both, apart = _add_optional(x, y), _add_optional(x, None if y is None else -y)
    _check_phase("svd", both, *sizes)
    both, apart = (both - _adjoint(both)) / 2, (apart - _adjoint(apart)) / 2
    scales = sizes if gs is None else None
    idle = _unused_vectors(by.s, gs, gu, gv)
    inner = by.pairs.divide(both, _undetermined(by.pairs.equal, _unused_pairs(by.s, gs, gu, gv), both, scales))
    inner = inner + _divide_pairs(apart, by.sums, by.no_sum, _undetermined(by.no_sum, _pair_mask(idle), apart, scales))
    if gs is not None:
        inner = inner + _diagonal_matrix(gs)
    total = u @ inner @ _adjoint(v)
    column_scales = None if gs is not None else tuple([part for part in (gu, gv) if part is not None])

    def across(g: Any, basis: Any, inside: Any) -> Any:
        """Return the part of a cotangent that is orthogonal to the basis, over the values."""
        rest = g - basis @ inside
        return _divide_pairs(
            rest, by.s[..., None, :], by.no_value, _undetermined(by.no_value, idle[..., None, :], rest, column_scales)
        )

    if x is not None and u.shape[-2] > u.shape[-1]:
        total = total + across(gu, u, x) @ _adjoint(v)
    if y is not None and v.shape[-2] > v.shape[-1]:
        total = total + u @ _adjoint(across(gv, v, y))
    return total


def _svd_jvp(t: Any, u: Any, s: Any, vh: Any) -> Any:
    t, k = _in_dtype(t, u), s.shape[-1]
    if 0 in t.shape:
        return zeros(s, u.shape, u.dtype), zeros(s, s.shape, s.dtype), zeros(s, vh.shape, vh.dtype)
    all_u, all_v = u, _adjoint(vh)
    u, v, by = _first_columns(all_u, k), _first_columns(all_v, k), _Triplets(s, t.shape)
    moved = t @ v
    p = _adjoint(u) @ moved
    turns, shears = _divide_by_sums_and_differences(p, by)

    def across(moved: Any, basis: Any, inside: Any) -> Any:
        rest = moved - basis @ inside
        undetermined = None if by.no_value is None else _exceeds_rounding(rest, by.no_value)
        return _divide_pairs(rest, by.s[..., None, :], by.no_value, undetermined)

    du, dv = u @ (turns + shears), v @ (turns - shears)
    if u.shape[-2] > k:
        du = du + across(moved, u, p)
    if v.shape[-2] > k:
        dv = dv + across(_adjoint(t) @ u, v, _adjoint(p))
    return _with_null_space(du, all_u), _real(_diagonal(p)), _adjoint(_with_null_space(dv, all_v))


def _divide_by_sums_and_differences(p: Any, by: _Triplets) -> tuple[Any, Any]:
    """Return the Hermitian part of p over the differences, and the other over the sums."""
    hermitian, skew = (p + _adjoint(p)) / 2, (p - _adjoint(p)) / 2
    equal, no_sum = by.pairs.equal, by.no_sum
    turns = by.pairs.divide(hermitian, None if equal is None else _exceeds_rounding(hermitian, equal))
    return turns, _divide_pairs(skew, by.sums, no_sum, None if no_sum is None else _exceeds_rounding(skew, no_sum))


_svd = several("svd", _svd_kernel, ("u", "s", "vh"), vjp=_svd_vjp, jvp=_svd_jvp)


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular values and vectors as `numpy.linalg.svd`.

    At equal or zero singular values the derivative is right where the indeterminacy of the vectors cancels or only
    singular values are used, else NaN. A result that depends on the phase of complex vectors raises GaugeError in
    reverse mode, and so does one that depends on the vectors that `full_matrices` adds; forward mode gives the
    tangent that turns them no more than it must.
    """
    if not holds_tensor(a):
        if not hermitian:
            return np.linalg.svd(a, full_matrices, compute_uv)  # type: ignore[call-overload]  # bools, not literals
        if libraries.namespace(a) is np:
            return np.linalg.svd(a, full_matrices, compute_uv, hermitian)  # type: ignore[call-overload]  # as above
    a = lift(a)
    if hermitian:
        return _svd_of_hermitian(a, compute_uv)
    if compute_uv:
        return SVDResult(*_svd(a, bool(full_matrices)))
    if is_tracked(a):
        return _svd(a, False)[1]
    return wrap(_call_named("svd", np.linalg.svd, raw(a), compute_uv=False))


def _svd_of_hermitian(a: Any, compute_uv: bool) -> Any:
    """Return the singular value decomposition from that of eigenvalues: w = s sign(w)."""
    if not compute_uv:
        s = absolute(eigvalsh(a))
        return take_along_axis(s, _descending_order(s), -1)
    w, v = eigh(a)
    xp, s = libraries.namespace(raw(w)), absolute(w)
    order = _descending_order(s)
    signs = xp.take_along_axis(xp.copysign(xp.ones_like(raw(w)), raw(w)), order, -1)
    u = take_along_axis(v, order[..., None, :], -1)
    return SVDResult(u, take_along_axis(s, order, -1), _adjoint(u * signs[..., None, :]))


def _descending_order(s: Any) -> Any:
    return libraries.namespace(raw(s)).argsort(raw(s), -1)[..., ::-1]


def svdvals(x: Any, /) -> Any:
    """Singular values as `numpy.linalg.svdvals`; at a singular value of 0, the subgradient u v^H."""
    if not holds_tensor(x) and libraries.namespace(x) is np:
        return np.linalg.svdvals(x)
    return svd(x, compute_uv=False)


# ---------------------------------------------------------------- qr


def _qr_kernel(a: Any, mode: str) -> Any:
    return tuple(_call_named("qr", np.linalg.qr, a, mode=mode))


def _qr_vjp(g: Any, q: Any, r: Any, shape: Any) -> Any:
    (gq, gr), k = g, min(shape[-2:])
    if 0 in shape:
        return zeros(r, shape, q.dtype)
    _check_null_space("qr", gq, k, "mode='complete'")
    gq, q = _first_columns(gq, k), _first_columns(q, k)
    r1, r2 = r[..., :k, :k], r[..., :k, k:]
    wide = shape[-1] > k
    moves = None if gq is None else -(_adjoint(q) @ gq)
    turn = None
    if gr is not None:
        moves = _add_optional(moves, gr[..., :k, :k] @ _adjoint(r1))
        if wide:  # the columns beyond R's square are q^H a
            turn = r2 @ _adjoint(gr[..., :k, k:])
            moves = moves - turn
    upper = triu(moves, 1)
    inner = _add_optional(upper + _adjoint(upper) + choose(_eye(moves), _real(moves), 0.0), turn)
    first = _add_optional(gq, q @ inner) @ _adjoint(_inverse(r1, _rounding(r.dtype, max(shape[-2:]))))
    if not wide:
        return first
    last = zeros(r, (*shape[:-1], shape[-1] - k), q.dtype) if gr is None else q @ gr[..., :k, k:]
    return concatenate([first, last], axis=-1)


def _qr_jvp(t: Any, q: Any, r: Any) -> Any:
    t, k, all_q = _in_dtype(t, q), min(t.shape[-2:]), q
    if 0 in t.shape:
        return zeros(r, q.shape, q.dtype), zeros(r, r.shape, r.dtype)
    q, r1, r2 = _first_columns(q, k), r[..., :k, :k], r[..., :k, k:]
    moved = t[..., :k] @ _inverse(r1, _rounding(r.dtype, max(t.shape[-2:])))
    p = _adjoint(q) @ moved
    grown = triu(p, 1) + _adjoint(tril(p, -1)) + choose(_eye(p), _real(p), 0.0)
    dq, dr = moved - q @ grown, grown @ r1
    if r.shape[-1] > k:
        dr = concatenate([dr, _adjoint(dq) @ q @ r2 + _adjoint(q) @ t[..., k:]], axis=-1)
    if r.shape[-2] > k:
        dr = concatenate([dr, zeros(r, (*r.shape[:-2], r.shape[-2] - k, r.shape[-1]), r.dtype)], axis=-2)
    return _with_null_space(dq, all_q), dr


_qr = several("qr", _qr_kernel, ("q", "r"), vjp=_qr_vjp, jvp=_qr_jvp)


def qr(a: Any, mode: str = "reduced") -> Any:
    """Q and R as `numpy.linalg.qr`, by the modes "reduced", "complete" and "r".

    The derivative is NaN where the first min(m, n) columns are dependent. A result that depends
    on the columns that mode="complete" adds raises GaugeError in reverse mode.

    Raises:
        UnsupportedFunctionError: mode="raw" of a Tensor, which gives LAPACK's Householder vectors.
    """
    if not holds_tensor(a):
        return np.linalg.qr(a, mode)  # type: ignore[call-overload]  # a string NumPy checks
    a = lift(a)
    if mode == "raw":
        raise errors.UnsupportedFunctionError(
            "qr(mode='raw') of a Tensor gives LAPACK's Householder vectors, for which there is no derivative; "
            "use another mode, or t.numpy()"
        )
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"Unrecognized mode {mode!r} of qr; use 'reduced', 'complete' or 'r'")
    if mode != "r":
        return QRResult(*_qr(a, mode))
    if is_tracked(a):
        return _qr(a, "reduced")[1]
    return wrap(_call_named("qr", np.linalg.qr, raw(a), mode="r"))
