"""Conformance vectors: one program for every primitive and order, with inputs from integers.

:func:`cases` gives them in two sizes: large ones for devices (:mod:`repjax.verify.conformance`),
small ones for an emulator.  Inputs are made on the host by a generator of our own, so that they
depend on no version of JAX or NumPy, and on no device.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen
import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp
from jax.interpreters import ad

import repjax
from repjax.models import LeNet5
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion.entries import name_of
from repjax.primitives.operations.elementary import table as elementary

FORMATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(jnp.bfloat16))
#: float32 patterns at which operations change their behaviour, without those of the other sign.
SPECIALS = (
    # zero, subnormals, the smallest normal numbers, 2**-24 and 2**-23
    *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x01000000),
    *(0x33800000, 0x34000000),
    # around 1/2, 1, 3/2, 5/2, pi, 88, 89, 128, 2**8, 2**15, 2**16
    *(0x3EFFFFFF, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40200000),
    *(0x40490FDB, 0x42B00000, 0x42B17218, 0x43000000, 0x437F0000, 0x43800000, 0x46FFFE00),
    *(0x47000000, 0x477FFF00, 0x47800000),
    # around 2**23, 2**31, 2**32, the square root of the largest number, the largest
    *(0x4AFFFFFF, 0x4B800000, 0x4EFFFFFF, 0x4F000000, 0x4F7FFFFF, 0x4F800000, 0x5F7FFFFF),
    *(0x7F000000, 0x7F7FFFFF),
    # infinity, and NaNs: signalling, canonical, all ones
    *(0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
)


class Case(NamedTuple):
    """A program and its inputs.

    Attributes:
      name: unique; the primitive's, if it is about one.
      function: of stock JAX and repjax operations, to be made reproducible.
      arguments: NumPy arrays, or sequences of them.
      orders: the keywords of ``repjax.reproducible``.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    orders: dict[str, str] = {}  # noqa: RUF012 (never changed)

    def program(self) -> Callable[..., Any]:
        """The reproducible function, compiled at its first call."""
        return repjax.reproducible(self.function, **self.orders)

    def primitives(self) -> set[str]:
        """The names of the repjax primitives in the program, without the prefix."""
        return set(_names(jax.make_jaxpr(self.program())(*self.arguments)))


def _names(jaxpr) -> Iterator[str]:
    for equation in open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive.name.startswith(PREFIX):
            yield name_of(equation.primitive)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _names(inner)


def registered() -> dict[str, Any]:
    """All primitives that ``define`` has made, by name without the prefix.

    But not those that it makes on demand of exact operations, which compute nothing.
    """
    names = {p.name.removeprefix(PREFIX): p for p in ad.primitive_transposes if _is_own(p.name)}
    return {name: p for name, p in sorted(names.items()) if not name.startswith("exact_")}


def _is_own(name: str) -> bool:
    return name.startswith(PREFIX)


# --- inputs -----------------------------------------------------------------------------


