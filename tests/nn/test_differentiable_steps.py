"""Recorded steps of optimisers (`differentiable=True`), against others and difference quotients."""

import copy
import re

import guard
import numpy as np
import pytest
from samples.training import CASES

import gradmgr.numpy as gnp
from gradmgr import (
    GradManager,
    Tensor,
    asarray,
    distributed,
    errors,
    forward_ad,
    nn,
    no_grad,
    optim,
    sparse,
    tensor,
    vmap,
)
from gradmgr.functional import grad
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

X = np.random.default_rng(3).standard_normal((5, 3))
START = np.array([0.3, -0.8, 1.1])
EACH_CASE = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{'-'.join(o)}" for name, o in CASES])


def inner_loss(w):
    return gnp.sum(gnp.tanh(X @ w) ** 2)


def trained(name, w, steps=3, **options):
    """Train a tensor in place by some steps, and return the optimiser."""
    optimizer = getattr(optim, name)([w], **options)
    inner = GradManager().attach(w)
    for _ in range(steps):
        with inner:
            inner.backward(inner_loss(w))
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def outer_loss(name, w, steps=3, **options):
    """Return a loss of what training a copy comes to."""
    w = w + 0.0
    trained(name, w, steps, **options)
    return (w * w).sum()


def quotient(f, at, step=1e-6):
    """Return the central difference quotient of a function of an array, by each element."""
    at = np.asarray(at, dtype=float)
    found = np.empty(at.shape)
    for k in np.ndindex(at.shape):
        change = np.zeros(at.shape)
        change[k] = step
        found[k] = (f(at + change) - f(at - change)) / (2 * step)
    return found


def quotient_from_above(f, at, step=1e-5):
    """Return the same of a function that is defined from `at` on, to second order."""
    return (-3 * f(at) + 4 * f(at + step) - f(at + 2 * step)) / (2 * step)


def value(name, w, **options):
    return outer_loss(name, tensor(w), **options).item()


# ---------------------------------------------------------------- values


