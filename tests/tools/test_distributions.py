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
from gradmgr import GradManager, Tensor, distributions, errors, functional, nn, tensor, vmap
from gradmgr._engine.tensor import raw
from gradmgr.distributions import constraints, transforms

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
    "Uniform": (distributions.Uniform, (LOC, B + 2), lambda a, b: scipy.stats.uniform(a, b - a), LOC + 0.3),
    "Exponential": (distributions.Exponential, (B,), lambda r: scipy.stats.expon(scale=1 / r), POSITIVE),
    "Laplace": (distributions.Laplace, (LOC, B), scipy.stats.laplace, LOC + 0.3),
    "Cauchy": (distributions.Cauchy, (LOC, B), scipy.stats.cauchy, LOC - 0.3),
    "Gumbel": (distributions.Gumbel, (LOC, B), scipy.stats.gumbel_r, LOC + 0.3),
    "HalfNormal": (distributions.HalfNormal, (B,), lambda s: scipy.stats.halfnorm(0, s), POSITIVE),
    "HalfCauchy": (distributions.HalfCauchy, (B,), lambda s: scipy.stats.halfcauchy(0, s), POSITIVE),
    "Chi2": (distributions.Chi2, (A,), scipy.stats.chi2, POSITIVE),
    "Weibull": (distributions.Weibull, (B, A), lambda s, k: scipy.stats.weibull_min(k, scale=s), POSITIVE),
    "Pareto": (distributions.Pareto, (B, A + 2.1), lambda s, a: scipy.stats.pareto(a, scale=s), POSITIVE + 2),
    "InverseGamma": (distributions.InverseGamma, (A + 2.1, B), lambda a, r: scipy.stats.invgamma(a, scale=r), POSITIVE),
}
DISCRETE = {
    "Geometric": (distributions.Geometric, (P,), lambda p: scipy.stats.geom(p, -1), np.array([[0.0], [3.0]])),
    "Binomial": (
        lambda p: distributions.Binomial(5, p),
        (P,),
        lambda p: scipy.stats.binom(5, p),
        np.array([[0.0], [3.0]]),
    ),
    "NegativeBinomial": (
        distributions.NegativeBinomial,
        (A, P),
        lambda n, p: scipy.stats.nbinom(n, 1 - p),
        np.array([[0.0], [3.0]]),
    ),
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
    if name == "Cauchy":  # infinite, as torch says; SciPy says NaN
        assert np.isposinf(found.variance).all()
    else:
        np.testing.assert_allclose(found.variance, np.broadcast_to(reference.var(), found.batch_shape), rtol=1e-11)
        np.testing.assert_allclose(found.stddev, np.broadcast_to(reference.std(), found.batch_shape), rtol=1e-11)
    if name not in ("NegativeBinomial", "Poisson"):
        np.testing.assert_allclose(found.entropy(), np.broadcast_to(reference.entropy(), found.batch_shape), rtol=1e-9)


@pytest.mark.parametrize("name", sorted(CONTINUOUS))
def test_cumulative_probabilities_are_scipys(name):
    make, parameters, of_scipy, value = ALL[name]
    found, reference = make(*parameters), of_scipy(*parameters)
    for x in (value, value - 5, value + 5):
        np.testing.assert_allclose(found.cdf(x), reference.cdf(x), rtol=1e-11)
    np.testing.assert_allclose(found.icdf(P), reference.ppf(P), rtol=1e-11)


@pytest.mark.parametrize("name", ALL)
def test_densities_have_derivatives(name):
    make, parameters, _, value = ALL[name]
    given = [tensor(p, dtype=np.float64) for p in parameters]
    assert gradmgr.gradcheck(lambda *p: make(*p).log_prob(value), given, atol=1e-6, rtol=1e-5)
    if name in CONTINUOUS:
        assert gradmgr.gradcheck(make(*parameters).log_prob, tensor(value), atol=1e-6, rtol=1e-5)


def test_small_probabilities_are_not_rounded_off():
    for make, reference in (
        (distributions.Cauchy(0.0, 1.0), scipy.stats.cauchy()),
        (distributions.Laplace(0.0, 1.0), scipy.stats.laplace()),
        (distributions.Exponential(1.0), scipy.stats.expon()),
        (distributions.Pareto(1.0, 2.0), scipy.stats.pareto(2.0)),
    ):
        q = np.array([1e-12, 1e-9])
        np.testing.assert_allclose(make.icdf(q), reference.ppf(q), rtol=1e-12)
        np.testing.assert_allclose(make.cdf(make.icdf(q)), q, rtol=1e-12 if make.icdf(0.5) == 0 else 1e-3)


@pytest.mark.parametrize("name", ["Beta", "Chi2", "Gamma", "InverseGamma", "StudentT"])
def test_cumulative_probabilities_have_derivatives_by_the_parameters(name):
    make, parameters, _, value = CONTINUOUS[name]
    given = [tensor(p, dtype=np.float64) for p in parameters]
    assert gradmgr.gradcheck(lambda *p: make(*p).cdf(value), given, atol=1e-6, rtol=1e-5)
    assert gradmgr.gradcheck(lambda *p: make(*p).icdf(P), given, atol=1e-6, rtol=1e-5)
    density = np.exp(make(*parameters).log_prob(value))
    slope = functional.grad(lambda x: gnp.sum(make(*parameters).cdf(x)))
    np.testing.assert_allclose(slope(np.broadcast_to(value, density.shape)), density, rtol=1e-11)


def test_tails_of_student_t_are_those_of_cauchy():
    t, cauchy = distributions.StudentT(1.0), scipy.stats.cauchy()
    z = np.array([-1e9, -30.0, 0.0, 30.0])
    np.testing.assert_allclose(t.cdf(z), cauchy.cdf(z), rtol=1e-12)
    np.testing.assert_allclose(t.icdf([1e-9, 0.5, 0.9]), cauchy.ppf([1e-9, 0.5, 0.9]), rtol=1e-12, atol=1e-15)
    slope = functional.grad(lambda z: gnp.sum(t.cdf(z)))
    np.testing.assert_allclose(slope(z), cauchy.pdf(z), rtol=1e-12)


def test_counts_of_trials_may_differ():
    found = distributions.Binomial([5, 8, 3], P)
    for k, (count, p) in enumerate(zip([5, 8, 3], P, strict=True)):
        reference = scipy.stats.binom(count, p)
        np.testing.assert_allclose(found.log_prob(3)[k], reference.logpmf(3), rtol=1e-12)
        np.testing.assert_allclose(found.entropy()[k], reference.entropy(), rtol=1e-12)
    assert np.isneginf(found.log_prob([6, 9, 4])).all()


def test_angles_have_scipys_densities():
    found, reference = distributions.VonMises(LOC, B), scipy.stats.vonmises(B, LOC)
    np.testing.assert_allclose(found.log_prob(LOC + 0.3), reference.logpdf(LOC + 0.3), rtol=1e-12)
    np.testing.assert_allclose(found.entropy(), np.broadcast_to(reference.entropy(), (2, 3)), rtol=1e-11)
    drawn = found.sample(np.random.default_rng(0), 4000)
    assert (np.abs(drawn) <= np.pi).all()
    resultant = np.exp(1j * drawn).mean(0)
    np.testing.assert_allclose(np.angle(resultant), found.mean, atol=0.08)
    np.testing.assert_allclose(1 - np.abs(resultant), found.variance, atol=0.03)


@pytest.mark.parametrize("given", ["probs", "logits"])
def test_counts_of_categories_are_scipys(given):
    p = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    parameter = {given: p * 2 if given == "probs" else np.log(p) + 1.0}
    found = distributions.Multinomial(4, **parameter)
    value = np.array([[1, 1, 2], [4, 0, 0]])
    for k in range(2):
        reference = scipy.stats.multinomial(4, p[k])
        np.testing.assert_allclose(found.log_prob(value[:, None])[:, k], reference.logpmf(value), rtol=1e-11)
        np.testing.assert_allclose(found.entropy()[k], reference.entropy(), rtol=1e-11)
        np.testing.assert_allclose(found.variance[k], np.diag(reference.cov()), rtol=1e-11)
    np.testing.assert_allclose(found.mean, 4 * p, rtol=1e-12)
    drawn = found.sample(np.random.default_rng(0), 3000)
    assert (drawn.shape, found.event_shape) == ((3000, 2, 3), (3,))
    assert (drawn.sum(-1) == 4).all()
    np.testing.assert_allclose(drawn.mean(0), 4 * p, atol=0.1)
    one = distributions.OneHotCategorical(**parameter)
    np.testing.assert_allclose(one.log_prob(np.eye(3)[:, None]), np.log(p).T, rtol=1e-11)
    np.testing.assert_allclose(one.sample(np.random.default_rng(0), 3000).mean(0), p, atol=0.04)
    np.testing.assert_allclose(one.variance, p * (1 - p), rtol=1e-11)
    np.testing.assert_allclose(one.entropy(), scipy.stats.entropy(p, axis=1), rtol=1e-11)
    for each, wrong in ((found, [1, 1, 1]), (found, [5, -1, 0]), (one, [1, 1, 0]), (one, [0, 0, 0])):
        assert np.isneginf(each.log_prob(wrong)).all()


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


BOUNDED = {
    **{name: (ALL[name][0](*ALL[name][1])) for name in ALL},
    "Bernoulli(logits)": distributions.Bernoulli(logits=LOC),
    "Binomial of several counts": distributions.Binomial([5, 8, 3], logits=LOC),
    "Categorical": distributions.Categorical(P),
    "OneHotCategorical": distributions.OneHotCategorical(P),
    "Multinomial": distributions.Multinomial(2, P),
    "Dirichlet": distributions.Dirichlet(A),
    "TransformedDistribution": distributions.TransformedDistribution(
        distributions.Normal(LOC, 1.0), transforms.SigmoidTransform()
    ),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_the_density_at_nan_is_nan(name):
    value = np.array([np.nan, 0.5, 0.5])
    density = BOUNDED[name].log_prob(value)
    expected = [True, False, False] if not BOUNDED[name].event_shape else True
    np.testing.assert_array_equal(np.isnan(density), np.broadcast_to(expected, density.shape))


@pytest.mark.parametrize("name", BOUNDED)
def test_random_values_are_of_the_support_and_parameters_of_their_constraints(name):
    found = BOUNDED[name]
    drawn = found.sample(np.random.default_rng(0), 5)
    assert found.support.check(drawn).all()
    assert found.support.is_discrete == (not found.has_rsample)
    assert found.support.event_dim == len(found.event_shape)
    for parameter, constraint in found.arg_constraints.items():
        if parameter == "probs" and constraint is constraints.simplex:
            assert constraint.check(found.probs).all()
        elif parameter not in ("probs", "logits") or parameter in found._parameters:
            assert constraint.check(getattr(found, parameter)).all()


@pytest.mark.parametrize("name", [*BOUNDED, "Independent", "MultivariateNormal"])
def test_expanded_it_is_the_same_with_more_parameters(name):
    others = {
        "Independent": distributions.Independent(distributions.Normal(LOC, 1.0), 1),
        "MultivariateNormal": distributions.MultivariateNormal(LOC, COVARIANCE),
    }
    found = others[name] if name in others else BOUNDED[name]
    shape = (2, *found.batch_shape)
    expanded = found.expand(shape)
    assert (type(expanded), expanded.batch_shape, expanded.event_shape) == (type(found), shape, found.event_shape)
    value = found.sample(np.random.default_rng(0))
    np.testing.assert_allclose(expanded.log_prob(value), np.stack([found.log_prob(value)] * 2), rtol=1e-12)
    assert expanded.sample(np.random.default_rng(0), 3).shape == (3, *shape, *found.event_shape)
    assert found.batch_shape == shape[1:]
    with pytest.raises(ValueError, match="must broadcast to the new one" if found.batch_shape else "must be lengths"):
        found.expand((2, *(n + 1 for n in found.batch_shape)) if found.batch_shape else -1)


def test_an_expanded_distribution_has_gradients_of_the_parameters_that_were_given():
    loc = tensor(0.5)
    with GradManager().attach(loc) as gm:
        gm.backward(gnp.sum(distributions.Normal(loc, 1.0).expand(4).log_prob(2.0)))
    assert loc.grad.item() == 4 * 1.5
    assert distributions.Normal(np.float32(0), 1.0).expand(2).log_prob(0.0).dtype == np.float32


def test_constraints_are_as_they_say():
    c = constraints
    for constraint, good, bad in (
        (c.real, [0.0, -np.inf], [np.nan]),
        (c.positive, [1e-9], [0.0, np.nan]),
        (c.nonnegative, [0.0], [-1.0]),
        (c.greater_than(2), [3.0], [2.0]),
        (c.greater_than_eq(tensor(2.0)), [2.0], [1.0]),
        (c.less_than(2), [1.0], [2.0]),
        (c.interval(-1, 1), [-1.0, 1.0], [1.5]),
        (c.half_open_interval(-1, 1), [-1.0], [1.0]),
        (c.unit_interval, [0.0, 1.0], [-0.1]),
        (c.boolean, [0, 1], [2, 0.5]),
        (c.nonnegative_integer, [0, 3], [-1, 0.5]),
        (c.positive_integer, [1], [0]),
        (c.integer_interval(2, 3), [2, 3], [1, 4, 2.5]),
        (c.real_vector, [[0.0, 1.0]], [[0.0, np.nan]]),
        (c.simplex, [[0.25, 0.75]], [[0.5, 0.6], [-0.5, 1.5]]),
        (c.one_hot, [[0, 1]], [[1, 1], [0.5, 0.5]]),
        (c.multinomial(3), [[1, 2]], [[1, 1], [4, -1]]),
        (c.independent(c.positive, 1), [[1.0, 2.0]], [[1.0, 0.0]]),
        (c.lower_triangular, [[[1.0, 0.0], [2.0, -1.0]]], [np.ones((2, 2))]),
        (c.lower_cholesky, [[[1.0, 0.0], [2.0, 1.0]]], [[[1.0, 0.0], [2.0, -1.0]]]),
        (c.symmetric, [np.ones((2, 2))], [[[1.0, 0.0], [2.0, 1.0]]]),
        (c.positive_definite, [COVARIANCE[:2, :2]], [[[1.0, 2.0], [2.0, 1.0]]]),
    ):
        assert constraint.check(np.array(good)).tolist() == [True] * len(good), constraint
        assert constraint.check(tensor(np.array(bad, float))).tolist() == [False] * len(bad), constraint


@pytest.mark.parametrize(
    "constraint",
    [
        constraints.real,
        constraints.positive,
        constraints.greater_than_eq(2.0),
        constraints.less_than(np.array([1.0, -1.0, 0.0])),
        constraints.unit_interval,
        constraints.interval(-1.0, 3.0),
        constraints.independent(constraints.positive, 1),
    ],
    ids=repr,
)
def test_there_is_a_transform_onto_a_constraint(constraint):
    x = np.array([-1.0, 0.5, 2.0])
    for make in (distributions.biject_to, distributions.transform_to):
        transform = make(constraint)
        assert constraint.check(transform(x)).all()
        np.testing.assert_allclose(transform.inv(transform(x)), x, rtol=1e-12)
        assert transform.log_abs_det_jacobian(x, transform(x)).shape == x.shape
    with pytest.raises(NotImplementedError, match=r"biject_to has functions for .*; found constraints.simplex"):
        distributions.biject_to(constraints.simplex)


@pytest.mark.parametrize("name", ALL)
def test_numbers_promote_nothing(name):
    make, parameters, _, value = ALL[name]
    single = make(*[float(np.ravel(p)[0]) for p in parameters]).log_prob(np.asarray(value, np.float32))
    assert single.dtype == np.float32
    assert make(*[p.astype(np.float32) for p in parameters]).log_prob(1).dtype == np.float32
    assert make(*parameters).log_prob(1).dtype == np.float64
    singles = make(*[p.astype(np.float32) for p in parameters])
    assert singles.mean.dtype == singles.variance.dtype == np.float32


# What lies in the tails, or is a small difference of large numbers, in float32 against SciPy in float64.
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: distributions.StudentT(np.float32(1e5)).log_prob(1), scipy.stats.t(1e5).logpdf(1)),
        (lambda: distributions.StudentT(np.float32(1e7)).log_prob(1), scipy.stats.t(1e7).logpdf(1)),
        (lambda: distributions.Cauchy(np.float32(0), 1e-3).log_prob(1e25), scipy.stats.cauchy(0, 1e-3).logpdf(1e25)),
        (
            lambda: distributions.HalfCauchy(np.float32(1e-3)).log_prob(1e25),
            scipy.stats.halfcauchy(0, 1e-3).logpdf(1e25),
        ),
        (lambda: distributions.Weibull(np.float32(1), 500).variance, scipy.stats.weibull_min(500).var()),
        (lambda: distributions.Weibull(1.0, 0.003).variance, np.inf),
        (lambda: distributions.Weibull(np.float32(1e-20), 1).log_prob(1e20), -np.inf),
        (
            lambda: distributions.Pareto(np.float32(300), 1e6).log_prob(300),
            scipy.stats.pareto(1e6, scale=300).logpdf(300),
        ),
    ],
)
def test_extreme_values_are_right(found, expected):
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found(), expected, rtol=1e-4)


