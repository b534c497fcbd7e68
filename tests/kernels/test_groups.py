"""Fused groups of elementwise operations by the C++ kernel have the bits of their equations."""

from __future__ import annotations

import functools
import re

import jax
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, normal, patterns, same_bits
from helpers.groups import (
    ELEMENTARY,
    FLOAT_OPERATIONS,
    HALF_OPERATIONS,
    INTEGER_OPERATIONS,
    random_groups,
)
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import without_kernel
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.define import PRIMITIVES
from repjax.primitives.cpu import bytecode, library, write_elementary
from repjax.primitives.cpu import groups as kernel
from repjax.primitives.fusion import groups, rows, views
from repjax.verify import conformance

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)

KERNEL = "custom_call @repjax_elementwise"
#: Around the sizes of vectors and of blocks (1,024), and enough for several threads.
SIZES = [1, 3, 7, 16, 17, 1023, 1024, 1025, 1500, 2049, 30_000]


@pytest.fixture(autouse=True)
def _without_row_groups(monkeypatch):
    """Which would take some of the groups and sums."""
    monkeypatch.setattr(rows, "in_rows", lambda function, kernels, *xs: list(function(*xs)))


@pytest.fixture(autouse=True)
def _with_few_elements(request, monkeypatch):
    """Which else would be left to XLA."""
    if "few" not in request.node.name:
        monkeypatch.setattr(kernel, "_FEW", 0)


def with_kernel(function, *args, calls: int | None = None):
    """The results, compiled with ``calls`` calls of the kernel, by default at least one."""
    lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
    found = lowered.as_text().count(KERNEL)
    assert found == calls if calls is not None else found
    return lowered.compile()(*args)


def floats(n: int, seed: int) -> np.ndarray:
    """Special and random bit patterns, and numbers of every day."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(SPECIALS), normal(n, seed), patterns(n, seed)]
    return rng.permutation(np.concatenate(parts))[:n]


# --- operations -----------------------------------------------------------------------------


def _operations(operations, x, y):
    return {name: operation(x, y) for name, operation in operations.items()}


FLOATS = functools.partial(_operations, FLOAT_OPERATIONS)


@functools.cache
def _operands_and_results():
    x, y = floats(SIZES[-1], 1), floats(SIZES[-1], 2)
    y[::7] = x[::7]
    return x, y, without_kernel(FLOATS, x, y)


@pytest.mark.parametrize("n", SIZES)
def test_operations(n):
    x, y, expected = jax.tree.map(lambda a: a[-n:], _operands_and_results())
    for name in each_instruction_set():
        assert_same_bits(with_kernel(FLOATS, x, y), expected, name)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_operations(dtype):
    """On all bit patterns."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    y = np.random.default_rng(1).permutation(x)
    function = functools.partial(_operations, HALF_OPERATIONS)
    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integer_operations(dtype):
    x, y = patterns(1500, 1, dtype), patterns(1500, 2, dtype)
    y[::3], y[1::5] = x[::3], np.arange(300)
    function = functools.partial(_operations, INTEGER_OPERATIONS)
    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_quotients_of_integers(dtype):
    """By numbers that are next to a multiple, the ends of the range, by 0 and by -1."""
    rng, limits = np.random.default_rng(1), np.iinfo(dtype)
    ends = np.array([limits.min, limits.max], dtype)
    y = np.concatenate([rng.integers(-3, 4, 4000).astype(dtype), patterns(4000, 2, dtype)])
    y >>= rng.integers(0, 30, 8000).astype(dtype)
    multiples = y * (patterns(8000, 1, dtype) >> rng.integers(0, 32, 8000).astype(dtype))
    x = multiples + rng.integers(-1, 2, 8000).astype(dtype)
    x[: len(y) // 10], y[-10:] = rng.choice(ends, len(y) // 10), np.tile(ends, 5)

    def function(x, y):
        return lax.div(x, y), lax.rem(x, y)

    expected = without_kernel(function, x, y)
    wide, divisors = x.astype(np.int64), np.where(y == 0, 1, y).astype(np.int64)
    quotients = abs(wide) // abs(divisors) * np.sign(wide) * np.sign(divisors)
    assert_same_bits(expected[0][y != 0], quotients.astype(dtype)[y != 0])
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)
    assert not same_bits(with_kernel(function, x, y)[0], (x / np.where(y, y, 1)).round())


def test_powers_of_integer_exponents():
    """Of all sizes, and of either sign."""
    x, n = floats(6000, 1), patterns(6000, 2, np.int32)
    n >>= np.random.default_rng(3).integers(0, 32, 6000).astype(np.int32)
    n[:4] = np.iinfo(np.int32).min, np.iinfo(np.int32).max, 0, -1
    for few in (6000, 11):
        expected = without_kernel(lax.pow, x[:few], n[:few])
        for name in each_instruction_set():
            assert_same_bits(with_kernel(lax.pow, x[:few], n[:few], calls=1), expected, name)
    assert not same_bits(expected, without_kernel(lax.pow, x[:11], n[:11] + 1))


@pytest.mark.parametrize("name", sorted(bytecode.ROUNDED_ONCE))
@pytest.mark.parametrize("dtype", HALVES)
def test_functions_of_all_halves(dtype, name):
    """The kernel rounds them twice where each number has the bits of one rounding; only there."""
    x, function = np.arange(1 << 16, dtype=np.uint16).view(dtype), PRIMITIVES[name].bind
    once = without_kernel(function, x)
    twice = with_kernel(lambda x: function(x.astype(np.float32)).astype(dtype), x)
    is_innocuous = name in bytecode.ROUNDED_TWICE[dtype]
    assert same_bits(twice, once) == is_innocuous
    if is_innocuous:
        assert_same_bits(with_kernel(function, x, calls=1), once)


def test_functions_of_nans():
    """Also of those with a sign, which operations make on x86, and of others."""
    halves = np.arange(1 << 16, dtype=np.uint16)  # bfloat16, which the kernel widens as they are
    nans = halves[(halves & 0x7FFF) > 0x7F80].view(HALVES[1])
    infinities = np.full(nans.shape, np.inf, np.float32)

    def lowered(of):
        program = lambda x, y: [*of(x.astype(np.float32)), *of(y - y)]  # noqa: E731
        return repjax.reproducible(program).lower(nans, infinities)

    programs = {}
    for name in bytecode.ROUNDED_ONCE:
        programs[name] = lowered(lambda x, f=PRIMITIVES[name].bind: [f(x)])
    for name in bytecode.OF_TWO:
        two = np.full(nans.shape, 2, np.float32)
        programs[name] = lowered(lambda x, f=PRIMITIVES[name].bind, y=two: [f(x, y), f(y, x)])
    for name, program in programs.items():
        assert KERNEL in program.as_text()
        for instruction_set in each_instruction_set():
            for result in program.compile()(nans, infinities):
                assert np.isnan(result).all(), (name, instruction_set)


