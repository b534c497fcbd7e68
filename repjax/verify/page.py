"""Pages of HTML that need nothing from elsewhere: what ``compare --html`` and ``report`` write.

All that is shown goes through :func:`escape`.  What is the same and what differs is said in words
and by a sign, not by a colour alone.  Colours are variables of the style, so that figures, too,
follow the reader's choice of light or dark; on paper all is light.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Of lines in figures, for light and for dark pages.
SERIES = (
    ("#0b62a8", "#6db3f2"),
    ("#c04a06", "#f59356"),
    ("#0a7457", "#4cc9a0"),
    ("#84469f", "#cda3e6"),
    ("#8a6200", "#e0b64e"),
    ("#ad2a66", "#f487b6"),
    ("#3d5a6c", "#a9c1cf"),
    ("#55700c", "#afcd63"),
)
#: Other colours: their names, for light and for dark pages.
COLOURS = {
    "ink": ("#1b1f24", "#e6e8eb"),
    "muted": ("#59636e", "#a3adb8"),
    "rule": ("#d5dae0", "#3a4149"),
    "paper": ("#ffffff", "#15181c"),
    "wash": ("#f4f6f8", "#1e2227"),
    "same": ("#14622d", "#6fd08c"),
    "differ": ("#a3121f", "#ff8f8f"),
}

#: Characters of a line that is not broken.
SHORT = 28


def _variables(which: int) -> str:
    colours = {name: pair[which] for name, pair in COLOURS.items()}
    colours |= {f"series-{i}": pair[which] for i, pair in enumerate(SERIES)}
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_STYLE = (
    f"""
:root {{ color-scheme: light dark; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(1)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(0)} }} }}
"""
    + """
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  color: var(--ink); background: var(--paper); margin: 0 auto; padding: 2rem 1.25rem 4rem;
  max-width: 72rem; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: 1rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.75rem 0 .25rem; }
p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; }
a { color: var(--series-0); }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.45; }
caption { text-align: left; color: var(--muted); padding: .25rem 0; }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .75rem .3rem 0; text-align: left;
  vertical-align: top; }
thead th { border-bottom: 2px solid var(--muted); }
tbody th { font-weight: 500; }
tbody td, tbody th { font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
  min-width: 14rem; }
tbody .short { white-space: pre; min-width: 0; }
.same { color: var(--same); } .differ { color: var(--differ); font-weight: 600; }
.figures { display: grid; gap: 1.25rem 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
figure { margin: .75rem 0; min-width: 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figure .wide { overflow-x: auto; } figure .wide svg { min-width: 44rem; }
figcaption { font-size: .875rem; color: var(--muted); max-width: 60rem; }
figcaption b { color: var(--ink); font-weight: 600; }
@media (max-width: 40rem) { body { padding: 1.25rem .875rem 3rem; } h1 { font-size: 1.4rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  .scroll, figure .wide { overflow: visible; } figure .wide svg { min-width: 0; }
  thead { display: table-header-group; } tr { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; } }
"""
)


class Mark(NamedTuple):
    """A cell that says whether something is the same; ``text`` instead of the word for it."""

    same: bool
    text: str = ""


def plain(text: str) -> str:
    """The text, with what no page can hold (control characters, halves of pairs) replaced."""
    return "".join(
        "\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text
    )


def escape(text: str) -> str:
    return html.escape(plain(text))


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def mark(same: bool, text: str = "") -> str:
    kind, sign, word = ("same", "✓", "same") if same else ("differ", "✗", "different")
    return f'<span class="{kind}">{sign} {escape(text or word)}</span>'


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Mark]],
) -> str:
    """A table whose first column names the rows; empty without rows.

    Short lines of cells are not broken; the table is wider than a narrow screen instead.
    """
    lines = []
    for first, *others in rows:
        head = f'<th scope="row"{_short(first)}>{escape(first)}</th>'
        lines.append(f"<tr>{head}{''.join(map(_cell, others))}</tr>")
    if not lines:
        return ""
    top = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    # The box can be scrolled by keys where the table is wider than the screen.
    label = f'role="region" aria-label="{escape(caption)}" tabindex="0"'
    return (
        f'<div class="scroll" {label}><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead>\n<tbody>" + "\n".join(lines) + "</tbody></table></div>"
    )


def _cell(x: str | Mark) -> str:
    if isinstance(x, Mark):
        return f"<td{_short(x.text)}>{mark(*x)}</td>"
    return f"<td{_short(x)}>{escape(x)}</td>"


def _short(text: str) -> str:
    longest = max(map(len, text.splitlines()), default=0)
    return ' class="short"' if longest <= SHORT else ""


def figure(drawing: str, title: str, text: str, *, wide: bool = False) -> str:
    """A drawing (SVG, with its own description) and what it shows."""
    box = f'<div class="wide">{drawing}</div>' if wide else drawing
    caption = f"<figcaption><b>{escape(title)}.</b> {escape(text)}</figcaption>"
    return f"<figure>{box}{caption}</figure>"


class Section(NamedTuple):
    """A part of a page: its title, and its content as HTML."""

    title: str
    content: str


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """A whole page; sections without content are left out.

    Args:
      title: a text.
      introduction: HTML.
      sections: in their order.
    """
    shown = [(f"section-{i}", s) for i, s in enumerate(sections) if s.content]
    links = "".join(f'<li><a href="#{at}">{escape(s.title)}</a></li>' for at, s in shown)
    parts = "\n".join(
        f'<section id="{at}"><h2>{escape(s.title)}</h2>\n{s.content}</section>' for at, s in shown
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<header><h1>{escape(title)}</h1>\n{introduction}</header>\n"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n<main>\n{parts}\n</main>\n'
        "</body></html>\n"
    )
