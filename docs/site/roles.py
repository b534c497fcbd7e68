"""Docstrings as Markdown: they are written as reStructuredText has it, with few of its marks."""

from __future__ import annotations

import re

import griffe

_ROLE = re.compile(r":\w+:`~?([^`<]+?)(?: <[^`]*>)?`")


def markdown(text: str) -> str:
    """A docstring with roles and literal blocks as Markdown has them."""
    return re.sub(r"::$", ":", _ROLE.sub(r"`\1`", text), flags=re.MULTILINE)


class Roles(griffe.Extension):
    def on_object(self, *, obj, loader, **_) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
