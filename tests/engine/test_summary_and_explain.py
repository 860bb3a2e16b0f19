"""gm.summary() and gm.explain(): what a tape keeps, and why a gradient is not there."""

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import Function, GradManager, detect_anomaly, no_grad, special, tensor


def traced(**tensors):
    return GradManager(with_stack=True).attach(tensors)


# ---------------------------------------------------------------- summary


def test_summary_of_an_idle_manager():
    assert GradManager().summary() == "This GradManager is idle: it keeps nothing."


def test_bytes_by_op_are_exact():
    x, w = tensor(np.ones((4, 8))), tensor(np.ones((8, 2)))
    gm = GradManager().attach([x, w])
    with gm:
        y = gnp.exp(x)  # keeps its result, 256 bytes
        z = y @ w  # keeps y, counted above, and w, 128 bytes
        z + 1  # keeps nothing
        t = gnp.tanh(z)  # its input and its result, 64 bytes each
        text = gm.summary()
        assert text.splitlines()[0] == (
            "4 operations recorded, 2 tensors attached; kept for their derivatives: 512 B in arrays"
        )
        rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[2:] if "  " in line}
        assert rows["exp"] == ["1", "256", "B"]
        assert rows["matmul"] == ["1", "128", "B"]
        assert rows["tanh"] == ["1", "128", "B"]
        gm.backward(t.sum())
    assert "idle" in gm.summary()


def test_by_line_with_stack():
    x = tensor(np.ones(1000))
    gm = traced(x=x)
    with gm:
        y = gnp.exp(x)
        for _ in range(3):
            y = gnp.tanh(y)  # three times
        lines = gm.summary().splitlines()
    (row,) = [line for line in lines if "# three times" in line]
    assert row.split()[-3:] == ["3", "23.44", "KiB"]
    assert any("y = gnp.exp(x)" in line and "7.812 KiB" in line for line in lines)


def test_by_line_under_anomaly_detection():
    x = tensor(np.ones(10))
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        y = gnp.exp(x)  # this line
        assert "# this line" in gm.summary()
    assert y is not None


# ---------------------------------------------------------------- explain


def test_never_attached():
    x = tensor(1.0)
    assert "not attached to this manager" in GradManager().explain(x)
    with pytest.raises(TypeError, match="explain takes a Tensor; found ndarray"):
        GradManager().explain(np.ones(2))


def test_attached_after_use():
    x, w = tensor(1.0), tensor(2.0)
    gm = traced(x=x)
    with gm:
        y = x * w  # used here
        gm.attach({"w": w})  # attached here
        gm.backward(y)
    assert x.grad.item() == 2.0
    said = gm.explain(w)
    assert said.startswith("Tensor 'w'")
    assert 'gm.attach({"w": w})  # attached here, after it had been used' in said
    assert "y = x * w  # used here" in said


def test_overwritten_before_use():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(x=x, w=w)
    with gm:
        with no_grad():
            x[...] = 5.0  # gone
        gm.backward((x * w).sum())
    assert x.grad is None
    said = gm.explain(x)
    assert "it was overwritten at" in said
    assert "x[...] = 5.0  # gone" in said


def test_overwritten_while_recorded_gives_zero():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(x=x, w=w)
    with gm:
        x[...] = 5.0  # gone
        gm.backward((x * w).sum())
    assert x.grad.tolist() == [0.0]
    assert "its gradient is zero: it was overwritten at" in gm.explain(x)


@pytest.mark.parametrize(
    ("cut", "what"),
    [
        (lambda x: x.detach(), "detach()"),
        (lambda x: tensor(x.numpy()), "numpy()"),
        (lambda x: tensor([x[0].item()]), "item()"),
        (lambda x: x.astype("int64").astype("float64"), "a cast to int64"),
        (lambda x: gnp.argmax(x), "argmax"),
        (lambda x: gnp.asarray(x.tolist()), "tolist()"),
    ],
    ids=["detach", "numpy", "item", "cast", "argmax", "tolist"],
)
def test_explain_names_the_operation_that_cut_the_gradient(cut, what):
    x, w = tensor([1.0, 2.0]), tensor([2.0, 3.0])
    for gm in (traced(x=x, w=w), GradManager().attach({"x": x, "w": w})):
        with detect_anomaly(), gm:
            y = x * 3
            z = cut(y)
            gm.backward((z * w).sum())
        assert x.grad is None
        said = gm.explain(x)
        assert f"was cut by {what} at" in said
        assert "test_summary_and_explain.py" in said


def test_explain_names_no_grad_as_what_cut_the_gradient():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(x=x, w=w)
    with gm:
        with no_grad():
            y = x * 3  # not recorded
        gm.backward((y * w).sum())
    said = gm.explain(x)
    assert "cut by multiply under no_grad() at" in said
    assert "y = x * 3  # not recorded" in said


@pytest.mark.parametrize("f", [gnp.round, gnp.floor, gnp.sign, gnp.ceil, gnp.trunc])
def test_zero_by_a_flat_function(f):
    x = tensor([1.5, 2.5])
    gm = traced(x=x)
    with gm:
        y = f(x) * 2  # flat
        gm.backward(y.sum())
    assert x.grad.tolist() == [0.0, 0.0]
    said = gm.explain(x)
    assert "its gradient is zero" in said
    assert "whose derivative is zero" in said
    assert "# flat" in said


