"""Kernels on sharded arrays: each device computes its part of the results.

XLA splits the operations that it knows.  A kernel is none of them: without a rule, every device
would gather the operands and compute the whole.  The rule names the axes of the operands and of
the results, as ``einsum`` does.  Axes that a sum goes over are gathered, because its order is
fixed; where it has none, devices add what they have.  The others stay as they are sharded.

:mod:`repjax.primitives.fusion.names` finds the names of a fused group.
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
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


@dataclasses.dataclass(frozen=True)
class Axes:
    """Names of the axes of the operands and of the results.

    An axis may have several names, if it is several axes as one: it is split along the first.

    Attributes:
      whole: which are not to be split.
      across: which are split only where the devices that have the parts exchange values, and what
        they are there.
      sizes: of those that are split into equal parts only.
      takes_long: whether to compute the result takes longer than to distribute the operands anew.
    """

    operands: Sequence[Sequence[str]]
    results: Sequence[Sequence[str]]
    whole: Sequence[str] = ()
    across: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    takes_long: bool = False

    @property
    def arrays(self) -> list[Sequence[str]]:
        """The names of all arrays, the operands first."""
        return [*self.operands, *self.results]

    def rule(self) -> str:
        """As JAX writes it."""

        def side(arrays):
            return ", ".join(
                " ".join(f"({axis})" if " " in axis else axis for axis in array) for array in arrays
            )

        return f"{side(self.operands)} -> {side(self.results)}"

    def hidden_sizes(self) -> dict[str, int]:
        """The sizes of the names that no axis has for itself."""
        axes = [axis for array in self.arrays for axis in array]
        return {n: self.sizes[n] for axis in axes for n in axis.split() if n not in axes}


def _prime_axes(devices: np.ndarray) -> Mesh:
    """The mesh of these devices whose axes have prime sizes.

    Where an array's axis has become two, XLA may split one of them over a part of a mesh's axis
    and the other over the rest, for which the mesh that the user made has no names.
    """
    sizes = []
    for rest in devices.shape:
        for factor in range(2, rest + 1):
            while rest % factor == 0:
                sizes.append(factor)
                rest //= factor
    return Mesh(devices.reshape(sizes), tuple(map(str, range(len(sizes)))))


def _spec(mesh: Mesh, sharding: jax.sharding.Sharding, ndim: int) -> list[tuple[str, ...]] | None:
    """Over which axes of the mesh XLA splits each axis of an array; None if it does otherwise.

    XLA numbers the devices as they lie in the mesh, and has an array of these numbers, whose axes
    are those of the array, and perhaps a last one for devices that have the same part.
    """
    description = sharding._to_xla_hlo_sharding(ndim)
    if description.is_replicated():
        return [()] * ndim
    if not description.is_tiled() or len(description.subgroup_types()) > 1:
        return None
    shape = description.tile_assignment_dimensions()
    numbers = np.reshape(description.tile_assignment_devices(), shape)
    sizes = mesh.devices.shape
    place = np.argwhere(numbers >= 0)[np.argsort(numbers, axis=None)].reshape(*sizes, len(shape))
    # A step along an axis of the mesh is one along an axis of the numbers, the longest first.
    steps = [place[tuple(np.eye(len(sizes), dtype=int)[axis])] for axis in range(len(sizes))]
    over = [
        sorted((a for a, step in enumerate(steps) if step[along]), key=lambda a: -max(steps[a]))
        for along in range(len(shape))
    ]
    order = [axis for axes in over for axis in axes]
    if sorted(order) != list(range(len(sizes))):
        return None
    of_mesh = np.arange(mesh.size).reshape(sizes).transpose(order).reshape(shape)
    if not np.array_equal(of_mesh, numbers):
        return None
    return [tuple(mesh.axis_names[axis] for axis in axes) for axes in over[:ndim]]


def _splits(names: Axes, mesh: Mesh, arrays, specs) -> dict[str, tuple[str, ...]]:
    """The axes of the mesh that axes are split over: those of the arrays, where they can be.

    Where an axis is split that has to be whole, the devices would all compute the same.  If that
    takes long, they split the result instead.
    """
    splits: dict[str, tuple[str, ...]] = {}
    #: Names that occur together, which cannot be split over the same.
    together: dict[str, set[str]] = {}
    for of_array in names.arrays:
        named = {name for axis in of_array for name in axis.split()}
        joined = named.union(*(together.get(name, ()) for name in named))
        together.update(dict.fromkeys(joined, joined))

    def split(name: str, size: int, over: tuple[str, ...]) -> bool:
        # XLA fills parts of other sizes up, with anything.
        equal = name in names.across or name in names.sizes
        uneven = equal and names.sizes.get(name, size) % math.prod(mesh.shape[a] for a in over)
        used = {a for other in together[name] for a in splits.get(other, ())}
        if used & {*over} or uneven or name in names.whole or name in splits:
            return False
        splits[name] = over
        return True

    found = [
        (named.split()[0], size, over)
        for of_array, x, spec in zip(names.arrays, arrays, specs, strict=True)
        for named, over, size in zip(of_array, spec, x.shape, strict=True)
        if over
    ]
    for name, size, over in found:
        split(name, size, over)
    # XLA exchanges parts that all devices have of an array, and gathers those that some have.
    everywhere = {
        over for _, _, over in found if math.prod(mesh.shape[a] for a in over) == mesh.size
    }
    if names.takes_long and not splits and everywhere:
        of_result = zip(names.results[0], arrays[-1].shape, strict=True)
        equal = [axis for axis in of_result if axis[1] % mesh.size == 0]
        any(split(*axis, min(everywhere)) for axis in sorted(equal, key=lambda axis: -axis[1]))
    return splits


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

        def local(mesh, function, *operands):
            with jax.enable_x64(True), jax.sharding.use_abstract_mesh(mesh):
                return function(*operands, **params)

        def partition(mesh, operands, results):
            results, structure = jax.tree.flatten(results)
            arrays = [*operands, *results]
            if mesh.empty:  # of several meshes
                devices = sorted(arrays[0].sharding.device_set, key=lambda d: d.id)
                mesh, specs = Mesh(np.array(devices), ("all",)), [None]
            else:
                mesh = _prime_axes(mesh.devices)
                specs = [_spec(mesh, x.sharding, len(x.shape)) for x in arrays]
            splits = {} if None in specs else _splits(names, mesh, arrays, specs)
            parts = [
                NamedSharding(mesh, PartitionSpec(*(splits.get(a.split()[0]) for a in of_array)))
                for of_array in names.arrays
            ]
            over: dict[str, tuple[str, ...]] = dict.fromkeys(names.across.values(), ())
            for name, what in names.across.items():
                over[what] += splits.get(name, ())
            part = functools.partial(across, over=over) if any(over.values()) else function
            of_operands, of_results = tuple(parts[: len(operands)]), parts[len(operands) :]
            of_results = jax.tree.unflatten(structure, of_results)
            own = mesh.abstract_mesh
            own = own.update_axis_types(dict.fromkeys(own.axis_names, AxisType.Manual))
            return mesh, functools.partial(local, own, part), of_results, of_operands

        mesh = jax.sharding.get_abstract_mesh()
        call = custom_partitioning(functools.partial(local, mesh, function))
        call.def_partition(
            partition,
            decode_shardings=False,  # JAX's decoding raises where an axis of the mesh is split
            sharding_rule=names.rule(),
            need_replication_factors=tuple(names.whole),
            **names.hidden_sizes(),
        )
        return call(*operands)

    return in_parts
