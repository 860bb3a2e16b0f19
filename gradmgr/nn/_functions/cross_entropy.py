"""Losses of labels: `cross_entropy` and `nll_loss`.

With the target q, a distribution over classes times weights, the loss of a row of logits x is
sum(q) logsumexp(x) - <q, x>. For a label q is nonzero at the label alone, and with smoothing at all classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries, native_kernels
from gradmgr._arrays.arguments import leaves_in
from gradmgr._arrays.batched import innermost
from gradmgr._arrays.captured import inner_of
from gradmgr._arrays.listening import asked, computed
from gradmgr._engine.broadcast import broadcast_to
from gradmgr._engine.custom import several
from gradmgr._engine.op import Function, linear, zeros
from gradmgr._engine.tensor import Tensor, bare, raw
from gradmgr.nn._functions.activation import log_softmax
from gradmgr.nn._functions.arguments import check_floating, check_reduction, integer, reduced
from gradmgr.nn._functions.loss import SINGLE_OR_DOUBLE, check_library
from gradmgr.ops import arithmetic
from gradmgr.ops.arithmetic import plain_zeros
from gradmgr.ops.convert import (
    cast_to,
    is_floating,
    lift_together,
    narrow_to,
    no_array,
    untracked_value,
    wide_dtype,
    widen_half,
)
from gradmgr.ops.reduce import sum
from gradmgr.ops.shape import expand_dims, squeeze
from gradmgr.ops.softmax import (
    NEARLY,
    are_moderate,
    as_rows,
    by_rows,
    fewest_rows,
    is_certain,
    is_small,
    log_in_two,
    rest_of_sum,
    row_dots,
    shift_to_certain,
    softmax_along,
)
from gradmgr.ops.where import choose


class _Labels(NamedTuple):
    """The distributions q of labels, one along `axis` for each row: `share` at the label plus `smooth` everywhere.

    It is a tuple so that vmap finds the batched arrays in it.
    """

    axis: int
    places: tuple[Any, ...]  # an index of the logits at the labels
    valid: Any  # whether each row counts; None if all do
    share: Any  # per row; None for 1
    smooth: Any = None  # per class, in the shape of one row of logits; None for 0
    total: Any = None  # the sum of q, per row; None for 1
    over: Any = None  # the divisor of the sum of the losses; None if they are not summed

    def is_plain(self) -> bool:
        """Tell whether all rows count, with weight 1 and no smoothing, and the labels are a NumPy array."""
        if self.valid is not None or self.share is not None or self.smooth is not None:
            return False
        return self.places[self.axis].__class__ is np.ndarray  # under vmap it may be a batched array

    def is_plain_for(self, x: Any) -> bool:
        """Tell whether `is_plain` would hold, of captured labels too, for a captured matrix of few rows."""
        if self.valid is not None or self.share is not None or self.smooth is not None:
            return False
        return libraries.are_captured_from(x, self.places[self.axis]) and libraries.is_matrix(x) and is_small(x)

    def reduce_rows(self, rows: Any) -> Any:
        """Return the losses of the rows, or their sum divided by `over`."""
        if self.over is None:
            return rows
        is_array = rows.__class__ is np.ndarray or libraries.is_captured(rows)
        return (np.add.reduce(rows) if is_array else sum(rows)) / self.over

    def broadcast_like(self, g: Any, shape: tuple[int, ...]) -> Any:
        """Return the cotangents of the rows, for an input of this shape: the adjoint of `added`."""
        if self.over is None:
            return g
        return broadcast_to(g / self.over, shape[: self.axis] + shape[self.axis + 1 :])

    def masked(self, rows: Any) -> Any:
        """Return numbers per row, with 0 for rows that do not count."""
        return rows if self.valid is None else choose(self.valid, rows, raw(rows).dtype.type(0))

    def with_class_axis(self, rows: Any) -> Any:
        """Return numbers per row with a class axis of length 1."""
        return expand_dims(rows, self.axis)


def _pick_kernel(x: Any, labels: _Labels) -> Any:
    """Return <q, x> for each row."""
    if x.__class__ is np.ndarray and labels.is_plain():
        return labels.reduce_rows(x[labels.places])
    picked = libraries.getitem(x, labels.places)
    with np.errstate(invalid="ignore"):  # 0 times inf
        if labels.share is not None:
            picked = picked * labels.share
        if labels.smooth is not None:
            picked = picked + np.sum(x * labels.smooth, axis=labels.axis)
    return labels.reduce_rows(labels.masked(picked))


def _place_kernel(g: Any, to: tuple[int, ...], labels: _Labels) -> Any:
    """Return g q for each row: the adjoint of picking."""
    g = labels.masked(labels.broadcast_like(g, to))
    share = g if labels.share is None else g * labels.share
    buffer = libraries.able_to_hold(zeros(g, to, g.dtype), labels.places, share)
    buffer[labels.places] = share
    return buffer if labels.smooth is None else buffer + labels.with_class_axis(g) * labels.smooth


_pick: Function = linear("nn.pick_labels", _pick_kernel, lambda g, shape, labels: _place(g, shape, labels))
_place: Function = linear("nn.place_labels", _place_kernel, lambda g, labels: _pick(g, labels))


@libraries.keeps_nothing
def _cross_entropy_kernel(x: Any, labels: _Labels) -> tuple[Any, Any, Any]:
    """Return the losses or their mean, and, for the rules, a shift and log(sum(exp(x - shift))) of each row."""
    native: tuple[Any, Any, Any] | None = _native_cross_entropy(x, labels)
    if native is not None:
        return native
    if labels.is_plain():
        rows = as_rows(x, (labels.axis,))
        made: tuple[Any, Any, Any] | None = None if rows is None else _cross_entropy_of_rows(rows, labels)
        if made is None and _is_common_matrix(x):
            made = _cross_entropy_of_few_rows(x, labels)
        if made is not None:
            return made
    if labels.is_plain_for(x):
        return _cross_entropy_of_few_rows(x, labels)
    if (one := libraries.in_one(_cross_entropy_kernel, x, *leaves_in(labels))) is not None:
        return one(x, labels)  # type: ignore[no-any-return]  # what this function returns
    axis, wide = labels.axis, wide_dtype(x.dtype)
    top = np.maximum.reduce(x, axis=axis, keepdims=True) if x.__class__ is np.ndarray else x.max(axis, keepdims=True)
    if wide is not x.dtype:
        x, top = x.astype(wide), top.astype(wide)
    valid = None if labels.valid is None else labels.with_class_axis(labels.valid)
    if valid is not None:
        top = np.where(valid, top, wide.type(0))
    with np.errstate(all="ignore"):
        work = np.subtract(x, top, out=libraries.namespace_of(x, top).empty(x.shape, wide))
        picked = _pick_kernel(work, labels._replace(over=None))
        np.exp(work, out=work)
        log_total = np.log(libraries.sum_over(work, (axis,), True))
        if valid is not None:
            log_total = np.where(valid, log_total, wide.type(np.inf))  # so that all probabilities are 0
        loss = _multiply_by_total(log_total.squeeze(axis), labels) - picked
    return labels.reduce_rows(labels.masked(loss)), top, log_total


def _native_places(x: Any, labels: _Labels) -> Any:
    """Return the labels of the rows of a matrix if a kernel takes them, else None."""
    if labels.valid is not None or labels.share is not None or labels.smooth is not None or x.ndim != 2:
        return None
    places = labels.places[1] if labels.axis == 1 else None
    if places is None or not libraries.is_numpy(places) or places.dtype != np.int64:
        return None
    return native_kernels.contiguous(places) if places.shape == x.shape[:1] else None


def _native_cross_entropy(x: Any, labels: _Labels) -> Any:
    """Return what `_cross_entropy_kernel` does by a kernel, for labels that all count; else None."""
    kernel = native_kernels.find("cross_entropy", x)
    places = None if kernel is None else _native_places(x, labels)
    if kernel is None or places is None:
        return None
    losses, top, log_total = (native_kernels.empty(shape, x, places) for shape in ((len(x),), (len(x), 1), (len(x), 1)))
    kernel(native_kernels.contiguous(x), places, losses, top, log_total, *x.shape)
    return labels.reduce_rows(losses), top, log_total


def _native_cross_entropy_vjp(g: Any, x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    """Return the cotangent of x by a kernel, for labels that all count; else None."""
    places = (
        _native_places(x, labels) if libraries.is_array(g) and native_kernels.find("cross_entropy_vjp", x) else None
    )
    if places is None:
        return None
    g = np.reshape(g if labels.over is None else g / labels.over, (-1,))
    kernel = native_kernels.find("cross_entropy_vjp", x, g, shift, log_total)
    if kernel is None:
        return None
    made = native_kernels.empty(x.shape, x, g, places)
    given = map(native_kernels.contiguous, (g, x, places, shift, log_total))
    kernel(*given, made, *x.shape, float(g.size > 1))
    return made


def _is_common_matrix(x: Any) -> bool:
    return x.__class__ is np.ndarray and x.ndim == 2 and x.dtype in SINGLE_OR_DOUBLE


def _cross_entropy_of_few_rows(x: Any, labels: _Labels) -> tuple[Any, Any, Any]:
    """Return the same for a small matrix, with as few calls as possible."""
    top = np.maximum.reduce(x, axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        work = x - top
        picked = work[labels.places]
        np.exp(work, out=work)
        log_total = np.log(np.add.reduce(work, axis=1, keepdims=True))
        loss = log_total[:, 0] - picked
    return labels.reduce_rows(loss), top, log_total


def _cross_entropy_of_rows(x: Any, labels: _Labels) -> Any:
    """Return the same in blocks of rows, or None if exponentials are too large.

    The shift is log(sum(exp(x))), rounded, and the second number its rounding error.
    """
    totals, ones = np.empty(x.shape[0], x.dtype), np.ones(x.shape[1], x.dtype)
    bad: list[slice] = []
    workspace = np.empty((min(fewest_rows(x), len(x)), x.shape[1]), x.dtype)

    def work(part: slice) -> None:
        if bad:
            return
        here = x[part]
        made = workspace[: len(here)]
        np.exp(here, out=made)
        totals[part] = row_dots(made, ones)
        if not are_moderate(totals[part]):
            bad.append(part)

    by_rows(work, x, few=True)
    if bad:
        return None
    shift, rest = log_in_two(totals)
    loss = shift - x[labels.places]
    loss += rest
    return labels.reduce_rows(loss), shift[:, None], rest[:, None]


def _multiply_by_total(rows: Any, labels: _Labels) -> Any:
    return rows if labels.total is None else rows * labels.total


@libraries.keeps_nothing
def _cross_entropy_vjp(g: Any, x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    """Return g sum(q) softmax(x) - g q, plus softmax(x) times the cotangent of log_total.

    The loss does not depend on `shift`, whose derivatives are therefore taken as 0.
    """
    loss, _, more = g
    if more is None and (native := _native_cross_entropy_vjp(loss, x, shift, log_total, labels)) is not None:
        return native
    common = shift.__class__ is log_total.__class__ is np.ndarray and _is_common_matrix(x)
    if common and more is None and isinstance(loss, (np.ndarray, np.generic)) and labels.is_plain():
        return _cross_entropy_slope_of_rows(loss, x, shift, log_total, labels)
    captured = more is None and libraries.are_captured_from(shift, log_total) and labels.is_plain_for(x)
    if captured and isinstance(inner_of(loss), (np.ndarray, np.generic)):
        return _cross_entropy_slope_of_rows(loss, x, shift, log_total, labels)
    if (one := libraries.in_one(_cross_entropy_vjp, *g, x, shift, log_total, *leaves_in(labels))) is not None:
        return one(g, x, shift, log_total, labels)
    loss = (
        plain_zeros(squeeze(log_total, labels.axis))
        if loss is None
        else labels.masked(labels.broadcast_like(loss, x.shape))
    )
    scale = labels.with_class_axis(_multiply_by_total(loss, labels))
    held = (loss, scale, x, shift, log_total)
    if more is None and all(p.__class__ is np.ndarray for p in held) and not batched.any_batched(labels.places):
        return _cross_entropy_slope(loss, scale, x, shift, log_total, labels)
    share = _probabilities(x, shift, log_total, labels)
    d = share * scale - _place(loss, x.shape, labels._replace(over=None))
    lost = is_certain(share) & (np.abs(raw(d)) <= np.abs(raw(scale)) * NEARLY)
    d = rest_of_sum(d, lost, (labels.axis,))
    return d if more is None else d + share * more


def _probabilities(x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    """Return softmax(x), of rows that do not count anything finite.

    Where it is to be differentiated it is an op, whose derivative is exact where a probability is rounded to 1.
    """
    if not isinstance(x, Tensor):
        return arithmetic.exp(widen_half(x) - shift - log_total)
    x = x if labels.valid is None else choose(labels.with_class_axis(labels.valid), x, 0.0)
    return softmax_along(widen_half(x), (labels.axis,))


# The largest logarithm of a sum for which exponentials of unshifted logits are exact enough in single precision.
_MODERATE = 40.0


def _cross_entropy_slope_of_rows(g: Any, x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    """Compute g softmax(x) - g q for a cotangent of all rows, or one per row."""
    g = g if labels.over is None else g / labels.over
    column = g[:, None] if g.ndim else g
    with np.errstate(all="ignore"):
        if (
            as_rows(x, (1,)) is None or not np.abs(shift).max() <= _MODERATE
        ):  # also if one is NaN, as then the maximum is
            made = x - shift
            made -= log_total
            np.exp(made, out=made)
            made *= column
        else:
            made = np.empty(x.shape, x.dtype)
            scale = column * np.exp(-shift)
            scale *= np.exp(-log_total)  # a factor of its own: the sum of both exponents would be rounded

            def work(part: slice) -> None:
                np.exp(x[part], out=made[part])
                made[part] *= scale[part]

            by_rows(work, x)
        _subtract_at_labels(made, g, g, labels)
    return made


def _subtract_at_labels(made: Any, share: Any, scale: Any, labels: _Labels) -> None:
    """Subtract a share at the labels, in place.

    Where the probability is nearly 1 and the row adds up to 0, as its scale is the share, put what is left to that sum:
    the difference has lost digits, mostly all of them.
    """
    picked = made[labels.places] - share
    certain = (np.abs(picked) <= np.abs(scale) * NEARLY) & (scale == share)
    if libraries.is_captured(certain) or arithmetic.count_nonzero(certain):  # no guard: see at_the_end
        made[labels.places] = made.dtype.type(0)
        picked = np.where(certain, -libraries.sum_over(made, (labels.axis,)), picked)
    made[labels.places] = picked


def _cross_entropy_slope(g: Any, scale: Any, x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    """Compute the same for plain arrays and any labels, in one buffer."""
    with np.errstate(all="ignore"):
        made = np.subtract(x, shift, dtype=shift.dtype)
        made -= log_total
        np.exp(made, out=made)
        made *= scale
        of_label = g if labels.share is None else g * labels.share
        _subtract_at_labels(made, of_label, np.squeeze(scale, labels.axis), labels)
        if labels.smooth is not None:
            made -= labels.with_class_axis(g) * labels.smooth
    return made


def _cross_entropy_jvp(t: Any, x: Any, shift: Any, log_total: Any, labels: _Labels) -> Any:
    t = widen_half(t)
    share = _probabilities(x, shift, log_total, labels)
    of_total = of_shifted = sum(share * t, labels.axis, keepdims=True)
    shifted = shift_to_certain(t, share, (labels.axis,))
    if shifted is not t:
        of_shifted = sum(share * shifted, labels.axis, keepdims=True)
    loss = _multiply_by_total(squeeze(of_shifted, labels.axis), labels) - _pick(shifted, labels._replace(over=None))
    return labels.reduce_rows(labels.masked(loss)), plain_zeros(shift), of_total


_cross_entropy = several(
    "nn.cross_entropy",
    _cross_entropy_kernel,
    ("loss", "shift", "log_total"),
    vjp=_cross_entropy_vjp,
    jvp=_cross_entropy_jvp,
)


def _class_axis(asked: str, input: Any, target: Any) -> int:
    """Return the axis of the classes: the first of (C,), else the second."""
    if input is None or target is None:
        raise no_array(None)
    if input.dtype.kind in "iu" and is_floating(target.dtype):
        raise errors.DtypeError(
            f"{asked}(input, target) takes scores first and labels second; found an input of dtype {input.dtype} and a "
            f"target of dtype {target.dtype}: exchange them"
        )
    check_floating(asked, input=input)
    axis = 0 if input.ndim < 2 else 1
    if input.ndim == 0 or not input.shape[axis]:
        raise errors.ShapeError(
            f"{asked} takes an input of shape (C,), (N, C) or (N, C, d1, ...) with C classes; found {input.shape}"
        )
    return axis


def _plain_labels(input: Any, target: Any, ignore_index: int, reduction: str) -> _Labels | None:
    """Return checked labels in the common case, NumPy arrays (N, C) and (N,), or None in all other cases."""
    x, t = bare(input), bare(target)
    if not (x.__class__ is t.__class__ is np.ndarray) or x.ndim != 2 or x.dtype not in SINGLE_OR_DOUBLE:
        return None
    rows, classes = x.shape
    if ignore_index.__class__ is not int:
        return None
    if t.dtype != np.int64 or t.shape != (rows,) or not rows or not classes or 0 <= ignore_index < classes:
        return None
    places = computed(np.copy, t)  # a program may read the next batch into `target` before the backward pass
    if asked(_exceeds, places, classes):
        return None
    over = None if reduction == "none" else rows if reduction == "mean" else 1
    return _Labels(1, (np.arange(rows), places), None, None, over=over)


def _exceeds(places: Any, classes: int) -> bool:
    """Return True if not all labels are classes."""
    return bool(np.maximum.reduce(places.view(np.uint64)) >= classes)  # negative numbers are large as unsigned ones


def _read_labels(name: str, input: Any, axis: int, target: Any, weight: Any, ignore_index: int) -> tuple[_Labels, Any]:
    """Return the labels of all rows of the input, and the divisor of a mean, None for their number.

    Raises:
        DtypeError, ShapeError, LabelError: the target does not hold one label per row.
    """
    rows, classes = input.shape[:axis] + input.shape[axis + 1 :], input.shape[axis]
    if target.dtype.kind not in "iu":
        raise errors.DtypeError(
            f"{name} takes labels of an integer dtype and shape {rows}"
            + (f", or probabilities of a floating dtype and shape {input.shape}" if name == "cross_entropy" else "")
            + f"; found target of dtype {target.dtype} and shape {target.shape}"
        )
    if target.shape != rows:
        raise errors.ShapeError(
            f"{name} of an input of shape {input.shape} takes labels of shape {rows}; found target of shape "
            f"{target.shape}"
        )
    check_library(name, input, weight)
    # Before they are moved to a GPU, if they come from the host.
    ignored = asked(_check_labels, innermost(target), name, classes, ignore_index)
    made: tuple[_Labels, Any] = computed(
        _labels_and_divisor, target, weight, raw(input), axis, ignore_index if ignored else None, name
    )
    return made


def _labels_and_divisor(
    target: Any, weight: Any, like: Any, axis: int, ignore_index: int | None, name: str
) -> tuple[_Labels, Any]:
    """Return what `_read_labels` does, of arrays; `ignore_index` is None where no label is ignored."""
    target = libraries.place_indices(target, like, name)
    valid = None if ignore_index is None else target != ignore_index
    # A copy, as a program may read the next batch into `target` before the backward pass.
    places = target.copy() if valid is None else np.where(valid, target, target.dtype.type(0))
    xp, rows = libraries.root(like), target.shape
    grid = [xp.arange(n).reshape([-1 if j == k else 1 for j in range(len(rows))]) for k, n in enumerate(rows)]
    labels = _Labels(axis, (*grid[:axis], places, *grid[axis:]), valid, None)
    dtype = wide_dtype(like.dtype)
    if weight is not None:
        share = labels.masked(libraries.getitem(weight.astype(dtype), places))
        return labels._replace(share=share, total=share), _nan_if_zero(np.sum(share))
    return labels, None if valid is None else _nan_if_zero(np.sum(valid, dtype=dtype))


def _nan_if_zero(total: Any) -> Any:
    """Return a divisor, with NaN instead of 0, so that there is no warning of 0 / 0."""
    return np.where(total == 0, total.dtype.type(np.nan), total)


def _check_labels(target: Any, asked: str, classes: int, ignore_index: int) -> bool:
    """Tell whether any label is to be ignored; raise LabelError if one is neither ignore_index nor a class."""
    outside = target >= classes
    if target.dtype.kind == "i":
        outside |= target < 0
    some = 0
    if np.iinfo(target.dtype).min <= ignore_index <= np.iinfo(target.dtype).max:
        ignored = target == ignore_index
        outside &= ~ignored
        some = ignored.any()
    if libraries.is_captured(outside) and not np.logical_or(some, outside.any()):
        return False  # by a guard of a truth
    found = int(some + 2 * outside.any())  # both are read at once, as reading waits for the GPU
    if found < 2:
        return bool(found)
    flat = int(outside.ravel().argmax())
    position = tuple([int(k) for k in np.unravel_index(flat, target.shape)])
    where = f" at {position if len(position) != 1 else position[0]}" if position else ""
    raise errors.LabelError(
        f"{asked} takes labels from 0 to {classes - 1}, of {classes} classes, and ignore_index={ignore_index}; "
        f"found {int(target.ravel()[flat])}{where} of the target"
    )


def _checked_weight(asked: str, weight: Any, input: Any, classes: int) -> Any:
    if weight is None:
        return None
    weight = untracked_value(lift_together(input, weight)[1], asked, "weight")
    if weight.shape != (classes,):
        raise errors.ShapeError(f"{asked} takes one weight for each of {classes} classes; found shape {weight.shape}")
    return weight


def _average(loss: Any, divisor: Any, reduction: str, asked: str, dtype: Any) -> Any:
    if reduction == "mean" and divisor is not None:
        loss, reduction = sum(loss) / divisor, "none"
    return narrow_to(reduced(loss, reduction, asked), dtype)


def nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """Return -input at the label of each row, for an input of logarithms of probabilities.

    Args:
        input: shape (C,), (N, C) or (N, C, d1, ...), for C classes.
        target: labels of an integer dtype, of shape (), (N,) or (N, d1, ...), from 0 to C - 1.
        weight: shape (C,), the weight of each class.
        ignore_index: the label of rows that do not count.
        reduction: "none", "mean" or "sum". A mean is over the weights of the labels that count; over nothing it is
            NaN, with a gradient of zeros.

    Raises:
        DtypeError: the labels are not integers, or the input is not floating.
        ShapeError: shapes do not fit.
        LabelError: a label is not a class. (Checking labels on a GPU waits for all work started there; NumPy labels for
            scores on a GPU are checked before they are moved.)

    >>> import numpy as np
    >>> from gradmgr.nn.functional import nll_loss
    >>> log_probabilities = np.array([[-1.0, -2.0], [-3.0, -4.0]])
    >>> float(nll_loss(log_probabilities, np.array([0, 1])))  # the mean of 1 and 4
    2.5
    """
    asked = "nll_loss"
    check_reduction(reduction, asked)
    plain = _plain_labels(input, target, ignore_index, reduction) if weight is None else None
    if plain is not None:
        return -_pick(input, plain)
    input, target = lift_together(input, target)
    axis = _class_axis(asked, input, target)
    weight = _checked_weight(asked, weight, input, input.shape[axis])
    ignore_index = integer(ignore_index, "ignore_index", asked)
    labels, divisor = _read_labels(asked, input, axis, raw(target), weight, ignore_index)
    picked = _pick(widen_half(input), labels._replace(total=None))  # which only softmax needs
    return _average(-picked, divisor, reduction, asked, input.dtype)


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return -sum(q * log(softmax(x))) of each row of logits x, for labels or for probabilities q.

    For labels this is one op: it keeps the logits and two numbers per row, and computes its gradient in one buffer. It
    neither overflows nor underflows; a class with logit -inf has probability 0.

    Args:
        input: the logits, of shape (C,), (N, C) or (N, C, d1, ...), for C classes.
        target: labels of an integer dtype, of shape (), (N,) or (N, d1, ...), from 0 to C - 1; or probabilities of a
            floating dtype and the input's shape, into which gradients flow, too.
        weight: shape (C,), the weight of each class.
        ignore_index: the label of rows that do not count; their gradient is 0 whatever they hold.
        reduction: "none", "mean" or "sum". A mean is over the weights of the labels that count, or over the rows of
            probabilities; over nothing it is NaN, with a gradient of zeros, as in torch.
        label_smoothing: how much of each q, from 0 to 1, is spread evenly over all classes.

    Raises:
        DtypeError: the labels are not integers, or the input is not floating.
        ShapeError: shapes do not fit.
        LabelError: a label is not a class. (Checking labels on a GPU waits for all work started there.)
        ValueError: the smoothing is outside of [0, 1], the reduction is unknown, or ignore_index is given with
            probabilities.

    >>> import numpy as np
    >>> from gradmgr.nn.functional import cross_entropy
    >>> cross_entropy(np.log(np.array([[1.0, 3.0], [2.0, 2.0]])), np.array([0, 1]), reduction="none").round(4).tolist()
    [1.3863, 0.6931]
    """
    asked = "cross_entropy"
    check_reduction(reduction, asked)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{asked}: label_smoothing must be from 0 to 1; found {label_smoothing!r}")
    if weight is None and not label_smoothing:
        plain = _plain_labels(input, target, ignore_index, reduction)
        if plain is not None:
            return _cross_entropy(input, plain)[0]
    input, target = lift_together(input, target)
    axis = _class_axis(asked, input, target)
    classes = input.shape[axis]
    weight = _checked_weight(asked, weight, input, classes)
    ignore_index = integer(ignore_index, "ignore_index", asked)
    if target.shape == input.shape and is_floating(target.dtype):
        if ignore_index != -100:
            raise ValueError(f"{asked}: ignore_index is for labels, and the target holds probabilities; set those to 0")
        loss = _loss_of_probabilities(input, target, axis, weight, float(label_smoothing))
        return _average(loss, None, reduction, asked, np.result_type(input.dtype, target.dtype))
    labels, divisor = _read_labels(asked, input, axis, raw(target), weight, ignore_index)
    if label_smoothing:
        labels = _smooth_labels(labels, weight, float(label_smoothing), input)
    return _average(_cross_entropy(input, labels)[0], divisor, reduction, asked, input.dtype)


