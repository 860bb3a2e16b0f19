"""Training programs as people write them in PyTorch, ported: the losses are those that torch 2.13 computes in float64.

Both sides begin with the same weights, so a loss that agrees at each step says that forward, gradients, optimiser,
schedule and running statistics agree. What stands for torch's line is what a reader of docs/training.md would write.
"""

import copy

import numpy  # noqa: ICN001  # np is gradmgr.numpy here, as it would be in a port
import pytest

import gradmgr
import gradmgr.numpy as np
from gradmgr import GradManager, checkpoint, forward_ad, functional, nn, optim, tensor, vmap
from gradmgr.nn import functional as F  # noqa: N812  # the name that everybody gives it
from gradmgr.optim import lr_scheduler

F64 = {"dtype": "float64"}


def numbers(*shape, start=0.0):
    """The same on both sides."""
    k = numpy.arange(numpy.prod(shape))
    return numpy.cos(1.7 * k + 0.013 * k**2 + start).reshape(shape)


def filled(model):
    """Give a model its first weights, in the order of `named_parameters`, which is torch's."""
    for k, p in enumerate(model.parameters()):
        p[...] = numbers(*p.shape, start=k) / 2
    return model


def steps(count, model, optimizer, loss_of, clip=None, parameters=None):
    """Train, and return the loss of each step."""
    gm = GradManager().attach(list(parameters or model.parameters()))
    losses = []
    for i in range(count):
        optimizer.zero_grad()
        with gm:
            loss = loss_of(i)
            gm.backward(loss)
        if clip is not None:
            optim.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False, **F64)
        self.bn1 = nn.BatchNorm2d(outer, **F64)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False, **F64)
        self.bn2 = nn.BatchNorm2d(outer, **F64)
        self.relu = nn.ReLU()
        self.down = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride=stride, bias=False, **F64), nn.BatchNorm2d(outer, **F64)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


def resnet():
    """Batch norm in training and evaluation, groups by dimension, one cycle of rate and momentum, clipping."""
    body = [Block(2, 4, 1), Block(4, 4, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3, **F64)]
    model = filled(nn.Sequential(*body))
    x, y = numbers(6, 2, 8, 8), numpy.arange(6) % 3
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    losses = []
    for epoch in range(4):
        model.train()
        for _ in range(3):
            losses += steps(1, model, optimizer, lambda i, x=x + epoch: smoothed(model(x), y), clip=2.0)
            if len(losses) < 15:
                schedule.step()
        model.eval()
        losses.append(F.cross_entropy(model(x), y).item())
    return [*losses, *model[0].bn2.running_mean.tolist(), *model[1].down[1].running_var.tolist()]


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1, **F64), nn.GELU(), nn.Flatten(), nn.Linear(64, 4, **F64)
        )
        self.first = nn.Linear(2, 64, **F64)
        self.decoder = nn.Sequential(
            nn.SiLU(), nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=1, **F64)
        )

    def forward(self, x, noise):
        mean, log_variance = np.split(self.encoder(x), 2, axis=1)
        z = mean + np.exp(0.5 * log_variance) * noise
        return self.decoder(self.first(z).reshape(-1, 4, 4, 4)), mean, log_variance


def vae():
    model = filled(VAE())
    x, noise = (numbers(3, 1, 8, 8) + 1) / 2, numbers(10, 3, 2)

    def loss_of(i):
        logits, mean, log_variance = model(x, noise[i])
        likelihood = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        return likelihood - 0.5 * np.sum(1 + log_variance - mean**2 - np.exp(log_variance))

    return steps(10, model, optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5), loss_of)


class LanguageModel(nn.Module):
    def __init__(self, kind, bidirectional):
        super().__init__()
        self.emb = nn.Embedding(11, 4, padding_idx=0, **F64)
        self.rnn = kind(4, 5, num_layers=2, batch_first=True, bidirectional=bidirectional, **F64)
        self.head = nn.Linear(10 if bidirectional else 5, 11, **F64)

    def forward(self, x, state):
        out, state = self.rnn(self.emb(x), state)
        return self.head(out), state


