"""The numerics of repjax: every operation's algorithm, as custom JAX primitives.

Importing this package registers every primitive, its rule and its kernels.  It knows nothing of
Flax, of optax or of the rewriting of programs; ``docs/contributing.md`` says how to add one.

Imports go one way: ``core`` below ``operations`` below ``fusion`` below ``cpu`` and ``gpu`` below
``kernels``.
"""

from repjax.primitives import kernels  # noqa: F401  (registers kernels)
from repjax.primitives.operations import (  # noqa: F401  (registers primitives and rules)
    add_n,
    arithmetic,
    collectives,
    complex_numbers,
    decay,
    elementary,
    exact,
    fourier,
    linalg,
    products,
    random,
    reductions,
    refused,
    scatter,
    special,
)

#: The version of the contract (docs/numerics.md) that the bits obey.
CONTRACT_VERSION = 1
