"""Callbacks that reduce gradients over the ranks as `make_allreduce_cb` does, and send less.

They are written for the protocol of callbacks alone: begin, finish, abort, futures. All gradients of a backward go
in one message, when the last one is there.
"""

from __future__ import annotations

import weakref
from hashlib import blake2b
from typing import Any

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.backward import BackwardRun
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr.distributed import _world
from gradmgr.distributed._buckets import FAILED_BACKWARD, check_takeable, explained, failed_there
from gradmgr.distributed._group import Group
from gradmgr.manager import GradManager, get_backwarding_grad_manager

_MARKER = "the compressed gradients"


def make_float16_allreduce_cb(reduce_method: str = "mean", *, group: Group | None = None) -> Float16Callback:
    """Make the callback that gives every rank the mean, or sum, of all ranks' gradients, sent as float16.

    A gradient g_r of rank r is sent as c_r = float16(g_r / n), for a sum as float16(g_r), and the result is the sum of
    the c_r in float16: half of the bytes of float32, and n roundings, each by at most 2^-11 of the number,
    or by 2^-25 where it is below 2^-14. Numbers above 65504 become infinite; a GradScaler skips such a step.

    It is used as `make_allreduce_cb`, whose rules hold here too: the same parameters on every rank, zeros from a rank
    that did not reach a parameter, an error on all ranks where backward fails on one. It has no `no_sync()`.

    Source: the cast of NVIDIA's and torch's communication hooks (`fp16_compress_hook`).

    Args:
        reduce_method: "mean" or "sum".
        group: the ranks among which to reduce; None for all.

    Returns:
        The callback, one object for all parameters; `bytes_sent` counts the bytes that this rank gave to be
        reduced.

    Raises:
        ValueError: the method is neither "mean" nor "sum".
        DtypeError: in `backward`: a parameter is complex.
        DistributedError, RankFailedError: in `backward`, as with `make_allreduce_cb`.

    >>> import gradmgr
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w, distributed.make_float16_allreduce_cb())
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad
    Tensor([2., 4.])
    >>> distributed.finalize()
    """
    return Float16Callback("make_float16_allreduce_cb", reduce_method, group)


def make_topk_allreduce_cb(
    fraction: float = 0.01, reduce_method: str = "mean", *, error_feedback: bool = True, group: Group | None = None
) -> TopKCallback:
    """Make the callback that sends only the numbers of greatest magnitude of all gradients, and adds the rest up.

    Each rank adds its gradients to its residual, a = e + g; the k = ceil(fraction * N) numbers of greatest |a|, of all
    N, are sent with their indices, s = top_k(a); what is not sent stays, e = a - s; the result is the mean, or sum, of
    the s of all ranks. So every number is sent in the end: without the residual (`error_feedback=False`), small
    gradients never are, and training may converge to another point, or not at all.

    What arrives late costs accuracy. Momentum repeats for many steps what arrived at once; the source corrects for
    that, this does not. In a training by SGD with momentum, the accuracy after the same steps was
    0.964 with whole gradients, 0.964 with `make_float16_allreduce_cb`, 0.947 with a fraction of 0.1, and 0.897 with
    0.01, with residuals. So try float16 first; take this where a step still waits for the network, at the
    largest fraction that saves time, and compare a run with one of whole gradients. Keep the residual: in another
    training a fraction of 0.01 came to 0.970 with it, and to 0.937 without (0.975 with whole gradients).

    Residuals change when a backward succeeds; one that fails leaves them as they were, and so does one in which any
    rank's gradients are not finite, whose step a GradScaler skips. They belong to this rank, as large as the
    parameters, and are not part of a checkpoint: a resumed run begins with residuals of zeros.
    It is used as `make_allreduce_cb`, whose rules hold here too. It has no `no_sync()`.

    Source: Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018 (without its momentum correction); error
    feedback: Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent", Interspeech 2014; its convergence:
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    Args:
        fraction: how much is sent, above 0 and at most 1; at least one number.
        reduce_method: "mean" or "sum".
        error_feedback: whether to keep a residual.
        group: the ranks among which to reduce; None for all.

    Returns:
        The callback, one object for all parameters. `bytes_sent` counts the bytes that this rank gave to be reduced,
        and `residual(t)` is an array of what was not sent of a parameter.

    Raises:
        ValueError: the fraction is out of range, or the method is neither "mean" nor "sum".
        DtypeError: in `backward`: a parameter is complex.
        DistributedError, RankFailedError: in `backward`, as with `make_allreduce_cb`.

    >>> import gradmgr
    >>> from gradmgr import distributed
    >>> distributed.init()
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> callback = distributed.make_topk_allreduce_cb(0.5)
    >>> gm = gradmgr.GradManager().attach(w, callback)
    >>> with gm:
    ...     gm.backward((w * w).sum())
    >>> w.grad, callback.residual(w)  # one rank alone sends nothing, and keeps nothing
    (Tensor([2., 4.]), array([0., 0.]))
    >>> distributed.finalize()
    """
    return TopKCallback(fraction, reduce_method, error_feedback, group)


