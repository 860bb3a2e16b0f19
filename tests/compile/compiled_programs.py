"""Programs for gradmgr.compile: steps as users write them, and how to see whether two runs of one left the same.

A factory makes a program with fresh state, the same at every call: a step, the arguments of its successive calls, what
happens between the calls, and a function that gives all that the step may have changed. Nothing here knows how
compiling works: a run of the plain function says what is right.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, nn, tensor

CALLS = 7  # of each program: the first records, the second compares, and there are enough of the later ones


@dataclass
class Program:
    """A step with all that a test needs to run it.

    Attributes:
        step: the function that is compiled.
        calls: the arguments of successive calls, made by `call`.
        state: gives whatever the step may change, besides its arguments and results.
        between: what is done before the call of this number.
        may_warn: whether the step may stay eager with a CompileWarning; its results are right nevertheless.
        raises: the errors that some of the calls end with.
    """

    step: Callable[..., Any]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    state: Callable[[], Any] = lambda: None
    between: dict[int, Callable[[], Any]] = field(default_factory=dict)
    may_warn: bool = False
    raises: tuple[type[BaseException], ...] = ()


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Enter a program under the name of its factory."""
    PROGRAMS[make.__name__] = make
    return make


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def calls_with(*values: Any) -> list[Any]:
    """Calls with one argument each."""
    return [call(v) for v in values]


# ---------------------------------------------------------------- what a run leaves


def facts(value: Any) -> list[tuple[str, Any]]:
    """Return each part of a value with its path: types, dtypes, shapes, every bit, and which objects are the same."""
    found: list[tuple[str, Any]] = []
    _add_facts(found, value, "", {})
    return found


def _add_facts(found: list[tuple[str, Any]], value: Any, path: str, seen: dict[int, tuple[str, Any]]) -> None:
    """Append the facts of a part; generators within generators would take twice the time, for a million facts."""
    if isinstance(value, (Tensor, np.ndarray)) and id(value) in seen:
        found.append((path, ("the same object as", seen[id(value)][0])))
        return
    seen[id(value)] = path, value  # which keeps it alive, and the id its own
    name = type(value).__name__
    if isinstance(value, Tensor):
        found.append((path, (name, value.requires_grad, *_bits(on_host(value._array)))))
        _add_facts(found, value.grad, f"{path}.grad", seen)
    elif isinstance(value, (np.ndarray, np.generic)):
        found.append((path, (name, *_bits(np.asarray(value)))))
    elif is_on_gpu(value):
        found.append((path, (name, *_bits(on_host(value)))))
    elif isinstance(value, np.random.Generator):
        _add_facts(found, value.bit_generator.state, f"{path}.state", seen)
    else:
        parts = _parts(value)
        found.append((path, (name, _text(value) if parts is None else len(parts))))
        for key, part in parts or ():
            _add_facts(found, part, f"{path}[{key!r}]", seen)


def is_on_gpu(value: Any) -> bool:
    """Tell whether a value is an array of CuPy's, or of what stands for it in the tests."""
    return hasattr(value, "__cuda_array_interface__")


def on_host(array: Any) -> np.ndarray:
    """The values of an array of a GPU as NumPy's, without a call that the guard would count."""
    if not is_on_gpu(array):
        return array
    return array._host if hasattr(array, "_host") else array.get()


def _bits(array: np.ndarray) -> tuple[Any, ...]:
    data = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
    return str(array.dtype), array.shape, data


def _shown(fact: Any) -> Any:
    """A fact for people: numbers instead of bytes."""
    if fact and isinstance(fact[-1], bytes):
        *rest, dtype, shape, data = fact
        return (*rest, dtype, np.frombuffer(data, dtype).reshape(shape).tolist())
    return fact


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, nn.Module):
        return [*value.state_dict().items()]
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, SimpleNamespace):
        return [*vars(value).items()]
    return None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    return repr(value) if isinstance(value, (str, int, complex, bool, type(None), slice)) else ""


def first_difference(found: list[Any], expected: list[Any]) -> str:
    """Say where two runs differ first, or return an empty text."""
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        for path in {**a, **b}:
            if a.get(path) != b.get(path):
                return f"after call {k}, {path}: {_shown(a.get(path))} instead of {_shown(b.get(path))}"
    return ""


def history(made: Program, transform: Callable[[Any], Any] = lambda step: step) -> list[dict[str, Any]]:
    """Run a program; return the facts after every call, and at the end those of everything that a user has kept."""
    step, kept, found = transform(made.step), [], []
    with np.errstate(all="ignore"), warnings.catch_warnings():
        if made.may_warn:
            warnings.simplefilter("ignore", getattr(errors, "CompileWarning", UserWarning))
        for k, (args, kwargs) in enumerate(made.calls):
            made.between.get(k, lambda: None)()
            try:
                result = step(*args, **kwargs)
            except made.raises as error:
                result = f"{type(error).__name__}: {error}"
            now = {"result": result, "args": args, "kwargs": kwargs, "state": made.state()}
            found.append(dict(facts(now)))
            kept.append((now, _gradients_in(now["state"])))
        found.append(dict(facts(kept)))
    return found


def _gradients_in(value: Any) -> list[Any]:
    """The .grad of each Tensor in the state, as a user may hold it."""
    if isinstance(value, Tensor):
        return [value.grad]
    return [g for _, part in _parts(value) or () for g in _gradients_in(part)]


# ---------------------------------------------------------------- data


def wave(*shape: int, at: float = 0.0, dtype: Any = "float64") -> np.ndarray:
    """An array whose numbers are known and all different."""
    return np.sin(np.arange(1, 1 + np.prod(shape, dtype=int)) * 0.7 + at).reshape(shape).astype(dtype)


def waves(*shape: int, count: int = CALLS, dtype: Any = "float64") -> list[np.ndarray]:
    """Different arrays for successive calls."""
    return [wave(*shape, at=k, dtype=dtype) for k in range(count)]


def tensors(*shape: int, count: int = CALLS, dtype: Any = "float64") -> list[Tensor]:
    return [tensor(a) for a in waves(*shape, count=count, dtype=dtype)]


def loss_of(x: Any) -> Any:
    return gnp.sum(gnp.tanh(x) * x)


def two_layers(w: Tensor, v: Tensor, optimizer: Any) -> Callable[[Any, Any], Tensor]:
    """Return a step that trains two layers, and returns the loss."""
    gm = GradManager().attach([w, v])

    def step(x: Any, y: Any) -> Any:
        with gm:
            made = gnp.tanh(x @ w) ** 2 * 0.5 + 1
            loss = gnp.mean((made @ v - y) ** 2)
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
