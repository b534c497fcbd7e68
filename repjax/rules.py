"""Rules for structure: calls, control flow, custom derivatives.

The rules of arithmetic, functions, reductions and contractions stand beside their
primitives (``repjax.primitives``), and are registered by importing it.  Here are the
stock primitives that hold other jaxprs.
"""

from __future__ import annotations

import jax
from jax.extend.core import primitives as stock

import repjax.primitives  # noqa: F401  (registers the rules of the numerics)
from repjax.primitives.interpret import (
    Context,
    RefusedError,
    interpret,
    interpret_closed,
    open_jaxpr,
    rule,
    struct,
)

# --- calls: inlined, since the guards make the bits independent of what is fused with what --


@rule("jit", "pjit", "closed_call", "core_call", "custom_vjp_call", "custom_lin", structural=True)
def call(context: Context, operands, params):
    name = context.equation.primitive.name
    if name.startswith("custom_vjp") and context.differentiable:
        raise RefusedError(
            "jax.custom_vjp inside an explicit repjax function would lose its derivative; "
            "use repjax.reproducible or the global switch, which are applied after autodiff"
        )
    jaxpr = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
    return interpret_closed(context, jaxpr, operands)


@rule("custom_jvp_call", structural=True)
def custom_jvp_call(context: Context, operands, params):
    if not context.differentiable:
        return interpret_closed(context, params["call_jaxpr"], operands)
    _, stock_jvp = context.equation.primitive.get_bind_params(params)["subfuns"]

    @jax.custom_jvp
    def function(*xs):
        return interpret_closed(context, params["call_jaxpr"], xs)

    @function.defjvp
    def jvp(primals, tangents):
        jaxpr = jax.make_jaxpr(stock_jvp.call_wrapped)(*primals, *tangents)
        results = interpret_closed(context, jaxpr, [*primals, *tangents])
        half = len(results) // 2
        return results[:half], results[half:]

    return function(*operands)


# --- devices --------------------------------------------------------------------------


@rule("shard_map", structural=True)
def shard_map(context: Context, operands, params):
    if context.differentiable:
        raise RefusedError(
            "shard_map inside an explicit repjax function would lose its derivative; use "
            "repjax.reproducible or the global switch, which are applied after autodiff"
        )
    jaxpr, consts = open_jaxpr(params["jaxpr"])
    mesh, specs = params["mesh"], params["in_specs"]
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
        # Not all interpreted operations keep the shardings that such a mesh has in its types.
        shardings = [jax.NamedSharding(mesh, spec) for spec in specs]
        operands = [jax.reshard(x, s) for x, s in zip(operands, shardings, strict=True)]

    def per_device(*xs):
        results = interpret(context, jaxpr, consts, xs)
        return tuple(match_types(results, [v.aval for v in jaxpr.outvars]))

    return jax.shard_map(
        per_device,
        mesh=mesh,
        in_specs=specs,
        out_specs=params["out_specs"],
        axis_names=params["newly_manual_axes"],
        # Which values vary over devices was checked when the program was traced, and matters
        # to derivatives, which are behind us.
        check_vma=False,
    )(*operands)


# --- control flow ---------------------------------------------------------------------


def _rewritten(context: Context, jaxpr):
    """A closed jaxpr of the same type with every equation in its reproducible form."""
    inner, _ = open_jaxpr(jaxpr)
    avals = [v.aval for v in inner.invars]
    results = [v.aval for v in inner.outvars]
    return jax.make_jaxpr(lambda *xs: match_types(interpret_closed(context, jaxpr, xs), results))(
        *map(struct, avals)
    )


def match_types(values, avals):
    """The values with the weak types of ``avals``; loops and calls insist on them."""

    def match(x, aval):
        weak_type = getattr(aval, "weak_type", False)
        if getattr(jax.typeof(x), "weak_type", False) == weak_type:
            return x
        return stock.convert_element_type_p.bind(
            x, new_dtype=aval.dtype, weak_type=weak_type, sharding=None
        )

    return [match(x, aval) for x, aval in zip(values, avals, strict=True)]


@rule("scan", structural=True)
def scan(context: Context, operands, params):
    jaxpr = _rewritten(context, params["jaxpr"])
    return stock.scan_p.bind(*operands, **{**params, "jaxpr": jaxpr})


@rule("while", structural=True)
def while_loop(context: Context, operands, params):
    jaxprs = {k: _rewritten(context, params[k]) for k in ("cond_jaxpr", "body_jaxpr")}
    return stock.while_p.bind(*operands, **{**params, **jaxprs})


@rule("cond", structural=True)
def cond(context: Context, operands, params):
    branches = tuple(_rewritten(context, branch) for branch in params["branches"])
    return stock.cond_p.bind(*operands, **{**params, "branches": branches})


@rule("remat2", "checkpoint", structural=True)
def remat(context: Context, operands, params):
    jaxpr, _ = open_jaxpr(_rewritten(context, params["jaxpr"]))
    return stock.remat_p.bind(*operands, **{**params, "jaxpr": jaxpr})
