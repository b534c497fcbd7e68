"""Scatters: sums against rational numbers, all others against one update after the other."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, canonical, normal, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from repjax.explicit import explicit
from repjax.primitives.cpu import library
from repjax.primitives.operations import grids, scatter
from repjax.verify.reference.scatters import METHODS, scatter_add, scatter_in_order
from repjax.verify.reference.values import add

# --- the definition, of the reference ----------------------------------------------------


def positions_of(shape, index, updates):
    """Where ``x.at[index].add(updates)`` adds what, all of it in bounds."""
    where = np.arange(np.prod(shape)).reshape(shape)[index]
    return np.broadcast_to(where, updates.shape)


# --- data ---------------------------------------------------------------------------------


def spread(shape, seed=0):
    """Numbers so far apart that the grid drops bits of the small ones."""
    rng = np.random.default_rng(seed)
    return np.ldexp(normal(shape, seed), rng.integers(-45, 1, shape)).astype(np.float32)


def tiny(shape, seed=0):
    rng = np.random.default_rng(seed)
    return (np.ldexp(rng.integers(2**23, 2**24, shape), -149) * rng.choice([-1, 1], shape)).astype(
        np.float32
    )


def huge(shape, seed=0):
    return np.float32(2.0**127) * np.random.default_rng(seed).uniform(0.5, 1.9, shape).astype("f")


def cancelling(n, seed=0):
    """Updates and indices: large ones that cancel, and leave what the grid keeps of the rest."""
    index = np.tile(np.random.default_rng(seed).integers(0, 4, n // 2), 2)
    u, large = normal(n, seed) * np.float32(2.0**-28), normal(n // 4, seed + 1)
    u[: n // 4], u[n // 2 : 3 * n // 4] = large, -large
    return index, u


def any_bits(shape, seed=0):
    return patterns(int(np.prod(shape)), seed).reshape(shape)


def special(shape, seed=0):
    return np.random.default_rng(seed).choice(SPECIALS, shape)


DATA = [normal, spread, tiny, special, any_bits]

# --- scatter-add ------------------------------------------------------------------------

RNG = np.random.default_rng(0)
# operand shape, index, shape of the updates
SCATTERS = {
    "elements": ((7,), (RNG.integers(0, 7, 40),), (40,)),
    "one": ((7,), (np.array([3]),), (1,)),
    "scalar": ((7,), (np.array(3),), ()),
    "none": ((7,), (np.zeros(0, int),), (0,)),
    "all on one": ((3,), (np.full(33, 1),), (33,)),
    "rows": ((5, 3), (RNG.integers(0, 5, 20),), (20, 3)),
    "columns": ((3, 5), (slice(None), RNG.integers(0, 5, 20)), (3, 20)),
    "pairs": ((4, 5), tuple(RNG.integers(0, 4, (2, 30))), (30,)),
    "table of indices": ((6,), (RNG.integers(0, 6, (4, 5)),), (4, 5)),
    "middle": ((2, 4, 3), (slice(None), RNG.integers(0, 4, 9)), (2, 9, 3)),
    "slice": ((6, 2), (slice(1, 4),), (3, 2)),
    "window": ((6, 7), (slice(1, -1), slice(2, -1)), (4, 4)),
    "negative": ((7,), (np.array([-1, 0, -7, -1]),), (4,)),
    "broadcast update": ((4,), (RNG.integers(0, 4, 10),), (1,)),
    # Few windows for the rows that there are.
    "few": ((90,), (RNG.integers(30, 40, 40),), (40,)),
    "few rows": ((50, 3), (RNG.integers(7, 12, (2, 10)),), (2, 10, 3)),
    "few pairs": ((9, 10, 2), tuple(RNG.integers(5, 8, (2, 30))), (30, 2)),
    "one row": ((50, 3), (np.array(7),), (3,)),
    "few, negative": ((50,), (np.array([-1, 0, -50, -1]),), (4,)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_add(name):
    shape, index, update_shape = SCATTERS[name]
    run = repjax.reproducible(lambda x, u: x.at[index].add(u))
    for data in DATA:
        x, u = data(shape, 1), data(update_shape, 2)
        full = np.broadcast_to(u, np.zeros(shape)[index].shape)
        expected = scatter_add(x, positions_of(shape, index, full), full)
        assert_same_bits(run(x, u), expected, data.__name__)


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("start", [-3, 0, 5, 6, 40])
def test_one_window(start, mode):
    """Is added as one of several is; a window that does not fit is dropped whole, or moved."""
    for data in DATA:
        x, u = data(9, 1), data(4, 2)
        both, zeros = np.array([[start], [99]]), np.zeros(4, np.float32)
        if mode == "clip":
            both[1] = 5

        def add(x, index, u, numbers):
            return lax.scatter_add(x, index, u, numbers, mode=mode)

        run = repjax.reproducible(add, static_argnums=3)
        one = run(x, np.array([start]), u, WINDOW)
        assert_same_bits(one, run(x, both, np.stack([u, zeros]), WINDOWS), data.__name__)


@pytest.mark.parametrize("n", [8, 64, 500, 4096])
def test_totals_that_cancel(n):
    index, u = cancelling(n)
    x = np.zeros(4, np.float32)
    run = repjax.reproducible(lambda x, u: x.at[index].add(u))
    expected = scatter_add(x, index, u)
    assert_same_bits(run(x, u), expected)
    if n > 8:  # the data can tell how fine the grid is
        assert not same_bits(expected, scatter_add(x, index, u, precision=37))


def test_totals_that_overflow():
    u = np.concatenate([huge(200), -huge(200), spread(100), SPECIALS])
    index = RNG.integers(0, 90, u.size)
    x = np.zeros(90, np.float32)
    run = repjax.reproducible(lambda x, u: x.at[index].add(u))
    expected = scatter_add(x, index, u)
    assert np.isinf(expected).any() and np.isnan(expected).any() and np.isfinite(expected).any()
    assert_same_bits(run(x, u), expected)


MODES = ["fill", "drop", "clip", "promise_in_bounds"]


# As many windows as rows, and few.
@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode, rows):
    last = rows - 1
    index = [0, 3, 99, -99, last, 3, -1, rows, last, 2**31 - 1, -(2**31)]
    index = np.array(index, np.int32)
    if mode == "promise_in_bounds":
        index %= rows
    x, u = normal(rows), spread(index.size)
    positions = _reached(index, rows, mode)
    run = repjax.reproducible(lambda x, u: x.at[index].add(u, mode=mode))
    assert_same_bits(run(x, u), scatter_add(x, positions, u))


def _reached(index, n, mode):
    """The positions that indices mean to ``x.at``, -1 where none."""
    wrapped = np.where(index < 0, index.astype(np.int64) + n, index)
    inside = (wrapped >= 0) & (wrapped < n)
    return np.clip(wrapped, 0, n - 1) if mode == "clip" else np.where(inside, wrapped, -1)


# --- one window for each element of a batch -----------------------------------------------


def _one_each(x, index, u, **options):
    return jax.vmap(lambda x, i, u: x.at[i].add(u, **options))(x, index, u)


def _expected_of_each(x, index, u, mode="fill"):
    positions = _reached(index, x.shape[1], mode)
    row = np.arange(len(x)) * x.shape[1]
    return scatter_add(x, np.where(positions < 0, -1, row + positions), u)


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("mode", MODES)
def test_one_window_each(mode, dtype):
    index = np.array([0, 3, 99, -99, 4, 3, -1, 5, 255], np.int64).astype(dtype)
    if mode == "promise_in_bounds":
        index %= dtype(5)
    for data in DATA:
        x, u = data((len(index), 5), 1), data(len(index), 2)
        run = repjax.reproducible(lambda x, u: _one_each(x, index, u, mode=mode))
        assert_same_bits(run(x, u), _expected_of_each(x, index, u, mode), data.__name__)


def test_one_special_value_each():
    u = SPECIALS
    index, x = np.ones(len(u), np.int32), np.zeros((len(u), 3), np.float32)
    expected = _expected_of_each(x, index, u)
    assert_same_bits(repjax.reproducible(_one_each)(x, index, u), expected)
    assert_same_bits(explicit(_one_each)(x, index, u), expected)
    rows = np.arange(len(u)) * 2 + 1
    run = repjax.reproducible(lambda x, u: x.at[rows].add(u))
    assert_same_bits(run(np.zeros(len(u) * 9, np.float32), u)[rows], expected[:, 1])


@pytest.mark.parametrize("mode", MODES[1:3])
def test_unsigned_indices(mode):
    """As ``lax`` takes them; ``x.at`` makes them int32."""
    index = np.array([[5], [2**32 - 1], [2], [4]], np.uint32)
    numbers = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))
    x, u = normal((4, 5)), normal(4)
    run = repjax.reproducible(lambda x, u: lax.scatter_add(x, index, u, numbers, mode=mode))
    positions = index[:, 0].astype(np.int64)
    assert_same_bits(run(x, u), _expected_of_each(x, positions, u, mode))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_one_window_each_of_halves(dtype, monkeypatch):
    """All bit patterns, to zero and to others; as where windows may meet."""
    u = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    x = np.stack([np.zeros_like(u), np.random.default_rng(1).permutation(u)], 1)
    for index in np.zeros(len(u), np.int32), np.ones(len(u), np.int32):
        with monkeypatch.context() as patch:
            patch.setattr(scatter, "_cannot_meet", lambda *args: False)
            expected = repjax.reproducible(lambda *xs: _one_each(*xs))(x, index, u)
        assert_same_bits(repjax.reproducible(_one_each)(x, index, u), expected)
        assert_same_bits(explicit(_one_each)(x, index, u), expected)


def test_windows_of_axes_in_any_order():
    """Batches of batches, and windows with axes of their own, in front of them and behind."""
    index, u = RNG.integers(-1, 4, (3, 2)), spread((5, 3, 2, 6))
    x = normal((2, 5, 4, 3, 6))

    def function(x, index, u):
        one = jax.vmap(lambda x, i, u: x.at[:, i].add(u), (0, 0, 1), 0)
        return jax.vmap(one, (3, 0, 1), 3)(x, index, u)

    expected = np.stack(
        [[_expected(x[b, :, :, a], index[a, b], u[:, a, b]) for a in range(3)] for b in range(2)]
    )
    run = repjax.reproducible(function)
    assert_same_bits(run(x, index, u), np.moveaxis(expected, 1, 3))


def _expected(x, index, u):
    out = canonical(x).copy()
    out[:, index] = add(out[:, index], canonical(u))
    return out


def test_one_window_each_is_elementwise():
    """In a program: it is computed with what comes next."""
    index, x, u = RNG.integers(0, 5, 9), normal((9, 5)), normal(9)
    program = str(jax.make_jaxpr(repjax.reproducible(_one_each))(x, index, u))
    assert "scatter" not in program
    explicitly = explicit(_one_each)(x, index, u)
    assert_same_bits(explicitly, _expected_of_each(x, index, u))
    several = np.stack([index, index], 1)
    program = jax.make_jaxpr(repjax.reproducible(_one_each))(x, several, np.stack([u, u], 1))
    assert "repjax_raw_scatter_add" in str(program)


def test_gradient_of_take_along_axis():
    index = RNG.integers(0, 6, (4, 1, 3))
    x, cotangent = normal((4, 6, 3)), spread((4, 1, 3))

    def take(x):
        return jnp.take_along_axis(x, index, 1)

    run = repjax.reproducible(lambda x, ct: jax.vjp(take, x)[1](ct)[0])
    expected = np.zeros(x.shape, np.float32)
    np.put_along_axis(expected, index, canonical(cotangent), 1)
    assert_same_bits(run(x, cotangent), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kernel", [True, False])
def test_several_indices_along_an_axis(axis, kernel, monkeypatch):
    """Of scatters with an index of its own for each element of a batch, which JAX makes of them."""
    if not kernel:
        monkeypatch.setattr(library, "available", lambda: False)
    x = normal((4, 6, 3))
    index = RNG.integers(0, x.shape[axis], [7 if d == axis else n for d, n in enumerate(x.shape)])
    cotangent = spread(index.shape)

    def gradient(x, cotangent):
        return jax.vjp(lambda x: jnp.take_along_axis(x, index, axis), x)[1](cotangent)[0]

    def assignment(x, cotangent):
        return jnp.put_along_axis(x, index, cotangent, axis, inplace=False)

    element = np.take_along_axis(np.arange(x.size).reshape(x.shape), index, axis)
    gradients = scatter_add(np.zeros_like(x), element, cotangent)
    assert_same_bits(repjax.reproducible(gradient)(x, cotangent), gradients)
    assigned = canonical(x).ravel()
    for i, u in zip(element.ravel(), canonical(cotangent).ravel(), strict=True):
        assigned[i] = u
    assert_same_bits(repjax.reproducible(assignment)(x, cotangent), assigned.reshape(x.shape))


def test_promises_about_the_indices_change_nothing():
    index = np.array([0, 2, 3, 6])
    x, u = spread(8), spread(4, 1)
    run = repjax.reproducible(
        lambda x, u: x.at[index].add(u, indices_are_sorted=True, unique_indices=True)
    )
    assert_same_bits(run(x, u), scatter_add(x, index, u))


# --- the order of the updates --------------------------------------------------------------

COUNT = 24
floats = st.one_of(
    st.floats(width=32, allow_subnormal=True),
    st.floats(-4, 4, width=32, allow_subnormal=False),
    st.sampled_from([float(x) for x in SPECIALS]),
)


@repjax.reproducible
def _scatter(x, index, u):
    return x.at[index].add(u)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), floats), min_size=COUNT, max_size=COUNT),
    st.permutations(range(COUNT)),
)
def test_any_order_of_the_updates_gives_the_same_bits(updates, permutation):
    index = np.array([i for i, _ in updates], np.int32)
    with np.errstate(all="ignore"):
        u = np.array([x for _, x in updates], np.float32)
    x = normal(4)  # index 4 is out of bounds
    result = np.asarray(_scatter(x, index, u))
    permutation = np.array(permutation)
    assert_same_bits(_scatter(x, index[permutation], u[permutation]), result)
    assert_same_bits(result, scatter_add(x, np.where(index < 4, index, -1), u))


def test_the_data_can_tell_orders_apart():
    """A plain loop over the same updates depends on their order."""
    index, u = RNG.integers(0, 4, 1000), spread(1000)
    plain = [np.zeros(4, np.float32) for _ in range(2)]
    for out, order in zip(plain, (slice(None), slice(None, None, -1)), strict=True):
        np.add.at(out, index[order], u[order])
    assert not np.array_equal(*plain)


# --- the ways to compute it --------------------------------------------------------------


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize("width", [1, 3, 8, 16, 37])
@pytest.mark.parametrize("method", ["add", "max", "min"])
def test_kernel(method, width):
    """With each instruction set, as without; rows of no, one and many updates, and none."""
    rng = np.random.default_rng(width)
    index = np.concatenate([rng.integers(-1, 31, 200), np.full(50, 7), [2**31 - 1, -(2**31)]])
    target = "add" if method == "add" else "extremum"
    for data in DATA:
        x, u = data((30, width), 1), data((len(index), width), 2)

        def run(x, u):
            numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
            function = getattr(lax, f"scatter_{method}")
            return function(x, index[:, None].astype(np.int32), u, numbers, mode="drop")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            expected = repjax.reproducible(lambda *xs: run(*xs))(x, u)
        lowered = repjax.reproducible(run).lower(x, u)
        text = lowered.as_text()
        assert f"custom_call @repjax_scatter_{target}" in text
        for name in each_instruction_set():
            assert_same_bits(lowered.compile()(x, u), expected, f"{data.__name__}, {name}")


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize(("rows", "windows"), [(100, 20_000), (20_000, 900), (9000, 20_000)])
def test_extrema_by_the_kernel(rows, windows, width):
    """Several threads with tables of their own, and one; raw updates."""
    windows *= 20 // width
    u, row = any_bits((windows, width)), RNG.integers(-1, rows + 1, windows)
    u[np.isnan(u) & (RNG.random(u.shape) < 0.95)] = 1
    for reduce in (jax.ops.segment_max, jax.ops.segment_min):

        def run(u, reduce=reduce):
            return reduce(u, row, rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            expected = repjax.reproducible(lambda u: run(u))(u)
        for name in each_instruction_set():
            assert_same_bits(repjax.reproducible(lambda u: run(u))(u), expected, name)
            assert_same_bits(repjax.reproducible(lambda u: run(u))(canonical(u)), expected, name)
        assert np.isnan(expected).any() and np.isfinite(expected).any()
        other = repjax.reproducible(lambda u: run(u))(u[::-1])  # negative control
        assert not same_bits(other, expected)


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize(
    ("rows", "windows", "used"),
    [(20_000, 900, 20_000), (20_000, 900, 50), (700, 9000, 700), (40, 9000, 3)],
)
def test_sums_of_wide_rows_by_the_kernel(rows, windows, used):
    """Sorted by several threads: rows without updates, few rows with many, some out of bounds."""
    width = 160
    row = RNG.permutation(rows)[RNG.integers(0, used, windows)].astype(np.int32)
    row[RNG.integers(0, windows, windows // 10)] = RNG.choice([-1, rows, 2**31 - 1, -(2**31)])
    x, u = any_bits((rows, width)), any_bits((windows, width))
    u[:, ::2] = RNG.standard_normal((windows, width // 2))

    def run(x, u):
        numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        return lax.scatter_add(x, row[:, None], u, numbers, mode="drop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        expected = repjax.reproducible(lambda *xs: run(*xs))(x, u)
    for name in each_instruction_set():
        assert_same_bits(repjax.reproducible(lambda *xs: run(*xs))(x, u), expected, name)
    other = repjax.reproducible(lambda *xs: run(*xs))(x, u[::-1])  # negative control
    assert not same_bits(other, expected)


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
def test_a_coarser_grid_of_the_kernel_is_caught(monkeypatch):
    index, u = cancelling(4096)
    run = repjax.reproducible(lambda x, u: x.at[index].add(u))
    expected = run(np.zeros(4, np.float32), u)
    monkeypatch.setattr(grids, "SUMS", grids.SUMS._replace(bits=37))
    coarser = repjax.reproducible(lambda x, u: x.at[index].add(u))
    assert not same_bits(coarser(np.zeros(4, np.float32), u), expected)


@pytest.mark.parametrize(
    ("rows", "width", "times"),
    [(1, 1, 3), (3, 5, 9), (9, 24, 5), (5000, 40, 3), (2, 1, 90_000), (900, 24, 5), (2000, 3, 12)],
)
def test_ties_that_float64_does_not_see(rows, width, times):
    """1 + 2**-24 is a tie, and remains one on the grid, whatever is added of 2**-40.

    In all ways that the kernel has: tables, with one grid or a range of exponents for each sum, and
    lists of updates, more of them than float64 adds exactly, several threads.
    """
    row = np.repeat(np.arange(rows, dtype=np.int32), times)
    of_row = np.float32([1, 2.0**-24] + [2.0**-40] * (times - 2))
    updates = np.tile(of_row, rows)[:, None] * np.ones(width, np.float32)
    shuffled = np.random.default_rng(0).permutation(len(row))
    run = repjax.reproducible(lambda u, r: jax.ops.segment_sum(u, r, rows))
    assert_same_bits(run(updates[shuffled], row[shuffled]), np.ones((rows, width), np.float32))
    zero = np.zeros(1, np.float32)
    assert scatter_add(zero, np.zeros(times, int), of_row) == 1
    assert np.float32(of_row.astype(np.float64).sum()) > 1


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize("data", [spread, any_bits])
@pytest.mark.parametrize(
    ("rows", "width"), [(700, 1), (600, 2), (900, 3), (500, 8), (800, 16), (500, 21), (60, 64)]
)
def test_updates_of_all_sizes_in_tables(rows, width, data):
    """Too many of them are too small for one grid: each sum has a range of exponents."""
    windows = 200_000 // width
    row = RNG.integers(-1, rows, windows).astype(np.int32)
    u = data((windows, width))
    u[RNG.random(u.shape) < 0.1] = -0.0
    u[RNG.random(u.shape) < 0.01] = 2.0**-140
    if data is any_bits:
        u[~np.isfinite(u) & (RNG.random(u.shape) < 0.99)] = 1
    x = normal((rows, width))
    row[row == 7] = 8  # a row without updates

    def run(x, u):
        return x.at[row].add(u, mode="drop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        expected = repjax.reproducible(lambda *xs: run(*xs))(x, u)
    for name in each_instruction_set():
        assert_same_bits(repjax.reproducible(lambda *xs: run(*xs))(x, u), expected, name)
    assert_same_bits(expected[7], x[7])
    other = repjax.reproducible(lambda *xs: run(*xs))(x, u[::-1])  # negative control
    assert not same_bits(other, expected)


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize("method", ["add", "max", "min", "set"])
@pytest.mark.parametrize("mode", MODES)
def test_batches_of_scatters(method, mode):
    """Of rows, which are rows of one table; indices out of bounds are so in their own batch."""
    rng = np.random.default_rng(3)
    index, x, u = rng.integers(-2, 14, (4, 3, 60)), spread((4, 3, 12, 5)), spread((4, 3, 60, 5), 1)

    def each(x, index, u):
        return getattr(x.at[index], method)(u, mode=mode)

    def run(x, u):
        return jax.vmap(jax.vmap(each))(x, index, u)

    def run_one_by_one(x, u):
        batches = (a.reshape(12, *a.shape[2:]) for a in (x, index, u))
        return jnp.stack([each(*batch) for batch in zip(*batches, strict=True)]).reshape(x.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        one_by_one = repjax.reproducible(run_one_by_one)(x, u)
        assert_same_bits(repjax.reproducible(lambda *xs: run(*xs))(x, u), one_by_one)
    lowered = repjax.reproducible(run).lower(x, u)
    assert ("custom_call @repjax_scatter" in lowered.as_text()) == (method != "set")
    for name in each_instruction_set():
        assert_same_bits(lowered.compile()(x, u), one_by_one, name)
    assert not same_bits(repjax.reproducible(run)(x, u[:, :, ::-1]), one_by_one)  # negative control


@pytest.mark.parametrize("kernel", [True, False])
def test_batches_behind_rows(kernel, monkeypatch):
    """The axis of the batches is the second of the operand, and of the indices."""
    if not kernel:
        monkeypatch.setattr(library, "available", lambda: False)
    index, x, u = RNG.integers(-2, 9, (60, 4)), spread((7, 4, 3)), spread((60, 4, 3), 1)
    numbers = lax.ScatterDimensionNumbers((2,), (0,), (0,), (1,), (1,))

    def run(x, u):
        return lax.scatter_add(x, index[..., None], u, numbers, mode="drop")

    batches = [x[:, b] for b in range(4)]
    for b, one in enumerate(batches):
        inside = (index[:, b] >= 0) & (index[:, b] < 7)
        element = np.arange(one.size).reshape(one.shape)[index[inside, b]]
        batches[b] = scatter_add(one, element, u[inside, b])
    expected = np.stack(batches, 1)
    assert_same_bits(repjax.reproducible(run)(x, u), expected)
    assert not same_bits(repjax.reproducible(run)(x, u[::-1]), expected)  # negative control


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
@pytest.mark.parametrize("special", [0, 3, 40])
@pytest.mark.parametrize("width", [1, 5, 24, 80])
def test_few_updates_that_are_too_small_for_one_grid(width, special):
    """Tables of float64 sums, which are exact but for these, of no, a few and more rows.

    The first updates of the special rows are 2**-16 + 2**-39: too small for the grid of the last
    ones, which are 1, so that the sum is a tie there, but not for that of all updates before these.
    """
    rng = np.random.default_rng(width)
    rows, windows = 1000, 20_000
    first, second = np.float32(2.0**-16 + 2.0**-39), np.float32(2.0**-24 - 2.0**-16)
    row = [np.arange(special), rng.integers(special, rows, windows), np.arange(special)]
    row = np.concatenate([*row, np.arange(special)]).astype(np.int32)
    others = rng.uniform(0.125, 0.25, (windows, width)).astype(np.float32)
    others[rng.integers(windows, size=50)] = -0.0
    others[rng.integers(windows, size=5), 0] *= np.float32(2.0**-17)
    specials = [np.full((special, width), u) for u in (first, second, np.float32(1))]
    updates = np.concatenate([specials[0], others, *specials[1:]]).astype(np.float32)
    x = np.zeros((rows + 5, width), np.float32)
    x[::3] = -0.0

    def run(x, u):
        return x.at[row].add(u)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        expected = repjax.reproducible(lambda *xs: run(*xs))(x, updates)
    assert (np.asarray(expected)[:special] == 1).all()
    assert np.float32(np.float64(first) + np.float64(second) + 1) > 1  # the data can tell
    for name in each_instruction_set():
        for order in (slice(None), rng.permutation(len(row))):
            ours = repjax.reproducible(lambda x, u, r: x.at[r].add(u))(
                x, updates[order], row[order]
            )
            assert_same_bits(ours, expected, name)


@pytest.mark.parametrize("width", [1, 8, 50])
def test_raw_updates(width):
    """Large inputs, which the kernel makes canonical as it reads them."""
    updates, row = patterns(20_000 * width).reshape(20_000, width), RNG.integers(-1, 700, 20_000)
    run = repjax.reproducible(lambda u: jax.ops.segment_sum(u, row, 600))
    assert_same_bits(run(updates), run(canonical(updates)))
    assert np.isfinite(run(updates)).any() and np.isnan(run(updates)).any()


def test_few_windows_without_the_kernel(monkeypatch):
    monkeypatch.setattr(library, "available", lambda: False)
    for name in (name for name in SCATTERS if "few" in name or name == "one row"):
        test_scatter_add(name)
    for mode in MODES:
        test_modes(mode, 40)


# --- what is made of it -----------------------------------------------------------------


def test_segment_sum():
    segments = RNG.integers(-1, 6, 50)  # -1 and 5 are nowhere
    for data in DATA:
        x = data((50, 3))
        run = repjax.reproducible(lambda x: jax.ops.segment_sum(x, segments, num_segments=5))
        inside = (segments >= 0) & (segments < 5)
        rows = np.arange(15).reshape(5, 3)
        positions = np.where(inside[:, None], rows[np.where(inside, segments, 0)], -1)
        zeros = np.zeros((5, 3), np.float32)
        assert_same_bits(run(x), scatter_add(zeros, positions, x), data.__name__)


def test_gradient_of_take():
    """Of an embedding, that is: the cotangents of equal rows are added."""
    index = RNG.integers(0, 6, (4, 10))
    table, cotangent = normal((6, 3)), spread((4, 10, 3))
    expected = scatter_add(
        np.zeros((6, 3), np.float32), positions_of((6, 3), index, cotangent), cotangent
    )

    def gradient(take):
        return repjax.reproducible(lambda x, ct: jax.vjp(take, x)[1](ct)[0])(table, cotangent)

    assert_same_bits(gradient(lambda x: jnp.take(x, index, axis=0)), expected, "take")
    assert_same_bits(gradient(lambda x: x[index]), expected, "index")


def test_gradient_of_scatter_add():
    index = np.array([1, 1, 0, 7, 3, 1])  # 7 is out of bounds
    x, u, cotangent = normal(4), normal(6, 1), normal(4, 2)
    run = repjax.reproducible(
        lambda x, u, ct: jax.vjp(lambda x, u: x.at[index].add(u), x, u)[1](ct)
    )
    gathered = np.where(index < 4, cotangent[index % 4], np.float32(0))
    assert_same_bits(run(x, u, cotangent), (cotangent, gathered))


# --- assignments, products, extrema -------------------------------------------------------


each_method = pytest.mark.parametrize("method", METHODS)


def stock(method, index, **options):
    return lambda x, u: getattr(x.at[index], method)(u, **options)


@each_method
@pytest.mark.parametrize("name", SCATTERS)
def test_other_scatters(method, name):
    shape, index, update_shape = SCATTERS[name]
    run = repjax.reproducible(stock(method, index))
    for data in (normal, any_bits):
        x, u = data(shape, 1), data(update_shape, 2)
        full = np.broadcast_to(u, np.zeros(shape)[index].shape)
        expected = scatter_in_order(method, x, positions_of(shape, index, full), full)
        assert_same_bits(run(x, u), expected, data.__name__)


@each_method
@pytest.mark.parametrize("mode", ["fill", "drop", "clip", "promise_in_bounds"])
def test_modes_of_other_scatters(method, mode):
    index = np.array([0, 3, 99, -99, 4, 3, -1, 5, 4, 2**31 - 1, -(2**31)], np.int32)
    if mode == "promise_in_bounds":
        index %= 5
    x, u = normal(5), normal(index.size, 1)
    wrapped = np.where(index < 0, index.astype(np.int64) + 5, index)
    inside = (wrapped >= 0) & (wrapped < 5)
    positions = np.clip(wrapped, 0, 4) if mode == "clip" else np.where(inside, wrapped, -1)
    run = repjax.reproducible(stock(method, index, mode=mode))
    assert_same_bits(run(x, u), scatter_in_order(method, x, positions, u))


@pytest.mark.parametrize("method", ["set", "mul"])
def test_the_data_can_tell_the_order_of_assignments_and_products(method):
    index = RNG.integers(0, 5, 40)
    x, u = normal(5), normal(40, 1)
    forwards, backwards = (scatter_in_order(method, x, index, u, order) for order in (1, -1))
    assert not same_bits(forwards, backwards)
    assert_same_bits(repjax.reproducible(stock(method, index))(x, u), forwards)


WINDOWS = lax.ScatterDimensionNumbers((1,), (), (0,))


@each_method
def test_windows_that_overlap(method):
    """Windows are applied in their order, not the updates in the order of their positions."""
    scatter = {"set": lax.scatter, "mul": lax.scatter_mul}.get(method)
    scatter = scatter or getattr(lax, f"scatter_{method}")
    index = np.array([[4], [2], [3], [0], [2]])
    x, u = any_bits(9, 1), any_bits((5, 4), 2)
    positions = index + np.arange(4)
    expected = scatter_in_order(method, x, positions, u)
    run = repjax.reproducible(lambda x, u: scatter(x, index, u, WINDOWS))
    assert_same_bits(run(x, u), expected)
    if method == "set":
        assert not same_bits(expected, scatter_in_order(method, x, positions.T, u.T))


@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_products_with_updates_that_cannot_meet(mode):
    """Are products with ones, and with the updates where there are any: the bits of the loop."""
    x, u = any_bits(9, 1), any_bits(4, 2)
    index = np.array([8, 0, 4, 20])[:, None]  # the last is nowhere, or clipped to where one is

    def multiply(x, index, u, unique=False, numbers=POINTS):
        return lax.scatter_mul(x, index, u, numbers, unique_indices=unique, mode=mode)

    def lowered(*operands):
        return repjax.reproducible(multiply, static_argnums=(3, 4)).lower(*operands).as_text()

    index, u = (index[:3], u[:3]) if mode == "clip" else (index, u)
    run = repjax.reproducible(multiply, static_argnums=(3, 4))
    assert_same_bits(run(x, index, u, True), run(x, index, u, False))
    assert "repjax_scatter_mul" in lowered(x, index, u, False)
    assert "repjax_scatter_mul" not in lowered(x, index, u, True)
    window = np.array([7 if mode == "clip" else 5]), u, False, WINDOW
    want = canonical(x).copy()
    start = 9 - len(u) if mode == "clip" else 5
    want[start : start + len(u)] = repjax.lax.mul(want[start : start + len(u)], canonical(u))
    assert_same_bits(run(x, *window), want)
    assert "repjax_scatter_mul" not in lowered(x, *window)


POINTS = lax.ScatterDimensionNumbers((), (0,), (0,))
WINDOW = lax.ScatterDimensionNumbers((0,), (), (0,))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "int32", "float16", "bfloat16"])
def test_assignments_of_every_type(dtype):
    index = RNG.integers(-6, 6, 40)  # -6 and 5 are nowhere
    x, u = patterns(5, 1, jnp.dtype(dtype)), patterns(40, 2, jnp.dtype(dtype))
    expected = canonical(x).copy()
    for i, y in zip(index, canonical(u), strict=True):
        if -5 <= i < 5:
            expected[i] = y
    assert_same_bits(repjax.reproducible(stock("set", index))(x, u), expected)


@each_method
def test_promises_change_nothing(method):
    index = np.array([0, 2, 3, 6])
    x, u = normal(8), normal(4, 1)
    options = {"indices_are_sorted": True, "unique_indices": True}
    run = repjax.reproducible(stock(method, index, **options))
    assert_same_bits(run(x, u), scatter_in_order(method, x, index, u))


@each_method
def test_batches_of_other_scatters(method):
    x, u = normal((3, 5)), normal((3, 20), 1)
    index = RNG.integers(0, 5, (3, 20))

    def scatter(x, index, u):
        return stock(method, index)(x, u)

    rows = [scatter_in_order(method, *row) for row in zip(x, index, u, strict=True)]
    assert_same_bits(repjax.reproducible(jax.vmap(scatter))(x, index, u), np.stack(rows))
    with repjax.enabled():
        eager = [scatter(*map(jnp.asarray, row)) for row in zip(x, index, u, strict=True)]
    assert_same_bits(np.stack(eager), np.stack(rows), "eager")
    rows = [scatter_in_order(method, x[0], index[0], row) for row in u]
    run = repjax.reproducible(jax.vmap(scatter, (None, None, 0)))
    assert_same_bits(run(x[0], index[0], u), np.stack(rows), "vmap of updates")


def test_gradient_of_an_assignment():
    """The cotangent goes to the update that wins, and to what no update reaches."""
    index = np.array([1, 4, 0, 1, 3, 1])  # 4 is out of bounds
    x, u, cotangent = normal(4), normal(6, 1), normal(4, 2)
    run = repjax.reproducible(lambda x, u, ct: jax.vjp(stock("set", index), x, u)[1](ct))
    to_x, to_u = np.zeros(4, np.float32), np.zeros(6, np.float32)
    to_x[2] = cotangent[2]
    to_u[[2, 4, 5]] = cotangent[[0, 3, 1]]
    assert_same_bits(run(x, u, cotangent), (to_x, to_u))


def test_gradient_of_a_maximum_is_shared_by_equals():
    index = np.array([1, 1, 0, 1])
    x, u = np.float32([1, 2, 3]), np.float32([5, 5, 1, 4])
    run = repjax.reproducible(
        lambda x, u: jax.vjp(stock("max", index), x, u)[1](np.float32([6] * 3))
    )
    assert_same_bits(run(x, u), (np.float32([3, 0, 6]), np.float32([3, 3, 3, 0])))


def test_gradient_of_a_product():
    index = np.array([2, 0])
    x, u, cotangent = normal(3), normal(2, 1), normal(3, 2)
    options = {"unique_indices": True}
    run = repjax.reproducible(lambda x, u, ct: jax.vjp(stock("mul", index, **options), x, u)[1](ct))
    expected = scatter_in_order("mul", cotangent, index, u), (cotangent * x)[index]
    assert_same_bits(run(x, u, cotangent), expected)


def test_explicit_scatters_have_these_derivatives():
    index = np.array([1, 1, 0, 1])
    x, u = normal(3), normal(4, 1)
    for method in ("set", "max", "subtract"):
        gradient = jax.grad(lambda x, u, m=method: (stock(m, index)(x, u) ** 2).sum(), (0, 1))
        twin = explicit(stock(method, index))
        explicit_gradient = jax.grad(
            lambda x, u, f=twin: repjax.numpy.sum(repjax.lax.integer_pow(f(x, u), 2)), (0, 1)
        )
        assert_same_bits(explicit_gradient(x, u), repjax.reproducible(gradient)(x, u), method)


def test_scatter_sub_adds_the_negated_updates():
    index = RNG.integers(0, 7, 40)
    x, u = spread(7), spread(40, 1)
    run = repjax.reproducible(stock("subtract", index))
    assert_same_bits(run(x, u), scatter_add(x, index, -u))


REFUSED = {
    "function": (lambda x: x.at[0].apply(jnp.sin), "x.at[i].set(f(x[i]))"),
    "keys": (
        lambda x: jax.random.split(jax.random.key(0), 4).at[0].set(jax.random.key(1)),
        "scatter jax.random.key_data(keys)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_scatters_name_the_remedy(name):
    function, remedy = REFUSED[name]
    with pytest.raises(repjax.RefusedError, match=re.escape(remedy)):
        repjax.reproducible(function)(normal(4))


# --- ways to run it -----------------------------------------------------------------------


def test_batches_and_loops():
    """Each row of a batch has the bits it has alone."""
    index, u = map(np.stack, zip(*(cancelling(64, seed) for seed in range(5)), strict=True))
    x = np.zeros((5, 4), np.float32)

    def scatter(x, index, u):
        return x.at[index].add(u)

    alone = np.stack([scatter_add(*row) for row in zip(x, index, u, strict=True)])
    run = repjax.reproducible
    assert_same_bits(run(jax.vmap(scatter))(x, index, u), alone, "vmap")
    assert_same_bits(run(lambda *a: lax.map(lambda xs: scatter(*xs), a))(x, index, u), alone, "map")
    with repjax.enabled():
        rows = [scatter(*map(jnp.asarray, row)) for row in zip(x, index, u, strict=True)]
    assert_same_bits(np.stack(rows), alone, "eager")
    same = [scatter_add(x[0], index[0], row) for row in u]
    assert_same_bits(
        run(jax.vmap(scatter, (None, None, 0)))(x[0], index[0], u),
        np.stack(same),
        "vmap of updates",
    )
    same = [scatter_add(x[0], row, u[0]) for row in index]
    assert_same_bits(
        run(jax.vmap(scatter, (None, 0, None)))(x[0], index, u[0]),
        np.stack(same),
        "vmap of indices",
    )
