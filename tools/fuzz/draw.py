"""What the functions that draw lines see: the names that are known, with NumPy's values, and random choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
Fits = Callable[[Any], bool]


class Drawn(NamedTuple):
    """The texts of an expression or, with a target, of a statement that writes to it."""

    numpy: str
    torch: str = ""
    target: str = ""


def translated(numpy: str, texts: Mapping[str, str], **names: str) -> Drawn:
    """Return a text for NumPy and the one for torch that it has in a table, with names in their places."""
    return Drawn(numpy.format(**names), texts[numpy].format(**names))


# A function that draws a line, or nothing where no known value fits.
Drawer = Callable[["Draw"], Drawn | None]


class Draw:
    """Known names and values, and random choices among them."""

    def __init__(self, rng: np.random.Generator, values: dict[str, Any], writable: Sequence[str]) -> None:
        self.rng = rng
        self.values = values
        self.writable = writable

    # ------------------------------------------------------------ numbers and choices

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def number(self) -> float:
        return float(self.choice([0.5, -1.5, 2.0, 3.0, -0.25, 1.25]))

    # ------------------------------------------------------------ names

    def pick(self, fits: Fits = lambda a: True, kinds: str = "fc", names: Sequence[str] | None = None) -> str | None:
        """Return a name whose value fits, one of the recent ones more often."""
        found = [
            name
            for name in (self.values if names is None else names)
            if self.values[name].dtype.kind in kinds and fits(self.values[name])
        ]
        if not found:
            return None
        return found[-1 - min(self.below(len(found)), self.below(len(found)))]

    def real(self, fits: Fits = lambda a: True) -> str | None:
        """Return the name of real numbers that fit."""
        return self.pick(fits, "f")

    def target(self, fits: Fits = lambda a: True, kinds: str = "fc") -> str | None:
        """Return the name of a value that may be written to."""
        return self.pick(fits, kinds, self.writable)

    def partner(self, x: str, kinds: str = "fc", fits: Fits = lambda a: True) -> str | None:
        """Return a name whose value broadcasts with that of x."""
        return self.pick(lambda a: fits(a) and broadcasts(self.values[x].shape, a.shape), kinds)

    def guest(self, x: str, kinds: str = "fc") -> str | None:
        """Return a name whose value can be written to that of x."""
        shape, kind = self.values[x].shape, self.values[x].dtype.kind
        return self.pick(lambda a: (a.dtype.kind != "c" or kind == "c") and broadcasts_to(a.shape, shape), kinds)

    def mask(self, x: str) -> str | None:
        """Return the name of booleans that broadcast to x."""
        shape = self.values[x].shape
        return self.pick(lambda a: broadcasts_to(a.shape, shape), "b")

    # ------------------------------------------------------------ axes and places

    def axis(self, a: Any) -> int:
        return self.below(2 * a.ndim) - a.ndim

    def axes(self, a: Any) -> tuple[str, str]:
        """Return the text of an axis, several or None, in NumPy's and in torch's words."""
        choice = self.below(3)
        if choice == 0 or not a.ndim:
            return "None", "None"
        if choice == 1:
            axis = self.axis(a)
            return str(axis), f"({axis},)"
        count = 1 + self.below(a.ndim)
        axes = tuple(int(k) for k in self.rng.permutation(a.ndim)[:count])
        return str(axes), str(axes)

    def index(self, shape: tuple[int, ...]) -> str:
        """Return the text of an index of some kind that fits a shape."""
        if not shape:
            return self.choice(["()", "...", "None", "(None, ...)"])
        n, last = shape[0], shape[-1]
        kinds = ["...", "None", "::-1", "1:", ":-1", "::2", "None, ...", "..., None", "..., ::-1", "3:1", ":, None"]
        if n:
            kinds += [str(self.below(2 * n) - n), str([self.below(n) for _ in range(3)]), str([[0, n - 1], [-1, 0]])]
            kinds += [f"[{self.below(n)}], ..."]
        if last:
            kinds += [f"..., {self.below(last)}", f"..., [{self.below(last)}, 0, -1]"]
        if len(shape) > 1 and n and shape[1]:
            kinds += [f"[0, -1, 0], [{self.below(shape[1])}, 0, -1]", f"[[0], [-1]], {self.below(shape[1])}"]
            kinds += [f"{self.below(n)}, 1:", f":, [{self.below(shape[1])}, 0]", f"-1, None, {self.below(shape[1])}"]
            kinds += [f"{self.below(n)}, ..., [0, -1]" if len(shape) > 2 and last else "0, :"]
        if n:
            kinds.append(str([bool(self.below(2)) for _ in range(n)]))
        return self.choice(kinds)


def broadcasts(*shapes: tuple[int, ...]) -> bool:
    """Tell whether shapes broadcast, to no more than a few hundred elements unless one of them is large."""
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return bool(np.prod(shape) <= max(400, *[int(np.prod(each)) for each in shapes]))


def broadcasts_to(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether a shape broadcasts to another."""
    return broadcasts(shape, to) and np.broadcast_shapes(shape, to) == to
