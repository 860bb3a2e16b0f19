"""Discrete Fourier transforms: four linear ops over several axes, from which all of `numpy.fft` is made.

A transform to length n first crops or pads its input to n, then applies a matrix. Its adjoint
applies the conjugated transpose, then pads or crops back; the conjugated transpose of a transform
is its inverse under the other norm ("forward" for "backward", "ortho" for itself).

The transforms between real values and half a spectrum are linear over the real numbers only. In
`irfft` every frequency but the first, and the last of an even length, counts for itself and its
mirror image, so it counts twice; in `rfft` it does not. Their adjoints correct for that alone:
the adjoint of `rfft` is `irfft` with those frequencies halved, and that of `irfft` is `rfft` with
them doubled. The imaginary parts that `irfft` ignores get 0 by themselves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.broadcast import cast, is_complex
from gradmgr._engine.elementwise import conj_of
from gradmgr._engine.mutation import store
from gradmgr._engine.op import Function, linear
from gradmgr._engine.op import zeros as plain_zeros
from gradmgr._engine.tensor import Tensor, describe, raw
from gradmgr.ops.convert import holds_tensor, lift
from gradmgr.ops.create import asarray
from gradmgr.ops.naming import named
from gradmgr.ops.shape import roll

Lengths = tuple[int, ...]
Axes = tuple[int, ...]

# The norm under which the inverse is the conjugated transpose.
_DUAL = MappingProxyType({"backward": "forward", "ortho": "ortho", "forward": "backward"})

# ---------------------------------------------------------------- the ops


def _resize_kernel(a: Any, to: tuple[int, ...]) -> Any:
    """Crop at the end, or pad with zeros there, to a shape."""
    kept = tuple([slice(min(n, m)) for n, m in zip(a.shape, to, strict=True)])
    if all(n >= m for n, m in zip(a.shape, to, strict=True)):
        return a[kept]
    padded = plain_zeros(a, to, a.dtype)
    padded[kept] = a[kept]
    return padded


_resize: Function = linear("resize_ends", _resize_kernel, lambda g, shape: _resize(g, shape))


def _as_input(g: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Undo the cropping or padding; of a real input only the real part matters."""
    g = g if g.shape == shape else _resize(g, shape)
    return g if g.dtype == dtype else cast(g, dtype)


