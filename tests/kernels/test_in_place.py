"""What a loop carries, written where it was read: with the bits of equations."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, patterns
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import without_kernel
from repjax.primitives.cpu import groups as kernel
from repjax.primitives.cpu import library, loops

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


@pytest.fixture(autouse=True)
def loops_of_xla(monkeypatch):
    """Small loops, too, of which the kernel would compute all."""
    monkeypatch.setattr(loops, "_MOST_OF_WHILE", -1)


#: Around the sizes of vectors and blocks, beyond what XLA has without kernels, and for two threads.
SIZES = [300, 1024, 2049, 5000, 100_000]


def loop(step, *carry, steps=3):
    """A while, which is XLA's, with calls of the kernel in it."""
    body = lambda s: (s[0] + 1, *step(*s[1:]))  # noqa: E731
    return lax.while_loop(lambda s: s[0] < steps, body, (0, *carry))[1:]


def compiled(function, *args):
    return repjax.reproducible(lambda *xs: function(*xs)).lower(*args).compile()


def check(function, *args, in_place: int):
    """The same bits, with so many results in the places of operands, and no copies in loops."""
    program, expected = compiled(function, *args), without_kernel(function, *args)
    text = program.as_text()
    aliases = re.findall(r"output_to_operand_aliasing=\{(.*?\)\})", text)
    assert sum(found.count(": (") for found in aliases) == in_place, aliases
    for name in each_instruction_set():
        assert_same_bits(jax.tree.leaves(program(*args)), jax.tree.leaves(expected), name)
    return text


def _leapfrog(x, v):
    v = v - jnp.float32(0.01) * (x - x * x * x)
    return x + jnp.float32(0.01) * v, v


@pytest.mark.parametrize("n", SIZES)
def test_states_are_written_where_they_are(n):
    for of in (lambda seed: normal(n, seed), lambda seed: patterns(n, seed, np.float32)):
        text = check(lambda x, v: loop(_leapfrog, x, v), of(1), of(2), in_place=2)
        body = next(c for c in text.split("\n}") if "aliasing" in c)
        assert f"f32[{n}]{{0}} copy(" not in body


STEPS = {
    "read until the end": (lambda x, y: (x + y, (x - y) / (x * x + 1)), 2),
    "functions": (lambda x, y: (jnp.tanh(x) * y, jnp.exp(-jnp.abs(y)) + x), 2),
    "chosen": (lambda x, y: (jnp.where(x[0] > 0, x * y, y), jnp.where(y[0] > 0, x, y - 1)), 2),
    "of one number": (lambda x, y: (x * y[0] + y, y - 0.5), 1),
    "in another order": (lambda x, y: (x[::-1] * y, y + 1), 1),
    "neighbours": (lambda x, y: (jnp.roll(x, 1) + y, y * x), 1),
    "changed for each other": (lambda x, y: (y * 0.5 + 1, x * 0.25), 2),
    "as they are": (lambda x, y: (x * y, x), 0),
    "one of them twice": (lambda x, y: (x + y,) * 2, 0),
    "sums": (lambda x, y: (x - x.sum() * 1e-3, y + x), 1),
    "many terms": (lambda x, y: (x + y + jnp.exp(x) * y - x / 3, y), 1),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n", [300, 2049])
def test_steps(name, n):
    step, in_place = STEPS[name]
    check(lambda x, y: loop(step, x, y), normal(n, 1), normal(n, 2), in_place=in_place)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_halves(dtype):
    x, y = patterns(2000, 1, dtype), patterns(2000, 2, dtype)
    check(lambda x, y: loop(lambda x, y: (x * y + x, x - y), x, y), x, y, in_place=2)


def test_integers():
    def step(i, x):
        return i * 3 + 1, jnp.where(i > 7, x * x, x + i.astype(np.float32))

    check(lambda *xs: loop(step, *xs), patterns(2000, 1, np.int32), normal(2000, 2), in_place=2)


def test_masks():
    x, mask = normal(2000, 1), normal(2000, 2) > 0

    def step(x, mask):
        return jnp.where(mask, x * 2, x + 1), mask & (x < 3)

    check(lambda x, mask: loop(step, x, mask), x, mask, in_place=2)


def test_scans_and_gradients():
    """A scan that is XLA's: of more than stays in the caches, or with what is no step."""

    def scan(x, rows):
        def step(x, row):
            x = x * 0.5 + jnp.cumsum(row)
            return x, x[0]

        return lax.scan(step, x, rows)

    check(scan, normal(2000, 1), normal(6000, 2).reshape(3, 2000), in_place=1)

    def loss(x, w):
        def step(c, _):
            h, w = c
            return (jnp.sort(jnp.sin(h * w)), w), None

        return lax.scan(step, (x, w), None, length=3)[0][0].sum()

    x, w = normal(2000, 1), normal(2000, 2)
    found = repjax.reproducible(jax.grad(loss, (0, 1)))(x, w)
    jax.tree.map(assert_same_bits, found, without_kernel(jax.grad(loss, (0, 1)), x, w))


def test_a_training_loop():
    """An optimizer's state and parameters in a loop, and the same loop mapped."""

    def train(w, m, x):
        def step(w, m):
            g = jax.grad(lambda w: ((x @ w) ** 2).sum())(w)
            m = 0.9 * m + g
            return w - 0.01 * m, m

        return loop(step, w, m)

    w, m, x = (normal(40 * 40, i).reshape(40, 40) / 8 for i in range(3))
    check(train, w, m, x, in_place=2)
    ws = np.stack([w, m])
    mapped = jax.vmap(train, (0, None, None))
    jax.tree.map(assert_same_bits, *(f(mapped, ws, m, x) for f in (_run, without_kernel)))


def _run(function, *args):
    return compiled(function, *args)(*args)


def test_operands_stay_as_they_are():
    """What the caller still has is not written."""
    x, v = jnp.asarray(normal(3000, 1)), jnp.asarray(normal(3000, 2))
    before = np.asarray(x).copy(), np.asarray(v).copy()
    _run(lambda x, v: loop(_leapfrog, x, v), x, v)
    _run(lambda x, v: (loop(_leapfrog, x, v), x, v + loop(_leapfrog, x, x)[0]), x, v)
    jax.tree.map(assert_same_bits, (x, v), before)


def test_what_is_read_elsewhere_is_caught(monkeypatch):
    """A negative control: a result in the place of what others of its elements are read from."""

    def in_place(group, code):
        if len(code.sources()) == 2:  # the last element, and those before it
            yield 1, 0, 0

    monkeypatch.setattr(kernel, "_in_place", in_place)
    x = normal(20_000, 1)
    step = lambda x: [jnp.roll(x, 1) * 0.5]  # noqa: E731
    wrong = _run(lambda x: loop(step, x), x)
    monkeypatch.undo()
    expected = without_kernel(lambda x: loop(step, x), x)
    assert_same_bits(_run(lambda x: loop(step, x), x), expected)
    with pytest.raises(AssertionError):
        assert_same_bits(wrong, expected)
