"""Sequences of several lengths: padded to one length, or packed, which leaves the padding out.

A packed batch has the rows of all first steps, then those of all second steps, and so on. Longer sequences come first,
so that the sequences of a step are the first ones of the step before. What stands where is decided on the host; the
rows themselves are moved between the layouts by one op.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._arrays.captured import values_of
from gradmgr._engine.op import Function, linear
from gradmgr._engine.tensor import Tensor, raw, tensor
from gradmgr.nn._functions.arguments import check_word, integer, one_array
from gradmgr.ops.join import array_split, concatenate
from gradmgr.ops.pick import where

Integers = Any  # numpy.ndarray of int64

# ---------------------------------------------------------------- moving rows


def _inverse(places: Integers, count: int) -> Integers:
    """Return for each of `count` places which element of `places` it is, and -1 for none; -1 is no place."""
    found = np.full(count, -1)
    elements = np.flatnonzero(places >= 0)
    found[places[elements]] = elements
    return found


def _move_kernel(x: Any, places: Integers, count: int) -> Any:
    """Return `count` rows: row k of x at places[k], and zeros where none goes; -1 leaves a row out."""
    if x.shape[0] == 0:
        return libraries.namespace(x).zeros((count, *x.shape[1:]), x.dtype)
    xp = libraries.root(x)
    sources = _inverse(places, count)
    y = x.take(sources, 0) if x.__class__ is np.ndarray else libraries.getitem(x, xp.asarray(sources))
    absent = np.flatnonzero(sources < 0)
    if absent.size:
        y[xp.asarray(absent)] = 0
    return y


# No row goes to two places, so the adjoint takes each row back from where it has gone.
move_rows: Function = linear(
    "nn.move_rows", _move_kernel, lambda g, places, shape: move_rows(g, _inverse(places, g.shape[0]), shape[0])
)


def _rows_at(x: Any, places: Integers) -> Any:
    """Return the rows of x at different places."""
    return move_rows(x, _inverse(places, x.shape[0]), len(places))


def _padded(
    rows: Any, steps: Integers, which: Integers, batch: int, length: int, batch_first: bool, padding_value: float
) -> Any:
    """Return a batch of one length, in which row k is step steps[k] of sequence which[k]."""
    lead = (batch, length) if batch_first else (length, batch)
    places = which * length + steps if batch_first else steps * batch + which
    y = move_rows(rows, places, batch * length).reshape((*lead, *rows.shape[1:]))
    if padding_value == 0:
        return y
    is_there = np.zeros(batch * length, bool)
    is_there[places] = True
    is_there = is_there.reshape((*lead, *[1] * (rows.ndim - 1)))
    return where(libraries.root(raw(rows)).asarray(is_there), y, y.dtype.type(padding_value))


# ---------------------------------------------------------------- packed sequences


class _Fields(NamedTuple):
    data: Any
    batch_sizes: Integers
    sorted_indices: Integers | None
    unsorted_indices: Integers | None


class PackedSequence(_Fields):
    """A batch of sequences of several lengths without padding, as torch.nn.utils.rnn.PackedSequence.

    Made by `pack_padded_sequence` and `pack_sequence`; LSTM, GRU and RNN take it and return one. A layer that computes
    each step by itself is applied to `data`: `packed._replace(data=layer(packed.data))`.

    Args:
        data: a Tensor or an array (the sum of all lengths, ...): the rows of all first steps, of all second steps, ...
        batch_sizes: how many sequences have a first step, a second step, ...; kept as an array of int64 on the host.
        sorted_indices: which of the sequences is the longest, the second longest, ...; None if they are in this
            order.
        unsorted_indices: the inverse permutation; by default it is computed from `sorted_indices`.

    Raises:
        ShapeError: the number of rows of data is not that of all steps, or that of indices is not that of sequences.
        TypeError: sizes or indices are not integers, or not on the host.
        ValueError: batch_sizes is empty, has a 0 or ascends, or the indices are not a permutation.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import PackedSequence, unpack_sequence
    >>> packed = PackedSequence(numpy.array([1.0, 3.0, 2.0]), [2, 1])
    >>> [sequence.tolist() for sequence in unpack_sequence(packed)]
    [[1.0, 2.0], [3.0]]
    """

    __slots__ = ()

    def __new__(cls, data: Any, batch_sizes: Any, sorted_indices: Any = None, unsorted_indices: Any = None) -> Self:
        """Check that all fit, and hold them."""
        data, sizes = one_array(data), _integers(batch_sizes, "batch_sizes", "PackedSequence")
        if not sizes.size or sizes[-1] < 1 or (np.diff(sizes) > 0).any():
            raise ValueError(
                f"PackedSequence: batch_sizes must be at least 1 and never ascend; found {sizes.tolist()}, and every "
                "sequence has a first step"
            )
        if data.ndim == 0 or data.shape[0] != sizes.sum():
            raise errors.ShapeError(
                f"PackedSequence: data must have {sizes.sum()} rows, the sum of batch_sizes; found shape {data.shape}"
            )
        order, back = (
            None if given is None else _permutation(given, int(sizes[0]), name)
            for given, name in ((sorted_indices, "sorted_indices"), (unsorted_indices, "unsorted_indices"))
        )
        order = np.argsort(back) if order is None and back is not None else order
        back = np.argsort(order) if back is None and order is not None else back
        return super().__new__(cls, data, sizes, order, back)

    @property
    def device(self) -> str:
        """Where `data` is: "cpu" or "cuda:0"."""
        return libraries.device_of(raw(self.data))

    def to(self, device: str) -> Self:
        """Return the same with `data` on a device, "cpu" or "cuda:0", as a Tensor; sizes and indices stay on the host.

        >>> import numpy
        >>> from gradmgr.nn.utils.rnn import pack_sequence
        >>> pack_sequence([numpy.ones(3), numpy.ones(2)]).to("cpu").device
        'cpu'
        """
        data = self.data
        return self._replace(data=data.to(device) if isinstance(data, Tensor) else tensor(data, device=device))


def _integers(values: Any, name: str, asked: str) -> Integers:
    """Return integers that decide how many steps there are, as an array on the host."""
    a = raw(values)
    if libraries.is_array(a):
        if libraries.root(a) is not np:
            raise TypeError(
                f"{asked}: {name} must be on the host, as it decides which steps are computed; found an array on "
                f"{libraries.device_of(a)}: copy it once by .get(), or a Tensor by .to('cpu')"
            )
        if batched.is_batched(a):
            raise errors.BatchedValueError(f"{asked}: {name} must be the same for all examples of a vmap")
        if a.dtype.kind not in "iu":
            raise TypeError(f"{asked}: {name} must be integers; found an array of {a.dtype}")
        if a.ndim != 1:
            raise errors.ShapeError(f"{asked}: {name} must have one axis; found shape {a.shape}")
        return np.array(values_of(a), np.int64)
    if not isinstance(a, Iterable):
        raise TypeError(f"{asked}: {name} must be integers, in a list or an array; found {a!r}")
    return np.array([integer(n, f"each of {name}", asked) for n in a], np.int64)


def _permutation(values: Any, count: int, name: str) -> Integers:
    found = _integers(values, name, "PackedSequence")
    if found.shape != (count,):
        raise errors.ShapeError(f"PackedSequence: {name} must be {count} integers; found {found.size}")
    if not np.array_equal(np.sort(found), np.arange(count)):
        raise ValueError(f"PackedSequence: {name} must be a permutation of 0 to {count - 1}; found {found.tolist()}")
    return found


def checked_packed(value: Any, asked: str) -> PackedSequence:
    """Return a PackedSequence whose parts are checked: by `_replace`, and by vmap and compile, it may hold others."""
    if not isinstance(value, PackedSequence):
        raise TypeError(f"{asked} takes a PackedSequence, as pack_sequence makes it; found {type(value).__name__}")
    return PackedSequence(*value)


def _positions(sizes: Integers, order: Integers | None) -> tuple[Integers, Integers]:
    """Return for each row of a packed batch its step, and which of the sequences, in the user's order, it is of."""
    steps = np.repeat(np.arange(len(sizes)), sizes)
    which = np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return steps, which if order is None else order[which]


