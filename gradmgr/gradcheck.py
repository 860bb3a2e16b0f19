"""gradcheck: analytic derivatives of every order against numeric ones, and against each other.

Inner products are real, <u, v> = Re(sum(conj(u) v)), so that complex derivatives, which need not
be holomorphic, are checked as real-linear maps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._forward import Forward
from gradmgr._inplace import copied
from gradmgr._recorder import enter, leave
from gradmgr._tensor import Tensor, raw, wrap
from gradmgr.manager import GradManager

Function = Callable[..., Any]


def gradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    raise_exception: bool = True,
    order: int = 1,
    check_backward_ad: bool = True,
    check_forward_ad: bool = True,
    fast_mode: bool = False,
    complex_step: bool = False,
    seed: int = 0,
) -> bool:
    """Check the derivatives of `func` at `inputs`; list every mismatch.

    Compared are: the reverse and the forward derivative with central differences (or a complex
    step), and the two with each other by the adjoint identity <u, Jv> = <J'u, v>. For `order` 2
    the same is asked of the reverse and of the forward derivative as functions, which covers
    reverse over reverse, forward over reverse, reverse over forward and forward over forward; and
    so on for higher orders.

    Args:
        func: takes the inputs, returns a Tensor or a list or tuple of them.
        inputs: a Tensor or a sequence; those of a floating or complex dtype are differentiated,
            and should be float64 or complex128: differences in single precision say little.
        eps: step of the central differences.
        atol: a difference above atol + rtol * |numeric| is a mismatch.
        rtol: see `atol`.
        raise_exception: raise on a mismatch; else return False.
        order: highest order of derivative to check.
        check_backward_ad: check the reverse mode.
        check_forward_ad: check the forward mode.
        fast_mode: compare along one random direction instead of the whole Jacobian.
        complex_step: take the numeric first derivative from the imaginary part of func(x + ih), exact to
            rounding; `func` must then be analytic, made of functions that NumPy has for complex numbers.
        seed: of the random directions.

    Returns:
        True if all agree.

    Raises:
        GradcheckError: they do not; the text lists all mismatches.

    >>> import gradmgr, gradmgr.numpy as np
    >>> gradmgr.gradcheck(lambda x, y: np.sin(x) * y, (gradmgr.tensor([1.0]), gradmgr.tensor([2.0])), order=2)
    True
    """
    points = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    points = [wrap(t._array.copy()) if isinstance(t, Tensor) else t for t in points]
    for k, t in enumerate(points):
        if isinstance(t, Tensor) and t.dtype in (np.float16, np.float32, np.complex64):
            warnings.warn(
                f"gradcheck: input {k} is {t.dtype}; differences in it are mostly rounding, use float64",
                RuntimeWarning,
                stacklevel=2,
            )
    check = _Check(eps, atol, rtol, check_backward_ad, check_forward_ad, fast_mode, complex_step, seed)
    failures = check.run(func, points, order, "")
    if failures and raise_exception:
        raise errors.GradcheckError("the derivatives do not agree:\n" + "\n".join(failures))
    return not failures


class _Check:
    def __init__(
        self,
        eps: float,
        atol: float,
        rtol: float,
        backward: bool,
        forward: bool,
        fast: bool,
        complex_step: bool,
        seed: int,
    ) -> None:
        self.eps, self.atol, self.rtol = eps, atol, rtol
        self.backward, self.forward = backward, forward
        self.fast, self.complex_step = fast, complex_step
        self.random = np.random.default_rng(seed)

    def run(self, func: Function, points: list[Any], order: int, path: str) -> list[str]:
        where = [k for k, t in enumerate(points) if _differentiable(t)]
        outs = _outputs(func(*points))
        if not where:
            return [f"{path}no input is of a floating or complex dtype"]
        vs = [self._direction(points[k]) for k in where]
        us = [self._direction(y) for y in outs]
        failures = self._dtypes(func, points, where, us, path)
        if self.fast:
            failures += self._along(func, points, where, vs, us, path)
        else:
            failures += self._whole(func, points, where, outs, path)
        if order > 1:
            failures += self._higher(func, points, where, vs, us, order, path)
        return failures

    def _direction(self, t: Tensor) -> Any:
        values = self.random.uniform(0.5, 1.5, t.shape) * self.random.choice([-1.0, 1.0], t.shape)
        if t.dtype.kind == "c":
            values = values + 1j * self.random.uniform(-1.0, 1.0, t.shape)
        return _xp.to_device(np.asarray(values, dtype=t.dtype), t.device)

    # ------------------------------------------------------------ the comparisons

    def _dtypes(self, func: Function, points: list[Any], where: list[int], us: Any, path: str) -> list[str]:
        if not self.backward:
            return []
        found = vjp(func, points, where, us)
        return [
            f"{path}the gradient of input {k} has shape {g.shape} and dtype {g.dtype}; "
            f"the input has {points[k].shape} and {points[k].dtype}"
            for k, g in zip(where, found, strict=True)
            if g.shape != points[k].shape or g.dtype != points[k].dtype
        ]

    def _along(self, func: Function, points: list[Any], where: list[int], vs: Any, us: Any, path: str) -> list[str]:
        numeric = _flat(self._numeric(func, points, where, vs, path))
        u = _flat(us)
        failures = []
        pushed = _flat(jvp(func, points, where, vs)) if self.forward else None
        if pushed is not None:
            failures += self._compare(pushed, numeric, f"{path}forward derivative along a random direction")
        if self.backward:
            pulled = np.asarray(_flat(vjp(func, points, where, us)) @ _flat(vs))
            failures += self._compare(pulled, np.asarray(u @ numeric), f"{path}reverse derivative <J'u, v>")
            if pushed is not None:
                failures += self._compare(pulled, np.asarray(u @ pushed), f"{path}adjoint identity <J'u, v> = <u, Jv>")
        return failures

    def _whole(self, func: Function, points: list[Any], where: list[int], outs: list[Tensor], path: str) -> list[str]:
        columns = [_basis(points[k]) for k in where]
        width = sum(len(basis) for basis in columns)
        numeric = np.zeros((_flat(outs).size, width))
        forward = np.zeros_like(numeric)
        column = 0
        for place, basis in enumerate(columns):
            for direction in basis:
                vs = [direction if j == place else np.zeros_like(raw(points[k])) for j, k in enumerate(where)]
                numeric[:, column] = _flat(self._numeric(func, points, where, vs, path))
                if self.forward:
                    forward[:, column] = _flat(jvp(func, points, where, vs))
                column += 1
        failures = self._compare(forward, numeric, f"{path}forward Jacobian") if self.forward else []
        if self.backward:
            reverse = np.zeros_like(numeric)
            row = 0
            for place, y in enumerate(outs):
                for direction in _basis(y):
                    us = [direction if j == place else np.zeros_like(raw(o)) for j, o in enumerate(outs)]
                    reverse[row] = _flat(vjp(func, points, where, us))
                    row += 1
            failures += self._compare(reverse, numeric, f"{path}reverse Jacobian")
            if self.forward:
                failures += self._compare(reverse, forward, f"{path}adjoint identity, reverse against forward Jacobian")
        return failures

    def _higher(
        self, func: Function, points: list[Any], where: list[int], vs: Any, us: Any, order: int, path: str
    ) -> list[str]:
        failures = []
        count = len(points)
        if self.backward:

            def reverse(*args: Any) -> Any:
                return vjp(func, list(args[:count]), where, args[count:])

            more = [wrap(u) for u in us]
            failures += self.run(reverse, [*points, *more], order - 1, f"{path}derivative of the reverse derivative: ")
        if self.forward:

            def forward(*args: Any) -> Any:
                return jvp(func, list(args[:count]), where, args[count:])

            more = [wrap(v) for v in vs]
            failures += self.run(forward, [*points, *more], order - 1, f"{path}derivative of the forward derivative: ")
        return failures

    def _numeric(self, func: Function, points: list[Any], where: list[int], vs: Any, path: str) -> list[Any]:
        def shifted(step: complex) -> list[Any]:
            moved = list(points)
            for k, v in zip(where, vs, strict=True):
                moved[k] = wrap(raw(points[k]) + step * v)
            return [raw(y) for y in _outputs(func(*moved))]

        if self.complex_step and not path:  # derivatives of complex functions are not analytic: they conjugate
            h = 1e-30
            return [y.imag / h for y in shifted(1j * h)]
        return [(a - b) / (2 * self.eps) for a, b in zip(shifted(self.eps), shifted(-self.eps), strict=True)]

    def _compare(self, found: Any, expected: Any, what: str) -> list[str]:
        found, expected = np.asarray(found), np.asarray(expected)
        bad = ~(np.abs(found - expected) <= self.atol + self.rtol * np.abs(expected))
        bad &= ~(np.isnan(found) & np.isnan(expected)) & ~(np.isinf(found) & (found == expected))
        if not bad.any():
            return []
        worst = np.unravel_index(
            np.argmax(np.where(bad, np.nan_to_num(np.abs(found - expected), nan=np.inf), -1)), bad.shape
        )
        place = f" at {tuple(int(k) for k in worst)}" if worst else ""
        return [
            f"- {what}: {int(bad.sum())} of {bad.size} differ, most{place}: "
            f"found {float(found[worst])!r}, expected {float(expected[worst])!r}"
        ]


# ---------------------------------------------------------------- derivatives as functions


def vjp(func: Function, points: Sequence[Any], where: Sequence[int], us: Sequence[Any]) -> list[Tensor]:
    """Return the cotangents of the inputs at `where`, through a manager; differentiable itself."""
    points = [copied(t) if k in where else t for k, t in enumerate(points)]
    manager = GradManager().attach([points[k] for k in where])
    with manager:
        outs, tape = _outputs(func(*points)), manager._open_tape()
        known = [(y, u) for y, u in zip(outs, us, strict=True) if tape.known(y) is not None]
        manager.backward([y for y, _ in known], [u for _, u in known])
    return [_or_zeros(points[k].grad, points[k]) for k in where]


def jvp(func: Function, points: Sequence[Any], where: Sequence[int], vs: Sequence[Any]) -> list[Any]:
    """Return the tangents of the outputs for tangents of the inputs at `where`; differentiable itself."""
    points = [copied(t) if k in where else t for k, t in enumerate(points)]
    recorder = Forward()
    for k, v in zip(where, vs, strict=True):
        recorder.watch(points[k], v)
    enter(recorder)
    try:
        tangents = [_or_zeros(recorder.known(y), y) for y in _outputs(func(*points))]
    finally:
        leave(recorder)
        recorder.close()
    return [t if isinstance(t, Tensor) else wrap(t) for t in tangents]


def _or_zeros(value: Any, like: Tensor) -> Any:
    return wrap(_xp.namespace(like._array).zeros_like(like._array)) if value is None else value


def _outputs(result: Any) -> list[Tensor]:
    many = list(result) if isinstance(result, (list, tuple)) else [result]
    for y in many:
        if not isinstance(y, Tensor):
            raise TypeError(f"gradcheck: the function must return Tensors; found {type(y).__name__}")
    return [y for y in many if _differentiable(y)]


def _differentiable(t: Any) -> bool:
    return isinstance(t, Tensor) and _xp.is_differentiable(t.dtype)


def _host(value: Any) -> Any:
    return np.asarray(_xp.to_device(raw(value), "cpu"))


def _flat(values: Sequence[Any]) -> Any:
    """All values as one real vector; a complex array gives its real parts, then its imaginary ones."""
    parts = [np.zeros(0)]
    for value in map(_host, values):
        parts.append(value.real.ravel())
        if value.dtype.kind == "c":
            parts.append(value.imag.ravel())
    return np.concatenate(parts).astype(float)


def _basis(t: Tensor) -> list[Any]:
    """The unit arrays of a tensor's shape, real and, for complex dtypes, imaginary."""
    units = []
    for scale in (1, 1j) if t.dtype.kind == "c" else (1,):
        for k in range(t.size):
            unit = np.zeros(t.size, t.dtype)
            unit[k] = scale
            units.append(_xp.to_device(unit.reshape(t.shape), t.device))
    return units
