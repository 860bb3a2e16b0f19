"""Programs as people write them in NumPy: each is written once, for plain NumPy and for us.

Each is a function of a NumPy namespace (and, where it asks for it, of a module of special functions) and of inputs.
It runs on plain arrays with NumPy and SciPy, on Tensors with gradmgr.numpy and gradmgr.special, and on Tensors with
plain NumPy, which dispatches to us. Values must be NumPy's, derivatives those of numeric differences.
"""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy  # noqa: ICN001  # np is the namespace that a program is given
import pytest
import scipy.linalg
import scipy.special

import gradmgr.numpy
import gradmgr.special
from gradmgr import GradManager, Tensor, gradcheck, tensor

Draw = Callable[[numpy.random.Generator], Any]


@dataclass(frozen=True)
class Program:
    run: Callable[..., Any]
    draws: tuple[Draw, ...]
    order: int
    plain: str  # why it cannot run with NumPy's own functions on Tensors; "" where it can

    def inputs(self, dtype: Any = float) -> list[Any]:
        rng = numpy.random.default_rng(zlib.crc32(self.run.__name__.encode()))
        return [draw(rng).astype(dtype) for draw in self.draws]

    def on(self, namespace: Any, special: Any) -> Callable[..., Any]:
        wants_special = "special" in inspect.signature(self.run).parameters
        return lambda *inputs: self.run(namespace, *((special,) if wants_special else ()), *inputs)


PROGRAMS: dict[str, Program] = {}