def states_of(optimizer):
    return [[np.asarray(part) for part in state.values()] for state in optimizer.state_dict()["state"].values()]


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16"])
@EACH_CASE
def test_values_and_states_are_bit_by_bit_those_of_steps_that_are_not_recorded(name, options, dtype):
    rng = np.random.default_rng(1)

    def drawn():
        parts = [rng.standard_normal(shape) + (1j * rng.standard_normal(shape) * (dtype == "c16")) for shape in SHAPES]
        return [np.asarray(a).astype(dtype) if dtype == "c16" else np.asarray(a).real.astype(dtype) for a in parts]

    start, slopes = drawn(), [drawn() for _ in range(4)]
    found = []
    for differentiable in (False, True):
        params = [tensor(a) for a in start]
        optimizer = getattr(optim, name)(params, lr=0.1, differentiable=differentiable, **options)
        with GradManager().attach(params):
            for of_step in slopes:
                for p, g in zip(params, of_step, strict=True):
                    p.grad = tensor(g)
                optimizer.step()
        found.append([[p.numpy() for p in params], *states_of(optimizer)])
    for one, other in zip(*found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


SHAPES = [(3, 4), (), (0, 2)]


@EACH_CASE
def test_without_a_recording_it_is_an_ordinary_step(name, options):
    w, plain = tensor(START), tensor(START)
    optimizer = trained(name, w, differentiable=True, lr=tensor(0.1), **options)
    trained(name, plain, lr=0.1, **options)
    np.testing.assert_array_equal(w.numpy(), plain.numpy())
    where = w._array.__array_interface__["data"][0]
    w.grad = tensor(START)
    optimizer.step()
    assert w._array.__array_interface__["data"][0] == where


@EACH_CASE
def test_recorded_steps_and_others_may_alternate(name, options):
    w, plain = tensor(START), tensor(START)
    optimizer = getattr(optim, name)([w], lr=0.1, differentiable=True, **options)
    other = getattr(optim, name)([plain], lr=0.1, **options)
    gm = GradManager().attach(w)
    for k in range(6):
        w.grad = plain.grad = tensor(np.cos(k + START))
        other.step()
        if k in (1, 2, 4):
            with gm:
                optimizer.step()
        else:
            optimizer.step()
        np.testing.assert_array_equal(w.numpy(), plain.numpy())


def test_a_parameter_without_a_gradient_is_left_alone():
    w, v = tensor(START), tensor(START)
    optimizer = optim.Adam([w, v], differentiable=True)
    gm = GradManager().attach([w, v])
    with gm:
        w.grad = tensor(START)
        optimizer.step()
        gm.backward((v * 2).sum())
    assert v.tolist() == START.tolist()
    assert v.grad.tolist() == [2, 2, 2]
    assert list(optimizer.state_dict()["state"]) == [0]


# ---------------------------------------------------------------- derivatives


@EACH_CASE
def test_derivatives_by_the_start_and_the_learning_rate_are_difference_quotients(name, options):
    w, rate = tensor(START), tensor(0.1)
    gm = GradManager().attach([w, rate])
    with gm:
        gm.backward(outer_loss(name, w, differentiable=True, lr=rate, **options))
    by_start = quotient(lambda a: value(name, a, lr=0.1, **options), START)
    by_rate = quotient(lambda a: value(name, START, lr=float(a), **options), 0.1)
    np.testing.assert_allclose(w.grad.numpy(), by_start, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rate.grad.numpy(), by_rate, rtol=1e-6)


BY_OPTION = [
    ("SGD", "momentum", 0.5, {}),
    ("SGD", "momentum", 0.5, {"nesterov": True}),
    ("SGD", "dampening", 0.3, {"momentum": 0.9}),
    ("SGD", "weight_decay", 0.1, {}),
    ("Adam", "eps", 0.1, {}),
    ("Adam", "weight_decay", 0.1, {"amsgrad": True}),
    ("AdamW", "weight_decay", 0.1, {}),
    ("RMSprop", "alpha", 0.7, {}),
    ("RMSprop", "momentum", 0.5, {"centered": True}),
    ("RMSprop", "eps", 0.1, {}),
    ("Adagrad", "lr_decay", 0.2, {}),
    ("Adagrad", "initial_accumulator_value", 0.2, {}),
    ("Adadelta", "rho", 0.7, {}),
    ("Adadelta", "eps", 0.1, {}),
    ("Adamax", "eps", 0.1, {}),
    ("NAdam", "momentum_decay", 0.2, {}),
    ("NAdam", "weight_decay", 0.1, {"decoupled_weight_decay": True}),
    ("RAdam", "eps", 0.1, {"betas": (0.8, 0.9), "steps": 7}),  # of which the last divide by the root
    ("RAdam", "lr", 0.1, {"betas": (0.8, 0.9), "steps": 7}),
    ("Lion", "weight_decay", 0.1, {}),
]


@pytest.mark.parametrize(("name", "option", "at", "others"), BY_OPTION, ids=[f"{c[0]}-{c[1]}" for c in BY_OPTION])
def test_derivatives_by_other_options_are_difference_quotients(name, option, at, others):
    number = tensor(at)
    gm = GradManager().attach(number)
    with gm:
        gm.backward(outer_loss(name, tensor(START), differentiable=True, **{"lr": 0.1, **others, option: number}))
    expected = quotient(lambda a: value(name, START, **{"lr": 0.1, **others, option: float(a)}), at)
    np.testing.assert_allclose(number.grad.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Lion"])
def test_derivatives_by_betas_are_difference_quotients(name):
    at = np.array([0.8, 0.6])
    betas = tensor(at)
    gm = GradManager().attach(betas)
    with gm:
        gm.backward(outer_loss(name, tensor(START), differentiable=True, lr=0.1, betas=(betas[0], betas[1])))
    expected = quotient(lambda a: value(name, START, lr=0.1, betas=tuple(a.tolist())), at)
    np.testing.assert_allclose(betas.grad.numpy(), expected, rtol=1e-6, atol=1e-8)


AT_0 = [(name, "lr", {}) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam")]
AT_0 += [("Adam", "lr", {"amsgrad": True}), ("RAdam", "lr", {}), ("SGD", "momentum", {}), ("RMSprop", "momentum", {})]
AT_0 += [(name, "weight_decay", {}) for name in ("SGD", "Adam", "AdamW", "RAdam")]
AT_0 += [("SGD", "dampening", {"momentum": 0.9})]


@pytest.mark.parametrize(("name", "option", "others"), AT_0, ids=[f"{name}-{option}" for name, option, _ in AT_0])
def test_an_option_of_0_that_is_a_tensor_has_a_derivative(name, option, others):
    """There a step without it makes fewer calls."""
    number = tensor(0.0)
    others = {"lr": 0.1, **others}
    gm = GradManager().attach(number)
    with gm:
        loss = outer_loss(name, tensor(START), differentiable=True, **{**others, option: number})
        gm.backward(loss)
    assert loss.item() == value(name, START, **{**others, option: 0.0})
    expected = quotient_from_above(lambda a: value(name, START, **{**others, option: a}), 0.0)
    np.testing.assert_allclose(number.grad.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "Adagrad", "NAdam"])
def test_a_gradient_of_0_has_no_derivative_that_is_not_a_number(name):
    """In these the root of its square is divided by; torch's derivative is NaN there."""
    g, v = tensor([0.0, 0.5, 0.0]), tensor(START)
    w = v.clone()
    gm = GradManager().attach(g)
    with gm:
        w.grad = g * 1.0
        getattr(optim, name)([w], lr=0.1, eps=0.1, differentiable=True).step()
        gm.backward(w.sum())

    def stepped(a):
        w = tensor(START)
        w.grad = tensor(a)
        getattr(optim, name)([w], lr=0.1, eps=0.1).step()
        return w.numpy().sum()

    np.testing.assert_allclose(g.grad.numpy(), quotient(stepped, g.numpy(), 1e-9), rtol=1e-5)


ORDERS = pytest.mark.parametrize(
    ("name", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {}), ("RMSprop", {"centered": True, "eps": 0.1})]
)


@ORDERS
def test_second_derivatives_are_difference_quotients_of_the_first(name, options):
    def slope(start, rate):
        return grad(lambda w, rate: outer_loss(name, w, differentiable=True, lr=rate, **options), argnums=(0, 1))(
            start, rate
        )

    def sum_of_slopes(start, rate):
        by_start, by_rate = slope(start, rate)
        return by_start.sum() + by_rate

    found = grad(sum_of_slopes, argnums=(0, 1))(tensor(START), tensor(0.1))
    by_start = quotient(lambda a: sum_of_slopes(tensor(a), tensor(0.1)).item(), START)
    by_rate = quotient(lambda a: sum_of_slopes(tensor(START), tensor(float(a))).item(), 0.1)
    np.testing.assert_allclose(found[0].numpy(), by_start, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1].numpy(), by_rate, rtol=1e-5)


