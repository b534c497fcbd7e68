"""What to do instead: advice for stock primitives that are refused, by name.

A refusal names the operation and a remedy (``docs/numerics.md``, section 13).  A primitive
that is in no list and has no rule is refused with or without an entry here.
"""

from repjax.primitives.core.tables import ADVICE, WRITE_IT

_EIGEN = (
    "factor with jax.lax.linalg.cholesky, lu, qr, eigh or svd, or iterate with matrix products "
    "(power, subspace or Newton-Schulz iteration), or decompose outside repjax"
)
_HOST = (
    "compute it in JAX, or outside of the program and pass the result as an argument; "
    "jax.debug.callback is allowed, since it returns nothing"
)
_GENERATOR = "draw with threefry: jax.random.key(seed, impl='threefry2x32')"

ADVICE.update(
    {
        **dict.fromkeys(("eig", "schur", "hessenberg", "tridiagonal"), _EIGEN),
        **dict.fromkeys(("pure_callback", "io_callback"), _HOST),
        **dict.fromkeys(("ffi_call", "pallas_call", "tpu_custom_call"), WRITE_IT),
        **dict.fromkeys(("rng_bit_generator", "rng_uniform"), _GENERATOR),
        "approx_top_k": "use jax.lax.top_k, which is exact",
        "select_and_scatter": "use max or average pooling, whose gradients are covered",
    }
)
