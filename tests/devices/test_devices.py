"""Several devices: collectives, pmap, meshes with and without shardings in types."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import repjax
from helpers.scripts import on_eight_devices


@functools.cache
def digests() -> dict[str, list[str]]:
    """Of each program: on eight devices, and on one."""
    return on_eight_devices("-m", "helpers.devices")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_programs_over_devices():
    different = {name: pair for name, pair in digests().items() if pair[0] != pair[1]}
    assert different == {}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_control_programs_differ_from_each_other():
    assert len({pair[0] for pair in digests().values()}) > len(digests()) // 2 - 2


def test_over_one_device():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P())
    def program(x):
        return lax.psum(x, "i")

    np.testing.assert_array_equal(
        np.asarray(repjax.reproducible(program)(x)).view(np.uint32), x.view(np.uint32)
    )


def test_reductions_that_do_not_wait_for_each_other_are_one_exchange():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P())
    def program(x, y, z):
        together = lax.psum((x, y, x * y), "i")
        return *together, lax.psum(together[0] + z, "i")

    text = repjax.reproducible(program).lower(*np.ones((3, 4), np.float32)).as_text()
    assert text.count("stablehlo.all_gather") == 2


def test_what_is_large_is_exchanged_by_itself():
    """All of it at once would be in memory several times."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P())
    def program(x, y):
        sums = lax.psum((x, y, x + 1, y + 1), "i")
        return sums, lax.psum(sums[:3], "i")

    def exchanges(size: int) -> int:
        large = jax.ShapeDtypeStruct((size,), np.float32)
        small = jax.ShapeDtypeStruct((70_000,), np.float32)
        text = repjax.reproducible(program).lower(large, small).as_text()
        return text.count("stablehlo.all_gather")

    assert exchanges(70_000) == 2
    assert exchanges(3_000_000) == 3 + 3


def test_refusals_inside_are_listed():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    def program(x):
        return lax.approx_max_k(lax.erf(x), 2)[0]

    with pytest.raises(repjax.RefusedError, match="approx_top_k"):
        repjax.reproducible(program)(np.ones((2,), np.float32))


def test_explicit_functions_refuse_collectives():
    from repjax.explicit import explicit

    x = np.ones((2,), np.float32)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    program = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(repjax.RefusedError, match="explicit repjax function"):
        explicit(program)(x)
    inside = explicit(lambda x: lax.psum(x, "i"))
    with pytest.raises(repjax.RefusedError, match="explicit repjax function"):
        jax.shard_map(inside, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)
