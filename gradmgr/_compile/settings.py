"""What a function depends on without an object that holds it: the settings of the process that its code names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gradmgr._arrays.blocks import get_num_threads

# Names by which code makes texts of arrays and objects.
_TEXTS = frozenset(("array2string", "array_repr", "array_str", "format", "repr", "str"))
_WARNING = frozenset(("warn", "warn_explicit"))


def settings_read(words: set[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the settings on which code depends that has these names: what they are called, and what reads them."""
    if not words.isdisjoint(_TEXTS):
        yield "the print options of NumPy", np.get_printoptions
    if not words.isdisjoint(_WARNING):  # one that raises an error
        yield "the filters of warnings", lambda: list(warnings.filters)
    if "get_num_threads" in words:
        yield "the number of threads", get_num_threads
