"""Every primitive, compiled for GPUs that need not be there: its PTX is clean, and has CPU's bits.

The compilations are processes of their own (``tests/gpu_offline.py``), since the CUDA plugin is
not to take part in other tests.  They need the extra ``gpu_offline``; the tests of the linter and
of the emulator (``tests/kernels/test_ptx_emulator.py``) need nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from helpers.bits import same_bits
from helpers.paths import TESTS
from helpers.ptx_template import PTX
from ptx.assembler import ptxas
from ptx.checks import BACKENDS, FLOAT64_PRODUCTS, product_cases
from ptx.compile import computations_of
from ptx.controls import racing
from ptx.executor import Choices, Executor
from ptx.layout import constant
from ptx.lint import lint
from ptx.program import Instruction, Program
from ptx.races import EmulationError
from ptx.state import Launch
from repjax.verify import conformance, vectors

SCRIPT = TESTS / "gpu_offline.py"
#: What other targets than the first are compiled for here; the command does all for each.
REPRESENTATIVE = ["add", "div", "exp", "fma", "tanh", "reduce_sum", "dot_general sequential, s"]
REPRESENTATIVE += ["dot_general order_independent, long", "conv_general_dilated sequential"]
REPRESENTATIVE += ["dot_general order_independent, special values"]
REPRESENTATIVE += ["dot_general exact, special values", "reduce_sum exact columns"]
REPRESENTATIVE += ["integer_dot_general int16", "integer_conv_general_dilated int8"]
#: Whose terms may be added in any order.
UNORDERED = ("dot_general order_independent", "conv_general_dilated order_independent", "integer_")
REPRESENTATIVE += [
    "scatter, add",
    "sort",
    "softmax",
    "products and sums",
    "random",
    "rows, ",
    "rows of 16500",
]


def missing() -> str:
    """Why nothing can be compiled; "" if it can."""
    for package in ("jax-cuda13-plugin", "jax-cuda13-pjrt"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed: pip install 'repjax[gpu_offline]'"
        if version != jax.__version__:
            return f"{package} is {version}, jax {jax.__version__}: install the same version"
    if not ptxas():
        return "ptxas is not installed: pip install 'repjax[gpu_offline]'"
    return ""


def compiles(test):
    """Marks a test that compiles for GPUs."""
    skip = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
    return pytest.mark.gpu_offline(skip(test))


def command(*arguments: str, flags: str = "", script: pathlib.Path = SCRIPT) -> list[dict]:
    result = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
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


#: Before tests make others.
PRIMITIVES = set(vectors.registered())


def test_every_primitive_has_a_case():
    covered = set().union(*(case.primitives() for case in cases().values()))
    assert covered >= PRIMITIVES


#: Of all cases, each of which takes some minutes.
PARTS = 8


@compiles
@pytest.mark.parametrize("part", range(PARTS))
def test_all_cases_have_the_bits_of_cpu(part):
    rows = command("--targets", "sm_90", "--run", "--part", str(part), str(PARTS))
    assert_clean(rows, len([*cases()][part::PARTS]))


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
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_both_backends(target):
    """Products and convolutions by Pallas Triton and by PTX of our own have the CPU's bits."""
    rows = command("--targets", target, "--backends")
    assert_clean(rows, len(BACKENDS) * len(product_cases()))


@compiles
def test_large_products():
    """In tiles of 64 x 64 by 128 threads, or of 128 x 128 by 256; int8 ones by groups of warps."""
    names = ["sequential NN", "sequential TN", "sequential odd", "order_independent NN"]
    assert_clean(command("--targets", "sm_90", "--large", "--only", *names), len(names))


@compiles
@pytest.mark.parametrize(
    ("target", "only"), [("sm_90", [""]), ("sm_80", ["tile, order_independent", "rows, masked"])]
)
def test_races(target, only):
    """In random orders, all our kernels have the same bits; without barriers, that is noticed.

    Some barriers and waits spare others, which Triton has nevertheless: it waits for each product
    of int8 by itself.
    """
    rows = command("--targets", target, "--races", "--only", *only)
    names = [case.name for case, _ in racing()]
    assert_clean(rows, sum(name.startswith(tuple(only)) for name in names))
    counts = {row["case"]: (row["missed"], row["synchronizations"]) for row in rows}
    for name, (missed, count) in counts.items():
        pipelined = name.startswith("tile, order_independent")
        assert missed == count or (pipelined and missed >= count / 5), counts
        # Rows of one warp need none.
        assert count or not name.startswith(("tile", "rows of", "rows, sums", "dot", "conv"))


