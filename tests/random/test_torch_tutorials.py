"""Programs as PyTorch's tutorials have them, ported: the numbers are those that torch 2.13 computes in float64.

What stands for torch's line is what a reader of docs/torch_autograd.md would write.
"""

import gc

import numpy  # noqa: ICN001  # np is gradmgr.numpy here, as it would be in a port
import pytest

import gradmgr
import gradmgr.numpy as np
from gradmgr import (
    Function,
    GradManager,
    Tensor,
    checkpoint,
    checkpoint_sequential,
    forward_ad,
    functional,
    graph,
    special,
    tensor,
    vmap,
)


def numbers(*shape, start=0.0):
    """The same on both sides."""
    return tensor(numpy.cos(numpy.arange(numpy.prod(shape)) * 1.7 + start).reshape(shape))


# What torch 2.13 computes, to 12 digits.
EXPECTED = {
    "gradient_penalty": [
        0.0891956421233,
        [[-0.03638626572, 0.124747802519, 0.0485215936469], [0.0531714261086, -0.156587654314, -0.0585698008673]],
        [[-0.159190632285], [0.273088011279], [0.122965855439]],
    ],
    "maml": [[0.751246596874, 0.0340029744176], [0.0787836909878, 0.414919283449]],
    "hypergradient": [-3.3264802192, [0.180273966438, -0.374751452172]],
    "differential_equation": [
        [[1.95129964889], [1.75717098151], [1.31000941826], [0.84902061206]],
        [[0.0], [-1.08516449775], [-1.46542983428], [-1.23660204242]],
        [[0.432525293471, 0.00611720694711, -0.39232293328]],
        [[0.104493862264], [0.00648101836027], [-0.0905751612504]],
    ],
    "linear": [
        [[1.04811313433, -2.95645163807], [-1.27320128534, 1.96220460817], [1.69542062024, -4.43834231242]],
        [[3.99627056343, -1.74963570137], [-5.18604491584, 2.2503826038]],
        [-0.883472533891, -6.33734594219],
        [[0.623629091754, -0.174748945544], [0.71655217214, -0.213515766276]],
    ],
    "sinh": [[1.04533851413, 1.54308063482], [0.304520293447, -1.17520119364], [1.04533851413, 1.54308063482]],
    "sort": [
        [
            [-0.966798192579, -0.128844494296, 0.377977742713, 1.0],
            [-0.714265652027, -0.602011902685, 0.786070296141, 0.86939749035],
            [-0.917930780414, -0.275163338052, 0.511703992453, 0.988837342694],
        ],
        [[3.0, 1.0, 0.0, 2.0], [3.0, 1.0, 0.0, 2.0], [2.0, 0.0, 1.0, 3.0]],
    ],
    "optimizer_in_backward": [
        [[0.947876966146, 0.0219835615454], [-0.950301869342, 0.324151995536]],
        [[0.375287241044, -0.809072212805], [-0.263386049577, 0.95858094859]],
        [[-0.31556409242, -0.756739843112], [0.473484698246, 0.53779699841]],
    ],
    "norms": [2.44948974278, 0.541825154066, 0.0269999967192, 0.00147710729923],
    "disk": [[3.75604922709, 0.758868299864, -0.0970270436004, 1.89487427252]],
    "checkpointed": [
        [
            [0.0151825413923, -0.0201480485281],
            [-0.00876049509178, 0.0123623427458],
            [0.00632491979477, -0.00924721276041],
        ],
        [[0.0230719896646, -0.0471813093608], [-0.00700997113976, 0.0160283518451]],
        [[0.130493039334, -0.00473659668354], [-0.0376945887101, 0.00118230331954]],
        [[0.247389869467, -0.238243800801], [-0.385649214527, 0.371474709572]],
        [[0.484129421509, -0.643237770656], [0.594585509254, -0.789830442606]],
    ],
    "hvp": [[-1.24955586984, 0.649601881547, -1.95050253214, 1.43107830689]],
    "per_sample": [
        [
            [
                [0.699888299937, 0.00875832962301],
                [-0.653427944343, -0.00817692954999],
                [-0.0464603555941, -0.000581400073029],
            ],
            [[0.842806953073, -0.206669173355], [-0.959024571256, 0.235167513327], [0.116217618183, -0.0284983399717]],
            [[-0.251382090721, 0.130579030658], [-0.647448899282, 0.336313734311], [0.898830990003, -0.466892764969]],
            [[-0.146039914022, 0.125215940716], [0.0308133438363, -0.026419639185], [0.115226570185, -0.0987963015305]],
        ],
        [
            [-0.706963236934, 0.660033229127, 0.0469300078068],
            [0.848590163982, -0.965605249479, 0.117015085497],
            [0.27017948467, 0.69586265854, -0.96604214321],
            [-0.181217050714, 0.0382354600116, 0.142981590703],
        ],
    ],
    "jacobians": [
        [[0.450102520937, -0.0579932316913, -0.435158303718], [0.324207295196, 0.745718535629, -0.516370750415]],
        [[0.0792365623217, -0.0102091948021, -0.0766057652389], [0.154220007377, 0.354725879923, -0.245628960601]],
    ],
    "laplacian": [[-0.717094915041, 0.66557453342, -0.486382023004]],
    "edge": [
        [[0.726896479141, 0.400593738391], [0.68202057865, 0.282462313819]],
        [[0.0305782046618, 0.170491998486], [0.113130982201, 0.068128936407]],
        [[0.0675202163998, 0.127509683918], [0.164131989542, 0.055150170138]],
    ],
    "served": [[[0.284034701905, 0.404479174017], [-0.985941816945, 0.642330880782]]],
}


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(
            ours.numpy() if isinstance(ours, Tensor) else ours, theirs, rtol=1e-11, atol=1e-13
        )


