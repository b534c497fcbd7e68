"""Fourier transforms: their graph by the reference; roots of unity against mpmath; accuracy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits, normal
from helpers.complex_parts import assert_same
from repjax.primitives.operations import fourier
from repjax.verify.reference.complex_numbers import join, split
from repjax.verify.reference.fourier import divided, transform

#: Small ones; products of them; primes; primes above 256, and twice one.
LENGTHS = [1, 2, 3, 8, 31, 32, 37, 64, 96, 100, 37 * 7, 256, 263, 526, 1024]


def signal(*shape: int, seed: int = 0) -> np.ndarray:
    return join(normal((2, *shape), seed))


# --- roots of unity ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 12, 37, 360, 1024, 999])
def test_roots_of_unity(n):
    k = np.arange(-n, 2 * n)
    cosine, sine = fourier.roots_of_unity(k, n)
    with mpmath.workprec(200):
        exact = [(mpmath.cospi(mpmath.mpf(2 * i) / n), mpmath.sinpi(mpmath.mpf(2 * i) / n))
                 for i in range(n)]  # fmt: skip
    with mpmath.workprec(24):
        rounded = np.array([[float(+x) for x in pair] for pair in exact], np.float32) + 0
    assert_same_bits(np.stack([cosine, sine], -1), np.tile(rounded, (3, 1)))


def test_many_roots_of_unity():
    """Of a length whose eighth is not whole, and by numpy, whose last bits do not matter here."""
    n, k = 100_003, np.arange(100_003)
    cosine, sine = fourier.roots_of_unity(k, n)
    angle = 2 * np.pi * k / n
    assert_same_bits(cosine, np.cos(angle).astype(np.float32))
    assert_same_bits(sine, np.sin(angle).astype(np.float32))


# --- the graph, by the reference ---------------------------------------------------------


@pytest.mark.parametrize("n", LENGTHS)
def test_against_the_graph(n):
    x = signal(2, n)
    assert_same(repjax.reproducible(jnp.fft.fft)(x), transform(split(x), -1))
    assert_same(repjax.reproducible(jnp.fft.ifft)(x), divided(transform(split(x), 1), n))


def test_another_order_is_noticed(monkeypatch):
    x = signal(2, 100)
    monkeypatch.setattr(fourier, "RADIX", 4)
    with pytest.raises(AssertionError):
        assert_same(repjax.reproducible(lambda x: jnp.fft.fft(x))(x), transform(split(x), -1))


# --- kinds of transforms ----------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 12, 66, 263])
def test_real_transforms(n):
    x = signal(3, n)
    real = repjax.reproducible(jnp.fft.rfft)(x.real.copy())
    whole = repjax.reproducible(jnp.fft.fft)(x.real.astype(np.complex64))
    assert_same_bits(real, whole[:, : n // 2 + 1])
    # The other elements follow from these; imaginary parts that cannot be there are ignored.
    half = np.asarray(real).copy()
    half.imag[:, 0] = 7
    if n % 2 == 0:
        half.imag[:, -1] = 7
    rest = np.conj(np.asarray(real)[:, (n - 1) // 2 : 0 : -1])
    mirrored = np.concatenate([np.asarray(real), rest], 1)
    back = repjax.reproducible(lambda x: jnp.fft.irfft(x, n))(half)
    mirrored.imag[:, 0] = 0
    if n % 2 == 0:
        mirrored.imag[:, n // 2] = 0
    assert_same_bits(back, np.asarray(repjax.reproducible(jnp.fft.ifft)(mirrored)).real.copy())


def test_several_axes():
    x = signal(3, 4, 6)

    def last(axis, function=jnp.fft.fft):
        return repjax.reproducible(lambda x: function(x, axis=axis))

    assert_same_bits(repjax.reproducible(jnp.fft.fft2)(x), last(1)(last(2)(x)))
    assert_same_bits(repjax.reproducible(jnp.fft.fftn)(x), last(0)(last(1)(last(2)(x))))
    real = x.real.copy()
    expected = last(1)(last(2, jnp.fft.rfft)(real))
    assert_same_bits(repjax.reproducible(jnp.fft.rfft2)(real), expected)


@pytest.mark.parametrize("contraction", ["sequential", "order_independent", "exact"])
@pytest.mark.parametrize("function", [jnp.fft.fft2, jnp.fft.irfft2])
def test_axes_of_two_elements(function, contraction):
    """These have nothing to fold; each of a batch has the bits that it has by itself."""
    x = signal(2, 33, 2)
    whole = repjax.reproducible(lambda x: function(x), contraction=contraction)(x)
    first = repjax.reproducible(lambda x: function(x), contraction=contraction)(x[:1])
    assert_same_bits(np.asarray(whole)[:1], first)


ORDERS = [(n, "sequential") for n in LENGTHS] + [(n, "order_independent") for n in (37, 100, 263)]


@pytest.mark.parametrize(("n", "contraction"), ORDERS)
def test_accuracy(n, contraction):
    """Relative error in the 2-norm, in units of 2**-24: a few for each stage."""
    x = signal(4, n, seed=n)
    wide = x.astype(np.complex128)
    for ours, theirs in ((jnp.fft.fft, np.fft.fft), (jnp.fft.ifft, np.fft.ifft)):
        exact = theirs(wide)
        program = repjax.reproducible(lambda x, f=ours: f(x), contraction=contraction)
        error = np.linalg.norm(program(x) - exact) / np.linalg.norm(exact)
        assert error < 8 * 2.0**-24, error * 2**24


def test_ways_to_run_it():
    x = signal(4, 45)
    expected = repjax.reproducible(jnp.fft.fft)(x)
    with repjax.enabled():
        assert_same_bits(jax.jit(jnp.fft.fft)(x), expected)
        assert_same_bits(jnp.fft.fft(x), expected)
    assert_same_bits(repjax.reproducible(jax.vmap(jnp.fft.fft))(x), expected)
    assert_same_bits(np.stack([repjax.reproducible(jnp.fft.fft)(row) for row in x]), expected)


def test_derivative_is_a_transform():
    """Of the sum of y w, for y the transform of x: the transform of w."""
    x, w = normal((2, 20)), signal(2, 20, seed=3)

    def weighted(x):
        return jnp.real(jnp.fft.fft(x) * w).sum()

    gradient = repjax.reproducible(jax.grad(weighted))(x)
    assert_same_bits(gradient, np.asarray(repjax.reproducible(jnp.fft.fft)(w)).real.copy())


# --- nothing to transform ---------------------------------------------------------------

EMPTY = {
    "fft": (jnp.fft.fft, (3, 0)),
    "batch": (jnp.fft.fft, (0, 3)),
    "ifft": (jnp.fft.ifft, (0,)),
    "irfft": (jnp.fft.irfft, (3, 0)),
    "hfft": (jnp.fft.hfft, (0,)),
    "two axes": (jnp.fft.fft2, (0, 3)),
    "several axes": (jnp.fft.ifftn, (2, 0, 3)),
    "real, two axes": (lambda x: jnp.fft.rfft2(x.real), (0, 3)),
    "real, batch": (lambda x: jnp.fft.rfft(x.real), (0, 3)),
    "another axis": (lambda x: jnp.fft.fft(x, axis=0), (0, 3)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_of_no_elements(name):
    function, shape = EMPTY[name]
    x = np.zeros(shape, np.complex64)
    assert_same_bits(repjax.reproducible(function)(x), function(x))


def test_real_transform_along_no_elements_is_refused():
    with pytest.raises(repjax.RefusedError, match="expected elements along the last axis"):
        repjax.reproducible(jnp.fft.rfft)(np.zeros((3, 0), np.float32))
