"""What tests of several folders share: the project folder, checks of many cases, gradients, random numbers, threads."""

from __future__ import annotations

import contextvars
import inspect
import random
import threading
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import guard
import numpy as np
import pytest

from gradmgr import GradManager, Tensor, tensor
from gradmgr._engine import context
from gradmgr._engine.tensor import raw

ROOT = Path(__file__).parents[1]


def assert_no_recorder() -> None:
    """Raise AssertionError if a recorder is current, after removing it so that what follows starts clean."""
    left = context.current()
    if left is not None:
        context._current.set(None)
        raise AssertionError(f"the test left {left!r} current")


def label(case: tuple[Any, ...]) -> str:
    """Return the name of a case, such as "sin-scalar-float32"."""
    return "-".join(getattr(part, "__name__", str(part)) for part in case)


def each_case(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a check on every case; a case is a sample, or a tuple of a sample and further arguments.

    One test holds all cases of one op: a test for each case would take pytest longer than the checks themselves. Every
    case runs, whatever fails before it. The failures are raised together, and each names its case.
    """
    by_op: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        case = case if isinstance(case, tuple) else (case,)
        by_op.setdefault(case[0].name, []).append(case)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def test(op: str, **fixtures: Any) -> None:
            failures = []
            for case in by_op[op]:
                try:
                    check(*case, **fixtures)
                    assert_no_recorder()
                except Exception as error:
                    error.add_note(f"in the case {label(case)}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(by_op[op])} cases fail", failures)

        given = list(inspect.signature(check).parameters.values())
        count = len(next(iter(by_op.values()))[0])
        op = inspect.Parameter("op", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([op, *given[count:]])  # type: ignore[attr-defined]  # pytest reads it
        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        test.__dict__.update(check.__dict__)  # its marks
        return pytest.mark.parametrize("op", by_op)(test)

    return decorate


def value_and_gradients(
    function: Callable[..., Any], *inputs: Any, dy: Any = None
) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Return the value of function(*inputs) and what a backward from it gives to each input, None where nothing.

    A Tensor is given to the function itself, and its `.grad` is None afterwards; other inputs are copied into Tensors.
    The cotangent is `dy`, or `dy` of the result where that is a function, or ones.
    """
    leaves = [x if isinstance(x, Tensor) else tensor(x) for x in inputs]
    gm = GradManager().attach(leaves)
    with gm:
        y = function(*leaves)
        if callable(dy):
            dy = dy(y)
        gm.backward(y, np.ones(y.shape, y.dtype) if dy is None else dy)
    found = [None if t.grad is None else t.grad.numpy() for t in leaves]
    for t in leaves:
        t.grad = None
    return y.numpy(), found


def gradients(function: Callable[..., Any], *inputs: Any, dy: Any = None) -> list[np.ndarray | None]:
    """Return what a backward from function(*inputs) gives to each input; see value_and_gradients."""
    return value_and_gradients(function, *inputs, dy=dy)[1]


def gradient(function: Callable[..., Any], x: Any, dy: Any = None) -> np.ndarray | None:
    """Return what a backward from function(x) gives to x; see value_and_gradients."""
    (found,) = gradients(function, x, dy=dy)
    return found


def assert_allclose(found: Any, expected: Any, rtol: float = 1e-7, atol: float = 0.0, **options: Any) -> None:
    """Assert what `np.testing.assert_allclose` does; where all is close and finite, in 15 µs instead of 100.

    Tests of random programs compare some hundred thousand arrays.
    """
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape == b.shape and a.dtype is b.dtype and a.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            distance = np.abs(a - b)
            if (distance <= atol + rtol * np.abs(b)).all() and np.isfinite(distance).all():
                return
    np.testing.assert_allclose(found, expected, rtol, atol, **options)


def assert_close(found: Any, expected: Any) -> None:
    """Assert that two arrays or Tensors are equal to 1e-9 of the largest element."""
    found, expected = raw(found), raw(expected)
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * (1 + np.max(np.abs(expected), initial=0)))


def assert_close_to_8_digits(found: Any, expected: Any) -> None:
    """Assert that values agree to a relative error of 1e-8, or an absolute one of 1e-9."""
    assert_allclose(found, expected, rtol=1e-8, atol=1e-9)


def tracks(manager: GradManager, t: Tensor) -> bool:
    """Return whether a manager, which records, tracks a tensor."""
    return manager._tape.node_id_of(t) is not None


def pop_grad(t: Tensor) -> Tensor | None:
    """Return `t.grad`, which is None afterwards, so that the next gradient is not added to it."""
    grad, t.grad = t.grad, None
    return grad


def identity(t: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient: a callback that changes nothing."""
    return grad


def wave(*shape: int, at: float = 0.0) -> np.ndarray:
    """Return an array of a shape whose numbers are known and all different."""
    return np.sin(np.arange(1, 1 + np.prod(shape)) * 0.7 + at).reshape(shape)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return an array of normally distributed random numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def seeded_random(seed: int) -> random.Random:
    """Return Python's random number generator with a seed."""
    return random.Random(seed)  # noqa: S311  # nothing here is secret


def host(value: Any) -> Any:
    """Return the array of a Tensor or of a guard array, without a call that the guard would count or refuse."""
    value = value._array if isinstance(value, Tensor) else value
    return value._host if isinstance(value, guard.ndarray) else value


def in_threads(count, function):
    """Run function(k) in `count` threads that start together; return their results, or raise the first exception."""
    start = threading.Barrier(count)

    def run(k):
        start.wait()
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


def cupy_on_a_gpu() -> ModuleType:
    """Return CuPy; skip the test, or the whole module where it is called there, if there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns on import where it finds no CUDA
        cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("CuPy finds no GPU", allow_module_level=True)
    return cupy
