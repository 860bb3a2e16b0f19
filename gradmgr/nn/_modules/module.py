"""Module: parameters, buffers and modules within modules, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.atomic import Call, run_atomically
from gradmgr._arrays.listening import listener
from gradmgr._engine import write_lock
from gradmgr._engine.capture_notes import call_whole, see
from gradmgr._engine.hooks import HookPlace, Hooks, RemovableHandle
from gradmgr._engine.mutation import calls_to_write
from gradmgr._engine.parameter import Parameter, parameter_around
from gradmgr._engine.row_sparse import zeros_like
from gradmgr._engine.tensor import Tensor, tensor, variable
from gradmgr._engine.wrong_calls import explain
from gradmgr.nn._modules.module_hooks import BackwardHook, InputGradients, WithKeywords
from gradmgr.nn._modules.state import convert, fitting_values, read_target, write_all

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import HasForward, P, R


class IncompatibleKeys(NamedTuple):
    """The names that `load_state_dict` found missing in the state, and those in it that the module does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


# Attributes of torch's modules that are not here, and what to use instead.
_REFUSED = MappingProxyType(
    {
        "requires_grad_": "what receives gradients is the manager's to say: gm.attach(dict(model.named_parameters())), "
        "gm.detach(...); a parameter that is not attached is frozen",
        "cuda": "use model.to('cuda:0')",
        "cpu": "use model.to('cpu')",
        "type": "use model.to(dtype=...)",
        "register_backward_hook": "use register_full_backward_hook, or Tensor.register_hook on what forward computes",
        "share_memory": "threads share the tensors as they are",
        "compile": "use gradmgr.compile on the training step, or on the model's forward",
    }
)

PARAMETER, BUFFER, MODULE = "parameter", "buffer", "module"

_NOTHING: Mapping[str, str] = MappingProxyType({})

# Classes of attributes that are compared by value.
_BY_VALUE = frozenset((bool, int, float, str))

# The attributes that Module.__init__ sets.
_SET_UP = frozenset(("_kinds", "_transient", "_pre_hooks", "_post_hooks", "training"))


def _state_of(module: Module, without: Collection[str] = ()) -> list[Any]:
    """Return what a call of a module depends on: its attributes, except for those of some names, and hooks."""
    own = module.__dict__
    values = [value for name, value in own.items() if name not in without] if without else own.values()
    found: list[Any] = [value if value.__class__ in _BY_VALUE else id(value) for value in values]
    for hooks in (own.get("_pre_hooks"), own.get("_post_hooks")):
        if hooks is not None:
            found += map(id, hooks)
    return found


def _identities(module: Module, without: Collection[str] = ()) -> list[int]:
    """Return what differs if `_state_of` does: that holds the values of numbers, so no other has the place of one."""
    own = module.__dict__
    found = (
        [id(value) for name, value in own.items() if name not in without] if without else list(map(id, own.values()))
    )
    pre, post = own.get("_pre_hooks"), own.get("_post_hooks")
    if pre or post:
        found += [id(hook) for hooks in (pre, post) for hook in hooks or ()]
    return found


_state_of.look = _identities  # type: ignore[attr-defined]  # by which a Condition tests it first


