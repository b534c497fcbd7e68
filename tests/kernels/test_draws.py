"""Random bits and keys by the C++ kernel: those of jax.random, on every instruction set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.instruction_sets import each_instruction_set
from repjax.primitives.cpu import library
from repjax.verify.reference.random import threefry2x32

pytestmark = pytest.mark.skipif(
    not library.instruction_sets(), reason="the kernel was not compiled: no C++ compiler here"
)
KERNEL, OF_KEYS = (f"custom_call @repjax_random_{name}" for name in ("bits", "keys"))
KEY = jax.random.key(7)
# A block has 4,096 elements, and vectors that are computed together up to 64.
SHAPES = [(), (1,), (3, 5), (63,), (64,), (65,), (4095,), (4096,), (4097,), (3, 70_001)]


def draw(shape, dtype=np.uint32):
    return lambda key: jax.random.bits(key, shape, dtype)


def lowered(function, *operands) -> str:
    return jax.jit(repjax.reproducible(function)).lower(*operands).as_text()


def assert_same(got, expected, what: str):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    np.testing.assert_array_equal(got, expected, what)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint16, np.uint8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits(shape, dtype):
    function = draw(shape, dtype)
    assert KERNEL in lowered(function, KEY)
    expected = jax.jit(function)(KEY)
    for name in each_instruction_set():
        assert_same(jax.jit(repjax.reproducible(function))(KEY), expected, name)
    if expected.size > 10:  # another key draws others
        assert not np.array_equal(repjax.reproducible(function)(jax.random.key(8)), expected)


def test_the_generator():
    """The words of each counter under the key, joined."""
    count = 1000
    counters = np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)
    first, second = threefry2x32(*np.asarray(jax.random.key_data(KEY)), *counters)
    for name in each_instruction_set():
        assert_same(repjax.reproducible(draw((count,)))(KEY), first ^ second, name)


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_several_keys(shape):
    keys = jax.random.split(KEY, shape)
    function = draw((70,))
    for _ in shape:
        function = jax.vmap(function)
    assert KERNEL in lowered(function, keys)
    expected = jax.jit(function)(keys)
    for name in each_instruction_set():
        assert_same(repjax.reproducible(function)(keys), expected, name)


@pytest.mark.parametrize("shape", [(), (2,), (3, 5), (64,), (65,), (4097,)], ids=str)
def test_keys_of_a_key(shape):
    def split(key):
        return jax.random.key_data(jax.random.split(key, shape))

    assert OF_KEYS in lowered(split, KEY)
    for key in (KEY, jax.random.split(KEY, 3)):
        function = jax.vmap(split) if key.ndim else split
        expected = function(key)
        for name in each_instruction_set():
            assert_same(repjax.reproducible(function)(key), expected, name)
    assert not np.array_equal(repjax.reproducible(split)(jax.random.key(8)), split(KEY))


@pytest.mark.parametrize("number", [0, 1, 4096, 2**32 - 1])
def test_a_key_and_a_number(number):
    def fold_in(key, number):
        return jax.random.key_data(jax.random.fold_in(key, number))

    number = np.uint32(number)
    assert OF_KEYS in lowered(fold_in, KEY, number)
    assert OF_KEYS in lowered(lambda key: fold_in(key, 3), KEY)
    expected = fold_in(KEY, number)
    keys, numbers = jax.random.split(KEY, 5), number - np.arange(5, dtype=np.uint32)
    for name in each_instruction_set():
        assert_same(repjax.reproducible(fold_in)(KEY, number), expected, name)
        for axes in ((0, 0), (None, 0), (0, None)):
            operands = [KEY if axes[0] is None else keys, number if axes[1] is None else numbers]
            several = jax.vmap(fold_in, axes)
            assert_same(repjax.reproducible(several)(*operands), several(*operands), f"{axes}")
            outside = jax.vmap(repjax.reproducible(fold_in), axes)
            assert_same(outside(*operands), several(*operands), f"{axes} outside")
    assert not np.array_equal(repjax.reproducible(fold_in)(KEY, number ^ 1), expected)


@pytest.mark.parametrize("of_each", [1, 2, 7, 63, 64])
@pytest.mark.parametrize("count", [2, 63, 64, 65, 9000])
def test_few_results_of_each_of_many_keys(count, of_each):
    """Several keys are in a vector, and blocks begin between results of a key."""

    def several(keys, numbers):
        bits = jax.vmap(draw((of_each,)))(keys)
        split = jax.vmap(lambda key: jax.random.split(key, of_each))(keys)
        return bits, jax.random.key_data(split), jax.random.key_data(folded(keys, numbers))

    folded = jax.vmap(jax.random.fold_in)
    keys, numbers = jax.random.split(KEY, count), np.arange(count, dtype=np.uint32) - 5
    expected = jax.jit(several)(keys, numbers)
    for name in each_instruction_set():
        results = repjax.reproducible(several)(keys, numbers)
        for got, want in zip(results, expected, strict=True):
            assert_same(got, want, name)
        assert not np.array_equal(results[0][0], results[0][1])  # a control: one key's are its own


def test_vmap_of_what_is_reproducible():
    keys = jax.random.split(KEY, (4, 3))
    one = repjax.reproducible(draw((70,)))
    function = jax.vmap(jax.vmap(one), 1, 2)
    stock = jax.vmap(jax.vmap(draw((70,))), 1, 2)
    assert_same(function(keys), stock(keys), "vmap")
    assert KERNEL in jax.jit(function).lower(keys).as_text()


def test_keys_that_are_integers():
    key = jax.random.PRNGKey(3)
    assert KERNEL in lowered(draw((9,)), key)
    assert_same(repjax.reproducible(draw((9,)))(key), draw((9,))(key), "an array of integers")


def test_a_loop_draws_by_the_kernel():
    def walk(key):
        def step(key, _):
            key, now = jax.random.split(key)
            return key, jax.random.bits(now, (300,))

        return jax.lax.scan(step, key, None, 5)[1]

    assert "custom_call @repjax_loop" in lowered(walk, KEY)
    assert_same(repjax.reproducible(walk)(KEY), jax.jit(walk)(KEY), "in a scan")


def test_other_generators_and_other_bits_are_not_for_the_kernel():
    with jax.threefry_partitionable(False):
        assert KERNEL not in lowered(draw((70,)), KEY)
        assert_same(repjax.reproducible(draw((70,)))(KEY), draw((70,))(KEY), "by halves")
    with jax.enable_x64(True):
        assert KERNEL not in lowered(draw((70,), np.uint64), KEY)
    assert KERNEL not in lowered(draw((0,)), KEY)


def test_an_exported_program_has_no_kernel():
    program = jax.jit(repjax.reproducible(draw((70,))))
    exported = jax.export.export(program)(KEY)
    assert KERNEL not in exported.mlir_module()
    assert_same(exported.call(KEY), draw((70,))(KEY), "exported")


def test_several_devices_draw_the_same():
    """Of what XLA splits each device has its part, without a kernel; a map over devices has one."""
    devices = jax.devices()
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=auto)
    rows = jax.NamedSharding(mesh, jax.P("i"))
    shape = (len(devices) * 4, 33)

    def normal(key, x):
        return jax.random.normal(key, shape) + x

    x = jnp.zeros(shape)
    expected = repjax.reproducible(normal)(KEY, x).view(jnp.uint32)
    split = jax.jit(repjax.reproducible(normal))(KEY, jax.device_put(x, rows))
    assert_same(split.view(jnp.uint32), expected, "split")

    def part(key, x):
        return jax.random.normal(jax.random.fold_in(key, jax.lax.axis_index("i")), x.shape) + x

    specs = {"in_specs": (jax.P(), jax.P("i")), "out_specs": jax.P("i")}
    program = repjax.reproducible(jax.shard_map(part, mesh=mesh, **specs))
    assert KERNEL in jax.jit(program).lower(KEY, x).as_text()
    drawn = np.split(np.asarray(jax.jit(program)(KEY, x)), len(devices))
    for i, here in enumerate(drawn):
        one = repjax.reproducible(lambda key, n: jax.random.normal(key, n.shape) + n)
        expected = one(jax.random.fold_in(KEY, i), np.zeros_like(here))
        assert_same(here.view(np.uint32), np.asarray(expected).view(np.uint32), f"device {i}")
