"""The numbers of optimisers: fifty steps as torch.optim takes them, in float64, to rounding; the paper's for Lion."""

import copy
import pickle
import threading

import numpy as np
import pytest

from gradmgr import nn, optim, tensor
from gradmgr.optim import _chunks

# What torch 2.13 comes to after 50 steps from [1, -2, 0.5], where the gradient at step k is cos(k + [0, 1, 2]) + p / 2.
REAL = [
    ("SGD", {"lr": 0.1}, [0.14368591672161957, -0.17928816150230573, -0.05571387768775921]),
    ("SGD", {"lr": 0.1, "momentum": 0.9}, [0.13791455298585534, 0.04907883460743342, -0.06318741513390004]),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        [0.048744757629946796, 0.1599820768957482, -0.07361138164779757],
    ),
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        [0.18830740026898815, 0.029110281141079178, -0.15094080518371752],
    ),
    (
        "SGD",
        {"lr": 0.1, "weight_decay": 0.1, "maximize": True},
        [7.404063466278678, -14.51826309953485, 2.9264890896562816],
    ),
    ("Adam", {"lr": 0.1}, [-0.037836457391137786, 0.10519543006487599, -0.06278299262403811]),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1}, [-0.0323657998454326, 0.1310069848902999, -0.06138594297966815]),
    (
        "Adam",
        {"lr": 0.1, "amsgrad": True, "betas": (0.8, 0.9)},
        [0.03431596012341425, -0.052649952258632574, -0.00833044292855609],
    ),
    (
        "Adam",
        {"lr": 0.1, "maximize": True, "eps": 0.001},
        [5.756945276509143, -7.192304941083826, 1.7023232388690113],
    ),
    ("AdamW", {"lr": 0.1}, [-0.03644874250034738, 0.10623304017098283, -0.06172261146589854]),
    (
        "AdamW",
        {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True},
        [-0.0019488417969070176, 0.06355581006899158, -0.02906819594972672],
    ),
    ("RMSprop", {}, [0.4752299017311138, -1.0547691030999833, 0.28966715427075823]),
    ("RMSprop", {"lr": 0.05, "momentum": 0.9}, [0.13247020402694737, -0.2524340014461692, -0.042373390767173294]),
    (
        "RMSprop",
        {"lr": 0.05, "centered": True, "weight_decay": 0.1},
        [0.08003215818556238, -0.044865830011822205, -0.10307669565441717],
    ),
    (
        "RMSprop",
        {"lr": 0.05, "centered": True, "momentum": 0.5, "alpha": 0.9, "maximize": True},
        [13.855754912571443, -17.57509112809299, -2.7332201252580144],
    ),
    ("Adagrad", {"lr": 0.1}, [0.49080081370136186, -1.085919626073214, 0.30325245020756164]),
    (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2, "maximize": True},
        [1.3334947155265422, -2.511561175107684, 0.4996660235105852],
    ),
    ("Adadelta", {}, [0.9355069143635011, -1.8641494757069579, 0.44311179356273167]),
    (
        "Adadelta",
        {"lr": 0.5, "rho": 0.8, "eps": 0.0001, "weight_decay": 0.1, "maximize": True},
        [1.2496130130512124, -2.4925034657285106, 0.6797342951885686],
    ),
    ("Adamax", {}, [0.9638536814330959, -1.9470499669474939, 0.48733790090250967]),
    (
        "Adamax",
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.001, "weight_decay": 0.1, "maximize": True},
        [3.8964406907484777, -5.5983522581955665, 1.1071700271864933],
    ),
    ("RAdam", {"lr": 0.1}, [0.444660149880643, -1.1727218889408364, 0.44102121398085203]),
    (
        "RAdam",
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.001, "weight_decay": 0.1},
        [0.03099243914998581, -0.0002822686738035282, -0.012841548816232475],
    ),
    (
        "RAdam",
        {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
        [1.1369487629814645, -1.8686164885662542, 0.3150177961940285],
    ),
]

