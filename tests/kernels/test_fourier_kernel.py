"""Fourier transforms by the C++ kernel: the bits of the operations in whose place it is."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, bits, normal, same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.products import DATA
from repjax.primitives.core.values import canonicalize
from repjax.primitives.cpu import fourier as kernel
from repjax.primitives.cpu import library
from repjax.primitives.operations import fourier

pytestmark = pytest.mark.skipif(
    not library.instruction_sets(), reason="the kernel was not compiled: no C++ compiler here"
)
FFT, IFFT, RFFT, IRFFT = map(lax.FftType, range(4))


def transform(kind, lengths):
    """By the operations, and by the kernel."""
    options = {"fft_type": kind, "fft_lengths": lengths, "contraction": "sequential", "raw": True}

    def in_steps(x):
        return canonicalize(fourier.in_steps(x, **options))

    return jax.jit(in_steps), jax.jit(functools.partial(kernel.transform, **options))


def operand(kind, shape, data: str):
    rng = np.random.default_rng(len(shape))
    if kind == RFFT:
        return DATA[data](rng, shape)
    return np.ascontiguousarray(DATA[data](rng, (*shape, 2))).view(np.complex64)[..., 0]


def assert_has_the_bits(kind, lengths, shape):
    if kind == IRFFT:
        shape = (*shape[:-1], shape[-1] // 2 + 1)
    in_steps, by_kernel = transform(kind, lengths)
    for data in ("normal", "underflowing", "any_bits"):
        x = operand(kind, shape, data)
        expected = np.asarray(in_steps(x))
        for name in each_instruction_set():
            assert_same_bits(parts(by_kernel(x)), parts(expected), f"{data} by {name}")


def parts(x):
    return np.ascontiguousarray(x).view(np.float32)


# --- lengths: by nothing, by a matrix, by parts, by a convolution, and each in the others -----


@pytest.mark.parametrize("kind", [FFT, IFFT, RFFT, IRFFT])
@pytest.mark.parametrize("n", [1, 2, 8, 31, 37, 100, 64, 263, 526])
def test_rows(n, kind):
    """So few that each is by itself, and more than two vectors have."""
    assert_has_the_bits(kind, (n,), (37, n))
    assert_has_the_bits(kind, (n,), (2, n))


@pytest.mark.parametrize("n", [96, 256, 400, 1024])
def test_long_rows(n):
    for kind in (RFFT, IFFT):
        assert_has_the_bits(kind, (n,), (3, n))


# Batch, then the axes of the transform; what lies between two elements is 1, few, and many numbers;
# with two axes and a large batch each of the batch goes through both.
SEVERAL = [(3, 5, 3), (1, 12, 40), (40, 6, 5), (2, 33, 2), (2, 4, 5, 20)]


@pytest.mark.parametrize("kind", [FFT, IFFT, RFFT, IRFFT])
@pytest.mark.parametrize("shape", SEVERAL, ids=str)
def test_several_axes(shape, kind):
    assert_has_the_bits(kind, shape[1:], shape)


# --- so that these tests can fail -------------------------------------------------------------


def test_another_order_is_noticed(monkeypatch):
    x = operand(FFT, (3, 96), "normal")
    in_steps, by_kernel = transform(FFT, (96,))
    expected = in_steps(x)
    assert same_bits(parts(by_kernel(x)), parts(expected))
    in_steps, by_kernel = transform(FFT, (96,))
    monkeypatch.setattr(fourier, "RADIX", 4)
    assert not same_bits(parts(by_kernel(x)), parts(expected))


@pytest.mark.parametrize("change", [lambda p: p[:-1], lambda p: [*p, 0], lambda p: [9, *p[1:]]])
def test_a_wrong_plan_is_refused(change, monkeypatch):
    add = kernel._Plan.add

    def wrong(self, n, sign):
        add(self, n, sign)
        self.numbers = change(self.numbers)

    monkeypatch.setattr(kernel._Plan, "add", wrong)
    _, by_kernel = transform(FFT, (12,))
    with pytest.raises(Exception, match="plan: not that of a transform"):
        jax.block_until_ready(by_kernel(operand(FFT, (3, 12), "normal")))


# --- in programs ------------------------------------------------------------------------------


def raw(shape, seed):
    x = normal(shape, seed)
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 1e-3, rng.choice(SPECIALS, shape), x)


PROGRAMS = {
    "real": lambda x, z: jnp.fft.rfft(x),
    "complex": lambda x, z: jnp.fft.fft2(z),
    "inverse": lambda x, z: jnp.fft.irfft(z),
    "another axis": lambda x, z: jnp.fft.ifft(z, axis=0),
    "others use it": lambda x, z: (jnp.fft.fft(z), z * 2, z.real, jnp.fft.rfft(x), x + 1),
    "back": lambda x, z: jnp.fft.irfft(jnp.fft.rfft(x) * 0.5),
    "in a loop": lambda x, z: lax.fori_loop(0, 2, lambda i, s: s + jnp.fft.fft(z), z),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_and_results_of_programs(name, monkeypatch):
    """Inputs are made canonical where they are read, and results where they are written."""
    x = raw((160, 128), 0)
    z = np.stack([raw((160, 128), 1), raw((160, 128), 2)], -1).view(np.complex64)[..., 0]
    found = repjax.reproducible(lambda x, z: PROGRAMS[name](x, z))(x, z)
    monkeypatch.setattr(library, "serves", lambda: False)
    monkeypatch.setattr(library, "available", lambda: False)
    without = repjax.reproducible(lambda x, z: PROGRAMS[name](x, z))(x, z)
    assert_same_bits(jax.tree.map(parts, found), jax.tree.map(parts, without))


def test_no_other_passes():
    """A large transform is the kernel's call and nothing else."""
    z = jnp.zeros((160, 128), np.complex64)
    for function, x in ((jnp.fft.fft2, z), (jnp.fft.rfft, z.real), (jnp.fft.irfft, z)):
        lowered = jax.jit(repjax.reproducible(lambda x, f=function: f(x))).lower(x)
        text = lowered.compile().as_text()
        assert text.count("custom_call_target") == 1 and "fusion" not in text, text


def test_batches_of_the_function():
    x = normal((3, 5, 40))
    found = jax.vmap(repjax.reproducible(jnp.fft.rfft))(x)
    assert_same_bits(parts(found), parts(repjax.reproducible(jnp.fft.rfft)(x)))
    assert bits(found.real).any()
