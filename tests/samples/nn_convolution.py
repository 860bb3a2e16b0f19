"""Samples of convolutions, against sums written as loops over the taps of a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from samples._table import ANALYTIC, Arg, Array, add, given


def _wide(*arrays: Array | None) -> list[Any]:
    return [a.astype(np.float32) if a is not None and a.dtype.itemsize <= 2 else a for a in arrays]


def padded(x: Array, padding: Any, value: float = 0) -> Array:
    """The plane with as much of a value on each side; pairs name both sides of both axes."""
    sides = padding if isinstance(padding[0], tuple) else tuple((n, n) for n in padding)
    return np.pad(x, ((0, 0), (0, 0), *sides), constant_values=value)


def conv(x: Array, w: Array, b: Array | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Cross-correlate planes, one tap after the other."""
    dtype = x.dtype
    x, w, b = _wide(x, w, b)
    x = padded(x, padding)
    rows, columns = ((x.shape[k] - dilation[k - 2] * (w.shape[k] - 1) - 1) // stride[k - 2] + 1 for k in (2, 3))
    inputs, outputs = w.shape[1], w.shape[0] // groups
    z = np.zeros((x.shape[0], w.shape[0], rows, columns), np.result_type(x, w))
    for o in range(w.shape[0]):
        of_group = x[:, o // outputs * inputs :][:, :inputs]
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                top, left = i * dilation[0], j * dilation[1]
                seen = of_group[:, :, top : top + rows * stride[0] : stride[0], left : left + columns * stride[1]]
                seen = seen[..., : (columns - 1) * stride[1] + 1 : stride[1]][:, :, :rows]
                z[:, o] += np.tensordot(seen, w[o, :, i, j], (1, 0))
    return (z if b is None else z + b[:, None, None]).astype(dtype)


def conv_transpose(
    x: Array, w: Array, b: Array | None, stride: Any, padding: Any, more: Any, groups: int, dilation: Any
) -> Array:
    """Put a kernel into the result for each number, one tap after the other, and cut the edges off."""
    dtype = x.dtype
    x, w, b = _wide(x, w, b)
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    rows, columns = x.shape[2:]
    full = [
        (n - 1) * stride[k] + dilation[k] * (w.shape[2 + k] - 1) + more[k] + 1 for k, n in enumerate((rows, columns))
    ]
    z = np.zeros((x.shape[0], outputs * groups, *full), np.result_type(x, w))
    for c in range(x.shape[1]):
        first = c // inputs * outputs
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                top, left = i * dilation[0], j * dilation[1]
                into = z[:, first : first + outputs, top:, left:][:, :, :: stride[0], :: stride[1]][
                    :, :, :rows, :columns
                ]
                into += x[:, c, None] * w[c, :, i, j, None, None]
    z = z[:, :, padding[0] : full[0] - padding[0], padding[1] : full[1] - padding[1]]
    return (z if b is None else z + b[:, None, None]).astype(dtype)


def _lines(t: Array) -> Array:
    return t[..., None, :]


def _conv1d(x: Array, w: Array, b: Any = None, stride: int = 1, padding: int = 0, dilation: int = 1) -> Array:
    return conv(_lines(x), _lines(w), b, (1, stride), (0, padding), (1, dilation), 1)[:, :, 0]


def _conv_transpose1d(x: Array, w: Array, b: Any = None, stride: int = 1) -> Array:
    return conv_transpose(_lines(x), _lines(w), b, (1, stride), (0, 0), (0, 0), 1, (1, 1))[:, :, 0]


def _two(
    case: str,
    x: Arg,
    w: Arg,
    *b: Arg,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> None:
    sides: Any = {"padding": padding}
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        sides["padding"] = tuple((n // 2, n - n // 2) for n in total)
    add(
        "nn.conv2d",
        case,
        lambda xp, x, w, b=None: F.conv2d(x, w, b, stride, padding, dilation, groups),
        *(x, w, *b),
        reference=lambda x, w, b=None: conv(x, w, b, stride, sides["padding"], dilation, groups),
        dispatches=False,
        third=case.startswith("bias"),
        **ANALYTIC,
    )


_X, _W, _B = Arg((2, 2, 4, 3)), Arg((3, 2, 2, 3)), Arg((3,))
_two("plain", _X, _W)
_two("bias, stride, padding", _X, _W, _B, stride=(2, 1), padding=(1, 2))
_two("groups, dilation", Arg((1, 4, 4, 5)), Arg((2, 2, 2, 2)), dilation=(1, 3), groups=2)
_two("each channel by itself, same", Arg((1, 2, 3, 4)), Arg((2, 1, 3, 2)), Arg((2,)), padding="same", groups=2)
_two("pointwise", Arg((2, 4, 2, 3)), Arg((2, 2, 1, 1)), Arg((2,)), groups=2)
_two("constant weight", _X, given(np.linspace(-1, 1, 18).reshape(3, 2, 3, 1)))
_two("constant input", given(np.linspace(-1, 1, 24).reshape(1, 2, 4, 3)), _W, _B)
_two("empty batch", Arg((0, 2, 4, 3)), _W, _B)
add(
    "nn.conv2d",
    "without a batch",
    lambda xp, x, w: F.conv2d(x, w, padding=1),
    *(Arg((2, 3, 3)), Arg((1, 2, 2, 2))),
    reference=lambda x, w: conv(x[None], w, None, (1, 1), (1, 1), (1, 1), 1)[0],
    dispatches=False,
    **ANALYTIC,
)


def _transposed(
    case: str,
    x: Arg,
    w: Arg,
    *b: Arg,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    more: Any = (0, 0),
    groups: int = 1,
    dilation: Any = (1, 1),
) -> None:
    add(
        "nn.conv_transpose2d",
        case,
        lambda xp, x, w, b=None: F.conv_transpose2d(x, w, b, stride, padding, more, groups, dilation),
        *(x, w, *b),
        reference=lambda x, w, b=None: conv_transpose(x, w, b, stride, padding, more, groups, dilation),
        dispatches=False,
        third=case.startswith("bias"),
        **ANALYTIC,
    )


_transposed("plain", Arg((2, 3, 2, 3)), Arg((3, 2, 2, 2)))
_transposed(
    "bias, stride, paddings",
    Arg((1, 2, 3, 2)),
    Arg((2, 1, 3, 2)),
    Arg((1,)),
    stride=(2, 3),
    padding=(1, 0),
    more=(1, 2),
)
_transposed("groups, dilation", Arg((2, 2, 2, 2)), Arg((2, 2, 2, 3)), groups=2, dilation=(2, 1))

_LINE = Arg((2, 2, 6))
for _case, _call, _reference, _args in (
    ("plain", lambda x, w: F.conv1d(x, w), _conv1d, (_LINE, Arg((3, 2, 3)))),
    (
        "bias, all options",
        lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2),
        lambda x, w, b: _conv1d(x, w, b, 2, 1, 2),
        (_LINE, Arg((3, 2, 2)), Arg((3,))),
    ),
):
    add(
        "nn.conv1d",
        _case,
        lambda xp, *given, call=_call: call(*given),
        *_args,
        reference=_reference,
        dispatches=False,
        **ANALYTIC,
    )
add(
    "nn.conv_transpose1d",
    "bias, stride",
    lambda xp, x, w, b: F.conv_transpose1d(x, w, b, 2),
    *(Arg((2, 2, 3)), Arg((2, 3, 3)), Arg((3,))),
    reference=lambda x, w, b: _conv_transpose1d(x, w, b, 2),
    dispatches=False,
    **ANALYTIC,
)
