"""NumPy that differentiates, with the history under your hand.

>>> import gradmgr.numpy as np
>>> from gradmgr import GradManager, tensor
>>> w = tensor([1.0, 2.0])
>>> gm = GradManager().attach(w)
>>> with gm:
...     loss = np.sum(np.tanh(w) ** 2)
...     gm.backward(loss)
>>> w.grad.shape
(2,)
"""

from gradmgr import (  # noqa: F401  # not used yet  # noqa: F401  # not used yet
    _batched,
    _diary,
    _grad,
    _listen,
    _methods,
    _picture,
    _saved,
    _spill,
    anomaly,
    checkpoint,
    errors,
    forward_ad,
    function,
    functional,
    graph,
    numpy,
    profiler,
    special,
    vmap,
)
from gradmgr._backward import AttachSpec
from gradmgr._einops import register_einops
from gradmgr._grad import backward, grad
from gradmgr._modes import enable_grad, no_grad
from gradmgr._tensor import Tensor, from_dlpack, tensor
from gradmgr.anomaly import detect_anomaly, set_detect_anomaly
from gradmgr.errors import GradcheckError
from gradmgr.gradcheck import gradcheck
from gradmgr.manager import GradManager, GradManagerGroup, get_backwarding_grad_manager, set_multithreading_enabled
from gradmgr.ops.create import asarray

__version__ = "0.1.0"

__all__ = [
    "AttachSpec",
    "GradManager",
    "GradManagerGroup",
    "GradcheckError",
    "Tensor",
    "anomaly",
    "asarray",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "errors",
    "from_dlpack",
    "get_backwarding_grad_manager",
    "grad",
    "gradcheck",
    "graph",
    "no_grad",
    "numpy",
    "register_einops",
    "set_detect_anomaly",
    "set_multithreading_enabled",
    "special",
    "tensor",
]