def _sorted(counts: Integers, enforce_sorted: bool, asked: str) -> tuple[Integers, Integers | None]:
    """Return the batch sizes for these lengths, and the order that puts longer ones first, None if they come so.

    Raises:
        ValueError: a length is 0, or they are not in order and `enforce_sorted`.
    """
    if counts.size == 0 or counts.min() < 1:
        found = f"{counts.tolist()}" if counts.size else "none"
        raise ValueError(
            f"{asked}: there must be a sequence, and each must have at least 1 step; found lengths {found}"
        )
    order = None
    if not enforce_sorted:
        order = np.argsort(-counts, kind="stable")
    elif (np.diff(counts) > 0).any():
        raise ValueError(
            f"{asked}: with enforce_sorted=True longer sequences come first; found lengths {counts.tolist()}; sort the "
            "batch, or pass enforce_sorted=False"
        )
    return (counts > np.arange(counts.max())[:, None]).sum(1), order


def _lengths_in(x: Any, lengths: Any, batch_first: bool, asked: str) -> tuple[Integers, int]:
    """Return the lengths of the sequences in a padded batch, one for each, and the length that it is padded to."""
    if x.ndim < 2:
        raise errors.ShapeError(
            f"{asked} takes a batch (length, batch, ...), with batch_first=True (batch, length, ...); found shape "
            f"{x.shape}"
        )
    batch, length = x.shape[:2] if batch_first else x.shape[1::-1]
    counts = _integers(lengths, "lengths", asked)
    if counts.size != batch:
        raise errors.ShapeError(
            f"{asked} takes a length for each sequence: {batch} for shape {x.shape} with batch_first={batch_first}; "
            f"found {counts.size}"
        )
    if counts.size and counts.max() > length:
        raise ValueError(
            f"{asked}: a sequence cannot be longer than the {length} steps that shape {x.shape} has with "
            f"batch_first={batch_first}; found length {counts.max()}"
        )
    return counts, length


