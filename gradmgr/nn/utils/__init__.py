"""What torch.nn.utils holds and belongs to layers: `rnn`, sequences of several lengths.

Clipping of gradients is in `gradmgr.optim`.
"""

from typing import TYPE_CHECKING, NoReturn

from gradmgr.nn.utils import rnn

__all__ = ["rnn"]


if not TYPE_CHECKING:  # for which every name would be there

    def __getattr__(name: str) -> NoReturn:
        more = f": it is gradmgr.optim.{name}" if name in ("clip_grad_norm_", "clip_grad_value_") else ""
        raise AttributeError(f"module 'gradmgr.nn.utils' has no attribute {name!r}{more}")
