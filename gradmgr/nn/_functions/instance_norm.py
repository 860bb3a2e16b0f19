"""instance_norm: each channel of each example by its own mean and variance."""

from __future__ import annotations

from typing import Any

from gradmgr import errors
from gradmgr._engine.tensor import raw
from gradmgr.nn._functions.arguments import one_array
from gradmgr.nn._functions.normalization import batch_norm, group_norm
from gradmgr.ops.shape import reshape, tile


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel of each example over all further axes, as torch.nn.functional.instance_norm.

    Ulyanov, Vedaldi, Lempitsky: Instance Normalization (2017).

    Args:
        input: (N, C, ...).
        running_mean: (C,), or None. With `use_input_stats` it is moved, without being recorded, towards the mean over
            the batch by `momentum`.
        running_var: the same for the unbiased variance.
        weight: (C,), or None.
        bias: (C,), or None.
        use_input_stats: whether to normalise by the mean and variance of the input; else by the running ones.
        momentum: the fraction of the running statistics that is replaced.
        eps: added to the variance.

    Returns:
        The shape of `input`; the dtype to which NumPy promotes input, weight and bias.

    Raises:
        ShapeError, DtypeError, TypeError, ValueError: as batch_norm.

    >>> import numpy as np
    >>> from gradmgr.nn import functional as F
    >>> F.instance_norm(np.array([[[1.0, 3.0]], [[10.0, 30.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]], [[-1.0, 1.0]]]
    """
    x = one_array(input)
    if x.ndim < 3:
        raise errors.ShapeError(f"instance_norm takes input (N, C, ...) with further axes; found shape {x.shape}")
    n, channels = x.shape[:2]
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    y = group_norm(x, channels, weight, bias, eps)
    if running_mean is not None or running_var is not None:
        # the statistics of each example as those of a channel of one example
        mean, var = (None if stat is None else tile(raw(stat), n) for stat in (running_mean, running_var))
        batch_norm(reshape(raw(x), (1, n * channels, *x.shape[2:])), mean, var, None, None, True, momentum, eps)
        for stat, moved in ((running_mean, mean), (running_var, var)):
            if moved is not None and n:
                stat[...] = moved.reshape((n, channels)).mean(0)
    return y
