"""Every private name of JAX that repjax touches, and nothing else.

The table of docs/architecture.md says what each is for and what happens when it moves;
``tests/project/test_structure.py`` compares the two, and allows ``jax._src`` nowhere else.
"""

from jax._src import compiler as compiler
from jax._src import traceback_util as traceback_util
from jax._src.config import eager_constant_folding as eager_constant_folding
from jax._src.core import trace_state_clean as trace_state_clean
from jax._src.dispatch import apply_primitive as apply_primitive
from jax._src.dispatch import (
    prim_requires_devices_during_lowering as prim_requires_devices_during_lowering,
)
from jax._src.interpreters import ad as autodiff
from jax._src.interpreters import pxla as pxla
from jax._src.interpreters.ad import GradAccum as GradAccum
from jax._src.interpreters.ad import RefAccum as RefAccum
from jax._src.interpreters.ad import ValAccum as ValAccum
from jax._src.interpreters.ad import ct_check as ct_check
from jax._src.interpreters.ad import fancy_transposes as fancy_transposes
from jax._src.lax.linalg import geqrf as geqrf
from jax._src.random import core as random_core
from jax._src.random import prng as prng
from jax._src.sharding_impls import ShardingContext as ShardingContext
from jax._src.sharding_impls import SPMDAxisContext as SPMDAxisContext
from jax._src.state.discharge import discharge_state as discharge_state
from jax._src.util import weakref_lru_cache as weakref_lru_cache
from jax.interpreters import mlir

#: By primitive, how it is lowered on all platforms.
lowering_rules = mlir._lowerings

__all__ = ["autodiff", "lowering_rules", "random_core"]
