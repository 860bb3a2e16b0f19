"""What the tests of the benchmarks share: the libraries that are compared."""

from __future__ import annotations

import pytest

from bench import peers
from bench.libraries import Gradmgr


@pytest.fixture(scope="module")
def libraries():
    return [Gradmgr(), *peers.installed(1)]
