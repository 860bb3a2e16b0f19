"""Arrays with a meaning of their own, of subclasses of ndarray mostly: an operation leaves it to them or raises."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import numpy as np
import pytest
from helpers import each_case
from samples import SAMPLES, Sample, flat

import gradmgr.numpy as gnp
from gradmgr import (
    Function,
    GradManager,
    Tensor,
    asarray,
    compile,
    errors,
    forward_ad,
    from_dlpack,
    functional,
    nn,
    save,
    sparse,
    special,
    tensor,
    vmap,
)
from gradmgr.compat import autograd

VALUES = np.array([[1.0, 2.0], [3.0, 4.0]])


class Metres(np.ndarray):
    """Numbers with a unit, which every result of a ufunc keeps. Of what it does not know it computes nothing."""

    def __array_finalize__(self, other: Any) -> None:
        self.unit = "m"

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        known = (np.ndarray, np.generic, int, float, complex, str, tuple, type, np.dtype, type(None))
        if not all(isinstance(x, known) for x in (*inputs, *(out or ()), *kwargs.values())):
            return NotImplemented
        kwargs |= {} if out is None else {"out": tuple(map(np.asarray, out))}
        made = getattr(ufunc, method)(*map(np.asarray, inputs), **kwargs)
        return made.view(Metres) if isinstance(made, np.ndarray) else made


class Handles(np.ndarray):
    """A class that computes with Tensors itself, by both of NumPy's protocols."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return "its own ufunc"

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return "its own function"


class Quantity:
    """No array, but with functions in place of NumPy's, as pint's quantities."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return VALUES

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return "its own function"


def masked(a: np.ndarray) -> Any:
    mask = np.zeros(a.shape, bool)
    mask.flat[:1] = True
    return np.ma.array(a, mask=mask)


def matrix(a: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        return np.matrix(a) if a.ndim == 2 else None


KINDS = {"matrix": matrix, "masked array": masked, "quantity": lambda a: a.view(Metres)}

# ---------------------------------------------------------------- every function


def is_public(sample: Sample) -> bool:
    part, _, name = sample.name.rpartition(".")
    if part in ("nn", "sparse"):
        return hasattr(nn.functional if part == "nn" else sparse, name)
    return not part.startswith("engine")


def keeps_the_meaning(found: Any, expected: Any) -> bool:
    """Whether a result is NumPy's: of its class, with its mask, with its numbers where these are not masked."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, np.ma.MaskedArray):
        mask, other = np.ma.getmaskarray(found), np.ma.getmaskarray(expected)
        if not np.array_equal(mask, other) or mask.shape != found.shape:  # NumPy's mask of a product with a vector
            return np.array_equal(mask, other)
        found, expected = found.data[~mask], expected.data[~mask]
    found, expected = np.asarray(found), np.asarray(expected)
    return found.shape == expected.shape and np.allclose(found, expected, equal_nan=True)


# What computes these without a Tensor is NumPy's or SciPy's function itself, and the samples compare with another one.
THEIRS = {"vectorize", "linalg.expm", "sparse.with_data"}


@each_case(sample for sample in SAMPLES if is_public(sample))
def test_no_function_drops_the_meaning_of_an_argument(sample: Sample) -> None:
    """Given a subclass, alone or beside Tensors, it raises or returns what NumPy does."""
    for k, make in ((k, make) for k in range(len(sample.args)) for make in KINDS.values()):
        if sample.name.startswith("Tensor.") and k == 0:
            continue  # a method of the subclass itself
        for xp, kind in ((gnp, asarray), (np, asarray), (gnp, np.asarray)):  # beside Tensors, by both ways; alone
            arrays = sample.make()
            special_one, alone = make(arrays[k]), kind is np.asarray
            others = [kind(a) for j, a in enumerate(arrays) if j != k]
            if special_one is None or (not others and not alone) or (xp is np and not sample.dispatches):
                continue
            if alone and sample.name in THEIRS:
                continue
            given = [*others[:k], special_one, *others[k:]]
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    found = flat(sample.call(xp, *given))
                except (TypeError, ValueError, IndexError, AttributeError, np.linalg.LinAlgError, RuntimeError):
                    continue
                expected = flat(sample.expected(*[np.asarray(a) if j != k else a for j, a in enumerate(given)]))
            for one, other in zip(found, expected, strict=True):
                if sample.reference is not None and type(one) is type(special_one):
                    continue  # kept, where what the sample is compared with by its numbers keeps nothing
                if type(other) in (np.ndarray, np.float64, np.int64, np.bool_, bool, int, float):  # nothing to keep
                    one = one.numpy() if isinstance(one, Tensor) else np.asarray(one)
                    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
                else:
                    assert keeps_the_meaning(one, other), f"argument {k} is a {type(special_one).__name__}"


