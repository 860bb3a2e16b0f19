"""Function and custom_op: operations of the user, to any order of derivative, and errors of wrong ones."""

import collections
import functools
import gc
import threading
import weakref
from contextlib import nullcontext

import guard
import numpy as np
import pytest
from helpers import gradient, gradients

import gradmgr.numpy as gnp
from gradmgr import (
    GradManager,
    Tensor,
    asarray,
    enable_grad,
    errors,
    functional,
    gradcheck,
    graph,
    is_grad_enabled,
    no_grad,
    profiler,
    tensor,
)
from gradmgr import grad as grad_of
from gradmgr._engine.context import enter_recorders, leave_recorders
from gradmgr._engine.forward import Forward
from gradmgr._transforms.vmap import vmap
from gradmgr.forward_ad import dual_level, make_dual, unpack_dual
from gradmgr.function import Function, custom_op, once_differentiable
from gradmgr.functional import hessian


def static(**methods):
    """A Function made of plain functions."""
    name = methods.pop("name", "Mine")
    base = methods.pop("base", Function)
    return type(name, (base,), {key: staticmethod(value) for key, value in methods.items()})


@pytest.mark.parametrize("is_usual", [True, False])
def test_grad_is_not_enabled_inside_forward(is_usual):
    """Of a call that one manager records, by either way through `apply`, and in backward without create_graph."""
    found = []

    def forward(ctx, x):
        found.append(is_grad_enabled())
        with enable_grad():
            found.append(is_grad_enabled())  # nothing records here, all the same
        with GradManager().attach(t := tensor(3.0)) as inner:
            found.append(is_grad_enabled())
            inner.backward(t * t)
        assert t.grad.item() == 6.0
        return x * 2 if is_usual else (x * 2, x)

    scaled = static(forward=forward, backward=lambda ctx, *gs: gs[0] * 2)
    x = tensor([1.0])
    with GradManager().attach(x) as gm:
        y = scaled.apply(x)
        assert is_grad_enabled()
        gm.backward((y if is_usual else y[0]).sum())
    assert found == [False, False, True]
    assert is_grad_enabled()
    assert x.grad.tolist() == [2.0]


def second(f, x):
    """The gradient of the sum of the gradient, through two managers."""
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer, inner:
        inner.backward(f(x).sum())
        first, x.grad = x.grad, None
        outer.backward(first.sum())
    found, x.grad = x.grad, None
    return found.numpy()


class forward_level:  # noqa: N801  # reads as a statement
    """A level of forward mode with one tangent."""

    def __init__(self, x, tangent):
        self.recorder = Forward()
        self.recorder.add_dual(x, tangent)

    def __enter__(self):
        enter_recorders(self.recorder)
        return self.recorder

    def __exit__(self, *exc):
        leave_recorders(self.recorder)
        self.recorder.close()


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3 * x**2


