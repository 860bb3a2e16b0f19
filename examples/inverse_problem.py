"""Image a body by ultrasound: from the recordings of sensors around it, find the speed of sound at each point.

The wave equation is integrated with NumPy's functions, and SciPy's L-BFGS fits the map of the speed to the recordings,
with the gradient through all time steps. Lengths are in millimetres, times in microseconds.
"""

import argparse
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from numpy.random import default_rng
from scipy.optimize import minimize
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import errors, functional, tensor

WATER = 1.5  # speed of sound, mm/us
DT = 0.3  # a time step, in which a wave travels 0.45 mm; cells are 1 mm wide
PULSE = 0.16  # MHz, the centre frequency of a pulse


def body(n):
    """Return the true map: a round body, a little faster than water, with a slow and a fast spot in it."""
    y, x = numpy.mgrid[:n, :n] / n - 0.5
    speed = numpy.full((n, n), WATER)
    for centre_y, centre_x, radius, change in (0, 0, 0.26, 0.03), (-0.1, 0.07, 0.08, -0.08), (0.1, -0.08, 0.06, 0.07):
        speed += WATER * change / (1 + numpy.exp(150 * (numpy.hypot(y - centre_y, x - centre_x) - radius)))
    return speed


def ring(n, count):
    """Return rows and columns of points around the body."""
    angle = 2 * numpy.pi * numpy.arange(count) / count
    return tuple(numpy.rint(n / 2 + 0.38 * n * f(angle)).astype(int) for f in (numpy.sin, numpy.cos))


class Tank:
    """A square tank of water with sensors in a ring, some of which send pulses, one after another."""

    def __init__(self, n, sensors, shots, steps):
        self.shape, self.steps, self.sensors = (shots, n, n), steps, ring(n, sensors)
        self.senders = tuple(part[:: sensors // shots] for part in self.sensors)
        edge = numpy.minimum(numpy.arange(n), numpy.arange(n)[::-1])
        self.calm = numpy.prod(numpy.meshgrid(*[1 - 0.1 * numpy.clip(1 - edge / 6, 0, 1) ** 2] * 2), axis=0)

    def simulate(self, speed):
        """Return the sensors' recordings of each pulse, (steps, shots, sensors); the walls absorb the waves."""
        factor, calm, waves = (speed * DT) ** 2, tensor(self.calm, device=speed.device), []
        before, now, sources = np.zeros((3, *self.shape)).to(speed.device)
        sources[numpy.arange(self.shape[0]), *self.senders] = 1
        for step in range(self.steps):
            t = (numpy.pi * PULSE * (step * DT - 1.2 / PULSE)) ** 2
            bend = np.roll(now, 1, 1) + np.roll(now, -1, 1) + np.roll(now, 1, 2) + np.roll(now, -1, 2) - 4 * now
            after = (2 * now - before * calm + factor * bend) * calm + (1 - 2 * t) * numpy.exp(-t) * sources
            before, now = now, after
            waves.append(now[:, *self.sensors])
        return np.stack(waves)


def fit(tank, waves, start, iterations):
    """Fit a map of the speed to recordings; return it and the misfit of each iteration."""
    scale = np.mean(waves**2).item()

    def misfit(change):  # relative, so that the variables of L-BFGS are of order one
        rough = np.sum(np.diff(change, axis=0) ** 2) + np.sum(np.diff(change, axis=1) ** 2)
        return np.mean((tank.simulate(start * (1 + 0.1 * change)) - waves) ** 2) / scale + 1e-6 * rough

    problem = functional.Flattened(misfit, np.zeros_like(start))
    curve = []
    with tqdm(total=iterations, desc="fitting", unit="iteration") as bar:

        def seen(intermediate_result):
            curve.append(intermediate_result.fun)
            bar.update()
            bar.set_postfix(misfit=f"{curve[-1]:.4f}")

        limits = {"maxiter": iterations}
        found = minimize(problem.value_and_grad, problem.x0, jac=True, method="L-BFGS-B", callback=seen, options=limits)
    return (start * (1 + 0.1 * problem.unflatten(found.x))).to("cpu").numpy(), curve


def draw(true, found, waves, curve):
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    maps = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.1))
    for panel, speed, title in (maps[0], true, "the body"), (maps[1], found, "as it was found"):
        picture = panel.imshow(speed, vmin=WATER * 0.94, vmax=WATER * 1.1, extent=(0, len(true), len(true), 0))
        panel.set(title=title, xlabel="mm")
    figure.colorbar(picture, ax=maps[:2], label="speed of sound, mm/us", location="left")
    extent = (0, waves.shape[2], len(waves) * DT, 0)
    maps[2].imshow(waves[:, 0], aspect="auto", cmap="RdBu", vmin=-0.3, vmax=0.3, extent=extent)
    maps[2].set(title="recordings of the first pulse", xlabel="sensor", ylabel="time, us")
    maps[3].semilogy(curve)
    maps[3].set(title="misfit", xlabel="iteration")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--iterations", type=int, default=40, help="of L-BFGS")
    parser.add_argument("--size", type=int, default=64, help="of the tank, mm")
    parser.add_argument("--seed", type=int, default=0, help="of the noise in the recordings")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="inverse_problem.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.iterations < 1 or args.size < 20 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--iterations must be at least 1, --size 20, --seed 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    true, tank = body(args.size), Tank(args.size, sensors=48, shots=8, steps=round(3.4 * args.size))
    waves = tank.simulate(tensor(true, device=args.device))
    waves += np.std(waves).item() * 0.05 * tensor(default_rng(args.seed).normal(size=waves.shape), device=args.device)
    found, curve = fit(tank, waves, tensor(np.full(true.shape, WATER), device=args.device), args.iterations)
    draw(true, found, waves.to("cpu").numpy(), curve).savefig(args.out, format="png")
    error = numpy.abs(found - true).mean() / numpy.abs(true - WATER).mean()
    print(f"misfit {curve[-1]:.4f}, mean error {error:.0%} of that of plain water; see {args.out}")