class _CompressedCallback:
    """Takes the gradients of a backward, and exchanges them in one message."""

    def __init__(self, name: str, reduce_method: str, group: Group | None) -> None:
        self._name = name
        self.reduce_method = str(reduce_method).lower()
        if self.reduce_method not in ("mean", "sum"):
            raise ValueError(f"{name} takes the methods 'mean' and 'sum'; found {reduce_method!r}")
        self.bytes_sent = 0
        self._group = group
        self._passes: dict[int, _Pass] = {}  # by id of the manager, the last backward of each

    def begin(self, manager: GradManager) -> None:
        """Look at what is attached."""
        self._settle()
        group = _world.group(self._group)
        if group.size == 1 and group.rank == 0:
            return
        run = manager.current_run()
        for t, name in run.attached(self).items():
            if run.chain(t).count(self) > 1:
                raise errors.DistributedError(
                    f"the callback of {self._name} is more than once in the chain of {describe(t, name)}; "
                    "attach it once"
                )
            if t.dtype.kind == "c":
                raise errors.DtypeError(
                    f"{self._name} sends real gradients; found {describe(t, name)}: use make_allreduce_cb"
                )
        self._passes[id(manager)] = _Pass(self, group, run)

    def __call__(self, t: Tensor, grad: Tensor) -> Any:
        """Take a gradient; return a future of what the ranks make of it."""
        found = self._passes.get(id(get_backwarding_grad_manager()))
        return grad if found is None else found.take(t, grad)

    def finish(self, manager: GradManager) -> None:
        """Exchange the gradients, unless some are still to come from other callbacks' futures."""
        found = self._passes.get(id(manager))
        if found is not None and not found.delayed():
            found.complete()

    def abort(self, manager: GradManager) -> None:
        """Forget what was taken, and tell the other ranks."""
        found = self._passes.pop(id(manager), None)
        if found is not None:
            found.cancel()

    def _settle(self) -> None:
        """Keep what the passes left that are over and did not fail."""
        for key, found in list(self._passes.items()):
            if found.run.is_over:
                del self._passes[key]
                self._keep(found)

    def _keep(self, found: _Pass) -> None:
        """Keep what a pass left that did not fail."""

    def _amount(self, found: _Pass, t: Tensor) -> Any:
        """Return what is to be sent of a parameter, as a flat array; None for nothing, which are zeros."""
        g = found.gradients.get(id(t))
        return None if g is None else g.reshape(-1)

    def _exchange(self, found: _Pass, amounts: list[Any]) -> tuple[Any, list[bool]]:
        """Return what all ranks have made of the amounts, flat, and of which parameters there is any."""
        raise NotImplementedError


class Float16Callback(_CompressedCallback):
    """See `make_float16_allreduce_cb`."""

    def _exchange(self, found: _Pass, amounts: list[Any]) -> tuple[Any, list[bool]]:
        share = 1 / found.group.size if self.reduce_method == "mean" else 1.0
        message = found.xp.zeros(found.size + len(amounts), np.float16)  # at the end, what was reached
        start = 0
        with np.errstate(over="ignore"):  # infinity, as is documented
            for k, (a, size) in enumerate(zip(amounts, found.sizes, strict=True)):
                if a is not None:
                    message[start : start + size] = a * a.dtype.type(share)
                    message[found.size + k] = 1
                start += size
        self.bytes_sent += message.nbytes
        found.group.start_half_sum(message, found.description).wait()
        return message, (message[found.size :] > 0).tolist()


