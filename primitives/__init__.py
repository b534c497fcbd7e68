"""The numerics of repjax: every operation's algorithm, as custom JAX primitives.

Importing this package registers every primitive and its rule.  It knows nothing of
Flax, of optax or of the rewriting of programs; ``docs/contributing`` says how to add one.
"""

from repjax.primitives import (  # noqa: F401  (registers primitives and rules)
    add_n,
    arithmetic,
    collectives,
    complex_numbers,
    contract,
    decay,
    elementary,
    exact,
    fourier,
    linalg,
    random,
    reduce,
    refused,
    scatter,
    special,
    spectral,
)

#: The version of the contract (docs/numerics.md) that the bits obey.
CONTRACT_VERSION = 1
