"""Ranks that die, end too early or never come: the others say which, and no job hangs, succeeds or leaves a process."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi import Ran, run_ranks

# How rank 1 ends, and what is to be said of it.
DEATHS = {
    "SIGKILL": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        r"was killed by SIGKILL \(signal 9\) while (computing|waiting)",
    ),
    "SIGSEGV": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        r"was killed by SIGSEGV \(signal 11\) while (computing|waiting)",
    ),
    "SIGTERM": (
        "os.kill(os.getpid(), signal.SIGTERM)",
        r"was killed by SIGTERM \(signal 15\) while (computing|waiting)",
    ),
    "sys.exit(3)": ("sys.exit(3)", "rank 1(:|, which came to) the end of the program|rank 1 .*backward that failed"),
    "os._exit(0)": ("os._exit(0)", "ended with exit status 0 while (computing|waiting)"),
    "exception": ("raise ValueError('bad apple')", "rank 1 .*(ended with ValueError: bad apple|backward that failed)"),
}

# What the others do at that time. `die()` returns on all ranks but rank 1.
SITUATIONS = {
    "compute": "die(); time.sleep(3); d.all_reduce(np.ones(3))",
    "collective": "die(); d.all_reduce(np.ones(3))",
    "recv": "die(); d.recv((3,), 'f8', 1) if me == 0 else d.barrier()",
    "begin": "backward(begin=die)",
    "gradient": "backward(gradient=die)",
    # The gradient that is not reached is to come: a rank that has given all it had may end without a line.
    "finish": "backward(reached=2, finish=die)",
}

PROGRAM = """
import os, signal, sys, time
import numpy as np
from gradmgr import GradManager, distributed as d, errors, tensor
from gradmgr.distributed import _monitor

me = int(os.environ["TEST_RANK"])

def die():
    if me == 1:
        time.sleep(0.3)  # the others wait by then
        {death}

class Callback:
    def __init__(self, begin=lambda: 0, gradient=lambda: 0, finish=lambda: 0):
        self.calls = begin, gradient, finish
    def begin(self, manager):
        self.calls[0]()
    def __call__(self, t, grad):
        self.calls[1]()
        return grad
    def finish(self, manager):
        self.calls[2]()

def backward(reached=3, bucket_bytes=1, **calls):
    ts = [tensor(np.ones(k + 1)) for k in range(3)]
    gm = GradManager().attach(ts, [Callback(**calls), d.make_allreduce_cb(bucket_bytes=bucket_bytes)])
    with gm:
        gm.backward(sum((t * t).sum() for t in ts[:reached]))
    return [t.grad for t in ts]

