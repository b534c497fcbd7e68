"""The stock primitives that repjax covers, as docs/primitives.md lists them.

python tests/stock_primitives.py     write docs/primitives.md, and the tables of elementary
                                     functions in docs/numerics.md, section 3
"""

from __future__ import annotations

import pathlib
import re
import textwrap
from collections.abc import Iterable

import repjax  # noqa: F401 - which fills the tables
from repjax.primitives.core.tables import COMPLEX, EXACT, EXACT_ON_INTEGERS, RULES, STRUCTURAL
from repjax.primitives.operations.elementary.table import TABLE
from repjax.verify.definitions import SECTIONS, anchor

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGE = DOCS / "primitives.md"
NUMERICS = DOCS / "numerics.md"

_PAGE = """# Stock primitives

Every primitive of JAX that repjax covers. Any other one is refused
([section 13](numerics.md#13-what-is-refused)), unless JAX or another library defines the primitive
as a function written in JAX ([section 12](numerics.md#12-composite-functions)). References
(`jax.new_ref`) are turned into values first, so that reading, writing and adding in place are
`gather`, `scatter`, `add` and the like.

[coverage.md](coverage.md) has the same by function of `jax.numpy` and its relatives.
`python tests/stock_primitives.py` writes this page from the tables of the code, and
`tests/project/test_docs.py` compares the two.

## With a definition for floating-point operands

| section of the contract | primitives |
|---|---|
{sections}

## Made of other programs, which are interpreted

{interpreted}

## Taken as they stand, whatever the operands

{exact}

## Taken as they stand where no operand or result is floating-point

{integers}

## Defined for complex numbers, besides data movement

[Section 19](numerics.md#19-complex-numbers-and-fourier-transforms) defines them.

{complex}
"""


def sections() -> dict[int, str]:
    """The text of each section of docs/numerics.md, its title first."""
    parts = re.split(r"^## (?=\d)", NUMERICS.read_text(), flags=re.MULTILINE)
    return {int(part.split(".")[0]): part for part in parts[1:]}


def page() -> str:
    """The text of docs/primitives.md."""
    rows = [
        f"| [{number}. {section.title}](numerics.md#{anchor(number)}) | {_list(section.names)} |"
        for number, section in SECTIONS.items()
        if section.names
    ]
    defined = _defined()
    return _PAGE.format(
        sections="\n".join(rows),
        interpreted=_paragraph(STRUCTURAL - defined),
        exact=_paragraph(EXACT),
        integers=_paragraph(EXACT_ON_INTEGERS),
        complex=_paragraph(COMPLEX),
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _paragraph(names: Iterable[str]) -> str:
    return textwrap.fill(_list(names), 100, break_on_hyphens=False)


def _defined() -> set[str]:
    return {name for section in SECTIONS.values() for name in section.names}


def undefined() -> set[str]:
    """Rules for floating-point operands that no section is said to define, and the reverse."""
    defined = _defined()
    return (RULES.keys() - STRUCTURAL - defined) | (defined - RULES.keys() - COMPLEX.keys())


_HEAD = "| primitive | f | special values | file |\n|---|---|---|---|\n"


def numerics() -> str:
    """The text of docs/numerics.md with the rows of elementary functions of the code."""
    before, *tables = NUMERICS.read_text().split(_HEAD)
    text = before
    for arity, table in enumerate(tables, 1):
        rest = table[table.index("\n\n") + 1 :]
        text += _HEAD + "".join(_row(row) for row in TABLE if row.arity == arity) + rest
    return text


def _row(row) -> str:
    name = row.name if row.rule else f"repjax.lax.{row.name}"
    file = f"primitives/operations/elementary/{row.name}.py"
    return f"| `{name}` | {row.formula} | {row.specials} | `{file}` |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    NUMERICS.write_text(numerics())
