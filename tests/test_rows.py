"""Row programs: how they are found, and the bits of their kernel, interpreted on the CPU.

What Triton makes of the kernel is compiled and emulated by ``tests/gpu_offline.py``.
"""

from __future__ import annotations

import functools
import random

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from bits import SPECIALS, assert_same_bits, normal, patterns
from jax import lax
from jax import numpy as jnp
from networks import NETWORKS, train
from test_gpu_kernels import compiling_for, for_one_device  # noqa: F401  (a fixture)

import repjax
from repjax.primitives import gpu, native, rows
from repjax.primitives.define import HALVES
from repjax.primitives.gpu import rows as kernel
from repjax.primitives.gpu import triton
from repjax.primitives.interpret import PREFIX, open_jaxpr
from repjax.primitives.reduce import sums
from repjax.verify import vectors

LENGTHS = [2, 3, 7, 64, 100, 1000, 1024, 1025]


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


def interpreted(*operands, program):
    with jax.enable_x64(True):
        return kernel.evaluate(*operands, program=program, interpret=True)


def equations(*operands, program):
    return program.evaluate(*operands)


def evaluate(function, arguments, **orders):
    """Its results when it is reproducible; compiled quickly, which takes longer than to run it."""
    program = repjax.reproducible(lambda *xs: function(*xs), **orders).lower(*arguments)
    return program.compile({"xla_backend_optimization_level": 0})(*arguments)


class Found:
    """The row programs of a compiled program, and its results."""

    def __init__(self, function, arguments, run, **orders):
        self.programs: list[rows.Rows] = []

        def compute(*operands, program):
            self.programs.append(program)
            return run(*operands, program=program)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "expected", lambda: True)
            patch.setattr(rows, "_equations", compute)
            self.results = evaluate(function, arguments, **orders)

    @property
    def shapes(self):
        return [program.shape for program in self.programs]


def check(function, *arguments, shapes=None, run=interpreted, **orders) -> Found:
    """Its row programs, of these shapes, have the bits of the CPU's program by the kernel."""
    found = Found(function, arguments, run, **orders)
    assert_same_bits(found.results, evaluate(function, arguments, **orders))
    assert found.programs if shapes is None else found.shapes == shapes
    return found


# --- the kernel -----------------------------------------------------------------------------


def everything(x, scale, bias, column):
    """Sums, extrema and positions of rows, and what is computed of them."""
    largest, total = x.max(-1, keepdims=True), jnp.abs(x).sum(-1, keepdims=True)
    y = jnp.exp(x - largest) * scale + total / column
    z = jnp.where(y > x.min(-1, keepdims=True), y, bias)
    return (
        z,
        z.sum(-1),
        jnp.argmax(z, -1),
        jnp.log(jnp.argmin(z * z, -1).astype(x.dtype) + total[:, 0]),
    )


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n):
    for count in (1, 3, 33) if n in (2, 100) else (3,):
        arrays = floats((count, n), n), floats((1, n), 1)[0], floats((1, n), 2)[0]
        column = floats((1, count), 3).reshape(count, 1)
        found = check(everything, *arrays, column)
        assert {*found.shapes} == {(count, n)}


def test_rows_of_one_element_are_no_program():
    check(everything, *(floats((5, 1), i) for i in range(1, 5)), shapes=[])


def test_a_sum_is_padded_to_the_next_power_of_two():
    """Against the definition: +0 behind the end, and halves."""
    x = floats((9, 77), 4)
    padded = np.asarray(repjax.reproducible(lambda x: jnp.pad(x, ((0, 0), (0, 51))))(x))
    while padded.shape[1] > 1:
        h = padded.shape[1] // 2
        padded = np.asarray(repjax.lax.add(padded[:, :h], padded[:, h:]))
    found = check(lambda x: x.sum(1), x, shapes=[(9, 77)])
    assert_same_bits(found.results, padded[:, 0])


def test_neighbours_in_pairs_are_noticed(monkeypatch):
    monkeypatch.setattr(triton, "halves", lambda x: x[:, ::2] + x[:, 1::2])
    with pytest.raises(AssertionError):
        check(lambda x: x.sum(1), floats((33, 64), 5))


def test_elements_behind_the_end_are_noticed(monkeypatch):
    reduction = kernel._reduction
    monkeypatch.setattr(kernel, "_reduction", lambda e, x, inside, end: reduction(e, x, None, end))
    with pytest.raises(AssertionError):
        check(lambda x: jnp.exp(x).sum(1), normal(35, 1).reshape(5, 7))