{before}
d.init(timeout={timeout})
d.barrier()
{after}
"""


def run(n: int, *, death: str = "", before: str = "", after: str = "", timeout: float = 15.0, **keywords: Any) -> Ran:
    """Run a program whose job must not succeed."""
    text = PROGRAM.format(death=death or "pass", before=before, after=after, timeout=timeout)
    found = run_ranks(n, text, 60, **keywords)
    assert found.rc != 0, str(found)
    return found


def line_of(found: Ran, *patterns: str, of: tuple[int, ...] = (0, 2)) -> str:
    """Return the line that one of these ranks wrote which has all the patterns."""
    for k in of:
        for line in found.err[k].splitlines() if k < len(found.err) else ():
            if all(re.search(pattern, line) for pattern in patterns):
                return line
    pytest.fail(f"no line of ranks {of} has {patterns}\n{found}")


def check_report(found: Ran, death: str) -> None:
    """Check that a rank that survived wrote which rank ended, how, what it was doing, and what to do."""
    remedy = "last checkpoint|[Ee]very rank must call|bad apple|the next backward works"
    line_of(found, r"\brank 1\b", DEATHS[death][1], remedy)
    assert found.seconds < 30, str(found)


QUICK = {
    ("SIGKILL", "compute"),
    ("SIGKILL", "collective"),
    ("SIGTERM", "finish"),
    ("os._exit(0)", "begin"),
    ("os._exit(0)", "collective"),
    ("exception", "gradient"),
}


def marks(*key: str) -> tuple[Any, ...]:
    return () if key in QUICK else (pytest.mark.slow,)


@pytest.mark.parametrize(
    ("death", "others"), [pytest.param(d, s, marks=marks(d, s)) for d in DEATHS for s in SITUATIONS]
)
def test_a_rank_that_ends_while_the_others_need_it(death: str, others: str) -> None:
    after = f"print(*_monitor.memory_files(os.getpid()), flush=True)\n{SITUATIONS[others]}"
    found = run(2 if (death, others) in QUICK else 3, death=DEATHS[death][0], after=after)
    check_report(found, death)
    files = {name for out in found.out for name in out.split() if name.startswith("/dev/shm/")}  # noqa: S108  # MPI's choice
    assert not any(map(os.path.exists, files)), str(found)


def test_a_rank_that_has_given_all_it_had_ends_alone() -> None:
    found = run(3, death="sys.exit(3)", after="print(backward(bucket_bytes=1000, finish=die)[2].numpy())")
    assert found.rc == 3
    assert [found.out[k].strip() for k in (0, 2)] == ["[2. 2. 2.]"] * 2, str(found)
    assert not any(found.err), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("others", SITUATIONS)
@pytest.mark.parametrize("death", DEATHS)
def test_where_the_launcher_does_not_clean_up(death: str, others: str) -> None:
    found = run(3, death=DEATHS[death][0], after=SITUATIONS[others], flags=("-disable-auto-cleanup",))
    check_report(found, death)


@pytest.mark.parametrize(
    ("death", "end"),
    [
        pytest.param("SIGKILL", r"was killed by SIGKILL \(signal 9\)"),
        pytest.param("SIGSEGV", r"was killed by SIGSEGV \(signal 11\)", marks=pytest.mark.slow),
        pytest.param("SIGTERM", r"was killed by SIGTERM \(signal 15\)", marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", "ended with exit status 3", marks=pytest.mark.slow),
        pytest.param("os._exit(0)", "ended with exit status 0"),
        pytest.param("exception", "ended with exit status 1", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_ends_before_init(death: str, end: str) -> None:
    found = run(3, death=DEATHS[death][0], before="time.sleep(me == 1); die()", timeout=20)
    line_of(found, rf"distributed.init\(\) waited .*rank 1 {end} before it called it", "Every rank must call")
    assert found.seconds < 15, str(found)


# ---------------------------------------------------------------- ranks that do not come


def test_a_rank_that_never_calls_init() -> None:
    found = run(2, before="if me == 1: time.sleep(40)", timeout=2)
    line_of(found, "timeout being 2 s; rank 1 .* runs, and has not called it", "Every rank must call")
    assert found.seconds < 15, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["d.all_reduce(np.ones(2))", "d.barrier()", "d.recv(2, 'f8', 0)", "d.rank()"])
def test_a_rank_that_uses_the_ranks_before_init(call: str) -> None:
    found = run(2, before=f"if me == 1: time.sleep(1); {call}", timeout=20)
    line_of(found, r"DistributedError: the ranks are not connected; call gradmgr.distributed.init\(\)", of=(1,))
    line_of(found, "rank 1 ended with exit status 1 before it called it", "Every rank must call")
    assert found.seconds < 15, str(found)


def test_a_rank_that_is_killed_in_init() -> None:
    """Inside of MPI_Init, where no Python runs."""
    kill = "if me == 1: signal.setitimer(signal.ITIMER_REAL, 4)"  # by SIGALRM; time enough on a busy machine
    found = run(3, before=f"{kill}\nif me == 0: time.sleep(8)", timeout=30)
    line_of(
        found, r"rank 1 .*was killed by SIGALRM \(signal 14\) while waiting for .* in distributed.init", "checkpoint"
    )
    assert found.seconds < 25, str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ["d.all_reduce(np.ones(3))", "d.barrier()", "d.all_gather(np.ones(3))", "d.recv(3, 'f8', 1)", "backward()"]
)
def test_a_rank_that_misses_a_call(call: str) -> None:
    found = run(2, after=f"time.sleep(20) if me == 1 else {call}", timeout=2)
    line_of(
        found, "the timeout being 2 s", r"rank 1 had not arrived and did not answer: computing \(its last call", "init"
    )
    assert found.seconds < 15, str(found)


@pytest.mark.slow
def test_a_rank_that_is_stopped() -> None:
    found = run(2, after="if me == 1: os.kill(os.getpid(), signal.SIGSTOP)\nd.barrier()", timeout=2)
    line_of(found, "rank 1 had not arrived .*, and its process is stopped by a signal")
    assert found.seconds < 15, str(found)


@pytest.mark.slow
def test_ranks_that_compute_longer_than_the_timeout_after_another_ended() -> None:
    found = run(3, death="os._exit(0)", after="die(); time.sleep(40)", timeout=3)
    line_of(found, "rank 1 .*ended with exit status 0", "ranks 0, 2 will raise RankFailedError in the next call")
    line_of(found, "ranks 0, 2 did not end within the timeout of 3 s after rank 1 .* had ended", r"init\(timeout=")
    assert found.seconds < 20, str(found)


@pytest.mark.slow
def test_several_ranks_that_die() -> None:
    found = run(3, after="if me: os.kill(os.getpid(), signal.SIGKILL)\nd.barrier()")
    line_of(found, r"rank [12] .*was killed by SIGKILL", of=(0,))
    found = run(3, after="if not me: os.kill(os.getpid(), signal.SIGKILL)\nd.barrier()")
    line_of(found, r"rank 0 .*was killed by SIGKILL \(signal 9\) while", "checkpoint", of=(1, 2))


def test_ranks_that_leave_together_need_nobody() -> None:
    found = run_ranks(2, PROGRAM.format(death="", before="", timeout=20, after="d.barrier(); os._exit(0)"))
    assert (found.rc, found.err) == (0, ["", ""]), str(found)


# Two names of this machine, which MPICH takes for two machines.
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 1], ids="{} ranks on each machine".format)
@pytest.mark.parametrize("death", ["SIGKILL", "sys.exit(3)", "os._exit(0)", "exception"])
def test_ranks_on_two_machines(death: str, count: int) -> None:
    flags = ("-launcher", "fork", "-hosts", f"localhost:{count},127.0.0.1:{count}")
    found = run(2 * count, death=DEATHS[death][0], after="die(); d.barrier()", timeout=3, flags=flags)
    late = "rank 1 had not arrived and did not answer" if (count, death) == (1, "os._exit(0)") else "(?!)"
    lone = (1,) if (count, death) == (1, "SIGKILL") else ()  # the monitor of a machine of which no rank is left
    line_of(found, f"{DEATHS[death][1]}|{late}", of=(0, 2, 3, *lone))
    assert found.seconds < 30, str(found)


# ---------------------------------------------------------------- the launcher, the monitor, signals


def when_written(name: str, act: Callable[[int], None]) -> Callable[[int], None]:
    """Return what to do meanwhile: wait for a file that a rank writes, then act on the process of mpiexec."""

    def meanwhile(process: int) -> None:
        folder, until = Path(f"/proc/{process}/cwd").resolve(), time.monotonic() + 20
        while not (folder / name).exists():
            assert time.monotonic() < until, "the ranks did not come so far"
            time.sleep(0.02)
        time.sleep(0.3)
        act(process)

    return meanwhile


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


READY = "open('ready', 'w').close()\n"


@pytest.mark.parametrize(
    ("name", "others"),
    [
        pytest.param(name, others, marks=() if (name, others) == ("SIGKILL", "compute") else pytest.mark.slow)
        for name in ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
        for others in ("compute", "collective", "init")
    ],
)
def test_the_launcher_is_killed(name: str, others: str) -> None:
    does = {"compute": "time.sleep(40)", "collective": "time.sleep(40) if me else d.barrier()", "init": ""}[others]
    before = f"{READY}if me: time.sleep(40)\n" if others == "init" else ""
    number = signal.Signals[name]
    meanwhile = when_written("ready", lambda process: os.kill(process, number))
    found = run(2, before=before, after=READY + does, timeout=20, meanwhile=meanwhile)
    if others != "init":
        said = {"SIGTERM": r"was killed by SIGTERM \(signal 15\) while", "SIGINT": "KeyboardInterrupt"}
        line_of(
            found,
            said.get(name, r"the launcher of the ranks \(process \d+ on .* ended, .*rank 1 was computing"),
            of=(0, 1),
        )
    assert found.seconds < 20, str(found)


@pytest.mark.slow
def test_the_launcher_of_this_machine_is_killed() -> None:
    """Under MPICH a process between mpiexec and the ranks, without which nobody would end them."""
    meanwhile = when_written("ready", lambda process: os.kill(children(process)[0], signal.SIGKILL))
    found = run(2, after=f"{READY}time.sleep(40)", meanwhile=meanwhile)
    line_of(found, r"the launcher of the ranks \(process \d+ on .* ended, .*rank 1 was computing", of=(0, 1))


def test_without_the_monitor_the_ranks_notice_themselves() -> None:
    kill = """
