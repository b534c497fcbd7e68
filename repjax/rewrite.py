"""Rewrite a whole program, after autodiff, into its reproducible form.

:func:`run` is what ``repjax.reproducible`` and the global switch share: the program's
inputs and constants are made canonical, each equation is replaced by its reproducible
form, and the outputs are made canonical (which gives NaNs their one pattern).  If some
equations have none, a :class:`~repjax.primitives.core.tables.RefusedError` lists them all,
with the user's file and line.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import traceback
from collections.abc import Sequence

import jax
from jax.extend import source_info_util

import repjax.primitives
from repjax.primitives.core.interpret import interpret
from repjax.primitives.core.jax_internals import discharge_state
from repjax.primitives.core.programs import open_jaxpr, settled, sharded_struct, without_unused
from repjax.primitives.core.tables import Context, RefusedError
from repjax.primitives.core.values import canonicalize, constant
from repjax.primitives.core.weak import enter, leave
from repjax.primitives.kernels import in_kernels
from repjax.rules import match_types
from repjax.sharding import in_auto_axes

_WIDE = ("float64", "complex128")
_NOT_THE_USERS = tuple(
    str(pathlib.Path(file).parent)
    for file in (__file__, repjax.primitives.__file__, jax.__file__, contextlib.__file__)
)
for _folder in _NOT_THE_USERS[:2]:
    source_info_util.register_exclusion(_folder)


def run(jaxpr, operands) -> list:
    """The results of a closed jaxpr on ``operands``, reproducibly.

    Raises:
      RefusedError: listing every operation that has no reproducible form.
    """
    # Versions of JAX differ in what they have removed by now.
    inner, consts = open_jaxpr(without_unused(_without_references(jaxpr)))

    def program(*operands):
        context = Context(differentiable=False, refusals=[])
        canonical = [constant(c) for c in consts], [canonicalize(x) for x in operands]
        entered = [
            [enter(x, v.aval) for v, x in zip(variables, values, strict=True)]
            for variables, values in zip((inner.constvars, inner.invars), canonical, strict=True)
        ]
        results = interpret(context, inner, *entered)
        types = [v.aval for v in inner.outvars]
        for x, aval in zip(results, types, strict=True):
            try:
                leave(x, aval)
            except RefusedError as error:
                context.refusals.append(((), error))
        if context.refusals:
            raise RefusedError(report(context.refusals, _wide(inner)))
        return match_types(map(canonicalize, map(leave, results, types)), types)

    function = functools.partial(in_kernels, program)
    with settled():
        return in_auto_axes(function, operands, [v.aval for v in inner.outvars])


def _without_references(jaxpr):
    """The closed jaxpr with its references (``jax.new_ref``) turned into values, as JAX does."""
    inner, consts = open_jaxpr(jaxpr)
    if any(isinstance(x, jax.Ref) for x in consts):
        raise TypeError(
            "repjax.reproducible: expected arrays, received a reference (jax.new_ref) from outside "
            "the function, as JAX makes with jax_error_checking_behavior_nan and _divide; pass its "
            "value and return the new one, turn the options off, or use repjax_enable instead"
        )
    if any("MutableArray" in type(effect).__name__ for effect in inner.effects):
        return discharge_state(jaxpr)
    return jaxpr


def rewrite(jaxpr):
    """A closed jaxpr of the same type as ``jaxpr`` that computes it reproducibly."""
    inner, _ = open_jaxpr(jaxpr)

    def program(*operands):
        return run(jaxpr, operands)

    return jax.make_jaxpr(program)(*(sharded_struct(v.aval) for v in inner.invars))


def location(equations) -> str:
    """The user's file, line and function of the innermost equation that knows them."""
    for equation in reversed(equations):
        place = source_info_util.summarize(equation.source_info)
        if place and "unknown" not in place:
            return place
    # An eager operation does not know its line: it is the one being run.
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(("<", *_NOT_THE_USERS)):
            return f"{frame.filename}:{frame.lineno} ({frame.name})"
    return "an unknown line"


def _wide(jaxpr) -> list[str]:
    """The arguments of the user's function that are in double precision, by their names.

    Python numbers are not, whatever JAX calls them.  A program may have operands that are no
    arguments: then it is not known which is which.
    """
    names, operands = jaxpr.debug_info.arg_names or (), [v.aval for v in jaxpr.invars]
    if len(names) != len(operands):
        return []
    return [
        str(name)
        for name, x in zip(names, operands, strict=True)
        if name and str(getattr(x, "dtype", "")) in _WIDE and not x.weak_type
    ]


def report(refusals, wide: Sequence[str] = ()) -> str:
    """What a RefusedError says, of equations and errors, and of arguments in double precision."""
    lines = [f"  {location(equations)}: {error}" for equations, error in refusals]
    distinct = list(dict.fromkeys(lines))
    return (
        f"repjax refuses {len(distinct)} operation(s), because it has no reproducible form "
        "for them and nothing falls back silently:\n"
        + "\n".join(distinct)
        + (f"\nThe arguments {', '.join(wide)} are in double precision." if wide else "")
        + "\nReplace them, or run them outside repjax; docs/numerics.md lists what is covered."
    )
