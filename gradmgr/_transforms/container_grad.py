"""The gradient of a function of nested containers, as `functional.grad` and `value_and_grad` compute it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
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
        self._args = args
        self._kwargs = kwargs
        self._has_aux = has_aux
        self._positions = [self._position(k) for k in argnums]
        if len(argnums) > 1 and len(set(self._positions)) < len(argnums):
            raise ValueError(f"{self._name}: argnums {argnums} names an argument twice")
        self._leaves: list[Any] = []  # of the chosen arguments
        self._varied: list[bool] = []  # whether each is differentiated
        for k in self._positions:
            self._add_leaves_of(k)
        varied = [leaf for leaf, is_varied in zip(self._leaves, self._varied, strict=True) if is_varied]
        self._xs = [leaf_as_tensor(leaf) for leaf in varied]
        self._plain = not any(isinstance(leaf, Tensor) for leaf in varied)

    @property
    def _name(self) -> str:
        return f"the gradient of {getattr(self._func, '__name__', 'func')}"

    def _position(self, k: int) -> int:
        count = len(self._args)
        if not -count <= k < count:
            raise ValueError(
                f"{self._name}: argnums asks for argument {k}, and {count} positional arguments were given; "
                "what is differentiated is passed by position"
            )
        return int(k) % count

    def _add_leaves_of(self, k: int) -> None:
        leaves = leaves_of(self._args[k])
        varied = [is_differentiable_leaf(leaf) for leaf in leaves]
        for leaf, is_varied in zip(leaves, varied, strict=True):
            dtype = None if is_varied else getattr(leaf, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind in "fc":
                raise errors.DtypeError(f"{self._name}: argument {k} holds {dtype}, which cannot be differentiated")
        if True not in varied:
            found = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
            raise errors.DtypeError(
                f"{self._name}: argument {k} holds nothing to differentiate by, only {', '.join(found) or 'nothing'}; "
                "pass floating numbers, such as 3.0 for 3"
            )
        self._leaves += leaves
        self._varied += varied

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
        pairs = zip(self._leaves, self._varied, strict=True)
        leaves = iter([as_kind_of(next(made), leaf) if is_varied else None for leaf, is_varied in pairs])
        trees = [rebuilt(self._args[k], leaves) for k in self._positions]
        if not self._plain or isinstance(value, Tensor):
            value = as_tensor(value)
        elif not isinstance(value, np.generic):
            value = value.reshape(())[()]
        return ((value, aux) if self._has_aux else value), (trees[0] if one else tuple(trees))

    def _compute(self, handles: list[Tensor]) -> tuple[Tensor, Any]:
        given = iter(handles)
        pairs = zip(self._leaves, self._varied, strict=True)
        leaves = iter([next(given) if is_varied else leaf for leaf, is_varied in pairs])
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
