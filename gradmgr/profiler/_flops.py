"""How many floating-point operations an op takes, by the op's name: one line for each op that is counted.

Counts are of multiplications (divisions too) and additions (subtractions too), as in the tables of LAPACK
Working Note 41 (Blackford and Dongarra), which are followed for what LAPACK computes; the eigenvalue and
singular value counts are the leading terms that Golub and Van Loan, Matrix Computations, give for the QR
algorithms with vectors. A complex multiplication is 6 real operations, a complex addition 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

Shape = tuple[int, ...]
# (multiplications, additions) from the shapes of the inputs, the parameters of the op, and the shape of the result.
Count = Callable[[list[Shape], tuple[Any, ...], Shape], tuple[float, float]]
# Operations of the vjp for each of the first inputs, from the same arguments.
VjpCount = Callable[[list[Shape], tuple[Any, ...], Shape], tuple[float, ...]]


def _matmul(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    products = math.prod(z) * (shapes[0][-1] if shapes[0] else 1)
    return products, products


def _einsum(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count one loop over all letters; with `optimize` NumPy may find an order with fewer operations."""
    terms, out = params[0], params[1]
    length: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, n in zip(term, shape, strict=True):
            length[letter] = max(n, length.get(letter, 1))
    turns = math.prod(length.values())
    return turns * (len(shapes) - 1), turns if set(length) - set(out) else 0


