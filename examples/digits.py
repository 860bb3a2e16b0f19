"""Classify handwritten digits: a two-layer network in NumPy's functions, trained with a GradManager."""

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from numpy.random import default_rng
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, special, tensor


def new_layer(rng, inputs, outputs, device):
    """Return weights, scaled so that activations keep their variance, and a bias of zeros."""
    weights = tensor(rng.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)), device=device)
    return weights, np.zeros_like(weights[0])


def scores(network, images):
    (w1, b1), (w2, b2) = network
    return np.maximum(images @ w1 + b1, 0) @ w2 + b2


def cross_entropy(z, labels):
    """Return the mean of -log(softmax(z)[label]); logsumexp keeps it finite whatever the scores."""
    return np.mean(special.logsumexp(z, axis=1) - z[np.arange(len(labels)), labels])


def train(network, images, labels, rng, device, epochs, rate=0.3, batch=16, noise=0.15):
    """Train by gradient descent with a rate that falls to zero; return the losses, a row per epoch."""
    weights = [w for layer in network for w in layer]
    gm = GradManager().attach(weights)
    losses = []
    for epoch in tqdm(range(epochs), desc="training", unit="epoch"):
        for chosen in np.array_split(rng.permutation(len(images)), len(images) // batch):
            x = tensor(images[chosen] + rng.normal(0, noise, (len(chosen), 64)), device=device)  # none is seen twice
            with gm:  # from here on, operations on the weights are recorded
                loss = cross_entropy(scores(network, x), labels[chosen])
                gm.backward(loss)  # the gradients are now in .grad, and the history is freed
            for w in weights:
                w -= rate * (1 - epoch / epochs) * w.grad
                w.grad = None
            losses.append(loss.item())
    return np.reshape(np.array(losses), (epochs, -1))


def draw(losses, images, labels, read):
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    curve = left.subplots()
    curve.semilogy(np.linspace(0, len(losses), losses.size), losses.ravel(), color="0.8", label="each step")
    curve.plot(np.arange(len(losses)) + 0.5, losses.mean(axis=1), label="mean of each epoch")
    curve.set(title="Loss in training", xlabel="epoch", ylabel="cross entropy")
    curve.legend()
    right.suptitle("What it reads in images it never saw; mistakes first, in red")
    for k, panel in zip(np.argsort(read == labels, stable=True), right.subplots(4, 6).flat, strict=False):
        panel.set_title(f"{read[k]} (is {labels[k]})", color="black" if read[k] == labels[k] else "red")
        panel.imshow(images[k].reshape(8, 8), cmap="gray_r")
        panel.axis("off")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first weights and the noise")
    parser.add_argument("--epochs", type=int, default=60, help="times to go through the training images")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="digits.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.epochs < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--epochs must be at least 1, --seed at least 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    images, labels = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(images / 16, labels, test_size=0.2, stratify=labels, random_state=args.seed)
    rng = default_rng(args.seed)
    network = [new_layer(rng, 64, 256, args.device), new_layer(rng, 256, 10, args.device)]
    losses = train(network, x, y, rng, args.device, args.epochs)
    read = np.argmax(scores(network, tensor(test_x, device=args.device)), axis=1).to("cpu").numpy()
    draw(losses, test_x, test_y, read).savefig(args.out, format="png")
    print(f"loss {losses[-1].mean():.3f}, test accuracy {np.mean(read == test_y):.1%}; see {args.out}")