def language_models():
    """Truncated backpropagation through time: the state goes on, its history does not."""
    text = (numpy.arange(62) ** 2 % 11).reshape(2, 31)
    losses = []
    for kind, bidirectional in ((nn.LSTM, False), (nn.GRU, True)):
        model = filled(LanguageModel(kind, bidirectional))
        optimizer = optim.Adagrad(model.parameters(), lr=0.1)
        gm = GradManager().attach(dict(model.named_parameters()))
        state = None
        for i in range(0, 30, 5):
            optimizer.zero_grad()
            with gm:
                logits, state = model(text[:, i : i + 5], state)
                loss = F.cross_entropy(logits.reshape(-1, 11), text[:, i + 1 : i + 6].reshape(-1), ignore_index=3)
                gm.backward(loss)
            state = tuple(s.detach() for s in state) if kind is nn.LSTM else state.detach()
            optim.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return losses


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(8, **F64), nn.RMSNorm(8, **F64)
        self.qkv = nn.Linear(8, 24, bias=False, **F64)
        self.mix = nn.Linear(8, 8, **F64)
        self.mlp = nn.Sequential(nn.Linear(8, 16, **F64), nn.GELU(approximate="tanh"), nn.Linear(16, 8, **F64))

    def forward(self, x):
        n, length, width = x.shape
        heads = (
            t.reshape(n, length, 2, 4).transpose(0, 2, 1, 3) for t in np.split(self.qkv(self.norm1(x)), 3, axis=-1)
        )
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(mixed.transpose(0, 2, 1, 3).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 8, **F64), nn.Embedding(6, 8, **F64)
        self.blocks = nn.Sequential(Decoder(), Decoder())
        self.head = nn.Linear(8, 7, bias=False, **F64)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.places(numpy.arange(tokens.shape[1]))))


def gpt():
    """Causal attention, weights of the first and the last layer tied, warm-up and cosine."""
    model = filled(GPT())
    tokens = (numpy.arange(21) ** 2 % 7).reshape(3, 7)
    optimizer = optim.AdamW(model.parameters(), lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)
    warm, anneal = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(optimizer, 7, 0.001)
    schedule = lr_scheduler.SequentialLR(optimizer, [warm, anneal], milestones=[3])
    losses = []
    for _ in range(10):
        losses += steps(
            1, model, optimizer, lambda i: F.cross_entropy(model(tokens[:, :-1]).transpose(0, 2, 1), tokens[:, 1:])
        )
        schedule.step()
    return losses


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(numpy.zeros((1, 5, 8)))
        self.emb = nn.Embedding(9, 8, **F64)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **F64)
        self.norm = nn.LayerNorm(8, **F64)
        self.out = nn.Linear(8, 3, **F64)

    def forward(self, tokens, padding, mask):
        x = self.emb(tokens) + self.place
        mixed, weights = self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask)
        return self.out(self.norm(x + mixed)[:, 0]), weights


def encoder():
    """Masks of both kinds, class weights, and a loss that goes through the attention weights, too."""
    model = filled(Encoder())
    tokens, y = numpy.arange(20).reshape(4, 5) % 9, numpy.arange(4) % 3
    padding = numpy.zeros((4, 5), bool)
    padding[1, 3:] = padding[2, 4] = True
    mask = numpy.triu(numpy.full((5, 5), -1.5), 1)

    def loss_of(i):
        logits, weights = model(tokens, padding, mask)
        return F.cross_entropy(logits, y, weight=numpy.array([1.0, 2.0, 0.5])) + np.sum(weights**2) / 10

    return steps(10, model, optim.Adam(model.parameters(), lr=0.01, amsgrad=True), loss_of)


def critic_and_generator():
    return (
        filled(nn.Sequential(nn.Linear(2, 8, **F64), nn.Tanh(), nn.Linear(8, 1, **F64))),
        filled(nn.Sequential(nn.Linear(3, 8, **F64), nn.Tanh(), nn.Linear(8, 2, **F64))),
    )


def slope_by_two_managers(critic, x, gm):
    with GradManager().attach(x) as inner:
        inner.backward(critic(x).sum())
    return x.grad


def slope_by_create_graph(critic, x, gm):
    gm.attach(x)
    return gradmgr.grad(critic(x).sum(), x, create_graph=True)[0]


