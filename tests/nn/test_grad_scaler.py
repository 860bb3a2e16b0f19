"""GradScaler: torch.amp's behaviour, on the CPU and in half precision."""

import math

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, optim, tensor


def training(dtype="float32", **options):
    w = tensor(np.ones(2), dtype=dtype)
    return w, optim.SGD([w], lr=1.0), optim.GradScaler(**options), GradManager().attach(w)


def one_step(w, optimizer, scaler, gm, factor=0.1):
    optimizer.zero_grad()
    with gm:
        gm.backward(scaler.scale((w * factor).sum()))
    scaler.step(optimizer)
    scaler.update()


def test_the_scale_grows_and_shrinks_as_torchs():
    w, optimizer, scaler, gm = training(growth_interval=2)
    log = []
    for k in range(8):
        one_step(w, optimizer, scaler, gm, math.inf if k in (3, 4) else 0.1)
        log.append((scaler.get_scale(), round(float(w[0]), 5)))
    scales = [65536, 131072, 131072, 65536, 32768, 32768, 65536, 65536]
    assert log == list(zip(scales, [0.9, 0.8, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4], strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gradients_do_not_vanish(dtype):
    """A gradient of 2e-8 is below float16's least number, and steps all the same."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="NumPy knows no bfloat16").bfloat16
    w, optimizer, scaler, gm = training(dtype, init_scale=2.0**15)
    optimizer.param_groups[0]["lr"] = 1e7
    x = tensor(np.full(2, 2.0**-10), dtype=dtype)
    with gm:
        loss = scaler.scale(((w * x) * x).sum())
        assert loss.dtype == np.float32
        gm.backward(loss)
    assert w.grad.dtype == w.dtype
    assert (w.grad.numpy() == 2.0**-5).all()
    scaler.unscale_(optimizer)
    np.testing.assert_allclose(w.grad.numpy().astype("f8"), 2.0**-20, rtol=1e-2)
    scaler.step(optimizer)
    scaler.update()
    assert (w.numpy() < -8).all()


def test_an_overflow_skips_the_step_and_backs_off():
    w, optimizer, scaler, gm = training("float16", init_scale=2.0**16)
    with np.errstate(over="ignore"):
        one_step(w, optimizer, scaler, gm, 2.0)
    assert w.tolist() == [1, 1]
    assert scaler.get_scale() == 2.0**15
    assert np.isinf(w.grad.numpy().astype("f4")).all()


def test_unscale_comes_before_clipping():
    w, optimizer, scaler, gm = training()
    with gm:
        gm.backward(scaler.scale((w * 30.0).sum()))
    grad = w.grad
    scaler.unscale_(optimizer)
    assert w.grad is grad
    assert grad.tolist() == [30, 30]
    optim.clip_grad_norm_([w], 1.0)
    scaler.step(optimizer)
    np.testing.assert_allclose(w.numpy(), 1 - math.sqrt(0.5), rtol=1e-6)


def test_two_optimizers_share_a_scale():
    a, b = tensor(np.ones(3)), tensor(np.ones(70_000))
    one, two = optim.SGD([a], lr=1.0), optim.SGD([b], lr=1.0)
    scaler, gm = optim.GradScaler(init_scale=4.0), GradManager().attach([a, b])
    with gm:
        gm.backward(scaler.scale(a.sum() * math.inf + b.sum()))
    held = b.grad.numpy()
    scaler.step(one)
    scaler.step(two)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert (a.numpy() == 1).all()
    assert (b.numpy() == 0).all()
    assert (held == 4).all()
    assert (b.grad.numpy() == 1).all()


def test_losses_may_be_in_containers_and_be_recorded():
    w, _, scaler, gm = training(init_scale=2.0)
    with gm:
        scaled = scaler.scale({"a": gnp.sum(w), "b": (gnp.sum(w * 2), [gnp.sum(w * 3)])})
        gm.backward(scaled["b"][0] + scaled["b"][1][0])
    assert scaled["a"].item() == 4
    assert w.grad.tolist() == [10, 10]


def test_update_sets_a_new_scale():
    _, _, scaler, _ = training()
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    scaler.update(tensor(16.0))
    assert scaler.get_scale() == 16.0


def test_the_scale_grows_no_further_than_single_precision():
    w, optimizer, scaler, gm = training(init_scale=2.0**127, growth_interval=1)
    one_step(w, optimizer, scaler, gm, 2.0**-126)
    assert scaler.get_scale() == 2.0**127


def test_a_disabled_scaler_changes_nothing():
    w, optimizer, scaler, gm = training(enabled=False)
    loss = w.sum()
    assert scaler.scale(loss) is loss
    one_step(w, optimizer, scaler, gm)
    scaler.unscale_(optimizer)
    np.testing.assert_allclose(w.numpy(), 0.9, rtol=1e-6)
    assert not scaler.is_enabled()
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
    scaler.load_state_dict({})


def test_a_skipped_first_step_does_not_upset_a_schedule():
    w, optimizer, scaler, gm = training()
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    one_step(w, optimizer, scaler, gm, math.inf)
    assert w.tolist() == [1.0, 1.0]
    schedule.step()  # does not warn, though no step of the optimizer came before
    assert schedule.get_last_lr() == [0.1]


def test_state():
    w, optimizer, scaler, gm = training(init_scale=8.0, growth_interval=3)
    one_step(w, optimizer, scaler, gm)
    saved = scaler.state_dict()
    expected = {"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 1}
    assert saved == expected
    other = optim.GradScaler()
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    assert (other.get_growth_factor(), other.get_backoff_factor(), other.get_growth_interval()) == (2.0, 0.5, 3)
    for bad, said in (
        ({}, "missing: .*'scale'"),
        ({**saved, "more": 1}, r"unknown: \['more'\]"),
        ({**saved, "scale": -1.0}, "finite and above 0; found -1.0"),
        ({**saved, "growth_interval": 0}, "growth_interval"),
    ):
        with pytest.raises(errors.StateError, match=said):
            other.load_state_dict(bad)
        assert other.state_dict() == saved


# ---------------------------------------------------------------- misuse


def test_what_comes_in_the_wrong_order(unchanged):
    w, optimizer, scaler, _ = training()
    w.grad = tensor(np.ones(2, "f4"))
    with pytest.raises(RuntimeError, match="none was called"):
        scaler.update()
    for call in (scaler.step, scaler.unscale_):
        with unchanged([], [w]), pytest.raises(RuntimeError, match=r"call backward of scaler.scale\(loss\)"):
            call(optimizer)
    scaler.scale(tensor(1.0))
    scaler.unscale_(optimizer)
    with unchanged([], [w]), pytest.raises(RuntimeError, match="already since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with unchanged([], [w]), pytest.raises(RuntimeError, match="already since the last update"):
        scaler.step(optimizer)
    with unchanged([], [w]), pytest.raises(RuntimeError, match="comes after step"):
        scaler.unscale_(optimizer)
    scaler.update()
    scaler.step(optimizer)


def test_a_step_needs_gradients_and_no_closure(unchanged):
    w, optimizer, scaler, _ = training()
    scaler.scale(tensor(1.0))
    with unchanged([], [w]), pytest.raises(RuntimeError, match="no parameter of the optimiser has a gradient"):
        scaler.step(optimizer)
    w.grad = tensor(np.ones(2, "f4"))
    with unchanged([], [w]), pytest.raises(RuntimeError, match="no closure"):
        scaler.step(optimizer, closure=lambda: 1)
    scaler.step(optimizer)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: optim.GradScaler(init_scale=0), ValueError, "the scale must be finite and above 0; found 0"),
        (lambda: optim.GradScaler(init_scale=math.inf), ValueError, "found inf"),
        (lambda: optim.GradScaler(growth_factor=1.0), ValueError, "growth_factor must be above 1"),
        (lambda: optim.GradScaler(backoff_factor=1.0), ValueError, "backoff_factor must be at least 0 and below 1"),
        (lambda: optim.GradScaler(backoff_factor=0), ValueError, "backoff_factor must be above 0"),
        (lambda: optim.GradScaler(growth_interval=0), ValueError, "growth_interval"),
        (lambda: optim.GradScaler().scale(3.0), TypeError, "floating Tensors; found 3.0"),
        (lambda: optim.GradScaler().scale([tensor([1])]), TypeError, "floating Tensors"),
        (lambda: optim.GradScaler().step(3), TypeError, "an optimiser of gradmgr.optim; found int"),
    ],
)
def test_wrong_arguments(call, kind, said):
    with pytest.raises(kind, match=said):
        call()
