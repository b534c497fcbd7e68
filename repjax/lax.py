"""``jax.lax`` made reproducible: the same names, signatures and semantics.

Every function here is the ``jax.lax`` function of that name, with each of its operations
in its correctly rounded or fixed-order form (``docs/numerics.md``); its derivatives too.
Float operands are float32.  Functions that contain a sum take one more keyword,
``accumulation``, which overrides the option ``repjax_accumulation``, or ``repjax_contraction``
for matrix products and convolutions.

Functions of ``jax.lax`` that compute nothing in floating point (``reshape``, ``select``,
``fori_loop``, ``scan``, ...) need no reproducible form: use them as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax import lax as _stock

from repjax.explicit import explicit as _explicit
from repjax.primitives.add_n import add_n as _add_n
from repjax.primitives.arithmetic import FORMATS as _FORMATS
from repjax.primitives.arithmetic import canonicalize as _canonicalize
from repjax.primitives.contract import fma_p as _fma_p
from repjax.primitives.elementary import hypot_p as _hypot_p
from repjax.primitives.elementary import log2_p as _log2_p
from repjax.primitives.elementary import log10_p as _log10_p

_NOTE = "\n\n    Reproducible form of ``jax.lax.{name}``; see ``docs/numerics.md``.\n\n    {text}"
_SUM = (
    "Args beyond those of ``jax.lax``:\n"
    "      accumulation: the order of the sum, ``'pairwise'``, ``'sequential'`` or\n"
    "        ``'order_independent'``; the default is the option ``repjax_accumulation``.\n"
)
_CONTRACTION = (
    "Args beyond those of ``jax.lax``:\n"
    "      accumulation: ``'sequential'``, one accumulator per output, one fused multiply-add\n"
    "        per term, k ascending from +0; or ``'order_independent'``, exact sums of integers\n"
    "        on common grids, finer ones with ``precision=HIGHEST``; the default is the option\n"
    "        ``repjax_contraction``.\n"
)


def _documented(twin: Callable[..., Any], name: str, text: str = "") -> Callable[..., Any]:
    stock_doc = (getattr(_stock, name).__doc__ or name).strip().split("\n\n")[0]
    twin.__doc__ = stock_doc + _NOTE.format(name=name, text=text)
    twin.__module__ = __name__
    return twin


def _show_accumulation(twin: Callable[..., Any], default: str | None) -> Callable[..., Any]:
    """Put the keyword that the twin has beyond the stock function into its signature."""
    stock = inspect.signature(twin)
    more = inspect.Parameter("accumulation", inspect.Parameter.KEYWORD_ONLY, default=default)
    twin.__signature__ = stock.replace(parameters=[*stock.parameters.values(), more])
    return twin


def _plain(name: str) -> Callable[..., Any]:
    return _documented(_explicit(getattr(_stock, name)), name)


def _sum(name: str) -> Callable[..., Any]:
    stock = getattr(_stock, name)

    @functools.wraps(stock)
    def twin(*args, accumulation: str | None = None, **kwargs):
        return _explicit(stock, accumulation=accumulation)(*args, **kwargs)

    return _show_accumulation(_documented(twin, name, _SUM), None)


def _contraction(name: str) -> Callable[..., Any]:
    stock = getattr(_stock, name)

    @functools.wraps(stock)
    def twin(*args, accumulation: str | None = None, **kwargs):
        return _explicit(stock, contraction=accumulation)(*args, **kwargs)

    return _show_accumulation(_documented(twin, name, _CONTRACTION), None)


add = _plain("add")
sub = _plain("sub")
mul = _plain("mul")
div = _plain("div")
neg = _plain("neg")
sqrt = _plain("sqrt")
rsqrt = _plain("rsqrt")
reciprocal = _plain("reciprocal")
square = _plain("square")
integer_pow = _plain("integer_pow")
pow = _plain("pow")
max = _plain("max")
min = _plain("min")
abs = _plain("abs")
sign = _plain("sign")
floor = _plain("floor")
ceil = _plain("ceil")
round = _plain("round")
clamp = _plain("clamp")
rem = _plain("rem")
reduce_precision = _plain("reduce_precision")
convert_element_type = _plain("convert_element_type")
bitcast_convert_type = _plain("bitcast_convert_type")

exp = _plain("exp")
exp2 = _plain("exp2")
expm1 = _plain("expm1")
log = _plain("log")
log1p = _plain("log1p")
cbrt = _plain("cbrt")
logistic = _plain("logistic")
sin = _plain("sin")
cos = _plain("cos")
tan = _plain("tan")
asin = _plain("asin")
acos = _plain("acos")
atan = _plain("atan")
atan2 = _plain("atan2")
sinh = _plain("sinh")
cosh = _plain("cosh")
tanh = _plain("tanh")
asinh = _plain("asinh")
acosh = _plain("acosh")
atanh = _plain("atanh")
erf = _plain("erf")
erfc = _plain("erfc")
erf_inv = _plain("erf_inv")
lgamma = _plain("lgamma")
digamma = _plain("digamma")

reduce_max = _plain("reduce_max")
reduce_min = _plain("reduce_min")
argmax = _plain("argmax")
argmin = _plain("argmin")
top_k = _plain("top_k")
cummax = _plain("cummax")
cummin = _plain("cummin")
cumlogsumexp = _plain("cumlogsumexp")
reduce_window = _plain("reduce_window")
reduce_sum = _sum("reduce_sum")
reduce_prod = _sum("reduce_prod")
cumsum = _sum("cumsum")
cumprod = _sum("cumprod")

dot = _contraction("dot")
dot_general = _contraction("dot_general")
batch_matmul = _contraction("batch_matmul")
conv = _contraction("conv")
conv_general_dilated = _contraction("conv_general_dilated")
conv_with_general_padding = _contraction("conv_with_general_padding")
conv_transpose = _contraction("conv_transpose")


def _of_one_type(name: str, number: str, *operands) -> list[jax.Array]:
    arrays = [_canonicalize(jax.numpy.asarray(x)) for x in operands]
    shapes = {(x.shape, str(x.dtype)) for x in arrays}
    if len(shapes) != 1 or arrays[0].dtype not in _FORMATS:
        raise TypeError(
            f"{name}: expected {number} arrays of one shape and type, float32, float16 or "
            f"bfloat16; received "
            f"{[f'{x.dtype}{list(x.shape)}' for x in arrays]}; convert and broadcast them first"
        )
    return arrays


def fma(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """``a*b + c`` with one rounding, then canonical.

    Args:
      a, b, c: float32, float16 or bfloat16 arrays, of one shape and type.

    Returns:
      An array of that shape and type.

    References:
      Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums: proved
      algorithms using rounding to odd".
    """
    return _canonicalize(_fma_p.bind(*_of_one_type("fma", "three", a, b, c)))


def add_n(*terms: jax.Array) -> jax.Array:
    """The exact sum of its arguments, rounded once, then canonical, whatever their order.

    Args:
      *terms: one or more float32, float16 or bfloat16 arrays, of one shape and type.

    Returns:
      An array of that shape and type.

    References:
      Shewchuk 1997, "Adaptive precision floating-point arithmetic and fast robust geometric
      predicates" (GROW-EXPANSION); Boldo and Melquiond 2008, as for :func:`fma`.
    """
    return _canonicalize(_add_n(*_of_one_type("add_n", "one or more", *terms)))


def hypot(x: jax.Array, y: jax.Array) -> jax.Array:
    """``sqrt(x**2 + y**2)``, correctly rounded, then canonical.

    ``jax.numpy.hypot`` is a graph of several operations, each of which rounds, and has other
    bits.

    Args:
      x, y: float32, float16 or bfloat16 arrays, of one shape and type.

    Returns:
      An array of that shape and type: inf if x or y is infinite, even if the other is NaN. The
      derivative is x / h * t + y / h * s for tangents t and s; it is NaN for x = y = 0.
    """
    return _canonicalize(_hypot_p.bind(*_of_one_type("hypot", "two", x, y)))


def _logarithm(primitive, base: int) -> Callable[..., Any]:
    def log(x: jax.Array) -> jax.Array:
        x = _canonicalize(jax.numpy.asarray(x))
        if x.dtype not in _FORMATS:
            raise TypeError(
                f"log{base}: expected a float32, float16 or bfloat16 array, received {x.dtype}; "
                "convert it first"
            )
        return _canonicalize(primitive.bind(x))

    log.__name__ = log.__qualname__ = f"log{base}"
    log.__doc__ = f"""The logarithm to base {base}, correctly rounded, then canonical.

    ``jax.numpy.log{base}`` may be a quotient of two natural logarithms, and then has other bits.

    Args:
      x: a float32, float16 or bfloat16 array.

    Returns:
      An array of its shape and type: -inf for 0, NaN below 0.
    """
    return log


log2 = _logarithm(_log2_p, 2)
log10 = _logarithm(_log10_p, 10)
