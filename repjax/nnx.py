"""Flax NNX made reproducible: ``from repjax import nnx`` in place of ``from flax import nnx``.

Layers, functions, optimizers and metrics are twins of Flax's: the same names, signatures and
variables, so that a state of the one is a state of the other.  A twin of a layer is a subclass
whose methods, its constructor included, are made reproducible as :mod:`repjax.explicit` does
functions of arrays; so it can be differentiated, batched and mixed with other code.  What computes
nothing, such as transformations and variables, is Flax's own.

=================  =====================================================================
``LAYERS``         the layers that have a twin, and the methods that are made reproducible
``FUNCTIONS``      the functions that have one
``STATEFUL``       optimizers, metrics and averages, and their methods.  These are compiled,
                   as by ``repjax.reproducible``, and have no derivative
``initializers``   those of ``flax.nnx.initializers``
``metrics``        those of ``flax.nnx.metrics``
=================  =====================================================================

A module of your own is reproducible as far as it is made of these.  Its own arithmetic, and what is
drawn from ``nnx.Rngs`` by its methods, such as ``rngs.normal(shape)``, is so inside
``repjax.reproducible`` or under the switch, where Flax's own layers are, too.
"""

from __future__ import annotations

import functools as _functools
import sys as _sys
import types as _types
from collections.abc import Callable as _Callable
from typing import Any as _Any

import jax as _jax
from flax import nnx as _stock
from flax.nnx import initializers as _initializers
from flax.nnx import metrics as _metrics

from repjax import objects as _objects
from repjax.explicit import explicit as _of_arrays
from repjax.reproducible import reproducible as _reproducible

