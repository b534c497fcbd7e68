"""Loops: scans and whiles as calls of one kernel, and short loops without any.

XLA makes a call of each step of a loop's body: of a product, a fused group, a sum.  A call takes it
longer than a small step takes.  Where all steps are such calls, a loop is one primitive,
``repjax_loop``, whose kernel makes the calls itself.  A loop of so few elements that XLA makes one
function of it, if it calls no kernel, is the same primitive, and is lowered to XLA's code alone.
Elsewhere (other platforms, several devices) the primitive is the loop again: the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core import short_loops
from repjax.primitives.core.define import is_for_one_device, kernel_for, lower_body, without_kernels
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.programs import bind_equation, settled
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The equation of a loop, and what the kernel knows it by, or None; and whether it is short,
    which XLA alone computes, unless it is in a loop of the kernel."""

    equation: Any
    code: Any | None
    is_short: bool
    kernels: Kernels

    def bind(self, see) -> list[Any]:
        """Its results; ``see(variable)`` is a value."""
        operands = [
            np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else see(v)
            for v in self.equation.invars
        ]
        return loop_p.bind(*operands, loop=self)


def loop_of(equation, kernels: Kernels) -> Loop | None:
    """An equation as a loop, if it is a short one, or one that the kernel can compute."""
    if equation.primitive.name not in ("scan", "while"):
        return None
    code = kernels.loop(equation)
    is_short = kernels.is_short(equation, code)
    return Loop(equation, code, is_short, kernels) if is_short or code is not None else None


def as_stock(equation):
    """An equation that may be a loop as the scan or the while that it is."""
    if equation.primitive is not loop_p:
        return equation
    stock = equation.params["loop"].equation
    return equation.replace(primitive=stock.primitive, params=stock.params)


def as_loop(equation, kernels: Kernels):
    """A scan or a while as an equation of a loop, if it is one."""
    loop = loop_of(equation, kernels)
    return equation if loop is None else equation.replace(primitive=loop_p, params={"loop": loop})


# --- the primitive ----------------------------------------------------------------------


def _run_stock(*operands, loop: Loop) -> list[Any]:
    return bind_equation(loop.equation, operands, loop.equation.params)


def _lower(ctx, *operands, loop: Loop, platform=None):
    """To the kernel where there is one, else to the scan or the while."""
    kernel = kernel_for(loop_p, platform, ctx) if platform and not loop.is_short else None
    if kernel is not None:
        return lower_body(ctx, kernel, *operands, multiple_results=True, loop=loop)
    is_short = platform is not None and loop.is_short
    is_alone = is_short and is_for_one_device(ctx)
    if is_short:
        short_loops.mark(ctx)
    alone = without_kernels(ctx) if is_short else contextlib.nullcontext(ctx)
    # A short loop may have numbers of 64 bits, as bodies do.
    with alone as ctx, settled(), jax.enable_x64(is_short or jax.config.jax_enable_x64):
        if is_alone:
            loop = dataclasses.replace(loop, equation=loop.kernels.as_short(loop.equation))
        return mlir.lower_fun(_run_stock, multiple_results=True)(ctx, *operands, loop=loop)


def _batch(operands, dimensions, *, loop: Loop):
    def function(*operands):
        return _run_stock(*operands, loop=loop)

    results = jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)(*operands)
    return results, [0] * len(results)


loop_p = Primitive(PREFIX + "loop")
loop_p.multiple_results = True
loop_p.def_impl(_run_stock)
loop_p.def_abstract_eval(lambda *_, loop: [v.aval for v in loop.equation.outvars])
batching.primitive_batchers[loop_p] = _batch
mlir.register_lowering(loop_p, _lower)
mlir.register_lowering(
    loop_p, lambda *args, **kwargs: _lower(*args, **kwargs, platform="cpu"), platform="cpu"
)
prim_requires_devices_during_lowering.add(loop_p)
