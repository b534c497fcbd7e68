"""One helper that makes a primitive: :func:`define`.

A repjax primitive has one algorithm, its *body*: a function on arrays, written
with ``jax.lax`` operations and the guards of :mod:`repjax.primitives.core.canonical`.
The body becomes the lowering for CPU and CUDA, unless the platform has a kernel, a faster function
with the same bits (``tables.KERNELS``); any other platform raises.  Inside a body 64-bit types
are enabled, whatever the user's ``jax_enable_x64``.

A body computes in float32.  float16 and bfloat16 operands are widened before it and results
narrowed after it, so that they are rounded once (:func:`in_float32`).

Everything else follows from the *stock* function, the ``jax.lax`` function that
the primitive makes reproducible: its shape rule gives the abstract evaluation; its
JVP, its transpose and its batched form are traced by JAX and interpreted again with
reproducible operations (:mod:`repjax.primitives.core.interpret`).  So a derivative is a
fixed graph of reproducible operations, to any order.  Where JAX's own derivative
differs between versions, the primitive states it (``jvp=``).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from repjax.primitives.core import canonical
from repjax.primitives.core.interpret import interpret_function
from repjax.primitives.core.jax_internals import (
    GradAccum,
    ShardingContext,
    SPMDAxisContext,
    apply_primitive,
    fancy_transposes,
)
from repjax.primitives.core.programs import settled, sharded_struct, struct, struct_of
from repjax.primitives.core.tables import (
    BODIES,
    FEW_BY_VALUE,
    KERNELS,
    PREFIX,
    PRIMITIVES,
    Context,
)
from repjax.primitives.core.values import canonicalize


def define(
    name: str,
    body: Callable[..., Any],
    stock: Callable[..., Any],
    *,
    jvp: Callable[..., Any] | None = None,
    multiple_results: bool = False,
    halves: Callable[..., Any] | None = canonical.guard,
    half_body: Callable[..., Any] | None = None,
    own_value: bool = False,
) -> Primitive:
    """Make the primitive ``repjax_<name>``.

    Args:
      name: the name without the prefix.
      body: ``body(*arrays, **params) -> array``, the algorithm, on canonical arrays.
      stock: the ``jax.lax`` function it makes reproducible, called as ``body`` is, except
        that it takes neither ``accumulation`` nor ``contraction``.  Its shape, derivative,
        transposition and batching rules become the primitive's.
      jvp: the derivative as a fixed graph, ``jvp(tangents, result, *arrays, **params)``
        with None for a zero tangent, built of repjax primitives; needed where ``stock``
        is not differentiated into the graph the contract states.
      multiple_results: whether ``body`` and ``stock`` return lists.
      halves: what float16 and bfloat16 results end in, ``canonical.guard`` or, as in the body,
        ``canonical.flush``; None where the body takes these formats as they stand.
      half_body: for these formats, the body, where that of float32 would round twice.  (What is
        ``exact`` needs none: see :func:`in_float32`.)
      own_value: whether the derivative of ``stock`` computes the result in another way than
        ``stock`` does.  The primitive's has the result of ``body`` either way.

    Returns:
      The primitive.  Call it as ``primitive.bind(*arrays, **params)``; params must be
      hashable.
    """
    primitive = Primitive(PREFIX + name)
    primitive.multiple_results = multiple_results
    definition = _Definition(
        primitive=primitive,
        body=body,
        stock=_as_list(stock, multiple_results),
        jvp=jvp,
        halves=halves,
        half_body=half_body,
        own_value=own_value,
    )
    PRIMITIVES[name] = primitive
    _register_types(definition)
    _register_lowerings(definition)
    _register_derivatives(definition)
    batching.primitive_batchers[primitive] = definition.batch
    return primitive


@dataclasses.dataclass(frozen=True, eq=False)
class _Definition:
    """The arguments of :func:`define`, and what JAX asks of a primitive.  ``stock`` returns a list.

    For ``log1p``, whose stock function is ``lax.log1p``, :meth:`types` says that a float32[3] has a
    float32[3], :meth:`lower` has JAX lower the body, :meth:`derivative` multiplies the tangent by
    1 / (1 + x), with a reproducible addition and division, since ``jax.jvp`` of ``lax.log1p`` does,
    and :meth:`batch` gives one ``repjax_log1p`` of all elements, since ``jax.vmap`` of it does.
    """

    primitive: Primitive
    body: Callable[..., Any]
    stock: Callable[..., list[Any]]
    jvp: Callable[..., Any] | None
    halves: Callable[..., Any] | None
    half_body: Callable[..., Any] | None
    own_value: bool

    def pack(self, results):
        """Results as the primitive has them: a list, or the one."""
        return list(results) if self.primitive.multiple_results else results[0]

    def types(self, *avals, **params):
        """The types of the results: those of the stock function."""
        with settled():  # lest the user's precision be refused for operands that are not theirs
            stock = functools.partial(self.stock, **params)
            out = jax.eval_shape(stock, *map(sharded_struct, avals))
        return self.pack([_type(x, avals) for x in out])

    def for_types(self, avals_in, avals_out, function=None):
        """The body, or a kernel, for operands and results of these types."""
        function = function or self.body
        if self.halves is not None and any(map(_is_half, (*avals_in, *avals_out))):
            return in_float32(self.half_body or function, avals_out, self.halves, self.pack)
        return function

    def lower(self, ctx, *args, platform: str, **params):
        kernel = kernel_for(self.primitive, platform, ctx)
        function = self.for_types(ctx.avals_in, ctx.avals_out, kernel)
        several = self.primitive.multiple_results
        with guards_for(None if _is_for_export(ctx) else platform):
            return lower_body(ctx, function, *args, multiple_results=several, **params)

    def derivative(self, primals, tangents, **params):
        """The results and their tangents: by ``jvp`` if there is one, else as JAX has them."""
        zero = [type(t) is ad.Zero for t in tangents]
        if self.jvp is not None or all(zero):
            result = self.primitive.bind(*primals, **params)
            if all(zero):
                return result, jax.tree.map(_zero_tangent, result)
            given = [None if z else t for z, t in zip(zero, tangents, strict=True)]
            return result, self.jvp(given, result, *primals, **params)
        results, tangents = _jvp(self.stock, primals, tangents, **params)
        if self.own_value:
            results = jax.tree.leaves(self.primitive.bind(*primals, **params))
        return self.pack(results), self.pack(tangents)

    def accumulate(self, cotangents, *args, **params):
        """The transposition for JAX's accumulators of cotangents."""
        accumulators = [x for x in args if isinstance(x, GradAccum)]
        for x in accumulators:  # they add by add_n from here on (repjax.cotangents)
            x.reproducible = True
        args = [ad.UndefinedPrimal(x.aval) if isinstance(x, GradAccum) else x for x in args]
        results = ad.primitive_transposes[self.primitive](cotangents, *args, **params)
        results = [r for r, x in zip(results, args, strict=True) if ad.is_undefined_primal(x)]
        for x, result in zip(accumulators, results, strict=True):
            x.accum(result)

    def batch(self, args, dims, **params):
        stock = functools.partial(self.stock, **params)
        batched = jax.vmap(stock, in_axes=tuple(dims), out_axes=0)
        results = _interpret(batched, params, *args)
        return self.pack(results), self.pack([0] * len(results))