def test_each_operation_is_one_of_the_kernels():
    """And on its own, so that none is left to XLA unseen."""
    x, y = floats(100, 1), floats(100, 2)
    for name, operation in FLOAT_OPERATIONS.items():
        actual = with_kernel(operation, x, y, calls=1)
        assert_same_bits(actual, without_kernel(operation, x, y), name)
    for dtype in HALVES:
        x, y = patterns(40, 1, dtype), patterns(40, 2, dtype)
        for name, operation in HALF_OPERATIONS.items():
            assert_same_bits(
                with_kernel(operation, x, y, calls=1), without_kernel(operation, x, y), name
            )
    names = {*library.operations()}
    used = set()

    class Recorder(kernel.Bytecode):
        def __call__(self, operation, *operands):
            used.add(operation)
            return super().__call__(operation, *operands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "Bytecode", Recorder)
        with_kernel(FLOATS, *(floats(40, i) for i in range(2)))
        for dtype in HALVES:
            halves = functools.partial(_operations, HALF_OPERATIONS)
            with_kernel(halves, *(patterns(40, i, dtype) for i in range(2)))
        for dtype in (np.int32, np.uint32):
            arguments = patterns(100, 1, dtype), patterns(100, 2, dtype)
            with_kernel(functools.partial(_operations, INTEGER_OPERATIONS), *arguments)
    of_encoding = {"hold", "width", "runs", "move"}  # add_n and moves within rows
    assert used | of_encoding == names


def test_few_integers_are_left_to_xla():
    """Counters and conditions cost more as calls, also beside what is computed by one."""

    def count(x, y):
        return lax.select(lax.lt(x, y), x * y + 1, y)

    def beside(x, y):
        z = x.astype(np.float32)
        return [count(x, y), lax.exp(z * np.float32(0.3))]

    x, y = patterns(9, 1, np.int32), patterns(9, 2, np.int32)
    for function, calls in ((count, 0), (beside, 1)):
        assert_same_bits(with_kernel(function, x, y, calls=calls), without_kernel(function, x, y))
    x, y = patterns(100, 1, np.int32), patterns(100, 2, np.int32)
    assert_same_bits(with_kernel(count, x, y, calls=1), without_kernel(count, x, y))


def test_few_short_operations_are_left_to_xla():
    """But long ones and many are not, nor are any beside them, with which they make one call."""

    def short(x, y):
        return x * y / (x + np.float32(0.3))

    def many(x, y):
        for _ in range(kernel._SHORT):
            x = x * y
        return x

    def beside(x, y):
        return short(x, y), lax.tanh(y)

    x, y = floats(9, 1), floats(9, 2)
    for function, calls in ((short, 0), (many, 1), (lax.pow, 1), (beside, 1)):
        assert_same_bits(with_kernel(function, x, y, calls=calls), without_kernel(function, x, y))
    x, y = floats(100, 1), floats(100, 2)
    assert_same_bits(with_kernel(short, x, y, calls=1), without_kernel(short, x, y))


@pytest.mark.parametrize(
    "wrong",
    [("mul", "add"), ("lt", "le"), ("max", "min"), ("sub", "add"), ("div", "mul"), ("exp", "exp2")],
)
def test_a_wrong_operation_is_caught(wrong):
    x, y, expected = _operands_and_results()
    numbers = dict(library.operations())
    numbers[wrong[0]] = numbers[wrong[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "operations", lambda: numbers)
        actual = with_kernel(FLOATS, x, y)
    different = {k for k in expected if not same_bits(actual[k], expected[k])}
    assert wrong[0] in different


def test_the_elementary_functions_are_those_of_the_bodies():
    """``python -m repjax.primitives.cpu.write_elementary`` writes them."""
    assert write_elementary.PATH.read_text() == write_elementary.source()
    assert write_elementary.LIST.read_text() == write_elementary.with_lists()


@pytest.mark.parametrize("name", bytecode.ELEMENTARY)
def test_subnormal_inputs_of_elementary_functions(name):
    """Which some functions of inputs take as they come, some as the zeros that they are."""
    rng = np.random.default_rng(3)
    subnormal = np.concatenate([rng.integers(0, 1 << 23, 3000), (1 << 23) - np.arange(1, 40)])
    bits = np.concatenate([subnormal, [0, 1 << 23, (1 << 23) + 1]]).astype(np.uint32)
    x = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    expected = without_kernel(PRIMITIVES[name].bind, x)
    for instruction_set in each_instruction_set():
        assert_same_bits(with_kernel(PRIMITIVES[name].bind, x), expected, instruction_set)


def test_hard_inputs_of_elementary_functions():
    """Those of which a result is closest to where the rounding changes."""
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    for name, function in ELEMENTARY.items():
        x, y = hard[name][:, 0], hard[name][:, -1]
        expected = without_kernel(function, x, y)
        for instruction_set in each_instruction_set():
            actual = with_kernel(function, x, y)
            assert_same_bits(actual, expected, f"{name}, {instruction_set}")


# --- arrays ---------------------------------------------------------------------------------


def _broadcasts(x, row, column, middle, scalar, mask):
    """x[5, 7, 30] with arrays of fewer elements, in the ways in which programs do it."""
    return [
        x + row,
        x * column[:, None, None],
        x - middle[None, :, None],
        x / scalar,
        jax.numpy.where(mask, x, row),
        jax.numpy.where(mask[0], x, 1.0),
        lax.select(scalar > 0, x, -x),
        (x.reshape(35, 30) * row).reshape(5, 7, 30) + x,
        x.reshape(5, 210) + jax.numpy.repeat(column[:, None], 210, 1),
        jax.numpy.broadcast_to(row * 2, x.shape) * x,
        x[:, :1] + x * middle.reshape(1, 7, 1),
        (row + column[:, None]) * x[0, 0, 0],
        x[None] + scalar[None, None],
    ]


def test_broadcasts():
    x = floats(1050, 1).reshape(5, 7, 30)
    others = floats(30, 2), floats(5, 3), floats(7, 4), np.float32(1.7)
    mask = patterns(210, 5, np.bool_).reshape(7, 30)
    expected = without_kernel(_broadcasts, x, *others, mask)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(_broadcasts, x, *others, mask), expected, name)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int32, np.bool_, *HALVES], ids=lambda dtype: np.dtype(dtype).name
)
def test_arrays_of_one_number_are_not_in_memory(dtype):
    def function(x, y):
        three, mask = lax.full_like(x, 3, dtype), jax.numpy.full(x.shape, True)
        return (
            jax.numpy.where(y > 0, x, lax.full_like(x, 1, dtype)),
            lax.select(mask & (y > 1), three.reshape(50, 30).reshape(30, 50), x),
            three ^ x if dtype == np.bool_ else three + x,
        )

    x, y = patterns(1500, 8, dtype).reshape(30, 50), floats(1500, 1).reshape(30, 50)
    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y, calls=1), expected, name)
    lowered = repjax.reproducible(lambda x, y: function(x, y)).lower(x, y).as_text()
    (call,) = (line for line in lowered.splitlines() if KERNEL in line)
    operands = re.search(r"elementwise\((.*?)\)", call)[1].split(", ")
    assert set(operands) == {"%arg0", "%arg1"}, call


def test_sums_of_arrays_of_one_number():
    def function(x):
        return jax.numpy.sum(lax.full_like(x, 0.1)), jax.numpy.sum(jax.numpy.ones(1)) + x

    x = floats(1500, 1)
    assert_same_bits(with_kernel(function, x), without_kernel(function, x))


