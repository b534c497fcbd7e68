"""The reference: a page of each public module, with every public name, from the code itself.

What is written in a file is shown by mkdocstrings, from the source.  What is made in a loop from
JAX's and Flax's names is in no source, so its pages come from the objects: sections for those of
JAX, whose arguments may differ, and tables for those of Flax, whose arguments are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator

#: The public modules, and the one of which each has the names.
MODULES = {
    "repjax": None,
    "repjax.lax": "jax.lax",
    "repjax.numpy": "jax.numpy",
    "repjax.nn": "flax.linen",
    "repjax.nnx": "flax.nnx",
    "repjax.optim": "optax",
    "repjax.repdl": None,
    "repjax.exact": None,
    "repjax.checkpoint": None,
    "repjax.verify": None,
    "repjax.models": None,
}
#: Values, which cannot have a docstring.
CONSTANTS = {
    "repjax.CONTRACT_VERSION": "The version of the contract ([numerics](../numerics.md)), an "
    "integer. Results of one version have the same bits in every version of repjax.",
    "repjax.__version__": "The version of repjax, a string.",
}
#: A role of reStructuredText, or a link.
_ROLE = re.compile(r"(?::\w+:)?`~?([^`<]+?)\s*(?:<[^`]*>)?`_?_?(?!`)")
_SECTION = re.compile(r"(Args|Arguments|Attributes|Raises|Returns|References|Example|Yields)\b.*:")


def markdown(text: str) -> str:
    """A docstring with roles and literal blocks as Markdown has them."""
    text = re.sub(r"(?<![`:])`([^`<]+?)\s+<(https?:[^`>]+)>`__?", r"[\1](\2)", text)
    text = re.sub(r":\w+:`~?([^`<]+?)\s*(?:<[^`]*>)?`", r"`\1`", text)
    text = re.sub(r"\\(?:mathrm|operatorname)\{(\w+)\}", r"\1", text)  # names in formulas
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def public(module: types.ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or else what it defines."""
    names = getattr(module, "__all__", None)
    return sorted(names or _defined(module), key=lambda name: (name.lower(), name))


