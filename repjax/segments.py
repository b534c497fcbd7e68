"""Explicit functions in a plain program, fused as the decorator fuses a program.

An explicit function binds primitives one by one, so that JAX can differentiate and batch what it
returns.  When that is done, on the way to lowering, :func:`fused` finds in the program that is to
be compiled the *segments* of repjax's primitives between plain operations, and puts what there are
kernels for in their place.  It leaves every plain equation as it is, and a program without a
primitive of repjax is not touched at all.

Plain operations and segments take turns.  An equation is of *stage* n if there are n times at
most, on the way to it, a plain one that follows one of repjax; a segment is what is repjax's of one
stage.  In ``c = rl.add(rl.exp(x), 1); d = c * 2; e = rl.tanh(d)`` the first segment is ``exp`` and
the addition, of stage 0; the multiplication is plain and, like ``tanh``, of stage 1.

An explicit function makes canonical what it takes and what it returns.  Inside of a segment that is
needed only of what plain operations have made, and of NaNs that others see.

What has a mesh or a memory in its type (``jax.set_mesh``, ``jax.shard_map``, explicit axes) is left
as it is.  Arrays that are sharded over automatic axes have neither, and are fused.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Literal

from repjax.primitives.core.jax_internals import weakref_lru_cache
from repjax.primitives.core.programs import open_jaxpr, renamed, settled, struct, without_unused
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.core.values import canonical_number, is_inexact
from repjax.primitives.fusion.entries import RAW_SCATTERS, raw_dot_general_p
from repjax.primitives.fusion.exits import ended_p, leave_p
from repjax.primitives.fusion.groups import Group, group_sum_p, groups_p
from repjax.primitives.fusion.rows import rows_p
from repjax.primitives.fusion.views import is_canonicalize, is_move, variables
from repjax.primitives.kernels import in_kernels
from repjax.primitives.operations.arithmetic import materialize_p
from repjax.primitives.operations.exact import unsealed
from repjax.rules import match_types

#: What is bound by those who have fused a program already.
_FUSED = frozenset(
    (groups_p, group_sum_p, rows_p, ended_p, leave_p, raw_dot_general_p, *RAW_SCATTERS.values())
)
#: Equations that hold programs, and the parameters that these are.
_PROGRAMS = {
    **dict.fromkeys(("jit", "pjit", "scan", "remat2", "checkpoint"), ("jaxpr",)),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call"), ("call_jaxpr",)),
    "custom_vjp_call": ("call_jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
#: Plain operations that may be in a segment, besides moves: exact on canonical values, and if they
#: return floats, those of their operands.
_EXACT = frozenset(("broadcast_in_dim", "select_n", *_COMPARISONS))


def _is_simple(equation) -> bool:
    """Whether its types are shapes and formats and no more: no meshes, memories or keys."""

    def is_simple(aval):
        dtype = getattr(aval, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype != jax.dtypes.canonicalize_dtype(dtype):
            return False  # the latter was traced in ``jax.enable_x64``
        return aval == ShapedArray(aval.shape, dtype, weak_type=aval.weak_type)

    return all(is_simple(v.aval) for v in (*equation.invars, *equation.outvars))


def _is_ours(equation) -> bool:
    name = equation.primitive.name
    # The bits of a NaN are in numbers, and may be none that are canonical.
    is_of_bits = "bitcast" in name
    is_of_repjax = name.startswith(PREFIX) and equation.primitive not in _FUSED
    return is_of_repjax and not is_of_bits and _is_simple(equation)


def _programs(equation) -> Iterator[Any]:
    for name in _PROGRAMS.get(equation.primitive.name, ()):
        found = equation.params[name]
        yield from found if isinstance(found, tuple) else (found,)


def _each(function, found):
    """What the function makes of a program, or of each in a tuple."""
    return tuple(map(function, found)) if isinstance(found, tuple) else function(found)


@weakref_lru_cache
def _has_segments(jaxpr) -> bool:
    """Whether a program has primitives of repjax that nobody has fused, in programs in it too."""
    equations = open_jaxpr(jaxpr)[0].eqns
    if any(e.primitive in _FUSED for e in equations):
        return False
    return any(_is_ours(e) or any(map(_has_segments, _programs(e))) for e in equations)


#: Whether programs are left as explicit functions bind them, to XLA.  A part of the key of JAX's
#: caches.
as_bound = jax.make_user_context(False)


def fused(jaxpr):
    """The program with its segments in kernels; itself where it has none."""
    is_on_mesh = not jax.sharding.get_abstract_mesh().empty
    is_left = as_bound.value or is_on_mesh or not _has_segments(jaxpr)
    return jaxpr if is_left else _fused(jaxpr)


@weakref_lru_cache
def _fused(jaxpr):
    inner, consts = open_jaxpr(jaxpr)
    result = inner.replace(**_Program(inner).parts())
    return result if inner is jaxpr else ClosedJaxpr(result, consts)


def _is_canonical(literal) -> bool:
    if not is_inexact(literal.aval):
        return True
    value = np.asarray(literal.val, literal.aval.dtype)
    return value.tobytes() == canonical_number(value, value.dtype).tobytes()


class _Program:
    """A program whose segments are to be found.

    First the stages (:meth:`_find_stages`), then for each the plain equations, and the segment in
    kernels (:meth:`parts`).
    """

    def __init__(self, jaxpr):
        self.jaxpr = jaxpr
        self.made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.ours: set[int] = set()
        self.plain: dict[int, list[Any]] = collections.defaultdict(list)
        self.segments: dict[int, list[Any]] = collections.defaultdict(list)
        self._find_stages()
        #: What to read in the place of a variable.
        self.read: dict[Any, Any] = {}
        self.equations: list[Any] = []

    def _find_stages(self) -> None:
        stages: dict[int, int] = {}
        last = 0  # of an equation with effects, which keep their order
        for equation in self.jaxpr.eqns:
            makers = [self.made_by[v] for v in variables(equation.invars) if v in self.made_by]
            is_ours = _is_ours(equation) or self._is_exact(equation, makers)
            stage = max(
                (stages[id(m)] + (id(m) in self.ours and not is_ours) for m in makers), default=0
            )
            if equation.effects:
                stage = last = max(stage, last)
            stages[id(equation)] = stage
            if is_ours:
                self.ours.add(id(equation))
            (self.segments if is_ours else self.plain)[stage].append(equation)

    def _is_exact(self, equation, makers) -> bool:
        """Whether it is plain, and exact since its operands are those of a segment."""
        if not (is_move(equation) or equation.primitive.name in _EXACT):
            return False
        if equation.effects or not _is_simple(equation):
            return False
        if any(v.aval.dtype == np.float16 for v in equation.invars):
            return False  # which not every CPU compares

        def is_known(atom):
            if isinstance(atom, Literal):
                return _is_canonical(atom)
            maker = self.made_by.get(atom)
            return id(maker) in self.ours or self._source(atom) is not None

        floats = (v for v in equation.invars if is_inexact(v.aval))
        return any(id(m) in self.ours for m in makers) and all(map(is_known, floats))

    def _source(self, variable):
        """The plain equation that makes it an array of one canonical number, or None."""
        equation = self.made_by.get(variable)
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return None
        x = equation.invars[0]
        return equation if isinstance(x, Literal) and _is_canonical(x) else None

    def parts(self) -> dict[str, Any]:
        """The equations and the results."""
        users: dict[Any, set[Any]] = collections.defaultdict(set)
        for stage, equations in self.segments.items():
            for v in (v for e in equations for v in variables(e.invars)):
                users[v].add(stage)
        for v in variables((*self.jaxpr.outvars, *self._plain_operands())):
            users[v].add(None)
        for stage in sorted({*self.plain, *self.segments}):
            self.equations += map(self._with_programs, self.plain[stage])
            self._add_segment(self.segments[stage], lambda v, s=stage: users[v] - {s})
        return {"eqns": self.equations, "outvars": renamed(self.jaxpr.outvars, self.read)}

    def _plain_operands(self) -> list[Any]:
        return [v for equations in self.plain.values() for e in equations for v in e.invars]

    def _with_programs(self, equation):
        """The plain equation with programs in it fused, reading what segments have made."""
        names = _PROGRAMS.get(equation.primitive.name, ())
        params = {name: _each(fused, equation.params[name]) for name in names}
        invars = renamed(equation.invars, self.read)
        if invars == list(equation.invars) and not params:
            return equation
        return equation.replace(invars=invars, params={**equation.params, **params})

    def _add_segment(self, equations, users) -> None:
        made = {v for e in equations for v in e.outvars}
        taken = dict.fromkeys(v for e in equations for v in variables(e.invars) if v not in made)
        sources = [e for v in taken if (e := self._source(v))]
        invars = [v for v in taken if not self._source(v)]
        outvars = [v for e in equations for v in e.outvars if users(v)]
        if len(equations) > 1:
            group = _simplified([*sources, *equations], invars, outvars)
            jaxpr, consts = open_jaxpr(_in_kernels(group, invars, outvars))
            if not consts:
                self.read.update(zip(jaxpr.invars, renamed(invars, self.read), strict=True))
                for e in jaxpr.eqns:
                    self.equations.append(e.replace(invars=renamed(e.invars, self.read)))
                self.read.update(zip(outvars, renamed(jaxpr.outvars, self.read), strict=True))
                return
        self.equations += (e.replace(invars=renamed(e.invars, self.read)) for e in equations)


def _in_kernels(group: Group, invars, outvars):
    """The program of a segment, with what there are kernels for."""
    types = [v.aval for v in outvars]

    def program(*operands):
        return match_types(in_kernels(group.evaluate, *operands), types)

    with settled():
        jaxpr = jax.make_jaxpr(program)(*(struct(v.aval) for v in invars))
    return without_unused(jaxpr)


def _simplified(equations: Sequence[Any], invars, outvars) -> Group:
    """A segment in which values are made canonical once, and NaNs where others see them."""
    shown = _shown(equations, outvars)
    known: set[Any] = set()  # what is canonical except for its NaNs
    canonical: dict[Any, Any] = {}  # of what has been made canonical, the result
    read: dict[Any, Any] = {}  # what to read in the place of a variable
    found = []

    def is_known(atom):
        return _is_canonical(atom) if isinstance(atom, Literal) else atom in known

    for equation in map(unsealed, equations):
        equation = equation.replace(invars=renamed(equation.invars, read))
        if not is_canonicalize(equation):
            found.append(equation)
            floats = (v for v in equation.invars if is_inexact(v.aval))
            if _is_rounding(equation) or all(map(is_known, floats)):
                known.update(equation.outvars)
            continue
        (x,), (result,) = equation.invars, equation.outvars
        if isinstance(x, Literal):
            same = x if _is_canonical(x) else None
        else:
            same = canonical.get(x, x if x in known and result not in shown else None)
        if same is not None:
            read[result] = same
            continue
        found.append(equation)
        known.add(result)
        canonical[result] = result
        if not isinstance(x, Literal):
            canonical[x] = result
    # A result may now be a literal, or another one under its name.
    return _Segment(tuple(found), tuple(invars), tuple(renamed(outvars, read)), None)


def _is_rounding(equation) -> bool:
    """Whether its results are canonical except for their NaNs, whatever it takes."""
    return equation.primitive.name.startswith(PREFIX) and equation.primitive is not materialize_p


class _Segment(Group):
    """A group whose results may be literals, or one variable several times."""

    def evaluate(self, *operands) -> list[Any]:
        distinct = dict.fromkeys(variables(self.outvars))
        inner = Group(self.eqns, self.invars, tuple(distinct), self.kernels)
        values = dict(zip(distinct, inner.evaluate(*operands), strict=True))
        return [
            np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else values[v]
            for v in self.outvars
        ]


def _shown(equations, outvars) -> set[Any]:
    """The variables whose NaNs others than repjax's primitives may see."""
    shown = set(outvars)
    for equation in reversed(equations):
        if not is_canonicalize(equation) and not shown.isdisjoint(equation.outvars):
            shown.update(variables(equation.invars))
    return shown
