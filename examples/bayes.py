"""Bayesian regression with outliers: two variational posteriors of gradmgr.distributions, checked by Monte Carlo.

Ten measurements of 353 people predict the progression of their diabetes; 89 people are set aside. The posterior is
approximated by independent normal distributions, then by a multivariate one, through the gradient of random values
(Kucukelbir and others, 2017: Automatic Differentiation Variational Inference); Hamiltonian Monte Carlo draws from it.
"""

import argparse
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, errors, functional, optim, tensor
from gradmgr.distributions import Independent, MultivariateNormal, Normal, StudentT

PRIOR = Normal(0.0, 1.0)  # of every unknown: the weights, the bias, and the logarithm of the noise's scale
GUIDES = {  # of a mean, and a matrix: on its diagonal logarithms of standard deviations, below it what correlates
    "independent": lambda loc, m: Independent(Normal(loc, np.exp(np.diag(m))), 1),
    "multivariate": lambda loc, m: MultivariateNormal(loc, scale_tril=np.tril(m, -1) + np.diag(np.exp(np.diag(m)))),
}


def predict(z, x):
    """Return the distribution of y, of shape (..., people), for unknowns of shape (..., 12) and people's data x."""
    weights, bias, log_scale = z[..., :-2], z[..., -2:-1], z[..., -1:]
    return StudentT(4.0, weights @ x.T + bias, np.exp(log_scale))


def log_joint(z, x, y):
    """Return the logarithm of the posterior's density, up to a constant, of shape (...)."""
    return np.sum(PRIOR.log_prob(z), axis=-1) + np.sum(predict(z, x).log_prob(y), axis=-1)


def fit(name, x, y, rng, steps):
    """Return the guide that maximises the evidence lower bound, and that bound."""
    loc = np.zeros_like(x[0], shape=x.shape[1] + 2)
    unknown = [loc, np.diag(loc - 3)]
    gm, optimizer = GradManager().attach(unknown), optim.Adam(unknown, lr=0.03)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for _ in tqdm(range(steps), desc=name, unit="step"):
        with gm:
            q = GUIDES[name](*unknown)
            gm.backward(-np.mean(log_joint(q.rsample(rng, 16), x, y)) - q.entropy())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return (q := GUIDES[name](*unknown)), np.mean(log_joint(q.sample(rng, 2000), x, y)) + q.entropy()


def monte_carlo(q, x, y, rng, steps=150, chains=32, leaps=5, length=0.35):
    """Return draws of shape (steps, chains, 12), after as many thrown away; q decides only how fast the chains mix."""
    slope = functional.grad(lambda z: np.sum(log_joint(z, x, y)))
    momenta = MultivariateNormal(np.zeros_like(q.loc), precision_matrix=q.covariance_matrix)
    z, kept = 2 * q.sample(rng, chains) - q.loc, []  # starts spread wider than q
    for _ in tqdm(range(2 * steps), desc="Hamiltonian Monte Carlo", unit="step"):
        new, p = z, (first := momenta.sample(rng, chains)) + length / 2 * slope(z)
        for leap in range(leaps):
            new = new + length * p @ q.covariance_matrix
            p = p + (length if leap < leaps - 1 else length / 2) * slope(new)
        gain = log_joint(new, x, y) + momenta.log_prob(p) - log_joint(z, x, y) - momenta.log_prob(first)
        z = np.where((np.log(np.asarray(rng.random(chains), device=z.device)) < gain)[:, None], new, z)
        kept.append(z.to("cpu").numpy())
    return numpy.stack(kept[steps:])


def draw(figure, draws, fits, y, middle, ends):
    left, right = figure.subfigures(1, 2, width_ratios=(1.3, 1))
    for k, panel in enumerate(left.subplots(3, 4).flat):
        places = numpy.linspace(*numpy.quantile(draws[:, k], (0.0005, 0.9995)), 200)
        panel.hist(draws[:, k], bins=places[::5], density=True, color="0.82", label="Hamiltonian Monte Carlo")
        for (name, (mean, width)), style in zip(fits.items(), ("C1--", "C0-"), strict=True):
            height = numpy.exp(Normal(mean[k], width[k]).log_prob(places))
            panel.plot(places, height, style, label=f"{name} normal")
        title = [*load_diabetes().feature_names, "bias", "logarithm of the noise"][k]
        panel.set(title=title, yticks=[], ylim=(0, 1.8 * height.max()))  # cuts off what is too narrow
    left.suptitle("Posterior of the weights (of standardised data)")
    left.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    panel, order, person = right.subplots(), numpy.argsort(middle), numpy.arange(len(y))
    panel.errorbar(person, middle[order], abs(ends - middle)[:, order], fmt="_", label="median and 90% interval")
    panel.plot(person, y[order], "k.", label="measured")
    panel.set(title="Predictions for people set aside", xlabel="person, by the median", ylabel="progression in a year")
    panel.legend(loc="upper left")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="of each variational fit")
    parser.add_argument("--seed", type=int, default=0, help="decides who is set aside, and all draws")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="bayes.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if args.steps < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--steps must be at least 1, --seed at least 0, and --out in a folder that exists")
    data = load_diabetes()
    parts = train_test_split(442**0.5 * data.data, (data.target - 152) / 77, test_size=0.2, random_state=args.seed)
    try:
        x, test_x, y = (tensor(part, device=args.device) for part in parts[:3])
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    rng, fits = numpy.random.default_rng(args.seed), {}
    for name in GUIDES:
        q, bound = fit(name, x, y, rng, args.steps)
        fits[name] = [values.to("cpu").numpy() for values in (q.mean, q.stddev)]
        print(f"{name}: the logarithm of the evidence is at least {bound.item():.1f}")
    draws = monte_carlo(q, x, y, rng)
    r_hat = numpy.sqrt(1 + draws.mean(axis=0).var(axis=0) / draws.var(axis=0).mean(axis=0)).max()
    draws, made = draws.reshape(-1, draws.shape[-1]), predict(q.sample(rng, 4000), test_x).sample(rng)
    low, middle, high = numpy.quantile(made.to("cpu").numpy(), (0.05, 0.5, 0.95), axis=0) * 77 + 152
    figure, measured = Figure(figsize=(14, 6.5), layout="constrained"), parts[3] * 77 + 152
    draw(figure, draws, fits, measured, middle, numpy.stack([low, high]))
    figure.savefig(args.out, format="png")
    shares = " and ".join(f"{min(fits[name][1] / draws.std(axis=0)):.0%}" for name in GUIDES)
    print(f"narrowest marginals {shares} of Monte Carlo's width, whose r_hat is {r_hat:.3f} at most")
    print(f"90% intervals hold {numpy.mean((low <= measured) & (measured <= high)):.0%} of people; see {args.out}")
