"""The operators that compute one ufunc of NumPy's, by the names of their methods."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

COMPARISONS: MappingProxyType[str, np.ufunc] = MappingProxyType(
    {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
)
BITWISE: MappingProxyType[str, np.ufunc] = MappingProxyType(
    {
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "lshift": np.left_shift,
        "rshift": np.right_shift,
    }
)
