"""Layers of the Transformer, and stacks of them.

Vaswani and others: Attention Is All You Need (2017); with `norm_first` as in Xiong and others: On Layer Normalization
in the Transformer Architecture (2020).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradmgr._arrays.drawing import generator
from gradmgr._engine.tensor import Tensor
from gradmgr.nn import functional
from gradmgr.nn._functions.arguments import check_word, length
from gradmgr.nn._modules.attention import MultiheadAttention
from gradmgr.nn._modules.container import ModuleList
from gradmgr.nn._modules.dropout import Dropout
from gradmgr.nn._modules.linear import Linear
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.normalization import LayerNorm

if TYPE_CHECKING:
    from gradmgr.nn._modules.module_types import ArrayModule
else:
    ArrayModule = Module


class _TransformerLayer(ArrayModule):
    """The base class of the encoder's and decoder's layers: what surrounds the attention."""

    _norms: int  # how many parts a layer has, each with a norm and a dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        if not callable(activation):
            check_word(activation, ("relu", "gelu"), "activation", type(self).__name__)
            activation = getattr(functional, activation)
        rng = generator(rng, type(self).__name__)
        target: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation: Any = activation
        self.norm_first = norm_first
        attention: dict[str, Any] = {"batch_first": batch_first, "bias": bias, "rng": rng, **target}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, **attention)
        if self._norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, **attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **target, rng=rng)
        self.dropout = Dropout(dropout, rng=rng)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **target, rng=rng)
        for k in range(1, self._norms + 1):
            setattr(self, f"norm{k}", LayerNorm(d_model, layer_norm_eps, bias=bias, **target))
        for k in range(1, self._norms + 1):
            setattr(self, f"dropout{k}", Dropout(dropout, rng=rng))

    def _add(self, x: Any, number: int, part: Callable[[Any], Any]) -> Any:
        """Add a part of the layer to x, normalised before or after it."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(part(norm(x)))
        return norm(x + dropout(part(x)))

    def _feed_forward(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_TransformerLayer):
    """A layer of a Transformer's encoder: self-attention and a feed-forward network, as torch.nn has it.

    Args:
        d_model: features of input and output.
        nhead: heads of the attention, a divisor of d_model.
        dim_feedforward: features inside the feed-forward network.
        dropout: the probability with which numbers are set to 0 in training, in the attention and after each part.
        activation: that of the feed-forward network: "relu", "gelu" or a function.
        layer_norm_eps: added to the variance in the norms.
        batch_first: whether inputs are (batch, length, features) instead of (length, batch, features).
        norm_first: whether each part normalises its input, instead of the sum of its input and result.
        bias: whether the linear maps and norms have a bias.
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values and of dropout; None for a new one.

    Raises:
        ValueError: a size or probability is out of range, or the activation is not known.

    >>> import numpy
    >>> from gradmgr import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, rng=numpy.random.default_rng(0))
    >>> layer(numpy.ones((3, 5, 8), "float32"), is_causal=True).shape
    (3, 5, 8)
    """

    _norms = 2

    def forward(
        self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """Return an array of the shape of src.

        Args:
            src: (length, batch, features), with batch_first (batch, length, features); or (length, features).
            src_mask: see `MultiheadAttention`; True means that a key is left out.
            src_key_padding_mask: likewise.
            is_causal: whether each position attends only to those up to it; no mask is needed then.
        """

        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]

        return self._add(self._add(src, 1, attend), 2, self._feed_forward)  # type: ignore[no-any-return]  # src is Any


class TransformerDecoderLayer(_TransformerLayer):
    """A layer of a Transformer's decoder: self-attention, attention to the encoder's output, a feed-forward network.

    Arguments and errors are those of TransformerEncoderLayer.

    Raises:
        ValueError: `nhead` does not divide `d_model`, or `activation` is unknown; an input has other features.

    >>> import numpy
    >>> from gradmgr import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, rng=numpy.random.default_rng(0))
    >>> layer(numpy.ones((3, 5, 8), "float32"), numpy.ones((3, 7, 8), "float32"), tgt_is_causal=True).shape
    (3, 5, 8)
    """

    _norms = 3

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return an array of the shape of tgt.

        Args:
            tgt: (length, batch, features), with batch_first (batch, length, features); or (length, features).
            memory: the encoder's output, with the axes in tgt's order; its length may differ.
            tgt_mask: the mask of tgt's attention to itself, see `MultiheadAttention`; True leaves a key out.
            memory_mask: the mask of tgt's attention to memory.
            tgt_key_padding_mask: see `MultiheadAttention`.
            memory_key_padding_mask: likewise.
            tgt_is_causal: whether each position attends only to those of tgt up to it; no mask is needed then.
            memory_is_causal: the same for memory.
        """

        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def attend_to_memory(x: Any) -> Any:
            masks = memory_key_padding_mask, False, memory_mask
            return self.multihead_attn(x, memory, memory, *masks, is_causal=memory_is_causal)[0]

        x = self._add(self._add(tgt, 1, attend), 2, attend_to_memory)
        return self._add(x, 3, self._feed_forward)  # type: ignore[no-any-return]  # tgt is Any


def _copies(layer: Module, count: int, name: str) -> ModuleList:
    """Return copies of a layer with the same values, which draw from the layer's own generators."""
    if not isinstance(layer, Module):
        raise TypeError(f"{name} copies a layer, a Module; found {type(layer).__name__}")
    generators = [
        module.rng for module in layer.modules() if isinstance(getattr(module, "rng", None), np.random.Generator)
    ]
    return ModuleList([copy.deepcopy(layer, {id(rng): rng for rng in generators}) for _ in range(count)])


class TransformerEncoder(ArrayModule):
    """A stack of encoder layers, as torch.nn has it: copies of one layer, with the same initial values.

    Args:
        encoder_layer: the layer to copy.
        num_layers: how many.
        norm: a module for the output, or None.

    Raises:
        ValueError: `num_layers` is negative; an input has another number of features.
        TypeError: `encoder_layer` is not a Module.

    >>> import numpy
    >>> from gradmgr import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, rng=numpy.random.default_rng(0))
    >>> nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))(numpy.ones((5, 3, 8), "float32")).shape
    (5, 3, 8)
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.num_layers = length(num_layers, "num_layers", "TransformerEncoder")
        self.layers = _copies(encoder_layer, self.num_layers, "TransformerEncoder")
        self.norm = norm

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Tensor:
        """Return the output of the last layer; arguments as of TransformerEncoderLayer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)  # type: ignore[no-any-return]  # src is Any


class TransformerDecoder(ArrayModule):
    """A stack of decoder layers, as torch.nn has it: copies of one layer, with the same initial values.

    Args:
        decoder_layer: the layer to copy.
        num_layers: how many.
        norm: a module for the output, or None.

    Raises:
        ValueError: `num_layers` is negative; an input has another number of features.
        TypeError: `decoder_layer` is not a Module.

    >>> import numpy
    >>> from gradmgr import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, 16, rng=numpy.random.default_rng(0))
    >>> x = numpy.ones((5, 3, 8), "float32")
    >>> nn.TransformerDecoder(layer, 2)(x, x).shape
    (5, 3, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.num_layers = length(num_layers, "num_layers", "TransformerDecoder")
        self.layers = _copies(decoder_layer, self.num_layers, "TransformerDecoder")
        self.norm = norm

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Return the output of the last layer; arguments as of TransformerDecoderLayer."""
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)  # type: ignore[no-any-return]  # tgt is Any
