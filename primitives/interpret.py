"""Interpret stock JAX equations with reproducible operations.

The heart of repjax is one table, :data:`RULES`, from the name of a stock JAX
primitive to its reproducible form, and one interpreter that walks a jaxpr and
applies it.  The same table serves the derivative rules of repjax's primitives
(:mod:`repjax.primitives.define` traces the stock derivative and interprets it),
the explicit functions (``repjax.lax``, ``repjax.nn``), ``repjax.reproducible``
and the global switch, which is why they agree bit for bit.

A rule is a function ``rule(context, operands, params) -> result`` (or a sequence
of results, for a primitive with several) that binds repjax primitives and exact
stock primitives only.  It is called for equations that touch floating-point
values; equations that touch none are bound as they stand if their primitive is
listed in :mod:`repjax.primitives.exact`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.config import eager_constant_folding
from jax.extend.core import Literal
from jax.interpreters import mlir

#: The orders of sums and those of matrix products and convolutions; the first is the default.
ACCUMULATIONS = ("pairwise", "sequential", "order_independent")
CONTRACTIONS = ("sequential", "order_independent")

#: Primitives of repjax itself carry this prefix; they are already reproducible.
PREFIX = "repjax_"


class RefusedError(NotImplementedError):
    """An operation that has no reproducible form.  Nothing falls back silently."""


#: The orders where nothing says otherwise; part of the key of JAX's caches.
default_accumulation = jax.make_user_context(ACCUMULATIONS[0])
default_contraction = jax.make_user_context(CONTRACTIONS[0])


@dataclasses.dataclass
class Context:
    """What a rule may need to know besides its operands.

    Attributes:
      accumulation: the order of sums (``docs/numerics.md``) where the equation does
        not say.
      contraction: likewise for matrix products and convolutions.
      differentiable: whether the result may still be differentiated, so that custom
        derivatives must be kept.
      equations: the equations being interpreted, outermost first.
      sizes: for the interpreted values, by identity, the size of the code that computes them
        from values in memory, and the value, to keep it alive.
      repeated: likewise the scalar that all elements of a value are, if it was broadcast.
      constants: by identity, the interpreted values that no operand of the program enters and all
        elements of which are the same.
      refusals: where not None, refusals are appended here, as pairs of the equations
        and the error, and interpretation goes on to find the next.
    """

    accumulation: str = dataclasses.field(default_factory=lambda: default_accumulation.value)
    contraction: str = dataclasses.field(default_factory=lambda: default_contraction.value)
    differentiable: bool = True
    equations: tuple[Any, ...] = ()
    sizes: dict[int, tuple[int, Any]] = dataclasses.field(default_factory=dict)
    repeated: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    constants: dict[int, Any] = dataclasses.field(default_factory=dict)
    refusals: list[tuple[tuple[Any, ...], RefusedError]] | None = None

    @property
    def equation(self):
        return self.equations[-1]

    def inside(self) -> Context:
        """The context of a program that is traced by itself, whose values end with its trace."""
        return dataclasses.replace(self, sizes={}, repeated={}, constants={})

    def scalar_of(self, x):
        """The scalar that ``x`` is or was broadcast from, else None."""
        return x if jax.typeof(x).shape == () else self.repeated.get(id(x), (None, None))[0]


Rule = Callable[[Context, Sequence[Any], dict[str, Any]], Any]

RULES: dict[str, Rule] = {}
STRUCTURAL: set[str] = set()
#: The structural rules of equations that hold jaxprs, and of those the ones that only call them.
HOLDING: set[str] = set()
CALLS: set[str] = set()
# Filled by repjax.primitives.exact; COMPARING are the exact ones that compare, ON_BYTES those
# that XLA does not know, or gets wrong, on integers of 2 and 4 bits.
EXACT: set[str] = set()
COMPARING: set[str] = set()
ON_BYTES: set[str] = set()
#: Rules of operations on complex numbers (repjax.primitives.complex_numbers).
COMPLEX: dict[str, Rule] = {}
EXACT_ON_INTEGERS: set[str] = set()

#: What an operation adds to the code of the loop that XLA fuses it into, in rounded additions.
#: An operation that is not here begins a new loop.
CODE_SIZE: dict[str, int] = {}
#: XLA fuses an operation into every loop that uses it.  From this size on a value that is used
#: more than once is computed once instead, lest code grow exponentially with depth.
LARGEST_REPEATED = 8
ADVICE: dict[str, str] = {}  # filled by repjax.primitives.refused
#: Of what is refused without one there.
WRITE_IT = "write it in jax.numpy or jax.lax operations, whose order is known"


def rule(
    *names: str, structural: bool = False, holding: bool | None = None, calls: bool = False
) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the stock primitives ``names``.

    A structural rule interprets the jaxprs that its equation holds, whatever their types.
    ``holding=False``: it interprets something else, and ``calls``: it calls the one jaxpr, so that
    operands may be what they are elsewhere in the interpreter (:mod:`repjax.primitives.weak`).
    """

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"stock primitive {name!r} already has a rule")
            RULES[name] = function
            if structural:
                STRUCTURAL.add(name)
            if structural if holding is None else holding:
                HOLDING.add(name)
            if calls:
                CALLS.add(name)
        return function

    return register


