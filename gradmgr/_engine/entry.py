"""Entries of a tape: flat tuples that begin with a code and the node id of the result, and how to read them.

The code, a string, says how to read the rest: `KINDS` has a `Kind` for each, `VJPS` the function that computes its
vjp. It is a string and not the op itself because CPython's cyclic collector stops looking at tuples that hold only
strings, numbers and arrays: on a chain of 1e5 held ops that is 0.09 of 0.95 us per op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from gradmgr import errors
from gradmgr._engine.observers import SavedValuePlaceholder, SourceLocation
from gradmgr._engine.ownership import Grads, Ownership, accumulate
from gradmgr._engine.tensor import Tensor

Entry = tuple[Any, ...]
NodeIds = tuple[Any, ...]
# (node id, shape, dtype) of inputs.
Metadata = tuple[Any, ...]
# vjp(entry, g, grads, owned) adds what the gradient g of the result gives to the gradients of the inputs.
Vjp = Callable[[Entry, Any, Grads, Ownership], None]
# Takes a kept value and its node id on a tape; returns what that tape tracks in its place.
Retrack = Callable[[Any, Any], Any]


def _unknown(e: Entry) -> Metadata:
    return ()


class Kind(NamedTuple):
    """How the entries of one code are read.

    Attributes:
        op: the name of the op.
        inputs: returns the node ids of an entry's inputs, None if one is not tracked.
        metadata: returns (node id, shape, dtype) of the tracked inputs, as far as the entry knows them.
        retrack: returns the entry with its kept values passed through a `Retrack`, for derivatives that are recorded
            on the tape itself; None if nothing but constants is kept.
        name: returns the op's name, where that depends on the entry: one of the user's own operations.
        runs: "steps" where the vjp runs code that computes with Tensors, so that a listener is told of each step of
            it; "foreign" where it runs code of the program's that computes with arrays, and must run each time.
    """

    op: str
    inputs: Callable[[Entry], NodeIds]
    metadata: Callable[[Entry], Metadata] = _unknown
    retrack: Callable[[Entry, Retrack], Entry] | None = None
    name: Callable[[Entry], str] | None = None
    runs: Literal["", "steps", "foreign"] = ""


# By code. The loop of backward looks up nothing but vjps, so they have their own dict.
KINDS: dict[str, Kind] = {}
VJPS: dict[str, Vjp] = {}


def declare_kind(code: str, kind: Kind, vjp: Vjp) -> None:
    """Enter how the entries of a code are read and what computes their vjp."""
    KINDS[code] = kind
    VJPS[code] = vjp


# ---------------------------------------------------------------- reading an entry


def kind_of(e: Entry) -> Kind:
    """Return how an entry is read."""
    return KINDS[e[0]]


def node_id_of(e: Entry) -> Any:
    """Return the node id of the result of an entry."""
    return e[1]


def input_ids(e: Entry) -> NodeIds:
    """Return the node ids of the inputs of an entry, None if one is not tracked."""
    return KINDS[e[0]].inputs(e)


def tracked_input_ids(e: Entry) -> NodeIds:
    """Return the node ids of the tracked inputs of an entry."""
    return tuple([node_id for node_id in KINDS[e[0]].inputs(e) if node_id is not None])


def input_metadata(e: Entry) -> Metadata:
    """Return (node id, shape, dtype) of the tracked inputs of an entry, as far as it knows them."""
    return KINDS[e[0]].metadata(e)


def op_name(e: Entry) -> str:
    """Return the name of the op of an entry."""
    kind = KINDS[e[0]]
    return kind.op if kind.name is None else kind.name(e)


def is_result(e: Entry) -> bool:
    """Tell whether an entry is that of one result of an op of several, whose own entry comes before it."""
    return e[0] in ("result", "checkpoint.result")


def op_node_id(e: Entry) -> Any:
    """Return, of an entry that `is_result`, the node id of its op."""
    return e[2]


def result_number(e: Entry) -> int:
    """Return, of an entry that `is_result`, which result of its op it is."""
    return int(e[3])


def kept_values(e: Entry) -> Iterable[Any]:
    """Yield what an entry keeps: arrays (of Tensors too), shapes, parameters, node ids."""
    return flat(e[2:])


def flat(values: Iterable[Any]) -> Iterable[Any]:
    """Yield what nested tuples hold, Tensors as their arrays, placeholders as what they keep in memory."""
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        elif isinstance(value, SavedValuePlaceholder):
            yield from flat((value.kept,))
        else:
            yield value._array if isinstance(value, Tensor) else value


# ---------------------------------------------------------------- shapes of entries that several ops share


def one_input(e: Entry) -> NodeIds:
    """Read the node id of the input of (code, node id, id of the input, ...)."""
    return e[2:3]


def two_inputs(e: Entry) -> NodeIds:
    """Read the node ids of the inputs of (code, node id, id, id, ...)."""
    return e[2:4]


def metadata_of_one(e: Entry) -> Metadata:
    """Read the metadata of (code, node id, id of the input, its shape, its dtype, ...)."""
    return (e[2:5],)


def ids_in_tuple(e: Entry) -> NodeIds:
    """Read the node ids of (code, node id, ids of the inputs, ...)."""
    return tuple(e[2])


def metadata_in_tuple(e: Entry) -> Metadata:
    """Read the metadata of (code, node id, ids, (shape, dtype) of each input or None, values).

    None stands where the input is not tracked, or is among the values.
    """
    found = []
    for k, (node_id, known) in enumerate(zip(e[2], e[3], strict=True)):
        if node_id is not None:
            shape, dtype = known or (e[4][k].shape, e[4][k].dtype)
            found.append((node_id, shape, dtype))
    return tuple(found)


def no_inputs(e: Entry) -> NodeIds:
    """Read nothing: gradients go no further."""
    return ()


# ---------------------------------------------------------------- entries that are no ops


def _vjp_of_result(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    parts = grads.setdefault(e[2], {})
    parts[e[3]] = parts[e[3]] + g if e[3] in parts else g


def _vjp_of_attach(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    grads[e[1]] = g  # complete, and kept: it is a leaf's
    accumulate(grads, owned, e[2], g)


def _vjp_of_stale(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    raise errors.StaleValueError(
        f"the derivative of op {e[3].partition('.')[0]!r} needs a value in memory that increment_version declared "
        "overwritten after it was used; write to it after backward(), or compute on a copy"
    )


def _vjp_of_unrecorded_step(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    location: SourceLocation | None = e[3]
    place = "" if location is None else f" at {location.file}:{location.line}"
    raise errors.RecordingError(
        f"a gradient meets a parameter that step() of an optimiser changed{place}, inside of this recording, and that "
        "step was not recorded: give the optimiser differentiable=True, which most have; or step when the recording is "
        "over (backward() without retain=True ends it), or within no_grad(), which makes the new values constants"
    )


def _vjp_of_constant(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    """Do nothing: the gradient of a constant goes nowhere."""


def _vjp_of_capture(e: Entry, g: Any, grads: Grads, owned: Ownership) -> None:
    """Do nothing: the backward pass itself takes the gradient."""


# Each result of an op of several has its own entry after the op's. In backward these come first and collect
# their gradients, by number, in a dict that the op's own entry then gets as its gradient.
declare_kind("result", Kind("result", one_input), _vjp_of_result)

# One of these, of a value that was computed inside a checkpointed function: it also holds the call.
declare_kind("checkpoint.result", Kind("result", one_input), _vjp_of_result)

# An intermediate that is attached gets another node id through this entry: what was computed from it before, under
# the old one, does not add to its gradient.
declare_kind("attach", Kind("attach", one_input), _vjp_of_attach)

# An entry whose kept value was overwritten: (code, node id, ids of the inputs, the code it had).
declare_kind("stale", Kind("stale", ids_in_tuple), _vjp_of_stale)

# What a step of an optimiser that is not recorded made of its inputs: (code, node id, ids of the inputs, where). To
# differentiate it is an error; without the entry the gradient would silently end there.
declare_kind("unrecorded step", Kind("unrecorded step", ids_in_tuple), _vjp_of_unrecorded_step)

# A value that depends on nothing; the tape tracks it so that it can be differentiated, with zeros as the result.
declare_kind("constant", Kind("constant", no_inputs), _vjp_of_constant)

# Where backward ends: a value whose gradient is wanted, with the entry that computed it.
declare_kind("capture", Kind("capture", no_inputs, name=lambda e: op_name(e[2])), _vjp_of_capture)
