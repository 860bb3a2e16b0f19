"""NumPy's functions that have no counterpart here, each with the reason."""

from __future__ import annotations

from types import MappingProxyType

# By name as after "numpy.": what stands in the way, and what to do instead.
REFUSED = MappingProxyType(
    {
        "asmatrix": "numpy.matrix is deprecated and a Tensor is an array; use array and @",
        "bmat": "numpy.matrix is deprecated and a Tensor is an array; use block",
        "frompyfunc": "it computes on Python objects, which carry no gradient; use vectorize",
        "nested_iters": "it iterates over the memory of plain arrays; call numpy.nested_iters on t.numpy()",
    }
)