@pytest.mark.parametrize("dtype", [np.float32, *HALVES], ids=lambda dtype: np.dtype(dtype).name)
def test_zeros_that_are_added(dtype):
    """No addition is computed, whatever the other number is: an input, a result, a zero."""

    def function(x):
        zero = x.dtype.type(0)
        return (
            x + zero,
            zero + x * x,
            (zero - x) + zero,
            jax.numpy.where(x > 0, zero, -x) + zero + zero,
        )

    x = patterns(1500, 8, dtype)
    expected = without_kernel(function, x)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x), expected, name)


def test_what_need_not_be_computed():
    """Double signs, magnitudes of negated numbers, differences to zero, constant selections, sums
    of selections of which one is zero."""

    def function(x, y):
        zero, ones = jax.numpy.zeros_like(x), jax.numpy.where(x > y, x, 0.0)
        infinity = jax.numpy.float32(np.inf)
        return {
            "twice": lax.neg(lax.neg(x)) * y,
            "magnitude": abs(-x) + jax.numpy.exp(-abs(x)),
            "difference": (x - 0.0) * y,
            "NaN": jax.numpy.where(-x != -x, y, x * y),
            "constant": jax.numpy.where(infinity == jax.numpy.float32(2), x, y * y),
            "softplus": jax.nn.softplus(x) * y + jax.nn.softplus(-x),
            "in turn": jax.numpy.where(x > y, zero, y * y) - ones + -ones,
            "signed": jax.numpy.where(x > y, zero, y * y) + -jax.numpy.where(x > y, x * y, zero),
            "both": jax.numpy.where(x > y, x, y) + jax.numpy.where(x > y, y, 0.0),
        }

    x, y = floats(3000, 3), floats(3000, 4)
    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)

    emit = bytecode.Bytecode()
    x = emit.read(bytecode.Place.along("x", ()), np.dtype(np.float32), True)
    negative, zero, one = emit("neg", x), emit.constant(0), emit.constant(0x3F800000)
    magnitude = emit.constant(0x7FFFFFFF)
    assert emit("neg", negative) == x == emit("sub", x, zero)
    assert emit("bitwise_and", negative, magnitude) == emit("bitwise_and", x, magnitude)
    assert emit("ne", negative, negative) == emit("ne", x, x)
    assert emit("select", emit("lt", zero, one), negative, x) == x
    assert emit("select", emit("eq", zero, one), negative, x) == negative
    choice, magnitude_of_x = emit("lt", x, one), emit("bitwise_and", x, magnitude)
    first, second = emit("select", choice, zero, x), emit("select", choice, magnitude_of_x, zero)
    assert emit("add", first, second) == emit("select", choice, magnitude_of_x, x)
    assert emit("neg", first) == emit("select", choice, zero, negative)
    # Negative control: these are others.
    others = emit("sub", zero, x), emit("sub", x, one), emit("ne", negative, x), choice
    assert len({x, negative, zero, one, magnitude, *others}) == 9
    for other in (emit("select", emit("lt", one, x), magnitude_of_x, zero), first):
        assert emit("add", first, other) == emit("add", first, other) == emit.values - 1


def test_quotients_next_to_the_middle_of_two_numbers():
    """A / B with A 2**25 = M B - 1 or + 1, M odd and of 25 bits, is as close to one as there is."""
    divide = repjax.reproducible(lambda x, y: x / y)
    hard = []
    for b in range((1 << 23) + 1, 1 << 24, 40009 * 2):
        inverse = pow(b, -1, 1 << 25)
        m = max(inverse, (1 << 25) - inverse)
        hard.append((np.float32((m * b + 1) >> 25), np.float32(b)))
    assert any(a * (np.float32(1) / b) != a / b for a, b in hard)  # a control
    for name in each_instruction_set():
        for a, b in hard:
            x = np.ldexp(np.full(256, a, np.float32), np.arange(256) % 16 - 8)
            assert_same_bits(divide(x, b), x / b, name)


@pytest.mark.parametrize("b", [3, 0.1, -1.9999999, 0.99999994, 2.0**-70, 3e30])
def test_quotients_of_many_by_one_number(b):
    """Of all significands; and of all exponents, where some quotients are tiny or infinite."""
    tiny, b = np.float32(2.0**-126), np.float32(b)
    divide = repjax.reproducible(lambda x, b: x / b)
    significands = np.arange(127 << 23, 128 << 23, dtype=np.int32).view(np.float32)
    powers = np.ldexp(significands[: 1 << 20 : 1023], np.arange(1026) % 254 - 126)
    for x in (significands, np.concatenate([powers, SPECIALS]).astype(np.float32)):
        x = np.where(np.abs(x) < tiny, np.float32(0), x)
        with np.errstate(all="ignore"):
            quotients = x / b
        quotients[np.abs(quotients) <= tiny] = 0
        quotients[np.isnan(quotients)] = np.nan
        for name in each_instruction_set():
            assert_same_bits(divide(x, b), quotients, name)


def test_operations_on_complex_numbers_are_one_group():
    """Parts of what was joined from parts are these; what is needed as a complex number is one."""

    def several(x, y):
        z = x * y + x.conj()
        return z * z - 2 * y, z, z.imag

    x, y = (
        np.ascontiguousarray(floats(200, seed)).view(np.complex64).reshape(10, 10)
        for seed in (1, 2)
    )
    results = with_kernel(several, x, y, calls=1)
    with repjax.enabled():  # operation by operation
        arrays = jax.device_put((x, y))
        expected, others = several(*arrays), several(*arrays[::-1])
    for got, want in zip(results, expected, strict=True):
        assert_same_bits(parts_of(got), parts_of(want))
    assert not same_bits(parts_of(results[0]), parts_of(others[0]))  # a control


def parts_of(x):
    """The bits of complex numbers, and of others."""
    return np.ascontiguousarray(x).view(np.float32)


def complex_of(shape, seed: int) -> np.ndarray:
    return floats(2 * np.prod(shape), seed).view(np.complex64).reshape(shape)


#: Of arrays of one shape, each one call of the kernel.
COMPLEX = {
    "product": lambda z, w: z * w + z,
    "a part": lambda z, w: z.real * 2 - w.real,
    "several results": lambda z, w: (z * 2, w.imag - 1, abs(z + w), z.conj() - w),
    "a row": lambda z, w: z * w[..., :1, :] + w.reshape(-1).reshape(z.shape),
    "every other column": lambda z, w: z.real[..., ::2] * 2 + w.imag[..., ::2],
    "parts side by side": lambda z, w: jax.numpy.concatenate([z.imag, w.real], -1) - 1,
    "chosen": lambda z, w: jax.numpy.where(z.real > w.real, z, w) * 2,
    "joined": lambda z, w: jax.numpy.concatenate([z, w[..., 1:]], -1) * 3j,
    "sum": lambda z, w: (z.imag * w.real).sum(-1),
}


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (9, 16), (33, 65), (5, 1031)], ids=str)
def test_complex_numbers(name, shape):
    """Their parts are read and written where they are, in turn."""
    z, w = complex_of(shape, 1), complex_of(shape, 2)
    expected = without_kernel(COMPLEX[name], z, w)
    for instruction_set in each_instruction_set():
        results = with_kernel(COMPLEX[name], z, w)
        for got, want in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
            assert_same_bits(parts_of(got), parts_of(want), instruction_set)