def test_gradient_penalty():
    """As WGAN-GP writes it, with every argument by name."""
    w1, w2 = numbers(2, 3), numbers(3, 1, start=1)
    real, fake, eps = numbers(4, 2, start=2), numbers(4, 2, start=3), numbers(4, 1, start=4)
    between = eps * real + (1 - eps) * fake
    with GradManager().attach([w1, w2, between]):
        out = np.tanh(between @ w1) @ w2
        (slope,) = gradmgr.grad(
            outputs=out,
            inputs=between,
            grad_outputs=np.ones_like(out),
            create_graph=True,
            retain_graph=True,
            only_inputs=True,
        )
        penalty = ((np.linalg.norm(slope, axis=1) - 1) ** 2).mean()
        penalty.backward()
    assert_equal([penalty, w1.grad, w2.grad], EXPECTED["gradient_penalty"])


def test_maml():
    w = numbers(2)
    x, y, query, wanted = numbers(3, 2), numbers(3), numbers(3, 2, start=1), numbers(3, start=2)

    def loss(w, x, y):
        return ((np.sin(x @ w) - y) ** 2).mean()

    with GradManager().attach(w):
        fast = w
        for _ in range(3):
            (g,) = gradmgr.grad(loss(fast, x, y), fast, create_graph=True)
            fast = fast - 0.1 * g
        loss(fast, query, wanted).backward()
    assert_equal([fast, w.grad], EXPECTED["maml"])


def test_hypergradient_of_a_learning_rate():
    rate, w = tensor(0.1), numbers(2)
    x, y = numbers(3, 2), numbers(3)

    def loss(w):
        return ((x @ w - y) ** 2).mean()

    with GradManager().attach([rate, w]):
        v = w
        for _ in range(4):
            v = v - rate * gradmgr.grad(loss(v), v, create_graph=True)[0]
        loss(v).backward()
    assert_equal([rate.grad, w.grad], EXPECTED["hypergradient"])


def test_a_differential_equation_as_a_loss():
    """u'' + u at points t, for a network u: derivatives by the input inside a derivative by the weights."""
    t, w, v = tensor(numpy.linspace(0, 1, 4)[:, None]), numbers(1, 3), numbers(3, 1)
    with GradManager().attach([t, w, v]):
        u = np.tanh(t @ w) @ v
        (du,) = gradmgr.grad(u.sum(), t, create_graph=True)
        (ddu,) = gradmgr.grad(du.sum(), t, create_graph=True)
        ((ddu + u) ** 2).mean().backward()
    assert_equal([du, ddu, w.grad, v.grad], EXPECTED["differential_equation"])


class Linear(Function):
    @staticmethod
    def forward(x, weight, bias):
        y = x @ weight.T
        if bias is not None:
            y += bias
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        x, weight, bias = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = g @ weight
        if ctx.needs_input_grad[1]:
            of_weight = g.T @ x
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = g.sum(0)
        return of_x, of_weight, of_bias


def test_function_with_optional_bias():
    x, w, b = numbers(3, 2), numbers(2, 2, start=1), numbers(2, start=2)
    with GradManager().attach([x, w, b]):
        (Linear.apply(x, w, b) ** 2).sum().backward()
    alone = numbers(2, 2, start=1)
    with GradManager().attach(alone):
        np.sin(Linear.apply(numbers(3, 2), alone, None)).sum().backward()
    assert_equal([x.grad, w.grad, b.grad, alone.grad], EXPECTED["linear"])
    assert gradmgr.gradcheck(Linear.apply, (x, w, b), eps=1e-6, atol=1e-4, check_forward_ad=False)
    assert gradmgr.gradgradcheck(Linear.apply, (x, w, b), check_fwd_over_rev=False)


