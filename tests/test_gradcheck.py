"""The checker checked: it must reject what is wrong, say all that is wrong, and accept what is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradcheckError, Tensor, gradcheck, tensor
from gradmgr._custom import custom, variadic
from gradmgr._elementwise import elementwise, multilinear
from gradmgr._op import INPUTS, OPS, PULLS, linear
from gradmgr._tensor import raw

TABLES = (OPS, PULLS, INPUTS)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """Ops declared in a test leave no trace."""
    saved = [dict(table) for table in TABLES]
    yield
    for table, before in zip(TABLES, saved, strict=True):
        table.clear()
        table.update(before)


X = tensor([0.3, -0.7, 1.1])
Y = tensor([0.9, 0.4, -1.2])
M = tensor([[0.3, -0.7], [1.1, 0.2]])


def sine(factor: float = 1.0, **more: Any) -> Any:
    return elementwise("sine", np.sin, lambda g, x: factor * g * gnp.cos(x), **more).door


def split_sine(of_reverse: float, of_forward: float, name: str = "split_sine") -> Any:
    """A sine whose two rules are written apart, each off by its factor."""
    return custom(
        name,
        lambda x: np.sin(x),
        vjp={"x": lambda g, x: of_reverse * g * gnp.cos(x)},
        jvp={"x": lambda t, x: of_forward * t * gnp.cos(x)},
    )


def lines(error: pytest.ExceptionInfo[GradcheckError]) -> list[str]:
    return str(error.value).splitlines()[1:]


MODES: list[dict[str, Any]] = [{}, {"fast_mode": True}, {"complex_step": True}, {"fast_mode": True, "order": 2}]


# ---------------------------------------------------------------- a rule 0.1 % off


@pytest.mark.parametrize("options", MODES, ids=str)
def test_right_rules_are_accepted(options: dict[str, Any]) -> None:
    assert gradcheck(sine(), X, **options)
    assert gradcheck(split_sine(1.0, 1.0), X, **options)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_an_elementwise_rule_slightly_off_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(GradcheckError) as error:
        gradcheck(sine(1.001), X, **options)
    text = str(error.value)
    assert "forward" in text
    assert "reverse" in text
    assert "found" in text
    assert "expected" in text


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_reverse_rule_slightly_off_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(GradcheckError) as error:
        gradcheck(split_sine(1.001, 1.0), X, **options)
    found = [line for line in lines(error) if "derivative of" not in line]
    assert any("reverse" in line for line in found)
    assert any("adjoint identity" in line for line in found)
    assert not any(line.startswith(("- forward", "forward")) for line in found)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_forward_rule_slightly_off_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(GradcheckError) as error:
        gradcheck(split_sine(1.0, 1.001), X, **options)
    found = [line for line in lines(error) if "derivative of" not in line]
    assert any("forward" in line for line in found)
    assert any("adjoint identity" in line for line in found)
    assert not any(line.startswith(("- reverse", "reverse")) for line in found)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_the_rule_of_one_input_of_two_is_enough(fast_mode: bool) -> None:
    f = elementwise("times", np.multiply, lambda g, y: g * y, lambda g, x: 1.001 * g * x).door
    with pytest.raises(GradcheckError):
        gradcheck(f, [X, Y], fast_mode=fast_mode)
    with pytest.raises(GradcheckError):
        gradcheck(lambda y: f(X, y), Y, fast_mode=fast_mode)
    assert gradcheck(lambda x: f(x, Y), X, fast_mode=fast_mode)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_linear_op_with_a_wrong_adjoint_is_rejected(fast_mode: bool) -> None:
    f = linear("shift", lambda a: np.roll(a, 1), lambda g: gnp.roll(g, 1))
    with pytest.raises(GradcheckError, match="reverse"):
        gradcheck(f, X, fast_mode=fast_mode)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_multilinear_op_with_a_wrong_adjoint_is_rejected(fast_mode: bool) -> None:
    f = multilinear("product", np.matmul, lambda g, y: g @ y, lambda g, x: x.swapaxes(-1, -2) @ g).door
    with pytest.raises(GradcheckError, match="reverse"):
        gradcheck(f, [M, M], fast_mode=fast_mode)


def test_a_variadic_op_with_a_wrong_rule_is_rejected() -> None:
    f = variadic(
        "total",
        lambda arrays: sum(arrays[1:], arrays[0]),
        vjp=lambda g, k, values, shapes: g if k == 0 else 1.001 * g,
        jvp=lambda tangents, values: sum(t for t in tangents if t is not None),
        keeps="nothing",
    )
    assert gradcheck(lambda x: f([x]), X)
    with pytest.raises(GradcheckError):
        gradcheck(lambda x, y: f([x, y]), [X, Y])


def test_one_wrong_element_of_many_is_found() -> None:
    off = np.ones(50)
    off[37] = 1.001
    f = elementwise("slope", lambda x: x * 2.0, lambda g, x: g * 2.0 * off).door
    x = tensor(np.linspace(-1, 1, 50))
    with pytest.raises(GradcheckError, match=r"1 of 2500 differ, most at \(37, 37\): found 2\.002, expected 2\.0"):
        gradcheck(f, x)
    with pytest.raises(GradcheckError):
        gradcheck(f, x, fast_mode=True)


def test_a_nan_or_infinity_is_no_agreement() -> None:
    to_nan = elementwise("to_nan", np.sin, lambda g: g * np.nan).door
    to_infinity = elementwise("to_infinity", np.sin, lambda g: g * np.inf).door
    for f in (to_nan, to_infinity):
        for fast_mode in (False, True):
            with pytest.raises(GradcheckError), np.errstate(invalid="ignore"):
                gradcheck(f, X, fast_mode=fast_mode)


# ---------------------------------------------------------------- shapes and dtypes of gradients


def test_a_gradient_of_the_wrong_shape_is_said_so() -> None:
    f = linear("doubled", lambda a: a * 2.0, lambda g: g.reshape((1, -1)) * 2.0)
    with pytest.raises(GradcheckError, match=r"gradient of input 0 has shape \(1, 3\).* the input has \(3,\)"):
        gradcheck(f, X)


def test_a_gradient_of_the_wrong_dtype_is_said_so() -> None:
    f = linear("doubled", lambda a: a * 2.0, lambda g: (g * 2.0).astype(np.float32))
    with pytest.raises(GradcheckError, match=r"gradient of input 0 has .*float32.* the input has .*float64"):
        gradcheck(f, X)


# ---------------------------------------------------------------- higher orders


def cut_sine() -> Any:
    """Right at first order; its rule computes on raw data, so nothing follows it to the second."""
    return elementwise("cut_sine", np.sin, lambda g, x: g * np.cos(raw(x))).door


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_wrong_second_order_is_found_in_all_four_combinations(fast_mode: bool) -> None:
    f = cut_sine()
    assert gradcheck(f, X, fast_mode=fast_mode)
    with pytest.raises(GradcheckError) as error:
        gradcheck(f, X, order=2, fast_mode=fast_mode)
    for outer in ("reverse", "forward"):
        of_this = [line for line in lines(error) if f"derivative of the {outer} derivative: " in line]
        for inner in ("forward", "reverse"):
            assert any(inner in line.rpartition("derivative: ")[2] for line in of_this), (outer, inner)


def test_a_wrong_third_order_is_found() -> None:
    inner = cut_sine()
    f = elementwise("wave", lambda x: -np.cos(x), lambda g, x: g * inner(x)).door
    assert gradcheck(f, X, order=2, fast_mode=True)
    with pytest.raises(
        GradcheckError, match="derivative of the reverse derivative: derivative of the reverse derivative"
    ):
        gradcheck(f, X, order=3, fast_mode=True)


def test_one_mode_alone_can_be_checked() -> None:
    assert gradcheck(split_sine(1.001, 1.0), X, check_backward_ad=False)
    with pytest.raises(GradcheckError):
        gradcheck(split_sine(1.001, 1.0, "split_sine_2"), X, check_forward_ad=False)
    assert gradcheck(split_sine(1.0, 1.001, "split_sine_3"), X, check_forward_ad=False)


# ---------------------------------------------------------------- what it says


def test_all_mismatches_are_listed() -> None:
    off, cut = sine(1.001), cut_sine()  # one wrong at first order, the other at second
    with pytest.raises(GradcheckError) as error:
        gradcheck(lambda x: off(x) + cut(x), X, order=2)
    found = lines(error)
    for path in ("", "derivative of the reverse derivative: ", "derivative of the forward derivative: "):
        for kind in ("forward Jacobian", "reverse Jacobian"):
            assert [line for line in found if f"{path}{kind}: " in line and ("derivative of" in line) == bool(path)]
    assert len(found) == len(set(found))


def test_raise_exception_false_returns_false() -> None:
    assert gradcheck(sine(1.001), X, raise_exception=False) is False
    assert gradcheck(gnp.sin, X, raise_exception=False) is True


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_single_precision_is_warned_about(dtype: Any) -> None:
    x = X.astype(dtype)
    with pytest.warns(RuntimeWarning, match=rf"input 1 is {np.dtype(dtype)}.*float64") as caught:
        gradcheck(lambda a, b: a * b, [X, x], eps=1e-2, atol=1e-1, rtol=1e-1)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_no_input_to_differentiate_is_a_failure() -> None:
    with pytest.raises(GradcheckError, match="no input is of a floating or complex dtype"):
        gradcheck(lambda x: x * 2, tensor([1, 2, 3]))


def test_a_function_that_returns_no_tensor_is_an_error() -> None:
    with pytest.raises(TypeError, match="must return Tensors; found float"):
        gradcheck(lambda x: float(x.sum()), X)


def test_errors_of_the_function_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        gradcheck(lambda x: 1 / 0, X)


# ---------------------------------------------------------------- kinds of functions


def test_several_inputs_and_outputs_and_what_is_not_differentiated() -> None:
    def f(x: Tensor, power: int, k: Tensor, a: np.ndarray, y: Tensor) -> Any:
        return [x**power * a, (y[k] * x.sum(), gnp.argmax(x))[0], gnp.argmax(y)]

    assert gradcheck(f, [X, 2, tensor([0, 2]), np.arange(3.0), Y], order=2)


def test_zero_size_and_0_d() -> None:
    assert gradcheck(lambda x: gnp.sin(x) * 2, tensor(np.zeros((0, 3))), order=2)
    assert gradcheck(lambda x: gnp.sin(x) * 2, tensor(0.5), order=2)


def test_an_unused_input_has_derivative_zero() -> None:
    assert gradcheck(lambda x, y: x * 2, [X, Y], order=2)


def test_the_inputs_stay_as_they_are() -> None:
    def f(x: Tensor) -> Tensor:
        x *= 2.0
        x[0] = 0.0
        return x * x

    x = tensor([0.3, -0.7, 1.1])
    assert gradcheck(f, x, order=2)
    assert x.tolist() == [0.3, -0.7, 1.1]
    assert x.grad is None


def test_the_same_seed_gives_the_same_verdict_in_words() -> None:
    f = sine(1.001)

    def text(seed: int) -> str:
        with pytest.raises(GradcheckError) as error:
            gradcheck(f, X, fast_mode=True, seed=seed)
        return str(error.value)

    assert text(1) == text(1)
    assert text(1) != text(2)


# ---------------------------------------------------------------- complex step, complex inputs


def test_the_complex_step_is_exact_where_differences_are_not() -> None:
    f = lambda x: gnp.sin(x) * gnp.exp(x)
    assert gradcheck(f, X, complex_step=True, atol=0, rtol=1e-14)
    with pytest.raises(GradcheckError):
        gradcheck(f, X, atol=0, rtol=1e-14)


def test_the_complex_step_rejects_a_rule_a_millionth_off() -> None:
    f = sine(1 + 1e-6)
    assert gradcheck(f, X)  # within the tolerance of differences
    with pytest.raises(GradcheckError):
        gradcheck(f, X, complex_step=True, atol=1e-12, rtol=1e-10)


Z = tensor([0.3 + 0.2j, -0.7 - 1.0j, 1.1 + 0.4j])


@pytest.mark.parametrize("f", [gnp.exp, gnp.conj, gnp.abs, lambda z: z * gnp.conj(z), lambda z: gnp.real(z) * z])
def test_complex_inputs_are_differentiated_in_both_parts(f: Any) -> None:
    assert gradcheck(f, Z, order=2)


def test_a_missing_conjugate_is_found() -> None:
    verbatim = elementwise(
        "exp_unconjugated", np.exp, lambda g, out: g * out, jvp=(lambda t, out: t * out,)
    ).door  # with jvp given, the reverse rule is taken as it stands
    assert gradcheck(verbatim, X)
    for fast_mode in (False, True):
        with pytest.raises(GradcheckError, match="reverse"):
            gradcheck(verbatim, Z, fast_mode=fast_mode)


def test_a_wrong_imaginary_part_alone_is_found() -> None:
    def slope(t: Any) -> Any:
        return gnp.real(t) - 1.001j * gnp.imag(t)

    f = elementwise("conj_off", np.conjugate, slope, jvp=(slope,)).door
    with pytest.raises(GradcheckError):
        gradcheck(f, Z)
    with pytest.raises(GradcheckError):
        gradcheck(f, Z, fast_mode=True)


def test_a_real_function_of_complex_numbers_and_back() -> None:
    assert gradcheck(lambda z, x: [gnp.abs(z) * x, z * x], [Z, X], order=2)


# ---------------------------------------------------------------- declaring


@pytest.mark.parametrize(
    "declare",
    [
        lambda rule: elementwise("wrong", np.sin, rule),
        lambda rule: elementwise("wrong", np.add, lambda g: g, rule),
        lambda rule: elementwise("wrong", np.sin, lambda g: g, jvp=(rule,)),
        lambda rule: multilinear("wrong", np.matmul, lambda g, y: g @ y, rule),
        lambda rule: linear("wrong", lambda a, axis: a, rule),
        lambda rule: custom("wrong", lambda x: x, vjp={"x": rule}, jvp={"x": lambda t: t}),
        lambda rule: custom("wrong", lambda x: x, vjp={"x": lambda g: g}, jvp={"x": rule}),
    ],
)
def test_a_rule_that_names_something_unknown_fails_when_it_is_declared(declare: Any) -> None:
    before = [dict(table) for table in TABLES]
    with pytest.raises(TypeError, match=r"op 'wrong' asks for 'w'; it may ask for .*"):
        declare(lambda g, w: g * w)
    assert [dict(table) for table in TABLES] == before


def test_an_op_is_declared_once() -> None:
    before = [dict(table) for table in TABLES]
    with pytest.raises(ValueError, match="'sin' is declared twice"):
        elementwise("sin", np.sin, lambda g: g)
    assert [dict(table) for table in TABLES] == before


def test_the_rules_of_a_custom_op_must_name_its_inputs_in_order() -> None:
    before = [dict(table) for table in TABLES]
    rule = lambda g: g
    for vjp, jvp in (
        ({"y": rule, "x": rule}, {"y": rule, "x": rule}),
        ({"x": rule, "y": rule}, {"x": rule}),
        ({"axis": rule}, {"axis": rule}),
    ):
        with pytest.raises(TypeError, match="must name the kernel's first arguments, in order"):
            custom("wrong", lambda x, y, axis: x + y, vjp=vjp, jvp=jvp)
        assert [dict(table) for table in TABLES] == before
