"""Order-independent and exact products by AMX: the bits of the bodies, by tiles where they pay.

On a processor without AMX this file and tests of ``test_order_independent.py`` run once more in a
process in which ``amx_emulator.cc`` executes the instructions of the compiled kernel.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import repjax
from helpers.paths import TESTS
from helpers.products import DATA, MATRIX, assert_same_bits, run, with_gradients
from repjax.primitives.cpu import library
from repjax.primitives.cpu import products as kernel
from repjax.primitives.operations.products import order_independent

NAME = "AVX512_AMX"
#: What the emulator counts, if this process has it.
EMULATOR = ctypes.CDLL(None) if "amx_emulator" in os.environ.get("LD_PRELOAD", "") else None

needs_amx = pytest.mark.skipif(
    NAME not in library.instruction_sets(),
    reason="no AMX here: run by test_in_emulation, if it can be emulated",
)


# --- without AMX: a process that has the emulator ----------------------------------------


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """The library to preload, compiled."""
    if EMULATOR or NAME in library.instruction_sets():
        pytest.skip("there is AMX")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("AMX is an extension of x86-64, and the emulator needs Linux")
    if "AVX512_VNNI" not in library.instruction_sets():
        pytest.skip("the rest of the kernel needs AVX512-VNNI, which is not emulated")
    if not hasattr(library._load(), "repjax_has_amx"):
        pytest.skip("the compiler of the kernel knows no AMX")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    compiled = tmp_path_factory.mktemp("amx") / "amx_emulator.so"
    options = ["-O3", "-march=native", "-mamx-tile", "-mamx-int8", "-std=c++17", "-shared", "-fPIC"]
    source = str(pathlib.Path(__file__).with_name("amx_emulator.cc"))
    subprocess.run([compiler, *options, source, "-o", str(compiled)], check=True)
    return compiled


def _emulated(library, *command, fault=""):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "REPJAX"))}
    environment |= {"LD_PRELOAD": str(library), "AMX_EMULATOR_FAULT": fault}
    return subprocess.run(
        [sys.executable, "-P", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1000,
    )


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_in_emulation(emulator):
    files = [__file__, TESTS / "numerics" / "test_order_independent.py"]
    chosen = "(test_amx and not emulation) or of_the_kernel or by_the_kernel"
    child = _emulated(emulator, *PYTEST, *map(str, files), "-k", chosen)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "passed" in child.stdout and "skipped" not in child.stdout, child.stdout


_SETS = "from repjax.primitives.cpu import library; print(*library.instruction_sets())"


@pytest.mark.parametrize("fault", ["unsigned", "swapped", "last_row"])
def test_tiles_that_multiply_wrongly_are_not_used_in_emulation(emulator, fault):
    """The kernel tries the instructions before it offers them."""
    assert NAME in _emulated(emulator, "-c", _SETS).stdout.split()
    sets = _emulated(emulator, "-c", _SETS, fault=fault).stdout.split()
    assert "AVX512_VNNI" in sets and NAME not in sets


def test_a_wrong_bit_in_emulation(emulator):
    """Negative control: one bit of one sum of each product, from the 1001st on."""
    test = f"{__file__}::test_products"
    child = _emulated(emulator, *PYTEST, "-x", test, fault="late")
    assert child.returncode == 1 and "Arrays are not equal" in child.stdout, child.stdout


# --- with AMX, or the emulator -----------------------------------------------------------


@pytest.fixture
def amx():
    """Chooses it; afterwards no thread has tiles.  Returns the number of products so far."""
    before, _ = library.in_use()
    library.choose(NAME)
    yield lambda: EMULATOR and ctypes.c_uint64.in_dll(EMULATOR, "amx_products").value
    if EMULATOR:
        assert ctypes.c_int64.in_dll(EMULATOR, "amx_threads").value == 0
    if before:
        library.choose(before)


@needs_amx
@pytest.mark.skipif(not EMULATOR, reason="a test of the emulator")
@pytest.mark.parametrize("sizes", [(16, 16, 64), (3, 16, 64), (16, 5, 64), (16, 16, 12), (1, 1, 4)])
def test_one_instruction(sizes):
    """TDPBSSD with tiles of any size: signed bytes, sums modulo 2**32, nothing else written."""
    rng = np.random.default_rng(0)
    m, n, k = sizes
    a = rng.integers(-128, 128, (m, k), np.int8)
    b = rng.integers(-128, 128, (k // 4, n, 4), np.int8)
    c = rng.integers(-(2**31), 2**31, (m + 1, n + 1), np.int32)
    a[0], b[:, 0] = -128, -128
    c[0, 0] = 2**31 - 1
    expected = c.copy()
    by_column = b.swapaxes(1, 2).reshape(k, n).astype(np.int64)
    total = c[:m, :n].astype(np.int64) + a.astype(np.int64) @ by_column
    expected[:m, :n] = total.astype(np.uint32).view(np.int32)
    assert (total != expected[:m, :n]).any()
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    configuration[16:22:2] = 4 * n, k, 4 * n  # bytes of the rows of c, a, b
    configuration[48:51] = m, m, k // 4
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (configuration, c, a, b)]
    EMULATOR.amx_multiply(*pointers, *(ctypes.c_int64(x.strides[0]) for x in (c, a, b)))
    np.testing.assert_array_equal(c, expected)


#: Integers at the ends of digits of 8 bits, of grids of 22 and of 30 bits, and the largest.
ENDS = {
    None: ([0x3F7F7F, 0x3F8080, 0x7F7F, 0x807F, 0x8080, 0x7F, 0x80, 0x3FFFFF, 1], 21),
    "highest": ([0x3F7F7F00, 0x3F808080, 0x7F7F7F, 0x808080, 0x7F80, 0x80, 0x3FFFFFC0, 1], 29),
}


def _ends(precision):
    integers, bits = ENDS[precision]
    values = np.ldexp(np.float32([*integers, *(-i for i in integers)]), -bits).astype(np.float32)

    def data(rng, shape):
        x = rng.choice(values, shape)
        x.flat[:: max(1, min(shape) - 1)] = np.float32(2 - 2.0**-23)
        return x

    return data


#: Around 16 rows and columns, 64 terms, blocks of 512 terms and of 256 rows and columns.
SHAPES = [
    (16, 64, 16),
    (17, 64, 64),
    (16, 65, 16),
    (4, 640, 64),
    (15, 63, 129),
    (49, 129, 49),
    (25, 513, 65),
    (64, 1030, 70),
    (257, 60, 259),
]


@needs_amx
@pytest.mark.parametrize("precision", ENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape, precision, amx):
    m, k, n = shape
    rng = np.random.default_rng(k)
    asked = (jax.lax.Precision(precision),) * 2 if precision else None
    for data in (_ends(precision), *(DATA[d] for d in ("normal", "underflowing", "any_bits"))):
        lhs, rhs = data(rng, (m, k)), data(rng, (k, n))
        options = {"dimension_numbers": MATRIX, "precision": asked}
        expected = run(order_independent.dot_general_body, lhs, rhs, **options)
        for flip_lhs, flip_rhs in ((0, 0), (0, 1), (1, 0), (1, 1)):
            options["dimension_numbers"] = (((1 - flip_lhs,), (flip_rhs,)), ((), ()))
            stored = lhs.T if flip_lhs else lhs, rhs.T if flip_rhs else rhs
            before = amx()
            actual = run(kernel.order_independent_dot_general, *stored, **options)
            assert_same_bits(actual, expected)
            assert not EMULATOR or amx() > before


@needs_amx
def test_small_products_need_no_tiles(amx):
    for m, k, n in ((3, 255, 5), (1, 1000, 70), (100, 3, 100)):
        lhs, rhs = (DATA["normal"](np.random.default_rng(0), s) for s in ((m, k), (k, n)))
        before = amx()
        actual = run(kernel.order_independent_dot_general, lhs, rhs, dimension_numbers=MATRIX)
        expected = run(order_independent.dot_general_body, lhs, rhs, dimension_numbers=MATRIX)
        assert_same_bits(actual, expected)
        assert amx() == before


@needs_amx
def test_a_batch(amx):
    rng = np.random.default_rng(1)
    lhs, rhs = DATA["any_bits"](rng, (5, 16, 64)), DATA["any_bits"](rng, (5, 64, 32))
    options = {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))}
    before = amx()
    actual = run(kernel.order_independent_dot_general, lhs, rhs, **options)
    assert_same_bits(actual, run(order_independent.dot_general_body, lhs, rhs, **options))
    assert not EMULATOR or amx() - before == 5 * 2 * 9


@needs_amx
@pytest.mark.parametrize("terms", [(1 << 17) + 77, 1 << 18])
def test_long_sums(terms, amx):
    """The largest integers of 30 bits (or less), whose sums need all of two words."""
    rng = np.random.default_rng(terms)
    x, y = (np.float32(2) - np.float32(2.0**-23) * rng.integers(1, 4, (2, 4, terms))).astype("f")
    x[1:, ::3] *= -1
    y[2] *= rng.choice(np.float32([-1, 1]), terms)
    options = {
        "dimension_numbers": (((1,), (1,)), ((), ())),
        "precision": (jax.lax.Precision.HIGHEST,) * 2,
    }
    lhs, rhs = np.tile(x, (3, 1)), np.tile(y, (3, 1))
    before = amx()
    actual = run(kernel.order_independent_dot_general, lhs, rhs, **options)
    assert not EMULATOR or amx() > before
    expected = run(order_independent.dot_general_body, x, y, **options)
    assert_same_bits(actual, np.tile(expected, (3, 3)))


@needs_amx
@pytest.mark.parametrize("precision", [None, (jax.lax.Precision.HIGHEST,) * 2])
@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
def test_convolutions(layout, precision, amx):
    """With windows that share elements, and gradients."""
    rng = np.random.default_rng(2)
    sizes = {"N": 2, "C": 16, "O": 32, "I": 16}
    shapes = [
        tuple({**sizes, "H": height, "W": width}[c] for c in spec)
        for spec, height, width in zip(layout[:2], (11, 3), (10, 2), strict=True)
    ]
    options = {"dimension_numbers": layout, "window_strides": (2, 1), "padding": "SAME"}
    before = amx()
    for *operands, parameters in with_gradients(*shapes, **options):
        parameters["precision"] = precision
        lhs, rhs = (DATA["any_bits"](rng, size) for size in operands)
        expected = run(order_independent.conv_general_dilated_body, lhs, rhs, **parameters)
        actual = run(kernel.order_independent_convolution, lhs, rhs, **parameters)
        assert_same_bits(actual, expected)
    assert not EMULATOR or amx() > before


# --- exact products ----------------------------------------------------------------------


def _exactly(*operands):
    """By AMX, and by float64."""
    found = {}
    for name in (NAME, "AVX512"):
        library.choose(name)
        found[name] = run(kernel.exact_dot_general, *operands, dimension_numbers=MATRIX)
    return found[NAME], found["AVX512"]


def _spread(rng, shape):
    """Over 250 binades, and half of a row cancels the other."""
    x = np.ldexp(rng.standard_normal(shape), rng.integers(-124, 124, shape))
    half = shape[1] // 2
    x[:, :half] = -x[:, half : 2 * half]
    return x.astype(np.float32)


def _nearly_even(rng, shape):
    """Little of any row or column is lost, and one of 50 numbers is far larger than the others."""
    x = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.02, x * np.float32(2.0**20), x)


def _bfloat16(rng, shape):
    return rng.standard_normal(shape).astype(jax.numpy.bfloat16).astype(np.float32)


def _one_row(value):
    def data(rng, shape):
        x = rng.standard_normal(shape).astype(np.float32)
        x[shape[0] // 2, shape[1] // 2] = value
        return x

    return data


EXACT_DATA = {
    **DATA,
    "spread": _spread,
    "nearly_even": _nearly_even,
    "bfloat16": _bfloat16,
    "huge": _one_row(2.0**100),
    "infinity": _one_row(np.inf),
    "nan": _one_row(np.nan),
}


#: Numbers of terms that digits are faster for; whole blocks of 256, or nearly, or many.
REPAY_DIGITS = (255, 511, 513, 5000)
#: Of few bits, or with numbers that are not finite in all blocks: these stay with float64.
WITHOUT_DIGITS = ("integers", "bfloat16", "any_bits")


@needs_amx
@pytest.mark.parametrize("terms", [0, 1, 63, 64, 65, 255, 257, 511, 513, 5000])
@pytest.mark.parametrize("data", EXACT_DATA)
def test_exact_products(data, terms, amx):
    rng = np.random.default_rng(terms)
    lhs, rhs = (EXACT_DATA[data](rng, shape) for shape in ((97, terms + 1), (terms + 1, 131)))
    lhs, rhs = lhs[:, :terms], rhs[:terms]
    before = amx()
    by_digits, by_float64 = _exactly(lhs, rhs)
    assert_same_bits(by_digits, by_float64)
    if EMULATOR and data not in ("infinity", "nan"):  # in one of several blocks
        assert (amx() > before) == (terms in REPAY_DIGITS and data not in WITHOUT_DIGITS)


def _finds(x, y, slack, monkeypatch, swapped=False):
    """Whether the exact product of x, in all rows, and y, in all columns, is that above the tie."""
    # A number of many bits, lest float64 be chosen, times zero.
    x, y = np.insert(x, 0, 2.0**36 + 2.0**13), np.insert(y, 0, 0.0)
    a, b = np.tile(np.float32(x), (64, 1)), np.tile(np.float32(y)[:, None], (1, 64))
    if swapped:
        a, b = b.T.copy(), a.T.copy()
    monkeypatch.setattr(kernel, "SLACK", slack)

    def compute(a, b):  # not by `run`, which keeps what is compiled
        with jax.enable_x64(True):
            return kernel.exact_dot_general(a, b, dimension_numbers=MATRIX)

    found = np.asarray(jax.jit(compute)(a, b))
    return (found == np.float32(2.0**74 + 2.0**51)).all()


@needs_amx
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("slack", [1.0, 0.25])
def test_the_bound_of_what_is_lost(slack, swapped, amx, monkeypatch):
    """The float32 number's lower half of a unit is lost; a weaker bound does not see it."""
    x, y = np.full(200, 2.0**37), np.full(200, 0.5)  # half a unit beside 2**37 units
    y[0] = 2.0**37
    # The lost sum and three quarters of it less, above the middle of two float32 numbers.
    lost = 199 * 2**36
    x, y = np.append(x, 2.0**26), np.append(y, 2.0**24)
    x, y = np.append(x, -(2.0**24)), np.append(y, round(0.75 * lost / 2**24))
    exact_sum = sum(int(2 * a) * int(2 * b) for a, b in zip(x, y, strict=True)) / 4
    assert exact_sum > 2**74 + 2**50
    assert _finds(x, y, slack, monkeypatch, swapped) == (slack == 1)