# The same for NAdam, whose product of momenta torch keeps in float32.
NADAM = [
    ({"lr": 0.1}, [0.061419313278554225, -0.08595179104292626, -0.07809314008271699]),
    (
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.001, "weight_decay": 0.1, "momentum_decay": 0.1},
        [0.07426844511882201, -0.053153988819053935, -0.07341512978036153],
    ),
    (
        {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
        [4.27910997188357, -5.217237954224074, 2.3777818359277214],
    ),
]

# After 5 steps from [1+2j, -2-0.5j] with gradients cos(k + [0, 1]) + 1j sin(k [0, 1]) + p / 2.
COMPLEX = [
    (
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        [0.23154820811287657 + 0.8788984662444798j, -0.7315155171504857 - 0.5283655049432597j],
    ),
    (
        "Adam",
        {"lr": 0.1, "amsgrad": True, "betas": (0.8, 0.9)},
        [0.6968750900756181 + 1.5032193944064658j, -1.5293784669931703 - 0.5497381805722574j],
    ),
    (
        "RMSprop",
        {"lr": 0.05, "centered": True, "weight_decay": 0.1},
        [0.6194454100019654 + 0.6660369154032365j, -0.45048176376195664 - 0.2651061947290825j],
    ),
]

# The length of a parameter that is a chunk by itself and is computed in blocks.
LONG = 100_000


def ids(case):
    return f"{case[0]}-{'-'.join(case[1])}"


def steps(name, options, params, count, gradient):
    optimizer = getattr(optim, name)(params, **options)
    for k in range(count):
        for p in params:
            p.grad = tensor(gradient(k, p.numpy()))
        optimizer.step()
    return optimizer


def grad_at(k, p):
    return np.cos(k + np.arange(3.0)) + 0.5 * p


@pytest.mark.parametrize("case", REAL, ids=ids)
def test_fifty_steps_are_torchs(case):
    name, options, expected = case
    p = tensor([1.0, -2.0, 0.5])
    steps(name, options, [p], 50, grad_at)
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("case", REAL, ids=ids)
def test_a_parameter_is_stepped_the_same_whatever_the_others_are(case):
    """Alone, packed with others of several shapes, with 0-d and empty ones, long, and laid out column by column."""
    name, options, _ = case
    alone = tensor([1.0, -2.0, 0.5])
    steps(name, options, [alone], 7, grad_at)
    start = np.array([1.0, -2.0, 0.5])
    row, matrix, number = tensor(start), tensor(np.tile(start, (2, 2, 1))), tensor(1.0)
    long, columns = tensor(np.tile(start, (LONG, 1))), tensor(np.asfortranarray(np.tile(start, (LONG, 1))))
    params = [matrix, number, tensor(np.zeros((0, 3))), long, row, columns]
    steps(name, options, params, 7, lambda k, p: grad_at(k, p)[..., 0] if p.ndim == 0 else grad_at(k, p))
    for p in (row, matrix, long, columns):
        np.testing.assert_array_equal(p.numpy(), np.broadcast_to(alone.numpy(), p.shape))
    assert number.item() == alone.numpy()[0]


