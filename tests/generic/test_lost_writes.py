"""A write that NumPy would make through a view is right, or a LostWriteError: each destination, each way to a view."""

from __future__ import annotations

import gc
import inspect
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample, flat

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, checkpoint, errors, functional, no_grad, special, tensor, vmap

Program = Callable[[Any, Any], Any]

# ---------------------------------------------------------------- views

# By the name of a function in the table of samples: the shape of an array, and views of it of shape (2, 2).
VIEWS: dict[str, list[tuple[tuple[int, ...], Program]]] = {
    "Tensor.T": [((2, 2), lambda xp, u: u.T)],
    "Tensor.__getitem__": [
        ((3, 2), lambda xp, u: u[1:]),
        ((3, 2), lambda xp, u: u[:2]),
        ((3, 2), lambda xp, u: u[::-2]),
        ((2, 2), lambda xp, u: u[:]),
        ((2, 2), lambda xp, u: u[...]),
        ((2, 2), lambda xp, u: u[()]),
        ((3, 2, 2), lambda xp, u: u[1]),
        ((3, 2, 2), lambda xp, u: u[np.int64(-1)]),
        ((2, 3, 2), lambda xp, u: u[:, 1]),
        ((2, 2, 3), lambda xp, u: u[..., 1]),
        ((2, 2), lambda xp, u: u[None, :, :, None][0, ..., 0]),
        ((4, 40, 2), lambda xp, u: u[2, 1:3]),  # a piece that is small beside the whole
        ((5, 5), lambda xp, u: u[1:][1:, 1:][:2, ::2]),
        ((3, 2, 2), lambda xp, u: next(iter(u))),
        ((2, 2, 2), lambda xp, u: next(first for first, _ in [u])),
        ((12, 2, 2), lambda xp, u: list(u)[3]),
    ],
    "Tensor.conj": [((2, 2), lambda xp, u: u.conj())],
    "Tensor.conjugate": [((2, 2), lambda xp, u: u.conjugate())],
    "Tensor.mT": [((2, 2), lambda xp, u: u.mT)],
    "Tensor.ravel": [((2, 2, 2), lambda xp, u: u.ravel()[2:6].reshape(2, 2))],
    "Tensor.real": [((2, 2), lambda xp, u: u.real)],
    "Tensor.reshape": [((4,), lambda xp, u: u.reshape(2, 2)), ((4,), lambda xp, u: u.reshape((2, -1), order="F"))],
    "Tensor.squeeze": [((2, 1, 2), lambda xp, u: u.squeeze())],
    "Tensor.swapaxes": [((2, 2), lambda xp, u: u.swapaxes(0, 1))],
    "Tensor.to": [((2, 2), lambda xp, u: u if xp is np else u.to("cpu"))],
    "Tensor.to_device": [((2, 2), lambda xp, u: u.to_device("cpu"))],
    "Tensor.transpose": [((2, 2), lambda xp, u: u.transpose(1, 0))],
    "array_split": [((5, 2), lambda xp, u: xp.array_split(u, 3)[1])],
    "atleast_1d": [((2, 2), lambda xp, u: xp.atleast_1d(u))],
    "atleast_2d": [((2, 2), lambda xp, u: xp.atleast_2d(u)), ((4,), lambda xp, u: xp.atleast_2d(u).reshape(2, 2))],
    "atleast_3d": [((2, 2), lambda xp, u: xp.atleast_3d(u)[:, :, 0])],
    "broadcast_arrays": [((2, 2), lambda xp, u: xp.broadcast_arrays(u, np.ones((2, 2)))[0])],
    "diff": [((2, 2), lambda xp, u: xp.diff(u, 0))],
    "dsplit": [((2, 2, 2), lambda xp, u: xp.dsplit(u, 2)[1][..., 0])],
    "einsum": [((2, 2, 2), lambda xp, u: xp.einsum("iij->ij", u)), ((2, 2), lambda xp, u: xp.einsum("ij->ji", u))],
    "expand_dims": [((2, 2), lambda xp, u: xp.expand_dims(u, 0)[0])],
    "fft.fftn": [((2, 2), lambda xp, u: u)],  # over no axes
    "flip": [((2, 2), lambda xp, u: xp.flip(u)), ((2, 2), lambda xp, u: xp.flip(u, 1))],
    "fliplr": [((2, 2), lambda xp, u: xp.fliplr(u))],
    "flipud": [((2, 2), lambda xp, u: xp.flipud(u))],
    "hsplit": [((2, 4), lambda xp, u: xp.hsplit(u, 2)[1])],
    "ix_": [((4,), lambda xp, u: xp.reshape(xp.ix_(u)[0], (2, 2)) if xp is np else u.reshape(2, 2))],
    "linalg.matrix_power": [((2, 2), lambda xp, u: xp.linalg.matrix_power(u, 1))],
    "linalg.matrix_transpose": [((2, 2), lambda xp, u: xp.linalg.matrix_transpose(u))],
    "matrix_transpose": [((2, 2), lambda xp, u: xp.matrix_transpose(u))],
    "meshgrid": [((4,), lambda xp, u: xp.meshgrid(u, u, copy=False)[0][0].reshape(2, 2))],
    "moveaxis": [((2, 2), lambda xp, u: xp.moveaxis(u, 0, 1))],
    "nn.dropout": [((2, 2), lambda xp, u: u)],  # not in training
    "permute_dims": [((2, 2), lambda xp, u: xp.permute_dims(u, (1, 0)))],
    "ravel": [((2, 2), lambda xp, u, k=k: xp.ravel(u, k).reshape(2, 2)) for k in "CK"],
    "real": [((2, 2), lambda xp, u: xp.real(u))],
    "real_if_close": [((2, 2), lambda xp, u: xp.real_if_close(u))],
    "reshape": [((4,), lambda xp, u: xp.reshape(u, (2, 2))), ((2, 2), lambda xp, u: xp.reshape(u, (2, 2), copy=False))],
    "rollaxis": [((2, 2), lambda xp, u: xp.rollaxis(u, 1))],
    "rot90": [((2, 2), lambda xp, u, k=k: xp.rot90(u, k)) for k in range(4)],
    "split": [((4, 2), lambda xp, u: xp.split(u, 2)[0])],
    "squeeze": [((1, 2, 2), lambda xp, u: xp.squeeze(u)), ((2, 2), lambda xp, u: xp.squeeze(u))],
    "swapaxes": [((2, 2), lambda xp, u: xp.swapaxes(u, 0, 1))],
    "transpose": [((2, 2), lambda xp, u: xp.transpose(u)), ((2, 2, 1), lambda xp, u: xp.transpose(u, (2, 0, 1))[0])],
    "unstack": [((2, 2, 3), lambda xp, u: xp.unstack(u, axis=2)[1])],
    "vsplit": [((4, 2), lambda xp, u: xp.vsplit(u, 2)[1])],
    # Functions that make a copy where they must, which have no sample where they do not.
    "asarray": [((2, 2), lambda xp, u: xp.asarray(u))],
    "array": [((2, 2), lambda xp, u, n=n: xp.array(u, ndmin=n, copy=None).reshape(2, 2)) for n in (2, 3)],
    "ascontiguousarray": [((2, 2), lambda xp, u: xp.ascontiguousarray(u))],
    "Tensor.astype": [((2, 2), lambda xp, u: u.astype(u.dtype, copy=False))],
    "trim_zeros": [((5,), lambda xp, u: xp.trim_zeros(u)[:4].reshape(2, 2))],
    "Tensor.view of a view": [((4, 3, 2), lambda xp, u: xp.moveaxis(u[1:][1:], 2, 0)[:, :, 1])],
}
MAKERS = [(f"{name} {k}", *made) for name, views in VIEWS.items() for k, made in enumerate(views)]


