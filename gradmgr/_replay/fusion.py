"""Level fused: products of matrices by oneDNN or the machine where that is faster, added to sums at once, and merged.

Of `t = a @ b; total += t` remains one product that adds to what `total` holds. A sum of such products, as the gradient
of weights that each step of a recurrent network uses, becomes one product of all rows of the factors: they are placed
one after the other in the arena, so that nothing is copied for it.

A product for a small batch, `w @ x.T`, is computed as `x @ w.T`, of which oneDNN computes whole vectors, where all that
reads it can read it by columns.

In these products the order of additions is another, so results are not those of NumPy bit by bit. Any order gives
|error| <= g |a| @ |b|, where g = n u / (1 - n u) for n terms and u = 2**-24. In a checked replay each product is
compared with NumPy's within two such bounds, and then replaced by it: all the rest must be equal in every bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from gradmgr._arrays.captured_calls import Layout
from gradmgr._arrays.native import UfuncLoop
from gradmgr._arrays.products import Products, loop_of
from gradmgr._replay.analysis import NATIVE, PYTHON, Analysis, bases_in, bytes_of
from gradmgr._replay.lowered_products import product_of
from gradmgr._replay.steps import Run, Step, Temporary, View, elementwise, of_loop, size_of

_F4 = np.dtype(np.float32)
_ITEM = _F4.itemsize
_ROUNDING = 2.0**-24
# Of the factors of a merged product, which are all held until it is computed. In parts of 48 rows a step of 50 LSTM
# cells with a batch of 8 takes no longer than with products of all 400, and a third less memory.
_MOST_ROWS = 48


@dataclass
class _Term:
    """A product that is added to a sum.

    Attributes:
        made: the number of the call that computes it.
        added: of the call that adds it.
        target: the slot in whose memory it lies in between.
    """

    made: int
    added: int
    target: int
    product: Step


@dataclass
class _Sum:
    """What products are added to, one after the other.

    Attributes:
        place: in whose memory it lies, and where.
        is_new: whether the first term begins it.
        is_steady: whether all factors are at the end what they are where the terms are computed.
    """

    place: tuple[Any, int]
    terms: list[_Term]
    is_new: bool
    is_steady: bool = False


class Counts(NamedTuple):
    """How many products in float32 there are, and what has become of them.

    Attributes:
        products: in the program, as NumPy would compute them.
        replaced: that NumPy does not compute.
        added: of these, that are added to a sum at once.
        merged: that are parts of larger ones.
        merges: of how many larger ones.
        by_machine: of those that NumPy does not compute, which the machine computes, and not oneDNN.
    """

    products: int
    replaced: int
    added: int
    merged: int
    merges: int
    by_machine: int


class Fusion:
    """Changes the products among the steps of an analysis."""

    def __init__(self, analysis: Analysis, products: Products, results: set[int], *, checked: bool) -> None:
        self.analysis, self.products, self._checked = analysis, products, checked
        machine = analysis.lowering.machine
        self._multiply, self._absolute = loop_of(machine, np.matmul), loop_of(machine, np.absolute)
        self._exact = [loop_of(machine, ufunc) for ufunc in (np.add, np.subtract, np.multiply)]
        self._add = self._exact[0]
        self._copy = analysis.lowering.copy_of(_F4)
        self._results = results
        self._places: set[Any] = set()  # the memory of sums
        self._changed: set[int] = set()  # calls whose products have been dealt with
        self._count = self._replaced = self._by_machine = self._added = self._merged = self._merges = 0

    def apply(self) -> None:
        """Change the steps."""
        self._count = sum([self._is_product(step) for steps in self.analysis.steps for step in steps])
        if not self._count:
            return
        self._look_up()
        sums = self._sums()
        self._places = {each.place[0] for each in sums}
        for each in sums:
            if not self._turn(each):
                for part in self._parts(each):
                    if not self._merge(part):
                        self._add_at_once(part)
        for each in self._single():
            self._turn(each)
        for number, steps in enumerate(self.analysis.steps):
            if number not in self._changed and any(map(self._is_product, steps)):
                steps[:] = [changed for step in steps for changed in self._alone(step)]

    def _look_up(self) -> None:
        """Find what all changes ask for: which calls touch and write a memory, where Python is called, what is held."""
        analysis = self.analysis
        self._touched = {base: sorted(calls) for base, calls in analysis.touched().items()}
        self._written = self._writes()
        self._python = [0, *accumulate([kind == PYTHON for kind in analysis.kinds])]
        self._aliased = analysis.aliases.keys() | {base for of in analysis.aliases.values() for base in of}
        self._held = self._aliased | {analysis.base_of(slot) for slot in self._results}

    def counts(self) -> Counts:
        """Return what has been done."""
        return Counts(self._count, self._replaced, self._added, self._merged, self._merges, self._by_machine)

    @property
    def has_changed(self) -> bool:
        """Whether any step is another one."""
        return bool(self._replaced or self._merges)

    # ------------------------------------------------------------ which calls there are

    def _writes(self) -> dict[int, list[int]]:
        written: dict[int, list[int]] = defaultdict(list)
        for number, steps in enumerate(self.analysis.steps):
            for step in steps:
                for base in bases_in(step, step.run.writes):
                    written[base].append(number)
        return written

    def _is_product(self, step: Step) -> bool:
        return _runs(step, self._multiply)

    def _is_sum(self, steps: Sequence[Step]) -> bool:
        """Tell whether a call adds up arrays whose elements lie one after the other."""
        if len(steps) != 1 or not _runs(steps[0], self._add):
            return False
        return steps[0].run.flat and steps[0].run.strides == (_ITEM,) * 3

    def _is_steady(self, call: int, until: int) -> bool:
        """Tell whether what a call reads is the same when another is made, and Python sees nothing in between."""
        if self._python[until] > self._python[call]:
            return False
        read = {base for step in self.analysis.steps[call] for base in _factors_in(step)}
        if not self._aliased.isdisjoint(read):
            return False
        for base in read:
            written = self._written.get(base, [])
            after = bisect_right(written, call)
            if after < len(written) and written[after] < until:
                return False
        return True

    # ------------------------------------------------------------ sums of products

    def _sums(self) -> list[_Sum]:
        found: dict[Any, _Sum] = {}
        everything: list[_Sum] = []
        for number, steps in enumerate(self.analysis.steps):
            if self.analysis.kinds[number] != NATIVE or not self._is_sum(steps):
                continue
            each = self._sum_at(number, steps[0], found)
            if each is not None and found.get(each.place) is not each:
                found[each.place] = each
                everything.append(each)
        for each in everything:
            last = each.terms[-1].added
            each.is_steady = all(self._is_steady(term.made, last) for term in each.terms)
        return everything

    def _sum_at(self, number: int, step: Step, found: dict[Any, _Sum]) -> _Sum | None:
        """Return the sum to which a call adds a product, or which it begins by adding two."""
        one, other, target = step.operands
        if target[0] in self._aliased:
            return None
        if not one[0].__class__ is other[0].__class__ is target[0].__class__ is int:
            return None
        if other == target:
            one, other = other, one
        term = self._term(other, number)
        if term is None or target[0] in _factors_in(term.product):
            return None
        if one == target:
            before = found.get(target)
            if before is not None and self._follows(number, before):
                before.terms.append(term)
                return before
            first = self._first(target, number)
            return _Sum(target, [term] if first is None else [first, term], first is not None)
        first = self._term(one, number)
        if first is None or target[0] in _factors_in(first.product):
            return None
        return _Sum(target, [first, term], is_new=True)

    def _follows(self, number: int, before: _Sum) -> bool:
        """Tell whether nothing touches the memory of a sum between its last term and a call."""
        touched = self._touched[before.place[0]]
        return touched[bisect_right(touched, before.terms[-1].added)] == number

    def _term(self, operand: tuple[Any, int], added: int) -> _Term | None:
        """Return the product that an operand of a sum is, where nothing else reads it."""
        target, offset = operand
        made = self.analysis.made.get(target) if target.__class__ is int else None
        if made is None or offset or target in self._held or self._touched[target] != [made, added]:
            return None
        product = self._whole_product(made, target)
        return _Term(made, added, target, product) if product and self._is_steady(made, added) else None

    def _first(self, target: tuple[Any, int], added: int) -> _Term | None:
        """Return the product that a sum is before something is added to it."""
        base, offset = target
        made = self.analysis.made.get(base) if base.__class__ is int else None
        if made is None or offset or self._touched[base][:2] != [made, added]:
            return None
        product = self._whole_product(made, base)
        return _Term(made, made, base, product) if product else None

    def _whole_product(self, call: int, target: int) -> Step | None:
        """Return the step of a call that is one product, which fills a memory by rows."""
        steps = self.analysis.steps[call]
        if len(steps) != 1 or not self._is_product(steps[0]) or steps[0].run.outer or steps[0].run.dims[0] != 1:
            return None
        step = steps[0]
        rows, columns = step.run.dims[1], step.run.dims[3]
        is_whole = rows * columns * _ITEM == bytes_of(self.analysis.layouts[target])
        return step if is_whole and step.run.strides[7:] == (columns * _ITEM, _ITEM) and _is_plain(step) else None

    def _single(self) -> list[_Sum]:
        """Return the products that nothing is added to, as sums of one term."""
        found = []
        for number, steps in enumerate(self.analysis.steps):
            if number not in self._changed and len(steps) == 1 and self._is_product(steps[0]):
                target = steps[0].operands[2][0]
                is_free = target not in self._places and self.analysis.made.get(target) == number
                if is_free and steps[0].operands[2][1] == 0 and self._whole_product(number, target):
                    term = _Term(number, number, target, steps[0])
                    found.append(_Sum((target, 0), [term], is_new=True))
        return found

    def _is_seen(self, base: int) -> bool:
        """Tell whether Python reads or writes a memory."""
        return self._touched.get(base, [len(self.analysis.kinds)])[-1] == len(self.analysis.kinds)

    # ------------------------------------------------------------ turned

    def _turn(self, each: _Sum) -> bool:
        """Compute b.T @ a.T in place of a @ b, where that is faster and what reads it can do so by columns."""
        base, offset = each.place
        _, n, _, m = each.terms[0].product.run.dims
        if not each.is_new or offset or base not in self.analysis.made or base in self._held or self._is_seen(base):
            return False
        products = [term.product for term in each.terms]
        if any(product.run.strides[4] != _ITEM or product.run.strides[5] != _ITEM for product in products):
            return False
        if not all(self.products.are_faster_turned(*product.run.dims[1:]) for product in products):
            return False
        computed = {number for term in each.terms for number in (term.made, term.added)}
        turned = self._read_by_columns(base, [c for c in self._touched[base] if c not in computed], n, m)
        if turned is None or bytes_of(self.analysis.layouts[base]) != n * m * _ITEM:
            return False
        for step, changed in turned:
            step.operands, strides, outer = changed
            step.run = replace(step.run, strides=strides, outer=outer)
        steps: dict[int, list[Step]] = defaultdict(list)
        for number, term in enumerate(each.terms):
            made = _turned(term.product, each.place)
            steps[term.added] += self._replacing([term.product], made, is_new=number == 0, turned=True)
            if term.made != term.added:
                self._drop(term)
        for number, changed_steps in steps.items():
            self.analysis.steps[number][:] = changed_steps
            self._changed.add(number)
        self._added += len(products) - 1
        return True

    def _read_by_columns(self, base: int, calls: Sequence[int], n: int, m: int) -> list[tuple[Step, Any]] | None:
        """Return the steps that read a matrix, each with what it is if that lies by columns; None if one cannot be."""
        found = []
        for call in calls:
            for step in self.analysis.steps[call]:
                if base not in bases_in(step):
                    continue
                if not any(_runs(step, loop) for loop in self._exact) or base in bases_in(step, step.run.writes):
                    return None
                if step.operands[0] == step.operands[-1]:  # a reduction, whose order decides
                    return None
                changed = _by_columns(step, base, n, m)
                if changed is None:
                    return None
                found.append((step, changed))
        return found

    # ------------------------------------------------------------ added at once

    def _add_at_once(self, each: _Sum) -> None:
        """Let products add to a sum, where that is faster."""
        begins_here = each.is_new and each.terms[0].added == each.terms[1].added
        terms = each.terms[1:] if each.is_new else each.terms
        for term in terms:
            product = _moved(term.product, each.place)
            if not self._fits_as_sum(product):
                begins_here = False
                continue
            steps = self._replacing([term.product], product, is_new=False)
            if begins_here:
                first = each.terms[0]
                steps = [*self._alone(_moved(first.product, each.place)), *steps]
                self._drop(first)
                begins_here = False
            self._drop(term)
            self.analysis.steps[term.added][:] = steps
            self._changed.add(term.added)
            self._added += 1

    def _fits_as_sum(self, product: Step) -> bool:
        _, n, k, m = product.run.dims
        return self.products.are_faster_as_sums(n, k, m, b_transposed=product.run.strides[6] != _ITEM)

    def _drop(self, term: _Term) -> None:
        """Leave out a product, and its memory."""
        self.analysis.steps[term.made][:] = []
        self.analysis.forget(term.target)

    # ------------------------------------------------------------ merged

    def _parts(self, each: _Sum) -> list[_Sum]:
        """Return a sum in parts, each of which adds to the one before, so that few factors are placed together."""
        products = [term.product for term in each.terms]
        k, *pitches = products[0].run.dims[2], products[0].run.strides[4], products[0].run.strides[5]
        if all(_order([made.operands[j] for made in products], k * pitches[j]) is not None for j in (0, 1)):
            return [each]  # they lie there anyway
        most = max(2, _MOST_ROWS // k)
        starts = list(range(0, max(1, len(products) - 1), most))  # no part has one term
        ends = [*starts[1:], len(products)]
        return [
            replace(each, terms=each.terms[start:end], is_new=each.is_new and not start)
            for start, end in zip(starts, ends, strict=True)
        ]

    def _merge(self, each: _Sum) -> bool:
        """Make a sum one product, if its factors lie in rows one after the other, or may be placed so."""
        first, *others = [term.product for term in each.terms]
        if not others or not each.is_steady or not all(_are_alike(first, other) for other in others):
            return False
        (_, n, k, m), strides = first.run.dims, first.run.strides
        if strides[3] != _ITEM or strides[6] != _ITEM or not self.products.are_faster_merged(n, k, m):
            return False
        sides = [[term.product.operands[j] for term in each.terms] for j in (0, 1)]
        pitches, widths = strides[4:6], (n, m)
        orders = [_order(side, k * pitch) for side, pitch in zip(sides, pitches, strict=True)]
        if None not in orders and orders[0] != orders[1]:
            return False
        order = next((found for found in orders if found is not None), list(range(len(sides[0]))))
        copied = 0  # elements
        for side, found, pitch, width in zip(sides, orders, pitches, widths, strict=True):
            if found is None:
                copied += k * width * [self._is_movable(place, k, width, pitch) for place in side].count(False)
        if 2 * copied > n * m * len(others):
            return False
        self._write_merged(each, order, [found is not None for found in orders])
        return True

    def _is_movable(self, place: tuple[Any, int], rows: int, width: int, pitch: int) -> bool:
        """Tell whether rows are all of some memory of the machine's, which may lie elsewhere in the arena."""
        base, offset = place
        if base.__class__ is not int or base not in self.analysis.made or base in self._held or base in self._places:
            return False
        if offset or pitch != width * _ITEM or self._is_seen(base):
            return False
        return bytes_of(self.analysis.layouts[base]) == rows * width * _ITEM

    def _write_merged(self, each: _Sum, order: Sequence[int], are_ready: Sequence[bool]) -> None:
        last = each.terms[-1].added
        products = [term.product for term in each.terms]
        _, n, k, m = products[0].run.dims
        copies: list[Step] = []
        places, pitches = [], []
        for j, width in enumerate((n, m)):
            pitch = products[0].run.strides[4 + j]
            if are_ready[j]:
                places.append(products[order[0]].operands[j])
                pitches.append(pitch)
            else:
                ordered = [products[t].operands[j] for t in order]
                places.append((self._stack(ordered, k, width, pitch, last, copies), 0))
                pitches.append(width * _ITEM)
        strides = (0, 0, 0, _ITEM, pitches[0], pitches[1], _ITEM, m * _ITEM, _ITEM)
        operands = (*places, each.place)
        merged = products[0].but(operands, dims=(1, n, k * len(products), m), strides=strides)
        originals = [product.but() for product in products]
        for term in each.terms:
            if term.added == term.made:
                self.analysis.steps[term.made][:] = []
            else:
                self._drop(term)
                self.analysis.steps[term.added][:] = []
        if each.is_new and not self._is_faster(merged):
            steps = self._checked_steps(originals, merged, [merged], is_new=True) if self._checked else [merged]
        else:
            steps = self._replacing(originals, merged, is_new=each.is_new)
            self._replaced += len(products) - 1
        self.analysis.steps[last][:] = [*copies, *steps]
        self._changed.add(last)
        self._merged += len(products)
        self._merges += 1

    def _stack(
        self, pieces: Sequence[tuple[Any, int]], rows: int, width: int, pitch: int, last: int, copies: list[Step]
    ) -> int:
        """Place pieces of so many rows one after the other, or add a step that copies one; return in whose memory."""
        analysis, size = self.analysis, rows * width * _ITEM
        slot = len(analysis.layouts)
        shape, strides = (rows * len(pieces), width), (width * _ITEM, _ITEM)
        analysis.layouts.append(Layout(shape, _F4, strides, slot))
        moves: dict[int, tuple[int, int]] = {}
        for number, (base, offset) in enumerate(pieces):
            if self._is_movable((base, offset), rows, width, pitch) and base not in moves:
                moves[base] = slot, number * size
                continue
            source = View(base, offset, (rows, width), (pitch, _ITEM), _F4)
            target = View(slot, number * size, (rows, width), strides, _F4)
            copies.append(elementwise(self._copy, [source, target]))
        analysis.place_together(slot, moves, last)
        self._touched[slot] = [len(analysis.kinds)]  # it is not moved again
        for step in copies:
            step.operands = tuple([_at(moves, place) for place in step.operands])
        return slot

    # ------------------------------------------------------------ one product

    def _alone(self, step: Step) -> list[Step]:
        """Return the steps of one product, which replaces what its target held."""
        if not self._is_product(step) or not _is_plain(step) or not self._is_faster(step):
            return [step]
        return self._replacing([step], step, is_new=True)

    def _is_faster(self, step: Step) -> bool:
        _, n, k, m = step.run.dims
        return self.products.are_faster(n, k, m, b_transposed=step.run.strides[6] != _ITEM)

    def _replacing(self, originals: Sequence[Step], step: Step, *, is_new: bool, turned: bool = False) -> list[Step]:
        """Return the steps of a product in place of some of NumPy's, or of their transposes if turned."""
        self._replaced += 1
        made = self._computed(step, 0 if is_new else 1)
        return self._checked_steps(originals, step, made, is_new=is_new, turned=turned) if self._checked else made

    def _computed(self, step: Step, adds: int) -> list[Step]:
        """Return the steps of a product that NumPy does not compute, in the way that is the fastest."""
        products, (_, n, k, m) = self.products, step.run.dims
        b_transposed = step.run.strides[6] != _ITEM
        if products.are_faster_by_machine(n, k, m, b_transposed=b_transposed):
            self._by_machine += 1
            return [step.but(function=products.own, context=0, auxdata=adds, keeps=None)]
        by_onednn = step.but(function=products.function, context=products.context, auxdata=adds, keeps=products)
        is_one = step.run.dims[0] == 1 and not step.run.outer
        if is_one and b_transposed and not adds and products.are_faster_transposed(n, k, m):
            return self._through_transposes(by_onednn)
        return [by_onednn]

    def _through_transposes(self, step: Step) -> list[Step]:
        """Return the steps of a @ b.T as the transpose of b @ a.T, for contiguous b."""
        _, n, k, m = step.run.dims
        s, (a, b, c) = step.run.strides, step.operands
        steps = []
        if s[4] == _ITEM:
            given = (Temporary(n * k * _ITEM), 0)
            steps.append(self._transposed(a, given, (n, k), (s[3], n * _ITEM)))
            a_strides = n * _ITEM, _ITEM
        else:
            given, a_strides = a, (s[4], s[3])
        made = (Temporary(n * m * _ITEM), 0)
        strides = (0, 0, 0, s[6], s[5], *a_strides, n * _ITEM, _ITEM)
        steps.append(step.but((b, given, made), dims=(1, m, k, n), strides=strides))
        steps.append(self._transposed(made, c, (m, n), (n * _ITEM, s[7])))
        return steps

    def _transposed(
        self, source: tuple[Any, int], target: tuple[Any, int], shape: tuple[int, int], pitches: tuple[int, int]
    ) -> Step:
        """Return the step that transposes a matrix whose rows, and those of the transpose, are so many bytes apart."""
        return Step(Run(self.products.transpose, (_ITEM, _ITEM), (1, *shape), pitches), (source, target))

    def _checked_steps(
        self, originals: Sequence[Step], step: Step, made: Sequence[Step], *, is_new: bool, turned: bool = False
    ) -> list[Step]:
        """Return what computes a product, with steps that compare it with NumPy's, and put NumPy's in its place."""
        target = _views_of(step)[2]
        if turned:
            shape, strides = target.shape, target.strides
            target = target._replace(shape=(*shape[:-2], *shape[:-3:-1]), strides=(*strides[:-2], *strides[:-3:-1]))
        expected, bound, part = (_scratch(target.shape) for _ in range(3))
        steps: list[Step] = []
        if not is_new:
            steps += [elementwise(self._copy, [target, expected]), self._absolute_of(target, bound)]
        for number, product in enumerate(originals):
            a, b, _ = _views_of(product)
            absolute_a, absolute_b = _scratch(a.shape), _scratch(b.shape)
            steps += [self._absolute_of(a, absolute_a), self._absolute_of(b, absolute_b)]
            for one, other, total in ((a, b, expected), (absolute_a, absolute_b, bound)):
                begins = is_new and number == 0
                steps.append(product_of(self._multiply, one, other, total if begins else part))
                if not begins:
                    steps.append(elementwise(self._add.function, [total, part, total], **of_loop(self._add)))
        terms = sum([product.run.dims[2] for product in originals]) + len(originals) - is_new
        compare = elementwise(self.products.within, [target, expected, bound], context=_bits_of_bound(terms), writes=0)
        compare.run.flat = False  # a stop is then at this step
        compare.run.failure = f"a product of {terms} terms differs from NumPy's by more than rounding"
        return [*steps, *made, compare, elementwise(self._copy, [expected, target])]

    def _absolute_of(self, view: View, to: View) -> Step:
        return elementwise(self._absolute.function, [view, to], **of_loop(self._absolute))


