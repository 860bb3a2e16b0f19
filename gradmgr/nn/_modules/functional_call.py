"""Call a module with other parameters than its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

from gradmgr import errors
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine.tensor import Tensor
from gradmgr.nn._modules.module import MODULE, Module

_MISSING = object()
_PLAIN = frozenset((bool, int, float, str, type(None), set))  # attributes that hold no tensor
_REGISTRY = ("_kinds", "_transient")  # the attributes in which Module keeps what is registered


def functional_call(
    module: Module,
    parameters_and_buffers: Mapping[str, Tensor],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call a module with these tensors in place of its own parameters and buffers.

    The tensors may be tracked, such as parameters after a step of gradient descent, and gradients flow to them. If the
    call writes to a buffer, as batch norm does, it writes to the tensor given for it. The call runs on a copy of the
    module, not on the module itself, so threads may call one module at once, each with its own tensors. Attributes that
    `forward` assigns are assigned to the module at the end of the call, also after an error.

    Modules in attributes that are lists, tuples or dicts of modules are copied, too. Code that refers to a module in
    another way, such as a function that closes over it, uses the module's own tensors.

    Args:
        module: the module to call.
        parameters_and_buffers: tensors by the dotted names of `named_parameters` and `named_buffers`; those not named
            are the module's own. For a parameter that has several names, one of them is enough.
        args: the positional arguments as a tuple, or the only one.
        kwargs: the keyword arguments.

    Raises:
        StateError: a name is not known, a shape does not fit, or one parameter was given two tensors; all are listed.
        TypeError: a value is not a Tensor.

    >>> import numpy
    >>> from gradmgr import nn, tensor
    >>> layer = nn.Linear(2, 1, bias=False, rng=numpy.random.default_rng(0))
    >>> nn.functional_call(layer, {"weight": tensor([[1.0, 2.0]])}, numpy.array([[10.0, 1.0]]))
    Tensor([[12.]])
    """
    if not isinstance(module, Module):
        raise TypeError(f"functional_call calls a Module; found {type(module).__name__}")
    if not isinstance(parameters_and_buffers, Mapping):
        found = type(parameters_and_buffers).__name__
        raise TypeError(f"functional_call takes a mapping of names to Tensors; found {found}")
    modules = list(module.named_modules(remove_duplicate=False))
    given = _tensors_by_id(modules, parameters_and_buffers)
    stage = Stage({id(inner): inner for _, inner in modules}, given)
    try:
        return stage.copy_of(module)(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        stage.write_back()


def _tensors_by_id(modules: list[tuple[str, Module]], named: Mapping[str, Any]) -> dict[int, Tensor]:
    """Return the given tensors by the ids of those that they replace; raise if they do not fit."""
    own: dict[str, Tensor] = {}
    for path, inner in modules:
        for name, kind in inner._kinds.items():
            value = inner.__dict__[name]
            if kind != MODULE and value is not None:
                own[f"{path}.{name}" if path else name] = value
    found: dict[int, Tensor] = {}
    first: dict[int, str] = {}
    problems = []
    for name, value in named.items():
        if name not in own:
            problems.append(f"{name}: {type(modules[0][1]).__name__} has no parameter or buffer of this name")
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"functional_call: {name!r} must be a Tensor; found {type(value).__name__}; "
                "wrap it with gradmgr.tensor(...)"
            )
        t = own[name]
        if value.shape != t.shape:
            problems.append(f"{name}: shape {value.shape} given, {t.shape} in the module")
        elif found.setdefault(id(t), value) is not value:
            problems.append(f"{name}: is one tensor with {first[id(t)]} in the module, and two were given")
        first.setdefault(id(t), name)
    if problems:
        raise errors.StateError("functional_call: what was given does not fit:\n  " + "\n  ".join(problems))
    return found


class Stage:
    """Copies of modules for one call; their attributes are separate from the modules' until `write_back`."""

    def __init__(self, modules: dict[int, Module], given: dict[int, Tensor]) -> None:
        self._given = given
        self._modules = list(modules.values())
        self._stand_ins = {key: _bare_copy(module) for key, module in modules.items()}
        self._originals = {id(made): modules[key] for key, made in self._stand_ins.items()}
        for key, module in modules.items():
            module._see()
            own = self._stand_ins[key].__dict__
            own.update(module.__dict__)
            for name, value in module.__dict__.items():
                if value.__class__ not in _PLAIN:
                    own[name] = self._replace(value)
            own["_kinds"], own["_transient"] = own["_kinds"].copy(), own["_transient"].copy()
        self._before = [dict(made.__dict__) for made in self._stand_ins.values()]

    def copy_of(self, module: Module) -> Module:
        """Return the copy of a module."""
        return self._stand_ins[id(module)]

    def _replace(self, value: Any) -> Any:
        """Return an attribute's value for a copy: modules, tensors, bound methods and lists of them replaced."""
        if isinstance(value, Module):
            return self._stand_ins.get(id(value), value)
        if isinstance(value, Tensor):
            return self._given.get(id(value), value)
        if isinstance(value, MethodType) and id(value.__self__) in self._stand_ins:
            return MethodType(value.__func__, self._stand_ins[id(value.__self__)])
        if value.__class__ in (list, tuple, dict) and value:
            parts = value.values() if isinstance(value, dict) else value
            if isinstance(next(iter(parts)), (Module, Tensor, MethodType)):
                made = [self._replace(part) for part in parts]
                return dict(zip(value, made, strict=True)) if isinstance(value, dict) else type(value)(made)
        return value

    def write_back(self) -> None:
        """Assign to the modules what the call assigned to attributes of their copies, all of it at once."""
        calls: list[Call] = []
        for module, made, before in zip(self._modules, self._stand_ins.values(), self._before, strict=True):
            own = module.__dict__
            if made._kinds != module._kinds or made._transient != module._transient:
                calls.append((own.update, {name: made.__dict__[name].copy() for name in _REGISTRY}))
            for name, value in made.__dict__.items():
                if value is not before.get(name, _MISSING) and name not in _REGISTRY:
                    calls += self._calls_to_assign(own, name, value, before.get(name))
            calls += [(own.pop, name, None) for name in before.keys() - made.__dict__.keys()]
        run_atomically(calls)

    def _calls_to_assign(self, own: dict[str, Any], name: str, value: Any, before: Any) -> list[Call]:
        """Return the calls for one assignment; a value for a given tensor is written to that tensor here."""
        was_given = isinstance(before, Tensor) and before is not own.get(name)
        if was_given and isinstance(value, Tensor) and value.shape == before.shape:
            before[...] = value
            return []
        return [(own.__setitem__, name, self._originals.get(id(value), value))]


def _bare_copy(module: Module) -> Module:
    """Return an object of the module's class with the values of its slots and no other attributes."""
    made: Module = object.__new__(type(module))
    for kind in type(module).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(module, name):
                object.__setattr__(made, name, getattr(module, name))
    return made