def _joined(sequences: Iterable[Any], asked: str) -> tuple[Any, Integers]:
    """Return the rows of all sequences one after the other, and their lengths."""
    parts = [one_array(sequence) for sequence in sequences]
    if not parts:
        raise ValueError(f"{asked} takes at least one sequence; found none")
    for k, part in enumerate(parts):
        if part.ndim == 0 or part.shape[1:] != parts[0].shape[1:]:
            raise errors.ShapeError(
                f"{asked}: sequences (length, ...) may differ in their length only; found shape {part.shape} of "
                f"sequence {k}, and {parts[0].shape} of sequence 0"
            )
    return concatenate(parts), np.array([part.shape[0] for part in parts])


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch of sequences, as torch.nn.utils.rnn.pack_padded_sequence; differentiable.

    Args:
        input: (length, batch, ...), with batch_first (batch, length, ...), of any dtype.
        lengths: the length of each sequence, from 1 to `length`: a list, or an array or Tensor of integers on the host.
        batch_first: which of the first two axes is the batch.
        enforce_sorted: raise unless longer sequences come first; with False they are sorted, and unpacking restores
            the order of `input`.

    Returns:
        A PackedSequence; its data is a Tensor for a Tensor, an array for an array, in the dtype of `input`.

    Raises:
        ShapeError: input has fewer than two axes, or the number of lengths is not that of sequences.
        TypeError: lengths are not integers, or not on the host.
        ValueError: a length is 0 or greater than that of input, or lengths ascend with `enforce_sorted`.
        BatchedValueError: lengths differ between examples of a vmap.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import pack_padded_sequence
    >>> padded = numpy.array([[1, 2, 0], [3, 4, 5]])
    >>> packed = pack_padded_sequence(padded, [2, 3], batch_first=True, enforce_sorted=False)
    >>> packed.data.tolist(), packed.batch_sizes.tolist(), packed.sorted_indices.tolist()
    ([3, 1, 4, 2, 5], [2, 2, 1], [1, 0])
    """
    return pack(one_array(input), lengths, batch_first, enforce_sorted, "pack_padded_sequence")


def pack(x: Any, lengths: Any, batch_first: bool, enforce_sorted: bool, asked: str) -> PackedSequence:
    """Pack as `pack_padded_sequence`; errors name the function `asked`."""
    counts, length = _lengths_in(x, lengths, batch_first, asked)
    sizes, order = _sorted(counts, enforce_sorted, asked)
    steps, which = _positions(sizes, order)
    batch = len(counts)
    places = which * length + steps if batch_first else steps * batch + which
    return PackedSequence(_rows_at(x.reshape((batch * length, *x.shape[2:])), places), sizes, order)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Any, Integers]:
    """Pad the sequences of a packed batch to one length, as torch.nn.utils.rnn.pad_packed_sequence; differentiable.

    Args:
        sequence: what pack_padded_sequence, pack_sequence or a recurrent layer returned.
        batch_first: whether the result is (batch, length, ...) instead of (length, batch, ...).
        padding_value: the value of the steps after the end of a sequence.
        total_length: the length to pad to; by default that of the longest sequence.

    Returns:
        The padded batch, in the order that the sequences had before they were packed, and their lengths, an array of
        int64 on the host.

    Raises:
        TypeError: `sequence` is not a PackedSequence.
        ValueError: total_length is below the length of the longest sequence.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import pack_sequence, pad_packed_sequence
    >>> packed = pack_sequence([numpy.array([1, 2]), numpy.array([3, 4, 5])], enforce_sorted=False)
    >>> padded, lengths = pad_packed_sequence(packed, batch_first=True)
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, 0], [3, 4, 5]], [2, 3])
    """
    data, sizes, order, back = checked_packed(sequence, "pad_packed_sequence")
    longest, batch = len(sizes), int(sizes[0])
    length = longest if total_length is None else integer(total_length, "total_length", "pad_packed_sequence")
    if length < longest:
        raise ValueError(
            f"pad_packed_sequence: total_length must be at least {longest}, the length of the longest sequence; found "
            f"{length}"
        )
    padded = _padded(data, *_positions(sizes, order), batch, length, batch_first, padding_value)
    counts = (sizes > np.arange(batch)[:, None]).sum(1)
    return padded, counts if back is None else counts[back]


def pad_sequence(
    sequences: Iterable[Any], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Any:
    """Pad sequences to the length of the longest, as torch.nn.utils.rnn.pad_sequence; differentiable.

    Args:
        sequences: Tensors or arrays (length, ...) that differ in their length only.
        batch_first: whether the result is (batch, length, ...) instead of (length, batch, ...).
        padding_value: the value of the steps that are added.
        padding_side: where to add them: "right", after a sequence, or "left", before it.

    Returns:
        The padded batch: a Tensor where one of the sequences is one.

    Raises:
        ShapeError: the sequences differ in more than their length.
        ValueError: there is no sequence, or padding_side is neither "right" nor "left".

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import pad_sequence
    >>> pad_sequence([numpy.array([1, 2]), numpy.array([3, 4, 5])], batch_first=True, padding_value=9).tolist()
    [[1, 2, 9], [3, 4, 5]]
    """
    check_word(padding_side, ("right", "left"), "padding_side", "pad_sequence")
    rows, counts = _joined(sequences, "pad_sequence")
    length = int(counts.max())
    which = np.repeat(np.arange(len(counts)), counts)
    steps = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    if padding_side == "left":
        steps = steps + (length - counts)[which]
    return _padded(rows, steps, which, len(counts), length, batch_first, padding_value)


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Any]:
    """Take the sequences out of a padded batch, as torch.nn.utils.rnn.unpad_sequence; differentiable.

    Args:
        padded_sequences: (length, batch, ...), with batch_first (batch, length, ...), padded on the right.
        lengths: the length of each sequence: a list, or an array or Tensor of integers on the host.
        batch_first: which of the first two axes is the batch.

    Returns:
        A list of (length of the sequence, ...).

    Raises:
        ShapeError, TypeError, ValueError, BatchedValueError: as pack_padded_sequence; a length may be 0.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import unpad_sequence
    >>> [s.tolist() for s in unpad_sequence(numpy.array([[1, 2, 9], [3, 4, 5]]), [2, 3], batch_first=True)]
    [[1, 2], [3, 4, 5]]
    """
    x = one_array(padded_sequences)
    counts, _ = _lengths_in(x, lengths, batch_first, "unpad_sequence")
    if counts.size and counts.min() < 0:
        raise ValueError(f"unpad_sequence: a length cannot be negative; found {counts.tolist()}")
    return [x[k, :count] if batch_first else x[:count, k] for k, count in enumerate(counts.tolist())]


def pack_sequence(sequences: Iterable[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Pack a list of sequences of several lengths, as torch.nn.utils.rnn.pack_sequence; differentiable.

    Args:
        sequences: Tensors or arrays (length, ...) that differ in their length only.
        enforce_sorted: raise unless longer sequences come first; False sorts them.

    Raises:
        ShapeError: the sequences differ in more than their length.
        ValueError: there is no sequence or one without steps, or lengths ascend with `enforce_sorted`.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import pack_sequence
    >>> pack_sequence([numpy.array([1, 2, 3]), numpy.array([4, 5])]).data.tolist()
    [1, 4, 2, 5, 3]
    """
    rows, counts = _joined(sequences, "pack_sequence")
    sizes, order = _sorted(counts, enforce_sorted, "pack_sequence")
    steps, which = _positions(sizes, order)
    return PackedSequence(_rows_at(rows, (np.cumsum(counts) - counts)[which] + steps), sizes, order)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """Take the sequences out of a packed batch, as torch.nn.utils.rnn.unpack_sequence; differentiable.

    Returns:
        A list of (length of the sequence, ...), in the order that they had before they were packed.

    Raises:
        TypeError: the argument is not a PackedSequence.

    >>> import numpy
    >>> from gradmgr.nn.utils.rnn import pack_sequence, unpack_sequence
    >>> [s.tolist() for s in unpack_sequence(pack_sequence([numpy.array([1, 2, 3]), numpy.array([4, 5])]))]
    [[1, 2, 3], [4, 5]]
    """
    data, sizes, order, _ = checked_packed(packed_sequences, "unpack_sequence")
    steps, which = _positions(sizes, order)
    rows = _rows_at(data, np.lexsort((steps, which)))  # one sequence after the other
    return array_split(rows, np.cumsum(np.bincount(which))[:-1])
