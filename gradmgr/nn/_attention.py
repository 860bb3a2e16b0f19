"""Attention: softmax of scaled scores, times values, in one op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmgr import _xp, errors
from gradmgr._batched import is_batched, spacious
from gradmgr._custom import several
from gradmgr._op import Function, zeros
from gradmgr._tensor import Tensor, raw
from gradmgr.nn._arguments import check_floating
from gradmgr.nn._dropout import dropout
from gradmgr.ops.convert import cast_to, is_floating, lift, wide_dtype, widened
from gradmgr.ops.shape import expand_dims, repeat, reshape
from gradmgr.ops.softmax import softmax_map

Shape = tuple[int, ...]

# So many rows of causal scores are computed at a time: what lies to the right of them is left out.
_ROWS = 64


def is_bare(*values: Any) -> bool:
    """Tell whether all values are plain arrays, numbers or None: those a kernel may compute with in place."""
    for v in values:  # noqa: SIM110  # a generator takes twice the time, and steps of cells are short
        if v.__class__ is not np.ndarray and (isinstance(v, Tensor) or is_batched(v)):
            return False
    return True


def differing(result: Any, *others: Any) -> Any:
    """Return one of several results; under vmap it differs by example if any of the others does."""
    return result if is_bare(result, *others) else spacious(result, *others)


# ---------------------------------------------------------------- the op


def _kernel(
    query: Any, key: Any, value: Any, bias: Any, hidden: Any, drop: Any, scale: float, causal: bool
) -> tuple[Any, Any]:
    """Return the attended values, and the weights of the values: the softmax over keys."""
    columns = key.swapaxes(-1, -2)
    if causal and is_bare(query, key):
        weights = _causal_weights(query * scale, columns)
    else:
        if causal:
            hidden = _ahead(query, query.shape[-2], key.shape[-2])
        weights = _weights(np.matmul(query * scale, columns), bias, hidden)
    output = np.matmul(weights if drop is None else weights * drop, value)
    return differing(output, bias, hidden), differing(weights, value, drop)


def _weights(scores: Any, bias: Any, hidden: Any) -> Any:
    """Return the softmax over keys; of a row in which all is hidden, zeros. It is computed in the scores' memory."""
    if is_bare(scores, bias, hidden):
        if bias is not None:
            scores += bias
        if hidden is not None:
            np.copyto(scores, -np.inf, where=hidden)
    else:
        scores = scores if bias is None else scores + bias
        scores = scores if hidden is None else np.where(hidden, -np.inf, scores).astype(scores.dtype, copy=False)
    if scores.shape[-1] == 0:
        return scores
    top = np.max(scores, axis=-1, keepdims=True)
    if bias is None and hidden is None:
        return _exp_over_sum(scores, top)
    return _exp_over_sum(scores, np.where(top == -np.inf, np.zeros_like(top), top), may_be_nothing=True)


def _exp_over_sum(scores: Any, top: Any, may_be_nothing: bool = False) -> Any:
    scores -= top
    np.exp(scores, out=scores)
    total = _xp.sum_over(scores, (-1,), True)
    scores /= total + (total == 0) if may_be_nothing else total
    return scores


def _ahead(like: Any, rows: int, columns: int) -> Any:
    """Return a mask of what lies above the diagonal, in the library of `like`."""
    return ~_xp.root(like).tri(rows, columns, dtype=bool)


def _blocks(rows: int, columns: int) -> list[tuple[int, int, int]]:
    """Return first row, last row and last column, exclusive, of the blocks that cover the lower triangle."""
    ends = [(first, min(first + _ROWS, rows)) for first in range(0, rows, _ROWS)]
    return [(first, last, min(last, columns)) for first, last in ends]


