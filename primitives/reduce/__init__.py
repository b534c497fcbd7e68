"""Reductions in a stated order: sums, extrema, pooling windows."""

from repjax.primitives.reduce import extrema, sums  # noqa: F401  (registers)
