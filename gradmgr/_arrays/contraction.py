"""Contraction: einsum of large arrays, pair by pair, each pair as a stack of matrix products.

`numpy.einsum` without `optimize` goes over all products of numbers in one loop. With it, it uses BLAS only for pairs
that `tensordot` can contract: those in which no axis of both stays.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradmgr._arrays import libraries
from gradmgr._arrays.sums import LONG

Array = Any
Lengths = dict[str, int]


def lengths_of(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Lengths:
    """Return by letter how long its axis is, where one of length 1 is stretched to the others."""
    found: Lengths = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, n in zip(term, shape, strict=True):
            found[letter] = n if found.get(letter, 1) == 1 else found[letter]
    return found


# ---------------------------------------------------------------- which pairs


def pairs(terms: Sequence[str], out: str, lengths: Lengths) -> list[tuple[int, int, str]]:
    """Return which two operands to contract one after the other, and the term of what they give.

    The two are taken out of the list of operands, and their result is put at its end, as in `numpy.einsum_path`. Next
    is the pair whose contraction leaves the fewest numbers, the cheaper one of equals. For more than three operands,
    where that may be far from the best and looking takes less than computing, opt_einsum decides if it is installed.
    """
    if len(terms) > 3 and importlib.util.find_spec("opt_einsum") is not None:
        order = _order_of_opt_einsum(terms, out, lengths)
    else:
        order = None
    left, found = list(terms), []
    while len(left) > 1:
        if order:
            j, k = sorted(order.pop(0))
        else:
            j, k = min(combinations(range(len(left)), 2), key=lambda pair: _cost(left, pair, out, lengths))
        made = out if len(left) == 2 else _term_of(left, (j, k), out)
        left = [term for i, term in enumerate(left) if i not in (j, k)]
        left.append(made)
        found.append((j, k, made))
    return found


def _order_of_opt_einsum(terms: Sequence[str], out: str, lengths: Lengths) -> list[tuple[int, ...]] | None:
    """Return its order; None if it contracts more than two at once."""
    opt_einsum: Any = importlib.import_module("opt_einsum")
    shapes = [tuple([lengths[letter] for letter in term]) for term in terms]
    order, _ = opt_einsum.contract_path(f"{','.join(terms)}->{out}", *shapes, shapes=True)
    return list(order) if all(len(step) == 2 for step in order) else None


def _term_of(terms: Sequence[str], pair: tuple[int, int], out: str) -> str:
    """Return the letters that the result of a pair needs, in the order in which a product gives them."""
    one, other = terms[pair[0]], terms[pair[1]]
    needed = set(out).union(*[term for k, term in enumerate(terms) if k not in pair])
    kept = [letter for letter in dict.fromkeys(one + other) if letter in needed]
    return "".join(sorted(kept, key=lambda letter: letter not in one or letter not in other))


def _cost(terms: Sequence[str], pair: tuple[int, int], out: str, lengths: Lengths) -> tuple[int, int]:
    made = _term_of(terms, pair, out)
    one, other = terms[pair[0]], terms[pair[1]]
    grown = _size(made, lengths) - _size(one, lengths) - _size(other, lengths)
    return grown, _size(one + other, lengths)


def _size(letters: str, lengths: Lengths) -> int:
    return math.prod([lengths[letter] for letter in set(letters)])


# ---------------------------------------------------------------- one pair


def contract_pair(a: Array, b: Array, terms: Sequence[str], out: str) -> Array:
    """Return the einsum of two arrays: `terms` are their letters."""
    lengths = lengths_of(terms, (a.shape, b.shape))
    a, left = _with_own_axes(a, terms[0], lengths)
    b, right = _with_own_axes(b, terms[1], lengths)
    a, left = _summed(a, left, right + out)
    b, right = _summed(b, right, left + out)
    shared = [letter for letter in left if letter in right]
    summed = [letter for letter in shared if letter not in out]
    stack = [letter for letter in shared if letter in out]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    if not summed or not (rows or columns):  # no product of matrices, where this loop is the fastest
        if math.prod([lengths[letter] for letter in summed]) <= LONG:
            return np.einsum(f"{left},{right}->{out}", a, b)
        made, kept = _summed(a * b.transpose([right.index(letter) for letter in left]), left, out)
        return made.transpose([kept.index(letter) for letter in out])
    if columns and (not rows or out.index(columns[0]) < out.index(rows[0])):  # so that the result is in order
        a, left, rows, b, right, columns = b, right, columns, a, left, rows
    made = np.matmul(_grouped(a, left, stack, rows, summed), _grouped(b, right, stack, summed, columns))
    letters = [*stack, *rows, *columns]
    made = made.reshape([lengths[letter] for letter in letters])
    return made.transpose([letters.index(letter) for letter in out])


def _with_own_axes(a: Array, term: str, lengths: Lengths) -> tuple[Array, str]:
    """Take the diagonals of letters that appear twice, and drop the axes that are stretched to the other array's."""
    distinct = "".join(dict.fromkeys(term))
    if distinct != term:
        a = np.einsum(f"{term}->{distinct}", a)
    kept = [k for k, letter in enumerate(distinct) if a.shape[k] == lengths[letter]]
    if len(kept) == len(distinct):
        return a, distinct
    return a.reshape([a.shape[k] for k in kept]), "".join([distinct[k] for k in kept])


def _summed(a: Array, term: str, elsewhere: str) -> tuple[Array, str]:
    """Sum over the letters that stand nowhere else."""
    kept = "".join([letter for letter in term if letter in elsewhere])
    axes = tuple([k for k, letter in enumerate(term) if letter not in elsewhere])
    return (libraries.add_up(a, axes) if axes else a), kept


def _grouped(a: Array, term: str, stack: list[str], *groups: list[str]) -> Array:
    """Return the array with the axes of the stack first, and one axis for each of two groups."""
    order = [term.index(letter) for letter in (*stack, *groups[0], *groups[1])]
    a = a if order == list(range(len(order))) else a.transpose(order)
    if len(groups[0]) == len(groups[1]) == 1:
        return a
    head, middle = a.shape[: len(stack)], len(stack) + len(groups[0])
    return a.reshape((*head, math.prod(a.shape[len(stack) : middle]), math.prod(a.shape[middle:])))
