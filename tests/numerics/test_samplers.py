"""Every sampler of jax.random and initializer of Flax: the same bits in every way to draw.

The digests of their draws stand in tests/data/samplers.json, which all versions of JAX share.

    PYTHONPATH=tests python tests/numerics/test_samplers.py     write them
"""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import repjax
from helpers.audited import audited
from helpers.bits import assert_same_bits
from helpers.paths import DATA
from helpers.samplers import (
    INITIALIZERS,
    NO_SAMPLERS,
    REWRITTEN,
    SAMPLERS,
    initializer,
    initializer_names,
)

DIGESTS = DATA / "samplers.json"
DRAWN = {
    **{f"random.{name}": draw for name, draw in SAMPLERS.items()},
    **{
        f"initializers.{name}": initializer(name)
        for name in dict.fromkeys((*initializer_names(), *INITIALIZERS))
    },
}


KEY = jax.random.key(21)


def _draw(name):
    return repjax.reproducible(DRAWN[name])(KEY)


def test_every_sampler_and_initializer_is_drawn():
    """New versions of JAX may add some: add a call to tests/helpers/samplers.py."""
    public = {
        name
        for name in dir(jax.random)
        if not name.startswith("_") and callable(getattr(jax.random, name))
    }
    assert public - SAMPLERS.keys() <= NO_SAMPLERS


@pytest.mark.parametrize("name", DRAWN)
def test_bits(name):
    expected = _draw(name)
    if name not in REWRITTEN:
        assert repjax.digest(expected) == json.loads(DIGESTS.read_text())[name]
    draw = DRAWN[name]
    with repjax.enabled(), audited() as findings:
        assert_same_bits(jax.jit(draw)(KEY), expected, name)
    assert not findings
    plain = jax.eval_shape(draw, KEY)
    assert (expected.shape, expected.dtype) == (plain.shape, plain.dtype)
    constant = name.endswith((".constant", "ones", "zeros", "ones_init", "zeros_init"))
    assert constant or expected.size == 1 or len(set(map(float, expected.ravel()))) > 1


def test_certain_binomials():
    """There is no -0, by which JAX's loop would divide for a probability of 0 or 1."""
    draw = repjax.reproducible(lambda key, p: jax.random.binomial(key, 20, p))
    for dtype in np.float32, np.float16:
        drawn = draw(KEY, np.asarray([0, 1, 0.5, 1], dtype))
        assert (drawn[0], drawn[1], drawn[3]) == (0, 20, 20)
        assert 0 < drawn[2] < 20


@pytest.mark.parametrize(
    "name", ["random.uniform", "random.truncated_normal", "random.gamma", "initializers.orthogonal"]
)
def test_eager(name):
    with repjax.enabled(), audited() as findings:
        drawn = DRAWN[name](KEY)
    assert_same_bits(drawn, _draw(name), name)
    assert not findings


if __name__ == "__main__":
    digests = {name: repjax.digest(_draw(name)) for name in DRAWN if name not in REWRITTEN}
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