@pytest.mark.parametrize("name", COMPLEX)
def test_parts_of_complex_numbers_are_no_arrays(name):
    z = complex_of((33, 65), 1)
    lowered = repjax.reproducible(COMPLEX[name]).lower(z, z).as_text()
    assert lowered.count(KERNEL) == 1
    assert not re.search(r"\.(real|imag|complex) ", lowered)


def test_transforms_are_not_copied():
    """What is joined from both parts of complex numbers is these."""
    z = complex_of((4, 64), 1)
    lowered = repjax.reproducible(jax.numpy.fft.fft).lower(z).as_text()
    assert lowered.count("custom_call") == lowered.count("@repjax_fourier") == 1


def test_swapped_parts_are_caught(monkeypatch):
    z, w = complex_of((33, 65), 1), complex_of((33, 65), 2)
    expected = without_kernel(COMPLEX["product"], z, w)
    monkeypatch.setattr(views, "PARTS", {"real": 1, "imag": 0})
    with pytest.raises(AssertionError):
        assert_same_bits(parts_of(with_kernel(COMPLEX["product"], z, w)), parts_of(expected))


def test_empty_arrays_and_many_axes():
    assert with_kernel(lambda x: x + 1, np.zeros((3, 0), np.float32), calls=0).shape == (3, 0)
    x = floats(2**9, 1).reshape((2,) * 9 + (1,) * 4)

    def function(x):
        return x * x[:1, :, :1, :, :1, :, :1, :, :1]

    assert_same_bits(with_kernel(function, x), without_kernel(function, x))


# --- sums -----------------------------------------------------------------------------------

SUM_KERNEL = "custom_call @repjax_reduce_sum"


REDUCTIONS = {"sum": lambda x, axes: x.sum(axes), "max": lambda x, axes: x.max(axes)}
REDUCTIONS["min"] = lambda x, axes: x.min(axes)


def _sums(function, *args, fused: int):
    """The results with the kernel, which computes the terms of ``fused`` sums or extrema."""
    text = repjax.reproducible(function).lower(*args).as_text()
    calls = [line for line in text.splitlines() if SUM_KERNEL in line]
    assert sum("bytecode = dense<[" in line for line in calls) == fused, calls
    return with_kernel(function, *args)


def _terms(x, y, row):
    """Of an input, of a group with broadcasts and several types, of reshaped and of few terms."""
    return [x, jax.numpy.where(x < y, (x * y - row).reshape(x.shape), 1.5) + (y > 0)]


#: Around the sizes of vectors, of blocks, of long rows (2**15), steps of 8 and 8192 columns.
SUM_SHAPES = [
    *[((1,), 0), ((17,), 0), ((7, 64), 1), ((5, 1000), 1), ((3, 40_000), 1), ((70_001,), 0)],
    *[((9, 5), 0), ((65, 130), 0), ((1000, 31), 0), ((20, 3, 4100), 0), ((4, 70, 9), 1)],
    *[((2, 9000, 3), 1), ((40, 33, 2), (0, 1)), ((6, 5, 4, 3), (1, 2)), ((9, 8, 7), (0, 1, 2))],
    *[
        ((5, 7, 9), (0, 2)),
        ((4, 3, 6, 5), (0, 2, 3)),
        ((5, 3, 70, 33), (1, 3)),
        ((1, 5, 9), (0, 2)),
    ],
    *[((3, 4, 5, 6, 7), (0, 2)), ((12, 3, 4100), (0, 2)), ((6, 5, 4, 3), (0, 3))],
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "axes"), SUM_SHAPES, ids=str)
def test_sums_of_computed_terms(shape, axes, reduction):
    n = int(np.prod(shape))
    x, y, row = (floats(m, i).reshape(s) for i, (m, s) in enumerate([(n, shape)] * 2 + [(1, ())]))
    row = row if len(shape) == 1 else floats(shape[-1], 3)

    def sums(x, y, row):
        return [REDUCTIONS[reduction](terms, axes) for terms in _terms(x, y, row)]

    expected = without_kernel(sums, x, y, row)
    for name in each_instruction_set():
        assert_same_bits(_sums(sums, x, y, row, fused=2), expected, name)


@pytest.mark.parametrize("axes", [0, 1, (0, 1)])
def test_large_sums_of_computed_terms(axes):
    shape = (1030, 600)
    assert np.prod(shape) > library.LARGE
    x, row = normal(618_000, 1).reshape(shape), floats(600, 2)
    x.flat[:: 1 << 12] = floats(151, 3)

    def moments(x, row):
        centered = x - row
        return x.sum(axes), (centered**2).sum(axes), centered.sum(axes), x.max(axes), x.min(axes)

    expected = without_kernel(moments, x, row)
    for name in each_instruction_set():
        assert_same_bits(_sums(moments, x, row, fused=5), expected, name)


APART = [
    ((5, 7, 9), (0, 2)),
    ((4, 3, 16, 30), (0, 2, 3)),
    ((7, 1, 9), (0, 2)),
    ((6, 5, 4, 3), (1, 3)),
]
#: Of runs that are copied, and longer ones, which are read where they are.
LONG = [((70, 3, 60, 50), (0, 2, 3)), ((9, 3, 70, 71), (0, 2, 3)), ((129, 2, 4500), (0, 2))]


@pytest.mark.parametrize("accumulation", ["pairwise", "sequential", "order_independent", "exact"])
@pytest.mark.parametrize(("shape", "axes"), [*APART, *LONG], ids=str)
def test_sums_over_axes_apart(shape, axes, accumulation):
    """What is in memory is read in the order of the terms; sequential sums are XLA's transposes."""
    x = floats(int(np.prod(shape)), 1).reshape(shape)

    def sums(x):
        explicit = repjax.lax.reduce_sum(x, axes, accumulation=accumulation)
        others = (x * x - x).sum(axes), (x * x).sum(axes), x.max(axes)
        return explicit, x.sum(axes), *others

    def function(x):
        return jax.tree.leaves(repjax.reproducible(lambda x: sums(x), accumulation=accumulation)(x))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        expected = function(x)
    for name in each_instruction_set():
        assert_same_bits(function(x), expected, name)


def test_another_order_of_axes_apart_is_caught(monkeypatch):
    x = normal(6000, 1).reshape(20, 10, 30)
    expected = without_kernel(lambda x: (x * 3).sum((0, 2)), x)
    order = (1, 2, 0)  # the terms of each sum, columns first
    monkeypatch.setattr(kernel, "order_of_terms", lambda *_: order)
    assert not same_bits(_sums(lambda x: (x * 3).sum((0, 2)), x, fused=1), expected)


@pytest.mark.parametrize("shape", [(70_001,), (7, 3000), (20, 1000), (300, 9, 20), (5, 1), (1, 5)])
def test_sequential_sums_of_raw_elements(shape):
    """Inputs are made canonical as they are added."""
    x = floats(int(np.prod(shape)), 1).reshape(shape)

    def sums(x):
        explicit = repjax.lax.reduce_sum(x, (0,))  # which makes canonical what is so: the same sum
        return x.sum(0), x.sum(-1), (x + 1).sum(0), explicit, x[1:].sum(0)

    function = repjax.reproducible(sums, accumulation="sequential")
    lines = function.lower(x).as_text().splitlines()
    # Of one axis, the first two are the same, and computed once.
    count = 1 if len(shape) == 1 else 2
    assert sum("bytecode = dense<[" in line for line in lines if SUM_KERNEL in line) == count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        expected = repjax.reproducible(lambda x: sums(x), accumulation="sequential")(x)
    for name in each_instruction_set():
        actual = repjax.reproducible(lambda x: sums(x), accumulation="sequential")(x)
        assert_same_bits(actual, expected, name)


