"""Rules for structure: calls, control flow, custom derivatives.

The rules of arithmetic, functions, reductions and products stand beside their
primitives (``repjax.primitives``), and are registered by importing it.  Here are the
stock primitives that hold other jaxprs.
"""

from __future__ import annotations

import collections
import functools

import jax
import numpy as np
from jax.extend.core import primitives as stock

import repjax.primitives  # noqa: F401  (registers the rules of the numerics)
from repjax.primitives.core.interpret import interpret, interpret_closed, program
from repjax.primitives.core.programs import (
    bind_equation,
    carried,
    is_explicit,
    open_jaxpr,
    struct,
    struct_of,
)
from repjax.primitives.core.tables import (
    COMPLEX,
    NOT_DIFFERENTIABLE,
    RULES,
    TURN_X64_OFF,
    Context,
    RefusedError,
    rule,
)
from repjax.primitives.core.values import canonicalize, is_inexact
from repjax.primitives.core.weak import hold, is_narrow
from repjax.primitives.fusion.fission import fission
from repjax.primitives.fusion.invariants import without_invariants
from repjax.primitives.fusion.pads import without_sums_of_pads
from repjax.primitives.kernels import in_kernels
from repjax.primitives.operations.exact import bind_exact

# --- calls: inlined, since the guards make the bits independent of what is fused with what --


@rule(
    *("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "composite", "custom_vmap_call"),
    *("custom_vjp_call", "custom_lin", "custom_partitioning"),
    structural=True,
    calls=True,
)
def call(context: Context, operands, params):
    if context.equation.primitive.name == "custom_vjp_call" and context.differentiable:
        return _custom_vjp(context, operands, params)
    jaxpr = next(params[k] for k in ("jaxpr", "call_jaxpr", "call") if k in params)
    return interpret_closed(context, jaxpr, operands)


def _custom_vjp(context: Context, operands, params):
    """The call with its derivative kept: the user's two rules, each interpreted where JAX needs it.

    ``jax.vjp`` of the stock call, traced, is the first of them, and the pullback that it returns,
    a tree of residuals, is the second.
    """
    equation = context.equation

    def parted(values):
        """Those with cotangents, and the others."""
        floats = [is_inexact(jax.typeof(x)) for x in values]
        pairs = list(zip(values, floats, strict=True))
        return [x for x, f in pairs if f], [x for x, f in pairs if not f]

    def joined(floats, others, like):
        floats, others = iter(floats), iter(others)
        return [next(floats if is_inexact(aval) else others) for aval in like]

    def interpreted(function, xs):
        with context.tracing():
            jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*xs)
        values = interpret_closed(context.inside(), jaxpr, xs)
        return jax.tree.structure(shapes).unflatten(match_types(values, jaxpr.out_avals))

    @jax.custom_vjp
    def function(*xs):
        jaxpr = params["call_jaxpr"]
        return match_types(interpret_closed(context.inside(), jaxpr, xs), jaxpr.out_avals)

    def forward(*xs):
        def with_pullback(*xs):
            floats, others = parted(xs)

            def stock(*floats):
                given = joined(floats, others, map(jax.typeof, xs))
                results, rest = parted(bind_equation(equation, given, params))
                return results, rest

            results, pullback, rest = jax.vjp(stock, *floats, has_aux=True)
            types = [v.aval for v in equation.outvars]
            return joined(results, rest, types), pullback

        return interpreted(with_pullback, xs)

    def backward(pullback, cotangents):
        types = [v.aval for v in equation.outvars]
        pairs = zip(cotangents, types, strict=True)  # JAX may have added the cotangents
        given = [canonicalize(ct) for ct, aval in pairs if is_inexact(aval)]
        leaves, structure = jax.tree.flatten((pullback, given))

        def pull(*leaves):
            pullback, cotangents = structure.unflatten(leaves)
            return list(pullback(cotangents))

        back = iter(interpreted(pull, leaves))
        return tuple(next(back) if is_inexact(v.aval) else None for v in equation.invars)

    function.defvjp(forward, backward)
    return function(*map(hold, operands, [v.aval for v in equation.invars]))


@program("call_hi_primitive")
def call_hi_primitive(*operands, _prim):
    """What the primitive expands to (jax.numpy.einsum, searchsorted and others, from 0.12 on)."""
    return jax.tree.leaves(_prim.expand(*jax.tree.unflatten(_prim.in_tree, operands)))


@rule("custom_linear_solve", structural=True)
def custom_linear_solve(context: Context, operands, params):
    if context.differentiable:
        raise RefusedError(f"custom_linear_solve {NOT_DIFFERENTIABLE}")
    counts, jaxpr = params["const_lengths"], params["jaxprs"].solve
    first = counts.matvec + counts.vecmat
    constants = operands[first : first + counts.solve]
    return interpret_closed(context, jaxpr, [*constants, *operands[sum(counts) :]])


