"""Sparse arrays."""

from gradmgr._engine.row_sparse import RowSparse

__all__ = ["RowSparse"]
