"""Functions and methods of Flax modules made reproducible.

Each goes through :func:`repjax.explicit.explicit`, unless repjax is active already, as it is
inside ``repjax.reproducible``, under the switch and inside another of them: then the stock one is
what runs, since all of it is made reproducible there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import linen
from flax.core import lift
from flax.linen.module import wrap_method_once
from flax.linen.transforms import decorator_lift_transform

from repjax.config import is_enabled
from repjax.explicit import compiled_when_repeated, explicit


def _apart(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``call`` made reproducible; what is no array among its results is handed over as it is."""
    others: list[Any] = []

    @functools.wraps(call)
    def of_arrays(*args, **kwargs):
        leaves, structure = jax.tree.flatten(call(*args, **kwargs))
        arrays = [x if isinstance(x, (jax.Array, np.ndarray)) else None for x in leaves]
        others[:] = structure, leaves, arrays
        return [x for x in arrays if x is not None]

    results = iter(explicit(of_arrays, listing=True)(*args, **kwargs))
    structure, leaves, arrays = others
    pairs = zip(leaves, arrays, strict=True)
    return structure.unflatten([x if a is None else next(results) for x, a in pairs])


def function(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A reproducible, differentiable twin of a function of arrays."""

    apart = compiled_when_repeated(functools.partial(_apart, stock), stock)

    @functools.wraps(stock)
    def twin(*args, **kwargs):
        return stock(*args, **kwargs) if is_enabled() else apart(*args, **kwargs)

    return twin


def sowing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """:func:`function`, of one with an argument ``module`` to which it may write."""
    plain, signature = function(stock), inspect.signature(stock)

    def of_module(module, **kwargs):
        return stock(**kwargs, module=module)

    lifted = method(of_module)

    @functools.wraps(stock)
    def twin(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        module = given.pop("module", None)
        return plain(**given) if module is None else lifted(module, **given)

    return twin


def factory(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes reproducible initializers where ``stock`` makes initializers."""

    @functools.wraps(stock)
    def twin(*args, **kwargs):
        return function(stock(*args, **kwargs))

    return twin


def _reproducible_scopes(fn):
    """A lifted transform: run ``fn`` of Flax scopes reproducibly."""

    def inner(scope_fn, repack_fn, variables, rngs, *args, **kwargs):
        def pure(variables, rngs, args, kwargs):
            scopes = scope_fn(variables, rngs)
            result = fn(scopes, *args, **kwargs)
            return result, repack_fn(scopes)

        return _apart(pure, variables, rngs, args, kwargs)

    return lift.pack(inner, (True,), (True,), (True,), name="repjax", enable_kwargs=True)


def method(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A reproducible twin of a method of modules, or of a function whose first argument is one.

    The variables of the module, its random numbers and the modules that it was given are operands
    of the twin and may be written to, as by Flax's lifted transforms.
    """
    if getattr(stock, "nowrap", False):  # not of what is bound to variables
        return function(stock)
    stock = wrap_method_once(stock)
    lifted = decorator_lift_transform(_reproducible_scopes, stock)

    @functools.wraps(stock)
    def twin(self, *args, **kwargs):
        return (stock if is_enabled() else lifted)(self, *args, **kwargs)

    return twin


class Drawing:
    """What draws the variables of a module reproducibly, wherever Flax runs its ``setup``.

    That may be outside of all methods: where an attribute is read, and in ``nn.jit``.
    """

    def param(self, name, init_fn, *args, **kwargs):
        return super().param(name, function(init_fn), *args, **kwargs)

    def variable(self, col, name, init_fn=None, *args, **kwargs):
        init_fn = init_fn and function(init_fn)
        return super().variable(col, name, init_fn, *args, **kwargs)


def methods(module: type[linen.Module]) -> dict[str, Callable[..., Any]]:
    """The twins of the methods that a class of modules, and those between it and Flax, define."""
    not_methods = {"setup", *module.__dataclass_fields__}
    names = {
        name: None
        for cls in module.__mro__
        if cls not in linen.Module.__mro__
        for name, value in vars(cls).items()
        if callable(value) and (name == "__call__" or not name.startswith("_"))
    }
    found = {name: getattr(module, name) for name in names if name not in not_methods}
    return {name: method(f) for name, f in found.items() if _is_method(module, name)}


def _is_method(module: type, name: str) -> bool:
    value = next(vars(cls)[name] for cls in module.__mro__ if name in vars(cls))
    return not isinstance(value, (staticmethod, classmethod, type)) and hasattr(value, "__get__")
