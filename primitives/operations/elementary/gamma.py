"""What lgamma and digamma share: the shift to arguments of at least 8, and sin and cos of pi x.

Where 0 <= y < 8, the product that takes Gamma(y + 8) to Gamma(y + 1) and the derivative of its
logarithm are, with v = y + 4 and q = v**2,

    n = (y + 1) (y + 2) ... (y + 7) = v (q - 1) (q - 4) (q - 9)
    1 / (y + 1) + 1 / (y + 2) + ... + 1 / (y + 7) = (7 q**3 - 70 q**2 + 147 q - 36) / n

On the negative axis the reflection needs y = n + r with an integer n and |r| <= 1/2, and

    sin(pi r) = pi r (1 + t p(t))    p of degree 10, three coefficients given as pairs
    cos(pi r) = 1 + t p(t)           p of degree 10, four coefficients given as pairs

with t = r**2, which is exact; the errors of the polynomials are below 2**-69.
"""

from jax import lax

from repjax.primitives.operations.elementary import double_double
from repjax.primitives.operations.elementary.basics import const, constant_pairs, constants
from repjax.primitives.operations.elementary.double_double import add, divide, multiply, single

# python -m repjax.primitives.operations.elementary.generate gamma
# degree 10, weighted error 2**-69.27
SIN_PAIRS = constant_pairs("""
    -0x1.a51a6625307d3p+0 -0x1.1873d8637c20ap-55
    0x1.9f9cb402bc46cp-1 0x1.487aa4346b2b3p-55
    -0x1.86a8e4720db67p-3 0x1.4683beb81a4c2p-58
""")
SIN = constants("""
    0x1.ac6805cf350a6p-6
    -0x1.33816aa46079fp-9
    0x1.374719fab2e21p-13
    -0x1.d42498d0fb369p-18
    0x1.0fc992aae1d31p-22
    -0x1.f5f98071910b8p-28
    0x1.795ac546d8ab8p-33
    -0x1.cbc4b0b187206p-39
""")
# degree 10, weighted error 2**-69.19
COS_PAIRS = constant_pairs("""
    -0x1.3bd3cc9be45dep+2 -0x1.692b70a807ff5p-52
    0x1.03c1f081b5ac4p+2 -0x1.32b3c081a45cbp-52
    -0x1.55d3c7e3cbffap+0 0x1.e9d01df8bfac7p-59
    0x1.e1f506891babbp-3 -0x1.f4e458b71a0efp-58
""")
COS = constants("""
    -0x1.a6d1f2a204a66p-6
    0x1.f9d38a3761a96p-10
    -0x1.b6e24f4368461p-14
    0x1.20c62bab97869p-18
    -0x1.2a0c13ad0b22cp-23
    0x1.ef3fc1b6a6817p-29
    -0x1.49c081a36fb77p-34
""")

#: Where the asymptotic series begin.
LARGE = 8
# The derivative of the product n, a polynomial in q.
DERIVATIVE = ((-36.0, 0.0), (147.0, 0.0), (-70.0, 0.0), (7.0, 0.0))


def shift(y):
    """``(small, z)``: where y < 8, and y + 8 there, else y, as a pair."""
    small = lax.lt(y, const(y, LARGE))
    return small, add(single(y), single(lax.select(small, const(y, LARGE), const(y, 0))))


def _factors(y):
    """The pairs v, q and (q - 1) (q - 4) (q - 9)."""
    v = add(single(y), single(const(y, 4)))
    q = multiply(v, v)
    first, second, third = (add(q, single(const(y, -c))) for c in (1, 4, 9))
    return v, q, multiply(multiply(first, second), third)


def product(y):
    """The pair (y + 1) (y + 2) ... (y + 7)."""
    v, _, cubic = _factors(y)
    return multiply(v, cubic)


def sum_of_reciprocals(y):
    """The pair 1 / (y + 1) + 1 / (y + 2) + ... + 1 / (y + 7)."""
    v, q, cubic = _factors(y)
    derivative = double_double.horner(q, DERIVATIVE)
    return divide(derivative, multiply(v, cubic))


def fraction(y):
    """y less the nearest integer, in [-1/2, 1/2]; exact for a float32 >= 0."""
    return y - lax.floor(y + const(y, 0.5))


def _one_plus(t, pairs, singles):
    p = multiply(single(t), double_double.horner(single(t), pairs, singles))
    return add(p, single(const(t, 1)))


def sin_ratio(r):
    """The pair sin(pi r) / (pi r)."""
    return _one_plus(r * r, SIN_PAIRS, SIN)


def cos(r):
    """The pair cos(pi r)."""
    return _one_plus(r * r, COS_PAIRS, COS)
