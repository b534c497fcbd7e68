"""Elementwise operations that fused groups take, and random programs of them."""

from __future__ import annotations

import random

import jax
import numpy as np
from jax import lax

from repjax.primitives.cpu import bytecode
from repjax.verify import vectors

PRIMITIVES = vectors.registered()


ELEMENTARY = {
    **{name: lambda x, y, name=name: PRIMITIVES[name].bind(x) for name in bytecode.ELEMENTARY},
    **{name: PRIMITIVES[name].bind for name in bytecode.OF_TWO},
}


#: Functions that are not correctly rounded.
SPECIAL = {
    **{name: lambda x, y, name=name: PRIMITIVES[name].bind(x) for name in bytecode.SPECIAL},
    **{name: PRIMITIVES[name].bind for name in bytecode.GRAPHS},
    "zeta of 3": lambda x, y: lax.zeta(lax.full_like(y, 3), y),
    "polygamma of 2": lambda x, y: lax.polygamma(lax.full_like(y, 2), y),
}


FLOAT_OPERATIONS = {
    **ELEMENTARY,
    **SPECIAL,
    "add": lax.add,
    "sub": lax.sub,
    "sum of three": lambda x, y: PRIMITIVES["add_n"].bind(x, y, lax.abs(x)),
    "sum of five": lambda x, y: PRIMITIVES["add_n"].bind(x, y, lax.abs(x), x, lax.neg(y)),
    "mul": lax.mul,
    "div": lax.div,
    "neg": lambda x, y: lax.neg(x),
    "sqrt": lambda x, y: lax.sqrt(x),
    "rsqrt": lambda x, y: lax.rsqrt(lax.abs(y)),
    "square": lambda x, y: lax.square(x),
    "power": lambda x, y: lax.pow(x, lax.bitcast_convert_type(y, np.int32) >> 24),
    "one minus square": lambda x, y: jax.jvp(lax.tanh, (x,), (y,))[1],
    "max": lax.max,
    "min": lax.min,
    "clamp": lambda x, y: lax.clamp(y, x, lax.abs(x)),
    "clamp by numbers": lambda x, y: lax.clamp(x.dtype.type(-0.5), x, x.dtype.type(0.5)),
    "abs": lambda x, y: lax.abs(x),
    "sign": lambda x, y: lax.sign(x),
    "floor": lambda x, y: lax.floor(x),
    "ceil": lambda x, y: lax.ceil(x),
    "round to even": lambda x, y: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round": lambda x, y: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "to integer": lambda x, y: x.astype(np.int32),
    **{f"x**{n}": lambda x, y, n=n: lax.integer_pow(x, n) for n in (-3, -1, 0, 1, 2, 5)},
    **{f.__name__: f for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)},
    "select": lambda x, y: lax.select(lax.lt(x, y), x, y),
    "bool to float": lambda x, y: (x < y).astype(np.float32),
    "bool to int": lambda x, y: (x < y).astype(np.int32),
    "float to bool": lambda x, y: x.astype(bool),
    "bits": lambda x, y: lax.bitcast_convert_type(x, np.int32),
    "logic": lambda x, y: ((x < y) & (y > 0)) | ~(x > 1) ^ (x != y),
}


#: Those that are the float32 operation and one rounding; conversions.
HALF_OPERATIONS = {
    **{
        name: operation
        for name, operation in FLOAT_OPERATIONS.items()
        if name not in ("rsqrt", "power", "one minus square", "bits", *ELEMENTARY, *SPECIAL)
    },
    "to float32": lambda x, y: x.astype(np.float32) * y.astype(np.float32),
    "from float32": lambda x, y: (x.astype(np.float32) * y.astype(np.float32)).astype(x.dtype),
    "to the other": lambda x, y: (x / y).astype(
        np.float16 if x.dtype == jax.numpy.bfloat16 else jax.numpy.bfloat16
    ),
}


INTEGER_OPERATIONS = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "not": lambda x, y: lax.bitwise_not(x),
    "neg": lambda x, y: lax.neg(x),
    "abs": lambda x, y: abs(x),
    "sign": lambda x, y: lax.sign(x),
    "square": lambda x, y: lax.square(x),
    "div": lax.div,
    "rem": lax.rem,
    "div by few": lambda x, y: lax.div(x, y % 5),
    "rem by few": lambda x, y: lax.rem(x, lax.rem(y, x.dtype.type(5))),
    "floor": lambda x, y: (x // 7) * (x % 7),
    **{
        f"div and rem by {n}": lambda x, y, n=n: lax.div(x, x.dtype.type(n)) ^ (x % x.dtype.type(n))
        for n in (1, 2, 3, 10, 641, 2**16 + 1, 2**31 - 1)
    },
    **{f.__name__: f for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)},
    "shift left": lambda x, y: lax.shift_left(x, y & 63),
    "shift right": lambda x, y: lax.shift_right_logical(x, y & 63),
    "shift right, signed": lambda x, y: lax.shift_right_arithmetic(x, y & 63),
    "to float": lambda x, y: x.astype(np.float32) * y.astype(np.float32),
    "to bool": lambda x, y: x.astype(bool),
    "floats of bits": lambda x, y: lax.bitcast_convert_type(x, np.float32),
}


def random_groups(seed: int):
    """A program of random operations on arrays of three shapes, with sums and broadcasts."""

    def program(x, row, column):
        choose = random.Random(seed)
        arrays = [x, row, column, x > 0.3]
        for _ in range(choose.randint(5, 40)):
            a, b = (choose.choice(arrays) for _ in range(2))
            kind = choose.randrange(7)
            if a.dtype == np.bool_:
                if b.shape == a.shape:
                    arrays.append(jax.numpy.where(a, b, 1.5))
            elif kind < 4 and b.dtype != np.bool_:
                if b.shape in (a.shape, a.shape[1:], (*a.shape[:1], 1)[: a.ndim]):
                    operation = choose.choice(list(FLOAT_OPERATIONS.values())[:9])
                    arrays.append(operation(a, jax.numpy.broadcast_to(b, a.shape)))
            elif kind == 4 and a.ndim:
                arrays.append(a.sum(choose.randrange(a.ndim), keepdims=choose.random() < 0.5))
            elif kind == 5:
                arrays.append(choose.choice((lax.exp, lambda a: a.reshape(-1, 1), lax.tanh))(a))
            elif a.shape == b.shape and b.dtype != np.bool_:
                arrays.append(a < b)
        return arrays[-1], arrays[-3:], choose.choice(arrays)

    return program
