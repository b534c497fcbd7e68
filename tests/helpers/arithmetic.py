"""Arithmetic: cases of all operations, the oracle of each, and the ways to run it."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import gmpy2
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import repjax
import repjax.lax as rlax
from helpers.bits import SPECIALS, assert_same_bits, canonical, patterns
from repjax.primitives.operations.arithmetic import one_minus_square_p
from repjax.verify.reference import arithmetic as reference
from repjax.verify.reference import compute
from repjax.verify.reference.values import TINY, flush, guard

N = 20_000  # random elements of a case; the special values come on top


def _near(x, seed):
    """Numbers a few units in the last place from ``x``."""
    with np.errstate(over="ignore"):
        x = x.astype(np.float32).view(np.int32)
    steps = np.random.default_rng(seed).integers(-3, 4, x.shape, np.int32)
    return (x + steps).view(np.float32)


def _unary():
    """Any pattern, moderate numbers, and numbers whose squares and inverses are extreme."""
    rng = np.random.default_rng(1)
    moderate = np.ldexp(rng.uniform(-2, 2, N // 4), rng.integers(-20, 33, N // 4))
    extreme = 2.0 ** rng.choice([-126, -63, -42, -31.5, -25.2, 126, 64, 42.7, 32, 25.6], N // 4)
    half = rng.integers(-300, 300, N // 8) / 2
    parts = [patterns(N // 2, 1), moderate, _near(extreme, 2), half, SPECIALS]
    return np.concatenate([p.astype(np.float32) for p in parts])


def _pairs():
    """Pairs of patterns; pairs whose sum, product, quotient is tiny, huge, tied, cancelled."""
    a = patterns(N, 3)
    third = N // 10
    with np.errstate(all="ignore"):
        x = np.where(np.isfinite(a), a, np.float32(1.5)).astype(np.float64)[: 6 * third]
        x = np.where(np.abs(x) < TINY, 3.0, x).reshape(6, third)
        b = [
            2.0**-126 / x[0],  # tiny products and huge ones
            2.0**128 / x[1],
            x[2] * 2.0**126,  # tiny quotients and huge ones
            x[3] * 2.0**-128,
            -x[4],  # cancellation
            x[5] * 2.0**-24,  # ties
        ]
        b = _near(np.concatenate(b), 4)
    b = np.concatenate([b, patterns(N - len(b), 5)])
    a = np.concatenate([x.ravel().astype(np.float32), a[x.size :]])
    # odd 13-bit times odd 12-bit integers: most products are ties
    odd = np.random.default_rng(5).integers(2**11, 2**12, (2, 400)) * [[2], [1]] | 1
    table = [s.ravel() for s in np.meshgrid(SPECIALS, SPECIALS)]
    parts = zip((a, b), odd.astype(np.float32), table, strict=True)
    return tuple(map(np.concatenate, parts))


def _triples():
    """Pairs, and a third operand: any, or near the negated product, or half its last place."""
    a, b = _pairs()
    with np.errstate(all="ignore"):
        product = (a * b).astype(np.float32)
        c = np.choose(
            np.arange(len(a)) % 4,
            [patterns(len(a), 6), _near(-product, 7), product * np.float32(2.0**-24), product],
        )
    c[-(len(SPECIALS) ** 2) :] = np.resize(np.roll(SPECIALS, 5), len(SPECIALS) ** 2)
    return a, b, c.astype(np.float32)


def _powers():
    """Bases, with exponents small, large and extreme."""
    rng = np.random.default_rng(8)
    x = np.concatenate([_unary()[::4], _near(np.ones(N // 10), 9), SPECIALS])
    y = rng.choice([-(2**31), -300, -149, -3, -2, -1, 0, 1, 2, 3, 5, 7, 10, 127, 2**31 - 1], x.size)
    return x, y.astype(np.int32)


def _any(dtype):
    edges = np.array(np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1)
    edges = (edges - np.arange(300)).astype(dtype) if np.dtype(dtype).kind in "iu" else []
    return np.concatenate([patterns(N, 10, dtype), np.asarray(edges, dtype)])


unary = functools.cache(lambda: (_unary(),))


pairs, triples, powers = map(functools.cache, (_pairs, _triples, _powers))


def rounded(function):
    """The correctly rounded binary32 value of a gmpy2 function, guarded."""

    def oracle(*operands):
        with gmpy2.context(gmpy2.ieee(32)):
            results = [
                float(function(*map(gmpy2.mpfr, xs)))
                for xs in zip(*(x.tolist() for x in operands), strict=True)
            ]
        return guard(np.array(results, np.float32))

    return oracle


def exact(function):
    """A NumPy function that rounds nothing, flushed."""

    def oracle(*operands):
        with np.errstate(all="ignore"):
            return flush(np.asarray(function(*operands), np.float32))

    return oracle


def power(y):
    """``integer_pow``: products, and a quotient, each rounded."""
    params = {"y": y}
    return lambda x: compute("integer_pow", [x], params, results=[("float32", x.shape)])[0]


POWERS = {y: power(y) for y in (*range(-4, 6),)}


def pow_integer(x, y):
    """Binary powering in float64, low bits first, guarded; then one rounding."""
    with np.errstate(all="ignore"):
        return guard(reference.pow_integer(x, y).astype(np.float32))


def one_minus_square(x):
    return rounded(lambda x: gmpy2.fma(-x, x, gmpy2.mpfr(1)))(x)


def clamp(low, x, high):
    return np.minimum(high, np.maximum(x, low))


def to_integer(dtype):
    """Truncation, saturated; NaN gives 0."""
    return lambda x: reference.converted(x, dtype)


def to_float(dtype):
    """One rounding, then canonical."""
    precision = jnp.finfo(dtype).nmant + 1

    def oracle(x):
        with np.errstate(all="ignore"):
            if x.dtype.kind in "iu":  # ml_dtypes rounds twice
                with gmpy2.context(precision=precision):
                    x = np.array([float(gmpy2.mpfr(i)) for i in x.tolist()])
            y = x.astype(dtype)
            return np.where(np.abs(y) <= jnp.finfo(dtype).tiny, np.zeros_like(y), y)

    return oracle


def reduce_precision(exponent_bits, mantissa_bits):
    return lambda x: reference.rounded_precision(x, exponent_bits, mantissa_bits)


@dataclasses.dataclass(frozen=True)
class Case:
    stock: Callable[..., Any]
    operands: Callable[[], tuple[np.ndarray, ...]]
    oracle: Callable[..., np.ndarray]
    twin: Callable[..., Any] | None  # the function of repjax.lax


def _case(name, operands, oracle, stock=None, twin=None):
    return Case(stock or getattr(lax, name), operands, oracle, twin or getattr(rlax, name, None))


# Additions are exact below 2**-126: gmpy2 rounds the others to a subnormal, guard flushes 2**-126.
CASES = {
    "add": _case("add", pairs, exact(np.add)),
    "sub": _case("sub", pairs, exact(np.subtract)),
    "mul": _case("mul", pairs, rounded(gmpy2.mul)),
    "div": _case("div", pairs, rounded(gmpy2.div)),
    "fma": _case("fma", triples, rounded(gmpy2.fma), stock=rlax.fma),
    "neg": _case("neg", unary, exact(np.negative)),
    "sqrt": _case("sqrt", unary, rounded(gmpy2.sqrt)),
    "rsqrt": _case("rsqrt", unary, rounded(gmpy2.rec_sqrt)),
    "reciprocal": _case("reciprocal", unary, rounded(lambda x: gmpy2.div(1, x))),
    "square": _case("square", unary, rounded(gmpy2.square)),
    "one_minus_square": _case("", unary, one_minus_square, one_minus_square_p.bind),
    "pow": _case("pow", powers, pow_integer),
    "max": _case("max", pairs, exact(np.maximum)),
    "min": _case("min", pairs, exact(np.minimum)),
    "clamp": _case("clamp", triples, exact(clamp)),
    "abs": _case("abs", unary, exact(np.abs)),
    "sign": _case("sign", unary, exact(np.sign)),
    "floor": _case("floor", unary, exact(np.floor)),
    "ceil": _case("ceil", unary, exact(np.ceil)),
    "nextafter": _case("nextafter", pairs, exact(np.nextafter)),
    "rem": _case("rem", pairs, exact(np.fmod)),
    "is_finite": _case("is_finite", unary, np.isfinite),
}


for _bits in (8, 7), (5, 10), (4, 3), (5, 2), (8, 1), (1, 0), (8, 23):
    _options = dict(zip(("exponent_bits", "mantissa_bits"), _bits, strict=True))
    _stock, _twin = (
        functools.partial(module.reduce_precision, **_options) for module in (lax, rlax)
    )
    CASES[f"reduce_precision {_bits}"] = _case(
        "", unary, reduce_precision(*_bits), stock=_stock, twin=_twin
    )


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    CASES[_name] = _case(_name, pairs, getattr(operator, _name))


for _y, _power in POWERS.items():
    _options = {"stock": functools.partial(lax.integer_pow, y=_y)}
    _options["twin"] = functools.partial(rlax.integer_pow, y=_y)
    CASES[f"integer_pow {_y}"] = _case("", unary, _power, **_options)


for _method, _round in {
    lax.RoundingMethod.TO_NEAREST_EVEN: np.rint,
    lax.RoundingMethod.AWAY_FROM_ZERO: reference.away_from_zero,
}.items():
    _options = {"stock": functools.partial(lax.round, rounding_method=_method)}
    _options["twin"] = functools.partial(rlax.round, rounding_method=_method)
    CASES[f"round {_method.name}"] = _case("", unary, exact(_round), **_options)


def _conversion(old, new, operands, oracle):
    def stock(x):
        return lax.convert_element_type(x, new)

    def twin(x):
        return rlax.convert_element_type(x, new)

    names = (np.dtype(old).name, np.dtype(new).name)
    CASES["{} to {}".format(*names)] = Case(stock, operands, oracle, twin)


INTEGERS = (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)


for _dtype in (np.bool_, *INTEGERS):
    _conversion(_dtype, np.float32, lambda d=_dtype: (_any(d),), to_float(np.float32))


for _dtype in INTEGERS:
    _conversion(np.float32, _dtype, unary, to_integer(_dtype))


_conversion(np.float32, np.bool_, unary, lambda x: x != 0)


for _dtype in (np.float16, jnp.bfloat16):
    _conversion(np.float32, _dtype, unary, to_float(_dtype))
    _conversion(_dtype, np.float32, lambda d=_dtype: (_any(d),), exact(lambda x: x))
    for _old in (np.bool_, np.int32, np.uint32):
        _conversion(_old, _dtype, lambda d=_old: (_any(d),), to_float(_dtype))


_conversion(np.float16, jnp.bfloat16, lambda: (_any(np.float16),), to_float(jnp.bfloat16))


_conversion(jnp.bfloat16, np.float16, lambda: (_any(jnp.bfloat16),), to_float(np.float16))


_conversion(np.float16, np.int8, lambda: (_any(np.float16),), to_integer(np.int8))


def _rows(operands):
    """The operands as rows of 64, for loops over them."""
    return [np.resize(x, (-(-x.size // 64), 64)) for x in operands]


def _eager(case, operands):
    with repjax.enabled():
        return case.stock(*map(jnp.asarray, operands))


def _vmap(case, operands):
    return repjax.reproducible(jax.vmap(case.stock))(*operands)


def _loops(case, operands):
    """Inside lax.scan and, nested in it, lax.map."""

    def body(carry, xs):
        mapped = lax.map(lambda x: case.stock(*x), xs)
        return carry, (case.stock(*xs), mapped)

    @repjax.reproducible
    def loops(*operands):
        return lax.scan(body, np.float32(0), operands)[1]

    rows, mapped = (np.asarray(x).ravel()[: operands[0].size] for x in loops(*_rows(operands)))
    assert_same_bits(mapped, rows, "map against scan")
    return rows


WAYS = {
    "jit": lambda case, operands: repjax.reproducible(case.stock)(*operands),
    "eager": _eager,
    "explicit": lambda case, operands: (case.twin or repjax.reproducible(case.stock))(*operands),
    "vmap": _vmap,
    "loops": _loops,
}


def assert_correctly_rounded(name: str, case: Case) -> None:
    """In every way to run it."""
    operands = case.operands()
    expected = canonical(case.oracle(*map(canonical, operands)))
    for way, run in WAYS.items():
        assert_same_bits(run(case, operands), expected, f"{name}, {way}")
