"""The independent reference: every operation has one, and it has the bits of repjax's."""

from __future__ import annotations

import ast
import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers import random_programs
from helpers.bits import SPECIALS, assert_same_bits, normal, patterns
from helpers.linalg import positive_definite
from helpers.recomputed import own_primitives, recomputed
from repjax.primitives.core import tables
from repjax.primitives.operations import decay
from repjax.verify import reference
from repjax.verify.reference import elementary, products, sums, table, values

FOLDER = pathlib.Path(reference.__file__).parent
X = normal((6, 5))
S = np.concatenate([SPECIALS, patterns(100)])
I = np.random.default_rng(1).integers(-9, 10, (6, 5)).astype(np.int32)  # noqa: E741
Z = (normal((4, 4), 2) + 1j * normal((4, 4), 3)).astype(np.complex64)
KEY = jax.random.key(7)

# --- there is one for everything --------------------------------------------------------


def all_primitives() -> set[str]:
    stock = {*tables.RULES, *tables.EXACT, *tables.EXACT_ON_INTEGERS, *tables.COMPLEX}
    return stock | tables.STRUCTURAL | own_primitives()


def test_every_primitive_has_a_reference_or_a_reason():
    known = set(reference.REFERENCES)
    names = all_primitives()
    complex_only = set(reference.COMPLEX) - known
    assert names - known - complex_only == set(reference.EXCEPTIONS)
    assert all(reference.EXCEPTIONS.values())
    assert set(tables.COMPLEX) - set(reference.COMPLEX) <= table.OF_ALL


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda f: f.stem)
def test_it_computes_without_jax(file):
    """Of the library, it takes the coefficients of Bessel functions, which are their definition."""
    allowed = {"numpy", "ml_dtypes", "mpmath", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            ours = name.startswith("repjax.verify.reference")
            data = name == "repjax.primitives.operations.special"
            assert ours or data or name.partition(".")[0] in allowed, name


# --- programs that reach all of them ----------------------------------------------------


def _pool(x):
    return lax.reduce_window(x, -np.inf, lax.max, (2, 3), (1, 2), ((1, 0), (0, 1)))


def _convolution(x, w, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", **options}
    return lax.conv_general_dilated(x, w, **options)


def _gather(x, i, mode):
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(x, i, numbers, (1, x.shape[1]), mode=mode, fill_value=None)


def _ragged(x, w):
    return lax.ragged_dot(x, w, jnp.array([2, 0, 3], np.int32))


EVERYWHERE = [
    *("exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "erfc", "sinh", "cosh"),
    *("cbrt", "sin", "cos", "tan", "atan", "asinh"),
]
PROGRAMS = {
    "arithmetic": (
        lambda x, y: (x + y, x - y, x * y, x / y, -x, lax.square(x), lax.sqrt(x), lax.rsqrt(x)),
        (S, np.random.default_rng(2).permutation(S)),
    ),
    "exact": (
        lambda x, y: (
            *(lax.floor(x), lax.ceil(x), lax.round(x), jnp.rint(x), lax.nextafter(x, y)),
            *(lax.rem(x, y), lax.abs(x), lax.sign(x), lax.is_finite(x), lax.max(x, y)),
            *(lax.min(x, y), lax.clamp(jnp.float32(-1), x, jnp.float32(2))),
            *(x < y, x <= y, x > y, x >= y, x == y, x != y, lax.reduce_precision(x, 5, 7)),
            *(lax.bitcast_convert_type(x, np.int32), lax.bitcast_convert_type(x, np.int16)),
            *(lax.sort([x, y], num_keys=2), lax.sort(x), lax.top_k(x, 5), lax.argmax(x, 0, int)),
            *(lax.argmin(x, 0, np.int32), lax.cummax(x), lax.cummin(x)),
        ),
        (S, np.random.default_rng(3).permutation(S)),
    ),
    "powers": (
        lambda x, i: (
            *(x**3, x**-2, x**0, lax.pow(x, i), repjax.lax.fma(x, x, x)),
            *(jnp.polyval(jnp.ones(3), x), repjax.lax.add_n([x, -x, x * 3])),
        ),
        (S, np.resize(np.int32([3, -2, 0, 7]), S.shape)),
    ),
    "functions": (lambda x: [getattr(lax, name)(x) for name in EVERYWHERE], (S,)),
    "bounded functions": (
        lambda x: [lax.asin(x), lax.acos(x), lax.atanh(x), lax.erf_inv(x), lax.acosh(1 / x)],
        (np.linspace(-1, 1, 23, dtype=np.float32),),
    ),
    "own functions": (
        lambda x: (repjax.lax.log2(x), repjax.lax.log10(x), repjax.lax.exp10(x)),
        (np.float32([0.1, 1, 10, 2, 64, 1e-30]),),
    ),
    "of two": (
        lambda x, y: (lax.pow(x, y), lax.atan2(x, y), repjax.lax.hypot(x, y)),
        (S[::3], np.random.default_rng(4).permutation(S[::3])),
    ),
    "special": (
        lambda x: (
            *(lax.lgamma(x), lax.digamma(x), lax.bessel_i0e(x), lax.bessel_i1e(x)),
            *(lax.zeta(x + 1, x), lax.polygamma(jnp.float32(2), x)),
        ),
        (np.float32([0.5, 1.4616321, 9.5, 33, -1, 0]),),
    ),
    "sums": (
        lambda x: (
            *(x.sum(), x.sum(0), jnp.prod(x, 1), x.max(1), x.min(), jnp.cumsum(x, 1)),
            *(jnp.cumprod(x, 0), lax.cumsum(x, 0, reverse=True), lax.cumlogsumexp(x, 1)),
            lax.reduce(x, jnp.ones((), x.dtype), lambda a, b: a * b + a, (0,)),
            lax.reduce_window(
                x, jnp.full((), 2, x.dtype), lambda a, b: a * b, (2, 2), (1, 1), "VALID"
            ),
        ),
        (X,),
    ),
    "windows": (
        lambda x: (
            *(_pool(x), -_pool(-x), lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), "SAME")),
            lax.reduce_window(x, np.inf, lax.min, (2, 2), (1, 1), "VALID"),
            jax.vjp(_pool, x)[1](_pool(x))[0],
            jax.jvp(_pool, (x,), (x * 3,))[1],
        ),
        (np.round(X * 2),),
    ),
    "products": (
        lambda x, w, k: (
            *(x @ w, jnp.einsum("ij,kj->ik", x, x), x @ w[:, 0], _ragged(x, jnp.stack([w] * 3))),
            _convolution(x[None, None], k),
            _convolution(x[None, None], k, padding=((1, 0),) * 2, lhs_dilation=(2, 1)),
            _convolution(x[None, None], k, rhs_dilation=(2, 2), padding=((3, -1), (2, 2))),
            jax.vjp(lambda x: _convolution(x[None, None], k), x)[1](jnp.ones((1, 2, 6, 5)))[0],
            _convolution(jnp.stack([x, x])[None], k, feature_group_count=2),
            lax.dot(x, w, precision="highest"),
        ),
        (X, normal((5, 3), 1), normal((2, 1, 3, 2), 2)),
    ),
    "scaled": (
        lambda a, b: jax.nn.scaled_matmul(a, b, jnp.full((1, 4, 2), 2.0), jnp.full((1, 3, 2), 0.5)),
        (normal((1, 4, 8)), normal((1, 3, 8), 1)),
    ),
    "scatters": (
        lambda x, i, u: (
            *(x.at[i].add(u), x.at[i].set(u), x.at[i].max(u), x.at[i].min(u)),
            *(x.at[i].mul(u), x.at[i].subtract(u), x.at[i].add(u, mode="clip")),
            jax.vmap(lambda x, i: x.at[i].add(1.0))(x, i[:6] % 5),
        ),
        (X, np.int32([0, 3, 3, 0, -1, 9, 3]), normal((7, 5), 5)),
    ),
    "gathers": (
        lambda x, i: (
            *(_gather(x, i[:, None], mode) for mode in ("clip", "fill", "promise_in_bounds")),
            *(x[i % 6], jnp.take_along_axis(x, i[:5][None] % 6, 0)),
            jax.vmap(lambda row, k: row[k])(x, i[:6] % 5),
            lax.dynamic_slice(x, (i[2], 1), (2, 3)),
            lax.dynamic_update_slice(x, x[:2, :2], (i[2], 4)),
        ),
        (X, np.int32([0, 3, 9, -2, 5, 2, 1])),
    ),
    "movement": (
        lambda x: (
            *(x.T, x.reshape(5, 6), jnp.flip(x, 1), x[1:5:2], jnp.concatenate([x, x], 1)),
            *(jnp.stack([x, x]), jnp.split(x, [2, 3], 1), jnp.tile(x, (2, 1)), jnp.squeeze(x[:1])),
            *(lax.pad(x, 7.0, ((1, 2, 1), (-1, 0, 0))), jnp.where(x > 0, x, 2 * x)),
            *(lax.select_n(jnp.array(1), x, 3 * x), lax.expand_dims(x, [1]), [*jnp.unstack(x)]),
            *(lax.stop_gradient(x), lax.optimization_barrier(x), jnp.broadcast_to(x, (2, 6, 5))),
            *(lax.broadcasted_iota(np.float32, (3, 4), 1), jnp.copy(x), jnp.empty_like(x)),
            jax.ad_checkpoint.checkpoint_name(x, "name"),
        ),
        (X,),
    ),
    "integers": (
        lambda i, j: (
            *(i + j, i - j, i * j, lax.div(i, j), lax.rem(i, j), -i, i**2, i & j, i | j, i ^ j),
            *(~i, i << 3, i >> 1, lax.shift_right_logical(i, j & 31), lax.clz(i), abs(i)),
            *(lax.population_count(i), i.sum(0), i.prod(), i.max(), i.min(1), jnp.cumsum(i, 0)),
            *(lax.cumprod(i), lax.cummax(i), i @ j.T, i.astype(np.float32), i.astype(np.int8)),
            *(i.astype(np.float16), i.astype(bool), (i > 0).all(), (i > 0).any(), lax.sort(i)),
            *(lax.top_k(i, 2), i.at[jnp.array([0, 0])].add(j[:2]), i.at[0].mul(3), i.at[0].min(3)),
            *(lax.reduce_xor(i, (0,)), lax.square(i), lax.sign(i)),
            *(
                lax.mulhi(i, j),
                (i > 0).astype(np.int8),
                lax.reduce_window(i, 0, lax.add, (2, 2), (1, 1), "VALID"),
                lax.argmax(i, 1, np.int32),
                lax.reduce_and(i, (1,)),
            ),
            _convolution(i[None, None], j[None, None, :2, :2]),
        ),
        (I, np.roll(I, 1)),
    ),
    "conversions": (
        lambda x: (
            x.astype(np.int32),
            x.astype(np.uint8),
            x.astype(np.float16),
            x.astype(jnp.bfloat16),
            x.astype(bool),
            x.astype(np.float16).astype(np.int8),
        ),
        (S,),
    ),
    "complex": (
        lambda z, w: (
            *(z + w, z - w, z * w, z / w, -z, jnp.conj(z), jnp.abs(z), lax.sign(z), jnp.exp(z)),
            *(jnp.log(z), z**3, z**-1, z @ w, z.real, z.imag, z == w, z != w, z.sum(), z.T),
            *(
                jnp.cumsum(z, 0),
                lax.square(z),
                z.at[jnp.array([0, 0])].add(w[:2]),
                z.at[0].set(w[0]),
            ),
            *(z.at[jnp.array([1])].mul(w[:1]), lax.complex(z.real, w.imag), z.real.astype(z.dtype)),
            *(lax.iota(np.complex64, 3), z.at[0].subtract(w[0])),
            lax.reduce_window(z, np.complex64(0), lax.add, (2, 2), (1, 1), "VALID"),
            _convolution(z[None, None], w[None, None, :2, :2]),
        ),
        (Z, Z[::-1].copy()),
    ),
    "transforms": (
        lambda z, x: (
            *(jnp.fft.fft(z), jnp.fft.ifft(z, 37), jnp.fft.rfft(x, 40), jnp.fft.irfft(z, 7)),
            *(jnp.fft.fft2(z), jnp.fft.fft(z[0], 263)),
        ),
        (Z, X),
    ),
    "linear algebra": (
        lambda a, p: (
            *(jnp.linalg.cholesky(p), lax.linalg.lu(a), jnp.linalg.qr(a), jnp.linalg.eigh(p)),
            *(jnp.linalg.svd(a), jnp.linalg.svd(a[:3], full_matrices=False), jnp.linalg.inv(p)),
            *(jnp.linalg.qr(a, mode="complete"), jnp.linalg.qr(a, mode="raw")),
            lax.linalg.householder_product(a, a[0]),
            lax.linalg.triangular_solve(p, a.T[:, :5].T, left_side=True, transpose_a=True),
        ),
        (normal((5, 4)), positive_definite((5, 5))),
    ),
    "random": (
        lambda key, k: (
            *(jax.random.bits(key, (5,), np.dtype(f"uint{n}")) for n in (8, 16, 32)),
            *(jax.random.split(key, 3), jax.random.fold_in(key, 5), jax.random.key(k)),
            *(jax.random.normal(key, (4,)), jax.random.split(key, (2, 2))[1, 0]),
            *(jax.random.key_data(key), jax.random.wrap_key_data(jnp.uint32([1, 2]))),
            *(jax.random.permutation(key, 9), jax.random.clone(key), jax.random.uniform(key)),
        ),
        (KEY, np.int32(-3)),
    ),
    "Adam's constants": (
        lambda t: (
            decay.decayed_quotient_p.bind(t, base=0.9, numerator=0.001),
            decay.decayed_root_p.bind(t, base=0.999),
        ),
        (np.arange(40, dtype=np.int32),),
    ),
    "derivatives": (
        lambda x: jax.grad(
            lambda x: jnp.sum(jax.nn.softmax(x) * jnp.tanh(x)) + jnp.sum(x * jnp.cos(x) * x)
        )(x),
        (X,),
    ),
    "total order": (lambda x: lax.sort_key_val(x, x), (S,)),
}
ANY_ORDER = {"accumulation": "order_independent", "contraction": "order_independent"}
SEQUENTIAL = {"accumulation": "sequential"}


@functools.cache
def of_program(name: str, order: str = ""):
    function, arguments = PROGRAMS[name]
    orders = {"": {}, "sequential": SEQUENTIAL, "any": ANY_ORDER}[order]
    return recomputed(lambda *xs: function(*xs), *arguments, **orders)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_has_the_bits_of_repjax(name):
    found = of_program(name)
    assert found.differ == []
    assert found.without.keys() <= reference.EXCEPTIONS.keys(), found.without


@pytest.mark.parametrize(
    ("name", "order"),
    [("sums", "sequential"), *((x, "any") for x in ("sums", "products", "transforms", "complex"))],
)
def test_other_orders(name, order):
    found = of_program(name, order)
    assert found.differ == []
    assert found.without.keys() <= {"ragged_dot_general"}


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
@pytest.mark.parametrize(
    "name", ["arithmetic", "powers", "functions", "sums", "scatters", "of two"]
)
def test_halves(name, dtype):
    function, arguments = PROGRAMS[name]
    with np.errstate(all="ignore"):
        arguments = [x.astype(dtype) if x.dtype == np.float32 else x for x in arguments]
        found = recomputed(lambda *xs: function(*xs), *arguments)
    assert found.differ == []


def test_keys_of_other_versions_of_threefry():
    with jax.threefry_partitionable(False):
        function, arguments = PROGRAMS["random"]
        assert recomputed(lambda *xs: function(*xs), *arguments).differ == []


#: Which no program of one device reaches, or only one of another version of JAX.
NOT_REACHED = {
    *("broadcast_to", "copy_p", "empty", "mesh_cast", "pvary", "reshard", "sharding_constraint"),
    *("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"),
    *("jit", "pjit", "eq_to", "lt_to", "le_to", "device_put", "iota_2x32_shape", "threefry2x32"),
    *("polynomial", "log2", "lu_pivots_to_permutation", "materialize", "name"),
    *("add_any", "empty2", "expand_dims", "scaled_matmul"),
}


def test_every_reference_is_reached():
    reached = set().union(*(of_program(name).names for name in PROGRAMS))
    left = {name for name in reference.REFERENCES if name not in reached}
    own = {name for name in left if name not in all_primitives() or name in own_primitives()}
    assert left - own - NOT_REACHED == set()


ORDERED = np.float32([-np.inf, -2, 0, 3, np.inf, np.nan])
DIRECT = {
    **{
        name: ([X], {}, [X])
        for name in [
            "copy_p",
            "mesh_cast",
            "pvary",
            "reshard",
            "sharding_constraint",
            "device_put",
            "materialize",
            "name",
        ]
    },
    "add_any": ([X, X], {}, [X + X]),
    "expand_dims": ([X], {"dimensions": (1,)}, [X[:, None]]),
    "broadcast_to": ([X[0]], {"shape": X.shape}, [np.broadcast_to(X[0], X.shape)]),
    "empty": ([], {}, [np.zeros((2, 3), np.float32)]),
    "empty2": ([], {}, [np.zeros((2, 3), np.float32)]),
    "lt_to": ([ORDERED, np.roll(ORDERED, 1)], {}, [np.array([True, *[False] * 5])]),
    "le_to": ([ORDERED, ORDERED], {}, [np.ones(6, bool)]),
    "eq_to": ([ORDERED, ORDERED], {}, [np.ones(6, bool)]),
    "log2": ([np.float32([8, 0.25])], {}, [np.float32([3, -2])]),
    "lu_pivots_to_permutation": (
        [np.int32([2, 2])],
        {"permutation_size": 3},
        [np.int32([2, 0, 1])],
    ),
    "iota_2x32_shape": ([], {"shape": (3,)}, [np.uint32([0, 0, 0]), np.uint32([0, 1, 2])]),
    "polynomial": (
        [np.float32([0.1, 3]), *np.float32([1, 2, 3])],
        {"unroll": None},
        [
            values.add(
                values.multiply(values.add(values.multiply(np.float32(3), v), np.float32(2)), v),
                np.float32(1),
            )
            for v in [np.float32([0.1, 3])]
        ],
    ),
}


@pytest.mark.parametrize("name", DIRECT)
def test_what_programs_of_this_version_do_not_reach(name):
    operands, params, expected = DIRECT[name]
    types = [(x.dtype.name, x.shape) for x in expected]
    assert_same_bits(reference.compute(name, operands, params, results=types), expected)


def test_threefry_is_the_published_one():
    """The known answers of Random123, for 20 rounds."""
    ones = 0xFFFFFFFF
    for (key, count), answer in {
        ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
        ((ones, ones), (ones, ones)): (0x1CB996FC, 0xBB002BE7),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)): (0xC4923A9C, 0x483DF7A0),
    }.items():
        operands = [np.uint32(x) for x in (*key, *count)]
        types = [("uint32", ())] * 2
        found = reference.compute("threefry2x32", operands, {}, results=types)
        assert tuple(map(int, found)) == answer


