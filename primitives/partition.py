"""Kernels on sharded arrays: each device computes its part of the result.

XLA splits the operations that it knows.  A kernel is none of them: without a rule, every device
would gather the operands and compute the whole.  The rule names the axes of the operands and of
the result, as ``einsum`` does.  Axes that a sum goes over are gathered, because its order is fixed;
where it has none, devices add what they have.  The others stay as they are sharded.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Axes:
    """Names of the axes of the operands and of the one result.

    Attributes:
      whole: which are not to be split.
      across: which are split only where the devices that have the parts exchange values, and what
        they are there.
    """

    operands: Sequence[Sequence[str]]
    result: Sequence[str]
    whole: Sequence[str] = ()
    across: Mapping[str, str] = dataclasses.field(default_factory=dict)


def partitioned(
    function: Callable[..., Any],
    axes: Callable[..., Axes],
    across: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """``function(*operands, **params)`` in parts; ``axes`` has the same arguments.

    Where axes of ``Axes.across`` are split, ``across(*operands, over=..., **params)`` computes a
    part; ``over`` has, by what they are, the axes of the mesh to exchange values over.
    """

    def in_parts(*operands, **params):
        names = axes(*operands, **params)
        every = [*names.operands, names.result]

        def local(function, *operands):
            with jax.enable_x64(True):
                return function(*operands, **params)

        def partition(mesh, operands, result):
            shardings = [x.sharding for x in (*operands, result)]
            splits: dict[str, Any] = {}
            if all(isinstance(s, NamedSharding) for s in shardings):
                used: set[str] = set()
                for of_array, x in zip(every, (*operands, result), strict=True):
                    for name, split, size in zip(of_array, x.sharding.spec, x.shape, strict=False):
                        over = {split} if isinstance(split, str) else set(split or ())
                        # XLA fills parts of other sizes up, with anything.
                        count = math.prod(mesh.shape[axis] for axis in over)
                        uneven = name in names.across and size % count
                        known = name in (*names.whole, *splits)
                        if over and not (over & used or uneven or known):
                            splits[name] = split
                            used |= over
            else:  # of several meshes
                devices = sorted(shardings[0].device_set, key=lambda d: d.id)
                mesh = Mesh(np.array(devices), ("all",))
            *of_operands, of_result = (
                NamedSharding(mesh, PartitionSpec(*map(splits.get, of_array))) for of_array in every
            )
            over: dict[str, tuple[str, ...]] = dict.fromkeys(names.across.values(), ())
            for name, what in names.across.items():
                split = splits.get(name, ())
                over[what] += (split,) if isinstance(split, str) else tuple(split)
            part = functools.partial(across, over=over) if any(over.values()) else function
            return mesh, functools.partial(local, part), of_result, tuple(of_operands)

        call = custom_partitioning(functools.partial(local, function))
        call.def_partition(
            partition,
            sharding_rule=f"{', '.join(map(' '.join, names.operands))} -> {' '.join(names.result)}",
            need_replication_factors=tuple(names.whole),
        )
        return call(*operands)

    return in_parts
