"""Short loops without guards: the bits of the same loops with them, whatever the numbers are."""

from __future__ import annotations

import platform
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax.primitives.core import short_loops
from repjax.primitives.core.jax_internals import compiler
from repjax.primitives.cpu import library, speculation
from repjax.primitives.operations import add_n
from repjax.primitives.operations.products import dot_general_p
from repjax.verify import audit

pytestmark = [
    pytest.mark.skipif(
        not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
    ),
    pytest.mark.skipif(
        platform.machine().lower() not in speculation._X86, reason="elsewhere loops have guards"
    ),
]

LENGTH = 40
#: What guards change, and what such numbers come of.
SPECIALS = (0, -0.0, 1e-40, -1e-40, 2.0**-126, -1e-38, 1e-20, -3e-25, 3e38, np.inf, np.nan)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Whether it pays or not."""
    monkeypatch.setattr(speculation, "_RESULTS", 1000)


def with_guards(function):
    """It made reproducible, with short loops as they are."""
    compiled = repjax.reproducible(lambda *xs: function(*xs))

    def run(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(speculation, "_speculated", lambda closed: closed)
            return compiled(*args)

    return run


def check(function, *inputs):
    found, expected = repjax.reproducible(lambda *xs: function(*xs)), with_guards(function)
    for args in inputs:
        jax.tree.map(assert_same_bits, found(*args), expected(*args))


def branches(function, *args) -> int:
    """How many branches its compiled program has."""
    return (
        repjax.reproducible(lambda *xs: function(*xs))
        .lower(*args)
        .as_text()
        .count("stablehlo.case")
    )


def inputs(size: int, seed: int = 0):
    """Numbers with which a loop begins, and that it takes: some usual, and with special ones."""
    h, xs = normal((3, size), seed + 1), normal((LENGTH, size), seed + 2)
    few = np.round(4 * xs) / 4  # sums of which are often middles of two numbers
    special = np.random.RandomState(seed).choice(np.float32(SPECIALS), xs.shape)
    mixed = np.where(np.arange(LENGTH)[:, None] % 7 == 3, special, xs)
    small = np.float32(1e-18) * xs  # whose products are tiny
    return [(h, np.float32(x)) for x in (xs, few, mixed, special, small)]


# --- random programs --------------------------------------------------------------------

OF_ONE = (
    lambda x: -x,
    lambda x: x * x,
    lambda x: x**3,
    lambda x: x**-2,
    lambda x: jnp.sqrt(abs(x)),
    lambda x: 0.7 * x,
    lambda x: x / 3,
    lambda x: x[::-1],
    lambda x: jnp.where(x > 0.5, x, 0),
    lambda x: jnp.exp(-(x * x)),
    lambda x: lax.stop_gradient(x).reshape(-1, 1).reshape(x.shape),
    lambda x: jnp.asarray(normal((x.size, x.size), 9)) @ x if x.size < 5 else x + 1,
    lambda x: jnp.sign(x),
    lambda x: x.sum() * x,
)
OF_TWO = (
    *(lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / (2 + y * y)),
    *(lambda x, y: x * y + x, lambda x, y: y - x * x, lambda x, y: x * x + y * y),
    *(jnp.maximum, lambda x, y: jnp.where(x < y, x, y * x)),
)


def random_program(seed: int):
    """A loop of a dozen operations; what it carries is kept from growing."""
    random = np.random.RandomState(seed)
    plan = [(random.randint(4), random.randint(100, size=3)) for _ in range(12)]

    def step(carry, x):
        values = [*carry, x]
        for kind, (i, j, f) in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            one, two = OF_ONE[f % len(OF_ONE)], OF_TWO[f % len(OF_TWO)]
            values.append(one(a) if kind == 0 else two(a, b))
        *new, y = values[-4:]
        return tuple(jnp.where(abs(v) < 1e6, v, x) for v in new), (y, values[-7])

    return lambda h, xs: lax.scan(step, tuple(h), xs)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_have_the_same_bits(seed, size):
    function = random_program(seed)
    check(function, *inputs(size, seed))
    assert branches(function, *inputs(size)[0]) > 0
    assert not audit(repjax.reproducible(function), *inputs(size)[0])


def test_gradients_and_batches_have_the_same_bits():
    def recurrence(p, xs):
        def step(v, x):
            v = p[0] ** 2 + p[1] * x * x + p[2] * v
            return v, jnp.log(v) + x * x / v

        return lax.scan(step, jnp.float32(1), xs)[1].sum()

    p, xs = np.float32([0.1, 0.2, 0.7]), normal(LENGTH)
    check(jax.grad(recurrence), (p, xs), (p, np.float32(1e-19) * xs), (p, 0 * xs))
    check(jax.vmap(recurrence, (0, None)), (np.stack([p, 2 * p]), xs))


def test_loops_until_something_have_the_same_bits():
    def root(a):
        def is_far(state):
            i, x = state
            return (i < 50) & (abs(x * x - a) > 1e-6 * a)

        return lax.while_loop(is_far, lambda s: (s[0] + 1, (s[1] + a / s[1]) / 2), (0, a))

    check(root, *((np.float32(x),) for x in (2, 1e-37, 1e38, 3)))


def test_tables_are_written_in_their_place(monkeypatch):
    """What is large is no operand of the branch."""

    def recurrence(table, xs):
        def step(carry, x):
            table, i = carry
            y = table[i - 1] * 0.6 + table[i - 2] * x
            return (table.at[i].set(y), i + 1), y

        return lax.scan(step, (table, 2), xs)

    table = normal(100_000)
    check(recurrence, (table, normal(LENGTH)), (table, np.float32([0, 1e-40, -0.0, 2] * 10)))

    def takes_the_table() -> bool:
        text = (
            repjax.reproducible(lambda *xs: recurrence(*xs)).lower(table, normal(LENGTH)).as_text()
        )
        cases = re.findall(r'"stablehlo\.case".*?\}\) : [^\n]*', text, re.DOTALL)
        assert cases
        return any("100000" in case for case in cases)

    assert not takes_the_table()
    monkeypatch.setattr(speculation, "_COPIED", table.size)
    monkeypatch.setattr(speculation, "_RESULTS", table.size)
    assert takes_the_table()


# --- operations by themselves -----------------------------------------------------------


def _results(form, *operands):
    """What an operation gives without guards, and whether it notes anything, number by number."""

    @jax.jit
    def function(*operands):
        operations = speculation._Operations()
        return form(operations, *operands), operations.is_any_wrong()

    with jax.enable_x64(True):
        return [function(*xs) for xs in zip(*operands, strict=True)]


def _check_form(form, expected, *operands, noted: range):
    """What is not noted is right, and few are noted, or some."""
    count = 0
    found = _results(form, *operands)
    for (result, wrong), y in zip(found, expected, strict=True):
        count += bool(wrong)
        if not wrong:
            assert_same_bits(result, y)
    assert count in noted


def test_sums_of_several_terms():
    """Of those that lie close to the middle of two numbers, too."""
    a, b, c = normal((3, 200))
    middle = np.float32(1) + np.float32(2.0**-24)  # rounds to 1: its half is the next term
    a = np.float32([*a, 1, 1, 1, 1 + 2.0**-23, 3, 1e20, 0, 1e-38, 1])
    b = np.float32([*b, 2.0**-24, 2.0**-24, 2.0**-24, 2.0**-24, 5, -1e20, 0, -9e-39, -1])
    c = np.float32([*c, 0, 2.0**-80, -(2.0**-80), 2.0**-120, 1e-9, 1e-20, 0, 1e-40, 1e-30])
    assert middle == 1
    terms = [np.where(np.abs(x) < 2.0**-126, 0, x) for x in (a, b, c)]
    expected = add_n.add_n_p.bind(*map(jnp.asarray, terms))
    form = speculation._WITHOUT_GUARDS[add_n.add_n_p]
    _check_form(form, expected, *terms, noted=range(3, 9))


def test_products():
    """Middles that are exact are right, others are noted; so is what float32 does not hold."""
    lhs = normal((60, 2, 3))
    rhs = normal((60, 3), 1)
    lhs[10:20], rhs[10:20] = np.round(lhs[10:20] * 4), np.round(rhs[10:20] * 4)
    lhs[20, 0], rhs[20] = (1, 1, 0), (1, 2.0**-24, 0)  # an exact middle
    lhs[21, 0], rhs[21] = (2.0**-24, 2.0**-40, 1), (1, 2.0**-40, 1)  # beside one, rounded to it
    lhs[22], rhs[22] = 1e-30, 1e-15
    lhs[23], rhs[23] = 1e30, 1e15
    lhs[24], rhs[24] = 0, -1
    numbers = {"dimension_numbers": (((1,), (0,)), ((), ())), "contraction": "sequential"}
    numbers["preferred_element_type"] = np.dtype(np.float32)
    expected = [
        dot_general_p.bind(*map(jnp.asarray, xs), **numbers) for xs in zip(lhs, rhs, strict=True)
    ]

    def form(operations, lhs, rhs):
        return speculation._WITHOUT_GUARDS[dot_general_p](operations, lhs, rhs, **numbers)

    _check_form(form, expected, lhs, rhs, noted=range(2, 9))


# --- negative controls ------------------------------------------------------------------


def _differs(patches, function, *inputs) -> bool:
    expected = with_guards(function)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(speculation._Operations, name, value)
        found = repjax.reproducible(lambda *xs: function(*xs))
        return not all(
            jax.tree.all(jax.tree.map(same_bits, found(*args), expected(*args))) for args in inputs
        )


def _differences(h, xs):
    return lax.scan(lambda h, x: (x - h,) * 2, h[0], xs)


def test_what_is_noted_is_needed():
    _, xs = inputs(1)[0]
    xs = np.float32(1e-38) * (2 + np.abs(xs))  # whose differences are tiny
    args = xs[:1], xs
    assert not _differs({}, _differences, args)
    assert _differs({"is_any_wrong": lambda self: np.bool_(False)}, _differences, args)


def _fuses() -> bool:
    """Whether XLA fuses products with sums here."""
    x = np.float32(1 + 2.0**-12)
    return bool(jax.jit(lambda x: x * x - np.float32(1 + 2.0**-11))(x) != 0)


@pytest.mark.skipif(not _fuses(), reason="XLA fuses nothing here")
def test_products_need_to_be_known():
    def differs(patches, seed: int) -> bool:
        return _differs(patches, random_program(seed), inputs(4, seed)[0])

    seeds = range(6)
    assert not any(differs({}, seed) for seed in seeds)
    assert any(differs({"_is_product": lambda self, x: False}, seed) for seed in seeds)


# --- the option of XLA ------------------------------------------------------------------


@pytest.mark.skipif(not short_loops.IS_NEEDED, reason="XLA's own limit is high enough")
def test_options_are_merged():
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    before = options.SerializeAsString()
    lowered = repjax.reproducible(_differences).lower(*inputs(1)[0])
    module = lowered.compiler_ir()
    assert short_loops._MARK in module.operation.attributes
    after = short_loops.with_options(module, options).SerializeAsString()
    assert short_loops._MARK not in module.operation.attributes
    assert short_loops._OPTION in after and len(after) - len(before) in range(50, 70)
    again = short_loops.with_options(module, options)
    assert again is options  # a module without short loops


def test_no_option_for_other_programs():
    module = repjax.reproducible(jnp.sin).lower(np.float32(1)).compiler_ir()
    assert short_loops._MARK not in module.operation.attributes
