"""Find what a plate is made of: from temperatures at some points, the conductivity at every point.

Heat flows through a plate whose rim is kept cold: div(c grad u) + heat = 0 is a sparse system of 100,000 unknowns, one
for each cell. It is factored once for each guess of c, which serves all sources of heat and the gradient.
"""

import argparse
import importlib
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from numpy.random import default_rng
from scipy.optimize import minimize
from scipy.sparse import csr_array, kron
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import errors, functional, sparse, tensor


def inclusions(n):
    """Return the logarithm of the true conductivity: a disc that conducts well, and a bar that hardly does."""
    y, x = numpy.mgrid[:n, :n] / n
    outside = numpy.hypot(y - 0.32, x - 0.36) - 0.16, numpy.maximum(abs(y - 0.72) / 0.6, abs(x - 0.6) / 2.4) - 0.13
    return 1.6 / (1 + numpy.exp(80 * outside[0])) - 1.6 / (1 + numpy.exp(80 * outside[1]))


def refinement(n, coarse):
    """Return the sparse matrix that interpolates a map of coarse x coarse numbers to n x n cells."""
    hats = numpy.maximum(0, 1 - abs(numpy.linspace(0, coarse - 1, n)[:, None] - numpy.arange(coarse)))
    return kron(csr_array(hats), hats, "csr")


class Plate:
    """A plate of n x n cells, round sources of heat one after another, and cells where temperatures are taken."""

    def __init__(self, n, sensors, rng, device):
        prefix, xp = ("scipy", numpy) if device == "cpu" else ("cupyx.scipy", importlib.import_module("cupy"))
        self.shape, number = (n, n), xp.arange(n * n).reshape(n, n)
        self.one = xp.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])  # the cells on both sides of a face
        self.other = xp.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
        self.rim = xp.concatenate([number[0], number[-1], number[:, 0], number[:, -1]])
        rows = xp.concatenate([self.one, self.other, self.one, self.other, self.rim])
        columns = xp.concatenate([self.one, self.other, self.other, self.one, self.rim])
        self.library = importlib.import_module(f"{prefix}.sparse")
        self.pattern = self.library.coo_matrix((xp.ones(len(rows)), (rows, columns)), (n * n, n * n))
        y, x = numpy.mgrid[:n, :n] / n
        spots = [numpy.exp(-200 * ((y - a) ** 2 + (x - b) ** 2)) for a in (0.2, 0.5, 0.8) for b in (0.2, 0.8)]
        self.heat = xp.asarray(numpy.reshape(spots, (len(spots), -1)).T / n**2)
        self.sensors = rng.choice(n * n, sensors)

    def temperatures(self, log_conductivity):
        """Return the temperature of each cell, a column for each source of heat."""
        c = np.exp(log_conductivity)
        through = 2 / (1 / c[self.one] + 1 / c[self.other])  # half of one cell, and then half of the other
        system = sparse.with_data(self.pattern, np.concatenate([through, through, -through, -through, 2 * c[self.rim]]))
        return sparse.spsolve(system, self.heat)


def fit(plate, measured, refine, noise, start, iterations):
    """Fit a coarse map to measured temperatures; return it as a fine one, and the loss of each iteration."""

    def loss(rough):
        misfit = (plate.temperatures(refine @ np.ravel(rough))[plate.sensors] - measured) / noise
        slopes = np.sum(np.diff(rough, axis=0) ** 2) + np.sum(np.diff(rough, axis=1) ** 2)
        return np.mean(misfit**2) + 0.02 * slopes

    problem, curve = functional.Flattened(loss, start), []
    with tqdm(total=iterations, desc="fitting", unit="iteration") as bar:

        def seen(intermediate_result):
            curve.append(intermediate_result.fun)
            bar.update()

        options = {"jac": True, "callback": seen, "options": {"maxiter": iterations}}
        found = minimize(problem.value_and_grad, problem.x0, method="L-BFGS-B", **options)
    return np.reshape(refine @ np.ravel(problem.unflatten(found.x)), plate.shape).to("cpu").numpy(), curve


def draw(plate, true, found, u, curve):
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    maps = figure.subplots(1, 4)
    for panel, values in (maps[0], true), (maps[1], found):
        picture = panel.imshow(numpy.exp(values), vmin=0, vmax=5)
    figure.colorbar(picture, ax=maps[:2], label="conductivity", location="left")
    maps[2].imshow(u.reshape(true.shape), cmap="inferno")
    maps[2].plot(*numpy.divmod(plate.sensors, len(true))[::-1], "w.", markersize=1.5)
    maps[3].semilogy(curve)
    for panel, title in zip(maps, ("the plate", "as found", "temperature, sensors", "loss"), strict=True):
        panel.set(title=title, xlabel="cell" if panel is not maps[3] else "iteration of L-BFGS")
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--size", type=int, default=317, help="cells along a side of the plate")
    parser.add_argument("--sensors", type=int, default=400, help="cells where the temperature is measured")
    parser.add_argument("--iterations", type=int, default=40, help="iterations of L-BFGS")
    parser.add_argument("--seed", type=int, default=0, help="decides the places of the sensors and the noise")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="sparse_inverse.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if min(args.size - 19, args.sensors, args.iterations, args.seed + 1) < 1 or not Path(args.out).parent.is_dir():
        parser.error("--size is at least 20, --sensors and --iterations 1, --seed 0, and --out in a folder that exists")
    try:
        start = tensor(numpy.zeros((24, 24)), device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    rng, true = default_rng(args.seed), inclusions(args.size)
    plate = Plate(args.size, args.sensors, rng, args.device)
    u = plate.temperatures(tensor(true.ravel(), device=args.device)).to("cpu").numpy()
    noise = 0.01 * u[plate.sensors].std()
    measured = tensor(rng.normal(u[plate.sensors], noise), device=args.device)
    refine = plate.library.csr_matrix(refinement(args.size, len(start)))
    found, curve = fit(plate, measured, refine, noise, start, args.iterations)
    draw(plate, true, found, u[:, 0], curve).savefig(args.out, format="png")
    share = abs(found - true).sum() / abs(true).sum()
    print(f"loss {curve[-1]:.2f}, mean error {share:.0%} of that of an even plate; see {args.out}")
