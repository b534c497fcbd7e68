"""Programs that have row groups, the operations that these take, and how they are found."""

from __future__ import annotations

import random

import flax.linen as nn
import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from helpers.bits import SPECIALS, normal, patterns
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion import rows
from repjax.primitives.gpu import takes
from repjax.primitives.operations.elementary import table as elementary
from repjax.verify import vectors


def floats(shape, seed: int, dtype=np.float32) -> np.ndarray:
    """Ordinary numbers of many binades; some rows have special values, one nothing else."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(normal(np.prod(shape), seed), rng.integers(-6, 7, np.prod(shape)))
    x = x.astype(np.float32).reshape(-1, shape[-1])
    for row in x[1::3]:
        row[rng.integers(len(row), size=2)] = rng.choice(SPECIALS, 2)
    x[2::7] = rng.choice(SPECIALS, x[2::7].shape)
    with np.errstate(all="ignore"):
        return x.reshape(shape).astype(dtype)


UNARY = "canonicalize ceil floor neg one_minus_square rsqrt sqrt square"
BINARY = "add div mul nextafter rem sub"


INTEGER = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "max": lax.max, "min": lax.min}


INTEGER |= {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}


INTEGER |= {"clamp": lambda i, j: lax.clamp(-5, i, j), "sign": lambda i, j: lax.sign(i)}


INTEGER |= {"not": lambda i, j: ~i, "abs": lambda i, j: lax.abs(i)}


BOOLEAN = {f.__name__: f for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)}


def _choose(i, j):
    return jnp.where(i == j, i, j)


def _operations():
    """Of each operation that row groups take: a function of floats x, y and integers i, j."""
    known = vectors.registered()
    for name in (*UNARY.split(), *elementary.names(arity=1, in_rows=True)):
        yield PREFIX + name, lambda x, y, i, j, f=known[name].bind: f(x)
    for name in (*BINARY.split(), *elementary.names(arity=2, in_rows=True)):
        yield PREFIX + name, lambda x, y, i, j, f=known[name].bind: f(x, y)
    add_n = known["add_n"].bind
    yield PREFIX + "add_n", lambda x, y, i, j: (add_n(x, y, -x), add_n(x, y, lax.abs(y), x))
    yield PREFIX + "integer_pow", lambda x, y, i, j: (x**3, lax.integer_pow(y, -2))
    yield (
        PREFIX + "convert_element_type",
        lambda x, y, i, j: [
            *(x.astype(d) for d in (*HALVES, np.int32, np.uint32, bool) if d != x.dtype),
            *(a.astype(np.float32) for a in (i, j, i > j)),
            i.astype(x.dtype) * x,
        ],
    )
    for name, function in BOOLEAN.items():
        yield name, lambda x, y, i, j, f=function: [f(x, y), f(i, j), f(i, i)]
    yield "ne", lambda x, y, i, j: (x > y) != (i > j)
    yield "select_n", lambda x, y, i, j: [jnp.where(x > y, x, y), jnp.where(x > y, i, j)]
    yield "max", lambda x, y, i, j: lax.max(x, y)
    yield "min", lambda x, y, i, j: lax.min(x, y)
    yield "clamp", lambda x, y, i, j: [lax.clamp(-lax.abs(y), x, y), jnp.clip(x, -0.5, 0.5)]
    yield "abs", lambda x, y, i, j: lax.abs(x)
    yield "sign", lambda x, y, i, j: lax.sign(x)
    yield "is_finite", lambda x, y, i, j: lax.is_finite(x)
    for name, function in INTEGER.items():
        yield name, lambda x, y, i, j, f=function: f(i, j)
        if name in ("and", "or", "xor", "not"):
            yield name, lambda x, y, i, j, f=function: f(x > y, i > j)
    yield "convert_element_type", lambda x, y, i, j: [(x > y).astype(np.int32), i.astype(bool)]
    for name in ("eq", "ne", "select_n", "add", "sub", "mul", "and", "or", "xor", "not"):
        function = {"select_n": _choose, **BOOLEAN, **INTEGER}[name]
        yield name, lambda x, y, i, j, f=function: f(i.astype(np.uint32), j.astype(np.uint32))


OPERATIONS = [*_operations()]


def as_rows(operation):
    """The results, and sums that put them into a row group."""

    def program(x, y, i, j):
        results = jax.tree.leaves(operation(x, y, i, j))
        own = [r.astype(np.float32) if r.dtype != np.float32 else r for r in results]
        return results, [r.sum(1) for r in own]

    return program


def operands_of(dtype):
    rng = np.random.default_rng(3)
    x, y = (floats((9, 20), seed, dtype) for seed in (1, 2))
    x[3:6], y[3:6] = (patterns(60, seed, dtype).reshape(3, 20) for seed in (5, 6))
    y[:, ::5] = x[:, ::5]
    i, j = rng.integers(-20, 20, (2, 9, 20)).astype(np.int32)
    return x, y, i, j


#: Of 16 bits, those that differ in how they are computed; all others are float32 in between.
OF_HALVES = {PREFIX + name for name in ("add", "div", "exp", "rsqrt", "convert_element_type")}


OF_HALVES |= takes.EXACT


X, LABELS = floats((8, 100), 7), np.arange(8, dtype=np.int32) * 3


LAYER_NORM = nn.LayerNorm()


PARAMETERS = {"params": {name: floats((1, 100), i)[0] for i, name in enumerate(("scale", "bias"))}}


def cross_entropy(x, labels):
    return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()


def one_hot_cross_entropy(x, labels):
    return optax.softmax_cross_entropy(x, jax.nn.one_hot(labels, x.shape[1])).mean()


def layer_norm(parameters, x):
    return LAYER_NORM.apply(parameters, x)


def gradient(function, argnums=0):
    """Of a sum of squares, whose derivative is in the program too."""
    return jax.grad(lambda *a: (function(*a) ** 2).sum(), argnums)


def attention(q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * np.float32(0.35)
    scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


QKV = tuple(floats((2, 16, 3, 8), i)[:, :, :2] for i in range(3))


CAUSAL = np.tril(np.ones((16, 16), bool))


#: A function, its arguments, and the shapes of its row groups, one kernel each.
PROGRAMS = {
    "softmax": (jax.nn.softmax, (X,), [(8, 100)]),
    "softmax, gradient": (gradient(jax.nn.softmax), (X,), [(8, 100)]),
    "softmax of bfloat16": (jax.nn.softmax, (floats(X.shape, 1, jnp.bfloat16),), [(8, 100)]),
    "log_softmax": (jax.nn.log_softmax, (X,), [(8, 100)]),
    "log_softmax, gradient": (gradient(jax.nn.log_softmax), (X,), [(8, 100)]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), (X,), [(8, 100)]),
    "softmax of trailing axes": (
        lambda x: jax.nn.softmax(x, (1, 2)),
        (X.reshape(4, 10, 20),),
        [(4, 200)],
    ),
    "layer norm": (layer_norm, (PARAMETERS, X), [(8, 100)]),
    "layer norm, gradients": (gradient(layer_norm, (0, 1)), (PARAMETERS, X), [(8, 100)]),
    "layer norm of float16": (
        nn.LayerNorm(dtype=np.float16).apply,
        (PARAMETERS, floats(X.shape, 1, np.float16)),
        [(8, 100)],
    ),
    "RMS norm": (nn.RMSNorm().apply, ({"params": {"scale": X[0]}}, X), [(8, 100)]),
    # The sum of all is another: of one row.
    "cross-entropy": (cross_entropy, (X, LABELS), [(8, 100), (1, 8)]),
    "cross-entropy, gradient": (
        jax.value_and_grad(cross_entropy),
        (X, LABELS),
        [(8, 100), (1, 8)],
    ),
    "one-hot cross-entropy": (one_hot_cross_entropy, (X, LABELS), [(8, 100), (1, 8)]),
    "one-hot cross-entropy, gradient": (
        jax.value_and_grad(one_hot_cross_entropy),
        (X, LABELS),
        [(8, 100), (1, 8)],
    ),
    "attention": (attention, (*QKV, CAUSAL), [(64, 16)]),
    # Its values and their products with others are needed in between.
    "attention, gradients": (
        gradient(attention, (0, 1, 2)),
        (*QKV, CAUSAL),
        [(64, 16), (64, 16)],
    ),
    "mask of an array": (
        lambda x, mask: jax.nn.softmax(jnp.where(mask, x, -1e9)),
        (X, X > 0),
        [(8, 100)],
    ),
    "dropout": (
        lambda x, key: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jax.nn.softmax(x), 0),
        (X, jax.random.key(0)),
        [(8, 100)],
    ),
    "before and after": (
        lambda x, y: jax.nn.softmax(jnp.tanh(x) + y) * y - x,
        (X, X[::-1]),
        [(8, 100)],
    ),
    "two kinds of rows": (
        lambda x: (
            x
            - jnp.broadcast_to(x.reshape(4, 200).mean(1)[:, None], (4, 2)).reshape(8, 1)
            + x.mean(1, keepdims=True)
        ),
        (X,),
        [(4, 200), (8, 100)],
    ),
    "square": (lambda x: x.sum(1) + x.max(1)[:, None] + x.T, (X[:, :8],), [(8, 8), (8, 8)]),
}


def random_rows(seed: int):
    """Sums and extrema of rows, broadcasts, and what is of no row group, among each other."""

    def program(x, row, column):
        choose = random.Random(seed)
        arrays = [x, row, column]
        for _ in range(choose.randint(5, 30)):
            a, b = choose.choice(arrays[-6:]), choose.choice(arrays)
            kind, full = choose.randrange(12), jnp.broadcast_to(a, x.shape)
            if kind < 6:
                operation = choose.choice((lax.add, lax.sub, lax.mul, lax.max))
                arrays.append(operation(*jnp.broadcast_arrays(a, b)))
            elif kind < 9:
                reduce = choose.choice((jnp.sum, jnp.max, jnp.sum))
                arrays.append(reduce(full, axis=1, keepdims=True))
            elif kind == 9:
                other = choose.choice((lambda a: a.sum(0), jnp.sort, lambda a: a[:, ::-1]))
                arrays.append(other(full))
            elif kind == 10:
                arrays.append(jnp.where(a > b, a, np.float32(0.5)))
            else:
                arrays.append(choose.choice((lax.tanh, lax.exp))(a))
        return arrays[-1], arrays[len(arrays) // 2], arrays[-3:]

    return program


RANDOM = floats((8, 15), 0), floats((1, 15), 1)[0], floats((1, 8), 2).T


def row_groups(jaxpr):
    """Those of a program that has not been compiled."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive is rows.rows_p:
            yield equation.params["group"]
            continue
        for value in equation.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from row_groups(value)
