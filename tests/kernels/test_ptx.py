"""The kernels in PTX of our own, emulated on the CPU: the bits of the bodies, in any shape."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits
from helpers.gpu import compiling_for, for_one_device  # noqa: F401  (a fixture)
from helpers.products import BODIES, CONVOLUTIONS, DATA, DOTS, KERNEL, with_gradients
from ptx.checks import CHAINS
from ptx.machine import Machine
from ptx.parse import parse, synchronizations, without
from ptx.races import EmulationError
from ptx.state import CONSTANTS, Launch
from repjax.primitives import gpu
from repjax.primitives.cpu import library
from repjax.primitives.gpu import products, ptx, triton
from repjax.primitives.operations.products import problems

ON_CPU = KERNEL if library.available() else BODIES
NN, TN, NT = ((((i,), (j,)), ((), ())) for i, j in ((1, 0), (0, 0), (1, 1)))


def emulate(text: str, grid: int, threads: int, arrays, *, missing=(), order=None):
    """The arrays after a launch of the kernel, which lie apart from each other.

    ``missing`` are synchronizations to leave out, by their number; ``order`` as for the emulator.
    """
    starts, end = [], 256
    for x in arrays:
        starts.append(end)
        end += -(-x.nbytes // 256) * 256 + 256
    memory = np.full(end + CONSTANTS, 0xA5, np.uint8)
    places = [(start, x.nbytes) for start, x in zip(starts, arrays, strict=True)]
    for (start, size), x in zip(places, arrays, strict=True):
        memory[start : start + size] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    (kernel,) = parse(text).values()
    steps = [step for steps in synchronizations(kernel).values() for step in steps]
    kernel = without(kernel, [steps[i] for i in missing])
    launch = Launch("kCustomKernel", kernel.name, (grid,), (threads,), 0)
    machine = Machine(kernel, launch, memory, places, order=order)
    with np.errstate(all="ignore"):
        machine.run()
    assert not machine.inexact
    pairs = zip(places, arrays, strict=True)
    return [memory[a : a + size].view(x.dtype).reshape(x.shape) for (a, size), x in pairs]


def product(lhs, rhs, shape, problem, *, start=None, into=None, tile=None, wide=False, **options):
    """:func:`ptx.product`, emulated; of an array that is overwritten, the kernel has two names."""
    tile = tile or ptx.choose(*problem.sizes[:3], wide)
    operands = {"lhs": lhs, "rhs": rhs, "start": start}
    operands = {name: np.asarray(x) for name, x in operands.items() if x is not None}
    _, text = ptx.kernel(problem, tile, [*operands, "out"], wide)
    # What the kernel does not write is to be left alone.
    out = np.full(shape, 7, np.float32) if into is None else np.asarray(into)
    grid = ptx.blocks(problem, tile)
    return emulate(text, grid, tile.threads, [*operands.values(), out], **options)[-1]


def expected(function, *operands, **parameters):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(functools.partial(function, **parameters))(*operands))


def check_product(shapes, numbers, data="any_bits", **options):
    rng = np.random.default_rng(0)
    lhs, rhs = (np.asarray(repjax.reproducible(lambda x: x)(DATA[data](rng, s))) for s in shapes)
    shape, problem = problems.dot_general(lhs, rhs, numbers)
    actual = product(lhs, rhs, shape, problem, **options)
    # What NaN a chain ends in is nobody's business: programs have one.
    actual, want = (
        np.asarray(repjax.reproducible(lambda x: x)(x))
        for x in (actual, expected(ON_CPU[0], lhs, rhs, dimension_numbers=numbers))
    )
    assert_same_bits(actual, want)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("numbers", [NN, TN, NT], ids=["NN", "TN", "NT"])
@pytest.mark.parametrize("tile", [*ptx.TILES, ptx.WIDE[0], *ptx.THIN], ids=str)
def test_tiles(tile, numbers, wide):
    """Whole tiles, and one more and one less of everything."""
    whole, more = (tile.m, tile.n, tile.terms), (tile.m + 1, tile.n + 1, 2 * tile.terms + 1)
    for (m, n, k), data in ((whole, "underflowing"), (more, "any_bits")):
        (i,), (j,) = numbers[0]
        shapes = (m, k)[:: 1 if i else -1], (n, k)[:: 1 if j else -1]
        check_product(shapes, numbers, data, tile=tile, wide=wide)


@pytest.mark.parametrize("tile", [*ptx.TILES, ptx.WIDE[0], *ptx.THIN], ids=str)
def test_races(tile):
    """In random orders of warps, the same bits; without either barrier, that is noticed.

    One is in front of the loop, the other in it.  For three tiles of terms, there are both buffers.
    """
    shapes = (tile.m + 1, 2 * tile.terms + 1), (2 * tile.terms + 1, tile.n + 1)
    check_product(shapes, NN, tile=tile, order=np.random.default_rng(tile.m))
    for missing in ([0], [1]):
        with pytest.raises(EmulationError, match=r"race|was not written"):
            check_product(shapes, NN, tile=tile, missing=missing)
    with pytest.raises(IndexError):  # there are no others
        check_product(shapes, NN, tile=tile, missing=[2])


@pytest.mark.parametrize("case", DOTS)
def test_products(case):
    *shapes, numbers = DOTS[case]
    if 0 not in (*shapes[0], *shapes[1]):  # which the kernel is not called for
        check_product(shapes, numbers)


def test_another_order_is_noticed(monkeypatch):
    """Negative control: chains from the last term of each tile to the first."""
    read = ptx._Side.read
    backwards = lambda side, place, term: read(side, place, side.tile.terms - 1 - term)  # noqa: E731
    check_product(((20, 300), (300, 20)), NN, "normal")
    monkeypatch.setattr(ptx._Side, "read", backwards)
    with pytest.raises(AssertionError):
        check_product(((20, 300), (300, 20)), NN, "normal")


@pytest.fixture
def emulated(monkeypatch):
    """Products and convolutions by the second backend, on the CPU."""
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "ptx")
    monkeypatch.setattr(ptx, "product", product)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", ["strides", "lhs dilation", "rhs dilation", "depthwise"])
def test_convolutions_and_their_gradients(case):
    """Of several parts of a result, too, and with chains that begin with NaN."""
    rng = np.random.default_rng(1)
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        lhs, rhs = (repjax.reproducible(lambda x: x)(DATA["any_bits"](rng, s)) for s in shapes)
        with jax.enable_x64(True):
            actual = products.conv_general_dilated(lhs, rhs, **parameters)
        actual, want = (
            np.asarray(repjax.reproducible(lambda x: x)(np.asarray(x)))
            for x in (actual, expected(ON_CPU[1], lhs, rhs, **parameters))
        )
        assert_same_bits(actual, want)


# --- which backend ------------------------------------------------------------------------

X = np.ones((40, 40), np.float32)
CALLS = {"triton": "__gpu$xla.gpu.triton", "ptx": "__gpu$xla.gpu.ptx"}


def lowered(function, *operands, kind: str = "NVIDIA H100") -> str:
    with compiling_for(kind):
        traced = jax.jit(repjax.reproducible(lambda *xs: function(*xs))).trace(*operands)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.usefixtures("for_one_device")
@pytest.mark.parametrize("backend", gpu.BACKENDS)
def test_the_backend_is_chosen(backend, monkeypatch):
    monkeypatch.setenv("REPJAX_GPU_BACKEND", backend)
    for function in (
        lambda x: x @ x,
        lambda x: jax.lax.conv(x[None, None], x[None, None], (2, 2), "SAME"),
    ):
        text = lowered(function, X)
        assert {name for name, call in CALLS.items() if call in text} == {backend} - {"off"}
    text = lowered(lambda x: jax.nn.softmax(x) + x.sum(0), X)
    assert (CALLS["triton"] in text, CALLS["ptx"] in text) == (backend == "triton", False)


@pytest.mark.usefixtures("for_one_device")
def test_what_xla_is_told(monkeypatch):
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "ptx")
    text = lowered(lambda x: x @ x, X)
    assert "block_x = 256 : i32" in text and "grid_x = 9 : i32" in text
    (name,) = set(re.findall(r'name = "(tiles__\d+)"', text))
    assert f".visible .entry {name}(" in text
    assert CHAINS.fullmatch(name)


def test_a_grid_has_a_tile_for_each_output():
    for sizes in ((1, 1, 1), (1, 4096, 4096), (64, 100, 3), (5000, 1, 9), (1, 70000, 1)):
        tile = ptx.choose(*sizes)
        g, m, n = sizes
        assert tile.threads == (128 if tile == ptx.TILES[0] else 256)
        axes = [(problems.Axis(size, 0, 0, 0),) for size in (g, m, n, 1)]
        grid = ptx.blocks(problems.Problem(*axes), tile)
        assert grid == g * math.ceil(m / tile.m) * math.ceil(n / tile.n)


def test_a_wrong_backend_is_refused(monkeypatch):
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "cuda")
    with pytest.raises(ValueError, match="expected triton or ptx or off, received 'cuda'"):
        gpu.backend()


@pytest.mark.usefixtures("for_one_device")
def test_without_pallas_triton(monkeypatch):
    """An error with a remedy, which works."""
    monkeypatch.setattr(triton, "MISSING", "No module named 'jax.experimental.pallas.triton'")
    with pytest.raises(RuntimeError, match=r"received jax .* without it .*REPJAX_GPU_BACKEND=ptx"):
        lowered(lambda x: x + x, X)
    monkeypatch.setattr(gpu, "expected", lambda: True)
    assert "REPJAX_GPU_BACKEND=ptx" in repjax.info()["gpu kernels"]
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "ptx")
    assert CALLS["ptx"] in lowered(lambda x: x @ x, X)
    assert repjax.info()["gpu kernels"].startswith("PTX for products")


IMPORTS = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None
import repjax
from repjax.primitives.gpu import products, triton
assert triton.MISSING
print(repjax.info()["gpu kernels"])
"""


