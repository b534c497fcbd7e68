"""Loops by the C++ kernel have the bits of the scans and whiles that they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import without_kernel
from repjax.primitives.cpu import library, loops, steps

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)

KERNEL = "custom_call @repjax_loop"
N = 24
KEY = jax.random.key(3)


def matrix(*shape, seed=0):
    return normal(int(np.prod(shape)), seed).reshape(shape) / np.float32(4)


def lowered(function, *args):
    return repjax.reproducible(lambda *xs: function(*xs)).lower(*args)


def compare(function, *args, calls=1):
    """The same bits, with so many calls of the kernel, in which all loops are."""
    program = lowered(function, *args)
    text = program.as_text()
    assert (text.count(KERNEL), "stablehlo.while" in text) == (calls, calls == 0)
    expected, program = without_kernel(function, *args), program.compile()
    for _ in each_instruction_set():
        jax.tree.map(assert_same_bits, program(*args), expected)
    return program(*args)


# --- where values are: what a body does with a vector x and a matrix w -------------------------


def _step(w, x):
    return jnp.tanh(x @ w)


def _carried_and_given(w, h, x):
    h = _step(w, h + x)
    return h, h


def _several(w, carry, x):
    """Carries that change places, one that stays, one that is twice what it was, and integers."""
    a, b, same, i = carry
    y = _step(w, a - x)
    return (b, y, same, i + 1), (a, y, y[0], x, (y > 0), i)


def _taken_apart(w, h, x):
    """Parts of values, also of what is carried and of what is given."""
    y = _step(w, h) + x
    return y, (y[3:7], y.reshape(2, N // 2)[1], y[N - 1], h[:1])


def _sums(w, total, x):
    y = jnp.outer(x, total) @ w
    return total + y.sum(0), (jnp.exp(y).sum(1), y.max(0), (y * y).sum(1), total)


def _transposed(w, total, x):
    """Products that are only transposed, of vectors and of matrices."""
    y = jnp.outer(x, x) @ w
    z = (w @ jnp.outer(x, total)).T
    return z[0] + total, (y, z, (y @ w).T, lax.dot(x, w))


def _halves(w, h, x):
    y = (h.astype(jnp.bfloat16) * x.astype(jnp.bfloat16)).astype(jnp.float32)
    h = _step(w, y)
    return h, (h.astype(jnp.float16), y)


def _moved(w, h, x):
    """Slices, what is joined, numbers around it; also of what is returned as it was moved."""
    y = jnp.outer(h, x) @ w
    z = jnp.concatenate([y[:, 1:], y[:, :1]], 1)
    padded = jnp.pad(z[:, ::2], ((1, 0), (0, 2)), constant_values=-1.5)
    once = jnp.pad(y[:, 3:7] > 0, ((0, 0), (2, 0)), constant_values=True)
    half = jnp.concatenate([jnp.full((1, N), 2, jnp.bfloat16), z[1:3].astype(jnp.bfloat16)])
    return jnp.tanh(jnp.roll(h, 2) + z[0]), (padded, once, half, z[2:4, 3:], jnp.roll(x, -1))


def _normalised(w, h, x):
    """Row groups, of one row and of several."""
    mean = h.mean()
    h = (h - mean) * lax.rsqrt(((h - mean) ** 2).mean() + 1e-5) * x
    y = jax.nn.softmax(jnp.outer(h, x), axis=-1)
    return h, (y, jax.nn.log_softmax(h @ w))


def _windows(w, h, x):
    """Windows that begin where numbers say, also where they would not be in the array."""
    i, j = (h[:2] * 64).astype(np.int32)
    y = jnp.outer(h, x) @ w
    small = y[:4, :8]
    parts = (
        lax.dynamic_slice(y, (i, j), (3, 5)),
        lax.dynamic_slice(y > 0, (j, 2), (2, 20)),
        lax.dynamic_slice(y.astype(jnp.bfloat16), (i, 0), (1, N)),
        lax.dynamic_update_slice(small, y[5:7, 3:6], (j, i)),
        small.at[i % 5].set(x[:8]),  # may be none
        small.at[:, j].set(x[:4], mode="drop"),
        small.at[1, i].set(2.0, mode="clip"),
        jnp.zeros(5, np.int32).at[j].set(i),
    )
    return _step(w, h), parts


def _turned(w, h, x):
    """What is transposed, stacked, and counts."""
    y = jnp.outer(h, x) @ w
    z = y.reshape(2, 3, 4, N)
    parts = (
        y[:, :5].T,
        jnp.transpose(z, (3, 1, 0, 2)),
        jnp.transpose(z > 0, (0, 2, 1, 3)),
        *(jnp.stack([y[:3], y[3:6], y[:3] * 2], axis) for axis in range(3)),
        jnp.stack([h.astype(jnp.bfloat16), x.astype(jnp.bfloat16)], 1),
        jnp.where(lax.broadcasted_iota(np.int32, (3, N), 1) < x[0] * 30, y[:3], -1),
    )
    return _step(w, h), parts


def _positions(w, h, x):
    """Positions of extrema, of several columns, of equals and of NaNs."""
    y = jnp.outer(h, x) @ w
    few = jnp.round(y[:7])
    unknown = jnp.where(y > 0.1, jnp.nan, y)
    found = [
        f(z, axis)
        for f in (jnp.argmax, jnp.argmin)
        for z in (y, few, unknown, y.reshape(4, 6, N))
        for axis in (0, 1, None)
    ]
    return _step(w, h), (*found, x[jnp.argmax(h)])


def _draws(w, h, x):
    """Random numbers of keys that are made of others."""
    keys = jax.random.split(jax.random.fold_in(KEY, (x[0] * 1000).astype(np.int32)), (2, 2))
    noise = jax.random.uniform(keys[0, 1], (N,))
    bits = jax.vmap(lambda k: jax.random.bits(k, (3,)))(keys[1])
    return _step(w, h) + noise, (bits, jax.random.key_data(keys), keys[1, 0], noise < 0.5)


def _choices(w, h, x):
    """Branches, of which some give what they get, and numbers."""

    def other(h):
        return h, 2.0, jnp.zeros(3, np.int32), True

    def first(h):
        return _step(w, h), h[0], (h[:3] * 9).astype(np.int32), h[0] > 0.25

    one = lax.cond(h[0] > 0, first, other, h)
    i = (x[0] * 16).astype(np.int32)
    two = lax.switch(
        i, [first, lambda h: first(h + x), lambda h: (x, 1.0, i + jnp.arange(3), False)], h
    )
    return one[0] * two[1], (one, two)


def _loops_within(w, h, x):
    """Loops in a loop, and in these."""

    def inner(c, row):
        def goes_on(state):
            return (state[0] < 3) & ((state[1] @ w).sum() < 3)

        _, y = lax.while_loop(goes_on, lambda s: (s[0] + 1, _step(w, s[1]) + row * row), (0, c))
        return _step(w, y), (y[:2], lax.fori_loop(0, 2, lambda _, z: _step(w, z), y))

    y = jnp.outer(h, x) @ w
    last, given = lax.scan(inner, h, y[:3])
    return last + lax.scan(lambda c, _: (_step(w, c), None), x, None, length=2)[0], given


def _start(body):
    x = matrix(N, seed=5)
    return (x, x + 1, x * 2, np.int32(3)) if body is _several else x


BODIES = [
    *(_carried_and_given, _several, _taken_apart, _sums, _transposed, _halves, _moved, _normalised),
    *(_windows, _turned, _positions, _draws, _choices, _loops_within),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("body", BODIES)
def test_scans_have_the_bits_of_their_equations(body, length, reverse):
    def program(w, start, xs):
        return lax.scan(lambda c, x: body(w, c, x), start, xs, reverse=reverse)

    compare(program, matrix(N, N), _start(body), matrix(length, N, seed=1))


def test_no_iterations():
    def program(w, h):
        return lax.fori_loop(0, 0, lambda _, c: (c[1], _step(w, c[0])), (h, h + 1))

    start = matrix(N, seed=5)
    for result, expected in zip(
        repjax.reproducible(program)(matrix(N, N), start), (start, start + 1), strict=True
    ):
        assert_same_bits(result, expected)


def test_what_was_decoded_for_another_instruction_set():
    """Eight columns fill two vectors of one set and half of one of another, which would be written
    where the exponentials are."""

    def step(w, x):
        return jnp.tanh(jnp.exp(-x) * jnp.concatenate([x @ w] * 4) + 1)

    def program(w, x):
        return lax.fori_loop(0, 5, lambda _, x: step(w, x), x)

    args = matrix(32, 8), matrix(32, seed=1)
    found, expected = lowered(program, *args), without_kernel(program, *args)
    assert KERNEL in found.as_text()
    found, (in_use, _) = found.compile(), library.in_use()
    try:
        for name in reversed(library.instruction_sets()):  # the shortest vectors first
            library.choose(name)
            assert_same_bits(found(*args), expected, name)
    finally:
        library.choose(in_use)


def test_a_wrong_place_is_noticed(monkeypatch):
    """What these tests compare would be other values if two of them were in one place."""

    def program(w, start, xs):
        return lax.scan(lambda c, x: _several(w, c, x), start, xs)

    args = matrix(N, N), _start(_several), matrix(7, N, seed=1)
    expected = without_kernel(program, *args)

    def same_place(self, aval):
        self.scratch = 4 * aval.size
        return len(self.equation.invars) + len(self.equation.outvars), 0

    monkeypatch.setattr(loops._Encoder, "_more", same_place)
    actual = lowered(program, *args).compile()(*args)
    assert not same_bits(actual[0][0], expected[0][0])


@pytest.mark.parametrize("body", [_windows, _choices])
def test_other_windows_and_branches_are_noticed(body, monkeypatch):
    right = loops._INNER["cond"]

    def at_the_begin(*args):
        return begin(*args)._replace(most=0)

    def turned(equation):
        branches = equation.params["branches"][::-1]
        return right(equation.replace(params=equation.params | {"branches": branches}))

    begin = steps._Begin
    monkeypatch.setattr(steps, "_Begin", at_the_begin)
    monkeypatch.setitem(loops._INNER, "cond", turned)

    def program(w, start, xs):
        return lax.scan(lambda c, x: body(w, c, x), start, xs)

    args = matrix(N, N), _start(body), matrix(7, N, seed=1)
    expected, actual = without_kernel(program, *args), lowered(program, *args).compile()(*args)
    assert not all(map(same_bits, *map(jax.tree.leaves, (expected, actual))))


# --- loops without a number of iterations ------------------------------------------------------


def _until(body):
    """A while that carries also its count, what stays as it is, and what changes places."""

    def program(w, start, x, times):
        def step(state):
            i, h, same, a, b = state
            return i + 1, body(w, h, x)[0], same, b, a

        return lax.while_loop(lambda s: s[0] < times, step, (0, start, x, x + 1, x * 2))

    return program


@pytest.mark.parametrize("body", BODIES)
def test_whiles_have_the_bits_of_their_equations(body):
    args = matrix(N, N), _start(body), matrix(N, seed=1)
    program = lowered(_until(body), *args, np.int32(0))
    text = program.as_text()
    is_short = body is _normalised  # without its softmaxes, which nothing needs
    calls = 0 if is_short else 2 if body is _loops_within else 1  # an inner one comes before it
    assert (text.count(KERNEL), "stablehlo.while" in text) == (calls, is_short)
    program = program.compile()
    for times in map(np.int32, (0, 1, 2, 7)):
        expected = without_kernel(_until(body), *args, times)
        for _ in each_instruction_set():
            jax.tree.map(assert_same_bits, program(*args, times), expected)


def _to_a_norm(w, x):
    """Until a sum says so, of what no step but the condition computes."""

    def is_far(state):
        i, x, y = state
        return (i < 50) & (((x - y) ** 2).sum() > 1e-6)

    return lax.while_loop(is_far, lambda s: (s[0] + 1, _step(w, s[1]) + 1, s[1]), (0, x, x + 1))


def _to_a_flag(w, x):
    """Which the state has as it is."""

    def step(state):
        _, i, x = state
        x = _step(w, x) / 5
        return jnp.abs(x).max() > 1e-6, i + 1, x

    return lax.while_loop(lambda s: s[0], step, (True, 0, x))[1:]


def _with_a_bound(w, x):
    """A constant of the condition, and the loop's results as one of several."""
    bound = jnp.abs(x).max() * 3
    i, y = lax.while_loop(
        lambda s: jnp.abs(s[1]).max() < bound, lambda s: (s[0] + 1, s[1] @ w * 1.5), (0, x)
    )
    return i, y, bound, y * 2