TORCHS = [(name, o) for name, o in CASES if name != "Lion" and not (name == "SGD" and "momentum" in o)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("name", "options"), TORCHS, ids=[f"{name}-{'-'.join(o)}" for name, o in TORCHS])
def test_a_step_and_its_derivative_are_torchs(name, options):
    """But for SGD's first step with momentum, whose gradient torch takes as a constant.

    One step, as torch's second raises for several of them; torch's Adam computes some of its constants in float32.
    """
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    start = torch.tensor(START, requires_grad=True)
    theirs = start.clone()
    slope = (torch.tanh(torch.tensor(X) @ theirs) ** 2).sum()
    (theirs.grad,) = torch.autograd.grad(slope, theirs, create_graph=True)
    getattr(torch.optim, name)([theirs], lr=0.1, differentiable=True, **options).step()
    (expected,) = torch.autograd.grad((theirs**2).sum(), start)

    w = tensor(START)
    gm = GradManager().attach(w)
    with gm:
        ours = w.clone()
        trained(name, ours, 1, lr=0.1, differentiable=True, **options)
        gm.backward((ours**2).sum())
    rtol = 1e-5 if "Adam" in name and name != "RAdam" else 1e-12
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=rtol)
    np.testing.assert_allclose(w.grad.numpy(), expected.numpy(), rtol=rtol)