class Module:
    """The base class of layers and models: `__init__` assigns parameters and modules, `forward` computes.

    An assigned Parameter or Module is registered under the attribute's name; a Tensor is a plain attribute unless
    `register_buffer` registered it. A parameter or module that is registered in several places is listed once.

    Raises:
        NotImplementedError: a subclass is called that defines no `forward`.

    >>> import numpy
    >>> from gradmgr import GradManager, nn
    >>> class Net(nn.Module):
    ...     def __init__(self, rng):
    ...         super().__init__()
    ...         self.first = nn.Linear(2, 8, rng=rng)
    ...         self.last = nn.Linear(8, 1, rng=rng)
    ...     def forward(self, x):
    ...         return self.last(nn.functional.relu(self.first(x)))
    >>> net = Net(numpy.random.default_rng(0))
    >>> [name for name, p in net.named_parameters()]
    ['first.weight', 'first.bias', 'last.weight', 'last.bias']
    >>> gm = GradManager().attach(dict(net.named_parameters()))
    >>> with gm:
    ...     gm.backward(net(numpy.ones((4, 2), "float32")).sum())
    >>> net.last.bias.grad
    Tensor([4.], dtype=float32)
    """

    # All attributes are in __dict__, where Python finds them fast; `_kinds` holds what is registered, in order.
    _kinds: dict[str, str]
    _transient: set[str]  # the buffers that state_dict leaves out
    _pre_hooks: Hooks | None
    _post_hooks: Hooks | None
    training: bool

    def __init__(self) -> None:
        self._kinds = {}
        self._transient = set()
        self._pre_hooks = None
        self._post_hooks = None
        self.training = True

    # ------------------------------------------------------------ calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; every module defines its own.

        >>> from gradmgr import nn, tensor
        >>> class Double(nn.Module):
        ...     def forward(self, x):
        ...         return x * 2.0
        >>> Double()(tensor([1.0, 2.0]))
        Tensor([2., 4.])
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward(self, ...)")

    if TYPE_CHECKING:  # a call takes the parameters of the module's own `forward` and gives its result

        def __call__(self: HasForward[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call `forward`, and the hooks around it."""
            if listener() is not None:
                self._see()
            if self._pre_hooks is None and self._post_hooks is None:
                try:
                    return self.forward(*args, **kwargs)
                except TypeError as error:
                    explain(error, self.forward, f"{type(self).__name__}.forward", called="layer")
                    if str(error).startswith("expected "):
                        errors.put_name(error, type(self).__name__)
                    raise
            return self._call_with_hooks(args, kwargs)

    def _call_with_hooks(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        for hook in self._pre_hooks or ():
            if isinstance(hook, WithKeywords):
                args, keywords = hook.before(self, args, keywords)
                continue
            given = call_whole(hook, self, args)
            if given is not None:
                args = given if isinstance(given, tuple) else (given,)
        watched = [hook for hook in self._post_hooks or () if isinstance(hook, BackwardHook)]
        inputs = InputGradients(args) if watched else None
        result = self.forward(*(args if inputs is None else inputs.args), **keywords)
        for hook in self._post_hooks or ():
            if isinstance(hook, BackwardHook):
                continue
            given = hook.after(self, args, keywords, result) if isinstance(hook, WithKeywords) else None
            if not isinstance(hook, WithKeywords):
                given = call_whole(hook, self, args, result)
            if given is not None:
                result = given
        return result if inputs is None else inputs.watch(self, watched, result)

    def _see(self) -> None:
        """Let a capture know that its program depends on this module's attributes, and may read its Tensors."""
        heard = listener()
        if heard is not None:
            heard.hold([value for value in vars(self).values() if isinstance(value, Tensor)])
        see(self, _state_of, f"an attribute of {type(self).__name__}, such as training")

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before each `forward`; a result other than None replaces its arguments.

        Args:
            hook: the function.
            prepend: whether to call it before the hooks that are there.
            with_kwargs: whether to call `hook(module, args, kwargs)`, whose result is None or a pair (args, kwargs).

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError: `hook` cannot be called; in a call, with_kwargs, it returned something else.

        >>> from gradmgr import nn, tensor
        >>> model = nn.ReLU()
        >>> handle = model.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))
        >>> model(tensor([-1.0, 2.0]))
        Tensor([1., 0.])
        >>> handle.remove()
        """
        return self._add_hook("_pre_hooks", hook, "register_forward_pre_hook", prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, result)` after each `forward`; a result other than None replaces the module's.

        Args:
            hook: the function.
            prepend: whether to call it before the hooks that are there.
            with_kwargs: whether to call `hook(module, args, kwargs, result)`.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError: `hook` cannot be called.

        >>> from gradmgr import nn, tensor
        >>> model = nn.ReLU()
        >>> handle = model.register_forward_hook(lambda module, inputs, output: output * 10.0)
        >>> model(tensor([-1.0, 2.0]))
        Tensor([ 0., 20.])
        >>> handle.remove()
        """
        return self._add_hook("_post_hooks", hook, "register_forward_hook", prepend, with_kwargs)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` in each backward, when the gradients of a call are complete.

        `grad_input` and `grad_output` are tuples of the gradients by the Tensors among the positional arguments and
        of those by the results, None for what is not a tracked Tensor or has no gradient. A result other than None
        replaces grad_input: a tuple of as many gradients, or a single one. The hook is called once no more gradients of
        the arguments can come; of a call whose arguments are not tracked, when those of its results are complete.

        Returns:
            A handle with `remove()`.

        Raises:
            TypeError: `hook` cannot be called.

        >>> import numpy
        >>> from gradmgr import GradManager, nn, tensor
        >>> layer, x = nn.ReLU(), tensor([1.0, -1.0])
        >>> handle = layer.register_full_backward_hook(lambda module, inputs, outputs: print(inputs[0], outputs[0]))
        >>> with GradManager().attach(x) as gm:
        ...     gm.backward(layer(x * 2).sum())
        [1. 0.] [1. 1.]
        """
        errors.check_function(hook, "register_full_backward_hook")
        return self._add_hook("_post_hooks", BackwardHook(hook), "register_full_backward_hook", prepend, False)

    def _add_hook(
        self, attribute: str, hook: Callable[..., Any], caller: str, prepend: bool, with_kwargs: bool
    ) -> RemovableHandle:
        errors.check_function(hook, caller)
        if with_kwargs:
            hook = WithKeywords(hook)
        if getattr(self, attribute) is None:
            setattr(self, attribute, Hooks())
        return RemovableHandle([HookPlace(getattr(self, attribute), hook, is_first=bool(prepend))])

    # ------------------------------------------------------------ attributes

    def __getattr__(self, name: str) -> Any:  # called for names that Python did not find
        if name in _SET_UP:
            raise AttributeError(
                f"{type(self).__name__} is not set up as a Module: call super().__init__() first in its __init__"
            )
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(f"{text}: {_REFUSED[name]}" if name in _REFUSED else text)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._register(name, PARAMETER, value)
        elif isinstance(value, Module):
            self._register(name, MODULE, value)
        else:
            kind = self.__dict__.get("_kinds", _NOTHING).get(name)  # plain attributes may come before __init__
            if kind is not None:
                value = self._checked_value(name, kind, value)
            object.__setattr__(self, name, value)

    def _register(self, name: str, kind: str, value: Any) -> None:
        """Register a value under a name, replacing what was registered under it."""
        run_atomically(self._calls_to_register(name, kind, value))

    def _calls_to_register(self, name: str, kind: str, value: Any) -> list[Call]:
        """Return the calls of `_register`; raise for what can be no name."""
        check_name(self, name)
        calls: list[Call] = []
        if self._kinds.get(name) != kind:
            calls = [(self._kinds.pop, name, None), (self._transient.discard, name)]
        return [*calls, (self._kinds.__setitem__, name, kind), (self.__dict__.__setitem__, name, value)]

    def _unregister(self, *names: str) -> None:
        """Remove what is registered under these names."""
        run_atomically(self._calls_to_unregister(names))

    def _calls_to_unregister(self, names: Collection[str]) -> list[Call]:
        """Return the calls of `_unregister`."""
        from_dicts = [(own.pop, name, None) for name in names for own in (self._kinds, self.__dict__)]
        return [*from_dicts, *[(self._transient.discard, name) for name in names]]

    def _checked_value(self, name: str, kind: str, value: Any) -> Any:
        """Return the value to assign to a registered name; raise if it is of the wrong kind."""
        if kind == BUFFER:
            return _as_buffer(self, name, value)
        if value is not None:
            how = "write p[...] = v to change its values, compute with others by nn.functional_call, or "
            raise TypeError(
                f"{type(self).__name__}.{name} is registered as a {kind}; found {type(value).__name__}: assign a "
                f"{kind.capitalize()} or None, {how if kind == PARAMETER else 'or '}`del` it first"
            )
        return None

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_kinds", _NOTHING):
            self._unregister(name)
        else:
            object.__delattr__(self, name)

    def _registered(self, kind: str) -> list[tuple[str, Any]]:
        """Return the names and values registered as one kind, in order; a value may be None."""
        if listener() is not None:
            self._see()
        own = self.__dict__
        return [(name, own[name]) for name, its_kind in self._kinds.items() if its_kind == kind]

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, or None for one that is left out of all lists.

        Raises:
            TypeError: `param` is neither a Parameter nor None, or `name` is not a string.
            ValueError: the name is empty, has a dot, or is that of another attribute.

        >>> from gradmgr import nn
        >>> model = nn.Module()
        >>> model.register_parameter("w", nn.Parameter([1.0, 2.0]))
        >>> list(model.parameters())
        [Parameter([1., 2.])]
        """
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"register_parameter {name!r} takes a Parameter or None; found {type(param).__name__}; "
                "make one with nn.Parameter(...)"
            )
        self._check_new(name, PARAMETER)
        self._register(name, PARAMETER, param)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Register a tensor that belongs to the module but is not learned, such as a running mean.

        Args:
            name: the attribute under which it is found.
            tensor: a Tensor, kept as it is; an array, of which a Tensor is made; or None for nothing yet.
            persistent: whether `state_dict` includes it.

        Raises:
            TypeError: `tensor` is something else, or `name` is not a string.
            ValueError: the name is empty, has a dot, or is that of another attribute.

        >>> from gradmgr import nn, tensor
        >>> model = nn.Module()
        >>> model.register_buffer("scale", tensor(2.0))
        >>> model.scale, list(model.state_dict())
        (Tensor(2.), ['scale'])
        """
        value = _as_buffer(self, name, tensor)
        self._check_new(name, BUFFER)
        change = self._transient.discard if persistent else self._transient.add
        run_atomically([*self._calls_to_register(name, BUFFER, value), (change, name)])

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a module, or None for one that is left out.

        Raises:
            TypeError: `module` is neither a Module nor None, or `name` is not a string.
            ValueError: the name is empty, has a dot, or is that of another attribute.

        >>> from gradmgr import nn
        >>> model = nn.Module()
        >>> model.register_module("first", nn.ReLU())
        >>> model.first
        ReLU()
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"register_module {name!r} takes a Module or None; found {type(module).__name__}")
        self._check_new(name, MODULE)
        self._register(name, MODULE, module)

    add_module = register_module

    def _check_new(self, name: str, kind: str) -> None:
        check_name(self, name)
        if self._kinds.get(name) != kind and hasattr(self, name):
            raise ValueError(f"{type(self).__name__} has an attribute {name!r} already; choose another name")

    # ------------------------------------------------------------ listing modules, parameters and buffers

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module, named by the prefix, and all modules within it, by dotted name; each once by default.

        >>> from gradmgr import nn
        >>> [name for name, module in nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())).named_modules()]
        ['', '0', '1', '1.0']
        """
        memo = set() if memo is None else memo
        if remove_duplicate:
            if id(self) in memo:
                return
            memo.add(id(self))
        yield prefix, self
        for name, module in self._registered(MODULE):
            if module is not None:
                yield from module.named_modules(memo, _join_names(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all modules within it, each once.

        >>> from gradmgr import nn
        >>> [type(module).__name__ for module in nn.Sequential(nn.ReLU(), nn.Tanh()).modules()]
        ['Sequential', 'ReLU', 'Tanh']
        """
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules registered in this one with their names, each once.

        >>> from gradmgr import nn
        >>> list(nn.Sequential(nn.ReLU(), nn.Tanh()).named_children())
        [('0', ReLU()), ('1', Tanh())]
        """
        seen: set[int] = set()
        for name, module in self._registered(MODULE):
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield the modules registered in this one, each once.

        >>> from gradmgr import nn
        >>> list(nn.Sequential(nn.ReLU(), nn.Tanh()).children())
        [ReLU(), Tanh()]
        """
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with their dotted names, each once by default.

        Args:
            prefix: a prefix of every name, followed by a dot.
            recurse: whether to include those of the modules within.
            remove_duplicate: whether to yield each parameter once, also if it has several names.

        >>> from gradmgr import nn
        >>> [name for name, parameter in nn.Sequential(nn.Linear(2, 3), nn.ReLU()).named_parameters()]
        ['0.weight', '0.bias']
        """
        return self._iterate_named(PARAMETER, prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once: `gm.attach(model.parameters())`.

        >>> from gradmgr import nn
        >>> [parameter.shape for parameter in nn.Linear(2, 3).parameters()]
        [(3, 2), (3,)]
        """
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with their dotted names, as `named_parameters` does.

        >>> from gradmgr import nn
        >>> [name for name, buffer in nn.BatchNorm1d(3).named_buffers()]
        ['running_mean', 'running_var', 'num_batches_tracked']
        """
        return self._iterate_named(BUFFER, prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, each once.

        >>> from gradmgr import nn
        >>> [buffer.shape for buffer in nn.BatchNorm1d(3).buffers()]
        [(3,), (3,), ()]
        """
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _iterate_named(self, kind: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        modules = self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        seen: set[int] = set()
        for path, module in modules:
            for name, value in module._registered(kind):
                if value is None or (once and id(value) in seen):
                    continue
                seen.add(id(value))
                yield _join_names(path, name), value

    def get_submodule(self, target: str) -> Module:
        """Return the module of a dotted name; "" is this one.

        Raises:
            AttributeError: there is no such module; the message says which part of the name was found.

        >>> from gradmgr import nn
        >>> nn.Sequential(nn.Sequential(nn.ReLU(), nn.Tanh())).get_submodule("0.1")
        Tanh()
        """
        module: Any = self
        for name in target.split(".") if target else ():
            module = module._get_own(name, MODULE, target)
        found: Module = module
        return found

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter of a dotted name.

        Raises:
            AttributeError: there is no such tensor, or no such module.

        >>> from gradmgr import nn
        >>> nn.Sequential(nn.Linear(2, 3)).get_parameter("0.weight").shape
        (3, 2)
        """
        path, _, name = target.rpartition(".")
        found: Parameter = self.get_submodule(path)._get_own(name, PARAMETER, target)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer of a dotted name.

        Raises:
            AttributeError: there is no such tensor, or no such module.

        >>> from gradmgr import nn
        >>> nn.Sequential(nn.BatchNorm1d(2)).get_buffer("0.running_mean").shape
        (2,)
        """
        path, _, name = target.rpartition(".")
        found: Tensor = self.get_submodule(path)._get_own(name, BUFFER, target)
        return found

    def _get_own(self, name: str, kind: str, target: str) -> Any:
        own = dict(self._registered(kind))
        if own.get(name) is None:
            raise AttributeError(
                f"no {kind} {target!r}: {type(self).__name__} has no {kind} {name!r}; it has {', '.join(own) or 'none'}"
            )
        return own[name]

    # ------------------------------------------------------------ all modules at once

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module within, then on this one; returns the module.

        >>> from gradmgr import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> model.apply(lambda module: print(type(module).__name__))
        Linear
        ReLU
        Sequential
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=True)
          (1): ReLU()
        )
        """
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set `training` on this module and all within, which dropout and batch norm depend on. Returns the module.

        Where the class of a module within overrides `train`, as to keep a part frozen, its own method is called.

        Raises:
            TypeError: `mode` is not a bool.

        >>> from gradmgr import nn
        >>> model = nn.Dropout(0.5).eval()
        >>> model.train().training
        True
        """
        if not isinstance(mode, bool):
            raise TypeError(f"train(mode) takes True or False; found {type(mode).__name__}")
        overriding: list[Module] = []
        modules = list(_modules_that_inherit_train(self, set(), overriding))
        run_atomically([(object.__setattr__, module, "training", mode) for module in modules])
        for module in overriding:
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set `training` to False on this module and all within; returns the module.

        >>> from gradmgr import nn
        >>> nn.Dropout(0.5).eval().training
        False
        """
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set `.grad` of every parameter to None; with `set_to_none=False`, fill those that exist with zeros.

        >>> from gradmgr import GradManager, nn, tensor
        >>> model = nn.Linear(2, 1)
        >>> with GradManager().attach(model.parameters()) as gm:
        ...     gm.backward(model(tensor([1.0, 2.0])).sum())
        >>> model.zero_grad()
        >>> model.weight.grad is None
        True
        """
        for param in self.parameters():
            grad = param.grad
            if grad is not None:
                param.grad = None if set_to_none else zeros_like(grad)

    def to(self, *args: Any, device: str | None = None, dtype: Any = None) -> Self:
        """Move parameters and buffers to a device, cast them to a dtype, or both; returns the module.

        The Tensor objects stay the same, so that managers' attachments and optimisers stay valid; their gradients
        are moved, too. Integers and booleans keep their dtype. Open recordings treat the new values as constants.

        Args:
            *args: a device, a dtype, or both, in any order: `to("cuda:0")`, `to(numpy.float64)`.
            device: "cpu" or "cuda:0".
            dtype: a NumPy dtype that can carry gradients.

        Raises:
            TypeError: an argument is neither, or a dtype without gradients; or complex values would turn real.
            DeviceError: a GPU was asked for and there is none, or CuPy is not installed.

        >>> from gradmgr import nn
        >>> nn.Linear(2, 3).to("float64").weight.dtype
        dtype('float64')
        """
        device, dtype = read_target(args, device, dtype)
        if dtype is not None and dtype.kind != "c":
            named = [*self.named_parameters(), *self.named_buffers()]
            complexes = [name for name, t in named if t.dtype.kind == "c"]
            if complexes:
                raise errors.DtypeError(
                    f"to(dtype={dtype}) would drop the imaginary part of {', '.join(complexes)}; cast the others "
                    "with .float(), .half() or .double()"
                )
        self._convert(device, dtype)
        return self

    def float(self) -> Self:
        """Cast real parameters and buffers to float32; returns the module.

        >>> from gradmgr import nn
        >>> nn.Linear(2, 3, dtype="float64").float().weight.dtype
        dtype('float32')
        """
        return self._convert(None, np.dtype(np.float32))

    def half(self) -> Self:
        """Cast real parameters and buffers to float16; returns the module.

        >>> from gradmgr import nn
        >>> nn.Linear(2, 3).half().weight.dtype
        dtype('float16')
        """
        return self._convert(None, np.dtype(np.float16))

    def double(self) -> Self:
        """Cast real parameters and buffers to float64; returns the module.

        >>> from gradmgr import nn
        >>> nn.Linear(2, 3).double().weight.dtype
        dtype('float64')
        """
        return self._convert(None, np.dtype(np.float64))

    def _convert(self, device: str | None, dtype: np.dtype[Any] | None) -> Self:
        tensors = [*self.parameters(), *self.buffers()]
        made = [(t, convert(t, device, dtype), t.grad) for t in tensors]
        further = [None if grad is None else convert(grad, device, dtype) for _, _, grad in made]
        calls: list[Call] = []
        for (t, array, _), grad in zip(made, further, strict=True):
            if array is not t._array:
                calls += calls_to_write(t, array)
                calls.append((setattr, t, "_grad", None if grad is None else variable(grad)))
        with write_lock.lock:
            run_atomically(calls)
        return self

    # ------------------------------------------------------------ state

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Return all parameters and persistent buffers by dotted name, as torch names them.

        Unlike torch's, the values do not change when the module is trained further. A step of an optimiser, or
        `load_state_dict`, in another thread comes before or after it.

        Args:
            prefix: a prefix of every name; it should end with a dot.

        >>> from gradmgr import nn
        >>> {name: value.shape for name, value in nn.Linear(2, 3).state_dict().items()}
        {'weight': (3, 2), 'bias': (3,)}
        """
        state = self._state()
        with write_lock.lock:
            return {prefix + name: variable(t._array) for name, t in state.items()}

    def _state(self, path: str = "") -> dict[str, Tensor]:
        """Return the tensors of the state, under all names of each."""
        found: dict[str, Tensor] = {path + name: t for name, t in self._registered(PARAMETER) if t is not None}
        for name, buffer in self._registered(BUFFER):
            if buffer is not None and name not in self._transient:
                found[path + name] = buffer
        for name, module in self._registered(MODULE):
            if module is not None:
                found |= module._state(f"{path}{name}.")
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Check a state, then write it into the parameters and persistent buffers.

        The Tensor objects stay the same, so that managers' attachments and optimisers stay valid; values are cast to
        their dtypes. Nothing is recorded. For a tensor that has several names, one of them is enough.

        Args:
            state_dict: values by name: Tensors, NumPy or CuPy arrays, or objects that NumPy converts, such as torch's
                tensors.
            strict: whether all names must be present and no others.
            assign: replace the Tensor objects by new ones with the state's dtypes and devices.

        Returns:
            `missing_keys` and `unexpected_keys`, which are empty if `strict`.

        Raises:
            StateError: the state does not fit; every difference is listed by name, and nothing is changed.
            TypeError: `state_dict` is not a mapping.

        >>> from gradmgr import nn
        >>> first, second = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> second.load_state_dict(first.state_dict())
        IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        >>> (second.weight == first.weight).all()
        Tensor(True)
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict takes a mapping of names to arrays; found {type(state_dict).__name__}")
        own = self._state()
        fitting, misfits = fitting_values(own, state_dict)
        known = {id(own[name]) for name in own if name in state_dict}
        missing = [name for name, t in own.items() if id(t) not in known]
        unexpected = [str(name) for name in state_dict if name not in own]
        if strict:
            misfits = [f"{name}: missing in the state" for name in missing] + misfits
            misfits += [f"{name}: unexpected, {type(self).__name__} has no such name" for name in unexpected]
        if misfits:
            raise errors.StateError(
                f"load_state_dict: the state does not fit {type(self).__name__}; nothing was changed:\n  "
                + "\n  ".join(misfits)
            )
        if assign:
            self._assign({id(own[name]): value for name, value in fitting.items()})
        else:
            write_all({name: own[name] for name in fitting}, fitting)
        return IncompatibleKeys(missing, unexpected)

    def _assign(self, by_id: dict[int, Any]) -> None:
        """Replace the tensors with these ids by new ones of these arrays."""
        made: dict[int, Any] = {}
        calls: list[Call] = []
        for module in self.modules():
            for kind, make in ((PARAMETER, parameter_around), (BUFFER, variable)):
                for name, t in module._registered(kind):
                    if id(t) in by_id:
                        new = made.setdefault(id(t), make(by_id[id(t)]))
                        calls.append((module.__dict__.__setitem__, name, new))
        run_atomically(calls)

    # ------------------------------------------------------------ representation

    def extra_repr(self) -> str:
        """Return the sizes and settings that `repr` shows in parentheses.

        >>> from gradmgr import nn
        >>> nn.ELU(alpha=2.0).extra_repr(), nn.ELU(alpha=2.0)
        ('alpha=2.0', ELU(alpha=2.0))
        """
        return ""

    def __repr__(self) -> str:
        if listener() is not None:
            self._see()
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        inner = [f"({name}): {_indent(repr(module))}" for name, module in self._registered(MODULE)]
        name = type(self).__name__
        if not inner and len(lines) <= 1:
            return f"{name}({extra})"
        return f"{name}(\n  " + "\n  ".join([*lines, *inner]) + "\n)"


def _modules_that_inherit_train(module: Module, seen: set[int], overriding: list[Module]) -> Iterator[Module]:
    """Yield a module and those within, each once; append to the list, and do not enter, those that override `train`."""
    seen.add(id(module))
    yield module
    for child in module.children():
        if id(child) in seen:
            continue
        if type(child).train is Module.train:
            yield from _modules_that_inherit_train(child, seen, overriding)
        else:
            seen.add(id(child))
            overriding.append(child)


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _join_names(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def check_name(module: Module, name: object) -> None:
    what = f"{type(module).__name__}: the name of a parameter, buffer or module"
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string; found {type(name).__name__}")
    if not name or "." in name:
        raise ValueError(f"{what} must not be empty or have a dot; found {name!r}")


def _as_buffer(module: Module, name: str, value: Any) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    if not libraries.is_array(value):
        raise TypeError(
            f"{type(module).__name__}.{name} is a buffer, which is a Tensor, an array or None; "
            f"found {type(value).__name__}; make one with gradmgr.tensor(...)"
        )
    return tensor(value)
