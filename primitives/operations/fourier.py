"""Discrete Fourier transforms, as products with small matrices.

A transform of at most :data:`RADIX` elements is a product with a matrix.  One of more, n = p m, p
the largest divisor up to :data:`RADIX` and the root of n, is p transforms of length m, a
multiplication with roots of unity, and a product with the matrix of the transform of length p
(Cooley and Tukey 1965).  Lengths without such a divisor are products with a matrix up to
:data:`DIRECT`, and else convolutions of a power of two (Bluestein 1970).  ``docs/numerics.md``,
section 19, states the graph.

All matrices are constants of correctly rounded cosines and sines.  Products with
them are like others, by the same kernels, in the order that is asked for.  In the order
``sequential`` a transform is a primitive, for which there is a kernel on CPU
(:mod:`repjax.primitives.cpu.fourier`); elsewhere it is these operations again.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core.define import kernel_for, lower_body
from repjax.primitives.core.interpret import interpret_function
from repjax.primitives.core.programs import settled, struct
from repjax.primitives.core.sizes import power_of_two_from
from repjax.primitives.core.tables import COMPLEX, PREFIX, Context, RefusedError
from repjax.primitives.core.values import canonicalize
from repjax.primitives.operations.complex_numbers import multiply, parts

RADIX, DIRECT = 32, 256

# --- roots of unity ---------------------------------------------------------------------

#: Bits of the fraction that cosines and sines are computed with.
_FRACTION = 128


def _arc_tangent(x: int) -> int:
    """atan(1/x) 2**_FRACTION, by its series."""
    power = total = (1 << _FRACTION) // x
    sign, k = -1, 3
    while power:
        power //= x * x
        total += sign * (power // k)
        sign, k = -sign, k + 2
    return total


#: 2 pi 2**_FRACTION, by Machin's formula.
_TURN = 8 * (4 * _arc_tangent(5) - _arc_tangent(239))


def _rounded(x: int) -> np.float32:
    """x / 2**_FRACTION rounded to float32, if it is no tie."""
    shift = max(x.bit_length() - 24, 0)
    return np.float32(math.ldexp((x + (1 << shift >> 1)) >> shift, shift - _FRACTION))


def _cosine_and_sine(k: int, n: int) -> tuple[np.float32, np.float32]:
    """Cosine and sine of k / n of a turn, at most an eighth, by their series."""
    angle = _TURN * k // n
    sums, term, i = [0, 0], 1 << _FRACTION, 0
    while term:
        sums[i % 2] += term if i % 4 < 2 else -term
        i += 1
        term = (term * angle >> _FRACTION) // i
    return _rounded(sums[0]), _rounded(sums[1])


def roots_of_unity(k: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of k / n of a turn, correctly rounded; symmetries are exact, and zero is +0."""
    k = k % n
    below = 2 * k > n
    k = 4 * np.where(below, n - k, k)  # of 4 n, at most half a turn
    left = k > n
    k = np.where(left, 2 * n - k, k)
    steep = 2 * k > n
    k = np.where(steep, n - k, k)
    distinct, places = np.unique(k, return_inverse=True)
    values = np.array([_cosine_and_sine(int(i), 4 * n) for i in distinct], np.float32)
    cosine, sine = np.moveaxis(values[places.reshape(k.shape)], -1, 0)
    cosine, sine = np.where(steep, sine, cosine), np.where(steep, cosine, sine)
    zero = np.float32(0)
    return np.where(left, zero - cosine, cosine), np.where(below, zero - sine, sine)


@functools.lru_cache(64)
def matrix(n: int, sign: int) -> np.ndarray:
    """[n, n]: what :func:`folded` is multiplied with, cosines above negative sines."""
    even = n // 2 + 1
    cosine, sine = roots_of_unity(np.outer(np.arange(n), sign * np.arange(n)), n)
    return np.concatenate([cosine[:even], np.float32(0) - sine[1 : n - even + 1]])