# ---------------------------------------------------------------- learning to learn


def tasks(count=2):
    rng = np.random.default_rng(5)
    return [(rng.standard_normal((6, 3)), rng.standard_normal((6, 2))) for _ in range(count)]


def maml_by_hand(weights, rate):
    """Return the loss after two steps on each task, computed by functions alone."""
    total = 0.0
    for x, y in tasks():
        own = dict(weights)
        for _ in range(2):
            slopes = grad(lambda own, x=x, y=y: F.mse_loss(gnp.tanh(x @ own["weight"].T + own["bias"]), y))(own)
            own = {name: own[name] - rate * slopes[name] for name in own}
        total = total + F.mse_loss(gnp.tanh(x[::-1] @ own["weight"].T + own["bias"]), y)
    return total


def expected_meta_gradients(model, rate):
    weights = dict(model.named_parameters())
    return grad(maml_by_hand, argnums=(0, 1))(weights, rate)


def a_model():
    return nn.Linear(3, 2, rng=np.random.default_rng(0), dtype="float64")


def test_maml_over_two_steps_adapts_copies():
    model, rate = a_model(), tensor(0.3)
    expected, by_rate = expected_meta_gradients(model, rate)
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}
    outer = GradManager().attach([*model.parameters(), rate])
    with outer:
        total = 0.0
        for x, y in tasks():
            own = {name: p.clone() for name, p in model.named_parameters()}
            optimizer = optim.SGD(own.values(), lr=rate, differentiable=True)
            inner = GradManager().attach(own)
            for _ in range(2):
                with inner:
                    inner.backward(F.mse_loss(gnp.tanh(nn.functional_call(model, own, (x,))), y))
                optimizer.step()
                optimizer.zero_grad()
            total = total + F.mse_loss(gnp.tanh(nn.functional_call(model, own, (x[::-1],))), y)
        outer.backward(total)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(p.grad.numpy(), expected[name].numpy(), rtol=1e-12)
        np.testing.assert_array_equal(p.numpy(), before[name])
    np.testing.assert_allclose(rate.grad.numpy(), by_rate.numpy(), rtol=1e-12)


def test_maml_over_two_steps_in_place_and_back():
    """The model's own parameters are trained, and set back by a write that is recorded."""
    model, rate = a_model(), tensor(0.3)
    expected, by_rate = expected_meta_gradients(model, rate)
    params = list(model.parameters())
    before = [p.numpy().copy() for p in params]
    outer, inner = GradManager().attach([*params, rate]), GradManager().attach(params)
    with outer:
        start, total = [p.clone() for p in params], 0.0
        for x, y in tasks():
            optimizer = optim.SGD(params, lr=rate, differentiable=True)
            for _ in range(2):
                with inner:
                    inner.backward(F.mse_loss(gnp.tanh(model(x)), y))
                optimizer.step()
                optimizer.zero_grad()
            total = total + F.mse_loss(gnp.tanh(model(x[::-1])), y)
            for p, s in zip(params, start, strict=True):
                p[...] = s
        outer.backward(total)
    for p, name, old in zip(params, expected, before, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), expected[name].numpy(), rtol=1e-12)
        np.testing.assert_array_equal(p.numpy(), old)
    np.testing.assert_allclose(rate.grad.numpy(), by_rate.numpy(), rtol=1e-12)


def test_a_learning_rate_for_each_group_is_learned_by_an_outer_optimiser():
    start = [tensor(START), tensor(START)]
    rates = [tensor(0.01), tensor(0.01)]
    outer, meta = GradManager().attach(rates), optim.Adam(rates, lr=5e-3)
    losses = []
    for _ in range(40):
        with outer:
            w, v = (p.clone() for p in start)
            groups = [{"params": [w], "lr": rates[0]}, {"params": [v], "lr": rates[1]}]
            optimizer = optim.SGD(groups, momentum=0.5, differentiable=True)
            inner = GradManager().attach([w, v])
            for _ in range(3):
                with inner:
                    inner.backward(((w - 1) ** 2).sum() + 3 * ((v - 1) ** 2).sum())
                optimizer.step()
                optimizer.zero_grad()
            loss = ((w - 1) ** 2).sum() + 3 * ((v - 1) ** 2).sum()
            outer.backward(loss)
        meta.step()
        meta.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert rates[0].item() > 0.01
    assert rates[1].item() > 0.01