def _class_weights_row(weight: Any, axis: int, ndim: int) -> Any:
    """Return weights of the classes in the shape of one row of logits."""
    return weight.reshape([-1 if k == axis else 1 for k in range(ndim)])


def _smooth_labels(labels: _Labels, weight: Any, smoothing: float, input: Any) -> _Labels:
    """Distribute the fraction `smoothing` of each label evenly over all classes."""
    dtype, classes = wide_dtype(input.dtype), input.shape[labels.axis]
    one, share = dtype.type(1), labels.share
    each = (zeros(input, (classes,), dtype) + one if weight is None else weight.astype(dtype)) * (smoothing / classes)
    if share is None:
        share = labels.masked(zeros(input, labels.places[labels.axis].shape, dtype) + one)
    share = share * (one - dtype.type(smoothing))
    smooth = _class_weights_row(each, labels.axis, input.ndim)
    return labels._replace(share=share, smooth=smooth, total=labels.masked(share + np.sum(each)))


def _loss_of_probabilities(input: Any, target: Any, axis: int, weight: Any, smoothing: float) -> Any:
    """Return the loss of each row for targets of probabilities; half precision is computed in float32."""
    dtype = wide_dtype(np.result_type(input.dtype, target.dtype))
    q, logs = cast_to(target, dtype), log_softmax(cast_to(input, dtype), axis)
    if smoothing:
        q = q * (1 - smoothing) + smoothing / input.shape[axis]
    if weight is not None:
        q = q * _class_weights_row(weight.astype(logs.dtype), axis, input.ndim)
    return -sum(q * logs, axis)
