"""Parts of fused groups and row groups, as devices compute them that have parts of the operands.

Here parts are computed one after the other; test_devices.py has programs on several devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits, canonical
from helpers.groups import random_groups
from helpers.rows import floats, random_rows
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.cpu import library
from repjax.primitives.fusion.groups import Group, group_sum_p, groups_p
from repjax.primitives.fusion.names import Names
from repjax.primitives.fusion.rows import rows_p

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no kernel to plan for")

X, ROW, COLUMN = floats((8, 15), 0), floats((1, 15), 1)[0], floats((1, 8), 2).T


def groups_of(function, *arguments) -> list[Group]:
    """The fused groups, also of the terms of sums, and the row groups of a function."""
    found: list[Group] = []

    def visit(jaxpr):
        for equation in open_jaxpr(jaxpr)[0].eqns:
            params = equation.params
            if equation.primitive is groups_p:
                found.extend(params["groups"])
            elif equation.primitive is group_sum_p:
                found.append(params["sum"].group)
            elif equation.primitive is rows_p:
                found.append(params["group"])
            else:
                for value in params.values():
                    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                        visit(value)

    visit(jax.make_jaxpr(repjax.reproducible(lambda *xs: function(*xs)))(*arguments))
    return found


def operands_of(group: Group) -> list[np.ndarray]:
    def operand(i, aval):
        x = (
            floats((1, max(aval.size, 1)), i)[0]
            if aval.dtype == np.float32
            else np.arange(aval.size)
        )
        return canonical(x.astype(aval.dtype).reshape(aval.shape))

    return [operand(i, v.aval) for i, v in enumerate(group.invars)]


def splits(group: Group):
    """Each axis that may be split, and into how many parts it is."""
    for name, size in group.names.sizes.items():
        if group.has_parts and name not in group.names.whole:
            yield from ((name, n) for n in range(2, size + 1) if size % n == 0)


def in_parts(group: Group, operands, name: str, n: int) -> list[np.ndarray]:
    """The results of a group whose axes of a name are split into ``n`` parts."""

    def axis(variable):
        found = [d for d, names in enumerate(group.names.of[variable]) if names[0] == name]
        return found[0] if found else None

    def parts(variable, x):
        d = axis(variable)
        return [x] * n if d is None else np.split(x, n, d)

    pairs = zip(group.invars, operands, strict=True)
    results = [
        group.part(part).evaluate(*part)
        for part in zip(*(parts(*pair) for pair in pairs), strict=True)
    ]
    return [
        np.asarray(xs[0] if axis(v) is None else np.concatenate(xs, axis(v)))
        for v, xs in zip(group.outvars, zip(*results, strict=True), strict=True)
    ]


def check(group: Group) -> int:
    """Its parts have the bits of the whole, however it is split; the number of ways."""
    operands = operands_of(group)
    expected = [np.asarray(x) for x in group.evaluate(*operands)]
    ways = list(splits(group))
    for way in ways:
        assert_same_bits(in_parts(group, operands, *way), expected, f"{way}: ")
    return len(ways)


@pytest.mark.parametrize("make", [random_rows, random_groups])
def test_random_programs(make):
    ways = sum(check(p) for seed in range(12) for p in groups_of(make(seed), X, ROW, COLUMN))
    assert ways > 30


def attention(x):
    """Axes as one, and apart."""
    y = jnp.exp(x).reshape(8, 3, 5)
    z = jax.nn.softmax(y * y, -1).reshape(24, 5) + jax.nn.standardize(y).reshape(24, 5)
    return z.reshape(8, 15) * x, (z * 0.5).reshape(4, 2, 3, 5) - 1


def test_reshaped():
    assert sum(map(check, groups_of(attention, X))) == 2  # 4 as one, or 2


def names_of(function, *arguments) -> Names:
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(function)(*arguments))
    return Names(jaxpr.eqns, jaxpr.invars)


def split_axes(function, *arguments) -> list[int]:
    """Sizes of the axes that may be split."""
    names = names_of(function, *arguments)
    return sorted(n for name, n in names.sizes.items() if n > 1 and name not in names.whole)


def test_which_axes_are_split():
    x = np.ones((4, 6), np.float32)
    assert split_axes(lambda x: x * 2, x) == [4, 6]
    assert split_axes(lambda x: x.reshape(24) * 2, x) == [4]  # its parts lie together
    assert split_axes(lambda x: x.reshape(2, 12) * 2, x) == [2]
    assert split_axes(lambda x: x.reshape(8, 3) * 2, x) == [4]
    assert split_axes(lambda x: x.reshape(3, 8) * 2, x) == []
    assert split_axes(lambda x: x.sum(0), x) == [6]
    assert split_axes(lambda x, y: x * y, x, x[:, :1]) == [4, 6]
    assert split_axes(lambda x: x + jax.lax.iota(np.float32, 6), x) == [4]
    assert split_axes(lambda x: x + jax.lax.broadcasted_iota(np.float32, (4, 6), 0), x) == [6]
    assert split_axes(lambda x: jnp.broadcast_to(x.sum(), (5,)), x) == []  # no operand has it


def test_tables_of_pairs_have_no_parts():
    x = np.ones((6,), np.float32)
    assert not names_of(lambda x: x[:, None] - x[None, :], x).are_distinct
    assert names_of(lambda x, y: x[:, None] - y[None, :], x, x).are_distinct


def test_splitting_what_is_whole_is_noticed(monkeypatch):
    """If sums went over parts of rows."""
    (group,) = groups_of(jax.nn.softmax, X)
    assert check(group) == 3
    monkeypatch.setattr(group.names, "whole", ())
    with pytest.raises(AssertionError, match="differ"):
        check(group)
