"""Anomaly detection: the user's line in the error, NaN found where it is made, nothing changed."""

import asyncio
import threading

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, detect_anomaly, set_detect_anomaly, tensor
from gradmgr.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from gradmgr.errors import AnomalyError


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def test_names_the_line_that_made_the_nan():
    x = tensor([1.0, 0.0])
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        root = gnp.sqrt(x)  # the line to be named
        y = (root * x).sum()
        with pytest.raises(AnomalyError) as caught:
            gm.backward(y)
    text = str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert "'sqrt'" in text
    assert "root = gnp.sqrt(x)  # the line to be named" in text
    assert "test_anomaly.py:" in text
    assert "test_names_the_line_that_made_the_nan" in text
    assert x.grad is None
    with gm:  # idle and reusable
        gm.backward((x * x).sum())
    assert x.grad.tolist() == [2.0, 0.0]


def test_inf_is_no_anomaly():
    x = tensor([0.0, 1.0])
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        gm.backward(gnp.sqrt(x).sum())
    assert x.grad.tolist() == [np.inf, 0.5]


def test_check_nan_off_lets_nan_through():
    x = tensor(0.0)
    gm = GradManager().attach(x)
    with detect_anomaly(check_nan=False), gm:
        gm.backward(gnp.sqrt(x) * x)
    assert np.isnan(x.grad.item())


def test_a_nan_in_dy_is_named_as_such():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    with detect_anomaly(), gm, pytest.raises(AnomalyError, match="it came in with dy"):
        gm.backward(x * 2, np.array([np.nan]))


def test_a_nan_in_dy_is_not_the_fault_of_an_op_that_adds_to_it():
    x = tensor([1.0])
    with GradManager().attach(x) as gm, detect_anomaly():
        middle = gnp.exp(x)
        y = middle * 2.0 + middle * 3.0
        with pytest.raises(AnomalyError, match=r"op 'exp' is NaN .* it came in with dy"):
            gm.backward([y, middle], [np.ones(1), np.array([np.nan])])
    with GradManager().attach(x) as gm, detect_anomaly():  # of a leaf: no derivative is NaN
        gm.backward([x * 2.0, x], [np.ones(1), np.array([np.nan])])
    assert np.isnan(x.grad.item())


def test_a_nan_that_a_hook_made_is_not_the_fault_of_its_op():
    x = tensor([1.0])
    with GradManager().attach(x) as gm, detect_anomaly():
        middle = gnp.exp(x)
        doubled = middle * 2.0
        y = gnp.sin(middle) + doubled
        doubled.grad_fn.register_hook(lambda grads, _: (grads[0] * np.nan,))
        with pytest.raises(AnomalyError, match=r"op 'exp' is NaN .* it came in with dy, a hook or a callback"):
            gm.backward(y)


def test_infinities_that_cancel_in_a_sum_name_the_op_that_was_added_last():
    x = tensor([0.0])
    with GradManager().attach(x) as gm, detect_anomaly():
        root = gnp.sqrt(x)
        y = root - gnp.sqrt(x)  # infinite both, and of other signs
        with pytest.raises(AnomalyError, match=r"added to what other ops gave it; .* root = gnp\.sqrt\(x\)"):
            gm.backward(y)


def test_binary_ops_name_the_input():
    x, p = tensor(1.0), tensor(0.0)
    gm = GradManager().attach([x, p])
    named = "'divide' is NaN in the gradient of its input number 1"
    with detect_anomaly(), gm, pytest.raises(AnomalyError, match=named):
        gm.backward((x - 1.0) / p, np.array(1.0))


