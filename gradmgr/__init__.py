"""NumPy that differentiates, with explicit control over what is recorded.

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

from gradmgr import anomaly, errors, graph, sparse, special
from gradmgr import numpy as numpy
from gradmgr._arrays.allocator import keep_freed_memory
from gradmgr._arrays.blocks import get_num_threads, set_num_threads
from gradmgr._engine.attachment import AttachSpec
from gradmgr._engine.backward import BackwardRun
from gradmgr._engine.history.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from gradmgr._engine.tensor import Tensor, from_dlpack, tensor
from gradmgr._engine.turns import set_multithreading_enabled
from gradmgr._transforms import tensor_methods as _tensor_methods
from gradmgr._transforms.grad import backward, grad
from gradmgr.anomaly import detect_anomaly, set_detect_anomaly
from gradmgr.errors import GradcheckError
from gradmgr.manager import GradManager, GradManagerGroup, get_backwarding_grad_manager
from gradmgr.numpy._einops import register_einops
from gradmgr.ops.create import asarray
from gradmgr.vmap import vmap

if TYPE_CHECKING:
    from gradmgr import (
        distributed,
        distributions,
        forward_ad,
        function,
        functional,
        interop,
        nn,
        optim,
        profiler,
        serialization,
    )
    from gradmgr._compile.compiled import compile  # noqa: A004  # torch's name
    from gradmgr._transforms.checkpoint import checkpoint, checkpoint_sequential
    from gradmgr._transforms.gradcheck import gradcheck, gradgradcheck
    from gradmgr._transforms.promotion import detect_promotion
    from gradmgr.function import Function, custom_op, once_differentiable
    from gradmgr.serialization import load, save

_tensor_methods.bind()

__version__ = "0.2.0"

# `from gradmgr import *` brings all of these, so `numpy` is not among them: it would hide NumPy itself.
__all__ = [
    "AttachSpec",
    "BackwardRun",
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
    "compile",
    "custom_op",
    "detect_anomaly",
    "detect_promotion",
    "distributed",
    "distributions",
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
    "interop",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "keep_freed_memory",
    "load",
    "nn",
    "no_grad",
    "once_differentiable",
    "optim",
    "profiler",
    "register_einops",
    "save",
    "serialization",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
    "set_num_threads",
    "sparse",
    "special",
    "tensor",
    "vmap",
]


# Modules that are imported at the first access to one of their names: importing them at once takes a sixth longer.
_DEFERRED = MappingProxyType(
    {
        "Function": "function",
        "checkpoint": "_transforms.checkpoint",
        "compile": "_compile.compiled",
        "checkpoint_sequential": "_transforms.checkpoint",
        "custom_op": "function",
        "detect_promotion": "_transforms.promotion",
        "distributed": "distributed",
        "distributions": "distributions",
        "forward_ad": "forward_ad",
        "function": "function",
        "functional": "functional",
        "gradcheck": "_transforms.gradcheck",
        "gradgradcheck": "_transforms.gradcheck",
        "interop": "interop",
        "load": "serialization",
        "load_ipython_extension": "_transforms.notebook",
        "nn": "nn",
        "once_differentiable": "function",
        "optim": "optim",
        "profiler": "profiler",
        "save": "serialization",
        "serialization": "serialization",
        "unload_ipython_extension": "_transforms.notebook",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _DEFERRED:
        if name in numpy.__all__:
            raise AttributeError(f"module 'gradmgr' has no attribute {name!r}: write gradmgr.numpy.{name}, as NumPy's")
        raise errors.lacking(name, "gradmgr")
    module = import_module(f"gradmgr.{_DEFERRED[name]}")
    return module if name == _DEFERRED[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
