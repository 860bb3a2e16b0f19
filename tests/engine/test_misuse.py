"""Misuse, one case each: the error's type and words, and that nothing has changed.

Every call is made while a manager records; afterwards its tape, the gradients and what is current are
as before, and the recording goes on to give the right gradient.
"""

import numpy as np
import pytest
import scipy.special

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import Function, GradManager, forward_ad, functional, graph, tensor
from gradmgr._engine import context
from gradmgr.errors import GradmgrError


class Doubled(Function):
    """Right, unless a subclass makes its backward wrong."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class TooMany(Doubled):
    @staticmethod
    def backward(ctx, g):
        return g, g


class WrongShape(Doubled):
    @staticmethod
    def backward(ctx, g):
        return g.sum()


def through(function):
    """Differentiate through a Function with a manager of its own."""

    def call(x, y):
        z = tensor([1.0, 2.0])
        with GradManager().attach(z) as gm:
            gm.backward(function.apply(z).sum())

    return call


def hooked(hook):
    """Differentiate with a hook, by a manager of its own."""

    def call(x, y):
        z = tensor([1.0, 2.0])
        z.grad = tensor([7.0, 7.0])
        gm = GradManager().attach(z)
        try:
            with gm:
                w = z * 2
                w.register_hook(hook)
                gm.backward(w.sum())
        finally:
            assert z.grad.tolist() == [7.0, 7.0]
            with gm:  # reusable
                gm.backward(z.sum())
            assert z.grad.tolist() == [8.0, 8.0]

    return call


def post_hooked(x, y):
    z = tensor([1.0, 2.0])
    gm = GradManager().attach(z)
    z.register_post_accumulate_grad_hook(lambda t: t)
    with gm:
        gm.backward(z.sum())


def packed(pack, unpack):
    def call(x, y):
        z = tensor([1.0, 2.0])
        with GradManager().attach(z) as gm, graph.saved_tensors_hooks(pack, unpack):
            w = gnp.exp(z)
            gm.backward(w.sum())

    return call


def in_a_level(f):
    def call(x, y):
        with forward_ad.dual_level():
            f()

    return call


def on_a_closed_level(x, y):
    with forward_ad.dual_level():
        pass
    forward_ad.unpack_dual(tensor(1.0), level=0)


def recomputed_otherwise(x, y):
    z, turns = tensor([1.0, 2.0]), []

    def fickle(z):
        turns.append(1)
        return z * 2 if len(turns) == 1 else gnp.sin(z) * gnp.cos(z)

    with GradManager().attach(z) as gm:
        gm.backward(gradmgr.checkpoint(fickle, z).sum())


def twice(x, y):
    w = tensor([1.0])
    with GradManager().attach(w) as gm:
        z = w * 2
        gm.backward(z.sum(), retain=False)
        gm.backward(z.sum())


def set_grad(value):
    def call(x, y):
        x.grad = value

    return call


def two(x):
    return x * x


CASES = {
    # .grad
    ".grad: an array": (set_grad(np.zeros(2)), TypeError, "must be a Tensor or None; found ndarray"),
    ".grad: another shape": (set_grad(tensor(np.zeros(3))), ValueError, r"must have its shape \(2,\)"),
    ".grad: another dtype": (set_grad(tensor([1.0, 2.0], "float32")), TypeError, "must have its dtype float64"),
    # grad and backward
    "grad: an unknown output": (lambda x, y: gradmgr.grad(tensor(1.0), x), RuntimeError, "tracks output number 0"),
    "grad: an unused input": (lambda x, y: gradmgr.grad(y.sum(), tensor(1.0)), RuntimeError, "allow_unused=True"),
    "grad: no scalar": (lambda x, y: gradmgr.grad(y, x), ValueError, "needs y to be one real number"),
    "grad: weights of another shape": (lambda x, y: gradmgr.grad(y, x, np.ones(3)), ValueError, r"found \(3,\)"),
    "grad: too many weights": (lambda x, y: gradmgr.grad(y, x, [np.ones(2)] * 2), ValueError, "2 dy"),
    "grad: an array": (lambda x, y: gradmgr.grad(np.ones(2), x), TypeError, "ndarray"),
    "backward: unknown": (lambda x, y: gradmgr.backward(tensor(1.0)), RuntimeError, "tracks output number 0"),
    "backward: complex weights": (lambda x, y: gradmgr.backward(y, np.ones(2) * 1j), TypeError, "complex"),
    "backward: no inputs": (lambda x, y: gradmgr.backward(y.sum(), inputs=[]), ValueError, "inputs is empty"),
    "backward: an unknown input": (
        lambda x, y: gradmgr.backward(y.sum(), inputs=[tensor(1.0)]),
        RuntimeError,
        "does not track input number 0",
    ),
    "backward: twice": (twice, RuntimeError, "retain=True"),
    "Tensor.backward: unknown": (lambda x, y: tensor(1.0).backward(), RuntimeError, "tracks"),
    "requires_grad is set": (lambda x, y: setattr(x, "requires_grad", True), RuntimeError, "attach"),
    ".data": (lambda x, y: x.data, AttributeError, "detach"),
    ".exp": (lambda x, y: x.exp(), AttributeError, r"write gradmgr.numpy.exp\(t\)"),
    ".view": (lambda x, y: x.view(-1), AttributeError, r"\.view is torch's: write t.reshape\(shape\)"),
    ".relu": (lambda x, y: x.relu(), AttributeError, r"write gradmgr.nn.functional.relu\(t\)"),
    "attach: what named_parameters() gives": (
        lambda x, y: GradManager().attach(iter([("w", x)])),
        TypeError,
        r"attach dict\(model.named_parameters\(\)\)",
    ),
    # hooks
    "hook on an untracked tensor": (lambda x, y: tensor(1.0).register_hook(print), RuntimeError, "attach"),
    "hook that is none": (lambda x, y: y.register_hook(3), TypeError, "int"),
    "post hook on a result": (lambda x, y: y.register_post_accumulate_grad_hook(print), RuntimeError, "leaf|attached"),
    "retain_grad on an untracked tensor": (lambda x, y: tensor(1.0).retain_grad(), RuntimeError, "attach|track"),
    "hook gives a number": (hooked(lambda g: 3.0), TypeError, "gave float"),
    "hook gives another shape": (hooked(lambda g: g.sum()), ValueError, r"gradient of shape \(\)"),
    "hook gives another dtype": (hooked(lambda g: g.astype("float32")), TypeError, "dtype float32"),
    "post hook gives something": (post_hooked, TypeError, "returns None"),
    "multi hook: unknown mode": (
        lambda x, y: graph.register_multi_grad_hook([x], print, mode="some"),
        ValueError,
        "some",
    ),
    # saved tensors
    "pack is none": (lambda x, y: graph.saved_tensors_hooks(3, 4).__enter__(), TypeError, "int"),
    "unpack gives no Tensor": (packed(lambda t: 1, lambda k: k), TypeError, "int"),
    "unpack gives another shape": (packed(lambda t: t, lambda t: t[:1]), ValueError, r"\(1,\)"),
    # forward mode
    "make_dual outside a level": (lambda x, y: forward_ad.make_dual(x, np.ones(2)), RuntimeError, "level"),
    "unpack_dual at a closed level": (on_a_closed_level, RuntimeError, "level"),
    "tangent of another shape": (
        in_a_level(lambda: forward_ad.make_dual(tensor([1.0, 2.0]), np.ones(3))),
        ValueError,
        r"\(3,\)",
    ),
    "complex tangent": (in_a_level(lambda: forward_ad.make_dual(tensor([1.0]), np.ones(1) * 1j)), TypeError, "complex"),
    "integer primal": (in_a_level(lambda: forward_ad.make_dual(tensor([1]), np.ones(1))), TypeError, "int64"),
    # functional
    "hessian: not scalar": (
        lambda x, y: functional.hessian(two, tensor([1.0, 2.0])),
        (ValueError, RuntimeError),
        "one",
    ),
    "hvp: not scalar": (
        lambda x, y: functional.hvp(two, tensor([1.0, 2.0]), tensor([1.0, 0.0])),
        (ValueError, RuntimeError),
        "one",
    ),
    "vjp: v is missing": (lambda x, y: functional.vjp(two, tensor([1.0, 2.0])), (ValueError, RuntimeError), "v"),
    "jvp: v of another shape": (
        lambda x, y: functional.jvp(two, tensor([1.0, 2.0]), tensor([1.0])),
        (ValueError, RuntimeError),
        r"\(1,\)",
    ),
    "jacobian: no Tensor comes out": (lambda x, y: functional.jacobian(lambda t: 3.0, tensor(1.0)), TypeError, "float"),
    "jacobian: unknown strategy": (
        lambda x, y: functional.jacobian(two, tensor(1.0), strategy="sideways"),
        ValueError,
        "sideways",
    ),
    "functional.grad: not scalar": (lambda x, y: functional.grad(two)(np.ones(2)), (ValueError, RuntimeError), "one"),
    # vmap
    "vmap: sizes differ": (lambda x, y: gradmgr.vmap(gnp.add)(np.ones(2), np.ones(3)), ValueError, "2.*3|3.*2"),
    "vmap: nothing to map over": (lambda x, y: gradmgr.vmap(two, in_dims=None)(np.ones(2)), ValueError, "in_dims"),
    "vmap: no such axis": (lambda x, y: gradmgr.vmap(two, in_dims=3)(np.ones(2)), ValueError, "3"),
    "vmap: a decision by value": (
        lambda x, y: gradmgr.vmap(lambda t: t if t > 0 else -t)(tensor([1.0, -1.0])),
        (TypeError, RuntimeError),
        "vmap",
    ),
    # Functions
    "Function: too many gradients": (through(TooMany), RuntimeError, "TooMany.*2"),
    "Function: a gradient of another shape": (
        through(WrongShape),
        ValueError,
        r"WrongShape.*\(\).*\(2,\)|\(2,\).*\(\)",
    ),
    "Function: an instance": (lambda x, y: Doubled(), RuntimeError, r"Doubled.apply"),
    # torch's arguments
    "a method with dim=": (lambda x, y: y.mean(dim=0), TypeError, "'dim'; NumPy's keyword for it is axis=$"),
    "a function with dim=": (lambda x, y: gnp.concatenate([y], dim=0), TypeError, "NumPy's keyword for it is axis=$"),
    "a method without gradient with dim=": (lambda x, y: y.argmax(dim=0), TypeError, "NumPy's .* is axis=$"),
    "dims=": (lambda x, y: gnp.flip(y, dims=(0,)), TypeError, "'dims'; NumPy's keyword for it is axis=$"),
    "keepdim=": (lambda x, y: y.sum(axis=0, keepdim=True), TypeError, "NumPy's keyword for it is keepdims=$"),
    "keepdim by position": (lambda x, y: y.sum(0, True), TypeError, "after axis comes .* dtype: write keepdims=True$"),
    "keepdim in the place of out": (lambda x, y: y.max(0, True), TypeError, "comes .* out: write keepdims=True$"),
    # memory
    "checkpoint: computed otherwise": (recomputed_otherwise, RuntimeError, "checkpoint"),
    "budget: no number": (lambda x, y: GradManager(budget="plenty"), ValueError, "plenty"),
    "spill: no such place": (lambda x, y: GradManager(budget=100, spill="tape"), ValueError, "tape"),
    # anomaly, explain, pictures
    "explain an array": (lambda x, y: GradManager().explain(np.ones(2)), TypeError, "ndarray"),
    "a picture of an array": (lambda x, y: graph.to_dot([np.ones(2)]), TypeError, "ndarray"),
    # plain NumPy around tracked tensors
    "np.asarray": (lambda x, y: np.asarray(y), TypeError, "numpy()"),
    "a function that is not here": (lambda x, y: scipy.special.wofz(y), TypeError, "wofz"),
    "out= of another shape": (lambda x, y: np.add(y, 1.0, out=tensor(np.zeros(3))), ValueError, r"\(3,\)"),
    "a GPU where there is none": (lambda x, y: x.to("cuda:0"), RuntimeError, "CuPy|GPU"),
}


@pytest.mark.parametrize(("call", "kind", "words"), CASES.values(), ids=CASES.keys())
def test_misuse(call, kind, words):
    x = tensor([0.5, 1.0])
    x.grad = tensor([10.0, 10.0])
    gm = GradManager().attach(x)
    with gm:
        y = gnp.exp(x)
        entries, state, array = list(gm._tape.entries), context.current(), x._array
        with pytest.raises(kind, match=words) as caught:
            call(x, y)
        assert isinstance(caught.value, (GradmgrError, TypeError, ValueError, AttributeError))
        del caught
        gm._tape.sweep(everything=True)
        assert gm._tape.entries == entries
        assert context.current() is state
        assert x._array is array
        assert x.grad.tolist() == [10.0, 10.0]
        gm.backward(y.sum())
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, 1.0]) + 10.0)
