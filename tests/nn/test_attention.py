"""Attention: torch's numbers, masks and heads, what is kept, errors of wrong arguments.

The generic tests run on tests/samples/nn_attention.py. Numbers called torch's are those of torch 2.13.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import assert_close_to_8_digits, wave

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, tensor
from gradmgr.nn import MultiheadAttention
from gradmgr.nn._functions import attention, attention_blocks
from gradmgr.nn.functional import dropout, scaled_dot_product_attention


def gradients_of_two_orders(call: Any, points: list[Tensor]) -> tuple[Any, list[Any], list[Any]]:
    """The result, the gradient of the sum of its squares, and that of the sum of that one's squares."""
    outer, inner = GradManager().attach(points), GradManager().attach(points)
    with outer:
        with inner:
            output = call(*points)
            inner.backward((output**2).sum())
        first = [p.grad for p in points]
        for p in points:
            p.grad = None
        outer.backward(sum((g**2).sum() for g in first))
    return output, first, [p.grad for p in points]


# ---------------------------------------------------------------- the function

KEPT = np.array([[True, False, True, True], [False, False, False, False], [True, True, True, False]])
# By option: the result, the first derivatives and the second ones, as torch gives them.
TORCHS: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
    "a mask": (
        {"attn_mask": KEPT},
        [[0.3675597407, 0.0876703347], [0, 0], [-0.6040961671, -0.4215782965]],
        [
            [[0.0208785328, 0.0585771263], [0, 0], [-0.0535406202, -0.1400619259]],
            [
                [0.0379209185, 0.098755895],
                [-0.0640213204, -0.1590709799],
                [-0.0116739353, 0.0025322716],
                [0.0377743372, 0.0577828133],
            ],
            [
                [0.3230496684, 0.008181257],
                [-0.4195743859, -0.2928067822],
                [-0.5735930483, -0.4301895431],
                [0.1970449129, 0.0469991448],
            ],
        ],
        [[[0.2407539793, 0.1976242866], [0, 0], [-0.4044421287, -0.5245600042]]],
    ),
    "causal": (
        {"is_causal": True},
        [[0.4273798802, -0.255541102], [0.0634301445, -0.4719327183], [-0.6040961671, -0.4215782965]],
        [
            [[0, 0], [-0.0751679851, -0.1018492218], [-0.0535406202, -0.1400619259]],
            [[-0.0256244826, 0.0795174983], [0.0042733764, -0.1325676598], [0.0213511062, 0.0530501615], [0, 0]],
            [[0.7946186558, -1.2838090946], [-0.3825089907, -0.5685805937], [-0.6386819498, -0.4457145453], [0, 0]],
        ],
        [[[0, 0], [0.0696137856, 0.0543542568], [-0.1214704422, -0.4001155938]]],
    ),
}


@pytest.mark.parametrize("case", TORCHS)
def test_values_and_derivatives_of_two_orders_are_torchs(case: str) -> None:
    options, value, first, second = TORCHS[case]
    points = [tensor(wave(3, 2)), tensor(wave(4, 2, at=1)), tensor(wave(4, 2, at=2))]
    found = gradients_of_two_orders(lambda *qkv: scaled_dot_product_attention(*qkv, **options), points)
    assert_close_to_8_digits(found[0], value)
    for g, expected in zip(found[1], first, strict=True):
        assert_close_to_8_digits(g, expected)
    assert_close_to_8_digits(found[2][0], second[0])


def test_a_row_without_keys_is_0_and_has_gradient_0() -> None:
    additive_mask = np.where(KEPT, 0.0, -np.inf)
    for mask in (KEPT, additive_mask):
        q, k, v = points = [tensor(wave(3, 2)), tensor(wave(4, 2, at=1)), tensor(wave(4, 2, at=2))]
        bias = asarray(mask)
        with GradManager().attach(points + ([] if mask.dtype == bool else [bias])) as gm:
            output = scaled_dot_product_attention(q, k, v, attn_mask=bias)
            gm.backward((output * np.array([[0.0], [1.0], [0.0]])).sum())
        assert not output.numpy()[1].any()
        for t in points:
            assert not t.grad.numpy().any()
        if mask is additive_mask:
            assert not bias.grad.numpy().any()


