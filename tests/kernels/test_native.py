"""The C++ kernels: their blocks and threads change nothing, and they are optional.

That contractions are what the contract says, with each instruction set, is in test_products.py.
"""

from __future__ import annotations

import _ctypes
import hashlib
import importlib.metadata
import pathlib
import shutil
from functools import partial

import jax
import numpy as np
import pytest

import repjax
from helpers.instruction_sets import each_instruction_set
from helpers.products import (
    BODIES,
    DATA,
    MATRIX,
    assert_same_bits,
    implementations,
    run,
    with_gradients,
)
from repjax.primitives.core import canonical
from repjax.primitives.cpu import library
from repjax.primitives.cpu import sources as native_sources
from repjax.primitives.cpu import sums as kernel
from repjax.primitives.operations.reductions import sums

KERNEL = library._find()
needs_kernel = pytest.mark.skipif(
    not library.instruction_sets(), reason="the kernel was not compiled: no C++ compiler here"
)

# Around the sizes of tiles (up to 12 by 64), of packed panels, and of blocks (256 terms, 512
# columns; of one row 4,096 columns, of few rows as many terms), and large enough for several
# threads.
MATRICES = [
    (1, 1000, 1),
    (1, 1000, 3),
    (3, 1000, 1),
    (1, 13, 4300),
    (1, 700, 150),
    (2, 4500, 33),
    (12, 256, 64),
    (13, 257, 65),
    (97, 300, 515),
    (700, 5, 9),
    (9, 5, 1100),
    (23, 511, 47),
    (128, 64, 128),
    (37, 1030, 130),
    (520, 258, 260),  # transposed, the left one is packed
]
#: Of A[m, k] and B[k, n], which are stored transposed.
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


@needs_kernel
@pytest.mark.parametrize("shape", MATRICES)
def test_blocks(shape):
    m, k, n = shape
    rng = np.random.default_rng(m)
    for data in ("normal", "underflowing", "ties", "any_bits"):
        lhs, rhs = DATA[data](rng, (m, k)), DATA[data](rng, (k, n))
        expected = run(BODIES[0], lhs, rhs, dimension_numbers=MATRIX)
        for dot_general, _ in implementations():
            for flip_lhs, flip_rhs in LAYOUTS:
                numbers = (((1 - flip_lhs,), (0 + flip_rhs,)), ((), ()))
                stored = lhs.T if flip_lhs else lhs, rhs.T if flip_rhs else rhs
                actual = run(dot_general, *stored, dimension_numbers=numbers)
                assert_same_bits(actual, expected)


#: Products that are computed without being divided, and some that just are not: the shapes, and the
#: contracted and the batch axes.
SMALL = [
    *[
        ((k,), (k, n), (((0,), (0,)), ((), ())))
        for k, n in ((16, 16), (64, 64), (3, 48), (256, 112))
    ],
    *[((k, n), (k,), (((0,), (0,)), ((), ()))) for k, n in ((16, 16), (5, 80), (257, 16))],
    *[((k,), (k,), (((0,), (0,)), ((), ()))) for k in (1, 10, 300, 70_000)],
    *[((n, k), (k,), (((1,), (0,)), ((), ()))) for n, k in ((200, 10), (37, 19), (16, 3), (5, 16))],
    *[((k,), (k, n), (((0,), (0,)), ((), ()))) for k, n in ((200, 10), (50, 23), (7, 1))],
    *[((n, k), (k,), (((1,), (0,)), ((), ()))) for n, k in ((16, 16), (10, 10), (1100, 4))],
    *[
        ((m, k), (n, k), (((1,), (1,)), ((), ())))
        for m, n, k in ((3, 40, 20), (5, 40, 20), (4, 3, 5))
    ],
    *[
        ((m, 20), (20, n), MATRIX)
        for m, n in ((9, 7), (4, 3), (6, 33), (1, 32), (5, 16), (13, 144), (16, 17), (31, 64))
    ],
    *[((20, m), (20, n), (((0,), (0,)), ((), ()))) for m, n in ((5, 16), (16, 5), (48, 7))],
    ((3, 4, 7), (3, 7, 32), (((2,), (1,)), ((0,), (0,)))),
    ((4, 7, 3), (7, 3, 32), (((1,), (0,)), ((2,), (1,)))),
    ((2, 3, 8), (8, 16), (((2,), (0,)), ((), ()))),
    # Groups: of a chain or a few, which are computed side by side, and of rows.
    *[
        ((g, k), (g, k), (((1,), (1,)), ((0,), (0,))))
        for g, k in ((40, 3), (33, 20), (17, 64), (5, 300), (5000, 40))
    ],
    *[
        ((g, m, k), (g, k), (((2,), (1,)), ((0,), (0,))))
        for g, m, k in ((41, 4, 4), (9, 3, 17), (10_000, 3, 3), (30, 17, 32))
    ],
    *[
        ((g, i, k), (g, i, k), (((1, 2), (1, 2)), ((0,), (0,))))
        for g, i, k in ((7, 4, 5), (3, 9, 16))
    ],
    ((7, 4, 5), (7, 6, 5), (((0, 2), (0, 2)), ((), ()))),  # no single axis
    ((64, 8, 16), (64, 8, 16), (((2,), (2,)), ((0,), (0,)))),
    ((300, 32), (300, 17, 32), (((1,), (2,)), ((0,), (0,)))),
    ((300, 17), (300, 17, 32), (((1,), (1,)), ((0,), (0,)))),
    ((2000, 24), (2000, 24, 16), (((1,), (1,)), ((0,), (0,)))),
    ((6, 1), (1, 16), MATRIX),
    ((4, 0), (0, 16), MATRIX),
]


