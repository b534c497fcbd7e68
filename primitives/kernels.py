"""The one list of kernels: for each primitive and platform, the faster function with its bits.

Kernels stand above the operations that they compute, and enter here: whoever wants to know what
computes a primitive on a platform looks for it in this file, and nowhere else.  Where a primitive
is not in the list, or its kernel is not there, XLA compiles the body.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive

from repjax.primitives import gpu
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.programs import open_jaxpr, struct_of, without_unused
from repjax.primitives.core.tables import FEW_BY_VALUE, KERNELS, Kernel
from repjax.primitives.cpu import (
    bodies,
    chains,
    fourier,
    groups,
    library,
    linalg,
    loops,
    products,
    random,
    rows,
    scatter,
    sums,
)
from repjax.primitives.cpu.takes import CPU
from repjax.primitives.fusion.draws import random_bits_p, random_fold_in_p, random_split_p
from repjax.primitives.fusion.entries import (
    RAW_SCATTERS,
    canonicalize_in_place_p,
    in_entries,
    raw_dot_general_p,
)
from repjax.primitives.fusion.few_terms import without_sums_of_few
from repjax.primitives.fusion.groups import group_sum_p, groups_p
from repjax.primitives.fusion.inside import plan_inside
from repjax.primitives.fusion.loops import loop_p
from repjax.primitives.fusion.pads import without_sums_of_pads
from repjax.primitives.fusion.repeated import without_repeated
from repjax.primitives.fusion.rows import fuse, rows_p
from repjax.primitives.fusion.turns import with_turned_constants
from repjax.primitives.gpu.takes import GPU
from repjax.primitives.operations import arithmetic
from repjax.primitives.operations.fourier import fourier_p
from repjax.primitives.operations.linalg import eigen, factorizations
from repjax.primitives.operations.products import (
    conv_general_dilated_p,
    dot_general_p,
    integer_conv_general_dilated_p,
    integer_dot_general_p,
    stock_conv_general_dilated,
    stock_dot_general,
)
from repjax.primitives.operations.products.orders import BODIES, in_order
from repjax.primitives.operations.reductions import cumulative, extrema
from repjax.primitives.operations.reductions import sums as reductions
from repjax.primitives.operations.scatter import scatter_add_p, scatter_max_p, scatter_min_p

# --- CPU --------------------------------------------------------------------------------

#: What XLA compiles to faster code than the body.
_OF_XLA = {
    arithmetic.div_p: bodies.div,
    arithmetic.sqrt_p: bodies.sqrt,
    extrema.top_k_p: bodies.top_k,
    integer_dot_general_p: stock_dot_general,
    integer_conv_general_dilated_p: stock_conv_general_dilated,
}
#: Likewise without the C++ library, for what a device computes by itself.
_WITHOUT_LIBRARY = {
    dot_general_p: in_order({**BODIES["dot_general"], "sequential": chains.dot_general}),
    conv_general_dilated_p: in_order(
        {**BODIES["conv_general_dilated"], "sequential": chains.conv_general_dilated}
    ),
}
#: The C++ library, on parts of sharded operands too.
_IN_PARTS = {
    dot_general_p: products.kernel("dot_general"),
    raw_dot_general_p: products.kernel("dot_general"),
    conv_general_dilated_p: products.kernel("conv_general_dilated"),
    reductions.reduce_sum_p: sums.reduce_sum,
    cumulative.cumsum_p: sums.cumsum,
    extrema.reduce_max_p: sums.reduce_max,
    extrema.reduce_min_p: sums.reduce_min,
    extrema.top_k_p: sums.top_k,
}
_SCATTERS = {
    scatter_add_p: scatter.scatter_add,
    scatter_max_p: scatter.scatter_max,
    scatter_min_p: scatter.scatter_min,
}
#: The C++ library, for what a device computes by itself.
_ON_ONE_DEVICE = {
    **_SCATTERS,
    **{RAW_SCATTERS[primitive]: kernel for primitive, kernel in _SCATTERS.items()},
    factorizations.triangular_solve_p: linalg.triangular_solve,
    factorizations.cholesky_p: linalg.cholesky,
    factorizations.lu_p: linalg.lu,
    factorizations.geqrf_p: linalg.geqrf,
    factorizations.householder_product_p: linalg.householder_product,
    factorizations.qr_p: linalg.qr,
    eigen.eigh_p: linalg.eigh,
    eigen.svd_p: linalg.svd,
    fourier_p: fourier.transform,
    canonicalize_in_place_p: groups.canonicalize_in_place,
    groups_p: groups.evaluate,
    group_sum_p: groups.evaluate_sum,
    rows_p: rows.evaluate,
    loop_p: loops.evaluate,
    random_bits_p: random.bits,
    random_split_p: random.split,
    random_fold_in_p: random.fold_in,
}


def _on_cpu(primitive: Primitive) -> Kernel | None:
    if primitive in _IN_PARTS and library.serves():
        return Kernel(lambda: _IN_PARTS[primitive], in_parts=True)
    if primitive in _OF_XLA:
        return Kernel(lambda: _OF_XLA[primitive], of_xla=True)
    if primitive in _ON_ONE_DEVICE and library.serves():
        return Kernel(lambda: _ON_ONE_DEVICE[primitive], on_one_device=True)
    if primitive in _WITHOUT_LIBRARY:
        return Kernel(lambda: _WITHOUT_LIBRARY[primitive], on_one_device=True)
    return None


# --- GPU --------------------------------------------------------------------------------


def _lazily(module: str, name: str, *arguments: Any) -> Callable[[], Callable[..., Any]]:
    """A kernel in a module of :mod:`repjax.primitives.gpu`, with which comes Pallas: its import
    takes a while.  With arguments, what the function ``name`` makes of them."""

    def make():
        found = getattr(importlib.import_module(f"repjax.primitives.gpu.{module}"), name)
        return found(*arguments) if arguments else found

    return make


#: By backend (:func:`repjax.primitives.gpu.backend`); all but rows on parts of sharded operands.
_ON_GPU = {
    "triton": {
        dot_general_p: _lazily("products", "kernel", "dot_general"),
        conv_general_dilated_p: _lazily("products", "kernel", "conv_general_dilated"),
        integer_dot_general_p: _lazily("products", "kernel_of_integers", "dot_general"),
        integer_conv_general_dilated_p: _lazily(
            "products", "kernel_of_integers", "conv_general_dilated"
        ),
        reductions.reduce_sum_p: _lazily("reductions", "reduce_sum"),
        reductions.reduce_prod_p: _lazily("reductions", "reduce_prod"),
        cumulative.cumsum_p: _lazily("reductions", "cumsum"),
        cumulative.cumprod_p: _lazily("reductions", "cumprod"),
        rows_p: _lazily("rows", "evaluate"),
    },
    "ptx": {
        dot_general_p: _lazily("products", "kernel_by_ptx", "dot_general"),
        conv_general_dilated_p: _lazily("products", "kernel_by_ptx", "conv_general_dilated"),
    },
}


def _on_gpu(primitive: Primitive) -> Kernel | None:
    make = _ON_GPU.get(gpu.backend(), {}).get(primitive)
    return None if make is None else Kernel(make, in_parts=primitive is not rows_p)


# --- registration -----------------------------------------------------------------------

KERNELS.update(cpu=_on_cpu, cuda=_on_gpu)
FEW_BY_VALUE.update(cpu=library.xla_has_masks)
# Lowering has to know the devices of what is computed in parts, or on one device only.
prim_requires_devices_during_lowering.update(
    {*_IN_PARTS, *_ON_ONE_DEVICE, *_ON_GPU["triton"], *_ON_GPU["ptx"]}
)


def in_kernels(
    function: Callable[..., Sequence[Any]], *operands, carry: tuple[int, int] = (0, 0)
) -> list[Any]:
    """The results of a function of repjax's primitives, with what there are kernels for in them.
    ``carry`` as for :func:`~repjax.primitives.fusion.groups.in_groups`: the function is a loop's.

    Which these are depends on the platform that programs are expected to be compiled for.  On
    another one, the results have the same bits.  Kernels are for sizes that are known.
    """
    are_known = all(isinstance(n, int) for x in operands for n in x.shape)
    if are_known and gpu.expected():
        kernels = GPU if gpu.ROWS else None
    else:
        kernels = CPU if are_known and library.available() else None
    if kernels is None:
        return list(function(*operands))
    closed = without_repeated(jax.make_jaxpr(function)(*map(struct_of, operands)))
    closed = without_sums_of_pads(without_unused(closed))
    if kernels is CPU:
        closed = with_turned_constants(without_sums_of_few(closed, kernels))
    closed = plan_inside(closed, in_kernels)
    run = in_entries if kernels.reads_raw else jax.core.eval_jaxpr
    return fuse(functools.partial(run, *open_jaxpr(closed)), kernels, *operands, carry=carry)
