"""Products: matmul, dot, einsum, tensordot, outer and similar functions."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index, normalize_axis_tuple

from gradmgr._arrays import libraries
from gradmgr._arrays.batched import is_batched
from gradmgr._arrays.contraction import contract_pair, lengths_of, pairs
from gradmgr._engine.broadcast import broadcast_to, sum_to
from gradmgr._engine.custom import variadic
from gradmgr._engine.elementwise import OpFunction, conj_of, multilinear
from gradmgr._engine.indexing import scatter
from gradmgr._engine.mutation import as_type, store
from gradmgr._engine.tensor import Tensor, raw
from gradmgr._engine.views import as_number, view_of
from gradmgr.ops.arithmetic import multiply
from gradmgr.ops.convert import cast_to, holds_tensor, lift, lift_like, widen_half
from gradmgr.ops.naming import named_errors
from gradmgr.ops.shape import expand_dims, moveaxis, ravel, reshape, transpose
from gradmgr.ops.sparse_arrays import product_with_sparse
from gradmgr.ops.where import choose

# ---------------------------------------------------------------- matmul


def _matmul_x(g: Any, y: Any) -> Any:
    """Return the cotangent of x in x @ y. Where x is 1-d, g has one axis less than y."""
    if libraries.are_matrices(g, y):
        return g.dot(y.T)
    if y.ndim == 1:
        if g.ndim == 0:
            return g * y
        return g[..., None] * y if g.__class__ is np.ndarray else expand_dims(g, -1) * y
    if g.ndim == y.ndim - 1:
        return _matvec(y, g)
    if y.ndim == 2 and libraries.is_numpy(g) and g.flags.c_contiguous and g.size:
        rows = g.reshape((-1, g.shape[-1]))
        if libraries.is_matrix(y) and y.dtype is g.dtype:
            # One product, which takes 0.5 to 0.9 of the time of many small ones.
            return np.dot(rows, y.T).reshape((*g.shape[:-1], len(y)))
    return libraries.product(g, _swap_last_axes(y))


def _matmul_y(g: Any, x: Any) -> Any:
    """Return the cotangent of y in x @ y. Where y is 1-d, g has one axis less than x."""
    if libraries.are_matrices(g, x):
        return x.T.dot(g)
    if x.ndim == 1:
        return _outer_columns(x, g) if g.ndim else g * x
    if g.ndim == x.ndim - 1:
        return _matvec(_swap_last_axes(x), g)
    return libraries.product(_swap_last_axes(x), g)


def _outer_columns(x: Any, g: Any) -> Any:
    """Return x times each number of g, as columns, for a vector and a stack of vectors."""
    if g.__class__ is x.__class__ is np.ndarray:
        return x[:, None] * g[..., None, :]
    if g.ndim == 1:
        column, row = x.reshape((x.shape[0], 1)), g.reshape((1, g.shape[0]))
        return column @ row if is_batched(column) and is_batched(row) else multiply(column, row)
    return multiply(expand_dims(x, -1), expand_dims(g, -2))


def _swap_last_axes(m: Any) -> Any:
    return m.T if m.ndim == 2 else m.swapaxes(-1, -2)


def _matvec(m: Any, v: Any) -> Any:
    """Return m @ v for stacks of matrices and of vectors."""
    if m.ndim == 2:
        if m.__class__ is v.__class__ is np.ndarray:
            return m.dot(v)
        return np.dot(m, v) if libraries.is_numpy(m) and libraries.is_numpy(v) else matmul(m, v)
    return matmul(m, expand_dims(v, -1))[..., 0]


matmul = multilinear("matmul", np.matmul, _matmul_x, _matmul_y, operate="x @ y", of_others=product_with_sparse)


def _product(a: Any, b: Any) -> Any:
    """Multiply in the dtype of its operands: numpy.matmul of bfloat16 gives float32, numpy.dot does not."""
    z = matmul(a, b)
    return as_type(z, a.dtype) if a.dtype == b.dtype != z.dtype else z


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply as `numpy.dot`: matmul up to two axes, else the last axis of a with the one before of b."""
    a, b = lift(a), lift(b)
    if a.ndim == 0 or b.ndim == 0:
        z = multiply(a, b)
    elif b.ndim == 1 or (a.ndim <= 2 and b.ndim == 2):
        z = _product(a, b)
    else:
        z = tensordot(a, b, axes=(-1, -2))
    return z if out is None else store(out, z, "dot(out=...)")


