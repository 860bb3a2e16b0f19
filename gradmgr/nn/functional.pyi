"""Types of functions of neural networks. Written by tools/make_stubs.py; do not edit."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import DTypeLike

from gradmgr._engine.tensor import Tensor

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

@overload
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor: ...
@overload
def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any: ...
@overload
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor: ...
@overload
def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any: ...
@overload
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor: ...
@overload
def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any: ...
@overload
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor: ...
@overload
def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any: ...
@overload
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor: ...
@overload
def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any: ...
@overload
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor: ...
@overload
def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any: ...
@overload
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor: ...
@overload
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Any: ...
@overload
def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor: ...
@overload
def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any: ...
@overload
def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor: ...
@overload
def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any: ...
@overload
def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor: ...
@overload
def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any: ...
@overload
def batch_norm(
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def batch_norm(
    input: Any,
    running_mean: Tensor,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Tensor,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Any: ...
@overload
def binary_cross_entropy(input: Tensor, target: Any, weight: Any = None, reduction: str = "mean") -> Tensor: ...
@overload
def binary_cross_entropy(input: Any, target: Tensor, weight: Any = None, reduction: str = "mean") -> Tensor: ...
@overload
def binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any: ...
@overload
def binary_cross_entropy_with_logits(
    input: Tensor, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    input: Any, target: Tensor, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any: ...
@overload
def conv1d(
    input: Tensor, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv1d(
    input: Any, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any: ...
@overload
def conv2d(
    input: Tensor, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv2d(
    input: Any, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any: ...
@overload
def conv3d(
    input: Tensor, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv3d(
    input: Any, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor: ...
@overload
def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any: ...
@overload
def conv_transpose1d(
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose1d(
    input: Any,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any: ...
@overload
def conv_transpose2d(
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose2d(
    input: Any,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any: ...
@overload
def conv_transpose3d(
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose3d(
    input: Any,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor: ...
@overload
def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any: ...
@overload
def cross_entropy(
    input: Tensor,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor: ...
@overload
def cross_entropy(
    input: Any,
    target: Tensor,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor: ...
@overload
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any: ...
@overload
def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor: ...
@overload
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, rng: np.random.Generator | None = None
) -> Any: ...
@overload
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
@overload
def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any: ...
@overload
def embedding(
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor: ...
@overload
def embedding(
    input: Any,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor: ...
@overload
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any: ...
@overload
def embedding_bag(
    input: Tensor,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor: ...
@overload
def embedding_bag(
    input: Any,
    weight: Tensor,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor: ...
@overload
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any: ...
@overload
def gelu(input: Tensor, approximate: str = "none") -> Tensor: ...
@overload
def gelu(input: Any, approximate: str = "none") -> Any: ...
@overload
def grid_sample(
    input: Tensor, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor: ...
@overload
def grid_sample(
    input: Any, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor: ...
@overload
def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Any: ...
@overload
def group_norm(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-05) -> Tensor: ...
@overload
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-05) -> Any: ...
@overload
def gru_cell(input: Tensor, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def gru_cell(input: Any, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def gru_cell(input: Any, hx: Any, w_ih: Tensor, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any: ...
@overload
def huber_loss(input: Tensor, target: Any, reduction: str = "mean", delta: float = 1.0) -> Tensor: ...
@overload
def huber_loss(input: Any, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor: ...
@overload
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any: ...
@overload
def instance_norm(
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Any: ...
@overload
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor: ...
@overload
def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any: ...
@overload
def kl_div(input: Tensor, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor: ...
@overload
def kl_div(input: Any, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor: ...
@overload
def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any: ...
@overload
def l1_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor: ...
@overload
def l1_loss(input: Any, target: Tensor, reduction: str = "mean") -> Tensor: ...
@overload
def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any: ...
@overload
def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-05
) -> Tensor: ...
@overload
def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-05) -> Any: ...
@overload
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor: ...
@overload
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any: ...
@overload
def linear(input: Tensor, weight: Any, bias: Any = None) -> Tensor: ...
@overload
def linear(input: Any, weight: Tensor, bias: Any = None) -> Tensor: ...
@overload
def linear(input: Any, weight: Any, bias: Any = None) -> Any: ...
@overload
def log_softmax(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def log_softmax(input: Any, dim: int | None = None, dtype: DTypeLike | None = None) -> Any: ...
@overload
def logsigmoid(input: Tensor) -> Tensor: ...
@overload
def logsigmoid(input: Any) -> Any: ...
@overload
def lstm_cell(
    input: Tensor, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]: ...
@overload
def lstm_cell(
    input: Any, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]: ...
@overload
def lstm_cell(
    input: Any, hx: Any, w_ih: Tensor, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]: ...
@overload
def lstm_cell(
    input: Any, hx: Any, w_ih: Any, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, Tensor]: ...
@overload
def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Any, Any]: ...
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any: ...
@overload
def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any: ...
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any: ...
@overload
def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any: ...
@overload
def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor: ...
@overload
def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any: ...
@overload
def mse_loss(input: Tensor, target: Any, reduction: str = "mean") -> Tensor: ...
@overload
def mse_loss(input: Any, target: Tensor, reduction: str = "mean") -> Tensor: ...
@overload
def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any: ...
@overload
def nll_loss(
    input: Tensor, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor: ...
@overload
def nll_loss(
    input: Any, target: Tensor, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor: ...
@overload
def nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any: ...
@overload
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor: ...
@overload
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any: ...
@overload
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor: ...
@overload
def one_hot(tensor: Any, num_classes: int = -1) -> Any: ...
@overload
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor: ...
@overload
def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any: ...
@overload
def relu(input: Tensor, inplace: bool = False) -> Tensor: ...
@overload
def relu(input: Any, inplace: bool = False) -> Any: ...
@overload
def rms_norm(input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor: ...
@overload
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any: ...
@overload
def rnn_relu_cell(input: Tensor, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_relu_cell(input: Any, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_relu_cell(input: Any, hx: Any, w_ih: Tensor, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_relu_cell(input: Any, hx: Any, w_ih: Any, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_relu_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any: ...
@overload
def rnn_tanh_cell(input: Tensor, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_tanh_cell(input: Any, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_tanh_cell(input: Any, hx: Any, w_ih: Tensor, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_tanh_cell(input: Any, hx: Any, w_ih: Any, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor: ...
@overload
def rnn_tanh_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any: ...
@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Any,
    key: Tensor,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    rng: np.random.Generator | None = None,
) -> Any: ...
@overload
def sigmoid(input: Tensor) -> Tensor: ...
@overload
def sigmoid(input: Any) -> Any: ...
@overload
def silu(input: Tensor, inplace: bool = False) -> Tensor: ...
@overload
def silu(input: Any, inplace: bool = False) -> Any: ...
@overload
def smooth_l1_loss(input: Tensor, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor: ...
@overload
def smooth_l1_loss(input: Any, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor: ...
@overload
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any: ...
@overload
def softmax(input: Tensor, dim: int | None = None, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def softmax(input: Any, dim: int | None = None, dtype: DTypeLike | None = None) -> Any: ...
@overload
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor: ...
@overload
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any: ...
@overload
def tanh(input: Tensor) -> Tensor: ...
@overload
def tanh(input: Any) -> Any: ...
