"""Programs of machine learning: matrix factorisation, a VAE, a small GPT, learning to learn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import gradmgr.numpy as gnp
from bench.programs.program import EPS, F32, Program, Step, copied, training, training_in_torch
from gradmgr import GradManager, nn, optim, tensor

f = nn.functional

# ---------------------------------------------------------------- matrix factorisation


class _Factors(nn.Module):
    def __init__(self, users: int, items: int, rank: int, rng: Any) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, rank, rng=rng), nn.Embedding(items, rank, rng=rng)
        self.user_bias, self.item_bias = nn.Embedding(users, 1, rng=rng), nn.Embedding(items, 1, rng=rng)

    def forward(self, user: Any, item: Any) -> Any:
        bias = self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]
        return gnp.sum(self.users(user) * self.items(item), axis=1) + bias


def matrix_factorisation(users: int = 6040, items: int = 3706, rank: int = 32, batch: int = 1024) -> Program:
    """A step of Adam on ratings: embeddings of users and items, dense gradients; as many as MovieLens 1M has."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, users, batch), rng.integers(0, items, batch)
    ratings = rng.uniform(1, 5, batch).astype(F32)

    def made() -> _Factors:
        return _Factors(users, items, rank, np.random.default_rng(1))

    def here() -> Step:
        model = made()
        return training(model, lambda: f.mse_loss(model(user, item), ratings))

    def in_torch(torch: Any) -> Step:
        class Factors(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
            def __init__(self) -> None:
                super().__init__()
                self.users, self.items = torch.nn.Embedding(users, rank), torch.nn.Embedding(items, rank)
                self.user_bias, self.item_bias = torch.nn.Embedding(users, 1), torch.nn.Embedding(items, 1)

            def forward(self, user: Any, item: Any) -> Any:
                bias = self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]
                return (self.users(user) * self.items(item)).sum(1) + bias

        model = copied(torch, Factors(), made())
        u, i, r = map(torch.tensor, (user, item, ratings))
        return training_in_torch(torch, model, lambda: torch.nn.functional.mse_loss(model(u, i), r))

    return Program(f"matrix factorisation, {users:,} x {items:,} x {rank}", here, in_torch)


# ---------------------------------------------------------------- variational autoencoder


class _VAE(nn.Module):
    def __init__(self, pixels: int, hidden: int, codes: int, rng: Any) -> None:
        super().__init__()
        self.into, self.mean = nn.Linear(pixels, hidden, rng=rng), nn.Linear(hidden, codes, rng=rng)
        self.log_variance = nn.Linear(hidden, codes, rng=rng)
        self.back, self.out = nn.Linear(codes, hidden, rng=rng), nn.Linear(hidden, pixels, rng=rng)

    def forward(self, x: Any, noise: Any) -> Any:
        h = f.gelu(self.into(x))
        mean, log_variance = self.mean(h), self.log_variance(h)
        code = mean + gnp.exp(log_variance / 2) * noise
        logits = self.out(f.gelu(self.back(code)))
        divergence = -gnp.sum(1 + log_variance - mean**2 - gnp.exp(log_variance)) / 2
        return (f.binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x)


def vae(batch: int = 128, pixels: int = 784, hidden: int = 256, codes: int = 20) -> Program:
    """A step of Adam on a variational autoencoder of MNIST's size, with gelu."""
    rng = np.random.default_rng(0)
    images, noise = rng.uniform(size=(batch, pixels)).astype(F32), rng.normal(size=(batch, codes)).astype(F32)

    def made() -> _VAE:
        return _VAE(pixels, hidden, codes, np.random.default_rng(1))

    def here() -> Step:
        model = made()
        return training(model, lambda: model(images, noise))

    def in_torch(torch: Any) -> Step:
        g, linear = torch.nn.functional, torch.nn.Linear

        class VAE(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
            def __init__(self) -> None:
                super().__init__()
                self.into, self.mean, self.log_variance = (
                    linear(pixels, hidden),
                    linear(hidden, codes),
                    linear(hidden, codes),
                )
                self.back, self.out = linear(codes, hidden), linear(hidden, pixels)

            def forward(self, x: Any, noise: Any) -> Any:
                h = g.gelu(self.into(x))
                mean, log_variance = self.mean(h), self.log_variance(h)
                code = mean + torch.exp(log_variance / 2) * noise
                logits = self.out(g.gelu(self.back(code)))
                divergence = -torch.sum(1 + log_variance - mean**2 - torch.exp(log_variance)) / 2
                return (g.binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x)

        model, x, e = copied(torch, VAE(), made()), torch.tensor(images), torch.tensor(noise)
        return training_in_torch(torch, model, lambda: model(x, e))

    return Program(f"VAE {pixels}-{hidden}-{codes}, batch {batch}", here, in_torch)


# ---------------------------------------------------------------- GPT


class _Attending(nn.Module):
    def __init__(self, width: int, heads: int, rng: Any) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width, rng=rng), nn.Linear(width, width, rng=rng)
        self.up, self.down = nn.Linear(width, 4 * width, rng=rng), nn.Linear(4 * width, width, rng=rng)

    def forward(self, x: Any) -> Any:
        q, k, v = self.into(self.norm1(x)).reshape(*x.shape[:2], 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        seen = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.swapaxes(1, 2).reshape(x.shape))
        return x + self.down(f.gelu(self.up(self.norm2(x))))