def by_numpy(sample: Sample) -> tuple[list[Any], list[Any]]:
    """Return arguments and results of a sample that writes nothing; none if NumPy does not have the function."""
    arrays = sample.make()
    if sample.writes or sample.name.startswith("engine."):
        return arrays, []
    try:
        return arrays, flat(sample.expected(*arrays))
    except (AttributeError, TypeError, ValueError):
        return arrays, []


def test_every_function_that_makes_a_view_is_in_the_table() -> None:
    found = set()
    for sample in SAMPLES:
        arrays, made = by_numpy(sample)
        with warnings.catch_warnings(action="ignore"):  # of NumPy: that broadcast_arrays will be read-only
            made = [z for z in made if isinstance(z, np.ndarray) and z.size and z.flags.writeable]
        if any(np.shares_memory(z, a) for z in made for a in arrays):
            found.add(sample.name)
    assert found - set(VIEWS) == set()


def test_what_numpy_copies_can_be_written_to_and_the_arguments_stay() -> None:
    for sample in SAMPLES:
        arrays, made = by_numpy(sample)
        if not made:
            continue
        points = [tensor(a) for a in arrays]
        given = [a if arg.constant else t for arg, a, t in zip(sample.args, arrays, points, strict=True)]
        for z, e in zip(flat(sample.call(gnp, *given)), made, strict=True):
            is_new = isinstance(e, np.ndarray) and e.ndim and e.size and not any(np.shares_memory(e, a) for a in arrays)
            if is_new and isinstance(z, Tensor):
                z[...] = 0
        for t, a in zip(points, sample.make(), strict=True):
            np.testing.assert_array_equal(t.numpy(), a, str(sample))


