"""Stock primitives that are bound as they stand.

Data movement, comparison and selection are exact on canonical values: with no
negative zero, no subnormal and one NaN there is nothing for platforms to disagree
about.  Integer arithmetic is exact everywhere, except for products, which XLA may
not have or get wrong (:mod:`repjax.primitives.operations.products.integers`).  A primitive listed
in neither set and without a rule is refused.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from repjax.primitives.core.canonical import flush
from repjax.primitives.core.define import define
from repjax.primitives.core.programs import bind_equation
from repjax.primitives.core.tables import (
    CODE_SIZE,
    COMPARING,
    ELEMENTWISE,
    EXACT,
    EXACT_ON_INTEGERS,
    Context,
    RefusedError,
)
from repjax.primitives.core.values import is_inexact

_DATA_MOVEMENT = (
    "broadcast_in_dim broadcast_to concatenate copy copy_p dynamic_slice dynamic_update_slice "
    "empty empty2 expand_dims gather pad reshape rev select_n slice split squeeze stack "
    "stop_gradient tile transpose unstack sharding_constraint optimization_barrier name"
)
# They show values to the host, and return none.
_DEBUGGING = "debug_callback debug_print"
_COMPARISON = "eq ne lt le gt ge max min clamp abs sign is_finite"
_ARITHMETIC = (
    "add add_any sub mul div rem neg square integer_pow pow sqrt rsqrt floor ceil round nextafter "
    "convert_element_type and or xor not shift_left shift_right_logical shift_right_arithmetic"
)
_KEYS = "random_clone random_unwrap random_wrap"
_INTEGER = (
    "add add_any sub mul rem neg square integer_pow pow mulhi population_count clz "
    "eq_to lt_to le_to and or xor not shift_left shift_right_logical shift_right_arithmetic "
    "convert_element_type bitcast_convert_type threefry2x32 iota_2x32_shape "
    "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor "
    "cumsum cumprod cummax cummin reduce_window_sum reduce_window_max reduce_window_min top_k "
    "scatter-add scatter-sub scatter-mul scatter-min scatter-max iota lu_pivots_to_permutation"
)
#: Those that XLA does not know, or gets wrong, on integers of 2 and 4 bits.
_ON_BYTES = ("sort", "top_k", "argmax", "argmin")


def is_of_bits(x) -> bool:
    """An array of integers of 2 or 4 bits."""
    dtype = jax.typeof(x).dtype
    return jax.dtypes.issubdtype(dtype, np.integer) and jax.dtypes.itemsize_bits(dtype) < 8


def as_bytes(x):
    """An array of such integers with 8 bits; any other as it is.

    XLA computes with 8 bits and cuts off what is too much where a value is stored, or converted to
    more than 8: so a sum that it does not store may have more bits than its type.
    """
    if not is_of_bits(x):
        return x
    dtype = jax.typeof(x).dtype
    is_signed = jax.dtypes.issubdtype(dtype, np.signedinteger)
    x = jax.lax.convert_element_type(x, np.int8 if is_signed else np.uint8)
    unused = x.dtype.type(8 - jax.dtypes.itemsize_bits(dtype))
    shift = jax.lax.shift_right_arithmetic if is_signed else jax.lax.shift_right_logical
    return shift(jax.lax.shift_left(x, jax.lax.full_like(x, unused)), jax.lax.full_like(x, unused))


def _bind_on_bytes(equation, operands, params) -> list[Any]:
    """The same on integers of 8 bits."""
    results = bind_equation(equation, list(map(as_bytes, operands)), params)
    types = [v.aval.dtype for v in equation.outvars]
    return [jax.lax.convert_element_type(x, t) for x, t in zip(results, types, strict=True)]


#: Of primitives that are exact stock ones with reproducible derivatives, the stock ones.
_SEALED: dict[Any, Any] = {}


@functools.cache
def _sealed(primitive, in_float32: bool = False):
    """The primitive as one of repjax: the same, with reproducible derivatives."""
    sealed = define(
        f"exact_{primitive.name}",
        primitive.bind,
        primitive.bind,
        multiple_results=primitive.multiple_results,
        halves=flush if in_float32 else None,
    )
    if not in_float32:
        _SEALED[sealed] = primitive
    return sealed


def unsealed(equation):
    """The equation with its stock primitive, if that is exact and sealed for derivatives only."""
    primitive = _SEALED.get(equation.primitive)
    return equation if primitive is None else equation.replace(primitive=primitive)


def _results(context: Context, operands, params) -> list[Any]:
    """Those of the current equation, which does not round, though its derivative may."""
    equation = context.equation
    primitive = equation.primitive
    if primitive.name in COMPARING and any(jax.typeof(x).dtype == np.float16 for x in operands):
        # Not every CPU compares float16, nor XLA's code for it.
        results = _sealed(primitive, in_float32=True).bind(*operands, **params)
        return results if primitive.multiple_results else [results]
    if primitive.name in _ON_BYTES and any(map(is_of_bits, operands)):
        return _bind_on_bytes(equation, operands, params)
    if primitive.name == "convert_element_type":
        operands = list(map(as_bytes, operands))
    if primitive.name in ("population_count", "clz") and any(map(is_of_bits, operands)):
        raise RefusedError(
            f"{primitive.name} expected integers of 8 bits or more, received "
            f"{jax.typeof(operands[0]).dtype}, of which XLA counts bits that it does not have; "
            "convert with .astype('int8') before it"
        )
    is_function_of_floats = all(
        any(is_inexact(v.aval) for v in side) for side in (equation.invars, equation.outvars)
    )
    if not (context.differentiable and is_function_of_floats):
        return bind_equation(equation, operands, params)
    # Bound as it stands, JAX would transpose a broadcast into its own sum.
    results = _sealed(primitive).bind(*operands, **params)
    return results if primitive.multiple_results else [results]


def bind_exact(context: Context, operands, params):
    """The rule: the current equation's stock primitive, where that is exact."""
    results = _results(context, operands, params)
    return results if context.equation.primitive.multiple_results else results[0]


def take_as_they_stand(*names: str) -> None:
    """Enter stock primitives that are exact on all operands."""
    EXACT.update(dict.fromkeys(names, bind_exact))


ELEMENTWISE.update(f"{_COMPARISON} {_ARITHMETIC} select_n".split())
# Each of these is part of the loop that uses it.
CODE_SIZE.update(dict.fromkeys(f"{_DATA_MOVEMENT} {_COMPARISON}".split(), 0))
COMPARING.update(f"{_COMPARISON} sort".split())
take_as_they_stand(*f"{_DATA_MOVEMENT} {_DEBUGGING} {_COMPARISON} {_KEYS}".split())
EXACT_ON_INTEGERS.update(dict.fromkeys(_INTEGER.split(), bind_exact))
