"""CapturedGenerator: takes the place of a Generator while a function is captured, so that its draws are captured, too.

It is a module of its own since importing `numpy.random` takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradmgr._arrays.captured import CapturedArray, GeneratorStandIn, capturing


class CapturedGenerator(np.random.Generator, GeneratorStandIn):
    """Takes the place of a Generator whose draws are captured, each as a call of that Generator's method."""

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__(generator.bit_generator)
        self.real = generator

    @property
    def bit_generator(self) -> Any:
        """That of the Generator, whose state others may read and set by it."""
        capture = capturing()
        if capture is not None:
            capture.add_obstacle(
                "it reads bit_generator of a Generator, by which the state may be set; do that outside of the function,"
            )
        return self.real.bit_generator


def _drawing(name: str) -> Callable[..., Any]:
    def draw(self: CapturedGenerator, *args: Any, **keywords: Any) -> Any:
        method = getattr(self.real, name)
        capture = capturing()
        if capture is None:
            return method(*args, **keywords)
        made = capture.call_foreign(method, *args, **keywords)
        if not isinstance(made, CapturedArray):
            capture.add_obstacle(
                f"{name}() of a Generator gives a number, or changes an array; draw an array, as with size=1,"
            )
        return made

    draw.__name__ = name
    return draw


for _attribute in dir(np.random.Generator):
    if not _attribute.startswith("_") and _attribute != "bit_generator":
        setattr(CapturedGenerator, _attribute, _drawing(_attribute))
