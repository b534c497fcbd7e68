"""The tables that operations fill in, and that the interpreter and the switch read.

Operations stand above this module and enter themselves here when they are imported: a rule for a
stock primitive (:func:`rule`), an exact primitive, a primitive of repjax, its kernels.  So the
interpreter knows none of them by name, and imports go one way.

A rule is a function ``rule(context, operands, params) -> result`` (or a sequence of results, for a
primitive with several) that binds repjax primitives and exact stock primitives only.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import jax
from jax.extend.core import Primitive

#: Primitives of repjax itself carry this prefix; they are already reproducible.
PREFIX = "repjax_"


class RefusedError(NotImplementedError):
    """An operation that has no reproducible form.  Nothing falls back silently."""

    __module__ = "repjax"  # by which users know it


# --- orders -----------------------------------------------------------------------------

#: The orders of sums and those of products (matrix products and convolutions); the first is the
#: default.
Accumulation = Literal["pairwise", "sequential", "order_independent", "exact"]
Contraction = Literal["sequential", "order_independent", "exact"]
ACCUMULATIONS: tuple[Accumulation, ...] = get_args(Accumulation)
CONTRACTIONS: tuple[Contraction, ...] = get_args(Contraction)

#: The orders where nothing says otherwise; part of the key of JAX's caches.
default_accumulation = jax.make_user_context(ACCUMULATIONS[0])
default_contraction = jax.make_user_context(CONTRACTIONS[0])


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


# --- rules ------------------------------------------------------------------------------


@dataclasses.dataclass
class Context:
    """What a rule may need to know besides its operands.

    Attributes:
      accumulation: the order of sums (``docs/numerics.md``) where the equation does
        not say.
      contraction: likewise for products.
      differentiable: whether the result may still be differentiated, so that custom
        derivatives must be kept.
      equations: the equations being interpreted, outermost first.
      sizes: for the interpreted values, by identity, the size of the code that computes them
        from values in memory, and the value, to keep it alive.
      repeated: likewise the scalar that all elements of a value are, if it was broadcast.
      constants: by identity, the interpreted values that no operand of the program enters and all
        elements of which are the same.
      tracing: makes a block in which the contract's derivatives are traced, for custom ones that
        are traced after the program.
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
    tracing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
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

#: By the name of a stock primitive, its reproducible form.
RULES: dict[str, Rule] = {}
#: Rules of operations on complex numbers (repjax.primitives.operations.complex_numbers).
COMPLEX: dict[str, Rule] = {}
#: Rules of what is exact on all operands, and on those that are not floating-point
#: (repjax.primitives.operations.exact).
EXACT: dict[str, Rule] = {}
EXACT_ON_INTEGERS: dict[str, Rule] = {}
#: Names in EXACT of what compares its operands, which complex numbers refuse.
COMPARING: set[str] = set()
#: Names in RULES of the structural rules.
STRUCTURAL: set[str] = set()
#: Of those that devices exchange, the rules of several equations of a name, of all their operands.
TOGETHER: dict[str, Rule] = {}
#: The structural rules of equations that hold jaxprs, and of those the ones that only call them.
HOLDING: set[str] = set()
CALLS: set[str] = set()


def rule(
    *names: str, structural: bool = False, holding: bool | None = None, calls: bool = False
) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the stock primitives ``names``.

    A structural rule interprets the jaxprs that its equation holds, whatever their types.
    ``holding=False``: it interprets something else, and ``calls``: it calls the one jaxpr, so that
    operands may be what they are elsewhere in the interpreter (:mod:`repjax.primitives.core.weak`).
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


# --- what is refused, in words ----------------------------------------------------------

#: By the name of a refused primitive, what to do instead (repjax.primitives.operations.refused).
ADVICE: dict[str, str] = {}
#: For what is refused without an entry there.
WRITE_IT = "write it in jax.numpy or jax.lax operations, whose order is known"
#: For float64, after another remedy.
TURN_X64_OFF = "or turn jax_enable_x64 off, which makes float64 of numbers that have no other type"
#: For what has no derivative that would be reproducible, after its name.
NOT_DIFFERENTIABLE = (
    "inside an explicit repjax function would lose its derivative; use repjax.reproducible or the "
    "global switch, which are applied after autodiff"
)


# --- what the interpreter knows of operations -------------------------------------------

#: What an operation adds to the code of the loop that XLA fuses it into, in rounded additions.
#: An operation that is not here begins a new loop.
CODE_SIZE: dict[str, int] = {}
#: XLA fuses an operation into every loop that uses it.  From this size on a value that is used
#: more than once is computed once instead, lest code grow exponentially with depth.
LARGEST_REPEATED = 8
#: From this size on a value of 16 bits is computed in a loop of its own, however often it is used:
#: in some longer loops that end in such formats, LLVM's vectorizer, from jax 0.12 on, asks the
#: users of each value, and theirs, which takes exponential time.
LARGEST_LOOP = 256
#: Elementwise operations, which a scalar may go through before it is broadcast.
ELEMENTWISE: set[str] = set()


# --- primitives of repjax ---------------------------------------------------------------

#: By name without the prefix, those that :mod:`repjax.primitives.core.define` made.
PRIMITIVES: dict[str, Primitive] = {}
#: By primitive, its body for operands and results of certain types; for kernels of several.
BODIES: dict[Primitive, Callable[..., Callable[..., Any]]] = {}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A faster function with the bits of a primitive's body.

    Attributes:
      make: called when the primitive is lowered; the function, or None where this machine has none.
      in_parts: whether the function is ``partition.partitioned``, so that lowering has to know the
        devices.
      on_one_device: whether it is only for what a device computes by itself.
      of_xla: whether it is XLA's code alone.
    """

    make: Callable[[], Callable[..., Any] | None]
    in_parts: bool = False
    on_one_device: bool = False
    of_xla: bool = False


#: By platform (``cpu``, ``cuda``), what gives the kernel of a primitive there, or None.  Filled by
#: repjax.primitives.kernels; neither is called for ``jax.export``.
KERNELS: dict[str, Callable[[Primitive], Kernel | None]] = {}
#: Likewise whether guards of few elements compare numbers (``canonical.few_by_value``).
FEW_BY_VALUE: dict[str, Callable[[], bool]] = {}