def test_another_order_of_raw_elements_is_caught(monkeypatch):
    x = normal(3000, 1)
    function, options = (lambda x: x.sum()), {"accumulation": "sequential"}
    expected = repjax.reproducible(function, **options)(x)
    monkeypatch.setattr(kernel, "accumulation_of", lambda equation: "pairwise")
    assert not same_bits(repjax.reproducible(lambda x: function(x), **options)(x), expected)


@pytest.mark.parametrize("largest", [True, False])
def test_extrema(largest):
    """Of what no group makes, with NaNs, infinities, zeros of both signs, and of few elements."""

    def extrema(x):
        turned = lax.rev(x, (0, 1, 2))
        return [
            (jax.numpy.max if largest else jax.numpy.min)(turned, axes)
            for axes in (0, 1, 2, (0, 1), (1, 2), (0, 2), (0, 1, 2), ())
        ]

    for shape in ((2, 3, 5), (33, 4, 70), (3, 600, 17), (1, 1, 40_000)):
        for x in (floats(int(np.prod(shape)), 1), normal(int(np.prod(shape)), 2)):
            x = x.reshape(shape)
            text = repjax.reproducible(lambda x: extrema(x)).lower(x).as_text()
            assert text.count(SUM_KERNEL) >= 6
            expected = without_kernel(extrema, x)
            for name in each_instruction_set():
                assert_same_bits(with_kernel(extrema, x), expected, name)
    x = np.ones((5, 0, 2), np.float32)
    assert repjax.reproducible(lambda x: lax.reduce_max(x, (0,)))(x).shape == (0, 2)
    assert (repjax.reproducible(lambda x: lax.reduce_max(x, (1,)))(x) == -np.inf).all()


def test_a_wrong_extremum_is_caught(monkeypatch):
    x = normal(3000, 1).reshape(30, 100)
    expected = without_kernel(lambda x: x.max(1), x)
    monkeypatch.setattr(kernel, "accumulation_of", lambda equation: "min")
    assert not same_bits(_sums(lambda x: x.max(1), x, fused=1), expected)


def test_which_terms_are_computed_as_they_are_added():
    x = floats(600, 1).reshape(20, 30)
    large = np.ones((library.LARGE // 100, 101), np.float32)
    # Terms that others need are in the cache, but not those of a large array.
    _sums(lambda x: ((y := x * 2 - 1) * 3, y.sum()), x, fused=0)
    _sums(lambda x: ((y := x * 2 - 1) * 3, y.sum()), large, fused=1)
    _sums(lambda x: ((y := lax.exp(x)) * 3, y.sum()), large, fused=0)
    _sums(lambda x: lax.exp(x).sum(0), large, fused=1)
    # XLA adds what it makes, and what is transposed.
    for terms in (lax.atan, lambda x: x.T * 2, lambda x: lax.atan(x) + 1):
        plan = repjax.reproducible(lambda x, terms=terms: terms(x).sum(0)).lower(large)
        assert SUM_KERNEL not in plan.as_text()


def test_another_order_of_computed_terms_is_caught(monkeypatch):
    x, y = normal(3000, 1).reshape(3, 1000), normal(3000, 2).reshape(3, 1000)

    def sums(x, y):
        return (x * y).sum(1)

    expected = without_kernel(sums, x, y)
    call = kernel.call_kernel

    def reordered(*xs, **options):  # not turned or rolled: that changes nothing
        xs = (x.reshape(3, 10, 100).swapaxes(1, 2).reshape(3, 1000) for x in xs)
        return call(*xs, **options)

    monkeypatch.setattr(kernel, "call_kernel", reordered)
    assert not same_bits(_sums(sums, x, y, fused=1), expected)


def test_batches_of_computed_terms():
    def program(x, y):
        return (x * y).sum(0), x.sum()

    x, y = floats(1200, 1).reshape(4, 15, 20), floats(20, 2)
    function = repjax.reproducible(program)
    actual = jax.jit(jax.vmap(function, in_axes=(0, None)))(x, y)
    rows = [function(row, y) for row in x]
    assert_same_bits(actual, jax.tree.map(lambda *xs: np.stack(xs), *rows))


# --- programs -------------------------------------------------------------------------------


def test_what_waits_for_a_group_is_not_in_it():
    def normalized(x):
        centered = x - x.mean(0)
        return centered * lax.rsqrt((centered**2).mean(0) + 1e-5), centered

    x = floats(600, 1).reshape(20, 30)
    assert_same_bits(with_kernel(normalized, x), without_kernel(normalized, x))


def test_one_call_for_an_optimizer_step():
    def adam(p, g, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        return p - 0.01 * (m / 0.1) / (lax.sqrt(v / 0.001) + 1e-8), m, v

    arrays = [floats(640, i).reshape(20, 32) for i in range(4)]
    assert_same_bits(with_kernel(adam, *arrays, calls=1), without_kernel(adam, *arrays))


@pytest.mark.parametrize("shape", [(8, 15), (2, 5)], ids=str)
@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed, shape):
    """Of more elements than a vector has, and of fewer."""
    m, n = shape
    arrays = floats(m * n, seed).reshape(m, n), floats(n, seed + 1), floats(m, seed + 2)[:, None]
    program = random_groups(seed)
    expected = without_kernel(program, *arrays)
    lowered = repjax.reproducible(program).lower(*arrays)
    assert KERNEL in lowered.as_text()
    compiled = lowered.compile()
    for name in each_instruction_set():
        assert_same_bits(compiled(*arrays), expected, name)


def test_control_flow():
    """The bodies of loops and branches have groups of their own."""

    def program(x, count):
        x, ys = lax.scan(lambda c, _: (c * 1.5 - c**2, c + 1), x, length=3)
        x = lax.while_loop(lambda s: s[1] < count, lambda s: (s[0] * 0.5 + 1, s[1] + 1), (x, 0))[0]
        # The call's operands are in the order of the state (it would not end, see _kernel).
        x = lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, s[1] * 0.7 + 1), (0, x))[1]
        x = lax.cond(count > 2, lambda x: x * 3 - 1, lambda x: -x / 3, x)
        return jax.checkpoint(lambda x: x * x + ys)(x)

    x = floats(300, 1)
    assert_same_bits(with_kernel(program, x, 4), without_kernel(program, x, 4))
    text = repjax.reproducible(program).lower(x, 4).as_text()
    assert text.count(KERNEL) >= 6


def test_steps_of_an_unrolled_scan_are_one_group():
    def polynomial(x, coefficients, unroll=16):
        return lax.scan(lambda y, c: (y * x + c, None), 0 * x, coefficients, unroll=unroll)[0]

    x, coefficients = floats(3000, 1), np.float32([1e-3, -0.7, 3.1, 0.2])
    loop = repjax.reproducible(functools.partial(polynomial, unroll=1))(x, coefficients)
    assert_same_bits(with_kernel(polynomial, x, coefficients, calls=1), loop)


