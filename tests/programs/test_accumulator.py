"""Exact sums over time: neither microbatches nor devices nor the order of arrival matter."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import repjax
from helpers import accumulation
from helpers.bits import assert_same_bits, patterns
from helpers.paths import TESTS
from repjax import checkpoint
from repjax.exact import Accumulator
from repjax.verify import reference

FORMATS = tuple(map(np.dtype, ("float32", "float16", jnp.bfloat16)))


def exact_sum(x):
    return reference.sums.exactly(reference.values.canonical(x), x.dtype)


# --- numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_sums_of_any_numbers(dtype):
    """All bit patterns, few of which are infinite; many sums cancel, overflow or underflow."""
    x = reference.values.canonical(patterns(40 * 300, 1, dtype).reshape(40, 300))
    x = np.where(np.isfinite(x), x, np.ones_like(x))
    x[20:, ::2] = -x[:20, ::2]
    x[39, ::2] = reference.values.canonical(patterns(150, 2, dtype))
    x[0, 1:100:7], x[1, 1:100:14] = np.inf, -np.inf
    empty = Accumulator.like(x[0])
    expected = exact_sum(x)
    at_once = empty.add_each(x)
    one_by_one = functools.reduce(Accumulator.add, np.random.default_rng(0).permutation(x), empty)
    merged = empty.add_each(x[7:]).merge(empty.add_each(x[:7]))
    for way in (at_once, one_by_one, merged):
        assert_same_bits(np.asarray(way.round()), expected)
        assert repjax.digest(way) == repjax.digest(at_once)
    assert len({*map(str, np.asarray(expected)[[0, 1, 15]])}) > 1
    summed = functools.partial(repjax.lax.reduce_sum, axes=(0,), accumulation="exact")
    assert_same_bits(np.asarray(summed(x)), expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12), st.randoms())
def test_order_and_parts_change_nothing(words, random):
    x = np.zeros(12, np.uint32)
    x[: len(words)] = words
    x = x.view(np.float32)
    empty = Accumulator.like(np.float32(0))
    shuffled = np.array(random.sample(x.tolist(), 12), np.float32)
    at = random.randrange(13)
    parts = (np.pad(p, (0, 12 - len(p))) for p in (shuffled[:at], shuffled[at:]))
    first, second = map(empty.add_each, parts)
    assert_same_bits(np.asarray(first.merge(second).round())[()], exact_sum(x)[()])
    assert repjax.digest(first.merge(second)) == repjax.digest(empty.add_each(x))


def test_the_sum_of_nothing():
    assert_same_bits(np.asarray(Accumulator.like(np.ones(3, "f4")).round()), np.zeros(3, "f4"))
    none = Accumulator.like(np.ones(3, "f4")).add_each(np.ones((0, 3), "f4"))
    assert_same_bits(np.asarray(none.round()), np.zeros(3, "f4"))


def test_many_terms_at_once():
    """More than sums of halves of words have room for, of which each has all bits."""
    x = np.full((1 << 15) + 9, np.float32(2 - 2.0**-23))
    total = Accumulator.like(x[0]).add_each(x).round()
    assert float(total) == np.float32(len(x) * (2 - 2.0**-23))


def test_inside_of_programs():
    """In a loop, and over a mesh, where devices add what they have."""
    x = patterns(24, 3).reshape(6, 4)
    x = np.where(np.isfinite(x), x, np.float32(1))
    empty = Accumulator.like(x[0])
    looped = jax.jit(lambda a, x: jax.lax.scan(lambda a, x: (a.add(x), None), a, x)[0])(empty, x)
    assert repjax.digest(looped) == repjax.digest(empty.add_each(x))
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)
    def over_devices(x):
        return Accumulator.like(x[0]).add_each(x).psum("i")

    assert repjax.digest(over_devices(x)) == repjax.digest(looped)
    switched = repjax.reproducible(lambda a, x: a.add_each(x).round())(empty, x)
    assert_same_bits(np.asarray(switched), exact_sum(x))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Accumulator.like({"a": np.ones(2, "i4")}), r"received int32 at \['a'\]"),
        (
            lambda: Accumulator.like(np.ones(2, "f4")).add(np.ones(2, "f2")),
            r"received float16\[2\]",
        ),
        (
            lambda: Accumulator.like(np.ones(2, "f4")).add(np.ones(3, "f4")),
            r"expected float32\[2\], received float32\[3\]",
        ),
        (lambda: Accumulator.like(np.ones(2, "f4")).add_each(np.ones(2, "f4")), "leading axis"),
        (lambda: Accumulator.like(np.ones(2, "f4")).merge(np.ones(2, "f4")), "received ndarray"),
        (
            lambda: Accumulator.like(np.ones(2, "f4")).merge(Accumulator.like(np.ones(3, "f4"))),
            "of the same tree",
        ),
    ],
)
def test_wrong_trees(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        wrong()


# --- gradients --------------------------------------------------------------------------

#: Each number of microbatches and each number of devices.
FEW = [(1, 1), (2, 2), (4, 8), (8, 1), (64, 8)]


def _digest(name: str, microbatches: int, devices: int, seed: int) -> str:
    return repjax.digest(accumulation.gradient(name, microbatches, devices, seed))


def _in_a_process(name: str, pairs) -> set[str]:
    """The digests for pairs of microbatches and devices, in a process with eight devices."""
    code = f"""
