"""Kernels of reductions and prefixes, by the order of the sum."""

from __future__ import annotations

from repjax.primitives import gpu
from repjax.primitives.core.partition import partitioned
from repjax.primitives.gpu import rows, sums
from repjax.primitives.operations.reductions import cumulative
from repjax.primitives.operations.reductions import sums as bodies


def _reduction(combine, identity, body):
    def kernel(x, *, axes, accumulation, **odd):
        kernels = {"sequential": sums.sequential}
        if combine is bodies.add and gpu.ROWS:
            kernels["pairwise"] = rows.pairwise
        in_parts = partitioned(
            bodies.reduction(combine, identity, {**bodies.ORDERS, **kernels}),
            bodies.axes_of_reduction,
        )
        function = in_parts if accumulation in kernels else body
        return function(x, axes=axes, accumulation=accumulation, **odd)

    return kernel


def _prefixes(combine, body):
    def kernel(x, **params):
        orders = {**cumulative.ORDERS, "sequential": sums.prefixes}
        in_parts = partitioned(cumulative.cumulative(combine, orders), cumulative.axes_of_prefixes)
        return bodies.by_accumulation({"sequential": in_parts}, body)(x, **params)

    return kernel


reduce_sum = _reduction(bodies.add, 0, bodies.reduce_sum_body)
reduce_prod = _reduction(bodies.multiply, 1, bodies.reduce_prod_body)
cumsum = _prefixes(bodies.add, cumulative.cumsum_body)
cumprod = _prefixes(bodies.multiply, cumulative.cumprod_body)
