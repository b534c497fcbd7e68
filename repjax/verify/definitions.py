"""Where an operation is defined, and what computes it: sections, bodies, kernels.

The lists of docs/primitives.md are made of :data:`SECTIONS`; ``tests/stock_primitives.py`` writes
them.
"""

from __future__ import annotations

import functools
import inspect
import pathlib
import re
from typing import Any, NamedTuple

import jax

import repjax.primitives
from repjax.primitives.core import tables
from repjax.primitives.cpu import bytecode, library
from repjax.primitives.operations.elementary.table import TABLE
from repjax.verify.reference.table import short


class Section(NamedTuple):
    """A section of docs/numerics.md: its title, and the primitives that it says something of."""

    title: str
    names: tuple[str, ...] = ()


def _section(title: str, names: str = "") -> Section:
    return Section(title, tuple(names.split()))


#: Which section says what a stock primitive gives for floating-point operands.
SECTIONS = {
    1: _section("Canonical values", "bitcast_convert_type eq_to le_to lt_to"),
    2: _section(
        "Arithmetic",
        """add add_any ceil convert_element_type div floor integer_pow iota mul neg nextafter
        one_minus_square polynomial pow reduce_precision rem round rsqrt sqrt square sub""",
    ),
    3: Section("Elementary functions", tuple(row.name for row in TABLE if row.rule)),
    4: _section(
        "Reductions",
        """all_gather_invariant argmax argmin cumlogsumexp cummax cummin cumprod cumsum
        device_put mesh_cast pmax pmin psum psum_invariant pvary reduce reduce_max reduce_min
        reduce_prod reduce_scatter reduce_sum reduce_window reshard top_k""",
    ),
    5: _section(
        "Matrix products and convolutions",
        "conv_general_dilated dot_general ragged_dot_general scaled_matmul",
    ),
    6: _section(
        "Pooling windows",
        """reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add
        select_and_scatter_add""",
    ),
    7: _section("Scatters", "scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub"),
    8: _section("Data movement and sorting", "sort"),
    17: _section(
        "Linear algebra", "cholesky eigh geqrf householder_product lu qr svd triangular_solve"
    ),
    19: _section("Complex numbers and Fourier transforms", "fft"),
    20: _section("Special functions", "bessel_i0e bessel_i1e polygamma zeta"),
    10: _section(
        "Random numbers", "random_bits random_fold_in random_gamma random_seed random_split"
    ),
    11: _section("Formats"),
    12: _section("Composite functions"),
    18: _section("RepDL's graphs"),
}
#: Of repjax's own primitives that no stock one has the name of.
_OWN = {
    **dict.fromkeys(("canonicalize", "materialize"), 1),
    **dict.fromkeys(("fma", "add_n", "pow_integer"), 2),
    **{row.name: 3 for row in TABLE if not row.rule},
    **dict.fromkeys(("integer_dot_general", "integer_conv_general_dilated"), 5),
    **dict.fromkeys((f"scatter_{x}" for x in ("add", "max", "min", "mul")), 7),
    **dict.fromkeys(("decayed_quotient", "decayed_root"), 18),
}
#: Of stock primitives that are exact.
_EXACT = {
    **dict.fromkeys(("abs", "clamp", "max", "min", "sign", "is_finite"), 2),
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne"), 2),
    **dict.fromkeys(("complex", "imag", "real"), 19),
    **dict.fromkeys(("random_clone", "random_unwrap", "random_wrap", "threefry2x32"), 10),
    **dict.fromkeys(("all_gather", "all_to_all", "axis_index", "ppermute"), 4),
}


@functools.cache
def _by_name() -> dict[str, int]:
    # ``pow`` stands in two; an integer exponent in the first of them.
    stock = {name: n for n, section in reversed(SECTIONS.items()) for name in section.names}
    return {**_EXACT, **_OWN, **stock, "pow": 3}


def anchor(number: int) -> str:
    """The heading of a section, as links to it have it."""
    title = f"{number}. {SECTIONS[number].title}"
    return re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")


def _types(equation) -> list[Any]:
    return [v.aval.dtype for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "dtype")]


def _any_is(equation, kind) -> bool:
    return any(jax.dtypes.issubdtype(d, kind) for d in _types(equation))


def is_exact(equation) -> bool:
    """Whether repjax takes the operation as it stands, for these types."""
    name = equation.primitive.name
    if name in tables.EXACT or name.startswith(f"{tables.PREFIX}exact_"):
        return True
    return name in tables.EXACT_ON_INTEGERS and not _any_is(equation, jax.numpy.inexact)


def section_of(equation) -> int:
    """The section of docs/numerics.md that says what an equation gives."""
    name = short(equation.primitive.name)
    if _any_is(equation, jax.numpy.complexfloating):
        return 19
    if is_exact(equation) and name not in tables.EXACT:
        return _EXACT.get(name, 11)
    if name == "pow" and jax.dtypes.issubdtype(equation.invars[1].aval.dtype, jax.numpy.integer):
        return 2
    if (number := _by_name().get(name)) is not None:
        return number
    if name in tables.EXACT:
        return 8
    return 11 if name in tables.EXACT_ON_INTEGERS else 12


