"""Training steps of unmodified networks: the same bits in every way to run them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import repjax
from helpers.audited import audited
from helpers.bits import assert_same_bits, same_bits
from helpers.networks import NETWORKS, fill, mlp, train
from helpers.programs import GOLDEN_NETWORKS, golden


@pytest.mark.parametrize("name", NETWORKS)
def test_reproducible_and_switched_are_the_same(name):
    network = NETWORKS[name]()
    with repjax.enabled(), audited() as findings:
        switched = train(jax.jit, network)
    assert not findings
    if name in GOLDEN_NETWORKS:  # tests/project/test_settings.py has compared the reproducible one
        assert repjax.digest(switched) == golden(GOLDEN_NETWORKS[name])
    else:
        assert_same_bits(switched, train(repjax.reproducible, network), name)
    losses = np.asarray(jax.tree.leaves(switched[1]), np.float32)
    assert np.isfinite(losses).all()
    assert losses[1] < losses[0]


def test_eager_step():
    network = NETWORKS["embedding"]()
    with repjax.enabled(), audited() as findings:
        eager = train(lambda f: f, network, steps=1)
    assert_same_bits(eager, train(repjax.reproducible, network, steps=1))
    assert not findings


def test_plain_steps_differ():
    """The networks can tell plain JAX from repjax."""
    network = mlp()
    plain, ours = (jax.tree.leaves(train(way, network)) for way in (jax.jit, repjax.reproducible))
    assert not all(same_bits(a, b) for a, b in zip(plain, ours, strict=True))


def test_fill_is_exact():
    tree = fill({"w": jax.ShapeDtypeStruct((40, 50), np.float32)})
    scaled = tree["w"] * np.float32(2**23)
    assert (scaled == np.round(scaled)).all() and len(set(scaled.flat)) > 1900
