"""x1 + x2 + ... + xn with one rounding, whatever the order of the terms.

It adds the cotangents of a value that is used several times (:mod:`repjax.cotangents`), in
the order of whose uses versions of JAX differ.

Contract: for canonical float32 arrays of one shape, flush(RN(the exact sum)).  For two it is
``add``.  An infinity or a NaN among the terms gives what IEEE arithmetic gives in any order.

Up to :data:`MOST_PARTS` terms are added in float64 to an expansion, numbers that do not overlap and
whose sum is exact (Shewchuk 1997, "Adaptive precision floating-point arithmetic and fast robust
geometric predicates", GROW-EXPANSION).  In round-to-even two of its parts are never adjacent
(Theorem 10 there), so that all below a part are together less than half of its last bit: added from
the smallest to the largest, each sum rounded to odd, they give their sum rounded to odd.  That
rounds to float32 as the exact sum would (``canonical.round_to_odd``).  Terms are multiples
of 2**-149 and below 2**128, so that in float64 nothing underflows or overflows.

More terms are added as integers: the 24 bits of a term, shifted, are parts of two of ten words of
32 bits, which hold any sum of 2**31 terms (Kulisch and Miranker 1986, "The arithmetic of the
digital computer: a new approach").
"""

from __future__ import annotations

import functools
import operator

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.interpret import interpret_function
from repjax.primitives.core.tables import CODE_SIZE, Context
from repjax.primitives.core.values import canonicalize, is_complex
from repjax.primitives.operations.arithmetic import add_p

#: With more terms the work on expansions, which grows with the square of their number, is larger.
MOST_PARTS = 8
_WORDS = 10
_WORD = 32


def _expansion(terms):
    """Float64 arrays of the same sum, of increasing magnitude, no two of them adjacent."""
    parts: list[jax.Array] = []
    for x in terms:
        grown = []
        for part in parts:
            x, rest = canonical.two_sum(part, x)
            grown.append(rest)
        parts = [*grown, x]
    return parts


def _words(x):
    """The exact sums of float32 over the first axis, as float64 arrays of increasing magnitude.

    Each is a digit of its word, from -2**31 to 2**31, so that those below it are together little
    more than half of its last bit: their sums, rounded to odd, lose at most a bit at each word.
    """
    i = canonical.bits(x)
    field = lax.shift_right_logical(i & 0x7FFFFFFF, np.int32(23))
    # Canonical numbers are m 2**(position - 149), m of 24 bits and a sign.
    position = lax.max(field - 1, np.int32(0))
    mantissa = lax.select(field == 0, lax.full_like(i, 0), (i & 0x7FFFFF) | 0x800000)
    mantissa = lax.convert_element_type(lax.select(i < 0, -mantissa, mantissa), np.int64)
    word, shift = lax.div(position, np.int32(_WORD)), lax.rem(position, np.int32(_WORD))
    shifted = lax.shift_left(mantissa, lax.convert_element_type(shift, np.int64))
    low, high = shifted & 0xFFFFFFFF, lax.shift_right_arithmetic(shifted, np.int64(_WORD))

    digits, carry, half = [], 0, np.int64(1 << (_WORD - 1))
    for k in range(_WORDS):
        zero = lax.full_like(shifted, 0)
        part = lax.select(word == k, low, zero) + lax.select(word == k - 1, high, zero)
        total = lax.reduce_sum(part, (0,)) + carry
        carry = lax.shift_right_arithmetic(total + half, np.int64(_WORD))
        digit = canonical.to_float64(total - lax.shift_left(carry, np.int64(_WORD)))
        digits.append(digit * np.float64(2.0 ** (_WORD * k - 149)))
    return digits


def _nearest(y):
    return canonical.flush(lax.convert_element_type(y, np.float32))


def _nearest_odd(y):
    return _nearest(canonical.to_odd(y))


def body(*terms, rounded=_nearest):
    """The rounded exact sum of three or more canonical float32 arrays."""
    wide = [canonical.to_float64(x) for x in terms]
    if len(terms) <= MOST_PARTS:
        parts = _expansion(wide)
    else:
        parts = _words(lax.concatenate([lax.expand_dims(x, [0]) for x in terms], 0))
    total = parts[0]
    for part in parts[1:]:
        total = canonical.round_to_odd(*canonical.two_sum(part, total))
    # A float64 sum of finite terms is finite; any other sum is that of IEEE arithmetic.
    plain = functools.reduce(operator.add, wide)
    magnitude, infinity = canonical.bits(lax.abs(plain)), canonical.format_of(plain).infinity
    return rounded(lax.select(magnitude < infinity, total, plain))


def _stock(*terms):
    return functools.reduce(lax.add, terms)


def _jvp(tangents, result, *terms):
    del result, terms
    return add_n(*(t for t in tangents if t is not None))


add_n_p = define(
    "add_n",
    body,
    _stock,
    jvp=_jvp,
    halves=canonical.flush,
    half_body=functools.partial(body, rounded=_nearest_odd),
)
CODE_SIZE["add_n"] = 32


def _batch(terms, dims):
    """As stock additions, which :func:`define` would batch, it would be rounded after each."""
    size = next(x.shape[d] for x, d in zip(terms, dims, strict=True) if d is not None)

    def at_front(*terms):
        return [batching.bdim_at_front(x, d, size) for x, d in zip(terms, dims, strict=True)]

    return add_n_p.bind(*interpret_function(Context(), at_front, terms)), 0


batching.primitive_batchers[add_n_p] = _batch


def add_n(*terms):
    """The sum of float32, float16, bfloat16 or complex64 arrays of one shape and type."""
    if len(terms) == 1:
        return terms[0]
    terms = [canonicalize(x) for x in terms]
    if is_complex(jax.typeof(terms[0])):
        return lax.complex(*(add_n(*map(part, terms)) for part in (lax.real, lax.imag)))
    return (add_p if len(terms) == 2 else add_n_p).bind(*terms)