def _causal_weights(query: Any, columns: Any) -> Any:
    """Return the softmax over the keys up to each query's place; zeros above the diagonal."""
    rows, count = query.shape[-2], columns.shape[-1]
    lead = np.broadcast_shapes(query.shape[:-2], columns.shape[:-2])
    weights = zeros(query, (*lead, rows, count), query.dtype)
    if count == 0:
        return weights
    for first, last, end in _blocks(rows, count):
        part = weights[..., first:last, :end]
        np.matmul(query[..., first:last, :], columns[..., :end], out=part)
        if first < end:
            np.copyto(part[..., first:], -np.inf, where=_ahead(query, last - first, end - first))
        _exp_over_sum(part, np.max(part, axis=-1, keepdims=True))
    return weights


def _score_gradient(g: Any, value: Any, output: Any, weights: Any, drop: Any, causal: bool) -> Any:
    """Return the cotangent of the scores: weights (d - sum(d weights)), where d is that of the weights.

    The sum is the one over the features of g output, as long as nobody asked for the weights.
    """
    of_output, of_weights = g
    if of_weights is None and is_bare(of_output, value, output, weights, drop):
        return _score_gradient_in_place(of_output, value, output, weights, drop, causal)
    d = of_weights
    if of_output is not None:
        d = of_output @ value.swapaxes(-1, -2)
        d = d if drop is None else d * drop
        d = d if of_weights is None else d + of_weights
    return softmax_map(d, weights, (-1,))


def _score_gradient_in_place(g: Any, value: Any, output: Any, weights: Any, drop: Any, causal: bool) -> Any:
    columns, total = value.swapaxes(-1, -2), _xp.sum_over(g * output, (-1,), True)
    rows, count = weights.shape[-2:]
    if not causal or rows <= _ROWS:
        d = np.matmul(g, columns)
        return _finish(d, total, weights, drop)
    d = zeros(g, (*g.shape[:-2], rows, count), weights.dtype)
    for first, last, end in _blocks(rows, count):
        here = (..., slice(first, last), slice(end))
        part = d[here]
        np.matmul(g[..., first:last, :], columns[..., :end], out=part)
        _finish(part, total[..., first:last, :], weights[here], None if drop is None else drop[here])
    return d


def _finish(d: Any, total: Any, weights: Any, drop: Any) -> Any:
    if drop is not None:
        d *= drop
    d -= total
    d *= weights
    return d


def _value_gradient(g: Any, weights: Any, drop: Any) -> Any:
    if g[0] is None:
        return None
    return (weights if drop is None else weights * drop).swapaxes(-1, -2) @ g[0]


def _pushed(t: Any, value: Any, weights: Any, drop: Any) -> tuple[Any, Any]:
    """Return the tangents of the results for that of the scores."""
    slope = softmax_map(t, weights, (-1,))
    return (slope if drop is None else slope * drop) @ value, slope


def _pushed_by_value(t: Any, weights: Any, drop: Any) -> tuple[Any, Any]:
    return (weights if drop is None else weights * drop) @ t, zeros(weights, weights.shape, weights.dtype)


_attend: Function = several(
    "nn.scaled_dot_product_attention",
    _kernel,
    ("output", "weights"),
    vjp={
        "query": lambda g, key, scale, shared: (shared @ key) * scale,
        "key": lambda g, query, scale, shared: (shared.swapaxes(-1, -2) @ query) * scale,
        "value": _value_gradient,
        "bias": lambda g, shared: shared,
    },
    jvp={
        "query": lambda t, key, value, weights, drop, scale: _pushed(
            (t * scale) @ key.swapaxes(-1, -2), value, weights, drop
        ),
        "key": lambda t, query, value, weights, drop, scale: _pushed(
            (query * scale) @ t.swapaxes(-1, -2), value, weights, drop
        ),
        "value": _pushed_by_value,
        "bias": lambda t, value, weights, drop: _pushed(t, value, weights, drop),
    },
    shared=_score_gradient,
)

# ---------------------------------------------------------------- what is asked of the arguments

_SELF = "scaled_dot_product_attention"