def _register_types(definition: _Definition) -> None:
    primitive = definition.primitive
    # Compiled, also without jit, and known to jax_debug_nans as what cannot be taken apart.
    primitive.def_impl(functools.partial(apply_primitive, primitive))
    primitive.def_abstract_eval(definition.types)


def _register_lowerings(definition: _Definition) -> None:
    primitive = definition.primitive
    BODIES[primitive] = definition.for_types
    for platform in ("cpu", "cuda"):
        rule = functools.partial(definition.lower, platform=platform)
        mlir.register_lowering(primitive, rule, platform=platform, inline=False)
    mlir.register_lowering(primitive, _refuse_platform)


def _register_derivatives(definition: _Definition) -> None:
    primitive = definition.primitive
    ad.primitive_jvps[primitive] = definition.derivative
    ad.primitive_transposes[primitive] = functools.partial(_transpose, definition.stock)
    fancy_transposes[primitive] = definition.accumulate


def kernel_for(primitive: Primitive, platform: str, ctx) -> Callable[..., Any] | None:
    """The kernel of a primitive for what is lowered, if there is one."""
    if _is_for_export(ctx):
        return None
    kernel = KERNELS[platform](primitive)
    if kernel is None or (_without_kernels.get() and not kernel.of_xla):
        return None
    return None if kernel.on_one_device and not is_for_one_device(ctx) else kernel.make()