def _weight_mirrored(g: Any, n: int, axis: int, weight: float) -> Any:
    """Return half a spectrum with those frequencies weighted that have a mirror image."""
    a = raw(g)
    weights = libraries.namespace(a).full(n // 2 + 1, weight, a.real.dtype)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return g * weights.reshape((-1,) + (1,) * (a.ndim - 1 - axis))


def _transform(name: str) -> Callable[..., Any]:
    """NumPy's transform over several axes, by the one over one axis where that is all."""
    one, many = getattr(np.fft, name), getattr(np.fft, f"{name}n")

    def kernel(a: Any, s: Lengths, axes: Axes, norm: str) -> Any:
        if name == "irfft" and not a.shape[axes[-1]]:  # of nothing NumPy's reads memory that it did not write
            a = _resize_kernel(a, tuple([1 if k == axes[-1] else n for k, n in enumerate(a.shape)]))
        return one(a, s[0], axes[0], norm) if len(axes) == 1 else many(a, s, axes, norm)

    return kernel


_fft: Function = linear(
    "fftn",
    _transform("fft"),
    lambda g, shape, dtype, s, axes, norm: _as_input(_ifft(g, s, axes, _DUAL[norm]), shape, dtype),
)
_ifft: Function = linear(
    "ifftn",
    _transform("ifft"),
    lambda g, shape, dtype, s, axes, norm: _as_input(_fft(g, s, axes, _DUAL[norm]), shape, dtype),
)
_rfft: Function = linear(
    "rfftn",
    _transform("rfft"),
    lambda g, shape, dtype, s, axes, norm: _as_input(
        _irfft(_weight_mirrored(g, s[-1], axes[-1], 0.5), s, axes, _DUAL[norm]), shape, dtype
    ),
)
_irfft: Function = linear(
    "irfftn",
    _transform("irfft"),
    lambda g, shape, dtype, s, axes, norm: _as_input(
        _weight_mirrored(_rfft(g, s, axes, _DUAL[norm]), s[-1], axes[-1], 2.0), shape, dtype
    ),
)

# ---------------------------------------------------------------- arguments


def _norm(norm: str | None, name: str) -> str:
    if norm is None:
        return "backward"
    if norm not in _DUAL:
        raise ValueError(f'{name}: invalid norm value {norm}; should be "backward", "ortho" or "forward"')
    return norm


def _read_length(n: Any, name: str) -> int:
    try:
        points = operator.index(n)
    except TypeError:
        raise TypeError(f"{name}: a length must be an integer; found {n!r}") from None
    if points < 1:
        raise ValueError(f"{name}: invalid number of FFT data points ({points}) specified")
    return points


def _lengths_and_axes(a: Any, s: Any, axes: Any, halved: bool, name: str) -> tuple[list[Any], Axes]:
    """Read s= and axes= as NumPy does; `halved` says that the last axis holds half a spectrum.

    A length of None, which is deprecated, means the default of the transform over that axis.
    """
    if s is not None and axes is None:
        errors.warn(f"{name}: give axes= where s= is given; NumPy is to raise an error without it", DeprecationWarning)
    axes = range(-(a.ndim if s is None else len(s)), 0) if axes is None else axes
    axes = [normalize_axis_index(k, a.ndim, name) for k in axes]
    given = [a.shape[k] for k in axes] if s is None else list(s)
    if len(given) != len(axes):
        raise ValueError(f"{name}: s and axes have different lengths: {len(given)} and {len(axes)}")
    if None in given:
        errors.warn(f"{name}: None in s= is deprecated; use -1 for the whole axis, or leave s= out", DeprecationWarning)
    lengths = [a.shape[k] if n in (-1, None) else n for n, k in zip(given, axes, strict=True)]
    if halved and lengths and (s is None or given[-1] is None):
        lengths[-1] = 2 * (a.shape[axes[-1]] - 1)
    return lengths, tuple(axes)


def _operand(a: Any, real: bool, name: str) -> Any:
    a = lift(a)
    if real and is_complex(a):
        raise TypeError(f"{name} takes real input; found dtype {a.dtype}; take its .real first")
    return a


def _write_out(z: Any, out: Any, name: str) -> Any:
    if out is None:
        return z
    if np.shape(raw(out)) != z.shape:
        found = describe(out) if isinstance(out, Tensor) else f"an array of shape {np.shape(out)}"
        raise errors.ShapeError(f"{name}(out=...) has a result of shape {z.shape}; found {found}")
    return store(out, z, f"{name}(out=...)")


def _call_numpy(name: str, out: Any, *args: Any) -> Any:
    """Call NumPy's function on plain arrays. NumPy's `hfft` and `ifft2` ignore out=, and CuPy's functions have none."""
    return _write_out(getattr(np.fft, name)(*args), out, name)


# ---------------------------------------------------------------- over one axis


def _full_length(m: int) -> int:
    return m


def _length_from_half(m: int) -> int:
    return 2 * (m - 1)


def _one_axis_function(name: str, op: Function, length: Callable[[int], int], summary: str) -> Any:
    def function(a: Any, n: Any = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
        if not holds_tensor(a) and not isinstance(out, Tensor):
            return _call_numpy(name, out, a, n, axis, norm)
        a = _operand(a, op is _rfft, name)
        k = normalize_axis_index(axis, a.ndim, name)
        s = (_read_length(length(a.shape[k]) if n is None else n, name),)
        return _write_out(op(a, s, (k,), _norm(norm, name)), out, name)

    return _document(function, name, summary)


def _document(function: Any, name: str, summary: str) -> Any:
    return named(function, name, f"{summary} as `numpy.fft.{name}`.")


fft = _one_axis_function("fft", _fft, _full_length, "Transform along an axis")
ifft = _one_axis_function("ifft", _ifft, _full_length, "Transform back along an axis")
rfft = _one_axis_function("rfft", _rfft, _full_length, "Transform real values along an axis to half a spectrum")
irfft = _one_axis_function(
    "irfft", _irfft, _length_from_half, "Transform half a spectrum along an axis back to real values"
)


def hfft(a: Any, n: Any = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """Transform half of a signal with Hermitian symmetry to its real spectrum as `numpy.fft.hfft`."""
    if not holds_tensor(a) and not isinstance(out, Tensor):
        return _call_numpy("hfft", out, a, n, axis, norm)
    a = lift(a)
    k = normalize_axis_index(axis, a.ndim, "hfft")
    s = (_read_length(2 * (a.shape[k] - 1) if n is None else n, "hfft"),)
    return _write_out(_irfft(conj_of(a), s, (k,), _DUAL[_norm(norm, "hfft")]), out, "hfft")


def ihfft(a: Any, n: Any = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
    """Transform a real spectrum back to half of a signal with Hermitian symmetry as `numpy.fft.ihfft`."""
    if not holds_tensor(a) and not isinstance(out, Tensor):
        return _call_numpy("ihfft", out, a, n, axis, norm)
    a = _operand(a, True, "ihfft")
    k = normalize_axis_index(axis, a.ndim, "ihfft")
    s = (_read_length(a.shape[k] if n is None else n, "ihfft"),)
    return _write_out(conj_of(_rfft(a, s, (k,), _DUAL[_norm(norm, "ihfft")])), out, "ihfft")


# ---------------------------------------------------------------- over several axes


def _transform_in_turn(op: Function, a: Any, s: Lengths, axes: Axes, norm: str) -> Any:
    """Transform over axes of which one may be given twice: one after another, the last first; `irfft` comes last."""
    pairs = list(zip(s, axes, strict=True))
    if op is _irfft:
        for n, k in pairs[:-1]:
            a = _ifft(a, (n,), (k,), norm)
        return _irfft(a, s[-1:], axes[-1:], norm)
    a = op(a, s[-1:], axes[-1:], norm)
    for n, k in pairs[-2::-1]:
        a = (_fft if op is _rfft else op)(a, (n,), (k,), norm)
    return a


def _several_axes_function(name: str, op: Function, default: Sequence[int] | None, summary: str) -> Any:
    to_real_or_back = op in (_rfft, _irfft)

    def function(a: Any, s: Any = None, axes: Any = default, norm: str | None = None, out: Any = None) -> Any:
        if not holds_tensor(a) and not isinstance(out, Tensor):
            return _call_numpy(name, out, a, s, axes, norm)
        a = _operand(a, op is _rfft, name)
        wanted, along = _lengths_and_axes(a, s, axes, op is _irfft, name)
        norm = _norm(norm, name)
        if not along:
            if to_real_or_back:
                raise IndexError(f"{name} needs an axis")
            return _write_out(a, out, name)
        lengths = tuple([_read_length(n, name) for n in wanted])
        at_once = len(set(along)) == len(along)
        z = op(a, lengths, along, norm) if at_once else _transform_in_turn(op, a, lengths, along, norm)
        return _write_out(z, out, name)

    return _document(function, name, summary)


_TWO = (-2, -1)
fftn = _several_axes_function("fftn", _fft, None, "Transform over axes")
ifftn = _several_axes_function("ifftn", _ifft, None, "Transform back over axes")
rfftn = _several_axes_function("rfftn", _rfft, None, "Transform real values over axes, the last to half a spectrum")
irfftn = _several_axes_function("irfftn", _irfft, None, "Transform back over axes, the last holding half a spectrum")
fft2 = _several_axes_function("fft2", _fft, _TWO, "Transform over two axes")
ifft2 = _several_axes_function("ifft2", _ifft, _TWO, "Transform back over two axes")
rfft2 = _several_axes_function("rfft2", _rfft, _TWO, "Transform real values over two axes, the last to half a spectrum")
irfft2 = _several_axes_function(
    "irfft2", _irfft, _TWO, "Transform back over two axes, the last holding half a spectrum"
)

# ---------------------------------------------------------------- frequencies


def _shift(x: Any, axes: Any, sign: int) -> Any:
    x = lift(x)
    axes = range(x.ndim) if axes is None else axes
    along = (int(axes),) if isinstance(axes, (int, np.integer)) else tuple(axes)
    for k in along:
        normalize_axis_index(k, x.ndim)
    return roll(x, [sign * (x.shape[k] // 2) for k in along], along)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency to the middle as `numpy.fft.fftshift`."""
    return _shift(x, axes, 1) if holds_tensor(x) else np.fft.fftshift(x, axes)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency back to the front as `numpy.fft.ifftshift`."""
    return _shift(x, axes, -1) if holds_tensor(x) else np.fft.ifftshift(x, axes)


def _frequencies(n: Any, first: int, count: int, d: Any, dtype: Any, device: str | None, name: str) -> Tensor:
    """Return (first, first + 1, ...) / (n d), the zero and what follows it in front."""
    if not isinstance(n, (int, np.integer)):
        raise ValueError(f"{name}: n should be an integer; found {n!r}")
    if n < 0:
        raise ValueError(f"{name}: n must not be negative; found {n}")
    steps = libraries.namespace(raw(d)).arange(first, first + count)
    return asarray(np.roll(steps, first) * (1.0 / (n * d)), dtype=dtype, device=device)


def fftfreq(n: int, d: Any = 1.0, device: str | None = None, *, dtype: Any = None) -> Tensor:
    """Return the frequencies of `fft` as `numpy.fft.fftfreq`; gradients flow into a Tensor given as `d`."""
    return _frequencies(n, -(n // 2), n, d, dtype, device, "fftfreq")


def rfftfreq(n: int, d: Any = 1.0, device: str | None = None, *, dtype: Any = None) -> Tensor:
    """Return the frequencies of `rfft` as `numpy.fft.rfftfreq`; gradients flow into a Tensor given as `d`."""
    return _frequencies(n, 0, n // 2 + 1, d, dtype, device, "rfftfreq")