SEEDS = [3, 7, 12, 32, 56, 61, 83, 114, 168, 205]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed):
    program = random_programs.generate(seed)
    orders = dict(zip(("accumulation", "contraction"), program["order"], strict=True))
    with random_programs.quiet():
        found = recomputed(
            random_programs.build(program), *random_programs.arrays(program), **orders
        )
    assert found.differ == []
    assert len(found.names) > 3


# --- it can tell ------------------------------------------------------------------------


def _other_order(combine, x):
    total = x[0]
    for y in x[1:]:
        total = combine(total, y)
    return total


def _unfused(a, b, s):
    return np.float32(a) * np.float32(b) + s


def _flushed(a, b, s):
    return values.flush(values.fma(a, b, s))


def test_another_order_is_noticed(monkeypatch):
    monkeypatch.setattr(sums, "halves", _other_order)
    found = recomputed(lambda x: x.sum(0), normal((50, 3)))
    assert len(found.differ) == 1 and "reduce_sum" in found.differ[0]


@pytest.mark.parametrize("step", [_unfused, _flushed], ids=["unfused", "flushed"])
def test_another_chain_is_noticed(step, monkeypatch):
    """A product that is rounded by itself, and a subnormal sum that is not kept."""
    x, w = normal((4, 30)), normal((30, 3), 1)
    tiny = np.ldexp(np.float32(1), -64).astype(np.float32)
    operands = (x, w) if step is _unfused else (x * tiny, w * tiny)
    assert recomputed(lambda x, w: x @ w, *operands).differ == []
    stock = products.dot_general
    monkeypatch.setitem(
        reference.REFERENCES,
        "dot_general",
        lambda o: [stock(*o.operands, o.params["dimension_numbers"], step)],
    )
    found = recomputed(lambda x, w: x @ w, *operands, elements=False)
    assert len(found.differ) == 1 and "dot_general" in found.differ[0]