for folder in os.listdir("/proc"):
    try:
        line = open(f"/proc/{folder}/cmdline").read()
        ours = os.environ["GRADMGR_TEST_JOB"] in open(f"/proc/{folder}/environ").read()
    except OSError:
        continue
    if me == 0 and "_monitor.py" in line and ours:
        os.kill(int(folder), signal.SIGKILL)
d.barrier()
die()
d.barrier()
"""
    # Without the monitor MPICH's launcher notices too, and tells the others by a signal, instead of ending them.
    ignore = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
    found = run(2, death="os._exit(0)", before=ignore, after=kill, flags=("-disable-auto-cleanup",))
    line_of(found, "RankFailedError: rank 1 ended with exit status 0 while computing", "checkpoint")
    assert "gradmgr.distributed: " not in found.err[0], str(found)


@pytest.mark.slow
def test_ranks_behind_a_shell_of_each() -> None:
    found = run(2, death="os._exit(0)", after="die(); time.sleep(1)", wrapper=("sh", "-c", '"$@"; exit $?', "sh"))
    line_of(found, "gradmgr.distributed: rank 1 .* ended with exit status 0", "rank 0 will raise")


def test_the_users_handlers_of_signals_are_kept() -> None:
    after = """
assert signal.getsignal(signal.SIGTERM) is handle
if me == 1:
    os.kill(os.getpid(), signal.SIGTERM)
