"""Discrete Fourier transforms on Tensors: the names and keywords of `numpy.fft`, differentiable."""

from __future__ import annotations

from typing import Any

import numpy as _numpy  # noqa: ICN001  # np would be a public name of this namespace

from gradmgr.numpy import _dispatch

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    raise _dispatch.missing(name, "fft.", _numpy.fft)


def __dir__() -> list[str]:
    return sorted(__all__)
