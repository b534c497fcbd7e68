"""Every primitive, compiled for GPUs that need not be there: its PTX is clean, and has CPU's bits.

The compilations are processes of their own (``tests/gpu_offline.py``), since the CUDA plugin is
not to take part in other tests.  They need the extra ``gpu_offline``; the tests of the linter and
of the emulator need nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
from fractions import Fraction

import gpu_offline
import jax
import numpy as np
import pytest
from bits import same_bits

from repjax.verify import conformance, vectors

SCRIPT = pathlib.Path(gpu_offline.__file__)
#: What other targets than the first are compiled for here; the command does all for each.
REPRESENTATIVE = ["add", "div", "exp", "fma", "tanh", "reduce_sum", "dot_general sequential, s"]
REPRESENTATIVE += ["dot_general order_independent, long", "conv_general_dilated sequential"]
REPRESENTATIVE += [
    "scatter, add",
    "sort",
    "softmax",
    "products and sums",
    "random",
    "rows, ",
    "rows of 16500",
]
RNG = np.random.default_rng(0)


def missing() -> str:
    """Why nothing can be compiled; "" if it can."""
    for package in ("jax-cuda13-plugin", "jax-cuda13-pjrt"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed: pip install 'repjax[gpu_offline]'"
        if version != jax.__version__:
            return f"{package} is {version}, jax {jax.__version__}: install the same version"
    if not shutil.which("ptxas"):
        found = importlib.util.find_spec("nvidia")
        folders = [pathlib.Path(p) for p in (found.submodule_search_locations if found else [])]
        if not any(path for folder in folders for path in folder.glob("*/bin/ptxas")):
            return "ptxas is not installed: pip install 'repjax[gpu_offline]'"
    return ""


def compiles(test):
    """Marks a test that compiles for GPUs."""
    skip = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
    return pytest.mark.gpu_offline(skip(test))


def command(*arguments: str) -> list[dict]:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert rows and result.returncode in (0, 1), result.stderr
    return rows


def assert_clean(rows: list[dict], count: int) -> None:
    assert len(rows) == count
    found = {(row["target"], row["case"]): row["problems"] for row in rows if row["problems"]}
    assert not found


@functools.cache
def cases() -> dict[str, vectors.Case]:
    hard = conformance.hard_arrays(conformance.load()["hard_inputs"])
    return {case.name: case for case in vectors.cases(hard, small=True)}


def test_every_primitive_has_a_case():
    covered = set().union(*(case.primitives() for case in cases().values()))
    assert covered >= set(vectors.registered())


@compiles
@pytest.mark.parametrize("part", range(4))
def test_all_cases_have_the_bits_of_cpu(part):
    rows = command("--targets", "sm_90", "--run", "--part", str(part), "4")
    assert_clean(rows, len([*cases()][part::4]))


@compiles
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100"])
def test_other_targets(target):
    rows = command("--targets", target, "--run", "--only", *REPRESENTATIVE)
    assert_clean(rows, sum(name.startswith(tuple(REPRESENTATIVE)) for name in cases()))


@compiles
def test_several_devices():
    """Their exchanges are modelled, too."""
    assert_clean(command("--targets", "sm_90", "--devices"), 3)


@compiles
def test_plain_jax_is_caught():
    """Negative controls: for each, the linter and a run of the same compilation find it."""
    found = {row["control"]: row for row in command("--targets", "sm_90", "--controls")}
    rules = {name: row["rules"] for name, row in found.items()}
    assert "approx" in rules["exp"] and "fma" in rules["exp"]
    assert rules["division"] == ["div-full"] and "div.full" in found["division"]["run"]
    assert rules["square root"] == ["approx"] and "inexact" in found["square root"]["run"]
    assert rules["product and sum"] == ["fma"]
    assert "elements differ" in found["product and sum"]["run"]
    assert rules["scatter-add"] in (["atomic"], ["cas"])
    assert rules["matrix product"] == ["mma"] or found["matrix product"]["libraries"]
    assert "inexact" in found["sum over devices"]["run"]
    # No instruction is wrong, only their order.
    for name in ("order of a sum", "order of Triton's sum"):
        assert rules[name] == [] and "elements differ" in found[name]["run"]


# --- the linter and the emulator ----------------------------------------------------------

PTX = """.version 8.0
.target sm_80
.visible .entry k(.param .u64 .ptr .align 16 a, .param .u64 .ptr o)
.reqntid 32, 1, 1
{   // a comment; with a semicolon
    .shared .align 4 .b8 s[128];
    .reg .b32 %%r<9>; .reg .b64 %%rd<9>; .reg .pred %%p<3>;
    ld.param.u64 %%rd1, [a]; ld.param.u64 %%rd2, [o];
    mov.u32 %%r1, %%tid.x; mul.wide.u32 %%rd3, %%r1, 4; mov.b32 %%r5, s; shl.b32 %%r6, %%r1, 2;
    add.s64 %%rd4, %%rd1, %%rd3; add.s64 %%rd5, %%rd2, %%rd3; add.s32 %%r7, %%r5, %%r6;
    ld.global.b32 %%r2, [%%rd4];
    %s
    st.global.b32 [%%rd5], %%r3;
    ret;
}"""
REVERSE = """st.shared.b32 [%r7], %r2; bar.sync 0; sub.s32 %r4, 124, %r6; add.s32 %r4, %r5, %r4;
             ld.shared.b32 %r3, [%r4];"""
BRANCH = "setp.lt.s32 %p1, %r1, 16; mov.b32 %r3, %r2; @%p1 bra $L; neg.f32 %r3, %r2; $L:"
COUNT = "atom.global.add.u32 %r3, [%rd2+128], 1;"
FLOATS = np.linspace(1, 2, 32, endpoint=False, dtype=np.float32)
EXTREMES = np.array([np.nan, 1e20, -1e20, 2.7, -2.7, 0.5, 1.5, -0.0] * 4, np.float32)
INTEGERS = RNG.integers(-(2**31), 2**31, 32).astype(np.int32)


def launch(body: str, x: np.ndarray, places=((0, 128), (256, 128))) -> np.ndarray:
    """The kernel of one block of 32 threads, from one array into another."""
    memory = np.zeros(512 + gpu_offline.CONSTANTS, np.uint8)
    memory[:128] = x.view(np.uint8)
    kernel = gpu_offline.parse(PTX % body)["k"]
    how = gpu_offline.Launch("kKernel", "k", (1,), (32,), 0)
    gpu_offline.Machine(kernel, how, memory, places).run()
    return memory[256:384].view(x.dtype)


@pytest.mark.parametrize(
    ("body", "x", "expected"),
    [
        ("add.rn.f32 %r3, %r2, 0f33800000;", FLOATS, lambda x: x + np.float32(2.0**-24)),
        ("add.rz.f32 %r3, %r2, 0f33FFFFFF;", FLOATS, lambda x: x),
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
    for a, b, c, r in zip(x, y, z, gpu_offline.fma(x, y, z), strict=True):
        true = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(r, np.float32(s)) for s in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(r)) - true) <= abs(Fraction(float(n)) - true) for n in near)


@pytest.mark.parametrize("places", [((0, 124), (256, 128)), ((0, 128), (256, 124))])
def test_writes_out_of_bounds_are_refused(places):
    with pytest.raises(gpu_offline.EmulationError):
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


@pytest.mark.parametrize(
    ("instruction", "rule"),
    [
        ("sqrt.approx.f32 %r3, %r2;", "approx"),
        ("div.full.f32 %r3, %r2, %r2;", "div-full"),
        ("add.rn.ftz.f32 %r3, %r2, %r2;", "ftz"),
        ("mul.f32 %r3, %r2, %r2;", "contract"),
        ("atom.global.add.f32 %r3, [%rd4], %r2;", "atomic"),
        ("@%p1 red.global.add.f64 [%rd4], %rd2;", "atomic"),
        ("atom.global.cas.b32 %r3, [%rd4], %r2, %r1;", "cas"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2}, {%r3}, {%r4};", "mma"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1;", "mma"),
        ("fma.rn.f32 %r3, %r2, %r2, %r2;", "fma"),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};", None),
        ("add.rn.f32 %r3, %r2, %r2;", None),
        ("atom.global.add.u32 %r3, [%rd4], %r2;", None),
        ("mad.lo.s32 %r3, %r2, %r2, %r2;", None),
    ],
)
def test_lint(instruction, rule):
    assert [x.rule for x in gpu_offline.lint(PTX % instruction)] == ([rule] if rule else [])


def test_nothing_to_lint_is_refused():
    with pytest.raises(ValueError, match="expected PTX with a kernel"):
        gpu_offline.lint("")


def test_integer_matrix_units():
    """mma of int8, whose matrices lie in the registers of 32 lanes as the PTX manual says."""
    left = RNG.integers(-128, 128, (16, 32)).astype(np.int8)
    right = RNG.integers(-128, 128, (32, 8)).astype(np.int8)
    kernel = gpu_offline.parse(PTX % "mov.b32 %r3, %r2;")["k"]
    kernel = kernel._replace(registers={"%a": "b32", "%b": "b32", "%c": "b32"})
    how = gpu_offline.Launch("kKernel", "k", (1,), (32,), 0)
    machine = gpu_offline.Machine(kernel, how, np.zeros(1 << 15, np.uint8), ())
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
