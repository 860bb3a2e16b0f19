"""What torch.nn.utils holds and belongs to layers: `rnn`, sequences of several lengths.

Clipping of gradients is in `gradmgr.optim`.
"""

from typing import NoReturn

from gradmgr.nn.utils import rnn

__all__ = ["rnn"]


def __getattr__(name: str) -> NoReturn:
    is_clipping = name in ("clip_grad_norm_", "clip_grad_value_")
    more = f": it is gradmgr.optim.{name}" if is_clipping else ""
    raise AttributeError(f"module 'gradmgr.nn.utils' has no attribute {name!r}{more}")
