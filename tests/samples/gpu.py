"""What is otherwise on a GPU: what CuPy lacks, and where its results differ from NumPy's by nature."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from samples._table import Sample


class Refusal(NamedTuple):
    """In which numbers a call is refused on a GPU, and what of CuPy's is lacking, in a word that the error says."""

    numbers: Literal["any", "complex"]
    lacking: str


# By a function's name; by sample, as "special.jv-0-d"; by call of a function without gradient, as "isin-2".
REFUSED_ON_GPU: dict[str, Refusal] = {
    **{f"special.{name}": Refusal("complex", name) for name in ("erf", "erfc", "erfcx", "log_ndtr", "ndtr")},
    **{f"engine.{name}": Refusal("complex", "erfcx") for name in ("ierfcx", "normal_excess", "normal_hazard")},
    **{f"special.jv-{case}": Refusal("any", "jv") for case in ("integer orders", "order 1.5", "0-d", "at 0")},
    "special.iv": Refusal("any", "iv"),
    "busday_offset": Refusal("any", "busday_offset"),
    "count_nonzero-2": Refusal("any", "keepdims"),
    "isin-2": Refusal("any", "kind"),
    "lexsort-2": Refusal("any", "axis"),
    "min_scalar_type": Refusal("any", "min_scalar_type"),
    "mintypecode": Refusal("any", "host memory"),
    "packbits-0": Refusal("any", "axis"),
    "unpackbits-0": Refusal("any", "count"),
}

# Complex on a GPU also where NumPy, before 2.5, gives real arrays for real values.
COMPLEX_ON_GPU = ("linalg.eig", "linalg.eigvals", "roots")

# Samples that plain numpy computes in arrays of its own, on the host, before any Tensor is asked.
MADE_ON_HOST = ("fft.fftfreq-of a spacing", "fft.rfftfreq-of a spacing")

# Functions without gradient that give text or files, for which values must come to the host.
FOR_THE_HOST = ("array2string", "array_repr", "array_str", "save", "savetxt", "savez", "savez_compressed")


def refusal(sample: Sample, dtype: Any = np.float64) -> Refusal | None:
    """Return why a sample is refused on a GPU in this dtype; None where it is not."""
    found = REFUSED_ON_GPU.get(str(sample), REFUSED_ON_GPU.get(sample.name))
    return found if found is not None and (found.numbers == "any" or np.dtype(dtype).kind == "c") else None


def refused_call(name: str, k: int) -> Refusal | None:
    """Return why the k-th call of a function without gradient is refused on a GPU."""
    return REFUSED_ON_GPU.get(f"{name}-{k}", REFUSED_ON_GPU.get(name))