# ---------------------------------------------------------------- operators

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lt", "ge", "eq", "ne")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("symbol", OPERATORS)
def test_an_operator_leaves_it_to_the_subclass(symbol: str, name: str) -> None:
    operate, given = getattr(operator, symbol), KINDS[name](VALUES.copy())
    for x, y in ((tensor(VALUES), given), (given, tensor(VALUES))):
        try:
            found = operate(x, y)
        except TypeError:
            continue
        assert keeps_the_meaning(found, operate(*[t.numpy() if isinstance(t, Tensor) else t for t in (x, y)]))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("symbol", ["iadd", "isub", "imul", "itruediv", "imatmul", "ipow"])
def test_an_augmented_assignment_of_a_tensor_raises_and_changes_nothing(symbol: str, name: str) -> None:
    x = tensor(VALUES)
    with pytest.raises(TypeError):
        getattr(operator, symbol)(x, KINDS[name](VALUES.copy()))
    assert x.tolist() == VALUES.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_no_operation_with_a_tracked_tensor_loses_its_history(name: str) -> None:
    x, given = tensor(VALUES), KINDS[name](VALUES.copy())
    with GradManager().attach(x):
        for operate in (operator.add, operator.mul, operator.matmul):
            for pair in ((x, given), (given, x)):
                with pytest.raises(TypeError):
                    operate(*pair)


def test_a_matrix_says_what_to_write() -> None:
    for operate in (operator.mul, operator.add, operator.matmul):
        for pair in ((tensor(VALUES), matrix(VALUES)), (matrix(VALUES), tensor(VALUES))):
            with pytest.raises(errors.ArrayClassError, match=r"numpy\.matrix .*numpy\.asarray\(x\)"):
                operate(*pair)
    assert (np.asarray(matrix(VALUES)) * tensor(VALUES)).tolist() == (VALUES * VALUES).tolist()


def test_a_masked_array_keeps_its_mask_beside_a_tensor_that_nothing_tracks() -> None:
    for found in (masked(VALUES) * tensor(VALUES), tensor(VALUES) * masked(VALUES)):
        assert found.mask.tolist() == [[True, False], [False, False]]
        assert found.sum() == 4 + 9 + 16


def test_a_class_that_knows_tensors_computes_with_them_on_either_side() -> None:
    mine = VALUES.view(Handles)
    for pair in ((tensor(VALUES), mine), (mine, tensor(VALUES))):
        assert operator.mul(*pair) == np.multiply(*pair) == "its own ufunc"
        assert np.concatenate(pair) == "its own function"


def test_what_has_functions_in_place_of_numpys_is_left_to_them() -> None:
    assert np.dot(t(), Quantity()) == np.concatenate([t(), Quantity()]) == "its own function"
    for call in (lambda q: gnp.dot(t(), q), lambda q: gnp.concatenate([t(), q]), lambda q: nn.functional.relu(q)):
        with pytest.raises(errors.ArrayClassError, match=r"Quantity is more than its numbers"):
            call(Quantity())


# ---------------------------------------------------------------- all other doors


class ReturnsIt(Function):
    """Returns the array that stands in `it`."""

    it: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return ReturnsIt.it

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class HasItForGradient(Function):
    """Returns the array that stands in `it` for the derivative."""

    it: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return HasItForGradient.it


def backward_of(call: Any, seed: Any = None) -> None:
    x = tensor(VALUES)
    with GradManager().attach(x) as gm:
        gm.backward(call(x), np.ones((2, 2)) if seed is None else seed)


def apply_with(function: Any, it: Any) -> None:
    function.it = it
    backward_of(function.apply)


def write(index: Any, value: Any) -> None:
    x = tensor(VALUES)
    x[index] = value


def dual(tangent: Any) -> None:
    with forward_ad.dual_level():
        forward_ad.make_dual(tensor(VALUES), tangent)


def square(x: Any) -> Any:
    return (x * x).sum()


def t() -> Tensor:
    return tensor(VALUES)