# ---------------------------------------------------------------- destinations

# What functions with out= are called with so that the result has shape (2, 2): of a matrix m.
ARGUMENTS: list[Callable[[np.ndarray], tuple[Any, ...]]] = [
    lambda m: (m,),
    lambda m: (m, m),
    lambda m: (m, 0),
    lambda m: (m, {"axis": 0}),
    lambda m: (np.stack([m, m]), 0),
    lambda m: ([m[:1], m[1:]],),
    lambda m: ([m[0], m[1]],),
    lambda m: (np.stack([m, m]), 0.5, 0),
    lambda m: (m, [0, 1], 0),
    lambda m: ([True, True], m, 0),
    lambda m: ([[0, 1], [1, 0]], [m, m]),
    lambda m: ("ij->ji", m),
    lambda m: (m[0], m[1]),
    lambda m: (np.stack([m, m]), np.stack([m, m])[..., 0]),
    lambda m: (np.stack([[m, m], [m, m]]),),
    lambda m: ([m, m],),
    lambda m: (m, 0, 2),
    lambda m: (m, m, m),
    lambda m: (np.stack([m, m]), np.stack([m, m])),
    lambda m: (m.astype(int), m),
    lambda m: (m[:, :1] * np.ones(1), 2),
    lambda m: (m[:, :1] * np.ones(1), (2, 2)),
    lambda m: (m, m, m, m),
    lambda m: (m / 4, m / 4),
]
OF_DATES = {"busday_count", "busday_offset", "is_busday", "isnat"}
NAMESPACES = {"": gnp, "linalg.": gnp.linalg, "fft.": gnp.fft, "special.": special}


def functions_with_out() -> Iterator[tuple[str, Any]]:
    for prefix, namespace in NAMESPACES.items():
        for name in namespace.__all__:
            function = getattr(namespace, name)
            if not callable(function) or isinstance(function, type) or name in OF_DATES:
                continue
            try:
                keywords = inspect.signature(function).parameters
            except ValueError:  # of a function of NumPy's that reads files
                continue
            if "out" in keywords:
                yield prefix + name, function


