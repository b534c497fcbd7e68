"""``repjax.nn.convert``: any Flax Linen module made reproducible throughout."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import linen

from repjax.config import is_enabled
from repjax.nn.lifting import Drawing, method, methods

M = TypeVar("M")


def convert(module: M) -> M:
    """A Linen module, or a class of modules, made reproducible throughout.

    All that it computes is covered: the modules inside it and its own arithmetic between them, in
    ``init``, ``apply`` with any ``method=``, and ``bind``.  The result is a subclass of the given
    class, or an instance of one, with the same fields, names, parameter trees and collections; it
    may be differentiated, batched, compiled, and stand inside other modules.

    Args:
      module: an instance of ``flax.linen.Module``, bound or not, a subclass of it, or a
        ``functools.partial`` of a subclass.

    Raises:
      TypeError: if it is none of these.
      RefusedError: by its methods, listing the operations that have no reproducible form, with the
        file and the line of each.

    Example::

        model = repjax.nn.convert(Model(width=8))
        variables = model.init(jax.random.key(0), x)
    """
    if isinstance(module, functools.partial) and _is_class(module.func):
        return functools.partial(convert(module.func), *module.args, **module.keywords)
    if _is_class(module):
        return _subclass(module)
    if not isinstance(module, linen.Module):
        raise TypeError(
            "repjax.nn.convert: expected a flax.linen Module or a class of modules, received "
            f"{module if isinstance(module, type) else type(module).__name__}; make a function of "
            "arrays reproducible by repjax.reproducible"
        )
    if isinstance(module, _Converted):
        return module
    fields = {f.name: getattr(module, f.name) for f in _fields(module)}
    fields["parent"] = module.parent if module.scope is None else module.scope
    return convert(type(module))(**fields)


def _is_class(x: Any) -> bool:
    return isinstance(x, type) and issubclass(x, linen.Module)


def _fields(module: linen.Module):
    return [f for f in module.__dataclass_fields__.values() if f.init]


class _Converted(Drawing):
    """What converted classes have beyond their methods."""

    def apply(self, *args, method=None, **kwargs):
        return super().apply(*args, method=self._reproducible(method), **kwargs)

    def init(self, *args, method=None, **kwargs):
        return super().init(*args, method=self._reproducible(method), **kwargs)

    def init_with_output(self, *args, method=None, **kwargs):
        return super().init_with_output(*args, method=self._reproducible(method), **kwargs)

    def _reproducible(self, name: str | Callable[..., Any] | None):
        """What to give Flax as ``method=``: also functions that are no methods of this class."""
        if not isinstance(name, str):
            return method(getattr(name, "__func__", name)) if callable(name) else name
        if name not in self.__dataclass_fields__ and hasattr(type(self), name):
            return method(getattr(type(self), name))
        return method(lambda module, *args, **kwargs: getattr(module, name)(*args, **kwargs))

    def __getattribute__(self, name: str):
        return _view(self, name, super().__getattribute__(name))

    def __getattr__(self, name: str):  # of what ``setup`` makes
        return _view(self, name, super().__getattr__(name))


def _view(module: _Converted, name: str, value: Any) -> Any:
    """The attribute of a module as it is seen from outside: modules in it are converted, too."""
    attributes = {} if name.startswith("_") or name == "parent" else module.__dict__
    if name not in attributes or attributes.get("scope") is None or is_enabled():
        return value
    if module._state.in_setup or not _holds_bound(value):
        return value
    views = attributes.setdefault("_views", {})

    def convert_once(x):
        if not _holds_bound(x) or isinstance(x, _Converted):
            return x
        if x._id not in views:
            views[x._id] = convert(x)
            # Flax knows modules that are used in several places by their ids.
            object.__setattr__(views[x._id], "_id", x._id)
        return views[x._id]

    return jax.tree.map(convert_once, value)


def _holds_bound(value: Any) -> bool:
    """Whether there is a module bound to variables in a tree."""
    return any(isinstance(x, linen.Module) and x.scope is not None for x in jax.tree.leaves(value))


@functools.cache
def _subclass(module: type[linen.Module]) -> type[linen.Module]:
    if issubclass(module, _Converted):
        return module
    names = {
        "__module__": module.__module__,
        "__qualname__": module.__qualname__,
        "__doc__": module.__doc__,
    }
    return type(module.__name__, (_Converted, module), {**names, **methods(module)})
