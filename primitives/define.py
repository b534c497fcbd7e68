"""One helper that makes a primitive: :func:`define`.

A repjax primitive has one algorithm, its *body*: a function on arrays, written
with ``jax.lax`` operations and the guards of :mod:`repjax.primitives.canonical`.
The body becomes the lowering for CPU and CUDA; there is no default lowering, so
that any other platform raises.  Inside a body 64-bit types are enabled, whatever
the user's ``jax_enable_x64``.

Everything else follows from the *stock* function, the ``jax.lax`` function that
the primitive makes reproducible: its shape rule gives the abstract evaluation; its
JVP, its transpose and its batched form are traced by JAX and interpreted again with
reproducible operations (:mod:`repjax.primitives.interpret`).  So a derivative is a
fixed graph of reproducible operations, to any order.  Where JAX's own derivative
differs between versions, the primitive states it (``jvp=``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from repjax.primitives.interpret import PREFIX, Context, interpret_closed

PLATFORMS = ("cpu", "cuda")


def define(
    name: str,
    body: Callable[..., Any],
    stock: Callable[..., Any],
    *,
    jvp: Callable[..., Any] | None = None,
) -> Primitive:
    """Make the primitive ``repjax_<name>``.

    Args:
      name: the name without the prefix.
      body: ``body(*arrays, **params) -> array``, the algorithm, on canonical arrays.
      stock: the ``jax.lax`` function it makes reproducible, called as ``body`` is, except
        that it does not take ``accumulation``.  Its shape, transposition and batching rules
        become the primitive's.
      jvp: the derivative as a fixed graph, ``jvp(tangents, result, *arrays, **params)``
        with None for a zero tangent, built of repjax primitives; needed where ``stock``
        is not differentiated into the graph the contract states.

    Returns:
      The primitive.  Call it as ``primitive.bind(*arrays, **params)``; params must be
      hashable.
    """
    primitive = Primitive(PREFIX + name)
    stock = _without_accumulation(stock)

    @functools.cache
    def compiled(params):
        return jax.jit(functools.partial(primitive.bind, **dict(params)))

    @primitive.def_impl
    def evaluate(*args, **params):
        return compiled(tuple(sorted(params.items())))(*args)

    @primitive.def_abstract_eval
    def abstract_eval(*avals, **params):
        out = jax.eval_shape(functools.partial(stock, **params), *map(_struct, avals))
        return jax.core.ShapedArray(out.shape, out.dtype)

    def lower(ctx, *args, **params):
        with jax.enable_x64(True):
            return mlir.lower_fun(body, multiple_results=False)(ctx, *args, **params)

    for platform in PLATFORMS:
        mlir.register_lowering(primitive, lower, platform=platform, inline=False)

    ad.primitive_jvps[primitive] = functools.partial(
        _jvp, primitive, stock if jvp is None else None, jvp
    )
    ad.primitive_transposes[primitive] = functools.partial(_transpose, stock)
    batching.primitive_batchers[primitive] = functools.partial(_batch, stock)
    return primitive


def _without_accumulation(stock):
    @functools.wraps(stock)
    def stock_function(*args, accumulation=None, **params):
        del accumulation  # the stock function has no such parameter
        return stock(*args, **params)

    return stock_function


def _struct(aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _struct_of(x) -> jax.ShapeDtypeStruct:
    return _struct(jax.typeof(x))


def _zero_tangent(x) -> ad.Zero:
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _interpret(function, params, *operands):
    """Trace ``function`` on the operands' types and interpret the jaxpr reproducibly."""
    jaxpr = jax.make_jaxpr(function)(*map(_struct_of, operands))
    context = Context()
    if "accumulation" in params:
        context.accumulation = params["accumulation"]
    return interpret_closed(context, jaxpr, operands)


def _jvp(primitive, stock, explicit, primals, tangents, **params):
    nonzero = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    if stock is None:
        result = primitive.bind(*primals, **params)
        if not nonzero:
            return result, _zero_tangent(result)
        given = [t if i in nonzero else None for i, t in enumerate(tangents)]
        return result, explicit(given, result, *primals, **params)
    if not nonzero:
        result = primitive.bind(*primals, **params)
        return result, _zero_tangent(result)

    def pushforward(*operands):
        constants, directions = operands[: len(primals)], operands[len(primals) :]

        def partially(*active):
            merged = list(constants)
            for i, x in zip(nonzero, active, strict=True):
                merged[i] = x
            return stock(*merged, **params)

        return jax.jvp(partially, tuple(constants[i] for i in nonzero), directions)

    result, tangent = _interpret(pushforward, params, *primals, *(tangents[i] for i in nonzero))
    return result, tangent


def _transpose(stock, cotangent, *args, **params):
    linear = [i for i, x in enumerate(args) if ad.is_undefined_primal(x)]
    results: list[Any] = [None] * len(args)
    if type(cotangent) is ad.Zero:
        for i in linear:
            results[i] = ad.Zero(args[i].aval)
        return results

    def pullback(cotangent, *known):
        def partially(*unknown):
            merged = iter(known), iter(unknown)
            return stock(*(next(merged[i in linear]) for i in range(len(args))), **params)

        return jax.linear_transpose(partially, *(_struct(args[i].aval) for i in linear))(cotangent)

    known = [x for i, x in enumerate(args) if i not in linear]
    for i, result in zip(linear, _interpret(pullback, params, cotangent, *known), strict=True):
        results[i] = result
    return results


def _batch(stock, args, dims, **params):
    batched = jax.vmap(functools.partial(stock, **params), in_axes=tuple(dims), out_axes=0)
    (result,) = _interpret(batched, params, *args)
    return result, 0