@compiles
@pytest.mark.parametrize("target", ["sm_89", "sm_90"])
def test_float64_sums(target):
    """No bits of exact products depend on their order; without the bound of their error they do.

    One target has float64 matrix units in XLA's kernels, the other fused multiply-adds.
    """
    rows = command("--targets", target, "--float64")
    assert_clean(rows, len(FLOAT64_PRODUCTS))


@compiles
def test_integers_of_64_bits():
    """And sums that leave 32."""
    assert_clean(command("--targets", "sm_90", "--words"), 3)


@compiles
def test_nothing_is_left_to_an_autotuner():
    """With this flag XLA compiles nothing that has several implementations to choose from."""
    only = ["--targets", "sm_90", "--only", *UNORDERED]
    rows = command(*only, flags="--xla_gpu_deterministic_ops=true")
    assert_clean(rows, sum(name.startswith(UNORDERED) for name in cases()))


@compiles
def test_costs():
    """What docs/gpu.md says of some programs: launches, megabytes, and no spilled registers."""
    limits = {
        "product, order_independent": (16, 1300),
        "product, order_independent, highest": (18, 1950),
        "product of int32": (4, 480),
        "product, sequential": (4, 605),
        "sums of columns, 16384 x 16384": (4, 1120),
        "rows, softmax, 8192 x 1024": (1, 68),
    }
    rows = command("--only", *limits, script=SCRIPT.with_name("gpu_cost.py"))
    found = {row["program"]: row for row in rows}
    assert found.keys() == limits.keys()
    for name, (launches, megabytes) in limits.items():
        row = found[name]
        assert 0 < row["launches"] <= launches and 0 < row["MB"] <= megabytes, row
        assert 0 < row["registers"] <= 255 and not row["spilled"], row


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
    choices = {name: "; ".join(row["choices"]) for name, row in found.items()}
    assert choices["matrix product"] and "convForward" in choices["convolution"]
    # Triton counts the terms twice in tiles of 16, which are XLA's.
    assert choices["product of int8"] and "elements differ" in found["product of int8"]["run"]
    # No instruction is wrong, only their order.
    for name in ("order of a sum", "order of Triton's sum"):
        assert rules[name] == [] and "elements differ" in found[name]["run"]


# --- the linter ---------------------------------------------------------------------------


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
        ("tcgen05.mma.cta_group::1.kind::tf32 [%r1], %rd1, %rd2, %r2, %p1;", "mma"),
        ("tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;", None),
        ("fma.rn.f32 %r3, %r2, %r2, %r2;", "fma"),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r4};", None),
        ("add.rn.f32 %r3, %r2, %r2;", None),
        ("atom.global.add.u32 %r3, [%rd4], %r2;", None),
        ("mad.lo.s32 %r3, %r2, %r2, %r2;", None),
    ],
)
def test_lint(instruction, rule):
    assert [x.rule for x in lint(PTX % instruction)] == ([rule] if rule else [])


HLO = """
%%add (p: f32[], q: f32[]) -> f32[] {
  %%p = f32[] parameter(0)
  %%q = f32[] parameter(1)
  ROOT %%r = f32[] %s(%%p, %%q)
}

%%inner (x: f32[8,8]) -> f32[8] {
  %%x = f32[8,8]{1,0} parameter(0)
  %%c = f32[] constant(0)
  ROOT %%y = f32[8]{0} reduce(%%x, %%c), dimensions={1}, to_apply=%%add
}

ENTRY %%main (a: f32[8,8]) -> f32[8] {
  %%a = f32[8,8]{1,0} parameter(0)
  ROOT %%b = %s
}
"""


def _fusion(kind: str) -> str:
    return f'f32[8]{{0}} fusion(%a), kind=kCustom, calls=%inner, backend_config={{"kind":"{kind}"}}'


def _call(target: str) -> str:
    return f'f32[8]{{0}} custom-call(%a), custom_call_target="{target}"'