@pytest.mark.parametrize("program", [_to_a_norm, _to_a_flag, _with_a_bound])
def test_conditions_of_whiles(program):
    count, *_ = compare(program, matrix(N, N), matrix(N, seed=5))
    assert 2 < count < 50


def test_a_while_of_nans():
    args = matrix(N, N), np.full(N, np.nan, np.float32)
    compare(_to_a_norm, *args)


def test_a_wrong_turn_of_a_while_is_noticed(monkeypatch):
    """As if the state of even iterations were that of odd ones."""
    args = matrix(N, N), _start(_several), matrix(N, seed=1), np.int32(2)
    expected = without_kernel(_until(_several), *args)
    right = loops._Encoder._carried

    def wrong(self, operand, even, odd):
        found, given = right(self, operand, even, odd)
        return loops._Place(found.first, found.odd, found.even), given

    monkeypatch.setattr(loops._Encoder, "_carried", wrong)
    actual = lowered(_until(_several), *args).compile()(*args)
    assert not all(map(same_bits, *map(jax.tree.leaves, (actual, expected))))


@pytest.mark.parametrize("program", [_to_a_norm, _to_a_flag, _with_a_bound])
def test_whiles_of_several_examples(program):
    """One that has ended stays as it is while the others go on."""
    w, xs = matrix(N, N), matrix(9, N, seed=5) / 10 ** np.arange(9, dtype=np.float32)[:, None]
    xs[3] = np.nan
    single = [without_kernel(program, w, x) for x in xs]
    mapped = lowered(jax.vmap(program, (None, 0)), w, xs)
    assert mapped.as_text().count(KERNEL) == 1
    mapped = mapped.compile()
    for _ in each_instruction_set():
        for got, *want in zip(mapped(w, xs), *single, strict=True):
            assert_same_bits(got, np.stack(want))
    assert len(set(map(int, mapped(w, xs)[0]))) > 2


