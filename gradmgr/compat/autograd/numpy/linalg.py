"""autograd.numpy.linalg: the functions of `gradmgr.numpy.linalg`."""

from typing import TYPE_CHECKING, Any

from gradmgr.numpy import linalg as _linalg

globals().update({name: getattr(_linalg, name) for name in _linalg.__all__})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = [*_linalg.__all__]