def test_sums_without_a_sign():
    """Which have no guards on GPUs: sums of what is zero or more, and of nothing else."""
    functions = (jnp.abs, jnp.exp, jnp.exp2, jnp.square, jax.nn.sigmoid, lambda x: jnp.sqrt(x))
    others = (jnp.sin, jnp.negative, lambda x: x, lambda x: jnp.exp(x) - 1)
    found = {}

    def noted(*operands, program):
        sums = [e.outvars[0] for e in program.eqns if e.primitive is sums_of_rows]
        found[f] = [x in kernel._without_sign(program) for x in sums]
        return interpreted(*operands, program=program)

    sums_of_rows = sums.reduce_sum_p
    for f in functions + others:
        check(lambda x: f(x).sum(1), floats((5, 12), 3), run=noted)  # noqa: B023
    assert found == {f: [f in functions] for f in functions + others}


@pytest.fixture
def in_passes(monkeypatch):
    """Rows of more than 32 elements do not fit into registers; tiles have 8."""
    for module in (rows, kernel):
        monkeypatch.setattr(module, "SHORT", 32)
    monkeypatch.setattr(rows, "MANY", 1)
    monkeypatch.setattr(kernel, "_TILE", 8)


# Around whole tiles, and with tiles in which there is nothing.
@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("n", [33, 64, 65, 96, 100, 127, 1000])
def test_lengths_in_passes(n):
    arrays = floats((5, n), n), floats((1, n), 1)[0], floats((1, n), 2)[0]
    column = floats((1, 5), 3).reshape(5, 1)
    check(lambda *xs: everything(*xs)[:2], *arrays, column, shapes=[(5, n)])


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
def test_halves_in_passes(dtype):
    x = floats((5, 100), 3, dtype)
    found = check(lambda x: (x.sum(1), x.min(1), jax.nn.softmax(x)), x)
    assert {*found.shapes} == {(5, 100)}


@pytest.mark.usefixtures("in_passes")
def test_an_ascending_order_of_tiles_is_noticed(monkeypatch):
    monkeypatch.setattr(kernel, "_order", lambda step, count: step)
    with pytest.raises(AssertionError):
        check(lambda x: x.sum(1), floats((33, 64), 5))


@pytest.mark.usefixtures("in_passes")
def test_a_tile_that_is_left_out_is_noticed(monkeypatch):
    order = kernel._order
    monkeypatch.setattr(kernel, "_order", lambda step, count: lax.max(order(step, count), 1))
    with pytest.raises(AssertionError):
        check(lambda x: x.max(1), floats((33, 64), 5))


def test_offsets_of_64_bits(monkeypatch):
    monkeypatch.setattr(triton, "index_type", lambda *sizes: np.int64)
    x = repjax.reproducible(lambda x: x)(floats((9, 20), 1))
    (program,) = Found(jax.nn.softmax, (x,), equations).programs
    with jax.enable_x64(True):
        compute = functools.partial(kernel.evaluate, program=program, interpret=True)
        (actual,) = jax.jit(compute)(x)
    assert_same_bits(repjax.reproducible(lambda x: x)(actual), repjax.nn.softmax(x))