@rule("custom_jvp_call", structural=True)
def custom_jvp_call(context: Context, operands, params):
    if not context.differentiable:
        return interpret_closed(context, params["call_jaxpr"], operands)
    _, stock_jvp = context.equation.primitive.get_bind_params(params)["subfuns"]

    def interpreted(jaxpr, xs):
        return list(map(hold, interpret_closed(context, jaxpr, xs), jaxpr.out_avals))

    @jax.custom_jvp
    def function(*xs):
        return interpreted(params["call_jaxpr"], xs)

    @function.defjvp
    def jvp(primals, tangents):
        with context.tracing():
            jaxpr = jax.make_jaxpr(stock_jvp.call_wrapped)(*primals, *tangents)
        results = interpreted(jaxpr, [*primals, *tangents])
        half = len(results) // 2
        return results[:half], results[half:]

    return function(*operands)


# --- devices --------------------------------------------------------------------------


@rule("shard_map", structural=True)
def shard_map(context: Context, operands, params):
    if context.differentiable:
        raise RefusedError(f"shard_map {NOT_DIFFERENTIABLE}")
    jaxpr, consts = open_jaxpr(params["jaxpr"])
    mesh = params["mesh"]
    if mesh.explicit_axes:  # the one that the program is interpreted with
        mesh = jax.sharding.get_abstract_mesh()

    def program(*xs):
        results = interpret(context.inside(), jaxpr, consts, xs)
        return match_types(results, [v.aval for v in jaxpr.outvars])

    def per_device(*xs):
        return tuple(in_kernels(program, *xs))

    return jax.shard_map(
        per_device,
        mesh=mesh,
        in_specs=params["in_specs"],
        out_specs=params["out_specs"],
        axis_names=params["newly_manual_axes"],
        # Which values vary over devices was checked when the program was traced, and matters
        # to derivatives, which are behind us.
        check_vma=False,
    )(*operands)


def _constrained(x, sharding):
    """What a type with this sharding comes to, where types have none (:mod:`repjax.sharding`)."""
    mesh = jax.sharding.get_abstract_mesh()
    if not is_explicit(sharding) or not mesh.auto_axes:
        return x
    return jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, sharding.spec))


@rule("reshard", "mesh_cast")
def reshard(context: Context, operands, params):
    return _constrained(*operands, params["dst_sharding"])


@rule("device_put")
def device_put(context: Context, operands, params):
    if not any(map(is_explicit, params["devices"])):
        return bind_exact(context, operands, params)
    return [_constrained(*pair) for pair in zip(operands, params["devices"], strict=True)]


COMPLEX.update({name: RULES[name] for name in ("reshard", "mesh_cast", "device_put")})


# --- control flow ---------------------------------------------------------------------


def _rewritten(context: Context, jaxpr, operands, *, is_planned=True):
    """A closed jaxpr of the same type with every equation in its reproducible form.

    What is a float32 number and has the type float64 (:mod:`repjax.primitives.core.weak`) is
    float32 in it: ``operands``, of the elements of which only the formats matter, say which
    arguments are.  It ``is_planned`` (:func:`in_kernels`), but for derivatives, which take
    equations as they stand; what a scan or a branch holds is planned with what is around it.
    """
    inner, _ = open_jaxpr(jaxpr)
    types = [
        struct(v.aval).update(dtype=np.float32 if is_narrow(x, v.aval) else v.aval.dtype)
        for v, x in zip(inner.invars, operands, strict=True)
    ]
    results = [v.aval for v in inner.outvars]

    def program(*operands):
        values = interpret_closed(context.inside(), jaxpr, operands)
        return match_types(_each_used(values) if context.differentiable else values, results)

    if context.differentiable:
        return jax.make_jaxpr(program)(*types)
    function = functools.partial(in_kernels, program) if is_planned else program
    return without_sums_of_pads(jax.make_jaxpr(function)(*types))


def _each_used(values):
    """The values, with a use by a primitive for each result that is one of several.

    So the cotangents of what is both a carry and an element of a loop have the contract's sum
    (:mod:`repjax.cotangents`).
    """
    times = collections.Counter(map(id, values))
    return [canonicalize(x) if times[id(x)] > 1 and isinstance(x, jax.Array) else x for x in values]


def match_types(values, avals):
    """The values with the weak types of ``avals``; loops and calls insist on them."""

    def match(x, aval):
        weak_type = getattr(aval, "weak_type", False)
        if getattr(jax.typeof(x), "weak_type", False) == weak_type:
            return x
        return stock.convert_element_type_p.bind(
            x, new_dtype=jax.typeof(x).dtype, weak_type=weak_type, sharding=None
        )

    return list(map(match, map(hold, values, avals), avals))


def _check_formats(context: Context, first, second) -> None:
    """Refuse what is once a float64 number and once a float32 one of that type."""
    if [aval.dtype for aval in first] != [aval.dtype for aval in second]:
        raise RefusedError(
            f"{context.equation.primitive.name} expected values that are float64 in all of its "
            "iterations or branches, received some that are computed from Python numbers in one of "
            f"them, and so are float32 there; convert them with .astype('float32'), {TURN_X64_OFF}"
        )


