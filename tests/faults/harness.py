"""Interrupts a program at a numbered place, and says what is wrong afterwards.

A program runs once untouched, while the places where an exception can strike are counted: the beginning of each of
gradmgr's functions, each of its lines, and each call of a C function from there, before it (as an allocation fails) and
after it (where CPython calls signal handlers). Then it runs once for each place, and at that place an exception is
raised. When the exception has left the program, the objects that the program works with are as they were before a
part of the program or after it; nothing is current, no lock held, no file left; and the program, run again with the
same objects, gives bit for bit what it gives after an uninterrupted run.

No place: a line that only leaves a with block, the line `try:`, and the calls of a lock's `release` and `__exit__`.
CPython calls no signal handler there and allocates nothing, and what a trace function raised no code could catch. Nor
the jump back in a comprehension that is part of its function's code, as from Python 3.12 on: what a trace function
raises there leaves with blocks without a call of `__exit__` (CPython 3.13.0); what a signal handler raises does not,
where the comprehension has no `if` (`tests/repo/test_architecture.py`).

An exception at the very beginning of `__enter__`, where the object took effect when it was made, cannot be caught by
Python code. The same goes for `release` and its like, which programs call by hand. Where the program itself called it,
such places are counted apart: there everything must be right once the block is left by hand and the managers are
released.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import gradmgr
from gradmgr import GradManager, manager
from gradmgr._arrays import captured, listening
from gradmgr._engine import context, observers, turns, write_lock
from gradmgr._engine.history import modes
from gradmgr.profiler import _collect

# A run that takes longer hangs.
SECONDS = 20


class Program:
    """What is interrupted. The constructor makes its objects; it is not interrupted."""

    managers: Sequence[GradManager] = ()
    # It calls what takes effect at once, before its own with block or try statement begins: a signal in between is for
    # the program itself to deal with (`leave`).
    takes_effect_when_called = False

    def run(self, mark: Callable[[], None]) -> None:
        """Do the work; `mark()` is called between two parts of it, each of which is done as a whole or not at all."""
        raise NotImplementedError

    def leave(self) -> None:
        """Release what a run entered and, as it was interrupted at the beginning of that, did not release."""
        for each in self.managers:
            each.release()

    def state(self) -> dict[str, Any]:
        """Return, in parts by name, what a user can see of the objects, in a form that can be compared."""
        raise NotImplementedError


# ---------------------------------------------------------------- places


# `exit_or_undo` finds the `__exit__` of a block that is not entered yet.
_UNGUARDED = ("__enter__", "exit_or_undo", "release", "exit_dual_level")


@dataclass(frozen=True)
class Place:
    """A place in gradmgr where an exception strikes."""

    event: str  # "call", "line", "c_call", "c_return"
    code: types.CodeType
    line: int
    called: str  # the C function
    is_entry: bool  # at the very beginning of the function

    def __str__(self) -> str:
        name = self.code.co_filename.rpartition("/gradmgr/")[2]
        return f"{self.event}{self.called and ' of ' + self.called} at {name}:{self.line} in {self.code.co_qualname}"

    def is_unguarded(self) -> bool:
        """Tell whether no code of a context manager can catch what is raised here."""
        return self.is_entry and self.code.co_name in _UNGUARDED


_LOCKS = (type(threading.Lock()), type(threading.RLock()))


@functools.cache
def _exempt_in(code: types.CodeType) -> frozenset[int]:
    """Return where in its bytecode a function leaves with blocks, and where it does nothing, as in the line `try:`."""
    steps = list(dis.get_instructions(code))
    has_comprehension = any(step.opname == "LOAD_FAST_AND_CLEAR" for step in steps)  # inlined
    nothing = ("NOP", "JUMP_BACKWARD") if has_comprehension else ("NOP",)
    found = {step.offset for step in steps if step.opname in nothing}
    for k, step in enumerate(steps):
        after = [s for s in steps[k : k + 8] if s.opname not in ("NOP", "SWAP", "CACHE", "PRECALL")]
        nones = [s.opname == "LOAD_CONST" and s.argval is None for s in after[:3]]
        names = [s.opname for s in after]
        if (nones == [True] * 3 and names[3:4] == ["CALL"]) or names[:2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
            found.add(step.offset)
    return frozenset(found)


@functools.cache
def _entries_of(code: types.CodeType) -> frozenset[int]:
    """Return where in its bytecode the first line of a function begins, and all that comes before."""
    steps = list(dis.get_instructions(code))
    start = next((k for k, step in enumerate(steps) if step.opname == "RESUME"), 0)
    return frozenset([step.offset for step in steps[: start + 2]])


class Interruption:
    """Counts the places that a with block comes to, and raises an exception at some of them.

    Python calls a trace function no more after it has raised, and a profile function neither; each sets the other
    anew, so that a second exception can be raised where the first one is dealt with.
    """

    def __init__(self, at: Sequence[int] = (), error: Callable[[str], BaseException] = MemoryError) -> None:
        self.count = 0
        self.struck: list[Place] = []
        self.owners: list[Any] = []  # the context managers that could do nothing about it
        self._at = sorted(at, reverse=True)
        self._next = self._at.pop() if self._at else -1
        self._error = error
        self._exempt: dict[types.CodeType, frozenset[int] | None] = {}  # of gradmgr's functions; else None
        self._is_traced = self._is_profiled = True

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._on_profile)
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    # These are called most of the time, so they call nothing themselves where there is nothing to do.

    def _on_call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        try:
            exempt = self._exempt[frame.f_code]
        except KeyError:
            is_ours = _is_in_gradmgr(frame)
            exempt = self._exempt[frame.f_code] = _exempt_in(frame.f_code) if is_ours else None
        if exempt is None:
            return None
        if not self._is_profiled:
            self._profile_again()
        self.count += 1
        if self.count == self._next:
            self._strike("call", frame)
        return self._on_line

    def _on_line(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lasti not in self._exempt[frame.f_code]:  # type: ignore[operator]  # of ours
            if not self._is_profiled:
                self._profile_again()
            self.count += 1
            if self.count == self._next:
                self._strike("line", frame)
        return self._on_line

    def _on_profile(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if self._exempt.get(frame.f_code) is None:
            return
        if not self._is_traced:
            self._trace_again(frame)
        if event == "c_return" or (event == "c_call" and not _is_exit_of_lock(arg)):
            self.count += 1
            if self.count == self._next:
                self._strike(event, frame, getattr(arg, "__name__", "?"))

    def _strike(self, event: str, frame: types.FrameType, called: str = "") -> None:
        self._next = self._at.pop() if self._at else -1
        self._is_traced, self._is_profiled = called != "", called == ""
        is_entry = event == "call" or (event == "line" and frame.f_lasti in _entries_of(frame.f_code))
        place = Place(event, frame.f_code, frame.f_lineno, called, is_entry)
        self.struck.append(place)
        if place.is_unguarded() and not self._is_ours(frame.f_back):
            self.owners.append(_owner_in(frame))
        raise self._error(f"injected: {place}")

    def _is_ours(self, frame: types.FrameType | None) -> bool:
        return frame is not None and self._exempt.get(frame.f_code) is not None

    def _profile_again(self) -> None:
        self._is_profiled = True
        sys.setprofile(self._on_profile)

    def _trace_again(self, frame: types.FrameType | None) -> None:
        self._is_traced = True
        sys.settrace(self._on_call)
        while frame is not None:
            if self._is_ours(frame):
                frame.f_trace = self._on_line
            frame = frame.f_back


def _is_exit_of_lock(function: Any) -> bool:
    return getattr(function, "__self__", None).__class__ in _LOCKS and function.__name__ in ("release", "__exit__")


# ---------------------------------------------------------------- what must be so when no program runs


class _OtherThread:
    """A thread that tells whether it can have the lock under which arrays are written."""

    def __init__(self) -> None:
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        self._can = True
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            self._can = write_lock.lock.acquire(timeout=2)
            if self._can:
                write_lock.lock.release()
            self._answered.release()

    def can_lock(self) -> bool:
        self._asked.release()
        self._answered.acquire()
        return self._can


@functools.cache
def _other_thread() -> _OtherThread:
    return _OtherThread()


def what_is_left() -> list[str]:
    """Return what a program has left behind, in words; nothing where all is as at the start of this process."""
    now = {
        "what is current": (context.current(), None),
        "modes": (modes._modes.get(), ()),
        "observers": (observers.observers(), ()),
        "the manager in backward": (manager._backwarding.get(), None),
        "profiled regions": (_collect._innermost.get(), {}),
        "multithreading": (turns.turns.parallel, True),
        "NumPy's error state": (np.geterr(), {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}),
        "a capture": (captured.capturing(), None),
        "a listener": (listening.listener(), None),
        "anomaly detection": (gradmgr.anomaly.is_anomaly_enabled(), False),
    }
    found = [f"{name}: {value!r}" for name, (value, usual) in now.items() if value != usual]
    return found if _other_thread().can_lock() else [*found, "the lock under which arrays are written is held"]


def _clean() -> None:
    """Make a clean start after a failure, so that what comes next is not blamed for it."""
    context._current.set(None)
    modes._modes.set(())
    observers._observers.set(())
    manager._backwarding.set(None)
    _collect._innermost.set({})
    turns.turns.parallel = True
    captured.set_capturing(None)
    listening.set_listener(None)
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")


class Folder:
    """A temporary folder, in which the files that a program leaves are found; the open files of the process, too."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)

    def close(self) -> None:
        self._folder.cleanup()

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))


