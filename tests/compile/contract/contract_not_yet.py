"""What does not hold yet, by the name of its case, and what happens instead; the list is to become empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

NOT_YET: dict[str, str] = {}


def cases(names: Iterable[str], of: str = "") -> list[Any]:
    """Return a parameter for each name; those in the list above may fail."""
    return [pytest.param(name, marks=may_fail(f"{of}{name}")) for name in names]


def may_fail(case: str) -> list[Any]:
    return [pytest.mark.xfail(strict=False, reason=NOT_YET[case])] if case in NOT_YET else []
