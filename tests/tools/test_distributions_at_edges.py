"""Distributions at the edges of their supports and of their dtypes: values are SciPy's, gradients are finite."""

import numpy as np
import pytest
import scipy.stats as st

from gradmgr import GradManager, distributions, functional, tensor
from gradmgr.distributions import kl_divergence

# By class and parameters: SciPy's distribution, of the same parameters.
CASES = {
    ("Normal", 0.3, 1.2): st.norm(0.3, 1.2),
    ("LogNormal", 0.3, 1.2): st.lognorm(1.2, scale=np.exp(0.3)),
    ("Gamma", 0.5, 2.0): st.gamma(0.5, scale=0.5),
    ("Gamma", 1.0, 2.0): st.gamma(1.0, scale=0.5),
    ("Gamma", 2.0, 2.0): st.gamma(2.0, scale=0.5),
    ("Chi2", 1.0): st.chi2(1),
    ("Chi2", 2.0): st.chi2(2),
    ("InverseGamma", 2.0, 3.0): st.invgamma(2, scale=3),
    ("Exponential", 2.0): st.expon(scale=0.5),
    ("Weibull", 1.5, 0.5): st.weibull_min(0.5, scale=1.5),
    ("Weibull", 1.0, 1.0): st.weibull_min(1.0),
    ("Weibull", 1.0, 2.0): st.weibull_min(2.0),
    ("Pareto", 2.0, 3.0): st.pareto(3, scale=2),
    ("Beta", 0.5, 0.5): st.beta(0.5, 0.5),
    ("Beta", 1.0, 1.0): st.beta(1, 1),
    ("Beta", 2.0, 3.0): st.beta(2, 3),
    ("Uniform", 1.0, 3.0): st.uniform(1, 2),
    ("StudentT", 3.0, 0.3, 1.2): st.t(3, 0.3, 1.2),
    ("Laplace", 0.3, 1.2): st.laplace(0.3, 1.2),
    ("Cauchy", 0.3, 1.2): st.cauchy(0.3, 1.2),
    ("Gumbel", 0.0, 0.01): st.gumbel_r(0, 0.01),
    ("HalfNormal", 2.0): st.halfnorm(scale=2),
    ("HalfCauchy", 2.0): st.halfcauchy(scale=2),
}
VALUES = [
    *(0.0, -0.0, 5e-324, 1e-300, 2.2e-16, 0.5, 1.0, -1.0, 2.0, 2.5, 3.0, 17.0, -8.0, 40.0, 1000.0, -1000.0),
    *(1e300, -1e300, np.inf, -np.inf),
]

# Where SciPy's own formula leaves the range of float64.
_OVERFLOWS_IN_SCIPY = {("Laplace", "log_prob"): 500, ("HalfCauchy", "log_prob"): 1e200, ("Pareto", "log_prob"): 1e200}

# Infinite derivatives: of a density that is infinite at 0 or 1, or whose slope there, 1 / x or so, is beyond the range.
_INFINITE = {
    ("Beta", "cdf", "value"): (0.0, 1.0, 5e-324),
    ("Chi2", "cdf", "value"): (5e-324,),
    **{
        (name, "log_prob", "value"): (5e-324,)
        for name in ("Gamma", "Chi2", "Beta", "Weibull", "LogNormal", "InverseGamma")
    },
}
_INFINITE["InverseGamma", "log_prob", "value"] = (5e-324, 1e-300)