def program(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as what the stock primitives ``names`` compute.

    The function is written in stock operations, ``function(*operands, **params)``; the rule is
    to interpret it.
    """

    def register(function):
        @rule(*names, structural=True, holding=False)
        def interpreted(context, operands, params):
            return _interpreted(function, context, operands, params)

        return function

    return register


def _check(name: str, value: str, expected: Sequence[str]) -> str:
    if value not in expected:
        raise ValueError(
            f"{name}: expected one of {', '.join(expected)}; received {value!r}; see "
            "docs/numerics.md for what each means"
        )
    return value


def check_accumulation(accumulation: str) -> str:
    return _check("accumulation", accumulation, ACCUMULATIONS)


def check_contraction(contraction: str) -> str:
    return _check("contraction", contraction, CONTRACTIONS)


def check_orders(accumulation: str | None, contraction: str | None) -> None:
    """Check those that are given."""
    if accumulation is not None:
        check_accumulation(accumulation)
    if contraction is not None:
        check_contraction(contraction)


@contextlib.contextmanager
def orders(accumulation: str | None = None, contraction: str | None = None) -> Iterator[None]:
    """Within the block, other default orders; None leaves one as it is."""
    check_orders(accumulation, contraction)
    accumulation = accumulation or default_accumulation.value
    contraction = contraction or default_contraction.value
    with default_accumulation(accumulation), default_contraction(contraction):
        yield


def is_inexact(aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.inexact)


def is_complex(aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.complexfloating)


def is_explicit(sharding) -> bool:
    """Whether it is one that stands in types, over explicit axes of a mesh."""
    return isinstance(sharding, jax.NamedSharding) and bool(sharding.mesh.explicit_axes)


def open_jaxpr(jaxpr):
    """(jaxpr, consts) of a closed jaxpr; from jax 0.12 on the two classes are one."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", ()))


def bind_equation(equation, operands, params) -> list[Any]:
    """The stock primitive of an equation as it stands, on new operands."""
    primitive = equation.primitive
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _bind_exact(context: Context, operands, params) -> list[Any]:
    """The current equation, which does not round, though its derivative may."""
    equation = context.equation
    primitive = equation.primitive
    if primitive.name in COMPARING and any(jax.typeof(x).dtype == np.float16 for x in operands):
        # Not every CPU compares float16, nor XLA's code for it.
        results = _sealed(primitive, in_float32=True).bind(*operands, **params)
        return results if primitive.multiple_results else [results]
    if primitive.name in ON_BYTES and any(map(is_of_bits, operands)):
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
    if not (context.differentiable and is_function_of_floats) or primitive.name.startswith(PREFIX):
        return bind_equation(equation, operands, params)
    # Bound as it stands, JAX would transpose a broadcast into its own sum.
    results = _sealed(primitive).bind(*operands, **params)
    return results if primitive.multiple_results else [results]


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


