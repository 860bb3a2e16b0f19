"""A Tensor without axes is a number, as NumPy's: no augmented assignment changes it, unless it is a variable."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from helpers import each_case, pop_grad
from samples import SAMPLES, Sample, flat

import gradmgr.numpy as gnp
from gradmgr import (
    Function,
    GradManager,
    Tensor,
    asarray,
    checkpoint,
    errors,
    forward_ad,
    from_dlpack,
    functional,
    grad,
    nn,
    no_grad,
    tensor,
    vmap,
)
from gradmgr import compile as compiled
from gradmgr.compat import autograd

OPERATORS = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}
OF_INTEGERS = {"&=", "|=", "^=", "<<=", ">>="}
SMOOTH = ["+=", "-=", "*=", "/=", "**="]

# Where numbers come from, of a namespace and a vector.
SOURCES: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda xp, x: x[1],
    "item by a NumPy integer": lambda xp, x: x[np.int64(1)],
    "item of a matrix": lambda xp, x: xp.stack([x, x])[1, 2],
    "item of an item": lambda xp, x: xp.stack([x, x])[1][2],
    "sum": lambda xp, x: xp.sum(x),
    "method sum": lambda xp, x: x.sum(),
    "max": lambda xp, x: xp.max(x),
    "builtin max": lambda xp, x: max(x),
    "builtin sum": lambda xp, x: sum(x),
    "dot": lambda xp, x: x @ x,
    "arithmetic": lambda xp, x: x[0] * 2 + x[1],
    "power": lambda xp, x: x[1] ** 2,
    "negative": lambda xp, x: -x[1],
    "absolute": lambda xp, x: abs(x[1]),
    "function": lambda xp, x: xp.square(x[1]),
    "iteration": lambda xp, x: next(iter(x)),
    "unpacking": lambda xp, x: next(last for _, _, last in [x]),
    "unpacking a star": lambda xp, x: next(rest for _, *rest in [x])[1],
    "argmax": lambda xp, x: xp.argmax(x),
    "count": lambda xp, x: xp.count_nonzero(x),
    "number of a number": lambda xp, x: x[1][()],
    "flat": lambda xp, x: x.flat[1],
    "copy of a number": lambda xp, x: x[1].copy(),
    "real part": lambda xp, x: x[1].real,
    "transpose of a number": lambda xp, x: x[1].T,
    "reshape of a number": lambda xp, x: x[1].reshape(()),
    "cast of a number": lambda xp, x: x[1].astype(x.dtype),
    "array of a number": lambda xp, x: xp.asarray(x[1]),
    "copied to an array": lambda xp, x: xp.array(x[1]),
    "Ellipsis of a number": lambda xp, x: x[1][...],
    "where": lambda xp, x: xp.where(x[0] > 9, x[0], x[1]),
    "zeros": lambda xp, x: xp.zeros((), x.dtype) + x[1],
}


def values(symbol: str) -> np.ndarray:
    return np.array([3, 5, 2]) if symbol in OF_INTEGERS else np.array([3.0, 5.0, 2.0])


@pytest.mark.parametrize("mode", ["idle", "no_grad", "recording", "twice"])
@pytest.mark.parametrize("source", SOURCES)
def test_other_names_of_a_number_are_what_they_are_in_numpy(source: str, mode: str) -> None:
    def program(xp: Any, x: Any, symbol: str) -> list[Any]:
        number = SOURCES[source](xp, x)
        alias, kept = number, [number]
        number = OPERATORS[symbol](number, 2)
        return [number, alias, kept[0], x]

    for symbol in OPERATORS:
        a = values(symbol)
        x = tensor(a)
        with ExitStack() as stack:
            if mode == "no_grad":
                stack.enter_context(no_grad())
            elif mode != "idle" and a.dtype.kind == "f":
                for _ in range(2 if mode == "twice" else 1):
                    stack.enter_context(GradManager().attach(x))
            try:
                expected = program(np, a.copy(), symbol)
            except (TypeError, ValueError):  # of a matrix product of numbers, or bits of floating-point numbers
                with pytest.raises((TypeError, ValueError)):
                    program(gnp, x, symbol)
                continue
            for t, e in zip(program(gnp, x, symbol), expected, strict=True):
                np.testing.assert_array_equal(t.numpy(), e, symbol)
                assert t.dtype == np.asarray(e).dtype, symbol


def fill_flat(number: Any) -> None:
    number.flat = 9


# What a number has of an array's ways to write; NumPy's writes to a copy.
WRITES: dict[str, Callable[[Any], Any]] = {
    "fill": lambda number: number.fill(9),
    "flat[0] =": lambda number: number.flat.__setitem__(0, 9),
    "flat[:] =": lambda number: number.flat.__setitem__(slice(None), 9),
    "flat =": fill_flat,
}


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_write_to_a_number_leaves_it_or_raises(source: str, write: str, recording: bool) -> None:
    def program(xp: Any, x: Any) -> list[Any]:
        number = alias = SOURCES[source](xp, x)
        WRITES[write](number)
        return [number, alias, x]

    try:
        expected = program(np, values("+="))
    except (AttributeError, TypeError, ValueError):  # numpy.count_nonzero returns an int
        expected = None
    x = tensor(values("+="))
    with GradManager().attach(x) if recording else no_grad():
        number = SOURCES[source](gnp, x)
        before = number.item()
        try:
            WRITES[write](number)
        except errors.LostWriteError:
            assert number.item() == before
        else:
            assert expected is not None
            assert [number.item(), x.tolist()] == [expected[0].item(), expected[2].tolist()]


@pytest.mark.parametrize("recording", [False, True])
def test_a_running_sum_keeps_each_of_its_values(recording: bool) -> None:
    x = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(x)
    with gm if recording else no_grad():
        s, found = x[0], [x[0]]
        for i in range(1, 3):
            s += x[i]
            found.append(s)
        assert [t.item() for t in found] == [1.0, 3.0, 6.0]
        if recording:
            gm.backward(found, [tensor(1.0), tensor(10.0), tensor(100.0)])
            assert x.grad.tolist() == [111.0, 110.0, 100.0]


def test_a_root_finder_that_keeps_the_old_point_goes_on() -> None:
    def root(xp: Any, a: Any) -> Any:
        x, steps = xp.sum(a), 0
        while True:
            old = x
            x -= (x * x - a[0]) / (2 * x)
            steps += 1
            if abs(x - old) < 1e-12:
                return x, steps

    expected, count = root(np, np.array([2.0, 3.0]))
    found, steps = root(gnp, tensor([2.0, 3.0]))
    assert (found.item(), steps) == (expected, count)
    assert count > 3


@each_case([s for s in SAMPLES if s.reference is None and not s.writes])
def test_a_result_is_a_number_where_it_is_one_in_numpy(sample: Sample) -> None:
    """Of arrays without axes, and of numbers: NumPy returns an array from some functions, such as `where`."""
    for of_numbers in (False, True):
        arrays = sample.make()
        if of_numbers:
            arrays = [a if a.ndim else a[()] for a in arrays]
        try:
            expected = flat(sample.call(np, *arrays))
        except (AttributeError, TypeError, ValueError):  # a function that NumPy does not have, or not of numbers
            continue
        if all(np.ndim(e) for e in expected):
            continue
        points = [
            a if arg.constant else asarray(a) * 1 if of_numbers and not a.ndim else asarray(a)
            for arg, a in zip(sample.args, arrays, strict=True)
        ]
        for e, t in zip(expected, flat(sample.call(gnp, *points)), strict=True):
            if np.ndim(e) == 0 and isinstance(t, Tensor):
                before = t
                try:
                    t += t.dtype.type(1)
                except errors.LostWriteError:  # a view of an argument
                    assert np.shares_memory(e, arrays[0])
                    continue
                assert (t is before) == isinstance(e, np.ndarray), f"of numbers: {of_numbers}"


# ---------------------------------------------------------------- what transforms pass in


class Called(Function):
    """Calls a function of a number."""

    function: Any = None

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Any:
        ctx.save_for_backward(a)
        return Called.function(a)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (a,) = ctx.saved_tensors
        return functional.vjp(Called.function, a, g)[1]


def managed(f: Callable[[Any], Any], a: float) -> tuple[Any, Any]:
    """Return value and derivative of a function of a number, the sum of a vector, by a manager."""
    x = tensor([a, 0.0])
    gm = GradManager().attach(x)
    with gm:
        y = f(x.sum())
        gm.backward(y)
    return y, pop_grad(x)[0]


def by_forward_mode(f: Callable[[Any], Any], a: float) -> tuple[Any, Any]:
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(f(forward_ad.make_dual(tensor(a), tensor(1.0))))
    return y.primal, y.tangent


def by_function(f: Callable[[Any], Any], a: float) -> tuple[Any, Any]:
    Called.function = staticmethod(f)
    return managed(Called.apply, a)


def by_grad(f: Callable[[Any], Any], a: float) -> tuple[Any, Any]:
    x = tensor([a, 0.0])
    with GradManager().attach(x):
        y = f(x.sum())
        return y, grad(y, x)[0][0]


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], float], tuple[Any, Any]]] = {
    "manager": managed,
    "grad": by_grad,
    "functional.grad": lambda f, a: (f(a), functional.grad(f)(a)),
    "functional.grad of a Tensor": lambda f, a: (f(a), functional.grad(f)(tensor(a))),
    "functional.grad of an array": lambda f, a: (f(a), functional.grad(f)(np.array(a))),
    "functional.value_and_grad": lambda f, a: functional.value_and_grad(f)(a),
    "functional.vjp": lambda f, a: functional.vjp(f, tensor(a), tensor(1.0)),
    "functional.jvp": lambda f, a: functional.jvp(f, tensor(a), tensor(1.0)),
    "functional.jacobian": lambda f, a: (f(a), functional.jacobian(f, tensor(a))),
    "vmap": lambda f, a: (vmap(f)(tensor([a, a]))[1], vmap(functional.grad(f))(tensor([a, a]))[1]),
    "functional.grad over vmap": lambda f, a: (f(a), functional.grad(lambda t: vmap(f)(t).sum())(tensor([a]))[0]),
    "autograd.grad": lambda f, a: (f(a), autograd.grad(f)(a)),
    "autograd.value_and_grad": lambda f, a: autograd.value_and_grad(f)(a),
    "autograd.jacobian": lambda f, a: (f(a), autograd.jacobian(f)(a)),
    "forward mode": by_forward_mode,
    "checkpoint": lambda f, a: managed(lambda t: checkpoint(f, t), a),
    "Function": by_function,
    "compile": lambda f, a: [managed(compiled(f), a) for _ in range(3)][-1],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_pass_numbers(transform: str) -> None:
    def f(a: Any) -> Any:
        result = a
        for symbol in ("+=", "-=", "*=", "/=", "**="):
            b = result
            b = OPERATORS[symbol](b, 1.5)
            result = result * b + b
        return result

    a, h = 0.5, 1e-6
    slope = (f(a + h) - f(a - h)) / (2 * h)  # on Python's floats
    value, derivative = TRANSFORMS[transform](f, a)
    np.testing.assert_allclose([float(np.asarray(value)), float(np.asarray(derivative))], [f(a), slope], rtol=1e-7)


def test_the_second_derivative_is_that_of_numbers() -> None:
    def f(a: Any) -> Any:
        b = a
        b *= a
        return a * b

    assert functional.hessian(f, tensor(2.0)).item() == 12.0  # of a**3
    assert functional.grad(functional.grad(f))(2.0) == 12.0


# ---------------------------------------------------------------- variables


def attached() -> Tensor:
    t = tensor([5.0]).sum()
    GradManager().attach(t)
    return t


def gradient() -> Tensor:
    w = tensor(2.0)
    gm = GradManager().attach(w)
    with gm:
        gm.backward(w * w)
    return w.grad


VARIABLES: dict[str, Callable[[], Tensor]] = {
    "tensor": lambda: tensor(5.0),
    "tensor of a number": lambda: tensor(tensor([5.0])[0]),
    "Tensor": lambda: Tensor(5.0),
    "asarray": lambda: asarray(5.0),
    "asarray of an array": lambda: asarray(np.array(5.0)),
    "numpy.array": lambda: gnp.array(5.0),
    "numpy.full": lambda: gnp.full((), 5.0),
    "numpy.full of a Tensor": lambda: gnp.full((), tensor(5.0)),
    "numpy.zeros": lambda: gnp.zeros(()),
    "numpy.ones": lambda: gnp.ones(()),
    "numpy.empty": lambda: gnp.empty(()),
    "numpy.ones_like": lambda: gnp.ones_like(tensor([5.0]).sum()),
    "from_dlpack": lambda: from_dlpack(np.array(5.0)),
    "Parameter": lambda: nn.Parameter(5.0),
    "copy.deepcopy": lambda: copy.deepcopy(tensor(5.0)),
    "copy.deepcopy of a Parameter": lambda: copy.deepcopy(nn.Parameter(5.0)),
    "pickle": lambda: pickle.loads(pickle.dumps(tensor(5.0))),  # noqa: S301  # what was pickled here
    "clone": lambda: tensor(5.0).clone(),
    "numpy.copy of a number": lambda: gnp.copy(tensor([5.0]).sum()),
    "attach": attached,
    "grad": gradient,
}


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_is_written_in_place(variable: str, recording: bool) -> None:
    for symbol in ("+=", "-=", "*=", "/=", "//=", "%=", "**="):
        w = VARIABLES[variable]()
        expected = OPERATORS[symbol](np.array(w.numpy()), 2.0)
        alias = w
        with GradManager().attach(w) if recording else no_grad():
            w = OPERATORS[symbol](w, 2.0)
        assert w is alias, symbol
        np.testing.assert_array_equal(w.numpy(), expected)


def test_descent_by_hand_updates_the_variable_under_all_its_names() -> None:
    w = tensor(4.0)
    held, gm = [w], GradManager().attach(w)
    for _ in range(2):
        with gm:
            gm.backward(w * w)
        g = w.grad
        g *= 0.25  # clips what is in .grad
        w -= w.grad
        w.grad = None
    assert held[0] is w
    assert w.item() == 1.0


def test_a_loss_that_is_added_up_goes_on_working() -> None:
    x = tensor([1.0, 2.0, 3.0])
    gm = GradManager().attach(x)
    for start in (0, 0.0, tensor(0.0), None):
        with gm:
            loss = x[0] * 0 if start is None else start
            for t in x:
                loss += t * t
            gm.backward(loss)
        assert loss.item() == 14.0
        assert pop_grad(x).tolist() == [2.0, 4.0, 6.0]


def test_an_array_made_of_a_number_does_not_write_to_it() -> None:
    x = tensor([1.0, -2.0])
    s = x[1]
    for make in (gnp.asarray, gnp.array, gnp.copy, gnp.atleast_1d, asarray):
        a = make(s)
        a[...] = 5.0
        assert (s.item(), x.tolist()) == (-2.0, [1.0, -2.0])