class Exp(Function):
    """The result is saved, and the code inside is plain NumPy."""

    @staticmethod
    def forward(x):
        return tensor(np.exp(x.numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def vjp(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out

    @staticmethod
    def jvp(ctx, t):
        (out,) = ctx.saved_tensors
        return t * out


class SinCos(Function):
    """Two results, each the derivative of the other; both are wanted for both."""

    @staticmethod
    def forward(ctx, x, scale=1.0):
        s, c = gnp.sin(x * scale), gnp.cos(x * scale)
        ctx.save_for_backward(s, c)
        ctx.scale = scale
        return s, c

    @staticmethod
    def backward(ctx, gs, gc):
        s, c = ctx.saved_tensors
        return (gs * c - gc * s) * ctx.scale, None

    @staticmethod
    def jvp(ctx, t, _=None):
        s, c = ctx.saved_tensors
        return t * c * ctx.scale, -t * s * ctx.scale


class Double(Function):
    """Written in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x *= 2
        return x

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def jvp(ctx, t):
        return 2 * t


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx, tx, ty):
        x, y = ctx.saved_tensors
        return tx * y + x * ty


# ---------------------------------------------------------------- derivatives


X = [0.3, -1.2, 2.0]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("function", [Cube, Exp])
def test_any_order_of_one_input(function, order):
    assert gradcheck(function.apply, tensor(X), order=order)


def test_two_inputs_and_two_results():
    assert gradcheck(Product.apply, (tensor(X), tensor([1.5, 0.5, -2.0])), order=2)
    assert gradcheck(lambda x: SinCos.apply(x, 1.7), tensor(X), order=2)
    assert gradcheck(lambda x: Product.apply(x, x), tensor(X), order=2)


def test_values_and_first_derivative():
    x = tensor([2.0, 3.0])
    y = Cube.apply(x)
    assert type(y) is Tensor
    assert y.tolist() == [8.0, 27.0]
    assert gradient(Cube.apply, x).tolist() == [12.0, 27.0]
    assert second(Cube.apply, x).tolist() == [12.0, 18.0]
    assert second(Exp.apply, x) == pytest.approx(np.exp([2.0, 3.0]), rel=1e-15)


def test_one_of_two_results_used():
    x = tensor(X)
    assert gradient(lambda x: SinCos.apply(x)[0], x) == pytest.approx(np.cos(X))
    assert gradient(lambda x: SinCos.apply(x)[1] * 3, x) == pytest.approx(-3 * np.sin(X))


def test_first_order_backward_computes_on_untracked_tensors():
    seen = []

    def backward(ctx, g):
        seen.append(((g * 2)._rec, [t._rec for t in ctx.saved_tensors]))
        return g

    f = static(forward=lambda ctx, x: ctx.save_for_backward(x) or x * 1, backward=backward)
    gradient(f.apply, tensor(X))
    assert seen == [(None, [None])]


def test_complex():
    class Square(Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return g * 2 * gnp.conj(z)

        @staticmethod
        def jvp(ctx, t):
            (z,) = ctx.saved_tensors
            return 2 * t * z

    assert gradcheck(Square.apply, tensor([1 + 2j, -0.5j]), order=2)


def test_inside_other_ops():
    def f(x):
        return gnp.sum(gnp.tanh(Cube.apply(gnp.sin(x))) * Exp.apply(x))

    assert gradcheck(f, tensor(X), order=2)


@pytest.mark.parametrize("materialize", [True, False])
def test_jvp_receives_none_for_an_argument_that_has_no_tangent(materialize):
    seen = []

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, n, flags, plain, y):
            ctx.set_materialize_grads(materialize)
            ctx.save_for_forward(n)
            return x * n + y

        @staticmethod
        def jvp(ctx, tx, *others):
            seen.append(others)
            return tx * ctx.saved_tensors[0]

    with dual_level():
        x = make_dual(tensor([2.0, 3.0]), np.ones(2))
        y = Scaled.apply(x, tensor([4, 5]), tensor([True, False]), np.ones(2), tensor([1.0, 1.0]))
        assert unpack_dual(y).tangent.tolist() == [4.0, 5.0]
    ((*without, ty),) = seen
    assert without == [None, None, None]
    assert ty is None if not materialize else ty.tolist() == [0.0, 0.0]


def test_a_function_within_a_function():
    class Sixth(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Cube.apply(x) * Cube.apply(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 6 * g * Cube.apply(x) * x * x

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return 6 * t * Cube.apply(x) * x * x

    assert gradcheck(Sixth.apply, tensor(X), order=3)


def test_a_manager_inside_forward_and_backward():
    """Recomputing: forward keeps its input alone, backward records it again."""

    def f(x):
        return gnp.sin(x) * x

    class Again(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx, g):
            x = ctx.saved_tensors[0].detach()
            with GradManager().attach(x) as gm:
                gm.backward(f(x), g)
            return x.grad

    x = tensor(X)
    assert gradient(Again.apply, x) == pytest.approx(np.sin(X) + np.array(X) * np.cos(X), rel=1e-14)

    def with_a_slope(ctx, x):
        with GradManager().attach(x) as gm:
            gm.backward(f(x).sum())
        assert x.grad.tolist() == pytest.approx((np.sin(X) + np.array(X) * np.cos(X)).tolist())
        return x * 1

    gradient(static(forward=with_a_slope, backward=lambda ctx, g: g).apply, x)
    assert x.grad is None


def test_enable_grad_in_forward_records_nothing():
    def forward(ctx, x):
        with enable_grad():
            return x * 5

    f = static(forward=forward, backward=lambda ctx, g: g * 7)
    assert gradient(f.apply, tensor([1.0])).tolist() == [7.0]


# ---------------------------------------------------------------- nesting with forward mode


def test_forward_over_reverse_and_reverse_over_forward():
    x = tensor(X)
    for f, expected in ((Cube.apply, 6 * np.array(X)), (Exp.apply, np.exp(X))):
        with forward_level(x, np.ones(3)) as recorder, GradManager().attach(x) as gm:
            gm.backward(f(x).sum())
            assert np.asarray(recorder.node_id_of(x.grad)) == pytest.approx(expected)
        x.grad = None
        with GradManager().attach(x) as gm, forward_level(x, np.ones(3)) as recorder:
            gm.backward(recorder.node_id_of(f(x)).sum())
        assert x.grad.numpy() == pytest.approx(expected)
        x.grad = None


def test_no_grad_stops_reverse_and_not_forward():
    x = tensor([2.0])
    with GradManager().attach(x) as gm, forward_level(x, np.ones(1)) as recorder, no_grad():
        y = Cube.apply(x)
        assert recorder.node_id_of(y).tolist() == [12.0]
        assert gm._tape.node_id_of(y) is None


def test_dual_numbers():
    x = tensor(X)
    with dual_level():
        y, z = SinCos.apply(make_dual(x, tensor([1.0, 0.0, 2.0])), scale=3.0)
        tangent = unpack_dual(y * z).tangent.numpy()
    assert tangent == pytest.approx(3 * np.cos(6 * np.array(X)) * [1.0, 0.0, 2.0])


def test_functional():
    x = tensor(X)
    assert hessian(lambda x: Cube.apply(x).sum(), x).numpy() == pytest.approx(np.diag(6 * np.array(X)))


def test_without_jvp():
    f = static(name="Gate", forward=lambda ctx, x: x * 1, backward=lambda ctx, g: g)
    x = tensor([2.0])
    with (
        forward_level(x, np.ones(1)),
        pytest.raises(NotImplementedError, match=r"Gate must define the static method jvp"),
    ):
        f.apply(x)


def test_without_backward():
    f = static(name="Gate", forward=lambda ctx, x: x * 1, jvp=lambda ctx, t: t)
    x = tensor([2.0])
    with pytest.raises(errors.MissingRuleError, match=r"Gate must define the static method backward.* or vjp"):
        gradient(f.apply, x)
    assert x.grad is None


def test_jvp_zeros_and_none():
    given = []

    def jvp(ctx, *tangents):
        given.append(tangents)

    def forward(materialize):
        def compute(ctx, x, y, k):
            ctx.set_materialize_grads(materialize)
            return x * y * k

        return compute

    x, y = tensor([2.0]), tensor([5.0])
    with forward_level(x, np.ones(1)) as recorder:
        z = static(forward=forward(True), jvp=jvp).apply(x, y, 3)
        assert recorder.node_id_of(z).tolist() == [0.0]
        static(forward=forward(False), jvp=jvp).apply(x, y, 3)
    (one, zero, nothing), (_, absent, _) = given
    assert (one.tolist(), zero.tolist(), nothing, absent) == ([1.0], [0.0], None, None)


@pytest.mark.parametrize(
    ("found", "error", "text"),
    [
        (lambda t: (t, t), RuntimeError, "Bad.jvp returned 2 tangents for 1 result of forward"),
        (lambda t: t[:1], ValueError, r"Bad.jvp: tangent 0 has shape \(1,\); it must have that of result 0, \(3,\)"),
        (lambda t: t * 1j, TypeError, r"Bad.jvp: tangent 0 is complex"),
        (lambda t: "t", TypeError, r"Bad.jvp: tangent 0 is a value of type str"),
    ],
)
def test_a_wrong_jvp(found, error, text):
    f = static(name="Bad", forward=lambda ctx, x: x * 1, jvp=lambda ctx, t: found(t))
    x = tensor(X)
    with forward_level(x, np.ones(3)), pytest.raises(error, match=text):
        f.apply(x)


# ---------------------------------------------------------------- values computed unrecorded


def intermediate(save):
    """x**3 whose derivative is computed from a square that forward computed; `save` says how that is kept."""

    def forward(ctx, x):
        save(ctx, x * x)
        return x**3

    def derivative(ctx, g):
        kept = ctx.saved_tensors[0] if ctx.saved_tensors else ctx.square
        while isinstance(kept, (list, tuple, dict)):
            kept = kept["here"] if isinstance(kept, dict) else kept[0]
        return g * 3 * kept

    return static(name="Hidden", forward=forward, backward=derivative, jvp=derivative)


SAVES = {
    "save_for_backward": lambda ctx, square: ctx.save_for_backward(square),
    "attribute": lambda ctx, square: setattr(ctx, "square", square),
    "list": lambda ctx, square: setattr(ctx, "square", [{"here": (square,)}]),
    "array": lambda ctx, square: setattr(ctx, "square", square.numpy()),
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
class TestASavedIntermediate:
    def test_first_derivatives_are_right(self, save):
        assert gradcheck(intermediate(save).apply, tensor(X))

    def test_second_derivatives_raise(self, save):
        f, x = intermediate(save), tensor(X)
        with pytest.raises(
            errors.NotRecordedError, match=r"Hidden: this derivative depends on .*(ctx.square|tensor 0)"
        ):
            second(f.apply, x)
        with forward_level(x, np.ones(3)), GradManager().attach(x) as gm:
            y = f.apply(x).sum()
            with pytest.raises(RuntimeError, match="Hidden"):
                gm.backward(y)
        with GradManager().attach(x) as gm, forward_level(x, np.ones(3)) as recorder:
            tangent = recorder.node_id_of(f.apply(x)).sum()
            with pytest.raises(RuntimeError, match="Hidden"):
                gm.backward(tangent)
        x.grad = None
        with GradManager().attach(x):
            (g,) = grad_of(f.apply(x).sum(), x, create_graph=True)
            with pytest.raises(RuntimeError, match="Hidden"):
                grad_of((g * x).sum(), x)

    def test_only_where_a_derivative_flows_through_it(self, save):
        """The derivative with respect to the cotangent does not depend on how the square came about."""
        f, x, u = intermediate(save), tensor(X), tensor([1.0, 2.0, 3.0])
        with GradManager().attach(u) as outer:
            with GradManager().attach(x) as inner:
                inner.backward(f.apply(x), u)
            outer.backward(x.grad.sum())
        assert u.grad.numpy() == pytest.approx(3 * np.square(X))

    def test_it_works_where_no_outer_recorder_tracks_an_argument(self, save):
        f, x, w = intermediate(save), tensor(X), tensor(2.0)
        with GradManager().attach(w) as outer:
            with GradManager().attach(x) as inner:
                inner.backward((f.apply(x) * w).sum())
            outer.backward(x.grad.sum())
        assert w.grad.item() == pytest.approx(3 * np.square(X).sum())


def test_arguments_and_results_kept_as_attributes_are_followed():
    def forward(ctx, x, n):
        ctx.x, ctx.n, ctx.sign = x, n, x.numpy() > 0
        ctx.results = [x**3]
        return ctx.results[0]

    def derivative(ctx, g, _=None):
        assert ctx.sign.dtype == bool
        out, x = ctx.results[0], ctx.x
        return (g * ctx.n * out / x, None)[: 2 if _ is None else 1]

    f = static(forward=forward, backward=derivative)
    assert gradcheck(lambda x: f.apply(x, 3.0), tensor(X), order=3, check_forward_ad=False)


def test_the_same_memory_is_the_same_value():
    """x.detach() is what x is, and forward has no recorder to detach from."""

    def forward(ctx, x):
        ctx.save_for_backward(x.detach())
        return x**3

    f = static(forward=forward, backward=Cube.backward, jvp=Cube.jvp)
    assert gradcheck(f.apply, tensor(X), order=2)


def test_what_is_saved_does_not_change_when_the_caller_writes():
    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        y = Cube.apply(x)
        x *= 100
        y *= 1
        gm.backward(y)
    assert x.grad.tolist() == [27.0]


def test_part_of_a_derivative_through_an_unrecorded_value():
    """The rest of the sum reaches x; what is left out must not go unnoticed there."""

    def forward(ctx, x):
        ctx.square = x * x
        return x**3

    f, x = static(name="Hidden", forward=forward, backward=lambda ctx, g: 3 * g * ctx.square), tensor(X)
    with GradManager().attach(x):
        (g,) = grad_of((f.apply(x) + x**2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="Hidden"):
            grad_of(g.sum(), x)
    with GradManager().attach(x), GradManager().attach(x) as inner:
        inner.backward((f.apply(x) + x**2).sum())
        first, x.grad = x.grad, None
        with pytest.raises(RuntimeError, match="Hidden"):
            grad_of(first.sum(), x)


def test_a_plain_array_argument_is_a_constant():
    table = np.array([1.0, 2.0, 3.0])

    def forward(ctx, x, weights):
        ctx.weights = weights
        ctx.save_for_backward(x)
        return x * x * weights

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * ctx.weights, g

    f = static(forward=forward, backward=backward)
    assert second(lambda x: f.apply(x, table), tensor(X)).tolist() == [2.0, 4.0, 6.0]


def test_a_closure_over_a_tracked_tensor_is_followed():
    w = tensor(2.0)
    f = static(forward=lambda ctx, x: setattr(ctx, "w", w) or x * w, backward=lambda ctx, g: g * ctx.w)
    x = tensor(3.0)
    with GradManager().attach([w, x]) as outer:
        with GradManager().attach(x) as inner:
            inner.backward(f.apply(x))
        g, x.grad = x.grad, None
        outer.backward(g)
    assert w.grad.item() == 1.0


def test_derivatives_recorded_on_the_same_tape():
    x = tensor(X)
    for f, expected in (
        (Cube.apply, 6 * np.array(X)),
        (Exp.apply, np.exp(X)),
        (lambda x: SinCos.apply(x, 2.0)[0], -4 * np.sin(2 * np.array(X))),
        (lambda x: Product.apply(x, x), [2.0, 2.0, 2.0]),
    ):
        with GradManager().attach(x):
            (g,) = grad_of(f(x).sum(), x, create_graph=True)
            (h,) = grad_of(g.sum(), x)
        assert h.numpy() == pytest.approx(np.asarray(expected))


# ---------------------------------------------------------------- once_differentiable


def once():
    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return np.sin(np.asarray(x))

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return np.asarray(g) * np.cos(np.asarray(x))  # implicit conversion: nothing may be tracked here

    return Sine


def test_once_differentiable():
    f, x = once(), tensor(X)
    assert gradcheck(f.apply, x, check_forward_ad=False)
    f = static(name="Sine", base=f, jvp=lambda ctx, t: t * gnp.cos(ctx.saved_tensors[0]))
    with pytest.raises(RuntimeError, match=r"Sine: its backward is declared once_differentiable"):
        second(f.apply, x)
    with forward_level(x, np.ones(3)) as recorder, GradManager().attach(x) as gm:
        gm.backward(f.apply(x).sum())
        with pytest.raises(RuntimeError, match=r"Sine: .*once_differentiable"):
            recorder.node_id_of(x.grad) * 2
    x.grad = None
    with GradManager().attach(x):
        (g,) = grad_of(f.apply(x).sum(), x, create_graph=True)
        assert g.numpy() == pytest.approx(np.cos(X))
        with pytest.raises(RuntimeError, match=r"Sine: .*once_differentiable"):
            grad_of(g.sum(), x)


def test_once_differentiable_by_the_gradient_alone():
    f, x, u = once(), tensor(X), tensor([1.0, 2.0, 3.0])
    with GradManager().attach(u) as outer:
        with GradManager().attach(x) as inner:
            inner.backward(f.apply(x), u)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            outer.backward(x.grad.sum())


def test_once_differentiable_where_nothing_outer_depends_on_it():
    f, x, w = once(), tensor(X), tensor(2.0)
    with GradManager().attach(w) as outer:
        with GradManager().attach(x) as inner:
            inner.backward(f.apply(x).sum())
        outer.backward((x.grad * w).sum())
    assert w.grad.item() == pytest.approx(np.cos(X).sum())


def test_once_differentiable_as_vjp_and_as_decorator_of_a_staticmethod():
    f = static(
        forward=lambda ctx, x: x * 2,
        vjp=once_differentiable(lambda ctx, g: g * 2),
    )
    assert gradient(f.apply, tensor([1.0])).tolist() == [2.0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second(lambda x: f.apply(x * x), tensor([1.0]))

    class Other(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @once_differentiable
        @staticmethod
        def backward(ctx, g):
            """Its text."""
            return g * 2

    assert Other.backward.__doc__ == "Its text."
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second(lambda x: Other.apply(x * x), tensor([1.0]))


# ---------------------------------------------------------------- arguments


def test_arguments_that_are_no_tensors():
    seen = []

    class Power(Function):
        @staticmethod
        def forward(ctx, x, n, label=None, *, shift=0.0):
            seen.append((n, label, shift, ctx.needs_input_grad))
            ctx.save_for_backward(x)
            ctx.n = n
            return x**n + shift

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            seen.append(ctx.needs_input_grad)
            return g * ctx.n * x ** (ctx.n - 1), None, None

    x = tensor([2.0])
    for call in (
        lambda x: Power.apply(x, 3),
        lambda x: Power.apply(x, n=3, label="cube"),
        lambda x: Power.apply(n=3, x=x, shift=1.0),
    ):
        assert gradient(call, x).tolist() == [12.0]
    assert seen == [
        *[(3, None, 0.0, (True, False)), (True, False)],
        *[(3, "cube", 0.0, (True, False, False)), (True, False, False)],
        *[(3, None, 1.0, (True, False)), (True, False)],
    ]


def test_gradients_may_be_left_out_for_what_came_by_name_and_is_no_tensor():
    f = static(forward=lambda ctx, x, scale=2.0: x * scale, backward=lambda ctx, g: g * 5)
    assert gradient(lambda x: f.apply(x, scale=5.0), tensor([1.0])).tolist() == [5.0]


def test_a_tensor_by_name():
    x, y = tensor([2.0]), tensor([5.0])
    assert [g.tolist() for g in gradients(lambda x, y: Product.apply(x, y=y), x, y)] == [[5.0], [2.0]]


def test_setup_context_sees_defaults():
    seen = []

    class Scaled(Function):
        @staticmethod
        def forward(x, scale=2.0):
            return x * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append((len(inputs), inputs[1], output.tolist()))
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.scale, None

    assert gradient(Scaled.apply, tensor([3.0])).tolist() == [2.0]
    assert seen == [(2, 2.0, [6.0])]


def test_a_tracked_tensor_by_name_only():
    f = static(name="Named", forward=lambda ctx, x, *, w: x * w, backward=lambda ctx, g: g)
    x, w = tensor([2.0]), tensor([3.0])
    assert f.apply(x, w=w).tolist() == [6.0]
    with GradManager().attach(w), pytest.raises(RuntimeError, match=r"Named.apply: w=, .* is tracked"):
        f.apply(x, w=w)


def test_arguments_that_forward_does_not_have():
    with pytest.raises(TypeError, match=r"Cube.apply: got an unexpected keyword argument 'y'"):
        Cube.apply(tensor([1.0]), y=3)


def test_forward_is_given_new_untracked_tensors():
    seen = []

    def forward(ctx, x, y):
        seen.extend((x, y))
        return x * y

    x = tensor([2.0])
    with GradManager().attach(x) as gm:
        static(forward=forward, backward=lambda ctx, g: (g, g)).apply(x, x)
        assert gm._tape.node_id_of(seen[0]) is None
    assert seen[0] is seen[1]
    assert seen[0] is not x


def test_only_what_is_asked_for():
    seen = []

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        x, y = ctx.saved_tensors
        return tuple([g * other if need else None for other, need in zip((y, x), ctx.needs_input_grad, strict=True)])

    f = static(base=Product, backward=backward)
    x, y = tensor([2.0]), tensor([5.0])
    gm = GradManager().attach(y)
    with gm:
        gm.backward(f.apply(x, y))
    assert y.grad.tolist() == [2.0]
    assert seen == [(False, True)]


def test_two_managers_ask_for_different_gradients():
    seen = []

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        x, y = ctx.saved_tensors
        return g * y, g * x

    f = static(base=Product, backward=backward)
    x, y = tensor([2.0]), tensor([5.0])
    one, two = GradManager().attach(x), GradManager().attach(y)
    with one | two:
        z = f.apply(x, y)
        one.backward(z)
        two.backward(z)
    assert (x.grad.tolist(), y.grad.tolist()) == ([5.0], [2.0])
    assert seen == [(True, False), (False, True)]


def test_integers_are_constants():
    f = static(forward=lambda ctx, x, n: x * n, backward=lambda ctx, g: (g * 3, None))
    assert gradient(lambda x: f.apply(x, tensor([3])), tensor([1.0])).tolist() == [3.0]


# ---------------------------------------------------------------- results


def test_arrays_become_tensors_and_other_results_stay():
    f = static(
        forward=lambda ctx, x: (np.exp(x.numpy()), "label", None, x.numpy().argmax()),
        backward=lambda ctx, g, *others: g * 0 if others == (None, None, None) else others,
    )
    x = tensor(X)
    y, label, nothing, place = f.apply(x)
    assert isinstance(y, Tensor)
    assert (label, nothing) == ("label", None)
    assert isinstance(place, Tensor)
    assert place.item() == 2


def test_what_backward_receives_for_each_result():
    given = []

    def forward(ctx, x, materialize=True):
        ctx.set_materialize_grads(materialize)
        label = gnp.argsort(x)
        constant = x * 3
        ctx.mark_non_differentiable(constant)
        return x * 1, x * 2, label, constant, "text"

    def backward(ctx, *gs):
        given.append(gs)
        return gs[0], None

    f = static(forward=forward, backward=backward)
    x = tensor(X)
    gm = GradManager().attach(x)
    for materialize in (True, False):
        with gm:
            first, _, label, constant, _ = f.apply(x, materialize)
            assert gm._tape.node_id_of(constant) is None
            assert gm._tape.node_id_of(label) is None
            gm.backward(first.sum())
    one, two = given
    assert [None if g is None else g.tolist() for g in one[:2]] == [[1.0] * 3, [0.0] * 3]
    assert one[2].dtype == label.dtype
    assert one[3].tolist() == [0.0] * 3
    assert one[4] is None
    assert two[1:] == (None,) * 4


def test_an_argument_returned_as_it_is():
    class Reversed(Function):
        @staticmethod
        def forward(ctx, x, strength):
            ctx.strength = strength
            return x

        @staticmethod
        def backward(ctx, g):
            return -g * ctx.strength, None

        @staticmethod
        def jvp(ctx, t, _):
            return -t * ctx.strength

    x = tensor(X)
    y = Reversed.apply(x, 2.0)
    assert y is not x
    assert y.tolist() == X
    assert gradient(lambda x: Reversed.apply(x, 0.5) * 4, x).tolist() == [-2.0] * 3
    x += 1
    assert y.tolist() == X


@pytest.mark.parametrize("kind", ["tensor", "array", "dirty"])
def test_a_result_returned_twice_is_one_tensor(kind):
    """Its gradient comes at its last place, as in torch; a write to it is seen at both."""
    given = []

    def forward(ctx, x):
        if kind == "dirty":
            x *= 2
            ctx.mark_dirty(x)
        y = x if kind == "dirty" else x * 2 if kind == "tensor" else x.numpy() * 2
        if kind != "array":
            ctx.save_for_backward(y)
        return y, "text", y, x.numpy() * 3

    def backward(ctx, g, _, h, k):
        given.append((g.tolist(), h.tolist(), k.tolist()))
        saved = ctx.saved_tensors[0] / 2 if kind != "array" else 1.0
        return 2 * (g + h) + 3 * k + 0 * saved

    f = static(forward=forward, backward=backward, jvp=lambda ctx, t: (t * 2, None, t * 2, t * 3))
    x = tensor([1.0])
    with GradManager().attach(x) as gm:
        first, _, second, third = f.apply(x * 1)
        assert first is second
        gm.backward(first * 5 + second * 7 + third)
    assert given == [([0.0], [12.0], [1.0])]
    assert x.grad.tolist() == [27.0]
    assert functional.jvp(lambda x: sum((y := f.apply(x * 1))[::2]) + y[3], x, np.ones(1))[1].tolist() == [7.0]
    assert functional.hessian(lambda x: ((y := f.apply(x * 1))[0] * y[2]).sum(), x).tolist() == [[8.0]]
    first, _, second, _ = f.apply(x * 1)
    assert first is second
    first += 1
    assert second.tolist() == [3.0]


def test_a_saved_result_that_is_returned_twice_is_differentiated_through():
    def forward(ctx, x):
        y = gnp.exp(x)
        ctx.save_for_backward(y)
        return y, y

    f = static(forward=forward, backward=lambda ctx, g, h: (g + h) * ctx.saved_tensors[0])
    for order in range(1, 4):
        derivative = functools.reduce(lambda f, _: functional.grad(f), range(order), lambda x: f.apply(x)[0] * 2)
        np.testing.assert_allclose(derivative(0.3), 2 * np.exp(0.3), rtol=1e-14)
        derivative = functools.reduce(lambda f, _: functional.grad(f), range(order), lambda x: f.apply(x)[1] * 2)
        np.testing.assert_allclose(derivative(0.3), 2 * np.exp(0.3), rtol=1e-14)


def test_an_argument_returned_twice_as_it_is_makes_two_results():
    f = static(forward=lambda ctx, x: (x, x), backward=lambda ctx, g, h: 2 * g + 20 * h)
    x = tensor([1.0])
    first, second = f.apply(x)
    assert first is not second
    assert gradient(lambda x: f.apply(x)[0] + 2 * f.apply(x)[1], x).tolist() == [42.0]


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda ctx, x: (x * 2, "text"), "result 1 is no Tensor"),
        (lambda ctx, x: (x * 2, gnp.argsort(x)), "result 1 is of int64"),
        (lambda ctx, x: (x * 2, (y := x * 3, ctx.mark_non_differentiable(y))[0]), "result 1 was marked"),
    ],
)
def test_a_tangent_of_a_result_that_has_none_is_refused(forward, why):
    def jvp(tangent):
        f = static(forward=forward, jvp=lambda ctx, t: (t * 2, tangent))
        return functional.jvp(lambda x: f.apply(x)[0], tensor([1.0]), np.ones(1))[1]

    assert jvp(None).tolist() == [2.0]
    for tangent in (np.zeros(1), tensor([1.0]), 0.0):
        with pytest.raises(errors.FunctionError, match=rf"jvp: tangent 1 is .*, but {why}.*return None"):
            jvp(tangent)


def test_a_tuple_of_one_and_a_named_tuple():
    pair = collections.namedtuple("pair", "low high")
    one = static(forward=lambda ctx, x: (x * 2,), backward=lambda ctx, g: (g * 2,))
    two = static(forward=lambda ctx, x: pair(x * 2, x * 3), backward=lambda ctx, g, h: g * 2 + h * 3)
    x = tensor([1.0])
    (y,) = one.apply(x)
    assert y.tolist() == [2.0]
    assert two.apply(x).high.tolist() == [3.0]
    assert gradient(lambda x: two.apply(x).high, x).tolist() == [3.0]


def test_one_gradient_for_two_arguments():
    f = static(forward=lambda ctx, x, y: x + y, backward=lambda ctx, g: (g, g))
    x, y = tensor([2.0]), tensor([3.0])
    with GradManager().attach([x, y]) as gm:
        gm.backward(f.apply(x, y), np.ones(1))
    x.grad *= 5
    assert (x.grad.tolist(), y.grad.tolist()) == ([5.0], [1.0])


def test_none_is_zero():
    f = static(forward=lambda ctx, x, y: x * y, backward=lambda ctx, g: (None, g))
    x, y = tensor([2.0]), tensor([3.0])
    found = gradients(f.apply, x, y)
    assert found[0] is None
    assert found[1].tolist() == [1.0]


def test_arrays_numbers_and_lower_precision_are_fine_as_gradients():
    x = tensor(np.float32([1.0, 2.0]))
    f = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: g.numpy().astype(np.float64) * 2)
    g = gradient(f.apply, x)
    assert g.dtype == np.float32
    assert g.tolist() == [2.0, 2.0]
    whole = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: np.array([2, 2]))
    assert gradient(whole.apply, x).dtype == np.float32
    number = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: 2)
    assert gradient(number.apply, tensor(1.5)).item() == 2.0


# ---------------------------------------------------------------- in place


def test_mark_dirty():
    x = tensor(X)
    with GradManager().attach(x) as gm:
        y = x * 3
        memory = y._array
        z = Double.apply(y)
        assert z is y
        assert y.tolist() == [6 * v for v in X]
        assert memory.tolist() == [3 * v for v in X]
        gm.backward((y * y).sum())
    assert x.grad.numpy() == pytest.approx(72 * np.array(X))


def test_mark_dirty_of_an_attached_tensor_and_in_every_order():
    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        Double.apply(x)
        gm.backward(x * x)
    assert (x.tolist(), x.grad.tolist()) == ([6.0], [24.0])

    def f(x):
        y = x * x
        Double.apply(y)
        return y * x

    assert gradcheck(f, tensor(X), order=2)


def test_mark_dirty_under_no_grad_makes_a_constant():
    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        y = x * 2
        with no_grad():
            Double.apply(y)
        gm.backward((x * y).sum())
    assert x.grad.tolist() == [12.0]


def test_mark_dirty_while_nothing_records():
    x = tensor([3.0])
    assert Double.apply(x) is x
    assert x.tolist() == [6.0]


def test_a_dirty_argument_saved_is_saved_as_the_result():
    class SquareInPlace(Function):
        @staticmethod
        def forward(ctx, x):
            x *= x
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            (square,) = ctx.saved_tensors
            return 2 * g * gnp.sqrt(square)

        @staticmethod
        def jvp(ctx, t):
            (square,) = ctx.saved_tensors
            return 2 * t * gnp.sqrt(square)

    assert gradcheck(lambda x: SquareInPlace.apply(x * 1.0), tensor([0.5, 2.0]), order=3)


def test_a_dirty_and_another_result():
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        x += y
        return y * 5, x

    f = static(forward=forward, backward=lambda ctx, g, h: (h, 5 * g + h))
    x, y = tensor([1.0]), tensor([2.0])
    with GradManager().attach([x, y]) as gm:
        a = x * 2
        z, b = f.apply(a, y)
        assert b is a
        gm.backward(z * a)
    assert (x.grad.tolist(), y.grad.tolist()) == ([20.0], [30.0])


def test_an_undeclared_write_to_an_argument_is_refused():
    def forward(ctx, x):
        x *= 2
        return x

    f = static(name="Sly", forward=forward, backward=lambda ctx, g: 2 * g)
    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        with pytest.raises(RuntimeError, match=r"Sly.forward wrote to argument 0, .*mark_dirty"):
            f.apply(x)
        gm.backward(x * x)
    assert (x.tolist(), x.grad.tolist()) == ([3.0], [6.0])


def test_a_forward_that_fails_changes_nothing():
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x *= 2
        raise ZeroDivisionError("in forward")

    x = tensor([3.0])
    with GradManager().attach(x) as gm:
        with pytest.raises(ZeroDivisionError, match="in forward"):
            static(forward=forward).apply(x)
        gm.backward(x * x)
    assert (x.tolist(), x.grad.tolist()) == ([3.0], [6.0])


# ---------------------------------------------------------------- functions people write


def test_straight_through():
    class Round(Function):
        @staticmethod
        def forward(ctx, x):
            return gnp.round(x)

        @staticmethod
        def backward(ctx, g):
            return g

        @staticmethod
        def jvp(ctx, t):
            return t

    x = tensor([0.4, 1.7])
    assert gradient(lambda x: Round.apply(x) ** 2, x).tolist() == [0.0, 4.0]
    assert second(lambda x: Round.apply(x) ** 2, x).tolist() == [2.0, 2.0]


def test_clipped_gradients():
    class Clip(Function):
        @staticmethod
        def forward(ctx, x, limit):
            ctx.limit = limit
            return x

        @staticmethod
        def backward(ctx, g):
            return gnp.clip(g, -ctx.limit, ctx.limit), None

    assert gradient(lambda x: Clip.apply(x, 1.0) * np.array([0.5, 3.0, -7.0]), tensor(X)).tolist() == [0.5, 1.0, -1.0]


def test_a_solver_from_outside():
    """The derivative of an implicit function: y with y**3 + y = x."""

    class Root(Function):
        @staticmethod
        def forward(ctx, x):
            y = np.zeros(x.shape)
            for _ in range(60):
                y = y - (y**3 + y - x.numpy()) / (3 * y**2 + 1)
            ctx.y = y
            return y

        @staticmethod
        def backward(ctx, g):
            return g / (3 * ctx.y**2 + 1)

        @staticmethod
        def jvp(ctx, t):
            return t / (3 * ctx.y**2 + 1)

    assert gradcheck(Root.apply, tensor(X), order=3)


# ---------------------------------------------------------------- vmap


ROWS = np.arange(1.0, 7.0).reshape(3, 2) / 3
W = np.array([0.5, 2.0])


class TestVmap:
    def test_without_a_rule_of_its_own(self):
        x, w = tensor(ROWS), tensor(W)
        assert vmap(Cube.apply)(x).numpy() == pytest.approx(ROWS**3)
        assert gradcheck(vmap(Cube.apply), x, order=2)
        assert gradcheck(vmap(lambda x: SinCos.apply(x, 2.0)), x)
        assert gradcheck(vmap(Product.apply, in_dims=(0, None)), (x, w), order=2)
        assert gradcheck(vmap(vmap(Product.apply, in_dims=(0, None))), (x, tensor(np.ones(3))))
        assert gradcheck(vmap(scaled, in_dims=(0, None)), (x, w), order=2)

    def test_a_rule_of_its_own(self):
        calls = []

        class Own(Product):
            @staticmethod
            def vmap(info, in_dims, x, y):
                calls.append((info.batch_size, info.randomness, in_dims, x.shape, y.shape))
                return Product.apply(gnp.moveaxis(x, 0, 1), y if in_dims[1] is None else y.T).T, 0

        x, w = tensor(ROWS), tensor(2.0)
        assert vmap(Own.apply, in_dims=(0, None))(x, w).numpy() == pytest.approx(ROWS * 2)
        assert calls == [(3, "error", (0, None), (3, 2), ())]
        assert gradcheck(vmap(Own.apply), (x, tensor(ROWS[::-1].copy())), order=2)
        assert Own.apply(x, w).numpy() == pytest.approx(ROWS * 2)

    def test_a_rule_of_its_own_in_nested_vmaps(self):
        depths = []

        class Own(Product):
            @staticmethod
            def vmap(info, in_dims, x, y):
                depths.append(info.batch_size)
                if in_dims[1] is None:
                    y = gnp.reshape(y, (1,) * (x.ndim - y.ndim) + y.shape)
                return Own.apply(x, y), 0

        assert gradcheck(vmap(vmap(Own.apply, in_dims=(0, 0)), in_dims=(0, None)), (tensor(ROWS), tensor(W)), order=2)
        assert set(depths) == {2, 3}

    def test_the_position_of_the_batch_axis(self):
        class Twisted(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2, x.sum(), "text"

            @staticmethod
            def vmap(info, in_dims, x):
                return (x.T * 2, np.float64(7.0), "text"), (-1, None, None)

        y, constant, text = vmap(lambda x: (*Twisted.apply(x)[:2], tensor(1.0)), out_dims=(0, None, 0))(tensor(ROWS))
        assert y.numpy() == pytest.approx(ROWS * 2)
        assert (constant.item(), text.tolist()) == (7.0, [1.0] * 3)

    @pytest.mark.parametrize("own", [False, True])
    def test_the_gradient_of_each_example(self, own):
        rule = {"vmap": lambda info, in_dims, x, w: (Product.apply(x, w), 0)} if own else {}
        f = static(base=Product, **rule)

        def slope(x, w):
            with GradManager().attach(w):
                return grad_of(f.apply(x, w).sum(), w)[0]

        assert vmap(slope, in_dims=(0, None))(tensor(ROWS), tensor(W)).numpy() == pytest.approx(ROWS)

    def test_several_gradients_at_once(self):
        x = tensor(X)
        with GradManager().attach(x):
            (rows,) = grad_of(Cube.apply(x), x, np.eye(3), is_grads_batched=True)
        assert rows.numpy() == pytest.approx(np.diag(3 * np.square(X)))

    def test_values_cannot_be_asked_for(self):
        with pytest.raises(RuntimeError, match="inside vmap"):
            vmap(Exp.apply)(tensor(ROWS))

    @pytest.mark.parametrize(
        ("made", "error", "text"),
        [
            (lambda x: x, RuntimeError, r"Bad.vmap must return two things, \(output, out_dims\)"),
            (lambda x: ((x, x), (0,)), RuntimeError, "Bad.vmap returned 2 results and 1 out_dims"),
            (lambda x: (x, 1), ValueError, r"Bad.vmap: result 0 has shape \(3, 2\) and out_dims 1; .* the 3 examples"),
            (lambda x: (x, 5), ValueError, "result 0 has shape .* out_dims 5"),
        ],
    )
    def test_a_wrong_rule(self, made, error, text):
        f = static(name="Bad", forward=lambda ctx, x: x * 2, vmap=lambda info, in_dims, x: made(x))
        with pytest.raises(error, match=text):
            vmap(f.apply)(tensor(ROWS))

    def test_a_rule_of_its_own_and_a_made_one(self):
        class Both(Cube):
            generate_vmap_rule = True

        assert vmap(Both.apply)(tensor(ROWS)).numpy() == pytest.approx(ROWS**3)
        Both.vmap = staticmethod(lambda info, in_dims, x: (x, 0))
        with pytest.raises(RuntimeError, match="Both defines vmap and asks for one to be made"):
            Both.apply(tensor(ROWS))


# ---------------------------------------------------------------- with the rest of the library


def test_hooks_on_a_result():
    seen = []
    x = tensor(X)
    with GradManager().attach(x) as gm:
        y = Cube.apply(x)
        y.register_hook(lambda g: seen.append(g.tolist()) or g * 2)
        gm.backward(y.sum())
    assert seen == [[1.0] * 3]
    assert x.grad.numpy() == pytest.approx(6 * np.square(X))


def test_on_arrays_that_are_not_numpys(cupy):
    x, y = asarray(cupy.asarray(X)), asarray(cupy.asarray([1.0, 2.0, 3.0]))
    on_host = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: np.ones(3))
    f = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: 2 * g, jvp=lambda ctx, t: None)
    with GradManager().attach([x, y]) as gm:
        z = Product.apply(x, y) + SinCos.apply(x)[1] + Double.apply(y * 1.0) + f.apply(x) + my_exp(x) + wave(y)
        gm.backward(z, cupy.ones(3))
    assert isinstance(x.grad._array, guard.ndarray)
    assert x.grad._array._host == pytest.approx(np.array([3.0, 4.0, 5.0]) - np.sin(X) + np.exp(X))
    assert y.grad._array._host == pytest.approx(np.array(X) + 2 + 2 * np.cos([2.0, 4.0, 6.0]))
    with forward_level(x, cupy.ones(3)) as recorder:
        assert recorder.node_id_of(f.apply(x))._array._host.tolist() == [0.0] * 3
    x.grad = None
    with GradManager().attach(x) as gm, pytest.raises(TypeError, match="gradient 0 lives on cpu, argument 0 does not"):
        gm.backward(on_host.apply(x), cupy.ones(3))
    assert guard.ndarray.copies_to_host == 0


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("found", "error", "text"),
    [
        (lambda g: g, RuntimeError, r"Bad.backward returned 1 gradient for 2 arguments of forward"),
        (lambda g: (), RuntimeError, r"Bad.backward returned 0 gradients for 2 arguments"),
        (lambda g: (g, None, g), RuntimeError, r"Bad.backward returned 3 gradients for 2 arguments"),
        (lambda g: (g[:1], None), ValueError, r"gradient 0 has shape \(1,\); it must have that of argument 0, \(3,\)"),
        (lambda g: (np.ones((2, 3)), None), ValueError, r"gradient 0 has shape \(2, 3\).* argument 0, \(3,\)"),
        (lambda g: (1.0, None), ValueError, r"gradient 0 has shape \(\); .* argument 0, \(3,\)"),
        (lambda g: (g * 1j, None), TypeError, r"gradient 0 is complex, complex128, but argument 0 is real, float64"),
        (lambda g: (np.array(["a"] * 3), None), TypeError, r"gradient 0 has dtype <U1; it must be numeric"),
        (lambda g: ("g", None), TypeError, r"gradient 0 is a value of type str; it must be a Tensor, an array or None"),
        (lambda g: ([g], None), TypeError, r"gradient 0 is a value of type list"),
        (lambda g: (g, g), RuntimeError, r"gradient 1 is a Tensor .*, but argument 1 was no Tensor; return None"),
    ],
)
def test_a_wrong_backward(found, error, text):
    f = static(name="Bad", forward=lambda ctx, x, n: x * n, backward=lambda ctx, g: found(g))
    x = tensor(X)
    x.grad = tensor([5.0, 5.0, 5.0])
    gm = GradManager().attach(x)
    with gm, pytest.raises(error, match=text) as caught:
        gm.backward(f.apply(x, 2.0).sum())
    assert isinstance(caught.value, errors.GradmgrError)
    assert "Bad" in str(caught.value)
    assert x.grad.tolist() == [5.0, 5.0, 5.0]
    x.grad = None
    assert gradient(lambda x: x * x, x).tolist() == [2 * v for v in X]


def test_further_gradients_of_none_are_fine():
    f = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: (2 * g, None, None))
    assert gradient(f.apply, tensor([1.0])).tolist() == [2.0]


def test_an_error_inside_backward_is_the_users_own():
    def backward(ctx, g):
        raise KeyError("mine")

    x = tensor([1.0])
    with pytest.raises(KeyError, match="mine") as caught:
        gradient(static(forward=lambda ctx, x: x * 2, backward=backward).apply, x)
    assert "(in Mine.backward)" in caught.value.__notes__
    assert x.grad is None


@pytest.mark.parametrize(
    ("forward", "error", "text"),
    [
        (lambda ctx, x: None, RuntimeError, "Bad.forward returned NoneType; it must return a Tensor or an array"),
        (lambda ctx, x: (), RuntimeError, "Bad.forward returned an empty tuple"),
        (lambda ctx, x: (3, "a"), RuntimeError, "Bad.forward returned int, str"),
        (lambda ctx, x: (x, [x]), RuntimeError, "result 1 is a list with Tensors in it"),
        (lambda ctx, x: ctx.save_for_backward(3.0), TypeError, "Bad: ctx.save_for_backward takes Tensors; .* float"),
        (
            lambda ctx, x: ctx.save_for_forward(x, [x]),
            TypeError,
            "ctx.save_for_forward takes Tensors; number 1 is list",
        ),
        (lambda ctx, x: ctx.mark_dirty(None), TypeError, "ctx.mark_dirty takes Tensors; number 0 is NoneType"),
        (
            lambda ctx, x: ctx.mark_dirty(x) or x * 2,
            RuntimeError,
            "mark_dirty was given argument 0, which forward did not",
        ),
        (
            lambda ctx, x: (y := x * 2, ctx.mark_dirty(y))[0],
            RuntimeError,
            "mark_dirty was given .* that is no argument",
        ),
        (
            lambda ctx, x: ctx.mark_non_differentiable(x * 2) or x,
            RuntimeError,
            "mark_non_differentiable was given a Tens",
        ),
    ],
)
def test_a_wrong_forward(forward, error, text):
    x = tensor([1.0])
    with GradManager().attach(x) as gm:
        with pytest.raises(error, match=text):
            static(name="Bad", forward=forward).apply(x)
        gm.backward(x * x)
    assert x.grad.tolist() == [2.0]


@pytest.mark.parametrize(
    "method",
    ["save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads"],
)
def test_saving_in_ctx_after_forward_is_refused(method):
    kept = []

    def backward(ctx, g):
        getattr(ctx, method)(g)
        return g

    def forward(ctx, x):
        kept.append(ctx)
        return x * 2

    x = tensor([1.0])
    with pytest.raises(RuntimeError, match=rf"Late: ctx.{method} was called when forward was over"):
        gradient(static(name="Late", forward=forward, backward=backward).apply, x)
    with pytest.raises(RuntimeError, match=rf"Late: ctx.{method} was called when forward was over"):
        getattr(kept[0], method)(x)


def test_saved_tensors_after_they_were_freed():
    kept = []

    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        assert ctx.saved_tensors[0] is x
        kept.append(ctx)
        return x * 2

    def backward(ctx, g):
        kept.append(ctx)
        x, nothing = ctx.saved_tensors
        assert nothing is None
        x *= 100  # ours to write to: the next backward finds the same values
        return x

    x = tensor([3.0])
    gm = GradManager().attach(x)
    with gm:
        y = static(name="Kept", forward=forward, backward=backward).apply(x)
        gm.backward(y, retain=True)
        gm.backward(y)
    assert x.grad.tolist() == [600.0]
    for ctx in kept:
        with pytest.raises(RuntimeError, match=r"Kept: ctx.saved_tensors was read after the saved tensors were freed"):
            ctx.saved_tensors


def test_functions_have_no_instances():
    for make in (lambda: Cube(), lambda: Cube(tensor([1.0]))):
        with pytest.raises(RuntimeError, match=r"Cube is a Function and has no instances.* call Cube.apply"):
            make()


def test_incomplete_classes():
    with pytest.raises(NotImplementedError, match=r"Empty must define the static method forward"):
        static(name="Empty").apply(tensor([1.0]))
    with pytest.raises(RuntimeError, match=r"Both defines both backward and vjp"):
        static(name="Both", forward=lambda ctx, x: x, backward=lambda ctx, g: g, vjp=lambda ctx, g: g).apply(
            tensor([1.0])
        )
    for method in (Function.forward, Function.setup_context, Function.backward, Function.jvp, Function.vmap):
        with pytest.raises(NotImplementedError):
            method(None, (), ())


def test_declared_overwritten_from_outside():
    buffer = np.array([2.0])
    x = tensor([3.0])
    from_outside = static(forward=lambda ctx, x, y: ctx.save_for_backward(x, y) or x * y, backward=Product.backward)
    y = asarray(buffer)
    with GradManager().attach(x) as gm:
        z = from_outside.apply(x, y)
        buffer[:] = 7
        graph.increment_version(buffer)
        with pytest.raises(errors.StaleValueError):
            gm.backward(z)


# ---------------------------------------------------------------- memory and threads


@pytest.mark.usefixtures("no_cyclic_collector")
@pytest.mark.parametrize("end", ["backward", "release", "drop"])
def test_what_is_saved_is_freed_by_counting(end):
    contexts, values = [], []

    class Saving(Function):
        @staticmethod
        def forward(ctx, x):
            contexts.append(weakref.ref(ctx))
            kept = x * 2
            ctx.kept, ctx.x, ctx.out = kept, x, x * 3
            values.append(weakref.ref(kept))
            ctx.save_for_backward(x, ctx.out)
            return ctx.out

        @staticmethod
        def backward(ctx, g):
            contexts.append(weakref.ref(ctx))
            return g * 3

    x = tensor([1.0])
    gm = GradManager().attach(x)
    gm.record()
    y = Saving.apply(x)
    assert contexts[0]() is None
    assert values[0]() is not None
    if end == "backward":
        gm.backward(y)
    elif end == "release":
        gm.release()
    else:
        del y
        gm._tape.sweep(everything=True)
        assert len(gm._tape.entries) == 0
    assert values[0]() is None
    assert all(ref() is None for ref in contexts)
    gm.release()


@pytest.mark.usefixtures("no_cyclic_collector")
def test_a_class_is_not_kept():
    def use():
        f = static(forward=lambda ctx, x: x * 2, backward=lambda ctx, g: g * 2)
        x = tensor([1.0])
        gm = GradManager().attach(x)
        with gm:
            gm.backward(f.apply(x))
        return f

    refs = [weakref.ref(use()) for _ in range(2)]
    gc.collect()  # a class refers to itself
    assert [ref() for ref in refs] == [None, None]


def test_bytes_of_what_is_saved_are_counted():
    x = tensor(np.ones(1000))
    with GradManager().attach(x) as gm:
        y = Cube.apply(x * 2)
        assert gm._tape.nbytes() >= 8000
        assert y.shape == (1000,)


def test_many_threads():
    x = tensor(np.ones(50))
    failures = []

    def work(k):
        try:
            gm = GradManager().attach(x)
            for _ in range(20):
                with gm:
                    gm.backward((Cube.apply(x) * k).sum())
        except Exception as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    assert x.grad.tolist() == [3.0 * 36 * 20] * 50


def test_a_long_chain():
    x = tensor([1.0])
    f = static(forward=lambda ctx, x: x * 1.0, backward=lambda ctx, g: g)
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(3000):
            y = f.apply(y)
        gm.backward(y)
    assert x.grad.tolist() == [1.0]


# ---------------------------------------------------------------- custom_op


@custom_op(vjp={"x": lambda g, out: g * out}, jvp={"x": lambda t, out: t * out})
def my_exp(x):
    """e to the x."""
    return np.exp(x)


@custom_op(derivative={"x": lambda t, x, rate: t * rate * gnp.cos(rate * x)})
def wave(x, rate=2.0):
    return np.sin(rate * x)


@custom_op(
    vjp={"x": lambda g, y: g * y, "y": lambda g, x: g * x},
    jvp={"x": lambda t, y: t * y, "y": lambda t, x: t * x},
)
def scaled(x, y):
    return x * y


@custom_op(
    vjp={"x": lambda g, shape, axis: gnp.broadcast_to(gnp.expand_dims(g, axis), shape)},
    jvp={"x": lambda t, axis: gnp.sum(t, axis)},
)
def total(x, axis):
    return np.sum(x, axis)


def test_custom_ops_to_any_order():
    assert gradcheck(my_exp, tensor(X), order=3)
    assert gradcheck(lambda x: wave(x, rate=1.5), tensor(X), order=3)
    assert gradcheck(scaled, (tensor(X), tensor([1.5, 0.5, -2.0])), order=2)
    assert gradcheck(lambda x: total(x, 1) ** 2, tensor(np.ones((2, 3))), order=2)
    assert gradcheck(wave, tensor([0.5 + 1j, -0.2j]), order=2)


def test_custom_ops_broadcast():
    assert gradcheck(scaled, (tensor(np.ones((2, 3))), tensor([1.0, 2.0, 3.0])), order=2)
    x = tensor(2.0)
    assert gradient(lambda x: scaled(x, np.array([1.0, 2.0])), x).tolist() == 3.0


def test_custom_ops_recorded_on_the_same_tape():
    x = tensor(X)
    with GradManager().attach(x):
        (g,) = grad_of(my_exp(x).sum(), x, create_graph=True)
        (h,) = grad_of(g.sum(), x)
    assert h.numpy() == pytest.approx(np.exp(X))


def test_how_custom_ops_are_called():
    x = tensor([1.0])
    assert (my_exp.__name__, my_exp.__doc__) == ("my_exp", "e to the x.")
    assert isinstance(my_exp(x), Tensor)
    assert isinstance(my_exp(np.ones(2)), np.ndarray)
    assert my_exp([0.0]).tolist() == [1.0]
    for call in (wave(x, 3.0), wave(x, rate=3.0), wave(rate=3.0, x=x), wave(rate=tensor(3.0), x=x)):
        assert call.tolist() == [np.sin(3.0)]
    for call, text in (
        (lambda: wave(), "misses its argument 'x'"),
        (lambda: wave(x, 1, 2), "takes x, rate; found 3 arguments"),
        (lambda: wave(x, x=x), "unexpected or repeated 'x'"),
        (lambda: wave(x, pace=1), "unexpected or repeated 'pace'"),
        (lambda: wave("a"), "wave takes Tensors, arrays and numbers"),
    ):
        with pytest.raises(TypeError, match=text):
            call()


def test_declared_again_under_the_same_name():
    made = []
    x = tensor([1.0])
    with GradManager().attach(x) as gm:
        for k in (2.0, 3.0):

            @custom_op(derivative={"x": lambda t, k=k: t * k}, name="same")
            def same(x, k=k):
                return x * k

            made.append(same(x))
        gm.backward(made)
    assert x.grad.tolist() == [5.0]


def test_a_custom_op_keeps_only_what_its_rules_name():
    x = tensor(np.ones(1000))
    y = tensor(np.ones(1000))
    with GradManager().attach(x) as gm:
        kept = [scaled(x, y), total(x, 0)]
        assert gm._tape.nbytes() == 8000  # y, for the gradient of x
    assert len(kept) == 2


def test_custom_ops_cannot_write_to_their_inputs():
    @custom_op(derivative={"x": lambda t: t})
    def sly(x):
        x += 1
        return x

    x = tensor([1.0])
    with pytest.raises(ValueError, match="read-only"):
        sly(x)
    assert x.tolist() == [1.0]


def test_a_custom_op_without_jvp():
    @custom_op(vjp={"x": lambda g: g * 2})
    def twice(x):
        return x * 2

    x = tensor([1.0])
    assert gradient(twice, x).tolist() == [2.0]
    with forward_level(x, np.ones(1)), pytest.raises(NotImplementedError, match="twice has no jvp for 'x'"):
        twice(x)


def test_a_tracked_tensor_where_there_is_no_rule():
    x, rate = tensor([1.0]), tensor(2.0)
    with GradManager().attach(rate), pytest.raises(NotImplementedError, match=r"wave: 'rate' is given .* tracked"):
        wave(x, rate)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda f: custom_op(f, vjp={"x": lambda g, z: g}), "asks for 'z'; it may ask for x, y, out, shape"),
        (lambda f: custom_op(f, vjp={"z": lambda g: g}), "a rule is for 'z'; the function's parameters are x, y"),
        (lambda f: custom_op(f, vjp={"y": lambda g: g}), "must come first among the parameters, which are x, y"),
        (lambda f: custom_op(f), "rules are for nothing"),
        (lambda f: custom_op(f, jvp={"x": lambda t: t}), "'x' has a jvp and no vjp"),
        (lambda f: custom_op(f, vjp={"x": lambda g: g}, derivative={"x": lambda t: t}), "serves both ways"),
        (lambda f: custom_op(f, vjp={"x": lambda g: g}, jvp={"x": lambda t, w: t}), "asks for 'w'"),
        (lambda f: custom_op(3, vjp={"x": lambda g: g}), "decorates a function; found int"),
        (lambda f: custom_op(lambda x, *y: x, vjp={"x": lambda g: g}), "each parameter by position"),
    ],
)
def test_wrong_declarations(declare, text):
    with pytest.raises(TypeError, match=text):
        declare(lambda x, y: x)


@pytest.mark.parametrize(
    ("function", "rule", "error", "text"),
    [
        (
            lambda x: (x, x),
            lambda g: g,
            RuntimeError,
            "bad: its function must return one array of numbers; found tuple",
        ),
        (lambda x: None, lambda g: g, RuntimeError, "bad: .* found NoneType"),
        (lambda x: x * 2, lambda g: None, TypeError, "bad: the vjp of 'x' gave a value of type NoneType"),
        (lambda x: x * 2, lambda g: g[:1], ValueError, r"bad: the vjp of 'x' gave shape \(1,\); .* input, \(3,\)"),
        (lambda x: x.sum(), lambda g: g, ValueError, r"bad: the vjp of 'x' gave shape \(\); .* input, \(3,\)"),
    ],
)
def test_wrong_rules(function, rule, error, text):
    bad = custom_op(function, vjp={"x": rule}, name="bad")
    x = tensor(X)
    with pytest.raises(error, match=text):
        gradient(bad, x)
    assert x.grad is None


def test_a_wrong_tangent():
    bad = custom_op(lambda x: x * 2, vjp={"x": lambda g: g}, jvp={"x": lambda t: t[:1]}, name="bad")
    x = tensor(X)
    with forward_level(x, np.ones(3)), pytest.raises(ValueError, match=r"the tangent for 'x' has shape \(1,\)"):
        bad(x)


# ---------------------------------------------------------------- calls that are computed in few frames, and others


class _Scaled(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        return x * x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 6 * g * x, None


def _gradient_and_value(call, x):
    gm = GradManager().attach(x)
    with gm:
        y = call(x)
        gm.backward(y.sum())
    found, x.grad = x.grad.tolist(), None
    return found, y.tolist()


@pytest.mark.parametrize("general", [False, True], ids=["one tape", "under an interceptor, in the general path"])
def test_one_tape_and_the_general_path_record_the_same(general):
    x = tensor([1.0, -2.0])
    with profiler.profile() if general else nullcontext():
        assert _gradient_and_value(lambda x: _Scaled.apply(x, 3.0), x) == ([6.0, -12.0], [3.0, 12.0])
        assert _gradient_and_value(lambda x: _Scaled.apply(x, np.array(3.0)), x) == ([6.0, -12.0], [3.0, 12.0])


def test_one_tensor_given_twice_is_one_tensor_for_forward():
    seen = []

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            seen.append(x is y)
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    assert _gradient_and_value(lambda x: Product.apply(x, x), tensor([3.0]))[0] == [6.0]
    assert seen == [True]


def test_a_method_that_is_replaced_later_is_the_one_called():
    class Changing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = tensor([1.0])
    assert _gradient_and_value(Changing.apply, x)[0] == [2.0]
    Changing.backward = staticmethod(lambda ctx, g: g * 5)
    assert _gradient_and_value(Changing.apply, x)[0] == [5.0]
    Changing.vjp = staticmethod(lambda ctx, g: g * 7)
    with pytest.raises(errors.FunctionError, match="both backward and vjp"):
        Changing.apply(x)


def test_what_forward_raises_leaves_the_manager_recording():
    class Failing(Function):
        @staticmethod
        def forward(ctx, x):
            raise ValueError("no")

    x = tensor([2.0])
    gm = GradManager().attach(x)
    with gm:
        y = x * x
        with pytest.raises(ValueError, match="no"):
            Failing.apply(x)
        gm.backward((y * x).sum())
    assert x.grad.tolist() == [12.0]


def test_a_value_saved_that_is_no_argument_or_result_still_reaches_backward():
    class Root(Function):
        @staticmethod
        def forward(ctx, x):
            root = np.sqrt(x)
            ctx.save_for_backward(root)
            return root + 1

        @staticmethod
        def backward(ctx, g):
            (root,) = ctx.saved_tensors
            return g / (2 * root)

    assert _gradient_and_value(Root.apply, tensor([4.0]))[0] == [0.25]