def attend(
    query: Any, key: Any, value: Any, mask: Any, drop: Any, scale: float | None, causal: bool
) -> tuple[Any, Any]:
    """Return the attended values and the weights, for arguments of one floating dtype that fit each other.

    Halves are computed with in float32: sums over many features and keys would overflow and lose digits.
    """
    dtype = query.dtype
    query, key, value = widened(query), widened(key), widened(value)
    bias, hidden = _bias_and_hidden(mask, query.dtype)
    width = query.shape[-1]
    factor = float(scale) if scale is not None else 1 / math.sqrt(width) if width else 1.0
    output, weights = _attend(query, key, value, bias, hidden, drop, factor, causal)
    return cast_to(output, dtype), cast_to(weights, dtype)


def _bias_and_hidden(mask: Any, dtype: Any) -> tuple[Any, Any]:
    if mask is None:
        return None, None
    if mask.dtype == bool:
        return None, ~raw(mask)
    return cast_to(mask, dtype), None


def drop_factors(shape: Shape, probability: float, rng: Any, like: Any) -> Any:
    """Return what dropout multiplies weights by, where `like` lives; None where it leaves them."""
    if probability == 0:
        return None
    return dropout(_xp.root(raw(like)).ones(shape, wide_dtype(like.dtype)), probability, rng=rng)


def check_mask_dtype(mask: Any, asked: str, name: str = "attn_mask") -> None:
    """Check that a mask is boolean or floating."""
    if mask.dtype != bool and not is_floating(mask.dtype):
        raise errors.DtypeError(
            f"{asked}: {name} must be boolean, or of floating-point numbers, which are added to the scores; found "
            f"dtype {mask.dtype}; a mask of zeros and ones becomes boolean by .astype(bool)"
        )


def _check_mask(mask: Any, shape: Shape) -> None:
    """Check that a mask has a dtype of masks, and broadcasts to the scores."""
    check_mask_dtype(mask, _SELF)
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise errors.ShapeError(
            f"{_SELF}: attn_mask of shape {mask.shape} does not broadcast to the scores, which have shape {shape}: "
            "(..., length of query, length of key)"
        )


def _check_shapes(query: Any, key: Any, value: Any, grouped: bool) -> None:
    found = f"found query {query.shape}, key {key.shape}, value {value.shape}"
    fewest = 3 if grouped else 2
    if min(query.ndim, key.ndim, value.ndim) < fewest:
        takes = "(..., heads, length, features) with enable_gqa=True" if grouped else "(..., length, features)"
        raise errors.ShapeError(f"{_SELF} takes arrays of shape {takes}; {found}")
    if query.shape[-1] != key.shape[-1]:
        raise errors.ShapeError(f"{_SELF}: query and key must have the same number of features; {found}")
    if key.shape[-2] != value.shape[-2]:
        raise errors.ShapeError(f"{_SELF}: key and value must have the same length; {found}")
    heads, of_key, of_value = (t.shape[-3] if grouped else 1 for t in (query, key, value))
    if of_key == 0 or of_value == 0 or heads % of_key or heads % of_value:
        raise errors.ShapeError(f"{_SELF}: the numbers of heads of key and value must divide that of query; {found}")
    try:
        np.broadcast_shapes(*[t.shape[:-fewest] for t in (query, key, value)])
    except ValueError:
        says = "" if grouped or query.ndim < 3 else "; for fewer heads of key and value pass enable_gqa=True"
        raise errors.ShapeError(f"{_SELF}: the leading axes do not broadcast; {found}{says}") from None


