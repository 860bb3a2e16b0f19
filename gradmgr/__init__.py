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

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradmgr import _methods, anomaly, errors, graph, numpy, special
from gradmgr._backward import AttachSpec
from gradmgr._blocks import get_num_threads, set_num_threads
from gradmgr._einops import register_einops
from gradmgr._grad import backward, grad
from gradmgr._memory import keep_freed_memory
from gradmgr._modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from gradmgr._tensor import Tensor, from_dlpack, tensor
from gradmgr.anomaly import detect_anomaly, set_detect_anomaly
from gradmgr.errors import GradcheckError
from gradmgr.manager import GradManager, GradManagerGroup, get_backwarding_grad_manager, set_multithreading_enabled
from gradmgr.ops.create import asarray
from gradmgr.vmap import vmap

if TYPE_CHECKING:
    from gradmgr import distributed, forward_ad, function, functional, nn, optim, profiler
    from gradmgr._checkpoint import checkpoint, checkpoint_sequential
    from gradmgr._files import load, save
    from gradmgr._gradcheck import gradcheck, gradgradcheck
    from gradmgr.function import Function, custom_op, once_differentiable

_methods.bind()

__version__ = "0.1.0"

__all__ = [
    "AttachSpec",
    "Function",
    "GradManager",
    "GradManagerGroup",
    "GradcheckError",
    "Tensor",
    "anomaly",
    "asarray",
    "backward",
    "checkpoint",
    "checkpoint_sequential",
    "custom_op",
    "detect_anomaly",
    "distributed",
    "enable_grad",
    "errors",
    "forward_ad",
    "from_dlpack",
    "function",
    "functional",
    "get_backwarding_grad_manager",
    "get_num_threads",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "keep_freed_memory",
    "load",
    "nn",
    "no_grad",
    "numpy",
    "once_differentiable",
    "optim",
    "profiler",
    "register_einops",
    "save",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
    "set_num_threads",
    "special",
    "tensor",
    "vmap",
]


# Rooms that are opened when something in them is first asked for: to import them with the rest takes a sixth longer.
_LATER = MappingProxyType(
    {
        "Function": "function",
        "checkpoint": "_checkpoint",
        "checkpoint_sequential": "_checkpoint",
        "custom_op": "function",
        "distributed": "distributed",
        "forward_ad": "forward_ad",
        "function": "function",
        "functional": "functional",
        "gradcheck": "_gradcheck",
        "gradgradcheck": "_gradcheck",
        "load": "_files",
        "nn": "nn",
        "once_differentiable": "function",
        "optim": "optim",
        "profiler": "profiler",
        "save": "_files",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise errors.lacking(name, "gradmgr")
    room = import_module(f"gradmgr.{_LATER[name]}")
    return room if name == _LATER[name] else getattr(room, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