def test_plain_jax_is_told_apart():
    """Its exponential is not correctly rounded, and its sums have other orders."""
    found = recomputed(lambda x: (jnp.exp(x), x.sum(0)), normal((2000, 3)), plain=True)
    assert {text.split(", ")[1] for text in found.differ} == {"exp", "reduce_sum"}


# --- elementary functions ---------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, f in elementary.FUNCTIONS.items() if f.near])
def test_the_filter_changes_nothing(name, monkeypatch):
    x = values.canonical(np.concatenate([normal(300), patterns(300), SPECIALS]))
    function = elementary.FUNCTIONS[name]
    for dtype in values.FORMATS:
        with np.errstate(all="ignore"):
            given = values.canonical(x.astype(dtype))
        fast = elementary.correctly_rounded(function, given, dtype)
        monkeypatch.setattr(elementary, "FEW", len(x))
        assert_same_bits(fast, elementary.correctly_rounded(function, given, dtype), name)
        monkeypatch.undo()


def test_without_mpmath(monkeypatch):
    monkeypatch.setattr(elementary, "mpmath", None)
    with pytest.raises(reference.NoReference, match=r"repjax\[instruments\]"):
        reference.compute("exp", [np.float32(2)], {}, results=[("float32", ())])
    (three,) = reference.compute(
        "add", [np.float32(1), np.float32(2)], {}, results=[("float32", ())]
    )
    assert three == 3


