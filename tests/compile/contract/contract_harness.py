"""A program run as written and compiled, with the same changes between its calls, and compared after each of them.

What is compared is all that a user can reach: results, arguments, and what the function names, in closures, globals,
attributes and containers. Nothing here knows how `compile` works: that a call was replayed shows in that Python did not
run the function's code.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import enum
import functools
import importlib
import inspect
import os
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradmgr
from gradmgr import GradManager, Tensor, errors, nn, optim

LEVELS = {"plain": {"native": False}, "native": {"native": True, "exact": True}}
HERE = "# refused"  # ends the line of a program that its warning is to name


@dataclass
class Program:
    """A step as a user writes it, and what a user does around its calls.

    Attributes:
        step: the function that is compiled.
        args: returns the arguments of the call of a number, made anew.
        between: what is done before the call of a number.
        after: what is done with each result.
        around: returns the context of the call of a number.
        replays: how many of ten calls are replayed at least; 0 if the function is refused with one warning, None if it
            may be either, as the contract leaves it open.
        says: what the warning says besides the line, as a regular expression.
        raises: errors in which calls may end.
        code: the function whose runs are counted, if it is not the step.
    """

    step: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]
    between: Callable[[int], Any] = lambda k: None
    after: Callable[[Any], Any] = lambda result: None
    around: Callable[[int], Any] = lambda k: contextlib.nullcontext()
    replays: int | None = 5
    says: str = ""
    raises: tuple[type[BaseException], ...] = ()
    code: Callable[..., Any] | None = None


# ---------------------------------------------------------------- what a user can reach

_MODULES = ("", ".nn", ".optim", ".optim.lr_scheduler", ".function", ".distributions", ".graph", ".sparse", ".profiler")
PUBLIC = {
    kind
    for name in _MODULES
    for each, kind in vars(importlib.import_module(f"gradmgr{name}")).items()
    if isinstance(kind, type) and not each.startswith("_")
} | {type(gradmgr.numpy.sum), type(gradmgr.compile(abs))}
_SHARED = (Tensor, np.ndarray, list, dict, set, collections.deque)  # which of these are the same object is compared


def facts(**roots: Any) -> dict[str, Any]:
    """Return each part of some values by its path: type, dtype, shape, bits, and which objects are the same.

    In `args`, and in `result` where an argument is a Tensor, Tensors and plain arrays count as the same: the contract
    lets arrays arrive as Tensors.
    """
    found: dict[str, Any] = {}
    seen: dict[int, tuple[str, Any]] = {}  # which keeps objects alive, and their ids their own
    has_tensor = any(isinstance(part, Tensor) for part in _all_parts(roots.get("args")))
    todo = [(name, value, name == "args" or (name == "result" and has_tensor)) for name, value in roots.items()]
    while todo:
        path, value, is_loose = todo.pop()
        if isinstance(value, Tensor):
            value.numpy()  # ends a write in place, during which a Tensor waits for other threads, by another class
        kind = type(value)
        assert not _is_private(kind), f"{path} is a {kind.__name__}, a private class of gradmgr's"
        if isinstance(value, _SHARED) or _is_users(kind):
            if id(value) in seen:
                found[path] = "the same object as", seen[id(value)][0]
                continue
            seen[id(value)] = path, value
        found[path] = _fact(value, is_loose)
        todo += [(f"{path}.{key}", part, is_loose) for key, part in reversed(_parts(value))]
    return found


def _all_parts(value: Any) -> Iterator[Any]:
    yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from _all_parts(part)


def _is_private(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "gradmgr" and kind not in PUBLIC


def _is_users(kind: type) -> bool:
    return kind.__module__.split(".")[0] not in ("gradmgr", "numpy") and kind.__module__ not in sys.stdlib_module_names


def _fact(value: Any, is_loose: bool) -> Any:
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        a = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        assert not _is_private(type(a)), f"a Tensor holds a {type(a).__name__}"
        kind = "array" if is_loose else type(value).__name__
        tracked = isinstance(value, Tensor) and not is_loose and value.requires_grad
        if a.dtype.hasobject:
            return kind, a.shape
        if a.dtype.kind in "fc" and np.isnan(a).any():
            a = np.where(np.isnan(a), a.dtype.type(np.nan), a)  # the sign of a NaN has no meaning
        return kind, tracked, str(a.dtype), a.shape, a.tobytes()
    if isinstance(value, float):
        return "float", value.hex()
    if isinstance(value, (str, bytes, int, complex, bool, type(None), slice, enum.Enum)):
        return type(value).__name__, repr(value)
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, value))
    return type(value).__name__, len(value) if isinstance(value, (list, tuple, dict, collections.deque)) else None


def _parts(value: Any) -> list[tuple[Any, Any]]:  # noqa: C901  # one line for each kind
    kind = type(value)
    if isinstance(value, Tensor):
        return [("grad", value.grad)]
    if isinstance(value, np.ndarray):
        return [*enumerate(value.ravel().tolist())] if value.dtype.hasobject else []
    if isinstance(value, (dict, weakref.WeakValueDictionary)):
        return [*value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return [*enumerate(value)] + ([*vars(value).items()] if hasattr(value, "__dict__") else [])
    if isinstance(value, np.random.Generator):
        return [("state", value.bit_generator.state)]
    if isinstance(value, contextvars.ContextVar):
        return [("value", value.get(None))]
    if isinstance(value, weakref.ref):
        return [("of", value())]
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("func", value.__func__)]
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value) if value.__code__.co_filename.startswith(_HERE) else []
    if isinstance(value, nn.Module):
        public = [(key, part) for key, part in vars(value).items() if not key.startswith("_")]
        return [("state", value.state_dict()), *public]
    if isinstance(value, optim.Optimizer):
        return [("state", value.state_dict()), ("groups", value.param_groups)]
    if isinstance(value, (optim.lr_scheduler.LRScheduler, optim.GradScaler)):
        return [("state", value.state_dict())]
    if isinstance(value, GradManager):
        return [("attached", value.attached_tensors())]
    if isinstance(value, type) and _is_of_programs(value.__module__):
        return [(key, part) for key, part in vars(value).items() if not (key.startswith("__") or callable(part))]
    if isinstance(value, (types.ModuleType, type, enum.Enum)) or not _is_of_programs(kind.__module__):
        return []
    slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ()) if not name.startswith("__")]
    return [*getattr(value, "__dict__", {}).items(), *[(name, getattr(value, name, None)) for name in slots]]


_HERE = os.path.dirname(__file__)


def _is_of_programs(module: str) -> bool:
    return module.startswith(("contract_", "test_contract"))


def _parts_of_function(function: Any) -> list[tuple[Any, Any]]:
    names, code = function.__globals__, function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = [(f"<{name}>", cell.cell_contents) for name, cell in cells]
    return [
        *held,
        ("defaults", function.__defaults__),
        ("attributes", vars(function)),
        *[(name, names[name]) for name in code.co_names if name in names and _may_hold(names[name])],
    ]


def _may_hold(value: Any) -> bool:
    return not isinstance(value, types.ModuleType) and getattr(value, "__module__", "contract_").startswith("contract_")


# ---------------------------------------------------------------- a run


@dataclass
class History:
    """What a run of a program left: facts after each call and at the end, runs of its code, what it was warned of."""

    made: Program
    found: list[dict[str, Any]]
    ran: list[int]
    warned: list[str]


@contextlib.contextmanager
def runs_of(function: Callable[..., Any]) -> Iterator[list[int]]:
    """Count how often Python runs a function's own code in this thread, which nothing that the function reads shows."""
    count, code = [0], code_of(function)

    def watch(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code is code and event == "call":
            count[0] += 1

    sys.setprofile(watch)
    try:
        yield count
    finally:
        sys.setprofile(None)


def code_of(function: Any) -> types.CodeType:
    while not hasattr(function, "__code__"):
        held = getattr(function, "__func__", None) or getattr(function, "func", None)
        function = held or type(function).__dict__["__call__"]
    return function.__code__


def compiled(step: Callable[..., Any], level: str) -> Any:
    return gradmgr.compile(step, **LEVELS[level])


@contextlib.contextmanager
def compile_warnings() -> Iterator[list[str]]:
    """Note the text of each CompileWarning."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
    texts += [str(w.message) for w in found if issubclass(w.category, errors.CompileWarning)]


def history(make: Callable[[], Program], level: str | None, calls: int) -> History:
    """Run a program with fresh state; level None is that of the function as written."""
    made = make()
    step = made.step if level is None else compiled(made.step, level)
    found, ran, kept = [], [], []
    with np.errstate(all="ignore"), compile_warnings() as warned:
        for k in range(calls):
            args = made.args(k)
            made.between(k)
            with runs_of(made.code or made.step) as runs, made.around(k):
                try:
                    result = step(*args)
                except made.raises as error:
                    result = f"{type(error).__name__}: {error}"
            after = made.after(result)
            found.append(facts(args=args, result=result, after=after, step=made.step))
            ran += runs
            kept.append((args, result))
        found.append(facts(args=kept))  # what a user holds of earlier calls has not changed since
    return History(made, found, ran, warned)


def first_difference(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Say where two runs differ first, or return an empty text."""
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        for path in {**b, **a}:
            if a.get(path) != b.get(path):
                return f"after call {k}, {path}: {_shown(a.get(path))} instead of {_shown(b.get(path))}"
    return ""


def _shown(fact: Any) -> str:
    if fact and isinstance(fact[-1], bytes):
        *rest, dtype, shape, data = fact
        fact = *rest, dtype, np.frombuffer(data, dtype).reshape(shape).tolist()
    return f"{fact!s:.200}"


def check(make: Callable[[], Program], calls: int = 10, levels: Iterable[str] = tuple(LEVELS)) -> None:
    """Assert that a program does compiled what it does as written, and that it is replayed, or refused once by name."""
    expected = history(make, None, calls)
    for level in levels:
        run = history(make, level, calls)
        replayed, least, told = (
            run.ran.count(0),
            run.made.replays,
            f"{level}: runs in each call {run.ran}, {run.warned}",
        )
        difference = first_difference(run.found, expected.found)
        assert not difference, f"{difference}; {told}"
        assert max(run.ran) <= 1, f"the function ran several times in one call; {told}"
        assert len(run.warned) == (least == 0) or (least is None and len(run.warned) <= 1), told
        assert least is None or (replayed >= least * calls / 10 if least else replayed == 0), told
        for text in run.warned:
            assert_plain(text)
            assert_names(text, run.made)


# Words of gradmgr's inside, names with an underscore, and addresses.
_INTERNAL = re.compile(
    r"(?<![\w`])_[a-z]\w*|0x[0-9a-f]{4}|stand-?in|[Cc]aptured\w*Array|Batched|\b(slot|lowering|vjp|sub-?program)\b"
    r"|gradmgr/|<(?:function|bound|built-in|gradmgr)\b"
)


def assert_plain(text: str) -> None:
    """Assert that a message has no internal name."""
    found = _INTERNAL.search(text)
    assert found is None, f"{found.group() if found else ''!r} is an internal name, in: {text}"


def assert_names(text: str, made: Program) -> None:
    """Assert that a message names a line that the program marks as refused, or else one of its step, and the reason."""
    code = code_of(made.code or made.step)
    source, first = inspect.getsourcelines(code)
    every = [first + k for k in range(len(source))]
    marked = [line for line, text in zip(every, source, strict=True) if text.rstrip().endswith(HERE)]
    file = re.escape(os.path.basename(code.co_filename))
    places = rf"{file}:({'|'.join(map(str, marked or every))})\b"
    assert re.search(places, text), f"the warning does not name {places}: {text}"
    assert re.search(made.says, text), f"the warning does not say {made.says!r}: {text}"