def test_examples_that_go_on_are_noticed(monkeypatch):
    w, xs = matrix(N, N), matrix(9, N, seed=5)
    expected = without_kernel(jax.vmap(_to_a_norm, (None, 0)), w, xs)
    monkeypatch.setattr(loops, "KEEP", loops.COPY)  # of other bytes to another place
    actual = lowered(jax.vmap(_to_a_norm, (None, 0)), w, xs).compile()(w, xs)
    assert not same_bits(actual[0], expected[0])


def test_a_scan_of_whiles():
    """Which is the scan of their calls."""
    w, xs = matrix(N, N), matrix(3, N, seed=5)

    def nested(w, xs):
        return lax.scan(lambda c, x: (_to_a_norm(w, c + x)[1], x), xs[0], xs)

    found = lowered(nested, w, xs)
    assert found.as_text().count(KERNEL) == 1
    jax.tree.map(assert_same_bits, found.compile()(w, xs), without_kernel(nested, w, xs))


def test_what_no_one_needs_is_no_kernel():
    """A row group without results was an error."""

    def program(x):
        def step(state):
            jax.nn.softmax(jnp.outer(state[1], x), axis=-1)
            return state[0] + 1, jnp.tanh(state[1] * x)

        return lax.while_loop(lambda s: s[0] < 3, step, (0, x))

    assert "repjax_rows" not in lowered(program, matrix(N)).as_text()
    compare(program, matrix(N), calls=0)  # it is short


