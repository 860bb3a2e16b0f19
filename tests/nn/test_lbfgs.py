"""LBFGS: torch's steps, its state, and a closure that fails."""

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, optim, tensor

START = [-1.5, 2.0, 0.3]
# Where torch 2.13 comes to from START, and how many times it calls the closure:
# options, number of steps, the parameters, evaluations.
TORCH = [
    ({"line_search_fn": None}, 1, [-1.5865872094026057, 1.9920812755964614, 3.454825519476371], 16),
    ({"lr": 0.1}, 1, [-1.5218613609451919, 1.8421095376145449, 2.9632298959540533], 20),
    ({"line_search_fn": "strong_wolfe"}, 1, [-1.5865853018759501, 1.992081329602161, 3.45482662398488], 17),
    (
        {"line_search_fn": "strong_wolfe", "max_iter": 5},
        4,
        [-1.5865853018759501, 1.992081329602161, 3.45482662398488],
        20,
    ),
    (
        {"lr": 0.1, "line_search_fn": "strong_wolfe", "max_iter": 5},
        4,
        [-1.5329614061794814, 1.8777289298784392, 3.3227902556721105],
        25,
    ),
]


def problem(w):
    return gnp.sum(gnp.cos(w)) + 0.3 * gnp.sum((w[1:] - w[:-1] ** 2) ** 2)


def closure_of(optimizer, w, loss_of=problem):
    gm = GradManager().attach(w)

    def closure():
        optimizer.zero_grad()
        with gm:
            loss = loss_of(w)
            gm.backward(loss)
        return loss

    return closure


@pytest.mark.parametrize(("options", "steps", "expected", "evaluations"), TORCH)
def test_steps_are_torchs(options, steps, expected, evaluations):
    w = tensor(START)
    optimizer = optim.LBFGS([w], history_size=4, **options)
    closure = closure_of(optimizer, w)
    first = optimizer.step(closure)
    assert first.item() == pytest.approx(problem(np.array(START)))
    for _ in range(steps - 1):
        optimizer.step(closure)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-11)
    assert optimizer.state_dict()["state"][0]["func_evals"] == evaluations


def test_a_quadratic_in_several_parameters_is_solved():
    """Its minimum is the solution of a linear system; float32, complex and unused parameters are among them."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((6, 4)).astype("f4")
    b = rng.standard_normal(6).astype("f4")
    x, z, unused = tensor(np.zeros(4, "f4")), tensor(np.zeros((1, 2), complex)), tensor([3.0])
    optimizer = optim.LBFGS([x, z, unused], line_search_fn="strong_wolfe", max_iter=60, tolerance_change=1e-14)
    gm = GradManager().attach([x, z, unused])

    def closure():
        optimizer.zero_grad()
        with gm:
            loss = gnp.sum((a @ x - b) ** 2) + gnp.sum(gnp.abs(z - (1 + 2j)) ** 2)
            gm.backward(loss)
        return loss

    optimizer.step(closure)
    np.testing.assert_allclose(x.numpy(), np.linalg.lstsq(a, b, rcond=None)[0], rtol=1e-3)
    np.testing.assert_allclose(z.numpy(), [[1 + 2j, 1 + 2j]], rtol=1e-5)
    assert unused.tolist() == [3.0]
    assert (x.dtype, z.dtype) == (np.float32, np.complex128)


def test_a_resume_is_exact(tmp_path):
    w, v = tensor(START), tensor(START)
    optimizer, other = (optim.LBFGS([p], lr=0.1, max_iter=3) for p in (w, v))
    optimizer.step(closure_of(optimizer, w))
    gradmgr.save({"w": w, "optimizer": optimizer}, tmp_path / "run")
    gradmgr.load(tmp_path / "run", into={"w": v, "optimizer": other})
    for one, p in ((optimizer, w), (other, v)):
        one.step(closure_of(one, p))
    assert v.tolist() == w.tolist()
    assert w.tolist() != START


def test_a_closure_that_raises_leaves_parameters_and_state_as_they_were():
    w = tensor(START)
    optimizer = optim.LBFGS([w], line_search_fn="strong_wolfe")
    closure, calls = closure_of(optimizer, w), []

    def failing():
        calls.append(w.tolist())
        if len(calls) == 4:
            raise KeyError("in the closure")
        return closure()

    with pytest.raises(KeyError, match="in the closure"):
        optimizer.step(failing)
    assert calls[-1] != START
    assert w.tolist() == START
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda w: optim.LBFGS([w]).step(), TypeError, "LBFGS.step needs a closure"),
        (lambda w: optim.LBFGS([w]).step(lambda: None), TypeError, "closure must return the loss, a number; found Non"),
        (lambda w: optim.LBFGS([w], line_search_fn="armijo"), ValueError, "None or 'strong_wolfe'; found 'armijo'"),
        (lambda w: optim.LBFGS([w], max_iter=0), ValueError, "max_iter must be at least 1"),
        (lambda w: optim.LBFGS([{"params": [w]}, {"params": [tensor(1.0)]}]), ValueError, "one group of parameters"),
        (lambda w: optim.LBFGS([w]).load_state_dict({}), errors.StateError, "not a dict with 'state'"),
    ],
)
def test_wrong_arguments(call, kind, said):
    with pytest.raises(kind, match=said):
        call(tensor(START))


def test_a_state_for_other_parameters_is_refused():
    w = tensor(START)
    optimizer = optim.LBFGS([w], max_iter=2)
    optimizer.step(closure_of(optimizer, w))
    other = optim.LBFGS([tensor([1.0])])
    with pytest.raises(errors.StateError, match="'d' is for 3 numbers; the parameters have 1"):
        other.load_state_dict(optimizer.state_dict())