@functools.cache
def _sealed(primitive, in_float32: bool = False):
    """The primitive as one of repjax: the same, with reproducible derivatives."""
    from repjax.primitives.canonical import flush
    from repjax.primitives.define import define  # which interprets derivatives with this module

    return define(
        f"exact_{primitive.name}",
        primitive.bind,
        primitive.bind,
        multiple_results=primitive.multiple_results,
        halves=flush if in_float32 else None,
    )


def bind_exact(context: Context, operands, params):
    """For rules: the current equation's stock primitive, where that is exact."""
    results = _bind_exact(context, operands, params)
    return results if context.equation.primitive.multiple_results else results[0]


def _find_rule(context: Context, equation) -> Rule | None:
    """The rule of an equation, None where it may be bound as it stands, or RefusedError."""
    name = equation.primitive.name
    if name.startswith(PREFIX):
        return None
    if name in STRUCTURAL:
        return RULES[name]
    if (function := _function_of(equation.primitive)) is not None:
        if context.differentiable:
            raise RefusedError(f"{name} {NOT_DIFFERENTIABLE}")
        return functools.partial(_interpreted, function)
    if not _has_form(name):
        raise RefusedError(f"{name} has no reproducible form; {ADVICE.get(name, WRITE_IT)}")
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    if any(map(is_complex, avals)):
        return _find_complex_rule(context, name, avals)
    if name in EXACT or (name in EXACT_ON_INTEGERS and not any(map(is_inexact, avals))):
        return None
    if name not in RULES:
        raise RefusedError(
            f"{name} of these types has no reproducible form; {ADVICE.get(name, WRITE_IT)}"
        )
    return RULES[name]


def _has_form(name: str) -> bool:
    """Whether the stock primitive has a reproducible form, for operands of some types."""
    return any(name in names for names in (RULES, EXACT, EXACT_ON_INTEGERS, COMPLEX))


#: Of float64, after another remedy.
TURN_X64_OFF = "or turn jax_enable_x64 off, which makes float64 of numbers that have no other type"

#: Of what has no derivative that would be reproducible, after its name.
NOT_DIFFERENTIABLE = (
    "inside an explicit repjax function would lose its derivative; use repjax.reproducible or the "
    "global switch, which are applied after autodiff"
)


def _function_of(primitive) -> Callable[..., Any] | None:
    """What a primitive without a rule is on every platform, if that is a function in JAX.

    So are some of JAX's (``igamma``) and most of those that other libraries define, by
    ``mlir.lower_fun``, which has no other record of the function than its closure.
    """
    name = primitive.name
    if _has_form(name):
        return None
    entry = mlir._lowerings.get(primitive)
    lowering = getattr(entry, "rule", entry)
    if not getattr(lowering, "__qualname__", "").startswith("lower_fun.<locals>"):
        return None
    return inspect.getclosurevars(lowering).nonlocals.get("fun")


def _interpreted(function, context: Context, operands, params):
    results = interpret_function(context, functools.partial(function, **params), operands)
    return results if context.equation.primitive.multiple_results else results[0]


def _without_shardings(params: dict[str, Any]) -> dict[str, Any]:
    """The params without shardings over explicit axes, which no type has here."""
    names = [name for name in ("sharding", "out_sharding") if is_explicit(params.get(name))]
    return {**params, **dict.fromkeys(names)} if names else params


def _find_complex_rule(context: Context, name: str, avals) -> Rule | None:
    if wide := [str(aval.dtype) for aval in avals if getattr(aval, "dtype", None) == np.complex128]:
        raise RefusedError(
            f"{name} expected complex64, received {wide[0]}; convert with .astype('complex64'), "
            f"{TURN_X64_OFF}"
        )
    if context.differentiable:
        raise RefusedError(f"{name} on complex numbers {NOT_DIFFERENTIABLE}")
    if name in COMPLEX:
        return COMPLEX[name]
    if name in EXACT and name not in COMPARING:
        return None
    raise RefusedError(
        f"{name} on complex numbers has no reproducible form; "
        + ADVICE.get(name, "use pairs of real arrays")
    )