DOORS: dict[str, Any] = {
    "tensor": tensor,
    "asarray": asarray,
    "Tensor": Tensor,
    "Parameter": nn.Parameter,
    "from_dlpack": from_dlpack,
    "array": gnp.array,
    "asanyarray": gnp.asanyarray,
    "a list": lambda m: tensor([m, m]),
    "a list with a Tensor": lambda m: gnp.array([m, t()]),
    "seed": lambda m: backward_of(lambda x: x * 2, m),
    "callback": lambda m: GradManager().attach(t(), callbacks=lambda p, g: m) and functional.vjp(square, t(), m),
    ".grad": lambda m: setattr(t(), "grad", m),
    "result of a Function": lambda m: apply_with(ReturnsIt, m),
    "gradient of a Function": lambda m: apply_with(HasItForGradient, m),
    "x[i] = m": lambda m: write(..., m),
    "x[i] = [m]": lambda m: write(slice(None), [m]),
    "x[m > 2]": lambda m: t()[m > 2],
    "x[m > 2,]": lambda m: t()[m > 2,],
    "x[[m]]": lambda m: t()[[m.astype(int) % 2]],
    "x[m > 2] = 1": lambda m: write(m > 2, 1.0),
    "out=": lambda m: gnp.add(t(), t(), out=m),
    "numpy's out=": lambda m: np.add(t(), t(), out=m),
    "where=": lambda m: gnp.add(t(), t(), where=m > 2),
    "sum(where=)": lambda m: gnp.sum(t(), where=m > 2),
    "copyto": lambda m: gnp.copyto(t(), m),
    "concatenate": lambda m: np.concatenate([m, t()]),
    "stack": lambda m: gnp.stack([t(), m]),
    "block": lambda m: np.block([[t(), m]]),
    "r_": lambda m: gnp.r_[t(), m],
    "where, condition": lambda m: np.where(m > 2, t(), 0.0),
    "where, choice": lambda m: np.where(VALUES > 2, t(), m),
    "einsum": lambda m: np.einsum("ij,jk", t(), m),
    "einsum, sublists": lambda m: gnp.einsum(t(), [0, 1], m, [1, 2]),
    "select": lambda m: gnp.select([VALUES > 2], [t()], m),
    "piecewise": lambda m: gnp.piecewise(t(), [m > 2], [1.0, 2.0]),
    "add.at": lambda m: gnp.add.at(t(), [0, 1], m),
    "histogram": lambda m: gnp.histogram(t(), weights=m),
    "full": lambda m: gnp.full((2, 2), m),
    "zeros_like": gnp.zeros_like,
    "linspace": lambda m: gnp.linspace(m, 5.0),
    "method": lambda m: t().dot(m),
    "special": lambda m: special.expit(m) if not isinstance(m, np.ma.MaskedArray) else special.xlogy(t(), m),
    "linear": lambda m: nn.Linear(2, 2)(m),
    "weight": lambda m: nn.functional.linear(t(), m),
    "loss": lambda m: nn.functional.mse_loss(t(), m),
    "loss of plain arrays": lambda m: nn.functional.mse_loss(m, VALUES),
    "softmax": lambda m: nn.functional.softmax(m, 1),
    "layer_norm": lambda m: nn.functional.layer_norm(m, (2,)),
    "running mean": lambda m: nn.functional.batch_norm(t(), m[0], np.ones(2)),
    "embedding": lambda m: nn.functional.embedding(np.array([0, 1]), m),
    "attention's mask": lambda m: nn.functional.scaled_dot_product_attention(t(), t(), t(), m > 2),
    "grad": lambda m: functional.grad(square)(m),
    "vjp": lambda m: functional.vjp(lambda x: x * x, t(), m),
    "jvp": lambda m: functional.jvp(lambda x: x * x, t(), m),
    "jvp at": lambda m: functional.jvp(lambda x: x * x, m, VALUES),
    "jacobian": lambda m: functional.jacobian(lambda x: x * x, m),
    "hvp": lambda m: functional.hvp(square, t(), m),
    "make_dual": dual,
    "vmap": lambda m: vmap(lambda x: x * 2)(m),
    "compile": lambda m: compile(lambda x: x * 2)(m),
    "compile beside a Tensor": lambda m: compile(lambda x, y: x * y)(t(), m),
    "compat.autograd.grad": lambda m: autograd.grad(square)(m),
    "load_state_dict": lambda m: nn.Linear(2, 2).load_state_dict({"weight": m, "bias": np.zeros(2)}),
    "weights of a loss": lambda m: nn.functional.nll_loss(t(), np.array([0, 1]), weight=m[0]),
}
# A matrix holds nothing but numbers, so that what asks for these gets them.
FOR_NUMBERS = {"tensor", "asarray", "Tensor", "Parameter", "array", "from_dlpack", "make_dual"}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_it_would_drop(door: str, name: str) -> None:
    given = KINDS[name](VALUES.copy())
    if name == "matrix" and door in FOR_NUMBERS:
        return
    with pytest.raises((TypeError, errors.StateError)):
        DOORS[door](given)


def test_a_matrix_is_made_a_tensor_of_its_numbers() -> None:
    for make in (tensor, asarray, nn.Parameter, gnp.array):
        made = make(matrix(VALUES))
        assert type(made.numpy()) is np.ndarray
        assert made.tolist() == VALUES.tolist()


def test_a_masked_array_is_not_saved_without_its_mask(tmp_path: Any) -> None:
    with pytest.raises(errors.ArrayClassError, match=r"save: .*numpy\.ma\.MaskedArray"):
        save({"m": masked(VALUES)}, tmp_path / "file")


def test_memmaps_and_record_arrays_are_arrays(tmp_path: Any) -> None:
    stored = np.memmap(tmp_path / "numbers", float, "w+", shape=(2, 2))
    stored[...] = VALUES
    for given in (stored, VALUES.view(np.recarray)):
        for found in (t() * given, given * t(), np.add(t(), given) - t(), gnp.sum(given + t(), axis=0) * 0 + given):
            assert type(found._array) is np.ndarray
        assert (t() * given).tolist() == (VALUES**2).tolist()
        np.testing.assert_array_equal(functional.grad(square)(given), 2 * VALUES)
