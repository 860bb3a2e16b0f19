"""Distributions, against scipy.stats."""

import copy

import guard
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, distributions, functional, tensor, vmap
from gradmgr._engine.tensor import raw
from gradmgr.distributions import transforms

A, B = np.array([0.4, 1.0, 3.5]), np.array([[0.7], [2.0]])
COVARIANCE = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, -0.2], [0.1, -0.2, 0.5]])
P = np.array([0.1, 0.5, 0.8])
LOC = np.array([0.5, -1.0, 2.0])
POSITIVE = np.array([0.2, 1.3, 4.0])

# By name: what makes it, its parameters, SciPy's of the same parameters, values to look at, and what SciPy has.
CONTINUOUS = {
    "Normal": (distributions.Normal, (LOC, B), lambda m, s: scipy.stats.norm(m, s), LOC + 0.3),
    "LogNormal": (
        distributions.LogNormal,
        (LOC / 4, B / 2),
        lambda m, s: scipy.stats.lognorm(s, 0, np.exp(m)),
        POSITIVE,
    ),
    "Gamma": (distributions.Gamma, (A, B), lambda a, r: scipy.stats.gamma(a, scale=1 / r), POSITIVE),
    "Beta": (distributions.Beta, (A, B), scipy.stats.beta, P),
    "StudentT": (distributions.StudentT, (A + 2.1, LOC, B), scipy.stats.t, LOC + 0.3),
}
DISCRETE = {
    "Bernoulli": (distributions.Bernoulli, (P,), scipy.stats.bernoulli, np.array([[0.0], [1.0]])),
    "Poisson": (distributions.Poisson, (A,), scipy.stats.poisson, np.array([[0], [3]])),
}
ALL = CONTINUOUS | DISCRETE


def reference_log_prob(reference, value):
    return reference.logpdf(value) if hasattr(reference.dist, "logpdf") else reference.logpmf(value)


@pytest.mark.parametrize("name", ALL)
def test_probabilities_and_moments_are_scipys(name):
    make, parameters, of_scipy, value = ALL[name]
    found, reference = make(*parameters), of_scipy(*parameters)
    np.testing.assert_allclose(found.log_prob(value), reference_log_prob(reference, value), rtol=1e-12)
    np.testing.assert_allclose(found.mean, np.broadcast_to(reference.mean(), found.batch_shape), rtol=1e-12)
    np.testing.assert_allclose(found.variance, np.broadcast_to(reference.var(), found.batch_shape), rtol=1e-11)
    np.testing.assert_allclose(found.stddev, np.broadcast_to(reference.std(), found.batch_shape), rtol=1e-11)
    if name != "Poisson":
        np.testing.assert_allclose(found.entropy(), np.broadcast_to(reference.entropy(), found.batch_shape), rtol=1e-9)


@pytest.mark.parametrize("name", ["Normal", "LogNormal", "Gamma"])
def test_cumulative_probabilities_are_scipys(name):
    make, parameters, of_scipy, value = ALL[name]
    found, reference = make(*parameters), of_scipy(*parameters)
    np.testing.assert_allclose(found.cdf(value), reference.cdf(value), rtol=1e-11)
    if name != "Gamma":
        np.testing.assert_allclose(found.icdf(P), reference.ppf(P), rtol=1e-11)


def test_no_lognormal_value_is_below_0():
    value = tensor([-1.0, 0.0, 2.0])
    with GradManager().attach(value) as gm:
        found = distributions.LogNormal(0.5, 2.0).cdf(value)
        gm.backward(found, np.ones(3))
    reference = scipy.stats.lognorm(2.0, 0, np.exp(0.5))
    np.testing.assert_allclose(found, reference.cdf(value), rtol=1e-12)
    np.testing.assert_allclose(value.grad, reference.pdf(value), rtol=1e-12)


def test_vectors_have_scipys_densities():
    concentration, weights = A + 0.5, np.array([0.2, 0.3, 0.5])
    dirichlet, reference = distributions.Dirichlet(concentration), scipy.stats.dirichlet(concentration)
    np.testing.assert_allclose(dirichlet.log_prob(weights), reference.logpdf(weights), rtol=1e-12)
    np.testing.assert_allclose(dirichlet.entropy(), reference.entropy(), rtol=1e-11)
    np.testing.assert_allclose(dirichlet.mean, reference.mean(), rtol=1e-12)
    np.testing.assert_allclose(dirichlet.variance, reference.var(), rtol=1e-11)
    assert (dirichlet.batch_shape, dirichlet.event_shape) == ((), (3,))


