"""The op table, by NumPy's own chapters. Importing it completes Tensor."""

from gradmgr.ops import arithmetic, constant, convert, create, join, linalg, methods, pick, reduce, shape

methods.bind()

__all__ = ["arithmetic", "constant", "convert", "create", "join", "linalg", "methods", "pick", "reduce", "shape"]