def _defined(module: types.ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _stock(module: str, name: str):
    """What a public name is the twin of; None if it is of repjax alone."""
    return (
        getattr(importlib.import_module(MODULES[module]), name, None) if MODULES[module] else None
    )


def undocumented(module: str) -> list[str]:
    """Public names of a module, and of its classes, that have no docstring of their own.

    A name that is the very object of JAX or Flax is documented there.
    """
    found = [] if importlib.import_module(module).__doc__ else [module]
    for name in public(importlib.import_module(module)):
        value = getattr(importlib.import_module(module), name)
        full, stock = f"{module}.{name}", _stock(module, name)
        if stock is value and value is not None:
            continue
        if not (CONSTANTS.get(full) or _documented(value)):
            found.append(full)
        if inspect.isclass(value) and stock is None:
            found += [f"{full}.{method}" for method in _bare_methods(value)]
    return found


def _documented(value) -> bool:
    if isinstance(value, str | int | float | tuple | dict):
        return False  # its docstring is its type's
    text = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    made = dataclasses.is_dataclass(value) and (text or "").startswith(f"{value.__name__}(")
    return bool(text) and not made


def _bare_methods(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        method = inspect.isfunction(value) or isinstance(
            value, (property, classmethod, staticmethod, functools.cached_property)
        )
        if method and not name.startswith("_") and not inspect.getdoc(getattr(cls, name)):
            yield name


def pages() -> dict[str, str]:
    """The pages of the reference, by the paths that they have in docs/.

    Raises:
      ValueError: a public name without a docstring.
    """
    bare = [name for module in MODULES for name in undocumented(module)]
    if bare:
        raise ValueError(f"expected a docstring for every public name, received none: {bare}")
    found = {f"reference/{module}.md": _page(module) for module in MODULES}
    return found | {"reference/index.md": _index()}


def _index() -> str:
    return (
        "# Reference\n\nEvery public name, by module. What a name computes is defined in "
        f"[numerics](../numerics.md).\n\n{_links(MODULES)}\n"
    )


def _links(modules: Iterable[str]) -> str:
    return "| module | |\n|---|---|\n" + "\n".join(
        f"| [`{module}`]({module}.md) | {_summary(importlib.import_module(module))} |"
        for module in modules
    )


def _page(module: str) -> str:
    value = importlib.import_module(module)
    parts = [f"# `{module}`", _text(inspect.getdoc(value))]
    show = {"jax": _section, "flax": None}.get((MODULES[module] or "").partition(".")[0], _member)
    names = public(value)
    if show is None:
        own = [name for name in names if _stock(module, name) is None]
        parts += [_member(module, name) for name in own]
        parts += _tables(module, [name for name in names if name not in own])
    else:
        inner = [f"{module}.{name}" for name in names if f"{module}.{name}" in MODULES]
        parts += [show(module, name) for name in names if f"{module}.{name}" not in inner]
        parts += [f"## Modules\n\n{_links(inner)}"] if inner else []
    return "\n\n".join(parts) + "\n"


def _member(module: str, name: str) -> str:
    """By mkdocstrings, where a name is defined in a file; else from the object."""
    full, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
    if full in CONSTANTS:
        return f"## `{full}`\n\n{CONSTANTS[full]} Here: `{value!r}`."
    if not (_defines(value) and getattr(value, "__module__", "").startswith("repjax")):
        return _section(module, name)
    # In the source tree `primitives` and `models` stand beside `repjax` (see pyproject.toml).
    place = re.sub(r"^repjax\.(?=primitives|models)", "", value.__module__)
    return (
        f"::: {place}.{value.__qualname__}\n    options:\n"
        f"      heading: {full}\n      toc_label: {name}"
    )


def _defines(value) -> bool:
    """Whether the module that an object names has it in its source."""
    try:
        source = inspect.getsource(importlib.import_module(value.__module__))
    except (AttributeError, OSError, TypeError):
        return False
    return bool(re.search(rf"^(?:def|class) {value.__name__}\b", source, re.MULTILINE))


def _section(module: str, name: str) -> str:
    value = getattr(importlib.import_module(module), name)
    text, library = inspect.getdoc(value), value.__module__.partition(".")[0]
    if _stock(module, name) is not None or library != "repjax":
        # Another library's words are on its pages: here is what it is, and what repjax adds.
        first, _, rest = text.partition("\n\n")
        added = re.search(r"^Args beyond those.*", rest, re.MULTILINE | re.DOTALL)
        where = f"{MODULES[module] if _stock(module, name) else library}.{name}"
        link = f"Reproducible form of {_linked(where)}, with its arguments"
        text = f"{first}\n\n{link}{' and these:' if added else '.'}"
        text = _text(text) + ("\n\n" + _text(added[0].partition("\n")[2]) if added else "")
    else:
        text = _text(text)
    return f"## `{name}`\n\n```python\n{module}.{name}{_signature(value)}\n```\n\n{text}"


def _linked(name: str) -> str:
    if name.startswith("jax."):
        return f"[`{name}`](https://docs.jax.dev/en/latest/_autosummary/{name}.html)"
    return f"`{name}`"


def _signature(value: Callable) -> str:
    """Names and defaults; types are in the stubs, and JAX's own arguments begin with ``_``."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception, for which Python has none
        return ""
    shown = [p for p in signature.parameters.values() if not p.name.startswith("_")]
    bare = [p.replace(annotation=p.empty) for p in shown]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _tables(module: str, names: list[str]) -> list[str]:
    """Of names that are Flax's: what computes, made reproducible, and the rest."""
    value, flax = importlib.import_module(module), MODULES[module]
    same = [name for name in names if getattr(value, name) is _stock(module, name)]
    twins = [name for name in names if name not in same]
    kinds = [
        (f"Reproducible forms of `{flax}`", twins, "Arguments and results are those of Flax."),
        (f"Names of `{flax}` itself", same, "The very objects of Flax."),
    ]
    return [
        f"## {title}\n\n{says}\n\n| name | |\n|---|---|\n"
        + "\n".join(f"| `{name}` | {_summary(getattr(value, name))} |" for name in members)
        for title, members, says in kinds
    ]


def _summary(value) -> str:
    """The first sentence of a docstring, as a cell of a table."""
    if isinstance(value, str):
        return f"`{value!r}`"
    if isinstance(value, types.ModuleType) and not value.__doc__:
        return "A module."
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    paragraphs = inspect.cleandoc(own or "").split("\n\n")
    if paragraphs[0].startswith("Reproducible ``") and len(paragraphs) > 1:
        paragraphs = paragraphs[1:]
    if re.match(r"\w+\((\w+: |\))|\.\. ", paragraphs[0]):
        return ""  # what a dataclass makes of its fields, or a mark: no sentence
    sentence = re.split(r"(?<=\.)\s|:$", " ".join(paragraphs[0].split()))[0]
    sentence = _ROLE.sub(r"`\1`", sentence.replace("``", "`"))
    # What is Markdown outside of code, in the words of others.
    parts = re.split(r"(`[^`]*`)", sentence)
    parts[::2] = [re.sub(r"([\[\]<>*_\\])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|")


def _text(text: str) -> str:
    """A docstring in Google's style as Markdown: lists of arguments, code, paragraphs."""
    blocks = []
    for block in markdown(text).split("\n\n"):
        head, _, rest = block.partition("\n")
        if _SECTION.fullmatch(head) and rest:
            blocks += [f"**{head}**", _items(rest)]
        elif re.match(r" +\w[\w, *]*: ", block):
            blocks.append(_items(block))
        elif head.startswith("==="):
            blocks.append(f"```text\n{block}\n```")
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def _items(text: str) -> str:
    """``name: what it is``, with lines that go on, as a list; other text as it is."""
    text = textwrap.dedent(text)
    if not re.match(r"[\w*]+[\w, *]*: ", text):
        return text
    items = re.split(r"\n(?=\S)", text)
    return "\n".join(
        re.sub(r"^([^:]+): ", r"- `\1`: ", " ".join(item.split()), count=1) for item in items
    )
