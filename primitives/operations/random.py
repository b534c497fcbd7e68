"""Random numbers: the bits of generators written in integer arithmetic, and a sampler beyond them.

Threefry's operations are taken as they stand, as they are exact on integers.  Those of another
generator are the functions that it is made of, which are interpreted: so its bits are drawn if they
are integer arithmetic too (``philox2x32``, ``philox4x32``, ``threefry4x32``), and refused if the
platform draws them (``rbg``), in a program as in eager operations, which are these functions.
"""

from __future__ import annotations

import functools

import jax
from jax.extend.core import primitives as stock

from repjax.primitives.core.interpret import interpret_function, program
from repjax.primitives.core.jax_internals import prng
from repjax.primitives.core.tables import Context, rule
from repjax.primitives.core.values import is_threefry
from repjax.primitives.operations.exact import bind_exact


def _is_key(dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _split(impl, key, aval, *, shape):
    return prng.random_split_impl_base(impl, key, aval.ndim, shape=shape)


def _fold_in(impl, key, data, aval, data_aval):
    del data_aval
    return prng.random_fold_in_impl_base(impl, key, data, aval.shape)


def _bits(impl, key, aval, *, bit_width, shape):
    return prng.random_bits_impl_base(impl, key, aval.ndim, bit_width=bit_width, shape=shape)


def _seed(impl, seeds, aval):
    del aval
    return prng.random_seed_impl_base(seeds, impl=impl)


_FUNCTIONS = {
    "random_seed": _seed,
    "random_split": _split,
    "random_fold_in": _fold_in,
    "random_bits": _bits,
}


@rule(*_FUNCTIONS)
def _of_a_generator(context: Context, operands, params):
    equation = context.equation
    avals = [v.aval for v in equation.invars]
    result = equation.outvars[0].aval.dtype
    key = avals[0].dtype if _is_key(avals[0].dtype) else result
    if is_threefry(key):
        return bind_exact(context, operands, params)
    impl = key._impl
    arrays = [jax.random.key_data(x) if _is_key(jax.typeof(x).dtype) else x for x in operands]
    options = {k: params[k] for k in ("shape", "bit_width") if k in params}
    function = functools.partial(_FUNCTIONS[equation.primitive.name], impl, **options)
    (drawn,) = interpret_function(context, lambda *xs: [function(*xs, *avals)], arrays)
    return prng.random_wrap(drawn, impl=impl) if _is_key(result) else drawn


@program("random_gamma")
def _random_gamma(key, alpha, *, log_space):
    """JAX's own sampler (Marsaglia and Tsang 2000), whose operations are interpreted."""
    return stock.random_gamma_p.impl(key, alpha, log_space=log_space, use_vmap=True)