def call_with_out(function: Any) -> tuple[Callable[[Any], Any], np.dtype[Any]] | None:
    """Return what calls a function so that it writes to its argument, and the dtype for that; found by trying."""
    for dtype in (float, int, complex):
        for arguments in ARGUMENTS:
            try:
                with np.errstate(all="ignore"):
                    args = arguments(np.array([[1, 2], [3, 4]], dtype))
                    keywords = args[-1] if isinstance(args[-1], dict) else {}
                    args = args[: len(args) - bool(keywords)]
                    made = function(*args, **keywords)
                    several = isinstance(made, tuple)
                    first = np.asarray(made[0] if several else made)
                    if first.shape != (2, 2):
                        continue

                    def call(v: Any, args: Any = args, keywords: Any = keywords, several: bool = several) -> Any:
                        return function(*args, **keywords, out=(v, None) if several else v)

                    call(np.empty((2, 2), first.dtype))
            except Exception:  # noqa: S112  # not what this function is called with
                continue
            return call, first.dtype
    return None


WITH_OUT = {name: call_with_out(function) for name, function in functions_with_out()}
FLOAT = np.dtype(float)

# By the name of a function or method: writes to a matrix.
WRITES: dict[str, list[Callable[[Any], Any]]] = {
    "Tensor.__setitem__": [
        lambda v: v.__setitem__(0, 7),
        lambda v: v.__setitem__((1, 0), 7),
        lambda v: v.__setitem__(..., [7, 8]),
        lambda v: v.__setitem__([1, 0], 7),
        lambda v: v.__setitem__([[True, False], [False, True]], 7),
    ],
    "Tensor.fill": [lambda v: v.fill(7)],
    "Tensor.flat": [lambda v: v.flat.__setitem__(2, 7), lambda v: setattr(v, "flat", [7, 8])],
    "Tensor.partition": [lambda v: v.partition(1)],
    "Tensor.put": [lambda v: v.put([0, 3], [7, 8])],
    "Tensor.sort": [lambda v: v.sort(), lambda v: v.sort(0)],
    "copyto": [lambda v: gnp.copyto(v, 7), lambda v: gnp.copyto(v, [7, 8], where=[True, False])],
    "put": [lambda v: gnp.put(v, 1, 7)],
    "put_along_axis": [lambda v: gnp.put_along_axis(v, np.array([[1], [0]]), 7, 1)],
    "place": [lambda v: gnp.place(v, np.eye(2, dtype=bool), [7, 8])],
    "putmask": [lambda v: gnp.putmask(v, np.eye(2, dtype=bool), 7)],
    "fill_diagonal": [lambda v: gnp.fill_diagonal(v, 7)],
    "nan_to_num": [lambda v: gnp.nan_to_num(v, copy=False)],
    **{
        name: [lambda v, name=name: getattr(gnp, name).at(v, ([0, 0], [1, 1]), 2)]
        for name in ("add", "subtract", "multiply", "divide", "maximum", "power")
    },
    "sin": [lambda v: gnp.sin.at(v, 0)],
    "operators": [
        lambda v, change=change: change(v, 2)
        for change in (
            operator.iadd,
            operator.isub,
            operator.imul,
            operator.itruediv,
            operator.ifloordiv,
            operator.ipow,
        )
    ],
    "remainder": [lambda v: operator.imod(v, 2)],
    "matrix product": [lambda v: operator.imatmul(v, np.array([[1, 2], [3, 4]]))],
}
DESTINATIONS: list[tuple[str, Callable[[Any], Any], np.dtype[Any]]] = [
    *[(f"{name}(out=)", *found) for name, found in WITH_OUT.items() if found is not None],
    *[(name, write, FLOAT) for name, writes in WRITES.items() for write in writes],
    *[
        (change.__name__, lambda v, change=change: change(v, 1), np.dtype(int))
        for change in (operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift)
    ],
]


def test_every_destination_is_in_the_table() -> None:
    assert [name for name, found in WITH_OUT.items() if found is None] == []
    writes_to_a_new_array = {"insert", "pad", "piecewise"}
    assert {sample.name for sample in SAMPLES if sample.writes} - set(WRITES) == writes_to_a_new_array


