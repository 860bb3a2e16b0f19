"""What editors show while a program is written: names to complete, and what stands in a hover.

Marked slow, as they read the whole package: jedi (IPython, Jupyter, Vim) and Pyright's server (VS Code).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

pytestmark = pytest.mark.slow

START = "import gradmgr\nimport gradmgr.numpy as np\nfrom gradmgr import GradManager, nn, tensor\n"
START += "from gradmgr.nn import functional as F\nt = tensor([1.0])\ngm = GradManager()\n"

# What is typed, and a name that must be offered; modules that are imported late are among them.
COMPLETED = {
    "np.sin": "sinc",
    "np.linalg.so": "solve",
    "np.fft.rff": "rfft",
    "gradmgr.Gra": "GradManager",
    "gradmgr.comp": "compile",
    "gradmgr.optim.Ad": "AdamW",
    "gradmgr.functional.jac": "jacobian",
    "gradmgr.distributions.Nor": "Normal",
    "gradmgr.interop.torch": "torch_function",
    "gradmgr.special.gam": "gammaln",
    "nn.Lin": "Linear",
    "F.cross_en": "cross_entropy",
    "t.resh": "reshape",
    "(t * t).su": "sum",
    "gm.att": "attach",
}

# What the mouse is on, and words that its hover must show.
HOVERED = {
    "np.sin": "Compute `numpy.sin`",
    "np.linalg.solve": "Solve a x = b",
    "F.cross_entropy": "label_smoothing",
    "gradmgr.optim.Adam": "Kingma, Ba",
    "gradmgr.compile": "Return a function that computes the same faster",
    "gradmgr.special.gammaln": "Compute `scipy.special.gammaln`",
    "t.reshape": "Reshape as `numpy.ndarray.reshape`",
}


class Pyright:
    """Pyright's server, spoken to as an editor does, about one open file."""

    def __init__(self, folder: Path) -> None:
        self._at = folder.as_uri()
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from pyright.langserver import main; main('--stdio')"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._count = 0
        hover = {"textDocument": {"hover": {"contentFormat": ["markdown"]}}}
        folders = [{"uri": self._at, "name": "folder"}]
        self._ask("initialize", processId=os.getpid(), rootUri=self._at, capabilities=hover, workspaceFolders=folders)
        self._send(method="initialized", params={})

    def _send(self, **message: Any) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self._server.stdin.flush()

    def _read(self) -> Any:
        size = 0
        while line := self._server.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        return json.loads(self._server.stdout.read(size))

    def _ask(self, method: str, **params: Any) -> Any:
        self._count += 1
        self._send(id=self._count, method=method, params=params)
        while True:
            message = self._read()
            if "method" in message and "id" in message:  # the server asks for settings
                items = message["params"].get("items") if isinstance(message["params"], dict) else None
                self._send(id=message["id"], result=items and [{} for _ in items])
            elif message.get("id") == self._count:
                return message["result"]

    def ask_at_end(self, method: str, text: str) -> Any:
        """Ask about the end of a text, as a new file."""
        document = {"uri": f"{self._at}/file{self._count}.py"}
        opened = {**document, "languageId": "python", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": opened})
        last = text.splitlines()[-1]
        position = {"line": len(text.splitlines()) - 1, "character": len(last) - (method == "hover")}
        return self._ask(f"textDocument/{method}", textDocument=document, position=position)

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pyright]:
    pytest.importorskip("pyright", reason="its server is of the extra test: pip install pyright[nodejs]")
    server = Pyright(tmp_path_factory.mktemp("editor"))
    yield server
    server.close()


@pytest.mark.parametrize("typed", COMPLETED)
def test_pyright_completes(pyright: Pyright, typed: str) -> None:
    found = pyright.ask_at_end("completion", START + typed)
    assert COMPLETED[typed] in {item["label"] for item in found["items"]}


@pytest.mark.parametrize("typed", HOVERED)
def test_pyright_shows_what_a_name_is(pyright: Pyright, typed: str) -> None:
    assert HOVERED[typed] in pyright.ask_at_end("hover", START + typed)["contents"]["value"]


@pytest.mark.parametrize("typed", COMPLETED)
def test_jedi_completes(typed: str) -> None:
    jedi = pytest.importorskip("jedi", reason="it is of the extra test: pip install jedi")
    script = jedi.Script(START + typed, project=jedi.Project(ROOT))
    found = script.complete(START.count("\n") + 1, len(typed))
    assert COMPLETED[typed] in {completion.name for completion in found}


def test_jedi_shows_a_docstring_in_a_notebook() -> None:
    jedi = pytest.importorskip("jedi", reason="it is of the extra test: pip install jedi")
    import gradmgr.numpy as gnp

    for typed in "np.sin", "np.linalg.solve":
        (found,) = jedi.Interpreter(typed, [{"np": gnp}]).help(1, len(typed))
        assert HOVERED[typed] in found.docstring()
