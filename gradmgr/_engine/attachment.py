"""The tensors attached to a manager, the specification of each, and the checks of the arguments of `attach`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine import write_lock
from gradmgr._engine.tensor import Tensor, describe

Callback = Callable[[Tensor, Tensor], Any]


class AttachSpec:
    """An attachment: `tensor`, a weak reference to the Tensor, and `callbacks`, the list of its callbacks.

    >>> import weakref
    >>> from gradmgr import AttachSpec, tensor
    >>> x = tensor(3.0)
    >>> spec = AttachSpec(weakref.ref(x), [])
    >>> spec.tensor() is x
    True
    """

    __slots__ = ("callbacks", "name", "tensor")

    def __init__(self, tensor: weakref.ref[Tensor], callbacks: list[Callback], name: str | None = None) -> None:
        self.tensor = tensor
        self.callbacks = callbacks
        self.name = name

    def __repr__(self) -> str:
        return f"AttachSpec(tensor={self.tensor!r}, callbacks={self.callbacks!r})"


class Attachments:
    """The tensors attached to one manager, held weakly, in the order of attachment."""

    def __init__(self) -> None:
        self._specs: dict[int, AttachSpec] = {}  # by id of the tensor; it goes when the tensor dies
        self._self = weakref.ref(self)
        self._has_warned = False

    def of(self, t: Tensor) -> AttachSpec | None:
        """Return what is known of a tensor, None if it is not attached."""
        spec = self._specs.get(id(t))
        return spec if spec is not None and spec.tensor() is t else None

    def tensors(self) -> list[Tensor]:
        """Return the tensors that are alive."""
        # Of a list: a tensor that dies meanwhile leaves the dict, another thread may attach one.
        return [t for spec in list(self._specs.values()) if (t := spec.tensor()) is not None]

    def specs(self) -> dict[Tensor, AttachSpec]:
        """Return what is known of the tensors that are alive."""
        return {t: spec for spec in list(self._specs.values()) if (t := spec.tensor()) is not None}

    def state(self) -> list[Any]:
        """Return what a backward pass depends on: which tensors there are, their callbacks and hooks."""
        found: list[Any] = []
        for key, spec in list(self._specs.items()):
            found.append((key, *map(id, _functions_of(spec))))
        return found

    def functions(self) -> list[Any]:
        """Return the callbacks and hooks of all tensors."""
        return [function for spec in list(self._specs.values()) for function in _functions_of(spec)]

    def add(self, t: Tensor, name: str | None, chain: list[Callback]) -> None:
        """Attach a tensor, or give an attached one further callbacks."""
        with write_lock.lock:  # or the callbacks of one of two threads would be lost
            spec = self.of(t)
            if spec is None:
                forget = partial(_forget, self._self, id(t))
                self._specs[id(t)] = AttachSpec(weakref.ref(t, forget), chain.copy(), name)
                if t._view_of is None:
                    t._view_of = ()  # a number is a variable from now on
            else:
                spec.callbacks = [*spec.callbacks, *chain]
                spec.name = name or spec.name

    def add_new(self, t: Tensor) -> None:
        """Attach a tensor that no other thread knows, and that lives as long as the manager."""
        self._specs[id(t)] = AttachSpec(weakref.ref(t), [])

    def remove(self, t: Tensor) -> None:
        """Detach a tensor."""
        self._specs.pop(id(t), None)

    def warn_repeated(self, tensors: Iterable[tuple[str | None, Tensor]], chain: list[Callback]) -> None:
        """Warn once of a callback that a tensor has already; before anything changes, since a warning may raise."""
        if self._has_warned or not chain:
            return
        for name, t in tensors:
            spec = self.of(t)
            if spec is not None and any(cb is old for cb in chain for old in spec.callbacks):
                self._has_warned = True
                warnings.warn(
                    f"a callback was attached again to {describe(t, name or spec.name)}, which has it already: it now "
                    "runs twice, and the list grows with every attach; attach it once, outside the loop",
                    RuntimeWarning,
                    stacklevel=3,
                )
                return


def _functions_of(spec: AttachSpec) -> list[Any]:
    """Return the callbacks and hooks of a tensor."""
    hooks = getattr(spec.tensor(), "_hooks", None)
    return [*spec.callbacks, *(() if hooks is None else (*hooks.tensor, *hooks.post))]


def _forget(attachments: weakref.ref[Attachments], key: int, _: Any) -> None:
    """Drop the attachment of a tensor that died."""
    alive = attachments()
    if alive is not None:
        alive._specs.pop(key, None)


# ---------------------------------------------------------------- arguments of `attach`


def callback_list(callbacks: Any) -> list[Callback]:
    if callbacks is None:
        return []
    several = isinstance(callbacks, Iterable) and not callable(callbacks)
    chain = list(callbacks) if several else [callbacks]
    for callback in chain:
        if not callable(callback):
            raise TypeError(
                f"attach: a callback is a function cb(tensor, grad) -> grad; found {type(callback).__name__}"
            )
    return chain


def named(tensors: Any) -> Iterator[tuple[str | None, Any]]:
    if isinstance(tensors, Mapping):
        yield from tensors.items()
    elif isinstance(tensors, Tensor) or not isinstance(tensors, Iterable) or libraries.is_array(tensors):
        yield None, tensors
    else:
        for t in tensors:
            yield None, t


def place_of(name: str | None, position: int) -> str:
    return f"element {position}" if name is None else f"element {position} ({name!r})"


def attachable(tensors: Any) -> list[tuple[str | None, Tensor]]:
    """Return what is to be attached, with names; each can have a gradient."""
    pairs = list(named(tensors))
    if not pairs and isinstance(tensors, Iterator):
        raise ValueError(
            "attach was given an iterator with no tensor left; if something else read it before, as an optimiser does "
            "model.parameters(), make it anew or give both a list"
        )
    for position, (name, t) in enumerate(pairs):
        _check_attachable(t, name, position)
    return pairs


def _check_attachable(t: Any, name: str | None, position: int) -> None:
    if not isinstance(t, Tensor):
        is_pair = isinstance(t, tuple) and any(isinstance(p, Tensor) for p in t)  # what named_parameters() gives
        is_method = getattr(t, "__name__", "") in ("parameters", "named_parameters")  # which was not called
        from_a_module = is_pair or is_method or hasattr(t, "named_parameters")
        how = "attach dict(model.named_parameters())" if from_a_module else "make one with gradmgr.tensor(...)"
        raise TypeError(
            f"attach takes Tensors; {place_of(name, position)} is {type(t).__module__}.{type(t).__name__}; {how}"
        )
    if not libraries.is_differentiable(t.dtype):
        raise errors.DtypeError(
            f"attach: {place_of(name, position)}, {describe(t, name)}, cannot have a gradient; "
            "use float16, float32, float64, bfloat16, complex64 or complex128, as with t.astype('float32')"
        )
