"""Samplers of jax.random beyond those of the goldens: covered, and the same jitted and eager."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits

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


# --- other generators -------------------------------------------------------------------

OPERATIONS = {
    "seed": lambda key: jax.random.key(3, impl=jax.random.key_impl(key)),
    "seeds": lambda key: jax.vmap(lambda i: jax.random.key(i, impl=jax.random.key_impl(key)))(
        jnp.arange(4)
    ),
    "split": lambda key: jax.random.split(key, (2, 3)),
    "splits": lambda key: jax.vmap(jax.random.split)(jax.random.split(key, 3)),
    "fold_in": lambda key: jax.random.fold_in(key, 7),
    "fold_ins": lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(3)),
    "moved": lambda key: jnp.stack([key, jax.random.fold_in(key, 1)])[::-1],
    "data": lambda key: jax.random.wrap_key_data(
        jax.random.key_data(key), impl=jax.random.key_impl(key)
    ),
}
BITS = {
    "bits": lambda key: jax.random.bits(key, (5,)),
    "shorts": lambda key: jax.random.bits(key, (5,), np.uint16),
    "a loop": lambda key: jax.lax.scan(
        lambda k, _: (jax.random.fold_in(k, 1), jax.random.randint(k, (2,), 0, 99)),
        key,
        length=3,
    ),
}


def _ways(function, key):
    """What the function gives, by the three ways in: the results, or the reasons to refuse."""

    def switched(key):
        with repjax.enabled():
            return function(key)

    def switched_jit(key):
        with repjax.enabled():
            return jax.jit(function)(key)

    for way in (repjax.reproducible(function), switched, switched_jit):
        try:
            yield way(key)
        except repjax.RefusedError as error:
            yield sorted({line.split("): ")[1] for line in str(error).splitlines()[1:-1]})


def _all(operations):
    return lambda key: {name: function(key) for name, function in operations.items()}


@pytest.mark.parametrize("generator", ["threefry2x32", "threefry4x32", "philox2x32", "philox4x32"])
def test_generators_of_integers_are_covered(generator):
    key, function = jax.random.key(5, impl=generator), _all(OPERATIONS | BITS)
    for result in _ways(function, key):
        assert_same_bits(result, function(key))


def test_samples_of_another_generator():
    decorated, *others = _ways(SAMPLERS["categorical"], jax.random.key(5, impl="philox2x32"))
    for other in others:
        assert_same_bits(other, decorated)


REASON = (
    "rng_bit_generator has no reproducible form; draw with threefry: "
    "jax.random.key(seed, impl='threefry2x32')"
)
#: Those whose bits the platform draws, and what it does not draw.
DRAWN = {"rbg": OPERATIONS, "unsafe_rbg": {name: OPERATIONS[name] for name in ("seed", "data")}}


@pytest.mark.parametrize("generator", DRAWN)
def test_bits_that_the_platform_draws_are_refused(generator):
    """For one reason, in eager operations as in programs; what is made of threefry is not."""
    key, exact = jax.random.key(5, impl=generator), DRAWN[generator]
    for result in _ways(_all(exact), key):
        assert_same_bits(result, _all(exact)(key))
    refused = {k: f for k, f in (OPERATIONS | BITS).items() if k not in (*exact, "seeds")}
    for function in (*refused.values(), SAMPLERS["categorical"]):
        assert list(_ways(function, key)) == [[REASON]] * 3
