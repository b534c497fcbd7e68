"""Audit a compiled program: which of its operations on floats does repjax not answer for?

Every primitive of repjax is lowered to a function of its own (``repjax_add``, ``repjax_exp``) or
to a call of a kernel.  Outside of these a reproducible program may only move, compare and select
floating-point values.  :func:`audit` walks the program that JAX hands to the compiler, which is
after every transformation and rule, and reports what else is there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.mlir import ir

from repjax.primitives.core.tables import PREFIX

#: Operations that are exact on canonical values, of whatever type, and those around them.
_EXACT = (
    "abs all_gather all_to_all after_all bitcast_convert broadcast broadcast_in_dim case clamp "
    "collective_permute compare complex composite concatenate constant dynamic_slice "
    "dynamic_update_slice gather if imag iota is_finite maximum minimum optimization_barrier pad "
    "partition_id real reshape return reverse select sign slice sort transpose tuple while"
)
EXACT = frozenset("stablehlo." + name for name in _EXACT.split())
_DIALECTS = ("builtin.", "func.", "sdy.")


@dataclasses.dataclass(frozen=True)
class Finding:
    """An operation on floats outside repjax's functions.

    Attributes:
      operation: its name in StableHLO, such as ``stablehlo.multiply``.
      types: the types of its operands and results.
      location: the user's line that it comes from: file, line, column and function; where
        none is known, what the compiler says.
    """

    operation: str
    types: tuple[str, ...]
    location: str

    def __str__(self) -> str:
        return f"{self.operation} on {', '.join(self.types)} at {self.location}"


def audit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Finding]:
    """The operations on floats of a compiled program that are not reproducible by construction.

    Args:
      function: a function made by ``repjax.reproducible`` or ``jax.jit``; any other is jitted.
      *args, **kwargs: its arguments; ``jax.ShapeDtypeStruct`` for arrays will do.

    Returns:
      One :class:`Finding` each, in the order of the program; none for a reproducible function
      and under the switch.

    The functions and kernels of repjax are known by their names, and not looked into.

    Example::

        assert not repjax.verify.audit(repjax.reproducible(train_step), state, batch)
    """
    lower = getattr(function, "lower", None) or jax.jit(function).lower
    return audit_module(lower(*args, **kwargs).compiler_ir("stablehlo"))


def audit_module(module: ir.Module) -> list[Finding]:
    """:func:`audit` of a program in StableHLO, with JAX's names of functions."""
    return [
        Finding(operation.name, tuple(map(str, _types(operation))), _line(str(operation.location)))
        for function in _functions(module)
        for operation in _operations(function)
        if not _is_exact(operation)
    ]


def _line(location: str) -> str:
    """The innermost line in a location of the compiler, which has none of JAX and repjax."""
    found = re.search(r'"([^"]*)"\("([^"]+)":(\d+:\d+)', location)
    return f"{found[2]}:{found[3]} ({found[1]})" if found else location


def _functions(module: ir.Module) -> list[Any]:
    """What is called from the program's entry, except for repjax's functions and what they call."""
    named = {
        _symbol(top.operation, "sym_name"): top.operation
        for top in module.body
        if top.operation.name == "func.func"
    }
    reached = ["main"]
    for name in reached:  # which grows
        for operation in _operations(named[name]):
            if operation.name == "func.call":
                callee = _symbol(operation, "callee")
                if not callee.startswith(PREFIX) and callee not in reached:
                    reached.append(callee)
    return [named[name] for name in reached]


def _symbol(operation, attribute: str) -> str:
    value = operation.attributes[attribute]
    kind = ir.FlatSymbolRefAttr if attribute == "callee" else ir.StringAttr
    return kind(value).value


def _operations(operation) -> Iterator[Any]:
    """The operations inside another one, those of its regions included."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner.operation)


def _types(operation) -> list[ir.Type]:
    return [value.type for value in (*operation.operands, *operation.results)]


def _is_exact(operation) -> bool:
    if operation.name in EXACT or operation.name.startswith(_DIALECTS):
        return True
    if operation.name == "stablehlo.custom_call" and (
        _symbol(operation, "call_target_name").startswith(PREFIX)
    ):
        return True
    types = _types(operation)
    if operation.name == "stablehlo.convert" and types[0] == types[1]:  # between weak types
        return True
    return not any(map(_is_inexact, types))


def _is_inexact(kind: ir.Type) -> bool:
    element = getattr(kind, "element_type", kind)
    return isinstance(element, ir.FloatType | ir.ComplexType)
