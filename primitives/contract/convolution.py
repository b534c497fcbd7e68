"""Convolutions as sequential FMA chains, one per output element.

``conv_general_dilated`` is its own gradient: JAX writes the gradients for the input
and for the kernel as equations of the same primitive with other dimension numbers,
strides and dilations.  So one body covers all three, and their orders of summation
follow from one rule, the order of ``k`` in the equation's right operand.
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from repjax.primitives.contract.sequential import chain_of_groups, check_float32
from repjax.primitives.reduce.window import gather_windows, output_size, pad_dilated

# The most patch elements to hold at a time: 64 MiB, more only for a single example.
_PATCHES = 1 << 24


def conv_general_dilated_body(lhs, rhs, **parameters):
    """``jax.lax.conv_general_dilated`` as sequential FMA chains.

    Args:
      lhs, rhs: canonical float32 arrays with any number of spatial dimensions.
      parameters: those of the primitive that :func:`by_patches` names; ``dimension_numbers`` is
        a ``jax.lax.ConvDimensionNumbers``, ``padding`` pairs of numbers, which may be negative.

    Returns:
      Canonical float32.  Each element is ``s = fma(lhs, rhs, s)`` from +0 with k
      ascending over (input feature of ``rhs``, spatial positions of ``rhs`` row-major
      in the order of ``rhs_spec``).  Padding and the holes of a dilation are +0
      operands that take part, so that ``0 * inf`` in them gives NaN.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    return by_patches(chain_of_groups, lhs, rhs, dtype=np.dtype(np.float32), **parameters)


def by_patches(
    product,
    lhs,
    rhs,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    dtype,
):
    """A convolution by ``product(kernel[k, g, m], patches[k, g, n])``, ``[g, m, n]`` of ``dtype``.

    The parameters and the order of k are those of :func:`conv_general_dilated_body`.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    lhs, rhs = lax.transpose(lhs, lhs_spec), lax.transpose(rhs, rhs_spec)
    outs, features, *window = rhs.shape
    spatial = range(2, lhs.ndim)

    lhs = pad_dilated(lhs, 0, [(0, 0)] * 2 + list(padding), [1, 1, *lhs_dilation])
    batch = lhs.shape[0] // batch_group_count
    out_spatial = [
        output_size(lhs.shape[d], w, s, r)
        for d, w, s, r in zip(spatial, window, window_strides, rhs_dilation, strict=True)
    ]
    groups = feature_group_count * batch_group_count  # one of the two is 1
    shape = [groups, outs // groups, batch, *out_spatial]

    k = features * math.prod(window)

    def products(lhs):
        patches = gather_patches(lhs, groups, features, window, window_strides, rhs_dilation)
        kernel = lax.reshape(rhs, [groups, outs // groups, k])
        return product(lax.transpose(kernel, [2, 0, 1]), patches)

    if 0 in (*shape, k):
        out = lax.full(shape, 0, dtype)
    else:
        n = pieces(batch, k * groups * math.prod(out_spatial))
        lhs = lax.reshape(lhs, [batch_group_count, n, batch // n, *lhs.shape[1:]])
        lhs = lax.transpose(lhs, [1, 0, *range(2, lhs.ndim)])
        if n == 1:
            out = products(lax.squeeze(lhs, [0]))
        else:
            out = lax.transpose(lax.map(products, lhs), [1, 2, 0, 3])
    # [groups, outs of a group, batch, *spatial] -> [batch, outs, *spatial] -> as specified
    out = lax.transpose(lax.reshape(out, shape), [2, 0, 1, *range(3, len(shape))])
    out = lax.reshape(out, [batch, outs, *out_spatial])
    return lax.transpose(out, [out_spec.index(d) for d in range(len(out_spec))])


def pieces(batch: int, patch: int) -> int:
    """Into how many equal pieces to cut a batch of patches of ``patch`` elements."""
    if not isinstance(batch, int):  # left open by jax.export
        return 1
    most = max(1, _PATCHES // patch)
    return next(n for n in range(1, batch + 1) if batch % n == 0 and batch // n <= most)


def gather_patches(lhs, groups, features, window, strides, dilation):
    """The operands of all chains, ``[features * window, groups, batch * outputs]``.

    ``lhs`` is ``[batch groups, batch, feature groups * features, *spatial]``.
    """
    n = len(window)
    ones = [1] * 3
    # [1, 1, 1, *window, batch groups, batch, feature groups * features, *outputs]
    x = gather_windows(lhs, [*ones, *window], [*ones, *strides], [*ones, *dilation])
    batch_groups, batch, all_features, *out_spatial = x.shape[n + 3 :]
    feature_groups = all_features // features
    x = lax.reshape(x, [*window, batch_groups, batch, feature_groups, features, *out_spatial])
    x = lax.transpose(x, [n + 3, *range(n), n, n + 2, n + 1, *range(n + 4, x.ndim)])
    return lax.reshape(x, [features * math.prod(window), groups, batch * math.prod(out_spatial)])
