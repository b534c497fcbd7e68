"""``jax.lax`` made reproducible: the same names, signatures and semantics.

Every function here is the ``jax.lax`` function of that name, with each of its operations
in its correctly rounded or fixed-order form (``docs/numerics.md``); its derivatives too.
Float operands are float32.  Sums take one more keyword, ``accumulation``, and matrix products and
convolutions ``contraction``, which override the options ``repjax_accumulation`` and
``repjax_contraction``.

Functions of ``jax.lax`` that compute nothing in floating point (``reshape``, ``select``,
``fori_loop``, ``scan``, ...) need no reproducible form: use them as they are.
"""

import functools as _functools
import inspect as _inspect
import textwrap as _textwrap
from collections.abc import Callable as _Callable
from typing import Any as _Any

import jax as _jax
from jax import lax as _stock

from repjax.explicit import explicit as _explicit
from repjax.primitives.core.tables import PRIMITIVES as _PRIMITIVES
from repjax.primitives.core.values import canonicalize as _canonicalize
from repjax.primitives.operations.add_n import add_n as _add_n
from repjax.primitives.operations.arithmetic import FORMATS as _FORMATS
from repjax.primitives.operations.elementary.table import TABLE as _ELEMENTARY
from repjax.primitives.operations.elementary.table import Own as _Own
from repjax.primitives.operations.products import fma_p as _fma_p

_NOTE = "\n\n    Reproducible form of ``jax.lax.{name}``; see ``docs/numerics.md``.\n\n    {text}"
_SUM = (
    "Args beyond those of ``jax.lax``:\n"
    "      accumulation: the order of the sum, ``'pairwise'``, ``'sequential'``,\n"
    "        ``'order_independent'`` or ``'exact'``; the default is the option\n"
    "        ``repjax_accumulation``.\n"
)
_PRODUCT = (
    "Args beyond those of ``jax.lax``:\n"
    "      contraction: ``'sequential'``, one accumulator per output, one fused multiply-add\n"
    "        per term, k ascending from +0; ``'order_independent'``, exact sums of integers on\n"
    "        common grids, finer ones with ``precision=HIGHEST``; or ``'exact'``, the exact sum\n"
    "        of the exact products, rounded once; the default is the option\n"
    "        ``repjax_contraction``.\n"
)


def _documented(twin: _Callable[..., _Any], name: str, text: str = "") -> _Callable[..., _Any]:
    stock_doc = (getattr(_stock, name).__doc__ or name).strip().split("\n\n")[0]
    twin.__doc__ = stock_doc + _NOTE.format(name=name, text=text)
    twin.__module__ = __name__
    return twin


def _show(keyword: str, twin: _Callable[..., _Any]) -> _Callable[..., _Any]:
    """Put the keyword that the twin has beyond the stock function into its signature."""
    stock = _inspect.signature(twin)
    more = _inspect.Parameter(keyword, _inspect.Parameter.KEYWORD_ONLY, default=None)
    twin.__signature__ = stock.replace(parameters=[*stock.parameters.values(), more])
    return twin


def _plain(name: str) -> _Callable[..., _Any]:
    return _documented(_explicit(getattr(_stock, name)), name)


def _sum(name: str) -> _Callable[..., _Any]:
    stock = getattr(_stock, name)

    @_functools.wraps(stock)
    def twin(*args, accumulation: str | None = None, **kwargs):
        return _explicit(stock, accumulation=accumulation)(*args, **kwargs)

    return _show("accumulation", _documented(twin, name, _SUM))


def _product(name: str) -> _Callable[..., _Any]:
    stock = getattr(_stock, name)

    @_functools.wraps(stock)
    def twin(*args, contraction: str | None = None, **kwargs):
        if "accumulation" in kwargs:
            raise TypeError(
                f"{name}: expected the order of the product as the keyword contraction, received "
                f"accumulation={kwargs['accumulation']!r}, which is for sums; rename the keyword"
            )
        return _explicit(stock, contraction=contraction)(*args, **kwargs)

    return _show("contraction", _documented(twin, name, _PRODUCT))


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

dot = _product("dot")
dot_general = _product("dot_general")
batch_matmul = _product("batch_matmul")
conv = _product("conv")
conv_general_dilated = _product("conv_general_dilated")
conv_with_general_padding = _product("conv_with_general_padding")
conv_transpose = _product("conv_transpose")


def _of_one_type(name: str, number: str, *operands) -> list[_jax.Array]:
    arrays = [_canonicalize(_jax.numpy.asarray(x)) for x in operands]
    shapes = {(x.shape, str(x.dtype)) for x in arrays}
    if len(shapes) != 1 or arrays[0].dtype not in _FORMATS:
        raise TypeError(
            f"{name}: expected {number} arrays of one shape and type, float32, float16 or "
            f"bfloat16; received "
            f"{[f'{x.dtype}{list(x.shape)}' for x in arrays]}; convert and broadcast them first"
        )
    return arrays


def fma(a: _jax.Array, b: _jax.Array, c: _jax.Array) -> _jax.Array:
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


def add_n(*terms: _jax.Array) -> _jax.Array:
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


def _own(name: str, arity: int, own: _Own) -> _Callable[..., _Any]:
    """An elementary function that ``jax.lax`` has not got, or not in every version."""
    primitive = _PRIMITIVES[name]

    def of_one(x: _jax.Array) -> _jax.Array:
        x = _canonicalize(_jax.numpy.asarray(x))
        if x.dtype not in _FORMATS:
            raise TypeError(
                f"{name}: expected a float32, float16 or bfloat16 array, received {x.dtype}; "
                "convert it first"
            )
        return _canonicalize(primitive.bind(x))

    def of_two(x: _jax.Array, y: _jax.Array) -> _jax.Array:
        return _canonicalize(primitive.bind(*_of_one_type(name, "two", x, y)))

    function, operands, result = (
        (of_one, "x: a float32, float16 or bfloat16 array.", "An array of its shape and type")
        if arity == 1
        else (
            of_two,
            "x, y: float32, float16 or bfloat16 arrays, of one shape and type.",
            "An array of that shape and type",
        )
    )
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{own.summary}, correctly rounded, then canonical.

    {_wrapped(own.note, 4)}

    Args:
      {operands}

    Returns:
      {_wrapped(f"{result}: {own.returns}.", 6)}
    """
    return function


def _wrapped(text: str, indent: int) -> str:
    return _textwrap.fill(text, 100 - indent).replace("\n", "\n" + " " * indent)


# Each elementary function by its name: exp, log, sin, ...
globals().update(
    {r.name: _own(r.name, r.arity, r.own) if r.own else _plain(r.name) for r in _ELEMENTARY}
)

__all__ = [name for name in globals() if not name.startswith("_")]
