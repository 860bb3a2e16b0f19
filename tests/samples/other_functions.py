"""Functions of no other chapter: integers, tests, indices, windows, text and files; creation between tensors."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from gradmgr import Tensor
from samples._table import ANALYTIC, CONSTANTS, CREATION, SCALAR, VECTOR, Arg, add

POSITIVE = Arg((3,), low=0.5, high=2.0)

# ---------------------------------------------------------------- creation between tensors


def created(name: str, case: str, call: Any, *args: Arg, **facts: Any) -> None:
    """Enter a creation function, which gives Tensors for plain arrays, too."""
    add(name, case, call, *args, reference=lambda *arrays: call(np, *arrays), **facts)


created("linspace", "axis=-1", lambda xp, x, y: xp.linspace(x, y, 4, axis=-1), VECTOR, VECTOR, **ANALYTIC)
created("linspace", "rounded down", lambda xp, x: xp.linspace(x, 9, 4) + xp.linspace(x, 5, 3, dtype=int)[0], SCALAR)
created("logspace", "ends", lambda xp, x, y: xp.logspace(x, y, 4), VECTOR, VECTOR, **ANALYTIC, third=True)
created("logspace", "base", lambda xp, b: xp.logspace(0.5, 2, 3, base=b), Arg((), low=0.5), **ANALYTIC)
created(
    "logspace",
    "bases, axis=-1",
    lambda xp, x, b: xp.logspace(x, 2.0, 3, endpoint=False, base=b, axis=-1),
    VECTOR,
    Arg((4,), low=0.5),
    **ANALYTIC,
)
created("geomspace", "ends", lambda xp, x, y: xp.geomspace(x, y, 4), POSITIVE, POSITIVE, third=True)
created("geomspace", "axis=-1", lambda xp, x: xp.geomspace(x, 3.0, 4, endpoint=False, axis=-1), POSITIVE)
created("geomspace", "negative", lambda xp, x, y: xp.geomspace(x, y, 9), Arg((), -3, -1), Arg((), -3, -1))
created("geomspace", "one", lambda xp, x: xp.geomspace(x, 2.0, 1), POSITIVE)
created(
    "geomspace",
    "complex spirals",
    lambda xp, x, y: xp.geomspace(x, y, 4, dtype=np.complex128),
    POSITIVE,
    POSITIVE,
    field="complex",
)
created(
    "fromiter",
    "of tensors",
    lambda xp, x: xp.fromiter((v * v for v in x), x.dtype),
    VECTOR,
    dispatches=False,
    **ANALYTIC,
)
created(
    "fromiter",
    "count=",
    lambda xp, x: xp.fromiter((v * v for v in x), np.complex128, count=2),
    VECTOR,
    dispatches=False,
    field="complex",
)

# ---------------------------------------------------------------- functions whose results carry no gradient


def own(xp: Any, x: Any) -> Any:
    """Ours for Tensors, where NumPy's own function of the name does not dispatch."""
    return gnp if isinstance(x, Tensor) else xp


