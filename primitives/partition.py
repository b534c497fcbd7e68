"""Kernels on sharded arrays: each device computes its part of the result.

XLA splits the operations that it knows.  A kernel is none of them: without a rule, every device
would gather the operands and compute the whole.  The rule names the axes of the operands and of
the result, as ``einsum`` does; axes that a sum goes over are gathered, because its order is
fixed, and the others stay as they are sharded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Axes:
    """Names of the axes of the operands and of the one result, and which are not to be split."""

    operands: Sequence[Sequence[str]]
    result: Sequence[str]
    whole: Sequence[str]


def partitioned(function: Callable[..., Any], axes: Callable[..., Axes]) -> Callable[..., Any]:
    """``function(*operands, **params)`` in parts; ``axes`` has the same arguments."""

    def in_parts(*operands, **params):
        names = axes(*operands, **params)
        every = [*names.operands, names.result]

        def local(*operands):
            with jax.enable_x64(True):
                return function(*operands, **params)

        def partition(mesh, operands, result):
            shardings = [x.sharding for x in (*operands, result)]
            splits: dict[str, Any] = {}
            if all(isinstance(s, NamedSharding) for s in shardings):
                used: set[str] = set()
                for of_array, sharding in zip(every, shardings, strict=True):
                    for name, split in zip(of_array, sharding.spec, strict=False):
                        over = {split} if isinstance(split, str) else set(split or ())
                        if over and not over & used and name not in (*names.whole, *splits):
                            splits[name] = split
                            used |= over
            else:  # of several meshes
                devices = sorted(shardings[0].device_set, key=lambda d: d.id)
                mesh = Mesh(np.array(devices), ("all",))
            *of_operands, of_result = (
                NamedSharding(mesh, PartitionSpec(*map(splits.get, of_array))) for of_array in every
            )
            return mesh, local, of_result, tuple(of_operands)

        call = custom_partitioning(local)
        call.def_partition(
            partition,
            sharding_rule=f"{', '.join(map(' '.join, names.operands))} -> {' '.join(names.result)}",
            need_replication_factors=tuple(names.whole),
        )
        return call(*operands)

    return in_parts