def test_batches():
    def program(x, y):
        return x * y + 1.5, (x - y).sum(0)

    x, y = floats(60, 1).reshape(4, 15), floats(15, 2)
    function = repjax.reproducible(program)
    lowered = jax.jit(jax.vmap(function, in_axes=(0, None))).lower(x, y)
    assert KERNEL in lowered.as_text()
    actual = lowered.compile()(x, y)
    rows = [function(row, y) for row in x]
    assert_same_bits(actual, jax.tree.map(lambda *xs: np.stack(xs), *rows))


def test_order_of_effects(capfd):
    def program(x):
        y = x * 2
        jax.debug.print("first {}", y[0], ordered=True)
        z = lax.exp(y).sum()
        jax.debug.print("second {}", z, ordered=True)
        jax.debug.print("third {}", x[1] * 2, ordered=True)
        return y + z

    with_kernel(program, np.zeros(5, np.float32))
    jax.effects_barrier()
    words = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert words == ["first", "second", "third"]


def test_large_arrays_are_left_to_xla():
    x = np.ones(4 * library.LARGE + 1, np.float32)
    with_kernel(lambda x: x * 1.5 + 1, x, calls=0)
    with_kernel(lambda x: lax.exp(x) + 1, x, calls=1)  # but for elementary functions
    # Beside calls it has no loops to be fused with.
    with_kernel(lambda x: (x * 1.5 + 1) @ x, x[: library.LARGE + 1], calls=1)
    with_kernel(lambda x: lax.rev(x, (0,)) * 1.5, x[: library.LARGE + 1], calls=0)


def test_large_updates_are_left_to_xla():
    """Which writes them where donated operands are, without a copy."""

    def update(x, y, rate):
        y = 0.9 * y + 0.1 * x * x
        return x - rate * x / (lax.sqrt(y) + 1e-8), y

    x, y = floats(library.LARGE, 1), np.abs(floats(library.LARGE, 2))
    program = repjax.reproducible(update, donate_argnums=(0, 1))
    compiled = program.lower(x, y, np.float32(0.1)).compile()
    assert "custom-call" not in compiled.as_text()
    assert not re.search(rf"= f32\[{library.LARGE}\]\S* copy\(", compiled.as_text())
    with_kernel(update, x[: 1 << 16], y[: 1 << 16], np.float32(0.1), calls=1)  # in the cache
    few = slice(1 << 10)  # which the kernel computes
    expected = with_kernel(update, x[few], y[few], np.float32(0.1))
    for found, wanted in zip(program(x, y, np.float32(0.1)), expected, strict=True):
        assert_same_bits(found[few], wanted)


def test_xla_fuses_nothing_with_pads():
    x = floats(1 << 16, 1)

    def function(x):
        return lax.pad(x, np.float32(0), [(1, 1, 1)]) * 2

    assert_same_bits(with_kernel(function, x, calls=2), without_kernel(function, x))


# --- parts ----------------------------------------------------------------------------------


def _halves(x):
    a, b = lax.split(x, (3, x.shape[0] - 3))
    return a * 2, b - 1


#: Operations on parts of what is in memory, each one call of the kernel: of an array [40, 300].
PARTS = {
    "slice": lambda x: x[3:-2, 5:-7] + x[5:, 12:],
    "every other row": lambda x: x[1::2] * x[::2],
    "split": _halves,
    "concatenation": lambda x: lax.concatenate([x, x[:5], x[7:]], 0) * 2,
    "concatenation of columns": lambda x: lax.concatenate([x[:, 200:], x, x[:, :100]], 1) - 1,
    "roll": lambda x: x + jax.numpy.roll(x, 3, 0) - jax.numpy.roll(x, -1, 1),
    "roll along two axes": lambda x: x * jax.numpy.roll(x, (2, -5), (0, 1)),
    "pad": lambda x: lax.pad(x, x.dtype.type(2), [(1, 2, 0), (130, 0, 0)]) * 3,
    "pad with an element": lambda x: lax.pad(x, x[0, 0], [(0, 1, 0), (3, 4, 0)]) + 1,
    "slice of what is joined": lambda x: lax.concatenate([x, x[3:]], 0)[30:50, 7:] - 1,
    "of one row": lambda x: lax.concatenate([x[:1], x[:1], x[4:6]], 0) * x[7:11],
    "broadcast": lambda x: x[:, 100:] * x[:1, :200],
    "sum of a slice": lambda x: (x[3:, 50:] * 2).sum(1),
    "result": lambda x: (x[2:, :200], lax.concatenate([x, x], 1), x * 2),
}


def _of_parts(dtype):
    n = 40 * 300
    x = floats(n, 1) if dtype == np.float32 else patterns(n, 1, dtype)
    return x.reshape(40, 300)


@pytest.mark.parametrize("name", PARTS)
def test_parts(name):
    x, function = _of_parts(np.float32), PARTS[name]
    expected = without_kernel(function, x)
    for instruction_set in each_instruction_set():
        assert_same_bits(with_kernel(function, x), expected, instruction_set)


@pytest.mark.parametrize("dtype", [*HALVES, np.int32], ids=lambda dtype: np.dtype(dtype).name)
def test_parts_of_other_types(dtype):
    x, names = _of_parts(dtype), ("slice", "concatenation of columns", "roll", "pad")

    def function(x):
        return [PARTS[name](x) for name in names]

    expected = without_kernel(function, x)
    for instruction_set in each_instruction_set():
        assert_same_bits(with_kernel(function, x), expected, instruction_set)


@pytest.mark.parametrize("name", [name for name in PARTS if "sum" not in name])
def test_parts_are_read_where_they_are(name):
    """No slice is made, nor joined array."""
    lowered = repjax.reproducible(PARTS[name]).lower(_of_parts(np.float32)).as_text()
    assert lowered.count(KERNEL) == 1
    assert name == "pad with an element" or not re.search(r"\.(slice|concatenate|pad) ", lowered)


def test_parts_of_what_a_group_makes_wait_for_it():
    x = _of_parts(np.float32)

    def function(x):
        y = x * 3
        return y + jax.numpy.roll(y, 1, 0) + (2 * y + jax.numpy.roll(y, 1, 1)).sum()

    assert_same_bits(with_kernel(function, x), without_kernel(function, x))


def test_rolls_of_rolls():
    """Have twice as many parts each time."""
    x = _of_parts(np.float32)

    def function(x):
        for i in range(12):
            x = jax.numpy.roll(x, i + 1, i % 2)
        return x * 2

    assert_same_bits(with_kernel(function, x), without_kernel(function, x))


@pytest.mark.parametrize("number", [-0.0, 1e-40, np.nan, np.inf], ids=str)
def test_pads_with_what_is_not_canonical(number):
    x = _of_parts(np.float32)

    def function(x):
        padded = lax.pad(x, np.float32(number), [(0, 1, 0), (300, 0, 0)])
        return padded * 2, 1 / padded

    def in_a_loop(x):
        return lax.fori_loop(
            0, 3, lambda i, y: lax.pad(y[:-1], np.float32(number), [(1, 0, 0), (0, 0, 0)]) / 3, x
        )

    for program in (function, in_a_loop):
        assert_same_bits(with_kernel(program, x), without_kernel(program, x))


def test_small_parts_are_left_to_xla():
    x = normal(1 << 17).reshape(-1, 8)
    with_kernel(lambda x: lax.concatenate([-x[:, 4:], x[:, :4]], 1) * x, x, calls=0)


