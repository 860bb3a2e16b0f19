"""The levels at which gradmgr compiles a function, by the name of their column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gradmgr

How = Callable[[Callable[..., Any]], Callable[..., Any]]

PLAIN, NATIVE = "compiled", "native"


def levels() -> Mapping[str, How]:
    """Return what compiles a function: the plain level, and the further ones that are installed."""
    found: dict[str, How] = {PLAIN: gradmgr.compile}
    # The native level goes here, under the name NATIVE, when gradmgr.compile has a switch for it.
    return found
