"""What becomes of each public name of ``flax.linen``.

A class of modules is a layer, whatever Flax adds.  Any other name has a row here, or there is none
of it in ``repjax.nn``.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from flax import linen

#: Functions of arrays.
FUNCTIONS = {
    *("celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("leaky_relu", "log_sigmoid", "log_softmax", "logsumexp", "normalize", "one_hot", "relu"),
    *("relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus", "standardize"),
    *("swish", "tanh", "avg_pool", "max_pool", "pool", "pooling.min_pool"),
    *("combine_masks", "make_attention_mask", "make_causal_mask"),
}
#: Functions of arrays that may write what they compute to a module.
SOWING = {"dot_product_attention", "dot_product_attention_weights"}
#: Functions that draw a parameter.
INITIALIZERS = {
    *("ones", "zeros", "initializers.ones", "initializers.zeros"),
    *("linear.default_kernel_init", "linear.default_embed_init", "attention.default_kernel_init"),
    "recurrent.default_kernel_init",
}
#: Functions that make initializers: all others in ``linen.initializers``.
FACTORIES = {"ones_init", "zeros_init"}
#: Modules of ``flax.linen`` that hold layers and functions.
NAMESPACES = {
    *("activation", "attention", "combinators", "fp8_ops", "initializers", "linear"),
    *("normalization", "pooling", "recurrent", "stochastic"),
}
#: What computes nothing itself, by what it is for: the very objects of Flax.
UNCHANGED = {
    "modules": (
        *("Module", "RNNCellBase", "Variable", "BatchApply", "batch_apply", "apply", "init"),
        *("init_with_output", "compact", "compact_name_scope", "nowrap", "share_scope"),
        *("merge_param", "intercept_methods", "module", "kw_only_dataclasses", "dtypes"),
    ),
    "lifted transforms": (
        *("add_metadata_axis", "broadcast", "checkpoint", "cond", "custom_vjp", "fold_rngs"),
        *("grad", "jit", "jvp", "map_variables", "remat", "remat_scan", "scan", "switch"),
        *("transforms", "value_and_grad", "vjp", "vmap", "while_loop"),
    ),
    "collections and names": (
        *("DenyList", "FrozenDict", "named_call", "disable_named_call", "enable_named_call"),
        *("override_named_call", "tabulate", "summary"),
    ),
    "sharding and metadata": (
        *("LogicallyPartitioned", "PARTITION_NAME", "Partitioned", "get_logical_axis_rules"),
        *("get_partition_spec", "get_sharding", "logical_axis_rules", "logical_to_mesh"),
        *("logical_to_mesh_axes", "logical_to_mesh_sharding", "meta", "set_logical_axis_rules"),
        *("spmd", "unbox", "with_logical_constraint", "with_logical_partitioning"),
        "with_partitioning",
    ),
}
_UNCHANGED = {name for names in UNCHANGED.values() for name in names}


def public(module: types.ModuleType) -> list[str]:
    """The public names of a module of Flax."""
    return sorted(name for name in vars(module) if not name.startswith("_"))


def row(name: str, value: Any, namespace: str = "") -> str | None:
    """The row of a name of ``flax.linen``, or of one of its namespaces; None if it has none.

    One of ``layer``, ``function``, ``sowing``, ``initializer``, ``factory``, ``namespace`` and
    ``unchanged``.
    """
    full = f"{namespace}.{name}" if namespace else name
    if name in _UNCHANGED:
        return "unchanged"
    if inspect.isclass(value) and issubclass(value, linen.Module):
        return "layer"
    for kind, names in {
        "function": FUNCTIONS,
        "sowing": SOWING,
        "initializer": INITIALIZERS,
        "factory": FACTORIES,
    }.items():
        if full in names or (name in names and getattr(linen, name, None) is value):
            return kind
    if isinstance(value, types.ModuleType) and name in NAMESPACES:
        return "namespace"
    if namespace == "initializers" and inspect.isfunction(value):
        return "factory"
    return None


def rows() -> dict[str, str | None]:
    """The row of each public name of the installed ``flax.linen``."""
    return {name: row(name, getattr(linen, name)) for name in public(linen)}
