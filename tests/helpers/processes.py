"""One of several processes that train together, each with two devices: for test_processes.py.

    python -m helpers.processes PROCESS PROCESSES PORT     in tests/: print digests, as JSON

Without arguments, the same without devices.
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import repjax
from helpers.networks import block_gradients

X = np.random.default_rng(0).normal(size=(8, 4, 24)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(24, 24)).astype(np.float32) / 4
ORDERS = {
    "default": {},
    "order_independent": dict.fromkeys(("accumulation", "contraction"), "order_independent"),
}


def train(name: str, mesh=None) -> str:
    """The digest of weights after three steps, the batch split over the mesh if there is one."""
    optimizer = optax.adam(1e-2)

    @repjax.reproducible(**ORDERS[name])
    def step(w, state, x):
        _, gradients = block_gradients(x, w)
        updates, state = optimizer.update(gradients, state, w)
        return optax.apply_updates(w, updates), state

    def put(tree, spec):
        if mesh is None:
            return tree
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(
                np.shape(x), sharding, np.asarray(x).__getitem__
            ),
            tree,
        )

    w, state, x = put(W, P()), put(optimizer.init(W), P()), put(X, P("i"))
    for _ in range(3):
        w, state = step(w, state, x)
    return repjax.digest(np.asarray(w.addressable_data(0)))


def main() -> None:
    mesh = None
    if sys.argv[1:]:
        process, processes, port = map(int, sys.argv[1:])
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process)
        assert jax.device_count() == 2 * processes
        mesh = jax.make_mesh((jax.device_count(),), ("i",))
    print(json.dumps({name: train(name, mesh) for name in ORDERS}))


if __name__ == "__main__":
    main()
