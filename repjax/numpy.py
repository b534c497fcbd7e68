"""A few functions of ``jax.numpy`` made reproducible: matrix products and statistics.

Same names, signatures and semantics as in ``jax.numpy``; each of their operations is in its
reproducible form, in the graph that ``jax.numpy`` states: ``mean`` is the sum over n divided
by n, ``var`` is the mean of the squared deviations from the mean (two passes).  Everything
else of ``jax.numpy`` is reached through ``repjax.reproducible`` or the global switch.
"""

from jax import numpy as _stock

from repjax.explicit import explicit as _explicit

sum = _explicit(_stock.sum)
mean = _explicit(_stock.mean)
var = _explicit(_stock.var)
std = _explicit(_stock.std)
max = _explicit(_stock.max)
min = _explicit(_stock.min)
argmax = _explicit(_stock.argmax)
argmin = _explicit(_stock.argmin)
dot = _explicit(_stock.dot)
matmul = _explicit(_stock.matmul)
einsum = _explicit(_stock.einsum)
tensordot = _explicit(_stock.tensordot)

__all__ = [
    *("sum", "mean", "var", "std", "max", "min", "argmax", "argmin"),
    *("dot", "matmul", "einsum", "tensordot"),
]
