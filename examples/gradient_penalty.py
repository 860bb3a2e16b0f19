"""Generate handwritten digits: a Wasserstein GAN with a gradient penalty, which keeps the critic's slope near one.

The penalty is a function of the critic's gradient with respect to its input. An inner manager computes that gradient;
the outer one, entered before, records the computation and differentiates it with respect to the critic's weights
(Gulrajani et al., 2017, arXiv:1704.00028).
"""

import argparse
import itertools
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from numpy.random import default_rng
from sklearn.datasets import load_digits
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, nn, no_grad, optim, tensor

NOISE = 32  # size of the noise vector from which the generator makes an image


def network(*sizes, rng, device):
    """Return a perceptron."""
    model = nn.Sequential()
    for n, m in itertools.pairwise(sizes):
        model.append(nn.Linear(n, m, rng=rng, device=device)).append(nn.LeakyReLU(0.2))
    return model[:-1]


class Data:
    """Batches of images and of noise, drawn on request."""

    def __init__(self, rng, device):
        self.rng, self.device = rng, device
        self.images = load_digits().data.astype("float32") / 8 - 1

    def real(self, batch):
        return self.on_device(self.images[self.rng.integers(0, len(self.images), batch)])

    def noise(self, batch):
        return self.on_device(self.rng.normal(size=(batch, NOISE)))

    def on_device(self, values):
        return tensor(values, dtype="float32", device=self.device)


def slopes(critic, real, fake, share):
    """Return the length of the critic's gradient at points between real and generated images."""
    between = share * real + (1 - share) * fake
    inner = GradManager().attach(between)
    with inner:
        inner.backward(np.sum(critic(between)))  # recorded by the manager that was entered before
    return np.linalg.norm(between.grad, axis=1)


def train(generator, critic, data, steps, batch=64, turns=3):
    """Train both networks; return for each step the critic's distance of real from generated images, and its slope."""
    critic_gm, generator_gm = (GradManager().attach(m.parameters()) for m in (critic, generator))
    adam_critic, adam_generator = (optim.Adam(m.parameters(), lr=3e-4, betas=(0.5, 0.9)) for m in (critic, generator))
    distances, steep = [], []
    for _ in (bar := tqdm(range(steps), desc="training", unit="step")):
        for _ in range(turns):
            real = data.real(batch)
            with no_grad():
                fake = generator(data.noise(batch))
            share = data.on_device(data.rng.uniform(size=(batch, 1)))
            with critic_gm:
                distance = np.mean(critic(real)) - np.mean(critic(fake))
                slope = slopes(critic, real, fake, share)
                critic_gm.backward(10 * np.mean((slope - 1) ** 2) - distance)
            adam_critic.step()
            adam_critic.zero_grad()
        with generator_gm:
            generator_gm.backward(-np.mean(critic(generator(data.noise(batch)))))
        adam_generator.step()
        adam_generator.zero_grad()
        distances.append(distance.item())
        steep.append(np.mean(slope).item())
        bar.set_postfix(distance=f"{numpy.mean(distances[-50:]):.2f}", refresh=False)
    return distances, steep


def draw(distances, images):
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    panel = left.subplots()
    panel.plot(distances, color="0.8")
    width = min(100, len(distances))
    panel.plot(range(width - 1, len(distances)), numpy.convolve(distances, numpy.full(width, 1 / width), "valid"))
    panel.set(title="Distance of invented from real digits, as the critic sees it", xlabel="step")
    right.suptitle("Invented digits")
    for image, place in zip(images, right.subplots(6, 8).flat, strict=False):
        place.imshow(image.reshape(8, 8), cmap="gray_r", vmin=-1, vmax=1)
        place.axis("off")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000, help="of the generator")
    parser.add_argument("--seed", type=int, default=0, help="decides weights, noise and samples")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="gradient_penalty.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.steps < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--steps must be at least 1, --seed at least 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    data = Data(default_rng(args.seed), args.device)
    generator = network(NOISE, 128, 128, 64, rng=data.rng, device=args.device)
    critic = network(64, 128, 128, 1, rng=data.rng, device=args.device)
    distances, steep = train(generator, critic, data, args.steps)
    invented = np.clip(generator(data.noise(48)), -1, 1).to("cpu").numpy()
    draw(distances, invented).savefig(args.out, format="png")
    print(f"distance {numpy.mean(distances[-50:]):.2f}, slope {numpy.mean(steep[-50:]):.2f}; see {args.out}")