def test_what_is_masked_may_be_anything() -> None:
    k, v, kept = wave(4, 2, at=1), wave(4, 2, at=2), np.array([True, True, True, False])
    expected = scaled_dot_product_attention(wave(3, 2), k[:3], v[:3])
    k[3] = np.inf
    with np.errstate(invalid="ignore"):  # inf - inf in the product that is masked afterwards
        assert_close_to_8_digits(scaled_dot_product_attention(wave(3, 2), k, v, attn_mask=kept), expected)


def test_large_scores_do_not_overflow() -> None:
    for dtype in (np.float32, np.float16):
        q = np.full((2, 64), 200, dtype)
        output = scaled_dot_product_attention(q, q, np.array([[1], [3]], dtype))
        assert output.dtype == dtype
        np.testing.assert_array_equal(output, [[2], [2]])


@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (65, 130), (130, 65), (200, 3), (3, 200)])
def test_causal_blocks_are_what_a_mask_gives(rows: int, keys: int) -> None:
    masks: list[dict[str, Any]] = [{"is_causal": True}, {"attn_mask": np.tri(rows, keys, dtype=bool)}]
    results = []
    for options in masks:
        points = [tensor(wave(2, rows, 4)), tensor(wave(keys, 4, at=1)), tensor(wave(2, keys, 3, at=2))]
        with GradManager().attach(points) as gm:
            output = scaled_dot_product_attention(*points, dropout_p=0.25, rng=np.random.default_rng(1), **options)
            gm.backward((output**2).sum())
        results.append([output, *[p.grad for p in points]])
    for one, other in zip(*results, strict=True):
        assert_close_to_8_digits(one, other)


# ---------------------------------------------------------------- blocks

SOME = np.random.default_rng(5).random((3, 1, 9, 7)) > 0.4
SOME[1, 0, 4] = False
# By what is special: shapes of query, key and value, and options.
BLOCKS: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "one matrix": (((9, 3), (7, 3), (7, 4)), {}),
    "leading axes": (((3, 2, 9, 3), (3, 2, 7, 3), (3, 2, 7, 4)), {}),
    "leading axes broadcast": (((3, 1, 9, 3), (2, 7, 3), (1, 1, 7, 4)), {}),
    "no matrix": (((0, 9, 3), (0, 7, 3), (0, 7, 4)), {}),
    "causal, more queries": (((2, 9, 3), (2, 7, 3), (2, 7, 4)), {"is_causal": True}),
    "causal, more keys": (((2, 5, 3), (2, 11, 3), (2, 11, 4)), {"is_causal": True}),
    "causal, halves of rows": (((2, 65, 3), (2, 65, 3), (2, 65, 4)), {"is_causal": True}),
    "booleans, a row without keys": (((3, 2, 9, 3), (3, 2, 7, 3), (3, 2, 7, 4)), {"attn_mask": SOME}),
    "numbers": (((3, 2, 9, 3), (2, 7, 3), (2, 7, 4)), {"attn_mask": np.where(SOME, wave(7), -np.inf)}),
    "dropout": (((3, 2, 9, 3), (2, 7, 3), (2, 7, 4)), {"dropout_p": 0.4}),
}


def attended(shapes: Any, options: dict[str, Any], size: float = 1.0) -> list[Any]:
    """The result, and the gradients of the sum of its squares, for values of this size."""
    points = [tensor(wave(*shape, at=n) * size) for n, shape in enumerate(shapes)]
    if options.get("attn_mask") is not None and options["attn_mask"].dtype != bool:
        options = {**options, "attn_mask": (bias := tensor(options["attn_mask"]))}
        points.append(bias)
    with GradManager().attach(points) as gm:
        rng = {"rng": np.random.default_rng(1)} if "dropout_p" in options else {}
        output = scaled_dot_product_attention(*points[:3], **options, **rng)
        gm.backward((output**2).sum())
    return [output.numpy(), *[p.grad.numpy() for p in points]]


