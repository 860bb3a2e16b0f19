"""The checker checked: it must reject what is wrong, say all that is wrong, and accept what is right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradcheckError, GradManager, Tensor, errors, gradcheck, graph, tensor
from gradmgr._arrays.batched import Batched
from gradmgr._engine.context import current
from gradmgr._engine.custom import custom, several, variadic
from gradmgr._engine.elementwise import elementwise, multilinear
from gradmgr._engine.entry import KINDS, VJPS
from gradmgr._engine.op import OPS, linear
from gradmgr._engine.tensor import raw
from gradmgr._transforms.gradcheck import gradgradcheck, vjp

TABLES = (OPS, VJPS, KINDS)


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
    return elementwise("sine", np.sin, lambda g, x: factor * g * gnp.cos(x), **more)


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
    f = elementwise("times", np.multiply, lambda g, y: g * y, lambda g, x: 1.001 * g * x)
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
    f = multilinear("product", np.matmul, lambda g, y: g @ y, lambda g, x: x.swapaxes(-1, -2) @ g)
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
    f = elementwise("slope", lambda x: x * 2.0, lambda g, x: g * 2.0 * off)
    x = tensor(np.linspace(-1, 1, 50))
    with pytest.raises(
        GradcheckError, match=r"0 by input 0: 1 of 2500 differ, most at \[37\] by \[37\]: found 2\.002, expected 2\.0"
    ):
        gradcheck(f, x)
    with pytest.raises(GradcheckError):
        gradcheck(f, x, fast_mode=True)


def test_a_nan_or_infinity_is_no_agreement() -> None:
    to_nan = elementwise("to_nan", np.sin, lambda g: g * np.nan)
    to_infinity = elementwise("to_infinity", np.sin, lambda g: g * np.inf)
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
    return elementwise("cut_sine", np.sin, lambda g, x: g * np.cos(raw(x)))


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
    f = elementwise("wave", lambda x: -np.cos(x), lambda g, x: g * inner(x))
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
            assert [line for line in found if f"{path}{kind} of " in line and ("derivative of" in line) == bool(path)]
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
        gradcheck(lambda x: x.sum().item(), X)


def test_errors_of_the_function_propagate() -> None:
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


def test_the_same_seed_gives_the_same_message() -> None:
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
    )  # with jvp given, the reverse rule is taken as it stands
    assert gradcheck(verbatim, X)
    for fast_mode in (False, True):
        with pytest.raises(GradcheckError, match="reverse"):
            gradcheck(verbatim, Z, fast_mode=fast_mode)


def test_a_wrong_imaginary_part_alone_is_found() -> None:
    def slope(t: Any) -> Any:
        return gnp.real(t) - 1.001j * gnp.imag(t)

    f = elementwise("conj_off", np.conjugate, slope, jvp=(slope,))
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
    for reverse, forward in (
        ({"y": rule, "x": rule}, {"y": rule, "x": rule}),
        ({"x": rule, "y": rule}, {"x": rule}),
        ({"axis": rule}, {"axis": rule}),
    ):
        with pytest.raises(TypeError, match="must name the kernel's first arguments, in order"):
            custom("wrong", lambda x, y, axis: x + y, vjp=reverse, jvp=forward)
        assert [dict(table) for table in TABLES] == before


# ---------------------------------------------------------------- torch's arguments


def test_the_arguments_are_torchs_and_ours() -> None:
    torchs = (
        "func inputs eps atol rtol raise_exception nondet_tol check_undefined_grad check_grad_dtypes "
        "check_batched_grad check_batched_forward_grad check_forward_ad check_backward_ad fast_mode masked"
    )
    assert list(inspect.signature(gradcheck).parameters) == [*torchs.split(), "order", "complex_step", "seed"]
    torchs = (
        "func inputs grad_outputs eps atol rtol gen_non_contig_grad_outputs raise_exception nondet_tol "
        "check_undefined_grad check_grad_dtypes check_batched_grad check_fwd_over_rev check_rev_over_rev "
        "fast_mode masked"
    )
    assert list(inspect.signature(gradgradcheck).parameters) == [*torchs.split(), "seed"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"masked": True}, "sparse"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1e-6}, "eps"),
        ({"check_forward_ad": False, "check_backward_ad": False}, "nothing would be checked"),
        ({"check_backward_ad": False, "check_batched_grad": True}, "check_batched_grad"),
        ({"check_forward_ad": False, "check_batched_forward_grad": True}, "check_forward_ad=True"),
        ({"order": 0}, "order"),
    ],
)
def test_arguments_that_ask_for_nothing_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gradcheck(gnp.sin, X, **arguments)


def test_masked_false_is_accepted() -> None:
    assert gradcheck(gnp.sin, X, masked=False)
    assert gradgradcheck(gnp.sin, X, masked=None)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_backward_that_is_not_deterministic_is_rejected(fast_mode: bool) -> None:
    unsteady = custom(
        "unsteady",
        lambda x: np.sin(x),
        vjp={"x": lambda g, x: g * gnp.cos(x) + next(noise)},
        jvp={"x": lambda t, x: t * gnp.cos(x)},
    )
    noise = iter([0.0, 1e-9] * 100)
    with pytest.raises(GradcheckError, match=r"backward is not deterministic: the gradient of input 0 .* 1e-09.*=0\.0"):
        gradcheck(unsteady, X, fast_mode=fast_mode)
    noise = iter([0.0, 1e-9] * 100)
    assert gradcheck(unsteady, X, fast_mode=fast_mode, nondet_tol=1e-8)
    noise = iter([0.0, 1e-9] * 100)
    with pytest.raises(GradcheckError, match="backward is not deterministic"):
        gradcheck(unsteady, X, fast_mode=fast_mode, nondet_tol=1e-10)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_function_that_is_not_deterministic_is_rejected_as_such(fast_mode: bool) -> None:
    random = np.random.default_rng(0)
    with pytest.raises(GradcheckError, match=r"the function is not deterministic: output 0 differs by"):
        gradcheck(lambda x: x * random.normal(), X, fast_mode=fast_mode)
    lengths = iter([2, 3] * 100)
    with pytest.raises(GradcheckError, match=r"not deterministic: one call gave outputs of \(2,\).*another of \(3,\)"):
        gradcheck(lambda x: x[: next(lengths)], X, check_forward_ad=False, fast_mode=fast_mode)


def pair_of(wrong_without: float) -> Any:
    """Sine and cosine from one op; where only the first has a gradient, its rule is off by a factor."""

    def rule(g: Any, x: Any) -> Any:
        s, c = g
        if c is None:
            return wrong_without * s * gnp.cos(x)
        return -c * gnp.sin(x) if s is None else s * gnp.cos(x) - c * gnp.sin(x)

    return several(
        "pair_of",
        lambda x: (np.sin(x), np.cos(x)),
        ("s", "c"),
        vjp=rule,
        jvp=lambda t, x: (t * gnp.cos(x), -t * gnp.sin(x)),
    )


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_gradient_left_out_must_count_as_zeros(fast_mode: bool) -> None:
    f = pair_of(1.001)
    with pytest.raises(GradcheckError) as error:
        gradcheck(f, X, fast_mode=fast_mode)
    (line,) = lines(error)
    assert "where output 1 is given no gradient, against one of zeros" in line
    assert gradcheck(f, X, fast_mode=fast_mode, check_undefined_grad=False)
    OPS.pop("pair_of")
    assert gradcheck(pair_of(1.0), X, fast_mode=fast_mode, order=2)


def test_the_dtype_of_gradients_is_checked_unless_that_is_left_out() -> None:
    f = linear("doubled", lambda a: a * 2.0, lambda g: (g * 2.0).astype(np.float32))
    with pytest.raises(GradcheckError, match="float32"):
        gradcheck(f, tensor([0.5, 0.25]))
    assert gradcheck(f, tensor([0.5, 0.25]), check_grad_dtypes=False, rtol=1e-3)


def test_a_gradient_with_too_many_elements_is_said_so() -> None:
    f = linear("doubled", lambda a: a * 2.0, lambda g: gnp.concatenate([g, g]))
    with pytest.raises(GradcheckError, match=r"gradient of input 0 has shape \(6,\).* the input has \(3,\)"):
        gradcheck(f, X, check_forward_ad=False)


def test_a_missing_forward_rule_says_how_to_leave_it_out() -> None:
    def no_rule(t: Any, x: Any) -> Any:
        raise NotImplementedError("no jvp")

    f = custom("no_forward", lambda x: np.sin(x), vjp={"x": lambda g, x: g * gnp.cos(x)}, jvp={"x": no_rule})
    with pytest.raises(NotImplementedError) as error:
        gradcheck(f, X)
    assert any("check_forward_ad=False" in note for note in error.value.__notes__)
    assert gradcheck(f, X, check_forward_ad=False)


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize("options", [{}, {"fast_mode": True}], ids=str)
def test_output_and_input_are_named(options: dict[str, Any]) -> None:
    off = split_sine(1.001, 1.0)

    def f(x: Tensor, n: int, y: Tensor) -> Any:
        return [x * n, gnp.argmax(x), off(y) * x]

    with pytest.raises(GradcheckError) as error:
        gradcheck(f, [X, 3, Y], **options)
    named = [line for line in lines(error) if "reverse" in line and "adjoint" not in line and "output" in line]
    assert len(named) == 1
    assert "of output 2 by input 2" in named[0]
    if not options:
        assert "3 of 9 differ, most at [" in named[0]
        assert "%)" in named[0]


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize(
    ("reverse", "forward", "text"),
    [
        (1.001, 1.0, r"reverse is wrong and forward is right: see the reverse rule \(vjp\)"),
        (1.0, 1.001, r"forward is wrong and reverse is right: see the forward rule \(jvp\)"),
        (1.001, 1.001, "reverse and forward agree with each other, not with the differences"),
        (1.001, 0.999, "reverse, forward and the differences all disagree"),
        (0.0, 1.0, "reverse gives only zeros"),
    ],
)
def test_the_hint_names_the_mode_that_differs(reverse: float, forward: float, text: str, fast_mode: bool) -> None:
    with pytest.raises(GradcheckError, match=text):
        gradcheck(split_sine(reverse, forward), X, fast_mode=fast_mode)


def test_the_hint_names_a_constant_factor_and_a_missing_conjugate() -> None:
    with pytest.raises(GradcheckError, match=r"reverse is right but for the factor 2"):
        gradcheck(split_sine(2.0, 1.0), X)
    verbatim = elementwise("exp_unconjugated", np.exp, lambda g, out: g * out, jvp=(lambda t, out: t * out,))
    with pytest.raises(GradcheckError, match=r"right but for a complex conjugate"):
        gradcheck(verbatim, Z)
    with pytest.raises(GradcheckError, match=r"most at \[\d\]\.(real|imag) by \[\d\]\.(real|imag)"):
        gradcheck(verbatim, Z)


def test_the_hint_says_when_an_output_is_single() -> None:
    with pytest.raises(GradcheckError, match="an output is float32"):
        gradcheck(lambda x: gnp.sin(x).astype(np.float32), X)


def test_the_order_is_named() -> None:
    with pytest.raises(GradcheckError) as error:
        gradcheck(cut_sine(), X, order=2)
    text = str(error.value)
    assert "derivative of the reverse derivative: reverse Jacobian of the gradient of input 0 by input 0" in text
    assert "derivative of the forward derivative: forward Jacobian of the tangent of output 0 by input 0" in text


def test_nothing_to_differentiate_says_what_was_found() -> None:
    with pytest.raises(GradcheckError, match=r"found int64, float.*gradmgr\.tensor"):
        gradcheck(lambda x, y: x, [tensor([1, 2]), 2.0])
    with pytest.raises(GradcheckError, match="found ndarray"):
        gradcheck(gnp.sin, np.ones(3))
    with pytest.raises(GradcheckError, match="found none"):
        gradgradcheck(lambda: X, [])
    assert gradcheck(gnp.sin, np.ones(3), raise_exception=False) is False


def test_an_output_that_is_no_tensor_is_named() -> None:
    with pytest.raises(TypeError, match="found ndarray as output 1"):
        gradcheck(lambda x: (x, x.numpy()), X)


# ---------------------------------------------------------------- kinds of functions, again


def test_the_point_stays_where_it_is_when_the_function_writes_in_place() -> None:
    seen = []

    def f(x: Tensor, k: Tensor) -> Tensor:
        seen.append((x.numpy()[0], k.numpy()[0]))
        x += 1.0
        k += 1
        return x * x

    assert gradcheck(f, [X, tensor([5])], order=2, fast_mode=True)
    assert all(abs(x - 0.3) < 1e-5 and k == 5 for x, k in seen)


def test_a_constant_output_and_an_output_that_is_an_input() -> None:
    assert gradcheck(lambda x: [x, tensor([1.0, 2.0]), x * 2], X, order=2)
    assert gradcheck(lambda x: tensor([1.0, 2.0]), X, order=2)
    assert gradcheck(lambda x: gnp.argmax(x), X)


@pytest.mark.parametrize("options", [*MODES[:2], {"order": 3, "fast_mode": True}, {"check_backward_ad": False}])
def test_a_function_may_set_hooks_on_what_it_computes(options: dict[str, Any]) -> None:
    def f(x: Any) -> Any:
        y = gnp.sin(x)
        handle = y.register_hook(lambda g: None)
        x.register_hook(lambda g: None)
        graph.register_multi_grad_hook([x, y], lambda gs: None)
        y.retain_grad()
        z = y * x
        handle.remove()
        return z

    assert gradcheck(f, X, **options)


def test_a_hook_that_changes_the_gradient_is_a_finding() -> None:
    def f(x: Any) -> Any:
        y = gnp.sin(x)
        y.register_hook(lambda g: g * 2)
        return y

    with pytest.raises(GradcheckError, match="reverse is wrong and forward is right"):
        gradcheck(f, X)


def test_a_manager_around_does_not_record_the_check() -> None:
    x = tensor([0.3, 0.4])
    manager = GradManager().attach(x)
    with manager:
        y = x * x
        assert gradcheck(gnp.sin, x, order=2)
        manager.backward(y.sum())
    np.testing.assert_allclose(x.grad.numpy(), [0.6, 0.8])


def test_no_recording_is_left_open_by_a_failure() -> None:
    calls = []

    def fails(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) >= stop:
            raise ZeroDivisionError
        return x * x

    for stop in range(1, 9):  # noqa: B007  # the function reads it
        calls.clear()
        with pytest.raises(ZeroDivisionError):
            gradcheck(fails, X)
        assert current() is None


# ---------------------------------------------------------------- gradgradcheck


GRADGRAD: list[dict[str, Any]] = [
    {},
    {"fast_mode": True},
    {"check_fwd_over_rev": False},
    {"check_rev_over_rev": False, "fast_mode": True},
    {"gen_non_contig_grad_outputs": True},
]


@pytest.mark.parametrize("options", GRADGRAD, ids=str)
def test_gradgradcheck_accepts_right_and_rejects_wrong_derivatives(options: dict[str, Any]) -> None:
    assert gradgradcheck(lambda x, y: [gnp.sin(x) * y, gnp.abs(x)], [X, Y], **options)
    assert gradgradcheck(gnp.exp, Z, **options)
    assert gradgradcheck(lambda x: x * 2, tensor(np.zeros((0, 2))), **options)
    with pytest.raises(GradcheckError, match="derivative of the reverse derivative"):
        gradgradcheck(cut_sine(), X, **options)


@pytest.mark.parametrize("options", GRADGRAD, ids=str)
def test_a_second_derivative_slightly_off_is_rejected(options: dict[str, Any]) -> None:
    """The first derivative is right: only the rule of the cosine in it is off."""
    cosine = split_cosine(1.001, 1.001)
    f = custom(
        "sine_by", lambda x: np.sin(x), vjp={"x": lambda g, x: g * cosine(x)}, jvp={"x": lambda t, x: t * cosine(x)}
    )
    assert gradcheck(f, X)
    with pytest.raises(GradcheckError):
        gradgradcheck(f, X, **options)
    with pytest.raises(GradcheckError):
        gradcheck(f, X, order=2, fast_mode=options.get("fast_mode", False))


def split_cosine(of_reverse: float, of_forward: float) -> Any:
    return custom(
        "split_cosine",
        lambda x: np.cos(x),
        vjp={"x": lambda g, x: -of_reverse * g * gnp.sin(x)},
        jvp={"x": lambda t, x: -of_forward * t * gnp.sin(x)},
    )


def test_gradgradcheck_checks_the_combinations_it_is_asked_for() -> None:
    cosine = split_cosine(1.001, 1.0)  # reverse over reverse is wrong, forward over reverse right
    f = custom(
        "sine_by", lambda x: np.sin(x), vjp={"x": lambda g, x: g * cosine(x)}, jvp={"x": lambda t, x: t * cosine(x)}
    )
    assert gradgradcheck(f, X, check_rev_over_rev=False)
    with pytest.raises(GradcheckError, match="reverse is wrong and forward is right"):
        gradgradcheck(f, X)
    with pytest.raises(GradcheckError, match="reverse is wrong; the other mode was not checked"):
        gradgradcheck(f, X, check_fwd_over_rev=False)
    assert gradgradcheck(f, X, raise_exception=False) is False


def test_the_cotangents_of_gradgradcheck() -> None:
    seen = []

    def logged_vjp(g: Any, x: Any) -> Any:
        seen.append(raw(g))
        return g * gnp.cos(x)

    f = custom("watched", lambda x: np.sin(x), vjp={"x": logged_vjp}, jvp={"x": lambda t, x: t * gnp.cos(x)})
    given = np.array([4.0, 5.0, 6.0])
    assert gradgradcheck(f, X, tensor(given))
    assert any(np.array_equal(g, given) for g in seen)
    seen.clear()
    assert gradgradcheck(f, X, [given], fast_mode=True)
    assert any(np.array_equal(g, given) for g in seen)
    seen.clear()
    assert gradgradcheck(f, X, gen_non_contig_grad_outputs=True)
    assert any(not g.flags.c_contiguous for g in seen)
    seen.clear()
    assert gradgradcheck(f, X)
    assert all(g.flags.c_contiguous for g in seen)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ([np.ones(3)] * 2, ValueError, "2 grad_outputs were given for 1 differentiable outputs"),
        (np.ones(2), errors.ShapeError, r"grad_outputs\[0\] has shape \(2,\), its output \(3,\)"),
        (np.ones(3, "float32"), errors.DtypeError, "has dtype float32, its output float64"),
        ([[1.0, 1.0, 1.0]], TypeError, "must be a Tensor or an array; found list"),
    ],
)
def test_cotangents_of_the_wrong_shape_are_refused(given: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        gradgradcheck(gnp.sin, X, given)


def test_gradgradcheck_needs_a_mode() -> None:
    with pytest.raises(ValueError, match="both False; one is needed"):
        gradgradcheck(gnp.sin, X, check_fwd_over_rev=False, check_rev_over_rev=False)
    with pytest.raises(ValueError, match="check_batched_grad"):
        gradgradcheck(gnp.sin, X, check_rev_over_rev=False, check_batched_grad=True)


def test_gradgradcheck_warns_of_single_precision_where_it_was_called() -> None:
    with pytest.warns(RuntimeWarning, match="gradgradcheck: input 0 is float32") as caught:
        gradgradcheck(lambda x: x * x, X.astype(np.float32), eps=1e-2, atol=1e-1, rtol=1e-1)
    assert [w.filename for w in caught] == [__file__]


# ---------------------------------------------------------------- a rule 0.1 % off in one part only


def real_part_off(part: str) -> Any:
    """z -> z * w with a derivative that is 0.1 % off in one real part of it."""

    def slope(t: Any) -> Any:
        re, im = gnp.real(t), gnp.imag(t)
        return (1.001 * re if part == "real" else re) + 1j * (1.001 * im if part == "imag" else im)

    return elementwise("identity_off", np.positive, slope, jvp=(slope,))


@pytest.mark.parametrize("part", ["real", "imag"])
@pytest.mark.parametrize("fast_mode", [False, True])
def test_one_part_of_a_complex_rule_off_is_rejected(part: str, fast_mode: bool) -> None:
    f = real_part_off(part)
    with pytest.raises(GradcheckError):
        gradcheck(f, Z, fast_mode=fast_mode)
    with pytest.raises(GradcheckError):
        gradcheck(f, Z, fast_mode=fast_mode, check_forward_ad=False)
    with pytest.raises(GradcheckError):
        gradcheck(f, Z, fast_mode=fast_mode, check_backward_ad=False)


def test_a_vjp_is_a_function_that_managers_record() -> None:
    (g,) = vjp(gnp.sin, [X], [0], [np.ones(3)])
    np.testing.assert_allclose(g.numpy(), np.cos(X.numpy()))
    assert gradcheck(lambda x: vjp(gnp.sin, [x], [0], [np.ones(3)]), X)


# ---------------------------------------------------------------- batched

BATCHED: list[dict[str, Any]] = [
    {"check_batched_grad": True},
    {"check_batched_forward_grad": True},
    {"check_batched_grad": True, "check_batched_forward_grad": True, "fast_mode": True, "order": 2},
]


@pytest.mark.parametrize("options", BATCHED, ids=str)
def test_batched_derivatives_are_those_of_a_loop(options: dict[str, Any]) -> None:
    assert gradcheck(lambda x, y: [gnp.sin(x) * y[::-1], gnp.sum(x), gnp.argmax(x)], [X, Y], **options)
    assert gradcheck(lambda m: gnp.linalg.inv(m @ m.T), M, **options)
    assert gradcheck(lambda x, y: x * 2, [X, Y], **options)
    assert gradcheck(gnp.exp, Z, **options)
    assert gradcheck(lambda x: gnp.sin(x), tensor(0.5), **options)
    assert gradcheck(lambda x: tensor([1.0]), X, **options)


def when_batched(off: Callable[[Any], Any]) -> Any:
    """A sine whose rules are right, but for batches of gradients."""

    def rule(g: Any, x: Any) -> Any:
        return (off(g) if isinstance(raw(g), Batched) else g) * gnp.cos(x)

    return custom("when_batched", lambda x: np.sin(x), vjp={"x": rule}, jvp={"x": rule})


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_a_batched_derivative_that_differs_is_rejected(mode: str, fast_mode: bool) -> None:
    f = when_batched(lambda g: 1.001 * g)
    options = {"check_batched_grad" if mode == "reverse" else "check_batched_forward_grad": True}
    assert gradcheck(f, X, fast_mode=fast_mode)
    with pytest.raises(GradcheckError) as error:
        gradcheck(f, X, fast_mode=fast_mode, **options)
    assert len(lines(error)) == 2
    for k, line in enumerate(lines(error)):
        assert f"batched {mode} derivative, vmap against a loop, example {k}" in line
        assert "+0.1 %" in line


def test_what_vmap_cannot_do_is_a_finding() -> None:
    f = when_batched(lambda g: g * float(g[0]))
    with pytest.raises(GradcheckError, match="batched reverse derivative: vmap raised") as error:
        gradcheck(f, X, check_batched_grad=True)
    assert len(lines(error)) == 1
    with pytest.raises(GradcheckError, match="derivative of the reverse derivative: batched reverse derivative"):
        gradgradcheck(lambda x: f(f(x)), X, check_batched_grad=True)
    assert gradgradcheck(gnp.sin, X, check_batched_grad=True)
