"""Functions of torch's tensors that gradmgr computes, and functions of Tensors that torch computes."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmgr import errors, functional
from gradmgr._arrays import libraries
from gradmgr._engine.tensor import Tensor, from_dlpack
from gradmgr._transforms.derivative import LastingPullback
from gradmgr.interop._flat import FlatCall, check_untracked
from gradmgr.interop._foreign import Arrays, Compute, wrapped
from gradmgr.vmap import vmap


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise errors.MissingDependencyError(
            "gradmgr.interop needs PyTorch, which is not installed: pip install torch"
        ) from error
    return torch


# ---------------------------------------------------------------- from torch's tensors to Tensors, and back


def _to_tensor(t: Any, torch: Any) -> Tensor:
    """Share a torch tensor's memory as a Tensor, which never writes to it."""
    if t.layout is not torch.strided:
        raise TypeError(f"gradmgr takes dense tensors of torch; found one of layout {t.layout}: use its to_dense()")
    if t.device.type not in ("cpu", "cuda"):
        raise TypeError(f"gradmgr takes torch's tensors on the CPU or a CUDA GPU; found one on {t.device}: move it")
    dtype = str(t.dtype).removeprefix("torch.")
    if not hasattr(np, dtype):
        raise errors.DtypeError(f"NumPy has no {dtype}, in which a tensor of torch is; convert it with .float()")
    return from_dlpack(t.detach().resolve_conj().resolve_neg())


def _to_torch(value: Any, torch: Any) -> Any:
    """Copy a Tensor or an array into a torch tensor, which torch may write to."""
    array = value._array if isinstance(value, Tensor) else value
    if array.dtype.char not in _TORCH_DTYPES:
        raise errors.DtypeError(f"torch takes no array of {array.dtype}; convert it with .astype('float64') or so")
    return torch.from_dlpack(libraries.namespace(array).array(array, array.dtype.newbyteorder("="), copy=True))


_TORCH_DTYPES = "?bBhHiIlLqQefdFD"  # NumPy's characters of them


# ---------------------------------------------------------------- gradmgr's functions for torch