@pytest.mark.parametrize("size", [1.0, 12.0])  # scores around 1, and up to 100: of those rows are shifted
@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_give_what_the_algebra_gives(case: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, options = BLOCKS[case]
    found = [attended(shapes, options, size)]
    for block_bytes in (8, 8 * 9 * 7 * 4):  # a few rows in a block, and a few matrices
        monkeypatch.setattr(attention_blocks, "_BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(attention_blocks, "_FEWEST_ROWS", 2)
        found.append(attended(shapes, options, size))
    monkeypatch.setattr(attention, "are_numpy_arrays", lambda *values: False)
    expected = attended(shapes, options, size)
    for one in found:
        for part, other in zip(one, expected, strict=True):
            np.testing.assert_allclose(part, other, rtol=1e-7, atol=1e-9 * size**2)


@pytest.mark.parametrize("causal", [False, True])
def test_threads_do_not_change_a_bit(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_blocks, "_BLOCK_BYTES", 8 * 70 * 70)
    shapes, before, found = ((9, 70, 8),) * 3, gradmgr.get_num_threads(), []
    try:
        for threads in (1, 3):
            gradmgr.set_num_threads(threads)
            found.append(attended(shapes, {"is_causal": causal}))
    finally:
        gradmgr.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_extreme_scores_count_and_masked_ones_do_not() -> None:
    """Rows that are shifted and rows that are not, in one block; masked scores that would overflow."""
    q, k, v = wave(2, 6, 4), wave(2, 6, 4, at=1), wave(2, 6, 3, at=2)
    q[0, 2] *= 1e3
    q[1, 1] *= -1e4
    k[:, 5] *= 1e5  # the last query alone sees it
    points = [tensor(a.astype(np.float32)) for a in (q, k, v)]
    with np.errstate(all="raise", under="ignore"), GradManager().attach(points) as gm:
        output = scaled_dot_product_attention(*points, is_causal=True)
        gm.backward(output, output.numpy())
    scores = np.where(np.tri(6, dtype=bool), q @ np.swapaxes(k, -1, -2) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(output, weights @ v, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(points[2].grad, np.swapaxes(weights, -1, -2) @ (weights @ v), rtol=1e-4, atol=1e-5)


def test_heads_that_are_views_give_results_laid_out_as_they_are() -> None:
    """So that joining the heads again copies nothing."""
    packed = tensor(wave(2, 5, 3, 4))
    with GradManager().attach(packed) as gm:
        heads = packed.swapaxes(1, 2)
        output = scaled_dot_product_attention(heads, heads, heads)
        gm.backward((output**2).sum())
    assert output.numpy().swapaxes(1, 2).flags.c_contiguous
    other = tensor(heads.numpy().copy())
    with GradManager().attach(other) as gm:
        gm.backward((scaled_dot_product_attention(other, other, other) ** 2).sum())
    assert_close_to_8_digits(packed.grad.numpy().swapaxes(1, 2), other.grad)


def test_a_mask_of_numbers_receives_a_gradient_of_its_shape() -> None:
    q, k, v = wave(2, 3, 4), wave(2, 5, 4, at=1), wave(2, 5, 2, at=2)
    bias = tensor(wave(5))
    with GradManager().attach(bias) as gm:
        gm.backward((scaled_dot_product_attention(q, k, v, attn_mask=bias) ** 2).sum())
    step, numeric = 1e-6, []
    for d in np.eye(5) * step:
        ahead, behind = ((scaled_dot_product_attention(q, k, v, bias.numpy() + s * d) ** 2).sum() for s in (1, -1))
        numeric.append((ahead - behind) / (2 * step))
    np.testing.assert_allclose(bias.grad, numeric, atol=1e-8)


@pytest.mark.parametrize(("of_key", "of_value"), [(1, 1), (2, 2), (4, 4), (2, 1), (1, 4), (6, 4)])
def test_each_head_of_key_serves_a_group_of_queries(of_key: int, of_value: int) -> None:
    heads = 12
    q, k, v = wave(2, heads, 3, 4), wave(2, of_key, 5, 4, at=1), wave(1, of_value, 5, 2, at=2)
    repeated = np.repeat(k, heads // of_key, axis=1), np.repeat(v, heads // of_value, axis=1)
    of_heads = np.random.default_rng(0).random((heads, 3, 5)) > 0.3
    for mask in (None, of_heads, of_heads[:1], of_heads[0]):
        found = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert_close_to_8_digits(found, scaled_dot_product_attention(q, *repeated, attn_mask=mask))


def test_dropout_is_dropout_of_the_weights() -> None:
    q, k, v = wave(3, 4), wave(5, 4, at=1), np.eye(5)
    weights = scaled_dot_product_attention(q, k, v)
    expected = dropout(weights, 0.5, rng=np.random.default_rng(4))
    assert_close_to_8_digits(
        scaled_dot_product_attention(q, k, v, dropout_p=0.5, rng=np.random.default_rng(4)), expected
    )
    assert not scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()


def test_of_scores_one_number_for_each_query_is_kept() -> None:
    q, k, v = tensor(wave(3, 2)), wave(4, 2, at=1), tensor(wave(4, 2, at=2))
    with GradManager().attach(v) as gm:
        held = scaled_dot_product_attention(q, k, v)
        (*_, kept), *_ = gm._tape.entries
        assert [a.shape for a in kept if isinstance(a, np.ndarray)] == [(3, 2), (4, 2), (4, 2), (3, 2), (3, 1)]
        del held


def test_plain_arrays_give_plain_arrays() -> None:
    assert isinstance(scaled_dot_product_attention(wave(3, 2), wave(3, 2), wave(3, 2)), np.ndarray)


Q, K, V = np.ones((2, 4, 3, 8)), np.ones((2, 4, 5, 8)), np.ones((2, 4, 5, 6))
WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ((Q, K[..., :7], V), {}, errors.ShapeError, r"same number of features; found query \(2, 4, 3, 8\), key"),
    ((Q, K[:, :, :4], V), {}, errors.ShapeError, "key and value must have the same length"),
    ((Q[0, 0, 0], K, V), {}, errors.ShapeError, r"shape \(\.\.\., length, features\)"),
    ((Q, K[:, :2], V[:, :2]), {}, errors.ShapeError, "for fewer heads of key and value pass enable_gqa=True"),
    ((Q, np.ones((2, 3, 5, 8)), V), {"enable_gqa": True}, errors.ShapeError, "must divide that of query"),
    ((Q[0, 0], K, V), {"enable_gqa": True}, errors.ShapeError, r"\(\.\.\., heads, length, features\)"),
    ((Q.astype(int), K, V), {}, errors.DtypeError, "found query of dtype int64"),
    ((Q, K, V), {"attn_mask": np.ones((3, 5), int)}, errors.DtypeError, r"attn_mask must be boolean.*\.astype\(bool\)"),
    ((Q, K, V), {"attn_mask": np.ones((3, 4), bool)}, errors.ShapeError, r"scores, which have shape \(2, 4, 3, 5\)"),
    ((Q, K, V), {"attn_mask": np.ones((7, 2, 4, 3, 5))}, errors.ShapeError, r"\(7, 2, 4, 3, 5\) does not broadcast"),
    ((Q, K, V), {"attn_mask": np.ones((3, 5), bool), "is_causal": True}, ValueError, "attn_mask or is_causal=True"),
    ((Q, K, V), {"dropout_p": 1.5}, ValueError, "probability"),
    ((Q, K, V), {"dropout_p": 0.5, "rng": 3}, TypeError, r"numpy.random.default_rng\(3\)"),
]


@pytest.mark.parametrize(("args", "options", "kind", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_wrong_arguments_of_the_function(args: Any, options: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        scaled_dot_product_attention(*args, **options)


# ---------------------------------------------------------------- the layer


def layer(embed_dim: int = 4, num_heads: int = 2, **options: Any) -> MultiheadAttention:
    """One in float64 with parameters that are waves, the n-th beginning at n."""
    made = MultiheadAttention(embed_dim, num_heads, dtype="float64", **options)
    for n, p in enumerate(made.parameters()):
        p[...] = wave(*p.shape, at=n)
    return made


def test_the_layer_gives_torchs_numbers() -> None:
    attention, x = layer(), tensor(wave(3, 1, 4))
    with GradManager().attach([x, *attention.parameters()]) as gm:
        output, weights = attention(x, x, x, key_padding_mask=np.array([[False, False, True]]))
        gm.backward((output**2).sum())
    expected = [
        [-2.0773178115, -0.7940024097, 0.3246791393, -2.9786882748],
        [-0.2364348663, -1.3548537913, -0.4593104029, -0.9404519703],
        [-2.0407228418, -0.8289392037, 0.3539206253, -2.9988554435],
    ]
    assert_close_to_8_digits(output[:, 0], expected)
    assert_close_to_8_digits(
        weights[0], [[0.4928038174, 0.5071961826, 0], [0.570519634, 0.429480366, 0], [0.484243853, 0.515756147, 0]]
    )
    of_x = [
        [-4.5454298901, -1.8301954647, 1.7458084854, 4.5007314258],
        [-2.7905109108, -8.4490995085, -10.1339445866, -7.0526371783],
        [0.0370833256, 0.0988715543, 0.1141589461, 0.0757556017],
    ]
    assert_close_to_8_digits(x.grad[:, 0], of_x)
    assert_close_to_8_digits(attention.out_proj.bias.grad, [-8.7089510393, -5.9555908093, 0.4385787233, -13.8359913772])
    rows = [2.4141332747, -0.233077843, -0.0252116397, 0.0504854033, 4.2010058982, -8.0354331051]
    rows += [0.1243174616, 0.3582894302, 26.5281403109, 27.6271745944, -17.0951006288, 2.0248315758]
    assert_close_to_8_digits(attention.in_proj_weight.grad.sum(1), rows)


def test_names_and_shapes_of_parameters_are_torchs() -> None:
    def shapes(**options: Any) -> dict[str, tuple[int, ...]]:
        return {name: t.shape for name, t in MultiheadAttention(6, 2, **options).state_dict().items()}

    out = {"out_proj.weight": (6, 6), "out_proj.bias": (6,)}
    assert shapes() == {"in_proj_weight": (18, 6), "in_proj_bias": (18,), **out}
    assert shapes(bias=False) == {"in_proj_weight": (18, 6), "out_proj.weight": (6, 6)}
    projections = {"q_proj_weight": (6, 6), "k_proj_weight": (6, 3), "v_proj_weight": (6, 4), "in_proj_bias": (18,)}
    learned = {"bias_k": (1, 1, 6), "bias_v": (1, 1, 6)}
    assert shapes(kdim=3, vdim=4, add_bias_kv=True) == projections | learned | out


def test_first_values_are_drawn_as_torchs_and_by_the_generator() -> None:
    one, same, other = (MultiheadAttention(16, 4, add_bias_kv=True, rng=np.random.default_rng(s)) for s in (0, 0, 1))
    for p, q in zip(one.parameters(), same.parameters(), strict=True):
        np.testing.assert_array_equal(p, q)
    assert (one.in_proj_weight != other.in_proj_weight).any()
    bound = np.sqrt(6 / (16 + 48))
    assert 0.95 * bound < gnp.abs(one.in_proj_weight).max() <= bound
    assert not one.in_proj_bias.numpy().any()
    assert not one.out_proj.bias.numpy().any()
    assert one.in_proj_weight.dtype == np.float32


@pytest.mark.parametrize("options", [{}, {"kdim": 3, "vdim": 5}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_layouts_and_weights_agree(options: dict[str, Any]) -> None:
    attention, first = layer(**options), layer(batch_first=True, **options)
    q, k, v = wave(3, 2, 4), wave(5, 2, attention.kdim, at=1), wave(5, 2, attention.vdim, at=2)
    output, weights = attention(q, k, v)
    of_first, same = first(*(a.swapaxes(0, 1) for a in (q, k, v)))
    assert_close_to_8_digits(of_first.swapaxes(0, 1), output)
    assert_close_to_8_digits(same, weights)
    assert_close_to_8_digits(attention(q, k, v, need_weights=False)[0], output)
    assert attention(q, k, v, need_weights=False)[1] is None
    by_head = attention(q, k, v, average_attn_weights=False)[1]
    assert by_head.shape == (2, 2, 3, weights.shape[-1])
    assert_close_to_8_digits(by_head.mean(1), weights)
    for k_th in range(2):
        alone, weights_alone = attention(q[:, k_th], k[:, k_th], v[:, k_th])
        assert_close_to_8_digits(alone, output[:, k_th])
        assert_close_to_8_digits(weights_alone, weights[k_th])


def test_masks_of_the_layer_leave_out_where_true() -> None:
    attention, x = layer(), wave(3, 2, 4)
    ahead = ~np.tri(3, dtype=bool)
    expected, weights = attention(x, x, x, attn_mask=ahead)
    assert not weights.numpy()[:, ahead].any()
    same: list[dict[str, Any]] = [
        {"attn_mask": np.where(ahead, -np.inf, 0.0)},
        {"is_causal": True},
        {"attn_mask": ahead, "is_causal": True},
        {"attn_mask": np.broadcast_to(ahead, (4, 3, 3))},
        {"is_causal": True, "key_padding_mask": np.zeros((2, 3), bool)},
        {"attn_mask": ahead, "key_padding_mask": np.zeros((2, 3))},
    ]
    for options in same:
        assert_close_to_8_digits(attention(x, x, x, **options)[0], expected)
    padded = attention(x, x, x, attn_mask=ahead, key_padding_mask=np.array([[False] * 3, [False, True, False]]))[1]
    assert padded[1, 2, 1] == 0
    assert padded[0, 2, 1] != 0


def test_a_query_without_keys_gets_the_bias_of_the_last_projection() -> None:
    attention, x = layer(), wave(3, 1, 4)
    for need_weights in (True, False):
        output, weights = attention(x, x, x, key_padding_mask=np.ones((1, 3), bool), need_weights=need_weights)
        assert_close_to_8_digits(output, np.broadcast_to(attention.out_proj.bias.numpy(), (3, 1, 4)))
    assert weights is None


def test_what_is_learned_behind_the_keys_is_seen_through_every_mask() -> None:
    attention, x = layer(add_bias_kv=True, add_zero_attn=True), wave(3, 1, 4)
    _, weights = attention(x, x, x, attn_mask=np.ones((3, 3), bool))
    assert weights.shape == (1, 3, 5)
    assert not weights.numpy()[..., :3].any()
    assert_close_to_8_digits(weights.sum(-1), np.ones((1, 3)))


def test_dropout_acts_while_training_and_on_the_weights_returned() -> None:
    attention, x = layer(dropout=0.5, rng=np.random.default_rng(2)), wave(3, 2, 4)
    output, weights = attention(x, x, x)
    assert (weights.numpy() == 0).any()
    attention.eval()
    settled, all_weights = attention(x, x, x)
    assert (all_weights.numpy() != 0).all()
    assert not np.allclose(settled, output)
    assert_close_to_8_digits(attention(x, x, x)[0], settled)
    by_head = attention.train()(x, x, x, average_attn_weights=False)[1].numpy()
    assert set(np.unique(by_head == 0)) == {False, True}


X = np.ones((3, 2, 4))
WRONG_OF_LAYER: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ((X[..., :3], X, X), {}, errors.ShapeError, "query must have 4 features"),
    ((X, X[..., :3], X), {}, errors.ShapeError, "key must have 4 features"),
    ((X, X, X[:2]), {}, errors.ShapeError, "key and value must have the same length and batch"),
    ((X, X[:, :1], X[:, :1]), {}, errors.ShapeError, "axis 1 with batch_first=False"),
    ((X, X[0], X[0]), {}, errors.ShapeError, r"takes three arrays \(length, batch, features\)"),
    ((X, X, X), {"attn_mask": np.ones((3, 2), bool)}, errors.ShapeError, r"attn_mask must have shape \(3, 3\) or"),
    (
        (X, X, X),
        {"key_padding_mask": np.ones(3, bool)},
        errors.ShapeError,
        r"key_padding_mask must have shape \(2, 3\)",
    ),
    ((X, X, X), {"key_padding_mask": np.ones((2, 3), int)}, errors.DtypeError, "key_padding_mask must be boolean"),
    ((X.astype(int),) * 3, {}, errors.DtypeError, "found query of dtype int64"),
]


@pytest.mark.parametrize(("args", "options", "kind", "says"), WRONG_OF_LAYER, ids=[w[-1] for w in WRONG_OF_LAYER])
def test_wrong_arguments_of_the_layer(args: Any, options: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        layer()(*args, **options)


@pytest.mark.parametrize(
    ("args", "options", "says"),
    [
        ((6, 4), {}, "num_heads=4 does not divide embed_dim=6"),
        ((0, 1), {}, "embed_dim must be at least 1; found 0"),
        ((4, 2), {"dropout": -0.1}, "dropout must be a probability"),
    ],
)
def test_wrong_sizes_of_the_layer(args: Any, options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MultiheadAttention(*args, **options)