class TopKCallback(_CompressedCallback):
    """See `make_topk_allreduce_cb`."""

    def __init__(self, fraction: float, reduce_method: str, error_feedback: bool, group: Group | None) -> None:
        super().__init__("make_topk_allreduce_cb", reduce_method, group)
        if not 0 < fraction <= 1:
            raise ValueError(f"make_topk_allreduce_cb: fraction must be above 0 and at most 1; found {fraction!r}")
        self.fraction = fraction
        self.error_feedback = error_feedback
        self._residuals: dict[int, tuple[weakref.ref[Tensor], Any]] = {}  # by id of the parameter

    def residual(self, t: Tensor) -> Any:
        """Return a copy of what was not sent yet of a parameter, an array of its shape."""
        self._settle()
        a = self._held(t)
        return libraries.namespace(t._array).zeros(t.shape, t.dtype) if a is None else a.reshape(t.shape).copy()

    def _held(self, t: Tensor) -> Any:
        known = self._residuals.get(id(t))
        return known[1] if known is not None and known[0]() is t else None

    def _keep(self, found: _Pass) -> None:
        self._residuals = {key: one for key, one in self._residuals.items() if one[0]() is not None}
        for ref, a in found.left:
            t = ref()
            if t is not None and a.any():
                self._residuals[id(t)] = ref, a
            elif t is not None:  # else a parameter that no rank reaches would receive zeros
                self._residuals.pop(id(t), None)

    def _amount(self, found: _Pass, t: Tensor) -> Any:
        g = super()._amount(found, t)
        e = self._held(t) if self.error_feedback and found.receives(t) else None
        return e if g is None else g if e is None else e + g

    def _exchange(self, found: _Pass, amounts: list[Any]) -> tuple[Any, list[bool]]:
        xp, group = found.xp, found.group
        dtype = np.result_type(np.float32, *[t.dtype for t in found.tensors])
        parts = [
            xp.zeros(size, dtype) if a is None else a.astype(dtype)
            for a, size in zip(amounts, found.sizes, strict=True)
        ]
        total = xp.concatenate(parts)
        chosen = self._choose(xp, total)
        columns = [chosen, total[chosen], xp.asarray([a is not None for a in amounts], np.uint8)]
        message = xp.concatenate([c.view(np.uint8) for c in columns])
        self.bytes_sent += message.nbytes
        everyones = group.all_gather(message, found.description)
        first, second = chosen.nbytes, chosen.nbytes + chosen.size * dtype.itemsize
        result = xp.zeros(found.size, dtype)
        is_finite = True
        for row in everyones:  # in the order of the ranks, so that all of them find the same bits
            # copies, as their memory may not be aligned for their dtype
            values = row[first:second].copy().view(dtype)
            result[row[:first].copy().view(chosen.dtype)] += values
            is_finite = is_finite and bool(xp.isfinite(values).all())
        if self.reduce_method == "mean":
            result /= group.size
        if self.error_feedback and is_finite:  # else a scaler skips the step, so the residuals must not have it
            total[chosen] = 0
            found.leave(total, amounts)
        return result, everyones[:, second:].any(axis=0).tolist()

    def _choose(self, xp: Any, total: Any) -> Any:
        """Return the indices of the numbers of greatest magnitude; NaN is greater than all."""
        count = min(total.size, int(np.ceil(self.fraction * total.size)))
        size = np.int32 if total.size < 1 << 31 else np.int64
        if count == total.size:
            return xp.arange(count, dtype=size)
        return xp.argpartition(xp.abs(total), total.size - count)[total.size - count :].astype(size)