def words(count: int, seed: int) -> np.ndarray:
    """Random uint64: SplitMix64 (Steele, Lea and Flood 2014) of a counter."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def patterns(count: int, seed: int, dtype=np.float32) -> np.ndarray:
    """Random bit patterns of a type: every class of value, NaNs with payloads too."""
    dtype = np.dtype(dtype)
    return (words(count, seed) >> np.uint64(20)).astype(f"u{dtype.itemsize}").view(dtype)


def values(shape, seed: int) -> np.ndarray:
    """float32 in [-1, 1): multiples of 2**-23."""
    top = (words(math.prod(shape), seed) >> np.uint64(40)).astype(np.int32) - np.int32(1 << 23)
    return (top.astype(np.float32) * np.float32(2.0**-23)).reshape(shape)


def spread(shape, seed: int, binades: int = 12) -> np.ndarray:
    """float32 of either sign over so many binades: sums of them round, cancel and absorb."""
    exponent = (words(math.prod(shape), seed + 1) % np.uint64(binades)).astype(np.int32)
    return np.ldexp(values(shape, seed), exponent.reshape(shape) - binades // 2)


def indices(shape, below: int, seed: int) -> np.ndarray:
    return (words(math.prod(shape), seed) % np.uint64(below)).astype(np.int32).reshape(shape)


def with_specials(x: np.ndarray) -> np.ndarray:
    """``x`` with special values at some places."""
    x = x.copy()
    places = words(8, x.size) % np.uint64(x.size)
    x.ravel()[places.astype(np.int64)] = np.float32(
        [np.inf, -np.inf, np.nan, -0.0, 2.0**-126, 2.0**-140, 3e38, -3e38]
    )
    return x


def _specials() -> np.ndarray:
    bits = np.array(SPECIALS, np.uint32)
    return np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)


# --- elementwise functions --------------------------------------------------------------

_UNARY = (
    "bessel_i0e bessel_i1e canonicalize ceil floor materialize neg one_minus_square rsqrt sqrt "
    "square"
)
_BINARY = "add div mul nextafter rem sub"


def _elementwise(n: int, hard: dict[str, np.ndarray]) -> Iterator[Case]:
    """``n`` random patterns, as many ordinary numbers, special values, and the hard inputs."""
    p = registered()

    def ordinary(count, seed):
        return np.ldexp(values((count,), seed), indices((count,), 10, seed + 1) - 4)

    def in_formats(function):
        return lambda *operands: [function(*xs) for xs in operands]

    halves = [
        np.arange(0, 1 << 16, max(1, (1 << 15) // n), np.uint16).view(dtype)
        for dtype in FORMATS[1:]
    ]
    params = {name: {} for name in sorted([*_UNARY.split(), *elementary.names(arity=1)])} | {
        "integer_pow 3": {"y": 3},
        "integer_pow -5": {"y": -5},
        "reduce_precision e5m10": {"exponent_bits": 5, "mantissa_bits": 10},
        "reduce_precision e8m7": {"exponent_bits": 8, "mantissa_bits": 7},
        "round away from zero": {"rounding_method": lax.RoundingMethod.AWAY_FROM_ZERO},
        "round to even": {"rounding_method": lax.RoundingMethod.TO_NEAREST_EVEN},
    }
    for name, keywords in params.items():
        own = hard.get(name, np.empty((0, 1), np.float32))[:, 0]
        x = np.concatenate([_specials(), own, -own, ordinary(n, 1), patterns(n, 3)])
        function = functools.partial(p[name.split()[0]].bind, **keywords)
        own_halves = [] if name == "materialize" else halves  # which is of float32 only
        yield Case(name, in_formats(function), ((x,), *[(h,) for h in own_halves]))

    pairs = itertools.product(_specials()[::3], repeat=2)
    specials = [np.array(x) for x in zip(*pairs, strict=True)]
    halves = [[patterns(n, seed, dtype) for seed in (5, 6)] for dtype in FORMATS[1:]]
    for name in sorted([*_BINARY.split(), *elementary.names(arity=2)]):
        own = hard.get(name, np.empty((0, 2), np.float32)).T
        x, y = (
            np.concatenate([special, hard_one, ordinary(n, seed), patterns(n, seed + 2)])
            for special, hard_one, seed in zip(specials, own, (7, 11), strict=True)
        )
        if name in ("add", "sub", "rem"):  # close to x, or a multiple: cancels
            near = (x[-n:].view(np.uint32) ^ np.uint32(0x8055AA33)).view(np.float32)
            x, y = np.concatenate([x, x[-n:]]), np.concatenate([y, near])
        yield Case(name, in_formats(p[name].bind), ((x, y), *halves))

    x, y, z = (np.concatenate([ordinary(n, seed), patterns(n, seed + 2)]) for seed in (15, 19, 23))
    with np.errstate(all="ignore"):
        z[: n // 2] = -(x * y)[: n // 2]  # cancels
    halves = [[patterns(n, seed, dtype) for seed in (5, 6, 7)] for dtype in FORMATS[1:]]
    yield Case("fma", in_formats(p["fma"].bind), ((x, y, z), *halves))

    def several(count, dtype=np.float32):
        terms = [np.concatenate([ordinary(n, 30 + k), patterns(n, 50 + k)]) for k in range(count)]
        with np.errstate(all="ignore"):
            terms[-1][: n // 2] = -sum(terms[:-1])[: n // 2]  # cancels
            return [x.astype(dtype) for x in terms]

    terms = [several(3), several(5), several(12), *(several(4, dtype) for dtype in FORMATS[1:])]
    yield Case("add_n", in_formats(p["add_n"].bind), terms)

    exponents = np.concatenate([indices((n,), 41, 24) - 20, patterns(n, 25, np.int32)])
    small = (exponents % 7).astype(np.int32)
    halves = [(h[0], small[:n]) for h in halves]
    yield Case("pow_integer", in_formats(p["pow_integer"].bind), ((x, exponents), *halves))

    shapes = np.concatenate([indices((n,), 6, 26), ordinary(n, 27)]).astype(np.float32)
    arguments = np.abs(x[: 2 * n])
    for name in ("polygamma", "zeta"):
        yield Case(name, p[name].bind, (shapes, arguments))

    def decays(t):
        quotient = p["decayed_quotient"].bind(t, base=0.9, numerator=-1e-3)
        return quotient, p["decayed_root"].bind(t, base=0.999)

    yield Case("decayed_quotient, decayed_root", decays, (np.arange(1, n + 1, dtype=np.int32),))
    yield from _conversions(p["convert_element_type"], n)


def _conversions(primitive, n: int) -> Iterator[Case]:
    integers = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool")

    def to_all(x):
        to = (*integers, *FORMATS) if jnp.issubdtype(x.dtype, np.floating) else FORMATS
        return {
            np.dtype(new).name: primitive.bind(x, new_dtype=np.dtype(new))
            for new in to
            if np.dtype(new) != x.dtype
        }

    sources = {dtype.name: patterns(n, 30, dtype) for dtype in FORMATS}
    sources |= {name: patterns(n, 31, name) for name in integers[:-1]}
    sources["float32"] = np.concatenate([_specials(), spread((n,), 32, 48), sources["float32"]])
    sources["bool"] = patterns(n, 33, np.uint8) < 100
    for name, x in sources.items():
        yield Case(f"convert_element_type from {name}", to_all, (x,))


# --- reductions -------------------------------------------------------------------------


def _reductions(pick) -> Iterator[Case]:
    x = spread(pick((7, 13), (300, 1001)), 40)
    special = with_specials(x)
    factors = np.float32(1) + values(x.shape, 42) * np.float32(0.25)
    axes = {"rows": (1,), "columns": (0,), "all": (0, 1)}
    for order in repjax.primitives.core.tables.ACCUMULATIONS:
        kept = {"accumulation": order}

        def both(reduce, axis):
            return lambda x, y: (reduce(x, axis), reduce(y, axis))

        for name, axis in axes.items():
            # One after the other: all of them would take a long time on a GPU.
            arguments = (x, special) if (order, name) != ("sequential", "all") else (x[:20],) * 2
            yield Case(f"reduce_sum {order} {name}", both(jnp.sum, axis), arguments, kept)
        yield Case(f"reduce_prod {order}", both(jnp.prod, (1,)), (factors, special), kept)

        def cumulative(x, y):
            return jnp.cumsum(x, 1), lax.cumprod(y, 1, reverse=True), jnp.cumsum(y, 0)

        yield Case(f"cumsum, cumprod {order}", cumulative, (x, factors), kept)

    def extrema(x):
        functions = (jnp.max, jnp.min, jnp.argmax, jnp.argmin)
        return [f(x, axis) for f in functions for axis in (0, 1, None)]

    yield Case("extrema", extrema, (special,))
    ties = np.round(special)
    yield Case("extrema of equals", extrema, (ties,))
    yield Case("cummax, cummin", lambda x: (lax.cummax(x, 1), lax.cummin(x, 0)), (special,))
    yield Case("top_k", lambda x: lax.top_k(x, 5), (ties,))
    yield Case("sort", lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), (ties,))
    for dtype in FORMATS[1:]:

        def of_halves(x):
            return jnp.sum(x, 1), jnp.max(x, 0), jnp.argmax(x, 1), jnp.cumsum(x, 1)

        yield Case(f"reductions of {dtype.name}", of_halves, (x.astype(dtype),))


def _windows(pick) -> Iterator[Case]:
    images = spread(pick((2, 7, 6, 3), (5, 33, 30, 17)), 50)

    def pools(x):
        return (
            flax.linen.max_pool(x, (3, 3), (2, 2), "SAME"),
            flax.linen.avg_pool(x, (3, 2), (2, 1), "SAME"),
            lax.reduce_window(x, np.float32(np.inf), lax.min, (1, 2, 3, 1), (1, 2, 1, 1), "VALID"),
        )

    def gradients(x):
        out, pullback = jax.vjp(pools, x)
        return pullback(out)

    yield Case("pooling", pools, (images,))
    yield Case("pooling, gradient", gradients, (images,))
    yield Case("pooling, tangent", lambda x, t: jax.jvp(pools, (x,), (t,)), (images, images[::-1]))


# --- products ---------------------------------------------------------------------------


def _products(pick) -> Iterator[Case]:
    a, b = spread(pick((5, 9), (77, 700)), 60), spread(pick((9, 6), (700, 130)), 62)
    shape = pick((2, 3, 4, 5), (3, 4, 50, 33))
    q, k = spread(shape, 64), spread(shape, 66)
    images = spread(pick((2, 5, 6, 4), (4, 17, 16, 8)), 68)
    kernel = spread(pick((3, 2, 2, 6), (3, 2, 4, 12)), 70)
    wide = spread(pick((2, 33), (3, 5000)), 72)

    def products(a, b, q, k):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
        left, right = jax.vjp(jnp.dot, a, b)[1](a @ b)
        return a @ b, left, right, scores, jnp.einsum("bhqk,bhkd->bhqd", scores, k)

    def convolution(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (2, 1),
            [(1, 0), (-1, 2)],
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    def gradients(x, w):
        out, pullback = jax.vjp(convolution, x, w)
        return out, pullback(out)

    for order in repjax.primitives.core.tables.CONTRACTIONS:
        kept = {"contraction": order}
        yield Case(f"dot_general {order}", products, (a, b, q, k), kept)
        yield Case(f"dot_general {order}, long", lambda x: x @ x.T, (wide,), kept)
        special = (with_specials(a), with_specials(b))
        yield Case(f"dot_general {order}, special values", jnp.dot, special, kept)
        halves = tuple(x.astype(FORMATS[2]) for x in (a, b))
        yield Case(f"dot_general {order}, bfloat16", jnp.dot, halves, kept)
        yield Case(f"conv_general_dilated {order}", convolution, (images, kernel), kept)
        yield Case(f"conv_general_dilated {order}, gradients", gradients, (images, kernel), kept)

    def highest(function):
        def finer(*arguments):
            with jax.default_matmul_precision("highest"):
                return function(*arguments)

        return finer

    for name, function, arguments in (
        ("dot_general", products, (a, b, q, k)),
        ("conv_general_dilated", gradients, (images, kernel)),
    ):
        name = f"{name} order_independent, highest"
        yield Case(name, highest(function), arguments, {"contraction": "order_independent"})


def _layouts(pick) -> Iterator[Case]:
    """Products of transposed matrices and of odd sizes, and those of which a GPU is full."""
    m, k, n = pick((19, 33, 21), (131, 1023, 257))
    left, right = (
        (spread((m, k), 140), spread((k, m), 142)),
        (spread((k, n), 144), spread((n, k), 146)),
    )

    def transposed(left, right):
        pairs = itertools.product(enumerate(left), enumerate(right))
        return [lax.dot_general(x, y, (((1 - i,), (j,)), ((), ()))) for (i, x), (j, y) in pairs]

    def with_gradients(x, y, cotangent):
        product, pullback = jax.vjp(jnp.dot, x, y)
        return product, pullback(cotangent)

    for order in repjax.primitives.core.tables.CONTRACTIONS:
        kept = {"contraction": order}
        yield Case(f"dot_general {order}, transposed", transposed, (left, right), kept)
        for size in pick((), (2048,)):
            arguments = tuple(spread((size, size), seed) for seed in (148, 150, 152))
            name = f"dot_general {order}, {size} x {size} and its gradients"
            yield Case(name, with_gradients, arguments, kept)


def _integer_products(pick) -> Iterator[Case]:
    m, k, n = pick((5, 35, 18), (130, 1001, 77))
    images, kernels = pick((2, 5, 6, 4), (4, 17, 16, 8)), pick((3, 2, 2, 6), (3, 2, 4, 12))

    def integers(shape, seed, dtype):
        """Integers of any bits; ends of the type are frequent."""
        x = patterns(math.prod(shape), seed, dtype)
        info = np.iinfo(dtype)
        x[::5], x[1::7] = info.max, info.min
        return x.reshape(shape)

    def products(*pairs):
        """With the terms along each axis; and batches, in the type of the operands and another."""

        def of_pair(a, b):
            wide = np.int32 if jnp.issubdtype(a.dtype, jnp.signedinteger) else np.uint32
            one = functools.partial(lax.dot_general, preferred_element_type=wide)
            batches = jnp.stack([a, a[::-1]]), jnp.stack([b[:, ::-1], b])
            return [
                one(a, b, (((1,), (0,)), ((), ()))),
                one(a.T, b, (((0,), (0,)), ((), ()))),
                one(a, b.T, (((1,), (1,)), ((), ()))),
                one(a.T, b.T, (((0,), (1,)), ((), ()))),
                lax.dot_general(*batches, (((2,), (1,)), ((0,), (0,)))),
            ]

        return [of_pair(a, b) for a, b in pairs]

    def convolutions(*pairs):
        def of_pair(x, w):
            same = functools.partial(
                lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            grouped = {"rhs_dilation": (1, 2), "feature_group_count": 2}
            part = x[..., : w.shape[2]]
            return [
                same(x, w, (2, 1), [(1, 0), (-1, 2)], **grouped),
                same(part, w, (1, 1), [(1, 1), (0, 1)], lhs_dilation=(2, 3)),
                same(part, w, (2, 1), [(1, 1), (0, 1)], lhs_dilation=(2, 1)),
            ]

        return [of_pair(x, w) for x, w in pairs]

    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        a, b = integers((m, k), 140, name), integers((k, n), 142, name)
        yield Case(f"integer_dot_general {name}", products, ((a, b),))
        x, w = integers(images, 144, name), integers(kernels, 146, name)
        yield Case(f"integer_conv_general_dilated {name}", convolutions, ((x, w),))
    yield Case("integer_dot_general bool", jnp.dot, tuple(x % pick(3, 31) == 1 for x in (a, b)))


# --- scatters and linear algebra --------------------------------------------------------


def _scatters(pick) -> Iterator[Case]:
    x = spread(pick((9, 4), (301, 33)), 80)
    updates = with_specials(spread(pick((20, 4), (2000, 33)), 82))
    index = indices(updates.shape[:1], len(x) + 2, 84) - 1  # some are out of bounds

    for method in ("set", "add", "multiply", "min", "max", "subtract"):

        def scatter(x, index, updates, method=method):
            return getattr(x.at[index], method)(updates, mode="drop")

        yield Case(f"scatter, {method}", scatter, (x, index, updates))

    def embedding(table, index):
        return jax.grad(lambda table: (table[index] ** 2).sum())(table)

    yield Case("embedding, gradient", embedding, (x, np.abs(index) % np.int32(len(x))))


def _linear_algebra(pick) -> Iterator[Case]:
    n = pick(4, 24)
    a, b = values((2, n, n), 90), values((2, n, 3), 92)

    def factors(a, b):
        square = a @ a.mT + jnp.eye(n, dtype=a.dtype)
        return {
            "cholesky": jnp.linalg.cholesky(square),
            "lu": lax.linalg.lu(a),
            "qr": jnp.linalg.qr(a),
            "geqrf": registered()["geqrf"].bind(a),
            "householder_product": lax.linalg.householder_product(a, b[..., 0]),
            "triangular_solve": lax.linalg.triangular_solve(
                square, b, left_side=True, lower=True, transpose_a=True
            ),
        }

    yield Case("linear algebra", factors, (a, b))

    def spectra(a, b):
        singular = a.at[:, :, 0].set(0)
        return {
            "eigh": jnp.linalg.eigh(a),
            "svd": jnp.linalg.svd(singular, full_matrices=False),
            "svd, full matrices": jnp.linalg.svd(b),
        }

    yield Case("eigenvalues and singular values", spectra, (a, b))

    # Of so many rows that they come from tridiagonal matrices.
    m = pick(34, 150)
    c, d = values((m, m), 79), values((m, 5 * m // 4), 80)

    def of_many_rows(c, d):
        return {
            "eigh": jnp.linalg.eigh(c),
            "svd": jnp.linalg.svd(d, full_matrices=False),
            "svd of long rows": jnp.linalg.svd(d[:5], full_matrices=False),
        }

    yield Case("eigenvalues and singular values of many rows", of_many_rows, (c, d))


# --- programs ---------------------------------------------------------------------------


def _programs(pick) -> Iterator[Case]:
    x, y = spread(pick((4, 10), (130, 777)), 100), spread(pick((4, 10), (130, 777)), 102)
    labels = indices(x.shape[:1], x.shape[1], 104)
    key = patterns(2, 105, np.uint32)

    def layer_norm(x, scale):
        z = x - x.mean(-1, keepdims=True)
        return z * lax.rsqrt((z * z).mean(-1, keepdims=True) + np.float32(1e-6)) * scale

    def cross_entropy(x, labels):
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

    def samples(key):
        key = jax.random.wrap_key_data(key, impl="threefry2x32")
        shape = (pick(50, 5000),)
        return (
            jax.random.normal(key, shape),
            jax.random.uniform(key, shape, minval=-3, maxval=5),
            jax.random.gumbel(key, shape),
            jax.random.bernoulli(key, 0.3, shape),
        )

    # What a compiler likes to fuse or to rewrite.
    def tempting(x, y):
        return x * y + x, x / 3, 1 / jnp.sqrt(jnp.abs(x)), (x + y) - y, jnp.exp(x) * jnp.exp(y)

    def complex_numbers(x, y):
        z, w = lax.complex(x, y), lax.complex(y, jnp.roll(x, 1))
        results = z * w, z / w, jnp.exp(z), jnp.log(w), jnp.fft.fft2(z), jnp.fft.ifft(w[:, :-1])
        return [(a.real, a.imag) for a in results], jnp.fft.irfft(jnp.fft.rfft(x)), jnp.abs(z)

    yield Case("products and sums", tempting, (x, y))
    yield Case("complex numbers", complex_numbers, (x, y))
    yield Case("softmax", jax.nn.softmax, (x,))
    yield Case("layer norm, gradients", jax.grad(lambda *a: layer_norm(*a).sum(), (0, 1)), (x, y))
    yield Case("cross-entropy, gradient", jax.value_and_grad(cross_entropy), (x, labels))
    yield Case("gelu, gradient", jax.grad(lambda x: jax.nn.gelu(x).sum()), (x,))
    yield Case("random numbers", samples, (key,))


def _recurrent(pick) -> Iterator[Case]:
    """An LSTM: a loop over positions, of which each has its slices; forward and backward."""
    steps, batch, features = pick((3, 2, 4), (17, 6, 24))
    inputs, first = spread((steps, batch, features), 160, 4), values((batch, features), 162)
    weights = tuple(values((features, 4 * features), seed) for seed in (164, 166))

    def loss(weights, inputs):
        def step(state, x):
            h, c = state
            gates = jnp.split(x @ weights[0] + h @ weights[1], 4, axis=-1)
            i, f, o = map(jax.nn.sigmoid, gates[:3])
            c = f * c + i * jnp.tanh(gates[3])
            h = o * jnp.tanh(c)
            return (h, c), h

        return lax.scan(step, (first, first), inputs)[1].sum()

    for order in repjax.primitives.core.tables.CONTRACTIONS:
        gradients = jax.value_and_grad(loss, (0, 1))
        yield Case(
            f"LSTM, gradients, {order}", gradients, (weights, inputs), {"contraction": order}
        )


def _other_types(pick) -> Iterator[Case]:
    """Sorts of halves, complex arguments and results, masks that are constants."""
    x = with_specials(spread(pick((20, 9), (300, 133)), 170))
    key = np.arange(x.shape[1], dtype=np.int32)

    def sorts(x):
        ordered = lax.sort((x, jnp.broadcast_to(key, x.shape)), dimension=0, num_keys=1)
        return ordered, jnp.argsort(x, 1, descending=True), lax.top_k(x, 5), jnp.median(x, 0)

    def comparisons(x):
        y = x[::-1]
        kept = jnp.where(x > y, x, y), lax.max(x, y), lax.min(x, y), jax.nn.relu(x)
        return kept, x == y, jnp.isnan(x), lax.clamp(x[0, 0], y, x[1, 1]), lax.cummax(x, 1)

    for dtype in FORMATS[1:]:
        with np.errstate(over="ignore"):
            half = x.astype(dtype)
        yield Case(f"sort, {dtype.name}", sorts, (half,))
        yield Case(f"comparisons of {dtype.name}", comparisons, (half,))

    z, w = (spread(x.shape, seed) + 1j * spread(x.shape, seed + 2) for seed in (172, 176))

    def complex_arithmetic(z, w):
        total = z.sum(1), jnp.conj(z).T, jnp.where(jnp.abs(z) > 1, z, w)
        return z + w, z * w, z / w, jnp.exp(z), total, jnp.log(w), z @ w.T

    yield Case("complex64", complex_arithmetic, tuple(a.astype(np.complex64) for a in (z, w)))

    rows, columns = (words(n, 180) % np.uint64(3) == 0 for n in x.shape)

    def masked(x):
        mask = rows[:, None] != columns
        return jnp.where(mask, x, -x), jnp.asarray(rows), jnp.where(rows[:, None], x, 0).sum(0)

    yield Case("masks", masked, (x,))


#: Functions that GPUs compute in kernels for rows too, all in one case; a new one of the table has
#: a case of its own, so that the golden of this one stays.
_IN_ROWS = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erf_inv erfc exp exp2 expm1 floor log "
    "log10 log1p log2 logistic rsqrt sin sinh sqrt tan tanh"
)


def _row_programs(pick) -> Iterator[Case]:
    x = with_specials(spread(pick((8, 20), (100, 1000)), 120))
    p = registered()

    def functions(x):
        """Each, and its sums: an elementwise function by itself is another program."""
        results = {name: p[name].bind(x) for name in _IN_ROWS.split()}
        results["pow"] = jnp.abs(x) ** x[0]
        results["atan2"] = jnp.arctan2(x, x[:, :1])
        return {name: (y, y.sum(1)) for name, y in results.items()}

    def lengths(*arrays):
        return [(jax.nn.softmax(x), x.sum(1), x.min(1), jnp.argmax(x, 1)) for x in arrays]

    def long_rows(x, widened, labels):
        def loss(x):
            x = x.astype(np.float32)
            return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

        return jax.nn.softmax(x), x.sum(1), x.min(1), jax.value_and_grad(loss)(widened)

    def masked_softmax(scores, mask, cotangent):
        probabilities, pullback = jax.vjp(
            lambda x: jax.nn.softmax(jnp.where(mask, x, -jnp.inf)), scores
        )
        return probabilities, pullback(cotangent)

    def normalized(x, scale, cotangent):
        layer = flax.linen.LayerNorm(dtype=x.dtype)
        parameters = {"params": {"scale": scale, "bias": scale}}
        result, pullback = jax.vjp(layer.apply, parameters, x)
        return result, pullback(cotangent)

    def one_hot_cross_entropy(x, labels):
        return optax.softmax_cross_entropy(x, jax.nn.one_hot(labels, x.shape[1])).mean()

    def of_one(name):
        return lambda x: (y := p[name].bind(x), y.sum(1))

    yield Case("rows, functions", functions, (x,))
    new = {*elementary.names(in_rows=True, arity=1)} - {*_IN_ROWS.split()}
    for name in sorted(new):
        yield Case(f"rows, {name}", of_one(name), (x,))
    sizes = (2, 3, 17, 64, 100, 1000, 1024, 1025, 5000, 8192, 16384)
    arrays = [spread((pick(5, 33), n), 122 + n) for n in sizes]
    yield Case("rows, lengths", lengths, tuple(map(with_specials, arrays)))
    for n in pick((16500, 33000), (16385, 50257)):  # in passes
        x = spread((pick(16, 33), n), 134)
        labels = indices(x.shape[:1], n, 136)
        arguments = (with_specials(x), x.astype(FORMATS[2]), labels)
        yield Case(f"rows of {n} elements", long_rows, arguments)
    scores = spread(pick((2, 3, 8, 8), (8, 16, 64, 64)), 124)
    mask = np.tril(np.ones(scores.shape[2:], bool))
    arguments = (scores, mask, spread(scores.shape, 126))
    yield Case("rows, masked softmax and its gradient", masked_softmax, arguments)
    x, cotangent = spread(pick((6, 20), (300, 768)), 128), spread(pick((6, 20), (300, 768)), 130)
    for dtype in FORMATS:
        arguments = tuple(a.astype(dtype) for a in (x, x[0], cotangent))
        yield Case(f"rows, layer norm of {dtype.name} and its gradients", normalized, arguments)
    labels = indices(x.shape[:1], x.shape[1], 132)
    arguments = (x, labels)
    name = "rows, one-hot cross-entropy and its gradient"
    yield Case(name, jax.value_and_grad(one_hot_cross_entropy), arguments)


#: The digits 0 to 9 on seven segments, a to g, and where those lie: rows, columns.
_DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
_SEGMENTS = {
    "a": np.s_[0:2, 0:10],
    "b": np.s_[0:9, 8:10],
    "c": np.s_[8:17, 8:10],
    "d": np.s_[15:17, 0:10],
    "e": np.s_[8:17, 0:2],
    "f": np.s_[0:9, 0:2],
    "g": np.s_[8:10, 0:10],
}


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images of digits as a display shows them, [count, 32, 32, 1], and their labels."""
    labels = indices((count,), 10, 110)
    images = values((count, 32, 32), 111) * np.float32(0.25)
    for image, label, row, column in zip(
        images, labels, indices((count,), 15, 112), indices((count,), 22, 113), strict=True
    ):
        for segment in _DIGITS[label]:
            image[row:, column:][_SEGMENTS[segment]] = 1
    return images[..., None], labels


