"""What the package's doctests need around them, so that their text is what a reader would write."""

from __future__ import annotations

import sys

import pytest

NEEDED = {"gradmgr.interop._torch": "torch", "gradmgr.interop._jax": "jax"}


@pytest.fixture(autouse=True)
def around_doctests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip examples of a library that is not installed; let `install` find no autograd that a test has imported."""
    name = request.node.name
    if not name.startswith("gradmgr."):
        return
    for module, library in NEEDED.items():
        if name.startswith(module):
            pytest.importorskip(library, reason=f"{library} is of the extra bench")
    if name.startswith("gradmgr.compat.autograd._install"):
        for imported in [each for each in sys.modules if each.partition(".")[0] == "autograd"]:
            monkeypatch.delitem(sys.modules, imported)