class _GPT(nn.Module):
    def __init__(self, letters: int, length: int, width: int, depth: int, heads: int, rng: Any) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width, rng=rng), nn.Embedding(length, width, rng=rng)
        self.blocks = nn.Sequential(*[_Attending(width, heads, rng) for _ in range(depth)])
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, letters, bias=False, rng=rng)

    def forward(self, codes: Any) -> Any:
        x = self.letters(codes) + self.places(np.arange(codes.shape[1]))
        return self.scores(self.norm(self.blocks(x)))


def _gpt_in_torch(torch: Any, letters: int, length: int, width: int, depth: int, heads: int) -> Any:
    g, linear = torch.nn.functional, torch.nn.Linear

    class Attending(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.into, self.out = linear(width, 3 * width), linear(width, width)
            self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            q, k, v = self.into(self.norm1(x)).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4).unbind()
            seen = g.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.down(g.gelu(self.up(self.norm2(x))))

    class GPT(torch.nn.Module):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.places = torch.nn.Embedding(letters, width), torch.nn.Embedding(length, width)
            self.blocks = torch.nn.Sequential(*[Attending() for _ in range(depth)])
            self.norm, self.scores = torch.nn.LayerNorm(width), linear(width, letters, bias=False)

        def forward(self, codes: Any) -> Any:
            x = self.letters(codes) + self.places(torch.arange(codes.shape[1]))
            return self.scores(self.norm(self.blocks(x)))

    return GPT()


def nano_gpt(letters: int = 65, length: int = 64, width: int = 128, depth: int = 2, batch: int = 8) -> Program:
    """A step of AdamW on a character model as nanoGPT is: embeddings, blocks of attention and gelu, cross entropy."""
    rng, heads = np.random.default_rng(0), 4
    codes, wanted = rng.integers(0, letters, (2, batch, length))

    def made() -> _GPT:
        return _GPT(letters, length, width, depth, heads, np.random.default_rng(1))

    def here() -> Step:
        model = made()

        def loss() -> Any:
            return f.cross_entropy(model(codes).reshape(-1, letters), wanted.reshape(-1))

        return training(model, loss, "AdamW")

    def in_torch(torch: Any) -> Step:
        model = copied(torch, _gpt_in_torch(torch, letters, length, width, depth, heads), made())
        x, y = torch.tensor(codes), torch.tensor(wanted).view(-1)

        def loss() -> Any:
            return torch.nn.functional.cross_entropy(model(x).view(-1, letters), y)

        return training_in_torch(torch, model, loss, "AdamW")

    return Program(f"GPT, {depth} blocks of {width}, {batch} x {length} letters", here, in_torch)


# ---------------------------------------------------------------- learning to learn


def maml(tasks: int = 16, points: int = 10, width: int = 40, inner_steps: int = 1) -> Program:
    """A step of Adam through gradient steps on each of some tasks: sines to be fitted by a network of three layers."""
    rng, rate = np.random.default_rng(0), 0.05
    sizes = itertools.pairwise((1, width, width, 1))
    first = [w for n, m in sizes for w in (rng.normal(0, (2 / n) ** 0.5, (n, m)).astype(F32), np.zeros((1, m), F32))]
    phase = rng.uniform(0, np.pi, (tasks, 1, 1))
    seen, other = (rng.uniform(-5, 5, (tasks, points, 1)) for _ in range(2))
    data = [a.astype(F32) for x in (seen, other) for a in (x, np.sin(x - phase))]

    def errors(xp: Any, weights: list[Any], x: Any, y: Any) -> Any:
        w1, b1, w2, b2, w3, b3 = weights
        return (xp.tanh(xp.tanh(x @ w1 + b1) @ w2 + b2) @ w3 + b3 - y) ** 2

    def here() -> Step:
        shared = [tensor(w) for w in first]
        outer, optimizer = GradManager().attach(shared), optim.Adam(shared, lr=1e-3, eps=EPS)
        x, y, other_x, other_y = data

        def step() -> list[Any]:
            with outer:
                own = [gnp.broadcast_to(w, (tasks, *w.shape)) for w in shared]
                for _ in range(inner_steps):
                    with GradManager().attach(own) as inner:
                        inner.backward(gnp.sum(gnp.mean(errors(gnp, own, x, y), axis=(1, 2))))
                    own = [w - rate * w.grad for w in own]
                loss = gnp.mean(errors(gnp, own, other_x, other_y))
                outer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return [loss]

        return step

    def in_torch(torch: Any) -> Step:
        shared = [torch.tensor(w).requires_grad_() for w in first]
        optimizer = torch.optim.Adam(shared, lr=1e-3, eps=EPS, fused=True)
        x, y, other_x, other_y = map(torch.tensor, data)

        def step() -> list[Any]:
            own = [w.expand(tasks, *w.shape) for w in shared]
            for _ in range(inner_steps):
                loss = errors(torch, own, x, y).mean((1, 2)).sum()
                slopes = torch.autograd.grad(loss, own, create_graph=True)
                own = [w - rate * g for w, g in zip(own, slopes, strict=True)]
            loss = errors(torch, own, other_x, other_y).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return [loss]

        return step

    return Program(f"MAML, {tasks} tasks, network 1-{width}-{width}-1", here, in_torch)
