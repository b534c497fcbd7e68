"""Linear algebra: factorizations and what is solved with them, eigenvalues and singular values."""

from repjax.primitives.operations.linalg import eigen, factorizations  # noqa: F401  (registers)
