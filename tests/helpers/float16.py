"""Every function of jax.numpy and jax.nn, and more, on float16, for test_halves.py.

    python -m helpers.float16     in tests/: compile and run them; nothing is printed

Started with an instruction set that has nothing for float16, where XLA's code that converts or
compares it by instructions cannot be linked.
"""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import repjax
from library import CALLS, REFUSED, X, Y, functions


def _pooled(x):
    return lax.reduce_window(x, np.float16(-np.inf), lax.max, (2, 2), (1, 1), "SAME")


MORE = {
    "associative_scan": lambda x, y: lax.associative_scan(jnp.maximum, x),
    "cumlogsumexp": lambda x, y: lax.cumlogsumexp(x),
    "softplus": lambda x, y: jax.jvp(jax.nn.softplus, (x,), (y,)),
    "iota": lambda x, y: x * lax.broadcasted_iota(np.float16, x.shape, 1),
    "clamp": lambda x, y: lax.clamp(np.float16(0.25), x, y),
    "top_k": lambda x, y: lax.top_k(x, 2),
    "scatter": lambda x, y: x.at[np.array([1, 1, 0])].max(y).at[:, 0].multiply(y[0]),
    "max pooling": lambda x, y: jax.grad(lambda x: jnp.vdot(y, _pooled(x)))(x),
    "window": lambda x, y: lax.reduce_window(x, np.float16(1), lax.mul, (2, 2), (1, 1), "SAME"),
    "bits": lambda x, y: lax.bitcast_convert_type(x, np.int16) & 0x7FFF == 0,
    "reduce_precision": lambda x, y: lax.reduce_precision(x, 5, 6),
}

#: JAX has singular values of float32 and wider types only; before 0.12 polyfit made float32 of it.
NOT_FOR_HALVES = {"jnp.polyfit"}


def _program(names):
    def program(x, y):
        x = jnp.where(y < 0.5, x, y)  # LLVM knows that what comes now is no integer
        return [MORE[name](x, y) if name in MORE else CALLS[name](x, y) for name in names]

    return repjax.reproducible(program)


def main() -> None:
    warnings.simplefilter("ignore")
    present = [*functions("jnp"), *functions("jax.nn")]
    names = [n for n in present if n in CALLS and n not in {*REFUSED, *NOT_FOR_HALVES}]
    every = [*MORE, *names]
    x, y = X.astype(np.float16), Y.astype(np.float16)
    for some in (every[i : i + 40] for i in range(0, len(every), 40)):
        jax.block_until_ready(_program(some)(x, y))


if __name__ == "__main__":
    main()
