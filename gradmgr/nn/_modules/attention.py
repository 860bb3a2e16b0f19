"""MultiheadAttention."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._arrays.drawing import generator
from gradmgr._engine.op import zeros
from gradmgr._engine.parameter import Parameter
from gradmgr._engine.tensor import Tensor, raw
from gradmgr.nn import init
from gradmgr.nn._functions.arguments import check_floating, length, one_array
from gradmgr.nn._functions.attention import attend, check_mask_dtype, drop_factors
from gradmgr.nn._functions.linear import linear
from gradmgr.nn._modules.linear import Linear
from gradmgr.nn._modules.module import Module
from gradmgr.ops.convert import cast_to, lift
from gradmgr.ops.join import concatenate
from gradmgr.ops.reduce import mean
from gradmgr.ops.shape import broadcast_to, expand_dims, reshape, transpose

_SELF = "MultiheadAttention"


class MultiheadAttention(Module):
    """Multi-head attention between projections, as torch.nn.MultiheadAttention, with the same names of parameters.

    Args:
        embed_dim: features of the query and of the result.
        num_heads: the number of heads; it must divide embed_dim.
        dropout: the probability with which a weight is set to 0 in training.
        bias: whether the projections add a bias.
        add_bias_kv: whether to append a learned key and value.
        add_zero_attn: whether to append a key and value of zeros.
        kdim: features of the key, by default embed_dim.
        vdim: features of the value, by default embed_dim.
        batch_first: whether arguments and result are (batch, length, features) instead of (length, batch, features).
        device: the device of the parameters, "cpu" or "cuda:0".
        dtype: the dtype of the parameters; float32 by default.
        rng: the generator of initial values and dropout; None for a new one.

    Raises:
        ValueError: num_heads does not divide embed_dim, a size is not positive, or dropout is not from 0 to 1.

    >>> import numpy
    >>> from gradmgr import nn
    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True, rng=numpy.random.default_rng(0))
    >>> x = numpy.ones((3, 5, 8), "float32")
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = length(embed_dim, "embed_dim", _SELF, 1)
        self.num_heads = length(num_heads, "num_heads", _SELF, 1)
        if self.embed_dim % self.num_heads:
            raise ValueError(f"{_SELF}: num_heads={num_heads} does not divide embed_dim={embed_dim}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"{_SELF}: dropout must be a probability, from 0 to 1; found {dropout!r}")
        self.kdim = self.embed_dim if kdim is None else length(kdim, "kdim", _SELF, 1)
        self.vdim = self.embed_dim if vdim is None else length(vdim, "vdim", _SELF, 1)
        self.dropout, self.batch_first, self.add_zero_attn = float(dropout), bool(batch_first), bool(add_zero_attn)
        self.head_dim = self.embed_dim // self.num_heads
        self.rng = generator(rng, _SELF)
        self._make_parameters(bool(bias), bool(add_bias_kv), device, dtype)

    def _make_parameters(self, bias: bool, add_bias_kv: bool, device: str | None, dtype: Any) -> None:
        width, packed = self.embed_dim, self.kdim == self.vdim == self.embed_dim
        rng = self.rng

        def made(*shape: int) -> Parameter:
            return Parameter(np.zeros(shape, np.float32 if dtype is None else dtype), device=device)

        self.register_parameter(
            "in_proj_weight", init.xavier_uniform_(made(3 * width, width), rng=rng) if packed else None
        )
        for name, features in (("q", width), ("k", self.kdim), ("v", self.vdim)):
            weight = None if packed else init.xavier_uniform_(made(width, features), rng=rng)
            self.register_parameter(f"{name}_proj_weight", weight)
        self.register_parameter("in_proj_bias", made(3 * width) if bias else None)
        self.out_proj = Linear(width, width, bias=bias, device=device, dtype=dtype, rng=rng)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        for name in ("bias_k", "bias_v"):
            learned = init.xavier_normal_(made(1, 1, width), rng=rng) if add_bias_kv else None
            self.register_parameter(name, learned)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the attention of queries to keys and values.

        In a boolean mask True means that a key is left out, as in torch; in `functional.scaled_dot_product_attention`
        it means the opposite. Masks of floating-point numbers are added to the scores. A query whose keys are all left
        out gets zeros from all heads, with and without weights.

        Args:
            query: shape (L, batch, embed_dim), with batch_first (batch, L, embed_dim); or (L, embed_dim).
            key: shape (S, batch, kdim), axes in the query's order.
            value: shape (S, batch, vdim), likewise.
            key_padding_mask: shape (batch, S), or (S,).
            need_weights: whether the weights are returned, too.
            attn_mask: shape (L, S), or (batch * num_heads, L, S).
            average_attn_weights: whether the weights are the mean over the heads.
            is_causal: whether query i attends only to keys 0 to i; unlike in torch it needs no attn_mask.

        Returns:
            The result, of the query's shape; and the weights, of shape (batch, L, S), or (batch, num_heads, L, S) where
            they are not averaged, without the batch where the query has none; None unless need_weights.

        Raises:
            ShapeError: an argument does not fit the others or the module.
            DtypeError: an argument is not of real floating-point numbers, or a mask is neither of these nor boolean.
        """
        query, key, value = self._checked(query, key, value)
        of_batch = query.ndim == 3
        axes = (0, 2, 1, 3) if self.batch_first or not of_batch else (1, 2, 0, 3)
        projected = self._project(query, key, value)
        if not of_batch:
            projected = [expand_dims(t, 0) for t in projected]
        batch = projected[0].shape[axes[0]]
        q, k, v = (self._split_heads(t, axes) for t in self._append_learned(projected, axes[0]))
        if self.add_zero_attn:
            k, v = (concatenate([t, zeros(t, (*t.shape[:2], 1, t.shape[3]), t.dtype)], axis=2) for t in (k, v))
        given = key.shape[axes[2] if of_batch else 0]
        shape = (batch, self.num_heads, q.shape[2], given)
        mask = self._make_mask(attn_mask, key_padding_mask, shape, k.shape[2] - given, is_causal, of_batch)
        alone = bool(is_causal) and mask is None
        drop = drop_factors((*shape[:3], k.shape[2]), self.dropout if self.training else 0.0, self.rng, q, k, v)
        output, weights = attend(q, k, v, mask, drop, None, alone, need_weights)
        back = (0, 2, 1, 3) if axes[0] == 0 else (2, 0, 1, 3)
        output = transpose(output, back)
        output = self.out_proj(reshape(output, (*output.shape[:2], self.embed_dim)))
        output = output if of_batch else output[0]
        if not need_weights:
            return output, None
        weights = weights if drop is None else cast_to(weights * drop, weights.dtype)
        weights = mean(weights, axis=1) if average_attn_weights else weights
        return output, weights if of_batch else weights[0]

    def _checked(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        same_key, same_value = key is query, value is key
        query = one_array(query)
        key = query if same_key else one_array(key)
        value = key if same_value else one_array(value)
        check_floating(_SELF, query=query, key=key, value=value)
        found = f"found query {query.shape}, key {key.shape}, value {value.shape}"
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            layout = "(batch, length, features)" if self.batch_first else "(length, batch, features)"
            raise errors.ShapeError(f"{_SELF} takes three arrays {layout}, or three (length, features); {found}")
        for name, t, width in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if t.shape[-1] != width:
                raise errors.ShapeError(f"{_SELF}: {name} must have {width} features; {found}")
        if key.shape[:-1] != value.shape[:-1]:
            raise errors.ShapeError(f"{_SELF}: key and value must have the same length and batch; {found}")
        if query.ndim == 3:
            axis = 0 if self.batch_first else 1
            if query.shape[axis] != key.shape[axis]:
                says = f"the batch, axis {axis} with batch_first={self.batch_first}"
                raise errors.ShapeError(f"{_SELF}: query and key must agree in {says}; {found}")
        return query, key, value

    def _project(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Return the projections of query, key and value; in one product if they are the same array."""
        width, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if weight is None:
            weights: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        elif query is key and key is value:
            packed = linear(query, weight, bias)
            return [packed[..., k * width : (k + 1) * width] for k in range(3)]
        else:
            weights = [weight[k * width : (k + 1) * width] for k in range(3)]
        biases = [None if bias is None else bias[k * width : (k + 1) * width] for k in range(3)]
        return [linear(t, w, b) for t, w, b in zip((query, key, value), weights, biases, strict=True)]

    def _append_learned(self, projected: list[Any], batch_axis: int) -> list[Any]:
        """Append bias_k and bias_v to the keys and values."""
        if self.bias_k is None:
            return projected
        q, *rest = projected
        longer = [q]
        for t, learned in zip(rest, (self.bias_k, self.bias_v), strict=True):
            shape = (t.shape[0], 1, t.shape[2]) if batch_axis == 0 else (1, *t.shape[1:])
            longer.append(concatenate([t, broadcast_to(learned, shape)], axis=1 - batch_axis))
        return longer

    def _split_heads(self, t: Any, axes: tuple[int, ...]) -> Any:
        """Return (length, batch, features) as (batch, heads, length, features of a head), by permuting to `axes`."""
        return transpose(reshape(t, (*t.shape[:2], self.num_heads, self.head_dim)), axes)

    def _make_mask(
        self, attn_mask: Any, padding: Any, shape: tuple[int, ...], added: int, causal: bool, of_batch: bool
    ) -> Any:
        """Return one boolean mask, True where a query attends to a key, or one of numbers, or None without masks.

        `added` further keys at the end are never masked.
        """
        batch, heads, rows, count = shape
        masks = []
        if attn_mask is not None:
            mask = lift(attn_mask)
            _check_mask(mask, "attn_mask", (rows, count), (batch * heads, rows, count))
            masks.append(mask if mask.ndim == 2 else reshape(mask, shape))
        if padding is not None:
            mask = lift(padding)
            _check_mask(mask, "key_padding_mask", (batch, count) if of_batch else (count,))
            masks.append(reshape(mask, (batch, 1, 1, count)))
        if causal and (masks or added):
            like = raw(masks[0]) if masks else raw(self.out_proj.weight)
            masks.append(~libraries.root(like).tri(rows, count, dtype=bool))
        return None if not masks else _combine_masks(masks, added)


def _combine_masks(masks: list[Any], added: int) -> Any:
    """Combine masks, boolean ones with True for what is left out, into one with True for what is attended to."""
    if all(mask.dtype == bool for mask in masks):
        left_out = raw(masks[0])
        for mask in masks[1:]:
            left_out = left_out | raw(mask)
        return ~(left_out if not added else _extend_mask(left_out, added))
    total = None
    for mask in masks:
        if mask.dtype == bool:
            mask = np.where(raw(mask), np.float32(-np.inf), np.float32(0))
        total = mask if total is None else total + mask
    return total if not added else _extend_mask(total, added)


def _extend_mask(mask: Any, added: int) -> Any:
    """Extend a mask by keys that are attended to."""
    return concatenate([mask, zeros(mask, (*mask.shape[:-1], added), mask.dtype)], axis=-1)


def _check_mask(mask: Any, name: str, *shapes: tuple[int, ...]) -> None:
    check_mask_dtype(mask, _SELF, name)
    if mask.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise errors.ShapeError(f"{_SELF}: {name} must have shape {expected}; found {mask.shape}")
