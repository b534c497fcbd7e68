"""Write the elementary functions of the C++ kernel.

    python -m repjax.primitives.cpu.write_elementary

``primitives/cpu/native/elementary-inl.h`` holds the bodies of the functions in
``bytecode.ELEMENTARY`` and ``bytecode.SPECIAL``, operation by operation, for vectors of any width.
Where the only use of a product is in a sum, the two are one fused multiply-add if the processor has
it: the bodies of elementary functions round correctly with any of them fused.  Those of special
functions do not, and nothing is fused there.
"""

from __future__ import annotations

import collections
import importlib
import pathlib
import re
import textwrap
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal
from jax.interpreters import partial_eval

from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.cpu.bytecode import ELEMENTARY, OF_TWO, SPECIAL
from repjax.primitives.operations.special import bessel

PATH = pathlib.Path(__file__).parent / "native" / "elementary-inl.h"
#: The list of the functions, for what numbers and names operations.
LIST = PATH.with_name("instruction_sets.h")

_HEADER = """\
// Written by repjax.primitives.cpu.write_elementary from the bodies of the elementary functions in
// repjax.primitives.operations.elementary, which say what they compute and what is proven.
//
// Included by several-inl.h.
"""

_TYPES = {
    **{"float32": "Narrow", "int32": "NarrowBits"},
    **{"float64": "Wide", "int64": "Long", "uint64": "Long"},
}
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {name: name for name in ("floor", "abs", "sign", "min", "max", "clamp")}
_CALLS["sqrt"] = "root"


class _Writer:
    """The statements of one function; whether products may be fused with sums."""

    def __init__(self, fuses: bool):
        self.fuses = fuses
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.masks: dict[Any, str] = {}  # of comparisons, their types
        self.full: set[Any] = set()  # integers of 64 bits whose bits are put together
        self.constants: dict[Any, Any] = {}
        self.products: dict[Any, tuple[str, str]] = {}  # that are used once, in a sum

    def read(self, atom) -> str:
        if isinstance(atom, Literal):
            return self._constant(atom.val, atom.aval.dtype)
        if atom in self.constants:
            return self._constant(self.constants[atom], atom.aval.dtype)
        return self.names[atom]

    def mask(self, atom, to: str) -> str:
        """A comparison as a mask of elements of this type."""
        name, own = self.read(atom), self.masks[atom]
        if own == to:
            return name
        return f"widened({name})" if to == "Long" else f"narrowed({name})"

    @staticmethod
    def _constant(value, dtype) -> str:
        kind, number = _TYPES[np.dtype(dtype).name], np.asarray(value, dtype)[()]
        if isinstance(number, np.integer):
            text = f"INT64_C({number})" if kind == "Long" else str(number)
        elif np.isfinite(number):
            text = float(number).hex()
        elif np.isnan(number):
            text = '__builtin_nan("")'
        else:
            text = "__builtin_inf()" if number > 0 else "-__builtin_inf()"
        return f"full<{kind}>({text})"

    def write(self, jaxpr, names: dict[Any, str]) -> list[str]:
        """The statements; returns what the results are called."""
        self.names.update(names)
        uses = collections.Counter(v for v in jaxpr.outvars if not isinstance(v, Literal))
        users: dict[Any, list[str]] = collections.defaultdict(list)
        for equation in jaxpr.eqns:
            for v in equation.invars:
                if not isinstance(v, Literal):
                    uses[v] += 1
                    users[v].append(equation.primitive.name)
        for equation in jaxpr.eqns:
            (result,) = equation.outvars
            name = equation.primitive.name
            if name in ("jit", "pjit"):
                inner, consts = open_jaxpr(equation.params["jaxpr"])
                assert not consts
                self._call(inner, equation)
            elif name == "broadcast_in_dim" and self._is_constant(equation.invars[0]):
                (x,) = equation.invars
                self.constants[result] = x.val if isinstance(x, Literal) else self.constants[x]
            elif (
                self.fuses
                and name == "mul"
                and uses[result] == 1
                and users[result] in (["add"], ["sub"])
                and not np.issubdtype(result.aval.dtype, np.integer)
            ):
                self.products[result] = tuple(map(self.read, equation.invars))
                if result.aval.dtype != np.float64:
                    raise NotImplementedError(f"a sum of products of {result.aval.dtype}")
            else:
                kind, text = self._expression(equation)
                self.names[result] = f"v{len(self.lines)}"
                self.lines.append(f"const {kind} {self.names[result]} = {text};")
        return [self.read(v) for v in jaxpr.outvars]

    def _is_constant(self, atom) -> bool:
        return isinstance(atom, Literal) or atom in self.constants

    def _call(self, jaxpr, equation) -> None:
        for inner, outer in zip(jaxpr.invars, equation.invars, strict=True):
            if self._is_constant(outer):
                self.constants[inner] = getattr(outer, "val", self.constants.get(outer))
            elif outer in self.masks:
                self.masks[inner] = self.masks[outer]
        named = {
            inner: self.read(outer)
            for inner, outer in zip(jaxpr.invars, equation.invars, strict=True)
            if not self._is_constant(outer)
        }
        results = self.write(jaxpr, named)
        for v, inner, text in zip(equation.outvars, jaxpr.outvars, results, strict=True):
            self.names[v] = text
            if inner in self.masks:
                self.masks[v] = self.masks[inner]

    def _expression(self, equation) -> tuple[str, str]:
        """The type of an equation's result, and the expression."""
        name, operands, (result,) = equation.primitive.name, equation.invars, equation.outvars
        new, old = result.aval.dtype, operands[0].aval.dtype
        if new == np.bool_:
            if name in _COMPARISONS and old != np.bool_:
                if old == np.uint64 and name not in ("eq", "ne"):
                    raise NotImplementedError(f"{name} of {old}")
                kind = "Long" if old.itemsize == 8 else "NarrowBits"
                x, y = map(self.read, operands)
                text = f"{x} {_COMPARISONS[name]} {y}"
            elif name == "ne" and self._is_constant(operands[1]):
                kind, text = self.masks[operands[0]], self.read(operands[0])
                text = f"~{text}" if self.constants[operands[1]] else text
            elif name in ("and", "or", "xor", "not", "ne"):
                name = "xor" if name == "ne" else name
                kind = self.masks[operands[0]]
                text = f" {_OPERATORS.get(name)} ".join(self.mask(v, kind) for v in operands)
                text = f"~{text}" if name == "not" else text
            else:
                raise NotImplementedError(f"{name} of {old}")
            self.masks[result] = kind
            return kind, text
        kind = _TYPES[new.name]
        if name == "select_n":
            mask = self.mask(operands[0], "Long" if new.itemsize == 8 else "NarrowBits")
            return kind, f"where({mask}, {self.read(operands[2])}, {self.read(operands[1])})"
        if name in ("add", "sub") and (fused := self._fused(name, *operands)):
            return kind, fused
        x, *others = map(self.read, operands)
        if name in _OPERATORS:
            if name == "or" and new == np.int64:
                self.full.add(result)
            return kind, f"{x} {_OPERATORS[name]} {others[0]}"
        if name in ("neg", "not"):
            return kind, f"-{x}" if name == "neg" else f"~{x}"
        if name == "bitcast_convert_type":
            return kind, f"as<{kind}>({x})"
        if name == "convert_element_type":
            if {old, new} == {np.dtype(np.float64), np.dtype(np.int64)}:
                name = "integer" if new == np.int64 else "number"
                return kind, f"{'any_' if operands[0] in self.full else ''}{name}({x})"
            if new == np.float64:
                return kind, f"wide({x})"
            if new == np.uint64:
                return kind, f"widened({x})"
            return kind, f"narrow({x})"
        if name.startswith("shift_"):
            by = self.constants.get(operands[1], others[0])
            if name == "shift_right_logical":
                return kind, f"shift_right({x}, {by})"
            return kind, f"{x} {'<<' if name == 'shift_left' else '>>'} {by}"
        if name in _CALLS:
            return kind, f"{_CALLS[name]}({', '.join((x, *others))})"
        raise NotImplementedError(f"{name} of {old}")

    def _fused(self, name, x, y) -> str | None:
        sign = "" if name == "add" else "-"
        if self._is_product(x):
            a, b = self.products[x]
            return f"fused({a}, {b}, {sign}{self._product(y)})"
        if self._is_product(y):
            a, b = self.products[y]
            return f"fused({sign}{a}, {b}, {self.read(x)})"
        return None

    def _is_product(self, atom) -> bool:
        return not isinstance(atom, Literal) and atom in self.products

    def _product(self, atom) -> str:
        """An operand, which may be the second product of a sum."""
        if self._is_product(atom):
            a, b = self.products[atom]
            return f"({a} * {b})"
        return self.read(atom)