def wgan_gp(slope_of):
    critic, generator = critic_and_generator()
    real, noise, share = numbers(6, 2), numbers(6, 6, 3), (numbers(6, 6, 1) + 1) / 2
    first = optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9))
    second = optim.Adam(generator.parameters(), lr=0.01, betas=(0.0, 0.9))
    gm, gm_of_generator = GradManager().attach(critic.parameters()), GradManager().attach(generator.parameters())
    losses = []
    for i in range(6):
        fake = generator(noise[i])  # nothing records: no detach() is needed
        mixed = tensor(share[i] * real + (1 - share[i]) * fake)
        first.zero_grad()
        with gm:
            slope = slope_of(critic, mixed, gm)
            penalty = np.mean((np.linalg.norm(slope, axis=1) - 1) ** 2)
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
            gm.backward(loss)
        first.step()
        second.zero_grad()
        with gm_of_generator:
            judged = -critic(generator(noise[i])).mean()
            gm_of_generator.backward(judged)
        second.step()
        losses += [loss.item(), judged.item()]
    return losses


def policy():
    """A clipped ratio and an entropy, gradients gathered over three parts of the data."""
    model = filled(nn.Sequential(nn.Linear(4, 8, **F64), nn.ReLU(), nn.Linear(8, 3, **F64)))
    state, action, gain = numbers(12, 4), numpy.arange(12) % 3, numbers(12, start=1.0)
    old = np.take_along_axis(F.log_softmax(model(state), dim=-1), action[:, None], axis=1)[:, 0]
    optimizer = optim.RMSprop(model.parameters(), lr=0.02, centered=True)
    gm = GradManager().attach(model.parameters())
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
            with gm:
                chances = F.log_softmax(model(state[part]), dim=-1)
                ratio = np.exp(chances[numpy.arange(4), action[part]] - old[part])
                least = np.minimum(ratio * gain[part], np.clip(ratio, 0.8, 1.2) * gain[part])
                entropy = -np.sum(np.exp(chances) * chances, axis=-1)
                loss = -(least + 0.01 * entropy).mean() / 3
                gm.backward(loss)
            losses.append(loss.item())
        optim.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
    return losses