@contextlib.contextmanager
def guards_for(platform: str | None) -> Iterator[None]:
    """Within the block, guards as they are fastest on a platform."""
    token = canonical.few_by_value.set(FEW_BY_VALUE.get(platform, bool)())
    try:
        yield
    finally:
        canonical.few_by_value.reset(token)


def does_without_kernels(ctx) -> bool:
    """Whether what is lowered has to do without kernels, and why: :func:`without_kernels`, or
    ``jax.export`` lowers, whose programs may run where there are none."""
    return _without_kernels.get() or _is_for_export(ctx)


def _is_for_export(ctx) -> bool:
    return ctx.module_context.lowering_parameters.for_export


_without_kernels = contextvars.ContextVar("without_kernels", default=False)


@contextlib.contextmanager
def without_kernels(ctx) -> Iterator[Any]:
    """The context in which to lower what is to be XLA's code alone."""
    caches = {"lowering_cache": {}, "cached_primitive_lowerings": {}}  # of what has kernels
    token = _without_kernels.set(True)
    try:
        yield ctx.replace(module_context=ctx.module_context.replace(**caches))
    finally:
        _without_kernels.reset(token)


def is_for_one_device(ctx) -> bool:
    """Whether a device is known to compute all of it by itself, and there are kernels then.

    It is the only one, or what is lowered is a map over all (``shard_map``, ``pmap``).
    """
    axes = ctx.module_context.axis_context
    if isinstance(axes, SPMDAxisContext):
        alone = axes.manual_axes == {*axes.mesh.axis_names}
    else:
        alone = isinstance(axes, ShardingContext) and axes.num_devices == 1
    return alone and not does_without_kernels(ctx)


def is_for_several_devices(ctx) -> bool:
    """Whether XLA is to split what is lowered over devices, and there are kernels then."""
    axes = ctx.module_context.axis_context
    several = isinstance(axes, ShardingContext) and axes.num_devices > 1
    return several and not does_without_kernels(ctx)


def lower_body(ctx, function, *args, multiple_results: bool, **params):
    """Lower a function on arrays, inside which 64-bit types are enabled."""
    # It knows nothing of shardings, which an explicit mesh would have in its types.
    ctx = ctx.replace(avals_in=[jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in])
    with jax.enable_x64(True), settled():
        ctx = ctx if not ctx.dim_var_values else _with_wide_index(ctx)
        return mlir.lower_fun(function, multiple_results)(ctx, *args, **params)


def _with_wide_index(ctx):
    """The context of a body that is lowered for several platforms.

    All functions then take the index of the platform, of 64 bits where those are enabled; so a body
    may not call what was lowered outside one, nor the other way round.
    """
    wide = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
    return ctx.replace(
        module_context=ctx.module_context.replace(lowering_cache={}),
        dim_var_values=[stablehlo.convert(wide, x) for x in ctx.dim_var_values],
    )


def _refuse_platform(ctx, *args, **params):
    received = " and ".join(ctx.platforms or ctx.module_context.platforms)
    raise NotImplementedError(
        f"repjax expected to be compiled for a CPU or an NVIDIA GPU (platforms cpu, cuda), "
        f"received {received}; choose one by JAX_PLATFORMS"
    )


def _type(result, operands):
    """The type of a result, of the operands' mesh.

    Inside shard_map it varies over devices as they do.
    """
    operands = sorted(operands, key=lambda x: (x.manual_axis_type.empty, x.sharding.mesh.empty))
    if not operands or operands[0].sharding.mesh.empty:
        return jax.core.ShapedArray(result.shape, result.dtype)
    unsharded = jax.P(*(None for _ in result.shape))
    return jax.core.ShapedArray(
        result.shape,
        result.dtype,
        sharding=result.sharding or jax.NamedSharding(operands[0].sharding.mesh, unsharded),
        manual_axis_type=operands[0].manual_axis_type,
    )