d.barrier()
"""
    before = "def handle(*_):\n    print('saved', flush=True)\n    sys.exit(5)\nsignal.signal(signal.SIGTERM, handle)\n"
    found = run(2, before=before, after=after)
    assert found.out[1] == "saved\n", str(found)
    line_of(found, "rank 0: barrier; rank 1: the end of the program")


@pytest.mark.slow
def test_a_rank_that_is_told_may_save_what_it_has() -> None:
    after = """
die()
try:
    d.barrier()
except errors.RankFailedError as error:
    time.sleep(4)  # longer than the timeout
    open("saved", "w").write(str(error))
    print("saved", flush=True)
    raise
"""
    found = run(2, death="os._exit(0)", after=after, timeout=2)
    assert found.out[0] == "saved\n", str(found)
    line_of(found, "RankFailedError: rank 1 ended with exit status 0")


# ---------------------------------------------------------------- after the end


@pytest.mark.slow
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit"])
def test_a_rank_that_is_interrupted_as_it_waits_for_the_end(error: str) -> None:
    after = f"""
def interrupt(*_):
    raise {error}("bad pear")
if me == 1:
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
else:
    time.sleep(1.5)
"""
    line_of(run(2, after=after), f"^{error}: bad pear", of=(1,))


@pytest.mark.slow
def test_a_rank_that_is_interrupted_in_finalize() -> None:
    after = """
from gradmgr.distributed import _world
def interrupt(world):
    raise KeyboardInterrupt("bad plum")
if me == 1:
    _world._World.close = interrupt
d.finalize()
"""
    found = run(2, after=after)
    line_of(found, "^KeyboardInterrupt: bad plum", of=(1,))
    assert found.seconds < 30, str(found)


@pytest.mark.slow
def test_use_after_the_end() -> None:
    """After finalize, in functions of atexit that run later, in __del__ as the interpreter ends, with old groups."""
    before = """
import atexit
def late():
    for f in (lambda: d.all_reduce(np.ones(2)), d.barrier, d.rank, d.finalize):
        try:
            f()
        except errors.DistributedError as error:
            print("late", "come to its end" in str(error), flush=True)
atexit.register(late)
class Last:
    def __del__(self, barrier=d.barrier, error=errors.DistributedError, write=os.write):
        try:
            barrier()
        except error as found:
            write(1, f"last {'come to its end' in str(found)}\\n".encode())
"""
    after = """
old = d.new_group([0, 1])
d.finalize()
for group in (None, old):
    try:
        d.all_reduce(np.ones(2), group=group)
    except errors.DistributedError as error:
        print("after", "init()" in str(error), flush=True)
d.init()
try:
    d.all_reduce(np.ones(2), group=old)
except errors.DistributedError as error:
    print("old", "new_group again" in str(error), flush=True)
d.barrier()
holder = [Last()]
holder.append(holder)  # a cycle, which is freed when the interpreter ends
atexit.register(d.barrier)  # runs while the ranks are connected
"""
    found = run_ranks(2, PROGRAM.format(death="", before=before, after=after, timeout=10))
    want = ["after True"] * 2 + ["old True"] + ["late True"] * 4 + ["last True"]
    assert (found.rc, [out.splitlines() for out in found.out]) == (0, [want] * 2), str(found)


@pytest.mark.slow
def test_mpi_that_the_program_finalized_itself() -> None:
    after = "from mpi4py import MPI\nMPI.Finalize()\nd.barrier()"
    found = run(2, after=after)
    line_of(found, r"DistributedError: MPI.Finalize\(\) was called")
    found = run_ranks(2, PROGRAM.format(death="", before="", after=after.replace("d.barrier()", ""), timeout=10))
    assert (found.rc, found.err) == (0, ["", ""]), str(found)