def _shape_of_scores(query: Any, key: Any, grouped: bool) -> Shape:
    if grouped:
        return (*np.broadcast_shapes(query.shape[:-3], key.shape[:-3]), *query.shape[-3:-1], key.shape[-2])
    return (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])


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
) -> Any:
    """Return softmax(query key^T scale + mask) value, the softmax over keys, as torch's function of this name.

    Nothing is lost where scores are large. What the backward keeps is the softmax, one number for each
    query and key. The causal kernel leaves out most of what lies above the diagonal.

    Args:
        query: shape (..., L, E).
        key: shape (..., S, E); leading axes broadcast as those of matmul.
        value: shape (..., S, V).
        attn_mask: broadcasts to (..., L, S). Booleans: True takes part (in `nn.MultiheadAttention` True is left
            out, as in torch). Floating: added to the scores, and gradients flow to it. A query for which every key
            is left out, by False or by -inf, gets zeros, and so do its gradients.
        dropout_p: the probability of each weight to be set to 0, the others grow by 1 / (1 - dropout_p). As in
            torch it is always applied: pass 0.0 where nothing is trained.
        is_causal: query i sees keys 0 to i, also where L and S differ. Not together with attn_mask.
        scale: what the products are multiplied by; 1 / sqrt(E) by default.
        enable_gqa: grouped queries: query has shape (..., H, L, E), and the numbers of heads of key and value
            divide H; each of their heads serves a group of neighbouring heads of query.
        rng: where dropout draws from; None for a new generator.

    Returns:
        Shape (..., L, V), in the common dtype of query, key and value. Halves are computed with in float32.

    Raises:
        DtypeError: an argument is not of real floating-point numbers, or the mask neither that nor boolean.
        ShapeError: lengths, features, heads, leading axes or the mask do not fit.
        ValueError: dropout_p is no probability, or both attn_mask and is_causal were given.
        TypeError: rng is not a numpy.random.Generator.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> q = k = np.zeros((2, 4))
    >>> v = np.array([[1.0], [3.0]])
    >>> F.scaled_dot_product_attention(q, k, v, is_causal=True)
    array([[1.],
           [2.]])
    """
    query, key, value = lift(query), lift(key), lift(value)
    check_floating(_SELF, query=query, key=key, value=value)
    if attn_mask is not None and is_causal:
        raise ValueError(
            f"{_SELF} takes attn_mask or is_causal=True, not both; put the causal part into the mask: "
            "attn_mask & numpy.tri(L, S, dtype=bool)"
        )
    _check_shapes(query, key, value, enable_gqa)
    shape = _shape_of_scores(query, key, enable_gqa)
    mask = None if attn_mask is None else lift(attn_mask)
    if mask is not None:
        _check_mask(mask, shape)
    dtype = np.result_type(query.dtype, key.dtype, value.dtype)
    query, key, value = (cast_to(t, dtype) for t in (query, key, value))
    drop = drop_factors(shape, dropout_p, rng, query)
    if not enable_gqa:
        return attend(query, key, value, mask, drop, scale, bool(is_causal))[0]
    grouped = _grouped(query, key, value)
    groups = grouped[0].shape[-4:-2]
    output, _ = attend(*grouped, _by_group(mask, groups), _by_group(drop, groups), scale, bool(is_causal))
    return reshape(output, (*output.shape[:-4], shape[-3], *output.shape[-2:]))


# ---------------------------------------------------------------- grouped queries


def _grouped(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Give each head of key and value an axis for its group of heads of query."""
    heads, of_key, of_value = (t.shape[-3] for t in (query, key, value))
    common = max(of_key, of_value)
    if common % of_key or common % of_value:
        common = heads
    key, value = (t if t.shape[-3] == common else repeat(t, common // t.shape[-3], axis=-3) for t in (key, value))
    return _by_group(query, (common, heads // common)), expand_dims(key, -3), expand_dims(value, -3)


def _by_group(a: Any, groups: Shape) -> Any:
    """Give an array (..., heads, rows, columns) an axis for groups; what has no heads needs none."""
    if a is None or a.ndim < 3:
        return a
    if a.shape[-3] == 1 and groups != (1, 1):
        return expand_dims(a, -3)
    return reshape(a, (*a.shape[:-3], *groups, *a.shape[-2:]))