def whole(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 5 + 1).reshape(shape).astype(dtype)


@pytest.mark.parametrize("mode", ["idle", "recording", "twice"])
@pytest.mark.parametrize(("shape", "view"), [made[1:] for made in MAKERS], ids=[made[0] for made in MAKERS])
def test_a_write_through_a_view_reaches_the_whole_or_raises(shape: tuple[int, ...], view: Program, mode: str) -> None:
    for dtype in {dtype for _, _, dtype in DESTINATIONS}:
        before = whole(shape, dtype)
        u = tensor(before)
        with ExitStack() as stack:
            if dtype.kind in "fc":
                for _ in range(["idle", "recording", "twice"].index(mode)):
                    stack.enter_context(GradManager().attach(u))
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                v = view(gnp, u)
                for name, write, wanted in DESTINATIONS:
                    if wanted != dtype or (mode == "twice" and name.endswith("(out=)")):
                        continue  # what differs between the modes is how the view is made
                    try:
                        write(v)
                    except errors.LostWriteError:
                        np.testing.assert_array_equal(u.numpy(), before, name)
                        continue
                    expected = before.copy()
                    write(view(np, expected))
                    np.testing.assert_array_equal(u.numpy(), expected, name)
                    u[...] = before
                    v = view(gnp, u)


@pytest.mark.parametrize(("shape", "view"), [made[1:] for made in MAKERS], ids=[made[0] for made in MAKERS])
def test_where_the_whole_is_gone_a_write_is_that_of_numpy(shape: tuple[int, ...], view: Program) -> None:
    for recording in (False, True):
        for name, write, dtype in DESTINATIONS[-20:]:
            x = tensor(whole(shape, dtype))
            with GradManager().attach(x) if recording and dtype.kind == "f" else no_grad():
                v = view(gnp, x * 1)
                write(v)
            with warnings.catch_warnings(action="ignore"):
                expected = view(np, whole(shape, dtype))
                write(expected)
            np.testing.assert_array_equal(v.numpy(), expected, name)
            np.testing.assert_array_equal(x.numpy(), whole(shape, dtype))


# ---------------------------------------------------------------- statements

# Statements that write to u, a matrix of three rows and four columns, as they do in NumPy.
RIGHT = [
    "u[1:, :2] {} 2.0",
    "u[0] {} u[1]",
    "u[0, 1] {} 2.0",
    "u[..., 0] {} [2.0, 3.0, 4.0]",
    "u[::-1] {} 2.0",
    "u[[0, 2]] {} 2.0",
    "u[u > 5] {} 2.0",
    "u[:] {} u",
    "u {} u[0]",
    "for i in range(3): u[i] {} u[i].sum()",
    "i = 1\nwhile i < 3:\n    u[i, 1:] {} i\n    i += 1",
    "holder.u[1:] {} 2.0",
    "parts['u'][1:] {} 2.0",
    "rows = [u[0].copy()]\nrows[0] {} 2.0\nu[0] = rows[0]",
    "def write(u, i):\n    u[i] = change(u[i], 2.0)\nwrite(u, (slice(1, 3), 0))",
    "u.reshape(-1).copy()[1:] {} 2.0",
    "(u * 1)[1:] {} 2.0",
    "inner = (u * 1)[1:]\ninner {} 2.0\nu[1:] = inner",
    "x = u * 1\nx = x[1:]\nx {} 2.0\nu[1:] = x",
]
# Those that NumPy writes to u by another name.
LOST = [
    "inner = u[1:-1]\ninner {} 2.0",
    "for row in u: row {} 2.0",
    "for k, row in enumerate(u): row {} k + 1.0",
    "a, b, c = u\nb {} 2.0",
    "rows = list(u)\nrows[1] {} 2.0",
    "rows = [u[0], u[1]]\nrows[0] {} 2.0",
    "parts['row'] = u[1]\nparts['row'] {} 2.0",
    "holder.row = u[1]\nholder.row {} 2.0",
    "u[0][1:] {} 2.0",
    "u.T[0] {} 2.0",
    "u.ravel()[3:] {} 2.0",
    "u.T[0][1] = 2.0",
    "u[0][1] = 2.0",
    "u[0][1:][2] = 2.0",
    "change(u[1:], 2.0)",
    "held = change(u[1:], 2.0)",
    "w = u * 0\nw[1:] = change(u[1:], 2.0)",
    "def write():\n    inner = u[1:]\n    inner {} 2.0\nwrite()",
    "def write(inner):\n    inner {} 2.0\nwrite(u[1:])",
    "def write():\n    v = u[1:]\n    def inside():\n        nonlocal v\n        v {} 2.0\n    inside()\nwrite()",
    "global_u = u[1:]\ndef write():\n    global global_u\n    global_u {} 2.0\nwrite()",
    "[write for write in [lambda v: change(v, 2.0)]][0](u[1:])",
    "v = u[:, 1:]\ndel_u = [u]\ndel u\nv {} 2.0\nu = del_u[0]",
]
SYMBOLS = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv, "**=": operator.ipow}


