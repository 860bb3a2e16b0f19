"""A search over all distributions, at the ends of the range of numbers, for values and derivatives that are not finite.

Parameters are everyday ones and probabilities of 0 and 1; values go from 0 over the smallest numbers to the largest and
infinity. Nowhere is a value NaN, nor a derivative of a finite value; infinite derivatives, and those of infinite
derivatives, stand where an argument is 0 or a number near it whose inverse overflows, or a share is 1. What differs is
in tables, with its reason.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import scipy.stats

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, distributions, functional, tensor
from gradmgr.distributions import transforms

d = distributions
DTYPES = np.float64, np.float32

SCALES, SHAPES, LOCS = [0.01, 1.0, 1000.0], [1e-3, 0.5, 1.0, 2.0, 17.0, 1000.0], [-17.0, 0.0, 1.0]
LOGITS = [-1000.0, -104.0, -37.0, -17.0, 0.0, 0.5, 17.0, 37.0, 104.0, 1000.0]
NUMBERS = "tiny", "eps", 0.01, 1.0, 17.0, 40.0, 1000.0, "max", np.inf
POSITIVE = [0.0, "least", *NUMBERS]
REAL = [*POSITIVE, *["-" + x if isinstance(x, str) else -x for x in POSITIVE]]
SHARES = [0.0, "least", "tiny", "eps", 0.01, 0.5, "below 1", 1.0]
SOME_SHARES = [0.0, "eps", 0.01, 0.5, "below 1", 1.0]
COUNTS = [0.0, 1.0, 5.0, 17.0, 1000.0, 0.5, -1.0, np.inf]
UP_TO_5 = [0.0, 1.0, 4.0, 5.0, 6.0, 0.5]
NORMAL = [[-1.0, 0.0], [0.5, 2.0]]


def transformed(transform):
    return lambda loc, scale: d.TransformedDistribution(d.Normal(loc, scale), transform)


def pair(make, given):
    return lambda a, b: make(**{given: gnp.stack([a, b], -1)})


# Of each form of each distribution: how it is made of parameters, what they are, values, and the same of SciPy.
FORMS = {
    "Normal": (d.Normal, [LOCS, SCALES], REAL, scipy.stats.norm),
    "Laplace": (d.Laplace, [LOCS, SCALES], REAL, scipy.stats.laplace),
    "Cauchy": (d.Cauchy, [LOCS, SCALES], REAL, scipy.stats.cauchy),
    "Gumbel": (d.Gumbel, [LOCS, SCALES], REAL, scipy.stats.gumbel_r),
    "StudentT": (d.StudentT, [[0.5, 1.0, 3.0, 1e7], LOCS[1:], SCALES], REAL, scipy.stats.t),
    "Uniform": (d.Uniform, [[-17.0, 0.0], [1.0, 17.0]], REAL, lambda a, b: scipy.stats.uniform(a, b - a)),
    "VonMises": (d.VonMises, [LOCS, [0.01, 1.0, 1000.0]], REAL, None),
    "HalfNormal": (d.HalfNormal, [SCALES], REAL, lambda s: scipy.stats.halfnorm(0, s)),
    "HalfCauchy": (d.HalfCauchy, [SCALES], REAL, lambda s: scipy.stats.halfcauchy(0, s)),
    "Exponential": (d.Exponential, [SCALES], REAL, lambda r: scipy.stats.expon(0, 1 / r)),
    "Gamma": (d.Gamma, [SHAPES, SCALES], REAL, lambda a, r: scipy.stats.gamma(a, scale=1 / r)),
    "Chi2": (d.Chi2, [[*SHAPES, 4.0]], REAL, scipy.stats.chi2),
    "InverseGamma": (d.InverseGamma, [SHAPES, SCALES], REAL, lambda a, r: scipy.stats.invgamma(a, scale=r)),
    "Weibull": (d.Weibull, [SCALES, SHAPES], REAL, lambda s, k: scipy.stats.weibull_min(k, scale=s)),
    "Pareto": (d.Pareto, [SCALES, SHAPES[1:]], REAL, lambda s, a: scipy.stats.pareto(a, scale=s)),
    "Beta": (d.Beta, [SHAPES, SHAPES], [*SHARES, -1.0, 2.0], scipy.stats.beta),
    "LogNormal": (d.LogNormal, [LOCS, [0.01, 1.0, 17.0]], REAL, lambda m, s: scipy.stats.lognorm(s, 0, np.exp(m))),
    "Poisson": (d.Poisson, [[0.0, *SCALES]], COUNTS, scipy.stats.poisson),
    "Bernoulli(probs)": (lambda p: d.Bernoulli(probs=p), [SHARES], [0.0, 1.0, 0.5], scipy.stats.bernoulli),
    "Bernoulli(logits)": (lambda x: d.Bernoulli(logits=x), [LOGITS], [0.0, 1.0, 0.5], None),
    "Geometric(probs)": (lambda p: d.Geometric(probs=p), [SHARES[2:]], COUNTS, lambda p: scipy.stats.geom(p, -1)),
    "Geometric(logits)": (lambda x: d.Geometric(logits=x), [LOGITS], COUNTS, None),
    "Binomial(probs)": (lambda p: d.Binomial(5, probs=p), [SHARES], UP_TO_5, lambda p: scipy.stats.binom(5, p)),
    "Binomial(logits)": (lambda x: d.Binomial(5, logits=x), [LOGITS], UP_TO_5, None),
    "Binomial(0, probs)": (lambda p: d.Binomial(0, probs=p), [SHARES], UP_TO_5[:2], None),
    "NegativeBinomial(probs)": (lambda n, p: d.NegativeBinomial(n, probs=p), [SHAPES, SHARES[:-1]], COUNTS, None),
    "NegativeBinomial(logits)": (lambda n, x: d.NegativeBinomial(n, logits=x), [SHAPES, LOGITS], COUNTS, None),
    "Categorical(probs)": (pair(d.Categorical, "probs"), [SOME_SHARES, [0.5, 1.0]], [0.0, 1.0, 2.0], None),
    "Categorical(logits)": (pair(d.Categorical, "logits"), [[-np.inf, *LOGITS], [0.0, 1.0]], [0.0, 1.0, 2.0], None),
    "sigmoid of Normal": (transformed(transforms.SigmoidTransform()), NORMAL, [*SHARES, -1.0, 2.0, np.inf], None),
    "tanh of Normal": (transformed(transforms.TanhTransform()), NORMAL, REAL, None),
    "softplus of Normal": (transformed(transforms.SoftplusTransform()), NORMAL, REAL, None),
    "exp of affine of Normal": (
        transformed([transforms.AffineTransform(0.5, 2.0), transforms.ExpTransform()]),
        NORMAL,
        REAL,
        lambda m, s: scipy.stats.lognorm(2 * s, 0, np.exp(0.5 + 2 * m)),
    ),
}
VECTORS = {  # forms of those whose values have axes
    "OneHotCategorical(probs)": (pair(d.OneHotCategorical, "probs"), [SOME_SHARES, [0.5, 1.0]], [[0, 1], [1, 0]]),
    "OneHotCategorical(logits)": (pair(d.OneHotCategorical, "logits"), [[-np.inf, *LOGITS], [0.0]], [[0, 1], [1, 0]]),
    "Multinomial(probs)": (
        pair(lambda **given: d.Multinomial(3, **given), "probs"),
        [SOME_SHARES, [0.5, 1.0]],
        [[0, 3], [1, 2], [3, 0]],
    ),
    "Multinomial(logits)": (
        pair(lambda **given: d.Multinomial(3, **given), "logits"),
        [[-np.inf, *LOGITS], [0.0]],
        [[0, 3], [1, 2], [3, 0]],
    ),
    "Dirichlet": (pair(d.Dirichlet, "concentration"), [SHAPES, SHAPES], [[0, 1], [1, 0], [0.5, 0.5]]),
    "Independent": (
        lambda loc, scale: d.Independent(d.Normal(gnp.stack([loc, -loc], -1), scale[:, None]), 1),
        [LOCS, SCALES],
        [[0, 0], [1e3, 1]],
    ),
    "MultivariateNormal": (
        lambda loc, scale: d.MultivariateNormal(
            gnp.stack([loc, -loc], -1), scale_tril=scale[:, None, None] * np.array([[1.0, 0.0], [0.5, 2.0]])
        ),
        [LOCS, SCALES],
        [[0, 0], [1e3, 1]],
    ),
}


def test_the_search_covers_every_distribution():
    classes = {name for name in distributions.__all__ if isinstance(getattr(distributions, name), type)}
    made = {type(make(*arguments(grids, np.float64))).__name__ for make, grids, *_ in (FORMS | VECTORS).values()}
    assert made == classes - {"Distribution"}


def number(x, dtype):
    if not isinstance(x, str):
        return dtype(x)
    info = np.finfo(dtype)
    named = {"least": info.smallest_subnormal, "below 1": dtype(1) - info.epsneg, "max": info.max}
    named |= {"tiny": info.tiny, "eps": info.eps}
    return -named[x[1:]] if x[0] == "-" else named[x]


def arguments(grids, dtype):
    """Return the points of a grid, an array for each of its axes."""
    columns = [[number(x, dtype) for x in grid] for grid in grids]
    return [np.array(column, dtype) for column in zip(*itertools.product(*columns), strict=True)]


def derivatives(function, given):
    """Return the value, then first and second derivatives by name, each an array of all points."""
    leaves, everything = [tensor(a) for a in given], {"materialize_grads": True, "allow_unused": True}
    with GradManager().attach(leaves):
        value = function(*leaves)
        if not (isinstance(value, Tensor) and value.requires_grad):
            return np.asarray(value), {}, {}
        slopes = gradmgr.grad(gnp.sum(value), leaves, create_graph=True, **everything)
        of_slopes = [gradmgr.grad(gnp.sum(slope), leaves, retain_graph=True, **everything) for slope in slopes]
        first = {f"reverse {k}": slope.detach().numpy() for k, slope in enumerate(slopes)}
    second = {f"reverse {i} {k}": h.numpy() for i, row in enumerate(of_slopes) for k, h in enumerate(row)}
    for k, a in enumerate(given):

        def of_one(x, k=k):
            return function(*given[:k], x, *given[k + 1 :])

        if isinstance(of_one(tensor(a)), Tensor):
            first[f"forward {k}"] = functional.jvp(of_one, (a,), (np.ones_like(a),))[1]
            slope = functional.grad(lambda x, of_one=of_one: gnp.sum(of_one(x)))
            second[f"forward of reverse {k}"] = functional.jvp(slope, (a,), (np.ones_like(a),))[1]
    return np.asarray(value.detach().numpy()), *({k: np.asarray(a) for k, a in of.items()} for of in (first, second))


def at_edge(given, value):
    """Return where an argument is 0 or almost, so that its inverse overflows, or a share of 1; where value is."""
    least, eps = np.finfo(given[0].dtype).tiny * 2, np.finfo(given[0].dtype).eps
    return np.any([abs(a) <= least for a in (*given, value)] + [abs(a - 1) <= eps for a in given], axis=0)


def findings(function, given, name):
    """Return what is not finite and should be, as a name and a kind, with the first point of each."""
    value, first, second = derivatives(function, given)
    value = np.broadcast_to(value, given[0].shape)
    is_number, is_finite, edge = ~np.any(np.isnan(given), axis=0), np.isfinite(value), at_edge(given, value)
    far = edge | np.any([abs(a) > 0.1 * np.finfo(a.dtype).max for a in (*given, value)], axis=0)
    found = {
        "value": is_number & np.isnan(value),
        "first": _any(~np.isfinite(a) & is_finite & ~edge for a in first.values()),
        "first, NaN at an edge": _any(np.isnan(a) & is_finite & edge for a in first.values()),
        "second": _any(~np.isfinite(a) & is_finite & ~far for a in second.values()),
    }
    return {(name, what): [a[bad][0].item() for a in given] for what, bad in found.items() if bad.any()}


def _any(conditions):
    return sum(conditions, np.False_) > 0


EDGE = "the true slope overflows or is infinite there, and is a difference of infinite terms, or 0 times one"
SQUARE = "the square of the density overflows"
OF_NO_SHARE = "the slope by a share of 0 is infinite, and a tangent of 0 times it NaN"
NO_MEAN = "there is none for such a df"
KNOWN = {  # what is found, with its reason
    ("Cauchy.mean", "value"): "there is none",
    ("StudentT.mean", "value"): NO_MEAN,
    ("StudentT.variance", "value"): NO_MEAN,
    ("StudentT.stddev", "value"): NO_MEAN,
    ("VonMises.log_prob", "value"): "an infinite angle is none",
    ("Beta.icdf", "value"): "scipy.special.betaincinv finds none for numbers next to 0",
    ("StudentT.icdf", "first, NaN at an edge"): EDGE,
    ("InverseGamma.log_prob", "first, NaN at an edge"): EDGE,
    ("InverseGamma.icdf", "first, NaN at an edge"): EDGE,
    ("LogNormal.log_prob", "first, NaN at an edge"): EDGE,
    ("LogNormal.icdf", "first, NaN at an edge"): EDGE,
    ("Binomial(probs).entropy", "first, NaN at an edge"): EDGE,
    ("Categorical(probs).entropy", "first, NaN at an edge"): OF_NO_SHARE,
    ("sigmoid of Normal.log_prob", "first, NaN at an edge"): EDGE,
    ("softplus of Normal.log_prob", "first, NaN at an edge"): EDGE,
    ("exp of affine of Normal.log_prob", "first, NaN at an edge"): EDGE,
    ("Gamma.icdf", "second"): SQUARE,
    ("Chi2.icdf", "second"): SQUARE,
    ("InverseGamma.icdf", "first"): SQUARE,
    ("InverseGamma.icdf", "second"): SQUARE,
    ("Beta.icdf", "second"): SQUARE,
    ("OneHotCategorical(probs).entropy", "first, NaN at an edge"): OF_NO_SHARE,
    ("Multinomial(probs).entropy", "first, NaN at an edge"): OF_NO_SHARE,
}


def search(candidates, known):
    """Assert that functions of arguments, by name, have the findings that are known, and no others."""
    found = {}
    with np.errstate(all="ignore"):
        for name, function, given in candidates:
            try:
                found |= findings(function, given, name)
            except NotImplementedError:
                continue
    unknown = {key: at for key, at in found.items() if key not in known}
    assert not unknown, unknown
    assert known <= set(found), "rows of the table that are no longer true"


@pytest.mark.parametrize("name", FORMS)
def test_values_and_derivatives_are_numbers(name):
    make, grids, values, _ = FORMS[name]
    candidates = []
    for dtype in DTYPES:
        candidates += moments(name, make, grids, dtype)
        for method in ("log_prob", "cdf", "icdf"):
            given = arguments([SHARES if method == "icdf" else values, *grids], dtype)
            candidates.append((f"{name}.{method}", lambda x, *p, method=method: getattr(make(*p), method)(x), given))
    search(candidates, {key for key in KNOWN if key[0].rpartition(".")[0] == name})


def moments(name, make, grids, dtype):
    for method in ("entropy", "mean", "variance", "stddev"):

        def function(*p, method=method):
            found = getattr(make(*p), method)
            return found() if callable(found) else gnp.sum(found, axis=tuple(range(1, found.ndim)))

        yield f"{name}.{method}", function, arguments(grids, dtype)


@pytest.mark.parametrize("name", FORMS)
def test_values_and_slopes_in_float16_are_numbers(name):
    """Of parameters near 1: of others much is beyond the numbers of float16."""
    make, grids, values, _ = FORMS[name]
    grids = [[x for x in grid if isinstance(x, str) or x in (0, -1) or 0.5 <= x <= 2] for grid in grids]
    values = [x for x in values if isinstance(x, str) or abs(x) != 1000]
    found = {}
    with np.errstate(all="ignore"):
        for method in ("log_prob", "cdf"):
            try:
                function = lambda x, *p, method=method: getattr(make(*p), method)(x)
                found |= findings(function, arguments([values, *grids], np.float16), f"{name}.{method}")
            except NotImplementedError:
                continue
    unknown = {key: at for key, at in found.items() if key[1] in ("value", "first") and key not in KNOWN}
    assert not unknown, unknown


@pytest.mark.parametrize("name", VECTORS)
def test_values_and_derivatives_of_vectors_are_numbers(name):
    make, grids, values = VECTORS[name]
    candidates = []
    for dtype in DTYPES:
        given = arguments(grids, dtype)
        candidates += moments(name, make, grids, dtype)
        for value in np.array(values, dtype):
            candidates.append((f"{name}.log_prob", lambda *p, value=value: make(*p).log_prob(value), given))
    search(candidates, {key for key in KNOWN if key[0].rpartition(".")[0] == name})


KNOWN_OF_DIVERGENCES = {
    ("Gamma, Gumbel", "first, NaN at an edge"): EDGE,
    ("Geometric(probs), Geometric(probs)", "first, NaN at an edge"): "the mean count overflows",
    ("Geometric(probs), Geometric(logits)", "first, NaN at an edge"): "the mean count overflows",
    ("Geometric(logits), Geometric(probs)", "value"): "the mean count overflows",
    ("Binomial(0, probs), Binomial(0, probs)", "first, NaN at an edge"): "no trial, of an infinite divergence",
    **{
        (f"{name}(probs), {name}({given})", "first, NaN at an edge"): OF_NO_SHARE
        for name in ("Categorical", "OneHotCategorical")
        for given in ("probs", "logits")
    },
}


def test_divergences_and_their_derivatives_are_numbers():
    forms = {name: form[:2] for name, form in (FORMS | VECTORS).items()}
    candidates = []
    for (name, (make, grids)), (other, (make_other, other_grids)) in itertools.product(forms.items(), forms.items()):

        def function(*given, make=make, make_other=make_other, grids=grids):
            return distributions.kl_divergence(make(*given[: len(grids)]), make_other(*given[len(grids) :]))

        both = [*grids, *other_grids]
        candidates += [(f"{name}, {other}", function, arguments(both, dtype)) for dtype in DTYPES]
    search(candidates, set(KNOWN_OF_DIVERGENCES))


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form[3]])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # SciPy's
def test_values_are_finite_where_scipys_are(name):
    make, grids, values, of_scipy = FORMS[name]
    methods = {"log_prob": "logpdf", "cdf": "cdf", "icdf": "ppf", "mean": "mean", "variance": "var"}
    for method, their in methods.items():
        has_value = method in ("log_prob", "cdf", "icdf")
        given = arguments([SHARES if method == "icdf" else values] * has_value + grids, np.float64)
        x, parameters = given[:has_value], given[has_value:]
        try:
            found = getattr(make(*parameters), method)
            found = np.broadcast_to(found(*x) if callable(found) else found, given[0].shape)
        except NotImplementedError:
            continue
        if (name, method) in FINITE_IN_SCIPY:
            continue
        reference = of_scipy(*parameters)
        their = "logpmf" if method == "log_prob" and not hasattr(reference.dist, "pdf") else their
        expected = np.broadcast_to(getattr(reference, their)(*x), given[0].shape)
        lost = np.isfinite(expected) & ~np.isfinite(found)
        if has_value:  # where a value over a scale rounds to -0, SciPy counts it as 0
            lost &= x[0] != -np.finfo(np.float64).smallest_subnormal
        assert not lost.any(), (method, [a[lost][0].item() for a in given])


FINITE_IN_SCIPY = {
    ("Beta", "icdf"): "scipy.special.betaincinv has no value for numbers next to 0, scipy.stats has",
    ("StudentT", "icdf"): "which is -4.7e153 there, for the quantile -1e646",
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_slope_of_a_cdf_is_the_density(name, dtype):
    """From within the support at its bounds; in float32 to what its numbers resolve."""
    make, grids, values, _ = FORMS[name]
    given = arguments([[*values, 0.3], *grids], dtype)
    x = tensor(given[0])
    with np.errstate(all="ignore"), GradManager().attach(x) as gm:
        try:
            gm.backward(gnp.sum(make(*given[1:]).cdf(x)))
        except NotImplementedError:
            return
        density = np.exp(make(*given[1:]).log_prob(given[0]))
    slope, edge = x.grad.numpy(), at_edge([given[0]], density) & (given[0] != 0)
    large = given[1] > 1e6 if name == "StudentT" else np.False_  # SciPy's float32 betainc has errors there
    kept = ~edge & ~(large & (dtype is np.float32))
    np.testing.assert_allclose(slope[kept], density[kept], rtol=1e-7 if dtype is np.float64 else 2e-3, atol=1e-30)


@pytest.mark.parametrize("logit", [-104.0, -40.0, -17.0, 0.5, 17.0, 37.0, 40.0, 104.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", [0.25, 1e-3])
def test_divergences_of_logits_and_probabilities_are_those_of_the_logarithms(logit, dtype, other):
    """Of p = expit(x): KL(p, q) has by x the slope p (1 - p) (x - logit(q)), and KL(q, p) p - q."""
    share, complement = scipy.special.expit(logit), scipy.special.expit(-logit)
    logs = np.array(scipy.special.log_expit([logit, -logit])), np.log([other, 1 - other])
    of_logit = np.dot([share, complement], logs[0] - logs[1]), share * complement * (logit - scipy.special.logit(other))
    of_share = np.dot([other, 1 - other], logs[1] - logs[0]), share - other
    by_other = -share / other + complement / (1 - other), scipy.special.logit(other) - logit
    eps = float(np.finfo(dtype).eps)
    for make, count, least in (
        (d.Bernoulli, 1, 0.0),
        (lambda **given: d.Binomial(3, **given), 3, 0.0),
        (lambda **given: d.Categorical(**{k: pair_of(k, x) for k, x in given.items()}), 1, eps),
    ):
        for step, expected, slope, by_share in ((1, *of_logit, by_other[0]), (-1, *of_share, by_other[1])):
            x, q = tensor(dtype(logit)), tensor(dtype(other))
            with GradManager().attach([x, q]) as gm:
                divergence = distributions.kl_divergence(*(make(logits=x), make(probs=q))[::step])
                gm.backward(divergence)
            found = np.array([divergence.item(), x.grad.item(), q.grad.item()])
            wanted = count * np.array([expected, slope, by_share])
            np.testing.assert_allclose(found, wanted, rtol=max(100 * eps, 1e-8), atol=max(4 * least, 1e-30))


@pytest.mark.parametrize("logit", [-60.0, -17.0, 17.0, 60.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_divergences_of_geometric_distributions_are_those_of_one_trial_times_the_mean_of_trials(logit, dtype):
    share, complement, other = scipy.special.expit(logit), scipy.special.expit(-logit), 0.25
    ratio = scipy.special.log_expit(logit) - np.log(other), scipy.special.log_expit(-logit) - np.log1p(-other)
    for step, expected in (
        (1, (share * ratio[0] + complement * ratio[1]) / share),
        (-1, -(other * ratio[0] + (1 - other) * ratio[1]) / other),
    ):
        x, q = tensor(dtype(logit)), tensor(dtype(other))
        with GradManager().attach([x, q]) as gm:
            divergence = distributions.kl_divergence(*(d.Geometric(logits=x), d.Geometric(probs=q))[::step])
            gm.backward(divergence)
        assert divergence.item() == pytest.approx(expected, rel=100 * float(np.finfo(dtype).eps))
        assert np.isfinite([x.grad.item(), q.grad.item()]).all()


def pair_of(given, x):
    return gnp.stack([x, 1 - x]) if given == "probs" else gnp.stack([x, x * 0])


@pytest.mark.parametrize(
    ("made", "x", "expected"),
    [
        (d.Weibull(2.0, 1.0), 0.0, -np.log(2)),
        (d.Weibull(2.0, 0.5), 0.0, np.inf),
        (d.Weibull(2.0, 2.0), 0.0, -np.inf),
        (d.Gamma(1.0, 3.0), 0.0, np.log(3)),
        (d.Gamma(0.5, 3.0), 0.0, np.inf),
        (d.Gamma(2.0, 3.0), 0.0, -np.inf),
        (d.Gamma(2.0, 3.0), np.inf, -np.inf),
        (d.Chi2(2.0), 0.0, -np.log(2)),
        (d.Exponential(3.0), 0.0, np.log(3)),
        (d.Beta(1.0, 1.0), [0.0, 1.0], [0.0, 0.0]),
        (d.Beta(0.5, 2.0), [0.0, 1.0], [np.inf, -np.inf]),
        (d.Uniform(-1.0, 3.0), [-1.0, 3.0], [-np.log(4)] * 2),
        (d.Pareto(2.0, 3.0), 2.0, np.log(1.5)),
        (d.HalfNormal(2.0), 0.0, np.log(2 / np.pi) / 2 - np.log(2)),
        (d.HalfCauchy(2.0), 0.0, -np.log(np.pi)),
        (d.LogNormal(0.0, 1.0), [0.0, np.inf], [-np.inf] * 2),
        (d.InverseGamma(2.0, 1.0), [0.0, np.inf], [-np.inf] * 2),
        (d.Gumbel(0.0, 1.0), [-np.inf, np.inf], [-np.inf] * 2),
        (d.Dirichlet([1.0, 1.0, 1.0]), [[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]], [np.log(2)] * 2),
        (d.StudentT(1.0), 1e200, -np.log(np.pi) - 400 * np.log(10)),
        (d.Poisson(2.0), np.inf, -np.inf),
    ],
    ids=repr,
)
def test_densities_at_the_ends_of_the_support(made, x, expected):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(made.log_prob(np.array(x)), expected, rtol=1e-14, atol=1e-14)


def test_derivatives_of_cdfs_at_bounds_are_those_from_within():
    for made, bound, slope, bend in (
        (lambda x: d.Gamma(2.0, 3.0).cdf(x), 0.0, 0.0, 9.0),
        (lambda x: d.Chi2(4.0).cdf(x), 0.0, 0.0, 0.25),
        (lambda x: d.Beta(2.0, 3.0).cdf(x), 0.0, 0.0, 12.0),
        (lambda x: d.Exponential(3.0).cdf(x), 0.0, 3.0, -9.0),
        (lambda x: d.Weibull(1.0, 2.0).cdf(x), 0.0, 0.0, 2.0),
        (lambda x: d.Pareto(2.0, 3.0).cdf(x), 2.0, 1.5, -3.0),
        (lambda x: d.Laplace(0.0, 2.0).cdf(x), 0.0, 0.25, -0.125),
    ):
        assert functional.grad(made)(bound) == pytest.approx(slope)
        assert functional.grad(functional.grad(made))(bound) == pytest.approx(bend)
    for made in (lambda r: d.Gamma(0.5, r).cdf(0.0), lambda s: d.Weibull(s, 0.5).cdf(0.0)):
        assert functional.grad(made)(3.0) == 0


def test_the_bend_of_a_divergence_of_equal_laplace_distributions():
    def divergence(loc):
        return distributions.kl_divergence(d.Laplace(loc, 2.0), d.Laplace(1.0, 3.0))

    assert functional.grad(divergence)(1.0) == 0
    assert functional.grad(functional.grad(divergence))(1.0) == pytest.approx(1 / 6)


def test_quantiles_near_1_are_those_near_0():
    q = np.array([2.0**-50, 1e-3, 0.25])
    np.testing.assert_allclose(d.Cauchy(0.0, 2.0).icdf(1 - q), 2 / np.tan(np.pi * (1 - (1 - q))), rtol=1e-14)
    np.testing.assert_allclose(d.HalfCauchy(2.0).icdf(1 - q), 2 / np.tan(np.pi / 2 * (1 - (1 - q))), rtol=1e-14)
    with np.errstate(divide="ignore"):
        assert np.isposinf([d.Cauchy(0.0, 2.0).icdf(1.0), d.HalfCauchy(2.0).icdf(1.0)]).all()
    # t = -q^-2 / (2 ...) for df = 1/2: by the series of its tail, which ends at 1e154 if computed by a beta variable.
    t = d.StudentT(0.5).icdf(np.array([1e-80, 1e-100]))
    np.testing.assert_allclose(d.StudentT(0.5).cdf(t), [1e-80, 1e-100], rtol=1e-10)


@pytest.mark.parametrize("made", ["logits", "probs"])
def test_moments_of_nearly_sure_events_are_not_rounded_to_0(made):
    x = 40.0 if made == "logits" else scipy.special.expit(-40.0)
    share = scipy.special.expit(-40.0)
    for found in (d.Bernoulli(**{made: x}), d.Binomial(1, **{made: x})):
        assert found.variance == pytest.approx(share, rel=1e-12)
        assert found.stddev == pytest.approx(share**0.5, rel=1e-12)
    assert d.Geometric(logits=40.0).mean == pytest.approx(np.exp(-40), rel=1e-12)
    assert d.Geometric(logits=-1000.0).entropy() == pytest.approx(1001, rel=1e-12)
    for make in (lambda p: d.Bernoulli(probs=p), lambda p: d.Binomial(0, probs=p)):
        assert functional.grad(lambda p, make=make: make(p).stddev)(0.0) == 0


DRAWN = {
    "Gamma": (d.Gamma, [1e-3, 1.0]),
    "Chi2": (d.Chi2, [1e-3]),
    "Beta": (d.Beta, [1e-3, 2e-3]),
    "Dirichlet": (d.Dirichlet, [[1e-3, 1e-3, 2e-3]]),
    "InverseGamma": (d.InverseGamma, [1e-3, 1.0]),
    "Weibull": (d.Weibull, [2.0, 1e-3]),
    "Pareto": (d.Pareto, [2.0, 1e-3]),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", DRAWN)
def test_draws_of_small_concentrations_have_finite_logarithms_and_derivatives(name, dtype):
    make, parameters = DRAWN[name]
    if dtype is np.float16:  # where derivatives of logarithms by 1e-3 overflow, and less is needed for a value of 0
        parameters = [np.where(np.array(p) < 1, 0.05, p) for p in parameters]
    given = [tensor(np.array(p).astype(dtype)) for p in parameters]
    with GradManager().attach(given) as gm:
        drawn = make(*given).rsample(np.random.default_rng(0), 400)
        gm.backward(gnp.mean(gnp.log(drawn)))
    values = drawn.numpy().astype(np.float64)
    assert drawn.dtype == dtype
    assert (values > 0).all()
    assert np.isfinite(values).all()
    assert name not in ("Beta", "Dirichlet") or (values < 1).all()
    assert all(np.isfinite(t.grad.numpy().astype(np.float64)).all() for t in given)
    slopes = functional.grad(lambda x: gnp.sum(gnp.log(x)))(drawn.detach())
    assert np.isfinite(np.asarray(slopes).astype(np.float64)).all()
    density = make(*[t.detach() for t in given]).log_prob(drawn.detach())
    assert np.isfinite(density.numpy().astype(np.float64)).all()


def test_draws_move_no_value_that_is_a_normal_number():
    expected = np.random.default_rng(3)
    shape = expected.standard_gamma(3.5, 1000)  # one of a + 1, and an exponential number, as Marsaglia and Tsang
    expected = shape * np.exp(-expected.standard_exponential(1000) / 2.5) / 4.0
    found = d.Gamma(2.5, 4.0).sample(np.random.default_rng(3), 1000)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("given", ["covariance_matrix", "precision_matrix"])
def test_a_matrix_that_is_not_positive_definite_is_refused_at_once(given):
    bad = np.array([[1.0, 2.0], [2.0, 1.0]])
    for matrix, said in (
        (bad, "must be positive definite; found a least eigenvalue of -1. A small multiple"),
        (bad.astype(np.float32), "found a least eigenvalue of -1"),
        (np.zeros((2, 2)), "found a least eigenvalue of 0"),
        (np.stack([np.eye(2), bad]), r"found a least eigenvalue of -1 in the matrix at index \(1,\)"),
        (tensor(bad), "found a least eigenvalue of -1"),
    ):
        with pytest.raises(ValueError, match=f"MultivariateNormal: {given} .*{said}"):
            d.MultivariateNormal(np.zeros(2), **{given: matrix})
    assert d.MultivariateNormal(np.zeros(2), **{given: bad, "validate_args": False}).event_shape == (2,)
    assert distributions.constraints.positive_definite.check(np.stack([np.eye(2), bad])).tolist() == [True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_of_transforms_are_right_wherever_numbers_are_finite(dtype):
    x = np.array([-1000.0, -40.0, -17.0, -1e-30, 0.0, 1e-30, 17.0, 40.0, 1000.0], dtype)
    wide = np.float64(x)
    expected = {
        transforms.ExpTransform(): wide,
        transforms.SigmoidTransform(): scipy.special.log_expit(wide) + scipy.special.log_expit(-wide),
        transforms.TanhTransform(): -2 * np.logaddexp(wide, -wide) + 2 * np.log(2),
        transforms.SoftplusTransform(): scipy.special.log_expit(wide),
        transforms.AffineTransform(3.0, -2.0): np.full(9, np.log(2)),
    }
    for transform, logarithm in expected.items():

        def slope(x, transform=transform):
            return transform.log_abs_det_jacobian(x, transform(x))

        with np.errstate(all="ignore"):
            value, first, second = derivatives(slope, [x])
        np.testing.assert_allclose(value, logarithm, rtol=1e-5, atol=1e-6)
        assert all(np.isfinite(a).all() for a in (*first.values(), *second.values())), transform
    assert transforms.AffineTransform(0.0, 2.0).log_abs_det_jacobian(np.inf, np.inf) == np.log(2)