#: How the docs state what an operation gives, word by word; of those with orders, by the order.
FORMULAS = {
    "add": "flush(RN(x + y))",
    "add_any": "flush(RN(x + y))",
    "sub": "flush(RN(x - y))",
    "mul": "guard(RN(x * y))",
    "square": "guard(RN(x * x))",
    "div": "guard(RN(x / y))",
    "sqrt": "guard(RN(sqrt x))",
    "rsqrt": "1 / sqrt x in float64, both steps rounded, then guard(RN(...))",
    "one_minus_square": "guard(RN(1 - x**2)), one rounding",
    "fma": "guard(RN(a * b + c)), one rounding",
    "add_n": "flush(RN(x[0] + ... + x[n - 1])), one rounding, whatever the order of the terms",
    "reduce_sum pairwise": "pad x with +0 to the next power of two, 2h elements; replace it by "
    "add(x[:h], x[h:]); repeat until one is left",
    "reduce_sum sequential": "s = +0; s = add(s, x[k]) for k = 0, ..., n - 1",
    "reduce_sum order_independent": "the exact sum of the x, each rounded to the nearest multiple "
    "of 2**(E - t), ties to even",
    "reduce_sum exact": "guard(RN(the exact sum of the x))",
    **dict.fromkeys(
        ("dot_general exact", "conv_general_dilated exact"),
        "guard(RN(the exact sum of the exact products))",
    ),
    **dict.fromkeys(
        ("dot_general sequential", "conv_general_dilated sequential"),
        "s = +0; s = fma(a[k], b[k], s) for k = 0, ..., K - 1; result = guard(s)",
    ),
    **dict.fromkeys(
        ("dot_general order_independent", "conv_general_dilated order_independent"),
        "The operands are therefore rounded to integers on common grids, one for each row and each "
        "column, their products are added exactly, and the sum is rounded once.",
    ),
}
_ROWS = {row.name: f"{row.formula}, correctly rounded" for row in TABLE}


def formula_of(equation, orders: tuple[str, str]) -> str:
    """How the docs state what an equation of floats gives, or nothing."""
    if section_of(equation) not in (2, 3, 4, 5):
        return ""
    name = short(equation.primitive.name)
    known = [f"{name} {order}" for order in _orders_of(equation, orders)]
    found = next((FORMULAS[x] for x in (name, *known) if x in FORMULAS), _ROWS.get(name, ""))
    inexact = jax.dtypes.issubdtype(equation.outvars[0].aval.dtype, jax.numpy.inexact)
    return found if inexact else ""


def _orders_of(equation, orders: tuple[str, str]) -> list[str]:
    """The orders of sums and of products: the equation's own, or these."""
    names = ("accumulation", "contraction")
    return [equation.params.get(k) or v for k, v in zip(names, orders, strict=True)]


# --- the code ---------------------------------------------------------------------------

#: The folders of the library, by their names in the source tree; installed, one is in the other.
_FOLDERS = {
    "primitives": pathlib.Path(repjax.primitives.__file__).parent,
    "repjax": pathlib.Path(__file__).parent.parent,
}


def _code(function, orders: list[str]) -> str | None:
    """``file:line`` of a function, or of the one that it was made of, in one of these orders."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    inner = inspect.getclosurevars(function).nonlocals
    by_order = inner.get("functions") or inner.get("orders") or {}
    made_of = next((by_order[x] for x in orders if x in by_order), inner.get("function"))
    if callable(made_of):
        return _code(made_of, orders)
    path = pathlib.Path(code.co_filename)
    name, folder = next((x for x in _FOLDERS.items() if path.is_relative_to(x[1])), ("", "/"))
    shown = pathlib.PurePosixPath(name, path.relative_to(folder).as_posix())
    return f"{shown}:{code.co_firstlineno}"


def body_of(equation, orders: tuple[str, str]) -> str | None:
    """``file:line`` of the body of an equation's primitive, or of its rule."""
    name, orders = equation.primitive.name, _orders_of(equation, orders)
    if section_of(equation) == 19 and name in tables.COMPLEX:
        return _code(tables.COMPLEX[name], orders)
    known = primitive_of(equation)
    if known is not None and known in tables.BODIES:
        return _code(tables.BODIES[known].__self__.body, orders)
    all_tables = tables.EXACT, tables.EXACT_ON_INTEGERS, tables.RULES
    for table in all_tables if is_exact(equation) else all_tables[::-1]:
        if name in table:
            return _code(table[name], orders)
    return None


def primitive_of(equation) -> Any:
    """repjax's primitive for an equation, or None for what is exact."""
    if is_exact(equation):
        return None
    return tables.PRIMITIVES.get(short(equation.primitive.name).replace("scatter-", "scatter_"))


# --- what computes it -------------------------------------------------------------------


def in_groups(name: str) -> bool:
    """Whether the C++ kernel of elementwise operations computes a primitive."""
    return not {name, tables.PREFIX + name}.isdisjoint(bytecode.NAMES)


def computed_by(name: str) -> str:
    """What there is for a primitive on CPUs."""
    if name in tables.ADVICE:
        return "refused"
    primitive = tables.PRIMITIVES.get(name)
    if library.available():
        if primitive is not None and tables.KERNELS["cpu"](primitive):
            return "repjax: a kernel"
        if in_groups(name):
            return "repjax: a kernel, of groups"
    if primitive is not None:
        return "repjax: XLA compiles its body"
    known = name in tables.RULES or name in tables.EXACT
    return "repjax: by its rule" if known else "no rule of repjax"