@pytest.mark.parametrize("given", ["covariance_matrix", "precision_matrix", "scale_tril"])
@pytest.mark.parametrize("is_stack", [False, True])
def test_multivariate_normal_is_scipys(given, is_stack):
    matrix = {
        "covariance_matrix": COVARIANCE,
        "precision_matrix": np.linalg.inv(COVARIANCE),
        "scale_tril": np.linalg.cholesky(COVARIANCE),
    }[given]
    found = distributions.MultivariateNormal(LOC, **{given: np.stack([matrix, matrix]) if is_stack else matrix})
    values = np.stack([LOC, LOC + 1.0])
    reference = scipy.stats.multivariate_normal(LOC, COVARIANCE)
    np.testing.assert_allclose(found.log_prob(values), reference.logpdf(values), rtol=1e-11)
    np.testing.assert_allclose(found.entropy(), np.full((2,) * is_stack, reference.entropy()), rtol=1e-11)
    np.testing.assert_allclose(found.variance[..., 1], np.full((2,) * is_stack, 1.0), rtol=1e-11)
    for name, expected in (("covariance_matrix", COVARIANCE), ("precision_matrix", np.linalg.inv(COVARIANCE))):
        np.testing.assert_allclose(
            getattr(found, name), np.broadcast_to(expected, (2,) * is_stack + (3, 3)), rtol=1e-10, atol=1e-12
        )
    drawn = found.sample(np.random.default_rng(0), 4000)
    assert drawn.shape == (4000,) + (2,) * is_stack + (3,)
    np.testing.assert_allclose(np.cov(drawn.reshape(-1, 3).T), COVARIANCE, atol=0.15)


def test_categorical_is_a_table_of_probabilities():
    weights = np.array([[1.0, 2.0, 1.0], [0.0, 1.0, 3.0]])
    table = weights / weights.sum(1, keepdims=True)
    for found in (
        distributions.Categorical(probs=weights),
        distributions.Categorical(logits=np.log(np.maximum(weights, 1e-300))),
    ):
        assert (found.batch_shape, found.event_shape) == ((2,), ())
        value = np.array([[1, 2], [2, 1]])
        np.testing.assert_allclose(np.exp(found.log_prob(value)), table[[[0, 1], [0, 1]], value], rtol=1e-12)
        np.testing.assert_allclose(found.probs, table, atol=1e-12)
        np.testing.assert_allclose(np.exp(found.logits), table, atol=1e-12)
        np.testing.assert_allclose(found.mean, table @ np.arange(3.0))
        np.testing.assert_allclose(found.entropy(), scipy.stats.entropy(table, axis=1))
        np.testing.assert_allclose(found.variance, [scipy.stats.rv_discrete(values=(range(3), t)).var() for t in table])
        drawn = found.sample(np.random.default_rng(1), 20000)
        assert drawn.dtype == np.int64
        np.testing.assert_allclose([(drawn == k).mean(0) for k in range(3)], table.T, atol=0.02)
        assert not (drawn[:, 1] == 0).any()
    assert np.isneginf(found.log_prob([[3, -1]])).all()


# ---------------------------------------------------------------- random values


@pytest.mark.parametrize("name", ALL)
def test_values_are_distributed_as_they_should(name):
    make, parameters, of_scipy, _ = ALL[name]
    found, reference = make(*parameters), of_scipy(*parameters)
    drawn = found.sample(np.random.default_rng(3), 3000)
    assert drawn.shape == (3000, *found.batch_shape)
    for index in np.ndindex(found.batch_shape):
        one = of_scipy(*[np.broadcast_to(p, found.batch_shape)[index] for p in parameters])
        column = drawn[(slice(None), *index)]
        if name in CONTINUOUS:
            assert scipy.stats.kstest(column, one.cdf).pvalue > 1e-3
        else:
            counts = np.array([(column == k).sum() for k in range(12)])
            np.testing.assert_allclose(counts / 3000, one.pmf(np.arange(12)), atol=0.03)
    del reference