class _Pass:
    """One backward: the gradients that have come, and what becomes of them."""

    def __init__(self, callback: _CompressedCallback, group: Group, run: BackwardRun) -> None:
        self._callback_ref = weakref.ref(callback)  # weak, as it keeps this, its last backward
        self.group = group
        self.run = run
        names = run.attached(callback)
        self.tensors = list(names)
        self.sizes = [t.size for t in self.tensors]
        self.size = sum(self.sizes)
        self.xp = libraries.namespace(self.tensors[0]._array)
        lines = [f"{name!r}, {t.dtype}{t.shape}" if name else f"{t.dtype}{t.shape}" for t, name in names.items()]
        self._listing = "\n".join(lines)
        digest = blake2b(self._listing.encode(), digest_size=8).hexdigest()
        self.description = f", {_MARKER} of {len(lines)} parameters, {digest}"
        self.gradients: dict[int, Any] = {}  # by id of the parameter
        self.left: list[tuple[weakref.ref[Tensor], Any]] = []  # residuals, to be kept if the pass succeeds
        self._results: dict[int, Tensor] = {}
        self._is_complete = self._is_known = False  # whether all ranks know how it ended

    @property
    def _callback(self) -> _CompressedCallback:
        return self._callback_ref()  # type: ignore[return-value]  # alive, as the manager in backward keeps it so

    def receives(self, t: Tensor) -> bool:
        """Tell whether a parameter is to receive a gradient."""
        return self.run.inputs is None or t in self.run.inputs

    def take(self, t: Tensor, grad: Tensor) -> Any:
        """Keep a gradient."""
        check_takeable(grad)
        self.gradients[id(t)] = grad._array
        return _Future(self, t)

    def delayed(self) -> list[Tensor]:
        """Return the parameters whose gradients a future earlier in their chains still holds back."""
        return [t for t in self.run.pending(self._callback) if id(t) not in self.gradients]

    def complete(self) -> None:
        """Exchange the gradients, with zeros for parameters that were not reached."""
        if self._is_complete:
            return
        self._is_complete = True
        callback = self._callback
        for t in self.tensors:
            if id(t) not in self.gradients and self.receives(t):
                self.run.deliver(t, _Future(self, t), callback)
        flat, reached = self._explaining(callback, [callback._amount(self, t) for t in self.tensors])
        self.gradients.clear()
        start = 0
        for t, size, is_reached in zip(self.tensors, self.sizes, reached, strict=True):
            if is_reached:
                self._results[id(t)] = wrap(flat[start : start + size].astype(t.dtype).reshape(t.shape))
            start += size

    def _explaining(self, callback: _CompressedCallback, amounts: list[Any]) -> tuple[Any, list[bool]]:
        try:
            self._is_known = True
            return callback._exchange(self, amounts)
        except errors.DistributedError as error:
            failed = [
                rank for rank, text in zip(self.group.ranks, error.asked, strict=False) if text == FAILED_BACKWARD
            ]
            if failed:
                raise errors.DistributedError(failed_there(failed)) from None
            did = f"attached different parameters to {callback._name}"
            raise explained(error, self.group, _MARKER, self._listing, did) from None

    def leave(self, total: Any, amounts: list[Any]) -> None:
        """Note what was not sent of each parameter that had an amount."""
        start = 0
        for t, size, a in zip(self.tensors, self.sizes, amounts, strict=True):
            if a is not None:
                self.left.append((weakref.ref(t), total[start : start + size].copy()))
            start += size

    def result(self, t: Tensor) -> Tensor | None:
        """Return the gradient of a parameter; None if no rank has any."""
        if not self._is_complete:
            delayed = self.delayed()
            if delayed:
                raise errors.DistributedError(
                    f"{self._callback._name} waits for {describe(delayed[0])}, whose chain has another future before "
                    "it; attach the same chain to all parameters"
                )
            self.complete()
        return self._results.pop(id(t), None)

    def cancel(self) -> None:
        """Tell the ranks of a failure, in place of the message, so that none waits for it."""
        self.gradients.clear()
        self._results.clear()
        if not self._is_known:
            try:
                self.group.start_agree(FAILED_BACKWARD)
            except errors.DistributedError:  # the connection is lost, and the error that is raised already says more
                return


class _Future:
    """A gradient that is exchanged when all of them are there."""

    __slots__ = ("_found", "_tensor")

    def __init__(self, found: _Pass, t: Tensor) -> None:
        self._found = found
        self._tensor = t

    def get(self) -> Tensor | None:
        """Return the gradient, or None if no rank reached the parameter."""
        return self._found.result(self._tensor)
