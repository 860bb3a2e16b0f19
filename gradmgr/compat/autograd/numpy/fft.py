"""autograd.numpy.fft: the functions of `gradmgr.numpy.fft`; frequencies are plain arrays."""

from typing import TYPE_CHECKING, Any

import numpy as _numpy

from gradmgr.numpy import fft as _fft

globals().update({name: getattr(_fft, name) for name in _fft.__all__})
globals().update({name: getattr(_numpy.fft, name) for name in ("fftfreq", "rfftfreq")})  # gradmgr's give Tensors

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = [*_fft.__all__]
