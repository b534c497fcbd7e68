"""The arithmetic of PTX, bit for bit: functions of NumPy arrays, one element for each thread.

Where the PTX manual leaves bits open (approximations), something plausible is computed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

_TYPES = {
    "pred": np.dtype(bool),
    "f16": np.dtype("f2"),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}
FLOATS = ("f16", "bf16", "f32", "f64")
_TYPES |= {
    f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}")
    for bits in (8, 16, 32, 64)
    for letter, kind in (("b", "u"), ("u", "u"), ("s", "i"))
}
WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_TO_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
APPROXIMATE = {"rsqrt": lambda x: 1 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2}
APPROXIMATE |= {"sin": np.sin, "cos": np.cos, "tanh": np.tanh}


def dtype_of(kind: str) -> np.dtype:
    if kind not in _TYPES:
        raise NotImplementedError(f"PTX type {kind}")
    return _TYPES[kind]


def _odd_sum(x, y):
    """x + y of float64, rounded to odd."""
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits = total.view(np.int64)
    odd = np.where((error > 0) == (total > 0), bits | 1, bits - 1 | 1)
    return np.where(np.isfinite(error) & (error != 0) & (bits & 1 == 0), odd, bits).view(np.float64)


def _towards_zero(x):
    """float64 to float32."""
    r = x.astype(np.float32)
    return np.where(np.abs(r) > np.abs(x), np.nextafter(r, np.float32(0)), r)


def fma(x, y, z):
    """Correctly rounded float32 ``x * y + z``: the sum of the exact product, rounded to odd."""
    x, y, z = (np.asarray(a, np.float64) for a in (x, y, z))
    return _odd_sum(x * y, z).astype(np.float32)


def of_floats(op: list[str], *v):
    """Arithmetic on f32 and f64, rounded to nearest."""
    name = op[0]
    if op == ["add", "rz", "f32"]:
        return _canonical_nan(_towards_zero(_odd_sum(*(x.astype(np.float64) for x in v))))
    if op == ["add", "rn", "ftz", "f32"]:
        return _without_subnormals(of_floats(["add", "rn", "f32"], *map(_without_subnormals, v)))
    if {"rz", "rm", "rp", "ftz", "xorsign"} & {*op}:
        raise NotImplementedError(".".join(op))
    if name in ("neg", "abs"):
        return -v[0] if name == "neg" else np.abs(v[0])
    if name == "copysign":
        return np.copysign(v[1], v[0])
    if name in ("min", "max"):
        r = getattr(np, name + "imum" if "NaN" in op else "f" + name)(*v)
        zero = v[0] + v[1] if name == "max" else -(-v[0] - v[1])  # -0 < +0
        r = np.where((v[0] == 0) & (v[1] == 0), zero, r)
    elif name in APPROXIMATE:
        r = APPROXIMATE[name](v[0].astype(np.float64)).astype(v[0].dtype)
    elif name in ("fma", "mad"):  # that of float64 if the product is exact
        r = fma(*v) if op[-1] == "f32" else v[0] * v[1] + v[2]
    elif name == "rcp":
        r = v[0].dtype.type(1) / v[0]
    else:
        functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
        r = (functions | {"div": np.divide, "sqrt": np.sqrt})[name](*v)
    return _canonical_nan(np.clip(r, 0, 1) if "sat" in op else r)


def _without_subnormals(x):
    """Zeros of the same signs in their place."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def _canonical_nan(x):
    """A GPU's NaN; the payloads of float64 are not modelled."""
    if x.dtype == "f8":
        return x
    word = WORD[x.dtype.itemsize]
    nan = word(np.iinfo(word).max >> 1).view(x.dtype)
    return np.where(np.isnan(x), nan, x).astype(x.dtype)


OF_HALVES = ("neg", "abs", "min", "max")


def of_halves(op: list[str], *v):
    """What is exact in f16 and bf16; the sign of a NaN is an ordinary bit to neg and abs."""
    if op[0] in ("neg", "abs"):
        sign, word = np.uint16(0x8000), v[0].view(np.uint16)
        return (word ^ sign if op[0] == "neg" else word & ~sign).view(v[0].dtype)
    r = of_floats([*op[:-1], "f32"], *(x.astype(np.float32) for x in v))
    return _canonical_nan(r.astype(v[0].dtype))


def is_whole(x):
    return (np.rint(x) == x) | np.isnan(x)


def are_float32(x):
    return (x.astype(np.float32) == x) | np.isnan(x)


def drawn_sum(terms, draws: np.random.Generator):
    """The float64 sum along the first axis, by a drawn tree of additions that are rounded."""
    parts = list(draws.permutation(terms))
    while len(parts) > 1:
        i = draws.integers(len(parts) - 1)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0]


def are_exact(operands, results):
    """Where float64 operands are integers and the results small ones; or infinite or NaN."""
    small = [~(np.abs(x) >= 2.0**53) | ~np.isfinite(x) for x in results]
    return functools.reduce(np.logical_and, [*map(is_whole, operands), *small])


