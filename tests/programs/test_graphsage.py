"""GraphSAGE: parameters, its mean, and edges in any order; the perceptron in both forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax.models import GraphSAGE, graphsage, perceptron

NODES, WORDS = 40, 30
EDGES = np.random.RandomState(1).randint(0, NODES - 1, (2, 400)).astype(np.int32)
FEATURES = normal((NODES, WORDS))


def test_parameters_of_cora():
    features = np.zeros((5, 1433), np.float32)
    variables = jax.eval_shape(GraphSAGE().init, jax.random.key(0), features, EDGES[:, :3] % 5)
    assert jax.tree.map(lambda x: x.shape, variables["params"]) == {
        "first": {
            "neighbours": {"kernel": (1433, 16), "bias": (16,)},
            "node": {"kernel": (1433, 16)},
        },
        "second": {"neighbours": {"kernel": (16, 7), "bias": (7,)}, "node": {"kernel": (16, 7)}},
    }
    assert sum(x.size for x in jax.tree.leaves(variables)) == 46_103


def test_the_mean_of_neighbours():
    """Of integers, whose sums are exact; node NODES - 1 has no edge."""
    features = np.random.RandomState(2).randint(-50, 50, (NODES, 3)).astype(np.float32)
    expected = np.zeros_like(features)
    for node in range(NODES - 1):
        reached = features[EDGES[0, EDGES[1] == node]]
        expected[node] = reached.sum(0) / np.float32(max(len(reached), 1))
    ours = repjax.reproducible(graphsage.mean_of_neighbours)(features, EDGES)
    assert_same_bits(ours, expected + 0.0)


def gradients(wrap, edges, layers=None):
    model = GraphSAGE(classes=5, **({"layers": layers} if layers else {}))
    params = repjax.reproducible(model.init)(jax.random.key(0), FEATURES, EDGES)

    def loss(params):
        rngs = {"dropout": jax.random.key(1)}
        logits = model.apply(params, FEATURES, edges, train=True, rngs=rngs)
        return (logits * logits).sum(), logits

    return wrap(jax.grad(loss, has_aux=True))(params)


def test_the_order_of_edges_does_not_matter():
    other = EDGES[:, np.random.RandomState(3).permutation(EDGES.shape[1])]
    assert_same_bits(gradients(repjax.reproducible, other), gradients(repjax.reproducible, EDGES))


def test_in_plain_jax_it_does():
    """Negative control."""
    other = EDGES[:, np.random.RandomState(3).permutation(EDGES.shape[1])]
    pair = [jax.tree.leaves(gradients(jax.jit, edges)) for edges in (EDGES, other)]
    assert not all(same_bits(a, b) for a, b in zip(*pair, strict=True))


@pytest.mark.parametrize(
    ("features", "edges"),
    [(FEATURES[0], EDGES), (FEATURES.astype(np.float16), EDGES), (FEATURES, EDGES.T)],
)
def test_wrong_inputs(features, edges):
    with pytest.raises(ValueError, match=r"GraphSAGE: expected .* received .*; convert"):
        jax.eval_shape(GraphSAGE().init, jax.random.key(0), features, edges)


# --- the perceptron -----------------------------------------------------------------------

SIZES = (23, 31, 29, 10)


def test_parameters_of_the_perceptron():
    for ones in (False, True):
        params = jax.eval_shape(
            lambda key, ones=ones: perceptron.init(key, ones=ones), jax.random.key(0)
        )
        assert sum(x.size for x in jax.tree.leaves(params)) == 1_796_010
    bias, ones = (perceptron.init(jax.random.key(1), SIZES, form) for form in (False, True))
    assert_same_bits([perceptron.with_ones(layer) for layer in bias], ones)
    assert not ones[0]["kernel"][-1].any()


def trained(ones, accumulation):
    """Parameters after two steps of gradient descent, in the form with ones."""
    x, labels = normal((50, SIZES[0])), np.arange(50) % 10

    @repjax.reproducible(accumulation=accumulation)
    def train(key):
        params = perceptron.init(key, SIZES, ones)
        for _ in range(2):
            gradients = jax.grad(perceptron.loss)(params, x, labels)
            params = jax.tree.map(lambda p, g: p - np.float32(0.5) * g, params, gradients)
        return params if ones else [perceptron.with_ones(layer) for layer in params]

    return train(jax.random.key(2))


def test_both_forms_are_one_training_in_sequential_order():
    """The bias is the last term of a chain, and its gradient a chain of products with 1."""
    assert_same_bits(trained(False, "sequential"), trained(True, "sequential"))


def test_in_pairwise_order_they_are_two():
    """Negative control: the gradient of an added bias is then another sum."""
    pair = [jax.tree.leaves(trained(ones, "pairwise")) for ones in (False, True)]
    assert not all(same_bits(a, b) for a, b in zip(*pair, strict=True))


def test_the_loss_is_the_mean_squared_error():
    params = [{"kernel": jnp.eye(10), "bias": jnp.zeros(10)}]
    x = np.eye(10, dtype=np.float32)[[3, 5]]
    assert perceptron.loss(params, x, np.array([3, 5])) == 0
    assert perceptron.loss(params, x, np.array([3, 4])) == np.float32(0.1)
