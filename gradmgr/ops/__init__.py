"""The op table, by NumPy's own chapters. Importing it completes Tensor."""

from gradmgr.ops import (
    apply,
    arithmetic,
    array_methods,
    calculus,
    constant,
    convert,
    create,
    decompose,
    edit,
    fft,
    in_place,
    join,
    linalg,
    order,
    pick,
    polynomial,
    products,
    reduce,
    shape,
    special,
    statistics,
    ufuncs,
)

array_methods.bind()
in_place.bind()

__all__ = [
    "apply",
    "arithmetic",
    "calculus",
    "constant",
    "convert",
    "create",
    "decompose",
    "edit",
    "fft",
    "in_place",
    "join",
    "linalg",
    "methods",
    "order",
    "pick",
    "polynomial",
    "products",
    "reduce",
    "shape",
    "special",
    "statistics",
    "ufuncs",
]