def test_a_large_while_writes_its_state_in_place():
    def program(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, x))

    for size, calls in ((1 << 10, 1), (1 << 17, 0)):
        assert lowered(program, np.ones(size, np.float32)).as_text().count(KERNEL) == calls


def test_special_values_are_carried():
    values = np.float32([np.nan, -np.inf, np.inf, -0.0, 1e-40, 2.0**-126, 3e38, 1] * 3)
    compare(
        lambda w, x, xs: lax.scan(lambda c, x: _carried_and_given(w, c, x), x, xs),
        matrix(N, N),
        matrix(N, seed=5),
        np.stack([values, values[::-1], np.copysign(0, values), values]),
    )


def test_large_operands_are_read_as_they_come():
    w = matrix(160, 160)
    w[3, 5:90] = 1e-40
    compare(lambda w, x: lax.fori_loop(0, 5, lambda _, x: _step(w, x), x), w, matrix(160, seed=5))


def test_gradients_and_loops_of_loops():
    def loss(w, x, xs):
        h, ys = lax.scan(lambda c, x: _carried_and_given(w, c, x), x, xs)
        return (ys * ys).sum() + h.sum()

    args = matrix(N, N), matrix(N, seed=5), matrix(6, N, seed=1)
    compare(jax.grad(loss, argnums=(0, 1, 2)), *args, calls=2)

    def nested(w, x, xs):
        return lax.scan(lambda c, x: (loss(w, c, xs) + x, c), x, xs)

    found = lowered(nested, *args)
    assert found.as_text().count(KERNEL) == 1
    jax.tree.map(assert_same_bits, found.compile()(*args), without_kernel(nested, *args))