@functools.lru_cache(64)
def twiddles(p: int, m: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    return roots_of_unity(np.outer(np.arange(p), sign * np.arange(m)), p * m)


@functools.lru_cache(64)
def chirp_of(n: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    k = np.arange(n)
    return roots_of_unity(sign * k * k, 2 * n)


def around_of(n: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """What a convolution in the place of a transform of length n is with."""
    zeros = np.zeros(power_of_two_from(2 * n - 1) - 2 * n + 1, np.float32)
    cosine, sine = (np.concatenate([a, zeros, a[:0:-1]]) for a in chirp_of(n, -sign))
    return cosine, sine


# --- transforms -------------------------------------------------------------------------

#: A real and an imaginary part, which is None for zeros: their terms change no sum.
Pair = tuple[Any, Any]


def _each(function, x: Pair) -> Pair:
    real, imaginary = x
    return function(real), imaginary if imaginary is None else function(imaginary)


def part(n: int) -> int:
    """The length of the transforms by a matrix in one of length n; 1 where that is a convolution
    (or n is 1)."""
    p = max(d for d in range(1, RADIX + 1) if n % d == 0 and d * d <= n)
    return n if n <= RADIX or (p == 1 and n <= DIRECT) else p


def transform(x: Pair, sign: int) -> Pair:
    """The sums over j of x[j] exp(sign 2 pi i j k / n) along the last axis."""
    n = x[0].shape[-1]
    p = part(n)
    if n == 1:
        return x
    if p == n:
        return _by_matrix(x, sign)
    return _by_convolution(x, sign) if p == 1 else _by_parts(x, p, sign)


def _folded(x):
    """The sums x[j] + x[n - j], whose cosines are the same, and differences, whose sines are
    negatives of each other; of two elements and of one there are no differences."""
    n = x.shape[-1]
    half = (n - 1) // 2
    sums, differences = [x[..., :1]], None
    if half:
        first, last = x[..., 1 : half + 1], x[..., : n - 1 - half : -1]
        sums, differences = [*sums, first + last], first - last
    if n % 2 == 0:  # its own partner, as x[0] is
        sums.append(x[..., n // 2, None])
    return jnp.concatenate(sums, -1), differences


def _by_matrix(x: Pair, sign: int) -> Pair:
    """Real parts are sums of the real part's sums times cosines and the imaginary part's
    differences times negative sines; imaginary parts, of the imaginary part's sums and the
    negative differences of the real one."""
    (real, imaginary), n = x, x[0].shape[-1]
    dot = functools.partial(jnp.dot, precision=lax.Precision.HIGHEST)
    sums, differences = _folded(real)
    if imaginary is None:
        cosines, sines = np.split(matrix(n, sign), [n // 2 + 1])
        return dot(sums, cosines), None if differences is None else dot(-differences, sines)
    others, other_differences = _folded(imaginary)
    terms = jnp.stack([sums, others])
    if differences is not None:
        terms = jnp.concatenate([terms, jnp.stack([other_differences, -differences])], -1)
    y = dot(terms, matrix(n, sign))
    return y[0], y[1]


def _by_parts(x: Pair, p: int, sign: int) -> Pair:
    """x[p j2 + j1] to y[m k1 + k2]: first the sums over j2, then those over j1."""
    *batch, n = x[0].shape
    m = n // p
    swapped = functools.partial(_each, lambda a: jnp.swapaxes(a, -1, -2))
    x = swapped(_each(lambda a: a.reshape(*batch, m, p), x))  # (j1, j2)
    x = multiply(transform(x, sign), twiddles(p, m, sign))  # (j1, k2)
    x = _by_matrix(swapped(x), sign)  # (k2, k1)
    return _each(lambda a: a.reshape(*batch, n), swapped(x))


def _by_convolution(x: Pair, sign: int) -> Pair:
    """exp(2 pi i j k / n) is w[j] w[k] / w[k - j], with w[k] = exp(pi i k**2 / n)."""
    n = x[0].shape[-1]
    chirp = chirp_of(n, sign)
    around = tuple(map(jnp.asarray, around_of(n, sign)))
    (size,) = around[0].shape
    padding = [(0, 0)] * (x[0].ndim - 1) + [(0, size - n)]
    x = _each(lambda a: jnp.pad(a, padding), multiply(x, chirp))
    x = transform(multiply(transform(x, -1), transform(around, -1)), 1)
    return multiply(_each(lambda a: a[..., :n] / np.float32(size), x), chirp)


def _along(x: Pair, axis: int, sign: int) -> Pair:
    x = transform(_each(lambda a: jnp.moveaxis(a, axis, -1), x), sign)
    return _each(lambda a: jnp.moveaxis(a, -1, axis), x)


def _from_half(x: Pair, n: int) -> Pair:
    """All n elements of a transform of real numbers, of the first n // 2 + 1."""
    real, imaginary = x
    k = lax.broadcasted_iota(np.int32, imaginary.shape, imaginary.ndim - 1)
    imaginary = jnp.where((k == 0) | (2 * k == n), np.float32(0), imaginary)
    rest = slice(n - n // 2 - 1, 0, -1)  # as many as are missing, backwards
    return (
        jnp.concatenate([real, real[..., rest]], -1),
        jnp.concatenate([imaginary, -imaginary[..., rest]], -1),
    )


def program(x, *, fft_type, fft_lengths):
    """Along the last axes: each by itself, the last first, and with IRFFT the last one last."""
    kind, axes, n = lax.FftType(fft_type), range(-1, -1 - len(fft_lengths), -1), fft_lengths[-1]
    x = (x, None) if kind == lax.FftType.RFFT else parts(x)
    sign = -1 if kind in (lax.FftType.FFT, lax.FftType.RFFT) else 1
    for axis in axes if kind != lax.FftType.IRFFT else axes[1:]:
        x = _along(x, axis, sign)
        if kind == lax.FftType.RFFT and axis == -1:
            x = _each(lambda a: a[..., : n // 2 + 1], x)
    if kind == lax.FftType.IRFFT:
        x = _along(_from_half(x, n), -1, sign)
    if sign == 1:
        x = _each(lambda a: a / np.float32(math.prod(fft_lengths)), x)
    real, imaginary = x
    if kind == lax.FftType.IRFFT:
        return real
    return lax.complex(real, lax.full_like(real, 0) if imaginary is None else imaginary)


# --- the primitive ----------------------------------------------------------------------


def _of_no_elements(x, kind: lax.FftType, n: int):
    if kind == lax.FftType.RFFT and n == 0:
        raise RefusedError(
            "fft of real numbers expected elements along the last axis, received none, for which "
            "JAX has no transform; leave it out for empty arrays"
        )
    last = {lax.FftType.RFFT: n // 2 + 1, lax.FftType.IRFFT: n}.get(kind, x.shape[-1])
    dtype = np.float32 if kind == lax.FftType.IRFFT else np.complex64
    return lax.full((*x.shape[:-1], last), 0, dtype)


def in_steps(x, *, contraction: str, raw: bool = False, **params):
    """The transform as operations, which it is where there is no kernel."""
    context = Context(contraction=contraction, differentiable=False)
    x = canonicalize(x) if raw else x
    (result,) = interpret_function(context, lambda x: [program(x, **params)], [x])
    return result


def _lower(ctx, x, *, platform: str | None = None, **params):
    kernel = kernel_for(fourier_p, platform, ctx) if platform else None
    if kernel is not None:
        return lower_body(ctx, kernel, x, multiple_results=False, **params)
    with settled():
        return mlir.lower_fun(in_steps, multiple_results=False)(ctx, x, **params)


def _batch(operands, dimensions, **params):
    transform = jax.vmap(functools.partial(in_steps, **params), in_axes=tuple(dimensions))
    return transform(*operands), 0


def _type(x, *, contraction, raw, **params):
    result = jax.eval_shape(functools.partial(lax.fft, **params), struct(x))
    return jax.core.ShapedArray(result.shape, result.dtype)


#: A transform by ``sequential`` products, which a kernel may compute as a whole; ``raw``: its
#: operand need not be canonical.
fourier_p = Primitive(PREFIX + "fourier")
fourier_p.def_impl(in_steps)
fourier_p.def_abstract_eval(_type)
mlir.register_lowering(fourier_p, _lower)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(
        fourier_p, functools.partial(_lower, platform=_platform), platform=_platform
    )
batching.primitive_batchers[fourier_p] = _batch


def _fft(context: Context, operands, params):
    (x,), kind = operands, lax.FftType(params["fft_type"])
    if 0 in x.shape or 0 in params["fft_lengths"]:
        return _of_no_elements(x, kind, params["fft_lengths"][-1])
    if context.contraction == "sequential":
        return fourier_p.bind(x, contraction="sequential", raw=False, **params)
    return in_steps(x, contraction=context.contraction, **params)


COMPLEX["fft"] = _fft
