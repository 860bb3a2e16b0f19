"""Large work in blocks: each stays in the processor's cache, and several threads take them in turn.

NumPy computes an expression one ufunc after another, each over whole arrays and on one thread. A
kernel that does all of it block by block reads memory once, writes it once, and its scratch memory
is too small to be given back to the system and cleared again, which costs more than the arithmetic.
NumPy's loops run without the interpreter's lock, so that threads help where blocks are large.

How work is cut depends on its shape alone: results are the same for any number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any

import numpy as np

from gradmgr._arrays.atomic import Call, run_quietly

# Bytes of one array of which a block is made: with a few more like it about the 1 MiB of cache that a core has. Half of
# it takes 5 to 15 % longer on one thread, and two threads then take as long as one.
BLOCK = 1 << 18
# From this number of blocks on, waking a thread (20 us) pays.
_MANY = 4


class _Team:
    """The threads that help the calling thread to compute; they are started when first needed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 1  # threads that may compute at once, the one that asks among them
        self.pool: Any = None

    def resize(self, size: int) -> None:
        with self.lock:
            pool, self.pool, self.size = self.pool, None, size
        if pool is not None:
            pool.shutdown(wait=False)  # what it was given is still done

    def helpers(self) -> Any:
        """Return the pool of the others."""
        with self.lock:
            if self.pool is None:
                from concurrent.futures import ThreadPoolExecutor  # deferred: it takes 5 ms to import

                self.pool = ThreadPoolExecutor(max(self.size - 1, 1), thread_name_prefix="gradmgr")
            return self.pool

    def forget(self) -> None:
        """Be new in a child process, which has none of the threads."""
        self.lock = threading.Lock()
        self.pool = None


_team = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.forget)


def get_num_threads() -> int:
    """Return how many threads a large function of gradmgr uses: 1, as in NumPy, unless `set_num_threads` was called.

    >>> import gradmgr
    >>> gradmgr.get_num_threads()
    1
    """
    return _team.size


def set_num_threads(n: int) -> None:
    """Let large functions of gradmgr use `n` threads from now on, in the whole process.

    These are the functions of `gradmgr.nn`, the optimisers, and others that say so. NumPy's own have one thread, but
    for BLAS, which this does not set: set OMP_NUM_THREADS before NumPy is imported, or use threadpoolctl. Results do
    not depend on the number.

    Args:
        n: at least 1; 1 starts no thread.

    Raises:
        TypeError: `n` is not an integer.
        ValueError: `n` is less than 1.

    >>> import gradmgr
    >>> gradmgr.set_num_threads(2)
    >>> gradmgr.get_num_threads()
    2
    >>> gradmgr.set_num_threads(1)
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"set_num_threads takes a number of threads; found {type(n).__name__}")
    if n < 1:
        raise ValueError(f"set_num_threads takes a number of threads, at least 1; found {n}")
    _team.resize(int(n))


def blocks(count: int, nbytes: int, size: int = BLOCK) -> list[slice]:
    """Cut a leading axis into slices.

    Args:
        count: its length.
        nbytes: of the whole array.
        size: bytes of a block, about; one of the leading axis at least.
    """
    each = max(1, size * count // max(nbytes, 1))
    return [slice(start, start + each) for start in range(0, count, each)]


def mapped(compute: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function that works element by element: on large plain arrays of one shape block by block.

    What it makes on its way then stays in the cache. Anything else, Tensors among it, goes to compute(*arrays) as it
    is; the function must be quiet by itself and not write to what it is given.
    """
    first = arrays[0]
    if first.__class__ is not np.ndarray or first.nbytes <= BLOCK:
        return compute(*arrays)
    for a in arrays:
        if a.__class__ is not np.ndarray or a.shape != first.shape:
            return compute(*arrays)
    if not first.flags.c_contiguous and all(a.flags.f_contiguous for a in arrays):
        return mapped(compute, *[a.T for a in arrays]).T
    flat = [a.reshape(-1) for a in arrays]
    parts = blocks(first.size, first.nbytes)
    start = compute(*[a[parts[0]] for a in flat])
    made = np.empty(first.shape, start.dtype)
    out = made.reshape(-1)
    out[parts[0]] = start

    def work(part: slice) -> None:
        out[part] = compute(*[a[part] for a in flat])

    run(work, parts[1:])
    return made


def run(work: Callable[[slice], None], parts: Iterable[slice]) -> None:
    """Call work(part) for each part, in any order and on any of the threads; returns when all are done.

    Only for plain arrays: nothing is recorded on another thread. What one part raises is raised, the rest being
    left; NumPy's error state is that of the caller.
    """
    waiting = deque(parts)
    many = min(_team.size, len(waiting))
    if many < 2 or len(waiting) < _MANY:
        for part in waiting:
            work(part)
        return

    def take() -> None:
        while True:
            try:
                part = waiting.popleft()
            except IndexError:
                return
            try:
                work(part)
            except BaseException:
                waiting.clear()
                raise

    others = []
    try:
        helpers = _team.helpers()
        for _ in range(many - 1):  # one by one, as those that were asked before an error are waited for, too
            others.append(helpers.submit(copy_context().run, take))  # noqa: PERF401  # see above
    except RuntimeError:  # the interpreter ends, or another thread has just changed their number
        pass
    try:
        take()
    finally:  # a thread that has not begun is cancelled; one that has may still be writing
        failed = [other for other in others if not other.cancel() and other.exception() is not None]
    if failed:
        try:
            failed[0].result()  # raises
        finally:
            del failed, others  # they hold what is raised, which refers to this frame


def run_lanes(lanes: Sequence[Sequence[Call]], last: Sequence[Call]) -> None:
    """Make the calls of each lane, one after another, on a thread of the lane's own; and then the last ones.

    Floating-point errors are ignored. An exception that strikes here is raised when all calls are made: see `atomic`.
    """
    if not lanes:
        run_quietly(last)
        return
    rest = _Lanes(lanes, last)
    try:
        rest.start()
        rest.finish()
    except BaseException:
        rest.finish()
        raise
    finally:
        rest.errors.clear()  # their tracebacks refer to what holds them


class _Lanes:
    """Calls to make on several threads. Each iterator knows how far it is, so `finish` may be called again."""

    def __init__(self, lanes: Sequence[Sequence[Call]], last: Sequence[Call]) -> None:
        self._lanes = [iter(lane) for lane in lanes]
        self._last = iter(last)
        self._owners: dict[int, str] = {}  # which thread makes the calls of a lane: the first to enter itself here
        self._done = [threading.Event() for _ in lanes]
        self.errors: list[BaseException] = []

    def start(self) -> None:
        """Let other threads begin; what none of them does is left to `finish`."""
        try:
            helpers = _team.helpers()
            for k in range(1, len(self._lanes)):
                helpers.submit(self._help, k)
        except RuntimeError:  # the interpreter ends, or another thread has just changed their number
            pass

    def _help(self, k: int) -> None:
        if self._owners.setdefault(k, "helper") == "helper":
            try:
                run_quietly(self._lanes[k])
            except BaseException as error:  # it is raised where the caller waits
                self.errors.append(error)
            finally:
                self._done[k].set()

    def finish(self) -> None:
        """Make the calls that no other thread makes; when those of the others are made, make the last ones."""
        for k, lane in enumerate(self._lanes):
            if self._owners.setdefault(k, "caller") == "caller":
                run_quietly(lane)
        for k, done in enumerate(self._done):
            if self._owners[k] != "caller":
                done.wait()
        if self.errors:
            raise self.errors[0]
        run_quietly(self._last)