@needs_amx
@pytest.mark.parametrize("slack", [1.0, 0.25])
def test_the_bound_of_what_is_left_out(slack, amx, monkeypatch):
    """Digits 0 and 1 are -128 in all terms but the first: the products of these are left out."""
    terms = 200
    x = np.full(terms, -(128.0 + 128 * 256))
    x[0] = 2.0**37
    left_out = (terms - 1) * 2**14 * (1 + 2 * 2**8)
    kept = (terms - 1) * 2**14 * 2**16
    y = x.copy()
    # To the tie above 2**74, plus an eighth of what is left out.
    need = 2**50 + left_out // 8 - left_out - kept
    for shift in (36, 24):  # by digits that are multiplied by one that is not left out
        x, y = np.append(x, float(need >> shift)), np.append(y, 2.0**shift)
        need -= need >> shift << shift
    exact_sum = sum(int(p) * int(q) for p, q in zip(x, y, strict=True))
    assert 0 < exact_sum - 2**74 - 2**50 <= left_out // 8
    assert _finds(x, y, slack, monkeypatch) == (slack == 1)


@needs_amx
@pytest.mark.parametrize("slack", [1.0, 0.25])
def test_the_bound_of_float64_additions(slack, amx, monkeypatch):
    """Each block but two adds half a unit of the sum, which is lost; a weaker bound misses it."""
    terms, blocks = 256, 34
    x, y = (np.zeros((blocks, terms)) for _ in range(2))
    x[0], y[0] = 2.0**37, 2.0**29  # of which the first is replaced
    x[2:, 0], y[2:, 0] = 2.0**10, 2.0**11
    lost = (blocks - 2) * 2**21
    # To the tie above 2**74, less three quarters of what is lost.
    x[1, :3] = 2.0**37, 2.0**29, -(0.75 * lost / 2**11)
    y[1, :3] = 2.0**29, 2.0**21, 2.0**11
    x, y = x.ravel()[1:], y.ravel()[1:]
    exact_sum = sum(int(p) * int(q) for p, q in zip(x, y, strict=True))
    assert exact_sum - 2**74 - 2**50 == lost / 4
    assert _finds(x, y, slack, monkeypatch) == (slack == 1)


@needs_amx
def test_it_is_the_best(monkeypatch):
    assert library.instruction_sets()[0] == NAME
    library.in_use.cache_clear()
    monkeypatch.delenv("REPJAX_NATIVE", raising=False)
    assert repjax.info()["cpu products"] == f"compiled kernel, {NAME}"
    library.in_use.cache_clear()
    monkeypatch.setenv("REPJAX_NATIVE", NAME)
    assert library.in_use() == (NAME, "")