UNARY = (
    "acos acosh asin asinh atan atanh canonicalize cbrt ceil cos cosh erf erf_inv erfc exp exp2 "
)
UNARY += (
    "expm1 floor log log10 log1p log2 logistic neg one_minus_square rsqrt sin sinh sqrt square "
)
UNARY += "tan tanh"
BINARY = "add atan2 div hypot mul nextafter pow rem sub"
INTEGER = {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "max": lax.max, "min": lax.min}
INTEGER |= {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
INTEGER |= {"clamp": lambda i, j: lax.clamp(-5, i, j), "sign": lambda i, j: lax.sign(i)}
INTEGER |= {"not": lambda i, j: ~i, "abs": lambda i, j: lax.abs(i)}
BOOLEAN = {f.__name__: f for f in (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)}


def _choose(i, j):
    return jnp.where(i == j, i, j)


def _operations():
    """Of each operation that row programs take: a function of floats x, y and integers i, j."""
    known = vectors.registered()
    for name in UNARY.split():
        yield PREFIX + name, lambda x, y, i, j, f=known[name].bind: f(x)
    for name in BINARY.split():
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


def _as_rows(operation):
    """The results, and sums that put them into a row program."""

    def program(x, y, i, j):
        results = jax.tree.leaves(operation(x, y, i, j))
        own = [r.astype(np.float32) if r.dtype != np.float32 else r for r in results]
        return results, [r.sum(1) for r in own]

    return program


def test_all_operations_are_here():
    taken = rows.ELEMENTWISE | rows.EXACT | rows.EXACT_ON_INTEGERS
    assert {name for name, _ in OPERATIONS} == taken


def _operands(dtype):
    rng = np.random.default_rng(3)
    x, y = (floats((9, 20), seed, dtype) for seed in (1, 2))
    x[3:6], y[3:6] = (patterns(60, seed, dtype).reshape(3, 20) for seed in (5, 6))
    y[:, ::5] = x[:, ::5]
    i, j = rng.integers(-20, 20, (2, 9, 20)).astype(np.int32)
    return x, y, i, j


#: Of 16 bits, those that differ in how they are computed; all others are float32 in between.
OF_HALVES = {PREFIX + name for name in ("add", "div", "exp", "rsqrt", "convert_element_type")}
OF_HALVES |= rows.EXACT


@pytest.mark.parametrize("dtype", [np.float32, *HALVES], ids=["float32", "float16", "bfloat16"])
def test_operations(dtype):
    """Each is taken into a row program, where it has its bits."""
    for name, operation in OPERATIONS:
        if dtype == np.float32 or name in OF_HALVES:
            found = check(_as_rows(operation), *_operands(dtype))
            taken = {rows.name_of(e) for program in found.programs for e in program.eqns}
            assert name in taken, name


# --- what is found --------------------------------------------------------------------------

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
#: A function, its arguments, and the shapes of its row programs, one kernel each.
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
    "square": (lambda x: x.sum(1) + x.sum(1)[:, None] + x.T, (X[:, :8],), [(8, 8), (8, 8)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, arguments, shapes = PROGRAMS[name]
    check(function, *arguments, shapes=shapes)


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if max(p[2])[1] > 32])
def test_programs_in_passes(name):
    test_programs(name)


def test_what_is_in_memory_is_not_stored_again():
    """A layer norm keeps two numbers for each row, and computes the rest again for its gradient."""

    def block(p, x, w):
        return layer_norm(p, x) @ w

    found = check(gradient(block, (0, 1, 2)), PARAMETERS, X, floats((100, 5), 3))
    forward, *_ = found.programs
    full = [v for v in forward.outvars if v.aval.size == X.size]
    assert len(full) == 1 and len(found.programs) == 2


def test_an_array_is_not_stored_for_a_few_of_its_elements():
    """The logits of the labels, of logits that are widened for a cross-entropy."""

    def function(x, labels):
        return cross_entropy(x.astype(np.float32), labels)

    x = floats(X.shape, 1, jnp.bfloat16)
    (program, _) = check(jax.value_and_grad(function), x, LABELS).programs
    assert [v.aval.dtype for v in program.outvars if v.aval.size == X.size] == [x.dtype]


TAKEN_BY_NONE = {
    "few long rows": (lambda x: x.sum(1), (np.ones((2, rows.SHORT + 1), np.float32),), {}),
    "longest rows": (
        lambda x: x.sum(1),
        (np.ones((rows.MANY, rows.LONGEST + 1), np.float32),),
        {},
    ),
    "positions in long rows": (
        lambda x: x.argmax(1),
        (np.ones((rows.MANY, rows.SHORT + 1), np.float32),),
        {},
    ),
    "leading axis": (lambda x: x - x.sum(0), (X,), {}),
    "axes that are apart": (lambda x: x.sum((0, 2)), (X.reshape(2, 4, 100),), {}),
    "sequential": (lambda x: x.sum(1), (X,), {"accumulation": "sequential"}),
    "order_independent": (lambda x: x.sum(1), (X,), {"accumulation": "order_independent"}),
    "products": (lambda x: x.prod(1), (X,), {}),
    "integers": (lambda i: i.sum(1) + i.max(1), (LABELS[:, None] + LABELS,), {}),
    "no reduction": (lambda x: jnp.exp(x) + x, (X,), {}),
    "operations of other types": (
        lambda i, x: (i < lax.max(i, i + 1)).astype(np.float32) + x.sum(0),
        (LABELS.astype(np.uint32)[:, None] + np.zeros_like(X, np.uint32), X),
        {},
    ),
    "no elements": (lambda x: x.sum(1), (X[:0],), {}),
    "rows without elements": (lambda x: x.sum(1), (X[:, :0],), {}),
}


@pytest.mark.parametrize("name", TAKEN_BY_NONE)
def test_left_to_xla(name):
    function, arguments, orders = TAKEN_BY_NONE[name]
    check(function, *arguments, shapes=[], **orders)


def _names(function, *arguments):
    return set(vectors._names(jax.make_jaxpr(repjax.reproducible(function))(*arguments)))


def test_plans_are_made_for_the_platform(monkeypatch):
    assert not gpu.expected()
    if native.available():
        (found,) = _row_programs(
            jax.make_jaxpr(repjax.reproducible(lambda x: jax.nn.softmax(x)))(X)
        )
        assert found.kernels is rows.CPU
    with compiling_for("NVIDIA H100"):
        assert gpu.expected()
    monkeypatch.setattr(gpu, "expected", lambda: True)
    names = _names(lambda x: jax.nn.softmax(x), X)
    assert "rows" in names and "chains" not in names
    # Compiled for a CPU all the same, it is its equations.
    program = repjax.reproducible(lambda x: jax.nn.softmax(x))
    assert_same_bits(program(X), repjax.nn.softmax(X))


# --- the plan -------------------------------------------------------------------------------


def random_program(seed: int):
    """Sums and extrema of rows, broadcasts, and what is of no row program, among each other."""

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


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    """Some by the kernel: what is tested is which equations are put together, and their order."""
    found = Found(random_program(seed), RANDOM, interpreted if seed < 6 else equations)
    assert_same_bits(found.results, evaluate(random_program(seed), RANDOM))


def test_random_programs_have_row_programs(monkeypatch):
    sizes = []
    for seed in range(60):
        program = repjax.reproducible(random_program(seed))
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "expected", lambda: True)
            jaxpr = jax.make_jaxpr(lambda *a, f=program: f(*a))(*RANDOM)
        sizes += [len(p.steps()) for p in _row_programs(jaxpr)]
    assert len(sizes) > 60 and max(sizes) > 10


