"""What a program trains with, one case for each public name: layers, optimisers, clipping, the examples' options.

For tests that run all of it on arrays that are not NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import Tensor, nn, optim, tensor


def seeded() -> np.random.Generator:
    return np.random.default_rng(7)


def values(*shape: int) -> Any:
    return seeded().uniform(0.1, 0.9, shape).astype("float32")


LABELS = np.array([1, 0, 3])
CODES = np.array([[1, 0], [3, 3], [2, 1]])

# By the layer's name: how to make it, and what to call it with.
LAYERS: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[Any, ...]]] = {
    **{
        name: (lambda new, name=name: getattr(nn, name)(), (values(3, 4),))
        for name in ("ELU", "GELU", "Identity", "LeakyReLU", "ReLU", "SiLU", "Sigmoid", "Softplus", "Tanh")
    },
    **{
        name: (lambda new, name=name: getattr(nn, name)(), (values(3, 4), values(4, 3).T))
        for name in ("BCEWithLogitsLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "SmoothL1Loss")
    },
    "BCELoss": (lambda new: nn.BCELoss(), (values(3, 4) ** 2 / 20, values(3, 4) ** 2 / 20)),
    **{name: (lambda new, name=name: getattr(nn, name)(-1), (values(3, 4),)) for name in ("LogSoftmax", "Softmax")},
    **{
        name: (lambda new, name=name: getattr(nn, name)(), (values(3, 4), LABELS))
        for name in ("CrossEntropyLoss", "NLLLoss")
    },
    "Flatten": (lambda new: nn.Flatten(), (values(2, 3, 4),)),
    "Dropout": (lambda new: nn.Dropout(0.3, rng=seeded()), (values(5, 6),)),
    "AdaptiveAvgPool2d": (lambda new: nn.AdaptiveAvgPool2d((2, 4)), (values(2, 3, 5, 6),)),
    "Upsample": (lambda new: nn.Upsample(scale_factor=1.5, mode="bilinear"), (values(2, 3, 5, 6),)),
    "Conv3d": (lambda new: nn.Conv3d(2, 4, 3, 2, 1, 1, 2, **new, rng=seeded()), (values(2, 2, 5, 4, 6),)),
    "ConvTranspose3d": (
        lambda new: nn.ConvTranspose3d(2, 4, 3, 2, 1, 1, **new, rng=seeded()),
        (values(2, 2, 2, 3, 2),),
    ),
    "MaxPool3d": (lambda new: nn.MaxPool3d(3, 2, 1), (values(2, 3, 5, 4, 6),)),
    "AvgPool3d": (lambda new: nn.AvgPool3d(3, 2, 1, count_include_pad=False), (values(2, 3, 5, 4, 6),)),
    "AdaptiveAvgPool1d": (lambda new: nn.AdaptiveAvgPool1d(2), (values(2, 3, 5),)),
    "AdaptiveAvgPool3d": (lambda new: nn.AdaptiveAvgPool3d((2, 3, None)), (values(2, 3, 5, 4, 2),)),
    "AdaptiveMaxPool1d": (lambda new: nn.AdaptiveMaxPool1d(2), (values(2, 3, 5),)),
    "AdaptiveMaxPool2d": (lambda new: nn.AdaptiveMaxPool2d((2, 3)), (values(2, 3, 5, 6),)),
    "AdaptiveMaxPool3d": (lambda new: nn.AdaptiveMaxPool3d(2), (values(2, 3, 5, 4, 2),)),
    "InstanceNorm1d": (lambda new: nn.InstanceNorm1d(3, affine=True, **new), (values(4, 3, 5),)),
    "InstanceNorm2d": (lambda new: nn.InstanceNorm2d(3, **new), (values(4, 3, 2, 2),)),
    "InstanceNorm3d": (lambda new: nn.InstanceNorm3d(3, **new), (values(3, 2, 2, 2),)),
    "MaxPool1d": (lambda new: nn.MaxPool1d(3, 2, 1), (values(2, 3, 6),)),
    "AvgPool1d": (lambda new: nn.AvgPool1d(3, 2, 1, count_include_pad=False), (values(2, 3, 6),)),
    "MaxPool2d": (lambda new: nn.MaxPool2d(3, 2, 1), (values(2, 3, 5, 6),)),
    "AvgPool2d": (lambda new: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (values(2, 3, 5, 6),)),
    "Linear": (lambda new: nn.Linear(4, 3, **new, rng=seeded()), (values(2, 5, 4),)),
    "Conv1d": (lambda new: nn.Conv1d(4, 2, 3, 2, 1, **new, rng=seeded()), (values(3, 4, 7),)),
    "Conv2d": (lambda new: nn.Conv2d(2, 4, 3, 2, 1, 1, 2, **new, rng=seeded()), (values(3, 2, 7, 6),)),
    "ConvTranspose1d": (lambda new: nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, **new, rng=seeded()), (values(3, 2, 5),)),
    "ConvTranspose2d": (lambda new: nn.ConvTranspose2d(2, 4, 3, 2, 1, 1, **new, rng=seeded()), (values(3, 2, 4, 5),)),
    "Embedding": (lambda new: nn.Embedding(4, 3, 0, **new, rng=seeded()), (CODES,)),
    "EmbeddingBag": (lambda new: nn.EmbeddingBag(4, 3, mode="max", **new, rng=seeded()), (CODES,)),
    "BatchNorm": (lambda new: nn.BatchNorm(3, **new), (values(4, 3),)),
    "BatchNorm1d": (lambda new: nn.BatchNorm1d(3, **new), (values(4, 3, 2),)),
    "BatchNorm2d": (lambda new: nn.BatchNorm2d(3, **new), (values(4, 3, 2, 2),)),
    "GroupNorm": (lambda new: nn.GroupNorm(2, 4, **new), (values(3, 4, 5),)),
    "LayerNorm": (lambda new: nn.LayerNorm((4, 5), **new), (values(3, 4, 5),)),
    "RMSNorm": (lambda new: nn.RMSNorm(5, **new), (values(3, 4, 5),)),
    "MultiheadAttention": (
        lambda new: nn.MultiheadAttention(8, 2, 0.2, add_bias_kv=True, add_zero_attn=True, **new, rng=seeded()),
        (values(4, 3, 8), values(5, 3, 8), values(5, 3, 8), np.eye(3, 5, dtype=bool)),
    ),
    "LSTM": (
        lambda new: nn.LSTM(4, 3, 2, bidirectional=True, dropout=0.2, proj_size=2, **new, rng=seeded()),
        (values(5, 2, 4),),
    ),
    "GRU": (lambda new: nn.GRU(4, 3, 2, bidirectional=True, **new, rng=seeded()), (values(5, 2, 4),)),
    "RNN": (lambda new: nn.RNN(4, 3, 2, bidirectional=True, **new, rng=seeded()), (values(5, 2, 4),)),
    "RNNCell": (lambda new: nn.RNNCell(4, 3, nonlinearity="relu", **new, rng=seeded()), (values(2, 4),)),
    "TransformerEncoderLayer": (
        lambda new: nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", **new, rng=seeded()),
        (values(4, 3, 8),),
    ),
    "TransformerDecoderLayer": (
        lambda new: nn.TransformerDecoderLayer(8, 2, 16, 0.1, norm_first=True, **new, rng=seeded()),
        (values(4, 3, 8), values(5, 3, 8)),
    ),
    "TransformerEncoder": (
        lambda new: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.1, **new, rng=seeded()), 2),
        (values(4, 3, 8),),
    ),
    "TransformerDecoder": (
        lambda new: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.1, **new, rng=seeded()), 2),
        (values(4, 3, 8), values(5, 3, 8)),
    ),
    "LSTMCell": (lambda new: nn.LSTMCell(4, 3, **new, rng=seeded()), (values(2, 4),)),
    "GRUCell": (lambda new: nn.GRUCell(4, 3, **new, rng=seeded()), (values(2, 4),)),
    "Sequential": (lambda new: nn.Sequential(nn.Linear(4, 4, **new, rng=seeded()), gnp.tanh), (values(2, 4),)),
}

# ---------------------------------------------------------------- optimisers

OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.9, "nesterov": True, "maximize": True}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}],
    "AdamW": [{}, {"amsgrad": True, "maximize": True}],
    "RMSprop": [{}, {"momentum": 0.9}, {"centered": True, "weight_decay": 0.1}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.1}],
    "Lion": [{}, {"weight_decay": 0.1}],
    "Adadelta": [{}, {"weight_decay": 0.1, "maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
}
CASES = [(name, options) for name, cases in OPTIMIZERS.items() for options in cases]


def parameters(dtype: str, seed: int = 0) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (), (0, 2), (60, 50)]
    made = [rng.standard_normal(s) + (1j * rng.standard_normal(s) if dtype == "c8" else 0) for s in shapes]
    return [tensor(np.asarray(a).astype(dtype)) for a in made]


CLIPS: dict[str, Callable[[list[Tensor]], Any]] = {
    "clip_grad_norm_": lambda params: optim.clip_grad_norm_(params, 0.5),
    "clip_grad_value_": lambda params: optim.clip_grad_value_(params, 0.5),
    "get_total_norm": lambda params: optim.get_total_norm([p.grad for p in params]),
}


# ---------------------------------------------------------------- examples

EXAMPLES = {
    "bayes": "--steps 20",
    "char_gpt": "--steps 2 --length 16 --width 16 --depth 1 --sample 3",
    "data_parallel": "--epochs 1 --batch 720",
    "digits": "--epochs 1",
    "elastic": "--steps 2",
    "estimator": "--folds 2 --iterations 2",
    "gradient_penalty": "--steps 2",
    "hogwild": "--steps 4 --threads 1 2",
    "inverse_problem": "--size 36 --iterations 1",
    "maml": "--steps 2",
    "mnist_cnn": "--epochs 1 --data .",
    "ode": "--iterations 10 --steps 10",
    "recommend": "--ratings 2000 --users 100 --batch 400 --epochs 1",
    "sparse_inverse": "--size 20 --iterations 1",
}


def write_mnist(folder: Path) -> None:
    """Forty images in MNIST's own format, twenty to learn from and as many to test with."""
    for part in ("train", "t10k"):
        labels = np.arange(20, dtype=np.uint8) % 10
        images = seeded().integers(0, 256, (20, 28, 28), dtype=np.uint8)
        for kind, a in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, a.ndim]) + np.array(a.shape, ">i4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + a.tobytes())
