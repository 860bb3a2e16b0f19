"""Layers and the functions they use, with the names and arguments of torch.nn.

A `Module` holds parameters, which a `GradManager` attaches by name; `gradmgr.save` writes its `state_dict`, and
`load_state_dict` restores it. Parameters are float32 unless a layer is made with `dtype`. Random numbers come from the
numpy.random.Generator passed as `rng` to layers and to `nn.init`: one seed makes a whole model reproducible. A layer
takes the shapes that its docstring names, and raises what its function in `nn.functional` does.

>>> import numpy as np
>>> from gradmgr import GradManager, nn
>>> rng = np.random.default_rng(0)
>>> model = nn.Sequential(nn.Linear(2, 16, rng=rng), nn.Tanh(), nn.Linear(16, 1, rng=rng))
>>> gm = GradManager().attach(dict(model.named_parameters()))
>>> x = rng.uniform(-1, 1, (64, 2)).astype(np.float32)
>>> y = x[:, :1] * x[:, 1:]
>>> for _ in range(300):
...     with gm:
...         loss = nn.functional.mse_loss(model(x), y)
...         gm.backward(loss)
...     for p in model.parameters():
...         p -= 0.3 * p.grad
...     model.zero_grad()
>>> loss.item() < 0.01
True
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from gradmgr._engine.parameter import Parameter
from gradmgr._engine.wrong_calls import explain_classes
from gradmgr.nn import functional, init, utils
from gradmgr.nn._functions.onednn import convolution_library
from gradmgr.nn._modules.activation import (
    ELU,
    GELU,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from gradmgr.nn._modules.attention import MultiheadAttention
from gradmgr.nn._modules.container import ModuleDict, ModuleList, ParameterList, Sequential
from gradmgr.nn._modules.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from gradmgr.nn._modules.dropout import Dropout
from gradmgr.nn._modules.embedding import Embedding, EmbeddingBag
from gradmgr.nn._modules.flatten import Flatten
from gradmgr.nn._modules.functional_call import functional_call
from gradmgr.nn._modules.instance_norm import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from gradmgr.nn._modules.linear import Identity, Linear
from gradmgr.nn._modules.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.normalization import BatchNorm, BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from gradmgr.nn._modules.pooling import AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from gradmgr.nn._modules.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from gradmgr.nn._modules.summary import summary
from gradmgr.nn._modules.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from gradmgr.nn._modules.upsampling import Upsample
from gradmgr.nn._modules.volumes import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool3d,
    Conv3d,
    ConvTranspose3d,
    MaxPool3d,
)

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "ParameterList",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Upsample",
    "convolution_library",
    "functional",
    "functional_call",
    "init",
    "summary",
    "utils",
]

explain_classes(globals(), [name for name in __all__ if name not in ("Module", "Parameter")])

# Names of torch.nn that stand elsewhere, and of other libraries.
_ELSEWHERE = MappingProxyType(
    {
        "Conv": "write gradmgr.nn.Conv2d(in_channels, out_channels, kernel_size)",
        "Dense": "write gradmgr.nn.Linear(in_features, out_features)",
        "SyncBatchNorm": "it is gradmgr.distributed.SyncBatchNorm, as layers do not depend on the connection of ranks",
        "relu": "write gradmgr.nn.functional.relu(x), or the layer gradmgr.nn.ReLU()",
        "softmax": "write gradmgr.nn.functional.softmax(x, dim), or the layer gradmgr.nn.Softmax(dim)",
    }
)

if not TYPE_CHECKING:  # for which every name would be there

    def __getattr__(name: str) -> NoReturn:
        more = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise AttributeError(f"module 'gradmgr.nn' has no attribute {name!r}{more}")
