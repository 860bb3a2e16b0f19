"""autograd.numpy.linalg: the functions of `gradmgr.numpy.linalg`."""

from gradmgr.numpy import linalg as _linalg

globals().update({name: getattr(_linalg, name) for name in _linalg.__all__})

__all__ = [*_linalg.__all__]