class Holder:
    """Has attributes."""


def run(statement: str, symbol: str, u: Any) -> Any:
    """Return u after a statement."""
    holder = Holder()
    holder.u = u
    names = {"u": u, "parts": {"u": u}, "holder": holder, "change": SYMBOLS[symbol]}
    exec(statement.format(symbol), names)  # noqa: S102  # the statements above
    return names["u"]


MATRIX = np.linspace(0.5, 2.5, 12).reshape(3, 4)


@pytest.mark.parametrize("symbol", SYMBOLS)
@pytest.mark.parametrize("statement", RIGHT)
def test_a_statement_that_assigns_to_an_item_is_a_write(statement: str, symbol: str) -> None:
    expected = run(statement, symbol, MATRIX.copy())
    u = tensor(MATRIX)
    assert run(statement, symbol, u) is u
    np.testing.assert_allclose(u.numpy(), expected, rtol=1e-14)

    def program(x: Any) -> Any:
        return run(statement, symbol, x * 1)

    weights, h = np.cos(np.arange(12.0)).reshape(3, 4), 1e-6
    along = np.sin(np.arange(12.0) + 1).reshape(3, 4)
    slope = (weights * (program(MATRIX + h * along) - program(MATRIX - h * along))).sum() / (2 * h)
    x = tensor(MATRIX)
    gm = GradManager().attach(x)
    with gm:
        y = program(x)
        gm.backward((y * weights).sum())
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-14)
    np.testing.assert_allclose((x.grad.numpy() * along).sum(), slope, rtol=1e-6)
    mapped = vmap(program)(tensor(np.stack([MATRIX, 2 * MATRIX]))) if "u > 5" not in statement else None
    if mapped is not None:
        np.testing.assert_allclose(mapped.numpy()[0], expected, rtol=1e-14)
    found = functional.grad(lambda x: (program(x) * weights).sum())(tensor(MATRIX))
    np.testing.assert_allclose(found.numpy(), x.grad.numpy(), rtol=1e-12)
    again = functional.grad(lambda x: (checkpoint(program, x) * weights).sum())(tensor(MATRIX))
    np.testing.assert_allclose(again.numpy(), x.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("statement", LOST)
def test_a_statement_that_numpy_writes_through_a_view_raises(statement: str) -> None:
    for symbol in SYMBOLS:
        assert (run(statement, symbol, MATRIX.copy()) != MATRIX).any(), "NumPy writes to it"
        u = tensor(MATRIX)
        with pytest.raises(errors.LostWriteError):
            run(statement, symbol, u)
        np.testing.assert_array_equal(u.numpy(), MATRIX)
        gm = GradManager().attach(u)
        with gm:
            y = u * u
            with pytest.raises(errors.LostWriteError):
                run(statement, symbol, u)
            with pytest.raises(errors.LostWriteError):
                run(statement, symbol, y)
            gm.backward(y.sum())  # as if nothing had been
        np.testing.assert_allclose(u.grad.numpy(), 2 * MATRIX)
        with pytest.raises(errors.LostWriteError):
            functional.grad(lambda x, symbol=symbol: run(statement, symbol, x).sum())(tensor(MATRIX))
        with pytest.raises(errors.LostWriteError):
            vmap(lambda x, symbol=symbol: run(statement, symbol, x))(tensor([MATRIX, MATRIX]))


@pytest.mark.parametrize(
    ("write", "advice"),
    [
        (lambda u: u[0].__setitem__(1, 2.0), r"u\[0, 1\] = v in place of u\[0\]\[1\] = v"),
        (lambda u: u[1:, 0].__iadd__(2.0), r"write u\[1:, 0\] \+= y"),
        (lambda u: u[..., ::2].__imul__(2.0), r"write u\[\.\.\., ::2\] \*= y"),
        (lambda u: gnp.exp(u[0], out=u[0]), r"exp\(out=\.\.\.\) .*as in u\[0\] = "),
        (lambda u: u.T.sort(), r"sort\(\) .* a Tensor of shape \(3, 4\).*as in u\[index\] = "),
    ],
)
def test_the_error_says_what_to_write(write: Callable[[Tensor], Any], advice: str) -> None:
    u = tensor(MATRIX)
    with pytest.raises(errors.LostWriteError, match=advice) as caught:
        write(u)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, errors.GradmgrError)


