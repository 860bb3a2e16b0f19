"""What a random program is: inputs, lines of text, outputs, and how it is differentiated.

Names say what they hold: `v1` floating or complex numbers, `b1` booleans, `i1` integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

_NAME = re.compile(r"\b[vbi]\d+\b")


@dataclass(frozen=True)
class Line:
    """One line: the text of an expression whose value the target gets, or of a statement that writes to the target.

    Attributes:
        target: the name.
        numpy: the text, in NumPy's words: it runs with NumPy on arrays, and with gradmgr on Tensors.
        torch: an expression for the new value of the target in torch; "" where NumPy's value is taken.
        writes: whether `numpy` writes to the target in place.
    """

    target: str
    numpy: str
    torch: str = ""
    writes: bool = False

    def reads(self) -> set[str]:
        """Return the names that must be known before."""
        names = set(_NAME.findall(self.numpy)) | set(_NAME.findall(self.torch))
        return names | {self.target} if self.writes else names - {self.target}

    def targets(self) -> list[str]:
        """Return the names that are known or changed afterwards."""
        return [self.target]

    def text(self, indent: str = "") -> str:
        """Return the line as a line of a program."""
        return indent + (self.numpy if self.writes else f"{self.target} = {self.numpy}")


@dataclass(frozen=True)
class Block:
    """Statements that are computed in a special way: by a checkpoint, in a thread, under no_grad, for each row, ...

    What a block makes is known after it, but for "vmap": there the target is the stack of what the body gives as
    `result` for each row of `over`, which it knows as `row`. A body writes only to what it has made itself.
    """

    kind: str
    body: tuple[Statement, ...]
    target: str = ""
    over: str = ""
    row: str = ""
    result: str = ""

    def reads(self) -> set[str]:
        """Return the names that must be known before."""
        made: set[str] = {self.row} if self.row else set()
        needed = {self.over} if self.over else set()
        for statement in self.body:
            needed |= statement.reads() - made
            made.update(statement.targets())
        return needed

    def targets(self) -> list[str]:
        """Return the names that are known afterwards."""
        return [self.target] if self.kind == "vmap" else [name for each in self.body for name in each.targets()]

    def text(self, indent: str = "") -> str:
        """Return the block as lines of a program, in a notation of its own."""
        head = f"{self.target} = vmap({self.row} in {self.over} -> {self.result})" if self.over else self.kind
        return "\n".join([f"{indent}with {head}:", *[each.text(indent + "    ") for each in self.body]])


Statement = Line | Block


@dataclass(frozen=True)
class Input:
    """An array that a program begins with; attached, or a constant, as a Tensor or as it is."""

    array: Any
    attached: bool
    plain: bool = False


@dataclass(frozen=True)
class Program:
    """Inputs by name, statements, outputs with their weights, and the way to differentiate."""

    inputs: dict[str, Input]
    statements: tuple[Statement, ...]
    outputs: tuple[tuple[str, Any], ...]
    mode: str
    options: frozenset[str] = frozenset()
    seed: int = 0
    directions: dict[str, Any] = field(default_factory=dict)  # by attached input: for tangents and second derivatives

    @property
    def leaves(self) -> list[str]:
        """The names of the attached inputs."""
        return [name for name, each in self.inputs.items() if each.attached]

    def is_single(self) -> bool:
        """Tell whether anything is computed in single precision."""
        text = self.text()
        return "F4" in text or "C8" in text or any(each.array.dtype.char in "fF" for each in self.inputs.values())

    def contains(self, *words: str) -> bool:
        """Tell whether one of these words is in the text."""
        text = self.text()
        return any(word in text for word in words)

    def text(self) -> str:
        """Return the statements as text."""
        return "\n".join([each.text() for each in self.statements])

    def __str__(self) -> str:
        options = f" {' '.join(sorted(self.options))}" if self.options else ""
        head = [f"# seed {self.seed}: {self.mode}{options}"]
        for name, each in self.inputs.items():
            kind = "attached" if each.attached else "plain" if each.plain else "constant"
            head.append(f"{name} = {_written(each.array)}  # {kind}")
        outputs = [f"# weight of {name}: {_written(weight)}" for name, weight in self.outputs]
        directions = [f"# direction of {name}: {_written(a)}" for name, a in self.directions.items()]
        return "\n".join([*head, self.text(), *outputs, *(directions if self.mode not in FIRST_ORDER else [])])


# Ways to differentiate of which nothing but the first derivatives by all leaves is asked.
FIRST_ORDER = ("backward", "retained", "grad", "backward_function", "batched", "functional", "jacobian", "mapped")
SECOND_ORDER = ("created", "nested", "forward_over_reverse", "reverse_over_forward")
MODES = (*FIRST_ORDER, "forward", *SECOND_ORDER)


def _written(array: Any) -> str:
    if array.size > 60:
        return f"np.zeros({array.shape}, '{array.dtype}')  # and other numbers"
    return f"np.array({array.tolist()!r}, '{array.dtype}')" + (f".reshape({array.shape})" if not array.size else "")


def lines_of(statements: Sequence[Statement]) -> Iterator[Line]:
    """Yield all lines, those in blocks too."""
    for each in statements:
        if isinstance(each, Line):
            yield each
        else:
            yield from lines_of(each.body)


def repaired(program: Program) -> Program | None:
    """Leave out what reads names that are unknown; None where no output and no attached input is left."""
    statements, known = _known_only(program.statements, set(program.inputs))
    outputs = tuple([each for each in program.outputs if each[0] in known])
    needed = set().union(*[each.reads() for each in statements], {name for name, _ in outputs})
    inputs = {name: each for name, each in program.inputs.items() if name in needed}
    if not outputs or not any(each.attached for each in inputs.values()):
        return None
    directions = {name: a for name, a in program.directions.items() if name in inputs}
    return replace(program, inputs=inputs, statements=statements, outputs=outputs, directions=directions)


def _known_only(statements: Sequence[Statement], known: set[str]) -> tuple[tuple[Statement, ...], set[str]]:
    kept: list[Statement] = []
    for each in statements:
        if isinstance(each, Block):
            inside = known | ({each.row} if each.row else set())
            if each.over and each.over not in known:
                continue
            body, inside = _known_only(each.body, inside)
            if not body or (each.result and each.result not in inside):
                continue
            each = replace(each, body=body)
        elif not each.reads() <= known:
            continue
        kept.append(each)
        known = known | set(each.targets())
    return tuple(kept), known


def is_inexact(array: Any) -> bool:
    """Tell whether an array holds floating or complex numbers."""
    return np.asarray(array).dtype.kind in "fc"
