"""Programs, which JAX calls jaxprs: how they are opened, traced and bound anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal
from jax.interpreters import partial_eval

from repjax.primitives.core.jax_internals import eager_constant_folding


def open_jaxpr(jaxpr):
    """(jaxpr, consts) of a closed jaxpr; from jax 0.12 on the two classes are one."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", ()))


def without_unused(closed):
    """The program without the equations that nothing needs; all of its inputs stay."""
    jaxpr, consts = open_jaxpr(closed)
    jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return ClosedJaxpr(jaxpr, consts)


def renamed(atoms, names) -> list[Any]:
    """The atoms, and in the place of a variable what ``names`` has for it."""
    return [v if isinstance(v, Literal) else names.get(v, v) for v in atoms]


def bind_equation(equation, operands, params) -> list[Any]:
    """The stock primitive of an equation as it stands, on new operands."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def staged():
    """Within the block operations on constants are traced too, as without the user's
    ``jax.ensure_compile_time_eval``, which would run them there and then."""
    return eager_constant_folding(False)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """:func:`staged`, for what the user's options were read before: programs that are rewritten,
    whose equations have their precisions, and bodies, which state them."""
    with staged(), jax.default_matmul_precision(None):
        yield


def is_explicit(sharding) -> bool:
    """Whether it is one that stands in types, over explicit axes of a mesh."""
    return isinstance(sharding, jax.NamedSharding) and bool(sharding.mesh.explicit_axes)


def struct(aval) -> jax.ShapeDtypeStruct:
    """The type of an abstract value, as an argument of traced functions."""
    weak_type = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak_type)


def sharded_struct(aval) -> jax.ShapeDtypeStruct:
    """The same, with the sharding that an explicit mesh has in types."""
    result = struct(aval)
    return result.update(sharding=aval.sharding) if is_explicit(aval.sharding) else result


def struct_of(x) -> jax.ShapeDtypeStruct:
    return struct(jax.typeof(x))


def carried(params) -> tuple[int, int]:
    """The numbers of constants of a scan, its first operands, and of what it carries, the next."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    first, count = (len(tree) for tree in params["ft_in"].unpack()[:2])  # from 0.11 on
    return first, count
