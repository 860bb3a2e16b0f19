"""Computes the coefficients in kernels_of_type.h, with 60 digits; needs mpmath.

exp(r) = 1 + r + r^2 q(r), with the q of a degree whose largest error relative to exp(r) is the least, by Remez's
exchange algorithm. The tail of the normal distribution is Phi(-a) = exp(-a^2 / 2) T(a); T is a quotient of polynomials,
which agrees with it at the Chebyshev nodes of (a - c) / (a + c).
"""

from __future__ import annotations

from typing import Any

from mpmath import mp, mpf

mp.dps = 60
WIDEST = mpf("0.4")  # of r: half of log(2), and what is added to it


def exponential(degree: int) -> list[Any]:
    """Return the coefficients of q, from the constant, and its largest error."""
    count = degree + 2
    points = [WIDEST * mp.cos(mp.pi * (k + mpf(1) / 2) / count) for k in range(count)]
    grid = [WIDEST * (2 * mpf(k) / 3999 - 1) for k in range(4000)]  # without 0, where nothing is weighed

    def wanted(r: Any) -> Any:
        return mpf(1) / 2 + r / 6 + r * r / 24 if abs(r) < mpf("1e-12") else (mp.exp(r) - 1 - r) / r**2

    def error(r: Any, q: Any) -> Any:
        return (mp.polyval(q[::-1], r) - wanted(r)) * r**2 / mp.exp(r)

    for _ in range(8):
        rows, right = mp.matrix(count, count), mp.matrix(count, 1)
        for k, r in enumerate(points):
            for j in range(degree + 1):
                rows[k, j] = r**j
            rows[k, degree + 1] = (-1) ** k * mp.exp(r) / r**2
            right[k] = wanted(r)
        q = list(mp.lu_solve(rows, right))[: degree + 1]
        errors = [error(r, q) for r in grid]
        peaks: list[tuple[Any, Any]] = []  # the largest of each run of one sign
        for r, e in zip(grid, errors, strict=True):
            if peaks and (e > 0) == (peaks[-1][1] > 0):
                peaks[-1] = max(peaks[-1], (r, e), key=lambda peak: abs(peak[1]))
            else:
                peaks.append((r, e))
        if len(peaks) < count:
            break
        while len(peaks) > count:
            del peaks[0 if abs(peaks[0][1]) < abs(peaks[-1][1]) else -1]
        points = [r for r, _ in peaks]
    return [*q, max(map(abs, errors))]


def tail(degree: int, c: Any, far: int) -> tuple[list[Any], list[Any], Any]:
    """Return numerator (of a degree less) and denominator of T, from the constant, and the largest error up to far."""

    def wanted(a: Any) -> Any:
        return mp.erfc(a / mp.sqrt(2)) / 2 * mp.exp(a * a / 2)

    count = 2 * degree
    nodes = [mp.cos(mp.pi * (k + mpf(1) / 2) / count) for k in range(count)]
    rows, right = mp.matrix(count, count), mp.matrix(count, 1)
    for k, node in enumerate(nodes):
        a = c * (1 + node) / (1 - node)
        t = wanted(a)
        for j in range(degree):
            rows[k, j] = a**j
            rows[k, degree + j] = -t * a**j
        right[k] = t * a**degree
    found = list(mp.lu_solve(rows, right))
    above, below = found[:degree], [*found[degree:], mpf(1)]
    places = [mpf(far) * k / 3000 for k in range(3001)]
    error = max(abs(mp.polyval(above[::-1], a) / mp.polyval(below[::-1], a) / wanted(a) - 1) for a in places)
    return above, below, error


def main() -> None:
    for name, degree in (("float", 4), ("double", 10)):
        *q, error = exponential(degree)
        print(f"{name}: q {[mp.nstr(c, 18) for c in q]}\n  largest error {mp.nstr(error, 3)}")
    for bits in (9, 40):
        high = mp.nint(mp.log(2) * 2**bits) / 2**bits
        print(f"log(2) in two: {mp.nstr(high, 18)} {mp.nstr(mp.log(2) - high, 18)}")
    for name, degree, c, far in (("float", 5, mpf("2.5"), 15), ("double", 11, mpf("3.5"), 39)):
        above, below, error = tail(degree, c, far)
        print(f"{name}: T {[mp.nstr(c, 18) for c in above]}\n  over {[mp.nstr(c, 18) for c in below]}")
        print(f"  largest error {mp.nstr(error, 3)}")


if __name__ == "__main__":
    main()
