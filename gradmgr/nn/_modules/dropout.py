"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmgr._arrays.drawing import generator
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_not_in_place, number
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.parameters import Rng

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class Dropout(ArrayModule):
    """In training, set elements to 0 with probability p and divide the others by 1 - p. Srivastava et al., 2014.

    Args:
        p: the probability, from 0 to 1.
        inplace: exists for compatibility with torch; must be False.
        rng: a Generator to draw from, kept as the attribute `rng`; by default a new one. `gradmgr.checkpoint` finds it
            there and draws the same mask again.

    Raises:
        ValueError: p is not from 0 to 1.
        TypeError: p is not a number.

    >>> import numpy as np
    >>> from gradmgr import nn
    >>> layer = nn.Dropout(0.5, rng=np.random.default_rng(0))
    >>> sorted(set(layer(np.ones(100)).tolist())), layer.eval()(np.ones(2))
    ([0.0, 2.0], array([1., 1.]))
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, rng: Rng = None) -> None:
        super().__init__()
        check_not_in_place(inplace, "Dropout")
        if not 0 <= number(p, "p", "Dropout") <= 1:
            raise ValueError(f"Dropout: p must be from 0 to 1; found {p}")
        self.p = p
        self.rng = generator(rng, "Dropout")

    def forward(self, x: Any) -> Any:
        """Return the result for an input of any shape, in the same shape."""
        return functional.dropout(x, self.p, self.training, rng=self.rng)

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        return f"p={self.p}"