def test_a_failing_rule_names_its_line_and_keeps_its_type():
    class Bad(gradmgr.function.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    x = tensor(1.0)
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        y = Bad.apply(x)  # here
        with pytest.raises(KeyError) as caught:
            gm.backward(y)
    assert any("y = Bad.apply(x)  # here" in note for note in caught.value.__notes__)


def test_a_function_is_named_by_its_class():
    class Root(gradmgr.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * np.nan

    x = tensor([1.0])
    with GradManager().attach(x) as gm, detect_anomaly():
        y = Root.apply(x)
        with pytest.raises(RuntimeError, match="the derivative of op 'Root' is NaN"):
            gm.backward(y)


def test_ops_of_several_results():
    a = tensor(np.eye(2))
    gm = GradManager().attach(a)
    with detect_anomaly(), gm:
        _values, vectors = gnp.linalg.eigh(a)  # equal eigenvalues
        with pytest.raises(AnomalyError, match=r"vectors = gnp\.linalg\.eigh"):
            gm.backward((vectors[0] * np.array([1.0, 2.0])).sum())


def test_a_recording_that_is_open_is_traced_from_there_on():
    x = tensor(0.0)
    gm = GradManager().attach(x)
    with gm:
        before = gnp.sqrt(x)
        with detect_anomaly(), pytest.raises(AnomalyError, match=r"recorded before detect_anomaly\(\) began"):
            gm.backward(before * x)


def test_off_again_after_the_block_and_after_errors():
    with pytest.raises(ValueError, match="mine"), detect_anomaly():
        raise ValueError("mine")
    assert not is_anomaly_enabled()
    x = tensor(0.0)
    gm = GradManager().attach(x)
    with gm:
        gm.backward(gnp.sqrt(x) * x)
    assert np.isnan(x.grad.item())


def test_set_detect_anomaly_as_call_and_as_block():
    set_detect_anomaly(True)
    try:
        assert is_anomaly_enabled()
        assert is_anomaly_check_nan_enabled()
        with set_detect_anomaly(False):
            assert not is_anomaly_enabled()
        assert is_anomaly_enabled()
        with set_detect_anomaly(True, check_nan=False):
            assert not is_anomaly_check_nan_enabled()
        with detect_anomaly(check_nan=False), detect_anomaly():
            assert is_anomaly_check_nan_enabled()
        assert is_anomaly_check_nan_enabled()
    finally:
        set_detect_anomaly(False)
    assert not is_anomaly_enabled()


def test_per_thread_and_task():
    seen = []
    with detect_anomaly():
        thread = threading.Thread(target=lambda: seen.append(is_anomaly_enabled()))
        thread.start()
        thread.join()

        async def ask():
            return is_anomaly_enabled()

        seen.append(asyncio.run(ask()))  # a task inherits its maker's context
    assert seen[1]
    if not getattr(__import__("sys").flags, "thread_inherit_context", False):
        assert not seen[0]


def test_second_order():
    x = tensor(0.0)
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with detect_anomaly(), outer:
        with inner:
            cube = x**1.5
            inner.backward(cube)
        slope, x.grad = x.grad, None
        with pytest.raises(AnomalyError, match=r"computed at .*inner.backward\(cube\)"):
            outer.backward(slope * x)  # the second derivative is infinite, times 0


def test_values_and_gradients_are_the_same_under_it():
    rng = np.random.default_rng(1)
    x = tensor(rng.normal(size=(4, 3)))
    gm = GradManager().attach(x)

    def run():
        x.grad = None
        with gm:
            gm.backward(gnp.sum(gnp.tanh(x @ x.T) / (1 + gnp.exp(x[0, 0]))) + gnp.linalg.det(x.T @ x))
        return x.grad.numpy()

    plain = run()
    with detect_anomaly():
        assert (run() == plain).all()


def test_loops_over_pieces():
    rng = np.random.default_rng(2)
    x = tensor(rng.normal(size=20))
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        z = gnp.zeros(20)
        for k in range(1, 20):
            z[k] = z[k - 1] * 0.5 + x[k] ** 2
        gm.backward(z.sum())
    weights = np.array([0.0, *[2 - 0.5 ** (19 - k) for k in range(1, 20)]])
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() * weights)


def test_nothing_is_kept_after_release():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with detect_anomaly():
        gm.record()
        y = gnp.exp(x)
        tape = gm._tape
        gm.release()
    assert len(tape.entries) == 0
    assert tape.annotations is None
    assert y.tolist() == np.exp([1.0, 2.0]).tolist()


def test_dead_entries_are_swept_under_it():
    x = tensor(np.ones(8))
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        for _ in range(2000):
            gnp.exp(x)
        assert len(gm._tape.entries) < 200