@pytest.mark.parametrize("name", CONTINUOUS)
def test_rsample_gives_the_values_of_sample_and_their_derivatives(name):
    make, parameters, *_ = CONTINUOUS[name]
    given = [tensor(p) for p in parameters]
    sampled = make(*given).sample(np.random.default_rng(5), (2, 1))
    with GradManager().attach(given) as gm:
        found = make(*given).rsample(np.random.default_rng(5), (2, 1))
        gm.backward(gnp.sum(found))
    assert isinstance(sampled, Tensor)
    np.testing.assert_array_equal(found.numpy(), sampled.numpy())
    assert all(t.grad is not None and np.isfinite(t.grad.numpy()).all() for t in given)
    assert make(*[p.astype(np.float32) for p in parameters]).rsample(np.random.default_rng(0)).dtype == np.float32


def test_a_gamma_variate_moves_as_its_quantile():
    shapes = np.array([0.3, 1.0, 7.0, 400.0])

    def variates(a):
        return distributions.Gamma(a, 1.0).rsample(np.random.default_rng(8), 3)

    levels = scipy.special.gammainc(shapes, variates(shapes))

    def quantiles(a):
        return scipy.special.gammaincinv(a, levels)

    slope = functional.grad(lambda a: gnp.sum(variates(a)))
    bend = functional.grad(lambda a: gnp.sum(slope(a)))
    step = 1e-3 * shapes
    ahead, here, behind = quantiles(shapes + step), quantiles(shapes), quantiles(shapes - step)
    np.testing.assert_allclose(slope(shapes), np.sum((ahead - behind) / (2 * step), axis=0), rtol=1e-5)
    np.testing.assert_allclose(bend(shapes), np.sum((ahead - 2 * here + behind) / step**2, axis=0), rtol=1e-4)


def test_the_gradient_of_an_expectation():
    """The mean of log(z) over a gamma distribution is digamma(a), that of z^2 is a (a + 1)."""
    a = tensor([0.3, 2.0])
    with GradManager().attach(a) as gm:
        z = distributions.Gamma(a, 1.0).rsample(np.random.default_rng(0), 40000)
        gm.backward(gnp.sum(gnp.mean(z * z, axis=0)))
    np.testing.assert_allclose(a.grad.numpy(), 2 * a.numpy() + 1, rtol=0.03)


def test_shares_and_small_concentrations_do_not_vanish():
    drawn = distributions.Beta(1e-3, 1e-3).sample(np.random.default_rng(0), 1000)
    assert np.isfinite(drawn).all()
    assert abs(np.mean(drawn > 0.5) - 0.5) < 0.1
    weights = distributions.Dirichlet([1e-3, 1e-3, 1e-3]).sample(np.random.default_rng(0), 1000)
    np.testing.assert_allclose(weights.sum(-1), 1)


def test_samples_are_constants():
    loc = tensor(1.0)
    with GradManager().attach(loc) as gm:
        sampled = distributions.Normal(loc, 1.0).sample(np.random.default_rng(0), 5)
        assert not sampled.requires_grad
        gm.backward(gnp.sum(distributions.Normal(loc, 1.0).log_prob(sampled)))
    np.testing.assert_allclose(loc.grad.item(), np.sum(sampled.numpy() - 1.0))


# ---------------------------------------------------------------- support, dtypes


@pytest.mark.parametrize(
    ("found", "outside"),
    [
        (lambda p: distributions.Gamma(p, p), -1.0),
        (lambda p: distributions.Beta(p, p), 1.5),
        (lambda p: distributions.LogNormal(p, p), -0.5),
        (lambda p: distributions.Poisson(p), 0.5),
        (lambda p: distributions.Bernoulli(logits=p), 2.0),
        (
            lambda p: distributions.TransformedDistribution(distributions.Normal(p, 1.0), transforms.TanhTransform()),
            -1.0,
        ),
    ],
)
def test_outside_of_the_support_the_density_is_0_and_its_gradient_too(found, outside):
    parameter = tensor(0.7)
    with GradManager().attach(parameter) as gm:
        value = found(parameter).log_prob(np.array([outside, outside]))
        gm.backward(gnp.sum(gnp.exp(value)))
    assert np.isneginf(value.numpy()).all()
    assert parameter.grad.item() == 0