@needs_kernel
@pytest.mark.parametrize(("lhs", "rhs", "numbers"), SMALL, ids=str)
def test_small_products(lhs, rhs, numbers):
    rng = np.random.default_rng(1)
    for data in ("normal", "underflowing", "ties", "any_bits"):
        x, y = (canonical.canonicalize(DATA[data](rng, shape)) for shape in (lhs, rhs))
        expected = run(BODIES[0], x, y, dimension_numbers=numbers)
        swapped = tuple(pair[::-1] for pair in numbers)
        turned = run(BODIES[0], y, x, dimension_numbers=swapped)
        for dot_general, _ in implementations():
            assert_same_bits(run(dot_general, x, y, dimension_numbers=numbers), expected)
            assert_same_bits(run(dot_general, y, x, dimension_numbers=swapped), turned)
    # Negative control: other terms have other bits.
    if x.size:
        x = DATA["normal"](rng, lhs)
        y = DATA["normal"](rng, rhs)
        other = run(BODIES[0], 2 * x, y, dimension_numbers=numbers)
        assert (other != run(BODIES[0], x, y, dimension_numbers=numbers)).any()


@needs_kernel
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
def test_blocks_of_convolutions(layout, stride):
    """The gradients of strided ones have holes, which meet finite and other numbers."""
    rng = np.random.default_rng(stride)
    sizes = {"N": 3, "C": 5, "O": 70, "I": 5}
    shapes = [
        tuple({**sizes, "H": height, "W": width}[c] for c in spec)
        for spec, height, width in zip(layout[:2], (19, 3), (14, 4), strict=True)
    ]
    options = {"dimension_numbers": layout, "window_strides": (stride,) * 2, "padding": "SAME"}
    for *operands, parameters in with_gradients(*shapes, **options):
        for data in ("normal", "underflowing", "any_bits"):
            lhs, rhs = (DATA[data](rng, shape) for shape in operands)
            expected = run(BODIES[1], lhs, rhs, **parameters)
            for _, convolve in implementations():
                assert_same_bits(run(convolve, lhs, rhs, **parameters), expected)


#: Of few output features, whose positions are columns, which lie together by vectors, by runs or
#: not at all; and of a window as large as the image, in whose gradient an image has one position.
FEW_FEATURES = [
    ((2, 32, 32, 5), (3, 3, 5, 3), "SAME"),
    ((8, 14, 14, 3), (5, 5, 3, 6), "VALID"),
    ((16, 9, 11, 2), (3, 2, 2, 7), "SAME"),
    ((1, 7, 160, 4), (2, 1, 4, 8), "VALID"),
    ((3, 5, 4, 7), (5, 4, 7, 18), "VALID"),
    ((3, 1, 1, 7), (5, 4, 7, 18), ((3, 2), (1, 3))),
    ((3, 1, 1, 7), (5, 4, 7, 18), ((5, 4), (3, 3))),
]


@needs_kernel
@pytest.mark.parametrize(("lhs", "rhs", "padding"), FEW_FEATURES, ids=str)
def test_convolutions_of_few_features_and_of_one_position(lhs, rhs, padding):
    rng = np.random.default_rng(8)
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "window_strides": (1, 1)}
    for *operands, parameters in with_gradients(lhs, rhs, padding=padding, **options):
        for data in ("normal", "underflowing", "any_bits"):
            x, w = (canonical.canonicalize(DATA[data](rng, shape)) for shape in operands)
            expected = run(BODIES[1], x, w, **parameters)
            for _, convolve in implementations():
                assert_same_bits(run(convolve, x, w, **parameters), expected)
    # Negative control: with the taps in the other order there are other bits.
    x, w = (DATA["normal"](rng, shape) for shape in operands)
    turned = run(BODIES[1], x, np.flip(w, 0).copy(), **parameters)
    assert (turned != run(BODIES[1], x, w, **parameters)).any()