def training(steps: int = 10, batch: int = 32) -> Iterator[Case]:
    """LeNet-5 as in ``examples/train_digits.py``, for some steps; parameters and losses."""
    images, labels = digits(steps * batch)
    model, optimizer = LeNet5(), optax.adam(3e-3)

    def train(key, images, labels):
        params = model.init(jax.random.wrap_key_data(key, impl="threefry2x32"), images[0])

        def step(state, example):
            params, moments = state

            def loss(params):
                logits = model.apply(params, example[0])
                return optax.softmax_cross_entropy_with_integer_labels(logits, example[1]).mean()

            value, gradients = jax.value_and_grad(loss)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), moments), value

        (params, _), losses = lax.scan(step, (params, optimizer.init(params)), (images, labels))
        return params, losses

    arguments = (
        patterns(2, 114, np.uint32),
        images.reshape(steps, batch, 32, 32, 1),
        labels.reshape(steps, batch),
    )
    for order, accumulation in (("sequential", "pairwise"), ("order_independent",) * 2):
        orders = {"contraction": order, "accumulation": accumulation}
        yield Case(f"training of LeNet-5, {order}", train, arguments, orders)


def smoke(n: int = 2048) -> Case:
    """One large product, to see whether anything works."""
    return Case("smoke", jnp.dot, (spread((n, n), 140), spread((n, n), 142)))


def cases(hard: dict[str, np.ndarray], small: bool = False) -> Iterator[Case]:
    """All but :func:`smoke` and :func:`training`; ``hard`` has the hard inputs [count, arity].

    They stand in the order of what they tell: elementary functions, of which all else is made; the
    kernels of products, and of rows; what is XLA's code; programs of all that.  The small ones are
    for emulators, and make different bits.
    """

    def pick(little, large):
        return little if small else large

    if small:
        hard = {name: rows[:: max(1, len(rows) // 64)] for name, rows in hard.items()}
    yield from _elementwise(pick(128, 1 << 16), hard)
    groups = (_products, _layouts, _integer_products, _row_programs, _reductions, _windows)
    for group in (*groups, _scatters, _other_types, _linear_algebra, _recurrent, _programs):
        yield from group(pick)
