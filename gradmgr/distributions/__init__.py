"""Probability distributions under torch.distributions' names, with random numbers from Generators that you pass.

>>> import numpy
>>> from gradmgr import GradManager, distributions, tensor
>>> rng = numpy.random.default_rng(0)
>>> loc, log_scale = tensor(0.0), tensor(0.0)
>>> with GradManager().attach([loc, log_scale]) as gm:
...     q = distributions.Normal(loc, numpy.exp(log_scale))
...     gm.backward(distributions.kl_divergence(q, distributions.Normal(1.0, 1.0)))
>>> loc.grad.item()
-1.0
"""

from gradmgr._engine.wrong_calls import explain_classes
from gradmgr.distributions import constraints, transforms
from gradmgr.distributions._continuous import Beta, Gamma, Normal, StudentT
from gradmgr.distributions._counts import Binomial, Geometric, Multinomial, NegativeBinomial
from gradmgr.distributions._discrete import Bernoulli, Categorical, OneHotCategorical, Poisson
from gradmgr.distributions._distribution import Distribution
from gradmgr.distributions._kl import kl_divergence
from gradmgr.distributions._location_scale import Cauchy, Gumbel, HalfCauchy, HalfNormal, Laplace, Uniform, VonMises
from gradmgr.distributions._multivariate import Dirichlet, MultivariateNormal
from gradmgr.distributions._positive import Chi2, Exponential, InverseGamma, Pareto, Weibull
from gradmgr.distributions._transformed import Independent, LogNormal, TransformedDistribution
from gradmgr.distributions.transforms import biject_to, transform_to

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "InverseGamma",
    "Laplace",
    "LogNormal",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "Pareto",
    "Poisson",
    "StudentT",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "biject_to",
    "constraints",
    "kl_divergence",
    "transform_to",
    "transforms",
]

explain_classes(globals(), [name for name in __all__ if name != "Distribution"])
