"""Discrete Fourier transforms on Tensors: the names and keywords of `numpy.fft`, differentiable.

Shapes, dtypes and the types of errors are those of `numpy.fft`.

>>> import gradmgr
>>> import gradmgr.numpy as np
>>> x = gradmgr.tensor([1.0, 2.0, 3.0])
>>> gm = gradmgr.GradManager().attach(x)
>>> with gm:
...     gm.backward(np.sum(np.abs(np.fft.rfft(x)) ** 2))
>>> x.grad
Tensor([ 9., 12., 15.])
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy  # noqa: ICN001  # np would be a public name of this namespace

from gradmgr.numpy import _dispatch
from gradmgr.ops.fft import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]


def __getattr__(name: str) -> Any:
    raise _dispatch.missing_name_error(name, "fft.", _numpy.fft)


def __dir__() -> list[str]:
    return sorted(__all__)