def test_a_loop_that_takes_slices_of_slices_keeps_nothing() -> None:
    x = tensor(np.arange(3000.0))
    for _ in range(1000):
        x = x[1:]
    depth, links = 0, x._view_of
    while links:
        depth, links = depth + 1, links[1]
    assert depth == 1
    x += 1  # all that it was made of is gone
    assert x.tolist() == list(np.arange(1001.0, 3001.0))


def test_a_whole_that_only_garbage_holds_is_gone() -> None:
    """The variables of a recursive inner function hold each other until the collector runs."""

    def rows_from(k: int) -> Tensor:
        u = tensor(MATRIX)

        def rest(n: int) -> Tensor:
            return u[k:] if n == k else rest(n + 1)

        return rest(0)

    gc.disable()
    try:
        v = rows_from(1)
        v += 1
        v[0] = 0
    finally:
        gc.enable()
    expected = MATRIX[1:] + 1
    expected[0] = 0
    np.testing.assert_array_equal(v.numpy(), expected)


def test_other_writes_to_a_view_of_a_tensor_raise() -> None:
    from gradmgr import optim
    from gradmgr.nn import functional as F  # noqa: N812  # as in PyTorch

    u = tensor(np.ones((2, 3)))
    with pytest.raises(errors.LostWriteError, match="give u to the optimiser"):
        optim.SGD([u[0]], lr=0.1)
    with pytest.raises(errors.LostWriteError, match="batch_norm"):
        F.batch_norm(tensor(np.ones((4, 3))), u[0], u[1], training=True)
    np.testing.assert_array_equal(u.numpy(), np.ones((2, 3)))


def test_writes_keep_the_order_of_axes_in_memory() -> None:
    """On which depends whether reshape makes a view."""
    for order in "CF":
        for other in "CF":
            b = np.asarray(MATRIX, order=other)
            for write in (
                lambda xp, x, b=b: operator.iadd(x, b),
                lambda xp, x, b=b: xp.multiply(b, b, out=x),
                lambda xp, x, b=b: xp.einsum("ij->ij", b, out=x),
                lambda xp, x, b=b: x.__setitem__(..., b),
                lambda xp, x, b=b: x.sort(0),
            ):
                x = tensor(np.array(MATRIX, order=order))
                expected = np.array(MATRIX, order=order)
                with GradManager().attach(x) if other == order else no_grad():
                    write(gnp, x)
                write(np, expected)
                np.testing.assert_array_equal(x.numpy(), expected)
                assert x.numpy().strides == expected.strides