def _runs(step: Step, loop: UfuncLoop) -> bool:
    return (step.run.function, step.run.context, step.run.auxdata) == (loop.function, loop.context, loop.auxdata)


def _is_plain(step: Step) -> bool:
    """Tell whether oneDNN takes the layout: factors contiguous by rows or columns, the product by rows."""
    _, n, k, m = step.run.dims
    s = step.run.strides
    if min(n, k, m) < 2 or any(stride % _ITEM for stride in s):
        return False
    is_a = (s[4] == _ITEM and s[3] >= k * _ITEM) or (s[3] == _ITEM and s[4] >= n * _ITEM)
    is_b = (s[6] == _ITEM and s[5] >= m * _ITEM) or (s[5] == _ITEM and s[6] >= k * _ITEM)
    return is_a and is_b and s[8] == _ITEM and s[7] >= m * _ITEM


def _are_alike(one: Step, other: Step) -> bool:
    return one.run.dims == other.run.dims and one.run.strides == other.run.strides


def _factors_in(product: Step) -> list[int]:
    """Return in which slots' memory the factors lie."""
    return [base for base, _ in product.operands[:2] if base.__class__ is int]


def _moved(product: Step, place: tuple[Any, int]) -> Step:
    """Return a product with another target."""
    return product.but((*product.operands[:2], place))


