"""Every public name has a docstring and a place in the site's reference."""

from __future__ import annotations

import dataclasses
import importlib
import re

import pytest

import repjax
from helpers.paths import ROOT
from repjax import exact


@pytest.fixture
def names(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    return importlib.import_module("public_names")


def test_the_modules_are_the_public_ones(names):
    assert set(names.MODULES) == {"repjax", *(f"repjax.{name}" for name in repjax._MODULES)}


def test_every_public_name_has_a_docstring(names):
    assert [name for module in names.MODULES for name in names.undocumented(module)] == []


def test_every_public_name_is_in_the_reference(names):
    pages = names.pages()
    for module in names.MODULES:
        page = pages[f"reference/{module}.md"]
        heading = r"^(?:## `|\| `|      toc_label: )(?:{0}\.)?({1})\b"
        for name in names.public(importlib.import_module(module)):
            if f"{module}.{name}" in names.MODULES:
                assert f"reference/{module}.{name}.md" in pages
            else:
                pattern = heading.format(re.escape(module), re.escape(name))
                assert len(re.findall(pattern, page, re.MULTILINE)) == 1, name


def test_the_reference_is_the_same_in_every_process(names):
    """No address of an object, which a default or a class shows where it has no name."""
    assert [name for name, page in names.pages().items() if " at 0x" in page] == []


def test_what_has_no_docstring_is_noticed(names, monkeypatch):
    def bare(x):
        return x

    @dataclasses.dataclass
    class Fields:
        x: int = 0

    class Documented:
        """It has one, and its method none."""

        def method(self):
            return None

    for name, value in {"bare": bare, "Fields": Fields, "Documented": Documented, "N": 3}.items():
        if not isinstance(value, int):
            monkeypatch.setattr(value, "__module__", exact.__name__)
        monkeypatch.setattr(exact, name, value, raising=False)
    monkeypatch.setattr(exact, "__all__", ["bare", "Fields", "Documented", "N"], raising=False)
    missing = ["repjax.exact.bare", "repjax.exact.Fields", "repjax.exact.Documented.method"]
    assert sorted(names.undocumented("repjax.exact")) == sorted([*missing, "repjax.exact.N"])
    with pytest.raises(ValueError, match=r"repjax\.exact\.bare"):
        names.pages()


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        ("See :func:`f` and :class:`~a.B`.", "See `f` and `a.B`."),
        ("Thus::\n\n    f(1)", "Thus:\n\n    f(1)"),
        ("Args:\n  x: the one,\n    of two\n  y: other", "**Args:**\n\n- `x`: the one, of two\n"),
        ("`Page\n<https://a.b>`_", "[Page](https://a.b)"),
    ],
)
def test_docstrings_as_markdown(names, docstring, page):
    assert names._text(docstring).startswith(page)
