"""Bessel functions, Hurwitz's zeta function and polygamma, against mpmath; and JAX's own graphs."""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, canonical, same_bits
from repjax.primitives.operations import special
from repjax.primitives.operations.elementary import generate
from repjax.verify.reference import special as reference


@functools.cache
def random(low, high, count=400, seed=0):
    return np.random.default_rng(seed).uniform(low, high, count).astype(np.float32)


def magnitudes(low, high, count=400, seed=0):
    return (10.0 ** random(low, high, count, seed)).astype(np.float32)


def errors(results, exact):
    """In units in the last place, where results are not close to overflow or underflow."""
    found = []
    for result, value in zip(results, exact, strict=True):
        if 2.0**-100 < abs(value) < 2.0**120:
            unit = mpmath.ldexp(1, int(mpmath.floor(mpmath.log(abs(value), 2))) - 23)
            found.append(float(abs(mpmath.mpf(float(result)) - value) / unit))
    assert len(found) > len(results) / 4
    return np.array(found)


# --- Bessel functions -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1])
def test_bessel(order):
    """As good as correctly rounded: around 8, where the polynomials meet, and everywhere."""
    x = np.concatenate([random(-30, 30), random(7.99, 8.01, 50), magnitudes(-20, 5, 200)])
    y = repjax.reproducible(getattr(lax, f"bessel_i{order}e"))(x)
    with mpmath.workprec(150):
        exact = [
            mpmath.besseli(order, v) * mpmath.exp(-abs(v)) for v in map(mpmath.mpf, x.tolist())
        ]
        assert errors(np.asarray(y), exact).max() < 0.50001


def test_bessel_of_special_values():
    x = np.float32([0, np.inf, -np.inf, np.nan, -1])
    even, odd = (np.asarray(repjax.reproducible(f)(x)) for f in (lax.bessel_i0e, lax.bessel_i1e))
    assert even[:3].tolist() == [1, 0, 0] and odd[:3].tolist() == [0, 0, 0]
    assert np.isnan(even[3]) and np.isnan(odd[3]) and even[4] > 0 > odd[4]
    x = canonical(SPECIALS)
    for f in (lax.bessel_i0e, lax.bessel_i1e):
        assert_same_bits(
            np.asarray(repjax.reproducible(f)(x)), canonical(repjax.reproducible(f)(x))
        )


def test_coefficients_are_those_of_the_generator():
    source = pathlib.Path(special.__file__).read_text()
    for polynomial in generate.FUNCTIONS["bessel"]():
        assert generate.block(polynomial) in source, polynomial.name


# --- zeta and polygamma ---------------------------------------------------------------------


def test_zeta():
    s, q = random(1.001, 12), magnitudes(-2, 5, seed=1)
    y = repjax.reproducible(lax.zeta)(s, q)
    with mpmath.workprec(150):
        exact = [mpmath.zeta(*map(mpmath.mpf, v)) for v in zip(s.tolist(), q.tolist(), strict=True)]
        assert errors(np.asarray(y), exact).max() < 8


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_polygamma(n):
    x = magnitudes(-2, 5)
    y = repjax.reproducible(lambda x: lax.polygamma(jnp.full_like(x, n), x))(x)
    with mpmath.workprec(150):
        exact = [mpmath.psi(n, v) for v in map(mpmath.mpf, x.tolist())]
        assert errors(np.asarray(y), exact).max() < 8


def test_their_special_values():
    zeta, polygamma = repjax.reproducible(lax.zeta), repjax.reproducible(lax.polygamma)
    poles = np.float32([(1, 2), (2, 0), (2, -3), (4, -1)]).T
    assert (np.asarray(zeta(*poles)) == np.inf).all()
    nans = np.float32([(0.5, 2), (3, 0), (3, -1), (2.5, -0.5), (np.nan, 2), (2, np.nan)]).T
    assert np.isnan(zeta(*nans)).all()
    nans = np.float32([(-1, 2), (1.5, 2), (np.nan, 2), (1, np.nan)]).T
    assert np.isnan(polygamma(*nans)).all()
    values = zeta(*np.float32([(2, np.inf), (2, 1)]).T)
    assert_same_bits(values, np.float32([0, np.pi**2 / 6]))
    values = polygamma(*np.float32([(1, 0), (2, 3.5), (3, 3.5)]).T)
    assert values[0] == np.inf and values[1] < 0 < values[2]


def test_zeta_is_its_graph():
    """The ten terms k ascending: in the other order, other bits."""
    q, s = random(0.5, 3), np.float32(2.5)
    want = repjax.reproducible(lambda q: lax.zeta(jnp.full_like(q, s), q))(q)
    assert_same_bits(reference.zeta(s, q), want)
    assert not same_bits(reference.zeta(s, q, ascending=False), want)


def test_bessel_is_its_polynomials():
    x = np.concatenate([random(-30, 30), random(7.99, 8.01, 50), canonical(SPECIALS)])
    for order, function in enumerate((lax.bessel_i0e, lax.bessel_i1e)):
        assert_same_bits(
            repjax.reproducible(function)(x), canonical(reference.bessel(x, order)), str(order)
        )


# --- derivatives, and JAX's own graphs ------------------------------------------------------

FUNCTIONS = {
    "i0e": jax.scipy.special.i0e,
    "i1": jax.scipy.special.i1,
    "digamma": jax.scipy.special.digamma,
    "gammainc": lambda x: jax.scipy.special.gammainc(2.5, x),
    "gammainc, shape": lambda a: jax.scipy.special.gammainc(a, 1.5),
    "gammaincc": lambda x: jax.scipy.special.gammaincc(2.5, x),
    "betainc": lambda x: jax.scipy.special.betainc(1.5, 2.5, x / 4),
    "sample": lambda a: jax.vmap(lambda a: jax.random.gamma(jax.random.key(0), a))(a),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """Compiled and eager, and close to plain JAX's."""
    function = FUNCTIONS[name]
    x = random(0.5, 3, 20)

    def derivative(x):
        return jax.grad(lambda x: jnp.sum(function(x)))(x)

    value = repjax.reproducible(derivative)(x)
    with repjax.enabled():
        assert_same_bits(value, derivative(jnp.asarray(x)))
    assert np.abs(np.asarray(value) - np.asarray(derivative(x))).max() < 1e-4
