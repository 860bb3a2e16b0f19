"""Embedding."""

from __future__ import annotations

from typing import Any

from gradmgr import errors
from gradmgr._engine.history.modes import no_grad
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional, init
from gradmgr.nn._functions.arguments import integer, length
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Rng, empty_parameter


class Embedding(Module):
    """A table of vectors that indices look up.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the length of a row.
        padding_idx: a row that is 0 at first and receives no gradient.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the table; float32 by default.
        rng: a Generator to draw from, from the standard normal distribution.

    Parameters: weight (num_embeddings, embedding_dim).

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.Embedding(10, 4, rng=np.random.default_rng(0))(np.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        device: str | None = None,
        dtype: Any = None,
        rng: Rng = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = length(num_embeddings, "num_embeddings", "Embedding")
        self.embedding_dim = length(embedding_dim, "embedding_dim", "Embedding")
        self.padding_idx = self._row(padding_idx)
        self.weight = empty_parameter((self.num_embeddings, self.embedding_dim), dtype, device)
        self.reset_parameters(rng=rng)

    def _row(self, index: int | None) -> int | None:
        if index is None:
            return None
        row, rows = integer(index, "padding_idx", "Embedding"), self.num_embeddings
        if not -rows <= row < rows:
            raise errors.LabelError(f"Embedding: padding_idx must be a row of the {rows} there are; found {index}")
        return row % rows

    def reset_parameters(self, *, rng: Rng = None) -> None:
        """Draw new values for the table."""
        init.normal_(self.weight, rng=rng)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    def forward(self, x: Any) -> Tensor:
        """Return the rows at indices of any shape (...), as (..., embedding_dim)."""
        return functional.embedding(x, self.weight, self.padding_idx)  # type: ignore[no-any-return]  # x is Any

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
