"""What a captured function gets for a Generator among its arguments: each draw is a step, of that Generator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.captured import GeneratorStandIn
from gradmgr._arrays.listening import listener
from gradmgr._engine.tensor import wrap


class ListenedGenerator(np.random.Generator, GeneratorStandIn):
    """Draws from another Generator; arrays that the program draws by itself arrive as Tensors."""

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__(generator.bit_generator)
        self.real = generator


def _drawing(name: str) -> Callable[..., Any]:
    def draw(self: ListenedGenerator, *args: Any, **keywords: Any) -> Any:
        heard = listener()
        if heard is None:
            return getattr(self.real, name)(*args, **keywords)
        made = heard.call(_draw, (self.real, name, args, keywords), {})
        if isinstance(made, np.ndarray):
            return wrap(made)
        heard.leave(f"{name}() of a Generator, which returns a number or changes an array (draw one, by size=1),", None)
        return made

    draw.__name__ = name
    return draw


def _draw(generator: np.random.Generator, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return getattr(generator, name)(*args, **keywords)


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in ("bit_generator", "spawn"):
        setattr(ListenedGenerator, _name, _drawing(_name))
