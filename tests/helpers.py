"""What tests of several folders use: the project's folder, functions run in threads."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]


def in_threads(count, function):
    """Run function(k) in `count` threads that start together; give their results, or the first exception."""
    gate = threading.Barrier(count)

    def run(k):
        gate.wait()
        return function(k)

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(run, k) for k in range(count)]]


def in_a_thread(function, *args):
    """Run a function in a thread of its own, with a context of its own."""
    (result,) = in_threads(1, lambda _: function(*args))
    return result


def copies(pool, function, count):
    """Run function(k) in workers that carry this context."""
    futures = [pool.submit(contextvars.copy_context().run, function, k) for k in range(count)]
    return [future.result() for future in futures]