def test_a_group_may_be_recorded_and_another_not():
    w, v = tensor(START), tensor(START)
    optimizer = optim.SGD([{"params": [w], "differentiable": True}, {"params": [v]}], lr=0.1)
    gm = GradManager().attach([w, v])
    with gm:
        w.grad, v.grad = tensor(START), tensor(START)
        optimizer.step()
        w.grad = v.grad = None
        gm.backward((w * 2).sum(), retain=True)
        assert w.grad.tolist() == [2, 2, 2]
        with pytest.raises(errors.RecordingError, match="differentiable=True"):
            gm.backward((w * v).sum())
    np.testing.assert_array_equal(w.numpy(), v.numpy())


def test_a_value_kept_from_before_the_step_has_its_own_gradient():
    w = tensor(START)
    gm = GradManager().attach(w)
    with gm:
        before = (w * w).sum()
        w.grad = tensor([1.0, 1.0, 1.0])
        optim.SGD([w], lr=0.5, weight_decay=1.0, differentiable=True).step()
        w.grad = None
        gm.backward(before + w.sum())
    np.testing.assert_allclose(w.grad.numpy(), 2 * START + 0.5)


def test_within_no_grad_a_step_makes_constants():
    w = tensor(START)
    gm = GradManager().attach(w)
    with gm:
        w.grad = tensor(START)
        with no_grad():
            optim.SGD([w], differentiable=True).step()
        with pytest.raises(errors.NotRecordedError):
            gm.backward((w * 2).sum())


