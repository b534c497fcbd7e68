"""The emulator of GPUs, instruction by instruction."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from helpers.bits import same_bits
from helpers.ptx_template import PTX
from ptx.arithmetic import drawn_sum, fma
from ptx.machine import Machine
from ptx.parse import parse
from ptx.races import EmulationError
from ptx.state import CONSTANTS, Launch
from repjax.primitives.core import canonical
from repjax.verify import vectors

RNG = np.random.default_rng(0)
REVERSE = """st.shared.b32 [%r7], %r2; bar.sync 0; sub.s32 %r4, 124, %r6; add.s32 %r4, %r5, %r4;
             ld.shared.b32 %r3, [%r4];"""
BRANCH = "setp.lt.s32 %p1, %r1, 16; mov.b32 %r3, %r2; @%p1 bra $L; neg.f32 %r3, %r2; $L:"
COUNT = "atom.global.add.u32 %r3, [%rd2+128], 1;"
FLOATS = np.linspace(1, 2, 32, endpoint=False, dtype=np.float32)
EXTREMES = np.array([np.nan, 1e20, -1e20, 2.7, -2.7, 0.5, 1.5, -0.0] * 4, np.float32)
EDGES = np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F800000, 0x7FFFFFFF, 0], np.uint32)
EDGES = np.tile(np.r_[EDGES, EDGES[:6] | 0x80000000, 0, 0].astype(np.uint32), 2).view(np.float32)
INTEGERS = RNG.integers(-(2**31), 2**31, 32).astype(np.int32)


def launch(body: str, x: np.ndarray, places=((0, 128), (256, 128)), **options) -> np.ndarray:
    """The kernel of one block of 32 threads, from one array into another."""
    memory = np.zeros(512 + CONSTANTS, np.uint8)
    memory[:128] = x.view(np.uint8)
    kernel = parse(PTX % body)["k"]
    how = Launch("kKernel", "k", (1,), (32,), 0)
    with np.errstate(all="ignore"):
        Machine(kernel, how, memory, places, **options).run()
    return memory[256:384].view(x.dtype)


@pytest.mark.parametrize(
    ("body", "x", "expected"),
    [
        ("add.rn.f32 %r3, %r2, 0f33800000;", FLOATS, lambda x: x + np.float32(2.0**-24)),
        ("add.rz.f32 %r3, %r2, 0f33FFFFFF;", FLOATS, lambda x: x),
        ("add.rn.ftz.f32 %r3, %r2, 0f00000000;", EDGES, lambda x: np.asarray(canonical.flush(x))),
        (
            "cvt.rzi.s32.f32 %r3, %r2;",
            EXTREMES,
            lambda x: np.array([0, 2**31 - 1, -(2**31), 2, -2, 0, 1, 0] * 4, np.int32).view("f4"),
        ),
        (
            "mul.hi.s32 %r3, %r2, -123456789;",
            INTEGERS,
            lambda x: (x.astype(np.int64) * -123456789 >> 32).astype(np.int32),
        ),
        ("rem.s32 %r3, %r2, 1000;", INTEGERS, lambda x: np.fmod(x, np.int32(1000))),
        ("bfe.s32 %r3, %r2, 4, 9;", INTEGERS, lambda x: x << 19 >> 23),
        ("shf.l.wrap.b32 %r3, %r2, %r2, 7;", INTEGERS.view("u4"), lambda x: x << 7 | x >> 25),
        ("prmt.b32 %r3, %r2, %r2, 0x0123;", INTEGERS.view("u4"), lambda x: x.byteswap()),
        ("shfl.sync.bfly.b32 %r3, %r2, 5, 31, -1;", INTEGERS, lambda x: x[np.arange(32) ^ 5]),
        ("redux.sync.max.s32 %r3, %r2, -1;", INTEGERS, lambda x: np.full_like(x, x.max())),
        (REVERSE, INTEGERS, lambda x: x[::-1]),
        (BRANCH, FLOATS, lambda x: np.where(np.arange(32) < 16, x, -x)),
    ],
)
def test_emulated_instructions(body, x, expected):
    assert same_bits(launch(body, x), expected(x))


def test_emulated_fma():
    """Of float32, against the definition in integers."""
    x, y, z = (vectors.spread((300,), seed, 60) for seed in (1, 3, 5))
    z[:100] = -(x * y)[:100]
    for a, b, c, r in zip(x, y, z, fma(x, y, z), strict=True):
        true = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(r, np.float32(s)) for s in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(r)) - true) <= abs(Fraction(float(n)) - true) for n in near)


@pytest.mark.parametrize("places", [((0, 124), (256, 128)), ((0, 128), (256, 124))])
def test_writes_out_of_bounds_are_refused(places):
    with pytest.raises(EmulationError):
        body = "st.global.b32 [%rd4], %r2; mov.b32 %r3, %r2;"
        launch(body, FLOATS, places)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("redux.sync.max.s32 %r3, %r2, 255;", NotImplementedError),
        ("setp.lt.s32 %p1, %r1, 8; @%p1 redux.sync.max.s32 %r3, %r2, -1;", RuntimeError),
    ],
)
def test_redux_of_a_part_of_a_warp_is_refused(body, error):
    with pytest.raises(error):
        launch(body, INTEGERS)


def test_integer_matrix_units():
    """mma of int8, whose matrices lie in the registers of 32 lanes as the PTX manual says."""
    left = RNG.integers(-128, 128, (16, 32)).astype(np.int8)
    right = RNG.integers(-128, 128, (32, 8)).astype(np.int8)
    kernel = parse(PTX % "mov.b32 %r3, %r2;")["k"]
    kernel = kernel._replace(registers={"%a": "b32", "%b": "b32", "%c": "b32"})
    how = Launch("kKernel", "k", (1,), (32,), 0)
    machine = Machine(kernel, how, np.zeros(1 << 15, np.uint8), ())
    group, four = np.divmod(np.arange(32), 4)
    column, byte = 4 * four[:, None], np.arange(4)
    for i in range(4):
        rows = (group + 8 * (i % 2))[:, None]
        part = left[rows, column + 16 * (i // 2) + byte]
        machine.registers[f"%a{i}"] = np.ascontiguousarray(part).view(np.uint32).ravel()
        machine.registers[f"%c{i}"] = np.full(32, 5, np.uint32)
    for i in range(2):
        part = right[column + 16 * i + byte, group[:, None]]
        machine.registers[f"%b{i}"] = np.ascontiguousarray(part).view(np.uint32).ravel()
    c = "{%c0, %c1, %c2, %c3}"
    operands = [c, "{%a0, %a1, %a2, %a3}", "{%b0, %b1}", c]
    name = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
    machine.step(name.split("."), operands, np.ones(32, bool))
    expected = left.astype(np.int32) @ right.astype(np.int32) + 5
    for i in range(4):
        at = expected[group + 8 * (i // 2), 2 * four + i % 2]
        assert same_bits(machine.registers[f"%c{i}"].view(np.int32), at)


def float64_product(left, right, draws=None):
    """8 x 4 by 4 x 8, and twos, by one instruction; and which opcodes are inexact."""
    kernel = parse(PTX % "mov.b32 %r3, %r2;")["k"]
    kernel = kernel._replace(registers={"%a": "b64", "%b": "b64", "%c": "b64"})
    how = Launch("kKernel", "k", (1,), (32,), 0)
    machine = Machine(kernel, how, np.zeros(1 << 15, np.uint8), (), sums=draws)
    group, four = np.divmod(np.arange(32), 4)
    parts = {"%a": left[group, four], "%b": right[four, group]}
    parts |= dict.fromkeys(("%c0", "%c1"), np.full(32, 2.0))
    machine.registers |= {name: part.view(np.uint64) for name, part in parts.items()}
    name = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    operands = ["{%c0, %c1}", "{%a}", "{%b}", "{%c0, %c1}"]
    machine.step(name.split("."), operands, np.ones(32, bool))
    result = np.zeros((8, 8))
    for i in range(2):
        result[group, 2 * four + i] = machine.registers[f"%c{i}"].view(np.float64)
    return result, machine.inexact


def test_float64_matrix_units():
    """Of integers; or of float32 numbers, whose sums are added in a drawn order."""
    left, right = (RNG.integers(-99, 99, shape).astype("f8") for shape in ((8, 4), (4, 8)))
    for draws in (None, np.random.default_rng(0)):
        result, inexact = float64_product(left, right, draws)
        assert same_bits(result, left @ right + 2) and not inexact
    left, right = (vectors.spread(x.shape, 7 * x.shape[0]).astype("f8") for x in (left, right))
    assert float64_product(left, right)[1]
    assert float64_product(left + 2.0**-40, right, np.random.default_rng(0))[1]
    several = [float64_product(left, right, np.random.default_rng(seed)) for seed in range(9)]
    assert not any(inexact for _, inexact in several)
    assert len({result.tobytes() for result, _ in several}) > 2
    bound = 5 * 2.0**-53 * (abs(left) @ abs(right) + 2)
    expected = [[2 + sum(map(_product, row, column)) for column in right.T] for row in left]
    for result, _ in several:
        errors = abs(np.vectorize(Fraction)(result) - np.array(expected))
        assert (errors <= bound).all()


def _product(x, y) -> Fraction:
    return Fraction(x) * Fraction(y)


def test_float64_fma():
    """Right if the product is exact; otherwise it is not known."""
    x, y, z = (vectors.spread((32,), seed, 20).astype("f8") for seed in (11, 13, 15))
    for factor, is_right in ((x, True), (x / 3, False)):
        machine = Machine(
            parse(PTX % "mov.b32 %r3, %r2;")["k"],
            Launch("kKernel", "k", (1,), (32,), 0),
            np.zeros(1 << 15, np.uint8),
            (),
        )
        parts = zip(("%rd1", "%rd2", "%rd3"), (factor, y, z), strict=True)
        machine.registers |= {name: part.view(np.uint64) for name, part in parts}
        operands = ["%rd4", "%rd1", "%rd2", "%rd3"]
        machine.step(["fma", "rn", "f64"], operands, np.ones(32, bool))
        assert bool(machine.inexact) != is_right
        true = [float(_product(*pair) + Fraction(w)) for *pair, w in zip(factor, y, z, strict=True)]
        assert not is_right or same_bits(machine.registers["%rd4"].view("f8"), np.float64(true))


def test_drawn_sums():
    """Small terms are added to the large one, or first to each other."""
    terms = np.float64([[1], [2.0**-53], [2.0**-53]])
    found = {float(drawn_sum(terms, np.random.default_rng(seed))[0]) for seed in range(20)}
    assert found == {1.0, 1 + 2.0**-52}


# --- halves -------------------------------------------------------------------------------

#: float32 patterns at which bfloat16 rounds to even, up, down, to infinity; NaNs; and others.
PATTERNS = np.concatenate(
    [
        np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF], np.uint32),
        np.array([0x7F800001, 0xFFC00000, 0x80000000, 0x00007FFF, 0xFF800000], np.uint32),
        RNG.integers(0, 2**32, 22).astype(np.uint32),
    ]
)
HALVES = (PATTERNS >> 16 | np.roll(PATTERNS, 1) & 0xFFFF0000).astype(np.uint32)


def as_bfloat16(i):
    """The float32 patterns ``i`` rounded to 16 bits, by their definition; NaNs are one."""
    is_nan = (i & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, 0x7FFF, i + 0x7FFF + (i >> 16 & 1) >> 16).astype(np.uint32)


def low_and_high(i):
    """Both halves of words, as the float32 that bfloat16 stands for."""
    return [x.astype(np.uint32).view(np.float32) for x in (i << 16, i & 0xFFFF0000)]


def largest(i):
    """max.bf16 of both halves: NaN only of two, and -0 below +0."""
    x, y = low_and_high(i)
    with np.errstate(invalid="ignore"):
        top = np.where((x > y) | np.isnan(y) | ((x == y) & ~np.signbit(x)), x, y)
    return np.where(np.isnan(top), 0x7FFF, top.view(np.uint32) >> 16).astype(np.uint32)


UNPACK = "mov.b32 {%h1, %h2}, %r2; "
PACK = " cvt.u32.u16 %r3, %h3;"


@pytest.mark.parametrize(
    ("body", "x", "expected"),
    [
        ("cvt.rn.bf16.f32 %h3, %r2;" + PACK, PATTERNS, as_bfloat16),
        (
            "cvt.rn.bf16x2.f32 %r3, %r2, 0f3F808000;",
            PATTERNS,
            lambda i: as_bfloat16(i) << 16 | 0x3F80,
        ),
        (
            UNPACK + "cvt.f32.bf16 %r3, %h1;",
            HALVES,
            lambda i: np.where(np.isnan(low_and_high(i)[0]), 0x7FFFFFFF, i << 16).astype("u4"),
        ),
        (UNPACK + "max.bf16 %h3, %h1, %h2;" + PACK, HALVES, largest),
        (
            UNPACK + "max.NaN.bf16 %h3, %h1, %h2;" + PACK,
            HALVES,
            lambda i: np.where(np.isnan(low_and_high(i)).any(0), 0x7FFF, largest(i)).astype("u4"),
        ),
        (
            UNPACK + "setp.lt.bf16 %p1, %h1, %h2; selp.b32 %r3, 1, 0, %p1;",
            HALVES,
            lambda i: np.less(*low_and_high(i)).astype(np.uint32),
        ),
        (
            UNPACK + "setp.nan.bf16 %p1, %h1, %h1; selp.b32 %r3, 1, 0, %p1;",
            HALVES,
            lambda i: np.isnan(low_and_high(i)[0]).astype(np.uint32),
        ),
        (
            UNPACK + "neg.bf16 %h3, %h1;" + PACK,
            HALVES,
            lambda i: (i ^ 0x8000) & 0xFFFF,
        ),
        ("mov.pred %p1, -1; selp.b32 %r3, %r2, 0, %p1;", PATTERNS, lambda i: i),
        ("mov.pred %p1, 0; selp.b32 %r3, %r2, 0, %p1;", PATTERNS, np.zeros_like),
    ],
)
def test_emulated_halves(body, x, expected):
    with np.errstate(over="ignore"):
        assert same_bits(launch(".reg .b16 %h<4>; " + body, x), expected(x))


@pytest.mark.parametrize("name", ["cvt.rn.bf16.s32 %h3, %r1;", "add.rn.bf16 %h3, %h1, %h1;"])
def test_what_halves_do_not_have_is_refused(name):
    with pytest.raises(NotImplementedError):
        launch(".reg .b16 %h<4>; " + name, PATTERNS)


# --- asynchronous copies ------------------------------------------------------------------

COPY = """cp.async.ca.shared.global [%r7], [%rd4], 4; cp.async.commit_group;
          cp.async.wait_group 0; bar.sync 0;
          sub.s32 %r4, 124, %r6; add.s32 %r4, %r5, %r4; ld.shared.b32 %r3, [%r4];"""
#: Of two words each, in two groups, of which the second may go on.
TWO_COPIES = """.shared .align 4 .b8 t[128]; mov.b32 %r8, t; add.s32 %r8, %r8, %r6;
          cp.async.ca.shared.global [%r7], [%rd4], 4; cp.async.commit_group;
          cp.async.ca.shared.global [%r8], [%rd4], 4, 0; cp.async.commit_group;
          cp.async.wait_group 1; ld.shared.b32 %r3, [%r7];
          cp.async.wait_all; ld.shared.b32 %r4, [%r8]; add.u32 %r3, %r3, %r4;"""


def test_asynchronous_copies():
    assert same_bits(launch(COPY, INTEGERS), INTEGERS[::-1])
    assert same_bits(launch(TWO_COPIES, INTEGERS), INTEGERS)  # the others are filled with zeros


@pytest.mark.parametrize(
    ("body", "old", "new", "message"),
    [
        (COPY, "cp.async.wait_group 0;", "", "still being copied"),
        (COPY, "cp.async.commit_group;", "", "still being copied"),
        (COPY, "wait_group 0", "wait_group 1", "still being copied"),
        (COPY, "bar.sync 0;", "", "no barrier between a write and a read"),
        (TWO_COPIES, "wait_group 1", "wait_group 2", "still being copied"),
        (TWO_COPIES, "cp.async.wait_all;", "", "still being copied"),
        (TWO_COPIES, "[%r8], [%rd4]", "[%r7], [%rd4]", "still being copied"),
    ],
)
def test_wrong_copies_are_refused(body, old, new, message):
    assert old in body
    with pytest.raises(EmulationError, match=message):
        launch(body.replace(old, new), INTEGERS)


def test_copies_take_effect_when_they_are_waited_for():
    """Also where nobody looks for races: before, there is what was there before."""
    body = "st.shared.b32 [%r7], %r1; " + COPY.replace("cp.async.wait_group 0;", "")
    actual = launch(body, INTEGERS, races=False)
    assert same_bits(actual, np.arange(31, -1, -1, dtype=np.int32))


# --- races --------------------------------------------------------------------------------

BY_A_WARP = """st.shared.b32 [%r7], %r2; bar.warp.sync -1; xor.b32 %r4, %r6, 4;
               add.s32 %r4, %r5, %r4; ld.shared.b32 %r3, [%r4];"""
#: Reads what the thread beside it wrote, and then overwrites what that one reads.
TWICE = """st.shared.b32 [%r7], %r2; bar.sync 0; xor.b32 %r4, %r6, 4; add.s32 %r4, %r5, %r4;
           ld.shared.b32 %r3, [%r4]; BARRIER st.shared.b32 [%r7], %r1;"""
EXCHANGE = "shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;"
MATRIX = """st.shared.b32 [%r7], %r2; bar.warp.sync -1;
            shl.b32 %r4, %r1, 4; and.b32 %r4, %r4, 112; xor.b32 %r4, %r4, 112;
            add.s32 %r4, %r5, %r4;
            ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r4];"""


def test_what_a_warp_exchanges():
    neighbours = INTEGERS[np.arange(32) ^ 1]
    for body in (BY_A_WARP, EXCHANGE, TWICE.replace("BARRIER", "bar.warp.sync -1;")):
        assert same_bits(launch(body, INTEGERS), neighbours)
    assert same_bits(launch(MATRIX, INTEGERS), INTEGERS.reshape(8, 4)[::-1].ravel())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (REVERSE.replace("bar.sync 0;", ""), "between a write and a read"),
        (BY_A_WARP.replace("bar.warp.sync -1;", ""), "between a write and a read"),
        (BY_A_WARP.replace("bar.warp.sync -1;", "membar.cta;"), "between a write and a read"),
        (MATRIX.replace("bar.warp.sync -1;", ""), "between a write and a read"),
        (TWICE.replace("BARRIER", ""), "between a read and a write"),
        ("ld.shared.b32 %r3, [%r7];", "read that was not written"),
        ("st.shared.b32 [%r5], %r2; mov.b32 %r3, %r2;", "write other bits at once"),
        ("st.global.b32 [%rd2], %r1; mov.b32 %r3, %r2;", "write other bits at once"),
        (
            "setp.eq.s32 %p1, %r1, 0; @%p1 st.shared.b32 [%r5], 1; @!%p1 st.shared.b32 [%r5], 2;"
            "mov.b32 %r3, %r2;",
            "between two writes",
        ),
    ],
)
def test_races_are_found(body, message):
    with pytest.raises(EmulationError, match=message):
        launch(body, INTEGERS)


def test_the_same_bits_are_no_race():
    body = "st.shared.b32 [%r5], 7; st.shared.b32 [%r5], 7; mov.b32 %r3, %r2;"
    assert same_bits(launch(body, INTEGERS), INTEGERS)


#: Two warps and two blocks: each thread has a word of shared memory, and of each array.
WARPS = """.version 8.0
.target sm_80
.visible .entry k(.param .u64 .ptr .align 16 a, .param .u64 .ptr .align 16 o)
.reqntid 64, 1, 1
{
    .shared .align 4 .b8 s[256];
    .reg .b32 %%r<12>; .reg .b64 %%rd<9>; .reg .pred %%p<3>;
    ld.param.u64 %%rd1, [a]; ld.param.u64 %%rd2, [o];
    mov.u32 %%r1, %%tid.x; mov.u32 %%r2, %%ctaid.x;
    mov.b32 %%r3, s; shl.b32 %%r4, %%r1, 2; add.s32 %%r5, %%r3, %%r4;
    shl.b32 %%r6, %%r2, 6; add.s32 %%r7, %%r6, %%r1;
    mul.wide.u32 %%rd3, %%r7, 4; add.s64 %%rd4, %%rd1, %%rd3; add.s64 %%rd5, %%rd2, %%rd3;
    ld.global.b32 %%r8, [%%rd4];
    %s
    st.global.b32 [%%rd5], %%r9;
    ret;
}"""
OTHER_WARP = """st.shared.b32 [%r5], %r8; bar.sync 0; xor.b32 %r10, %r4, 128;
                add.s32 %r10, %r3, %r10; ld.shared.b32 %r9, [%r10];"""
TOTAL = "atom.global.add.u32 %r9, [%rd2+512], 1; mov.b32 %r9, %r8;"
OF_WARPS = np.arange(100, 228, dtype=np.int32)


def launch_warps(body: str, **options) -> np.ndarray:
    memory = np.zeros(2048 + CONSTANTS, np.uint8)
    memory[:512] = OF_WARPS.view(np.uint8)
    kernel = parse(WARPS % body)["k"]
    how = Launch("kKernel", "k", (2,), (64,), 0)
    places = ((0, 512), (1024, 576))
    Machine(kernel, how, memory, places, **options).run()
    return memory[1024:1536].view(np.int32)


def test_orders_of_warps():
    """With barriers, all have the same bits; without, the orders tell, and so does the check."""
    expected = OF_WARPS.reshape(2, 2, 32)[:, ::-1].ravel()
    racy = OTHER_WARP.replace("bar.sync 0;", "")
    found = set()
    for seed in range(8):
        options = {"order": np.random.default_rng(seed)}
        assert same_bits(launch_warps(OTHER_WARP, **options), expected)
        found.add(launch_warps(racy, races=False, **options).tobytes())
        with pytest.raises(EmulationError, match=r"race|read that was not written"):
            launch_warps(racy, order=np.random.default_rng(seed))
    assert len(found) > 2
    with pytest.raises(EmulationError, match="between a write and a read"):
        launch_warps(OTHER_WARP.replace("bar.sync 0;", "bar.warp.sync -1;"))


def test_some_blocks_alone():
    actual = launch_warps(OTHER_WARP, only=[1])
    assert same_bits(actual[64:], OF_WARPS.reshape(2, 2, 32)[1, ::-1].ravel())
    assert not actual[:64].any()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.b32 %r9, %r8; add.s64 %rd5, %rd2, 0;", "two threads write other bits"),
        ("xor.b32 %r9, %r7, 64; mul.wide.u32 %rd5, %r1, 4; add.s64 %rd5, %rd2, %rd5;", "writ"),
        (
            "st.global.b32 [%rd5], %r8; xor.b32 %r10, %r7, 64; mul.wide.u32 %rd6, %r10, 4;"
            "add.s64 %rd6, %rd2, %rd6; bar.sync 0; ld.global.b32 %r9, [%rd6];",
            "between a write and a read",
        ),
        (TOTAL + "ld.global.b32 %r9, [%rd2+512];", "between a write and a read"),
    ],
)
def test_races_between_blocks_are_found(body, message):
    with pytest.raises(EmulationError, match=message):
        launch_warps(body)


def test_atomic_updates_are_no_race():
    assert same_bits(launch_warps(TOTAL), OF_WARPS)


# --- products of warp groups --------------------------------------------------------------


def tiled(matrix: np.ndarray, width: int) -> np.ndarray:
    """Rows of bytes as wgmma reads them: tiles of 8 rows, of ``width`` bytes each.

    The parts of 16 bytes of a row are permuted with its number; where the width is 16, a tile for
    each part comes behind the other.
    """
    rows, size = matrix.shape
    parts = matrix.reshape(rows // 8, 8, size // 16, 16)
    if width == 16:
        return parts.swapaxes(1, 2).ravel()
    order = np.arange(size // 16) ^ (np.arange(8) * width // 128)[:, None]
    out = np.empty_like(parts)
    for row in range(8):
        out[:, row, order[row]] = parts[:, row]
    return out.ravel()


COLUMNS = 16


def group_kernel(width: int, size: int) -> str:
    """Copies both matrices to shared memory as they are, and multiplies them, 32 terms at a time.

    By two groups of warps, with the same matrix on the left.
    """
    total = -(-(64 + COLUMNS) * size // 1024) * 1024
    copies = "".join(
        f"ld.global.b32 %r3, [%rd4+{i}]; st.shared.b32 [%r5+{i}], %r3;\n"
        for i in range(0, total, 1024)
    )
    d = [f"%r{100 + i}" for i in range(COLUMNS // 2)]
    # Starts, the distance of tiles beside and below each other, and the permutation.
    beside, below = (128, 8 * size) if width == 16 else (16, 8 * width)
    code = {16: 0, 32: 3, 64: 2, 128: 1}[width]
    rest = beside >> 4 << 16 | below >> 4 << 32 | code << 62
    products = ""
    for k in range(0, size, 32):
        at = 2 * k // 32 * beside if width == 16 else k
        for register, start in (("%rd6", at), ("%rd7", 64 * size + at)):
            products += f"add.s64 {register}, %rd8, {start}; shr.u64 {register}, {register}, 4;"
            products += f"or.b64 {register}, {register}, {rest};\n"
        predicate = "%p1" if k == 0 else "%p2"
        products += "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 "
        products += f"{{{', '.join(d)}}}, %rd6, %rd7, {predicate};\n"
    results = "".join(f"st.global.b32 [%rd5+{1024 * i}], {x};\n" for i, x in enumerate(d))
    return f"""