def fine_tuning():
    """The first layer joins later, the optimiser goes on from a saved state, an average of the weights follows."""
    model = filled(
        nn.Sequential(
            nn.Linear(4, 6, **F64), nn.Tanh(), nn.LayerNorm(6, **F64), nn.Dropout(0.0), nn.Linear(6, 3, **F64)
        )
    )
    average = copy.deepcopy(model)
    x, y = numbers(9, 4), numpy.arange(9) % 3
    head = list(model[2:].parameters())
    optimizer = optim.AdamW(head, lr=0.02)
    losses = steps(4, model, optimizer, lambda i: F.cross_entropy(model(x), y), parameters=head)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.005, "weight_decay": 0.3})
    for _ in range(4):
        losses += steps(1, model, optimizer, lambda i: F.cross_entropy(model(x), y))
        for mean, p in zip(average.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(p, alpha=0.1)
        losses.append(F.cross_entropy(average(x), y).item())
    again = copy.deepcopy(model)
    resumed = optim.AdamW([{"params": again[2:].parameters()}, {"params": again[0].parameters()}], lr=1.0)
    resumed.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        on = steps(1, model, optimizer, lambda i: F.cross_entropy(model(x), y))
        assert steps(1, again, resumed, lambda i: F.cross_entropy(again(x), y)) == on
        losses += on
    return losses


def second_order():
    """A Hessian's product by reverse mode twice; sums of squares of per-sample gradients; a derivative forward."""
    model = filled(nn.Sequential(nn.Linear(4, 5, **F64), nn.Softplus(), nn.Linear(5, 3, **F64)))
    x, y = numbers(6, 4), numpy.arange(6) % 3
    parameters = dict(model.named_parameters())

    def loss_of(parameters, x, y):
        return F.cross_entropy(nn.functional_call(model, parameters, (x[None],)), y[None])

    of_each = vmap(functional.grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
    squares = [np.sum(g**2).item() for g in of_each.values()]
    values = list(parameters.values())
    with GradManager().attach(parameters):
        slopes = gradmgr.grad(F.cross_entropy(model(x), y), values, create_graph=True)
        product = gradmgr.grad(sum(np.sum(g * numbers(*g.shape)) for g in slopes), values)
    with forward_ad.dual_level():
        along = forward_ad.make_dual(tensor(x), tensor(numbers(6, 4, start=2.0)))
        turned = forward_ad.unpack_dual(checkpoint(model, along)).tangent
    return [*squares, *(np.sum(g**2).item() for g in product), *turned.ravel().tolist()[::5]]


PROGRAMS = {
    "resnet": resnet,
    "vae": vae,
    "language_models": language_models,
    "gpt": gpt,
    "encoder": encoder,
    "wgan_gp by two managers": lambda: wgan_gp(slope_by_two_managers),
    "wgan_gp by create_graph": lambda: wgan_gp(slope_by_create_graph),
    "policy": policy,
    "fine_tuning": fine_tuning,
    "second_order": second_order,
}

# What torch 2.13 computes, to 12 digits.
EXPECTED: dict[str, list[float]] = {
    "resnet": [
        1.48362895236,
        1.46089356966,
        1.25750203745,
        1.13386072133,
        1.00191851062,
        0.871770709064,
        0.791486348949,
        1.0264290411,
        0.710613431052,
        0.626476490283,
        0.563622358605,
        0.991159461666,
        0.528587004849,
        0.508456741272,
        0.502611764772,
        1.06620593278,
        -0.0875513479217,
        0.0355214962363,
        -0.0628215168352,
        -0.0684609373069,
        0.325000436486,
        0.331567209293,
        0.36062814541,
        0.3388423743,
    ],
    "vae": [
        144.788965855,
        137.451543333,
        131.370036711,
        128.809283602,
        127.362272889,
        132.852611302,
        123.534888074,
        123.743731495,
        121.339472413,
        118.391389503,
    ],
    "language_models": [
        2.314022497,
        1.97133009643,
        2.14419716001,
        1.87961302884,
        1.9754565408,
        1.76191179698,
        2.56764706563,
        2.36884548478,
        2.09765478695,
        2.00181904376,
        1.97020728045,
        1.84476719566,
    ],
    "gpt": [
        2.74818566348,
        2.63752690647,
        2.25358818251,
        1.77917322099,
        1.39466801336,
        1.17531511726,
        1.02425706484,
        0.916201579113,
        0.847062692453,
        0.810136511062,
    ],
    "encoder": [
        2.19646964612,
        2.02660219856,
        1.87861812704,
        1.75047076317,
        1.64240615641,
        1.55431801086,
        1.48400534684,
        1.42781791878,
        1.38200239962,
        1.34333453854,
    ],
    "wgan_gp": [
        4.32495554721,
        0.285160606543,
        3.61506210016,
        0.286911022917,
        2.92569886531,
        0.292428030054,
        2.50434774871,
        0.249656595402,
        2.34035178646,
        0.190452529997,
        1.89048586246,
        0.0263063369913,
    ],
    "policy": [
        -0.0342195305497,
        -0.012819487613,
        0.0583917237552,
        -0.0792536184527,
        -0.0495238673294,
        0.0142443118049,
        -0.0792784471907,
        -0.0495838747367,
        0.0141901081314,
        -0.0793019239403,
        -0.0496423742276,
        0.0141376333952,
        -0.0793240967841,
        -0.04969924399,
        0.0140870421296,
        -0.0793450262917,
        -0.0497543934429,
        0.0140350855036,
        -0.0793659246955,
        -0.0498171448416,
        0.0139722223184,
        -0.0793869055437,
        -0.049889471067,
        0.0139056478353,
    ],
    "fine_tuning": [
        1.2396082581,
        1.20522803014,
        1.17439797772,
        1.14673165939,
        1.121784339,
        1.22204158979,
        1.09673190062,
        1.20348855763,
        1.07404445666,
        1.18436673337,
        1.05340755947,
        1.1650141954,
        1.0345733194,
        1.0173823919,
        1.00169216543,
    ],
    "second_order": [
        1.40766343455,
        0.661460427569,
        15.073942212,
        3.37032902314,
        0.0508332308343,
        0.0545405023815,
        0.410584951998,
        0.104134130676,
        0.134436433192,
        0.605007446336,
        0.400397733849,
        0.400880527887,
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_are_torchs(name):
    wanted = EXPECTED[name.split()[0]]
    found = PROGRAMS[name]()
    assert len(found) == len(wanted)
    numpy.testing.assert_allclose(found, wanted, rtol=1e-9)
