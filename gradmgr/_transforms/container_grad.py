"""The gradient of a function of nested containers, as `functional.grad` and `value_and_grad` compute it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of, rebuilt
from gradmgr._engine.context import current, recorders
from gradmgr._engine.recorder import snapshot
from gradmgr._engine.tensor import Tensor
from gradmgr._transforms.derivative import (
    Function,
    Pullback,
    as_kind_of,
    as_tensor,
    is_differentiable_leaf,
    leaf_as_tensor,
    new_tensors,
    one_real_output,
    zeros_of,
)


class ContainerGradient:
    """One call of a function that `grad` or `value_and_grad` made."""

    def __init__(
        self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: list[int], has_aux: bool
    ) -> None:
        self._func = func
        self._name = f"the gradient of {getattr(func, '__name__', 'func')}"
        self._args = args
        self._kwargs = kwargs
        self._has_aux = has_aux
        self._positions = [self._position(k) for k in argnums]
        if len(set(self._positions)) < len(self._positions):
            raise ValueError(f"{self._name}: argnums {argnums} names an argument twice")
        self._leaves = [leaf for k in self._positions for leaf in self._leaves_of(k)]
        self._xs = [leaf_as_tensor(leaf) for leaf in self._leaves if is_differentiable_leaf(leaf)]
        self._plain = not any(isinstance(leaf, Tensor) for leaf in self._leaves if is_differentiable_leaf(leaf))

    def _position(self, k: int) -> int:
        count = len(self._args)
        if not -count <= k < count:
            raise ValueError(
                f"{self._name}: argnums asks for argument {k}, and {count} positional arguments were given; "
                "what is differentiated is passed by position"
            )
        return int(k) % count

    def _leaves_of(self, k: int) -> list[Any]:
        leaves = leaves_of(self._args[k])
        for leaf in leaves:
            dtype = getattr(leaf, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind in "fc" and not libraries.is_differentiable(dtype):
                raise errors.DtypeError(f"{self._name}: argument {k} holds {dtype}, which cannot be differentiated")
        if not any(map(is_differentiable_leaf, leaves)):
            found = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
            raise errors.DtypeError(
                f"{self._name}: argument {k} holds nothing to differentiate by, only {', '.join(found) or 'nothing'}; "
                "pass floating numbers, such as 3.0 for 3"
            )
        return leaves

    def value_and_grad(self, one: bool) -> Any:
        """Return ((value, aux) or value, gradient)."""
        outside = recorders(current())
        back = Pullback(self._compute, self._xs)

        def derivatives() -> tuple[Any, Any, list[Any]]:
            y, aux = back.made
            gradients = [None if g is None else snapshot(g, outside) for g in back.vjp([y], [None], last=True)]
            return snapshot(y, outside), aux, gradients

        value, aux, gradients = back.run(derivatives)
        gradients = [zeros_of(x) if g is None else g for g, x in zip(gradients, self._xs, strict=True)]
        made = iter(new_tensors(gradients))
        leaves = iter([as_kind_of(next(made), leaf) if is_differentiable_leaf(leaf) else None for leaf in self._leaves])
        trees = [rebuilt(self._args[k], leaves) for k in self._positions]
        value = value.reshape(())[()] if self._plain and not isinstance(value, Tensor) else as_tensor(value)
        return ((value, aux) if self._has_aux else value), (trees[0] if one else tuple(trees))

    def _compute(self, handles: list[Tensor]) -> tuple[Tensor, Any]:
        given = iter(handles)
        leaves = iter([next(given) if is_differentiable_leaf(leaf) else leaf for leaf in self._leaves])
        args = list(self._args)
        for k in self._positions:
            args[k] = rebuilt(args[k], leaves)
        made = self._func(*args, **self._kwargs)
        aux = None
        if self._has_aux:
            if not (isinstance(made, (tuple, list)) and len(made) == 2):
                raise TypeError(f"{self._name}: with has_aux=True func returns a pair, (value, aux)")
            made, aux = made
        if not isinstance(made, Tensor):
            raise TypeError(
                f"{self._name}: func must return a Tensor; found {type(made).__name__}: float(), .item() and .numpy() "
                "leave the history behind, as does what was computed without the arguments"
            )
        return one_real_output(self._name, [made]), aux