def _row_programs(jaxpr):
    """Those of a program that has not been compiled."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive is rows.rows_p:
            yield equation.params["program"]
            continue
        for value in equation.params.values():
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from _row_programs(value)


def test_joining_regardless_of_what_waits_is_noticed(monkeypatch):
    """Without that, there are programs that wait for themselves."""
    nothing = property(lambda self: 0, lambda self, bits: None)
    monkeypatch.setattr(rows._Group, "below", nothing, raising=False)
    with pytest.raises(AssertionError, match="wait for each other"):
        for seed in range(60):
            Found(random_program(seed), RANDOM, equations)


def test_a_program_does_not_wait_for_itself():
    """What goes through an operation of another kind comes back to another program."""

    def function(x):
        y = x - x.max(1, keepdims=True)
        z = jnp.sort(y)
        return (y + z).sum(1), y + z, (y * y).sum(1)

    check(function, X, shapes=[(8, 100), (8, 100)])


def test_large_programs_are_divided(monkeypatch):
    monkeypatch.setattr(rows, "LARGEST", 8)

    def function(x):
        for _ in range(5):
            x = x - x.sum(1, keepdims=True) * np.float32(0.01) + 1
        return x

    found = check(function, X)
    assert len(found.programs) > 2
    assert all(len(p.steps()) <= 8 + rows.REPEATED for p in found.programs)


def test_control_flow_and_batches():
    def step(c, _):
        return jax.nn.softmax(c) + 1, c.sum(1)

    def function(x, count):
        x, sums = lax.scan(step, x, length=3)
        x = lax.while_loop(
            lambda s: s[1] < count, lambda s: (jax.nn.softmax(s[0]), s[1] + 1), (x, 0)
        )
        x = lax.cond(count > 2, lambda x: x - x.max(1, keepdims=True), lambda x: x, x[0])
        return jax.checkpoint(lambda x: jax.nn.log_softmax(x))(x), sums

    # JAX traces the bodies of loops more than once.
    found = check(function, X, 4)
    assert len(found.shapes) >= 4 and {*found.shapes} == {(8, 100)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "expected", lambda: True)
        program = repjax.reproducible(lambda x: jax.nn.softmax(x) * x[0])
        batched = jax.jit(jax.vmap(program))(X.reshape(2, 4, 100))
        assert "rows" in vectors._names(jax.make_jaxpr(jax.vmap(program))(X.reshape(2, 4, 100)))
        single = [program(x) for x in X.reshape(2, 4, 100)]
    assert_same_bits(batched, jnp.stack(single))


def test_order_of_effects(capfd):
    def function(x):
        y = jax.nn.softmax(x)
        jax.debug.print("first {}", y[0, 0], ordered=True)
        z = jnp.exp(y).sum(1)
        jax.debug.print("second {}", x[0, 0], ordered=True)
        x, _ = lax.scan(
            lambda c, _: (c, jax.debug.print("third {}", c[0, 0], ordered=True)), x, length=1
        )
        jax.debug.print("fourth {}", z[0], ordered=True)
        return x + z[:, None]

    Found(function, (X,), equations)
    jax.effects_barrier()
    words = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert words == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize("name", [name for name in NETWORKS if "trans" in name or "norm" in name])
def test_networks(name):
    network = NETWORKS[name]()
    expected = train(repjax.reproducible, network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "expected", lambda: True)
        patch.setattr(rows, "_equations", interpreted)
        actual = train(lambda f: repjax.reproducible(lambda *a: f(*a)), network)
    assert_same_bits(actual, expected)


# --- lowering -------------------------------------------------------------------------------

CALL = "__gpu$xla.gpu.triton"


def lowered(function, *arguments) -> int:
    """The number of kernels when it is lowered for CUDA."""
    with compiling_for("NVIDIA H100"):
        traced = jax.jit(lambda *xs: function(*xs)).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text().count(CALL)


@pytest.mark.usefixtures("for_one_device")
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_programs(name):
    function, arguments, shapes = PROGRAMS[name]
    products = {"attention": 2, "attention, gradients": 6}.get(name, 0)
    count = lowered(repjax.reproducible(lambda *xs: function(*xs)), *arguments)
    assert count == len(shapes) + products


@pytest.mark.usefixtures("for_one_device")
def test_lowered_operations():
    """Triton has all that their bodies are made of."""
    for dtype in (np.float32, *HALVES):
        for name, operation in OPERATIONS:
            if dtype == np.float32 or name in OF_HALVES:
                function = repjax.reproducible(_as_rows(operation))
                assert lowered(function, *_operands(dtype)) > 0, (name, dtype)


@pytest.mark.usefixtures("for_one_device")
def test_explicit_sums():
    """Bound one by one, sums of rows have the kernel too."""
    assert lowered(lambda x: repjax.lax.reduce_sum(x, (1,)), X) == 1
    assert lowered(lambda x: repjax.lax.reduce_sum(x, (0,)), X) == 0


@pytest.mark.parametrize("axis", [1, 2])
def test_bits_of_explicit_sums(axis):
    x = repjax.reproducible(lambda x: x)(floats((5, 3, 70), 1))
    with jax.enable_x64(True):
        compute = functools.partial(kernel.pairwise, sums.add, axis=axis, interpret=True)
        (actual,) = jax.jit(compute)([x])
    actual, expected = (repjax.reproducible(lambda x: x)(a) for a in (actual, x))
    assert_same_bits(actual, repjax.reproducible(lambda x: x.sum(axis))(expected))


@pytest.mark.usefixtures("for_one_device")
def test_without_knowledge_of_the_gpu(monkeypatch):
    monkeypatch.setattr(triton, "compute_capability", lambda: None)
    gpu._warn.cache_clear()
    with pytest.warns(UserWarning, match="without its kernels"):
        assert lowered(repjax.reproducible(lambda x: jax.nn.softmax(x)), X) == 0


@pytest.mark.usefixtures("for_one_device")
def test_large_arrays_are_lowered():
    """Offsets of 64 bits."""
    x = jax.ShapeDtypeStruct((1 << 18, 1 << 13), np.float32)
    assert lowered(repjax.reproducible(lambda x: jax.nn.softmax(x)), x) == 1


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
@pytest.mark.parametrize("size", [1, 2])
def test_meshes(size, kind, monkeypatch):
    """Planned for, whatever types of values say of it."""
    mesh = jax.sharding.AbstractMesh((size,), ("i",), axis_types=(kind,))
    monkeypatch.setattr(gpu, "expected", lambda: True)
    with jax.sharding.use_abstract_mesh(mesh):
        x = jax.ShapeDtypeStruct((8, 100), np.float32, sharding=jax.NamedSharding(mesh, jax.P("i")))
        program = jax.make_jaxpr(repjax.reproducible(lambda x: jax.nn.softmax(x)))(x)
    assert len([*_row_programs(program)]) == 1