def _body(name: str):
    special = name.removeprefix("near_")
    if special in SPECIAL:
        return bessel(SPECIAL.index(special), jax.lax.mul, up_to_8=name != special)
    return importlib.import_module(f"repjax.primitives.operations.elementary.{name}").body


def source() -> str:
    """The text of ``primitives/cpu/native/elementary-inl.h``."""
    parts = [_HEADER]
    with jax.enable_x64(True):
        for name in (*ELEMENTARY, *OF_TWO, *SPECIAL, *(f"near_{name}" for name in SPECIAL)):
            operands = ("x", "y") if name in OF_TWO else ("x",)
            x = jax.ShapeDtypeStruct((1,), np.float32)
            jaxpr, _ = open_jaxpr(jax.make_jaxpr(_body(name))(*[x] * len(operands)))
            jaxpr, _ = partial_eval.dce_jaxpr(jaxpr, [True])
            writer = _Writer(fuses=not name.endswith(SPECIAL))
            (result,) = writer.write(jaxpr, dict(zip(jaxpr.invars, operands, strict=True)))
            lines = "\n".join(f"  {line}" for line in [*writer.lines, f"return {result};"])
            taken = ", ".join(f"Narrow {x}" for x in operands)
            parts.append(f"static inline Narrow {name}({taken}) {{\n{lines}\n}}\n")
    return "\n".join(parts)


def with_lists() -> str:
    """The text of ``primitives/cpu/native/instruction_sets.h``, with the functions in its lists."""
    text = LIST.read_text()
    lists = {"ELEMENTARY": ELEMENTARY, "ELEMENTARY_OF_TWO": OF_TWO, "SPECIAL": SPECIAL}
    for macro, names in lists.items():
        lines = textwrap.wrap(" ".join(f"of({name})" for name in names), 94)
        lines = [f"#define REPJAX_{macro}(of)", *(f"  {line}" for line in lines)]
        written = "".join(f"{line:<97}\\\n" for line in lines[:-1]) + f"{lines[-1]}\n"
        pattern = rf"#define REPJAX_{macro}\(of\) +\\\n(?:.*\\\n)*.*\n"
        text = re.sub(pattern, lambda _, written=written: written, text)
    return text


if __name__ == "__main__":
    PATH.write_text(source())
    LIST.write_text(with_lists())