@pytest.mark.usefixtures("cupy")
@EACH_CASE
def test_on_arrays_that_are_not_numpys(name, options):
    """The rate is on the host, and its gradient comes back to it."""
    found = []
    for move in (lambda a: tensor(a), lambda a: asarray(guard.cupy.asarray(np.array(a)))):
        w, rate = move(START), tensor(0.1)
        gm = GradManager().attach([w, rate])
        with gm:
            own = w * 1.0
            optimizer = getattr(optim, name)([own], lr=rate, differentiable=True, **options)
            for _ in range(2):
                own.grad = own * own
                optimizer.step()
            gm.backward((own * own).sum())
        found.append([np.asarray(getattr(t._array, "_host", t._array)) for t in (own, w.grad, rate.grad)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# ---------------------------------------------------------------- state


def test_what_is_saved_does_not_say_how_a_step_is_computed():
    w, rate = tensor(START), tensor(0.1)
    optimizer = trained("Adam", w, differentiable=True, lr=rate)
    saved = optimizer.state_dict()
    (group,) = saved["param_groups"]
    assert "differentiable" not in group
    rate += 1.0
    assert group["lr"].item() == 0.1
    v = tensor(w)
    plain = optim.Adam([v])
    plain.load_state_dict(saved)
    assert plain.param_groups[0]["differentiable"] is False
    other = optim.Adam([tensor(w)], differentiable=True)
    other.load_state_dict({**saved, "param_groups": [{**group, "differentiable": False}]})
    assert other.param_groups[0]["differentiable"] is True
    w.grad = v.grad = tensor(START)
    rate -= 1.0
    optimizer.step()
    plain.step()
    np.testing.assert_allclose(v.numpy(), w.numpy(), rtol=1e-12)


def test_a_copy_goes_on_with_the_values():
    w = tensor(START)
    gm = GradManager().attach(w)
    with gm:
        optimizer = trained("Adam", w, differentiable=True)
        (v,), other = [w], copy.deepcopy(optimizer)
    (v,) = other.param_groups[0]["params"]
    w.grad = v.grad = tensor(START)
    optimizer.step()
    other.step()
    np.testing.assert_array_equal(v.numpy(), w.numpy())


# ---------------------------------------------------------------- errors


def test_a_gradient_of_rows_is_refused(unchanged):
    w = tensor(np.ones((4, 2)))
    w.grad = sparse.RowSparse([1], [[1.0, 2.0]], (4, 2))
    optimizer = optim.SGD([w], lr=0.5, differentiable=True)
    gm = GradManager().attach(w)
    with (
        gm,
        unchanged([gm], [w]),
        pytest.raises(errors.UnsupportedFunctionError, match=re.escape("p.grad = p.grad.to_dense()")),
    ):
        optimizer.step()
    optimizer.step()
    assert w.tolist() == [[1, 1], [0.5, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("make", [optim.SparseAdam, optim.LBFGS])
def test_algorithms_that_have_no_such_steps(make):
    with pytest.raises(TypeError, match="differentiable"):
        make([tensor(START)], differentiable=True)


def test_optimisers_divided_among_ranks_have_no_such_steps():
    distributed.init()
    try:
        with pytest.raises(ValueError, match="differentiable=True is not possible"):
            distributed.ZeroRedundancyOptimizer([tensor(START)], optim.SGD, differentiable=True)
    finally:
        distributed.finalize()


def test_a_scaler_in_a_recording_is_refused():
    w = tensor(START)
    scaler, optimizer = optim.GradScaler(), optim.SGD([w], differentiable=True)
    gm = GradManager().attach(w)
    with gm:
        w.grad = tensor(START)
        scaler.scale(inner_loss(w))
        for method in (scaler.step, scaler.unscale_):
            with pytest.raises(errors.RecordingError, match="as constants"):
                method(optimizer)
    assert w.grad.tolist() == START.tolist()
    scaler.step(optimizer)


@pytest.mark.parametrize("make", [lambda o: optim.lr_scheduler.StepLR(o, 2), optim.lr_scheduler.ReduceLROnPlateau])
def test_a_schedule_of_a_learning_rate_that_is_a_tensor_is_refused(make):
    with pytest.raises(ValueError, match="sets `lr` to a number"):
        make(optim.SGD([tensor(START)], lr=tensor(0.1), differentiable=True))
    make(optim.SGD([tensor(START)], lr=0.1, differentiable=True))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"lr": tensor([0.1, 0.2])}, TypeError, "lr must be a number"),
        ({"lr": tensor(-0.1)}, ValueError, "lr must be at least 0"),
        ({"betas": (tensor(1.5), 0.9)}, ValueError, "betas"),
    ],
)
def test_wrong_options(options, kind, said):
    with pytest.raises(kind, match=said):
        optim.Adam([tensor(START)], differentiable=True, **options)


def test_an_option_that_becomes_wrong_changes_nothing(unchanged):
    w, rate = tensor(START), tensor(0.1)
    optimizer = optim.SGD([w], lr=rate, momentum=0.9, differentiable=True)
    gm = GradManager().attach([w, rate])
    with gm:
        w.grad = tensor(START)
        optimizer.param_groups[0]["momentum"] = "fast"
        with unchanged([gm], [w]), pytest.raises(TypeError, match="momentum must be a number"):
            optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.9


def test_inside_vmap_it_is_refused_as_any_step():
    def f(row: Tensor) -> Tensor:
        w = row * 1.0
        w.grad = row
        optim.SGD([w], differentiable=True).step()
        return w

    with pytest.raises(errors.BatchedValueError, match="step outside of it"):
        vmap(f)(tensor(X))


def test_a_tangent_is_kept_by_a_recorded_step_and_missed_by_another():
    for differentiable in (True, False):
        with forward_ad.dual_level():
            w = forward_ad.make_dual(tensor(START), tensor([1.0, 0.0, 0.0]))
            w.grad = tensor(START)
            optimizer = optim.SGD([w], lr=0.5, weight_decay=1.0, differentiable=differentiable)
            if differentiable:
                optimizer.step()
                assert forward_ad.unpack_dual(w).tangent.tolist() == [0.5, 0, 0]
            else:
                with pytest.raises(errors.RecordingError, match="has a tangent"):
                    optimizer.step()