class Sinh(Function):
    """With its intermediates as further results, so that their derivatives count in the second order."""

    @staticmethod
    def forward(ctx, x):
        up, down = np.exp(x), np.exp(-x)
        ctx.save_for_backward(up, down)
        return (up - down) / 2, up, down

    @staticmethod
    def backward(ctx, g, g_up, g_down):
        up, down = ctx.saved_tensors
        return g * (up + down) / 2 + g_up * up - g_down * down


def test_function_with_intermediates_as_results():
    x = tensor([0.3, -1.0])
    found = []
    with GradManager().attach(x):
        y = Sinh.apply(x)[0]
        for _ in range(3):
            (y,) = gradmgr.grad(y.sum(), x, create_graph=True)
            found.append(y)
    assert_equal(found, EXPECTED["sinh"])


class Sign(Function):
    """The sign, with the gradient passed straight through near 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return np.sign(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.clone()
        g[np.abs(x) > 1] = 0
        return g


def test_straight_through():
    x, z = tensor([-2.0, -0.5, 0.2, 3.0]), tensor([-0.4, 0.6, 1.2])
    with GradManager().attach([x, z]):
        rounded = z + (z.round() - z).detach()
        ((Sign.apply(x) * [1.0, 2.0, 3.0, 4.0]).sum() + (rounded**2).sum()).backward()
    assert_equal([x.grad, z.grad], [[0.0, 2.0, 3.0, 0.0], [0.0, 2.0, 2.0]])


class NumpySort(Function):
    @staticmethod
    def forward(x, axis):
        array = x.numpy()
        order = numpy.argsort(array, axis=axis)
        back = numpy.argsort(order, axis=axis)
        return tensor(numpy.take_along_axis(array, order, axis=axis)), tensor(order), tensor(back)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.axis = inputs
        _, order, back = output
        ctx.mark_non_differentiable(order, back)
        ctx.save_for_backward(back)

    @staticmethod
    def backward(ctx, g, _order, _back):
        (back,) = ctx.saved_tensors
        return np.take_along_axis(g, back, axis=ctx.axis), None

    @staticmethod
    def vmap(info, in_dims, x, axis):
        assert info.batch_size == 3
        return NumpySort.apply(np.moveaxis(x, in_dims[0], 0), axis + 1), (0, 0, 0)


def test_function_on_numpy_with_a_batching_rule():
    x, weights = numbers(3, 4), np.arange(4.0)
    values = vmap(lambda row: NumpySort.apply(row, 0)[0])(x)
    slopes = vmap(functional.grad(lambda row: (NumpySort.apply(row, 0)[0] * weights).sum()))(x)
    assert_equal([values, slopes], EXPECTED["sort"])


class Momentum:
    def __init__(self, parameter, rate, momentum):
        self.parameter, self.rate, self.momentum = parameter, rate, momentum
        self.velocity = np.zeros_like(parameter)

    def step(self):
        self.velocity = self.momentum * self.velocity + self.parameter.grad
        self.parameter -= self.rate * self.velocity


def test_an_optimizer_step_in_backward():
    layers = [numbers(2, 2, start=k) for k in range(3)]
    gm = GradManager().attach(layers)
    optimizers = {w: Momentum(w, 0.1, 0.9) for w in layers}

    def step(w):
        optimizers[w].step()
        w.grad = None

    for w in layers:
        w.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        with gm:
            h = numbers(3, 2)
            for w in layers:
                h = np.tanh(h @ w)
            (h**2).mean().backward()
    assert_equal(layers, EXPECTED["optimizer_in_backward"])
    assert [w.grad for w in layers] == [None] * 3


def test_norms_of_gradients_by_hooks():
    layers, norms, kept = [numbers(2, 2, start=k) for k in range(4)], [], []
    h = numbers(3, 2)
    with GradManager().attach(layers):
        for w in layers:
            h = special.expit(h @ w)
            h.register_hook(lambda g: norms.append(np.linalg.norm(g)))
            h.retain_grad()
            kept.append(h)
        h.sum().backward()
    assert_equal([norms, [np.linalg.norm(h.grad) for h in reversed(kept)]], [EXPECTED["norms"]] * 2)


def test_saved_tensors_on_disk(tmp_path):
    class File:
        def __init__(self, t):
            self.path = tmp_path / f"{len(files)}.npy"
            files.append(self.path)
            numpy.save(self.path, t.numpy())

        def __del__(self):
            self.path.unlink()

    files = []
    x = numbers(4)
    with GradManager().attach(x):
        with graph.saved_tensors_hooks(File, lambda file: tensor(numpy.load(file.path))):
            y = (np.exp(x) * np.sin(x)).sum()
        assert all(path.exists() for path in files)
        assert len(files) == 4  # exp its result, sin its operand, the product both of its operands
        y.backward()
    gc.collect()
    assert not any(path.exists() for path in files)
    assert_equal([x.grad], EXPECTED["disk"])


def test_checkpointed_network():
    layers, x = [numbers(2, 2, start=k) for k in range(4)], numbers(3, 2)
    with GradManager().attach([*layers, x]):
        h = x
        for w in layers:
            h = checkpoint(lambda h, w: np.tanh(h @ w), h, w, use_reentrant=False)
        (h**2).sum().backward()
    one_by_one = x.grad
    assert_equal([x.grad, *[w.grad for w in layers]], EXPECTED["checkpointed"])
    x.grad = None
    with GradManager().attach(x):
        h = checkpoint_sequential([lambda h, w=w: np.tanh(h @ w) for w in layers], 2, x, use_reentrant=False)
        (h**2).sum().backward()
    assert_equal([x.grad], [one_by_one.numpy()])


def test_hessian_vector_product_forward_over_reverse():
    x, v = numbers(4), numbers(4, start=2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        with GradManager().attach(dual):
            (g,) = gradmgr.grad((np.sin(dual) * dual**2).sum(), dual)
        found = forward_ad.unpack_dual(g).tangent
    assert_equal([found], EXPECTED["hvp"])


def test_per_sample_gradients():
    parameters = {"w": numbers(3, 2), "b": numbers(3)}
    x, label = numbers(4, 2, start=3), tensor([0, 1, 2, 0])

    def loss(p, x, label):
        z = p["w"] @ x + p["b"]
        return special.logsumexp(z) - z[label]

    found = vmap(functional.grad(loss), in_dims=(None, 0, 0))(parameters, x, label)
    assert_equal([found["w"], found["b"]], EXPECTED["per_sample"])


def test_jacobians_of_a_batch_and_by_batched_vectors():
    w, x = numbers(2, 3), numbers(2, 3, start=1)

    def layer(x):
        return np.tanh(w @ x)

    batch = vmap(lambda row: functional.jacobian(layer, row))(x)
    first = x[0]
    with GradManager().attach(first):
        (rows,) = gradmgr.grad(layer(first), first, np.eye(2), is_grads_batched=True)
    assert_equal([batch, rows], [EXPECTED["jacobians"], EXPECTED["jacobians"][0]])


def test_laplacian_of_a_batch():
    w, x = numbers(3, 2), numbers(3, 2, start=1)

    def height(x):
        return np.tanh(w @ x).sum()

    assert_equal([vmap(lambda row: functional.hessian(height, row).trace())(x)], EXPECTED["laplacian"])


def test_backward_in_two_parts_at_an_edge():
    x, w = numbers(2, 2), numbers(2, 2, start=1)
    with GradManager().attach([x, w]):
        h = x @ w
        edge = graph.get_gradient_edge(h)
        y = np.tanh(h).sum()
        del h
        (g,) = gradmgr.grad(y, edge, retain_graph=True)
        found = gradmgr.grad(edge, [x, w], grad_outputs=g)
    assert_equal([g, *found], EXPECTED["edge"])


def test_next_functions_lead_through_the_graph():
    a, b = tensor(2.0), tensor(3.0)
    with GradManager().attach([a, b]):
        y = np.exp(a * b) + np.sin(a)
        names, todo = [], [y.grad_fn]
        while todo:
            node = todo.pop()
            names.append(node.name())
            todo.extend(n for n, _ in node.next_functions if n is not None)
        assert y.grad_fn.next_functions[1][0].next_functions[0][0].variable is a
    leaf = "AccumulateGrad"
    assert names == ["add", "sin", leaf, "exp", "multiply", leaf, leaf]


def test_served_in_inference_mode():
    w = numbers(3, 2)

    @gradmgr.inference_mode()
    def serve(x):
        return x @ w

    with GradManager().attach(w):
        y = serve(numbers(2, 3))
        assert not y.requires_grad
        with pytest.raises(RuntimeError, match="no manager that records here tracks output number 0"):
            y.sum().backward()
    assert_equal([y], EXPECTED["served"])
