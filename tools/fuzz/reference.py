"""What programs give in NumPy and in torch: values, and derivatives by torch or by difference quotients."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import scipy.special

from tools.fuzz.functions import PLAIN
from tools.fuzz.program import SECOND_ORDER, Block, Line, Program, Statement, is_inexact

HAS_TORCH = find_spec("torch") is not None
if HAS_TORCH:
    import torch

    from tools.fuzz import torch_functions

Values = dict[str, Any]


class OracleError(Exception):
    """NumPy and torch do not agree: what a line says of one of the two is wrong."""


@lru_cache(maxsize=20_000)
def compiled(text: str, mode: str = "eval") -> CodeType:
    """Compile the text of a line."""
    return compile(text, f"<line {text}>", mode)


@lru_cache(maxsize=20_000)
def _body(text: str, target: str | None) -> CodeType:
    """Compile the text of a line as the body of a function whose variables are globals."""
    lines = f"return {text}" if target is None else f"global {target}\n    {text}"
    module = compile(f"def line():\n    {lines}", f"<line {text}>", "exec")
    return next(part for part in module.co_consts if isinstance(part, CodeType))


def scope(np_namespace: Any, special: Any, functions: Any, *, double: bool = False) -> Values:
    """Return what lines may name besides their variables; `double` lets single precision be double."""
    singles = {"F4": np.float64, "C8": np.complex128} if double else {"F4": np.float32, "C8": np.complex64}
    # NumPy imports modules of its own by the names of its caller, and does not expect these to lack the builtins.
    return {"__builtins__": builtins, "np": np_namespace, "special": special, "F": functions, **singles}


def run_line(line: Line, names: Values) -> Any:
    """Run a line with NumPy's or gradmgr's functions; return the new value of its target.

    As a function, and not by `eval`, which `gradmgr.compile` refuses.
    """
    made = FunctionType(_body(line.numpy, line.target if line.writes else None), names)()
    return names[line.target] if line.writes else made


class Reference:
    """A run of a program on plain arrays, copied so that no variable shares memory, and in step in torch."""

    def __init__(self, program: Program, *, shift: float = 0.0, double: bool = False, with_torch: bool = False) -> None:
        self.with_torch = with_torch
        self.is_single = program.is_single() and not double
        self.names = scope(np, scipy.special, PLAIN, double=double)
        self.torch_names: Values = {"torch": torch, "t": torch_functions, "np": np} if with_torch else {}
        for name, each in program.inputs.items():
            a = _doubled(each.array) if double else each.array
            if shift and name in program.directions:
                a = a + shift * program.directions[name]
            self.set(name, a, torch.from_numpy(_doubled(a).copy()) if with_torch else None)
            if with_torch and each.attached:
                self.torch_names[name].requires_grad_()
        self.leaves = [self.torch_names[name] for name in program.leaves] if with_torch else []

    def set(self, name: str, value: Any, in_torch: Any) -> None:
        """Enter a value; integers and booleans are taken from NumPy, and so are torch's where a line gives none."""
        value = np.array(value)
        self.names[name] = value
        if self.with_torch:
            exact = in_torch is None or not is_inexact(value)
            self.torch_names[name] = (
                torch.from_numpy(_doubled(value)) if exact else self._checked(name, value, in_torch)
            )

    def _checked(self, name: str, value: Any, in_torch: Any) -> Any:
        found = _array(in_torch)
        if found.dtype.kind != value.dtype.kind:
            in_torch = in_torch.to(torch.complex128 if value.dtype.kind == "c" else torch.float64)
        tolerance = 2e-3 if self.is_single else 1e-9
        size = 1 + np.max(np.abs(value), initial=0)
        if found.shape != value.shape or not np.allclose(found, value, rtol=0, atol=tolerance * size, equal_nan=True):
            raise OracleError(f"{name}: NumPy gives {value!r}, torch {found!r}")
        return in_torch if torch.is_grad_enabled() else in_torch.detach()  # which no_grad does not do with a view

    def run(self, statements: Sequence[Statement]) -> None:
        """Run statements."""
        for each in statements:
            if isinstance(each, Line):
                self._line(each)
            elif each.kind == "vmap":
                self._rows(each)
            else:
                quiet = torch.no_grad() if each.kind == "no_grad" and self.with_torch else contextlib.nullcontext()
                with quiet:
                    self.run(each.body)

    def _line(self, line: Line) -> None:
        value = run_line(line, self.names)
        in_torch = None
        if self.with_torch and line.torch:
            in_torch = eval(compiled(line.torch), self.torch_names)  # noqa: S307  # a line that this package has drawn
        self.set(line.target, value, in_torch)

    def _rows(self, block: Block) -> None:
        rows, in_torch = [], []
        before, before_torch = dict(self.names), dict(self.torch_names)
        for k in range(len(before[block.over])):
            self.set(block.row, before[block.over][k], before_torch[block.over][k] if self.with_torch else None)
            self.run(block.body)
            rows.append(self.names[block.result])
            in_torch.append(self.torch_names.get(block.result))
            self.names, self.torch_names = dict(before), dict(before_torch)
        self.set(block.target, np.stack(rows), torch.stack(in_torch) if self.with_torch else None)


