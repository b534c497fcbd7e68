"""Stock primitives that are bound as they stand.

Data movement, comparison and selection are exact on canonical values: with no
negative zero, no subnormal and one NaN there is nothing for platforms to disagree
about.  Integer arithmetic is exact everywhere, but for contractions, which XLA may
not have or get wrong (:mod:`repjax.primitives.contract.integers`).  A primitive listed in neither
set and without a rule is refused.
"""

from repjax.primitives.interpret import (
    CODE_SIZE,
    COMPARING,
    ELEMENTWISE,
    EXACT,
    EXACT_ON_INTEGERS,
    ON_BYTES,
)

_DATA_MOVEMENT = (
    "broadcast_in_dim broadcast_to concatenate copy copy_p dynamic_slice dynamic_update_slice "
    "empty empty2 expand_dims gather pad reshape rev select_n slice split squeeze stack "
    "stop_gradient tile transpose unstack sharding_constraint optimization_barrier name"
)
# They show values to the host, and return none.
_DEBUGGING = "debug_callback debug_print"
_COMPARISON = "eq ne lt le gt ge max min clamp abs sign is_finite"
_ARITHMETIC = (
    "add add_any sub mul div rem neg square integer_pow pow sqrt rsqrt floor ceil round nextafter "
    "convert_element_type and or xor not shift_left shift_right_logical shift_right_arithmetic"
)
_KEYS = "random_clone random_unwrap random_wrap"
_INTEGER = (
    "add add_any sub mul rem neg square integer_pow pow mulhi population_count clz "
    "eq_to lt_to le_to and or xor not shift_left shift_right_logical shift_right_arithmetic "
    "convert_element_type bitcast_convert_type threefry2x32 iota_2x32_shape "
    "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor "
    "cumsum cumprod cummax cummin reduce_window_sum reduce_window_max reduce_window_min top_k "
    "scatter-add scatter-sub scatter-mul scatter-min scatter-max iota lu_pivots_to_permutation"
)

ELEMENTWISE.update(f"{_COMPARISON} {_ARITHMETIC}".split())
# Each of these is part of the loop that uses it.
CODE_SIZE.update(dict.fromkeys(f"{_DATA_MOVEMENT} {_COMPARISON}".split(), 0))
COMPARING.update(f"{_COMPARISON} sort".split())
ON_BYTES.update(["sort", "top_k", "argmax", "argmin"])
EXACT.update(f"{_DATA_MOVEMENT} {_DEBUGGING} {_COMPARISON} {_KEYS}".split())
EXACT_ON_INTEGERS.update(_INTEGER.split())
