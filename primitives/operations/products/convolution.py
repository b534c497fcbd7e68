"""Convolutions as sequential FMA chains, one per output element.

``conv_general_dilated`` is its own gradient: JAX writes the gradients for the input
and for the kernel as equations of the same primitive with other dimension numbers,
strides and dilations.  So one body covers all three, and their orders of summation
follow from one rule, the order of ``k`` in the equation's right operand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax import lax

from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.sequential import chain_of_groups, check_float32
from repjax.primitives.operations.reductions.window import gather_windows

# The most patch elements to hold at a time: 64 MiB, more only for a single example.
_PATCHES = 1 << 24


def conv_general_dilated_body(lhs, rhs, **parameters):
    """``jax.lax.conv_general_dilated`` as sequential FMA chains.

    Args:
      lhs, rhs: canonical float32 arrays with any number of spatial dimensions.
      parameters: those of :class:`~.geometry.Geometry`.

    Returns:
      Canonical float32.  Each element is ``s = fma(lhs, rhs, s)`` from +0 with k
      ascending over (input feature of ``rhs``, spatial positions of ``rhs`` row-major
      in the order of ``rhs_spec``).  Padding and the holes of a dilation are +0
      operands that take part, so that ``0 * inf`` in them gives NaN.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    geometry = Geometry(**parameters)
    return by_patches(chain_of_groups, lhs, rhs, geometry, dtype=np.dtype(np.float32))


def by_patches(product, lhs, rhs, geometry: Geometry, *, dtype):
    """A convolution by ``product(kernel[k, g, m], patches[k, g, n])``, ``[g, m, n]`` of ``dtype``.

    The order of k is that of :func:`conv_general_dilated_body`.
    """
    lhs, rhs, geometry = geometry.transposed(lhs, rhs)
    lhs, groups = geometry.filled(lhs), geometry.groups
    outs, _, *window = rhs.shape
    batch = lhs.shape[0] // geometry.batch_group_count
    positions = geometry.positions(lhs.shape[2:], window)
    shape = [groups, outs // groups, batch, *positions]
    k = geometry.terms(rhs)

    def products(lhs):
        patches = gather_patches(lhs, rhs.shape[1:], geometry)
        kernel = lax.reshape(rhs, [groups, outs // groups, k])
        return product(lax.transpose(kernel, [2, 0, 1]), patches)

    if 0 in (*shape, k):
        out = lax.full(shape, 0, dtype)
    else:
        n = pieces(batch, k * groups * math.prod(positions))
        lhs = lax.reshape(lhs, [geometry.batch_group_count, n, batch // n, *lhs.shape[1:]])
        lhs = lax.transpose(lhs, [1, 0, *range(2, lhs.ndim)])
        if n == 1:
            out = products(lax.squeeze(lhs, [0]))
        else:
            out = lax.transpose(lax.map(products, lhs), [1, 2, 0, 3])
    # [groups, outs of a group, batch, *spatial] -> [batch, outs, *spatial] -> as specified
    out = lax.transpose(lax.reshape(out, shape), [2, 0, 1, *range(3, len(shape))])
    return geometry.as_specified(lax.reshape(out, [batch, outs, *positions]))


def pieces(batch: int, patch: int) -> int:
    """Into how many equal pieces to cut a batch of patches of ``patch`` elements."""
    if not isinstance(batch, int):  # left open by jax.export
        return 1
    most = max(1, _PATCHES // patch)
    return next(n for n in range(1, batch + 1) if batch % n == 0 and batch // n <= most)


def gather_patches(lhs, kernel: Sequence[int], geometry: Geometry):
    """The operands of all chains, ``[features * window, groups, batch * outputs]``.

    ``lhs`` is ``[batch groups, batch, feature groups * features, *spatial]``, filled, and
    ``kernel`` the sizes of an output's kernel, ``[features, *window]``.
    """
    features, *window = kernel
    n = len(window)
    ones = [1] * 3
    # [1, 1, 1, *window, batch groups, batch, feature groups * features, *outputs]
    x = gather_windows(
        lhs,
        [*ones, *window],
        [*ones, *geometry.window_strides],
        [*ones, *geometry.rhs_dilation],
    )
    batch_groups, batch, all_features, *out_spatial = x.shape[n + 3 :]
    feature_groups = all_features // features
    x = lax.reshape(x, [*window, batch_groups, batch, feature_groups, features, *out_spatial])
    x = lax.transpose(x, [n + 3, *range(n), n, n + 2, n + 1, *range(n + 4, x.ndim)])
    return lax.reshape(x, [math.prod(kernel), geometry.groups, batch * math.prod(out_spatial)])
