"""autograd.numpy.linalg: the functions of `gradmgr.numpy.linalg`.

The gradient of `eigh` is, as autograd's, that of the triangle which it reads; gradmgr's is the symmetric one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gradmgr.numpy as gnp
from gradmgr.compat.autograd.tracer import isbox
from gradmgr.numpy import linalg as _linalg

globals().update({name: getattr(_linalg, name) for name in _linalg.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


def _mirrored(a: Any, uplo: str) -> Any:
    """Return Hermitian matrices made of one triangle."""
    triangle = gnp.tril(a, -1) if uplo.upper() == "L" else gnp.triu(a, 1)
    diagonal = gnp.real(gnp.diagonal(a, axis1=-2, axis2=-1))
    return triangle + gnp.conj(gnp.swapaxes(triangle, -1, -2)) + gnp.expand_dims(diagonal, -1) * gnp.eye(a.shape[-1])


@functools.wraps(_linalg.eigh, updated=())
def eigh(a: Any, UPLO: Any = "L") -> Any:  # noqa: N803  # NumPy's name
    """Return the eigenvalues and eigenvectors of Hermitian matrices, of which one triangle is read."""
    return _linalg.eigh(_mirrored(a, UPLO) if isbox(a) else a, UPLO)


T = _linalg.matrix_transpose  # this and the next one: names that autograd's own rules use
_dot = gnp.matmul


__all__ = [*_linalg.__all__]
