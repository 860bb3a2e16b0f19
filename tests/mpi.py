"""Running a program as several ranks, under the mpiexec of the environment that the tests run in."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT, cupy_on_a_gpu

from gradmgr import errors

# Each rank writes to files of its own; which rank it is, MPICH, Open MPI or Slurm says in the environment.
_LAUNCH = """
import os, runpy, sys
names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
rank = next(os.environ[name] for name in names if name in os.environ)
os.environ["TEST_RANK"] = rank
for number, kind in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{kind}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Open MPI's own wishes: more ranks than cores, and as root. MPICH does both unasked.
_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


# What programs given to `ranks` begin with.
PRELUDE = """
import time, gc, weakref
import numpy as np
import gradmgr, gradmgr.numpy as gnp, gradmgr.distributed as dist
from gradmgr import GradManager, tensor, errors
dist.init(timeout=20)
RANK, SIZE = dist.rank(), dist.size()

def grads(*ts):
    return [None if t.grad is None else t.grad.tolist() for t in ts]

def raises(kind, text, f, *args, **kw):
    try:
        f(*args, **kw)
    except kind as error:
        assert text in str(error), str(error)
        return error
    raise AssertionError(f"nothing was raised for {text}")
"""


@dataclass
class Ran:
    """What became of a job: the launcher's exit status, what each rank wrote, and the seconds it took."""

    rc: int
    out: list[str]
    err: list[str]
    seconds: float

    def __str__(self) -> str:
        outputs = [f"rank {k} wrote:\n{out}{err}" for k, (out, err) in enumerate(zip(self.out, self.err, strict=True))]
        return "\n".join([f"exit status {self.rc} after {self.seconds:.1f} s", *outputs])


def launcher() -> str:
    """Return the path of mpiexec; skip the test where there is no MPI to test with."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip(f"mpi4py is not installed; {errors.how_to_install('mpich')}")
    in_this_environment = Path(sys.executable).parent / "mpiexec"
    found = str(in_this_environment) if in_this_environment.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip(f"there is no mpiexec; {errors.how_to_install('mpich')}")
    return found


def cupy_with_nccl() -> ModuleType:
    """Return CuPy; skip the test where there is no GPU, NCCL or MPI to test with."""
    cupy = cupy_on_a_gpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of libraries that it does not find
        nccl = pytest.importorskip("cupy.cuda.nccl", reason="this CuPy has no binding of NCCL")
    if not nccl.available:
        pytest.skip(f"CuPy finds no NCCL; {errors.how_to_install('nccl12', 'nccl13')}")
    launcher()
    return cupy


def run_ranks(
    n: int,
    program: str | Path,
    timeout: float = 60.0,
    *,
    arguments: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    wrapper: tuple[str, ...] = (),
    meanwhile: Callable[[int], None] | None = None,
) -> Ran:
    """Run a program (its text, or the path of its file) as `n` ranks of one thread each.

    The rank's sys.path begins with this project, and its working directory is one that goes with the job. A job
    that has not ended after `timeout` seconds, or leaves a process, is ended and fails the test.

    Args:
        n: how many ranks.
        program: what they run.
        timeout: seconds for all of it.
        arguments: for the program, in sys.argv.
        flags: for mpiexec.
        wrapper: a command that runs the command of a rank.
        meanwhile: called with the process of mpiexec while the job runs.
    """
    command = (*wrapper, sys.executable)
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "launch.py").write_text(_LAUNCH)
        if not isinstance(program, Path):
            (place / "program.py").write_text(textwrap.dedent(program))
            program = place / "program.py"
        began = time.perf_counter()
        job = subprocess.Popen(  # noqa: S603  # our own launcher and interpreter, a test's program
            [launcher(), *flags, "-n", str(n), *command, "launch.py", str(ROOT), str(program), *arguments],
            cwd=place,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **_SETTINGS, _MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            if meanwhile is not None:
                meanwhile(job.pid)
            said, _ = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGTERM)
            said, _ = job.communicate()
            ran = _collect(place, n, -1, time.perf_counter() - began)
            pytest.fail(f"{n} ranks did not end within {timeout} s\n{ran}\n{said}")
        seconds = time.perf_counter() - began
        left = _processes_left(mark)
        ran = _collect(place, n, job.returncode, seconds)
        if left:
            pytest.fail(f"the job left processes: {left}\n{ran}\n{said}")
        return ran


_MARK = "GRADMGR_TEST_JOB"  # a variable in the environment of all processes of a job


def _processes_left(mark: str) -> list[str]:
    """Return the command lines of a job's processes, which are ended, if some live seconds after the job's end."""
    until = time.monotonic() + 3
    while left := list(_processes_with(mark)):
        if time.monotonic() > until:
            lines = [Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ") for process in left]
            for process in left:
                os.kill(process, signal.SIGKILL)
            return lines
        time.sleep(0.02)
    return []


def _processes_with(mark: str) -> Iterator[int]:
    if not Path("/proc/self/environ").exists():  # not Linux
        return
    entry = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone
            if entry in (folder / "environ").read_bytes().split(b"\0"):  # that of a process that ended is empty
                yield int(folder.name)


def _collect(place: Path, n: int, rc: int, seconds: float) -> Ran:
    def read(name: str) -> str:
        return (place / name).read_text() if (place / name).exists() else ""

    return Ran(rc, [read(f"out.{k}") for k in range(n)], [read(f"err.{k}") for k in range(n)], seconds)


def ranks(n: int, program: str, timeout: float = 60) -> Ran:
    """Run a program whose ranks must all end well."""
    ran = run_ranks(n, PRELUDE + textwrap.dedent(program) + "\nprint('end')", timeout)
    assert ran.rc == 0, str(ran)
    assert [out.strip().splitlines()[-1:] for out in ran.out] == [["end"]] * n, str(ran)
    return ran
