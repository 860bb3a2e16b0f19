"""Functions of neural networks with the names and arguments of torch.nn.functional.

They take Tensors and plain arrays; for plain arrays alone they return plain arrays.

    >>> import numpy as np
    >>> from gradmgr import GradManager, tensor
    >>> from gradmgr.nn import functional as F
    >>> logits, labels = tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]]), np.array([0, 2])
    >>> with GradManager().attach(logits) as gm:
    ...     loss = F.cross_entropy(logits, labels)
    ...     gm.backward(loss)
    >>> print(f"{loss.item():.4f}", np.round(logits.grad.numpy(), 3).tolist())
    0.6342 [[-0.078, 0.057, 0.021], [0.167, 0.167, -0.333]]
"""

from __future__ import annotations

from gradmgr.nn._functions.activation import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    logsigmoid,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from gradmgr.nn._functions.adaptive_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
)
from gradmgr.nn._functions.attention import scaled_dot_product_attention
from gradmgr.nn._functions.convolution import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from gradmgr.nn._functions.cross_entropy import cross_entropy, nll_loss
from gradmgr.nn._functions.dropout import dropout
from gradmgr.nn._functions.embedding import embedding, one_hot
from gradmgr.nn._functions.embedding_bag import embedding_bag
from gradmgr.nn._functions.grid_sampling import affine_grid, grid_sample
from gradmgr.nn._functions.instance_norm import instance_norm
from gradmgr.nn._functions.linear import linear
from gradmgr.nn._functions.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from gradmgr.nn._functions.normalization import batch_norm, group_norm, layer_norm, normalize, rms_norm
from gradmgr.nn._functions.pooling import adaptive_avg_pool2d, avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from gradmgr.nn._functions.recurrent import gru_cell, lstm_cell
from gradmgr.nn._functions.resampling import interpolate, pad
from gradmgr.nn._functions.rnn_cell import rnn_relu_cell, rnn_tanh_cell
from gradmgr.nn._functions.volumes import avg_pool3d, conv3d, conv_transpose3d, max_pool3d

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "affine_grid",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "embedding_bag",
    "gelu",
    "grid_sample",
    "group_norm",
    "gru_cell",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "lstm_cell",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "rnn_relu_cell",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "tanh",
]
