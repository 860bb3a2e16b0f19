"""Hogwild: several threads train one network with gradient descent, without locks.

Each thread has its own GradManager, draws its own samples and writes to the shared weights without a lock. Sometimes a
step of one thread overwrites a step of another; no other interference is possible (Niu et al., 2011, arXiv:1106.5730).
With the GIL one thread runs Python code at a time; on free-threaded Python they run in parallel.
"""

import argparse
import itertools
import sys
import threading
import time
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from numpy.random import default_rng
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, grad, special, tensor


def new_network(rng, device, sizes=(64, 128, 10)):
    layers = [(rng.normal(0, (2 / n) ** 0.5, (n, m)), np.zeros(m)) for n, m in itertools.pairwise(sizes)]
    return [tensor(w, dtype="float32", device=device) for layer in layers for w in layer]


def scores(weights, images):
    w1, b1, w2, b2 = weights
    return np.maximum(images @ w1 + b1, 0) @ w2 + b2


def loss_of(weights, images, labels):
    z = scores(weights, images)
    return np.mean(special.logsumexp(z, axis=1) - z[np.arange(len(labels)), labels])


def work(weights, images, labels, rng, steps, done, rate=0.2, batch=16):
    """Take `steps` steps on samples that this thread draws."""
    gm = GradManager().attach(weights)
    for _ in range(steps):
        chosen = rng.integers(0, len(images), batch)
        with gm:
            loss = loss_of(weights, images[chosen], labels[chosen])
            slopes = grad(loss, weights)  # returned to this thread only: .grad is shared by all threads
        for w, slope in zip(weights, slopes, strict=True):
            w -= rate * slope  # no lock
        done.append(loss.item())


def train(weights, images, labels, rng, threads, steps):
    """Run the threads for `steps` steps in total; return the losses in the order in which they were computed."""
    done, failed = [], []

    def run(own_rng, share):
        try:
            work(weights, images, labels, own_rng, share, done)
        except BaseException as error:  # raised below, in the thread that waits
            failed.append(error)

    shares = [steps // threads + (k < steps % threads) for k in range(threads)]
    workers = [threading.Thread(target=run, args=job) for job in zip(rng.spawn(threads), shares, strict=True)]
    for worker in workers:
        worker.start()
    with tqdm(total=steps, desc=f"{threads} thread{'s' if threads > 1 else ''}", unit="step") as bar:
        while any(worker.is_alive() for worker in workers):
            bar.update(len(done) - bar.n)
            time.sleep(0.05)
        bar.update(len(done) - bar.n)
    if failed:
        raise failed[0]
    return numpy.array(done)


def smooth(curve, width=50):
    return numpy.convolve(curve, numpy.full(width, 1 / width), "valid") if len(curve) > width else curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4], help="numbers of threads to compare")
    parser.add_argument("--steps", type=int, default=4000, help="altogether, shared by the threads")
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first weights and the samples")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="hogwild.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if min(*args.threads, args.steps) < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--threads and --steps must be at least 1, --seed at least 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    x, test_x, y, test_y = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=args.seed)
    x, y, test_x = (tensor(a, device=args.device) for a in (x, y, test_x))
    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    for threads in args.threads:
        weights = new_network(default_rng(args.seed), args.device)
        begun = time.perf_counter()
        curve = train(weights, x, y, default_rng(args.seed), threads, args.steps)
        rate = args.steps / (time.perf_counter() - begun)
        read = np.argmax(scores(weights, test_x), axis=1).to("cpu").numpy()
        panel.semilogy(smooth(curve), label=f"threads: {threads}")
        loss, accuracy = curve[-100:].mean(), numpy.mean(read == test_y)
        print(f"threads {threads}: loss {loss:.3f}, accuracy {accuracy:.1%}, {rate:.0f} steps/s")
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    panel.set(title=f"Digits, weights shared without a lock ({'with' if gil else 'without'} GIL)")
    panel.set(xlabel="step", ylabel="loss")
    panel.legend()
    figure.savefig(args.out, format="png")
