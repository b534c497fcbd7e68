"""Docstrings as Markdown: they are written as reStructuredText has it, with few of its marks."""

from __future__ import annotations

import griffe
from public_names import markdown  # which hooks.py has imported


class Roles(griffe.Extension):
    def on_object(self, *, obj, loader, **_) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