def test_not_a_part_of_the_loss():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(x=x, w=w)
    with gm:
        aside = x * 3  # aside
        gm.backward((w * w).sum())
    said = gm.explain(x)
    assert "what backward() started from does not depend on it" in said
    assert "aside = x * 3  # aside" in said
    assert aside is not None


class Halves(gradmgr.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2, x * 2

    @staticmethod
    def backward(ctx, g, h):
        return g / 2 + h * 2


@gradmgr.custom_op(derivative={"x": lambda g, x: g * 2})
def xdouble(x):
    return 2 * x


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        (lambda x: special.xlogy(x, 2.0), "xlogy"),
        (lambda x: Halves.apply(x)[1], "Halves"),
        (xdouble, "xdouble"),
        (lambda x: gnp.linalg.qr(x)[1], "qr"),
    ],
    ids=["xlogy", "Halves", "xdouble", "qr"],
)
def test_operations_have_their_names(compute, name):
    """An x in a name does not shorten it; Functions, custom ops and ops of several results have their own names."""
    x, w = tensor([[1.0, 2.0]]), tensor(1.0)
    gm = GradManager(with_stack=True).attach([x, w])
    with gm:
        y = compute(x)
        assert y.grad_fn.name() == name
        assert gm.summary().startswith("1 operations recorded")
        assert f"\n{name} " in gm.summary()
        assert "\nresult " not in gm.summary()
        gm.backward(w * 1)
    said = gm.explain(x)
    assert f"the last that does is the result of {name!r}" in said
    assert "cut" not in said


def test_never_used_and_no_backward():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(x=x, w=w)
    with gm:
        gm.backward((w * w).sum())
    assert "nothing was computed from it in the recording" in gm.explain(x)
    with gm:
        y = w * w
        assert "backward() has not run yet" in gm.explain(w)
    assert "released without a backward()" in gm.explain(w)
    assert y is not None


def test_attached_since():
    x, w = tensor([1.0]), tensor([2.0])
    gm = traced(w=w)
    with gm:
        gm.backward((w * w).sum())
    gm.attach(x)
    assert "was not when the last recording was made" in gm.explain(x)


def test_reached_and_cleared():
    w = tensor([2.0])
    gm = traced(w=w)
    with gm:
        gm.backward((w * w).sum())
    assert "was reached by the last backward(); its .grad is there" in gm.explain(w)
    w.grad = None
    assert "its .grad was set to None since" in gm.explain(w)


def test_untraced_says_what_it_can():
    x = tensor([1.0])
    gm = GradManager().attach(x)
    assert "no backward() has reached it" in gm.explain(x)
    with gm:
        assert "nothing that is alive was computed from it" in gm.explain(x)
        y = x * 2
        assert "used in this recording" in gm.explain(x)
        gm.backward(y.sum())
    assert gm.explain(x).endswith("is attached and has a gradient.")


def test_backward_of_an_unknown_tensor_says_exactly_why():
    x = tensor([1.0, 2.0])
    for gm in (traced(x=x), GradManager().attach({"x": x})):
        with detect_anomaly(), gm:
            y = gnp.exp(x)
            z = y.detach()  # cut here
            with pytest.raises(RuntimeError, match=r"Seen: detach\(\) at .*# cut here cut its history"):
                gm.backward(z, np.ones(2))
            gm.backward(y, np.ones(2))  # it goes on
        assert x.grad is not None
        x.grad = None


def test_tracing_changes_no_gradient():
    rng = np.random.default_rng(3)
    x = tensor(rng.normal(size=(3, 3)))
    found = []
    for gm in (GradManager().attach(x), traced(x=x)):
        with gm:
            z = gnp.zeros(3)
            for k in range(3):
                z[k] = gnp.tanh(x[k] @ x[:, k])
            gm.backward(gnp.linalg.eigh(x @ x.T)[0].sum() + z.sum())
        found.append(x.grad.numpy())
        x.grad = None
    assert (found[0] == found[1]).all()


def test_a_group_is_traced():
    x = tensor([3.0])
    one, two = traced(x=x), GradManager().attach(x)
    with one | two:
        y = x * x
        one.backward(y, np.ones(1), retain=False)
        two.backward(y, np.ones(1))
    assert "was reached" in one.explain(x)
    assert x.grad.tolist() == [12.0]


def test_the_trace_log_ends_with_the_recording():
    x = tensor([3.0])
    gm = traced(x=x)
    with gm:
        pass
    assert gradmgr._engine.context.current() is None
    gm.record()
    del gm
    x * 2
    assert (
        gradmgr._engine.context.current() is None
        or gradmgr._engine.context.interceptors_of(gradmgr._engine.context.current()) == ()
    )


def test_a_summary_in_the_middle_of_a_sweep():
    x = tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    texts = []

    class Note:
        """Asks for a summary when a sweep drops it, as another thread may meanwhile."""

        def __del__(self):
            texts.append(gm.summary())

    class Scale(Function):
        @staticmethod
        def forward(ctx, t):
            ctx.note = Note()
            return t * 2.0

        @staticmethod
        def backward(ctx, grad):
            return grad * 2.0

    with gm:
        y = x * 1.0
        for _ in range(300):
            Scale.apply(x)
        gm.backward(y.sum())
    assert any("operations recorded" in text for text in texts)
    assert len(texts) == 300