from helpers import accumulation
import repjax
for seed, (microbatches, devices) in enumerate({list(pairs)}):
    print(repjax.digest(accumulation.gradient({name!r}, microbatches, devices, seed)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TESTS,
        env={**os.environ, **EIGHT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    digests = result.stdout.split()
    assert len(digests) == len(pairs)
    return set(digests)


EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
@pytest.mark.parametrize("name", accumulation.NETWORKS)
def test_microbatches_devices_and_arrival(name):
    assert len(_in_a_process(name, FEW)) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
@pytest.mark.parametrize("name", accumulation.NETWORKS)
def test_all_microbatches_and_devices(name):
    pairs = itertools.product(accumulation.MICROBATCHES, accumulation.DEVICES)
    assert len(_in_a_process(name, [*pairs])) == 1


def test_rounded_sums_depend_on_microbatches():
    """The control: the gradients of microbatches, added by add."""
    found = set()
    for microbatches in (1, 4, 8):
        total = None
        for examples in accumulation.parts(microbatches, 0):
            inputs, labels = (x[examples] for x in accumulation.NETWORKS["mlp"][1]())
            of_each = accumulation.gradients("mlp")(accumulation.parameters("mlp"), inputs, labels)
            part = jax.tree.map(lambda x: repjax.lax.reduce_sum(x, (0,)), of_each)
            total = part if total is None else jax.tree.map(repjax.lax.add, total, part)
        found.add(repjax.digest(total))
    assert len(found) == 3


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_kill_9_and_another_number_of_devices(tmp_path):
    """A run is killed twice, goes on with other devices, and has the gradient of a whole one."""
    file = tmp_path / "sum.npz"
    whole = repjax.digest(accumulation.gradient("mlp", 1, 1, 0))

    def start(devices):
        arguments = [str(x) for x in ("mlp", file, 64, devices, 3)]
        return subprocess.Popen(
            [sys.executable, "-m", "helpers.accumulation", *arguments],
            cwd=TESTS,
            env={**os.environ, **EIGHT},
            stdout=subprocess.PIPE,
            text=True,
        )

    seen = 0
    for devices in (2, 8):
        process = start(devices)
        while process.poll() is None:
            if file.exists() and checkpoint.load_metadata(file) > seen + 3:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        seen = checkpoint.load_metadata(file)
    assert 0 < seen < 64
    output, _ = start(1).communicate()
    assert output.strip() == whole
    assert checkpoint.load_metadata(file) == 64
