"""Samplers of jax.random beyond those of the goldens: covered, and the same jitted and eager."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_same_bits

import repjax

KEY = jax.random.key(5)
COVARIANCE = np.float32([[2, 0.5], [0.5, 1]])

SAMPLERS = {
    "loggamma": lambda key: jax.random.loggamma(key, jnp.float32([0.3, 1, 2.5]), (4, 3)),
    "dirichlet": lambda key: jax.random.dirichlet(key, jnp.float32([0.3, 1, 2.5]), (4,)),
    "orthogonal": lambda key: jax.random.orthogonal(key, 3),
    "gaussian": lambda key: jax.random.multivariate_normal(
        key, jnp.zeros(2), COVARIANCE, (4,), method="cholesky"
    ),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(4.0), shape=(9,)),
    "choice": lambda key: jax.random.choice(key, 9, (9,), p=jnp.arange(9.0) / 36),
}
DIGESTS = {
    "loggamma": "sha256:bcf0659af089490c85610756854c98642ce8830960de604fdd3c3fe54c041037",
    "dirichlet": "sha256:914349ef35f3663f327b296617dbe7c1181d540abd3cd9306527625a0500ce95",
    "orthogonal": "sha256:1bb4b0f54a1daef961b0c3a2a4ec3e685afedd8796050d354465c97edcc7edc4",
    "gaussian": "sha256:aff4b8b95bba33a095dbed0357136437b0971abbb395297a51a77b10b8b053e6",
    "categorical": "sha256:fa80694f460b3a098fc6bf0c2627d1672f04418ab6476e1dd4adfd404f195211",
    "choice": "sha256:fa9754d603e8d6db7a63ecac812afb34db496348abac7c258962fe835917a077",
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name):
    samples = repjax.reproducible(SAMPLERS[name])(KEY)
    with repjax.enabled():
        assert_same_bits(SAMPLERS[name](KEY), samples)
    assert np.isfinite(samples).all()
    assert repjax.digest(samples) == DIGESTS[name]


def test_keys_of_another_generator_are_refused():
    key = jax.random.key(5, impl="rbg")
    with pytest.raises(repjax.RefusedError, match="expected a threefry key"):
        repjax.reproducible(SAMPLERS["loggamma"])(key)
