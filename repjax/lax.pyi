"""The types of repjax.lax: those of jax.lax, and the orders of sums and products."""

from collections.abc import Sequence
from typing import Any

from jax import Array
from jax.lax import ConvGeneralDilatedDimensionNumbers, DotDimensionNumbers, PrecisionLike
from jax.lax import abs as abs
from jax.lax import acos as acos
from jax.lax import acosh as acosh
from jax.lax import add as add
from jax.lax import argmax as argmax
from jax.lax import argmin as argmin
from jax.lax import asin as asin
from jax.lax import asinh as asinh
from jax.lax import atan as atan
from jax.lax import atan2 as atan2
from jax.lax import atanh as atanh
from jax.lax import bitcast_convert_type as bitcast_convert_type
from jax.lax import cbrt as cbrt
from jax.lax import ceil as ceil
from jax.lax import clamp as clamp
from jax.lax import convert_element_type as convert_element_type
from jax.lax import cos as cos
from jax.lax import cosh as cosh
from jax.lax import cumlogsumexp as cumlogsumexp
from jax.lax import cummax as cummax
from jax.lax import cummin as cummin
from jax.lax import digamma as digamma
from jax.lax import div as div
from jax.lax import erf as erf
from jax.lax import erf_inv as erf_inv
from jax.lax import erfc as erfc
from jax.lax import exp as exp
from jax.lax import exp2 as exp2
from jax.lax import expm1 as expm1
from jax.lax import floor as floor
from jax.lax import integer_pow as integer_pow
from jax.lax import lgamma as lgamma
from jax.lax import log as log
from jax.lax import log1p as log1p
from jax.lax import logistic as logistic
from jax.lax import max as max
from jax.lax import min as min
from jax.lax import mul as mul
from jax.lax import neg as neg
from jax.lax import pow as pow
from jax.lax import reciprocal as reciprocal
from jax.lax import reduce_max as reduce_max
from jax.lax import reduce_min as reduce_min
from jax.lax import reduce_precision as reduce_precision
from jax.lax import reduce_window as reduce_window
from jax.lax import rem as rem
from jax.lax import round as round
from jax.lax import rsqrt as rsqrt
from jax.lax import sign as sign
from jax.lax import sin as sin
from jax.lax import sinh as sinh
from jax.lax import sqrt as sqrt
from jax.lax import square as square
from jax.lax import sub as sub
from jax.lax import tan as tan
from jax.lax import tanh as tanh
from jax.lax import top_k as top_k
from jax.typing import ArrayLike, DTypeLike

from repjax.primitives.core.tables import Accumulation, Contraction

def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> Array: ...
def add_n(*terms: ArrayLike) -> Array: ...
def reduce_sum(
    operand: ArrayLike,
    axes: Sequence[int],
    *,
    out_sharding: Any = None,
    accumulation: Accumulation | None = None,
) -> Array: ...
def reduce_prod(
    operand: ArrayLike, axes: Sequence[int], *, accumulation: Accumulation | None = None
) -> Array: ...
def cumsum(
    operand: Array,
    axis: int = 0,
    reverse: bool = False,
    *,
    accumulation: Accumulation | None = None,
) -> Array: ...
def cumprod(
    operand: Array,
    axis: int = 0,
    reverse: bool = False,
    *,
    accumulation: Accumulation | None = None,
) -> Array: ...
def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: DotDimensionNumbers | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    contraction: Contraction | None = None,
) -> Array: ...
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    contraction: Contraction | None = None,
) -> Array: ...
def batch_matmul(
    lhs: Array,
    rhs: Array,
    precision: PrecisionLike = None,
    *,
    contraction: Contraction | None = None,
) -> Array: ...
def conv(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    contraction: Contraction | None = None,
) -> Array: ...
def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvGeneralDilatedDimensionNumbers = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    *,
    contraction: Contraction | None = None,
) -> Array: ...
def conv_with_general_padding(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    contraction: Contraction | None = None,
) -> Array: ...
def conv_transpose(
    lhs: Array,
    rhs: Array,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvGeneralDilatedDimensionNumbers = None,
    transpose_kernel: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    use_consistent_padding: bool = False,
    *,
    contraction: Contraction | None = None,
) -> Array: ...
def log2(x: ArrayLike) -> Array: ...
def log10(x: ArrayLike) -> Array: ...
def exp10(x: ArrayLike) -> Array: ...
def hypot(x: ArrayLike, y: ArrayLike) -> Array: ...