@pytest.mark.parametrize("case", COMPLEX, ids=ids)
def test_complex_parameters_are_two_real_ones_as_in_torch(case):
    name, options, expected = case
    p = tensor([1.0 + 2j, -2.0 - 0.5j])

    def gradient(k, p):
        return np.cos(k + np.arange(2.0)) + 1j * np.sin(k * np.arange(2.0)) + 0.5 * p

    steps(name, options, [p], 5, gradient)
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("case", REAL, ids=ids)
def test_float32(case):
    name, options, _ = case
    exact, p = tensor([1.0, -2.0, 0.5]), tensor(np.array([1.0, -2.0, 0.5], "f4"))
    steps(name, options, [exact], 10, grad_at)
    steps(name, options, [p], 10, lambda k, p: grad_at(k, p).astype("f4"))
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.numpy(), exact.numpy(), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("name", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {"eps": 1e-4}), ("Lion", {})])
def test_half_precision_is_computed_in_single_and_kept_in_half(name, options, long, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="NumPy knows no bfloat16").bfloat16
    start = np.array([1.0, -2.0, 0.5])
    exact, p = tensor(start), tensor(np.tile(start, (LONG if long else 1, 1)).astype(dtype))
    steps(name, {"lr": 0.1, **options}, [exact], 10, grad_at)
    optimizer = steps(name, {"lr": 0.1, **options}, [p], 10, lambda k, p: grad_at(k, p.astype("f8")).astype(dtype))
    assert p.dtype == dtype
    error = 20 * float(np.abs(start).max()) * (2**-11 if p.dtype.char == "e" else 2**-8)
    np.testing.assert_allclose(p.numpy().astype("f8"), np.broadcast_to(exact.numpy(), p.shape), atol=error)
    kept = {key: value.dtype for key, value in optimizer.state_dict()["state"][0].items() if key != "step"}
    assert set(kept.values()) == {np.dtype(dtype)}


@pytest.mark.parametrize(("options", "expected"), NADAM)
def test_nadam_is_torchs(options, expected):
    p = tensor([1.0, -2.0, 0.5])
    steps("NAdam", options, [p], 50, grad_at)
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-8)


def test_nadams_momenta_do_not_depend_on_the_order_in_which_steps_are_asked_for():
    """Parameters whose first gradients come at different steps, each as if it were alone."""
    late, early, alone = tensor([1.0]), tensor([1.0]), tensor([1.0])
    both, one = optim.NAdam([late, early], lr=0.1), optim.NAdam([alone], lr=0.1)
    for k in range(600):  # until the product of the momenta is negligible
        early.grad = tensor([np.cos(k)])
        late.grad = tensor([np.cos(k - 100)]) if k >= 100 else None
        both.step()
    for k in range(500):
        alone.grad = tensor([np.cos(k)])
        one.step()
    np.testing.assert_array_equal(late.numpy(), alone.numpy())
    assert early.item() != late.item()


def test_lion_is_the_papers():
    lr, beta1, beta2, decay = 0.03, 0.8, 0.95, 0.2
    p = np.array([1.0, -2.0, 0.5])
    t = tensor(p)
    steps("Lion", {"lr": lr, "betas": (beta1, beta2), "weight_decay": decay}, [t], 50, grad_at)
    m = np.zeros(3)
    for k in range(50):
        g = grad_at(k, p)
        p = p - lr * (np.sign(beta1 * m + (1 - beta1) * g) + decay * p)
        m = beta2 * m + (1 - beta2) * g
    np.testing.assert_allclose(t.numpy(), p, rtol=1e-12)