def letters(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def small(xp: Any, x: Any) -> Any:
    """Integers from 0 to 4."""
    return xp.astype(x + 2, np.int64)


CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(small(xp, x), small(xp, y))]
        for name in ("gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift")
    }
)
CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(small(xp, x))]
        for name in ("bitwise_count", "bitwise_invert", "bitwise_not")
    }
)
CONSTANTS.update(
    {
        name: [lambda xp, x, y, n=name: getattr(xp, n)(x), lambda xp, x, y, n=name: getattr(xp, n)(x + 1j)]
        for name in ("isreal", "iscomplex")
    }
)
CONSTANTS.update(
    {
        name: [
            lambda xp, x, y, n=name: getattr(xp, n)(xp.where(x > 0, np.inf, -np.inf)),
            lambda xp, x, y, n=name: getattr(xp, n)(x, xp.zeros_like(x, bool)),
        ]
        for name in ("isneginf", "isposinf")
    }
)
CONSTANTS.update(
    {
        "packbits": [
            lambda xp, x, y: xp.packbits(x > 0, axis=1, bitorder="little"),
            lambda xp, x, y: xp.packbits(y > 0),
        ],
        "unpackbits": [
            lambda xp, x, y: xp.unpackbits(xp.astype(small(xp, x), np.uint8), axis=-1, count=6),
            lambda xp, x, y: xp.unpackbits(xp.astype(small(xp, y), np.uint8), bitorder="little"),
        ],
        "isnat": [lambda xp, x, y: xp.isnat(np.array(["2001-01-01", "NaT"], "M8[D]"))],
        "isfortran": [lambda xp, x, y: own(xp, x).isfortran(x), lambda xp, x, y: own(xp, x).isfortran(x.T)],
        "array_equiv": [lambda xp, x, y: xp.array_equiv(x, x[None]), lambda xp, x, y: xp.array_equiv(x, y)],
        "ravel_multi_index": [
            lambda xp, x, y: xp.ravel_multi_index((small(xp, x), small(xp, y)), (5, 6)),
            lambda xp, x, y: xp.ravel_multi_index([small(xp, x) * 9, small(xp, y)], (5, 6), mode="clip", order="F"),
        ],
        "unravel_index": [lambda xp, x, y: xp.unravel_index(small(xp, x), (2, 3), order="F")],
        "tril_indices_from": [lambda xp, x, y: xp.tril_indices_from(x, k=1)],
        "triu_indices_from": [lambda xp, x, y: xp.triu_indices_from(x)],
        "diag_indices_from": [lambda xp, x, y: xp.diag_indices_from(x[:, :3])],
        "shares_memory": [lambda xp, x, y: xp.shares_memory(x, y)],
        "may_share_memory": [lambda xp, x, y: xp.may_share_memory(x, y)],
        "can_cast": [
            lambda xp, x, y: xp.can_cast(x, "float32"),
            lambda xp, x, y: xp.can_cast(x, np.float16, "same_kind"),
        ],
        "common_type": [lambda xp, x, y: xp.zeros(2, xp.common_type(x, np.float32(1), y))],
        "min_scalar_type": [lambda xp, x, y: xp.zeros(2, xp.min_scalar_type(x))],
        "mintypecode": [lambda xp, x, y: letters(own(xp, x).mintypecode([x, "f"]))],
        "busday_count": [lambda xp, x, y: xp.busday_count("2024-01", "2024-02")],
        "busday_offset": [lambda xp, x, y: xp.astype(xp.busday_offset("2024-01-01", small(xp, x)), np.int64)],
        "is_busday": [lambda xp, x, y: xp.is_busday(np.array(["2024-01-01", "2024-01-06"], "M8[D]"))],
        "datetime_as_string": [lambda xp, x, y: letters(str(xp.datetime_as_string(np.datetime64("2024-01-01"))))],
        "einsum_path": [lambda xp, x, y: letters(repr(xp.einsum_path("ij,kj,kl->il", x, y, x, optimize="optimal")))],
    }
)

# ---------------------------------------------------------------- text and files


def saved(xp: Any, name: str, *arrays: Any, **keywords: Any) -> Any:
    """What NumPy reads back from what a function wrote."""
    file = io.BytesIO()
    getattr(xp, name)(file, *arrays, **keywords)
    file.seek(0)
    found = np.loadtxt(file, delimiter=";") if name == "savetxt" else np.load(file)
    return [found[key] for key in sorted(found)] if isinstance(found, np.lib.npyio.NpzFile) else found