def _is_half(aval) -> bool:
    return aval.dtype in canonical.HALVES


def in_float32(body, results, ending, pack=lambda results: results[0]):
    """The body between exact conversions to float32 and one rounding to the types of results.

    In the order ``exact`` there is no other rounding: what is narrowed has been rounded to odd, for
    which the body, or the kernel, is asked by ``odd=True``, and the ending is a guard.
    """

    def function(*args, **params):
        args = [canonical.widen(x) if _is_half(x) else x for x in args]
        end = ending
        if "exact" in (params.get("accumulation"), params.get("contraction")):
            end = canonical.guard
            params |= {"odd": True} if any(map(_is_half, results)) else {}
        wide = jax.tree.leaves(body(*args, **params))
        pairs = zip(wide, results, strict=True)
        return pack([canonical.narrow(x, r.dtype, end) if _is_half(r) else x for x, r in pairs])

    return function


def _as_list(stock, multiple_results: bool):
    """``stock`` without the orders of sums, which are no parameters of it, returning a list."""

    def function(*args, accumulation=None, contraction=None, **params):
        del accumulation, contraction
        results = stock(*args, **params)
        return list(results) if multiple_results else [results]

    return function


def _zero_tangent(x) -> ad.Zero:
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _interpret(function, params, *operands) -> list[Any]:
    """Trace ``function`` on the operands' types and interpret the jaxpr reproducibly."""
    context = Context()
    for order in ("accumulation", "contraction"):
        if order in params:
            setattr(context, order, params[order])
    return interpret_function(context, function, operands)


def _jvp(stock, primals, tangents, **params):
    """The results and their tangents by the interpreted stock derivative."""
    active = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def results_and_tangents(*operands):
        constants, directions = operands[: len(primals)], operands[len(primals) :]

        def partially(*xs):
            merged = list(constants)
            for i, x in zip(active, xs, strict=True):
                merged[i] = x
            return stock(*merged, **params)

        results, tangents = jax.jvp(partially, tuple(constants[i] for i in active), directions)
        # Integer results have tangents without values.
        return results, [t for t in tangents if t.dtype != jax.dtypes.float0]

    directions = [tangents[i] for i in active]
    outputs = _interpret(results_and_tangents, params, *primals, *directions)
    count = len(jax.eval_shape(functools.partial(stock, **params), *map(struct_of, primals)))
    results, rest = outputs[:count], iter(outputs[count:])
    zeros = map(_zero_tangent, results)
    return results, [z if z.aval.dtype == jax.dtypes.float0 else next(rest) for z in zeros]


def _transpose(stock, cotangents, *args, **params):
    """The cotangents of the linear arguments by the interpreted stock transposition."""

    linear = [i for i, x in enumerate(args) if ad.is_undefined_primal(x)]
    cotangents = cotangents if isinstance(cotangents, (list, tuple)) else [cotangents]
    results: list[Any] = [None] * len(args)
    given = [i for i, ct in enumerate(cotangents) if type(ct) is not ad.Zero]
    if not given:
        for i in linear:
            results[i] = ad.Zero(args[i].aval)
        return results

    known = [x for i, x in enumerate(args) if i not in linear]

    def pullback(*operands):
        def partially(*unknown):
            merged = iter(operands[len(given) :]), iter(unknown)
            return stock(*(next(merged[i in linear]) for i in range(len(args))), **params)

        filled = [_zeros(ct.aval) if type(ct) is ad.Zero else ct for ct in cotangents]
        for i, x in zip(given, operands, strict=False):
            filled[i] = x
        return jax.linear_transpose(partially, *(struct(args[i].aval) for i in linear))(filled)

    # Where a value is used several times JAX has added the cotangents, unguarded.
    operands = [canonicalize(cotangents[i]) for i in given]
    for i, result in zip(linear, _interpret(pullback, params, *operands, *known), strict=True):
        results[i] = result
    return results


def _zeros(aval):
    return jax.numpy.zeros(aval.shape, aval.dtype)