def test_maps_over_loops_have_the_same_bits():
    """Which are other loops, of other products."""

    def program(w, x):
        return lax.fori_loop(0, 5, lambda _, x: _step(w, x), x)

    w, xs = matrix(N, N), matrix(3, N, seed=5)
    single = repjax.reproducible(program)
    expected = np.stack([single(w, x) for x in xs])
    assert_same_bits(jax.vmap(single, (None, 0))(w, xs), expected)
    assert_same_bits(repjax.reproducible(jax.vmap(program, (None, 0)))(w, xs), expected)


def _with_a_sort(w, x):
    return jnp.sort(_step(w, x))


def _with_positions(w, x):
    """Which the kernel for rows takes as an operand more."""
    y = jnp.where(jnp.arange(N) < 5, _step(w, x), 0)
    return y / jnp.exp(y - y.max()).sum()


def _with_a_literal(w, x):
    return _step(w, x) * jnp.zeros(N).at[1].set(2)


def _with_a_large_array(w, x):
    """A part of which XLA writes in its place."""
    y = jnp.tile(w, (3, 1)).at[(x[0] * 64).astype(np.int32)].set(x)
    return _step(w, x) + y.sum(0)


OTHERS = [_with_a_sort, _with_positions, _with_a_literal, _with_a_large_array]


@pytest.mark.parametrize("step", OTHERS)
def test_other_loops_are_scans(step):
    compare(
        lambda w, x: lax.fori_loop(0, 3, lambda _, x: step(w, x), x),
        matrix(N, N),
        matrix(N, seed=5),
        calls=0,
    )


def test_what_does_not_stay_in_the_caches_is_a_scan():
    def program(x):
        return lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x) + 1, x)

    for size, calls in ((1 << 10, 1), (1 << 21, 0)):
        assert lowered(program, np.ones(size, np.float32)).as_text().count(KERNEL) == calls


# --- short loops ------------------------------------------------------------------------------


def _newton(x):
    return lax.while_loop(
        lambda s: (s[0] < 20) & (jnp.abs(s[1] * s[1] - x).max() > 1e-4),
        lambda s: (s[0] + 1, 0.5 * (s[1] + x / s[1])),
        (0, x),
    )


def _powers(x):
    """Products of a matrix of few elements, and a norm."""
    w = jnp.outer(x, x)[:4, :4]
    return lax.fori_loop(0, 9, lambda _, v: (v @ w) / jnp.sqrt((v * v).sum() + 1), x[:4])


def _rows_one_by_one(x):
    def step(carry, row):
        total = carry + row.sum()
        return total, (total * row, row.max(), lax.rev(row, (0,)))

    return lax.scan(step, x[0], x.reshape(2, -1))


def _loops_of_loops(x):
    return lax.fori_loop(0, 3, lambda i, x: _powers(x).sum() + x * i.astype(np.float32), x)


def _functions(x):
    return lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) * jnp.exp(-x) + jax.nn.softmax(y), x)


def _table(x):
    """Reads and writes of a table, of more elements than a short loop computes, at drawn places."""

    def step(carry, key):
        table, at = carry
        k, other = jax.random.split(key)
        i = jax.random.randint(k, (), -2, 1002)  # also out of bounds
        best = jnp.argmax(table[at] + jax.random.uniform(other, (8,)))
        table = table.at[at, best].add(x[0] + table[i].max()).at[i, 0].set(x[1])
        return (table, i), best

    start = jnp.broadcast_to(x, (1000, 8)), 3
    (table, _), best = lax.scan(step, start, jax.random.split(KEY, 5))
    return table[3], best


def _sorted(x):
    def step(i, y):
        y = jnp.sort(y)[::-1] + jnp.cumsum(y) * 0.5
        return lax.cond(
            y[0] > y[1], lambda y: y[jnp.array([3, 1, 2, 0, 4, 5, 6, 7])], jnp.negative, y
        )

    return lax.fori_loop(0, 3, step, x)


