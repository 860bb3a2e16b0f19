"""`send` and `recv`: values go one way, gradients the other.

Each value that goes from one rank to another has a number, by the order of the calls on both sides, and so has its
gradient: ranks may go back through several values in another order than their neighbours. A header precedes each
value: dtype, shape and number, by which recv raises for a value that it did not expect, and how many managers wait
for the gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import batched, libraries
from gradmgr._engine.context import current, is_recording, recorders
from gradmgr._engine.custom import custom
from gradmgr._engine.recorder import Recorder
from gradmgr._engine.tape import Tape, add_root
from gradmgr._engine.tensor import Tensor, bare, wrap
from gradmgr._transforms.checkpoint import is_in_checkpoint
from gradmgr.distributed._group import Group
from gradmgr.distributed._world import group as resolve_group

_HEAD = 1024  # bytes
_NUMBERS = 8000  # values that may be on their way between two ranks at once; tags end at 32767
_DEPTHS = 4  # the value, its gradient, the gradient of that, and what comes after


class _Link:
    """The transfer of one value between this rank and another; that of its gradient goes the other way."""

    __slots__ = ("depth", "group", "number", "other")

    def __init__(self, group: Group, other: int, number: int, depth: int = 0) -> None:
        self.group = group
        self.other = other
        self.number = number
        self.depth = depth

    @property
    def tag(self) -> int:
        """Return the tag of MPI, different from those of other values between the two ranks."""
        return _DEPTHS * (self.number % _NUMBERS) + min(self.depth, _DEPTHS - 1)

    def gradient(self) -> _Link:
        """Return the transfer of the gradient."""
        return _Link(self.group, self.other, self.number, self.depth + 1)


def send(x: Any, to: int, *, group: Group | None = None) -> None:
    """Send an array to another rank, which calls `recv`; its gradient comes back from there in `backward`.

    It does not wait for the other rank. Where `x` is tracked, this rank's `backward` also starts from the gradient of
    `x` that it receives: a rank that holds no loss calls `gm.backward()` without an argument.

    Args:
        x: a Tensor or an array; the values that it has now are sent.
        to: the rank that receives.
        group: the ranks among which `to` counts; None for all.

    Raises:
        ValueError: `to` is not another rank of the group.
        UnsupportedFunctionError: `x` has a tangent (forward mode ends at the rank), or is batched by vmap; or this is
            inside a checkpointed function, which runs again in backward.
        RankFailedError: here or in `backward`: another rank ended, or did not come in time.
    """
    at = resolve_group(group)
    x = x if isinstance(x, Tensor) else libraries.need_operand(x, "send")
    _check_rank(at, to, "send")
    _check_once("send", "and send what it returns")
    _check_reverse(x)
    _transmit(x, _Link(at, to, _next_number(at, at.rank, to)))


def recv(
    shape: int | Sequence[int], dtype: Any, source: int, *, device: str = "cpu", group: Group | None = None
) -> Tensor:
    """Receive what another rank sends with `send`; `backward` sends the gradient back.

    Where that rank tracks what it sends, every manager that records here records the result, although it depends on
    nothing attached here, and `backward` sends its gradient: zeros where nothing was computed from it.

    Args:
        shape: the shape of what is sent.
        dtype: its dtype.
        source: the rank that sends.
        device: where to put it; NCCL receives into a GPU's memory directly.
        group: the ranks among which `source` counts; None for all.

    Returns:
        A Tensor. Where neither rank records, this is plain communication.

    Raises:
        ValueError: `source` is not another rank of the group.
        UnsupportedFunctionError: this is inside a checkpointed function, which runs again in backward.
        DistributedError: something else was sent, or the numbers of managers that record it on both ranks differ.
        RankFailedError: here or in `backward`: another rank ended, or did not come in time.
    """
    at = resolve_group(group)
    _check_rank(at, source, "recv")
    _check_once("recv", "and give it what was received")
    shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple([int(n) for n in shape])
    libraries.device_index(device)
    link = _Link(at, source, _next_number(at, source, at.rank))
    return _receive(link, shape, np.dtype(dtype), device)


def _check_rank(at: Group, other: int, operation: str) -> None:
    if not 0 <= other < at.size or other == at.rank:
        raise ValueError(f"{operation}: from rank {at.rank} of {at.size}, the other rank cannot be {other}")


def _check_once(operation: str, instead: str) -> None:
    if is_in_checkpoint():
        raise errors.UnsupportedFunctionError(
            f"{operation} inside a checkpointed function, which runs again in backward, where the other rank would not "
            f"expect a second message; call {operation} outside of it, {instead}"
        )


def _check_reverse(x: Any) -> None:
    if batched.is_batched(bare(x)):
        raise errors.UnsupportedFunctionError("send does not go through vmap; send the whole batch outside of it")
    if isinstance(x, Tensor) and any(
        rec.open and not isinstance(rec, Tape) and rec.node_id_of(x) is not None for rec in recorders(current())
    ):
        raise errors.UnsupportedFunctionError(
            "send carries no tangents: forward mode ends at the rank; send x.detach(), or use a GradManager"
        )


def _next_number(at: Group, source: int, to: int) -> int:
    number = at.links.get((source, to), 0)
    at.links[source, to] = number + 1
    return number


# ---------------------------------------------------------------- the ops
# A send is recorded as a function of x whose value is always 0, a recv as a function of such a number. Their vjps
# receive and send the gradient.


def _receive_gradient(g: Any, link: _Link, dtype: Any, device: str, shape: tuple[int, ...]) -> Any:
    found = _receive(link.gradient(), shape, dtype, device)
    return found if _open_tapes() else found._array


def _send_gradient(g: Any, link: _Link) -> None:
    _transmit(g, link.gradient())


def _no_tangent(t: Any) -> Any:
    raise errors.UnsupportedFunctionError("send and recv carry no tangents: forward mode ends at the rank")


_sent = custom(
    "distributed.send",
    lambda x, link, dtype, device: libraries.namespace(x).zeros(()),
    vjp={"x": _receive_gradient},
    jvp={"x": _no_tangent},
)
_received = custom(
    "distributed.recv",
    lambda token, values, link: values,
    vjp={"token": _send_gradient},
    jvp={"token": _no_tangent},
)


def _open_tapes(x: Tensor | None = None) -> list[Recorder]:
    """Return the tapes that record in this context and, where `x` is given, track it."""
    found: list[Recorder] = [
        rec for rec in recorders(current()) if isinstance(rec, Tape) and rec.open and is_recording(rec)
    ]
    return found if x is None else [rec for rec in found if rec.node_id_of(x) is not None]


def _transmit(x: Any, link: _Link) -> None:
    """Send, and make the tapes that track the value receive its gradient in every backward."""
    array = bare(x)
    followers = len(_open_tapes(x)) if isinstance(x, Tensor) and libraries.is_differentiable(array.dtype) else 0
    what = {"dtype": array.dtype.name, "shape": list(array.shape), "followers": followers, "number": link.number}
    head = np.frombuffer(json.dumps(what).encode().ljust(_HEAD), np.uint8).copy()
    native = array.dtype.newbyteorder("=")  # as it goes
    values = libraries.namespace(array).array(
        array, dtype=native, order="C", copy=True
    )  # a copy that nothing else writes to
    link.group.start_send(head, link.other, link.tag)
    link.group.start_send(values, link.other, link.tag).done()
    if followers:
        add_root(_sent(x, link, array.dtype, libraries.device_of(array)))


def _receive(link: _Link, shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
    """Receive, and make the tapes that record here send the gradient in every backward."""
    values, followers = _receive_values(link, shape, dtype, device)
    if not followers:
        return wrap(values)
    tapes = _open_tapes()
    if followers != len(tapes):
        raise errors.DistributedError(
            f"recv from rank {_global(link)}: {followers} managers follow there what was sent, and {len(tapes)} record "
            "here; let as many record on both ranks, or send x.detach()"
        )
    token = wrap(libraries.namespace(values).zeros(()))
    for tape in tapes:
        tape.track(token, object())
    y: Tensor = _received(token, values, link)
    add_root(y)
    return y


def _receive_values(link: _Link, shape: tuple[int, ...], dtype: Any, device: str) -> tuple[Any, int]:
    """Return the values, and how many managers of the other rank wait for their gradient."""
    head = np.empty(_HEAD, np.uint8)
    message = f"{'the gradient of ' * link.depth}{dtype.name}{shape}, message {link.number} between the two"
    link.group.start_recv(head, link.other, link.tag, message).wait()
    what = json.loads(head.tobytes())
    found = what["dtype"], tuple(what["shape"]), what["number"]
    if found != (dtype.name, shape, link.number):
        raise errors.DistributedError(
            f"recv from rank {_global(link)} expected {dtype.name}{shape}, message {link.number} between the two, and "
            f"rank {_global(link)} sent {found[0]}{found[1]}, message {found[2]}; both must name the same"
        )
    values = _empty(shape, dtype.newbyteorder("="), device)
    link.group.start_recv(values, link.other, link.tag, message).wait()
    return values.astype(dtype, copy=False), what["followers"]


def _empty(shape: tuple[int, ...], dtype: Any, device: str) -> Any:
    index = libraries.device_index(device)
    if index is None:
        return np.empty(shape, dtype)
    cupy = libraries.import_cupy(f"recv to device {device!r}")
    with cupy.cuda.Device(index):
        return cupy.empty(shape, dtype)


def _global(link: _Link) -> int:
    return link.group.ranks[link.other]