# Around the sizes of vectors, of steps of eight and of 64 rows, and of blocks (512 columns,
# 32,768 elements of a row); several threads.
SUMS = [
    *(((n,), (0,)) for n in (1, 2, 3, 7, 16, 33, 127, 1000, 4097, 70001, 300000)),
    *(((rows, n), (1,)) for rows, n in ((5, 64), (100, 129), (1000, 3), (4, 100000))),
    *(((n, columns), (0,)) for n, columns in ((64, 120), (65, 700), (128, 9), (1000, 3))),
    ((8, 16, 16, 16), (0, 1, 2)),
    ((3, 150, 600), (1,)),
    ((2, 129, 5), (0, 2)),
    ((3, 0, 4), (0,)),
    ((3, 0, 4), (1,)),
    ((3, 3), ()),
]


@needs_kernel
@pytest.mark.parametrize("accumulation", ["pairwise", "sequential"])
@pytest.mark.parametrize("data", ["normal", "underflowing", "any_bits"])
def test_sums(data, accumulation):
    def canonical_sum(body, x, **parameters):
        return canonical.canonicalize(body(canonical.canonicalize(x), **parameters))

    for shape, axes in SUMS:
        x = DATA[data](np.random.default_rng(1), shape)
        parameters = {"axes": axes, "accumulation": accumulation}
        expected = run(partial(canonical_sum, sums.reduce_sum_body), x, **parameters)
        for _ in each_instruction_set():
            actual = run(partial(canonical_sum, kernel._sum), x, **parameters)
            assert_same_bits(actual, expected)


