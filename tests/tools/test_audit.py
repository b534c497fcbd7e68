"""repjax.verify.audit: operations on floats that are not repjax's are found, wherever they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.audited import audited
from helpers.bits import normal
from repjax.primitives.operations.arithmetic import mul
from repjax.verify.audit import audit

X = normal((4, 4))


def operations(function, *args):
    return [finding.operation.removeprefix("stablehlo.") for finding in audit(function, *args)]


PLAIN = {
    "arithmetic": (lambda x: x * x + 1, ["multiply", "add"]),
    "function": (lax.exp, ["exponential"]),
    "product": (jnp.dot, ["dot_general"]),
    "sum": (jnp.sum, ["reduce", "add"]),
    "conversion": (lambda x: x.astype(jnp.bfloat16), ["convert"]),
    "from integers": (lambda x: jnp.arange(3).astype(x.dtype), ["convert"]),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, y: -y, x), ["negate"]),
    "branch": (lambda x: lax.cond(x[0, 0] > 0, lambda: x, lambda: x - 1), ["subtract"]),
    "function of its own": (lambda x: jax.jit(lax.tanh, inline=False)(x), ["tanh"]),
    "scatter": (lambda x: x.at[0].set(1), ["scatter"]),
    "linear algebra": (jnp.linalg.cholesky, None),
    "complex": (lambda x: jnp.fft.fft(x), ["fft"]),
    "mixed": (lambda x: mul(x, x) + x, ["add"]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_operations_are_found(name):
    function, expected = PLAIN[name]
    arguments = (X, X) if name == "product" else (X,)
    found = operations(function, *arguments)
    assert found if expected is None else set(expected) <= set(found)


def test_exact_operations_are_not_found():
    def exact(x, i):
        y = jnp.concatenate([x[i], jnp.abs(jnp.flip(x.T)), jnp.sort(x)])
        return jnp.where(y > 1, lax.max(y, lax.rev(y, (0,))), lax.clamp(0.0, y, 1.0)), i * i + 3

    assert not audit(exact, X, np.arange(4))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_reproducible_programs_have_none(dtype):
    def program(x):
        def loss(x):
            y, _ = lax.scan(lambda c, r: (jnp.tanh(c + r @ r), jnp.exp(c)), x.sum(), x)
            return y + lax.cond(y > 0, lambda: y / 3, lambda: jnp.sqrt(-y))

        return jax.value_and_grad(loss)(x)

    x = X.astype(dtype)
    assert not audit(repjax.reproducible(program), x)
    assert len(audit(program, x)) > 10
    with repjax.enabled():
        assert not audit(program, x)


def test_a_finding_says_what_and_where():
    (finding,) = audit(jax.jit(lambda x: x + x), jax.ShapeDtypeStruct((3, 2), np.float32))
    assert finding.operation == "stablehlo.add"
    assert finding.types == ("tensor<3x2xf32>",) * 3
    line = test_a_finding_says_what_and_where.__code__.co_firstlineno + 1
    assert finding.location.startswith(f"{__file__}:{line}:")
    assert finding.location.endswith("(test_a_finding_says_what_and_where.<locals>.<lambda>)")
    assert str(finding).startswith("stablehlo.add on tensor<3x2xf32>, ")


def test_everything_compiled_in_a_block():
    x = np.ones((3, 13, 17), np.float32)  # a shape of its own: nothing of it is compiled yet
    with audited() as findings:
        jax.jit(lambda x: jax.jit(jnp.cos)(x) * 2)(x)
        lax.sub(x, jnp.flip(x))
        repjax.lax.exp(x)
    found = {finding.operation for finding in findings}
    assert found == {"stablehlo.cosine", "stablehlo.multiply", "stablehlo.subtract"}