# --- what it does not take --------------------------------------------------------------


def test_what_has_no_reference_says_why():
    one = np.float32(1)
    for name, reason in [
        ("scan", "no single operation"),
        ("psum", "several devices"),
        ("eig", "does not define it"),
        ("fft", "complex128"),
    ]:
        with pytest.raises(reference.NoReference, match=reason):
            operand = np.ones(3, np.complex128) if name == "fft" else one
            params = {"fft_type": 0, "fft_lengths": (3,)}
            dtype = "complex128" if name == "fft" else "float32"
            reference.compute(name, [operand], params, results=[(dtype, operand.shape)])
    with pytest.raises(reference.NoReference, match="float64"):
        reference.compute("exp", [np.float64(1)], {}, results=[("float64", ())])
    with pytest.raises(reference.NoReference, match=r"expected results float16\[\]"):
        reference.compute("max", [one, one], {}, results=[("float16", ())])


def test_an_element_reads_a_row_and_a_column():
    """A product that could not be computed whole."""
    a = np.broadcast_to(np.float32(0.1), (10**7, 3))
    b = np.broadcast_to(np.float32(0.3), (3, 10**7))
    one = reference.element(
        "dot_general",
        [a, b],
        {"dimension_numbers": (((1,), (0,)), ((), ()))},
        (9_999_999, 12),
        results=[("float32", (10**7, 10**7))],
    )
    assert one == products.chain([(np.float32(0.1), np.float32(0.3))] * 3, ())
