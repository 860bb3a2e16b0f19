"""Every function of NumPy has a status, and the page that lists them is up to date."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import pytest
from helpers import ROOT

SCRIPT = ROOT / "docs" / "make_coverage.py"


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_coverage", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_function_of_numpy_has_a_status(coverage: ModuleType) -> None:
    lacking = {name: note for name, (kind, note) in coverage.statuses().items() if kind == "none"}
    assert not lacking


def test_the_page_is_up_to_date(coverage: ModuleType) -> None:
    text = coverage.PAGE.read_text()
    version = coverage.minor(np)
    if f"For NumPy {version}." not in text:
        pytest.skip(f"the page is for another NumPy than {version}")
    assert text == coverage.page(), "run python docs/make_coverage.py"
