"""Sequences of several lengths for recurrent layers, by the names of torch.nn.utils.rnn.

`nn.LSTM`, `nn.GRU` and `nn.RNN` take a packed batch and return one:

>>> import numpy
>>> from gradmgr import nn
>>> from gradmgr.nn.utils.rnn import pack_sequence, pad_packed_sequence
>>> rng = numpy.random.default_rng(0)
>>> sequences = [rng.normal(size=(length, 2)) for length in (5, 2, 3)]
>>> output, (h, c) = nn.LSTM(2, 4, rng=rng)(pack_sequence(sequences, enforce_sorted=False))
>>> padded, lengths = pad_packed_sequence(output)
>>> padded.shape, lengths.tolist(), h.shape
((5, 3, 4), [5, 2, 3], (1, 3, 4))
"""

from gradmgr.nn._functions.packed_sequence import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)

__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]