_CALLED = ("__init__", "__call__")
_CELL = (*_CALLED, "initialize_carry")
#: Of each layer that has a twin, the methods that compute something.
LAYERS = {
    **dict.fromkeys(
        (
            *("BatchNorm", "Bidirectional", "Conv", "ConvTranspose", "Dropout", "Einsum"),
            *("GroupNorm", "InstanceNorm", "LayerNorm", "Linear", "LinearGeneral", "LoRA"),
            *("LoRALinear", "MultiHeadAttention", "PReLU", "RMSNorm", "RNN", "RoPE"),
            *("SpectralNorm", "WeightNorm"),
        ),
        _CALLED,
    ),
    **dict.fromkeys(("GRUCell", "LSTMCell", "OptimizedLSTMCell", "SimpleCell"), _CELL),
    "Embed": (*_CALLED, "attend"),
}
FUNCTIONS = (
    *("avg_pool", "celu", "combine_masks", "dot_product_attention"),
    *("dot_product_attention_with_rope", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu"),
    *("hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid", "log_softmax", "logsumexp"),
    *("make_attention_mask", "make_causal_mask", "max_pool", "min_pool", "one_hot", "pool", "relu"),
    *("relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus", "standardize"),
    *("swish", "tanh"),
)
STATEFUL = dict.fromkeys(("EMA", "ModelAndOptimizer", "Optimizer"), ("update",))
METRICS = dict.fromkeys(("Accuracy", "Average", "MultiMetric", "Welford"), ("update", "compute"))
#: Modules of Flax that hold what has a twin.
_HIDDEN = ("nn", "optimizer", "training")


def _explicit(function: _Callable[..., _Any]) -> _Callable[..., _Any]:
    """:func:`repjax.explicit.explicit` of a function that objects of NNX may be given to.

    What has not changed of them is not written back, so that layers that are captured in a function
    which JAX traces can be read there.
    """
    split = _objects.Split(function)
    of_arrays = _of_arrays(function)

    @_functools.wraps(function)
    def twin(*args, **kwargs):
        if _objects.find((args, kwargs)) is None:
            return of_arrays(*args, **kwargs)
        with split.context():
            (trees, named), references = split.split(args, kwargs)
            if references:
                raise TypeError(
                    f"repjax.nnx.{function.__qualname__}: expected variables that hold arrays, "
                    "received references (ref=True); use that of flax.nnx in repjax.reproducible"
                )
            changed = _changed(split, trees, named)
            if changed[0] is not None:
                _objects.check_level((args, kwargs))
            return split.merge(changed)

    return twin


def _changed(split: _objects.Split, trees: _Any, named: _Any) -> tuple[_Any, _Any]:
    """What ``split.of_trees`` gives, explicitly: the objects, or None if none has changed, and the
    result."""
    given = _jax.tree.leaves((trees, named))
    graphs = _objects.graphs((trees, named))
    structure, places = None, []

    @_functools.wraps(split.of_trees)
    def new_leaves(*trees, **named):
        nonlocal structure, places
        numbers = {id(x): i for i, x in enumerate(_jax.tree.leaves((trees, named)))}
        objects, result, _ = split.of_trees(*trees, **named)
        if (
            _objects.graphs(objects) == graphs
            and not _objects.graphs(result)
            and all(id(x) in numbers for x in _jax.tree.leaves(objects))
        ):
            objects = None
        leaves, structure = _jax.tree.flatten((objects, result))
        places = [numbers.get(id(x)) for x in leaves]
        return [x for x, i in zip(leaves, places, strict=True) if i is None]

    new = iter(_of_arrays(new_leaves)(*trees, **named))
    return _jax.tree.unflatten(structure, [next(new) if i is None else given[i] for i in places])


def _twin(stock: type, methods: _Any, transformation: _Callable[..., _Any]) -> type[_Any]:
    """A subclass whose ``methods`` are made reproducible."""
    name = stock.__name__
    return type(stock)(
        name,
        (stock,),
        {
            "__module__": __name__,
            "__qualname__": name,
            "__doc__": f"Reproducible ``flax.nnx.{name}``: the same arguments, the same variables."
            f"\n\n{stock.__doc__}",
            **{method: transformation(getattr(stock, method)) for method in methods},
        },
    )


def _namespace(name: str, stock: _types.ModuleType, twins: dict[str, _Any]) -> _types.ModuleType:
    """A module with the names of another and twins in place of some."""
    module = _types.ModuleType(f"{__name__}.{name}", f"``flax.nnx.{name}`` made reproducible.")
    module.__dict__.update({k: v for k, v in vars(stock).items() if not k.startswith("_")}, **twins)
    return _sys.modules.setdefault(module.__name__, module)


def _made(
    stock: _types.ModuleType, table: dict[str, _Any], transformation: _Any
) -> dict[str, type]:
    """The twins of the classes that this version of Flax has."""
    return {
        name: _twin(getattr(stock, name), methods, transformation)
        for name, methods in table.items()
        if hasattr(stock, name)
    }


def _initializer(stock: _Callable[..., _Any]) -> _Callable[..., _Any]:
    """The twin of an initializer, or of a function that makes one."""
    if stock in (_initializers.zeros, _initializers.ones):
        return _of_arrays(stock)

    @_functools.wraps(stock)
    def make(*args, **kwargs):
        return _of_arrays(stock(*args, **kwargs))

    return make


globals().update(_made(_stock, LAYERS, _explicit))
globals().update(_made(_stock, STATEFUL, _reproducible))
globals().update({f: _explicit(getattr(_stock, f)) for f in FUNCTIONS if hasattr(_stock, f)})
metrics = _namespace("metrics", _metrics, _made(_metrics, METRICS, _reproducible))
MultiMetric = metrics.MultiMetric
initializers = _namespace(
    "initializers",
    _initializers,
    {
        name: _initializer(f)
        for name, f in vars(_initializers).items()
        if isinstance(f, _types.FunctionType) and not name.startswith("_")
    },
)


def __getattr__(name: str) -> _Any:
    """What has no twin, from Flax."""
    if name in _HIDDEN:
        raise AttributeError(
            f"repjax.nnx has no module {name}, whose layers and optimizers would be Flax's own; "
            f"take them from repjax.nnx itself, or import flax.nnx.{name}"
        )
    return getattr(_stock, name)


def __dir__() -> list[str]:
    return __all__


__all__ = sorted(name for name in dir(_stock) if not name.startswith("_") and name not in _HIDDEN)
