"""Embedding and EmbeddingBag."""

from __future__ import annotations

from typing import Any

from gradmgr import errors
from gradmgr._engine.history.modes import no_grad
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional, init
from gradmgr.nn._functions.arguments import check_word, integer, length
from gradmgr.nn._functions.embedding import refuse_max_norm
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Rng, empty_parameter


class _Table(Module):
    """What Embedding and EmbeddingBag share: a table, and how its gradient is made."""

    weight: Parameter

    def _set_up(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, device: str | None, dtype: Any
    ) -> None:
        name = type(self).__name__
        self.num_embeddings = length(num_embeddings, "num_embeddings", name)
        self.embedding_dim = length(embedding_dim, "embedding_dim", name)
        self.padding_idx = self._row(padding_idx, name)
        self.weight = empty_parameter((self.num_embeddings, self.embedding_dim), dtype, device)

    def _row(self, index: int | None, name: str) -> int | None:
        if index is None:
            return None
        row, rows = integer(index, "padding_idx", name), self.num_embeddings
        if not -rows <= row < rows:
            raise errors.LabelError(f"{name}: padding_idx must be one of the {rows} rows; found {index}")
        return row % rows

    def reset_parameters(self, *, rng: Rng = None) -> None:
        """Draw new values for the table."""
        init.normal_(self.weight, rng=rng)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    def extra_repr(self) -> str:
        """Return the sizes and settings, for `repr`."""
        given = [f"{self.num_embeddings}, {self.embedding_dim}"]
        for name, usual in (("padding_idx", None), ("scale_grad_by_freq", False), ("mode", None), ("sparse", False)):
            value = getattr(self, name, usual)
            if value != usual:
                given.append(f"{name}={value!r}")
        return ", ".join(given)


class Embedding(_Table):
    """A table of vectors that indices look up.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the length of a row.
        padding_idx: a row that is 0 at first and receives no gradient.
        max_norm, norm_type: not supported, see `functional.embedding`.
        scale_grad_by_freq: divide the gradient of each row by how often it is read.
        sparse: let the gradient be a `sparse.RowSparse`, of the rows that were read: for a table of many rows, with
            SGD, Adagrad or SparseAdam.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the table; float32 by default.
        rng: a Generator to draw from, from the standard normal distribution.

    Parameters: weight (num_embeddings, embedding_dim).

    Raises:
        ValueError: a size is negative.
        TypeError: indices are not of integers.
        IndexError: an index, or `padding_idx`, is not the number of a row.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> nn.Embedding(10, 4, rng=np.random.default_rng(0))(np.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        device: str | None = None,
        dtype: Any = None,
        rng: Rng = None,
    ) -> None:
        super().__init__()
        refuse_max_norm(max_norm, "Embedding")
        self._set_up(num_embeddings, embedding_dim, padding_idx, device, dtype)
        self.scale_grad_by_freq, self.sparse = bool(scale_grad_by_freq), bool(sparse)
        self.reset_parameters(rng=rng)

    def forward(self, x: Any) -> Tensor:
        """Return the rows at indices of any shape (...), as (..., embedding_dim)."""
        return functional.embedding(  # type: ignore[no-any-return]  # x is Any
            x, self.weight, self.padding_idx, None, 2.0, self.scale_grad_by_freq, self.sparse
        )


class EmbeddingBag(_Table):
    """Sums, means or maxima of the vectors that bags of indices look up.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the length of a row.
        max_norm, norm_type: not supported, see `functional.embedding`.
        scale_grad_by_freq: divide the gradient of each row by how often it is read; not with "max".
        mode: "sum", "mean" or "max".
        sparse: let the gradient be a `sparse.RowSparse`, of the rows that were read.
        include_last_offset: whether offsets has one more element at its end, the length of the input.
        padding_idx: an index that is left out of its bag; its row is 0 at first and receives no gradient.
        device: "cpu" or "cuda:0".
        dtype: the dtype of the table; float32 by default.
        rng: a Generator to draw from, from the standard normal distribution.

    Parameters: weight (num_embeddings, embedding_dim).

    Raises:
        ValueError: a size is negative, or `mode` is unknown; the input needs offsets and has none, or the reverse.
        TypeError: indices are not of integers.
        IndexError: an index is not the number of a row.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> bag = nn.EmbeddingBag(10, 4, mode="sum", rng=np.random.default_rng(0))
    >>> bag(np.array([1, 2, 4, 5, 4]), np.array([0, 3])).shape
    (2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        device: str | None = None,
        dtype: Any = None,
        rng: Rng = None,
    ) -> None:
        super().__init__()
        refuse_max_norm(max_norm, "EmbeddingBag")
        check_word(mode, ("sum", "mean", "max"), "mode", "EmbeddingBag")
        self._set_up(num_embeddings, embedding_dim, padding_idx, device, dtype)
        self.scale_grad_by_freq, self.sparse = bool(scale_grad_by_freq), bool(sparse)
        self.mode, self.include_last_offset = mode, bool(include_last_offset)
        self.reset_parameters(rng=rng)

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Tensor:
        """Return one row for each bag; the arguments are those of `functional.embedding_bag`."""
        return functional.embedding_bag(  # type: ignore[no-any-return]  # input is Any
            input,
            self.weight,
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            sparse=self.sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
