"""``flax.linen`` made reproducible: the same names, fields and parameter trees.

``from repjax import nn`` may replace ``from flax import linen as nn``, and a checkpoint of one
loads into the other.  Layers subclass Flax's; they and the functions compute Flax's graphs in the
contract's operations, initialisation and random numbers included.  What computes nothing itself,
such as ``Module``, ``compact`` and the lifted transforms, is Flax's own: arithmetic that a module
does between its layers is plain JAX's, unless :func:`convert` or ``repjax.reproducible`` covers it.

:mod:`repjax.nn.names` has the row of each name of Flax's; docs/layers.md shows them.
"""

import sys as _sys
import types as _types

import optax as _optax
from flax import linen as _linen

from repjax.nn import lifting as _lifting
from repjax.nn import names as _names
from repjax.nn.conversion import convert as convert


def _layer(stock: type) -> type:
    name = stock.__name__
    text = f"Reproducible ``flax.linen.{name}``: same fields, same parameters.\n\n{stock.__doc__}"
    own = {"__module__": __name__, "__doc__": text}
    return type(name, (_lifting.Drawing, stock), own | _lifting.methods(stock))


def _namespace(stock: _types.ModuleType) -> _types.ModuleType:
    """A module of Flax's with the twins of what has one; the rest of it is Flax's."""
    name = stock.__name__.rpartition(".")[2]
    twin = _types.ModuleType(f"{__name__}.{name}", f"Reproducible ``flax.linen.{name}``.")
    for inner in _names.public(stock):
        value = getattr(stock, inner)
        if not isinstance(value, _types.ModuleType):
            setattr(twin, inner, _twin(inner, value, name))
    _sys.modules[twin.__name__] = twin
    return twin


_MAKERS = {
    "layer": _layer,
    "namespace": _namespace,
    "function": _lifting.function,
    "sowing": _lifting.sowing,
    "initializer": _lifting.function,
    "factory": _lifting.factory,
}
_twins: dict[int, object] = {}


def _twin(name: str, stock, namespace: str = ""):
    """What stands here for an object of Flax's: one for each, whatever its names."""
    make = _MAKERS.get(_names.row(name, stock, namespace))
    if make is None:
        return stock
    if id(stock) not in _twins:
        _twins[id(stock)] = make(stock)
    return _twins[id(stock)]


_here = {name: _twin(name, getattr(_linen, name)) for name, row in _names.rows().items() if row}
globals().update(_here)

softmax_cross_entropy = _lifting.function(_optax.softmax_cross_entropy)
softmax_cross_entropy_with_integer_labels = _lifting.function(
    _optax.softmax_cross_entropy_with_integer_labels
)

__all__ = [
    *("convert", "softmax_cross_entropy", "softmax_cross_entropy_with_integer_labels"),
    *_here,
]


def __getattr__(name: str):
    if not name.startswith("_") and hasattr(_linen, name):
        raise AttributeError(
            f"repjax.nn: expected a name of flax.linen that repjax knows, received {name}, which "
            f"this version of Flax adds; use flax.linen.{name} inside repjax.reproducible"
        )
    raise AttributeError(f"module 'repjax.nn' has no attribute {name!r}")
