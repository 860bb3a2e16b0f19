"""Discrete Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from samples._table import CREATION, CUBE, EMPTY, MATRIX, VECTOR, Arg, X, add, function

COMPLEX: dict[str, Any] = {"field": "complex"}
FIVE = Arg((5,))
ROWS = Arg((2, 5))

# ---------------------------------------------------------------- over one axis


def _over_one_axis(name: str, facts: dict[str, Any]) -> None:
    """Lengths odd and even, longer and shorter than the axis, under every norm."""
    name = f"fft.{name}"
    function(name, "even", ROWS, n=4, norm="backward", facts=facts)
    function(name, "odd", FIVE, facts=facts | {"third": True})
    function(name, "longer, ortho", FIVE, n=9, norm="ortho", facts=facts)
    function(name, "longer and even, forward", FIVE, n=10, norm="forward", facts=facts)
    function(name, "shorter and odd, forward", FIVE, n=3, norm="forward", facts=facts)
    function(name, "along the first of three axes", CUBE, n=5, axis=0, facts=facts)
    function(name, "one point", Arg((2, 1)), n=1, facts=facts)
    function(name, "two points", VECTOR, n=2, norm="ortho", facts=facts)
    function(name, "zero-size", EMPTY, n=4, facts=facts)


for _name in ("fft", "ifft", "irfft", "hfft"):
    _over_one_axis(_name, COMPLEX)
for _name in ("rfft", "ihfft"):
    _over_one_axis(_name, {})
add("fft.irfft", "default length", lambda xp, x: xp.fft.irfft(x), VECTOR, **COMPLEX)
add("fft.hfft", "default length, forward", lambda xp, x: xp.fft.hfft(x, norm="forward"), VECTOR, **COMPLEX)
add("fft.fft", "there and back", lambda xp, x: xp.fft.ifft(xp.fft.fft(x) ** 2), FIVE, **COMPLEX)
add("fft.rfft", "there and back", lambda xp, x: xp.fft.irfft(xp.fft.rfft(x) ** 2, 5), FIVE)

add("fft.rfft", "size", lambda xp, x: xp.abs(xp.fft.rfft(x, axis=0)) ** 2, MATRIX)

# ---------------------------------------------------------------- over several axes


def _over_axes(name: str, facts: dict[str, Any]) -> None:
    name = f"fft.{name}"
    function(name, "cube", Arg((2, 3, 4)), axes=(0, 2), norm="ortho", facts=facts)
    function(name, "all axes", Arg((3, 5)), facts=facts)
    function(name, "s and axes", CUBE, s=(5, 2), axes=(1, -1), norm="forward", facts=facts)
    function(name, "whole axis and odd", X, s=(-1, 3), axes=(1, 0), facts=facts)
    function(name, "zero-size", Arg((0, 3, 4)), axes=(1, 2), facts=facts)


for _name in ("fftn", "ifftn", "irfftn", "fft2", "ifft2", "irfft2"):
    _over_axes(_name, COMPLEX)
for _name in ("rfftn", "rfft2"):
    _over_axes(_name, {})
function("fft.fftn", "no axes", X, axes=(), facts=COMPLEX)
function("fft.fftn", "one axis twice", X, axes=(0, 1, 0), s=(4, 3, 2), facts=COMPLEX)
function("fft.ifftn", "one axis twice", X, axes=(0, 0), norm="forward", facts=COMPLEX)
function("fft.rfftn", "one axis twice", X, axes=(1, 0, 1), norm="ortho")
function("fft.irfftn", "one axis twice", X, axes=(1, 1, 0), s=(3, 4, 5), facts=COMPLEX)

# ---------------------------------------------------------------- order and frequencies

for _name in ("fftshift", "ifftshift"):
    function(f"fft.{_name}", "all axes", Arg((3, 4)), facts={"field": "analytic"})
    function(f"fft.{_name}", "one axis", Arg((2, 5)), axes=-1, facts={"field": "analytic"})
    function(f"fft.{_name}", "two axes", Arg((5, 2, 3)), axes=(0, 2), facts={"field": "analytic"})
    function(f"fft.{_name}", "no axes", FIVE, axes=(), facts={"field": "analytic"})
for _name in ("fftfreq", "rfftfreq"):
    _find = getattr(np.fft, _name)
    add(
        f"fft.{_name}",
        "of a spacing",
        lambda xp, d, n=_name: getattr(xp.fft, n)(5, d),
        Arg((), 0.4, 2),
        reference=lambda d, f=_find: f(5, d),
    )
CREATION.update(
    {
        f"fft.{name}": [
            lambda xp, n=name: getattr(xp.fft, n)(5),
            lambda xp, n=name: getattr(xp.fft, n)(6, d=0.1),
            lambda xp, n=name: getattr(xp.fft, n)(np.int64(1), 2),
        ]
        for name in ("fftfreq", "rfftfreq")
    }
)
