"""Recommend items to users: factorise a million ratings, by gradients of the few rows that a batch reads.

A rating is the product of a user's and an item's vector, plus what is usual for both. The ratings are generated: users
and items lie in a plane of tastes, and near ones fit. What is learned is tried on ratings that were held out.
"""

import argparse
import time
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from numpy.random import default_rng
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, nn, no_grad, optim, tensor

NOISE = 0.5  # standard deviation of what no model can know of a rating


def generate(users, items, count, rng):
    """Return who rates what and how, and the tastes of items; some users and items have many more ratings."""
    user = (users * rng.random(count) ** 1.5).astype(numpy.int64)
    item = (items * rng.random(count) ** 2).astype(numpy.int64)
    tastes = [rng.uniform(-1, 1, (n, 2)) for n in (users, items)]
    usual = [rng.normal(0, 0.4, n) for n in (users, items)]
    away = ((tastes[0][user] - tastes[1][item]) ** 2).sum(axis=1)
    rating = 3.5 - 0.8 * away + usual[0][user] + usual[1][item] + rng.normal(0, NOISE, count)
    return user, item, rating.astype(numpy.float32), tastes[1]


class Factors(nn.Module):
    """Vectors and numbers of users and items, in tables of which each step changes the rows that it has read."""

    def __init__(self, users, items, width, rng, device):
        super().__init__()
        make = {"sparse": True, "rng": rng, "device": device}
        self.users, self.items = nn.Embedding(users, width, **make), nn.Embedding(items, width, **make)
        self.of_user, self.of_item = nn.Embedding(users, 1, **make), nn.Embedding(items, 1, **make)
        with no_grad():
            for table in self.parameters():
                table *= 0.1

    def forward(self, user, item):
        fit = np.sum(self.users(user) * self.items(item), axis=1)
        return 3.5 + fit + self.of_user(user)[:, 0] + self.of_item(item)[:, 0]


def error_of(model, data):
    """Return the root of the mean square error, over a set of ratings."""
    user, item, rating = data
    return float(np.mean((model(user, item) - tensor(rating, device=model.users.weight.device)) ** 2)) ** 0.5


def train(model, data, held_out, epochs, batch, rng):
    """Train by Adam on the rows that were read; return the errors of each epoch, and the time that a step takes."""
    gm, optimizer = GradManager().attach(model.parameters()), optim.SparseAdam(model.parameters(), lr=0.01)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(data[0]) // batch))
    errors_found, steps, seconds = [], 0, 0.0
    for _ in tqdm(range(epochs), desc="training", unit="epoch"):
        losses, began = [], time.perf_counter()
        for chosen in numpy.array_split(rng.permutation(len(data[0])), len(data[0]) // batch):
            user, item, rating = (tensor(part[chosen], device=model.users.weight.device) for part in data)
            with gm:
                loss = np.mean((model(user, item) - rating) ** 2)
                gm.backward(loss)  # the gradients are rows: .grad.rows and .grad.values
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss)
        steps, seconds = steps + len(losses), seconds + time.perf_counter() - began
        errors_found.append((float(sum(losses) / len(losses)) ** 0.5, error_of(model, held_out)))
    return numpy.array(errors_found), 1e3 * seconds / steps


def draw(errors_found, tastes, vectors):
    figure = Figure(figsize=(12, 4), layout="constrained")
    curve, true, found = figure.subplots(1, 3)
    curve.plot(numpy.arange(1, 1 + len(errors_found)), errors_found, label=["in training", "held out"])
    curve.axhline(NOISE, color="0.6", linestyle=":", label="noise")
    curve.set(title="error of a rating", xlabel="epoch")
    curve.legend()
    vectors = vectors - vectors.mean(axis=0)
    plane = vectors @ numpy.linalg.svd(vectors, full_matrices=False)[2][:2].T
    colours = numpy.stack([(tastes[:, 0] + 1) / 2, (tastes[:, 1] + 1) / 2, numpy.full(len(tastes), 0.5)], axis=1)
    for panel, points, title in (true, tastes, "tastes of items"), (found, plane, "their vectors' main plane"):
        panel.scatter(*points.T, c=colours, s=4)
        panel.set(title=title)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--ratings", type=int, default=1_000_000, help="how many to generate; a tenth is held out")
    parser.add_argument("--users", type=int, default=40_000, help="users; there are a twentieth as many items")
    parser.add_argument("--epochs", type=int, default=4, help="times to go through the ratings")
    parser.add_argument("--batch", type=int, default=1024, help="ratings in a step")
    parser.add_argument("--seed", type=int, default=0, help="decides the ratings, the first tables and the order")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="recommend.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if min(args.ratings, args.users, args.epochs, args.batch, args.seed + 1) < 1 or args.batch > 0.9 * args.ratings:
        parser.error("--ratings, --users, --epochs and --batch must be at least 1, --seed 0; --batch some of --ratings")
    if not Path(args.out).parent.is_dir():
        parser.error("--out must be in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    rng, items = default_rng(args.seed), max(100, args.users // 20)
    *ratings, tastes = generate(args.users, items, args.ratings, rng)
    some = args.ratings // 10
    model = Factors(args.users, items, 8, rng, args.device)
    learned, held_out = [part[some:] for part in ratings], [part[:some] for part in ratings]
    curve, step = train(model, learned, held_out, args.epochs, args.batch, rng)
    draw(curve, tastes, model.items.weight.to("cpu").numpy()).savefig(args.out, format="png")
    spread = held_out[2].std()
    print(f"held-out error {curve[-1, 1]:.3f} of {spread:.3f}, {step:.2f} ms a step; see {args.out}")
