"""Faults put into single operations are found, with operands from which both results follow."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import repjax
from ptx.arithmetic import fma
from repjax.primitives import gpu
from repjax.verify import narrow, vectors

X = vectors.spread((6, 40), 1)
Y = vectors.spread((40, 5), 3)


@pytest.fixture
def faulty(monkeypatch):
    """Narrows a function on a device that has a fault in one primitive, all others the CPU's."""
    monkeypatch.setattr(gpu, "expected", lambda: True)  # no chains, whose code is of CPUs
    bind, all_values = narrow.bind, narrow.all_values

    def find(function, *arguments, name: str = "", fault=None):
        def broken(equation, operands):
            if equation.primitive.name == f"repjax_{name}":
                return fault(lambda *xs: bind(equation, xs), *operands)
            if equation.primitive.name == "scan":  # of which the fault would be a part
                return [x + 1 for x in bind(equation, operands)]
            return bind(equation, operands)

        def values(program, inputs, device):
            with pytest.MonkeyPatch.context() as patch:
                if device == "cpu":
                    patch.setattr(narrow, "bind", broken)
                return all_values(program, inputs, jax.devices("cpu")[0])

        monkeypatch.setattr(narrow, "all_values", values)
        return narrow.narrow(repjax.reproducible(function), arguments, "cpu", jax.devices("cpu")[0])

    return find


def flip(*where):
    """One bit of an element of the first result."""

    def fault(compute, *operands):
        first, *rest = compute(*operands)
        bits = lax.bitcast_convert_type(first, np.int32)
        return [lax.bitcast_convert_type(bits.at[where].set(bits[where] ^ 1), first.dtype), *rest]

    return fault


def floats(operand) -> np.ndarray:
    return np.array([int(word, 16) for word in operand["bits"].split()], np.uint32).view("f4")


def word(x) -> str:
    return f"{np.float32(x).view(np.uint32):08x}"


def chain(xs, ys) -> str:
    total = np.float32(0)
    for x, y in zip(xs, ys, strict=True):
        total = fma(x, y, total)
    return word(total)


def test_nothing_differs(faulty):
    found = faulty(lambda x: jnp.exp(x) @ Y, X)
    assert "operation" not in found and "no operation differs" in found["reason"]


def test_elementwise(faulty):
    found = faulty(lambda x: jnp.tanh(x * x[0]) + 1, X, name="tanh", fault=flip(2, 7))
    assert found["operation"] == "tanh" and found["at"] == [2, 7] and found["differ"] == 1
    assert int(found["expected"], 16) ^ int(found["received"], 16) == 1
    (operand,) = found["operands"]
    assert operand["at"] == [2, 7] and operand["bits"] == word(X[2, 7] * X[0, 7])
    assert found["expected"] == word(np.tanh(np.float64(X[2, 7] * X[0, 7])))


def test_the_first_of_several(faulty):
    """The operation itself, not those that read its results."""
    found = faulty(lambda x: jnp.exp(jnp.log(jnp.abs(x)) @ Y), X, name="log", fault=flip(0, 3))
    assert found["operation"] == "log" and found["at"] == [0, 3]


def test_products(faulty):
    numbers = (((1,), (2,)), ((0,), (1,)))
    x, y = vectors.spread((3, 33, 4), 5), vectors.spread((7, 3, 33), 7)

    def backwards(compute, x, y):
        return compute(lax.rev(x, (1,)), lax.rev(y, (2,)))

    found = faulty(
        lambda x, y: lax.dot_general(x, y, numbers), x, y, name="dot_general", fault=backwards
    )
    g, m, n = found["at"]
    row, column = map(floats, found["operands"])
    assert (row == x[g, :, m]).all() and (column == y[n, g]).all()
    assert found["expected"] == chain(row, column) != found["received"]
    assert found["received"] == chain(row[::-1], column[::-1])
    assert len(found["others"]) == min(found["differ"] - 1, narrow.OTHERS)


def test_convolutions(faulty):
    x, w = vectors.spread((2, 3, 9, 8), 9), vectors.spread((5, 3, 3, 2), 11)
    found = faulty(
        lambda x, w: lax.conv(x, w, (2, 1), "VALID"),
        x,
        w,
        name="conv_general_dilated",
        fault=flip(1, 4, 2, 3),
    )
    assert found["at"] == [1, 4, 2, 3]
    window, kernel = map(floats, found["operands"])
    assert (window == x[1, :, 4:7, 3:5].ravel()).all() and (kernel == w[4].ravel()).all()
    assert found["expected"] == chain(window, kernel)


def test_sums(faulty):
    found = faulty(lambda x: x.sum(0), X, name="reduce_sum", fault=flip(11))
    assert found["at"] == [11] and (floats(found["operands"][0]) == X[:, 11]).all()
    found = faulty(lambda x: lax.cumsum(x, 1), X, name="cumsum", fault=flip(3, 11))
    assert found["at"] == [3, 11] and (floats(found["operands"][0]) == X[3]).all()


def test_rows(faulty):
    found = faulty(lambda x: jax.nn.softmax(x * 2), X, name="rows", fault=flip(4, 9))
    assert found["at"] == [4, 9] and "reduce_max" in found["parameters"]["group"]
    assert any((floats(operand) == X[4]).all() for operand in found["operands"])


def test_iterations_of_a_loop(faulty):
    """The first one, and what it began with."""

    def loop(x):
        def step(carry, row):
            return jnp.sin(carry + row), carry

        return lax.scan(step, jnp.zeros(40), x)

    carry = np.asarray(repjax.reproducible(loop)(X)[1])

    def from_the_third_on(compute, x):
        (result,) = compute(x)
        changed = lax.bitcast_convert_type(lax.bitcast_convert_type(result, np.int32) ^ 1, x.dtype)
        return [jnp.where((x == carry[2] + X[2]).all(), changed, result)]

    found = faulty(loop, X, name="sin", fault=from_the_third_on)
    assert (found["operation"], found["iteration"]) == ("sin", 2)
    assert found["operands"][0]["bits"] == word(carry[2, 0] + X[2, 0])


def test_other_nans_are_no_difference(faulty):
    def another_nan(compute, x):
        (result,) = compute(x)
        return [jnp.where(jnp.isnan(result), -result, result)]

    x = vectors.with_specials(X)
    found = faulty(lambda x: jnp.exp(x) + 1, x, name="exp", fault=another_nan)
    assert "operation" not in found


def test_large_operands_have_a_digest(faulty):
    x = vectors.spread((narrow.MOST + 1,), 13)
    found = faulty(lambda x: x.sum(), x, name="reduce_sum", fault=flip())
    assert found["operands"][0]["digest"] == repjax.digest(x)


def test_formats_of_16_bits(faulty):
    def flipped(compute, x):
        (result,) = compute(x)
        bits = lax.bitcast_convert_type(result, np.int16)
        return [lax.bitcast_convert_type(bits.at[1, 2].add(1), result.dtype)]

    x = X.astype(jnp.bfloat16)
    found = faulty(lambda x: jnp.exp(x), x, name="exp", fault=flipped)
    assert found["at"] == [1, 2] and found["result"]["type"] == "bfloat16[6,40]"
    assert found["operands"][0]["bits"] == f"{x.view(np.uint16)[1, 2]:04x}"