def test_parts_from_another_place_are_caught(monkeypatch):
    x = _of_parts(np.float32)
    expected = without_kernel(PARTS["slice"], x)
    monkeypatch.setattr(
        kernel,
        "Joint",
        lambda places, lengths: bytecode.Joint(
            tuple(bytecode.Place(p.source, p.axes, p.first + 1) for p in places), lengths
        ),
    )
    with pytest.raises(AssertionError):
        assert_same_bits(with_kernel(PARTS["slice"], x), expected)


@pytest.mark.parametrize("special", [1e-40, -1e-40, -0.0, np.nan, -np.nan, np.inf], ids=str)
def test_one_that_is_not_canonical(special):
    """Additions, multiplications and comparisons take inputs as they are."""
    x, y = normal(7000, 1), normal(7000, 2)
    x[[0, 3071, 5000, 6999]] = special  # in every other block of 1,024

    def function(x, y):
        sums = x + y, x - x * y, y * x * 0, x * np.float32(2.0**120)
        zero = lax.full_like(x, 0)
        compared = [lax.select(of(x, zero), y, y + 1) for of in (lax.eq, lax.ne, lax.lt, lax.le)]
        return *sums, *compared, lax.select(x > y, x, y), 1 / x, lax.sign(x)

    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)


def test_results_are_made_canonical_where_they_are_made():
    code, dtype = bytecode.Bytecode(), np.dtype(np.float32)
    x = code.read(bytecode.Place.along("x", [(8, 1)]), dtype)
    made = code("add", x, x), code("mul", x, x)
    results = [([code("canonicalize", value)], dtype) for value in made]
    names = {number: name for name, number in library.operations().items()}
    instructions = np.reshape(code.encode(8, results)[-20:], (4, 5))
    order = [names[operation] for operation in instructions[:, 0]]
    assert order == ["add", "canonicalize", "mul", "canonicalize"]
    assert (instructions[::2, 1] == instructions[1::2, 2]).all()


def test_comparisons_of_integers_choose():
    rng = np.random.default_rng(5)
    i, j = rng.integers(-3, 3, (2, 3000), np.int32)
    x, y = floats(3000, 1), floats(3000, 2)

    def function(i, j, x, y):
        comparisons = (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)
        chosen = [
            lax.select(of(i, k), x, y) for of in comparisons for k in (j, lax.full_like(i, 1))
        ]
        return chosen, [of(i, j) for of in comparisons[:2]], lax.select(i == j, i, j)

    expected = without_kernel(function, i, j, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, i, j, x, y), expected, name)


def test_results_that_are_made_of_results():
    x, y = floats(1500, 1), floats(1500, 2)

    def function(x, y):
        total = x + y
        return total, total - 0.0, total * y, (total - 0.0) + y, -total, abs(total)

    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)


ARITHMETIC = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div}


def _pairs(second, of_first):
    """What one operation makes of another one's result, which only it needs, or others do, too."""

    def function(x, y, z, number):
        first = of_first(x, y)
        return (
            *(second(first, z), second(z, first), second(of_first(x, number), z) * y),
            *(second(of_first(number, y), of_first(z, number)), second(first, first)),
            second(second(of_first(y, z), first), x) + lax.sqrt(x),
            *(lax.square(of_first(x, z)), lax.square(of_first(x, number)) + z),
        )

    return function


@pytest.mark.parametrize("second", ARITHMETIC)
@pytest.mark.parametrize("first", ARITHMETIC)
def test_pairs_of_operations(first, second):
    function = _pairs(ARITHMETIC[second], ARITHMETIC[first])
    for of in (floats, normal):  # with what is not canonical, and without
        operands = *(of(3000, seed) for seed in range(3)), np.float32(-1.25)
        expected = without_kernel(function, *operands)
        for name in each_instruction_set():
            assert_same_bits(with_kernel(function, *operands), expected, name)
    if second == "sub":  # so that this can fail
        with pytest.raises(AssertionError):
            assert_same_bits(expected[0], expected[1])


@pytest.mark.parametrize("second", ["add", "sub", "mul"])
@pytest.mark.parametrize("first", ARITHMETIC)
def test_pairs_with_numbers(first, second):
    """What is as small as the smallest normal number goes into them as it is, where that is all the
    same: into sums with numbers from 2**-100 on, and products with some of at most 1."""
    rng = np.random.default_rng(1)
    tiny = np.ldexp(rng.choice([-1, 1], (3, 2000)) * rng.integers(1, 5, (3, 2000)), -64)
    tiny[:2, ::3] *= 2.0**-62  # sums, too, are as small
    tiny = tiny.astype(np.float32)
    x, y, z = (np.concatenate([t, floats(1000, i)]) for i, t in enumerate(tiny))
    a, b = x[:2000], y[:2000]
    rounded = {"add": a + b, "sub": a - b, "mul": a * b, "div": a}[first]
    assert first == "div" or (abs(rounded) == 2.0**-126).sum() > 20

    def function(x, y, z, *numbers):
        one, other = ARITHMETIC[first], ARITHMETIC[second]
        results = [other(one(x, y), number) for number in numbers]
        results += [other(number, one(y, z)) for number in numbers]
        return results, one(x, y) * z

    numbers = np.float32([0.5, 1, 1.0000001, -3, 2.0**-100, 2.0**-101, 2.0**-126, 0, np.inf])
    for more in (numbers, -numbers, np.float32([np.nan, 2.0**100, 2.0**64, -(2.0**63)])):
        expected = without_kernel(function, x, y, z, *more)
        for name in each_instruction_set():
            results = with_kernel(function, x, y, z, *more)
            jax.tree.map(lambda *p, name=name: assert_same_bits(*p, name), results, expected)


@pytest.mark.parametrize("special", [1e-40, -1e-40, -0.0, np.nan, -np.nan, np.inf], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: lax.exp(x * y + x),
        lambda x, y: (lax.tanh(x - y), x),
        lambda x, y: lax.erf(x + 1) * x,
        lambda x, y: PRIMITIVES["hypot"].bind(x * x - y, y * x) + lax.log(x),
    ],
    ids=["before", "result", "behind", "both"],
)
def test_one_number_that_is_not_canonical_before_a_function(special, function):
    """Sums and products take inputs as they are, which is noted before a function is computed."""
    for at in ([0], [3071], [5000, 6999], slice(None)):
        x, y = normal(7000, 1), normal(7000, 2)
        x[at] = special
        expected = without_kernel(function, x, y)
        for name in each_instruction_set():
            assert_same_bits(with_kernel(function, x, y), expected, name)


@pytest.mark.parametrize("compare", [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge])
def test_comparisons_that_select(compare):
    """Of arrays and numbers, also where others need what was compared, and as results."""

    def function(x, y, z, number):
        chosen = lax.select(compare(x, y), z, x), lax.select(compare(x, y + z), y, z * y)
        by_number = jax.numpy.where(compare(x, number), 1.5, x * y)
        both = lax.select(compare(y, z), compare(x, y).astype(np.float32), x)
        return *chosen, chosen[0] + chosen[1], by_number, both, compare(z, x)

    for of in (floats, normal):
        operands = *(of(3000, seed) for seed in range(3)), np.float32(-1.25)
        operands[1][::5] = operands[0][::5]
        expected = without_kernel(function, *operands)
        for name in each_instruction_set():
            assert_same_bits(with_kernel(function, *operands), expected, name)