@rule("scan", structural=True)
def scan(context: Context, operands, params):
    jaxpr = _rewritten(context, params["jaxpr"], operands, is_planned=False)
    first, count = carried(params)
    _check_formats(context, jaxpr.in_avals[first : first + count], jaxpr.out_avals[:count])
    if not context.differentiable and _is_unrolled(params):
        return _steps(jaxpr, operands, params)
    consts, carry, xs = operands[:first], operands[first : first + count], operands[first + count :]
    results, parts, before = [], None, []
    if not context.differentiable:
        parts = fission(jaxpr, first, count, params["length"])
        if parts is not None:
            before, jaxpr = parts.before(consts, xs), parts.body
        results, body = without_invariants(jaxpr, consts)
    if not results and parts is None:
        return stock.scan_p.bind(*operands, **{**params, "jaxpr": jaxpr})

    def step(carry, x):
        given = body(*results, *consts, *carry, *x)
        return given[:count], given[count:]

    options = {k: params[k] for k in ("length", "reverse", "unroll")}
    carry, ys = jax.lax.scan(step, carry, [*xs, *before], **options)
    return [*carry, *(ys if parts is None else parts.after(consts, xs, before, ys))]


def _is_unrolled(params) -> bool:
    """Whether JAX lowers a scan to its steps, one after the other, and to no loop."""
    length, unroll = params["length"], params["unroll"]
    return unroll != 1 and length > 0 and (unroll == 0 or length <= unroll)


def _steps(jaxpr, operands, params):
    """A scan as its steps in place, of which operations that follow each other are one group."""
    first, count = carried(params)
    consts, carry, xs = operands[:first], operands[first : first + count], operands[first + count :]
    inner, inner_consts = open_jaxpr(jaxpr)
    order = range(params["length"])
    parts = []
    for i in reversed(order) if params["reverse"] else order:
        x = [jax.lax.index_in_dim(x, i, keepdims=False) for x in xs]
        results = jax.core.eval_jaxpr(inner, inner_consts, *consts, *carry, *x)
        carry = results[:count]
        parts.append([jax.lax.expand_dims(y, [0]) for y in results[count:]])
    ys = zip(*(reversed(parts) if params["reverse"] else parts), strict=True)
    return [*carry, *(jax.lax.concatenate(y, 0) for y in ys)]


@rule("while", structural=True)
def while_loop(context: Context, operands, params):
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carry = operands[first + second :]
    cond = _rewritten(context, params["cond_jaxpr"], [*operands[:first], *carry])
    body = _rewritten(context, params["body_jaxpr"], operands[first:], is_planned=False)
    _check_formats(context, body.in_avals[second:], body.out_avals)
    if not context.differentiable:
        constants = operands[first : first + second]
        results, program = without_invariants(body, constants)
        operands = [*operands[:first], *results, *constants, *carry]
        params = {**params, "body_nconsts": len(results) + second}
        types = map(struct_of, [*results, *constants, *carry])
        places = len(results) + second, len(carry)
        body = jax.make_jaxpr(functools.partial(in_kernels, program, carry=places))(*types)
    return stock.while_p.bind(*operands, **{**params, "cond_jaxpr": cond, "body_jaxpr": body})


@rule("cond", structural=True)
def cond(context: Context, operands, params):
    if (platforms := params.get("branches_platforms")) is not None:
        branch = params["branches"][_platform(platforms)]
        return interpret_closed(context, branch, operands[1:])
    branches = tuple(
        _rewritten(context, x, operands[1:], is_planned=False) for x in params["branches"]
    )
    for branch in branches[1:]:
        _check_formats(context, branches[0].out_avals, branch.out_avals)
    return stock.cond_p.bind(*operands, **{**params, "branches": branches})


@rule("platform_index", structural=True)
def platform_index(context: Context, operands, params):
    return np.int32(_platform(params["platforms"]))


def _platform(platforms) -> int:
    """The one branch of ``jax.lax.platform_dependent`` that is taken on every platform."""
    for i, names in enumerate(platforms):
        if names is None:
            return i
    for i, names in enumerate(platforms):
        if "cpu" in names:
            return i
    raise RefusedError(
        "platform_dependent expected a default or a branch for cpu, which is then taken on every "
        f"platform, received {platforms}; add default="
    )


@rule("remat2", "checkpoint", structural=True)
def remat(context: Context, operands, params):
    jaxpr, consts = open_jaxpr(_rewritten(context, params["jaxpr"], operands))
    if consts:  # for which the equation has no place

        def program(consts, operands):
            return jax.core.eval_jaxpr(jaxpr, consts, *operands)

        closed = jax.make_jaxpr(program)(list(consts), [v.aval for v in jaxpr.invars])
        operands, (jaxpr, _) = [*consts, *operands], open_jaxpr(closed)
    return stock.remat_p.bind(*operands, **{**params, "jaxpr": jaxpr})
