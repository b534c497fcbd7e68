"""Expressions, and NumPy float32 in which each of their operations is rounded on its own."""

from __future__ import annotations

import operator

import numpy as np

from helpers.arithmetic import pairs
from helpers.bits import canonical, patterns
from repjax.verify.reference.values import flush, guard


class Rounded:
    """NumPy float32 in which every operation is rounded, then canonical, on its own."""

    __array_ufunc__ = None

    def __init__(self, x):
        self.x = canonical(np.asarray(x, np.float32))

    @staticmethod
    def _operation(operation, canonicalize):
        def apply(a, b):
            with np.errstate(all="ignore"):
                return Rounded(canonicalize(operation(Rounded.of(a).x, Rounded.of(b).x)))

        return apply, lambda a, b: apply(b, a)

    @staticmethod
    def of(x):
        return x if isinstance(x, Rounded) else Rounded(x)


for _name, _operation, _canonicalize in (
    ("add", operator.add, flush),
    ("sub", operator.sub, flush),
    ("mul", operator.mul, guard),
    ("truediv", operator.truediv, guard),
):
    _forward, _backward = Rounded._operation(_operation, _canonicalize)
    setattr(Rounded, f"__{_name}__", _forward)
    setattr(Rounded, f"__r{_name}__", _backward)


BIG = np.float32(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to an integer


EXPRESSIONS = {
    "x / constant": lambda x, y, s, mask: x / 3.0,
    "x / scalar": lambda x, y, s, mask: x / s,
    "constant / x": lambda x, y, s, mask: 0.7 / x,
    "x * constant + y": lambda x, y, s, mask: x * 0.1 + y,
    "x * y + z": lambda x, y, s, mask: x * y + s,
    "y - x * y": lambda x, y, s, mask: y - x * y,
    "x * y - x * y": lambda x, y, s, mask: x * y - y * x,
    "sums of constants": lambda x, y, s, mask: (x + 0.1) + 0.7,
    "products of constants": lambda x, y, s, mask: (x * 0.1) * 0.7,
    "quotients": lambda x, y, s, mask: (x / 3.0) / 7.0,
    "nested quotients": lambda x, y, s, mask: (x / y) / (s / x),
    "quotient of product": lambda x, y, s, mask: x / (y * s),
    "magic number": lambda x, y, s, mask: (x + BIG) - BIG,
    "back again": lambda x, y, s, mask: (x + y) - x,
    "two_sum": lambda x, y, s, mask: (x - ((x + y) - ((x + y) - x))) + (y - ((x + y) - x)),
    "distributed": lambda x, y, s, mask: x * 0.1 + x * 0.7,
    "mask": lambda x, y, s, mask: x * mask,
    "masked sum": lambda x, y, s, mask: x * mask + y,
    "zero times": lambda x, y, s, mask: x * 0.0 + y,
    "times one": lambda x, y, s, mask: (x * 1.0 + 0.0) / 1.0,
    "minus zero": lambda x, y, s, mask: (0.0 - x) * -0.0 + -0.0,
    "x / x": lambda x, y, s, mask: x / x + (y - y),
    "subnormal constant": lambda x, y, s, mask: x + 1e-40,
}


def expression_operands():
    moderate = np.random.default_rng(11).standard_normal((2, 4000)).astype(np.float32)
    x, y = (np.concatenate([m, p[-9000:]]) for m, p in zip(moderate, pairs(), strict=True))
    return x, y, np.float32(0.3), patterns(x.size, 12, np.bool_)