def test_no_distribution_has_the_entropy_of_none():
    assert distributions.Binomial(np.zeros(0), 0.5).entropy().shape == (0,)


# ---------------------------------------------------------------- probabilities that round to 0 or 1

SURE = [[200.0, 0.0], [0.0, -np.inf], [0.5, 0.5, -np.inf]]  # logits


def entropy_and_slope(p):
    """Return the entropy of probabilities, and its derivative by the logits."""
    logs = np.log(np.where(p > 0, p, 1))
    entropy = -(p * logs).sum()
    return entropy, -p * (logs + entropy)


@pytest.mark.parametrize("logits", SURE)
@pytest.mark.parametrize("name", ["Categorical", "OneHotCategorical", "Multinomial"])
def test_entropy_and_divergence_of_nearly_sure_choices_have_finite_gradients(name, logits):
    make = getattr(distributions, name)
    x, others = tensor(np.float32(logits)), tensor(np.zeros(len(logits), np.float32))
    p = scipy.special.softmax(logits)
    entropy, slope = entropy_and_slope(p)
    with GradManager().attach(x) as gm:
        found = make(logits=x).entropy()
        gm.backward(found)
    np.testing.assert_allclose(found.item(), entropy, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad, slope, rtol=1e-5, atol=1e-6)
    if name != "Multinomial":
        x.grad = None
        with GradManager().attach([x, others]) as gm:
            divergence = distributions.kl_divergence(make(logits=x), make(logits=others))
            gm.backward(divergence)
        np.testing.assert_allclose(divergence.item(), np.log(len(logits)) - entropy, rtol=1e-5)
        np.testing.assert_allclose(x.grad, -slope, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(others.grad, 1 / len(logits) - p, rtol=1e-5)
        one = np.eye(len(logits), dtype=np.float32)[0]
        value = 0 if name == "Categorical" else one
        assert make(logits=x).log_prob(value).item() == pytest.approx(np.log(p[0]))


def test_divergence_of_what_rounds_to_0_is_that_of_its_logits():
    p, q = (distributions.Categorical(logits=np.float32([0, x])) for x in (0, -200))
    np.testing.assert_allclose(distributions.kl_divergence(p, q), 100 - np.log(2), rtol=1e-5)
    assert distributions.kl_divergence(p, p) == 0


@pytest.mark.parametrize("logit", [200.0, -200.0, 1e30, -1e30])
def test_entropy_and_divergence_of_a_nearly_sure_event_have_finite_gradients(logit):
    x, other = tensor(np.float32(logit)), tensor(np.float32(0))
    for make, n in ((distributions.Bernoulli, 1), (lambda logits: distributions.Binomial(3, logits=logits), 3)):
        x.grad = other.grad = None
        with GradManager().attach([x, other]) as gm:
            p, q = make(logits=x), make(logits=other)
            entropy, divergence = p.entropy(), distributions.kl_divergence(p, q)
            gm.backward(entropy + divergence)
        assert (entropy.item(), x.grad.item()) == (0, 0)
        assert divergence.item() == pytest.approx(n * np.log(2))
        assert other.grad.item() == n * (0.5 if logit < 0 else -0.5)


def test_a_share_of_0_has_an_infinite_slope_and_leaves_the_others_theirs():
    weights, even = tensor([1.0, 0.0, 1.0]), distributions.Categorical(probs=np.full(3, 1 / 3))
    for sign, of_shares in (1, lambda p: p.entropy()), (-1, lambda p: distributions.kl_divergence(p, even)):
        weights.grad = None
        with GradManager().attach(weights) as gm, np.errstate(divide="ignore"):
            gm.backward(of_shares(distributions.Categorical(probs=weights)))
        np.testing.assert_allclose(weights.grad, [0, sign * np.inf, 0], atol=1e-15)


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


@pytest.mark.parametrize("name", ["Beta", "Gamma", "LogNormal", "Normal"])
def test_divergences_are_integrals(name):
    make = CONTINUOUS[name][0]
    p, q = make(1.5, 0.8), make(1.1, 1.3)
    low, high = {"Normal": (-12, 14), "Beta": (0, 1)}.get(name, (0, 400))

    def density(x):
        return np.exp(p.log_prob(x)) * (p.log_prob(x) - q.log_prob(x))

    expected, _ = scipy.integrate.quad(density, low, high, limit=400, points=[1.0, 5.0, 20.0] if high > 20 else None)
    np.testing.assert_allclose(distributions.kl_divergence(p, q), expected, rtol=1e-5)
    assert abs(distributions.kl_divergence(p, p)) < 1e-12


KINDS = {
    "Bernoulli": (0.3, 0.6),
    "Beta": (1.5, 0.8, 2.1, 1.3),
    "Binomial": (5, 0.3, 5, 0.6),
    "Cauchy": (0.5, 1.2, -0.3, 0.7),
    "Chi2": (1.5, 3.5),
    "Exponential": (1.5, 0.7),
    "Gamma": (1.5, 0.8, 2.1, 1.3),
    "Geometric": (0.3, 0.6),
    "Gumbel": (0.5, 1.2, -0.3, 0.7),
    "HalfNormal": (1.5, 0.7),
    "InverseGamma": (1.5, 0.8, 2.1, 1.3),
    "Laplace": (0.5, 1.2, -0.3, 0.7),
    "LogNormal": (0.5, 1.2, -0.3, 0.7),
    "Normal": (0.5, 1.2, -0.3, 0.7),
    "Pareto": (1.5, 2.8, 0.9, 1.3),
    "Poisson": (1.5, 0.7),
    "Uniform": (0.2, 0.9, -0.3, 1.7),
}


def torchs_pairs():
    pairs = pytest.importorskip("torch.distributions.kl").__dict__["_KL_REGISTRY"]
    names = {(p.__name__, q.__name__) for p, q in pairs}
    return sorted((p, q) for p, q in names | {("Chi2", "Chi2"), ("Chi2", "Normal")} if {p, q} <= KINDS.keys())


def test_divergences_are_torchs():
    torch = pytest.importorskip("torch", reason="compares with PyTorch where that is installed")
    for mine, other in [*torchs_pairs(), ("InverseGamma", "InverseGamma"), ("LogNormal", "LogNormal")]:
        of, to = KINDS[mine], KINDS[other]
        of, to = of[: len(of) // 2], to[len(to) // 2 :]

        def divergence(module, number, p=mine, q=other, of=of, to=to):
            made = [getattr(module, name)(*map(number, args)) for name, args in ((p, of), (q, to))]
            return made, module.kl_divergence(*made)

        (p, q), found = divergence(distributions, float)
        _, expected = divergence(torch.distributions, lambda x: torch.tensor([x], dtype=torch.float64))
        np.testing.assert_allclose(found, expected.item(), rtol=1e-6, err_msg=f"{mine}, {other}")
        single = p.expand(2), type(q)(*[np.float32(x) for x in to])
        assert distributions.kl_divergence(*single).shape == (2,)


def test_divergences_are_infinite_where_the_other_has_no_density():
    uniform, pareto = distributions.Uniform(-1.0, 2.0), distributions.Pareto(1.0, 2.0)
    for q in (
        distributions.Uniform(0.0, 3.0),
        distributions.Beta(1.5, 2.0),
        distributions.Exponential(1.0),
        distributions.Gamma(1.5, 1.0),
        pareto,
    ):
        assert np.isposinf(distributions.kl_divergence(uniform, q))
    assert np.isposinf(distributions.kl_divergence(pareto, distributions.Pareto(1.5, 2.0)))
    assert np.isposinf(distributions.kl_divergence(distributions.Beta(1.0, 1.0), distributions.Uniform(0.5, 2.0)))
    more = distributions.Binomial([3, 4], 0.5), distributions.Binomial(3, 0.5)
    np.testing.assert_array_equal(distributions.kl_divergence(*more), [0, np.inf])
    with pytest.raises(NotImplementedError, match="needs total_count of the first to be that of the second or more"):
        distributions.kl_divergence(*more[::-1])


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


@pytest.mark.parametrize("name", ["Normal", "Gamma", "Poisson", "Binomial", "Uniform"])
def test_draws_in_vmap_follow_its_randomness(name):
    """As calls one after the other, from one state of the generator or each from where the last left it."""
    make, parameters, *_ = ALL[name]
    rows = [np.ravel(p)[:2] for p in parameters]

    def draw(rng):
        return lambda *row: make(*row).sample(rng, 3)

    with pytest.raises(errors.RandomnessError, match=f"{name}.sample draws random numbers; say randomness='same'"):
        vmap(draw(np.random.default_rng(2)))(*map(tensor, rows))
    same = vmap(draw(np.random.default_rng(2)), randomness="same")(*map(tensor, rows))
    alone = [draw(np.random.default_rng(2))(*row) for row in zip(*rows, strict=True)]
    np.testing.assert_array_equal(same.numpy(), np.stack(alone))
    rng = np.random.default_rng(2)
    different = vmap(draw(np.random.default_rng(2)), randomness="different")(*map(tensor, rows))
    np.testing.assert_array_equal(different.numpy(), np.stack([draw(rng)(*row) for row in zip(*rows, strict=True)]))


def test_draws_in_nested_vmaps_are_the_same_for_all():
    shapes = np.array([[0.5, 3.0, 20.0], [1.0, 2.0, 3.0]])

    def draw(a):
        return distributions.Gamma(a, 1.0).rsample(np.random.default_rng(2))

    mapped = vmap(vmap(draw, randomness="same"), randomness="same")(tensor(shapes))
    np.testing.assert_array_equal(mapped.numpy(), [[draw(a) for a in row] for row in shapes])


def test_other_draws_in_vmap_ask_for_its_randomness():
    rng = np.random.default_rng(0)
    for draw in (
        lambda x: (x * 1).normal_(generator=rng),
        lambda x: nn.init.normal_(x * 1, rng=rng),
        lambda x: x + distributions.Laplace(0.0, 1.0).rsample(),
    ):
        with pytest.raises(errors.RandomnessError):
            vmap(draw)(tensor(np.ones((2, 3))))


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


@pytest.mark.parametrize("name", ["Normal", "Poisson", "Binomial", "Gamma"])
@pytest.mark.parametrize("randomness", ["same", "different", "none"])
def test_compiled_it_draws_anew_where_parameters_are_numbers_or_mapped(name, randomness):
    make, parameters, *_ = ALL[name]
    numbers = [float(np.ravel(p)[0]) for p in parameters]

    def step(x, rng):
        if randomness == "none":
            return make(*numbers).sample(rng, 3) * x
        return vmap(lambda t: make(*[t * p for p in numbers]).sample(rng, 2), randomness=randomness)(x)

    compiled = gradmgr.compile(step)
    x, rngs = tensor([0.5, 0.7, 1.0]), [np.random.default_rng(4), np.random.default_rng(4)]
    for _ in range(4):
        np.testing.assert_array_equal(compiled(x, rngs[0]).numpy(), step(x, rngs[1]).numpy())
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
        (lambda: distributions.Uniform(1.0, [2.0, 1.0]), ValueError, "high - low must be greater than 0; found 0.0 at"),
        (lambda: distributions.Geometric(0.0), ValueError, "probs must be greater than 0, and at most 1; found 0.0"),
        (lambda: distributions.Binomial(2.5, 0.5), ValueError, "total_count must be integers, 0 or greater; found 2.5"),
        (lambda: distributions.NegativeBinomial(2.0, 1.0), ValueError, "probs must be from 0.0 to below 1.0; found 1"),
        (lambda: distributions.Multinomial(-1, P), ValueError, "total_count must be 0 or greater; found -1"),
        (lambda: distributions.Multinomial(1.5, P), TypeError, "float"),
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
    with pytest.raises(TypeError, match=r"independent takes a constraint, such as constraints.real, .*; found int"):
        distributions.constraints.independent(3, 1)
    rows = distributions.constraints.independent(distributions.constraints.positive, np.int64(1))
    assert rows.check([[1.0, 2.0], [1.0, -2.0]]).tolist() == [True, False]
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
    with pytest.raises(NotImplementedError, match="no closed form for Normal and Cauchy"):
        distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Cauchy(1.0, 1.0))
    assert rng.bit_generator.state == state


AFFINE_EXP = [transforms.AffineTransform(0.5, 2.0), transforms.ExpTransform()]
ON_A_GPU = {
    **{name: (make, parameters, value) for name, (make, parameters, _, value) in ALL.items()},
    "Bernoulli(logits)": (lambda logits: distributions.Bernoulli(logits=logits), (LOC,), np.array([[0.0], [1.0]])),
    "Categorical": (distributions.Categorical, (np.array([0.2, 0.5, 0.3]),), np.array([0, 2, 3])),
    "Categorical(logits)": (lambda logits: distributions.Categorical(logits=logits), (LOC,), np.array([0, 2])),
    "OneHotCategorical": (distributions.OneHotCategorical, (np.array([0.2, 0.5, 0.3]),), np.eye(3)),
    "Multinomial": (lambda p: distributions.Multinomial(3, p), (np.array([0.2, 0.5, 0.3]),), np.array([1, 2, 0])),
    "VonMises": (distributions.VonMises, (LOC, B), LOC + 0.3),
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
