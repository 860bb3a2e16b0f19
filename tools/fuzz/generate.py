"""Making random programs."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tools.fuzz import elementwise, products, structure
from tools.fuzz.draw import Draw, Drawer
from tools.fuzz.program import FIRST_ORDER, MODES, Block, Input, Line, Program, Statement, is_inexact, lines_of
from tools.fuzz.reference import Reference

# How often each way to draw a line is tried.
DRAWERS: MappingProxyType[Drawer, int] = MappingProxyType(
    {
        elementwise.unary: 8,
        elementwise.binary: 8,
        elementwise.with_number: 3,
        elementwise.with_integers: 1,
        elementwise.power_of_integers: 1,
        elementwise.choice: 2,
        elementwise.booleans: 2,
        elementwise.integers: 1,
        elementwise.augmented: 3,
        elementwise.out_1: 2,
        elementwise.out_2: 2,
        elementwise.copied: 2,
        elementwise.set_items: 4,
        structure.moved: 5,
        structure.item: 4,
        structure.masked_items: 1,
        structure.items_by_order: 1,
        structure.joined: 3,
        structure.summed: 4,
        structure.spread: 1,
        structure.extremes: 2,
        structure.along: 4,
        structure.triangle: 1,
        structure.outer_ufunc: 1,
        structure.like: 1,
        products.product: 3,
        products.of_transpose: 2,
        products.vectors: 3,
        products.einsum: 2,
        products.linear_algebra: 3,
        products.solved: 1,
        products.fourier: 2,
    }
)
_WEIGHTS = np.array(list(DRAWERS.values())) / sum(DRAWERS.values())
_DRAWERS = list(DRAWERS)

SHAPES = [(), (3,), (2,), (1,), (2, 3), (3, 3), (2, 1), (1, 3), (3, 2), (2, 2), (2, 1, 3), (2, 3, 3), (4,), (3, 1, 1)]
EMPTY = [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 0), (1, 0)]
LARGE = [(600,), (30, 25), (3, 200)]  # what a budget moves out
DTYPES = ["d", "d", "d", "d", "d", "f", "D", "D", "F"]
MOST = 1500  # elements of a value
LARGEST = 60.0  # what is beyond is not taken, so that derivatives stay comparable

BLOCKS = ["checkpoint", "checkpoint", "vmap", "vmap", "thread", "packed", "no_grad", "copied_context"]
OPTIONS = ["outer", "outer_group", "callbacks", "hooks", "spill", "spill_to_host", "with_stack", "anomaly", "numpy"]
OPTIONS += ["threads", "profiled", "packed", "forward_level"]


class Generator:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.in_vmap = False  # where nothing may pick elements by values that differ by example
        self.picks_by_values = False

    def make(self) -> Program:
        """Return a program; of the same seed always the same."""
        while True:
            program = self._attempt()
            if program is not None:
                return program

    def _attempt(self) -> Program | None:
        inputs = self._inputs()
        bare = Program(inputs, (), (), "backward", seed=self.seed)
        run = Reference(bare)
        mode = MODES[self._below(len(MODES))] if self._chance(0.7) else "backward"
        writable = [name for name, each in inputs.items() if not each.plain]
        statements = self._statements(run, 3 + self._below(10), writable, depth=2)
        computed = [name for each in statements for name in each.targets() if is_inexact(run.names[name])]
        if not computed:
            return None
        used = {name for line in lines_of(statements) for name in line.reads() if name != line.target}
        ends = [name for name in computed if name not in used]  # so that what leads to them counts
        chosen = {computed[-1], computed[self._below(len(computed))], *ends[-5:]}
        outputs = tuple(
            [(name, self._numbers(run.names[name].shape, run.names[name].dtype)) for name in sorted(chosen)]
        )
        directions = {
            name: self._numbers(each.array.shape, each.array.dtype) for name, each in inputs.items() if each.attached
        }
        program = replace(bare, statements=tuple(statements), outputs=outputs, mode=mode, directions=directions)
        return replace(program, mode=self._fitting(program), options=self._options(program))

    # ------------------------------------------------------------ choices

    def _below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def _chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _name(self, value: Any) -> str:
        self.count += 1
        return {"b": "b", "i": "i"}.get(value.dtype.kind, "v") + str(self.count)

    def _numbers(self, shape: tuple[int, ...], dtype: Any) -> Any:
        dtype = np.dtype(dtype)
        a = self.rng.uniform(-2, 2, shape)
        return np.array(a + 1j * self.rng.uniform(-1, 1, shape) if dtype.kind == "c" else a, dtype=dtype)

    def _options(self, program: Program) -> frozenset[str]:
        chosen = {OPTIONS[self._below(len(OPTIONS))] for _ in range(self._below(3))}
        if any(line.writes and line.target in program.inputs for line in lines_of(program.statements)):
            chosen.discard("threads")  # which would both write to it
        return frozenset(chosen)

    def _fitting(self, program: Program) -> str:
        """Return the mode, or another where the program is not for it."""
        mode = program.mode
        if mode not in (*FIRST_ORDER, "forward") and program.is_single():
            return "backward"
        if "forward" in mode and program.contains("F.hooked", "with no_grad"):
            return "backward"
        if mode == "mapped" and (program.contains("vmap(", "with thread", "with copied") or self.picks_by_values):
            return "backward"
        complex_ones = program.contains("j", "fft", "C8") or any(
            each.array.dtype.kind == "c" for each in program.inputs.values()
        )
        return "functional" if mode == "jacobian" and complex_ones else mode

    # ------------------------------------------------------------ inputs and statements

    def _inputs(self) -> dict[str, Input]:
        made: dict[str, Input] = {}
        shapes = [*SHAPES, *(EMPTY if self._chance(0.12) else [])] if not self._chance(0.05) else LARGE
        base = shapes[self._below(len(shapes))]
        only_real = self._chance(0.5)
        for k in range(2 + self._below(4)):
            shape = base if self._chance(0.5) else shapes[self._below(len(shapes))]
            dtype = np.dtype("d" if only_real else DTYPES[self._below(len(DTYPES))])
            array = self._numbers(shape, dtype)
            attached = k == 0 or self._chance(0.7)
            made[self._name(array)] = Input(array, attached, plain=not attached and self._chance(0.5))
        if self._chance(0.5):
            booleans = np.array(self.rng.random(base) < 0.6)
            made[self._name(booleans)] = Input(booleans, attached=False, plain=self._chance(0.5))
        if self._chance(0.3):
            integers = np.array(self.rng.integers(-2, 4, base))
            made[self._name(integers)] = Input(integers, attached=False, plain=self._chance(0.5))
        return made

    def _statements(self, run: Reference, count: int, writable: list[str], depth: int) -> list[Statement]:
        writable = [name for name in writable if name in run.names]
        made: list[Statement] = []
        while len(made) < count:
            block = self._block(run, depth) if depth and self._chance(0.12) else None
            statement = block or self._line(run, writable)
            if statement is None:
                break
            made.append(statement)
            writable += [name for name in statement.targets() if name not in writable]
        return made

    def _line(self, run: Reference, writable: list[str]) -> Line | None:
        known = {name: value for name, value in run.names.items() if isinstance(value, np.ndarray)}
        d = Draw(self.rng, known, [name for name in writable if is_inexact(known[name])])
        for _ in range(60):
            drawer = _DRAWERS[int(self.rng.choice(len(_DRAWERS), p=_WEIGHTS))]
            drawn = drawer(d)
            if drawn is None or (self.in_vmap and _picks_by_values(drawn.numpy)):
                continue
            line = Line(drawn.target or "v0", drawn.numpy, drawn.torch, bool(drawn.target))
            value = _value_of(line, run)
            if value is None:
                continue
            if not line.writes:
                line = replace(line, target=self._name(value))
            run.set(line.target, value, None)
            self.picks_by_values |= _picks_by_values(line.numpy)
            return line
        return None

    def _block(self, run: Reference, depth: int) -> Block | None:
        kind = BLOCKS[self._below(len(BLOCKS))]
        if kind == "vmap":
            return self._vmap(run, depth)
        outside = dict(run.names)
        body = self._statements(run, 1 + self._below(4), [], depth - 1)
        if not body:
            run.names = dict(outside)
            return None
        return Block(kind, tuple(body))

    def _vmap(self, run: Reference, depth: int) -> Block | None:
        over = [
            name
            for name, value in run.names.items()
            if isinstance(value, np.ndarray) and is_inexact(value) and value.ndim and 0 < len(value) <= 4
        ]
        if not over:
            return None
        name, outside = over[self._below(len(over))], dict(run.names)
        row = self._name(run.names[name])
        run.set(row, run.names[name][0], None)
        before, self.in_vmap = self.in_vmap, True
        body = self._statements(run, 1 + self._below(4), [row], depth - 1)
        self.in_vmap = before
        results = [each for statement in body for each in statement.targets() if is_inexact(run.names[each])]
        run.names = dict(outside)
        if not results:
            return None
        block = Block("vmap", tuple(body), "v0", name, row, results[-1])
        try:
            run.run([block])
        except Exception:  # a row that does not fit, as with shapes that depend on values
            run.names = dict(outside)
            return None
        value = run.names.pop("v0")
        if not _is_tame(value):
            run.names = dict(outside)
            return None
        block = replace(block, target=self._name(value))
        run.set(block.target, value, None)
        return block


def _value_of(line: Line, run: Reference) -> Any:
    """Return what NumPy computes, or None where it raises or gives what cannot be compared."""
    trial = Reference.__new__(Reference)
    trial.names = dict(run.names)
    trial.with_torch = False
    if line.writes:
        trial.names[line.target] = run.names[line.target].copy()
    try:
        trial._line(line)
    except Exception:  # whatever NumPy refuses is no line
        return None
    value = trial.names[line.target]
    return value if _is_tame(value) else None


def _picks_by_values(text: str) -> bool:
    return "np.extract" in text or re.search(r"\[b\d+\]|out=v\d+, where=", text) is not None


def _is_tame(value: Any) -> bool:
    if value.dtype.kind not in "fcbi" or value.size > MOST or value.ndim > 5:
        return False
    return not value.size or (bool(np.isfinite(value).all()) and float(np.abs(value).max()) <= LARGEST)


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Generator(seed).make()