def _doubled(a: Any) -> Any:
    """Return floating numbers in double precision."""
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) if a.dtype.kind in "fc" else a


# ---------------------------------------------------------------- derivatives by torch


@contextlib.contextmanager
def _torch_in_double() -> Iterator[None]:
    """Let torch compute in double precision and in one thread, and set it back: others in the process use it too."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])


@_torch_in_double()
def by_torch(program: Program) -> tuple[Values, list[Any], list[Any]]:
    """Return all values, the gradients by the leaves, and those of their product with the directions."""
    run = Reference(program, with_torch=True)
    run.run(program.statements)
    ys, weights = [], []
    for name, weight in program.outputs:
        y = run.torch_names[name]
        if y.requires_grad:
            ys.append(y)
            weights.append(torch.from_numpy(np.array(_doubled(weight))))
    second = program.mode in SECOND_ORDER
    gradients = _gradients(ys, run.leaves, weights, create=second)
    seconds: list[Any] = []
    if second:
        directions = [torch.from_numpy(np.array(_doubled(program.directions[name]))) for name in program.leaves]
        slope = sum(
            torch_functions.real(g * torch_functions.conj(v)).sum() for g, v in zip(gradients, directions, strict=True)
        )
        known = isinstance(slope, torch.Tensor) and slope.requires_grad
        seconds = _gradients([slope] if known else [], run.leaves, [torch.tensor(1.0)] if known else [])
    values = {name: value for name, value in run.names.items() if isinstance(value, np.ndarray)}
    return values, [_array(g) for g in gradients], [_array(g) for g in seconds]


def _gradients(ys: list[Any], leaves: list[Any], weights: list[Any], *, create: bool = False) -> list[Any]:
    if not ys:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(ys, leaves, weights, create_graph=create, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


def _array(g: Any) -> Any:
    if g._is_zerotensor():  # a zero without memory, of which torch 2.13 makes no array: the process would end
        return np.zeros(tuple(g.shape), torch.empty(0, dtype=g.dtype).numpy().dtype)
    return g.detach().resolve_conj().numpy(force=True)


# ---------------------------------------------------------------- derivatives by differences


def values_of(program: Program) -> Values:
    """Return all values in NumPy."""
    run = Reference(program)
    run.run(program.statements)
    return {name: value for name, value in run.names.items() if isinstance(value, np.ndarray)}


def has_differences(program: Program) -> bool:
    """Tell whether differences say something: whether nothing is cut or multiplied on the way back."""
    return not program.contains("F.hooked", "F.detached", "with no_grad")


def slope_by_differences(program: Program, step: float) -> float:
    """Return the slope of the weighted outputs along the directions, by a central difference in double precision."""

    def weighted(shift: float) -> float:
        run = Reference(program, shift=shift, double=True)
        run.run(program.statements)
        if any(np.shape(run.names[name]) != np.shape(w) for name, w in program.outputs):
            raise OracleError("another number of elements is picked: a comparison is at its step")
        return float(sum(np.sum(np.real(np.conj(_doubled(w)) * run.names[name])) for name, w in program.outputs))

    return (weighted(step) - weighted(-step)) / (2 * step)