def vdot(a: Any, b: Any, /) -> Any:
    """Dot product of the flattened arrays, the first conjugated, as `numpy.vdot`."""
    a = ravel(lift(a))
    return _product(conj_of(a), ravel(lift(b)))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Dot products along an axis, the first conjugated, as `numpy.vecdot`."""
    x, y = moveaxis(lift(x1), axis, -1), moveaxis(lift(x2), axis, -1)
    x = conj_of(x)
    return matmul(expand_dims(x, -2), expand_dims(y, -1))[..., 0, 0]


def inner(a: Any, b: Any, /) -> Any:
    """Product over the last axes, as `numpy.inner`."""
    a, b = lift(a), lift(b)
    return multiply(a, b) if a.ndim == 0 or b.ndim == 0 else as_number(tensordot(a, b, axes=(-1, -1)))


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Outer product of the flattened arrays, as `numpy.outer`."""
    z = multiply(expand_dims(ravel(lift(a)), 1), expand_dims(ravel(lift(b)), 0))
    return z if out is None else store(out, z, "outer(out=...)", may_broadcast=True)


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Contract axes as `numpy.tensordot`."""
    a, b = lift(a), lift(b)
    if isinstance(axes, (int, np.integer)):
        if axes > min(a.ndim, b.ndim):
            raise IndexError(
                f"tensordot: axes={axes} sums over the last {axes} axes of the first array and the first {axes} of the "
                f"second; found shapes {a.shape} and {b.shape}"
            )
        of_a, of_b = tuple(range(a.ndim - int(axes), a.ndim)), tuple(range(int(axes)))
    else:
        of_a, of_b = (normalize_axis_tuple(part, t.ndim) for part, t in zip(axes, (a, b), strict=True))
    if len(of_a) != len(of_b) or any(a.shape[i] != b.shape[j] for i, j in zip(of_a, of_b, strict=True)):
        raise ValueError(f"shape-mismatch for sum: {a.shape} over axes {of_a}, {b.shape} over axes {of_b}")
    free_a = tuple([k for k in range(a.ndim) if k not in of_a])
    free_b = tuple([k for k in range(b.ndim) if k not in of_b])
    summed = int(np.prod([a.shape[k] for k in of_a], dtype=np.intp))
    shape_a, shape_b = [a.shape[k] for k in free_a], [b.shape[k] for k in free_b]
    rows, columns = int(np.prod(shape_a, dtype=np.intp)), int(np.prod(shape_b, dtype=np.intp))
    left = _transpose_and_reshape(a, (*free_a, *of_a), (rows, summed))
    right = _transpose_and_reshape(b, (*of_b, *free_b), (summed, columns))
    z = _product(left, right)
    shape = (*shape_a, *shape_b)
    return z if z.shape == shape else reshape(z, shape)


def _transpose_and_reshape(a: Any, order: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Transpose and reshape, as far as there is something to do."""
    a = a if order == tuple(range(a.ndim)) else transpose(a, order)
    return a if a.shape == shape else reshape(a, shape)