def open_files() -> int:
    """Return how many files this process has open, where the system tells."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


# ---------------------------------------------------------------- one run


class TimedOut(BaseException):
    """A run takes too long."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimedOut in a block that takes longer."""

    def on_alarm(number: int, frame: Any) -> None:
        raise TimedOut(f"the run takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Let nothing but the program itself decide what runs: no collector; errors in `__del__` go unreported."""
    before = sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = before
        gc.enable()


class _Stop(BaseException):
    """Ends a run at a mark."""


def _no_mark() -> None:
    pass


@dataclass
class Reference:
    """What uninterrupted runs of a program do."""

    make: Callable[[], Program]
    places: int = 0  # how many places a run comes to
    seconds: float = 0.0  # how long a run takes
    states: list[dict[str, Any]] = field(default_factory=list)  # at the start, at each mark, and at the end
    following: list[dict[str, Any]] = field(default_factory=list)  # the same, and then at the end of another whole run


def reference(make: Callable[[], Program]) -> Reference:
    """Run a program uninterrupted: to each mark, and then once more."""
    found = Reference(make)
    for _ in range(3):  # what is made when it is first needed is made before places are counted
        make().run(_no_mark)
    _stop_at(found, 0)
    with quiet():
        program = make()
        start = time.perf_counter()
        program.run(_no_mark)
        found.seconds = time.perf_counter() - start
        program = make()
        with Interruption() as counted:
            program.run(_no_mark)
        found.places = counted.count
    for k in range(1, 1000):
        if not _stop_at(found, k):
            break
    return found


def _stop_at(found: Reference, k: int) -> bool:
    """Note the state at mark k, 0 for the start, and what a whole run makes of it; False where there is none."""
    program, left = found.make(), k

    def mark() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise _Stop

    stopped = True
    if k > 0:
        try:
            program.run(mark)
            stopped = False
        except _Stop:
            pass
    found.states.append(program.state())
    program.run(_no_mark)
    found.following.append(program.state())
    assert not what_is_left()
    return stopped


@dataclass
class Outcome:
    """What an interrupted run has left."""

    struck: list[Place]
    faults: list[str]  # what is wrong
    unguarded: bool = False  # blocks were left by hand, after an exception at the beginning of `__enter__`


def check(found: Reference, interrupt: Callable[[Program], Any]) -> Outcome:
    """Run a program with interruptions, and say what is wrong afterwards.

    Args:
        found: what uninterrupted runs do.
        interrupt: runs the program, catches what it raised, and returns an object with the `struck` places and the
            `owners` of with blocks that were not left.
    """
    program = found.make()
    files = open_files()
    with quiet(), limited(SECONDS):
        try:
            interrupted = interrupt(program)
            unguarded = bool(interrupted.owners)
            for owner in interrupted.owners:
                if owner is not None:
                    owner.__exit__(None, None, None)
            if unguarded:
                program.leave()
            faults = _faults(found, program)
            faults += _next_faults(found, program)
        except TimedOut as error:
            return Outcome([], [str(error)])
    if open_files() > files and not faults:
        program = None  # type: ignore[assignment]  # what it holds is closed
        gc.collect()
        if open_files() > files:
            faults.append("a file is open")
    if faults:
        _clean()
    return Outcome(interrupted.struck, faults, unguarded)


def _faults(found: Reference, program: Program) -> list[str]:
    faults = what_is_left()
    state = program.state()
    if state not in found.states:
        near = min((_different(state, each) for each in found.states), key=len)
        faults.append(f"{' and '.join(near)} between before and after")
    faults += [f"{each!r} is recording" for each in program.managers if each._recording()]
    return faults


def _different(state: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in state if state[name] != other[name]]


def _next_faults(found: Reference, program: Program) -> list[str]:
    """Run the program again, with the same objects."""
    state = program.state()
    expected = [after for before, after in zip(found.states, found.following, strict=True) if before == state]
    try:
        program.run(_no_mark)
    except Exception as error:  # whatever it is, it is a fault
        return [f"the next run raises {type(error).__name__}: {error}"]
    faults = [f"after the next run: {left}" for left in what_is_left()]
    if expected and program.state() not in expected:
        near = min((_different(program.state(), each) for each in expected), key=len)
        faults.append(f"the next run gives another {' and '.join(near)}")
    return faults


# ---------------------------------------------------------------- at numbered places


class _Raised:
    """An interrupted run: at numbered places."""

    def __init__(self, program: Program, at: Sequence[int], error: Callable[[str], BaseException]) -> None:
        interruption = Interruption(at, error)
        try:
            with interruption:
                program.run(_no_mark)
        except (MemoryError, KeyboardInterrupt):
            pass
        except Exception as raised:
            if not interruption.struck:
                raise
            _check_cause(raised)
        self.struck, self.owners = interruption.struck, interruption.owners


def _check_cause(raised: BaseException) -> None:
    """Raise again what does not come of the interruption."""
    seen: Any = raised
    while seen is not None:
        if isinstance(seen, (MemoryError, KeyboardInterrupt)):
            return
        seen = seen.__cause__ or seen.__context__
    raise raised


def interrupted_at(found: Reference, at: Sequence[int], error: Callable[[str], BaseException] = MemoryError) -> Outcome:
    """Run a program, raise an exception at each of these places, and say what is wrong afterwards."""
    return check(found, lambda program: _Raised(program, at, error))


# ---------------------------------------------------------------- at random times


# Where `numpy.errstate` is written, in Python: what strikes there leaves the error state as it is in the block, and no
# code outside can tell that.
_ERRSTATE = inspect.getsourcefile(np.errstate.__enter__)


class _Alarmed:
    """An interrupted run: by a signal, some time after it began, anywhere in the interpreter."""

    def __init__(self, program: Program, seconds: float) -> None:
        self.struck: list[Place] = []
        self.owners: list[Any] = []
        self._program = program
        self._running = False
        self._limiting = signal.getsignal(signal.SIGALRM)  # the handler of `limited`
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._limit = signal.getitimer(signal.ITIMER_REAL)[0]
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            self._running = True
            program.run(_no_mark)
        except KeyboardInterrupt:
            pass
        except Exception as raised:
            _check_cause(raised)
        finally:
            self._running = False
            self._limit_again()

    def _limit_again(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._limit)  # first: an alarm that has struck is not for `limited`
        signal.signal(signal.SIGALRM, self._limiting)

    def _on_alarm(self, number: int, frame: types.FrameType | None) -> None:
        if not self._running or frame is None or frame.f_code.co_filename == _ERRSTATE:
            return
        self._running = False
        self._limit_again()
        code = frame.f_code
        place = Place("alarm", code, frame.f_lineno, "", frame.f_lasti in _entries_of(code))
        self.struck.append(place)
        if place.is_unguarded() and not _is_in_gradmgr(frame.f_back):
            self.owners.append(_owner_in(frame))
        elif self._program.takes_effect_when_called and not _is_called_by_gradmgr(frame):
            self.owners.append(None)
        raise KeyboardInterrupt(f"injected: {place}")


def _owner_in(frame: types.FrameType) -> Any:
    """Return the context manager whose method a frame runs."""
    return frame.f_locals.get("self", frame.f_locals.get("scope"))


def _is_in_gradmgr(frame: types.FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "gradmgr"


def _is_called_by_gradmgr(frame: types.FrameType | None) -> bool:
    while frame is not None and not _is_in_gradmgr(frame):
        frame = frame.f_back
    return frame is not None


def alarmed(found: Reference, seconds: float) -> Outcome:
    """Run a program, send it a signal after so many seconds, and say what is wrong afterwards."""
    return check(found, lambda program: _Alarmed(program, seconds))