def _of(case, dtype=np.float64):
    return getattr(distributions, case[0]), [tensor(np.array(parameter, dtype)) for parameter in case[1:]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", ["cdf", "log_prob"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_scipy(case, function):
    kind, parameters = _of(case)
    limit = _OVERFLOWS_IN_SCIPY.get((case[0], function), np.inf)
    values = np.array([x for x in VALUES if abs(x) < limit])
    expected = getattr(CASES[case], {"cdf": "cdf", "log_prob": "logpdf"}[function])(values)
    if case[0] in {"LogNormal", "Weibull"} and function == "log_prob":  # SciPy rounds x / scale to a subnormal number
        keep = values != 5e-324
        values, expected = values[keep], expected[keep]
    found = getattr(kind(*parameters), function)(values).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-320)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("function", ["cdf", "log_prob"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_finite_value_has_a_finite_gradient(case, function, dtype):
    for x in VALUES:
        kind, parameters = _of(case, dtype)
        value = tensor(np.array(x, dtype))
        with GradManager().attach([*parameters, value]) as gm:
            made = getattr(kind(*parameters), function)(value)
            if not np.isfinite(made.item()):
                continue
            gm.backward(made)
        assert made.dtype == dtype
        assert all(np.isfinite(parameter.grad.item()) for parameter in parameters), (x, parameters)
        slope, infinite = value.grad.item(), _INFINITE.get((case[0], function, "value"), ())
        assert np.isfinite(slope) or (not np.isnan(slope) and value.item() in infinite), x


@pytest.mark.parametrize("function", ["cdf", "log_prob"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_mode_and_second_derivatives_are_finite_inside(case, function):
    kind, _ = _of(case)
    for x in (0.1, 0.5, 0.9) if case[0] == "Beta" else (2.25, 2.5, 2.9):
        points = tuple(np.array(number) for number in (x, *case[1:]))
        _, tangent = functional.jvp(
            lambda *p: getattr(kind(*p[1:]), function)(p[0]), points, tuple(map(np.ones_like, points))
        )
        assert np.isfinite(tangent)
        second = functional.hessian(lambda v: getattr(kind(*case[1:]), function)(v), tensor(x))
        assert np.isfinite(second.item())


LOGITS = (-80.0, -17.0, -1.0, 0.0, 2.0, 17.0, 37.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "options"), [("Bernoulli", {}), ("Binomial", {"total_count": 3}), ("Geometric", {})])
@pytest.mark.parametrize("logits_first", [True, False])
def test_kl_of_logits_and_probabilities_is_that_of_logits(kind, options, logits_first, dtype):
    make = getattr(distributions, kind)
    other = 0.3
    for logit in LOGITS:
        x, p = tensor(np.array(logit, dtype)), tensor(np.array(other, dtype))
        y = tensor(np.log(p.numpy()) - np.log1p(-p.numpy()))
        with GradManager().attach([x, p]) as gm:
            pair = make(logits=x, **options), make(probs=p, **options)
            mixed = kl_divergence(*(pair if logits_first else pair[::-1]))
            gm.backward(mixed)
        slope, x.grad = x.grad.item(), None
        assert np.isfinite(p.grad.item())
        with GradManager().attach(x) as gm:
            pair = make(logits=x, **options), make(logits=y, **options)
            expected = kl_divergence(*(pair if logits_first else pair[::-1]))
            gm.backward(expected)
        near = {"rtol": 3e-6 if dtype is np.float32 else 1e-12, "atol": 3 * np.finfo(dtype).eps}
        np.testing.assert_allclose(mixed.item(), expected.item(), **near)
        np.testing.assert_allclose(slope, x.grad.item(), **near)


@pytest.mark.parametrize("kind", ["Categorical", "OneHotCategorical"])
def test_kl_of_categories_whose_probability_underflows_is_finite(kind):
    make = getattr(distributions, kind)
    weights, logits = tensor([0.2, 0.5, 0.3]), tensor([0.0, -800.0, 1.0])
    with GradManager().attach([weights, logits]) as gm:
        made = kl_divergence(make(probs=weights), make(logits=logits))
        gm.backward(made)
    p, q = weights.numpy(), logits.numpy() - np.logaddexp(0.0, 1.0)
    np.testing.assert_allclose(made.item(), np.sum(p * (np.log(p) - q)), rtol=1e-12)
    np.testing.assert_allclose(logits.grad.numpy(), np.exp(q) - p, rtol=1e-12)
    assert np.isfinite(weights.grad.numpy()).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("Gamma", (1e-3, 2.0)),
        ("Chi2", (2e-3,)),
        ("Beta", (1e-3, 1e-3)),
        ("Beta", (2.0, 1e-3)),
        ("Dirichlet", ([1e-3] * 3,)),
    ],
)
def test_draws_of_small_concentrations_have_a_density(kind, parameters, dtype):
    parameters = [tensor(np.array(parameter, dtype)) for parameter in parameters]
    made = getattr(distributions, kind)(*parameters)
    with GradManager().attach(parameters) as gm:
        drawn = made.rsample(np.random.default_rng(0), 300)
        gm.backward(drawn, np.full(drawn.shape, 1e-3, dtype))
    assert drawn.dtype == dtype
    assert (drawn.numpy() > 0).all()
    assert kind != "Beta" or (drawn.numpy() < 1).all()
    assert np.isfinite(made.log_prob(drawn).numpy()).all()
    assert all(np.isfinite(parameter.grad.numpy()).all() for parameter in parameters)


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix"])
@pytest.mark.parametrize(
    "matrix", [[[1.0, 2.0], [2.0, 1.0]], [[1.0, 1.0], [1.0, 1.0 - 1e-9]], [[0.0, 0.0], [0.0, 1.0]]]
)
def test_a_matrix_that_is_not_positive_definite_is_refused(name, matrix):
    with pytest.raises(ValueError, match=f"MultivariateNormal: {name} must be symmetric and positive definite"):
        distributions.MultivariateNormal(np.zeros(2), **{name: np.array(matrix)})
    with pytest.raises(ValueError, match="at index"):
        distributions.MultivariateNormal(np.zeros(2), **{name: np.array([np.eye(2), matrix])})
