"""The levels at which gradmgr compiles a function, by the name of their column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import gradmgr
from gradmgr._arrays import native
from gradmgr._arrays.products import find_products
from gradmgr._replay.native_test import check_machine

How = Callable[[Callable[..., Any]], Callable[..., Any]]

PLAIN, NATIVE, FUSED = "compiled", "native", "fused"


def levels() -> Mapping[str, How]:
    """Return what compiles a function: the plain level, and the further ones that are installed."""
    found: dict[str, How] = {PLAIN: partial(gradmgr.compile, native=False)}
    if find_spec("gradmgr_native") is not None:
        found[NATIVE] = partial(gradmgr.compile, native=True, exact=True)
        machine = native.found.get(check_machine)
        if machine is not None and find_products(machine)[0] is not None:
            found[FUSED] = partial(gradmgr.compile, native=True)
    return found