def _turned(product: Step, place: tuple[Any, int]) -> Step:
    """Return the product of the transposed factors, whose result lies by columns in a place."""
    count, n, k, m = product.run.dims
    s = product.run.strides
    strides = (*s[:3], s[6], s[5], s[4], s[3], n * _ITEM, _ITEM)
    operands = (product.operands[1], product.operands[0], place)
    return product.but(operands, dims=(count, m, k, n), strides=strides)


def _by_columns(step: Step, base: int, n: int, m: int) -> tuple[Any, Any, Any] | None:
    """Return operands, strides and outer dims of a step if an (n, m) matrix by rows lay by columns; None for others."""
    operands, strides, outer = list(step.operands), list(step.run.strides), [[*moves] for _, moves in step.run.outer]
    for j, (where, offset) in enumerate(step.operands):
        if where.__class__ is not int or where != base:
            continue
        row, column = divmod(offset // _ITEM, m)
        operands[j] = base, (column * n + row) * _ITEM
        for axis, extent in enumerate((step.run.dims[0], *[extent for extent, _ in step.run.outer])):
            moved = step.run.strides[j] if axis == 0 else step.run.outer[axis - 1][1][j]
            down, right = divmod(moved // _ITEM, m)
            if moved < 0 or moved % _ITEM or (down and right):
                return None
            column += right * (extent - 1)
            changed = (right * n + down) * _ITEM
            if axis == 0:
                strides[j] = changed
            else:
                outer[axis - 1][j] = changed
        if offset % _ITEM or column >= m:
            return None
    extents = [extent for extent, _ in step.run.outer]
    return tuple(operands), tuple(strides), tuple(zip(extents, map(tuple, outer), strict=True))


def _order(places: Sequence[tuple[Any, int]], size: int) -> list[int] | None:
    """Return the order in which places lie one after the other, so many bytes apart; None if they do not."""
    first = places[0][0]
    if first.__class__ is not int or any(base.__class__ is not int or base != first for base, _ in places):
        return None
    order = sorted(range(len(places)), key=lambda t: places[t][1])
    steps = [places[two][1] - places[one][1] for one, two in pairwise(order)]
    return order if all(step == size for step in steps) else None


def _at(moves: dict[int, tuple[int, int]], place: tuple[Any, int]) -> tuple[Any, int]:
    base, offset = place
    if base.__class__ is not int or base not in moves:
        return place
    slot, more = moves[base]
    return slot, offset + more


def _views_of(step: Step) -> tuple[View, View, View]:
    """Return the factors and the product, with the stacks that a step goes over in front."""
    count, n, k, m = step.run.dims
    shapes, s = ((n, k), (k, m), (n, m)), step.run.strides
    extents = (*[extent for extent, _ in step.run.outer], count)
    made = []
    for j, (shape, (base, offset)) in enumerate(zip(shapes, step.operands, strict=True)):
        moves = (*[of[j] for _, of in step.run.outer], s[j])
        made.append(View(base, offset, (*extents, *shape), (*moves, *s[3 + 2 * j : 5 + 2 * j]), _F4))
    a, b, c = made
    return a, b, c


def _scratch(shape: tuple[int, ...]) -> View:
    """Return a view of memory beside the arena, so that a checked replay has the same arena."""
    array = np.zeros(size_of(shape), np.float32).reshape(shape)
    return View(array, 0, array.shape, array.strides, _F4)


def _bits_of_bound(terms: int) -> int:
    """Return the bits of what the sum of absolute products is multiplied by: of two results, and for its own error."""
    g = terms * _ROUNDING / (1 - terms * _ROUNDING)
    return int(np.array(np.nextafter(np.float32(2 * g / (1 - g)), np.float32(1))).view(np.uint32))