@pytest.mark.parametrize("name", ALL)
def test_numbers_promote_nothing(name):
    make, parameters, _, value = ALL[name]
    single = make(*[float(np.ravel(p)[0]) for p in parameters]).log_prob(np.asarray(value, np.float32))
    assert single.dtype == np.float32
    assert make(*[p.astype(np.float32) for p in parameters]).log_prob(1).dtype == np.float32
    assert make(*parameters).log_prob(1).dtype == np.float64


# ---------------------------------------------------------------- made of others


def test_independent_adds_up_the_last_axes():
    base = distributions.Normal(np.zeros((2, 3)), 2.0)
    found = distributions.Independent(base, 1)
    value = np.arange(6.0).reshape(2, 3)
    assert (found.batch_shape, found.event_shape, found.has_rsample) == ((2,), (3,), True)
    np.testing.assert_allclose(found.log_prob(value), scipy.stats.norm(0, 2).logpdf(value).sum(1))
    np.testing.assert_allclose(found.entropy(), base.entropy().sum(1))
    assert found.rsample(np.random.default_rng(0), 4).shape == (4, 2, 3)


TRANSFORMS = [
    transforms.AffineTransform(1.0, -2.0),
    transforms.AffineTransform(np.array([1.0, 0.0, 2.0]), np.array([3.0, -1.0, 0.5])),
    transforms.ExpTransform(),
    transforms.SigmoidTransform(),
    transforms.TanhTransform(),
    transforms.SoftplusTransform(),
    transforms.ComposeTransform(
        [transforms.AffineTransform(0.5, 2.0), transforms.TanhTransform(), transforms.ExpTransform()]
    ),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_a_transform_has_an_inverse_and_its_slope(transform):
    x = np.array([-1.5, 0.2, 0.7])
    y = transform(x)
    np.testing.assert_allclose(transform.inv(y), x, rtol=1e-12)
    step = 1e-6
    slope = (transform(x + step) - transform(x - step)) / (2 * step)
    np.testing.assert_allclose(transform.log_abs_det_jacobian(x, y), np.log(np.abs(slope)), atol=1e-8)
    assert np.all(transform.holds_for(y))


def test_what_a_transform_does_not_give_is_known():
    composed = TRANSFORMS[-1]  # exp of a tanh
    assert composed.holds_for(np.array([0.1, np.exp(-0.9), np.exp(0.9), 5.0, -1.0])).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_transforms_of_arrays_and_of_vectors():
    """Against LogNormal; a value outside has no density, and changes no gradient of the others."""
    scale, y = np.array([0.5, 1.0, 2.0]), np.array([0.3, 1.0, 2.5])
    steps = [transforms.AffineTransform(LOC, scale), transforms.ExpTransform()]
    made = distributions.TransformedDistribution(distributions.Normal(np.zeros(3), 1.0), steps)
    expected = scipy.stats.lognorm(scale, 0, np.exp(LOC)).logpdf(y)
    np.testing.assert_allclose(made.log_prob(y), expected, rtol=1e-12)
    np.testing.assert_array_equal(np.isneginf(made.log_prob(y * [1, -1, 1])), [False, True, False])
    assert made.sample(np.random.default_rng(0), 5).shape == (5, 3)
    loc = tensor(np.zeros(3))
    with GradManager().attach(loc) as gm:
        of_vector = distributions.MultivariateNormal(loc, np.eye(3))
        found = distributions.TransformedDistribution(of_vector, steps).log_prob(np.stack([y, y * [1, -1, 1]]))
        gm.backward(found, np.ones(2))
    np.testing.assert_allclose(found, [expected.sum(), -np.inf], rtol=1e-12)
    np.testing.assert_allclose(loc.grad, (np.log(y) - LOC) / scale, rtol=1e-12)
    with pytest.raises(ValueError, match=r"arrays of shape \(3,\), which must broadcast to .*; found \(\)"):
        distributions.TransformedDistribution(distributions.Normal(0.0, 1.0), steps)


def test_a_transformed_density_integrates_to_1():
    found = distributions.TransformedDistribution(distributions.Normal(0.3, 2.0), transforms.SigmoidTransform())
    total, _ = scipy.integrate.quad(lambda y: np.exp(found.log_prob(y)), 0, 1)
    assert abs(total - 1) < 1e-8
    drawn = found.rsample(np.random.default_rng(0), 2000)
    assert abs(np.mean(drawn < 0.5) - scipy.stats.norm.cdf(-0.15)) < 0.05


# ---------------------------------------------------------------- divergences


@pytest.mark.parametrize("name", sorted(CONTINUOUS.keys() - {"StudentT"}))
def test_divergences_are_integrals(name):
    make = CONTINUOUS[name][0]
    p, q = make(1.5, 0.8), make(1.1, 1.3)
    low, high = {"Normal": (-12, 14), "Beta": (0, 1)}.get(name, (0, 400))

    def density(x):
        return np.exp(p.log_prob(x)) * (p.log_prob(x) - q.log_prob(x))

    expected, _ = scipy.integrate.quad(density, low, high, limit=400, points=[1.0, 5.0, 20.0] if high > 20 else None)
    np.testing.assert_allclose(distributions.kl_divergence(p, q), expected, rtol=1e-5)
    assert abs(distributions.kl_divergence(p, p)) < 1e-12


def test_divergences_of_integers_are_sums():
    k = np.arange(60)
    for p, q, values in (
        (distributions.Poisson(1.5), distributions.Poisson(2.5), k),
        (distributions.Bernoulli(0.3), distributions.Bernoulli(logits=0.2), k[:2]),
        (distributions.Categorical(probs=[0.2, 0.3, 0.5]), distributions.Categorical(logits=[0.0, 1.0, 0.5]), k[:3]),
    ):
        expected = np.sum(np.exp(p.log_prob(values)) * (p.log_prob(values) - q.log_prob(values)))
        np.testing.assert_allclose(distributions.kl_divergence(p, q), expected, rtol=1e-10)


def test_divergences_of_vectors():
    beta = distributions.kl_divergence(distributions.Beta(1.5, 0.8), distributions.Beta(1.1, 1.3))
    pair = distributions.kl_divergence(distributions.Dirichlet([1.5, 0.8]), distributions.Dirichlet([1.1, 1.3]))
    np.testing.assert_allclose(pair, beta, rtol=1e-12)
    p = distributions.MultivariateNormal(LOC, COVARIANCE)
    q = distributions.MultivariateNormal(LOC + 0.5, scale_tril=np.linalg.cholesky(COVARIANCE + np.eye(3)))
    precision = np.linalg.inv(COVARIANCE + np.eye(3))
    expected = (
        np.trace(precision @ COVARIANCE) - 3 + 0.25 * precision.sum() - np.linalg.slogdet(precision @ COVARIANCE)[1]
    ) / 2
    np.testing.assert_allclose(distributions.kl_divergence(p, q), expected, rtol=1e-11)
    both = [distributions.Independent(distributions.Normal(m, 1.0), 1) for m in (LOC, LOC + 1)]
    np.testing.assert_allclose(distributions.kl_divergence(*both), 1.5)


# ---------------------------------------------------------------- with the other tools


def test_densities_are_mapped():
    values, locs = np.array([0.1, 0.2, 0.3]), tensor([0.0, 1.0, 2.0])
    mapped = vmap(lambda v, m: distributions.Gamma(m + 1, 2.0).log_prob(v))(values, locs)
    np.testing.assert_allclose(mapped.numpy(), scipy.stats.gamma(locs.numpy() + 1, scale=0.5).logpdf(values))
    chosen = vmap(lambda p: distributions.Categorical(p).log_prob(1))(tensor(COVARIANCE**2))
    np.testing.assert_allclose(chosen.numpy(), np.log(COVARIANCE[:, 1] ** 2 / (COVARIANCE**2).sum(1)))


def test_mapped_variates_are_those_of_the_whole_batch():
    shapes = tensor([0.5, 3.0, 20.0])
    mapped = vmap(lambda a: distributions.Gamma(a, 1.0).rsample(np.random.default_rng(2)))(shapes)
    whole = distributions.Gamma(shapes, 1.0).rsample(np.random.default_rng(2))
    np.testing.assert_array_equal(mapped.numpy(), whole.numpy())


@pytest.mark.parametrize("name", [*CONTINUOUS, "Bernoulli"])
def test_compiled_it_draws_the_same_numbers(name):
    make, parameters, *_ = ALL[name]

    def step(given, rng):
        found = make(*given)
        return found.log_prob(found.sample(rng, 4))

    compiled = gradmgr.compile(step)
    given = [tensor(p) for p in parameters]
    rngs = [np.random.default_rng(4), np.random.default_rng(4)]
    for _ in range(4):
        np.testing.assert_array_equal(compiled(given, rngs[0]).numpy(), step(given, rngs[1]).numpy())
    assert "1 variant" in compiled.explain()


# ---------------------------------------------------------------- errors


def test_wrong_parameters_are_refused():
    for make, error, message in (
        (lambda: distributions.Normal(0.0, -1.0), ValueError, "Normal: scale must be greater than 0; found -1"),
        (lambda: distributions.Normal(np.nan, 1.0), ValueError, "loc must be finite"),
        (lambda: distributions.Gamma(tensor([1.0, 0.0]), 1.0), ValueError, "concentration must be greater than 0"),
        (lambda: distributions.Normal(np.zeros(3), np.ones(2)), ValueError, "shapes must broadcast; found loc"),
        (lambda: distributions.Normal(1j, 1.0), TypeError, "loc must be real numbers"),
        (lambda: distributions.Bernoulli(), ValueError, "either probs or logits; found neither"),
        (lambda: distributions.Bernoulli(0.5, 0.0), ValueError, "found both"),
        (lambda: distributions.Bernoulli(1.5), ValueError, "probs must be from 0 to 1"),
        (lambda: distributions.Categorical(0.5), ValueError, "probs has at least 1 dimensions"),
        (lambda: distributions.MultivariateNormal(LOC), ValueError, "found none"),
        (
            lambda: distributions.MultivariateNormal(LOC, np.eye(2)),
            ValueError,
            r"covariance_matrix has shape \(..., 3, 3\)",
        ),
        (
            lambda: distributions.MultivariateNormal(LOC[:2], tensor([[1.0, 0.5], [0.1, 1.0]])),
            ValueError,
            r"covariance_matrix must be symmetric; found 0.5 at index \(0, 1\), and 1 more, in shape \(2, 2\)",
        ),
        (
            lambda: distributions.MultivariateNormal(LOC[:2], scale_tril=[[1.0, 0.5], [0.0, 1.0]]),
            ValueError,
            r"scale_tril must be lower triangular; found 0.5 at index \(0, 1\), in",
        ),
        (
            lambda: distributions.MultivariateNormal(LOC[:2], scale_tril=[[1.0, 0.0], [0.5, -1.0]]),
            ValueError,
            "scale_tril must be greater than 0 on its diagonal; found -1.0 at index 1",
        ),
        (lambda: distributions.Categorical([[0.5, 0.5], [0.0, 0.0]]), ValueError, "with a sum above 0; found 0.0 at"),
        (lambda: distributions.Independent(distributions.Normal(0.0, 1.0), 1), ValueError, "from 0 to 0"),
        (lambda: distributions.Independent(1.0, 1), TypeError, "takes a Distribution; found float"),
        (
            lambda: distributions.TransformedDistribution(distributions.Normal(0.0, 1.0), abs),
            TypeError,
            "takes Transforms",
        ),
    ):
        with pytest.raises(error, match=message):
            make()
    assert distributions.Normal(0.0, -1.0, validate_args=False).scale == -1.0
    distributions.MultivariateNormal(LOC[:2], scale_tril=[[1.0, 0.5], [0.0, -1.0]], validate_args=False)
    rounded = COVARIANCE.astype(np.float32)
    rounded[0, 1] = np.nextafter(rounded[0, 1], np.float32(1))
    distributions.MultivariateNormal(LOC, rounded)  # rounding is no lack of symmetry


def test_what_cannot_be_drawn_is_refused():
    rng = np.random.default_rng(0)
    state = copy.deepcopy(rng.bit_generator.state)
    with pytest.raises(NotImplementedError, match="Poisson has no rsample"):
        distributions.Poisson(1.0).rsample(rng)
    with pytest.raises(TypeError, match=r"Normal.sample draws from a numpy.random.Generator; found rng of type int"):
        distributions.Normal(0.0, 1.0).sample(3)
    with pytest.raises(
        TypeError, match=r"takes a numpy.random.Generator first, then the shape: rsample\(rng, \(3,\)\)"
    ):
        distributions.Normal(0.0, 1.0).rsample((3,))
    with pytest.raises(ValueError, match="sample_shape must be lengths"):
        distributions.Normal(0.0, 1.0).sample(rng, -1)
    with pytest.raises(ValueError, match=r"must broadcast with batch_shape \(3,\)"):
        distributions.Normal(LOC, 1.0).log_prob(np.zeros(2))
    with pytest.raises(NotImplementedError, match="Poisson has no closed form of its entropy"):
        distributions.Poisson(1.0).entropy()
    with pytest.raises(NotImplementedError, match="no closed form for Normal and Gamma"):
        distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Gamma(1.0, 1.0))
    assert rng.bit_generator.state == state


