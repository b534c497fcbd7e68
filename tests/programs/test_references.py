"""References (``jax.new_ref``): programs that write in place have the bits of those that do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import repjax
from helpers.bits import assert_same_bits, same_bits

X = jax.random.normal(jax.random.key(7), (5, 40)) * 3


def written(x):
    """Reads, writes, swaps and additions, of a whole reference and of its parts."""
    ref = jax.new_ref(jnp.zeros((5, 40)))
    ref[...] += x * x
    ref[1] = jnp.tanh(ref[0]) / 3
    ref[2:4, ::2] = ref[0:2, 1::2] * x[0, 0]
    jax.ref.addupdate(ref, (jnp.array([4, 4, 0]), 3), x[:3, 3])
    old = jax.ref.swap(ref, (0, slice(None)), x[3])
    return ref[...], old, jax.ref.freeze(ref).sum(1)


def functional(x):
    y = jnp.zeros((5, 40))
    y += x * x
    y = y.at[1].set(jnp.tanh(y[0]) / 3)
    y = y.at[2:4, ::2].set(y[0:2, 1::2] * x[0, 0])
    y = y.at[jnp.array([4, 4, 0]), 3].add(x[:3, 3])
    old, y = y[0], y.at[0].set(x[3])
    return y, old, y.sum(1)


def loops(x):
    """The mean of squares of the positive rows, in a scan, a while loop and a branch."""
    total, count = jax.new_ref(jnp.zeros(40)), jax.new_ref(0)

    def add(row):
        total[...] += row * row
        count[...] += 1

    def body(i, row):
        jax.lax.cond(row[0] > 0, add, lambda row: None, row)
        return i, None

    jax.lax.scan(body, 0, x)
    jax.lax.fori_loop(0, 5, lambda i, _: add(x[i]), None)
    return total[...] / count[...]


def functional_loops(x):
    total, count = jnp.zeros(40), 0

    def add(state, row):
        return state[0] + row * row, state[1] + 1

    def body(state, row):
        return jax.lax.cond(row[0] > 0, add, lambda state, _: state, state, row), None

    state, _ = jax.lax.scan(body, (total, count), x)
    total, count = jax.lax.fori_loop(0, 5, lambda i, state: add(state, x[i]), state)
    return total / count


def differentiated(f):
    return jax.grad(lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x))))


PROGRAMS = {
    "parts": (written, functional),
    "loops": (loops, functional_loops),
    "grad of parts": (differentiated(written), differentiated(functional)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits_as_without_references(name):
    ours, other = PROGRAMS[name]
    expected = repjax.reproducible(other)(X)
    assert not same_bits(jax.tree.leaves(expected)[0], jax.tree.leaves(jax.jit(ours)(X))[0])
    assert_same_bits(repjax.reproducible(ours)(X), expected, "reproducible")
    with repjax.enabled():
        assert_same_bits(jax.jit(ours)(X), expected, "jit")


def test_eager_references():
    expected = repjax.reproducible(functional)(X)
    with repjax.enabled():
        assert_same_bits(written(X), expected)


def test_references_from_outside():
    with repjax.enabled():
        ref, seen = jax.new_ref(X), jax.new_ref(0)

        @jax.jit
        def step(ref, x):
            ref[...] = jnp.exp(ref[...] / 9) + x
            seen[...] += 1
            return jnp.sum(ref[...], 1)

        sums = [step(ref, X) for _ in range(3)]
        assert seen[...] == 3

    @repjax.reproducible
    def pure(y, x):
        y = jnp.exp(y / 9) + x
        return y, jnp.sum(y, 1)

    y = X
    for total in sums:
        y, expected = pure(y, X)
        assert_same_bits(total, expected)
    assert_same_bits(ref[...], y)


def test_a_reference_cannot_enter_a_reproducible_function():
    ref = jax.new_ref(X)
    with pytest.raises(TypeError, match=r"received a reference .* use repjax_enable"):
        repjax.reproducible(lambda x: ref[...] + x)(X)
    with pytest.raises(TypeError, match="received a reference"):
        repjax.reproducible(lambda ref, x: ref[...] + x)(ref, X)