def apply_equation(context: Context, equation, operands) -> list[Any]:
    """The results of one stock equation in its reproducible form."""
    from repjax.primitives import weak  # this module comes first

    context = dataclasses.replace(context, equations=(*context.equations, equation))
    if (result := weak.undecided(equation, operands)) is not None:
        return [result]
    params = None
    try:
        operands, params = weak.decided(equation, operands)
        found = _find_rule(context, equation)
        params = _without_shardings(params)
        if found is None:
            return _bind_exact(context, operands, params)
        results = found(context, operands, params)
        return list(results) if equation.primitive.multiple_results else [results]
    except RefusedError as error:
        if context.refusals is None:
            raise
        context.refusals.append((context.equations, error))
        if params is None:
            types = [v.aval for v in equation.invars]
            operands, params = list(map(weak.widened, operands, types)), equation.params
        return bind_equation(equation, operands, params)  # never run: the caller raises in the end


def _literal(literal):
    """The canonical value of a literal, which no entry guard has seen."""
    from repjax.primitives import weak  # this module comes first

    if not is_inexact(literal.aval):
        return literal.val
    if weak.is_float64(literal.aval):
        return weak.Constant.of(np.float64, literal.val)
    return canonical_number(literal.val, literal.aval.dtype)


def canonical_number(value, dtype):
    """A number in a format, rounded to nearest, and canonical; on the host."""
    with np.errstate(all="ignore"):
        value = np.asarray(value, dtype)
    if np.issubdtype(value.dtype, np.complexfloating):
        result = _canonical(value.real).astype(value.dtype)
        result.imag = _canonical(value.imag)
        return result
    return _canonical(value)


