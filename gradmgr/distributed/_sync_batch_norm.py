"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any, Self, TypeGuard

import numpy as np

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.tape import add_root
from gradmgr.distributed._collectives import (
    current_group,
    gather_array,
    prepare_backward,
    total_of_derivative,
    tracking_text,
)
from gradmgr.distributed._group import Group
from gradmgr.distributed._world import group as resolve_group
from gradmgr.distributed._world import is_initialized
from gradmgr.nn._functions.normalization import normalise_batch
from gradmgr.nn._modules.module import Module
from gradmgr.nn._modules.normalization import BatchNorm


class SyncBatchNorm(BatchNorm):
    """BatchNorm whose statistics in training are those of the batches of all ranks; as torch.nn.SyncBatchNorm.

    Each rank calls it with its part of the batch, of any size, also empty; all ranks have the same number of these
    layers, and call them in the same order. Forward gathers mean, variance and count of the parts, in one message of
    2 C + 1 numbers; backward adds up the two sums by channel that BatchNorm's derivative needs, in one of 2 C. The
    result, its derivatives of every order and the running statistics are those of BatchNorm over the whole batch. The
    gradients of weight and bias are those of the rank's own part, as for every parameter: attach them with
    `make_allreduce_cb`. In evaluation, with one rank, and before `distributed.init()`, it is BatchNorm and sends
    nothing.

    It takes (N, C, ...). Where a rank tracks the input, all must; backward communicates on each rank, whatever its loss
    depends on.

    Args:
        num_features: C, the number of channels.
        eps: added to the variance.
        momentum: the fraction of the running statistics that a batch replaces; None for the mean over all batches.
        affine: whether to scale and shift.
        track_running_stats: whether to keep running statistics.
        process_group: the ranks whose batches are normalised together, from `new_group`; None for all.
        device: "cpu" or "cuda:0".
        dtype: the dtype of parameters and statistics; float32 by default.
        bias: whether to shift, where `affine`.

    Raises:
        TypeError: process_group is not a Group.
        ShapeError: in a call, there is only one value per channel on all ranks together; or as BatchNorm.
        DistributedError: in a call, the ranks called different functions.
        RankFailedError: in a call or in backward, another rank ended, or did not come in time.

    Parameters and buffers are BatchNorm's, so that its state_dict loads.

    >>> import numpy
    >>> from gradmgr import distributed
    >>> distributed.init("mpi")
    >>> layer = distributed.SyncBatchNorm(3)
    >>> layer(numpy.ones((8, 3, 4, 4), numpy.float32)).shape
    (8, 3, 4, 4)
    >>> distributed.finalize()
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Group | None = None,
        device: str | None = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        _check_group(process_group, "SyncBatchNorm")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _normalise(self, x: Any, *settings: Any) -> Any:
        """Normalise by the batches of all ranks, in training on several ranks."""
        if not self.training or (self.process_group is None and not is_initialized()):
            return super()._normalise(x, *settings)
        group = resolve_group(self.process_group)
        if group.size == 1:
            return super()._normalise(x, *settings)
        tracking = tracking_text(x)
        y = normalise_batch(_RankBatches(group, tracking), x, *settings)
        if tracking:  # the other ranks wait in backward
            prepare_backward(group)
            add_root(y)
        return y

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Group | None = None) -> Module:
        """Replace the batch norms in a module by SyncBatchNorm, as torch.nn.SyncBatchNorm.convert_sync_batchnorm.

        A layer is replaced if its `forward` is that of BatchNorm, which excludes instance norms and subclasses that
        compute something else. The new layers have the same Parameter and buffer objects, so that attachments and
        optimisers stay valid; hooks of the old ones are not carried over.

        Args:
            module: searched with all modules in it; they are replaced in place.
            process_group: see the class.

        Returns:
            The module itself, or the new layer where it is a batch norm.

        Raises:
            TypeError: `module` is not a Module, or process_group is not a Group.

        >>> from gradmgr import nn
        >>> from gradmgr.distributed import SyncBatchNorm
        >>> SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
        Sequential(
          (0): Linear(in_features=2, out_features=3, bias=True)
          (1): SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
        )
        """
        if not isinstance(module, Module):
            raise TypeError(f"convert_sync_batchnorm takes a Module; found {type(module).__name__}")
        _check_group(process_group, "convert_sync_batchnorm")
        made: dict[BatchNorm, SyncBatchNorm] = {}  # a layer that is in several places stays one
        if _is_batch_norm(module):
            return cls._of(module, process_group)
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if _is_batch_norm(child):
                    if child not in made:
                        made[child] = cls._of(child, process_group)
                    setattr(parent, name, made[child])
        return module

    @classmethod
    def _of(cls, layer: BatchNorm, process_group: Group | None) -> Self:
        """Return a new layer with the settings, parameters and buffers of another."""
        settings = layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
        made = cls(*settings, process_group, bias=layer.bias is not None)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(made, name, getattr(layer, name))
        return made.train(layer.training)


def _is_batch_norm(module: Module) -> TypeGuard[BatchNorm]:
    return isinstance(module, BatchNorm) and type(module).forward is BatchNorm.forward


def _check_group(group: Any, asked: str) -> None:
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"{asked}: process_group must come from distributed.new_group; found {type(group).__name__}")


class _RankBatches:
    """The batches of all ranks of a group."""

    def __init__(self, group: Group, tracking: str) -> None:
        self.group = group
        self.tracking = tracking

    def merge(self, mean: Any, var: Any, count: int) -> tuple[Any, Any, Any]:
        """Return mean, variance and count of the batches of all ranks, by one collective.

        The variance is that within the batches and that of their means, weighted by counts: no difference of large
        squares (Chan, Golub, LeVeque, 1983).
        """
        channels, xp = mean.shape[0], libraries.root(mean)
        own = np.concatenate([mean, var, xp.full((1,), count, mean.dtype)])
        of_ranks = gather_array(own, current_group(self.group), self.tracking)
        means, variances, counts = of_ranks[:, :channels], of_ranks[:, channels:-1], of_ranks[:, -1:]
        total = counts.sum(0)
        if count < 2 and not total > 1:  # with two of its own a rank need not look, which would wait for a GPU
            raise errors.ShapeError(
                f"SyncBatchNorm normalises over several values of each channel; found {int(total[0])} on "
                f"{self.group.size} ranks together; pass a larger batch"
            )
        share = counts / total
        of_all = (means * share).sum(0)
        apart = means - of_all
        return of_all, ((variances + apart * apart) * share).sum(0), total

    def total(self, sums: Any) -> Any:
        """Return the sums over all ranks."""
        return total_of_derivative(sums, self.group)
