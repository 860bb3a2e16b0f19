"""Modules made of modules: Sequential, ModuleList, ModuleDict; and ParameterList."""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import count
from typing import Any, Self

from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn._modules.module import MODULE, PARAMETER, Module


class PlainFunction(Module):
    """A module that calls a plain function."""

    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return str(getattr(self.function, "__name__", None) or repr(self.function))


class _Row(Module):
    """A sequence of modules, named "0", "1", ... unless other names were given."""

    def _checked(self, module: Any) -> Module:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} holds Modules; found {_describe_found(module)}")
        return module

    def __len__(self) -> int:
        self._see()
        return len(self._names())

    def __iter__(self) -> Iterator[Any]:
        self._see()
        own = self.__dict__
        return iter([own[name] for name, kind in self._kinds.items() if kind == MODULE])

    def __contains__(self, module: object) -> bool:
        return any(module is own for own in self)

    def _names(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind == MODULE]

    def _name(self, index: Any) -> str:
        """Return the name of a position, which may count from the end."""
        names, position = self._names(), operator.index(index)
        if not -len(names) <= position < len(names):
            raise IndexError(f"{type(self).__name__} has {len(names)} modules, and no position {position}")
        return names[position]

    def _slice(self, index: slice) -> Self:
        """Return a new container of the modules in a slice."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        self._see()
        return self._slice(index) if isinstance(index, slice) else self.__dict__[self._name(index)]

    def __setitem__(self, index: Any, module: Any) -> None:
        self._register(self._name(index), MODULE, self._checked(module))

    def __delitem__(self, index: Any) -> None:
        """Remove modules; the others are named by their new positions."""
        positions = range(len(self))[index] if isinstance(index, slice) else [self._names().index(self._name(index))]
        self._renumber([module for k, module in enumerate(self) if k not in positions])

    def _renumber(self, modules: list[Module]) -> None:
        numbered = {str(k): module for k, module in enumerate(modules)}
        run_atomically([*self._calls_to_unregister(self._names()), *_calls_to_add(self, MODULE, numbered)])

    def append(self, module: Any) -> Self:
        """Add a module at the end, and return self."""
        return self.extend([module])

    def extend(self, modules: Iterable[Any]) -> Self:
        """Add modules at the end, and return self."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__} takes a list of Modules; found {_describe_found(modules)}")
        free = (str(k) for k in count(len(self._names())) if str(k) not in self._kinds)
        new = [self._checked(module) for module in modules]
        run_atomically(_calls_to_add(self, MODULE, dict(zip(free, new, strict=False))))
        return self

    def insert(self, index: int, module: Any) -> Self:
        """Insert a module before the one at a position, and return self."""
        modules = list(self)
        modules.insert(operator.index(index), self._checked(module))
        self._renumber(modules)
        return self

    def pop(self, index: Any) -> Any:
        """Remove the module at a position and return it."""
        module = self[operator.index(index)]
        del self[index]
        return module


class Sequential(_Row):
    """Modules that are called one after another, each with the result of the one before it.

    Args:
        *args: Modules, or plain functions such as `gradmgr.numpy.tanh` and `nn.functional.relu`; or one mapping of
            names to them.

    Raises:
        TypeError: an element is neither, or a class that was not called.

    >>> import numpy
    >>> import gradmgr.numpy as np
    >>> from gradmgr import nn
    >>> rng = numpy.random.default_rng(0)
    >>> net = nn.Sequential(nn.Linear(2, 8, rng=rng), np.tanh, nn.Linear(8, 1, rng=rng))
    >>> net
    Sequential(
      (0): Linear(in_features=2, out_features=8, bias=True)
      (1): tanh
      (2): Linear(in_features=8, out_features=1, bias=True)
    )
    >>> net(numpy.zeros((5, 2), "float32")).shape
    (5, 1)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.register_module(name, self._checked(module))
        else:
            self.extend(args)

    def _checked(self, module: Any) -> Module:
        if isinstance(module, Module):
            return module
        if isinstance(module, (list, tuple)):
            raise TypeError(
                f"{type(self).__name__} takes Modules one by one; found a {type(module).__name__}: unpack it, as in "
                "Sequential(*layers)"
            )
        if isinstance(module, type) or not callable(module):
            raise TypeError(f"{type(self).__name__} holds Modules and plain functions; found {_describe_found(module)}")
        return PlainFunction(module)

    def _slice(self, index: slice) -> Self:
        return type(self)(dict(self._registered(MODULE)[index]))

    def forward(self, input: Any) -> Any:
        """Call the modules one after another."""
        for module in self:
            input = module(input)
        return input


class ModuleList(_Row):
    """A list of modules, which are registered by position; it has no `forward`.

    Raises:
        TypeError: an element is not a Module.

    >>> from gradmgr import nn
    >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    >>> len(layers), [name for name, p in layers.named_parameters()][:3]
    (3, ['0.weight', '0.bias', '1.weight'])
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(() if modules is None else modules)

    def _slice(self, index: slice) -> Self:
        return type(self)(list(self)[index])

    def __repr__(self) -> str:
        """Return the usual text of a module, in which equal neighbours are shown once: "(0-2): 3 x ..."."""
        runs: list[tuple[int, int, str]] = []
        for k, shown in enumerate(map(repr, self)):
            if runs and runs[-1][2] == shown:
                runs[-1] = runs[-1][0], k, shown
            else:
                runs.append((k, k, shown))
        lines = [
            f"({first}): {shown}" if first == last else f"({first}-{last}): {last - first + 1} x {shown}"
            for first, last, shown in runs
        ]
        inner = "".join("\n  " + line.replace("\n", "\n  ") for line in lines)
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"