# ---------------------------------------------------------------- einsum

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _from_sublists(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Turn einsum(a, [0, 1], b, [1, 2], [0, 2]) into its string form."""

    def letters(sublist: Any) -> str:
        return "".join("..." if part is Ellipsis else _letter(part) for part in sublist)

    arrays, count = list(operands[0 : 2 * (len(operands) // 2) : 2]), len(operands) // 2
    subscripts = ",".join(letters(operands[2 * k + 1]) for k in range(count))
    return (f"{subscripts}->{letters(operands[-1])}" if len(operands) % 2 else subscripts), arrays


def _letter(number: Any) -> str:
    k = operator.index(number)
    if not 0 <= k < len(_LETTERS):
        raise ValueError(f"einsum: subscript {k} is not within the valid range [0, {len(_LETTERS)})")
    return _LETTERS[k].swapcase()  # so that the order of the numbers is that of the letters


def _explicit_subscripts(subscripts: str, shapes: list[tuple[int, ...]]) -> tuple[tuple[str, ...], str]:
    """Spell out a subscript string: no ellipsis, no implied output. Returns (inputs, output)."""
    subscripts = subscripts.replace(" ", "")
    left, arrow, right = subscripts.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"einsum {subscripts!r} names {len(terms)} operands; {len(shapes)} were given")
    if arrow and "..." not in left and [len(term) for term in terms] == [len(shape) for shape in shapes]:
        return tuple(terms), right.replace("...", "")
    free = [letter for letter in _LETTERS if letter not in subscripts]
    widest = 0
    for term, shape in zip(terms, shapes, strict=True):
        if "..." in term:
            widest = max(widest, len(shape) - len(term.replace("...", "")))
    dots = "".join(free[:widest])
    spelled = []
    for term, shape in zip(terms, shapes, strict=True):
        covered = len(shape) - len(term.replace("...", ""))
        if covered < 0 or (covered > 0 and "..." not in term):
            raise ValueError(f"einsum term {term!r} does not fit an operand with {len(shape)} axes")
        spelled.append(term.replace("...", dots[widest - covered :]))
    if arrow:
        out = right.replace("...", dots)
    else:
        named = [letter for letter in "".join(spelled) if letter not in dots]
        out = dots + "".join(sorted(letter for letter in set(named) if named.count(letter) == 1))
    return tuple(spelled), out


def _einsum_vjp(
    g: Any, k: int, values: Any, shapes: Any, terms: tuple[str, ...], out: str, optimize: Any, order: str
) -> Any:
    """Return the cotangent of operand k: an einsum of g with the others, then what einsum cannot express.

    Letters that operand k has with length 1 where the others are longer were broadcast: summed
    here. Letters that no other term has were summed: broadcast here. A letter twice in the term reads
    a diagonal: written back through a mask.
    """
    term, shape = terms[k], shapes[k]
    others = [j for j in range(len(terms)) if j != k]
    elsewhere = "".join([out, *[terms[j] for j in others]])
    unique = "".join(dict.fromkeys(term))
    wanted = "".join([letter for letter in unique if letter in elsewhere])
    arrays, inputs = [g, *[conj_of(values[j]) for j in others]], (out, *[terms[j] for j in others])
    arrays = [widen_half(a) for a in arrays]  # numpy.einsum adds them in their dtype
    if {a.__class__ for a in arrays} == {np.ndarray} or all(map(libraries.is_numpy, arrays)):
        d = _einsum_kernel(arrays, inputs, wanted, optimize, "K")
    else:
        d = einsum(",".join(inputs) + "->" + wanted, *arrays, optimize=optimize)
    if wanted == term and d.shape == shape:
        return d
    length = dict(zip(term, shape, strict=True))
    d = sum_to(d, tuple([1 if length[letter] == 1 else n for letter, n in zip(wanted, d.shape, strict=True)]))
    kept = iter(d.shape)
    d = reshape(d, tuple([next(kept) if letter in wanted else 1 for letter in unique]))
    d = broadcast_to(d, tuple([length[letter] for letter in unique]))
    return d if unique == term else _on_diagonals(d, term, unique, shape)


def _on_diagonals(d: Any, term: str, unique: str, shape: tuple[int, ...]) -> Any:
    xp = libraries.namespace(raw(d))
    seen: set[str] = set()
    first = []
    for letter in term:
        first.append(letter not in seen)
        seen.add(letter)
    lengths = iter(d.shape)
    d = broadcast_to(reshape(d, tuple([next(lengths) if new else 1 for new in first])), shape)
    mask = xp.ones((), dtype=bool)
    for k, letter in enumerate(term):
        j = term.index(letter)
        if j != k:
            axes = [1] * len(term)
            axes[j] = axes[k] = shape[k]
            mask = mask & xp.eye(shape[k], dtype=bool).reshape(axes)
    return choose(mask, d, xp.zeros((), d.dtype))


def _einsum_jvp(tangents: Any, values: Any, terms: tuple[str, ...], out: str, optimize: Any, order: str) -> Any:
    total = None
    for k, t in enumerate(tangents):
        if t is not None:
            arrays = [widen_half(a) for a in (*values[:k], t, *values[k + 1 :])]
            part = _einsum(arrays, terms, out, optimize, order)
            total = part if total is None else total + part
    return cast_to(total, np.result_type(*values))


def _einsum_kernel(arrays: Any, terms: tuple[str, ...], out: str, optimize: Any, order: str) -> Any:
    more: Any = {} if order == "K" else {"order": order}  # CuPy's has none
    if order == "K" and len(arrays) == 2 and _is_large(arrays, terms):
        return contract_pair(arrays[0], arrays[1], terms, out)
    return np.einsum(f"{','.join(terms)}->{out}", *arrays, optimize=optimize, **more)


# From this number of products on, products of matrices, prepared in 6 us, are faster than NumPy's loop: matrices of 300
# rows take an eighth of the time.
_MANY_PRODUCTS = 1 << 15


def _is_large(arrays: Any, terms: tuple[str, ...]) -> bool:
    """Tell whether NumPy's own loop over all products of numbers is slower than BLAS."""
    if len(arrays) < 2 or math.prod([a.size for a in arrays]) < _MANY_PRODUCTS:
        return False
    if any(a.dtype.char not in "fdFD" or libraries.root(a) is not np for a in arrays):
        return False
    return math.prod(lengths_of(terms, [a.shape for a in arrays]).values()) >= _MANY_PRODUCTS


def _einsum_in_pairs(arrays: list[Any], terms: tuple[str, ...], out: str) -> Any:
    """Contract three or more operands as a sequence of einsums of two, in an order that takes few products."""
    left = list(zip(arrays, terms, strict=True))
    for j, k, made in pairs(terms, out, lengths_of(terms, [a.shape for a in arrays])):
        (a, one), (b, other) = left[j], left[k]
        left = [pair for i, pair in enumerate(left) if i not in (j, k)]
        left.append((_einsum([a, b], (one, other), made, False, "K"), made))
    return left[0][0]


def _diagonal_of(x: Any, a: Any, c: Any, *params: Any) -> Any:
    return view_of(x, a, c) if params[-1] == 1 else None  # the last parameter is the number of operands


_einsum = variadic("einsum", _einsum_kernel, vjp=_einsum_vjp, jvp=_einsum_jvp, keeps="others", view_of=_diagonal_of)


def einsum(
    *operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None, order: str = "K", casting: Any = "safe"
) -> Any:
    """Contract by subscripts as `numpy.einsum`: strings or sublists, ellipses, diagonals, implied output.

    `optimize` is used for the derivatives too.
    """
    if not holds_tensor(operands) and not isinstance(out, Tensor):
        given = {"dtype": (dtype, None), "order": (order, "K"), "casting": (casting, "safe")}
        more: Any = {name: value for name, (value, default) in given.items() if value != default}
        return np.einsum(*operands, out=out, optimize=optimize, **more)
    if order not in ("K", "A", "C", "F"):
        raise ValueError(f"einsum: order must be one of 'C', 'F', 'A', or 'K'; found {order!r}")
    if isinstance(operands[0], str):
        subscripts, arrays = operands[0], list(operands[1:])
    else:
        subscripts, arrays = _from_sublists(operands)
    arrays = [lift(a) for a in arrays]
    terms, result = _explicit_subscripts(subscripts, [a.shape for a in arrays])
    if dtype is not None:
        for a in arrays:
            if not np.can_cast(a.dtype, dtype, casting):
                raise TypeError(f"einsum: {a.dtype} cannot be cast to {np.dtype(dtype)} by the rule {casting!r}")
        arrays = [a if a.dtype == np.dtype(dtype) else as_type(a, dtype) for a in arrays]
    if optimize is False and order == "K" and len(arrays) > 2 and _is_large([raw(a) for a in arrays], terms):
        z = _einsum_in_pairs(arrays, terms, result)
    else:
        z = _einsum(arrays, terms, result, optimize, order)
    return z if out is None else store(out, z, "einsum(out=...)")


def kron(a: Any, b: Any) -> Any:
    """Return the Kronecker product as `numpy.kron`."""
    if not holds_tensor(a) and not holds_tensor(b):
        return np.kron(a, b)
    x, y = lift_like(a, b), lift_like(b, a)
    ndim = builtins.max(x.ndim, y.ndim)
    m, n = [(1,) * (ndim - t.ndim) + tuple(t.shape) for t in (x, y)]
    rows = reshape(x, [size for length in m for size in (length, 1)])
    columns = reshape(y, [size for length in n for size in (1, length)])
    return reshape(rows * columns, [i * j for i, j in zip(m, n, strict=True)])


_cross_of_3d: OpFunction = multilinear(
    "cross",
    lambda x, y: np.cross(x, y),
    lambda g, y: _cross_of_3d(y, g),
    lambda g, x: _cross_of_3d(g, x),
)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Return the cross product of vectors as `numpy.cross`; those of 2 elements only where NumPy still takes them."""
    if not holds_tensor(a) and not holds_tensor(b):
        return np.cross(a, b, axisa, axisb, axisc, axis)
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = lift_like(a, b), lift_like(b, a)
    if a.ndim < 1 or b.ndim < 1:
        raise ValueError("cross: At least one array has zero dimension")
    x = _moved(a, normalize_axis_index(axisa, a.ndim, "axisa"), a.ndim - 1)
    y = _moved(b, normalize_axis_index(axisb, b.ndim, "axisb"), b.ndim - 1)
    lengths = x.shape[-1], y.shape[-1]
    if lengths != (3, 3):
        with named_errors("cross"):
            np.cross(np.zeros(lengths[0]), np.zeros(lengths[1]))  # raises or warns, as this NumPy does
        if lengths == (2, 2):
            return x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]
        x, y = _as_3d(x), _as_3d(y)
    with named_errors("cross"):
        ndim = len(np.broadcast_shapes(x.shape, y.shape))
    return _moved(_cross_of_3d(x, y), ndim - 1, normalize_axis_index(axisc, ndim, "axisc"))


def _moved(x: Any, axis: int, to: int) -> Any:
    """Move one axis; where it is there already, return x itself."""
    return x if axis == to else moveaxis(x, axis, to)


def _as_3d(x: Any) -> Any:
    """Give vectors of 2 elements a third, 0."""
    if x.shape[-1] == 3:
        return x
    return scatter(x, (*x.shape[:-1], 3), (..., slice(0, 2)))