@pytest.mark.parametrize(
    ("operation", "instruction", "choices"),
    [
        ("add", "f32[8]{0} dot(%a, %a), lhs_contracting_dims={1}", {"dot b"}),
        ("add", "f32[8]{0} convolution(%a, %a), dim_labels=bf_io->bf", {"convolution b"}),
        ("add", _call("__cublas$gemm"), {"__cublas$gemm b"}),
        ("add", _call("cusolver_potrf_ffi"), {"cusolver_potrf_ffi b"}),
        ("add", _call("__gpu$xla.gpu.triton"), set()),
        ("add", _fusion("__triton"), {"reduce b"}),
        ("maximum", _fusion("__triton"), set()),
        ("add", _fusion("__native"), set()),  # whose order the emulator finds
    ],
)
def test_choices(operation, instruction, choices):
    computations, entry = computations_of(HLO % (operation, instruction))
    nothing = dict.fromkeys(Program._fields)
    assert Program(**{**nothing, "computations": computations}).choices == choices
    assert entry == "%main"


def test_nothing_to_lint_is_refused():
    with pytest.raises(ValueError, match="expected PTX with a kernel"):
        lint("")


# --- what XLA's runtime does --------------------------------------------------------------


def instruction(name, shape, opcode, operands="", text="") -> Instruction:
    kind, dims = shape
    rank = dims.count(",") + bool(dims)
    shapes = [(kind, dims, ",".join(map(str, reversed(range(rank)))))]
    return Instruction(name, shapes, opcode, operands.split(), text)


@pytest.mark.parametrize(
    ("shape", "text", "expected"),
    [
        (("pred", "4"), "{1, 0, 0, 1}), metadata={}", np.array([True, False, False, True])),
        (("pred", ""), "true), metadata={}", np.array(True)),
        (("pred", ""), "false), metadata={}", np.array(False)),
        (("s32", "2"), "{-3, 5}), metadata={}", np.int32([-3, 5])),
        (("f32", "2"), "{-inf, 1.5e-3}), metadata={}", np.float32([-np.inf, 1.5e-3])),
        (
            ("c64", "2"),
            "{(1, -0.5), (nan, 2)}), metadata={}",
            np.complex64([1 - 0.5j, np.nan + 2j]),
        ),
        (("c64", ""), "(0, 1)), metadata={}", np.complex64(1j)),
    ],
)
def test_constants(shape, text, expected):
    assert same_bits(constant(instruction("c", shape, "constant", "", text)), expected)


def copying(between: list[Instruction], stride: int = 8) -> Program:
    """``x[i]`` by a copy that is started, and waited for behind what is ``between``."""
    place = f'"byte_offset":"0","byte_stride":"{stride}","loop_index":"0"'
    computations = {
        "%slice": [
            instruction("p", ("f32", "3,2"), "parameter", "", "0)"),
            instruction("q", ("s32", ""), "parameter", "", "1)"),
            instruction("zero", ("s32", ""), "constant", "", "0)"),
            instruction("part", ("f32", "1,2"), "dynamic-slice", "p q zero", place),
        ],
        "%started": [instruction("copied", ("f32", "1,2"), "fusion", "x i", "calls=%slice")],
        "%main": [
            instruction("x", ("f32", "3,2"), "parameter", "", "0)"),
            instruction("i", ("s32", ""), "parameter", "", "1)"),
            instruction("y", ("f32", "3,2"), "parameter", "", "2)"),
            instruction("start", ("f32", "1,2"), "async-start", "x i", "calls=%started"),
            *between,
            instruction("done", ("f32", "1,2"), "async-done", "start"),
        ],
    }
    slices = {"x": (0, 0, 24), "i": (1, 0, 4), "y": (2, 0, 24), "x too": (0, 0, 24)}
    slices |= {"copied": (3, 0, 8), "done": (3, 0, 8), "earlier": (4, 0, 8)}
    slice_of = Launch("kDynamicSliceFusion", "", (1,), (1,), 0)
    parts = [[np.s_[:, :]], [()], [np.s_[:, :]]]
    allocations = {0: 24, 1: 4, 2: 24, 3: 8, 4: 8}
    structure = jax.tree.structure(0)
    return Program(
        {},
        computations,
        "%main",
        {"copied": [slice_of]},
        slices,
        allocations,
        structure,
        parts,
        [[np.s_[:, :]]],
        [(1, 2)],
    )


