"""Exported programs: without kernels, so that they run wherever XLA does, with the same bits."""

from __future__ import annotations

import re

import flax.linen
import jax
import numpy as np
import pytest
from jax import export

import repjax


class Network(flax.linen.Module):
    """Convolution, pooling, normalisation and attention-like products."""

    @flax.linen.compact
    def __call__(self, images):
        x = flax.linen.relu(flax.linen.Conv(4, (3, 3), strides=2)(images))
        x = flax.linen.max_pool(x, (2, 2)) + flax.linen.avg_pool(x, (2, 2))
        x = flax.linen.LayerNorm()(x.reshape(x.shape[0], -1, 4))
        weights = flax.linen.softmax(x @ x.swapaxes(1, 2))
        return jax.numpy.tanh(flax.linen.Dense(3)((weights @ x).mean(1)))


def _network():
    images = jax.random.normal(jax.random.key(0), (5, 8, 8, 2))
    variables = Network().init(jax.random.key(1), images)
    return lambda images: Network().apply(variables, images), images


def _called(exported) -> set[str]:
    return set(re.findall(r"custom_call @([\w.$]+)", exported.mlir_module()))


def _assert_same_bits(actual, expected):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32))


@pytest.mark.parametrize("platforms", [["cpu"], ["cuda"], ["cpu", "cuda"]])
def test_no_kernels(platforms):
    network, images = _network()
    function = repjax.reproducible(network)
    exported = export.export(jax.jit(function), platforms=platforms)(images)
    assert not _called(exported)
    if "cpu" in platforms:
        _assert_same_bits(exported.call(images), function(images))


@pytest.mark.parametrize("contraction", ["sequential", "order_independent"])
def test_gradients(contraction):
    network, images = _network()

    def gradient(images):
        return jax.value_and_grad(lambda x: (network(x) ** 2).sum())(images)

    step = repjax.reproducible(gradient, contraction=contraction)
    exported = export.export(jax.jit(step))(images)
    assert not _called(exported)
    _assert_same_bits(exported.call(images), step(images))


def test_any_batch():
    """One program for batches of all sizes, each with the bits it has alone."""
    network, images = _network()
    function = repjax.reproducible(network)
    shape = export.symbolic_shape("batch, 8, 8, 2")
    exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, np.float32))
    for size in (1, 2, 5):
        _assert_same_bits(exported.call(images[:size]), function(images[:size]))


@pytest.mark.parametrize("accumulation", ["pairwise", "order_independent"])
def test_sums_over_any_size(accumulation):
    x = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 3"), np.float32)
    total = repjax.reproducible(lambda x: x.sum(0), accumulation=accumulation)
    with pytest.raises(repjax.RefusedError, match=r"known size.*received batch"):
        export.export(jax.jit(total))(x)


def test_indices_of_any_batch():
    """Where each row has one, but not where rows may meet, whose number the grid depends on."""
    rows, index = jax.random.normal(jax.random.key(0), (5, 7)), np.int32([3, 0, 6, 6, 2])

    def of_each(rows, index):
        def taken(rows):
            return (jax.numpy.take_along_axis(rows, index[:, None], 1) ** 2).sum()

        return jax.grad(taken)(rows)

    shape = export.symbolic_shape("batch, 7")
    arguments = [jax.ShapeDtypeStruct(shape, rows.dtype), jax.ShapeDtypeStruct(shape[:1], np.int32)]
    exported = export.export(jax.jit(repjax.reproducible(of_each)))(*arguments)
    _assert_same_bits(exported.call(rows, index), repjax.reproducible(of_each)(rows, index))

    def of_a_table(table, index):
        return jax.grad(lambda table: (table[index] ** 2).sum())(table)

    with pytest.raises(repjax.RefusedError, match=r"known number of windows.*received batch"):
        function = jax.jit(repjax.reproducible(of_a_table))
        export.export(function)(jax.ShapeDtypeStruct((9, 7), rows.dtype), arguments[1])