def test_a_jax_without_it_is_imported_all_the_same():
    command = [sys.executable, "-W", "error", "-c", IMPORTS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "none: JAX does not compile for an NVIDIA GPU" in result.stdout


@pytest.mark.usefixtures("for_one_device")
def test_an_unknown_device_is_not_silent(monkeypatch):
    monkeypatch.setattr(triton, "compute_capability", lambda: None)
    monkeypatch.setattr(gpu, "device_kind", lambda: "Graphics Device")
    gpu._warn.cache_clear()
    monkeypatch.setattr(gpu, "expected", lambda: True)
    assert "does not know the device kind 'Graphics Device'" in repjax.info()["gpu kernels"]
    with pytest.warns(UserWarning, match=r"without its kernels.*'Graphics Device'.*=ptx"):
        assert CALLS["triton"] not in lowered(lambda x: x @ x, X)
    lowered(lambda x: x @ x + x, X)  # warned of once
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "ptx")
    gpu._warn.cache_clear()
    assert CALLS["ptx"] in lowered(lambda x: x @ x + 1, X)


def test_info(monkeypatch):
    assert repjax.info()["gpu kernels"] == "none: JAX does not compile for an NVIDIA GPU"
    monkeypatch.setattr(gpu, "expected", lambda: True)
    monkeypatch.setattr(triton, "compute_capability", lambda: 90)
    assert repjax.info()["gpu kernels"] == "Pallas Triton"
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "off")
    assert repjax.info()["gpu kernels"] == "XLA: REPJAX_GPU_BACKEND is off"
    monkeypatch.setattr(gpu, "local_capability", lambda: 75)
    assert "received 7.5" in repjax.info()["gpu kernels"]
