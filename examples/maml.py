"""Meta-learning (MAML): train weights from which a few steps on a few points are enough to fit a new sine.

Each task is a sine of its own amplitude and phase, sampled at ten points. An inner manager adapts a copy of the weights
to each task; the outer one was entered before and records what the inner one's backward computes, so that its own
backward differentiates through the adaptation (Finn, Abbeel and Levine, 2017, arXiv:1703.03400).
"""

import argparse
import itertools
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, optim, tensor


def new_weights(rng, device, sizes=(1, 40, 40, 1)):
    layers = [(rng.normal(0, (2 / n) ** 0.5, (n, m)), numpy.zeros((1, m))) for n, m in itertools.pairwise(sizes)]
    return [tensor(w, dtype="float32", device=device) for layer in layers for w in layer]


def predict(weights, x):
    """Return y of shape (tasks, points, 1); weights are shared by all tasks or have a leading axis of tasks."""
    w1, b1, w2, b2, w3, b3 = weights
    return np.tanh(np.tanh(x @ w1 + b1) @ w2 + b2) @ w3 + b3


def errors_of(weights, x, y):
    """Return the mean squared error of each task."""
    return np.mean((predict(weights, x) - y) ** 2, axis=(1, 2))


def adapted(weights, x, y, steps, rate=0.05):
    """Return weights with a leading axis of tasks: those given, after some gradient steps on each task."""
    weights = [np.broadcast_to(w, (len(x), *w.shape)) for w in weights]
    for _ in range(steps):
        inner = GradManager().attach(weights)
        with inner:
            inner.backward(np.sum(errors_of(weights, x, y)))  # recorded by the manager that was entered before
        weights = [w - rate * w.grad for w in weights]
    return weights


class Sines:
    """Tasks: sines of random amplitude and phase, at random points."""

    def __init__(self, rng, device):
        self.rng, self.device = rng, device

    def draw(self, tasks):
        """Return amplitude and phase, each of shape (tasks, 1, 1)."""
        return self.rng.uniform(0.5, 3, (tasks, 1, 1)), self.rng.uniform(0, numpy.pi, (tasks, 1, 1))

    def points(self, task, count):
        return self.seen(task, self.rng.uniform(-5, 5, (len(task[0]), count, 1)))

    def seen(self, task, x):
        return tuple(tensor(a, dtype="float32", device=self.device) for a in (x, task[0] * numpy.sin(x - task[1])))


def train(weights, sines, steps, tasks=16, points=10):
    """Train weights that adapt well; return the error after adaptation at each step."""
    outer, curve = GradManager().attach(weights), []
    optimizer = optim.Adam(weights, lr=2e-3)
    for _ in (bar := tqdm(range(steps), desc="learning to learn", unit="step")):
        task = sines.draw(tasks)
        with outer:
            own = adapted(weights, *sines.points(task, points), steps=3)
            error = np.mean(errors_of(own, *sines.points(task, points)))  # at other points of the same sines
            outer.backward(error)
        optimizer.step()
        optimizer.zero_grad()
        curve.append(error.item())
        bar.set_postfix(error=f"{numpy.mean(curve[-100:]):.3f}", refresh=False)
    return curve


def draw(weights, sines, curve, points=10):
    figure, width = Figure(figsize=(13, 3.4), layout="constrained"), min(50, len(curve))
    panels = figure.subplots(1, 4, subplot_kw={"xlabel": "x"})
    panels[0].semilogy(range(width - 1, len(curve)), numpy.convolve(curve, numpy.full(width, 1 / width), "valid"))
    panels[0].set(title=f"error after three steps, mean of {width}", xlabel="step of training")
    line = numpy.linspace(-5, 5, 200)[None, :, None]
    for panel in panels[1:]:
        task = sines.draw(1)
        (x, y), (place, truth) = sines.points(task, points), sines.seen(task, line)
        panel.plot(line.ravel(), truth.to("cpu").numpy().ravel(), color="0.7", linewidth=4, label="a new sine")
        for steps, style in (0, ":"), (1, "--"), (10, "-"):
            guess = predict(adapted(weights, x, y, steps), place).to("cpu")
            panel.plot(line.ravel(), guess.numpy().ravel(), style, label=f"steps taken: {steps}")
        panel.plot(x.to("cpu").numpy().ravel(), y.to("cpu").numpy().ravel(), "ok", label="what is seen of it")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000, help="of learning to learn, each on 16 tasks")
    parser.add_argument("--seed", type=int, default=0, help="decides the first weights and the tasks")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="maml.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.steps < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--steps must be at least 1, --seed at least 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    sines = Sines(numpy.random.default_rng(args.seed), args.device)
    weights = new_weights(sines.rng, args.device)
    curve = train(weights, sines, args.steps)
    draw(weights, sines, curve).savefig(args.out, format="png")
    test = sines.draw(200)
    seen, other = sines.points(test, 10), sines.points(test, 50)
    before, one, ten = (np.mean(errors_of(adapted(weights, *seen, steps=k), *other)).item() for k in (0, 1, 10))
    print(f"error on new sines after 0, 1 and 10 steps: {before:.3f}, {one:.3f}, {ten:.3f}; see {args.out}")