def _convolve(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count the products of elements that overlap; a sum of k of them is counted as k additions."""
    long, short = max(shapes[0][0], shapes[1][0]), min(shapes[0][0], shapes[1][0])
    cut = max(long + short - 1 - z[0], 0)  # results of the full convolution that the mode leaves out
    left, right = cut // 2, cut - cut // 2
    products = long * short - left * (left + 1) // 2 - right * (right + 1) // 2
    return products, products


def _conv(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count a kernel at each place of the result, over the edges too, without the addition of a bias."""
    products = math.prod(z) * math.prod(shapes[1][1:])
    return products, products


def _conv_transpose(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count a kernel for each number of the input, without the addition of a bias."""
    products = math.prod(shapes[0]) * math.prod(shapes[1][1:])
    return products, products


def _conv_weight(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count a kernel for each number of the cotangent, the second input."""
    products = math.prod(shapes[1]) * math.prod(z[1:])
    return products, products


def _linear(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count the product with the weight, without the addition of a bias."""
    products = math.prod(z) * shapes[1][-1]
    return products, products


def _attention(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count the products with all keys and all values, causal or not, without scaling and softmax."""
    products = math.prod(z[:-1]) * shapes[1][-2] * (shapes[0][-1] + z[-1])
    return products, products


def _attention_back(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, ...]:
    """Count a product for each gradient; half of that for the weights with query, half with key, as both need it."""
    pairs = math.prod(z[:-1]) * shapes[1][-2]
    of_query_or_key = 2 * pairs * shapes[0][-1] + pairs * z[-1]
    return of_query_or_key, of_query_or_key, 2 * pairs * z[-1]


def _cell(gates: int, states: int) -> tuple[Count, VjpCount]:
    """Make the counts of a recurrent step: the products with both weights, without the arithmetic of the gates."""

    def products(shapes: list[Shape], z: Shape) -> tuple[int, int]:
        rows = math.prod(z) * gates
        return rows * math.prod(shapes[1 + states][1:2]), rows * z[-1]

    def count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
        total = sum(products(shapes, z))
        return total, total

    def vjp_count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, ...]:
        of_input, of_state = products(shapes, z)
        return 2 * of_input, 2 * of_state, *[0] * (states - 1), 2 * of_input, 2 * of_state

    return count, vjp_count


def _sequence(states: int) -> tuple[Count, VjpCount]:
    """Make the counts of a recurrent layer: the product with w_hh; `nn.linear` computes that with w_ih before.

    The vjp of the steps is counted with the first input, the sums for w_hh with w_hh.
    """

    def count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
        products = math.prod(shapes[0]) * shapes[1 + states][-1]
        return products, products

    def vjp_count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, ...]:
        products = math.prod(shapes[0]) * shapes[1 + states][-1]
        return 2 * products, *[0] * states, 2 * products

    return count, vjp_count


def _norm(muls: int, adds: int) -> Count:
    """Make the count of a normalisation, for each number, without the operations on statistics.

    A mean is an addition, its subtraction another; a mean of squares a multiplication and an addition; to scale by
    it a multiplication. A weight adds a multiplication, a bias an addition.
    """

    def count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
        return math.prod(z) * (muls + bool(shapes[1])), math.prod(z) * (adds + bool(shapes[2]))

    return count


def _mean_of_windows(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count whole windows, over the edges too."""
    return math.prod(z), math.prod(z) * (math.prod(params[0].kernel) - 1)


def _batch(shape: Shape) -> int:
    return math.prod(shape[:-2])


def _lu(n: float) -> tuple[float, float]:
    return n**3 / 3 + 2 * n / 3, n**3 / 3 - n**2 / 2 + n / 6


def _unless_factored(n: float, params: tuple[Any, ...]) -> tuple[float, float]:
    """Count the factorisation, unless it is given: shared with the gradient, it is computed before."""
    return (0.0, 0.0) if params and params[0] is not None else _lu(n)


def _det(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    n, batch = shapes[0][-1], _batch(shapes[0])
    muls, adds = _unless_factored(n, params)
    return batch * (muls + n), batch * adds


def _columns(n: int, z: Shape) -> float:
    return math.prod(z) / n if n else 0


def _solve(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    n, columns = shapes[0][-1], _columns(shapes[0][-1], z)
    muls, adds = _unless_factored(n, params)
    batch = _batch(shapes[0])
    return batch * muls + columns * n**2, batch * adds + columns * (n**2 - n)


def _solve_triangular(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    n, columns = shapes[0][-1], _columns(shapes[0][-1], z)
    return columns * n * (n + 1) / 2, columns * n * (n - 1) / 2


def _inv(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    n, batch = shapes[0][-1], _batch(shapes[0])
    muls, adds = _lu(n)
    return (
        batch * (muls + 2 * n**3 / 3 + n**2 / 2 + 5 * n / 6),
        batch * (adds + 2 * n**3 / 3 - 3 * n**2 / 2 + 5 * n / 6),
    )


def _cholesky(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    n, batch = shapes[0][-1], _batch(shapes[0])
    return batch * (n**3 / 6 + n**2 / 2 + n / 3), batch * (n**3 / 6 - n / 6)


def _qr(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    """Count the factorisation, without computing Q from the reflectors, as much again for a square matrix."""
    (m, n), batch = shapes[0][-2:], _batch(shapes[0])
    if m >= n:
        muls, adds = n * (23 / 6 + m + n / 2 + n * (m - n / 3)), n * (5 / 6 + n * (1 / 2 + m - n / 3))
    else:
        muls, adds = m * (23 / 6 + 2 * n - m / 2 + m * (n - m / 3)), m * (5 / 6 + n - m / 2 + m * (n - m / 3))
    return batch * muls, batch * adds


def _cubic(factor: float) -> Count:
    def count(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
        half = _batch(shapes[0]) * factor * shapes[0][-1] ** 3 / 2
        return half, half

    return count


def _svd(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    long, short = max(shapes[0][-2:]), min(shapes[0][-2:])
    full = bool(params and params[0])
    total = 4 * long**2 * short + 22 * short**3 if full else 6 * long * short**2 + 20 * short**3
    half = _batch(shapes[0]) * total / 2
    return half, half


def _sum(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    return 0, max(math.prod(shapes[0]) - math.prod(z), 0)


def _one_multiplication(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    return math.prod(z), 0


def _one_addition(shapes: list[Shape], params: tuple[Any, ...], z: Shape) -> tuple[float, float]:
    return 0, math.prod(z)


_LSTM_CELL, _LSTM_CELL_BACK = _cell(gates=4, states=2)
_GRU_CELL, _GRU_CELL_BACK = _cell(gates=3, states=1)
_LSTM, _LSTM_BACK = _sequence(states=2)
_GRU, _GRU_BACK = _sequence(states=1)

# By the op's name. Ops that only read and compare, as `nn.embedding` and `nn.max_pool2d`, count as 0.
# Ops without a line are not counted.
FLOPS: MappingProxyType[str, Count] = MappingProxyType(
    {
        "add": _one_addition,
        "cholesky": _cholesky,
        "convolve": _convolve,
        "correlate": _convolve,
        "det": _det,
        "divide": _one_multiplication,
        "eig": _cubic(25),
        "eigh": _cubic(9),
        "einsum": _einsum,
        "inv": _inv,
        "matmul": _matmul,
        "multiply": _one_multiplication,
        "nn.avg_pool2d": _mean_of_windows,
        "nn.batch_norm": _norm(2, 3),
        "nn.batch_norm_given": _norm(1, 1),
        "nn.batch_norm_of_input": _norm(2, 3),
        "nn.conv2d": _conv,
        "nn.conv2d_bias": _conv,
        "nn.conv2d_weight": _conv_weight,
        "nn.conv_transpose2d": _conv_transpose,
        "nn.conv_transpose2d_bias": _conv_transpose,
        "nn.group_norm": _norm(2, 3),
        "nn.group_norm_of_input": _norm(2, 3),
        "nn.gru": _GRU,
        "nn.gru_cell": _GRU_CELL,
        "nn.layer_norm": _norm(2, 3),
        "nn.layer_norm_of_input": _norm(2, 3),
        "nn.linear": _linear,
        "nn.lstm": _LSTM,
        "nn.lstm_cell": _LSTM_CELL,
        "nn.rms_norm": _norm(2, 1),
        "nn.rms_norm_of_input": _norm(2, 1),
        "nn.scaled_dot_product_attention": _attention,
        "qr": _qr,
        "slogdet": _det,
        "solve": _solve,
        "solve_triangular": _solve_triangular,
        "subtract": _one_addition,
        "sum": _sum,
        "svd": _svd,
    }
)

# Ops whose vjp costs for each of its first inputs as much as the op itself, with the number of these inputs; None
# for all. A bias, which comes last, costs next to nothing.
_VJP_COSTS_THE_SAME: MappingProxyType[str, int | None] = MappingProxyType(
    {
        **dict.fromkeys(("convolve", "correlate", "einsum", "matmul", "multiply")),
        **dict.fromkeys(("nn.conv2d", "nn.conv2d_bias", "nn.conv2d_weight"), 2),
        **dict.fromkeys(("nn.conv_transpose2d", "nn.conv_transpose2d_bias", "nn.linear"), 2),
    }
)
# Ops whose vjp has another cost for each input.
_VJP_COUNTS: MappingProxyType[str, VjpCount] = MappingProxyType(
    {
        "nn.gru": _GRU_BACK,
        "nn.gru_cell": _GRU_CELL_BACK,
        "nn.lstm": _LSTM_BACK,
        "nn.lstm_cell": _LSTM_CELL_BACK,
        "nn.scaled_dot_product_attention": _attention_back,
    }
)


def flops_of(name: str, inputs: tuple[Any, ...], params: tuple[Any, ...], result: Any) -> tuple[int, tuple[int, ...]]:
    """Return the floating-point operations of one op, and those of its vjp for each of its first inputs.

    Where they are not counted, the number is 0, the tuple empty.

    Args:
        name: the op's name.
        inputs: arrays, Tensors and numbers.
        params: the op's other parameters.
        result: the array it made, or a tuple of them.
    """
    count = FLOPS.get(name)
    if count is None:
        return 0, ()
    first = result[0] if result.__class__ is tuple else result
    shapes, z = [tuple(getattr(x, "shape", ())) for x in inputs], tuple(first.shape)
    muls, adds = count(shapes, params, z)
    is_complex = any(getattr(getattr(x, "dtype", None), "kind", "") == "c" or isinstance(x, complex) for x in inputs)
    flops = round(6 * muls + 2 * adds if is_complex else muls + adds)
    if name in _VJP_COUNTS:
        return flops, tuple([round(count) for count in _VJP_COUNTS[name](shapes, params, z)])
    return flops, (flops,) * len(inputs[: _VJP_COSTS_THE_SAME[name]]) if name in _VJP_COSTS_THE_SAME else ()
