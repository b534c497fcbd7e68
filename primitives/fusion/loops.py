"""Loops: scans as calls of one kernel.

XLA makes a call of each step of a loop's body: of a product, a fused group, a sum.  A call takes it
longer than a small step takes.  Where all steps are such calls, a scan is one primitive,
``repjax_loop``, whose kernel makes the calls itself.  Where there is no kernel (other platforms,
several devices), the primitive is the scan again: the same bits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core.define import kernel_for, lower_body
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.programs import bind_equation, settled
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion.kernels import Kernels


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The equation of a scan, and what the kernel knows it by."""

    equation: Any
    code: Any
    kernels: Kernels

    def bind(self, see) -> list[Any]:
        """Its results; ``see(variable)`` is a value."""
        operands = [
            np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else see(v)
            for v in self.equation.invars
        ]
        return loop_p.bind(*operands, loop=self)


def loop_of(equation, kernels: Kernels) -> Loop | None:
    """An equation as a loop, if it is a scan that the kernel can compute."""
    if equation.primitive.name != "scan":
        return None
    code = kernels.loop(equation)
    return None if code is None else Loop(equation, code, kernels)


def as_scan(equation):
    """An equation that may be a loop as the scan that it is."""
    if equation.primitive is not loop_p:
        return equation
    scan = equation.params["loop"].equation
    return equation.replace(primitive=scan.primitive, params=scan.params)


def as_loop(equation, kernels: Kernels):
    """A scan as an equation of a loop, if it is one."""
    loop = loop_of(equation, kernels)
    return equation if loop is None else equation.replace(primitive=loop_p, params={"loop": loop})


# --- the primitive ----------------------------------------------------------------------


def _run_scan(*operands, loop: Loop) -> list[Any]:
    return bind_equation(loop.equation, operands, loop.equation.params)


def _lower(ctx, *operands, loop: Loop, platform=None):
    """To the kernel where there is one, else to the scan."""
    kernel = kernel_for(loop_p, platform, ctx) if platform else None
    if kernel is not None:
        return lower_body(ctx, kernel, *operands, multiple_results=True, loop=loop)
    with settled():
        return mlir.lower_fun(_run_scan, multiple_results=True)(ctx, *operands, loop=loop)


def _batch(operands, dimensions, *, loop: Loop):
    def function(*operands):
        return _run_scan(*operands, loop=loop)

    results = jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)(*operands)
    return results, [0] * len(results)


loop_p = Primitive(PREFIX + "loop")
loop_p.multiple_results = True
loop_p.def_impl(_run_scan)
loop_p.def_abstract_eval(lambda *_, loop: [v.aval for v in loop.equation.outvars])
batching.primitive_batchers[loop_p] = _batch
mlir.register_lowering(loop_p, _lower)
mlir.register_lowering(
    loop_p, lambda *args, **kwargs: _lower(*args, **kwargs, platform="cpu"), platform="cpu"
)
prim_requires_devices_during_lowering.add(loop_p)
