"""Meshes whose axes are *explicit*: types of values then say how they are sharded over them.

repjax's primitives know nothing of that, so a program is interpreted with all such axes ``Auto``,
and its results get the shardings of the types that they have without repjax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType


def in_auto_axes(
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    results: Sequence[Any],
    sharded: Callable[[Any], Any] = lambda x: x,
) -> list[Any]:
    """``function(*operands)``, inside which no type has a sharding.

    Args:
      results: the types, with shardings, that the results are to have.
      sharded: what is made of operands and results while they have their shardings.
    """
    types = [*map(jax.typeof, operands), *results]
    meshes = [t.sharding.mesh for t in types] + [jax.sharding.get_abstract_mesh()]
    mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
    if mesh is None:
        return list(function(*operands))
    operands = [sharded(x) for x in operands]
    auto = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    with jax.sharding.use_abstract_mesh(auto):
        values = function(*(jax.reshard(x, jax.P()) for x in operands))
    with jax.sharding.use_abstract_mesh(mesh):
        pairs = zip(values, results, strict=True)
        return [sharded(jax.reshard(x, t.sharding.spec)) for x, t in pairs]