SHORT = [_newton, _powers, _rows_one_by_one, _loops_of_loops, _functions, _table, _sorted]


@pytest.mark.parametrize("program", SHORT)
def test_short_loops_call_no_kernel(program):
    """Not even for what else would be a call, and the same program elsewhere is one."""
    specials = np.float32([np.nan, -np.inf, -0.0, 1e-40, 2.0**-126, 3e38, 1, 2])
    for x in (np.abs(normal(8, 1)) + 1, specials, normal(8, 2)):
        found = lowered(program, x)
        assert "custom_call @repjax" not in found.as_text().split("stablehlo.while", 1)[1]
        jax.tree.map(assert_same_bits, found.compile()(x), without_kernel(program, x))

    def twice(x):
        """The same sums and products behind the loop as in it, but by kernels."""
        return program(x), x @ x, x.sum(), x.max()

    found = lowered(twice, x)
    assert found.as_text().count("custom_call @repjax") >= 3
    jax.tree.map(assert_same_bits, found.compile()(x), without_kernel(twice, x))


@pytest.mark.parametrize(
    "step",
    [
        lax.lgamma,  # which XLA computes more slowly
        lambda x: x.at[jnp.array([1, 1])].add(x[:2]),
        lambda x: jnp.tile(x, 40).reshape(-1, x.size).sum(0),  # not few elements
        lambda x: x @ jnp.outer(x, x),  # nor few multiplications
    ],
)
def test_other_loops_call_kernels(step):
    def program(x):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, x))

    x = np.abs(normal(12, 3)) / 12
    text = lowered(program, x).as_text()
    assert KERNEL in text or "custom_call @repjax" in text.split("stablehlo.while", 1)[1]
    jax.tree.map(assert_same_bits, lowered(program, x).compile()(x), without_kernel(program, x))


def test_a_short_loop_in_one_of_the_kernel_is_a_part_of_it():
    def program(w, x):
        def step(x, _):
            return lax.fori_loop(0, 3, lambda i, y: jnp.exp(-y) + x, x) @ w, x.sum()

        return lax.scan(step, x, None, length=4)

    compare(program, matrix(N, N), matrix(N, seed=2))


def test_searches_call_no_kernel():
    """Loops that round nothing are XLA's, however many elements they have."""

    def search(table, x):
        return jnp.searchsorted(jnp.sort(table), x), jnp.interp(x, table, table)

    def rounds(table, x):
        return lax.fori_loop(0, 5, lambda i, y: jnp.where(y > table[i], y * 3, y), x)

    table, x = np.arange(3000, dtype=np.float32), patterns(5000, 3, np.float32)
    table[:2] = 1e-39, -0.0  # not canonical
    for function, calls_kernels in ((search, False), (rounds, True)):
        program = repjax.reproducible(lambda *xs, f=function: f(*xs)).lower(table, x).compile()
        text = program.as_text()
        inside = [c for c in text.split("\n}") if " ENTRY" not in c.replace("\n", " ")]
        calls = any('custom_call_target="repjax' in c for c in inside)
        assert (calls or 'custom_call_target="repjax_loop' in text) == calls_kernels
        results = repjax.reproducible(lambda *xs, f=function: f(*xs))(table, x)
        jax.tree.map(assert_same_bits, results, without_kernel(function, table, x))


def test_loops_that_carry_keys():
    def draws(key, x):
        def step(key, x):
            key, other = jax.random.split(key)
            return key, x + jax.random.normal(other, x.shape)

        return lax.scan(step, key, x)[1], lax.fori_loop(0, 3, lambda i, k: step(k, x[0])[0], key)

    key, x = jax.random.key(3), matrix(4, N)
    results, expected = repjax.reproducible(draws)(key, x), without_kernel(draws, key, x)
    assert_same_bits(results[0], expected[0])
    assert results[1] == expected[1]


def test_loops_that_reduce_many_elements_are_not_short():
    compare(
        lambda x, w: lax.fori_loop(0, 3, lambda _, x: x * (w * x[0]).sum(), x),
        normal(4),
        normal(1000),
    )


def test_exported_programs_have_no_calls():
    program = repjax.reproducible(lambda w, x: lax.fori_loop(0, 3, lambda _, x: _step(w, x), x))
    assert "repjax_loop" not in jax.export.export(program)(matrix(N, N), matrix(N)).mlir_module()