.version 8.0
.target sm_90a
.visible .entry k(.param .u64 .ptr .align 16 a, .param .u64 .ptr .align 16 o)
{{
    .shared .align 1024 .b8 s[{total}];
    .reg .b32 %r<120>; .reg .b64 %rd<12>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [o]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2;
    cvt.u64.u32 %rd3, %r2; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    mov.b64 %rd8, s; mov.b32 %r4, s; add.s32 %r5, %r4, %r2;
    {copies}
    {"".join(f"mov.b32 {x}, 77;" for x in d)}
    mov.pred %p1, 0; mov.pred %p2, -1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    wgmma.fence.sync.aligned;
    {products}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    {results}
    bar.sync 0;
    st.shared.b32 [%r5], %r1;
    ret;
}}"""


def multiply(text: str, left, right, width: int, **options) -> np.ndarray:
    data = np.concatenate([tiled(left, width), tiled(right, width)])
    count = COLUMNS // 2 * 1024
    start = -(-data.size // 1024) * 1024
    memory = np.zeros(start + count + CONSTANTS, np.uint8)
    memory[: data.size] = data.view(np.uint8)
    kernel = parse(text)["k"]
    how = Launch("kKernel", "k", (1,), (256,), 0)
    places = ((0, start), (start, count))
    Machine(kernel, how, memory, places, **options).run()
    found = memory[start : start + count].view(np.int32).reshape(-1, 2, 4, 8, 4)
    # register, group, warp, row of eight, column of four: as the PTX manual has them.
    assert same_bits(found[:, 0], found[:, 1])
    out = np.empty((64, COLUMNS), np.int32)
    for i, part in enumerate(found[:, 0]):
        for warp in range(4):
            rows = 16 * warp + 8 * (i // 2 % 2) + np.arange(8)
            out[np.ix_(rows, 8 * (i // 4) + 2 * np.arange(4) + i % 2)] = part[warp]
    return out


LEFT, RIGHT = (RNG.integers(-128, 128, (n, 128)).astype(np.int8) for n in (64, COLUMNS))


@pytest.mark.parametrize(("width", "size"), [(16, 64), (32, 32), (64, 64), (128, 128)])
@pytest.mark.parametrize("seed", [None, 1])
def test_products_of_warp_groups(width, size, seed):
    left, right = (np.ascontiguousarray(x[:, :size]) for x in (LEFT, RIGHT))
    order = None if seed is None else np.random.default_rng(seed)
    actual = multiply(group_kernel(width, size), left, right, width, order=order)
    assert same_bits(actual, left.astype(np.int32) @ right.astype(np.int32).T)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("wgmma.wait_group.sync.aligned 0;", "", "before the product that sets it"),
        ("wgmma.wait_group.sync.aligned 0;", "bar.sync 0;", "before the product that sets it"),
        ("wait_group.sync.aligned 0", "wait_group.sync.aligned 1", "before the product that sets"),
        ("wgmma.commit_group.sync.aligned;", "", "before the product that sets it"),
        ("wgmma.fence.sync.aligned;", "", "no wgmma.fence"),
        ("fence.proxy.async.shared::cta;", "", "no fence between a write and an asynchronous"),
        ("fence.proxy.async.shared::cta;\n    bar.sync 0;", "bar.sync 0;", "no fence"),
        ("bar.sync 0;\n    wgmma", "wgmma", "no barrier between a write and a read"),
        ("bar.sync 0;\n    st.shared", "st.shared", "no barrier between a read and a write"),
        (
            "wgmma.wait_group.sync.aligned 0;",
            "bar.sync 0; st.shared.b32 [%r5], %r1; wgmma.wait_group.sync.aligned 0;",
            "still being multiplied",
        ),
    ],
)
def test_wrong_products_are_refused(old, new, message):
    text = group_kernel(64, 64)
    assert text.count(old) == 1
    left, right = (np.ascontiguousarray(x[:, :64]) for x in (LEFT, RIGHT))
    with pytest.raises(EmulationError, match=message):
        multiply(text.replace(old, new), left, right, 64)


def test_a_fence_behind_the_barrier_will_do():
    text = group_kernel(64, 64)
    fence, barrier = "fence.proxy.async.shared::cta;", "bar.sync 0;"
    text = text.replace(f"{fence}\n    {barrier}", f"{barrier}\n    {fence}")
    left, right = (np.ascontiguousarray(x[:, :64]) for x in (LEFT, RIGHT))
    actual = multiply(text, left, right, 64, order=np.random.default_rng(2))
    assert same_bits(actual, left.astype(np.int32) @ right.astype(np.int32).T)