def multiplying(lhs, rhs, numbers, result, **config) -> Program:
    """A library's product of arrays whose layouts are given with their dimensions."""
    names = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    pairs = zip(names, numbers, strict=True)
    numbers = {f"{name}_dimensions": list(map(str, dims)) for name, dims in pairs}
    config = {"alpha_real": 1, "alpha_imag": 0, "beta": 0, "epilogue": "DEFAULT", **config}
    text = json.dumps({"gemm_backend_config": config | {"dot_dimension_numbers": numbers}})
    shapes = [("f64", ",".join(map(str, dims)), layout) for dims, layout in (lhs, rhs, result)]
    computation = [
        Instruction("a", shapes[:1], "parameter", [], "0)"),
        Instruction("b", shapes[1:2], "parameter", [], "1)"),
        Instruction("c", shapes[2:], "custom-call", ["a", "b"], f"backend_config={text}, x"),
    ]
    sizes = {i: 8 * math.prod(dims) for i, (dims, _) in enumerate((lhs, rhs, result))}
    slices = {name: (i, 0, sizes[i]) for i, name in enumerate("abc")}
    launches = {"c": [Launch("kCublasLtMatmul", "", (1,), (1,), 0)]}
    nothing = dict.fromkeys(Program._fields)
    known = {"computations": {"%main": computation}, "entry": "%main", "kernels": {}}
    return Program(
        **{**nothing, **known, "launches": launches, "slices": slices, "allocations": sizes}
    )


def multiply(program, *arguments, seed=0):
    choices = Choices() if seed is None else Choices(sums=np.random.default_rng(seed))
    device = Executor(program, arguments, 0, choices)
    assert list(device.execute("%main")) == []
    return device.results()[0], device.inexact


#: Dimensions and layouts of the operands, contracting and batch dimensions, and the result's.
LIBRARY_PRODUCTS = {
    "ij,jk->ik": (((5, 9), "1,0"), ((9, 4), "0,1"), ([1], [0], [], []), ((5, 4), "0,1")),
    "ki,kj->ij": (((9, 5), "1,0"), ((9, 4), "1,0"), ([0], [0], [], []), ((5, 4), "1,0")),
    "jbi,bkj->bik": (
        ((9, 2, 5), "2,1,0"),
        ((2, 4, 9), "0,2,1"),
        ([0], [2], [1], [0]),
        ((2, 5, 4), "2,1,0"),
    ),
}


@pytest.mark.parametrize("equation", LIBRARY_PRODUCTS)
def test_products_by_a_library(equation):
    """Of integers, they are those of NumPy; of others, they depend on the draws."""
    lhs, rhs, *_ = described = LIBRARY_PRODUCTS[equation]
    program = multiplying(*described)
    a, b = (vectors.spread(dims, i, 30).astype("f8") for i, (dims, _) in enumerate((lhs, rhs)))
    whole = np.rint(a), np.rint(b)
    result, inexact = multiply(program, *whole)
    assert same_bits(result, np.einsum(equation, *whole)) and not inexact
    assert len({multiply(program, a, b, seed=seed)[0].tobytes() for seed in range(5)}) > 1
    assert not multiply(program, a, b)[1] and multiply(program, a, b / 3)[1]


def test_other_calls_of_a_library_are_refused():
    a, b = np.ones((5, 9)), np.ones((9, 4))
    described = LIBRARY_PRODUCTS["ij,jk->ik"]
    for program, seed in (
        (multiplying(*described), None),
        (multiplying(*described, beta=1), 0),
        (multiplying(*described, epilogue="BIAS"), 0),
    ):
        with pytest.raises(NotImplementedError):
            multiply(program, a, b, seed=seed)


def run_copy(program, i=0, rounds=0):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    values = [x, np.int32(i), x + 10]
    device = Executor(program, values, 0, Choices())
    device.rounds.append(rounds)
    assert list(device.execute("%main")) == []
    return device


def test_copies_that_are_started():
    """They take effect when they are waited for; the runtime knows their place by the round."""
    early = instruction("earlier", ("f32", "1,2"), "copy", "copied")
    device = run_copy(copying([early]), i=1, rounds=1)
    assert same_bits(device.results()[0], np.float32([[2, 3]]))
    assert (device.bytes_of("earlier") == 0xA5).all()


@pytest.mark.parametrize(
    ("between", "stride", "message"),
    [
        ([instruction("x too", ("f32", "3,2"), "copy", "y")], 8, "its operands change"),
        ([], 16, "starts at 8, not 16"),
    ],
)
def test_wrong_copies_are_refused(between, stride, message):
    with pytest.raises(EmulationError, match=message):
        run_copy(copying(between, stride), i=1, rounds=1)
