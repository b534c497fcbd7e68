"""What results do not depend on: docs/numerics.md, section 21, by operation."""

from __future__ import annotations

import pytest

import stock_primitives
from helpers import shapes

CASES = [(operation, variation) for operation in shapes.OPERATIONS for variation in operation.holds]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{o.name}-{v}" for o, v in CASES])
def test_a_variation_changes_bits_or_not(number):
    """Where it may, some case shows it, so that the table says no more and no less than is true."""
    operation, variation = CASES[number]
    if operation.holds[variation]:
        case = shapes.Case(operation, variation, shapes.FORMATS[number % 3], number)
        assert case.same(), str(case)
    else:  # float32: rounding to a narrower format may hide it
        many = (
            shapes.Case(operation, variation, "float32", seed, terms=(100, 2)[seed % 2])
            for seed in range(60)
        )
        assert not all(case.same() for case in many)


@pytest.mark.parametrize("name", ["sum, `pairwise`", "product, `sequential`"])
def test_control_in_plain_jax(name):
    """The same variations change bits there."""
    (operation,) = (x for x in shapes.OPERATIONS if x.name == name)
    plain = [
        shapes.Case(operation, variation, "float32", seed).same(plain=True)
        for seed in range(8)
        for variation in ("rows", "behind", "in front")
    ]
    assert not all(plain)


def test_the_table_of_the_documentation():
    assert shapes.table() in stock_primitives.sections()[21]
