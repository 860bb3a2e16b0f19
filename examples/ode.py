"""Find the parameters of a chaotic system from noisy data, by gradient descent through an integrator.

Lorenz's equations of 1963 are integrated by Runge and Kutta's fourth order in a Python loop. The data are cut into
pieces, each integrated from a start that is fitted too: over a longer time chaos makes gradients useless.
`gradmgr.compile` replays a step of the descent without the loop; every tenth step runs as it is written, to compare.
"""

import argparse
from pathlib import Path
from time import perf_counter

import numpy
from matplotlib.figure import Figure
from tqdm.auto import tqdm

import gradmgr
import gradmgr.numpy as np
from gradmgr import GradManager, errors, optim, tensor

TRUE, GUESS = [10.0, 28.0, 8 / 3], [5.0, 15.0, 1.0]  # sigma, rho, beta
DT, PIECES, NOISE = 0.004, 16, 0.5  # a time step; pieces of data, and the standard deviation of their noise


def slope(p, state):
    """Return the derivative of x, y, z with respect to time."""
    x, y, z = state
    return np.stack([p[0] * (y - x), x * (p[1] - z) - y, x * y - p[2] * z])


def integrate(p, state, steps):
    """Return the states at the start and after each step, (steps + 1, 3, ...)."""
    states = [state]
    for _ in range(steps):
        a = slope(p, state)
        b = slope(p, state + DT / 2 * a)
        c = slope(p, state + DT / 2 * b)
        d = slope(p, state + DT * c)
        state = state + DT / 6 * (a + 2 * (b + c) + d)
        states.append(state)
    return np.stack(states)


def measure(rng, steps, device):
    """Return noisy data of all pieces, one after another in time, (steps + 1, 3, PIECES)."""
    start = integrate(tensor(TRUE), tensor(rng.normal(size=3) + 20), 1000)[-1]  # by then on the attractor
    places = numpy.arange(PIECES) * steps + numpy.arange(steps + 1)[:, None]
    clean = integrate(tensor(TRUE), start, PIECES * steps).numpy()[places].transpose(0, 2, 1)
    return tensor(clean + rng.normal(0, NOISE, clean.shape), device=device)


def fit(data, iterations):
    """Fit parameters and starts; return them, all parameters on the way, and seconds: of steps, and until replayed."""
    p, starts = tensor(GUESS, device=data.device), data[0].detach()
    gm, optimizer = GradManager().attach([p, starts]), optim.Adam([p, starts], lr=0.7)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=iterations, eta_min=0.01)

    def step(data):
        with gm:
            misfit = np.mean((integrate(p, starts, len(data) - 1) - data) ** 2)
            gm.backward(misfit)
        optimizer.step()
        optimizer.zero_grad()
        return misfit

    compiled, way = gradmgr.compile(step), []
    seconds = {step: [], compiled: []}
    for k in (bar := tqdm(range(iterations), desc="fitting", unit="step")):
        chosen = step if k % 10 == 9 else compiled
        way.append(p.to("cpu").numpy().copy())
        begun = perf_counter()
        misfit = chosen(data)
        seconds[chosen].append(perf_counter() - begun)
        schedule.step()
        bar.set_postfix(misfit=f"{misfit.item():.4f}", refresh=False)
    times = numpy.median(seconds[step]), numpy.median(seconds[compiled][2:]), sum(seconds[compiled][:2])
    return p, starts, numpy.array(way), times


def draw(data, guessed, fitted, way):
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    wide, square, right = figure.subplots(1, 3, width_ratios=(2.2, 1.1, 1))
    times = DT * (numpy.arange(data.shape[2]) * (len(data) - 1) + numpy.arange(len(data))[:, None])
    for states, colour, label in (guessed, "0.65", "first guess"), (fitted, "C0", "fit"):
        wide.plot(times, states[:, 0], color=colour, label=[label] + [None] * (PIECES - 1))
        square.plot(states[:, 0], states[:, 2], color=colour, linewidth=1)
    wide.plot(times[::5].ravel(), data[::5, 0].ravel(), ".", color="C3", markersize=3, label="data, one in five")
    square.plot(data[::5, 0].ravel(), data[::5, 2].ravel(), ".", color="C3", markersize=2)
    wide.set(title="x, in pieces with starts of their own", xlabel="time", xlim=(0, times.max()), ylim=(-24, 20))
    wide.legend(loc="lower center", ncols=3, fontsize=8)
    square.set(title="the attractor", xlabel="x", ylabel="z")
    for k, name in enumerate(("sigma", "rho", "beta")):
        right.plot(way[:, k], color=f"C{k}", label=name)
        right.axhline(TRUE[k], color=f"C{k}", linestyle=":", linewidth=1)
    right.set(title="parameters (dotted: true)", xlabel="step of the descent")
    right.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--iterations", type=int, default=200, help="steps of the descent")
    parser.add_argument("--steps", type=int, default=150, help="of the integrator, in each piece")
    parser.add_argument("--seed", type=int, default=0, help="of the trajectory and the noise")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="ode.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.iterations < 10 or not 10 <= args.steps <= 300 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--iterations must be at least 10, --steps 10 to 300, --seed 0, and --out in a folder that exists")
    try:
        data = measure(numpy.random.default_rng(args.seed), args.steps, args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    p, starts, way, (eager, compiled, capture) = fit(data, args.iterations)
    guessed = integrate(tensor(GUESS, device=args.device), data[0], args.steps)
    states = [found.to("cpu").numpy() for found in (data, guessed, integrate(p, starts, args.steps))]
    draw(*states, way).savefig(args.out, format="png")
    print(f"a step takes {1e3 * eager:.1f} ms as written, {1e3 * compiled:.1f} ms compiled; capture {capture:.1f} s")
    error = numpy.abs(p.to("cpu").numpy() / TRUE - 1).max()
    print(f"error {error:.2%} at most, {eager / compiled:.1f} times as fast; see {args.out}")
