"""Calls as newcomers from torch, MegEngine, NumPy and JAX make them: each is refused in words that say what to do."""

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, distributions, functional, nn, optim, tensor
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.optim import lr_scheduler

X, LABELS, IMAGE = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([0, 1]), tensor(np.ones((1, 1, 4, 4)))
MODEL = nn.Sequential(nn.Linear(2, 3), nn.ReLU())


def backward(**keywords):
    with GradManager().attach(tensor(1.0)) as gm:
        gm.backward(None, **keywords)


def sgd():
    return optim.SGD([X], lr=0.1)


ONE_MISSING = "missing 1 required positional argument"
NO_ARRAY = "expected Tensors, arrays or numbers; found"

# A call, the class of its error, and what is said.
CALLS = [
    (lambda: backward(retain_graph=True), TypeError, "backward.. .*'retain_graph'; write retain= instead of"),
    (lambda: backward(create_graph=True), TypeError, "recorded by a second GradManager, entered before this one"),
    (lambda: backward(gradient=1.0), TypeError, "passed second, as in backward.y, dy."),
    (lambda: backward(grad_tensors=[X]), TypeError, "passed second, as in backward.y, dy."),
    (lambda: backward(retian=True), TypeError, "perhaps retain= is meant; call it as backward.y=None, dy=None, retain"),
    (lambda: GradManager(X), TypeError, "no positional arguments but 1 was given; .*GradManager...attach.x."),
    (lambda: GradManager(MODEL.parameters()), TypeError, "GradManager...attach.x."),
    (lambda: GradManager(tensors=[X]), TypeError, "attached afterwards"),
    (lambda: GradManager().zero_grad(), AttributeError, "no attribute 'zero_grad'; use clear_grad"),
    (lambda: GradManager().step(), AttributeError, "use step.. of an optimiser"),
    (lambda: GradManager().attach(MODEL), TypeError, "attach dict.model.named_parameters"),
    (lambda: GradManager().attach(MODEL.parameters), TypeError, "attach dict.model.named_parameters"),
    (lambda: GradManager().attach(np.ones(2)), TypeError, "element 0 is numpy.ndarray; make one with gradmgr.tensor"),
    (lambda: GradManager().attach(None), TypeError, "element 0 is builtins.NoneType"),
    (lambda: GradManager().backward(X), RuntimeError, "needs a recording, and this GradManager is idle"),
    (lambda: (X * X).sum().backward(), RuntimeError, "no manager records here"),
    (lambda: gradmgr.vmap(abs, in_axes=0), TypeError, "vmap.. .*; write in_dims= instead of in_axes="),
    (lambda: gradmgr.vmap(abs, out_axes=0), TypeError, "write out_dims= instead of out_axes="),
    (lambda: gradmgr.vmap(fun=abs), TypeError, "write func= instead of fun="),
    (lambda: gradmgr.vmap(), TypeError, f"{ONE_MISSING}: 'func'; call it as vmap.func, in_dims=0"),
    (lambda: gradmgr.grad(abs), TypeError, f"{ONE_MISSING}: 'inputs'; call it as grad.outputs, inputs,"),
    (lambda: functional.jacobian(), TypeError, "call it as jacobian.func, inputs=None"),
    (lambda: functional.hessian(fun=abs), TypeError, "write func= instead of fun="),
    (lambda: functional.jacobian(X, X), TypeError, "jacobian takes a function; found Tensor"),
    (lambda: gradmgr.load(3), TypeError, "load.f. takes the path of a file as f, a string .*; found int"),
    (lambda: gradmgr.load(), TypeError, f"{ONE_MISSING}: 'f'; call it as load.f, into=None"),
    (lambda: gradmgr.load(filename="a"), TypeError, "write f= instead of filename="),
    (lambda: gradmgr.save("a", {"w": X}), TypeError, "save.obj, f. takes the path of a file as f.*; found dict"),
    (lambda: gradmgr.save({"w": X}), TypeError, f"{ONE_MISSING}: 'f'; call it as save.obj, f."),
    (lambda: F.softmax(X, axis=1), TypeError, "softmax.. .*'axis'; write dim= instead of axis="),
    (lambda: F.log_softmax(X, axis=1), TypeError, "log_softmax.. .*; write dim= instead of axis="),
    (lambda: F.softmax(X), TypeError, "needs the axis along which to normalise; pass dim=-1"),
    (lambda: F.normalize(X, axis=1), TypeError, "write dim= instead of axis="),
    (lambda: F.dropout(X, rate=0.5), TypeError, "write p= instead of rate="),
    (lambda: F.dropout(X, 0.5, True, True), ValueError, "dropout: inplace=True is not supported"),
    (lambda: F.relu(X, inplace=True), ValueError, "relu: inplace=True is not supported.*leave it out"),
    (lambda: F.leaky_relu(X, 0.1, True), ValueError, "leaky_relu: inplace=True is not supported"),
    (lambda: F.elu(X, inplace=True), ValueError, "elu: inplace=True is not supported"),
    (lambda: F.silu(X, inplace=True), ValueError, "silu: inplace=True is not supported"),
    (lambda: F.relu(None), TypeError, f"{NO_ARRAY} None, which is what a function without a return statement gives"),
    (lambda: F.relu(MODEL), TypeError, f"{NO_ARRAY} the layer Sequential: pass what it returns"),
    (lambda: F.linear(X, nn.Linear(2, 3)), TypeError, f"{NO_ARRAY} the layer Linear: .*as layer.weight"),
    (lambda: F.conv2d(IMAGE, nn.Conv2d(1, 2, 3)), TypeError, f"{NO_ARRAY} the layer Conv2d"),
    (lambda: F.conv2d(IMAGE, None), TypeError, f"{NO_ARRAY} None"),
    (lambda: F.mse_loss(X, None), TypeError, f"{NO_ARRAY} None"),
    (lambda: F.cross_entropy(X, None), TypeError, f"{NO_ARRAY} None"),
    (lambda: F.cross_entropy(LABELS, X), TypeError, "takes scores first and labels second; .*: exchange them"),
    (lambda: F.nll_loss(LABELS, X), TypeError, "nll_loss.input, target. takes scores first"),
    (lambda: nn.Linear(3), TypeError, f"Linear.. {ONE_MISSING}: 'out_features'; call it as Linear.in_features, out"),
    (lambda: nn.Linear(2, 3, activation="relu"), TypeError, "leave it out, and put a layer such as ReLU.. behind"),
    (lambda: nn.Linear(2, units=3), TypeError, "write out_features= instead of units="),
    (lambda: nn.Linear(2, 3, use_bias=False), TypeError, "write bias= instead of use_bias="),
    (lambda: nn.Linear(2.5, 3), TypeError, "Linear: in_features must be an integer; found 2.5"),
    (lambda: nn.Conv2d(1, 2), TypeError, f"Conv2d.. {ONE_MISSING}: 'kernel_size'"),
    (lambda: nn.Conv2d(1, 2, 3, strides=2), TypeError, "Conv2d.. .*; write stride= instead of strides="),
    (lambda: nn.Conv2d(1, filters=2, kernel_size=3), TypeError, "write out_channels= instead of filters="),
    (lambda: nn.MaxPool2d(pool_size=2), TypeError, "MaxPool2d.. .*; write kernel_size= instead of pool_size="),
    (lambda: nn.Embedding(vocab_size=3, embedding_dim=2), TypeError, "write num_embeddings= instead of vocab_size="),
    (lambda: nn.LayerNorm(2, epsilon=1e-5), TypeError, "LayerNorm.. .*; write eps= instead of epsilon="),
    (lambda: nn.Dropout(rate=0.5), TypeError, "Dropout.. .*; write p= instead of rate="),
    (lambda: nn.LeakyReLU(alpha=0.1), TypeError, "write negative_slope= instead of alpha="),
    (lambda: nn.Softmax(axis=1), TypeError, "Softmax.. .*; write dim= instead of axis="),
    (lambda: nn.BatchNorm2d(channels=3), TypeError, "BatchNorm2d.. .*; write num_features= instead of channels="),
    (lambda: nn.MSELoss(X, X), TypeError, r"MSELoss.. takes from 0 to 1 positional arguments but 2 were given"),
    (lambda: nn.CrossEntropyLoss(X, LABELS), TypeError, "a loss is made first and then called"),
    (lambda: nn.ReLU(X), TypeError, "a layer is made first and then called"),
    (lambda: nn.ModuleList(nn.ReLU()), TypeError, "ModuleList takes a list of Modules; found ReLU"),
    (lambda: nn.Sequential([nn.ReLU()]), TypeError, "unpack it, as in Sequential"),
    (lambda: nn.Dense(2, 3), AttributeError, "'Dense': write gradmgr.nn.Linear"),
    (lambda: nn.Linear(2, 3)(None), TypeError, f"Linear: {NO_ARRAY} None"),
    (lambda: nn.Sequential(nn.Flatten(), nn.Conv2d(1, 2, 3))(None), TypeError, f"Flatten: {NO_ARRAY} None"),
    (lambda: nn.Conv2d(1, 2, 3)(None), TypeError, f"Conv2d: {NO_ARRAY} None"),
    (lambda: nn.ReLU()(MODEL), TypeError, f"ReLU: {NO_ARRAY} the layer Sequential"),
    (lambda: nn.Linear(2, 3)(), TypeError, f"Linear.forward.. {ONE_MISSING}: 'x'; call it as layer.x."),
    (lambda: nn.Linear(2, 3)(X, X), TypeError, "takes 1 positional argument but 2 were given; call it as layer.x."),
    (lambda: nn.MSELoss()(X), TypeError, f"MSELoss.forward.. {ONE_MISSING}: 'target'; call it as layer.x, target."),
    (lambda: MODEL(labels=X), TypeError, "call it as layer.input."),
    (lambda: distributions.Normal(0.0), TypeError, f"Normal.. {ONE_MISSING}: 'scale'; call it as Normal.loc, scale"),
    (lambda: distributions.Normal(mean=0.0, std=1.0), TypeError, "Normal.. .*; write loc= instead of mean="),
    (lambda: distributions.Normal(0.0, sigma=1.0), TypeError, "write scale= instead of sigma="),
    (lambda: distributions.Laplace(0.0), TypeError, f"Laplace.. {ONE_MISSING}: 'scale'"),
    (lambda: optim.SGD(MODEL), TypeError, "pass model.parameters"),
    (lambda: optim.SGD(nn.Linear(2, 3)), TypeError, "found Linear; pass model.parameters"),
    (lambda: optim.SGD(MODEL.parameters), TypeError, "found method; pass model.parameters"),
    (lambda: optim.SGD(0.1, [X]), TypeError, "takes an iterable of Tensors first; found float"),
    (lambda: optim.SGD(lr=0.1), TypeError, f"SGD.. {ONE_MISSING}: 'params'; call it as SGD.params, lr=0.001"),
    (lambda: optim.SGD([X], learning_rate=0.1), TypeError, "write lr= instead of learning_rate="),
    (lambda: optim.Adam([X], beta1=0.9), TypeError, "write betas= instead of beta1="),
    (lambda: optim.Adam([X], epsilon=1e-8), TypeError, "write eps= instead of epsilon="),
    (lambda: sgd().step(X), TypeError, "step takes a function that computes the loss, or None; found Tensor"),
    (lambda: sgd().zero_grad(X), TypeError, "zero_grad.set_to_none. takes True or False.*; found Tensor"),
    (lambda: sgd().minimize(X), AttributeError, "use backward.loss. of the GradManager, and then step"),
    (lambda: lr_scheduler.StepLR(sgd()), TypeError, f"StepLR.. {ONE_MISSING}: 'step_size'; call it as StepLR.optim"),
    (lambda: lr_scheduler.StepLR(MODEL, 3), TypeError, "StepLR takes an optimiser of gradmgr.optim; found Sequential"),
    (lambda: optim.clip_grad_norm_(MODEL.parameters()), TypeError, f"{ONE_MISSING}: 'max_norm'; call it as clip_grad"),
    (lambda: optim.clip_grad_norm_([X], clip_norm=1.0), TypeError, "write max_norm= instead of clip_norm="),
]


@pytest.mark.parametrize(("call", "kind", "said"), CALLS, ids=map(str, range(len(CALLS))))
def test_a_newcomers_call_is_refused_in_words_that_say_what_to_do(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


def test_an_error_of_arguments_from_within_a_function_stays_as_it_is():
    """Only the refusal of the call itself is explained, not one of a call that the called function makes."""

    class Net(nn.Module):
        def forward(self, x):
            return abs(x, wrong=1)

    with pytest.raises(TypeError) as raised:
        Net()(X)
    assert "call it as" not in str(raised.value)
    with pytest.raises(TypeError) as raised:
        functional.jacobian(lambda x, y: x, X)
    assert "jacobian" not in str(raised.value)


def test_a_class_of_the_users_that_derives_from_a_layer_takes_its_own_arguments():
    class Wide(nn.Linear):
        def __init__(self, width):
            super().__init__(width, 2 * width)

    assert Wide(3).weight.shape == (6, 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        Wide(size=3)