def _canonical(value: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if np.isnan(value):
            return np.full_like(value, np.nan)
        subnormal = np.abs(value) < jax.numpy.finfo(value.dtype).tiny
        return np.zeros_like(value) if subnormal else value


def interpret(context: Context, jaxpr, consts, operands) -> list[Any]:
    """The results of a jaxpr with every equation in its reproducible form.

    Operands and consts must be canonical (``repjax.primitives.canonical``); so are
    the results, except for the payload of NaNs.  Those of the type float64 are what
    :mod:`repjax.primitives.weak` says.
    """
    jaxpr, _ = open_jaxpr(jaxpr)
    environment: dict[Any, Any] = {}

    uses = _uses(jaxpr)

    def read(atom):
        return _literal(atom) if isinstance(atom, Literal) else environment[atom]

    def write(variables, values):
        for variable, value in zip(variables, values, strict=True):
            if uses[variable] > 1 and not context.differentiable:
                value = _computed_once(context, value)
            environment[variable] = value

    write(jaxpr.constvars, consts)
    write(jaxpr.invars, operands)
    for equation in jaxpr.eqns:
        values = [read(v) for v in equation.invars]
        context.constants.update(
            (id(x), x)
            for v, x in zip(equation.invars, values, strict=True)
            if isinstance(v, Literal)
        )
        repeated = _of_scalars(context, equation, values)
        results = apply_equation(context, equation, values) if repeated is None else repeated
        results = _hide_constants(context, equation, values, results, repeated is not None)
        _measure(context, equation, values, results)
        write(equation.outvars, results)
    return [read(v) for v in jaxpr.outvars]


#: Elementwise operations, which a scalar may go through before it is broadcast.
ELEMENTWISE: set[str] = set()


def _of_scalars(context: Context, equation, values) -> list[Any] | None:
    """The results of an elementwise operation on scalars that were broadcast, broadcast again.

    XLA would arrive there by itself, but one operation of a body at a time, and complains of a body
    that is longer than it has patience.  None where that is not what the equation is.
    """
    from repjax.primitives.weak import Undecided  # this module comes first

    name = equation.primitive.name
    if context.differentiable:  # the derivative of a broadcast is a sum
        return None
    if any(isinstance(x, Undecided) for x in values):
        return None
    if name == "broadcast_in_dim" and (scalar := context.scalar_of(values[0])) is not None:
        results = apply_equation(context, equation, values)
    elif name in ELEMENTWISE and equation.outvars[0].aval.shape != ():
        scalars = [context.scalar_of(x) for x in values]
        if any(x is None for x in scalars):
            return None
        (scalar,) = apply_equation(context, equation, scalars)
        shape = jax.lax.broadcast_shapes(*(jax.typeof(x).shape for x in values))
        results = [jax.lax.broadcast_in_dim(scalar, shape, ())]
    else:
        return None
    context.repeated[id(results[0])] = scalar, results[0]
    return results


def _uses(jaxpr) -> collections.Counter:
    """How many loops use each variable; reductions and the like read theirs more than once."""
    uses = collections.Counter(v for v in jaxpr.outvars if not isinstance(v, Literal))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        times = 1 if name in CODE_SIZE or name in STRUCTURAL else 2
        for atom in equation.invars:
            if not isinstance(atom, Literal):
                uses[atom] += times
    return uses


def _size(context: Context, value) -> int:
    return context.sizes.get(id(value), (0, None))[0]


def _measure(context: Context, equation, operands, results) -> None:
    """Note the code size of the results of an equation."""
    if context.differentiable:  # nothing asks for it, and values are not to outlive their trace
        return
    own = CODE_SIZE.get(equation.primitive.name.removeprefix(PREFIX))
    if own is not None:
        total = own + sum(_size(context, x) for x in operands)
        context.sizes.update((id(x), (total, x)) for x in results)


def _computed_once(context: Context, value):
    """The value, in memory if computing it repeatedly would take too much code."""
    from repjax.primitives.arithmetic import materialize_p  # this module comes first
    from repjax.primitives.weak import Undecided

    if isinstance(value, Undecided):
        return value
    aval = jax.typeof(value)
    large = _size(context, value) >= LARGEST_REPEATED and getattr(aval, "size", 1) != 1
    return materialize_p.bind(value) if large and aval.dtype == np.float32 else value


#: Of equal elements these make equal elements, which have no order; they stay visible to XLA.
_UNIFORM = {
    *("broadcast_in_dim", "broadcast_to", "reshape", "convert_element_type"),
    *("neg", "add", "sub", "mul", "div", "select_n"),
}


def _hide_constants(context: Context, equation, operands, results, repeated) -> list[Any]:
    """The results, hidden if they are constants whose elements may differ."""
    from repjax.primitives.arithmetic import hidden  # this module comes first
    from repjax.primitives.weak import Undecided

    if not operands or not all(id(x) in context.constants for x in operands):
        return results
    undecided = any(isinstance(x, Undecided) for x in results)  # numbers of the program
    if undecided or repeated or equation.primitive.name in _UNIFORM:
        context.constants.update((id(x), x) for x in results)
        return results
    return [hidden(x) for x in results]


def interpret_closed(context: Context, jaxpr, operands) -> list[Any]:
    """:func:`interpret` of a closed jaxpr, whose consts are made canonical here."""
    from repjax.primitives.arithmetic import constant  # this module comes first
    from repjax.primitives.weak import enter

    inner, consts = open_jaxpr(jaxpr)
    types = [[v.aval for v in variables] for variables in (inner.constvars, inner.invars)]
    consts = map(enter, map(constant, consts), types[0])
    return interpret(context, inner, list(consts), list(map(enter, operands, types[1])))


def interpret_function(context: Context, function, operands) -> list[Any]:
    """:func:`interpret` of a function of arrays, traced on the types of the operands."""
    from repjax.primitives.weak import leave  # this module comes first

    with staged():
        jaxpr = jax.make_jaxpr(function)(*map(struct_of, operands))
    return list(map(leave, interpret_closed(context, jaxpr, operands), jaxpr.out_avals))


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