AFFINE_EXP = [transforms.AffineTransform(0.5, 2.0), transforms.ExpTransform()]
ON_A_GPU = {
    **{name: (make, parameters, value) for name, (make, parameters, _, value) in ALL.items()},
    "Bernoulli(logits)": (lambda logits: distributions.Bernoulli(logits=logits), (LOC,), np.array([[0.0], [1.0]])),
    "Categorical": (distributions.Categorical, (np.array([0.2, 0.5, 0.3]),), np.array([0, 2, 3])),
    "Categorical(logits)": (lambda logits: distributions.Categorical(logits=logits), (LOC,), np.array([0, 2])),
    "Dirichlet": (distributions.Dirichlet, (A,), np.array([0.2, 0.3, 0.5])),
    "MultivariateNormal": (distributions.MultivariateNormal, (LOC, COVARIANCE), LOC + 0.3),
    "scale_tril": (
        lambda loc, tril: distributions.MultivariateNormal(loc, scale_tril=tril),
        (LOC, np.linalg.cholesky(COVARIANCE)),
        LOC + 0.3,
    ),
    "TransformedDistribution": (
        lambda m, s: distributions.TransformedDistribution(distributions.Normal(m, s), AFFINE_EXP),
        (LOC, POSITIVE),
        np.array([0.4, -1.0, 2.0]),
    ),
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_they_are_the_same(cupy, name):
    make, parameters, value = ON_A_GPU[name]

    def computed(place):
        leaves = [gradmgr.asarray(place(p)) for p in parameters]
        gm, rng = GradManager().attach(leaves), np.random.default_rng(0)
        with gm:
            q = make(*leaves)
            density = q.log_prob(place(value))
            gm.backward(gnp.sum(density[density > -np.inf]))
        return [density, q.sample(rng, 4), *[leaf.grad for leaf in leaves]]

    for found, expected in zip(computed(cupy.asarray), computed(np.asarray), strict=True):
        assert isinstance(found._array, guard.ndarray)
        np.testing.assert_allclose(found._array._host, expected, rtol=1e-12, atol=1e-14)


def test_plain_arrays_of_a_gpu(cupy):
    found = distributions.MultivariateNormal(cupy.asarray(LOC), cupy.asarray(COVARIANCE)).log_prob(cupy.asarray(P))
    expected = scipy.stats.multivariate_normal(LOC, COVARIANCE).logpdf(P)
    np.testing.assert_allclose(raw(found)._host, expected, rtol=1e-12)


def test_numbers_beside_arrays_of_a_gpu(cupy):
    loc = gradmgr.asarray(cupy.asarray(LOC))
    for make in (
        lambda loc: distributions.StudentT(4.0, loc, 2.0),
        lambda loc: distributions.Normal(0.0, gnp.exp(loc)),
        lambda loc: distributions.Gamma(2.0, gnp.exp(loc)),
    ):
        found = make(loc).rsample(np.random.default_rng(0), 4)
        assert isinstance(found._array, guard.ndarray)
        expected = make(tensor(LOC)).rsample(np.random.default_rng(0), 4)
        np.testing.assert_allclose(found.to("cpu").numpy(), expected.numpy(), rtol=1e-12)


def test_wrong_parameters_on_a_gpu_are_refused(cupy):
    with pytest.raises(ValueError, match=r"scale must be greater than 0; found -2.0 at index 1, in shape \(2,\)"):
        distributions.Normal(0.0, gradmgr.asarray(cupy.asarray([1.0, -2.0])))
    with pytest.raises(ValueError, match="covariance_matrix must be symmetric"):
        distributions.MultivariateNormal(cupy.asarray(LOC[:2]), cupy.asarray([[1.0, 0.5], [0.1, 1.0]]))
