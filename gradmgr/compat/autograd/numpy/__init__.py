"""autograd.numpy: NumPy's names, on traced values and plain ones; plain values give plain arrays.

The functions are those of `gradmgr.numpy`, but for those that make arrays: these give arrays, unless a value
that they are given is traced.
"""

from typing import TYPE_CHECKING, Any

import numpy as _numpy

from gradmgr.compat.autograd.numpy import _functions, fft, linalg, numpy_boxes, numpy_vjps, random
from gradmgr.compat.autograd.numpy._functions import make_diagonal, metadata

__version__ = numpy_version = _numpy.__version__

globals().update({name: _functions.exported(name) for name in _functions.names()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = [
    *_functions.names(),
    "fft",
    "linalg",
    "make_diagonal",
    "metadata",
    "numpy_boxes",
    "numpy_version",
    "numpy_vjps",
    "random",
]