CONSTANTS.update(
    {
        "save": [lambda xp, x, y: saved(xp, "save", x), lambda xp, x, y: saved(own(xp, x), "save", [x, y])],
        "savez": [lambda xp, x, y: saved(xp, "savez", x, y, named=x)],
        "savez_compressed": [lambda xp, x, y: saved(xp, "savez_compressed", x, named=y, allow_pickle=False)],
        "savetxt": [lambda xp, x, y: saved(xp, "savetxt", x, delimiter=";", fmt="%.3e")],
        "array_repr": [
            lambda xp, x, y: letters(xp.array_repr(x, precision=2)),
            lambda xp, x, y: letters(xp.array_repr(x[0, :1])),
        ],
        "array_str": [lambda xp, x, y: letters(xp.array_str(x, 40))],
        "array2string": [lambda xp, x, y: letters(xp.array2string(x, separator="; ", threshold=3))],
        "format_float_positional": [
            lambda xp, x, y: letters(own(xp, x).format_float_positional(xp.sum(x) / 3, trim="-"))
        ],
        "format_float_scientific": [
            lambda xp, x, y: letters(own(xp, x).format_float_scientific(xp.sum(x), precision=3))
        ],
        "binary_repr": [lambda xp, x, y: letters(own(xp, x).binary_repr(small(xp, x)[0, 0], width=5))],
        "base_repr": [lambda xp, x, y: letters(own(xp, x).base_repr(small(xp, x)[0, 0], 3, padding=2))],
    }
)

# ---------------------------------------------------------------- creation functions


def text(*lines: str) -> io.StringIO:
    return io.StringIO("\n".join(lines))


def npy() -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, np.arange(6.0).reshape(2, 3))
    file.seek(0)
    return file


CREATION.update(
    {
        name: [lambda xp, n=name: getattr(xp, n)(7), lambda xp, n=name: getattr(xp, n)(1)]
        for name in ("bartlett", "blackman", "hamming", "hanning")
    }
)
CREATION.update(
    {
        "kaiser": [lambda xp: xp.kaiser(7, 8.6), lambda xp: xp.kaiser(5, beta=xp.asarray(3.0))],
        "logspace": [lambda xp: xp.logspace(0, 2, 5), lambda xp: xp.logspace([0, 1], 2, 4, False, 2.0, "float32", 1)],
        "geomspace": [lambda xp: xp.geomspace(1, 1000, 4), lambda xp: xp.geomspace(1j, [16j, 2], 4, axis=1)],
        "tril_indices": [lambda xp: xp.stack(xp.tril_indices(4, 1, 3))],
        "triu_indices": [lambda xp: xp.stack(xp.triu_indices(n=4, k=-1))],
        "diag_indices": [lambda xp: xp.stack(xp.diag_indices(3, ndim=3))],
        "mask_indices": [lambda xp: xp.stack(xp.mask_indices(3, xp.triu, 1))],
        "indices": [lambda xp: xp.indices((2, 3)), lambda xp: xp.indices((2, 3), dtype=float, sparse=True)[1]],
        "fromfunction": [lambda xp: xp.fromfunction(lambda i, j, k: i + k * j, (2, 3), dtype=int, k=2)],
        "frombuffer": [lambda xp: xp.frombuffer(np.arange(6.0).tobytes(), count=3, offset=8)],
        "fromstring": [lambda xp: xp.fromstring("1 2 3", dtype=np.float32, sep=" ")],
        "fromregex": [lambda xp: xp.fromregex(text("a 1", "b 2"), r"(\d+)", [("n", np.int64)])["n"] * xp.ones(2)],
        "genfromtxt": [lambda xp: xp.genfromtxt(text("1,2", ",4"), delimiter=",", filling_values=-1)],
        "loadtxt": [
            lambda xp: xp.loadtxt(text("1 2", "3 4")),
            lambda xp: xp.loadtxt(text("1 2", "3 4"), unpack=True)[1],
        ],
        "load": [lambda xp: xp.load(npy()), lambda xp: xp.load(npy(), allow_pickle=False)],
        "fromfile": [lambda xp: from_file(xp)],
        "fromiter": [lambda xp: xp.fromiter((k * k for k in range(4)), float), lambda xp: xp.fromiter([1, 2], "i4", 1)],
        "from_dlpack": [lambda xp: xp.from_dlpack(np.arange(3.0))],
    }
)


def from_file(xp: Any) -> Any:
    with tempfile.TemporaryFile() as file:
        np.arange(6.0).tofile(file)
        file.seek(0)
        return xp.fromfile(file, count=4)
