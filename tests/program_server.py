"""Runs Python programs, each in a process of its own, forked from one that has imported what they need.

That takes two seconds of a processor, which the examples would take forty times. `Server` starts this file as a program
and speaks with it through pipes: a line of JSON asks for a program, a line gives its exit status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path


class Server:
    """A process that has imported modules, those that are installed, and runs programs."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  # this file, with the running interpreter
            [sys.executable, __file__, *modules],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: Path, options: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder; return what `subprocess.run` would with text=True and captured output."""
        with tempfile.TemporaryDirectory() as place:
            written = [os.path.join(place, name) for name in ("out", "err")]
            ask = {"program": str(program), "options": list(options), "folder": str(folder), "written": written}
            self.process.stdin.write(json.dumps(ask) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            out, err = (Path(path).read_text(encoding="utf-8") for path in written)
        return subprocess.CompletedProcess([str(program), *options], status, out, err)

    def close(self) -> None:
        """End the process."""
        with self.process:
            self.process.stdin.close()


def run(program: str, options: list[str], folder: str, written: list[str]) -> None:
    """Become the process of a program: as `python -W error:::__main__ program options` in a folder."""
    signal.alarm(300)
    os.chdir(folder)
    for descriptor, path in enumerate(written, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = [program, *options]
    sys.path[0] = os.path.dirname(program)
    warnings.filterwarnings("error", module="__main__$")
    runpy.run_path(program, run_name="__main__")


def serve(modules: list[str]) -> None:
    """Import modules; run programs until there are no more to run."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # what was imported is neither looked at nor copied when a program ends
    for line in sys.stdin:
        process = os.fork()
        if not process:
            run(**json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    serve(sys.argv[1:])