def of_integers(op: list[str], carry, x, y=None, z=None):
    """Two's complement arithmetic: the result and the carry."""
    name, bits = op[0], 8 * x.dtype.itemsize
    if name in ("neg", "abs"):
        return (-x if name == "neg" else np.abs(x)), carry
    if name in ("min", "max"):
        return getattr(np, name + "imum")(x, y), carry
    if name in ("div", "rem"):
        quotient = x // np.where(y == 0, y.dtype.type(1), y)  # rounds down; PTX truncates
        quotient += ((x != quotient * y) & ((x < 0) != (y < 0))).astype(y.dtype)
        return (quotient if name == "div" else x - quotient * y), carry
    if name in ("mul", "mad", "madc"):
        if "wide" in op:
            product = x.astype(f"{x.dtype.kind}{bits // 4}") * y
        elif "hi" in op:
            product = (x.astype(object) * y.astype(object) >> bits) & (2**bits - 1)
            product = product.astype(WORD[bits // 8])
        else:
            product = x * y
        x, y = product, np.zeros_like(product) if z is None else z
    word = WORD[x.dtype.itemsize]
    x, y, one = x.view(word), y.view(word), carry.astype(word)
    if name in ("sub", "subc"):
        return x - y - one, (x < y) | ((x == y) & carry)
    r = x + y + one
    return r, (r < x) | ((r == x) & carry)


def _shift(op, x, count):
    """Counts beyond the width give 0, or the sign."""
    last = 8 * x.dtype.itemsize - 1
    by = np.minimum(count, last).astype(x.dtype)
    r = x << by if op[0] == "shl" else x >> by
    return np.where((count > last) & (op[-1][0] != "s"), x.dtype.type(0), r)


def _funnel(op, low, high, count):
    count = count & 31 if "wrap" in op else np.minimum(count, 32)
    both, count = high.astype(np.uint64) << np.uint64(32) | low, count.astype(np.uint64)
    return (both << count) >> np.uint64(32) if "l" in op else both >> count


def _permute(op, x, y, selector):
    """prmt: four bytes of eight."""
    if op[1] != "b32":
        raise NotImplementedError(".".join(op))
    both, r = y.astype(np.uint64) << np.uint64(32) | x, np.zeros_like(x)
    for i in range(4):
        choice = selector >> np.uint32(4 * i)
        byte = (both >> (choice & 7).astype(np.uint64) * np.uint64(8)).astype(np.uint32) & 255
        sign = np.where(byte & 128, np.uint32(255), np.uint32(0))
        r |= np.where(choice & 8, sign, byte).astype(np.uint32) << np.uint32(8 * i)
    return r


def _extract(op, x, start, length):
    """bfe: a bit field, sign-extended for signed types."""
    kind = np.int64 if x.dtype.kind == "i" else np.uint64
    start, length = start & 255, length & 255
    r = _shift(op, x.astype(kind), start)
    unused = (64 - np.clip(length, 1, 64)).astype(kind)
    return np.where(length == 0, kind(0), r << unused >> unused)


def _convert(op, x, low=None):
    """cvt between integers and floats; of two to a pair of halves."""
    to, source = op[-2:]
    if low is not None and to in ("f16x2", "bf16x2"):
        pair = [_convert([*op[:-2], to[:-2], source], y).view(np.uint16) for y in (x, low)]
        return pair[0].astype(np.uint32) << np.uint32(16) | pair[1]
    target = dtype_of(to).type
    is_float = source in FLOATS
    # NumPy rounds to bfloat16 twice, but from float32.
    twice = to == "bf16" and source not in ("bf16", "f16", "f32", "u8", "s8", "u16", "s16")
    if {"rz", "rm", "rp", "ftz", "relu"} & {*op} or (not is_float and "sat" in op) or twice:
        raise NotImplementedError(".".join(op))
    if not is_float:
        return x.astype(target)
    x = x.astype(np.float32) if source in ("f16", "bf16") else x
    r = next((_TO_INTEGRAL[p] for p in op if p in _TO_INTEGRAL), lambda x: x)(x)
    if to in FLOATS:
        return _canonical_nan((np.clip(r, 0, 1) if "sat" in op else r).astype(target))
    limits = np.iinfo(target)
    wide = source == "f64" or limits.bits == 64
    nan = 0 if not wide else limits.min if to[0] == "s" else limits.max - (limits.max >> 1)
    where = [np.isnan(r), r >= float(limits.max), r <= float(limits.min)]
    inside = np.where(np.any(where, axis=0), 0, r).astype(target)
    return np.select(where, [target(nan), target(limits.max), target(limits.min)], inside)


def _reverse(op, x):
    bits = 8 * x.dtype.itemsize
    r = np.zeros_like(x)
    for i in range(bits):
        r |= (x >> x.dtype.type(i) & x.dtype.type(1)) << x.dtype.type(bits - 1 - i)
    return r


#: The function of the opcode's parts and the operands, and their types after the first.
PURE: dict[str, tuple[Callable[..., Any], tuple[str | None, ...]]] = {
    "not": (lambda op, x: ~x, ()),
    "popc": (lambda op, x: np.bitwise_count(x), ()),
    "clz": (lambda op, x: 8 * x.dtype.itemsize - np.frexp(x.astype(np.longdouble))[1], ()),
    "brev": (_reverse, ()),
    "shf": (_funnel, ()),
    "prmt": (_permute, ()),
    "cvt": (_convert, ()),
    "shl": (_shift, ("u32",)),
    "shr": (_shift, ("u32",)),
    "bfe": (_extract, ("u32", "u32")),
    "selp": (lambda op, x, y, choice: np.where(choice, x, y), (None, "pred")),
    "lop3": (lambda op, x, y, z, table: _lookup(x, y, z, int(table[0])), ()),
} | {name: (lambda op, x, y: LOGIC[op[0]](x, y), ()) for name in LOGIC}


def _lookup(x, y, z, table: int):
    """lop3: any function of three bits."""
    terms = [x if i & 4 else ~x for i in range(8)]
    terms = [t & (y if i & 2 else ~y) & (z if i & 1 else ~z) for i, t in enumerate(terms)]
    chosen = [t for i, t in enumerate(terms) if table >> i & 1]
    return functools.reduce(operator.or_, chosen, np.zeros_like(x))