def torch_function(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of torch's tensors of one of gradmgr's Tensors, as one node of torch's graph.

    torch differentiates through it, to any order, in reverse and in forward mode, also in `torch.func`, `vmap`
    included; gradmgr computes the derivatives of this part. A tensor's memory is shared on the way in (it must not be
    written to before backward: torch then raises) and copied on the way out. `torch.compile` leaves it uncompiled;
    where torch traces values (`make_fx`, `torch.func.linearize`), it raises.

    Args:
        func: takes Tensors where torch's tensors are given, also in nested lists, tuples and dicts, and anything else
            as it is; returns a Tensor, or containers of them. It must be a pure function: torch may call it again
            for second derivatives. It must not change what it is given, nor depend on what torch tracks otherwise.

    Returns:
        A function of the same arguments. Results of integers have no gradient.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        TypeError: in a call, a tensor is sparse, or on another device than the CPU or a CUDA GPU.
        DtypeError: in a call, a tensor is of a dtype that NumPy lacks, such as bfloat16.

    >>> import gradmgr.numpy as np, torch
    >>> from gradmgr import interop
    >>> softplus = interop.torch_function(lambda x: np.log1p(np.exp(x)))
    >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> softplus(x).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.7311])
    """
    if not callable(func):
        raise TypeError(f"torch_function takes a function of Tensors; found {type(func).__name__}")
    torch = _import_torch()
    node = _node_class(torch, getattr(func, "__name__", type(func).__name__))

    def run(*args: Any, **kwargs: Any) -> Any:
        _check_untraced(node.__name__)
        flat = FlatCall(func, args, kwargs, lambda leaf: isinstance(leaf, torch.Tensor))

        def compute(*tensors: Tensor) -> tuple[Tensor, ...]:
            return flat(tensors, _is_tensor, "Tensors of gradmgr")

        return flat.as_returned(_apply(torch, node, compute, flat.arrays))

    @functools.wraps(func, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # what decides this on the first call would import the compiler: 3.6 s
            return torch.compiler.disable(run)(*args, **kwargs)
        return run(*args, **kwargs)

    return call


def _check_untraced(name: str) -> None:
    """Raise where make_fx traces: it would take what gradmgr computes for constants."""
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if tracer is not None and tracer.get_proxy_mode() is not None:
        raise RuntimeError(
            f"{name}: torch traces this call (make_fx, torch.func.linearize, torch.export), and what gradmgr computes "
            "would be a constant of the trace; leave it out of what is traced, or use torch.func.jvp"
        )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _apply(torch: Any, node: Any, compute: Compute, tensors: Sequence[Any]) -> tuple[Any, ...]:
    records = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    varied = [k for k, t in enumerate(tensors) if _is_differentiable(t)]
    return node.apply(_TorchCall(torch, node, compute, varied, records), *tensors)  # type: ignore[no-any-return]  # of torch, which may be absent


def _is_differentiable(t: Any) -> bool:
    return t.is_floating_point() or t.is_complex()  # type: ignore[no-any-return]  # of torch, which may be absent


class _TorchCall:
    """A function of Tensors, which returns a tuple of them, called by torch.

    Attributes:
        is_differentiable: for each result.
    """

    def __init__(self, torch: Any, node: Any, compute: Compute, varied: list[int], records: bool) -> None:
        self._torch = torch
        self._node = node
        self._name = node.__name__
        self._compute = compute
        self._records = records
        self._recorded: tuple[LastingPullback, list[Tensor]] | None = None  # with the results
        self._varied = varied  # the arguments that are differentiable
        self.is_differentiable: list[bool] = []

    def forward(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Compute, and record where a gradient may be asked for."""
        xs = [_to_tensor(t, self._torch) for t in tensors]
        if self._records and self._varied:
            compute = functools.partial(_filled, self._compute, self._varied, xs)
            back = LastingPullback(compute, [xs[k] for k in self._varied])
            made = back.run(lambda: back.made)
            self._recorded = back, list(made)
        else:
            made = self._compute(*xs)
        for y in made:
            check_untracked(y, self._name)
        return tuple([_to_torch(y, self._torch) for y in made])

    def give_recorded(self) -> Any:
        """Return an empty tensor that holds what was recorded: torch, which saves it, frees it after backward."""
        carrier = self._torch.empty(0, device="cpu")
        carrier.recorded, self._recorded = self._recorded, None
        return carrier

    def _differentiable(self, made: Sequence[Any]) -> list[Any]:
        return [y for y, differentiable in zip(made, self.is_differentiable, strict=True) if differentiable]

    def _varied_results(self, xs: Sequence[Tensor], varied: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(self._differentiable(_filled(self._compute, self._varied, xs, varied)))

    def backward(self, tensors: Sequence[Any], carrier: Any, gs: Sequence[Any]) -> list[Any]:
        """Return a gradient, or None, for each argument, recorded by torch where it asks for that."""
        recorded = getattr(carrier, "recorded", None)  # None if hooks on saved tensors made another one of it
        gs = self._differentiable(gs)
        found: list[Any] = [None] * len(tensors)
        if recorded is None or self._torch.is_grad_enabled():
            gradients: Sequence[Any] = _apply(self._torch, self._node, self._vjp, [*tensors, *gs])
        else:
            us = [_to_tensor(g, self._torch) for g in gs]
            back, outs = recorded
            made = back.vjp_here(self._differentiable(outs), us)
            gradients = [None if g is None else _to_torch(g, self._torch) for g in made]
        for k, gradient in zip(self._varied, gradients, strict=True):
            found[k] = gradient
        return found

    def _vjp(self, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) - sum(self.is_differentiable)
        xs, gs = given[:count], given[count:]
        varied = tuple([xs[k] for k in self._varied])
        _, found = functional.vjp(lambda *varied: self._varied_results(xs, varied), varied, gs, create_graph=True)
        return tuple(found)

    def jvp(self, tensors: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return a tangent, or None, for each result."""
        moved = [t if t is not None else self._torch.zeros_like(x) for t, x in zip(tangents, tensors, strict=True)]
        given = [moved[k] for k in self._varied]
        made = iter(_apply(self._torch, self._node, self._jvp, [*tensors, *given]))
        return [next(made) if differentiable else None for differentiable in self.is_differentiable]

    def _jvp(self, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) - len(self._varied)
        xs, tangents = given[:count], given[count:]
        varied = tuple([xs[k] for k in self._varied])
        _, found = functional.jvp(lambda *varied: self._varied_results(xs, varied), varied, tangents, create_graph=True)
        return tuple(found)

    def batched(self, in_dims: tuple[int | None, ...], tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Compute over a batch, which is the first axis of each result."""
        return _apply(self._torch, self._node, vmap(self._compute, in_dims=in_dims), tensors)


def _filled(
    compute: Compute, positions: Sequence[int], xs: Sequence[Tensor], varied: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Compute with other values of the arguments at these positions."""
    given = list(xs)
    for k, x in zip(positions, varied, strict=True):
        given[k] = x
    return compute(*given)


def _node_class(torch: Any, name: str) -> Any:
    """Make the class of one function's calls, by whose name torch's graph shows them."""
    methods: dict[str, Callable[..., Any]] = {
        "forward": _forward,
        "setup_context": _setup_context,
        "backward": _backward,
        "jvp": _jvp,
        "vmap": _vmap,
    }
    members = {method: staticmethod(function) for method, function in methods.items()}
    return type(torch.autograd.Function)(name, (torch.autograd.Function,), {**members, "generate_vmap_rule": False})


def _forward(call: _TorchCall, *tensors: Any) -> Any:
    return call.forward(tensors)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.call, *tensors = inputs
    ctx.call.is_differentiable = list(map(_is_differentiable, output))
    # For what is among them, torch raises where it was written to before backward.
    ctx.save_for_backward(*tensors, ctx.call.give_recorded())
    ctx.save_for_forward(*tensors)
    ctx.mark_non_differentiable(*[y for y in output if not _is_differentiable(y)])


def _backward(ctx: Any, *gs: Any) -> Any:
    *tensors, carrier = ctx.saved_tensors
    return (None, *ctx.call.backward(tensors, carrier, gs))


def _jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
    return tuple(ctx.call.jvp(ctx.saved_tensors[: len(tangents)], tangents))


def _vmap(info: Any, in_dims: Any, call: _TorchCall, *tensors: Any) -> Any:
    made = call.batched(tuple(in_dims[1:]), tensors)
    return made, (0,) * len(made)


# ---------------------------------------------------------------- torch's functions for gradmgr


def from_torch(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of gradmgr's Tensors of one of torch's tensors, such as a `torch.nn.Module`.

    It is one operation for the managers that track its arguments; torch computes its derivatives, to any order, in
    reverse and in forward mode, and under `vmap`. Values are copied on the way in and out. What the function holds
    besides, such as a module's parameters, is constant for gradmgr: pass it as arguments
    (`torch.func.functional_call`) to differentiate by it.

    Args:
        func: takes torch's tensors where Tensors and arrays are given, also in nested lists, tuples and dicts, and
            anything else as it is; returns a torch tensor, or containers of them. It must be a pure function: it is
            called again for second derivatives.

    Returns:
        A function of the same arguments; its results are Tensors, those of integers without gradient.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        DtypeError: in a call, an argument or a result is of a dtype that the other library lacks, such as bfloat16.

    >>> import gradmgr, torch
    >>> from gradmgr import interop
    >>> softplus = interop.from_torch(torch.nn.functional.softplus)
    >>> x = gradmgr.tensor([0.0, 1.0])
    >>> with gradmgr.GradManager().attach(x) as gm:
    ...     gm.backward(softplus(x).sum())
    >>> x.grad.round(4)
    Tensor([0.5   , 0.7311])
    """
    if not callable(func):
        raise TypeError(f"from_torch takes a function of torch's tensors; found {type(func).__name__}")
    return wrapped(func, _TorchLibrary(_import_torch()))


class _TorchLibrary:
    """What torch does for a function of its tensors; see `Library`."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def from_array(self, array: Any) -> Any:
        return _to_torch(array, self._torch)

    def to_array(self, foreign: Any) -> Any:
        return _to_tensor(foreign, self._torch)._array.copy()

    def values_and_pullback(
        self, compute: Compute, xs: Arrays, needed: Sequence[bool]
    ) -> tuple[Arrays, Callable[[Arrays], Arrays]]:
        torch = self._torch
        with torch.inference_mode(False), torch.enable_grad():  # it is the manager who asks for derivatives
            xs = [x.clone() if x.is_inference() else x for x in xs]
            leaves = [x.requires_grad_() for x in itertools.compress(xs, needed)]
            made = compute(*xs)
        roots = [y if y.requires_grad else None for y in made if _is_differentiable(y)]

        def pullback(gs: Arrays) -> Arrays:
            pairs = [(y, g) for y, g in zip(roots, gs, strict=True) if y is not None]
            if not pairs:
                return [None] * len(leaves)
            outs, cotangents = zip(*pairs, strict=True)
            return torch.autograd.grad(  # type: ignore[no-any-return]  # of torch, which may be absent
                outs, leaves, cotangents, retain_graph=True, allow_unused=True
            )

        return made, pullback

    def vjp_of(self, compute: Compute, count: int, needed: Sequence[int]) -> Compute:
        def vjp(*given: Any) -> tuple[Any, ...]:
            xs = given[:count]
            _, pull = self._torch.func.vjp(self._of(compute, xs, needed), *[xs[k] for k in needed])
            return pull(given[count:])  # type: ignore[no-any-return]  # of torch, which may be absent

        return vjp

    def jvp_of(self, compute: Compute, count: int, varied: Sequence[int]) -> Compute:
        def jvp(*given: Any) -> tuple[Any, ...]:
            xs = given[:count]
            points = tuple([xs[k] for k in varied])
            return self._torch.func.jvp(self._of(compute, xs, varied), points, given[count:])[1]  # type: ignore[no-any-return]  # of torch, which may be absent

        return jvp

    def _of(self, compute: Compute, xs: Sequence[Any], varied: Sequence[int]) -> Compute:
        """Return the differentiable results as a function of some inputs."""

        def call(*values: Any) -> tuple[Any, ...]:
            given = list(xs)
            for k, value in zip(varied, values, strict=True):
                given[k] = value
            return tuple([y for y in compute(*given) if _is_differentiable(y)])

        return call

    def batched(self, compute: Compute, in_dims: tuple[int | None, ...]) -> Compute:
        return self._torch.func.vmap(compute, in_dims=in_dims)  # type: ignore[no-any-return]  # of torch, which may be absent
