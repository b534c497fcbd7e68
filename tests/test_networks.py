"""Training steps of unmodified networks: the same bits in every way to run them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from bits import assert_same_bits, same_bits
from networks import NETWORKS, train

import repjax


def _leaves(tree):
    """The arrays alone: NNX has its own nodes around them."""
    return jax.tree.leaves(tree)


@pytest.mark.parametrize("name", NETWORKS)
def test_reproducible_and_switched_are_the_same(name):
    network = NETWORKS[name]()
    result = train(repjax.reproducible, network)
    with repjax.enabled():
        switched = train(jax.jit, network)
    assert_same_bits(switched, result, name)
    losses = np.asarray(jax.tree.leaves(result[1]))
    assert np.isfinite(losses).all() and len(set(losses)) == len(losses)


@pytest.mark.parametrize("name", ["mlp", "embedding"])
def test_eager_steps(name):
    network = NETWORKS[name]()
    with repjax.enabled():
        eager = train(lambda f: f, network, steps=1)
    assert_same_bits(eager, train(repjax.reproducible, network, steps=1), name)