def program(*draws: Draw, order: int = 1, plain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a program with how its inputs are drawn; `order` 2 also compares second derivatives."""

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        assert run.__name__ not in PROGRAMS
        PROGRAMS[run.__name__] = Program(run, draws, order, plain)
        return run

    return enter


def normal(*shape: int, scale: float = 1.0) -> Draw:
    return lambda rng: scale * rng.standard_normal(shape)


def uniform(low: float, high: float, *shape: int) -> Draw:
    return lambda rng: rng.uniform(low, high, shape)


def positive(*shape: int) -> Draw:
    return uniform(0.5, 2.0, *shape)


def value(number: float) -> Draw:
    return lambda rng: numpy.float64(number)


def broadcast_like(n: int) -> Draw:
    """Give values in random order with gaps between neighbours, for functions with a kink where two are equal."""
    return lambda rng: rng.permutation(n) * 0.7 + rng.uniform(0, 0.3, n)


DATA = numpy.random.default_rng(0)
POINTS = DATA.standard_normal((7, 2))
LABELS = numpy.array([0, 2, 1, 1, 0, 2, 2])
COUNTS = numpy.array([3, 0, 2, 5, 1, 1, 4])
SERIES = numpy.cumsum(DATA.standard_normal(12))
FILLS = "it fills an array of numpy.zeros, a plain one, with parts of a tensor"
GATHERS = "numpy.array of a list of tensors makes a plain array"

# ---------------------------------------------------------------- statistics


@program(normal(5, 3), order=2)
def zscore(np, x):
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)


@program(normal(6, 3))
def covariance_by_hand_and_cov(np, x):
    centred = x - np.mean(x, axis=0)
    return centred.T @ centred / (len(x) - 1), np.cov(x, rowvar=False), np.corrcoef(x.T)


@program(normal(6, 2), order=2)
def whitening_by_cholesky(np, x):
    factor = np.linalg.cholesky(np.cov(x.T))
    return np.linalg.solve(factor, (x - x.mean(0)).T)


@program(normal(6, 3))
def zca_whitening(np, x):
    x = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(x.T @ x / x.shape[0])
    return x @ (vectors * (1 / np.sqrt(values + 1e-5))) @ vectors.T


@program(normal(6, 3), order=2)
def pca_reconstruction_error(np, x):
    centred = x - x.mean(axis=0, keepdims=True)
    u, s, vt = np.linalg.svd(centred, full_matrices=False)
    scores = u[:, :2] * s[:2]
    return np.sum((centred - scores @ vt[:2]) ** 2), s**2 / np.sum(s**2)


@program(normal(8), positive(), order=2)
def kernel_density(np, samples, width):
    grid = np.linspace(-2, 2, 5)
    z = (grid[:, None] - samples[None, :]) / width
    return np.exp(-0.5 * z**2).sum(axis=1) / (len(samples) * width * np.sqrt(2 * np.pi))


@program(value(0.7), value(1.3), value(0.1), order=2)
def gaussian_process_log_likelihood(np, length, amplitude, noise):
    x, y = POINTS[:, 0], POINTS[:, 1]
    k = amplitude**2 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2 / length**2) + noise * np.eye(len(x))
    lower = np.linalg.cholesky(k)
    alpha = np.linalg.solve(lower.T, np.linalg.solve(lower, y))
    return -0.5 * y @ alpha - np.log(np.diag(lower)).sum() - 0.5 * len(x) * np.log(2 * np.pi)


@program(value(0.7), normal(4))
def gaussian_process_prediction(np, length, y):
    x = POINTS[:4]
    new = POINTS[4:]

    def kernel(a, b):
        return np.exp(-np.sum((a[:, np.newaxis, :] - b[np.newaxis, :, :]) ** 2, axis=-1) / (2 * length**2))

    gain = np.linalg.solve(kernel(x, x) + 0.1 * np.identity(4), kernel(x, new)).T
    return gain @ y, np.diagonal(kernel(new, new) - gain @ kernel(x, new))


@program(normal(3), normal(3, 2), uniform(-0.5, 0.5, 3), order=2)
def gaussian_mixture_log_likelihood(np, special, logits, means, log_scales):
    log_weights = logits - special.logsumexp(logits)
    z = (POINTS[:, None, :] - means) / np.exp(log_scales)[:, None]
    log_density = -0.5 * np.sum(z**2, axis=-1) - 2 * log_scales - np.log(2 * np.pi)
    return special.logsumexp(log_weights + log_density, axis=1).mean()


@program(normal(2), value(0.1), order=2)
def logistic_regression_loss(np, w, b):
    y = (LABELS > 0).astype(float)
    margin = POINTS @ w + b
    return np.mean(np.logaddexp(0, margin) - y * margin) + 0.01 * np.dot(w, w)


@program(normal(2), value(0.3), order=2)
def poisson_regression(np, special, w, b):
    rate = np.exp(POINTS @ w + b)
    return -(special.xlogy(COUNTS, rate) - rate - special.gammaln(COUNTS + 1)).sum()


@program(value(1.4), value(0.6), order=2)
def gamma_log_likelihood(np, special, shape, scale):
    data = np.abs(POINTS[:, 0]) + 0.1
    return np.sum((shape - 1) * np.log(data) - data / scale - shape * np.log(scale) - special.gammaln(shape))


@program(value(2.5), value(0.2), positive())
def student_t_log_likelihood(np, special, nu, mean, scale):
    z = (SERIES - mean) / scale
    log_norm = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - np.log(scale)
    return np.sum(log_norm - (nu + 1) / 2 * np.log1p(z * z / nu))


@program(positive(3), order=2)
def dirichlet_entropy(np, special, alpha):
    total = alpha.sum()
    log_beta = special.gammaln(alpha).sum() - special.gammaln(total)
    rest = (total - alpha.size) * special.digamma(total) - np.dot(alpha - 1, special.digamma(alpha))
    return log_beta + rest


@program(normal(2), value(0.2), value(0.3))
def kalman_filter(np, state, log_q, log_r):
    transition = np.array([[1.0, 0.5], [0.0, 1.0]])
    observe = np.array([[1.0, 0.0]])
    q, r = np.exp(log_q) * np.eye(2), np.exp(log_r) * np.eye(1)
    covariance, log_likelihood = np.eye(2), 0.0
    for y in SERIES[:5]:
        state, covariance = transition @ state, transition @ covariance @ transition.T + q
        s = observe @ covariance @ observe.T + r
        gain = covariance @ observe.T @ np.linalg.inv(s)
        surprise = y - observe @ state
        log_likelihood -= 0.5 * (surprise @ np.linalg.solve(s, surprise) + np.linalg.slogdet(2 * np.pi * s)[1])
        state = state + gain @ surprise
        covariance = (np.eye(2) - gain @ observe) @ covariance
    return log_likelihood, state


@program(normal(3, 3), normal(3, 2), normal(3), order=2)
def hidden_markov_forward(np, special, transition, emission, initial):
    log_a = special.log_softmax(transition, axis=1)
    log_b = special.log_softmax(emission, axis=1)
    alpha = special.log_softmax(initial) + log_b[:, 0]
    for symbol in [1, 0, 0, 1, 1]:
        alpha = special.logsumexp(alpha[:, None] + log_a, axis=0) + log_b[:, symbol]
    return special.logsumexp(alpha)


@program(normal(3, 3), normal(3))
def viterbi_score(np, transition, start):
    score = start
    for step in SERIES[:4]:
        score = np.max(score[:, None] + transition, axis=0) + step * np.arange(3)
    return score.max()


@program(value(0.5), value(-0.3))
def arma_residuals(np, phi, theta):
    residuals = [SERIES[0]]
    for previous, now in itertools.pairwise(SERIES):
        residuals.append(now - phi * previous - theta * residuals[-1])
    return np.sum(np.stack(residuals[1:]) ** 2) / len(SERIES)


@program(value(0.1), value(0.2), value(0.7), order=2)
def garch_variance(np, omega, alpha, beta):
    variance, loss = omega / (1 - alpha - beta), 0.0
    for r in SERIES:
        loss += np.log(variance) + r**2 / variance
        variance = omega + alpha * r**2 + beta * variance
    return loss


@program(normal(3), order=2)
def weighted_least_squares(np, weights):
    w = np.exp(weights)[[0, 1, 2, 0, 1, 2, 0]]
    design = np.column_stack([np.ones(7), POINTS[:, 0]])
    root = np.sqrt(w)[:, None]
    solution, *_ = np.linalg.lstsq(design * root, POINTS[:, 1] * root[:, 0], rcond=None)
    return solution


@program(normal(7), order=2)
def huber_loss(np, residual):
    size = np.abs(residual)
    return np.where(size < 0.8, 0.5 * residual**2, 0.8 * (size - 0.4)).mean()


@program(broadcast_like(9))
def robust_location_and_scale(np, x):
    middle = np.median(x)
    mad = np.median(np.abs(x - middle))
    low, high = np.percentile(x, [25, 75])
    return middle, 1.4826 * mad, high - low, np.quantile(x, 0.9), np.sort(x)[2:-2].mean()


@program(broadcast_like(6), normal(6))
def gini_and_weighted_average(np, x, log_w):
    ranked = np.sort(np.abs(x))
    n = x.size
    gini = (2 * np.arange(1, n + 1) - n - 1) @ ranked / (n * ranked.sum())
    return gini, np.average(x, weights=np.exp(log_w))


@program(normal(4, 3), normal(5, 3))
def maximum_mean_discrepancy(np, x, y):
    def gram(a, b):
        squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        return np.exp(-0.5 * squared)

    return gram(x, x).mean() + gram(y, y).mean() - 2 * gram(x, y).mean()


@program(normal(6), normal(6))
def skewness_and_kurtosis(np, x, y):
    z = (x - np.mean(x)) / np.std(x)
    return np.mean(z**3), np.mean(np.power(z, 4)) - 3, np.corrcoef(x, y)[0, 1]


@program(normal(5), order=2)
def mean_with_missing_values(np, x):
    holes = np.where(np.array([True, False, True, True, False]), x, np.nan)
    return np.nanmean(holes), np.nanstd(holes), np.nansum(holes**2), np.nanvar(holes, ddof=1)


@program(normal(4))
def kullback_leibler_of_gaussians(np, means):
    m = means.reshape(2, 2)
    a, b = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([[1.0, -0.2], [-0.2, 1.5]])
    difference = m[1] - m[0]
    precision = np.linalg.inv(b)
    return 0.5 * (
        np.trace(precision @ a) + difference @ precision @ difference - 2 + np.log(np.linalg.det(b) / np.linalg.det(a))
    )


@program(normal(3, 3), order=2)
def wishart_log_density(np, special, root):
    scatter = root @ root.T + np.eye(3)
    logdet = np.linalg.slogdet(scatter).logabsdet
    return 0.5 * (5 - 3 - 1) * logdet - 0.5 * np.trace(scatter) - special.multigammaln(2.5, 3)


@program(normal(5), normal(5))
def spearman_like_soft_ranks(np, x, y):
    def ranks(v):
        return np.sum(1 / (1 + np.exp(-(v[:, None] - v[None, :]) * 3)), axis=1)

    return np.corrcoef(ranks(x), ranks(y))[0, 1]


@program(positive(3, 4))
def chi_squared_of_a_table(np, table):
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return np.sum((table - expected) ** 2 / expected)


# ---------------------------------------------------------------- physics


@program(value(0.9), value(0.1), order=2, plain=GATHERS)
def pendulum_by_rk4(np, angle, speed):
    def slope(state):
        return np.array([state[1], -np.sin(state[0]) - 0.1 * state[1]])

    state, h = np.array([angle, speed]), 0.2
    for _ in range(4):
        k1 = slope(state)
        k2 = slope(state + 0.5 * h * k1)
        k3 = slope(state + 0.5 * h * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


@program(normal(4, 3), normal(4, 3), order=2)
def bodies_by_broadcasting(np, x, v):
    mass = np.array([1.0, 2.0, 0.5, 1.5])
    for _ in range(2):
        apart = x[None, :, :] - x[:, None, :]
        inverse_cube = (np.sum(apart**2, axis=2) + 0.1) ** -1.5
        v = v + 0.05 * np.einsum("ijk,ij,j->ik", apart, inverse_cube, mass)
        x = x + 0.05 * v
    return 0.5 * np.sum(mass[:, None] * v**2)


@program(normal(4, 3))
def gravitational_energy(np, x):
    i, j = np.triu_indices(4, k=1)
    return -np.sum(1 / np.linalg.norm(x[i] - x[j], axis=1))


@program(broadcast_like(5))
def lennard_jones_chain(np, x):
    r = np.abs(np.subtract.outer(x, x)) + np.eye(5)
    sixth = (0.5 / r) ** 6
    return 4 * np.sum(np.tril(sixth**2 - sixth, -1))


@program(normal(8), value(0.2), order=2)
def heat_by_roll(np, u, k):
    for _ in range(4):
        u = u + k * (np.roll(u, 1) - 2 * u + np.roll(u, -1))
    return u


@program(normal(8), value(0.2))
def heat_by_diff(np, u, k):
    for _ in range(3):
        u = u + k * np.diff(np.pad(u, 1, mode="edge"), n=2)
    return u


@program(normal(8), value(0.2), order=2)
def heat_by_convolve(np, u, k):
    kernel = np.stack([k, 1 - 2 * k, k])
    for _ in range(3):
        u = np.convolve(u, kernel, mode="same")
    return u


@program(normal(8), value(0.2), order=2)
def heat_in_place(np, start, k):
    u = start.copy()
    for _ in range(4):
        u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


@program(normal(4, 5), value(0.1))
def heat_in_two_dimensions_in_place(np, start, k):
    u = start.copy()
    for _ in range(3):
        new = u.copy()
        new[1:-1, 1:-1] += k * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
        new[0, :] = new[1, :]
        new[-1, :] = 0.0
        u = new
    return u


@program(normal(7), value(0.5))
def wave_equation(np, start, speed):
    before, now = start, start
    for _ in range(4):
        bend = np.zeros_like(now)
        bend[1:-1] = now[2:] - 2 * now[1:-1] + now[:-2]
        before, now = now, 2 * now - before + speed**2 * bend
    return np.vstack([before, now])


@program(normal(6), order=2)
def burgers_upwind(np, u):
    for _ in range(3):
        flux = 0.5 * u**2
        u = u - 0.1 * (flux - np.roll(flux, 1)) + 0.02 * (np.roll(u, 1) + np.roll(u, -1) - 2 * u)
    return u


@program(normal(3, 4), value(0.4))
def ising_mean_field_energy(np, field, coupling):
    spins = np.tanh(field)
    neighbours = np.roll(spins, 1, axis=0) + np.roll(spins, 1, axis=1)
    return -coupling * np.sum(spins * neighbours), np.mean(spins)


@program(value(0.4))
def ising_partition_function(np, beta):
    spins = np.array([[(k >> i & 1) * 2 - 1 for i in range(4)] for k in range(16)])
    energy = -np.sum(spins * np.roll(spins, 1, axis=1), axis=1)
    weights = np.exp(-beta * energy)
    return np.log(weights.sum()), np.sum(energy * weights) / weights.sum()


@program(positive(4), order=2, plain=FILLS)
def finite_elements_by_add_at(np, stiffness):
    nodes = numpy.arange(4)[:, None] + numpy.arange(2)
    k = np.zeros((5, 5))
    local = stiffness[:, None, None] * np.array([[1.0, -1.0], [-1.0, 1.0]])
    np.add.at(k, (nodes[:, :, None], nodes[:, None, :]), local)
    load = np.ones(4)
    return np.linalg.solve(k[1:, 1:], load)


@program(positive(3), plain=FILLS)
def finite_elements_by_a_loop(np, stiffness):
    k = np.zeros((4, 4))
    for e in range(3):
        k[e : e + 2, e : e + 2] += stiffness[e] * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return np.linalg.solve(k[1:, 1:], np.array([0.0, 0.0, 1.0]))


@program(normal(4, 6), order=2)
def poisson_by_fft(np, source):
    kx, ky = np.meshgrid(np.fft.fftfreq(4), np.fft.rfftfreq(6), indexing="ij")
    laplace = (2 * np.pi) ** 2 * (kx**2 + ky**2)
    laplace[0, 0] = 1.0
    spectrum = np.fft.rfft2(source) / laplace
    return np.fft.irfft2(spectrum, s=(4, 6))


@program(normal(8))
def spectral_derivative(np, u):
    k = 2j * np.pi * np.fft.fftfreq(u.size, d=0.25)
    return np.real(np.fft.ifft(k * np.fft.fft(u)))


@program(normal(3), uniform(0.2, 0.5, 3), value(0.8))
def ray_meets_sphere(np, origin, direction, radius):
    direction = direction / np.linalg.norm(direction)
    origin = 0.1 * origin
    b = np.dot(origin, direction)
    distance = -b + np.sqrt(b**2 - (origin @ origin - radius**2))
    hit = origin + distance * direction
    surface = hit / np.linalg.norm(hit)
    return np.maximum(np.dot(surface, np.array([0.0, 0.6, 0.8])), 0), distance


@program(normal(3, 3), order=2)
def triangle_area_and_normal(np, corners):
    across = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    return 0.5 * np.linalg.norm(across), across / np.linalg.norm(across)


@program(normal(4, 3), normal(3))
def rotate_by_an_axis(np, points, axis):
    angle = np.linalg.norm(axis)
    unit = axis / angle
    c, s = np.cos(angle), np.sin(angle)
    return c * points + s * np.cross(unit, points) + (1 - c) * np.outer(points @ unit, unit)


@program(normal(4), plain=GATHERS)
def rotation_from_a_quaternion(np, q):
    w, x, y, z = q / np.sqrt(np.sum(q**2))
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


@program(normal(4), value(0.3))
def verlet_of_springs(np, x, v0):
    v = v0 * np.ones(4)
    for _ in range(3):
        force = np.diff(x, prepend=0.0, append=4.0)
        v = v + 0.1 * (force[1:] - force[:-1])
        x = x + 0.1 * v
    return 0.5 * np.vdot(v, v)


@program(positive(3), order=2)
def quantum_ground_state(np, potential):
    h = np.diag(potential) - 0.5 * (np.eye(3, k=1) + np.eye(3, k=-1))
    energies, states = np.linalg.eigh(h)
    return energies[0], np.abs(states[:, 0]) ** 2


@program(normal(5), value(0.7))
def schroedinger_split_step(np, potential, width):
    x = np.linspace(-2, 2, 5)
    psi = np.exp(-(x**2) / width**2) * np.exp(0.5j * x)
    kinetic = np.exp(-0.05j * np.fft.fftfreq(5) ** 2)
    for _ in range(2):
        psi = np.fft.ifft(kinetic * np.fft.fft(np.exp(-0.1j * potential) * psi))
    return np.abs(psi) ** 2


@program(value(0.3), value(1.2))
def damped_oscillator_by_complex_roots(np, damping, stiffness):
    roots = np.sqrt((damping**2 - stiffness) + 0j)
    t = np.arange(4) * 0.5
    return np.real(np.exp((-damping + roots) * t)), np.angle(-damping + roots)


# ---------------------------------------------------------------- signals


@program(normal(12))
def spectrogram_by_index_arrays(np, signal):
    frames = signal[np.arange(0, 9, 4)[:, None] + np.arange(4)]
    spectrum = np.fft.rfft(frames * np.hanning(4), axis=1)
    return np.abs(spectrum) ** 2 + 1e-3


@program(normal(10), normal(3), order=2)
def fir_filter(np, signal, taps):
    return np.convolve(signal, taps, mode="valid"), np.correlate(signal, taps, mode="full")[::3]


@program(normal(6), value(0.6))
def iir_filter(np, signal, a):
    y = [signal[0]]
    for s in signal[1:]:
        y.append(a * y[-1] + (1 - a) * s)
    return np.stack(y)


@program(normal(8), order=2)
def autocorrelation_by_fft(np, x):
    x = x - x.mean()
    power = np.abs(np.fft.rfft(x, n=16)) ** 2
    r = np.fft.irfft(power)[: len(x)]
    return r / r[0]


@program(normal(7))
def savitzky_golay_by_polyfit(np, y):
    at = np.arange(-2, 3)
    return np.stack([np.polyfit(at, y[i - 2 : i + 3], 2)[-1] for i in range(2, 5)])


@program(normal(5), order=2)
def savitzky_golay_by_lstsq(np, y):
    design = np.vander(np.arange(-2.0, 3.0), 3)
    return np.linalg.lstsq(design, y, rcond=None)[0], np.linalg.pinv(design) @ y


@program(value(2.0), value(0.3))
def unwrapped_phase(np, rate, start):
    t = np.arange(6)
    z = np.exp(1j * (rate * t + start))
    phase = np.unwrap(np.angle(z))
    return phase, np.gradient(phase)


@program(normal(6), value(0.4))
def resampling_by_interp(np, y, shift):
    grid = np.arange(6.0)
    return np.interp(np.linspace(0.2, 4.1, 4) + shift, grid, y)


@program(normal(8), order=2)
def haar_wavelet_step(np, x):
    low, high = (x[::2] + x[1::2]) / np.sqrt(2), (x[::2] - x[1::2]) / np.sqrt(2)
    high = np.sign(high) * np.maximum(np.abs(high) - 0.1, 0)
    back = np.empty_like(x)
    back[0::2], back[1::2] = (low + high) / np.sqrt(2), (low - high) / np.sqrt(2)
    return back


@program(normal(8))
def discrete_cosine_transform(np, x):
    n = len(x)
    basis = np.cos(np.pi / n * (np.arange(n) + 0.5)[None, :] * np.arange(n)[:, None])
    twice = np.fft.rfft(np.concatenate([x, x[::-1]]))[:n]
    return basis @ x, np.real(twice * np.exp(-0.5j * np.pi * np.arange(n) / n)) / 2


@program(normal(8))
def hilbert_envelope(np, x):
    spectrum = np.fft.fft(x)
    step = np.zeros(8)
    step[0] = step[4] = 1
    step[1:4] = 2
    return np.abs(np.fft.ifft(spectrum * step))


@program(normal(9))
def moving_average_by_cumsum(np, x):
    total = np.cumsum(np.insert(x, 0, 0.0))
    return (total[3:] - total[:-3]) / 3


@program(normal(10), order=2)
def windowed_rms(np, x):
    windows = np.lib.stride_tricks.sliding_window_view(x, 4)
    return np.sqrt(np.mean(windows**2, axis=-1))


@program(normal(3, 4), normal(2, 2), order=2)
def convolution_by_sliding_windows(np, image, kernel):
    windows = np.lib.stride_tricks.sliding_window_view
    patches = windows(image, kernel.shape)
    along_rows = windows(image, 3, axis=-1)[:, ::2]
    return np.einsum("ijkl,kl->ij", patches, kernel), np.max(along_rows, axis=(0, -1)), windows(image, (2, 2), (1, 1))


@program(normal(6), normal(6))
def cross_spectrum_delay(np, x, y):
    cross = np.fft.fft(x) * np.conj(np.fft.fft(y))
    return np.real(np.fft.ifft(cross / (np.abs(cross) + 0.1)))


@program(value(3.0), value(0.7), normal(5))
def fit_of_a_sinusoid(np, frequency, phase, data):
    t = np.linspace(0, 1, 5)
    model = np.sin(2 * np.pi * frequency * t + phase) * np.sinc(t)
    return np.linalg.norm(model - data)


# ---------------------------------------------------------------- images


@program(normal(3, 4))
def padded_in_every_mode(np, image):
    modes = "reflect", "symmetric", "edge", "wrap"
    return [np.pad(image, ((1, 1), (2, 0)), mode=mode) for mode in modes]


@program(normal(3, 3))
def eight_symmetries(np, image):
    turned = [np.rot90(image, k) for k in range(4)]
    return sum(m**2 for m in turned) + np.fliplr(image) * np.flipud(image) + image.T


@program(normal(4, 5), order=2)
def separable_blur(np, image):
    kernel = np.array([0.25, 0.5, 0.25])
    rows = np.apply_along_axis(np.convolve, 1, image, kernel, "same")
    return np.apply_along_axis(lambda column: np.convolve(column, kernel, mode="same"), 0, rows)


@program(normal(1, 2, 4, 4), normal(3, 2, 2, 2))
def convolution_by_im2col(np, images, kernels):
    i = np.arange(3)[:, None, None, None] + np.arange(2)[None, None, :, None]
    j = np.arange(3)[None, :, None, None] + np.arange(2)[None, None, None, :]
    columns = images[:, :, i, j]
    return np.einsum("nchwij,ocij->nohw", columns, kernels)


@program(normal(2, 4, 4))
def max_pooling_by_reshape(np, images):
    return images.reshape(2, 2, 2, 2, 2).max(axis=(2, 4))


@program(normal(3, 4), uniform(0.2, 0.8, 2))
def bilinear_resize(np, image, shift):
    y = np.linspace(0, 1, 3) + shift[0]
    x = np.linspace(0, 2, 4) + shift[1]
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    wy, wx = (y - y0)[:, None], (x - x0)[None, :]
    top = image[np.ix_(y0, x0)] * (1 - wx) + image[np.ix_(y0, x0 + 1)] * wx
    bottom = image[np.ix_(y0 + 1, x0)] * (1 - wx) + image[np.ix_(y0 + 1, x0 + 1)] * wx
    return top * (1 - wy) + bottom * wy


@program(normal(8))
def histogram_with_weights(np, weights):
    bins = np.array([0, 2, 1, 1, 0, 3, 2, 1])
    return np.bincount(bins, weights=weights, minlength=5)


@program(normal(4, 4), order=2)
def total_variation(np, image):
    dy, dx = np.diff(image, axis=0)[:, :-1], np.diff(image, axis=1)[:-1, :]
    return np.sum(np.hypot(dy, dx))


@program(normal(4, 5))
def sobel_edges(np, image):
    gy, gx = np.gradient(image)
    return np.sqrt(gx**2 + gy**2 + 1e-6), np.arctan2(gy, gx + 3)


@program(uniform(0.05, 0.95, 2, 3, 3), value(0.8))
def gamma_and_colour_matrix(np, image, gamma):
    matrix = np.array([[0.3, 0.6, 0.1], [0.5, -0.4, -0.1], [0.2, 0.3, -0.5]])
    return np.clip(np.tensordot(image**gamma, matrix, axes=([-1], [1])), 0.01, 0.9)


@program(normal(4, 4))
def low_pass_by_fft2(np, image):
    spectrum = np.fft.fftshift(np.fft.fft2(image))
    mask = np.hypot(*np.mgrid[-2:2, -2:2]) < 1.9
    return np.fft.ifft2(np.fft.ifftshift(spectrum * mask)).real


@program(normal(6, 6))
def mosaic_of_blocks(np, image):
    quarters = [half for row in np.split(image, 2) for half in np.hsplit(row, 2)]
    means = np.stack([np.mean(q) for q in quarters]).reshape(2, 2)
    return np.kron(means, np.ones((2, 2))), np.block([[quarters[0], quarters[1]], [quarters[2], quarters[3]]])[0]


@program(normal(4, 4), order=2)
def structural_similarity(np, a):
    b = np.roll(a, 1, axis=1) + 0.1
    ma, mb = a.mean(), b.mean()
    covariance = ((a - ma) * (b - mb)).mean()
    return (2 * ma * mb + 0.01) * (2 * covariance + 0.03) / ((ma**2 + mb**2 + 0.01) * (a.var() + b.var() + 0.03))


# ---------------------------------------------------------------- finance


@program(value(100.0), value(105.0), value(0.2), value(0.03), value(0.7), order=2)
def black_scholes(np, special, spot, strike, sigma, rate, years):
    d1 = (np.log(spot / strike) + (rate + sigma**2 / 2) * years) / (sigma * np.sqrt(years))
    d2 = d1 - sigma * np.sqrt(years)
    return spot * special.ndtr(d1) - strike * np.exp(-rate * years) * special.ndtr(d2)


@program(normal(4), order=2)
def portfolio_variance(np, logits):
    returns = POINTS[:4] @ np.array([[1.0, 0.2, 0.1, 0.3], [0.0, 1.0, -0.5, 0.2]])
    w = np.exp(logits) / np.exp(logits).sum()
    mean, risk = returns.mean(axis=0) @ w, np.sqrt(w @ np.cov(returns, rowvar=False) @ w)
    return mean / risk


@program(normal(8, scale=0.1))
def drawdown(np, returns):
    wealth = np.cumprod(1 + returns)
    peak = np.maximum.accumulate(wealth)
    return np.max(1 - wealth / peak), wealth[-1] ** (1 / len(returns)) - 1


@program(value(0.05), value(3.0), plain="numpy.full makes a plain array")
def bond_price_and_duration(np, rate, coupon):
    years = np.arange(1, 6)
    discount = (1 + rate) ** -years
    flows = np.full(5, coupon) + np.where(years == 5, 100.0, 0.0)
    price = np.sum(flows * discount)
    return price, np.dot(years * flows, discount) / price


@program(value(0.25), value(1.02), order=2)
def binomial_option(np, sigma, spot):
    n, step = 4, 0.25
    up = np.exp(sigma * np.sqrt(step))
    p = (np.exp(0.02 * step) - 1 / up) / (up - 1 / up)
    values = np.maximum(spot * up ** np.arange(-n, n + 1, 2) - 1.03, 0)
    for _ in range(n):
        values = np.exp(-0.02 * step) * (p * values[1:] + (1 - p) * values[:-1])
    return values[0]


@program(value(0.2), value(0.01))
def monte_carlo_asian_option(np, sigma, drift):
    noise = numpy.random.default_rng(3).standard_normal((6, 5))
    paths = np.exp(np.cumsum((drift - sigma**2 / 2) * 0.2 + sigma * np.sqrt(0.2) * noise, axis=1))
    return np.mean(np.maximum(paths.mean(axis=1) - 1.0, 0.0))


@program(broadcast_like(8))
def expected_shortfall(np, returns):
    worst = np.sort(returns)[:3]
    return -worst.mean(), np.percentile(returns, 12, method="lower")


@program(value(0.94), normal(6))
def exponential_volatility(np, decay, returns):
    weights = (1 - decay) * decay ** np.arange(6)[::-1]
    return np.sqrt(np.sum(weights * returns**2))


@program(positive(3, 3))
def equilibrium_of_an_input_output_table(np, flows):
    shares = flows / (flows.sum(axis=0) + 1)
    return np.linalg.solve(np.eye(3) - shares, np.array([1.0, 2.0, 3.0]))


# ---------------------------------------------------------------- machine learning


@program(normal(2, 4), normal(4), normal(4, 1), normal(1), order=2)
def multilayer_perceptron(np, w1, b1, w2, b2):
    hidden = np.tanh(POINTS @ w1 + b1)
    out = (hidden @ w2 + b2).squeeze(-1)
    return np.mean((out - LABELS) ** 2)


@program(normal(5, 3), normal(3), normal(3), order=2)
def batch_norm(np, x, gamma, beta):
    mean, var = x.mean(axis=0), x.var(axis=0)
    return gamma * (x - mean) / np.sqrt(var + 1e-5) + beta


@program(normal(2, 4), normal(4), normal(4))
def layer_norm_and_gelu(np, special, x, gamma, beta):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(np.var(x, -1, keepdims=True) + 1e-5) * gamma + beta
    return 0.5 * x * (1 + special.erf(x / np.sqrt(2)))


@program(normal(2, 3, 4), normal(2, 3, 4), normal(2, 3, 4))
def attention_by_einsum(np, special, q, k, v):
    scores = np.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones((3, 3), dtype=bool)), scores, -np.inf)
    return np.einsum("bqk,bkd->bqd", special.softmax(scores, axis=-1), v)


@program(normal(3, 4), normal(4, 4))
def multi_head_attention_by_reshape(np, x, w):
    heads = (x @ w).reshape(3, 2, 2).transpose(1, 0, 2)
    scores = heads @ heads.swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.moveaxis(weights @ heads, 0, 1).reshape(3, -1)


@program(normal(7, 3), order=2)
def softmax_cross_entropy(np, logits):
    shifted = logits - np.max(logits, axis=1, keepdims=True)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    return -np.take_along_axis(log_p, LABELS[:, None], axis=1).mean()


@program(normal(7, 3))
def softmax_cross_entropy_by_index_pairs(np, logits):
    p = np.exp(logits) / np.exp(logits).sum(axis=1)[:, np.newaxis]
    return -np.log(p[np.arange(7), LABELS]).mean()


@program(normal(7, 3))
def label_smoothing(np, special, logits):
    targets = np.eye(3)[LABELS] * 0.9 + 0.1 / 3
    return -(targets * special.log_softmax(logits, axis=1)).sum(axis=1).mean()


@program(normal(7, 3), order=2)
def focal_loss(np, special, logits):
    p = special.softmax(logits, axis=1)[np.arange(7), LABELS]
    return np.mean(-((1 - p) ** 2) * np.log(p))


@program(normal(3, 2))
def k_means_distances(np, centres):
    distance = np.linalg.norm(POINTS[:, None] - centres[None], axis=2)
    nearest = np.argmin(distance, axis=1)
    return np.sum(distance.min(axis=1) ** 2), np.sum((POINTS - centres[nearest]) ** 2)


@program(normal(7, 2))
def triplet_loss_with_hard_negatives(np, embedding):
    squared = np.sum((embedding[:, None] - embedding[None, :]) ** 2, axis=-1)
    same = LABELS[:, None] == LABELS[None, :]
    negative = np.argmin(np.where(same, np.inf, squared), axis=1)
    positive = np.argmax(np.where(same, squared, -np.inf), axis=1)
    rows = np.arange(7)
    return np.maximum(squared[rows, positive] - squared[rows, negative] + 0.3, 0).sum()


@program(normal(3, 3), normal(2, 3), normal(3))
def recurrent_network(np, w, u, b):
    h = np.zeros(3)
    for x in POINTS[:4]:
        h = np.tanh(h @ w + x @ u + b)
    return h


@program(normal(2, 12, scale=0.5), normal(3, 12, scale=0.5))
def lstm_cell(np, special, w, u):
    h, c = np.zeros(3), np.zeros(3)
    for x in POINTS[:3]:
        i, f, o, g = np.split(x @ w + h @ u, 4)
        c = special.expit(f) * c + special.expit(i) * np.tanh(g)
        h = special.expit(o) * np.tanh(c)
    return h


@program(normal(5, 3))
def embedding_lookup(np, table):
    tokens = np.array([[1, 3, 1], [0, 4, 1]])
    return np.take(table, tokens, axis=0).mean(axis=1), table[tokens].sum(axis=(0, 1))


@program(normal(3, 4), order=2)
def masked_mean(np, x):
    mask = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]], dtype=bool)
    by_where = np.mean(x, axis=1, where=mask)
    return by_where, (x * mask).sum(1) / mask.sum(1), np.max(x, axis=1, initial=-9.0, where=mask)


@program(broadcast_like(8))
def top_k_by_argpartition(np, scores):
    best = np.argpartition(scores, -3)[-3:]
    best = best[np.argsort(scores[best])[::-1]]
    return scores[best] * np.array([3.0, 2.0, 1.0]), np.sort(scores)[::-1][:2]


@program(normal(3, 4))
def normalised_embeddings_contrast(np, special, x):
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    similarity = x @ x.T / 0.5
    np.fill_diagonal(similarity, -1e9)
    return -np.mean(special.log_softmax(similarity, axis=1)[np.arange(3), [1, 2, 0]])


@program(normal(4), normal(4))
def variational_bound(np, mean, log_var):
    noise = numpy.random.default_rng(5).normal(size=4)
    z = mean + np.exp(0.5 * log_var) * noise
    return 0.5 * np.sum(z**2) - 0.5 * np.sum(1 + log_var - mean**2 - np.exp(log_var))


@program(normal(5), value(0.3))
def activations(np, x, slope):
    relu = np.maximum(x, 0)
    leaky = np.where(x > 0, x, slope * x)
    elu = np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
    softplus = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
    return relu * leaky, elu, softplus, np.clip(x / 6 + 0.5, 0, 1) * x


@program(normal(3, 3), normal(3, 2))
def graph_convolution(np, w, x):
    adjacency = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]]) * np.exp(w)
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    return np.maximum(scale[:, None] * adjacency * scale @ x, -0.2)


@program(normal(4, 2), plain=FILLS)
def segment_sum_by_add_at(np, messages):
    total = np.zeros((3, 2))
    np.add.at(total, [0, 2, 2, 0], messages)
    return total**2


@program(normal(4, 2), positive(2))
def radial_basis_network(np, centres, widths):
    squared = ((POINTS[:, None] - centres) / widths) ** 2
    features = np.exp(-squared.sum(-1))
    coefficients = np.linalg.solve(features.T @ features + 0.1 * np.eye(4), features.T @ POINTS[:, 0])
    return np.mean((features @ coefficients - POINTS[:, 0]) ** 2)


@program(normal(2, 2), normal(2))
def training_loop_unrolled(np, w, b):
    for _ in range(3):
        residual = POINTS @ w + b - POINTS[:, ::-1]
        w = w - 0.1 * POINTS.T @ residual / len(POINTS)
        b -= 0.1 * residual.mean(axis=0)
    return np.sum(residual**2)


@program(normal(6))
def positional_encoding_product(np, x):
    position = np.arange(6)[:, np.newaxis]
    rate = np.exp(np.arange(0, 4, 2) * -(np.log(10.0) / 4))
    table = np.zeros((6, 4))
    table[:, 0::2] = np.sin(position * rate)
    table[:, 1::2] = np.cos(position * rate)
    return x @ table


@program(normal(4), order=2)
def sinkhorn_transport(np, special, cost):
    c = np.abs(cost[:, None] - np.array([-1.0, 0.0, 1.0]))
    f, g = np.zeros(4), np.zeros(3)
    for _ in range(3):
        f = -special.logsumexp(g - c, axis=1) - np.log(4)
        g = -special.logsumexp(f[:, None] - c, axis=0) - np.log(3)
    return np.sum(np.exp(f[:, None] + g - c) * c)


@program(normal(3, 4), normal(4))
def gumbel_softmax_and_entropy(np, special, logits, noise):
    p = special.softmax((logits + noise) / 0.7, axis=-1)
    return special.entr(p).sum(axis=-1), special.rel_entr(p[0], p[1]).sum()


@program(normal(6))
def rewards_discounted_in_a_reversed_loop(np, rewards):
    returns = np.zeros_like(rewards)
    running = 0.0
    for t in reversed(range(6)):
        running = rewards[t] + 0.9 * running
        returns[t] = running
    return (returns - returns.mean()) / (returns.std() + 1e-8)


# ---------------------------------------------------------------- numerics


@program(value(3.0), order=2)
def newton_square_root(np, a):
    x = a
    for _ in range(6):
        x = 0.5 * (x + a / x)
    return x


@program(positive(3), order=2)
def conjugate_gradients(np, diagonal):
    matrix = np.diag(diagonal) + 0.1 * np.ones((3, 3))
    b = np.array([1.0, 2.0, 3.0])
    x, r = np.zeros(3), b
    p, rr = r, r @ r
    for _ in range(3):
        ap = matrix @ p
        alpha = rr / (p @ ap)
        x = x + alpha * p
        r = r - alpha * ap
        rr, old = r @ r, rr
        p = r + rr / old * p
    return x


@program(normal(3, 3))
def power_iteration(np, a):
    matrix = a @ a.T
    v = np.ones(3) / np.sqrt(3)
    for _ in range(5):
        v = matrix @ v
        v /= np.linalg.norm(v)
    return v @ matrix @ v


@program(normal(3, 3), order=2)
def qr_algorithm_step(np, a):
    symmetric = a + a.T
    for _ in range(2):
        q, r = np.linalg.qr(symmetric)
        symmetric = r @ q
    return symmetric


@program(normal(3, 3))
def gram_schmidt(np, a):
    basis = []
    for column in a.T:
        for q in basis:
            column = column - (q @ column) * q
        basis.append(column / np.linalg.norm(column))
    return np.stack(basis, axis=1)


@program(positive(4))
def cholesky_written_out(np, diagonal):
    a = np.diag(diagonal) * 3 + 0.5
    lower = np.zeros_like(a)
    for i in range(4):
        for j in range(i + 1):
            s = a[i, j] - lower[i, :j] @ lower[j, :j]
            lower[i, j] = np.sqrt(s) if i == j else s / lower[j, j]
    return lower[np.tril_indices(4)]


@program(normal(3, 3), normal(3))
def gauss_elimination_in_place(np, a, b):
    a, b = a + 4 * np.eye(3), b.copy()
    for k in range(3):
        for i in range(k + 1, 3):
            factor = a[i, k] / a[k, k]
            a[i, k:] -= factor * a[k, k:]
            b[i] -= factor * b[k]
    x = np.zeros_like(b)
    for k in range(2, -1, -1):
        x[k] = (b[k] - a[k, k + 1 :] @ x[k + 1 :]) / a[k, k]
    return x


@program(normal(5), value(0.3), order=2)
def chebyshev_by_polyval(np, coefficients, x):
    t = [np.polyval([1], x), np.polyval([1, 0], x), np.polyval([2, 0, -1], x), np.polyval([4, 0, -3, 0], x)]
    return sum(c * p for c, p in zip(coefficients, t, strict=False)), np.polyval(coefficients, x)


@program(normal(4), value(0.4))
def chebyshev_by_clenshaw(np, coefficients, x):
    b1 = b2 = 0.0
    for c in coefficients[:0:-1]:
        b1, b2 = c + 2 * x * b1 - b2, b1
    return coefficients[0] + x * b1 - b2


@program(value(0.5), value(1.5), order=2)
def quadrature_on_a_mesh(np, a, b):
    x, y = np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 2, 5))
    inner = np.trapezoid(np.exp(-a * x * y) * np.cos(b * x), dx=0.2, axis=1)
    return np.trapezoid(inner, np.linspace(0, 2, 5))


@program(value(0.2), value(1.1))
def quadrature_with_moving_ends(np, low, high):
    nodes, weights = numpy.polynomial.legendre.leggauss(5)
    x = 0.5 * (high - low) * nodes + 0.5 * (high + low)
    grid = np.linspace(low, high, 9)
    return 0.5 * (high - low) * np.sum(weights * np.sqrt(1 + x**3)), np.trapezoid(np.sqrt(1 + grid**3), grid)


@program(uniform(-1.7, 1.7, 5))
def spline_with_piecewise(np, x):
    size = np.abs(x)
    inside = [size < 1, (size >= 1) & (size < 2)]
    by_select = np.select(inside, [2 / 3 - size**2 + size**3 / 2, (2 - size) ** 3 / 6], default=0.0)
    by_piecewise = np.piecewise(x, [x < 0, x >= 0], [lambda v: v**2, lambda v: np.sin(v)])
    return by_select, by_piecewise


@program(broadcast_like(5), normal(5))
def natural_cubic_spline(np, gaps, y):
    h = np.abs(gaps[:-1]) + 0.5
    main, side = 2 * (h[:-1] + h[1:]), h[1:-1]
    matrix = np.diag(main) + np.diag(side, 1) + np.diag(side, -1)
    slope = np.diff(y) / h
    return np.linalg.solve(matrix, 6 * np.diff(slope))


@program(broadcast_like(3), order=2)
def determinant_of_vandermonde(np, x):
    return np.linalg.det(np.vander(x)), np.linalg.det(x[:, None] ** np.arange(3)), np.prod(np.diff(np.sort(x)))


@program(normal(2, 2), normal(2), plain="SciPy's expm is in gradmgr.numpy.linalg only")
def matrix_exponential_ode(np, a, x):
    expm = np.linalg.expm if hasattr(np.linalg, "expm") else scipy.linalg.expm
    return expm(0.5 * a) @ x


@program(normal(2, 2))
def matrix_exponential_by_taylor(np, a):
    term = total = np.eye(2)
    for k in range(1, 12):
        term = term @ a / k
        total = total + term
    return total, np.linalg.matrix_power(np.eye(2) + a / 8, 8)


@program(normal(2, 2), normal(2, 2))
def cholesky_of_blocks(np, a, b):
    first, corner = a @ a.T + np.eye(2), b
    last = corner.T @ np.linalg.inv(first) @ corner + 2 * np.eye(2)
    return np.linalg.cholesky(np.block([[first, corner], [corner.T, last]]))


@program(normal(2, 2), normal(3, 3))
def kronecker_sum(np, a, b):
    total = np.kron(a, np.eye(3)) + np.kron(np.eye(2), b)
    return np.trace(total @ total), np.linalg.slogdet(total + 9 * np.eye(6))[1]


@program(normal(3, 3), normal(3, 3))
def sylvester_by_kron(np, a, b):
    c = np.arange(9.0).reshape(3, 3)
    matrix = np.kron(np.eye(3), a + 4 * np.eye(3)) + np.kron(b.T, np.eye(3))
    return np.linalg.solve(matrix, c.flatten(order="F")).reshape((3, 3), order="F")


@program(value(0.8), order=2)
def bisection_polished_by_newton(np, k):
    low, high = 0.0, 2.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle - k * np.cos(middle) < 0 else (low, middle)
    x = low
    for _ in range(2):
        x = x - (x - k * np.cos(x)) / (1 + k * np.sin(x))
    return x


@program(normal(4), order=2)
def rosenbrock(np, x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2.0) ** 2.0 + (1 - x[:-1]) ** 2.0)


@program(normal(2), order=2)
def ackley_and_himmelblau(np, x):
    ackley = -20 * np.exp(-0.2 * np.sqrt(np.mean(np.square(x)))) - np.exp(np.mean(np.cos(2 * np.pi * x))) + 20 + np.e
    return ackley, (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


@program(normal(3), normal(3))
def implicit_euler(np, y, rate):
    jacobian = np.diag(-np.exp(rate)) + np.diagflat(np.ones(2), 1)
    for _ in range(2):
        y = np.linalg.solve(np.eye(3) - 0.1 * jacobian, y)
    return y


@program(normal(3, 3))
def polar_decomposition(np, a):
    u, s, vh = np.linalg.svd(a)
    return u @ vh, vh.T @ np.diag(s) @ vh


@program(normal(3, 3))
def norms_and_condition(np, a):
    a = a + 2 * np.eye(3)
    orders = ("fro", "nuc", 2, -2, 1, np.inf)
    return [np.linalg.norm(a, order) for order in orders] + [np.linalg.cond(a), np.linalg.norm(a, axis=0).max()]


@program(normal(4), normal(4))
def legendre_by_recurrence(np, x, c):
    p0, p1 = np.ones_like(x), x
    total = c[0] * p0 + c[1] * p1
    for n in range(1, 3):
        p0, p1 = p1, ((2 * n + 1) * x * p1 - n * p0) / (n + 1)
        total = total + c[n + 1] * p1
    return total


@program(positive(4), order=2)
def arithmetic_geometric_mean(np, a):
    b = np.ones(4)
    for _ in range(4):
        a, b = (a + b) / 2, np.sqrt(a * b)
    return a


@program(positive(5))
def continued_fraction_by_reduce(np, terms):
    total = terms[-1]
    for t in terms[-2::-1]:
        total = t + 1 / total
    return total, np.multiply.reduce(terms), np.add.reduceat(terms, [0, 2, 3]), np.add.accumulate(terms)


@program(normal(5))
def aitken_and_richardson(np, s):
    d1, d2 = np.diff(s), np.diff(s, 2)
    return s[:-2] - d1[:-1] ** 2 / (np.abs(d2) + 1), (4 * s[1:] - s[:-1]) / 3, np.ediff1d(s)


@program(normal(3, 4), plain="numpy.r_ and numpy.c_ make plain arrays")
def mixed_indexing(np, a):
    rows = np.r_[a[0], a[1, ::2]]
    columns = np.c_[a[:, 0], a[:, -1]]
    picked = a[a > 0].sum() + a[..., 1].prod() + a[[0, 2], [1, 3]] @ np.ones(2)
    return rows, columns, picked, a[1:, None, ::-1], np.compress([True, False, True], a, axis=0)


@program(normal(3, 4))
def everyday_shapes(np, a):
    flat = a.ravel()
    pieces = np.array_split(flat, 5)
    joined = np.concatenate([np.atleast_1d(p.sum()) for p in pieces])
    stacked = np.dstack([a, a * 2]).swapaxes(0, 2)
    return joined, stacked.sum(axis=(0, 1)), np.tile(a[0], 2), np.repeat(a[:, 1], [1, 0, 2]), np.expand_dims(flat, 0).T


@program(normal(3, 3))
def branching_on_values(np, a):
    if np.any(np.isnan(a)) or not np.isfinite(a).all():
        raise ArithmeticError("no finite values")
    total = 0.0
    for row in a:
        total = total + (row.max() if row[0] > 0 else row.min())
    best = np.unravel_index(np.argmax(a), a.shape)
    return total * a[best], np.sum(a > 0) * a.sum()


# ---------------------------------------------------------------- the tests


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def gradients_of(function: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """Gradients of the outputs' weighted sum, so that each element counts differently."""
    points = [tensor(a) for a in inputs]
    gm = GradManager().attach(points)
    with gm:
        outs = [y for y in results(function(*points)) if isinstance(y, Tensor)]
        gm.backward(outs, [numpy.cos(numpy.arange(y.size, dtype=float)).reshape(y.shape) for y in outs])
    return [t.grad for t in points]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_numpys_and_derivatives_those_of_differences(name):
    this = PROGRAMS[name]
    expected = results(this.on(numpy, scipy.special)(*this.inputs()))
    ours = this.on(gradmgr.numpy, gradmgr.special)
    points = [tensor(a) for a in this.inputs()]
    found = results(ours(*points))
    assert len(found) == len(expected)
    for y, z in zip(found, expected, strict=True):
        assert isinstance(y, Tensor)
        assert (y.shape, y.dtype) == (numpy.shape(z), numpy.asarray(z).dtype)
        numpy.testing.assert_allclose(y.numpy(), z, rtol=1e-12, atol=1e-12)
    assert gradcheck(ours, points)
    if this.order > 1:
        assert gradcheck(ours, points, order=this.order, fast_mode=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, this in PROGRAMS.items() if not this.plain])