where = jax.numpy.where
CHOICES = {
    "ends": lambda x, y, m: where(m, x * y + x, lax.exp(y)),
    "is needed elsewhere": lambda x, y, m: (where(m, x * y, x - y), abs(x * y)),
    "of results": lambda x, y, m: (x / y, where(m, x / y, x + y) - 1),
    "of inputs": lambda x, y, m: where(m, x, y) * where(m, y, 2.0) + x,
    "of choices": lambda x, y, m: where(
        m, where(x[0] > y[0], x * x, y / x), where(m, x, y * y) - x
    ),
    "of numbers": lambda x, y, m: where(m, 1.5, -2.5) * x + where(m, y, 0),
    "of itself": lambda x, y, m: where(m, where(m, x + y, y), x - y) * (x + y),
    "with sums of many": lambda x, y, m: where(
        m, PRIMITIVES["add_n"].bind(x, y, x * y, y, x), x - y
    ),
    "before what waits": lambda x, y, m: where(m, x + 1, y - 1) / (x * y - (x + y)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_numbers_that_choose(name):
    """What they do not choose is not computed, but what others need of it."""

    function = CHOICES[name]
    for n in (5, 40, 3000):
        operands = floats(n, 1), floats(n, 2)
        for chosen in (False, True):
            expected = without_kernel(function, *operands, chosen)
            for instruction_set in each_instruction_set():
                results = with_kernel(function, *operands, chosen)
                assert_same_bits(results, expected, instruction_set)
    other = without_kernel(function, *operands, not chosen)
    with pytest.raises(AssertionError):
        assert_same_bits(other, expected)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_numbers_that_choose(seed):
    def function(x, y, first, second):
        arrays, choose = [x, y], np.random.default_rng(seed)
        for _ in range(30):
            a, b = (arrays[i] for i in choose.integers(max(0, len(arrays) - 6), len(arrays), 2))
            kind = choose.integers(6)
            if kind < 4:
                arrays.append((lax.add, lax.mul, lax.sub, lax.max)[kind](a, b))
            else:
                number = (first, second)[choose.integers(2)]
                arrays.append(jax.numpy.where(number, a, b))
        return arrays[-1], arrays[choose.integers(2, len(arrays))]

    operands = normal(2500, seed), floats(2500, seed)
    for numbers in ((False, False), (False, True), (True, False), (True, True)):
        expected = without_kernel(function, *operands, *numbers)
        for name in each_instruction_set():
            assert_same_bits(with_kernel(function, *operands, *numbers), expected, name)


@pytest.mark.parametrize("special", [1e-40, -1e-40, -0.0, np.nan, -np.nan, np.inf], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + y, x * y - x, x / y),
        lambda x, y: (y / x, y - 1),
        lambda x, y: (lax.sqrt(x), (x + 1) / 3),
    ],
    ids=["divided", "divisor", "root"],
)
def test_one_of_rounded_arithmetic_that_is_not_canonical(special, function):
    """Divisions and roots do not take inputs as they are.

    0 / 0 and the root of a negative number are noted instead of an operand that is subnormal, and
    1 / -0 is another than 1 / +0.
    """
    x, y = normal(7000, 1), normal(7000, 2)
    x[[0, 3071, 5000, 6999]] = special
    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        assert_same_bits(with_kernel(function, x, y), expected, name)


ENTERING = {  # how inputs are made canonical: at all, and but for their NaNs
    "squares": (lambda x, y: x**2 - y * y, 0, 0),
    "products with at most 1": (
        lambda x, y: 0.5 * x + y * -1.0 + lax.integer_pow(x, 1) * 0.1,
        0,
        0,
    ),
    "products with more": (lambda x, y: 1.5 * x + y * y, 0, 1),
    "products with a number": (lambda x, y, c: 0.5 * x + c * x + y, 0, 3),
    "arithmetic": (lambda x, y: (x + y) / lax.sqrt(x) - -y, 0, 2),
    "comparisons": (lambda x, y: lax.select(x > 0, x, y * y), 1, 0),
}


@pytest.mark.parametrize("name", ENTERING)
def test_how_xla_reads_inputs(name, monkeypatch):
    """What is not canonical is made so only as far as it matters to what is computed of it."""
    function, *numbers = ENTERING[name]
    few, size = slice(1 << 10), 4 * library.LARGE + 1
    x, y = (np.resize(floats(1 << 10, seed), size) for seed in (1, 2))
    args = (x, y, np.float32(1.5))[: 3 if "number" in name else 2]
    entering, names = groups._entering, []

    def noted(group):
        group = entering(group)
        names.extend(e.primitive.name for e in group.eqns)
        return group

    results = []
    for enter in (noted, lambda group: group):
        monkeypatch.setattr(groups, "_entering", enter)
        results.append(repjax.reproducible(lambda *xs: function(*xs))(*args)[few])
    assert [names.count(f"repjax_{how}") for how in ("canonicalize", "enter")] == numbers
    assert_same_bits(*results)


def test_inputs_that_stay_as_they_are_are_caught(monkeypatch):
    """A negative control: a magnitude is no rounded operation."""
    monkeypatch.setattr(groups, "_ends_in_zero", lambda equation: True)
    x = np.resize(np.float32([1e-40, -0.0, 1.0]), 4 * library.LARGE + 1)
    found = repjax.reproducible(lambda x: lax.abs(x))(x)
    assert not same_bits(found[:3], np.float32([0, 0, 1]))


def test_donated_operands_become_results():
    """As without repjax: results that others read are no copies, nor computed twice."""
    x = jax.ShapeDtypeStruct((1 << 22,), np.float32)

    def step(params, momentum, gradients):
        momentum = 0.9 * momentum + gradients
        return params - 0.1 * momentum / (1 + abs(momentum)), momentum

    sizes = [
        jit(step, donate_argnums=(0, 1)).lower(x, x, x).compile().memory_analysis()
        for jit in (jax.jit, repjax.reproducible)
    ]
    stock, ours = (size.temp_size_in_bytes for size in sizes)
    assert ours < stock + x.size


@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_results_that_others_read_have_one_nan(dtype):
    x = np.resize(patterns(1 << 14, dtype=dtype), 1 << 22)

    def function(x):
        y = x - abs(x)  # NaNs of any sign and payload enter, and infinities make others
        return y, y + x, -y

    large = repjax.reproducible(function)
    assert KERNEL not in large.lower(x).as_text()
    small = repjax.reproducible(function)(x[: 1 << 14])
    assert_same_bits(tuple(y[: 1 << 14] for y in large(x)), small)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_on_a_mesh(kind):
    def program(x):
        return x * 1.5 + 1

    mesh = jax.make_mesh((1,), ("i",), axis_types=(kind,))
    x = jax.device_put(floats(64, 1), jax.NamedSharding(mesh, jax.P("i")))
    assert_same_bits(with_kernel(program, x, calls=1), without_kernel(program, x))


def test_without_jit():
    def program(x):
        return x * 1.5 + lax.exp(x)

    x = floats(33, 1)
    expected = without_kernel(program, x)
    with jax.disable_jit():
        assert_same_bits(repjax.reproducible(program)(x), expected)
