"""A call of every sampler of jax.random and every initializer of Flax."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import random

SHAPE = (5, 4)
_MEAN, _COVARIANCE = np.float32([0.5, -1]), np.float32([[2, 0.5], [0.5, 1]])
_PARAMETER = np.float32([0.3, 0.7, 1.5, 4])
_LOGITS = np.float32([[0.1, 0.5, -0.3, 1], [2, 0.25, 0, -1]])

SAMPLERS = {
    "ball": lambda key: random.ball(key, 3, shape=SHAPE),
    "bernoulli": lambda key: random.bernoulli(key, 0.3, SHAPE),
    "beta": lambda key: random.beta(key, 0.7, _PARAMETER),
    "binomial": lambda key: random.binomial(key, 20.0, np.float32([0, 1e-39, 0.1, 0.3, 0.8, 1])),
    "bits": lambda key: random.bits(key, SHAPE),
    "categorical": lambda key: random.categorical(key, _LOGITS, shape=(3, 2)),
    "cauchy": lambda key: random.cauchy(key, SHAPE),
    "chisquare": lambda key: random.chisquare(key, 2 * _PARAMETER),
    "choice": lambda key: random.choice(key, _PARAMETER, (3,), False, _PARAMETER / 6.5),
    "clone": lambda key: random.normal(random.clone(key)),
    "dirichlet": lambda key: random.dirichlet(key, _PARAMETER),
    "double_sided_maxwell": lambda key: random.double_sided_maxwell(key, 0.5, 1.5, SHAPE),
    "exponential": lambda key: random.exponential(key, SHAPE),
    "f": lambda key: random.f(key, 3.0, 2 * _PARAMETER),
    "fold_in": lambda key: random.normal(random.fold_in(key, 3)),
    "gamma": lambda key: random.gamma(key, _PARAMETER),
    "generalized_normal": lambda key: random.generalized_normal(key, 1.5, SHAPE),
    "geometric": lambda key: random.geometric(key, 0.3, SHAPE),
    "gumbel": lambda key: random.gumbel(key, SHAPE),
    "laplace": lambda key: random.laplace(key, SHAPE),
    "loggamma": lambda key: random.loggamma(key, _PARAMETER),
    "logistic": lambda key: random.logistic(key, SHAPE),
    "lognormal": lambda key: random.lognormal(key, 0.5, SHAPE),
    "maxwell": lambda key: random.maxwell(key, SHAPE),
    "multinomial": lambda key: random.multinomial(key, 20.0, np.float32([0.1, 0.3, 0.6])),
    "multivariate_normal": lambda key: random.multivariate_normal(key, _MEAN, _COVARIANCE, (3,)),
    "normal": lambda key: random.normal(key, SHAPE),
    "orthogonal": lambda key: random.orthogonal(key, 3),
    "pareto": lambda key: random.pareto(key, 1.5, SHAPE),
    "permutation": lambda key: random.permutation(key, 20),
    "poisson": lambda key: random.poisson(key, np.float32([0.5, 3, 30]), (3,)),
    "rademacher": lambda key: random.rademacher(key, SHAPE),
    "randint": lambda key: random.randint(key, SHAPE, -3, 17),
    "rayleigh": lambda key: random.rayleigh(key, 0.5, SHAPE),
    "split": lambda key: jax.vmap(random.normal)(random.split(key, 3)),
    "t": lambda key: random.t(key, _PARAMETER),
    "triangular": lambda key: random.triangular(key, -1.0, 0.5, 2.0, SHAPE),
    "truncated_normal": lambda key: random.truncated_normal(key, -1.0, 2.0, SHAPE),
    "uniform": lambda key: random.uniform(key, SHAPE, minval=-2.0, maxval=3.0),
    "wald": lambda key: random.wald(key, 1.5, SHAPE),
    "weibull_min": lambda key: random.weibull_min(key, 0.5, 1.5, SHAPE),
    "gamma, derivative": lambda key: jax.grad(lambda a: random.gamma(key, a).sum())(
        jnp.asarray(_PARAMETER)
    ),
    "normal, bfloat16": lambda key: random.normal(key, SHAPE, jnp.bfloat16),
    "uniform, float16": lambda key: random.uniform(key, SHAPE, np.float16),
}
#: About keys and generators.
NO_SAMPLERS = {
    "Key",
    "PRNGKey",
    "default_prng_impl",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "random_gamma_p",
    "wrap_key_data",
}

_initializers = nn.initializers
INITIALIZERS = {
    "constant": _initializers.constant(0.3),
    "delta_orthogonal": _initializers.delta_orthogonal(),
    "normal": _initializers.normal(0.02),
    "variance_scaling, normal": _initializers.variance_scaling(2.0, "fan_in", "normal"),
    "variance_scaling, uniform": _initializers.variance_scaling(2.0, "fan_in", "uniform"),
    "ones": _initializers.ones,
    "orthogonal": _initializers.orthogonal(),
    "truncated_normal": _initializers.truncated_normal(0.02),
    "uniform": _initializers.uniform(0.02),
    "variance_scaling": _initializers.variance_scaling(2.0, "fan_avg", "truncated_normal"),
    "zeros": _initializers.zeros,
}
#: Versions of JAX have different programs for these: 0.12 multiplies the constants first.
REWRITTEN = {"initializers.normal", "initializers.variance_scaling, normal"}
_SHAPES = {"delta_orthogonal": (3, 2, 4)}


def initializer_names() -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(_initializers, callable)
        if not name.startswith("_") and name != "Initializer"
    ]


def initializer(name: str):
    """The initial weights as a function of the key."""
    function = INITIALIZERS[name] if name in INITIALIZERS else getattr(_initializers, name)()
    return lambda key: function(key, _SHAPES.get(name, SHAPE), np.float32)
