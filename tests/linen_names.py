"""What becomes of each name of ``flax.linen``, as docs/layers.md lists it.

python tests/linen_names.py     write the table of docs/layers.md
"""

from __future__ import annotations

import pathlib

from repjax.nn import names

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "layers.md"
BEGIN, END = "<!-- names -->\n", "<!-- end of names -->"

_LAYERS = "subclasses of Flax's: the same fields, parameters and collections"
_DRAWS = "reproducible, wherever they are called; and all others of `initializers`"


def _line(what: str, found, note: str) -> str:
    listed = ", ".join(f"`{name}`" for name in sorted(found))
    return f"| {what} | {listed} | {note} |"


def table() -> str:
    """The rows of :mod:`repjax.nn.names`, with the layers of the installed Flax."""
    rows = names.rows()
    layers = {name for name, row in rows.items() if row == "layer"}
    refused = {name for name in layers if "Fp8" in name}
    lines = [
        "| | names | what `repjax.nn` has |",
        "|---|---|---|",
        _line("layers", layers - refused, _LAYERS),
        _line("layers of 8 bits", refused, "likewise, and refused where they compute"),
        _line("functions", names.FUNCTIONS | names.SOWING, "of arrays, reproducible"),
        _line("initializers", names.INITIALIZERS | names.FACTORIES, _DRAWS),
        _line("namespaces", names.NAMESPACES, "with the above in them"),
        *(_line(what, group, "Flax's own") for what, group in names.UNCHANGED.items()),
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the table of the code."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
