"""Random numbers beyond the bits of threefry, which are integer arithmetic."""

from __future__ import annotations

from jax.extend.core import primitives as stock

from repjax.primitives.interpret import program


@program("random_gamma")
def _random_gamma(key, alpha, *, log_space):
    """JAX's own sampler (Marsaglia and Tsang 2000), whose operations are interpreted."""
    return stock.random_gamma_p.impl(key, alpha, log_space=log_space, use_vmap=True)