def test_defaults_are_torchs_and_the_papers():
    p = [tensor([1.0])]
    for name, expected in {
        "SGD": {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
        "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False},
        "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
        "RMSprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False},
        "Adagrad": {"lr": 1e-2, "lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10},
        "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0},
        "Adamax": {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0},
        "NAdam": {
            "lr": 2e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 0,
            "momentum_decay": 4e-3,
            "decoupled_weight_decay": False,
        },
        "RAdam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "decoupled_weight_decay": False},
        "Lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0},
    }.items():
        assert getattr(optim, name)(p).defaults == {**expected, "maximize": False, "differentiable": False}


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_at_a_learning_rate_of_0_adam_keeps_its_averages(name, amsgrad):
    """The learning rate is divided by, inside."""
    still, p = tensor([1.0, -2.0, 0.5]), tensor([1.0, -2.0, 0.5])
    state = steps(name, {"lr": 0, "amsgrad": amsgrad}, [still], 3, lambda k, p: grad_at(k, 0)).state_dict()["state"][0]
    moved = steps(name, {"lr": 0.1, "amsgrad": amsgrad}, [p], 3, lambda k, p: grad_at(k, 0)).state_dict()["state"][0]
    assert still.tolist() == [1.0, -2.0, 0.5]
    assert p.tolist() != [1.0, -2.0, 0.5]
    for key in state:
        np.testing.assert_array_equal(state[key], moved[key])


def test_momentum_may_be_turned_on_later():
    """As in torch, the first buffer is the gradient of the step that makes it."""
    p = tensor([1.0])
    optimizer = optim.SGD([p], lr=1.0)
    p.grad = tensor([1.0])
    optimizer.step()
    assert optimizer.state_dict()["state"] == {}
    optimizer.param_groups[0]["momentum"] = 0.5
    optimizer.param_groups[0]["dampening"] = 0.25
    optimizer.step()
    assert p.item() == -1.0
    optimizer.step()
    assert p.item() == -1.0 - (0.5 + 0.75)


# ---------------------------------------------------------------- blocks, threads, and steps that are like the last one


# A block of float64 holds 1 << 15 of a long parameter, 1 << 14 of small ones together; threads begin at four blocks.
BLOCK = 1 << 15
AROUND = [(BLOCK // 2 + 1,), (BLOCK,), (4 * BLOCK - 1,), (8 * BLOCK + 1,), *[(3001,)] * 40]


@pytest.mark.parametrize("case", REAL[1::3], ids=ids)
def test_steps_do_not_depend_on_the_number_of_threads(case, set_threads, monkeypatch):
    monkeypatch.setattr(_chunks, "_MANY", 1)
    name, options, _ = case
    rng = np.random.default_rng(0)
    start, slopes = ([rng.standard_normal(shape) for shape in AROUND] for _ in range(2))
    found = []
    for count in (1, 3):
        set_threads(count)
        params = [tensor(a) for a in start]
        optimizer = getattr(optim, name)(params, **options)
        for k in range(3):
            for p, g in zip(params, slopes, strict=True):
                p.grad = tensor(g * (k + 1))
            optimizer.step()
        found.append([p.numpy() for p in params])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    # And no number is left out at the border of a block: the step of the last number of each, taken alone.
    alone = [tensor(a[-1:]) for a in start]
    optimizer = getattr(optim, name)(alone, **options)
    for k in range(3):
        for p, g in zip(alone, slopes, strict=True):
            p.grad = tensor(g[-1:] * (k + 1))
        optimizer.step()
    np.testing.assert_array_equal([a[-1] for a in found[0]], [p.item() for p in alone])


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 300_000, 3 * (1 << 17), 3 * (1 << 17) + 1])
def test_clipping_does_not_depend_on_the_number_of_threads(size, set_threads):
    values = np.random.default_rng(size).standard_normal(size)
    limit = np.linalg.norm(values) / 2
    found = []
    for count in (1, 3):
        set_threads(count)
        p = tensor(np.zeros(size))
        p.grad = tensor(values)
        norm = optim.clip_grad_norm_([p], limit).item()
        found.append((norm, p.grad.numpy()))
    assert found[0][0] == found[1][0] == pytest.approx(2 * limit, rel=1e-14)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_allclose(found[0][1], values * limit / (found[0][0] + 1e-6), rtol=1e-14)


@pytest.mark.parametrize("case", REAL, ids=ids)
def test_options_may_change_from_step_to_step(case):
    """As they do with a schedule; an optimiser that is made anew with them and the state takes the same steps."""
    name, options, _ = case
    p, q = tensor([1.0, -2.0, 0.5]), tensor([1.0, -2.0, 0.5])
    optimizer = getattr(optim, name)([p], **options)
    for k in range(6):
        state = optimizer.state_dict()
        options = optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.1 / (1 + k // 2)}
        anew = getattr(optim, name)([q], **{key: options[key] for key in optimizer.defaults})
        state["param_groups"] = anew.state_dict()["param_groups"]
        anew.load_state_dict(state)
        p.grad, q.grad = tensor(grad_at(k, p.numpy())), tensor(grad_at(k, q.numpy()))
        optimizer.step()
        anew.step()
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_another_list_of_parameters_is_no_error():
    """As ever, the optimiser steps those it was given."""
    given, other = tensor([1.0, 2.0]), tensor([1.0, 2.0])
    optimizer = optim.SGD([given], lr=0.5)
    for params in ([given], [other]):
        optimizer.param_groups[0]["params"] = params
        given.grad = tensor([1.0, 1.0])
        optimizer.step()
    assert given.tolist() == [0.0, 1.0]
    assert other.tolist() == [1.0, 2.0]


def test_an_option_that_changes_in_place_is_read_at_each_step():
    p = tensor([0.0])
    optimizer = optim.SGD([p], lr=1.0)
    optimizer.param_groups[0]["lr"] = rate = np.array(1.0)
    for expected in (-1.0, -1.5, -1.75):
        p.grad = tensor([1.0])
        optimizer.step()
        assert p.item() == expected
        rate *= 0.5
    p = tensor([0.0])
    optimizer = optim.Adam([p], lr=1.0, eps=0.0)
    optimizer.param_groups[0]["betas"] = betas = [0.9, 0.999]
    for _ in range(2):
        p.grad = tensor([1.0])
        optimizer.step()
        betas[0] = 0.0
    np.testing.assert_allclose(optimizer.state_dict()["state"][0]["exp_avg"].numpy(), 1.0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_parameters_whose_first_gradient_comes_late(name):
    """With other constants at their first steps, which must not stay for the others."""
    options = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {"lr_decay": 0.5} if name == "Adagrad" else {}
    starts = [[1.0, -2.0, 0.5], [3.0], [[0.5, 2.0]]]
    together, apart = [tensor(a) for a in starts], [tensor(a) for a in starts]
    optimizer = getattr(optim, name)(together, lr=0.1, **options)
    own = [getattr(optim, name)([p], lr=0.1, **options) for p in apart]
    for k in range(8):
        for n, (p, q) in enumerate(zip(together, apart, strict=True)):
            g = None if k < n or (n == 1 and k == 4) else np.cos(k + np.arange(p.size)).reshape(p.shape)
            p.grad, q.grad = (None, None) if g is None else (tensor(g), tensor(g))
        optimizer.step()
        for o in own:
            o.step()
        for p, q in zip(together, apart, strict=True):
            np.testing.assert_array_equal(p.numpy(), q.numpy())


@pytest.mark.parametrize("maximize", [False, True])
def test_lion_of_zeros_and_of_what_is_not_finite(maximize):
    p = tensor(np.zeros(5))
    p.grad = tensor([0.0, -0.0, np.inf, -np.inf, np.nan])
    optim.Lion([p], lr=0.5, maximize=maximize).step()
    np.testing.assert_array_equal(p.numpy(), np.array([0, 0, -0.5, 0.5, np.nan]) * (-1 if maximize else 1))


def test_a_gradient_that_another_thread_removes_is_asked_for_once():
    class Raced(nn.Parameter):
        """A parameter whose gradient is gone when it is asked for again."""

        @property
        def grad(self):
            return self.found.pop() if self.found else None

    p, without = Raced([1.0, 2.0]), nn.Parameter([3.0])
    p.found = [tensor([1.0, 1.0])]
    optim.SGD([p, without], lr=1.0).step()
    assert p.tolist() == [0.0, 1.0]
    p.found, p._grad = [None, tensor([4.0, 5.0])], None
    assert copy.deepcopy(p).grad.tolist() == [4.0, 5.0]


def test_what_is_pickled_is_the_state_before_a_step_in_another_thread_or_after_it():
    p = nn.Parameter([1.0])
    optimizer = optim.Adam([p])
    pickled = threading.Thread(target=lambda: pickle.dumps(optimizer))
    with optimizer._lock:  # as a step holds it
        pickled.start()
        pickled.join(0.05)
        assert pickled.is_alive()
    pickled.join()