def _long_chains() -> dict[str, np.ndarray]:
    """Terms of chains that grow, cross powers of two, meet ties, infinities and subnormals."""
    rng, n = np.random.default_rng(7), 20_000
    normals, uniform = rng.normal(size=n).astype(np.float32), rng.random(n, np.float32)
    ends = uniform.copy()
    ends[[9000, 15_000]] = np.inf, -np.inf
    large = uniform * np.float32(2**120)
    there = np.where(np.arange(n) < n // 2, uniform, -uniform)
    return {
        "grows": uniform,
        "falls": -uniform,
        "there and back": there,
        "walks": normals,
        "ties": (normals.view(np.int32) & -(1 << 16)).view(np.float32),
        "integers": rng.integers(-4, 5, n).astype(np.float32),
        "half units": (rng.integers(0, 9, n) + np.where(np.arange(n) == 20, 2**25, 0))
        * np.float32(0.5),
        "powers": np.ldexp(np.float32(1), rng.integers(-26, 1, n)) * rng.choice([-1, 1], n),
        "sizes": np.ldexp(normals, rng.integers(-30, 31, n)),
        "infinities": ends,
        "overflows": large,
        "subnormals": np.ldexp(normals, rng.integers(-150, -100, n)),
    }


@needs_kernel
@pytest.mark.parametrize("name", _long_chains())
def test_long_chains(name):
    """A single one, of which many steps are taken at once."""
    raw = np.float32(_long_chains()[name])
    x = np.asarray(canonical.canonicalize(raw))
    y = np.random.default_rng(8).normal(size=x.shape).astype(np.float32)
    sequential = {"axes": (1,), "accumulation": "sequential"}
    rows = np.stack([x, -x, x[::-1]])
    sums_of_rows = run(sums.reduce_sum_body, rows, **sequential)
    pairs = [(x, np.ones_like(x)), (x, y), (x, x)]
    products = [run(BODIES[0], a[None], b[:, None], dimension_numbers=MATRIX) for a, b in pairs]
    for _ in each_instruction_set():
        for count in (1, 3):
            actual = run(kernel._sum, rows[:count], **sequential)
            assert_same_bits(
                canonical.canonicalize(actual), canonical.canonicalize(sums_of_rows[:count])
            )
        assert_same_bits(repjax.reproducible(lambda a, b: a @ b)(raw, y), products[1][0, 0])
    for dot_general, _ in implementations():
        for (a, b), expected in zip(pairs, products, strict=True):
            actual = run(dot_general, a[None], b[:, None], dimension_numbers=MATRIX)
            assert_same_bits(actual, expected)
            # With terms that do not lie together: those of axes in another order.
            terms = (a.reshape(100, 200).T, b.reshape(100, 200))
            actual = run(dot_general, *terms, dimension_numbers=(((1, 0), (0, 1)), ((), ())))
            assert_same_bits(actual, expected[0, 0])
    # Negative control: these are chains whose order matters.
    if name in ("walks", "ties", "sizes"):
        assert sums_of_rows[0] != sums_of_rows[2]


def test_sums_that_are_too_large_for_the_kernel():
    x = DATA["normal"](np.random.default_rng(1), (library.LARGE // 512 + 1, 512))
    for axes in ((0,), (1,), (0, 1)):
        expected = run(sums.reduce_sum_body, x, axes=axes, accumulation="pairwise")
        assert_same_bits(repjax.lax.reduce_sum(x, axes), expected)


@needs_kernel
def test_the_order_of_sums_matters():
    """So that the test above can fail."""
    x = DATA["normal"](np.random.default_rng(1), (1000,))
    results = {
        run(kernel._sum, x, axes=(0,), accumulation=order).item()
        for order in ("pairwise", "sequential")
    }
    assert len(results) == 2


@needs_kernel
def test_the_primitives_use_it():
    x = np.ones((3, 3), np.float32)
    text = jax.jit(repjax.reproducible(lambda x: (x @ x).sum())).lower(x).as_text()
    assert ("custom_call @repjax_product" in text) == library.available()
    assert ("custom_call @repjax_reduce_sum" in text) == library.available()


@pytest.fixture
def loading(monkeypatch):
    """The kernel is loaded again, from a changed place and with a changed environment."""

    def clear():
        for function in (library._load, library.in_use, library._warn):
            function.cache_clear()

    clear()
    yield monkeypatch
    monkeypatch.undo()
    clear()
    library.in_use()


def test_what_was_compiled_is_loaded():
    """Otherwise the tests of the kernels would be skipped without a word."""
    assert library.instruction_sets() or isinstance(library._find(), str), library._load()


def _warned_once(reason):
    """That the kernel is not used, why, and that this is said once, where it would be used."""
    with pytest.warns(UserWarning, match="computes without its C\\+\\+ kernel") as caught:
        for _ in range(2):
            name, received = library.in_use()
            assert not library.available() and not library.instruction_sets()
            assert not library.serves()
    assert name is None and reason in received
    assert len(caught) == 1 and received in str(caught[0].message)
    assert "(REPJAX_NATIVE=off silences this warning)" in str(caught[0].message)
    assert repjax.info()["cpu products"] == f"XLA: {received}"


def test_without_a_compiled_kernel(loading, tmp_path):
    loading.setattr(library, "_LIBRARY", tmp_path / "nothing")
    loading.setattr(library, "_TREE", None)
    loading.delenv("REPJAX_NATIVE", raising=False)
    _warned_once("it was not compiled when repjax was installed; install a wheel that has it, or")


@needs_kernel
def test_a_source_tree_uses_the_kernel_that_is_installed(loading, tmp_path):
    """If it is of the sources of the tree; else it says exactly that there is none."""
    loading.setattr(library, "_LIBRARY", tmp_path / "nothing")
    loading.setattr(library, "_TREE", tmp_path)
    loading.delenv("REPJAX_NATIVE", raising=False)
    site = tmp_path / "site"
    installed, about = site / library._INSTALLED, site / "repjax-0.1.0.dist-info" / "METADATA"
    for path in (installed, about):
        path.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.4\nName: repjax\nVersion: 0.1.0\n")
    found = partial(importlib.metadata.distributions, path=[str(site)])
    loading.setattr(importlib.metadata, "distributions", found)
    _warned_once(f"{tmp_path} is a source tree, where it was not compiled, and no repjax")
    shutil.copy(KERNEL, installed)
    assert library._find() == installed
    digest = native_sources.digest(library._SOURCES).encode()
    installed.write_bytes(installed.read_bytes().replace(digest, b"0" * 64))
    library._load.cache_clear()
    library.in_use.cache_clear()
    library._warn.cache_clear()
    _warned_once(f"{installed} was compiled from other sources: expected {digest.decode()}, rece")


def test_a_program_that_needs_no_kernel_does_not_warn(loading, tmp_path):
    """Negative control: the product does, by the way it is lowered."""
    loading.setattr(library, "_LIBRARY", tmp_path / "nothing")
    loading.setattr(library, "_TREE", None)
    loading.delenv("REPJAX_NATIVE", raising=False)
    x = np.ones((2, 2), np.float32)
    repjax.reproducible(lambda x: x + 1)(x)
    with pytest.warns(UserWarning, match="many times slower"):
        repjax.reproducible(lambda x: x @ x)(x)
    loading.setenv("REPJAX_NATIVE", "off")
    library.in_use.cache_clear()
    library._warn.cache_clear()
    repjax.reproducible(lambda x: (x + 2) @ x)(x)


@needs_kernel
def test_a_broken_kernel(loading, tmp_path):
    path = tmp_path / "_native.so"
    digest = native_sources.digest(library._SOURCES)
    path.write_bytes(b"\x7fELF, cut short, " + digest.encode())
    loading.setattr(library, "_LIBRARY", path)
    loading.delenv("REPJAX_NATIVE", raising=False)
    _warned_once(f"{path} cannot be loaded: ")


@needs_kernel
def test_a_kernel_of_other_sources(loading, monkeypatch, tmp_path):
    """Whatever is different about them, and wherever they are: it is not even loaded."""
    loading.delenv("REPJAX_NATIVE", raising=False)
    loading.setattr(library, "_LIBRARY", KERNEL)
    loading.setattr(library, "_TREE", None)
    sources = tmp_path / "native"
    shutil.copytree(library._SOURCES, sources)
    loading.setattr(library, "_SOURCES", sources)
    assert library.in_use()[0]  # in another place
    x = np.float32([[1e-3, 7.0, 3.0]])
    expected = repjax.reproducible(lambda x: x @ x.T)(x)
    header = sources / "floats-inl.h"
    text = header.read_text()
    for change in (
        lambda: header.write_text(text + "// one line more\n"),
        lambda: (header.write_text(text), header.rename(sources / "float.h")),
        lambda: (sources / "float.h").unlink(),
        lambda: shutil.rmtree(sources),
    ):
        change()
        for function in (library._load, library.in_use, library._warn):
            function.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(library.ctypes, "CDLL", None)
            _warned_once(f"{KERNEL} was compiled from other sources: expected ")
        assert_same_bits(repjax.reproducible(lambda x: x @ x.T)(x), expected)


def test_a_kernel_without_a_digest(loading):
    """As of a version before there were any."""
    loading.setattr(library, "_LIBRARY", pathlib.Path(_ctypes.__file__))
    loading.setattr(library, "_TREE", None)
    loading.delenv("REPJAX_NATIVE", raising=False)
    _warned_once("received a kernel without a digest of its sources; install repjax again")


def test_the_digest_is_of_names_and_contents(tmp_path):
    assert native_sources.digest(tmp_path) is None
    (tmp_path / "a.cc").write_bytes(b"int x;")
    (tmp_path / "b.h").write_bytes(b"int y;")
    (tmp_path / "b.o").write_bytes(b"")  # no source
    text = b"a.cc\n6\nint x;b.h\n6\nint y;"
    assert native_sources.digest(tmp_path) == hashlib.sha256(text).hexdigest()


def test_switched_off(loading):
    loading.setenv("REPJAX_NATIVE", "off")
    assert repjax.info()["cpu products"] == "XLA: REPJAX_NATIVE is off"


def test_unknown_instruction_set(loading):
    loading.setenv("REPJAX_NATIVE", "AVX1024")
    with pytest.raises(ValueError, match=r"expected off.*, received 'AVX1024'"):
        library.in_use()


@needs_kernel
@pytest.mark.parametrize("function", [jax.numpy.tanh, jax.nn.softmax])
def test_calls_by_many_programs(function):
    """More than a thread keeps decoded, of one length, some where others were that are gone."""
    x = np.linspace(-2, 2, 512, dtype=np.float32).reshape(4, 128)
    numbers = np.float32(1) + np.arange(90, dtype=np.float32) / 64
    # Of a number that is an operand, so that there is one call.
    expected = jax.jit(repjax.reproducible(lambda x, c: function(x * c)))
    expected = [np.asarray(expected(x, c)) for c in numbers]

    def compiled(c):
        return repjax.reproducible(lambda x: function(x * c)).lower(x).compile()

    programs = [compiled(c) for c in numbers]
    for _ in range(2):
        for program, wanted in zip(programs, expected, strict=True):
            assert_same_bits(np.asarray(program(x)), wanted)
    for i in range(0, len(programs), 7):
        programs[i] = None
        assert_same_bits(np.asarray(compiled(numbers[-1 - i])(x)), expected[-1 - i])
