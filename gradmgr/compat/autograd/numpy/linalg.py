"""autograd.numpy.linalg: the functions of `gradmgr.numpy.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradmgr.numpy as gnp
from gradmgr.numpy import linalg as _linalg

globals().update({name: getattr(_linalg, name) for name in _linalg.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


T = _linalg.matrix_transpose  # this and the next one: names that autograd's own rules use
_dot = gnp.matmul


__all__ = [*_linalg.__all__]