class ModuleDict(Module):
    """Modules by name, as in a dict; it has no `forward`.

    Args:
        modules: a mapping of names to Modules, or pairs of both.

    Raises:
        TypeError: a value is not a Module, or a name not a string.

    >>> from gradmgr import nn
    >>> heads = nn.ModuleDict({"mean": nn.Linear(4, 1), "spread": nn.Linear(4, 1)})
    >>> list(heads), heads["mean"]
    (['mean', 'spread'], Linear(in_features=4, out_features=1, bias=True))
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update({} if modules is None else modules)

    def __getitem__(self, key: str) -> Any:
        return self._by_name()[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.update({key: module})

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __len__(self) -> int:
        return len(self._by_name())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def _by_name(self) -> dict[str, Any]:
        self._see()
        return dict(self._registered(MODULE))

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add modules by name, and replace those of the same names.

        Raises:
            TypeError, ValueError: a value is not a Module, or a name is not a string, has a dot, or is that of an
                attribute, such as "keys"; nothing is then added.
        """
        new = dict(modules)
        for key, module in new.items():
            self._check_new(key, MODULE)
            if not isinstance(module, Module):
                raise TypeError(f"{type(self).__name__} holds Modules; found {_describe_found(module)} as {key!r}")
        run_atomically(_calls_to_add(self, MODULE, new))

    def pop(self, key: str) -> Any:
        """Remove a module and return it."""
        if key not in self:
            raise KeyError(key)
        module = self[key]
        self._unregister(key)
        return module

    def clear(self) -> None:
        """Remove all modules."""
        self._unregister(*self)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._by_name().keys()

    def values(self) -> ValuesView[Any]:
        """Return the modules."""
        return self._by_name().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the names with their modules."""
        return self._by_name().items()


class ParameterList(Module):
    """A list of parameters, which are registered by position.

    Args:
        values: Parameters, or Tensors and arrays, from which Parameters are made.

    Raises:
        TypeError: an element is not a Parameter.

    >>> import numpy
    >>> from gradmgr import nn
    >>> nn.ParameterList([numpy.zeros((2, 3)), numpy.zeros(2)])
    ParameterList(
      (0): Parameter of shape (2, 3) and dtype float64
      (1): Parameter of shape (2,) and dtype float64
    )
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)

    def _checked(self, value: Any) -> Parameter:
        if isinstance(value, Parameter):
            return value
        if not (isinstance(value, Tensor) or libraries.is_array(value)):
            raise TypeError(f"{type(self).__name__} holds Parameters; found {type(value).__name__}")
        return Parameter(value)

    def __len__(self) -> int:
        self._see()
        return len(self._registered(PARAMETER))

    def __iter__(self) -> Iterator[Any]:
        self._see()
        return iter([param for _, param in self._registered(PARAMETER)])

    def __getitem__(self, index: Any) -> Any:
        chosen = list(self)[index]
        return type(self)(chosen) if isinstance(index, slice) else chosen

    def __setitem__(self, index: int, value: Any) -> None:
        self._register(self._registered(PARAMETER)[operator.index(index)][0], PARAMETER, self._checked(value))

    def append(self, value: Any) -> Self:
        """Add a parameter at the end, and return self."""
        return self.extend([value])

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end, and return self."""
        new = {str(k): self._checked(value) for k, value in enumerate(values, len(self))}
        run_atomically(_calls_to_add(self, PARAMETER, new))
        return self

    def extra_repr(self) -> str:
        """Return the shapes and dtypes, for `repr`."""
        return "\n".join(f"({k}): Parameter of shape {p.shape} and dtype {p.dtype}" for k, p in enumerate(self))

    def __repr__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.extra_repr().split("\n") if line)
        return f"{type(self).__name__}({lines}\n)" if lines else f"{type(self).__name__}()"


def _calls_to_add(container: Module, kind: str, named: Mapping[str, Any]) -> list[Call]:
    """Return the calls that register these values in a container, all together."""
    return [call for name, value in named.items() for call in container._calls_to_register(name, kind, value)]


def _describe_found(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: call it, {value.__name__}(...)"
    return type(value).__name__
