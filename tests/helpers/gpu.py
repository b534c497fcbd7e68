"""Lowering for GPUs that are not there."""

from __future__ import annotations

import contextlib

import jax
import pytest
from jax._src import dispatch

from repjax.primitives.gpu import reductions
from repjax.primitives.operations.products import orders


@pytest.fixture
def for_one_device(monkeypatch):
    """Kernels that are not split, for which lowering would have to have the devices."""
    monkeypatch.setattr(dispatch, "prim_requires_devices_during_lowering", set())
    for module in (orders, reductions):
        monkeypatch.setattr(module, "partitioned", lambda kernel, axes, across=None: kernel)


@contextlib.contextmanager
def compiling_for(kind):
    """Lowering is told of a GPU that is not there."""
    device = jax.sharding.AbstractDevice(device_kind=kind, platform="gpu", num_cores=None)
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield
