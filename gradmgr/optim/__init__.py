"""Optimisers with the names and arguments of torch.optim.

>>> import gradmgr.numpy as np
>>> from gradmgr import GradManager, optim, tensor
>>> w = tensor([3.0, -2.0])
>>> optimizer = optim.Adam([w], lr=0.1)
>>> gm = GradManager().attach([w])
>>> for _ in range(300):
...     optimizer.zero_grad()
...     with gm:
...         gm.backward(np.sum((w - 1) ** 2))
...     optimizer.step()
>>> bool(np.allclose(w, 1, atol=0.01))
True
"""

from gradmgr._engine.wrong_calls import explain_classes
from gradmgr.optim import lr_scheduler
from gradmgr.optim._adaptive import Adadelta, Adamax, NAdam, RAdam
from gradmgr.optim._algorithms import SGD, Adagrad, Adam, AdamW, Lion, RMSprop, SparseAdam
from gradmgr.optim._clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from gradmgr.optim._lbfgs import LBFGS
from gradmgr.optim._optimizer import Optimizer
from gradmgr.optim._scaler import GradScaler

__all__ = [
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "GradScaler",
    "Lion",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "SparseAdam",
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "lr_scheduler",
]

explain_classes(globals(), [name for name in __all__ if name != "Optimizer"])