def test_plain_numpy_on_tensors_gives_the_same(name):
    this = PROGRAMS[name]
    inputs = this.inputs()
    for y, z in zip(
        gradients_of(this.on(numpy, gradmgr.special), inputs),
        gradients_of(this.on(gradmgr.numpy, gradmgr.special), inputs),
        strict=True,
    ):
        assert (y is None) == (z is None)
        if y is not None:
            numpy.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_single_precision_stays_where_numpy_keeps_it(name):
    this = PROGRAMS[name]
    expected = results(this.on(numpy, scipy.special)(*this.inputs(numpy.float32)))
    ours = this.on(gradmgr.numpy, gradmgr.special)
    found = results(ours(*map(tensor, this.inputs(numpy.float32))))
    assert [y.dtype for y in found] == [numpy.asarray(z).dtype for z in expected]
    for g, w in zip(gradients_of(ours, this.inputs(numpy.float32)), gradients_of(ours, this.inputs()), strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            assert g.dtype == numpy.float32
            numpy.testing.assert_allclose(g.numpy(), w.numpy(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", [name for name, this in PROGRAMS.items() if this.plain])
def test_where_plain_numpy_cannot_carry_a_gradient_it_raises(name):
    this = PROGRAMS[name]
    points = [tensor(a) for a in this.inputs()]
    with GradManager().attach(points), pytest.raises(TypeError):
        this.on(numpy, gradmgr.special)(*points)


def test_there_are_many_programs():
    assert len(PROGRAMS) >= 120
    assert 3 * sum(this.order > 1 for this in PROGRAMS.values()) >= len(PROGRAMS)


def test_windows_are_values_and_reject_what_numpy_rejects():
    windows = numpy.lib.stride_tricks.sliding_window_view
    x = tensor([1.0, 2.0, 3.0, 4.0])
    windowed = windows(x, 2)
    with pytest.raises(ValueError, match="view"):
        windowed[0] = 9.0
    x[1] = 5.0
    assert windows(x, (2,), axis=-1)[::2].tolist() == [[1.0, 5.0], [3.0, 4.0]]
    assert windowed.tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert x.tolist() == [1.0, 5.0, 3.0, 4.0]
    for wrong in (5,), (-1,), ((2, 2),), (2, 1), ((2, 2), 0):
        for a in x.numpy(), x:
            with pytest.raises(ValueError):  # noqa: PT011  # each says another thing
                windows(a, *wrong)
    with pytest.raises(ValueError, match="writeable"):
        windows(x, 2, writeable=True)
